"""Which operations are fused, and how a workspace limit changes that: plans for an H200."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import weft


def steps(g: weft.Graph) -> list[tuple[str, list[str]]]:
    """Family and operations of each step."""
    return [
        (step["family"], [operation["name"].split("'")[1] for operation in step["operations"]])
        for step in g.build().plan.report["steps"]
    ]


def graph(**options: Any) -> weft.Graph:
    return weft.Graph(device="sm_90", intermediate_data_type="f32", compute_data_type="f32", **options)


@pytest.mark.parametrize("is_first", [True, False])
def test_producers_are_fused_in_any_order(is_first: bool) -> None:
    """The graph's first operation is fused like any other."""
    g = graph(io_data_type="f32")
    if not is_first:
        g.exp(g.tensor([3]), name="other").set_output(True)
    g.softmax(g.relu(g.tensor([64, 128]), name="before"), name="rows").set_output(True)
    alone = [] if is_first else [("cuda.map", ["other"])]
    assert steps(g) == [*alone, ("cuda.rows", ["before", "rows"])]


@pytest.mark.parametrize("reads", ["neg", "reshape"])
def test_dead_operations_read_nothing(reads: str) -> None:
    """Not even the result that a product passes to its epilogue."""
    g = graph(io_data_type="f32")
    product = g.matmul(g.tensor([8, 16]), g.tensor([16, 4]), name="product")
    g.relu(product, name="activated").set_output(True)
    unread = g.neg(product) if reads == "neg" else g.reshape(product).set_dim([32])
    assert [names for _, names in steps(g)] == [["product", "activated"]]
    assert unread.get_is_virtual()


@pytest.mark.parametrize(("first", "ahead"), [("", [1]), ("empty", [1]), ("softmax", [0, 1])])
def test_inputs_load_ahead_where_a_kernel_of_the_plan_comes_before(first: str, ahead: list[int]) -> None:
    """Work before the plan may still write the inputs, and an empty step has no kernel."""
    g = weft.Graph(device="sm_90", io_data_type="bf16", compute_data_type="f32")
    x, w, v = g.tensor([256, 512]), g.tensor([512, 1024], [1, 512]), g.tensor([1024, 256], [1, 1024])
    if first == "empty":
        g.relu(g.tensor([0, 8])).set_output(True)
    g.matmul(g.matmul(g.softmax(x) if first == "softmax" else x, w), v).set_output(True)
    details = [step["detail"] for step in g.build().plan.report["steps"] if step["family"] == "cuda.hopper"]
    assert [i for i, detail in enumerate(details) if ", inputs ahead" in detail] == ahead


@pytest.mark.parametrize("limit", [None, 4 * 64 * 64])
def test_sums_in_one_piece_where_the_workspace_has_no_room_for_parts(limit: int | None) -> None:
    g = graph(io_data_type="bf16")
    x, w = g.tensor([64, 16384]), g.tensor([16384, 64])
    g.softmax(g.matmul(x, w, name="product"), name="rows").set_output(True)
    if limit is not None:
        g.deselect_workspace_greater_than(limit)
    assert steps(g) == [("cuda.hopper", ["product"]), ("cuda.rows", ["rows"])]
    assert (g.get_workspace_size() > 4 * 64 * 64) == (limit is None)
    splits = g.plan.report["steps"][0]["detail"]
    assert (", 1 split" in splits) == (limit is not None), splits


@pytest.mark.parametrize("seed", range(6))
def test_workspace_of_the_largest_step_is_reported(seed: int) -> None:
    """By the steps: what is made at or before one and read there or later, and its scratch."""
    rng = np.random.default_rng(seed)
    g = weft.Graph(device="cpu", io_data_type="f32", intermediate_data_type="f32", compute_data_type="f32")
    made = [g.softmax(g.tensor([24, 24]))]
    for _ in range(12):
        left, right = (made[int(rng.integers(max(0, len(made) - 4), len(made)))] for _ in range(2))
        rows = g.tensor([24, 24]) if rng.integers(2) else g.tensor([1, 24])
        made.append(
            g.softmax(g.matmul(g.matmul(left, right), rows) if rows.dims[0] == 24 else g.add(left, rows))
        )
    for x in made[-2:]:
        x.set_output(True)
    report = g.build().plan.report
    size = {t["uid"]: -(-4 * math.prod(t["dims"]) // 64) * 64 for t in report["tensors"]}
    stored = {t["uid"] for t in report["tensors"] if t["workspace_offset"] >= 0}
    lives: dict[int, list[int]] = {}
    for at, step in enumerate(report["steps"]):
        for operand in (each for operation in step["operations"] for each in operation["operands"]):
            lives.setdefault(operand["uid"], []).append(at)
    needs = [
        sum(size[uid] for uid in stored if lives[uid][0] <= at <= lives[uid][-1])
        + -(-step["scratch_bytes"] // 64) * 64
        for at, step in enumerate(report["steps"])
    ]
    assert report["least_workspace_bytes"] == max(needs) <= report["workspace_bytes"]
