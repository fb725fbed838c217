"""NVIDIA's Python frontend over libcudnn.so.9 on the CPU. It runs if WEFT_TEST_FRONTEND names folders with
installed wheels of nvidia-cudnn-frontend, separated by colons."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import ROOT, run
from cudnn_functions import FOLDER

WHEELS = [path for path in os.environ.get("WEFT_TEST_FRONTEND", "").split(":") if path]
HERE = ROOT / "tests/cudnn_library"
CASES = [
    "conv_bias_relu",
    "conv_dgrad_as_transposed_forward",
    "matmul_bias_tanh",
    "layernorm",
    "sdpa",
    "sdpa_paged",
]


@pytest.fixture(scope="module")
def run_time(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CUDA run-time of the host."""
    folder = tmp_path_factory.mktemp("cudart")
    linking = ["-shared", "-fPIC", "-Wl,-soname,libcudart.so.13", "-o", folder / "libcudart.so.13"]
    run(
        os.environ.get("CC", "cc"),
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        HERE / "fake_cudart.c",
        *linking,
    )
    (folder / "cuda/bindings").mkdir(parents=True)  # the frontend imports the module, and needs nothing of it
    for name in ("__init__", "driver", "runtime"):
        (folder / "cuda/bindings" / f"{name}.py").touch()
    return folder


@pytest.mark.skipif(not WHEELS, reason="WEFT_TEST_FRONTEND names no wheel of nvidia-cudnn-frontend")
@pytest.mark.parametrize("wheel", WHEELS)
@pytest.mark.parametrize(
    "version", ["92000", "92800"]
)  # masks and softmax are operations of their own since 9.21
def test_frontend_runs(run_time: Path, wheel: str, version: str) -> None:
    of_numpy = Path(np.__file__).parents[1]
    environment = {
        "LD_LIBRARY_PATH": f"{FOLDER}:{run_time}",
        "PYTHONPATH": f"{wheel}:{run_time}:{of_numpy}",
        "WEFT_DEVICE": "cpu",
        "WEFT_CUDNN_VERSION": version,
    }
    output = run(sys.executable, HERE / "frontend_program.py", **environment).splitlines()
    assert output[:-1] == [*CASES, "sdpa_backward"]
    assert output[-1].endswith(f"backend {version}")
