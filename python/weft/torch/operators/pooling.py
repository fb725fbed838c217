"""Pooling."""

from __future__ import annotations

from typing import Any

import torch

from weft.enums import resample_mode
from weft.errors import NotSupportedError
from weft.torch.operators.convolution import spatial
from weft.torch.ops import differentiable, operator
from weft.torch.plans import Drawing

aten = torch.ops.aten


def _pool(x: Any, window: Any, stride: Any, padding: Any, ceil: bool, whole: bool, divisor: Any) -> Any:
    """How Weft says an average pooling."""
    if ceil or divisor is not None or x.ndim != 4:
        raise NotSupportedError("avg_pool: ceil_mode, divisor_override or no batch. Leave them out.")
    mode = "AVGPOOL_INCLUDE_PADDING" if whole else "AVGPOOL_EXCLUDE_PADDING"
    padding = spatial(x, padding)
    sizes = {"window": spatial(x, window), "stride": spatial(x, stride or window)}
    return {**sizes, "pre_padding": padding, "post_padding": padding, "mode": resample_mode[mode]}


@operator("avg_pool", aten.avg_pool2d.default)
def _avg_pool(d: Drawing, x: Any, *how: Any) -> None:
    d.write(0, d.graph.resample(d.read(x), **_pool(x, *how))[0])


@operator("avg_pool_backward", aten.avg_pool2d_backward.default)
def _avg_pool_backward(d: Drawing, dy: Any, x: Any, *how: Any) -> None:
    d.write(0, d.graph.resample_backward(d.read(dy), **_pool(x, *how)))


def _keep_avg_pool(ctx: Any, inputs: Any, output: Any) -> None:
    x, *ctx.how = inputs
    ctx.save_for_backward(x)


def _grad_avg_pool(ctx: Any, dy: Any) -> Any:
    return torch.ops.weft.avg_pool_backward(dy, ctx.saved_tensors[0], *ctx.how), *[None] * 6


differentiable("avg_pool", _keep_avg_pool, _grad_avg_pool)
