"""Merges attention computed separately over parts of the keys, such as the parts on several devices, using
the softmax statistics."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from weft.tensor import Tensor
from weft.torch.operators.attention import softmax_of
from weft.torch.ops import OPERATORS, differentiable, gradients, operator
from weft.torch.plans import GraphBuilder

LOWEST = -3e38
"""A finite lower bound for the statistics. A row without visible keys has the statistic -inf."""


class _Part(NamedTuple):
    """One part of attention: its result, [.., rows, elements], and statistics, [.., rows, 1]."""

    o: Tensor
    lse: Tensor


def _rows(lse: Any) -> tuple[list[int], list[int]]:
    steps = [step if n > 1 else max(step, 1) for n, step in zip(lse.shape, lse.stride(), strict=True)]
    return [*lse.shape, 1], [*steps, 1]


def _read(gb: GraphBuilder, o: Any, lse: Any) -> _Part:
    return _Part(gb.read(o), gb.read(lse, *_rows(lse)))


def _fake(o1: Any, lse1: Any, o2: Any, lse2: Any) -> Any:
    return torch.empty_like(o1), torch.empty_like(lse1)


@operator(
    "merge",
    schema="(Tensor output1, Tensor logsumexp1, Tensor output2, Tensor logsumexp2) "
    "-> (Tensor output, Tensor logsumexp)",
    fake=_fake,
)
def _merge(gb: GraphBuilder, o1: Any, lse1: Any, o2: Any, lse2: Any) -> None:
    g, one, two = gb.graph, _read(gb, o1, lse1), _read(gb, o2, lse2)
    most = g.max(g.max(one.lse, two.lse), gb.number(LOWEST))
    weight1, weight2 = (g.exp(g.sub(part.lse, most)) for part in (one, two))
    total = g.add(weight1, weight2)
    # Either the larger weight is 1, or both weights are 0 and the result is 0.
    share = g.reciprocal(g.max(total, gb.number(0.5)))
    gb.write(0, g.add(g.mul(one.o, g.mul(weight1, share)), g.mul(two.o, g.mul(weight2, share))))
    gb.write(1, g.add(most, g.log(total)), *_rows(gb.outputs[1]))


def _fake_backward(do: Any, dlse: Any, o1: Any, lse1: Any, o2: Any, lse2: Any, *_: Any) -> Any:
    return tuple(map(torch.empty_like, (o1, lse1, o2, lse2)))


@operator(
    "merge_backward",
    schema="(Tensor grad_output, Tensor grad_logsumexp, Tensor output1, Tensor logsumexp1, Tensor output2, "
    "Tensor logsumexp2, Tensor output, Tensor logsumexp) -> (Tensor, Tensor, Tensor, Tensor)",
    fake=_fake_backward,
)
def _merge_backward(
    gb: GraphBuilder, do: Any, dlse: Any, o1: Any, lse1: Any, o2: Any, lse2: Any, o: Any, lse: Any
) -> None:  # fmt: skip
    g, merged, loss = gb.graph, _read(gb, o, lse), _read(gb, do, dlse)
    most = g.max(merged.lse, gb.number(LOWEST))
    for i, part in enumerate((_read(gb, o1, lse1), _read(gb, o2, lse2))):
        weight = g.exp(g.sub(part.lse, most))
        along = g.reduction(g.mul(loss.o, g.sub(part.o, merged.o)), "ADD", dims=[o.ndim - 1])
        gb.write(2 * i, g.mul(loss.o, weight))
        gb.write(2 * i + 1, g.mul(weight, g.add(along, loss.lse)), *_rows(gb.outputs[2 * i + 1]))


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs, *output)


def _grad(ctx: Any, do: Any, dlse: Any) -> Any:
    return OPERATORS["merge_backward"].apply(do, dlse, *ctx.saved_tensors)


def _reference(o1: Any, lse1: Any, o2: Any, lse2: Any) -> tuple[Any, Any]:
    shares, lse = softmax_of(torch.stack([lse1, lse2], -1))
    first, second = (share[..., None] for share in shares.unbind(-1))
    return (o1 * first + o2 * second).to(o1.dtype), lse


def _backward_reference(do: Any, dlse: Any, *rest: Any) -> Any:
    return gradients(_reference, rest[:4], (do, dlse), (True,) * 4)


differentiable("merge", _keep, _grad, _reference, _backward_reference)


def merge(
    output1: torch.Tensor, logsumexp1: torch.Tensor, output2: torch.Tensor, logsumexp2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Combines the attention results of two disjoint sets of keys.

    Args:
        output1, output2: results, [.., rows, elements].
        logsumexp1, logsumexp2: statistics, [.., rows], as torch.ops.weft.sdpa returns them.

    Returns:
        The result and the statistics over all keys. A part in which a row sees no key does not contribute to
        that row.
    """
    merged: tuple[torch.Tensor, torch.Tensor] = torch.ops.weft.merge(output1, logsumexp1, output2, logsumexp2)
    return merged
