# SPDX-License-Identifier: Apache-2.0
"""Pointwise operations before products against NumPy in float64."""

from __future__ import annotations

from typing import Any

import checks
import numpy as np
import pytest
import weft
from checks import check, exact, narrow
from ops.test_convolution import Case, dgrad, fprop, wgrad, y_dims
from weft.devices import DeviceProperties

H200 = '{"kind":"cuda","arch":"sm_90"}'
BF16: dict[str, Any] = {"io_data_type": "bf16", "intermediate_data_type": "f32", "compute_data_type": "f32"}
LARGE = checks.DEVICE != "cpu"


def halves(dims: Any, seed: int, least: int = -4, dtype: str = "bf16") -> Any:
    """Small multiples of 1/2, so that nothing here is rounded."""
    return narrow(np.random.default_rng(seed).integers(least, 5, dims) / 2, dtype)


def prepared(x: Any, scale: Any, bias: Any) -> Any:
    return np.maximum(exact(x) * exact(scale) + exact(bias), 0)


SIZES = [(1, 200, 136, 264), (3, 72, 64, 72), (1, 64, 64, 4104), (2, 129, 40, 60)]
STRIDES = {
    "mk": lambda m, k: ((k + 7) // 8 * 8 * m, (k + 7) // 8 * 8, 1),
    "km": lambda m, k: ((m + 7) // 8 * 8 * k, 1, (m + 7) // 8 * 8),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("order", ["mk", "km"])
@pytest.mark.parametrize("along", ["depth", "rows", "both", "number"])
@pytest.mark.parametrize("side", ["A", "B"])
def test_matmul(size: tuple[int, ...], order: str, along: str, side: str) -> None:
    """Elements beyond the depth or the rows are excluded, even though relu(0 * scale + bias) is not zero."""
    batch, m, n, k = size if LARGE else (min(size[0], 2), size[1] // 4, size[2] // 4, size[3] // 4)
    a, b = halves((batch, m, k), 0), halves((batch, k, n), 1)
    depth, rows, one = (1, 1, k), (1, m, 1), (1, 1, 1)
    dims = {"depth": (depth, depth), "rows": (rows, rows), "both": (rows, depth), "number": (one, one)}[along]
    scale, bias = (halves(d, 2 + i, 1, "f32") for i, d in enumerate(dims))
    left, right = prepared(a, scale, bias), exact(b)
    if side == "B":  # the same product, all turned over
        a, b, scale, bias = (np.swapaxes(v, 1, 2).copy() for v in (b, a, scale, bias))
        left, right = np.swapaxes(right, 1, 2), np.swapaxes(left, 1, 2)

    def lies(x: Any) -> Any:
        return x, STRIDES[order](*x.shape[1:])

    def build(g: Any, a: Any, b: Any, scale: Any, bias: Any) -> Any:
        x, steps = (a, lies_a) if side == "A" else (b, lies_b)
        x = g.relu(g.add(g.mul(x, scale), bias))
        x.set_data_type("bf16").set_dim(list(x_dims)).set_stride(list(steps))
        return g.matmul(x, b) if side == "A" else g.matmul(a, x)

    lies_a, lies_b = lies(a)[1], lies(b)[1]
    x_dims = a.shape if side == "A" else b.shape
    operands = {"a": lies(a), "b": lies(b), "scale": scale, "bias": bias}
    check(build, operands, left @ right, out="f32", graph=BF16)


def test_prologue_with_epilogue() -> None:
    m, n, k = (320, 192, 520) if LARGE else (20, 24, 40)
    a, b = halves((1, m, k), 0), halves((1, k, n), 1)
    scale, bias = (halves((1, 1, k), 2 + i, 1) for i in range(2))
    left, right = prepared(a, scale, bias), exact(b)

    def build(g: Any, a: Any, b: Any, scale: Any, bias: Any) -> Any:
        c = g.relu(g.matmul(g.relu(g.add(g.mul(a, scale), bias)).set_data_type("bf16"), b))
        return c, g.reduction(c, "ADD").set_dim([1, 1, n]).set_data_type("f32")

    c = np.maximum(left @ right, 0)
    operands = {"a": a, "b": b, "scale": scale, "bias": bias}
    check(build, operands, [c, c.sum(1, keepdims=True)], out=["f32", "f32"], layouts=["packed"], graph=BF16)


CONVOLUTIONS = [
    Case("1x1", (3, 72, 11, 9), (40, 72, 1, 1), {}),
    Case("1x1, strides", (3, 72, 11, 9), (40, 72, 1, 1), {"stride": [2, 3]}),
    Case("3x3", (2, 64, 12, 12), (72, 64, 3, 3), {"pre_padding": [1, 1]}),
    Case("3x3, many channels", (3, 200, 7, 7), (264, 200, 3, 3), {"pre_padding": [1, 1]}),
    Case("3x3, strides", (5, 136, 15, 14), (136, 136, 3, 3), {"pre_padding": [1, 1], "stride": [2, 2]}),
    Case(
        "asymmetric",
        (3, 40, 13, 10),
        (72, 40, 3, 2),
        {"pre_padding": [2, 0], "post_padding": [1, 3], "dilation": [2, 3], "stride": [1, 2]},
    ),
    Case("cropped", (2, 64, 12, 13), (64, 64, 3, 3), {"pre_padding": [-2, 1], "post_padding": [-1, -3]}),
    Case(
        "flipped", (2, 64, 9, 9), (64, 64, 3, 3), {"pre_padding": [1, 1], "convolution_mode": "CONVOLUTION"}
    ),
    Case("1-D", (3, 136, 70), (72, 136, 5), {"pre_padding": [2]}),
    Case("3-D", (2, 72, 5, 6, 7), (64, 72, 3, 3, 3), {"pre_padding": [1, 1, 1], "stride": [1, 2, 1]}),
]
KINDS = ["fprop", "fprop of w", "wgrad", "wgrad of dy", "dgrad", "dgrad of w"]


def sized(case: Case) -> Case:
    """Few channels where there is no GPU."""
    if LARGE:
        return case
    return case._replace(x=(case.x[0], 8, *case.x[2:]), w=(16, 8, *case.w[2:]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda case: case.name)
def test_scale_bias_relu_before_a_convolution(case: Case, kind: str) -> None:
    """Applied to either factor, per channel. Padding stays zero instead of becoming relu(bias)."""
    case = sized(case)
    x, w, dy = (halves(dims, i) for i, dims in enumerate([case.x, case.w, y_dims(case)]))
    operation = kind.split()[0]
    of_second = len(kind.split()) > 1
    factors = {"fprop": (x, w), "wgrad": (x, dy), "dgrad": (dy, w)}[operation]
    channels = factors[of_second].shape[1]
    scale, bias = (halves((1, channels) + (1,) * case.spatial, 3 + i, 1) for i in range(2))
    made = {"fprop": y_dims(case), "wgrad": case.w, "dgrad": case.x}[operation]

    def build(g: Any, first: Any, second: Any, scale: Any, bias: Any) -> Any:
        both = [first, second]
        both[of_second] = g.relu(g.add(g.mul(both[of_second], scale), bias)).set_data_type("bf16")
        return getattr(g, f"conv_{operation}")(*both, **case.options).set_dim(list(made))

    ready = [prepared(v, scale, bias) if i == of_second else exact(v) for i, v in enumerate(factors)]
    want = {"fprop": fprop, "wgrad": wgrad, "dgrad": dgrad}[operation](case, *ready)
    operands = {"first": factors[0], "second": factors[1], "scale": scale, "bias": bias}
    check(build, operands, want, out="f32", layouts=["packed", "channels_last"], graph=BF16)


@pytest.mark.parametrize(("depth", "columns"), [(64, 256), (4096, 4096)])
def test_one_kernel_prepares_and_multiplies_what_memory_limits(depth: int, columns: int) -> None:
    g = weft.Graph(**BF16, device_property=DeviceProperties(H200))
    x, scale = (g.tensor(dim=dims, data_type="bf16") for dims in ([1, 16384, depth], [1, 1, depth]))
    w = g.tensor(dim=[1, depth, columns], stride=[depth * columns, 1, depth], data_type="bf16")
    g.matmul(g.relu(g.mul(x, scale)).set_data_type("bf16"), w).set_output(True)
    g.build()
    assert ("prologue" in str(g.explain())) == (depth == 64)


@pytest.mark.parametrize(("taps", "stride", "channels"), [(1, 2, 256), (3, 2, 128), (3, 1, 256)])
def test_images_read_by_many_taps_are_prepared_separately(taps: int, stride: int, channels: int) -> None:
    """A stride reads few of the pixels that a copy moves; without one, each is prepared for every tap."""
    g = weft.Graph(**BF16, device_property=DeviceProperties(H200))
    size = 56 if stride > 1 else 14
    x = g.tensor(dim=[64, channels, size, size], stride=[channels * size**2, 1, channels * size, channels])
    w = g.tensor(
        dim=[channels, channels, taps, taps], stride=[channels * taps**2, 1, channels * taps, channels]
    )
    scale = g.tensor(dim=[1, channels, 1, 1])
    prepared = g.relu(g.mul(x, scale)).set_data_type("bf16")
    g.conv_fprop(prepared, w, stride=[stride] * 2, padding=[taps // 2] * 2).set_output(True)
    g.build()
    assert ("prologue" in str(g.explain())) == (stride == 2)
