"""Functions of cuDNN's frontend that are kernels by themselves and no graphs, which Weft has not. Each says
so by its name."""

from __future__ import annotations

from typing import Any

from weft.errors import NotSupportedError

NAMES = (
    "b2b_causal_conv1d_backward",
    "b2b_causal_conv1d_forward",
    "gnn_agg_simple_backward",
    "gnn_agg_simple_forward",
    "gnn_mha_gat_backward",
    "gnn_mha_gat_forward",
    "gnn_mha_gat_v2_backward",
    "gnn_mha_gat_v2_forward",
)


def _refusing(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotSupportedError(f"cudnn.{name}: Weft has no such function.")

    refuse.__name__, refuse.__doc__ = name, "Not there: says so."
    return refuse


FUNCTIONS = {name: _refusing(name) for name in NAMES}
