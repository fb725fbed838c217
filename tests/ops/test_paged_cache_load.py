# SPDX-License-Identifier: Apache-2.0
"""paged_cache_load against NumPy: types, layouts, page sizes, both forms of results, attention, refusals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import weft
from checks import LAYOUTS, check, check_bits, exact, random, refuses

BATCH, HEADS, PAGES = 3, 2, 7


def inputs(rows: int, size: int, depth: int, dtype: str = "f32", index: str = "i4") -> dict[str, Any]:
    """A full sequence, one that ends within a page, and an empty one, whose pages are out of range."""
    entries = -(-rows // size)
    table = np.random.default_rng(0).integers(0, PAGES, (BATCH, 1, entries, 1)).astype(index)
    table[2] = 99
    lengths = np.array([rows, max(rows - 3, 0), 0], index).reshape(BATCH, 1, 1, 1)
    return {"container": random((PAGES, HEADS, size, depth), dtype), "seq_len": lengths, "page_table": table}


def rows_of(given: dict[str, Any], rows: int) -> Any:
    """The result, [B, H, S, D]."""
    container, size = given["container"], given["container"].shape[2]
    y = np.zeros((BATCH, HEADS, rows, container.shape[3]), container.dtype)
    for b in range(BATCH):
        for s in range(int(given["seq_len"][b, 0, 0, 0])):
            y[b, :, s] = container[given["page_table"][b, 0, s // size, 0], :, s % size]
    return y


def load(rows: int, depth: int, is_transposed: bool = False) -> Any:
    def build(g: weft.Graph, container: Any, seq_len: Any, page_table: Any) -> Any:
        y = g.paged_cache_load(container, seq_len, page_table, name="load")
        if not is_transposed:
            return y.set_dim([BATCH, HEADS, rows, depth])
        return y.set_dim([BATCH, HEADS, depth, rows])

    return build


@pytest.mark.parametrize("size", [1, 5, 16, 64])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_page_sizes(size: int, is_transposed: bool) -> None:
    given = inputs(37, size, 24)
    want = rows_of(given, 37)
    check_bits(
        load(37, 24, is_transposed), given, want.swapaxes(2, 3) if is_transposed else want, layouts=LAYOUTS
    )


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "e4m3", "i8"])
@pytest.mark.parametrize("index", ["i4", "i8"])
def test_types(dtype: str, index: str) -> None:
    given = inputs(20, 8, 16, dtype, index)
    check_bits(load(20, 16), given, rows_of(given, 20))


def test_square_results_are_transposed_by_their_strides() -> None:
    given = inputs(16, 4, 16)
    want = rows_of(given, 16)
    check_bits(load(16, 16), given, want)

    def turned(g: weft.Graph, **operands: Any) -> Any:
        y = load(16, 16)(g, **operands)
        return g.add(y.set_stride([HEADS * 256, 256, 1, 16]), 0.0)

    check_bits(turned, given, want.swapaxes(2, 3))


def test_unset_dims_reach_all_entries() -> None:
    g = weft.Graph()
    y = g.paged_cache_load(*inputs(9, 4, 8).values())
    y.set_output(True)
    g.validate()
    assert (tuple(y.get_dim()), y.get_data_type()) == ((BATCH, HEADS, 12, 8), weft.data_type.FLOAT)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_attention_of_loaded_keys_and_values(dtype: str) -> None:
    given = inputs(20, 8, 16, dtype)
    keys = exact(rows_of(given, 20))
    q = random((BATCH, HEADS, 4, 16), dtype, seed=1)
    is_used = np.arange(20) < given["seq_len"]
    scores = np.where(is_used, exact(q) @ keys.swapaxes(2, 3), -1e4)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)

    def attend(g: weft.Graph, q: Any, **operands: Any) -> Any:
        k, v = load(20, 16, True)(g, **operands), load(20, 16)(g, **operands)
        column = g.gen_index(g.matmul(q, k), 3).set_data_type("i32")
        masked = g.binary_select(g.matmul(q, k), -1e4, g.cmp_lt(column, operands["seq_len"]))
        return g.matmul(g.softmax(masked, axis=3), v)

    check(attend, {"q": q} | given, weights @ keys, magnitude=200, ulps=500)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"page_table": (BATCH, 1, 3, 2)},
            "'load': page_table has dims [3,1,3,2], expected [3,1,3,1]. Give it these dims, or none.",
        ),
        (
            {"seq_len": (1, 1, 1, 1)},
            "'load': seq_len has dims [1,1,1,1], expected [3,1,1,1]. Give it these dims, or none.",
        ),
        (
            {"container": (0, HEADS, 8, 16)},
            "'load': container is [0,2,8,16], [pages, H, page size, D], without pages, or with empty ones. "
            "Give it at least one page with at least one row.",
        ),
        (
            {"container": (PAGES, HEADS, 8, 12)},
            "'load': y is [3,2,20,16]; expected [3, 2, S, 12] or [3, 2, 12, S], the batch size of "
            "page_table [3,1,3,1] and the heads and depth of container [7,2,8,12]. Correct its dims, or "
            "leave them unset.",
        ),
        (
            {"page_table": (BATCH, 1, 2, 1)},
            "'load': page_table is [3,1,2,1]: its pages of 8 rows hold fewer than the 20 rows of y. Give it "
            "more entries.",
        ),
    ],
)
def test_refusals(change: dict[str, tuple[int, ...]], message: str) -> None:
    given = inputs(20, 8, 16) | {
        name: np.zeros(dims, "f4" if name == "container" else "i4") for name, dims in change.items()
    }
    refuses(load(20, 16), given, message)


def test_index_types_are_checked() -> None:
    given = inputs(20, 8, 16)
    given["seq_len"] = given["seq_len"].astype("f4")
    refuses(load(20, 16), given, "'load': seq_len has data type f32. Use INT32 or INT64.")


@pytest.mark.parametrize(
    ("name", "at", "value", "message"),
    [
        (
            "seq_len",
            1,
            21,
            "entry 1 of seq_len, tensor 'seq_len' (uid 2), is out of range: expected 0..20, got 21.",
        ),
        (
            "page_table",
            0,
            7,
            "page 0 of batch entry 0 in page_table, tensor 'page_table' (uid 3), is out of range: ",
        ),
    ],
)
def test_contents_are_checked(name: str, at: int, value: int, message: str) -> None:
    given = inputs(20, 8, 16)
    given[name][at].flat[0] = value
    g = weft.Graph()
    tensors = {key: g.tensor_like(array).set_name(key) for key, array in given.items()}
    y = load(20, 16)(g, **tensors)
    y.set_output(True)
    with pytest.raises(weft.BadParameterError, match=re.escape(message)):
        g.build()({tensors[key]: array for key, array in given.items()})
