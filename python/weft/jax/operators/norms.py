"""Norms over the last dimension."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import numpy as np

from weft.enums import norm_forward_phase
from weft.jax.calls import call
from weft.jax.functions import Arrays, Function, Wanted
from weft.jax.graph_builder import Form, GraphBuilder, Operator, is_double
from weft.jax.operators import arguments
from weft.jax.sharding import Labels

STATISTICS = {"layer_norm": 2, "rms_norm": 1}
"""How many numbers the gradient needs per row: mean and 1 / deviation, or only the latter."""


# ---- Graphs: x is [rows, n], scale and bias are [n], statistics [rows] ------------------------------------


def _statistics(gb: GraphBuilder) -> Form:
    return Form(gb.arguments[0].shape[:1], np.dtype(np.float64 if is_double(gb.arguments) else np.float32))


def _build(
    name: str, gb: GraphBuilder, presence: tuple[bool, bool], epsilon: float, is_training: bool
) -> None:
    """Arguments: x, then the scale and the bias if given."""
    rows, n = gb.arguments[0].shape
    positions = iter(range(1, 3))
    scale, bias = (gb.read(next(positions), [1, n]) if is_given else None for is_given in presence)
    phase = norm_forward_phase.TRAINING if is_training else norm_forward_phase.INFERENCE
    norm = gb.graph.layernorm if name == "layer_norm" else gb.graph.rmsnorm
    y, *statistics = norm(phase, gb.read(0), scale, bias, gb.number(epsilon))
    gb.write(y, gb.arguments[0])
    for each in statistics if is_training else ():
        gb.write(each, _statistics(gb), [rows, 1])


def _build_backward(name: str, gb: GraphBuilder, presence: tuple[bool, bool]) -> None:
    """Arguments: dy, x, the statistics, then the scale if given."""
    rows, n = gb.arguments[1].shape
    count = STATISTICS[name]
    statistics = [gb.read(2 + i, [rows, 1]) for i in range(count)]
    scale = gb.read(2 + count, [1, n]) if presence[0] else None
    dy, x = gb.read(0), gb.read(1)
    results: Any
    if name == "layer_norm":
        results = gb.graph.layernorm_backward(dy, x, scale, statistics[0], statistics[1])
    else:
        results = gb.graph.rmsnorm_backward(dy, x, scale, statistics[0], presence[1])
    dx, *others = results
    gb.write(dx, gb.arguments[1])
    for i, is_given in enumerate(presence):
        if is_given:
            gb.write(others[i], Form((n,), _statistics(gb).dtype), [1, n])


_forward = {name: Operator(name, partial(_build, name), [0]) for name in STATISTICS}
_backward = {name: Operator(f"{name}_backward", partial(_build_backward, name)) for name in STATISTICS}
# Without gradients of scale and bias, every argument and result is rows.
_backward_plain = {
    name: Operator(f"{name}_backward", partial(_build_backward, name), range(2 + STATISTICS[name]))
    for name in STATISTICS
}


# ---- Functions ---------------------------------------------------------------------------------------------


class _Norm(Function):
    """A norm. Options: epsilon. Arrays: x, scale, bias."""

    def check(self, options: float, *arrays: Any) -> tuple[float, Arrays]:
        x, scale, bias = map(arguments.to_floating, arrays)
        arguments.check_floating(self.name, x=x, scale=scale, bias=bias)
        if x.ndim < 1:
            raise arguments.refuse(
                self.name, "x has no dimensions", "[.., n]", "[]", "Give x at least one dimension."
            )
        fix = f"Give one number for each element of the last dimension of x, {arguments.formatted(x)}."
        arguments.check_shape(self.name, "scale", scale, x.shape[-1:], fix)
        arguments.check_shape(self.name, "bias", bias, x.shape[-1:], fix)
        return options, (x, scale, bias)

    def labels(self, options: float, *arrays: Any) -> Labels:
        dims = [*range(arrays[0].ndim - 1), None]
        return Labels([dims, *(None if x is None else [None] for x in arrays[1:])], dims)

    def local(self, options: float, *arrays: Any) -> Any:
        x, scale, bias = arrays
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        return self.apply(options, rows, scale, bias).reshape(x.shape)

    def forward(self, config: float, is_training: bool, *arrays: Any) -> tuple[Any, Arrays]:
        presence = (arrays[1] is not None, arrays[2] is not None)
        y, *statistics = call(
            _forward[self.name],
            *(x for x in arrays if x is not None),
            attributes=(presence, config, is_training),
        )
        return y, tuple(statistics)

    def backward(self, config: float, wanted: Wanted, arrays: Arrays, saved: Arrays, dy: Any) -> list[Any]:
        x, scale, bias = arrays
        presence = (scale is not None, bias is not None)
        operator = (_backward if any(presence) else _backward_plain)[self.name]
        dx, *sums = call(operator, dy, x, *saved, *([scale] if presence[0] else []), attributes=(presence,))
        each = iter(sums)
        return [dx, *(None if p is None else next(each).astype(p.dtype) for p in (scale, bias))]

    def plain(self, config: float, *arrays: Any) -> Any:
        x, scale, bias = arrays
        y = x.astype(arguments.wide(x.dtype))
        if self.name == "layer_norm":
            y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + config)
        y = y if scale is None else y * arguments.like(scale, y)
        return (y if bias is None else y + arguments.like(bias, y)).astype(x.dtype)


_layer_norm, _rms_norm = _Norm("layer_norm"), _Norm("rms_norm")


def layer_norm(x: Any, scale: Any = None, bias: Any = None, *, epsilon: float = 1e-6) -> Any:
    """scale (x - mean) / sqrt(variance + epsilon) + bias, over the last dimension.

    Args:
        x: [.., n]; integers are converted to floating point.
        scale: [n]; optional, and so is the bias, [n].
        epsilon: added to the variance.

    >>> import jax.numpy as jnp, weft.jax
    >>> weft.jax.layer_norm(jnp.array([1.0, 3.0]), epsilon=0.0)
    Array([-1.,  1.], dtype=float32)
    """
    return _layer_norm(arguments.number("layer_norm", "epsilon", epsilon), x, scale, bias)


def rms_norm(x: Any, scale: Any = None, *, epsilon: float = 1e-6) -> Any:
    """scale x / sqrt(mean of squares + epsilon), over the last dimension; arguments as for layer_norm.

    >>> import jax.numpy as jnp, weft.jax
    >>> weft.jax.rms_norm(jnp.array([2.0, -2.0]), epsilon=0.0)
    Array([ 1., -1.], dtype=float32)
    """
    return _rms_norm(arguments.number("rms_norm", "epsilon", epsilon), x, scale, None)
