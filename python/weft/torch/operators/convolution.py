"""Convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.torch import result_rules
from weft.torch.ops import OPERATORS, differentiable, operator
from weft.torch.plans import GraphBuilder

aten = torch.ops.aten


def spatial(x: torch.Tensor, values: Sequence[int]) -> list[int]:
    """Returns one number per spatial dimension; torch also accepts a single number for all."""
    return list(values) * (x.ndim - 2) if len(values) == 1 else list(values)


def _geometry(
    x: torch.Tensor, stride: Any, padding: Any, dilation: Any, output_padding: Any
) -> dict[str, Any]:
    """output_padding: that of a transposed convolution. If it reached a whole stride, the filter would fit
    one step more often, so the padding after the data is reduced by each whole stride and may become
    negative."""
    padding, steps = spatial(x, padding), spatial(x, stride)
    beyond = zip(padding, spatial(x, output_padding), steps, strict=True)
    after = [pad - more // step * step for pad, more, step in beyond]
    kinds = {"stride": steps, "dilation": spatial(x, dilation)}
    return {**kinds, "pre_padding": padding, "post_padding": after}


@operator("conv", aten.convolution.default, rule=result_rules.convolution)
def _conv(
    gb: GraphBuilder,
    x: Any,
    w: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    _: int,
) -> None:
    geometry = _geometry(x, stride, padding, dilation, output_padding if transposed else [0])
    if transposed:
        y = gb.graph.conv_dgrad(gb.read(x), gb.read(w), **geometry)
        y.set_dim(tuple(gb.outputs[0].shape))
    else:
        y = gb.graph.conv_fprop(gb.read(x), gb.read(w), **geometry)
    if bias is not None:
        y = gb.graph.bias(y, gb.read(bias, [1, bias.numel(), *[1] * (x.ndim - 2)]))
    gb.write(0, y)


@operator("conv_backward", aten.convolution_backward.default, rule=result_rules.convolution_backward)
def _conv_backward(
    gb: GraphBuilder,
    dy: Any,
    x: Any,
    w: Any,
    _: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    __: int,
    wanted: Sequence[bool],
) -> None:
    geometry = _geometry(x, stride, padding, dilation, output_padding if transposed else [0])
    loss = gb.read(dy)
    if wanted[0]:
        forward = gb.graph.conv_fprop if transposed else gb.graph.conv_dgrad
        gb.write(0, forward(loss, gb.read(w), **geometry))
    if wanted[1]:
        pair = (loss, gb.read(x)) if transposed else (gb.read(x), loss)
        gb.write(1, gb.graph.conv_wgrad(*pair, **geometry))
    if wanted[2]:
        summed = [i for i in range(dy.ndim) if i != 1]
        gb.write(2, gb.graph.reduction(loss, "ADD", dims=summed), [1, dy.shape[1], *[1] * (dy.ndim - 2)])


def _keep_conv(ctx: Any, inputs: Any, output: Any) -> None:
    x, w, bias, *ctx.attributes = inputs
    ctx.bias_sizes = None if bias is None else [bias.shape[0]]
    ctx.save_for_backward(x, w)


def _grad_conv(ctx: Any, dy: Any) -> Any:
    x, w = ctx.saved_tensors
    wanted = [*ctx.needs_input_grad[:2], ctx.needs_input_grad[2] and ctx.bias_sizes is not None]
    grads = OPERATORS["conv_backward"].apply(dy, x, w, ctx.bias_sizes, *ctx.attributes, wanted)
    return (*(g if w else None for g, w in zip(grads, wanted, strict=True)), *[None] * 6)


differentiable("conv", _keep_conv, _grad_conv)
