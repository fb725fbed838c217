"""Proves that a change, such as a rename or a rewritten comment, leaves the machine code unchanged.

    python tools/same_code.py                     the working tree against HEAD
    python tools/same_code.py main my-branch      two commits; a directory stands for its files
    python tools/same_code.py --only '^attention' only the kernels of the cases whose names match

Two parts are compared. Kernels: each tree plans its own tests/small_cases.py for sm_75, sm_80 and sm_90. Two
kernels are equal if their launches are equal and their sources differ only in comments and line breaks, or
otherwise if NVRTC generates the same SASS, registers and shared memory from them. Host: the library is built
without debug information, and each function of one tree must occur in the other one with the same
instructions. Names of kernels, functions and files do not count, nor does the order of functions. Cases are
paired by name; renamed ones are paired by position. Exits with 1 if something differs.

Not compared: the symbol to which an instruction refers, and data such as tables and messages. A changed
message may show as a changed function, because compilers store short strings in instructions.

No GPU is needed. Results are cached in build/same_code by the content of a tree: a new tree costs the
compilation of the files that changed, a minute for planning, and NVRTC for the kernels whose sources differ.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))
import cubins  # noqa: E402
import emulated_gpu  # noqa: E402

FOLDER = ROOT / "build/same_code"
ARCHS = ("sm_75", "sm_80", "sm_90")
TARGETS = {"sm_90": "sm_90a"}  # the target with the instructions that only Hopper has
OPTIONS = ["-std=c++17"]  # the options of backend/engines/cuda/core/compile.c
COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|/\*.*?\*/|//[^\n]*', re.DOTALL)
Program = dict[str, Any]
"""A kernel: its source with line breaks, the names of the headers that it includes, and its launch."""


def git(*words: str, **environment: str) -> str:
    """The output of git."""
    done = subprocess.run(
        ["git", *words], cwd=ROOT, env=os.environ | environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def identify(name: str) -> str:
    """The id of a commit's tree, or of a directory's files, which are added to git's object store."""
    if not Path(name).is_dir():
        return git("rev-parse", "--verify", f"{name}^{{tree}}")
    index = {"GIT_INDEX_FILE": str(FOLDER / "folder.index"), "GIT_WORK_TREE": str(Path(name).resolve())}
    git("add", "--all", ":/", **index)
    return git("write-tree", **index)


def check_out(tree: str) -> Path:
    """Checks a tree out into a directory. All trees share it, so that only files that differ are compiled."""
    folder = FOLDER / "tree"
    folder.mkdir(exist_ok=True)
    index = {"GIT_INDEX_FILE": str(FOLDER / "tree.index"), "GIT_WORK_TREE": str(folder)}
    git("read-tree", "--reset", "-u", tree, **index)
    return folder


# ---- Host ----


def build(source: Path) -> Path:
    """Builds the release library and returns the directory. Each function has its own section, so that calls
    do not depend on distances."""
    folder = FOLDER / "release"
    flags = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_FLAGS=-ffunction-sections"]
    flags += ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    cmake = Path(sys.executable).parent / "cmake"
    quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([cmake, "-G", "Ninja", "-S", source, "-B", folder, *flags], **quiet)
    subprocess.run([cmake, "--build", folder, "--target", "weft"], **quiet)
    return folder


def functions(folder: Path) -> dict[str, str]:
    """A digest of each function's instructions, by object and section. The directory may contain objects of
    other trees; only those of the library in the compile commands count."""
    results = {}
    objects = folder / "CMakeFiles/weft_objects.dir"
    commands = json.loads((folder / "compile_commands.json").read_text())
    paths = {folder / command["output"] for command in commands}
    for path in sorted(path for path in paths if path.is_relative_to(objects)):
        source = path.relative_to(objects).with_suffix("").as_posix()
        for section in cubins.all_sections(path.read_bytes()):
            if section.name.startswith(".text") and section.content:
                results[f"{source}: {section.name.removeprefix('.text.')}"] = digest(section.content)
    return results


def digest(content: bytes) -> str:
    """A short name for equal content."""
    return hashlib.sha256(content).hexdigest()[:32]


def compare_functions(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    """A line for each function without an equal one."""
    lost, gained = Counter(before.values()), Counter(after.values())
    lost, gained = lost - gained, gained - lost
    gone = {name for name, code in before.items() if code in lost}
    new = {name for name, code in after.items() if code in gained}
    yield from (f"{name}: other instructions" for name in sorted(gone & new))
    yield from (f"{name}: no such instructions after the change" for name in sorted(gone - new))
    yield from (f"{name}: no such instructions before the change" for name in sorted(new - gone))


# ---- Kernels ----


def collect(only: str) -> None:
    """Prints, as JSON, the kernels of the small cases of the tree in the current directory, for each chip."""
    sys.path.insert(0, "tests")
    import small_cases  # type: ignore[import-not-found]

    headers: dict[str, str] = {}

    def kernels(case: Any, arch: str) -> list[Program] | None:
        try:
            results = small_cases.build(case, case.engine, device=arch).g.plan.kernels()
        except Exception:  # no engine for it on this chip
            return None
        for kernel in results:
            headers.update(kernel.headers)
        return [
            {"text": kernel.text, "headers": sorted(kernel.headers), "entry": kernel.entry}
            | {"launch": [*kernel.grid, kernel.block, kernel.cluster, kernel.shared_bytes]}
            for kernel in results
        ]

    cases = {name: case for name, case in small_cases.CASES.items() if re.search(only, name)}
    with ThreadPoolExecutor() as pool:
        plans = {arch: list(pool.map(kernels, cases.values(), [arch] * len(cases))) for arch in ARCHS}
    shown = {arch: dict(zip(cases, plans[arch], strict=True)) for arch in ARCHS}
    json.dump({"headers": headers, "cases": shown}, sys.stdout)


@functools.cache
def compiled(source: str, *flags: str) -> Path:
    """Compiles a C file of tests/fake_cuda into a program or library."""
    outputs = FOLDER / source
    file = ROOT / "tests/fake_cuda" / f"{source}.c"
    command = [*emulated_gpu.compiler(), "-O1", *flags, file, "-o", outputs, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return outputs


def plan(source: Path, library: Path, only: str) -> dict[str, Any]:
    """The output of collect for a tree. A compiler that does nothing takes the place of NVRTC."""
    environment = {
        "WEFT_LIBRARY": str(library),
        "WEFT_NVRTC": str(compiled("fake_nvrtc", "-shared", "-fPIC")),
        "WEFT_CACHE": "off",
        "WEFT_DEVICE": "cpu",
    }
    command = [sys.executable, Path(__file__), "--collect", "--only", only]
    done = subprocess.run(
        command, cwd=source, env=os.environ | environment, check=True, stdout=subprocess.PIPE
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def essence(text: str) -> str:
    """A source without comments, and with one space between directives and tokens."""
    code = COMMENT.sub(lambda match: match[1] or " ", text)
    return "\n".join(" ".join(line.split()) for line in code.splitlines() if line.strip())


class Compiler:
    """NVRTC in separate processes, and the results of programs that were compiled before."""

    def __init__(self) -> None:
        self.library = str(emulated_gpu.find_nvrtc())
        self.command = [compiled("plain_nvrtc"), self.library]
        self.folder = FOLDER / "sass"
        self.folder.mkdir(exist_ok=True)

    def sass(self, program: Program, headers: dict[str, str], arch: str) -> str:
        """A digest of its machine code."""
        own = {name: headers[name] for name in program["headers"]}
        target = f"--gpu-architecture={TARGETS.get(arch, arch)}"
        strings = [program["text"], *own, *own.values(), *OPTIONS, target]
        parts = [part for text in strings for part in (struct.pack("<Q", len(text.encode())), text.encode())]
        request = struct.pack("<QQ", len(own), len(OPTIONS) + 1) + b"".join(parts)
        selected = self.folder / digest(request + self.library.encode())
        if not selected.exists():
            selected.write_text(self.compile(request, program["entry"]))
        return selected.read_text()

    def compile(self, request: bytes, entry: str) -> str:
        """A digest of the code that NVRTC generates for a request in the format of plain_nvrtc.c."""
        answer = subprocess.run(self.command, input=request, check=True, capture_output=True).stdout
        result, log = struct.unpack_from("<qQ", answer)
        if result:
            sys.exit(f"{entry}: NVRTC refuses it: {answer[16 : 16 + log].decode()}")
        code = answer[16 + log + 8 :]
        parts = [
            section.content + struct.pack("<QQ", section.info >> 24, section.size)  # registers, shared memory
            for section in cubins.all_sections(code)
            if section.name.startswith((".text.", ".nv.constant", ".nv.shared"))
        ]
        return digest(b"".join(sorted(parts)))


def pairs(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The cases of both trees, paired by name; unmatched ones by position if both trees have equally many."""
    yield from ((name, before[name], after[name]) for name in before if name in after)
    gone, new = [name for name in before if name not in after], [name for name in after if name not in before]
    if len(gone) == len(new):
        renamed = zip(gone, new, strict=True)
        yield from ((name, before[old_name], after[name]) for old_name, name in renamed)
    else:
        yield from ((name, before[name], None) for name in gone)
        yield from ((name, None, after[name]) for name in new)


def compare_kernels(before: dict[str, Any], after: dict[str, Any], arch: str) -> Iterator[str]:
    """A line for each case whose kernels differ."""
    compiler = Compiler()
    essences = [{name: essence(text) for name, text in tree["headers"].items()} for tree in (before, after)]

    def is_same_text(old: Program, new: Program) -> bool:
        old_headers, new_headers = (
            [texts[name] for name in program["headers"]]
            for texts, program in zip(essences, (old, new), strict=True)
        )
        return old_headers == new_headers and essence(old["text"]) == essence(new["text"])

    def difference(old: Program, new: Program) -> str:
        if old["launch"] != new["launch"]:
            return f"{new['entry']}: launch {old['launch']}, then {new['launch']}"
        if is_same_text(old, new):
            return ""
        codes = [compiler.sass(old, before["headers"], arch), compiler.sass(new, after["headers"], arch)]
        return "" if codes[0] == codes[1] else f"{new['entry']}: other instructions"

    def differences(case: tuple[str, Any, Any]) -> list[str]:
        name, old, new = case
        if old is None or new is None or len(old) != len(new):
            counts = [len(kernels) if kernels is not None else "no" for kernels in (old, new)]
            return [] if old is new else [f"{arch}: {name}: {counts[0]} kernels, then {counts[1]}"]
        return [f"{arch}: {name}: {text}" for text in map(difference, old, new) if text]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(differences, pairs(before["cases"][arch], after["cases"][arch])):
            yield from found


# ---- Both ----


def examine(name: str, only: str) -> dict[str, Any]:
    """The functions and kernels of a tree, cached by content."""
    tree = identify(name)
    # results of another version of this program do not count
    key = f"{tree} {only} ".encode() + Path(__file__).read_bytes()
    selected = FOLDER / f"{digest(key)}.json"
    if not selected.exists():
        print(f"{name}: building and planning tree {tree[:12]}", file=sys.stderr)
        source = check_out(tree)
        folder = build(source)
        results = {"functions": functions(folder), "kernels": plan(source, folder / "libweft.so", only)}
        selected.with_suffix(".new").write_text(json.dumps(results))
        selected.with_suffix(".new").replace(selected)
    examined: dict[str, Any] = json.loads(selected.read_text())
    return examined


def main() -> int:
    """Prints the differences; returns 1 if it finds one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", nargs="?", default="HEAD", help="a commit or a directory; by default HEAD")
    parser.add_argument("after", nargs="?", default=str(ROOT), help="the same; by default the working tree")
    parser.add_argument("--only", default="", help="small cases whose names match this regular expression")
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.collect:
        collect(args.only)
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    before, after = examine(args.before, args.only), examine(args.after, args.only)
    lines = list(compare_functions(before["functions"], after["functions"]))
    print(*lines, f"host: {len(after['functions'])} functions, {len(lines)} differences", sep="\n")
    is_same = not lines
    for arch in ARCHS:
        lines = list(compare_kernels(before["kernels"], after["kernels"], arch))
        cases = [kernels for kernels in after["kernels"]["cases"][arch].values() if kernels is not None]
        count = sum(map(len, cases))
        print(*lines, f"{arch}: {count} kernels of {len(cases)} cases, {len(lines)} differences", sep="\n")
        is_same = is_same and not lines
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
