"""The small cases of the sanitizer runs, planned for a described GPU: one for every kernel. The compiled code
is checked when the emulated GPU runs them (test_emulated)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import emulated_gpu
import pytest
import sanitizer
from commands import run


def test_every_kernel_and_family_has_a_case() -> None:
    """Planned with a stub compiler that generates nothing, so no cache may store its output."""
    compiler = emulated_gpu.build() / "fake/libnvrtc.so.13"
    said = run(sys.executable, "tests/small_cases.py", "--plan", WEFT_NVRTC=compiler, WEFT_CACHE="off")
    assert "no case for: nothing; " in said


@pytest.mark.parametrize("tool", sanitizer.TOOLS)
def test_tools_watch_the_cases_with_the_options_that_they_need(tool: str, tmp_path: Path) -> None:
    """initcheck does not see what the copy engine stores, and synccheck has room for few barriers."""
    watching = tmp_path / "compute-sanitizer"
    skips = f'while [ "$1" != {sys.executable} ]; do shift; done'
    watching.write_text(f'#!/bin/sh\necho "$*"\n{skips}\nexec "$@"\n')
    watching.chmod(0o755)
    compiler = emulated_gpu.build() / "fake/libnvrtc.so.13"
    settings = {"WEFT_NVRTC": compiler, "WEFT_CACHE": "off", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = ["--plan", "--only", "^totals$|NCHW, all turned"]
    said = run(sys.executable, "tests/sanitizer.py", tool, *words, **settings)
    assert f"--tool {tool} " in said
    assert (" --num-cuda-barriers 65536 " in said) == (tool == "synccheck")
    assert "\ntotals " in said
    assert ("all turned  " in said) == (tool != "initcheck")
