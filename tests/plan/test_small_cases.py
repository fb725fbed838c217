"""The small cases that sanitizers watch: planned and compiled for a described GPU, one for every kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "small_cases.py"


def test_every_kernel_and_family_has_a_case() -> None:
    command = [sys.executable, str(PROGRAM), "--plan"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "no case for: nothing; " in done.stdout
