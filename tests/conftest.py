"""Fixtures and hooks of all tests. A skip is not a pass: each one is listed at the end of the run, with its
reason."""

from __future__ import annotations

import os
from collections import Counter

import poison
import pytest
import tiers

poison.heap()

# Threads that have no work sleep, as other tests run on the same cores: PyTorch's, which Weft takes where
# they are, and NumPy's.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Graphs without a device are planned for the device under test, even if there is a GPU.
os.environ.setdefault("WEFT_DEVICE", os.environ.get("WEFT_TEST_DEVICE", "cpu"))


# A kernel that does not compile fails the test (weft.CompilationWarning), even if a fallback computes the
# result.
os.environ.setdefault("PYTHONWARNINGS", "error:a kernel of Weft does not compile")


# "3/12": of all tests every 12th, from the 3rd on.
SAMPLE = os.environ.get("WEFT_TEST_SAMPLE", "1/1")


# Files with few but long tests, longest first: by the number of their tests they would start too late.
LONG = (
    *("test_emulated.py", "test_c.py", "test_hopper_tiles.py", "test_hopper_attention.py"),
    *("test_foreign_cpu.py", "test_repository.py", "test_races.py", "test_plans.py", "test_benchmarks.py"),
    *("test_totals.py", "test_compile.py", "test_op_samples.py", "test_operators.py"),
)


def longest_first(items: list[pytest.Item]) -> None:
    """Orders files so that the last ones to run are short, and no core is left idle at the end."""
    tests = Counter(item.path for item in items)
    names = {name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: (names.get(item.path.name, len(LONG)), -tests[item.path], str(item.path)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first, step = map(int, SAMPLE.split("/"))
    kept = tiers.choose(items)[first - 1 :: step]
    if len(kept) < len(items):
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept
    longest_first(items)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Appends each failure to the file $WEFT_TEST_FAILURES at once, so that a run that is stopped leaves the
    reasons."""
    path = os.environ.get("WEFT_TEST_FAILURES")
    if report.failed and path and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{report.nodeid} {report.when}\n{report.longreprtext}\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.getreports("skipped")
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"not observed: {report.nodeid}: {reason.removeprefix('Skipped: ')}")
    tier = f"WEFT_TEST_TIER={tiers.TIER} WEFT_TEST_DAY={tiers.DAY}"
    terminalreporter.write_line(f"not observed: {len(skipped)} tests; tests of {tier}")
