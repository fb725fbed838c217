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
from weft.enums import attribute_name, data_type, descriptor_type, device_kind
from weft.errors import BadParameterError

Overrides = tuple[Sequence[int], Sequence[Sequence[int]], Sequence[Sequence[int]]]
"""Uids, dims and strides of tensors that have another shape in one run."""

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
        self.workspace_size = 0
        self.workspace_address = 0
        self.handle: backend.Handle | None = None  # for torch's streams


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
        named, owners = Counter(slot.name for slot in self.slots), Counter(map(_owner, self.slots))
        # "act" is enough for "act::y".
        self.index |= {_owner(s): i for i, s in enumerate(self.slots) if owners[_owner(s)] == 1 and s.name}
        self.index |= {s.name: i for i, s in enumerate(self.slots) if named[s.name] == 1 and s.name}
        self._shared_names = {name for name, count in named.items() if count > 1 and name}
        self._types: list[set[Any]] = [set() for _ in self.slots]
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
        if out is not None and not isinstance(out, Mapping):
            first = self.slots[self._written[0]]
            raise BadParameterError(
                f"plan: out is {type(out).__name__}. Give a dict of outputs and their memory: "
                f"out={{{first.name or first.uid!r}: buffer}}."
            )
        return self.run(arrays, {**named, **(out or {})}, workspace, stream)

    def run(
        self,
        arrays: Sequence[Any],
        named: Mapping[Any, Any],
        workspace: Any = None,
        stream: int | None = None,
    ) -> Any:
        """Runs the plan on arrays by position and by tensor name or uid; allocates outputs without memory."""
        given = self._gather(arrays, named)
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

    def _gather(self, arrays: Sequence[Any], named: Mapping[Any, Any]) -> dict[int, Any]:
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
                    self.shared_name("plan", name)
                    or f"plan: no tensor is named '{name}'; the graph has "
                    f"{self._names(range(len(self.slots)))}. Use one of these names."
                )
            given[self.index[name]] = value
        return given

    def shared_name(self, where: str, name: object) -> str:
        """What to say when a name stands for several tensors; empty when it does not."""
        if name not in self._shared_names:
            return ""
        uids = [str(slot.uid) for slot in self.slots if slot.name == name]
        return (
            f"{where}: {len(uids)} tensors are named '{name}', of uids {', '.join(uids)}. Use the tensors or "
            "uids with execute, or give them different names."
        )

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
        is_number = isinstance(value, (bool, float)) or buffers.is_numpy_scalar(value)
        if is_number or (slot.is_by_value and isinstance(value, int)):
            return self._scalar_address("plan", slot, value, i)
        if isinstance(value, int):
            return value
        buffer = buffers.describe(value)
        kept.append(buffer.owner)
        if slot.is_by_value and buffer.data_type is not slot.data_type and buffer.elements == 1:
            self._check_device("plan", slot, buffer.device is device_kind.CUDA)
            return self._scalar_address("plan", slot, value, i)
        self._check_buffer(slot, buffer)
        return buffer.pointer

    def _check_buffer(self, slot: Slot, buffer: buffers.Buffer) -> None:
        self._check_device("plan", slot, buffer.device is device_kind.CUDA)
        self._check_writable("plan", slot, buffer.is_writable)
        _check_type("plan", slot, buffer.data_type)
        if dtypes.of(slot.data_type).bits < 8:
            if buffer.elements < slot.bytes:
                self._refuse_shape(slot, buffer)
            return
        if slot.is_by_value and buffer.elements == 1:
            return
        if buffer.dims != slot.dims:
            self._refuse_shape(slot, buffer)
        if 0 in slot.dims:  # nothing lies anywhere
            return
        pairs = zip(buffer.dims, buffer.strides, slot.strides, strict=True)
        if any(extent > 1 and own != wanted for extent, own, wanted in pairs):
            raise BadParameterError(
                f"plan: {slot} has strides {list(slot.strides)}, its buffer {list(buffer.strides)} for dims "
                f"{list(slot.dims)}. Copy the array into that layout, or declare the tensor with tensor_like."
            )

    def _check_device(self, where: str, slot: Slot, is_cuda: bool) -> None:
        if is_cuda is not (self.device is device_kind.CUDA and not slot.is_by_value):
            here, there = ("a CUDA device", "the host") if is_cuda else ("the host", "a CUDA device")
            raise BadParameterError(
                f"{where}: {slot} must be on {there}, its buffer is on {here}. Move it there, or build the "
                "graph with a handle of the other device."
            )

    @staticmethod
    def _check_writable(where: str, slot: Slot, is_writable: bool) -> None:
        if slot.is_output and not is_writable:
            raise BadParameterError(
                f"{where}: {slot} is written, its buffer is read-only. Give a writable array."
            )

    @staticmethod
    def _refuse_shape(slot: Slot, buffer: buffers.Buffer) -> None:
        raise BadParameterError(
            f"plan: {slot} is {_shape(slot.data_type, slot.dims)}, its buffer "
            f"{_shape(buffer.data_type, buffer.dims)}. Reshape the array, or declare the tensor with its "
            "dims."
        )

    # ---- Running without looking at shapes ----

    def bind(self, i: int, value: Any, slot: Slot) -> None:
        """Puts the address of a buffer into slot i for this thread's next run, checking what is quick to
        check: device, type, whether it may be written, and whether it is large enough. slot: slots[i], or
        what stands for it in this run."""
        if type(value) is int:
            self._thread.pointers[i] = self._checked_address(slot, value)
            return
        if isinstance(value, (bool, float)) or (slot.is_by_value and buffers.is_numpy_scalar(value)):
            self.bind_number(i, value)
            return
        pointer, dtype, size, is_writable, is_cuda = buffers.memory_of(value)
        self._check_device("execute", slot, is_cuda)
        is_new = dtype not in self._types[i]
        if is_new and slot.is_by_value and size and _type_of(dtype) is not slot.data_type:
            self._thread.pointers[i] = self._scalar_address("execute", slot, value, i)
            return
        if size < slot.span:
            raise BadParameterError(
                f"execute: {slot} takes {slot.span} bytes as {_shape(slot.data_type, slot.dims)}, its buffer "
                f"has {size}. Give a larger one."
            )
        if is_new:
            _check_type("execute", slot, dtype)
            self._types[i].add(dtype)
        self._check_writable("execute", slot, is_writable)
        self._thread.pointers[i] = pointer

    def bind_number(self, i: int, value: float) -> None:
        """Makes a number the value of by-value slot i for this thread's next run."""
        self._thread.pointers[i] = self._scalar_address("execute", self.slots[i], value, i)

    def bind_address(self, i: int, address: int) -> None:
        """Puts an address into slot i for this thread's next run, unchecked."""
        self._thread.pointers[i] = address

    @staticmethod
    def _checked_address(slot: Slot, address: int) -> int:
        if slot.is_by_value and address < 4096:
            raise BadParameterError(
                f"execute: {slot} is by value and its buffer is {address}, which is no address. Give "
                f"{address}.0, or an array."
            )
        return address

    def _scalar_address(self, where: str, slot: Slot, value: Any, i: int) -> int:
        """The address of a number in host memory of this thread. Python's numbers are rounded to the slot's
        type; those of other libraries, which have types of their own, must be exact in it."""
        if not slot.is_by_value:
            raise BadParameterError(
                f"{where}: {slot} is no by-value scalar, its buffer is {value!r}. Give an array."
            )
        number = value if isinstance(value, (int, float)) else _number_of(value)
        is_exact = not isinstance(value, (int, float))
        packed = dtypes.fitting_bytes(slot.data_type, number, is_exact)
        if packed is None:
            raise BadParameterError(
                f"{where}: {slot} is {dtypes.of(slot.data_type).name}, which does not hold its value "
                f"{number!r}. Give a value of that type, or declare the tensor with another."
            )
        if i not in self._thread.scalars:
            self._thread.scalars[i] = ffi.new("double[2]")  # aligned for any element
        memory = self._thread.scalars[i]
        ffi.memmove(memory, packed, len(packed))
        return int(ffi.cast("uintptr_t", memory))

    def overridden(self, overrides: Overrides) -> list[Slot]:
        """The slots as they are when tensors have other dims and strides for one run."""
        uids, shapes, strides = overrides
        if not len(uids) == len(shapes) == len(strides):
            raise BadParameterError(
                f"execute: {len(uids)} override_uids, {len(shapes)} override_shapes and {len(strides)} "
                "override_strides. Give one of each per tensor."
            )
        slots, ranks = list(self.slots), {t["uid"]: len(t["dims"]) for t in self.report["tensors"]}
        for uid, dims, steps in zip(uids, shapes, strides, strict=True):
            if uid not in ranks:
                raise BadParameterError(
                    f"execute: override_uids names uid {uid}, which no tensor has. Use one of "
                    f"{', '.join(map(str, ranks))}."
                )
            if not len(dims) == len(steps) == ranks[uid]:
                raise BadParameterError(
                    f"execute: the tensor of uid {uid} has {ranks[uid]} dims, its override shape "
                    f"{list(dims)} and strides {list(steps)}. Give a number per dimension."
                )
            if uid in self.index:
                i = self.index[uid]
                slots[i] = slots[i]._replace(**_sizes(dims, steps, slots[i].data_type))
        return slots

    def launch_overridden(
        self, overrides: Overrides, workspace: Any, handle: backend.Handle, like: Any = None
    ) -> None:
        """Runs on the addresses that this thread has bound, with other shapes, on the handle's stream."""
        address, held = 0, None
        pack = self._variant_pack(overrides, address)
        size = backend.get_execution_plan_workspace_size(handle, self.descriptor, pack)
        if size:
            address, held = self._workspace(self._thread, workspace, like, size)
            pack = self._variant_pack(overrides, address)
        backend.backend_execute(handle, self.descriptor, pack)
        del held

    def _variant_pack(self, overrides: Overrides, workspace: int) -> backend.Descriptor:
        pack = backend.Descriptor(descriptor_type.VARIANT_PACK_DESCRIPTOR)
        pointers = [ffi.cast("void *", self._thread.pointers[i]) for i in range(len(self.slots))]
        pack.set(attribute_name.VARIANT_PACK_UNIQUE_IDS, "INT64", [slot.uid for slot in self.slots])
        pack.set(attribute_name.VARIANT_PACK_DATA_POINTERS, "VOID_PTR", pointers)
        uids, shapes, strides = overrides
        pack.set(attribute_name.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, "INT64", uids)
        pack.set(attribute_name.VARIANT_PACK_OVERRIDE_SHAPES, "INT64", [n for dims in shapes for n in dims])
        pack.set(attribute_name.VARIANT_PACK_OVERRIDE_STRIDES, "INT64", [n for step in strides for n in step])
        if workspace:
            address = ffi.cast("void *", workspace)
            pack.set(attribute_name.VARIANT_PACK_WORKSPACE, "VOID_PTR", [address])
        pack.finalize()
        return pack

    def handle_on_current_stream(self) -> backend.Handle:
        """A handle of this thread that enqueues on torch's current stream."""
        ordinal = self.report["device"]["ordinal"]
        if self._thread.handle is None:
            self._thread.handle = backend.Handle(self.device, ordinal)
        self._thread.handle.set_stream(self.current_stream())
        return self._thread.handle

    def launch(self, workspace: Any, stream: int, like: Any = None) -> None:
        """Runs on the addresses that this thread has bound."""
        thread, held, address = self._thread, None, 0
        if self.workspace_size:
            address, held = self._workspace(thread, workspace, like, self.workspace_size)
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

    def _workspace(self, thread: _Thread, given: Any, like: Any, needed: int) -> tuple[int, Any]:
        """The address of memory of the needed size, and what keeps it alive."""
        if isinstance(given, int) and given:
            return given, None
        if given is not None and not isinstance(given, int):
            address, _, size, *_ = buffers.memory_of(given)
            if size < needed:
                raise BadParameterError(
                    f"execute: the workspace has {size} bytes, the plan needs {needed}. Allocate "
                    "get_workspace_size() bytes, or leave it out."
                )
            if self.device is device_kind.CUDA or address % WORKSPACE_ALIGNMENT == 0:
                return address, given
        if self.device is device_kind.CUDA:
            if "torch" not in sys.modules:
                raise BadParameterError(
                    f"plan: it needs {needed} bytes of device memory as workspace. Give "
                    "workspace=<buffer>."
                )
            torch = sys.modules["torch"]
            device = like.device if like is not None else f"cuda:{self.report['device']['ordinal']}"
            memory = torch.empty(needed, dtype=torch.uint8, device=device)
            return int(memory.data_ptr()), memory
        if thread.workspace_size < needed:
            thread.workspace = _allocate("char[]", needed + WORKSPACE_ALIGNMENT)
            thread.workspace_size = needed
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


def _owner(slot: Slot) -> str:
    """The operation that a result is named after."""
    return slot.name.partition("::")[0]


def _slot(tensor: dict[str, Any]) -> Slot:
    type_ = dtypes.data_type_of(tensor["type"])
    assert type_ is not None
    sizes = _sizes(tensor["dims"], tensor["strides"], type_)
    roles = {"is_output": tensor["written"], "is_by_value": tensor["by_value"]}
    return Slot(uid=tensor["uid"], name=tensor["name"] or "", data_type=type_, **roles, **sizes)


def _sizes(dims: Sequence[int], strides: Sequence[int], type_: data_type) -> dict[str, Any]:
    """The fields of a slot that follow from its shape."""
    bits = dtypes.of(type_).bits
    span = (buffers.span(tuple(dims), tuple(strides)) * bits + 7) // 8
    packed = (math.prod(dims) * bits + 7) // 8
    return {"dims": tuple(dims), "strides": tuple(strides), "bytes": min(span, packed), "span": span}


def _shape(type_: data_type, dims: Sequence[int]) -> str:
    return f"{dtypes.of(type_).name}[{','.join(map(str, dims))}]"


def _type_of(dtype: Any) -> data_type | None:
    """The data type of a dtype; None where Weft has none."""
    try:
        return dtypes.data_type_of(dtype)
    except BadParameterError:
        return None


def _check_type(where: str, slot: Slot, dtype: Any) -> None:
    """Whether a buffer's elements are those of a slot. Raw bytes serve types of at most 8 bits, and Booleans
    in bytes are whole numbers too."""
    type_, own = _type_of(dtype), slot.data_type
    bits = dtypes.of(own).bits
    if type_ is data_type.BYTE_BOOLEAN and own is data_type.BOOLEAN:
        raise BadParameterError(
            f"{where}: {slot} is BOOLEAN, 1 bit per element, its buffer has 1 byte per element. Declare the "
            "tensor as BYTE_BOOLEAN."
        )
    is_raw = type_ is data_type.UINT8 or (type_ is data_type.INT8 and bits < 8)
    is_boolean = type_ is data_type.BYTE_BOOLEAN and own in (data_type.UINT8, data_type.INT8)
    if type_ is own or (is_raw and bits <= 8) or (is_boolean and not slot.is_output):
        return
    raise BadParameterError(
        f"{where}: {slot} is {dtypes.of(own).name}, its buffer is "
        f"{dtype if type_ is None else dtypes.of(type_).name}. Convert the array, or declare the tensor with "
        "its type."
    )


def _number_of(value: Any) -> float:
    """The number that an array of one element, or a scalar of NumPy's, holds."""
    if buffers.is_numpy_scalar(value):
        number = value.item()
        return number if isinstance(number, (int, float)) else float(number)
    buffer = buffers.describe(value)
    size = dtypes.of(buffer.data_type).bits // 8
    return dtypes.scalar_value(buffer.data_type, ffi.buffer(ffi.cast("char *", buffer.pointer), size)[:])
