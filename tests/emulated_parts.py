#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs all of tests/ops on the emulated GPU, as each generation of chips, in parts that can be resumed.

    python tests/emulated_parts.py                                # everything that has not passed yet
    python tests/emulated_parts.py --seconds 600 --jobs 2         # starts no part after 10 minutes
    python tests/emulated_parts.py --chips 90 --parts 1,49        # two of the 96 parts on one chip
    python tests/emulated_parts.py --again --chips 80 --parts 7   # also if it has passed

A part is every 96th test (WEFT_TEST_SAMPLE), and takes about two minutes of one core. Part 0 is the small
case of every kernel. The outcome of a part is stored in build/emulator/parts. A part that passed is not run
again until the library, the package or the tests change. A part that failed is run again. Each part also
records which blocks of which kernels its tests reached: tools/kernel_coverage.py prints that.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import emulated_gpu

ROOT = Path(__file__).parents[1]
STATE = ROOT / "build/emulator/parts"
CHIPS = (90, 80, 75, 89, 120)
COUNT = 96
INPUTS = ("python/weft/lib/libweft.so.1", "python/weft/**/*.py", "tests/*.py", "tests/ops/*.py")
KERNELS = ("backend/engines/cuda/**/*.cuh",)
INPUTS += ("tests/emulator/*.[ch]", "tests/fake_cuda/*.[ch]")


def digest(patterns: Iterable[str] = INPUTS) -> str:
    """Identifies the contents of files: of the library, the package and the tests."""
    hash_ = hashlib.sha256()
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            hash_.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return hash_.hexdigest()[:16]


def folder_of(chip: int, part: int) -> Path:
    """Where a part's outcome and coverage are stored."""
    return STATE / f"sm_{chip}" / f"{part}"


def outcome(chip: int, part: int) -> dict[str, Any]:
    """Returns the stored outcome of the part's last run; empty if it never ran."""
    try:
        read: dict[str, Any] = json.loads((folder_of(chip, part) / "outcome.json").read_text())
    except (OSError, ValueError):
        return {}
    return read


def times_of(report: Path) -> tuple[dict[str, float], list[str]]:
    """Seconds of each test of a JUnit report, and the tests that failed."""
    times, failed = {}, []
    for case in xml.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        times[name] = float(case.get("time", 0))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
    return times, failed


def command(chip: int, part: int) -> str:
    """The line that runs a part."""
    return f"python tests/emulated_parts.py --again --chips {chip} --parts {part}"


def run(chip: int, part: int, current: str) -> bool:
    """Runs a part and stores its outcome. Returns whether all of its tests passed."""
    folder = folder_of(chip, part)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = {
        "FAKE_CUDA_ARCH": str(chip),
        "WEFT_TEST_SAMPLE": f"{part}/{COUNT}",
        "WEFT_TEST_TIER": "all",
        "EMULATOR_COVERAGE": str(folder / "coverage"),
    }
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/ops"]
    words += ["--junitxml", str(folder / "report.xml"), "-o", "junit_family=xunit1"]
    if part == 0:
        words = ["tests/small_cases.py", "--runs", "1", *([] if chip == 90 else ["--any-kernel"])]
    start = time.monotonic()
    with (folder / "log").open("w") as log:
        env = os.environ | emulated_gpu.environment() | settings
        both = {"stdout": log, "stderr": subprocess.STDOUT}
        status = subprocess.run([sys.executable, *words], env=env, cwd=ROOT, **both).returncode
    times, failed = times_of(folder / "report.xml") if (folder / "report.xml").exists() else ({}, [])
    result = {"digest": current, "kernels": digest(KERNELS), "status": status}
    result["seconds"] = round(time.monotonic() - start, 1)
    (folder / "outcome.json").write_text(json.dumps(result | {"failed": failed, "times": times}, indent=0))
    counts = f"{len(times)} tests, {len(failed)} failed"
    print(f"sm_{chip} part {part}: {result['seconds']} s, {counts}", flush=True)
    for name in failed:
        print(f"    FAKE_CUDA_ARCH={chip} python tests/emulated_gpu.py python -m pytest '{name}'", flush=True)
    if status and not failed:
        print(f"    ended with status {status}: {folder / 'log'}; {command(chip, part)}", flush=True)
    return status == 0


def numbers(text: str) -> list[int]:
    """The numbers of a list such as "1,5,9"."""
    return [int(word) for word in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chips", type=numbers, default=list(CHIPS), help="compute capabilities, times 10")
    parser.add_argument("--parts", type=numbers, default=list(range(COUNT + 1)), help="default: 0 to 96")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parts side by side")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no part starts later than this")
    parser.add_argument("--again", action="store_true", help="also parts that passed")
    args = parser.parse_args()
    emulated_gpu.build()
    current, start = digest(), time.monotonic()
    todo = []
    for chip in args.chips:
        for part in args.parts:
            before = outcome(chip, part)
            if args.again or before.get("digest") != current or before.get("status") != 0:
                todo.append((chip, part))

    def run_in_time(which: tuple[int, int]) -> bool | None:
        return run(*which, current) if time.monotonic() - start < args.seconds else None

    with ThreadPoolExecutor(args.jobs) as pool:
        done = list(pool.map(run_in_time, todo))
    total = len(args.chips) * len(args.parts)
    print(f"{total} parts: {total - len(todo)} passed before, {done.count(True)} passed, "
          f"{done.count(False)} failed, {done.count(None)} left")  # fmt: skip
    return 1 if done.count(False) else 0


if __name__ == "__main__":
    sys.exit(main())
