"""What a run of a plan reads, and what a thread keeps from run to run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import ref

from weft_cffi._weft import ffi

from weft import backend, buffers
from weft.memory import Scratch

Known = tuple[Callable[[], Any], int, "Callable[[Any], object] | None", object]
"""An array that was checked for a slot: a weak reference, its address, what tells its state, if that can
change, and what its state was; see buffers.QuickKind."""


def known_of(value: Any, address: int) -> Known | None:
    """What is to be remembered of an array that was checked; None where its library is not known."""
    kind = buffers.quick_kind_of(value)
    return (ref(value), address, kind.state, kind.state(value) if kind.state else None) if kind else None


def is_known(known: Known, value: Any) -> bool:
    """Whether an array is the one that was checked, on the same memory."""
    return known[0]() is value and (known[2] is None or known[2](value) == known[3])


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
        self.workspace: tuple[Known, int] | None = None  # that was given last, and its bytes
        self.handle: backend.Handle | None = None  # for the streams of frameworks
        self.stream = (0, ffi.NULL)

    def queue(self, stream: int) -> Any:
        """A stream as the C API takes it."""
        if stream != self.stream[0]:
            self.stream = (stream, ffi.cast("void *", stream))
        return self.stream[1]
