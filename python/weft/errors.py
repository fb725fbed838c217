"""Exceptions: one class per family of statuses, with the library's own message."""

from __future__ import annotations

from collections.abc import Sequence

from weft import enums


class WeftError(RuntimeError):
    """Any failure of Weft. `status` is the status that the C API returned or would return."""

    default = enums.status.INTERNAL_ERROR

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = enums.status(self.default if status is None else status)


class BadParameterError(WeftError, ValueError):
    """The caller passed an invalid argument; the message says what was expected and how to fix it."""

    default = enums.status.BAD_PARAM


class NotSupportedError(WeftError):
    """The request is valid but no engine supports it. `reasons` has one sentence per engine that declined."""

    default = enums.status.NOT_SUPPORTED

    def __init__(self, message: str, status: int | None = None, reasons: Sequence[str] = ()) -> None:
        super().__init__(message, status)
        self.reasons = list(reasons)


class UnavailableError(WeftError):
    """The library, a driver or a run-time compiler could not be loaded or initialized."""

    default = enums.status.NOT_INITIALIZED


class InternalError(WeftError):
    """A consistency check inside the library failed: please report it as a bug."""


class CompilationWarning(RuntimeWarning):
    """A kernel does not compile, which is a bug in Weft. The plan fails; its caller may fall back to another
    implementation, which would hide the bug."""


class OutOfMemoryError(WeftError, MemoryError):
    """Host or device memory is exhausted."""

    default = enums.status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED


class ExecutionError(WeftError):
    """The device failed while running a plan."""

    default = enums.status.EXECUTION_FAILED


_FAMILIES: dict[int, type[WeftError]] = {
    1: UnavailableError,
    2: BadParameterError,
    3: NotSupportedError,
    4: InternalError,
    5: ExecutionError,
    12: BadParameterError,
}
_MEMORY = (
    enums.status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
    enums.status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
)


def error_of(status: int, message: str) -> WeftError:
    """The exception for a status of the C API."""
    kind = OutOfMemoryError if status in _MEMORY else _FAMILIES.get(status // 1000, WeftError)
    return kind(message, status)
