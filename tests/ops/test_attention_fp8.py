"""Gradients of attention of FP8 against NumPy in float64: operands with scales, the softmax and its gradient
as FP8, results with scales, and the largest numbers that were made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import checks
import numpy as np
import pytest
import weft
from attention_oracle import BOTTOM_RIGHT, Case, gather, repeat, softmax, without_portable_family
from random_words import units

OPERANDS = ("q", "k", "v", "o", "dO")
SCALES = {"scale_s": 300.0, "scale_dP": 40.0, "scale_dQ": 16.0, "scale_dK": 8.0, "scale_dV": 4.0}
SCALES |= {"descale_s": 1 / 300, "descale_dP": 1 / 40}
DESCALES = dict(zip(OPERANDS, (0.25, 0.5, 0.125, 0.25, 0.5), strict=True))
# Allowed error of sums, relative to the magnitudes summed: floats, or Hopper's FP8 products, which keep 13
# bits of fraction.
FEW = 2.0**-13 if checks.DEVICE == "cuda" else 2.0**-20
FP8 = ("e4m3", "e5m2")


def one(value: float) -> np.ndarray:
    return np.full((1, 1, 1, 1), value, np.float32)


def fp8_inputs(case: Case, types: tuple[str, ...], kept: Any = 1.0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the operands of a backward pass in these types, and their true values. Memory after the lengths
    in use is not read: it is NaN."""
    given: dict[str, Any] = case.inputs("f32")
    true = dict(given)
    rows, columns = case.lengths()
    is_query, is_key = np.arange(case.rows)[:, None] < rows, np.arange(case.columns)[:, None] < columns

    def add(name: str, numbers: Any, dtype: str) -> None:
        is_used, descale = is_key if name in "kv" else is_query, DESCALES[name]
        stored = checks.narrow(checks.exact(numbers) / descale, dtype)
        true[name] = np.where(is_used, checks.exact(stored), 0) * descale
        given[name] = np.where(is_used, checks.exact(stored), np.nan).astype(stored.dtype)
        given[f"descale_{name}"] = one(descale)

    for name, dtype in zip("qkv", types[:3], strict=True):
        add(name, given[name], dtype)
    weights, stats, *_ = softmax(case.scores(true), case.sinks(true))
    add("o", (weights * kept) @ repeat(true["v"], case.heads[0]), types[3])
    add("dO", checks.random(true["o"].shape, "f32", seed=5), types[4])
    true["stats"] = stats.astype(np.float32)
    given["stats"] = np.where(is_query, true["stats"], np.nan).astype(np.float32)
    return given | {name: one(value) for name, value in SCALES.items()}, true


def as_factor(numbers: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """Returns a number used as a factor: scaled, rounded to the type, and unscaled."""
    scaled = numbers * SCALES[f"scale_{name}"]
    return (checks.exact(checks.narrow(scaled, dtype)) if dtype in FP8 else scaled) * SCALES[
        f"descale_{name}"
    ]


def spread(numbers: np.ndarray, slack: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """Bounds the error of a factor whose number may be off by `slack`: it may become the next FP8 number, and
    numbers without an FP8 form become bf16 on tensor cores."""
    near = [as_factor(numbers + sign * slack, dtype, name) for sign in (-1, 0, 1)]
    off = np.maximum(near[2] - near[1], near[1] - near[0])
    return off if dtype in FP8 else off + checks.roundoff("bf16") * np.abs(near[1])


def by_definition(
    case: Case, true: dict[str, Any], types: tuple[str, ...], kept: Any = 1.0
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """dQ, dK, dV, before their scales, and gradients of scores; and how far factors may have them off."""
    hq, hk, hv = case.heads
    s, stats, d_o = case.scores(true), checks.exact(true["stats"]), true["dO"]
    q, k, v = true["q"], repeat(true["k"], hq), repeat(true["v"], hq)
    with np.errstate(invalid="ignore"):
        weights = np.where(np.isinf(stats), 0, np.exp(np.minimum(s - stats, 0)))
    mean = (d_o * true["o"]).sum(-1, keepdims=True)
    ds = case.scale * weights * (d_o @ v.mT * kept - mean)
    sums = np.abs(d_o) @ np.abs(v).mT * kept
    sums = case.scale * weights * (sums + (np.abs(d_o) * np.abs(true["o"])).sum(-1, keepdims=True))
    of_weights = 4 * FEW * case.scale * np.abs(np.abs(q) @ np.abs(k).mT).max(initial=1)
    p, ds_factor = as_factor(weights * kept, types[0], "s"), as_factor(ds, types[4], "dP")
    # Hopper's kernels first store the softmax as f16.
    off = of_weights * sums + checks.roundoff("f16") * np.abs(ds)
    off_p = spread(weights * kept, (of_weights + checks.roundoff("f16")) * weights * kept, types[0], "s")
    off_ds = spread(ds, off, types[4], "dP")

    def products(p: np.ndarray, g: np.ndarray, sign: Any) -> list[np.ndarray]:
        return [
            g @ sign(k),
            gather(g.mT @ sign(q), hk),
            gather(p.mT @ sign(d_o), hv),
        ]

    want = products(p, ds_factor, lambda x: x)
    most = products(np.abs(p), np.abs(ds_factor), np.abs)
    lost = [a + FEW * b for a, b in zip(products(off_p, off_ds, np.abs), most, strict=True)]
    return [*want, np.abs(ds)], [*lost, off]


def run_fp8_backward(case: Case) -> Any:
    """dQ, dK, dV and the largest numbers."""

    def build(g: weft.Graph, **tensors: Any) -> Any:
        extra = {f"amax_{name}": g.tensor(name=f"amax_{name}") for name in ("dQ", "dK", "dV", "dP")}
        return *g._sdpa_bwd(**tensors, **case.values(), **extra, name="a"), *extra.values()

    return build


def check_fp8(
    case: Case, types: tuple[str, ...], out: str = "", kept: Any = 1.0, drawn: Any = None, **how: Any
) -> None:
    given, true = fp8_inputs(case, types, kept)
    check_results(case, given | (drawn or {}), true, types, out, kept, **how)


def check_results(
    case: Case,
    given: dict[str, Any],
    true: dict[str, Any],
    types: tuple[str, ...],
    out: str,
    kept: Any = 1.0,
    **how: Any,
) -> None:
    """All results of the operands, as what they stand for has them."""
    want, lost = by_definition(case, true, types, kept)
    scales = [SCALES[f"scale_{name}"] for name in ("dQ", "dK", "dV")]
    scaled, rounded = ([each * s for each, s in zip(of, scales, strict=False)] for of in (want, lost))
    magnitude = 2.0**19 * max(float(each.max(initial=0)) for each in rounded) if out == "f32" else 0
    kinds = [out or types[i] for i in range(3)] + ["f32"] * 4
    rounded = [(1 + checks.roundoff(kind)) * each for each, kind in zip(rounded, kinds, strict=False)]
    found = checks.check(
        run_fp8_backward(case), given, [*scaled, *[None] * 4], out=kinds, rounded=[*rounded, *[None] * 4],
        magnitude=magnitude, **how,
    )  # fmt: skip
    for engine, results in found.items():
        for i, (each, slack) in enumerate(zip(want, lost, strict=True)):
            most, off = np.abs(each).max(initial=0), slack.max(initial=0) if engine != "cpu.reference" else 0
            got = checks.exact(results[3 + i]).item()
            assert abs(got - most) <= off + 2.0**-22 * most, f"{engine}: largest {i} is {got}, want {most}"


def case(**more: Any) -> Case:
    return replace(Case(2, (2, 2, 2), 37, 45, 24, 40, 0.3), **more)


TYPES = [
    ("e4m3",) * 5, ("e4m3", "e4m3", "e4m3", "e4m3", "e5m2"), ("e5m2",) * 5,
    ("e4m3", "e4m3", "e4m3", "bf16", "e5m2"), ("e4m3", "e5m2", "e4m3", "bf16", "bf16"),
    ("bf16", "e4m3", "e4m3", "bf16", "e4m3"),
]  # fmt: skip


@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_types(types: tuple[str, ...]) -> None:
    check_fp8(case(), types)


@pytest.mark.parametrize("out", ["e5m2", "bf16", "f16", "f32"])
def test_results(out: str) -> None:
    check_fp8(case(), TYPES[1], out)


CASES = {
    "heads of whole runs": case(depth=32, value_depth=48, rows=70, columns=90, right=0, seq_len_kv=[90, 20]),
    "causal": case(right=0),
    "causal at the end, lengths": case(
        right=0, alignment=BOTTOM_RIGHT, seq_len_q=[30, 7], seq_len_kv=[45, 21]
    ),
    "a window": case(left=9, right=3),
    "nothing to see": case(seq_len_q=[0, 37], seq_len_kv=[45, 0]),
    "rows without keys": case(rows=40, columns=20, right=-3),
    "shared heads": case(heads=(4, 2, 2), seq_len_kv=[45, 13]),
    "keys and values shared differently": case(heads=(4, 2, 1)),
    "bias": case(bias=(1, 2, 37, 45)),
    "a sink": case(sink=True, seq_len_q=[37, 20]),
    "one of each": case(batch=1, heads=(1, 1, 1), rows=1, columns=1, depth=1, value_depth=1),
    "more than a tile": case(
        batch=1, heads=(2, 1, 1), rows=150, columns=140, depth=64, value_depth=64, right=0
    ),
    "wide": case(batch=1, rows=20, columns=40, depth=264, value_depth=136),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_features(name: str) -> None:
    check_fp8(CASES[name], TYPES[1], layouts=["packed", "padded"])


@pytest.mark.parametrize("columns", [140, 70])
def test_heads_in_parts_on_hopper(columns: int) -> None:
    """A block of keys processes some of the query heads that share it."""
    some = case(
        batch=1, heads=(8, 1, 1), rows=330, columns=columns, depth=128, value_depth=96, right=0,
        alignment=BOTTOM_RIGHT, seq_len_kv=[columns - 9], seq_len_q=[330],
    )  # fmt: skip
    knobs = without_portable_family()
    check_fp8(some, TYPES[1], "e5m2", layouts=["packed"], knobs=knobs)


ON_HOPPER = [
    (128, 128, {"right": 0}, ("e4m3",) * 5, "e4m3"),
    (64, 64, {"right": 0, "seq_len_kv": [140, 70]}, ("e4m3", "e4m3", "e4m3", "e4m3", "e5m2"), "e4m3"),
    (48, 64, {"left": 70, "seq_len_q": [150, 33]}, ("e5m2", "e4m3", "e5m2", "e4m3", "e4m3"), "bf16"),
    (80, 112, {"seq_len_q": [150, 70], "seq_len_kv": [77, 140]}, ("e5m2",) * 5, "bf16"),
    (112, 80, {"left": 40, "right": 3}, ("e4m3", "e5m2", "e5m2", "bf16", "e4m3"), "f32"),
    (96, 128, {"right": 0, "seq_len_kv": [129, 3]}, ("e5m2", "e4m3", "e4m3", "e5m2", "e5m2"), "e5m2"),
]  # fmt: skip


@pytest.mark.parametrize(("depth", "value_depth", "more", "types", "out"), ON_HOPPER)
def test_products_of_fp8(
    depth: int, value_depth: int, more: dict[str, Any], types: tuple[str, ...], out: str
) -> None:
    """Each operand of either type; keys that end in each part of a square that is turned over."""
    some = case(heads=(2, 1, 1), rows=150, columns=140, depth=depth, value_depth=value_depth, **more)
    knobs = without_portable_family()
    check_fp8(some, types, out, layouts=["packed", "padded"], knobs=knobs)


def test_dropout() -> None:
    some = case(dropout=0.25, right=0)
    shape = (some.batch, some.heads[0], some.rows, some.columns)
    kept = (units(shape, seed=11, offset=3) < 1 - some.dropout) / (1 - some.dropout)
    drawn = {"dropout_seed": np.array([[[[11]]]]), "dropout_offset": np.array([[[[3]]]])}
    check_fp8(some, TYPES[1], kept=kept, drawn=drawn)


@pytest.mark.parametrize("heads", [(2, 2, 2), (4, 2, 1)])
def test_scales_of_rows_and_heads(heads: tuple[int, int, int]) -> None:
    """Powers of two, which multiply elements exactly as they are loaded."""
    some = case(heads=heads, rows=20)
    given, true = fp8_inputs(some, TYPES[0])
    for i, (name, dims) in enumerate({"q": 2, "k": 3, "v": 3, "o": 3, "dO": 3}.items()):
        own = np.exp2(checks.random((*true[name].shape[:dims], *[1] * (4 - dims)), "i32", -1, 1, seed=i))
        given[f"descale_{name}"] = (given[f"descale_{name}"] * own).astype(np.float32)
        true[name] = true[name] * own
    check_results(some, given, true, TYPES[0], "bf16")


def test_gradients_of_bias_and_sink() -> None:
    """They do not depend on result scales or on FP8 rounding."""
    some = case(bias=(1, 2, 37, 1), sink=True, seq_len_kv=[45, 20])
    given, true = fp8_inputs(some, TYPES[0])
    s, stats, v = some.scores(true), checks.exact(true["stats"]), true["v"]
    weights, share = np.exp(np.minimum(s - stats, 0)), np.exp(some.sinks(true) - stats)
    mean = (true["dO"] * true["o"]).sum(-1, keepdims=True)
    ds = weights * (true["dO"] @ v.mT - mean)
    want = ds.sum((0, 3), keepdims=True), -(share * mean).sum((0, 2), keepdims=True)

    def build(g: weft.Graph, **tensors: Any) -> Any:
        extra = {name: g.tensor(name=name) for name in ("dBias", "dSink_token")}
        g._sdpa_bwd(**tensors, **some.values(), **extra, name="a")
        return tuple(extra.values())

    checks.check(build, given, want, out="f32", magnitude=float(np.abs(ds).sum((0, 3)).max()) + 200)


def test_the_method_of_python() -> None:
    """Its results are in the order of cuDNN's."""
    some = case()
    given, true = fp8_inputs(some, TYPES[0])
    want, _ = by_definition(some, true, TYPES[0])
    g = weft.Graph(handle=weft.create_handle("cpu"))
    scales = ["descale_q", "descale_k", "descale_v", "descale_o", "descale_dO", "descale_s", "descale_dP"]
    scales += ["scale_s", "scale_dQ", "scale_dK", "scale_dV", "scale_dP"]
    tensors = [given[name] for name in ("q", "k", "v", "o", "dO", "stats", *scales)]
    made = g.sdpa_fp8_backward(*tensors, attn_scale=some.scale)
    for tensor in made[:3]:
        tensor.set_data_type("f32")
    results = dict(zip(made, g(), strict=True))
    for i, name in enumerate(("dQ", "dK", "dV")):
        np.testing.assert_allclose(results[made[i]], want[i] * SCALES[f"scale_{name}"], rtol=1e-6, atol=1e-6)
    for tensor, each in zip(made[3:], want, strict=True):
        np.testing.assert_allclose(results[tensor].item(), np.abs(each).max(), rtol=1e-6)


# ---- Refusals ----------------------------------------------------------------------------------------------

SIZES = {"q": [2, 4, 7, 48], "k": [2, 2, 9, 48], "v": [2, 2, 9, 6], "o": [2, 4, 7, 6], "dO": [2, 4, 7, 6]}
FIX = "Make each of its dims 1 or equal, of the same rank."


@pytest.mark.parametrize(
    ("name", "dims", "dtype", "sentence"),
    [
        ("descale_q", [2, 4, 7, 1], "f32",
         f"descale_q with dims [2,4,7,1] does not broadcast to [2,4,1,1]. {FIX}"),
        ("descale_dO", [2, 2, 7, 1], "f32",
         "descale_dO has dims [2,2,7,1]; for blocks of 32 elements of [2,4,7,6], expected [2,4,7,1] along "
         "its last dimension, or [2,4,1,6] along the one before. Use one of these."),
        ("descale_o", [1, 1, 1, 1], "i32", "descale_o has data type i32. Use a floating type."),
        ("scale_dP", [1, 4, 1, 1], "f32",
         f"scale_dP with dims [1,4,1,1] does not broadcast to [1,1,1,1]. {FIX}"),
        ("descale_dP", [1, 1, 1, 1], "bool8", "descale_dP has data type bool8. Use a floating type."),
        ("descale_k_T", [1, 1, 1, 1], "f32", "descale_k_T is set, but k_T is not. Set both or none."),
        ("dO_T", [2, 4, 6, 7], "e4m3",
         "dO_T has dims [2,4,6,7], expected [2,4,7,6]. Give it these dims, or none."),
    ],
)  # fmt: skip
def test_refusals(name: str, dims: list[int], dtype: str, sentence: str) -> None:
    tensors: dict[str, Any] = {key: (size, "e4m3") for key, size in SIZES.items()}
    tensors |= {"stats": ([2, 4, 7, 1], "f32"), name: (dims, dtype)}
    checks.refuses(lambda g, **t: g._sdpa_bwd(**t, name="a"), tensors, f"sdpa_bwd 'a': {sentence}")
