"""The C tests that start threads, under ThreadSanitizer."""

from __future__ import annotations

import pytest
from commands import ROOT, run


@pytest.mark.parametrize("name", ["test_threads", pytest.param("test_cuda_plan", marks=pytest.mark.nightly)])
def test_c_threads_do_not_race(name: str) -> None:
    run("make", "sanitize", "SANITIZE=thread", f"ONLY=test_{name}")
    run("ctest", "--no-tests=error", "--output-on-failure", "-R", f"^{name}$", cwd=ROOT / "build/tsan")
