"""Attention with padded operands: torch.nn.functional.scaled_dot_product_attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from weft.errors import NotSupportedError
from weft.tensor import Tensor
from weft.torch.ops import OPERATORS, differentiable, operator, stands_for
from weft.torch.plans import GraphBuilder, _strides

aten = torch.ops.aten

HEADS = 1
"""The index of the heads dimension in [batch, heads, rows, elements]."""


def _refuse_unlike(q: Any, k: Any, v: Any, mask: Any, causal: bool, shares_heads: bool) -> None:
    """Refuses what torch refuses, so that torch raises its own error, and operands of more than four
    dimensions."""
    if not 2 <= q.ndim <= 4 or k.ndim != q.ndim or v.ndim != q.ndim:
        raise NotSupportedError("sdpa: unequal ranks, or more than 4 dimensions. Leave it to torch.")
    if not q.dtype == k.dtype == v.dtype:
        raise NotSupportedError("sdpa: operands of different types. Leave it to torch.")
    if mask is not None and (causal or mask.ndim > 4 or mask.dtype not in (q.dtype, torch.bool)):
        raise NotSupportedError("sdpa: a mask with is_causal, or of an unsupported type. Leave it to torch.")
    if not shares_heads and q.ndim > 2 and not q.shape[-3] == k.shape[-3] == v.shape[-3]:
        raise NotSupportedError("sdpa: unequal heads without enable_gqa. Leave it to torch.")


def _four_dims(value: Any) -> tuple[list[int], list[int]]:
    """Returns dims and strides, padded with 1 in front to four dimensions."""
    missing: int = 4 - value.ndim
    return [*[1] * missing, *value.shape], [*[1] * missing, *_strides(value)]


def _read(gb: GraphBuilder, value: Any) -> Tensor:
    return gb.read(value) if value.ndim == 4 else gb.read(value, *_four_dims(value))


def _read_heads(gb: GraphBuilder, value: Any) -> Tensor:
    """Reads keys or values. Heads that were expanded from one are read as one shared head."""
    if value.ndim < 4 or value.shape[HEADS] == 1 or not gb.is_expanded(value, HEADS):
        return _read(gb, value)
    dims, steps = _four_dims(value)
    dims[HEADS], steps[HEADS] = 1, 1
    return gb.read(value, dims, steps)


def _write(gb: GraphBuilder, i: int, result: Tensor) -> None:
    """Declares a four-dimensional tensor as result i."""
    value = gb.outputs[i]
    gb.write(i, result, *(() if value.ndim == 4 else _four_dims(value)))


def _statistics(value: Any) -> tuple[list[int], list[int]]:
    """Returns dims and strides of one number per row of scores."""
    dims, steps = _four_dims(value[..., None])
    return dims, [*steps[:3], 1]


def _options(
    gb: GraphBuilder, q: Any, mask: Any, dropout: float, causal: bool, scale: float | None, seed: Any
) -> dict[str, Any]:
    """Returns the options that attention and its gradient share."""
    if dropout and seed is None:
        raise NotSupportedError("sdpa: dropout needs dropout_seed, an int64 tensor of one element.")
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return {
        "attn_scale": gb.number(factor),
        "bias": None if mask is None else gb.read_broadcast(mask, 4),
        "use_causal_mask": causal,
        "dropout": (dropout, gb.read(seed, [1] * 4), None) if dropout else None,
    }


def attend(
    gb: GraphBuilder,
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout: float = 0,
    causal: bool = False,
    scale: float | None = None,
    seed: Any = None,
    with_statistics: bool = True,
) -> None:
    """Adds attention: the output as result 0 and the statistics as result 1."""
    options = _options(gb, q, mask, dropout, causal, scale, seed)
    ends = (_read(gb, q), _read_heads(gb, k), _read_heads(gb, v))
    o, statistics = gb.graph.sdpa(*ends, generate_stats=with_statistics, **options)
    _write(gb, 0, o)
    if with_statistics:
        gb.write(1, statistics, *_statistics(gb.outputs[1]))


def attend_backward(
    gb: GraphBuilder,
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    mask: Any = None,
    dropout: float = 0,
    causal: bool = False,
    scale: float | None = None,
    seed: Any = None,
    wants_mask: bool = False,
) -> None:
    """Adds the gradients of q, k and v, and that of the mask as result 3."""
    options = _options(gb, q, mask, dropout, causal, scale, seed)
    options["dBias"] = gb.graph.tensor(options["bias"].get_dim()) if wants_mask else None
    ends: Any = [*(_read(gb, each) for each in (q, k, v, o, do)), gb.read(lse, *_statistics(lse))]
    for i, result in enumerate(gb.graph.sdpa_backward(*ends, **options)):
        _write(gb, i, result)
    if wants_mask:
        gb.write(3, options["dBias"], *_four_dims(gb.outputs[3]))


# ---- The operator ----


def _like(q: Any, size: int) -> Any:
    """Returns an output in the layout of the queries, if it has their size. On the CPU torch packs it if the
    elements of a row are not contiguous."""
    if q.device.type != "cuda" and q.stride(-1) != 1:
        return q.new_empty((*q.shape[:-1], size))
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
    gb: GraphBuilder, q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None,
    shares_heads: bool, seed: Any, with_statistics: bool,
) -> None:  # fmt: skip
    _refuse_unlike(q, k, v, mask, causal, shares_heads)
    attend(gb, q, k, v, mask, dropout, causal, scale, seed, with_statistics)


def _fake_backward(do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, mask: Any, *options: Any) -> Any:
    """Returns results in torch's layouts. On the CPU, torch's flash attention stores the heads of a row next
    to each other; its decomposition into products returns packed results, with the gradient of the keys
    transposed."""
    dmask = torch.empty_like(mask) if options[-1] else None
    if q.device.type == "cuda":
        return (*map(torch.empty_like, (q, k, v)), dmask)
    if q.ndim == 4 and all(each.stride(-1) == 1 for each in (q, k, v)) and not (options[0] or options[-1]):
        return (*(each.new_empty(each.transpose(1, 2).shape).transpose(1, 2) for each in (q, k, v)), dmask)
    return q.new_empty(q.shape), k.new_empty(k.mT.shape).mT, v.new_empty(v.shape), dmask


@operator(
    "sdpa_backward",
    schema="(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor output, Tensor logsumexp, "
    "Tensor? attn_mask, float dropout_p, bool is_causal, float? scale, Tensor? dropout_seed, bool grad_mask) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    fake=_fake_backward,
)
def _sdpa_backward(gb: GraphBuilder, *arguments: Any) -> None:
    attend_backward(gb, *arguments)


def _keep_sdpa(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mask, *ctx.options, _, seed, with_statistics = inputs
    if not with_statistics:
        raise NotSupportedError("sdpa: gradients need the statistics. Leave compute_logsumexp true.")
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output, mask, seed)


def _with_statistics(do: Any, dlse: Any, v: Any, o: Any) -> tuple[Any, Any, Any]:
    """Appends columns to dO, V and O that add the gradient of the statistics to that of the scores, softmax *
    (dropped(dO v^T) - dO o). The columns are 1 in dO, 0 in V and the negated gradient in O; dropout does not
    affect them. Two columns preserve the bits that one would round away, and zero columns keep rows
    aligned."""
    high = dlse.to(o.dtype)
    parts = torch.stack([high, (dlse - high).to(o.dtype)], -1)
    o = torch.nn.functional.pad(torch.cat([o, -parts], -1), (0, 6))
    ones = do.new_ones((*do.shape[:-1], 2))
    do = torch.nn.functional.pad(torch.cat([do, ones], -1), (0, 6))
    return do, torch.nn.functional.pad(v, (0, 8)), o


def _grad_sdpa(ctx: Any, do: Any, dlse: Any) -> Any:
    q, k, v, o, lse, mask, seed = ctx.saved_tensors
    if do is None and dlse is None:
        return (None,) * 10
    do, size = torch.zeros_like(o) if do is None else do, v.shape[-1]
    if dlse is not None:
        do, v, o = _with_statistics(do, dlse, v, o)
    wants_mask = mask is not None and ctx.needs_input_grad[3]
    # The autograd node of the expand sums the gradient of an expanded mask.
    mask = mask.contiguous() if wants_mask else mask
    ends = (do, q, k, v, o, lse, mask, *ctx.options, seed, wants_mask)
    dq, dk, dv, dmask = OPERATORS["sdpa_backward"].apply(*ends)
    return dq, dk, dv if dlse is None else dv[..., :size], dmask if wants_mask else None, *[None] * 6


# ---- Reference in torch operators ----


class _Scores(NamedTuple):
    """Attention up to the softmax, in float or double: [.., heads of q, rows, elements]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scores: torch.Tensor
    factor: float
    repeats: int
    """The number of query heads per key head."""

    def shared(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Sums the gradients of the query heads that share a head of keys or values."""
        if self.repeats > 1:
            gradient = gradient.unflatten(-3, (-1, self.repeats)).sum(-3)
        return gradient.to(like.dtype)


def scores_of(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None) -> _Scores:
    """Computes the scores of attention as a differentiable function."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    repeats = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
    q, k, v = (each.to(wide) for each in (q, k, v))
    if repeats > 1:
        k, v = (each.repeat_interleave(repeats, -3) for each in (k, v))
    scores = q @ k.mT * factor
    shape = scores.shape
    if causal:
        is_hidden = torch.ones(shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(is_hidden, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return _Scores(q, k, v, scores.reshape(shape), factor, repeats)


def softmax_of(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes softmax and logsumexp of rows. Rows without a key have 0 and -inf, and gradients of 0."""
    most = scores.detach().amax(-1, keepdim=True)
    weights = torch.exp(scores - torch.where(most == -torch.inf, 0, most))
    total = weights.sum(-1, keepdim=True)
    safe = torch.where(total > 0, total, 1)
    return weights / safe, torch.where(total > 0, safe.log() + most, -torch.inf).squeeze(-1)


def _dropout_factors(s: _Scores, dropout: float, seed: Any) -> torch.Tensor | float:
    """Returns the factors by which dropout multiplies the probabilities. They are read from the operator's
    own output for equal scores, with columns of the identity as values."""
    if not dropout:
        return 1.0
    q, k = torch.zeros_like(s.q.detach()), torch.zeros_like(s.k.detach())
    count, parts = k.shape[-2], []
    columns = torch.eye(count, dtype=q.dtype, device=q.device).expand(*k.shape[:-2], -1, -1)
    for part in columns.split(64, -1):
        ends = (q, k, part, None, dropout, False, None, False, seed, True)
        parts.append(OPERATORS["sdpa"].transformed.apply(*ends)[0] != 0)
    return torch.cat(parts, -1).to(q.dtype) / (1 - dropout)


def _reference(
    q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None, shares_heads: bool,
    seed: Any, with_statistics: bool,
) -> tuple[Any, Any]:  # fmt: skip
    _refuse_unlike(q, k, v, mask, causal, shares_heads)
    s = scores_of(q, k, v, mask, causal, scale)
    p, lse = softmax_of(s.scores)
    o = (p * _dropout_factors(s, dropout, seed) @ s.v).to(q.dtype)
    return o, lse if with_statistics else lse.new_empty(0)


def _backward_reference(
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    mask: Any,
    dropout: float,
    causal: bool,
    scale: float | None,
    seed: Any,
    wants_mask: bool,
) -> tuple[Any, ...]:
    """o and lse are independent arguments here; a caller that differentiates treats them as functions of q, k
    and v."""
    s = scores_of(q, k, v, mask, causal, scale)
    p = torch.exp(s.scores - torch.where(lse == -torch.inf, 0, lse)[..., None])
    loss, used = do.to(p.dtype), p * _dropout_factors(s, dropout, seed)
    along = (loss * o).sum(-1, keepdim=True)
    ds = used * (loss @ s.v.mT) - p * along
    dq, dk, dv = ds @ s.k * s.factor, ds.mT @ s.q * s.factor, used.mT @ loss
    dmask = ds.sum_to_size(mask.shape).to(mask.dtype) if wants_mask else None
    return dq.to(q.dtype), s.shared(dk, k), s.shared(dv, v), dmask


differentiable("sdpa", _keep_sdpa, _grad_sdpa, _reference, _backward_reference)


# ---- Replacement of torch's operator ----


_FUSED_BACKENDS = (
    torch._C._get_flash_sdp_enabled, torch._C._get_mem_efficient_sdp_enabled, torch._C._get_cudnn_sdp_enabled,
)  # fmt: skip


def _is_math_only() -> bool:
    """True if the caller allows torch only the decomposed implementation, products and a softmax."""
    return not any(is_enabled() for is_enabled in _FUSED_BACKENDS)


def _of_one_batch(*ends: Any) -> Sequence[Any]:
    """Broadcasts the batches and heads of the operands, as torch's products do."""
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
    if _is_math_only():
        raise NotSupportedError("sdpa: only torch's MATH backend is enabled. Leave it to torch.")
    q, k, v = (q, k, v) if enable_gqa else _of_one_batch(q, k, v)
    seed = torch.randint(1 << 62, (1,), device=q.device) if dropout else None
    trains = torch.is_grad_enabled() and torch._C._any_requires_grad(q, k, v, mask)
    return OPERATORS["sdpa"].apply(q, k, v, mask, dropout, causal, scale, enable_gqa, seed, trains)[0]
