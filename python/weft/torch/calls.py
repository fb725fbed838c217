"""Operator calls served by libweft_torch: a repeated call with the same kind of arguments runs without any
Python code. If the library does not support the interpreter or the torch version of the process, calls run in
Python."""

from __future__ import annotations

import ctypes
import sysconfig
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from weft import backend, integrations
from weft.errors import UnavailableError
from weft.memory import current_stream

current_gpu = getattr(torch._C, "_cuda_getDevice", None) or torch.cuda.current_device
stream_of = getattr(torch._C, "_cuda_getCurrentRawStream", None) or current_stream
"""The private functions that torch.compile's generated code uses. They cost a third and a tenth of the public
ones."""

FLAGS = (
    torch._C._get_cudnn_deterministic, torch._C._get_deterministic_algorithms,
    torch._C._get_cudnn_allow_tf32, torch._C._get_cublas_allow_tf32,
)  # fmt: skip
"""Getters of the flags that decide whether convolutions and whether all operators must be deterministic, and
whether convolutions and whether matrix products may use TF32. torch's properties call these functions;
calling them directly costs a tenth."""


class Functions(NamedTuple):
    """The functions of libweft_torch; see compat/torch/calls.c."""

    prepare: Callable[..., Any]
    """Prepares a plan for execution from (plan, places, results, allocate, workspace, ordinal, owner).
    Returns None if the plan has too many tensors."""
    operator: Callable[..., Any]
    """Wraps a function: (find, slow). find maps the arguments of a call to the result of prepare, or to
    another function to call; it may depend only on what the cache key contains. If it returns None, slow is
    called."""
    served: Callable[[Any], int]
    """The number of calls of a wrapped function that ran in libweft_torch."""
    found: Callable[[], int]
    """The number of plan lookups, over all operators, that hit libweft_torch's cache."""
    forget: Callable[[], None]
    """Drops the cached plans from libweft_torch."""


def _functions() -> Functions | None:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        backend.library()
    except UnavailableError:  # calling an operator raises the reason
        return None
    try:
        ask = integrations.load("torch").weftTorchFunctions
    except UnavailableError as error:
        warnings.warn(f"{error} Until then, calls of operators run in Python, which is slower.", stacklevel=2)
        return None
    ask.restype, ask.argtypes = ctypes.c_void_p, [ctypes.py_object]
    tensor = torch.empty(2, 3)
    types = torch.Tensor, torch.nn.Parameter, torch.dtype
    facts = *types, FLAGS, current_gpu, stream_of, tensor, tensor._cdata
    made = ask(facts)
    return Functions(*ctypes.cast(made, ctypes.py_object).value) if made else None


FUNCTIONS = _functions()
"""None if calls run in Python."""
