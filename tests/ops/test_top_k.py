# SPDX-License-Identifier: Apache-2.0
"""The largest and smallest elements along a dimension against NumPy: types, layouts, ties, NaN and sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import LAYOUTS, check, random, refuses


def top_k(x: Any, k: int, axis: int, largest: bool = True) -> list[Any]:
    """Values and indices; NaN is the largest, and of equal elements the lowest index is first."""
    x = np.asarray(x)
    wide = x.astype(np.float64) if x.dtype.kind not in "iub" else x.astype(np.int64)
    if wide.dtype.kind == "f":
        rank = np.where(np.isnan(wide), np.inf, wide)
        keys = (np.isnan(wide), rank) if largest else (~np.isnan(wide), -rank)
        order = np.lexsort((-keys[1], ~keys[0]), axis=axis)
    else:
        order = np.argsort(~wide if largest else wide, axis=axis, kind="stable")
    indices = np.take(order, range(k), axis)
    return [np.take_along_axis(x, indices, axis), indices]


SHAPES = [((7,), 0, 3), ((1,), 0, 1), ((3, 1), 1, 1), ((2, 3, 37), -1, 5), ((2, 37, 5), 1, 37)]
SHAPES += [((70, 34), 0, 4)]


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16", "i8", "i32", "i64"])
@pytest.mark.parametrize(("shape", "axis", "k"), SHAPES)
def test_values(shape: tuple[int, ...], axis: int, k: int, dtype: str) -> None:
    x = random(shape, dtype, -100, 100)
    for mode in ("MAX", "MIN"):
        want = top_k(x, k, axis, mode == "MAX")
        check(lambda g, x, mode=mode: g.top_k(x, k, axis=axis, mode=mode), {"x": x}, want, layouts=LAYOUTS)


@pytest.mark.parametrize(
    ("shape", "k"),
    [((2, 1500), 7), ((2, 300), 40), ((1, 1500), 1500), ((1, 2600), 2100), ((3, 1024), 32), ((2, 257), 33)],
    ids=str,
)
def test_sizes(shape: tuple[int, ...], k: int) -> None:
    """Short lines, radix search, lists that fit into shared memory and longer ones; few different values."""
    x = random(shape, "f32", -20, 20).round()
    for mode in ("MAX", "MIN"):
        want = top_k(x, k, 1, mode == "MAX")
        check(lambda g, x, mode=mode: g.top_k(x, k, mode=mode), {"x": x}, want, layouts=("packed",))


@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("mode", ["MAX", "MIN"])
@pytest.mark.parametrize("repeat", [1, 300])
def test_nan_infinity_and_zeros(k: int, mode: str, repeat: int) -> None:
    x = np.float32([[1, np.nan, -np.inf, np.inf, np.nan, 0], [0.0, -0.0, 0, 1e-45, -1e-45, -1]])
    x = np.tile(x, (1, repeat))
    want = top_k(x, k, 1, mode == "MAX")
    check(lambda g, x: g.top_k(x, k, mode=mode), {"x": x}, want)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5, 7), 1), ((5, 37), 0), ((2, 1100), 1), ((1, 20000), 1), ((3, 8, 1), 1)],
    ids=str,
)
def test_argmax_and_argmin(shape: tuple[int, ...], axis: int) -> None:
    x = random(shape, "f32", -50, 50).round()
    for name, largest in (("argmax", True), ("argmin", False)):
        want = top_k(x, 1, axis, largest)[1]
        check(lambda g, x, name=name: getattr(g, name)(x, axis=axis), {"x": x}, want, layouts=LAYOUTS)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("repeat", [1, 300])
def test_nan_is_at_the_position(dtype: str, repeat: int) -> None:
    """The first NaN is both the largest and the smallest element, as in NumPy."""
    x = np.float64([[1, np.nan, -np.inf, np.inf, np.nan, 0], [np.inf, 2, -np.inf, 0, 2, np.nan]])
    x = np.concatenate([x[:, 2:4]] * repeat + [x], axis=1).astype(random((1, 1), dtype).dtype)
    for name in ("argmax", "argmin"):
        want = getattr(np, name)(x.astype("f8"), 1)[:, None]
        check(lambda g, x, name=name: getattr(g, name)(x), {"x": x}, want)


def test_large_integers() -> None:
    x = np.int64([[2**53, 2**53 + 1, -(2**63), 2**63 - 1]])
    check(lambda g, x: g.top_k(x, 4), {"x": x}, top_k(x, 4, 1))
    check(lambda g, x: g.argmin(x), {"x": x}, np.int64([[2]]))


def test_results_of_other_types() -> None:
    x = random((3, 40), "bf16")
    want = top_k(x, 4, 1)
    check(lambda g, x: g.top_k(x, 4), {"x": x}, want, out=["f32", "i32"])
    check(lambda g, x: g.top_k(x, 4)[0], {"x": x}, want[0])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0, 2)], ids=str)
def test_no_lines(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, "f4")
    check(lambda g, x: g.argmax(x), {"x": x}, np.zeros((*shape[:-1], 1), np.int64))


def test_refusals() -> None:
    x = {"x": ((2, 3), "f32")}
    message = "k is 4, but x [2,3] has 3 elements along axis 1. Select at most that many."
    refuses(lambda g, x: g.top_k(x, 4), x, message)
    refuses(lambda g, x: g.top_k(x, 2, mode="ADD"), x, "mode selects no elements. Use MAX or MIN.")
    refuses(lambda g, x: g.argmax(x, axis=-3), x, "axis is -3, x has 2 dims [2,3]. Use a value in -2..1.")
