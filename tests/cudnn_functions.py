"""The functions of libcudnn.so.9 through ctypes, with the argument types of compat/cudnn/functions.tsv."""

from __future__ import annotations

import csv
import ctypes as C
import os
from functools import cache
from pathlib import Path
from typing import Any

import weft
from commands import ROOT
from weft import backend

# Another build, such as one with sanitizers.
FOLDER = Path(os.environ.get("WEFT_TEST_CUDNN", ROOT / "build/release/cudnn"))
HEADERS = ROOT / "compat/cudnn/include"
NUMBERS = {
    "float": C.c_float,
    "double": C.c_double,
    "size_t": C.c_size_t,
    "int64_t": C.c_int64,
    "unsigned long long": C.c_ulonglong,
}
OPAQUE = ("Descriptor_t", "Handle_t", "Stream_t", "Graph_t", "Plan_t", "Pack_t", "Callback_t")


def table() -> list[dict[str, str]]:
    """The rows of functions.tsv."""
    with (ROOT / "compat/cudnn/functions.tsv").open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def type_of(text: str) -> Any:
    """How an argument is passed; enumerations are integers."""
    if text.endswith("*") or text.endswith(OPAQUE):
        return C.c_void_p
    return NUMBERS.get(text, C.c_int)


class DeviceMemory:
    """Copies of host memory on a GPU, for functions that take addresses: written before each call, and read
    after it."""

    def __init__(self) -> None:
        self.handle = weft.create_handle("cuda")
        self.blocks: dict[int, tuple[int, int]] = {}  # by host address: device address, bytes
        self.owners: list[Any] = []

    def address(self, host: int, bytes_: int) -> int:
        """The device address of a block of host memory."""
        if host not in self.blocks:
            self.owners.append(backend.allocate(self.handle, max(bytes_, 1)))
            self.blocks[host] = int(backend.ffi.cast("uintptr_t", self.owners[-1])), bytes_
        return self.blocks[host][0]

    def write(self) -> None:
        """Copies all blocks to the device."""
        for host, (device, bytes_) in self.blocks.items():
            backend.copy(self.handle, device, host, bytes_, 0)

    def read(self) -> None:
        """Copies all blocks back, after the work of the default stream."""
        for host, (device, bytes_) in self.blocks.items():
            backend.copy(self.handle, host, device, bytes_, 0)

    def clear(self) -> None:
        """Frees all blocks."""
        self.blocks.clear()
        self.owners.clear()


class Library:
    """A loaded library; functions are attributes without the prefix cudnn, and raise on failure."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.loaded = C.CDLL(str(path))
        self.memory: DeviceMemory | None = None
        self.rows = {row["name"]: row for row in table()}
        self.loaded.weftCudnnCallCount.argtypes = [C.c_char_p]
        self.loaded.weftCudnnCallCount.restype = C.c_long

    @cache  # noqa: B019 (one library per process)
    def function(self, name: str) -> Any:
        """A function with its types."""
        row, found = self.rows[name], self.loaded[name]
        arguments = row["arguments"]
        found.argtypes = [] if arguments in ("void", "?") else [type_of(a) for a in arguments.split(", ")]
        found.restype = C.c_char_p if row["returns"] == "const char *" else type_of(row["returns"])
        return found

    def __getattr__(self, name: str) -> Any:
        function = self.function(f"cudnn{name}")

        def call(*arguments: Any) -> None:
            if self.memory:
                self.memory.write()
            status = function(*arguments)
            if self.memory:
                self.memory.read()
            if status:
                raise CudnnError(name, status, self.message())

        return call

    def message(self) -> str:
        """The message of the last failure; reading clears it."""
        text = C.create_string_buffer(2048)
        self.function("cudnnGetLastErrorString")(text, len(text))
        return text.value.decode()

    def create(self, kind: str) -> C.c_void_p:
        """A descriptor."""
        descriptor = C.c_void_p()
        getattr(self, f"Create{kind}Descriptor")(C.byref(descriptor))
        return descriptor

    def size(self, name: str, *arguments: Any) -> int:
        """The result of a function whose last argument receives a size."""
        size = C.c_size_t()
        getattr(self, name)(*arguments, C.byref(size))
        return size.value

    def calls(self, name: str) -> int:
        """The number of calls of a function in this process."""
        return int(self.loaded.weftCudnnCallCount(f"cudnn{name}".encode()))


class CudnnError(RuntimeError):
    """A status other than success."""

    def __init__(self, name: str, status: int, message: str) -> None:
        super().__init__(f"cudnn{name}: {status}: {message}")
        self.status, self.message = status, message


def ints(values: Any) -> Any:
    """An array of C integers."""
    return (C.c_int * len(values))(*map(int, values))
