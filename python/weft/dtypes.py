"""Data types by any name: "bf16", NumPy, ml_dtypes and torch dtypes, data_type members; and conversion to
NumPy."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from weft.enums import data_type
from weft.errors import BadParameterError

if TYPE_CHECKING:
    import numpy as np

DataTypeLike: TypeAlias = "data_type | str | type | np.dtype[Any] | Any"
"""A member of data_type, a name ("bf16", "float32"), a Python or NumPy type, or a dtype of NumPy or torch."""


class DataType(NamedTuple):
    """The name and storage of a data type."""

    type: data_type
    name: str
    bits: int
    array: str
    """The dtype's name in NumPy, ml_dtypes and torch; empty if arrays cannot have this type."""


_TABLE = [
    DataType(data_type.FLOAT, "f32", 32, "float32"),
    DataType(data_type.DOUBLE, "f64", 64, "float64"),
    DataType(data_type.HALF, "f16", 16, "float16"),
    DataType(data_type.BFLOAT16, "bf16", 16, "bfloat16"),
    DataType(data_type.FP8_E4M3, "e4m3", 8, "float8_e4m3fn"),
    DataType(data_type.FP8_E5M2, "e5m2", 8, "float8_e5m2"),
    DataType(data_type.FP8_E8M0, "e8m0", 8, "float8_e8m0fnu"),
    DataType(data_type.FP4_E2M1, "e2m1", 4, ""),
    DataType(data_type.INT4, "i4", 4, ""),
    DataType(data_type.UINT4, "u4", 4, ""),
    DataType(data_type.INT8, "i8", 8, "int8"),
    DataType(data_type.UINT8, "u8", 8, "uint8"),
    DataType(data_type.INT32, "i32", 32, "int32"),
    DataType(data_type.UINT32, "u32", 32, "uint32"),
    DataType(data_type.INT64, "i64", 64, "int64"),
    DataType(data_type.BOOLEAN, "bool1", 1, ""),
    DataType(data_type.BYTE_BOOLEAN, "bool8", 8, "bool"),
]
_BY_TYPE: dict[int, DataType] = {row.type: row for row in _TABLE}
_ALIASES = {"fp32": "f32", "fp64": "f64", "fp16": "f16", "bool_": "bool", "float": "f32", "double": "f64"}
_ALIASES |= {"float4_e2m1fn": "e2m1", "float4_e2m1fn_x2": "e2m1", "int4": "i4", "uint4": "u4", "half": "f16"}
_BY_NAME = {row.name: row.type for row in _TABLE}
_BY_NAME |= {row.array: row.type for row in _TABLE if row.array}
_BY_NAME |= {member.name.lower(): member for member in data_type if member >= 0}
_BY_NAME |= {alias: _BY_NAME[name] for alias, name in _ALIASES.items()}


def of(type_: int) -> DataType:
    """The row of a data type; types that arrays cannot store have one too."""
    return _BY_TYPE.get(type_) or DataType(data_type(type_), data_type(type_).name.lower(), 0, "")


def data_type_of(value: DataTypeLike | None) -> data_type | None:
    """The data type for a value; None for None and NOT_SET.

    >>> data_type_of("bf16")
    <data_type.BFLOAT16: 9>
    >>> data_type_of(data_type.NOT_SET) is None
    True
    """
    if value is None or value is data_type.NOT_SET:
        return None
    if isinstance(value, data_type):
        return value
    if isinstance(value, type) and value in (float, int, bool):
        return {float: data_type.FLOAT, int: data_type.INT64, bool: data_type.BYTE_BOOLEAN}[value]
    try:
        return _look_up(value)
    except (TypeError, KeyError):
        raise BadParameterError(
            f"data type: {value!r} is not supported by Weft. Give a data_type, a dtype of NumPy, ml_dtypes "
            f"or torch, or one of {', '.join(row.name for row in _TABLE)}."
        ) from None


@cache
def _look_up(value: object) -> data_type:
    return _BY_NAME[_name_of(value)]


def _name_of(value: object) -> str:
    """The name of a dtype object: "float32" for numpy.float32, numpy.dtype("f4") and torch.float32."""
    if isinstance(value, str):
        return value.lower()
    name = getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)
    return str(name).removeprefix("torch.").lower()


@cache
def numpy_dtype(type_: data_type) -> np.dtype[Any]:
    """The NumPy dtype of a data type; elements of fewer than 8 bits are packed into bytes."""
    import numpy

    name = of(type_).array
    if not name:
        return numpy.dtype("uint8")
    try:
        return numpy.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        raise BadParameterError(
            f"data type {of(type_).name}: NumPy has no such type by itself. Install ml_dtypes, or give torch "
            "tensors."
        ) from None
    dtype: np.dtype[Any] = numpy.dtype(getattr(ml_dtypes, name))
    return dtype


def torch_dtype(type_: data_type) -> Any:
    """The torch dtype of a data type; torch must be imported."""
    return getattr(sys.modules["torch"], of(type_).array or "uint8")


_FORMATS = {
    data_type.FLOAT: "f",
    data_type.DOUBLE: "d",
    data_type.HALF: "e",
    data_type.INT8: "b",
    data_type.UINT8: "B",
    data_type.INT32: "i",
    data_type.UINT32: "I",
    data_type.INT64: "q",
    data_type.BYTE_BOOLEAN: "?",
}


_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The values of codes 0 to 7; 8 is added for a negative sign."""


def _code_of_4_bits(type_: data_type, value: float) -> int:
    """Rounds to the nearest representable number, ties to the even code."""
    if type_ is data_type.FP4_E2M1:
        if not abs(value) <= _FP4[-1]:
            raise OverflowError
        code = min(range(8), key=lambda each: (abs(_FP4[each] - abs(value)), each % 2))
        return code | (8 if math.copysign(1, value) < 0 else 0)
    lowest = -8 if type_ is data_type.INT4 else 0
    if not lowest <= int(value) < lowest + 16:
        raise OverflowError
    return int(value) & 15


def _number_of_4_bits(type_: data_type, code: int) -> float:
    if type_ is data_type.FP4_E2M1:
        return math.copysign(_FP4[code & 7], -1 if code & 8 else 1)
    return code - 16 if type_ is data_type.INT4 and code & 8 else code


def scalar_bytes(type_: data_type, value: float) -> bytes:
    """The memory of one element; a type of fewer than 8 bits occupies one byte. Raises OverflowError,
    ValueError or struct.error if the type cannot represent the number."""
    if of(type_).bits == 4:
        return bytes([_code_of_4_bits(type_, value)])
    if type_ is data_type.BFLOAT16:
        bits = int.from_bytes(struct.pack("<f", value), "little")
        rounded = bits + 0x7FFF + (bits >> 16 & 1) if value == value else bits
        return (rounded >> 16).to_bytes(2, "little")
    if type_ in _FORMATS:
        is_whole = _FORMATS[type_] in "bBiIq"
        return struct.pack(_FORMATS[type_], int(value) if is_whole else value)
    return bytes(numpy_dtype(type_).type(value).tobytes())


def scalar_value(type_: data_type, memory: bytes) -> float:
    """One element as a number: the inverse of scalar_bytes.

    >>> scalar_value(data_type.BFLOAT16, scalar_bytes(data_type.BFLOAT16, 0.1))
    0.10009765625
    """
    if of(type_).bits == 4:
        return _number_of_4_bits(type_, memory[0] & 15)
    if type_ is data_type.BFLOAT16:
        return float(struct.unpack("<f", b"\0\0" + memory)[0])
    if type_ in _FORMATS:
        number: float = struct.unpack(_FORMATS[type_], memory)[0]
        return number
    import numpy

    return float(numpy.frombuffer(memory, numpy_dtype(type_))[0])


def fitting_bytes(type_: data_type, value: float, is_exact: bool = False) -> bytes | None:
    """The memory of one element, or None if the type cannot represent the value. Only fractions may be
    rounded, and only if the value need not be exact."""
    try:
        if not is_floating(type_) and value != int(value):
            return None
        memory = scalar_bytes(type_, value)
        stored = scalar_value(type_, memory)
        if math.isfinite(value) and not math.isfinite(stored):
            return None
    except (OverflowError, ValueError, struct.error):
        return None
    is_same = stored == value or (stored != stored and value != value)
    return memory if is_same or (not is_exact and is_floating(type_)) else None


def type_of_number(value: float, others: Iterable[data_type]) -> data_type:
    """The type of a Python number among operands of other types: the widest floating-point type; otherwise,
    for an integer, the widest integer type. FLOAT if a fraction has no floating-point operand, or if the type
    is too small for the value.

    >>> type_of_number(2, [data_type.HALF, data_type.INT64]), type_of_number(0.5, [data_type.INT32])
    (<data_type.HALF: 2>, <data_type.FLOAT: 0>)
    """
    known = sorted(others, key=lambda type_: -of(type_).bits)
    wider = [data_type.FLOAT, data_type.DOUBLE]
    floating = [type_ for type_ in known if is_floating(type_)]
    if floating or isinstance(value, float):
        wanted = floating[:1] + wider
    else:
        booleans = (data_type.BOOLEAN, data_type.BYTE_BOOLEAN)
        integers = [type_ for type_ in known if type_ not in booleans and of(type_).bits >= 8]
        plain = data_type.BYTE_BOOLEAN if isinstance(value, bool) else data_type.INT64
        wanted = [*integers[:1], plain, *wider]
    fitting = (type_ for type_ in wanted if fitting_bytes(type_, value, of(type_).bits < 16) is not None)
    return next(fitting, wanted[0])


def is_floating(type_: data_type) -> bool:
    """True for floating-point types."""
    return of(type_).name[0] in "feb" and type_ not in (data_type.BOOLEAN, data_type.BYTE_BOOLEAN)
