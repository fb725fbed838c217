# SPDX-License-Identifier: Apache-2.0
"""Logarithms of sums of exponentials against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import weft
from checks import LAYOUTS, check, exact, random, refuses


def logsumexp(x: Any, dims: Any) -> Any:
    x = exact(x)
    with np.errstate(divide="ignore"):
        most = x.max(dims, keepdims=True)
        shift = np.where(np.isfinite(most), most, 0)
        return np.log(np.exp(x - shift).sum(dims, keepdims=True)) + shift


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize(
    ("shape", "dims"),
    [((7,), 0), ((2, 33), 1), ((5, 37), 0), ((2, 3, 40), (0, 2)), ((3, 1), 1), ((2, 600), 1)],
)
def test_values(shape: tuple[int, ...], dims: Any, dtype: str) -> None:
    x, named = random(shape, dtype, -30, 30), np.atleast_1d(dims).tolist()
    want = logsumexp(x, dims)
    check(lambda g, x: g.logsumexp(x, dims=named), {"x": x}, want, layouts=LAYOUTS, magnitude=40.0)


def test_infinite_elements() -> None:
    x = np.float32([[-np.inf, -np.inf], [np.inf, 1], [np.nan, 1], [-np.inf, 2], [np.inf, -np.inf]])
    want = np.array([[-np.inf], [np.inf], [np.nan], [2], [np.inf]])
    check(lambda g, x: g.logsumexp(x), {"x": x}, want)


def test_large_exponents() -> None:
    x = np.float32([[1000, 1000], [-1000, -1000]])
    check(lambda g, x: g.logsumexp(x, dims=[-1]), {"x": x}, logsumexp(x, 1))


def test_gradient() -> None:
    """dy e^(x - y), as its documentation says, next to the operation in one graph."""
    x, dy = random((4, 50), "f32", -5, 5), random((4, 1), "f32", seed=1)
    want = exact(dy) * np.exp(exact(x) - logsumexp(x, 1))
    check(lambda g, x, dy: g.mul(g.exp(g.sub(x, g.logsumexp(x))), dy), {"x": x, "dy": dy}, want, ulps=64)


def test_dims_of_the_result() -> None:
    g = weft.Graph(io_data_type="f32")
    y = g.logsumexp(g.tensor([2, 3, 4]), dims=[0, -1])
    g.validate()
    assert y.get_dim() == [1, 3, 1]
    message = "attribute dims is [0,-3], which names dimension 0 twice. Name each once."
    refuses(lambda g, x: g.logsumexp(x, dims=[0, -3]), {"x": ((2, 3, 4), "f32")}, message)
