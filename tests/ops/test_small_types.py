# SPDX-License-Identifier: Apache-2.0
"""Operations on types narrower than a byte, which every family must support or decline: products, reductions,
windows, conversions of shapes whose rows begin inside of bytes."""

from __future__ import annotations

from typing import Any

import checks
import ml_dtypes
import numpy as np
import pytest
import weft

SMALL = {"i4": ml_dtypes.int4, "u4": ml_dtypes.uint4, "e2m1": ml_dtypes.float4_e2m1fn}


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Every number of a small type, about as often as any other."""
    codes = np.random.default_rng(seed).integers(0, 16, shape).astype(np.uint8)
    return (
        codes.view(SMALL[dtype])
        if dtype == "e2m1"
        else (codes - 8 * (dtype == "i4")).view(np.int8).astype(SMALL[dtype])
    )


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("k", [16, 33])
def test_matmul(dtype: str, k: int) -> None:
    a, b = numbers((3, 5, k), dtype), numbers((3, k, 9), dtype, 1)
    graph = {"compute_data_type": "f32" if dtype == "e2m1" else "i32"}
    want = checks.exact(a) @ checks.exact(b)
    checks.check(lambda g, a, b: g.matmul(a, b), {"a": a, "b": b}, want, out="f32", graph=graph)


@pytest.mark.parametrize("dtype", SMALL)
def test_matmul_into_a_small_type(dtype: str) -> None:
    a, b = (checks.random((2, 5, 4), "f32", -1, 1, seed=i) for i in range(2))
    want = a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1)
    checks.check(
        lambda g, a, b: g.matmul(a, b),
        {"a": a, "b": np.ascontiguousarray(b.transpose(0, 2, 1))},
        want,
        out=dtype,
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_counting_bits(axis: int) -> None:
    x = checks.random((5, 7, 11), "f32", -1, 1)
    shape = [1 if i == axis else n for i, n in enumerate(x.shape)]
    checks.check(
        lambda g, x, least: g.reduction(
            g.cmp_gt(x, least).set_data_type("bool1"), weft.reduction_mode.ADD
        ).set_dim(shape),
        {"x": x, "least": np.zeros((1, 1, 1), np.float32)},
        (x > 0).sum(axis, keepdims=True).astype(float),
        out="f32",
    )


@pytest.mark.parametrize("dtype", ["i4", "u4", "e2m1", "bool1"])
@pytest.mark.parametrize("shape", [(16,), (3, 5), (7, 1, 9), (1,), (4, 40), (515,)])
def test_conversions_there_and_back(dtype: str, shape: tuple[int, ...]) -> None:
    """In padded layouts, rows begin within bytes, and the bits between them stay unchanged."""
    x = checks.random(shape, "f32", -9, 17)
    want = checks.narrow(x, dtype)
    for layouts in (("packed", "padded"), ("channels_last",)):
        checks.check(lambda g, x: g.identity(x), {"x": x}, checks.exact(want), out=dtype, layouts=layouts)
        if dtype != "bool1":
            checks.check(
                lambda g, x: g.identity(x), {"x": want}, checks.exact(want), out="f32", layouts=layouts
            )


def test_pooling() -> None:
    x = numbers((2, 3, 6, 6), "u4")
    want = checks.exact(x).reshape(2, 3, 3, 2, 3, 2).max((3, 5))
    checks.check(
        lambda g, x: g.resample(
            x,
            mode=weft.resample_mode.MAXPOOL,
            window=[2, 2],
            stride=[2, 2],
            pre_padding=[0, 0],
            post_padding=[0, 0],
        )[0],
        {"x": x},
        want,
        out="f32",
    )


def test_scales_are_powers_of_two() -> None:
    x = checks.random((4, 33), "f32", 0.01, 900)
    scales = checks.narrow(x, "e8m0")
    checks.check(lambda g, x: g.identity(x), {"x": x}, checks.exact(scales), out="e8m0")
    checks.check(lambda g, s: g.mul(s, s), {"s": scales}, checks.exact(scales) ** 2, out="f32")
