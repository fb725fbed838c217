"""Validation of arguments: integers, real numbers and names, and the wording of the error messages."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from weft.errors import BadParameterError


def label(kind: str, name: str) -> str:
    """The name of an object in messages: "sdpa 'attn'", or just "sdpa" if it has no name."""
    return f"{kind} '{name}'" if name else kind


def whole(value: Any, what: str) -> int:
    """Validates a 64-bit integer. `what` names it in the message, for example "tensor 'x': dim"."""
    number = _index(value)
    if number is None:
        raise BadParameterError(f"{what} is {shown(value)}. Give a whole number.")
    if not _fits(number):
        raise BadParameterError(f"{what} is {number}, which does not fit into 64 bits. Give a smaller one.")
    return number


def _index(value: Any) -> int | None:
    """The value as an integer, or None if it is not one."""
    try:
        return None if isinstance(value, IntEnum) else operator.index(value)
    except TypeError:
        return None


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def wholes(values: Iterable[Any], what: str) -> tuple[int, ...]:
    """Validates 64-bit integers."""
    try:
        given = tuple(values)
    except TypeError:
        raise BadParameterError(f"{what} is {shown(values)}. Give a list of whole numbers.") from None
    numbers = []
    for i, value in enumerate(given):
        number = _index(value)
        if number is None or not _fits(number):  # build the message only on failure
            number = whole(value, f"{what} {list(given)}: number {i}")
        numbers.append(number)
    return tuple(numbers)


def real(value: Any, what: str) -> float:
    """Validates a real number. Members of enumerations are rejected although Python treats them as
    integers."""
    if isinstance(value, IntEnum):
        raise BadParameterError(f"{what} is {shown(value)}, a member of an enumeration. Give a number.")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise BadParameterError(f"{what} is {value!r}. Give a number.") from None


def text(value: Any, what: str) -> str:
    """Validates a string, such as a name."""
    if not isinstance(value, str):
        raise BadParameterError(f"{what} is {shown(value)}. Give a text.")
    return value


def shown(value: Any) -> str:
    """Formats a value for a message: data_type.FLOAT for a member of an enumeration, otherwise its repr."""
    return f"{type(value).__name__}.{value.name}" if isinstance(value, IntEnum) else repr(value)
