# SPDX-License-Identifier: Apache-2.0
"""Norms, means and Euclidean norms of floats whose squares or sums are beyond the range of float, against
NumPy in float64. On the CPU all engines; on a GPU the sums are those of float (docs/robustness.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import weft
from checks import DEVICE, check, narrow

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="kernels for GPUs sum in float")
TRAINING, EPSILON, MOST = weft.norm_forward_phase.TRAINING, 1e-5, 3.4e38
# Rows that fit one block, rows that are split, many short rows, and a single row.
SHAPES = [(4, 64), (300, 37), (3, 200000), (5000, 8), (1, 96)]


def values(shape: tuple[int, ...], size: float, dtype: str = "f32") -> Any:
    rng = np.random.default_rng(0)
    x = size * rng.uniform(0.5, 1, shape) * rng.choice([-1, 1], shape)
    return narrow(x.astype(np.float32), dtype)


def norm(
    x: Any, axes: tuple[int, ...], has_mean: bool = True, epsilon: float = EPSILON
) -> tuple[Any, Any, Any]:
    wide = np.asarray(x, np.float64)
    mean = wide.mean(axes, keepdims=True) if has_mean else np.zeros(())
    inverse = 1 / np.sqrt(((wide - mean) ** 2).mean(axes, keepdims=True) + epsilon)
    return (wide - mean) * inverse, mean, inverse


def compare(
    build: Any, inputs: dict[str, Any], expected: list[Any], out: Any = "f32", ulps: float = 64
) -> None:
    """Compares relative to the largest element of each result, because the results are as small as float
    allows."""
    found = check(build, inputs, [None] * len(expected), out=out, layouts=["packed", "padded"])
    assert {"cpu.fast", "cpu.reference"} <= set(found)
    for engine, made in found.items():
        for got, want in zip(made, expected, strict=True):
            scale = np.abs(want).max()
            bits = 2.0**-8 if got.dtype.itemsize == 2 else ulps * 2.0**-24
            assert np.abs(np.asarray(got, np.float64) / scale - want / scale).max() < bits, engine


@pytest.mark.parametrize("size", [1.0, 1e20, 1e30, MOST])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_norms_of_rows(shape: tuple[int, int], size: float, dtype: str) -> None:
    x = values(shape, size * (0.99 if dtype == "bf16" else 1), dtype)
    layer, _, deviation = norm(x, (1,))
    rms, _, root = norm(x, (1,), has_mean=False)

    def build(g: Any, x: Any) -> tuple[Any, ...]:
        y, _, inverse = g.layernorm(TRAINING, x, epsilon=EPSILON)[:3]
        return y, inverse, *g.rmsnorm(TRAINING, x, epsilon=EPSILON)[:2]

    compare(build, {"x": x}, [layer, deviation, rms, root], [dtype, "f32", dtype, "f32"])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norms_whose_squares_vanish(shape: tuple[int, int]) -> None:
    x = values(shape, 1e-30)
    layer, _, deviation = norm(x, (1,), epsilon=0)
    rms, _, root = norm(x, (1,), has_mean=False, epsilon=0)

    def build(g: Any, x: Any) -> tuple[Any, ...]:
        y, _, inverse = g.layernorm(TRAINING, x, epsilon=0.0)[:3]
        return y, inverse, *g.rmsnorm(TRAINING, x, epsilon=0.0)[:2]

    compare(build, {"x": x}, [layer, deviation, rms, root])


@pytest.mark.parametrize("kind", ["batch", "instance", "group"])
@pytest.mark.parametrize("is_last", [False, True])
def test_norms_of_images(kind: str, is_last: bool) -> None:
    x = values((3, 8, 6, 7), 1e30)
    axes = (0, 2, 3) if kind == "batch" else (2, 3)
    y = norm(x.reshape(3, 2, -1), (2,))[0].reshape(x.shape) if kind == "group" else norm(x, axes)[0]

    def build(g: Any, x: Any) -> Any:
        if kind == "group":
            return g.groupnorm(TRAINING, x, epsilon=EPSILON, groups=2)[0]
        if kind == "instance":
            return g.instancenorm(TRAINING, x, epsilon=EPSILON)[0]
        return g.batchnorm(x, epsilon=EPSILON)[0]

    packed = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    compare(build, {"x": packed if is_last else x}, [y])


@pytest.mark.parametrize("size", [1.0, 1e30])
@pytest.mark.parametrize("shape", SHAPES[:-1], ids=str)
@pytest.mark.parametrize("has_mean", [False, True])
def test_gradients_of_norms(shape: tuple[int, int], size: float, has_mean: bool) -> None:
    """The gradient multiplies by the square of the inverse deviation, which float cannot hold."""
    rng = np.random.default_rng(1)
    x, dy = values(shape, size), rng.standard_normal(shape).astype(np.float32)
    scale = rng.uniform(0.5, 1.5, (1, shape[1])).astype(np.float32)
    normal, mean, inverse = norm(x, (1,), has_mean)
    weighted = dy.astype(np.float64) * scale
    along = normal * (weighted * normal).mean(1, keepdims=True)
    dx = inverse * (weighted - weighted.mean(1, keepdims=True) * has_mean - along)
    inputs = {"dy": dy, "x": x, "scale": scale, "inverse": inverse.astype(np.float32)}
    dscale = (dy * normal).sum(0, keepdims=True)

    def root(g: Any, dy: Any, x: Any, scale: Any, inverse: Any) -> tuple[Any, ...]:
        return tuple(g.rmsnorm_backward(dy, x, scale, inverse, False)[:2])

    def layer(g: Any, dy: Any, x: Any, scale: Any, inverse: Any, mean: Any) -> tuple[Any, ...]:
        return tuple(g.layernorm_backward(dy, x, scale, mean, inverse)[:2])

    if has_mean:
        inputs["mean"] = mean.astype(np.float32)
    compare(layer if has_mean else root, inputs, [dx, dscale], ulps=4096)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_means_and_euclidean_norms(shape: tuple[int, int]) -> None:
    most, large = np.abs(values(shape, MOST)), values(shape, 1e30)

    def build(g: Any, most: Any, large: Any) -> tuple[Any, Any]:
        return g.reduction(most, "AVG", dims=[1]), g.reduction(large, "NORM2", dims=[1])

    wide = large.astype(np.float64)
    expected = [most.astype(np.float64).mean(1, keepdims=True), np.sqrt((wide**2).sum(1, keepdims=True))]
    compare(build, {"most": most, "large": large}, expected)


def test_infinities_and_nan_stay() -> None:
    """A sum beyond the range also looks like them, so they must also result from the second calculation."""
    x = values((4, 64), 1.0)
    x[0, 3], x[1, 5], x[2, 7] = np.inf, -np.inf, np.nan

    def build(g: Any, x: Any) -> tuple[Any, Any]:
        return g.rmsnorm(TRAINING, x, epsilon=EPSILON)[0], g.reduction(x, "AVG", dims=[1])

    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        expected = [norm(x, (1,), has_mean=False)[0], wide.mean(1, keepdims=True)]
    check(build, {"x": x}, expected, out="f32")
