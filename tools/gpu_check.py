"""Everything that needs a GPU in one run: the operations' tests on it, sanitizers, the suite beside cuDNN.

    python tools/gpu_check.py                      # the tests of tests/ops and tests/plan on the first GPU
    python tools/gpu_check.py --only 'reduction'   # those whose names match
    python tools/gpu_check.py --sanitize memcheck racecheck
    python tools/gpu_check.py --suite PATH/suite.py --csv out.csv   # side by side with cuDNN

Needs torch with CUDA, pytest and a library whose engine list has the CUDA engine. Prints the failures,
shortened, and a line of counts per part; exits with 1 if a part failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = [str(ROOT / "python"), str(ROOT / "bindings"), os.environ.get("PYTHONPATH", "")]
ENV = os.environ | {"WEFT_TEST_DEVICE": "cuda", "PYTHONPATH": os.pathsep.join(PLACES)}


def run(title: str, command: list[str], seconds: float, keep: int) -> bool:
    """Runs a command; prints its last lines, and whether it passed."""
    print(f"== {title}: {' '.join(command)}", flush=True)
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=ENV,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
        )
        text, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        text, code = (late.stdout or b"").decode(errors="replace"), 124
    lines = text.splitlines()
    kinds: dict[str, list[str]] = {}
    for line in lines:  # one line per kind of failure: the sentences say more than the traces
        if line.startswith("E   ") and not line.startswith("E     "):
            kinds.setdefault(re.sub(r"0x[0-9a-f]+|[0-9.e+-]+|'[^']*'", "#", line)[:120], []).append(line)
    for found in sorted(kinds.values(), key=len, reverse=True):
        print(f"{len(found):4} x {found[0][4:360]}")
    print("\n".join([line for line in lines if not line.startswith(("FAILED", "E ", ">"))][-keep:]))
    print(f"== {title}: {'passed' if code == 0 else f'failed with {code}'}", flush=True)
    return code == 0


def main() -> int:
    """Runs the parts that were asked for."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--only", default="", help="pytest -k")
    ask.add_argument("--paths", nargs="*", default=["tests/ops"])
    ask.add_argument("--jobs", type=int, default=8)
    ask.add_argument("--sanitize", nargs="*", default=[], help="compute-sanitizer tools")
    ask.add_argument("--suite", type=Path)
    ask.add_argument("--cases", default=".")
    ask.add_argument("--mods", default="cudnn,weft")
    ask.add_argument("--csv", default="")
    ask.add_argument("--seconds", type=float, default=500)
    ask.add_argument("--no-tests", action="store_true")
    given = ask.parse_args()
    passed = True
    tests = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *given.paths]
    if given.only:
        tests += ["-k", given.only]
    if not given.no_tests:
        jobs = ["-n", str(given.jobs)] if given.jobs > 1 else []
        passed &= run("tests", tests + jobs, given.seconds, 12)
    for tool in given.sanitize:
        sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        watch = [sanitizer, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20"]
        passed &= run(tool, [*watch, *tests], given.seconds, 30)
    if given.suite:
        suite = [sys.executable, str(given.suite), "--mods", given.mods, "--only", given.cases]
        suite += ["--csv", given.csv] if given.csv else []
        passed &= run("suite", [*suite, "--seconds", str(given.seconds)], given.seconds + 60, 200)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
