"""compute-sanitizer over the small cases, with the options that each tool needs.

python tests/sanitizer.py memcheck                  all small cases; exits with 9 if something is found
python tests/sanitizer.py initcheck --part 3/8      options of small_cases.py follow the tool
python tests/sanitizer.py initcheck --planted       errors that memcheck and initcheck have to find
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CASES = str(ROOT / "tests/small_cases.py")
PLACES = [str(ROOT / "python"), str(ROOT / "bindings"), os.environ.get("PYTHONPATH", "")]
TOOLS = {
    "memcheck": (),
    "initcheck": (),
    "racecheck": (),
    "synccheck": ("--num-cuda-barriers", "65536"),  # a kernel may have more than it makes room for
}

# Reads unwritten memory, and memory far beyond its end: a sanitizer that reports nothing here detects nothing
# at all.
PLANTED = """
import weft
g = weft.Graph()
x = g.tensor([1 << 16], data_type="f32")
y = g.relu(x).set_output(True)
g.build()
made, short = weft.DeviceArray([1 << 16]), weft.DeviceArray([1024])
g.execute({x: short.__cuda_array_interface__["data"][0], y: made})
weft.backend.synchronize(g.plan.handle, 0)
"""


def command(tool: str, words: Sequence[str]) -> list[str]:
    """Returns the command that runs the small cases, or the planted errors, under a tool."""
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    # Errors of API calls are none here: the library asks for a kernel's parameters until there is no more.
    watch = [program, "--error-exitcode", "9", "--report-api-errors", "no", "--print-limit", "200"]
    watched = ["-c", PLANTED] if "--planted" in words else [CASES, "--watched-by", tool, *words]
    return [*watch, "--tool", tool, *TOOLS[tool], sys.executable, *watched]


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TOOLS:
        sys.exit(__doc__)
    words = command(sys.argv[1], sys.argv[2:])
    os.execve(words[0], words, os.environ | {"PYTHONPATH": os.pathsep.join(PLACES)})
