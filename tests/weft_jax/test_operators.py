"""The operators of weft.jax beside jax.numpy, in double precision: results, gradients, vmap of both; narrow
types within what rounding allows."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import weft
import weft.jax as weft_jax
from jax_checks import close, gradients, normal

NHWC = ("NHWC", "HWIO", "NHWC")
NCHW = ("NCHW", "OIHW", "NCHW")

# ---- What is expected --------------------------------------------------------------------------------------


def gelu(x):
    return jax.nn.gelu(x, approximate=False)


def linear(x, w, bias=None, residual=None, act=lambda x: x):
    y = act(x @ w + (0 if bias is None else bias))
    return y if residual is None else y + residual


def layer_norm(x, scale=None, bias=None, epsilon=1e-6):
    mean = x.mean(-1, keepdims=True)
    y = (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + epsilon)
    y = y if scale is None else y * scale
    return y if bias is None else y + bias


def rms_norm(x, scale=None, epsilon=1e-6):
    y = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    return y if scale is None else y * scale


def attention(q, k, v, bias=0.0, mask=True, scale=None, is_causal=False):
    """JAX's own takes the softmax in float."""
    k, v = (jnp.repeat(each, q.shape[2] // each.shape[2], 2) for each in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool)) if is_causal else True
    scores = jnp.where(mask & jnp.asarray(seen), scores + bias, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def conv(x, w, bias=None, act=lambda x: x, layouts=NHWC, strides=1, padding="SAME", dilation=1):
    rank, channels = x.ndim - 2, layouts[2].index("C")
    strides, dilation = ((v,) * rank if isinstance(v, int) else v for v in (strides, dilation))
    padding = ((padding, padding),) * rank if isinstance(padding, int) else padding
    groups = x.shape[layouts[0].index("C")] // w.shape[layouts[1].index("I")]
    y = jax.lax.conv_general_dilated(
        x, w, strides, padding, rhs_dilation=dilation, dimension_numbers=layouts, feature_group_count=groups
    )
    shape = [-1 if i == channels else 1 for i in range(x.ndim)]
    return act(y if bias is None else y + bias.reshape(shape))


# ---- Cases -------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """An operator, what it should be, and shapes of its arguments."""

    mine: Any
    theirs: Any
    shapes: list[tuple[int, ...]]
    options: dict[str, Any] = MappingProxyType({})


def with_residual(x, w, bias, residual, **options):
    return weft_jax.linear(x, w, bias, residual=residual, **options)


CASES = {
    "matmul": Case(weft_jax.matmul, jnp.matmul, [(3, 5, 4), (4, 6)]),
    "matmul_batch": Case(weft_jax.matmul, jnp.matmul, [(2, 1, 5, 4), (3, 4, 2)]),
    "linear": Case(weft_jax.linear, linear, [(5, 4), (4, 6)]),
    "linear_relu": Case(weft_jax.linear, linear, [(2, 3, 4), (4, 5), (5,)], {"activation": "relu"}),
    "linear_gelu_residual": Case(
        with_residual, linear, [(3, 4), (4, 5), (5,), (3, 5)], {"activation": "gelu"}
    ),
    "linear_gelu_tanh": Case(weft_jax.linear, linear, [(3, 4), (4, 5), (5,)], {"activation": "gelu_tanh"}),
    "linear_silu": Case(weft_jax.linear, linear, [(3, 4), (4, 5)], {"activation": "silu"}),
    "layer_norm": Case(weft_jax.layer_norm, layer_norm, [(3, 2, 8), (8,), (8,)], {"epsilon": 1e-3}),
    "layer_norm_scale": Case(weft_jax.layer_norm, layer_norm, [(3, 8), (8,)]),
    "layer_norm_plain": Case(weft_jax.layer_norm, layer_norm, [(3, 8)]),
    "rms_norm": Case(weft_jax.rms_norm, rms_norm, [(3, 2, 8), (8,)]),
    "rms_norm_plain": Case(weft_jax.rms_norm, rms_norm, [(3, 8)]),
    "softmax": Case(weft_jax.softmax, jax.nn.softmax, [(3, 4, 5)], {"axis": 1}),
    "softmax_first": Case(weft_jax.softmax, jax.nn.softmax, [(3, 4)], {"axis": 0}),
    "log_softmax": Case(weft_jax.log_softmax, jax.nn.log_softmax, [(3, 7)]),
    "attention": Case(weft_jax.attention, attention, [(2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6)]),
    "attention_causal": Case(
        weft_jax.attention, attention, [(2, 5, 2, 8)] * 3, {"is_causal": True, "scale": 0.3}
    ),
    "attention_bias": Case(weft_jax.attention, attention, [*[(2, 5, 2, 8)] * 3, (1, 2, 5, 5)]),
    "attention_own_bias": Case(weft_jax.attention, attention, [*[(2, 5, 2, 8)] * 3, (2, 1, 5, 5)]),
    "conv": Case(
        weft_jax.conv, conv, [(2, 7, 6, 4), (3, 2, 4, 6), (6,)], {"strides": 2, "activation": "relu"}
    ),
    "conv_groups": Case(weft_jax.conv, conv, [(2, 7, 6, 4), (3, 2, 2, 6)], {"padding": "VALID"}),
    "conv_nchw": Case(
        weft_jax.conv, conv, [(2, 4, 7, 6), (6, 4, 3, 3), (6,)],
        {"strides": (2, 1), "padding": ((1, 0), (2, 1)), "dilation": (1, 2), "dimension_numbers": NCHW,
         "activation": "gelu_tanh"},
    ),
    "conv_line": Case(
        weft_jax.conv, conv, [(2, 9, 3), (4, 3, 5)], {"dimension_numbers": ("NWC", "WIO", "NWC")}
    ),
    "conv_volume": Case(
        weft_jax.conv, conv, [(1, 4, 5, 4, 2), (2, 2, 2, 2, 3), (3,)],
        {"padding": 1, "dimension_numbers": ("NDHWC", "DHWIO", "NDHWC")},
    ),
}  # fmt: skip
ACTIVATIONS = {"relu": jax.nn.relu, "gelu": gelu, "gelu_tanh": jax.nn.gelu, "silu": jax.nn.silu}


def functions(case: Case) -> tuple[Any, Any]:
    """Weft's and the other, of arrays alone."""
    renamed = dict(case.options)
    if "activation" in renamed:
        renamed["act"] = ACTIVATIONS[renamed.pop("activation")]
    if "dimension_numbers" in renamed:
        renamed["layouts"] = renamed.pop("dimension_numbers")
    return lambda *a: case.mine(*a, **case.options), lambda *a: case.theirs(*a, **renamed)


def arguments(case: Case, dtype: Any = np.float64) -> list[Any]:
    return [normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(case.shapes)]


@cache
def compiled(name: str, is_mine: bool) -> Any:
    """The result of a case, and the gradients of its sum weighted by the first argument; the other's on the
    CPU."""
    function = functions(CASES[name])[not is_mine]

    def run(weights: Any, *given: Any) -> Any:
        result, backward = jax.vjp(function, *given)
        return result, *backward(weights)

    if is_mine:
        return run
    compiled_run = jax.jit(run)
    return lambda *a: compiled_run(*jax.device_put(a, jax.devices("cpu")[0]))


def weights_of(name: str, dtype: Any = np.float64, batch: tuple[int, ...] = ()) -> Any:
    result = jax.eval_shape(functions(CASES[name])[1], *arguments(CASES[name]))
    return normal(*batch, *result.shape, dtype=dtype, seed=9)


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str) -> None:
    given = weights_of(name), *arguments(CASES[name])
    close(jax.jit(compiled(name, True))(*given), compiled(name, False)(*given))


MAPPED = ["matmul_batch", "linear_relu", "linear_gelu_residual", "layer_norm", "layer_norm_plain", "rms_norm"]
MAPPED += ["softmax", "attention", "attention_bias", "attention_own_bias", "conv", "conv_groups"]


@pytest.mark.parametrize("name", MAPPED)
def test_vmap(name: str) -> None:
    """Of the first argument, whose rows are folded into the batch, and of the last, which may be weights."""
    for at in {0, len(CASES[name].shapes) - 1}:
        given = [weights_of(name, batch=(2,)), *arguments(CASES[name])]
        given[1 + at] = normal(2, *CASES[name].shapes[at])
        axes = [0, *(0 if i == at else None for i in range(len(given) - 1))]
        made = jax.jit(jax.vmap(compiled(name, True), axes))(*given)
        each = [[x if a is None else x[i] for x, a in zip(given, axes, strict=True)] for i in (0, 1)]
        wanted = zip(*(compiled(name, False)(*one) for one in each), strict=True)
        close(made, tuple(map(jnp.stack, wanted)))


NARROW = [("linear_gelu_residual", "float32"), ("conv", "float32"), ("attention_causal", "float32")]
NARROW += [("linear_gelu_residual", "float16"), ("conv", "float16"), ("attention_causal", "float16")]
NARROW += [(name, "bfloat16") for name in ("linear_gelu_residual", "layer_norm", "softmax", "conv")]
NARROW += [(name, "bfloat16") for name in ("rms_norm", "attention_causal")]


@pytest.mark.parametrize(("name", "dtype"), NARROW)
def test_narrow_types(name: str, dtype: str) -> None:
    """Results have the type of the arguments, and are those of double precision, rounded."""
    given = [weights_of(name, jnp.dtype(dtype)), *arguments(CASES[name], jnp.dtype(dtype))]
    exact = compiled(name, False)(*(each.astype(np.float64) for each in given))
    close(jax.jit(compiled(name, True))(*given), jax.tree.map(lambda each: each.astype(dtype), exact), 4)


def test_a_mask_with_and_without_a_bias() -> None:
    q, k, v = (normal(2, 5, 2, 8, seed=i) for i in range(3))
    mask = jnp.asarray(np.random.default_rng(0).random((2, 1, 5, 5)) < 0.7).at[..., 0].set(True)
    bias = normal(2, 1, 1, 5)

    def both(function: Any) -> Any:
        masked = gradients(lambda q, k, v: function(q, k, v, mask=mask), q, k, v)
        return masked, gradients(lambda q, k, v, b: function(q, k, v, b, mask), q, k, v, bias)

    close(jax.jit(both, static_argnums=0)(weft_jax.attention), jax.jit(both, static_argnums=0)(attention))


def test_a_query_that_sees_no_key() -> None:
    q, k, v = (normal(1, 2, 1, 8, seed=i) for i in range(3))
    mask = jnp.array([[True, True], [False, False]])
    made, grads = jax.value_and_grad(lambda q: weft_jax.attention(q, k, v, mask=mask).sum())(q)
    close((made, grads[:, 1]), (attention(q[:, :1], k, v).sum(), jnp.zeros((1, 1, 8))))


REFUSALS = {
    "linear: activation is 'mish'. Give None, or one of 'relu', 'gelu', 'gelu_tanh', 'silu', 'sigmoid', "
    "'tanh'.":
        lambda: weft_jax.linear(normal(2, 2), normal(2, 2), activation="mish"),
    "matmul: the operands have 1 and 2 dimensions. Give matrices, [.., m, k] and [.., k, n].":
        lambda: weft_jax.matmul(normal(2), normal(2, 2)),
    "linear: x and w have 2 and 3 dimensions. Give [.., k] and [k, n].":
        lambda: weft_jax.linear(normal(2, 2), normal(2, 2, 2)),
    "conv: x and w have 4 and 3 dimensions, the layouts are ('NHWC', 'HWIO', 'NHWC'). Give as many "
    "dimensions as the layouts have letters, from 3 to 5.":
        lambda: weft_jax.conv(normal(1, 2, 2, 2), normal(2, 2, 2)),
    "conv: the layouts are ('HWCN', 'HWIO', 'NHWC'). Let N be first in those of x and the result.":
        lambda: weft_jax.conv(
            normal(1, 2, 2, 2), normal(2, 2, 2, 2), dimension_numbers=("HWCN", "HWIO", "NHWC")
        ),
    "attention: q, k and v have 3, 4 and 4 dimensions. Give [batch, sequence, heads, features].":
        lambda: weft_jax.attention(normal(1, 2, 2), normal(1, 2, 2, 2), normal(1, 2, 2, 2)),
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSALS)
def test_refusals(sentence: str) -> None:
    with pytest.raises(weft.BadParameterError) as refused:
        REFUSALS[sentence]()
    assert str(refused.value) == sentence


def test_no_second_derivatives() -> None:
    first = jax.grad(lambda x: weft_jax.softmax(x)[0, 0])
    with pytest.raises(weft.NotSupportedError, match=r"^weft.softmax_backward: it has no gradient"):
        jax.grad(lambda x: first(x).sum())(normal(2, 3))
