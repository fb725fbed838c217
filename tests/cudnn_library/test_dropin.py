"""`import weft.dropin`, `python -m weft cudnn` and what `weft doctor` reports."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from commands import ROOT, run
from cudnn_functions import FOLDER

LIBRARY = FOLDER / "libcudnn.so.9"
PATHS = os.pathsep.join(str(ROOT / name) for name in ("python", "bindings"))
# A program that is linked to cuDNN asks for the soname.
ASKS = "import ctypes; c = ctypes.CDLL('libcudnn.so.9'); c.weftCudnnCallCount; print(c.cudnnGetVersion())"


def python(*words: object, **environment: object) -> str:
    return run(sys.executable, *words, PYTHONPATH=PATHS, WEFT_DEVICE="cpu", **environment)


def test_import_answers_later_requests_of_the_soname() -> None:
    assert python("-c", f"import weft.dropin; {ASKS}") == "92800\n"
    assert python("-c", "import weft.dropin as d; print(*d.loaded())") == f"{LIBRARY}\n"


def test_import_refuses_to_come_second(tmp_path: object) -> None:
    program = (
        "import ctypes, pathlib, shutil, sys; shutil.copy(sys.argv[1], sys.argv[2]);"
        "other = pathlib.Path(sys.argv[2], 'libcudnn.so.9'); ctypes.CDLL(str(other))\n"
        "try:\n    import weft.dropin\nexcept ImportError as error: print(error)"
    )
    expected = "libcudnn.so.9 is loaded already. Import weft.dropin before what loads it.\n"
    assert python("-c", program, LIBRARY, tmp_path).endswith(expected)


def test_command_preloads_the_library() -> None:
    assert python("-m", "weft", "cudnn", "path") == f"{LIBRARY}\n"
    assert python("-m", "weft", "cudnn", "run", "-c", ASKS) == "92800\n"
    program = "import os, sys; print(sys.argv[1:], os.environ['LD_PRELOAD'])"
    assert python("-m", "weft", "cudnn", "run", "-c", program, "--a", "-b") == f"['--a', '-b'] {LIBRARY}\n"


def test_doctor_reports_the_library() -> None:
    text = python("-m", "weft", "cudnn", "run", "-m", "weft", "doctor")
    assert f"\nlibcudnn.so.9 {LIBRARY}: computed by Weft\n" in text
    assert "\nlibcudnn.so.9 " not in python("-m", "weft", "doctor")


@pytest.mark.nightly
def test_wheel_is_found_first(tmp_path: Path) -> None:
    """Made of a copy of build/release: Ninja finds the objects there, compiled by the same commands."""
    build = tmp_path / "build"
    shutil.copytree(ROOT / "build/release", build, symlinks=True)
    cache = build / "CMakeCache.txt"
    cache.write_text(cache.read_text().replace(str(ROOT / "build/release"), str(build)))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
    ]
    run(*pip, f"-Cbuild-dir={build}", "-Ccmake.define.WEFT_PYTHON_LIB_DIR=", "-w", tmp_path, "compat/cudnn")
    (wheel,) = tmp_path.glob("weft_cudnn-*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        names = {name.split("/")[0] for name in archive.namelist()}
    assert names == {"weft_cudnn", wheel.name.split("-py3")[0] + ".dist-info"}  # nothing below nvidia/
    libraries = sorted(path.name for path in (tmp_path / "site/weft_cudnn/lib").iterdir())
    assert libraries == sorted(path.name for path in FOLDER.glob("*.so.9"))
    paths = f"{tmp_path / 'site'}{os.pathsep}{PATHS}"
    program = "import weft.dropin; print(weft.dropin.library())"
    answer = run(sys.executable, "-c", program, PYTHONPATH=paths, WEFT_DEVICE="cpu")
    assert answer == f"{tmp_path / 'site/weft_cudnn/lib/libcudnn.so.9'}\n"
