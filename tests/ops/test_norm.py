# SPDX-License-Identifier: Apache-2.0
"""Norms, forward and backward, against NumPy in float64: every mode, type and layout."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import weft
from checks import (
    DEVICE,
    LAYOUTS,
    check,
    exact,
    execute,
    handle,
    narrow,
    numeric_gradient,
    random,
    refuses,
    roundoff,
)

FLOAT64 = {"compute_data_type": "f64"}
EPSILON = 2.0**-10


class Case(NamedTuple):
    """A norm. axes: what statistics span, of x with its groups as a dimension of their own if it has "
    "groups."""

    method: str
    x: tuple[int, ...]
    affine: tuple[int, ...]
    axes: tuple[int, ...]
    groups: int = 0

    def split(self, x: Any) -> Any:
        """x with its groups as a dimension of their own, so that statistics span `axes` of it."""
        return x.reshape(x.shape[0], self.groups, -1, *x.shape[2:]) if self.groups else x

    @property
    def has_mean(self) -> bool:
        return self.method != "rmsnorm"

    def statistics(self, x: Any) -> tuple[Any, Any]:
        """Mean and inverse deviation of split x."""
        wide = self.split(exact(x))
        mean = wide.mean(self.axes, keepdims=True) if self.has_mean else 0.0
        variance = ((wide - mean) ** 2).mean(self.axes, keepdims=True)
        return mean, 1 / np.sqrt(variance + EPSILON)

    def kept(self, statistic: Any) -> Any:
        """A statistic in the dims in which it is stored: [N, groups, 1..] of groups."""
        return statistic.reshape(statistic.shape[:2] + (1,) * (len(self.x) - 2)) if self.groups else statistic

    def normal(self, x: Any) -> Any:
        """x without scale and bias."""
        mean, inverse = self.statistics(x)
        return ((self.split(exact(x)) - mean) * inverse).reshape(x.shape)

    def forward(self, x: Any, scale: Any, bias: Any) -> Any:
        return scale * self.normal(x) + bias

    def backward(self, dy: Any, x: Any, scale: Any, kept: dict[str, Any] | None = None) -> list[Any]:
        """dx, dscale, dbias. kept: the statistics as the forward operation rounded them."""
        mean, inverse = self.statistics(x)
        if kept:
            inverse = exact(kept["inv_variance"]).reshape(inverse.shape)
            mean = exact(kept["mean"]).reshape(inverse.shape) if self.has_mean else 0.0
        normal, g = (self.split(exact(x)) - mean) * inverse, self.split(exact(dy) * scale)
        center = g.mean(self.axes, keepdims=True) if self.has_mean else 0.0
        dx = inverse * (g - center - normal * (g * normal).mean(self.axes, keepdims=True))
        rest = tuple(i for i, extent in enumerate(self.affine) if extent == 1)
        dscale = (exact(dy) * normal.reshape(x.shape)).sum(rest, keepdims=True)
        return [dx.reshape(x.shape), dscale, exact(dy).sum(rest, keepdims=True)]

    def options(self, phase: str | None = "TRAINING") -> dict[str, Any]:
        """Returns the keyword arguments of the method other than tensors."""
        found: dict[str, Any] = {"groups": self.groups} if self.groups else {}
        if phase is not None and self.method != "batchnorm":
            found["norm_forward_phase"] = phase
        return found


CASES = [
    Case("layernorm", (3, 4, 5), (1, 1, 5), (2,)),
    Case("layernorm", (2, 3, 4, 5), (1, 3, 4, 5), (1, 2, 3)),
    Case("layernorm", (7, 6, 1, 1), (1, 6, 1, 1), (1,)),
    Case("layernorm", (2, 3, 4, 5), (1, 3, 1, 1), (1,)),
    Case("layernorm", (2, 3, 1, 5), (1, 1, 1, 5), (3,)),
    Case("layernorm", (2, 3, 1), (1, 1, 1), (2,)),
    Case("layernorm", (2, 1, 1, 1), (1, 1, 1, 1), (1, 2, 3)),
    Case("layernorm", (9,), (9,), (0,)),
    Case("layernorm", (2, 300), (1, 300), (1,)),
    Case("rmsnorm", (3, 4, 5), (1, 1, 5), (2,)),
    Case("rmsnorm", (2, 3, 4, 5), (1, 3, 4, 5), (1, 2, 3)),
    Case("rmsnorm", (7, 6, 1, 1), (1, 6, 1, 1), (1,)),
    Case("adalayernorm", (3, 4, 5), (3, 1, 5), (2,)),
    Case("adalayernorm", (3, 8, 1, 1), (3, 8, 1, 1), (1,)),
    Case("adalayernorm", (1, 4, 5), (1, 4, 5), (1, 2)),
    Case("adalayernorm", (3, 4, 5), (1, 1, 5), (2,)),
    Case("instancenorm", (2, 3, 4, 5), (1, 3, 1, 1), (2, 3)),
    Case("instancenorm", (2, 3, 7), (1, 3, 1), (2,)),
    Case("batchnorm", (4, 3, 2, 5), (1, 3, 1, 1), (0, 2, 3)),
    Case("batchnorm", (6, 35), (1, 35), (0,)),
    Case("batchnorm", (2, 3, 2, 2, 3), (1, 3, 1, 1, 1), (0, 2, 3, 4)),
    Case("groupnorm", (2, 6, 3, 5), (1, 6, 1, 1), (2, 3, 4), 3),
    Case("groupnorm", (2, 6, 3), (1, 6, 1), (2, 3), 1),
    Case("groupnorm", (3, 4), (1, 4), (2,), 2),
    Case("groupnorm", (2, 4, 3), (1, 4, 1), (2, 3), 4),
    Case("groupnorm", (2, 4, 17, 19), (1, 4, 1, 1), (2, 3, 4), 2),  # channels long enough to be read in place
]
BY_METHOD = list({case.method: case for case in reversed(CASES)}.values())[::-1]


def named(case: Case) -> str:
    return f"{case.method}-{'x'.join(map(str, case.x))}-{'x'.join(map(str, case.affine))}"


cases = pytest.mark.parametrize("case", CASES, ids=named)
one_per_mode = pytest.mark.parametrize("case", BY_METHOD, ids=named)
PHASED = [case for case in BY_METHOD if case.method != "batchnorm"]
one_per_phased_mode = pytest.mark.parametrize("case", PHASED, ids=named)


def forward(case: Case, count: int | None = None, **options: Any) -> Any:
    """Builds the norm with its first results; without running statistics, which have their own tests."""
    if count is None:
        count = 3 if case.has_mean else 2

    def build(g: Any, **operands: Any) -> Any:
        numbers = {"epsilon": EPSILON} | case.options() | options
        return getattr(g, case.method)(input=operands.pop("x"), **operands, **numbers, name="n")[:count]

    return build


def backward(case: Case, *wanted: int, **options: Any) -> Any:
    """Builds the gradients, some of them; all when none is named."""

    def build(g: Any, **operands: Any) -> Any:
        gradient, x = operands.pop("dy"), operands.pop("x")
        numbers = case.options(None) | options
        made = getattr(g, f"{case.method}_backward")(gradient, x, **operands, **numbers, name="n")
        return [made[i] for i in wanted or range(3)]

    return build


def outputs(case: Case, x: Any, scale: Any, bias: Any) -> list[Any]:
    """y and the statistics that the mode keeps."""
    mean, inverse = case.statistics(x)
    return [case.forward(x, scale, bias), *([case.kept(mean)] if case.has_mean else []), case.kept(inverse)]


# ---- Forward -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@cases
def test_forward(case: Case, dtype: str) -> None:
    x, scale, bias = random(case.x, dtype), random(case.affine, seed=1), random(case.affine, seed=2)
    kept = "f64" if dtype == "f64" else "f32"
    found = check(
        forward(case),
        {"x": x, "scale": scale, "bias": bias},
        outputs(case, x, scale, bias),
        layouts=LAYOUTS,
        magnitude=8,
        graph=FLOAT64 if dtype == "f64" else {},
    )
    for y, *statistics in found.values():
        assert y.dtype == x.dtype
        assert {each.dtype.name for each in statistics} == {"float64" if kept == "f64" else "float32"}


WHOLE = [  # what the methods normalise when nothing names the dimensions
    Case("layernorm", (3, 4, 5), (1, 4, 5), (1, 2)),
    Case("rmsnorm", (3, 4, 5), (1, 4, 5), (1, 2)),
    Case("adalayernorm", (3, 4, 5), (3, 4, 5), (1, 2)),
    *[case for case in BY_METHOD if case.affine[1] == case.x[1]],
]


@pytest.mark.parametrize("given", [(), ("scale",), ("bias",)])
@pytest.mark.parametrize("case", WHOLE, ids=named)
def test_scale_and_bias_are_optional(case: Case, given: tuple[str, ...]) -> None:
    x, operands = random(case.x), {key: random(case.affine, seed=1) for key in given}
    expected = outputs(case, x, operands.get("scale", 1), operands.get("bias", 0))
    check(forward(case), {"x": x} | operands, expected, magnitude=8)


@one_per_phased_mode
def test_inference_needs_no_statistics(case: Case) -> None:
    x, scale = random(case.x), random(case.affine, seed=1)
    build = forward(case, 1, **case.options("INFERENCE"))
    check(build, {"x": x, "scale": scale}, [case.forward(x, scale, 0)], magnitude=8)


@one_per_phased_mode
def test_inference_gives_statistics_on_request(case: Case) -> None:
    x, scale, bias = random(case.x), random(case.affine, seed=1), random(case.affine, seed=2)
    keys = ("y", "mean", "inv_variance") if case.has_mean else ("y", "inv_variance")

    def build(g: Any, **operands: Any) -> Any:
        mode = case.method.removesuffix("norm").replace("ada", "ada_").upper() + "_NORM"
        options = case.options("INFERENCE") | {"epsilon": EPSILON, "mode": mode}
        options["phase"] = options.pop("norm_forward_phase")
        return g._operation("norm", "norm", operands | options, keys, name="n")

    check(build, {"x": x, "scale": scale, "bias": bias}, outputs(case, x, scale, bias), magnitude=8)


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_epsilon_comes_at_run_time(dtype: str) -> None:
    case, x = CASES[0], random(CASES[0].x)
    scale, bias = random(case.affine, seed=1), random(case.affine, seed=2)
    build = lambda g, x, scale, bias, epsilon: g.layernorm("TRAINING", x, scale, bias, epsilon)  # noqa: E731
    operands = {"x": x, "scale": scale, "bias": bias}
    check(build, operands, outputs(case, x, scale, bias), scalars={"epsilon": (EPSILON, dtype)}, magnitude=8)


@pytest.mark.parametrize("dims", [(3, 4, 5), (25, 20, 300)])
def test_scale_may_have_the_type_of_x(dims: tuple[int, ...]) -> None:
    """Includes many rows, which share the converted scale."""
    case = Case("rmsnorm", dims, (1, 1, dims[2]), (2,))
    x = random(case.x, "bf16")
    scale, bias = random(case.affine, "bf16", seed=1), random(case.affine, "bf16", seed=2)
    expected = outputs(case, x, exact(scale), exact(bias))
    check(forward(case), {"x": x, "scale": scale, "bias": bias}, expected, magnitude=8)


@one_per_mode
def test_variance_does_not_cancel(case: Case) -> None:
    """Deviations of 1 on a mean of 4096, whose squares sum to more than float32 holds."""
    x = np.float32(4096 + random(case.x, "f64", -1, 1))
    mean, inverse = case.statistics(x)
    build = forward(case, None)
    statistics = [case.kept(mean), case.kept(inverse)] if case.has_mean else [case.kept(inverse)]
    scale = np.ones(case.affine, np.float32)
    check(build, {"x": x, "scale": scale}, [None, *statistics], layouts=["packed"], magnitude=8, ulps=2)


def test_result_of_another_type() -> None:
    case = CASES[0]
    x, scale, bias = random(case.x, "bf16"), random(case.affine, seed=1), random(case.affine, seed=2)
    expected = [case.forward(x, scale, bias)]
    check(forward(case, 1), {"x": x, "scale": scale, "bias": bias}, expected, out="f32", magnitude=8)


def test_virtual_result_keeps_the_precision_of_the_calculation() -> None:
    case, x = CASES[0], random(CASES[0].x, "bf16")
    scale = random(case.affine, seed=1)
    build = lambda g, x, scale: g.identity(g.layernorm("INFERENCE", x, scale, None, EPSILON)[0])  # noqa: E731
    check(build, {"x": x, "scale": scale}, case.forward(x, scale, 0), out="f32", magnitude=8)


def test_zero_centred_scale() -> None:
    case, x = CASES[9], random(CASES[9].x)
    scale = random(case.affine, seed=1)
    build = lambda g, x, scale: g.rmsnorm("INFERENCE", x, g.add(scale, 1.0), None, EPSILON)[0]  # noqa: E731
    check(build, {"x": x, "scale": scale}, case.forward(x, 1 + exact(scale), 0), magnitude=8)


# ---- Nothing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "count"),
    [
        (Case("layernorm", (0, 4), (1, 4), (1,)), (0, 1)),
        (Case("layernorm", (3, 0), (1, 0), (1,)), (3, 1)),
        (Case("rmsnorm", (3, 0), (1, 0), (1,)), (3, 1)),
        (Case("adalayernorm", (2, 0, 3), (2, 1, 3), (2,)), (2, 0, 1)),
        (Case("batchnorm", (0, 3, 2), (1, 3, 1), (0, 2)), (1, 3, 1)),
        (Case("batchnorm", (2, 0, 2), (1, 0, 1), (0, 2)), (1, 0, 1)),
        (Case("instancenorm", (2, 3, 0), (1, 3, 1), (2,)), (2, 3, 1)),
        (Case("groupnorm", (2, 0, 3), (1, 0, 1), (2, 3), 2), (2, 2, 1)),
        (Case("groupnorm", (2, 4, 0), (1, 4, 1), (2, 3), 2), (2, 2, 1)),
    ],
    ids=lambda value: named(value) if isinstance(value, Case) else "",
)
def test_empty(case: Case, count: tuple[int, ...]) -> None:
    """Rows without elements have a mean and a variance of 0, and gradients that sum nothing are 0."""
    x, scale = np.zeros(case.x, np.float32), np.ones(case.affine, np.float32)
    inverse = np.full(count, EPSILON**-0.5)
    statistics = [np.zeros(count), inverse] if case.has_mean else [inverse]
    check(forward(case), {"x": x, "scale": scale}, [x, *statistics])
    build, zeros = backward(case, epsilon=EPSILON), np.zeros(case.affine)
    check(build, {"dy": x, "x": x, "scale": scale}, [x, zeros, zeros])


# ---- Batch norm's running statistics and inference ---------------------------------------------------------


def running(x: Any, momentum: float, mean: Any, variance: Any) -> list[Any]:
    """Running mean and variance after a step."""
    axes = tuple(i for i in range(x.ndim) if i != 1)
    count = x.size // x.shape[1]
    unbiased = exact(x).var(axes, keepdims=True) * (count / (count - 1) if count > 1 else 1)
    fresh = exact(x).mean(axes, keepdims=True)
    return [(1 - momentum) * mean + momentum * fresh, (1 - momentum) * variance + momentum * unbiased]


BATCH = Case("batchnorm", (4, 3, 2, 5), (1, 3, 1, 1), (0, 2, 3))


@pytest.mark.parametrize("momentum", [0.0, 0.25, 1.0])
def test_running_statistics(momentum: float) -> None:
    x, scale, bias = random(BATCH.x), random(BATCH.affine, seed=1), random(BATCH.affine, seed=2)
    mean, variance = random(BATCH.affine, seed=3), random(BATCH.affine, low=0, seed=4)
    operands = {"x": x, "scale": scale, "bias": bias, "in_running_mean": mean, "in_running_var": variance}
    expected = outputs(BATCH, x, scale, bias) + running(x, momentum, mean, variance)
    check(forward(BATCH, 5, momentum=momentum), operands, expected, layouts=LAYOUTS, magnitude=8)


def test_running_statistics_begin_with_the_batch() -> None:
    x, scale = random(BATCH.x), random(BATCH.affine, seed=1)
    expected = outputs(BATCH, x, scale, 0) + running(x, 1, 0, 0)
    check(forward(BATCH, 5), {"x": x, "scale": scale}, expected, magnitude=8)


def test_one_element_has_no_unbiased_variance() -> None:
    x, half = random((1, 3)), np.full((1, 3), 0.5, np.float32)
    case = Case("batchnorm", (1, 3), (1, 3), (0,))
    expected = [*outputs(case, x, 1, 0), (half + x) / 2, half / 2]
    check(forward(case, 5, momentum=0.5), {"x": x, "in_running_mean": half, "in_running_var": half}, expected)


def test_an_empty_batch_does_not_change_running_statistics() -> None:
    x, half = np.zeros((0, 3), np.float32), np.full((1, 3), 0.5, np.float32)
    case = Case("batchnorm", (0, 3), (1, 3), (0,))
    expected = [x, 0 * half, 0 * half + EPSILON**-0.5, half, half]
    check(forward(case, 5, momentum=0.5), {"x": x, "in_running_mean": half, "in_running_var": half}, expected)


def test_running_statistics_may_be_updated_in_place() -> None:
    x = random(BATCH.x)
    mean, variance = random(BATCH.affine, seed=3), random(BATCH.affine, low=0, seed=4)
    expected = running(x, 0.25, mean, variance)
    g = weft.Graph(handle=handle())
    image, *before = (g.tensor_like(array, is_pass_by_value=False) for array in (x, mean, variance))
    _, _, _, *after = g.batchnorm(image, None, None, *before, EPSILON, 0.25)
    for tensor in after:
        tensor.set_output(True)
    g.build()
    execute(g, {image: x, before[0]: mean, before[1]: variance, after[0]: mean, after[1]: variance})
    np.testing.assert_allclose(mean, expected[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(variance, expected[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("dims", [(4, 3, 2, 5), (6, 35), (0, 3, 2)])
def test_batchnorm_inference(dims: tuple[int, ...], dtype: str) -> None:
    affine = (1, dims[1]) + (1,) * (len(dims) - 2)
    x = random(dims, dtype)
    mean, inverse, scale, bias = (random(affine, low=0.5, seed=i) for i in range(1, 5))
    operands = {"input": x, "mean": mean, "inv_variance": inverse, "scale": scale, "bias": bias}
    expected = scale * (exact(x) - mean) * inverse + bias
    build = lambda g, **operands: g.batchnorm_inference(**operands)  # noqa: E731
    graph = FLOAT64 if dtype == "f64" else {}
    check(build, operands, expected, layouts=LAYOUTS, magnitude=8, graph=graph)


def test_batchnorm_inference_from_running_statistics() -> None:
    x = random(BATCH.x)
    mean, variance = random(BATCH.affine, seed=1), random(BATCH.affine, low=0, seed=2)
    build = lambda g, **operands: g.batchnorm_inference(**operands, epsilon=EPSILON)  # noqa: E731
    operands = {"input": x, "in_running_mean": mean, "in_running_var": variance}
    check(build, operands, (exact(x) - mean) / np.sqrt(exact(variance) + EPSILON), magnitude=100)


def test_batchnorm_inference_reads_statistics_made_in_the_graph() -> None:
    x = random(BATCH.x)
    mean, inverse = random(BATCH.affine, seed=1), random(BATCH.affine, low=0.5, seed=2)
    build = lambda g, x, mean, inverse: g.batchnorm_inference(x, g.neg(mean), g.neg(inverse))  # noqa: E731
    check(build, {"x": x, "mean": mean, "inverse": inverse}, -(exact(x) + mean) * inverse, magnitude=8)


# ---- Backward ----------------------------------------------------------------------------------------------


def given(case: Case, x: Any, dtype: str = "f4") -> dict[str, Any]:
    """Returns the values that the forward operation saves."""
    mean, inverse = case.statistics(x)
    kept = {"mean": mean, "inv_variance": inverse} if case.has_mean else {"inv_variance": inverse}
    return {key: np.asarray(case.kept(value), dtype) for key, value in kept.items()}


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@cases
def test_backward(case: Case, dtype: str) -> None:
    x, dy, scale = random(case.x, dtype), random(case.x, dtype, seed=1), random(case.affine, seed=2)
    kept = given(case, x, "f8" if dtype == "f64" else "f4")
    check(
        backward(case),
        {"dy": dy, "x": x, "scale": scale} | kept,
        case.backward(dy, x, scale, kept),
        layouts=LAYOUTS,
        magnitude=64 * max(float(kept["inv_variance"].max()), 1),
        graph=FLOAT64 if dtype == "f64" else {},
    )


# Channels of groups as columns of a block: several pieces of them; images in parts, where sums have few
# elements; vectors of columns and what is left; groups too long to be columns; few rows in a block.
GROUPS = [
    Case("groupnorm", (2, 1200, 3, 2), (1, 1200, 1, 1), (2, 3, 4), 100),
    Case("groupnorm", (1, 48, 40, 50), (1, 48, 1, 1), (2, 3, 4), 3),
    Case("groupnorm", (9, 40, 7, 5), (1, 40, 1, 1), (2, 3, 4), 8),
    Case("groupnorm", (2, 600, 2, 2), (1, 600, 1, 1), (2, 3, 4), 2),
    Case("groupnorm", (3, 66, 9), (1, 66, 1), (2, 3), 33),
]


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("case", GROUPS, ids=named)
def test_groups_of_many_channels(case: Case, dtype: str) -> None:
    x, dy, scale = random(case.x, dtype), random(case.x, dtype, seed=1), random(case.affine, seed=2)
    kept, bias = given(case, x), random(case.affine, seed=3)
    operands = {"x": x, "scale": scale, "bias": bias}
    check(forward(case), operands, outputs(case, x, scale, bias), layouts=LAYOUTS, magnitude=8)
    expected = case.backward(dy, x, scale, kept)
    # Sums of thousands of products: their error is that of the largest on the way.
    magnitude = 8 * max(float(np.abs(each).max()) for each in expected)
    operands = {"dy": dy, "x": x, "scale": scale} | kept
    check(backward(case), operands, expected, layouts=LAYOUTS, magnitude=magnitude)


@pytest.mark.parametrize("case", [c for c in CASES if np.prod(c.x) < 100 and np.prod(c.x) > 8], ids=named)
def test_backward_is_the_gradient(case: Case) -> None:
    x, dy = random(case.x, "f64"), random(case.x, "f64", seed=1)
    scale, bias = random(case.affine, "f64", seed=2), random(case.affine, "f64", seed=3)
    expected = [numeric_gradient(case.forward, (x, scale, bias), i, dy) for i in range(3)]
    operands = {"dy": dy, "x": x, "scale": scale} | given(case, x, "f8")
    for gradients in check(backward(case), operands, [None] * 3, layouts=["packed"], graph=FLOAT64).values():
        for got, want in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@one_per_mode
def test_statistics_are_recomputed_when_absent(case: Case) -> None:
    x, dy, scale = random(case.x), random(case.x, seed=1), random(case.affine, seed=2)
    expected = case.backward(dy, x, scale)
    check(backward(case, epsilon=EPSILON), {"dy": dy, "x": x, "scale": scale}, expected, magnitude=64)


@one_per_mode
def test_backward_without_scale(case: Case) -> None:
    """Then the dims of the statistics determine which dimensions were normalized."""
    if case.method in ("layernorm", "rmsnorm"):
        case = case._replace(affine=tuple(n if i in case.axes else 1 for i, n in enumerate(case.x)))
    x, dy = random(case.x), random(case.x, seed=1)
    kept = given(case, x)
    check(backward(case), {"dy": dy, "x": x} | kept, case.backward(dy, x, 1.0, kept), magnitude=64)


@pytest.mark.parametrize("wanted", [(0,), (0, 2), (1,), (2,)])
@one_per_mode
def test_gradients_are_optional(case: Case, wanted: tuple[int, ...]) -> None:
    x, dy, scale = random(case.x), random(case.x, seed=1), random(case.affine, seed=2)
    kept = given(case, x)
    expected = [case.backward(dy, x, scale, kept)[i] for i in wanted]
    check(backward(case, *wanted), {"dy": dy, "x": x, "scale": scale} | kept, expected, magnitude=64)


def test_gradients_are_kept_as_their_tensors_are() -> None:
    case = Case("rmsnorm", (3, 4, 5), (1, 1, 5), (2,))
    x, dy, scale = random(case.x, "f16"), random(case.x, seed=1), random(case.affine, "bf16", seed=2)
    kept = given(case, x)
    expected = case.backward(dy, x, exact(scale), kept)
    found = check(backward(case), {"dy": dy, "x": x, "scale": scale} | kept, expected, magnitude=64)
    for dx, dscale, dbias in found.values():
        assert (dx.dtype, dscale.dtype, dbias.dtype) == (x.dtype, scale.dtype, scale.dtype)


def test_forward_and_backward_in_one_graph() -> None:
    case = CASES[1]
    x, dy, scale = random(case.x), random(case.x, seed=1), random(case.affine, seed=2)

    def build(g: Any, x: Any, dy: Any, scale: Any) -> Any:
        _, mean, inverse = g.layernorm("TRAINING", x, scale, None, EPSILON)
        return g.layernorm_backward(dy, x, scale, mean, inverse)

    kept = given(case, x)
    expected = case.backward(dy, x, scale, kept)
    check(build, {"x": x, "dy": dy, "scale": scale}, expected, layouts=LAYOUTS, magnitude=64)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_gradient_that_is_a_sum_of_many(dtype: str) -> None:
    """If the gradient is a sum of many terms, the registers cannot hold one vector per row in addition to the
    column sums."""
    case = Case("layernorm", (300, 1024), (1, 1024), (1,))
    x, scale = random(case.x, dtype), random(case.affine, dtype, seed=2)
    whole = np.random.default_rng(3).integers(-3, 4, (9, *case.x))  # so that their sum is exact
    parts = {f"d{i}": narrow(each, dtype) for i, each in enumerate(whole)}
    kept = given(case, exact(x))

    def build(g: Any, x: Any, scale: Any, mean: Any, inverse: Any, **parts: Any) -> Any:
        first, *others = parts.values()
        for each in others:
            first = g.add(first, each)
        return g.layernorm_backward(first, x, scale, mean, inverse)

    expected = case.backward(sum(exact(each) for each in parts.values()), exact(x), exact(scale), kept)
    operands = {"x": x, "scale": scale, **dict(zip(("mean", "inverse"), kept.values(), strict=True)), **parts}
    check(build, operands, expected, ulps=4, magnitude=2048)


# ---- Batch norm of channels that are adjacent in memory ----------------------------------------------------

# Large enough for a GPU's multiprocessors to share; floats of the last one are more than stays on chip.
WIDE = [
    Case("batchnorm", (3, 64, 57, 59), (1, 64, 1, 1), (0, 2, 3)),
    Case("batchnorm", (20001, 24), (1, 24), (0,)),
    Case("batchnorm", (7, 520, 13, 17), (1, 520, 1, 1), (0, 2, 3)),
    Case("batchnorm", (40, 2048, 3, 5), (1, 2048, 1, 1), (0, 2, 3)),
]
LARGE = [Case("batchnorm", (70001, 128), (1, 128), (0,))]
wide = pytest.mark.parametrize("case", WIDE + (LARGE if DEVICE == "cuda" else []), ids=named)

# Rows that pass through shared memory: of pairs that share rows or add up sums, of teams, of clusters.
LONG = [
    Case("layernorm", (6, 16384), (1, 16384), (1,)),
    Case("rmsnorm", (7, 16392), (1, 16392), (1,)),
    Case("layernorm", (300, 8712), (1, 8712), (1,)),
    Case("layernorm", (3, 65544), (1, 65544), (1,)),
]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@wide
def test_wide_forward(case: Case, dtype: str) -> None:
    x, scale, bias = random(case.x, dtype, seed=1), random(case.affine, seed=2), random(case.affine, seed=3)
    mean, variance = random(case.affine, low=1, seed=4), random(case.affine, low=0, seed=5)
    operands = {"x": x, "scale": scale, "bias": bias, "in_running_mean": mean, "in_running_var": variance}
    expected = outputs(case, x, scale, bias) + running(x, 0.25, mean, variance)
    check(forward(case, 5, momentum=0.25), operands, expected, layouts=["channels_last"], magnitude=8, ulps=2)


def check_backward(case: Case, dtype: str, layout: str) -> None:
    """Many elements: dx is bounded by its roundings, the gradients of scale and bias by the number of
    terms."""
    x, dy, scale = random(case.x, dtype), random(case.x, dtype, seed=1), random(case.affine, seed=2)
    kept = given(case, x)
    dx, *gradients = case.backward(dy, x, scale, kept)
    operands = {"dy": dy, "x": x, "scale": scale} | kept
    magnitude = 2 * x.size / case.x[1]  # of the gradients of scale and bias
    found = check(backward(case), operands, [None, *gradients], layouts=[layout], magnitude=magnitude)
    for got, *_ in found.values():
        np.testing.assert_allclose(exact(got), dx, rtol=4 * roundoff(dtype), atol=1e-5)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@wide
def test_wide_backward(case: Case, dtype: str) -> None:
    check_backward(case, dtype, "channels_last")


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("case", LONG, ids=named)
def test_long_backward(case: Case, dtype: str) -> None:
    check_backward(case, dtype, "packed")


@wide
def test_wide_variance_does_not_cancel(case: Case) -> None:
    """Deviations of 1 on a mean of 4096, whose squares sum to more than float32 holds."""
    x = np.float32(4096 + random(case.x, "f64", -1, 1))
    mean, inverse = case.statistics(x)
    scale = np.ones(case.affine, np.float32)
    expected = [None, mean, inverse]
    check(forward(case), {"x": x, "scale": scale}, expected, layouts=["channels_last"], magnitude=8, ulps=2)


def test_wide_mean_near_0_is_exact() -> None:
    """Its error on the CPU is measured by itself, not by the elements, which are a hundred times as large."""
    case = WIDE[1]
    x = np.random.default_rng(5).standard_normal(case.x, np.float32)
    mean, _ = case.statistics(x)
    found = check(forward(case), {"x": x, "scale": np.ones(case.affine, np.float32)}, [None] * 3)
    errors = {engine: np.linalg.norm(exact(got) - mean) for engine, (_, got, _) in found.items()}
    bound = 6e-7 * np.linalg.norm(mean)
    assert all(error < bound for engine, error in errors.items() if engine.startswith("cpu")), errors


def test_wide_with_operations_around() -> None:
    """A residual after the norm, which only its results read; a mask before its gradient."""
    case = WIDE[2]
    x, other, scale = random(case.x, "bf16"), random(case.x, "bf16", seed=1), random(case.affine, seed=2)

    def build(g: Any, x: Any, other: Any, scale: Any) -> Any:
        return g.relu(g.add(g.batchnorm(x, scale, None, None, None, EPSILON)[0], other))

    expected = np.maximum(case.forward(x, scale, 0) + exact(other), 0)
    operands = {"x": x, "other": other, "scale": scale}
    check(build, operands, expected, layouts=["channels_last"], magnitude=8, ulps=2, out="bf16")
    mask, kept = random(case.x, "bf16", low=0, seed=3), given(case, x)

    def build_backward(g: Any, mask: Any, dy: Any, x: Any, scale: Any, **kept: Any) -> Any:
        return g.batchnorm_backward(g.mul(dy, mask), x, scale, **kept)[0]

    masked = exact(other) * exact(mask)
    operands = {"mask": mask, "dy": other, "x": x, "scale": scale} | kept
    expected = case.backward(masked, x, scale, kept)[0]
    check(build_backward, operands, expected, layouts=["channels_last"], magnitude=64, out="bf16")


# ---- Refusals ----------------------------------------------------------------------------------------------

X = ((2, 4, 3), "f32")
C = ((1, 4, 1), "f32")


def asked(method: str, **options: Any) -> Any:
    return lambda g, **operands: getattr(g, method)(**operands, **options, name="n")


@pytest.mark.parametrize(
    ("method", "operands", "options", "rule"),
    [
        (
            "layernorm",
            {"input": X, "scale": ((1, 1, 4), "f32")},
            {"epsilon": 0.1},
            "scale with dims [1,1,4] does not broadcast to [2,4,3]. Make each of its dims 1 or equal, of "
            "the same rank.",
        ),
        (
            "layernorm",
            {"input": X, "scale": ((3,), "f32")},
            {"epsilon": 0.1},
            "scale with dims [3] does not broadcast to [2,4,3]. Make each of its dims 1 or equal, of the "
            "same rank.",
        ),
        (
            "layernorm",
            {"input": X, "scale": ((1, 1, 1), "f32")},
            {"epsilon": 0.1},
            "mode LAYER_NORM: scale with dims [1,1,1] normalises no dimension of x [2,4,3]. Give the scale "
            "x's extents on the dimensions to normalise.",
        ),
        (
            "rmsnorm",
            {"input": X, "scale": ((1, 1, 3), "f32"), "bias": ((1, 4, 3), "f32")},
            {"epsilon": 0.1},
            "bias has dims [1,4,3], expected [1,1,3]. Give it these dims, or none.",
        ),
        (
            "instancenorm",
            {"input": X, "scale": ((2, 4, 1), "f32")},
            {"epsilon": 0.1},
            "scale has dims [2,4,1], expected [1,4,1]. Give it these dims, or none.",
        ),
        (
            "instancenorm",
            {"input": ((2, 4), "f32")},
            {"epsilon": 0.1},
            "x has 2 dims [2,4], expected 3..8. Reshape it.",
        ),
        (
            "adalayernorm",
            {"input": ((4,), "f32")},
            {"epsilon": 0.1},
            "x has 1 dim [4], expected 2..8. Reshape it.",
        ),
        (
            "groupnorm",
            {"input": X},
            {"epsilon": 0.1, "groups": 3},
            "mode GROUP_NORM: groups is 3 and x is [2,4,3] with 4 channels. Set groups to a divisor of the "
            "channels.",
        ),
        (
            "groupnorm",
            {"input": X},
            {"epsilon": 0.1},
            "mode GROUP_NORM: groups is 0 and x is [2,4,3] with 4 channels. Set groups to a divisor of the "
            "channels.",
        ),
        (
            "layernorm",
            {"input": X},
            {},
            "mode LAYER_NORM: epsilon is required and was not set. Set it to a scalar tensor.",
        ),
        (
            "layernorm",
            {"input": X, "epsilon": ((3,), "f32")},
            {},
            "epsilon is a scalar, its dims are [3]. Use all ones.",
        ),
    ],
)
def test_forward_refusals(method: str, operands: dict[str, Any], options: dict[str, Any], rule: str) -> None:
    refuses(asked(method, norm_forward_phase="TRAINING", **options), operands, f"norm 'n': {rule}")


@pytest.mark.parametrize(
    ("operands", "options", "rule"),
    [
        (
            {"in_running_mean": C},
            {"epsilon": 0.1},
            "mode BATCH_NORM: momentum is required to update running statistics, and was not set. Set it "
            "to a scalar tensor.",
        ),
        (
            {"in_running_mean": ((4,), "f32")},
            {"epsilon": 0.1, "momentum": 0.1},
            "in_running_mean has dims [4], expected [1,4,1]. Give it these dims, or none.",
        ),
    ],
)
def test_batchnorm_refusals(operands: dict[str, Any], options: dict[str, Any], rule: str) -> None:
    refuses(asked("batchnorm", **options), {"input": X} | operands, f"norm 'n': {rule}")


def test_batchnorm_refuses_peers() -> None:
    def build(g: Any, x: Any, a: Any, b: Any) -> None:
        g.batchnorm(x, epsilon=0.1, peer_stats=[a, b], name="n")

    rule = (
        "peer_stats lists 2 buffers, but a norm computes its statistics on one device. Leave the list empty;"
        " to combine devices, add up the results of genstats and continue with bn_finalize."
    )
    peers = {"a": ((8,), "f32"), "b": ((8,), "f32")}
    refuses(build, {"x": X} | peers, f"norm 'n': {rule}", weft.NotSupportedError)


@pytest.mark.parametrize(
    ("operands", "rule"),
    [
        (
            {"mean": C},
            "mode BATCH_NORM: inference needs statistics, but they are incomplete. Set mean and "
            "inv_variance, or in_running_mean, in_running_var and epsilon.",
        ),
        (
            {"mean": C, "inv_variance": C, "in_running_var": C},
            "mode BATCH_NORM: inference got two sources of statistics. Set mean and inv_variance, or "
            "in_running_mean and in_running_var.",
        ),
        (
            {"in_running_mean": C, "in_running_var": C},
            "mode BATCH_NORM: epsilon is required and was not set. Set it to a scalar tensor.",
        ),
        (
            {"mean": C, "inv_variance": ((1, 4, 3), "f32")},
            "inv_variance has dims [1,4,3], expected [1,4,1]. Give it these dims, or none.",
        ),
    ],
)
def test_batchnorm_inference_refusals(operands: dict[str, Any], rule: str) -> None:
    refuses(asked("batchnorm_inference"), {"input": X} | operands, f"norm 'n': {rule}")


@pytest.mark.parametrize(
    ("method", "operands", "rule"),
    [
        (
            "layernorm_backward",
            {"mean": ((2, 1, 1), "f32")},
            "mode LAYER_NORM: mean and inv_variance go together, but one of them is missing. Set both, or "
            "neither and epsilon.",
        ),
        (
            "rmsnorm_backward",
            {},
            "mode RMS_NORM: statistics are neither given nor computable. Set epsilon, or the statistics of "
            "the forward operation.",
        ),
        (
            "batchnorm_backward",
            {"mean": C, "inv_variance": ((1, 4, 3), "f32")},
            "inv_variance has dims [1,4,3], expected [1,4,1]. Give it these dims, or none.",
        ),
        (
            "instancenorm_backward",
            {"grad": ((2, 4, 1), "f32"), "mean": ((2, 4, 1), "f32"), "inv_variance": ((2, 4, 1), "f32")},
            "dy has dims [2,4,1], expected [2,4,3]. Give it these dims, or none.",
        ),
    ],
)
def test_backward_refusals(method: str, operands: dict[str, Any], rule: str) -> None:
    refuses(asked(method), {"grad": X, "input": X} | operands, f"norm_backward 'n': {rule}")


@pytest.mark.parametrize(
    ("fixed", "operand", "rule"),
    [
        (
            {"mode": "RMS_NORM", "phase": "TRAINING"},
            "mean",
            "mode RMS_NORM: the mode has no mean, but mean is set. Leave mean unset.",
        ),
        (
            {"mode": "LAYER_NORM", "phase": "TRAINING"},
            "out_var",
            "mode LAYER_NORM: running statistics are set, which only BATCH_NORM has. Leave "
            "in_running_mean, in_running_var, out_mean and out_var unset.",
        ),
        (
            {"mode": "BATCH_NORM", "phase": "INFERENCE"},
            "out_mean",
            "mode BATCH_NORM: inference does not update running statistics, but out_mean or out_var is set. "
            "Leave them unset, or set phase TRAINING.",
        ),
    ],
)
def test_refusals_that_methods_cannot_cause(fixed: dict[str, str], operand: str, rule: str) -> None:
    def build(g: Any, x: Any, mean: Any, variance: Any) -> None:
        running = (
            {"in_running_mean": mean, "in_running_var": variance} if fixed["mode"] == "BATCH_NORM" else {}
        )
        g._operation("norm", "norm", {"x": x, "epsilon": 0.1} | running | fixed, ("y", operand), name="n")

    refuses(build, {"x": X, "mean": C, "variance": C}, f"norm 'n': {rule}")


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_a_compute_type_of_double_has_the_range_of_double(size: float) -> None:
    """Squares of these floats overflow or vanish in float, but not with compute_data_type="f64"."""
    x = (size * np.random.default_rng(0).standard_normal((4, 64))).astype(np.float32)
    wide, phase = x.astype(np.float64), weft.norm_forward_phase.INFERENCE
    epsilon, center = 1e-6 * size**2, wide.mean(1, keepdims=True)
    deviation = np.sqrt(wide.var(1, keepdims=True) + epsilon)
    root = np.sqrt((wide**2).mean(1, keepdims=True) + epsilon)

    def build(g: Any, x: Any) -> tuple[Any, ...]:
        layer = g.layernorm(phase, x, epsilon=epsilon)[0]
        rms = g.rmsnorm(phase, x, epsilon=epsilon)[0]
        return layer, rms, g.reduction(x, "NORM2", dims=[1])

    expected = [(wide - center) / deviation, wide / root, np.sqrt((wide**2).sum(1, keepdims=True))]
    found = check(build, {"x": x}, [None] * 3, out="f32", layouts=["packed"], graph=FLOAT64)
    for engine, made in found.items():
        for got, want in zip(made, expected, strict=True):
            np.testing.assert_allclose(got, want, 1e-6, 1e-6 * size * (got.shape[1] == 1), err_msg=engine)


def test_a_mean_whose_sum_overflows_float() -> None:
    x = np.full((2, 64), 3e38, np.float32)
    found = check(
        lambda g, x: g.reduction(x, "AVG", dims=[1]), {"x": x}, [None], layouts=["packed"], graph=FLOAT64
    )
    for engine, (got,) in found.items():
        np.testing.assert_allclose(got, x[:, :1], 1e-6, err_msg=engine)
