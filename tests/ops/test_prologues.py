# SPDX-License-Identifier: Apache-2.0
"""Pointwise operations before products against NumPy in float64."""

from __future__ import annotations

from typing import Any

import checks
import numpy as np
import pytest
import weft
from checks import check, exact, narrow
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
    """What is behind the depth or the rows stays out, though relu(0 * scale + bias) is no zero."""
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


def test_what_is_behind_too() -> None:
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


@pytest.mark.parametrize("kind", ["fprop", "wgrad", "dgrad"])
@pytest.mark.parametrize("taps", [1, 3])
def test_scale_bias_relu_before_a_convolution(kind: str, taps: int) -> None:
    """Padding is zeros, not what becomes of them."""
    n, c, k, size = (2, 64, 72, 12) if LARGE else (2, 8, 16, 5)
    x, w, dy = (
        halves(dims, i) for i, dims in enumerate([(n, c, size, size), (k, c, taps, taps), (n, k, size, size)])
    )
    channels = k if kind == "dgrad" else c
    scale, bias = (halves((1, channels, 1, 1), 3 + i, 1) for i in range(2))
    pad = [taps // 2] * 2

    def build(g: Any, x: Any, y: Any, scale: Any, bias: Any) -> Any:
        x = g.relu(g.add(g.mul(x, scale), bias)).set_data_type("bf16")
        if kind == "fprop":
            return g.conv_fprop(x, y, padding=pad)
        if kind == "wgrad":
            return g.conv_wgrad(x, y, padding=pad).set_dim(list(w.shape))
        return g.conv_dgrad(x, y, padding=pad).set_dim([n, c, size, size])

    first, second = {"fprop": (x, w), "wgrad": (x, dy), "dgrad": (dy, w)}[kind]
    made = prepared(first, scale, bias)
    want = _convolve(kind, made, exact(second), taps)
    operands = {"x": first, "y": second, "scale": scale, "bias": bias}
    check(build, operands, want, out="f32", layouts=["packed", "channels_last"], graph=BF16)


def _convolve(kind: str, left: Any, right: Any, taps: int) -> Any:
    """Tap by tap, at stride 1 and the same size."""
    pad = taps // 2
    size = left.shape[2]
    if kind == "dgrad":
        dx = np.zeros((left.shape[0], right.shape[1], size + 2 * pad, size + 2 * pad))
        for r in range(taps):
            for s in range(taps):
                dx[:, :, r : r + size, s : s + size] += np.einsum("nkhw,kc->nchw", left, right[:, :, r, s])
        return dx[:, :, pad : pad + size, pad : pad + size]
    x = np.pad(left, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    seen = [[x[:, :, r : r + size, s : s + size] for s in range(taps)] for r in range(taps)]
    if kind == "wgrad":
        return np.stack(
            [np.stack([np.einsum("nkhw,nchw->kc", right, v) for v in row], -1) for row in seen], -2
        )
    return sum(
        np.einsum("nchw,kc->nkhw", v, right[:, :, r, s])
        for r, row in enumerate(seen)
        for s, v in enumerate(row)
    )


@pytest.mark.parametrize(("depth", "columns"), [(64, 256), (4096, 4096)])
def test_one_kernel_prepares_and_multiplies_what_memory_limits(depth: int, columns: int) -> None:
    g = weft.Graph(**BF16, device_property=DeviceProperties(H200))
    x, scale = (g.tensor(dim=dims, data_type="bf16") for dims in ([1, 16384, depth], [1, 1, depth]))
    w = g.tensor(dim=[1, depth, columns], stride=[depth * columns, 1, depth], data_type="bf16")
    g.matmul(g.relu(g.mul(x, scale)).set_data_type("bf16"), w).set_output(True)
    g.build()
    assert ("prepared" in str(g.explain())) == (depth == 64)
