"""cuDNN's Python frontend implemented on Weft: use `import weft.cudnn as cudnn` in a script, or call
`weft.cudnn.install()` before it, after which `import cudnn` imports this module. docs/cudnn.md lists names
and differences."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from weft.backend import Handle
from weft.cudnn import absent, ops
from weft.cudnn.causal import (
    causal_conv1d_backward,
    causal_conv1d_forward,
    causal_conv1d_nwh_backward,
    causal_conv1d_nwh_forward,
)
from weft.cudnn.enums import (
    FRONTEND_KNOB_TYPE_BASE,
    NodeType,
    attention_implementation,
    behavior_note,
    build_plan_policy,
    convolution_mode,
    cuda_graph_retention,
    data_type,
    diagonal_alignment,
    gnn_activation_op,
    gnn_agg_op,
    heur_mode,
    is_frontend_knob_type,
    knob_type,
    moe_grouped_matmul_mode,
    norm_forward_phase,
    numerical_note,
    reduction_mode,
    reshape_mode,
    scalar_type,
    tensor_reordering,
)
from weft.cudnn.graph import graph, graph_cache, jit
from weft.cudnn.graphs import GraphContext, pygraph
from weft.cudnn.handles import (
    DeviceInfo,
    create_device_properties,
    create_handle,
    create_kernel_cache,
    destroy_handle,
    get_last_error_string,
    get_stream,
    sdpa_capabilities,
    set_stream,
)
from weft.cudnn.names import Node
from weft.cudnn.plans import knob
from weft.cudnn.tensors import Tensor
from weft.cudnn.version import FRONTEND as __version__
from weft.cudnn.version import backend_version, backend_version_string, set_backend_version
from weft.cudnn.wrapper import Graph
from weft.errors import NotSupportedError as cudnnGraphNotSupportedError
from weft.errors import WeftError

tensor = Tensor
globals().update(absent.FUNCTIONS)
__getattr__ = absent.attribute_of("cudnn", absent.INDIVIDUAL_KERNELS)

__all__ = [
    "FRONTEND_KNOB_TYPE_BASE",
    "DeviceInfo",
    "Graph",
    "GraphContext",
    "Handle",
    "Node",
    "NodeType",
    "Tensor",
    "__version__",
    "attention_implementation",
    "backend_version",
    "backend_version_string",
    "behavior_note",
    "build_plan_policy",
    "causal_conv1d_backward",
    "causal_conv1d_forward",
    "causal_conv1d_nwh_backward",
    "causal_conv1d_nwh_forward",
    "convolution_mode",
    "create_device_properties",
    "create_handle",
    "create_kernel_cache",
    "cuda_graph_retention",
    "cudnnGraphNotSupportedError",
    "data_type",
    "destroy_handle",
    "diagonal_alignment",
    "get_last_error_string",
    "get_stream",
    "gnn_activation_op",
    "gnn_agg_op",
    "graph",
    "graph_cache",
    "heur_mode",
    "install",
    "is_frontend_knob_type",
    "jit",
    "knob",
    "knob_type",
    "moe_grouped_matmul_mode",
    "norm_forward_phase",
    "numerical_note",
    "ops",
    "pygraph",
    "reduction_mode",
    "reshape_mode",
    "scalar_type",
    "sdpa_capabilities",
    "set_backend_version",
    "set_stream",
    "tensor",
    "tensor_reordering",
    *absent.NAMES,
]


_MODULES = ("api_base", "collect_env", "datatypes", "experimental", "graph", "jax", "ops", "torch", "wrapper")
"""Modules of cuDNN's package that scripts import."""


def install(replace: bool = False) -> ModuleType:
    """Makes `import cudnn` import this module in the current process. replace: also if another one is
    loaded."""
    loaded = sys.modules.get("cudnn")
    module = sys.modules[__name__]
    if loaded not in (None, module) and not replace:
        raise WeftError(
            "weft.cudnn.install: another module 'cudnn' is loaded already. Call it before `import cudnn`, or "
            "give replace=True."
        )
    sys.modules["cudnn"] = module
    for name in _MODULES:
        sys.modules[f"cudnn.{name}"] = import_module(f"{__name__}.{name}")
    return module
