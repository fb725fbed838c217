"""Reports the size of the project: lines and tokens per directory, the longest files and functions, the
library.

Blank lines and comments are not counted. Tokens per line are listed to reveal crammed code, and comments as a
share of all lines except blank ones.

    python tools/sizes.py            prints the report
    python tools/sizes.py --check    fails if a line is too wide or functions are too long, and lists them
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = (
    *("include", "backend", "compat", "bindings", "python", "benchmarks", "tests", "samples"),
    "tools",
)
C_LIKE = {".c", ".h", ".cuh", ".hpp", ".cpp"}
# Maximum line widths: for Python as in ruff's settings in pyproject.toml, for all others as in .clang-format.
PYTHON_WIDTH, WIDTH = 110, 120
# Upper bounds on the 90th percentile and on the maximum of the lengths of functions, in lines including
# comments and blanks. The median has no bound, because that would reward two-line helpers.
LENGTHS = {0.9: 25, 1.0: 225}
BUILD_FILES = {"Makefile", "CMakeLists.txt", "pyproject.toml", "run"}
TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\w+|[^\s\w]')
C_COMMENT = re.compile(r'("(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])+\')|/\*.*?\*/|//[^\n]*', re.DOTALL)
# A definition starts at the left margin, is not a declaration, and ends with a brace at the left margin.
C_FUNCTION = re.compile(r"^(?!#|typedef)\w[^;{}=#]*?(\w+)\([^;{}]*\)\s*\{$.*?^\}", re.DOTALL | re.MULTILINE)


def code_lines(path: Path) -> list[str]:
    """The lines of a file that contain code."""
    text = path.read_text()
    if path.suffix in C_LIKE:
        text = C_COMMENT.sub(lambda match: match[1] or "", text)
    else:
        text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    return [line for line in text.splitlines() if line.strip()]


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """Each function of a file with its length in lines, comments and blanks included."""
    text = path.read_text()
    if path.suffix in C_LIKE:
        for match in C_FUNCTION.finditer(text):
            yield match[0].count("\n") + 1, match[1]
    else:
        for node in statements(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield (node.end_lineno or node.lineno) - node.lineno + 1, node.name


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements in a node. Expressions, of which there are many more, contain none."""
    for block in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, block, ()):
            yield child
            yield from statements(child)


def wide_lines() -> Iterator[str]:
    """One sentence for each line that is wider than its language allows."""
    folders = [ROOT / name for name in (*FOLDERS, "cmake", ".ci")]
    paths = [*ROOT.glob("*"), *(path for folder in folders for path in folder.rglob("*"))]
    for path in sorted(paths):
        if path.suffix in C_LIKE | {".py", ".in", ".map"} or path.name in BUILD_FILES:
            width = PYTHON_WIDTH if path.suffix == ".py" else WIDTH
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if len(line) > width:
                    yield f"{path.relative_to(ROOT)}:{number}: {len(line)} columns, at most {width} fit."


def long_functions() -> Iterator[str]:
    """A sentence for each bound that the lengths of the functions exceed."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    code = [path for path in paths if path.suffix in C_LIKE | {".py"}]
    lengths = sorted(length for path in code for length, _ in functions(path))
    for share, most in LENGTHS.items():
        length = lengths[min(int(len(lengths) * share), len(lengths) - 1)] if lengths else 0
        if length > most:
            yield f"functions: {share:.0%} have at most {length} lines, the limit is {most}."


def main() -> None:
    """Prints the report."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    files = [path.relative_to(ROOT) for path in paths if path.suffix in C_LIKE | {".py"}]
    folders: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    longest_files, longest_functions = [], []
    for name in files:
        lines = code_lines(ROOT / name)
        tokens = sum(len(TOKEN.findall(line)) for line in lines)
        comments = sum(1 for line in (ROOT / name).read_text().splitlines() if line.strip()) - len(lines)
        for folder in {"total", "/".join(name.parts[:-1][:3]) or "."}:
            counts = (1, len(lines), tokens, comments)
            folders[folder] = [a + b for a, b in zip(folders[folder], counts, strict=True)]
        longest_files.append((len(lines), str(name)))
        longest_functions += [(length, f"{function}  {name}") for length, function in functions(ROOT / name)]

    print(f"{'folder':<36}{'files':>6}{'lines':>8}{'tokens/line':>13}{'comments':>10}")
    for folder, (count, lines_, tokens, comments) in sorted(
        folders.items(), key=lambda item: (item[0] == "total", item)
    ):
        share = comments / max(lines_ + comments, 1)
        print(f"{folder:<36}{count:>6}{lines_:>8}{tokens / max(lines_, 1):>13.1f}{share:>10.1%}")
    for title, rows in ("longest files", longest_files), ("longest functions", longest_functions):
        print(f"\n{title}")
        for length, name in sorted(rows, reverse=True)[:10]:
            print(f"{length:>6}  {name}")
    library = ROOT / "python/weft/lib/libweft.so.1"
    if library.exists():
        print(f"\nlibrary  {library.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        found = [*wide_lines(), *long_functions()]
        print("\n".join(found), end="\n" if found else "")
        sys.exit(bool(found))
    main()
