"""Softmax and its logarithm."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from weft import spellings
from weft.jax.calls import call
from weft.jax.drawing import Drawing, Operator

AXIS = 1
"""Of what is drawn: [before, axis, behind]."""


def _draw(name: str, d: Drawing) -> None:
    x = d.read(0)
    d.write(
        d.graph.softmax(x, axis=AXIS) if name == "softmax" else spellings.log_softmax(d.graph, x, AXIS),
        d.arguments[0],
    )


def _draw_backward(name: str, d: Drawing) -> None:
    spell = getattr(spellings, f"{name}_backward")
    d.write(spell(d.graph, d.read(0), d.read(1), AXIS), d.arguments[1])


_forward = {name: Operator(name, partial(_draw, name), [0]) for name in ("softmax", "log_softmax")}
_backward = {name: Operator(f"{name}_backward", partial(_draw_backward, name), [0, 1]) for name in _forward}


def softmax(x: Any, axis: int = -1) -> Any:
    """Weights that sum to 1 along one dimension, as jax.nn.softmax.

    >>> import jax.numpy as jnp, weft.jax
    >>> weft.jax.softmax(jnp.zeros(4))
    Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    return _along("softmax", x, axis)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """The logarithm of softmax, as jax.nn.log_softmax.

    >>> import jax.numpy as jnp, weft.jax
    >>> float(weft.jax.log_softmax(jnp.zeros(1))[0])
    0.0
    """
    return _along("log_softmax", x, axis)


def _along(name: str, x: Any, axis: int) -> Any:
    x = jnp.asarray(x)
    at = range(x.ndim)[axis]
    before, behind = math.prod(x.shape[:at]), math.prod(x.shape[at + 1 :])
    return _normalized(name, x.reshape(before, x.shape[at], behind)).reshape(x.shape)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _normalized(name: str, x: Any) -> Any:
    return call(_forward[name], x)[0]


def _keep(name: str, x: Any) -> Any:
    y = _normalized(name, x)
    return y, y


def _gradient(name: str, y: Any, dy: Any) -> Any:
    return (call(_backward[name], dy, y)[0],)


_normalized.defvjp(_keep, _gradient)
