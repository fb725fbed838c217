"""Converts data types of other libraries to cuDNN's."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from weft.cudnn.enums import cudnn_type, data_type, weft_type

cudnn_data_type = data_type


def torch_to_cudnn_data_type(torch_data_type: Any) -> Any:
    """The member of data_type for a torch dtype."""
    return cudnn_type(weft_type(torch_data_type))


def is_torch_available() -> bool:
    """True if torch can be imported."""
    return find_spec("torch") is not None
