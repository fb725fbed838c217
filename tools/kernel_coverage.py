#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reports the code of the CUDA kernels that the tests execute, from records of the emulated GPU.

    EMULATOR_COVERAGE=/tmp/c python tests/emulated_gpu.py python -m pytest tests/ops/test_norm.py
    python tools/kernel_coverage.py report /tmp/c                      # a row for each kernel file
    python tools/kernel_coverage.py report /tmp/c --missing attention  # and the lines that no test executed
    python tools/kernel_coverage.py programs /tmp/c --missing          # a row for each compiled program
    python tools/kernel_coverage.py report                             # all parts that emulated_parts.py ran
    python tools/kernel_coverage.py write                              # the table of docs/testing.md
    python tools/kernel_coverage.py check                              # fails if the table got worse
    python tools/kernel_coverage.py choose --seconds 90                # writes tests/emulated_tests.txt

A program is a kernel with its compile-time constants, for one chip. Its basic blocks come from its PTX, so
code that its constants exclude is not counted. A block ends at each branch, and predicated code is a block of
its own. Blocks of several programs are identical if chip, kernel and source lines are. A block is covered if
it ran in any of them; a line is covered if a block with an instruction of that line is.

`choose` selects tests of tests/ops for `make test` among those that emulated_parts.py ran: repeatedly the one
that covers the most additional blocks per second, until no test covers another one or the time budget is
spent. Blocks that other tests cover, such as the small cases, count as covered from the start.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import emulated_parts

ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "backend/engines/cuda"
PARTS = ROOT / "build/emulator/parts"
CHOSEN = ROOT / "tests/emulated_tests.txt"
TABLE = ROOT / "docs/testing.md"
OVERHEAD = 0.2  # seconds of overhead per test in addition to its reported time

Line = tuple[str, int]  # a kernel file and one of its lines
Block = tuple[str, str, tuple[Line, ...]]  # chip, kernel, lines


@dataclass
class Program:
    """A compiled kernel: for each block the lines of its instructions, and whether it ran."""

    target: str
    entry: str
    config: tuple[str, ...]
    blocks: list[tuple[Line, ...]] = field(default_factory=list)
    reached: int = 0  # one bit per block

    def block(self, i: int) -> Block:
        """The identity of a block in all programs: without the lines of generated text."""
        return self.target, self.entry, tuple(line for line in self.blocks[i] if line[0])

    def of_kernel_files(self) -> Iterator[tuple[Block, bool]]:
        """The blocks with a line of a kernel file, and whether they ran."""
        for i in range(len(self.blocks)):
            if (block := self.block(i))[2]:
                yield block, bool(self.reached >> i & 1)


@dataclass
class Records:
    """The records of several processes."""

    programs: dict[tuple[str, str], Program] = field(default_factory=dict)
    hits: dict[tuple[str, str], dict[tuple[str, str], int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )
    """By target and test: the executed blocks of each program."""

    def add_module(self, path: Path, files: set[str]) -> None:
        """Reads the description of a module."""
        target, config, names, program = "", [], {}, None
        for line in path.read_text().splitlines():
            word, _, rest = line.partition(" ")
            if word == "target":
                target = rest
            elif word == "config":
                config.append(rest)
            elif word == "file":
                number, _, name = rest.partition(" ")
                names[number] = own_name(name.strip('"'), files)
            elif word == "kernel":
                program = Program(target, rest, tuple(config))
                self.programs.setdefault((path.name, rest), program)
            elif program:
                sites = [site.split(":") for site in rest.split()]
                lines = {(names.get(number, ""), int(at)) for number, at in sites if at != "0"}
                program.blocks.append(tuple(sorted(lines)))

    def add_hits(self, path: Path) -> None:
        """Reads the blocks that a process executed."""
        for line in path.read_text().splitlines():
            test, module, entry, digits = line.split("\t")
            program = self.programs.get((module, entry))
            bits = int(digits[::-1] or "0", 16)
            if program:
                program.reached |= bits
                self.hits[program.target, test][module, entry] |= bits

    def add_folder(self, folder: Path, files: set[str]) -> None:
        """Reads all records of a directory."""
        known = {module for module, _ in self.programs}
        for path in sorted(folder.glob("modules/*")):
            if "." not in path.name and path.name not in known:
                self.add_module(path, files)
        for path in sorted(folder.glob("hits/*")):
            self.add_hits(path)


def kernel_files() -> set[str]:
    """The names by which kernels include each other."""
    return {str(path.relative_to(KERNELS)) for path in KERNELS.rglob("*.cuh")}


def own_name(path: str, files: set[str]) -> str:
    """A kernel file by the name of its include; empty if it is generated, or belongs to the compiler."""
    parts = path.split("/")
    names = ("/".join(parts[i:]) for i in range(len(parts)))
    return next((name for name in names if name in files), "")


def read(folders: Iterable[Path]) -> Records:
    """The records of several directories."""
    records, files = Records(), kernel_files()
    for folder in folders:
        records.add_folder(folder, files)
    return records


def outcomes() -> list[Path]:
    """The parts that tests/emulated_parts.py ran with the current kernels; other kernels have other lines."""
    paths = sorted(PARTS.glob("*/*/outcome.json"))
    current = emulated_parts.digest(emulated_parts.KERNELS)
    selected = [path for path in paths if json.loads(path.read_text()).get("kernels") == current]
    if len(selected) < len(paths):
        print(f"{len(paths) - len(selected)} parts ran with other kernels and do not count", file=sys.stderr)
    return selected


def part_folders() -> list[Path]:
    """The records of all parts that count."""
    return [path.parent / "coverage" for path in outcomes()]


# ---- Reports -----------------------------------------------------------------------------------------------


@dataclass
class FileCount:
    """The emitted blocks of a kernel file, and the covered ones."""

    programs: set[str] = field(default_factory=set)
    blocks: set[Block] = field(default_factory=set)
    reached: set[Block] = field(default_factory=set)

    def lines(self, name: str, blocks: set[Block]) -> set[int]:
        """The lines of blocks that are in the file."""
        return {line for _, _, lines in blocks for file, line in lines if file == name}


def count_files(records: Records) -> dict[str, FileCount]:
    """All kernel files by name."""
    counts: dict[str, FileCount] = defaultdict(FileCount)
    for (module, _), program in records.programs.items():
        for block, is_reached in program.of_kernel_files():
            for name in {name for name, _ in block[2]}:
                counts[name].programs.add(module)
                counts[name].blocks.add(block)
                if is_reached:
                    counts[name].reached.add(block)
    return counts


def percent(part: int, whole: int) -> str:
    """A percentage as text."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


HEAD = "| file | programs | blocks | not reached | lines | not reached | reached blocks |"


def row(name: str, programs: int, blocks: int, reached: int, lines: int, own: int) -> str:
    """A row of the table of files."""
    return (
        f"| {name} | {programs} | {blocks} | {blocks - reached} | {lines} | {lines - own} "
        f"| {percent(reached, blocks)} |"
    )


def table(counts: dict[str, FileCount]) -> list[str]:
    """A row for each kernel file, and one for all."""
    rows, lines, own = [HEAD, "|" + "---|" * 7], 0, 0
    for name, count in sorted(counts.items()):
        emitted, reached = (len(count.lines(name, blocks)) for blocks in (count.blocks, count.reached))
        rows.append(row(name, len(count.programs), len(count.blocks), len(count.reached), emitted, reached))
        lines, own = lines + emitted, own + reached
    blocks = {block for count in counts.values() for block in count.blocks}
    ran = {block for count in counts.values() for block in count.reached}
    programs = {program for count in counts.values() for program in count.programs}
    return [*rows, row("all", len(programs), len(blocks), len(ran), lines, own)]


def report(records: Records, missing: str | None) -> None:
    """Prints a row for each kernel file, and the uncovered blocks of those whose names match."""
    counts = count_files(records)
    print("\n".join(table(counts)))
    if never := without_code(counts):
        print(f"\nno program has code of: {', '.join(never)}")
    for name, count in sorted(counts.items()):
        if missing is not None and missing in name:
            print_missing(name, count)


def without_code(counts: dict[str, FileCount]) -> list[str]:
    """Kernel files of which no program has code: their functions are not called, or are constants."""
    return sorted(kernel_files() - set(counts))


def write_table(records: Records) -> None:
    """Writes the table into its page, and the files that have no row."""
    counts, text = count_files(records), TABLE.read_text()
    rows = "\n".join(table(counts))
    names = "".join(f"\n- `{name}`" for name in without_code(counts))
    start, end = text.index(HEAD), text.index("\n\n## Coverage of the C library")
    words = "\n\nNo measured program has code of:\n" + names if names else ""
    TABLE.write_text(text[:start] + rows + words + text[end:])


def committed() -> dict[str, int]:
    """By kernel file: the number of uncovered lines in the committed table of docs/testing.md."""
    rows = re.findall(r"^\| (\S+\.cuh) \|(.*)\|$", TABLE.read_text(), re.MULTILINE)
    return {name: int(cells.split("|")[4]) for name, cells in rows}


def faults(records: Records) -> list[str]:
    """Kernel files with more uncovered lines than in the committed table."""
    found, allowed = [], committed()
    for name, count in sorted(count_files(records).items()):
        missing = len(count.lines(name, count.blocks)) - len(count.lines(name, count.reached))
        if missing > (least := allowed.get(name, 0)):
            found.append(
                f"{name}: no test reaches {missing} lines: expected at most {least}, as in docs/testing.md. "
                f"Add a test for those that kernel_coverage.py report --missing {name} lists."
            )
    return found


def print_missing(name: str, count: FileCount) -> None:
    """Prints the uncovered blocks of a file by their first line in it."""
    text = (KERNELS / name).read_text().splitlines()
    found: dict[int, list[Block]] = defaultdict(list)
    for block in count.blocks - count.reached:
        found[min(line for file, line in block[2] if file == name)].append(block)
    reached = count.lines(name, count.reached)
    for line, blocks in sorted(found.items()):
        kernels = ", ".join(sorted({f"{entry} {target}" for target, entry, _ in blocks}))
        mark = "  " if line in reached else "! "
        print(f"{mark}{name}:{line}: {text[line - 1].strip()}  [{kernels}]")


def programs(records: Records, missing: bool) -> None:
    """Prints a row for each program: its blocks, its constants, and the uncovered blocks."""
    for (module, entry), program in sorted(records.programs.items(), key=lambda item: item[1].entry):
        ran = [bool(program.reached >> i & 1) for i in range(len(program.blocks))]
        print(f"{entry} {program.target} {module}: {sum(ran)} of {len(ran)}, {percent(sum(ran), len(ran))}")
        print(f"    {'; '.join(program.config)}")
        for block, is_reached in zip(program.blocks, ran, strict=True):
            if missing and not is_reached:
                lines = " ".join(f"{name or 'generated'}:{line}" for name, line in block)
                print("    not reached:", lines)


# ---- Choosing tests ----------------------------------------------------------------------------------------


def blocks_by_test(records: Records) -> dict[tuple[str, str], set[Block]]:
    """The blocks that each test covers on each chip."""
    found: dict[tuple[str, str], set[Block]] = {}
    for chip_and_test, reached in records.hits.items():
        blocks = found[chip_and_test] = set()
        for key, bits in reached.items():
            program = records.programs[key]
            blocks |= {program.block(i) for i in range(len(program.blocks)) if bits >> i & 1}
    return found


def chip_of(target: str) -> str:
    """sm_90 for sm_90a."""
    return target.rstrip("af")


def times() -> dict[tuple[str, str], float]:
    """Seconds of each chip and test that tests/emulated_parts.py ran."""
    results = {}
    for path in outcomes():
        for test, seconds in json.loads(path.read_text())["times"].items():
            results[path.parts[-3], test] = seconds
    return results


def choose(records: Records, seconds: float) -> list[tuple[str, str]]:
    """A set of tests that covers many blocks in little time, selected by the greedy algorithm for set
    cover."""
    blocks, known = blocks_by_test(records), times()
    time_of = {key: known.get((chip_of(key[0]), key[1])) for key in blocks}
    reached: set[Block] = set()
    for key in [key for key in blocks if time_of[key] is None]:
        reached |= blocks.pop(key)
    cost = {key: seconds + OVERHEAD for key, seconds in time_of.items() if seconds is not None}
    chosen: list[tuple[str, str]] = []

    def gain(key: tuple[str, str]) -> float:
        return len(blocks[key] - reached) / cost[key]

    while blocks and seconds > 0:
        best = max(sorted(blocks), key=gain)
        if not blocks[best] - reached:
            break
        reached |= blocks.pop(best)
        seconds -= cost[best]
        chosen.append(best)
    return sorted(chosen)


def write_chosen(chosen: list[tuple[str, str]]) -> None:
    """Writes the list that tests/test_emulated.py runs."""
    head = (
        "# Tests of tests/ops that `make test` runs on the emulated GPU: a chip and a test. Written by\n"
        "# tools/kernel_coverage.py choose: together they reach the blocks that all measured tests reach.\n"
    )
    CHOSEN.write_text(head + "".join(f"{chip_of(target)[3:]} {test}\n" for target, test in chosen))


def main() -> int:
    """Runs a subcommand."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["report", "programs", "write", "check", "choose"])
    parser.add_argument("folder", type=Path, nargs="*", help="by default those of emulated_parts.py")
    parser.add_argument("--missing", nargs="?", const="", help="print uncovered lines (of matching files)")
    parser.add_argument("--seconds", type=float, default=240, help="time of the chosen tests; default 240")
    args = parser.parse_args()
    records = read(args.folder or part_folders())
    if not records.programs:
        sys.exit("no records. Run python tests/emulated_parts.py, or set EMULATOR_COVERAGE for other tests.")
    if args.command == "report":
        report(records, args.missing)
    elif args.command == "programs":
        programs(records, args.missing is not None)
    elif args.command == "write":
        write_table(records)
    elif args.command == "check":
        results = faults(records)
        print("\n".join(results) or "all kernel files are covered as recorded in docs/testing.md")
        return 1 if results else 0
    else:
        write_chosen(chosen := choose(records, args.seconds))
        print(f"{CHOSEN.relative_to(ROOT)}: {len(chosen)} tests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
