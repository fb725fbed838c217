"""Poison: what memory holds before a test runs a kernel in it. Results, workspaces, padding, and the gaps
between rows hold BYTE, so that what a kernel does not write, or reads without having written, shows: NaN in
every type of floats, -1 in signed integers.

The fake driver, and so the emulated GPU, fills each allocation by itself (tests/fake_cuda/fake_cuda.c). The
rest is here, for NumPy's memory, Weft's device memory and torch's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import weft
from weft import buffers, dtypes

BYTE = 0xFF
FENCE = 256
"""Bytes around a buffer that nothing may write."""


def array(size: int) -> np.ndarray[Any, Any]:
    """Bytes in the memory of the host."""
    return np.full(size, BYTE, np.uint8)


def on_device(size: int, **where: Any) -> weft.DeviceArray:
    """Bytes in a GPU's memory. where: as of DeviceArray."""
    return weft.DeviceArray([size], "u8", **where).copy_from(array(size))


def in_torch(size: int, device: Any) -> Any:
    """Bytes in a tensor of torch's."""
    import torch

    return torch.full((size,), BYTE, dtype=torch.uint8, device=device)


def tensor_of(dims: Iterable[int], strides: Iterable[int], dtype: Any, device: Any) -> Any:
    """A tensor of torch's, with gaps where strides leave some."""
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
