"""Operators without a method of their own, expressed as Weft's operations; shared by the frameworks' front
ends."""

from __future__ import annotations

from weft.graphs import Graph
from weft.tensor import Tensor


def softmax_backward(g: Graph, dy: Tensor, y: Tensor, axis: int) -> Tensor:
    """Gradient of softmax, from its result."""
    return g.mul(y, g.sub(dy, g.reduction(g.mul(dy, y), "ADD", dims=[axis])))


def log_softmax(g: Graph, x: Tensor, axis: int) -> Tensor:
    """The logarithm of softmax."""
    shifted = g.sub(x, g.reduction(x, "MAX", dims=[axis]))
    return g.sub(shifted, g.log(g.reduction(g.exp(shifted), "ADD", dims=[axis])))


def log_softmax_backward(g: Graph, dy: Tensor, y: Tensor, axis: int) -> Tensor:
    """Gradient of log_softmax, from its result."""
    return g.sub(dy, g.mul(g.exp(y), g.reduction(dy, "ADD", dims=[axis])))
