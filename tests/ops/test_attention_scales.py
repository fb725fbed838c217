"""Attention of 8-bit operands with scales against NumPy in float64: types, sharing of scales, pages, the
order of multiplications, and the reported maxima."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import checks
import numpy as np
import pytest
import weft
from attention_oracle import (
    BOTTOM_RIGHT,
    Case,
    forward,
    into_pages,
    repeat,
    run_forward,
    softmax,
    without_portable_family,
)

SHARES = {
    "tensor": (0, 0, 0),
    "head": (0, 1, 0),
    "batch": (1, 0, 0),
    "batch and head": (1, 1, 0),
    "row": (1, 1, 1),
}


def scales(shape: Any, share: str, seed: int, axes: int = 3) -> np.ndarray:
    """Scales that the dims of a share have of their own."""
    dims = [
        n if own and i < axes else 1 for i, (n, own) in enumerate(zip(shape, SHARES[share], strict=False))
    ]
    return checks.random([*dims, 1], "f32", 0.02, 0.5, seed=seed)


def scaled_inputs(case: Case, types: tuple[str, str, str], share: str) -> dict[str, Any]:
    """Operands of these types with their scales."""
    inputs: dict[str, Any] = case.inputs("f32")
    for i, (name, dtype) in enumerate(zip("qkv", types, strict=True)):
        shape = inputs[name].shape
        inputs[name] = checks.random(shape, dtype, *((-100, 100) if dtype == "i8" else (-4, 4)), seed=i)
        if dtype in ("i8", "e4m3", "e5m2"):
            inputs[f"descale_{name}"] = scales(shape, share, 10 + i, 2 if name == "q" else 3)
    return inputs


def true_inputs(inputs: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that the operands represent."""
    found = {key: value for key, value in inputs.items() if not key.startswith("descale")}
    for name in "qkv":
        found[name] = checks.exact(inputs[name]) * checks.exact(inputs.get(f"descale_{name}", 1.0))
    return found


def score_magnitudes(case: Case, true: dict[str, Any]) -> np.ndarray:
    """What is summed in magnitude for each score."""
    q, k = np.abs(true["q"]), np.abs(repeat(true["k"], case.heads[0]))
    return np.abs(case.scale) * (q @ k.mT)


FP8 = ("e4m3", "e5m2")
TAIL = 2.0**-16  # of the largest weight of a row: at worst half the spacing of E4M3 there


def roundings(case: Case, true: dict[str, Any], rows_are_rounded: bool, is_fp8: bool = False) -> list[Any]:
    """Bounds the error of o and statistics from rounding weights to 16 bits, with scales per row. is_fp8:
    weights become E4M3. Rounding errors have either sign, so a row's total error is a few of the largest
    ones; if all weights are equal it is that of each, relative to o."""
    unit, sums = checks.roundoff("bf16"), score_magnitudes(case, true)
    weights, *_ = softmax(case.scores(true), case.sinks(true))
    values = np.abs(repeat(true["v"], case.heads[0]))
    lost = weights @ values
    if is_fp8:
        off = checks.roundoff("e4m3") * weights + TAIL * weights.max(-1, keepdims=True, initial=0)
        alike = np.abs(weights @ repeat(true["v"], case.heads[0]))
        spread = np.sqrt((off**2) @ (values**2))
        return [checks.roundoff("e4m3") * alike + 4 * spread, None, None, None]
    if not rows_are_rounded:
        return [unit * lost, None, None, None]
    seen = np.where(case.visible(true), 2 * unit * sums, 0).max(-1, keepdims=True, initial=0)
    return [unit * 2 * lost + 2 * seen * lost, seen, seen, None]


def check_scaled(
    case: Case,
    types: tuple[str, str, str] = ("bf16", "e4m3", "e4m3"),
    share: str = "tensor",
    pages: int = 0,
    knobs: Any = None,
    layouts: Any = ("packed",),
) -> None:
    """o and its statistics."""
    inputs = scaled_inputs(case, types, share)
    true = true_inputs(inputs)
    want = forward(case, true)
    if pages:
        inputs = in_pages(case, inputs, pages)
        case = replace(case, options=case.options | {"paged_attention_max_seq_len_kv": case.columns})
    is_fp8 = all(dtype in FP8 for dtype in types)
    rounded = roundings(case, true, share != "tensor", is_fp8 and share != "row")
    out = ["bf16", *["bf16" if share != "tensor" else "f32"] * 2, "f32"]
    magnitude = float(score_magnitudes(case, true).max(initial=20))
    want[3] = None if share != "tensor" else want[3]
    checks.check(
        run_forward(case),
        inputs,
        want,
        magnitude=magnitude,
        rounded=rounded,
        knobs=knobs,
        layouts=layouts,
        out=out,
        of_fp8=is_fp8,
    )


def in_pages(case: Case, inputs: dict[str, Any], size: int) -> dict[str, Any]:
    """Keys, values and the scales that each of them has in pages; what no sequence uses is NaN."""
    found = dict(inputs)
    with np.errstate(invalid="ignore"):
        for name in "kv":
            found[name], found[f"paged_attention_{name}_table"] = into_pages(case, inputs[name], size)
            own = inputs.get(f"descale_{name}")
            if own is not None and own.shape[2] > 1:
                found[f"descale_{name}"], _ = into_pages(case, own, size)
    return found


def scaled(queries: int = 3, keys: int = 70, depth: int = 32, group: int = 2, **more: Any) -> Case:
    return Case(2, (2 * group, 2, 2), queries, keys, depth, more.pop("value_depth", depth), 0.05, **more)


TYPES = [
    ("bf16", "e4m3", "e4m3"), ("f16", "e4m3", "e5m2"), ("bf16", "e5m2", "i8"), ("f16", "i8", "i8"),
    ("bf16", "i8", "bf16"), ("e4m3", "e4m3", "e4m3"), ("e5m2", "e4m3", "e4m3"), ("f32", "e4m3", "i8"),
]  # fmt: skip


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_types(types: tuple[str, str, str], share: str) -> None:
    check_scaled(scaled(), types, share)


@pytest.mark.parametrize("share", ["tensor", "row"])
@pytest.mark.parametrize(("queries", "group"), [(1, 1), (1, 8), (16, 1), (17, 1), (33, 2), (64, 1), (70, 2)])
def test_rows(queries: int, group: int, share: str) -> None:
    check_scaled(scaled(queries, 50, group=group, right=0, alignment=BOTTOM_RIGHT), share=share)


@pytest.mark.parametrize("share", ["tensor", "row"])
@pytest.mark.parametrize(("depth", "value_depth"), [(8, 8), (40, 24), (128, 128), (192, 128), (256, 256)])
def test_depths(depth: int, value_depth: int, share: str) -> None:
    check_scaled(
        scaled(2, 70, depth, value_depth=value_depth), share=share, layouts=["packed", "channels_last"]
    )


@pytest.mark.parametrize("dtype", ["e4m3", "i8"])
@pytest.mark.parametrize("share", ["tensor", "head", "row"])
@pytest.mark.parametrize("size", [1, 5, 16, 32])
def test_pages(size: int, share: str, dtype: str) -> None:
    check_scaled(scaled(2, 60, seq_len_kv=[60, 23]), ("bf16", dtype, dtype), share, size)


@pytest.mark.parametrize("queries", [2, 70])
def test_scales_of_pages(queries: int) -> None:
    """One for each page and head."""
    case, size = scaled(queries, 48, seq_len_kv=[48, 37]), 8
    inputs = scaled_inputs(case, ("bf16", "e4m3", "e4m3"), "tensor")
    given, true = in_pages(case, inputs, size), true_inputs(inputs)
    for i, name in enumerate("kv"):
        given[f"descale_{name}"] = own = checks.random(
            (*given[name].shape[:2], 1, 1), "f32", 0.02, 0.5, seed=20 + i
        )
        page = np.clip(given[f"paged_attention_{name}_table"][:, 0, :, 0], 0, len(own) - 1)
        each = np.repeat(np.moveaxis(own[page][..., 0], 1, 2), size, 2)
        true[name] = checks.exact(inputs[name]) * each
    want = forward(case, true)
    rounded = roundings(case, true, True)
    case = replace(case, options={"paged_attention_max_seq_len_kv": 48})
    checks.check(
        run_forward(case), given, [*want[:3], None], magnitude=float(score_magnitudes(case, true).max()),
        rounded=rounded, layouts=["packed"], out=["bf16", "bf16", "bf16", "f32"],
    )  # fmt: skip


@pytest.mark.parametrize("share", ["tensor", "row"])
@pytest.mark.parametrize("splits", [1, 2, 5])
def test_splits(splits: int, share: str) -> None:
    case = scaled(3, 300, seq_len_kv=[0, 130], seq_len_q=[3, 2])
    check_scaled(case, share=share, knobs={"SPLIT_K": splits})
    check_scaled(case, share=share, pages=7, knobs={"SPLIT_K": splits})


MASKS = {
    "causal at the end, lengths": {
        "right": 0, "alignment": BOTTOM_RIGHT, "seq_len_q": [5, 3], "seq_len_kv": [70, 37]
    },
    "window": {"left": 20, "right": 3, "alignment": BOTTOM_RIGHT},
    "bias": {"bias": (1, 4, 5, 70)},
    "alibi and a sink": {"alibi": True, "sink": True, "seq_len_kv": [0, 50]},
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("share", ["tensor", "row"])
def test_masks(name: str, share: str) -> None:
    check_scaled(scaled(5, 70, **MASKS[name]), share=share)


# ---- FP8: scales of the softmax and of the result, and the largest numbers ---------------------------------


def run_fp8(case: Case, has_stats: bool) -> Any:
    """o, stats where they are wanted, amax_s and amax_o."""

    def build(g: weft.Graph, **tensors: Any) -> Any:
        extra = {key: g.tensor(name=key) for key in ("amax_s", "amax_o")}
        o, stats = g._sdpa_fwd(**tensors, **case.values(), **extra, name="a")
        return o, *([stats] if has_stats else []), *extra.values()

    return build


FP8_CASES = {
    "plain": scaled(70, 90, 64),
    "few queries": scaled(2, 300, 64),
    "ragged": scaled(40, 70, 48, seq_len_q=[0, 31], seq_len_kv=[70, 0], right=0),
    "causal, sink": scaled(20, 70, 48, right=0, sink=True),
    "no keys": scaled(20, 70, 48, seq_len_kv=[0, 0]),
    "heads of 4": scaled(9, 20, 4, value_depth=520),
    "several blocks": scaled(150, 300, 128, 1),
    "a ragged block, window": scaled(200, 333, 96, value_depth=80, left=100, right=20),
    "at the end, lengths": scaled(
        70, 300, 64, right=0, alignment=BOTTOM_RIGHT, seq_len_q=[61, 70], seq_len_kv=[129, 258]
    ),
    "heads of 256, alibi": scaled(130, 140, 256, 1, alibi=True),
    "heads of 192 and 128, a bias": scaled(65, 129, 192, value_depth=128, bias=(1, 4, 65, 129)),
    "tiles of a block mask": scaled(200, 400, 64, right=0, alignment=BOTTOM_RIGHT, block_mask=(2, 1)),
    "a negative scale, window": replace(scaled(70, 300, 64, left=40, right=0), scale=-0.05),
}


@pytest.mark.parametrize("out", ["e4m3", "e5m2", "bf16"])
@pytest.mark.parametrize("name", FP8_CASES)
def test_fp8(name: str, out: str) -> None:
    check_fp8(FP8_CASES[name], ("e4m3", "e4m3", "e4m3"), out)


@pytest.mark.parametrize("name", FP8_CASES)
def test_fp8_without_statistics(name: str) -> None:
    """Products of Hopper sum the weights."""
    case, types = FP8_CASES[name], ("e4m3", "e4m3", "e5m2")
    compare_fp8(case, scaled_inputs(case, types, "tensor"), "bf16", has_stats=False)


@pytest.mark.parametrize("types", list(itertools.product(FP8, repeat=3)), ids="-".join)
def test_fp8_of_two_kinds(types: tuple[str, str, str]) -> None:
    check_fp8(scaled(40, 130, 64), types, "e4m3", "batch and head")


DEEP = {
    "e4m3": scaled(70, 800, 160, 1, right=400),
    "e5m2": scaled(130, 800, 256, 1, seq_len_kv=[780, 33], sink=True),
    "f16": scaled(20, 900, 64, value_depth=256, bias=(1, 4, 20, 900)),
}  # fmt: skip


@pytest.mark.parametrize("out", DEEP)
def test_fp8_of_deep_heads_on_hopper(out: str) -> None:
    """Promoted, or widened where a bias finds no registers. The portable family is left out."""
    inputs = scaled_inputs(DEEP[out], ("e4m3", "e5m2", "e4m3"), "batch and head")
    compare_fp8(DEEP[out], inputs, out, knobs=without_portable_family())


def test_fp8_rows_of_every_size() -> None:
    """Weights from 2^-30 to 1, and keys that exceed those before them late."""
    case = scaled(140, 400, 64)
    inputs = scaled_inputs(case, ("e4m3", "e4m3", "e4m3"), "tensor")
    inputs["q"] = checks.narrow(np.linspace(0, 2, 140)[:, None] * checks.exact(inputs["q"]), "e4m3")
    order = np.argsort(-np.abs(checks.exact(inputs["k"])).sum(-1), axis=-1)
    inputs["k"] = np.take_along_axis(inputs["k"], order[..., None], axis=2)
    inputs["descale_q"] = np.full((1, 1, 1, 1), 5, np.float32)
    compare_fp8(case, inputs, "bf16")


@pytest.mark.parametrize("has_stats", [True, False])
@pytest.mark.parametrize("size", [64, 128])
def test_fp8_of_many_keys(size: int, has_stats: bool) -> None:
    """The promoted sums of rows whose last block exceeds all others, and of some that see no other one."""
    case = scaled(70, 1700, size, 1, bias=(1, 2, 70, 1700))
    inputs = scaled_inputs(case, ("e4m3", "e4m3", "e4m3"), "tensor")
    order = np.argsort(-np.abs(checks.exact(inputs["k"])).sum(-1), axis=-1)
    inputs["k"] = np.take_along_axis(inputs["k"], order[..., None], axis=2)
    inputs["descale_q"] = np.full((1, 1, 1, 1), 5, np.float32)
    inputs["bias"][..., ::3, 40:] = -np.inf
    compare_fp8(case, inputs, "bf16", has_stats)


def check_fp8(case: Case, types: tuple[str, str, str], out: str, share: str = "tensor") -> None:
    """o, stats, amax_s and amax_o with all scales."""
    compare_fp8(case, scaled_inputs(case, types, share), out)


def compare_fp8(case: Case, inputs: dict[str, Any], out: str, has_stats: bool = True, **how: Any) -> None:
    true = true_inputs(inputs)
    inputs |= {key: np.full((1, 1, 1, 1), value, np.float32) for key, value in
               {"scale_s": 256, "descale_s": 1 / 128, "scale_o": 16}.items()}  # fmt: skip
    weights, stats, *_ = softmax(case.scores(true), case.sinks(true))
    o = 2 * forward(case, true)[0]
    amax = [np.full((1, 1, 1, 1), np.abs(each).max(initial=0)) for each in (weights, o)]
    want = [16 * o, *([stats] if has_stats else []), *amax]
    lost = 2 * roundings(case, true, False, True)[0]
    sums = forward(case, true | {"v": np.abs(true["v"])})[0].max(initial=0)
    magnitude = max(32 * float(sums), float(score_magnitudes(case, true).max()))
    checks.check(
        run_fp8(case, has_stats), inputs, want, magnitude=magnitude, out=[out, *["f32"] * (len(want) - 1)],
        rounded=[16 * lost, *[None] * (len(want) - 2), lost.max(initial=0)], layouts=["packed"], of_fp8=True,
        **how,
    )  # fmt: skip


# ---- Refusals ----------------------------------------------------------------------------------------------


def test_refusals() -> None:
    def refuse(sentence: str, name: str, given: Any) -> None:
        tensors = {"q": ([2, 4, 7, 40], "bf16"), "k": ([2, 2, 9, 40], "e4m3"), "v": ([2, 2, 9, 6], "e4m3")}
        checks.refuses(
            lambda g, **t: g._sdpa_fwd(**t, name="a"), tensors | {name: given}, f"sdpa_fwd 'a': {sentence}"
        )

    fix = "Make each of its dims 1 or equal, of the same rank."
    refuse(
        f"descale_q with dims [2,4,7,1] does not broadcast to [2,4,1,1]. {fix}",
        "descale_q",
        ([2, 4, 7, 1], "f32"),
    )
    refuse(
        f"descale_k with dims [2,4,1,1] does not broadcast to [2,2,9,1]. {fix}",
        "descale_k",
        ([2, 4, 1, 1], "f32"),
    )
    refuse(
        "descale_v has dims [2,2,9,6]; for blocks of 32 elements of [2,2,9,6], expected [2,2,9,1] along its "
        "last dimension, or [2,2,1,6] along the one before. Use one of these.",
        "descale_v",
        ([2, 2, 9, 6], "f32"),
    )
    refuse("descale_v has data type i32. Use a floating type.", "descale_v", ([1, 1, 1, 1], "i32"))
    refuse(
        f"scale_s with dims [1,4,1,1] does not broadcast to [1,1,1,1]. {fix}",
        "scale_s",
        ([1, 4, 1, 1], "f32"),
    )
    refuse("scale_o has data type bool8. Use a floating type.", "scale_o", ([1, 1, 1, 1], "bool8"))


def test_a_sum_of_weights_that_dropout_has_thinned() -> None:
    """amax_s is measured after dropout, whose scale makes it larger than any weight before."""
    g = weft.Graph(io_data_type="f32")
    one = np.ones((1, 1, 1, 1), np.float32)
    q, k, v = (np.zeros((1, 1, 64, 4), np.float32) for _ in range(3))
    seed, offset = np.ones((1, 1, 1, 1), np.int32), np.zeros((1, 1, 1, 1), np.int32)
    g.sdpa_fp8(q, k, v, *[one] * 6, dropout=(0.75, seed, offset))
    results = g()
    assert results[-2].item() == 4 / 64
