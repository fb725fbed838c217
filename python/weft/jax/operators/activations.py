"""Activations behind products and convolutions."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from weft.errors import BadParameterError
from weft.graphs import Graph
from weft.tensor import Tensor

ACTIVATIONS: dict[str, tuple[str, Any]] = {
    "relu": ("relu", jax.nn.relu),
    "gelu": ("gelu", partial(jax.nn.gelu, approximate=False)),
    "gelu_tanh": ("gelu_approx_tanh", jax.nn.gelu),
    "silu": ("swish", jax.nn.silu),
    "sigmoid": ("sigmoid", jax.nn.sigmoid),
    "tanh": ("tanh", jax.numpy.tanh),
}
"""By name: the graph's method, and the function of JAX that is the same."""


def check(where: str, name: str | None) -> None:
    """Refuses a name that is none of an activation."""
    if name is not None and name not in ACTIVATIONS:
        raise BadParameterError(
            f"{where}: activation is {name!r}. Give None, or one of {', '.join(map(repr, ACTIVATIONS))}."
        )


def draw(g: Graph, name: str | None, x: Tensor) -> Tensor:
    """An activation of a tensor."""
    made: Tensor = x if name is None else getattr(g, ACTIVATIONS[name][0])(x)
    return made


def backward(name: str | None, dy: Any, x: Any) -> Any:
    """The gradient to what an activation was given, which XLA fuses with what else is done to it."""
    return dy if name is None else jax.vjp(ACTIVATIONS[name][1], x)[1](dy)[0]
