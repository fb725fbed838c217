"""Whole blocks planned for an H200: how many kernels run, and which of them only move data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import weft
from weft.bench import blocks

MOVEMENTS = ("reshape", "transpose", "slice", "concat")
STEPS = {
    "gpt": 7,
    "linear_gelu_backward": 3,
    "rope": 2,
    "spelled_attention": 1,
    "bottleneck": 6,
    "bottleneck_backward": 9,
    "unet": 6,
}
MOVING = {"unet": 1}
"""Kernels that only move data; none where a block is not named."""


def steps(name: str, intermediate: str | None) -> list[Mapping[str, Any]]:
    g = weft.Graph(
        device="sm_90", io_data_type="bf16", intermediate_data_type=intermediate, compute_data_type="f32"
    )
    for key, tensor in blocks.BLOCKS[name](g).items():
        tensor.set_output(True).set_name(key)
    return g.build().plan.report["steps"]


def only_moves(step: Mapping[str, Any]) -> bool:
    return all(operation["name"].split(" ")[0] in MOVEMENTS for operation in step["operations"])


@pytest.mark.parametrize("name", blocks.BLOCKS)
def test_a_block_takes_few_steps(name: str) -> None:
    taken = steps(name, "bf16")
    told = [(step["family"], [operation["name"] for operation in step["operations"]]) for step in taken]
    assert len(taken) <= STEPS[name], told
    assert sum(map(only_moves, taken)) <= MOVING.get(name, 0), told
