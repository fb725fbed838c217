"""docs/torch.md: its example runs as printed, and the table names every operator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/torch.md").read_text(encoding="utf-8")


def test_the_example_runs_on_weft(capsys) -> None:
    program = re.search(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)[1]
    assert len(program.splitlines()) == 5
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["weft_under"].report()["aten::convolution_backward"] == {"served": 1}
    assert capsys.readouterr().out.startswith("Weft served 4 of 4 calls of the operators that it replaces.")


def test_the_page_names_every_operator() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert {name for name in weft_torch.OPERATORS if not name.endswith("_backward")} <= named
