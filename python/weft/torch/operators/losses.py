"""Losses of class labels: cross_entropy of logits and nll_loss of log-probabilities. Rows are read whole and
class indices are compared with the labels instead of gathered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from weft.errors import NotSupportedError
from weft.tensor import Tensor
from weft.torch.ops import OPERATORS, differentiable, gradients, is_watched, operator, stands_for
from weft.torch.plans import GraphBuilder, _strides

aten, F = torch.ops.aten, torch.nn.functional

NONE, MEAN, SUM = range(3)
"""Reductions, with torch's numbers."""

CLASS = 1
"""The class dimension. Scores without a rows dimension get one in front."""


class _Rows(NamedTuple):
    """Label comparisons and class weights for scores [N, C, d..]."""

    hit: Tensor
    """True where a class is the row's own, [N, C, d..]."""
    kept: Tensor
    """True where a row counts because its label is not the ignored one, [N, 1, d..]."""
    is_known: Tensor
    """True where the row's label is a valid class, [N, 1, d..]. The loss and gradient of other rows are
    NaN."""
    weights: Tensor | None
    """[1, C, 1..]"""


def _shown(value: Any) -> tuple[list[int], list[int]]:
    """Returns dims and strides of scores, with a rows dimension added in front if necessary."""
    dims, steps = list(value.shape), list(_strides(value))
    return (dims, steps) if value.ndim > 1 else ([1, *dims], [1, *steps])


def _of_rows(value: Any) -> tuple[list[int], list[int]]:
    """Returns dims and strides of one number per row."""
    if value.ndim == 0:
        return [1, 1], [1, 1]
    (n, *dims), (step, *steps) = value.shape, _strides(value)
    return [n, 1, *dims], [step, 1, *steps]


def _classes(x: Any) -> int:
    return int(x.shape[min(CLASS, x.ndim - 1)])


def _refuse_probabilities(target: Any) -> None:
    if target.is_floating_point():
        raise NotSupportedError("cross_entropy: targets are probabilities. Leave it to torch.")


def _rows(gb: GraphBuilder, scores: Tensor, x: Any, target: Any, weight: Any, ignored: int) -> _Rows:
    _refuse_probabilities(target)
    g, rank = gb.graph, max(x.ndim, 2)
    labels = gb.read(target, *_of_rows(target))
    weights = None if weight is None else gb.read(weight, [1, _classes(x), *[1] * (rank - 2)])
    hit = g.cmp_eq(g.gen_index(scores, CLASS), labels)
    is_known = g.logical_and(g.cmp_ge(labels, 0), g.cmp_lt(labels, _classes(x)))
    return _Rows(hit, g.cmp_neq(labels, ignored), is_known, weights)


def _counted(gb: GraphBuilder, row: Tensor, rows: _Rows) -> Tensor:
    """Masks one number per row: 0 if the row does not count, NaN if its label is not a valid class."""
    known = gb.graph.binary_select(row, gb.number(torch.nan), rows.is_known)
    return gb.graph.binary_select(known, gb.number(0), rows.kept)


def _weight_of_row(gb: GraphBuilder, rows: _Rows) -> Tensor | float:
    """Returns the weight of each row's own class."""
    if rows.weights is None:
        return 1.0
    return gb.graph.reduction(
        gb.graph.binary_select(rows.weights, gb.number(0), rows.hit), "ADD", dims=[CLASS]
    )


def _write_loss(gb: GraphBuilder, row: Tensor, rows: _Rows, reduction: int, target: Any) -> None:
    """Writes results 0, the loss, and 1, the divisor of the mean."""
    g, rank = gb.graph, max(target.ndim + 1, 2)
    every, one = [i for i in range(rank) if i != CLASS], [1] * rank
    loss = _counted(gb, row, rows)
    weight = g.binary_select(_weight_of_row(gb, rows), gb.number(0), rows.kept)
    weight.set_dim(_of_rows(target)[0])
    total = g.reduction(weight, "ADD", dims=every)
    if reduction == NONE:
        gb.write(0, loss, *_of_rows(gb.outputs[0]))
    else:
        summed = g.reduction(loss, "ADD", dims=every)
        gb.write(0, g.div(summed, total) if reduction == MEAN else summed, one)
    gb.write(1, total, one)


def _factor(gb: GraphBuilder, dloss: Any, total: Any, rows: _Rows, reduction: int, x: Any) -> Tensor:
    """Returns the factor of each row's gradient: 0 for rows that do not count."""
    g, one = gb.graph, [1] * max(x.ndim, 2)
    factor = gb.read(dloss, *(_of_rows(dloss) if reduction == NONE else (one,)))
    if reduction == MEAN:
        factor = g.div(factor, gb.read(total, one))
    return _counted(gb, factor, rows)


# ---- Cross-entropy ----


def _fake(
    x: Any, target: Any, weight: Any = None, reduction: int = MEAN, ignored: int = -100, smoothing: float = 0
) -> Any:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    rows = x.shape[:1] + x.shape[2:] if x.ndim > 1 else ()
    loss = x.new_empty(rows if reduction == NONE else ())
    return loss, x.new_empty((), dtype=wide), x.new_empty(rows, dtype=wide), x.new_empty(rows, dtype=wide)


@operator(
    "cross_entropy",
    schema="(Tensor logits, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100, "
    "float label_smoothing=0.0) -> (Tensor loss, Tensor total_weight, Tensor maximum, Tensor log_sum)",
    fake=_fake,
)
def _cross_entropy(
    gb: GraphBuilder, x: Any, target: Any, weight: Any, reduction: int, ignored: int, smoothing: float
) -> None:
    """Subtracts the maximum from the logits first: rounding their logsumexp to float would cause an error as
    large as the rounding of the largest logit. For the same reason the maximum and the logarithm of the sum
    of exponentials are passed to the gradient as two numbers."""
    x = gb.exact(x)
    g, scores = gb.graph, gb.read(x, *_shown(x))
    rows = _rows(gb, scores, x, target, weight, ignored)
    most = g.reduction(scores, "MAX", dims=[CLASS])
    log_sum = g.log(g.reduction(g.exp(g.sub(scores, most)), "ADD", dims=[CLASS]))
    label_score = g.reduction(g.binary_select(scores, gb.number(-torch.inf), rows.hit), "MAX", dims=[CLASS])
    row = g.sub(log_sum, g.sub(label_score, most))
    if weight is not None:
        row = g.mul(row, _weight_of_row(gb, rows))
    if smoothing:
        others = g.sub(log_sum, g.sub(scores, most))
        others = others if rows.weights is None else g.mul(others, rows.weights)
        smooth = g.mul(g.reduction(others, "ADD", dims=[CLASS]), gb.number(smoothing / _classes(x)))
        row = g.add(g.mul(row, gb.number(1 - smoothing)), smooth)
    _write_loss(gb, row, rows, reduction, target)
    gb.write(2, most, *_of_rows(gb.outputs[2]))
    gb.write(3, log_sum, *_of_rows(gb.outputs[3]))


def _fake_backward(dloss: Any, x: Any, *_: Any) -> Any:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@operator(
    "cross_entropy_backward",
    schema="(Tensor grad_loss, Tensor logits, Tensor target, Tensor? weight, int reduction, "
    "SymInt ignore_index, float label_smoothing, Tensor total_weight, Tensor maximum, Tensor log_sum) "
    "-> Tensor",
    fake=_fake_backward,
)
def _cross_entropy_backward(
    gb: GraphBuilder,
    dloss: Any,
    x: Any,
    target: Any,
    weight: Any,
    reduction: int,
    ignored: int,
    smoothing: float,
    total: Any,
    most: Any,
    log_sum: Any,
) -> None:
    x = gb.exact(x)
    classes = _classes(x)
    g, scores = gb.graph, gb.read(x, *_shown(x))
    rows = _rows(gb, scores, x, target, weight, ignored)
    below = g.sub(scores, gb.read(most, *_of_rows(most)))
    p = g.exp(g.sub(below, gb.read(log_sum, *_of_rows(log_sum))))
    label_share = g.binary_select(gb.number(1 - smoothing), gb.number(0), rows.hit)
    gradient = g.sub(p if not smoothing else g.mul(p, gb.number(1 - smoothing)), label_share)
    if weight is not None:
        gradient = g.mul(gradient, _weight_of_row(gb, rows))
    if smoothing:
        share, total_share = rows.weights, gb.number(classes)
        if share is None:
            smooth = g.sub(g.mul(p, total_share), gb.number(1))
        else:
            smooth = g.sub(g.mul(p, g.reduction(share, "ADD", dims=[CLASS])), share)
        gradient = g.add(gradient, g.mul(smooth, gb.number(smoothing / classes)))
    gradient = g.mul(gradient, _factor(gb, dloss, total, rows, reduction, x))
    gb.write(0, gradient, *_shown(gb.outputs[0]))


def _keep_cross_entropy(ctx: Any, inputs: Any, output: Any) -> None:
    x, target, weight, *ctx.options = inputs
    ctx.save_for_backward(x, target, weight, *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _grad_cross_entropy(ctx: Any, dloss: Any, *_: Any) -> Any:
    x, target, weight, *sums = ctx.saved_tensors
    dx = OPERATORS["cross_entropy_backward"].apply(dloss, x, target, weight, *ctx.options, *sums)
    return dx, *[None] * 5


def _reference(
    x: Any, target: Any, weight: Any, reduction: int, ignored: int, smoothing: float
) -> tuple[Any, Any, Any, Any]:
    """Follows the steps of torch's own composite operator, which `enable` replaces."""
    _refuse_probabilities(target)
    wide = x if x.dtype == torch.float64 else x.float()
    rows, scores = (target[None], wide[None]) if x.ndim == 1 else (target, wide)
    logs, is_kept = F.log_softmax(scores, CLASS), rows != ignored
    labels = torch.where(is_kept, rows, 0).long()
    weights = logs.new_ones(logs.shape[CLASS]) if weight is None else weight.to(logs.dtype)
    per_row = weights[labels] * is_kept
    loss = -logs.gather(CLASS, labels[:, None])[:, 0] * per_row * (1 - smoothing)
    if smoothing:
        all_classes = (logs * weights.view(-1, *[1] * (logs.ndim - 2))).sum(CLASS) * is_kept
        loss = loss - all_classes * (smoothing / logs.shape[CLASS])
    total, most = per_row.sum(), scores.detach().amax(CLASS, keepdim=True)
    log_sum = torch.logsumexp(scores.detach() - most, CLASS)
    most = most.squeeze(CLASS)
    if reduction == NONE:
        loss = loss[0] if x.ndim == 1 else loss
    else:
        loss = loss.sum() / total if reduction == MEAN else loss.sum()
    return loss.to(x.dtype), total, *((most[0], log_sum[0]) if x.ndim == 1 else (most, log_sum))


def _backward_reference(dloss: Any, x: Any, target: Any, weight: Any, *how: Any) -> Any:
    *options, _, _, _ = how
    return gradients(lambda x: _reference(x, target, weight, *options)[0], (x,), dloss, (True,))[0]


differentiable("cross_entropy", _keep_cross_entropy, _grad_cross_entropy, _reference, _backward_reference)


def _check(
    x: Any, target: Any, weight: Any = None, reduction: int = MEAN, ignored: int = -100, smoothing: float = 0
) -> None:
    """Refuses what torch refuses."""
    if not target.is_floating_point() and target.dtype != torch.int64:
        raise NotSupportedError(f"cross_entropy: labels of type {target.dtype}. Leave it to torch.")
    if weight is not None and (weight.dtype != x.dtype or weight.shape != (_classes(x),)):
        raise NotSupportedError("cross_entropy: weights of another type or shape. Leave it to torch.")
    if not 0 <= smoothing <= 1:
        raise NotSupportedError(f"cross_entropy: label_smoothing is {smoothing}. Leave it to torch.")


@stands_for("cross_entropy", aten.cross_entropy_loss.default, is_composite=True, check=_check)
def _serve_cross_entropy(x: Any, target: Any, *how: Any) -> Any:
    loss = OPERATORS["cross_entropy"].apply(x, target, *how)[0]
    # On a GPU, reading the loss would synchronize.
    if loss.device.type == "cpu" and not is_watched(loss) and torch._C._get_tracing_state() is None:
        _refuse_unknown(loss, target, _classes(x), how[2] if len(how) > 2 else -100)
    return loss


def _refuse_unknown(loss: Any, target: Any, classes: int, ignored: int) -> None:
    """Leaves invalid labels, whose loss is NaN, to torch, which raises an IndexError."""
    if not math.isnan((loss if loss.ndim == 0 else loss.sum()).item()):
        return
    labels = target[target != ignored]
    if ((labels < 0) | (labels >= classes)).any():
        raise NotSupportedError("cross_entropy: a label is out of range. Leave it to torch.")


# ---- Negative log-likelihood ----
# It replaces no torch operator under enable(), because torch reads only one number per row. In a graph it is
# fused with the operations that compute the rows.


def _nll_loss(gb: GraphBuilder, x: Any, target: Any, weight: Any, reduction: int, ignored: int) -> None:
    g, scores = gb.graph, gb.read(x, *_shown(x))
    rows = _rows(gb, scores, x, target, weight, ignored)
    label_score = g.reduction(g.binary_select(scores, gb.number(-torch.inf), rows.hit), "MAX", dims=[CLASS])
    row = g.neg(label_score) if weight is None else g.neg(g.mul(label_score, _weight_of_row(gb, rows)))
    _write_loss(gb, row, rows, reduction, target)


def _nll_loss_backward(
    gb: GraphBuilder, dloss: Any, x: Any, target: Any, weight: Any, reduction: int, ignored: int, total: Any
) -> None:
    g, scores = gb.graph, gb.read(x, *_shown(x))
    rows = _rows(gb, scores, x, target, weight, ignored)
    factor = _factor(gb, dloss, total, rows, reduction, x)
    factor = factor if rows.weights is None else g.mul(factor, rows.weights)
    gradient = g.binary_select(g.neg(factor), gb.number(0), rows.hit)
    gb.write(0, gradient, *_shown(gb.outputs[0]))


def _keep_nll_loss(ctx: Any, inputs: Any, output: Any) -> None:
    x, target, weight, *ctx.options = inputs
    ctx.save_for_backward(x, target, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _define(name: str, twins: Sequence[Any]) -> None:
    operator(name, twins[0], ())(_nll_loss)
    operator(f"{name}_backward", twins[1], ())(_nll_loss_backward)
    backward = OPERATORS[f"{name}_backward"].apply

    def grad(ctx: Any, dloss: Any, _: Any) -> Any:
        x, target, weight, total = ctx.saved_tensors
        return backward(dloss, x, target, weight, *ctx.options, total), *[None] * 4

    differentiable(name, _keep_nll_loss, grad)


_define("nll_loss", (aten.nll_loss_forward.default, aten.nll_loss_backward.default))
_define("nll_loss2d", (aten.nll_loss2d_forward.default, aten.nll_loss2d_backward.default))
