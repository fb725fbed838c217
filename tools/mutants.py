#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: makes small changes to the sources, one at a time, and runs the tests for the changed
file.

    python tools/mutants.py --sample 200 --seed 7            changes all over the tree, drawn with a seed
    python tools/mutants.py backend/plan/run.c               20 changes of a file or directory
    python tools/mutants.py --sample 0 python/weft/plan.py   all of them, which takes long
    python tools/mutants.py --sample 200 --list              only prints the changes

universalmutator generates the changes: off-by-one comparisons, dropped terms, omitted statements. They apply
to the C library, its headers, the kernels and the Python package with its framework integrations, in a copy
of the working tree under build/mutants. Changes of comments and of the wording of messages are skipped, and
so are those that do not compile or that do not change the compiled library. What only ruff finds counts as
detected, because `make test` runs it. Verdicts are stored in build/mutants/verdicts.json until the tests
change, so that an interrupted run can be resumed. Prints each surviving change, and the share of detected
changes by directory. Fails below 85 % overall, or 75 % for a directory with four or more changes.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TREE, MADE = ROOT / "build/mutants/tree", ROOT / "build/mutants/made"
LANGUAGES = {".c": "c", ".h": "c", ".hpp": "cpp", ".cuh": "cpp", ".py": "python"}
EVERYWHERE = ["backend", "include", "compat/torch", "compat/xla", "python/weft", "benchmarks"]
VERDICTS = ROOT / "build/mutants/verdicts.json"
LEAST, LEAST_OF_FOLDER = 85, 75  # minimum percentages of detected changes
FEW = 4  # a directory with fewer changes has no minimum
NO_TESTS = 5  # pytest's status if it ran none
SECONDS = 600  # of processor time for the tests of one change; exceeding it counts as detected
PATIENCE = 3600  # seconds after which tests that wait for ever are ended, on a machine that may be busy

# The tests of a directory or file, fastest first; the first matching prefix applies. "test_x" is a program of
# tests/c, "small x" means the small cases whose names match x on the emulated GPU, and "pytest x" passes x to
# pytest.
PRODUCTS = "small ^matmul|^totals|^scales|tokens|^conv|^stem|^depthwise|^experts"
PYTHON = "'not test_emulator and not test_package and not test_cli'"
GENERATED = "pytest tests/python/test_generated.py"
EMULATED = "pytest tests/test_emulated.py -k"
TESTS = (
    ("backend/graph/ops/moe", ["pytest tests/ops/test_moe.py"]),
    ("backend/graph/ops/b", ["pytest tests/ops/test_batchnorm_parts.py tests/ops/test_block_scale.py"]),
    ("backend/graph/ops/affine_grid", ["pytest tests/ops/test_grid_sample.py"]),
    ("backend/graph/ops/rope", ["pytest tests/ops/test_rotary_embedding.py"]),
    ("backend/graph/ops/cumprod", ["pytest tests/ops/test_scan.py"]),
    ("backend/graph/ops/genstats", ["pytest tests/ops/test_batchnorm_parts.py"]),
    ("backend/graph/ops/norm", ["pytest tests/ops/test_norm.py tests/ops/test_batchnorm_parts.py"]),
    ("backend/graph/ops/pointwise", ["pytest tests/ops/test_pointwise.py"]),
    ("backend/graph/ops/convolution", ["pytest tests/ops/test_convolution.py"]),
    (
        "backend/graph/ops/move",
        ["pytest tests/ops/test_reshape.py tests/ops/test_transpose.py tests/ops/test_slice.py"],
    ),
    ("backend/graph/ops/score", ["pytest tests/ops/test_attention_modifiers.py"]),
    (
        "backend/graph/ops/attention",
        [
            "pytest tests/ops/test_attention.py",
            "pytest tests/ops/test_attention_paged.py tests/ops/test_attention_ragged.py",
            "pytest tests/ops/test_attention_scales.py tests/ops/test_attention_modifiers.py",
        ],
    ),
    ("backend/graph/ops/", ["pytest tests/ops/test_{stem}.py"]),
    ("backend/graph/patterns/", ["pytest tests/plan/test_attention_pattern.py", "small primitive"]),
    (
        "backend/graph/",
        ["test_graph", "test_api", "pytest tests/python/test_graph.py tests/ops/test_pointwise.py"],
    ),
    ("backend/plan/", ["test_plan", "pytest tests/plan tests/python/test_plan.py"]),
    ("backend/api/", ["test_api", "test_memory", "test_plan", "test_device_memory"]),
    ("backend/base/", ["test_base", "test_philox", "test_plan", "pytest tests/ops/test_small_types.py"]),
    ("backend/runtime/", ["test_runtime", "test_device_memory", "test_kernel_cache", "test_cuda_devices"]),
    ("backend/engines/cpu/attention/", ["test_cpu_fast", "pytest tests/ops/test_attention_cpu.py"]),
    ("backend/engines/cpu/map/", ["test_cpu_fast", "pytest tests/ops/test_pointwise.py"]),
    (
        "backend/engines/cpu/rows/",
        ["pytest tests/plan/test_cpu_fast.py tests/ops/test_reduction.py tests/ops/test_norm.py"],
    ),
    ("backend/engines/cpu/pooling/", ["test_sweep", "pytest tests/ops/test_resample.py"]),
    ("backend/engines/cpu/core/", ["test_cpu_fast", "test_gemm", "pytest tests/ops/test_pointwise.py"]),
    (
        "backend/engines/cpu/",
        ["test_gemm", "test_cpu_fast", "pytest tests/ops/test_convolution.py tests/ops/test_matmul.py"],
    ),
    ("backend/engines/cuda/attention/pattern", ["pytest tests/plan/test_attention_pattern.py"]),
    (
        "backend/engines/cuda/attention/",
        ["small ^attention", "test_cuda_attention", f"{EMULATED} 'less_aligned or little_shared_memory'"],
    ),
    (
        "backend/engines/cuda/product/",
        [
            PRODUCTS,
            "test_cuda_contraction",
            "test_cuda_repack",
            "test_cuda_patches",
            "test_cuda_grouped",
            "test_cuda_block_scale",
            f"{EMULATED} 'few_multiprocessors or less_aligned'",
        ],
    ),
    (
        "backend/engines/cuda/rows/",
        ["small norm|softmax|^rows|^sum", "test_cuda_rows", f"{EMULATED} few_multiprocessors"],
    ),
    ("backend/engines/cuda/recurrent/", ["small recurrent"]),
    ("backend/engines/cuda/causal/", ["small causal", "test_cuda_causal"]),
    ("backend/engines/cuda/ctc/", ["small ctc", "test_cuda_ctc"]),
    ("backend/engines/cuda/grid/", ["small grid", "test_cuda_grid"]),
    ("backend/engines/cuda/pooling/", ["small pool|bilinear|^mean", "test_cuda_window"]),
    (
        "backend/engines/cuda/map/",
        [
            "small ^map|transpose|concat|rng|int4|block scales|^slice",
            "test_cuda_map",
            "test_cuda_move",
            "test_cuda_block_scale",
        ],
    ),
    ("backend/engines/cuda/core/", ["small .", "test_cuda_plan", "test_cuda_map"]),
    ("backend/engines/", ["test_plan", "pytest tests/plan"]),
    ("compat/xla/", ["test_xla", "pytest tests/weft_jax"]),
    (
        "compat/torch/",
        ["test_torch", "pytest tests/weft_torch/test_calls.py tests/weft_torch/test_operators.py"],
    ),
    ("include/weft/", [GENERATED, "test_api", "test_graph", "pytest tests/test_cpp.py"]),
    (
        "python/weft/torch/operators/",
        ["pytest tests/weft_torch/test_operators.py", "pytest tests/weft_torch"],
    ),
    (
        "python/weft/torch/",
        ["pytest tests/weft_torch/test_calls.py tests/weft_torch/test_enable.py", "pytest tests/weft_torch"],
    ),
    ("python/weft/jax/operators/", ["pytest tests/weft_jax/test_operators.py", "pytest tests/weft_jax"]),
    ("python/weft/jax/", ["pytest tests/weft_jax"]),
    ("python/weft/plot/", ["pytest tests/python/test_plot.py", "pytest tests/python/test_cli.py"]),
    ("python/weft/cudnn/", ["pytest tests/cudnn"]),
    ("benchmarks/", ["pytest tests/python/test_benchmarks.py"]),
    ("python/weft/", [f"pytest tests/python -k {PYTHON}", "pytest tests/python/test_cli.py"]),
    ("tests/emulator/", ["pytest tests/python/test_emulator.py"]),
)


class Mutant(NamedTuple):
    """A file after one change."""

    path: str
    made: Path

    def line(self) -> int:
        """The number of the changed line."""
        old, new = (ROOT / self.path).read_text().splitlines(), self.made.read_text().splitlines()
        return next((i for i, (one, other) in enumerate(zip(old, new, strict=False), 1) if one != other), 0)

    @property
    def key(self) -> str:
        """The key of the change in the stored verdicts."""
        return f"{self.path}:{self.line()}:{hashlib.sha256(self.made.read_bytes()).hexdigest()[:12]}"

    def change(self) -> str:
        """The changed lines."""
        old, new = (ROOT / self.path).read_text(), self.made.read_text()
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
        return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


# ---- Changes -----------------------------------------------------------------------------------------------


def without_words(text: str, suffix: str) -> str:
    """A text without comments, contents of strings, types of Python's arguments and hints for compilers;
    empty if Python cannot compile it."""
    if suffix == ".py":
        try:
            compile(text, "", "exec")
        except SyntaxError:
            return ""
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                node.value = ""
            elif isinstance(node, ast.arg):
                node.annotation = None
            elif isinstance(node, ast.FunctionDef):
                node.returns = None
        return re.sub(r"Expr\(value=Constant\(value=''\)\)|Pass\(\)", "", ast.dump(tree))
    words = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|#pragma unroll[^\n]*|__builtin_prefetch\([^;]*;|\s+'
    return re.sub(r"\s*(\W)\s*", r"\1", re.sub(words, " ", text, flags=re.DOTALL))


def mutants_of(path: str, lines: Iterable[int]) -> list[Mutant]:
    """All changes of some lines of a file, except those of comments and strings."""
    source, folder = ROOT / path, MADE / path
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    chosen = folder.parent / f"{folder.name}.lines"
    chosen.write_text("".join(f"{line}\n" for line in lines))
    program = Path(sys.executable).parent / "mutate"
    words = [program, path, LANGUAGES[source.suffix], "--noCheck", "--mutantDir", folder, "--lines", chosen]
    subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    own, results = without_words(source.read_text(), source.suffix), []
    for made in sorted(folder.iterdir()):
        text = without_words(made.read_text(), source.suffix)
        if text and text != own:
            results.append(Mutant(path, made))
    return results


def draw(paths: Iterable[str], chance: random.Random) -> Iterator[Mutant]:
    """One change per line that can be changed, in random order. Each is generated when it is requested, and
    the file of the previous one may no longer exist then."""
    lines = [
        (path, number)
        for path in paths
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if re.search(r"\w", line)
    ]
    chance.shuffle(lines)
    for path, number in lines:
        if found := mutants_of(path, [number]):
            yield chance.choice(found)


def all_changes(paths: Iterable[str]) -> Iterator[Mutant]:
    """Every change of every line."""
    for path in paths:
        yield from mutants_of(path, range(1, 1 + (ROOT / path).read_text().count("\n")))


def files_under(names: Iterable[str]) -> Iterator[str]:
    """The files of directories that can be changed, by their paths from the root."""
    for name in names:
        location = ROOT / name
        for path in sorted(location.rglob("*")) if location.is_dir() else [location]:
            if path.suffix in LANGUAGES and "/lib/" not in str(path):
                yield str(path.relative_to(ROOT))


# ---- Running -----------------------------------------------------------------------------------------------


def copy_tree() -> None:
    """Copies the working tree, and keeps the previous build in the copy."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in names:
        source, copy = ROOT / name, TREE / name
        if source.is_file() and not (copy.exists() and copy.read_bytes() == source.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    if not (TREE / ".venv").exists():
        (TREE / ".venv").symlink_to(ROOT / ".venv")


def run(command: str, log: Path | None = None) -> bool:
    """True if a command succeeds in the copy within the time limit."""
    env = os.environ | {"PYTHONPATH": f"{TREE}/python:{TREE}/bindings", "PYTHONDONTWRITEBYTECODE": "1"}
    env["PATH"] = f"{TREE}/.venv/bin:{env['PATH']}"
    output = log.open("w") if log else subprocess.DEVNULL
    words = ["timeout", "-k", "5", str(PATIENCE), "bash", "-c", f"ulimit -t {SECONDS}; {command}"]
    code = subprocess.run(words, cwd=TREE, env=env, stdout=output, stderr=subprocess.STDOUT).returncode
    if code == NO_TESTS and " -m pytest " in command:
        sys.exit(f"no test ran: {command}. Correct the table in tools/mutants.py.")
    return code == 0


def command_of(test: str, stem: str) -> str:
    """The command that runs a test of the table."""
    kind, _, argument = test.format(stem=stem).partition(" ")
    if kind == "pytest":
        return f"python -m pytest -x -q -p no:cacheprovider {argument}"
    if kind == "small":
        return f"python tests/emulated_gpu.py python tests/small_cases.py --only '{argument}'"
    return f"make sanitize ONLY={kind} && cd build/asan && ctest --no-tests=error -R '^{kind}$'"


def tests_of(path: str) -> list[str]:
    """The commands of the tests for a file."""
    for prefix, tests in TESTS:
        if path.startswith(prefix):
            more = [GENERATED] if path.startswith("backend/graph/") else []
            commands = [command_of(test, Path(path).stem) for test in more + tests]
            return commands + ([f"ruff check -q {path}"] if path.endswith(".py") else [])
    sys.exit(f"{path}: no tests are listed for it. Add its directory to the table in tools/mutants.py.")


def state_of_tests() -> str:
    """A digest of the tests; stored verdicts of other tests do not count."""
    hash_ = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix in (".py", ".c", ".h", ".cpp", ".txt"):
            hash_.update(path.read_bytes())
    return hash_.hexdigest()[:12]


# As CI does: it refuses changes with warnings.
BUILD = "make build WERROR=-DWEFT_WERROR=ON"


def syntax_check(path: str) -> str:
    """The command that checks whether a changed source compiles, much faster than a build; empty if only a
    build can tell."""
    if path.endswith(".hpp"):
        return "echo '#include <weft/weft.hpp>' | c++ -std=c++17 -fsyntax-only -Iinclude -x c++ -"
    if not path.endswith(".c"):
        return ""
    listed = json.loads((TREE / "build/release/compile_commands.json").read_text())
    found = next(each for each in listed if each["file"].endswith(f"/{path}"))
    return f"cd {found['directory']} && {found['command']} -fsyntax-only"


def library() -> bytes:
    """The libraries built in the copy."""
    return b"".join(path.read_bytes() for path in sorted((TREE / "python/weft/lib").glob("libweft*")))


def refuses_kernel(log: Path) -> bool:
    """True if the run-time compiler rejected a changed kernel."""
    return bool(re.search(r"\.cuh?\(\d+\): (error|catastrophic error):", log.read_text(errors="replace")))


def verdict(mutant: Mutant, whole: bytes) -> tuple[str, str]:
    """The verdict on one change: "killed" with the command that failed, "survived", or the reason why it does
    not count."""
    target, log = TREE / mutant.path, ROOT / "build/mutants/log"
    own = target.read_bytes()
    target.write_bytes(mutant.made.read_bytes())
    try:
        if not run(syntax_check(mutant.path)):
            return "does not compile", ""
        if mutant.path.startswith(("backend/", "include/", "compat/")):
            if not run(BUILD):
                return "does not compile", ""
            if library() == whole and not mutant.path.startswith("include/"):
                return "same library", ""
        for test in tests_of(mutant.path):
            if not run(test, log):
                is_refused = mutant.path.endswith(".cuh") and refuses_kernel(log)
                return ("does not compile", "") if is_refused else ("killed", test)
        return "survived", ""
    finally:
        target.write_bytes(own)


def expect_success(command: str) -> None:
    """Ends the program if a command fails without any change."""
    log = ROOT / "build/mutants/log"
    if not (run(BUILD, log) and run(command, log)):
        sys.exit(f"fails without any change: {command}\n{log.read_text()[-2000:]}")


class Verdicts:
    """The verdicts, which are stored as soon as they are known."""

    def __init__(self) -> None:
        self.state = state_of_tests()
        stored = json.loads(VERDICTS.read_text()) if VERDICTS.exists() else {}
        self.known: dict[str, str] = stored.get(self.state, {})

    def add(self, mutant: Mutant, found: str) -> None:
        """Stores a verdict."""
        self.known[mutant.key] = found
        VERDICTS.write_text(json.dumps({self.state: self.known}, indent=0))


def folder_of(path: str) -> str:
    """The directory by which changes are reported: three levels deep, such as backend/engines/cuda."""
    return "/".join(Path(path).parent.parts[:3])


def report(seen: Iterable[tuple[str, str]]) -> bool:
    """Prints the number of detected changes in each directory. `seen` has paths and verdicts. Returns True if
    enough were detected."""
    killed, counted = Counter[str](), Counter[str]()
    for path, found in seen:
        if found in ("killed", "survived"):
            for folder in (folder_of(path), "all"):
                counted[folder] += 1
                killed[folder] += found == "killed"
    print("| folder | changes | noticed | share |\n|---|---|---|---|")
    is_enough = True
    for folder in [*sorted(counted.keys() - {"all"}), *(["all"] if counted else [])]:
        share = 100 * killed[folder] / counted[folder]
        print(f"| {folder} | {counted[folder]} | {killed[folder]} | {share:.0f} % |")
        if folder == "all" or counted[folder] >= FEW:
            is_enough &= share >= (LEAST if folder == "all" else LEAST_OF_FOLDER)
    return is_enough


def main() -> int:
    """Runs a sample; returns 1 if too few changes were detected."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", nargs="*", default=EVERYWHERE, help="files or directories; default: all")
    parser.add_argument("--sample", type=int, default=20, help="number of changes; 0: all; default 20")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample; default 1")
    parser.add_argument("--list", action="store_true", help="print the changes without testing them")
    args = parser.parse_args()
    paths = list(files_under(args.path))
    mutants = draw(paths, random.Random(args.seed)) if args.sample else all_changes(paths)
    if args.list:
        for mutant in itertools.islice(mutants, args.sample or None):
            print(f"{mutant.path}\n{mutant.change()}")
        return 0
    verdicts, seen = Verdicts(), list[tuple[str, str]]()
    whole, trusted = b"", set[str]()
    for mutant in mutants:
        if args.sample and sum(results in ("killed", "survived") for _, results in seen) >= args.sample:
            break
        results = verdicts.known.get(mutant.key, "")
        if not results:
            if not whole:
                copy_tree()
                expect_success("true")
                whole = library()
            results, failed = verdict(mutant, whole)
            if failed and failed not in trusted:
                expect_success(failed)
                trusted.add(failed)
            verdicts.add(mutant, results)
        seen.append((mutant.path, results))
        print(f"{results:<17} {mutant.path}:{mutant.line()}", flush=True)
        if results == "survived":
            print(mutant.change(), flush=True)
    return 0 if report(seen) else 1


if __name__ == "__main__":
    sys.exit(main())
