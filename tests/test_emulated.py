# SPDX-License-Identifier: Apache-2.0
"""The CUDA engines' kernels on a GPU in software: each one, with warps and copies in two orders, and the
tests of operations that reach the most code of kernels (tests/emulated_tests.txt). tests/emulated_parts.py
runs all tests of operations. With few multiprocessors each makes many tiles; 132 plan as an H200 does."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import emulated_gpu
import pytest
import tiers
from commands import run as run_command

ROOT = Path(__file__).parents[1]
SMALL_CASES = ["tests/small_cases.py"]
TWICE = ["--runs", "2"]
"""The second run finds what the first one left. A third, which a GPU has, would find that again."""
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
CHOSEN = [line.split(" ", 1) for line in (ROOT / "tests/emulated_tests.txt").read_text().splitlines()[2:]]
"""Pairs of a chip and a test, which tools/kernel_coverage.py choose writes."""
PIXELS = ["tests/ops/test_convolution.py", "-k", "pixels_outside_all_filters"]


def run(words: list[str], settings: dict[str, object]) -> subprocess.CompletedProcess[str]:
    """Runs a Python program on the emulated GPU."""
    env = os.environ | emulated_gpu.environment() | {name: str(value) for name, value in settings.items()}
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run([sys.executable, *words], env=env, cwd=ROOT, **both)


def check(words: list[list[str]], settings: list[dict[str, object]]) -> None:
    """Runs programs side by side; none may fail."""
    __tracebackhide__ = True  # pytest shows the test instead
    emulated_gpu.build()
    with ThreadPoolExecutor() as pool:
        for done in pool.map(run, words, settings):
            assert done.returncode == 0, done.stdout


def test_every_kernel() -> None:
    """Compiled without a warning and run."""
    runs = ["--runs", "2" if tiers.ALL else "1"]
    check([[*SMALL_CASES, *runs, "--part", part] for part in ("1/2", "2/2")], [{"EMULATOR_SEED": 1}] * 2)


@pytest.mark.nightly
def test_every_kernel_in_another_order() -> None:
    """Compiled to machine code too, and run twice, with few multiprocessors: an eighth, or all."""
    again = {"EMULATOR_SEED": 2, "EMULATOR_ASSEMBLES": 1, "FAKE_CUDA_LARGE": 16}
    parts = tiers.of_today([f"{i}/8" for i in range(1, 9)], 8)
    others = [[*SMALL_CASES, *TWICE, "--any-kernel", "--part", part] for part in parts]
    check(others, [again] * len(others))


def test_texts_of_kernels() -> None:
    """A subset of the configurations that no other test compiles, on chips of each generation."""
    settings: dict[str, object] = {"EMULATOR_CHECKS": 1, "WEFT_CACHE": "off"}
    parts = tiers.of_today([f"{i}/64" for i in range(1, 65)], 64)
    check([["tests/kernel_texts.py", "--part", part] for part in parts], [settings] * len(parts))


@pytest.mark.parametrize("chip", sorted({chip for chip, _ in CHOSEN}, key=int))
def test_chosen_operations(chip: str) -> None:
    tests = [test for own, test in CHOSEN if own == chip]
    halves = [half for half in (tests[::2], tests[1::2]) if half]
    settings = {"FAKE_CUDA_ARCH": chip, "WEFT_TEST_TIER": "all"}  # as when they were chosen
    check([[*PYTEST, *half] for half in halves], [settings] * len(halves))


@pytest.mark.nightly
def test_operations_with_few_multiprocessors() -> None:
    few = [{"WEFT_TEST_SAMPLE": part, "FAKE_CUDA_LARGE": 16} for part in tiers.of_today(("5/96", "53/96"), 2)]
    check([[*PYTEST, "tests/ops"]] * len(few), few)


def test_random_graphs() -> None:
    """New graphs (WEFT_TEST_DAY selects others), those at sizes next to thresholds, and those that failed."""
    new = ["tests/random_graphs.py", "--first", str(2_000_000 + tiers.DAY * 8), "--count", "8"]
    near = ["tests/random_graphs.py", "--first", str(2_500_000 + tiers.DAY * 60), "--count", "60", "--near"]
    failed = ["tests/test_random_graphs.py", "-k", "once_failed"]
    check([new, near, [*PYTEST, *failed]], [{}, {}, {"FAKE_CUDA_LARGE": 16}])


def test_random_cases_of_all_families() -> None:
    """The campaign that a GPU runs at large sizes, at small ones."""
    pytest.importorskip("torch")
    words = ["tests/campaign.py", "--work", "3e5", "--seconds", "600", "--count", "8", "--step", "2"]
    check([[*words, "--first", first] for first in ("0", "1")], [{}, {"FAKE_CUDA_LARGE": 16}])


def test_batch_norms_in_parts() -> None:
    """Their sums are computed after products, where the other engines do not compute them."""
    check([[*PYTEST, "tests/plan/test_batch_norms.py", "-k", "far or again-3 or residual-1"]], [{}])


@pytest.mark.nightly
def test_other_chips() -> None:
    """Ada and Blackwell, of which the emulator knows what all have in common with Hopper, and Ampere."""
    samples = {89: "7/288", 120: "151/288"}
    chips = [{"FAKE_CUDA_ARCH": arch, "WEFT_TEST_SAMPLE": sample} for arch, sample in samples.items()]
    decoding = [
        *SMALL_CASES,
        *TWICE,
        "--any-kernel",
        "--only",
        "decoding",
    ]  # without boxes of the copy engine
    check([*[[*PYTEST, "tests/ops"]] * len(chips), decoding], [*chips, {"FAKE_CUDA_ARCH": 80}])


def test_a_chip_of_few_multiprocessors() -> None:
    """Fewer than the largest cluster has blocks; rings of rows and batches are filled several times, and each
    thread of a sum has many blocks of its row."""
    products, rows = "tokens|bands|^attention on Hopper$", "batch norm|sums of one row|sum of odd columns"
    cases = f"{products}|{rows}|norm of long rows|pairs that share"
    check([[*SMALL_CASES, *TWICE, "--any-kernel", "--only", cases]], [{"FAKE_CUDA_LARGE": 4}])


def test_a_chip_of_little_shared_memory() -> None:
    """Rows and tiles that a block cannot keep are read again, and clusters share what is left."""
    cases = "norm of long rows|in stages|pairs that share|^attention decoding$|^batch norm$"
    check([[*SMALL_CASES, *TWICE, "--any-kernel", "--only", cases]], [{"FAKE_CUDA_SHARED": 64}])


@pytest.mark.nightly
def test_indices_of_64_bits() -> None:
    """Kernels for tensors of 2^31 elements or more, by a library that uses 64 bits from 8 elements on."""
    folder = ROOT / "build/index32"
    run_command("cmake", "-G", "Ninja", "-S", ".", "-B", folder, "-DCMAKE_C_FLAGS=-DWEFT_INDEX32_MAX=8")
    run_command("cmake", "--build", folder, "-j2", "--target", "weft", "--", "--quiet")
    moves, rows = (
        "map|transpose|concat|rng|slice|block scales|paged",
        "^rows|softmax|layer norm$|odd columns|instance",
    )
    cases = f"{moves}|{rows}|pool|mean|bilinear|matmul of few|conv of few|bias of odd rows"
    settings = {"WEFT_LIBRARY": folder / "libweft.so.1"}
    check([[*SMALL_CASES, "--any-kernel", "--only", cases]], [settings])


def test_an_older_chip() -> None:
    """Images of eight channels, which other kernels read on Hopper."""
    check([[*SMALL_CASES, *TWICE, "--any-kernel", "--only", "^stem of 8$"]], [{"FAKE_CUDA_ARCH": 80}])


def test_memory_that_is_less_aligned() -> None:
    """Every way of running on it, and kernels of each family; one engine declines such memory."""
    products, others = "matmul$|few|conv$|of 64$|stem of 8|NCHW$", "layer norm$|mean|map|concat|rng|int4"
    names = f"{products}|gradient on Hopper, unordered$|{others}"
    sample = [*SMALL_CASES, *TWICE, "--shift", "1", "--only", names]
    check([[*PYTEST, "tests/ops/test_unaligned.py"], sample], [{}, {}])


def test_pointwise_limits() -> None:
    """Zeros of both signs, infinities, NaN, and tiny and huge numbers, also on a chip without max.NaN."""
    values = ["tests/ops/test_pointwise.py", "-k", "limits or zeros or infinity"]
    samples = [{"WEFT_TEST_SAMPLE": "1/2"}, {"FAKE_CUDA_ARCH": 75, "WEFT_TEST_SAMPLE": "1/3"}]
    check([[*PYTEST, *values]] * 2, samples)


def test_tiles_without_a_step() -> None:
    check([[*PYTEST, *PIXELS]] * 2, [{"EMULATOR_SEED": seed, "FAKE_CUDA_LARGE": 16} for seed in (1, 2)])


def test_scores_beyond_a_polynomial() -> None:
    """For a soft cap, when a kernel computes only weights, some of which a mask hides."""
    names = "low_scores or (soft_caps and bf16 and not mask0)"
    check([[*PYTEST, "tests/ops/test_attention_modifiers.py", "-k", names]], [{}])


def test_gradients_of_a_soft_cap_in_f16() -> None:
    """Whose tanh is exact: generated cases that a tanh of one instruction failed."""
    check([["tests/attention_cases.py", number] for number in ("5007", "1000559")], [{}] * 2)


def test_attention_gradients_in_parts() -> None:
    """For every head size: each row of dK and dV is written. Some parts are added by few multiprocessors."""
    names = "grouped_queries_in_parts"
    words = [[*PYTEST, "tests/ops/test_attention.py", "-k", names]]
    check([*words, [*words[0][:-1], f"{names} and (192 or 64)"]], [{}, {"FAKE_CUDA_LARGE": 16}])


def test_kernels_as_one_cuda_graph() -> None:
    check([[*PYTEST, "tests/plan/test_replay.py", "tests/plan/test_cuda_graph.py"]], [{}])


def test_parts_are_read_in_place() -> None:
    settings = [{"EMULATOR_SEED": 1}, {"EMULATOR_SEED": 2, "FAKE_CUDA_LARGE": 16, "WEFT_TEST_SAMPLE": "1/3"}]
    check([[*PYTEST, "tests/plan/test_gathered.py"]] * 2, settings)


LARGE_PATHS = [
    "tests/ops/test_attention_decode.py::test_parts_of_every_tile[8-1]",
    "tests/ops/test_attention_decode.py::test_parts_of_every_tile[5-7]",
    "tests/ops/test_attention_decode.py::test_windows_that_begin_within_a_slice[2-28-0-4]",
    "tests/ops/test_attention_decode.py::test_windows_that_begin_within_a_slice[1-10-3-3]",
    "tests/ops/test_attention.py::test_backward_of_keys_and_values_of_other_heads[heads0]",
    "tests/ops/test_resample.py::test_beta_of_results_of_any_type",
]
"""Paths that the cases of a network reach at its sizes, and small ones with a knob or with unlike heads."""


def test_paths_of_large_sizes() -> None:
    check([[*PYTEST, *LARGE_PATHS], [*PYTEST, "tests/plan/test_in_place.py"]], [{}, {}])
