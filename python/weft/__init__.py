"""Weft: deep-learning primitives as graphs of tensor operations, planned and run on CPUs and NVIDIA GPUs.

Graph is the main entry point. Names and arguments follow cuDNN's Python frontend; weft.cudnn runs scripts
written for that frontend unchanged. Importing this package loads neither the library nor NumPy; both are
loaded at first use.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.bound_plan import BoundPlan
    from weft.devices import compile_for
    from weft.dtypes import data_type_of
    from weft.enums import (
        attention_implementation,
        behavior_note,
        build_plan_policy,
        convolution_mode,
        data_type,
        device_kind,
        diagonal_alignment,
        heur_mode,
        knob_type,
        moe_grouped_matmul_mode,
        norm_forward_phase,
        numerical_note,
        padding_mode,
        pointwise_mode,
        reduction_mode,
        resample_mode,
        reshape_mode,
        rng_distribution,
        scalar_type,
        tensor_reordering,
    )
    from weft.errors import (
        BadParameterError,
        CompilationWarning,
        ExecutionError,
        InternalError,
        NotSupportedError,
        OutOfMemoryError,
        UnavailableError,
        WeftError,
    )
    from weft.errors import NotSupportedError as cudnnGraphNotSupportedError
    from weft.frontend import (
        backend_version,
        backend_version_string,
        create_device_properties,
        create_handle,
        create_kernel_cache,
        destroy_handle,
        get_last_error_string,
        get_stream,
        graph,
        graph_cache,
        jit,
        set_stream,
    )
    from weft.graphs import Graph
    from weft.graphs import Graph as pygraph
    from weft.memory import DeviceArray
    from weft.plan import Plan
    from weft.tensor import Tensor

__version__ = "0.1.0"

__all__ = [
    "BadParameterError",
    "BoundPlan",
    "CompilationWarning",
    "DeviceArray",
    "ExecutionError",
    "Graph",
    "InternalError",
    "NotSupportedError",
    "OutOfMemoryError",
    "Plan",
    "Tensor",
    "UnavailableError",
    "WeftError",
    "__version__",
    "attention_implementation",
    "backend_version",
    "backend_version_string",
    "behavior_note",
    "build_plan_policy",
    "compile_for",
    "convolution_mode",
    "create_device_properties",
    "create_handle",
    "create_kernel_cache",
    "cudnnGraphNotSupportedError",
    "data_type",
    "data_type_of",
    "destroy_handle",
    "device_kind",
    "diagonal_alignment",
    "get_include",
    "get_last_error_string",
    "get_stream",
    "graph",
    "graph_cache",
    "heur_mode",
    "jit",
    "knob_type",
    "moe_grouped_matmul_mode",
    "norm_forward_phase",
    "numerical_note",
    "padding_mode",
    "pointwise_mode",
    "pygraph",
    "reduction_mode",
    "resample_mode",
    "reshape_mode",
    "rng_distribution",
    "scalar_type",
    "set_stream",
    "tensor_reordering",
]

_ALIASES = {"pygraph": "Graph", "cudnnGraphNotSupportedError": "NotSupportedError"}
_MODULES = (
    "enums",
    "errors",
    "dtypes",
    "devices",
    "tensor",
    "memory",
    "bound_plan",
    "plan",
    "frontend",
    "graphs",
)


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use."""
    if name in __all__:
        for module in _MODULES:
            attribute = getattr(import_module(f"weft.{module}"), _ALIASES.get(name, name), None)
            if attribute is not None:
                globals()[name] = attribute
                return attribute
    raise AttributeError(f"module 'weft' has no attribute '{name}'")


def get_include() -> str:
    """The directory of the C headers, for the compiler's -I option.

    >>> import os, weft
    >>> os.path.exists(os.path.join(weft.get_include(), "weft", "weft.h"))
    True
    """
    package = Path(__file__).parent
    bundled = package / "include"
    return str(bundled if bundled.exists() else package.parents[1] / "include")  # in a source tree


def __dir__() -> list[str]:
    return list(__all__)
