"""docs/jax.md: its programs run as printed; every operator is named; examples learn."""

from __future__ import annotations

import doctest
import importlib.util
import re
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")
import weft.jax as weft_jax  # noqa: E402

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/jax.md").read_text(encoding="utf-8")


def test_the_page_runs(capsys) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert len(programs) == 2
    names: dict = {}
    for program in programs:
        exec(program, names)
    said = capsys.readouterr().out
    assert said.startswith("(8, 16) weft.linear(float64[4,8], float64[8,16], float64[1,16])\ngraph 'linear'")
    assert "weft.rms_norm(float64[4,16])" in said
    assert names["gated"](names["x"], names["w"], names["w"]).shape == (4, 16)


def test_the_page_names_every_operator() -> None:
    named = set(re.findall(r"`(?:weft\.jax\.)?(\w+)[`(]", PAGE))
    assert set(weft_jax.__all__) <= named


def test_examples_of_functions() -> None:
    """Run as printed, with 32-bit floats."""
    jax.config.update("jax_enable_x64", False)
    folder = Path(weft_jax.__file__).parent
    found = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py")]
    results = [
        doctest.testmod(importlib.import_module(".".join(["weft.jax", *path.parts])))
        for path in found
        if path.name != "__init__"
    ]
    assert sum(each.failed for each in results) == 0
    assert sum(each.attempted for each in results) > 20


def test_the_example_learns() -> None:
    spec = importlib.util.spec_from_file_location("jax_block", ROOT / "examples/jax_block.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    losses = example.main(12)
    assert 4.5 < losses[0] < 5.5
    assert losses[-1] < losses[0] - 0.5
