# SPDX-License-Identifier: Apache-2.0
"""diagonal_band_mask against NumPy: both forms, every comparison, lengths, types, refusals, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import weft
from checks import LAYOUTS, check_bits, random, refuses

COMPARE = {
    "CMP_EQ": np.equal,
    "CMP_NEQ": np.not_equal,
    "CMP_GT": np.greater,
    "CMP_GE": np.greater_equal,
    "CMP_LT": np.less,
    "CMP_LE": np.less_equal,
}
INF = np.float32(np.inf)


def masked(mode: str, fill: Any = -INF, **options: Any) -> Callable[..., Any]:
    """Builds a mask; operands other than x are options of the method, by their names."""
    return lambda g, x, **operands: g.diagonal_band_mask(x, fill, mode, name="m", **options | operands)


def keeps(
    mode: str, dims: tuple[int, ...], left: Any = None, right: Any = 0, seq_q: Any = 0, seq_kv: Any = 0
) -> Any:
    """Where scores are kept: lengths broadcast to [B, 1, 1, 1]."""
    row, column = np.arange(dims[-2])[:, None], np.arange(dims[-1])
    shift = np.asarray(seq_kv) - np.asarray(seq_q)
    if left is None:
        return np.broadcast_to(COMPARE[mode](row + shift + right, column), dims)
    return np.broadcast_to(COMPARE[mode](column + left - shift, row), dims)


@pytest.mark.parametrize("mode", COMPARE)
@pytest.mark.parametrize("bound", [{}, {"shift_right_bound": 2}, {"left_bound": 3}, {"left_bound": -1.0}])
def test_values(mode: str, bound: dict[str, float]) -> None:
    x = random((2, 3, 7, 9), "f32")
    (left, right) = bound.get("left_bound"), bound.get("shift_right_bound", 0)
    want = np.where(keeps(mode, x.shape, left, right), x, -INF)
    check_bits(masked(mode, **bound), {"x": x}, want, layouts=LAYOUTS)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i32"])
@pytest.mark.parametrize("dims", [(5, 4), (3, 1, 17), (2, 1, 2, 3, 6)])
def test_types_and_ranks(dims: tuple[int, ...], dtype: str) -> None:
    x = random(dims, dtype, -9, 9)
    if dtype == "f64":
        x = x / 3
    check_bits(
        masked("CMP_GE", -7), {"x": x}, np.where(keeps("CMP_GE", dims), x, np.array(-7).astype(x.dtype))
    )


@pytest.mark.parametrize("bound", [{}, {"shift_right_bound": 1}, {"left_bound": 2}, {"left_bound": 2.0}])
@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_lengths_align_the_band_to_the_bottom_right(bound: dict[str, float], dtype: str) -> None:
    x = random((3, 2, 6, 8), "f32")
    numbers = np.int32 if dtype == "i32" else np.int64
    q, kv = (np.array(n, numbers).reshape(3, 1, 1, 1) for n in ([6, 3, 0], [8, 8, 5]))
    mode = "CMP_GT" if "left_bound" in bound else "CMP_GE"
    (left, right) = bound.get("left_bound"), bound.get("shift_right_bound", 0)
    want = np.where(keeps(mode, x.shape, left, right, q, kv), x, -INF)
    check_bits(masked(mode, **bound), {"x": x, "seq_len_q": q, "seq_len_kv": kv}, want)
    only = np.where(keeps(mode, x.shape, left, right, 0, kv), x, -INF)
    check_bits(masked(mode, **bound), {"x": x, "seq_len_kv": kv}, only)
    sums = {
        f"cu_{key}": np.concatenate([[0], n.ravel()]).cumsum().astype(numbers).reshape(4, 1, 1, 1)
        for key, n in (("seq_len_q", q), ("seq_len_kv", kv))
    }
    check_bits(masked(mode, **bound), {"x": x, **sums}, want)


@pytest.mark.parametrize("dims", [(0, 2, 3, 4), (1, 1, 0, 4), (1, 1, 4, 0)])
def test_empty(dims: tuple[int, ...]) -> None:
    x = np.zeros(dims, np.float32)
    check_bits(masked("CMP_GE"), {"x": x}, x)


REFUSALS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"left_bound": 1, "shift_right_bound": 1},
        {},
        "left_bound and shift_right_bound are both set. Use one operation for each side of the band.",
    ),
    ({}, {"x": ((3,), "f32")}, "x has 1 dim [3], expected 2..8. Reshape it."),
    (
        {},
        {"shift_right_bound": ((1, 1, 1, 1), "f16")},
        "shift_right_bound is f16. Give it type FLOAT, INT32 or INT64.",
    ),
    ({}, {"seq_len_q": ((2, 1, 1, 1), "f32")}, "seq_len_q is f32. Give it type INT32 or INT64."),
    ({}, {"seq_len_kv": ((1, 1, 1, 1), "i32")}, "seq_len_kv has dims [1,1,1,1], expected [2,1,1,1]"),
    ({}, {"cu_seq_len_kv": ((2, 1, 1, 1), "i32")}, "cu_seq_len_kv has dims [2,1,1,1], expected [3,1,1,1]"),
    (
        {},
        {"seq_len_q": ((2, 1, 1, 1), "i32"), "cu_seq_len_q": ((3, 1, 1, 1), "i32")},
        "seq_len_q and cu_seq_len_q are both set. Set one of them.",
    ),
    (
        {},
        {"x": ((3, 4), "f32"), "seq_len_q": ((3, 1), "i32")},
        "seq_len_q is set, but x has dims [3,4] without a batch. Leave it unset.",
    ),
]


@pytest.mark.parametrize(("options", "operands", "message"), REFUSALS)
def test_refuses(options: dict[str, Any], operands: dict[str, Any], message: str) -> None:
    refuses(
        masked("CMP_GE", **options),
        {"x": ((2, 3, 4, 5), "f32"), **operands},
        f"diagonal_band_mask 'm': {message}",
    )


def test_refuses_other_modes() -> None:
    refuses(masked("ADD"), {"x": ((2, 3), "f32")}, "comparison_mode")


# ---- In graphs ---------------------------------------------------------------------------------------------


def attention(g: weft.Graph, q: Any, k: Any, v: Any, **options: Any) -> weft.Tensor:
    """Attention in parts, masked on the right at the diagonal, and on the left if `left` is given."""
    scores = g.mul(g.matmul(q, k), 0.25)
    scores = g.diagonal_band_mask(scores, -np.inf, "CMP_GE", shift_right_bound=options.get("right", 0))
    if "left" in options:
        scores = g.diagonal_band_mask(scores, -np.inf, "CMP_GT", left_bound=options["left"])
    return g.matmul(g.softmax(scores), v)


@pytest.mark.parametrize(
    ("options", "band"),
    [
        ({}, "causal"),
        ({"right": 3}, "bounded"),
        ({"left": 5}, "causal"),
        ({"left": 5.0, "right": 2.0}, "bounded"),
    ],
)
def test_attention_recognises_the_band(options: dict[str, float], band: str) -> None:
    g = weft.Graph(io_data_type="bf16", device="sm_90")
    q, v = g.tensor([4, 16, 1024, 128]), g.tensor([4, 16, 1024, 128])
    k = g.tensor([4, 16, 128, 1024], [16 * 1024 * 128, 1024 * 128, 1, 128])
    attention(g, q, k, v, **options).set_output(True)
    ((family, detail),) = [(step["family"], step["detail"]) for step in g.build().plan.report["steps"]]
    assert family == "cuda.attention_pattern"
    assert f", {band}, " in detail, detail


@pytest.mark.parametrize("options", [{}, {"left": 5}])
def test_attention_values(options: dict[str, float]) -> None:
    q, k, v = (
        random(dims, "f32", seed=i) for i, dims in enumerate([(2, 2, 16, 8), (2, 2, 8, 16), (2, 2, 16, 8)])
    )
    scores = np.where(keeps("CMP_GE", (16, 16)), q.astype("f8") @ k.astype("f8") * 0.25, -np.inf)
    if "left" in options:
        scores = np.where(keeps("CMP_GT", (16, 16), options["left"]), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v.astype("f8")
    g = weft.Graph()
    attention(g, q, k, v, **options)
    np.testing.assert_allclose(g(), want, rtol=1e-4, atol=1e-5)


def test_score_modifier() -> None:
    """A mask within the sub-graph of an attention hides keys."""
    q, k, v = (random((2, 2, 6, 8), "f32", seed=i) for i in range(3))
    g, causal = weft.Graph(), weft.Graph()
    g.sdpa(q, k, v, score_mod=lambda g, s: g.diagonal_band_mask(s, -np.inf, "CMP_GE", shift_right_bound=1))
    causal.sdpa(q, k, v, diagonal_band_right_bound=1)
    np.testing.assert_allclose(g(), causal(), rtol=1e-5, atol=1e-6)


def test_saved_plans_contain_the_operation() -> None:
    x = random((2, 3, 4, 5), "f32")
    g = weft.Graph()
    scores = g.tensor(x.shape, name="x", data_type="f32")
    g.diagonal_band_mask(g.mul(scores, 2.0), 0.0, "CMP_GE", name="mask").set_output(True).set_name("y")
    g.build()
    loaded = weft.Graph().deserialize(g.serialize())
    want = np.where(keeps("CMP_GE", x.shape), x * 2, 0)
    np.testing.assert_array_equal(loaded(x), want)
