"""Which tests run: make check, make test and make test-all set WEFT_TEST_TIER. The same commit always runs
the same tests. The C tests select their cases in the same way (tests/c/harness.h).

    WEFT_TEST_TIER=check    the files of QUICK
    WEFT_TEST_TIER=test     the default: all but tests that are marked nightly, and a subset of the slow cases
    WEFT_TEST_TIER=all      everything; sets WEFT_TEST_ALL, which C programs and other processes read
    WEFT_TEST_DAY=3         another subset (default: 0)

    python tests/tiers.py     prints the files of QUICK; with the word c, the programs of tests/c next to them
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[1]
TIER = os.environ.get("WEFT_TEST_TIER", "test")
if TIER not in ("check", "test", "all"):
    raise SystemExit(f"WEFT_TEST_TIER={TIER}: no such tier: expected check, test or all.")
if TIER == "all":
    os.environ["WEFT_TEST_ALL"] = "1"

DAY = int(os.environ.get("WEFT_TEST_DAY", "0"))
ALL = bool(os.environ.get("WEFT_TEST_ALL"))

# By file. None: all tests; otherwise every n-th test. 20 s on two cores in total.
QUICK: dict[str, int | None] = {
    "tests/python/test_graph.py": None,
    "tests/python/test_plan.py": None,
    "tests/python/test_signatures.py": None,
    "tests/python/test_calls.py": None,
    "tests/python/test_buffers.py": None,
    "tests/python/test_generated.py": None,
    "tests/ops/test_matmul.py": 4,
    "tests/ops/test_convolution.py": 16,
    "tests/ops/test_attention.py": 64,
    "tests/ops/test_norm.py": 16,
    "tests/ops/test_pointwise.py": 16,
    "tests/ops/test_reduction.py": 8,
    "tests/ops/test_resample.py": 32,
    "tests/ops/test_softmax.py": 8,
    "tests/ops/test_moe.py": 16,
    "tests/ops/test_block_scale.py": 32,
    "tests/test_c.py": None,
}

# Programs of tests/c that take seconds, most of all under sanitizers, or need NVRTC: left out of make check.
SLOW_C = {
    *("test_large", "test_gemm", "test_sequences", "test_memory", "test_nvrtc", "test_threads"),
    *("test_expansions", "test_cpu_fast", "test_fork", "test_cuda_attention", "test_cuda_block_scale"),
    *("test_cuda_causal", "test_cuda_contraction", "test_cuda_grouped", "test_cuda_hopper_scales"),
    "test_cuda_gather",
    *("test_cuda_map", "test_cuda_move", "test_cuda_patches", "test_cuda_plan", "test_cuda_rows"),
    "test_cuda_scan",
    *("test_cuda_window", "test_kernel_cache"),
}

T = TypeVar("T")


def names_of_c(tier: str = TIER) -> list[str]:
    """The programs of tests/c that a tier runs."""
    names = sorted(path.stem for path in (ROOT / "tests/c").glob("*.c"))
    return [name for name in names if tier != "check" or name not in SLOW_C]


def choose(items: Sequence[Any]) -> list[Any]:
    """The tests of this tier, in their order."""
    if TIER == "all":
        return list(items)
    if TIER == "test":
        return [item for item in items if not item.get_closest_marker("nightly")]
    chosen = []
    for path, step in QUICK.items():
        chosen += [item for item in items if item.path == ROOT / path][:: step or 1]
    return [item for item in chosen if not item.get_closest_marker("slow")]


def of_today(items: Sequence[T], parts: int) -> Sequence[T]:
    """Returns every parts-th item, starting at number DAY."""
    return items if ALL else items[DAY % parts :: parts]


if __name__ == "__main__":
    print(*(names_of_c("check") if "c" in sys.argv[1:] else QUICK))
