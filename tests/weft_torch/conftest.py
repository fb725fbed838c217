"""Allocates tensors without an explicit device on the device under test."""

from __future__ import annotations

import os

import poison
import pytest

DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")


@pytest.fixture(autouse=True)
def _on_device():
    torch = pytest.importorskip("torch")
    if DEVICE != "cpu":
        poison.gpu_memory_of_frameworks()
    exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)  # floats keep all their bits
    with torch.device(DEVICE), exact:
        yield
