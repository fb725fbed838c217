"""Functions that add to a graph those torch operators that weft.torch.operators does not define: pointwise
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
from weft.torch.operators.batch_norm import build_without_running
from weft.torch.operators.experts import GROUPED_MM_OF_ENDS
from weft.torch.ops import OPERATORS
from weft.torch.plans import BuildFunction, GraphBuilder

aten = torch.ops.aten

DIMENSIONS = 8
"""The maximum rank of a tensor."""

OWN = {getattr(torch.ops.weft, name).default: each for name, each in OPERATORS.items()}
OWN |= {each.twin: each for each in OPERATORS.values() if each.twin is not None}
OWN |= {aten._grouped_mm.default: GROUPED_MM_OF_ENDS}
"""Weft's operators, by their own overloads and by equivalent torch overloads."""

BUILDERS: dict[Any, BuildFunction] = {overload: each.build for overload, each in OWN.items()}
"""The function that adds each torch operator to a graph, by overload."""


def _builds(*targets: Any) -> Callable[[BuildFunction], BuildFunction]:
    def add(build: BuildFunction) -> BuildFunction:
        BUILDERS.update(dict.fromkeys(targets, build))
        return build

    return add


# ---- Pointwise ----


def _apply(gb: Any, method: str, *values: Any) -> None:
    """Adds a pointwise operation with torch's broadcasting rules."""
    dims = gb.space(values)
    gb.write(0, getattr(gb.graph, method)(*(gb.operand(each, dims) for each in values)), dims)


def _unary(method: str) -> BuildFunction:
    return lambda gb, x, *_: _apply(gb, method, x)


def _binary(method: str) -> BuildFunction:
    return lambda gb, x, y, *_: _apply(gb, method, x, y)


_UNARY = {
    "abs": aten.abs, "ceil": aten.ceil, "cos": aten.cos, "erf": aten.erf, "exp": aten.exp,
    "floor": aten.floor, "log": aten.log, "logical_not": aten.logical_not, "neg": aten.neg,
    "reciprocal": aten.reciprocal,
    "relu": aten.relu, "rsqrt": aten.rsqrt, "sigmoid": aten.sigmoid, "sin": aten.sin, "sqrt": aten.sqrt,
    "swish": aten.silu, "tan": aten.tan, "tanh": aten.tanh,
}  # fmt: skip
for _method, _packet in _UNARY.items():
    BUILDERS[_packet.default] = _unary(_method)

_BINARY = {
    "mul": aten.mul, "cmp_eq": aten.eq, "cmp_ge": aten.ge, "cmp_gt": aten.gt, "cmp_le": aten.le,
    "cmp_lt": aten.lt, "cmp_neq": aten.ne,
}  # fmt: skip
for _method, _packet in _BINARY.items():
    BUILDERS[_packet.Tensor] = BUILDERS[_packet.Scalar] = _binary(_method)
BUILDERS |= {aten.maximum.default: _binary("max"), aten.minimum.default: _binary("min")}
BUILDERS |= {aten.div.Tensor: _binary("div"), aten.div.Scalar: _binary("div")}
BUILDERS |= {aten.pow.Tensor_Scalar: _binary("pow"), aten.pow.Tensor_Tensor: _binary("pow")}
BUILDERS |= {aten.logical_and.default: _binary("logical_and"), aten.logical_or.default: _binary("logical_or")}
BUILDERS |= {aten.silu_backward.default: _binary("swish_backward")}


def _sum(method: str) -> BuildFunction:
    def build(gb: Any, x: Any, y: Any, alpha: float = 1) -> None:
        dims = gb.space([x, y])
        second = gb.operand(y, dims)
        if alpha != 1:
            second = gb.graph.mul(second, gb.number(float(alpha)))
        gb.write(0, getattr(gb.graph, method)(gb.operand(x, dims), second), dims)

    return build


BUILDERS |= {aten.add.Tensor: _sum("add"), aten.add.Scalar: _sum("add")}
BUILDERS |= {aten.sub.Tensor: _sum("sub"), aten.sub.Scalar: _sum("sub")}


@_builds(aten.gelu.default)
def _gelu(gb: GraphBuilder, x: Any, approximate: str = "none") -> None:
    _apply(gb, "gelu" if approximate == "none" else "gelu_approx_tanh", x)


@_builds(aten.gelu_backward.default)
def _gelu_backward(gb: GraphBuilder, dy: Any, x: Any, approximate: str = "none") -> None:
    _apply(gb, "gelu_backward" if approximate == "none" else "gelu_approx_tanh_backward", dy, x)


def _apply_sloped(gb: Any, method: str, slope: float, *values: Any) -> None:
    dims = gb.space(values)
    gb.write(0, getattr(gb.graph, method)(*(gb.operand(each, dims) for each in values), slope), dims)


@_builds(aten.leaky_relu.default)
def _leaky_relu(gb: Any, x: Any, slope: float = 0.01) -> None:
    _apply_sloped(gb, "leaky_relu", float(slope), x)


@_builds(aten.leaky_relu_backward.default)
def _leaky_relu_backward(gb: Any, dy: Any, x: Any, slope: float, is_result: bool) -> None:
    """is_result: x is the output of the forward pass, which has the sign of the input if the slope is not
    negative."""
    if is_result and slope < 0:
        raise NotSupportedError("leaky_relu_backward: a negative slope with self_is_result.")
    _apply_sloped(gb, "leaky_relu_backward", float(slope), dy, x)


@_builds(aten.threshold_backward.default)
def _threshold_backward(gb: GraphBuilder, dy: Any, y: Any, threshold: float) -> None:
    if threshold:
        raise NotSupportedError("threshold_backward: a threshold other than 0.")
    _apply(gb, "relu_backward", dy, y)


@_builds(aten.tanh_backward.default)
def _tanh_backward(gb: Any, dy: Any, y: Any) -> None:
    g, dims = gb.graph, gb.space([dy, y])
    loss, result = gb.operand(dy, dims), gb.operand(y, dims)
    gb.write(0, g.mul(loss, g.sub(gb.number(1.0), g.mul(result, result))), dims)


@_builds(aten.sigmoid_backward.default)
def _sigmoid_backward(gb: Any, dy: Any, y: Any) -> None:
    g, dims = gb.graph, gb.space([dy, y])
    loss, result = gb.operand(dy, dims), gb.operand(y, dims)
    gb.write(0, g.mul(loss, g.mul(result, g.sub(gb.number(1.0), result))), dims)


@_builds(aten.where.self)
def _where(gb: GraphBuilder, condition: Any, x: Any, y: Any) -> None:
    _apply(gb, "binary_select", x, y, condition)


@_builds(aten._to_copy.default)
def _to_copy(gb: Any, x: Any, *_: Any) -> None:
    if widens(x.dtype, gb.outputs[0].dtype):
        gb.widen(gb.outputs[0], x)
    else:
        _apply(gb, "identity", x)


def widens(before: torch.dtype, after: torch.dtype) -> bool:
    """True if a conversion between floating-point types widens: it keeps every bit and adds some."""
    return bool(before.is_floating_point and after.is_floating_point and before.itemsize < after.itemsize)


# ---- Softmax of rows that may be fully masked ----


@_builds(aten._safe_softmax.default)
def _safe_softmax(gb: GraphBuilder, x: Any, dim: int, _: Any = None) -> None:
    """A row of -inf gives zeros. The graph's own softmax has the same rule."""
    gb.write(0, gb.graph.softmax(gb.read(x), axis=dim % max(x.ndim, 1)))


# ---- Views ----


def _reshape(gb: Any, x: Any, *_: Any) -> None:
    gb.define_reshaped(gb.outputs[0], x)


VIEWS = [
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.alias.default, aten.detach.default,
]  # fmt: skip
BUILDERS |= dict.fromkeys((*VIEWS, aten.clone.default), _reshape)


def _permuted(gb: Any, x: Any, order: Sequence[int]) -> None:
    gb.permute(gb.outputs[0], x, [i % x.ndim for i in order])


@_builds(aten.permute.default)
def _permute(gb: GraphBuilder, x: Any, order: Sequence[int]) -> None:
    _permuted(gb, x, order)


@_builds(aten.t.default)
def _t(gb: GraphBuilder, x: Any) -> None:
    _permuted(gb, x, range(x.ndim - 1, -1, -1))


@_builds(aten.transpose.int)
def _transpose(gb: GraphBuilder, x: Any, i: int, j: int) -> None:
    order = list(range(x.ndim))
    order[i], order[j] = order[j], order[i]
    _permuted(gb, x, order)


@_builds(aten.expand.default)
def _expand(gb: Any, x: Any, *_: Any) -> None:
    shape = list(gb.outputs[0].shape) or [1]
    gb.write(0, gb.graph.identity(gb.operand(x, shape)), shape)


@_builds(aten.repeat.default)
def _repeat(gb: Any, x: Any, times: Sequence[int]) -> None:
    """Broadcasts a dimension: one of extent 1 directly, a larger one by a new dimension before it."""
    pairs = list(zip(times, [*[1] * (len(times) - x.ndim), *x.shape], strict=True))
    parts = [([1, n], [k, n]) if k > 1 and n > 1 else ([n], [k * n]) for k, n in pairs]
    before, after = ([n for part in parts for n in part[i]] for i in (0, 1))
    if len(after) > DIMENSIONS:
        raise NotSupportedError(
            f"repeat: needs {len(after)} dimensions, at most {DIMENSIONS} are supported. Leave it to torch."
        )
    spread = gb.graph.identity(gb.read(x, before)).set_dim(after)
    joined = gb.graph.reshape(spread, reshape_mode=reshape_mode.LOGICAL)
    gb.write(0, joined, [k * n for k, n in pairs])


def _part(gb: GraphBuilder, i: int, x: Any, dim: int, start: int, count: int) -> None:
    parts = [slice(None)] * x.ndim
    parts[dim % x.ndim] = slice(start, start + count)
    shape = [count if j == dim % x.ndim else n for j, n in enumerate(x.shape)]
    gb.write(i, gb.graph.slice(gb.read(x), parts), shape)


@_builds(aten.slice.Tensor)
def _slice(gb: GraphBuilder, x: Any, dim: int = 0, start: Any = None, _: Any = None, step: int = 1) -> None:
    if step != 1:
        raise NotSupportedError("slice: a step other than 1.")
    first = 0 if start is None else start if start >= 0 else max(start + x.shape[dim], 0)
    _part(gb, 0, x, dim, min(first, x.shape[dim]), gb.outputs[0].shape[dim])


@_builds(aten.split.Tensor, aten.split_with_sizes.default)
def _split(gb: GraphBuilder, x: Any, _: Any, dim: int = 0) -> None:
    start = 0
    for i, each in enumerate(gb.outputs):
        _part(gb, i, x, dim, start, each.shape[dim])
        start += each.shape[dim]


@_builds(aten.select.int)
def _select(gb: GraphBuilder, x: Any, dim: int, at: int) -> None:
    _part(gb, 0, x, dim, at % x.shape[dim], 1)


@_builds(aten.unbind.int)
def _unbind(gb: GraphBuilder, x: Any, dim: int = 0) -> None:
    for i in range(x.shape[dim]):
        _part(gb, i, x, dim, i, 1)


@_builds(aten.stack.default)
def _stack(gb: GraphBuilder, parts: Sequence[Any], dim: int = 0) -> None:
    shape, at = list(parts[0].shape), dim % (parts[0].ndim + 1)
    shape.insert(at, 1)
    joined = gb.graph.concatenate([gb.read(each, shape) for each in parts], at)
    gb.write(0, joined, list(gb.outputs[0].shape))


@_builds(aten.cat.default)
def _cat(gb: Any, parts: Sequence[Any], dim: int = 0) -> None:
    """Skips parts without elements. torch allows an empty vector next to parts of a higher rank."""
    full = [each for each in parts if each.numel()]
    if len(full) > 1:
        gb.write(0, gb.graph.concatenate([gb.read(each) for each in full], dim % full[0].ndim))
    elif full:
        gb.define_reshaped(gb.outputs[0], full[0])


@_builds(operator.getitem)
def _getitem(_: GraphBuilder, __: Any, ___: int) -> None:
    """Adds nothing: the element is already known as a result of its operator."""


# ---- Reductions ----


def _reduce(mode: str) -> BuildFunction:
    def build(gb: Any, x: Any, dims: Any = None, *_: Any) -> None:
        if x.ndim == 0:
            gb.define_reshaped(gb.outputs[0], x)
            return
        over = [i % x.ndim for i in ([dims] if isinstance(dims, int) else dims or range(x.ndim))]
        reduced: Tensor = gb.graph.reduction(gb.read(gb.exact(x)), mode, dims=over)
        gb.write(0, reduced, [1 if i in over else n for i, n in enumerate(x.shape)])

    return build


BUILDERS |= dict.fromkeys((aten.sum.default, aten.sum.dim_IntList), _reduce("ADD"))
BUILDERS |= dict.fromkeys((aten.mean.default, aten.mean.dim), _reduce("AVG"))
BUILDERS |= {aten.amax.default: _reduce("MAX"), aten.amin.default: _reduce("MIN")}


# ---- Batch norm in functional graphs ----

BUILDERS[aten._native_batch_norm_legit_functional.default] = OPERATORS["batch_norm"].build
BUILDERS[aten._native_batch_norm_legit.no_stats] = build_without_running


@_builds(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_inference(gb: GraphBuilder, *given: Any) -> None:
    OPERATORS["batch_norm"].build(gb, *given[:5], False, *given[5:])


# ---- Attention operators of each device ----


def _attend(
    gb: GraphBuilder, q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: Any
) -> None:
    """The statistics have the shape [batch, heads, queries]. Some operators append a dimension of 1, some pad
    the queries with infinities to a multiple of 32, and some return no statistics."""
    results = gb.outputs
    statistics = results[1].squeeze(-1) if results[1].ndim == 4 else results[1]
    used = statistics[:, :, : q.shape[2]]
    gb.outputs = [results[0], used]
    attend(gb, q, k, v, mask, dropout, causal, scale, None, bool(statistics.numel()))
    gb.outputs = results
    if statistics.shape[2] > q.shape[2]:
        dims = [*used.shape[:2], statistics.shape[2] - q.shape[2]]
        beyond = gb.graph.identity(gb.number(math.inf)).set_dim(dims).set_data_type(used.dtype)
        gb.write(1, gb.graph.concatenate([gb.read(used), beyond], 2), [*statistics.shape])
    elif results[1] is not used and statistics.numel():
        gb.write(1, gb.read(used), [*used.shape])


def _attend_backward(gb: Any, *ends: Any) -> None:
    do, q, k, v, o, lse, *options = ends
    shown = lse.squeeze(-1) if lse.ndim == 4 else lse
    if shown.shape[2] > q.shape[2]:
        shown = shown[:, :, : q.shape[2]]
        gb.define_part(shown, lse)
    elif shown is not lse:
        gb.define_reshaped(shown, lse)
    attend_backward(gb, do, q, k, v, o, shown, *options)


_FLASH, _CUDNN = aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_cudnn_attention
_EFFICIENT = aten._scaled_dot_product_efficient_attention
BLANK = {_FLASH.default, _CUDNN.default, _EFFICIENT.default}
"""Operators with results that are unused without dropout: seeds, lengths and masks."""


@_builds(_FLASH.default)
def _flash(
    gb: GraphBuilder, q: Any, k: Any, v: Any, dropout: float, causal: bool, _: Any, scale: Any
) -> None:
    _attend(gb, q, k, v, None, dropout, causal, scale)


@_builds(_CUDNN.default)
def _cudnn(
    gb: GraphBuilder,
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    _: bool,
    dropout: float,
    causal: bool,
    __: bool,
    scale: Any,
) -> None:
    _attend(gb, q, k, v, bias, dropout, causal, scale)


@_builds(_EFFICIENT.default)
def _efficient(
    gb: GraphBuilder, q: Any, k: Any, v: Any, bias: Any, _: bool, dropout: float, causal: bool, scale: Any
) -> None:
    _attend(gb, q, k, v, bias, dropout, causal, scale)


@_builds(aten._scaled_dot_product_flash_attention_backward.default)
def _flash_backward(
    gb: GraphBuilder,
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
    _attend_backward(gb, do, q, k, v, o, lse, None, dropout, causal, scale)


@_builds(aten._scaled_dot_product_cudnn_attention_backward.default)
def _cudnn_backward(
    gb: GraphBuilder,
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
    _attend_backward(gb, do, q, k, v, o, lse, bias, dropout, causal, scale)


@_builds(aten._scaled_dot_product_efficient_attention_backward.default)
def _efficient_backward(
    gb: GraphBuilder,
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
    results, gb.outputs = gb.outputs, gb.outputs[:3]
    _attend_backward(gb, do, q, k, v, o, lse, bias, dropout, causal, scale)
    gb.outputs = results


_CPU = aten._scaled_dot_product_flash_attention_for_cpu


@_builds(_CPU.default)
def _on_cpu(
    gb: GraphBuilder, q: Any, k: Any, v: Any, dropout: float, causal: bool, mask: Any, scale: Any
) -> None:
    attend(gb, q, k, v, mask, dropout, causal, scale)


@_builds(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _on_cpu_backward(
    gb: GraphBuilder,
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
    attend_backward(gb, do, q, k, v, o, lse, mask, dropout, causal, scale)
