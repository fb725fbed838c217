"""docs/cudnn.md: the script runs as printed, counts and names are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from weft.cudnn.differences import DIFFERENCES, NOT_THERE
from weft.cudnn.table import POINTWISE, STRUCTURED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/cudnn.md").read_text(encoding="utf-8")
FACTS = json.loads(Path(__file__).with_name("frontend_names.json").read_text())


def test_the_script_of_the_page_runs(capsys: Any) -> None:
    program = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)[1]
    exec(program, {})
    assert capsys.readouterr().out.split() == ["[[32.", "48.", "48.]", "[48.", "72.", "72.]]"]


def test_counts_are_those_of_the_facts() -> None:
    scripts = sum(
        len(re.findall(r"^def test_", path.read_text(), flags=re.MULTILINE))
        for path in Path(__file__).parent.glob("catalogue/test_*.py")
    )
    members = sum(map(len, FACTS["enums"].values()))
    for words in (
        f"all {len(FACTS['pygraph'])} methods of the graph, {len(FACTS['tensor'])} of the tensors",
        f"{len(FACTS['enums'])} enumerations with {members} members",
        f"a table lists the {len(DIFFERENCES)} differences and their reasons",
        f"{scripts} scripts in the style of cuDNN's samples",
    ):
        assert words in " ".join(PAGE.split())
    assert f"has {scripts} scripts in the style" in PAGE
    assert f"{len(POINTWISE)} pointwise and {len(STRUCTURED)} other operations" in PAGE


def test_the_page_names_what_differs_and_what_is_not_there() -> None:
    named = PAGE.split("## Differences in names")[1]
    for difference in DIFFERENCES:
        assert f"`{difference.split('.')[1].split(':')[0].split('(')[0]}`" in named
    words = set(re.findall(r"`([\w.*]+)`", named))
    for name in NOT_THERE:
        own = name.removeprefix("pygraph.").removeprefix("cudnn.")
        patterns = [word for word in words if re.fullmatch(word.replace("*", ".*"), own)]
        family = re.sub(r"(_summary)?(_bwd)?$", "", own)
        assert patterns or name in words or family in words, name


def test_modules_of_the_page_exist() -> None:
    for name in re.findall(r"\| `(\w+\.py)`", PAGE):
        assert (ROOT / "python/weft/cudnn" / name).exists()
