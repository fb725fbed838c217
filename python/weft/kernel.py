"""The kernels of a plan: their source text and launch parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from weft.arguments import counted


class Kernel(NamedTuple):
    """A kernel of a plan. print(kernel) shows the source that Weft generated; comments name the kind of
    operation that each part implements. The included files are in `headers`, by name."""

    family: str
    """The kernel family that selected it, such as "cuda.map"."""
    step: int
    """The index of the step of the plan that runs it, as listed by explain()."""
    file: str
    """The source file that it is a variant of, such as "map/map.cuh"."""
    entry: str
    """The name of the kernel function."""
    text: str
    headers: Mapping[str, str]
    grid: tuple[int, int, int]
    """In blocks."""
    block: int
    """Threads per block."""
    cluster: int
    """Blocks per cluster; 0 without clusters."""
    shared_bytes: int
    """Dynamic shared memory of a launch, in addition to static shared memory."""
    log: str
    """The compiler's messages; usually empty."""

    def write(self, folder: str | Path) -> Path:
        """Writes the source and all files that it includes into a directory, which is created, and returns
        the path of the source. NVRTC compiles it with -std=c++17 --include-path=DIRECTORY."""
        path = Path(folder, f"{self.entry}.cu")
        for name, text in {path.name: self.text, **self.headers}.items():
            file = Path(folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return path

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        grid = "x".join(map(str, self.grid))
        threads = counted(self.block, "thread")
        return f"Kernel({self.family}: {self.entry} of {self.file}, {grid} blocks of {threads})"


def kernel_of(shown: Mapping[str, Any], headers: Mapping[str, str]) -> Kernel:
    """A kernel from its JSON, with the headers that it names."""
    included = {name: headers[name] for name in shown["headers"]}
    return Kernel(**{**shown, "grid": tuple(shown["grid"]), "headers": included})
