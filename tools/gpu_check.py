"""All checks that need a GPU in one run: tests, sanitizers, the demo, the suite compared with cuDNN, host
cost.

    python tools/gpu_check.py                      # all parts, some minutes
    python tools/gpu_check.py --quick              # only the tests, without slow and large ones
    python tools/gpu_check.py --parts tests --paths tests/ops/test_norm.py --only backward
    python tools/gpu_check.py --parts sanitizers --tools memcheck
    python tools/gpu_check.py --parts suite --suite PATH/suite.py --cases 'norm/' --csv out.csv
    python tools/gpu_check.py --campaign 500 --seed 0    # random cases for 500 s, from number 0 on

Needs torch and JAX with CUDA, pytest, expecttest for torch's samples, a built library, compute-sanitizer, and
a C compiler for the host cost. Prints shortened failures, and at the end one line per part; exits with 1 if a
part failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from sanitizer import TOOLS  # noqa: E402

PARTS = ("tests", "large", "frontend", "torch", "jax", "sanitizers", "demo", "suite", "host cost")
PARTS_OF_TOOLS = 4  # processes per tool
PLACES = [str(ROOT / "python"), str(ROOT / "bindings"), os.environ.get("PYTHONPATH", "")]
ENV = os.environ | {"WEFT_TEST_DEVICE": "cuda", "WEFT_DEVICE": "cuda", "PYTHONPATH": os.pathsep.join(PLACES)}
# JAX must not preallocate the memory that other processes need
ENV |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
HOST = {"WEFT_TEST_DEVICE": "cpu", "WEFT_DEVICE": "cpu"}
LARGE = "tests/gpu/test_large.py"
SMALL, SANITIZER = "tests/small_cases.py", "tests/sanitizer.py"
CAMPAIGN, DIED = "tests/campaign.py", "DIED"
PRODUCTS = ["tests/ops/test_matmul.py", "tests/ops/test_convolution.py"]
EXACT = {"NVIDIA_TF32_OVERRIDE": "0"}  # full float32 precision in cuDNN and cuBLAS
# Print the name of each test when it ends, so that failures are named even if the time runs out.
PYTEST = [sys.executable, "-m", "pytest", "-vv", "--tb=short", "-p", "no:cacheprovider"]


class Result(NamedTuple):
    """A line of the summary. `passed` is None if the part was not run."""

    title: str
    passed: bool | None
    seconds: float
    note: str


def execute(command: Sequence[str], seconds: float, extra: dict[str, str]) -> tuple[int, str]:
    """Exit code and output of a command; the code is 124 after a timeout."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=ENV | extra,
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as late:
        return 124, (late.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout


def shortened(text: str) -> Iterator[str]:
    """Failures, one line per kind and without tracebacks, and the end of the output."""
    lines = text.splitlines()
    kinds: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("E   ") and not line.startswith("E     "):
            kinds.setdefault(re.sub(r"0x[0-9a-f]+|[0-9.e+-]+|'[^']*'", "#", line)[:120], []).append(line)
    for found in sorted(kinds.values(), key=len, reverse=True):
        yield f"{len(found):4} x {found[0][4:360]}"
    names = re.findall(r"(?:^|\] )(?:FAILED|ERROR) (\S+)|^(\S+::\S+) (?:FAILED|ERROR)", text, re.MULTILINE)
    yield from [f"FAILED {name}" for name in dict.fromkeys(a or b for a, b in names)][:40]


def findings(text: str) -> Iterator[str]:
    """The sanitizer's reports, one line per kind and kernel."""
    lines = [line.removeprefix("========= ") for line in text.splitlines() if line.startswith("=========")]
    results = Counter[str]()
    for line, place in pairwise([*lines, ""]):
        if re.match(
            r"(Error: |Warning: )?(Invalid|Uninitialized|Race|Potential|Barrier|Misaligned|Host API)", line
        ):
            where = re.search(r"at (?:void )?(\w+)", place)
            results[f"{line[:150]} in {where[1] if where else '?'}"] += 1
    for kind, count in results.most_common(30):
        yield f"{count:4} x {kind}"


def run(title: str, command: Sequence[str], args: argparse.Namespace, **extra: str) -> Result:
    """Runs a part and prints the relevant part of its output."""
    start = time.perf_counter()
    with tempfile.NamedTemporaryFile("r") as failures:
        code, text = execute(command, args.seconds, {**extra, "WEFT_TEST_FAILURES": failures.name})
        if code == 124:  # pytest prints the reasons of failures at its end, which it did not reach
            text += failures.read()
    seconds = time.perf_counter() - start
    if args.logs:
        args.logs.mkdir(parents=True, exist_ok=True)
        (args.logs / f"{title.replace(' ', '_')}.log").write_text(text)
    last = [line for line in text.splitlines() if line.strip() and not line.startswith("not observed")]
    shown = [] if code == 0 else [*shortened(text), *findings(text), *last[-10:]]
    if title == "suite" or "host cost" in title:
        shown = last[-250:]
    print("\n".join([f"== {title}: {' '.join(command)[:300]}", *shown]), flush=True)
    counts = re.findall(
        r"^=* ?(\d+ \w+(?:, \d+ \w+)*) in [\d.]+s|((?:ERROR|RACECHECK) SUMMARY: \d+ \w+)", text, re.M
    )
    return Result(
        title, code == 0, seconds, ", ".join(a or b for a, b in counts) or (last[-1][:90] if last else "")
    )


def tests(args: argparse.Namespace) -> Iterator[Result]:
    """The tests of operations, plans and their code on the GPU, and those that need a GPU."""
    folders = [f"tests/{name}" for name in ("ops", "plan", "machine_code", "gpu")]
    chosen = args.paths or [*folders, f"--ignore={LARGE}"]
    chosen += ["-k", args.only] if args.only else []
    chosen += ["-m", "not slow"] if args.quick else []
    yield run("tests", [*PYTEST, *chosen, *parallel(args)], args)
    if not args.paths:
        yield run("exact floats", [*PYTEST, *PRODUCTS, *parallel(args)], args, **EXACT)


def parallel(args: argparse.Namespace) -> list[str]:
    """The options with which pytest uses many processes, if available."""
    return ["-n", str(args.jobs)] if args.jobs > 1 and importlib.util.find_spec("xdist") else []


def frontend(args: argparse.Namespace) -> Iterator[Result]:
    """The frontend's tests: on the CPU, with NumPy arrays, on a machine with a GPU."""
    yield run("frontend", [*PYTEST, "tests/python", *parallel(args)], args, **HOST)


def beside_torch(args: argparse.Namespace) -> Iterator[Result]:
    """weft.torch on GPU tensors, and torch's own samples of its operators with weft.torch.enable()."""
    yield run("torch", [*PYTEST, "tests/weft_torch", *parallel(args)], args)
    if not importlib.util.find_spec("expecttest"):
        yield Result("torch samples", None, 0, "expecttest is not installed, which torch's own tests import")


def beside_jax(args: argparse.Namespace) -> Iterator[Result]:
    """weft.jax on GPU arrays."""
    yield run("jax", [*PYTEST, "tests/weft_jax", *parallel(args)], args, **EXACT)


def large(args: argparse.Namespace) -> Iterator[Result]:
    """Sequentially, because each of them needs much of the GPU's memory."""
    yield run("large", [*PYTEST, LARGE], args)


def sanitizers(args: argparse.Namespace) -> Iterator[Result]:
    """All tools concurrently on small cases of every kernel, which are compiled and compared first."""
    yield run("small cases", [sys.executable, SMALL], args)

    def watches(tool: str, part: int) -> Result:
        words = [SANITIZER, tool, "--part", f"{part}/{PARTS_OF_TOOLS}"]
        return run(f"{tool} {part}", [sys.executable, *words], args)

    def sees(tool: str) -> Result:
        start = time.perf_counter()
        _, text = execute([sys.executable, SANITIZER, tool, "--planted"], args.seconds, {})
        results = next(findings(text), "").strip()[:90]
        if not results:
            print(f"== {tool} sees nothing of what was planted:\n{text[-2000:]}", flush=True)
        return Result(f"{tool} sees", bool(results), time.perf_counter() - start, results or "nothing of it")

    with ThreadPoolExecutor(args.jobs) as pool:
        planted = pool.map(sees, [tool for tool in args.tools if tool in ("memcheck", "initcheck")])
        parts = range(1, PARTS_OF_TOOLS + 1)
        yield from pool.map(watches, *zip(*product(args.tools, parts), strict=True))
        yield from planted


def campaign(args: argparse.Namespace) -> int:
    """Random cases of every family, in one process per core. Prints the failing ones and the next seed;
    returns 1 if a case fails."""
    end = time.monotonic() + args.campaign

    def part(i: int) -> str:
        """The output of one core: of one process, or of several if a case makes the GPU unusable."""
        text, first, code = "", args.seed + i, 3
        while code == 3 and time.monotonic() < end:
            left = end - time.monotonic()
            words = [CAMPAIGN, "--first", str(first), "--step", str(args.jobs), "--seconds", str(left)]
            code, more = execute([sys.executable, *words], left + 90, {})
            if code not in (0, 1, 3):
                last = (re.findall(r"^case \d+$", more, re.MULTILINE) or ["before the first case"])[-1]
                more += f"\n{DIED} with exit status {code} at {last}: {' '.join(more[-1500:].split())}\n"
            text += more
            first = max(map(int, re.findall(r"next --first (\d+)", more)), default=first)
        return text

    with ThreadPoolExecutor(args.jobs) as pool:
        text = "\n".join(pool.map(part, range(args.jobs)))
    for line in text.splitlines():
        if line.startswith(("WRONG", DIED)):
            print(line)
    ends = re.findall(r"^(\d+) cases, (\d+) wrong, next --first (\d+)", text, re.MULTILINE)
    cases, wrong, seeds = ([int(end[i]) for end in ends] for i in range(3))
    died = text.count(DIED)
    counts = f"{sum(cases)} cases, {sum(wrong)} wrong, {died} processes died"
    print(f"campaign: {counts}, next --seed {max(seeds, default=args.seed)}")
    return 1 if sum(wrong) or died or not sum(cases) else 0


def demo(args: argparse.Namespace) -> Iterator[Result]:
    """Trains on the GPU and checks the result."""
    with tempfile.TemporaryDirectory() as folder:
        yield run("demo", [sys.executable, "-m", "weft", "demo", "--out", folder], args)


def suite(args: argparse.Namespace) -> Iterator[Result]:
    """The same graphs with cuDNN and Weft."""
    if not args.suite:
        yield Result("suite", None, 0, "--suite names no file")
        return
    command = [sys.executable, str(args.suite), "--mods", args.mods, "--only", args.cases]
    command += ["--csv", args.csv] if args.csv else []
    yield run("suite", [*command, "--seconds", str(args.seconds - 30)], args)


def host_cost(args: argparse.Namespace) -> Iterator[Result]:
    """The host cost of one execution, and of one of torch's operators."""
    for title, name in (("host cost", "host_cost"), ("torch host cost", "torch_host_cost")):
        yield run(title, [sys.executable, "-m", f"benchmarks.{name}"], args)


def arguments() -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only the tests, without slow and large ones")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--paths", nargs="*", help="paths of tests")
    parser.add_argument("--only", default="", help="tests whose names match, like pytest -k")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 14))
    parser.add_argument(
        "--tools", nargs="+", choices=TOOLS, default=list(TOOLS), help="compute-sanitizer tools"
    )
    parser.add_argument("--suite", type=Path, help="the file of the suite")
    parser.add_argument("--cases", default=".", help="regular expression for cases of the suite")
    parser.add_argument("--mods", default="cudnn,weft", help="modules that the suite compares")
    parser.add_argument("--csv", default="", help="output file of the suite's table")
    parser.add_argument("--seconds", type=float, default=600, help="time limit of each part")
    parser.add_argument("--logs", type=Path, help="directory for the complete output of each part")
    parser.add_argument("--campaign", type=float, default=0, help="only random cases, for this many seconds")
    parser.add_argument("--seed", type=int, default=0, help="number of the campaign's first case")
    return parser.parse_args()


def main() -> int:
    """Runs the requested parts and prints a summary."""
    args = arguments()
    if args.campaign:
        return campaign(args)
    makers = (tests, large, frontend, beside_torch, beside_jax, sanitizers, demo, suite, host_cost)
    run_part = dict(zip(PARTS, makers, strict=True))
    results = [found for part in (["tests"] if args.quick else args.parts) for found in run_part[part](args)]
    print(f"\n{'part':<15}{'result':<9}{'seconds':>8}  result")
    for title, passed, seconds, note in results:
        word = "not run" if passed is None else "passed" if passed else "FAILED"
        print(f"{title:<15}{word:<9}{seconds:8.1f}  {note}")
    return 1 if any(result.passed is False for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
