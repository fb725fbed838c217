"""cudnn.ops: causal convolutions of sequences on torch tensors of a GPU or the CPU. They call the torch
operator weft::causal_conv1d, so autograd and torch.compile support them."""

from __future__ import annotations

from typing import Any

from weft.arguments import counted
from weft.errors import UnavailableError

TAPS_MOST = {"causal_conv1d": 256, "causal_conv1d_nwh": 128, "b2b_causal_conv1d": 32}
"""The largest filters that cuDNN accepts. Weft's operation has no limit."""


def _torch() -> Any:
    try:
        import torch

        import weft.torch  # noqa: F401  # registers the operators
    except ImportError as error:
        raise UnavailableError("cudnn.ops: these are functions on torch tensors. Install torch.") from error
    return torch


def _check(name: str, x: Any, weight: Any, bias: Any, activation: str, taps: int) -> None:
    """Rejects what cuDNN rejects, with the same exceptions."""
    if activation not in ("identity", "silu"):
        raise ValueError(f"cudnn.ops.{name}: activation is {activation!r}. Use 'identity' or 'silu'.")
    others = [weight] if bias is None else [weight, bias]
    if any(each.dtype != x.dtype for each in others):
        raise TypeError(
            f"cudnn.ops.{name}: data types differ: {[str(each.dtype) for each in (x, *others)]}. Use one."
        )
    if not 2 <= taps <= TAPS_MOST[name]:
        raise ValueError(
            f"cudnn.ops.{name}: the filter has {counted(taps, 'tap')}, expected 2 to {TAPS_MOST[name]}. "
            "torch.ops.weft.causal_conv1d takes others."
        )


def _ranks(name: str, x: Any, weight: Any, bias: Any) -> None:
    ranks = (x.ndim, weight.ndim, 1 if bias is None else bias.ndim)
    if ranks != (3, 2, 1):
        raise ValueError(
            f"cudnn.ops.{name}: x, weight and bias have {ranks[0]}, {ranks[1]} and {ranks[2]} dimensions, "
            "expected 3, 2 and 1."
        )


def causal_conv1d(x: Any, weight: Any, bias: Any = None, activation: str = "identity") -> Any:
    """y[b,d,l] = activation(bias[d] + sum over k of weight[d,k] * x[b, d, l - K + 1 + k]).

    Args:
        x: [B, D, L].
        weight: [D, K], of the type of x, like bias; K is 2 to 256.
        bias: [D]; None adds nothing.
        activation: "identity" or "silu".
    """
    torch = _torch()
    _ranks("causal_conv1d", x, weight, bias)
    _check("causal_conv1d", x, weight, bias, activation, weight.shape[1])
    return torch.ops.weft.causal_conv1d(x, weight, bias, activation)


def causal_conv1d_nwh(x: Any, weight: Any, bias: Any = None, activation: str = "identity") -> Any:
    """causal_conv1d for sequences with channels last.

    Args:
        x: [B, L, D].
        weight: [K, D], of the type of x, like bias; K is 2 to 128.
        bias: [D]; None adds nothing.
        activation: "identity" or "silu".
    """
    torch = _torch()
    _ranks("causal_conv1d_nwh", x, weight, bias)
    _check("causal_conv1d_nwh", x, weight, bias, activation, weight.shape[0])
    y = torch.ops.weft.causal_conv1d(x.transpose(1, 2), weight.t(), bias, activation)
    return y.transpose(1, 2)


def b2b_causal_conv1d(x: Any, weights_proj: Any, weights_mixer: Any, skip_bias: Any) -> Any:
    """A convolution of three channels for each channel of the result, a product of two of them, a second
    convolution with a skip connection around it, and a product with the third. Weft composes it of two
    convolutions and torch's multiplications: several kernels, where cuDNN has one.

    Args:
        x: [B, 3 D, L], the three channels of a result adjacent.
        weights_proj: [3 D, K], K 2 to 32, of the type of x, like the others.
        weights_mixer: [D, K], K 2 to 256.
        skip_bias: [D].
    """
    _torch()
    _ranks("b2b_causal_conv1d", x, weights_proj, skip_bias)
    _check("b2b_causal_conv1d", x, weights_proj, skip_bias, "identity", weights_proj.shape[1])
    projected = causal_conv1d(x, weights_proj)
    gated = projected[:, 1::3] * projected[:, 2::3]
    mixed = causal_conv1d(gated, weights_mixer)
    return (mixed + skip_bias[:, None] * gated) * projected[:, 0::3]
