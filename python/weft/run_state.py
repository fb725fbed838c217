"""What a run of a plan reads, and what a thread keeps from run to run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple
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


LARGEST_FLOAT = 3.4028234663852886e38


class _Scalar(NamedTuple):
    """A by-value number in host memory."""

    memory: Any
    as_float: Any
    address: int


class RunState:
    """What runs of a plan read and reuse: addresses, by-value scalars, scratch memory, and what was checked.
    One run at a time."""

    def __init__(self, count: int) -> None:
        self.pointers = ffi.new("uint64_t[]", max(count, 1))
        self.scratch = Scratch()
        self.known: list[Known | None] = [None] * count
        self.owners: dict[int, Any] = {}
        """What keeps memory until the run has been enqueued, by slot."""
        self.workspace: tuple[Known, int] | None = None  # that was given last, and its bytes
        self.handle: backend.Handle | None = None  # for the streams of frameworks
        self._scalars: dict[int, _Scalar] = {}
        self._stream, self._queue = 0, ffi.NULL

    def queue(self, stream: int) -> Any:
        """A stream as the C API takes it."""
        if stream != self._stream:
            self._stream, self._queue = stream, ffi.cast("void *", stream)
        return self._queue

    def scalar(self, i: int, packed: bytes) -> int:
        """Makes these bytes slot i's number; its address in host memory."""
        found = self._scalar_of(i)
        ffi.memmove(found.memory, packed, len(packed))
        return found.address

    def float_scalar(self, i: int, value: float) -> int:
        """The same, quickly, with a number of type FLOAT; 0 if that does not hold it, or it is not finite."""
        found = self._scalar_of(i)
        found.as_float[0] = value
        return found.address if abs(found.as_float[0]) <= LARGEST_FLOAT else 0

    def _scalar_of(self, i: int) -> _Scalar:
        if i not in self._scalars:
            memory = ffi.new("double[2]")  # aligned for any element
            address = int(ffi.cast("uintptr_t", memory))
            self._scalars[i] = _Scalar(memory, ffi.cast("float *", memory), address)
        return self._scalars[i]


class Thread(threading.local):
    """What one thread reuses from run to run. Reading it costs; a run does so once."""

    def __init__(self, count: int) -> None:
        self.state = RunState(count)
