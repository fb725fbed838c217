"""Softmax and its logarithm."""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any

import jax

from weft import decompositions
from weft.jax.calls import call
from weft.jax.functions import Arrays, Function, Wanted
from weft.jax.graph_builder import GraphBuilder, Operator
from weft.jax.operators import arguments
from weft.jax.sharding import Labels

AXIS = 1
"""The axis in the graph's shape [before, axis, after]."""


def _build(name: str, gb: GraphBuilder) -> None:
    x = gb.read(0)
    if name == "softmax":
        y = gb.graph.softmax(x, axis=AXIS, infinite_is_nan=True)
    else:
        y = decompositions.log_softmax(gb.graph, x, AXIS)
    gb.write(y, gb.arguments[0])


def _build_backward(name: str, gb: GraphBuilder) -> None:
    backward = getattr(decompositions, f"{name}_backward")
    gb.write(backward(gb.graph, gb.read(0), gb.read(1), AXIS), gb.arguments[1])


_forward = {name: Operator(name, partial(_build, name), [0]) for name in ("softmax", "log_softmax")}
_backward = {name: Operator(f"{name}_backward", partial(_build_backward, name), [0, 1]) for name in _forward}


class _Softmax(Function):
    """Softmax or its logarithm. Options: the axis."""

    def check(self, options: int, *arrays: Any) -> tuple[int, Arrays]:
        x = arguments.to_floating(arrays[0])
        arguments.check_floating(self.name, x=x)
        if not -x.ndim <= options < x.ndim:
            raise arguments.refuse(
                self.name, "axis is out of range", f"-{x.ndim} to {x.ndim - 1}", options,
                f"Give a dimension of x, {arguments.formatted(x)}.",
            )  # fmt: skip
        return options % x.ndim, (x,)

    def labels(self, options: int, *arrays: Any) -> Labels:
        dims = [None if i == options else i for i in range(arrays[0].ndim)]
        return Labels([dims], dims)

    def local(self, options: int, *arrays: Any) -> Any:
        (x,) = arrays
        before, behind = math.prod(x.shape[:options]), math.prod(x.shape[options + 1 :])
        return self.apply(None, x.reshape(before, x.shape[options], behind)).reshape(x.shape)

    def forward(self, config: None, is_training: bool, *arrays: Any) -> tuple[Any, Arrays]:
        y = call(_forward[self.name], *arrays)[0]
        return y, (y,) if is_training else ()

    def backward(self, config: None, wanted: Wanted, arrays: Arrays, saved: Arrays, dy: Any) -> list[Any]:
        return [call(_backward[self.name], dy, *saved)[0]]

    def plain(self, config: None, *arrays: Any) -> Any:
        (x,) = arrays
        return getattr(jax.nn, self.name)(x.astype(arguments.wide(x.dtype)), AXIS).astype(x.dtype)


_softmax, _log_softmax = _Softmax("softmax"), _Softmax("log_softmax")


def softmax(x: Any, axis: int = -1) -> Any:
    """Weights that sum to 1 along one dimension, as jax.nn.softmax.

    Args:
        x: an array of any shape with at least one dimension; integers are converted to floating point.
        axis: the dimension. Rows along it whose largest element is infinite, of either sign, give NaN.

    >>> import jax.numpy as jnp, weft.jax
    >>> weft.jax.softmax(jnp.zeros(4))
    Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    return _softmax(_integer("softmax", axis), x)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """The logarithm of softmax, as jax.nn.log_softmax; arguments as for softmax.

    >>> import jax.numpy as jnp, weft.jax
    >>> float(weft.jax.log_softmax(jnp.zeros(1))[0])
    0.0
    """
    return _log_softmax(_integer("log_softmax", axis), x)


def _integer(where: str, axis: Any) -> int:
    try:
        return operator.index(axis)
    except TypeError:
        raise arguments.refuse(
            where, "axis is wrong", "an integer", repr(axis), "Give one dimension; reshape x to join several."
        ) from None
