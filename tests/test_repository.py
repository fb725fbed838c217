"""The frame holds: floors, headers, exported symbols, sizes, installation, samples, wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import emulated_gpu
import pytest
from commands import ROOT, run

HEADERS = sorted((ROOT / "include/weft").glob("*.h"))
LIBRARY = ROOT / "python/weft/lib/libweft.so.1"
# The integrations and the function that each exports.
INTEGRATIONS = {"libweft_torch.so": "weftTorchFunctions", "libweft_xla.so": "weftXlaExecute"}
LIBRARIES = [LIBRARY.name, *INTEGRATIONS]
MAX_BYTES, MAX_INTEGRATION_BYTES = 5_000_000, 100_000
CC, CXX = os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")

needs_cxx = pytest.mark.skipif(not shutil.which(CXX), reason="no C++ compiler")


@pytest.fixture(scope="session")
def version() -> str:
    text = (ROOT / "include/weft/weft.h").read_text()
    found = [re.search(rf"WEFT_{part} *= *(\d+)", text) for part in ("MAJOR", "MINOR", "PATCHLEVEL")]
    return ".".join(match[1] for match in found if match)


# ---- Sources ----


def test_floors_hold() -> None:
    run(sys.executable, "tools/check_floors.py")


@pytest.mark.parametrize(
    ("file", "text", "offence"),
    [
        ("graph/a.c", '#include "plan/p.h"', 'graph/a.c (floor 2, graph) includes "plan/p.h" (floor 4).'),
        ("graph/a.c", '#include "runtime/cache.h"', 'includes "runtime/cache.h" (floor 2).'),
        ("plan/a.c", '#include "graph/g.h"\n# include "runtime/r.h"', "plan/a.c: sees both"),
        ("base/a.h", '#include "arena.h"', 'base/a.h: includes "arena.h". Write the path from backend/'),
        ("extra/a.h", "", "extra/a.h: extra is no floor."),
        ("engines/a.c", '#include "graph/g.h"\n#include "runtime/r.h"\n#include "weft/weft.h"', ""),
        # The folders of the engine floor.
        ("engines/cuda/map/a.c", '#include "engines/cuda/core/k.h"\n#include "engines/engine.h"', ""),
        ("engines/cuda/core/a.h", '#include "engines/cuda/map/m.h"', "cuda/core/ may see no other folder."),
        ("engines/cuda/core/a.cuh", '#include "rows/rows.cuh"', "cuda/core/ may see no other folder."),
        ("engines/cuda/rows/a.cuh", '#include "core/math.cuh"', ""),
        ("engines/cuda/rows/a.cuh", '#include "map/m.cuh"', 'm.cuh": cuda/rows/ may see cuda, cuda/core.'),
        ("engines/cuda/rows/a.c", 'f("#include \\"map/m.cuh\\"\\n");', 'includes "engines/cuda/map/m.cuh"'),
        (
            "engines/cuda/rows/a.c",
            'finish(&source, "pooling/w.cuh");',
            'includes "engines/cuda/pooling/w.cuh"',
        ),
        ("engines/cuda/product/a.h", '#include "engines/cuda/product/hopper/h.h"', "/product/ may see cuda"),
        ("engines/cuda/product/stem/a.c", '#include "engines/cuda/product/repack/p.h"', "duct/stem/ may see"),
        ("engines/cuda/product/stem/a.c", '#include "engines/cuda/product/hopper/h.h"', ""),
        ("engines/cpu/rows/a.c", '#include "engines/cpu/product/p.h"', "cpu/rows/ may see cpu, cpu/core."),
        ("engines/cpu/core/a.h", '#include "engines/cpu/map/m.h"', "cpu/core/ may see no other folder."),
        ("engines/cpu/map/a.c", '#include "engines/cuda/core/k.h"', "cpu/map/ may see cpu, cpu/core."),
        ("engines/cpu/rows/a.c", '#include "engines/row_space.h"\n#include "engines/cpu/core/c.h"', ""),
        ("engines/engine.h", '#include "engines/cuda/core/kernel.h"', "engines/ may see no other folder."),
        ("engines/cuda/rows/a.h", '#include "engines/cuda/families.h"', "headers know no front."),
        ("engines/cuda/extra/a.h", "", "cuda/extra is no folder of the engine floor."),
        ("plan/a.c", '#include "plan/a.c"', "a cycle of includes: plan/a.c > plan/a.c."),
        ("engines/cuda/map/a.cuh", '#include "map/a.cuh"', "cycle of includes: engines/cuda/map/a.cuh >"),
        ("engines/cuda/map/a.c", "const struct family cuda_one = {};\nf(cuda_one, struct cuda_two);", ""),
    ],
)
def test_floor_checker_sees(tmp_path: Path, file: str, text: str, offence: str) -> None:
    done = check_floors(tmp_path, {file: text})
    assert (done.returncode, offence in done.stdout) == (1 if offence else 0, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("include", "is_allowed"),
    [("weft/weft.h", True), ("torch/key.h", True), ("xla/ffi.h", False), ("base/status.h", False)],
)
def test_integrations_use_only_the_public_header(tmp_path: Path, include: str, is_allowed: bool) -> None:
    done = check_tree(tmp_path, "check_floors.py", {"compat/torch/a.c": f'#include "{include}"\n'})
    assert done.stdout == (
        ""
        if is_allowed
        else f'compat/torch/a.c includes "{include}": an integration may include weft/weft.h and '
        "torch/, and uses only public functions.\n"
    )
    assert done.returncode == (not is_allowed)


def check_tree(
    folder: Path, tool: str, files: dict[str, str], *options: str
) -> subprocess.CompletedProcess[str]:
    """Runs a tool on a tree of these files."""
    program = folder / "tools" / tool
    program.parent.mkdir()
    shutil.copy(ROOT / "tools" / tool, program)
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    return subprocess.run([sys.executable, program, *options], capture_output=True, text=True, check=False)


def check_floors(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs the checker on a backend of these files."""
    return check_tree(folder, "check_floors.py", {f"backend/{file}": text for file, text in files.items()})


def test_floor_checker_sees_cycles_and_families(tmp_path: Path) -> None:
    done = check_floors(
        tmp_path,
        {
            "engines/cuda/core/a.h": '#include "engines/cuda/core/b.h"',
            "engines/cuda/core/b.h": '#include "base/c.h"\n#include "engines/cuda/core/d.h"',
            "engines/cuda/core/d.h": '#include "engines/cuda/core/a.h"',
            "base/c.h": "",
            "engines/cuda/map/map.c": "const struct family cuda_one = {};",
            "engines/cuda/rows/rows.c": "const struct family cuda_two = {};\nTRY(cuda_one.accepts(region));",
            "engines/engines.c": "{&cuda_one, &cuda_two}",
        },
    )
    core = "engines/cuda/core"
    assert done.stdout.splitlines() == [
        "engines/cuda/rows/rows.c names family cuda_one of engines/cuda/map/map.c: families do not call "
        "each other.",
        f"a cycle of includes: {core}/a.h > {core}/b.h > {core}/d.h > {core}/a.h.",
    ]
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("first", "second", "cycle"),
    [
        ("int f(void) {\n    return g(1);\n}", "int g(int x) {\n    return f();\n}", True),
        (
            "int f(void) {\n    return table[0];\n}",
            "const int table[] = {1};\nint g(void) {\n    return f();\n}",
            True,
        ),
        ("int f(void) {\n    return run(g);\n}", "int g(int x) {\n    return x + f();\n}", True),
        ("int f(void) {\n    return 1;\n}", "int g(int x) {\n    return f();\n}", False),
        ("int f(void) {\n    return a->g + b.g; /* g() */\n}", "int g(int x) {\n    return f();\n}", False),
        (
            "static int g(int x) {\n    return x;\n}\nint f(void) {\n    return g(1);\n}",
            "int g(int x) {\n    return f();\n}",
            False,
        ),
    ],
)
def test_floor_checker_sees_calls_that_form_a_cycle(
    tmp_path: Path, first: str, second: str, cycle: bool
) -> None:
    header = "int f(void);\nint g(int x);\nextern const int table[];\n"
    include = '#include "plan/a.h"\n'
    done = check_floors(
        tmp_path, {"plan/a.h": header, "plan/a.c": include + first, "plan/b.c": include + second}
    )
    used = "table" if "table" in first else "g"
    message = f"a cycle of calls: plan/a.c > plan/b.c ({used}) > plan/a.c (f).\n"
    assert done.stdout == (message if cycle else ""), done.stdout + done.stderr


# Functions whose text is more than one instruction: a predicate, a label, a carry, or a register that is to
# live no longer, cannot leave it.
COMPOUNDS = {"elect_one", "try_wait", "wait_in_place", "arrive_at_peer", "arrive_where", "stay_in_order"}
COMPOUNDS |= {"select", "select_where_equal", "add_where_equal", "shift_carry_in"}
# They print the product of a warpgroup, which names each register of a tile; and embed files.
PRINTERS = {"product/hopper/emit.c", "attention/hopper/emit.c", "core/sources.c"}


def compounds(text: str) -> set[str]:
    """The functions of a device file whose text has more than one instruction, declarations of registers
    included."""
    found, name = set(), ""
    function = r"^(?:template <[^>]*> )?DEVICE \w+ (\w+)\("
    inline = r'asm(?: volatile)?\(\s*((?:"[^"]*"\s*)+)'
    for match in re.finditer(f"{function}|{inline}", text, re.MULTILINE):
        name = match[1] or name
        if match[2] and match[2].count(";") > 1:
            found.add(name)
    return found


def test_machine_instructions_lie_in_one_place_one_a_function() -> None:
    folder = ROOT / "backend/engines/cuda"
    texts = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.*")}
    code = {name: re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL) for name, text in texts.items()}
    files = {f"core/ptx_{part}.cuh" for part in ("base", "mma", "sm90")}
    assert {name for name, text in code.items() if re.search(r"\basm\b|__asm__", text)} == files | PRINTERS
    assert set.union(*(compounds(code[name]) for name in files)) == COMPOUNDS
    two = 'DEVICE void f() { asm("a;"); }\nDEVICE void g() {\n  asm volatile("a;"\n "b;" ::); }'
    assert compounds(two) == {"g"}


def test_sizes_report_runs() -> None:
    assert "longest functions" in run(sys.executable, "tools/sizes.py")


def test_lines_and_functions_keep_their_size() -> None:
    run(sys.executable, "tools/sizes.py", "--check")


def test_size_checker_sees(tmp_path: Path) -> None:
    long = ("void f(void) {\n" + "    g();\n" * 30 + "}\n") * 20  # the tool is there, too
    python = f"\n# {'é' * 109}\n# {'é' * 108}"
    longest = "void f(void) {\n" + "    g();\n" * 224 + "}\n"
    files = {"backend/a.cuh": "x" * 121, "tests/a.py": python, "tests/c/a.c": long + longest}
    good = {"Makefile": "y" * 120, "a.md": "z" * 200}
    done = check_tree(tmp_path, "sizes.py", files | good, "--check")
    assert done.stdout.splitlines() == [
        "backend/a.cuh:1: 121 columns, at most 120 fit.",
        "tests/a.py:2: 111 columns, at most 110 fit.",
        "functions: 90% have at most 32 lines, the limit is 25.",
        "functions: 100% have at most 226 lines, the limit is 225.",
    ]
    assert done.returncode == 1


def test_prose_is_within_its_limits() -> None:
    run(sys.executable, "tools/prose.py", "--check")


def test_prose_checker_lists_constructions(tmp_path: Path) -> None:
    files = {
        "backend/a.c": "/* A fine comment about nothing in particular. */\n\n/* It has two lines; the\n"
        " * second one lies\n * behind the first. */\n/* lies behind */\n",
        "python/weft/a.py": '"""A docstring that explains a thing.\n\n>>> lie + behind + apart\n"""\n'
        "# quicker than a lie could be\n",
        "docs/a.md": "Nothing that is odd stands here.\n\n```\nbut for this fence of code\n```\n"
        "Of two sentences\none is odd: what is a fragment is another question.\n",
        "tests/a.py": "# a comment without a construction\nassert 7 // 2 == 3\n",
    }
    listed = check_tree(tmp_path, "prose.py", files, "--list", "").stdout.splitlines()
    assert [line for line in listed if not line.startswith("tools/")] == [
        "backend/a.c:4: lies for is stored: It has two lines; the second one lies behind the first.",
        "backend/a.c:5: behind for after: has two lines; the second one lies behind the first.",
        "python/weft/a.py:5: lies for is stored: quicker than a lie could be",
        "python/weft/a.py:5: quicker for faster: quicker than a lie could be",
        "docs/a.md:6: a fragment that begins with Of: Of two sentences one is odd:",
    ]
    check = [sys.executable, tmp_path / "tools/prose.py", "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert listed == [line for line in done.stdout.splitlines() if "limit" not in line]
    assert "C: 50.00 % of 2 blocks, the limit is " in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
@pytest.mark.parametrize(
    "language", ["c99", *(pytest.param(cpp, marks=needs_cxx) for cpp in ("c++98", "c++17", "c++20"))]
)
def test_header_compiles_without_other_headers(header: Path, language: str) -> None:
    compiler, kind = (CC, "c") if language == "c99" else (CXX, "c++")
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
    run(compiler, f"-std={language}", *strict, "-Iinclude", "-x", kind, header)


# ---- The library ----


def exported(library: Path = LIBRARY) -> set[str]:
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if " A " not in line}


def declared() -> set[str]:
    code = re.sub(r"/\*.*?\*/", "", (ROOT / "include/weft/weft.h").read_text(), flags=re.DOTALL)
    return set(re.findall(r"\b(weft\w+)\(", code))


def needed(library: Path) -> set[str]:
    """The libraries of which a library needs more than libc."""
    names = set(re.findall(r"\(NEEDED\).*\[([^\]]+)\]", run("readelf", "-d", library)))
    libc = {"libc", "libm", "libpthread", "libdl", "ld-linux-x86-64", "ld-linux-aarch64"}
    return {name for name in names if name.split(".so")[0] not in libc}


def test_exports_are_the_header() -> None:
    assert exported() == declared()


def test_library_needs_only_libc() -> None:
    dynamic = run("readelf", "-d", LIBRARY)
    assert not needed(LIBRARY)
    assert re.findall(r"\(SONAME\).*\[(.+)\]", dynamic) == ["libweft.so.1"]
    assert not re.search(r"\((RPATH|RUNPATH|TEXTREL)\)", dynamic)


def test_library_contains_no_framework_names() -> None:
    text, words = LIBRARY.read_bytes(), (b"PyObject", b"PyTuple", b"aoti_torch", b"libtorch", b"XLA")
    assert [word for word in words if word in text] == []


@pytest.mark.parametrize(("name", "function"), INTEGRATIONS.items(), ids=INTEGRATIONS)
def test_integrations_export_one_function_and_use_the_public_ones(name: str, function: str) -> None:
    library = LIBRARY.with_name(name)
    assert exported(library) == {function}
    undefined = run("nm", "-D", "--undefined-only", library)
    used = set(re.findall(r"\bweft\w+", undefined))
    assert used <= declared()
    assert "weftExecute" in used
    # Functions of Python and torch are looked up in the process, so that one file serves all versions.
    assert not re.search(r"\b(_?Py|aoti_)\w+", undefined)
    assert needed(library) == {"libweft.so.1"}
    dynamic = run("readelf", "-d", library)
    assert re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic) == ["$ORIGIN"]
    assert not re.search(r"\(TEXTREL\)", dynamic)
    assert library.stat().st_size < MAX_INTEGRATION_BYTES


def test_library_is_small() -> None:
    assert LIBRARY.stat().st_size < MAX_BYTES


@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_name_no_build_folder(name: str) -> None:
    assert str(ROOT).encode() not in LIBRARY.with_name(name).read_bytes()


# ---- Installation ----


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed copy, moved after installation: nothing in it may name the place it was installed to."""
    folder = tmp_path_factory.mktemp("install")
    run("cmake", "--install", "build/release", "--prefix", folder / "first")
    return (folder / "first").rename(folder / "moved")


def test_installed_files(installed: Path, version: str) -> None:
    lib = next(installed.glob("lib*/**/libweft.so")).parent
    real = lib / f"libweft.so.{version}"
    assert real.is_file()
    assert not real.is_symlink()
    assert [(lib / name).resolve() for name in ("libweft.so", "libweft.so.1")] == [real.resolve()] * 2
    assert {path.name for path in lib.glob("libweft_*")} == set(INTEGRATIONS)
    headers = [path.name for path in (installed / "include/weft").iterdir()]
    assert sorted(headers) == sorted(path.name for path in (ROOT / "include/weft").iterdir())
    assert (lib / "cmake/weft/weftConfigVersion.cmake").is_file()


@pytest.mark.parametrize(
    ("way", "language"),
    [
        ("find_package", "c"),
        ("pkg-config", "c"),
        pytest.param("find_package", "cpp", marks=[needs_cxx, pytest.mark.nightly]),  # compiles all of them
        pytest.param("pkg-config", "cpp", marks=needs_cxx),
    ],
)
def test_samples_run(installed: Path, version: str, tmp_path: Path, language: str, way: str) -> None:
    sources = sorted((ROOT / "samples" / language).glob("*.c*"))
    folder = Path(shutil.copytree(ROOT / "samples" / language, tmp_path / language))
    if way == "find_package":
        run("cmake", "-G", "Ninja", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={installed}", cwd=folder)
        run("cmake", "--build", "build", cwd=folder)
        programs = folder / "build"
    else:
        if not shutil.which("pkg-config"):
            pytest.skip("no pkg-config")
        if language == "cpp":  # the others compile for seconds, and link as these do
            sources = [source for source in sources if source.stem in ("version", "conv_bias_relu")]
        path = next(installed.glob("lib*/**/pkgconfig"))
        run("make", f"PKG_CONFIG_PATH={path}", *(source.stem for source in sources), cwd=folder)
        programs = folder
    for source in sources:
        output = run(programs / source.stem, cwd=tmp_path)
        assert output, f"{source.name} says nothing"
    assert f"header of {version}: WEFT_STATUS_SUCCESS" in run(programs / "version", cwd=tmp_path)
    if (programs / "cuda_graph").exists():
        captured = run(programs / "cuda_graph", cwd=tmp_path, **emulated_gpu.environment())
        assert captured.startswith("largest error of 3 launches: ")


def test_page_for_c_describes_how_to_link(installed: Path, tmp_path: Path) -> None:
    if not shutil.which("pkg-config"):
        pytest.skip("no pkg-config")
    text = (ROOT / "docs/c.md").read_text()
    (commands,) = re.findall(r"^(export PKG_CONFIG_PATH=.*?)^```", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "weft").symlink_to(installed)
    if not (installed / "lib/pkgconfig").exists():
        commands = commands.replace("/lib/", "/lib64/")
    shutil.copy(ROOT / "samples/c/version.c", tmp_path / "conv.c")
    run("sh", "-ec", commands, cwd=tmp_path, HOME=tmp_path, LD_LIBRARY_PATH="")
    assert "WEFT_STATUS_SUCCESS" in run(tmp_path / "conv", LD_LIBRARY_PATH="")


FETCHING = """
cmake_minimum_required(VERSION 3.18...4.0)
project(fetching LANGUAGES C)
include(FetchContent)
FetchContent_Declare(weft SOURCE_DIR "@ROOT@")
FetchContent_MakeAvailable(weft)
add_executable(version "@ROOT@/samples/c/version.c")
target_link_libraries(version PRIVATE weft::weft)
include(CheckLanguage)
check_language(CXX)
if(CMAKE_CXX_COMPILER)
    enable_language(CXX)
    add_executable(conv_cpp "@ROOT@/samples/cpp/conv_bias_relu.cpp")
    target_link_libraries(conv_cpp PRIVATE weft::weft)
    target_compile_features(conv_cpp PRIVATE cxx_std_17)
endif()
"""


@pytest.mark.nightly
def test_static_library_of_a_project_that_fetches(version: str, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(FETCHING.replace("@ROOT@", str(ROOT)))
    quick = ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O0"]
    run("cmake", "-G", "Ninja", "-S", ".", "-B", "build", "-DBUILD_SHARED_LIBS=OFF", *quick, cwd=tmp_path)
    run("cmake", "--build", "build", cwd=tmp_path)
    run("cmake", "--install", "build", "--prefix", "first", cwd=tmp_path)
    prefix = (tmp_path / "first").rename(tmp_path / "moved")
    assert [path.name for path in prefix.rglob("libweft*")] == ["libweft.a"]
    sample = ["-S", ROOT / "samples/c", f"-DCMAKE_PREFIX_PATH={prefix}"]
    run("cmake", "-G", "Ninja", *sample, "-B", "found", cwd=tmp_path)
    run("cmake", "--build", "found", cwd=tmp_path)
    assert run(tmp_path / "found/conv_bias_relu") == "0 0\n21 30\n"
    for program in (tmp_path / "build").glob("conv_cpp"):
        assert run(program, cwd=tmp_path, WEFT_DEVICE="cpu").startswith("largest errors: ")
    programs = [tmp_path / "build/version", tmp_path / "found/version"]
    if shutil.which("pkg-config"):
        folder = next(prefix.glob("lib*/**/pkgconfig"))
        flags = run("pkg-config", "--cflags", "--libs", "weft", PKG_CONFIG_PATH=folder).split()
        programs.append(tmp_path / "by_hand")
        run(CC, ROOT / "samples/c/version.c", "-o", programs[-1], *flags)
    for program in programs:
        assert f"header of {version}: WEFT_STATUS_SUCCESS" in run(program, cwd=tmp_path)
        assert "libweft" not in run("readelf", "-d", program)


# ---- The wheel ----


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of a copy of build/release: Ninja finds the objects there, compiled by the same commands."""
    folder, build = tmp_path_factory.mktemp("wheel"), ROOT / "build/wheel"
    shutil.rmtree(build, ignore_errors=True)
    shutil.copytree(ROOT / "build/release", build)
    cache = build / "CMakeCache.txt"
    cache.write_text(cache.read_text().replace(str(ROOT / "build/release"), str(build)))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    options = [f"-Cbuild-dir={build}", "-Ccmake.define.WEFT_PYTHON_LIB_DIR="]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", *options, "-w", folder, ".")
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_wheel_is_small_and_holds_the_libraries(wheel: Path, version: str) -> None:
    assert re.fullmatch(rf"weft-{re.escape(version)}-py3-none-\w+\.whl", wheel.name)
    assert wheel.stat().st_size < MAX_BYTES
    with ZipFile(wheel) as archive:
        libraries = [item.filename for item in archive.infolist() if ".so" in item.filename]
        metadata = archive.read(f"weft-{version}.dist-info/METADATA").decode()
        headers = [item.filename for item in archive.infolist() if "/include/" in item.filename]
        folders = {item.filename.partition("/")[0] for item in archive.infolist()}
    assert folders == {"weft", "weft_cffi", f"weft-{version}.dist-info"}
    assert sorted(libraries) == sorted(f"weft/lib/{name}" for name in LIBRARIES)
    public = (path for path in (ROOT / "include/weft").rglob("*") if path.is_file())
    assert {Path(name).name for name in headers} == {path.name for path in public}
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    assert [line for line in required if "extra ==" not in line] == ["Requires-Dist: cffi>=1.17"]


@pytest.mark.slow
def test_wheel_imports_in_a_clean_environment(wheel: Path, version: str, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", wheel)
    program = "import sys, weft; print(weft.__version__, weft.__file__, 'numpy' in sys.modules)"
    answer = run(python, "-c", program, cwd=tmp_path, PYTHONPATH="").split()
    assert answer[0] == version
    assert Path(answer[1]).is_relative_to(tmp_path)
    assert answer[2] == "False"
    program = "from weft.integrations import load; print(load('torch') and load('xla').weftXlaExecute(None))"
    assert run(python, "-c", program, cwd=tmp_path, PYTHONPATH="") == "0\n"
    program = tmp_path / "venv/bin/weft"
    assert run(program, "--version", PYTHONPATH="") == f"{version}\n"
    assert run(program, "--help", PYTHONPATH="").startswith("usage: weft [-h] [--version] command ...\n")
    include = run(python, "-c", "import weft; print(weft.get_include())", cwd=tmp_path, PYTHONPATH="").strip()
    assert Path(include) == Path(answer[1]).parent / "include"
    run(CC, "-fsyntax-only", f"-I{include}", ROOT / "samples/c/version.c")
