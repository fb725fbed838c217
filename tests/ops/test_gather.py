# SPDX-License-Identifier: Apache-2.0
"""Gathering by indices and adding at indices against NumPy: axes, types, layouts, duplicates and -1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import weft
from checks import DEVICE, LAYOUTS, check, check_bits, exact, handle, random, refuses


def indices(shape: Any, extent: int, dtype: str = "i8", skipped: bool = True, seed: int = 5) -> Any:
    """Random positions with duplicates; some are -1."""
    return np.random.default_rng(seed).integers(-1 if skipped else 0, extent, shape).astype(dtype)


def gathered(x: Any, index: Any, axis: int) -> Any:
    if index.ndim == 1:
        y = np.take(x, np.maximum(index, 0), axis)
        keep = index.reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)]) >= 0
    else:
        y, keep = np.take_along_axis(x, np.maximum(index, 0), axis), index >= 0
    return np.where(keep, y, np.zeros((), y.dtype))


def scattered(src: Any, index: Any, axis: int, y: Any) -> Any:
    src, y = np.moveaxis(src, axis, 0), np.moveaxis(y.copy(), axis, 0)
    index = index if index.ndim == 1 else np.moveaxis(index, axis, 0)
    for m in range(len(src)):
        if index.ndim == 1:
            if index[m] >= 0:
                y[index[m]] += src[m]
            continue
        for at in np.ndindex(src.shape[1:]):
            if index[(m, *at)] >= 0:
                y[(index[(m, *at)], *at)] += src[(m, *at)]
    return np.moveaxis(y, 0, axis)


CASES = [
    ((7, 5), 0, 11),
    ((5, 33), 1, 4),
    ((3, 6, 40), 1, 9),
    ((9,), 0, 20),
    ((1, 3), 0, 2),
    ((4, 1, 8), 0, 300),
]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "i64", "f64"])
@pytest.mark.parametrize(("shape", "axis", "count"), CASES, ids=str)
def test_slices(shape: tuple[int, ...], axis: int, count: int, dtype: str) -> None:
    x, index = random(shape, dtype, -100, 100), indices(count, shape[axis], "i4")
    given = {"x": x, "index": index}
    check_bits(
        lambda g, x, index: g.gather(x, index, axis=axis), given, gathered(x, index, axis), layouts=LAYOUTS
    )


@pytest.mark.parametrize(("shape", "axis", "count"), CASES, ids=str)
def test_elements(shape: tuple[int, ...], axis: int, count: int) -> None:
    x = random(shape, "f32")
    index = indices([count if d == axis else n for d, n in enumerate(shape)], shape[axis])
    given = {"x": x, "index": index}
    check_bits(
        lambda g, x, index: g.gather(x, index, axis=axis), given, gathered(x, index, axis), layouts=LAYOUTS
    )


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64", "i32", "i64"])
@pytest.mark.parametrize(("shape", "axis", "count"), CASES, ids=str)
@pytest.mark.parametrize("is_elementwise", [False, True])
def test_sums(shape: tuple[int, ...], axis: int, count: int, dtype: str, is_elementwise: bool) -> None:
    dims = [count if d == axis else n for d, n in enumerate(shape)]
    src, x = random(dims, dtype), random(shape, dtype, seed=1)
    index = indices(dims if is_elementwise else count, shape[axis])
    wide = np.int64 if dtype[0] == "i" else np.float64
    zero = np.zeros(shape, wide)

    def add(g: Any, src: Any, index: Any, x: Any = None) -> Any:
        y = g.scatter_add(src, index, x, axis=axis)
        return y if x else y.set_dim(shape)

    given, how = {"src": src, "index": index}, {"layouts": LAYOUTS, "magnitude": 2.0 * count}
    check(add, given, scattered(src.astype(wide), index, axis, zero), **how)
    check(add, given | {"x": x}, scattered(src.astype(wide), index, axis, x.astype(wide)), **how)


@pytest.mark.parametrize("count", [3, 700])
def test_sorted_indices(count: int) -> None:
    src, index = random((count, 40), "f32"), np.sort(indices(count, 90))
    want = scattered(exact(src), index, 0, np.zeros((90, 40)))
    check(
        lambda g, src, index: g.scatter_add(src, index, is_sorted=True).set_dim([90, 40]),
        {"src": src, "index": index},
        want,
        magnitude=2.0 * count,
    )


def test_one_index_for_all() -> None:
    src, index = random((500, 130), "bf16"), np.full(500, 70)
    want = scattered(exact(src), index, 0, np.zeros((100, 130)))
    check(
        lambda g, src, index: g.scatter_add(src, index).set_dim([100, 130]),
        {"src": src, "index": index},
        want,
        magnitude=1000.0,
    )


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)], ids=str)
def test_nothing(shape: tuple[int, ...]) -> None:
    src, index = np.zeros(shape, "f4"), indices(shape[0], 4)
    check(
        lambda g, src, index: g.scatter_add(src, index).set_dim([4, shape[1]]),
        {"src": src, "index": index},
        np.zeros((4, shape[1])),
    )


@pytest.mark.parametrize(("shape", "axis", "k"), [((3, 40), 1, 5), ((30, 4), 0, 3)], ids=str)
def test_gradient_of_top_k(shape: tuple[int, ...], axis: int, k: int) -> None:
    """dy at the indices, in one graph with the selection."""
    x = random(shape, "f32")
    order = np.take(np.argsort(-x, axis, kind="stable"), range(k), axis)
    dy = random(order.shape, "f32", seed=1)
    want = np.zeros(shape)
    np.put_along_axis(want, order, exact(dy), axis)
    check(
        lambda g, x, dy: g.scatter_add(dy, g.top_k(x, k, axis=axis)[1], axis=axis).set_dim(shape),
        {"x": x, "dy": dy},
        want,
    )


def test_refusals() -> None:
    x, index = ((4, 5), "f32"), ((3,), "i64")
    refuses(
        lambda g, x, index: g.gather(x, index),
        {"x": x, "index": ((3,), "f32")},
        "index has data type f32. Use INT32 or INT64.",
    )
    refuses(
        lambda g, x, index: g.gather(x, index),
        {"x": ((4, 5, 6), "f32"), "index": ((3, 2), "i64")},
        "index is [3,2], x is [4,5,6]. Give it one dimension, or one index per element with as many "
        "dimensions as x.",
    )
    refuses(
        lambda g, src, index: g.scatter_add(src, index),
        {"src": ((3, 5), "f32"), "index": index},
        "y has no dims, and without x they do not follow from src. Set them.",
    )


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU skips such indices")
def test_indices_out_of_range() -> None:
    for wrong in (4, -2):
        g = weft.Graph(handle=weft.create_handle("cpu"))
        g.gather(np.zeros((4, 5), "f4"), np.int64([0, wrong]))
        message = rf"entry \[1\] of index, .*, is out of range: expected -1..3, got {wrong}"
        with pytest.raises(weft.BadParameterError, match=message):
            g()


def test_additions_in_any_order_are_a_relaxation() -> None:
    """Many sums of many indices: only an engine that allows any order adds atomically."""
    g = weft.Graph(handle=handle(), io_data_type="f32")
    g.scatter_add(g.tensor([100000, 64]), g.tensor([100000], data_type="i32")).set_dim([200000, 64])
    answers = {answer["engine"]: answer["supported"] for answer in g.support()}
    if DEVICE == "cuda":
        assert answers["cuda"]
        assert answers["cuda.unordered"]
    else:
        assert answers["cpu.fast"]
