"""Whole blocks planned for an H200: which kernels run, and that none but `move` only moves data."""

from __future__ import annotations

import pytest
import weft
from weft.bench import blocks

FAMILIES = {
    "gpt": ["rows", "hopper", "attention_hopper", "hopper", "rows", "hopper", "hopper"],
    "linear_gelu_backward": ["rows", "hopper", "hopper"],
    "rope": ["map", "map"],
    "spelled_attention": ["spelled_attention"],
    "bottleneck": ["hopper", "rows", "patch_sm90", "rows", "hopper", "channels"],
    "bottleneck_backward": [
        *("channels", "hopper", "hopper"),
        *("channels", "hopper", "patch_sm90"),
        *("channels", "hopper", "hopper"),
    ],
    "unet": ["rows", "hopper", "rows", "hopper", "hopper"],
}


@pytest.mark.parametrize("name", blocks.BLOCKS)
@pytest.mark.parametrize("intermediate", ["bf16", None])
def test_a_block_takes_few_steps(name: str, intermediate: str | None) -> None:
    """As few, and the same kernels, where the types of intermediates are left unset."""
    g = weft.Graph(
        device="sm_90", io_data_type="bf16", intermediate_data_type=intermediate, compute_data_type="f32"
    )
    for key, tensor in blocks.BLOCKS[name](g).items():
        tensor.set_output(True).set_name(key)
    g.build_operation_graph()
    planned = [family.removeprefix("cuda.") for family in g.support()[0]["families"]]
    assert planned == FAMILIES[name]
