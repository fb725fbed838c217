"""Operations between the products of feed-forward layers and attention: swiglu, geglu and rope."""

from __future__ import annotations

from typing import Any

import torch

from weft.errors import NotSupportedError
from weft.tensor import Tensor
from weft.torch.ops import OPERATORS, differentiable, gradients, operator
from weft.torch.plans import GraphBuilder, _strides

F = torch.nn.functional

# ---- Gated units: activation(gate) * up ----

GELU = {"none": "gelu", "tanh": "gelu_approx_tanh"}
"""Weft's names, by torch's."""


def _fake_gated(gate: Any, up: Any, *_: Any) -> Any:
    if gate.shape != up.shape:
        raise NotSupportedError(
            f"swiglu, geglu: gate and up have different shapes: {[*gate.shape]} and {[*up.shape]}."
        )
    return gate.new_empty(gate.shape)


def _fake_gated_backward(_: Any, gate: Any, up: Any, *__: Any) -> Any:
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


def _gated(gb: GraphBuilder, activation: str, gate: Any, up: Any) -> None:
    gb.write(0, gb.graph.mul(getattr(gb.graph, activation)(gb.read(gate)), gb.read(up)))


def _gated_backward(gb: GraphBuilder, activation: str, dy: Any, gate: Any, up: Any) -> None:
    g, loss, entry = gb.graph, gb.read(dy), gb.read(gate)
    gb.write(0, getattr(g, f"{activation}_backward")(g.mul(loss, gb.read(up)), entry))
    gb.write(1, g.mul(loss, getattr(g, activation)(entry)))


@operator("swiglu", schema="(Tensor gate, Tensor up) -> Tensor", fake=_fake_gated)
def _swiglu(gb: GraphBuilder, gate: Any, up: Any) -> None:
    _gated(gb, "swish", gate, up)


@operator(
    "swiglu_backward",
    schema="(Tensor grad_output, Tensor gate, Tensor up) -> (Tensor, Tensor)",
    fake=_fake_gated_backward,
)
def _swiglu_backward(gb: GraphBuilder, dy: Any, gate: Any, up: Any) -> None:
    _gated_backward(gb, "swish", dy, gate, up)


@operator("geglu", schema='(Tensor gate, Tensor up, str approximate="none") -> Tensor', fake=_fake_gated)
def _geglu(gb: GraphBuilder, gate: Any, up: Any, approximate: str) -> None:
    _gated(gb, _gelu(approximate), gate, up)


@operator(
    "geglu_backward",
    schema="(Tensor grad_output, Tensor gate, Tensor up, str approximate) -> (Tensor, Tensor)",
    fake=_fake_gated_backward,
)
def _geglu_backward(gb: GraphBuilder, dy: Any, gate: Any, up: Any, approximate: str) -> None:
    _gated_backward(gb, _gelu(approximate), dy, gate, up)


def _gelu(approximate: str) -> str:
    if approximate not in GELU:
        raise NotSupportedError(f"geglu: approximate is {approximate!r}. Use 'none' or 'tanh'.")
    return GELU[approximate]


def _keep_gated(ctx: Any, inputs: Any, output: Any) -> None:
    gate, up, *ctx.options = inputs
    ctx.save_for_backward(gate, up)


def _grad_swiglu(ctx: Any, dy: Any) -> Any:
    return OPERATORS["swiglu_backward"].apply(dy, *ctx.saved_tensors)


def _grad_geglu(ctx: Any, dy: Any) -> Any:
    return *OPERATORS["geglu_backward"].apply(dy, *ctx.saved_tensors, *ctx.options), None


def _swiglu_reference(gate: Any, up: Any) -> Any:
    return F.silu(gate) * up


def _swiglu_backward_reference(dy: Any, gate: Any, up: Any) -> Any:
    return gradients(_swiglu_reference, (gate, up), dy, (True, True))


def _geglu_reference(gate: Any, up: Any, approximate: str) -> Any:
    return F.gelu(gate, approximate=approximate) * up


def _geglu_backward_reference(dy: Any, gate: Any, up: Any, approximate: str) -> Any:
    def forward(gate: Any, up: Any) -> Any:
        return _geglu_reference(gate, up, approximate)

    return gradients(forward, (gate, up), dy, (True, True))


differentiable("swiglu", _keep_gated, _grad_swiglu, _swiglu_reference, _swiglu_backward_reference)
differentiable("geglu", _keep_gated, _grad_geglu, _geglu_reference, _geglu_backward_reference)


# ---- Rotary embeddings: rotate pairs of a row, which are its two halves or adjacent elements ----


def _fake_rope(x: Any, cos: Any, sin: Any, interleaved: bool = False, inverse: bool = False) -> Any:
    half = x.shape[-1] // 2
    if x.shape[-1] % 2 or any(each.shape[-1] != half for each in (cos, sin)):
        raise NotSupportedError(
            "rope: the last dimensions do not fit: expected an even one for x and half of it for cos and "
            f"sin, got {x.shape[-1]}, {cos.shape[-1]} and {sin.shape[-1]}."
        )
    return x.new_empty(x.shape)


# The gradient is the operator itself with the inverse rotation.
@operator(
    "rope",
    schema="(Tensor x, Tensor cos, Tensor sin, bool interleaved=False, bool inverse=False) -> Tensor",
    fake=_fake_rope,
)
def _rope(gb: GraphBuilder, x: Any, cos: Any, sin: Any, interleaved: bool, inverse: bool) -> None:
    g, half, axis = gb.graph, x.shape[-1] // 2, x.ndim - (0 if interleaved else 1)
    pairs = [*x.shape[:-1], *((half, 2) if interleaved else (2, half))]
    shown = gb.read_as(x, pairs)
    first, second = (g.slice(shown, _at(x.ndim + 1, axis, i)) for i in (0, 1))
    real, imaginary = (_angles(gb, each, x.ndim, axis) for each in (cos, sin))
    if inverse:
        imaginary = g.neg(imaginary)
    turned = (
        g.sub(g.mul(first, real), g.mul(second, imaginary)),
        g.add(g.mul(second, real), g.mul(first, imaginary)),
    )
    gb.write_as(0, g.concatenate(turned, axis), pairs)


def _at(rank: int, axis: int, i: int) -> list[slice]:
    return [slice(i, i + 1) if each == axis else slice(None) for each in range(rank)]


def _angles(gb: GraphBuilder, value: torch.Tensor, rank: int, axis: int) -> Tensor:
    """Reads cosines or sines [.., half] so that they broadcast over the two members of each pair."""
    shown = value.unsqueeze(axis - rank - 1)
    before = [1] * (rank + 1 - shown.ndim)
    return gb.read(value, [*before, *shown.shape], [*before, *_strides(shown)])


def _keep_rope(ctx: Any, inputs: Any, output: Any) -> None:
    _, cos, sin, ctx.interleaved, ctx.inverse = inputs
    ctx.save_for_backward(cos, sin)


def _grad_rope(ctx: Any, dy: Any) -> Any:
    if any(ctx.needs_input_grad[1:3]):
        raise NotSupportedError("rope: cos and sin have no gradients. Detach them.")
    turned = OPERATORS["rope"].apply(dy, *ctx.saved_tensors, ctx.interleaved, not ctx.inverse)
    return turned, None, None, None, None


def _rope_reference(x: Any, cos: Any, sin: Any, interleaved: bool, inverse: bool) -> Any:
    axis, shape = (-1, (-1, 2)) if interleaved else (-2, (2, -1))
    first, second = x.unflatten(-1, shape).unbind(axis)
    sin = -sin if inverse else sin
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], axis)
    return turned.flatten(-2).to(x.dtype)


differentiable("rope", _keep_rope, _grad_rope, _rope_reference)
