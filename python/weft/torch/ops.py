"""The operators: each has the schema of the torch operator whose name it bears, so that torch itself tells
the shape, layout and type of its results, and a few lines that draw it as a graph of Weft's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.enums import norm_forward_phase, resample_mode
from weft.errors import NotSupportedError
from weft.torch.plans import Draw, Drawing, run

aten = torch.ops.aten


class Operator:
    """One operator: torch.ops.weft.NAME, and what may stand for torch's own."""

    def __init__(self, name: str, twin: Any, places: Sequence[str], draw: Draw) -> None:
        self.name, self.twin, self.draw = name, twin, draw
        self.places = places
        """Where it may stand for torch's own."""
        self._arguments = twin._schema.arguments
        self._named = [each.name for each in self._arguments if each.kwarg_only]
        schema = str(twin._schema)
        self.schema = name + schema[schema.index("(") :].replace("*, ", "")  # gradients go by position

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The results on real tensors; raises WeftError where Weft refuses."""
        if len(arguments) < len(self._arguments):  # torch leaves out what has its default value
            rest = self._arguments[len(arguments) :]
            arguments = (*arguments, *(named.get(each.name, each.default_value) for each in rest))
        results = run(self.name, self.fake, self.draw, arguments)
        return results[0] if len(self.twin._schema.returns) == 1 else tuple(results)

    def fake(self, *arguments: Any, **named: Any) -> Any:
        """The results on fake tensors."""
        plain = len(self._arguments) - len(self._named)
        named |= dict(zip(self._named, arguments[plain:], strict=False))
        return self.twin(*arguments[:plain], **named)


OPERATORS: dict[str, Operator] = {}
"""All operators by name."""


def _operator(
    name: str, twin: Any, places: Sequence[str] = ("cpu", "cuda")
) -> Callable[[Draw], Draw]:
    def add(draw: Draw) -> Draw:
        OPERATORS[name] = Operator(name, twin, places, draw)
        return draw

    return add


# ---- Convolution ----


def _spatial(x: torch.Tensor, values: Sequence[int]) -> list[int]:
    """One number for each spatial dimension; torch also takes one for all."""
    return list(values) * (x.ndim - 2) if len(values) == 1 else list(values)


def _geometry(x: torch.Tensor, stride: Any, padding: Any, dilation: Any) -> dict[str, Any]:
    padding = _spatial(x, padding)
    kinds = {"stride": _spatial(x, stride), "dilation": _spatial(x, dilation)}
    return {**kinds, "pre_padding": padding, "post_padding": padding}


@_operator("conv", aten.convolution.default)
def _conv(
    d: Drawing, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    _: Any, __: int,
) -> None:
    geometry = _geometry(x, stride, padding, dilation)
    if transposed:
        y = d.graph.conv_dgrad(d.read(x), d.read(w), **geometry)
        y.set_dim(tuple(d.outputs[0].shape))
    else:
        y = d.graph.conv_fprop(d.read(x), d.read(w), **geometry)
    if bias is not None:
        y = d.graph.bias(y, d.read(bias, [1, bias.numel(), *[1] * (x.ndim - 2)]))
    d.write(0, y)


@_operator("conv_backward", aten.convolution_backward.default)
def _conv_backward(
    d: Drawing, dy: Any, x: Any, w: Any, _: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    __: Any, ___: int, wanted: Sequence[bool],
) -> None:
    geometry, loss = _geometry(x, stride, padding, dilation), d.read(dy)
    if wanted[0]:
        forward = d.graph.conv_fprop if transposed else d.graph.conv_dgrad
        d.write(0, forward(loss, d.read(w), **geometry))
    if wanted[1]:
        pair = (loss, d.read(x)) if transposed else (d.read(x), loss)
        d.write(1, d.graph.conv_wgrad(*pair, **geometry))
    if wanted[2]:
        summed = [i for i in range(dy.ndim) if i != 1]
        d.write(2, d.graph.reduction(loss, "ADD", dims=summed), [1, dy.shape[1], *[1] * (dy.ndim - 2)])


# ---- Norms and softmax ----


def _rows(name: str, x: torch.Tensor, shape: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Dims of x as rows to normalise, of a row's parameters, and of a statistic for each row."""
    if not x.is_contiguous():
        raise NotSupportedError(f"{name}: the input is not contiguous. Give input.contiguous().")
    length = math.prod(shape)
    return [x.numel() // length, length], [1, length], [x.numel() // length, 1]


@_operator("layer_norm", aten.native_layer_norm.default)
def _layer_norm(d: Drawing, x: Any, shape: Sequence[int], weight: Any, bias: Any, epsilon: float) -> None:
    rows, row, column = _rows("layer_norm", x, shape)
    scale, shift = (None if each is None else d.read(each, row) for each in (weight, bias))
    results = d.graph.layernorm(norm_forward_phase.TRAINING, d.read(x, rows), scale, shift, d.number(epsilon))
    for i, (result, dims) in enumerate(zip(results, (rows, column, column), strict=True)):
        d.write(i, result, dims)


@_operator("layer_norm_backward", aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    d: Drawing, dy: Any, x: Any, shape: Sequence[int], mean: Any, rstd: Any, weight: Any, _: Any,
    wanted: Sequence[bool],
) -> None:
    rows, row, column = _rows("layer_norm_backward", x, shape)
    _rows("layer_norm_backward", dy, shape)
    scale = None if weight is None else d.read(weight, row)
    statistics = d.read(mean, column), d.read(rstd, column)
    results = d.graph.layernorm_backward(d.read(dy, rows), d.read(x, rows), scale, *statistics)
    for i, (result, dims) in enumerate(zip(results, (rows, row, row), strict=True)):
        if wanted[i] and d.outputs[i] is not None:
            d.write(i, result, dims)


def _channels(n: int, c: int, hw: int, groups: int) -> tuple[list[int], list[int], list[int]]:
    return [n, c, hw], [1, c, 1], [n, groups, 1]


@_operator("group_norm", aten.native_group_norm.default)
def _group_norm(
    d: Drawing, x: Any, weight: Any, bias: Any, n: int, c: int, hw: int, groups: int, epsilon: float
) -> None:
    _rows("group_norm", x, [hw])
    whole, row, statistic = _channels(n, c, hw, groups)
    scale, shift = (None if each is None else d.read(each, row) for each in (weight, bias))
    phase, constant = norm_forward_phase.TRAINING, d.number(epsilon)
    results = d.graph.groupnorm(phase, d.read(x, whole), scale, shift, constant, groups)
    for i, (result, dims) in enumerate(zip(results, (whole, statistic, statistic), strict=True)):
        d.write(i, result, dims)


@_operator("group_norm_backward", aten.native_group_norm_backward.default)
def _group_norm_backward(
    d: Drawing, dy: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: int, c: int, hw: int, groups: int,
    wanted: Sequence[bool],
) -> None:
    _rows("group_norm_backward", x, [hw])
    _rows("group_norm_backward", dy, [hw])
    g, each = d.graph, [n, groups, c // groups, hw]
    loss, image = d.read(dy, each), d.read(x, each)
    deviation = d.read(rstd, [n, groups, 1, 1])
    hat = g.mul(g.sub(image, d.read(mean, [n, groups, 1, 1])), deviation)
    if wanted[0]:
        scaled = loss if weight is None else g.mul(loss, d.read(weight, [1, groups, c // groups, 1]))
        mean_loss = g.reduction(scaled, "AVG", dims=[2, 3])
        mean_both = g.reduction(g.mul(scaled, hat), "AVG", dims=[2, 3])
        inner = g.sub(g.sub(scaled, mean_loss), g.mul(hat, mean_both))
        d.write(0, g.mul(inner, deviation), each)
    for i, factor in ((1, g.mul(loss, hat)), (2, loss)):
        if wanted[i] and d.outputs[i] is not None:
            d.write(i, g.reduction(factor, "ADD", dims=[0, 3]), [1, groups, c // groups, 1])


@_operator("rms_norm", aten._fused_rms_norm.default, ())
def _rms_norm(d: Drawing, x: Any, shape: Sequence[int], weight: Any, epsilon: float | None) -> None:
    rows, row, column = _rows("rms_norm", x, shape)
    constant = d.number(torch.finfo(x.dtype).eps if epsilon is None else epsilon)
    scale = None if weight is None else d.read(weight, row)
    y, rstd = d.graph.rmsnorm(norm_forward_phase.TRAINING, d.read(x, rows), scale, None, constant)
    d.write(0, y, rows)
    d.write(1, rstd, column)


@_operator("rms_norm_backward", aten._fused_rms_norm_backward.default, ())
def _rms_norm_backward(
    d: Drawing, dy: Any, x: Any, shape: Sequence[int], rstd: Any, weight: Any, wanted: Sequence[bool]
) -> None:
    rows, row, column = _rows("rms_norm_backward", x, shape)
    _rows("rms_norm_backward", dy, shape)
    scale = None if weight is None else d.read(weight, row)
    results = d.graph.rmsnorm_backward(d.read(dy, rows), d.read(x, rows), scale, d.read(rstd, column), False)
    for i, dims in enumerate((rows, row)):
        if wanted[i] and d.outputs[i] is not None:
            d.write(i, results[i], dims)


@_operator("softmax", aten._softmax.default)
def _softmax(d: Drawing, x: Any, dim: int, _: bool) -> None:
    d.write(0, d.graph.softmax(d.read(x), axis=dim % max(x.ndim, 1)))


@_operator("softmax_backward", aten._softmax_backward_data.default)
def _softmax_backward(d: Drawing, dy: Any, y: Any, dim: int, _: Any) -> None:
    g, loss, weights = d.graph, d.read(dy), d.read(y)
    total = g.reduction(g.mul(loss, weights), "ADD", dims=[dim % max(y.ndim, 1)])
    d.write(0, g.mul(weights, g.sub(loss, total)))


@_operator("log_softmax", aten._log_softmax.default)
def _log_softmax(d: Drawing, x: Any, dim: int, _: bool) -> None:
    g, axis, scores = d.graph, dim % max(x.ndim, 1), d.read(x)
    shifted = g.sub(scores, g.reduction(scores, "MAX", dims=[axis]))
    d.write(0, g.sub(shifted, g.log(g.reduction(g.exp(shifted), "ADD", dims=[axis]))))


@_operator("log_softmax_backward", aten._log_softmax_backward_data.default)
def _log_softmax_backward(d: Drawing, dy: Any, y: Any, dim: int, _: Any) -> None:
    g, loss = d.graph, d.read(dy)
    total = g.reduction(loss, "ADD", dims=[dim % max(y.ndim, 1)])
    d.write(0, g.sub(loss, g.mul(g.exp(d.read(y)), total)))


# ---- Pooling ----


def _pool(x: Any, window: Any, stride: Any, padding: Any, ceil: bool, whole: bool, divisor: Any) -> Any:
    """How Weft says an average pooling."""
    if ceil or divisor is not None or x.ndim != 4:
        raise NotSupportedError("avg_pool: ceil_mode, divisor_override or no batch. Leave them out.")
    mode = "AVGPOOL_INCLUDE_PADDING" if whole else "AVGPOOL_EXCLUDE_PADDING"
    padding = _spatial(x, padding)
    sizes = {"window": _spatial(x, window), "stride": _spatial(x, stride or window)}
    return {**sizes, "pre_padding": padding, "post_padding": padding, "mode": resample_mode[mode]}


@_operator("avg_pool", aten.avg_pool2d.default)
def _avg_pool(d: Drawing, x: Any, *how: Any) -> None:
    d.write(0, d.graph.resample(d.read(x), **_pool(x, *how))[0])


@_operator("avg_pool_backward", aten.avg_pool2d_backward.default)
def _avg_pool_backward(d: Drawing, dy: Any, x: Any, *how: Any) -> None:
    d.write(0, d.graph.resample_backward(d.read(dy), **_pool(x, *how)))


# ---- Attention ----


def _attention(d: Drawing, q: Any, dropout: float, causal: bool, mask: Any, scale: Any) -> dict[str, Any]:
    """What attention and its gradients have in common."""
    if dropout or q.ndim != 4:
        raise NotSupportedError("sdpa: dropout, or q of other than 4 dimensions. Leave it to torch.")
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    bias = None if mask is None else d.read_broadcast(mask, 4)
    return {"attn_scale": d.number(factor), "bias": bias, "use_causal_mask": causal}


def _statistics(value: Any) -> tuple[list[int], list[int]]:
    """Dims and strides of one number for each row of scores."""
    return [*value.shape, 1], [*value.stride(), 1]


@_operator("sdpa", aten._scaled_dot_product_flash_attention_for_cpu.default, ("cpu",))
def _sdpa(
    d: Drawing, q: Any, k: Any, v: Any, dropout: float, causal: bool, mask: Any, scale: Any
) -> None:
    how = _attention(d, q, dropout, causal, mask, scale)
    o, statistics = d.graph.sdpa(d.read(q), d.read(k), d.read(v), generate_stats=True, **how)
    d.write(0, o)
    d.write(1, statistics, *_statistics(d.outputs[1]))


@_operator("sdpa_backward", aten._scaled_dot_product_flash_attention_for_cpu_backward.default, ("cpu",))
def _sdpa_backward(
    d: Drawing, do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, dropout: float, causal: bool, mask: Any,
    scale: Any,
) -> None:
    how = _attention(d, q, dropout, causal, mask, scale)
    ends: Any = [d.read(each) for each in (q, k, v, o, do)]
    ends.append(d.read(lse, *_statistics(lse)))
    for i, result in enumerate(d.graph.sdpa_backward(*ends, **how)):
        d.write(i, result)


# ---- Registration: operators, fakes and gradients ----

_library = torch.library.Library("weft", "DEF")


def _define(operator: Operator) -> None:
    _library.define(operator.schema, tags=[torch.Tag.pt2_compliant_tag])
    for key in ("CPU", "CUDA"):
        _library.impl(operator.name, operator, key)
    torch.library.register_fake(f"weft::{operator.name}", operator.fake, lib=_library)


for _each in OPERATORS.values():
    _define(_each)


def _keep_conv(ctx: Any, inputs: Any, output: Any) -> None:
    x, w, bias, *ctx.attributes = inputs
    ctx.bias_sizes = None if bias is None else [bias.shape[0]]
    ctx.save_for_backward(x, w)


def _grad_conv(ctx: Any, dy: Any) -> Any:
    x, w = ctx.saved_tensors
    wanted = [*ctx.needs_input_grad[:2], ctx.needs_input_grad[2] and ctx.bias_sizes is not None]
    grads = torch.ops.weft.conv_backward(dy, x, w, ctx.bias_sizes, *ctx.attributes, wanted)
    return (*(g if w else None for g, w in zip(grads, wanted, strict=True)), *[None] * 6)


def _keep_layer_norm(ctx: Any, inputs: Any, output: Any) -> None:
    x, ctx.shape, weight, bias, _ = inputs
    ctx.save_for_backward(x, weight, bias, *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _grad_layer_norm(ctx: Any, dy: Any, *_: Any) -> Any:
    x, weight, bias, mean, rstd = ctx.saved_tensors
    wanted = [ctx.needs_input_grad[i] for i in (0, 2, 3)]
    dy, x = dy.contiguous(), x.contiguous()
    grads = torch.ops.weft.layer_norm_backward(dy, x, ctx.shape, mean, rstd, weight, bias, wanted)
    dx, dweight, dbias = (g if w else None for g, w in zip(grads, wanted, strict=True))
    return dx, None, dweight, dbias, None


def _keep_softmax(ctx: Any, inputs: Any, output: Any) -> None:
    x, ctx.dim, _ = inputs
    ctx.dtype = x.dtype
    ctx.save_for_backward(output)


def _grad_softmax(ctx: Any, dy: Any) -> Any:
    return torch.ops.weft.softmax_backward(dy, ctx.saved_tensors[0], ctx.dim, ctx.dtype), None, None


def _keep_group_norm(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, _, *ctx.sizes, _ = inputs
    ctx.save_for_backward(x, weight, *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _grad_group_norm(ctx: Any, dy: Any, *_: Any) -> Any:
    x, weight, mean, rstd = ctx.saved_tensors
    wanted = [*ctx.needs_input_grad[:3]]
    dy, x = dy.contiguous(), x.contiguous()
    grads = torch.ops.weft.group_norm_backward(dy, x, mean, rstd, weight, *ctx.sizes, wanted)
    return (*(g if w else None for g, w in zip(grads, wanted, strict=True)), *[None] * 5)


def _keep_rms_norm(ctx: Any, inputs: Any, output: Any) -> None:
    x, ctx.shape, weight, _ = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _grad_rms_norm(ctx: Any, dy: Any, *_: Any) -> Any:
    x, weight, rstd = ctx.saved_tensors
    wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
    dy, x = dy.contiguous(), x.contiguous()
    grads = torch.ops.weft.rms_norm_backward(dy, x, ctx.shape, rstd, weight, wanted)
    dx, dweight = (g if w else None for g, w in zip(grads, wanted, strict=True))
    return dx, None, dweight, None


def _grad_log_softmax(ctx: Any, dy: Any) -> Any:
    return torch.ops.weft.log_softmax_backward(dy, ctx.saved_tensors[0], ctx.dim, ctx.dtype), None, None


def _keep_avg_pool(ctx: Any, inputs: Any, output: Any) -> None:
    x, *ctx.how = inputs
    ctx.save_for_backward(x)


def _grad_avg_pool(ctx: Any, dy: Any) -> Any:
    return torch.ops.weft.avg_pool_backward(dy, ctx.saved_tensors[0], *ctx.how), *[None] * 6


def _keep_sdpa(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, *ctx.how, mask, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output, mask)
    ctx.mark_non_differentiable(output[1])


def _grad_sdpa(ctx: Any, do: Any, _: Any) -> Any:
    *tensors, mask = ctx.saved_tensors
    return *torch.ops.weft.sdpa_backward(do, *tensors, *ctx.how, mask, ctx.scale), *[None] * 4


for _name, _grad, _keep in (
    ("group_norm", _grad_group_norm, _keep_group_norm),
    ("rms_norm", _grad_rms_norm, _keep_rms_norm),
    ("log_softmax", _grad_log_softmax, _keep_softmax),
    ("avg_pool", _grad_avg_pool, _keep_avg_pool),
    ("sdpa", _grad_sdpa, _keep_sdpa),
    ("conv", _grad_conv, _keep_conv),
    ("layer_norm", _grad_layer_norm, _keep_layer_norm),
    ("softmax", _grad_softmax, _keep_softmax),
):
    torch.library.register_autograd(f"weft::{_name}", _grad, setup_context=_keep, lib=_library)
