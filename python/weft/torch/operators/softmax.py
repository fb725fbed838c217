"""Softmax and its logarithm."""

from __future__ import annotations

from typing import Any

import torch

from weft import decompositions
from weft.errors import NotSupportedError
from weft.torch.ops import OPERATORS, differentiable, operator
from weft.torch.plans import GraphBuilder

aten = torch.ops.aten


def _axis(x: Any, dim: int) -> int:
    rank = max(int(x.ndim), 1)
    if not -rank <= dim < rank:
        raise NotSupportedError(f"softmax: dim is out of range: expected {-rank} to {rank - 1}, got {dim}.")
    return dim % rank


def _fake(twin: Any) -> Any:
    def fake(x: Any, dim: int, widens: bool) -> Any:
        if widens and x.device.type != "cuda":
            raise NotSupportedError("softmax: a result of float for 16 bits on the CPU. Leave it to torch.")
        return twin(x, dim, widens)

    return fake


@operator("softmax", aten._softmax.default, fake=_fake(aten._softmax.default))
def _softmax(gb: GraphBuilder, x: Any, dim: int, _: bool) -> None:
    gb.write(0, gb.graph.softmax(gb.read(x), axis=_axis(x, dim), infinite_is_nan=True))


@operator("softmax_backward", aten._softmax_backward_data.default)
def _softmax_backward(gb: GraphBuilder, dy: Any, y: Any, dim: int, _: Any) -> None:
    gb.write(0, decompositions.softmax_backward(gb.graph, gb.read(dy), gb.read(y), dim % max(y.ndim, 1)))


@operator("log_softmax", aten._log_softmax.default, fake=_fake(aten._log_softmax.default))
def _log_softmax(gb: GraphBuilder, x: Any, dim: int, _: bool) -> None:
    gb.write(0, decompositions.log_softmax(gb.graph, gb.read(x), _axis(x, dim)))


def _fake_log_softmax_backward(*arguments: Any) -> Any:
    """torch's own fake kernel gives the result the layout of the incoming gradient."""
    return aten._log_softmax_backward_data.default(*arguments).contiguous()


@operator("log_softmax_backward", aten._log_softmax_backward_data.default, fake=_fake_log_softmax_backward)
def _log_softmax_backward(gb: GraphBuilder, dy: Any, y: Any, dim: int, _: Any) -> None:
    gb.write(0, decompositions.log_softmax_backward(gb.graph, gb.read(dy), gb.read(y), dim % max(y.ndim, 1)))


def _keep_softmax(ctx: Any, inputs: Any, output: Any) -> None:
    x, ctx.dim, _ = inputs
    ctx.dtype = x.dtype
    ctx.save_for_backward(output)


def _grad_softmax(ctx: Any, dy: Any) -> Any:
    return OPERATORS["softmax_backward"].apply(dy, ctx.saved_tensors[0], ctx.dim, ctx.dtype), None, None


def _grad_log_softmax(ctx: Any, dy: Any) -> Any:
    return OPERATORS["log_softmax_backward"].apply(dy, ctx.saved_tensors[0], ctx.dim, ctx.dtype), None, None


differentiable("softmax", _keep_softmax, _grad_softmax)
differentiable("log_softmax", _keep_softmax, _grad_log_softmax)
