# SPDX-License-Identifier: Apache-2.0
"""Pooling and interpolation, forward and backward, against windows of padded arrays and weight matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import checks
import numpy as np
import pytest
import weft

Array = np.ndarray[Any, Any]
INF = np.inf
AVERAGES = ("AVGPOOL_INCLUDE_PADDING", "AVGPOOL_EXCLUDE_PADDING")


class Pool(NamedTuple):
    """One geometry of pooling."""

    name: str
    x: tuple[int, ...]
    window: list[int]
    stride: list[int]
    pre: list[int]
    post: list[int]
    dilation: tuple[int, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        return {
            "window": self.window,
            "stride": self.stride,
            "pre_padding": self.pre,
            "post_padding": self.post,
            "dilation": self.dilation,
        }

    @property
    def gaps(self) -> tuple[int, ...]:
        """The dilation along each dimension, also where it is not given."""
        return self.dilation or (1,) * len(self.window)

    @property
    def spans(self) -> list[int]:
        """From the first to the last element of a window."""
        return [(w - 1) * d + 1 for w, d in zip(self.window, self.gaps, strict=True)]


POOLS = [
    Pool("1-D", (2, 3, 9), [3], [2], [1], [1]),
    Pool("2x2", (2, 3, 6, 8), [2, 2], [2, 2], [0, 0], [0, 0]),
    Pool("overlapping", (2, 3, 7, 6), [3, 2], [1, 1], [1, 1], [1, 0]),
    Pool("asymmetric padding", (1, 2, 6, 5), [3, 4], [2, 3], [0, 2], [2, 1]),
    Pool("3-D", (2, 2, 4, 5, 3), [2, 3, 2], [2, 1, 1], [1, 0, 1], [0, 1, 1]),
    Pool("gaps between windows", (1, 3, 9, 7), [1, 2], [3, 4], [0, 0], [0, 0]),
    Pool("global", (3, 4, 5, 3), [5, 3], [1, 1], [0, 0], [0, 0]),
    Pool("windows of padding alone", (1, 2, 3, 4), [2, 2], [2, 2], [4, 0], [3, 3]),
    Pool("cropping", (1, 2, 9, 8), [2, 3], [2, 1], [-1, 1], [-2, -2]),
    Pool("channels side by side", (2, 16, 9, 7), [3, 3], [2, 2], [1, 1], [1, 1]),
    Pool("channels side by side, many positions", (2, 40, 19, 37), [3, 3], [1, 1], [1, 1], [1, 1]),
    Pool("channels side by side, steps of one", (1, 8, 6, 7), [3, 2], [1, 1], [1, 1], [1, 0]),
    Pool("dilated 1-D", (2, 3, 11), [3], [2], [2], [1], (2,)),
    Pool("dilated", (2, 3, 9, 13), [3, 2], [1, 1], [2, 1], [1, 3], (2, 3)),
    Pool("dilated 3-D", (1, 2, 5, 7, 6), [2, 1, 3], [1, 2, 2], [1, 0, 2], [2, 0, 1], (3, 9, 2)),
    Pool("dilated, channels side by side", (2, 16, 9, 11), [3, 3], [2, 1], [2, 2], [2, 2], (2, 2)),
    Pool("dilated, the image between two elements", (1, 8, 2, 5), [2, 3], [1, 2], [3, 4], [3, 5], (3, 4)),
]


# ---- The oracle of pooling ---------------------------------------------------------------------------------


def padded(case: Pool, x: Array, fill: float | str) -> Array:
    """Returns x with padding of one value or of its edge, as windows see it; negative paddings crop."""
    ranges = zip(case.x[2:], case.pre, case.post, strict=True)
    kept = x[(..., *(slice(max(-p, 0), n - max(-q, 0)) for n, p, q in ranges))]
    pads = [(0, 0), (0, 0)] + [(max(p, 0), max(q, 0)) for p, q in zip(case.pre, case.post, strict=True)]
    return np.pad(kept, pads, "edge") if fill == "edge" else np.pad(kept, pads, constant_values=fill)


def windows(case: Pool, x: Array, fill: float | str) -> Array:
    """[N, C, y.., positions]: each window's elements, row-major."""
    axes = tuple(range(2, len(case.x)))
    all_windows = np.lib.stride_tricks.sliding_window_view(padded(case, x, fill), case.spans, axes)
    taken = all_windows[(..., *(slice(None, None, s) for s in (*case.stride, *case.gaps)))]
    return taken.reshape(*taken.shape[: len(case.x)], -1)


FILLS: dict[str | None, float | str] = {
    None: -INF,
    "NEG_INF_PAD": -INF,
    "ZERO_PAD": 0.0,
    "EDGE_VAL_PAD": "edge",
}


def max_pool(case: Pool, x: Array, padding_mode: str | None = None) -> tuple[Array, Array]:
    """The maxima, and the positions of the first ones, or of the last NaNs; a -inf of x comes before one of
    the padding."""
    wide = checks.exact(x)
    seen = windows(case, wide, FILLS[padding_mode])
    first = np.argmax(seen, -1)
    if FILLS[padding_mode] == -INF:
        real = windows(case, np.ones(case.x), 0.0) == 1
        best = np.max(seen, -1, keepdims=True)
        is_best = real & ((seen == best) | (np.isnan(seen) & np.isnan(best)))
        first = np.where(is_best.any(-1), np.argmax(is_best, -1), 0)
    last_nan = seen.shape[-1] - 1 - np.argmax(np.isnan(seen)[..., ::-1], -1)
    return np.max(seen, -1), np.where(np.isnan(seen).any(-1), last_nan, first)


def average_pool(case: Pool, x: Array, mode: str, padding_mode: str | None = None) -> Array:
    if mode == "AVGPOOL_INCLUDE_PADDING":
        return windows(case, checks.exact(x), "edge" if padding_mode == "EDGE_VAL_PAD" else 0.0).mean(-1)
    counts = windows(case, np.ones(case.x), 0.0).sum(-1)
    return windows(case, checks.exact(x), 0.0).sum(-1) / np.maximum(counts, 1)


def places(case: Pool, clamps: bool) -> tuple[Array, Array]:
    """[y.., positions]: the flat spatial index in x of what windows see, and whether it is in x."""
    extents = case.x[2:]
    flat, inside = np.zeros([1], int), np.ones([1], bool)
    grids = []
    ranges = zip(extents, case.window, case.spans, case.gaps, case.stride, case.pre, case.post, strict=True)
    for n, w, span, d, s, p, q in ranges:
        count = (n + p + q - span) // s + 1
        grids.append(np.arange(count)[:, None] * s - p + np.arange(w)[None, :] * d)
    k = len(grids)
    for i, grid in enumerate(grids):
        shape = [1] * (2 * k)
        shape[i], shape[k + i] = grid.shape
        at = np.clip(grid, 0, extents[i] - 1) if clamps else grid
        inside = inside & ((at >= 0) & (at < extents[i])).reshape(shape)
        flat = flat * extents[i] + at.reshape(shape)
    y = [grid.shape[0] for grid in grids]
    return flat.reshape(*y, -1), np.broadcast_to(inside, flat.shape).reshape(*y, -1)


def handed_back(case: Pool, weights: Array, dy: Array, clamps: bool) -> Array:
    """The gradient of x, when y sums what each window sees by weights [N, C, y.., positions]."""
    flat, inside = places(case, clamps)
    dx = np.zeros((*case.x[:2], math.prod(case.x[2:])))
    shares = weights * checks.exact(dy)[..., None] * inside
    for at in np.ndindex(*case.x[:2]):
        np.add.at(dx[at], np.where(inside, flat, 0).ravel(), shares[at].ravel())
    return dx.reshape(case.x)


def max_pool_backward(case: Pool, index: Array, dy: Array, padding_mode: str | None = None) -> Array:
    weights = np.arange(math.prod(case.window)) == index[..., None]
    return handed_back(case, weights, dy, padding_mode == "EDGE_VAL_PAD")


def average_pool_backward(case: Pool, dy: Array, mode: str, padding_mode: str | None = None) -> Array:
    count = windows(case, np.ones(case.x), 0.0 if mode == "AVGPOOL_EXCLUDE_PADDING" else 1.0).sum(
        -1, keepdims=True
    )
    return handed_back(case, 1 / np.maximum(count, 1), dy, padding_mode == "EDGE_VAL_PAD")


# ---- The oracle of interpolation: a matrix of weights along each dimension ---------------------------------


def matrix(x: int, y: int, stride: Fraction, pre: Fraction, mode: str, padding_mode: str | None) -> Array:
    """[y, x]: the weights of x's elements in y's."""
    weights = np.zeros((y, x))
    for o in range(y):
        at = o * stride - pre
        first = math.floor(at)
        taps = (
            {first: 1.0}
            if mode == "NEAREST"
            else {first: float(1 - at + first), first + 1: float(at - first)}
        )
        for i, weight in taps.items():
            place = min(max(i, 0), x - 1) if padding_mode in (None, "EDGE_VAL_PAD") else i
            if 0 <= place < x:
                weights[o, place] += weight
    return weights


class Resize(NamedTuple):
    """One geometry of interpolation."""

    name: str
    x: tuple[int, ...]
    y: tuple[int, ...]
    stride: list[Fraction]
    pre: list[Fraction]

    def apply(
        self, array: Array, mode: str, padding_mode: str | None = None, backward: bool = False
    ) -> Array:
        """y from x, or dx from dy."""
        result = checks.exact(array)
        for i, (stride, pre) in enumerate(zip(self.stride, self.pre, strict=True)):
            weights = matrix(self.x[2 + i], self.y[2 + i], stride, pre, mode, padding_mode)
            weights = weights.T if backward else weights
            result = np.moveaxis(np.tensordot(weights, result, (1, 2 + i)), 0, 2 + i)
        return result


def half_pixel(name: str, x: tuple[int, ...], y: tuple[int, ...]) -> Resize:
    """align_corners=False."""
    strides = [Fraction(a, b) for a, b in zip(x[2:], y[2:], strict=True)]
    return Resize(name, x, y, strides, [(1 - stride) / 2 for stride in strides])


RESIZES = [
    half_pixel("doubled", (2, 3, 4, 5), (2, 3, 8, 10)),
    half_pixel("3-D by odd factors", (1, 2, 3, 4, 5), (1, 2, 7, 3, 6)),
    half_pixel("halved 1-D", (2, 2, 10), (2, 2, 5)),
    Resize(
        "aligned corners", (1, 3, 4, 6), (1, 3, 10, 11), [Fraction(1, 3), Fraction(1, 2)], [Fraction(0)] * 2
    ),
    Resize(
        "far outside",
        (1, 2, 5, 4),
        (1, 2, 9, 9),
        [Fraction(3, 2), Fraction(1)],
        [Fraction(7, 3), Fraction(2)],
    ),
]


# ---- Building ----------------------------------------------------------------------------------------------


def pool(g: Any, x: Any, case: Pool, mode: str, padding_mode: str | None, index: bool = False) -> Any:
    made = g.resample(x, mode=mode, padding_mode=padding_mode, generate_index=index, **case.options)
    return made if index else made[0]


def resample(g: Any, x: Any, **options: Any) -> Any:
    return g.resample(x, name="r", **options)[0]


def scaled(g: Any, x: Any, alpha: float, beta: float, **options: Any) -> Any:
    values = {"x": x, "alpha": alpha, "beta": beta, **options}
    return checks.record(g, "resample", values, ("y",), "r")[0]


def whole_numbers(case: Pool, dtype: str = "f32", low: int = -9, high: int = 3) -> Array:
    """Values with many ties, most of them negative, so that padding shows."""
    values = np.random.default_rng(len(case.name)).integers(low, high, case.x)
    return checks.narrow(values, dtype)


def y_shape(case: Pool) -> tuple[int, ...]:
    return windows(case, np.zeros(case.x), 0.0).shape[:-1]


# ---- Pooling -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding_mode", [None, "NEG_INF_PAD", "ZERO_PAD", "EDGE_VAL_PAD"])
@pytest.mark.parametrize("case", POOLS, ids=lambda case: case.name)
def test_max_pooling(case: Pool, padding_mode: str | None) -> None:
    x = whole_numbers(case)
    y, index = max_pool(case, x, padding_mode)
    checks.check(
        lambda g, x: pool(g, x, case, "MAXPOOL", padding_mode, index=True),
        {"x": x},
        [y, index],
        layouts=checks.LAYOUTS,
    )
    dy = checks.random(y.shape, seed=1)
    options = {"mode": "MAXPOOL", "padding_mode": padding_mode, **case.options}
    want = max_pool_backward(case, index, dy, padding_mode)
    checks.check(
        lambda g, dy, index: g.resample_backward(dy, index, **options).set_dim(case.x),
        {"dy": dy, "index": index.astype(np.int8)},
        want,
        layouts=checks.LAYOUTS,
        magnitude=8,
    )
    checks.check(
        lambda g, dy, x, y: g.resample_backward(dy, input=x, output=y, **options),
        {"dy": dy, "x": x, "y": checks.narrow(y, "f32")},
        want,
        layouts=checks.LAYOUTS,
        magnitude=8,
    )


@pytest.mark.parametrize("padding_mode", [None, "EDGE_VAL_PAD"])
@pytest.mark.parametrize("mode", AVERAGES)
@pytest.mark.parametrize("case", POOLS, ids=lambda case: case.name)
def test_average_pooling(case: Pool, mode: str, padding_mode: str | None) -> None:
    x = checks.random(case.x)
    y = average_pool(case, x, mode, padding_mode)
    checks.check(
        lambda g, x: pool(g, x, case, mode, padding_mode), {"x": x}, y, layouts=checks.LAYOUTS, magnitude=2
    )
    dy = checks.random(y.shape, seed=1)
    kept = padding_mode if mode == "AVGPOOL_INCLUDE_PADDING" else None
    checks.check(
        lambda g, dy: g.resample_backward(dy, mode=mode, padding_mode=padding_mode, **case.options).set_dim(
            case.x
        ),
        {"dy": dy},
        average_pool_backward(case, dy, mode, kept),
        layouts=checks.LAYOUTS,
        magnitude=20,
    )


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "e4m3", "i8", "i32"])
def test_data_types_of_pooling(dtype: str) -> None:
    case = POOLS[2]
    x = whole_numbers(case, dtype)
    y, index = max_pool(case, x)
    math_type = {"graph": {"compute_data_type": "f64"}} if dtype == "f64" else {}
    checks.check(
        lambda g, x: pool(g, x, case, "MAXPOOL", None, index=True), {"x": x}, [y, index], **math_type
    )
    mean = average_pool(case, x, "AVGPOOL_INCLUDE_PADDING")
    checks.check(
        lambda g, x: pool(g, x, case, "AVGPOOL_INCLUDE_PADDING", None),
        {"x": x},
        mean,
        magnitude=9,
        **math_type,
    )


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
@pytest.mark.parametrize(
    "case",
    [
        Pool("bands of an image", (1, 2, 301, 133), [3, 3], [2, 2], [1, 1], [1, 1]),
        Pool("dense bands", (2, 1, 147, 250), [3, 2], [1, 1], [1, 0], [1, 1]),
        Pool("bands with rows left over", (1, 1, 190, 161), [2, 3], [3, 1], [0, 1], [0, 1]),
        Pool("bands of even rows", (1, 2, 204, 72), [3, 3], [2, 1], [1, 1], [1, 1]),
        Pool("images of even rows", (3, 40, 10, 12), [3, 2], [1, 1], [1, 0], [1, 1]),
        Pool("many small images", (3, 1100, 7, 5), [3, 3], [2, 1], [1, 1], [1, 1]),
        Pool("whole images", (3, 48, 7, 7), [7, 7], [7, 7], [0, 0], [0, 0]),
    ],
    ids=lambda case: case.name,
)
def test_images_as_planes(case: Pool, dtype: str) -> None:
    x = whole_numbers(case, dtype)
    checks.check(
        lambda g, x: pool(g, x, case, "MAXPOOL", None, index=True), {"x": x}, list(max_pool(case, x))
    )
    mean = average_pool(case, x, "AVGPOOL_EXCLUDE_PADDING")
    checks.check(lambda g, x: pool(g, x, case, "AVGPOOL_EXCLUDE_PADDING", None), {"x": x}, mean, magnitude=9)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "case",
    [
        Pool("channels of odd number", (2, 37, 8, 24), [3, 3], [2, 2], [1, 1], [1, 1]),
        Pool("dense, channels of odd number", (1, 41, 8, 17), [3, 2], [1, 1], [1, 0], [1, 1]),
        Pool("many channels, large windows", (2, 512, 7, 7), [7, 7], [7, 7], [0, 0], [0, 0]),
        Pool("planes", (2, 3, 39, 45), [3, 3], [2, 2], [1, 1], [1, 1]),
        Pool("dense planes", (2, 3, 39, 45), [3, 2], [1, 1], [1, 1], [1, 1]),
        Pool("dense, many channels", (2, 64, 13, 17), [3, 3], [1, 1], [1, 1], [1, 1]),
        Pool("planes of even rows", (2, 4, 40, 56), [3, 3], [2, 2], [1, 1], [1, 1]),
        Pool("dense planes of even rows", (2, 4, 90, 28), [3, 3], [1, 1], [1, 1], [1, 1]),
    ],
    ids=lambda case: case.name,
)
def test_images_of_many_elements(case: Pool, dtype: str) -> None:
    x = whole_numbers(case, dtype)
    y, index = max_pool(case, x)
    checks.check(lambda g, x: pool(g, x, case, "MAXPOOL", None), {"x": x}, y, layouts=checks.LAYOUTS)
    dy = checks.random(y.shape, dtype, seed=1)
    checks.check(
        lambda g, dy, index: g.resample_backward(dy, index, mode="MAXPOOL", **case.options).set_dim(case.x),
        {"dy": dy, "index": index.astype(np.int8)},
        max_pool_backward(case, index, dy),
        layouts=checks.LAYOUTS,
        magnitude=8,
    )
    for mode in AVERAGES:
        checks.check(
            lambda g, x, mode=mode: pool(g, x, case, mode, None),
            {"x": x},
            average_pool(case, x, mode),
            layouts=checks.LAYOUTS,
            magnitude=9,
        )
        checks.check(
            lambda g, dy, mode=mode: g.resample_backward(dy, mode=mode, **case.options).set_dim(case.x),
            {"dy": dy},
            average_pool_backward(case, dy, mode),
            layouts=checks.LAYOUTS,
            magnitude=20,
        )


def test_lowest_integer_where_nothing_is_seen() -> None:
    case = POOLS[7]
    x = whole_numbers(case, "i8")
    y = np.maximum(max_pool(case, x)[0], -128)
    checks.check(lambda g, x: pool(g, x, case, "MAXPOOL", None), {"x": x}, y)


def test_a_minus_infinity_is_preferred_to_padding() -> None:
    case = POOLS[0]
    x = np.full(case.x, -INF, np.float32)
    y, index = max_pool(case, x)
    assert index[0, 0, 0] == 1
    checks.check(lambda g, x: pool(g, x, case, "MAXPOOL", None, index=True), {"x": x}, [y, index])


def test_nan_propagates_by_default() -> None:
    x = np.float32([[[1, np.nan, 3, np.nan, np.nan, 0, -1, -2]]])
    for propagates, y, index in (
        ("PROPAGATE_NAN", [np.nan, np.nan, np.nan, 0, np.nan], [1, 1, 0, 0, 1]),
        ("NOT_PROPAGATE_NAN", [1, 3, 0, 0, np.nan], [0, 0, 1, 0, 0]),
    ):
        values = {"mode": "MAXPOOL", "window": [2], "stride": [2], "nan_propagation": propagates}
        checks.check(
            lambda g, x, values=values: checks.record(g, "resample", {"x": x, **values}, ("y", "index")),
            {"x": np.concatenate([x[..., :4], x[..., 4:6], x[..., 5:7], x[..., 3:5]], -1)},
            [np.array([[y]]), np.array([[index]])],
        )


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("case", POOLS[-3:], ids=lambda case: case.name)
def test_the_first_of_equal_maxima_is_chosen(case: Pool, dtype: str) -> None:
    """Zeros of both signs and infinities, of which the first counts, and NaNs, of which the last does."""
    values = np.array([np.nan, -0.0, 0.0, INF, -INF, -1, -1, -2])
    chance = np.array([1, 20, 20, 2, 10, 20, 20, 20]) / 113
    x = checks.narrow(np.random.default_rng(5).choice(values, case.x, p=chance), dtype)
    checks.check(
        lambda g, x: pool(g, x, case, "MAXPOOL", None, index=True),
        {"x": x},
        list(max_pool(case, x)),
        layouts=checks.LAYOUTS,
    )


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("padding_mode", ["NEG_INF_PAD", "ZERO_PAD"])
@pytest.mark.parametrize("case", POOLS[-3:], ids=lambda case: case.name)
def test_maxima_without_indices(case: Pool, padding_mode: str, dtype: str) -> None:
    """NaNs and infinities among them."""
    x = checks.random(case.x, dtype, -8, 8)
    x[..., ::5, ::4], x[..., 1::6, 3] = np.nan, -INF
    checks.check(
        lambda g, x: pool(g, x, case, "MAXPOOL", padding_mode),
        {"x": x},
        max_pool(case, x, padding_mode)[0],
        layouts=checks.LAYOUTS,
    )


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("case", POOLS[-3:], ids=lambda case: case.name)
def test_gradients_of_maxima_by_type(case: Pool, dtype: str) -> None:
    """Positions that no window covers get no gradient."""
    x = checks.random(case.x)
    y, index = max_pool(case, x)
    index[..., ::3, 1] = 63
    index[..., 1::3, 0] = -2
    index[..., 2::3, 1] = 64
    index[..., 1::3, 1] = -64
    dy = checks.random(y.shape, dtype, seed=1)
    options = {"mode": "MAXPOOL", **case.options}
    for stored in np.int8, np.int32:
        checks.check(
            lambda g, dy, index: g.resample_backward(dy, index, **options).set_dim(case.x),
            {"dy": dy, "index": index.astype(stored)},
            max_pool_backward(case, index, dy),
            layouts=checks.LAYOUTS,
            magnitude=8,
        )


@pytest.mark.parametrize("case", POOLS[-3:], ids=lambda case: case.name)
def test_one_gradient_for_all_elements(case: Pool) -> None:
    """Like the gradient of a sum: dy is one element, broadcast everywhere."""
    x = checks.random(case.x)
    y, index = max_pool(case, x)
    g = weft.Graph(io_data_type="f32", handle=checks.handle())
    dy, seen = g.tensor(y.shape, stride=[0] * y.ndim), g.tensor(case.x)
    dx = g.resample_backward(dy, input=seen, mode="MAXPOOL", **case.options).set_dim(case.x).set_output(True)
    g.build()
    found = np.full(case.x, np.nan, np.float32)
    checks.execute(g, {dy: np.full(1, 1.5, np.float32), seen: x, dx: found})
    np.testing.assert_allclose(found, max_pool_backward(case, index, np.full(y.shape, 1.5)), rtol=1e-6)


def test_type_of_the_index() -> None:
    for window, want in (([8, 16], "INT8"), ([8, 17], "INT32")):
        g = weft.Graph(handle=checks.handle())
        x = g.tensor((1, 1, 8, 40), data_type="f16")
        case = Pool("", (1, 1, 8, 40), window, [1, 1], [0, 0], [0, 0])
        y, index = pool(g, x, case, "MAXPOOL", None, index=True)
        g.validate()
        assert index.dtype is not None
        assert (index.dims, index.dtype.name) == (y.dims, want)


# ---- Interpolation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding_mode", [None, "ZERO_PAD", "EDGE_VAL_PAD"])
@pytest.mark.parametrize("mode", ["NEAREST", "BILINEAR"])
@pytest.mark.parametrize("case", RESIZES, ids=lambda case: case.name)
def test_interpolation(case: Resize, mode: str, padding_mode: str | None) -> None:
    x, dy = checks.random(case.x), checks.random(case.y, seed=1)
    options = {"mode": mode, "padding_mode": padding_mode, "stride": case.stride, "pre_padding": case.pre}
    checks.check(
        lambda g, x: resample(g, x, **options).set_dim(case.y),
        {"x": x},
        case.apply(x, mode, padding_mode),
        layouts=checks.LAYOUTS,
        magnitude=2,
    )
    checks.check(
        lambda g, dy: g.resample_backward(dy, **options).set_dim(case.x),
        {"dy": dy},
        case.apply(dy, mode, padding_mode, backward=True),
        layouts=checks.LAYOUTS,
        magnitude=100,
    )


def test_results_larger_than_caches() -> None:
    """8 MiB and more, channels last: whole rows of them are stored past the caches."""
    x = np.arange(2 * 290 * 128 * 16, dtype=np.float32).reshape(2, 290, 128, 16)
    g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
    dims = [2, 16, 290, 128]
    made = g.tensor(dims, checks.strides_of(dims, "channels_last"), name="x")
    y = resample(g, made, mode="NEAREST", stride=[Fraction(1, 2)] * 2, pre_padding=[0, 0])
    y.set_dim([2, 16, 580, 256]).set_output(True)
    g.build()
    found = np.moveaxis(np.asarray(g.plan(x=np.moveaxis(x, 3, 1))), 1, 3)
    assert (found == x.repeat(2, 1).repeat(2, 2)).all()


def test_nearest_with_the_lowest_value_outside() -> None:
    x = np.float32([[[1, 2, 3]]])
    options = {"mode": "NEAREST", "padding_mode": "NEG_INF_PAD", "stride": [1], "pre_padding": [1]}
    checks.check(lambda g, x: resample(g, x, **options), {"x": x}, np.array([[[-INF, 1, 2, 3, -INF]]]))


def test_unset_strides_follow_from_the_extents() -> None:
    x, dy = checks.random((2, 3, 5, 4)), checks.random((2, 3, 7, 12), seed=1)
    case = Resize("", x.shape, dy.shape, [Fraction(5, 7), Fraction(1, 3)], [Fraction(0)] * 2)
    for mode in ("NEAREST", "BILINEAR"):
        checks.check(
            lambda g, x, mode=mode: resample(g, x, mode=mode).set_dim(dy.shape), {"x": x}, case.apply(x, mode)
        )
        checks.check(
            lambda g, dy, x, mode=mode: g.resample_backward(dy, input=x, mode=mode),
            {"dy": dy, "x": x},
            case.apply(dy, mode, backward=True),
            magnitude=20,
        )


def test_a_weight_of_zero_reads_nothing() -> None:
    """An infinity next to an exact hit does not become NaN."""
    x = np.float32([[[1, INF, 2]]])
    checks.check(lambda g, x: resample(g, x, mode="BILINEAR", stride=[1]), {"x": x}, checks.exact(x))


def test_data_types_of_interpolation() -> None:
    case = RESIZES[1]
    for dtype in ("f64", "f16", "bf16", "e5m2"):
        x = checks.random(case.x, dtype)
        options = {"mode": "BILINEAR", "stride": case.stride, "pre_padding": case.pre}
        checks.check(
            lambda g, x, options=options: resample(g, x, **options).set_dim(case.y),
            {"x": x},
            case.apply(x, "BILINEAR"),
            magnitude=2,
            graph={"compute_data_type": "f64"} if dtype == "f64" else None,
        )


# ---- All modes ---------------------------------------------------------------------------------------------


MODES = ["MAXPOOL", *AVERAGES, "NEAREST", "BILINEAR"]


def settings(mode: str) -> dict[str, Any]:
    if mode in ("NEAREST", "BILINEAR"):
        return {"mode": mode, "stride": [Fraction(2, 3), Fraction(3, 4)], "pre_padding": [Fraction(1, 5), 1]}
    return {"mode": mode, "window": [2, 3], "stride": [2, 1], "pre_padding": [1, 2], "post_padding": [0, 1]}


def run(build: Any, *inputs: Array, out: Array | None = None) -> Array:
    """The result on the default engine, written over `out` where that is given."""
    g = weft.Graph(handle=checks.handle(), compute_data_type="f64")
    tensors = [g.tensor_like(array, is_pass_by_value=False) for array in inputs]
    result = build(g, *tensors)
    g.build()
    memory = np.zeros(result.dims) if out is None else out.copy()
    checks.execute(g, {**dict(zip(tensors, inputs, strict=True)), result: memory})
    return memory


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_those_of_the_forward_operation(mode: str) -> None:
    x = checks.random((1, 2, 4, 5), "f64")

    def forward(x: Array) -> Array:
        return run(lambda g, x: resample(g, x, **settings(mode)), x)

    dy = checks.random(forward(x).shape, "f64", seed=1)
    given = {"input": x} if mode == "MAXPOOL" else {}
    dx = run(
        lambda g, dy, x: g.resample_backward(dy, **dict.fromkeys(given, x), **settings(mode)).set_dim(x.dims),
        dy,
        x,
    )
    np.testing.assert_allclose(dx, checks.numeric_gradient(forward, [x], 0, dy), atol=1e-8)


@pytest.mark.parametrize("mode", MODES)
def test_alpha_and_beta(mode: str) -> None:
    """A beta of 0 does not read the output, so that NaN there does no harm."""
    x = checks.random((1, 2, 4, 5), "f64")
    y = run(lambda g, x: resample(g, x, **settings(mode)), x)
    dy = checks.random(y.shape, "f64", seed=1)

    def forward(alpha: float, beta: float) -> Any:
        return lambda g, x: scaled(g, x, alpha, beta, **settings(mode))

    def backward(alpha: float, beta: float) -> Any:
        def build(g: Any, dy: Any, x: Any) -> Any:
            maximum = {"x": x} if mode == "MAXPOOL" else {}
            values = {"dy": dy, "alpha": alpha, "beta": beta, **maximum, **settings(mode)}
            return checks.record(g, "resample_backward", values, ("dx",))[0].set_dim(x.dims)

        return build

    dx = run(backward(1, 0), dy, x)
    for build, inputs, want in ((forward, (x,), y), (backward, (dy, x), dx)):
        whole = np.arange(want.size).reshape(want.shape) % 7 - 3.0
        multiple = run(build(2.5, 0.0), *inputs, out=np.full(want.shape, np.nan))
        np.testing.assert_allclose(multiple, 2.5 * want, atol=1e-12)
        added = run(build(-0.5, 1.5), *inputs, out=whole)
        np.testing.assert_allclose(added, -0.5 * want + 1.5 * whole, atol=1e-12)


@pytest.mark.parametrize("dtype", ["i4", "i8", "f16", "e2m1"])
@pytest.mark.parametrize("beta", [0.0, 1.0, -2.0])
def test_beta_of_results_of_any_type(dtype: str, beta: float) -> None:
    """Results that a kernel cannot address are copied to memory that it can, including the old result."""
    x = checks.narrow(np.arange(24).reshape(1, 2, 3, 4) % 5 - 2, "f32")
    old = checks.narrow(np.arange(24).reshape(1, 2, 3, 4) % 3 - 1, dtype)
    g = weft.Graph(handle=checks.handle(), compute_data_type="f32")
    given = g.tensor(x.shape, data_type="f32")
    window = {"window": [1, 1], "stride": [1, 1], "pre_padding": [0, 0], "post_padding": [0, 0]}
    y = scaled(g, given, 2.0, beta, mode=weft.resample_mode.AVGPOOL_EXCLUDE_PADDING, **window)
    y.set_output(True).set_data_type(dtype).set_dim(x.shape)
    g.build()
    packed = checks.strides_of(x.shape, "packed")
    memory = {
        given: checks.Memory(x.shape, packed, given.dtype).write(x),
        y: checks.Memory(x.shape, packed, y.dtype).write(old),
    }
    checks.run_plan(g, memory)
    want = checks.narrow(2 * x + beta * checks.exact(old), dtype)
    np.testing.assert_array_equal(checks.exact(memory[y].read()), checks.exact(want))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dims", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5)], ids=str)
def test_empty_extents(mode: str, dims: tuple[int, ...]) -> None:
    options = {**settings(mode), "pre_padding": [0, 0], "post_padding": [0, 0]}
    x = np.ones(dims, np.float32)
    y_rows = {"NEAREST": 5, "BILINEAR": 5}.get(mode, 2) if dims[2] else 0
    columns = {"NEAREST": 6, "BILINEAR": 6}.get(mode, 3)
    checks.check(lambda g, x: resample(g, x, **options), {"x": x}, np.zeros((*dims[:2], y_rows, columns)))


@pytest.mark.parametrize("mode", MODES)
def test_no_gradient_of_no_result(mode: str) -> None:
    options = {**settings(mode), "pre_padding": [0, 0], "post_padding": [0, 0]}
    x = np.ones((2, 3, 0, 5), np.float32)
    dy = np.ones((2, 3, 0, 3 if mode not in ("NEAREST", "BILINEAR") else 6), np.float32)
    given = {"input": x} if mode == "MAXPOOL" else {}
    checks.check(
        lambda g, dy, x: g.resample_backward(dy, **dict.fromkeys(given, x), **options).set_dim(x.dims),
        {"dy": dy, "x": x},
        np.zeros(x.shape),
    )


def test_results_keep_the_memory_order() -> None:
    g = weft.Graph(handle=checks.handle())
    x = g.tensor((2, 8, 6, 6), checks.strides_of((2, 8, 6, 6), "channels_last"), "f16")
    case = Pool("", (2, 8, 6, 6), [2, 2], [2, 2], [0, 0], [0, 0])
    y, index = pool(g, x, case, "MAXPOOL", None, index=True)
    dx = g.resample_backward(y, index, **case.options)
    for tensor in (y, index, dx):
        tensor.set_output(True)
    g.validate()
    assert y.strides == index.strides == (72, 1, 24, 8)
    assert (dx.dims, dx.strides, dx.dtype) == (x.dims, x.strides, weft.data_type.HALF)


# ---- PyTorch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", POOLS[:4], ids=lambda case: case.name)
def test_pooling_against_torch(case: Pool) -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    spatial = len(case.window)
    if case.pre != case.post or any(2 * p > w for p, w in zip(case.pre, case.window, strict=True)):
        case = case._replace(pre=[1] * spatial, post=[1] * spatial, window=[max(w, 2) for w in case.window])
    x = whole_numbers(case, "f64")
    arguments = (case.window, case.stride, case.pre)
    average = getattr(functional, f"avg_pool{spatial}d")
    maximum = getattr(functional, f"max_pool{spatial}d")
    for mode, function in (
        ("MAXPOOL", lambda t: maximum(t, *arguments)),
        ("AVGPOOL_INCLUDE_PADDING", lambda t: average(t, *arguments)),
        ("AVGPOOL_EXCLUDE_PADDING", lambda t: average(t, *arguments, count_include_pad=False)),
    ):
        check_with_torch(torch, function, x, {"mode": mode, **case.options})


@pytest.mark.parametrize("case", RESIZES[:3], ids=lambda case: case.name)
def test_interpolation_against_torch(case: Resize) -> None:
    torch = pytest.importorskip("torch")
    x = checks.random(case.x, "f64")
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(case.stride)]
    zeros = [Fraction(0)] * len(case.stride)
    corners = [Fraction(a - 1, b - 1) for a, b in zip(case.x[2:], case.y[2:], strict=True)]
    for mode, stride, pre, options in (
        ("NEAREST", case.stride, zeros, {"mode": "nearest"}),
        (
            "NEAREST",
            case.stride,
            [(1 - s) / 2 - Fraction(1, 2) for s in case.stride],
            {"mode": "nearest-exact"},
        ),
        ("BILINEAR", case.stride, case.pre, {"mode": linear, "align_corners": False}),
        ("BILINEAR", corners, zeros, {"mode": linear, "align_corners": True}),
    ):
        check_with_torch(
            torch,
            lambda t, options=options: torch.nn.functional.interpolate(t, case.y[2:], **options),
            x,
            {"mode": mode, "stride": stride, "pre_padding": pre},
        )


def check_with_torch(torch: Any, function: Any, x: Array, options: dict[str, Any]) -> None:
    """Result and gradient."""
    tensor = torch.tensor(x, requires_grad=True)
    y = function(tensor)
    dy = checks.random(tuple(y.shape), "f64", seed=1)
    y.backward(torch.tensor(dy))
    got = run(lambda g, x: resample(g, x, **options).set_dim(dy.shape), x)
    np.testing.assert_allclose(got, y.detach().numpy(), atol=1e-12)
    keys = {"input": x} if options["mode"] == "MAXPOOL" else {}
    dx = run(
        lambda g, dy, x: g.resample_backward(dy, **dict.fromkeys(keys, x), **options).set_dim(x.dims), dy, x
    )
    np.testing.assert_allclose(dx, tensor.grad.numpy(), atol=1e-12)


# ---- Refusals ----------------------------------------------------------------------------------------------

X = ((2, 3, 8, 8), "f32")
MAX = {"mode": "MAXPOOL", "window": [2, 2], "stride": [2, 2]}


@pytest.mark.parametrize(
    ("options", "dims", "message"),
    [
        (
            {"mode": "MAXPOOL", "window": [2, 2]},
            (),
            "resample parameters: mode MAXPOOL has no stride. Set it: one integer per spatial dimension, in "
            "elements.",
        ),
        (
            {"mode": "AVGPOOL_INCLUDE_PADDING", "stride": [1, 1]},
            (),
            "resample parameters: mode AVGPOOL_INCLUDE_PADDING has no window. Set it: one integer per "
            "spatial dimension, in elements.",
        ),
        (
            {**MAX, "stride": [1, Fraction(3, 2)]},
            (),
            "resample parameters: stride[1] is 3/2; mode MAXPOOL requires integers. Use one, or mode NEAREST"
            " or BILINEAR.",
        ),
        (
            {**MAX, "stride": [1]},
            (),
            "resample parameters: stride has 1 number, expected 2. Give one per spatial dimension (1 to "
            "3), or none.",
        ),
        (
            {**MAX, "window": [2, 0]},
            (),
            "resample parameters: window[1] is 0/1, expected a number above 0. Change it.",
        ),
        (
            {"mode": "NEAREST", "stride": [1, Fraction(1, 2**40)]},
            (),
            "resample parameters: stride[1] is 1/1099511627776, expected a number of which both parts are "
            "below 2^31. Change it.",
        ),
        (
            {"mode": "BILINEAR", "stride": [1, 1], "padding_mode": "NEG_INF_PAD"},
            (),
            "resample parameters: mode BILINEAR with padding_mode NEG_INF_PAD would average infinities. Use "
            "ZERO_PAD or EDGE_VAL_PAD.",
        ),
        (
            {**MAX, "window": [9, 2]},
            (),
            "resample 'r': spatial dimension 0: the window spans dilation 1 * (window 9 - 1) + 1 = 9 "
            "elements, but x 8 + pre 0 + post 0 = 8. Pad more, or use a smaller window or dilation.",
        ),
        (
            {**MAX, "dilation": [1, 8]},
            (),
            "resample 'r': spatial dimension 1: the window spans dilation 8 * (window 2 - 1) + 1 = 9 "
            "elements, but x 8 + pre 0 + post 0 = 8. Pad more, or use a smaller window or dilation.",
        ),
        (
            {**MAX, "window": [2**31 - 1, 1], "dilation": [2**31 - 1, 2**31 - 1]},
            (),
            "resample 'r': spatial dimension 0: the window spans dilation 2147483647 * (window 2147483647 - "
            "1) + 1 = 1152921504606846976 elements, but x 8 + pre 0 + post 0 = 8. Pad more, or use a smaller "
            "window or dilation.",
        ),
        (
            MAX,
            (2, 3, 4, 5),
            "resample 'r': spatial dimension 1: y has 5, expected 1 + (x 8 + pre 0 + post 0 - dilation 1 * "
            "(window 2 - 1) - 1) / stride 2 = 4. Change the dims of y, the paddings or the stride.",
        ),
        (
            {**MAX, "dilation": [3, 2]},
            (2, 3, 4, 3),
            "resample 'r': spatial dimension 0: y has 4, expected 1 + (x 8 + pre 0 + post 0 - dilation 3 * "
            "(window 2 - 1) - 1) / stride 2 = 3. Change the dims of y, the paddings or the stride.",
        ),
        (
            {**MAX, "dilation": [2]},
            (),
            "resample parameters: dilation has 1 number, expected 2. Give one per spatial dimension (1 to "
            "3), or none.",
        ),
        (
            {**MAX, "dilation": [1, 0]},
            (),
            "resample parameters: attribute dilation is 0, expected 1..2147483647. Set a value in that "
            "range.",
        ),
        (
            {"mode": "BILINEAR", "stride": [1, 1], "dilation": [1, 2]},
            (),
            "resample parameters: dilation[1] is 2, expected 1: mode BILINEAR interpolates between adjacent "
            "elements. Leave dilation unset, or use a mode that pools.",
        ),
        (
            {"mode": "NEAREST"},
            (),
            "resample 'r': mode NEAREST has no stride and y no dims: either follows from the other. Set the "
            "stride or the dims.",
        ),
        (
            {"mode": "NEAREST"},
            (2, 4, 4, 5),
            "resample 'r': y is [2,4,4,5], x is [2,3,8,8]: batch and channels must be equal. Make rank, N "
            "and C equal.",
        ),
        (
            {"mode": "MAXPOOL", "window": [2], "stride": [2]},
            (),
            "resample 'r': x is [2,3,8,8], expected [N, C, ..] with [1] spatial dimensions. Reshape it.",
        ),
    ],
)
def test_refusals(options: dict[str, Any], dims: Sequence[int], message: str) -> None:
    checks.refuses(lambda g, x: resample(g, x, **options).set_dim(dims), {"x": X}, message)


def test_fractions_that_64_bits_do_not_hold() -> None:
    options = {"mode": "NEAREST", "stride": [Fraction(1, 2**31 - 1), 1], "pre_padding": [Fraction(1, 3), 0]}
    checks.refuses(
        lambda g, x: resample(g, x, **options).set_dim((2, 3, 4, 4)),
        {"x": X},
        "resample 'r': spatial dimension 0 from 8 to 4 elements: stride, paddings and window need a common "
        "denominator below 2^31 and lengths times it below 2^60. Use simpler fractions.",
        weft.NotSupportedError,
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda g, x: g.resample(
                x, **{**MAX, "mode": "AVGPOOL_INCLUDE_PADDING"}, generate_index=True, name="r"
            ),
            "resample 'r': mode AVGPOOL_INCLUDE_PADDING has no index. Leave index unset, or use mode "
            "MAXPOOL.",
        ),
        (
            lambda g, x: g.resample(x, **MAX, generate_index=True, name="r")[1].set_data_type("f32"),
            "resample 'r': index has data type f32, which cannot represent the window's positions 0..3. Use "
            "INT8 or INT32.",
        ),
        (
            lambda g, x: resample(g, x, window=[8, 8], padding=[8, 8], stride=[1, 1]).set_dim((2, 3, 17, 18)),
            "resample 'r': spatial dimension 1: y has 18, expected 1 + (x 8 + pre 8 + post 8 - dilation 1 * "
            "(window 8 - 1) - 1) / stride 1 = 17. Change the dims of y, the paddings or the stride.",
        ),
        (
            lambda g, x: g.resample_backward(x, **MAX, name="r"),
            "resample_backward 'r': the gradient of mode MAXPOOL needs the index that the forward operation "
            "wrote, or its input x. Set one.",
        ),
        (
            lambda g, x: g.resample_backward(x, mode="BILINEAR", stride=[2, 2], name="r"),
            "resample_backward 'r': dx has no dims, and mode BILINEAR yields dy [2,3,8,8] for inputs of "
            "several sizes. Set the dims of dx, or x.",
        ),
        (
            lambda g, x: g.resample_backward(x, input=x, **MAX, name="r"),
            "resample_backward 'r': spatial dimension 0: dy has 8, expected 1 + (dx 8 + pre 0 + post 0 - "
            "dilation 1 * (window 2 - 1) - 1) / stride 2 = 4. Change the dims of dx, the paddings or the "
            "stride.",
        ),
        (
            lambda g, x: g.resample_backward(x, index=x, **MAX, name="r"),
            "resample_backward 'r': index has data type f32, which cannot represent the window's positions "
            "0..3. Use INT8 or INT32.",
        ),
        (
            lambda g, x: g.identity(scaled(g, x, 1.0, 1.0, **MAX)),
            "resample 'r': beta is 1, so the output is read before it is written, but tensor 'r::y' (uid 2) "
            "is virtual. Set beta to 0, or give the tensor memory.",
        ),
    ],
)
def test_refusals_of_operands(build: Any, message: str) -> None:
    checks.refuses(build, {"x": X}, message)


@pytest.mark.parametrize("types", [{"intermediate_data_type": "f32"}, {"io_data_type": "f32"}, {}])
def test_the_index_keeps_a_type_of_its_own(types: dict[str, str]) -> None:
    """The type of the index does not follow the graph's types, whether it has memory or is virtual."""
    x = np.random.default_rng(0).normal(size=(1, 2, 6, 6)).astype("f4")
    g = weft.Graph(handle=weft.create_handle("cpu"), **types)
    image = g.tensor_like(x, name="x")
    options = {"mode": "MAXPOOL", "window": [2, 2], "stride": [2, 2]}
    y, index = g.resample(image, generate_index=True, **options)
    y.set_output(True).set_data_type("f32")
    index.set_output(True)
    plan = g.build().plan
    got, positions = plan(x=x)
    windows = x.reshape(1, 2, 3, 2, 3, 2).transpose(0, 1, 2, 4, 3, 5).reshape(1, 2, 3, 3, 4)
    np.testing.assert_array_equal(got, windows.max(-1))
    assert positions.dtype == np.int8
    np.testing.assert_array_equal(positions, windows.argmax(-1))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("size", [(300, 300), (9, 1000)])
def test_averages_of_long_windows(size: tuple[int, int], last: bool) -> None:
    """Sums of 0.1, whose roundings in float all have one sign: added one after the other they are off by
    3e-5. One window sees the whole plane; two others overlap."""
    x = np.full((1, 3, *size), 0.1, np.float32) + np.arange(3, dtype=np.float32)[:, None, None]
    x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, 3)), 3, 1) if last else x
    strides = tuple(step // x.itemsize for step in x.strides)
    for window, count in ((list(size), 1), ([size[0], size[1] - 1], 2)):
        case = Pool("long", x.shape, window, [1, 1], [0, 0], [0, 0])
        found = checks.check(
            lambda g, x, case=case: pool(g, x, case, "AVGPOOL_EXCLUDE_PADDING", None),
            {"x": (x, strides)},
            [None],
            layouts=["packed"],
        )
        want = np.repeat(x[:, :, :1, :1].astype(np.float64), count, 3)
        for engine, (got,) in found.items():
            np.testing.assert_allclose(got, want, 2e-6, err_msg=engine)


@pytest.mark.skipif(checks.DEVICE != "cpu", reason="GPUs add averages in float")
@pytest.mark.parametrize("last", [False, True])
def test_averages_whose_sums_overflow_in_float(last: bool) -> None:
    x = np.full((2, 5, 6, 4), 3e38, np.float32)
    x[1] *= -1
    x[:, 2:] = 1
    memory = np.ascontiguousarray(np.moveaxis(x, 1, 3)) if last else x
    strides = (120, 1, 20, 5) if last else (120, 24, 4, 1)
    given = {"x": (np.moveaxis(memory, 3, 1) if last else x, strides)}
    for window in ([2, 2], [6, 4]):
        case = Pool("large", x.shape, window, [2, 2], [0, 0], [0, 0])
        for mode in AVERAGES:
            want = average_pool(case, x.astype(np.float64), mode)
            build = lambda g, x, case=case, mode=mode: pool(g, x, case, mode, None)  # noqa: E731
            checks.check(build, given, want, layouts=["packed"])
