"""The C API, call by call: thin wrappers that turn statuses into exceptions and own the objects that they
create.

The library is opened at the first call, from $WEFT_LIBRARY, otherwise from the package's lib directory,
otherwise by the system loader.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import warnings
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from weft_cffi._weft import ffi

from weft import enums
from weft.errors import BadParameterError, CompilationWarning, UnavailableError, error_of

SONAME = "libweft.so.1"
BUNDLED = Path(__file__).with_name("lib") / SONAME


@cache
def library_path() -> str:
    """The path with which the library is opened."""
    return os.environ.get("WEFT_LIBRARY") or (str(BUNDLED) if BUNDLED.exists() else SONAME)


@cache
def library() -> Any:
    """The loaded library."""
    path = library_path()
    try:
        if os.path.isfile(path) and _is_truncated(path):
            raise OSError("the file is truncated: its headers describe more bytes than it has")
        opened = ffi.dlopen(path)
    except OSError as error:
        is_chosen = os.environ.get("WEFT_LIBRARY")
        asked = "WEFT_LIBRARY names it" if is_chosen else f"{BUNDLED} does not exist, either"
        raise UnavailableError(
            f"weft: the library {path} cannot be opened ({error}); {asked}. Build it with `make build`, or "
            "set WEFT_LIBRARY to its path."
        ) from None
    try:
        opened.weftSetSearchPaths(":".join(_nvidia_folders()).encode())
    except ffi.error:
        raise UnavailableError(
            f"weft: the library {path} is older than this package and lacks functions that it needs. Build "
            "both with `make build`, or set WEFT_LIBRARY to a newer one."
        ) from None
    return opened


def _is_truncated(path: str) -> bool:
    """True if a 64-bit shared library ends before its last segment does, for example after an interrupted
    copy. Loading it would kill the process with SIGBUS."""
    with open(path, "rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:5] != b"\x7fELF\x02":
            return False
        order = "<" if header[5] == 1 else ">"
        (table,) = struct.unpack_from(order + "Q", header, 32)
        size, count = struct.unpack_from(order + "HH", header, 54)
        file.seek(table)
        segments = file.read(size * count)
        if len(segments) < size * count:
            return True
        ends = [0]
        for at in range(0, len(segments), size):
            (kind,) = struct.unpack_from(order + "I", segments, at)
            offset, _, _, bytes_in_file = struct.unpack_from(order + "4Q", segments, at + 8)
            ends += [offset + bytes_in_file] if kind == 1 else []
        return os.fstat(file.fileno()).st_size < max(ends)


def _nvidia_folders() -> list[str]:
    """The directories of installed NVIDIA packages, which may contain the run-time compiler."""
    places = [os.path.abspath(place) for place in sys.path]
    return [place for place in places if ":" not in place and os.path.isdir(os.path.join(place, "nvidia"))]


def check(status: int) -> None:
    """Raises the exception for a failed call. Also warns about a kernel that does not compile, because
    callers may fall back to another plan or to the framework's own operators and so hide the error."""
    if status:
        message = get_last_error_string() or ffi.string(library().weftGetErrorString(status)).decode()
        if status == enums.status.INTERNAL_ERROR_COMPILATION_FAILED:
            _warn_of_compilation(message)
        raise error_of(status, message)


@cache
def _warn_of_compilation(message: str) -> None:
    """Warns once per message; every time if warnings are turned into errors."""
    warnings.warn(f"a kernel of Weft does not compile. {message}", CompilationWarning, stacklevel=3)


def get_version() -> int:
    """The version of the loaded library: MAJOR * 10000 + MINOR * 100 + PATCHLEVEL."""
    return int(library().weftGetVersion())


def get_last_error_string() -> str:
    """The message of the calling thread's last failed call; empty if the last call succeeded."""
    text = ffi.new("char[4096]")
    library().weftGetLastErrorString(text, 4096)
    return str(ffi.string(text).decode(errors="replace"))


# ---- Handles -----------------------------------------------------------------------------------------------


_open_handles: WeakValueDictionary[int, Handle] = WeakValueDictionary()


def handle_of(value: Handle | int | None) -> Handle | None:
    """The handle for a Handle or an int(handle); None for None and 0."""
    if value is None or isinstance(value, Handle):
        return value
    known = _open_handles.get(value) if isinstance(value, int) else None
    if known is None and value != 0:
        raise BadParameterError(
            f"handle: {value!r} is not an open handle. Give the result of create_handle()."
        )
    return known


class Handle:
    """An open device and the stream on which calls enqueue work. Closed when the last reference is
    dropped."""

    def __init__(self, device: int | str | None = None, ordinal: int = 0) -> None:
        pointer = ffi.new("weftHandle_t *")
        if device is None:
            check(library().weftCreate(pointer))
        else:
            kind = enums.member(enums.device_kind, device)
            check(library().weftCreateForDevice(pointer, int(kind), ordinal))
        self._pointer = ffi.gc(pointer[0], library().weftDestroy)
        _open_handles[int(self)] = self
        properties = Descriptor(enums.descriptor_type.DEVICEPROP_DESCRIPTOR)
        properties.set(enums.attribute_name.DEVICEPROP_HANDLE, "HANDLE", [self.pointer])
        properties.finalize()
        self.device = enums.device_kind(properties.get_one(enums.attribute_name.DEVICEPROP_KIND_EXT, "INT64"))
        self.ordinal = int(properties.get_one(enums.attribute_name.DEVICEPROP_DEVICE_ID, "INT32"))
        self.stream, self.is_stream_set = 0, False

    @property
    def pointer(self) -> Any:
        """The C handle."""
        if self._pointer is None:
            raise BadParameterError("handle: it was destroyed. Create a new one with create_handle().")
        return self._pointer

    def set_stream(self, stream: int | None) -> None:
        """Sets the stream, a CUstream or cudaStream_t as an integer; 0 is the default stream. None restores
        the initial state, in which the current stream of the array's framework is used."""
        check(library().weftSetStream(self.pointer, ffi.cast("void *", stream or 0)))
        self.stream, self.is_stream_set = int(stream or 0), stream is not None

    def synchronize(self) -> None:
        """Waits for the work on the handle's stream; work on a CPU is already complete."""
        synchronize(self, self.stream)

    def close(self) -> None:
        """Destroys the handle; objects created with it stay valid."""
        if self._pointer is not None:
            ffi.release(self._pointer)
            self._pointer = None

    def __int__(self) -> int:
        return int(ffi.cast("uintptr_t", self.pointer))

    __index__ = __int__

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self._pointer is not None else ", closed"
        return f"Handle({self.device.name.lower()}:{self.ordinal}{state})"


# ---- Descriptors -------------------------------------------------------------------------------------------

# The C type of an attribute's elements; enumerations are all int32_t.
_ELEMENTS = {
    "HANDLE": "weftHandle_t",
    "BOOLEAN": "_Bool",
    "INT64": "int64_t",
    "FLOAT": "float",
    "DOUBLE": "double",
    "VOID_PTR": "void *",
    "BACKEND_DESCRIPTOR": "weftBackendDescriptor_t",
    "INT32": "int32_t",
    "CHAR": "char",
    "FRACTION": "weftFraction_t",
}


SHORT, SHORT_TEXT = 16, 2048
"""Number of elements and bytes of text that are read in the first call; few attributes have more."""


@cache
def _type_of(kind: str) -> tuple[int, Any]:
    """The number of an attribute type and the C type of an array of its elements."""
    return int(enums.attribute_type[kind]), ffi.typeof(f"{_ELEMENTS.get(kind, 'int32_t')}[]")


_COUNT, _DESCRIPTOR = ffi.typeof("int64_t *"), ffi.typeof("weftBackendDescriptor_t *")
_TEXT = ffi.typeof(f"char[{SHORT_TEXT}]")


class Descriptor:
    """A tensor, operation, graph or plan: any object with attributes. Released when the last reference is
    dropped."""

    __slots__ = ("__weakref__", "kind", "pointer")

    def __init__(self, kind: int) -> None:
        pointer, functions = ffi.new(_DESCRIPTOR), library()
        check(functions.weftBackendCreateDescriptor(int(kind), pointer))
        self.pointer = ffi.gc(pointer[0], functions.weftBackendDestroyDescriptor)
        self.kind = kind

    def set(self, name: int, kind: str, values: Iterable[Any]) -> None:
        """Sets an attribute. `kind` is the element type, such as "INT64"; `values` are the elements."""
        number, array = _type_of(kind)
        if kind == "CHAR":
            text = values.encode() if isinstance(values, str) else bytes(values)
            if isinstance(values, str) and "\0" in values:
                raise BadParameterError(
                    f"text {values!r:.80} contains a NUL character, which terminates strings in C. Leave it "
                    "out."
                )
            elements, count = ffi.from_buffer("char[]", text), len(text)
        else:
            given = values if isinstance(values, (list, tuple)) else list(values)
            plain = [held.pointer for held in given] if kind == "BACKEND_DESCRIPTOR" else given
            elements, count = ffi.new(array, plain), len(plain)
        status = library().weftBackendSetAttribute(self.pointer, name, number, count, elements)
        if status:
            check(status)

    def finalize(self) -> None:
        """Checks the descriptor, infers unset attributes, and makes it immutable."""
        check(library().weftBackendFinalize(self.pointer))

    def count(self, name: int, kind: str) -> int:
        """The number of elements of an attribute."""
        return self._read(name, kind, 0, ffi.NULL)

    def _read(self, name: int, kind: str, room: int, elements: Any) -> int:
        """Reads at most `room` elements of an attribute and returns how many it has."""
        count = ffi.new(_COUNT)
        get = library().weftBackendGetAttribute
        check(get(self.pointer, name, _type_of(kind)[0], room, count, elements))
        return int(count[0])

    def get(self, name: int, kind: str) -> list[Any]:
        """The elements of an attribute. Text is returned as one element; see get_text."""
        array = _type_of(kind)[1]
        elements = ffi.new(array, SHORT)
        count = self._read(name, kind, SHORT, elements)
        if count > SHORT:
            elements = ffi.new(array, count)
            self._read(name, kind, count, elements)
        found: list[Any] = ffi.unpack(elements, count)
        return found

    def get_one(self, name: int, kind: str) -> Any:
        """The single element of an attribute."""
        return self.get(name, kind)[0]

    def get_bytes(self, name: int) -> bytes:
        """An attribute of type CHAR as bytes."""
        text = ffi.new(_TEXT)
        count = self._read(name, "CHAR", SHORT_TEXT, text)
        if count > SHORT_TEXT:
            text = ffi.new("char[]", count)
            self._read(name, "CHAR", count, text)
        return bytes(ffi.buffer(text, count))

    def get_text(self, name: int) -> str:
        """An attribute of type CHAR as text."""
        return self.get_bytes(name).decode(errors="replace")

    def get_descriptors(self, name: int, kind: int) -> list[Descriptor]:
        """The descriptors of the given kind that an attribute contains."""
        descriptors = [Descriptor(kind) for _ in range(self.count(name, "BACKEND_DESCRIPTOR"))]
        if descriptors:
            array = ffi.new("weftBackendDescriptor_t[]", [d.pointer for d in descriptors])
            self._read(name, "BACKEND_DESCRIPTOR", len(descriptors), array)
        return descriptors


# ---- Execution ---------------------------------------------------------------------------------------------


def backend_execute(handle: Handle, plan: Descriptor, variant_pack: Descriptor) -> None:
    """Runs a plan with the memory of a variant pack on the handle's stream."""
    check(library().weftBackendExecute(handle.pointer, plan.pointer, variant_pack.pointer))


def execute(plan: Descriptor, pointers: Iterable[int], workspace: int = 0, stream: int = 0) -> None:
    """Runs a plan with one address per slot."""
    array = ffi.new("uint64_t[]", list(pointers))
    memory = ffi.cast("void *", workspace)
    check(library().weftExecute(plan.pointer, len(array), array, memory, ffi.cast("void *", stream)))


def freeze(plan: Descriptor, pointers: Any, count: int) -> None:
    """Allows a plan to cache packed copies of the memory at these addresses; address 0 excludes a slot."""
    check(library().weftFreeze(plan.pointer, count, pointers))


def measure(plan: Descriptor, pointers: Any, count: int, workspace: int, stream: int, repeats: int) -> float:
    """The mean seconds per run, measured with stream events on a GPU and with the clock on a CPU."""
    seconds = ffi.new("double *")
    memory, queue = ffi.cast("void *", workspace), ffi.cast("void *", stream)
    check(library().weftMeasure(plan.pointer, count, pointers, memory, queue, repeats, seconds))
    return float(seconds[0])


def measure_steps(
    plan: Descriptor, pointers: Any, count: int, workspace: int, stream: int, repeats: int, steps: int
) -> list[float]:
    """The mean seconds of each step per run, measured with marks between the steps."""
    seconds = ffi.new("double[]", max(1, steps))
    memory, queue = ffi.cast("void *", workspace), ffi.cast("void *", stream)
    check(library().weftMeasureSteps(plan.pointer, count, pointers, memory, queue, repeats, steps, seconds))
    return [float(each) for each in seconds[0:steps]]


def get_execution_plan_workspace_size(handle: Handle, plan: Descriptor, variant_pack: Descriptor) -> int:
    """The workspace in bytes that a plan needs for the shapes that a variant pack overrides."""
    size = ffi.new("size_t *")
    check(
        library().weftGetExecutionPlanWorkspaceSize(handle.pointer, plan.pointer, variant_pack.pointer, size)
    )
    return int(size[0])


# ---- Memory of devices -------------------------------------------------------------------------------------


def allocate(handle: Handle, size: int) -> Any:
    """Allocates memory on the handle's device; the returned object owns it."""
    pointer = ffi.new("void **")
    check(library().weftAllocate(handle.pointer, size, pointer))
    # Bind the C function and the handle's pointer: Python objects may already be gone when the process exits.
    return ffi.gc(pointer[0], partial(library().weftFree, handle.pointer), size)


def allocate_on_stream(handle: Handle, size: int, stream: int) -> Any:
    """Allocates memory for work on one stream; memory freed on that stream is reused."""
    pointer, queue = ffi.new("void **"), ffi.cast("void *", stream)
    check(library().weftAllocateOnStream(handle.pointer, size, queue, pointer))
    return ffi.gc(pointer[0], partial(library().weftFreeOnStream, handle.pointer, size, queue), size)


def own_without_stream(handle: Handle, pointer: Any) -> Any:
    """Takes ownership of memory from allocate_on_stream; it is freed after the pending work of all
    streams."""
    ffi.gc(pointer, None)
    return ffi.gc(ffi.cast("void *", pointer), partial(library().weftFree, handle.pointer))


def copy(handle: Handle, destination: int, source: int, size: int, stream: int) -> None:
    """Copies bytes between host and device after the pending work of a stream, and waits for the copy."""
    to, of = ffi.cast("void *", destination), ffi.cast("void *", source)
    check(library().weftCopy(handle.pointer, to, of, size, ffi.cast("void *", stream)))


def synchronize(handle: Handle, stream: int) -> None:
    """Waits for the work of a stream."""
    check(library().weftSynchronize(handle.pointer, ffi.cast("void *", stream)))


# ---- Asking the library ------------------------------------------------------------------------------------


def _text(function: Any, *arguments: Any) -> str:
    size, text, room = ffi.new("size_t *"), ffi.NULL, 0
    while True:
        check(function(*arguments, text, room, size))
        if size[0] <= room:
            return str(ffi.string(text).decode())
        # another process may change the described state, such as the cache, between the two calls
        room = int(size[0])
        text = ffi.new("char[]", room)


def query_support(graph: Descriptor, device_properties: Descriptor | None = None) -> list[dict[str, Any]]:
    """The engines that can run a graph, with predicted times, and the reasons why the others cannot."""
    device = ffi.NULL if device_properties is None else device_properties.pointer
    answer: list[dict[str, Any]] = json.loads(_text(library().weftQuerySupport, graph.pointer, device))
    return answer


def describe() -> dict[str, Any]:
    """Every descriptor kind, operation and pointwise mode of the loaded library."""
    answer: dict[str, Any] = json.loads(_text(library().weftDescribe))
    return answer


def describe_machine() -> dict[str, Any]:
    """The machine's GPU environment: driver, run-time compilers and kernel cache."""
    answer: dict[str, Any] = json.loads(_text(library().weftDescribeMachine))
    return answer


class Row(NamedTuple):
    """One attribute of a descriptor kind."""

    name: int
    key: str
    type: str
    role: str
    storage: str
    required: bool
    target: int | None
    is_parameter: bool
    """True if it belongs to the operation's parameter descriptor."""


class Operation(NamedTuple):
    """An operation as described by the library."""

    kind: int
    parameters: int | None
    """The kind of its parameter descriptor."""
    parameters_row: int | None
    """The attribute that contains the parameter descriptor."""
    rows: dict[str, list[Row]]
    """Attributes by key; an attribute that accepts one of two types has two rows."""


@cache
def operations() -> dict[str, Operation]:
    """The operations of the loaded library by name."""
    described = describe()
    parameters = {d["kind"]: d["rows"] for d in described["descriptors"]}
    by_name = {}
    for op in described["operations"]:
        rows: dict[str, list[Row]] = {}
        own = [(row, False) for row in op["rows"]]
        for row, is_parameter in own + [(row, True) for row in parameters.get(op["parameters"], ())]:
            fields = {field: row[field] for field in Row._fields if field in row}
            rows.setdefault(row["key"], []).append(Row(**fields, is_parameter=is_parameter))
        kind = op["parameters"]
        holders = (row["name"] for row in op["rows"] if kind is not None and row.get("target") == kind)
        by_name[op["name"]] = Operation(op["kind"], kind, next(holders, None), rows)
    return by_name
