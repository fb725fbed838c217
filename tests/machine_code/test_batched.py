"""Batches of small matrix products, compiled for a described GPU: several matrices per block, no spills."""

from __future__ import annotations

from pathlib import Path

import cubins
import pytest
import weft

CASES = {  # batch, rows, k, columns, order of A and B, description
    "odd columns": (12288, 49, 32, 49, "rr", "8 matrices per block, 8 warps, units of 32x56, 1 part of k"),
    "odd k": (12288, 49, 49, 32, "rr", "8 matrices per block, 8 warps, units of 64x32, 1 part of k"),
    "odd k, both along it": (12288, 49, 49, 32, "rc", "8 matrices per block"),
    "transposed": (3072, 32, 49, 49, "cr", "8 matrices per block, 8 warps, units of 32x56, 1 part of k"),
    "long k": (512, 12, 1024, 12, "rc", "1 matrix per block, 8 warps, units of 16x16, 8 parts of k"),
    "some k": (512, 20, 256, 20, "rc", "1 matrix per block, 4 warps, units of 32x24, 4 parts of k"),
    "wide": (512, 20, 20, 256, "rc", "1 matrix per block, 4 warps, units of 32x64, 1 part of k"),
    "small": (512, 38, 64, 38, "rc", "2 matrices per block, 2 warps, units of 48x40, 1 part of k"),
}


@pytest.mark.parametrize("name", CASES)
def test_blocks(name: str, dump: Path) -> None:
    count, m, k, n, order, described = CASES[name]
    g = weft.Graph(device="sm_90", io_data_type="bf16", compute_data_type="f32")
    a = g.tensor([count, m, k], [m * k, k, 1] if order[0] == "r" else [m * k, 1, m])
    b = g.tensor([count, k, n], [k * n, n, 1] if order[1] == "r" else [k * n, 1, k])
    g.matmul(a, b).set_output(True)
    (step,) = g.build().plan.report["steps"]
    assert step["family"] == "cuda.batched"
    assert described in step["detail"]
    assert cubins.check_dumped(dump) == 1


@pytest.mark.parametrize("strides", [[40 * 50, 50, 1], [40 * 49, 49, 2]])
def test_other_families_multiply_matrices_with_gaps(strides: list[int]) -> None:
    g = weft.Graph(device="sm_90", io_data_type="bf16", compute_data_type="f32")
    a, b = g.tensor([512, 40, 24], strides), g.tensor([512, 24, 40])
    g.matmul(a, b).set_output(True)
    assert all(step["family"] != "cuda.batched" for step in g.build().plan.report["steps"])
