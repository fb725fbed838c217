"""Attention: of padded operands, as torch.nn.functional.scaled_dot_product_attention has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from weft.errors import NotSupportedError
from weft.tensor import Tensor
from weft.torch.ops import OPERATORS, differentiable, operator, stands_for
from weft.torch.plans import Drawing, _strides

aten = torch.ops.aten

HEADS = 1
"""The dimension of heads, of four: batch, heads, rows, elements."""


def _refuse_unlike(q: Any, k: Any, v: Any, mask: Any, causal: bool, shares_heads: bool) -> None:
    """Refuses what torch refuses, so that its own words are heard, and what has more than four dimensions."""
    if not 2 <= q.ndim <= 4 or k.ndim != q.ndim or v.ndim != q.ndim:
        raise NotSupportedError("sdpa: unequal ranks, or more than 4 dimensions. Leave it to torch.")
    if not q.dtype == k.dtype == v.dtype:
        raise NotSupportedError("sdpa: operands of several types. Leave it to torch.")
    if mask is not None and (causal or mask.ndim > 4 or mask.dtype not in (q.dtype, torch.bool)):
        raise NotSupportedError("sdpa: a mask beside is_causal, or of another type. Leave it to torch.")
    if not shares_heads and q.ndim > 2 and not q.shape[-3] == k.shape[-3] == v.shape[-3]:
        raise NotSupportedError("sdpa: unequal heads without enable_gqa. Leave it to torch.")


def _four(value: Any) -> tuple[list[int], list[int]]:
    """Dims and strides with 1s in front, so that there are four."""
    missing: int = 4 - value.ndim
    return [*[1] * missing, *value.shape], [*[1] * missing, *_strides(value)]


def _read(d: Drawing, value: Any) -> Tensor:
    return d.read(value) if value.ndim == 4 else d.read(value, *_four(value))


def _read_heads(d: Drawing, value: Any) -> Tensor:
    """Keys or values, in place of heads that are all one: these share it."""
    if value.ndim < 4 or value.stride(HEADS) or value.shape[HEADS] == 1:
        return _read(d, value)
    dims, steps = _four(value)
    dims[HEADS], steps[HEADS] = 1, 1
    return d.read(value, dims, steps)


def _write(d: Drawing, i: int, result: Tensor) -> None:
    """Makes a tensor of four dims result i."""
    value = d.outputs[i]
    d.write(i, result, *(() if value.ndim == 4 else _four(value)))


def _statistics(value: Any) -> tuple[list[int], list[int]]:
    """Dims and strides of one number for each row of scores."""
    dims, steps = _four(value[..., None])
    return dims, [*steps[:3], 1]


def _options(
    d: Drawing, q: Any, mask: Any, dropout: float, causal: bool, scale: float | None, seed: Any
) -> dict[str, Any]:
    """What attention and its gradients have in common."""
    if dropout and seed is None:
        raise NotSupportedError("sdpa: dropout needs dropout_seed, an int64 tensor of one element.")
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return {
        "attn_scale": d.number(factor),
        "bias": None if mask is None else d.read_broadcast(mask, 4),
        "use_causal_mask": causal,
        "dropout": (dropout, d.read(seed, [1] * 4), None) if dropout else None,
    }


def attend(
    d: Drawing, q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0, causal: bool = False,
    scale: float | None = None, seed: Any = None, with_statistics: bool = True,
) -> None:
    """Draws attention: result 0, and statistics as result 1."""
    how = _options(d, q, mask, dropout, causal, scale, seed)
    ends = (_read(d, q), _read_heads(d, k), _read_heads(d, v))
    o, statistics = d.graph.sdpa(*ends, generate_stats=with_statistics, **how)
    _write(d, 0, o)
    if with_statistics:
        d.write(1, statistics, *_statistics(d.outputs[1]))


def attend_backward(
    d: Drawing, do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, mask: Any = None, dropout: float = 0,
    causal: bool = False, scale: float | None = None, seed: Any = None, wants_mask: bool = False,
) -> None:
    """Draws the gradients of q, k, v, and of the mask as result 3."""
    how = _options(d, q, mask, dropout, causal, scale, seed)
    how["dBias"] = d.graph.tensor(how["bias"].get_dim()) if wants_mask else None
    ends: Any = [*(_read(d, each) for each in (q, k, v, o, do)), d.read(lse, *_statistics(lse))]
    for i, result in enumerate(d.graph.sdpa_backward(*ends, **how)):
        _write(d, i, result)
    if wants_mask:
        d.write(3, how["dBias"], *_four(d.outputs[3]))


# ---- The operator ----


def _like(q: Any, size: int) -> Any:
    """A result beside queries: of their layout where it is of their size."""
    return torch.empty_like(q) if size == q.shape[-1] else q.new_empty((*q.shape[:-1], size))


def _fake(
    q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0, causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False, seed: Any = None, with_statistics: bool = True,
) -> Any:  # fmt: skip
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    rows = q.shape[:-1] if with_statistics else (0,)
    return _like(q, v.shape[-1]), q.new_empty(rows, dtype=wide)


@operator(
    "sdpa",
    schema="(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, "
    "bool is_causal=False, float? scale=None, bool enable_gqa=False, Tensor? dropout_seed=None, "
    "bool compute_logsumexp=True) -> (Tensor output, Tensor logsumexp)",
    fake=_fake,
)
def _sdpa(
    d: Drawing, q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None,
    shares_heads: bool, seed: Any, with_statistics: bool,
) -> None:  # fmt: skip
    _refuse_unlike(q, k, v, mask, causal, shares_heads)
    attend(d, q, k, v, mask, dropout, causal, scale, seed, with_statistics)


def _fake_backward(do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, mask: Any, *how: Any) -> Any:
    return (*map(torch.empty_like, (q, k, v)), torch.empty_like(mask) if how[-1] else None)


@operator(
    "sdpa_backward",
    schema="(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor output, Tensor logsumexp, "
    "Tensor? attn_mask, float dropout_p, bool is_causal, float? scale, Tensor? dropout_seed, bool grad_mask) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    fake=_fake_backward,
)
def _sdpa_backward(d: Drawing, *arguments: Any) -> None:
    attend_backward(d, *arguments)


def _keep_sdpa(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mask, *ctx.how, _, seed, with_statistics = inputs
    if not with_statistics:
        raise NotSupportedError("sdpa: gradients need the statistics. Leave compute_logsumexp true.")
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output, mask, seed)


def _with_statistics(do: Any, dlse: Any, v: Any, o: Any) -> tuple[Any, Any, Any]:
    """dO, values and o with columns that bring the gradient of statistics into that of the scores, which is
    softmax * (dO v^T - dO o): values of 1 and an o of 0. Two columns carry what one would round, and others
    of 0 keep rows aligned."""
    high = dlse.to(v.dtype)
    parts = torch.stack([high, (dlse - high).to(v.dtype)], -1)
    do = torch.nn.functional.pad(torch.cat([do, parts], -1), (0, 6))
    ones = v.new_ones((*v.shape[:-1], 2))
    v = torch.nn.functional.pad(torch.cat([v, ones], -1), (0, 6))
    return do, v, torch.nn.functional.pad(o, (0, 8))


def _grad_sdpa(ctx: Any, do: Any, dlse: Any) -> Any:
    q, k, v, o, lse, mask, seed = ctx.saved_tensors
    if do is None and dlse is None:
        return (None,) * 10
    do, size = torch.zeros_like(o) if do is None else do, v.shape[-1]
    if dlse is not None:
        do, v, o = _with_statistics(do, dlse, v, o)
    wants_mask = mask is not None and ctx.needs_input_grad[3]
    # The gradient of an expanded mask is summed by who expanded it.
    mask = mask.contiguous() if wants_mask else mask
    ends = (do, q, k, v, o, lse, mask, *ctx.how, seed, wants_mask)
    dq, dk, dv, dmask = OPERATORS["sdpa_backward"].apply(*ends)
    return dq, dk, dv if dlse is None else dv[..., :size], dmask if wants_mask else None, *[None] * 6


differentiable("sdpa", _keep_sdpa, _grad_sdpa)


# ---- In place of torch's ----


_KINDS = (
    torch._C._get_flash_sdp_enabled, torch._C._get_mem_efficient_sdp_enabled, torch._C._get_cudnn_sdp_enabled,
)  # fmt: skip


def _only_spelled_out() -> bool:
    """Whether torch may compute attention only as products and a softmax, as its caller wants it."""
    return not any(is_enabled() for is_enabled in _KINDS)


def _of_one_batch(*ends: Any) -> Sequence[Any]:
    """Operands with the batches and heads of all, as torch's products broadcast them."""
    q, k, v = (each.shape for each in ends)
    if q == k == v or q[:-2] == k[:-2] == v[:-2]:
        return ends
    try:
        batch = torch.broadcast_shapes(*(each.shape[:-2] for each in ends))
    except RuntimeError:
        raise NotSupportedError("sdpa: batches or heads that do not broadcast. Leave it to torch.") from None
    return [each.expand(*batch, *each.shape[-2:]) for each in ends]


@stands_for("sdpa", aten.scaled_dot_product_attention.default, is_composite=True, others=(torch.bool,))
def _serve_sdpa(
    q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0, causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if _only_spelled_out():
        raise NotSupportedError("sdpa: torch's backends leave the one of products and softmax alone.")
    q, k, v = (q, k, v) if enable_gqa else _of_one_batch(q, k, v)
    seed = torch.randint(1 << 62, (1,), device=q.device) if dropout else None
    trains = torch.is_grad_enabled() and torch._C._any_requires_grad(q, k, v, mask)
    return OPERATORS["sdpa"].apply(q, k, v, mask, dropout, causal, scale, enable_gqa, seed, trains)[0]
