# SPDX-License-Identifier: Apache-2.0
"""The CPU's engine on other processors under QEMU (tests/foreign_cpu.py): with NEON, SSE2 and AVX2 as the
widest vectors; those of this processor are what all other tests run."""

from __future__ import annotations

import re
from typing import Any

import checks
import foreign_cpu
import numpy as np
import pytest
import random_graphs
import tiers
import weft
from commands import ROOT, run
from foreign_cpu import PROCESSORS

SHARE = {"cpu_fast": (1, 10)}  # a tenth of its cases: it takes 45 s for all
GRAPHS = 60


def needs(name: str) -> pytest.MarkDecorator:
    """Skips a test if a processor is unavailable, and reports what is missing."""
    missing = PROCESSORS[name].missing
    return pytest.mark.skipif(bool(missing), reason=missing)


ARM = needs("aarch64")
ALL = [pytest.param(name, marks=needs(name)) for name in PROCESSORS]
LONG = ("gemm", "base")
PROGRAMS = [pytest.param(x, marks=pytest.mark.nightly) if x in LONG else x for x in foreign_cpu.PROGRAMS]


@ARM
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_on_arm(name: str) -> None:
    program = foreign_cpu.folder_of("aarch64") / f"test_{name}"
    run(*PROCESSORS["aarch64"].emulator, program, *SHARE.get(name, ()), WEFT_DEVICE="cpu")


@pytest.mark.parametrize("processor", ALL)
def test_graphs(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random ones; WEFT_TEST_DAY selects others."""
    monkeypatch.setenv(foreign_cpu.VARIABLE, processor)
    first = 2_000_000 + tiers.DAY * GRAPHS
    wrong = [random_graphs.check(number, ["cpu.fast"]) for number in range(first, first + GRAPHS)]
    where = f"on {processor}, WEFT_TEST_DAY={tiers.DAY}"
    assert not any(wrong), "\n".join([where, *filter(None, wrong)])


# ---- Equal numbers -----------------------------------------------------------------------------------------


def activate(g: weft.Graph, x: Any, y: Any, scale: Any) -> list[Any]:
    functions = [g.sigmoid, g.tanh, g.erf, g.gelu, g.exp, g.log, g.softplus, g.elu]
    return [each(g.mul(x, scale)) for each in functions] + [g.gelu_backward(y, x), g.sqrt(y), g.div(x, y)]


def normalise(g: weft.Graph, x: Any, y: Any, scale: Any) -> list[Any]:
    norm = g.layernorm(input=x, scale=scale, bias=scale, norm_forward_phase="TRAINING", epsilon=1e-5)
    return [*norm, g.softmax(y), g.reduction(g.mul(x, y), mode="ADD").set_dim([37, 1])]


def results_of(build: Any) -> list[bytes]:
    """Results of a graph with three inputs on cpu.fast. All NaN are equal: processors choose their sign."""
    random = np.random.default_rng(7)
    g = weft.Graph(handle=checks.handle(), io_data_type="f32", compute_data_type="f32")
    dims = {"x": [37, 301], "y": [37, 301], "scale": [1, 301]}
    inputs = [g.tensor(each, name=name) for name, each in dims.items()]
    outputs = [each.set_output(True) for each in build(g, *inputs)]
    g.create_execution_plan([answer["engine"] for answer in g.support()].index("cpu.fast"))
    g.build_plan_at_index(0)
    memory = {t: checks.Memory(t.dims, t.strides, weft.data_type.FLOAT) for t in inputs + outputs}
    for tensor in inputs:
        memory[tensor].write((random.standard_normal(tensor.dims) * 10).astype("f4"))
    checks.run_plan(g, memory)
    found = [memory[tensor].read() for tensor in outputs]
    return [np.where(np.isnan(each), np.float32(np.nan), each).tobytes() for each in found]


@pytest.mark.parametrize("build", [activate, normalise])
@pytest.mark.parametrize("processor", ALL)
def test_rows_and_maps_have_the_same_bits(
    build: Any, processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products and sums are rounded one by one, and sums taken in one order, whatever the vectors."""
    here = results_of(build)
    monkeypatch.setenv(foreign_cpu.VARIABLE, processor)
    there = results_of(build)
    assert [at for at, (a, b) in enumerate(zip(here, there, strict=True)) if a != b] == []


# ---- Machine code ------------------------------------------------------------------------------------------

# The minimum number of full-vector float instructions for each; fused ones for sums of products.
NEON = {
    "attention/tile": (r"f\w+\tv\d+\.4s", 60),
    "attention/modifier": (r"f\w+\tv\d+\.4s", 40),
    "causal/causal": (r"fml[as]\tv\d+\.4s", 6),
    "core/loops_f32": (r"f\w+\tv\d+\.4s", 500),
    "product/gemm_kernel": (r"fml[as]\tv\d+\.4s", 12),
    "product/gemm_small": (r"fml[as]\tv\d+\.4s", 40),
    "rows/kernels_f32": (r"f\w+\tv\d+\.4s", 1500),
    "rows/kernels_f64": (r"f\w+\tv\d+\.2d", 800),
    "pooling/sweep": (r"f\w+\tv\d+\.4s", 100),
}


@ARM
@pytest.mark.parametrize("source", list(NEON))
def test_loops_are_neon_code(source: str) -> None:
    foreign_cpu.folder_of("aarch64")
    made = ROOT / f"build/aarch64/CMakeFiles/weft_objects.dir/backend/engines/cpu/{source}.c.o"
    code = run("aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", made)
    pattern, least = NEON[source]
    assert len(re.findall(rf"\t{pattern}", code)) >= least
