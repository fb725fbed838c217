"""Poison: the contents of memory before a test runs a kernel in it. Results, workspaces, padding, and the
gaps between rows hold BYTE, so that elements that a kernel does not write, or reads before writing, are
detected: NaN in every floating-point type, -1 in signed integers.

The fake driver, and so the emulated GPU, fills each allocation itself (tests/fake_cuda/fake_cuda.c). This
module fills the heap, NumPy's memory, Weft's device memory, and the memory that torch and JAX allocate next.
"""

from __future__ import annotations

import ctypes
import sys
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


def heap() -> None:
    """Makes the C library fill memory that it allocates from now on: results and workspaces of NumPy, torch,
    JAX and Weft on the CPU. It cannot fill with BYTE, only with a byte next to it: infinity or NaN in f16,
    huge numbers in wider types."""
    m_perturb = -6  # <malloc.h> of glibc; other C libraries have no such option
    if hasattr(libc := ctypes.CDLL(None), "gnu_get_libc_version"):
        libc.mallopt(m_perturb, BYTE ^ 0xFE)


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


def gpu_memory_of_frameworks(small: int = 64, large: int = 4, size: int = 256 << 20) -> None:
    """Fills memory of the GPU that torch and JAX reuse for what they allocate next, in small blocks and in
    large ones of `size` bytes. Frameworks that are not imported have none."""
    sizes = [1 << 20] * small + [size] * large
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
        tensors = [in_torch(each, "cuda") for each in sizes]
        del tensors
    if jax is not None and jax.default_backend() == "gpu":
        arrays = [jax.numpy.full(each, BYTE, "uint8").block_until_ready() for each in sizes]
        del arrays


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
