"""Rules that compute the shapes, strides and types of an operator's results. torch's fake kernels compute
these step by step in Python, which costs more than the rest of building a plan. Each rule covers the tensors
that are common in networks, in torch's usual layouts. For other tensors, and for arguments that torch may
refuse, a rule returns None, and torch's fake kernel is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

Rule = Callable[..., Sequence[Any] | None]
"""Maps an operator's arguments to its results as tensors without memory (None for an absent result), or to
None if the rule does not apply."""

_FLOATS = (torch.float32, torch.float64)


def _is_packed(value: torch.Tensor) -> bool:
    """True if a tensor has elements and the strides that torch gives a new tensor."""
    step = 1
    for extent, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if stride != step or not extent:
            return False
        step *= extent
    return True


def _are_plain(x: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """True if the tensors have elements and the same type, float32 or float64, so that torch does not convert
    in between."""
    return x.dtype in _FLOATS and x.numel() > 0 and all(e is None or e.dtype == x.dtype for e in others)


def _new(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=like.dtype, device="meta")


def _like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, device="meta")


# ---- Norms ----


def _is_normalized(x: torch.Tensor, shape: Sequence[int], *parameters: torch.Tensor | None) -> bool:
    fits = 0 < len(shape) <= x.ndim and tuple(x.shape[-len(shape) :]) == tuple(shape)
    return fits and _is_packed(x) and all(p is None or tuple(p.shape) == tuple(shape) for p in parameters)


def _statistics(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return _new(x, [*x.shape[: -len(shape)], *[1] * len(shape)])


def _wanted(wanted: Sequence[bool], gradients: Sequence[Any]) -> Sequence[Any]:
    return [gradient if is_wanted else None for gradient, is_wanted in zip(gradients, wanted, strict=True)]


def layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, _: float) -> Sequence[Any] | None:
    """Rule for a packed input."""
    if not (_are_plain(x, weight, bias) and _is_normalized(x, shape, weight, bias)):
        return None
    return _new(x, x.shape), _statistics(x, shape), _statistics(x, shape)


def layer_norm_backward(
    dy: Any,
    x: Any,
    shape: Sequence[int],
    mean: Any,
    rstd: Any,
    weight: Any,
    bias: Any,
    wanted: Sequence[bool],
) -> Sequence[Any] | None:
    """Rule for a packed input."""
    given = dy, mean, rstd, weight, bias
    is_usual = _are_plain(x, *given) and _is_normalized(x, shape, weight, bias) and dy.shape == x.shape
    if not is_usual or mean.numel() != rstd.numel() or mean.numel() * math.prod(shape) != x.numel():
        return None
    return _wanted(
        wanted, [_new(x, x.shape), *(None if p is None else _new(p, p.shape) for p in (weight, bias))]
    )


def rms_norm(x: Any, shape: Sequence[int], weight: Any, _: float | None) -> Sequence[Any] | None:
    """Rule for a packed input."""
    if not (_are_plain(x, weight) and _is_normalized(x, shape, weight)):
        return None
    return _new(x, x.shape), _statistics(x, shape)


def _are_channels(x: torch.Tensor, n: int, c: int, hw: int, groups: int, *parameters: Any) -> bool:
    is_split = groups > 0 and c % groups == 0 and tuple(x.shape[:2]) == (n, c) and x.numel() == n * c * hw
    return is_split and all(p is None or tuple(p.shape) == (c,) for p in parameters)


def group_norm(
    x: Any, weight: Any, bias: Any, n: int, c: int, hw: int, groups: int, _: float
) -> Sequence[Any] | None:
    """Rule for an input in any layout."""
    if not (_are_plain(x, weight, bias) and _are_channels(x, n, c, hw, groups, weight, bias)):
        return None
    return _like(x), _new(x, (n, groups)), _new(x, (n, groups))


def group_norm_backward(
    dy: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: int, c: int, hw: int, groups: int,
    wanted: Sequence[bool],
) -> Sequence[Any] | None:  # fmt: skip
    """Rule for a packed gradient and an input in any layout."""
    is_usual = _are_plain(x, dy, mean, rstd, weight) and _is_packed(dy) and dy.shape == x.shape
    has_statistics = tuple(mean.shape) == tuple(rstd.shape) == (n, groups)
    if not (is_usual and has_statistics and _are_channels(x, n, c, hw, groups, weight)):
        return None
    return _wanted(wanted, [_like(x), _new(x, (c,)), _new(x, (c,))])


def _has_channels(x: torch.Tensor, *values: torch.Tensor | None) -> bool:
    sizes = {tuple(each.shape) for each in values if each is not None}
    return _are_plain(x, *values) and x.ndim > 1 and sizes <= {tuple(x.shape[1:2])}


def _like_images(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, device="meta", memory_format=suggest_memory_format(x))


def batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, _: float, __: float
) -> Sequence[Any] | None:
    """Rule for an input in any layout and parameters of the input's type."""
    has_running = mean is not None
    if not _has_channels(x, weight, bias, mean, variance) or has_running != (variance is not None):
        return None
    if not (training or has_running):
        return None
    statistics, running = (
        (x.shape[1:2] if training else (0,)),
        (x.shape[1:2] if training and has_running else (0,)),
    )
    return _like_images(x), *(_new(x, shape) for shape in (statistics, statistics, running, running))


def batch_norm_in_place(*arguments: Any) -> Sequence[Any] | None:
    """Like batch_norm, without the running statistics among the results."""
    results = batch_norm(*arguments)
    return results if results is None else results[:3]


def batch_norm_without_running(x: Any, weight: Any, bias: Any, *how: Any) -> Sequence[Any] | None:
    """Like batch_norm_in_place, for the variant without running statistics."""
    return batch_norm_in_place(x, weight, bias, None, None, *how)


def batch_norm_backward(
    dy: Any, x: Any, weight: Any, mean: Any, variance: Any, saved: Any, rstd: Any, training: bool, _: float,
    wanted: Sequence[bool],
) -> Sequence[Any] | None:  # fmt: skip
    """Rule for an input in any layout and parameters of the input's type."""
    used = (saved, rstd) if training else (mean, variance)
    is_usual = _has_channels(x, weight, *used) and dy.dtype == x.dtype and dy.shape == x.shape
    if not is_usual or any(each is None for each in used):
        return None
    return _wanted(wanted, [_like_images(x), _new(x, x.shape[1:2]), _new(x, x.shape[1:2])])


# ---- Convolution ----


def _each(values: Sequence[int], count: int) -> Sequence[int]:
    return list(values) * count if len(values) == 1 else values


def _format(x: Any, w: Any, backend: Any) -> Any:
    """Returns the memory format that torch gives the results of a convolution."""
    if x.ndim == 3:  # torch computes a 1-D convolution as a 2-D one with a packed input
        x, w = _new(x, x.shape).unsqueeze(2), w.unsqueeze(2)
    return torch._C._conv_determine_backend_memory_format(x, w, backend)


def _of_format(like: Any, shape: Sequence[int], layout: Any) -> Any:
    result = _new(like, shape)
    if len(shape) == 3 and layout == torch.channels_last:
        return result.unsqueeze(2).to(memory_format=layout).squeeze(2)
    return result.to(memory_format=layout)


def convolution(
    x: Any,
    w: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    more: Any,
    groups: int,
) -> Sequence[Any] | None:
    """Rule for inputs in any layout."""
    count = x.ndim - 2
    if not (_are_plain(x, w, bias) and x.ndim == w.ndim and 1 <= count <= 3 and w.numel()):
        return None
    try:
        backend = torch._C._select_conv_backend(
            x, w, bias, stride, padding, dilation, transposed, more, groups
        )
    except RuntimeError:
        return None
    steps, pads, gaps = (_each(values, count) for values in (stride, padding, dilation))
    spans = [gap * (k - 1) + 1 for gap, k in zip(gaps, w.shape[2:], strict=True)]
    if transposed:
        ends = zip(x.shape[2:], steps, pads, spans, _each(more, count), strict=True)
        shape = [x.shape[0], w.shape[1] * groups, *((n - 1) * s - 2 * p + k + m for n, s, p, k, m in ends)]
    else:
        ends_ = zip(x.shape[2:], steps, pads, spans, strict=True)
        shape = [x.shape[0], w.shape[0], *((n + 2 * p - k) // s + 1 for n, s, p, k in ends_)]
    return [_of_format(x, shape, _format(x, w, backend))] if min(shape) > 0 else None


def convolution_backward(
    dy: Any, x: Any, w: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    more: Any, groups: int, wanted: Sequence[bool],
) -> Sequence[Any] | None:  # fmt: skip
    """Rule for inputs in any layout and a gradient of the forward result's shape."""
    result = convolution(x, w, None, stride, padding, dilation, transposed, more, groups)
    if result is None or dy.dtype != x.dtype or dy.shape != result[0].shape or (wanted[2] and not bias_sizes):
        return None
    how = stride, padding, dilation, transposed, more, groups
    layout = _format(x, w, torch._C._select_conv_backend(x, w, None, *how, bias_sizes=bias_sizes))
    bias = _new(x, bias_sizes) if wanted[2] else None
    return _wanted(wanted, [_of_format(x, x.shape, layout), _of_format(x, w.shape, layout), bias])


# ---- Products ----


def addmm(bias: Any, a: Any, b: Any, _: float = 1, __: float = 1) -> Sequence[Any] | None:
    """Rule for matrices in any layout."""
    if not (_are_plain(a, b, bias) and a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] and b.numel()):
        return None
    shape = (a.shape[0], b.shape[1])
    pairs = zip(reversed(bias.shape), reversed(shape), strict=False)
    return [_new(a, shape)] if bias.ndim <= 2 and all(n in (1, whole) for n, whole in pairs) else None
