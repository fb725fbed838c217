"""Argument checks that the operators share, and the types in which they compute."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from weft.errors import BadParameterError


def refuse(where: str, problem: str, expected: str, got: Any, fix: str) -> BadParameterError:
    """Returns the error for a bad argument, with the parts in the order of all Weft messages."""
    return BadParameterError(f"{where}: {problem}: expected {expected}, got {got}. {fix}")


def formatted(x: Any) -> str:
    """Formats an array's type and shape for messages."""
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"


def check_shape(where: str, name: str, x: Any, shape: Sequence[int], fix: str) -> None:
    """Refuses an optional array of another shape."""
    if x is not None and x.shape != tuple(shape):
        raise refuse(where, f"the shape of {name} does not fit", str(list(shape)), str(list(x.shape)), fix)


def check_floating(where: str, **arrays: Any) -> None:
    """Refuses complex numbers and other types that are not real."""
    for name, x in arrays.items():
        if x is not None and not jnp.issubdtype(x.dtype, jnp.floating):
            raise refuse(
                where, f"the type of {name} is not supported", "a floating-point type", x.dtype,
                "Convert the array, or give its real and imaginary parts.",
            )  # fmt: skip


def to_floating(x: Any) -> Any:
    """Converts an array of integers or booleans to the floating-point type that JAX's functions would use."""
    if x is None or jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    return x.astype(jax.eval_shape(jnp.exp, x).dtype)


def to_common(*arrays: Any) -> list[Any]:
    """Converts integers next to floating-point arrays to the type of JAX's promotion; integers without these
    stay."""
    present = [x for x in arrays if x is not None]
    if not any(jnp.issubdtype(x.dtype, jnp.inexact) for x in present):
        return list(arrays)
    common = jnp.result_type(*(x.dtype for x in present))
    is_kept = [x is None or jnp.issubdtype(x.dtype, jnp.inexact) for x in arrays]
    return [x if is_unchanged else x.astype(common) for x, is_unchanged in zip(arrays, is_kept, strict=True)]


def wide(type_: Any) -> Any:
    """Returns the compute type for a result type: at least float32 for floating-point types."""
    is_narrow = jnp.issubdtype(type_, jnp.floating) and jnp.dtype(type_).itemsize < 4
    return jnp.dtype(jnp.float32 if is_narrow else type_)


def like(x: Any, other: Any) -> Any:
    """Converts an array to the type of another one if both are floating-point: JAX may be set to refuse mixed
    types."""
    is_floating = all(jnp.issubdtype(each.dtype, jnp.floating) for each in (x, other))
    return x.astype(other.dtype) if is_floating else x


def integer(where: str, name: str, value: Any, least: int, fix: str) -> int:
    """Converts any kind of integer that is known at trace time to a Python integer."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise refuse(where, f"{name} is wrong", f"an integer of at least {least}", repr(value), fix)
    return number


def number(where: str, name: str, value: Any) -> float:
    """Returns a Python number. It becomes part of the program, so a traced array is refused."""
    try:
        return float(value)
    except TypeError:  # JAX's error for traced arrays is a TypeError
        raise refuse(
            where, f"{name} is not a constant", "a number", value, "Give a number that is known when the "
            "function is traced, or make it a static argument of jax.jit."
        ) from None  # fmt: skip
