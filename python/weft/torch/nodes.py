"""How to draw those torch operators of compiled graphs that weft.torch.operators does not define: pointwise
operations, products, views and reductions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.enums import reshape_mode
from weft.errors import NotSupportedError
from weft.tensor import Tensor
from weft.torch.operators.attention import attend, attend_backward
from weft.torch.operators.batch_norm import draw_without_running
from weft.torch.operators.experts import GROUPED_MM_OF_ENDS
from weft.torch.ops import OPERATORS
from weft.torch.plans import Draw, Drawing

aten = torch.ops.aten

DIMENSIONS = 8
"""The maximum rank of a tensor."""

OWN = {getattr(torch.ops.weft, name).default: each for name, each in OPERATORS.items()}
OWN |= {each.twin: each for each in OPERATORS.values() if each.twin is not None}
OWN |= {aten._grouped_mm.default: GROUPED_MM_OF_ENDS}
"""Weft's operators, by their own overloads and by equivalent torch overloads."""

DRAWN: dict[Any, Draw] = {overload: each.draw for overload, each in OWN.items()}
"""The function that draws each torch operator, by overload."""


def _draws(*targets: Any) -> Callable[[Draw], Draw]:
    def add(draw: Draw) -> Draw:
        DRAWN.update(dict.fromkeys(targets, draw))
        return draw

    return add


# ---- Pointwise ----


def _apply(d: Any, method: str, *values: Any) -> None:
    """Draws a pointwise operation with torch's broadcasting rules."""
    dims = d.space(values)
    d.write(0, getattr(d.graph, method)(*(d.operand(each, dims) for each in values)), dims)


def _unary(method: str) -> Draw:
    return lambda d, x, *_: _apply(d, method, x)


def _binary(method: str) -> Draw:
    return lambda d, x, y, *_: _apply(d, method, x, y)


_UNARY = {
    "abs": aten.abs, "ceil": aten.ceil, "cos": aten.cos, "erf": aten.erf, "exp": aten.exp,
    "floor": aten.floor, "log": aten.log, "logical_not": aten.logical_not, "neg": aten.neg,
    "reciprocal": aten.reciprocal,
    "relu": aten.relu, "rsqrt": aten.rsqrt, "sigmoid": aten.sigmoid, "sin": aten.sin, "sqrt": aten.sqrt,
    "swish": aten.silu, "tan": aten.tan, "tanh": aten.tanh,
}  # fmt: skip
for _method, _packet in _UNARY.items():
    DRAWN[_packet.default] = _unary(_method)

_BINARY = {
    "mul": aten.mul, "cmp_eq": aten.eq, "cmp_ge": aten.ge, "cmp_gt": aten.gt, "cmp_le": aten.le,
    "cmp_lt": aten.lt, "cmp_neq": aten.ne,
}  # fmt: skip
for _method, _packet in _BINARY.items():
    DRAWN[_packet.Tensor] = DRAWN[_packet.Scalar] = _binary(_method)
DRAWN |= {aten.maximum.default: _binary("max"), aten.minimum.default: _binary("min")}
DRAWN |= {aten.div.Tensor: _binary("div"), aten.div.Scalar: _binary("div")}
DRAWN |= {aten.pow.Tensor_Scalar: _binary("pow"), aten.pow.Tensor_Tensor: _binary("pow")}
DRAWN |= {aten.logical_and.default: _binary("logical_and"), aten.logical_or.default: _binary("logical_or")}
DRAWN |= {aten.silu_backward.default: _binary("swish_backward")}


def _sum(method: str) -> Draw:
    def draw(d: Any, x: Any, y: Any, alpha: float = 1) -> None:
        dims = d.space([x, y])
        second = d.operand(y, dims)
        if alpha != 1:
            second = d.graph.mul(second, d.number(float(alpha)))
        d.write(0, getattr(d.graph, method)(d.operand(x, dims), second), dims)

    return draw


DRAWN |= {aten.add.Tensor: _sum("add"), aten.add.Scalar: _sum("add")}
DRAWN |= {aten.sub.Tensor: _sum("sub"), aten.sub.Scalar: _sum("sub")}


@_draws(aten.gelu.default)
def _gelu(d: Drawing, x: Any, approximate: str = "none") -> None:
    _apply(d, "gelu" if approximate == "none" else "gelu_approx_tanh", x)


@_draws(aten.gelu_backward.default)
def _gelu_backward(d: Drawing, dy: Any, x: Any, approximate: str = "none") -> None:
    _apply(d, "gelu_backward" if approximate == "none" else "gelu_approx_tanh_backward", dy, x)


def _apply_sloped(d: Any, method: str, slope: float, *values: Any) -> None:
    dims = d.space(values)
    d.write(0, getattr(d.graph, method)(*(d.operand(each, dims) for each in values), slope), dims)


@_draws(aten.leaky_relu.default)
def _leaky_relu(d: Any, x: Any, slope: float = 0.01) -> None:
    _apply_sloped(d, "leaky_relu", float(slope), x)


@_draws(aten.leaky_relu_backward.default)
def _leaky_relu_backward(d: Any, dy: Any, x: Any, slope: float, is_result: bool) -> None:
    """is_result: x is the output of the forward pass, which has the sign of the input if the slope is not
    negative."""
    if is_result and slope < 0:
        raise NotSupportedError("leaky_relu_backward: a negative slope with self_is_result.")
    _apply_sloped(d, "leaky_relu_backward", float(slope), dy, x)


@_draws(aten.threshold_backward.default)
def _threshold_backward(d: Drawing, dy: Any, y: Any, threshold: float) -> None:
    if threshold:
        raise NotSupportedError("threshold_backward: a threshold other than 0.")
    _apply(d, "relu_backward", dy, y)


@_draws(aten.tanh_backward.default)
def _tanh_backward(d: Any, dy: Any, y: Any) -> None:
    g, dims = d.graph, d.space([dy, y])
    loss, result = d.operand(dy, dims), d.operand(y, dims)
    d.write(0, g.mul(loss, g.sub(d.number(1.0), g.mul(result, result))), dims)


@_draws(aten.sigmoid_backward.default)
def _sigmoid_backward(d: Any, dy: Any, y: Any) -> None:
    g, dims = d.graph, d.space([dy, y])
    loss, result = d.operand(dy, dims), d.operand(y, dims)
    d.write(0, g.mul(loss, g.mul(result, g.sub(d.number(1.0), result))), dims)


@_draws(aten.where.self)
def _where(d: Drawing, condition: Any, x: Any, y: Any) -> None:
    _apply(d, "binary_select", x, y, condition)


@_draws(aten._to_copy.default)
def _to_copy(d: Any, x: Any, *_: Any) -> None:
    if widens(x.dtype, d.outputs[0].dtype):
        d.widen(d.outputs[0], x)
    else:
        _apply(d, "identity", x)


def widens(before: torch.dtype, after: torch.dtype) -> bool:
    """True if a conversion between floating-point types widens: it keeps every bit and adds some."""
    return bool(before.is_floating_point and after.is_floating_point and before.itemsize < after.itemsize)


# ---- Softmax of rows that may be fully masked ----


@_draws(aten._safe_softmax.default)
def _safe_softmax(d: Drawing, x: Any, dim: int, _: Any = None) -> None:
    """A row of -inf gives zeros. The graph's own softmax has the same rule."""
    d.write(0, d.graph.softmax(d.read(x), axis=dim % max(x.ndim, 1)))


# ---- Views ----


def _reshape(d: Any, x: Any, *_: Any) -> None:
    d.show(d.outputs[0], x)


VIEWS = [
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.alias.default, aten.detach.default,
]  # fmt: skip
DRAWN |= dict.fromkeys((*VIEWS, aten.clone.default), _reshape)


def _permuted(d: Any, x: Any, order: Sequence[int]) -> None:
    d.permute(d.outputs[0], x, [i % x.ndim for i in order])


@_draws(aten.permute.default)
def _permute(d: Drawing, x: Any, order: Sequence[int]) -> None:
    _permuted(d, x, order)


@_draws(aten.t.default)
def _t(d: Drawing, x: Any) -> None:
    _permuted(d, x, range(x.ndim - 1, -1, -1))


@_draws(aten.transpose.int)
def _transpose(d: Drawing, x: Any, i: int, j: int) -> None:
    order = list(range(x.ndim))
    order[i], order[j] = order[j], order[i]
    _permuted(d, x, order)


@_draws(aten.expand.default)
def _expand(d: Any, x: Any, *_: Any) -> None:
    shape = list(d.outputs[0].shape) or [1]
    d.write(0, d.graph.identity(d.operand(x, shape)), shape)


@_draws(aten.repeat.default)
def _repeat(d: Any, x: Any, times: Sequence[int]) -> None:
    """Broadcasts a dimension: one of extent 1 directly, a larger one by a new dimension before it."""
    pairs = list(zip(times, [*[1] * (len(times) - x.ndim), *x.shape], strict=True))
    parts = [([1, n], [k, n]) if k > 1 and n > 1 else ([n], [k * n]) for k, n in pairs]
    before, after = ([n for part in parts for n in part[i]] for i in (0, 1))
    if len(after) > DIMENSIONS:
        raise NotSupportedError(
            f"repeat: needs {len(after)} dimensions, at most {DIMENSIONS} are supported. Leave it to torch."
        )
    spread = d.graph.identity(d.read(x, before)).set_dim(after)
    joined = d.graph.reshape(spread, reshape_mode=reshape_mode.LOGICAL)
    d.write(0, joined, [k * n for k, n in pairs])


def _part(d: Drawing, i: int, x: Any, dim: int, start: int, count: int) -> None:
    parts = [slice(None)] * x.ndim
    parts[dim % x.ndim] = slice(start, start + count)
    shape = [count if j == dim % x.ndim else n for j, n in enumerate(x.shape)]
    d.write(i, d.graph.slice(d.read(x), parts), shape)


@_draws(aten.slice.Tensor)
def _slice(d: Drawing, x: Any, dim: int = 0, start: Any = None, _: Any = None, step: int = 1) -> None:
    if step != 1:
        raise NotSupportedError("slice: a step other than 1.")
    first = 0 if start is None else start if start >= 0 else max(start + x.shape[dim], 0)
    _part(d, 0, x, dim, min(first, x.shape[dim]), d.outputs[0].shape[dim])


@_draws(aten.split.Tensor, aten.split_with_sizes.default)
def _split(d: Drawing, x: Any, _: Any, dim: int = 0) -> None:
    start = 0
    for i, each in enumerate(d.outputs):
        _part(d, i, x, dim, start, each.shape[dim])
        start += each.shape[dim]


@_draws(aten.select.int)
def _select(d: Drawing, x: Any, dim: int, at: int) -> None:
    _part(d, 0, x, dim, at % x.shape[dim], 1)


@_draws(aten.unbind.int)
def _unbind(d: Drawing, x: Any, dim: int = 0) -> None:
    for i in range(x.shape[dim]):
        _part(d, i, x, dim, i, 1)


@_draws(aten.stack.default)
def _stack(d: Drawing, parts: Sequence[Any], dim: int = 0) -> None:
    shape, at = list(parts[0].shape), dim % (parts[0].ndim + 1)
    shape.insert(at, 1)
    joined = d.graph.concatenate([d.read(each, shape) for each in parts], at)
    d.write(0, joined, list(d.outputs[0].shape))


@_draws(aten.cat.default)
def _cat(d: Any, parts: Sequence[Any], dim: int = 0) -> None:
    """Skips parts without elements. torch allows an empty vector next to parts of a higher rank."""
    full = [each for each in parts if each.numel()]
    if len(full) > 1:
        d.write(0, d.graph.concatenate([d.read(each) for each in full], dim % full[0].ndim))
    elif full:
        d.show(d.outputs[0], full[0])


@_draws(operator.getitem)
def _getitem(_: Drawing, __: Any, ___: int) -> None:
    """Draws nothing: the element is already known as a result of its operator."""


# ---- Reductions ----


def _reduce(mode: str) -> Draw:
    def draw(d: Any, x: Any, dims: Any = None, *_: Any) -> None:
        if x.ndim == 0:
            d.show(d.outputs[0], x)
            return
        over = [i % x.ndim for i in ([dims] if isinstance(dims, int) else dims or range(x.ndim))]
        reduced: Tensor = d.graph.reduction(d.read(d.exact(x)), mode, dims=over)
        d.write(0, reduced, [1 if i in over else n for i, n in enumerate(x.shape)])

    return draw


DRAWN |= dict.fromkeys((aten.sum.default, aten.sum.dim_IntList), _reduce("ADD"))
DRAWN |= dict.fromkeys((aten.mean.default, aten.mean.dim), _reduce("AVG"))
DRAWN |= {aten.amax.default: _reduce("MAX"), aten.amin.default: _reduce("MIN")}


# ---- Batch norm in functional graphs ----

DRAWN[aten._native_batch_norm_legit_functional.default] = OPERATORS["batch_norm"].draw
DRAWN[aten._native_batch_norm_legit.no_stats] = draw_without_running


@_draws(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_inference(d: Drawing, *given: Any) -> None:
    OPERATORS["batch_norm"].draw(d, *given[:5], False, *given[5:])


# ---- Attention operators of each device ----


def _attend(d: Drawing, q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: Any) -> None:
    """The statistics have the shape [batch, heads, queries]. Some operators append a dimension of 1, some pad
    the queries with infinities to a multiple of 32, and some return no statistics."""
    results = d.outputs
    statistics = results[1].squeeze(-1) if results[1].ndim == 4 else results[1]
    used = statistics[:, :, : q.shape[2]]
    d.outputs = [results[0], used]
    attend(d, q, k, v, mask, dropout, causal, scale, None, bool(statistics.numel()))
    d.outputs = results
    if statistics.shape[2] > q.shape[2]:
        dims = [*used.shape[:2], statistics.shape[2] - q.shape[2]]
        beyond = d.graph.identity(d.number(math.inf)).set_dim(dims).set_data_type(used.dtype)
        d.write(1, d.graph.concatenate([d.read(used), beyond], 2), [*statistics.shape])
    elif results[1] is not used and statistics.numel():
        d.write(1, d.read(used), [*used.shape])


def _attend_backward(d: Any, *ends: Any) -> None:
    do, q, k, v, o, lse, *options = ends
    shown = lse.squeeze(-1) if lse.ndim == 4 else lse
    if shown.shape[2] > q.shape[2]:
        shown = shown[:, :, : q.shape[2]]
        d.show_part(shown, lse)
    elif shown is not lse:
        d.show(shown, lse)
    attend_backward(d, do, q, k, v, o, shown, *options)


_FLASH, _CUDNN = aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_cudnn_attention
_EFFICIENT = aten._scaled_dot_product_efficient_attention
BLANK = {_FLASH.default, _CUDNN.default, _EFFICIENT.default}
"""Operators with results that are unused without dropout: seeds, lengths and masks."""


@_draws(_FLASH.default)
def _flash(d: Drawing, q: Any, k: Any, v: Any, dropout: float, causal: bool, _: Any, scale: Any) -> None:
    _attend(d, q, k, v, None, dropout, causal, scale)


@_draws(_CUDNN.default)
def _cudnn(
    d: Drawing, q: Any, k: Any, v: Any, bias: Any, _: bool, dropout: float, causal: bool, __: bool, scale: Any
) -> None:
    _attend(d, q, k, v, bias, dropout, causal, scale)


@_draws(_EFFICIENT.default)
def _efficient(
    d: Drawing, q: Any, k: Any, v: Any, bias: Any, _: bool, dropout: float, causal: bool, scale: Any
) -> None:
    _attend(d, q, k, v, bias, dropout, causal, scale)


@_draws(aten._scaled_dot_product_flash_attention_backward.default)
def _flash_backward(
    d: Drawing,
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    _: Any,
    __: Any,
    ___: Any,
    ____: Any,
    dropout: float,
    causal: bool,
    seed: Any,
    offset: Any,
    scale: Any,
) -> None:
    _attend_backward(d, do, q, k, v, o, lse, None, dropout, causal, scale)


@_draws(aten._scaled_dot_product_cudnn_attention_backward.default)
def _cudnn_backward(
    d: Drawing,
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    seed: Any,
    offset: Any,
    bias: Any,
    _: Any,
    __: Any,
    ___: Any,
    ____: Any,
    dropout: float,
    causal: bool,
    scale: Any,
) -> None:
    _attend_backward(d, do, q, k, v, o, lse, bias, dropout, causal, scale)


@_draws(aten._scaled_dot_product_efficient_attention_backward.default)
def _efficient_backward(
    d: Drawing,
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    o: Any,
    lse: Any,
    seed: Any,
    offset: Any,
    dropout: float,
    wanted: Sequence[bool],
    causal: bool,
    scale: Any,
) -> None:
    if bias is not None and wanted[3]:
        raise NotSupportedError("sdpa_backward: the gradient of a bias.")
    results, d.outputs = d.outputs, d.outputs[:3]
    _attend_backward(d, do, q, k, v, o, lse, bias, dropout, causal, scale)
    d.outputs = results


_CPU = aten._scaled_dot_product_flash_attention_for_cpu


@_draws(_CPU.default)
def _on_cpu(d: Drawing, q: Any, k: Any, v: Any, dropout: float, causal: bool, mask: Any, scale: Any) -> None:
    attend(d, q, k, v, mask, dropout, causal, scale)


@_draws(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _on_cpu_backward(
    d: Drawing,
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    dropout: float,
    causal: bool,
    mask: Any,
    scale: Any,
) -> None:
    attend_backward(d, do, q, k, v, o, lse, mask, dropout, causal, scale)
