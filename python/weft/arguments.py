"""Validates arguments (integers, real numbers, names) and formats the error messages."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from weft.errors import BadParameterError


def label(kind: str, name: str) -> str:
    """The name of an object in messages: "sdpa 'attn'", or just "sdpa" if it has no name."""
    return f"{kind} '{name}'" if name else kind


def integer(value: Any, what: str) -> int:
    """Validates a 64-bit integer. `what` names it in the message, for example "tensor 'x': dim"."""
    number = _index(value)
    if number is None:
        raise BadParameterError(f"{what} is {formatted(value)}. Give an integer.")
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


def integers(values: Iterable[Any], what: str) -> tuple[int, ...]:
    """Validates 64-bit integers."""
    try:
        given = tuple(values)
    except TypeError:
        raise BadParameterError(f"{what} is {formatted(values)}. Give a list of integers.") from None
    numbers = []
    for i, value in enumerate(given):
        number = _index(value)
        if number is None or not _fits(number):  # build the message only on failure
            number = integer(value, f"{what} {list(given)}: number {i}")
        numbers.append(number)
    return tuple(numbers)


def real(value: Any, what: str) -> float:
    """Validates a real number. Members of enumerations are rejected although Python treats them as
    integers."""
    if isinstance(value, IntEnum):
        raise BadParameterError(f"{what} is {formatted(value)}, a member of an enumeration. Give a number.")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise BadParameterError(f"{what} is {value!r}. Give a number.") from None


def text(value: Any, what: str) -> str:
    """Validates a string, such as a name."""
    if not isinstance(value, str):
        raise BadParameterError(f"{what} is {formatted(value)}. Give a string.")
    return value


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and a noun, in the plural unless the number is 1.

    >>> counted(1, "dim"), counted(2, "dim"), counted(2, "address", "addresses")
    ('1 dim', '2 dims', '2 addresses')
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def formatted(value: Any) -> str:
    """Formats a value for a message: data_type.FLOAT for a member of an enumeration, otherwise its repr."""
    return f"{type(value).__name__}.{value.name}" if isinstance(value, IntEnum) else repr(value)
