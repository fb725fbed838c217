"""tools/same_code.py: names may change, instructions may not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, run

sys.path.append(str(ROOT / "tools"))
import same_code

C_FILE = """
int g(int);
static int {twice}(int x) {{ return g(x) {sign} 7; }} /* a comment */
__attribute__((noinline)) static int {more}(int x) {{ return {twice}(x) * 5; }}
int {f}(int x) {{ return {more}(x + 1); }}
"""
KERNEL = """
#include "a.cuh" // where scale is
extern "C" __global__ void {name}(float *{x}) {{ {x}[threadIdx.x] = scale({x}[threadIdx.x]); }}
"""
HEADER = "__device__ float scale(float x) {{ return x * {factor}; /* {comment} */ }}"


def compiled(folder: Path, **words: str) -> dict[str, str]:
    """The functions of a build with one object."""
    words = {"twice": "twice", "more": "more", "f": "f", "sign": "+"} | words
    objects = folder / "CMakeFiles/weft_objects.dir/backend"
    objects.mkdir(parents=True)
    (objects / "of_another_tree.c.o").write_text("not read")
    output = "CMakeFiles/weft_objects.dir/backend/a.c.o"
    (folder / "compile_commands.json").write_text(json.dumps([{"output": output}]))
    (folder / "a.c").write_text(C_FILE.format(**words))
    run("cc", "-O1", "-ffunction-sections", "-c", folder / "a.c", "-o", objects / "a.c.o")
    return same_code.functions(folder)


def test_functions_are_compared_by_their_instructions(tmp_path: Path) -> None:
    before = compiled(tmp_path / "before")
    assert sorted(before) == ["backend/a.c: f", "backend/a.c: more"]
    renamed = compiled(tmp_path / "renamed", twice="doubled", more="triple", f="entry")
    assert list(same_code.compare_functions(before, renamed)) == []
    changed = compiled(tmp_path / "changed", sign="-")
    assert list(same_code.compare_functions(before, changed)) == ["backend/a.c: more: other instructions"]
    both = compiled(tmp_path / "both", sign="-", more="triple")
    assert list(same_code.compare_functions(before, both)) == [
        "backend/a.c: more: no such instructions after the change",
        "backend/a.c: triple: no such instructions before the change",
    ]


def planned(cases: dict[str, list[dict[str, Any]] | None], **header: str) -> dict[str, Any]:
    """Returns the plans of a tree for one chip."""
    text = HEADER.format(**({"factor": "3", "comment": "a factor"} | header))
    return {"headers": {"a.cuh": text}, "cases": {"sm_80": cases}}


def kernel(name: str = "f", x: str = "x", blocks: int = 1) -> dict[str, Any]:
    text = KERNEL.format(name=name, x=x)
    return {"text": text, "headers": ["a.cuh"], "entry": name, "launch": [blocks, 1, 1, 32, 0, 0]}


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return list(same_code.compare_kernels(before, after, "sm_80"))


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_code, "FOLDER", tmp_path)
    same_code.compiled.cache_clear()


def test_kernels_are_compared_by_text_then_by_code(tmp_path: Path) -> None:
    before = planned({"a case": [kernel()]})
    assert compare(before, planned({"a case": [kernel()]}, comment="another // factor")) == []
    assert list((tmp_path / "sass").iterdir()) == []  # nothing was compiled
    assert compare(before, planned({"its new name": [kernel("g", x="y")]})) == []
    assert len(list((tmp_path / "sass").iterdir())) == 2
    assert compare(before, planned({"a case": [kernel("g")]}, factor="5")) == [
        "sm_80: a case: g: other instructions"
    ]


def test_launches_and_counts_are_compared() -> None:
    before = planned({"a": [kernel()], "b": [kernel()], "c": None, "d": None})
    after = planned({"a": [kernel(blocks=2)], "b": [kernel(), kernel()], "c": None, "d": [kernel()], "e": []})
    assert compare(before, after) == [
        "sm_80: a: f: launch [1, 1, 1, 32, 0, 0], then [2, 1, 1, 32, 0, 0]",
        "sm_80: b: 1 kernels, then 2",
        "sm_80: d: no kernels, then 1",
        "sm_80: e: no kernels, then 0",
    ]


def test_a_kernel_that_does_not_compile_is_shown() -> None:
    broken = kernel()
    broken["text"] += "error;"
    with pytest.raises(SystemExit, match=r"f: NVRTC refuses it: test.cu\(4\): error"):
        compare(planned({"a": [kernel()]}), planned({"a": [broken]}))
