"""Intermediates without a declared type: exact within a kernel, stored in the type of their operands."""

from __future__ import annotations

from typing import Any

import checks
import numpy as np
import pytest
import weft

TOKENS, WIDTH = (1, 256, 256), (1, 256, 512)


def chain(intermediate: str | None, io: str = "bf16", **types: str) -> weft.Graph:
    """A norm, a product and a softmax of rows, each a kernel of its own."""
    g = weft.Graph(
        device="sm_90", io_data_type=io, intermediate_data_type=intermediate, compute_data_type="f32"
    )
    scale = g.tensor([1, 1, 256], data_type="f32")
    normal = g.rmsnorm("INFERENCE", g.tensor(TOKENS), scale, epsilon=1e-5, name="normal")[0]
    product = g.matmul(normal, g.tensor(WIDTH), name="product")
    for name, tensor in {"normal": normal, "product": product}.items():
        if name in types:
            tensor.set_data_type(types[name])
    g.softmax(product, name="weights").set_output(True)
    g.build_operation_graph()
    return g


def families(g: weft.Graph) -> list[str]:
    return [family.removeprefix("cuda.") for family in g.support()[0]["families"]]


def test_what_is_unset_widens_no_product() -> None:
    assert families(chain(None)) == families(chain("bf16")) == ["rows", "hopper", "rows"]


@pytest.mark.parametrize("options", [{"intermediate": "f32"}, {"intermediate": None, "normal": "f32"}])
def test_what_is_set_is_kept(options: dict[str, Any]) -> None:
    assert "hopper" not in families(chain(**options))


def test_floats_stay_floats() -> None:
    types = {tensor["name"]: tensor["type"] for tensor in chain(None, "f32").build().plan.report["tensors"]}
    assert types["normal::y"] == types["product::C"] == "f32"


def test_what_is_stored_is_explained() -> None:
    text = chain(None).build().explain()
    assert (
        "intermediates whose type is unset\n  normal::y, product::C: stored as bf16, exact within a step\n"
        in text
    )


def test_exact_within_a_kernel() -> None:
    """x + x / 256 needs more bits than bf16 has: the remaining difference shows whether it was rounded."""
    x = checks.random((16, 64), "bf16", low=1, high=2)
    wide = checks.exact(x)
    checks.check(
        lambda g, x: g.mul(g.sub(g.add(x, g.mul(x, 1 / 256)), x), 256.0),
        {"x": x},
        wide,
        layouts=["packed"],
        graph={"io_data_type": "bf16"},
    )


def test_one_rounding_between_kernels() -> None:
    a, b, c = (checks.random(shape, "bf16", seed=i) for i, shape in enumerate([(64, 32), (32, 48), (48, 16)]))
    inner = checks.exact(a) @ checks.exact(b)
    checks.check(
        lambda g, a, b, c: g.matmul(g.matmul(a, b), c),
        {"a": a, "b": b, "c": c},
        inner @ checks.exact(c),
        layouts=["packed"],
        graph={"io_data_type": "bf16"},
        magnitude=float(np.abs(inner).max()) * 2 * 48,
        rounded=[2.0**-8 * np.abs(inner) @ np.abs(checks.exact(c))],
    )


def test_statistics_lend_no_type() -> None:
    """Gradients of attention and of norms have the type of their operands, including those of keys shared by
    several heads; the statistics next to them are floats."""
    g = weft.Graph(device="sm_90", io_data_type="bf16", intermediate_data_type=None, compute_data_type="f32")
    many, few = [2, 8, 256, 64], [2, 2, 256, 64]
    q, o, do = (g.tensor(many, name=name) for name in ("q", "o", "do"))
    k, v = (g.tensor(few, name=name) for name in "kv")
    stats = g.tensor([2, 8, 256, 1], data_type="f32")
    for name, grad in zip("qkv", g.sdpa_backward(q, k, v, o, do, stats, attn_scale=0.125), strict=True):
        g.softmax(grad, name=f"d{name}").set_output(True)
    image, each = [2, 32, 16, 16], [1, 32, 1, 1]
    mean, inv = (g.tensor([2, 4, 1, 1], data_type="f32") for _ in range(2))
    dy, x, scale = g.tensor(image), g.tensor(image), g.tensor(each)
    dx, dscale, _ = g.groupnorm_backward(dy, x, scale, mean, inv, groups=4)
    g.softmax(dx, name="dx").set_output(True)
    dscale.set_output(True)
    types = {tensor["name"]: tensor["type"] for tensor in g.build().plan.report["tensors"] if tensor["free"]}
    assert set(types.values()) == {"bf16"}
    assert len(types) >= 4


def stored_types(g: weft.Graph) -> dict[str, str]:
    """The types of the virtual tensors of a graph that was drawn for a described H200."""
    g.build()
    return {tensor["name"]: tensor["type"] for tensor in g.plan.report["tensors"] if tensor["virtual"]}


@pytest.mark.parametrize(
    ("a", "b", "stored"),
    [
        *(("e5m2", "e4m3", "f32"), ("e4m3", "e5m2", "f32"), ("e4m3", "e4m3", "f32"), ("f16", "bf16", "f32")),
        *(("e5m2", "f16", "f16"), ("bf16", "e4m3", "bf16"), ("f16", "f32", "f32"), ("f16", "f16", "f16")),
    ],
)
def test_a_type_is_lent_by_an_operand_that_has_it(a: str, b: str, stored: str) -> None:
    """Two formats of FP8 do not imply f16, which cannot represent their products."""
    g = weft.Graph(device="sm_90")
    product = g.matmul(g.tensor(TOKENS, data_type=a), g.tensor(WIDTH, data_type=b), name="product")
    g.softmax(product).set_output(True).set_data_type("bf16")
    offsets = g.tensor([4, 1, 1], data_type="i32")
    weights = g.tensor([4, 256, 512], [131072, 1, 256], data_type=b)
    mode = weft.moe_grouped_matmul_mode.NONE
    grouped = g.moe_grouped_matmul(g.tensor(TOKENS, data_type=a), weights, offsets, mode=mode, name="grouped")
    g.softmax(grouped).set_output(True).set_data_type("bf16")
    types = stored_types(g)
    assert (types["product::C"], types["grouped::output"]) == (stored, stored)


@pytest.mark.parametrize("out", ["f32", "f64"])
@pytest.mark.parametrize("dims", [[1, 1, 64], [1, 2, 32], [1, 64, 1], [1, 1, 1]])
def test_operands_of_wide_outputs_stay_float(dims: list[int], out: str) -> None:
    """Whatever their extents are."""
    g = weft.Graph(device="sm_90")
    y = g.reshape(g.tanh(g.tensor(dims, data_type="f16")), reshape_mode="LOGICAL")
    y.set_dim([*reversed(dims)]).set_data_type(out).set_output(True)
    assert set(stored_types(g).values()) == {"f32"}


@pytest.mark.parametrize("rows", [1, 2])
def test_types_do_not_depend_on_the_number_of_rows(rows: int) -> None:
    """A row of floats is a factor of a product like many rows are; a number that is broadcast is a factor of
    one row of features as of many."""
    g = weft.Graph(device="sm_90")
    half, wide = g.tensor([1, rows, 256], data_type="f16"), g.tensor([1, rows, 256], data_type="f32")
    weights, number = g.tensor(WIDTH, data_type="f16"), g.tensor([1, 1, 1], data_type="f32")
    made = [g.matmul(wide, weights, name="wide"), g.mul(half, number, name="scaled")]
    made += [g.add(half, wide, name="sum"), g.concatenate([half, wide], 1, name="joined")]
    for each in made:
        g.softmax(each).set_output(True).set_data_type("f16")
    types = stored_types(g)
    stored = [types[tensor.name] for tensor in made]
    assert stored == ["f32", "f16", "f32", "f32"]


def test_sums_are_floats_whatever_their_extents_are() -> None:
    """Statistics of rows of one element, and the sums of a batch norm's gradient."""
    g = weft.Graph(device="sm_90")
    x, scale = g.tensor([8, 1], data_type="bf16"), g.tensor([1, 1], data_type="f32")
    made = list(g.layernorm("TRAINING", x, scale, scale, 1e-5, name="norm")[1:])
    image, each = [2, 32, 16, 16], [1, 32, 1, 1]
    dy, x = (g.tensor(image, data_type="bf16") for _ in range(2))
    mean, inv, scale = (g.tensor(each, data_type="f32") for _ in range(3))
    made += g.dbn_weight(dy, x, mean, inv, scale, name="weight")
    for tensor in made:
        g.tanh(tensor).set_output(True).set_data_type("bf16")
    types = stored_types(g)
    assert {types[tensor.name] for tensor in made} == {"f32"}


@pytest.mark.parametrize(("intermediate", "stored"), [(None, "f32"), ("bf16", "bf16")])
def test_a_cpu_stores_intermediates_as_floats_by_default(intermediate: str | None, stored: str) -> None:
    """It reads slices and transposes in place."""
    g = weft.Graph(
        handle=weft.create_handle("cpu"),
        io_data_type="bf16",
        intermediate_data_type=intermediate,
        compute_data_type="f32",
    )
    scale = g.tensor([1, 1, 32], data_type="f32")
    normal = g.rmsnorm("INFERENCE", g.tensor([1, 64, 32]), scale, epsilon=1e-5, name="normal")[0]
    product = g.matmul(normal, g.tensor([1, 32, 48]), name="product")
    part = g.transpose(g.slice(product, [slice(0, 1), slice(0, 64), slice(16, 48)]), [0, 2, 1])
    g.softmax(part).set_output(True)
    report = g.build().plan.report
    assert [step["family"] for step in report["steps"]] == ["cpu.rows", "cpu.contraction", "cpu.rows"]
    virtual = [tensor for tensor in report["tensors"] if tensor["virtual"]]
    assert [tensor["type"] for tensor in virtual] == [stored] * 4
    normal_at, product_at, *views = (tensor["memory"] for tensor in virtual)
    assert views == [product_at] * 2 != [normal_at] * 2
