"""cudnn.ops: functions on torch tensors. causal_conv1d, the only one, is no operation of Weft yet."""

from __future__ import annotations

from typing import Any

from weft.errors import NotSupportedError


def causal_conv1d(x: Any, weight: Any, bias: Any = None, activation: str = "identity") -> Any:
    """Not there: says so."""
    raise NotSupportedError("cudnn.ops.causal_conv1d: Weft has no such function.")
