"""Memory of other libraries: address, shape, strides, data type and device of arrays and tensors.

Supports NumPy (with ml_dtypes), torch, CuPy, __cuda_array_interface__ (Numba, JAX), DLPack and Python
numbers. No library is imported here: if an object of a library exists, the library is already imported.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from weft_cffi._weft import ffi

from weft import arguments, dtypes
from weft.arguments import counted
from weft.enums import data_type, device_kind
from weft.errors import BadParameterError

SOME_GPU = -1
"""The ordinal of a GPU if an array's library does not report it."""


class Buffer(NamedTuple):
    """The location and layout of an array."""

    pointer: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    data_type: data_type
    device: device_kind
    ordinal: int
    """Among the devices of this kind; SOME_GPU if unknown."""
    is_writable: bool
    owner: Any
    """Keeps the memory alive."""

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)


def packed_strides(dims: tuple[int, ...] | list[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides, step = [], 1
    for extent in reversed(dims):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def is_array(value: object) -> bool:
    """True if a value is memory of another library; numbers and addresses are not."""
    kind = type(value)
    names = ("data_ptr", "__array_interface__", "__cuda_array_interface__", "__dlpack__", "__weft_buffer__")
    return any(hasattr(kind, name) for name in names)


def is_numpy_scalar(value: object) -> bool:
    """True if a value is a NumPy scalar, which has no memory of its own."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def describe(value: Any, stream: int | None = None) -> Buffer:
    """Describes the memory of an array, tensor or DLPack object. `stream` is where the memory will be used:
    DLPack producers make that stream wait for pending work. With None, nothing waits."""
    kind = type(value)
    if hasattr(kind, "__weft_buffer__"):
        buffer: Buffer = value.__weft_buffer__()
        return buffer
    if is_numpy_scalar(value):
        return describe(sys.modules["numpy"].asarray(value))
    if hasattr(kind, "data_ptr"):
        return _describe_torch(value)
    if hasattr(kind, "__array_interface__"):
        refuse_masked(value)
        value = _plain_numpy(value)
        dtype = getattr(value, "dtype", None)
        return _describe_interface(value, value.__array_interface__, device_kind.CPU, dtype)
    # the class of JAX arrays has the attribute, but arrays on the host do not
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        if is_jax(value):
            value.block_until_ready()  # JAX's interface names no stream to wait for
        dtype = getattr(value, "dtype", None)
        number = getattr(getattr(value, "device", None), "id", SOME_GPU)
        ordinal = arguments.integer(number, "buffer: the array's device.id")
        return _describe_interface(value, interface, device_kind.CUDA, dtype, ordinal)
    if hasattr(kind, "__dlpack__"):
        return _describe_dlpack(value, stream)
    raise BadParameterError(
        f"buffer: {kind.__name__} exposes no memory. Give a NumPy array, a torch tensor, or an object with "
        "__dlpack__ or __cuda_array_interface__."
    )


# ---- Arrays whose memory differs from their value ----------------------------------------------------------


def _is_masked(kind: type) -> bool:
    ma = sys.modules.get("numpy.ma")
    return ma is not None and issubclass(kind, ma.MaskedArray)


def refuse_masked(value: Any) -> None:
    """Rejects NumPy's masked arrays, because the mask is not part of the memory."""
    if _is_masked(type(value)):
        raise BadParameterError(
            "buffer: the array is masked, and its mask would be lost. Give array.filled(value), or "
            "array.data."
        )


def _plain_numpy(value: Any) -> Any:
    """The base-class view of an instance of an ndarray subclass, whatever the subclass reports."""
    if not is_numpy(value) or type(value) is sys.modules["numpy"].ndarray:
        return value
    return sys.modules["numpy"].ndarray.view(value, sys.modules["numpy"].ndarray)


def _refuse_byte_order(order: str) -> None:
    """Rejects foreign byte orders. `order` is the first character of a typestr: '<' or '>' name one, '|' and
    '=' do not."""
    if order in "<>" and (order == "<") != (sys.byteorder == "little"):
        raise BadParameterError(
            "buffer: the array's bytes are not in this machine's order. Convert it with "
            "array.astype(array.dtype.newbyteorder('='))."
        )


def _refuse_lazy(value: Any) -> None:
    """Rejects torch tensors without memory, or whose memory differs from their value."""
    kinds = (
        (value.is_nested, "nested", "Give tensor.to_padded_tensor(value)."),
        (str(value.layout) != "torch.strided", f"of layout {value.layout}", "Give tensor.to_dense()."),
        (value.is_quantized, "quantized", "Give tensor.dequantize(), or tensor.int_repr()."),
    )
    for is_it, word, fix in kinds:
        if is_it:
            raise BadParameterError(f"buffer: the torch tensor is {word}. {fix}")
    if value.untyped_storage().nbytes() < _torch_reach(value):
        raise BadParameterError(
            f"buffer: the torch tensor's elements reach to byte {_torch_reach(value)} of its storage, which "
            f"has {value.untyped_storage().nbytes()}. Resize the storage."
        )
    lazy = (
        (value.is_conj(), "a conjugate view", "Give tensor.resolve_conj()."),
        (value.is_neg(), "a negated view", "Give tensor.resolve_neg()."),
        (_has_names(value), "named, and its names would be lost", "Give tensor.rename(None)."),
    )
    for is_it, word, fix in lazy:
        if is_it:
            raise BadParameterError(f"buffer: the torch tensor is {word}. {fix}")


def _torch_reach(value: Any) -> int:
    """Bytes of the storage up to the end of the tensor's last element."""
    steps = [step * value.element_size() for step in value.stride()]
    size = _reach(value.shape, steps, value.element_size())
    return size and int(value.storage_offset() * value.element_size() + size)


def requires_grad(value: Any) -> bool:
    """True if a value is a torch tensor that requires a gradient."""
    return is_torch(value) and bool(value.requires_grad)


def is_grad_enabled() -> bool:
    """True if torch, which is already imported, is recording gradients."""
    return bool(sys.modules["torch"].is_grad_enabled())


def _has_names(value: Any) -> bool:
    return hasattr(value, "has_names") and bool(value.has_names())  # torch 2.13 removed named tensors


def is_jax(value: Any) -> bool:
    """True if a value is a JAX array, which is immutable."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def is_on_gpu(value: Any) -> bool:
    """True if a JAX array is stored on a GPU."""
    return any(device.platform != "cpu" for device in value.devices())


def shape_of(value: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dims and strides of an array. JAX arrays are contiguous, and pending computations are not waited
    for."""
    if is_jax(value):
        dims = tuple(value.shape) or (1,)
        return dims, packed_strides(dims)
    buffer = describe(value)
    return buffer.dims, buffer.strides


def as_jax(array: Any) -> Any:
    """A host array as a JAX array; it must not be written any more."""
    return sys.modules["jax"].numpy.asarray(array)


def is_packed(dims: Sequence[int], strides: Sequence[int]) -> bool:
    """True if elements are contiguous, the last dimension fastest."""
    pairs = zip(dims, strides, packed_strides(tuple(dims)), strict=True)
    return 0 in dims or all(extent == 1 or own == packed for extent, own, packed in pairs)


def _describe_torch(value: Any) -> Buffer:
    is_host = value.device.type == "cpu"
    if not is_host and value.device.type != "cuda":
        raise BadParameterError(
            f"buffer: the torch tensor is on device {value.device}. Move it to the CPU or to a CUDA device."
        )
    _refuse_lazy(value)
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


# Data types by the typestr of an interface, without byte order.
_TYPESTRS = {"f2": "f16", "f4": "f32", "f8": "f64", "i1": "i8", "i4": "i32", "i8": "i64"}
_TYPESTRS |= {"u1": "u8", "u4": "u32", "b1": "bool8"}


def _describe_interface(
    value: Any, interface: Any, device: device_kind, dtype: Any, ordinal: int = 0
) -> Buffer:
    """NumPy's array interface and its CUDA counterpart. Strides are in bytes, or None for a contiguous
    array."""
    if not isinstance(interface, Mapping):
        raise BadParameterError(f"buffer: the array's interface is {type(interface).__name__}. Give a dict.")
    type_ = _interface_type(interface.get("typestr"), dtype)
    if interface.get("mask") is not None:
        raise BadParameterError(
            "buffer: the array has a mask, which would be lost. Fill it, or give only the data."
        )
    shape: Any = interface.get("shape")
    steps: Any = interface.get("strides")
    dims = arguments.integers(shape, "buffer: the array's shape")
    item = max(dtypes.of(type_).bits // 8, 1)
    if steps is not None:
        steps = arguments.integers(steps, "buffer: the array's strides")
    pointer, is_read_only = _interface_data(interface.get("data"))
    _check_claim(pointer, dims, steps, item)
    strides = packed_strides(dims) if steps is None else _in_elements(dims, steps, item)
    is_writable = not is_read_only and not is_jax(value)
    return Buffer(pointer, dims or (1,), strides or (1,), type_, device, ordinal, is_writable, value)


def _interface_type(typestr: Any, dtype: Any) -> data_type:
    """The data type for a typestr such as '<f4' and a dtype, if there is one; they must agree."""
    if not isinstance(typestr, str) or not typestr[2:].isdecimal():
        raise BadParameterError(f"buffer: the array's typestr is {typestr!r}. Give one such as '<f4'.")
    _refuse_byte_order(typestr[0])
    known = dtypes.data_type_of(_TYPESTRS.get(typestr[1:]))
    type_ = dtypes.data_type_of((typestr if known is None else known) if dtype is None else dtype)
    bits = 0 if type_ is None else dtypes.of(type_).bits
    if type_ is None or known not in (None, type_) or (bits >= 8 and bits != 8 * int(typestr[2:])):
        raise BadParameterError(
            f"buffer: the array's typestr is {typestr!r}, its dtype {dtype!r}. Make them match."
        )
    return type_


def _interface_data(data: Any) -> tuple[int, bool]:
    """The address, 0 for None, and whether it is read-only."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise BadParameterError(
            f"buffer: the array's data is {data!r}. Give a pair, the address and whether it is read-only."
        )
    pointer = 0 if data[0] is None else arguments.integer(data[0], "buffer: the array's address")
    return pointer, bool(data[1])


_RANK_MAX = 64  # NumPy's limit


def _check_claim(pointer: int, dims: Sequence[int], steps: Sequence[int] | None, item: int) -> None:
    """Checks that a described memory layout is possible. `steps` are strides in bytes; None means
    contiguous."""
    trouble = ""
    steps = [step * item for step in packed_strides(tuple(dims))] if steps is None else steps
    if len(dims) > _RANK_MAX:
        trouble = f"{len(dims)} dims, more than {_RANK_MAX}"
    elif min(dims, default=0) < 0:
        trouble = f"dims {list(dims)}, which are negative"
    elif len(steps) != len(dims):
        trouble = f"{counted(len(dims), 'dim')} and {counted(len(steps), 'stride')}"
    elif pointer < 0:
        trouble = f"the address {pointer}"
    elif not pointer and 0 not in dims:
        trouble = f"no address, but dims {list(dims)}"
    elif pointer + _reach(dims, steps, item) >= 2**63:
        trouble = f"dims {list(dims)}, which reach past the end of memory"
    if trouble:
        raise BadParameterError(
            f"buffer: the array reports {trouble}. Give an array whose memory matches its shape."
        )


def _in_elements(dims: tuple[int, ...], steps: tuple[int, ...], item: int) -> tuple[int, ...]:
    if any(step % item for step, extent in zip(steps, dims, strict=True) if extent > 1):
        raise BadParameterError(
            f"buffer: strides of {list(steps)} bytes are not multiples of {counted(item, 'byte')} per "
            "element. Copy the array with numpy.ascontiguousarray."
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


class _DLManagedTensorVersioned(ctypes.Structure):
    """DLPack's DLManagedTensorVersioned, since version 1.0."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_READ_ONLY = 1  # a bit of `flags`
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


_NO_WAITING, _DEFAULT_STREAM = -1, 1  # stream numbers of __dlpack__


def _capsule_of(value: Any, stream: int | None) -> Any:
    """The DLPack capsule of a value. It has the version that marks read-only memory if the producer supports
    it. Producers on the host do not accept a stream."""
    device = value.__dlpack_device__() if hasattr(value, "__dlpack_device__") else (1, 0)
    if not isinstance(device, (tuple, list)) or len(device) != 2:
        raise BadParameterError(
            f"buffer: __dlpack_device__() returned {device!r}. Give a pair, the device's type and its number."
        )
    request: dict[str, Any] = {}
    # torch returns an enumeration member
    kind = device[0].value if isinstance(device[0], IntEnum) else device[0]
    if _DLPACK_DEVICES.get(arguments.integer(kind, "buffer: the DLPack device type")) is device_kind.CUDA:
        request["stream"] = _NO_WAITING if stream is None else stream or _DEFAULT_STREAM
    try:
        return value.__dlpack__(max_version=(1, 0), **request)
    except TypeError:  # the producer predates version 1.0
        return value.__dlpack__(**request)


def _read_capsule(capsule: Any) -> tuple[_DLTensor, bool]:
    """The tensor of a DLPack capsule, and whether it may be written."""
    is_valid, read = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    is_valid.restype, is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    read.restype, read.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    if is_valid(capsule, b"dltensor_versioned"):
        managed = _DLManagedTensorVersioned.from_address(read(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise BadParameterError(
                f"buffer: the array uses DLPack {managed.major}.{managed.minor}, which Weft does not "
                "support. Convert it to a NumPy array or a torch tensor."
            )
        return managed.tensor, not managed.flags & _READ_ONLY
    if is_valid(capsule, b"dltensor"):
        return _DLTensor.from_address(read(capsule, b"dltensor")), True
    raise BadParameterError(
        "buffer: __dlpack__() returned no capsule named dltensor or dltensor_versioned. Give an array "
        "that was not consumed, or one of another library."
    )


def _describe_dlpack(value: Any, stream: int | None) -> Buffer:
    capsule = _capsule_of(value, stream)
    tensor, is_writable = _read_capsule(capsule)
    device, type_ = _DLPACK_DEVICES.get(tensor.device_type), _DLPACK_TYPES.get((tensor.code, tensor.bits))
    if device is None or type_ is None or tensor.lanes != 1:
        raise BadParameterError(
            f"buffer: the DLPack tensor has device type {tensor.device_type}, type code {tensor.code}, "
            f"{tensor.bits} bits and {tensor.lanes} lanes, which Weft does not support. Convert it, or move "
            "it to the CPU or a CUDA device."
        )
    if not 0 <= tensor.ndim <= _RANK_MAX or (tensor.ndim and not tensor.shape):
        raise BadParameterError(
            f"buffer: the DLPack tensor reports {counted(tensor.ndim, 'dim')}, "
            f"{'with' if tensor.shape else 'without'} a shape. Give an array whose memory matches its shape."
        )
    dims = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else packed_strides(dims)
    pointer, item = (tensor.data or 0) and tensor.data + tensor.byte_offset, max(tensor.bits // 8, 1)
    _check_claim(pointer, dims, [step * item for step in strides], item)
    # The capsule stays unconsumed: its destructor releases the producer's reference.
    is_writable = is_writable and not is_jax(value)
    return Buffer(
        pointer, dims or (1,), strides or (1,), type_, device, tensor.device_id, is_writable, (value, capsule)
    )


# ---- Fast queries of execution -----------------------------------------------------------------------------


class Memory(NamedTuple):
    """The properties of an array that execution needs."""

    address: int
    """The address of the first element."""
    dtype: Any
    size: int
    """Bytes that may be accessed from that address."""
    is_writable: bool
    ordinal: int | None
    """The ordinal of the GPU that holds the memory; None for the host."""
    is_packed: bool
    """True if elements are contiguous, the last dimension fastest."""
    buffer: Buffer | None = None
    """The description returned by an object that is queried every time; it owns the memory. None if the array
    itself does."""


def _reach(dims: Any, steps: Any, item: int) -> int:
    """Bytes from the first element to the end of the last one in memory; `steps` are strides in bytes."""
    if 0 in dims:
        return 0
    forward = ((extent - 1) * step for extent, step in zip(dims, steps, strict=True) if step > 0)
    return item + int(sum(forward))


def _numpy_memory(value: Any) -> Memory:
    refuse_masked(value)
    value = _plain_numpy(value)
    interface = value.__array_interface__
    _refuse_byte_order(interface["typestr"][0])
    pointer, is_read_only = interface["data"]
    steps = interface["strides"]
    size = value.nbytes if steps is None else _reach(interface["shape"], steps, value.itemsize)
    return Memory(pointer, value.dtype, size, not is_read_only, None, value.flags.c_contiguous)


def _torch_memory(value: Any) -> Memory:
    _refuse_lazy(value)
    if not value.is_cuda and not value.is_cpu:
        describe(value)  # raises with the reason
    is_packed = value.is_contiguous()
    if is_packed:
        size = value.nbytes
    else:
        item = value.element_size()
        size = _reach(value.shape, [step * item for step in value.stride()], item)
    ordinal = value.get_device() if value.is_cuda else None
    return Memory(value.data_ptr(), value.dtype, size, True, ordinal, is_packed)


def _described_memory(value: Any, stream: int | None = None) -> Memory:
    buffer = describe(value, stream)
    ordinal = buffer.ordinal if buffer.device is device_kind.CUDA else None
    item = max(dtypes.of(buffer.data_type).bits // 8, 1)
    size = _reach(buffer.dims, [step * item for step in buffer.strides], item)
    packed = is_packed(buffer.dims, buffer.strides)
    return Memory(buffer.pointer, buffer.data_type, size, buffer.is_writable, ordinal, packed, buffer)


def _no_memory(value: Any) -> Memory:
    raise BadParameterError(
        f"buffer: {type(value).__name__} is a number without memory of its own. Give an array of one element."
    )


_readers: dict[type, Callable[..., Memory]] = {}


def memory_of(value: Any, stream: Callable[[], int] | None = None) -> Memory:
    """The memory of an array. `stream` returns where it will be used, for libraries that need it; see
    describe."""
    reader = _readers.get(type(value)) or _add_reader(type(value))
    if reader is _described_memory and stream is not None:
        return _described_memory(value, stream())
    return reader(value)


class FastChecks(NamedTuple):
    """Fast recognition of arrays of one type."""

    form: Callable[[Any], tuple[Any, ...]]
    """The properties to compare to know that an array fits where another one did."""
    address: Callable[[Any], int]
    state: Callable[[Any], object] | None
    """The state that must be unchanged for a checked array to remain valid. None if arrays of this type
    cannot change."""


_quick_kinds: dict[type, FastChecks] = {}


def add_fast_checks(kind: type, functions: FastChecks) -> None:
    """Registers a type of arrays for fast_checks_of."""
    _quick_kinds[kind] = functions


def fast_checks_of(value: Any) -> FastChecks | None:
    """The recognition functions for arrays of torch, NumPy and Weft; None for others."""
    return _quick_kinds.get(type(value))


def _numpy_form(value: Any) -> tuple[Any, ...]:
    return value.dtype, value.shape, value.strides, value.flags.writeable


def _numpy_address(value: Any) -> int:
    try:
        return int(ffi.cast("uintptr_t", ffi.from_buffer(value)))
    except (BufferError, TypeError, ValueError):  # the array has gaps between elements or a type of ml_dtypes
        return int(value.__array_interface__["data"][0])


def _numpy_state(value: Any) -> object:
    """The properties that may change in place. The memory stays allocated while a weak reference to it is
    valid."""
    return value.flags.writeable, value.dtype, value.strides


def _torch_form(value: Any) -> tuple[Any, ...]:
    try:
        return value.dtype, value.shape, value.stride(), value.device, value.is_neg(), value.requires_grad
    except RuntimeError:  # a tensor without strides
        _refuse_lazy(value)
        raise


def _torch_state(value: Any) -> object:
    """The properties that t_(), set_() or requires_grad_() may change in place."""
    return value.data_ptr(), value.stride(), value.requires_grad


def device_of(value: Any) -> int | None:
    """The ordinal of the GPU that holds an array's memory, SOME_GPU if unknown, None for the host."""
    if is_torch(value):
        return value.get_device() if value.is_cuda else None
    return None if is_numpy(value) else memory_of(value).ordinal


def pointer_of(value: Any) -> int:
    """The address of an array's first element; integers are returned unchanged."""
    return int(value) if isinstance(value, int) else memory_of(value).address


def _add_reader(kind: type) -> Callable[..., Memory]:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    reader: Callable[..., Memory] = _described_memory
    if issubclass(kind, (float, bool)) or (numpy is not None and issubclass(kind, numpy.generic)):
        reader = _no_memory
    elif torch is not None and issubclass(kind, torch.Tensor):
        reader = _torch_memory
        add_fast_checks(kind, FastChecks(_torch_form, torch.Tensor.data_ptr, _torch_state))
    elif numpy is not None and issubclass(kind, numpy.ndarray):
        reader = _numpy_memory
        if kind is numpy.ndarray:  # subclasses and other libraries may report something else
            add_fast_checks(kind, FastChecks(_numpy_form, _numpy_address, _numpy_state))
    _readers[kind] = reader
    return reader


# ---- New memory --------------------------------------------------------------------------------------------


def is_torch(value: object) -> bool:
    """True if a value is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_numpy(value: object) -> bool:
    """True if a value is a NumPy array."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_cupy(value: object) -> bool:
    """True if a value is a CuPy array."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(value, cupy.ndarray)


def span(dims: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last in memory, both included."""
    if 0 in dims:
        return 0
    return sum((extent - 1) * step for extent, step in zip(dims, strides, strict=True)) + 1


def stored(
    dims: tuple[int, ...], strides: tuple[int, ...] | None, type_: data_type
) -> tuple[tuple[int, ...], tuple[int, ...], data_type]:
    """Dims, strides and type of the array that stores a tensor; strides of None mean contiguous. Types of
    fewer than 8 bits are stored as bytes."""
    steps = packed_strides(dims) if strides is None else strides
    bits = dtypes.of(type_).bits
    if bits >= 8:
        return dims, steps, type_
    return ((span(dims, steps) * bits + 7) // 8,), (1,), data_type.UINT8


def can_allocate(like: Any, type_: data_type) -> bool:
    """True if `empty` can allocate with the library that a GPU array belongs to."""
    return is_torch(like) or (is_cupy(like) and dtypes.of(type_).array in _CUPY_TYPES)


_CUPY_TYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "uint32", "int64", "bool", "")


def empty(dims: tuple[int, ...], strides: tuple[int, ...], type_: data_type, like: Any = None) -> Any:
    """A new array of the same library and on the same device as `like` if that is a torch or CuPy array,
    otherwise a NumPy array. Types of fewer than 8 bits are returned as bytes."""
    dims, strides, type_ = stored(dims, strides, type_)
    if like is not None and is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty_strided(dims, strides, dtype=dtypes.torch_dtype(type_), device=like.device)
    import numpy

    dtype = dtypes.numpy_dtype(type_)
    steps = tuple(step * dtype.itemsize for step in strides)
    if like is not None and is_cupy(like):
        cupy = sys.modules["cupy"]
        with like.device:
            return cupy.ndarray(dims, dtype, cupy.empty(span(dims, strides), dtype).data, steps)
    if strides == packed_strides(dims):
        return numpy.empty(dims, dtype)
    return numpy.ndarray(dims, dtype, buffer=numpy.empty(span(dims, strides), dtype), strides=steps)
