"""Depthwise convolutions with fused operations, compiled for a described GPU: prefetching spills no
registers."""

from __future__ import annotations

from pathlib import Path

import cubins
import pytest
import weft

JOINED = {  # type, operands, size of the filter, stride
    "ahead": ("bf16", 1, 3, 1),
    "ahead, strides": ("bf16", 1, 5, 2),
    "of tensor cores": ("bf16", 2, 7, 1),
    "a strip at once": ("f32", 1, 5, 1),
    "two, strides": ("bf16", 2, 3, 2),
    "three": ("f32", 3, 3, 1),
    "beside many taps": ("f32", 1, 7, 1),
}


@pytest.mark.parametrize("name", JOINED)
def test_gradients_of_data(name: str, dump: Path) -> None:
    dtype, operands, size, stride = JOINED[name]
    g = weft.Graph(device="sm_90", io_data_type=dtype, compute_data_type="f32")

    def image(side: int) -> weft.Tensor:
        return g.tensor([128, 144, side, side], [side * side * 144, 1, side * 144, 144])

    w = g.tensor([144, 1, size, size], [size * size, 1, size, 1])
    dx = g.conv_dgrad(image(56 // stride), w, padding=[size // 2] * 2, stride=[stride] * 2)
    dx = g.swish_backward(dx.set_dim([128, 144, 56, 56]), image(56))
    for _ in range(operands - 1):
        dx = g.add(dx, image(56))
    dx.set_output(True)
    (step,) = g.build().plan.report["steps"]
    assert step["family"] == "cuda.depthwise"
    assert cubins.check_dumped(dump) == 1
