"""Builds with other compilers and options: old GCCs and Clangs, -flto, the static library."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from commands import ROOT, run

BACKEND = ROOT / "backend"
CC = os.environ.get("CC", "cc")
FLAGS = ["-std=gnu11", "-fno-math-errno", "-fno-trapping-math"]
FLAGS += ["-Wall", "-Wextra", "-Werror", "-Wno-pass-failed"]
EMBEDDED = ROOT / "build/release/device_files"  # device files without comments, and their list
FLAGS += [f"-I{BACKEND}", f"-I{ROOT}/include", f"-I{EMBEDDED}", f"-Wa,-I{EMBEDDED}"]

# Compilers that build the library, and a system whose own one it is. docs/compilers.md states the same.
COMPILERS = {
    "gcc-8": "RHEL 8",
    "gcc-9": "Ubuntu 20.04",
    "gcc-10": "Debian 11",
    "gcc-11": "Ubuntu 22.04, RHEL 9",
    "gcc-12": "Debian 12",
    "gcc-13": "Ubuntu 24.04",
    "gcc-14": "Debian 13",
    "clang-13": "Debian 12",
    "clang-14": "Ubuntu 22.04, Debian 12",
    "clang-15": "Debian 12",
    "clang-16": "Debian 12",
    "clang-17": "Debian 13",
    "clang-18": "Ubuntu 24.04",
    "clang-19": "Debian 13",
}

SOURCES = sorted(BACKEND.rglob("*.c"))
# Sources that use vector extensions or optional instructions. Old compilers may fail to generate their code.
VECTORS = re.compile(r"target\(|cpu_supports|immintrin|SHUFFLE|CONVERT|HAS_AMX|HAS_AVX")
VECTOR_SOURCES = [path for path in SOURCES if VECTORS.search(path.read_text())]


def flags_of(compiler: str) -> list[str]:
    """As in CMakeLists.txt: Clang before 18 compiles no clones of functions."""
    name, version = compiler.split("-")
    return ["-Dtarget_clones(...)="] if name == "clang" and int(version) < 18 else []


def test_table_of_compilers_is_documented() -> None:
    rows = re.findall(r"^\| `(\w+-\d+)` \| (.+?) \|", (ROOT / "docs/compilers.md").read_text(), re.MULTILINE)
    assert dict(rows) == COMPILERS


OLDEST = {"clang-13"}  # GCC 12 builds everything else on Debian 12; make test-all runs the others
NIGHTLY = [pytest.param(name, marks=() if name in OLDEST else pytest.mark.nightly) for name in COMPILERS]


@pytest.mark.parametrize("compiler", NIGHTLY)
def test_compiler_builds_the_sources(tmp_path: Path, compiler: str) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    flags = [*FLAGS, *flags_of(compiler)]
    run(compiler, *flags, "-fsyntax-only", *SOURCES)
    run(compiler, *flags, "-O1", "-c", *VECTOR_SOURCES, cwd=tmp_path)


def test_vectors_need_no_new_builtin(tmp_path: Path) -> None:
    """The replacement of __builtin_convertvector for GCC 8 computes the same."""
    program = tmp_path / "vectors.c"
    program.write_text(
        """
        #include "base/vectors.h"
        typedef int8_t bytes __attribute__((vector_size(4)));
        typedef int16_t shorts __attribute__((vector_size(8)));
        typedef int32_t ints __attribute__((vector_size(16)));
        int main(void) {
            bytes v = {1, -2, 127, -128};
            ints wide = CONVERT(CONVERT(v, shorts), ints), mixed = SHUFFLE(wide, -wide, 0, 4, 3, 7);
            const int expected[2][4] = {{1, -2, 127, -128}, {1, -1, -128, 128}};
            for (int i = 0; i < 4; i++)
                if (wide[i] != expected[0][i] || mixed[i] != expected[1][i])
                    return 1;
            return 0;
        }
        """
    )
    for old in ([], ["-U__clang__", "-U__GNUC__", "-D__GNUC__=8"]):
        if old and "clang" in run(CC, "--version"):
            continue
        run(CC, "-std=gnu11", f"-I{BACKEND}", *old, program, "-o", tmp_path / "vectors")
        run(tmp_path / "vectors")


def test_kernel_files_survive_link_time_optimization(tmp_path: Path) -> None:
    """CMake compiles the file that embeds them without -flto; the program around it is linked with -flto."""
    (tmp_path / "main.c").write_text(
        '#include "engines/cuda/core/kernel.h"\n#include <stdio.h>\n'
        "int main(void) { int count; const struct program_header *files = device_files(&count);\n"
        'return printf("%d %.15s\\n", count, files[0].text) < 0; }\n'
    )
    build = tmp_path / "build"
    run("cmake", "-G", "Ninja", "-S", ".", "-B", build, f"-DCMAKE_C_COMPILER={CC}", "-DCMAKE_C_FLAGS=-flto")
    embedding = "CMakeFiles/weft_objects.dir/backend/engines/cuda/core/sources.c.o"
    run("ninja", "-C", build, embedding)
    include = [f"-I{BACKEND}", f"-I{ROOT}/include"]
    run(CC, "-flto", "-O1", *include, "main.c", build / embedding, "-o", "program", cwd=tmp_path)
    count, *text = run(tmp_path / "program").split(maxsplit=1)
    assert int(count) > 100
    assert text


COLLIDING = """
#include <stdio.h>
#include <weft/weft.h>
int arena_alloc(void) { return 7; }
int dtype_to_f64(void) { return 8; }
int main(void) { return printf("%d %d %d\\n", arena_alloc(), dtype_to_f64(), (int)weftGetVersion()) < 0; }
"""


@pytest.fixture(scope="module")
def static_library() -> Path:
    """Built in a copy of build/release, whose objects are compiled by the same commands."""
    build = ROOT / "build/static"
    shutil.rmtree(build, ignore_errors=True)
    shutil.copytree(ROOT / "build/release", build)
    cache = build / "CMakeCache.txt"
    cache.write_text(cache.read_text().replace(str(ROOT / "build/release"), str(build)))
    options = ["-DBUILD_SHARED_LIBS=OFF", "-DWEFT_PYTHON_LIB_DIR="]
    run("cmake", "-G", "Ninja", "-S", ".", "-B", build, *options)
    run("ninja", "-C", build, "libweft.a")
    return build / "libweft.a"


def test_static_library_exports_what_the_shared_one_does(static_library: Path) -> None:
    def names(*command: object) -> set[str]:
        symbols = re.findall(r"^\w+ ([A-Z]) ([^@\n]+)", run("nm", "--defined-only", *command), re.MULTILINE)
        return {name for kind, name in symbols if kind != "A"}

    assert names("-g", static_library) == names("-D", ROOT / "python/weft/lib/libweft.so.1")


def test_static_library_leaves_names_to_the_program(static_library: Path, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(COLLIDING)
    needed = ["-lpthread", "-lm", "-ldl"]
    run(CC, f"-I{ROOT}/include", "main.c", static_library, *needed, "-o", "program", cwd=tmp_path)
    assert run(tmp_path / "program").startswith("7 8 ")
