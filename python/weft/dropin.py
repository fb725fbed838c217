"""Loads Weft's libcudnn.so.9 into this process, so that PyTorch, JAX and other programs use it instead of
NVIDIA's. Import it before them:

    import weft.dropin
    import torch

It works because the dynamic linker takes a loaded library for every later request of the same soname.
docs/dropin.md describes what works.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

__all__ = ["library", "load", "loaded", "run"]

SONAME = "libcudnn.so.9"


def library() -> Path:
    """The path of Weft's libcudnn.so.9: of the package weft_cudnn, otherwise of the source tree."""
    package = find_spec("weft_cudnn")
    places = package.submodule_search_locations if package else None
    folders = [Path(place) / "lib" for place in places or []]
    folders.append(Path(__file__).parents[2] / "build/release/cudnn")
    for folder in folders:
        if (folder / SONAME).exists():
            return folder / SONAME
    listed = ", ".join(map(str, folders))
    raise FileNotFoundError(f"{SONAME}: not found in {listed}. Run make build in a source tree of Weft.")


def loaded() -> list[str]:
    """The paths of the libraries named libcudnn.so.9 in this process."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = {line.split(maxsplit=5)[-1] for line in lines if SONAME in line}
    return sorted(paths)


def load() -> Path:
    """Loads the library, unless another one of that name is loaded already: then ImportError."""
    path = library()
    others = [other for other in loaded() if Path(other).resolve() != path.resolve()]
    if others:
        raise ImportError(f"{others[0]} is loaded already. Import weft.dropin before what loads it.")
    ctypes.CDLL(str(path))
    return path


def run(program: Sequence[str]) -> None:
    """Replaces this process by Python with the given arguments and the library preloaded."""
    preloaded = [str(library()), *filter(None, [os.environ.get("LD_PRELOAD")])]
    environment = {**os.environ, "LD_PRELOAD": ":".join(preloaded)}
    os.execve(sys.executable, [sys.executable, *program], environment)


load()
