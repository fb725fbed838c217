"""Registers Weft as a flash attention provider of torch: calls to flash attention on a GPU, by torch, by
Inductor's code and by torch.nn.attention.varlen, then run Weft's kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from weft.errors import NotSupportedError, WeftError
from weft.torch.ops import OPERATORS

aten = torch.ops.aten

NAME = "WEFT"


def _seed(q: Any, dropout: float) -> tuple[Any, Any]:
    """Returns the dropout seed for Weft and the two-number state that torch saves for the backward pass."""
    if not dropout:
        return None, torch.zeros(2, dtype=torch.uint64, device=q.device)
    drawn = torch.randint(1 << 62, (2,), device=q.device)
    return drawn[:1], drawn.view(torch.uint64)


def _seed_of(state: Any, dropout: float) -> Any:
    return state.view(torch.int64)[:1] if dropout else None


def _auxiliary(q: Any, state: Any) -> tuple[Any, Any, Any]:
    """Returns the state, a value that torch does not use, and the mask, which only debug mode needs."""
    unused = torch.zeros((), dtype=torch.uint64, device=q.device)
    return state, unused, q.new_empty(0)


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value:
            raise NotSupportedError(f"flash attention: {name}.")


def _refuse_uneven(q: Any, k: Any, causal: bool, rows: int) -> None:
    """Refuses causal attention with unequal lengths: flash attention aligns the mask to the last query,
    torch's causal mask to the first."""
    if causal and q.shape[rows] != k.shape[rows]:
        raise NotSupportedError("flash attention: causal, with more or fewer keys than queries.")


def _window(size: int | None) -> int:
    return -1 if size is None else size


# ---- Layout [batch, heads, rows, elements] ----


def _dense(
    q: Any, k: Any, v: Any, dropout: float = 0, causal: bool = False, debug: bool = False, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    _refuse(return_debug_mask=debug)
    _refuse_uneven(q, k, causal, 2)
    seed, state = _seed(q, dropout)
    o, lse = OPERATORS["sdpa"](q, k, v, None, dropout, causal, scale, True, seed, True)
    return o, lse, None, None, q.shape[2], k.shape[2], *_auxiliary(q, state)


def _dense_backward(
    do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, _: Any, __: Any, ___: int, ____: int, dropout: float,
    causal: bool, state: Any, offset: Any, *, scale: float | None = None,
) -> Any:  # fmt: skip
    _refuse_uneven(q, k, causal, 2)
    options = (None, dropout, causal, scale, _seed_of(state, dropout), False)
    return OPERATORS["sdpa_backward"](do, q, k, v, o, lse, *options)[:3]


# ---- Layout [batch, rows, heads, elements], or packed sequences ----


def _swapped(*values: Any) -> Any:
    return (each.transpose(1, 2) for each in values)


def _forward(
    q: Any, k: Any, v: Any, starts: Any, starts_k: Any, longest: int, longest_k: int, dropout: float,
    causal: bool, debug: bool, *, scale: float | None = None, window_size_left: int | None = None,
    window_size_right: int | None = None, seqused_k: Any = None, alibi_slopes: Any = None,
    block_table: Any = None, num_splits: int | None = None,
) -> Any:  # fmt: skip
    _refuse(seqused_k=seqused_k is not None, alibi_slopes=alibi_slopes is not None)
    _refuse(block_table=block_table is not None)
    band = _window(window_size_left), _window(window_size_right)
    if starts is None:
        _refuse(windows_of_padded_operands=band != (-1, -1))
        ends: Any = _swapped(q, k, v)
        options: Any = (dropout, causal, debug)
        o, lse, *_, state, unused, mask = _dense(*ends, *options, scale=scale)
        return o.transpose(1, 2), lse, state, unused, mask
    _refuse(dropout_over_packed_sequences=dropout, return_debug_mask=debug)
    layout = (starts, starts_k, longest, longest_k, scale, causal, *band)
    return *OPERATORS["sdpa_varlen"](q, k, v, *layout), *_auxiliary(q, _seed(q, 0)[1])


def _forward_into(out: Any, *arguments: Any, **named: Any) -> Any:
    o, lse, *_ = _forward(*arguments, **named)
    out.copy_(o)
    return lse


def _backward(
    do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, starts: Any, starts_k: Any, longest: int,
    longest_k: int, dropout: float, causal: bool, state: Any, unused: Any, *, scale: float | None = None,
    window_size_left: int | None = None, window_size_right: int | None = None,
) -> Any:  # fmt: skip
    band = _window(window_size_left), _window(window_size_right)
    if starts is None:
        _refuse(windows_of_padded_operands=band != (-1, -1))
        do, q, k, v, o = _swapped(do, q, k, v, o)
        lengths = (None, None, longest, longest_k)
        results = _dense_backward(do, q, k, v, o, lse, *lengths, dropout, causal, state, unused, scale=scale)
        return tuple(_swapped(*results))
    _refuse(dropout_over_packed_sequences=dropout)
    ends = (starts, starts_k, longest, longest_k, scale, causal, *band)
    return OPERATORS["sdpa_varlen_backward"](do.contiguous(), q, k, v, o, lse, *ends)


KERNELS: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention": _dense,
    "_scaled_dot_product_flash_attention_backward": _dense_backward,
    "_flash_attention_forward": _forward,
    "_flash_attention_forward_no_dropout_inplace": _forward_into,
    "_flash_attention_backward": _backward,
}
"""The replacement of each of torch's flash attention operators."""


class Provider:
    """Installs Weft's kernels in torch's dispatcher, until remove()."""

    def __init__(self, key: str = "CUDA") -> None:
        self._library: Any = torch.library.Library("aten", "IMPL")
        for name, serve in KERNELS.items():
            if hasattr(aten, name):
                self._put(name, serve, key)

    def _put(self, name: str, serve: Callable[..., Any], key: str) -> None:
        operator = getattr(aten, name).default
        has_own = torch._C._dispatch_has_kernel_for_dispatch_key(operator._schema.name, key)
        native = torch.library.get_kernel(operator, key) if has_own else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the override is intended
            self._library.impl(name, _or_own(serve, native), key, with_keyset=True, allow_override=True)

    def remove(self) -> None:
        """Restores torch's own kernels."""
        if self._library is not None:
            self._library._destroy()
        self._library = None


def _or_own(serve: Callable[..., Any], native: Any) -> Callable[..., Any]:
    """Calls Weft, and torch's own kernel if Weft refuses the arguments."""

    def answer(keys: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return serve(*arguments, **named)
        except WeftError:
            if native is None:
                raise
        return native.call_boxed(keys, *arguments, **named)

    return answer


def register_sdpa(name: str = NAME) -> str:
    """Registers Weft as a provider of torch's flash attention.
    torch.nn.attention.activate_flash_attention_impl then selects it, and restore_flash_attention_impl
    deselects it.

    Args:
        name: the name under which to register.
    """
    attention = torch.nn.attention
    if not hasattr(attention, "register_flash_attention_impl"):
        raise NotSupportedError(
            f"register_sdpa: torch {torch.__version__} has no register_flash_attention_impl in "
            "torch.nn.attention. Use weft.torch.enable(['sdpa'])."
        )
    attention.register_flash_attention_impl(name, register_fn=Provider)
    return name
