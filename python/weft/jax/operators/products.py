"""Products of matrices: matmul, and linear with what may come behind it."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from weft import buffers
from weft.errors import BadParameterError
from weft.jax.calls import alike, call
from weft.jax.drawing import Drawing, Form, Operator
from weft.jax.operators import activations
from weft.tensor import Tensor


class _Epilogue(NamedTuple):
    """What comes behind a product: y = activation(a b + bias) + residual."""

    has_residual: bool = False
    has_bias: bool = False
    activation: str | None = None
    is_kept: bool = False
    """Whether what the activation is given is a result, too."""


# ---- Drawing -----------------------------------------------------------------------------------------------


def _matrix(d: Drawing, i: int, rank: int, is_turned: bool) -> Tensor:
    """Argument i with 1s before its dimensions; turned, its last two change places."""
    shape = [1] * (rank - len(d.arguments[i].shape)) + list(d.arguments[i].shape)
    steps = list(buffers.packed_strides(shape))
    if is_turned:
        shape[-2:], steps[-2:] = shape[:-3:-1], steps[:-3:-1]
    return d.read(i, shape, steps)


def _draw(d: Drawing, turned: tuple[bool, bool], type_: np.dtype[Any], how: _Epilogue) -> None:
    """Arguments: a, b, then the residual and the bias, [1, n], if there are such."""
    g, rank = d.graph, max(len(each.shape) for each in d.arguments)
    a, b = (_matrix(d, i, rank, turned[i]) for i in (0, 1))
    batch = np.broadcast_shapes(*(each.shape[:-2] for each in d.arguments))
    form = Form((*batch, a.dims[-2], b.dims[-1]), type_)
    y = g.matmul(a, b)
    if how.has_bias:
        y = g.add(y, _matrix(d, 2 + how.has_residual, rank, False))
    given = y
    y = activations.draw(g, how.activation, y)
    if how.has_residual:
        y = g.add(y, _matrix(d, 2, rank, False))
    d.write(y, form)
    if how.is_kept:
        d.write(given, form)


_product = Operator("matmul", _draw, is_batched=True)
_linear = Operator("linear", _draw, rows=[0], is_batched=True)
_linear_residual = Operator("linear", _draw, rows=[0, 2], is_batched=True)


def _multiply(a: Any, b: Any, type_: Any, turn_a: bool = False, turn_b: bool = False) -> Any:
    operator = _product if turn_a or b.ndim > 2 else _linear
    return call(operator, a, b, attributes=((turn_a, turn_b), np.dtype(type_), _Epilogue()))[0]


# ---- matmul ------------------------------------------------------------------------------------------------


def matmul(a: Any, b: Any) -> Any:
    """The product of matrices [.., m, k] and [.., k, n], as jax.numpy.matmul has it of two dimensions or
    more.

    >>> import jax.numpy as jnp, weft.jax
    >>> weft.jax.matmul(jnp.ones((2, 3)), jnp.ones((3, 1)))
    Array([[3.],
           [3.]], dtype=float32)
    """
    a, b = alike(a, b)
    if min(a.ndim, b.ndim) < 2:
        raise BadParameterError(
            f"matmul: the operands have {a.ndim} and {b.ndim} dimensions. Give matrices, [.., m, k] and "
            "[.., k, n]."
        )
    return _matmul(a, b)


def _matmul_plain(a: Any, b: Any) -> Any:
    return _multiply(a, b, jnp.promote_types(a.dtype, b.dtype))


def _matmul_forward(a: Any, b: Any) -> Any:
    return _matmul_plain(a, b), (a, b)


def _matmul_backward(kept: Any, dy: Any) -> Any:
    a, b = kept
    da = _multiply(dy, b, a.dtype, turn_b=True)
    db = _multiply(a, dy, b.dtype, turn_a=True)
    return _summed(da, a.shape), _summed(db, b.shape)


_matmul = jax.custom_vjp(_matmul_plain)
_matmul.defvjp(_matmul_forward, _matmul_backward)


def _summed(value: Any, shape: tuple[int, ...]) -> Any:
    """A gradient summed over the dimensions along which its operand was repeated."""
    missing = value.ndim - len(shape)
    repeated = [missing + i for i, n in enumerate(shape) if n == 1 and value.shape[missing + i] > 1]
    return value.sum((*range(missing), *repeated)).reshape(shape)


# ---- linear ------------------------------------------------------------------------------------------------


def linear(
    x: Any, w: Any, bias: Any = None, *, activation: str | None = None, residual: Any = None
) -> Any:
    """activation(x w + bias) + residual, in one kernel.

    Args:
        x: rows, [.., k].
        w: weights, [k, n].
        bias: [n]; optional.
        activation: "relu", "gelu", "gelu_tanh" (what jax.nn.gelu is by itself), "silu", "sigmoid" or "tanh".
        residual: as the result, [.., n]; optional.

    >>> import jax.numpy as jnp, weft.jax
    >>> weft.jax.linear(jnp.ones((1, 2)), jnp.ones((2, 2)), jnp.array([-3.0, 1.0]), activation="relu")
    Array([[0., 3.]], dtype=float32)
    """
    activations.check("linear", activation)
    x, w, bias, residual = alike(x, w, bias, residual)
    if x.ndim < 1 or w.ndim != 2:
        raise BadParameterError(
            f"linear: x and w have {x.ndim} and {w.ndim} dimensions. Give [.., k] and [k, n]."
        )
    shape = (*x.shape[:-1], w.shape[1])
    rows = None if residual is None else jnp.broadcast_to(residual, shape).reshape(-1, w.shape[1])
    bias = None if bias is None else jnp.reshape(bias, (1, w.shape[1]))
    return _rows(activation, x.reshape(-1, x.shape[-1]), w, bias, rows).reshape(shape)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rows(activation: str | None, x: Any, w: Any, bias: Any, residual: Any) -> Any:
    return _epilogue(activation, False, x, w, bias, residual)[0]


def _epilogue(activation: Any, is_kept: bool, x: Any, w: Any, bias: Any, residual: Any) -> Any:
    how = _Epilogue(residual is not None, bias is not None, activation, is_kept)
    arrays = [x, w, *(each for each in (residual, bias) if each is not None)]
    operator = _linear if residual is None else _linear_residual
    type_ = np.dtype(jnp.promote_types(x.dtype, w.dtype))
    return call(operator, *arrays, attributes=((False, False), type_, how))


def _rows_forward(activation: Any, x: Any, w: Any, bias: Any, residual: Any) -> Any:
    is_kept = activation is not None
    y, *given = _epilogue(activation, is_kept, x, w, bias, residual)
    return y, (x, w, bias, residual, given[0] if is_kept else None)


def _rows_backward(activation: Any, kept: Any, dy: Any) -> Any:
    x, w, bias, residual, given = kept
    dz, dbias = activations.backward(activation, dy, given, bias)
    dx, dw = _multiply(dz, w, x.dtype, turn_b=True), _multiply(x, dz, w.dtype, turn_a=True)
    return dx, dw, dbias, None if residual is None else dy.astype(residual.dtype)


_rows.defvjp(_rows_forward, _rows_backward)
