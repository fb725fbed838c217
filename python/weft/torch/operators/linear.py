"""Matrix products: linear with its epilogue, and torch's mm, addmm and bmm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.errors import NotSupportedError
from weft.tensor import Tensor
from weft.torch import result_rules
from weft.torch.ops import OPERATORS, differentiable, gradients, operator
from weft.torch.plans import GraphBuilder, _strides

aten, F = torch.ops.aten, torch.nn.functional

ACTIVATIONS = {"none": "", "relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_approx_tanh", "silu": "swish"}
"""Weft's names, by the activation names of linear."""


def transposed(gb: GraphBuilder, weight: torch.Tensor) -> Tensor:
    """Reads a weight [N, K] as an operand [K, N]."""
    return gb.graph.transpose(gb.read(weight), [1, 0])


def _row(gb: GraphBuilder, bias: torch.Tensor) -> Tensor:
    return gb.read(bias, [1, bias.numel()], [1, *_strides(bias)])


# ---- linear: activation(input weight^T + bias) + residual ----


def _fake_linear(
    x: Any, weight: Any, bias: Any = None, activation: str = "none", residual: Any = None
) -> Any:
    if activation not in ACTIVATIONS:
        raise NotSupportedError(f"linear: activation {activation!r}. Use one of {', '.join(ACTIVATIONS)}.")
    y = x.new_empty([*x.shape[:-1], weight.shape[0]])
    if x.shape[-1] != weight.shape[1]:
        raise NotSupportedError(
            f"linear: the weight does not fit the input: expected [N, {x.shape[-1]}], got {[*weight.shape]}."
        )
    if residual is not None and residual.shape != y.shape:
        raise NotSupportedError(
            f"linear: the residual does not fit the result: expected {[*y.shape]}, got {[*residual.shape]}."
        )
    return y


def _sizes(x: torch.Tensor, weight: torch.Tensor) -> tuple[int, int, int]:
    n, k = weight.shape
    return x.numel() // k, n, k


def _before_activation(gb: GraphBuilder, x: Any, weight: Any, bias: Any) -> Tensor:
    rows, _, k = _sizes(x, weight)
    product = gb.graph.matmul(gb.read_as(x, [rows, k]), transposed(gb, weight))
    return product if bias is None else gb.graph.add(product, _row(gb, bias))


@operator(
    "linear",
    schema='(Tensor input, Tensor weight, Tensor? bias=None, str activation="none", '
    "Tensor? residual=None) -> Tensor",
    fake=_fake_linear,
)
def _linear(gb: GraphBuilder, x: Any, weight: Any, bias: Any, activation: str, residual: Any) -> None:
    rows, n, _ = _sizes(x, weight)
    y = _before_activation(gb, x, weight, bias)
    if ACTIVATIONS[activation]:
        y = getattr(gb.graph, ACTIVATIONS[activation])(y)
    if residual is not None:
        y = gb.graph.add(y, gb.read_as(residual, [rows, n]))
    gb.write_as(0, y, [rows, n])


def _fake_linear_backward(dy: Any, x: Any, weight: Any, bias: Any, _: str, wanted: Sequence[bool]) -> Any:
    like = (x.new_empty(x.shape), torch.empty_like(weight), None if bias is None else torch.empty_like(bias))
    return tuple(each if is_wanted else None for each, is_wanted in zip(like, wanted, strict=True))


# The input of the activation is recomputed: one more product, but no memory between the passes.
@operator(
    "linear_backward",
    schema="(Tensor grad_output, Tensor input, Tensor weight, Tensor? bias, str activation, "
    "bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    fake=_fake_linear_backward,
)
def _linear_backward(
    gb: GraphBuilder, dy: Any, x: Any, weight: Any, bias: Any, activation: str, wanted: Sequence[bool]
) -> None:
    g, (rows, n, k) = gb.graph, _sizes(x, weight)
    loss = gb.read_as(dy, [rows, n])
    if ACTIVATIONS[activation]:
        gradient = getattr(g, f"{ACTIVATIONS[activation]}_backward")
        loss = gradient(loss, _before_activation(gb, x, weight, bias))
    if wanted[0]:
        gb.write_as(0, g.matmul(loss, gb.read(weight)), [rows, k])
    if wanted[1]:
        gb.write(1, g.matmul(g.transpose(loss, [1, 0]), gb.read_as(x, [rows, k])))
    if wanted[2]:
        gb.write(2, g.reduction(loss, "ADD", dims=[0]), [1, n])


def _keep_linear(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, ctx.activation, _ = inputs
    ctx.save_for_backward(x, weight, bias)


def _grad_linear(ctx: Any, dy: Any) -> Any:
    needs = [*ctx.needs_input_grad, False, False, False]  # one per argument that the call passed
    wanted = needs[:3]
    grads = OPERATORS["linear_backward"].apply(dy, *ctx.saved_tensors, ctx.activation, wanted)
    given = (g if is_wanted else None for g, is_wanted in zip(grads, wanted, strict=True))
    return *given, None, dy if needs[4] else None


_TORCH_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x, "relu": F.relu, "gelu": F.gelu, "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}  # fmt: skip


def _reference(x: Any, weight: Any, bias: Any, activation: str, residual: Any = None) -> Any:
    y = _TORCH_ACTIVATIONS[activation](F.linear(x, weight, bias))
    return y if residual is None else y + residual


def _backward_reference(
    dy: Any, x: Any, weight: Any, bias: Any, activation: str, wanted: Sequence[bool]
) -> Any:
    def forward(x: Any, weight: Any, bias: Any) -> Any:
        return _reference(x, weight, bias, activation)

    return gradients(forward, (x, weight, bias), dy, wanted)


differentiable("linear", _keep_linear, _grad_linear, _reference, _backward_reference)


# ---- torch's products ----


@operator("mm", aten.mm.default)
def _mm(gb: GraphBuilder, a: Any, b: Any) -> None:
    gb.write(0, gb.graph.matmul(gb.read(a), gb.read(b)))


operator("bmm", aten.bmm.default)(_mm)


@operator("addmm", aten.addmm.default, rule=result_rules.addmm)
def _addmm(gb: GraphBuilder, bias: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> None:
    g, sum_ = gb.graph, gb.graph.matmul(gb.read(a), gb.read(b))
    if alpha != 1:
        sum_ = g.mul(sum_, gb.number(float(alpha)))
    if beta:
        added = gb.read_broadcast(bias, 2)
        sum_ = g.add(sum_, added if beta == 1 else g.mul(added, gb.number(float(beta))))
    gb.write(0, sum_)


def _keep_product(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _factors(multiply: Any, dy: Any, factors: Sequence[Any], wanted: Sequence[bool]) -> Any:
    """Computes the gradients of a product's factors."""
    a, b = factors
    da = multiply(dy, b.transpose(-2, -1)) if wanted[0] else None
    return da, multiply(a.transpose(-2, -1), dy) if wanted[1] else None


def _grad_mm(ctx: Any, dy: Any) -> Any:
    return _factors(OPERATORS["mm"].apply, dy, ctx.saved_tensors, ctx.needs_input_grad)


def _grad_bmm(ctx: Any, dy: Any) -> Any:
    return _factors(OPERATORS["bmm"].apply, dy, ctx.saved_tensors, ctx.needs_input_grad)


def _keep_addmm(ctx: Any, inputs: Any, output: Any) -> None:
    bias, a, b, ctx.beta, ctx.alpha = inputs
    ctx.shape = bias.shape
    ctx.save_for_backward(a, b)


def _grad_addmm(ctx: Any, dy: Any) -> Any:
    dbias = dy.sum_to_size(ctx.shape) * ctx.beta if ctx.needs_input_grad[0] else None
    factors = _factors(OPERATORS["mm"].apply, dy, ctx.saved_tensors, ctx.needs_input_grad[1:3])
    return dbias, *(None if each is None else each * ctx.alpha for each in factors), None, None


differentiable("mm", _keep_product, _grad_mm)
differentiable("bmm", _keep_product, _grad_bmm)
differentiable("addmm", _keep_addmm, _grad_addmm)
