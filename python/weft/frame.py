"""What a run of a plan reads, and what a thread keeps from run to run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from weft_cffi._weft import ffi

from weft import backend
from weft.memory import Scratch

Known = tuple[Callable[[], Any], int, "Callable[[Any], object] | None", object]
"""An array that was checked for a slot: a weak reference, its address, what tells its state, if that can
change, and what its state was; see buffers.QuickKind."""


class Frame:
    """What a run reads: addresses, by-value scalars and scratch memory. Runs reuse it, one at a time."""

    def __init__(self, count: int) -> None:
        self.pointers = ffi.new("uint64_t[]", max(count, 1))
        self.scratch = Scratch()
        self._scalars: dict[int, Any] = {}

    def scalar(self, i: int, packed: bytes) -> int:
        """The address of slot i's number in host memory."""
        if i not in self._scalars:
            self._scalars[i] = ffi.new("double[2]")  # aligned for any element
        memory = self._scalars[i]
        ffi.memmove(memory, packed, len(packed))
        return int(ffi.cast("uintptr_t", memory))


class Thread(threading.local):
    """What one thread reuses from run to run."""

    def __init__(self, count: int) -> None:
        self.frame = Frame(count)
        self.pointers = self.frame.pointers
        self.known: list[Known | None] = [None] * count
        self.handle: backend.Handle | None = None  # for the streams of frameworks
        self.stream = (0, ffi.NULL)

    def queue(self, stream: int) -> Any:
        """A stream as the C API takes it."""
        if stream != self.stream[0]:
            self.stream = (stream, ffi.cast("void *", stream))
        return self.stream[1]
