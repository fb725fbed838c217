"""Attention."""

from __future__ import annotations

import math
from typing import Any

import torch

from weft.errors import NotSupportedError
from weft.torch.ops import differentiable, operator
from weft.torch.plans import Drawing

aten = torch.ops.aten


def _attention(d: Drawing, q: Any, dropout: float, causal: bool, mask: Any, scale: Any) -> dict[str, Any]:
    """What attention and its gradients have in common."""
    if dropout or q.ndim != 4:
        raise NotSupportedError("sdpa: dropout, or q of other than 4 dimensions. Leave it to torch.")
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    bias = None if mask is None else d.read_broadcast(mask, 4)
    return {"attn_scale": d.number(factor), "bias": bias, "use_causal_mask": causal}


def _statistics(value: Any) -> tuple[list[int], list[int]]:
    """Dims and strides of one number for each row of scores."""
    return [*value.shape, 1], [*value.stride(), 1]


@operator("sdpa", aten._scaled_dot_product_flash_attention_for_cpu.default, ("cpu",))
def _sdpa(
    d: Drawing, q: Any, k: Any, v: Any, dropout: float, causal: bool, mask: Any, scale: Any
) -> None:
    how = _attention(d, q, dropout, causal, mask, scale)
    o, statistics = d.graph.sdpa(d.read(q), d.read(k), d.read(v), generate_stats=True, **how)
    d.write(0, o)
    d.write(1, statistics, *_statistics(d.outputs[1]))


@operator("sdpa_backward", aten._scaled_dot_product_flash_attention_for_cpu_backward.default, ("cpu",))
def _sdpa_backward(
    d: Drawing, do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, dropout: float, causal: bool, mask: Any,
    scale: Any,
) -> None:
    how = _attention(d, q, dropout, causal, mask, scale)
    ends: Any = [d.read(each) for each in (q, k, v, o, do)]
    ends.append(d.read(lse, *_statistics(lse)))
    for i, result in enumerate(d.graph.sdpa_backward(*ends, **how)):
        d.write(i, result)


def _keep_sdpa(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, *ctx.how, mask, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output, mask)
    ctx.mark_non_differentiable(output[1])


def _grad_sdpa(ctx: Any, do: Any, _: Any) -> Any:
    *tensors, mask = ctx.saved_tensors
    return *torch.ops.weft.sdpa_backward(do, *tensors, *ctx.how, mask, ctx.scale), *[None] * 4


differentiable("sdpa", _keep_sdpa, _grad_sdpa)
