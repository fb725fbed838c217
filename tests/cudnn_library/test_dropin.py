"""`import weft.dropin`, `python -m weft cudnn` and what `weft doctor` reports."""

from __future__ import annotations

import os
import sys

from commands import ROOT, run
from cudnn_functions import FOLDER

LIBRARY = FOLDER / "libcudnn.so.9"
PATHS = os.pathsep.join(str(ROOT / name) for name in ("python", "bindings"))
# A program that is linked to cuDNN asks for the soname.
ASKS = "import ctypes; c = ctypes.CDLL('libcudnn.so.9'); c.weftCudnnCallCount; print(c.cudnnGetVersion())"


def python(*words: object, **environment: object) -> str:
    return run(sys.executable, *words, PYTHONPATH=PATHS, WEFT_DEVICE="cpu", **environment)


def test_import_answers_later_requests_of_the_soname() -> None:
    assert python("-c", f"import weft.dropin; {ASKS}") == "92000\n"
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
    assert python("-m", "weft", "cudnn", "run", "-c", ASKS) == "92000\n"
    program = "import os, sys; print(sys.argv[1:], os.environ['LD_PRELOAD'])"
    assert python("-m", "weft", "cudnn", "run", "-c", program, "--a", "-b") == f"['--a', '-b'] {LIBRARY}\n"


def test_doctor_reports_the_library() -> None:
    text = python("-m", "weft", "cudnn", "run", "-m", "weft", "doctor")
    assert f"\nlibcudnn.so.9 {LIBRARY}: computed by Weft\n" in text
    assert "\nlibcudnn.so.9 " not in python("-m", "weft", "doctor")
