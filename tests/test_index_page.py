"""The README page on a package index, with addresses that work there."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from commands import ROOT, run

PAGE_FILES = ("README.md", "LICENSE", "pyproject.toml", "tools/long_description.py", "include/weft/weft.h")
ADDRESS = "https://git.example/someone/weft"


def page_of_index(folder: Path, text: str, address: str) -> str:
    """Renders the page that a package index shows for a tree with this README; address: the project's, or
    empty."""
    for name in PAGE_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "README.md").write_text(text)
    urls = f'[project.urls]\nSource = "{address}"\n\n' if address else ""
    settings = (ROOT / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(settings.replace("[project.scripts]", f"{urls}[project.scripts]"))
    program = "from scikit_build_core import build; build.prepare_metadata_for_build_wheel('made')"
    run(sys.executable, "-c", program, cwd=folder)
    (metadata,) = folder.glob("made/*/METADATA")
    assert ("Project-URL" in metadata.read_text()) == bool(address)
    return metadata.read_text().partition("\n\n")[2].strip("\n")


def targets(page: str) -> list[str]:
    """Where links and pictures of a page in Markdown lead, HTML among it included."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    kinds = r"\]\(\s*<?([^)\s>]+)", r"^\[[^\]]+\]: *(\S+)", r"(?:src|href)=[\"']?([^\"'\s>]+)"
    found = re.findall("|".join(kinds), prose, re.MULTILINE)
    return ["".join(each) for each in found]


def test_links_and_pictures_of_the_index_are_absolute(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    page = page_of_index(tmp_path, text, ADDRESS + "/")
    assert len(targets(page)) == len(targets(text)) > 15
    for target in targets(page):
        place, _, path = target.removeprefix(f"{ADDRESS}/").partition("/HEAD/")
        assert place == ("raw" if target.endswith(".svg") else "blob"), target
        assert (ROOT / path.partition("#")[0]).is_file(), target
    assert re.sub(rf"{ADDRESS}/(blob|raw)/HEAD/", "", page) == text.strip("\n")


def test_what_the_index_shows_without_an_address(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    page = page_of_index(tmp_path, text, "")
    assert targets(page) == []
    assert "*The graph of the program above: conv_fprop, bias and relu in one frame.*" in page
    assert "\n[docs/figures.md](docs/figures.md) has all" not in page
    assert page.count("\n") == text.strip("\n").count("\n")


PARTS = """
See [here](#there), [Weft](https://weft.example) and ![A b](a/b.png).
```c
f = table[i](x);
```
`[a](b.md)` is how [it is `written`](b.md#c).
"""


def test_parts_of_a_page_for_the_index(tmp_path: Path) -> None:
    assert page_of_index(tmp_path / "with", PARTS, "https://x.example/weft.git") == (
        """
See [here](https://x.example/weft/blob/HEAD/README.md#there), [Weft](https://weft.example) and """
        """![A b](https://x.example/weft/raw/HEAD/a/b.png).
```c
f = table[i](x);
```
`[a](b.md)` is how [it is `written`](https://x.example/weft/blob/HEAD/b.md#c)."""
    ).strip("\n")
    assert page_of_index(tmp_path / "without", PARTS, "").startswith(
        "See here, [Weft](https://weft.example) and *A b.*."
    )
