# SPDX-License-Identifier: Apache-2.0
"""Which blocks of kernels ran: what the emulated GPU records, and what tools/kernel_coverage.py reports."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from emulated_kernel import LAUNCH_FAILED, Gpu, module

ROOT = Path(__file__).parents[2]
ODD = "and.b32 %r1, %r0, 1; setp.eq.s32 %p0, %r1, 1;"
BODY = f"""
.loc 1 10 0
{ODD}
@!%p0 bra EVEN;
.loc 1 11 0
mov.u32 %r2, 7;
.loc 1 12 0, function_name $L__info_string0, inlined_at 1 11 0
@%p1 mov.u32 %r3, 7;
EVEN:
.loc 2 1 0
mov.u32 %r4, 7;
"""


def load_tool() -> Any:
    """tools/kernel_coverage.py as a module."""
    spec = importlib.util.spec_from_file_location("kernel_coverage", ROOT / "tools/kernel_coverage.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["kernel_coverage"] = loaded  # dataclasses look their module up
    spec.loader.exec_module(loaded)
    return loaded


tool = load_tool()


def program(body: str) -> str:
    """A module with its source files and constants, as returned by the library in WEFT_NVRTC."""
    files = '\t.file\t1 "/somewhere/core/index.cuh"\n\t.file\t2 "/somewhere/k.cu"\n'
    return "// config int STAGES = 2\n" + module(body) + files + "\t.section\t.debug_str\n\t{\n.b8 95\n\t}\n"


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The records of one warp whose lanes, or whose even lanes, run BODY."""
    gpu = Gpu()

    def run(first: str) -> Any:
        monkeypatch.setenv("EMULATOR_COVERAGE", str(tmp_path))
        gpu.launch(program(first + "setp.ne.s32 %p1, 0, 0;" + BODY), ())
        return tool.read([tmp_path])

    return run


def missing(records: Any) -> list[Any]:
    (ran,) = records.programs.values()
    return [block for block, is_reached in ran.of_kernel_files() if not is_reached]


def test_blocks_that_ran_are_recorded(records: Any) -> None:
    """The odd lanes take both sides; what a false predicate guards is a block that did not run."""
    found = records("")
    (ran,) = found.programs.values()
    assert (ran.target, ran.entry, ran.config) == ("sm_90a", "k", ("int STAGES = 2",))
    assert missing(found) == [("sm_90a", "k", (("core/index.cuh", 12),))]
    assert {chip for chip, _ in found.hits} == {"sm_90a"}
    assert {test.split("::")[-1] for _, test in found.hits} == {"test_blocks_that_ran_are_recorded"}


def test_a_side_that_no_lane_takes_is_missing(records: Any) -> None:
    found = records("mov.u32 %r0, 2;")
    lines = [lines for _, _, lines in missing(found)]
    assert lines == [(("core/index.cuh", 11),), (("core/index.cuh", 12),)]


def test_report_names_the_lines_that_did_not_run(records: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tool.report(records(""), "core")
    printed = capsys.readouterr().out
    assert "| core/index.cuh | 1 | 3 | 1 | 3 | 1 | 66.7 % |" in printed
    text = (ROOT / "backend/engines/cuda/core/index.cuh").read_text().splitlines()[11].strip()
    assert f"! core/index.cuh:12: {text}  [k sm_90a]" in printed


def test_a_new_line_without_a_test_fails(
    records: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line 12 is not reached, which a table that has one such line allows."""
    found = records("")
    monkeypatch.setattr(tool, "TABLE", tmp_path / "testing.md")
    for allowed in (1, 0):
        tool.TABLE.write_text(f"{tool.HEAD}\n| core/index.cuh | 1 | 3 | 9 | 3 | {allowed} | 66.7 % |\n")
        (words,) = tool.faults(found) or [""]
        assert words.startswith("core/index.cuh: no test reaches 1 lines") == (not allowed)


def test_every_kernel_file_is_in_the_table() -> None:
    """A file that has no code of its own, such as one of constants, has no row."""
    rows, text = tool.committed(), tool.TABLE.read_text()
    assert sorted(tool.kernel_files() - rows.keys()) == re.findall(r"^- `(\S+\.cuh)`", text, re.MULTILINE)


def test_messages_name_the_source(records: Any, capfd: pytest.CaptureFixture[str]) -> None:
    gpu = Gpu()
    gpu.launch(program(".loc 1 33 0\nst.global.b32 [%d0], %r0;"), (0,), wants=LAUNCH_FAILED)
    assert "(index.cuh:33): st.global.b32" in capfd.readouterr().err


def test_the_tests_that_reach_most_in_the_least_time_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tests reach all blocks: a long one reaches both, so two short ones are the better choice. Blocks
    that the untimed tests reach need no other test."""
    chip, lines = "sm_80", [(("core/index.cuh", i),) for i in range(4)]
    records = tool.Records()
    records.programs["m", "k"] = tool.Program(chip, "k", (), lines)
    seconds = {(chip, "long"): 50.0, (chip, "short"): 1.0, (chip, "shorter"): 0.5, (chip, "useless"): 0.1}
    for test, bits in {"long": 7, "short": 1, "shorter": 2, "useless": 8, "-": 12}.items():
        records.hits[chip, test]["m", "k"] = bits
    monkeypatch.setattr(tool, "times", lambda: seconds)
    assert tool.choose(records, 100) == [(chip, "short"), (chip, "shorter")]


def test_parts_are_stored_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is run again after a failure and after a change, and not after a success."""
    import emulated_parts

    runs: list[tuple[int, int]] = []

    def run(chip: int, part: int, current: str) -> bool:
        runs.append((chip, part))
        folder = emulated_parts.folder_of(chip, part)
        folder.mkdir(parents=True, exist_ok=True)
        status = int(part == 2)
        (folder / "outcome.json").write_text(json.dumps({"digest": current, "status": status}))
        return not status

    monkeypatch.setattr(emulated_parts, "STATE", tmp_path)
    monkeypatch.setattr(emulated_parts, "run", run)
    monkeypatch.setattr(emulated_parts, "digest", lambda: "one")
    words = ["--chips", "75,90", "--parts", "1,2", "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", ["emulated_parts.py", *words])
    assert emulated_parts.main() == 1
    assert emulated_parts.main() == 1
    assert runs == [(75, 1), (75, 2), (90, 1), (90, 2), (75, 2), (90, 2)]
    monkeypatch.setattr(emulated_parts, "digest", lambda: "two")
    emulated_parts.main()
    assert runs[6:] == runs[:4]
