"""Matrix products: matmul, and linear with its epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from weft import buffers
from weft.jax.calls import call
from weft.jax.functions import Arrays, Function, Wanted
from weft.jax.graph_builder import Form, GraphBuilder, Operator
from weft.jax.operators import activations, arguments
from weft.jax.sharding import Labels
from weft.tensor import Tensor


class _Epilogue(NamedTuple):
    """The operations after a product: y = activation(a b + bias) + residual."""

    has_residual: bool = False
    has_bias: bool = False
    activation: str | None = None
    is_kept: bool = False
    """Whether the input of the activation is a result, too."""


# ---- Graphs ------------------------------------------------------------------------------------------------


def _matrix(gb: GraphBuilder, i: int, rank: int, is_turned: bool) -> Tensor:
    """Reads argument i with 1s before its dimensions, and with its last two swapped if it is transposed."""
    shape = [1] * (rank - len(gb.arguments[i].shape)) + list(gb.arguments[i].shape)
    steps = list(buffers.packed_strides(shape))
    if is_turned:
        shape[-2:], steps[-2:] = shape[:-3:-1], steps[:-3:-1]
    return gb.read(i, shape, steps)


def _build(gb: GraphBuilder, turned: tuple[bool, bool], type_: np.dtype[Any], config: _Epilogue) -> None:
    """Arguments: a, b, then the residual and the bias, [1, n], if given."""
    g, rank = gb.graph, max(len(each.shape) for each in gb.arguments)
    a, b = (_matrix(gb, i, rank, turned[i]) for i in (0, 1))
    batch = np.broadcast_shapes(*(each.shape[:-2] for each in gb.arguments))
    form = Form((*batch, a.dims[-2], b.dims[-1]), type_)
    y = g.matmul(a, b)
    if config.has_bias:
        y = g.add(y, _matrix(gb, 2 + config.has_residual, rank, False))
    given = y
    y = activations.apply(g, config.activation, y)
    if config.has_residual:
        y = g.add(y, _matrix(gb, 2, rank, False))
    gb.write(y, form)
    if config.is_kept:
        gb.write(given, form)


_ROWS = (jax.lax.dot_general_p, {"dimension_numbers": (((1,), (0,)), ((), ()))})
_BATCH = (jax.lax.dot_general_p, {"dimension_numbers": (((2,), (1,)), ((0,), (0,)))})
_product = Operator("matmul", _build, is_batched=True, stands_for=_BATCH)
_product_rows = Operator("matmul", _build, rows=[0], is_batched=True, stands_for=_ROWS)
_linear_rows = Operator("linear", _build, rows=[0], is_batched=True, stands_for=_ROWS)
_linear_residual = Operator("linear", _build, rows=[0, 2], is_batched=True, stands_for=_ROWS)


def _multiply(a: Any, b: Any, type_: Any, turn_a: bool = False, turn_b: bool = False) -> Any:
    operator = _product if turn_a or b.ndim > 2 else _product_rows
    return call(operator, a, b, attributes=((turn_a, turn_b), np.dtype(type_), _Epilogue()))[0]


# ---- matmul ------------------------------------------------------------------------------------------------


class _Matmul(Function):
    """A product of matrices, or of batches of them. Arrays: a, b."""

    def check(self, options: None, *arrays: Any) -> tuple[None, Arrays]:
        a, b = arrays
        problem = None
        if min(a.ndim, b.ndim) < 2:
            problem = "an operand is not a matrix"
        elif a.shape[-1] != b.shape[-2]:
            problem = "the inner dimensions differ"
        elif any(m != n and 1 not in (m, n) for m, n in zip(a.shape[-3::-1], b.shape[-3::-1], strict=False)):
            problem = "the batch dimensions cannot be broadcast"
        if problem:
            raise arguments.refuse(
                self.name, problem, "a: [.., m, k] and b: [.., k, n]",
                f"a: {arguments.formatted(a)} and b: {arguments.formatted(b)}",
                "Reshape or transpose one of them.",
            )  # fmt: skip
        return None, tuple(arguments.to_common(a, b))

    def labels(self, options: None, *arrays: Any) -> Labels:
        a, b = arrays
        batch = range(-max(a.ndim, b.ndim), -2)
        dims = [list(batch)[len(batch) + 2 - x.ndim :] for x in arrays]
        return Labels([[*dims[0], "m", None], [*dims[1], None, "n"]], [*batch, "m", "n"])

    def local(self, options: None, *arrays: Any) -> Any:
        return self.apply(None, *arrays)

    def forward(self, config: None, is_training: bool, *arrays: Any) -> tuple[Any, Arrays]:
        a, b = arrays
        return _multiply(a, b, jnp.promote_types(a.dtype, b.dtype)), ()

    def backward(self, config: None, wanted: Wanted, arrays: Arrays, saved: Arrays, dy: Any) -> list[Any]:
        a, b = arrays
        da = _summed(_multiply(dy, b, a.dtype, turn_b=True), a.shape) if wanted[0] else None
        db = _summed(_multiply(a, dy, b.dtype, turn_a=True), b.shape) if wanted[1] else None
        return [da, db]

    def plain(self, config: None, *arrays: Any) -> Any:
        type_ = jnp.promote_types(*(x.dtype for x in arrays))
        return jnp.matmul(*arrays, preferred_element_type=arguments.wide(type_)).astype(type_)


_matmul = _Matmul("matmul")


def matmul(a: Any, b: Any) -> Any:
    """The product of matrices [.., m, k] and [.., k, n], as jax.numpy.matmul computes it for two or more
    dimensions. JAX computes products of integers.

    >>> import jax.numpy as jnp, weft.jax
    >>> weft.jax.matmul(jnp.ones((2, 3)), jnp.ones((3, 1)))
    Array([[3.],
           [3.]], dtype=float32)
    """
    return _matmul(None, a, b)


def _summed(value: Any, shape: tuple[int, ...]) -> Any:
    """Sums a gradient over the dimensions along which its operand was broadcast."""
    missing = value.ndim - len(shape)
    repeated = [missing + i for i, n in enumerate(shape) if n == 1 and value.shape[missing + i] > 1]
    return value.sum((*range(missing), *repeated)).reshape(shape)


# ---- linear ------------------------------------------------------------------------------------------------


class _Linear(Function):
    """A product of rows with weights, and its epilogue. Options: the activation. Arrays: x, w, bias,
    residual."""

    def check(self, options: str | None, *arrays: Any) -> tuple[str | None, Arrays]:
        activations.check(self.name, options)
        x, w, bias, residual = arguments.to_common(*arrays)
        if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
            raise arguments.refuse(
                self.name, "the shapes of x and w do not fit", "x: [.., k] and w: [k, n]",
                f"x: {arguments.formatted(x)} and w: {arguments.formatted(w)}",
                "The last dimension of x is the first one of w.",
            )  # fmt: skip
        n = w.shape[1]
        fix = f"Give one number for each column of w, {arguments.formatted(w)}."
        arguments.check_shape(self.name, "bias", bias, (n,), fix)
        shape = (*x.shape[:-1], n)
        if residual is not None:
            if not _broadcasts(residual.shape, shape):
                raise arguments.refuse(
                    self.name, "the shape of residual does not fit", str(list(shape)),
                    str(list(residual.shape)), "Give an array of the shape of the result.",
                )  # fmt: skip
            residual = jnp.broadcast_to(residual, shape)
        return options, (x, w, bias, residual)

    def labels(self, options: str | None, *arrays: Any) -> Labels:
        x, _, bias, residual = arrays
        rows = range(x.ndim - 1)
        result = [*rows, "n"]
        others = [None if bias is None else ["n"], None if residual is None else result]
        return Labels([[*rows, None], [None, "n"], *others], result)

    def local(self, options: str | None, *arrays: Any) -> Any:
        x, w, bias, residual = arrays
        shape = (*x.shape[:-1], w.shape[1])
        count = math.prod(shape[:-1])
        rows = None if residual is None else residual.reshape(count, w.shape[1])
        bias = None if bias is None else bias.reshape(1, w.shape[1])
        return self.apply(options, x.reshape(count, x.shape[-1]), w, bias, rows).reshape(shape)

    def forward(self, config: str | None, is_training: bool, *arrays: Any) -> tuple[Any, Arrays]:
        x, w, bias, residual = arrays
        is_kept = is_training and config is not None
        epilogue = _Epilogue(residual is not None, bias is not None, config, is_kept)
        operator = _linear_rows if residual is None else _linear_residual
        type_ = np.dtype(jnp.promote_types(x.dtype, w.dtype))
        given = [x, w, *(each for each in (residual, bias) if each is not None)]
        y, *saved = call(operator, *given, attributes=((False, False), type_, epilogue))
        return y, tuple(saved)

    def backward(
        self, config: str | None, wanted: Wanted, arrays: Arrays, saved: Arrays, dy: Any
    ) -> list[Any]:
        x, w, bias, residual = arrays
        given = saved[0] if saved else None
        dz, dbias = activations.backward(config, dy, given, bias if wanted[2] else None)
        dx = _multiply(dz, w, x.dtype, turn_b=True) if wanted[0] else None
        dw = _multiply(x, dz, w.dtype, turn_a=True) if wanted[1] else None
        return [dx, dw, dbias, None if residual is None else dy.astype(residual.dtype)]

    def plain(self, config: str | None, *arrays: Any) -> Any:
        x, w, bias, residual = arrays
        type_ = jnp.promote_types(x.dtype, w.dtype)
        y = jnp.matmul(x, w, preferred_element_type=arguments.wide(type_))
        y = activations.plain(config, y if bias is None else y + arguments.like(bias, y))
        y = y if residual is None else y + arguments.like(residual, y)
        return y.astype(type_) if jnp.issubdtype(type_, jnp.inexact) else y


_linear = _Linear("linear")


def linear(x: Any, w: Any, bias: Any = None, *, activation: str | None = None, residual: Any = None) -> Any:
    """activation(x w + bias) + residual, in one kernel.

    Args:
        x: rows, [.., k].
        w: weights, [k, n].
        bias: [n]; optional.
        activation: "relu", "gelu", "gelu_tanh" (the default of jax.nn.gelu), "silu", "sigmoid" or "tanh".
        residual: [.., n], the shape of the result, or an array that can be broadcast to it; optional.
    Raises:
        BadParameterError: a shape does not fit, or no activation has this name.

    >>> import jax.numpy as jnp, weft.jax
    >>> weft.jax.linear(jnp.ones((1, 2)), jnp.ones((2, 2)), jnp.array([-3.0, 1.0]), activation="relu")
    Array([[0., 3.]], dtype=float32)
    """
    return _linear(activation, x, w, bias, residual)


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    """True if an array of a shape can be broadcast to another one."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(m in (1, n) for m, n in pairs)
