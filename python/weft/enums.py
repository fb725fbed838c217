"""Every enumeration of the frontend: the mirror of the C API's, and the few that only Python has."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from weft_cffi.enums import *  # noqa: F403

_Enum = TypeVar("_Enum", bound=IntEnum)


class build_plan_policy(IntEnum):
    """Which of the candidate plans Graph.build_plans builds."""

    HEURISTICS_CHOICE = 0
    """The first that builds."""
    ALL = 1
    """Every one, to be compared by Graph.execute_plan_at_index."""


class scalar_type(IntEnum):
    """When the value of Graph.tensor_scalar is known."""

    RUNTIME_PARAM = 0
    """At execution: the given value is a default that a variant pack may replace."""
    COMPILE_TIME_CONST = 1
    """At build: the value is part of the plan."""


class attention_implementation(IntEnum):
    """How attention is put into the graph; Weft has one operation for it and plans the rest."""

    AUTO = 0
    """Left to Weft."""
    COMPOSITE = 1
    """Accepted; the same as AUTO."""
    UNIFIED = 2
    """Accepted; the same as AUTO."""


def member(enum: type[_Enum], value: object) -> _Enum:
    """A member of an enumeration from itself, its name or its number."""
    if isinstance(value, enum):
        return value
    if isinstance(value, str) and value.upper() in enum.__members__:
        return enum[value.upper()]
    if isinstance(value, int) and not isinstance(value, (bool, IntEnum)) and value in enum._value2member_map_:
        return enum(value)
    from weft.errors import BadParameterError

    names = ", ".join(enum.__members__)
    raise BadParameterError(f"{enum.__name__}: {value!r} is none of its members. Give one of {names}.")
