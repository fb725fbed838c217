"""Converts arguments that are not attributes: cuDNN's switches for attention, slices, and optional results.
The methods are generated from tools/op_rows.txt into ops.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft import enums
from weft.arguments import integer, label
from weft.errors import BadParameterError, NotSupportedError
from weft.ops import Ops
from weft.tensor import Tensor

if TYPE_CHECKING:
    from weft.dtypes import DataTypeLike
    from weft.tensor import ScoreModifier

_PHASED = {"layernorm", "adalayernorm", "instancenorm", "groupnorm", "rmsnorm"}
_OF_ATTENTION = (
    *("is_inference", "generate_stats", "implementation", "diagonal_alignment", "dropout"),
    *("use_padding_mask", "use_causal_mask", "use_causal_mask_bottom_right"),
    *("score_mod", "score_mod_bprop", "score_mod_gradients"),
)
_SWITCHES = ("use_alibi_mask", "unfuse_fma", "is_deterministic")
_STATISTICS = {"mean", "inv_variance", "out_mean", "out_var", "stats", "sum", "sq_sum", "index", "indices"}


def computed_results(method: str, values: Mapping[str, Any], results: Sequence[str]) -> list[str]:
    """The results that a method computes for the given options: inference with a norm computes no
    statistics."""
    if method in _PHASED and values.get("phase") in (enums.norm_forward_phase.INFERENCE, "INFERENCE"):
        return [key for key in results if not is_statistic(key)]
    if method in {"recurrence", "recurrence_backward"}:
        mode = enums.member(enums.rnn_mode, values["mode"])
        omitted = _results_of_other_modes(mode, "projection" in values)
        return [key for key in results if key not in omitted]
    return list(results)


def _results_of_other_modes(mode: int, has_projection: bool) -> set[str]:
    """The results of the steps of a recurrent layer that its mode does not have."""
    omitted = set() if has_projection else {"dprojected", "unprojected"}
    if mode != enums.rnn_mode.LSTM:
        omitted |= {"cy", "dcx"}
    if mode != enums.rnn_mode.GRU:
        omitted |= {"drecurrent"}
    return omitted if mode in (enums.rnn_mode.LSTM, enums.rnn_mode.GRU) else omitted | {"gates"}


def is_statistic(result: str) -> bool:
    """True if a result is a statistic or an index, whose type the library infers."""
    return result in _STATISTICS or result.startswith(("saved_", "eq_", "amax_"))


def _refuse(operation: str, features: Mapping[str, Any]) -> None:
    """Raises if an argument of an unsupported feature is set."""
    for name, value in features.items():
        if value is not None and value is not False:
            raise NotSupportedError(
                f"{operation}: {name} is given, an attention feature that is not supported yet. Leave it out."
            )


def _check_padding(where: str, is_padded: bool, *lengths: tuple[Any, Any]) -> None:
    """Checks the lengths of queries and keys, given as counts or as cumulative sums."""
    if is_padded and any(counts is None is sums for counts, sums in lengths):
        raise BadParameterError(
            f"{where}: use_padding_mask needs seq_len_q and seq_len_kv. Give both, [B, 1, 1, 1] of INT32."
        )


def _mask_values(where: str, own: Mapping[str, Any], right_bound: int | None) -> dict[str, Any]:
    """The attributes of causal masks and of the diagonal's alignment."""
    alignment = enums.member(enums.diagonal_alignment, own["diagonal_alignment"])
    if own["use_causal_mask"] or own["use_causal_mask_bottom_right"]:
        if right_bound not in (None, 0):
            raise BadParameterError(
                f"{where}: a causal mask bounds the right at 0, diagonal_band_right_bound is "
                f"{right_bound}. Give one."
            )
        right_bound = 0
    if own["use_causal_mask_bottom_right"]:
        alignment = enums.diagonal_alignment.BOTTOM_RIGHT
    return {"diagonal_alignment": int(alignment) or None, "diagonal_band_right_bound": right_bound}


def _dropout_values(where: str, dropout: tuple[Any, ...] | None) -> dict[str, Any]:
    """The attributes of dropout: from a generator, or from a mask."""
    if dropout is None:
        return {}
    fix = "Give (probability, seed, offset), or (mask, scale)."
    is_several = isinstance(dropout, tuple | list)
    first = dropout[0] if is_several and dropout else None
    is_mask = isinstance(first, Tensor) or getattr(first, "ndim", 0) > 0
    names = ("mask", "scale") if is_mask else ("probability", "seed", "offset")
    if not is_several or not 0 < len(dropout) <= len(names):
        given = f"{len(dropout)} values" if is_several else repr(dropout)
        raise BadParameterError(f"{where}: dropout is {given}. {fix}")
    values = {f"dropout_{name}": value for name, value in zip(names, dropout, strict=False)}
    if is_mask:
        return values
    try:
        return values | {"dropout_probability": float(dropout[0])}
    except (TypeError, ValueError):
        problem = f"dropout begins with {first!r}, not a number or a mask"
        raise BadParameterError(f"{where}: {problem}. {fix}") from None


def _slice_of(item: slice | int, where: str) -> slice:
    """Converts an index to a slice of extent 1, so that its dimension is kept."""
    if isinstance(item, slice):
        return item
    index = integer(item, where)
    if index < 0:
        raise BadParameterError(f"{where} is {index}. Count from the start: give 0 or more.")
    return slice(index, index + 1)


class CompositeOps(Ops):
    """The operations of a graph, including those whose arguments are not all attributes."""

    scaled_dot_product_flash_attention = Ops.sdpa
    scaled_dot_product_flash_attention_backward = Ops.sdpa_backward

    def _composite(
        self,
        method: str,
        operation: str,
        values: Mapping[str, Any],
        results: Sequence[str],
        compute_data_type: DataTypeLike | None,
        name: str,
    ) -> Sequence[Any]:
        """Converts the arguments to attributes and records the operation; results that the arguments leave
        out are None."""
        given = dict(values)
        omitted = _CONVERSIONS[operation](self, label(method, name), given)
        computed = [key for key in results if key not in omitted]
        outputs = self._operation(method, operation, given, computed, compute_data_type, name)
        by_key = dict(zip(computed, outputs, strict=True))
        return [by_key.get(key) for key in results]

    def _modified_scores(
        self,
        where: str,
        values: Mapping[str, Any],
        score_mod: ScoreModifier | None,
        score_mod_bprop: ScoreModifier | None = None,
        gradients: Mapping[Tensor, Tensor] | None = None,
    ) -> dict[str, Any]:
        """The attributes of a score modifier; implemented by the graph."""
        raise NotImplementedError


# ---- Conversions: replace arguments by attributes, and return the results to leave out ---------------------


def _convert_slice(g: CompositeOps, where: str, values: dict[str, Any]) -> Collection[str]:
    x = values["x"]
    dims = x.dims if isinstance(x, Tensor) else getattr(x, "shape", ())
    slices = [_slice_of(item, f"{where}: dimension {i}") for i, item in enumerate(values.pop("slices"))]
    limits = [
        s.stop if s.stop is not None else dims[i] if i < len(dims) else None for i, s in enumerate(slices)
    ]
    if None in limits:
        dimension = limits.index(None)
        raise BadParameterError(
            f"{where}: the slice of dimension {dimension} has no stop, and the input has no dims yet. "
            "Give it."
        )
    values |= {"start": [s.start or 0 for s in slices], "limit": limits}
    values["steps"] = [1 if s.step is None else s.step for s in slices]
    return ()


def _convert_resample(g: CompositeOps, where: str, values: dict[str, Any]) -> Collection[str]:
    return () if values.pop("generate_index") else ("index",)


def _convert_norm_backward(g: CompositeOps, where: str, values: dict[str, Any]) -> Collection[str]:
    return () if values.pop("has_dbias") else ("dbias",)


def _convert_attention(g: CompositeOps, where: str, values: dict[str, Any]) -> Collection[str]:
    """The scale as a number or a tensor, masks as bounds, dropout, lengths and score modifiers. A
    switch that is off leaves its attribute unset."""
    own = {key: values.pop(key, None) for key in _OF_ATTENTION}
    lengths = [(values.get(f"seq_len_{side}"), values.get(f"cu_seq_len_{side}")) for side in ("q", "kv")]
    _check_padding(where, own["use_padding_mask"], *lengths)
    if isinstance(values["attn_scale"], (int, float)):
        values["attn_scale_value"] = values.pop("attn_scale")
    values |= {key: values[key] or None for key in _SWITCHES if key in values}
    values |= _mask_values(where, own, values["diagonal_band_right_bound"])
    values |= _dropout_values(where, own["dropout"])
    modifiers = own["score_mod"], own["score_mod_bprop"], own["score_mod_gradients"]
    values |= g._modified_scores(where, values, *modifiers)
    returns_stats = own["is_inference"] is False if own["generate_stats"] is None else own["generate_stats"]
    return () if returns_stats else ("stats",)


def _convert_attention_backward(g: CompositeOps, where: str, values: dict[str, Any]) -> Collection[str]:
    _refuse(where, {"rng_dump": values.pop("rng_dump", None)})
    return _convert_attention(g, where, values)


_CONVERSIONS: Mapping[str, Callable[[CompositeOps, str, dict[str, Any]], Collection[str]]] = {
    "slice": _convert_slice,
    "resample": _convert_resample,
    "norm_backward": _convert_norm_backward,
    "sdpa_fwd": _convert_attention,
    "sdpa_bwd": _convert_attention_backward,
}
