"""Attention with all of cuDNN's keywords. Arguments that Weft's methods represent differently are converted:
one-dimensional lengths, boolean masks, statistics to base 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from inspect import Parameter, Signature, signature
from math import e, inf, log, log2
from typing import Any

from weft import buffers, enums
from weft.arguments import label
from weft.backend import operations
from weft.cudnn import dropped
from weft.cudnn.enums import NodeType, to_weft, weft_type
from weft.cudnn.grouped import reshaped
from weft.cudnn.names import Node, name_of
from weft.cudnn.operations import Operations, set_dims
from weft.cudnn.table import BOOLEAN_RESULTS
from weft.errors import BadParameterError, NotSupportedError
from weft.graphs import Graph
from weft.tensor import Tensor

_ORDER = {
    "sdpa": (
        "q k v is_inference attn_scale bias block_mask use_alibi_mask use_padding_mask seq_len_q "
        "seq_len_kv use_causal_mask use_causal_mask_bottom_right sliding_window_length "
        "diagonal_alignment diagonal_band_left_bound diagonal_band_right_bound dropout rng_dump "
        "paged_attention_k_table paged_attention_v_table paged_attention_max_seq_len_kv "
        "max_total_seq_len_q max_total_seq_len_kv compute_data_type name score_mod generate_stats "
        "implementation score_max score_sum_exp sink_token unfuse_fma cu_seq_len_q cu_seq_len_kv "
        "stats_use_log2"
    ),
    "sdpa_backward": (
        "q k v o dO stats attn_scale bias dBias use_alibi_mask use_padding_mask seq_len_q seq_len_kv "
        "max_total_seq_len_q max_total_seq_len_kv use_causal_mask use_causal_mask_bottom_right "
        "sliding_window_length diagonal_alignment diagonal_band_left_bound diagonal_band_right_bound "
        "dropout rng_dump use_deterministic_algorithm compute_data_type name score_mod "
        "score_mod_bprop sink_token dSink_token"
    ),
    "sdpa_fp8": (
        "q k v descale_q descale_k descale_v descale_s scale_s scale_o is_inference attn_scale bias "
        "use_alibi_mask use_padding_mask seq_len_q seq_len_kv use_causal_mask "
        "use_causal_mask_bottom_right sliding_window diagonal_alignment left_bound right_bound "
        "dropout rng_dump paged_attention_k_table paged_attention_v_table "
        "paged_attention_max_seq_len_kv max_total_seq_len_q max_total_seq_len_kv compute_data_type "
        "name fn generate_stats score_max score_sum_exp sink_token unfuse_fma implementation "
        "cu_seq_len_q cu_seq_len_kv stats_use_log2"
    ),
    "sdpa_fp8_backward": (
        "q k v o dO stats descale_q descale_k descale_v descale_o descale_dO descale_s descale_dP "
        "scale_s scale_dQ scale_dK scale_dV scale_dP attn_scale use_padding_mask seq_len_q seq_len_kv "
        "use_causal_mask use_causal_mask_bottom_right diagonal_alignment left_bound right_bound "
        "use_deterministic_algorithm dropout compute_data_type name sink_token dSink_token "
        "max_total_seq_len_q max_total_seq_len_kv"
    ),
    "sdpa_mxfp8": (
        "q k v descale_q descale_k descale_v attn_scale use_causal_mask use_causal_mask_bottom_right "
        "diagonal_alignment diagonal_band_left_bound diagonal_band_right_bound compute_data_type name "
        "generate_stats sink_token unfuse_fma implementation use_padding_mask seq_len_q seq_len_kv "
        "max_total_seq_len_q max_total_seq_len_kv cu_seq_len_q cu_seq_len_kv paged_attention_k_table "
        "paged_attention_v_table paged_attention_max_seq_len_kv"
    ),
    "sdpa_mxfp8_backward": (
        "q q_T k k_T v o_f16 dO_f16 dO dO_T stats descale_q descale_q_T descale_k descale_k_T "
        "descale_v descale_dO descale_dO_T attn_scale use_padding_mask seq_len_q seq_len_kv "
        "use_causal_mask use_causal_mask_bottom_right diagonal_alignment left_bound right_bound "
        "use_deterministic_algorithm dropout compute_data_type name sink_token dSink_token "
        "max_total_seq_len_q max_total_seq_len_kv"
    ),
}
ARGUMENTS = {method: tuple(words.split()) for method, words in _ORDER.items()}
"""Positional arguments of each method, in order."""

EXTRA = {
    "sdpa": ("kv_mask", "softmax_precision", "attn_scale_prefolded"),
    "sdpa_backward": ("softmax_precision", "attn_scale_prefolded"),
    "sdpa_fp8": ("softmax_precision", "attn_scale_prefolded", "sf_o"),
    "sdpa_fp8_backward": ("softmax_precision", "attn_scale_prefolded"),
    "sdpa_mxfp8": ("softmax_precision", "attn_scale_prefolded", "sf_o"),
    "sdpa_mxfp8_backward": ("softmax_precision", "attn_scale_prefolded"),
}
"""Keyword-only arguments."""

REQUIRED = {
    "sdpa": 3,
    "sdpa_backward": 6,
    "sdpa_fp8": 9,
    "sdpa_fp8_backward": 18,
    "sdpa_mxfp8": 6,
    "sdpa_mxfp8_backward": 17,
}
"""The number of required arguments."""

RESULTS: dict[str, tuple[str, ...]] = {
    "sdpa": ("O", "Stats"),
    "sdpa_backward": ("dQ", "dK", "dV"),
    "sdpa_fp8": ("O", "Stats", "Amax_S", "Amax_O"),
    "sdpa_fp8_backward": ("dQ", "dK", "dV", "Amax_dQ", "Amax_dK", "Amax_dV", "Amax_dP"),
    "sdpa_mxfp8": ("O", "Stats", "Amax_O"),
    "sdpa_mxfp8_backward": ("dQ", "dK", "dV", "Amax_dQ", "Amax_dK", "Amax_dV"),
}

_FLAGS = ("use_", "is_", "unfuse_", "stats_use_", "attn_scale_prefolded")
_BOUNDS = ("max_total_seq_len_q", "max_total_seq_len_kv", "implementation")
"""Guarantees and hints that do not change results: accepted, and passed on if Weft's method supports them."""


class Attention(Operations):
    """The attention methods of a graph."""

    def _attend(self, method: str, arguments: Sequence[Any], named: Mapping[str, Any], out_dims: Any) -> Any:
        """Adds an attention operation: binds the arguments, converts them to Weft's form, and names the
        node."""
        bound = _bind(method, arguments, named)
        name, compute = bound.pop("name", None) or "", bound.pop("compute_data_type", None)
        where = label(method, name)
        values = {key: self._array(where, key, value) for key, value in bound.items() if value is not None}
        log2_stats = values.pop("stats_use_log2", False)
        prepared, compute = self._in_wefts_form(where, dict(values)), weft_type(compute)
        uses_bias = method in ("sdpa", "sdpa_backward") and self._drops_by_numbers(prepared)
        call = self._call_dropped if uses_bias else self._call
        results = call(method, where, prepared, compute, name)
        operation = next(o for o in reversed(self._operations) if o.kind.startswith("sdpa"))
        results = self._to_base_2(results) if log2_stats and results[1] is not None else results
        inputs = {key: v for key, v in values.items() if isinstance(v, Tensor)}
        outputs = {key: t for key, t in zip(RESULTS[method], results, strict=True) if t is not None}
        attributes = {key: v for key, v in values.items() if key not in inputs}
        kind = NodeType[_NODES[method]]
        name = name or name_of(self._nodes, method)
        self._nodes.append(Node(name, kind, method, inputs, outputs, attributes, operation.name))
        set_dims(outputs, out_dims)
        return results

    def _call(self, method: str, where: str, values: Mapping[str, Any], compute: Any, name: str) -> Any:
        """Calls Weft's method, and sets the attributes that only the operation has."""
        if mask_of(values) is not None:
            # gradients also receive the inverse of the scale
            values = {**values, "dropout": values["dropout"][:2]}
        known, rows = _known(method, where, values)
        results = getattr(Graph, method)(self, **known, compute_data_type=compute, name=name)
        operation = next(o for o in reversed(self._operations) if o.kind.startswith("sdpa"))
        for key, value in rows.items():
            row = operations()[operation.kind].rows[key]
            operation.values[key] = self._as_operand(operation.kind, value, row, where, key)
        return results

    def _drops_by_numbers(self, values: Mapping[str, Any]) -> bool:
        """True if dropout is a floating-point mask and all requested results can be computed with it."""
        mask = mask_of(values)
        return mask is not None and "dBias" not in values and not self._is_boolean(mask)

    def _call_dropped(
        self, method: str, where: str, values: Mapping[str, Any], compute: Any, name: str
    ) -> Any:
        """The call for dropout by a floating-point mask; the result has q's type unless another one is
        set."""

        def attend(given: dict[str, Any]) -> Any:
            return self._call(method, where, given, compute, "")

        if method == "sdpa_backward":
            return dropped.backward(self, attend, where, values)
        o, stats = dropped.forward(self, attend, where, values, name)
        o._data_type = None if self._io_type is not None else values["q"]._data_type
        return o, stats if values.get("generate_stats", values.get("is_inference") is False) else None

    def _array(self, where: str, key: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._array(where, key, each) for each in value)
        value = self._own(value, where, key)
        is_array = not isinstance(value, (Tensor, int, float)) and buffers.is_array(value)
        return self._as_tensor(value, where, key) if is_array else value

    def _in_wefts_form(self, where: str, values: dict[str, Any]) -> dict[str, Any]:
        """Converts arguments to the form of Weft's methods."""
        _set_scale(where, values)
        self._promote_lengths(values)
        if "kv_mask" in values:
            values["kv_mask"] = self._key_mask(where, values["kv_mask"])
        self._add_masks(values)
        return {key: to_weft(value) for key, value in values.items()}

    def _promote_lengths(self, values: dict[str, Any]) -> None:
        """One-dimensional lengths and cumulative lengths get four dimensions."""
        for key in ("seq_len_q", "seq_len_kv", "cu_seq_len_q", "cu_seq_len_kv"):
            length = values.get(key)
            if isinstance(length, Tensor) and len(length._dims) == 1:
                column = reshaped(self, length, [length._dims[0], 1, 1, 1])
                column._data_type = length._data_type
                values[key] = column

    def _key_mask(self, where: str, mask: Tensor) -> Tensor:
        """A boolean mask of the keys of each batch entry: [B, Skv] gets four dimensions."""
        dims = mask._dims
        if len(dims) == 2:
            row = reshaped(self, mask, [dims[0], 1, 1, dims[1]])
            row._data_type = mask._data_type
            return row
        if len(dims) not in (0, 4) or dims[1:3] not in ((), (1, 1)):
            raise BadParameterError(
                f"{where}: kv_mask is {list(dims)}, but must contain one value per key. Give "
                "[B, 1, 1, Skv] or [B, Skv]; use a bias for masks that differ by head or query."
            )
        return mask

    def _add_masks(self, values: dict[str, Any]) -> None:
        """Converts boolean masks to biases."""
        bias, mask = values.get("bias"), values.pop("kv_mask", None)
        if bias is not None and self._is_boolean(bias):
            bias = values["bias"] = self._masked(bias)
        if mask is not None:
            masked = self._masked(mask)
            values["bias"] = masked if bias is None else Graph.add(self, bias, masked)

    def _is_boolean(self, tensor: Any) -> bool:
        if not isinstance(tensor, Tensor) or tensor._data_type is not None:
            kinds = (enums.data_type.BOOLEAN, enums.data_type.BYTE_BOOLEAN)
            return isinstance(tensor, Tensor) and tensor._data_type in kinds
        makers = [node for node in self._nodes if any(t is tensor for t in node.outputs.values())]
        return any(node.method.startswith(BOOLEAN_RESULTS) for node in makers)

    def _masked(self, mask: Tensor) -> Tensor:
        """The bias for a boolean mask: 0 where it is true, minus infinity elsewhere."""
        return Graph.binary_select(self, 0.0, -inf, mask)

    def _to_base_2(self, results: Sequence[Any]) -> tuple[Any, ...]:
        """Converts statistics to logarithms to base 2."""
        return results[0], Graph.mul(self, results[1], log2(e)), *results[2:]


def mask_of(values: Mapping[str, Any]) -> Tensor | None:
    """The mask of a dropout argument; None if the mask is drawn, or without dropout."""
    dropout = values.get("dropout")
    return dropout[0] if isinstance(dropout, tuple) and dropout and isinstance(dropout[0], Tensor) else None


_NODES = {
    "sdpa": "SDPA",
    "sdpa_backward": "SDPA_BWD",
    "sdpa_fp8": "SDPA_FP8",
    "sdpa_fp8_backward": "SDPA_FP8_BWD",
    "sdpa_mxfp8": "SDPA_MXFP8",
    "sdpa_mxfp8_backward": "SDPA_MXFP8_BWD",
}


_KINDS = ("sdpa_fwd", "sdpa_bwd")
"""Weft's operations: forward, backward."""


def _set_scale(where: str, values: dict[str, Any]) -> None:
    """Sets attn_scale to ln 2 if q already includes the scale and log2(e); rejects a softmax precision other
    than FLOAT."""
    precision = weft_type(values.pop("softmax_precision", None))
    if precision is not None and precision is not enums.data_type.FLOAT:
        raise NotSupportedError(
            f"{where}: softmax_precision is {precision.name}, and Weft's softmax computes in FLOAT. Leave "
            "it out."
        )
    if values.pop("attn_scale_prefolded", False):
        if "attn_scale" in values:
            raise BadParameterError(
                f"{where}: attn_scale and attn_scale_prefolded are given. Give only the former, or the "
                "latter if q includes the scale."
            )
        values["attn_scale"] = log(2)


@cache
def _parameters(method: str) -> Mapping[str, Parameter]:
    return signature(getattr(Graph, method)).parameters


def _known(method: str, where: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the arguments into those of Weft's method and those that only its operation has; rejects others
    by name."""
    known, rows = _parameters(method), operations()[_KINDS[_NODES[method].endswith("BWD")]].rows
    lacking = {
        key: v for key, v in values.items() if key not in known and key not in _BOUNDS and v is not False
    }
    for key in lacking:
        if key not in rows:
            raise NotSupportedError(f"{where}: {key} is given, which Weft does not support. Leave it out.")
    taken = {key: value for key, value in values.items() if key in known}
    if any(key.startswith("cu_seq_len") for key in lacking):
        taken["use_padding_mask"] = False  # which Weft's method would check against the other lengths
    return taken, lacking


def _bind(method: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    order = ARGUMENTS[method]
    if len(arguments) > len(order):
        raise TypeError(f"{method}() takes {len(order)} positional arguments, {len(arguments)} were given")
    bound = dict(zip(order, arguments, strict=False))
    for key, value in named.items():
        if key not in (*order, *EXTRA.get(method, ())):
            raise TypeError(f"{method}() got an unexpected argument {key!r}")
        if bound.get(key) is not None and value is not None and key not in ("name", "compute_data_type"):
            raise TypeError(f"{method}() got two values for {key!r}")
        bound[key] = value if value is not None else bound.get(key)
    missing = [key for key in order[: REQUIRED[method]] if bound.get(key) is None]
    if missing:
        raise TypeError(f"{method}() is missing {', '.join(missing)}")
    return bound


def _default(method: str, key: str) -> Any:
    if key in ARGUMENTS[method][: REQUIRED[method]]:
        return Parameter.empty
    defaults = {"name": "", "diagonal_alignment": 0, "implementation": 0, "is_inference": None}
    return defaults[key] if key in defaults else False if key.startswith(_FLAGS) else None


def _signature(method: str) -> Signature:
    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [Parameter("self", kind)]
    parameters += [Parameter(key, kind, default=_default(method, key)) for key in ARGUMENTS[method]]
    named = Parameter.KEYWORD_ONLY
    parameters += [Parameter(k, named, default=_default(method, k)) for k in EXTRA.get(method, ())]
    return Signature([*parameters, Parameter("out_dims", named, default=None)])


def _method(method: str) -> Any:
    def attend(self: Attention, *args: Any, out_dims: Any = None, **named: Any) -> Any:
        return self._attend(method, args, named, out_dims)

    attend.__name__, attend.__qualname__ = method, f"pygraph.{method}"
    attend.__doc__ = (getattr(Graph, method).__doc__ or "").split("\n\n        Args:")[0]
    attend.__signature__ = _signature(method)  # type: ignore[attr-defined]
    return attend


for _name in ARGUMENTS:
    setattr(Attention, _name, _method(_name))
Attention.scaled_dot_product_flash_attention = Attention.sdpa
Attention.scaled_dot_product_flash_attention_backward = Attention.sdpa_backward
