"""Column sums together with row computations, such as gradients of biases. Sums over values that a norm's
step reads or computes are part of that step; consumers of such a sum run after the last row."""

from __future__ import annotations

from typing import Any

import checks
import numpy as np
import pytest
import weft
from checks import check, exact

Array = np.ndarray[Any, Any]
EPSILON = 1e-5
WIDE = {"intermediate_data_type": "f32", "compute_data_type": "f32"}


def check_all(build: Any, given: dict[str, Array], expected: list[Array]) -> None:
    """Checks on every engine with the error bounds of float intermediates and results: sums cancel."""
    found = check(build, given, [None] * len(expected), out="f32", layouts=["packed"], graph=WIDE)
    for engine, made in found.items():
        for i, (got, want) in enumerate(zip(made, expected, strict=True)):
            np.testing.assert_allclose(got, want, 1e-5, 2e-6 * np.abs(want).max(), err_msg=f"{engine} {i}")


def normed(x: Array) -> tuple[Array, Array, Array]:
    """x normalised along its rows, and the statistics."""
    mean = x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + EPSILON)
    return (x - mean) * inverse, mean, inverse


def gradient(given: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Gradient of a layer norm by x, scale and bias, from rounded statistics."""
    dy, x, scale, mean, inverse = (exact(given[name]) for name in ("dy", "x", "scale", "mean", "inverse"))
    hat = (x - mean) * inverse
    weighted = dy * scale
    projected = weighted - weighted.mean(-1, keepdims=True) - hat * (weighted * hat).mean(-1, keepdims=True)
    return inverse * projected, (dy * hat).sum((0, 1), keepdims=True), dy.sum((0, 1), keepdims=True)


def operands(rows: int, width: int, dtype: str = "f32") -> dict[str, Array]:
    """Operands of a layer norm's gradient, with an addend."""
    dy, x, skip = (checks.random((2, rows, width), dtype, seed=seed) for seed in range(3))
    _, mean, inverse = normed(exact(x))
    scale = checks.random((1, 1, width), dtype, seed=4)
    kept = {"mean": mean.astype(np.float32), "inverse": inverse.astype(np.float32)}
    return {"dy": dy, "x": x, "skip": skip, "scale": scale} | kept


def column(g: Any, x: Any, width: int) -> Any:
    return g.reduction(x, mode="ADD").set_dim([1, 1, width])


def residual_gradient(g: Any, **t: Any) -> tuple[Any, ...]:
    """The biases before and after a norm with a residual, in the pattern of a transformer block."""
    width = t["x"].dims[-1]
    behind = column(g, t["skip"], width)
    dx, dscale, dbias = g.layernorm_backward(t["dy"], t["x"], t["scale"], t["mean"], t["inverse"])
    total = g.add(dx, t["skip"])
    return behind, total, dscale, dbias, column(g, total, width)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (37, 24), (150, 264), (5, 1030)])
def test_biases_around_a_norm(rows: int, width: int, dtype: str) -> None:
    given = operands(rows, width, dtype)
    skip, (dx, dscale, dbias) = exact(given["skip"]), gradient(given)
    sums = [each.sum((0, 1), keepdims=True) for each in (skip, dx + skip)]
    expected = [sums[0], dx + skip, dscale, dbias, sums[1]]
    check_all(residual_gradient, given, expected)


@pytest.mark.parametrize("device", ["sm_90", "cpu"])
def test_they_are_one_step(device: str) -> None:
    at = {"device": device} if device != "cpu" else {"handle": weft.create_handle("cpu")}
    g = weft.Graph(io_data_type="bf16", compute_data_type="f32", **at)
    t = {name: g.tensor([2, 4096, 1024]) for name in ("dy", "x", "skip")}
    t |= {name: g.tensor([2, 4096, 1], data_type="f32") for name in ("mean", "inverse")}
    for made in residual_gradient(g, **t, scale=g.tensor([1, 1, 1024])):
        made.set_output(True)
    steps = g.build().plan.report["steps"]
    assert [step["family"].partition(".")[2] for step in steps] == ["rows"]


def test_column_sums_with_only_statistics() -> None:
    """Without a gradient of scale or bias: a norm forwards, softmax."""
    x = checks.random((1, 70, 40))
    hat = normed(exact(x))[0]

    def norm(g: Any, x: Any, scale: Any, bias: Any) -> tuple[Any, Any]:
        y = g.layernorm("INFERENCE", x, scale, bias, EPSILON)[0]
        return y, column(g, g.neg(y), 40)

    def weights(g: Any, x: Any) -> tuple[Any, Any]:
        y = g.softmax(x)
        return y, column(g, y, 40)

    affine = {"scale": np.ones((1, 1, 40), np.float32), "bias": np.zeros((1, 1, 40), np.float32)}
    check_all(norm, {"x": x} | affine, [hat, -hat.sum(1, keepdims=True)])
    soft = np.exp(exact(x)) / np.exp(exact(x)).sum(-1, keepdims=True)
    check_all(weights, {"x": x}, [soft, soft.sum(1, keepdims=True)])


def test_readers_of_a_column_sum_are_another_step() -> None:
    """A norm's dscale and a bias' gradient, each put back into rows."""
    given = operands(33, 16)
    dx, dscale, _ = gradient(given)
    total = dx + exact(given["skip"])

    def build(g: Any, **t: Any) -> tuple[Any, ...]:
        dx, dscale, _ = g.layernorm_backward(t["dy"], t["x"], t["scale"], t["mean"], t["inverse"])
        total = g.add(dx, t["skip"])
        return g.mul(t["x"], dscale), g.add(total, column(g, total, 16))

    expected = [exact(given["x"]) * dscale, total + total.sum((0, 1), keepdims=True)]
    check_all(build, given, expected)
