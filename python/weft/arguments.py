"""What callers give, checked where it is given: whole numbers, real numbers, names; and the words for it."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from weft.errors import BadParameterError


def label(kind: str, name: str) -> str:
    """What a thing is called in messages: "sdpa 'attn'", or "sdpa" alone when it has no name."""
    return f"{kind} '{name}'" if name else kind


def whole(value: Any, what: str) -> int:
    """A whole number of 64 bits. what: "tensor 'x': dim", for the message."""
    number = _index(value)
    if number is None:
        raise BadParameterError(f"{what} is {shown(value)}. Give a whole number.")
    if not _fits(number):
        raise BadParameterError(f"{what} is {number}, more than 64 bits hold. Give a smaller one.")
    return number


def _index(value: Any) -> int | None:
    """What a value is as a whole number; None: it is none."""
    try:
        return None if isinstance(value, IntEnum) else operator.index(value)
    except TypeError:
        return None


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def wholes(values: Iterable[Any], what: str) -> tuple[int, ...]:
    """Whole numbers of 64 bits."""
    try:
        given = tuple(values)
    except TypeError:
        raise BadParameterError(f"{what} is {shown(values)}. Give a list of whole numbers.") from None
    numbers = []
    for i, value in enumerate(given):
        number = _index(value)
        if number is None or not _fits(number):  # words are made where they are needed
            number = whole(value, f"{what} {list(given)}: number {i}")
        numbers.append(number)
    return tuple(numbers)


def real(value: Any, what: str) -> float:
    """A number, which a member of an enumeration is not, though Python lets it pass for one."""
    if isinstance(value, IntEnum):
        raise BadParameterError(f"{what} is {shown(value)}, a member of an enumeration. Give a number.")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise BadParameterError(f"{what} is {value!r}. Give a number.") from None


def text(value: Any, what: str) -> str:
    """A text, as names are."""
    if not isinstance(value, str):
        raise BadParameterError(f"{what} is {shown(value)}. Give a text.")
    return value


def shown(value: Any) -> str:
    """A value in a message: data_type.FLOAT for a member of an enumeration, else as Python writes it."""
    return f"{type(value).__name__}.{value.name}" if isinstance(value, IntEnum) else repr(value)
