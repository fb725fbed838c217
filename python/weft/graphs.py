"""Graphs: tensors, operations, and the steps that turn them into plans. Operations are in ops.py (generated
from the library) and composite_ops.py; this file has the rest of cuDNN's pygraph."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weft_cffi._weft import ffi

from weft import arguments, backend, buffers, dtypes, enums
from weft.backend import Descriptor, Handle, Row
from weft.composite_ops import CompositeOps, computed_results, is_statistic
from weft.devices import DeviceProperties, KernelCache, default_handle, device_of
from weft.enums import attribute_name, build_plan_policy, data_type, descriptor_type, device_kind, heur_mode
from weft.errors import BadParameterError, NotSupportedError, WeftError
from weft.lowering import Lowering, Nested, Operation, Shape, option
from weft.memory import stream_of, use_on
from weft.plan import Overrides, Plan
from weft.planning import Candidate, Knob, Planner, Wrapper
from weft.progress import Waiting
from weft.slots import Slot
from weft.tensor import Tensor

if TYPE_CHECKING:
    from weft.autotune import Trial
    from weft.dtypes import DataTypeLike

_OTHER_PLANS = 64
"""Number of plans that a graph caches for calls with other shapes; the oldest is evicted first."""


class Graph(CompositeOps):
    """A computation: tensors, operations on them, and the plans that run them.

    If used as a context manager, the graph is built at the end of the block. A result that no operation reads
    is an output, unless outputs are selected with set_output(True).

    >>> import numpy as np, weft
    >>> with weft.Graph(name="mlp", handle=weft.create_handle("cpu")) as g:
    ...     x, w = g.tensor([2, 2], data_type="f32", name="x"), g.tensor([2, 1], data_type="f32", name="w")
    ...     y = g.relu(g.matmul(x, w), name="act")
    >>> g
    Graph('mlp': 2 ops, 2 inputs, 1 output, built)
    >>> g.plan(x=np.float32([[1, 2], [3, -4]]), w=np.float32([[1], [1]]))
    array([[3.],
           [0.]], dtype=float32)
    """

    plan_type: type[Plan] = Plan
    """The class of plans; a front end for another library's scripts may derive its own."""
    tensor_type: type[Tensor] = Tensor
    """The class of tensors."""
    has_cudnn_strides = False
    """True if results with unset strides get those of cuDNN's frontend; the rules are in docs/cudnn.md."""

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
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        heuristics: Sequence[heur_mode | str] = (heur_mode.A, heur_mode.FALLBACK),
        workspace_alloc: bool = True,
        device: str | Handle | DeviceProperties | None = None,
    ) -> None:
        """Creates an empty graph.

        Args:
            name: for messages and diagrams.
            io_data_type: default type of tensors with memory.
            intermediate_data_type: default type of virtual tensors.
            compute_data_type: default type in which operations compute. If it is not set here or for the
                operation, it is FLOAT, and for integers INT64 or INT32, which are exact.
            handle: the device; by default that of the arrays in use, otherwise the first usable GPU,
                otherwise the CPU.
            sm_count: number of multiprocessors of a GPU to plan for; 0 means all. Persistent kernels use no
                more than these; kernels with one block per tile are only chosen as if the GPU had so few.
            sm_version: accepted for compatibility; determined by the device.
            kernel_cache: accepted for compatibility; kernels are always shared.
            device_property: a device to plan for that need not be present.
            is_dynamic_shape_enabled: compile kernels that other graphs can reuse if only extents differ.
            is_override_shape_enabled: allow execute to override shapes.
            inputs: tensors that calls accept by position, by name or as "matmul_0::A".
            outputs: tensors that calls return.
            heuristics: default modes for create_execution_plans.
            workspace_alloc: accepted for compatibility; calls allocate the workspace if none is passed.
            device: handle and device_property in one: "cpu", "cuda", "cuda:1", "sm_90" to compile for a GPU
                of another machine, or one of their objects.
        """
        self.name = name
        self.is_validated = False
        self._io_type = dtypes.data_type_of(io_data_type)
        self._intermediate_type = dtypes.data_type_of(intermediate_data_type)
        self._compute_type = dtypes.data_type_of(compute_data_type)
        if not isinstance(handle, Handle) and handle not in (None, "auto"):
            raise BadParameterError(
                f"{self._label}: handle is {handle!r}. Give what create_handle() returns, or None."
            )
        self._handle = handle if isinstance(handle, Handle) else None
        self._sm_count = sm_count
        self._kernel_cache, self._device_property = kernel_cache, device_property
        if device is not None:
            self._set_device(device)
        self._is_dynamic, self._is_override = is_dynamic_shape_enabled, is_override_shape_enabled
        self._io_names = (tuple(inputs or ()), tuple(outputs or ()))
        self._heuristics = tuple(heuristics)
        self._filters: list[Callable[[Candidate], str]] = []
        self._workspace_limit: int | None = None
        self._tensors: list[Tensor] = []
        self._operations: list[Operation] = []
        self._seen_device: tuple[device_kind, int] | None = None
        self._op_descriptors: list[Descriptor] = []
        self._made_planner: Planner | None = None
        self.trials: list[Trial] = []
        """The plans that autotune timed, fastest first; empty if the choice was stored on disk."""
        self._plan: Plan | None = None
        self._keys: dict[Any, int | None] = {}
        self._template: list[int] | None = None
        self._given_shapes: dict[Tensor, Shape] = {}
        self._following: dict[str, dict[int, Shape]] = {}
        self._other_plans: dict[tuple[tuple[int, Shape], ...], Plan] = {}
        self._plans_lock = threading.Lock()

    def _set_device(self, device: str | Handle | DeviceProperties) -> None:
        """Sets the device by name; raises if the graph already has one."""
        if self._handle is not None or self._device_property is not None:
            raise BadParameterError(
                f"{self._label}: device is {device!r}, and the graph has a handle or device_property "
                "already. Give one of them."
            )
        resolved = device_of(device) if isinstance(device, str) else device
        if isinstance(resolved, Handle):
            self._handle = resolved
        else:
            self._device_property = resolved

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
            stride: distance between consecutive elements along each dimension; contiguous by default, the
                last dimension fastest.
            data_type: type of the elements; by default the graph's io_data_type.
            is_virtual: the tensor is only passed between operations.
            is_pass_by_value: the tensor is a scalar, read on the host when the plan runs.
            ragged_offset: tensor of the offsets at which batch entries start.
            reordering_type: reordering of the storage beyond strides.
            name: for messages, diagrams and calls of the plan by name.
            uid: number by which buffers are bound; by default the next free one.
        Returns:
            The tensor, which can still be changed with its set_ methods.

        >>> import weft
        >>> g = weft.Graph(io_data_type="bf16")
        >>> x = g.tensor([2, 3, 4, 5], stride=[60, 1, 15, 3], name="x")  # NCHW dims, channels last in memory
        >>> g.tensor([2, 3], data_type="f32", uid=7)
        Tensor(uid=7, f32[2,3])
        """
        tensor = self._new_tensor(name)
        tensor.set_dim(() if dim is None else dim).set_stride(() if stride is None else stride)
        tensor.set_data_type(data_type)
        tensor._is_virtual = is_virtual
        tensor.set_is_pass_by_value(is_pass_by_value).set_reordering_type(reordering_type)
        tensor.set_ragged_offset(ragged_offset)
        if uid is not None and arguments.whole(uid, f"{tensor.label}: uid") >= 0:
            tensor.set_uid(uid)
        return tensor

    def tensor_like(self, tensor: Any, name: str = "", is_pass_by_value: bool | None = None) -> Tensor:
        """Adds a tensor with the shape, strides and type of another tensor or an array. An array of one
        element on the host becomes a by-value scalar, unless is_pass_by_value is set.

        >>> import numpy as np, weft
        >>> weft.Graph().tensor_like(np.zeros((4, 2), "f2").T, name="x").strides
        (1, 2)
        """
        new = self._new_tensor(name)
        if isinstance(tensor, Tensor):
            new._dims, new._strides, new._data_type = tensor._dims, tensor._strides, tensor._data_type
            new._by_value = tensor._by_value if is_pass_by_value is None else is_pass_by_value
            return new
        buffer = buffers.describe(tensor)
        new._dims, new._strides, new._data_type = buffer.dims, buffer.strides, buffer.data_type
        if min(buffer.strides, default=0) < 0:
            raise BadParameterError(
                f"{new.label}: strides {list(buffer.strides)} go backwards. Copy the array, for example "
                "with numpy.ascontiguousarray."
            )
        new._alignment = min(16, buffer.pointer & -buffer.pointer) if buffer.pointer else None
        is_scalar = buffer.device is device_kind.CPU and buffer.elements == 1
        new._by_value = is_scalar if is_pass_by_value is None else is_pass_by_value
        if not new._by_value:
            self._note_device(buffer)
        return new

    def tensor_scalar(
        self,
        value: float,
        scalar_type: enums.scalar_type = enums.scalar_type.RUNTIME_PARAM,
        data_type: DataTypeLike | None = None,
        name: str = "",
    ) -> Tensor:
        """Adds a scalar. With COMPILE_TIME_CONST its value is part of the plan; with RUNTIME_PARAM it is a
        default, used if the variant pack has no value for it. data_type: by default FLOAT for a float, INT64
        for an int.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> y = g.mul(np.float32([1, 2]), g.tensor_scalar(0.5, name="factor"))
        >>> g(), g(factor=3.0)
        (array([0.5, 1. ], dtype=float32), array([3., 6.], dtype=float32))
        """
        tensor = self._new_tensor(name)
        if isinstance(value, IntEnum):
            arguments.real(value, "tensor_scalar: the value")
        kind = dtypes.data_type_of(type(value) if data_type is None else data_type)
        assert kind is not None
        tensor._dims, tensor._strides, tensor._data_type, tensor._by_value = (1,), (1,), kind, True
        tensor.value = value
        if dtypes.fitting_bytes(kind, value) is None:
            raise BadParameterError(
                f"tensor_scalar: the value is {value!r}, which {dtypes.of(kind).name} does not hold. Give "
                "another data_type."
            )
        if enums.scalar_type(scalar_type) is enums.scalar_type.COMPILE_TIME_CONST:
            tensor.constant = dtypes.scalar_bytes(kind, value)
        return tensor

    def _new_tensor(self, name: str, producer: Any = None) -> Tensor:
        if self.is_validated:
            raise BadParameterError(
                f"{self._label}: it is validated and accepts no more tensors. Create another graph."
            )
        tensor = self.tensor_type(self, name, producer)
        self._tensors.append(tensor)
        return tensor

    def _note_device(self, buffer: buffers.Buffer) -> None:
        """Records the device of an array, to select the device if no handle was given; GPUs take
        precedence."""
        if self._seen_device is None or buffer.device is device_kind.CUDA:
            self._seen_device = (buffer.device, max(buffer.ordinal, 0))

    def _as_tensor(self, value: Any, operation: str, key: str) -> Tensor:
        """An operand as a tensor of this graph: arrays are described and stored, numbers become constants."""
        if isinstance(value, Tensor):
            if value.graph is not self:
                raise BadParameterError(
                    f"{operation}: {key}, {value!r}, belongs to another graph. Make it with this graph's "
                    "tensor()."
                )
            return value
        if isinstance(value, IntEnum):
            arguments.real(value, f"{operation}: {key}")
        if buffers.is_numpy_scalar(value):
            return self.tensor_scalar(value.item(), enums.scalar_type.COMPILE_TIME_CONST, value.dtype)
        if isinstance(value, (bool, int, float)):
            return self._number(value)
        if not buffers.is_array(value):
            raise BadParameterError(
                f"{operation}: {key} is {type(value).__name__}. Give a tensor of the graph, an array or a "
                "number."
            )
        known = next((tensor for tensor in self._tensors if tensor.value is value), None)
        if known is None:
            known = self.tensor_like(value)
            known.value = value
            self._note_device(buffers.describe(value))
        return known

    def _number(self, value: float) -> Tensor:
        """A constant whose type is derived from the other operands once they are known."""
        tensor = self._new_tensor("")
        tensor._dims, tensor._strides, tensor._by_value = (1,), (1,), True
        tensor.value = tensor.number = value
        return tensor

    # ---- Operations ----

    def _operation(
        self,
        method: str,
        operation: str,
        values: Mapping[str, Any],
        results: Sequence[str],
        compute_data_type: DataTypeLike | None = None,
        name: str = "",
    ) -> Sequence[Any]:
        """Records an operation and creates its results. A value of None, or an empty list, stays unset. A
        result that the operation does not compute with these options is None."""
        arguments.text(name, f"{method}: name")
        rows = backend.operations()[operation].rows
        name = name or f"{method}_{len(self._operations)}"
        where = f"{method} '{name}'"
        kept: dict[str, Any] = {}
        for key, value in values.items():
            if value is None or (isinstance(value, (tuple, list)) and not value):
                if value is None and key in rows and rows[key][0].required and rows[key][0].role == "input":
                    raise BadParameterError(
                        f"{where}: {key} is None. Give a tensor of the graph, an array or a number."
                    )
                continue
            if key not in rows:
                raise NotSupportedError(
                    f"{where}: the loaded library has no attribute '{key}' of {operation}."
                )
            kept[key] = self._as_operand(value, rows[key], where, key)
        made: dict[str, Tensor] = {}
        recorded = Operation(operation, name, kept, made, dtypes.data_type_of(compute_data_type))
        for key in computed_results(method, kept, results):
            made[key] = self._new_tensor(f"{name}::{key}", recorded)
        self._operations.append(recorded)
        return [made.get(key) for key in results]

    def _modified_scores(
        self,
        where: str,
        values: Mapping[str, Any],
        score_mod: Any,
        score_mod_bprop: Any = None,
        gradients: Mapping[Tensor, Tensor] | None = None,
    ) -> dict[str, Any]:
        """The operations that score_mod, and score_mod_bprop, apply to the scores of these operands, as a
        part of attention."""
        if score_mod is None:
            if score_mod_bprop is not None or gradients:
                raise BadParameterError(f"{where}: score_mod is missing. Give the one of the forward pass.")
            return {}
        q, k = (self._as_tensor(values[key], where, key) for key in ("q", "k"))
        nested = Nested([], {}, list(gradients or ()), q, k, values.get("paged_attention_k_table"))
        outer, self._operations = self._operations, nested.operations
        try:
            scores = nested.ends["subgraph_input_uid"] = self._score_tensor(f"{where}::scores", nested)
            nested.ends["subgraph_output_uid"] = score_mod(self, scores)
            if score_mod_bprop is not None:
                slope = self._score_tensor(f"{where}::dScores", nested)
                nested.ends["subgraph_gradient_input_uid"] = slope
                nested.ends["subgraph_gradient_output_uid"] = score_mod_bprop(self, slope)
        finally:
            self._operations = outer
        for key, tensor in nested.ends.items():
            if not isinstance(tensor, Tensor) or tensor.graph is not self:
                hook = "score_mod_bprop" if "gradient" in key else "score_mod"
                raise BadParameterError(
                    f"{where}: {hook} returned {arguments.shown(tensor)}. Return the tensor that its last "
                    "operation makes."
                )
        if not nested.operations and not gradients and nested.ends["subgraph_output_uid"] is scores:
            return {}
        for operation in nested.operations:
            for tensor in operation.results.values():
                tensor._is_virtual, tensor._output, tensor.is_read = True, False, True
        return {"subgraph": nested, "subgraph_gradients": list((gradients or {}).values())}

    def _score_tensor(self, name: str, nested: Nested) -> Tensor:
        """A virtual tensor with the shape of the scores, as far as it is known."""
        tensor = self._new_tensor(name)
        tensor._is_virtual, tensor.is_read = True, True
        if len(nested.queries._dims) == len(nested.keys._dims) == 4 and nested.table is None:
            tensor.set_dim([*nested.queries._dims[:3], nested.keys._dims[2]])
        return tensor

    def _as_operand(self, value: Any, rows: list[Row], operation: str, key: str) -> Any:
        """Converts a value to the form stored in its attribute; operands become tensors."""
        if {row.role for row in rows}.isdisjoint(("input", "output")):
            if all(row.type != "BACKEND_DESCRIPTOR" for row in rows):
                option(rows, value, operation)  # rejects the value here rather than when the graph is built
            return value
        if isinstance(value, (int, float)):
            takes_number = any(row.role == "option" and row.type != "BACKEND_DESCRIPTOR" for row in rows)
            if takes_number:
                return value
        is_list = rows[0].storage == "list"
        tensors = [self._as_tensor(item, operation, key) for item in (value if is_list else [value])]
        for tensor in tensors:
            # A tensor without a producer that is passed as an output is written by the operation.
            tensor.is_written = rows[0].role == "output" and tensor.producer is None
            tensor.is_read = tensor.is_read or not tensor.is_written
        return tensors if is_list else tensors[0]

    # ---- Validation ----

    def validate(self) -> None:
        """Checks every operation and infers unset properties of the results.

        >>> import weft
        >>> g = weft.Graph(io_data_type="bf16")
        >>> y = g.matmul(g.tensor([8, 2, 3]), g.tensor([1, 3, 5]))
        >>> g.validate()
        >>> y.dims, y.strides, y.dtype.name
        ((8, 2, 5), (10, 5, 1), 'BFLOAT16')
        """
        if self.is_validated:
            return
        self._choose_outputs()
        self._number_tensors()
        self._inherit_types()
        lowering = Lowering(self._compute_type)
        written = [*self._results(), *(tensor for tensor in self._tensors if tensor.is_written)]
        self._given_shapes = {tensor: (tensor._dims, tensor._strides) for tensor in written}
        self._op_descriptors = [lowering.operation(operation) for operation in self._operations]
        for tensor, descriptor in lowering.tensors.items():
            if not tensor._dims or not tensor._strides:
                tensor._dims, tensor._strides = map(tuple, lowering.shape_of(tensor))
            if tensor._data_type is None:
                inferred = descriptor.get_one(attribute_name.TENSOR_DATA_TYPE, "DATA_TYPE")
                tensor._data_type = data_type(inferred)
        self.is_validated = True

    def _choose_outputs(self) -> None:
        """Makes unread results outputs if the user selected none."""
        for tensor in self._tensors:
            if tensor._output and tensor.producer is None and not tensor.is_written:
                raise BadParameterError(
                    f"{tensor.label}: set_output(True) was called, but it is an input: no operation makes "
                    "it. Call it on the result of an operation."
                )
        if not any(tensor._output for tensor in self._tensors):
            for tensor in self._results():
                tensor._is_virtual = tensor.is_read or tensor._output is False

    def _results(self) -> list[Tensor]:
        return [tensor for operation in self._operations for tensor in operation.results.values()]

    def _nested_results(self) -> list[Tensor]:
        """The results of the operations of score modifiers."""
        parts = [o.values["subgraph"] for o in self._operations if "subgraph" in o.values]
        return [t for part in parts for operation in part.operations for t in operation.results.values()]

    def _number_tensors(self) -> None:
        taken = {tensor._uid for tensor in self._tensors}
        free = iter(uid for uid in range(1, 2 * len(self._tensors) + 2) if uid not in taken)
        for tensor in self._tensors:
            if tensor._uid is None:
                tensor._uid = next(free)

    def _has_inferred_type(self, operation: Operation, result: str) -> bool:
        """True if the library infers the type of a result even if the graph has a default type for it."""
        return result == "index" or (is_statistic(result) and not operation.results[result]._is_virtual)

    def _inherit_types(self) -> None:
        """Gives tensors without a type the graph's default type, if it has one; otherwise the library infers
        it. The types of statistics with memory and of indices are always inferred, because statistics must
        not be narrowed."""
        inferred = {
            operation.results[key]
            for operation in self._operations
            for key in operation.results
            if self._has_inferred_type(operation, key)
        }
        for tensor in self._tensors:
            if tensor._data_type is None and tensor.number is None and tensor not in inferred:
                tensor._data_type = self._intermediate_type if tensor._is_virtual else self._io_type

    # ---- From the graph to plans ----

    def build_operation_graph(self) -> None:
        """Combines the operations into a graph and validates it."""
        self._planner()

    def _planner(self) -> Planner:
        """The candidates for the finalized graph."""
        if self._made_planner is not None:
            return self._made_planner
        self.validate()
        if not self._operations:
            raise BadParameterError(
                f"{self._label}: it has no operations. Add one, for example matmul(A, B)."
            )
        self._made_planner = self._planner_of(self._op_descriptors)
        return self._made_planner

    def _planner_of(self, operations: Sequence[Descriptor]) -> Planner:
        """The candidates for finalized operations, with the graph's own shapes or with others."""
        graph = Descriptor(descriptor_type.OPERATIONGRAPH_DESCRIPTOR)
        if self.name:
            graph.set(attribute_name.NAME_EXT, "CHAR", self.name)
        handle = None if self._device_property is not None else self.handle
        if handle is not None:
            graph.set(attribute_name.OPERATIONGRAPH_HANDLE, "HANDLE", [handle.pointer])
        graph.set(attribute_name.OPERATIONGRAPH_OPS, "BACKEND_DESCRIPTOR", operations)
        if self._is_dynamic:
            graph.set(attribute_name.OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, "BOOLEAN", [True])
        if self._is_override:
            graph.set(attribute_name.OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED, "BOOLEAN", [True])
        graph.finalize()
        planner = Planner(graph, handle, self._device_property, self._kernel_cache, self._sm_count)
        planner.label = self._label
        return planner

    @property
    def handle(self) -> Handle:
        """The given handle, otherwise the process-wide one of the arrays' device or of the default device."""
        if self._handle is None:
            self._handle = default_handle(*(self._seen_device or (None, 0)))
        return self._handle

    def create_execution_plans(self, mode: Sequence[heur_mode | str] | heur_mode | str = ()) -> None:
        """Asks the heuristics for engine configurations, best first."""
        modes = [mode] if isinstance(mode, (str, heur_mode)) else list(mode)
        self._planner().ask(modes or self._heuristics)

    def create_execution_plan(self, engine_id: int, knobs: Mapping[int | str, int] | None = None) -> None:
        """Adds one engine with knobs set by hand; see get_engine_count and get_knobs_for_engine."""
        self._planner().choose(engine_id, knobs or {})

    def get_engine_count(self) -> int:
        """The number of engines that can be queried."""
        graph = self._planner().graph
        return int(graph.get_one(attribute_name.OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, "INT64"))

    def get_knobs_for_engine(self, engine_id: int) -> list[Knob]:
        """The tuning parameters of an engine."""
        return self._planner().knobs(engine_id)

    def get_families_for_engine(self, engine_id: int) -> list[str]:
        """The kernel families of an engine: the i-th corresponds to bit i of knob WITHOUT_FAMILIES_EXT, which
        excludes the families whose bits are set."""
        return self._planner().families(engine_id)

    def select_numeric_notes(self, notes: Iterable[enums.numerical_note]) -> Graph:
        """Keeps only engines that have all of these notes. Like all filters, call it before check_support."""
        wanted = set(notes)
        return self._filter(lambda c: "" if wanted <= c.numerical_notes else "its numerical notes")

    def deselect_numeric_notes(self, notes: Iterable[enums.numerical_note]) -> Graph:
        """Drops engines that have one of these notes."""
        barred = set(notes)
        return self._filter(lambda c: "its numerical notes" if barred & c.numerical_notes else "")

    def select_behavior_notes(self, notes: Iterable[enums.behavior_note]) -> Graph:
        """Keeps only engines that have all of these notes."""
        wanted = set(notes)
        return self._filter(lambda c: "" if wanted <= c.behavior_notes else "its behavior notes")

    def deselect_behavior_notes(self, notes: Iterable[enums.behavior_note]) -> Graph:
        """Drops engines that have one of these notes."""
        barred = set(notes)
        return self._filter(lambda c: "its behavior notes" if barred & c.behavior_notes else "")

    def deselect_engines(self, names: Iterable[str]) -> Graph:
        """Drops plans whose tag (eng0_k2=3) or engine name (cpu.fast) contains one of these strings.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> y = g.exp(np.float32([0, 1]))
        >>> g.deselect_engines(["cpu.fast"]).build().plan.engine
        'cpu.reference'
        """
        texts = list(names)
        return self._filter(lambda c: "its name" if any(t in c.tag or t in c.name for t in texts) else "")

    def deselect_workspace_greater_than(self, workspace: int) -> Graph:
        """Drops plans that need more bytes of workspace, unless the engine has slower kernels that need
        less."""
        limit = self._workspace_limit
        self._workspace_limit = workspace if limit is None else min(limit, workspace)
        return self._filter(
            lambda c: f"its workspace of {c.workspace_size} bytes" if c.workspace_size > workspace else ""
        )

    def _filter(self, refuse: Callable[[Candidate], str]) -> Graph:
        """Drops the candidates for which `refuse` returns a reason."""
        if self._plan is not None:
            raise BadParameterError(
                f"{self._label}: it is built, and filters would not change its plan. Filter before build()."
            )
        self._filters.append(refuse)
        return self

    def check_support(self) -> None:
        """Applies the filters; raises if no configuration is left."""
        if not self._planner().candidates:
            self.create_execution_plans()
        self._planner().keep(self._filters, self._workspace_limit)

    def build_plans(self, policy: build_plan_policy = build_plan_policy.HEURISTICS_CHOICE) -> None:
        """Builds the best plan that can be built, or with policy ALL every one."""
        if not self._planner().candidates:
            self.check_support()
        self._choose(self._planner().build(policy, self._wrapper()))

    def build_plan_at_index(self, index: int) -> None:
        """Builds one of the candidates and selects it as the plan that execute runs."""
        self._build_one(self._planner().checked(index))
        self._choose(index)

    def build(
        self,
        heuristics: Sequence[heur_mode | str] | heur_mode | str = (),
        policy: build_plan_policy = build_plan_policy.HEURISTICS_CHOICE,
        *,
        device: str | Handle | DeviceProperties | None = None,
        launch: str = "kernels",
    ) -> Graph:
        """All steps in one call: validate, build_operation_graph, create_execution_plans, check_support,
        build_plans. `device` is that of Graph, if it was not given there. With launch="graph", the plan's
        kernels are launched as one CUDA graph; see Plan.as_cuda_graph."""
        if launch not in ("kernels", "graph"):
            raise BadParameterError(f"{self._label}: launch is {launch!r}. Use 'kernels' or 'graph'.")
        if device is not None:
            self._set_device(device)
        self.create_execution_plans(heuristics)
        self.check_support()
        self.build_plans(policy)
        if launch == "graph":
            self._use(self.plan.as_cuda_graph())
        return self

    def autotune(
        self,
        variant_pack: Mapping[Tensor | int | str, Any] | None = None,
        *,
        seconds: float = 10.0,
        remember: bool = True,
    ) -> Graph:
        """Times candidate plans on the device, knob by knob, and selects the fastest. Progress is shown on a
        terminal. The result is stored next to the kernel cache, for this graph, device and version, so the
        next process uses it without measuring.

        Args:
            variant_pack: memory to run on, as for execute; outputs are overwritten. Missing inputs are filled
                with generated numbers, zeros for integer types; pass inputs that determine the work.
            seconds: the time after which no further candidate is tried; the first one is always timed.
            remember: whether to read and write the stored results.

        >>> import weft
        >>> g = weft.Graph(io_data_type="f32", handle=weft.create_handle("cpu"))
        >>> y = g.softmax(g.tensor([64, 64], name="x"))
        >>> fastest = min(g.autotune(seconds=0.5, remember=False).trials, key=lambda t: t.seconds)
        >>> g.get_plan_name() == fastest.tag
        True
        """
        from weft import autotune

        planner = self._planner()
        if not planner.candidates:
            self.check_support()
        given = {self._find(key).get_uid(): value for key, value in (variant_pack or {}).items()}
        device = self._device_property or DeviceProperties(handle=self.handle)
        memory = autotune.Memory(self.key(), planner, device) if remember else None
        index, self.trials = autotune.tune(planner, self._build_one, given, seconds, memory)
        self._build_one(index)
        self._choose(index)
        return self

    def _build_one(self, index: int) -> Plan:
        planner = self._planner()
        planner.build_at(index, self._wrapper())
        plan = planner.plans[index]
        assert plan is not None
        return plan

    def _wrapper(self) -> Wrapper:
        """Creates plans with this graph's order of inputs and outputs and the values passed as operands."""
        inputs, outputs = ([self._find(name) for name in names] for names in self._io_names)
        for role, tensors in (("inputs", inputs), ("outputs", outputs)):
            for tensor in tensors:
                if tensor._is_virtual:
                    raise BadParameterError(
                        f"{self._label}: {role} names {tensor!r}, which has no memory. Call set_output(True) "
                        "on it, or name another."
                    )
        uids = [t.get_uid() for t in outputs or self._results() if not t._is_virtual]
        values = {t.get_uid(): t.value for t in self._tensors if t.value is not None and not t.is_constant}
        order, place = [t.get_uid() for t in inputs], self._device_property or self._handle
        make = self.plan_type
        return lambda descriptor, with_code: make(descriptor, order, uids, values, place, with_code)

    def _choose(self, index: int) -> None:
        plan = self._planner().plans[index]
        assert plan is not None
        self._use(plan)

    def _use(self, plan: Plan) -> None:
        self._plan, self._template, self._other_plans = plan, None, {}
        self._keys = {tensor: plan.index.get(tensor._uid) for tensor in self._tensors}
        self._keys |= plan.index

    # ---- Queries ----

    @property
    def plan(self) -> Plan:
        """The plan that execute runs."""
        if self._plan is None:
            raise BadParameterError(f"{self._label}: it has no plan yet. Call build() first.")
        return self._plan

    def get_execution_plan_count(self) -> int:
        """The number of plans that were created."""
        return len(self._planner().plans)

    def get_plan_name(self) -> str:
        """The tag of the selected plan."""
        return self.plan.tag

    def get_plan_name_at_index(self, index: int) -> str:
        """The tag of a plan, such as eng0_k2=3."""
        return self._candidate(index).tag

    def get_workspace_size(
        self,
        handle: Handle | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> int:
        """Bytes of workspace that execute needs; for other shapes if they are passed as to execute."""
        if not override_uids:
            return self.plan.workspace_size
        return self.plan.workspace_of(_overrides(override_uids, override_shapes, override_strides), handle)

    def get_workspace_size_plan_at_index(
        self,
        index: int,
        handle: Handle | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> int:
        """Bytes of workspace that a plan needs; for other shapes the plan must be built."""
        if not override_uids:
            return self._candidate(index).workspace_size
        overrides = _overrides(override_uids, override_shapes, override_strides)
        return self._built_plan(index).workspace_of(overrides, handle)

    def get_behavior_notes(self) -> list[enums.behavior_note]:
        """Effects and requirements of the selected plan other than arithmetic."""
        tags = [candidate.tag for candidate in self._planner().candidates]
        return self.get_behavior_notes_for_plan_at_index(tags.index(self.plan.tag))

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[enums.behavior_note]:
        """Effects and requirements of a plan other than arithmetic."""
        return sorted(self._candidate(index).behavior_notes)

    def _candidate(self, index: int) -> Candidate:
        planner = self._planner()
        return planner.candidates[planner.checked(index)]

    def query_tensor_attributes_of_uid(self, uid: int) -> Tensor:
        """The tensor with a uid.

        >>> import weft
        >>> g = weft.Graph()
        >>> x = g.tensor([2], data_type="f32", name="x", uid=7)
        >>> g.query_tensor_attributes_of_uid(7) is x
        True
        """
        match = next((tensor for tensor in self._tensors if tensor._uid == uid), None)
        if match is None:
            uids = ", ".join(str(tensor._uid) for tensor in self._tensors if tensor._uid is not None)
            raise BadParameterError(f"{self._label}: no tensor has uid {uid}. It has {uids}.")
        return match

    def key(self) -> int:
        """A number that is equal for graphs that compute the same on tensors of the same shapes, types and
        uids.

        >>> import weft
        >>> def key(extent):
        ...     g = weft.Graph(io_data_type="f32")
        ...     g.exp(g.tensor([extent]))
        ...     return g.key()
        >>> key(2) == key(2), key(2) == key(3)
        (True, False)
        """
        self.validate()
        words = [
            f"{t._uid} {t.description} {t._strides} {t._is_virtual} {t.constant!r}" for t in self._tensors
        ]
        for operation in self._operations:
            values = {**operation.values, **operation.results}
            words.append(f"{operation.kind} {operation.compute_data_type} {self._compute_type}")
            words += [f"{key}={_key_text(value)}" for key, value in sorted(values.items())]
        return int.from_bytes(hashlib.sha256("\n".join(words).encode()).digest()[:8], "little")

    def plot(self, path: str | None = None) -> str:
        """The graph as SVG, with the plan's steps as frames once it is built. Also written to a file if a
        path is given."""
        from weft.plot import plot

        return plot(self, path)

    def _repr_svg_(self) -> str:
        return self.plot()

    def support(self, device: DeviceProperties | None = None) -> list[dict[str, Any]]:
        """Every engine's answer for this graph: a predicted time, or the reason why it declines. `device` is
        by default the graph's own.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> y = g.exp(np.float32([0, 1]))
        >>> [answer["supported"] for answer in g.support() if answer["engine"] == "cpu.reference"]
        [True]
        """
        return self._planner().support(device)

    def explain(self, all_refusals: bool = False) -> str:
        """The selected plan as text, and the answers of the other engines. With `all_refusals`, every family
        that declined is listed by name, instead of counting those with the same reason.

        >>> import numpy as np, weft
        >>> g = weft.Graph().deselect_engines(["cpu.fast"])
        >>> y = g.exp(np.float32([0, 1]))
        >>> print(g.build().explain().partition(" (")[0])
        graph on cpu.reference
        """
        from weft.explain import explain_text

        support = self._made_planner.support() if self._made_planner is not None else ()
        text = explain_text(self.plan.report, support, all_refusals=all_refusals)
        others = "".join(f"\n  {plan.of_shapes()}" for plan in list(self._other_plans.values()))
        return text + (f"\nplans for calls of other shapes{others}" if others else "")

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
        """Runs the selected plan.

        Args:
            variant_pack: memory of each tensor that is not virtual: tensor, uid or name to array or address.
                Arrays must be on the graph's device, of the tensor's type and large enough. An array that is
                contiguous in row-major order serves only as memory: it holds the tensor's elements in the
                order of the tensor's strides, whatever the array's dims. Other arrays must have the tensor's
                dims and strides. An array is checked again in later runs only if it was changed in place;
                addresses are not checked. A BOOLEAN tensor has 1 bit per element: arrays of bool are
                BYTE_BOOLEAN.
            workspace: at least get_workspace_size() bytes for these shapes; by default the thread's own.
            handle: the handle whose stream to run on; by default the graph's, or the current stream of torch
                or CuPy if none was set on it.
            override_uids: tensors that have another shape in this execution.
            override_shapes: their dims.
            override_strides: their strides, in elements; contiguous by default.

        >>> import numpy as np, weft
        >>> g = weft.Graph(handle=weft.create_handle("cpu"))
        >>> x = g.tensor([3], data_type="f32", name="x")
        >>> y = g.neg(x)
        >>> _ = g.build()
        >>> workspace, result = np.empty(g.get_workspace_size(), "u1"), np.empty(3, "f4")
        >>> g.execute({x: np.float32([1, 2, 3]), y: result}, workspace)
        >>> result
        array([-1., -2., -3.], dtype=float32)
        """
        overrides = _overrides(override_uids, override_shapes, override_strides) if override_uids else None
        self._execute(self._plan or self.plan, variant_pack, workspace, handle, overrides)

    def _execute(
        self,
        plan: Plan,
        variant_pack: Mapping[Tensor | int | str, Any],
        workspace: Any,
        handle: Handle | None,
        overrides: Overrides | None,
    ) -> None:
        slots = plan.slots if overrides is None else self._overridden_slots(plan, overrides)
        state = plan.thread.state
        keys, pointers, checked, bound = self._keys, state.pointers, state.known, set()
        for key, value in variant_pack.items():
            i = keys.get(key, -1)
            if i is not None and i < 0:
                i = self._slot_of_unknown(plan, key)
            if i is None:  # virtual, or used by no operation
                continue
            known = checked[i] if overrides is None else None
            if known and known[0]() is value and (known[2] is None or known[2](value) == known[3]):
                pointers[i] = known[1]
            else:
                plan.put(i, value, slots[i])
            bound.add(i)
        if len(bound) < len(slots):
            self._bind_rest(plan, slots, bound)
        stream = stream_of(handle or plan.handle)
        use_on(variant_pack.values(), stream)
        if overrides is None:
            plan.launch(state, workspace, stream)
        else:
            plan.launch_overridden(overrides, workspace, plan.handle_on_stream(handle))

    def _overridden_slots(self, plan: Plan, overrides: Overrides) -> list[Slot]:
        """The slots with other shapes, including results whose shapes are inferred from them."""
        slots = plan.overridden(overrides)
        uids, shapes, strides = overrides
        given = {uid: (dims, steps) for uid, dims, steps in zip(uids, shapes, strides, strict=True)}
        if not self._operations:
            self._refuse_open_outputs(slots, given)
        open_ = [t for t, shape in self._given_shapes.items() if not all(shape) and not t._is_virtual]
        if all(tensor._uid in given for tensor in open_):
            return slots
        known = str(overrides)
        if known not in self._following:
            lowering = Lowering(self._compute_type, self._taken(given))
            for operation in self._operations:
                lowering.operation(operation)
            self._following[known] = {t.get_uid(): lowering.shape_of(t) for t in open_}
        found = self._following[known] | given
        return plan.overridden(
            (list(found), [dims for dims, _ in found.values()], [steps for _, steps in found.values()])
        )

    def _refuse_open_outputs(self, slots: Sequence[Slot], given: Mapping[int, Shape]) -> None:
        """Rejects outputs whose shapes are unknown: a loaded plan can infer shapes, but Python does not know
        its operations."""
        for slot in slots:
            if slot.is_output and slot.uid not in given:
                raise BadParameterError(
                    f"execute: {slot} may change with the shapes of others, and the plan was loaded without "
                    "its graph. Name it in override_uids, too."
                )

    def _slot_of_unknown(self, plan: Plan, key: Any) -> int | None:
        """The slot for a key of a variant pack that does not belong to this graph; None if its memory is
        ignored."""
        raise BadParameterError(
            self.plan.shared_name(self._label, key)
            or f"{self._label}: the variant pack names {key!r}, which is not one of its tensors. Use its "
                "tensors, "
            "uids or names."
        )

    def _bind_rest(self, plan: Plan, slots: Sequence[Slot], bound: set[int]) -> None:
        """Binds values that were passed as operands; any slot still without memory is an error."""
        for i, slot in enumerate(slots):
            if i in bound:
                continue
            if slot.uid not in plan.values:
                raise BadParameterError(f"{self._label}: the variant pack has no buffer for {slot}. Add it.")
            value = plan.values[slot.uid]
            if isinstance(value, (int, float)):
                plan.put_number(i, value)
            else:
                plan.put(i, value, slot)

    # Low-overhead entry points that cuDNN's frontend calls: addresses in ascending order of uids.

    def _prepare_variant_pack_template(self) -> None:
        """Determines the slots that callers fill, in ascending order of uids: all except values passed as
        operands."""
        plan = self.plan
        self._template = sorted(slot.uid for slot in plan.slots if slot.uid not in plan.values)

    def _get_variant_pack_uids_sorted(self) -> list[int]:
        """The uids whose addresses _execute_with_ptrs accepts, in its order."""
        if self._template is None:
            self._prepare_variant_pack_template()
        assert self._template is not None
        return list(self._template)

    def _execute_with_ptrs(
        self, ptrs: Sequence[int], workspace: int | None = None, handle: Handle | int | None = None
    ) -> None:
        """Runs the selected plan on addresses, one per uid of _get_variant_pack_uids_sorted, without checking
        them. workspace: an address; None or 0 allocates."""
        self._execute_addresses(self.plan, ptrs, workspace, handle)

    def _execute_with_raw_ptrs(
        self,
        address: int,
        count: int,
        workspace: int | None = None,
        handle: Handle | int | None = None,
        index: int = -1,
    ) -> None:
        """Like _execute_with_ptrs, but reads `count` addresses from an array in memory. index: the plan to
        run; -1 is the selected one."""
        plan = self.plan if index < 0 else self._built_plan(index)
        ptrs = ffi.unpack(ffi.cast("uint64_t *", address), count) if address and count > 0 else ()
        self._execute_addresses(plan, ptrs, workspace, handle)

    def _execute_addresses(
        self, plan: Plan, ptrs: Sequence[int], workspace: int | None, handle: Handle | int | None
    ) -> None:
        uids = self._get_variant_pack_uids_sorted()
        if len(ptrs) != len(uids):
            raise BadParameterError(
                f"{self._label}: {len(ptrs)} addresses, it takes {len(uids)}. Give one for each uid of "
                f"{', '.join(map(str, uids))}, in this order."
            )
        bound = set()
        for uid, address in zip(uids, ptrs, strict=True):
            i = plan.index[uid]
            plan.put_address(i, address)
            bound.add(i)
        self._bind_rest(plan, plan.slots, bound)
        plan.launch(plan.thread.state, workspace, stream_of(backend.handle_of(handle) or plan.handle))

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
        """Runs one of the built plans; arguments as for execute.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> y = g.neg(np.float32([1, 2]))
        >>> g.create_execution_plans(["A", "FALLBACK"])
        >>> g.build_plans(weft.build_plan_policy.ALL)
        >>> result = np.empty(2, "f4")
        >>> for i in range(g.get_execution_plan_count()):
        ...     g.execute_plan_at_index({y: result}, None, i)
        >>> result
        array([-1., -2.], dtype=float32)
        """
        overrides = _overrides(override_uids, override_shapes, override_strides) if override_uids else None
        self._execute(self._built_plan(index), variant_pack, workspace, handle, overrides)

    def _built_plan(self, index: int) -> Plan:
        plan = self._planner().plans[self._planner().checked(index)]
        if plan is None:
            raise BadParameterError(
                f"{self._label}: plan {index} is not built. Call build_plan_at_index({index})."
            )
        return plan

    def populate_cuda_graph(self, handle: Handle, variant_pack: Any, workspace: Any, cuda_graph: int) -> None:
        """Not supported. Instead, call execute while its stream is captured into a CUDA graph."""
        raise NotSupportedError(
            f"{self._label}: plans are not written into CUDA graphs directly. Capture the stream of "
            "execute() instead.",
            enums.status.NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API,
        )

    update_cuda_graph = populate_cuda_graph

    def __call__(self, *arrays: Any, handle: Handle | None = None, **named: Any) -> Any:
        """Builds the graph if necessary and runs it: arrays by position or by tensor name, or a dict of them.
        Returns the output, or a tuple of the outputs. Arrays of other shapes, such as another batch size, get
        a plan of their own if the graph allows it, which is built once and cached; explain() lists these
        plans.

        >>> import numpy as np, weft
        >>> g = weft.Graph(handle=weft.create_handle("cpu"))
        >>> a, b = (g.tensor([2], data_type="f32", name=name) for name in "ab")
        >>> y = g.sub(a, b)
        >>> g(np.float32([5, 6]), np.float32([1, 2]))
        array([4., 4.], dtype=float32)
        >>> g(b=np.float32([1, 2]), a=np.float32([9, 9]))
        array([8., 7.], dtype=float32)
        """
        if self._plan is None:
            self.build()
        given: dict[Any, Any] = dict(named)
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            given = {self._find(key)._uid: value for key, value in arrays[0].items()} | given
            arrays = ()
        return self._run(arrays, given, stream=None if handle is None else stream_of(handle))

    def _run(self, arrays: Sequence[Any], given: Mapping[Any, Any], **how: Any) -> Any:
        """Runs the plan for the shapes of the arrays. While the graph's own plan is the only one, it is tried
        first, so that a matching call has no extra cost."""
        if not self._other_plans:
            try:
                return self.plan.run(arrays, given, **how)
            except BadParameterError:
                plan = self._plan_for(self.plan.other_shapes(arrays, given))
                if plan is None:
                    raise
        else:
            plan = self._plan_for(self.plan.other_shapes(arrays, given))
        return (plan or self.plan).run(arrays, given, **how)

    def _plan_for(self, shapes: Mapping[int, Shape]) -> Plan | None:
        """The plan for other dims and strides of some tensors, by uid, and of the results inferred from them;
        None if no shape differs, or if the graph does not allow it."""
        key = tuple(sorted(shapes.items()))
        if not shapes or not self._operations or key in self._other_plans:
            return self._other_plans.get(key)
        with self._plans_lock:  # so that only one of several threads builds the plan
            if key not in self._other_plans and (plan := self._planned_for(shapes)) is not None:
                while len(self._other_plans) >= _OTHER_PLANS:
                    self._other_plans.pop(next(iter(self._other_plans)))
                self._other_plans[key] = plan
            return self._other_plans.get(key)

    def _planned_for(self, shapes: Mapping[int, Shape]) -> Plan | None:
        try:
            planner = self._planner_of(self._with_shapes(shapes))
            planner.ask(self._heuristics)
            planner.keep(self._filters, self._workspace_limit)
            return planner.plans[planner.build(build_plan_policy.HEURISTICS_CHOICE, self._wrapper())]
        except WeftError:
            return None

    def _with_shapes(self, shapes: Mapping[int, Shape]) -> list[Descriptor]:
        """The finalized operations of tensors with other shapes."""
        lowering = Lowering(self._compute_type, self._taken(shapes))
        return [lowering.operation(operation) for operation in self._operations]

    def _taken(self, given: Mapping[int, Shape]) -> dict[Tensor, Shape]:
        """The given shapes, by uid, and for results the properties that were set; the rest is inferred
        again."""
        taken = {t: ((), ()) if t._is_virtual else shape for t, shape in self._given_shapes.items()}
        taken |= dict.fromkeys(self._nested_results(), ((), ()))
        return taken | {t: given[t.get_uid()] for t in self._tensors if t._uid in given}

    def set_io_tuples(self, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        """Names the tensors that calls accept and return by position: by their names, or "matmul_0::A".

        >>> import numpy as np, weft
        >>> g = weft.Graph(handle=weft.create_handle("cpu"))
        >>> a, b = (g.tensor([2], data_type="f32", name=name) for name in "ab")
        >>> y = g.sub(a, b, name="difference")
        >>> g.set_io_tuples(["b", "a"], ["difference::y"])(np.float32([1, 2]), np.float32([5, 6]))
        array([4., 4.], dtype=float32)
        """
        self._io_names = (tuple(inputs), tuple(outputs))
        if self._plan is not None:
            self._use(self._wrapper()(self._plan.descriptor, self._plan.descriptor_with_code))
        return self

    def _find(self, key: Tensor | int | str) -> Tensor:
        """A tensor by itself, its uid, its name, or operation::key. The key may also be IN_0, ... or OUT_0,
        ..., the position among the operation's operands or results."""
        if isinstance(key, Tensor):
            return key
        if isinstance(key, int):
            return self.query_tensor_attributes_of_uid(key)
        named = [tensor for tensor in self._tensors if tensor._name == key]
        if len(named) > 1:
            raise BadParameterError(
                f"{self._label}: {len(named)} tensors are named '{key}'. Give them different names."
            )
        if named:
            return named[0]
        owner, _, row = key.partition("::")
        for operation in self._operations:
            bound = {**operation.by_position(), **operation.values, **operation.results}.get(row)
            if operation.name == owner and isinstance(bound, Tensor):
                return bound
        names = ", ".join(tensor._name for tensor in self._tensors if tensor._name)
        raise BadParameterError(f"{self._label}: no tensor is named '{key}'. It has {names}.")

    # ---- Saving ----

    def serialize(self, code: bool = False) -> bytes:
        """The selected plan as bytes for `deserialize` of another graph. With `code`, they include the
        machine code of its kernels, so that a machine with a GPU of that architecture runs it without
        compiling."""
        return self.plan.serialize(code)

    def deserialize(self, *arguments: Any, handle: Handle | None = None, code: bool = False) -> Graph:
        """Loads a saved plan: deserialize(data) or deserialize(handle, data); without a handle, on the first
        device that its engine supports. The graph then runs it by uids and names. code: use the machine code
        in the data; do so only with plans from people you trust. Without it, kernels are compiled again.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> y = g.neg(np.float32([1, 2]), name="negated")
        >>> data = g.build().serialize()
        >>> weft.Graph().deserialize(weft.create_handle("cpu"), data)(np.float32([3, 4]))
        array([-3., -4.], dtype=float32)
        """
        *before, data = arguments
        handle = before[0] if before else handle
        self._handle = handle or self._handle
        return self.load(data, {}, code)

    def load(self, data: bytes, values: Mapping[int, Any], code: bool = False) -> Graph:
        """Like deserialize, on the graph's handle or described device, with the values of constants by
        uid."""
        descriptor = Descriptor(descriptor_type.EXECUTION_PLAN_DESCRIPTOR)
        if self._handle is not None:
            descriptor.set(attribute_name.EXECUTION_PLAN_HANDLE, "HANDLE", [self._handle.pointer])
        elif self._device_property is not None:
            properties = [self._device_property.descriptor]
            descriptor.set(attribute_name.EXECUTION_PLAN_DEVICEPROP, "BACKEND_DESCRIPTOR", properties)
        if code:
            descriptor.set(attribute_name.EXECUTION_PLAN_WITH_CODE_EXT, "BOOLEAN", [True])
        descriptor.set(attribute_name.EXECUTION_PLAN_JSON_REPRESENTATION, "CHAR", bytes(data))
        with Waiting(f"{self._label}: compiling kernels of a saved plan"):
            descriptor.finalize()
        plan = self.plan_type(descriptor, values=values, place=self._device_property or self._handle)
        self._tensors = []
        for described in plan.report["tensors"]:
            tensor = self.tensor_type(self, described["name"] or "")
            tensor._uid, tensor._is_virtual = described["uid"], described["virtual"]
            tensor._dims, tensor._strides = tuple(described["dims"]), tuple(described["strides"])
            tensor._data_type, tensor._by_value = (
                dtypes.data_type_of(described["type"]),
                described["by_value"],
            )
            self._tensors.append(tensor)
        self.is_validated = True
        self._use(plan)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the selected plan with the values of constants."""
        return Graph._loaded, (self.serialize(), self.plan.values)

    @staticmethod
    def _loaded(data: bytes, values: Mapping[int, Any]) -> Graph:
        return Graph().load(data, values)

    # ---- Context and text -----

    def __enter__(self) -> Graph:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None and self._plan is None:
            self.build()

    @property
    def _label(self) -> str:
        return f"graph '{self.name}'" if self.name else "graph"

    def __repr__(self) -> str:
        results = self._results()
        if self._operations:
            inputs = [t for t in self._tensors if t.producer is None and t.is_read and not t.is_constant]
            is_marked = any(t._output for t in self._tensors)
            outputs = [t for t in results if (t._output if is_marked else not t.is_read)]
            outputs += [t for t in self._tensors if t.is_written]
        else:
            slots = self._plan.slots if self._plan is not None else ()
            inputs = [t for t in self._tensors if any(s.uid == t._uid and not s.is_output for s in slots)]
            outputs = [t for t in self._tensors if any(s.uid == t._uid and s.is_output for s in slots)]
        state = "built" if self._plan is not None else "validated" if self.is_validated else "not built"
        called = f"'{self.name}': " if self.name else ""
        counts = {"op": len(self._operations), "input": len(inputs), "output": len(outputs)}
        return f"Graph({called}{', '.join(_count(number, what) for what, number in counts.items())}, {state})"


def _overrides(uids: Sequence[int], shapes: Any, strides: Any) -> Overrides:
    """The shape overrides of execute as integers; strides are contiguous if not given."""
    dims = [arguments.wholes(shape, "execute: override shape") for shape in shapes or ()]
    if strides:
        steps = [arguments.wholes(stride, "execute: override strides") for stride in strides]
    else:
        steps = [buffers.packed_strides(shape) for shape in dims]
    return arguments.wholes(uids, "execute: override_uids"), dims, steps


def _key_text(value: Any) -> str:
    """A value of an operation as text for Graph.key; tensors are represented by their uids."""
    if isinstance(value, Tensor):
        return f"uid {value._uid}"
    if isinstance(value, Nested):
        return _key_text([value.operations, list(value.ends.values()), value.sources])
    if isinstance(value, Operation):
        values = {**value.values, **value.results}
        words = [f"{key}={_key_text(item)}" for key, item in sorted(values.items())]
        return f"{value.kind} {value.compute_data_type} {', '.join(words)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_key_text, value))}]"
    return repr(value)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
