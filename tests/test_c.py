"""The C tests, under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import sys
from pathlib import Path

import emulated_gpu
import pytest
import tiers
from commands import ROOT, run


@pytest.fixture(scope="session")
def sanitized() -> Path:
    if tiers.TIER != "check":  # make has built what is wanted
        run("make", "sanitize")
    return ROOT / "build/asan"


@pytest.mark.parametrize("name", tiers.names_of_c())
def test_c(sanitized: Path, name: str) -> None:
    layouts = ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib")
    places = [Path(place, layout) for place in sys.path for layout in layouts]
    compilers = [str(place) for place in places if place.is_dir()]
    command = ("ctest", "--no-tests=error", "--output-on-failure", "-R", f"^{name}$")
    if "***Skipped" in run(*command, cwd=sanitized, WEFT_TEST_NVRTC=":".join(compilers)):
        pytest.skip("what it needs is not on this machine")


@pytest.mark.slow
def test_c_sequences_on_an_emulated_gpu(sanitized: Path) -> None:
    """Float products keep full precision, because narrowing is off. AddressSanitizer's dlopen does not search
    next to a library, so NVRTC's own second library must be in the path."""
    there = Path(emulated_gpu.find_nvrtc()).parent
    settings = {"LD_LIBRARY_PATH": there, "NVIDIA_TF32_OVERRIDE": 0, "WEFT_TEST_ROUNDS": 2}
    run(sanitized / "tests/test_sequences", **emulated_gpu.environment(), **settings)
