"""Poison: memory that a test gives to kernels holds it, also that of the emulated GPU."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

import emulated_gpu
import numpy as np
import poison
import pytest
from commands import run

TESTS = Path(__file__).parents[1]
FILLS = re.compile(r"full(_like)?\([^\n]*\b(0xFF|255)\b")
"""Code that fills memory with poison bytes."""


def test_memory_of_each_kind_holds_no_number() -> None:
    assert np.isnan(poison.array(64).view("f4")).all()
    assert (poison.array(64).view("i8") == -1).all()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="glibc fills the heap")
def test_new_memory_of_the_heap_is_poisoned() -> None:
    """Small and large blocks, of NumPy and torch."""
    for size in (3000, 1 << 24):
        assert (np.abs(np.empty(size, "f4")) > 1e38).all()
        assert not np.isfinite(np.empty(size, "f2").astype("f4")).any()
    torch = pytest.importorskip("torch")
    assert (torch.empty(3000).abs() > 1e38).all()


def test_memory_of_torch_has_gaps() -> None:
    torch = pytest.importorskip("torch")
    made = poison.tensor_of([2, 3], [5, 1], torch.bfloat16, "cpu")
    assert (made.shape, made.stride()) == ((2, 3), (5, 1))
    assert made.isnan().all()


def test_new_memory_of_the_emulated_gpu_is_poisoned() -> None:
    program = "import weft; print(weft.DeviceArray([4, 8], 'f32').numpy().tobytes().count(255))"
    settings = emulated_gpu.environment() | {"PYTHONPATH": "python:bindings"}
    assert run(sys.executable, "-c", program, **settings) == "128\n"


def test_one_helper_poisons() -> None:
    files = [path for path in TESTS.rglob("*.py") if path.name not in ("poison.py", "test_poison.py")]
    assert [str(path) for path in files if FILLS.search(path.read_text())] == []
