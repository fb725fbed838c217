"""The CPU's fast engine: what it fuses into one step, which nodes it leaves to which engine and why, and
correct numbers through the planner, on any number of threads, in place."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import checks
import numpy as np
import pytest
import weft

if checks.DEVICE != "cpu":
    pytest.skip("it is about an engine of the CPU", allow_module_level=True)

Steps = list[tuple[str, list[str]]]


def steps_of(g: weft.Graph) -> Steps:
    """Family and operations of each step of a graph on cpu.fast."""
    names = [answer["engine"] for answer in g.support()]
    g.create_execution_plan(names.index("cpu.fast"))
    g.build_plan_at_index(0)
    return [
        (step["family"], [operation["name"].split("'")[1] for operation in step["operations"]])
        for step in g.plan.report["steps"]
    ]


def declined(g: weft.Graph, step: int) -> str:
    """Returns why better families declined a step."""
    return " ".join(refusal["reason"] for refusal in g.plan.report["steps"][step]["declined"])


def new_graph() -> weft.Graph:
    return weft.Graph(handle=checks.handle(), intermediate_data_type="f32", compute_data_type="f32")


# ---- What is fused -----------------------------------------------------------------------------------------


def test_epilogue_is_one_step() -> None:
    g = new_graph()
    x, w = g.tensor([2, 5, 8], data_type="f32"), g.tensor([1, 8, 6], data_type="f32")
    bias, residual = g.tensor([1, 1, 6], data_type="f32"), g.tensor([2, 5, 6], data_type="f32")
    h = g.bias(g.matmul(x, w, name="product"), bias, name="biased")
    g.add(g.gelu(h, name="activated"), residual, name="summed")
    assert steps_of(g) == [("cpu.contraction", ["product", "biased", "activated", "summed"])]


def test_prologue_is_a_step_of_its_own() -> None:
    g = new_graph()
    x, w = g.tensor([4, 8], data_type="f32"), g.tensor([8, 6], data_type="f32")
    g.relu(g.matmul(g.tanh(x, name="before"), w, name="product"), name="after")
    assert steps_of(g) == [("cpu.contraction", ["product", "after"]), ("cpu.map", ["before"])][::-1]


@pytest.mark.parametrize(
    ("weights", "scale_type", "reader"),
    [
        ("packed", "f32", ""),
        ("apart", "f64", ""),  # made in double
        ("apart", "f32", "user"),
        ("apart", "f32", "another"),
    ],
)
def test_factors_are_dequantised_as_they_are_packed(weights: str, scale_type: str, reader: str) -> None:
    """Where nothing else reads them."""
    g = new_graph()
    codes = [g.tensor([2, 4, 96], data_type="e4m3"), g.tensor([1, 96, 40], data_type="i4")]
    scales = [g.tensor([2, 4, 1], data_type="f32"), g.tensor([1, 3, 40], data_type=scale_type)]
    a = g.block_scale_dequantize(codes[0], scales[0], [1, 96], name="tokens")
    b = g.block_scale_dequantize(codes[1], scales[1], [32, 1], name=weights).set_output(reader == "user")
    g.relu(g.matmul(a, b, name="product"), name="after").set_output(True)
    if reader == "another":
        g.abs(b, name="read again").set_output(True)
    apart = (
        [] if weights == "packed" else [("cpu.element", [weights, *["read again"] * (reader == "another")])]
    )
    together = ["tokens", *([] if apart else [weights]), "product", "after"]
    assert steps_of(g) == [*apart, ("cpu.contraction", together)]
    assert "1 fused operation" in g.plan.explain()


def test_map_takes_several_outputs_and_inputs() -> None:
    g = new_graph()
    x, y = g.tensor([3, 7], data_type="f32"), g.tensor([1, 7], data_type="bf16")
    a = g.add(x, y, name="a").set_output(True)
    g.mul(g.exp(a, name="b"), x, name="c").set_output(True)
    assert steps_of(g) == [("cpu.map", ["a", "b", "c"])]


def test_small_values_are_computed_once() -> None:
    """The reciprocal root of a variance per channel is not recomputed for every pixel."""
    g = new_graph()
    x, variance = g.tensor([2, 3, 4, 4], data_type="f32"), g.tensor([1, 3, 1, 1], data_type="f32")
    g.relu(g.mul(x, g.rsqrt(variance, name="root"), name="scaled"), name="clipped")
    assert steps_of(g) == [("cpu.map", ["root"]), ("cpu.map", ["scaled", "clipped"])]


def test_two_products_are_two_steps() -> None:
    g = new_graph()
    x, v, w = (g.tensor([6, 6], data_type="f32") for _ in range(3))
    g.matmul(g.relu(g.matmul(x, v, name="one"), name="between"), w, name="two")
    assert steps_of(g) == [("cpu.contraction", ["one", "between"]), ("cpu.contraction", ["two"])]


def test_norm_and_adjacent_operations_are_one_step() -> None:
    g = new_graph()
    x, r = g.tensor([6, 40], data_type="bf16"), g.tensor([6, 40], data_type="bf16")
    w, b = g.tensor([1, 40], data_type="f32"), g.tensor([1, 40], data_type="f32")
    h = g.add(x, r, name="summed")
    training = weft.norm_forward_phase.TRAINING
    y, *_ = g.layernorm(training, h, w, b, g.tensor_scalar(1e-5, data_type="f32"), name="norm")
    g.gelu(y, name="activated")
    assert steps_of(g) == [("cpu.rows", ["summed", "norm", "activated"])]


def test_scaled_and_masked_softmax_is_one_step() -> None:
    g = new_graph()
    s = g.tensor([2, 8, 300], data_type="f32")
    row, column = g.gen_index(s, axis=1, name="row"), g.gen_index(s, axis=2, name="column")
    hidden = g.tensor_scalar(-1e9, data_type="f32")
    scaled = g.mul(s, g.tensor_scalar(0.125, data_type="f32"), name="scaled")
    masked = g.binary_select(scaled, hidden, g.cmp_ge(row, column, name="shown"), name="masked")
    g.softmax(masked, name="softmax")
    assert steps_of(g) == [("cpu.rows", ["row", "column", "scaled", "shown", "masked", "softmax"])]


def test_moves_say_how_elements_go() -> None:
    """By runs, by blocks that are transposed, a few planes at once, or one by one."""
    for dims, order, how in (
        ((4, 5, 6), (1, 0, 2), "runs"),
        ((4, 5, 6), (0, 2, 1), "transposed blocks"),
        ((7, 3, 500), (0, 2, 1), "few planes"),
        ((7, 500, 3), (0, 2, 1), "few planes"),
    ):
        g = new_graph()
        moved = g.transpose(g.tensor(dims, data_type="bf16"), list(order), name="moved")
        assert steps_of(g) == [("cpu.move", ["moved"])]
        assert moved.dims == tuple(dims[i] for i in order)
        assert g.plan.report["steps"][0]["detail"] == f"1 copy by {how} of 2 bytes"
    g = new_graph()
    every_other = g.slice(g.tensor([9, 10], data_type="f32"), [slice(0, 9), slice(0, 10, 3)], name="some")
    g.concatenate([every_other, every_other], 0, name="both")
    assert [family for family, _ in steps_of(g)] == ["cpu.move"] * len(steps_of(g))


@pytest.mark.parametrize("layout", ["packed", "channels_last"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "e4m3", "i8"])
def test_an_identity_is_a_copy(dtype: str, layout: str) -> None:
    """Bit for bit, from planes into either order, both ways; the last tiles are parts of one."""
    x = checks.random((2, 19, 7, 9), dtype)
    strides = checks.strides_of(x.shape, "packed"), checks.strides_of(x.shape, layout)
    for before, after in strides, strides[::-1]:
        g = new_graph()
        whole = g.tensor(x.shape, before, dtype, name="x")
        g.identity(whole, name="copied").set_dim(x.shape).set_stride(after)
        assert steps_of(g) == [("cpu.move", ["copied"])]
        checks.check_bits(
            lambda g, t, after=after: g.identity(t).set_dim(t.dims).set_stride(after),
            {"t": (x, before)},
            x,
            layouts=["packed"],
            graph={"compute_data_type": "f32"},
        )


@pytest.mark.parametrize("source", ["f32", "bf16", "f16", "i8"])
@pytest.mark.parametrize("target", ["f32", "bf16", "f16", "e4m3", "i8"])
def test_a_conversion_is_a_copy(source: str, target: str) -> None:
    """Rows longer than what is converted at once; halves, and what is beyond the smaller types."""
    values = checks.random((3, 1100), low=-300, high=300)
    values[0, :6] = 0.5, 1.5, 2.5, 1e-30, 3e38, -3e38
    x = checks.narrow(values, source)
    g = new_graph()
    g.identity(g.tensor(x.shape, data_type=source, name="x"), name="made").set_data_type(target)
    assert steps_of(g) == [("cpu.move", ["made"])]
    checks.check_bits(
        lambda g, x: g.identity(x),
        {"x": x},
        checks.narrow(x.astype(np.float64), target),
        out=target,
        graph={"compute_data_type": "f32"},
    )


def test_position_dependent_elements_are_fused_with_their_consumers() -> None:
    """A mask of dropout, weights of few bits with their bias, a transpose that changes the type."""
    g = new_graph()
    x = g.tensor([6, 32], data_type="f32")
    mask = g.rng(7, bernoulli_probability=0.75, name="mask").set_dim([6, 32])
    g.mul(mask, x, name="dropped")
    assert steps_of(g) == [("cpu.element", ["mask", "dropped"])]
    g = new_graph()
    few, scale = g.tensor([6, 32], data_type="e4m3"), g.tensor([6, 2], data_type="f32")
    g.add(
        g.block_scale_dequantize(few, scale, [16], name="wide"),
        g.tensor([1, 32], data_type="f32"),
        name="shifted",
    )
    assert steps_of(g) == [("cpu.element", ["wide", "shifted"])]
    g = new_graph()
    g.transpose(g.tensor([3, 5], data_type="i4"), [1, 0], name="moved")
    assert steps_of(g) == [("cpu.element", ["moved"])]
    assert "whose elements share bytes" in declined(g, 0)
    g = new_graph()
    parts = [g.tensor([3, 4], data_type=type_) for type_ in ("bf16", "f32")]
    g.relu(g.concatenate(parts, 0, name="both"), name="clipped")
    assert steps_of(g) == [("cpu.element", ["both", "clipped"])]


def test_experts_are_one_step_with_what_follows() -> None:
    g = new_graph()
    token, weight = g.tensor([1, 9, 8], data_type="bf16"), g.tensor([3, 8, 16], data_type="bf16")
    first = g.tensor([3, 1, 1], data_type="i32")
    g.relu(g.moe_grouped_matmul(token, weight, first, name="product"), name="clipped")
    assert steps_of(g) == [("cpu.grouped", ["product", "clipped"])]


def test_long_integers_that_change_their_type_go_to_the_reference() -> None:
    g = new_graph()
    g.reshape(g.tensor([3, 4], data_type="i64"), reshape_mode="LOGICAL", name="moved").set_dim(
        [4, 3]
    ).set_data_type("f32")
    assert steps_of(g) == [("cpu.reference", ["moved"])]
    assert "INT64 is only moved, not converted" in declined(g, 0)


def test_windows_say_what_their_lanes_are() -> None:
    for strides, lanes in (((1280, 1, 128, 16), "channels"), ((1280, 80, 8, 1), "rows")):
        g = new_graph()
        x = g.tensor([2, 16, 10, 8], strides, data_type="bf16")
        g.resample(x, window=[3, 2], stride=[2, 2], pre_padding=[1, 0], post_padding=[1, 0], name="pool")
        assert steps_of(g) == [("cpu.window", ["pool"])]
        assert g.plan.report["steps"][0]["detail"] == f"windows of 1x3x2, lanes of {lanes}"


def test_windows_of_doubles_go_to_the_reference() -> None:
    g = new_graph()
    g.resample(g.tensor([1, 2, 8], data_type="f64"), window=[2], stride=[2], name="pool")
    assert steps_of(g) == [("cpu.reference", ["pool"])]
    assert "Only floats of 32 and 16 bits, and indices in INT8 and INT32, are supported." in declined(g, 0)


def test_sums_of_long_integers_go_to_the_reference() -> None:
    """Those of shorter ones are exact in double."""
    g = new_graph()
    g.reduction(g.tensor([4, 5], data_type="i32"), mode="ADD", dims=[1], name="sum")
    assert steps_of(g) == [("cpu.rows", ["sum"])]
    g = new_graph()
    g.reduction(g.tensor([4, 5], data_type="i64"), mode="ADD", dims=[1], compute_data_type="i64", name="sum")
    assert steps_of(g) == [("cpu.reference", ["sum"])]
    assert "computes in integers, which may exceed the 53 bits of a double" in declined(g, 0)


def test_overrides_go_to_the_reference() -> None:
    g = new_graph()
    a, b = g.tensor([2, 4, 8], data_type="f32"), g.tensor([2, 8, 4], data_type="f32")
    rows = g.tensor([2, 1, 1], data_type="i32")
    g.matmul(a, b, m_override=rows, name="product")
    assert steps_of(g) == [("cpu.reference", ["product"])]
    assert declined(g, 0).startswith(
        "matmul 'product' has overrides of M, N or K, which the packed product does not read. Mask the "
        "result, or split the batch."
    )


def test_large_strides_of_gradients_go_to_the_reference() -> None:
    g = new_graph()
    dy, w = g.tensor([1, 1, 2], data_type="f32"), g.tensor([1, 1, 3], data_type="f32")
    dx = g.conv_dgrad(dy, w, stride=[5000], name="gradient")
    dx.set_dim([1, 1, 5003])
    assert steps_of(g) == [("cpu.reference", ["gradient"])]
    assert declined(g, 0).startswith(
        "conv_dgrad 'gradient': its stride [5000] requires more than 4096 products, one for each position "
        "within a step. Use a smaller stride."
    )


# ---- Numbers -----------------------------------------------------------------------------------------------

# Intermediate f32 results are rounded, by the reference too, and sums of them may cancel all but some bits.
ROUNDED_BETWEEN = 4096


def gelu_tanh(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("rows", [1, 13, 200])
def test_mlp(dtype: str, rows: int) -> None:
    x, w = checks.random((3, rows, 70), dtype), checks.random((1, 70, 45), dtype, seed=1)
    b, r = checks.random((1, 1, 45), dtype, seed=2), checks.random((3, rows, 45), dtype, seed=3)
    want = gelu_tanh(checks.exact(x) @ checks.exact(w) + checks.exact(b)) + checks.exact(r)
    checks.check(
        lambda g, x, w, b, r: g.add(g.gelu_approx_tanh(g.bias(g.matmul(x, w), b)), r),
        {"x": x, "w": w, "b": b, "r": r},
        want,
        out=dtype,
        ulps=ROUNDED_BETWEEN if dtype == "f32" else 2,
        magnitude=300,
        graph={"intermediate_data_type": "f32"},
    )


@pytest.mark.parametrize(("groups", "channels"), [(1, 16), (2, 4), (12, 1)])
def test_convolution_bias_relu(groups: int, channels: int) -> None:
    x = checks.random((2, groups * channels, 9, 11))
    w = checks.random((groups * channels, channels, 3, 3), seed=1)
    b = checks.random((1, groups * channels, 1, 1), seed=2)
    padded = np.pad(checks.exact(x), ((0, 0), (0, 0), (1, 1), (1, 1))).reshape(2, groups, channels, 11, 13)
    filters = checks.exact(w).reshape(groups, channels, channels, 3, 3)
    sums = np.zeros((2, groups, channels, 9, 11))
    for i in range(3):
        for j in range(3):
            sums += np.einsum("ngchw,gkc->ngkhw", padded[..., i : i + 9, j : j + 11], filters[..., i, j])
    want = np.maximum(sums.reshape(2, -1, 9, 11) + checks.exact(b), 0)
    checks.check(
        lambda g, x, w, b: g.relu(g.bias(g.conv_fprop(x, w, padding=[1, 1]), b)),
        {"x": x, "w": w, "b": b},
        want,
        layouts=checks.LAYOUTS,
        ulps=ROUNDED_BETWEEN,
        magnitude=4.0 * 9 * channels,
        graph={"intermediate_data_type": "f32"},
    )


def test_int8_sums_are_exact() -> None:
    """4000 products of +-127 pass what float holds exactly."""
    a, b = checks.random((3, 4000), "i8", 126, 127), checks.random((4000, 5), "i8", -127, -126, seed=1)
    checks.check(
        lambda g, a, b: g.matmul(a, b),
        {"a": a, "b": b},
        a.astype(np.int64) @ b.astype(np.int64),
        out="i32",
        graph={"compute_data_type": "i32"},
    )


def test_masked_softmax_input() -> None:
    """Generated indices, comparisons and a selection: integers, booleans and floats in one sweep."""
    s = checks.random((2, 3, 6, 6))
    row, column = np.indices((6, 6))

    def build(g: weft.Graph, s: Any) -> Any:
        shown = g.cmp_ge(g.gen_index(s, axis=2), g.gen_index(s, axis=3))
        return g.binary_select(s, g.tensor_scalar(-1e9, data_type="f32"), shown)

    checks.check(build, {"s": s}, np.where(row >= column, checks.exact(s), -1e9), magnitude=1e9)


# ---- Rows --------------------------------------------------------------------------------------------------

# Rows of one element, shorter than a vector, of odd length, longer than a block, longer than a cache.
ROWS = [(5, 1), (300, 3), (64, 63), (33, 191), (7, 193), (3, 1025), (2, 70001), (1, 300000), (0, 4)]


@pytest.mark.parametrize(("rows", "columns"), ROWS)
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_and_extremes(rows: int, columns: int, axis: int) -> None:
    x = checks.random((rows, columns))
    for mode, function in (("ADD", np.sum), ("MAX", np.max), ("AVG", np.mean)):
        if mode != "ADD" and x.shape[axis] == 0:
            continue
        checks.check(
            lambda g, x, mode=mode: g.reduction(x, mode=mode, dims=[axis]),
            {"x": x},
            function(checks.exact(x), axis=axis, keepdims=True),
            layouts=checks.LAYOUTS,
            magnitude=4.0 * max(x.shape[axis], 1),
        )


@pytest.mark.parametrize(("rows", "columns"), [(5, 1), (33, 191), (3, 1025), (2, 70001), (2500, 16)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_softmax_of_scaled_scores(rows: int, columns: int, dtype: str) -> None:
    x = checks.random((rows, columns), dtype)
    scores = checks.exact(x) * 4 - np.max(checks.exact(x) * 4, axis=1, keepdims=True)
    checks.check(
        lambda g, x: g.softmax(g.mul(x, g.tensor_scalar(4.0, data_type="f32"))),
        {"x": x},
        np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True),
        out=dtype,
        magnitude=16,
        graph={"intermediate_data_type": "f32"},
    )


@pytest.mark.parametrize("length", [1, 63, 200, 2049])
def test_numbers_that_are_none(length: int) -> None:
    """NaN at any position makes the row's extremes and sums NaN, and no other row's."""
    x = checks.random((4, length))
    x[1, length // 2], x[2, length - 1], x[3, 0] = np.nan, np.inf, -np.inf
    for mode, function in (("ADD", np.sum), ("MAX", np.max), ("MIN", np.min), ("AMAX", np.max)):
        wide = np.abs(checks.exact(x)) if mode == "AMAX" else checks.exact(x)
        checks.check(
            lambda g, x, mode=mode: g.reduction(x, mode=mode, dims=[1]),
            {"x": x},
            function(wide, axis=1, keepdims=True),
            magnitude=4.0 * length,
        )


# ---- Threads and memory ------------------------------------------------------------------------------------

PROGRAM = """
import hashlib, numpy as np, weft
g = weft.Graph(handle=weft.create_handle("cpu"), intermediate_data_type="f32", compute_data_type="f32")
x = g.tensor([2, 32, 40, 40], data_type="f32", name="x")
w = g.tensor([48, 32, 3, 3], data_type="f32", name="w")
y = g.swish(g.conv_fprop(x, w, padding=[1, 1]), name="y").set_output(True)
g.build()
assert g.plan.engine == "cpu.fast"
numbers = np.random.default_rng(7)
arrays = {s.name: numbers.standard_normal(s.dims, np.float32) for s in g.plan.slots if not s.is_output}
print(hashlib.sha256(np.ascontiguousarray(g.plan(**arrays)).tobytes()).hexdigest())
"""


ROWS_PROGRAM = """
import hashlib, numpy as np, weft
digest = hashlib.sha256()
numbers = np.random.default_rng(7)
def filled(slot):
    order = sorted(range(len(slot.dims)), key=lambda d: -slot.strides[d])
    return numbers.standard_normal([slot.dims[d] for d in order], np.float32).transpose(np.argsort(order))
def run(make):
    g = weft.Graph(handle=weft.create_handle("cpu"), intermediate_data_type="f32", compute_data_type="f32")
    for result in make(g):
        if result is not None:
            result.set_output(True)
    g.build()
    assert {step["family"] for step in g.plan.report["steps"]} == {"cpu.rows"}
    inputs = {s.name: filled(s) for s in g.plan.slots if s.name and not s.is_output}
    for result in g.plan(**inputs):
        digest.update(np.ascontiguousarray(result).tobytes())
def layer(g):
    x, dy = (g.tensor([700, 300], data_type="f32", name=name) for name in ("x", "dy"))
    w = g.tensor([1, 300], data_type="f32", name="w")
    m, i = (g.tensor([700, 1], data_type="f32", name=name) for name in ("m", "i"))
    return g.layernorm_backward(dy, x, w, m, i)
def batch(g):
    x = g.tensor([8, 24, 30, 30], stride=[21600, 1, 720, 24], data_type="f32", name="x")
    w, b = (g.tensor([1, 24, 1, 1], data_type="f32", name=name) for name in ("w", "b"))
    return g.batchnorm(x, w, b, epsilon=g.tensor_scalar(1e-5, data_type="f32"))
run(layer)
run(batch)
print(digest.hexdigest())
"""


@pytest.mark.parametrize("program", ["products", "rows"])
def test_threads_do_not_change_bits(program: str) -> None:
    found = set()
    for threads in ("1", "2", "64"):
        run = subprocess.run(
            [sys.executable, "-c", ROWS_PROGRAM if program == "rows" else PROGRAM],
            env={**os.environ, "WEFT_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        found.add(run.stdout)
    assert len(found) == 1


def test_output_may_be_the_residual() -> None:
    x, w, r = checks.random((40, 30)), checks.random((30, 20), seed=1), checks.random((40, 20), seed=2)
    want = checks.exact(x) @ checks.exact(w) + checks.exact(r)
    g = new_graph()
    tx, tw, tr = (g.tensor_like(a) for a in (x, w, r))
    y = g.add(g.matmul(tx, tw), tr).set_output(True).set_data_type("f32")
    assert [family for family, _ in steps_of(g)] == ["cpu.contraction"]
    g.execute({tx: x, tw: w, tr: r, y: r})
    assert not checks.compare(r, want, weft.data_type.FLOAT, engine="cpu.fast", magnitude=120)


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("size", [(4, 1, 8), (8, 1, 8), (8, 2, 16), (16, 4, 16), (32, 1, 8)], ids=str)
def test_small_attention_runs_on_the_fast_engine(size: tuple[int, int, int], is_backward: bool) -> None:
    """The reference engine takes up to 20 times as long, and is predicted to."""
    rows, heads, width = size
    g = weft.Graph(io_data_type="f32", compute_data_type="f32", handle=weft.create_handle("cpu"))
    q, k, v, o, do = (g.tensor([1, heads, rows, width], name=name) for name in ("q", "k", "v", "o", "do"))
    if is_backward:
        results = g.sdpa_backward(q, k, v, o, do, g.tensor([1, heads, rows, 1], name="s"), attn_scale=0.5)
    else:
        results = [g.sdpa(q, k, v, attn_scale=0.5, generate_stats=False)[0]]
    for each in results:
        each.set_output(True)
    seconds = {each["engine"]: each["seconds"] for each in g.support() if each["supported"]}
    assert seconds["cpu.reference"] > seconds["cpu.fast"]
    assert g.build().plan.engine == "cpu.fast"


@pytest.mark.parametrize("operation", ["product", "biased product", "softmax", "relu"])
def test_the_smallest_tensors_run_on_the_fast_engine(operation: str) -> None:
    """Where both engines take as long to start, the reference engine's arithmetic takes longer."""
    g = weft.Graph(io_data_type="f32", compute_data_type="f32", handle=weft.create_handle("cpu"))
    x = g.tensor([2, 8], name="x")
    if operation == "softmax":
        y = g.softmax(x)
    elif operation == "relu":
        y = g.relu(x)
    else:
        y = g.matmul(x, g.tensor([8, 8], name="w"))
        y = y if operation == "product" else g.add(y, g.tensor([1, 8], name="b"))
    y.set_output(True)
    assert g.build().plan.engine == "cpu.fast"
    assert len(steps_of(g)) == 1


@pytest.mark.parametrize("device", ["cpu", "sm_90"])
def test_linear_layers_that_share_their_input_are_one_step_each(device: str) -> None:
    g = weft.Graph(device=device, io_data_type="bf16", intermediate_data_type="bf16", compute_data_type="f32")
    x = g.tensor([256, 128], name="x")
    for i, width in enumerate((64, 128, 64)):
        weight = g.transpose(g.tensor([width, 128], name=f"w{i}"), [1, 0])
        g.add(g.matmul(x, weight), g.tensor([1, width], name=f"b{i}")).set_output(True)
    assert len(g.build().plan.report["steps"]) == 3
