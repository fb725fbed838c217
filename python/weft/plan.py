"""Plans: graphs made ready to run. A plan is immutable and may run on many threads at once; each thread has
its own array of addresses and its own workspace."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from weft_cffi._weft import ffi

from weft import backend, buffers, dtypes
from weft.enums import attribute_name, data_type, device_kind
from weft.errors import BadParameterError

WORKSPACE_ALIGNMENT = 64
_allocate = ffi.new_allocator(should_clear_after_alloc=False)


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
    """That the elements take, without gaps."""
    span: int
    """Bytes from the first element to the last, both included."""

    def __str__(self) -> str:
        role = "output" if self.is_output else "input"
        called = f"'{self.name}' (uid {self.uid})" if self.name else f"uid {self.uid}"
        return f"{role} {called}"


class _Thread(threading.local):
    """What one thread reuses from run to run."""

    def __init__(self, count: int) -> None:
        self.pointers = ffi.new("uint64_t[]", max(count, 1))
        self.scalars: dict[int, Any] = {}
        self.workspace: Any = None
        self.workspace_address = 0


class Plan:
    """A graph on an engine, ready to run: call it with arrays by tensor name.

    plan(x=X, w=W) allocates the outputs and returns them, one alone or a tuple in the graph's order;
    out={"y": buffer} writes into given memory instead.

    >>> import numpy as np, weft
    >>> g = weft.Graph(handle=weft.create_handle("cpu"))
    >>> y = g.add(g.tensor([2], data_type="f32", name="x"), 1.0, name="y")
    >>> plan, result = g.build().plan, np.empty(2, "f4")
    >>> plan(x=np.float32([1, 2]))
    array([2., 3.], dtype=float32)
    >>> plan(np.float32([3, 4]), out={"y": result}) is result
    True
    >>> [(slot.name, slot.dims, slot.is_output) for slot in plan.slots]
    [('x', (2,), False), ('y::y', (2,), True)]
    """

    def __init__(
        self,
        descriptor: backend.Descriptor,
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
        values: Mapping[int, Any] | None = None,
    ) -> None:
        self.descriptor = descriptor
        self.tag = descriptor.get_text(attribute_name.EXECUTION_PLAN_TAG_EXT)
        self.workspace_size = int(descriptor.get_one(attribute_name.EXECUTION_PLAN_WORKSPACE_SIZE, "INT64"))
        tensors = {tensor["uid"]: tensor for tensor in self.report["tensors"]}
        uids = descriptor.get(attribute_name.EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT, "INT64")
        self.slots = [_slot(tensors[uid]) for uid in uids]
        self.engine: str = self.report["engine"]
        self.device = device_kind[self.report["device"]["kind"].upper()]
        self.values = dict(values or {})
        self.index: dict[Any, int] = {slot.uid: i for i, slot in enumerate(self.slots)}
        owners = Counter(slot.name.partition("::")[0] for slot in self.slots)
        for i, slot in reversed(list(enumerate(self.slots))):
            owner = slot.name.partition("::")[0]
            if owner and owners[owner] == 1:  # "act" is enough for "act::y"
                self.index[owner] = i
            if slot.name:
                self.index[slot.name] = i
        self._written = [i for i, slot in enumerate(self.slots) if slot.is_output]
        self._outputs = [self.index[uid] for uid in outputs if uid in self.index] or self._written
        read = [i for i, slot in enumerate(self.slots) if not slot.is_output and slot.uid not in self.values]
        self._inputs = [self.index[uid] for uid in inputs if uid in self.index] or read
        self._thread = _Thread(len(self.slots))
        self._run = backend.library().weftExecute

    @cached_property
    def report(self) -> dict[str, Any]:
        """What runs where and why."""
        found: dict[str, Any] = json.loads(self.descriptor.get_text(attribute_name.EXECUTION_PLAN_REPORT_EXT))
        return found

    # ---- Running ----

    def __call__(
        self,
        *arrays: Any,
        out: Mapping[str, Any] | None = None,
        workspace: Any = None,
        stream: int | None = None,
        **named: Any,
    ) -> Any:
        """Runs the plan. Arrays come by position, in the order of the inputs, or by tensor name; out names
        the memory of outputs that are not to be allocated. stream: where a GPU enqueues; by default torch's
        current stream."""
        given = self._gather(arrays, {**named, **(out or {})})
        first = next((value for value in given.values() if buffers.is_torch(value)), None)
        for i in self._written:
            if i not in given:
                given[i] = self._empty(self.slots[i], first)
        results = [given[i] for i in self._outputs]
        thread = self._thread
        kept: list[Any] = []
        for i, slot in enumerate(self.slots):
            if i not in given:
                raise BadParameterError(
                    f"plan: {slot} has no buffer. Give it: {slot.name or 'by position'}=<array of "
                    f"{_shape(slot.data_type, slot.dims)}>."
                )
            thread.pointers[i] = self._checked_pointer(slot, given[i], kept, i)
        self.launch(workspace, self.current_stream(first) if stream is None else stream, first)
        return results[0] if len(results) == 1 else tuple(results)

    def _gather(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> dict[int, Any]:
        given = {self.index[uid]: value for uid, value in self.values.items() if uid in self.index}
        if len(arrays) > len(self._inputs):
            raise BadParameterError(
                f"plan: {len(arrays)} arrays by position, the graph has {len(self._inputs)} inputs: "
                f"{self._names(self._inputs)}. Give outputs as out={{name: buffer}}."
            )
        given |= dict(zip(self._inputs, arrays, strict=False))
        for name, value in named.items():
            if name not in self.index:
                raise BadParameterError(
                    f"plan: no tensor is named '{name}'; the graph has "
                    f"{self._names(range(len(self.slots)))}. Use one of these names."
                )
            given[self.index[name]] = value
        return given

    def _names(self, indices: Sequence[int]) -> str:
        return ", ".join(self.slots[i].name or f"uid {self.slots[i].uid}" for i in indices)

    def _empty(self, slot: Slot, first: Any) -> Any:
        if self.device is device_kind.CUDA and first is None:
            raise BadParameterError(
                f"plan: {slot} needs device memory, which only a torch input tells how to allocate. Give it "
                f"as out={{'{slot.name}': buffer}}."
            )
        return buffers.empty(slot.dims, slot.strides, slot.data_type, first)

    def _checked_pointer(self, slot: Slot, value: Any, kept: list[Any], i: int) -> int:
        """The address of a buffer that fits the slot in shape, layout, type and device."""
        is_number = isinstance(value, float) or buffers.is_numpy_scalar(value)
        if is_number or (slot.is_by_value and isinstance(value, int)):
            return self._scalar_address(slot, value, i)
        if isinstance(value, int):
            return value
        buffer = buffers.describe(value)
        kept.append(buffer.owner)
        self._check_buffer(slot, buffer)
        return buffer.pointer

    def _check_buffer(self, slot: Slot, buffer: buffers.Buffer) -> None:
        expected = device_kind.CPU if slot.is_by_value else self.device
        if buffer.device is not expected:
            where = {device_kind.CPU: "the host", device_kind.CUDA: "a CUDA device"}
            raise BadParameterError(
                f"plan: {slot} must be on {where[expected]}, its buffer is on {where[buffer.device]}. Move "
                "it there, or build the graph with a handle of the other device."
            )
        if slot.is_output and not buffer.is_writable:
            raise BadParameterError(
                f"plan: {slot} is written, its buffer is read-only. Give a writable array."
            )
        bits, is_raw = dtypes.of(slot.data_type).bits, buffer.data_type is data_type.UINT8
        if bits < 8 and is_raw:
            if buffer.elements < slot.bytes:
                self._refuse_shape(slot, buffer)
            return
        if buffer.data_type is not slot.data_type and not (bits == 8 and is_raw):
            raise BadParameterError(
                f"plan: {slot} is {dtypes.of(slot.data_type).name}, its buffer is "
                f"{dtypes.of(buffer.data_type).name}. Convert the array, or declare the tensor with its type."
            )
        if slot.is_by_value and buffer.elements == 1:
            return
        if buffer.dims != slot.dims:
            self._refuse_shape(slot, buffer)
        pairs = zip(buffer.dims, buffer.strides, slot.strides, strict=True)
        if any(extent > 1 and own != wanted for extent, own, wanted in pairs):
            raise BadParameterError(
                f"plan: {slot} has strides {list(slot.strides)}, its buffer {list(buffer.strides)} for dims "
                f"{list(slot.dims)}. Copy the array into that layout, or declare the tensor with tensor_like."
            )

    @staticmethod
    def _refuse_shape(slot: Slot, buffer: buffers.Buffer) -> None:
        raise BadParameterError(
            f"plan: {slot} is {_shape(slot.data_type, slot.dims)}, its buffer "
            f"{_shape(buffer.data_type, buffer.dims)}. Reshape the array, or declare the tensor with its "
            "dims."
        )

    def bind(self, i: int, value: Any) -> None:
        """Puts the address of a buffer into slot i for this thread's next run, checking only what is quick to
        check: where it is and whether it is large enough."""
        slot = self.slots[i]
        address = self._host_address(slot, value, i) if slot.is_by_value else buffers.pointer_of(value)
        size = getattr(value, "nbytes", None)
        if size is not None and size < slot.span and (size < slot.bytes or buffers.is_packed(value)):
            needed = slot.bytes if size < slot.bytes else slot.span
            raise BadParameterError(
                f"execute: {slot} takes {needed} bytes as {_shape(slot.data_type, slot.dims)}, its buffer "
                f"has {size}. Give a larger one."
            )
        is_cuda = getattr(value, "is_cuda", None)
        if is_cuda is not None and is_cuda is not (self.device is device_kind.CUDA and not slot.is_by_value):
            here, there = ("a CUDA device", "the host") if is_cuda else ("the host", "a CUDA device")
            raise BadParameterError(
                f"execute: {slot} must be on {there}, its buffer is on {here}. Move it there, or build the "
                "graph with a handle of the other device."
            )
        self._thread.pointers[i] = address

    def _host_address(self, slot: Slot, value: Any, i: int) -> int:
        """The address of a by-value scalar: of an array's memory, or of a copy of a number."""
        if isinstance(value, float) or buffers.is_numpy_scalar(value):
            return self._scalar_address(slot, float(value), i)
        if isinstance(value, int) and value < 4096:
            raise BadParameterError(
                f"execute: {slot} is by value and its buffer is {value}, which is no address. Give "
                f"{value}.0, or an array."
            )
        return buffers.pointer_of(value)

    def _scalar_address(self, slot: Slot, value: float, i: int) -> int:
        """The address of a Python number in host memory of this thread."""
        if not slot.is_by_value:
            raise BadParameterError(
                f"plan: {slot} is no by-value scalar, its buffer is {value!r}. Give an array."
            )
        if i not in self._thread.scalars:
            self._thread.scalars[i] = ffi.new("double[2]")  # aligned for any element
        memory, packed = self._thread.scalars[i], dtypes.scalar_bytes(slot.data_type, value)
        ffi.memmove(memory, packed, len(packed))
        return int(ffi.cast("uintptr_t", memory))

    def launch(self, workspace: Any, stream: int, like: Any = None) -> None:
        """Runs on the addresses that this thread has bound."""
        thread, held, address = self._thread, None, 0
        if self.workspace_size:
            address, held = self._workspace(thread, workspace, like)
        status = self._run(
            self.descriptor.pointer,
            len(self.slots),
            thread.pointers,
            ffi.cast("void *", address),
            ffi.cast("void *", stream),
        )
        if status:
            backend.check(status)
        del held

    def _workspace(self, thread: _Thread, given: Any, like: Any) -> tuple[int, Any]:
        """The address of memory of the plan's size, and what keeps it alive."""
        if isinstance(given, int) and given:
            return given, None
        if given is not None and not isinstance(given, int):
            size = getattr(given, "nbytes", self.workspace_size)
            if size < self.workspace_size:
                raise BadParameterError(
                    f"execute: the workspace has {size} bytes, the plan needs {self.workspace_size}. "
                    "Allocate get_workspace_size() bytes."
                )
            address = buffers.pointer_of(given)
            if self.device is device_kind.CUDA or address % WORKSPACE_ALIGNMENT == 0:
                return address, given
        if self.device is device_kind.CUDA:
            if "torch" not in sys.modules:
                raise BadParameterError(
                    f"plan: it needs {self.workspace_size} bytes of device memory as workspace. Give "
                    "workspace=<buffer>."
                )
            torch = sys.modules["torch"]
            device = like.device if like is not None else f"cuda:{self.report['device']['ordinal']}"
            memory = torch.empty(self.workspace_size, dtype=torch.uint8, device=device)
            return int(memory.data_ptr()), memory
        if thread.workspace is None:
            thread.workspace = _allocate("char[]", self.workspace_size + WORKSPACE_ALIGNMENT)
            start = int(ffi.cast("uintptr_t", thread.workspace))
            thread.workspace_address = -(-start // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
        return thread.workspace_address, None

    def current_stream(self, like: Any = None) -> int:
        """torch's current stream on the plan's device, else the default stream."""
        if self.device is device_kind.CPU or "torch" not in sys.modules:
            return 0
        ordinal = self.report["device"]["ordinal"] if like is None else like.device.index
        return int(sys.modules["torch"].cuda.current_stream(ordinal).cuda_stream)

    # ---- Words ----

    def explain(self) -> str:
        """What runs where, what it is predicted to cost, and which kernel families declined and why."""
        from weft.explain import explain_text

        return explain_text(self.report)

    def plot(self, path: str | None = None) -> str:
        """The plan as SVG: its steps as frames around the operations; also written to a path if one is
        given."""
        from weft.plot import plot

        return plot(self, path)

    def _repr_svg_(self) -> str:
        return self.plot()

    def serialize(self) -> bytes:
        """The plan as bytes, for Graph.deserialize."""
        return self.descriptor.get_bytes(attribute_name.EXECUTION_PLAN_JSON_REPRESENTATION)

    def __repr__(self) -> str:
        inputs = [slot.name or str(slot.uid) for slot in self.slots if not slot.is_output]
        outputs = [slot.name or str(slot.uid) for slot in self.slots if slot.is_output]
        return (
            f"Plan({self.engine}, {self.tag}: {', '.join(inputs)} -> {', '.join(outputs)}, "
            f"workspace {self.workspace_size} bytes)"
        )


def _slot(tensor: dict[str, Any]) -> Slot:
    type_ = dtypes.data_type_of(tensor["type"])
    assert type_ is not None
    dims, strides, bits = tuple(tensor["dims"]), tuple(tensor["strides"]), dtypes.of(type_).bits
    span = (buffers.span(dims, strides) * bits + 7) // 8
    return Slot(
        tensor["uid"],
        tensor["name"] or "",
        dims,
        strides,
        type_,
        tensor["written"],
        tensor["by_value"],
        min(span, (math.prod(dims) * bits + 7) // 8),
        span,
    )


def _shape(type_: data_type, dims: Sequence[int]) -> str:
    return f"{dtypes.of(type_).name}[{','.join(map(str, dims))}]"
