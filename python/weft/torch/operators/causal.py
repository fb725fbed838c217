"""Causal depthwise convolutions of sequences (Mamba)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.enums import pointwise_mode
from weft.errors import NotSupportedError
from weft.torch.ops import differentiable, gradients, operator
from weft.torch.plans import GraphBuilder

F = torch.nn.functional

ACTIVATIONS = {"identity": pointwise_mode.IDENTITY, "silu": pointwise_mode.SWISH_FWD}
"""Weft's modes, by the operator's activation names."""


def _refuse(x: Any, weight: Any, bias: Any, activation: str) -> None:
    if x.ndim != 3 or weight.ndim != 2 or weight.shape[0] != x.shape[1]:
        raise NotSupportedError(
            "causal_conv1d: the shapes do not fit: expected x [B, D, L] and weight [D, K], got "
            f"{[*x.shape]} and {[*weight.shape]}. Give transposed views where channels come last."
        )
    if bias is not None and bias.shape != x.shape[1:2]:
        raise NotSupportedError(
            f"causal_conv1d: the shape of bias does not fit: expected [{x.shape[1]}], got {[*bias.shape]}."
        )
    if activation not in ACTIVATIONS:
        raise NotSupportedError(f"causal_conv1d: activation is {activation!r}. Use 'identity' or 'silu'.")


def _fake(x: Any, weight: Any, bias: Any = None, activation: str = "identity") -> Any:
    _refuse(x, weight, bias, activation)
    return torch.empty_like(x)


@operator(
    "causal_conv1d",
    schema='(Tensor x, Tensor weight, Tensor? bias=None, str activation="identity") -> Tensor',
    fake=_fake,
)
def _causal_conv1d(gb: GraphBuilder, x: Any, weight: Any, bias: Any, activation: str) -> None:
    added = None if bias is None else gb.read(bias)
    y = gb.graph.causal_conv1d(gb.read(x), gb.read(weight), added, activation=ACTIVATIONS[activation])
    gb.write(0, y)


def _fake_backward(_: Any, x: Any, weight: Any, __: Any, ___: str, wanted: Sequence[bool]) -> Any:
    return (
        torch.empty_like(x) if wanted[0] else None,
        torch.empty_like(weight) if wanted[1] else None,
        weight.new_empty(weight.shape[:1]) if wanted[2] else None,
    )


@operator(
    "causal_conv1d_backward",
    schema="(Tensor grad_output, Tensor x, Tensor weight, Tensor? bias, str activation, "
    "bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    fake=_fake_backward,
)
def _causal_conv1d_backward(
    gb: GraphBuilder, dy: Any, x: Any, weight: Any, bias: Any, activation: str, wanted: Sequence[bool]
) -> None:
    loss, entry, filters = gb.read(dy), gb.read(x), gb.read(weight)
    added = None if bias is None else gb.read(bias)
    mode = ACTIVATIONS[activation]
    gradients = gb.graph.causal_conv1d_backward(loss, entry, filters, added, activation=mode)
    for i, (gradient, is_wanted) in enumerate(zip(gradients, wanted, strict=True)):
        if is_wanted:
            gb.write(i, gradient)
        else:
            gradient.set_output(False)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, ctx.activation = inputs
    ctx.save_for_backward(x, weight, bias)


def _grad(ctx: Any, dy: Any) -> Any:
    needs = ctx.needs_input_grad  # one per argument that the call passed
    wanted = [*needs, False][:3]
    gradients = torch.ops.weft.causal_conv1d_backward(dy, *ctx.saved_tensors, ctx.activation, wanted)
    results = [g if is_wanted else None for g, is_wanted in zip(gradients, wanted, strict=True)]
    return (*results, None)[: len(needs)]


def _reference(x: Any, weight: Any, bias: Any, activation: str) -> Any:
    padded = F.pad(x, (weight.shape[1] - 1, 0))
    y = F.conv1d(padded, weight[:, None], bias, groups=len(weight))
    return F.silu(y) if activation == "silu" else y


def _backward_reference(
    dy: Any, x: Any, weight: Any, bias: Any, activation: str, wanted: Sequence[bool]
) -> Any:
    def forward(x: Any, weight: Any, bias: Any) -> Any:
        return _reference(x, weight, bias, activation)

    return gradients(forward, (x, weight, bias), dy, wanted)


differentiable("causal_conv1d", _keep, _grad, _reference, _backward_reference)
