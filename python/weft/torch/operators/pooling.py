"""Pooling in 2-D (max_pool, avg_pool) and 3-D (max_pool3d, avg_pool3d). torch maps 1-D pooling to 2-D."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from weft.enums import resample_mode
from weft.errors import NotSupportedError
from weft.tensor import Tensor
from weft.torch.ops import OPERATORS, differentiable, gradients, like_images, operator, stands_for
from weft.torch.plans import BuildFunction, GraphBuilder, _strides

aten = torch.ops.aten


def _each(values: Sequence[int], rank: int) -> list[int]:
    """Returns one number per spatial dimension; torch also accepts a single number for all."""
    return list(values) * rank if len(values) == 1 else list(values)


def _batched(value: Any, rank: int) -> tuple[list[int], list[int]]:
    """Returns dims and strides with a batch dimension, which torch makes optional."""
    missing = [1] * (rank + 2 - value.ndim)
    return [*missing, *value.shape], [*missing, *_strides(value)]


def _windows(
    x: Any, y: Any, rank: int, window: Any, stride: Any, padding: Any, dilation: Any = (1,)
) -> dict[str, Any]:
    """Returns the geometry of the windows. With ceil_mode, they may extend beyond the padding."""
    window, padding, gaps = (_each(given, rank) for given in (window, padding, dilation))
    step = _each(stride, rank) if stride else window
    axes = zip(x.shape[-rank:], y.shape[-rank:], window, step, padding, gaps, strict=True)
    reach = [max(pad, (out - 1) * s + (k - 1) * d + 1 - n - pad) for n, out, k, s, pad, d in axes]
    geometry = {"window": window, "stride": step, "pre_padding": padding, "post_padding": reach}
    return {**geometry, "dilation": gaps}


# ---- The maximum ----


def _maximum(x: Any, y: Any, rank: int, options: Sequence[Any]) -> dict[str, Any]:
    window, stride, padding, dilation, _ = options
    return {**_windows(x, y, rank, window, stride, padding, dilation), "mode": resample_mode.MAXPOOL}


def _max_pool(rank: int, gb: GraphBuilder, x: Any, *options: Any) -> None:
    geometry = _maximum(x, gb.outputs[0], rank, options)
    y, index = gb.graph.resample(gb.read(x, *_batched(x, rank)), generate_index=True, **geometry)
    gb.write(0, y, *_batched(gb.outputs[0], rank))
    gb.write(1, _position(gb, index, x.shape[-rank:], geometry), *_batched(gb.outputs[1], rank))


def _position(gb: GraphBuilder, index: Tensor, extents: Sequence[int], geometry: dict[str, Any]) -> Tensor:
    """Converts the index of a maximum within its window to the index within its plane; both are row-major."""
    # Floats represent integers exactly up to 2^24, and are faster as long as all vectors are floats.
    g, compute_type = (
        gb.graph,
        {"compute_data_type": torch.float32 if math.prod(extents) <= 2**24 else torch.float64},
    )
    window, gaps, rank = geometry["window"], geometry["dilation"], len(extents)
    position: Tensor | None = None
    for i in range(rank):
        inner = math.prod(window[i + 1 :])
        within = g.floor(g.div(index, inner, **compute_type), **compute_type) if inner > 1 else index
        within = g.mod(within, window[i], **compute_type) if i else within
        within = g.mul(within, gaps[i], **compute_type) if gaps[i] > 1 else within
        start = g.mul(g.gen_index(index, 2 + i, **compute_type), geometry["stride"][i], **compute_type)
        along = g.sub(g.add(start, within, **compute_type), geometry["pre_padding"][i], **compute_type)
        position = (
            g.add(g.mul(position, extents[i], **compute_type), along, **compute_type) if position else along
        )
    assert position is not None
    return position


def _max_pool_backward(rank: int, gb: GraphBuilder, dy: Any, x: Any, *options: Any) -> None:
    # torch's indices refer to the plane, so the first maximum is recomputed.
    geometry = _maximum(x, dy, rank, options[:-1])
    loss, image = (gb.read(each, *_batched(each, rank)) for each in (dy, x))
    gb.write(0, gb.graph.resample_backward(loss, input=image, **geometry), *_batched(gb.outputs[0], rank))


def _keep_max_pool(ctx: Any, inputs: Any, output: Any) -> None:
    x, *ctx.options = inputs
    ctx.save_for_backward(x, output[1])
    ctx.mark_non_differentiable(output[1])


def _grad_max_pool(backward: Any, ctx: Any, dy: Any, _: Any) -> Any:
    x, indices = ctx.saved_tensors
    return backward(dy, x, *ctx.options, indices), *[None] * 5


# ---- The maximum without its index ----

_HOW = "int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode"


def _max_pool_values(rank: int, gb: GraphBuilder, x: Any, *options: Any) -> None:
    y = gb.graph.resample(gb.read(x, *_batched(x, rank)), **_maximum(x, gb.outputs[0], rank, options))[0]
    gb.write(0, y, *_batched(gb.outputs[0], rank))


def _max_pool_values_backward(rank: int, gb: GraphBuilder, dy: Any, x: Any, *options: Any) -> None:
    _max_pool_backward(rank, gb, dy, x, *options, None)


def _keep_values(ctx: Any, inputs: Any, output: Any) -> None:
    x, *ctx.options = inputs
    ctx.save_for_backward(x)


def _grad_values(backward: Any, ctx: Any, dy: Any) -> Any:
    return backward(dy, ctx.saved_tensors[0], *ctx.options), *[None] * 5


def _define_values(rank: int, name: str) -> None:
    """Defines the operator and its gradient for one number of spatial dimensions."""
    both, gradient = getattr(aten, f"max_pool{rank}d_with_indices").default, f"{name}_backward"
    schema = f"(Tensor input, {_HOW}) -> Tensor"

    def maxima(*given: Any) -> Any:
        return both(*given)[0]

    def backward_reference(dy: Any, x: Any, *options: Any) -> Any:
        return gradients(lambda x: maxima(x, *options), (x,), dy, (True,))[0]

    operator(name, schema=schema, fake=maxima)(partial(_max_pool_values, rank))
    schema = f"(Tensor grad_output, Tensor input, {_HOW}) -> Tensor"
    operator(gradient, schema=schema, fake=_like_input)(partial(_max_pool_values_backward, rank))
    grad = partial(_grad_values, OPERATORS[gradient].apply)
    differentiable(name, _keep_values, grad, maxima, backward_reference)
    composite = getattr(aten, f"max_pool{rank}d").default
    stands_for(name, composite, is_composite=True)(partial(_of_composite, name))


def _of_composite(
    name: str, x: Any, window: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,),
    ceil: bool = False,
) -> Any:  # fmt: skip
    """Replaces torch's operator, which also computes the indices; only its own gradient reads these."""
    return OPERATORS[name].apply(x, window, stride, padding, dilation, ceil)


def _like_input(_: Any, x: Any, *__: Any) -> Any:
    return like_images(x)


# ---- The mean ----


def _mean(x: Any, y: Any, rank: int, options: Sequence[Any]) -> tuple[dict[str, Any], float]:
    """Returns Weft's options for the mean, and the factor to multiply it by."""
    window, stride, padding, _, counts_padding, divisor = options
    geometry, padding = _windows(x, y, rank, window, stride, padding), _each(padding, rank)
    factor = 1.0 if divisor is None else math.prod(geometry["window"]) / divisor
    if counts_padding and divisor is None and geometry["post_padding"] != padding:
        raise NotSupportedError("avg_pool: windows of ceil_mode end beyond the padding. Leave it to torch.")
    mode = "INCLUDE" if counts_padding or divisor is not None else "EXCLUDE"
    return {**geometry, "mode": resample_mode[f"AVGPOOL_{mode}_PADDING"]}, factor


def _avg_pool(rank: int, gb: GraphBuilder, x: Any, *options: Any) -> None:
    geometry, factor = _mean(x, gb.outputs[0], rank, options)
    y = gb.graph.resample(gb.read(x, *_batched(x, rank)), **geometry)[0]
    y = y if factor == 1 else gb.graph.mul(y, gb.number(factor))
    gb.write(0, y, *_batched(gb.outputs[0], rank))


def _avg_pool_backward(rank: int, gb: GraphBuilder, dy: Any, x: Any, *options: Any) -> None:
    geometry, factor = _mean(x, dy, rank, options)
    loss = gb.read(dy, *_batched(dy, rank))
    loss = loss if factor == 1 else gb.graph.mul(loss, gb.number(factor))
    gb.write(0, gb.graph.resample_backward(loss, **geometry), *_batched(gb.outputs[0], rank))


def _keep_avg_pool(ctx: Any, inputs: Any, output: Any) -> None:
    x, *ctx.options = inputs
    ctx.save_for_backward(x)


def _grad_avg_pool(backward: Any, ctx: Any, dy: Any) -> Any:
    return backward(dy, ctx.saved_tensors[0], *ctx.options), *[None] * 6


def _define(name: str, twin: str, rank: int, builds: Sequence[BuildFunction], keep: Any, grad: Any) -> None:
    """Defines the operator and its gradient for one number of spatial dimensions."""
    for build, ending in zip(builds, ("", "_backward"), strict=True):
        operator(name + ending, getattr(aten, twin + ending).default)(partial(build, rank))
    differentiable(name, keep, partial(grad, OPERATORS[f"{name}_backward"].apply))


for _rank, _ending in ((2, ""), (3, "3d")):
    _means, _maxima = (_avg_pool, _avg_pool_backward), (_max_pool, _max_pool_backward)
    _define(f"avg_pool{_ending}", f"avg_pool{_rank}d", _rank, _means, _keep_avg_pool, _grad_avg_pool)
    _twin = f"max_pool{_rank}d_with_indices"
    _define(f"max_pool{_ending}", _twin, _rank, _maxima, _keep_max_pool, _grad_max_pool)
    _define_values(_rank, f"max_pool_values{_ending}")
