"""Lowers Python's tensors and operations to descriptors of the C API, attribute by attribute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from weft_cffi._weft import ffi

from weft import backend, dtypes, enums
from weft.arguments import counted, formatted, integer, real
from weft.backend import Descriptor, Row
from weft.enums import attribute_name, data_type, descriptor_type
from weft.errors import BadParameterError, WeftError
from weft.ops import SPATIAL
from weft.tensor import Tensor

Shape = tuple[Sequence[int], Sequence[int]]
"""Dims and strides."""

NUMERIC_KEYS = ("x", "b", "dy")
"""The operands of a pointwise operation that determine the type of a Python number; a mask does not."""


class Operation(NamedTuple):
    """An operation as requested: operands and options by attribute key."""

    kind: str
    name: str
    values: dict[str, Any]
    results: dict[str, Tensor]
    compute_data_type: data_type | None

    def operands(self) -> list[Tensor]:
        """The given tensors, in order."""
        found: list[Tensor] = []
        for value in self.values.values():
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, list):
                found += [item for item in value if isinstance(item, Tensor)]
        return found

    def by_position(self) -> dict[str, Tensor]:
        """Operands and results as IN_0, ..., OUT_0, ..."""
        inputs = [tensor for tensor in self.operands() if not tensor.is_written]
        tensors = {f"IN_{i}": tensor for i, tensor in enumerate(inputs)}
        return tensors | {f"OUT_{i}": tensor for i, tensor in enumerate(self.results.values())}


@dataclass
class Nested:
    """Pointwise operations that are part of another operation: the score modifier of attention."""

    operations: list[Operation]
    # By the attributes that receive their uids. They have the shape of the scores, or are computed from them.
    ends: dict[str, Tensor]
    sources: list[Tensor]  # the tensors whose gradients are requested
    queries: Tensor
    keys: Tensor
    table: Any  # the page table of the keys

    def operands(self) -> list[Tensor]:
        """The tensors that it reads in addition to the scores, in order."""
        computed = {tensor for operation in self.operations for tensor in operation.results.values()}
        read = [tensor for operation in self.operations for tensor in operation.operands()]
        return [tensor for tensor in dict.fromkeys(read) if tensor not in {*computed, *self.ends.values()}]


class Lowering:
    """Creates the descriptors of one graph's operations; that of a tensor is created at its first use.
    `shapes` overrides dims and strides of tensors."""

    def __init__(
        self, compute_data_type: data_type | None, shapes: Mapping[Tensor, Shape] | None = None
    ) -> None:
        self.tensors: dict[Tensor, Descriptor] = {}
        self._compute_data_type = compute_data_type
        self._shapes = shapes or {}

    def tensor(self, tensor: Tensor) -> Descriptor:
        """The finalized descriptor of a tensor."""
        if tensor in self.tensors:
            return self.tensors[tensor]
        tensor_ = Descriptor(descriptor_type.TENSOR_DESCRIPTOR)
        tensor_.set(attribute_name.TENSOR_UNIQUE_ID, "INT64", [tensor._uid])
        if tensor._name:
            tensor_.set(attribute_name.NAME_EXT, "CHAR", tensor._name)
        dims, strides = self._shapes.get(tensor, (tensor._dims, tensor._strides))
        if dims:
            tensor_.set(attribute_name.TENSOR_DIMENSIONS, "INT64", dims)
        if strides:
            tensor_.set(attribute_name.TENSOR_STRIDES, "INT64", strides)
        elif tensor.graph.has_cudnn_strides:
            tensor_.set(attribute_name.TENSOR_CUDNN_STRIDES_EXT, "BOOLEAN", [True])
        if tensor._data_type is not None:
            tensor_.set(attribute_name.TENSOR_DATA_TYPE, "DATA_TYPE", [tensor._data_type])
        if tensor._is_virtual:
            tensor_.set(attribute_name.TENSOR_IS_VIRTUAL, "BOOLEAN", [True])
        memory = None
        if tensor.constant is not None:
            memory = ffi.new("char[16]", tensor.constant)
            tensor_.set(attribute_name.TENSOR_CONSTANT_VALUE, "VOID_PTR", [memory])
        elif tensor._by_value:
            tensor_.set(attribute_name.TENSOR_IS_BY_VALUE, "BOOLEAN", [True])
        if tensor._alignment is not None:
            tensor_.set(attribute_name.TENSOR_BYTE_ALIGNMENT, "INT64", [tensor._alignment])
        if tensor._vector is not None:
            tensor_.set(attribute_name.TENSOR_VECTOR_COUNT, "INT64", [tensor._vector[0]])
            tensor_.set(attribute_name.TENSOR_VECTORIZED_DIMENSION, "INT64", [tensor._vector[1]])
        if tensor._reordering:
            tensor_.set(attribute_name.TENSOR_REORDERING_MODE, "TENSOR_REORDERING_MODE", [tensor._reordering])
        if tensor._ragged_offset is not None:
            offset = self.tensor(tensor._ragged_offset)
            tensor_.set(attribute_name.TENSOR_RAGGED_OFFSET_DESC, "BACKEND_DESCRIPTOR", [offset])
            multiplier = [tensor._ragged_multiplier]
            tensor_.set(attribute_name.TENSOR_RAGGED_OFFSET_MULTIPLIER, "INT64", multiplier)
        tensor_.finalize()
        del memory  # finalize copied the constant
        self.tensors[tensor] = tensor_
        return tensor_

    def shape_of(self, tensor: Tensor) -> Shape:
        """The current dims and strides of a tensor, including inferred ones."""
        descriptor = self.tensors[tensor]
        dims = descriptor.get(attribute_name.TENSOR_DIMENSIONS, "INT64")
        return tuple(dims), tuple(descriptor.get(attribute_name.TENSOR_STRIDES, "INT64"))

    def operation(self, operation: Operation) -> Descriptor:
        """The finalized descriptor of an operation; the library infers its results."""
        schema = backend.operations()[operation.kind]
        self._type_numbers(operation)
        self._check_inputs(operation, schema.rows)
        descriptor = Descriptor(schema.kind)
        descriptor.set(attribute_name.NAME_EXT, "CHAR", operation.name)
        values = {**operation.values, **operation.results}
        compute = operation.compute_data_type
        compute = self._compute_data_type if compute is None else compute
        if compute is not None and "compute_data_type" in schema.rows:
            values["compute_data_type"] = compute
        if "subgraph" in values:
            values |= self._nested(values["subgraph"], values)
        parameters: dict[str, Any] = {}
        for key, value in values.items():
            if key in SPATIAL and not isinstance(value, (list, tuple)):
                value = [value] * self._spatial_rank(operation)
            rows = schema.rows[key]
            if schema.parameters is not None and rows[0].is_parameter:
                parameters[key] = value
            else:
                row, elements = self._row(rows, key, value, operation)
                descriptor.set(row.name, row.type, elements)
        if schema.parameters is not None and schema.parameters_row is not None:
            shared = self._parameters(schema, parameters, operation)
            descriptor.set(schema.parameters_row, "BACKEND_DESCRIPTOR", [shared])
        descriptor.finalize()
        return descriptor

    def _parameters(
        self, schema: backend.Operation, values: Mapping[str, Any], operation: Operation
    ) -> Descriptor:
        """The finalized descriptor of an operation's parameters, such as a pointwise mode. Operations with
        equal parameters share it."""
        key = (operation.kind, *((name, *_exact_key(value)) for name, value in values.items()))
        known = _shared_parameters.get(key)
        if known is None:
            assert schema.parameters is not None
            known = Descriptor(schema.parameters)
            for name, value in values.items():
                row, elements = self._row(schema.rows[name], name, value, operation)
                known.set(row.name, row.type, elements)
            known.finalize()
            _remember(_shared_parameters, key, known)
        return known

    def _nested(self, nested: Nested, values: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes of a nested operation: its finalized graph, and its inputs and outputs."""
        (batch, heads, queries, _), keys = self._dims_of(nested.queries), self._dims_of(nested.keys)[2]
        if nested.table is not None:
            most = values.get("paged_attention_max_seq_len_kv")
            keys = self._dims_of(values["paged_attention_k_table"])[2] * keys if most is None else most
        shape = (batch, heads, queries, keys), (heads * queries * keys, queries * keys, keys, 1)
        for tensor in nested.ends.values():
            if tensor.producer is None:
                self._shapes = {**self._shapes, tensor: shape}
                is_double = data_type.DOUBLE in self._types_of(nested.queries)
                tensor._data_type = data_type.DOUBLE if is_double else data_type.FLOAT
        graph = Descriptor(descriptor_type.OPERATIONGRAPH_DESCRIPTOR)
        operations = [self.operation(operation) for operation in nested.operations]
        graph.set(attribute_name.OPERATIONGRAPH_OPS, "BACKEND_DESCRIPTOR", operations)
        graph.finalize()
        ends = {key: tensor._uid for key, tensor in nested.ends.items()}
        sources = {"subgraph_gradient_uids": [tensor._uid for tensor in nested.sources]}
        return ends | (sources if nested.sources else {}) | {"subgraph": graph}

    def _dims_of(self, tensor: Tensor) -> Sequence[int]:
        dims = self.tensor(tensor).get(attribute_name.TENSOR_DIMENSIONS, "INT64")
        if len(dims) != 4:
            raise BadParameterError(
                f"{tensor.label}: it has {counted(len(dims), 'dim')}, and attention with score_mod "
                "expects [B, H, S, D]. Reshape it."
            )
        return list(dims)

    def _spatial_rank(self, operation: Operation) -> int:
        """The number of dims of the operands after batch and channels; at least 1, because the library
        reports missing ones."""
        dims = [self.tensor(t).get(attribute_name.TENSOR_DIMENSIONS, "INT64") for t in operation.operands()]
        return max(1, *(len(each) - 2 for each in dims))

    def _check_inputs(self, operation: Operation, rows: Mapping[str, Sequence[Row]]) -> None:
        """Rejects operands without a shape or type, with a message in terms of Python's API. Results of
        earlier operations have both at this point."""
        for key, value in operation.values.items():
            if rows[key][0].role == "input":
                for tensor in value if isinstance(value, list) else [value]:
                    if isinstance(tensor, Tensor) and tensor.producer is None:
                        self._check_input(tensor, f"{operation.kind} '{operation.name}': {key}")

    def _check_input(self, tensor: Tensor, where: str) -> None:
        descriptor, (dims, *_) = self.tensor(tensor), self._shapes.get(tensor, (tensor._dims,))
        if not dims and not descriptor.get(attribute_name.TENSOR_DIMENSIONS, "INT64"):
            raise BadParameterError(f"{where}, {tensor.label}, has no dims. Give dim= to its tensor().")
        if not self._types_of(tensor):
            remedy = "Give data_type= to its tensor(), or io_data_type= to the graph."
            raise BadParameterError(f"{where}, {tensor.label}, has no data type. {remedy}")

    def _type_numbers(self, operation: Operation) -> None:
        """Assigns types to the Python numbers among the operands: in a pointwise operation the type of the
        other operands, otherwise that of the Python number."""
        numbers = [(t, t.number) for t in operation.operands() if t.number is not None]
        others: list[data_type] = []
        if numbers and operation.kind == "pointwise":
            operands = [t for key in NUMERIC_KEYS if isinstance(t := operation.values.get(key), Tensor)]
            others = [type_ for t in operands if t.number is None for type_ in self._types_of(t)]
        for tensor, number in numbers:
            type_ = dtypes.type_of_number(number, others)
            tensor._data_type, tensor.constant = type_, dtypes.scalar_bytes(type_, number)

    def _types_of(self, tensor: Tensor) -> list[data_type]:
        """The type of a tensor as a list; empty if it has none, which the library reports."""
        if tensor._data_type is not None and tensor._data_type >= 0:
            return [tensor._data_type]
        types = self.tensor(tensor).get(attribute_name.TENSOR_DATA_TYPE, "DATA_TYPE")
        return [data_type(number) for number in types if number >= 0]

    def _row(
        self, rows: Sequence[Row], key: str, value: Any, operation: Operation
    ) -> tuple[Row, Sequence[Any]]:
        """Selects the row of an attribute that accepts a value, and converts the value to its elements."""
        if len(rows) == 1 and isinstance(value, Tensor):
            return rows[0], [self.tensor(value)]
        if isinstance(value, (str, int)):
            return known_option(operation.kind, key, rows, value, f"{operation.kind} '{operation.name}'")
        values = _listed(rows, value)
        if values and isinstance(values[0], Tensor):
            row = next(row for row in rows if row.type == "BACKEND_DESCRIPTOR")
            return row, [self.tensor(item) for item in values]
        return option(rows, value, f"{operation.kind} '{operation.name}'")


_REMEMBERED = 1024
"""The number of entries at which a cache is cleared."""

_shared_parameters: dict[Any, Descriptor] = {}
_options: dict[Any, tuple[Row, Sequence[Any]]] = {}


def _remember(cache: dict[Any, Any], key: Any, value: Any) -> None:
    if len(cache) >= _REMEMBERED:
        cache.clear()
    cache[key] = value


def _exact_key(value: Any) -> tuple[Any, ...]:
    """Equal for values that are the same to the library, unlike 0.0 and -0.0, or 1 and True."""
    return (type(value), value) if isinstance(value, (str, int)) else (type(value), repr(value))


def known_option(
    kind: str, key: str, rows: Sequence[Row], value: Any, operation: str
) -> tuple[Row, Sequence[Any]]:
    """`option` of an attribute of a kind of operation; remembers names, enumerators and integers."""
    if not isinstance(value, (str, int)):
        return option(rows, value, operation)
    exact = (kind, key, type(value), value)
    known = _options.get(exact)
    if known is None:
        known = option(rows, value, operation)
        _remember(_options, exact, known)
    return known


def _listed(rows: Sequence[Row], value: Any) -> list[Any]:
    is_list = rows[0].storage != "value"
    return list(value) if is_list and isinstance(value, (list, tuple)) else [value]


def option(rows: Sequence[Row], value: Any, operation: str) -> tuple[Row, Sequence[Any]]:
    """Selects the row of an option that accepts a value other than a tensor, and converts it to its
    elements."""
    values = _listed(rows, value)
    row = rows[0] if len(rows) == 1 else next((r for r in rows if r.type != "BACKEND_DESCRIPTOR"), rows[0])
    if row.type == "DATA_TYPE" and isinstance(value, data_type):
        return row, values
    what = f"{operation}: {row.key}"
    if row.type in ("INT64", "INT32"):
        return row, [integer(int(item) if isinstance(item, IntEnum) else item, what) for item in values]
    if row.type in ("FLOAT", "DOUBLE"):
        return row, [real(item, what) for item in values]
    try:
        return row, elements_of(row, values)
    except WeftError as error:
        raise BadParameterError(f"{what}: {error}") from None
    except (TypeError, ValueError, AttributeError):
        kind = f"{row.type}{'[]' if row.storage != 'value' else ''}"
        raise BadParameterError(f"{what} is {formatted(value)}. Give a value of type {kind}.") from None


def elements_of(row: Row, values: Sequence[Any]) -> Sequence[Any]:
    """Converts values to the row's element type if that is not numeric."""
    if row.type == "CHAR":
        return str(values[0])
    if row.type == "DATA_TYPE":
        return [dtypes.data_type_of(value) for value in values]
    if row.type == "FRACTION":
        pairs = [value if isinstance(value, tuple) else (value, 1) for value in values]
        return [[n.numerator * getattr(d, "denominator", 1), n.denominator * d.numerator] for n, d in pairs]
    if row.type in enums.ENUM_OF_TYPE:
        return [enums.member(enums.ENUM_OF_TYPE[row.type], value) for value in values]
    return list(values)
