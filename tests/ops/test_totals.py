# SPDX-License-Identifier: Apache-2.0
"""Reductions after products against NumPy in float64. Factors are small integers, so that products and sums
are exact in every type here, in any order of summation: any difference is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import weft
from checks import check, narrow, strides_of
from weft.devices import DeviceProperties

H200 = '{"kind":"cuda","arch":"sm_90"}'
BF16: dict[str, Any] = {"io_data_type": "bf16", "intermediate_data_type": "f32", "compute_data_type": "f32"}
HALF = BF16 | {"io_data_type": "f16"}
LAYOUTS = ("channels_last", "packed")


def whole(*dims: int, seed: int, dtype: str = "bf16", most: int = 1) -> Any:
    return narrow(np.random.default_rng(seed).integers(-most, most + 1, dims).astype(np.float64), dtype)


def exact(x: Any) -> Any:
    return np.asarray(x, np.float64)


# ---- Matmul ------------------------------------------------------------------------------------------------

OVER = {
    "column": (1,),
    "row": (2,),
    "whole": (0, 1, 2),
    "batch and column": (0, 1),
}
MODES: dict[str, Any] = {
    "ADD": np.sum,
    "MAX": np.max,
    "MIN": np.min,
    "AMAX": lambda x, **how: np.max(np.abs(x), **how),
    "NORM1": lambda x, **how: np.sum(np.abs(x), **how),
    "NORM2": lambda x, **how: np.sqrt(np.sum(x * x, **how)),
    "AVG": np.mean,
}


def kept(x: Any, over: tuple[int, ...]) -> list[int]:
    return [1 if i in over else n for i, n in enumerate(x.shape)]


@pytest.mark.parametrize("shape", [(1, 130, 264, 72), (3, 72, 136, 64), (1, 300, 77, 128)])
@pytest.mark.parametrize("span", OVER)
@pytest.mark.parametrize("mode", ["ADD", "AMAX", "NORM2"])
def test_matmul(shape: tuple[int, ...], span: str, mode: str) -> None:
    batch, m, n, k = shape
    a, b = whole(batch, m, k, seed=1), whole(batch, k, n, seed=2)
    c = exact(a) @ exact(b)
    over = OVER[span]

    def build(g: Any, a: Any, b: Any) -> Any:
        product = g.matmul(a, b)
        return product, g.reduction(product, mode).set_dim(kept(c, over)).set_data_type("f32")

    expected = [c, MODES[mode](c, axis=over, keepdims=True)]
    check(build, {"a": a, "b": b}, expected, out=["bf16", "f32"], layouts=["packed"], graph=BF16)


@pytest.mark.parametrize("mode", MODES)
def test_modes_without_saved_statistics(mode: str) -> None:
    a, b, bias = whole(2, 200, 64, seed=3), whole(2, 64, 96, seed=4), whole(1, 1, 96, seed=5, most=3)
    c = np.maximum(exact(a) @ exact(b) + exact(bias), -2)

    def build(g: Any, a: Any, b: Any, bias: Any) -> Any:
        product = g.max(g.bias(g.matmul(a, b), bias), -2.0)
        totals = [g.reduction(product, mode).set_dim(kept(c, over)) for over in OVER.values()]
        return [total.set_data_type("f32") for total in totals[:3]]

    expected = [MODES[mode](c, axis=over, keepdims=True) for over in list(OVER.values())[:3]]
    check(build, {"a": a, "b": b, "bias": bias}, expected, out="f32", layouts=["packed"], graph=BF16)


def test_quantised_with_its_largest() -> None:
    a, b, scale = whole(1, 192, 64, seed=6), whole(1, 64, 160, seed=7), np.full((1, 1, 1), 0.25, np.float32)
    c = exact(a) @ exact(b)

    def build(g: Any, a: Any, b: Any, scale: Any) -> Any:
        product = g.matmul(a, b)
        return g.mul(product, scale), g.reduction(product, "AMAX").set_dim([1, 1, 1])

    expected = [c / 4, np.abs(c).max(keepdims=True)]
    operands = {"a": a, "b": b, "scale": scale}
    check(build, operands, expected, out=["fp8_e4m3", "f32"], layouts=["packed"], graph=BF16)


def test_turned_results() -> None:
    """Transposed results are totalled as well."""
    a, b = whole(1, 96, 64, seed=8), whole(1, 64, 136, seed=9)
    c = exact(a) @ exact(b)

    def build(g: Any, a: Any, b: Any) -> Any:
        product = g.matmul(a, b).set_dim(list(c.shape)).set_stride([c.size, 1, 96])
        return product, *(g.reduction(product, "ADD").set_dim(kept(c, (i,))) for i in (1, 2))

    expected = [c, c.sum(1, keepdims=True), c.sum(2, keepdims=True)]
    check(build, {"a": a, "b": b}, expected, out=["bf16", "f32", "f32"], layouts=["packed"], graph=BF16)


# ---- Convolution -------------------------------------------------------------------------------------------


def convolved(x: Any, w: Any, pad: int, stride: int) -> Any:
    """Forward, channels second."""
    x = np.pad(exact(x), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    r, s = w.shape[2:]
    p, q = (x.shape[2] - r) // stride + 1, (x.shape[3] - s) // stride + 1
    y = np.zeros((x.shape[0], w.shape[0], p, q))
    for i in range(r):
        for j in range(s):
            seen = x[:, :, i : i + (p - 1) * stride + 1 : stride, j : j + (q - 1) * stride + 1 : stride]
            y += np.einsum("nchw,kc->nkhw", seen, exact(w)[:, :, i, j])
    return y


def statistics(y: Any) -> list[Any]:
    return [y.sum((0, 2, 3), keepdims=True), (y * y).sum((0, 2, 3), keepdims=True)]


@pytest.mark.parametrize("graph", [BF16, HALF])
@pytest.mark.parametrize(
    ("x", "w", "pad", "stride"),
    [
        ((2, 64, 9, 11), (72, 64, 3, 3), 1, 1),
        ((3, 16, 13, 7), (136, 16, 1, 1), 0, 1),
        ((2, 64, 12, 10), (64, 64, 3, 3), 1, 2),
    ],
)
def test_statistics_of_a_convolution(
    graph: dict[str, Any], x: tuple[int, ...], w: tuple[int, ...], pad: int, stride: int
) -> None:
    io = graph["io_data_type"]
    image, filters = whole(*x, seed=10, dtype=io), whole(*w, seed=11, dtype=io)
    y = convolved(image, filters, pad, stride)

    def build(g: Any, x: Any, w: Any) -> Any:
        made = g.conv_fprop(x, w, padding=[pad, pad], stride=[stride, stride])
        return made, *g.genstats(made)

    expected = [y, *statistics(y)]
    operands = {"x": image, "w": filters}
    check(build, operands, expected, out=[io, "f32", "f32"], layouts=LAYOUTS, graph=graph)


def test_statistics_of_what_follows_a_convolution() -> None:
    image, filters, bias = (whole(*d, seed=12) for d in ((2, 32, 10, 9), (40, 32, 3, 3), (1, 40, 1, 1)))
    y = np.maximum(convolved(image, filters, 1, 1) + exact(bias), 0)

    def build(g: Any, x: Any, w: Any, bias: Any) -> Any:
        made = g.relu(g.bias(g.conv_fprop(x, w, padding=[1, 1]), bias))
        return g.genstats(made)

    operands = {"x": image, "w": filters, "bias": bias}
    check(build, operands, statistics(y), out="f32", layouts=LAYOUTS, graph=BF16)


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_batch_norm_after_a_data_gradient(stride: int) -> None:
    size = 5 * stride
    w, mask, x = (whole(*d, seed=13) for d in ((24, 40, 3, 3), (2, 40, size, size), (2, 40, size, size)))
    dy, mean = whole(2, 24, 5, 5, seed=14), whole(1, 40, 1, 1, seed=15, dtype="f32")
    inverse, scale = np.full((1, 40, 1, 1), 0.5, np.float32), np.full((1, 40, 1, 1), 2, np.float32)
    full = np.zeros((2, 40, size + 2, size + 2))
    for i in range(3):
        for j in range(3):
            full[:, :, i : i + 5 * stride : stride, j : j + 5 * stride : stride] += np.einsum(
                "nkhw,kc->nchw", exact(dy), exact(w)[:, :, i, j]
            )
    dz = full[:, :, 1:-1, 1:-1] * (exact(mask) > 0)
    dbias = dz.sum((0, 2, 3), keepdims=True)
    dscale = (dz * (exact(x) - exact(mean)) * 0.5).sum((0, 2, 3), keepdims=True)
    count = 2 * size * size
    of_x = -0.5 * dscale / count

    def build(g: Any, dy: Any, w: Any, mask: Any, x: Any, mean: Any, inverse: Any, scale: Any) -> Any:
        dx = g.conv_dgrad(dy, w, padding=[1, 1], stride=[stride, stride]).set_dim(list(x.dims))
        dz = g.relu_backward(dx.set_stride(list(x.strides)), mask)
        return dz, *g.dbn_weight(dz, x, mean, inverse, scale)

    expected = [dz, dscale, dbias, scale * inverse, of_x, -dbias / count - of_x * exact(mean)]
    operands = {"dy": dy, "w": w, "mask": mask, "x": x, "mean": mean, "inverse": inverse, "scale": scale}
    check(build, operands, expected, out=["bf16"] + ["f32"] * 5, layouts=LAYOUTS, graph=BF16, magnitude=64)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("modes", [("AMAX",), ("MAX", "MIN"), ("ADD", "NORM2")])
def test_totals_of_all_that_a_convolution_makes(modes: tuple[str, ...], stride: int) -> None:
    p, q = -(-17 // stride), -(-30 // stride)
    image, filters, residual = (whole(*d, seed=16) for d in ((3, 64, 17, 30), (72, 64, 3, 3), (3, 72, p, q)))
    y = convolved(image, filters, 1, stride) + exact(residual)

    def build(g: Any, x: Any, w: Any, residual: Any) -> Any:
        made = g.add(g.conv_fprop(x, w, padding=[1, 1], stride=[stride, stride]), residual)
        return made, *(g.reduction(made, mode).set_dim([1, 1, 1, 1]) for mode in modes)

    of = {"AMAX": abs(y).max(), "MAX": y.max(), "MIN": y.min(), "ADD": y.sum(), "NORM2": (y * y).sum() ** 0.5}
    expected = [y, *(np.full((1, 1, 1, 1), of[mode]) for mode in modes)]
    operands = {"x": image, "w": filters, "residual": residual}
    out = ["bf16"] + ["f32"] * len(modes)
    check(build, operands, expected, out=out, layouts=LAYOUTS, graph=BF16, magnitude=64)


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_batch_norm_through_relu_of_its_result(stride: int) -> None:
    """After a data gradient one tensor is read, which the gradient through relu and the sums share."""
    size = 6 * stride
    w, x, dy = (whole(*d, seed=17) for d in ((64, 72, 3, 3), (3, 72, size, size), (3, 64, 6, 6)))
    mean, scale = whole(1, 72, 1, 1, seed=18, dtype="f32"), whole(1, 72, 1, 1, seed=19, dtype="f32")
    inverse = np.full((1, 72, 1, 1), 0.5, np.float32)
    full = np.zeros((3, 72, size + 2, size + 2))
    for i in range(3):
        for j in range(3):
            full[:, :, i : i + size : stride, j : j + size : stride] += np.einsum(
                "nkhw,kc->nchw", exact(dy), exact(w)[:, :, i, j]
            )
    hat = (exact(x) - exact(mean)) * 0.5
    dz = full[:, :, 1:-1, 1:-1] * (hat * exact(scale) + 1 > 0)
    sums = [(dz * hat).sum((0, 2, 3), keepdims=True), dz.sum((0, 2, 3), keepdims=True)]

    def build(g: Any, dy: Any, w: Any, x: Any, mean: Any, inverse: Any, scale: Any) -> Any:
        dx = g.conv_dgrad(dy, w, padding=[1, 1], stride=[stride, stride]).set_dim(list(x.dims))
        normal = g.add(g.mul(g.mul(g.sub(x, mean), inverse), scale), 1.0)
        dz = g.relu_backward(dx.set_stride(list(x.strides)), normal)
        return dz, *g.dbn_weight(dz, x, mean, inverse, scale)[:2]

    operands = {"dy": dy, "w": w, "x": x, "mean": mean, "inverse": inverse, "scale": scale}
    out = ["bf16", "f32", "f32"]
    check(build, operands, [dz, *sums], out=out, layouts=LAYOUTS, graph=BF16, magnitude=256)


# ---- One region --------------------------------------------------------------------------------------------


def steps(build: Any) -> list[Any]:
    """Returns the families that run the steps of the graph, on a described GPU."""
    g = weft.Graph(**BF16, device_property=DeviceProperties(H200))
    for made in build(g):
        made.set_output(True)
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([weft.heur_mode.A])
    g.check_support()
    g.build_plans()
    return list(g.plan.report["steps"])


def families(build: Any) -> list[str]:
    return [step["family"] for step in steps(build)]


def image(g: Any, *dims: int) -> Any:
    return g.tensor(list(dims), list(strides_of(dims, "channels_last")))


@pytest.mark.parametrize(
    ("filters", "family"), [((256, 256, 1, 1), "hopper"), ((64, 256, 3, 3), "patch_sm90")]
)
def test_one_step_for_a_convolution_and_its_statistics(filters: tuple[int, ...], family: str) -> None:
    def statistics(g: Any) -> Any:
        y = g.conv_fprop(image(g, 32, 256, 28, 28), image(g, *filters), padding=[filters[2] // 2] * 2)
        y.set_data_type("bf16")
        return y, *(made.set_data_type("f32") for made in g.genstats(y))

    assert families(statistics) == [f"cuda.{family}"]


def test_one_step_for_product_and_reductions() -> None:
    def totals(g: Any) -> Any:
        c = g.matmul(g.tensor([4096, 1024], [1024, 1]), g.tensor([1024, 2048], [2048, 1]))
        reductions = [("ADD", [1, 2048]), ("MAX", [4096, 1]), ("AMAX", [1, 1])]
        return c.set_data_type("bf16"), *(
            g.reduction(c, mode).set_dim(dims).set_data_type("f32") for mode, dims in reductions
        )

    assert families(totals) == ["cuda.hopper"]


def test_dead_operations_read_nothing() -> None:
    """A result that only a dead operation reads has no memory, so it must not be stored."""

    def totals(g: Any) -> Any:
        c = g.relu(g.matmul(g.tensor([512, 256], [256, 1]), g.tensor([256, 128], [128, 1])))
        g.mul(g.reduction(c, "MAX").set_dim([512, 1]), 2.0)
        return [g.reduction(c, "ADD").set_dim([1, 128]).set_data_type("f32")]

    (step,) = steps(totals)
    assert "reductions" in step["detail"]
    assert "staged" not in step["detail"]
