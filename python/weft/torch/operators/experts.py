"""Products of groups of rows, each with a weight of its own, as mixtures of experts have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.errors import NotSupportedError
from weft.tensor import Tensor
from weft.torch.ops import OPERATORS, differentiable, operator, stands_for
from weft.torch.plans import Drawing, _strides

aten = torch.ops.aten


def _fake_grouped(tokens: Any, weight: Any, first: Any) -> Any:
    if tokens.ndim != 2 or weight.ndim != 3 or first.shape != weight.shape[:1]:
        raise NotSupportedError(
            "grouped_mm: tokens have to be [M, K], weight [E, K, N], first [E]; they are "
            f"{[*tokens.shape]}, {[*weight.shape]}, {[*first.shape]}."
        )
    return tokens.new_empty([tokens.shape[0], weight.shape[2]])


def _rows(d: Drawing, value: torch.Tensor) -> Tensor:
    return d.read(value, [1, *value.shape], [value.numel(), *_strides(value)])


def _product(d: Drawing, i: int, tokens: Any, weight: Any, first: Tensor, is_transposed: bool) -> None:
    dims, steps = [*weight.shape], [*_strides(weight)]
    if is_transposed:
        dims, steps = [dims[0], *dims[:0:-1]], [steps[0], *steps[:0:-1]]
    compute = torch.float64 if d.is_double else torch.float32
    how = {"compute_data_type": compute}
    y = d.graph.moe_grouped_matmul(_rows(d, tokens), d.read(weight, dims, steps), first, **how)
    d.write(i, y, [1, *d.outputs[i].shape])


def _first(d: Drawing, first: torch.Tensor) -> Tensor:
    return d.read(first, [first.numel(), 1, 1])


@operator(
    "grouped_mm", schema="(Tensor tokens, Tensor weight, Tensor first) -> Tensor", fake=_fake_grouped
)
def _grouped_mm(d: Drawing, tokens: Any, weight: Any, first: Any) -> None:
    _product(d, 0, tokens, weight, _first(d, first), False)


def _fake_backward(_: Any, tokens: Any, weight: Any, __: Any, wanted: Sequence[bool]) -> Any:
    dweight = torch.empty_like(weight) if wanted[1] else None
    return tokens.new_empty(tokens.shape) if wanted[0] else None, dweight


@operator(
    "grouped_mm_backward",
    schema="(Tensor grad_output, Tensor tokens, Tensor weight, Tensor first, bool[2] output_mask) "
    "-> (Tensor, Tensor)",
    fake=_fake_backward,
)
def _grouped_mm_backward(
    d: Drawing, dy: Any, tokens: Any, weight: Any, first: Any, wanted: Sequence[bool]
) -> None:
    starts = _first(d, first)
    if wanted[0]:
        _product(d, 0, dy, weight, starts, True)
    if wanted[1]:
        compute = {"compute_data_type": torch.float64 if d.is_double else torch.float32}
        d.write(1, d.graph.moe_grouped_matmul_bwd(_rows(d, dy), _rows(d, tokens), starts, **compute))


def _keep_grouped(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _grad_grouped(ctx: Any, dy: Any) -> Any:
    wanted = [*ctx.needs_input_grad[:2]]
    grads = OPERATORS["grouped_mm_backward"].apply(dy, *ctx.saved_tensors, wanted)
    return (*(g if is_wanted else None for g, is_wanted in zip(grads, wanted, strict=True)), None)


differentiable("grouped_mm", _keep_grouped, _grad_grouped)


@stands_for("grouped_mm", aten._grouped_mm.default)
def _of_ends(tokens: Any, weight: Any, ends: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """torch tells where groups end, Weft where they begin."""
    if tokens.ndim != 2 or weight.ndim != 3 or ends is None or bias is not None:
        raise NotSupportedError("grouped_mm: not [M, K] by [E, K, N] with ends. Leave it to torch.")
    if out_dtype not in (None, tokens.dtype):
        raise NotSupportedError(f"grouped_mm: a result of type {out_dtype}. Leave it to torch.")
    first = torch.nn.functional.pad(ends[:-1], (1, 0))
    return OPERATORS["grouped_mm"](tokens, weight, first)
