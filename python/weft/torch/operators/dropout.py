"""Dropout with a mask that is computed from a seed, so that no mask is stored for the gradient."""

from __future__ import annotations

from typing import Any

import torch

from weft.enums import rng_distribution
from weft.errors import NotSupportedError
from weft.torch.ops import OPERATORS, differentiable, operator, stands_for
from weft.torch.plans import GraphBuilder

aten = torch.ops.aten


def _fake_dropout(x: Any, p: float, seed: Any) -> Any:
    if not 0 <= p <= 1:
        raise NotSupportedError(f"dropout: p is out of range: expected 0 to 1, got {p}.")
    return torch.empty_like(x)


# The gradient is the operator itself with the same seed.
@operator("dropout", schema="(Tensor input, float p, Tensor seed) -> Tensor", fake=_fake_dropout)
def _dropout(gb: GraphBuilder, x: Any, p: float, seed: Any) -> None:
    g, image = gb.graph, gb.read(x)
    chosen = gb.read(seed, [1] * max(x.ndim, 1))
    keep_mask = g.rng(chosen, None, rng_distribution.BERNOULLI, 1 - p).set_dim(image.get_dim())
    gb.write(0, g.mul(image, g.mul(keep_mask, gb.number(1 / (1 - p) if p < 1 else 0.0))))


def _keep_dropout(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.p, seed = inputs
    ctx.save_for_backward(seed)


def _grad_dropout(ctx: Any, dy: Any) -> Any:
    return OPERATORS["dropout"].apply(dy, ctx.p, *ctx.saved_tensors), None, None


def _reference(x: Any, p: float, seed: Any) -> Any:
    """Multiplies by the mask, which is the operator's own result for ones and is not differentiated."""
    return x * OPERATORS["dropout"].transformed.apply(torch.ones_like(x.detach()), p, seed)


differentiable("dropout", _keep_dropout, _grad_dropout, _reference)


def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True) -> torch.Tensor:
    """Returns x / (1 - p) with probability 1 - p, else 0; returns x itself if not training. The seed is drawn
    from torch's generator of the device, so torch.manual_seed makes the result reproducible."""
    if not training or not p:
        return x
    result: torch.Tensor = torch.ops.weft.dropout(x, p, _seed(x))
    return result


def _seed(x: torch.Tensor) -> torch.Tensor:
    return torch.randint(2**63 - 1, (), dtype=torch.int64, device=x.device)


def _check(x: torch.Tensor, p: float, train: bool) -> None:
    if train and not x.numel():
        raise NotSupportedError("dropout: a tensor without elements.")


@stands_for("dropout", aten.dropout.default, is_composite=True, check=_check)
def _in_place_of_torchs(x: torch.Tensor, p: float, train: bool) -> Any:
    return OPERATORS["dropout"].apply(x, p, _seed(x)) if train and p else x
