"""Attention of MXFP8, forward and backward, against NumPy in float64: a scale of E8M0 for each block of 32
elements along what the products sum over, in plain order and in tiles of 128 x 4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import checks
import ml_dtypes
import numpy as np
import pytest
import weft
from attention_oracle import (
    BOTTOM_RIGHT,
    Case,
    forward,
    gather,
    into_pages,
    repeat,
    softmax,
    without_portable_family,
)
from random_words import units

AXES = {"q": 3, "k": 3, "v": 2, "q_T": 2, "k_T": 2, "dO": 3, "dO_T": 2}  # the axis of the blocks
TILED = weft.tensor_reordering.F8_128x4
BF16 = checks.roundoff("bf16")
FEW = 2.0**-19  # what sums in float may be off by, of the magnitudes that are summed


class Quantised(NamedTuple):
    """Numbers of FP8, the scales of their blocks, and what both stand for."""

    stored: np.ndarray
    scales: np.ndarray
    true: np.ndarray


def quantise(x: np.ndarray, used: np.ndarray, axis: int, dtype: str = "e4m3") -> Quantised:
    """Quantizes blocks of 32 along an axis. Unused elements are NaN, and so are scales of blocks that have
    only those."""
    x = np.where(used, x, 0)
    size = -(-x.shape[axis] // 32) * 32
    room = [(0, size - n if i == axis else 0) for i, n in enumerate(x.shape)]
    blocks = np.pad(np.abs(x), room)
    shape = (*x.shape[:axis], size // 32, 32, *x.shape[axis + 1 :])
    most = blocks.reshape(shape).max(axis + 1)
    largest = float(ml_dtypes.finfo(checks.narrow(0, dtype).dtype).max)
    scales = np.exp2(np.ceil(np.log2(np.maximum(most, 2.0**-20) / largest)))
    each = np.take(np.repeat(scales, 32, axis), range(x.shape[axis]), axis)
    stored = checks.narrow(x / each, dtype)
    in_use = np.pad(np.broadcast_to(used, x.shape), room).reshape(shape).any(axis + 1)
    return Quantised(
        np.where(used, checks.exact(stored), np.nan).astype(stored.dtype),
        np.where(in_use, scales, np.nan).astype(ml_dtypes.float8_e8m0fnu),
        checks.exact(stored) * each,
    )


def tiled(scales: np.ndarray, axis: int, is_turned: bool) -> Any:
    """Scales of blocks along an axis in tiles, whose columns are the blocks, and their strides. is_turned:
    which of the last two dims has stride 1, which means nothing."""
    matrices = np.swapaxes(scales, 2, 3) if axis == 2 else scales
    b, h, rows, columns = matrices.shape
    whole = np.full((b, h, -(-rows // 128) * 128, -(-columns // 4) * 4), np.nan, scales.dtype)
    whole[:, :, :rows, :columns] = matrices
    height, width = whole.shape[2:]
    tiles = whole.reshape(b, h, height // 128, 4, 32, width // 4, 4).transpose(0, 1, 2, 5, 4, 3, 6)
    dims = (width, height) if axis == 2 else (height, width)
    flat = np.ascontiguousarray(tiles).reshape(b, h, -1)
    steps = (h * height * width, height * width)
    if is_turned:
        return np.swapaxes(flat.reshape(b, h, dims[1], dims[0]), 2, 3), (*steps, 1, dims[0])
    return flat.reshape(b, h, *dims), (*steps, dims[1], 1)


def case(**more: Any) -> Case:
    return replace(Case(2, (2, 2, 2), 37, 75, 80, 40, 0.3), **more)


def mx_inputs(case: Case, dtype: str = "e4m3") -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the operands of both passes, and their true values. For the backward pass, q, k and dO have a
    second copy with blocks along the sequence."""
    rows, columns = case.lengths()
    is_query, is_key = np.arange(case.rows)[:, None] < rows, np.arange(case.columns)[:, None] < columns
    given: dict[str, Any] = case.inputs("f32")
    true = dict(given)
    spread = np.exp2(np.random.default_rng(1).integers(-6, 6, (1, 1, 1, 512)))  # blocks of unequal magnitude
    d_o = checks.random((case.batch, case.heads[0], case.rows, case.value_depth), "f32", seed=5)
    wide = {
        name: checks.exact(each) * spread[..., : each.shape[3]] / 16
        for name, each in (("q", given["q"]), ("k", given["k"]), ("v", given["v"]), ("dO", d_o))
    }
    for name, axis in (
        ("q", 3),
        ("k", 3),
        ("v", 2),
        ("q_T", 2),
        ("k_T", 2),
        ("dO", 3),
        ("dO_T", 2),
        ("v_rows", 3),
    ):
        source = name.split("_")[0]
        made = quantise(wide[source], is_key if source in "kv" else is_query, axis, dtype)
        given[name], given[f"descale_{name}"], true[name] = made
    weights, stats, *_ = softmax(case.scores(true), case.sinks(true))
    o = weights @ repeat(true["v"], case.heads[0])
    for name, numbers in (("o", o), ("dO_f16", wide["dO"])):
        true[name] = np.where(is_query, checks.exact(checks.narrow(numbers, "bf16")), 0)
        given[name] = np.where(is_query, true[name], np.nan).astype(checks.narrow(0, "bf16").dtype)
    true["stats"] = stats.astype(np.float32)
    given["stats"] = np.where(is_query, true["stats"], np.nan).astype(np.float32)
    return given, true


def in_tiles(given: dict[str, Any], is_turned: bool, axes: dict[str, int] = AXES) -> dict[str, Any]:
    """The operands with all scales in tiles."""
    names = {f"descale_{name}": axis for name, axis in axes.items() if f"descale_{name}" in given}
    return given | {name: tiled(given[name], axis, is_turned) for name, axis in names.items()}


def set_tiles(tensors: dict[str, Any], are_tiled: bool) -> None:
    for name, tensor in tensors.items():
        if are_tiled and name.startswith("descale_"):
            tensor.set_reordering_type(TILED)


# ---- Forward -----------------------------------------------------------------------------------------------


def check_forward(case: Case, tiles: str = "", out: str = "bf16", dtype: str = "e4m3", **how: Any) -> None:
    """o, its statistics, and the largest magnitude of o."""
    given, true = mx_inputs(case, dtype)
    backward = ("q_T", "k_T", "dO", "dO_T", "dO_f16", "o", "stats", "v_rows")
    given = {name: each for name, each in given.items() if name.removeprefix("descale_") not in backward}
    want = forward(case, true)
    weights, *_ = softmax(case.scores(true), case.sinks(true))
    sums = weights @ np.abs(repeat(true["v"], case.heads[0]))

    def build(g: weft.Graph, **tensors: Any) -> Any:
        set_tiles(tensors, bool(tiles))
        extra = {key: g.tensor(name=key) for key in ("score_max", "score_sum_exp", "amax_o")}
        o, stats = g._sdpa_fwd(**tensors, **case.values(), **extra, name="a")
        return o, stats, *extra.values()

    q, k = np.abs(true["q"]), np.abs(repeat(true["k"], case.heads[0]))
    products = q @ k.mT
    magnitude = float(case.scale * products.max(initial=1)) + float(sums.max(initial=0))
    found = checks.check(
        build, in_tiles(given, tiles == "turned") if tiles else given, [*want[:3], None, None],
        out=[out, *["f32"] * 4], rounded=[2 * BF16 * sums, *[None] * 4], magnitude=magnitude, **how,
    )  # fmt: skip
    most, off = np.abs(want[0]).max(initial=0), 2 * BF16 * sums.max(initial=0)
    for engine, results in found.items():
        got = checks.exact(results[4]).item()
        assert abs(got - most) <= (1e-6 * most if engine == "cpu.reference" else off), engine


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("tiles", ["", "packed", "turned"])
def test_forward(tiles: str, dtype: str) -> None:
    check_forward(case(), tiles, dtype=dtype, layouts=["packed"] if tiles else ["packed", "padded"])


CASES = {
    "causal": case(right=0),
    "causal at the end, lengths": case(
        right=0, alignment=BOTTOM_RIGHT, seq_len_q=[30, 7], seq_len_kv=[75, 33], sink=True
    ),
    "nothing to see": case(seq_len_q=[0, 37], seq_len_kv=[75, 0]),
    "rows without keys": case(rows=40, columns=20, right=-3),
    "shared heads": case(heads=(4, 2, 2), seq_len_kv=[75, 13]),
    "a bias": case(bias=(1, 2, 37, 75)),
    "heads of 24": case(depth=24, value_depth=17),
    "wide": case(batch=1, heads=(1, 1, 1), rows=20, columns=140, depth=264, value_depth=136),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_forward_of(name: str) -> None:
    check_forward(CASES[name], "packed", layouts=["packed"])


HOPPER = {
    "": case(batch=1, heads=(2, 1, 1), rows=100, columns=300, depth=128, value_depth=128, right=200),
    "packed": case(
        batch=1, heads=(4, 2, 2), rows=150, columns=300, depth=64, value_depth=96, seq_len_kv=[211]
    ),
    "turned": case(batch=1, heads=(2, 2, 2), rows=70, columns=77, depth=48, value_depth=16, right=0),
}


@pytest.mark.parametrize("tiles", HOPPER)
def test_forward_widened_on_hopper(tiles: str) -> None:
    """At this size the portable family is predicted to be faster, so it is excluded."""
    check_forward(HOPPER[tiles], tiles, layouts=["packed"], knobs=without_portable_family())


@pytest.mark.parametrize("rows", [1, 3, 17])
def test_few_queries_of_heads_that_share_keys(rows: int) -> None:
    """Query heads that share keys are rows of one tile; the keys are split."""
    check_forward(case(heads=(8, 2, 2), rows=rows, columns=300), "packed", layouts=["packed"])


@pytest.mark.parametrize("size", [32, 64])
def test_pages(size: int) -> None:
    """Blocks of pages: scales are stored in containers like their keys and values."""
    some = case(seq_len_kv=[75, 40], options={"paged_attention_max_seq_len_kv": 75})
    given, true = mx_inputs(some)
    paged = {name: given[name] for name in ("q", "descale_q", "seq_len_kv")}
    with np.errstate(invalid="ignore"):
        for name in "kv":
            paged[name], table = into_pages(some, given[name], size)
            paged[f"paged_attention_{name}_table"] = table
        paged["descale_k"], _ = into_pages(some, given["descale_k"], size)
    of_v, blocks = given["descale_v"], size // 32
    scales = np.full((len(paged["v"]), 2, blocks, some.value_depth), np.nan).astype(of_v.dtype)
    for b, pages in enumerate(table[:, 0, :, 0]):
        for i, page in enumerate(pages):
            if 0 <= page < len(scales):
                own = of_v[b, :, i * blocks : (i + 1) * blocks]
                scales[page, :, : own.shape[1]] = own
    paged["descale_v"] = scales
    weights, *_ = softmax(some.scores(true), some.sinks(true))
    sums = weights @ np.abs(true["v"])
    checks.check(
        lambda g, **t: g._sdpa_fwd(**t, **some.values(), name="a")[0], paged, forward(some, true)[0],
        out="bf16", rounded=[2 * BF16 * sums], magnitude=100, layouts=["packed"],
    )  # fmt: skip


# ---- Backward ----------------------------------------------------------------------------------------------


def by_definition(case: Case, true: dict[str, Any], kept: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """dQ, dK and dV, each from the copies of its factors; and what is summed in magnitude."""
    hq, hk, hv = case.heads
    s, stats, v = case.scores(true), checks.exact(true["stats"]), repeat(true["v_rows"], hq)
    with np.errstate(invalid="ignore"):
        weights = np.where(np.isinf(stats), 0, np.exp(np.minimum(s - stats, 0)))
    mean = (true["dO_f16"] * true["o"]).sum(-1, keepdims=True)
    ds = case.scale * weights * (true["dO"] @ v.mT * kept - mean)

    def products(p: np.ndarray, ds: np.ndarray, sign: Any) -> list[np.ndarray]:
        return [
            ds @ sign(repeat(true["k_T"], hq)),
            gather(ds.mT @ sign(true["q_T"]), hk),
            gather(p.mT @ sign(true["dO_T"]), hv),
        ]

    sums = np.abs(true["dO"]) @ np.abs(v).mT * kept
    sums = sums + (np.abs(true["dO_f16"]) * np.abs(true["o"])).sum(-1, keepdims=True)
    few = FEW / BF16 * (np.abs(case.scale * weights * sums) - np.abs(ds))
    lost = products(weights * kept, np.abs(ds) + few, np.abs)
    return products(weights * kept, ds, lambda x: x), lost


def run_backward(case: Case, tiles: str) -> Any:
    def build(g: weft.Graph, **tensors: Any) -> Any:
        set_tiles(tensors, bool(tiles))
        extra = {f"amax_{name}": g.tensor(name=f"amax_{name}") for name in ("dQ", "dK", "dV")}
        return *g._sdpa_bwd(**tensors, **case.values(), **extra, name="a"), *extra.values()

    return build


def check_backward(
    case: Case, tiles: str = "", out: str = "bf16", kept: Any = 1.0, drawn: Any = None, **how: Any
) -> None:
    """Gradients and the largest magnitudes of them."""
    given, true = mx_inputs(case)
    given |= {"v": given["v_rows"], "descale_v": given["descale_v_rows"]} | (drawn or {})
    given = {name: each for name, each in given.items() if "v_rows" not in name}
    want, sums = by_definition(case, true, kept)
    lost = [2 * BF16 * each for each in sums]
    # Factors of wide results are two parts of bf16 each, 17 bits in all.
    magnitude = 4 * float(max(each.max(initial=0) for each in sums)) if out == "f32" else 0
    found = checks.check(
        run_backward(case, tiles), in_tiles(given, tiles == "turned", AXES | {"v": 3}) if tiles else given,
        [*want, *[None] * 3], out=[*[out] * 3, *["f32"] * 3], rounded=[*lost, *[None] * 3],
        magnitude=magnitude, **how,
    )  # fmt: skip
    for engine, results in found.items():
        for i, (each, slack) in enumerate(zip(want, lost, strict=True)):
            most, got = np.abs(each).max(initial=0), checks.exact(results[3 + i]).item()
            off = 1e-6 * most if engine == "cpu.reference" else slack.max(initial=0)
            assert abs(got - most) <= off, f"{engine}: largest {i} is {got}, want {most}"


@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("tiles", ["", "packed", "turned"])
def test_backward(tiles: str, out: str) -> None:
    check_backward(case(), tiles, out, layouts=["packed"] if tiles else ["packed", "padded"])


BACKWARD = {key: each for key, each in CASES.items() if key != "a bias"}
BACKWARD |= {"keys and values shared differently": case(heads=(4, 2, 1), right=5)}


@pytest.mark.parametrize("name", BACKWARD)
def test_backward_of(name: str) -> None:
    check_backward(BACKWARD[name], "packed", layouts=["packed"])


BACKWARD_ON_HOPPER = HOPPER | {
    "": case(batch=1, heads=(2, 1, 1), rows=100, columns=200, depth=192, value_depth=128, left=90),
}


@pytest.mark.parametrize("tiles", BACKWARD_ON_HOPPER)
def test_backward_widened_on_hopper(tiles: str) -> None:
    """Each gradient from the copy that is for it."""
    check_backward(BACKWARD_ON_HOPPER[tiles], tiles, layouts=["packed"], knobs=without_portable_family())


def test_backward_of_dropout() -> None:
    some = case(dropout=0.25, right=0)
    shape = (some.batch, some.heads[0], some.rows, some.columns)
    kept = (units(shape, seed=11, offset=3) < 1 - some.dropout) / (1 - some.dropout)
    drawn = {"dropout_seed": np.array([[[[11]]]]), "dropout_offset": np.array([[[[3]]]])}
    check_backward(some, kept=kept, drawn=drawn, layouts=["packed"])


def test_the_quantiser_makes_what_attention_takes() -> None:
    """block_scale_quantize writes tiled scales that attention accepts; the Python methods match cuDNN's."""
    some = Case(1, (2, 2, 2), 150, 150, 64, 64, 0.125)
    arrays = {
        name: checks.random((1, 2, 150, 64), "f32", seed=i) for i, name in enumerate(("q", "k", "v", "dO"))
    }
    g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
    inputs = {name: g.tensor_like(each, name=name) for name, each in arrays.items()}
    made, true = {}, {}
    for name in arrays:
        for axis in (2, 3):
            y, scale = g.block_scale_quantize(inputs[name], 32, axis=axis, transpose=axis == 2)
            made[name, axis] = y.set_data_type("e4m3"), scale.set_reordering_type(TILED).set_data_type("e8m0")
            true[name, axis] = quantise(checks.exact(arrays[name]), np.ones(1, bool), axis).true
    (q, of_q), (k, of_k), (v, of_v), (d_o, of_d_o) = (made[name, 3] for name in arrays)
    (q_t, of_q_t), (k_t, of_k_t), (v_t, of_v_t), (d_o_t, of_d_o_t) = (made[name, 2] for name in arrays)
    o, stats, amax = g.sdpa_mxfp8(q, k, v_t, of_q, of_k, of_v_t, attn_scale=0.125, generate_stats=True)
    gradients = g.sdpa_mxfp8_backward(
        q, q_t, k, k_t, v, o, inputs["dO"], d_o, d_o_t, stats,
        of_q, of_q_t, of_k, of_k_t, of_v, of_d_o, of_d_o_t, attn_scale=0.125,
    )  # fmt: skip
    for tensor in (o, stats, amax, *gradients):
        tensor.set_output(True).set_data_type("f32")
    g.build()
    found = [np.zeros(tensor.dims, np.float32) for tensor in (o, stats, amax, *gradients)]
    g.execute(
        dict(zip((*inputs.values(), o, stats, amax, *gradients), (*arrays.values(), *found), strict=True))
    )
    operands = {"q": true["q", 3], "k": true["k", 3], "v": true["v", 2], "v_rows": true["v", 3]}
    operands |= {"q_T": true["q", 2], "k_T": true["k", 2], "dO": true["dO", 3], "dO_T": true["dO", 2]}
    want_o, want_stats, *_ = forward(some, operands)
    operands |= {"o": want_o, "stats": want_stats, "dO_f16": checks.exact(arrays["dO"])}
    want, _ = by_definition(some, operands, 1.0)
    largest = [np.full((1, 1, 1, 1), np.abs(each).max()) for each in (want_o, *want)]
    for got, each in zip(found, (want_o, want_stats, largest[0], *want, *largest[1:]), strict=True):
        np.testing.assert_allclose(got, each, rtol=1e-4, atol=1e-5)


# ---- Refusals ----------------------------------------------------------------------------------------------

PLAIN = {"q": ([2, 4, 7, 80], "e4m3"), "k": ([2, 2, 90, 80], "e4m3"), "v": ([2, 2, 90, 48], "e4m3")}
OF_K = "for blocks of 32 elements of [2,2,90,80], expected"
UNTILED = "has reordering_type F8_128x4, which is for block scales. Set NONE (0)."


@pytest.mark.parametrize(
    ("name", "dims", "strides", "sentence"),
    [
        ("descale_k", [2, 2, 90, 2], None,
         f"descale_k has dims [2,2,90,2]; {OF_K} [2,2,90,3] along its last dimension, or [2,2,3,80] along "
         "the one before. Use one of these."),
        ("descale_k", [2, 2, 90, 3], (),
         f"descale_k, in tiles (F8_128x4), has dims [2,2,90,3]; {OF_K} [2,2,128,4] along its last "
         "dimension, or [2,2,4,128] along the one before. Use one of these."),
        ("descale_k", [2, 2, 128, 4], (2048, 1024, 8, 1),
         "descale_k has reordering_type F8_128x4, dims [2,2,128,4] and strides [2048,1024,8,1]. Tiles need "
         "the last two dims packed: one of stride 1, the other of its extent."),
        ("scale_s", [1, 1, 1, 1], (), f"scale_s, tensor 'scale_s' (uid 4), {UNTILED}"),
        ("descale_s", [1, 1, 1, 1], (), f"descale_s {UNTILED}"),
    ],
)  # fmt: skip
def test_refusals(name: str, dims: list[int], strides: Any, sentence: str) -> None:
    def build(g: weft.Graph, **tensors: Any) -> Any:
        extra = g.tensor(dims, list(strides) if strides else None, data_type="f32", name=name)
        if strides is not None:
            extra.set_reordering_type(TILED)
        return g._sdpa_fwd(**tensors, **{name: extra}, name="a")

    checks.refuses(build, PLAIN, f"sdpa_fwd 'a': {sentence}", weft.WeftError)
