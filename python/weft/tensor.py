"""Tensors of a graph: the operands and results of operations, without memory. Properties of results that are
left unset are inferred when the graph is validated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from weft import arguments, dtypes
from weft.enums import data_type, tensor_reordering
from weft.errors import BadParameterError

if TYPE_CHECKING:
    from weft.graphs.recorded import RecordedGraph


class Array(Protocol):
    """Memory of another library: a NumPy array, a torch tensor, a CuPy array, or any object with
    __dlpack__."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """A DLPack capsule of the memory."""


Operand: TypeAlias = "Tensor | Array | float"
"""An operand of an operation: a tensor of the graph, or an array or number, which becomes one."""

Rational: TypeAlias = "int | Fraction | tuple[int, int]"
"""An integer or a fraction."""

ScoreModifier: TypeAlias = "Callable[[Any, Tensor], Tensor]"
"""Adds operations to a graph that read attention's scores, or their gradient, and returns the last result."""


class Tensor:
    """An operand: shape, strides, data type, identity. Created by Graph.tensor and by operations; setters can
    be chained.

    >>> import weft
    >>> weft.Graph().tensor([2, 3], data_type="f32", name="x")
    Tensor('x', f32[2,3])
    >>> weft.Graph().tensor().set_dim([3, 4]).set_stride([1, 3]).set_data_type("bf16").set_uid(5)
    Tensor(uid=5, bf16[3,4])
    """

    __slots__ = (
        "_alignment",
        "_by_value",
        "_data_type",
        "_dims",
        "_is_virtual",
        "_name",
        "_output",
        "_ragged_multiplier",
        "_ragged_offset",
        "_reordering",
        "_strides",
        "_uid",
        "_vector",
        "constant",
        "graph",
        "is_read",
        "is_written",
        "number",
        "producer",
        "value",
    )

    def __init__(self, graph: RecordedGraph, name: str = "", producer: Any = None) -> None:
        self.graph = graph
        self.producer = producer
        self.is_read = False  # by an operation
        self.is_written = False  # by an operation that did not create it
        self.value: Any = None  # the array or number that it was created from
        self.constant: bytes | None = None
        self.number: float | None = None  # an operand whose type follows from the other operands
        self._name = arguments.text(name, "tensor: name")
        self._dims: tuple[int, ...] = ()
        self._strides: tuple[int, ...] = ()
        self._data_type: data_type | None = None
        self._uid: int | None = None
        self._is_virtual = producer is not None
        self._output: bool | None = None
        self._by_value = False
        self._reordering = tensor_reordering.NONE
        self._ragged_offset: Tensor | None = None
        self._ragged_multiplier = 1
        self._alignment: int | None = None
        self._vector: tuple[int, int] | None = None

    # ---- Properties ----

    @property
    def name(self) -> str:
        """The user's name for the tensor."""
        return self._name

    @property
    def uid(self) -> int | None:
        """The number by which buffers are bound; assigned at validation if none was set."""
        return self._uid

    @property
    def dims(self) -> tuple[int, ...]:
        """Extent of each dimension; empty until it is set or inferred."""
        return self._dims

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance between consecutive elements along each dimension; empty until set or inferred."""
        return self._strides

    @property
    def dtype(self) -> data_type | None:
        """The data type; None until it is set or inferred."""
        return self._data_type

    @property
    def is_virtual(self) -> bool:
        """True if the tensor is only passed between operations and has no memory."""
        return self._is_virtual

    @property
    def is_by_value(self) -> bool:
        """True if the tensor is a scalar on the host."""
        return self._by_value

    @property
    def is_constant(self) -> bool:
        """True if the tensor is a number that is part of the plan."""
        return self.constant is not None or self.number is not None

    @property
    def label(self) -> str:
        """The name of the tensor in messages."""
        return arguments.label("tensor", self._name)

    # ---- Getters and setters with cuDNN's names -----------------

    def _changeable(self) -> Tensor:
        if self.graph.is_validated:
            raise BadParameterError(
                f"{self!r}: the graph is validated, so its tensors cannot change. Set it before validate() "
                "or build()."
            )
        return self

    def get_name(self) -> str:
        """The user's name for the tensor."""
        return self._name

    def set_name(self, name: str) -> Tensor:
        """Sets the tensor's name, which messages, plans and diagrams use."""
        self._changeable()._name = arguments.text(name, f"{self.label}: name")
        return self

    def get_uid(self) -> int:
        """The number by which buffers are bound; -1 until it is assigned."""
        return -1 if self._uid is None else self._uid

    def set_uid(self, uid: int) -> Tensor:
        """Sets the tensor's number, which must be unique in the graph."""
        self._changeable()._uid = arguments.integer(uid, f"{self.label}: uid")
        return self

    def get_data_type(self) -> data_type:
        """The data type; NOT_SET until it is set or inferred."""
        return data_type.NOT_SET if self._data_type is None else self._data_type

    def set_data_type(self, type_: dtypes.DataTypeLike) -> Tensor:
        """Sets the type of the elements."""
        self._changeable()._data_type = dtypes.data_type_of(type_)
        return self

    def get_dim(self) -> list[int]:
        """Extent of each dimension; empty until it is set or inferred."""
        return list(self._dims)

    def set_dim(self, dim: Sequence[int]) -> Tensor:
        """Sets the extents, in elements."""
        self._changeable()._dims = arguments.integers(dim, f"{self.label}: dim")
        return self

    def get_stride(self) -> list[int]:
        """Distance between consecutive elements along each dimension; empty until set or inferred."""
        return list(self._strides)

    def set_stride(self, stride: Sequence[int]) -> Tensor:
        """Sets the strides, in elements."""
        self._changeable()._strides = arguments.integers(stride, f"{self.label}: stride")
        return self

    def get_is_virtual(self) -> bool:
        """True if the tensor is only passed between operations."""
        return self._is_virtual

    def set_is_virtual(self, is_virtual: bool) -> Tensor:
        """Sets whether the tensor is only passed between operations and has no memory."""
        self._changeable()._is_virtual = is_virtual
        if self.producer is not None:
            self._output = not is_virtual
        return self

    def get_output(self) -> bool:
        """True if the tensor is an output of the graph."""
        return self.producer is not None and not self._is_virtual

    def set_output(self, output: bool) -> Tensor:
        """Makes an operation's result an output of the graph, with memory.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> y = g.neg(np.float32([1, 2])).set_output(True)  # read below, so otherwise only an intermediate
        >>> z = g.add(y, y).set_output(True)
        >>> g()
        (array([-1., -2.], dtype=float32), array([-2., -4.], dtype=float32))
        """
        self._changeable()._output = output
        self._is_virtual = not output
        return self

    def get_is_pass_by_value(self) -> bool:
        """True if the tensor is a scalar on the host."""
        return self._by_value

    def set_is_pass_by_value(self, is_pass_by_value: bool) -> Tensor:
        """Makes the tensor a scalar whose value is read on the host when the plan runs."""
        self._changeable()._by_value = is_pass_by_value
        return self

    def get_reordering_type(self) -> tensor_reordering:
        """The reordering of the storage beyond strides."""
        return self._reordering

    def set_reordering_type(self, reordering_type: tensor_reordering) -> Tensor:
        """Sets the reordering of the storage beyond strides."""
        self._changeable()._reordering = tensor_reordering(reordering_type)
        return self

    def get_ragged_offset(self) -> Tensor | None:
        """The tensor of offsets at which each batch entry starts."""
        return self._ragged_offset

    def set_ragged_offset(self, ragged_offset: Tensor | None) -> Tensor:
        """Makes batch entries start at the offsets in another tensor, in elements."""
        self._changeable()._ragged_offset = ragged_offset
        if ragged_offset is not None:
            ragged_offset.is_read = True
        return self

    def get_ragged_offset_multiplier(self) -> int:
        """The factor by which ragged offsets are multiplied."""
        return self._ragged_multiplier

    def set_ragged_offset_multiplier(self, multiplier: int) -> Tensor:
        """Sets the factor by which ragged offsets are multiplied."""
        self._changeable()._ragged_multiplier = arguments.integer(multiplier, f"{self.label}: multiplier")
        return self

    def get_alignment(self) -> int:
        """The alignment in bytes of every address bound to the tensor."""
        return 16 if self._alignment is None else self._alignment

    def set_alignment(self, alignment: int) -> Tensor:
        """Guarantees an alignment of all addresses, in bytes; a power of two."""
        self._changeable()._alignment = arguments.integer(alignment, f"{self.label}: alignment")
        return self

    def get_vector_count_and_dimension(self) -> tuple[int, int]:
        """The number of adjacent elements that form one vector, and the dimension that is split; (1, -1) for
        none."""
        return self._vector or (1, -1)

    def set_vector_count_and_dimension(self, count: int, dimension: int) -> Tensor:
        """Stores this many elements of a dimension as one vector; strides then count vectors."""
        self._changeable()._vector = (
            arguments.integer(count, f"{self.label}: vector count"),
            arguments.integer(dimension, f"{self.label}: vector dimension"),
        )
        return self

    # ---- Text -----

    @property
    def description(self) -> str:
        """Data type and shape: "bf16[4,8]"."""
        kind = dtypes.of(self._data_type).name if self._data_type is not None else ""
        return f"{kind}[{','.join(map(str, self._dims)) if self._dims else '?'}]"

    def __repr__(self) -> str:
        parts = [repr(self._name)] if self._name else []
        parts += [f"uid={self._uid}"] if self._uid is not None else []
        parts += [self.description]
        parts += ["virtual"] if self._is_virtual else []
        parts += ["by value"] if self._by_value else []
        return f"Tensor({', '.join(parts)})"
