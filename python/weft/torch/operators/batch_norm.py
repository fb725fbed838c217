"""Batch norm for training and inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.errors import NotSupportedError
from weft.tensor import Tensor
from weft.torch import result_rules
from weft.torch.ops import (
    OPERATORS,
    PLACES,
    Operator,
    differentiable,
    like_images,
    operator,
    stands_for,
    with_torchs_types,
)  # fmt: skip
from weft.torch.plans import BuildFunction, GraphBuilder
from weft.torch.result_rules import Rule

aten = torch.ops.aten


def _channels(x: torch.Tensor) -> list[int]:
    """Returns the dims of one number per channel."""
    return [1, x.shape[1], *[1] * (x.ndim - 2)]


def _of_channels(gb: GraphBuilder, x: torch.Tensor, *values: Any) -> list[Any]:
    if any(each is not None and each.numel() != x.shape[1] for each in values):
        raise NotSupportedError("batch_norm: parameters or statistics do not match the number of channels.")
    return [None if each is None else gb.read(each, _channels(x)) for each in values]


def _fake_batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, epsilon: float
) -> Any:
    """Returns results in torch's layout. Without running statistics the updated ones are empty; in inference
    all statistics are empty."""
    results = _fake_of_layout(x, weight, bias, mean, variance, training, momentum, epsilon)
    # torch's fake kernels give the results the strides of the input; its real kernels do so only on a GPU.
    return like_images(x) if x.device.type != "cuda" else results[0], *results[1:]


def _fake_of_layout(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, epsilon: float
) -> Any:
    affine, running, factors = (x, weight, bias), (mean, variance), (momentum, epsilon)
    if training and mean is not None:
        results = aten._native_batch_norm_legit_functional.default(*affine, *running, training, *factors)
        return with_torchs_types(results, x, weight, bias, mean, variance)
    nothing = (x.new_empty(0) for _ in range(4))
    if training:
        results = aten._native_batch_norm_legit.no_stats(*affine, training, *factors)
        return *with_torchs_types(results, x, weight, bias), next(nothing), next(nothing)
    return aten._native_batch_norm_legit_no_training.default(*affine, *running, *factors)[0], *nothing


@operator(
    "batch_norm",
    schema="(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, "
    "bool training, float momentum, float eps) -> (Tensor, Tensor save_mean, Tensor save_invstd, "
    "Tensor running_mean_out, Tensor running_var_out)",
    fake=_fake_batch_norm,
    rule=result_rules.batch_norm,
)
def _batch_norm(
    gb: GraphBuilder,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    epsilon: float,
) -> None:
    for i, result in enumerate(_after(gb, x, weight, bias, mean, variance, training, momentum, epsilon)):
        if i > 2:
            gb.write(i, result, _channels(x))


def _after(
    gb: GraphBuilder,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    epsilon: float,
) -> Sequence[Tensor]:
    """Adds a batch norm with results 0 to 2. Returns all results of the graph, ending with the updated
    running statistics, or an empty tuple if these are not updated."""
    scale, shift, *running = _of_channels(gb, x, weight, bias, mean, variance)
    if not training:
        given = dict(zip(("in_running_mean", "in_running_var"), running, strict=True))
        given["epsilon"] = gb.number(epsilon)
        gb.write(0, gb.graph.batchnorm_inference(gb.read(x), None, None, scale, shift, **given))
        return ()
    factor = gb.number(momentum) if mean is not None else None
    results = gb.graph.batchnorm(gb.read(x), scale, shift, running[0], running[1], gb.number(epsilon), factor)
    gb.write(0, results[0])
    for i in (1, 2):
        gb.write(i, results[i], _channels(x))
    return results if mean is not None else ()


def _fake_batch_norm_backward(dy: Any, x: Any, *given: Any) -> Any:
    """The gradient has the layout of the input; torch's fake kernel gives it that of dy."""
    dx, *others = aten.native_batch_norm_backward.default(dy, x, *given)
    return None if dx is None else like_images(x), *others


@operator(
    "batch_norm_backward", aten.native_batch_norm_backward.default, fake=_fake_batch_norm_backward,
    rule=result_rules.batch_norm_backward,
)  # fmt: skip
def _batch_norm_backward(
    gb: GraphBuilder,
    dy: Any,
    x: Any,
    weight: Any,
    mean: Any,
    variance: Any,
    saved: Any,
    rstd: Any,
    training: bool,
    epsilon: float,
    wanted: Sequence[bool],
) -> None:
    g, loss, image = gb.graph, gb.read(dy), gb.read(x)
    results: Sequence[Any]
    if training:
        ends = _of_channels(gb, x, weight, saved, rstd)
        results = g.batchnorm_backward(loss, image, *ends)
    else:
        scale, centre, spread = _of_channels(gb, x, weight, mean, variance)
        factor = g.rsqrt(g.add(spread, gb.number(epsilon)))
        scaled = loss if scale is None else g.mul(loss, scale)
        hat, over = g.mul(g.sub(image, centre), factor), [i for i in range(x.ndim) if i != 1]
        sums = (g.reduction(each, "ADD", dims=over) for each in (g.mul(loss, hat), loss))
        results = (g.mul(scaled, factor), *sums)
    for i, is_wanted in enumerate(wanted):
        if is_wanted and gb.outputs[i] is not None:
            gb.write(i, results[i], *((_channels(x),) if i else ()))


def _keep_batch_norm(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, _, mean, variance, ctx.training, __, ctx.epsilon = inputs
    ctx.save_for_backward(x, weight, *((None, None) if ctx.training else (mean, variance)), *output[1:3])
    ctx.mark_non_differentiable(*output[1:])


def _grad_batch_norm(ctx: Any, dy: Any, *_: Any) -> Any:
    wanted = [*ctx.needs_input_grad[:3]]
    options = ctx.training, ctx.epsilon, wanted
    grads = OPERATORS["batch_norm_backward"].apply(dy, *ctx.saved_tensors, *options)
    return (*(g if w else None for g, w in zip(grads, wanted, strict=True)), *[None] * 5)


def _reference(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, epsilon: float
) -> tuple[Any, ...]:
    affine, factors = (x, weight, bias), (momentum, epsilon)
    nothing = tuple(x.new_empty(0) for _ in range(4))
    if not training:
        return aten.native_batch_norm.default(*affine, mean, variance, False, *factors)[0], *nothing
    y, centre, rstd = aten._native_batch_norm_legit.no_stats(*affine, True, *factors)
    if mean is None:
        return y, centre, rstd, *nothing[:2]
    count = x.numel() // x.shape[1]
    spread = (rstd**-2 - epsilon) * (count / max(count - 1, 1))
    pairs = ((mean, centre), (variance, spread))
    return y, centre, rstd, *(old.lerp(new.detach().to(old.dtype), momentum) for old, new in pairs)


differentiable("batch_norm", _keep_batch_norm, _grad_batch_norm, _reference)


# ---- Replacements of torch's operators ----


def _in_place(
    gb: GraphBuilder, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, *options: Any
) -> None:
    """Updates the running statistics in place, as native_batch_norm does."""
    after = _after(gb, x, weight, bias, mean, variance, *options)
    if after:
        gb.overwrite(mean, after[3], _channels(x))
        gb.overwrite(variance, after[4], _channels(x))


def build_without_running(gb: GraphBuilder, x: Any, weight: Any, bias: Any, *options: Any) -> None:
    """Adds an instance norm as torch decomposes it: batch norm with the batch's own statistics, which are not
    stored."""
    _after(gb, x, weight, bias, None, None, *options)


def _fake_without_running(x: Any, weight: Any, bias: Any, *options: Any) -> Any:
    return _fake_batch_norm(x, weight, bias, None, None, *options)[:3]


def _stands(twin: Any, build: BuildFunction, fake: Any, rule: Rule) -> None:
    name = twin._schema.name.removeprefix("aten::")
    OPERATORS["batch_norm"].stand_ins.append(Operator(name, build, twin, PLACES, fake=fake, rule=rule))


for _twin in (aten.native_batch_norm.default, aten._native_batch_norm_legit.default):
    in_place = result_rules.batch_norm_in_place
    _stands(_twin, _in_place, lambda *given: _fake_batch_norm(*given)[:3], in_place)
_twin = aten._native_batch_norm_legit.no_stats
_stands(_twin, build_without_running, _fake_without_running, result_rules.batch_norm_without_running)


def _check(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *_: Any) -> None:
    if not x.numel():
        raise NotSupportedError("batch_norm: a tensor without elements.")
    sizes = {each.shape for each in (weight, bias, mean, variance) if each is not None}
    if not sizes <= {x.shape[1:2]} or (mean is None and not training):
        raise NotSupportedError("batch_norm: parameters or statistics do not match the number of channels.")


# On a GPU torch composes batch norm from cuDNN's operator, whose gradient reads data that only cuDNN writes.
# If Weft replaced cuDNN's operator, a backward pass after disable() would fail, so Weft replaces the
# composite.
@stands_for("batch_norm", aten.batch_norm.default, ("cuda",), is_composite=True, others=None, check=_check)
def _own_batch_norm(*arguments: Any) -> Any:
    """Calls torch's native operator, which Weft replaces, instead of cuDNN's."""
    return _NATIVE(*arguments[:8])[0]


_NATIVE = torch.native_batch_norm
