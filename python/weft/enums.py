"""All enumerations of the frontend: the mirror of the C API's, and those that exist only in Python."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from weft_cffi.enums import *  # noqa: F403

_Enum = TypeVar("_Enum", bound=IntEnum)


class build_plan_policy(IntEnum):
    """Selects the candidate plans that Graph.build_plans builds."""

    HEURISTICS_CHOICE = 0
    """The first that can be built."""
    ALL = 1
    """All of them, for comparison with Graph.execute_plan_at_index."""


class scalar_type(IntEnum):
    """When the value of Graph.tensor_scalar is determined."""

    RUNTIME_PARAM = 0
    """At execution: the given value is a default, which a variant pack may replace."""
    COMPILE_TIME_CONST = 1
    """At build: the value is part of the plan."""


class attention_implementation(IntEnum):
    """How attention is expressed in the graph. Weft has one operation for it and plans the rest."""

    AUTO = 0
    """Weft decides."""
    COMPOSITE = 1
    """Accepted; equivalent to AUTO."""
    UNIFIED = 2
    """Accepted; equivalent to AUTO."""


def member(enum: type[_Enum], value: object) -> _Enum:
    """A member of an enumeration, from the member itself, its name or its number."""
    if isinstance(value, enum):
        return value
    if isinstance(value, str) and value.upper() in enum.__members__:
        return enum[value.upper()]
    if isinstance(value, int) and not isinstance(value, (bool, IntEnum)) and value in enum._value2member_map_:
        return enum(value)
    from weft.errors import BadParameterError

    names = ", ".join(enum.__members__)
    raise BadParameterError(f"{enum.__name__}: {value!r} is not a member. Give one of {names}.")
