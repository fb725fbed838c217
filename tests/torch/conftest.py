"""Where the tests of weft.torch run: tensors that name no device are made on the one under test."""

from __future__ import annotations

import os

import pytest

DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")


@pytest.fixture(autouse=True)
def _on_device():
    torch = pytest.importorskip("torch")
    with torch.device(DEVICE):
        yield
