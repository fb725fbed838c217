"""Tensors with cuDNN's properties: they may be set until the operation graph is built, even after validate(),
which is then repeated."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from weft import dtypes, tensor
from weft.arguments import counted
from weft.cudnn import enums
from weft.errors import BadParameterError

if TYPE_CHECKING:
    from weft.cudnn.graphs import pygraph


class Tensor(tensor.Tensor):
    """An operand of a graph, created by pygraph.tensor and by operations; setters can be chained."""

    __slots__ = ("has_boolean_of_graph", "is_late")

    graph: pygraph

    def __init__(self, graph: pygraph, name: str = "", producer: Any = None) -> None:
        super().__init__(graph, name, producer)
        self.is_late = False  # created after the graph was built: no operation uses it
        self.has_boolean_of_graph = False  # BOOLEAN; the operations determine whether it is a bit or a byte

    # ---- Setters ----

    def set_uid(self, uid: Any) -> Tensor:
        """Sets the tensor's number, which must be unique in the graph: an int, or a member of an enumeration
        of ints."""
        super().set_uid(int(uid) if isinstance(uid, IntEnum) else uid)
        return self

    def _changeable(self) -> Tensor:
        if self.graph.is_built and not self.is_late:
            raise BadParameterError(
                f"{self!r}: the operation graph is built, so its tensors cannot change. Set it before "
                "build_operation_graph() or build()."
            )
        self.graph._reopen()
        return self

    def set_data_type(self, dtype: Any) -> Tensor:
        """Sets the type of the elements: a member of data_type, or a dtype of torch or NumPy."""
        self._changeable()._data_type = enums.weft_type(dtype)
        self.has_boolean_of_graph = dtype is enums.data_type.BOOLEAN
        return self

    def set_output(self, value: bool) -> Tensor:
        """Makes an operation's result an output of the graph, with memory."""
        super().set_output(value)
        return self

    def set_is_virtual(self, value: bool) -> Tensor:
        """Sets whether the tensor is only passed between operations and has no memory."""
        super().set_is_virtual(value)
        return self

    def set_is_pass_by_value(self, value: bool) -> Tensor:
        """Makes the tensor a scalar whose value is read on the host when the plan runs."""
        super().set_is_pass_by_value(value)
        return self

    def set_reordering_type(self, reordering_type: Any) -> Tensor:
        """Sets the reordering of the storage beyond strides."""
        super().set_reordering_type(enums.to_weft(reordering_type or enums.tensor_reordering.NONE))
        return self

    def set_alignment_value(self, value: int) -> Tensor:
        """Guarantees an alignment of all addresses, in bytes. 1 guarantees nothing beyond Weft's own
        expectation; memory that is aligned only to its elements is always accepted."""
        if value != 1:
            self.set_alignment(value)
        return self

    # ---- Properties and getters ----

    def get_dim(self) -> list[int]:
        """Extent of each dimension; empty until it is set or inferred."""
        self.graph._revalidate()
        return super().get_dim()

    def get_stride(self) -> list[int]:
        """Distance between consecutive elements along each dimension; empty until set or inferred."""
        self.graph._revalidate()
        return super().get_stride()

    def get_data_type(self) -> Any:
        """The data type; NOT_SET until it is set or inferred."""
        self.graph._revalidate()
        return enums.cudnn_type(self._data_type)

    @property
    def data_type(self) -> Any:
        """Equivalent to get_data_type()."""
        return self.get_data_type()

    def get_reordering_type(self) -> Any:
        """The reordering of the storage beyond strides."""
        return enums.from_weft(self._reordering)

    @property
    def reordering_type(self) -> Any:
        """Equivalent to get_reordering_type()."""
        return self.get_reordering_type()

    @property
    def alignment_value(self) -> int:
        """The alignment in bytes of every address bound to the tensor."""
        return self.get_alignment()

    @property
    def ragged_offset(self) -> tensor.Tensor | None:
        """The tensor of offsets at which each batch entry starts."""
        return self._ragged_offset

    @property
    def ragged_offset_multiplier(self) -> int:
        """The factor by which ragged offsets are multiplied."""
        return self._ragged_multiplier

    @property
    def is_pass_by_value(self) -> bool:
        """True if the tensor is a scalar on the host."""
        return self._by_value

    @property
    def pass_by_value(self) -> Any:
        """The value from which the scalar was created; None without one."""
        return self.value if self._by_value else None

    @property
    def scalar_type(self) -> Any:
        """When the value is known; None for other tensors."""
        if not self._by_value and self.constant is None:
            return None
        is_constant = self.constant is not None or self.number is not None
        return enums.scalar_type.COMPILE_TIME_CONST if is_constant else enums.scalar_type.RUNTIME_PARAM

    @property
    def dim_assigned(self) -> bool:
        """True if the tensor has dims."""
        return bool(self._dims)

    @property
    def stride_assigned(self) -> bool:
        """True if the tensor has strides."""
        return bool(self._strides)

    @property
    def uid_assigned(self) -> bool:
        """True if the tensor has a uid."""
        return self._uid is not None

    @property
    def owner(self) -> pygraph:
        """The graph to which it belongs."""
        return self.graph

    def validate(self) -> None:
        """Checks that dims, strides and type are consistent."""
        if self._dims and self._strides and len(self._dims) != len(self._strides):
            raise BadParameterError(
                f"{self.label}: {counted(len(self._dims), 'dim')} {list(self._dims)} and "
                f"{counted(len(self._strides), 'stride')} {list(self._strides)}. Give a stride per dimension."
            )
        if self._data_type is not None:
            dtypes.of(self._data_type)
