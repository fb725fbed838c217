"""The tiers of tests: what they name exists, and a tier that does not is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiers

ROOT = Path(__file__).parents[2]
FAILING = """
import checks
import numpy as np

def test_that_fails():
    x = np.float32([1, 2])
    checks.check(lambda g, x: g.neg(x), {"x": x}, x)
"""


def test_what_the_lists_name_exists() -> None:
    assert [path for path in tiers.QUICK if not (ROOT / path).exists()] == []
    names = {path.stem for path in (ROOT / "tests/c").glob("*.c")}
    assert tiers.SLOW_C - names == set()
    assert set(tiers.names_of_c("test")) == names
    assert set(tiers.names_of_c("check")) == names - tiers.SLOW_C


def test_an_unknown_tier_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "tests/tiers.py"],
        cwd=ROOT,
        env=os.environ | {"WEFT_TEST_TIER": "most"},
        capture_output=True,
        text=True,
    )
    assert done.stderr == "WEFT_TEST_TIER=most: no such tier: expected check, test or all.\n"


@pytest.mark.parametrize(("tier", "count"), [("check", 0), ("test", 2), ("all", 3)])
def test_tiers_select_by_mark(tier: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Item:
        path = ROOT / "tests/unknown.py"

        def __init__(self, *marks: str) -> None:
            self.get_closest_marker = lambda name: name in marks

    monkeypatch.setattr(tiers, "TIER", tier)
    assert len(tiers.choose([Item(), Item("slow"), Item("nightly")])) == count


def test_failures_show_the_test_and_the_reproducer(tmp_path: Path) -> None:
    """Not the source of helpers."""
    (tmp_path / "test_it.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "pyproject.toml"]
    env = os.environ | {"WEFT_TEST_DEVICE": "cpu", "WEFT_TEST_TIER": "test"}
    command += ["--rootdir=.", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert "test_it.py:7: in test_that_fails\n" in done.stdout
    assert "2 of 2 elements are wrong, first at [0]: got -1.0, want 1\n" in done.stdout
    assert "repro: python -m pytest " in done.stdout
    assert "checks.py" not in done.stdout
