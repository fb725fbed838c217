"""GPU memory that no framework owns, and the streams on which frameworks enqueue work.

DeviceArray is for programs without torch or CuPy. If torch is in use, workspaces come from its allocator, and
work is enqueued on its current stream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from weft_cffi._weft import ffi

from weft import arguments, backend, buffers, dtypes
from weft.devices import default_handle
from weft.enums import device_kind
from weft.errors import BadParameterError

if TYPE_CHECKING:
    import numpy as np

    from weft.dtypes import DataTypeLike
    from weft.slots import Slot


class DeviceMemory:
    """Memory on a handle's device, freed when the last reference is dropped.

    stream: the stream of all work on this memory, until use_on reports another one. After the memory is
    freed, the next request on that stream may reuse it while the work is still running. None: freeing waits
    for the device.
    """

    is_any_on_stream = False
    """True once memory with a stream has been allocated."""

    def __init__(self, handle: backend.Handle, size: int, stream: int | None = None) -> None:
        self.size, self.stream = size, stream
        # The process-wide handle, because the caller may close theirs before the memory is freed.
        self._handle = default_handle(handle.device, handle.ordinal)
        if stream is None:
            self._pointer = backend.allocate(self._handle, size)
        else:
            DeviceMemory.is_any_on_stream = True
            self._pointer = backend.allocate_on_stream(self._handle, size, stream)
        self.address = int(ffi.cast("uintptr_t", self._pointer))

    def use_on(self, stream: int | None) -> None:
        """Reports work on a stream; None stands for an unknown stream."""
        if self.stream is not None and self.stream != stream:
            self._pointer = backend.own_without_stream(self._handle, self._pointer)
            self.stream = None


class DeviceArray:
    """An array on a device, for programs without torch or CuPy. Plans accept it like arrays of those
    libraries, and return such arrays if they receive them. torch.as_tensor(array) and cupy.asarray(array)
    share its memory.

    >>> import numpy as np, weft
    >>> x = weft.DeviceArray([2, 2], "f32", handle=weft.create_handle("cpu"))
    >>> x.copy_from(np.eye(2, dtype="f4")).numpy()
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """

    def __init__(
        self,
        dims: Sequence[int],
        data_type: DataTypeLike = "f32",
        strides: Sequence[int] | None = None,
        handle: backend.Handle | None = None,
    ) -> None:
        """Allocates an array, uninitialized.

        Args:
            dims: extent of each dimension.
            data_type: type of the elements; types of fewer than 8 bits are packed into bytes.
            strides: in elements; contiguous by default, the last dimension fastest.
            handle: the device; by default the first usable GPU, otherwise the CPU.
        """
        type_ = dtypes.data_type_of(data_type)
        if type_ is None:
            raise BadParameterError(
                "device array: data_type is not set. Give the type of its elements, for example 'f32'."
            )
        self.dims, self.strides, self.dtype = buffers.stored(
            arguments.integers(dims, "device array: dims"),
            None if strides is None else arguments.integers(strides, "device array: strides"),
            type_,
        )
        self.handle = handle or default_handle()
        self._memory = DeviceMemory(self.handle, self._size)
        self._address = self._memory.address

    def view(self, offset: int, dims: Sequence[int], strides: Sequence[int] | None = None) -> DeviceArray:
        """An array of the same type on part of this array's memory.

        Args:
            offset: of its first element, in elements.
            dims: extent of each dimension.
            strides: in elements; contiguous by default.
        """
        view = object.__new__(DeviceArray)
        view.dims = arguments.integers(dims, "device array: dims")
        view.strides = (
            buffers.packed_strides(view.dims)
            if strides is None
            else arguments.integers(strides, "device array: strides")
        )
        view.dtype, view.handle, view._memory = self.dtype, self.handle, self._memory
        view._address = self._address + arguments.integer(offset, "device array: offset") * self._item
        last = self._memory.address + self._memory.size
        if offset < 0 or view._address + view._size > last:
            raise BadParameterError(
                f"device array: a view of {list(view.dims)} at element {offset} needs "
                f"{arguments.counted(view._size, 'byte')}, "
                f"{max(last - view._address, 0)} are available. Give a smaller one."
            )
        return view

    @property
    def ordinal(self) -> int | None:
        """The ordinal of the GPU that holds the memory; None for the host."""
        return self.handle.ordinal if self.handle.device is device_kind.CUDA else None

    @property
    def _size(self) -> int:
        """Bytes from the first element to the last, both included."""
        return buffers.span(self.dims, self.strides) * self._item

    @property
    def _item(self) -> int:
        return dtypes.of(self.dtype).bits // 8

    def copy_from(self, array: Any) -> DeviceArray:
        """Copies a host array of the same dims and type into this one; waits for the copy."""
        import numpy as np

        buffers.refuse_masked(array)
        source = np.asarray(array)
        wanted = dtypes.numpy_dtype(self.dtype)
        if source.shape != self.dims or source.dtype != wanted:
            raise BadParameterError(
                f"device array: it is {wanted}{list(self.dims)}, the array {source.dtype}"
                f"{list(source.shape)}. Convert or reshape the array."
            )
        has_gaps = self._size > source.nbytes  # the bytes between the elements must not change
        staged = self.numpy() if has_gaps else buffers.empty(self.dims, self.strides, self.dtype)
        staged[...] = source
        self._copy(self._address, staged.ctypes.data)
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy in host memory, after all work on the current stream; waits for it."""
        array: np.ndarray[Any, Any] = buffers.empty(self.dims, self.strides, self.dtype)
        self._copy(array.ctypes.data, self._address)
        return array

    def _copy(self, destination: int, source: int) -> None:
        backend.copy(self.handle, destination, source, self._size, stream_of(self.handle))

    def __weft_buffer__(self) -> buffers.Buffer:
        """The description that buffers.describe looks up first."""
        device = (self.handle.device, self.handle.ordinal)
        return buffers.Buffer(
            self._address, self.dims or (1,), self.strides or (1,), self.dtype, *device, True, self
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.handle.device is not device_kind.CUDA:
            raise AttributeError("__cuda_array_interface__: the array is in host memory")
        self._memory.use_on(None)
        return {
            "version": 3,
            "shape": self.dims,
            "strides": tuple(step * self._item for step in self.strides),
            "typestr": dtypes.numpy_dtype(self.dtype).str,
            "data": (self._address, False),
            "stream": stream_of(self.handle) or 1,
        }

    def __repr__(self) -> str:
        called = f"{dtypes.of(self.dtype).name}[{','.join(map(str, self.dims))}]"
        return f"DeviceArray({called}, {self.handle.device.name.lower()}:{self.handle.ordinal})"


def _result(slot: Slot, handle: backend.Handle, stream: int) -> DeviceArray:
    """A new array for the result that work on a stream writes into a slot."""
    array = object.__new__(DeviceArray)
    array.dims, array.strides, array.dtype = buffers.stored(slot.dims, slot.strides, slot.data_type)
    array.handle = handle
    array._memory = DeviceMemory(handle, slot.span, stream)
    array._address = array._memory.address
    return array


def use_on(arrays: Iterable[Any], stream: int | None) -> None:
    """Records that the DeviceArrays among some arrays are used on a stream; None stands for any stream."""
    if DeviceMemory.is_any_on_stream:
        for array in arrays:
            if type(array) is DeviceArray:
                array._memory.use_on(stream)


def _form(array: DeviceArray) -> tuple[Any, ...]:
    return array.dtype, array.dims, array.strides, array.handle.device, array.handle.ordinal


buffers.add_fast_checks(DeviceArray, buffers.FastChecks(_form, lambda array: array._address, None))


def empty_like_kind(slot: Slot, like: Any, handle: backend.Handle, stream: int) -> Any:
    """A new array for a slot, of the same library and on the same device as another one; see buffers.empty.
    If the library's allocator is unknown, as with DLPack, it is a DeviceArray. `stream` is that of the work
    that writes the array."""
    if isinstance(like, DeviceArray):
        return _result(slot, handle, stream)
    is_foreign = like is not None and not buffers.can_allocate(like, slot.data_type)
    if is_foreign and buffers.device_of(like) is not None:
        return _result(slot, handle, stream)
    return buffers.empty(slot.dims, slot.strides, slot.data_type, like)


# ---- Streams -----------------------------------------------------------------------------------------------


def stream_of(handle: backend.Handle, like: Any = None) -> int:
    """The stream to use if a call names none: the handle's if one was set, otherwise the current stream of
    the library in use."""
    if handle.device is device_kind.CPU:
        return 0
    return handle.stream if handle.is_stream_set else current_stream(handle.ordinal, like)


def current_stream(ordinal: int, like: Any = None) -> int:
    """The stream that an array names for its pending work; otherwise torch's current stream, otherwise
    CuPy's; 0, the default stream, if neither is in use."""
    if isinstance(like, DeviceArray):  # faster than its interface, with the same result
        if like.handle.is_stream_set:
            return like.handle.stream
    elif like is not None and not buffers.is_torch(like):
        named = (getattr(like, "__cuda_array_interface__", None) or {}).get("stream")
        if named is not None:
            return int(named)
    torch_stream = _torch_streams()
    if torch_stream is not None:
        return torch_stream(ordinal)
    cupy = sys.modules.get("cupy")
    return int(cupy.cuda.get_current_stream().ptr) if cupy is not None else 0


_known_torch: tuple[Any, Callable[[int], int] | None] = (None, None)
"""torch once it has initialized CUDA, and the function that returns its current stream."""


def _torch_streams() -> Callable[[int], int] | None:
    """The function that returns torch's current stream on a GPU, if torch has initialized CUDA. It is the one
    that torch's compiled code calls, at a tenth of the cost of the public function."""
    global _known_torch
    torch: Any = sys.modules.get("torch")
    if torch is _known_torch[0]:
        return _known_torch[1]
    if torch is None or not torch.cuda.is_initialized():
        return None
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    _known_torch = torch, raw or (lambda ordinal: int(torch.cuda.current_stream(ordinal).cuda_stream))
    return _known_torch[1]


def torch_memory(size: int, ordinal: int, stream: int) -> tuple[int, Any] | None:
    """Memory from torch's allocator if torch is in use: the address and the object that keeps it alive."""
    torch_stream = _torch_streams()
    if torch_stream is None:
        return None
    torch = sys.modules["torch"]
    memory = torch.empty(size, dtype=torch.uint8, device=f"cuda:{ordinal}")
    if stream != torch_stream(ordinal):  # the memory must not be reused before that stream is done
        memory.record_stream(torch.cuda.ExternalStream(stream, device=ordinal))
    return int(memory.data_ptr()), memory


# ---- Memory for a run --------------------------------------------------------------------------------------

HOST_ALIGNMENT = 64
_allocate_on_host = ffi.new_allocator(should_clear_after_alloc=False)


class Scratch:
    """Memory that a thread reuses between runs, by purpose."""

    def __init__(self) -> None:
        self._on_host: Any = None
        self._host_size, self._host_start = 0, ffi.NULL
        self._on_device: dict[object, DeviceMemory] = {}

    def on_host(self, size: int) -> Any:
        """The start of aligned host memory, for the C API."""
        if self._host_size < size:
            self._on_host = _allocate_on_host("char[]", size + HOST_ALIGNMENT)
            start = int(ffi.cast("uintptr_t", self._on_host))
            aligned = -(-start // HOST_ALIGNMENT) * HOST_ALIGNMENT
            self._host_size, self._host_start = size, ffi.cast("void *", aligned)
        return self._host_start

    def on_device(self, what: object, size: int, handle: backend.Handle, stream: int) -> tuple[int, Any]:
        """The address of GPU memory for use on one stream, and the object that keeps it alive. torch's
        allocator gets it back after the run. Without torch it is kept, because a new allocation would wait
        for the device."""
        pooled = torch_memory(size, handle.ordinal, stream)
        if pooled is not None:
            return pooled
        key = (what, stream)
        if key not in self._on_device or self._on_device[key].size < size:
            self._on_device[key] = DeviceMemory(handle, size)
        memory = self._on_device[key]
        return memory.address, memory


class Staging:
    """The host arrays of one run on a GPU: inputs are copied to the device before it, and results back after
    it."""

    def __init__(self, scratch: Scratch, handle: backend.Handle, stream: int) -> None:
        self._scratch, self._handle, self._stream = scratch, handle, stream
        self._kept: list[Any] = []
        self._back: list[tuple[int, int, int]] = []

    def place(self, i: int, address: int, size: int, is_output: bool, has_gaps: bool) -> int:
        """The device address of the copy of `size` bytes of slot i in host memory."""
        if size == 0:
            return address
        there, owner = self._scratch.on_device(i, size, self._handle, self._stream)
        self._kept.append(owner)
        if not is_output or has_gaps:  # the bytes between the elements of an output must come back unchanged
            backend.copy(self._handle, there, address, size, self._stream)
        if is_output:
            self._back.append((address, there, size))
        return there

    def finish(self) -> None:
        """Copies the results back and waits, so that the memory can be reused by the next run on any
        stream."""
        for host, device, size in self._back:
            backend.copy(self._handle, host, device, size, self._stream)
        if self._kept and not self._back:
            backend.synchronize(self._handle, self._stream)
