"""The CTC loss of sequences without alignment. torch passes lengths as lists of numbers or as tensors; Weft's
operator has tensors, so that one plan serves all batches of a size, and the largest number of labels, which
determines the shape of log_alpha."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from weft.errors import NotSupportedError
from weft.torch.ops import OPERATORS, differentiable, operator, stands_for
from weft.torch.plans import GraphBuilder

aten = torch.ops.aten

_OPERANDS = "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths"
_OPTIONS = "int max_target_length, int blank=0, bool zero_infinity=False"


def _fake(log_probs: Any, _: Any, __: Any, ___: Any, most: int, *____: Any) -> tuple[Any, Any]:
    steps, batch, _ = log_probs.shape
    type_ = torch.float64 if log_probs.dtype == torch.float64 else torch.float32
    return (
        log_probs.new_empty((batch,), dtype=type_),
        log_probs.new_empty((batch, steps, 2 * most + 1), dtype=type_),
    )


def _read(gb: GraphBuilder, *operands: Any) -> list[Any]:
    return [gb.read(each) for each in operands]


def _options(targets: Any, most: int, blank: int, zero: bool) -> dict[str, Any]:
    joined = {"max_target_length": most} if targets.ndim == 1 else {}
    return {"blank": blank, "zero_infinity": zero} | joined


@operator("ctc_loss", schema=f"({_OPERANDS}, {_OPTIONS}) -> (Tensor, Tensor)", fake=_fake)
def _ctc_loss(
    gb: GraphBuilder, log_probs: Any, targets: Any, steps: Any, labels: Any, most: int, blank: int, zero: bool
) -> None:
    operands = _read(gb, log_probs, _shown(targets, most), steps, labels)
    loss, log_alpha = gb.graph.ctc_loss(*operands, **_options(targets, most, blank, zero))
    gb.write(0, loss)
    gb.write(1, log_alpha)


def _shown(targets: Any, most: int) -> Any:
    if targets.ndim == 2 and targets.shape[1] != most:
        raise NotSupportedError(
            f"ctc_loss: targets have {targets.shape[1]} columns, max_target_length is {most}. Slice them."
        )
    return targets


def _fake_backward(_: Any, log_probs: Any, *__: Any) -> Any:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


@operator(
    "ctc_loss_backward",
    schema=f"(Tensor grad, {_OPERANDS}, Tensor log_alpha, {_OPTIONS}) -> Tensor",
    fake=_fake_backward,
)
def _ctc_loss_backward(
    gb: GraphBuilder, grad: Any, log_probs: Any, targets: Any, steps: Any, labels: Any, log_alpha: Any,
    most: int, blank: int, zero: bool,
) -> None:  # fmt: skip
    operands = _read(gb, grad, log_probs, _shown(targets, most), steps, labels, log_alpha)
    gb.write(0, gb.graph.ctc_loss_backward(*operands, **_options(targets, most, blank, zero)))


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    *operands, ctx.most, ctx.blank, ctx.zero = inputs
    ctx.save_for_backward(*operands, output[1])
    ctx.mark_non_differentiable(output[1])


def _grad(ctx: Any, grad: Any, _: Any) -> Any:
    backward = OPERATORS["ctc_loss_backward"].apply
    return backward(grad, *ctx.saved_tensors, ctx.most, ctx.blank, ctx.zero), *[None] * 6


def _reference(
    log_probs: Any, targets: Any, steps: Any, labels: Any, most: int, blank: int, zero: bool
) -> Any:
    loss, log_alpha = aten._ctc_loss(log_probs, targets, steps, labels, blank, zero)
    return torch.where(loss.isinf(), 0, loss) if zero else loss, log_alpha


def _backward_reference(
    grad: Any, log_probs: Any, targets: Any, steps: Any, labels: Any, log_alpha: Any, _: int, blank: int,
    zero: bool,
) -> Any:  # fmt: skip
    loss, log_alpha = aten._ctc_loss(log_probs, targets, steps, labels, blank, zero)
    return aten._ctc_loss_backward(grad, log_probs, targets, steps, labels, loss, log_alpha, blank, zero)


differentiable("ctc_loss", _keep, _grad, _reference, _backward_reference)


# ---- torch's operators ----

Lengths: TypeAlias = "Sequence[int] | torch.Tensor"


def _numbers(lengths: Lengths) -> list[int]:
    return [int(each) for each in (lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths)]


def _refuse(log_probs: Any, targets: Any, steps: Lengths, labels: Lengths, *_: Any) -> None:
    """Refuses what torch's own kernels check."""
    if log_probs.ndim != 3 or targets.ndim not in (1, 2) or not log_probs.numel():
        raise NotSupportedError(
            "ctc_loss: the shapes are not [T, N, C] and [N, S] or [labels]. Leave it to torch."
        )
    if log_probs.dtype not in (torch.float32, torch.float64) or targets.dtype not in (
        torch.int32,
        torch.int64,
    ):
        raise NotSupportedError(f"ctc_loss: types {log_probs.dtype}, {targets.dtype}. Leave it to torch.")


def _operands(log_probs: Any, targets: Any, steps: Lengths, labels: Lengths, blank: int) -> tuple[Any, ...]:
    """Weft's operands; raises NotSupportedError where torch reports an error."""
    all_steps, all_labels = _numbers(steps), _numbers(labels)
    most, (length, batch, classes) = max(all_labels, default=0), log_probs.shape
    fits = targets.numel() == sum(all_labels) if targets.ndim == 1 else targets.shape[0] == batch
    fits = fits and (targets.ndim == 1 or targets.shape[1] >= most) and 0 <= blank < classes
    fits = (
        fits
        and len(all_steps) == len(all_labels) == batch
        and min([*all_steps, *all_labels], default=-1) >= 0
    )
    if not fits or max(all_steps) > length or most == 0:
        raise NotSupportedError("ctc_loss: lengths that do not fit, or no labels. Leave it to torch.")
    targets = targets if targets.ndim == 1 else targets[:, :most]
    lengths = [
        each.to(log_probs.device)
        if isinstance(each, torch.Tensor)
        else torch.tensor(each, device=log_probs.device)
        for each in (steps, labels)
    ]
    return log_probs, targets.to(log_probs.device), *lengths, most


def _serve(
    log_probs: Any, targets: Any, steps: Lengths, labels: Lengths, blank: int = 0, zero_infinity: bool = False
) -> Any:
    """torch replaces infinite losses by 0 itself."""
    return OPERATORS["ctc_loss"].call(*_operands(log_probs, targets, steps, labels, blank), blank, False)


def _serve_backward(
    grad: Any, log_probs: Any, targets: Any, steps: Lengths, labels: Lengths, _: Any, log_alpha: Any,
    blank: int, zero_infinity: bool = False,
) -> Any:  # fmt: skip
    *operands, most = _operands(log_probs, targets, steps, labels, blank)
    return OPERATORS["ctc_loss_backward"].call(
        grad.contiguous(), *operands, log_alpha, most, blank, zero_infinity
    )


def _refuse_backward(_: Any, *arguments: Any) -> None:
    _refuse(*arguments[:4])


for _overload in ("default", "Tensor"):
    stands_for("ctc_loss", getattr(aten._ctc_loss, _overload), others=None, check=_refuse)(_serve)
    _twin = getattr(aten._ctc_loss_backward, _overload)
    stands_for("ctc_loss_backward", _twin, others=None, check=_refuse_backward)(_serve_backward)
