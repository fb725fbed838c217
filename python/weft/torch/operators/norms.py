"""Norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from weft.enums import norm_forward_phase
from weft.errors import NotSupportedError
from weft.torch.ops import differentiable, operator
from weft.torch.plans import Drawing

aten = torch.ops.aten


def _rows(name: str, x: torch.Tensor, shape: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Dims of x as rows to normalise, of a row's parameters, and of a statistic for each row."""
    if not x.is_contiguous():
        raise NotSupportedError(f"{name}: the input is not contiguous. Give input.contiguous().")
    length = math.prod(shape)
    return [x.numel() // length, length], [1, length], [x.numel() // length, 1]


@operator("layer_norm", aten.native_layer_norm.default)
def _layer_norm(d: Drawing, x: Any, shape: Sequence[int], weight: Any, bias: Any, epsilon: float) -> None:
    rows, row, column = _rows("layer_norm", x, shape)
    scale, shift = (None if each is None else d.read(each, row) for each in (weight, bias))
    results = d.graph.layernorm(norm_forward_phase.TRAINING, d.read(x, rows), scale, shift, d.number(epsilon))
    for i, (result, dims) in enumerate(zip(results, (rows, column, column), strict=True)):
        d.write(i, result, dims)


@operator("layer_norm_backward", aten.native_layer_norm_backward.default)
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


@operator("group_norm", aten.native_group_norm.default)
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


@operator("group_norm_backward", aten.native_group_norm_backward.default)
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


@operator("rms_norm", aten._fused_rms_norm.default, ())
def _rms_norm(d: Drawing, x: Any, shape: Sequence[int], weight: Any, epsilon: float | None) -> None:
    rows, row, column = _rows("rms_norm", x, shape)
    constant = d.number(torch.finfo(x.dtype).eps if epsilon is None else epsilon)
    scale = None if weight is None else d.read(weight, row)
    y, rstd = d.graph.rmsnorm(norm_forward_phase.TRAINING, d.read(x, rows), scale, None, constant)
    d.write(0, y, rows)
    d.write(1, rstd, column)


@operator("rms_norm_backward", aten._fused_rms_norm_backward.default, ())
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


differentiable("layer_norm", _keep_layer_norm, _grad_layer_norm)
differentiable("group_norm", _keep_group_norm, _grad_group_norm)
differentiable("rms_norm", _keep_rms_norm, _grad_rms_norm)
