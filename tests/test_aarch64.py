# SPDX-License-Identifier: Apache-2.0
"""The CPU's engine on 64-bit ARM, with NEON, under QEMU: tests/foreign_cpu.py."""

from __future__ import annotations

import time

import foreign_cpu
import pytest
import random_graphs
from commands import run

pytestmark = pytest.mark.skipif(bool(foreign_cpu.missing()), reason=foreign_cpu.missing())
SHARE = {"cpu_fast": (1, 10)}  # a tenth of its cases: it takes 45 s for all


@pytest.mark.parametrize("name", foreign_cpu.PROGRAMS)
def test_program(name: str) -> None:
    program = foreign_cpu.build() / f"test_{name}"
    run(*foreign_cpu.EMULATOR, program, *SHARE.get(name, ()), WEFT_DEVICE="cpu")


def test_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the campaign's numbers; other ones each day."""
    monkeypatch.setenv(foreign_cpu.VARIABLE, "1")
    first = 2_000_000 + int(time.time() // 86400) * 100
    wrong = [random_graphs.check(number, ["cpu.fast"]) for number in range(first, first + 100)]
    assert not any(wrong), "\n".join(filter(None, wrong))
