"""Grouped matrix products for mixtures of experts: each group of rows has its own weight."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from weft.errors import NotSupportedError
from weft.tensor import Tensor
from weft.torch.ops import OPERATORS, PLACES, Operator, differentiable, gradients, operator
from weft.torch.plans import GraphBuilder, _strides

aten = torch.ops.aten


def _fake_grouped(tokens: Any, weight: Any, first: Any) -> Any:
    is_fit = tokens.ndim == 2 and weight.ndim == 3 and first.ndim == 1
    if not is_fit or weight.shape[0] - first.shape[0] not in (0, 1):
        raise NotSupportedError(
            "grouped_mm: the shapes do not fit: expected tokens [M, K], weight [E, K, N] and first [E] or "
            "[E - 1], got "
            f"{[*tokens.shape]}, {[*weight.shape]}, {[*first.shape]}."
        )
    return tokens.new_empty([tokens.shape[0], weight.shape[2]])


def _rows(gb: GraphBuilder, value: torch.Tensor, is_transposed: bool = False) -> Tensor:
    return gb.read_permuted(value, [1, 0] if is_transposed else [0, 1], 3)


def _sums_in(gb: GraphBuilder) -> dict[str, torch.dtype]:
    return {"compute_data_type": torch.float64 if gb.is_double else torch.float32}


def _product(gb: GraphBuilder, i: int, tokens: Any, weight: Any, first: Tensor, is_transposed: bool) -> None:
    weights = gb.read_permuted(weight, [0, 2, 1] if is_transposed else [0, 1, 2])
    y = gb.graph.moe_grouped_matmul(_rows(gb, tokens), weights, first, **_sums_in(gb))
    rows, columns = gb.outputs[i].shape
    gb.write(i, y, [1, rows, columns], [rows * columns, *_strides(gb.outputs[i])])


def _gradient(gb: GraphBuilder, i: int, dy: Any, tokens: Tensor, first: Tensor) -> None:
    dweight = gb.graph.moe_grouped_matmul_bwd(_rows(gb, dy), tokens, first, **_sums_in(gb))
    gb.write(i, dweight.set_dim([*gb.outputs[i].shape]))


def _first(gb: GraphBuilder, first: torch.Tensor) -> Tensor:
    return gb.read(first, [first.numel(), 1, 1])


@operator("grouped_mm", schema="(Tensor tokens, Tensor weight, Tensor first) -> Tensor", fake=_fake_grouped)
def _grouped_mm(gb: GraphBuilder, tokens: Any, weight: Any, first: Any) -> None:
    _product(gb, 0, tokens, weight, _first(gb, first), False)


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
    gb: GraphBuilder, dy: Any, tokens: Any, weight: Any, first: Any, wanted: Sequence[bool]
) -> None:
    starts = _first(gb, first)
    if wanted[0]:
        _product(gb, 0, dy, weight, starts, True)
    if wanted[1]:
        _gradient(gb, 1, dy, _rows(gb, tokens), starts)


def _keep_grouped(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _grad_grouped(ctx: Any, dy: Any) -> Any:
    wanted = [*ctx.needs_input_grad[:2]]
    grads = OPERATORS["grouped_mm_backward"].apply(dy, *ctx.saved_tensors, wanted)
    return (*(g if is_wanted else None for g, is_wanted in zip(grads, wanted, strict=True)), None)


def _reference(tokens: Any, weight: Any, first: Any) -> Any:
    starts = first.tolist()[first.shape[0] + 1 - weight.shape[0] :]  # starts of all groups except the first
    bounds = [0, *starts, tokens.shape[0]]
    parts = (tokens[start:end] for start, end in itertools.pairwise(bounds))
    return torch.cat([part @ matrix for part, matrix in zip(parts, weight.unbind(), strict=True)])


def _backward_reference(dy: Any, tokens: Any, weight: Any, first: Any, wanted: Sequence[bool]) -> Any:
    def forward(tokens: Any, weight: Any) -> Any:
        return _reference(tokens, weight, first)

    return gradients(forward, (tokens, weight), dy, wanted)


differentiable("grouped_mm", _keep_grouped, _grad_grouped, _reference, _backward_reference)


# ---- torch's own operator, which receives the ends of the groups ----


def _check_ends(a: Any, b: Any, ends: Any, bias: Any, out_dtype: Any) -> None:
    if a.ndim != 2 or b.ndim not in (2, 3) or ends is None or bias is not None:
        raise NotSupportedError(
            "grouped_mm: not [M, K] x [E, K, N] or [K, M] x [M, N] with offs. Leave it to torch."
        )
    if out_dtype not in (None, a.dtype):
        raise NotSupportedError(f"grouped_mm: a result of type {out_dtype}. Leave it to torch.")
    if b.ndim == 3:
        _fake_grouped(a, b, ends)


def _fake_of_ends(a: Any, b: Any, ends: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    _check_ends(a, b, ends, bias, out_dtype)
    # Rows of torch's results begin at multiples of 16 bytes.
    columns, unit = b.shape[-1], 16 // a.element_size()
    sizes = [a.shape[0]] if b.ndim == 3 else [ends.numel(), a.shape[0]]
    return a.new_empty([*sizes, -(-columns // unit) * unit])[..., :columns]


def _of_ends(gb: GraphBuilder, a: Any, b: Any, ends: Any, bias: Any = None, out_dtype: Any = None) -> None:
    """Each group except the first begins where the previous one ends."""
    _check_ends(a, b, ends, bias, out_dtype)
    first = gb.read(ends, [ends.numel() - 1, 1, 1], [*_strides(ends), 1, 1])
    if b.ndim == 3:
        _product(gb, 0, a, b, first, False)
    else:
        _gradient(gb, 0, b, _rows(gb, a, True), first)


GROUPED_MM_OF_ENDS = Operator(
    "grouped_mm_of_ends", _of_ends, aten._grouped_mm.default, PLACES, fake=_fake_of_ends
)
OPERATORS["grouped_mm"].stand_ins.append(GROUPED_MM_OF_ENDS)
