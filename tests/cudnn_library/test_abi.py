"""The binary interface of libcudnn.so.9: exports, version nodes and headers follow the tables; programs that
are written for cuDNN compile, link and run."""

from __future__ import annotations

import csv
import os
import re
import shutil
import sys
from pathlib import Path

import emulated_gpu
import pytest
from commands import ROOT, run
from cudnn_functions import FOLDER, HEADERS, Library, table

CC, CXX = os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")
needs_cxx = pytest.mark.skipif(not shutil.which(CXX), reason="no C++ compiler")
NAMES = {row["name"] for row in table()}
PARTS = ("graph", "ops", "cnn", "adv", "ext")
EMPTY_PARTS = ("heuristic", "engines_precompiled", "engines_runtime_compiled")
ALIASES = sorted(
    path.name for path in HEADERS.glob("cudnn*.h") if path.stem not in ("cudnn_types", "cudnn_structs")
)
# cuDNN 9.28 exports this number of functions.
EXPORTS = 243


def exports(library: Path) -> dict[str, str]:
    """The exported functions of a library and their version nodes."""
    found = re.findall(r" [TW] (\w+)@@?(\S+)", run("nm", "-D", "--defined-only", library))
    return {name: node for name, node in found if name.startswith("cudnn")}


def soname(library: Path) -> str:
    (found,) = re.findall(r"\(SONAME\).*\[(.+)\]", run("readelf", "-d", library))
    return str(found)


def needed(library: Path) -> set[str]:
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", library)))


def test_generated_files_are_up_to_date() -> None:
    run(sys.executable, "compat/cudnn/generate.py", "--check")


def test_exports_are_the_table() -> None:
    library = FOLDER / "libcudnn.so.9"
    assert len(NAMES) == EXPORTS
    assert exports(library) == dict.fromkeys(NAMES, "libcudnn.so.9")
    assert soname(library) == "libcudnn.so.9"
    assert not {name for name in needed(library) if name.startswith(("libweft", "libcud"))}


@pytest.mark.parametrize("part", [*PARTS, *EMPTY_PARTS])
def test_sub_libraries_forward(part: str) -> None:
    library = FOLDER / f"libcudnn_{part}.so.9"
    expected = {row["name"] for row in table() if row["library"] == part}
    assert bool(expected) == (part in PARTS)
    assert exports(library) == dict.fromkeys(expected, library.name)
    assert soname(library) == library.name
    assert "libcudnn.so.9" in needed(library)
    assert library.stat().st_size < 40_000


def test_every_function_reports_whether_it_works(cudnn: Library) -> None:
    """Functions without an implementation return NOT_SUPPORTED and their name, whatever the arguments are."""
    for row in table():
        if row["state"] != "implemented":
            function = cudnn.function(row["name"])
            assert function(*[0 for _ in function.argtypes]) == 3000, row["name"]
            assert cudnn.message().startswith(f"{row['name']}: Weft does not have this function."), row[
                "name"
            ]


def test_clients_find_their_functions() -> None:
    """The functions that clients import or look up, except those that cuDNN 9 itself no longer has."""
    with (Path(__file__).parent / "clients.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    missing = {row["function"] for row in rows} - NAMES
    assert len(rows) > 200
    assert not missing


# ---- Headers -----------------------------------------------------------------------------------------------

LAYOUT = """
#include <{header}>
#define HOLDS(name, condition) typedef char name[(condition) ? 1 : -1]
HOLDS(fraction, sizeof(cudnnFraction_t) == 16);
HOLDS(debug, sizeof(cudnnDebug_t) == 120 && offsetof(cudnnDebug_t, pid) == 40);
typedef cudnnConvolutionFwdAlgoPerf_t perf_t;
HOLDS(perf, sizeof(perf_t) == 48 && offsetof(perf_t, memory) == 16);
HOLDS(status, CUDNN_STATUS_NOT_SUPPORTED == 3000 && CUDNN_STATUS_ALLOC_FAILED == 4003);
HOLDS(attribute, CUDNN_ATTR_TENSOR_UNIQUE_ID == 906 && CUDNN_ATTR_OPERATIONGRAPH_OPS == 801);
HOLDS(mode, CUDNN_POINTWISE_RELU_FWD == 100 && CUDNN_HEUR_MODE_A == 3 && CUDNN_CROSS_CORRELATION == 1);
HOLDS(version, CUDNN_VERSION == CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL);
cudnnStatus_t CUDNNWINAPI (*function)(cudnnHandle_t *) = cudnnCreate;
"""


@pytest.mark.parametrize("header", ALIASES)
@pytest.mark.parametrize(
    "language", ["c99", *(pytest.param(cpp, marks=needs_cxx) for cpp in ("c++11", "c++20"))]
)
def test_headers_compile(header: str, language: str, tmp_path: Path) -> None:
    compiler, kind = (CC, "c") if language == "c99" else (CXX, "c++")
    source = tmp_path / "program"
    is_version = header == "cudnn_version.h"
    source.write_text(
        f"#include <{header}>\nint version = CUDNN_VERSION;\n" if is_version else LAYOUT.format(header=header)
    )
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
    run(compiler, f"-std={language}", *strict, f"-I{HEADERS}", "-x", kind, source)


def test_build_systems_find_the_version() -> None:
    """CMake modules read the numbers in cudnn_version.h."""
    text = (HEADERS / "cudnn_version.h").read_text()
    assert re.findall(r"^#define CUDNN_(?:MAJOR|MINOR|PATCHLEVEL) (\d+)$", text, re.MULTILINE) == [
        "9",
        "28",
        "0",
    ]


# ---- Programs ----------------------------------------------------------------------------------------------


def test_program_for_cudnn_runs(tmp_path: Path) -> None:
    program = tmp_path / "traps"
    source = ROOT / "tests/cudnn_library/traps.c"
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror"]
    libraries = [f"-L{FOLDER}", "-lcudnn", "-lm", "-lpthread"]
    run(CC, *flags, f"-I{HEADERS}", source, "-o", program, *libraries)
    assert "libcudnn.so.9" in needed(program)
    assert run(program, LD_LIBRARY_PATH=FOLDER, WEFT_DEVICE="cpu", WEFT_LOG="") == "0 failures\n"


def test_program_for_cudnn_runs_under_sanitizers() -> None:
    run("make", "sanitize", "ONLY=cudnn_traps")
    program = ROOT / "build/asan/tests/cudnn_traps"
    assert run(program, WEFT_DEVICE="cpu", UBSAN_OPTIONS="print_stacktrace=1") == "0 failures\n"


@pytest.mark.slow
def test_legacy_functions_under_sanitizers() -> None:
    """The tests of test_legacy.py, in a process that has loaded the sanitizer before Python."""
    pytest.importorskip("torch")
    runtime = Path(run(CC, "-print-file-name=libasan.so").strip())
    if not runtime.is_absolute():
        pytest.skip("the compiler has no libasan.so")
    run("make", "sanitize", "ONLY=cudnn_traps")
    environment = {
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python and PyTorch leak
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "WEFT_TEST_CUDNN": ROOT / "build/asan/cudnn",
    }
    run(sys.executable, "-m", "pytest", "-q", "tests/cudnn_library/test_legacy.py", "-n0", **environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    "selected",
    [
        "dropout or add_scale_fill or causal_convolution and dtype1",
        pytest.param("", marks=pytest.mark.nightly),
    ],
)
def test_legacy_functions_on_the_emulated_gpu(selected: str) -> None:
    """The tests of test_legacy.py with kernels for a GPU; TF32 is off, because they compare floats."""
    pytest.importorskip("torch")
    environment = {**emulated_gpu.environment(), "NVIDIA_TF32_OVERRIDE": "0"}
    tests = ["-q", "-n0", "tests/cudnn_library/test_legacy.py", *(["-k", selected] if selected else [])]
    assert "PASSED" in run(sys.executable, "-m", "pytest", "-rA", *tests, **environment)


PARTED = """
#include <cudnn_ops.h>
#include <cudnn_cnn.h>
#include <stdio.h>
int main(void) {
    cudnnHandle_t handle;
    cudnnTensorDescriptor_t tensor;
    cudnnConvolutionDescriptor_t conv;
    int groups = 0;
    if (cudnnCreate(&handle) || cudnnCreateTensorDescriptor(&tensor))
        return 1;
    if (cudnnCreateConvolutionDescriptor(&conv))
        return 3;
    if (cudnnSetConvolutionGroupCount(conv, 3) || cudnnGetConvolutionGroupCount(conv, &groups))
        return 2;
    printf("%d %d\\n", groups, (int)cudnnGetVersion());
    if (cudnnDestroyConvolutionDescriptor(conv) || cudnnDestroyTensorDescriptor(tensor))
        return 4;
    return cudnnDestroy(handle);
}
"""


def test_program_links_to_sub_libraries(tmp_path: Path) -> None:
    (tmp_path / "parted.c").write_text(PARTED)
    libraries = [f"-L{FOLDER}", "-lcudnn_graph", "-lcudnn_ops", "-lcudnn_cnn", f"-Wl,-rpath-link,{FOLDER}"]
    run(CC, f"-I{HEADERS}", tmp_path / "parted.c", "-o", tmp_path / "parted", *libraries)
    assert needed(tmp_path / "parted") >= {f"libcudnn_{part}.so.9" for part in ("graph", "ops", "cnn")}
    symbols = run("nm", "-D", "--undefined-only", "--with-symbol-versions", tmp_path / "parted")
    assert "cudnnCreateConvolutionDescriptor@libcudnn_cnn.so.9" in symbols
    assert run(tmp_path / "parted", LD_LIBRARY_PATH=FOLDER, WEFT_DEVICE="cpu") == "3 92800\n"


def test_log_reports_start_and_missing_functions() -> None:
    program = (
        "import ctypes; c = ctypes.CDLL('libcudnn.so.9'); h = ctypes.c_void_p();"
        "assert c.cudnnCreate(ctypes.byref(h)) == 0; c.cudnnCreateRNNDescriptor(None); c.cudnnRNNForward()"
    )
    command = f'{sys.executable} -c "{program}" 2>&1'
    log = run("sh", "-c", command, WEFT_LOG="info", LD_LIBRARY_PATH=FOLDER, WEFT_DEVICE="cpu")
    assert "serves cuDNN's functions and reports version 9.28.0" in log
    assert "cudnnCreate: 1 calls, 0 failed" in log
    assert "missing function that was called: cudnnCreateRNNDescriptor" in log
    assert "missing function that was called: cudnnRNNForward" in log


def test_other_version_is_reported() -> None:
    program = "import ctypes; print(ctypes.CDLL('libcudnn.so.9').cudnnGetVersion())"
    for chosen, reported in {"92000": "92000", "8": "92800", "": "92800"}.items():
        environment = {"WEFT_CUDNN_VERSION": chosen, "LD_LIBRARY_PATH": FOLDER}
        assert run(sys.executable, "-c", program, **environment).strip() == reported


def test_libraries_have_no_text_relocations() -> None:
    for path in FOLDER.glob("libcudnn*.so.9"):
        assert "TEXTREL" not in run("readelf", "-d", path), path.name
