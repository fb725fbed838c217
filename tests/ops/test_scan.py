# SPDX-License-Identifier: Apache-2.0
"""Cumulative sums, products and extremes against NumPy: axes, directions, types, layouts, ties and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import LAYOUTS, check, exact, random, refuses

OPERATORS = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}
IDENTITY = {"cumsum": 0, "cumprod": 1}


def accumulate(
    name: str, x: Any, axis: int, exclusive: bool = False, reverse: bool = False, wide: bool = False
) -> Any:
    """The definition, in float64, or in int64."""
    x = np.asarray(x).astype(np.int64 if wide else np.float64)
    x = np.flip(x, axis) if reverse else x
    with np.errstate(over="ignore", invalid="ignore"):
        y = OPERATORS[name].accumulate(x, axis, dtype=x.dtype)
    if exclusive:
        first = np.full_like(np.take(x, [0], axis), IDENTITY[name])
        y = np.concatenate([first, np.take(y, range(x.shape[axis] - 1), axis)], axis)
    return np.flip(y, axis) if reverse else y


def positions(name: str, x: Any, axis: int, reverse: bool = False) -> Any:
    """The position of the last extreme so far; NaN is one."""
    line, y = (np.moveaxis(a, axis, -1) for a in (exact(x), accumulate(name, x, axis, reverse=reverse)))
    made = np.zeros(line.shape, np.int64)
    for at in np.ndindex(line.shape[:-1]):
        last = 0
        for i in reversed(range(line.shape[-1])) if reverse else range(line.shape[-1]):
            here = (*at, i)
            if line[here] == y[here] or np.isnan(line[here]):
                last = i
            made[here] = last
    return np.moveaxis(made, -1, axis)


SHAPES = [((5,), 0), ((1,), 0), ((3, 1), 1), ((2, 3, 37), -1), ((2, 37, 5), 1), ((33, 2), 0)]
SHAPES += [((3, 40, 34), 1)]


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_sums(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    x = random(shape, dtype)
    want = accumulate("cumsum", x, axis)
    check(lambda g, x: g.cumsum(x, axis=axis), {"x": x}, want, layouts=LAYOUTS, magnitude=2.0 * x.shape[axis])


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((3, 45), 1), ((45, 34), 0)])
def test_directions(name: str, exclusive: bool, reverse: bool, shape: tuple[int, ...], axis: int) -> None:
    x = random(shape, "f32", -1.2, 1.2)
    want = accumulate(name, x, axis, exclusive, reverse)
    how = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
    check(lambda g, x: getattr(g, name)(x, **how), {"x": x}, want, magnitude=60.0)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((2, 77), 1), ((77, 35), 0), ((2, 9, 3), 1)])
def test_extremes_with_ties(name: str, reverse: bool, shape: tuple[int, ...], axis: int) -> None:
    x = random(shape, "f32", -3, 3).round()  # few different values
    want = [accumulate(name, x, axis, reverse=reverse), positions(name, x, axis, reverse)]
    check(lambda g, x: getattr(g, name)(x, axis=axis, reverse=reverse), {"x": x}, want)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_extremes_of_nan_and_infinity(name: str) -> None:
    x = np.float32([[np.inf, 1, np.nan, 2, np.nan, -np.inf], [-np.inf, -np.inf, 0, -0.0, np.inf, 1]])
    want = [accumulate(name, x, 1), positions(name, x, 1)]
    check(lambda g, x: getattr(g, name)(x), {"x": x}, want)


def test_sums_and_products_of_nan() -> None:
    x = np.float32([[1, np.nan, 2], [np.inf, 1, -np.inf], [0, np.inf, 1]])
    with np.errstate(invalid="ignore"):
        for name in ("cumsum", "cumprod"):
            want = accumulate(name, x, 1)
            check(lambda g, x, name=name: getattr(g, name)(x), {"x": x}, want)


@pytest.mark.parametrize("dtype", ["i8", "u8", "i32", "i64", "bool"])
def test_integers_are_exact(dtype: str) -> None:
    x = random((3, 70), dtype, -9, 9)
    for name in ("cumsum", "cumprod"):
        found = check(
            lambda g, x, name=name: getattr(g, name)(x), {"x": x}, accumulate(name, x, 1, wide=True)
        )
        assert all(y.dtype == np.int64 for (y,) in found.values())
    if dtype != "bool":
        want = [accumulate("cummax", x, 1, wide=True), positions("cummax", x, 1)]
        found = check(lambda g, x: g.cummax(x), {"x": x}, want)
        assert all(y.dtype == x.dtype for y, _ in found.values())


def test_large_integers() -> None:
    x = np.int64([[2**62, 2**62, -5, 2**53 + 1]])
    check(lambda g, x: g.cumsum(x), {"x": x}, accumulate("cumsum", x, 1, wide=True))
    check(lambda g, x: g.cummax(x)[0], {"x": x}, accumulate("cummax", x, 1, wide=True))


@pytest.mark.parametrize(
    ("shape", "axis", "reverse"),
    [
        ((2, 2100), 1, False),
        ((2, 2101), 1, True),
        ((1, 20000), 1, False),
        ((1, 20001), 1, True),
        ((700, 33), 0, False),
    ],
    ids=str,
)
def test_lines_of_several_tiles_and_parts(shape: tuple[int, ...], axis: int, reverse: bool) -> None:
    x = random(shape, "f32", -1, 1)
    want = accumulate("cumsum", x, axis, reverse=reverse)
    check(lambda g, x: g.cumsum(x, axis=axis, reverse=reverse), {"x": x}, want, magnitude=2.0 * shape[axis])
    x = x.round(1)
    want = [accumulate("cummax", x, axis, reverse=reverse), positions("cummax", x, axis, reverse)]
    check(lambda g, x: g.cummax(x, axis=axis, reverse=reverse), {"x": x}, want)


@pytest.mark.parametrize(("shape", "axis"), [((0, 3), 1), ((3, 0), 1), ((3, 0), 0)])
def test_nothing(shape: tuple[int, ...], axis: int) -> None:
    x = np.zeros(shape, "f4")
    check(lambda g, x: g.cumsum(x, axis=axis), {"x": x}, exact(x))


@pytest.mark.parametrize("zeros", [(), (3,), (0,), (2, 5), (6,)], ids=str)
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradient_of_a_product(zeros: tuple[int, ...], exclusive: bool, reverse: bool) -> None:
    """Against the definition, in which y is linear in each element."""
    x, dy = random((2, 7), "f32", 0.5, 2), random((2, 7), "f32", seed=1)
    x[0, list(zeros)] = 0
    how = {"exclusive": exclusive, "reverse": reverse}
    want = np.zeros(x.shape)
    for i in range(7):
        high, low = exact(x), exact(x)
        high[:, i], low[:, i] = 1, 0
        slope = accumulate("cumprod", high, 1, **how) - accumulate("cumprod", low, 1, **how)
        want[:, i] = (exact(dy) * slope).sum(1)
    check(
        lambda g, dy, x: g.cumprod_backward(dy, x, **how), {"dy": dy, "x": x}, want, ulps=32, magnitude=2.0**8
    )


def test_a_single_result_and_narrow_positions() -> None:
    x = random((3, 40), "f32")
    check(lambda g, x: g.cummax(x)[1], {"x": x}, positions("cummax", x, 1), out="i32")


def test_a_scan_next_to_other_operations() -> None:
    x = random((3, 40), "f32", 0, 1)
    want = np.maximum(accumulate("cumsum", 2 * exact(x), 1), 3)
    check(lambda g, x: g.max(g.cumsum(g.mul(x, 2.0)), np.float32(3)), {"x": x}, want, magnitude=80.0)


def test_refusals() -> None:
    x = {"x": ((2, 3), "f32")}
    refuses(lambda g, x: g.cumsum(x, axis=2), x, "axis is 2, x has 2 dims [2,3]. Use a value in -2..1.")
