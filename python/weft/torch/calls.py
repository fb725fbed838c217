"""Operator calls served by libweft: a repeated call with the same kind of arguments runs without any Python
code. If the library does not support the interpreter or the torch version of the process, calls run in
Python."""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from weft_cffi._weft import ffi

from weft import backend
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
    """The functions that libweft exports; see backend/torch/calls.c."""

    prepare: Callable[..., Any]
    """Prepares a plan for execution from (plan, places, results, allocate, workspace, ordinal, owner).
    Returns None if the plan has too many tensors."""
    operator: Callable[..., Any]
    """Wraps a function: (find, slow). find maps the arguments of a call to the result of prepare, or to
    another function to call; it may depend only on what the cache key contains. If it returns None, slow is
    called."""
    served: Callable[[Any], int]
    """The number of calls of a wrapped function that ran in libweft."""
    found: Callable[[], int]
    """The number of plan lookups, over all operators, that hit libweft's cache."""
    forget: Callable[[], None]
    """Drops the cached plans from libweft."""


def _functions() -> Functions | None:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        address = ffi.addressof(backend.library(), "weftTorchFunctions")
    except UnavailableError:  # calling an operator raises the reason
        return None
    tensor = torch.empty(2, 3)
    types = torch.Tensor, torch.nn.Parameter, torch.dtype
    facts = *types, FLAGS, current_gpu, stream_of, tensor, tensor._cdata
    ask = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(int(ffi.cast("uintptr_t", address)))
    made = ask(facts)
    return Functions(*ctypes.cast(made, ctypes.py_object).value) if made else None


FUNCTIONS = _functions()
"""None if calls run in Python."""
