"""The libraries that connect libweft to a framework: libweft_torch.so and libweft_xla.so, in the folder of
libweft itself. Each is opened only by the package for its framework."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from weft import backend
from weft.errors import UnavailableError


@cache
def load(name: str) -> ctypes.PyDLL:
    """Opens an integration, "torch" or "xla". It uses the libweft that this process has loaded."""
    backend.library()
    path = str(Path(backend.library_path()).with_name(f"libweft_{name}.so"))
    try:
        return ctypes.PyDLL(path)
    except OSError as error:
        raise UnavailableError(
            f"weft: the library {path} cannot be opened ({error}). Build it with `make build`, next to the "
            "libweft that is used."
        ) from None
