# SPDX-License-Identifier: Apache-2.0
"""Graphs: tensors and operations, and the way from them to plans. Operations are in ops.py (generated from the library)
and sugar.py; here is everything else of cuDNN's pygraph."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from weft_cffi._weft import ffi

from weft import backend, buffers, dtypes, enums
from weft.backend import Descriptor, Handle, Row
from weft.enums import attribute_name, data_type, descriptor_type, device_kind, heur_mode
from weft.errors import BadParameterError, NotSupportedError, WeftError
from weft.plan import Plan
from weft.sugar import Sugar
from weft.tensor import Tensor

if TYPE_CHECKING:
    from weft.dtypes import DataTypeLike
    from weft.tensor import Operand

_default_handles: dict[tuple[device_kind | None, int], Handle] = {}


def default_handle(device: device_kind | None = None, ordinal: int = 0) -> Handle:
    """The process's handle of a device; of the default device when none is named."""
    key = (device, ordinal)
    if key not in _default_handles:
        _default_handles[key] = Handle(device, ordinal)
    return _default_handles[key]


class _Operation(NamedTuple):
    """An operation as it was asked for: operands and options by row key."""

    kind: str
    name: str
    values: dict[str, Any]
    results: dict[str, Tensor]
    compute_data_type: data_type | None


class _Candidate(NamedTuple):
    """An engine with its knobs set, as heuristics or the user chose it."""

    config: Descriptor
    engine: Descriptor
    tag: str


class Knob(NamedTuple):
    """A number by which an engine can be tuned, and its legal values."""

    type: enums.knob_type
    max: int
    min: int
    stride: int


class Graph(Sugar):
    """A computation: tensors and operations on them, then plans that run them.

    Used as a context, the graph is built on leaving the block. A result that no operation reads is an output, unless
    set_output(True) says which are.

    >>> import numpy as np, weft
    >>> with weft.Graph(name="mlp") as g:
    ...     x, w = g.tensor([2, 2], data_type="f32", name="x"), g.tensor([2, 1], data_type="f32", name="w")
    ...     y = g.relu(g.matmul(x, w), name="act")
    >>> g
    Graph('mlp': 2 ops, 2 inputs, 1 output, built)
    >>> g.plan(x=np.float32([[1, 2], [3, -4]]), w=np.float32([[1], [1]]))
    array([[3.],
           [0.]], dtype=float32)
    """

    def __init__(
        self,
        name: str = "",
        io_data_type: DataTypeLike | None = None,
        intermediate_data_type: DataTypeLike | None = None,
        compute_data_type: DataTypeLike | None = None,
        handle: Handle | str | None = None,
        sm_count: int | None = None,
        sm_version: int | None = None,
        kernel_cache: KernelCache | None = None,
        device_property: DeviceProperties | None = None,
        is_dynamic_shape_enabled: bool = False,
        is_override_shape_enabled: bool = False,
        *,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        heuristics: Sequence[heur_mode] = (heur_mode.A, heur_mode.FALLBACK),
        workspace_alloc: bool = True,
    ) -> None:
        self.name = name
        self._io_type = dtypes.data_type_of(io_data_type)
        self._intermediate_type = dtypes.data_type_of(intermediate_data_type)
        self._compute_type = dtypes.data_type_of(compute_data_type)
        self._given_handle = handle if isinstance(handle, Handle) else None
        self._sm_count = sm_count
        self._kernel_cache, self._device_property = kernel_cache, device_property
        self._is_dynamic, self._is_override = is_dynamic_shape_enabled, is_override_shape_enabled
        self._io_names = (tuple(inputs or ()), tuple(outputs or ()))
        self._heuristics = tuple(heuristics)
        self._tensors: list[Tensor] = []
        self._operations: list[_Operation] = []
        self._seen_device: tuple[device_kind, int] | None = None
        self._descriptors: dict[Tensor, Descriptor] = {}
        self._op_descriptors: list[Descriptor] = []
        self._graph: Descriptor | None = None
        self._candidates: list[_Candidate] = []
        self._barred: list[Any] = []
        self._plans: list[Plan | None] = []
        self._failures: list[str] = []
        self._chosen = 0
        self._keys: dict[Any, int | None] = {}
        self._uses_torch_stream = False
        self.is_validated = False

    # ---- Tensors ----

    def tensor(
        self,
        dim: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        data_type: DataTypeLike | None = None,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        ragged_offset: Tensor | None = None,
        reordering_type: enums.tensor_reordering = enums.tensor_reordering.NONE,
        name: str = "",
        uid: int | None = None,
    ) -> Tensor:
        """Adds a tensor.

        Args:
            dim: extent of each dimension.
            stride: elements between neighbours along each dimension; default packed, the last dimension fastest.
            data_type: type of the elements; default the graph's io_data_type.
            is_virtual: the tensor only passes between operations.
            is_pass_by_value: the tensor is a scalar, read on the host when the plan runs.
            ragged_offset: tensor of the offsets at which batch entries start.
            reordering_type: shuffle of the storage beyond strides.
            name: for messages, pictures and calls of the plan by name.
            uid: number by which buffers are bound; default the next free one.
        Returns:
            The tensor, whose set_ methods can still change it.
        """
        tensor = self._new_tensor(name)
        tensor.set_dim(dim or ()).set_stride(stride or ()).set_data_type(data_type)
        tensor._is_virtual = is_virtual
        tensor.set_is_pass_by_value(is_pass_by_value).set_reordering_type(reordering_type)
        tensor.set_ragged_offset(ragged_offset)
        if uid is not None and uid >= 0:
            tensor.set_uid(uid)
        return tensor

    def tensor_like(self, tensor: Any, name: str = "", is_pass_by_value: bool | None = None) -> Tensor:
        """Adds a tensor of the shape, strides and type of another tensor or of an array. An array of one element on the
        host becomes a by-value scalar, unless is_pass_by_value says otherwise."""
        made = self._new_tensor(name)
        if isinstance(tensor, Tensor):
            made._dims, made._strides, made._data_type = tensor._dims, tensor._strides, tensor._data_type
            made._by_value = tensor._by_value if is_pass_by_value is None else is_pass_by_value
            return made
        buffer = buffers.describe(tensor)
        made._dims, made._strides, made._data_type = buffer.dims, buffer.strides, buffer.data_type
        if min(buffer.strides, default=0) < 0:
            raise BadParameterError(
                f"tensor '{name}': strides {list(buffer.strides)} go backwards. Copy the array, for example with "
                "numpy.ascontiguousarray."
            )
        made._alignment = min(16, buffer.pointer & -buffer.pointer) if buffer.pointer else None
        is_scalar = buffer.device is device_kind.CPU and buffer.elements == 1
        made._by_value = is_scalar if is_pass_by_value is None else is_pass_by_value
        if not made._by_value:
            self._note_device(buffer)
        return made

    def tensor_scalar(
        self,
        value: float,
        scalar_type: enums.scalar_type = enums.scalar_type.RUNTIME_PARAM,
        data_type: DataTypeLike | None = None,
        name: str = "",
    ) -> Tensor:
        """Adds a scalar. COMPILE_TIME_CONST makes its value part of the plan; RUNTIME_PARAM makes it the value that is
        read when a variant pack has no other. data_type: default FLOAT for a float, INT64 for an int."""
        tensor = self._new_tensor(name)
        kind = dtypes.data_type_of(data_type) or dtypes.data_type_of(type(value))
        assert kind is not None
        tensor._dims, tensor._strides, tensor._data_type, tensor._by_value = (1,), (1,), kind, True
        tensor.value = value
        if enums.scalar_type(scalar_type) is enums.scalar_type.COMPILE_TIME_CONST:
            tensor.constant = dtypes.scalar_bytes(kind, value)
        return tensor

    def _new_tensor(self, name: str, producer: Any = None) -> Tensor:
        if self.is_validated:
            raise BadParameterError(f"{self!r}: it is validated and takes no more tensors. Make another graph.")
        tensor = Tensor(self, name, producer)
        self._tensors.append(tensor)
        return tensor

    def _note_device(self, buffer: buffers.Buffer) -> None:
        """Remembers where the arrays are, to choose the device when no handle was given; a GPU wins."""
        if self._seen_device is None or buffer.device is device_kind.CUDA:
            self._seen_device = (buffer.device, buffer.ordinal)

    def _as_tensor(self, value: Any, operation: str, key: str) -> Tensor:
        """An operand as a tensor of this graph: arrays are described and remembered, numbers become constants."""
        if isinstance(value, Tensor):
            if value.graph is not self:
                raise BadParameterError(
                    f"{operation}: {key}, {value!r}, belongs to another graph. Make it with this graph's tensor()."
                )
            return value
        if isinstance(value, (bool, int, float)):
            return self.tensor_scalar(value, enums.scalar_type.COMPILE_TIME_CONST)
        if not buffers.is_array(value):
            raise BadParameterError(
                f"{operation}: {key} is {type(value).__name__}. Give a tensor of the graph, an array or a number."
            )
        known = next((tensor for tensor in self._tensors if tensor.value is value), None)
        if known is None:
            known = self.tensor_like(value, is_pass_by_value=False)
            known.value = value
        return known

    # ---- Operations ----

    def _operation(
        self,
        operation: str,
        values: dict[str, Any],
        results: tuple[str, ...],
        compute_data_type: DataTypeLike | None = None,
        name: str = "",
    ) -> tuple[Any, ...]:
        """Records an operation. values: by row key, None and () for unset; results: row keys of the outputs to make."""
        rows = backend.operations()[operation].rows
        name = name or f"{operation}_{len(self._operations)}"
        kept: dict[str, Any] = {}
        for key, value in values.items():
            if value is None or (isinstance(value, (tuple, list)) and not value):
                continue
            if key not in rows:
                raise NotSupportedError(f"{operation} '{name}': the loaded library has no attribute '{key}'.")
            kept[key] = self._as_operand(value, rows[key], f"{operation} '{name}'", key)
        made: dict[str, Tensor] = {}
        recorded = _Operation(operation, name, kept, made, dtypes.data_type_of(compute_data_type))
        for key in results:
            made[key] = self._new_tensor(f"{name}::{key}", recorded)
        self._operations.append(recorded)
        return tuple(made[key] for key in results)

    def _as_operand(self, value: Any, rows: list[Row], operation: str, key: str) -> Any:
        """A value as its row stores it; operands become tensors."""
        takes_tensor = any(row.role in ("input", "output") for row in rows)
        takes_number = any(row.role == "option" and row.type != "BACKEND_DESCRIPTOR" for row in rows)
        if not takes_tensor or (takes_number and isinstance(value, (int, float))):
            return value
        is_list = rows[0].storage == "list"
        tensors = [self._as_tensor(item, operation, key) for item in (value if is_list else [value])]
        for tensor in tensors:
            is_written = rows[0].role == "output" and tensor.producer is None
            tensor.is_read = tensor.is_read or not is_written
        return tensors if is_list else tensors[0]

    # ---- Validation: descriptors of tensors and operations ----

    def validate(self) -> None:
        """Checks every operation and infers what was left unset of their results."""
        if self.is_validated:
            return
        self._choose_outputs()
        self._number_tensors()
        self._tag_types()
        try:
            self._op_descriptors = [self._make_operation(operation) for operation in self._operations]
        except WeftError:
            self._descriptors.clear()
            raise
        for tensor, descriptor in self._descriptors.items():
            tensor._dims = tuple(descriptor.get(attribute_name.TENSOR_DIMENSIONS, "INT64"))
            tensor._strides = tuple(descriptor.get(attribute_name.TENSOR_STRIDES, "INT64"))
            tensor._data_type = data_type(descriptor.get_one(attribute_name.TENSOR_DATA_TYPE, "DATA_TYPE"))
        self.is_validated = True

    def _choose_outputs(self) -> None:
        """Makes unread results outputs when the user named none."""
        results = [tensor for operation in self._operations for tensor in operation.results.values()]
        if not any(tensor._output for tensor in results):
            for tensor in results:
                tensor._is_virtual = tensor.is_read or tensor._output is False

    def _number_tensors(self) -> None:
        taken = {tensor._uid for tensor in self._tensors}
        free = iter(uid for uid in range(1, len(self._tensors) + len(taken) + 2) if uid not in taken)
        for tensor in self._tensors:
            if tensor._uid is None:
                tensor._uid = next(free)

    def _tag_types(self) -> None:
        """A tensor without a type takes the graph's, if it has one; else the library infers it."""
        for tensor in self._tensors:
            if tensor._data_type is None:
                tensor._data_type = self._intermediate_type if tensor._is_virtual else self._io_type

    def _tensor_descriptor(self, tensor: Tensor) -> Descriptor:
        """The finalized descriptor of a tensor, made when it is first asked for."""
        if tensor in self._descriptors:
            return self._descriptors[tensor]
        made = Descriptor(descriptor_type.TENSOR_DESCRIPTOR)
        made.set(attribute_name.TENSOR_UNIQUE_ID, "INT64", [tensor._uid])
        if tensor._name:
            made.set(attribute_name.NAME_EXT, "CHAR", tensor._name)
        if tensor._dims:
            made.set(attribute_name.TENSOR_DIMENSIONS, "INT64", tensor._dims)
        if tensor._strides:
            made.set(attribute_name.TENSOR_STRIDES, "INT64", tensor._strides)
        if tensor._data_type is not None:
            made.set(attribute_name.TENSOR_DATA_TYPE, "DATA_TYPE", [tensor._data_type])
        if tensor._is_virtual:
            made.set(attribute_name.TENSOR_IS_VIRTUAL, "BOOLEAN", [True])
        if tensor.constant is not None:
            memory = ffi.new("char[16]", tensor.constant)
            made.set(attribute_name.TENSOR_CONSTANT_VALUE, "VOID_PTR", [memory])
        elif tensor._by_value:
            made.set(attribute_name.TENSOR_IS_BY_VALUE, "BOOLEAN", [True])
        if tensor._alignment is not None:
            made.set(attribute_name.TENSOR_BYTE_ALIGNMENT, "INT64", [tensor._alignment])
        if tensor._vector is not None:
            made.set(attribute_name.TENSOR_VECTOR_COUNT, "INT64", [tensor._vector[0]])
            made.set(attribute_name.TENSOR_VECTORIZED_DIMENSION, "INT64", [tensor._vector[1]])
        if tensor._reordering:
            made.set(attribute_name.TENSOR_REORDERING_MODE, "TENSOR_REORDERING_MODE", [tensor._reordering])
        if tensor._ragged_offset is not None:
            offset = self._tensor_descriptor(tensor._ragged_offset)
            made.set(attribute_name.TENSOR_RAGGED_OFFSET_DESC, "BACKEND_DESCRIPTOR", [offset])
            multiplier = [tensor._ragged_multiplier]
            made.set(attribute_name.TENSOR_RAGGED_OFFSET_MULTIPLIER, "INT64", multiplier)
        made.finalize()
        self._descriptors[tensor] = made
        return made

    def _make_operation(self, operation: _Operation) -> Descriptor:
        """The finalized descriptor of an operation; the library infers its results."""
        schema = backend.operations()[operation.kind]
        made = Descriptor(schema.kind)
        made.set(attribute_name.NAME_EXT, "CHAR", operation.name)
        parameters = Descriptor(schema.parameters) if schema.parameters is not None else None
        values = {**operation.values, **operation.results}
        compute = operation.compute_data_type or self._compute_type
        if compute is not None and "compute_data_type" in schema.rows:
            values["compute_data_type"] = compute
        for key, value in values.items():
            self._set_row(parameters, made, schema.rows[key], value, f"{operation.kind} '{operation.name}'")
        if parameters is not None:
            parameters.finalize()
            row = next(row for rows in schema.rows.values() for row in rows if row.target == schema.parameters)
            made.set(row.name, "BACKEND_DESCRIPTOR", [parameters])
        made.finalize()
        return made

    def _set_row(self, parameters: Descriptor | None, own: Descriptor, rows: list[Row], value: Any, where: str) -> None:
        """Sets one attribute, as the row stores it."""
        values = list(value) if isinstance(value, (list, tuple)) and rows[0].storage != "value" else [value]
        is_tensor = isinstance(values[0], Tensor)
        is_held = is_tensor or isinstance(values[0], Descriptor)
        row = next((row for row in rows if (row.type == "BACKEND_DESCRIPTOR") == is_held), rows[0])
        target = parameters if row.is_parameter and parameters is not None else own
        try:
            elements = [self._tensor_descriptor(item) for item in values] if is_tensor else _elements(row, values)
        except (TypeError, ValueError) as error:
            if isinstance(error, WeftError):
                raise
            raise BadParameterError(f"{where}: {row.key} is {value!r}, which is no {row.type}. {error}") from None
        target.set(row.name, row.type, elements)

    # ---- From the graph to plans ----

    def build_operation_graph(self) -> None:
        """Joins the operations and checks the whole."""
        self.validate()
        if self._graph is not None:
            return
        if not self._operations:
            raise BadParameterError(f"{self!r}: it has no operations. Add one, for example matmul(A, B).")
        graph = Descriptor(descriptor_type.OPERATIONGRAPH_DESCRIPTOR)
        if self.name:
            graph.set(attribute_name.NAME_EXT, "CHAR", self.name)
        if self._device_property is None:
            graph.set(attribute_name.OPERATIONGRAPH_HANDLE, "HANDLE", [self.handle.pointer])
        graph.set(attribute_name.OPERATIONGRAPH_OPS, "BACKEND_DESCRIPTOR", self._op_descriptors)
        if self._is_dynamic:
            graph.set(attribute_name.OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, "BOOLEAN", [True])
        if self._is_override:
            graph.set(attribute_name.OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED, "BOOLEAN", [True])
        graph.finalize()
        self._graph = graph

    @property
    def handle(self) -> Handle:
        """The handle that was given, else the process's own: of the device of the arrays seen, or the default one."""
        if self._given_handle is None:
            self._uses_torch_stream = True
            self._given_handle = default_handle(*(self._seen_device or (None, 0)))
        return self._given_handle

    def create_execution_plans(self, mode: Sequence[heur_mode | str] | heur_mode | str = ()) -> None:
        """Asks heuristics for engine configurations, best first."""
        self.build_operation_graph()
        modes = [mode] if isinstance(mode, (str, heur_mode)) else list(mode) or list(self._heuristics)
        for each in modes:
            query = Descriptor(descriptor_type.ENGINEHEUR_DESCRIPTOR)
            query.set(attribute_name.ENGINEHEUR_MODE, "HEUR_MODE", [enums.member(heur_mode, each)])
            query.set(attribute_name.ENGINEHEUR_OPERATION_GRAPH, "BACKEND_DESCRIPTOR", [self._graph])
            if self._sm_count is not None:
                query.set(attribute_name.ENGINEHEUR_SM_COUNT_TARGET, "INT32", [self._sm_count])
            if self._device_property is not None:
                device = self._device_property.descriptor
                query.set(attribute_name.ENGINEHEUR_DEVICEPROP, "BACKEND_DESCRIPTOR", [device])
            query.finalize()
            kind = descriptor_type.ENGINECFG_DESCRIPTOR
            for config in query.get_descriptors(attribute_name.ENGINEHEUR_RESULTS, kind):
                self._add_candidate(config)
        if not self._candidates:
            raise self._not_supported()

    def create_execution_plan(self, engine_id: int, knobs: Mapping[int | str, int] | None = None) -> None:
        """Adds a configuration of one engine with knobs set by hand; see get_engine_count and get_knobs_for_engine."""
        config = Descriptor(descriptor_type.ENGINECFG_DESCRIPTOR)
        config.set(attribute_name.ENGINECFG_ENGINE, "BACKEND_DESCRIPTOR", [self._engine(engine_id)])
        choices = []
        for knob, value in (knobs or {}).items():
            choice = Descriptor(descriptor_type.KNOB_CHOICE_DESCRIPTOR)
            choice.set(attribute_name.KNOB_CHOICE_KNOB_TYPE, "KNOB_TYPE", [enums.member(enums.knob_type, knob)])
            choice.set(attribute_name.KNOB_CHOICE_KNOB_VALUE, "INT64", [value])
            choice.finalize()
            choices.append(choice)
        if choices:
            config.set(attribute_name.ENGINECFG_KNOB_CHOICES, "BACKEND_DESCRIPTOR", choices)
        config.finalize()
        self._add_candidate(config)

    def _engine(self, engine_id: int) -> Descriptor:
        self.build_operation_graph()
        engine = Descriptor(descriptor_type.ENGINE_DESCRIPTOR)
        engine.set(attribute_name.ENGINE_OPERATION_GRAPH, "BACKEND_DESCRIPTOR", [self._graph])
        engine.set(attribute_name.ENGINE_GLOBAL_INDEX, "INT64", [engine_id])
        if self._device_property is not None:
            device = self._device_property.descriptor
            engine.set(attribute_name.ENGINE_DEVICEPROP, "BACKEND_DESCRIPTOR", [device])
        engine.finalize()
        return engine

    def _add_candidate(self, config: Descriptor) -> None:
        (engine,) = config.get_descriptors(attribute_name.ENGINECFG_ENGINE, descriptor_type.ENGINE_DESCRIPTOR)
        tag = f"eng{engine.get_one(attribute_name.ENGINE_GLOBAL_INDEX, 'INT64')}"
        kind = descriptor_type.KNOB_CHOICE_DESCRIPTOR
        for choice in config.get_descriptors(attribute_name.ENGINECFG_KNOB_CHOICES, kind):
            knob = int(choice.get_one(attribute_name.KNOB_CHOICE_KNOB_TYPE, "KNOB_TYPE"))
            tag += f"_k{knob}={choice.get_one(attribute_name.KNOB_CHOICE_KNOB_VALUE, 'INT64')}"
        if all(candidate.tag != tag for candidate in self._candidates):
            self._candidates.append(_Candidate(config, engine, tag))
            self._plans.append(None)

    def get_engine_count(self) -> int:
        """How many engines there are to ask."""
        self.build_operation_graph()
        assert self._graph is not None
        return int(self._graph.get_one(attribute_name.OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, "INT64"))

    def get_knobs_for_engine(self, engine_id: int) -> list[Knob]:
        """The numbers by which an engine can be tuned."""
        kind = descriptor_type.KNOB_INFO_DESCRIPTOR
        infos = self._engine(engine_id).get_descriptors(attribute_name.ENGINE_KNOB_INFO, kind)
        return [
            Knob(
                enums.knob_type(info.get_one(attribute_name.KNOB_INFO_TYPE, "KNOB_TYPE")),
                info.get_one(attribute_name.KNOB_INFO_MAXIMUM_VALUE, "INT64"),
                info.get_one(attribute_name.KNOB_INFO_MINIMUM_VALUE, "INT64"),
                info.get_one(attribute_name.KNOB_INFO_STRIDE, "INT64"),
            )
            for info in infos
        ]

    # ---- Filters, before check_support ----

    def select_numeric_notes(self, notes: Iterable[enums.numerical_note]) -> Graph:
        """Keeps only engines that have all of these notes."""
        wanted = set(notes)
        self._barred.append(lambda c: "its numerical notes" if not wanted <= _numerical_notes(c.engine) else "")
        return self

    def deselect_numeric_notes(self, notes: Iterable[enums.numerical_note]) -> Graph:
        """Drops engines that have one of these notes."""
        barred = set(notes)
        self._barred.append(lambda c: "its numerical notes" if barred & _numerical_notes(c.engine) else "")
        return self

    def select_behavior_notes(self, notes: Iterable[enums.behavior_note]) -> Graph:
        """Keeps only engines that have all of these notes."""
        wanted = set(notes)
        self._barred.append(lambda c: "its behavior notes" if not wanted <= _behavior_notes(c.engine) else "")
        return self

    def deselect_behavior_notes(self, notes: Iterable[enums.behavior_note]) -> Graph:
        """Drops engines that have one of these notes."""
        barred = set(notes)
        self._barred.append(lambda c: "its behavior notes" if barred & _behavior_notes(c.engine) else "")
        return self

    def deselect_engines(self, names: Iterable[str]) -> Graph:
        """Drops plans whose tag (eng0_k2=3) or engine name (cpu.fast) contains one of these texts."""
        texts = list(names)

        def refuse(candidate: _Candidate) -> str:
            name = candidate.engine.get_text(attribute_name.ENGINE_NAME_EXT)
            return "its name" if any(text in candidate.tag or text in name for text in texts) else ""

        self._barred.append(refuse)
        return self

    def deselect_workspace_greater_than(self, workspace: int) -> Graph:
        """Drops plans that need more bytes of workspace."""

        def refuse(candidate: _Candidate) -> str:
            size = int(candidate.config.get_one(attribute_name.ENGINECFG_WORKSPACE_SIZE, "INT64"))
            return f"its workspace of {size} bytes" if size > workspace else ""

        self._barred.append(refuse)
        return self

    def check_support(self) -> None:
        """Applies the filters; fails when no configuration is left."""
        if not self._candidates:
            self.create_execution_plans()
        kept = []
        for candidate in self._candidates:
            reason = next((text for text in (refuse(candidate) for refuse in self._barred) if text), "")
            if reason:
                name = candidate.engine.get_text(attribute_name.ENGINE_NAME_EXT)
                self._failures.append(f"{name} ({candidate.tag}): deselected by {reason}.")
            else:
                kept.append(candidate)
        self._candidates, self._plans = kept, [None] * len(kept)
        if not kept:
            raise self._not_supported()

    def build_plans(self, policy: enums.build_plan_policy = enums.build_plan_policy.HEURISTICS_CHOICE) -> None:
        """Builds the best plan that can be built, or with policy ALL every one."""
        if not self._candidates:
            self.check_support()
        for i in range(len(self._candidates)):
            try:
                self.build_plan_at_index(i)
            except WeftError as error:
                self._failures.append(f"{self._candidates[i].tag}: {error}")
                continue
            if policy == enums.build_plan_policy.HEURISTICS_CHOICE:
                return
        built = [i for i, plan in enumerate(self._plans) if plan is not None]
        if not built:
            raise self._not_supported()
        self._choose(built[0])

    def build_plan_at_index(self, index: int) -> None:
        """Builds one of the candidates and makes it the plan that execute runs."""
        candidate = self._candidates[self._checked_index(index)]
        if self._plans[index] is None:
            made = Descriptor(descriptor_type.EXECUTION_PLAN_DESCRIPTOR)
            if self._device_property is None:
                made.set(attribute_name.EXECUTION_PLAN_HANDLE, "HANDLE", [self.handle.pointer])
            else:
                device = [self._device_property.descriptor]
                made.set(attribute_name.EXECUTION_PLAN_DEVICEPROP, "BACKEND_DESCRIPTOR", device)
            made.set(attribute_name.EXECUTION_PLAN_ENGINE_CONFIG, "BACKEND_DESCRIPTOR", [candidate.config])
            if self._kernel_cache is not None:
                cache = [self._kernel_cache.descriptor]
                made.set(attribute_name.EXECUTION_PLAN_KERNEL_CACHE, "BACKEND_DESCRIPTOR", cache)
            made.finalize()
            self._plans[index] = self._wrap(made)
        self._choose(index)

    def _wrap(self, descriptor: Descriptor) -> Plan:
        """A plan that knows this graph's order of inputs and outputs and the arrays that were given as operands."""
        names = self._io_names
        inputs = [self._find(name)._uid or 0 for name in names[0]]
        outputs = [self._find(name)._uid or 0 for name in names[1]]
        outputs = outputs or [t._uid or 0 for o in self._operations for t in o.results.values() if not t._is_virtual]
        defaults = {t._uid or 0: t.value for t in self._tensors if t.value is not None and t.constant is None}
        return Plan(descriptor, outputs, inputs, defaults)

    def _choose(self, index: int) -> None:
        self._chosen = index
        plan = self._plans[index]
        assert plan is not None
        self._keys = {tensor: plan.index.get(tensor._uid) for tensor in self._tensors}
        self._keys |= plan.index

    def _checked_index(self, index: int) -> int:
        if not 0 <= index < len(self._plans):
            raise BadParameterError(
                f"{self!r}: plan {index} was asked for, there are {len(self._plans)}. Use 0 to {len(self._plans) - 1}."
            )
        return index

    def build(
        self,
        heuristics: Sequence[heur_mode | str] | heur_mode | str = (),
        policy: enums.build_plan_policy = enums.build_plan_policy.HEURISTICS_CHOICE,
    ) -> Graph:
        """All steps at once: validate, build_operation_graph, create_execution_plans, check_support, build_plans."""
        self.validate()
        self.build_operation_graph()
        self.create_execution_plans(heuristics)
        self.check_support()
        self.build_plans(policy)
        return self

    def _not_supported(self) -> NotSupportedError:
        """What to raise when no engine is left: every engine's reason."""
        reasons = list(self._failures)
        if not reasons and self._graph is not None:
            device = self._device_property.descriptor if self._device_property else None
            if device is None:
                device = DeviceProperties(handle=self.handle).descriptor
            answer = backend.query_support(self._graph, device)
            reasons = [
                f"{engine['engine']}: {engine['reason']}" for engine in answer if not engine["supported"]
            ]
        listed = " ".join(reasons) or "No engine serves this device."
        return NotSupportedError(f"{self._label}: no engine can run it. {listed}", reasons=reasons)

    # ---- Queries ----

    @property
    def plan(self) -> Plan:
        """The plan that execute runs."""
        plan = self._plans[self._chosen] if self._plans else None
        if plan is None:
            raise BadParameterError(f"{self!r}: it has no plan yet. Call build() first.")
        return plan

    def get_execution_plan_count(self) -> int:
        """How many plans were created."""
        return len(self._plans)

    def get_plan_name(self) -> str:
        """The tag of the chosen plan."""
        return self.plan.tag

    def get_plan_name_at_index(self, index: int) -> str:
        """The tag of a plan, such as eng0_k2=3."""
        return self._candidates[self._checked_index(index)].tag

    def get_workspace_size(self) -> int:
        """Bytes of workspace that execute needs."""
        return self.plan.workspace_size

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        """Bytes of workspace that a plan needs."""
        config = self._candidates[self._checked_index(index)].config
        return int(config.get_one(attribute_name.ENGINECFG_WORKSPACE_SIZE, "INT64"))

    def get_behavior_notes(self) -> list[enums.behavior_note]:
        """What the chosen plan does or needs besides arithmetic."""
        return self.get_behavior_notes_for_plan_at_index(self._chosen)

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[enums.behavior_note]:
        """What a plan does or needs besides arithmetic."""
        return sorted(_behavior_notes(self._candidates[self._checked_index(index)].engine))

    def query_tensor_attributes_of_uid(self, uid: int) -> Tensor:
        """The tensor of a uid."""
        found = next((tensor for tensor in self._tensors if tensor._uid == uid), None)
        if found is None:
            uids = ", ".join(str(tensor._uid) for tensor in self._tensors if tensor._uid is not None)
            raise BadParameterError(f"{self!r}: no tensor has uid {uid}. It has {uids}.")
        return found

    def key(self) -> int:
        """A number that is equal for graphs that compute the same on tensors of the same shapes, types and uids."""
        self.build_operation_graph()
        words = [f"{t._uid} {t.description} {t._strides} {t._is_virtual} {t._by_value} {t.constant!r}" for t in self._tensors]
        for operation in self._operations:
            values = {**operation.values, **operation.results}
            words.append(f"{operation.kind} {operation.compute_data_type or self._compute_type}")
            words += [f"{key}={_key_text(value)}" for key, value in sorted(values.items())]
        return int.from_bytes(hashlib.sha256("\n".join(words).encode()).digest()[:8], "little")

    def explain(self) -> str:
        """The chosen plan in words: what runs where, what it costs, what declined and why."""
        return self.plan.explain()

    def support(self) -> list[dict[str, Any]]:
        """Every engine's answer for this graph: a predicted time, or why it declines."""
        self.build_operation_graph()
        assert self._graph is not None
        device = self._device_property or DeviceProperties(handle=self.handle)
        return backend.query_support(self._graph, device.descriptor)

    # ---- Execution ----

    def execute(
        self,
        variant_pack: Mapping[Tensor | int | str, Any],
        workspace: Any = None,
        handle: Handle | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Runs the chosen plan.

        Args:
            variant_pack: memory of each tensor that is not virtual: tensor, uid or name to array or address.
            workspace: get_workspace_size() bytes; default the thread's own.
            handle: whose stream to run on; default the graph's, or torch's current stream if it was given none.
            override_uids: tensors that have another shape in this execution.
            override_shapes: their dims.
            override_strides: their strides, in elements.
        """
        if override_uids:
            overrides = (override_uids, override_shapes or (), override_strides or ())
            self._execute_with_overrides(self.plan, variant_pack, workspace, handle, overrides)
            return
        plan = self._plans[self._chosen] if self._plans else None
        self._execute(plan or self.plan, variant_pack, workspace, handle)

    def _execute(
        self, plan: Plan, variant_pack: Mapping[Tensor | int | str, Any], workspace: Any, handle: Handle | None
    ) -> None:
        keys, bound = self._keys, 0
        for key, value in variant_pack.items():
            i = keys.get(key, -1)
            if i is None:
                continue
            if i < 0:
                raise BadParameterError(
                    f"{self!r}: the variant pack names {key!r}, which is no tensor of it. Use its tensors, uids or names."
                )
            plan.bind(i, value)
            bound += 1
        if bound < len(plan.slots):
            self._bind_rest(plan, {keys.get(key) for key in variant_pack})
        plan.launch(plan._thread, workspace, self._stream(plan, handle))

    def _bind_rest(self, plan: Plan, bound: set[int | None]) -> None:
        """Binds values that were given as operands; what then has no memory is missing."""
        for i, slot in enumerate(plan.slots):
            if i in bound:
                continue
            if slot.uid not in plan._defaults:
                raise BadParameterError(f"{self!r}: the variant pack has no buffer for {slot}. Add it.")
            value = plan._defaults[slot.uid]
            is_number = isinstance(value, (int, float))
            plan.bind(i, float(value) if is_number else value)

    def _stream(self, plan: Plan, handle: Handle | None) -> int:
        if plan.device is device_kind.CPU:
            return 0
        if handle is not None:
            return handle.stream
        if self._uses_torch_stream and "torch" in sys.modules:
            return plan._current_stream(None)
        return self.handle.stream

    def execute_plan_at_index(
        self,
        variant_pack: Mapping[Tensor | int | str, Any],
        workspace: Any,
        index: int,
        handle: Handle | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Runs one of the built plans; arguments as for execute."""
        plan = self._plans[self._checked_index(index)]
        if plan is None:
            raise BadParameterError(f"{self!r}: plan {index} is not built. Call build_plan_at_index({index}).")
        if override_uids:
            overrides = (override_uids, override_shapes or (), override_strides or ())
            self._execute_with_overrides(plan, variant_pack, workspace, handle, overrides)
            return
        self._execute(plan, variant_pack, workspace, handle)

    def _execute_with_overrides(
        self,
        plan: Plan,
        variant_pack: Mapping[Tensor | int | str, Any],
        workspace: Any,
        handle: Handle | None,
        overrides: tuple[Sequence[int], Sequence[Sequence[int]], Sequence[Sequence[int]]],
    ) -> None:
        """Runs with other shapes: through a variant pack, which carries them."""
        pack = Descriptor(descriptor_type.VARIANT_PACK_DESCRIPTOR)
        places = [(self._keys.get(key), value) for key, value in variant_pack.items()]
        bound = [(plan.slots[i].uid, value) for i, value in places if i is not None]
        pointers = [ffi.cast("void *", buffers.pointer_of(value)) for _, value in bound]
        pack.set(attribute_name.VARIANT_PACK_UNIQUE_IDS, "INT64", [uid for uid, _ in bound])
        pack.set(attribute_name.VARIANT_PACK_DATA_POINTERS, "VOID_PTR", pointers)
        uids, shapes, strides = overrides
        pack.set(attribute_name.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, "INT64", list(uids))
        pack.set(attribute_name.VARIANT_PACK_OVERRIDE_SHAPES, "INT64", [n for shape in shapes for n in shape])
        pack.set(attribute_name.VARIANT_PACK_OVERRIDE_STRIDES, "INT64", [n for steps in strides for n in steps])
        if workspace is not None:
            address = ffi.cast("void *", buffers.pointer_of(workspace))
            pack.set(attribute_name.VARIANT_PACK_WORKSPACE, "VOID_PTR", [address])
        pack.finalize()
        backend.backend_execute(handle or self.handle, plan.descriptor, pack)

    def __call__(self, *arrays: Any, handle: Handle | None = None, **named: Any) -> Any:
        """Builds the graph if need be and runs it: arrays by position or by tensor name, or a dict of them. Returns the
        output, or a tuple of the outputs."""
        if not self._plans:
            self.build()
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            named = {self._find(key).name: value for key, value in arrays[0].items()} | named
            arrays = ()
        stream = handle.stream if handle is not None else None
        return self.plan(*arrays, stream=stream, **named)

    def set_io_tuples(self, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        """Names the tensors that calls take and return by position: by their names, or "matmul_0::A"."""
        self._io_names = (tuple(inputs), tuple(outputs))
        self._plans = [None if plan is None else self._wrap(plan.descriptor) for plan in self._plans]
        return self

    def _find(self, key: Tensor | int | str) -> Tensor:
        """A tensor by itself, its uid, its name, or operation::key."""
        if isinstance(key, Tensor):
            return key
        if isinstance(key, int):
            return self.query_tensor_attributes_of_uid(key)
        named = next((tensor for tensor in self._tensors if tensor._name == key), None)
        if named is not None:
            return named
        owner, _, row = key.partition("::")
        for operation in self._operations:
            bound = {**operation.values, **operation.results}.get(row)
            if operation.name == owner and isinstance(bound, Tensor):
                return bound
        names = ", ".join(tensor._name for tensor in self._tensors if tensor._name)
        raise BadParameterError(f"{self!r}: no tensor is named '{key}'. It has {names}.")

    # ---- Saving ----

    def serialize(self) -> bytes:
        """The chosen plan as bytes; deserialize of another graph takes them."""
        return self.plan.serialize()

    def deserialize(self, *arguments: Any, handle: Handle | None = None) -> Graph:
        """Loads a saved plan: deserialize(data) or deserialize(handle, data). The graph then runs it by uids and
        names."""
        *before, data = arguments
        handle = before[0] if before else handle
        self._given_handle = handle or self._given_handle
        made = Descriptor(descriptor_type.EXECUTION_PLAN_DESCRIPTOR)
        if self._device_property is None:
            made.set(attribute_name.EXECUTION_PLAN_HANDLE, "HANDLE", [self.handle.pointer])
        made.set(attribute_name.EXECUTION_PLAN_JSON_REPRESENTATION, "CHAR", bytes(data))
        made.finalize()
        plan = Plan(made)
        self._tensors = []
        for described in plan.report["tensors"]:
            tensor = Tensor(self, described["name"] or "")
            tensor._uid, tensor._is_virtual = described["uid"], described["virtual"]
            tensor._dims, tensor._strides = tuple(described["dims"]), tuple(described["strides"])
            tensor._data_type, tensor._by_value = dtypes.data_type_of(described["type"]), described["by_value"]
            self._tensors.append(tensor)
        self.is_validated = True
        self._plans = [plan]
        self._choose(0)
        return self

    # ---- Context and words ----

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None and not self._plans:
            self.build()

    @property
    def _label(self) -> str:
        return f"graph '{self.name}'" if self.name else "graph"

    def __repr__(self) -> str:
        results = {t for o in self._operations for t in o.results.values()}
        inputs = [t for t in self._tensors if t not in results and t.is_read and t.constant is None]
        outputs = [t for t in results if (not t._is_virtual if self.is_validated else t._output or not t.is_read)]
        state = "built" if any(self._plans) else "validated" if self.is_validated else "not built"
        called = f"'{self.name}': " if self.name else ""
        counts = (_count(len(self._operations), "op"), _count(len(inputs), "input"), _count(len(outputs), "output"))
        return f"Graph({called}{', '.join(counts)}, {state})"


class KernelCache:
    """Compiled kernels that plans share. Weft shares them by itself; this carries what cuDNN programs set."""

    def __init__(self, data: bytes | str | None = None) -> None:
        self.deserialize(data)

    def serialize(self) -> bytes:
        """The cache as bytes."""
        return self.descriptor.get_bytes(attribute_name.KERNEL_CACHE_JSON_REPRESENTATION)

    def deserialize(self, data: bytes | str | None) -> KernelCache:
        """Takes over what serialize gave."""
        self.descriptor = Descriptor(descriptor_type.KERNEL_CACHE_DESCRIPTOR)
        if data:
            self.descriptor.set(attribute_name.KERNEL_CACHE_JSON_REPRESENTATION, "CHAR", data)
        self.descriptor.finalize()
        return self


class DeviceProperties:
    """The device to plan for: one that is present, by ordinal or handle, or one described by JSON."""

    def __init__(self, device: int | str | None = None, *, handle: Handle | None = None) -> None:
        self.descriptor = Descriptor(descriptor_type.DEVICEPROP_DESCRIPTOR)
        if handle is not None:
            self.descriptor.set(attribute_name.DEVICEPROP_HANDLE, "HANDLE", [handle.pointer])
        elif isinstance(device, str):
            self.descriptor.set(attribute_name.DEVICEPROP_JSON_REPRESENTATION, "CHAR", device)
        elif device is not None:
            self.descriptor.set(attribute_name.DEVICEPROP_KIND_EXT, "INT64", [device_kind.CUDA])
            self.descriptor.set(attribute_name.DEVICEPROP_DEVICE_ID, "INT32", [device])
        self.descriptor.finalize()

    def serialize(self) -> str:
        """The properties as JSON."""
        return self.descriptor.get_text(attribute_name.DEVICEPROP_JSON_REPRESENTATION)

    def __repr__(self) -> str:
        return f"DeviceProperties({self.serialize()})"


def _elements(row: Row, values: Sequence[Any]) -> Any:
    """Values as the row's element type."""
    if row.type == "CHAR":
        return values[0]
    if row.type == "DATA_TYPE":
        return [dtypes.data_type_of(value) for value in values]
    if row.type == "FRACTION":
        pairs = [value if isinstance(value, tuple) else (value, 1) for value in values]
        return [[getattr(n, "numerator", n), getattr(n, "denominator", 1) * d] for n, d in pairs]
    if row.type in ("INT64", "INT32"):
        return [value.__index__() for value in values]
    if row.type in ("FLOAT", "DOUBLE"):
        return [float(value) for value in values]
    enum = _ENUM_OF_TYPE.get(row.type)
    return [enums.member(enum, value) for value in values] if enum is not None else list(values)


# The enumerations whose members options take, by attribute type.
_ENUM_OF_TYPE: dict[str, Any] = {
    "POINTWISE_MODE": enums.pointwise_mode,
    "REDUCTION_OPERATOR_TYPE": enums.reduction_mode,
    "CONVOLUTION_MODE": enums.convolution_mode,
    "RESAMPLE_MODE": enums.resample_mode,
    "PADDING_MODE": enums.padding_mode,
    "NORM_MODE": enums.norm_mode,
    "NORM_FWD_PHASE": enums.norm_forward_phase,
    "RNG_DISTRIBUTION": enums.rng_distribution,
    "RESHAPE_MODE": enums.reshape_mode,
    "MOE_GROUPED_MATMUL_MODE": enums.moe_grouped_matmul_mode,
    "SIGNAL_MODE": enums.signal_mode,
    "GENSTATS_MODE": enums.gen_stats_mode,
    "BN_FINALIZE_STATS_MODE": enums.bn_finalize_stats_mode,
}


def _numerical_notes(engine: Descriptor) -> set[enums.numerical_note]:
    notes = engine.get(attribute_name.ENGINE_NUMERICAL_NOTE, "NUMERICAL_NOTE")
    return {enums.numerical_note(note) for note in notes}


def _behavior_notes(engine: Descriptor) -> set[enums.behavior_note]:
    notes = engine.get(attribute_name.ENGINE_BEHAVIOR_NOTE, "BEHAVIOR_NOTE")
    return {enums.behavior_note(note) for note in notes}


def _key_text(value: Any) -> str:
    """A value of an operation for Graph.key: tensors by their uids."""
    if isinstance(value, Tensor):
        return f"uid {value._uid}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_key_text, value))}]"
    return repr(value)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
