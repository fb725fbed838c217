from __future__ import annotations

import ctypes as C

import pytest
from cudnn_functions import FOLDER, Library


@pytest.fixture(scope="session")
def cudnn() -> Library:
    """The library that make build has built."""
    return Library(FOLDER / "libcudnn.so.9")


@pytest.fixture(scope="session")
def handle(cudnn: Library) -> C.c_void_p:
    """A handle of the CPU, which WEFT_DEVICE selects (tests/conftest.py)."""
    created = C.c_void_p()
    cudnn.Create(C.byref(created))
    return created
