"""Poison: the contents of memory before a test runs a kernel in it. Results, workspaces, padding, and the
gaps between rows hold BYTE, so that elements that a kernel does not write, or reads before writing, are
detected: NaN in every floating-point type, -1 in signed integers.

The fake driver, and so the emulated GPU, fills each allocation itself (tests/fake_cuda/fake_cuda.c). This
module fills NumPy's memory, Weft's device memory and torch's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import weft
from weft import buffers, dtypes

BYTE = 0xFF
FENCE = 256
"""Bytes around a buffer that must not be written."""


def array(size: int) -> np.ndarray[Any, Any]:
    """Returns poisoned host memory."""
    return np.full(size, BYTE, np.uint8)


def on_device(size: int, **where: Any) -> weft.DeviceArray:
    """Returns poisoned GPU memory. where: as for DeviceArray."""
    return weft.DeviceArray([size], "u8", **where).copy_from(array(size))


def in_torch(size: int, device: Any) -> Any:
    """Returns poisoned memory in a torch tensor."""
    import torch

    return torch.full((size,), BYTE, dtype=torch.uint8, device=device)


def tensor_of(dims: Iterable[int], strides: Iterable[int], dtype: Any, device: Any) -> Any:
    """Returns a torch tensor, with gaps if the strides leave some."""
    dims, strides = tuple(dims), tuple(strides)
    size = buffers.span(dims, strides) * dtype.itemsize
    return in_torch(size, device).view(dtype).as_strided(dims, strides)


def free_memory_of_torch(plan: weft.Plan, device: Any) -> None:
    """Fills the memory that torch's allocator gives a plan next: it has blocks of the results' and of the
    workspace's sizes, which were just freed."""
    sizes = [plan.workspace_size]
    for slot in plan.slots:
        if slot.is_output:
            elements = buffers.span(slot.dims, slot.strides)
            sizes.append((elements * dtypes.of(slot.data_type).bits + 7) // 8)
    blocks = [in_torch(size, device) for size in sizes if size]
    del blocks
