"""Weft for PyTorch: operators of torch.library in namespace weft, and Weft under torch's own operators.

    import torch, weft.torch
    with weft.torch.enable() as weft_under:
        model(x).sum().backward()
    print(weft_under.report())

Importing this package imports torch; `import weft` never does.
"""

from __future__ import annotations

from weft.torch.enable import Enabled, enable
from weft.torch.ops import OPERATORS
from weft.torch.plans import cache_info, clear_cache

__all__ = ["OPERATORS", "Enabled", "cache_info", "clear_cache", "enable"]
