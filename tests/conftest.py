"""What every test shares. A skip is no pass: each one is named at the end of the run, with its reason."""

from __future__ import annotations

import os

import pytest

# Graphs that name no device are planned for the one under test, also where there is a GPU.
os.environ.setdefault("WEFT_DEVICE", os.environ.get("WEFT_TEST_DEVICE", "cpu"))


# "3/12": of all tests every 12th, from the 3rd on.
SAMPLE = os.environ.get("WEFT_TEST_SAMPLE", "1/1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first, step = map(int, SAMPLE.split("/"))
    kept = items[first - 1 :: step]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.getreports("skipped")
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"not observed: {report.nodeid}: {reason.removeprefix('Skipped: ')}")
    terminalreporter.write_line(f"not observed: {len(skipped)} tests")
