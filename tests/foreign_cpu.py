"""Other processors, under QEMU: the library compiled for 64-bit ARM, and as it is on older x86 processors,
where its loops and kernels run with the vectors that these have.

    python tests/foreign_cpu.py python -m pytest tests/ops/test_softmax.py                    # on aarch64
    python tests/foreign_cpu.py --on avx2 python tests/random_graphs.py --count 100 --engine cpu.fast
    python tests/foreign_cpu.py --on sse2 ...

Graphs are planned here and saved; tests/foreign/serve_plans.c loads and runs them there, and the tests
compare what comes back. Debian's packages: qemu-user-static; for ARM gcc-aarch64-linux-gnu and
libc6-dev-arm64-cross, too.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from commands import ROOT, run

VARIABLE = "WEFT_TEST_FOREIGN_CPU"  # the processor on which CPU plans run, if not this one
# From tests/c, without the test of threads: QEMU on x86 orders memory like x86.
PROGRAMS = ("base", "cpu_fast", "expansions", "fastmath", "fork", "gemm", "philox", "small", "sweep")


@dataclass(frozen=True)
class Processor:
    """A processor that QEMU emulates: the command that runs programs, their folder, and how to build them."""

    emulator: tuple[str, ...]
    folder: Path
    compiler: str = "cc"
    machine: str = ""  # this one must be such
    sysroot: str = ""

    @property
    def missing(self) -> str:
        """Describes the tools that this machine lacks; empty if it has all."""
        if self.machine and platform.machine() != self.machine:
            return f"the library is not compiled for {self.machine} here"
        absent = [tool for tool in (self.compiler, self.emulator[0]) if not shutil.which(tool)]
        if self.sysroot and not Path(self.sysroot).is_dir():
            absent.append(f"the C library in {self.sysroot}")
        return f"not on this machine: {', '.join(absent)}" if absent else ""

    def build(self) -> Path:
        """Returns the folder of the programs, rebuilt if older than their sources."""
        if self.sysroot:
            run("make", "aarch64", "ONLY=serve_plans " + " ".join(f"test_{name}" for name in PROGRAMS))
        else:
            self._build_here()
        return self.folder

    def _build_here(self) -> None:
        library = ROOT / "python/weft/lib"
        self.folder.mkdir(parents=True, exist_ok=True)
        made, source = self.folder / "serve_plans", ROOT / "tests/foreign/serve_plans.c"
        flags = ["-std=gnu11", f"-I{ROOT / 'include'}", f"-L{library}", f"-Wl,-rpath,{library}"]
        run(self.compiler, *flags, source, "-l:libweft.so.1", "-o", made)


SYSROOT = "/usr/aarch64-linux-gnu"
HERE = ROOT / "build/foreign"
PROCESSORS = {
    "aarch64": Processor(
        ("qemu-aarch64-static", "-L", SYSROOT),
        ROOT / "build/aarch64/tests",
        compiler="aarch64-linux-gnu-gcc",
        sysroot=SYSROOT,
    ),
    "sse2": Processor(("qemu-x86_64-static", "-cpu", "core2duo"), HERE / "sse2", machine="x86_64"),
    "avx2": Processor(("qemu-x86_64-static", "-cpu", "Haswell"), HERE / "avx2", machine="x86_64"),
}


@functools.cache
def folder_of(name: str) -> Path:
    """The folder of a processor's programs."""
    return PROCESSORS[name].build()


class Foreign:
    """A process that runs plans on another processor."""

    def __init__(self, name: str) -> None:
        command = [*PROCESSORS[name].emulator, str(folder_of(name) / "serve_plans")]
        pipe = subprocess.PIPE
        # QEMU reports unsupported processor features on standard error.
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self._to = cast(IO[bytes], self._process.stdin)
        self._from = cast(IO[bytes], self._process.stdout)

    def run(self, plan: bytes, memory: Mapping[int, np.ndarray[Any, Any]]) -> None:
        """Runs a saved plan on memory by uid, fences included, which is changed in place."""
        parts = [np.array([len(plan)]).tobytes(), plan, np.array([len(memory)]).tobytes()]
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
def start(name: str) -> Foreign:
    """The process for a processor, started once."""
    return Foreign(name)


def process() -> Foreign | None:
    """The process that plans run in; None where that is this one."""
    name = os.environ.get(VARIABLE)
    return start(name) if name else None


def main() -> int:
    words = sys.argv[1:]
    name = "aarch64"
    if words[:1] == ["--on"]:
        name, words = words[1], words[2:]
    if not words or name not in PROCESSORS:
        sys.exit(__doc__)
    if PROCESSORS[name].missing:
        sys.exit(PROCESSORS[name].missing)
    os.environ[VARIABLE] = name
    return subprocess.run(words).returncode


if __name__ == "__main__":
    sys.exit(main())
