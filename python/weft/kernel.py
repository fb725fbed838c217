"""Kernels, as plans show them: the text that was compiled, and how it is launched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Kernel(NamedTuple):
    """A kernel of a plan. print(kernel) shows the text that Weft printed for it; comments say of which
    operation each part is, by its kind. What that text includes is in headers, by name."""

    family: str
    """The kernel family that chose it: "cuda.map"."""
    step: int
    """Which step of the plan runs it, as explain() lists them."""
    file: str
    """The file of Weft's sources that it is a variant of: "map/map.cuh"."""
    entry: str
    """The name of its function."""
    text: str
    headers: Mapping[str, str]
    grid: tuple[int, int, int]
    """Blocks."""
    block: int
    """Threads of a block."""
    cluster: int
    """Blocks of a cluster; 0 where there are none."""
    shared_bytes: int
    """Shared memory that a launch asks for, beside what the text declares."""
    log: str
    """What the compiler said; empty as a rule."""

    def write(self, folder: str | Path) -> Path:
        """Writes the text and all that it includes into a folder, which is made; gives the text's path.
        NVRTC compiles it there: -std=c++17 --include-path=FOLDER."""
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
        return f"Kernel({self.family}: {self.entry} of {self.file}, {grid} blocks of {self.block} threads)"


def kernel_of(shown: Mapping[str, Any], headers: Mapping[str, str]) -> Kernel:
    """A kernel from its JSON, with the headers that it names."""
    own = {name: headers[name] for name in shown["headers"]}
    return Kernel(**{**shown, "grid": tuple(shown["grid"]), "headers": own})
