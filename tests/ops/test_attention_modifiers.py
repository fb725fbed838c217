"""Score modifiers of attention, forward and backward, against NumPy in float64: derivatives of every mode,
operands of any broadcast and type and their gradients, indices, masks, given gradients, refusals."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import checks
import numpy as np
import pytest
import weft
from attention_oracle import (
    BOTTOM_RIGHT,
    INF,
    Case,
    Modifier,
    backward,
    backward_inputs,
    by_definition,
    forward,
    modify,
    repeat,
    rounded_factors,
    run_backward,
    run_forward,
    softmax,
)
from weft.enums import attribute_name, descriptor_type

B, H, Q, K = 2, 4, 7, 9


def logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def window(g: Any, s: Any, _: Any) -> Any:
    """Keys up to one ahead, in blocks of five."""
    row, column = g.gen_index(s, axis=2), g.gen_index(s, axis=3)
    ahead = g.cmp_le(column, g.add(row, 1))
    block = g.cmp_eq(g.floor(g.div(row, 5.0)), g.floor(g.div(column, 5.0)))
    return g.binary_select(s, -INF, g.logical_and(ahead, block))


def visible(i: Any, j: Any) -> Any:
    return (j <= i + 1) & (i // 5 == j // 5)


MODIFIERS = {
    "soft cap": Modifier(
        lambda g, s, _: g.mul(g.tanh(g.mul(s, 0.5)), 2.0),
        lambda s, *_: 2 * np.tanh(s / 2),
        lambda s, *_: 1 - np.tanh(s / 2) ** 2,
    ),
    "mask of indices": Modifier(
        window,
        lambda s, b, h, i, j: np.where(visible(i, j), s, -INF),
        lambda s, b, h, i, j: np.where(visible(i, j), 1, 0),
    ),
    "batch and head": Modifier(
        lambda g, s, _: g.sub(
            g.mul(s, g.add(g.mul(g.gen_index(s, axis=0), 0.5), 1.0)), g.mul(g.gen_index(s, axis=1), 0.25)
        ),
        lambda s, b, h, i, j: s * (1 + b / 2) - h / 4,
        lambda s, b, h, i, j: 1 + b / 2,
    ),
    "added": Modifier(
        lambda g, s, t: g.add(s, t["bias_of_heads"]),
        lambda s, *_, bias_of_heads: s + bias_of_heads,
        lambda s, *_, bias_of_heads: 1,
        {"bias_of_heads": (1, H, 1, K)},
        slopes={"bias_of_heads": lambda s, *_, bias_of_heads: 1},
    ),
    "gates": Modifier(
        lambda g, s, t: g.mul(g.mul(s, t["of_rows"]), g.sigmoid(g.add(s, t["of_all"]))),
        lambda s, *_, of_rows, of_all: s * of_rows * logistic(s + of_all),
        lambda s, *_, of_rows, of_all: of_rows * logistic(s + of_all) * (1 + s * logistic(-s - of_all)),
        {"of_rows": (B, 1, Q, 1), "of_all": (B, H, Q, K)},
        slopes={
            "of_rows": lambda s, *_, of_rows, of_all: s * logistic(s + of_all),
            "of_all": lambda s, *_, of_rows, of_all: (
                s * of_rows * logistic(s + of_all) * logistic(-s - of_all)
            ),
        },
    ),
    "one number": Modifier(
        lambda g, s, t: g.mul(s, t["number"]),
        lambda s, *_, number: s * number,
        lambda s, *_, number: number,
        {"number": (1, 1, 1, 1)},
        slopes={"number": lambda s, *_, number: s},
    ),
    "documents": Modifier(
        lambda g, s, t: g.binary_select(s, -INF, g.cmp_eq(t["of_queries"], t["of_keys"])),
        lambda s, *_, of_queries, of_keys: np.where(of_queries == of_keys, s, -INF),
        lambda s, *_, of_queries, of_keys: np.where(of_queries == of_keys, 1, 0),
        {"of_queries": (B, 1, Q, 1), "of_keys": (B, 1, 1, K)},
        {"of_queries": "i8", "of_keys": "i8"},
    ),
    "a mask of bytes": Modifier(
        lambda g, s, t: g.binary_select(s, -1000.0, t["mask"]),
        lambda s, *_, mask: np.where(mask, s, -1000),
        lambda s, *_, mask: np.where(mask, 1, 0),
        {"mask": (1, H, Q, K)},
        {"mask": "bool8"},
    ),
    "constant": Modifier(lambda g, s, _: g.sub(s, s), lambda s, *_: 0 * s, lambda s, *_: 0),
    "identity": Modifier(lambda g, s, _: s, lambda s, *_: s, lambda s, *_: 1),
}
CASE = Case(heads=(H, 2, 2))
CASES = {name: replace(CASE, modifier=modifier) for name, modifier in MODIFIERS.items()}
CASES |= {
    "beside everything": replace(
        CASE,
        modifier=MODIFIERS["gates"],
        bias=(1, H, Q, K),
        left=4,
        right=1,
        alignment=BOTTOM_RIGHT,
        seq_len_q=[7, 4],
        seq_len_kv=[9, 8],
        alibi=True,
        sink=True,
    ),
    "heads of k and v that differ": replace(CASE, heads=(H, 4, 1), modifier=MODIFIERS["soft cap"]),
}


@pytest.mark.parametrize("name", CASES)
def test_forward(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs()
    checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=20)


@pytest.mark.parametrize("name", CASES)
def test_backward(name: str) -> None:
    case = CASES[name]
    operands = backward_inputs(case, case.inputs())
    want = backward(case, operands, operands["dO"])
    checks.check(run_backward(case), operands, list(want.values()), magnitude=200)


NARROW = ["soft cap", "gates", "mask of indices", "beside everything"]
TYPES = [(name, "f32") for name in CASES] + [(name, dtype) for name in NARROW for dtype in ("bf16", "f16")]


@pytest.mark.parametrize(("name", "dtype"), TYPES)
def test_types(name: str, dtype: str) -> None:
    case = CASES[name]
    inputs = case.inputs(dtype)
    checks.check(run_forward(case), inputs, forward(case, inputs), out=["f32"] * 4, magnitude=20)
    operands = backward_inputs(case, inputs, dtype)
    want, lost = by_definition(case, operands)
    checks.check(
        run_backward(case),
        operands,
        want,
        out=["f32"] * len(want),
        rounded=rounded_factors(lost, dtype),
        magnitude=200,
    )


def capped(case: Case, cap: float) -> Case:
    """The case with a soft cap on its scores. Constants of graphs are floats."""
    by = float(np.float32(1 / cap))
    modifier = Modifier(
        lambda g, s, _: g.mul(g.tanh(g.mul(s, by)), cap),
        lambda s, *_: cap * np.tanh(s * by),
        lambda s, *_: cap * by * (1 - np.tanh(s * by) ** 2),
    )
    return replace(case, modifier=modifier)


WIDE = Case(batch=1, heads=(2, 2, 1), rows=70, columns=256, depth=64, value_depth=64)


def scaled(case: Case, inputs: dict[str, Any], largest: float) -> Case:
    """The case with scores up to that one."""
    products = inputs["q"].astype(float) @ inputs["k"].astype(float).swapaxes(2, 3)
    return replace(case, scale=float(largest / np.abs(products).max()))


@pytest.mark.parametrize(("dtype", "stats"), [("bf16", False), ("f16", False), ("f16", True)])
@pytest.mark.parametrize(
    ("largest", "cap", "off"),
    [
        *((2, 50, 3e-5), (4, 16, 3e-5), (7, 30, 3e-5), (9, 16, 2**-11), (14, 50, 2**-11)),
        *((40, 50, 2**-11), (30, 18, 2**-11), (120, 20, 2**-11), (9, 1, 2**-11), (-7, 30, 3e-5)),
    ],
)
@pytest.mark.parametrize("mask", [{}, {"right": 0, "alignment": BOTTOM_RIGHT}, {"left": 9, "right": 0}])
def test_soft_caps(
    largest: float, cap: float, off: float, mask: dict[str, Any], dtype: str, stats: bool
) -> None:
    """Scores in the range of the Hopper kernel's polynomial, scores whose weights do not fit in shared
    memory, scores that are cut off, caps without a polynomial, and negative scales. off: the allowed error of
    the functions themselves without statistics; blocks that a mask cuts use no polynomial."""
    inputs = WIDE.inputs(dtype)
    case = capped(scaled(replace(WIDE, **mask), inputs, largest), cap)

    def build(g: weft.Graph, **tensors: Any) -> Any:
        made = g._sdpa_fwd(**tensors, **modify(case, g, tensors), **case.values(), name="a")
        return made if stats else made[0]

    weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
    lost = weights @ np.abs(repeat(inputs["v"], 2)).astype(float)
    score = min(abs(largest), cap)
    more = 2 * score * (2e-6 if stats else max(off, 2**-11) if mask else off)
    rounded = [(checks.roundoff(dtype) + more) * lost, 2e-6 * score][: 1 + stats]
    want, out = forward(case, inputs)[: 1 + stats], [dtype, "f32"][: 1 + stats]
    checks.check(build, inputs, want, out=out, rounded=rounded, magnitude=4, layouts=["packed"])


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize(("cap", "low", "high"), [(30, -22, -11), (16, -16, -4)])
def test_a_soft_cap_of_low_scores(cap: float, low: float, high: float, at: int) -> None:
    """Thousands of keys beyond the polynomial weigh as much as one that stands out, and all next to nothing
    before a maximum was found."""
    case = Case(batch=1, heads=(1, 1, 1), rows=128, columns=4096, depth=64, value_depth=64, scale=1.0)
    inputs = case.inputs("bf16")
    for name in ("q", "k", "v"):
        inputs[name][...] = 0
    inputs["q"][..., 0], inputs["k"][..., 0] = 1, low
    inputs["k"][0, 0, at, 0] = high
    inputs["v"][...], inputs["v"][0, 0, at] = -1, 1
    case = capped(case, cap)

    def build(g: weft.Graph, **tensors: Any) -> Any:
        made = g._sdpa_fwd(**tensors, **modify(case, g, tensors), **case.values(), name="a")
        return made[0]

    want = forward(case, inputs)[0]
    rounded = [np.full(want.shape, checks.roundoff("bf16") + 2 * 19 * 2**-11)]
    checks.check(build, inputs, [want], out=["bf16"], rounded=rounded, magnitude=4, layouts=["packed"])


@pytest.mark.parametrize(("largest", "cap"), [(2, 50), (120, 50), (120, 20), (9, 1)])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_gradients_of_soft_caps(largest: float, cap: float, dtype: str) -> None:
    """Also of scores that are cut off, where the slope is next to nothing. A tanh may be off by 2^-11 of
    itself, and a slope by twice that."""
    inputs = WIDE.inputs(dtype)
    case = capped(scaled(replace(WIDE, right=0, alignment=BOTTOM_RIGHT), inputs, largest), cap)
    operands = backward_inputs(case, inputs, dtype)
    want, lost = by_definition(case, operands)
    flat = replace(case, modifier=replace(case.modifier, slope=lambda s, *_: np.ones_like(s)))
    _, steep = by_definition(flat, operands)
    score = min(largest, cap)
    rounded = [
        (checks.roundoff(dtype) + 2 * score * 2**-11) * each + 2**-10 * all_
        for each, all_ in zip(lost, steep, strict=True)
    ]
    checks.check(
        run_backward(case),
        operands,
        want,
        out=[dtype] * 3,
        rounded=rounded,
        magnitude=200,
        layouts=["packed"],
    )


# ---- Derivatives of the modes ------------------------------------------------------------------------------

UNARY = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "cos": np.cos,
    "sin": np.sin,
    "tan": lambda x: np.tan(x),
    "exp": np.exp,
    "log": np.log,
    "neg": np.negative,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "reciprocal": lambda x: 1 / x,
    "erf": np.vectorize(math.erf),
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": logistic,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "gelu": np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x * 0.5**0.5))),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "swish": lambda x: x * logistic(x),
    "gelu_approx_tanh": lambda x: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
}
BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "add_square": lambda x, b: x + b * b,
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.fmod,
    "floor_mod": np.mod,
    "pow": np.power,
    "atan2": np.arctan2,
}


def by_differences(function: Any, *at: Any, step: float = 1e-6) -> list[Any]:
    """Derivatives by each argument."""
    found = []
    for i in range(len(at)):
        above, below = ([*at[:i], at[i] + sign * step, *at[i + 1 :]] for sign in (1, -1))
        found.append((function(*above) - function(*below)) / (2 * step))
    return found


def check_derivatives(modifier: Modifier, is_steep: bool = False) -> None:
    case = replace(CASE, batch=B, modifier=modifier)
    operands = backward_inputs(case, case.inputs())
    want = backward(case, operands, operands["dO"])
    checks.check(run_backward(case), operands, list(want.values()), magnitude=1e10, layouts=["packed"])
    if is_steep:  # near a pole no digits of single precision are left
        return
    # In single precision and by the score only, because other families than the reference compute its
    # gradient.
    case = replace(case, modifier=replace(modifier, slopes={}))
    operands = backward_inputs(case, case.inputs("f32"), "f32")
    found = checks.check(run_backward(case), operands, [None] * 3, layouts=["packed"])
    for made in found.values():
        for each, other in zip(made, next(iter(found.values())), strict=True):
            np.testing.assert_allclose(each, other, rtol=1e-3, atol=1e-3 * np.abs(other).max())


@pytest.mark.parametrize("mode", UNARY)
def test_derivative_of_a_mode(mode: str) -> None:
    """Of |s| + 0.6, which every mode takes."""

    def value(s: Any, *_: Any) -> Any:
        return UNARY[mode](np.abs(s) + 0.6)

    def build(g: Any, s: Any, _: Any) -> Any:
        return getattr(g, mode)(g.add(g.abs(s), 0.6))

    check_derivatives(Modifier(build, value, lambda s, *_: by_differences(value, s)[0]), mode == "tan")


@pytest.mark.parametrize("mode", BINARY)
def test_derivatives_of_a_mode_of_two(mode: str) -> None:
    def value(s: Any, t: Any) -> Any:
        return BINARY[mode](np.abs(s) + 0.6, np.abs(t) + 0.3)

    def build(g: Any, s: Any, t: Any) -> Any:
        return getattr(g, mode)(g.add(g.abs(s), 0.6), g.add(g.abs(t["t"]), 0.3))

    modifier = Modifier(
        build,
        lambda s, *_, t: value(s, t),
        lambda s, *_, t: by_differences(value, s, t)[0],
        {"t": (1, H, Q, 1)},
        slopes={"t": lambda s, *_, t: by_differences(value, s, t)[1]},
    )
    check_derivatives(modifier)


# ---- The method's own ways ---------------------------------------------------------------------------------


def attention(
    device: str = "cpu", q: Any = (1, 2, 4, 8), k: Any = (1, 2, 5, 8), dtype: str = "f32", **options: Any
) -> weft.Graph:
    g = weft.Graph(device=device, io_data_type=dtype)
    o, _ = g.sdpa(g.tensor(q, name="q"), g.tensor(k, name="k"), g.tensor(k, name="v"), name="a", **options)
    o.set_output(True)
    return g


def test_a_gradient_that_is_given() -> None:
    """Twice the correct gradient, so that a derived one would differ."""
    case = CASES["soft cap"]
    operands = backward_inputs(case, case.inputs())
    want = backward(case, operands, operands["dO"])
    saved: dict[str, Any] = {}

    def score_mod(g: Any, s: Any) -> Any:
        saved["t"] = g.tanh(g.mul(s, 0.5))
        return g.mul(saved["t"], 2.0)

    def score_mod_bprop(g: Any, slope: Any) -> Any:
        return g.mul(g.mul(slope, 2.0), g.sub(1.0, g.mul(saved["t"], saved["t"])))

    def build(g: Any, **tensors: Any) -> Any:
        scale = case.scale
        return g.sdpa_backward(
            **tensors, attn_scale=scale, score_mod=score_mod, score_mod_bprop=score_mod_bprop
        )

    doubled = [2 * want["dQ"], 2 * want["dK"], want["dV"]]
    checks.check(build, operands, doubled, magnitude=200)


def test_shapes_may_be_inferred_after_the_call() -> None:
    """Queries that another operation computes have no shape when score_mod is called."""
    g = weft.Graph(device="cpu", io_data_type="f32")
    x, w = g.tensor([1, 2, 4, 3], name="x"), g.tensor([1, 1, 3, 8], name="w")
    k = g.tensor([1, 2, 5, 8], name="k")
    g.sdpa(g.matmul(x, w), k, k, score_mod=lambda g, s: g.mul(s, 0.5))
    random = np.random.default_rng(1)
    arrays = {t.name: np.float32(random.normal(size=t.dims)) for t in (x, w, k)}
    found = g(**arrays)
    s = 0.5 * ((arrays["x"] @ arrays["w"]) @ arrays["k"].mT)
    weights = np.exp(s) / np.exp(s).sum(-1, keepdims=True)
    np.testing.assert_allclose(found, weights @ arrays["k"], rtol=1e-5, atol=1e-6)


def test_a_saved_plan_keeps_its_modifier() -> None:
    g = attention(score_mod=lambda g, s: g.mul(g.tanh(s), 0.25))
    g.build()
    arrays = {
        name: np.random.default_rng(2).normal(size=(1, 2, n, 8)).astype("f4")
        for name, n in (("q", 4), ("k", 5), ("v", 5))
    }
    again = weft.Graph(device="cpu").deserialize(g.serialize())
    np.testing.assert_array_equal(again(**arrays), g(**arrays))
    assert g.key() != attention(score_mod=lambda g, s: g.mul(g.tanh(s), 0.5)).key()


@pytest.mark.parametrize("is_backward", [False, True])
def test_a_copied_operation_keeps_its_modifier(is_backward: bool) -> None:
    """A finalized graph returns copies of operations, from which another graph can be built."""
    case = CASES["gates"]
    inputs = backward_inputs(case, case.inputs()) if is_backward else case.inputs()
    kind = descriptor_type[f"OPERATION_SDPA_{'BWD' if is_backward else 'FWD'}_DESCRIPTOR"]

    def graph() -> weft.Graph:
        g = weft.Graph(device="cpu", io_data_type="f64", intermediate_data_type="f64")
        tensors = {name: g.tensor_like(array, name=name) for name, array in inputs.items()}
        for made in (run_backward if is_backward else run_forward)(case)(g, **tensors):
            made.set_output(True)
        g.validate()
        return g

    first, second = graph(), graph()
    second._op_descriptors = first._planner().graph.get_descriptors(attribute_name.OPERATIONGRAPH_OPS, kind)
    for got, want in zip(second(**inputs), first(**inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def shrunk(dims: tuple[int, ...], axes: str) -> list[int]:
    """Dims of a smaller graph: two queries and keys, and one batch entry. axes: b, h, s or d of each."""
    return [{"b": 1, "s": 2}.get(axis, n) if n > 1 else n for n, axis in zip(dims, axes, strict=True)]


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("name", ["soft cap", "mask of indices", "gates", "documents", "identity"])
def test_overridden_shapes(name: str, is_backward: bool) -> None:
    """A graph of other sizes than those of the call; scores, and what is made of them, follow."""
    case = CASES[name]
    inputs = case.inputs("f32")
    operands = backward_inputs(case, inputs, "f32") if is_backward else inputs
    g = weft.Graph(handle=checks.handle(), is_override_shape_enabled=True, io_data_type="f32")
    tensors = {}
    for key, array in operands.items():
        axes = "bhss" if case.modifier and key in case.modifier.operands else "bhsd"
        tensors[key] = g.tensor(shrunk(array.shape, axes), data_type=array.dtype.name, name=key)
    if is_backward:
        made = run_backward(replace(case, modifier=replace(case.modifier, slopes={})))(g, **tensors)
        want = list(backward(case, operands, operands["dO"]).values())[:3]
    else:
        made, want = run_forward(case)(g, **tensors), forward(case, operands)
    g.build()
    found = [np.zeros(each.shape, np.float32) for each in want]
    given = dict(zip((*tensors.values(), *made), (*operands.values(), *found), strict=True))
    uids, shapes = [tensor.uid for tensor in given], [list(array.shape) for array in given.values()]
    if checks.DEVICE == "cpu":
        g.execute(given, override_uids=uids, override_shapes=shapes)
    else:
        copies = {
            tensor: checks.on_device(array.reshape(-1).view(np.uint8)) for tensor, array in given.items()
        }
        addresses = {tensor: checks.address(copy) for tensor, copy in copies.items()}
        g.execute(addresses, override_uids=uids, override_shapes=shapes)
        for tensor, array in zip(made, found, strict=True):
            array.reshape(-1).view(np.uint8)[:] = copies[tensor].numpy()
    for got, each in zip(found, want, strict=True):
        np.testing.assert_allclose(got, each, rtol=1e-4, atol=1e-4)


def test_overridden_shapes_that_another_operation_hands_on() -> None:
    """Queries whose shape follows from that of a product's operand."""
    g = weft.Graph(device="cpu", io_data_type="f32", is_override_shape_enabled=True)
    x, w = g.tensor([1, 2, 4, 3], name="x"), g.tensor([1, 1, 3, 8], name="w")
    k = g.tensor([1, 2, 5, 8], name="k")
    o, _ = g.sdpa(g.matmul(x, w), k, k, score_mod=lambda g, s: g.add(g.mul(s, 0.5), g.gen_index(s, axis=3)))
    g.build()
    random = np.random.default_rng(1)
    shapes = {x: [1, 2, 7, 3], w: [1, 1, 3, 8], k: [1, 2, 6, 8]}
    arrays = {tensor: np.float32(random.normal(size=dims)) for tensor, dims in shapes.items()}
    found = np.zeros((1, 2, 7, 8), np.float32)
    g.execute(arrays | {o: found}, override_uids=[x.uid, k.uid], override_shapes=[shapes[x], shapes[k]])
    s = 0.5 * ((arrays[x] @ arrays[w]) @ arrays[k].mT) + np.arange(6)
    weights = np.exp(s) / np.exp(s).sum(-1, keepdims=True)
    np.testing.assert_allclose(found, weights @ arrays[k], rtol=1e-4, atol=1e-5)


def test_overridden_shapes_that_do_not_fit() -> None:
    g = attention(score_mod=lambda g, s: g.mul(s, 0.5))
    g.build()
    q, k, v, o = g.plan.slots
    arrays = {slot.uid: np.zeros((1, 2, 8, 8), "f4") for slot in (q, k, v, o)}
    with pytest.raises(weft.BadParameterError, match=re.escape("k [1,2,6,8], v [1,2,5,8]")):
        g.execute(arrays, override_uids=[k.uid], override_shapes=[[1, 2, 6, 8]])


def test_a_graph_shows_the_operands_of_the_modifier() -> None:
    g = weft.Graph(device="cpu", io_data_type="f32")
    q, t = g.tensor([1, 2, 4, 8], name="q"), g.tensor([1, 2, 1, 4], name="relative")
    g.sdpa(q, q, q, score_mod=lambda g, s: g.add(s, t))
    assert "relative" in g.build().plot()


@pytest.mark.parametrize(
    ("score_mod", "sentence"),
    [
        (lambda g, s: None, "score_mod returned None. Return the result of its last operation."),
        (
            lambda g, s: g.reduction(s, "ADD").set_dim([1, 2, 4, 1]),
            "can be modified only by pointwise operations",
        ),
        (lambda g, s: g.add(s, g.tensor([1, 2, 3, 5])), "do not broadcast"),
        (lambda g, s: g.tensor([1, 2, 4, 5]), "graph has no operations"),
        (
            lambda g, s: (g.neg(s), g.tensor([1, 2, 4, 5]))[1],
            "no operation of the sub-graph has a tensor of that uid",
        ),
    ],
)
def test_refusals(score_mod: Any, sentence: str) -> None:
    with pytest.raises(weft.WeftError, match=re.escape(sentence)):
        attention(score_mod=score_mod).build()


def test_refusals_backward() -> None:
    g = weft.Graph(device="cpu", io_data_type="f32")
    q, stats = g.tensor([1, 2, 4, 8]), g.tensor([1, 2, 4, 1])
    with pytest.raises(weft.WeftError, match=r"score_mod is missing\. Give the one of the forward pass"):
        g.sdpa_backward(q, q, q, q, q, stats, score_mod_bprop=lambda g, s: s)
    g.sdpa_backward(q, q, q, q, q, stats, score_mod=lambda g, s: g.relu_backward(s, s))
    with pytest.raises(weft.WeftError, match="contains mode RELU_BWD, whose own derivative is not known"):
        g.build()
