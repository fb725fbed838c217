"""Cases of the operators of weft.jax: what each should compute, in jax.numpy, with shapes and options."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import weft.jax as weft_jax
from jax_checks import normal

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
EDGE = ["matmul_batch", "linear_gelu_residual", "layer_norm", "rms_norm", "softmax", "log_softmax"]
EDGE += ["attention_own_bias", "conv", "conv_groups"]
"""At least one case of every operator, for tests that take long."""
ACTIVATIONS = {"relu": jax.nn.relu, "gelu": gelu, "gelu_tanh": jax.nn.gelu, "silu": jax.nn.silu}


def functions(case: Case) -> tuple[Any, Any]:
    """Returns Weft's function and the other one, as functions of arrays only."""
    renamed = dict(case.options)
    if "activation" in renamed:
        renamed["act"] = ACTIVATIONS[renamed.pop("activation")]
    if "dimension_numbers" in renamed:
        renamed["layouts"] = renamed.pop("dimension_numbers")
    return lambda *a: case.mine(*a, **case.options), lambda *a: case.theirs(*a, **renamed)


def arguments(case: Case, dtype: Any = np.float64) -> list[Any]:
    return [normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(case.shapes)]
