"""The operations of cuDNN's Python frontend as data: operands, attributes with their defaults, results, and
differences from Weft. operations.py generates methods from these rows; attention is in sdpa.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

REQUIRED = object()
"""The default of a required attribute."""


class Row(NamedTuple):
    """An operation. Positional arguments are `first`, then operands, then attributes."""

    operands: tuple[str, ...]
    results: tuple[str, ...]
    attributes: Mapping[str, Any]
    first: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    """Operands that are lists of tensors."""
    optional: tuple[str, ...] = ()
    """Optional operands."""
    node: str = ""
    """Its member of NodeType."""
    is_plain: bool = False
    """True if name and compute_data_type may be positional, after the attributes."""

    @property
    def positional(self) -> tuple[str, ...]:
        """Positional arguments, in order."""
        attributes = (key for key in self.attributes if key not in self.first)
        plain = ("name", "compute_data_type") if self.is_plain else ()
        return (*self.first, *self.operands, *attributes, *plain)


def _row(
    operands: str,
    results: str,
    node: str,
    attributes: Mapping[str, Any] = {},
    *,
    first: str = "",
) -> Row:
    """A row from words. An operand with a question mark is optional, one with a star is a list."""
    words = operands.split()
    names = [word.strip("?*") for word in words]
    marked = {mark: tuple(n for n, w in zip(names, words, strict=True) if mark in w) for mark in "?*"}
    row = Row(tuple(names), tuple(results.split()), attributes, node=node)
    row = row._replace(optional=marked["?"], lists=marked["*"])
    return row._replace(first=tuple(first.split()))


_UNARY = "abs ceil cos elu erf exp floor gelu gelu_approx_tanh identity log logical_not neg reciprocal rsqrt"
_UNARY += " sigmoid sin softplus sqrt tan tanh"
_GRADIENTS = "elu gelu gelu_approx_tanh sigmoid softplus tanh"


def _pointwise(operands: str, attributes: Mapping[str, Any] = {}) -> Row:
    return _row(operands, "OUT_0", "POINTWISE", attributes)._replace(is_plain=bool(attributes))


_CLIPS = {"negative_slope": None, "lower_clip": None, "upper_clip": None}

POINTWISE: dict[str, Row] = {
    **{name: _pointwise("input") for name in _UNARY.split()},
    **{f"{name}_backward": _pointwise("loss input") for name in _GRADIENTS.split()},
    **dict.fromkeys(
        ["add", "add_square", "div", "logical_and", "logical_or", "mul", "sub"], _pointwise("a b")
    ),
    **dict.fromkeys(["max", "min", "mod", "pow"], _pointwise("input0 input1")),
    **{f"cmp_{name}": _pointwise("input comparison") for name in ["eq", "ge", "gt", "le", "lt", "neq"]},
    "bias": _pointwise("input bias"),
    "scale": _pointwise("input scale"),
    "binary_select": _pointwise("input0 input1 mask"),
    "relu": _pointwise("input", _CLIPS),
    "relu_backward": _pointwise("loss input", _CLIPS),
    "leaky_relu": _pointwise("input", {"negative_slope": REQUIRED}),
    "leaky_relu_backward": _pointwise("loss input", {"negative_slope": REQUIRED}),
    "swish": _pointwise("input", {"swish_beta": None}),
    "swish_backward": _pointwise("loss input", {"swish_beta": None}),
    "gen_index": _pointwise("input", {"axis": REQUIRED}),
}
"""Elementwise operations with one result each."""

_NORMS = ("batchnorm", "layernorm", "adalayernorm", "instancenorm", "rmsnorm")
BIT_MASKS = {"conv_fprop", "conv_dgrad", "conv_wgrad", "matmul", "genstats", "batchnorm_inference"}
BIT_MASKS |= {f"{name}{suffix}" for name in _NORMS for suffix in ("", "_backward")}
"""Operations for which BOOLEAN is a bit per element in the graph, as in cuDNN's engines for them. Engines
that only copy or map elements have a byte for each."""

BOOLEAN_RESULTS = ("cmp_", "logical_")
"""Prefixes of methods with boolean results."""

_WINDOW = dict.fromkeys(("padding", "pre_padding", "post_padding", "stride", "dilation"), None)
_WINDOW["convolution_mode"] = None
_PHASE = {"norm_forward_phase": REQUIRED}
_NORM, _NORM_RESULTS = "input scale? bias? epsilon?", "Y mean inv_var"
_GRADIENT, _GRADIENT_RESULTS = "grad input scale? mean? inv_variance?", "DX DScale DBias"

STRUCTURED: dict[str, Row] = {
    "conv_fprop": _row("image weight", "Y", "CONV_FPROP", _WINDOW),
    "conv_dgrad": _row("loss filter", "DX", "CONV_DGRAD", _WINDOW),
    "conv_wgrad": _row("image loss", "DW", "CONV_WGRAD", _WINDOW),
    "genstats": _row("input", "SUM SQ_SUM", "GENSTATS"),
    "batchnorm": _row(
        "input scale? bias? in_running_mean? in_running_var? epsilon? momentum? peer_stats?*",
        "Y mean inv_var next_running_mean next_running_var",
        "BATCHNORM",
    ),
    "batchnorm_backward": _row(f"{_GRADIENT} peer_stats?*", _GRADIENT_RESULTS, "BATCHNORM_BWD"),
    "batchnorm_inference": _row("input mean? inv_variance? scale? bias?", "Y", "BATCHNORM_INFERENCE"),
    "layernorm": _row(_NORM, _NORM_RESULTS, "LAYERNORM", _PHASE, first="norm_forward_phase"),
    "adalayernorm": _row(_NORM, _NORM_RESULTS, "ADALAYERNORM", _PHASE, first="norm_forward_phase"),
    "instancenorm": _row(_NORM, _NORM_RESULTS, "INSTANCENORM", _PHASE, first="norm_forward_phase"),
    "rmsnorm": _row(_NORM, "Y inv_var", "RMSNORM", _PHASE, first="norm_forward_phase"),
    "layernorm_backward": _row(_GRADIENT, _GRADIENT_RESULTS, "LAYERNORM_BWD"),
    "adalayernorm_backward": _row(_GRADIENT, _GRADIENT_RESULTS, "ADALAYERNORM_BWD"),
    "instancenorm_backward": _row(_GRADIENT, _GRADIENT_RESULTS, "INSTANCENORM_BWD"),
    "rmsnorm_backward": _row(
        "grad input scale? inv_variance?", _GRADIENT_RESULTS, "RMSNORM_BWD", {"has_dbias": True}
    ),
    "reduction": _row("input", "OUT_0", "REDUCTION", {"mode": REQUIRED, "group_offset": None}),
    "reshape": _row("input", "OUT_0", "RESHAPE", {"reshape_mode": None}),
    "slice": _row("input", "OUT_0", "SLICE", {"slices": None}),
    "transpose": _row("input", "OUT_0", "TRANSPOSE", {"permutation": REQUIRED}),
    "concatenate": _row("inputs*", "OUT_0", "CONCATENATE", {"axis": REQUIRED, "in_place_index": None}),
    "block_scale_dequantize": _row(
        "input descale",
        "OUT_0",
        "BLOCK_SCALE_DEQUANTIZE",
        {"block_size": REQUIRED, "is_negative_scale": False},
    ),
    "block_scale_quantize": _row(
        "input",
        "Y scale",
        "BLOCK_SCALE_QUANTIZE",
        {"block_size": REQUIRED, "axis": None, "transpose": False, "group_offset": None},
    ),
    "moe_grouped_matmul": _row(
        "token weight first_token_offset token_index? token_ks?",
        "OUT_0",
        "MOE_GROUPED_MATMUL",
        {"mode": None, "top_k": 0, "top_k_scores": None},
    ),
    "moe_grouped_matmul_bwd": _row("doutput token first_token_offset", "dweight", "MOE_GROUPED_MATMUL_BWD"),
    "rope": _row("input freqs", "OUT_0", "ROPE", {"output_scale": None, "rope_dim": None}),
    "rope_backward": _row("dY freqs", "OUT_0", "ROPE_BWD", {"output_scale": None, "rope_dim": None}),
}
"""Operations with attributes or several results."""

MATMUL = _row("A B", "C", "MATMUL", {"padding": 0.0})

LINEAR_ATTENTION = tuple(
    f"{name}{suffix}"
    for name in ("gdn", "gdn2", "kda", "gdp", "mamba2")
    for suffix in ("", "_bwd", "_summary", "_summary_bwd")
)
"""Recurrent attention, for which cuDNN's frontend has its own kernels and which Weft does not implement."""
