"""Fixtures of the machine code tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that receives all programs of the test; no program comes from a cache."""
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE", "off")
    return tmp_path
