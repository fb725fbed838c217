"""Attention, forward and backward, against NumPy in float64: every mask separately and combined, shared
heads, odd sizes, rows without a key, types, layouts; gradients against differences and, where installed,
torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import checks
import numpy as np
import pytest
import tiers
import weft
from attention_oracle import (
    BOTTOM_RIGHT,
    INF,
    TOP_LEFT,
    Case,
    backward,
    backward_inputs,
    by_definition,
    forward,
    repeat,
    rounded_factors,
    run_backward,
    run_forward,
    slopes,
    softmax,
    without_portable_family,
)
from random_words import units

# ---- Cases -------------------------------------------------------------------------------------------------

FULL, ROWS, KEYS = (2, 2, 7, 9), (1, 1, 7, 9), (2, 1, 1, 9)
CASES = {
    "plain": Case(),
    "one query": Case(rows=1),
    "one key": Case(columns=1),
    "one of each": Case(rows=1, columns=1, depth=1, value_depth=1, batch=1, heads=(1, 1, 1)),
    "large scores": Case(scale=300),
    "no scale": Case(scale=0),
    "negative scale": Case(scale=-0.7),
    "grouped heads": Case(heads=(6, 2, 2)),
    "one shared head": Case(heads=(4, 1, 1)),
    "key and value heads differ": Case(heads=(6, 3, 2)),
    "values shared more": Case(heads=(4, 4, 1)),
    "causal": Case(right=0),
    "causal, more queries": Case(rows=9, columns=7, right=0),
    "causal at the end": Case(right=0, alignment=BOTTOM_RIGHT),
    "causal at the end, more queries": Case(rows=9, columns=4, right=0, alignment=BOTTOM_RIGHT),
    "right bound": Case(right=2),
    "negative right bound": Case(right=-3),
    "window": Case(left=3, right=0),
    "window to both sides": Case(left=3, right=2),
    "window at the end": Case(left=2, right=1, alignment=BOTTOM_RIGHT),
    "left bound alone": Case(left=4),
    "left bound hides all but the future": Case(left=0),
    "empty window": Case(left=0, right=0),
    "bias": Case(bias=FULL),
    "bias of rows": Case(bias=ROWS),
    "bias of keys": Case(bias=KEYS),
    "bias of heads": Case(bias=(1, 2, 1, 1)),
    "bias of queries": Case(bias=(2, 1, 7, 1)),
    "bias of one number": Case(bias=(1, 1, 1, 1)),
    "mask": Case(bias=FULL, is_mask=True),
    "mask of keys": Case(bias=KEYS, is_mask=True),
    "mask of queries": Case(bias=(1, 1, 7, 1), is_mask=True),
    "padding": Case(seq_len_q=[3, 7], seq_len_kv=[9, 4]),
    "padded keys only": Case(seq_len_kv=[1, 8]),
    "padded queries only": Case(seq_len_q=[1, 6]),
    "empty sequences": Case(batch=4, seq_len_q=[0, 5, 0, 7], seq_len_kv=[4, 0, 0, 9]),
    "lengths out of range": Case(seq_len_q=[-2, 99], seq_len_kv=[99, 3]),
    "padding, causal": Case(seq_len_q=[5, 7], seq_len_kv=[4, 9], right=0),
    "padding, causal at the end": Case(seq_len_q=[5, 2], seq_len_kv=[4, 9], right=0, alignment=BOTTOM_RIGHT),
    "alibi": Case(heads=(8, 8, 8), alibi=True, right=0),
    "alibi of 6 heads, both sides": Case(heads=(6, 6, 6), alibi=True),
    "sink": Case(sink=True),
    "sink, one query": Case(rows=1, sink=True),
    "sink, rows without a key": Case(sink=True, right=-3, seq_len_q=[6, 7]),
    "everything": Case(
        batch=3,
        heads=(6, 2, 3),
        bias=(1, 6, 7, 9),
        left=4,
        right=1,
        alignment=BOTTOM_RIGHT,
        seq_len_q=[7, 4, 6],
        seq_len_kv=[9, 8, 0],
        alibi=True,
        sink=True,
    ),
    "everything, masked": Case(
        heads=(4, 2, 1),
        bias=(2, 1, 7, 9),
        is_mask=True,
        left=6,
        right=0,
        seq_len_kv=[9, 5],
        alibi=True,
        sink=True,
    ),
}
SIZES = [(1, 64), (64, 65), (65, 64), (7, 130), (129, 7)]


SUMS = {
    "cumulative": Case(batch=4, seq_len_q=[0, 5, 3, 7], seq_len_kv=[4, 0, 9, 2], has_sums=True),
    "cumulative, causal at the end": replace(
        CASES["padding, causal at the end"], has_sums=True, sink=True, heads=(4, 2, 1)
    ),
    "cumulative keys alone": Case(seq_len_kv=[1, 8], has_sums=True),
}
CASES |= SUMS
BLOCKS = {
    "bytes": Case(rows=300, columns=500, heads=(4, 2, 2), block_mask=(2, 4)),
    "bits": Case(rows=130, columns=1100, heads=(2, 2, 1), block_mask=(1, 2), mask_has_bits=True, right=900),
    "shared": Case(rows=257, columns=256, block_mask=(1, 1), right=0, alignment=BOTTOM_RIGHT, sink=True),
    "beside a bias": Case(
        rows=200, columns=300, block_mask=(2, 1), bias=(1, 2, 200, 300), seq_len_kv=[290, 40]
    ),
}


# ---- Forward -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("name", CASES)
def test_forward(name: str, dtype: str) -> None:
    case = CASES[name]
    inputs = case.inputs(dtype)
    checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=20 * max(abs(case.scale), 1))


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("name", ["plain", "causal", "causal at the end", "window at the end", "sink"])
def test_forward_sizes(name: str, rows: int, columns: int) -> None:
    case = replace(CASES[name], rows=rows, columns=columns, depth=17, value_depth=20, heads=(2, 1, 2))
    inputs = case.inputs("f32")
    checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=20, layouts=["packed"])


@pytest.mark.parametrize("name", BLOCKS)
def test_block_masks(name: str) -> None:
    case = replace(BLOCKS[name], depth=8, value_depth=8)
    inputs = case.inputs("f32")
    checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=20, layouts=["packed"])
    operands = backward_inputs(case, inputs, "f32")
    want, lost = by_definition(case, operands)
    rounded = rounded_factors(lost, "f32")
    checks.check(run_backward(case), operands, want, rounded=rounded, magnitude=200, layouts=["packed"])


# Types to which weights and gradients of scores may be rounded as factors, by the type of the operands: 8
# bits are exact in f16, but their gradients may exceed its range.
WEIGHTS = {"f32": "f32", "f16": "f16", "bf16": "bf16", "e4m3": "f16", "e5m2": "f16"}
GRADIENTS = WEIGHTS | {"e4m3": "bf16"}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "e4m3", "e5m2"])
def test_forward_types(dtype: str) -> None:
    case = CASES["everything"]
    inputs = case.inputs(dtype)
    want = forward(case, inputs)
    weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
    lost = weights @ np.abs(repeat(inputs["v"], case.heads[0]))
    rounded = [checks.roundoff(WEIGHTS[dtype]) * lost, None, None, None]
    for layouts in ["packed", "padded"], ["channels_last"]:
        found = checks.check(run_forward(case), inputs, want, magnitude=20, rounded=rounded, layouts=layouts)
        assert all(y.dtype == np.float32 for arrays in found.values() for y in arrays[1:])
    for out in ["f32", "f32", "f32", "bf16"], ["f32", "f64", "f32", "bf16"], ["f64", "f32", "f16", "f32"]:
        checks.check(run_forward(case), inputs, want, out=out, magnitude=20)


@pytest.mark.parametrize("stored", ["f32", None])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("rows", "columns"), [(5, 300), (70, 40)])
def test_floats_between_operations(rows: int, columns: int, dtype: str, stored: str | None) -> None:
    """A virtual result of FLOAT, set or computed for an output of FLOAT, is as exact as an output."""
    case = Case(1, (4, 2, 2), rows, columns, 64, 64, 0.1)

    def doubled(operation: str, count: int) -> Any:
        def build(g: weft.Graph, **tensors: Any) -> Any:
            made = getattr(g, operation)(**tensors, **case.values())[:count]
            typed = [each.set_data_type(stored) if stored else each for each in made]
            return tuple(g.add(each, each) for each in typed)

        return build

    inputs = case.inputs(dtype)
    want = [2 * forward(case, inputs)[0]]
    how: dict[str, Any] = {"out": "f32", "layouts": ["packed"]}
    checks.check(doubled("_sdpa_fwd", 1), inputs, want, magnitude=4, **how)
    operands = backward_inputs(case, inputs, dtype)
    want, _ = by_definition(case, operands)
    checks.check(doubled("_sdpa_bwd", 3), operands, [2 * each for each in want], magnitude=400, **how)


def test_types_of_operands_are_free() -> None:
    case = replace(CASES["everything"], sink=True)
    inputs = case.inputs("bf16")
    inputs["bias"] = checks.random(case.bias or (), "f32", seed=3)
    inputs["v"] = checks.random(inputs["v"].shape, "f16", seed=2)
    inputs["seq_len_q"] = inputs["seq_len_q"].astype(np.int64)
    checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=20)


def test_memory_orders() -> None:
    case = Case(batch=2, heads=(4, 2, 2), rows=7, columns=9, depth=6, value_depth=6)
    inputs = case.inputs("f32")
    want = forward(case, inputs)
    orders = [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (3, 2, 1, 0)]
    for order in orders:
        strided = {}
        for key, array in inputs.items():
            steps, step = [0] * 4, 1
            for dim in reversed(order):
                steps[dim], step = step, step * array.shape[dim]
            strided[key] = (array, tuple(steps))
        checks.check(run_forward(case), strided, want, magnitude=20, layouts=["packed"])


def test_result_has_the_memory_order_of_the_queries() -> None:
    g = weft.Graph()
    q = g.tensor([2, 4, 7, 6], [168, 6, 24, 1], "bf16")
    k, v = g.tensor([2, 4, 9, 6], data_type="bf16"), g.tensor([2, 4, 9, 8], data_type="bf16")
    o, stats = g._sdpa_fwd(q, k, v)
    o.set_output(True)
    stats.set_output(True)
    g.validate()
    assert (o.get_dim(), o.get_stride(), o.dtype) == ([2, 4, 7, 8], [224, 8, 32, 1], weft.data_type.BFLOAT16)
    assert (stats.get_dim(), stats.dtype) == ([2, 4, 7, 1], weft.data_type.FLOAT)


@pytest.mark.parametrize(("rows", "columns"), [(0, 9), (7, 0), (0, 0)])
@pytest.mark.parametrize("sink", [False, True])
def test_forward_without_rows_or_keys(rows: int, columns: int, sink: bool) -> None:
    case = Case(rows=rows, columns=columns, sink=sink)
    inputs = case.inputs()
    checks.check(run_forward(case), inputs, forward(case, inputs))


def test_rows_without_a_key() -> None:
    case = Case(bias=(1, 1, 7, 1), is_mask=True)
    inputs = case.inputs() | {"bias": np.arange(7).reshape(1, 1, 7, 1) != 3}
    found = checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=20)
    for o, stats, top, total in found.values():
        assert (o[:, :, 3] == 0).all()
        assert (stats[:, :, 3] == -INF).all()
        assert (top[:, :, 3] == -INF).all()
        assert (total[:, :, 3] == 0).all()


def test_masked_keys_are_not_read() -> None:
    """Padding may contain anything, and so may keys that a mask or a bias of -inf hides."""
    case = Case(seq_len_q=[3, 5], seq_len_kv=[4, 6], bias=(1, 1, 1, 9))
    inputs = case.inputs()
    inputs["bias"][..., 2] = -INF
    want = forward(case, inputs)
    grads = backward(case, inputs, checks.random(want[0].shape, "f64", seed=5))
    dirty = backward_inputs(case, inputs)
    for b in range(2):
        dirty["q"][b, :, case.seq_len_q[b] :] = np.nan
        dirty["o"][b, :, case.seq_len_q[b] :] = np.nan
        dirty["dO"][b, :, case.seq_len_q[b] :] = INF
        dirty["stats"][b, :, case.seq_len_q[b] :] = np.nan
        for key in ("k", "v"):
            dirty[key][b, :, case.seq_len_kv[b] :] = np.nan
            dirty[key][b, :, 2] = INF
    operands = {key: dirty[key] for key in inputs}
    checks.check(run_forward(case), operands, want, magnitude=20)
    checks.check(run_backward(case), dirty, list(grads.values()), magnitude=50)


# Rows of whole 16 bytes, which a copy engine brings in boxes: of sizes between those of tiles, and of
# one number for all heads or batch entries.
BOXED = {
    "of all": Case(bias=(2, 4, 150, 264)),
    "of one head": Case(bias=(2, 1, 150, 264), right=0),
    "of one batch entry": Case(bias=(1, 4, 150, 264), left=70, right=9, alignment=BOTTOM_RIGHT),
    "of neither": Case(bias=(1, 1, 150, 264), seq_len_q=[150, 67], seq_len_kv=[30, 264]),
    "and a block mask": Case(bias=(1, 1, 150, 264), block_mask=(2, 4)),
    "and ALiBi": Case(bias=(1, 4, 150, 264), alibi=True, sink=True),
}


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("name", BOXED)
def test_a_bias_in_boxes(name: str, depth: int, dtype: str) -> None:
    sizes = {"rows": 150, "columns": 264, "depth": depth, "value_depth": depth}
    case = replace(BOXED[name], heads=(4, 2, 2), scale=0.1, **sizes)
    inputs = case.inputs(dtype)
    inputs["bias"] = checks.random(case.bias or (), "f16", seed=3)
    inputs["bias"][..., 5::50] = -INF
    check_both(case, inputs, dtype)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", ["of all", "of one head", "and ALiBi"])
def test_a_bias_in_boxes_where_no_maximum_is_wanted(name: str, dtype: str) -> None:
    """The maximum score is computed only if sums need it: if a column is hidden or large."""
    sizes = {"rows": 150, "columns": 264, "depth": 64, "value_depth": 64}
    case = replace(BOXED[name], heads=(4, 2, 2), scale=0.1, **sizes)
    inputs = case.inputs(dtype)
    inputs["bias"] = checks.random(case.bias or (), dtype, seed=3)
    inputs["bias"][..., 130::50] = -INF
    inputs["bias"][..., 40:, 200] = 60
    weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
    lost = weights @ np.abs(repeat(inputs["v"], 4)).astype(float)
    rounded = rounded_factors([lost], WEIGHTS[dtype])

    def build(g: weft.Graph, **tensors: Any) -> Any:
        return g._sdpa_fwd(**tensors, **case.values(), name="a")[0]

    want = forward(case, inputs)[:1]
    checks.check(build, inputs, want, magnitude=20, rounded=rounded, layouts=["packed"])


# More tiles than multiprocessors: short sequences share one, or one processes all queries of a head.
MANY = (72, 36, 36) if checks.DEVICE == "cuda" else (6, 3, 3)
MANY_OF_ONE = (130, 65, 65) if checks.DEVICE == "cuda" else (10, 5, 5)
SHORT = {
    "of one tile": Case(heads=MANY, rows=64, columns=64),
    "of odd sizes": Case(heads=MANY, rows=63, columns=65, seq_len_q=[63, 5], seq_len_kv=[9, 65], sink=True),
    "of more keys": Case(heads=MANY, rows=70, columns=150, right=0),
    "in a window": Case(heads=MANY, rows=129, columns=256, left=70, right=9, alignment=BOTTOM_RIGHT),
    "of a tile for each head": Case(1, MANY_OF_ONE, 200, 70, seq_len_q=[195], seq_len_kv=[66], left=150),
}


@pytest.mark.parametrize(
    ("name", "depth"), [(name, 64) for name in SHORT] + [(name, 128) for name in list(SHORT)[:-1]]
)
def test_short_sequences_of_many_heads(name: str, depth: int) -> None:
    case = replace(SHORT[name], depth=depth, value_depth=depth, scale=0.1)
    check_both(case, case.inputs("bf16"), "bf16")


def check_both(case: Case, inputs: dict[str, Any], dtype: str) -> None:
    """Forward and backward of operands of 16 bits."""
    weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
    values = np.abs(repeat(inputs["v"], case.heads[0]))
    lost = [weights @ values, None, None, None]
    want, rounded = forward(case, inputs), rounded_factors(lost, WEIGHTS[dtype])
    checks.check(run_forward(case), inputs, want, magnitude=20, rounded=rounded, layouts=["packed"])
    operands = backward_inputs(case, inputs, dtype)
    gradients, (dq, dk, *others) = by_definition(case, operands)
    # Weights are rounded, then gradients of scores.
    rounded = rounded_factors([2 * dq, 2 * dk, *others], GRADIENTS[dtype])
    run, how = run_backward(case), {"rounded": rounded, "layouts": ["packed"]}
    checks.check(run, operands, gradients, magnitude=200, **how)


def test_a_boolean_mask_is_a_bias_of_zero_and_minus_infinity() -> None:
    case = Case(bias=FULL, is_mask=True)
    inputs = case.inputs()
    added = inputs | {"bias": np.where(inputs["bias"], 0, -INF)}
    for name in ("bool8", "f32", "f16"):
        mask = inputs if name == "bool8" else added | {"bias": checks.narrow(added["bias"], name)}
        checks.check(run_forward(case), mask, forward(case, inputs), magnitude=20)


@pytest.mark.parametrize("dims", [FULL, KEYS])
def test_a_mask_of_bits(dims: tuple[int, int, int, int]) -> None:
    """BOOLEAN, eight keys to a byte, made in the graph."""
    case = Case(bias=dims, is_mask=True)
    inputs = case.inputs()
    operands = backward_inputs(case, inputs)
    want = backward(case, inputs, operands["dO"])

    def on_bits(build: Any) -> Any:
        return lambda g, bias, **tensors: build(g, bias=g.identity(bias).set_data_type("bool1"), **tensors)

    checks.check(on_bits(run_forward(case)), inputs, forward(case, inputs), magnitude=20)
    checks.check(on_bits(run_backward(case)), operands, list(want.values()), magnitude=100)


def test_finite_fills_and_extreme_scores() -> None:
    """A row filled with the lowest number averages its keys; if scores are far apart, only the largest
    counts."""
    case = Case(bias=(1, 1, 7, 1))
    inputs = case.inputs("f32")
    inputs["bias"] = np.full((1, 1, 7, 1), np.finfo(np.float32).min)
    found = checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=1e39)
    assert all(np.isfinite(each).all() for arrays in found.values() for each in arrays)
    case = replace(case, scale=1e30, bias=None)
    del inputs["bias"]
    found = checks.check(run_forward(case), inputs, [None] * 4)
    assert all(np.isfinite(each).all() for arrays in found.values() for each in arrays)


def test_scale_as_a_tensor() -> None:
    case = Case(options={"attn_scale_value": None})
    inputs = case.inputs()
    tensor = inputs | {"attn_scale": np.full((1, 1, 1, 1), 0.5, np.float32)}
    checks.check(run_forward(case), tensor, forward(case, inputs), magnitude=20)
    scalars = {"attn_scale": (0.5, "f32")}
    checks.check(run_forward(case), inputs, forward(case, inputs), scalars=scalars, magnitude=20)
    case.scale = 1  # the default
    checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=20)


def test_alibi_slopes() -> None:
    assert slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert slopes(2).tolist() == [2.0**-4, 2.0**-8]
    assert slopes(3).tolist() == [2.0**-4, 2.0**-8, 2.0**-2]
    for heads in (1, 3, 5, 12):
        case = Case(batch=1, heads=(heads, heads, heads), alibi=True, scale=0)
        inputs = case.inputs()
        checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=20)


def test_wanted_outputs_only() -> None:
    case = Case()
    inputs = case.inputs()
    want = forward(case, inputs)
    checks.check(lambda g, **t: g._sdpa_fwd(**t, **case.values())[0], inputs, want[0], magnitude=20)
    checks.check(lambda g, **t: g._sdpa_fwd(**t, **case.values())[1], inputs, want[1], magnitude=20)
    grads = backward(case, inputs, checks.random(want[0].shape, "f64", seed=5))
    for i, key in enumerate(("dQ", "dK", "dV")):
        one = backward_inputs(case, inputs)
        checks.check(lambda g, i=i, **t: g._sdpa_bwd(**t, **case.values())[i], one, grads[key], magnitude=50)


# ---- Dropout -----------------------------------------------------------------------------------------------


def kept_by(case: Case, seed: int, offset: int) -> np.ndarray:
    """Returns the mask of the rng operation over 1 - p."""
    shape = [case.batch, case.heads[0], case.rows, case.columns]
    keep = 1 - case.dropout

    def build(g: weft.Graph, **offsets: Any) -> Any:
        return g.rng(seed, bernoulli_probability=keep, **offsets).set_dim(shape)

    found = checks.check(build, {"offset": np.array([offset])}, [None], layouts=["packed"])
    return checks.exact(checks.first(found)[0]) / (keep or 1)


@pytest.mark.parametrize("probability", [0.25, 0.5, 1])
@pytest.mark.parametrize("columns", [8, 9])
def test_dropout(probability: float, columns: int) -> None:
    case = Case(heads=(4, 2, 1), columns=columns, right=1, sink=True, dropout=probability)
    inputs = case.inputs()
    kept = kept_by(case, 11, 3)
    assert (kept.mean() == 0) == (probability == 1)
    drawn = {"dropout_seed": np.array([[[[11]]]]), "dropout_offset": np.array([[[[3]]]])}

    def build(g: weft.Graph, **tensors: Any) -> Any:
        dump = g.tensor(name="rng_dump")
        o, stats = g._sdpa_fwd(**tensors, **case.values(), rng_dump=dump)
        return o, stats, dump

    want = forward(case, inputs, kept)
    checks.check(build, inputs | drawn, [want[0], want[1], kept != 0], magnitude=20)
    operands = backward_inputs(case, inputs, kept=kept) | drawn
    grads = backward(case, inputs, operands["dO"], kept)
    checks.check(run_backward(case), operands, list(grads.values()), magnitude=200)


@pytest.mark.parametrize("dims", [(2, 4, 7, 9), (1, 4, 1, 9), (2, 1, 7, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("mask", ["bool8", "bool1", "f32", "bf16", "e4m3", "i8", "f64"])
def test_dropout_by_a_mask(mask: str, dims: tuple[int, int, int, int]) -> None:
    """Numbers multiply weights; where a query sees no key, the mask may hold anything."""
    case = Case(heads=(4, 2, 1), right=1, sink=True, drop_mask=dims, drop_type=mask, drop_scale=1.25)
    inputs = case.inputs()
    if mask in ("f32", "f64") and dims[3] > 1:
        inputs["dropout_mask"][..., 8] = np.nan
        case = replace(case, seq_len_kv=[8, 5])
        inputs |= {"seq_len_kv": np.array([8, 5], np.int32).reshape(2, 1, 1, 1)}
    with np.errstate(invalid="ignore"):
        kept = np.nan_to_num(case.kept(inputs))
    checks.check(run_forward(case), inputs, forward(case, inputs, kept), magnitude=40)
    operands = backward_inputs(case, inputs, kept=kept)
    grads = backward(case, inputs, operands["dO"], kept)
    checks.check(run_backward(case), operands, list(grads.values()), magnitude=400)


def test_a_mask_that_keeps_nothing() -> None:
    """And one of weights that do not grow: dropout_scale may be 0, or left out."""
    for scale in 0.0, None:
        case = Case(heads=(2, 2, 2), bias=(1, 2, 7, 9), drop_mask=(2, 2, 7, 9), drop_scale=scale)
        inputs = case.inputs()
        inputs["dropout_mask"][1] = False
        checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=20)
        operands = backward_inputs(case, inputs)
        grads = backward(case, inputs, operands["dO"])
        checks.check(run_backward(case), operands, list(grads.values()), magnitude=200)


def test_a_mask_that_is_given_is_not_dumped() -> None:
    def build(g: weft.Graph, **tensors: Any) -> Any:
        return g._sdpa_fwd(**tensors, rng_dump=g.tensor(name="dump"), name="a")

    tensors = {"q": Q, "k": K, "v": V, "dropout_mask": ([2, 4, 7, 9], "bool8")}
    sentence = (
        "sdpa_fwd 'a': rng_dump returns random numbers, but dropout_mask replaces these. "
        "Set only one of them."
    )
    checks.refuses(build, tensors, sentence, weft.BadParameterError)


def test_drawn_dropout_that_grows_otherwise() -> None:
    case = Case(heads=(2, 2, 2), columns=8, dropout=0.5, drop_scale=3.0)
    inputs = case.inputs()
    kept = (kept_by(case, 11, 3) != 0) * 3.0
    drawn = {"dropout_seed": np.array([[[[11]]]]), "dropout_offset": np.array([[[[3]]]])}
    drawn["dropout_scale"] = np.full((1, 1, 1, 1), 3.0, np.float32)
    checks.check(run_forward(case), inputs | drawn, forward(case, inputs, kept), magnitude=40)
    operands = backward_inputs(case, inputs, kept=kept) | drawn
    grads = backward(case, inputs, operands["dO"], kept)
    checks.check(run_backward(case), operands, list(grads.values()), magnitude=400)


# ---- Backward ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if abs(case.scale) <= 1])
def test_backward(name: str, dtype: str) -> None:
    case = CASES[name]
    inputs = case.inputs(dtype)
    operands = backward_inputs(case, inputs, dtype)
    want = list(backward(case, inputs, operands["dO"]).values())
    if dtype == "f32":
        want, _ = by_definition(case, operands)
    checks.check(run_backward(case), operands, want, magnitude=100)


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("name", ["plain", "causal at the end", "window at the end", "sink"])
def test_backward_sizes(name: str, rows: int, columns: int) -> None:
    case = replace(CASES[name], rows=rows, columns=columns, depth=17, value_depth=20, heads=(2, 1, 2))
    inputs = case.inputs()
    operands = backward_inputs(case, inputs)
    want = backward(case, inputs, operands["dO"])
    checks.check(run_backward(case), operands, list(want.values()), magnitude=2000, layouts=["packed"])


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "e4m3"])
def test_backward_types(dtype: str) -> None:
    case = CASES["everything"]
    operands = backward_inputs(case, case.inputs(dtype), dtype)
    want, lost = by_definition(case, operands)
    rounded = rounded_factors(lost, GRADIENTS[dtype])
    for layouts in ["packed", "padded"], ["channels_last"]:
        checks.check(run_backward(case), operands, want, magnitude=200, rounded=rounded, layouts=layouts)
    for out in ["f32", "f32", "bf16", "f32", "f32"], ["f32", "f64", "bf16", "f32", "f64"]:
        checks.check(run_backward(case), operands, want, magnitude=200, rounded=rounded, out=out)


@pytest.mark.parametrize(
    "name", ["everything", "everything, masked", "empty sequences", "padding, causal at the end"]
)
def test_gradients_by_finite_differences(name: str) -> None:
    """Checks the oracle, and thereby the tests that use it."""
    case = CASES[name]
    inputs = case.inputs()
    d_o = backward_inputs(case, inputs)["dO"]
    grads = backward(case, inputs, d_o)
    keys = {"q": "dQ", "k": "dK", "v": "dV", "bias": "dBias", "sink_token": "dSink_token"}
    for key, gradient in keys.items():
        if gradient not in grads:
            continue

        def function(array: Any, key: str = key) -> Any:
            return forward(case, inputs | {key: array})[0]

        found = checks.numeric_gradient(function, [inputs[key]], 0, d_o)
        np.testing.assert_allclose(grads[gradient], found, atol=1e-7)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("shift", [-1e30, -1e4, -88.8, 88.8, 1e4, 1e30])
def test_backward_of_far_statistics(rows: int, shift: float) -> None:
    """Rows whose statistics are far from 0 give finite gradients, the oracle's where precision allows."""
    case = Case(batch=1, rows=rows, columns=65, bias=(1, 1, rows, 1))
    inputs = case.inputs()
    inputs["bias"][...] = shift
    operands = backward_inputs(case, inputs)
    want: list[Any] = list(backward(case, inputs, operands["dO"]).values())
    if abs(shift) > 1e20:
        want = [None] * len(want)
    found = checks.check(run_backward(case), operands, want, magnitude=1e6)
    assert all(np.isfinite(each).all() for arrays in found.values() for each in arrays)


@pytest.mark.parametrize("stats", [-INF, -1e38, -100, 100, 1e38, INF])
def test_backward_of_wrong_statistics(stats: float) -> None:
    """Statistics that belong to no row of these scores must not give NaN."""
    case = Case(sink=True)
    operands = backward_inputs(case, case.inputs())
    operands["stats"][...] = stats
    found = checks.check(run_backward(case), operands, [None] * 4)
    assert all(np.isfinite(each).all() for arrays in found.values() for each in arrays)
    if stats == -INF:
        assert all((each == 0).all() for arrays in found.values() for each in arrays)


@pytest.mark.parametrize(("rows", "columns"), [(0, 9), (7, 0), (0, 0)])
def test_backward_without_rows_or_keys(rows: int, columns: int) -> None:
    case = Case(rows=rows, columns=columns, sink=True)
    inputs = case.inputs()
    operands = backward_inputs(case, inputs)
    checks.check(run_backward(case), operands, list(backward(case, inputs, operands["dO"]).values()))


def test_forward_then_backward() -> None:
    """In one graph, through float32 statistics."""
    case = Case(heads=(4, 2, 2), right=0, sink=True, bias=(1, 4, 7, 9))
    inputs = case.inputs("f32")
    d_o = checks.random((2, 4, 7, 3), "f32", seed=5)

    def build(g: weft.Graph, dO: Any, **tensors: Any) -> Any:
        o, stats = g._sdpa_fwd(**tensors, **case.values())
        o.set_data_type("f32")
        return g._sdpa_bwd(**tensors, o=o, dO=dO, stats=stats, **case.values())

    want = backward(case, inputs, d_o)
    checks.check(build, inputs | {"dO": d_o}, [want["dQ"], want["dK"], want["dV"]], ulps=64, magnitude=1e9)


TORCH_CASES = [name for name, case in CASES.items() if not case.is_mask and abs(case.scale) <= 1]


@pytest.mark.parametrize("name", TORCH_CASES)
def test_gradients_by_torch(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = CASES[name]
    inputs = case.inputs()
    operands = backward_inputs(case, inputs)
    hq, hk, hv = case.heads
    leaves = {
        key: torch.tensor(inputs[key], requires_grad=True)
        for key in ("q", "k", "v", "bias", "sink_token")
        if key in inputs
    }
    k, v = leaves["k"].repeat_interleave(hq // hk, 1), leaves["v"].repeat_interleave(hq // hv, 1)
    s = case.scale * leaves["q"] @ k.transpose(-1, -2)
    s = s + leaves["bias"] if case.bias else s
    if case.alibi:
        distance = torch.arange(case.columns) - torch.arange(case.rows)[:, None]
        s = s + torch.tensor(slopes(hq)).reshape(1, hq, 1, 1) * distance
    seen = torch.tensor(case.visible(inputs))
    s = s.masked_fill(~seen, -1e300)
    sink = (
        leaves["sink_token"].expand(*s.shape[:3], 1)
        if case.sink
        else torch.full((*s.shape[:3], 1), -1e200, dtype=s.dtype)
    )
    weights = torch.softmax(torch.cat([s, sink], -1), -1)[..., :-1] * seen
    o = weights @ v
    used = torch.tensor(np.arange(case.rows)[:, None] < case.lengths()[0])
    (o * used * torch.tensor(operands["dO"])).sum().backward()
    order = {"q": "dQ", "k": "dK", "v": "dV", "bias": "dBias", "sink_token": "dSink_token"}
    want = [leaves[key].grad.numpy() for key in order if key in leaves]
    checks.check(run_backward(case), operands, want, magnitude=1000)


# ---- Forward in large tiles --------------------------------------------------------------------------------

# Rows that Hopper's copy engine takes: tiles of 128 or 192 queries, 64 of them for each consumer, and blocks
# of 128 keys: one row, ends of tiles and blocks, a tile and a half, many blocks.
QUERY_ENDS = [(1, 1), (63, 129), (64, 127), (65, 1), (129, 128), (191, 256), (193, 192), (320, 300)]
QUERY_ENDS += [(130, 1500)]
LARGE_FORWARD = {
    "plain": Case(batch=1),
    "causal": Case(batch=1, heads=(3, 1, 1), right=0),
    "causal at the end": Case(batch=1, heads=(4, 2, 2), right=0, alignment=BOTTOM_RIGHT),
    "window": Case(batch=2, heads=(1, 1, 1), left=40, right=7),
    "narrow window": Case(batch=1, heads=(2, 2, 1), left=2, right=1),
    "left bound": Case(batch=1, heads=(1, 1, 1), left=70),
    "future only": Case(batch=1, right=-70),
    "empty window": Case(batch=1, left=0, right=0),
    "sink": Case(batch=1, sink=True, right=0),
    "negative scale": Case(batch=1, scale=-0.2, right=0),
    "no scale": Case(batch=1, scale=0, right=0),
    "padding": Case(batch=3, heads=(2, 1, 1), seq_len_q=[1, 0, 63], seq_len_kv=[63, 60, 1]),
    "padding, causal": Case(
        batch=3, heads=(2, 1, 1), right=0, seq_len_q=[200, 129, 64], seq_len_kv=[128, 129, 290]
    ),
    "padding, causal at the end": Case(
        batch=3, heads=(2, 1, 1), right=0, alignment=BOTTOM_RIGHT, seq_len_q=[60, 1, 9], seq_len_kv=[1, 64, 0]
    ),
}


def check_large_forward(case: Case, dtype: str, outputs: int = 2, magnitude: float = 100) -> None:
    """Random operands with NaN beyond the lengths in use."""
    inputs = case.inputs(dtype)
    rows, columns = (each.reshape(-1) for each in case.lengths())
    dirty = {key: array.copy() for key, array in inputs.items()}
    for b in range(case.batch):
        dirty["q"][b, :, rows[b] :] = np.nan
        for key in ("k", "v"):
            dirty[key][b, :, columns[b] :] = np.nan
    check_large_forward_of(case, inputs, dtype, outputs, magnitude, dirty)


def check_large_forward_of(
    case: Case,
    inputs: dict[str, Any],
    dtype: str,
    outputs: int = 2,
    magnitude: float = 100,
    operands: dict[str, Any] | None = None,
) -> None:
    """Checks o, stats and, with 4 outputs, max and sum_exp. operands: the inputs in their memory layout."""
    want = forward(case, inputs)[:outputs]
    weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
    lost = weights @ np.abs(repeat(inputs["v"], case.heads[0]))

    def build(g: weft.Graph, **tensors: Any) -> Any:
        made = run_forward(case)(g, **tensors) if outputs == 4 else g._sdpa_fwd(**tensors, **case.values())
        return made[:outputs]

    rounded = [checks.roundoff(dtype) * lost, None, None, None][:outputs]
    operands = operands or inputs
    checks.check(build, operands, want, magnitude=magnitude, rounded=rounded, layouts=["packed"])


@pytest.mark.parametrize(("rows", "columns"), QUERY_ENDS)
@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("name", LARGE_FORWARD)
def test_forward_at_the_ends_of_tiles(name: str, depth: int, rows: int, columns: int) -> None:
    case = replace(LARGE_FORWARD[name], rows=rows, columns=columns, depth=depth, value_depth=depth)
    case.scale = depth**-0.5 if case.scale == Case.scale else case.scale
    number = rows + depth + len(name)
    check_large_forward(case, ["bf16", "f16"][number % 3 == 0], [2, 4][number % 2])


PADDED_FORWARD = [(8, 8), (40, 64), (64, 72), (72, 64), (80, 80), (96, 96), (104, 128), (128, 8), (192, 128)]
PADDED_FORWARD += [(136, 120), (200, 192), (160, 256), (256, 256), (248, 16)]


@pytest.mark.parametrize(("depth", "value_depth"), PADDED_FORWARD)
def test_forward_of_heads_that_are_padded(depth: int, value_depth: int) -> None:
    case = Case(1, (2, 1, 1), 200, 210, depth, value_depth, depth**-0.5, right=0)
    check_large_forward(case, "bf16")
    case = Case(2, (1, 1, 1), 70, 300, depth, value_depth, depth**-0.5)
    check_large_forward(replace(case, seq_len_q=[70, 3], seq_len_kv=[100, 300]), "f16", 4)


@pytest.mark.parametrize("heads", range(1, 8))
def test_forward_with_many_key_heads(heads: int) -> None:
    check_large_forward(Case(1, (2 * heads, heads, heads), 70, 140, 64, 64, 0.1, right=5), "bf16")


@pytest.mark.parametrize("logits", [1e-3, 120.0, -120.0, 1e4, -1e4])
@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_forward_of_extreme_scores(dtype: str, depth: int, logits: float) -> None:
    """Exponents are relative to no maximum as long as that loses nothing. Sums of 1e4 are known to 1e-3."""
    case = Case(1, (2, 1, 1), 200, 300, depth, depth, 1)
    inputs = case.inputs(dtype)
    case = replace(case, scale=logits / np.abs(case.scores(inputs)).max(), right=0)
    check_large_forward(case, dtype, magnitude=max(100, 2 * abs(logits)))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("factor", [30, -30])
@pytest.mark.parametrize("first", [0, 150, 280])
def test_forward_of_scores_that_rise_and_fall(dtype: str, first: int, factor: int) -> None:
    """Keys up to `first`, which come last, have scores far above those of the others, or far below."""
    case = Case(1, (1, 1, 1), 70, 300, 64, 64, 1)
    inputs = case.inputs(dtype)
    inputs["q"][...] = checks.narrow(np.full(inputs["q"].shape, 0.25), dtype)
    inputs["k"][:, :, :first] = checks.narrow(np.full((1, 1, first, 64), factor / 16), dtype)
    check_large_forward_of(case, inputs, dtype)


def test_forward_of_values_that_are_not_finite() -> None:
    """They affect the rows that see them, and no other head."""
    case = Case(1, (2, 2, 2), 70, 130, 64, 64, 0.1)
    inputs = case.inputs("bf16")
    inputs["v"][0, 1, 40] = np.nan
    inputs["k"][0, 0, 129] = np.nan
    found = checks.check(lambda g, **t: g._sdpa_fwd(**t, **case.values())[0], inputs, [None])
    for arrays in found.values():
        assert np.isnan(checks.exact(arrays[0])).all()
    inputs = case.inputs("bf16")
    inputs["v"][0, 1, 40] = np.nan
    found = checks.check(lambda g, **t: g._sdpa_fwd(**t, **case.values())[0], inputs, [None])
    for arrays in found.values():
        assert np.isfinite(checks.exact(arrays[0])[0, 0]).all()


def test_forward_of_strided_rows() -> None:
    """Batch, rows and heads in other orders in memory, with gaps of whole 16 bytes."""
    case = Case(2, (4, 2, 2), 70, 130, 64, 64, 0.1, right=0)
    inputs = case.inputs("bf16")
    strided: dict[str, Any] = {}
    for i, (key, array) in enumerate(inputs.items()):
        _, h, s, d = array.shape
        width = d + 8 * (i % 3)
        by_rows = (s * h * width + 8, width, h * width, 1)
        by_heads = (h * (s * width + 16), s * width + 16, width, 1)
        strided[key] = (array, by_rows if i % 2 else by_heads)
    check_large_forward_of(case, inputs, "bf16", operands=strided)


# ---- Gradients in large tiles ------------------------------------------------------------------------------

# Rows that Hopper's copy engine takes, tiles of 64 or 128 queries and 128 keys: one row, ends of tiles, and a
# tile and a half.
ENDS = [(1, 1), (63, 129), (64, 127), (65, 1), (127, 128), (128, 65), (129, 192), (192, 64)]
LARGE_TILES = {
    "plain": Case(batch=1),
    "causal": Case(batch=1, heads=(3, 1, 1), right=0),
    "causal at the end": Case(batch=1, heads=(4, 2, 2), right=0, alignment=BOTTOM_RIGHT),
    "window": Case(batch=2, heads=(1, 1, 1), left=40, right=7),
    "future only": Case(batch=1, right=-70),
    "sink": Case(batch=1, sink=True, right=0),
    "padding": Case(batch=3, heads=(2, 1, 1), seq_len_q=[1, 0, 63], seq_len_kv=[63, 60, 1]),
    "padding, causal at the end": Case(
        batch=3, heads=(2, 1, 1), right=0, alignment=BOTTOM_RIGHT, seq_len_q=[60, 1, 9], seq_len_kv=[1, 64, 0]
    ),
}


def spoil_padding(case: Case, operands: dict[str, Any]) -> None:
    """Fills memory beyond the lengths in use with arbitrary values."""
    rows, columns = (each.reshape(-1) for each in case.lengths())
    for b in range(case.batch):
        for key in ("q", "o", "dO", "stats"):
            operands[key][b, :, rows[b] :] = np.nan
        for key in ("k", "v"):
            operands[key][b, :, columns[b] :] = np.nan


def drawn_by(case: Case, seed: int, offset: int) -> tuple[np.ndarray, dict[str, Any]]:
    """What NumPy's Philox keeps, over 1 - p; and the operands that say what it draws from."""
    shape = (case.batch, case.heads[0], case.rows, case.columns)
    kept = units(shape, seed=seed, offset=offset) < 1 - case.dropout
    operands = {"dropout_seed": np.array([[[[seed]]]]), "dropout_offset": np.array([[[[offset]]]])}
    return kept / ((1 - case.dropout) or 1), operands


def check_large_tiles(case: Case, dtype: str, logits: float = 0, **how: Any) -> None:
    """All gradients; dS is made of weights rounded to 16 bits, and is rounded itself."""
    inputs = case.inputs(dtype)
    if logits:
        whole = replace(case, scale=1, left=None, right=None)
        case = replace(case, scale=logits / np.abs(whole.scores(inputs)).max())
    kept, drawn = drawn_by(case, 2**40 + 11, 3) if case.dropout else (case.kept(inputs), {})
    operands = backward_inputs(case, inputs, dtype, kept)
    want, lost = by_definition(case, operands, kept)
    spoil_padding(case, operands)
    found = rounded_factors([2 * lost[0], 2 * lost[1], *lost[2:]], dtype)
    operands |= drawn
    how = {"magnitude": 200, "rounded": found, "layouts": ["packed"]} | how
    made = checks.check(run_backward(case), operands, want, **how)
    assert all(np.isfinite(checks.exact(each)).all() for arrays in made.values() for each in arrays)


@pytest.mark.parametrize(("rows", "columns"), ENDS)
@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("name", LARGE_TILES)
def test_backward_at_the_ends_of_tiles(name: str, depth: int, rows: int, columns: int) -> None:
    case = replace(LARGE_TILES[name], rows=rows, columns=columns, depth=depth, value_depth=depth, scale=0.1)
    check_large_tiles(case, ["bf16", "f16"][(rows + depth) % 3 == 0])


TERMS = {
    "alibi": Case(batch=1, heads=(3, 3, 3), alibi=True),
    "alibi, causal, grouped": Case(batch=2, heads=(6, 2, 2), alibi=True, right=0),
    "dropout": Case(batch=2, heads=(2, 2, 2), dropout=0.3),
    "dropout, causal, grouped": Case(batch=1, heads=(4, 2, 2), dropout=0.1, right=0),
    "dropout of everything": Case(batch=1, dropout=1),
    "dropout by a mask, causal, grouped": Case(
        batch=2, heads=(4, 2, 2), right=0, drop_mask=(2, 4, 0, 0), drop_scale=1.25
    ),
    "dropout by a mask for all heads": Case(batch=2, heads=(2, 2, 2), drop_mask=(2, 1, 0, 0)),
    "sink, grouped": Case(batch=3, heads=(4, 1, 1), sink=True),
    "all": Case(
        batch=3,
        heads=(4, 2, 2),
        left=100,
        right=3,
        alignment=BOTTOM_RIGHT,
        seq_len_q=[150, 0, 70],
        seq_len_kv=[160, 60, 1],
        alibi=True,
        sink=True,
        dropout=0.25,
    ),
}


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (65, 130), (150, 161)])
@pytest.mark.parametrize(("depth", "value_depth"), [(64, 64), (128, 128), (192, 128)])
@pytest.mark.parametrize("name", TERMS)
def test_backward_of_terms_of_scores(
    name: str, depth: int, value_depth: int, rows: int, columns: int
) -> None:
    """Each term separately, and all together."""
    case = replace(TERMS[name], rows=rows, columns=columns, depth=depth, value_depth=value_depth, scale=0.1)
    if case.drop_mask:
        case = replace(case, drop_mask=(*case.drop_mask[:2], rows, columns))
    check_large_tiles(case, ["bf16", "f16"][(rows + depth + len(name)) % 2])


@pytest.mark.parametrize("heads", range(1, 8))
def test_backward_with_many_key_heads(heads: int) -> None:
    case = Case(1, (2 * heads, heads, heads), 70, 140, 64, 64, 0.1, right=5)
    check_large_tiles(case, "bf16")


PADDED = [(8, 8), (40, 24), (64, 128), (80, 96), (96, 64), (128, 8), (136, 120), (192, 128)]


@pytest.mark.parametrize(("depth", "value_depth"), PADDED)
def test_backward_of_heads_that_are_padded(depth: int, value_depth: int) -> None:
    case = Case(1, (2, 2, 2), 130, 70, depth, value_depth, 0.1, right=0)
    check_large_tiles(case, "bf16", layouts=["packed", "channels_last"])


MULTIPLES_OF_8 = [(depth, depth) for depth in range(8, 257, 8)]


@pytest.mark.parametrize(
    ("depth", "value_depth"), [*tiers.of_today(MULTIPLES_OF_8, 2), (192, 128), (64, 192)]
)
def test_backward_of_grouped_queries_in_parts(depth: int, value_depth: int) -> None:
    """Nine heads of queries share one of keys. On Hopper each block of keys takes some of these heads, and
    another kernel adds the parts of dK and dV: for every padded width of a head, all rows must be written."""
    case = Case(1, (9, 1, 1), 130, 70, depth, value_depth, 0.1, right=None if depth % 16 else 0)
    check_large_tiles(case, "bf16", knobs=without_portable_family())


@pytest.mark.parametrize("heads", [(4, 1, 4), (4, 4, 1), (4, 2, 1)])
def test_backward_of_keys_and_values_of_other_heads(heads: tuple[int, int, int]) -> None:
    """A block of keys meets query heads in turn, with separate values, and the reverse."""
    check_large_tiles(Case(1, heads, 40, 70, 32, 32, 0.1, right=0), "bf16")


@pytest.mark.parametrize("logits", [1e-3, 120.0, 1e4])
@pytest.mark.parametrize("depth", [64, 128])
def test_backward_of_extreme_scores(depth: int, logits: float) -> None:
    """Statistics of 1e4 are known to 5e-4, and the weights no better."""
    case = Case(1, (2, 1, 1), 100, 140, depth, depth, right=0)
    if logits < 1e3:
        check_large_tiles(case, "bf16", logits)
        return
    inputs = case.inputs("bf16")
    case = replace(case, scale=logits / 150)
    found = checks.check(run_backward(case), backward_inputs(case, inputs, "bf16"), [None] * 3)
    assert all(np.isfinite(checks.exact(each)).all() for arrays in found.values() for each in arrays)


def test_backward_of_strided_rows() -> None:
    """Batch, rows and heads in other orders in memory, with gaps of whole 16 bytes; statistics with any."""
    case = Case(2, (4, 2, 2), 70, 130, 64, 64, 0.1, right=0)
    operands = backward_inputs(case, case.inputs("bf16"), "bf16")
    want, lost = by_definition(case, operands)
    strided: dict[str, Any] = {}
    for i, (key, array) in enumerate(operands.items()):
        _, h, s, d = array.shape
        width = d + 8 * (i % 3) if key != "stats" else 3
        by_rows = (s * h * width + 8, width, h * width, 1)
        by_heads = (h * (s * width + 16), s * width + 16, width, 1)
        strided[key] = (array, by_rows if i % 2 else by_heads)
    found = rounded_factors([2 * lost[0], 2 * lost[1], lost[2]], "bf16")
    checks.check(run_backward(case), strided, want, magnitude=200, rounded=found, layouts=["packed"])


# ---- Heads of any size -------------------------------------------------------------------------------------

# Deeper than a GPU multiplies at once: all of q, k and v; only q and k; only v; and sizes that no tile
# divides.
DEEP = [(272, 272), (520, 520), (1024, 1024), (2048, 2048), (1032, 24), (24, 1032), (533, 277)]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("depth", "value_depth"), DEEP)
def test_deep_heads(depth: int, value_depth: int, dtype: str) -> None:
    case = Case(1, (2, 1, 1), 19, 35, depth, value_depth, depth**-0.5, (1, 2, 19, 35), right=16, sink=True)
    inputs, how = case.inputs(dtype), {"layouts": ["packed"]} if depth > 2000 else {}
    weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
    lost = [weights @ np.abs(repeat(inputs["v"], 2)), None, None, None]
    rounded = rounded_factors(lost, WEIGHTS[dtype])
    checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=20, rounded=rounded, **how)
    operands = backward_inputs(case, inputs, dtype)
    want, lost = by_definition(case, operands)
    rounded = rounded_factors(lost, GRADIENTS[dtype])
    checks.check(run_backward(case), operands, want, magnitude=200, rounded=rounded, **how)


def test_deep_heads_with_padding_and_dropout() -> None:
    """What is not seen may hold anything, in every part of a row."""
    case = Case(
        1, (2, 2, 1), 7, 20, 1037, 600, 0.03, (1, 1, 1, 20), seq_len_q=[5], seq_len_kv=[13], dropout=0.25
    )
    inputs = case.inputs()
    inputs["bias"][..., 2] = -INF
    kept = kept_by(case, 11, 3)
    operands = backward_inputs(case, inputs, kept=kept)
    want, grads = forward(case, inputs, kept), backward(case, inputs, operands["dO"], kept)
    for key in ("q", "o", "dO", "stats"):
        operands[key][:, :, 5:] = np.nan
    for key in ("k", "v"):
        operands[key][:, :, [2, *range(13, 20)]] = INF
    operands |= {"dropout_seed": np.array([[[[11]]]]), "dropout_offset": np.array([[[[3]]]])}
    dirty = {key: array for key, array in operands.items() if key not in ("o", "dO", "stats")}
    checks.check(run_forward(case), dirty, want, magnitude=20)
    checks.check(run_backward(case), operands, list(grads.values()), magnitude=200)


# ---- Refusals ----------------------------------------------------------------------------------------------

Q, K, V = ([2, 4, 7, 8], "f32"), ([2, 2, 9, 8], "f32"), ([2, 2, 9, 6], "f32")
O = ([2, 4, 7, 6], "f32")
MISFITS = [  # operand, dimension, extent: each one is invalid, off by one if that suffices
    *(("q", 0, 3), ("k", 0, 1), ("k", 0, 3), ("v", 0, 1), ("v", 0, 3), ("q", 3, 7), ("q", 3, 9)),
    *(("k", 3, 7), ("k", 3, 9), ("k", 2, 8), ("k", 2, 10), ("v", 2, 8), ("v", 2, 10)),
]


def refuse(sentence: str, error: Any = weft.BadParameterError, options: Any = None, **changed: Any) -> None:
    tensors = {"q": Q, "k": K, "v": V} | changed
    checks.refuses(lambda g, **t: g._sdpa_fwd(**t, **(options or {}), name="a"), tensors, sentence, error)


def test_refusals_of_shapes() -> None:
    expected = "expected [B, Hq, Sq, Dqk], [B, Hk, Skv, Dqk], [B, Hv, Skv, Dv]. Swap k's last two dims and "
    swapped = (
        "sdpa_fwd 'a': q is [2,4,7,8], k [2,2,8,9], v [2,2,9,6]; " + expected + "strides if it is transposed."
    )
    refuse(swapped, k=([2, 2, 8, 9], "f32"))
    for which, at, wrong in MISFITS:
        dims = {"q": list(Q[0]), "k": list(K[0]), "v": list(V[0])}
        dims[which][at] = wrong
        q, k, v = (str(each).replace(" ", "") for each in dims.values())
        sentence = f"sdpa_fwd 'a': q is {q}, k {k}, v {v}; {expected}"
        refuse(sentence, **{which: (dims[which], "f32")})
    for name in "qkv":
        refuse(f"sdpa_fwd 'a': {name} has 3 dims [4,7,8], expected 4..4.", **{name: ([4, 7, 8], "f32")})
        refuse(f"sdpa_fwd 'a': {name} has 5 dims [2,4,7,8,1]", **{name: ([2, 4, 7, 8, 1], "f32")})
    refuse(
        "sdpa_fwd 'a': q [2,4,7,8] has 4 heads, k [2,3,9,8] has 3. Make the heads of k divide those of q.",
        k=([2, 3, 9, 8], "f32"),
    )
    refuse(
        "sdpa_fwd 'a': q [2,4,7,8] has 4 heads, v [2,8,9,6] has 8. Make the heads of v divide those of q.",
        v=([2, 8, 9, 6], "f32"),
    )
    refuse(
        "sdpa_fwd 'a': bias with dims [2,4,7,8] does not broadcast to [2,4,7,9]. Make each "
        "of its dims 1 or equal",
        bias=([2, 4, 7, 8], "f32"),
    )
    refuse(
        "sdpa_fwd 'a': seq_len_q has dims [2], expected [2,1,1,1]. Give it these dims, or none.",
        seq_len_q=([2], "i32"),
    )
    refuse(
        "sdpa_fwd 'a': sink_token has dims [1,1,4,1], expected [1,4,1,1].", sink_token=([1, 1, 4, 1], "f32")
    )


def test_refusals_of_values() -> None:
    refuse(
        "sdpa_fwd 'a': bias has data type u8. Use a floating type to add it, or BYTE_BOOLEAN to keep keys "
        "where it is true.",
        bias=([1, 1, 7, 9], "u8"),
    )
    refuse(
        "sdpa_fwd 'a': seq_len_kv has data type f32. Use INT32 or INT64.", seq_len_kv=([2, 1, 1, 1], "f32")
    )
    refuse(
        "sdpa_fwd 'a': the scale is given twice, as tensor attn_scale and as number 0.5. Give one.",
        attn_scale=([1, 1, 1, 1], "f32"),
        options={"attn_scale_value": 0.5},
    )
    refuse(
        "sdpa_fwd 'a': dropout_probability is 0.5, but there is no dropout_seed. Set it.",
        options={"dropout_probability": 0.5},
    )
    refuse(
        "sdpa_fwd 'a': dropout_probability is 1.5. Give one in 0..1.", options={"dropout_probability": 1.5}
    )
    mask, one = ([2, 4, 7, 9], "bool8"), ([1, 1, 1, 1], "f32")
    refuse(
        "sdpa_fwd 'a': dropout is given twice, as dropout_mask and as dropout_probability. Give one.",
        options={"dropout_probability": 0.5},
        dropout_mask=mask,
    )
    refuse(
        "sdpa_fwd 'a': dropout is given twice, as dropout_mask and as dropout_seed. Give one.",
        dropout_mask=mask,
        dropout_seed=([1, 1, 1, 1], "i64"),
    )
    refuse("sdpa_fwd 'a': dropout_scale is set, but no weight is dropped. Leave it unset.", dropout_scale=one)
    refuse(
        "sdpa_fwd 'a': attribute diagonal_alignment is 2, expected 0..1. Set a value in that range.",
        options={"diagonal_alignment": 2},
    )


def test_refusals_of_block_masks() -> None:
    refuse(
        "sdpa_fwd 'a': block_mask has data type f32. Use INT8 or BYTE_BOOLEAN, a tile each, or UINT8, eight "
        "tiles a byte.",
        block_mask=([2, 4, 1, 1], "f32"),
    )
    refuse(
        "sdpa_fwd 'a': block_mask is [2,3,1,1], expected [2,4,1,1]: tiles of 128 x 128 scores, of this type "
        "a byte each. The first two extents may be 1.",
        block_mask=([2, 3, 1, 1], "i8"),
    )


def test_refusals_of_the_backward_pass() -> None:
    tensors = {"q": Q, "k": K, "v": V, "o": O, "dO": O, "stats": ([2, 4, 7, 1], "f32")}

    def refuse_backward(sentence: str, extra: tuple[str, ...] = (), **changed: Any) -> None:
        def build(g: weft.Graph, **t: Any) -> Any:
            return g._sdpa_bwd(**t, **{key: g.tensor(name=key) for key in extra}, name="a")

        checks.refuses(build, tensors | changed, sentence)

    refuse_backward(
        "sdpa_bwd 'a': stats has dims [2,4,7], expected [2,4,7,1]. Give it these dims, or none.",
        stats=([2, 4, 7], "f32"),
    )
    refuse_backward("sdpa_bwd 'a': dO has dims [2,4,7,8], expected [2,4,7,6].", dO=Q)
    refuse_backward("sdpa_bwd 'a': dBias is set, but bias is not. Leave dBias unset.", ("dBias",))
    refuse_backward(
        "sdpa_bwd 'a': dBias is set, but bias is boolean, which has no gradient. Leave dBias unset.",
        ("dBias",),
        bias=([1, 1, 7, 9], "bool8"),
    )
    refuse_backward(
        "sdpa_bwd 'a': dSink_token is set, but sink_token is not. Set both or none.", ("dSink_token",)
    )


# ---- All together ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_random_combinations(seed: int) -> None:
    """Any combination of options."""
    rng = np.random.default_rng(seed)
    heads = [(1, 1, 1), (4, 2, 4), (6, 3, 2), (5, 1, 5), (8, 8, 2)][rng.integers(5)]
    sizes = [1, 2, 7, 8, 33, 64, 65]
    batch, rows, columns = int(rng.integers(1, 4)), int(rng.choice(sizes)), int(rng.choice(sizes))
    whole = (batch, heads[0], rows, columns)
    bias = tuple(1 if rng.random() < 0.4 else n for n in whole) if rng.random() < 0.6 else None
    case = Case(
        batch=batch,
        heads=heads,
        rows=rows,
        columns=columns,
        depth=int(rng.integers(1, 9)),
        value_depth=int(rng.integers(1, 9)),
        scale=float(rng.uniform(-1, 1)),
        bias=bias,  # type: ignore[arg-type]
        is_mask=bias is not None and rng.random() < 0.4,
        left=int(rng.integers(-2, columns + 2)) if rng.random() < 0.4 else None,
        right=int(rng.integers(-2, columns + 2)) if rng.random() < 0.5 else None,
        alignment=[TOP_LEFT, BOTTOM_RIGHT][rng.integers(2)],
        seq_len_q=rng.integers(0, rows + 1, batch).tolist() if rng.random() < 0.5 else None,
        seq_len_kv=rng.integers(0, columns + 1, batch).tolist() if rng.random() < 0.5 else None,
        alibi=bool(rng.random() < 0.3),
        sink=bool(rng.random() < 0.3),
    )
    inputs = case.inputs()
    layout = [checks.LAYOUTS[seed % 3]]
    checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=100, layouts=layout)
    operands = backward_inputs(case, inputs)
    want = backward(case, inputs, operands["dO"])
    checks.check(run_backward(case), operands, list(want.values()), magnitude=5000, layouts=layout)
