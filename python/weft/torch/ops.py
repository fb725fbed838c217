"""The operators: each has the schema of the torch operator whose name it bears, so that torch itself tells
the shape, layout and type of its results, and a few lines that draw it as a graph of Weft's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.enums import norm_forward_phase
from weft.errors import NotSupportedError
from weft.torch.plans import Draw, Drawing, run

aten = torch.ops.aten


class Operator:
    """One operator: torch.ops.weft.NAME, and what may stand for torch's own."""

    def __init__(self, name: str, twin: Any, draw: Draw) -> None:
        self.name, self.twin, self.draw = name, twin, draw
        schema = str(twin._schema)
        self.schema = name + schema[schema.index("(") :]

    def __call__(self, *arguments: Any) -> Any:
        """The results on real tensors; raises WeftError where Weft refuses."""
        results = run(self.name, self.twin, self.draw, arguments)
        return results[0] if len(self.twin._schema.returns) == 1 else tuple(results)

    def fake(self, *arguments: Any) -> Any:
        """The results on fake tensors."""
        return self.twin(*arguments)


OPERATORS: dict[str, Operator] = {}
"""All operators by name."""


def _operator(name: str, twin: Any) -> Callable[[Draw], Draw]:
    def add(draw: Draw) -> Draw:
        OPERATORS[name] = Operator(name, twin, draw)
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


@_operator("softmax", aten._softmax.default)
def _softmax(d: Drawing, x: Any, dim: int, _: bool) -> None:
    d.write(0, d.graph.softmax(d.read(x), axis=dim % max(x.ndim, 1)))


@_operator("softmax_backward", aten._softmax_backward_data.default)
def _softmax_backward(d: Drawing, dy: Any, y: Any, dim: int, _: Any) -> None:
    g, loss, weights = d.graph, d.read(dy), d.read(y)
    total = g.reduction(g.mul(loss, weights), "ADD", dims=[dim % max(y.ndim, 1)])
    d.write(0, g.mul(weights, g.sub(loss, total)))


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


for _name, _grad, _keep in (
    ("conv", _grad_conv, _keep_conv),
    ("layer_norm", _grad_layer_norm, _keep_layer_norm),
    ("softmax", _grad_softmax, _keep_softmax),
):
    torch.library.register_autograd(f"weft::{_name}", _grad, setup_context=_keep, lib=_library)
