"""Scripts in the style of cuDNN's samples: attention with masks, pages, ragged rows, FP8, and gradients."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import weft
import weft.cudnn as cudnn

T = cudnn.data_type


def graph(place: Any, io: Any = T.HALF) -> cudnn.pygraph:
    return cudnn.pygraph(
        io_data_type=io,
        intermediate_data_type=T.FLOAT,
        compute_data_type=T.FLOAT,
        handle=place.handle,
        name="attention",
    )


def operands(
    place: Any, kind: str = "f16", heads: int = 2, keys_of: int = 2, q: int = 12, kv: int = 16
) -> Any:
    shapes = [(2, heads, q, 8), (2, keys_of, kv, 8), (2, keys_of, kv, 8)]
    return [place.random(shape, kind, seed) for seed, shape in enumerate(shapes)]


def attended(q: Any, k: Any, v: Any, scale: float, bias: Any = 0.0, seen: Any = True) -> tuple[Any, ...]:
    """Returns result, natural statistics and weights in double precision; rows without visible keys are 0."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = np.where(seen, scale * q @ k.swapaxes(-1, -2) + bias, -np.inf)
    most = scores.max(-1, keepdims=True)
    raised = np.exp(scores - np.where(np.isfinite(most), most, 0))
    total = raised.sum(-1, keepdims=True)
    weights = raised / np.where(total > 0, total, 1)
    with np.errstate(divide="ignore"):
        return weights @ v, np.where(total > 0, most + np.log(total), -np.inf), weights


def test_causal_forward_with_statistics(place: Any) -> None:
    q, k, v = operands(place, q=16)
    g = graph(place)
    Q, K, V = map(g.tensor_like, (q, k, v))
    O, stats = g.sdpa(name="sdpa", q=Q, k=K, v=V, is_inference=False, attn_scale=0.35, use_causal_mask=True)
    O.set_output(True).set_dim([2, 2, 16, 8]).set_stride([256, 128, 8, 1])
    stats.set_output(True).set_data_type(T.FLOAT)
    g.build([cudnn.heur_mode.A])
    o, s = place.like(O), place.like(stats)
    place.run(g, {Q: q, K: k, V: v, O: o, stats: s})
    want, of_rows, _ = attended(*map(place.get, (q, k, v)), 0.35, seen=np.tri(16, dtype=bool))
    place.close(o, want, "f16")
    place.close(s, of_rows)
    assert g.find_tensor("sdpa::Stats") is stats


def test_backward(place: Any) -> None:
    q, k, v = operands(place, "f32", q=16)
    dO = place.random((2, 2, 16, 8), "f32", 7)
    wq, wk, wv = map(place.get, (q, k, v))
    result, of_rows, weights = attended(wq, wk, wv, 0.35)
    o, stats = place.put(result, "f32"), place.put(of_rows, "f32")
    g = graph(place, T.FLOAT)
    Q, K, V, O, D, S = map(g.tensor_like, (q, k, v, o, dO, stats))
    made = g.sdpa_backward(
        name="back", q=Q, k=K, v=V, o=O, dO=D, stats=S, attn_scale=0.35, use_deterministic_algorithm=True
    )
    for tensor in made:
        tensor.set_output(True).set_data_type(T.FLOAT)
    g.build()
    buffers = list(map(place.like, made))
    place.run(g, {Q: q, K: k, V: v, O: o, D: dO, S: stats} | dict(zip(made, buffers, strict=True)))
    slope = place.get(dO)
    dP = slope @ wv.swapaxes(-1, -2)
    dS = weights * (dP - (slope * result).sum(-1, keepdims=True)) * 0.35
    for got, want in zip(
        buffers, (dS @ wk, dS.swapaxes(-1, -2) @ wq, weights.swapaxes(-1, -2) @ slope), strict=True
    ):
        place.close(got, want)
    assert g.find_tensor("back::dK") is made[1]


def test_lengths_of_one_dimension(place: Any) -> None:
    q, k, v = operands(place, q=16)
    used_q, used_kv = place.put(np.array([16, 5]), "i32"), place.put(np.array([9, 16]), "i32")
    g = graph(place)
    Q, K, V, LQ, LKV = map(g.tensor_like, (q, k, v, used_q, used_kv))
    O, _ = g.sdpa(
        Q, K, V, attn_scale=0.5, use_padding_mask=True, seq_len_q=LQ, seq_len_kv=LKV, generate_stats=False
    )
    O.set_output(True)
    g.build()
    o = place.like(O)
    place.run(g, {Q: q, K: k, V: v, LQ: used_q, LKV: used_kv, O: o})
    rows = np.arange(16) < np.array([16, 5]).reshape(2, 1, 1)
    columns = np.arange(16) < np.array([9, 16]).reshape(2, 1, 1)
    seen = rows[:, None, 0, :, None] & columns[:, None, 0, None, :]
    want, _, _ = attended(*map(place.get, (q, k, v)), 0.5, seen=seen)
    place.close(o, want, "f16")


def test_fewer_heads_of_keys_and_a_sliding_window(place: Any) -> None:
    q, k, v = operands(place, heads=4, keys_of=2, q=16)
    g = graph(place)
    Q, K, V = map(g.tensor_like, (q, k, v))
    O, _ = g.sdpa(
        Q, K, V, attn_scale=0.4, generate_stats=False, use_causal_mask=True, sliding_window_length=5,
        max_total_seq_len_q=32, max_total_seq_len_kv=32, implementation=cudnn.attention_implementation.AUTO,
    )  # fmt: skip
    O.set_output(True)
    g.build()
    o = place.like(O)
    place.run(g, {Q: q, K: k, V: v, O: o})
    row, column = np.ogrid[:16, :16]
    want, _, _ = attended(*map(place.get, (q, k, v)), 0.4, seen=(column <= row) & (column > row - 5))
    place.close(o, want, "f16")


def test_a_mask_of_truth_values(place: Any) -> None:
    q, k, v = operands(place)
    seen = np.random.default_rng(0).integers(0, 2, (2, 1, 12, 16)).astype(bool)
    seen[..., 0] = True
    g = graph(place)
    Q, K, V = map(g.tensor_like, (q, k, v))
    M = g.tensor(dim=[2, 1, 12, 16], stride=[192, 192, 16, 1], data_type=T.BOOLEAN)
    O, stats = g.sdpa(Q, K, V, bias=M, attn_scale=0.35, generate_stats=True, stats_use_log2=True)
    O.set_output(True)
    stats.set_output(True).set_data_type(T.FLOAT)
    g.build()
    o, s = place.like(O), place.like(stats)
    place.run(g, {Q: q, K: k, V: v, M: place.put(seen), O: o, stats: s})
    want, of_rows, _ = attended(*map(place.get, (q, k, v)), 0.35, seen=seen)
    place.close(o, want, "f16")
    place.close(s, of_rows / np.log(2))


def test_keys_are_masked(place: Any) -> None:
    q, k, v = operands(place)
    bias = place.random((1, 2, 12, 16), "f16", 5)
    seen = np.random.default_rng(0).integers(0, 2, (2, 1, 1, 16)).astype(bool)
    seen[..., 3] = True
    g = graph(place)
    Q, K, V, B, M = map(g.tensor_like, (q, k, v, bias, place.put(seen)))
    O, _ = g.sdpa(Q, K, V, bias=B, attn_scale=0.35, generate_stats=False, kv_mask=M)
    O.set_output(True)
    g.build()
    o = place.like(O)
    place.run(g, {Q: q, K: k, V: v, B: bias, M: place.put(seen), O: o})
    want, _, _ = attended(*map(place.get, (q, k, v)), 0.35, place.get(bias), seen)
    place.close(o, want, "f16")


def test_decoding_from_pages(place: Any) -> None:
    page, pages = 4, 8
    q = place.random((2, 4, 1, 8), "f16")
    k, v = place.random((pages, 2, page, 8), "f16", 1), place.random((pages, 2, page, 8), "f16", 2)
    table = np.random.default_rng(3).permutation(pages).reshape(2, 1, 4, 1)
    length = np.array([11, 16]).reshape(2, 1, 1, 1)
    one = np.ones((2, 1, 1, 1))
    g = graph(place)
    Q, K, V = map(g.tensor_like, (q, k, v))
    TK, TV, LQ, LKV = (
        g.tensor(dim=dims, stride=[dims[2], dims[2], 1, 1], data_type=T.INT32)
        for dims in ([2, 1, 4, 1], [2, 1, 4, 1], [2, 1, 1, 1], [2, 1, 1, 1])
    )
    O, _ = g.sdpa(
        name="decode", q=Q, k=K, v=V, is_inference=True, attn_scale=0.35, use_padding_mask=True,
        seq_len_q=LQ, seq_len_kv=LKV, paged_attention_k_table=TK, paged_attention_v_table=TV,
        paged_attention_max_seq_len_kv=16,
    )  # fmt: skip
    O.set_output(True)
    g.build()
    o = place.like(O)
    tables = {TK: place.put(table, "i32"), TV: place.put(table, "i32")}
    lengths = {LQ: place.put(one, "i32"), LKV: place.put(length, "i32")}
    place.run(g, {Q: q, K: k, V: v, O: o} | tables | lengths)
    whole = [
        np.stack([np.concatenate(list(place.get(x)[table[b, 0, :, 0]]), 1) for b in range(2)]) for x in (k, v)
    ]
    want, _, _ = attended(place.get(q), *whole, 0.35, seen=np.arange(16) < length)
    place.close(o, want, "f16")


def test_ragged_rows(place: Any) -> None:
    counts, heads, depth = [5, 3], 2, 8
    q, k, v = (place.random((sum(counts), heads, depth), "f16", seed) for seed in range(3))
    starts = np.cumsum([0, *counts]).reshape(3, 1, 1, 1) * heads * depth
    g = graph(place)
    offset = g.tensor(dim=[3, 1, 1, 1], stride=[1, 1, 1, 1], data_type=T.INT32, name="offset")
    used = g.tensor(dim=[2, 1, 1, 1], stride=[1, 1, 1, 1], data_type=T.INT32, name="used")
    shape = {"dim": [2, heads, 8, depth], "stride": [128, depth, heads * depth, 1]}
    Q, K, V = (g.tensor(**shape, data_type=T.HALF, ragged_offset=offset, name=n) for n in "qkv")
    O, _ = g.sdpa(
        Q, K, V, attn_scale=0.4, generate_stats=False, use_padding_mask=True, seq_len_q=used, seq_len_kv=used
    )
    O.set_output(True).set_dim(shape["dim"]).set_stride(shape["stride"]).set_ragged_offset(offset)
    g.build()
    o = place.empty((sum(counts), heads, depth), "f16")
    lengths = place.put(np.array(counts).reshape(2, 1, 1, 1), "i32")
    place.run(g, {Q: q, K: k, V: v, offset: place.put(starts, "i32"), used: lengths, O: o})
    want = np.zeros((sum(counts), heads, depth))
    for rows in (slice(0, 5), slice(5, 8)):
        part = [place.get(x)[rows].transpose(1, 0, 2)[None] for x in (q, k, v)]
        want[rows] = attended(*part, 0.4)[0][0].transpose(1, 0, 2)
    place.close(o, want, "f16")


def test_alibi_and_a_score_modifier(place: Any) -> None:
    q, k, v = operands(place, q=16)
    g = graph(place)
    Q, K, V = map(g.tensor_like, (q, k, v))

    def capped(graph: Any, scores: Any) -> Any:
        limit = graph.tensor_scalar(5.0, cudnn.scalar_type.COMPILE_TIME_CONST)
        return graph.mul(graph.tanh(graph.div(scores, limit)), limit)

    O, _ = g.sdpa(Q, K, V, attn_scale=2.0, generate_stats=False, score_mod=capped)
    A, _ = g.sdpa(Q, K, V, attn_scale=0.35, generate_stats=False, use_causal_mask=True, use_alibi_mask=True)
    O.set_output(True)
    A.set_output(True)
    g.build()
    o, a = place.like(O), place.like(A)
    place.run(g, {Q: q, K: k, V: v, O: o, A: a})
    wq, wk, wv = map(place.get, (q, k, v))
    scores = 5 * np.tanh(2.0 * wq @ wk.swapaxes(-1, -2) / 5)
    place.close(o, attended(wq, wk, wv, 0.0, scores)[0], "f16")
    row, column = np.ogrid[:16, :16]
    slopes = np.array([2.0**-4, 2.0**-8]).reshape(2, 1, 1)
    want, _, _ = attended(wq, wk, wv, 0.35, slopes * (column - row), column <= row)
    place.close(a, want, "f16")


def test_a_sink_and_its_statistics(place: Any) -> None:
    q, k, v = operands(place)
    sink = place.random((1, 2, 1, 1), "f32", 9)
    g = graph(place)
    Q, K, V, S = map(g.tensor_like, (q, k, v, sink))
    most = g.tensor(dim=[2, 2, 12, 1], stride=[24, 12, 1, 1], data_type=T.FLOAT)
    total = g.tensor(dim=[2, 2, 12, 1], stride=[24, 12, 1, 1], data_type=T.FLOAT)
    O, _ = g.sdpa(
        Q, K, V, attn_scale=0.35, generate_stats=False, sink_token=S, score_max=most, score_sum_exp=total
    )
    O.set_output(True)
    g.build()
    o, m, t = place.like(O), place.like(most), place.like(total)
    place.run(g, {Q: q, K: k, V: v, S: sink, most: m, total: t, O: o})
    wq, wk, wv = map(place.get, (q, k, v))
    scores = 0.35 * wq @ wk.swapaxes(-1, -2)
    joined = np.concatenate([scores, np.broadcast_to(place.get(sink), (2, 2, 12, 1))], -1)
    largest = place.get(m)
    raised = np.exp(joined - joined.max(-1, keepdims=True))
    weights = raised / raised.sum(-1, keepdims=True)
    place.close(o, weights[..., :-1] @ wv, "f16")
    np.testing.assert_allclose(
        largest + np.log(place.get(t)), np.log(np.exp(joined).sum(-1, keepdims=True)), rtol=1e-4, atol=1e-4
    )


def test_fp8(place: Any) -> None:
    q, k, v = operands(place, "e4m3")
    values = {"descale_q": 0.5, "descale_k": 0.25, "descale_v": 2.0, "descale_s": 1 / 256, "scale_s": 256.0}
    values["scale_o"] = 4.0
    g = graph(place, T.FP8_E4M3)
    Q, K, V = map(g.tensor_like, (q, k, v))
    factors = {
        name: g.tensor(dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=T.FLOAT, name=name) for name in values
    }
    O, stats, amax_s, amax_o = g.sdpa_fp8(
        q=Q, k=K, v=V, **factors, is_inference=False, attn_scale=0.35, use_causal_mask=False, name="fp8"
    )
    O.set_output(True).set_data_type(T.FP8_E4M3)
    for tensor in (stats, amax_s, amax_o):
        tensor.set_output(True).set_data_type(T.FLOAT)
    g.build()
    o, s, largest_s, largest_o = map(place.like, (O, stats, amax_s, amax_o))
    pack = {Q: q, K: k, V: v, O: o, stats: s, amax_s: largest_s, amax_o: largest_o}
    place.run(g, pack | {factors[n]: place.put(np.full((1, 1, 1, 1), x), "f32") for n, x in values.items()})
    wide = (place.get(q) * 0.5, place.get(k) * 0.25, place.get(v) * 2)
    want, of_rows, _ = attended(*wide, 0.35)
    place.close(o, want * 4, "e4m3")
    place.close(s, of_rows)
    place.close(largest_o, np.abs(want).max().reshape(1, 1, 1, 1), "e4m3")
    assert g.find_tensor("fp8::Amax_O") is amax_o


def drawn(place: Any, kind: str, keep: float = 0.75) -> tuple[Any, Any]:
    """Returns a dropout mask and its scale; one row keeps nothing."""
    mask = np.random.default_rng(5).random((2, 2, 16, 16)) < keep
    mask[1, 0, 3] = False
    return place.put(mask, kind), place.put(np.full((1, 1, 1, 1), 1 / keep), "f32")


@pytest.mark.parametrize("used", [9, 0])
@pytest.mark.parametrize("of_mask", ["f16", "bool8"])
def test_dropout_by_a_mask(place: Any, of_mask: str, used: int) -> None:
    q, k, v = operands(place, q=16)
    mask, scale = drawn(place, of_mask)
    bias = place.random((1, 2, 16, 16), "f32", 4)
    lengths, whole = (place.put(np.array(n).reshape(2, 1, 1, 1), "i32") for n in ([16, used], [16, 16]))
    g = graph(place)
    tensors = Q, K, V, MASK, SCALE, B, LQ, LKV = [
        g.tensor_like(x) for x in (q, k, v, mask, scale, bias, whole, lengths)
    ]
    O, stats = g.sdpa(
        Q, K, V, attn_scale=0.35, bias=B, dropout=(MASK, SCALE), generate_stats=True, use_causal_mask=True,
        use_padding_mask=True, seq_len_q=LQ, seq_len_kv=LKV, name="drop",
    )  # fmt: skip
    O.set_output(True)
    stats.set_output(True).set_data_type(T.FLOAT)
    g.build()
    o, s = place.like(O), place.like(stats)
    pack = dict(zip(tensors, (q, k, v, mask, scale, bias, whole, lengths), strict=True))
    place.run(g, pack | {O: o, stats: s})
    seen = np.tri(16, dtype=bool) & (np.arange(16) < np.array([16, used]).reshape(2, 1, 1, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        _, of_rows, weights = attended(*map(place.get, (q, k, v)), 0.35, place.get(bias), seen)
    of_rows, weights = np.nan_to_num(of_rows, nan=-np.inf, neginf=-np.inf), np.nan_to_num(weights)
    place.close(o, (weights * place.get(mask) / 0.75) @ place.get(v), "f16")
    place.close(s, of_rows)
    assert O.get_data_type() == T.HALF
    assert g.find_tensor("drop::O") is O


@pytest.mark.parametrize(("of_mask", "has_bias_gradient"), [("f32", False), ("f32", True), ("bool8", True)])
def test_gradients_of_dropout_by_a_mask(place: Any, of_mask: str, has_bias_gradient: bool) -> None:
    q, k, v = operands(place, "f32", q=16)
    mask, scale = drawn(place, of_mask)
    dO, bias = place.random((2, 2, 16, 8), "f32", 7), place.random((1, 2, 16, 16), "f32", 4)
    wq, wk, wv, slope = map(place.get, (q, k, v, dO))
    _, of_rows, weights = attended(wq, wk, wv, 0.35, place.get(bias), np.tri(16, dtype=bool))
    kept = place.get(mask) / 0.75
    result = (weights * kept) @ wv
    o, stats = place.put(result, "f32"), place.put(of_rows, "f32")
    inverse = place.put(np.full((1, 1, 1, 1), 0.75), "f32")
    given = (q, k, v, o, dO, stats, bias, mask, scale, inverse)
    g = graph(place, T.FLOAT)
    tensors = Q, K, V, O, D, S, B, *dropout = list(map(g.tensor_like, given))
    of_bias = g.tensor(dim=[1, 2, 16, 16], stride=[512, 256, 16, 1], data_type=T.FLOAT)
    more = {"dBias": of_bias} if has_bias_gradient else {}
    made = g.sdpa_backward(
        Q, K, V, O, D, S, attn_scale=0.35, bias=B, use_causal_mask=True, dropout=tuple(dropout),
        name="back", **more,
    )  # fmt: skip
    for tensor in made:
        tensor.set_output(True).set_data_type(T.FLOAT)
    made = [*made, *more.values()]
    g.build()
    buffers = list(map(place.like, made))
    place.run(g, dict(zip([*tensors, *made], [*given, *buffers], strict=True)))
    of_scores = weights * (kept * (slope @ wv.swapaxes(-1, -2)) - (slope * result).sum(-1, keepdims=True))
    place.close(buffers[0], 0.35 * of_scores @ wk)
    place.close(buffers[1], 0.35 * of_scores.swapaxes(-1, -2) @ wq)
    place.close(buffers[2], (weights * kept).swapaxes(-1, -2) @ slope)
    if has_bias_gradient:
        place.close(buffers[3], of_scores.sum(0, keepdims=True))
    assert g.find_tensor("back::dK") is made[1]


def test_what_dropout_by_numbers_needs(place: Any) -> None:
    g = graph(place)
    x, one = g.tensor([1, 1, 8, 8], [64, 64, 8, 1]), g.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.FLOAT)
    with pytest.raises(weft.BadParameterError) as refused:
        g.sdpa_backward(x, x, x, x, x, x, dropout=(x, one), name="back")
    assert str(refused.value) == (
        "sdpa_backward 'back': dropout is 2 values starting with a mask. Give tensors: mask, scale, "
        "1 / scale."
    )


def test_dropout_of_fp8_by_a_mask(place: Any) -> None:
    q, k, v = operands(place, "e4m3", q=16)
    mask, scale = drawn(place, "bool8")
    g = graph(place, T.FP8_E4M3)
    tensors = Q, K, V, MASK, SCALE = [g.tensor_like(x) for x in (q, k, v, mask, scale)]
    one = g.tensor(dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=T.FLOAT)
    O, _, _, largest = g.sdpa_fp8(
        Q, K, V, *[one] * 6, is_inference=True, attn_scale=0.35, dropout=(MASK, SCALE)
    )
    O.set_output(True).set_data_type(T.BFLOAT16)
    largest.set_output(True).set_data_type(T.FLOAT)
    g.build()
    o, most = place.like(O), place.like(largest)
    pack = dict(zip(tensors, (q, k, v, mask, scale), strict=True))
    place.run(g, pack | {one: place.put(np.ones((1, 1, 1, 1)), "f32"), O: o, largest: most})
    _, _, weights = attended(*map(place.get, (q, k, v)), 0.35)
    want = (weights * place.get(mask) / 0.75) @ place.get(v)
    place.close(o, want, "e4m3")
    place.close(most, np.abs(want).max().reshape(1, 1, 1, 1), "e4m3")


@pytest.mark.parametrize("dims", [(2, 1, 1, 16), (2, 16)])
def test_a_mask_of_keys(place: Any, dims: tuple[int, ...]) -> None:
    q, k, v = operands(place)
    mask = np.random.default_rng(1).random(dims) < 0.5
    g = graph(place)
    Q, K, V, MASK = map(g.tensor_like, (q, k, v, place.put(mask, "bool8")))
    O, _ = g.sdpa(Q, K, V, attn_scale=0.35, generate_stats=False, kv_mask=MASK)
    O.set_output(True)
    g.build()
    o = place.like(O)
    place.run(g, {Q: q, K: k, V: v, MASK: place.put(mask, "bool8"), O: o})
    want, _, _ = attended(*map(place.get, (q, k, v)), 0.35, seen=mask.reshape(2, 1, 1, 16))
    place.close(o, want, "f16")
    for dims in ([16], [2, 1, 16], [2, 3, 1, 16], [2, 1, 8, 16]):
        M = g.tensor(dims, np.cumprod([1, *dims[:0:-1]])[::-1].tolist(), T.BOOLEAN)
        wrong = re.escape(f"kv_mask is {dims}, but must contain one value per key")
        with pytest.raises(weft.BadParameterError, match=wrong):
            g.sdpa(Q, K, V, kv_mask=M)


def test_score_modifiers_of_fp8(place: Any) -> None:
    q, k, v = operands(place, "e4m3")
    names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    g = graph(place, T.FP8_E4M3)
    Q, K, V = map(g.tensor_like, (q, k, v))
    factors = {n: g.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.FLOAT, name=n) for n in names}
    O, _, amax_s, amax_o = g.sdpa_fp8(
        Q, K, V, **factors, attn_scale=0.35, generate_stats=False,
        fn=lambda graph, scores: graph.mul(a=graph.tanh(input=scores), b=3.0),
    )  # fmt: skip
    O.set_output(True).set_data_type(T.FLOAT)
    for tensor in (amax_s, amax_o):
        tensor.set_output(True).set_data_type(T.FLOAT)
    g.build()
    values = dict.fromkeys(names, 1.0) | {"descale_q": 0.5, "scale_s": 256.0, "descale_s": 1 / 256}
    results = o, largest_s, largest_o = list(map(place.like, (O, amax_s, amax_o)))
    pack = {factors[n]: place.put(np.full((1, 1, 1, 1), values[n]), "f32") for n in names}
    place.run(g, pack | {Q: q, K: k, V: v} | dict(zip((O, amax_s, amax_o), results, strict=True)))
    wq, wk, wv = map(place.get, (q, k, v))
    scores = 3 * np.tanh(0.35 * 0.5 * wq @ wk.swapaxes(-1, -2))
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    place.close(o, weights @ wv, "e4m3")
    place.close(largest_s, weights.max().reshape(1, 1, 1, 1))
    place.close(largest_o, np.abs(weights @ wv).max().reshape(1, 1, 1, 1), "e4m3")


def test_queries_that_carry_the_scale(place: Any) -> None:
    q, k, v = operands(place, "f32")
    folded = place.put(place.get(q) * 0.35 / np.log(2), "f32")
    starts = [place.put(np.array([0, count, 2 * count]), "i32") for count in (12, 16)]
    g = graph(place, T.FLOAT)
    Q, K, V, SQ, SKV = map(g.tensor_like, (folded, k, v, *starts))
    O, stats = g.sdpa(
        Q, K, V, attn_scale_prefolded=True, generate_stats=True, use_padding_mask=True, cu_seq_len_q=SQ,
        cu_seq_len_kv=SKV,
    )  # fmt: skip
    O.set_output(True)
    stats.set_output(True).set_data_type(T.FLOAT)
    g.build()
    o, s = place.like(O), place.like(stats)
    place.run(g, {Q: folded, K: k, V: v, SQ: starts[0], SKV: starts[1], O: o, stats: s})
    want, of_rows, _ = attended(*map(place.get, (q, k, v)), 0.35)
    place.close(o, want)
    place.close(s, of_rows)


def test_a_softmax_of_another_precision_is_refused_by_name(place: Any) -> None:
    q, k, v = operands(place)
    g = graph(place)
    Q, K, V = map(g.tensor_like, (q, k, v))
    g.sdpa(Q, K, V, softmax_precision=T.FLOAT)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=r"^sdpa 'attn': softmax_precision is HALF"):
        g.sdpa(Q, K, V, name="attn", softmax_precision=T.HALF)


def test_the_gradients_of_fp8(place: Any) -> None:
    q, k, v = operands(place, "e4m3", q=16)
    dO = place.random((2, 2, 16, 8), "e4m3", 7)
    wq, wk, wv, slope = map(place.get, (q, k, v, dO))
    result, of_rows, weights = attended(wq, wk, wv, 0.35)
    o, stats = place.put(result, "e4m3"), place.put(of_rows, "f32")
    names = (
        "descale_q descale_k descale_v descale_o descale_dO descale_s descale_dP scale_s scale_dQ scale_dK "
    )
    names += "scale_dV scale_dP"
    g = graph(place, T.FP8_E4M3)
    Q, K, V, O, D, S = map(g.tensor_like, (q, k, v, o, dO, stats))
    factors = {n: g.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.FLOAT, name=n) for n in names.split()}
    made = g.sdpa_fp8_backward(q=Q, k=K, v=V, o=O, dO=D, stats=S, **factors, attn_scale=0.35, name="back")
    for i, tensor in enumerate(made):
        tensor.set_output(True).set_data_type(T.FLOAT if i > 2 else T.FP8_E5M2)
    g.build()
    buffers = list(map(place.like, made))
    ones = {tensor: place.put(np.ones((1, 1, 1, 1)), "f32") for tensor in factors.values()}
    pack = {Q: q, K: k, V: v, O: o, D: dO, S: stats} | ones
    place.run(g, pack | dict(zip(made, buffers, strict=True)))
    dP = slope @ wv.swapaxes(-1, -2)
    dS = weights * (dP - (slope * place.get(o)).sum(-1, keepdims=True)) * 0.35
    for got, want in zip(
        buffers, (dS @ wk, dS.swapaxes(-1, -2) @ wq, weights.swapaxes(-1, -2) @ slope), strict=False
    ):
        place.close(got, want, "e5m2")


def turned(x: Any, angles: Any, sign: float = 1) -> Any:
    """Rotates the last elements by angles, one half against the other; the others are unchanged."""
    size = angles.shape[-1]
    head, tail = x[..., :-size], x[..., -size:]
    across = np.concatenate([-tail[..., size // 2 :], tail[..., : size // 2]], -1)
    return np.concatenate([head, tail * np.cos(angles) + sign * across * np.sin(angles)], -1)


def test_rotary_embedding_before_attention(place: Any) -> None:
    q, k, v = operands(place, "f32", q=16)
    half = np.random.default_rng(3).uniform(0, 6, (16, 1, 1, 2))
    angles = place.put(np.concatenate([half, half], -1), "f32")
    g = graph(place, T.FLOAT)
    Q, K, V, F = map(g.tensor_like, (q, k, v, angles))
    plain = g.identity(Q, name="plain")  # of dims that are not known yet
    rotated = [g.rope(x, F, rope_dim=4, name=n) for x, n in ((plain, "of_q"), (K, "of_k"))]
    O, _ = g.sdpa(*rotated, V, attn_scale=0.4, generate_stats=False)
    O.set_output(True)
    g.build()
    o = place.like(O)
    place.run(g, {Q: q, K: k, V: v, F: angles, O: o})
    along = place.get(angles).transpose(1, 2, 0, 3)
    want, _, _ = attended(turned(place.get(q), along), turned(place.get(k), along), place.get(v), 0.4)
    place.close(o, want)
    assert g.find_tensor("of_q::OUT_0") is rotated[0]


def test_the_gradient_of_rotary_embedding(place: Any) -> None:
    dy = place.random((10, 2, 3, 8))
    half = np.random.default_rng(3).uniform(0, 6, (10, 1, 1, 4))
    angles = place.put(np.concatenate([half, half], -1), "f32")
    g = graph(place, T.FLOAT)
    DY, F = g.tensor_like(dy), g.tensor_like(angles)
    DX = g.rope_backward(dY=DY, freqs=F, output_scale=0.5, name="rope").set_output(True)
    g.build()
    dx = place.like(DX)
    place.run(g, {DY: dy, F: angles, DX: dx})
    place.close(dx, 0.5 * turned(place.get(dy), place.get(angles), -1))
