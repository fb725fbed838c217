"""Operators as functions of JAX arrays that can be differentiated any number of times, forward and reverse.

Weft computes the value and the first gradient. Tangents and all higher derivatives come from `plain`, the
same operator in JAX's own operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from weft.jax import sharding
from weft.jax.calls import resized, vary_like, vary_together

Arrays = tuple[Any, ...]
"""The arrays of a call; None in the place of an optional one that was not given."""
Wanted = tuple[bool, ...]
"""For each array, whether it needs a gradient."""


class Function(ABC):
    """A public operator: what it computes, and how it is differentiated.

    `check` converts the arrays first. `local` then runs on every shard and calls `apply` with the arguments
    that `forward`, `backward` and `plain` accept.
    """

    def __init__(self, name: str) -> None:
        """name: the name of the public function, for messages, programs and profiles."""
        self.name = name

        def traced(options: Any, *arrays: Any) -> Any:
            return self._traced(options, *arrays)

        traced.__name__ = traced.__qualname__ = name
        # Outside jit, a compiled function is called without being traced again; inside jit it is inlined.
        self._run = jax.jit(traced, static_argnums=0, inline=True)

    def __call__(self, options: Hashable, *arrays: Any) -> Any:
        """Returns the result. options: part of the compiled program."""
        converted = (x if x is None or isinstance(x, jax.Array) else jnp.asarray(x) for x in arrays)
        return self._run(options, *converted)

    def _traced(self, options: Any, *arrays: Any) -> Any:
        options, arrays = self.check(options, *(None if x is None else _strong(x) for x in arrays))
        return sharding.run(partial(self._on_shard, options), self.labels(options, *arrays), arrays)

    def _on_shard(self, options: Any, *arrays: Any) -> Any:
        return self.local(options, *vary_together(*arrays))

    @abstractmethod
    def check(self, options: Any, *arrays: Any) -> tuple[Any, Arrays]:
        """Checks shapes, types and options. Returns the options, completed with what the arrays determine,
        and the arrays, converted as JAX would promote them."""

    def labels(self, options: Any, *arrays: Any) -> sharding.Labels:
        """Returns which dimensions may stay sharded over a mesh; by default none."""
        raise NotImplementedError

    @abstractmethod
    def local(self, options: Any, *arrays: Any) -> Any:
        """Returns the result on one shard."""

    def apply(self, config: Hashable, *arrays: Any) -> Any:
        """Returns the result, by Weft if all arrays have elements and floating-point types, and by JAX
        otherwise."""
        present = [x for x in arrays if x is not None]
        if not all(x.size and jnp.issubdtype(x.dtype, jnp.floating) for x in present):
            return self.plain(config, *arrays)
        return _value(self, config, arrays)

    @abstractmethod
    def forward(self, config: Any, is_training: bool, *arrays: Any) -> tuple[Any, Arrays]:
        """Computes the result with Weft and, in training, the values that `backward` reuses."""

    @abstractmethod
    def backward(self, config: Any, wanted: Wanted, arrays: Arrays, saved: Arrays, dy: Any) -> list[Any]:
        """Computes the gradients of the arrays with Weft, in the arrays' types. Those that are not wanted may
        be None."""

    @abstractmethod
    def plain(self, config: Any, *arrays: Any) -> Any:
        """Computes the same result in JAX's operations, which JAX differentiates."""

    def __repr__(self) -> str:
        return f"weft.jax.{self.name}"


def _strong(x: Any) -> Any:
    """Converts a value to a strongly typed array. Arrays made from Python numbers are weakly typed."""
    return jax.lax.convert_element_type(x, x.dtype) if x.weak_type else x


# ---- Derivatives -------------------------------------------------------------------------------------------


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _value(function: Function, config: Any, arrays: Arrays) -> Any:
    return function.forward(config, False, *arrays)[0]


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _attached(function: Function, config: Any, arrays: Arrays, saved: Arrays, result: Any) -> Any:
    """Attaches the derivative of the function of the arrays to a result that Weft computed."""
    return result


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _gradients(
    function: Function, config: Any, wanted: Wanted, arrays: Arrays, saved: Arrays, dy: Any
) -> list[Any]:
    gradients = function.backward(config, wanted, arrays, saved, dy)
    return [gradient for gradient, is_wanted in zip(gradients, wanted, strict=True) if is_wanted]


def _value_jvp(function: Function, config: Any, primals: Any, tangents: Any) -> Any:
    """Binds Weft's call directly instead of in another custom_jvp, so that a policy of jax.checkpoint sees
    it. The call is constant to JAX, and its derivative is attached."""
    (arrays,), (changes,) = primals, tangents
    result, saved = function.forward(config, True, *jax.tree.map(jax.lax.stop_gradient, arrays))
    return _attached_jvp(function, config, (arrays, saved, result), (changes,))


def _attached_jvp(function: Function, config: Any, primals: Any, tangents: Any) -> Any:
    arrays, saved, result = primals
    changes = tangents[0]
    wanted = tuple(_is_active(change) for change in changes)
    leaves, tree = jax.tree.flatten((arrays, saved))
    active = [change for change, is_wanted in zip(changes, wanted, strict=True) if is_wanted]
    value = _attached(function, config, arrays, saved, result)
    if not active:
        return value, _zeros(result)
    link = _Link(function, config, wanted, tree)
    params = {"link": link, "saved": len(leaves), "result": jax.typeof(result)}
    return value, tangent_primitive.bind(*leaves, *active, **params)[0]


def _gradients_jvp(function: Function, config: Any, wanted: Any, primals: Any, tangents: Any) -> Any:
    """Differentiates the gradients with JAX, from the arrays and the gradient of the result."""
    arrays, saved, dy = primals
    value = _gradients(function, config, wanted, arrays, saved, dy)

    def plain(arrays: Arrays, dy: Any) -> list[Any]:
        chosen = [x for x, is_wanted in zip(arrays, wanted, strict=True) if is_wanted]

        def result(*chosen: Any) -> Any:
            return function.plain(config, *_merged(arrays, wanted, chosen))

        return list(jax.vjp(result, *chosen)[1](dy))

    leaves, tree = jax.tree.flatten((arrays, dy))
    changes = jax.tree.leaves((tangents[0], tangents[2]))
    return value, _pushed(lambda *x: plain(*tree.unflatten(x)), leaves, changes)


for _function, _rule in ((_value, _value_jvp), (_attached, _attached_jvp), (_gradients, _gradients_jvp)):
    _function.defjvp(_rule, symbolic_zeros=True)


def _is_active(change: Any) -> bool:
    return change is not None and not isinstance(change, SymbolicZero)


def _zeros(x: Any) -> Any:
    return vary_like(jnp.zeros(x.shape, x.dtype), x)


def _merged(arrays: Sequence[Any], replaced: Sequence[bool], chosen: Sequence[Any]) -> list[Any]:
    """Returns the arrays with the chosen ones inserted where `replaced` is True."""
    each = iter(chosen)
    return [next(each) if is_replaced else x for x, is_replaced in zip(arrays, replaced, strict=True)]


def _pushed(function: Any, values: Sequence[Any], changes: Sequence[Any]) -> Any:
    """Returns the tangent of a function's result."""
    active = [_is_active(change) for change in changes]
    chosen = [x for x, is_active in zip(values, active, strict=True) if is_active]
    pushed = [x for x, is_active in zip(changes, active, strict=True) if is_active]
    if not chosen:
        return jax.tree.map(_zeros, function(*values))
    return jax.jvp(lambda *x: function(*_merged(values, active, x)), tuple(chosen), tuple(pushed))[1]


# ---- Tangents ----------------------------------------------------------------------------------------------

# A tangent is linear in the tangents of the arrays. This primitive computes it in JAX's operations. When JAX
# transposes it for a gradient, it becomes a call of the operator's `backward`.
tangent_primitive = Primitive("weft_tangent")
tangent_primitive.multiple_results = True


class _Link(NamedTuple):
    """The linear function from tangents of the wanted arrays to that of the result, and its transpose."""

    function: Function
    config: Any
    wanted: Wanted
    tree: Any
    """The structure of the arrays and of what `forward` saved."""

    def push(self, leaves: Sequence[Any], changes: Sequence[Any]) -> Any:
        arrays, _ = self.tree.unflatten(leaves)
        chosen = [x for x, is_wanted in zip(arrays, self.wanted, strict=True) if is_wanted]

        def result(*chosen: Any) -> Any:
            return self.function.plain(self.config, *_merged(arrays, self.wanted, chosen))

        return jax.jvp(result, tuple(chosen), tuple(changes))[1]

    def pull(self, leaves: Sequence[Any], dy: Any) -> list[Any]:
        arrays, saved = self.tree.unflatten(leaves)
        gradients: list[Any] = _gradients(self.function, self.config, self.wanted, arrays, saved, dy)
        return gradients


class _Mapped(NamedTuple):
    """A link under vmap: tangents are mapped along their first dimension, leaves as in `dims`."""

    link: Any
    dims: tuple[int | None, ...]

    def push(self, leaves: Sequence[Any], changes: Sequence[Any]) -> Any:
        return jax.vmap(self.link.push, (list(self.dims), 0))(list(leaves), list(changes))

    def pull(self, leaves: Sequence[Any], dy: Any) -> list[Any]:
        gradients: list[Any] = jax.vmap(self.link.pull, (list(self.dims), 0))(list(leaves), dy)
        return gradients


def _push(*operands: Any, link: Any, saved: int, result: Any) -> list[Any]:
    return [link.push(operands[:saved], operands[saved:])]


def _tangent_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    changes = [SymbolicZero(t.aval) if isinstance(t, ad.Zero) else t for t in tangents]
    return tangent_primitive.bind(*primals, **params), _pushed(partial(_push, **params), primals, changes)


def _transpose(cotangents: Any, *operands: Any, link: Any, saved: int, result: Any) -> list[Any]:
    (dy,) = cotangents
    if isinstance(dy, ad.Zero):
        return [None] * len(operands)
    pulled = link.pull(operands[:saved], dy)
    linear = [ad.is_undefined_primal(x) for x in operands[saved:]]
    return [None] * saved + [x if is_linear else None for x, is_linear in zip(pulled, linear, strict=True)]


def _batch(operands: Any, dims: Any, *, link: Any, saved: int, result: Any) -> Any:
    is_mapped = [isinstance(dim, int) for dim in dims]
    size = next(x.shape[dim] for x, dim in zip(operands, dims, strict=True) if isinstance(dim, int))
    changes = [
        jnp.moveaxis(x, dim, 0) if mapped else jnp.broadcast_to(x, (size, *x.shape))
        for x, dim, mapped in zip(operands[saved:], dims[saved:], is_mapped[saved:], strict=True)
    ]
    leaves = tuple(dim if mapped else None for dim, mapped in zip(dims[:saved], is_mapped, strict=False))
    made = tangent_primitive.bind(
        *operands[:saved], *changes, link=_Mapped(link, leaves), saved=saved,
        result=resized(result, (size, *result.shape)),
    )  # fmt: skip
    return made, [0]


tangent_primitive.def_impl(_push)
tangent_primitive.def_abstract_eval(lambda *_, result, **__: [result])
ad.primitive_jvps[tangent_primitive] = _tangent_jvp
ad.primitive_transposes[tangent_primitive] = _transpose
batching.primitive_batchers[tangent_primitive] = _batch
mlir.register_lowering(tangent_primitive, mlir.lower_fun(_push, multiple_results=True))
