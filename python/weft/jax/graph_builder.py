"""Builds the Weft graph of each operator, infers the shapes and types of its results, and plans it. Nothing
here depends on JAX's tracing. Arrays are packed with the last dimension fastest, as XLA passes them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from weft import buffers, dtypes
from weft.arguments import counted
from weft.backend import Handle
from weft.devices import DeviceProperties, compile_for, default_handle
from weft.enums import data_type, device_kind, numerical_note, scalar_type
from weft.errors import BadParameterError, NotSupportedError
from weft.graphs import Graph
from weft.plan import Plan
from weft.slots import Slot
from weft.tensor import Tensor

Place = Handle | DeviceProperties
"""The target of a plan: a device, or the description of one."""
CAPACITY = 4096
"""The number of operators on types and shapes whose plans are cached. The least recently used is evicted
first."""


class Form(NamedTuple):
    """The shape and type of an argument or a result."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Operator:
    """An operation on JAX arrays: its name, the function that builds its graph, and how vmap can avoid a
    loop."""

    def __init__(
        self,
        name: str,
        build: Callable[..., None],
        rows: Sequence[int] = (),
        is_batched: bool = False,
        stands_for: tuple[Any, dict[str, Any]] | None = None,
    ) -> None:
        """Creates an operator.

        Args:
            name: for messages and diagrams. build: a function of a GraphBuilder, then the attributes. rows:
            the arguments whose first dimension is rows of data, as in all results. If only these
                arguments are
                mapped, vmap adds rows.
            is_batched: whether all arguments and results accept leading batch dimensions, 1 in arguments
                without one.
            stands_for: the JAX primitive that the operator replaces, with the parameters that policies of
                jax.checkpoint read; None for an operator that no policy recognizes.
        """
        self.name, self.build, self.rows, self.is_batched = name, build, frozenset(rows), is_batched
        self.stands_for = stands_for

    def builder_for(
        self, call: Call, arguments: Sequence[Form], results: Sequence[Form] = (), device: Place | None = None
    ) -> GraphBuilder:
        """Builds the graph for arguments of these forms. results: the forms of the results, if known;
        device: the device to plan for."""
        type_ = data_type.DOUBLE if is_double(arguments) else data_type.FLOAT
        graph = Graph(self.name, compute_data_type=type_, device=device)
        if call.is_exact:
            graph.deselect_numeric_notes([numerical_note.DOWN_CONVERT_INPUTS])
        builder = GraphBuilder(graph, arguments, results)
        self.build(builder, *call.attributes)
        return builder

    def results(self, call: Call, arguments: Sequence[Form]) -> tuple[Form, ...]:
        """Returns the forms of the results. Raises WeftError if the arguments are invalid."""
        builder = self.builder_for(call, arguments)
        if None in builder.results:
            builder.graph.validate()
        ends = {~at: tensor for tensor, at in builder.ends if at < 0}
        is_scalar = all(form.shape == () for form in arguments)
        return tuple(form or _form_of(ends[i], is_scalar) for i, form in enumerate(builder.results))

    def prepared(self, call: Call, arguments: tuple[Form, ...], kind: device_kind, arch: str) -> Prepared:
        """Returns the plan for a kind of device. arch: the architecture of a GPU that is not on this machine.
        Raises WeftError if Weft refuses the call."""
        results = results_of(call, arguments)
        builder = self.builder_for(call, arguments, results, _place(kind, arch))
        plan = builder.graph.build().plan
        at = {tensor.get_uid(): source for tensor, source in builder.ends}
        return prepared(plan, at, len(arguments), len(results), kind)

    def __repr__(self) -> str:
        return f"weft.{self.name}"


class Call(NamedTuple):
    """An operator with its attributes."""

    operator: Operator
    attributes: tuple[Hashable, ...] = ()
    is_exact: bool = False
    """Whether float products keep full precision on a GPU."""


class GraphBuilder:
    """A graph under construction, with the forms of the arguments that it reads."""

    def __init__(self, graph: Graph, arguments: Sequence[Form], results: Sequence[Form] = ()) -> None:
        """Wraps a graph. results: their forms, if an earlier builder has inferred them."""
        self.graph, self.arguments = graph, arguments
        self.ends: list[tuple[Tensor, int]] = []
        """Each graph input or output, with the index i of its argument, or ~i for result i."""
        self.results: list[Form | None] = []
        self._known = results

    def read(self, i: int, dims: Sequence[int] | None = None, steps: Sequence[int] | None = None) -> Tensor:
        """Reads argument i. dims, steps: another shape of the same elements, packed unless strides are given.
        Raises BadParameterError if the numbers of elements differ."""
        form = self.arguments[i]
        shape = (form.shape or (1,)) if dims is None else dims
        if math.prod(shape) != math.prod(form.shape):
            raise BadParameterError(
                f"weft.{self.graph.name}: the shape of argument {i} does not fit: expected {list(shape)} "
                f"({counted(math.prod(shape), 'element')}), got {form}. Check the shapes of the arrays."
            )
        tensor = self.graph.tensor(shape, stride=steps, data_type=form.dtype)
        self.ends.append((tensor, i))
        return tensor

    def write(
        self,
        result: Tensor,
        form: Form,
        dims: Sequence[int] | None = None,
        steps: Sequence[int] | None = None,
    ) -> None:
        """Declares a tensor as the next result. dims, steps: its shape in the graph, if it differs."""
        shape = (form.shape or (1,)) if dims is None else tuple(dims)
        result.set_output(True).set_data_type(form.dtype).set_dim(shape)
        result.set_stride(buffers.packed_strides(shape) if steps is None else steps)
        self._end(result, form)

    def write_inferred(self, result: Tensor) -> None:
        """Declares a tensor as the next result, with the shape and type that Weft infers."""
        i = len(self.results)
        if i < len(self._known):
            self.write(result, self._known[i])
        else:
            self._end(result.set_output(True), None)

    def _end(self, result: Tensor, form: Form | None) -> None:
        self.ends.append((result, ~len(self.results)))
        self.results.append(form)

    def number(self, value: float) -> Tensor:
        """Adds a constant of the graph's compute type."""
        type_ = data_type.DOUBLE if is_double(self.arguments) else data_type.FLOAT
        return self.graph.tensor_scalar(value, scalar_type.COMPILE_TIME_CONST, type_)


def is_double(arguments: Sequence[Form]) -> bool:
    """True if an operator computes in double precision."""
    return any(each.dtype == np.float64 for each in arguments)


@lru_cache(CAPACITY)
def results_of(call: Call, arguments: tuple[Form, ...]) -> tuple[Form, ...]:
    """Returns the forms of a call's results, cached."""
    return call.operator.results(call, arguments)


def _form_of(tensor: Tensor, is_scalar: bool) -> Form:
    """Returns the form of a result. is_scalar: the arguments have no dimensions; they, and results without
    dimensions, have shape [1] in the graph."""
    assert tensor.dtype is not None
    shape = () if is_scalar and tensor.dims == (1,) else tensor.dims
    return Form(shape, dtypes.numpy_dtype(tensor.dtype))


# ---- Plans -------------------------------------------------------------------------------------------------


class Prepared(NamedTuple):
    """A call's plan as the attributes of the FFI handler, with the handler's names."""

    device: int
    key: int
    plan: str
    places: tuple[int, ...]
    scalars: tuple[int, ...]
    workspace: int
    """Workspace size in bytes. If it is not 0, the call has the workspace as an additional result."""
    source: Plan
    """The plan itself, for explanations."""


@lru_cache(CAPACITY)
def prepare(call: Call, arguments: tuple[Form, ...], kind: device_kind, arch: str) -> Prepared:
    """Returns a call's plan for a kind of device, cached. arch: the architecture of a GPU that is not on this
    machine."""
    return call.operator.prepared(call, arguments, kind, arch)


def _place(kind: device_kind, arch: str) -> Place:
    """Returns a device of this kind. Without a GPU, returns the description of one, for exported programs."""
    try:
        return default_handle(kind)
    except NotSupportedError:
        if kind is not device_kind.CUDA:
            raise
        return compile_for(arch)


def prepared(
    plan: Plan,
    at: Mapping[int, int],
    arguments: int,
    results: int,
    kind: device_kind,
    words: Mapping[int, Any] | None = None,
) -> Prepared:
    """Returns what the handler needs of a plan: its serialized form and the source of each slot's address.
    Sources are numbered in this order: arguments, results (the workspace is the last one), by-value scalars.

    Args:
        plan: the plan to run.
        at: the argument index of each slot's uid, or ~i for result i.
        arguments: the number of arguments.
        results: the number of results.
        kind: the kind of the device that it runs on.
        words: the bytes of by-value scalars by uid; default the plan's own.
    """
    results += plan.workspace_size > 0
    sources: list[int] = []
    scalars: list[int] = []
    for slot in plan.slots:
        source = at.get(slot.uid)
        if source is None:
            sources.append(arguments + results + len(scalars))
            scalars.append(_scalar_word(plan, slot) if words is None else words[slot.uid])
        else:
            sources.append(source if source >= 0 else arguments + ~source)
    data = plan.serialize()
    key = int.from_bytes(hashlib.sha256(data).digest()[:8], "little", signed=True)
    numbers = tuple(scalars) or (0,)  # XLA rejects empty array attributes
    return Prepared(int(kind), key, data.hex(), tuple(sources), numbers, plan.workspace_size, plan)


def _scalar_word(plan: Plan, slot: Slot) -> int:
    """Returns the bytes of a number that the plan reads on the host."""
    value = plan.values.get(slot.uid)
    if not slot.is_by_value or not isinstance(value, (int, float)):
        raise NotSupportedError(
            f"weft.jax: {slot} is neither an argument nor a number. Make it an argument of the function, or "
            "give a Python number in its place."
        )
    memory = dtypes.scalar_bytes(slot.data_type, value).ljust(8, b"\0")
    return int.from_bytes(memory, "little", signed=True)
