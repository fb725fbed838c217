"""Attention."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from weft import buffers
from weft.jax.calls import call
from weft.jax.functions import Arrays, Function, Wanted
from weft.jax.graph_builder import Form, GraphBuilder, Operator, is_double
from weft.jax.operators import arguments
from weft.jax.sharding import Labels
from weft.tensor import Tensor


class _Options(NamedTuple):
    """The operations on the scores."""

    scale: float
    is_causal: bool
    has_bias: bool
    has_bias_gradient: bool


# ---- Graphs: arrays are [batch, sequence, heads, features], statistics [batch, heads, sequence] -----------


def _turned(shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Returns dims and strides with the heads before the sequence."""
    steps = buffers.packed_strides(shape)
    order = (0, 2, 1, 3)
    return [shape[i] for i in order], [steps[i] for i in order]


def _read(gb: GraphBuilder, i: int) -> Tensor:
    return gb.read(i, *_turned(gb.arguments[i].shape))


def _scores(gb: GraphBuilder, i: int, config: _Options) -> dict[str, Any]:
    """Returns the options that attention and its gradient share; argument i is the bias, if there is one."""
    bias = gb.read(i) if config.has_bias else None
    return {"attn_scale": gb.number(config.scale), "bias": bias, "use_causal_mask": config.is_causal}


def _build(gb: GraphBuilder, config: _Options, is_training: bool) -> None:
    """Arguments: q, k, v, then the bias."""
    (batch, length, heads, _), type_ = gb.arguments[0]
    form = Form((batch, length, heads, gb.arguments[2].shape[3]), type_)
    q, k, v = (_read(gb, i) for i in range(3))
    o, statistics = gb.graph.sdpa(q, k, v, **_scores(gb, 3, config), generate_stats=is_training)
    gb.write(o, form, *_turned(form.shape))
    if is_training:
        wide = np.dtype(np.float64 if is_double(gb.arguments) else np.float32)
        gb.write(statistics, Form((batch, heads, length), wide), [batch, heads, length, 1])


def _build_backward(gb: GraphBuilder, config: _Options) -> None:
    """Arguments: q, k, v, o, the gradient of o, statistics, then the bias."""
    ends: Any = [_read(gb, i) for i in range(5)]
    ends.append(gb.read(5, [*gb.arguments[5].shape, 1]))
    options = _scores(gb, 6, config)
    if config.has_bias_gradient:
        options["dBias"] = gb.graph.tensor(gb.arguments[6].shape, data_type=gb.arguments[6].dtype)
    results = gb.graph.sdpa_backward(*ends, **options)
    for i, result in enumerate(results):
        gb.write(result, gb.arguments[i], *_turned(gb.arguments[i].shape))
    if config.has_bias_gradient:
        gb.write(options["dBias"], gb.arguments[6])


# One operator for each kind of bias: either the bias has the batch's extent and is a row argument, as is its
# gradient, or one bias serves the whole batch and its gradient is a sum.
_SCORES = (jax.lax.dot_general_p, {"dimension_numbers": (((3,), (3,)), ((0, 2), (0, 2)))})
_forward = {
    has_rows: Operator("attention", _build, range(3 + has_rows), stands_for=_SCORES)
    for has_rows in (False, True)
}
_backward = {
    has_rows: Operator("attention_backward", _build_backward, range(6 + has_rows)) for has_rows in _forward
}
_backward_summed = Operator("attention_backward", _build_backward)


# ---- Functions ---------------------------------------------------------------------------------------------


class _Scores(NamedTuple):
    """The options of attention."""

    scale: float
    is_causal: bool
    has_bias: bool = False
    """Whether a bias was given, which may have a gradient; a mask has none."""


class _Attention(Function):
    """Attention. Arrays: q, k, v, bias, mask; `check` merges the last two into a bias of four dimensions."""

    def check(self, options: _Scores, *arrays: Any) -> tuple[_Scores, Arrays]:
        q, k, v, bias, mask = arrays
        q, k, v, bias = map(arguments.to_floating, (q, k, v, bias))
        arguments.check_floating(self.name, q=q, k=k, v=v, bias=bias)
        if any(each.ndim != 4 for each in (q, k, v)):
            raise arguments.refuse(
                self.name, "q, k or v has the wrong number of dimensions",
                "[batch, sequence, heads, features]", ", ".join(map(arguments.formatted, (q, k, v))),
                "Reshape the arrays.",
            )  # fmt: skip
        batch, length, heads, features = q.shape
        _, keys, groups, _ = k.shape
        fix = f"q is {arguments.formatted(q)}, [batch, queries, heads, features]."
        arguments.check_shape(self.name, "k", k, (batch, keys, groups, features), fix)
        fix = f"k is {arguments.formatted(k)}."
        arguments.check_shape(self.name, "v", v, (batch, keys, groups, v.shape[3]), fix)
        if heads and (not groups or heads % groups):
            raise arguments.refuse(
                self.name, "the heads of q and k do not fit", "heads of q that are a multiple of those of k",
                f"{heads} and {groups}", "Give k and v as many heads as q, or a divisor of them.",
            )  # fmt: skip
        if mask is not None and mask.dtype != np.bool_:
            raise arguments.refuse(
                self.name, "the type of mask is wrong", "bool, True where a query sees a key", mask.dtype,
                "Give an additive mask as bias, or mask != 0.",
            )  # fmt: skip
        scores = (batch, heads, length, keys)
        _check_scores(self.name, "bias", bias, scores)
        _check_scores(self.name, "mask", mask, scores)
        options = options._replace(has_bias=bias is not None)
        return options, (q, k, v, _merged(q, k, bias, mask))

    def labels(self, options: _Scores, *arrays: Any) -> Labels:
        rows = ["batch", None, "heads", None]
        bias = None if arrays[3] is None else ["batch", "heads", None, None]
        return Labels([rows, rows, rows, bias], rows)

    def local(self, options: _Scores, *arrays: Any) -> Any:
        return self.apply(options, *arrays)

    def forward(self, config: _Scores, is_training: bool, *arrays: Any) -> tuple[Any, Arrays]:
        q, *_, bias = arrays
        options = _Options(config.scale, config.is_causal, bias is not None, False)
        operator = _forward[_has_rows(q, bias)]
        o, *statistics = call(
            operator, *(x for x in arrays if x is not None), attributes=(options, is_training)
        )
        return o, (o, *statistics) if is_training else ()

    def backward(self, config: _Scores, wanted: Wanted, arrays: Arrays, saved: Arrays, dy: Any) -> list[Any]:
        q, k, v, bias = arrays
        options = _Options(config.scale, config.is_causal, bias is not None, wanted[3] and config.has_bias)
        has_rows = _has_rows(q, bias)
        operator = _backward_summed if options.has_bias_gradient and not has_rows else _backward[has_rows]
        o, statistics = saved
        given = [q, k, v, o, dy, statistics, *([] if bias is None else [bias])]
        dq, dk, dv, *dbias = call(operator, *given, attributes=(options,))
        if bias is None:
            return [dq, dk, dv, None]
        return [dq, dk, dv, dbias[0] if dbias else jnp.zeros_like(bias)]

    def plain(self, config: _Scores, *arrays: Any) -> Any:
        q, k, v, bias = arrays
        wide = arguments.wide(q.dtype)
        heads = q.shape[2] // max(k.shape[2], 1)
        k, v = (jnp.repeat(x.astype(wide), heads, axis=2) for x in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q.astype(wide), k) * config.scale
        scores = scores if bias is None else scores + arguments.like(bias, scores)
        if config.is_causal:
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        peak = jax.lax.stop_gradient(scores.max(-1, keepdims=True, initial=-jnp.inf))
        weights = jnp.exp(scores - jnp.where(jnp.isneginf(peak), 0, peak))
        sums = weights.sum(-1, keepdims=True)  # 0 for a query that sees no key
        weights = weights / jnp.where(sums == 0, 1, sums)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v).astype(q.dtype)


def _check_scores(where: str, name: str, x: Any, scores: tuple[int, ...]) -> None:
    """Refuses a bias or mask that has neither all four dimensions nor only the last two: the first of three
    dimensions could be the batch or the heads."""
    is_good = x is None or (
        x.ndim in (2, 4) and all(m in (1, n) for m, n in zip(x.shape, scores[4 - x.ndim :], strict=True))
    )
    if not is_good:
        raise arguments.refuse(
            where, f"the shape of {name} does not fit",
            f"{list(scores)} ([batch, heads, queries, keys], each of which may be 1) or {list(scores[2:])}",
            str(list(x.shape)), f"Give {name} a dimension for each of these, as in {name}[:, None].",
        )  # fmt: skip


def _merged(q: Any, k: Any, bias: Any, mask: Any) -> Any:
    """Merges bias and mask into one array of four dimensions, the last of which is the keys; None without
    both."""
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


_attention = _Attention("attention")


def attention(
    q: Any,
    k: Any,
    v: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: Any = None,
    is_causal: bool = False,
) -> Any:
    """softmax(scale q k^T + bias) v, as jax.nn.dot_product_attention.

    Args:
        q: queries, [batch, queries, heads, features].
        k: keys, [batch, keys, key heads, features]; the heads are a multiple of the key heads.
        v: values, [batch, keys, key heads, value features].
        bias: added to the scores, [batch, heads, queries, keys], each of which may be 1, or [queries, keys];
            optional.
        mask: booleans, True where a query sees a key, shaped like bias; optional. A query that sees no key
            gets 0.
        scale: a number, by default 1 / sqrt(features). An array, which may be learned, is multiplied into q.
        is_causal: query i sees keys 0 to i.
    Raises:
        BadParameterError: a shape or type does not fit.

    >>> import jax.numpy as jnp, weft.jax
    >>> q = k = v = jnp.ones((1, 2, 4, 8))
    >>> weft.jax.attention(q, k, v, is_causal=True).shape
    (1, 2, 4, 8)
    """
    if isinstance(scale, jax.Array):
        q, scale = jnp.asarray(q) * scale.astype(jnp.asarray(q).dtype), 1.0
    if scale is None:
        shape = jnp.shape(q)
        scale = 1 / math.sqrt(shape[-1]) if shape and shape[-1] else 1.0
    factor = arguments.number("attention", "scale", scale)
    return _attention(_Scores(factor, bool(is_causal)), q, k, v, bias, mask)
