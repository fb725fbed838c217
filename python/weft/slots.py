"""Slots: the tensors of a plan that need memory at run time, and the requirements on that memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from weft import buffers, dtypes
from weft.arguments import counted
from weft.enums import data_type
from weft.errors import BadParameterError


class Slot(NamedTuple):
    """A tensor that needs memory when the plan runs."""

    uid: int
    name: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    data_type: data_type
    is_output: bool
    is_by_value: bool
    bytes: int
    """Size of the elements without gaps."""
    span: int
    """Bytes from the first element to the last, both included."""
    alignment: int
    """Required alignment of its addresses, in bytes."""
    is_ragged: bool = False
    """True if offsets locate its batch entries; then memory may have any shape."""

    def __str__(self) -> str:
        role = "output" if self.is_output else "input"
        called = f"'{self.name}' (uid {self.uid})" if self.name else f"uid {self.uid}"
        return f"{role} {called}"

    @property
    def is_aligned(self) -> bool:
        """True if its addresses must be aligned to more than its elements."""
        element = max(dtypes.of(self.data_type).bits // 8, 1)
        return self.alignment > element and self.bytes > 0 and not self.is_by_value

    def reshaped(self, dims: Sequence[int], strides: Sequence[int]) -> Slot:
        """The slot with another shape."""
        return self._replace(**_sizes(dims, strides, self.data_type))


def slot_of(tensor: dict[str, Any]) -> Slot:
    """The slot of a tensor, from its description in a plan's report."""
    type_ = dtypes.data_type_of(tensor["type"])
    assert type_ is not None
    sizes = _sizes(tensor["dims"], tensor["strides"], type_)
    roles = {"is_output": tensor["written"], "is_by_value": tensor["by_value"]}
    fields = {"uid": tensor["uid"], "name": tensor["name"] or "", "alignment": tensor["alignment"]}
    return Slot(data_type=type_, is_ragged=bool(tensor.get("ragged")), **fields, **roles, **sizes)


def _sizes(dims: Sequence[int], strides: Sequence[int], type_: data_type) -> dict[str, Any]:
    """The fields of a slot that are derived from its shape."""
    bits = dtypes.of(type_).bits
    span = (buffers.span(tuple(dims), tuple(strides)) * bits + 7) // 8
    packed = (math.prod(dims) * bits + 7) // 8
    return {"dims": tuple(dims), "strides": tuple(strides), "bytes": min(span, packed), "span": span}


def shape_text(type_: data_type, dims: Sequence[int]) -> str:
    """A type and dims in a message: f32[2,3]."""
    return f"{dtypes.of(type_).name}[{','.join(map(str, dims))}]"


# ---- Checks: messages name the call, `where` ---------------------------------------------------------------


def named(where: str, slot: Slot, error: BadParameterError) -> BadParameterError:
    """Adds the name of the tensor to an error about an array."""
    text = str(error)
    if not text.startswith("buffer: "):
        return error
    return BadParameterError(f"{where}: {slot}: {text.removeprefix('buffer: ')}", error.status)


def no_buffer(where: str, slot: Slot) -> BadParameterError:
    """The error for a slot without memory."""
    return BadParameterError(
        f"{where}: {slot} has no buffer. Give it: {slot.name or 'by position'}=<array of "
        f"{shape_text(slot.data_type, slot.dims)}>."
    )


def checked_address(where: str, slot: Slot, address: int) -> int:
    """Checks an integer that was passed as an address."""
    if not 0 <= address < 2**64:
        raise BadParameterError(
            f"{where}: the buffer of {slot} is {address}, which is not an address. Give 0 .. 2^64 - 1, or an "
            "array."
        )
    if slot.is_by_value and address < 4096:
        raise BadParameterError(
            f"{where}: {slot} is by value and its buffer is {address}, which is not an address. Give "
            f"{address}.0, or an array."
        )
    return address


def is_number_of_other_type(slot: Slot, memory: buffers.Memory) -> bool:
    """True if an array is a single number of a type other than the slot's."""
    type_ = type_of(memory.dtype)
    is_one = type_ is not None and memory.size == max(dtypes.of(type_).bits // 8, 1)
    return is_one and type_ is not slot.data_type


def check_array(where: str, slot: Slot, value: Any, memory: buffers.Memory, is_exact: bool) -> None:
    """Checks that an array is valid for a slot: type, shape and layout, and writability for outputs. Unless
    is_exact, contiguous arrays of any shape are accepted if they are large enough."""
    if not is_exact:
        check_size(where, slot, memory.size)
    check_type(where, slot, memory.dtype)
    check_writable(where, slot, memory.is_writable)
    if is_exact or not memory.is_packed:
        check_shape(where, slot, memory.buffer or buffers.describe(value))


def check_gradient(where: str, slot: Slot, value: Any) -> None:
    """Rejects tensors for which torch expects a gradient."""
    if buffers.requires_grad(value) and buffers.is_grad_enabled():
        raise BadParameterError(
            f"{where}: the tensor of {slot} requires grad, and autograd does not record what a plan "
            "computes: its gradient would be lost. Give tensor.detach(), or run the plan under "
            "torch.no_grad()."
        )


def check_device(where: str, slot: Slot, device: int | None, wanted: int | None, fix: str) -> None:
    """Checks that memory is on the device from which the plan reads it: None for the host, otherwise a GPU's
    ordinal. `wanted` is the plan's device; by-value scalars are always on the host."""
    if slot.is_by_value:
        wanted = None
    if device == wanted or (device == buffers.SOME_GPU and wanted is not None):
        return
    here, there = _location(device, wanted), _location(wanted, device)
    raise BadParameterError(f"{where}: {slot} must be on {there}, its buffer is on {here}. {fix}")


def _location(device: int | None, other: int | None) -> str:
    """The location of memory, in words; GPUs are numbered if two must be distinguished."""
    if device is None:
        return "the host"
    return "a CUDA device" if other is None or device < 0 else f"cuda:{device}"


def check_writable(where: str, slot: Slot, is_writable: bool) -> None:
    """Checks that an output's memory may be written."""
    if slot.is_output and not is_writable:
        raise BadParameterError(f"{where}: {slot} has a read-only buffer. Give a writable array.")


def check_size(where: str, slot: Slot, size: int) -> None:
    """Checks that memory of this size is large enough."""
    if size < slot.span and not slot.is_ragged:
        raise BadParameterError(
            f"{where}: {slot} needs {counted(slot.span, 'byte')} as "
            f"{shape_text(slot.data_type, slot.dims)}, its buffer has {size}. Give a larger one."
        )


def type_of(dtype: Any) -> data_type | None:
    """The data type of a dtype; None if Weft has no such type."""
    try:
        return dtypes.data_type_of(dtype)
    except BadParameterError:
        return None


def check_type(where: str, slot: Slot, dtype: Any) -> None:
    """Checks that a buffer has a slot's element type. Raw bytes are valid for types of at most 8 bits, and
    Booleans stored in bytes are valid integers."""
    type_, expected = type_of(dtype), slot.data_type
    bits = dtypes.of(expected).bits
    if type_ is data_type.BYTE_BOOLEAN and expected is data_type.BOOLEAN:
        raise BadParameterError(
            f"{where}: {slot} is BOOLEAN, 1 bit per element, its buffer has 1 byte per element. Declare the "
            "tensor as BYTE_BOOLEAN."
        )
    is_raw = type_ is data_type.UINT8 or (type_ is data_type.INT8 and bits < 8)
    is_boolean = type_ is data_type.BYTE_BOOLEAN and expected in (data_type.UINT8, data_type.INT8)
    if type_ is expected or (is_raw and bits <= 8) or (is_boolean and not slot.is_output):
        return
    raise BadParameterError(
        f"{where}: {slot} is {dtypes.of(expected).name}, its buffer is "
        f"{dtype if type_ is None else dtypes.of(type_).name}. Convert the array, or declare the tensor with "
        "its type."
    )


def check_shape(where: str, slot: Slot, buffer: buffers.Buffer) -> None:
    """Checks that a buffer has a slot's dims and strides. One element is valid for a by-value scalar of any
    rank; elements of fewer than 8 bits are stored in bytes of any shape."""
    if dtypes.of(slot.data_type).bits < 8:
        if buffer.elements < slot.bytes:
            raise _other_shape(where, slot, buffer)
        return
    if slot.is_ragged or (slot.is_by_value and buffer.elements == 1):
        return
    if buffer.dims != slot.dims:
        raise _other_shape(where, slot, buffer)
    if 0 in slot.dims:  # an empty tensor has no layout
        return
    pairs = zip(buffer.dims, buffer.strides, slot.strides, strict=True)
    if any(extent > 1 and stride != wanted for extent, stride, wanted in pairs):
        raise BadParameterError(
            f"{where}: {slot} has strides {list(slot.strides)}, its buffer {list(buffer.strides)} for dims "
            f"{list(slot.dims)}. Copy the array into that layout, or declare the tensor with tensor_like."
        )


def _other_shape(where: str, slot: Slot, buffer: buffers.Buffer) -> BadParameterError:
    return BadParameterError(
        f"{where}: {slot} is {shape_text(slot.data_type, slot.dims)}, its buffer "
        f"{shape_text(buffer.data_type, buffer.dims)}. Reshape the array, or declare the tensor with its "
        "dims."
    )
