"""Operations whose frontend methods do not map directly to attributes: attention with cuDNN's many switches,
slices, and results computed on request. tools/gen.py omits the methods defined here from ops.py, and writes
the docstrings of the public ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from weft import enums
from weft.arguments import label, whole
from weft.errors import BadParameterError, NotSupportedError
from weft.ops import Ops
from weft.tensor import Tensor

if TYPE_CHECKING:
    from weft.dtypes import DataTypeLike
    from weft.tensor import Operand, Rational

ScoreModifier: TypeAlias = "Callable[[Any, Tensor], Tensor]"
"""Adds operations to a graph that read attention's scores, or their gradient, and returns the last result."""

# Methods of the library that a method here wraps; they are generated with a leading underscore.
WRAPPED = {"sdpa_fwd": "sdpa", "sdpa_bwd": "sdpa_backward", "strided_slice": "slice"}

_PHASED = {"layernorm", "adalayernorm", "instancenorm", "groupnorm", "rmsnorm"}
_STATISTICS = {"mean", "inv_variance", "out_mean", "out_var", "stats", "sum", "sq_sum", "index"}


def computed_results(method: str, values: Mapping[str, Any], results: Sequence[str]) -> list[str]:
    """The results that a method computes for the given options: inference with a norm computes no
    statistics."""
    if method in _PHASED and values.get("phase") in (enums.norm_forward_phase.INFERENCE, "INFERENCE"):
        return [key for key in results if not is_statistic(key)]
    return list(results)


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
    index = whole(item, where)
    if index < 0:
        raise BadParameterError(f"{where} is {index}. Count from the start: give 0 or more.")
    return slice(index, index + 1)


class CompositeOps(Ops):
    """The operations of a graph that are written by hand."""

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

    def softmax(
        self,
        input: Operand,
        axis: int | None = None,
        sink: Operand | None = None,
        stats_log2: bool = False,
        stats: Tensor | None = None,
        max: Tensor | None = None,
        sum_exp: Tensor | None = None,
        compute_data_type: DataTypeLike | None = None,
        name: str = "",
        infinite_is_nan: bool = False,
    ) -> Tensor:
        """Weights that sum to 1 along one dimension.

            y = exp(x - max) / sum(exp(x - max))

        Args:
            input: scores, [d..].
            axis: the dimension along which weights sum to 1; default the last.
            sink: score that is included in each row's maximum and sum but has no element of y, like stats, or
                1s: [1,H,1,1]; optional.
            stats_log2: true: stats is a base-2 logarithm; default False.
            stats: receives: max + ln(sum_exp), the logarithm of the sum of e^x, like x, 1 along the axis;
                optional.
            max: receives: largest score of the row, the sink included, like x, 1 along the axis; optional.
            sum_exp: receives: sum of e^(x - max), the sink included, like x, 1 along the axis; optional.
            compute_data_type: type to compute in; by default the graph's, otherwise FLOAT.
            name: the operation's name in messages and diagrams.
            infinite_is_nan: true: y is NaN in rows whose largest element is infinite, of either sign;
                default: such rows share their weight among elements of +inf, and rows of -inf are 0; default
                False.
        Returns:
            y: weights, as x.
        Data types:
            operands: any, also mixed, unless stated above.
            results, unless set for the tensor or the graph: y the type of x; virtual results have the compute
                type, or DOUBLE; statistics FLOAT, or DOUBLE for DOUBLE operands.
        Raises:
            BadParameterError: if an operand is not a tensor of the graph, an array or a number; at
                build, if operands or options violate a rule of the operation.
            NotSupportedError: at build, if no engine of the device supports it; see `reasons`.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> y = g.softmax(np.float32([[0, 0], [5, 5]]))
        >>> g()
        array([[0.5, 0.5],
               [0.5, 0.5]], dtype=float32)
        """
        values = {"x": input, "axis": axis, "sink": sink, "stats_log2": stats_log2}
        values["infinite_is_nan"] = infinite_is_nan
        values |= {"stats": stats, "max": max, "sum_exp": sum_exp}
        return self._operation("softmax", "softmax", values, ("y",), compute_data_type, name)[0]

    def slice(
        self,
        input: Operand,
        slices: Sequence[slice | int],
        compute_data_type: DataTypeLike | None = None,
        name: str = "",
    ) -> Tensor:
        """A box of a tensor, optionally with steps.

            y[i] = x[start + i * step]

        Args:
            input: input, [d..].
            slices: a slice per dimension, without negative numbers; its stop may be None if the dims of x are
                known. An index is a slice of extent 1: its dimension is kept.
            compute_data_type: accepted and ignored.
            name: the operation's name in messages and diagrams.
        Returns:
            y: result, [ceil((limit - start) / step)..].
        Data types:
            operands: any, also mixed, unless stated above.
            results, unless set for the tensor or the graph: the type of x.
        Raises:
            BadParameterError: if an operand is not a tensor of the graph, an array or a number; at
                build, if operands or options violate a rule of the operation.
            NotSupportedError: at build, if no engine of the device supports it; see `reasons`.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> y = g.slice(np.float32([0, 1, 2, 3, 4]), [slice(1, 5, 2)])
        >>> g()
        array([1., 3.], dtype=float32)
        """
        dims = input.dims if isinstance(input, Tensor) else getattr(input, "shape", ())
        where = label("slice", name)
        boxes = [_slice_of(item, f"{where}: dimension {i}") for i, item in enumerate(slices)]
        limits = [
            s.stop if s.stop is not None else dims[i] if i < len(dims) else None for i, s in enumerate(boxes)
        ]
        if None in limits:
            dimension = limits.index(None)
            raise BadParameterError(
                f"{where}: the slice of dimension {dimension} has no stop, and the input has no dims yet. "
                "Give it."
            )
        values = {"x": input, "start": [s.start or 0 for s in boxes], "limit": limits}
        values["steps"] = [1 if s.step is None else s.step for s in boxes]
        return self._operation("slice", "slice", values, ("y",), compute_data_type, name)[0]

    def resample(
        self,
        input: Operand,
        window: Rational | Sequence[Rational] = (),
        stride: Rational | Sequence[Rational] = (),
        pre_padding: Rational | Sequence[Rational] = (),
        post_padding: Rational | Sequence[Rational] = (),
        mode: enums.resample_mode | str = enums.resample_mode.MAXPOOL,
        padding_mode: enums.padding_mode | str | None = None,
        padding: Rational | Sequence[Rational] | None = None,
        generate_index: bool = False,
        compute_data_type: DataTypeLike | None = None,
        name: str = "",
        *,
        dilation: int | Sequence[int] = (),
    ) -> tuple[Tensor, Tensor | Any]:
        """Pooling or interpolation.

            y[n,c,o] = max, mean or weighted sum over r of x[n, c, o * stride + r * dilation - pre_padding]

        Args:
            input: input, [N, C, x..].
            window: extents of the window in elements; interpolation uses it only to infer the extents of y,
                unset: 1; one number applies to all.
            stride: step of the window in elements, a fraction below 1 enlarges; unset: x extent / y extent,
                for interpolation only; one number applies to all.
            pre_padding: elements before the start of each spatial dimension where the first window begins;
                unset: 0; one number applies to all.
            post_padding: elements after the end of each spatial dimension that windows may reach; unset:
                pre_padding; one number applies to all.
            mode: reduction of a window; default MAXPOOL.
            padding_mode: values outside x; unset: NEG_INF_PAD for MAXPOOL, ZERO_PAD for AVGPOOL, EDGE_VAL_PAD
                for NEAREST and BILINEAR.
            padding: pre_padding and post_padding in one; optional.
            generate_index: whether max pooling returns the position of each maximum in its window; default
                False.
            compute_data_type: type to compute in; by default the graph's, otherwise FLOAT.
            name: the operation's name in messages and diagrams.
            dilation: distance between the elements of a pooling window, per spatial dimension; unset: 1; one
                number applies to all.
        Returns:
            y: result, [N, C, 1 + (x + pre + post - dilation * (window - 1) - 1) / stride..].
            index: position of each maximum in its window; None unless generate_index.
        Data types:
            operands: any, also mixed, unless stated above.
            results, unless set for the tensor or the graph: y the type of x; virtual results have the compute
                type, or DOUBLE; index INT8 if it fits, otherwise INT32.
        Raises:
            BadParameterError: if an operand is not a tensor of the graph, an array or a number; at
                build, if operands or options violate a rule of the operation.
            NotSupportedError: at build, if no engine of the device supports it; see `reasons`.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> y, _ = g.resample(np.arange(8, dtype="f4").reshape(1, 1, 2, 4), window=[2, 2], stride=[2, 2])
        >>> g()
        array([[[[5., 7.]]]], dtype=float32)
        """
        values = {"x": input, "window": window, "stride": stride, "mode": mode, "padding_mode": padding_mode}
        values["dilation"] = dilation
        values["pre_padding"] = pre_padding if padding is None else padding
        values["post_padding"] = post_padding if padding is None else padding
        results = ("y", "index") if generate_index else ("y",)
        outputs = self._operation("resample", "resample", values, results, compute_data_type, name)
        return outputs[0], outputs[1] if generate_index else None

    def rmsnorm_backward(
        self,
        grad: Operand,
        input: Operand,
        scale: Operand | None = None,
        inv_variance: Operand | None = None,
        has_dbias: bool = True,
        compute_data_type: DataTypeLike | None = None,
        name: str = "",
        *,
        epsilon: Operand | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | Any]:
        """Gradients of rmsnorm.

            dx = inv_variance * (g - xhat * mean(g * xhat)), g = scale * dy

        Args:
            grad: gradient of the result, as x.
            input: forward input, [N, C, spatial..] or [batch.., normalised..].
            scale: gamma, 1 if absent; layer norms normalise the dimensions in which its extent is not 1; if
                it is absent, those in which inv_variance has extent 1, [1,C,1..]; layer norms: x's extents on
                the normalised dimensions; optional.
            inv_variance: 1 / sqrt(variance + epsilon) of the forward pass; absent: recomputed from x and
                epsilon, x's extents, 1 on the normalised dimensions; GROUP_NORM: [N,groups,1..]; optional.
            has_dbias: whether to compute the gradient of the forward operation's bias; default True.
            compute_data_type: type to compute in; by default the graph's, otherwise FLOAT.
            name: the operation's name in messages and diagrams.
            epsilon: scalar added to the variance if statistics are recomputed, [1..]; optional.
        Returns:
            dx: gradient of x, as x.
            dscale: gradient of the scale, [1,C,1..]; layer norms: x's extents on the normalised dimensions.
            dbias: gradient of the bias; None unless has_dbias.
        Data types:
            operands: any, also mixed, unless stated above.
            results, unless set for the tensor or the graph: dx the type of x, the others that of scale, or
                FLOAT without a scale; virtual results have the compute type, or DOUBLE.
        Raises:
            BadParameterError: if an operand is not a tensor of the graph, an array or a number; at
                build, if operands or options violate a rule of the operation.
            NotSupportedError: at build, if no engine of the device supports it; see `reasons`.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> x, inv_variance = np.float32([[2, -2, 2, -2]]), np.float32([[0.5]])
        >>> dy, scale = np.float32([[1, 2, 3, 6]]), np.ones((1, 4), "f4")
        >>> dx, dscale, _ = g.rmsnorm_backward(dy, x, scale, inv_variance, has_dbias=False)
        >>> for result in g(): print(result.ravel())
        [1.  0.5 2.  2.5]
        [ 1. -2.  3. -6.]
        """
        values = {"dy": grad, "x": input, "scale": scale, "inv_variance": inv_variance, "epsilon": epsilon}
        values["mode"] = enums.norm_mode.RMS_NORM
        results = ("dx", "dscale", "dbias") if has_dbias else ("dx", "dscale")
        grads = self._operation("rmsnorm_backward", "norm_backward", values, results, compute_data_type, name)
        return grads[0], grads[1], grads[2] if has_dbias else None

    # ---- Attention ----

    def sdpa(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        is_inference: bool | None = None,
        attn_scale: Operand | None = None,
        bias: Operand | None = None,
        block_mask: Operand | None = None,
        use_alibi_mask: bool = False,
        use_padding_mask: bool = False,
        seq_len_q: Operand | None = None,
        seq_len_kv: Operand | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        sliding_window_length: int | None = None,
        diagonal_alignment: enums.diagonal_alignment | str = enums.diagonal_alignment.TOP_LEFT,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        dropout: tuple[Any, ...] | None = None,
        rng_dump: Tensor | None = None,
        paged_attention_k_table: Operand | None = None,
        paged_attention_v_table: Operand | None = None,
        paged_attention_max_seq_len_kv: int | None = None,
        compute_data_type: DataTypeLike | None = None,
        name: str = "",
        score_mod: ScoreModifier | None = None,
        generate_stats: bool | None = None,
        implementation: enums.attention_implementation = enums.attention_implementation.AUTO,
        score_max: Tensor | None = None,
        score_sum_exp: Tensor | None = None,
        sink_token: Operand | None = None,
        unfuse_fma: bool = False,
        cu_seq_len_q: Operand | None = None,
        cu_seq_len_kv: Operand | None = None,
        *,
        descale_q: Operand | None = None,
        descale_k: Operand | None = None,
        descale_v: Operand | None = None,
    ) -> tuple[Tensor, Tensor | Any]:
        """Scaled dot-product attention. Rows without a visible key are 0, and -inf in the statistics.

            o = dropout(softmax(mask(attn_scale q k^T + bias))) v

        Args:
            q: queries, [B, Hq, Sq, Dqk].
            k: keys, [B, Hk, Skv, Dqk], Hk divides Hq.
            v: values, [B, Hv, Skv, Dv], Hv divides Hq.
            is_inference: the opposite of generate_stats.
            attn_scale: factor of q k^T, a number or a scalar tensor; default 1.
            bias: added to the scaled scores; a boolean bias keeps scores where it is true, [B, Hq, Sq, Skv]
                or 1s; optional.
            block_mask: tiles of 128 x 128 scores to compute: INT8 or BYTE_BOOLEAN; UINT8 has 8 key tiles per
                byte, lowest bit first; the first two extents may be 1, [B, Hq, ceil(Sq / 128), ceil(Skv /
                128)]; optional.
            use_alibi_mask: true: adds slope (col - row) to the scores; default False.
            use_padding_mask: whether seq_len_q and seq_len_kv cut the sequences; default False.
            seq_len_q: queries in use of each batch, INT32 or INT64; unset: all, [B, 1, 1, 1].
            seq_len_kv: keys in use of each batch, INT32 or INT64; unset: all, [B, 1, 1, 1].
            use_causal_mask: keep col <= row; default False.
            use_causal_mask_bottom_right: keep col <= row + keys - queries; default False.
            sliding_window_length: alias of diagonal_band_left_bound.
            diagonal_alignment: the diagonal to which the bounds refer: shift 0, or keys - queries in use.
            diagonal_band_left_bound: keeps col > row + shift - bound; unset: all on the left.
            diagonal_band_right_bound: keeps col <= row + shift + bound; 0: causal; unset: all on the right.
            dropout: (probability, seed tensor, offset tensor); optional.
            rng_dump: receives: 1 if dropout keeps a weight, otherwise 0, [B, Hq, Sq, Skv]; optional.
            paged_attention_k_table: page of each block of keys, INT32 or INT64; k is then [container, Hk,
                page size, Dqk]; may be ragged; requires seq_len_kv, [B, 1, pages, 1]; optional.
            paged_attention_v_table: the same for v, which is then [container, Hv, page size, Dv], [B, 1,
                pages, 1]; optional.
            paged_attention_max_seq_len_kv: Skv, if there are page tables; unset: all keys that the tables
                reach.
            compute_data_type: type to compute in; by default the graph's, otherwise FLOAT.
            name: the operation's name in messages and diagrams.
            score_mod: a function of the graph and the tensor of scaled scores, [B, Hq, Sq, Skv], that applies
                pointwise operations to them and returns the result; gen_index and tensors that broadcast to
                the scores may be used, and scores of -inf are masked; optional.
            generate_stats: whether to return the statistics for the backward pass.
            implementation: accepted for compatibility; Weft selects the kernels.
            score_max: receives: largest score of each row, sink included, [B, Hq, Sq, 1]; optional.
            score_sum_exp: receives: sum of e^(score - score_max) of each row, sink included, [B, Hq, Sq, 1];
                optional.
            sink_token: a score per head that is included in the softmax's sum and has no value, [1, Hq, 1,
                1]; optional.
            unfuse_fma: true: scores are scaled, rounded and then shifted, instead of in a fused multiply-add;
                default False.
            cu_seq_len_q: cumulative number of queries in use, INT32 or INT64, instead of seq_len_q, [B + 1,
                1, 1, 1]; optional.
            cu_seq_len_kv: cumulative number of keys in use, INT32 or INT64, instead of seq_len_kv, [B + 1, 1,
                1, 1]; optional.
            descale_q: factor of q, applied first, [B, Hq, 1, 1] or 1s; block scales: [B, Hq, Sq, ceil(Dqk /
                32)]; optional.
            descale_k: factor of k, applied first, [B, Hk, Skv, 1] or 1s; block scales: [B, Hk, Skv, ceil(Dqk
                / 32)]; pages: [container, Hk, page size, ..]; optional.
            descale_v: factor of v, applied first, [B, Hv, Skv, 1] or 1s; block scales: [B, Hv, ceil(Skv /
                32), Dv]; pages: [container, Hv, page size, ..]; optional.
        Returns:
            o: result, [B, Hq, Sq, Dv].
            stats: natural log of each row's sum of exponentials, sink included, [B, Hq, Sq, 1]; None unless
                generate_stats.
        Data types:
            operands: any, also mixed, unless stated above.
            results, unless set for the tensor or the graph: o the type of q; virtual results have the compute
                type, or DOUBLE; statistics FLOAT, or DOUBLE for DOUBLE operands.
        Raises:
            BadParameterError: if an operand is not a tensor of the graph, an array or a number; at
                build, if operands or options violate a rule of the operation.
            NotSupportedError: at build, if no engine of the device supports it; see `reasons`.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> q, k = np.zeros((1, 1, 2, 4), "f4"), np.zeros((1, 1, 2, 4), "f4")  # all keys score alike
        >>> v = np.float32([[[[1, 10], [3, 30]]]])
        >>> o, stats = g.sdpa(q, k, v, attn_scale=0.5, use_causal_mask=True, generate_stats=True)
        >>> for result in g(): print(result.round(3).ravel())
        [ 1. 10.  2. 20.]
        [0.    0.693]
        """
        where = label("sdpa", name)
        values = self._attention_values(
            where, q, k, v, attn_scale, use_causal_mask, use_causal_mask_bottom_right,
            sliding_window_length, diagonal_alignment, diagonal_band_left_bound, diagonal_band_right_bound,
            dropout, use_padding_mask, seq_len_q, seq_len_kv, sink_token, cu_seq_len_q, cu_seq_len_kv,
        )  # fmt: skip
        values |= {"bias": bias, "use_alibi_mask": use_alibi_mask or None, "block_mask": block_mask}
        values |= {"rng_dump": rng_dump, "score_max": score_max, "score_sum_exp": score_sum_exp}
        values |= {"paged_attention_k_table": paged_attention_k_table}
        values |= {"paged_attention_v_table": paged_attention_v_table}
        values |= {"paged_attention_max_seq_len_kv": paged_attention_max_seq_len_kv}
        values |= {"unfuse_fma": unfuse_fma or None}
        values |= self._modified_scores(where, values, score_mod)
        values |= {"descale_q": descale_q, "descale_k": descale_k, "descale_v": descale_v}
        with_stats = is_inference is False if generate_stats is None else generate_stats
        results = ("o", "stats") if with_stats else ("o",)
        outputs = self._operation("sdpa", "sdpa_fwd", values, results, compute_data_type, name)
        return outputs[0], outputs[1] if with_stats else None

    def sdpa_fp8(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        descale_q: Operand,
        descale_k: Operand,
        descale_v: Operand,
        descale_s: Operand,
        scale_s: Operand,
        scale_o: Operand,
        is_inference: bool | None = None,
        attn_scale: Operand | None = None,
        bias: Operand | None = None,
        use_alibi_mask: bool = False,
        use_padding_mask: bool = False,
        seq_len_q: Operand | None = None,
        seq_len_kv: Operand | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        sliding_window: int | None = None,
        diagonal_alignment: enums.diagonal_alignment | str = enums.diagonal_alignment.TOP_LEFT,
        left_bound: int | None = None,
        right_bound: int | None = None,
        dropout: tuple[Any, ...] | None = None,
        rng_dump: Tensor | None = None,
        paged_attention_k_table: Operand | None = None,
        paged_attention_v_table: Operand | None = None,
        paged_attention_max_seq_len_kv: int | None = None,
        compute_data_type: DataTypeLike | None = None,
        name: str = "",
        fn: ScoreModifier | None = None,
        generate_stats: bool | None = None,
        score_max: Tensor | None = None,
        score_sum_exp: Tensor | None = None,
        sink_token: Operand | None = None,
    ) -> tuple[Tensor, Tensor | Any, Tensor, Tensor]:
        """Scaled dot-product attention in FP8: sdpa with scales for operands, softmax and result. It also
        returns the largest magnitudes, from which the caller computes the scales of the next call.

            p = softmax(mask(attn_scale descale_q descale_k q k^T + bias))
            o = scale_o descale_s descale_v (scale_s dropout(p)) v

        Args:
            q: queries, [B, Hq, Sq, Dqk].
            k: keys, [B, Hk, Skv, Dqk], Hk divides Hq.
            v: values, [B, Hv, Skv, Dv], Hv divides Hq.
            descale_q: factor of q, applied first, [B, Hq, 1, 1] or 1s; block scales: [B, Hq, Sq, ceil(Dqk /
                32)].
            descale_k: factor of k, applied first, [B, Hk, Skv, 1] or 1s; block scales: [B, Hk, Skv, ceil(Dqk
                / 32)]; pages: [container, Hk, page size, ..].
            descale_v: factor of v, applied first, [B, Hv, Skv, 1] or 1s; block scales: [B, Hv, ceil(Skv /
                32), Dv]; pages: [container, Hv, page size, ..].
            descale_s: factor of the softmax after scale_s, [1, 1, 1, 1].
            scale_s: factor of the softmax before it is rounded to FP8, if it is, [1, 1, 1, 1].
            scale_o: factor of the result before it is stored as o, [1, 1, 1, 1].
            is_inference: the opposite of generate_stats.
            attn_scale: factor of q k^T, a number or a scalar tensor; default 1.
            bias: added to the scaled scores; a boolean bias keeps scores where it is true, [B, Hq, Sq, Skv]
                or 1s; optional.
            use_alibi_mask: true: adds slope (col - row) to the scores; default False.
            use_padding_mask: whether seq_len_q and seq_len_kv cut the sequences; default False.
            seq_len_q: queries in use of each batch, INT32 or INT64; unset: all, [B, 1, 1, 1].
            seq_len_kv: keys in use of each batch, INT32 or INT64; unset: all, [B, 1, 1, 1].
            use_causal_mask: keep col <= row; default False.
            use_causal_mask_bottom_right: keep col <= row + keys - queries; default False.
            sliding_window: alias of left_bound.
            diagonal_alignment: the diagonal to which the bounds refer: shift 0, or keys - queries in use.
            left_bound: keeps col > row + shift - bound; unset: all on the left.
            right_bound: keeps col <= row + shift + bound; 0: causal; unset: all on the right.
            dropout: (probability, seed tensor, offset tensor); optional.
            rng_dump: receives: 1 if dropout keeps a weight, otherwise 0, [B, Hq, Sq, Skv]; optional.
            paged_attention_k_table: page of each block of keys, INT32 or INT64; k is then [container, Hk,
                page size, Dqk]; may be ragged; requires seq_len_kv, [B, 1, pages, 1]; optional.
            paged_attention_v_table: the same for v, which is then [container, Hv, page size, Dv], [B, 1,
                pages, 1]; optional.
            paged_attention_max_seq_len_kv: Skv, if there are page tables; unset: all keys that the tables
                reach.
            compute_data_type: type to compute in; by default the graph's, otherwise FLOAT.
            name: the operation's name in messages and diagrams.
            fn: a function of the graph and the tensor of scaled scores, like score_mod of sdpa; optional.
            generate_stats: whether to return the statistics for the backward pass.
            score_max: receives: largest score of each row, sink included, [B, Hq, Sq, 1]; optional.
            score_sum_exp: receives: sum of e^(score - score_max) of each row, sink included, [B, Hq, Sq, 1];
                optional.
            sink_token: a score per head that is included in the softmax's sum and has no value, [1, Hq, 1,
                1]; optional.
        Returns:
            o: result, [B, Hq, Sq, Dv].
            stats: natural log of each row's sum of exponentials, sink included, [B, Hq, Sq, 1]; None unless
                generate_stats.
            amax_s: largest value of the softmax, before scale_s, [1, 1, 1, 1].
            amax_o: largest magnitude of the result, before scale_o, [1, 1, 1, 1].
        Data types:
            operands: any, also mixed, unless stated above.
            results, unless set for the tensor or the graph: o the type of q; virtual results have the compute
                type, or DOUBLE; statistics FLOAT, or DOUBLE for DOUBLE operands.
        Raises:
            BadParameterError: if an operand is not a tensor of the graph, an array or a number; at
                build, if operands or options violate a rule of the operation.
            NotSupportedError: at build, if no engine of the device supports it; see `reasons`.

        >>> import numpy as np, weft
        >>> g = weft.Graph(io_data_type="f32")
        >>> q, k = np.zeros((1, 1, 1, 4), "f4"), np.zeros((1, 1, 2, 4), "f4")  # both keys weigh 0.5
        >>> v = np.float32([[[[1, 10], [3, 30]]]])
        >>> one, two = (np.full((1, 1, 1, 1), x, "f4") for x in (1, 2))
        >>> o, _, amax_s, amax_o = g.sdpa_fp8(q, k, v, one, one, two, one, one, one)
        >>> for result in g(): print(result.ravel())
        [ 4. 40.]
        [0.5]
        [40.]
        """
        where = label("sdpa_fp8", name)
        values = self._attention_values(
            where, q, k, v, attn_scale, use_causal_mask, use_causal_mask_bottom_right, sliding_window,
            diagonal_alignment, left_bound, right_bound, dropout,
            use_padding_mask, seq_len_q, seq_len_kv, sink_token,
        )  # fmt: skip
        values |= {"bias": bias, "use_alibi_mask": use_alibi_mask or None}
        values |= {"rng_dump": rng_dump, "score_max": score_max, "score_sum_exp": score_sum_exp}
        values |= {"paged_attention_k_table": paged_attention_k_table}
        values |= {"paged_attention_v_table": paged_attention_v_table}
        values |= {"paged_attention_max_seq_len_kv": paged_attention_max_seq_len_kv}
        values |= self._modified_scores(where, values, fn)
        values |= {"descale_q": descale_q, "descale_k": descale_k, "descale_v": descale_v}
        values |= {"descale_s": descale_s, "scale_s": scale_s, "scale_o": scale_o}
        with_stats = is_inference is False if generate_stats is None else generate_stats
        results = ("o", "stats", "amax_s", "amax_o") if with_stats else ("o", "amax_s", "amax_o")
        outputs = self._operation("sdpa_fp8", "sdpa_fwd", values, results, compute_data_type, name)
        return outputs[0], outputs[1] if with_stats else None, outputs[-2], outputs[-1]

    def sdpa_backward(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        o: Operand,
        dO: Operand,
        stats: Operand,
        attn_scale: Operand | None = None,
        bias: Operand | None = None,
        dBias: Tensor | None = None,
        use_alibi_mask: bool = False,
        use_padding_mask: bool = False,
        seq_len_q: Operand | None = None,
        seq_len_kv: Operand | None = None,
        max_total_seq_len_q: int | None = None,
        max_total_seq_len_kv: int | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        sliding_window_length: int | None = None,
        diagonal_alignment: enums.diagonal_alignment | str = enums.diagonal_alignment.TOP_LEFT,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        dropout: tuple[Any, ...] | None = None,
        rng_dump: Tensor | None = None,
        use_deterministic_algorithm: bool = False,
        compute_data_type: DataTypeLike | None = None,
        name: str = "",
        score_mod: ScoreModifier | None = None,
        score_mod_bprop: ScoreModifier | None = None,
        sink_token: Operand | None = None,
        dSink_token: Tensor | None = None,
        score_mod_gradients: Mapping[Tensor, Tensor] | None = None,
        block_mask: Operand | None = None,
        cu_seq_len_q: Operand | None = None,
        cu_seq_len_kv: Operand | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of scaled dot-product attention.

            dQ = attn_scale dS k, dK = attn_scale dS^T q, dV = P^T dO

        Args:
            q: queries, [B, Hq, Sq, Dqk].
            k: keys, [B, Hk, Skv, Dqk].
            v: values, [B, Hv, Skv, Dv].
            o: forward result, [B, Hq, Sq, Dv].
            dO: gradient of the forward result, [B, Hq, Sq, Dv].
            stats: statistics that the forward pass wrote, [B, Hq, Sq, 1].
            attn_scale: factor of q k^T, a number or a scalar tensor; default 1.
            bias: the bias of the forward pass, [B, Hq, Sq, Skv] or 1s; optional.
            dBias: receives: gradient of the bias, summed over its extents of 1, [B, Hq, Sq, Skv] or 1s, like
                bias; optional.
            use_alibi_mask: true: the forward pass added slope (col - row) to the scores; default False.
            use_padding_mask: whether seq_len_q and seq_len_kv cut the sequences; default False.
            seq_len_q: queries in use of each batch, INT32 or INT64; unset: all, [B, 1, 1, 1].
            seq_len_kv: keys in use of each batch, INT32 or INT64; unset: all, [B, 1, 1, 1].
            max_total_seq_len_q: upper bound of the total number of queries, a hint; optional.
            max_total_seq_len_kv: upper bound of the total number of keys, a hint; optional.
            use_causal_mask: keep col <= row; default False.
            use_causal_mask_bottom_right: keep col <= row + keys - queries; default False.
            sliding_window_length: alias of diagonal_band_left_bound.
            diagonal_alignment: as in the forward pass.
            diagonal_band_left_bound: the left bound of the forward pass; unset: all on the left.
            diagonal_band_right_bound: the right bound of the forward pass; unset: all on the right.
            dropout: (probability, seed tensor, offset tensor); optional.
            rng_dump: not supported; the forward pass writes the dropout mask.
            use_deterministic_algorithm: require bitwise reproducible results. Otherwise a kernel may
                accumulate dQ in any order, which changes the rounding; such an engine has the note
                NONDETERMINISTIC.
            compute_data_type: type to compute in; by default the graph's, otherwise FLOAT.
            name: the operation's name in messages and diagrams.
            score_mod: as in the forward pass; optional.
            score_mod_bprop: a function of the graph and the gradient of score_mod's result that returns the
                gradient of the scaled scores; derived from score_mod by default.
            sink_token: the sink of the forward pass, [1, Hq, 1, 1]; optional.
            dSink_token: receives: gradient of the sink, [1, Hq, 1, 1]; optional.
            score_mod_gradients: maps tensors that score_mod reads to tensors that receive their gradients,
                each summed over its extents of 1; optional.
            block_mask: the block mask of the forward pass, [B, Hq, ceil(Sq / 128), ceil(Skv / 128)];
                optional.
            cu_seq_len_q: cumulative number of queries in use, INT32 or INT64, instead of seq_len_q, [B + 1,
                1, 1, 1]; optional.
            cu_seq_len_kv: cumulative number of keys in use, INT32 or INT64, instead of seq_len_kv, [B + 1, 1,
                1, 1]; optional.
        Returns:
            dQ: gradient of q, [B, Hq, Sq, Dqk].
            dK: gradient of k, summed over the query heads that share it, [B, Hk, Skv, Dqk].
            dV: gradient of v, summed over the query heads that share it, [B, Hv, Skv, Dv].
        Data types:
            operands: any, also mixed, unless stated above.
            results, unless set for the tensor or the graph: each gradient the type of its tensor; virtual
                results have the compute type, or DOUBLE.
        Raises:
            BadParameterError: if an operand is not a tensor of the graph, an array or a number; at
                build, if operands or options violate a rule of the operation.
            NotSupportedError: for a feature that does not exist yet; at build, if no engine of the
                device supports it; see `reasons`.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> q, k = np.float32([[[[1]]]]), np.float32([[[[0], [0]]]])  # one query, two keys that score 0
        >>> v, o, dO = np.float32([[[[1], [3]]]]), np.float32([[[[2]]]]), np.float32([[[[4]]]])
        >>> stats = np.log(np.float32([[[[2]]]]))
        >>> dQ, dK, dV = g.sdpa_backward(q, k, v, o, dO, stats)
        >>> for result in g(): print(result.round(3).ravel())
        [0.]
        [-2.  2.]
        [2. 2.]
        """
        where = label("sdpa_backward", name)
        _refuse(where, {"rng_dump": rng_dump})
        values = self._attention_values(
            where, q, k, v, attn_scale, use_causal_mask, use_causal_mask_bottom_right,
            sliding_window_length, diagonal_alignment, diagonal_band_left_bound, diagonal_band_right_bound,
            dropout, use_padding_mask, seq_len_q, seq_len_kv, sink_token, cu_seq_len_q, cu_seq_len_kv,
        )  # fmt: skip
        values |= {"o": o, "dO": dO, "stats": stats, "bias": bias, "dBias": dBias}
        values |= {"use_alibi_mask": use_alibi_mask or None, "block_mask": block_mask}
        values |= {"max_total_seq_len_q": max_total_seq_len_q, "max_total_seq_len_kv": max_total_seq_len_kv}
        values |= {"dSink_token": dSink_token, "is_deterministic": use_deterministic_algorithm or None}
        values |= self._modified_scores(where, values, score_mod, score_mod_bprop, score_mod_gradients)
        results = ("dQ", "dK", "dV")
        outputs = self._operation("sdpa_backward", "sdpa_bwd", values, results, compute_data_type, name)
        return outputs[0], outputs[1], outputs[2]

    def sdpa_fp8_backward(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        o: Operand,
        dO: Operand,
        stats: Operand,
        descale_q: Operand,
        descale_k: Operand,
        descale_v: Operand,
        descale_o: Operand,
        descale_dO: Operand,
        descale_s: Operand,
        descale_dP: Operand,
        scale_s: Operand,
        scale_dQ: Operand,
        scale_dK: Operand,
        scale_dV: Operand,
        scale_dP: Operand,
        attn_scale: Operand | None = None,
        use_padding_mask: bool = False,
        seq_len_q: Operand | None = None,
        seq_len_kv: Operand | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        diagonal_alignment: enums.diagonal_alignment | str = enums.diagonal_alignment.TOP_LEFT,
        left_bound: int | None = None,
        right_bound: int | None = None,
        use_deterministic_algorithm: bool = False,
        dropout: tuple[Any, ...] | None = None,
        compute_data_type: DataTypeLike | None = None,
        name: str = "",
        sink_token: Operand | None = None,
        dSink_token: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of scaled dot-product attention in FP8: sdpa_backward with scales for operands, the
        softmax, its gradient and results. It also returns the largest magnitudes, from which the caller
        computes the scales of the next call.

            p = fp8(scale_s dropout(softmax)) descale_s, dS = fp8(scale_dP attn_scale dS) descale_dP
            dQ = scale_dQ dS k, dK = scale_dK dS^T q, dV = scale_dV p^T dO

        Args:
            q: queries, [B, Hq, Sq, Dqk].
            k: keys, [B, Hk, Skv, Dqk].
            v: values, [B, Hv, Skv, Dv].
            o: forward result, [B, Hq, Sq, Dv].
            dO: gradient of the forward result, [B, Hq, Sq, Dv].
            stats: statistics that the forward pass wrote, [B, Hq, Sq, 1].
            descale_q: factor of q, applied first, [B, Hq, 1, 1] or 1s; block scales: [B, Hq, Sq, ceil(Dqk /
                32)].
            descale_k: factor of k, applied first, [B, Hk, Skv, 1] or 1s; block scales: [B, Hk, Skv, ceil(Dqk
                / 32)].
            descale_v: factor of v, applied first, [B, Hv, Skv, 1] or 1s; block scales: [B, Hv, Skv, ceil(Dv /
                32)].
            descale_o: factor of o, applied first, [B, Hq, Sq, 1] or 1s; block scales: [B, Hq, Sq, ceil(Dv /
                32)].
            descale_dO: factor of dO, applied first, [B, Hq, Sq, 1] or 1s; block scales: [B, Hq, Sq, ceil(Dv /
                32)].
            descale_s: factor of the softmax after scale_s, [1, 1, 1, 1].
            descale_dP: factor of the gradient of q k^T after scale_dP, [1, 1, 1, 1].
            scale_s: factor of the softmax before it is rounded to q's type if that is FP8, [1, 1, 1, 1].
            scale_dQ: factor of the gradient before it is stored as dQ, [1, 1, 1, 1].
            scale_dK: factor of the gradient before it is stored as dK, [1, 1, 1, 1].
            scale_dV: factor of the gradient before it is stored as dV, [1, 1, 1, 1].
            scale_dP: factor of the gradient of q k^T before it is rounded to dO's type if that is FP8, [1, 1,
                1, 1].
            attn_scale: factor of q k^T, a number or a scalar tensor; default 1.
            use_padding_mask: whether seq_len_q and seq_len_kv cut the sequences; default False.
            seq_len_q: queries in use of each batch, INT32 or INT64; unset: all, [B, 1, 1, 1].
            seq_len_kv: keys in use of each batch, INT32 or INT64; unset: all, [B, 1, 1, 1].
            use_causal_mask: keep col <= row; default False.
            use_causal_mask_bottom_right: keep col <= row + keys - queries; default False.
            diagonal_alignment: as in the forward pass.
            left_bound: the left bound of the forward pass; unset: all on the left.
            right_bound: the right bound of the forward pass; unset: all on the right.
            use_deterministic_algorithm: require bitwise reproducible results. Otherwise a kernel may
                accumulate dQ in any order, which changes the rounding; such an engine has the note
                NONDETERMINISTIC.
            dropout: (probability, seed tensor, offset tensor); optional.
            compute_data_type: type to compute in; by default the graph's, otherwise FLOAT.
            name: the operation's name in messages and diagrams.
            sink_token: the sink of the forward pass, [1, Hq, 1, 1]; optional.
            dSink_token: receives: gradient of the sink, [1, Hq, 1, 1]; optional.
        Returns:
            dQ: gradient of q, [B, Hq, Sq, Dqk].
            dK: gradient of k, summed over the query heads that share it, [B, Hk, Skv, Dqk].
            dV: gradient of v, summed over the query heads that share it, [B, Hv, Skv, Dv].
            amax_dQ: largest magnitude of dQ, before scale_dQ, [1, 1, 1, 1].
            amax_dK: largest magnitude of dK, before scale_dK, [1, 1, 1, 1].
            amax_dV: largest magnitude of dV, before scale_dV, [1, 1, 1, 1].
            amax_dP: largest magnitude of the gradient of q k^T, before scale_dP, [1, 1, 1, 1].
        Data types:
            operands: any, also mixed, unless stated above.
            results, unless set for the tensor or the graph: dQ, dK and dV those of q, k and v; virtual ones
                have the compute type, or DOUBLE; the others FLOAT, or DOUBLE for DOUBLE operands.
        Raises:
            BadParameterError: if an operand is not a tensor of the graph, an array or a number; at
                build, if operands or options violate a rule of the operation.
            NotSupportedError: at build, if no engine of the device supports it; see `reasons`.

        >>> import numpy as np, weft
        >>> g = weft.Graph(io_data_type="f32")
        >>> q, k = np.ones((1, 1, 1, 1), "f4"), np.zeros((1, 1, 2, 1), "f4")  # both keys weigh 0.5
        >>> v = np.float32([[[[2], [6]]]])
        >>> o, dO = np.full((1, 1, 1, 1), 4, "f4"), np.full((1, 1, 1, 1), 4, "f4")
        >>> stats = np.log(np.full((1, 1, 1, 1), 2, "f4"))
        >>> one, two = (np.full((1, 1, 1, 1), x, "f4") for x in (1, 2))
        >>> made = g.sdpa_fp8_backward(q, k, v, o, dO, stats, *[one] * 10, two, one)
        >>> for result in g(): print(result.round(3).ravel())
        [0.]
        [-4.  4.]
        [4. 4.]
        [0.]
        [4.]
        [2.]
        [4.]
        """
        where = label("sdpa_fp8_backward", name)
        values = self._attention_values(
            where, q, k, v, attn_scale, use_causal_mask, use_causal_mask_bottom_right, None,
            diagonal_alignment, left_bound, right_bound, dropout,
            use_padding_mask, seq_len_q, seq_len_kv, sink_token,
        )  # fmt: skip
        values |= {"o": o, "dO": dO, "stats": stats}
        values |= {"descale_q": descale_q, "descale_k": descale_k, "descale_v": descale_v}
        values |= {"descale_o": descale_o, "descale_dO": descale_dO}
        values |= {"descale_s": descale_s, "scale_s": scale_s, "descale_dP": descale_dP, "scale_dP": scale_dP}
        values |= {"scale_dQ": scale_dQ, "scale_dK": scale_dK, "scale_dV": scale_dV}
        values |= {"dSink_token": dSink_token, "is_deterministic": use_deterministic_algorithm or None}
        results = ("dQ", "dK", "dV", "amax_dQ", "amax_dK", "amax_dV", "amax_dP")
        outputs = self._operation("sdpa_fp8_backward", "sdpa_bwd", values, results, compute_data_type, name)
        return outputs[0], outputs[1], outputs[2], outputs[3], outputs[4], outputs[5], outputs[6]

    def sdpa_mxfp8(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        descale_q: Operand,
        descale_k: Operand,
        descale_v: Operand,
        attn_scale: Operand | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        diagonal_alignment: enums.diagonal_alignment | str = enums.diagonal_alignment.TOP_LEFT,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        compute_data_type: DataTypeLike | None = None,
        name: str = "",
        generate_stats: bool | None = None,
        sink_token: Operand | None = None,
        unfuse_fma: bool = False,
        *,
        use_padding_mask: bool = False,
        seq_len_q: Operand | None = None,
        seq_len_kv: Operand | None = None,
    ) -> tuple[Tensor, Tensor | Any, Tensor]:
        """Scaled dot-product attention in MXFP8: sdpa for operands with a scale for each block of 32 elements
        along the contracted dimension. sdpa accepts such scales, too, together with all its other options.

            o = softmax(mask(attn_scale (descale_q q) (descale_k k)^T)) (descale_v v)

        Args:
            q: queries, [B, Hq, Sq, Dqk].
            k: keys, [B, Hk, Skv, Dqk], Hk divides Hq.
            v: values, [B, Hv, Skv, Dv], Hv divides Hq.
            descale_q: factors of the blocks of q, [B, Hq, Sq, ceil(Dqk / 32)]; in tiles (reordering_type
                F8_128x4) Sq is rounded up to a multiple of 128 and the last extent to one of 4.
            descale_k: factors of the blocks of k, [B, Hk, Skv, ceil(Dqk / 32)].
            descale_v: factors of the blocks of v, [B, Hv, ceil(Skv / 32), Dv]; in tiles the third extent is
                rounded up to a multiple of 4 and Dv to one of 128.
            attn_scale: factor of q k^T, a number or a scalar tensor; default 1.
            use_causal_mask: keep col <= row; default False.
            use_causal_mask_bottom_right: keep col <= row + keys - queries; default False.
            diagonal_alignment: the diagonal to which the bounds refer: shift 0, or keys - queries in use.
            diagonal_band_left_bound: keeps col > row + shift - bound; unset: all on the left.
            diagonal_band_right_bound: keeps col <= row + shift + bound; 0: causal; unset: all on the right.
            compute_data_type: type to compute in; by default the graph's, otherwise FLOAT.
            name: the operation's name in messages and diagrams.
            generate_stats: whether to return the statistics for the backward pass.
            sink_token: a score per head that is included in the softmax's sum and has no value, [1, Hq, 1,
                1]; optional.
            unfuse_fma: true: scores are scaled, rounded and then shifted, instead of in a fused multiply-add;
                default False.
            use_padding_mask: whether seq_len_q and seq_len_kv cut the sequences; default False.
            seq_len_q: queries in use of each batch, INT32 or INT64; unset: all, [B, 1, 1, 1].
            seq_len_kv: keys in use of each batch, INT32 or INT64; unset: all, [B, 1, 1, 1].
        Returns:
            o: result, [B, Hq, Sq, Dv].
            stats: natural log of each row's sum of exponentials, sink included, [B, Hq, Sq, 1]; None unless
                generate_stats.
            amax_o: the largest magnitude of the result, [1, 1, 1, 1].
        Data types:
            operands: any, also mixed, unless stated above.
            results, unless set for the tensor or the graph: o BFLOAT16 if q is FP8 with block scales,
                otherwise the type of q; virtual results have the compute type, or DOUBLE; the others FLOAT,
                or DOUBLE for DOUBLE operands.
        Raises:
            BadParameterError: if an operand is not a tensor of the graph, an array or a number; at
                build, if operands or options violate a rule of the operation.
            NotSupportedError: at build, if no engine of the device supports it; see `reasons`.

        >>> import numpy as np, weft
        >>> g = weft.Graph(io_data_type="f32")
        >>> q, k = np.zeros((1, 1, 1, 4), "f4"), np.zeros((1, 1, 2, 4), "f4")  # both keys weigh 0.5
        >>> v = np.float32([[[[1, 10], [3, 30]]]])
        >>> of_q, of_k = np.ones((1, 1, 1, 1), "f4"), np.ones((1, 1, 2, 1), "f4")
        >>> o, _, amax_o = g.sdpa_mxfp8(q, k, v, of_q, of_k, np.float32([[[[1, 2]]]]))
        >>> for result in g(): print(result.ravel())
        [ 2. 40.]
        [40.]
        """
        where = label("sdpa_mxfp8", name)
        values = self._attention_values(
            where, q, k, v, attn_scale, use_causal_mask, use_causal_mask_bottom_right, None,
            diagonal_alignment, diagonal_band_left_bound, diagonal_band_right_bound, None,
            use_padding_mask, seq_len_q, seq_len_kv, sink_token,
        )  # fmt: skip
        values |= {"descale_q": descale_q, "descale_k": descale_k, "descale_v": descale_v}
        values |= {"unfuse_fma": unfuse_fma or None}
        results = ("o", "stats", "amax_o") if generate_stats else ("o", "amax_o")
        outputs = self._operation("sdpa_mxfp8", "sdpa_fwd", values, results, compute_data_type, name)
        return outputs[0], outputs[1] if generate_stats else None, outputs[-1]

    def sdpa_mxfp8_backward(
        self,
        q: Operand,
        q_T: Operand,
        k: Operand,
        k_T: Operand,
        v: Operand,
        o_f16: Operand,
        dO_f16: Operand,
        dO: Operand,
        dO_T: Operand,
        stats: Operand,
        descale_q: Operand,
        descale_q_T: Operand,
        descale_k: Operand,
        descale_k_T: Operand,
        descale_v: Operand,
        descale_dO: Operand,
        descale_dO_T: Operand,
        attn_scale: Operand | None = None,
        use_padding_mask: bool = False,
        seq_len_q: Operand | None = None,
        seq_len_kv: Operand | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        diagonal_alignment: enums.diagonal_alignment | str = enums.diagonal_alignment.TOP_LEFT,
        left_bound: int | None = None,
        right_bound: int | None = None,
        use_deterministic_algorithm: bool = False,
        dropout: tuple[Any, ...] | None = None,
        compute_data_type: DataTypeLike | None = None,
        name: str = "",
        sink_token: Operand | None = None,
        dSink_token: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of scaled dot-product attention in MXFP8. q, k and dO are passed twice, with scales for
        blocks of 32 elements along the contracted dimension: along their rows for the scores and for dO v^T,
        along the sequence for dQ, dK and dV.

            dQ = attn_scale dS k_T, dK = attn_scale dS^T q_T, dV = P^T dO_T

        Args:
            q: queries, [B, Hq, Sq, Dqk].
            q_T: the queries for dK, with scales along the sequence, [B, Hq, Sq, Dqk].
            k: keys, [B, Hk, Skv, Dqk].
            k_T: the keys for dQ, with scales along the sequence, [B, Hk, Skv, Dqk].
            v: values, [B, Hv, Skv, Dv].
            o_f16: forward result, not quantized, [B, Hq, Sq, Dv].
            dO_f16: gradient of the forward result, not quantized, [B, Hq, Sq, Dv].
            dO: gradient of the forward result, quantized.
            dO_T: dO for dV, with scales along the sequence.
            stats: statistics that the forward pass wrote, [B, Hq, Sq, 1].
            descale_q: factors of the blocks of q, [B, Hq, Sq, ceil(Dqk / 32)]; in tiles (reordering_type
                F8_128x4) Sq is rounded up to a multiple of 128 and the last extent to one of 4; descale_k,
                descale_v and descale_dO likewise.
            descale_q_T: factors of the blocks of q_T, [B, Hq, ceil(Sq / 32), Dqk]; in tiles the third extent
                is rounded up to a multiple of 4 and the last one to one of 128; descale_k_T and descale_dO_T
                likewise.
            descale_k: factors of the blocks of k, [B, Hk, Skv, ceil(Dqk / 32)].
            descale_k_T: factors of the blocks of k_T, [B, Hk, ceil(Skv / 32), Dqk].
            descale_v: factors of the blocks of v, along its rows, [B, Hv, Skv, ceil(Dv / 32)].
            descale_dO: factors of the blocks of dO, [B, Hq, Sq, ceil(Dv / 32)].
            descale_dO_T: factors of the blocks of dO_T, [B, Hq, ceil(Sq / 32), Dv].
            attn_scale: factor of q k^T, a number or a scalar tensor; default 1.
            use_padding_mask: whether seq_len_q and seq_len_kv cut the sequences; default False.
            seq_len_q: queries in use of each batch, INT32 or INT64; unset: all, [B, 1, 1, 1].
            seq_len_kv: keys in use of each batch, INT32 or INT64; unset: all, [B, 1, 1, 1].
            use_causal_mask: keep col <= row; default False.
            use_causal_mask_bottom_right: keep col <= row + keys - queries; default False.
            diagonal_alignment: as in the forward pass.
            left_bound: the left bound of the forward pass; unset: all on the left.
            right_bound: the right bound of the forward pass; unset: all on the right.
            use_deterministic_algorithm: require bitwise reproducible results. Otherwise a kernel may
                accumulate dQ in any order, which changes the rounding; such an engine has the note
                NONDETERMINISTIC.
            dropout: (probability, seed tensor, offset tensor); optional.
            compute_data_type: type to compute in; by default the graph's, otherwise FLOAT.
            name: the operation's name in messages and diagrams.
            sink_token: the sink of the forward pass, [1, Hq, 1, 1]; optional.
            dSink_token: receives: gradient of the sink, [1, Hq, 1, 1]; optional.
        Returns:
            dQ: gradient of q, [B, Hq, Sq, Dqk].
            dK: gradient of k, summed over the query heads that share it, [B, Hk, Skv, Dqk].
            dV: gradient of v, summed over the query heads that share it, [B, Hv, Skv, Dv].
            amax_dQ: the largest magnitude of dQ, [1, 1, 1, 1].
            amax_dK: the largest magnitude of dK, [1, 1, 1, 1].
            amax_dV: the largest magnitude of dV, [1, 1, 1, 1].
        Data types:
            operands: any, also mixed, unless stated above.
            results, unless set for the tensor or the graph: dQ, dK and dV the type of o_f16 if q is FP8 with
                block scales; virtual ones have the compute type, or DOUBLE; the others FLOAT, or DOUBLE for
                DOUBLE operands.
        Raises:
            BadParameterError: if an operand is not a tensor of the graph, an array or a number; at
                build, if operands or options violate a rule of the operation.
            NotSupportedError: at build, if no engine of the device supports it; see `reasons`.

        >>> import numpy as np, weft
        >>> g = weft.Graph(io_data_type="f32")
        >>> q, k = np.ones((1, 1, 1, 1), "f4"), np.zeros((1, 1, 2, 1), "f4")  # both keys weigh 0.5
        >>> v, o = np.float32([[[[2], [6]]]]), np.full((1, 1, 1, 1), 4, "f4")
        >>> dO, stats = o, np.log(np.full((1, 1, 1, 1), 2, "f4"))
        >>> one, two, ones = (np.full((1, 1, n, 1), x, "f4") for n, x in ((1, 1), (1, 2), (2, 1)))
        >>> scales = one, two, ones, ones, ones, one, one  # q_T is half of q
        >>> made = g.sdpa_mxfp8_backward(q, q / 2, k, k, v, o, dO, dO, dO, stats, *scales)
        >>> for result in g(): print(result.round(3).ravel())
        [0.]
        [-4.  4.]
        [2. 2.]
        [0.]
        [4.]
        [2.]
        """
        where = label("sdpa_mxfp8_backward", name)
        values = self._attention_values(
            where, q, k, v, attn_scale, use_causal_mask, use_causal_mask_bottom_right, None,
            diagonal_alignment, left_bound, right_bound, dropout,
            use_padding_mask, seq_len_q, seq_len_kv, sink_token,
        )  # fmt: skip
        values |= {"o": o_f16, "dO": dO, "stats": stats}
        values |= {"q_T": q_T, "k_T": k_T, "dO_T": dO_T, "dO_f16": dO_f16}
        values |= {"descale_q": descale_q, "descale_k": descale_k, "descale_v": descale_v}
        values |= {"descale_q_T": descale_q_T, "descale_k_T": descale_k_T}
        values |= {"descale_dO": descale_dO, "descale_dO_T": descale_dO_T}
        values |= {"dSink_token": dSink_token, "is_deterministic": use_deterministic_algorithm or None}
        results = ("dQ", "dK", "dV", "amax_dQ", "amax_dK", "amax_dV")
        outputs = self._operation("sdpa_mxfp8_backward", "sdpa_bwd", values, results, compute_data_type, name)
        return outputs[0], outputs[1], outputs[2], outputs[3], outputs[4], outputs[5]

    scaled_dot_product_flash_attention = sdpa
    scaled_dot_product_flash_attention_backward = sdpa_backward

    @staticmethod
    def _attention_values(
        where: str,
        q: Operand,
        k: Operand,
        v: Operand,
        attn_scale: Operand | None,
        use_causal_mask: bool,
        use_causal_mask_bottom_right: bool,
        sliding_window_length: int | None,
        diagonal_alignment: enums.diagonal_alignment | str,
        left_bound: int | None,
        right_bound: int | None,
        dropout: tuple[Any, ...] | None,
        use_padding_mask: bool,
        seq_len_q: Operand | None,
        seq_len_kv: Operand | None,
        sink_token: Operand | None,
        cu_seq_len_q: Operand | None = None,
        cu_seq_len_kv: Operand | None = None,
    ) -> dict[str, Any]:
        """The attributes that forward and backward share: the scale as number or tensor, masks as bounds,
        dropout and lengths."""
        _check_padding(where, use_padding_mask, (seq_len_q, cu_seq_len_q), (seq_len_kv, cu_seq_len_kv))
        values: dict[str, Any] = {"q": q, "k": k, "v": v, "sink_token": sink_token}
        values |= {"seq_len_q": seq_len_q, "seq_len_kv": seq_len_kv}
        values |= {"cu_seq_len_q": cu_seq_len_q, "cu_seq_len_kv": cu_seq_len_kv}
        is_number = isinstance(attn_scale, (int, float))
        values["attn_scale_value" if is_number else "attn_scale"] = attn_scale
        alignment = enums.member(enums.diagonal_alignment, diagonal_alignment)
        if use_causal_mask or use_causal_mask_bottom_right:
            if right_bound not in (None, 0):
                raise BadParameterError(
                    f"{where}: a causal mask bounds the right at 0, diagonal_band_right_bound is "
                    f"{right_bound}. Give one."
                )
            right_bound = 0
        if use_causal_mask_bottom_right:
            alignment = enums.diagonal_alignment.BOTTOM_RIGHT
        values["diagonal_alignment"] = int(alignment) or None
        values["diagonal_band_left_bound"] = sliding_window_length if left_bound is None else left_bound
        values["diagonal_band_right_bound"] = right_bound
        return values | _dropout_values(where, dropout)
