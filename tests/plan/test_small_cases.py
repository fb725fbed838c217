"""The small cases that sanitizers watch, planned for a described GPU: one for every kernel. What they compile
to is seen where the emulated GPU runs them (test_emulated)."""

from __future__ import annotations

import sys

import emulated_gpu
from commands import run


def test_every_kernel_and_family_has_a_case() -> None:
    """By a compiler that compiles nothing, of which no cache may keep anything."""
    compiler = emulated_gpu.build() / "fake/libnvrtc.so.13"
    said = run(sys.executable, "tests/small_cases.py", "--plan", WEFT_NVRTC=compiler, WEFT_CACHE="off")
    assert "no case for: nothing; " in said
