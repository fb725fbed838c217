"""What every test shares. A skip is no pass: each one is named at the end of the run, with its reason."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.getreports("skipped")
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"not observed: {report.nodeid}: {reason.removeprefix('Skipped: ')}")
    terminalreporter.write_line(f"not observed: {len(skipped)} tests")
