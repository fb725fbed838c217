"""Refusals by weft.jax's operators: the message names the argument, the rule and the value, in the user's
layout. Shapes that do not fit never reach a kernel."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import weft
import weft.jax as weft_jax
from jax_cases import CASES, arguments, attention, functions
from jax_checks import TOLERANCES, close, gradients, normal
from weft.jax.graph_builder import Form, GraphBuilder

X, K, Q = np.ones((1, 5, 5, 3)), np.ones((3, 3, 3, 4)), np.random.default_rng(0).normal(size=(2, 3, 2, 4))

MESSAGES = {
    "linear: activation is unknown: expected None or one of 'relu', 'gelu', 'gelu_tanh', 'silu', "
    "'sigmoid', 'tanh', got 'mish'. Apply other functions to the result.":
        lambda: weft_jax.linear(normal(2, 2), normal(2, 2), activation="mish"),
    "matmul: an operand is not a matrix: expected a: [.., m, k] and b: [.., k, n], got a: float64[2] and "
    "b: float64[2,2]. Reshape or transpose one of them.":
        lambda: weft_jax.matmul(normal(2), normal(2, 2)),
    "matmul: the inner dimensions differ: expected a: [.., m, k] and b: [.., k, n], got a: float64[2,3] "
    "and b: float64[2,2]. Reshape or transpose one of them.":
        lambda: weft_jax.matmul(normal(2, 3), normal(2, 2)),
    "matmul: the batch dimensions cannot be broadcast: expected a: [.., m, k] and b: [.., k, n], got a: "
    "float64[2,2,2] and b: float64[3,2,2]. Reshape or transpose one of them.":
        lambda: weft_jax.matmul(normal(2, 2, 2), normal(3, 2, 2)),
    "linear: the shapes of x and w do not fit: expected x: [.., k] and w: [k, n], got x: float64[2,2] "
    "and w: float64[2,2,2]. The last dimension of x is the first one of w.":
        lambda: weft_jax.linear(normal(2, 2), normal(2, 2, 2)),
    "linear: the shape of bias does not fit: expected [6], got [2, 3]. Give one number for each column "
    "of w, float64[4,6].":
        lambda: weft_jax.linear(normal(3, 4), normal(4, 6), normal(2, 3)),
    "linear: the shape of residual does not fit: expected [3, 6], got [2, 6]. Give an array of the shape "
    "of the result.":
        lambda: weft_jax.linear(normal(3, 4), normal(4, 6), residual=normal(2, 6)),
    "layer_norm: the shape of scale does not fit: expected [4], got [1]. Give one number for each "
    "element of the last dimension of x, float64[3,4].":
        lambda: weft_jax.layer_norm(normal(3, 4), jnp.ones(1)),
    "layer_norm: the shape of bias does not fit: expected [4], got [3, 4]. Give one number for each "
    "element of the last dimension of x, float64[3,4].":
        lambda: weft_jax.layer_norm(normal(3, 4), None, normal(3, 4)),
    "rms_norm: the shape of scale does not fit: expected [4], got [5]. Give one number for each element "
    "of the last dimension of x, float64[3,4].":
        lambda: weft_jax.rms_norm(normal(3, 4), jnp.ones(5)),
    "rms_norm: x has no dimensions: expected [.., n], got []. Give x at least one dimension.":
        lambda: weft_jax.rms_norm(jnp.float64(1)),
    "rms_norm: epsilon is not a constant: expected a number, got None. Give a number that is known when "
    "the function is traced, or make it a static argument of jax.jit.":
        lambda: weft_jax.rms_norm(normal(3, 4), epsilon=None),
    "softmax: the type of x is not supported: expected a floating-point type, got complex128. Convert "
    "the array, or give its real and imaginary parts.":
        lambda: weft_jax.softmax(normal(3) + 1j),
    "softmax: axis is wrong: expected an integer, got (0, 1). Give one dimension; reshape x to join several.":
        lambda: weft_jax.softmax(normal(3, 4), axis=(0, 1)),
    "log_softmax: axis is out of range: expected -2 to 1, got 2. Give a dimension of x, float64[3,4].":
        lambda: weft_jax.log_softmax(normal(3, 4), axis=2),
    "conv: x and w have the wrong numbers of dimensions: expected 3 to 5 for both, as NHWC and HWIO, got "
    "4 and 3. Reshape the arrays; a batch of one image has N = 1.":
        lambda: weft_jax.conv(normal(1, 2, 2, 2), normal(2, 2, 2)),
    "conv: dimension_numbers is wrong: expected layouts of x, w and the result as ('NHWC', 'HWIO', "
    "'NHWC'), in any order of letters but with N first, got ('HWCN', 'HWIO', 'NHWC'). Use each of the "
    "letters N, C, O, I, H, W once where it belongs.":
        lambda: weft_jax.conv(X, K, dimension_numbers=("HWCN", "HWIO", "NHWC")),
    "conv: dimension_numbers is wrong: expected layouts of x, w and the result as ('NHWC', 'HWIO', "
    "'NHWC'), in any order of letters but with N first, got ('NHWC', 'XYIO', 'NHWC'). Use each of the "
    "letters N, C, O, I, H, W once where it belongs.":
        lambda: weft_jax.conv(X, K, dimension_numbers=("NHWC", "XYIO", "NHWC")),
    "conv: padding is wrong: expected 'SAME', 'SAME_LOWER', 'VALID', an integer of at least 0, or a pair "
    "(low, high) of such for each of the 2 spatial dimensions, got (1, 1). Give for example padding=((1, "
    "1), (1, 1)).":
        lambda: weft_jax.conv(X, K, padding=(1, 1)),
    "conv: padding is wrong: expected 'SAME', 'SAME_LOWER', 'VALID', an integer of at least 0, or a pair "
    "(low, high) of such for each of the 2 spatial dimensions, got 'FULL'. Give for example padding=((1, "
    "1), (1, 1)).":
        lambda: weft_jax.conv(X, K, padding="FULL"),
    "conv: strides has the wrong length: expected 2 integers, got (1, 1, 1). Give one integer, or one "
    "for each of the 2 spatial dimensions.":
        lambda: weft_jax.conv(X, K, strides=(1, 1, 1)),
    "conv: dilation is wrong: expected an integer of at least 1, got 0. Give one integer, or one for "
    "each of the 2 spatial dimensions.":
        lambda: weft_jax.conv(X, K, dilation=0),
    "conv: the channels of x and w do not fit: expected C to be a multiple of I, and O of the number of "
    "groups, C / I, got C = 3 (x is NHWC, float64[1,5,5,3]), I = 4 and O = 6 (w is HWIO, "
    "float64[3,3,4,6]). Check dimension_numbers and the shapes.":
        lambda: weft_jax.conv(X, normal(3, 3, 4, 6)),
    "conv: the shape of bias does not fit: expected [4], got [1]. Give one number for each of the 4 "
    "filters of w.":
        lambda: weft_jax.conv(X, K, jnp.ones(1)),
    "attention: q, k or v has the wrong number of dimensions: expected [batch, sequence, heads, "
    "features], got float64[1,2,2], float64[1,2,2,2], float64[1,2,2,2]. Reshape the arrays.":
        lambda: weft_jax.attention(normal(1, 2, 2), normal(1, 2, 2, 2), normal(1, 2, 2, 2)),
    "attention: the shape of k does not fit: expected [2, 3, 2, 4], got [2, 3, 2, 5]. q is "
    "float64[2,3,2,4], [batch, queries, heads, features].":
        lambda: weft_jax.attention(Q, normal(2, 3, 2, 5), Q),
    "attention: the shape of v does not fit: expected [2, 3, 2, 4], got [2, 4, 2, 4]. k is "
    "float64[2,3,2,4].":
        lambda: weft_jax.attention(Q, Q, normal(2, 4, 2, 4)),
    "attention: the heads of q and k do not fit: expected heads of q that are a multiple of those of k, "
    "got 2 and 3. Give k and v as many heads as q, or a divisor of them.":
        lambda: weft_jax.attention(Q, normal(2, 3, 3, 4), normal(2, 3, 3, 4)),
    "attention: the type of mask is wrong: expected bool, True where a query sees a key, got float64. "
    "Give an additive mask as bias, or mask != 0.":
        lambda: weft_jax.attention(Q, Q, Q, mask=jnp.zeros((3, 3))),
    "attention: the type of mask is wrong: expected bool, True where a query sees a key, got int64. Give "
    "an additive mask as bias, or mask != 0.":
        lambda: weft_jax.attention(Q, Q, Q, mask=jnp.ones((3, 3), int)),
    "attention: the shape of mask does not fit: expected [2, 2, 3, 3] ([batch, heads, queries, keys], "
    "each of which may be 1) or [3, 3], got [2, 3, 3]. Give mask a dimension for each of these, as in "
    "mask[:, None].":
        lambda: weft_jax.attention(Q, Q, Q, mask=jnp.ones((2, 3, 3), bool)),
    "attention: the shape of bias does not fit: expected [2, 2, 3, 3] ([batch, heads, queries, keys], "
    "each of which may be 1) or [3, 3], got [2, 2, 3, 4]. Give bias a dimension for each of these, as in "
    "bias[:, None].":
        lambda: weft_jax.attention(Q, Q, Q, normal(2, 2, 3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES)
def test_refusals(message: str) -> None:
    with pytest.raises(weft.BadParameterError) as refused:
        MESSAGES[message]()
    assert str(refused.value) == message


def wrong_shapes() -> list[tuple[str, int, tuple[int, ...]]]:
    """Each case with each of its arguments one longer and one shorter along each dimension."""
    found = []
    for name, case in CASES.items():
        for i, shape in enumerate(case.shapes):
            for axis in range(len(shape)):
                for change in (-1, 1):
                    other = list(shape)
                    other[axis] += change
                    found.append((name, i, tuple(other)))
    return found


@pytest.mark.parametrize("name", CASES)
def test_arrays_of_any_other_shape_are_refused_or_right(name: str) -> None:
    """Arguments that jax.numpy refuses or broadcasts are refused with a message; all others give its
    result."""
    mine, theirs = functions(CASES[name])
    messages: list[str] = []
    for other_name, i, shape in wrong_shapes():
        if other_name != name or 0 in shape:
            continue
        given = arguments(CASES[name])
        given[i] = normal(*shape)
        try:
            got = mine(*given)
        except weft.BadParameterError as error:
            messages.append(str(error))
            continue
        close(got, theirs(*given))
    assert [m for m in messages if not re.fullmatch(r"\w+: .+: expected .+, got .+\. .+\.", m)] == []


def test_a_graph_builder_reads_no_more_than_an_argument_has() -> None:
    builder = GraphBuilder(weft.Graph("norm"), [Form((3,), np.dtype("f8"))])
    with pytest.raises(weft.BadParameterError) as refused:
        builder.read(0, [1, 4])
    assert str(refused.value) == (
        "weft.norm: the shape of argument 0 does not fit: expected [1, 4] (4 elements), got float64[3]. "
        "Check the shapes of the arrays."
    )


@pytest.mark.parametrize("strides", [np.int64(2), [2, 2], np.array([2, 2]), (2, np.int32(2))])
def test_integers_of_any_kind(strides) -> None:
    got = weft_jax.conv(X, K, strides=strides, padding=[[1, 1], [1, 1]])
    close(got, weft_jax.conv(X, K, strides=(2, 2), padding=((1, 1), (1, 1))))


# ---- Types -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "bool"])
@pytest.mark.parametrize(
    "name", ["softmax", "log_softmax", "layer_norm_plain", "rms_norm_plain", "attention"]
)
def test_integers_are_converted_to_floating_point(name: str, dtype: str) -> None:
    mine, theirs = functions(CASES[name])
    given = [(2 * normal(*shape)).astype(dtype) for shape in CASES[name].shapes]
    wide = [jnp.exp(x).dtype for x in given]
    close(mine(*given), theirs(*(x.astype(t) for x, t in zip(given, wide, strict=True))), 1e4)


@pytest.mark.parametrize("name", ["matmul", "linear", "linear_relu", "conv"])
def test_products_of_integers_are_exact(name: str) -> None:
    """Beyond 2^24, where float drops an integer's last bit."""
    if name == "conv" and jax.default_backend() == "gpu":
        pytest.skip("XLA has no convolution of integers on a GPU")
    mine, theirs = functions(CASES[name])
    given = [jnp.full(shape, 4097, jnp.int32) for shape in CASES[name].shapes]
    got, wanted = mine(*given), theirs(*given)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


MIXED = [("float16", "float32"), ("float32", "bfloat16"), ("float64", "float32"), ("bfloat16", "float16")]


@pytest.mark.parametrize(("left", "right"), MIXED)
@pytest.mark.parametrize("dims", [((5, 3), (3, 4)), ((2, 5, 3), (2, 3, 4))])
def test_gradients_have_the_types_of_their_operands(left: str, right: str, dims: Any) -> None:
    a, b = normal(*dims[0], dtype=left), normal(*dims[1], dtype=right, seed=1)
    narrow = min(left, right, key=lambda t: jnp.finfo(t).bits)
    factor = max(TOLERANCES[t] for t in (left, right)) / TOLERANCES[narrow]
    functions_ = [(weft_jax.matmul, jnp.matmul)]
    if b.ndim == 2:
        functions_.append((weft_jax.linear, jnp.matmul))
    for mine, theirs in functions_:
        assert mine(a, b).dtype == theirs(a, b).dtype
        got, wanted = gradients(mine, a, b), gradients(theirs, a, b)
        assert [x.dtype for x in got] == [a.dtype, b.dtype]
        for x, y, dtype in zip(got, wanted, (left, right), strict=True):
            bound = max(TOLERANCES[narrow], TOLERANCES[dtype]) * factor * 4
            np.testing.assert_allclose(np.float64(x), np.float64(y), rtol=bound, atol=bound)


def test_integers_next_to_floats() -> None:
    x, w = jnp.arange(6).reshape(2, 3), normal(3, 4)
    close(weft_jax.linear(x, w), x @ w)


def test_an_additive_mask_is_a_bias() -> None:
    seen = jnp.tril(jnp.ones((3, 3), bool))
    q = jnp.asarray(Q)
    close(weft_jax.attention(q, q, q, jnp.where(seen, 0, -jnp.inf)), attention(q, q, q, is_causal=True))


def test_a_scale_that_is_learned() -> None:
    q = jnp.asarray(Q)

    def slope(function):
        return jax.value_and_grad(lambda s: function(q, q, q, scale=s)[0, 0].sum())(0.3)

    close(slope(weft_jax.attention), slope(attention))
