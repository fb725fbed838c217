"""Linear layers whose results are split into heads, transposed and activated are one step: the product has
the dimensions of the heads, and its epilogue stores them where the output has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import checks
import numpy as np
import pytest
import weft

B, T, H, D, K = 2, 12, 4, 16, 48  # batch, tokens, heads, size of a head, features


def heads(array: Any) -> Any:
    return array.reshape(B, T, H, D).transpose(0, 2, 1, 3)


def leaky(array: Any) -> Any:
    return np.where(array > 0, array, 0.5 * array)


def split(g: weft.Graph, tensor: Any, dims: list[int]) -> Any:
    return g.reshape(tensor, reshape_mode="LOGICAL").set_dim(dims)


def linear(g: weft.Graph, x: Any, w: Any) -> Any:
    return g.transpose(split(g, g.matmul(x, w), [B, T, H, D]), [0, 2, 1, 3])


def activated(g: weft.Graph, x: Any, w: Any, b: Any) -> Any:
    made = g.add(g.matmul(x, w), b)
    made = g.relu(made, negative_slope=0.5)
    return g.transpose(split(g, made, [B, T, H, D]), [0, 2, 1, 3])


def scaled_heads(g: weft.Graph, x: Any, w: Any, b: Any) -> Any:
    parts = split(g, g.add(g.matmul(x, w), b), [B, T, H, D])
    return g.relu(g.transpose(g.mul(parts, 0.125), [0, 2, 1, 3]))


def joined(g: weft.Graph, x: Any, w: Any) -> Any:
    """Split, scaled and joined again: the result has the dimensions of the product."""
    return split(g, g.mul(split(g, g.matmul(x, w), [B, T, H, D]), 2.0), [B * T, H * D])


def biased_heads(g: weft.Graph, x: Any, w: Any, b: Any) -> Any:
    """The operand has one number per head and one per token: it is broadcast along both other dimensions."""
    return g.add(g.transpose(split(g, g.matmul(x, w), [B, T, H, D]), [0, 2, 1, 3]), b)


def residual(g: weft.Graph, x: Any, w: Any, b: Any) -> Any:
    return g.transpose(split(g, g.add(g.matmul(x, w), b), [B, T, H, D]), [2, 0, 3, 1])


def queries_keys_values(g: weft.Graph, x: Any, w: Any) -> Any:
    return g.transpose(split(g, g.matmul(x, w), [B, T, 2, H // 2, D]), [2, 0, 3, 1, 4])


def turned(g: weft.Graph, x: Any, w: Any, b: Any) -> Any:
    return g.relu(g.transpose(g.add(g.matmul(x, w), b), [1, 0]))


def square(g: weft.Graph, x: Any, w: Any) -> Any:
    made = g.matmul(x, w)
    return g.transpose(split(g, g.mul(made, made), [B, T, H, D]), [0, 2, 1, 3])


FLAT, WEIGHT = (B * T, K), (K, H * D)
DEEP, SHARED = (B, T, K), (1, K, H * D)
# By name: the graph, the shapes of its operands, and its definition with an exact product.
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], Callable[..., Any]]] = {
    "linear": (linear, [FLAT, WEIGHT], heads),
    "batched": (linear, [DEEP, SHARED], heads),
    "activated": (activated, [FLAT, WEIGHT, (1, H * D)], lambda xw, b: heads(leaky(xw + b))),
    "batched, activated": (activated, [DEEP, SHARED, (1, 1, H * D)], lambda xw, b: heads(leaky(xw + b))),
    "scaled": (
        scaled_heads,
        [FLAT, WEIGHT, (1, H * D)],
        lambda xw, b: np.maximum(heads((xw + b) * 0.125), 0),
    ),
    "joined": (joined, [FLAT, WEIGHT], lambda xw: 2 * xw),
    "per head": (biased_heads, [FLAT, WEIGHT, (1, H, T, 1)], lambda xw, b: heads(xw) + b),
    "residual": (
        residual,
        [FLAT, WEIGHT, (B * T, H * D)],
        lambda xw, b: (xw + b).reshape(B, T, H, D).transpose(2, 0, 3, 1),
    ),
    "queries, keys": (
        queries_keys_values,
        [DEEP, SHARED],
        lambda xw: xw.reshape(B, T, 2, H // 2, D).transpose(2, 0, 3, 1, 4),
    ),
    "turned": (turned, [FLAT, WEIGHT, (1, H * D)], lambda xw, b: np.maximum((xw + b).T, 0)),
    "square": (square, [FLAT, WEIGHT], lambda xw: heads(xw * xw)),
}


def families(g: weft.Graph) -> list[str]:
    return [step["family"] for step in g.build().plan.report["steps"]]


@pytest.mark.parametrize("types", [("f32", "f32"), ("bf16", "f32"), ("bf16", None)])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", ["cpu", "sm_80", "sm_90"])
def test_results_split_into_heads_are_one_step(device: str, name: str, types: tuple[str, str | None]) -> None:
    build, shapes, _ = CASES[name]
    io, virtual = types
    g = weft.Graph(device=device, io_data_type=io, intermediate_data_type=virtual, compute_data_type="f32")
    build(g, *[g.tensor(list(shape)) for shape in shapes]).set_output(True)
    assert len(families(g)) == 1


@pytest.mark.parametrize("name", CASES)
def test_values_of_results_split_into_heads(name: str) -> None:
    build, shapes, define = CASES[name]
    # Sums of eighths are exact in every engine, also where a result is close to 0.
    named = enumerate(zip("xwb", shapes, strict=False))
    values = {key: np.round(8 * checks.random(shape, seed=i)) / 8 for i, (key, shape) in named}
    exact = [checks.exact(array) for array in values.values()]
    checks.check(build, values, define(exact[0] @ exact[1], *exact[2:]))


@pytest.mark.parametrize("device", ["cpu", "sm_90"])
def test_a_result_that_has_other_readers_keeps_its_dimensions(device: str) -> None:
    g = weft.Graph(device=device, io_data_type="f32", compute_data_type="f32")
    product = g.matmul(g.tensor(list(FLAT)), g.tensor(list(WEIGHT)))
    product.set_output(True)
    g.transpose(split(g, product, [B, T, H, D]), [0, 2, 1, 3]).set_output(True)
    assert len(families(g)) == 2


def test_movements_of_wide_intermediates_need_no_conversion() -> None:
    """A transposed weight whose intermediate is set to float has 16 bits all the same."""
    g = weft.Graph(device="sm_90", io_data_type="bf16", intermediate_data_type="f32", compute_data_type="f32")
    w = g.transpose(g.tensor([256, 128]), [1, 0])
    g.transpose(g.matmul(g.tensor([512, 128]), w), [1, 0]).set_output(True)
    assert families(g) == ["cuda.hopper"]


@pytest.mark.parametrize("device", ["cpu", "sm_80", "sm_90"])
def test_parts_of_a_concatenation_are_computed_in_one_step(device: str) -> None:
    """Both parts are stored where the convolution reads them, by one kernel."""
    g = weft.Graph(device=device, io_data_type="f32", compute_data_type="f32")
    image = ([2, 32, 14, 14], [32 * 196, 1, 32 * 14, 32])
    parts = [g.relu(g.tensor(*image)), g.relu(g.tensor(*image))]
    w = g.tensor([64, 64, 3, 3], [64 * 9, 1, 64 * 3, 64])
    g.conv_fprop(g.concatenate(parts, 1), w, padding=[1, 1]).set_output(True)
    assert len(families(g)) == 2


def test_values_of_parts_of_a_concatenation() -> None:
    x, y, w = (checks.random(shape, seed=i) for i, shape in enumerate([(24, 16), (24, 16), (32, 8)]))

    def build(g: weft.Graph, x: Any, y: Any, w: Any) -> Any:
        return g.matmul(g.concatenate([g.relu(x), g.relu(y)], 1), w)

    joined = np.maximum(np.concatenate([checks.exact(x), checks.exact(y)], 1), 0)
    checks.check(build, {"x": x, "y": y, "w": w}, joined @ checks.exact(w), magnitude=20)


@pytest.mark.parametrize("device", ["sm_80", "sm_90"])
def test_heads_of_slices_are_copied_by_one_kernel(device: str) -> None:
    """Queries, keys and values, which one product computes, leave the graph in three tensors."""
    g = weft.Graph(device=device, io_data_type="bf16", compute_data_type="f32")
    product = g.matmul(g.tensor([B, 128, 256]), g.tensor([1, 256, 768]))
    for i in range(3):
        part = g.slice(product, [slice(0, B), slice(0, 128), slice(256 * i, 256 * (i + 1))])
        g.transpose(split(g, part, [B, 128, 8, 32]), [0, 2, 1, 3]).set_output(True)
    assert len(families(g)) == 2


def test_types_of_attention_remain_equal() -> None:
    """Transposed keys are not narrowed if the queries, which are computed, stay float."""
    shape = [2, 4, 128, 64]
    g = weft.Graph(device="sm_90", io_data_type="bf16", intermediate_data_type="f32", compute_data_type="f32")
    k = g.transpose(g.tensor([2, 128, 4, 64]), [0, 2, 1, 3])
    o, _ = g.sdpa(g.relu(g.tensor(shape)), k, k, generate_stats=False)
    o.set_output(True)
    assert g.build().plan.report["steps"]
