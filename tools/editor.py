"""Lets an editor with clangd open the device files (.cuh), which are parts of generated programs.

    make build && python tools/editor.py

For each device file, this plans a case of tests/small_cases.py that includes it. The text before the include
is written to a header, which build/editor/compile_commands.json makes clang read first, so that constants,
types and functions are those of the example. .clangd names that file. No CUDA toolkit is needed, because
tools/editor.h declares CUDA's functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import same_code

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "backend/engines/cuda"
FOLDER = ROOT / "build/editor"
FLAGS = ["-xcuda", "-std=c++17", "--cuda-device-only", "-nocudainc", "-nocudalib"]
FLAGS += ["-Wno-unknown-cuda-version"]
INCLUDE = re.compile(r'^#include "(.+)"$')


def before(file: str, text: str, headers: dict[str, str]) -> Iterator[str]:
    """The lines that a compiler reads before it includes a file. Headers that do not include the file remain
    #include lines."""
    for line in text.splitlines():
        match = INCLUDE.match(line)
        if match and match[1] == file:
            return
        if match and reaches(match[1], file, headers):
            yield from before(file, headers[match[1]], headers)
            return
        yield line


def without_open_namespace(lines: list[str]) -> list[str]:
    """The lines with `using` in place of a namespace that is closed after the file, so that braces match."""
    opened = [i for i, line in enumerate(lines) if line == "namespace weft {"]
    closed = sum(line.startswith("} // namespace weft") for line in lines)
    if len(opened) > closed:
        lines[opened[-1]] = ""
    return ["namespace weft {}", "using namespace weft;", *lines]


def reaches(name: str, file: str, headers: dict[str, str]) -> bool:
    """True if a header includes a file, directly or indirectly."""
    included = [match[1] for match in map(INCLUDE.match, headers.get(name, "").splitlines()) if match]
    return file in included or any(reaches(each, file, headers) for each in included)


def command(file: str, arch: str, program: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    """The entry of a device file in the compile commands; writes the header with the preceding text."""
    preamble = FOLDER / Path(file).with_suffix(".before.h")
    preamble.parent.mkdir(parents=True, exist_ok=True)
    lines = without_open_namespace(list(before(file, program["text"], headers)))
    preamble.write_text("\n".join(lines) + "\n")
    first = ["-include", "__clang_cuda_builtin_vars.h", "-include", str(ROOT / "tools/editor.h")]
    folders = [f"-I{SOURCES}", f"-I{ROOT}/backend"]
    words = ["clang++", *FLAGS, f"--cuda-gpu-arch={arch}", *folders, *first, "-include", str(preamble)]
    return {"directory": str(ROOT), "file": str(SOURCES / file), "arguments": [*words, str(SOURCES / file)]}


def main() -> None:
    """Writes the compile commands; prints the files that no case includes."""
    same_code.FOLDER.mkdir(parents=True, exist_ok=True)
    planned = same_code.plan(ROOT, ROOT / "python/weft/lib/libweft.so.1", "")
    entries: dict[str, dict[str, Any]] = {}
    for arch in reversed(same_code.ARCHS):
        for programs in planned["cases"][arch].values():
            for program in programs or []:
                for file in set(program["headers"]) - set(entries):
                    if (SOURCES / file).exists():
                        entries[file] = command(file, arch, program, planned["headers"])
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "compile_commands.json").write_text(json.dumps(list(entries.values()), indent=1))
    missing = {path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.cuh")} - set(entries)
    print(f"{len(entries)} device files; no case for: {', '.join(sorted(missing)) or 'none'}")


if __name__ == "__main__":
    main()
