"""Helpers of the weft.jax tests: numbers, and comparisons with jax.numpy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

TOLERANCES = {"float64": 1e-11, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def normal(*shape: int, dtype: Any = np.float64, seed: int = 0) -> Any:
    """Normally distributed numbers, the same ones for the same shape and seed."""
    made = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return jnp.asarray(made, dtype)


def close(got: Any, wanted: Any, factor: float = 1.0) -> None:
    """Asserts that trees of arrays have equal shapes and types, and equal numbers up to rounding."""
    (mine, own), (theirs, other) = map(jax.tree.flatten, (got, wanted))
    assert own == other
    for a, b in zip(mine, theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        bound = factor * TOLERANCES[str(a.dtype)]
        a, b = (np.asarray(each, np.float64) for each in (a, b))
        np.testing.assert_allclose(a, b, rtol=bound, atol=bound * max(1.0, float(np.abs(b).max(initial=0))))


def gradients(function: Any, *arguments: Any) -> Any:
    """Gradients of a sum of all results, each weighted by numbers of its own, to all arguments."""

    def loss(*given: Any) -> Any:
        results = jax.tree.leaves(function(*given))
        weighted = [(each * normal(*each.shape, dtype=each.dtype, seed=9)).sum() for each in results]
        return sum(weighted)

    return jax.grad(loss, tuple(range(len(arguments))))(*arguments)
