"""Attention."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from weft import buffers
from weft.errors import BadParameterError
from weft.jax.calls import alike, call
from weft.jax.drawing import Drawing, Form, Operator, is_double
from weft.tensor import Tensor


class _Options(NamedTuple):
    """What is done to the scores."""

    scale: float
    is_causal: bool
    has_bias: bool
    has_bias_gradient: bool


# ---- Drawing: arrays are [batch, sequence, heads, features], statistics [batch, heads, sequence] -----------


def _turned(shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Dims and strides with the heads before the sequence."""
    steps = buffers.packed_strides(shape)
    order = (0, 2, 1, 3)
    return [shape[i] for i in order], [steps[i] for i in order]


def _read(d: Drawing, i: int) -> Tensor:
    return d.read(i, *_turned(d.arguments[i].shape))


def _scores(d: Drawing, i: int, how: _Options) -> dict[str, Any]:
    """What attention and its gradient have in common; argument i is the bias, if there is one."""
    bias = d.read(i) if how.has_bias else None
    return {"attn_scale": d.number(how.scale), "bias": bias, "use_causal_mask": how.is_causal}


def _draw(d: Drawing, how: _Options, is_training: bool) -> None:
    """Arguments: q, k, v, then the bias."""
    (batch, length, heads, _), type_ = d.arguments[0]
    form = Form((batch, length, heads, d.arguments[2].shape[3]), type_)
    q, k, v = (_read(d, i) for i in range(3))
    o, statistics = d.graph.sdpa(q, k, v, **_scores(d, 3, how), generate_stats=is_training)
    d.write(o, form, *_turned(form.shape))
    if is_training:
        wide = np.dtype(np.float64 if is_double(d.arguments) else np.float32)
        d.write(statistics, Form((batch, heads, length), wide), [batch, heads, length, 1])


def _draw_backward(d: Drawing, how: _Options) -> None:
    """Arguments: q, k, v, o, the gradient of o, statistics, then the bias."""
    ends: Any = [_read(d, i) for i in range(5)]
    ends.append(d.read(5, [*d.arguments[5].shape, 1]))
    options = _scores(d, 6, how)
    if how.has_bias_gradient:
        options["dBias"] = d.graph.tensor(d.arguments[6].shape, data_type=d.arguments[6].dtype)
    results = d.graph.sdpa_backward(*ends, **options)
    for i, result in enumerate(results):
        d.write(result, d.arguments[i], *_turned(d.arguments[i].shape))
    if how.has_bias_gradient:
        d.write(options["dBias"], d.arguments[6])


# By whether the bias has rows of data, too: it then has the batch's extent, and is not one for all. Its
# gradient is then rows as well; that of one for all is a sum.
_forward = {has_rows: Operator("attention", _draw, range(3 + has_rows)) for has_rows in (False, True)}
_backward = {
    has_rows: Operator("attention_backward", _draw_backward, range(6 + has_rows)) for has_rows in _forward
}
_backward_summed = Operator("attention_backward", _draw_backward)


# ---- Functions ---------------------------------------------------------------------------------------------


def attention(
    q: Any,
    k: Any,
    v: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
) -> Any:
    """softmax(scale q k^T + bias) v, as jax.nn.dot_product_attention.

    Args:
        q: queries, [batch, queries, heads, features].
        k: keys, [batch, keys, key heads, features]; the heads are a multiple of the key heads.
        v: values, [batch, keys, key heads, value features].
        bias: added to the scores, [batch, heads, queries, keys] or 1s in place of the first three; optional.
        mask: which keys a query sees, of booleans, shaped like bias; optional. A query that sees none gets 0.
        scale: default 1 / sqrt(features).
        is_causal: query i sees keys 0 .. i.

    >>> import jax.numpy as jnp, weft.jax
    >>> q = k = v = jnp.ones((1, 2, 4, 8))
    >>> weft.jax.attention(q, k, v, is_causal=True).shape
    (1, 2, 4, 8)
    """
    q, k, v, bias, mask = alike(q, k, v, bias, mask)
    if any(each.ndim != 4 for each in (q, k, v)):
        raise BadParameterError(
            f"attention: q, k and v have {q.ndim}, {k.ndim} and {v.ndim} dimensions. Give [batch, sequence, "
            "heads, features]."
        )
    shown = _bias(q, k, bias, mask)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    how = _Options(factor, bool(is_causal), shown is not None, bias is not None)
    return _attention(how, q, k, v, shown)


def _bias(q: Any, k: Any, bias: Any, mask: Any) -> Any:
    """Bias and mask as one array of four dimensions, the last of which is the keys; None without both."""
    if bias is None and mask is None:
        return None
    if mask is None:
        shown = bias
    else:
        shown = jnp.where(mask, jnp.asarray(0 if bias is None else bias, q.dtype), -jnp.inf)
    shown = shown.reshape(*[1] * (4 - shown.ndim), *shown.shape)
    return jnp.broadcast_to(shown, (*shown.shape[:3], k.shape[1]))


def _has_rows(q: Any, bias: Any) -> bool:
    return bias is not None and bias.shape[0] == q.shape[0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(how: _Options, q: Any, k: Any, v: Any, bias: Any) -> Any:
    return _call(how, False, q, k, v, bias)[0]


def _call(how: _Options, is_training: bool, q: Any, k: Any, v: Any, bias: Any) -> Any:
    arrays = [q, k, v] if bias is None else [q, k, v, bias]
    operator = _forward[_has_rows(q, bias)]
    return call(operator, *arrays, attributes=(how._replace(has_bias_gradient=False), is_training))


def _keep(how: _Options, q: Any, k: Any, v: Any, bias: Any) -> Any:
    o, statistics = _call(how, True, q, k, v, bias)
    return o, (q, k, v, o, statistics, bias)


def _gradient(how: _Options, kept: Any, do: Any) -> Any:
    q, k, v, o, statistics, bias = kept
    arrays = [q, k, v, o, do, statistics, *([] if bias is None else [bias])]
    has_rows = _has_rows(q, bias)
    operator = _backward_summed if how.has_bias_gradient and not has_rows else _backward[has_rows]
    dq, dk, dv, *dbias = call(operator, *arrays, attributes=(how,))
    if bias is None:
        return dq, dk, dv, None
    return dq, dk, dv, dbias[0] if dbias else jnp.zeros_like(bias)


_attention.defvjp(_keep, _gradient)
