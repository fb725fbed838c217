"""Linear layers with quantized weights: codes of few bits with a scale per block."""

from __future__ import annotations

from typing import Any

import torch

from weft.errors import NotSupportedError
from weft.tensor import Tensor
from weft.torch.ops import OPERATORS, differentiable, operator
from weft.torch.plans import GraphBuilder, _strides

F = torch.nn.functional

CODES = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)


def _fake_quantized(x: Any, weight: Any, scale: Any, bias: Any = None) -> Any:
    n, k = weight.shape[0], x.shape[-1]
    if weight.dtype not in CODES:
        raise NotSupportedError(f"quantized_linear: weights of {weight.dtype}. Use int8, uint8 or float8.")
    packed = k // 2 if weight.dtype == torch.uint8 else k
    if weight.shape[1] != packed or (weight.dtype == torch.uint8 and k % 2):
        raise NotSupportedError(
            f"quantized_linear: the shape of weight does not fit: expected [N, {packed}] for {k} columns of "
            f"input (uint8 packs two 4-bit codes per byte), got {[*weight.shape]}."
        )
    if scale.ndim != 2 or scale.shape[0] != n or not scale.shape[1] or k % scale.shape[1]:
        raise NotSupportedError(
            f"quantized_linear: scale does not fit: expected [{n}, blocks], where blocks divides "
            f"{k}, got {[*scale.shape]}."
        )
    return x.new_empty([*x.shape[:-1], n])


def _weight(gb: GraphBuilder, weight: Any, scale: Any, k: int) -> Tensor:
    """Adds the dequantized weight [K, N]."""
    if not weight.is_contiguous():
        raise NotSupportedError("quantized_linear: the weight is not contiguous. Give weight.contiguous().")
    n, blocks = scale.shape
    codes = gb.read(weight, [k, n], [1, k])
    if weight.dtype == torch.uint8:
        codes.set_data_type("i4")
    shown = gb.read(scale, [blocks, n], [*_strides(scale)][::-1])
    return gb.graph.block_scale_dequantize(codes, shown, [k // blocks, 1])


@operator(
    "quantized_linear",
    schema="(Tensor input, Tensor weight, Tensor scale, Tensor? bias=None) -> Tensor",
    fake=_fake_quantized,
)
def _quantized(gb: GraphBuilder, x: Any, weight: Any, scale: Any, bias: Any) -> None:
    k, n = x.shape[-1], weight.shape[0]
    y = gb.graph.matmul(gb.read_as(x, [x.numel() // k, k]), _weight(gb, weight, scale, k))
    if bias is not None:
        y = gb.graph.add(y, gb.read(bias, [1, n]))
    gb.write_as(0, y, [x.numel() // k, n])


def _fake_backward(dy: Any, weight: Any, scale: Any) -> Any:
    k = weight.shape[1] * (2 if weight.dtype == torch.uint8 else 1)
    return dy.new_empty([*dy.shape[:-1], k])


@operator(
    "quantized_linear_backward",
    schema="(Tensor grad_output, Tensor weight, Tensor scale) -> Tensor",
    fake=_fake_backward,
)
def _quantized_backward(gb: GraphBuilder, dy: Any, weight: Any, scale: Any) -> None:
    (n, _), k = weight.shape, gb.outputs[0].shape[-1]
    rows = dy.numel() // n
    numbers = gb.graph.transpose(_weight(gb, weight, scale, k), [1, 0])
    gb.write_as(0, gb.graph.matmul(gb.read_as(dy, [rows, n]), numbers), [rows, k])


def _keep_quantized(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[1], inputs[2])


def _grad_quantized(ctx: Any, dy: Any) -> Any:
    needs = [*ctx.needs_input_grad, False]  # one per argument that the call passed
    if needs[2]:
        raise NotSupportedError("quantized_linear: the scale has no gradient. Detach it.")
    dx = OPERATORS["quantized_linear_backward"].apply(dy, *ctx.saved_tensors) if needs[0] else None
    dbias = dy.reshape(-1, dy.shape[-1]).sum(0) if needs[3] else None
    return dx, None, None, dbias


def _numbers(codes: Any, scale: Any) -> Any:
    """Returns the dequantized weight [N, K] in the type of its scale."""
    if codes.dtype == torch.uint8:
        codes = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).to(scale.dtype)
        codes = torch.where(codes > 7, codes - 16, codes)
    blocks = scale.shape[1]
    return (codes.to(scale.dtype).unflatten(1, (blocks, -1)) * scale[..., None]).flatten(1)


def _reference(x: Any, weight: Any, scale: Any, bias: Any) -> Any:
    return F.linear(x, _numbers(weight, scale).to(x.dtype), bias)


def _backward_reference(dy: Any, weight: Any, scale: Any) -> Any:
    return F.linear(dy, _numbers(weight, scale).to(dy.dtype).t())


differentiable("quantized_linear", _keep_quantized, _grad_quantized, _reference, _backward_reference)
