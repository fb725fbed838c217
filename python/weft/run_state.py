"""The addresses and memory that a run of a plan uses, and the state that a thread reuses between runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

from weft_cffi._weft import ffi

from weft import backend, buffers
from weft.memory import Scratch

Known = tuple[Callable[[], Any], int, "Callable[[Any], object] | None", object]
"""An array that was checked for a slot: a weak reference, its address, the function that returns its state if
that can change, and the state at the time of the check; see buffers.FastChecks."""


def known_of(value: Any, address: int) -> Known | None:
    """The record of a checked array, or None if its library is not supported."""
    kind = buffers.fast_checks_of(value)
    return (ref(value), address, kind.state, kind.state(value) if kind.state else None) if kind else None


def is_known(known: Known, value: Any) -> bool:
    """True if a value is the array that was checked, with unchanged memory."""
    return known[0]() is value and (known[2] is None or known[2](value) == known[3])


LARGEST_FLOAT = 3.4028234663852886e38


class _Scalar(NamedTuple):
    """A by-value number in host memory."""

    memory: Any
    as_float: Any
    address: int


class RunState:
    """State that runs of a plan read and reuse: addresses, by-value scalars, scratch memory, checked arrays.
    Used by one run at a time."""

    def __init__(self, count: int) -> None:
        self.pointers = ffi.new("uint64_t[]", max(count, 1))
        self.scratch = Scratch()
        self.known: list[Known | None] = [None] * count
        self.owners: dict[int, Any] = {}
        """By slot, the objects that keep memory alive until the run has been enqueued."""
        # the last workspace that a caller passed, and its size in bytes
        self.workspace: tuple[Known, int] | None = None
        self.handle: backend.Handle | None = None  # used with the streams of frameworks
        self._scalars: dict[int, _Scalar] = {}
        self._stream, self._queue = 0, ffi.NULL

    def queue(self, stream: int) -> Any:
        """The stream as an argument of the C API."""
        if stream != self._stream:
            self._stream, self._queue = stream, ffi.cast("void *", stream)
        return self._queue

    def scalar(self, i: int, packed: bytes) -> int:
        """Stores these bytes as the value of slot i and returns their address in host memory."""
        number = self._scalar_of(i)
        ffi.memmove(number.memory, packed, len(packed))
        return number.address

    def float_scalar(self, i: int, value: float) -> int:
        """A faster `scalar` for a value of type FLOAT; returns 0 if the value is out of range or not
        finite."""
        number = self._scalar_of(i)
        number.as_float[0] = value
        return number.address if abs(number.as_float[0]) <= LARGEST_FLOAT else 0

    def _scalar_of(self, i: int) -> _Scalar:
        if i not in self._scalars:
            memory = ffi.new("double[2]")  # aligned for every element type
            address = int(ffi.cast("uintptr_t", memory))
            self._scalars[i] = _Scalar(memory, ffi.cast("float *", memory), address)
        return self._scalars[i]


class Thread(threading.local):
    """The state that one thread reuses between runs. Access to thread-local data is slow, so a run reads it
    once."""

    def __init__(self, count: int) -> None:
        self.state = RunState(count)
