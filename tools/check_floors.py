"""Checks the layers of the backend and the directories of the engine layer: a file includes only its own
layer and lower ones, its own directory and the directories permitted for it, and neither includes nor calls
between files form a cycle.

    5 api  >  4 plan  >  3 engines  >  2 graph | runtime  >  1 base

The two parts of layer 2 never include each other, and only a file of engines/ may include both. The rules
also apply to device files (.cuh) and to the includes that C files emit. A family may be named only in the
file that defines it and in the list of engines: families do not call each other. Integrations with frameworks
(compat/torch/ and compat/xla/) include only weft/weft.h and their own directory. Prints each violation; exits
with 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import NamedTuple

FLOORS = {"base": 1, "graph": 2, "runtime": 2, "engines": 3, "plan": 4, "api": 5}
PILLARS = {"graph", "runtime"}
INTEGRATIONS = {"torch", "xla"}  # directories of compat/
# Each directory of engines/, and the others from which it may include files: first the parts that families
# share, then the families. Files directly in engines/ are available to all.
FOLDERS = {
    "cpu": "",
    "cpu/core": "",
    "cpu/attention": "cpu cpu/core cpu/product",
    "cpu/element": "cpu cpu/core",
    "cpu/causal": "cpu cpu/core",
    "cpu/ctc": "cpu cpu/core",
    "cpu/grid": "cpu cpu/core",
    "cpu/map": "cpu cpu/core",
    "cpu/move": "cpu cpu/core",
    "cpu/product": "cpu cpu/core",
    "cpu/recurrent": "cpu cpu/core cpu/product",
    "cpu/rows": "cpu cpu/core",
    "cpu/pooling": "cpu cpu/core",
    "cpu/scan": "cpu cpu/core",
    "cpu/rope": "cpu cpu/core",
    "cpu/gather": "cpu cpu/core",
    "cuda": "",
    "cuda/core": "",
    "cuda/attention": "cuda cuda/core",
    "cuda/attention/hopper": "cuda cuda/core cuda/attention",
    "cuda/causal": "cuda cuda/core",
    "cuda/ctc": "cuda cuda/core",
    "cuda/grid": "cuda cuda/core",
    "cuda/map": "cuda cuda/core",
    "cuda/product": "cuda cuda/core",
    "cuda/product/batched": "cuda cuda/core cuda/product",
    "cuda/product/depthwise": "cuda cuda/core cuda/product",
    "cuda/product/hopper": "cuda cuda/core cuda/product",
    "cuda/product/grouped": "cuda cuda/core cuda/product cuda/product/hopper",
    "cuda/product/stem": "cuda cuda/core cuda/product cuda/product/hopper",
    "cuda/product/weight_only": "cuda cuda/core cuda/product cuda/product/hopper",
    # Copies factors with the kernels of map/ before Hopper's GEMM reads them.
    "cuda/product/repack": "cuda cuda/core cuda/product cuda/product/hopper cuda/map",
    "cuda/recurrent": "cuda cuda/core",
    "cuda/rows": "cuda cuda/core",
    "cuda/pooling": "cuda cuda/core",
    "cuda/scan": "cuda cuda/core",
    "cuda/rope": "cuda cuda/core",
    "cuda/gather": "cuda cuda/core",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
# In the text of a C file: "#include \"core/reduce.cuh\"\n", or just the path of a kernel's file.
PRINTED = re.compile(r'(?:#include \\"|")((?:\w+/)+\w+\.cuh)\\?"')
LISTS = {"engines/engines.c"}  # it names all families
DEFINED = re.compile(r"^const struct family (\w+) =", re.MULTILINE)
NAMED = re.compile(r"(?<!struct )\b(?:cuda|cpu)_\w+\b")
# Comments, texts and directives.
NOT_CODE = re.compile(
    r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|^\s*#(?:[^\n]*\\\n)*[^\n]*', re.DOTALL | re.MULTILINE
)
# Functions and constant objects start at the left margin. Only a header's may be static and used elsewhere.
DEFINITION = re.compile(
    r"^(.*\bstatic )?(?!typedef|extern)\w[^;{}=()]*?\b(\w+)(?:\([^;{}]*\)\s*\{|(?:\[[^\]]*\])* =)",
    re.MULTILINE,
)
DECLARATION = re.compile(r"^\w[^;{}=()]*?\b(\w+)(?:\([^;{}]*\)|(?:\[[^\]]*\])*);", re.MULTILINE)
USED = re.compile(r"(?<![\w.])(?<!->)(?<!struct )[a-z]\w*\b")


class Source(NamedTuple):
    """A file of the backend and the files that it includes; paths are relative to the backend."""

    path: str
    text: str
    includes: list[str]

    @property
    def home(self) -> str:
        """The directory of its layer."""
        return self.path.split("/")[0]


def included(path: str, text: str, backend: Path) -> list[str]:
    """The files that a file includes or emits includes of; device files use paths relative to
    engines/cuda/."""
    results: list[str] = INCLUDE.findall(text)
    if path.endswith(".c") and path not in LISTS:
        results += [f"engines/cuda/{name}" for name in PRINTED.findall(text)]
    if path.endswith(".cuh"):
        results = [name if (backend / name).exists() else f"engines/cuda/{name}" for name in results]
    return results


def sources(backend: Path) -> list[Source]:
    """All files, in order."""
    paths = [path.relative_to(backend).as_posix() for path in sorted(backend.rglob("*.*"))]
    texts = {path: (backend / path).read_text() for path in paths if path.endswith((".c", ".h", ".cuh"))}
    return [Source(path, text, included(path, text, backend)) for path, text in texts.items()]


# ---- Layers ----


def floor_offences(source: Source) -> Iterator[str]:
    """Includes that violate the order of the layers."""
    path, home = source.path, source.home
    if home not in FLOORS:
        yield f"{path}: {home} is no floor. Put the file under one of {', '.join(FLOORS)}."
        return
    seen = {home}
    for include in source.includes:
        target = include.split("/")[0]
        if target == "weft":
            continue
        if target not in FLOORS or "/" not in include:
            yield f'{path}: includes "{include}". Write the path from backend/, as "{home}/{include}".'
        elif target != home and FLOORS[target] >= FLOORS[home]:
            yield f'{path} (floor {FLOORS[home]}, {home}) includes "{include}" (floor {FLOORS[target]}).'
        seen.add(target)
    if seen >= PILLARS and home not in {"engines", *PILLARS}:
        yield f"{path}: sees both graph/ and runtime/, as only engines/ may. Take one through engines/."


# ---- Directories of the engines -----


def folder_of(path: str) -> str:
    """The folder of a file, "cuda/map" for engines/cuda/map/map.c; empty for files directly in engines/."""
    return "/".join(PurePosixPath(path).parts[1:-1])


def folder_offences(source: Source) -> Iterator[str]:
    """Includes that violate the order of the directories."""
    path, own = source.path, folder_of(source.path)
    if source.home != "engines" or path in LISTS:
        return
    if own and own not in FOLDERS:
        yield f"{path}: {own} is no folder of the engine floor. Write in FOLDERS what it may include."
        return
    may = {own, "", *FOLDERS.get(own, "").split()}
    for include in source.includes:
        if include.startswith("engines/") and folder_of(include) not in may:
            others = ", ".join(sorted(may - {"", own})) or "no other folder"
            yield f'{path} includes "{include}": {own or "engines"}/ may see {others}.'
        if path.endswith(".h") and include.endswith("/families.h"):
            yield f'{path} includes "{include}". Do so where a family is defined: headers know no front.'


def call_offences(files: list[Source]) -> Iterator[str]:
    """Families that other files name."""
    homes = {name: source.path for source in files for name in DEFINED.findall(source.text)}
    for source in files:
        named = {name for name in NAMED.findall(source.text) if homes.get(name, source.path) != source.path}
        if source.path.endswith(".c") and source.path not in LISTS:
            for name in sorted(named):
                yield f"{source.path} names family {name} of {homes[name]}: families do not call each other."


# ---- Integrations ----


def integration_offences(source: Source) -> Iterator[str]:
    """Includes of anything but the public header and the integration's own files."""
    for include in source.includes:
        if include != "weft/weft.h" and include.split("/")[0] != source.home:
            yield (
                f'compat/{source.path} includes "{include}": an integration may include weft/weft.h '
                f"and {source.home}/, and uses only public functions."
            )


# ---- Cycles -----


def cycles(uses: dict[str, list[str]]) -> Iterator[list[str]]:
    """The cycles that a depth-first search of the files and what each of them uses meets."""
    done: set[str] = set()

    def follow(path: str, callers: list[str]) -> Iterator[list[str]]:
        if path in callers:
            yield [*callers[callers.index(path) :], path]
        elif path not in done:
            for used in uses.get(path, []):
                yield from follow(used, [*callers, path])
            done.add(path)

    for path in uses:
        yield from follow(path, [])


def include_cycles(files: list[Source]) -> Iterator[str]:
    """One sentence for each include cycle."""
    for cycle in cycles({source.path: source.includes for source in files}):
        yield f"a cycle of includes: {' > '.join(cycle)}."


def visible(path: str, includes: dict[str, list[str]], seen: set[str]) -> set[str]:
    """Adds a file and all files that it includes, directly or not, to a set."""
    if path not in seen:
        seen.add(path)
        for include in includes.get(path, []):
            visible(include, includes, seen)
    return seen


def calls_between(files: list[Source]) -> dict[str, dict[str, str]]:
    """For each C file and header, the others whose functions or objects it uses, and one of these. A word
    stands for that of another file if a declaration is visible. Inline functions of a header may use the C
    file of the same name."""
    codes = {
        source.path: NOT_CODE.sub("", source.text) for source in files if not source.path.endswith(".cuh")
    }
    includes = {source.path: source.includes for source in files}
    defined = {path: DEFINITION.findall(code) for path, code in codes.items()}
    headers = {path for path in codes if path.endswith(".h")}
    homes = {name: path for path in codes for static, name in defined[path] if path in headers or not static}
    declared = {
        path: {*DECLARATION.findall(codes[path]), *(name for _, name in defined[path])} for path in headers
    }
    calls: dict[str, dict[str, str]] = {path: {} for path in codes}
    for path, code in codes.items():
        known = set().union(*(declared[file] for file in visible(path, includes, set()) & headers))
        words = set(USED.findall(DECLARATION.sub("", code))) - {name for _, name in defined[path]}
        for name in sorted(known & words):
            home = homes.get(name, path)
            if PurePosixPath(home).with_suffix("") != PurePosixPath(path).with_suffix(""):
                calls[path].setdefault(home, name)
    return calls


def call_cycles(files: list[Source]) -> Iterator[str]:
    """One sentence for each cycle of files that use functions or objects of each other."""
    calls = calls_between(files)
    for cycle in cycles({path: list(homes) for path, homes in calls.items()}):
        steps = (f"{b} ({calls[a][b]})" for a, b in pairwise(cycle))
        yield f"a cycle of calls: {' > '.join([cycle[0], *steps])}."


def offences(root: Path) -> Iterator[str]:
    """One sentence for each violation."""
    files = sources(root / "backend")
    for source in files:
        yield from floor_offences(source)
        yield from folder_offences(source)
    yield from call_offences(files)
    integrations = [each for each in sources(root / "compat") if each.home in INTEGRATIONS]
    for source in integrations:
        yield from integration_offences(source)
    for each in (files, integrations):
        yield from include_cycles(each)
        yield from call_cycles(each)


if __name__ == "__main__":
    found = list(offences(Path(__file__).parents[1]))
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))
