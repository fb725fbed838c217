"""Measures the share of comments, docstrings and sentences with constructions that technical English avoids.

    python tools/prose.py              prints the share and limit of each class, and counts constructions
    python tools/prose.py --check      fails if a share exceeds its limit, and lists the lines of that class
    python tools/prose.py --list PATH  lists the lines of the files whose paths begin with PATH

A block is a C comment, a line of a Python comment, a docstring, or a sentence of a document. Blocks of three
words or fewer do not count. The same measure gives 0.0 to 1.5 % for DeepGEMM, FlashAttention, ThunderKittens,
oneDNN, BLIS, tinygrad and zstd. Pronouns that refer to a person count, too; the limits allow for that.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# Upper bounds on the share of each class, in percent. They may only be lowered.
LIMITS = {"C": 1.0, "Python": 1.0, "docs": 1.0, "tests": 1.0}
# The directories and suffixes of each class; "" is the root without its subdirectories. Generated bindings
# are excluded.
FILES = {
    "C": (["backend", "include", "compat", "samples"], {".c", ".h", ".cuh", ".hpp", ".cpp"}),
    "Python": (["python/weft", "compat", "benchmarks", "tools", "examples", "samples"], {".py"}),
    "docs": (["", ".github", "docs", "backend", "compat", "examples", "samples", "tests"], {".md"}),
    "tests": (["tests"], {".c", ".h", ".py"}),
}
# Each construction, described as "current wording, for the intended meaning", and the expression that finds
# it. A space in an expression also matches a line break.
CONSTRUCTIONS = {
    "alone for only": r"\b(?!stand|leave|left|let)\w+ alone\b(?! (?:would|can|could))",
    "a fragment that begins with Of": r"(?:^[\s*-]*|[.;:] )Of [a-z]",
    "who or nobody for things": r"\b(who|whoever|nobody|somebody|whom|anybody|everybody)\b",
    "so many for N": r"\bso (many|much)\b(?! (?:more|as|that))",
    "told for reported": r"\b(told|tells)\b",
    "lies for is stored": r"\b(lies|lie)\b",
    "dear for expensive": r"\b(dear|dearer|dearest)\b",
    "behind for after": r"\bbehind\b",
    "beside for next to": r"\bbeside\b",
    "anew for again": r"\b(anew|afresh)\b",
    "but for, for except": r"\b(but for|nothing but|but by)\b",
    "neighbours for adjacent": r"\bneighbours?\b",
    "apart for separately": r"\bapart\b",
    "there is none for no X exists": r"\bthere (is|are) (none|nobody|nothing|any)\b",
    "quicker for faster": r"\b(quicker|sooner)\b",
    "a fragment that begins with What": r"(?:^[\s*-]*|[.;:] )What (?!is |does |happens|changed|to )[a-z]",
    "as for such as": r", as (of|a|an|the|in|those|x\[)\b",
}
PATTERNS = {name: re.compile(text.replace(" ", r"\s+"), re.MULTILINE) for name, text in CONSTRUCTIONS.items()}
C_COMMENT = re.compile(r"/\*(.*?)\*/|//([^\n]*)", re.DOTALL)
PYTHON_TEXT = re.compile(r'"""(.*?)"""|#\s?([^\n]*)', re.DOTALL)
CODE_FENCE = re.compile(r"```.*?```", re.DOTALL)
DOCTEST = re.compile(r"^\s*(?:>>>|\.\.\.) .*", re.MULTILINE)


class Block(NamedTuple):
    """A piece of prose and its first line."""

    line: int
    text: str


class Finding(NamedTuple):
    """A construction in a file; the path is relative to the root."""

    path: str
    line: int
    construction: str
    quote: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.construction}: {self.quote}"


def comments(text: str, pattern: re.Pattern[str]) -> Iterator[Block]:
    """The texts of a pattern's groups. Stars at the beginning of the lines of a comment are blanked."""
    for match in pattern.finditer(text):
        group = 1 if match[1] is not None else 2
        body = DOCTEST.sub("", re.sub(r"^\s*\*", " ", match[group], flags=re.MULTILINE))
        if "SPDX" not in body:
            yield Block(text.count("\n", 0, match.start(group)) + 1, body)


def sentences(text: str) -> Iterator[Block]:
    """The sentences of a document; code in fences is blanked."""
    text = CODE_FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    start = 0
    for end in (*(match.end() for match in re.finditer(r"[.:](?=\s)\s*", text)), len(text)):
        yield Block(text.count("\n", 0, start) + 1, text[start:end])
        start = end


def blocks(path: Path) -> Iterator[Block]:
    """The prose of a file, except blocks of three words or fewer."""
    text = path.read_text()
    if path.suffix == ".md":
        results = sentences(text)
    else:
        results = comments(text, PYTHON_TEXT if path.suffix == ".py" else C_COMMENT)
    return (block for block in results if len(re.findall(r"[A-Za-z']+", block.text)) > 3)


def findings(path: Path, block: Block) -> Iterator[Finding]:
    """Each construction in a block, reported once."""
    for name, pattern in PATTERNS.items():
        if match := pattern.search(block.text):
            line = block.line + block.text.count("\n", 0, match.start(match.lastindex or 0))
            quote = " ".join(block.text[max(match.start() - 40, 0) : match.end() + 40].split())
            yield Finding(path.relative_to(ROOT).as_posix(), line, name, quote)


class Share(NamedTuple):
    """The number of blocks of a class, the number of those with findings, and the findings."""

    blocks: int
    odd: int
    findings: list[Finding]

    @property
    def percent(self) -> float:
        """The percentage of blocks with findings."""
        return 100 * self.odd / max(self.blocks, 1)


def files(kind: str) -> list[Path]:
    """The files of a class, in order."""
    folders, suffixes = FILES[kind]
    paths = [path for folder in folders for path in (ROOT / folder).glob("**/*" if folder else "*")]
    return sorted(path for path in paths if path.suffix in suffixes)


def measure(kind: str) -> Share:
    """The share of a class."""
    paths = files(kind)
    results = [list(findings(path, block)) for path in paths for block in blocks(path)]
    return Share(len(results), sum(map(bool, results)), [finding for block in results for finding in block])


def main() -> int:
    """Prints shares or findings; returns 1 if --check finds a share above its limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="list the classes above their limits, and fail")
    parser.add_argument(
        "--list", metavar="PATH", help="list the findings in files whose paths begin with PATH"
    )
    args = parser.parse_args()
    shares = {kind: measure(kind) for kind in FILES}
    everything = [finding for share in shares.values() for finding in share.findings]
    if args.list is not None:
        print(*(finding for finding in everything if finding.path.startswith(args.list)), sep="\n")
        return 0
    above = {kind: share for kind, share in shares.items() if share.percent > LIMITS[kind]}
    if args.check:
        for kind, share in above.items():
            print(*share.findings, sep="\n")
            print(f"{kind}: {share.percent:.2f} % of {share.blocks} blocks, the limit is {LIMITS[kind]} %.")
        return 1 if above else 0
    for kind, share in shares.items():
        print(f"{kind:<8}{share.percent:>7.2f} % of {share.blocks:>5} blocks; the limit is {LIMITS[kind]} %")
    for name, count in Counter(finding.construction for finding in everything).most_common():
        print(f"{count:>7}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
