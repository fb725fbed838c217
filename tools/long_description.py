"""The page for a package index: README with links and images that work outside the repository.

pyproject.toml names this file as the provider of its dynamic field `readme`. The repository's address is
defined once, in `Source` of [project.urls]. If it is missing, links cannot be resolved, because a package
index shows no files of the package: links are replaced by their text, and images by their alternative text.
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
    """The entry point for scikit-build-core. `settings` has `page` and `picture`, the URLs of a file to read
    and of one to show, with {source} for the repository and {path} for the file."""
    source = project.get("urls", {}).get("Source", "").rstrip("/").removesuffix(".git")
    text = Path("README.md").read_text(encoding="utf-8")
    text = linked(text, source, settings) if source else unlinked(text)
    return {"readme": {"content-type": "text/markdown", "text": text}}


def linked(text: str, source: str, settings: Mapping[str, str]) -> str:
    """README with absolute URLs. A link to a heading of README points to its page in the repository, because
    headings have no anchors in a package index."""

    def absolute(kind: str, target: str) -> str:
        path = f"README.md{target}" if target.startswith("#") else target
        return target if ADDRESS.match(target) else settings[kind].format(source=source, path=path)

    def replace(found: re.Match[str]) -> str:
        kind, target = ("picture", found["picture"]) if found["picture"] else ("page", found["link"])
        return found[0].replace(f"]({target})", f"]({absolute(kind, target)})")

    return _replaced(text, replace)


def unlinked(text: str) -> str:
    """README without links into the repository, and with text in place of its images."""

    def replace(found: re.Match[str]) -> str:
        is_absolute = ADDRESS.match(found["picture"] or found["link"])
        return found[0] if is_absolute else found["words"] or f"*{found['instead']}.*"

    return _replaced(text, replace)


def _replaced(text: str, replace: Callable[[re.Match[str]], str]) -> str:
    """The text with each link and image replaced; code is unchanged."""
    return PARTS.sub(lambda found: found[0] if found["code"] else replace(found), text)
