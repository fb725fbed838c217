"""JAX primitives for Weft's operators, with their rules for tracing, vmap, jax.checkpoint and lowering. Each
is lowered to a call of the FFI handler in libweft_xla, on the CPU and on CUDA."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import Saveable
from jax.extend.core import Primitive, Var
from jax.interpreters import ad, batching, mlir, xla
from jax.interpreters import partial_eval as pe

from weft import integrations
from weft.enums import device_kind
from weft.errors import NotSupportedError
from weft.jax.graph_builder import Call, Form, Operator, Prepared, prepare, results_of
from weft.plan import Plan

TARGET = "weft"
"""The name of the handler in XLA programs."""
PLATFORMS = {"cpu": device_kind.CPU, "cuda": device_kind.CUDA}
"""JAX's platforms and the corresponding Weft device kinds."""


def call(operator: Operator, *arrays: Any, attributes: tuple[Any, ...] = ()) -> list[Any]:
    """Returns the results of an operator on JAX arrays."""
    return _bind(arrays, Call(operator, attributes, _wants_full_precision()))


def _bind(arrays: Sequence[Any], call: Call) -> list[Any]:
    results: list[Any] = _primitive(call.operator.name).bind(*arrays, call=call)
    return results


@cache
def _primitive(name: str) -> Primitive:
    """Returns the primitive shared by all operators of a name. The name appears in XLA programs and
    profiles."""
    primitive = Primitive("weft_" + re.sub(r"\W", "_", name))
    primitive.multiple_results = True
    primitive.def_abstract_eval(_trace)
    primitive.def_impl(partial(xla.apply_primitive, primitive))
    ad.primitive_jvps[primitive] = _no_gradient
    batching.primitive_batchers[primitive] = _batch
    pe.partial_eval_jaxpr_custom_rules[primitive] = _save_or_recompute
    for platform, kind in PLATFORMS.items():
        mlir.register_lowering(primitive, partial(_lower, kind), platform=platform)
    return primitive


def _wants_full_precision() -> bool:
    """True if JAX is set to full float32 precision in products; by default it allows TF32 on a GPU."""
    return jax.config.jax_default_matmul_precision in ("highest", "float32", "high", "bfloat16_3x")


# ---- Tracing -----------------------------------------------------------------------------------------------


def _forms(avals: Sequence[Any]) -> tuple[Form, ...]:
    return tuple(Form(tuple(each.shape), np.dtype(each.dtype)) for each in avals)


def _trace(*avals: Any, call: Call) -> list[Any]:
    """The results are on the mesh of the arguments and vary over the same axes."""
    forms = results_of(call, _forms(avals))
    return [resized(avals[0], f.shape).update(dtype=f.dtype, weak_type=False) for f in forms]


def resized(aval: Any, shape: tuple[int, ...]) -> Any:
    """Returns an abstract array of another shape on the same mesh."""
    place = jax.sharding.NamedSharding(aval.sharding.mesh, jax.sharding.PartitionSpec())
    return aval.update(shape=shape, sharding=place)


def _axes(value: Any) -> frozenset[str]:
    """Returns the mesh axes over which a value varies within shard_map. Newer versions of JAX store them in
    another object."""
    type_ = jax.typeof(value)
    of: Any = getattr(type_, "mat", None)
    return frozenset(of.varying if of is not None else getattr(type_, "vma", ()))


def vary_together(*values: Any) -> list[Any]:
    """Converts values to arrays that vary over the same mesh axes, so that the gradient of a value that does
    not vary over an axis is summed over it. None stays None."""
    arrays = [None if each is None else jnp.asarray(each) for each in values]
    every = frozenset[str]().union(*(_axes(each) for each in arrays if each is not None))
    return [None if x is None else _vary(x, tuple(sorted(every - _axes(x)))) for x in arrays]


def vary_like(value: Any, other: Any) -> Any:
    """Makes a value vary over the mesh axes over which another one varies."""
    return _vary(value, tuple(sorted(_axes(other) - _axes(value))))


def _vary(value: Any, axes: tuple[str, ...]) -> Any:
    if not axes:
        return value
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(value, axes, to="varying")
    return jax.lax.pvary(value, axes)


def _no_gradient(_: Any, __: Any, *, call: Call) -> Any:
    raise NotSupportedError(
        f"{call.operator!r}: a graph has no derivative of its own. Give the function one with jax.custom_vjp "
        "or jax.custom_jvp."
    )


# ---- vmap --------------------------------------------------------------------------------------------------


def _batch(arrays: Sequence[Any], dims: Sequence[Any], *, call: Call) -> Any:
    """If only row arguments are mapped, calls the operator once with more rows; if it supports a batch, once
    with the batch; otherwise once per element in a loop."""
    mapped = [i for i, dim in enumerate(dims) if isinstance(dim, int)]
    if arrays[mapped[0]].shape[dims[mapped[0]]] == 0:
        return _batch_of_none(arrays, dims, call)
    moved = [jnp.moveaxis(x, dims[i], 0) if i in mapped else x for i, x in enumerate(arrays)]
    size, rows = moved[mapped[0]].shape[0], call.operator.rows
    if rows.issuperset(mapped):
        whole = [_more_rows(x, size, i in mapped) if i in rows else x for i, x in enumerate(moved)]
        results = [each.reshape(size, each.shape[0] // size, *each.shape[1:]) for each in _bind(whole, call)]
    elif call.operator.is_batched:
        results = _bind(_with_batch(arrays, moved, mapped), call)
    else:
        results = jax.lax.map(partial(_one, moved, mapped, call), [moved[i] for i in mapped])
    return results, [0] * len(results)


def _batch_of_none(arrays: Sequence[Any], dims: Sequence[Any], call: Call) -> Any:
    """Returns the results for a mapped dimension of extent 0; they have no elements."""
    shapes = [
        x.shape if not isinstance(dim, int) else x.shape[:dim] + x.shape[dim + 1 :]
        for x, dim in zip(arrays, dims, strict=True)
    ]
    forms = [Form(shape, np.dtype(x.dtype)) for shape, x in zip(shapes, arrays, strict=True)]
    results = results_of(call, tuple(forms))
    return [jnp.zeros((0, *each.shape), each.dtype) for each in results], [0] * len(results)


def _more_rows(value: Any, size: int, is_mapped: bool) -> Any:
    """Concatenates the rows of all `size` calls."""
    whole = value if is_mapped else jnp.broadcast_to(value, (size, *value.shape))
    return whole.reshape(size * whole.shape[1], *whole.shape[2:])


def _with_batch(arrays: Sequence[Any], moved: Sequence[Any], mapped: Sequence[int]) -> list[Any]:
    """Moves the batch of mapped arguments to the front of all other dimensions; other arguments are
    unchanged."""
    rank = 1 + max(x.ndim - (i in mapped) for i, x in enumerate(arrays))
    whole = list(moved)
    for i in mapped:
        size, *shape = moved[i].shape
        whole[i] = moved[i].reshape(size, *[1] * (rank - 1 - len(shape)), *shape)
    return whole


def _one(arrays: Sequence[Any], mapped: Sequence[int], call: Call, own: Sequence[Any]) -> Any:
    given = dict(zip(mapped, own, strict=True))
    return _bind([given.get(i, x) for i, x in enumerate(arrays)], call)


# ---- jax.checkpoint ----------------------------------------------------------------------------------------


def _save_or_recompute(saveable: Any, unknown: Sequence[bool], at_hand: Sequence[bool], eqn: Any) -> Any:
    """Applies a policy of jax.checkpoint to a call. Policies such as dots_saveable recognize JAX's
    primitives, so they are also asked about the primitive that the operator replaces."""
    count = len(eqn.outvars)
    pairs = zip(eqn.invars, at_hand, strict=True)
    missing = [x for x, is_there in pairs if isinstance(x, Var) and not is_there]
    if any(unknown):
        return None, eqn, [True] * count, [True] * count, missing
    avals = [x.aval for x in eqn.invars]
    answers = [saveable(eqn.primitive, *avals, **eqn.params)]
    if eqn.params["call"].operator.stands_for is not None:
        primitive, params = eqn.params["call"].operator.stands_for
        answers.append(saveable(primitive, *avals, **params))
    if any(answer is True or isinstance(answer, type(Saveable)) for answer in answers):
        return eqn, None, [False] * count, [False] * count, []
    return eqn, eqn, [False] * count, [True] * count, missing


# ---- Lowering ----------------------------------------------------------------------------------------------


def _register(platform: str) -> None:
    """Registers the handler with XLA. On a GPU XLA also calls it before the first run, to load a plan's
    kernels."""
    handler = jax.ffi.pycapsule(integrations.load("xla").weftXlaExecute)
    stages = handler if platform == "cpu" else {"initialize": handler, "execute": handler}
    # Plugins look handlers up by XLA's platform name "CUDA"; one registered as "cuda" would never be found.
    jax.ffi.register_ffi_target(TARGET, stages, platform="CUDA" if platform == "cuda" else platform)


_arch: ContextVar[str] = ContextVar("weft.jax arch", default="sm_90")


@contextmanager
def export_for(arch: str) -> Iterator[None]:
    """Selects the GPU architecture for exporting programs on a machine without a GPU; the default is "sm_90",
    an H200.

    Plans load on other GPUs as well, unless they need more workspace there: then the call fails and reports
    both sizes.

        allowed = [jax.export.DisabledSafetyCheck.custom_call("weft")]
        with weft.jax.export_for("sm_80"):
            jax.export.export(function, platforms=["cuda"], disabled_checks=allowed)(*arguments)
    """
    before = _arch.set(arch)
    try:
        yield
    finally:
        _arch.reset(before)


_watched: ContextVar[list[Lowered] | None] = ContextVar("weft.jax lowered", default=None)


class Lowered(NamedTuple):
    """A call in a lowered program."""

    call: Call
    arguments: tuple[Form, ...]
    plan: Plan

    def __str__(self) -> str:
        return f"{self.call.operator!r}({', '.join(map(str, self.arguments))})\n{self.plan.explain()}"


def plans(function: Callable[..., Any], *arguments: Any) -> list[Lowered]:
    """Returns the Weft calls of a program, in order, each with its plan; str() of a call explains what runs
    and why. The program is lowered for JAX's default device but not run.

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
    made = prepare(call, _forms(ctx.avals_in), kind, _arch.get())
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


for _platform in PLATFORMS:
    _register(_platform)
