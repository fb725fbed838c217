"""Tensors and operations of a graph, and their validation. The methods that add operations are in ops.py
(generated from the library) and composite_ops.py."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from weft import arguments, backend, buffers, dtypes, enums
from weft.backend import Descriptor, Row
from weft.composite_ops import CompositeOps, computed_results, is_statistic
from weft.enums import attribute_name, data_type, device_kind
from weft.errors import BadParameterError, NotSupportedError
from weft.lowering import Lowering, Nested, Operation, Shape, known_option
from weft.tensor import Tensor

if TYPE_CHECKING:
    from weft.dtypes import DataTypeLike


class RecordedGraph(CompositeOps):
    """Tensors, and operations on them. After validation, neither can be added."""

    tensor_type: type[Tensor] = Tensor
    """The class of tensors."""
    has_cudnn_strides = False
    """True if results with unset strides get those of cuDNN's frontend; the rules are in docs/cudnn.md."""

    def __init__(
        self,
        name: str,
        io_data_type: DataTypeLike | None,
        intermediate_data_type: DataTypeLike | None,
        compute_data_type: DataTypeLike | None,
    ) -> None:
        self.name = name
        self.is_validated = False
        self._io_type = dtypes.data_type_of(io_data_type)
        self._intermediate_type = dtypes.data_type_of(intermediate_data_type)
        self._compute_type = dtypes.data_type_of(compute_data_type)
        self._tensors: list[Tensor] = []
        self._operations: list[Operation] = []
        self._seen_device: tuple[device_kind, int] | None = None
        self._op_descriptors: list[Descriptor] = []
        self._given_shapes: dict[Tensor, Shape] = {}

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
        if uid is not None and arguments.integer(uid, f"{tensor.label}: uid") >= 0:
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
                f"tensor_scalar: the value is {value!r}, which {dtypes.of(kind).name} cannot represent. Give "
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
                    f"{operation}: {key}, {value!r}, belongs to another graph. Create it with this graph's "
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
            kept[key] = self._as_operand(operation, value, rows[key], where, key)
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
                    f"{where}: {hook} returned {arguments.formatted(tensor)}. Return the result of its "
                    "last operation."
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

    def _as_operand(self, kind: str, value: Any, rows: list[Row], operation: str, key: str) -> Any:
        """Converts a value to the form stored in its attribute; operands become tensors."""
        if rows[0].role not in ("input", "output") and rows[-1].role not in ("input", "output"):
            if all(row.type != "BACKEND_DESCRIPTOR" for row in rows):
                known_option(kind, key, rows, value, operation)  # rejects the value before the graph is built
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

    def _results(self) -> list[Tensor]:
        return [tensor for operation in self._operations for tensor in operation.results.values()]

    def _nested_results(self) -> list[Tensor]:
        """The results of the operations of score modifiers."""
        parts = [o.values["subgraph"] for o in self._operations if "subgraph" in o.values]
        return [t for part in parts for operation in part.operations for t in operation.results.values()]

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
                    f"{tensor.label}: set_output(True) was called, but it is an input: no operation computes "
                    "it. Call it on the result of an operation."
                )
        if not any(tensor._output for tensor in self._tensors):
            for tensor in self._results():
                tensor._is_virtual = tensor.is_read or tensor._output is False

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

    @property
    def _label(self) -> str:
        return f"graph '{self.name}'" if self.name else "graph"


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
