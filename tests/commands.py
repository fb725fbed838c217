"""Commands that tests run in this repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = Path(sys.executable).parent


def run(*command: object, cwd: Path = ROOT, **environment: object) -> str:
    """Runs a command, this environment's tools first in PATH; its output is the failure's message."""
    __tracebackhide__ = True  # pytest shows the test instead
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    env = inherited | {"PATH": f"{TOOLS}:{os.environ['PATH']}"} | {k: str(v) for k, v in environment.items()}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout
