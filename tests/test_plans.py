"""Plans, most of them for GPUs that are not here (tests/plan): their steps, prices and words."""

from __future__ import annotations

import re
import sys

import emulated_gpu
import pytest
from commands import run


def test_plans() -> None:
    """With a compiler that generates nothing, because no test reads code, and without caches. In a separate
    process, because each process looks for its compilers once."""
    compiler = emulated_gpu.build() / "fake/libnvrtc.so.13"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/plan"]
    said = run(*command, WEFT_NVRTC=compiler, WEFT_CACHE="off")
    if skipped := re.findall("^not observed: (tests/.*)", said, re.MULTILINE):
        pytest.skip("; ".join(skipped))  # so that they are named; the others passed
