# SPDX-License-Identifier: Apache-2.0
"""tools/host_coverage.py: what gcov counted, by folder, and the least share that passes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load_tool() -> Any:
    """tools/host_coverage.py as a module."""
    spec = importlib.util.spec_from_file_location("host_coverage", ROOT / "tools/host_coverage.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["host_coverage"] = loaded
    spec.loader.exec_module(loaded)
    return loaded


tool = load_tool()


def line(number: int, count: int, *branches: int) -> dict[str, Any]:
    return {"line_number": number, "count": count, "branches": [{"count": each} for each in branches]}


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three of four lines: one of them ran in one of two objects that have it."""
    object_1 = [line(1, 4, 4, 0), line(2, 0)]
    object_2 = [line(1, 0, 0, 0), line(2, 3)]
    own = [line(1, 1), line(3, 0)]

    def read(path: Path) -> list[dict[str, Any]]:
        files = {"one": object_1, "two": object_2}
        base = {"file": "backend/base/array.h", "lines": files[path.stem]}
        return [base, {"file": "backend/plan/plan.c", "lines": own}, {"file": "/x.h", "lines": own}]

    folder = tmp_path / "CMakeFiles/weft_objects.dir"
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        (folder / f"{name}.gcno").touch()
    monkeypatch.setattr(tool, "BUILD", tmp_path)
    monkeypatch.setattr(tool, "read", read)


@pytest.mark.usefixtures("reached")
@pytest.mark.parametrize(("least", "status"), [("75", 0), ("75.1", 1)])
def test_lines_of_all_objects_count_once(
    least: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["host_coverage.py", "--missing", "plan", "--least", least])
    assert tool.main() == status
    printed = capsys.readouterr().out
    assert "| backend/base | 2 | 100.0 % | 2 | 50.0 % |" in printed
    assert "| backend/plan | 2 | 50.0 % | 0 | 100.0 % |" in printed
    assert "| all | 4 | 75.0 % | 2 | 50.0 % |" in printed
    assert "backend/plan/plan.c:3: " in printed
