"""Fills the memory of frameworks with poison before each test."""

from __future__ import annotations

import poison
import pytest


@pytest.fixture(autouse=True)
def _poison() -> None:
    poison.gpu_memory_of_frameworks()
