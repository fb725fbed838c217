# SPDX-License-Identifier: Apache-2.0
"""Convolution and its gradients against direct sums in NumPy float64."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any, NamedTuple

import checks
import numpy as np
import pytest
import tiers
import weft

Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    """One geometry; groups follow from the channels."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    options: dict[str, Any]

    @property
    def spatial(self) -> int:
        return len(self.x) - 2

    @property
    def flips(self) -> bool:
        return self.options.get("convolution_mode") == "CONVOLUTION"

    @property
    def axes(self) -> list[tuple[int, int, int, int]]:
        """Stride, dilation, pre and post padding of each spatial dimension."""
        ones, zeros = [1] * self.spatial, [0] * self.spatial
        pre = self.options.get("pre_padding", zeros)
        post = self.options.get("post_padding", pre)
        parts = (self.options.get("stride", ones), self.options.get("dilation", ones), pre, post)
        return list(zip(*parts, strict=True))


CASES = [
    Case("plain 1-D", (2, 3, 9), (4, 3, 3), {}),
    Case("plain 2-D", (2, 3, 7, 6), (4, 3, 3, 2), {}),
    Case("plain 3-D", (1, 2, 5, 4, 6), (3, 2, 2, 3, 2), {}),
    Case("1x1", (2, 5, 4, 3), (7, 5, 1, 1), {}),
    Case("strides", (2, 3, 11, 8), (4, 3, 3, 2), {"stride": [2, 3]}),
    Case("dilations", (2, 3, 9, 8), (4, 3, 3, 3), {"dilation": [2, 3]}),
    Case("symmetric padding", (2, 3, 5, 6), (4, 3, 3, 3), {"pre_padding": [1, 2]}),
    Case("asymmetric padding", (2, 3, 5, 6), (4, 3, 3, 3), {"pre_padding": [2, 0], "post_padding": [1, 3]}),
    Case("cropping", (1, 2, 8, 9), (3, 2, 2, 3), {"pre_padding": [-2, 1], "post_padding": [-1, -3]}),
    Case("flipped", (2, 3, 7, 6), (4, 3, 3, 2), {"convolution_mode": "CONVOLUTION", "stride": [2, 1]}),
    Case("groups", (2, 6, 5, 4), (9, 2, 3, 3), {"pre_padding": [1, 1]}),
    Case("depthwise", (2, 5, 6, 6), (5, 1, 3, 3), {"pre_padding": [1, 1], "stride": [2, 2]}),
    Case("depthwise with multiplier", (1, 3, 12), (6, 1, 4), {"dilation": [2]}),
    Case("padding wider than the filter", (1, 2, 3, 3), (2, 2, 2, 2), {"pre_padding": [3, 4]}),
    Case("filter as large as the image", (3, 4, 5, 5), (2, 4, 5, 5), {}),
    Case("strides that skip the last elements", (1, 2, 10, 9), (2, 2, 3, 2), {"stride": [4, 5]}),
    Case(
        "all of it in 3-D",
        (2, 4, 6, 5, 7),
        (6, 2, 2, 3, 2),
        {
            "stride": [2, 1, 3],
            "dilation": [1, 2, 2],
            "pre_padding": [1, 2, 0],
            "post_padding": [0, 1, 2],
            "convolution_mode": "CONVOLUTION",
        },
    ),
]
BY_NAME = {case.name: case for case in CASES}


# ---- The oracle: each filter tap meets a strided slice of the padded image ---------------------------------


def y_dims(case: Case) -> tuple[int, ...]:
    extents = zip(case.x[2:], case.w[2:], case.axes, strict=True)
    sizes = ((x + p + q - d * (r - 1) - 1) // s + 1 for x, r, (s, d, p, q) in extents)
    return (case.x[0], case.w[0], *sizes)


def taps(case: Case) -> Any:
    """Returns, for each filter tap, its index in w and the slice of the padded image that it reads."""
    for r in np.ndindex(*case.w[2:]):
        parts = zip(r, y_dims(case)[2:], case.axes, strict=True)
        where = tuple(slice(i * d, i * d + (o - 1) * s + 1, s) for i, o, (s, d, _, _) in parts)
        at = tuple(extent - 1 - i for extent, i in zip(case.w[2:], r, strict=True)) if case.flips else r
        yield (..., *at), (..., *where)


def padded(case: Case, x: Array) -> tuple[Array, tuple[Any, ...]]:
    """A padded copy of the image with what negative paddings crop, and the part that is left by them."""
    pads = [(0, 0), (0, 0)] + [(max(p, 0), max(q, 0)) for _, _, p, q in case.axes]
    kept = (..., *(slice(max(-p, 0), -max(-q, 0) or None) for _, _, p, q in case.axes))
    return np.pad(x, pads), kept


def grouped(case: Case, w: Array, inner: Array, outer: Array) -> tuple[Array, Array, Array]:
    """Views with a dimension of groups: w [g,k,c], x-like [n,g,c,..], y-like [n,g,k,..]."""
    groups = case.x[1] // case.w[1]
    return (
        w.reshape(groups, -1, case.w[1]),
        inner.reshape(case.x[0], groups, case.w[1], *inner.shape[2:]),
        outer.reshape(case.x[0], groups, -1, *outer.shape[2:]),
    )


def pixels(images: Array) -> Array:
    """Images of groups, [n,g,c,..], as matrices [n,g,c,pixels]."""
    return images.reshape(*images.shape[:3], math.prod(images.shape[3:]))


def fprop(case: Case, x: Array, w: Array) -> Array:
    y = np.zeros(y_dims(case))
    whole, kept = padded(case, checks.exact(x))
    for at, where in taps(case):
        filters, image, result = grouped(case, checks.exact(w)[at], whole[kept][where], y)
        result += (filters @ pixels(image)).reshape(result.shape)
    return y


def dgrad(case: Case, dy: Array, w: Array) -> Array:
    whole, kept = padded(case, np.zeros(case.x))
    for at, where in taps(case):
        part = np.zeros_like(whole[kept][where])
        filters, image, loss = grouped(case, checks.exact(w)[at], part, checks.exact(dy))
        image += (filters.mT @ pixels(loss)).reshape(image.shape)
        whole[kept][where] += part
    pads = (..., *(slice(max(p, 0), -max(q, 0) or None) for _, _, p, q in case.axes))
    return whole[pads]


def wgrad(case: Case, x: Array, dy: Array) -> Array:
    dw = np.zeros(case.w)
    whole, kept = padded(case, checks.exact(x))
    for at, where in taps(case):
        part = np.zeros(case.w[:2])
        filters, image, loss = grouped(case, part, whole[kept][where], checks.exact(dy))
        filters += (pixels(loss) @ pixels(image).mT).sum(0)
        dw[at] = part
    return dw


def arrays(case: Case, dtype: str = "f32") -> tuple[Array, Array, Array]:
    return (
        checks.random(case.x, dtype),
        checks.random(case.w, dtype, seed=1),
        checks.random(y_dims(case), dtype, seed=2),
    )


def directions(x: Array, w: Array, dy: Array) -> list[tuple[Any, Array, Array]]:
    """Each oracle with its operands."""
    return [(fprop, x, w), (dgrad, dy, w), (wgrad, x, dy)]


def largest(values: Array) -> float:
    return float(np.max(np.abs(values), initial=0.0))


def largest_sum(case: Case, x: Array, w: Array, dy: Array) -> float:
    """The largest sum of magnitudes in any of the three results."""
    absolute = (abs(checks.exact(array)) for array in (x, w, dy))
    return max(largest(oracle(case, a, b)) for oracle, a, b in directions(*absolute))


# ---- Results -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [341, 511, 512, 1023, 1024, 1025, 1500])
def test_depthwise_rows_and_channels_of_any_length(width: int) -> None:
    """Rows, or channels, on either side of what is summed at a time, 1024, and more than one of them."""
    rows = Case("rows", (1, 8, 3, width), (8, 1, 2, 3), {"pre_padding": [1, 1]})
    channels = Case("channels", (1, width, 1, 3), (width, 1, 1, 2), {})
    for case, layout in ((rows, "packed"), (channels, "channels_last")):
        x, w, _ = arrays(case)
        checks.check(
            lambda g, x, w, case=case: g.conv_fprop(x, w, **case.options),
            {"x": x, "w": w},
            fprop(case, x, w),
            layouts=[layout],
            magnitude=largest(fprop(case, abs(x), abs(w))),
        )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_forward(case: Case) -> None:
    x, w, _ = arrays(case)
    checks.check(
        lambda g, x, w: g.conv_fprop(x, w, **case.options),
        {"x": x, "w": w},
        fprop(case, x, w),
        layouts=checks.LAYOUTS,
        magnitude=largest(fprop(case, abs(x), abs(w))),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_data_gradient(case: Case) -> None:
    _, w, dy = arrays(case)
    checks.check(
        lambda g, dy, w: g.conv_dgrad(dy, w, **case.options).set_dim(case.x),
        {"dy": dy, "w": w},
        dgrad(case, dy, w),
        layouts=checks.LAYOUTS,
        magnitude=largest(dgrad(case, abs(dy), abs(w))),
    )


@pytest.mark.parametrize("tile", [0, 10, 29])
def test_data_gradient_of_pixels_outside_all_filters(tile: int) -> None:
    """Three pixels in four get 0: few multiprocessors make many tiles without a step, one after the other."""
    case = Case("", (4, 256, 28, 28), (32, 256, 1, 1), {"stride": [2, 2]})
    _, w, dy = arrays(case, "bf16")
    checks.check(
        lambda g, dy, w: g.conv_dgrad(dy, w, **case.options).set_dim(case.x),
        {"dy": dy, "w": w},
        dgrad(case, dy, w),
        layouts=["channels_last"],
        magnitude=largest(dgrad(case, abs(dy), abs(w))),
        knobs={"TILE_SIZE": tile} if tile else None,
    )


@pytest.mark.parametrize("width", [5, 19, 37])
def test_operands_after_a_strided_data_gradient(width: int) -> None:
    """With a stride, some positions are outside an odd image: the results there do not depend on the
    operands."""
    case = Case("", (2, 64, 6, width), (16, 64, 1, 2), {"stride": [1, 2], "post_padding": [0, 1]})
    w, dy = checks.random(case.w, "f16", seed=1), checks.random(y_dims(case), "f16", seed=2)
    bias, whole = checks.random((1, 64, 1, 1), "f16", seed=3), checks.random(case.x, "f16", seed=4)
    checks.check(
        lambda g, dy, w, bias, whole: g.add(
            g.add(g.conv_dgrad(dy, w, **case.options).set_dim(case.x), bias), whole
        ),
        {"dy": dy, "w": w, "bias": bias, "whole": whole},
        dgrad(case, dy, w) + checks.exact(bias) + checks.exact(whole),
        out="f16",
        layouts=["channels_last"],
        graph={"intermediate_data_type": "f32"},
        magnitude=largest(dgrad(case, abs(checks.exact(dy)), abs(checks.exact(w)))),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_filter_gradient(case: Case) -> None:
    x, _, dy = arrays(case)
    checks.check(
        lambda g, x, dy: g.conv_wgrad(x, dy, **case.options).set_dim(case.w),
        {"x": x, "dy": dy},
        wgrad(case, x, dy),
        layouts=checks.LAYOUTS,
        magnitude=largest(wgrad(case, abs(x), abs(dy))),
    )


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "e4m3", "e5m2"])
def test_data_types(dtype: str) -> None:
    case = BY_NAME["groups"]
    x, w, dy = arrays(case, dtype)
    checks.check(
        lambda g, x, w, dy: (
            g.conv_fprop(x, w, padding=[1, 1]),
            g.conv_dgrad(dy, w, padding=[1, 1]).set_dim(case.x),
            g.conv_wgrad(x, dy, padding=[1, 1]).set_dim(case.w),
        ),
        {"x": x, "w": w, "dy": dy},
        [f(case, a, b) for f, a, b in directions(x, w, dy)],
        magnitude=largest_sum(case, x, w, dy),
        of_fp8=dtype in ("e4m3", "e5m2"),
        graph={"compute_data_type": "f64"} if dtype == "f64" else None,
    )


def test_integers_are_exact() -> None:
    case = BY_NAME["strides"]
    x = checks.random(case.x, "i8", low=-128, high=127)
    w = checks.random(case.w, "i8", low=-128, high=127, seed=1)
    for out in (None, "i8", "f32"):
        checks.check(
            lambda g, x, w: g.conv_fprop(x, w, **case.options),
            {"x": x, "w": w},
            fprop(case, x, w),
            out=out,
            layouts=checks.LAYOUTS,
            graph={"compute_data_type": "i32"},
        )


BYTES = {"e4m3": (-2, 2), "e5m2": (-2, 2), "i8": (-128, 127), "u8": (0, 255)}


@pytest.mark.parametrize(
    ("image", "filters"), [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("i8", "i8"), ("u8", "i8")]
)
@pytest.mark.parametrize("stride", [1, 2])
def test_bytes_contiguous_along_channels(image: str, filters: str, stride: int) -> None:
    """The layouts that tensor cores require: channels-last images; filters contiguous by channels, or for dx
    by filters."""
    case = Case("bytes", (2, 16, 7, 9), (32, 16, 3, 3), {"pre_padding": [1, 1], "stride": [stride] * 2})
    x, w = (
        checks.random(case.x, image, *BYTES[image]),
        checks.random(case.w, filters, *BYTES[filters], seed=1),
    )
    dy = checks.random(y_dims(case), image, *BYTES[image], seed=2)
    is_fp8, (k, c, r, s) = image[0] == "e", case.w
    for oracle, left, w_strides in (
        (fprop, x, (r * s * c, 1, s * c, c)),
        (dgrad, dy, (1, k, s * k * c, k * c)),
    ):

        def build(g: Any, left: Any, w: Any, is_forward: bool = oracle is fprop) -> Any:
            if is_forward:
                return g.conv_fprop(left, w, **case.options)
            return g.conv_dgrad(left, w, **case.options).set_dim(case.x)

        checks.check(
            build,
            {"left": left, "w": (w, w_strides)},
            oracle(case, left, w),
            out="bf16" if is_fp8 else "i32",
            layouts=["channels_last"],
            magnitude=largest(oracle(case, abs(checks.exact(left)), abs(checks.exact(w)))),
            of_fp8=is_fp8,
            graph={"compute_data_type": "f32" if is_fp8 else "i32"},
        )


@pytest.mark.parametrize("channels", [8, 24, 64])
@pytest.mark.parametrize("intermediate", ["bf16", "f32"])
def test_silu_written_out(channels: int, intermediate: str) -> None:
    """Two operations after the sum read it."""
    case = Case("silu", (3, channels, 13, 9), (40, channels, 3, 3), {"pre_padding": [1, 1]})
    x, w, _ = arrays(case, "bf16")
    rounded = (lambda values: values) if intermediate == "f32" else partial(checks.narrow, dtype="bf16")
    y = checks.exact(rounded(fprop(case, x, w)))
    want = y * checks.exact(rounded(1 / (1 + np.exp(-y))))

    def build(g: Any, x: Any, w: Any) -> Any:
        y = g.conv_fprop(x, w, **case.options)
        return g.mul(y, g.sigmoid(y)).set_data_type("bf16")

    checks.check(
        build,
        {"x": x, "w": w},
        want,
        layouts=["channels_last"],
        magnitude=largest(fprop(case, abs(x), abs(w))),
        graph={"intermediate_data_type": intermediate},
    )


def test_mixed_layouts() -> None:
    """Each operand keeps its own memory order: KRSC filters with an NCHW image, and a broadcast image."""
    case = BY_NAME["asymmetric padding"]
    x, w, _ = arrays(case)
    first = np.broadcast_to(x[:, :1], case.x)
    for image, strides in ((x, checks.strides_of(case.x, "packed")), (first, (30, 0, 6, 1))):
        checks.check(
            lambda g, x, w: g.conv_fprop(x, w, **case.options),
            {"x": (image, strides), "w": (w, checks.strides_of(case.w, "channels_last"))},
            fprop(case, image, w),
            layouts=["packed"],
            magnitude=largest(fprop(case, abs(image), abs(w))),
        )


@pytest.mark.parametrize("name", ["groups", "depthwise", "all of it in 3-D"])
def test_groups_in_their_own_dimension(name: str) -> None:
    case = BY_NAME[name]
    x, w, dy = arrays(case)
    groups = case.x[1] // case.w[1]
    options = {"stride": [1] * case.spatial, **case.options}
    x_dims = (case.x[0], groups, case.w[1], *case.x[2:])
    w_dims = (groups, case.w[0] // groups, *case.w[1:])
    y = y_dims(case)
    y_grouped = (y[0], groups, case.w[0] // groups, *y[2:])
    checks.check(
        lambda g, x, w, dy: (
            g.conv_fprop(x, w, **options),
            g.conv_dgrad(dy, w, **options).set_dim(x_dims),
            g.conv_wgrad(x, dy, **options).set_dim(w_dims),
        ),
        {"x": x.reshape(x_dims), "w": w.reshape(w_dims), "dy": dy.reshape(y_grouped)},
        [
            fprop(case, x, w).reshape(y_grouped),
            dgrad(case, dy, w).reshape(x_dims),
            wgrad(case, x, dy).reshape(w_dims),
        ],
        magnitude=largest_sum(case, x, w, dy),
    )


def test_vectorized_channels() -> None:
    """NC/4HW4: the channels of a group of four are adjacent in memory."""
    x, w = checks.random((2, 8, 5, 4), "i8"), checks.random((8, 8, 3, 3), "i8", seed=1)
    case = Case("", x.shape, w.shape, {})

    def in_fours(a: Array) -> Array:
        return np.ascontiguousarray(a.reshape(a.shape[0], -1, 4, *a.shape[2:]).transpose(0, 1, 3, 4, 2))

    g = weft.Graph(handle=checks.handle(), compute_data_type="i32")
    image, filters = (g.tensor(a.shape, data_type="i8").set_vector_count_and_dimension(4, 1) for a in (x, w))
    y = g.conv_fprop(image, filters).set_dim((2, 8, 3, 2)).set_vector_count_and_dimension(4, 1)
    g.build()
    memory = {image: in_fours(x), filters: in_fours(w), y: np.zeros((2, 2, 3, 2, 4), np.int32)}
    checks.execute(g, memory)
    np.testing.assert_array_equal(memory[y], in_fours(fprop(case, x, w)))


def test_gradients_are_those_of_the_forward_operation() -> None:
    case = BY_NAME["all of it in 3-D"]._replace(x=(1, 2, 3, 3, 4), w=(2, 1, 2, 2, 1))
    x, w, dy = arrays(case, "f64")

    def forward(x: Array, w: Array) -> Array:
        return run(lambda g, x, w: g.conv_fprop(x, w, **case.options), x, w)

    dx = run(lambda g, dy, w: g.conv_dgrad(dy, w, **case.options).set_dim(case.x), dy, w)
    dw = run(lambda g, x, dy: g.conv_wgrad(x, dy, **case.options).set_dim(case.w), x, dy)
    np.testing.assert_allclose(dx, checks.numeric_gradient(forward, [x, w], 0, dy), atol=1e-8)
    np.testing.assert_allclose(dw, checks.numeric_gradient(forward, [x, w], 1, dy), atol=1e-8)


def run(build: Any, *inputs: Array, out: Array | None = None, **graph: Any) -> Array:
    """The result on the default engine, written over `out` where that is given."""
    g = weft.Graph(handle=checks.handle(), compute_data_type="f64", **graph)
    tensors = [g.tensor_like(array, is_pass_by_value=False) for array in inputs]
    result = build(g, *tensors)
    g.build()
    memory = np.zeros(result.dims) if out is None else out.copy()
    checks.execute(g, {**dict(zip(tensors, inputs, strict=True)), result: memory})
    return memory


def test_alpha_and_beta() -> None:
    """A beta of 0 does not read the output, so that NaN there does no harm."""
    case = BY_NAME["groups"]
    x, w, dy = arrays(case, "f64")
    kinds = {"conv_fprop": ("x", "w", "y"), "conv_dgrad": ("dy", "w", "dx"), "conv_wgrad": ("x", "dy", "dw")}
    for (kind, keys), (oracle, a, b) in zip(kinds.items(), directions(x, w, dy), strict=True):
        want = oracle(case, a, b)
        whole = np.arange(want.size).reshape(want.shape) % 7 - 3.0
        poison = np.full(want.shape, np.nan)
        scaled = run(scaled_operation(kind, keys, want.shape, 2.5, 0.0), a, b, out=poison)
        np.testing.assert_allclose(scaled, 2.5 * want, atol=1e-12)
        added = run(scaled_operation(kind, keys, want.shape, -0.5, 1.5), a, b, out=whole)
        np.testing.assert_allclose(added, -0.5 * want + 1.5 * whole, atol=1e-12)


def scaled_operation(kind: str, keys: tuple[str, ...], dims: Any, alpha: float, beta: float) -> Any:
    def build(g: Any, a: Any, b: Any) -> Any:
        values = {keys[0]: a, keys[1]: b, "alpha": alpha, "beta": beta, "pre_padding": [1, 1]}
        return checks.record(g, kind, values, keys[2:])[0].set_dim(dims)

    return build


@pytest.mark.parametrize("name", ["x", "channels", "image", "filters"])
def test_empty_extents(name: str) -> None:
    dims = {
        "x": ((0, 3, 5, 5), (2, 3, 3, 3)),
        "channels": ((2, 0, 5, 5), (2, 0, 3, 3)),
        "image": ((2, 3, 0, 5), (2, 3, 3, 3)),
        "filters": ((2, 3, 5, 5), (0, 3, 3, 3)),
    }
    x, w = (np.ones(d, np.float32) for d in dims[name])
    y = (x.shape[0], w.shape[0], 0 if name == "image" else 3, 3)
    dy = np.ones(y, np.float32)
    checks.check(
        lambda g, x, w, dy: (
            g.conv_fprop(x, w),
            g.conv_dgrad(dy, w).set_dim(x.dims),
            g.conv_wgrad(x, dy).set_dim(w.dims),
        ),
        {"x": x, "w": w, "dy": dy},
        [np.zeros(y), dgrad_of_ones(x, w), wgrad_of_ones(x, w)],
    )


def dgrad_of_ones(x: Array, w: Array) -> Array:
    """The gradient of the image for ones everywhere: how often each element is used."""
    if 0 in x.shape or 0 in w.shape:
        return np.zeros(x.shape)
    case = Case("", x.shape, w.shape, {})
    return dgrad(case, np.ones(y_dims(case)), w)


def wgrad_of_ones(x: Array, w: Array) -> Array:
    if 0 in x.shape or 0 in w.shape:
        return np.zeros(w.shape)
    case = Case("", x.shape, w.shape, {})
    return wgrad(case, x, np.ones(y_dims(case)))


def test_against_torch() -> None:
    torch = pytest.importorskip("torch")
    functions = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
    for case in CASES:
        if any(min(p, q) < 0 for _, _, p, q in case.axes):
            continue
        x, w, dy = arrays(case, "f64")
        image = torch.tensor(x, requires_grad=True)
        filters = torch.tensor(w, requires_grad=True)
        pads = [n for _, _, p, q in reversed(case.axes) for n in (p, q)]
        y = functions[case.spatial](
            torch.nn.functional.pad(image, pads),
            filters.flip(list(range(2, filters.ndim))) if case.flips else filters,
            stride=[s for s, _, _, _ in case.axes],
            dilation=[d for _, d, _, _ in case.axes],
            groups=case.x[1] // case.w[1],
        )
        y.backward(torch.tensor(dy))
        checks.check(
            lambda g, x, w, dy, case=case: (
                g.conv_fprop(x, w, **case.options),
                g.conv_dgrad(dy, w, **case.options).set_dim(case.x),
                g.conv_wgrad(x, dy, **case.options).set_dim(case.w),
            ),
            {"x": x, "w": w, "dy": dy},
            [y.detach().numpy(), image.grad.numpy(), filters.grad.numpy()],
            layouts=["packed"],
            magnitude=1000,
            graph={"compute_data_type": "f64"},
        )


# ---- Inference ---------------------------------------------------------------------------------------------


def test_results_keep_the_memory_order() -> None:
    g = weft.Graph(handle=checks.handle())
    x = g.tensor((2, 8, 6, 5), checks.strides_of((2, 8, 6, 5), "channels_last"), "f16")
    w = g.tensor((4, 8, 3, 3), data_type="f16")
    y = g.conv_fprop(x, w, padding=[1, 1])
    dx = g.conv_dgrad(y, w, padding=[1, 1])
    dw = g.conv_wgrad(x, y, padding=[1, 1]).set_dim(w.dims)
    for tensor in (y, dx, dw):
        tensor.set_output(True)
    g.validate()
    assert (y.dims, y.strides, y.dtype) == ((2, 4, 6, 5), (120, 1, 20, 4), weft.data_type.HALF)
    assert (dx.dims, dx.strides) == (x.dims, x.strides)
    assert dw.strides == checks.strides_of((4, 8, 3, 3), "channels_last")


def test_data_types_of_results() -> None:
    for given, compute, virtual, want in (
        ("f16", "f32", False, "HALF"),
        ("f16", "f32", True, "FLOAT"),
        ("i8", "i32", False, "INT32"),
        ("i8", "i32", True, "INT32"),
    ):
        g = weft.Graph(handle=checks.handle(), compute_data_type=compute)
        y = g.conv_fprop(g.tensor((1, 2, 4), data_type=given), g.tensor((3, 2, 2), data_type=given))
        if virtual:
            g.identity(y)
        g.validate()
        assert y.dtype is not None
        assert y.dtype.name == want


def test_least_image_of_a_data_gradient() -> None:
    g = weft.Graph(handle=checks.handle())
    dy, w = g.tensor((2, 4, 5, 3), data_type="f32"), g.tensor((4, 3, 3, 2), data_type="f32")
    dx = g.conv_dgrad(dy, w, stride=[2, 3], dilation=[1, 2], pre_padding=[1, 0], post_padding=[0, 1])
    g.validate()
    assert dx.dims == (2, 3, 4 * 2 + 3 - 1, 2 * 3 + 3 - 1)


def test_every_image_extent_that_makes_the_result() -> None:
    """A stride of 3 allows three extents of dx; each is accepted, the extents next to them are refused."""
    for extent in range(9, 15):
        g = weft.Graph(handle=checks.handle())
        dy, w = g.tensor((1, 1, 4), data_type="f32"), g.tensor((1, 1, 2), data_type="f32")
        g.conv_dgrad(dy, w, stride=[3]).set_dim((1, 1, extent))
        if 11 <= extent <= 13:
            g.validate()
        else:
            with pytest.raises(weft.BadParameterError, match=re.escape("an extent between these: [11,13].")):
                g.validate()


# ---- Refusals ----------------------------------------------------------------------------------------------

X, W = ((2, 3, 8, 8), "f32"), ((4, 3, 3, 3), "f32")


def conv(**options: Any) -> Any:
    dims = options.pop("dims", ())
    return lambda g, x, w: g.conv_fprop(x, w, name="c", **options).set_dim(dims)


def gradient(kind: str, **options: Any) -> Any:
    dims = options.pop("dims", ())
    return lambda g, a, b: getattr(g, kind)(a, b, name="c", **options).set_dim(dims)


@pytest.mark.parametrize(
    ("build", "inputs", "message"),
    [
        (
            conv(),
            {"x": X, "w": ((4, 2, 3, 3), "f32")},
            "conv_fprop 'c': channels of x [2,3,8,8] and w [4,2,3,3] do not fit: x is [N,C,..], w is "
            "[K,C/groups,..], and K is a multiple of groups. Change one of them.",
        ),
        (
            conv(),
            {"x": ((2, 9, 8, 8), "f32"), "w": W},
            "conv_fprop 'c': channels of x [2,9,8,8] and w [4,3,3,3] do not fit: x is [N,C,..], w is "
            "[K,C/groups,..], and K is a multiple of groups. Change one of them.",
        ),
        (
            conv(stride=[1]),
            {"x": ((2, 2, 3, 8), "f32"), "w": ((3, 4, 3, 3), "f32")},
            "conv_fprop 'c': channels of x [2,2,3,8] and w [3,4,3,3] do not fit: with 1 spatial "
            "dimensions x is [N,G,C,..], w is [G,K,C,..]. Change one of them, or give stride, dilation and "
            "paddings 2 numbers if no dimension stands for groups.",
        ),
        (
            conv(dims=(2, 4, 6, 5)),
            {"x": X, "w": W},
            "conv_fprop 'c': spatial dimension 1: y has 5, expected 1 + (x 8 + pre 0 + post 0 - dilation 1 "
            "* (w 3 - 1) - 1) / stride 1 = 6. Give y that extent, or no dims.",
        ),
        (
            conv(dims=(2, 5, 6, 6)),
            {"x": X, "w": W},
            "conv_fprop 'c': y is [2,5,6,6], but x [2,3,8,8] and w [4,3,3,3] make [2,4]. Make batch and "
            "channels agree.",
        ),
        (
            conv(dims=(2, 4, 36)),
            {"x": X, "w": W},
            "conv_fprop 'c': y has 3 dims [2,4,36], x has 4 dims [2,3,8,8]. Give all tensors the same rank.",
        ),
        (
            conv(dilation=[1, 4]),
            {"x": X, "w": W},
            "conv_fprop 'c': spatial dimension 1: the filter does not fit: it spans dilation 4 * (w 3 - 1) "
            "+ 1 = 9, the padded image has x 8 + pre 0 + post 0 = 8 elements. Pad more, or use a smaller "
            "filter.",
        ),
        (
            conv(),
            {"x": ((2, 3), "f32"), "w": ((4, 3), "f32")},
            "conv_fprop 'c': x is [2,3], expected [N, C, ..] with 1 to 3 spatial dimensions, or [N, G, C, "
            "..] and as many strides or paddings as dimensions are spatial. Reshape it.",
        ),
        (
            conv(padding=[1, 1, 1]),
            {"x": X, "w": W},
            "conv_fprop 'c': x is [2,3,8,8], expected [N, C, ..] with [3] spatial dimensions, or",
        ),
        (
            conv(),
            {"x": X, "w": ((4, 3, 0, 3), "f32")},
            "conv_fprop 'c': w is [4,3,0,3]: a filter has at least 1 tap. Give it larger dims.",
        ),
        (
            conv(stride=[1, 2], dilation=[1]),
            {"x": X, "w": W},
            "convolution parameters: dilation is [1], expected 2 numbers. Give one per spatial dimension (1 "
            "to 3), or none.",
        ),
        (
            conv(stride=[1, 1, 1, 1]),
            {"x": X, "w": W},
            "convolution parameters: stride is [1,1,1,1], expected 3 numbers. Give one per spatial "
            "dimension (1 to 3), or none.",
        ),
        (
            conv(stride=[1, 0]),
            {"x": X, "w": W},
            "convolution parameters: attribute stride is 0, expected 1..2147483647. Set a value in that "
            "range.",
        ),
        (
            gradient("conv_wgrad"),
            {"a": X, "b": ((2, 4, 6, 6), "f32")},
            "conv_wgrad 'c': dw has no dims, and filters of several sizes are consistent with x "
            "[2,3,8,8] and dy [2,4,6,6]. Set its dims: [K, C / groups, w..].",
        ),
        (
            gradient("conv_wgrad", dims=(4, 3, 3, 2)),
            {"a": X, "b": ((2, 4, 6, 6), "f32")},
            "conv_wgrad 'c': spatial dimension 1: dy has 6, expected 1 + (x 8 + pre 0 + post 0 - dilation 1 "
            "* (dw 2 - 1) - 1) / stride 1 = 7. Change dw, the paddings or the stride.",
        ),
        (
            gradient("conv_dgrad", dims=(2, 3, 8, 8), stride=[2, 2]),
            {"a": ((2, 4, 4, 4), "f32"), "b": W},
            "conv_dgrad 'c': spatial dimension 0: dy has 4, expected 1 + (dx 8 + pre 0 + post 0 - dilation "
            "1 * (w 3 - 1) - 1) / stride 2 = 3. Give dx no dims, or an extent between these: [9,10].",
        ),
        (
            gradient("conv_dgrad", dims=(3, 3, 6, 6)),
            {"a": ((2, 4, 4, 4), "f32"), "b": W},
            "conv_dgrad 'c': dy is [2,4,4,4], but dx [3,3,6,6] and w [4,3,3,3] make [3,4]. Make batch and "
            "channels agree.",
        ),
    ],
)
def test_refusals(build: Any, inputs: dict[str, Any], message: str) -> None:
    checks.refuses(lambda g, **tensors: build(g, *tensors.values()), inputs, message)


def test_beta_needs_memory() -> None:
    def build(g: Any, x: Any, w: Any) -> Any:
        y = checks.record(g, "conv_fprop", {"x": x, "w": w, "beta": 2.0}, ("y",), "c")[0]
        return g.identity(y)

    checks.refuses(
        build,
        {"x": X, "w": W},
        "conv_fprop 'c': beta is 2, so the output is read before it is written, but tensor 'c::y' (uid 3) "
        "is virtual. Set beta to 0, or give the tensor memory.",
    )


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(
    "case",
    [
        Case("planes", (3, 40, 8, 10), (72, 40, 1, 1), {}),
        Case("odd planes", (3, 24, 5, 7), (40, 24, 1, 1), {}),
        Case("planes of groups", (2, 144, 4, 12), (48, 72, 1, 1), {}),
        Case("planes in space", (2, 24, 3, 4, 6), (16, 24, 1, 1, 1), {}),
    ],
    ids=lambda case: case.name,
)
def test_one_tap_channels_first(case: Case, dtype: str) -> None:
    """Each image is a matrix; something follows the product."""
    x, w, dy = arrays(case, dtype)
    bias = checks.random((1, case.w[0], *[1] * case.spatial), dtype, seed=3)
    other = checks.random(y_dims(case), dtype, seed=4)
    checks.check(
        lambda g, x, w, dy, bias, other: (
            g.add(g.add(g.conv_fprop(x, w).set_data_type("f32"), bias).set_data_type("f32"), other),
            g.conv_dgrad(dy, w).set_dim(case.x),
            g.conv_wgrad(x, dy).set_dim(case.w),
        ),
        {"x": x, "w": w, "dy": dy, "bias": bias, "other": other},
        [
            fprop(case, x, w) + checks.exact(bias) + checks.exact(other),
            dgrad(case, dy, w),
            wgrad(case, x, dy),
        ],
        out=dtype,
        layouts=["packed"],
        magnitude=largest_sum(case, x, w, dy) + 4,
    )


PARTS = [
    Case("a deep filter", (1, 160, 3, 4), (34, 160, 3, 3), {"pre_padding": [1, 1]}),
    Case(
        "a deep and dilated filter", (1, 200, 4, 5), (17, 200, 2, 3), {"dilation": [2, 1], "stride": [1, 2]}
    ),
    Case("few channels", (2, 3, 20, 13), (20, 3, 7, 7), {"pre_padding": [3, 3], "stride": [2, 2]}),
    Case("few channels, flipped", (1, 5, 9, 8), (20, 5, 3, 3), {"convolution_mode": "CONVOLUTION"}),
    Case("few channels, many columns", (1, 15, 4, 7), (17, 15, 7, 7), {"pre_padding": [3, 3]}),
    Case("many taps", (1, 16, 5, 6), (9, 16, 9, 9), {"pre_padding": [4, 4]}),
    Case("many positions", (3, 17, 15, 14), (9, 17, 2, 2), {"pre_padding": [1, 1]}),
    Case("small images", (5, 33, 3, 4), (40, 33, 3, 3), {"pre_padding": [1, 1], "stride": [2, 2]}),
    Case("whole panels", (2, 64, 19, 20), (22, 32, 3, 3), {"pre_padding": [2, 1], "stride": [1, 2]}),
    Case("whole panels, flipped", (1, 96, 7, 6), (20, 96, 2, 3), {"convolution_mode": "CONVOLUTION"}),
    Case("panels of all taps", (1, 32, 9, 10), (32, 32, 5, 5), {"pre_padding": [2, 2]}),
    Case("panels of a volume", (1, 32, 4, 5, 6), (33, 32, 3, 3, 3), {"pre_padding": [1, 1, 1]}),
    Case("merged taps are panels", (1, 8, 9, 12), (12, 8, 3, 4), {"pre_padding": [1, 1]}),
    Case("wide and one tap", (2, 1200, 3, 3), (140, 1200, 1, 1), {"stride": [2, 1]}),
    Case("groups", (2, 48, 4, 5), (40, 24, 3, 3), {"pre_padding": [1, 1], "stride": [1, 2]}),
    Case("whole groups", (2, 64, 9, 10), (72, 64, 3, 3), {"pre_padding": [1, 1]}),
    Case("whole groups of positions", (1, 64, 12, 16), (64, 64, 1, 1), {}),
    Case(
        "whole groups, strided",
        (1, 128, 13, 26),
        (96, 64, 2, 3),
        {"pre_padding": [1, 1], "stride": [1, 2], "dilation": [2, 1]},
    ),
    Case("pairs", (2, 74, 12, 13), (90, 74, 3, 2), {"pre_padding": [1, 0]}),
    Case("depthwise", (2, 40, 13, 14), (40, 1, 5, 5), {"pre_padding": [2, 2], "stride": [2, 1]}),
    Case("depthwise, many positions", (3, 17, 11, 21), (17, 1, 3, 3), {"pre_padding": [1, 1]}),
    Case("depthwise, many channels", (1, 530, 4, 5), (530, 1, 2, 3), {"dilation": [1, 2]}),
    Case("depthwise, lines", (2, 9, 7, 30), (9, 1, 3, 3), {"pre_padding": [1, 1], "stride": [2, 1]}),
    Case(
        "depthwise, lines from either side",
        (1, 8, 6, 45),
        (8, 1, 2, 5),
        {
            "pre_padding": [-1, 5],
            "post_padding": [3, -4],
            "dilation": [1, 3],
            "convolution_mode": "CONVOLUTION",
        },
    ),
    Case("depthwise, phases", (2, 21, 13, 18), (21, 1, 3, 3), {"pre_padding": [1, 1], "stride": [2, 2]}),
    Case(
        "depthwise, phases from either side",
        (1, 12, 17, 9),
        (12, 1, 5, 4),
        {
            "pre_padding": [-2, 3],
            "post_padding": [4, -1],
            "stride": [3, 2],
            "convolution_mode": "CONVOLUTION",
        },
    ),
    Case(
        "depthwise, phases of a volume",
        (1, 9, 4, 7, 8),
        (9, 1, 3, 2, 3),
        {"pre_padding": [1, 0, 2], "stride": [2, 3, 2], "dilation": [1, 2, 1]},
    ),
    Case("depthwise, phases too large", (1, 8, 200, 184), (8, 1, 2, 1), {"stride": [2, 1]}),
    Case("depthwise, skipped", (1, 20, 9, 9), (20, 1, 2, 2), {"stride": [3, 3]}),
]


@pytest.mark.parametrize(
    ("case", "dtype"),
    tiers.of_today(
        [
            pytest.param(case, dtype, id=f"{case.name}-{dtype}")
            for dtype in ("f32", "bf16", "e4m3")
            for case in PARTS
            if dtype != "e4m3" or case.name.startswith(("whole groups", "pairs"))
        ],
        2,
    ),
)
def test_parts_of_a_product(case: Case, dtype: str) -> None:
    """Larger than one pass: depths, columns, taps, rows, in either memory order."""
    x, w, dy = arrays(case, dtype)
    wanted = [oracle(case, a, b) for oracle, a, b in directions(x, w, dy)]
    checks.check(
        lambda g, x, w, dy: (
            g.conv_fprop(x, w, **case.options),
            g.conv_dgrad(dy, w, **case.options).set_dim(case.x),
            g.conv_wgrad(x, dy, **case.options).set_dim(case.w),
        ),
        {"x": x, "w": w, "dy": dy},
        wanted,
        out="f32",
        layouts=["packed", "channels_last"],
        magnitude=largest_sum(case, x, w, dy),
        of_fp8=dtype == "e4m3",
    )


LARGE = [
    Case("14x14", (16, 72, 14, 14), (136, 72, 3, 3), {"pre_padding": [1, 1]}),
    Case("9x11", (16, 72, 9, 11), (136, 72, 3, 3), {"pre_padding": [1, 1]}),
    Case("16x8", (16, 72, 16, 8), (136, 72, 3, 3), {"pre_padding": [1, 1]}),
    Case("9x9", (16, 256, 9, 9), (256, 256, 3, 3), {"pre_padding": [1, 1]}),
    Case("half the lines", (32, 512, 14, 32), (512, 512, 1, 1), {"stride": [2, 2]}),
]


@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
def test_channels_first(kind: str, case: Case) -> None:
    """Large enough that factors and results are transposed by the kernel."""
    if checks.DEVICE == "cpu":
        pytest.skip("the CPU turns nothing: it has the small cases")
    x, w, dy = arrays(case, "bf16")
    oracle, a, b = directions(x, w, dy)[["fprop", "dgrad", "wgrad"].index(kind)]
    checks.check(
        lambda g, a, b: (
            g.conv_fprop(a, b, **case.options)
            if kind == "fprop"
            else g.conv_dgrad(a, b, **case.options).set_dim(case.x)
            if kind == "dgrad"
            else g.conv_wgrad(a, b, **case.options).set_dim(case.w)
        ),
        {"a": a, "b": b},
        oracle(case, a, b),
        layouts=["packed"],
        magnitude=largest(oracle(case, abs(a), abs(b))),
    )


@pytest.mark.parametrize("tile", [0, 1 + 12 * 3 + 7, 1 + 12 * 2 + 3])
@pytest.mark.parametrize("kind", ["fprop", "dgrad"])
def test_results_in_planes(kind: str, tile: int) -> None:
    """Factors are channels last, but the result is not."""
    case = Case("", (2, 24, 9, 56), (40, 24, 3, 3), {"pre_padding": [1, 1]})
    x, w, dy = arrays(case, "bf16")
    bias = checks.random((1, case.w[0], 1, 1), "bf16", seed=3)
    strides = {a.shape: checks.strides_of(a.shape, "channels_last") for a in (x, w, dy)}

    def planes(g: Any, x: Any, w: Any, bias: Any) -> Any:
        wide = g.conv_fprop(x, w, **case.options).set_data_type("f32")
        return g.relu(g.add(wide, bias).set_data_type("f32"))

    if kind == "fprop":
        checks.check(
            planes,
            {"x": (x, strides[x.shape]), "w": (w, strides[w.shape]), "bias": bias},
            np.maximum(fprop(case, x, w) + checks.exact(bias), 0),
            out="bf16",
            layouts=["packed"],
            magnitude=largest(fprop(case, abs(x), abs(w))) + 2,
            knobs={"TILE_SIZE": tile} if tile else None,
        )
        return
    checks.check(
        lambda g, dy, w: g.conv_dgrad(dy, w, **case.options).set_dim(case.x),
        {"dy": (dy, strides[dy.shape]), "w": (w, strides[w.shape])},
        dgrad(case, dy, w),
        layouts=["packed"],
        magnitude=largest(dgrad(case, abs(dy), abs(w))),
        knobs={"TILE_SIZE": tile} if tile else None,
    )
