"""Support for torch's transforms: data types under autocast, batching under vmap, and gradients under
torch.func."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import weft.torch.merge
import weft.torch.sdpa_packed  # noqa: F401  # all operators are to have their rules
from weft.torch.ops import OPERATORS, PLACES, Operator, _library

# ---- Autocast ----

NARROW: dict[str, Sequence[int]]
NARROW = dict.fromkeys(("conv", "linear", "mm", "bmm", "addmm", "grouped_mm", "sdpa", "recurrent_layer"), ())
NARROW |= {"quantized_linear": (0, 3)}
"""Operators that compute in the autocast type, as torch's products do, and the positions of the arguments to
convert; () means all of them."""

WIDE = {
    "layer_norm", "group_norm", "rms_norm", "softmax", "log_softmax",
    "cross_entropy", "nll_loss", "nll_loss2d",
}  # fmt: skip
"""Operators that compute in float32 under autocast."""


def _cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
    """Converts 16-bit and 32-bit floating-point tensors on this device to another type; returns other values
    unchanged."""
    if not isinstance(value, torch.Tensor) or value.device.type != device_type:
        return value
    return value.to(dtype) if value.is_floating_point() and value.element_size() in (2, 4) else value


def _all_cast(name: str, device_type: str, arguments: Sequence[Any]) -> Sequence[Any]:
    """Converts an operator's arguments to the types that autocast requires."""
    if name not in NARROW and name not in WIDE:
        return arguments
    dtype, positions = torch.float32, NARROW.get(name, ())
    if name in NARROW:
        dtype = torch.get_autocast_dtype(device_type)
    return [
        _cast(each, device_type, dtype) if i in positions or not positions else each
        for i, each in enumerate(arguments)
    ]


def _under_autocast(name: str, device_type: str) -> None:
    operator, key = getattr(torch.ops.weft, name).default, f"Autocast{device_type.upper()}"
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def compute(*arguments: Any) -> Any:
        cast_arguments = _all_cast(name, device_type, arguments)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(*cast_arguments)

    operator.py_impl(getattr(torch._C.DispatchKey, key))(compute)  # for compilers
    _library.impl(name, compute, key)


for _place in PLACES:
    for _name in (*NARROW, *WIDE):
        _under_autocast(_name, _place)


# ---- vmap: the mapped dimension joins the batch if possible, else the operator runs once per element ----

Fold = Callable[..., Any]
"""Computes the results for arguments whose mapped dimension is the first, or returns None if it cannot be
folded."""


def _stacked(operator: Any, info: Any, in_dims: Sequence[Any], arguments: Sequence[Any]) -> Any:
    def pick(value: Any, dim: Any, i: int) -> Any:
        return value.select(dim, i) if isinstance(dim, int) else value

    pairs = list(zip(arguments, in_dims, strict=True))
    results = [operator(*(pick(*pair, i) for pair in pairs)) for i in range(info.batch_size)]
    if not isinstance(results[0], tuple):
        return torch.stack(results), 0
    columns = zip(*results, strict=True)
    joined = tuple(None if column[0] is None else torch.stack(column) for column in columns)
    return joined, tuple(None if each is None else 0 for each in joined)


def _with_vmap(name: str, fold: Fold | None) -> None:
    operator = getattr(torch.ops.weft, name)

    def rule(info: Any, in_dims: Sequence[Any], *arguments: Any) -> Any:
        if fold is not None:
            moved = [
                value.movedim(dim, 0) if isinstance(dim, int) else value
                for value, dim in zip(arguments, in_dims, strict=True)
            ]
            results = fold(operator, [isinstance(dim, int) for dim in in_dims], *moved)
            if results is not None:
                return results, (0,) * len(results) if isinstance(results, tuple) else 0
        return _stacked(operator, info, in_dims, arguments)

    torch.library.register_vmap(f"weft::{name}", rule, lib=_library)
    if OPERATORS[name].transformed is not None:
        OPERATORS[name].transformed.vmap = staticmethod(rule)


def _leading(operator: Any, is_mapped: Sequence[bool], *arguments: Any) -> Any:
    """Folds the mapped dimension for operators that accept any leading dimensions."""
    return None if any(is_mapped[1:]) else operator(*arguments)


def _along(operator: Any, is_mapped: Sequence[bool], x: Any, dim: int, *rest: Any) -> Any:
    if x.ndim == 1:
        return None
    return operator(x, dim % (x.ndim - 1) + 1, *rest)


def _pointwise(operator: Any, is_mapped: Sequence[bool], *arguments: Any) -> Any:
    return operator(*arguments) if all(is_mapped[:2]) else None


def _batched(rank: int) -> Fold:
    """Returns the fold for operators on images with this many spatial dimensions (0: any), for which torch
    makes the batch optional."""

    def fold(operator: Any, is_mapped: Sequence[bool], x: Any, *rest: Any) -> Any:
        if any(is_mapped[1:]):
            return None
        if rank and x.ndim == rank + 2:
            return operator(x, *rest)
        return _unfold(operator(x.flatten(0, 1), *rest), x.shape[:2])

    return fold


def _unfold(results: Any, sizes: Sequence[int]) -> Any:
    if isinstance(results, tuple):
        return tuple(each.unflatten(0, sizes) for each in results)
    return results.unflatten(0, sizes)


def _mm(_: Any, is_mapped: Sequence[bool], a: Any, b: Any) -> Any:
    if all(is_mapped):
        return torch.ops.weft.bmm(a, b)
    return torch.ops.weft.linear(a, b.t()) if is_mapped[0] else None


def _attention(operator: Any, is_mapped: Sequence[bool], q: Any, k: Any, v: Any, *rest: Any) -> Any:
    if not all(is_mapped[:3]) or any(is_mapped[3:]):
        return None
    return _unfold(operator(*(each.flatten(0, 1) for each in (q, k, v)), *rest), q.shape[:2])


FOLDS: dict[str, Fold]
FOLDS = dict.fromkeys(("layer_norm", "rms_norm", "linear", "quantized_linear", "rope"), _leading)
FOLDS |= dict.fromkeys(("softmax", "log_softmax"), _along)
FOLDS |= dict.fromkeys(("swiglu", "geglu"), _pointwise)
FOLDS |= dict.fromkeys(("avg_pool", "max_pool"), _batched(2))
FOLDS |= dict.fromkeys(("conv", "causal_conv1d"), _batched(0))
FOLDS |= dict.fromkeys(("avg_pool3d", "max_pool3d"), _batched(3)) | {"mm": _mm, "sdpa": _attention}

for _name in OPERATORS:
    _with_vmap(_name, FOLDS.get(_name))


# ---- torch.func: gradients within transforms, which torch.library does not support ----


def _is_forward_mode() -> bool:
    """True if an active transform, at any level, is jvp."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(each.key() == torch._C._functorch.TransformType.Jvp for each in stack)


def _under_func(operator: Operator) -> None:
    """Makes torch.func differentiate the operator through its Function. The kernel is installed at the front
    of the functorch layers, before autocast, so that autocast's conversions get their own gradients."""
    apply, name = operator.transformed.apply, operator.name

    def compute(*arguments: Any) -> Any:
        device_type = arguments[0].device.type
        cast_arguments = (
            _all_cast(name, device_type, arguments) if torch.is_autocast_enabled(device_type) else arguments
        )
        if _is_forward_mode():
            return operator.forward_mode(*cast_arguments)
        return apply(*operator.filled(tuple(cast_arguments)))

    _library.impl(name, compute, "FuncTorchDynamicLayerFrontMode")


for _operator in OPERATORS.values():
    if _operator.transformed is not None:
        _under_func(_operator)
