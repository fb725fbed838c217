"""Memory of other libraries: address, shape, strides, data type and device of arrays and tensors.

Knows NumPy (with ml_dtypes), torch, __cuda_array_interface__ (CuPy, Numba, JAX), DLPack and Python numbers.
It imports none of them: an object of a library exists only after somebody else imported it.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from weft import dtypes
from weft.enums import data_type, device_kind
from weft.errors import BadParameterError


class Buffer(NamedTuple):
    """Where an array lies and how."""

    pointer: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    data_type: data_type
    device: device_kind
    ordinal: int
    is_writable: bool
    owner: Any
    """Keeps the memory alive."""

    @property
    def elements(self) -> int:
        """How many elements the dims span."""
        return math.prod(self.dims)


def packed_strides(dims: tuple[int, ...] | list[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides, step = [], 1
    for extent in reversed(dims):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def is_array(value: object) -> bool:
    """Whether a value is memory of another library (numbers and addresses are not)."""
    kind = type(value)
    names = ("data_ptr", "__array_interface__", "__cuda_array_interface__", "__dlpack__")
    return any(hasattr(kind, name) for name in names)


def is_numpy_scalar(value: object) -> bool:
    """Whether a value is a number of NumPy's, which has no memory of its own."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def describe(value: Any) -> Buffer:
    """What an array, tensor or DLPack object says of its memory."""
    kind = type(value)
    if is_numpy_scalar(value):
        return describe(sys.modules["numpy"].asarray(value))
    if hasattr(kind, "data_ptr"):
        return _describe_torch(value)
    if hasattr(kind, "__array_interface__"):
        return _describe_interface(value, value.__array_interface__, device_kind.CPU, value.dtype)
    if hasattr(kind, "__cuda_array_interface__"):
        dtype = getattr(value, "dtype", None)
        ordinal = getattr(getattr(value, "device", None), "id", 0)
        return _describe_interface(value, value.__cuda_array_interface__, device_kind.CUDA, dtype, ordinal)
    if hasattr(kind, "__dlpack__"):
        return _describe_dlpack(value)
    raise BadParameterError(
        f"buffer: {kind.__name__} offers no memory. Give a NumPy array, a torch tensor, or an object with "
        "__dlpack__ or __cuda_array_interface__."
    )


def _describe_torch(value: Any) -> Buffer:
    is_host = value.device.type == "cpu"
    if not is_host and value.device.type != "cuda":
        raise BadParameterError(
            f"buffer: the torch tensor is on device {value.device}. Move it to the CPU or to a CUDA device."
        )
    type_ = dtypes.data_type_of(value.dtype)
    assert type_ is not None
    return Buffer(
        value.data_ptr(),
        tuple(value.shape) or (1,),
        tuple(value.stride()) or (1,),
        type_,
        device_kind.CPU if is_host else device_kind.CUDA,
        value.device.index or 0,
        True,
        value,
    )


def _describe_interface(
    value: Any, interface: Any, device: device_kind, dtype: Any, ordinal: int = 0
) -> Buffer:
    """NumPy's array interface and its CUDA twin: bytes between neighbours, or None for a packed array."""
    type_ = dtypes.data_type_of(dtype if dtype is not None else interface["typestr"])
    assert type_ is not None
    dims, steps = interface["shape"], interface.get("strides")
    strides = packed_strides(dims) if steps is None else _in_elements(dims, steps, dtypes.of(type_).bits // 8)
    pointer, is_read_only = interface["data"]
    return Buffer(
        pointer or 0, dims or (1,), strides or (1,), type_, device, ordinal, not is_read_only, value
    )


def _in_elements(dims: tuple[int, ...], steps: tuple[int, ...], item: int) -> tuple[int, ...]:
    if any(step % item for step, extent in zip(steps, dims, strict=True) if extent > 1):
        raise BadParameterError(
            f"buffer: strides of {list(steps)} bytes are no multiples of {item} bytes per element. Copy the "
            "array with numpy.ascontiguousarray."
        )
    return tuple(step // item for step in steps)


# ---- DLPack ------------------------------------------------------------------------------------------------


class _DLTensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_DLPACK_DEVICES = {1: device_kind.CPU, 2: device_kind.CUDA, 3: device_kind.CPU, 13: device_kind.CUDA}
# By DLPack's type code and bits.
_DLPACK_TYPES = {
    (0, 8): data_type.INT8,
    (0, 32): data_type.INT32,
    (0, 64): data_type.INT64,
    (1, 8): data_type.UINT8,
    (1, 32): data_type.UINT32,
    (2, 16): data_type.HALF,
    (2, 32): data_type.FLOAT,
    (2, 64): data_type.DOUBLE,
    (4, 16): data_type.BFLOAT16,
    (6, 8): data_type.BYTE_BOOLEAN,
    (10, 8): data_type.FP8_E4M3,
    (12, 8): data_type.FP8_E5M2,
    (14, 8): data_type.FP8_E8M0,
}


def _describe_dlpack(value: Any) -> Buffer:
    capsule = value.__dlpack__()
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _DLTensor.from_address(read(capsule, b"dltensor"))
    device, type_ = _DLPACK_DEVICES.get(tensor.device_type), _DLPACK_TYPES.get((tensor.code, tensor.bits))
    if device is None or type_ is None or tensor.lanes != 1:
        raise BadParameterError(
            f"buffer: the DLPack tensor has device type {tensor.device_type}, type code {tensor.code}, "
            f"{tensor.bits} bits and {tensor.lanes} lanes, which Weft does not read. Convert it, or move it "
            "to the CPU or a CUDA device."
        )
    dims = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else packed_strides(dims)
    pointer = (tensor.data or 0) + tensor.byte_offset
    # The capsule stays unconsumed: it releases the producer's hold when it goes.
    return Buffer(
        pointer, dims or (1,), strides or (1,), type_, device, tensor.device_id, True, (value, capsule)
    )


# ---- What execution needs to know, quickly -----------------------------------------------------------------

Memory = tuple[int, Any, int, bool, bool]
"""The address of the first element, the dtype, how many bytes may be touched from there on, whether they may
be written, whether they are on a GPU."""


def _reach(dims: Any, steps: Any, item: int) -> int:
    """Bytes from the first element to the end of the last one in memory; steps in bytes."""
    if 0 in dims:
        return 0
    forward = ((extent - 1) * step for extent, step in zip(dims, steps, strict=True) if step > 0)
    return item + int(sum(forward))


def _numpy_memory(value: Any) -> Memory:
    interface = value.__array_interface__
    pointer, is_read_only = interface["data"]
    steps = interface["strides"]
    size = value.nbytes if steps is None else _reach(interface["shape"], steps, value.itemsize)
    return pointer, value.dtype, size, not is_read_only, False


def _torch_memory(value: Any) -> Memory:
    is_cuda = value.is_cuda
    if not is_cuda and not value.is_cpu:
        describe(value)  # says why not
    if value.is_contiguous():
        size = value.nbytes
    else:
        item = value.element_size()
        size = _reach(value.shape, [step * item for step in value.stride()], item)
    return value.data_ptr(), value.dtype, size, True, is_cuda


def _described_memory(value: Any) -> Memory:
    buffer = describe(value)
    item = max(dtypes.of(buffer.data_type).bits // 8, 1)
    size = _reach(buffer.dims, [step * item for step in buffer.strides], item)
    return buffer.pointer, buffer.data_type, size, buffer.is_writable, buffer.device is device_kind.CUDA


def _no_memory(value: Any) -> Memory:
    raise BadParameterError(
        f"buffer: {type(value).__name__} is a number without memory of its own. Give an array of one element."
    )


_readers: dict[type, Callable[[Any], Memory]] = {}


def memory_of(value: Any) -> Memory:
    """The memory of an array."""
    reader = _readers.get(type(value))
    return (_add_reader(type(value)) if reader is None else reader)(value)


def pointer_of(value: Any) -> int:
    """The address of an array's first element; integers are addresses already."""
    return int(value) if isinstance(value, int) else memory_of(value)[0]


def _add_reader(kind: type) -> Callable[[Any], Memory]:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    reader = _described_memory
    if issubclass(kind, (float, bool)) or (numpy is not None and issubclass(kind, numpy.generic)):
        reader = _no_memory
    elif torch is not None and issubclass(kind, torch.Tensor):
        reader = _torch_memory
    elif numpy is not None and issubclass(kind, numpy.ndarray):
        reader = _numpy_memory
    _readers[kind] = reader
    return reader


# ---- New memory --------------------------------------------------------------------------------------------


def is_torch(value: object) -> bool:
    """Whether a value is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def span(dims: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last, both included."""
    if 0 in dims:
        return 0
    return sum((extent - 1) * step for extent, step in zip(dims, strides, strict=True)) + 1


def empty(dims: tuple[int, ...], strides: tuple[int, ...], type_: data_type, like: Any = None) -> Any:
    """A new array: a torch tensor on `like`'s device when that is one, else a NumPy array. Types of fewer
    than 8 bits come as the bytes that hold them."""
    bits = dtypes.of(type_).bits
    if bits < 8:
        dims = ((span(dims, strides) * bits + 7) // 8,)
        strides, type_ = (1,), data_type.UINT8
    if like is not None and is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty_strided(dims, strides, dtype=dtypes.torch_dtype(type_), device=like.device)
    import numpy

    dtype = dtypes.numpy_dtype(type_)
    if strides == packed_strides(dims):
        return numpy.empty(dims, dtype)
    memory = numpy.empty(span(dims, strides), dtype)
    steps = tuple(step * dtype.itemsize for step in strides)
    return numpy.ndarray(dims, dtype, buffer=memory, strides=steps)
