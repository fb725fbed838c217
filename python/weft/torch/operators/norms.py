"""Norms of rows and of groups of channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from weft.enums import norm_forward_phase
from weft.tensor import Tensor
from weft.torch import result_rules
from weft.torch.ops import OPERATORS, differentiable, operator, stands_for, with_torchs_types
from weft.torch.plans import GraphBuilder

aten = torch.ops.aten


class _Rows(NamedTuple):
    """The dims with which a norm reads its input, its parameters and its statistics."""

    x: list[int]
    parameters: list[int]
    statistics: list[int]


def _rows(x: torch.Tensor, shape: Sequence[int]) -> _Rows:
    """Returns the dims of a norm over the last dimensions, which have this shape."""
    length = math.prod(shape)
    count = x.numel() // length
    return _Rows([count, length], [1, length], [count, 1])


def _fake_layer_norm(x: Any, shape: Any, weight: Any, bias: Any, epsilon: float) -> Any:
    results = aten.native_layer_norm.default(x, shape, weight, bias, epsilon)
    return with_torchs_types(results, x, weight, bias)


@operator("layer_norm", aten.native_layer_norm.default, fake=_fake_layer_norm, rule=result_rules.layer_norm)
def _layer_norm(
    gb: GraphBuilder, x: Any, shape: Sequence[int], weight: Any, bias: Any, epsilon: float
) -> None:
    rows = _rows(x, shape)
    scale, shift = (None if each is None else gb.read(each, rows.parameters) for each in (weight, bias))
    phase, constant = norm_forward_phase.TRAINING, gb.number(epsilon)
    results = gb.graph.layernorm(phase, gb.read_as(x, rows.x), scale, shift, constant)
    for i, (result, dims) in enumerate(zip(results, (rows.x, *[rows.statistics] * 2), strict=True)):
        gb.write_as(i, result, dims)


def _fake_layer_norm_backward(dy: Any, x: Any, *given: Any) -> Any:
    """The gradient is packed; torch's fake kernel gives it the layout of dy."""
    dx, *others = aten.native_layer_norm_backward.default(dy, x, *given)
    return None if dx is None else x.new_empty(x.shape), *others


@operator(
    "layer_norm_backward", aten.native_layer_norm_backward.default, fake=_fake_layer_norm_backward,
    rule=result_rules.layer_norm_backward,
)  # fmt: skip
def _layer_norm_backward(
    gb: GraphBuilder,
    dy: Any,
    x: Any,
    shape: Sequence[int],
    mean: Any,
    rstd: Any,
    weight: Any,
    _: Any,
    wanted: Sequence[bool],
) -> None:
    rows = _rows(x, shape)
    scale = None if weight is None else gb.read(weight, rows.parameters)
    ends: Any = [gb.read_as(dy, rows.x), gb.read_as(x, rows.x), scale]
    ends += [gb.read(each, rows.statistics) for each in (mean, rstd)]
    results = gb.graph.layernorm_backward(*ends)
    _write_gradients(gb, results, rows.x, rows.parameters, wanted)


def _write_gradients(
    gb: GraphBuilder, results: Sequence[Tensor], x: Any, parameters: Sequence[int], wanted: Sequence[bool]
) -> None:
    """Writes the requested gradients of x, the scale and the bias."""
    for i, is_wanted in enumerate(wanted):
        if is_wanted and gb.outputs[i] is not None:
            gb.write_as(i, results[i], parameters if i else x)


def _of_groups(x: Any, c: int, groups: int, hw: int) -> _Rows:
    """Returns the dims of a norm over groups of channels: those of the image itself if its dimension 1 is the
    channels."""
    tail = [1] * (x.ndim - 2)
    if x.ndim > 2 and x.shape[1] == c:
        return _Rows([*x.shape], [1, c, *tail], [x.shape[0], groups, *tail])
    n = x.numel() // (c * hw)
    return _Rows([n, c, hw], [1, c, 1], [n, groups, 1])


def _fake_group_norm(x: Any, weight: Any, bias: Any, *given: Any) -> Any:
    """The results keep the layout of the image, even on GPUs, where torch's own kernel returns channels
    first."""
    results = torch.empty_like(x), *aten.native_group_norm.default(x, weight, bias, *given)[1:]
    return with_torchs_types(results, x, weight, bias)


def _fake_group_norm_backward(dy: Any, x: Any, *given: Any) -> Any:
    dx, *others = aten.native_group_norm_backward.default(dy, x, *given)
    return None if dx is None else torch.empty_like(x), *others


@operator("group_norm", aten.native_group_norm.default, fake=_fake_group_norm, rule=result_rules.group_norm)
def _group_norm(
    gb: GraphBuilder, x: Any, weight: Any, bias: Any, _: int, c: int, hw: int, groups: int, epsilon: float
) -> None:
    shown = _of_groups(x, c, groups, hw)
    scale, shift = (None if each is None else gb.read(each, shown.parameters) for each in (weight, bias))
    phase, constant = norm_forward_phase.TRAINING, gb.number(epsilon)
    results = gb.graph.groupnorm(phase, gb.read_as(x, shown.x), scale, shift, constant, groups)
    for i, (result, dims) in enumerate(zip(results, (shown.x, *[shown.statistics] * 2), strict=True)):
        gb.write_as(i, result, dims)


@operator(
    "group_norm_backward", aten.native_group_norm_backward.default, fake=_fake_group_norm_backward,
    rule=result_rules.group_norm_backward,
)  # fmt: skip
def _group_norm_backward(
    gb: GraphBuilder,
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    n: int,
    c: int,
    hw: int,
    groups: int,
    wanted: Sequence[bool],
) -> None:
    if x.device.type == "cpu":  # one sweep for all three; a GPU would read both images again for the sums
        shown = _of_groups(x, c, groups, hw)
        scale = None if weight is None else gb.read(weight, shown.parameters)
        ends: Any = [gb.read_as(dy, shown.x), gb.read_as(x, shown.x), scale]
        ends += [gb.read(each, shown.statistics) for each in (mean, rstd)]
        results = gb.graph.groupnorm_backward(*ends, groups=groups)
        _write_gradients(gb, results, shown.x, shown.parameters, wanted)
        return
    g, each = gb.graph, [n, groups, c // groups, hw]
    loss, image = gb.read_as(dy, each), gb.read_as(x, each)
    deviation = gb.read(rstd, [n, groups, 1, 1])
    hat = g.mul(g.sub(image, gb.read(mean, [n, groups, 1, 1])), deviation)
    if wanted[0]:
        scaled = loss if weight is None else g.mul(loss, gb.read(weight, [1, groups, c // groups, 1]))
        mean_loss = g.reduction(scaled, "AVG", dims=[2, 3])
        mean_both = g.reduction(g.mul(scaled, hat), "AVG", dims=[2, 3])
        inner = g.sub(g.sub(scaled, mean_loss), g.mul(hat, mean_both))
        gb.write_as(0, g.mul(inner, deviation), each)
    for i, factor in ((1, g.mul(loss, hat)), (2, loss)):
        if wanted[i] and gb.outputs[i] is not None:
            gb.write(i, g.reduction(factor, "ADD", dims=[0, 3]), [1, groups, c // groups, 1])


def _epsilon(x: torch.Tensor, epsilon: float | None) -> float:
    """Returns the epsilon. torch's default is that of the type in which the norm computes, which is never a
    16-bit type."""
    return torch.finfo(_wide(x)).eps if epsilon is None else epsilon


@operator("rms_norm", aten._fused_rms_norm.default, (), rule=result_rules.rms_norm)
def _rms_norm(gb: GraphBuilder, x: Any, shape: Sequence[int], weight: Any, epsilon: float | None) -> None:
    rows = _rows(x, shape)
    constant = gb.number(_epsilon(x, epsilon))
    scale = None if weight is None else gb.read(weight, rows.parameters)
    y, rstd = gb.graph.rmsnorm(norm_forward_phase.TRAINING, gb.read_as(x, rows.x), scale, None, constant)
    gb.write_as(0, y, rows.x)
    gb.write_as(1, rstd, rows.statistics)


@stands_for("rms_norm", aten.rms_norm.default, is_composite=True)
def _rms_norm_alone(x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    return OPERATORS["rms_norm"].apply(x, shape, weight, eps)[0]


def _fake_rms_norm_backward(dy: Any, x: Any, _: Any, __: Any, weight: Any, wanted: Sequence[bool]) -> Any:
    """torch's own fake kernel gives the weight's gradient the type of x. The gradient of x has the layout of
    dy on the CPU, where torch decomposes the operator, and is contiguous on a GPU."""
    layout = torch.contiguous_format if x.device.type == "cuda" else torch.preserve_format
    dx = torch.empty_like(dy, dtype=x.dtype, memory_format=layout) if wanted[0] else None
    return dx, torch.empty_like(weight) if wanted[1] else None


@operator("rms_norm_backward", aten._fused_rms_norm_backward.default, (), fake=_fake_rms_norm_backward)
def _rms_norm_backward(
    gb: GraphBuilder, dy: Any, x: Any, shape: Sequence[int], rstd: Any, weight: Any, wanted: Sequence[bool]
) -> None:
    rows = _rows(x, shape)
    scale = None if weight is None else gb.read(weight, rows.parameters)
    given = gb.read_as(dy, rows.x), gb.read_as(x, rows.x), scale, gb.read(rstd, rows.statistics)
    _write_gradients(gb, gb.graph.rmsnorm_backward(*given, False), rows.x, rows.parameters, wanted)


def _keep_layer_norm(ctx: Any, inputs: Any, output: Any) -> None:
    x, ctx.shape, weight, bias, _ = inputs
    ctx.save_for_backward(x, weight, bias, *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _grad_layer_norm(ctx: Any, dy: Any, *_: Any) -> Any:
    x, weight, bias, mean, rstd = ctx.saved_tensors
    wanted = [ctx.needs_input_grad[i] for i in (0, 2, 3)]
    grads = OPERATORS["layer_norm_backward"].apply(dy, x, ctx.shape, mean, rstd, weight, bias, wanted)
    dx, dweight, dbias = (g if w else None for g, w in zip(grads, wanted, strict=True))
    return dx, None, dweight, dbias, None


def _keep_group_norm(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, _, *ctx.sizes, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, *output[1:])


def _grad_group_norm(ctx: Any, dy: Any, dmean: Any, drstd: Any) -> Any:
    x, weight, mean, rstd = ctx.saved_tensors
    if dy is None and dmean is None and drstd is None:
        return (None,) * 8
    dy = torch.zeros_like(x) if dy is None else dy
    wanted = [*ctx.needs_input_grad[:3]]
    grads = OPERATORS["group_norm_backward"].apply(dy, x, mean, rstd, weight, *ctx.sizes, wanted)
    dx, dweight, dbias = (g if w else None for g, w in zip(grads, wanted, strict=True))
    # The statistics depend on x; only second derivatives need the gradients of that.
    image, count = x.reshape(*mean.shape, -1), x.numel() // mean.numel()
    if dx is not None and dmean is not None:
        dx = dx + (dmean / count)[..., None].expand(image.shape).reshape(x.shape).to(x.dtype)
    if dx is not None and drstd is not None:
        slope = drstd * rstd**3 / -count
        dx = dx + (slope[..., None] * (image - mean[..., None])).reshape(x.shape).to(x.dtype)
    return (dx, dweight, dbias, *[None] * 5)


def _group_norm_reference(
    x: Any, weight: Any, bias: Any, n: int, c: int, hw: int, groups: int, epsilon: float
) -> tuple[Any, ...]:
    """torch's own operator has no forward-mode derivative for channels-last images."""
    image = x.reshape(n, groups, c // groups, hw).to(_wide(x))
    variance, mean = torch.var_mean(image, (2, 3), correction=0, keepdim=True)
    rstd = torch.rsqrt(variance + epsilon)
    y, parameters = (image - mean) * rstd, (1, groups, c // groups, 1)
    y = y if weight is None else y * weight.reshape(parameters)
    y = y if bias is None else y + bias.reshape(parameters)
    return y.reshape(x.shape).to(x.dtype), mean.reshape(n, groups), rstd.reshape(n, groups)


def _group_norm_backward_reference(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    n: int,
    c: int,
    hw: int,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Any, ...]:
    each, type_ = (n, groups, c // groups, hw), _wide(x)
    loss, image = (value.reshape(each).to(type_) for value in (dy, x))
    deviation = rstd.reshape(n, groups, 1, 1)
    hat = (image - mean.reshape(n, groups, 1, 1)) * deviation
    scaled = loss if weight is None else loss * weight.reshape(1, groups, c // groups, 1)
    along = (scaled * hat).mean((2, 3), keepdim=True)
    dx = deviation * (scaled - scaled.mean((2, 3), keepdim=True) - hat * along)
    parameters = x.dtype if weight is None else weight.dtype
    sums = ((factor.sum((0, 3)).reshape(c).to(parameters)) for factor in (loss * hat, loss))
    results = dx.reshape(x.shape).to(x.dtype), *sums
    return tuple(result if w else None for result, w in zip(results, wanted, strict=True))


def _wide(x: torch.Tensor) -> torch.dtype:
    """Returns the type in which a norm computes."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _keep_rms_norm(ctx: Any, inputs: Any, output: Any) -> None:
    x, ctx.shape, weight, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1])


def _grad_rms_norm(ctx: Any, dy: Any, drstd: Any) -> Any:
    x, weight, rstd = ctx.saved_tensors
    if dy is None and drstd is None:
        return (None,) * 4
    dy = torch.zeros_like(x) if dy is None else dy
    wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
    grads = OPERATORS["rms_norm_backward"].apply(dy, x, ctx.shape, rstd, weight, wanted)
    dx, dweight = (g if w else None for g, w in zip(grads, wanted, strict=True))
    # The statistic depends on x; only second derivatives need the gradient of that.
    if dx is not None and drstd is not None:
        dx = dx - (drstd * rstd**3 / math.prod(ctx.shape) * x).to(x.dtype)
    return dx, None, dweight, None


def _rms_norm_reference(x: Any, shape: Sequence[int], weight: Any, epsilon: float | None) -> Any:
    image, over = x.to(_wide(x)), [*range(-len(shape), 0)]
    rstd = torch.rsqrt(image.square().mean(over, keepdim=True) + _epsilon(x, epsilon))
    y = image * rstd if weight is None else image * rstd * weight
    return y.to(x.dtype), rstd


def _rms_norm_backward_reference(
    dy: Any, x: Any, shape: Sequence[int], rstd: Any, weight: Any, wanted: Sequence[bool]
) -> tuple[Any, ...]:
    loss, over = dy.to(_wide(x)), [*range(-len(shape), 0)]
    hat, scaled = x * rstd, loss if weight is None else loss * weight
    dx = (rstd * (scaled - hat * (scaled * hat).mean(over, keepdim=True))).to(x.dtype)
    dweight = None if weight is None else (loss * hat).sum_to_size(weight.shape).to(weight.dtype)
    return tuple(g if w else None for g, w in zip((dx, dweight), wanted, strict=True))


differentiable("layer_norm", _keep_layer_norm, _grad_layer_norm)
differentiable(
    "group_norm", _keep_group_norm, _grad_group_norm, _group_norm_reference, _group_norm_backward_reference
)
differentiable("rms_norm", _keep_rms_norm, _grad_rms_norm, _rms_norm_reference, _rms_norm_backward_reference)
