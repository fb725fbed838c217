"""Results of the benchmark: rows, their roofline, and tables as CSV and as text."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.errors import BadParameterError
from weft.explain import amount

from benchmarks.case import Case

COLUMNS = ("case", "weft_us", "peer_us", "ratio", "error", "device", "date")


@dataclass(frozen=True)
class Row:
    """The measurement of a case or a ceiling; None if a number is missing."""

    case: str
    weft: float | None = None
    """In seconds, like the peer's."""
    peer: float | None = None
    error: float | None = None
    """‖weft − exact‖ / ‖exact‖ of the worst output."""
    device: str = ""
    """The device, and the peer that ran the case."""
    date: str = ""
    notes: tuple[str, ...] = ()
    """Why a number is missing."""

    @property
    def ratio(self) -> float | None:
        """The peer's time relative to Weft's: above 1, Weft is faster."""
        return self.peer / self.weft if self.peer and self.weft else None


# ---- The roof ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ceiling:
    """An upper bound for all cases: the rate of a large copy, or of a large matmul by the peer's own
    library."""

    name: str
    size: int
    """Bytes to copy, or rows and columns of square matrices."""
    arithmetic: str = ""
    """The matmul's type; empty for the copy."""

    @property
    def work(self) -> float:
        """Per run: bytes read and written, or operations."""
        return 2.0 * self.size**3 if self.arithmetic else 2.0 * self.size


CPU_CEILINGS: tuple[Ceiling, ...] = (
    Ceiling("ceiling/copy_256MiB", 256 << 20),
    Ceiling("ceiling/f32_1024", 1024, "f32"),
)
GPU_CEILINGS: tuple[Ceiling, ...] = (
    Ceiling("ceiling/copy_1GiB", 1 << 30),
    Ceiling("ceiling/bf16_8192", 8192, "bf16"),
    Ceiling("ceiling/tf32_8192", 8192, "tf32"),
)
TWICE = {"fp8": "bf16", "int8": "bf16"}
"""Tensor cores multiply 8-bit operands twice as fast as 16-bit ones."""
IN_FLOAT = ("bf16", "fp8")
"""Arithmetic that is done in float if it has no measured ceiling: on a CPU."""
CEILINGS = {ceiling.name: ceiling for ceiling in CPU_CEILINGS + GPU_CEILINGS}


@dataclass(frozen=True)
class Roof:
    """The rates that bound every case."""

    bandwidth: float
    """Bytes per second; infinite if unknown."""
    peaks: Mapping[str, float]
    """Operations per second by arithmetic; unknown ones are missing."""
    is_measured: bool
    """True for measured ceilings, False for the highest rates in the table."""

    def seconds(self, case: Case) -> float:
        """The minimum time of a case."""
        peak = self.peaks.get(case.arithmetic, math.inf)
        return max(case.flops / peak, case.bytes / self.bandwidth)


def roof_of(rows: Sequence[Row], cases: Mapping[str, Case]) -> Roof:
    """The roof from the ceilings among the rows; without them, the highest rates of any row."""
    rates: dict[str, float] = {}  # by arithmetic; bytes per second under ""
    is_measured = any(row.case in CEILINGS for row in rows)
    for row in rows:
        for arithmetic, work in _bounds(row, cases, is_measured):
            rate = work / min(seconds for seconds in (row.weft, row.peer) if seconds)
            rates[arithmetic] = max(rate, rates.get(arithmetic, 0.0))
    if is_measured:
        used = {cases[row.case].arithmetic for row in rows if row.case in cases}
        twice = {name: 2 * rates[half] for name, half in TWICE.items() if name in used and half in rates}
        alike = {name: rates["f32"] for name in IN_FLOAT if name in used and "f32" in rates}
        rates = alike | twice | rates
    return Roof(rates.pop("", math.inf), rates, is_measured)


def _bounds(row: Row, cases: Mapping[str, Case], is_measured: bool) -> list[tuple[str, float]]:
    """The rates that a row demonstrates, with its work."""
    if not (row.weft or row.peer) or is_measured is not (row.case in CEILINGS):
        return []
    if is_measured:
        return [(CEILINGS[row.case].arithmetic, CEILINGS[row.case].work)]
    if row.case not in cases:
        return []
    case = cases[row.case]
    is_product = case.group in ("matmul", "conv", "sdpa")
    return [("", case.bytes)] + ([(case.arithmetic, case.flops)] if is_product else [])


# ---- CSV ---------------------------------------------------------------------------------------------------


def _microseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.2f}"


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """Writes a table: times in µs, empty if a number is missing."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
            error = "" if row.error is None else f"{row.error:.1e}"
            times = _microseconds(row.weft), _microseconds(row.peer)
            writer.writerow([row.case, *times, ratio, error, row.device, row.date])


def read_csv(path: Path) -> list[Row]:
    """Reads a table; additional columns are ignored."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        lacking = [name for name in ("case", "weft_us", "peer_us") if name not in (reader.fieldnames or ())]
        if lacking:
            raise BadParameterError(
                f"bench: {path} has no column {', no column '.join(lacking)}. Give what --csv wrote."
            )
        return [_row(path, line) for line in reader]


def _row(path: Path, line: Mapping[str, str]) -> Row:
    def number(column: str, unit: float) -> float | None:
        text = line.get(column) or ""
        try:
            return float(text) * unit if text else None
        except ValueError:
            raise BadParameterError(
                f"bench: {path}: {line['case']}: {column} is '{text}', no number. Correct the table."
            ) from None

    figures = number("weft_us", 1e-6), number("peer_us", 1e-6), number("error", 1.0)
    return Row(line["case"], *figures, line.get("device") or "", line.get("date") or "")


# ---- Text --------------------------------------------------------------------------------------------------


def percent(share: float) -> str:
    """A percentage with at least two digits.

    >>> percent(0.97), percent(0.0314)
    ('97 %', '3.1 %')
    """
    return f"{share * 100:.0f} %" if share > 0.0995 else f"{share * 100:.1f} %"


class Table:
    """Lines of text with columns of fixed width, so that a row can be printed as soon as it is measured."""

    def __init__(self, names: Iterable[str], roof: Roof, peer: str = "") -> None:
        self.width = max(map(len, (*names, "case")))
        self.roof, self.peer = roof, peer

    def _line(self, case: str, *cells: str) -> str:
        weft, peer, ratio, *others = cells
        beside = f"{peer:>11}  {ratio:>5}  " if self.peer else ""
        flops, moved, share, error = others
        shown = f"{weft:>10}  {beside}{flops:>8}  {moved:>7}  {share:>8}  {error:>7}"
        return f"{case:<{self.width}}  {shown}".rstrip()

    def header(self) -> str:
        """The names of the columns."""
        return self._line(
            "case", "weft µs", f"{self.peer} µs", "ratio", "TFLOP/s", "TB/s", "roofline", "error"
        )

    def line(self, row: Row, case: Case) -> str:
        """Formats a row. The rates and the share of the roofline are those of Weft."""
        rates = ["-"] * 3
        if row.weft:
            flops, moved = case.flops / row.weft * 1e-12, case.bytes / row.weft * 1e-12
            share = self.roof.seconds(case) / row.weft
            rates = [f"{flops:.3g}" if case.flops else "-", f"{moved:.3g}", percent(share)]
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        error = "-" if row.error is None else f"{row.error:.1e}"
        times = (_microseconds(row.weft) or "-", _microseconds(row.peer) or "-")
        return self._line(row.case, *times, ratio, *rates, error)


def roof_lines(roof: Roof) -> list[str]:
    """The roof as text."""
    parts = [] if math.isinf(roof.bandwidth) else [f"memory {amount(roof.bandwidth, 'B/s')}"]
    parts += [f"{name} {amount(peak, 'FLOP/s')}" for name, peak in roof.peaks.items()]
    source = (
        "measured: a large copy, large products" if roof.is_measured else "the highest rates of this table"
    )
    return [f"roof: {', '.join(parts)} ({source})"] if parts else []


def summary(rows: Iterable[Row], cases: Mapping[str, Case], peer: str) -> list[str]:
    """For each group, the geometric mean and the worst of the ratios."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.ratio is not None and row.case in cases:
            groups.setdefault(cases[row.case].group, []).append(row)
    lines = []
    for group, members in groups.items():
        ratios = [row.ratio or 0.0 for row in members]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        worst = min(members, key=lambda row: row.ratio or 0.0)
        count = f"{len(members)} case{'' if len(members) == 1 else 's'}"
        lines.append(
            f"{group}: {peer} time / weft time is {mean:.3f} in the geometric mean of {count}, "
            f"{worst.ratio:.3f} in the worst ({worst.case.partition('/')[2]})"
        )
    return lines
