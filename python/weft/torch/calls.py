"""Calls of operators in libweft: of one that was made before, Python does nothing. Where the process has no
interpreter or torch that the library knows, calls stay Python's."""

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
"""As torch's compiler's code asks for them, at a third or a tenth of the cost of the public functions."""

FLAGS = (
    torch._C._get_cudnn_deterministic, torch._C._get_deterministic_algorithms,
    torch._C._get_cudnn_allow_tf32, torch._C._get_cublas_allow_tf32,
)  # fmt: skip
"""What tells whether convolutions, and whether all operators are to be deterministic, whether convolutions,
and whether matrix products may narrow floats; where torch's properties read it, at a tenth of their cost."""


class Functions(NamedTuple):
    """What libweft gives; see backend/torch/calls.c."""

    prepare: Callable[..., Any]
    """Makes a plan with all that a run needs of it: (plan, places, results, allocate, workspace, ordinal,
    owner). None if it has too many tensors."""
    operator: Callable[..., Any]
    """A function that stands for another: (find, slow). find: of a call's arguments what prepare made, or a
    function that does it, of no more than what a key tells; None leaves it to slow."""
    served: Callable[[Any], int]
    """How many calls of what operator made ran in libweft."""
    found: Callable[[], int]
    """How often a plan was found there, of all."""
    forget: Callable[[], None]
    """Plans that were cleared are found no more."""


def _functions() -> Functions | None:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        address = ffi.addressof(backend.library(), "weftTorchFunctions")
    except UnavailableError:  # who calls an operator hears why
        return None
    tensor = torch.empty(2, 3)
    types = torch.Tensor, torch.nn.Parameter, torch.dtype
    facts = *types, FLAGS, current_gpu, stream_of, tensor, tensor._cdata
    ask = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(int(ffi.cast("uintptr_t", address)))
    made = ask(facts)
    return Functions(*ctypes.cast(made, ctypes.py_object).value) if made else None


FUNCTIONS = _functions()
"""None: calls stay Python's."""
