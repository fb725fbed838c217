"""The page that a package index shows: README, with links and pictures that work away from the repository.

pyproject.toml names this as the provider of its dynamic field `readme`. The address of the repository has one
home, `Source` of [project.urls]. Where that is missing nothing can be linked to, for a package index shows no
file that lies in the package: links become their words, and pictures what is said in their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PICTURE = r"!\[(?P<instead>[^\]]*)\]\((?P<picture>[^)\s]+)\)"
LINK = r"\[(?P<words>[^\]]+)\]\((?P<link>[^)\s]+)\)"
CODE = r"^```.*?^```|`[^`\n]+`"
PARTS = re.compile(rf"(?P<code>{CODE})|{PICTURE}|{LINK}", re.DOTALL | re.MULTILINE)
ADDRESS = re.compile(r"[a-z]+:")


def dynamic_metadata(settings: Mapping[str, str], project: Mapping[str, Any]) -> dict[str, Any]:
    """What scikit-build-core asks for. settings: `page` and `picture`, the addresses of a file to read and of
    one to show, in which {source} is the repository's and {path} the file's."""
    source = project.get("urls", {}).get("Source", "").rstrip("/").removesuffix(".git")
    text = Path("README.md").read_text(encoding="utf-8")
    text = linked(text, source, settings) if source else unlinked(text)
    return {"readme": {"content-type": "text/markdown", "text": text}}


def linked(text: str, source: str, settings: Mapping[str, str]) -> str:
    """README with absolute addresses. A headline of README itself is one of its page in the repository: those
    of a package index have no names."""

    def absolute(kind: str, target: str) -> str:
        path = f"README.md{target}" if target.startswith("#") else target
        return target if ADDRESS.match(target) else settings[kind].format(source=source, path=path)

    def replace(found: re.Match[str]) -> str:
        kind, target = ("picture", found["picture"]) if found["picture"] else ("page", found["link"])
        return found[0].replace(f"]({target})", f"]({absolute(kind, target)})")

    return _replaced(text, replace)


def unlinked(text: str) -> str:
    """README without links into the repository, and with words for its pictures."""

    def replace(found: re.Match[str]) -> str:
        is_absolute = ADDRESS.match(found["picture"] or found["link"])
        return found[0] if is_absolute else found["words"] or f"*{found['instead']}.*"

    return _replaced(text, replace)


def _replaced(text: str, replace: Callable[[re.Match[str]], str]) -> str:
    """The text with each link and picture replaced; code stays as it is."""
    return PARTS.sub(lambda found: found[0] if found["code"] else replace(found), text)
