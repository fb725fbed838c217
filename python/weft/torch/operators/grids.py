"""Samples of images at the positions of a grid (grid_sample), and affine grids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from weft.enums import padding_mode, resample_mode
from weft.torch.ops import OPERATORS, differentiable, operator
from weft.torch.plans import GraphBuilder

aten = torch.ops.aten

MODES = (resample_mode.BILINEAR, resample_mode.NEAREST, resample_mode.BICUBIC_EXT)
PADDINGS = (padding_mode.ZERO_PAD, padding_mode.EDGE_VAL_PAD, padding_mode.REFLECTION_PAD_EXT)
"""Weft's modes, by torch's numbers."""


def _options(mode: int, padding: int, align: bool) -> dict[str, Any]:
    return {"mode": MODES[mode], "padding_mode": PADDINGS[padding], "align_corners": align}


# ---- Samples ----


def _sample(gb: GraphBuilder, x: Any, grid: Any, mode: int, padding: int, align: bool) -> None:
    gb.write(0, gb.graph.grid_sample(gb.read(x), gb.read(grid), **_options(mode, padding, align)))


def _sample_backward(
    gb: GraphBuilder, dy: Any, x: Any, grid: Any, mode: int, padding: int, align: bool, wanted: Sequence[bool]
) -> None:
    operands = gb.read(dy), gb.read(x), gb.read(grid)
    gradients = gb.graph.grid_sample_backward(*operands, **_options(mode, padding, align))
    for i, (gradient, is_wanted) in enumerate(zip(gradients, wanted, strict=True)):
        if is_wanted:
            gb.write(i, gradient)
        else:
            gradient.set_output(False)


def _fake_backward(
    _: Any, x: Any, grid: Any, __: int, ___: int, ____: bool, wanted: Sequence[bool]
) -> tuple[Any, Any]:
    kept = torch.contiguous_format
    return (
        torch.empty_like(x, memory_format=kept) if wanted[0] else None,
        torch.empty_like(grid, memory_format=kept) if wanted[1] else None,
    )


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, grid, *ctx.options = inputs
    ctx.save_for_backward(x, grid)


def _grad(backward: Any, ctx: Any, dy: Any) -> Any:
    wanted = list(ctx.needs_input_grad[:2])
    gradients = backward(dy, *ctx.saved_tensors, *ctx.options, wanted)
    return (
        *(g if is_wanted else None for g, is_wanted in zip(gradients, wanted, strict=True)),
        None,
        None,
        None,
    )


def _define(rank: int) -> None:
    name = f"grid_sampler_{rank}d"
    operator(name, getattr(aten, name).default)(_sample)
    backward = getattr(aten, f"{name}_backward").default
    operator(f"{name}_backward", backward, fake=_fake_backward)(_sample_backward)
    differentiable(name, _keep, partial(_grad, OPERATORS[f"{name}_backward"].apply))


for _rank in (2, 3):
    _define(_rank)


# ---- Affine grids ----


@operator("affine_grid_generator", aten.affine_grid_generator.default)
def _affine_grid(gb: GraphBuilder, theta: Any, size: Sequence[int], align: bool) -> None:
    gb.write(0, gb.graph.affine_grid(gb.read(theta), list(size[2:]), align_corners=align))


def _fake_theta(grad: Any, size: Sequence[int], _: bool) -> Any:
    rank = len(size) - 2
    return grad.new_empty((size[0], rank, rank + 1))


@operator("affine_grid_generator_backward", aten.affine_grid_generator_backward.default, (), fake=_fake_theta)
def _affine_grid_backward(gb: GraphBuilder, grad: Any, _: Sequence[int], align: bool) -> None:
    gb.write(0, gb.graph.affine_grid_backward(gb.read(grad), align_corners=align))


def _keep_affine(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.size, ctx.align = inputs


def _grad_affine(ctx: Any, grad: Any) -> Any:
    return OPERATORS["affine_grid_generator_backward"].apply(grad, ctx.size, ctx.align), None, None


differentiable("affine_grid_generator", _keep_affine, _grad_affine)
