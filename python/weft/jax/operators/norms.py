"""Norms of rows, which are the last dimension."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

from weft.enums import norm_forward_phase
from weft.jax.calls import alike, call
from weft.jax.drawing import Drawing, Form, Operator, is_double

STATISTICS = {"layer_norm": 2, "rms_norm": 1}
"""How many numbers each row has that the gradient needs: mean and 1 / deviation, or the latter."""


# ---- Drawing: x is [rows, n], scale and bias are [n], statistics [rows] ------------------------------------


def _statistics(d: Drawing) -> Form:
    return Form(d.arguments[0].shape[:1], np.dtype(np.float64 if is_double(d.arguments) else np.float32))


def _draw(name: str, d: Drawing, given: tuple[bool, bool], epsilon: float, is_training: bool) -> None:
    """Arguments: x, then scale and bias if there are such."""
    rows, n = d.arguments[0].shape
    places = iter(range(1, 3))
    scale, bias = (d.read(next(places), [1, n]) if is_given else None for is_given in given)
    phase = norm_forward_phase.TRAINING if is_training else norm_forward_phase.INFERENCE
    norm = d.graph.layernorm if name == "layer_norm" else d.graph.rmsnorm
    y, *statistics = norm(phase, d.read(0), scale, bias, d.number(epsilon))
    d.write(y, d.arguments[0])
    for each in statistics if is_training else ():
        d.write(each, _statistics(d), [rows, 1])


def _draw_backward(name: str, d: Drawing, given: tuple[bool, bool]) -> None:
    """Arguments: dy, x, the statistics, then the scale if there is one."""
    rows, n = d.arguments[1].shape
    count = STATISTICS[name]
    statistics = [d.read(2 + i, [rows, 1]) for i in range(count)]
    scale = d.read(2 + count, [1, n]) if given[0] else None
    dy, x = d.read(0), d.read(1)
    results: Any
    if name == "layer_norm":
        results = d.graph.layernorm_backward(dy, x, scale, statistics[0], statistics[1])
    else:
        results = d.graph.rmsnorm_backward(dy, x, scale, statistics[0], given[1])
    dx, *others = results
    d.write(dx, d.arguments[1])
    for i, is_given in enumerate(given):
        if is_given:
            d.write(others[i], Form((n,), _statistics(d).dtype), [1, n])


_forward = {name: Operator(name, partial(_draw, name), [0]) for name in STATISTICS}
_backward = {name: Operator(f"{name}_backward", partial(_draw_backward, name)) for name in STATISTICS}
# Without gradients of scale and bias, all is rows.
_backward_plain = {
    name: Operator(f"{name}_backward", partial(_draw_backward, name), range(2 + STATISTICS[name]))
    for name in STATISTICS
}


# ---- Functions ---------------------------------------------------------------------------------------------


def layer_norm(x: Any, scale: Any = None, bias: Any = None, *, epsilon: float = 1e-6) -> Any:
    """scale (x - mean) / sqrt(variance + epsilon) + bias, over the last dimension.

    Args:
        x: [.., n].
        scale: [n]; optional, and so is the bias, [n].
        epsilon: added to the variance.

    >>> import jax.numpy as jnp, weft.jax
    >>> weft.jax.layer_norm(jnp.array([1.0, 3.0]), epsilon=0.0)
    Array([-1.,  1.], dtype=float32)
    """
    x, scale, bias = alike(x, scale, bias)
    return _normalized("layer_norm", float(epsilon), x.reshape(-1, x.shape[-1]), scale, bias).reshape(x.shape)


def rms_norm(x: Any, scale: Any = None, *, epsilon: float = 1e-6) -> Any:
    """scale x / sqrt(mean of squares + epsilon), over the last dimension; arguments as for layer_norm.

    >>> import jax.numpy as jnp, weft.jax
    >>> weft.jax.rms_norm(jnp.array([2.0, -2.0]), epsilon=0.0)
    Array([ 1., -1.], dtype=float32)
    """
    x, scale = alike(x, scale)
    return _normalized("rms_norm", float(epsilon), x.reshape(-1, x.shape[-1]), scale, None).reshape(x.shape)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _normalized(name: str, epsilon: float, x: Any, scale: Any, bias: Any) -> Any:
    return _call(name, epsilon, False, x, scale, bias)[0]


def _call(name: str, epsilon: float, is_training: bool, x: Any, scale: Any, bias: Any) -> Any:
    given = (scale is not None, bias is not None)
    arrays = [x, *(each for each in (scale, bias) if each is not None)]
    return call(_forward[name], *arrays, attributes=(given, epsilon, is_training))


def _keep(name: str, epsilon: float, x: Any, scale: Any, bias: Any) -> Any:
    y, *statistics = _call(name, epsilon, True, x, scale, bias)
    return y, (x, statistics, scale, bias)


def _gradient(name: str, epsilon: float, kept: Any, dy: Any) -> Any:
    x, statistics, scale, bias = kept
    given = (scale is not None, bias is not None)
    operator = (_backward if any(given) else _backward_plain)[name]
    arrays = [dy, x, *statistics, *([scale] if given[0] else [])]
    dx, *sums = call(operator, *arrays, attributes=(given,))
    made = iter(sums)
    return dx, *(None if each is None else next(made).astype(each.dtype) for each in (scale, bias))


_normalized.defvjp(_keep, _gradient)
