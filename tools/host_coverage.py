#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reports the lines and branches of the C library that the tests execute. `make coverage` builds, runs and
reports.

    make coverage                                     # the C tests, tests/ops, tests/plan, tests/python
    make coverage PYTEST=tests/ops/test_norm.py       # some Python tests; counts add up until `make clean`
    python tools/host_coverage.py                     # a row for each directory of the C sources
    python tools/host_coverage.py --missing plan      # and the lines of backend/plan that no test executed
    python tools/host_coverage.py --least 95          # fails if fewer of all lines were executed

The counts are gcov's: build/coverage contains an instrumented library, and each process adds to the counts
when it ends.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/coverage"
TABLE = ROOT / "docs/testing.md"
FOLDERS = ROOT / "backend", ROOT / "compat/torch", ROOT / "compat/xla"
HEAD = "| folder | lines | reached | branches | taken |"


@dataclass
class Source:
    """How often each line ran, and how often each branch of a line was taken."""

    lines: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    branches: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))

    def add(self, line: dict[str, Any]) -> None:
        """Adds gcov's record of a line; a line of a header has several."""
        number = line["line_number"]
        self.lines[number] += line["count"]
        for i, branch in enumerate(line["branches"]):
            self.branches[number, i] += branch["count"]


def read(counts: Path) -> list[dict[str, Any]]:
    """gcov's data about the files of an object."""
    words = ["gcov", "--json-format", "--stdout", "--branch-probabilities", str(counts)]
    done = subprocess.run(words, cwd=BUILD, capture_output=True, text=True, check=True)
    return [file for text in done.stdout.splitlines() for file in json.loads(text)["files"]]


def sources() -> dict[str, Source]:
    """All sources of the library by path. The lines of an object that never ran count, too."""
    objects = sorted(BUILD.glob("CMakeFiles/weft*_objects.dir/**/*.gcno"))
    counts = [path.with_suffix(".gcda") for path in objects]
    files = [count if count.exists() else path for path, count in zip(objects, counts, strict=True)]
    found: dict[str, Source] = defaultdict(Source)
    with ThreadPoolExecutor() as pool:
        for file in (file for each in pool.map(read, files) for file in each):
            path = (ROOT / file["file"]).resolve()
            if any(path.is_relative_to(folder) for folder in FOLDERS):
                for line in file["lines"]:
                    found[str(path.relative_to(ROOT))].add(line)
    return found


def row(name: str, files: Iterable[Source]) -> tuple[str, float]:
    """A row of the table, and the percentage of executed lines."""
    lines = [count > 0 for source in files for count in source.lines.values()]
    branches = [count > 0 for source in files for count in source.branches.values()]
    shares = [100 * sum(each) / len(each) if each else 100 for each in (lines, branches)]
    text = f"| {name} | {len(lines)} | {shares[0]:.1f} % | {len(branches)} | {shares[1]:.1f} % |"
    return text, shares[0]


def table(found: dict[str, Source]) -> tuple[str, float]:
    """A row for each directory, and the percentage of executed lines."""
    folders: dict[str, list[Source]] = defaultdict(list)
    for path, source in sorted(found.items()):
        folders[str(Path(path).parent)].append(source)
    last, reached = row("all", list(found.values()))
    rows = [HEAD, "|---|---|---|---|---|", *(row(name, files)[0] for name, files in sorted(folders.items()))]
    return "\n".join([*rows, last]), reached


def print_missing(found: dict[str, Source], name: str) -> None:
    """Prints the lines that did not run in files whose path contains a name."""
    for path, source in sorted(found.items()):
        text = (ROOT / path).read_text().splitlines() if name in path else []
        for line, count in sorted(source.lines.items()):
            if text and not count:
                print(f"{path}:{line}: {text[line - 1].strip()}")


def main() -> int:
    """Prints the report; returns 1 if the coverage is below the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--missing", nargs="?", const="", help="print lines that did not run (of these paths)"
    )
    parser.add_argument("--least", type=float, default=0, help="required percentage of executed lines")
    parser.add_argument("--write", action="store_true", help="write the table into docs/testing.md")
    args = parser.parse_args()
    if not BUILD.exists():
        sys.exit("build/coverage does not exist. Run make coverage.")
    results = sources()
    text, reached = table(results)
    print(text)
    if args.missing is not None:
        print_missing(results, args.missing)
    if args.write:
        page = TABLE.read_text()
        start = page.index(HEAD)
        TABLE.write_text(page[:start] + text + page[page.index("\n\n", start) :])
    return 1 if reached < args.least else 0


if __name__ == "__main__":
    sys.exit(main())
