"""Attention without padding: packed sequences of variable length, and paged keys and values."""

from __future__ import annotations

import math
from typing import Any

import torch

from weft.arguments import counted
from weft.enums import diagonal_alignment
from weft.errors import NotSupportedError
from weft.tensor import Tensor
from weft.torch.operators.attention import scores_of, softmax_of
from weft.torch.ops import OPERATORS, differentiable, gradients, operator
from weft.torch.plans import GraphBuilder

NO_BOUND = -1
"""A window that is unbounded on that side."""


def _band(causal: bool, left: int, right: int) -> dict[str, Any]:
    """Returns the options of a window. Windows are aligned to the bottom right: the last query sees the last
    key."""
    right = 0 if causal else right
    return {
        "diagonal_alignment": diagonal_alignment.BOTTOM_RIGHT,
        "diagonal_band_left_bound": None if left == NO_BOUND else left + 1,
        "diagonal_band_right_bound": None if right == NO_BOUND else right,
    }


def _scale(gb: GraphBuilder, q: Any, scale: float | None) -> Tensor:
    return gb.number(1 / math.sqrt(q.shape[-1]) if scale is None else scale)


# ---- Packed sequences ----


class _Side:
    """The queries or the keys of all packed sequences: their offsets and their maximum length."""

    def __init__(self, gb: GraphBuilder, starts: Any, longest: int) -> None:
        self.d, self.count, self.longest = gb, starts.numel() - 1, longest
        self.starts = gb.read(starts, [starts.numel(), 1, 1, 1])

    def shape(self, value: Any) -> tuple[list[int], list[int]]:
        """Returns dims and strides of tokens [tokens, heads, elements] as a batch of sequences."""
        tokens, heads, size = value.shape
        token, head, element = value.stride()
        longest = min(self.longest, tokens)
        # The offsets locate the sequences; the batch stride only has to span all tokens.
        each = max(longest, -(-tokens // max(self.count, 1)))
        return [self.count, heads, longest, size], [max(each * token, heads * head), head, token, element]

    def read(self, value: Any) -> Tensor:
        """Reads tokens as an operand."""
        return self._ragged(self.d.read(value, *self.shape(value)), value)

    def write(self, i: int, result: Tensor) -> None:
        """Declares a tensor as result i, stored as tokens."""
        value = self.d.outputs[i]
        self.d.write(i, result, *self.shape(value))
        self._ragged(result, value)

    def _ragged(self, tensor: Tensor, value: Any) -> Tensor:
        return tensor.set_ragged_offset(self.starts).set_ragged_offset_multiplier(value.stride(0))


def _statistics(lse: Any) -> Any:
    """Views statistics [heads, tokens] as tokens of one element."""
    return lse.t()[..., None]


class _Tokens:
    """Options that attention over packed sequences shares with its gradient."""

    def __init__(
        self, gb: GraphBuilder, q: Any, starts: Any, starts_k: Any, longest: int, longest_k: int,
        scale: float | None, *band: Any,
    ) -> None:  # fmt: skip
        if q.ndim != 3 or starts.numel() != starts_k.numel():
            raise NotSupportedError(
                "sdpa_varlen: expected query [tokens, heads, elements] and cu_seqlens of equal length, "
                f"got {list(q.shape)}, {starts.numel()} and {counted(starts_k.numel(), 'element')}."
            )
        self.queries = _Side(gb, starts, longest)
        self.keys = _Side(gb, starts_k, longest_k)
        self.options = {"attn_scale": _scale(gb, q, scale), "use_padding_mask": True, **_band(*band)}
        self.options |= {"cu_seq_len_q": self.queries.starts, "cu_seq_len_kv": self.keys.starts}


def _fake_varlen(q: Any, k: Any, v: Any, *_: Any) -> Any:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    o = q.new_empty((*q.shape[:2], v.shape[-1]))
    return o, q.new_empty((q.shape[1], q.shape[0]), dtype=wide)


@operator(
    "sdpa_varlen",
    schema="(Tensor query, Tensor key, Tensor value, Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_q, "
    "int max_k, float? scale=None, bool is_causal=False, int window_left=-1, int window_right=-1) "
    "-> (Tensor output, Tensor logsumexp)",
    fake=_fake_varlen,
)
def _sdpa_varlen(gb: GraphBuilder, q: Any, k: Any, v: Any, *layout: Any) -> None:
    tokens = _Tokens(gb, q, *layout)
    queries, keys = tokens.queries, tokens.keys
    ends = queries.read(q), keys.read(k), keys.read(v)
    o, statistics = gb.graph.sdpa(*ends, generate_stats=True, **tokens.options)
    queries.write(0, o)
    lse = gb.outputs[1]
    gb.write(1, statistics, *queries.shape(_statistics(lse)))
    statistics.set_ragged_offset(queries.starts).set_ragged_offset_multiplier(1)


def _fake_varlen_backward(do: Any, q: Any, k: Any, v: Any, *_: Any) -> Any:
    return tuple(each.new_empty(each.shape) for each in (q, k, v))


@operator(
    "sdpa_varlen_backward",
    schema="(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor output, Tensor logsumexp, "
    "Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_q, int max_k, float? scale, bool is_causal, "
    "int window_left, int window_right) -> (Tensor, Tensor, Tensor)",
    fake=_fake_varlen_backward,
)
def _sdpa_varlen_backward(
    gb: GraphBuilder, do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *layout: Any
) -> None:
    tokens = _Tokens(gb, q, *layout)
    queries, keys = tokens.queries, tokens.keys
    statistics = gb.read(lse, *queries.shape(_statistics(lse)))
    statistics.set_ragged_offset(queries.starts).set_ragged_offset_multiplier(1)
    ends: Any = (queries.read(q), keys.read(k), keys.read(v), queries.read(o), queries.read(do), statistics)
    results = gb.graph.sdpa_backward(*ends, **tokens.options)
    for i, (side, result) in enumerate(zip((queries, keys, keys), results, strict=True)):
        side.write(i, result)


def _keep_varlen(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, starts, starts_k, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output, starts, starts_k)
    ctx.mark_non_differentiable(output[1])


def _grad_varlen(ctx: Any, do: Any, _: Any) -> Any:
    # The offsets are multiplied by one token stride, which an expanded gradient does not have.
    ends = (do.contiguous(), *ctx.saved_tensors, *ctx.options)
    return *OPERATORS["sdpa_varlen_backward"].apply(*ends), *[None] * 8


def _visible(
    starts: Any, starts_k: Any, tokens: int, tokens_k: int, causal: bool, left: int, right: int
) -> torch.Tensor:
    """Returns a mask of the keys that each query sees, [query tokens, key tokens]."""
    sides: list[tuple[torch.Tensor, torch.Tensor]] = []
    for bounds, count in ((starts, tokens), (starts_k, tokens_k)):
        token = torch.arange(count, device=bounds.device)
        sequence = torch.bucketize(token, bounds[1:].to(token.dtype), right=True)
        last = bounds[1:].to(token.dtype)[sequence.clamp(max=bounds.numel() - 2)]
        is_used = sequence < bounds.numel() - 1
        sides.append((torch.where(is_used, sequence, -1 - len(sides)), token - last))
    (sequence, place), (sequence_k, place_k) = sides
    ahead = place_k[None] - place[:, None]  # relative to the last key that a causal query sees
    is_visible = sequence[:, None] == sequence_k[None]
    right = 0 if causal else right
    if left != NO_BOUND:
        is_visible = is_visible & (ahead >= -left)
    return is_visible & (ahead <= right) if right != NO_BOUND else is_visible


def _reference(
    q: Any,
    k: Any,
    v: Any,
    starts: Any,
    starts_k: Any,
    longest: int,
    longest_k: int,
    scale: float | None,
    *band: Any,
) -> tuple[Any, Any]:
    mask = _visible(starts, starts_k, q.shape[0], k.shape[0], *band)
    rows, keys, values = (each.transpose(0, 1) for each in (q, k, v))
    s = scores_of(rows, keys, values, mask, False, scale)
    p, lse = softmax_of(s.scores)
    return (p @ s.v).transpose(0, 1).to(q.dtype), lse


def _backward_reference(do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *layout: Any) -> Any:
    return gradients(lambda *ends: _reference(*ends, *layout)[0], (q, k, v), do, (True,) * 3)


differentiable("sdpa_varlen", _keep_varlen, _grad_varlen, _reference, _backward_reference)


# ---- Paged keys and values ----


def _fake_paged(q: Any, k: Any, v: Any, *_: Any) -> Any:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(q.shape[:-1], dtype=wide)


@operator(
    "sdpa_paged",
    schema="(Tensor query, Tensor key_pages, Tensor value_pages, Tensor block_table, Tensor seqlens_k, "
    "float? scale=None, bool is_causal=False, int window_left=-1, int window_right=-1, "
    "Tensor? seqlens_q=None) -> (Tensor output, Tensor logsumexp)",
    fake=_fake_paged,
)
def _sdpa_paged(
    gb: GraphBuilder, q: Any, k: Any, v: Any, table: Any, lengths: Any, scale: float | None, causal: bool,
    left: int, right: int, lengths_q: Any,
) -> None:  # fmt: skip
    count, pages_each = table.shape
    pages = gb.read(table, [count, 1, pages_each, 1], [table.stride(0), 1, table.stride(1), 1])
    one_each = [q.shape[0], 1, 1, 1]
    o, statistics = gb.graph.sdpa(
        gb.read(q), gb.read(k), gb.read(v), attn_scale=_scale(gb, q, scale), generate_stats=True,
        use_padding_mask=lengths_q is not None,
        seq_len_kv=gb.read(lengths, one_each),
        seq_len_q=None if lengths_q is None else gb.read(lengths_q, one_each),
        paged_attention_k_table=pages, paged_attention_v_table=pages,
        paged_attention_max_seq_len_kv=pages_each * k.shape[2],
        **_band(causal, left, right),
    )  # fmt: skip
    gb.write(0, o)
    gb.write(1, statistics, [*q.shape[:-1], 1])


def _keep_paged(ctx: Any, inputs: Any, output: Any) -> None:
    """Saves nothing, because there is no gradient."""


def _grad_paged(ctx: Any, *_: Any) -> Any:
    raise NotSupportedError(
        "sdpa_paged: no gradient: expected operands without one, got operands that require it. Detach them."
    )


differentiable("sdpa_paged", _keep_paged, _grad_paged)
