# SPDX-License-Identifier: Apache-2.0
"""Batch norm in parts (genstats, bn_finalize, dbn_weight) against NumPy in float64 and the norm in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import weft
from checks import LAYOUTS, check, exact, numeric_gradient, random, refuses

SHAPES = [(4, 3, 2, 5), (6, 35), (2, 3, 2, 2, 3), (1, 1, 1)]
FLOAT64 = {"compute_data_type": "f64"}
EPSILON = 2.0**-10


def over(x: Any) -> tuple[int, ...]:
    """The dimensions that a channel spans."""
    return tuple(i for i in range(x.ndim) if i != 1)


def channels(dims: tuple[int, ...], dtype: str = "f32", low: float = -2, seed: int = 0) -> Any:
    """Random numbers of [1, C, 1..]."""
    return random((1, dims[1]) + (1,) * (len(dims) - 2), dtype, low, seed=seed)


def mean_of(x: Any) -> Any:
    return exact(x).mean(over(x), keepdims=True)


def inverse_of(x: Any, epsilon: float = EPSILON) -> Any:
    return 1 / np.sqrt(exact(x).var(over(x), keepdims=True) + epsilon)


def built(method: str, *wanted: int, **options: Any) -> Any:
    """Builds an operation from operands by name, with some of its results; all when none is named."""

    def build(g: Any, **operands: Any) -> Any:
        made = getattr(g, method)(**operands, **options, name="op")
        return [made[i] for i in wanted] if wanted else made

    return build


# ---- genstats ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("dims", SHAPES)
def test_genstats(dims: tuple[int, ...], dtype: str) -> None:
    x = random(dims, dtype)
    expected = [exact(x).sum(over(x), keepdims=True), (exact(x) ** 2).sum(over(x), keepdims=True)]
    graph = FLOAT64 if dtype == "f64" else {}
    found = check(
        built("genstats"), {"input": x}, expected, layouts=LAYOUTS, magnitude=4.0 * x.size, graph=graph
    )
    for arrays in found.values():
        assert {each.dtype.name for each in arrays} == {"float64" if dtype == "f64" else "float32"}


@pytest.mark.parametrize("dims", [(0, 3, 4), (2, 3, 0), (2, 0, 4)])
def test_genstats_of_nothing_is_zero(dims: tuple[int, ...]) -> None:
    zeros = np.zeros((1, dims[1], 1))
    check(built("genstats"), {"input": np.zeros(dims, np.float32)}, [zeros, zeros])


@pytest.mark.parametrize("wanted", [0, 1])
def test_genstats_with_only_one_sum(wanted: int) -> None:
    x = random((2, 3, 4))
    check(built("genstats", wanted), {"input": x}, [(exact(x) ** (wanted + 1)).sum((0, 2), keepdims=True)])


def test_genstats_refuses_a_vector() -> None:
    message = "genstats 'op': x has 1 dim [3], expected 2..8. Reshape it."
    refuses(built("genstats"), {"input": ((3,), "f32")}, message)


@pytest.mark.parametrize(("i", "key"), [(0, "sum"), (1, "sq_sum")])
def test_genstats_refuses_sums_of_other_dims(i: int, key: str) -> None:
    def build(g: Any, x: Any) -> None:
        g.genstats(x, name="op")[i].set_dim([3, 1])

    message = f"genstats 'op': {key} has dims [3,1], expected [1,3]. Give it these dims, or none."
    refuses(build, {"x": ((2, 3), "f32")}, message)


# ---- bn_finalize -------------------------------------------------------------------------------------------


def sums_of(x: Any) -> dict[str, Any]:
    """Returns the inputs of bn_finalize from genstats, in double so that the rounding of the sums does not
    matter."""
    wide = exact(x)
    return {"sum": wide.sum(over(x), keepdims=True), "sq_sum": (wide**2).sum(over(x), keepdims=True)}


@pytest.mark.parametrize("dims", SHAPES[:3])
@pytest.mark.parametrize("momentum", [0.0, 0.25, 1.0])
def test_bn_finalize_training(dims: tuple[int, ...], momentum: float) -> None:
    x, scale, bias = random(dims, "f64"), channels(dims, seed=1), channels(dims, seed=2)
    before_mean, before_var = channels(dims, seed=3), channels(dims, low=0, seed=4)
    n, variance = x.size // dims[1], x.var(over(x), keepdims=True)
    factor = scale * inverse_of(x)
    expected = [
        factor,
        bias - mean_of(x) * factor,
        mean_of(x),
        inverse_of(x),
        (1 - momentum) * exact(before_mean) + momentum * mean_of(x),
        (1 - momentum) * exact(before_var) + momentum * variance * n / (n - 1),
    ]
    operands = sums_of(x) | {"scale": scale, "bias": bias}
    operands |= {"in_running_mean": before_mean, "in_running_var": before_var}
    scalars = {"epsilon": (EPSILON, "f32"), "accum_count": (n, "i64"), "momentum": (momentum, "f64")}
    check(built("bn_finalize"), operands, expected, out="f32", scalars=scalars, magnitude=4)


def test_bn_finalize_without_running_values_gives_the_batch() -> None:
    x = random((4, 3, 5), "f64")
    inverse, unbiased = inverse_of(x), x.var((0, 2), keepdims=True, ddof=1)
    expected = [inverse, -mean_of(x) * inverse, mean_of(x), inverse, mean_of(x), unbiased]
    build = built("bn_finalize", scale=None, bias=None, epsilon=EPSILON, accum_count=20)
    check(build, sums_of(x), expected, magnitude=4)


@pytest.mark.parametrize("wanted", [(0, 1), (4,), (2, 5)])
def test_bn_finalize_outputs_are_optional(wanted: tuple[int, ...]) -> None:
    x = random((4, 3, 5), "f64")
    inverse, unbiased = inverse_of(x), x.var((0, 2), keepdims=True, ddof=1)
    expected = [inverse, -mean_of(x) * inverse, mean_of(x), inverse, mean_of(x), unbiased]
    build = built("bn_finalize", *wanted, scale=None, bias=None, epsilon=EPSILON, accum_count=20)
    check(build, sums_of(x), [expected[i] for i in wanted], magnitude=4)


def test_bn_finalize_inference() -> None:
    dims = (1, 5, 1, 1)
    scale, bias, mean, variance = (channels(dims, low=0, seed=i) for i in range(4))
    inverse = 1 / np.sqrt(exact(variance) + EPSILON)
    expected = [scale * inverse, bias - mean * (scale * inverse), mean, inverse, mean, variance]
    none = {"sum": None, "sq_sum": None, "accum_count": None}
    build = built("bn_finalize", epsilon=EPSILON, stats_mode="INFERENCE", **none)
    operands = {"scale": scale, "bias": bias, "in_running_mean": mean, "in_running_var": variance}
    check(build, operands, expected, magnitude=4)


def test_bn_finalize_survives_rounded_sums() -> None:
    """sq_sum / n - mean^2 may be negative due to rounding; a variance is not."""
    operands = {"sum": np.float32([[10]]), "sq_sum": np.float32([[9.999999]])}
    build = built("bn_finalize", 3, scale=None, bias=None, epsilon=2.0**-14, accum_count=10)
    check(build, operands, [np.array([[2.0**7]])])


@pytest.mark.parametrize("count", [0, 1])
def test_bn_finalize_of_next_to_nothing(count: int) -> None:
    three = np.full((1, 2), 3, np.float32)
    operands = {"sum": three * count, "sq_sum": three * three * count, "scale": three, "bias": three}
    operands |= {"in_running_mean": three + 1, "in_running_var": three + 2}
    build = built("bn_finalize", epsilon=1.0, accum_count=count, momentum=0.5)
    updated = [(three + 1 + three) / 2, (three + 2) / 2] if count else [three + 1, three + 2]
    check(build, operands, [three, three - 3 * three * count, three * count, three / 3, *updated])


ROW = ((1, 3), "f32")
COMPLETE: dict[str, Any] = dict.fromkeys(("sum", "sq_sum", "scale", "bias"), ROW)
NUMBERS: dict[str, Any] = {"epsilon": 1e-5, "accum_count": 4}


def test_bn_finalize_refuses_missing_sums() -> None:
    start = "bn_finalize 'op': mode TRAINING computes statistics from sum, sq_sum and accum_count; "
    build = built("bn_finalize", epsilon=1e-5, accum_count=None)
    refuses(build, COMPLETE, start + "accum_count is not set. Set all three.")
    build = built("bn_finalize", **NUMBERS, sq_sum=None)
    without = {key: value for key, value in COMPLETE.items() if key != "sq_sum"}
    refuses(build, without, start + "sq_sum is not set. Set all three.")


def test_bn_finalize_refuses_missing_running_values() -> None:
    message = "bn_finalize 'op': mode INFERENCE uses statistics from in_running_mean and in_running_var; "
    build = built("bn_finalize", **NUMBERS, stats_mode="INFERENCE")
    refuses(build, COMPLETE, message + "in_running_mean is not set. Set both.")
    refuses(build, COMPLETE | {"in_running_mean": ROW}, message + "in_running_var is not set. Set both.")


def test_bn_finalize_refuses_an_update_without_factor() -> None:
    rule = "momentum is required to update running statistics, and was not set. Set it to a scalar tensor."
    refuses(built("bn_finalize", **NUMBERS), COMPLETE | {"in_running_var": ROW}, f"bn_finalize 'op': {rule}")


@pytest.mark.parametrize("key", ["sum", "sq_sum", "scale", "bias"])
def test_bn_finalize_refuses_other_dims(key: str) -> None:
    message = f"bn_finalize 'op': {key} has dims [2,3], expected [1,3]. Give it these dims, or none."
    refuses(built("bn_finalize", **NUMBERS), COMPLETE | {key: ((2, 3), "f32")}, message)


@pytest.mark.parametrize("key", ["epsilon", "accum_count"])
def test_bn_finalize_refuses_arrays_for_scalars(key: str) -> None:
    numbers = {name: value for name, value in NUMBERS.items() if name != key}
    message = f"bn_finalize 'op': {key} is a scalar, its dims are [1,3]. Use all ones."
    refuses(built("bn_finalize", **numbers), COMPLETE | {key: ((1, 3), "f32")}, message)


# ---- dbn_weight --------------------------------------------------------------------------------------------


def norm(x: Any, scale: Any, bias: Any) -> Any:
    """Batch norm in float64."""
    return scale * (x - mean_of(x)) * inverse_of(x) + bias


@pytest.mark.parametrize("dims", [(4, 3, 2, 2), (6, 5), (3, 2, 1, 2, 2)])
def test_dbn_weight_is_the_gradient(dims: tuple[int, ...]) -> None:
    x, dy = random(dims, "f64"), random(dims, "f64", seed=1)
    scale, bias = channels(dims, "f64", seed=2), channels(dims, "f64", seed=3)
    operands = {"dy": dy, "x": x, "mean": mean_of(x), "inv_variance": inverse_of(x), "scale": scale}
    dx, dscale, dbias = (numeric_gradient(norm, (x, scale, bias), i, dy) for i in range(3))
    found = check(built("dbn_weight"), operands, [None] * 5, graph=FLOAT64)
    for got_dscale, got_dbias, of_dy, of_x, addend in found.values():
        np.testing.assert_allclose(of_dy * dy + of_x * x + addend, dx, rtol=0, atol=1e-7)
        np.testing.assert_allclose(got_dscale, dscale, rtol=0, atol=1e-7)
        np.testing.assert_allclose(got_dbias, dbias, rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("with_scale", [True, False])
def test_dbn_weight(with_scale: bool, dtype: str) -> None:
    dims = (4, 5, 3, 2)
    x, dy = random(dims, dtype), random(dims, dtype, seed=1)
    scale = channels(dims, seed=2) if with_scale else None
    mean, inverse = np.float32(mean_of(x)), np.float32(inverse_of(x))
    dbias = exact(dy).sum((0, 2, 3), keepdims=True)
    dscale = (exact(dy) * (exact(x) - mean) * inverse).sum((0, 2, 3), keepdims=True)
    of_dy = exact(inverse) * (1 if scale is None else scale)
    of_x = -of_dy * inverse * dscale / 24
    operands = {"dy": dy, "x": x, "mean": mean, "inv_variance": inverse}
    operands |= {} if scale is None else {"scale": scale}
    build = built("dbn_weight", **({"scale": None} if scale is None else {}))
    expected = [dscale, dbias, of_dy, of_x, -of_dy * dbias / 24 - of_x * mean]
    check(build, operands, expected, layouts=LAYOUTS, magnitude=100)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_sums_are_kept_in_float_or_double(dtype: str) -> None:
    """Sums without a type become float or double, regardless of the type of x, because they must not be
    narrowed."""
    g = weft.Graph()
    x, one = g.tensor([2, 3, 4], data_type=dtype), g.tensor([1, 3, 1], data_type="f32")
    sums = [*g.genstats(x), *g.dbn_weight(x, x, one, one, None)]
    g.validate()
    assert {each.dtype.name for each in sums} == {"DOUBLE" if dtype == "f64" else "FLOAT"}


@pytest.mark.parametrize("dims", [(0, 3, 2), (2, 3, 0), (2, 0, 3)])
def test_dbn_weight_of_nothing_is_zero(dims: tuple[int, ...]) -> None:
    x, one = np.zeros(dims, np.float32), np.ones((1, dims[1], 1), np.float32)
    operands = {"dy": x, "x": x, "mean": one, "inv_variance": one, "scale": one}
    check(built("dbn_weight"), operands, [0 * one, 0 * one, one, 0 * one, 0 * one])


def test_dbn_weight_outputs_are_optional() -> None:
    x, one = random((2, 3, 4)), np.ones((1, 3, 1), np.float32)
    operands = {"dy": x, "x": x, "mean": 0 * one, "inv_variance": one, "scale": one}
    check(built("dbn_weight", 1), operands, [exact(x).sum((0, 2), keepdims=True)], magnitude=16)


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("dy", (2, 3, 1), "2,3,4"),
        ("mean", (1, 1, 1), "1,3,1"),
        ("inv_variance", (2, 3, 1), "1,3,1"),
        ("scale", (3,), "1,3,1"),
    ],
)
def test_dbn_weight_refuses_other_dims(key: str, given: tuple[int, ...], expected: str) -> None:
    operands: dict[str, Any] = {"dy": ((2, 3, 4), "f32"), "x": ((2, 3, 4), "f32")}
    operands |= dict.fromkeys(("mean", "inv_variance", "scale"), ((1, 3, 1), "f32"))
    dims = ",".join(map(str, given))
    message = f"dbn_weight 'op': {key} has dims [{dims}], expected [{expected}]. Give it these dims, or none."
    refuses(built("dbn_weight"), operands | {key: (given, "f32")}, message)


# ---- All together ------------------------------------------------------------------------------------------


def test_parts_make_batch_norm() -> None:
    """One graph: sums, statistics, and the norm as a multiplication and an addition."""
    dims = (4, 3, 2, 5)
    x, scale, bias = random(dims, "f64"), channels(dims, seed=1), channels(dims, seed=2)

    def build(g: weft.Graph, x: Any, scale: Any, bias: Any) -> Any:
        total, squares = g.genstats(x)
        made = g.bn_finalize(total, squares, scale, bias, EPSILON, 40)
        return g.add(g.mul(x, made[0]), made[1])

    operands = {"x": x, "scale": scale, "bias": bias}
    check(build, operands, norm(x, scale, bias), layouts=LAYOUTS, magnitude=8, graph=FLOAT64)


def test_parts_make_the_gradient_of_batch_norm() -> None:
    dims = (4, 3, 2, 2)
    x, dy, scale = random(dims, "f64"), random(dims, "f64", seed=1), channels(dims, "f64", seed=2)

    def build(g: weft.Graph, dy: Any, x: Any, mean: Any, inverse: Any, scale: Any) -> Any:
        _, _, of_dy, of_x, addend = g.dbn_weight(dy, x, mean, inverse, scale)
        whole, _, _ = g.batchnorm_backward(dy, x, scale, mean, inverse)
        return g.sub(g.add(g.add(g.mul(dy, of_dy), g.mul(x, of_x)), addend), whole)

    operands = {"dy": dy, "x": x, "mean": mean_of(x), "inverse": inverse_of(x), "scale": scale}
    check(build, operands, np.zeros(dims), magnitude=8, graph=FLOAT64)
