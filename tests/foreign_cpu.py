"""Another processor, for machines that have none: the library compiled for 64-bit ARM, under QEMU.

    python tests/foreign_cpu.py python -m pytest tests/ops/test_softmax.py
    python tests/foreign_cpu.py python tests/random_graphs.py --count 100 --engine cpu.fast

Graphs are planned here and saved; tests/foreign/serve_plans.c loads and runs them there, and the tests
compare what comes back. It needs a compiler and QEMU (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross
qemu-user-static).
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from commands import ROOT, run

VARIABLE = "WEFT_TEST_FOREIGN_CPU"  # set: plans of the CPU run there
# Of tests/c.
PROGRAMS = (
    *("base", "cpu_fast", "expansions", "fastmath", "fork"),
    *("gemm", "philox", "small", "sweep", "threads"),
)
FOLDER = ROOT / "build/aarch64/tests"
EMULATOR = ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu")
TOOLS = ("aarch64-linux-gnu-gcc", EMULATOR[0])


def missing() -> str:
    """What this machine lacks, in words; empty where it has all."""
    absent = [tool for tool in TOOLS if not shutil.which(tool)]
    absent += [] if Path(EMULATOR[2]).is_dir() else [f"the C library in {EMULATOR[2]}"]
    return f"not on this machine: {', '.join(absent)}" if absent else ""


def build() -> Path:
    """The folder of the programs."""
    run("make", "aarch64", f"ONLY={' '.join(['serve_plans', *(f'test_{name}' for name in PROGRAMS)])}")
    return FOLDER


class Foreign:
    """A process that runs plans."""

    def __init__(self) -> None:
        command = [*EMULATOR, str(FOLDER / "serve_plans")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._to = cast(IO[bytes], self._process.stdin)
        self._from = cast(IO[bytes], self._process.stdout)

    def run(self, plan: bytes, memory: Mapping[int, np.ndarray[Any, Any]]) -> None:
        """Runs a saved plan on memory by uid, fences included, which is changed in place."""
        numbers = [np.array([len(plan)]), np.array([len(memory)])]
        parts = [numbers[0].tobytes(), plan, numbers[1].tobytes()]
        for uid, raw in memory.items():
            parts += [np.array([uid, raw.size], np.int64).tobytes(), raw.tobytes()]
        self._to.write(b"".join(parts))
        self._to.flush()
        error = self._read(int(np.frombuffer(self._read(8), np.int64)[0])).decode()
        assert not error, f"on the other processor: {error}"
        for raw in memory.values():
            raw[:] = np.frombuffer(self._read(raw.size), np.uint8)

    def _read(self, count: int) -> bytes:
        data = self._from.read(count)
        assert len(data) == count, f"the process that runs plans ended: {self._process.wait()}"
        return data


@functools.cache
def start() -> Foreign:
    """The process, started once."""
    build()
    return Foreign()


def process() -> Foreign | None:
    """The process that plans run in; None where that is this one."""
    return start() if os.environ.get(VARIABLE) else None


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if missing():
        sys.exit(missing())
    os.environ[VARIABLE] = "1"
    return subprocess.run(sys.argv[1:]).returncode


if __name__ == "__main__":
    sys.exit(main())
