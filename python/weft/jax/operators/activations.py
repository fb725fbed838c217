"""Activations after products and convolutions, and the gradients through activation and bias."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from weft.graphs import Graph
from weft.jax.calls import call
from weft.jax.graph_builder import Form, GraphBuilder, Operator, is_double
from weft.jax.operators import arguments
from weft.tensor import Tensor

METHODS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_approx_tanh",
    "silu": "swish",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}
"""The graph method of each activation; that of its gradient ends in _backward."""


def check(where: str, name: str | None) -> None:
    """Refuses a name that is not an activation."""
    if name is not None and name not in METHODS:
        names = ", ".join(map(repr, METHODS))
        raise arguments.refuse(
            where, "activation is unknown", f"None or one of {names}", repr(name),
            "Apply other functions to the result.",
        )  # fmt: skip


def apply(g: Graph, name: str | None, x: Tensor) -> Tensor:
    """Adds an activation."""
    result: Tensor = x if name is None else getattr(g, METHODS[name])(x)
    return result


def _build_backward(gb: GraphBuilder, name: str, has_bias: bool) -> None:
    """Arguments: the gradient of the result and the input of the activation, both [batch.., rows,
    channels]."""
    shape = jnp.broadcast_shapes(*(each.shape for each in gb.arguments))
    ends = (gb.read(i, [*[1] * (len(shape) - len(s)), *s]) for i, (s, _) in enumerate(gb.arguments))
    dz = getattr(gb.graph, f"{METHODS[name]}_backward")(*ends)
    gb.write(dz, Form(shape, gb.arguments[1].dtype))
    if has_bias:
        *batch, _, channels = shape
        sums = gb.graph.reduction(dz, "ADD", dims=[len(batch)])
        type_ = jnp.dtype(jnp.float64 if is_double(gb.arguments) else jnp.float32)
        gb.write(sums, Form((*batch, channels), type_), [*batch, 1, channels])


_backward = Operator("activation_backward", _build_backward, is_batched=True)


def backward(name: str | None, dy: Any, given: Any, bias: Any, axis: int = -1) -> tuple[Any, Any]:
    """Returns the gradients of the input of bias and activation, and of the bias if there is one, in one pass
    over memory. axis: the dimension of the bias."""
    if name is None:
        return dy, None if bias is None else _sums(dy, bias, axis)
    # The kernel only supports a bias along the last dimension; XLA fuses the operations of the others.
    if axis % dy.ndim != dy.ndim - 1:
        dz = jax.vjp(partial(plain, name), given)[1](dy)[0]
        return dz, None if bias is None else _sums(dz, bias, axis)
    rows = (each.reshape(-1, each.shape[-1]) for each in (dy, given))
    dz, *sums = call(_backward, *rows, attributes=(name, bias is not None))
    return dz.reshape(dy.shape), sums[0].reshape(bias.shape).astype(bias.dtype) if sums else None


def plain(name: str | None, x: Any) -> Any:
    """Computes the activation with JAX."""
    if name is None:
        return x
    if name.startswith("gelu"):
        return jax.nn.gelu(x, approximate=name == "gelu_tanh")
    return jnp.tanh(x) if name == "tanh" else getattr(jax.nn, name)(x)


def _sums(dz: Any, bias: Any, axis: int) -> Any:
    """Sums over all dimensions except one; 16-bit types are summed in float."""
    others = [i for i in range(dz.ndim) if i != axis % dz.ndim]
    return dz.sum(others, dtype=arguments.wide(dz.dtype)).reshape(bias.shape).astype(bias.dtype)
