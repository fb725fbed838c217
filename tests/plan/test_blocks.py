"""Whole blocks planned for an H200 and for a CPU: which kernels run; none but `move` only moves data."""

from __future__ import annotations

from typing import Any

import pytest
import weft

from benchmarks import blocks

FAMILIES = {
    "gpt": ["rows", "hopper", "attention_hopper", "hopper", "rows", "hopper", "hopper"],
    "linear_gelu_backward": ["rows", "hopper", "hopper"],
    "rope": ["map", "map"],
    "attention_pattern": ["attention_pattern"],
    "bottleneck": ["hopper", "rows", "patch_sm90", "rows", "hopper", "channels"],
    "bottleneck_backward": [
        *("channels", "hopper", "hopper"),
        *("channels", "hopper", "patch_sm90"),
        *("channels", "hopper", "hopper"),
    ],
    "unet": ["rows", "hopper", "rows", "hopper", "hopper"],
}

ON_A_CPU = {
    "gpt": ["rows", "contraction", "attention", "contraction", "rows", "contraction", "contraction"],
    "linear_gelu_backward": ["rows", "contraction", "contraction"],
    "rope": ["map", "map"],
    "attention_pattern": ["contraction", "rows", "contraction"],
    "bottleneck": ["contraction", "rows"] * 3,
    "bottleneck_backward": ["map", *["rows", "contraction", "contraction"] * 3],
    # Norm and product would each have to gather what is joined.
    "unet": ["move", "rows", "contraction", "rows", "contraction", "contraction"],
}


def planned(name: str, where: Any, intermediate: str | None) -> list[str]:
    g = weft.Graph(intermediate_data_type=intermediate, compute_data_type="f32", **where)
    for key, tensor in blocks.BLOCKS[name](g).items():
        tensor.set_output(True).set_name(key)
    g.build_operation_graph()
    answer = next(each for each in g.support() if each["supported"])
    return [family.partition(".")[2] for family in answer["families"]]


@pytest.mark.parametrize("name", blocks.BLOCKS)
@pytest.mark.parametrize("intermediate", ["bf16", None])
def test_a_block_takes_few_steps(name: str, intermediate: str | None) -> None:
    """As few, and the same kernels, where the types of intermediates are left unset."""
    assert planned(name, {"device": "sm_90", "io_data_type": "bf16"}, intermediate) == FAMILIES[name]


@pytest.mark.parametrize("name", blocks.BLOCKS)
@pytest.mark.parametrize("intermediate", ["f32", None])
def test_a_block_on_a_cpu(name: str, intermediate: str | None) -> None:
    where = {"handle": weft.create_handle("cpu"), "io_data_type": "f32"}
    assert planned(name, where, intermediate) == ON_A_CPU[name]
