"""Which operations run together, and what a limit of the workspace changes of it: plans for an H200."""

from __future__ import annotations

from typing import Any

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
def test_what_is_before_joins_wherever_it_stands(is_first: bool) -> None:
    """The graph's first operation joins as any other does."""
    g = graph(io_data_type="f32")
    if not is_first:
        g.exp(g.tensor([3]), name="other").set_output(True)
    g.softmax(g.relu(g.tensor([64, 128]), name="before"), name="rows").set_output(True)
    alone = [] if is_first else [("cuda.map", ["other"])]
    assert steps(g) == [*alone, ("cuda.rows", ["before", "rows"])]


@pytest.mark.parametrize("reads", ["neg", "reshape"])
def test_what_nobody_needs_reads_nothing(reads: str) -> None:
    """Not even the result that a product hands on to what is behind it."""
    g = graph(io_data_type="f32")
    product = g.matmul(g.tensor([8, 16]), g.tensor([16, 4]), name="product")
    g.relu(product, name="activated").set_output(True)
    unread = g.neg(product) if reads == "neg" else g.reshape(product).set_dim([32])
    assert [names for _, names in steps(g)] == [["product", "activated"]]
    assert unread.get_is_virtual()


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
    assert (", 1 splits" in splits) == (limit is not None), splits
