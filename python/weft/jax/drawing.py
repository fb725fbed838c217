"""Operators: what draws one as a graph of Weft's, and what is known of it once it is drawn or planned. No
word here of JAX's tracing; arrays are packed, the last dimension fastest, as XLA hands them over."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from weft import buffers, dtypes
from weft.backend import Handle
from weft.devices import DeviceProperties, compile_for, default_handle
from weft.enums import data_type, device_kind, numerical_note, scalar_type
from weft.errors import BadParameterError, NotSupportedError
from weft.graphs import Graph
from weft.plan import Plan
from weft.slots import Slot
from weft.tensor import Tensor

Place = Handle | DeviceProperties
"""What a plan is made for: a device, or the description of one."""
CAPACITY = 4096
"""Operators on types and shapes whose plans are kept; the one that was used longest ago goes first."""


class Form(NamedTuple):
    """Shape and type of an argument or a result."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Operator:
    """What can be called on JAX's arrays: a name, what draws it, and how vmap may spare itself a loop."""

    def __init__(
        self,
        name: str,
        draw: Callable[..., None],
        rows: Sequence[int] = (),
        is_batched: bool = False,
        stands_for: tuple[Any, dict[str, Any]] | None = None,
    ) -> None:
        """Makes an operator.

        Args:
            name: for messages and pictures.
            draw: takes a Drawing, then the attributes.
            rows: which arguments have rows of data along their first dimension, as all results then have:
                what is mapped of these alone is a matter of more rows.
            is_batched: whether more dimensions may lead in all arguments and results, 1 where they are alike.
            stands_for: the primitive of JAX that the operator stands for, and its parameters, as far as
                policies of jax.checkpoint read them; None for an operator that they do not know.
        """
        self.name, self.draw, self.rows, self.is_batched = name, draw, frozenset(rows), is_batched
        self.stands_for = stands_for

    def drawn(
        self, call: Call, arguments: Sequence[Form], results: Sequence[Form] = (), place: Place | None = None
    ) -> Drawing:
        """The operator on such arguments as a graph. results: their forms, where they are known; place: what
        to plan for."""
        type_ = data_type.DOUBLE if is_double(arguments) else data_type.FLOAT
        graph = Graph(self.name, compute_data_type=type_, device=place)
        if call.is_exact:
            graph.deselect_numeric_notes([numerical_note.DOWN_CONVERT_INPUTS])
        drawing = Drawing(graph, arguments, results)
        self.draw(drawing, *call.attributes)
        return drawing

    def results(self, call: Call, arguments: Sequence[Form]) -> tuple[Form, ...]:
        """The forms of its results. Raises WeftError where it makes no sense."""
        drawing = self.drawn(call, arguments)
        if None in drawing.results:
            drawing.graph.validate()
        ends = {~at: tensor for tensor, at in drawing.ends if at < 0}
        is_scalar = all(form.shape == () for form in arguments)
        return tuple(form or _form_of(ends[i], is_scalar) for i, form in enumerate(drawing.results))

    def prepared(self, call: Call, arguments: tuple[Form, ...], kind: device_kind, arch: str) -> Prepared:
        """Its plan for a kind of device. arch: of a GPU that is not on this machine. Raises WeftError if Weft
        refuses."""
        results = results_of(call, arguments)
        drawing = self.drawn(call, arguments, results, _place(kind, arch))
        plan = drawing.graph.build().plan
        at = {tensor.get_uid(): place for tensor, place in drawing.ends}
        return prepared(plan, at, len(arguments), len(results), kind)

    def __repr__(self) -> str:
        return f"weft.{self.name}"


class Call(NamedTuple):
    """An operator with its attributes."""

    operator: Operator
    attributes: tuple[Hashable, ...] = ()
    is_exact: bool = False
    """Whether products of floats keep all their bits on a GPU."""


class Drawing:
    """A graph under construction, beside the forms of the arguments that it reads."""

    def __init__(self, graph: Graph, arguments: Sequence[Form], results: Sequence[Form] = ()) -> None:
        """Starts a drawing. results: their forms, where an earlier drawing found them."""
        self.graph, self.arguments = graph, arguments
        self.ends: list[tuple[Tensor, int]] = []
        """Each end's tensor, and which argument it is, or ~i for result i."""
        self.results: list[Form | None] = []
        self._known = results

    def read(self, i: int, dims: Sequence[int] | None = None, steps: Sequence[int] | None = None) -> Tensor:
        """Argument i as a tensor. dims, steps: of the same elements where they are shown in another shape,
        packed unless strides are given. Raises BadParameterError if the numbers of elements differ."""
        form = self.arguments[i]
        shape = (form.shape or (1,)) if dims is None else dims
        if math.prod(shape) != math.prod(form.shape):
            raise BadParameterError(
                f"weft.{self.graph.name}: the shape of argument {i} does not fit: expected {list(shape)} "
                f"({math.prod(shape)} elements), got {form}. Check the shapes of the arrays."
            )
        made = self.graph.tensor(shape, stride=steps, data_type=form.dtype)
        self.ends.append((made, i))
        return made

    def write(
        self,
        result: Tensor,
        form: Form,
        dims: Sequence[int] | None = None,
        steps: Sequence[int] | None = None,
    ) -> None:
        """Makes a tensor the next result. dims, steps: as it is drawn, where that is another shape."""
        shape = (form.shape or (1,)) if dims is None else tuple(dims)
        result.set_output(True).set_data_type(form.dtype).set_dim(shape)
        result.set_stride(buffers.packed_strides(shape) if steps is None else steps)
        self._end(result, form)

    def write_inferred(self, result: Tensor) -> None:
        """Makes a tensor the next result, of the shape and type that Weft infers."""
        i = len(self.results)
        if i < len(self._known):
            self.write(result, self._known[i])
        else:
            self._end(result.set_output(True), None)

    def _end(self, result: Tensor, form: Form | None) -> None:
        self.ends.append((result, ~len(self.results)))
        self.results.append(form)

    def number(self, value: float) -> Tensor:
        """A constant of the type that the graph computes in."""
        type_ = data_type.DOUBLE if is_double(self.arguments) else data_type.FLOAT
        return self.graph.tensor_scalar(value, scalar_type.COMPILE_TIME_CONST, type_)


def is_double(arguments: Sequence[Form]) -> bool:
    """Whether an operator computes in double precision."""
    return any(each.dtype == np.float64 for each in arguments)


@lru_cache(CAPACITY)
def results_of(call: Call, arguments: tuple[Form, ...]) -> tuple[Form, ...]:
    """The forms of a call's results, kept."""
    return call.operator.results(call, arguments)


def _form_of(tensor: Tensor, is_scalar: bool) -> Form:
    """The form of a result. is_scalar: the arguments have no dimensions; they are drawn as [1], and so are
    results without dimensions."""
    assert tensor.dtype is not None
    shape = () if is_scalar and tensor.dims == (1,) else tensor.dims
    return Form(shape, dtypes.numpy_dtype(tensor.dtype))


# ---- Plans -------------------------------------------------------------------------------------------------


class Prepared(NamedTuple):
    """A call's plan as the handler in the library reads it from attributes; they have its names."""

    device: int
    key: int
    plan: str
    places: tuple[int, ...]
    scalars: tuple[int, ...]
    workspace: int
    """Bytes; the call has a result more where it needs some."""
    source: Plan
    """The plan itself, which tells what runs where."""


@lru_cache(CAPACITY)
def prepare(call: Call, arguments: tuple[Form, ...], kind: device_kind, arch: str) -> Prepared:
    """A call's plan for a kind of device, kept. arch: of a GPU that is not on this machine."""
    return call.operator.prepared(call, arguments, kind, arch)


def _place(kind: device_kind, arch: str) -> Place:
    """The device of a kind; without a GPU, a described one, for programs that are exported."""
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
    """What the handler needs of a plan: its bytes, and where each slot's address comes from. Arguments are
    numbered first, then results, the workspace as the last of them, then by-value scalars.

    Args:
        plan: what is to run.
        at: for each slot's uid which argument it is, or ~i for result i.
        arguments: how many there are.
        results: the same.
        kind: of the device that it runs on.
        words: the bytes of by-value scalars by uid; else the plan's own.
    """
    results += plan.workspace_size > 0
    places: list[int] = []
    scalars: list[int] = []
    for slot in plan.slots:
        place = at.get(slot.uid)
        if place is None:
            places.append(arguments + results + len(scalars))
            scalars.append(_scalar_word(plan, slot) if words is None else words[slot.uid])
        else:
            places.append(place if place >= 0 else arguments + ~place)
    data = plan.serialize()
    key = int.from_bytes(hashlib.sha256(data).digest()[:8], "little", signed=True)
    numbers = tuple(scalars) or (0,)  # an array of no elements is no attribute
    return Prepared(int(kind), key, data.hex(), tuple(places), numbers, plan.workspace_size, plan)


def _scalar_word(plan: Plan, slot: Slot) -> int:
    """The bytes of a number that the plan reads on the host."""
    value = plan.values.get(slot.uid)
    if not slot.is_by_value or not isinstance(value, (int, float)):
        raise NotSupportedError(
            f"weft.jax: {slot} is neither an argument nor a number. Make it an argument of the function, or "
            "give a Python number in its place."
        )
    memory = dtypes.scalar_bytes(slot.data_type, value).ljust(8, b"\0")
    return int.from_bytes(memory, "little", signed=True)

