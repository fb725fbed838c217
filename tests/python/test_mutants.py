# SPDX-License-Identifier: Apache-2.0
"""tools/mutants.py: every source has tests in its table, and too few noticed changes fail."""

from __future__ import annotations

import importlib.util
import random
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load_tool() -> Any:
    """tools/mutants.py as a module."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools/mutants.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = loaded
    spec.loader.exec_module(loaded)
    return loaded


tool = load_tool()


def test_every_source_has_tests() -> None:
    """Sources of the library, its headers, the kernels and the interfaces. The tests of the table exist, and
    each row of it is used."""
    paths = list(tool.files_under(tool.EVERYWHERE))
    suffixes = {Path(path).suffix for path in paths}
    assert suffixes == {".c", ".h", ".hpp", ".cuh", ".py"}
    for path in paths:
        tests = " ".join(tool.tests_of(path)).split()
        assert tests
        assert [test for test in tests if test.startswith("tests/") and not (ROOT / test).exists()] == []
    unused = [prefix for prefix, _ in tool.TESTS if not any(path.startswith(prefix) for path in paths)]
    assert unused == ["tests/emulator/"]


@pytest.mark.parametrize(
    ("killed", "survived", "is_enough"),
    [(17, 3, True), (16, 4, False), (0, 0, True)],
)
def test_share_of_all(killed: int, survived: int, is_enough: bool) -> None:
    """At least 85 % of all; what is no change counts neither way."""
    seen = [(f"backend/f{i}/x/y.c", "killed") for i in range(killed)]
    seen += [(f"backend/g{i}/x/y.c", "survived") for i in range(survived)]
    assert tool.report([*seen, ("backend/a.c", "does not compile")]) == is_enough


@pytest.mark.parametrize(("survived", "is_enough"), [(1, True), (2, False)])
def test_share_of_a_folder(survived: int, is_enough: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of four changes must have three noticed, however many others are."""
    seen = [("include/weft/weft.h", "killed")] * 40
    seen += [("python/weft/jax/operators/products.py", "killed")] * (4 - survived)
    seen += [("python/weft/jax/plans.py", "survived")] * survived
    assert tool.report(seen) == is_enough
    assert f"| python/weft/jax | 4 | {4 - survived} |" in capsys.readouterr().out


def test_a_kernel_that_does_not_compile_is_no_change(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("attention/decode.cuh(343): error: expected an expression")
    assert tool.refuses_kernel(log)
    log.write_text("AssertionError: k.cuh:343: off by 3. error: none")
    assert not tool.refuses_kernel(log)


@pytest.mark.parametrize(
    ("before", "after", "is_change"),
    [
        ("f(x) # of x", "f(x) # of y", False),
        ("raise E('x is odd')", "raise E('')", False),
        ("def f(x: int) -> int: return x", "def f(x: str) -> str: return x", False),
        ("def f(x): return x", "def f(x): return -x", True),
        ("def f(x): return x", "def f(x): continue", False),
    ],
)
def test_changes_of_python(before: str, after: str, is_change: bool) -> None:
    """Comments, messages and types of arguments do not count, and neither does what Python cannot compile."""
    text = tool.without_words(after, ".py")
    assert (text != "" and text != tool.without_words(before, ".py")) == is_change


@pytest.mark.parametrize(
    ("after", "is_change"),
    [
        ("#pragma unroll 4\nfor (i = 0; i < n; i++) { prefetch(p, 0); a[i] = 1; }", False),
        ("/* all */ for (i = 0; i < n; i++) { prefetch(p, 1); a[i] = 1; }", False),
        ("#pragma unroll\nfor (i=0 ; i < n; i++)\n{ prefetch(p, 0); a[i] = 1; }", False),
        ("for (i = 0; i <= n; i++) { prefetch(p, 0); a[i] = 1; }", True),
    ],
)
def test_changes_of_c(after: str, is_change: bool) -> None:
    """Comments, spaces and hints for compilers do not count."""
    before = "#pragma unroll\nfor (i = 0; i < n; i++) { prefetch(p, 0); a[i] = 1; }"
    texts = [
        tool.without_words(each.replace("prefetch", "__builtin_prefetch"), ".c") for each in (before, after)
    ]
    assert (texts[0] != texts[1]) == is_change


def test_seeds_draw_places_over_the_whole_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed draws the same changes, another one others, in many folders."""

    def change(path: str, lines: list[int]) -> list[Any]:
        return [tool.Mutant(path, Path(str(line))) for line in lines]

    monkeypatch.setattr(tool, "mutants_of", change)
    monkeypatch.setattr(tool.Mutant, "line", lambda self: int(str(self.made)))
    paths = list(tool.files_under(tool.EVERYWHERE))
    first, same, other = (list(islice(tool.draw(paths, random.Random(seed)), 40)) for seed in (1, 1, 2))
    assert first == same
    assert first != other
    assert len({tool.folder_of(mutant.path) for mutant in first}) > 6
