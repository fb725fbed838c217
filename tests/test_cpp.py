"""weft.hpp: with the strictest compiler warnings, in two translation units that are linked, and its
results."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import ROOT, run

CXX = os.environ.get("CXX", "c++")
LIBRARY = ROOT / "python/weft/lib/libweft.so.1"
STRICT = ["-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{ROOT}/include"]

pytestmark = pytest.mark.skipif(not shutil.which(CXX), reason="no C++ compiler")


CLANG = pytest.param("clang++", marks=pytest.mark.skipif(not shutil.which("clang++"), reason="no clang"))


@pytest.mark.parametrize("compiler", [CXX, CLANG])
def test_two_units(tmp_path: Path, compiler: str) -> None:
    """Two C++ standards: definitions that both contain are the same."""
    for unit, standard in (("other_unit", "c++17"), ("test_hpp", "c++20")):
        run(compiler, f"-std={standard}", *STRICT, "-c", ROOT / f"tests/cpp/{unit}.cpp", cwd=tmp_path)
    linked = [LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}"]
    run(compiler, "other_unit.o", "test_hpp.o", "-o", "test", *linked, cwd=tmp_path)
    assert run(tmp_path / "test", WEFT_DEVICE="cpu") == "0 failures\n"


@pytest.mark.parametrize("compiler", [CXX, CLANG])
def test_programs_for_cudnn_compile_unchanged(tmp_path: Path, compiler: str) -> None:
    """With the headers of cuDNN's names, and with those names in a second unit."""
    other = "#include <cudnn_frontend.h>\n#include <cudnn_frontend_version.h>\n"
    (tmp_path / "other.cpp").write_text(other)
    flags = ["-std=c++17", *STRICT, f"-I{ROOT}/include/weft/cudnn"]
    linked = [LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}"]
    units = [ROOT / "tests/cpp/test_ported.cpp", "other.cpp"]
    run(compiler, *flags, *units, "-o", "test", *linked, cwd=tmp_path)
    assert run(tmp_path / "test", WEFT_DEVICE="cpu") == "0 failures\n"


@pytest.mark.parametrize("compiler", [CXX, CLANG])
def test_newest_standard(tmp_path: Path, compiler: str) -> None:
    """C++23, which older compilers call C++2b."""
    (tmp_path / "empty.cpp").touch()
    asked = [compiler, "-std=c++23", "-fsyntax-only", tmp_path / "empty.cpp"]
    knows = subprocess.run(asked, stderr=subprocess.DEVNULL).returncode == 0
    standard = "c++23" if knows else "c++2b"
    run(compiler, f"-std={standard}", *STRICT, "-fsyntax-only", ROOT / "tests/cpp/test_hpp.cpp")


@pytest.mark.parametrize("part", ["composed", "json", "operations", "score_modifiers"])
def test_part_is_not_for_itself(tmp_path: Path, part: str) -> None:
    (tmp_path / "part.cpp").write_text(f'#include "weft/weft_{part}.hpp"\n')
    with pytest.raises(AssertionError, match=r"This is a part of weft\.hpp\. Include <weft/weft\.hpp>\."):
        run(CXX, "-std=c++17", *STRICT, "-fsyntax-only", tmp_path / "part.cpp")


def test_older_standards_are_refused(tmp_path: Path) -> None:
    (tmp_path / "old.cpp").write_text("#include <weft/weft.hpp>\n")
    with pytest.raises(AssertionError, match=r"weft\.hpp is C\+\+17: compile with -std=c\+\+17 or newer\."):
        run(CXX, "-std=c++14", *STRICT, "-Wfatal-errors", "-fsyntax-only", tmp_path / "old.cpp")


def test_graph_hides_no_operation() -> None:
    """A method of Graph hides one of its base that has the name, whatever their arguments."""
    headers = ROOT / "include/weft"
    operations = (headers / "weft_operations.hpp").read_text().split("class Operations : public ")[1]
    named = set(re.findall(r"^    (?:Tensor|std::array<Tensor, \d>) (\w+)\(", operations, re.MULTILINE))
    graph = (headers / "weft.hpp").read_text().split("class Graph : public detail::Operations {")[1]
    own = set(re.findall(r"\b(\w+)\(", graph.split("\n};\n")[0]))
    assert len(named) > 80
    assert {"slice", "resample", "build", "refusal"} <= own
    assert not named & own
