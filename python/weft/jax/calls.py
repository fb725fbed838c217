"""Calls of Weft's operators in JAX's programs: a primitive with its rules for tracing, vmap and lowering. It
becomes a call of the library's handler, on the CPU and on CUDA alike."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from weft_cffi._weft import ffi

from weft import backend
from weft.enums import device_kind
from weft.errors import NotSupportedError
from weft.jax.drawing import Call, Form, Operator, Prepared, prepare, results_of
from weft.plan import Plan

TARGET = "weft"
"""The name of the handler in XLA's programs."""

primitive = Primitive("weft")
primitive.multiple_results = True


def call(operator: Operator, *arrays: Any, attributes: tuple[Any, ...] = ()) -> list[Any]:
    """The results of an operator on JAX's arrays."""
    made: list[Any] = primitive.bind(
        *arrays, call=Call(operator, attributes, _wants_all_bits())
    )
    return made


def _wants_all_bits() -> bool:
    """Whether JAX is told to multiply floats as floats; by itself it lets a GPU narrow them."""
    return jax.config.jax_default_matmul_precision in ("highest", "float32", "high", "bfloat16_3x")


# ---- Tracing -----------------------------------------------------------------------------------------------


def _forms(avals: Sequence[Any]) -> tuple[Form, ...]:
    return tuple(Form(tuple(each.shape), np.dtype(each.dtype)) for each in avals)


def _trace(*avals: Any, call: Call) -> list[Any]:
    """The results are of the arguments' mesh, and vary over its axes as these do."""
    first = avals[0]
    place = jax.sharding.NamedSharding(first.sharding.mesh, jax.sharding.PartitionSpec())
    forms = results_of(call, _forms(avals))
    return [first.update(shape=f.shape, dtype=f.dtype, weak_type=False, sharding=place) for f in forms]


primitive.def_abstract_eval(_trace)


def _axes(value: Any) -> frozenset[str]:
    """The axes of a mesh over which a value varies within shard_map; newer versions of JAX tell it of another
    object."""
    type_ = jax.typeof(value)
    of: Any = getattr(type_, "mat", None)
    return frozenset(of.varying if of is not None else getattr(type_, "vma", ()))


def alike(*values: Any) -> list[Any]:
    """Values as arrays that vary over the same axes of a mesh, so that gradients are summed over those along
    which one did not; None stays."""
    arrays = [None if each is None else jnp.asarray(each) for each in values]
    every = frozenset[str]().union(*(_axes(each) for each in arrays if each is not None))
    return [None if x is None else _vary(x, tuple(sorted(every - _axes(x)))) for x in arrays]


def _vary(value: Any, axes: tuple[str, ...]) -> Any:
    if not axes:
        return value
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(value, axes, to="varying")
    return jax.lax.pvary(value, axes)


@lru_cache(4096)
def _compiled(call: Call) -> Any:
    """The operator by itself, for calls outside jit."""
    return jax.jit(partial(primitive.bind, call=call))


def _run(*arrays: Any, call: Call) -> Any:
    return _compiled(call)(*arrays)


primitive.def_impl(_run)


def _no_gradient(_: Any, __: Any, *, call: Call) -> Any:
    raise NotSupportedError(
        f"{call.operator!r}: it has no gradient of its own. Give the function one with jax.custom_vjp; of "
        "gradients there are no second ones."
    )


ad.primitive_jvps[primitive] = _no_gradient


# ---- vmap --------------------------------------------------------------------------------------------------


def _batch(arrays: Sequence[Any], dims: Sequence[Any], *, call: Call) -> Any:
    """One call of more rows where only rows are mapped, or of a batch; else one call after another."""
    mapped = [i for i, dim in enumerate(dims) if isinstance(dim, int)]
    moved = [jnp.moveaxis(x, dims[i], 0) if i in mapped else x for i, x in enumerate(arrays)]
    size, rows = moved[mapped[0]].shape[0], call.operator.rows
    if rows.issuperset(mapped):
        whole = [_more_rows(x, size, i in mapped) if i in rows else x for i, x in enumerate(moved)]
        results = primitive.bind(*whole, call=call)
        results = [each.reshape(size, -1, *each.shape[1:]) for each in results]
    elif call.operator.is_batched:
        results = primitive.bind(*_with_batch(arrays, moved, mapped), call=call)
    else:
        results = jax.lax.map(partial(_one, moved, mapped, call), [moved[i] for i in mapped])
    return results, [0] * len(results)


def _more_rows(value: Any, size: int, is_mapped: bool) -> Any:
    """Rows of all `size` calls, one call's after another's."""
    whole = value if is_mapped else jnp.broadcast_to(value, (size, *value.shape))
    return whole.reshape(-1, *whole.shape[2:])


def _with_batch(arrays: Sequence[Any], moved: Sequence[Any], mapped: Sequence[int]) -> list[Any]:
    """What is mapped with its batch in front of all other dimensions; what is not, as it is."""
    rank = 1 + max(x.ndim - (i in mapped) for i, x in enumerate(arrays))
    whole = list(moved)
    for i in mapped:
        size, *shape = moved[i].shape
        whole[i] = moved[i].reshape(size, *[1] * (rank - 1 - len(shape)), *shape)
    return whole


def _one(arrays: Sequence[Any], mapped: Sequence[int], call: Call, own: Sequence[Any]) -> Any:
    given = dict(zip(mapped, own, strict=True))
    return primitive.bind(*(given.get(i, x) for i, x in enumerate(arrays)), call=call)


batching.primitive_batchers[primitive] = _batch


# ---- Lowering ----------------------------------------------------------------------------------------------


def _register(platform: str) -> None:
    """Tells XLA of the handler; on a GPU it is called before the first run, too, to load a plan's kernels."""
    address = int(ffi.cast("uintptr_t", ffi.addressof(backend.library(), "weftXlaExecute")))
    handler = jax.ffi.pycapsule(ctypes.c_void_p(address))
    stages = handler if platform == "cpu" else {"initialize": handler, "execute": handler}
    # Plugins keep handlers under XLA's name of the platform; "cuda" would wait there for ever.
    jax.ffi.register_ffi_target(TARGET, stages, platform="CUDA" if platform == "cuda" else platform)


_watched: ContextVar[list[Lowered] | None] = ContextVar("weft.jax lowered", default=None)


class Lowered(NamedTuple):
    """A call in a program that was lowered."""

    call: Call
    arguments: tuple[Form, ...]
    plan: Plan

    def __str__(self) -> str:
        return f"{self.call.operator!r}({', '.join(map(str, self.arguments))})\n{self.plan.explain()}"


def plans(function: Callable[..., Any], *arguments: Any) -> list[Lowered]:
    """The calls of Weft in a program, in order, each with its plan; printed, it tells what runs and why. The
    program is lowered for JAX's default device, and not run.

    >>> import jax.numpy as jnp, weft.jax
    >>> made = weft.jax.plans(lambda x: weft.jax.softmax(x) + 1, jnp.ones((2, 3)))
    >>> [str(each).splitlines()[0] for each in made]
    ['weft.softmax(float32[2,3,1])']
    """
    found: list[Lowered] = []
    before = _watched.set(found)
    try:
        jax.jit(lambda *given: function(*given)).lower(*arguments)
    finally:
        _watched.reset(before)
    return found


def _lower(kind: device_kind, ctx: Any, *operands: Any, call: Call) -> Any:
    made = prepare(call, _forms(ctx.avals_in), kind)
    watched = _watched.get()
    if watched is not None:
        watched.append(Lowered(call, _forms(ctx.avals_in), made.source))
    results = list(ctx.avals_out)
    if made.workspace:
        results.append(jax.core.ShapedArray((made.workspace,), np.uint8))
    rule = jax.ffi.ffi_lowering(TARGET)
    values = rule(ctx.replace(avals_out=results), *operands, **_attributes(made))
    return values[: len(ctx.avals_out)]


def _attributes(made: Prepared) -> dict[str, Any]:
    return {
        "device": np.int64(made.device),
        "key": np.int64(made.key),
        "plan": made.plan,
        "places": np.array(made.places, np.int64),
        "scalars": np.array(made.scalars, np.int64),
    }


for _platform, _kind in (("cpu", device_kind.CPU), ("cuda", device_kind.CUDA)):
    _register(_platform)
    mlir.register_lowering(primitive, partial(_lower, _kind), platform=_platform)
