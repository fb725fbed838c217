"""Weft for PyTorch: torch.library operators in the namespace weft, and Weft kernels for torch's own
operators.

    import torch, weft.torch
    with weft.torch.enable() as weft_under:
        model(x).sum().backward()
    print(weft_under.report())

    compiled = torch.compile(model, backend=weft.torch.backend)

Importing this package imports torch; `import weft` never does.
"""

from __future__ import annotations

from typing import Any

from weft.torch import operators, sdpa_packed, transforms
from weft.torch.enable import Enabled, enable
from weft.torch.merge import merge
from weft.torch.operators.dropout import dropout
from weft.torch.ops import OPERATORS
from weft.torch.plans import cache_info, clear_cache
from weft.torch.sdpa_provider import register_sdpa

__all__ = [
    "OPERATORS", "Enabled", "backend", "cache_info", "clear_cache", "dropout", "enable", "explain", "merge",
    "operators", "register_sdpa", "sdpa_packed", "transforms",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Loads backend and explain on first use: they import torch's compiler, which takes about a second."""
    if name not in ("backend", "explain"):
        raise AttributeError(f"module 'weft.torch' has no attribute {name!r}")
    from weft.torch import compile

    return getattr(compile, name)
