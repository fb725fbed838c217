# SPDX-License-Identifier: Apache-2.0
"""Weft: deep-learning primitives as graphs of tensor operations, planned and run on CPUs and NVIDIA GPUs.

Graph is the front door. Names and arguments are those of cuDNN's Python frontend, so `import weft as cudnn` runs its
scripts. Importing this package loads neither the library nor NumPy; the first use does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from weft.graph import Graph
    from weft.graph import Graph as pygraph
    from weft.plan import Plan
    from weft.tensor import Tensor

__version__ = "0.1.0"

# Where each public name comes from; it is imported when it is first asked for.
_HOMES = {
    "weft.dtypes": ["data_type_of"],
    "weft.enums": [
        "attention_implementation",
        "behavior_note",
        "build_plan_policy",
        "convolution_mode",
        "data_type",
        "device_kind",
        "diagonal_alignment",
        "heur_mode",
        "knob_type",
        "moe_grouped_matmul_mode",
        "norm_forward_phase",
        "numerical_note",
        "padding_mode",
        "pointwise_mode",
        "reduction_mode",
        "resample_mode",
        "reshape_mode",
        "rng_distribution",
        "scalar_type",
        "tensor_reordering",
    ],
    "weft.errors": [
        "BadParameterError",
        "ExecutionError",
        "InternalError",
        "NotSupportedError",
        "OutOfMemoryError",
        "UnavailableError",
        "WeftError",
    ],
    "weft.frontend": [
        "backend_version",
        "backend_version_string",
        "create_device_properties",
        "create_handle",
        "create_kernel_cache",
        "destroy_handle",
        "get_last_error_string",
        "get_stream",
        "graph",
        "graph_cache",
        "jit",
        "set_stream",
    ],
    "weft.graph": ["Graph"],
    "weft.plan": ["Plan"],
    "weft.tensor": ["Tensor"],
}
_HOME = {name: (module, name) for module, names in _HOMES.items() for name in names}
_HOME["pygraph"] = ("weft.graph", "Graph")
_HOME["cudnnGraphNotSupportedError"] = ("weft.errors", "NotSupportedError")

__all__ = sorted([*_HOME, "__version__"])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'weft' has no attribute '{name}'")
    module, attribute = _HOME[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
