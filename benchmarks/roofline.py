"""Rooflines as SVG, one for each family of cases and each data type: operations per byte against operations
per second, both logarithmic. Every case is a numbered point under the roof defined by memory bandwidth and
peak rate; a peer's points are hollow, and the names are listed in columns below.

Points of similar cases are close together: a number is placed next to its point if there is room, otherwise
further away, and omitted if there is no room at all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from weft.explain import amount
from weft.plot import svg

from benchmarks.case import GROUPS, Case
from benchmarks.tables import IN_FLOAT, TWICE, Roof, Row, percent

WIDTH, PLOT, HEADING = 860.0, 260.0, 66.0
LEFT, RIGHT, TOP, BOTTOM = 66.0, 92.0, 44.0, 60.0  # margins of a panel
FEW = 2  # panels with at most this number of points are replaced by the list
DOT, NUMBER_SIZE, NAME_SIZE, LINE = 3.6, 9.0, 10.5, 16.5
# Columns of the list: the start of the name, and the ends of the rate, Weft's share and the peer's share.
NAME_AT, RATE_AT, SHARE_AT, PEER_AT, COLUMN = 26.0, 300.0, 346.0, 392.0, 414.0
_PALETTE = (
    "#3b82f6",
    "#f59e0b",
    "#ec4899",
    "#14b8a6",
    "#8b5cf6",
    "#84cc16",
    "#94a3b8",
    "#a16207",
    "#f43f5e",
    "#0e7490",
)
STROKES = dict(zip(GROUPS, _PALETTE, strict=True))

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True)
class Entry:
    """A row and its case."""

    number: int
    case: Case
    row: Row

    @property
    def is_drawn(self) -> bool:
        """True if it has a point: it has a time and operations."""
        return bool(self.case.flops and self.row.weft)

    @property
    def stroke(self) -> str:
        """Its group's colour."""
        return STROKES[self.case.group]


class Axes:
    """Maps intensities and rates to coordinates."""

    def __init__(self, entries: Sequence[Entry], roof: Roof) -> None:
        xs = [entry.case.intensity for entry in entries] or [1.0]
        ys = [entry.case.flops / seconds for entry in entries for seconds in _times(entry.row)] or [1e12]
        used = {entry.case.arithmetic for entry in entries}
        # A peak far above the memory roof of the cases would compress them.
        near = max(xs) * roof.bandwidth * 2
        self.peaks = {name: peak for name, peak in roof.peaks.items() if name in used and peak < near}
        ys += self.peaks.values()
        self.left, self.right = min(xs) / 1.6, max(xs) * 1.6
        self.low, self.high = min(ys) / 1.6, max(ys) * 1.6

    def x(self, intensity: float) -> float:
        """The x coordinate of an intensity."""
        share = math.log(intensity / self.left) / math.log(self.right / self.left)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, rate: float) -> float:
        """The y coordinate of a rate."""
        return TOP + PLOT * (1 - math.log(rate / self.low) / math.log(self.high / self.low))


def _times(row: Row) -> list[float]:
    return [seconds for seconds in (row.weft, row.peer) if seconds]


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten; only the powers if the range is large.

    >>> ticks(0.3, 12), ticks(1, 1e6)
    ([0.5, 1.0, 2.0, 5.0, 10.0], [1.0, 10.0, 100.0, 1000.0, 10000.0, 100000.0, 1000000.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) <= 5 else (1,)
    marks = [float(f"{step}e{power}") for power in powers for step in steps]
    return [mark for mark in marks if low <= mark <= high]


# ---- The plot ----------------------------------------------------------------------------------------------


def _grid(axes: Axes) -> list[str]:
    bottom, right = TOP + PLOT, WIDTH - RIGHT
    parts = []
    for mark in ticks(axes.left, axes.right):
        parts.append(svg.path(f"M{axes.x(mark):.1f} {TOP:.1f}V{bottom:.1f}", "rule", 1))
        parts.append(svg.text(axes.x(mark), bottom + 15, f"{mark:g}", 10, "soft"))
    for mark in ticks(axes.low, axes.high):
        parts.append(svg.path(f"M{LEFT:.1f} {axes.y(mark):.1f}H{right:.1f}", "rule", 1))
        parts.append(svg.text(LEFT - 8, axes.y(mark) + 4, amount(mark), 10, "soft", "end"))
    parts.append(svg.text((LEFT + right) / 2, bottom + 33, "operations per byte", 11, "soft"))
    parts.append(svg.text(LEFT, TOP - 10, "FLOP/s", 11, "soft", "end"))
    return parts


def _roof(axes: Axes, roof: Roof) -> tuple[list[str], list[Box]]:
    """The lines of the roof with their labels, and the area that the labels occupy."""
    parts, taken, right = [], [], WIDTH - RIGHT
    shown = {name: peak for name, peak in axes.peaks.items() if axes.low < peak < axes.high}
    start = max(axes.left, axes.low / roof.bandwidth)
    end = min(axes.right, max(shown.values(), default=axes.high) / roof.bandwidth)
    if start < end:
        x1, x2 = axes.x(start), axes.x(end)
        y1, y2 = axes.y(start * roof.bandwidth), axes.y(end * roof.bandwidth)
        words = f"memory {amount(roof.bandwidth, 'B/s')}"
        width = svg.text_width(words, 11, bold=True)
        x, y = (x1 + x2) / 2 - 6, (y1 + y2) / 2 - 6
        if x - width < LEFT:  # no room to the left of the slope, so below it
            x, y = (x1 + x2) / 2 + 6 + width, (y1 + y2) / 2 + 14
        parts.append(svg.path(f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", "line", 1.6))
        parts.append(svg.text(x, y, words, 11, anchor="end", bold=True))
        taken.append((x - width, y - 11, x, y + 3))
    for name, peak in shown.items():
        x, y = axes.x(max(peak / roof.bandwidth, axes.left)), axes.y(peak)
        parts.append(svg.path(f"M{min(x, right):.1f} {y:.1f}H{right:.1f}", "line", 1.6))
        parts.append(svg.text(right + 6, y - 1, name, 11, anchor="start", bold=True))
        parts.append(svg.text(right + 6, y + 12, amount(peak, "FLOP/s"), 10, "soft", "start"))
    return parts, taken


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _around(x: float, y: float) -> Iterator[tuple[float, float]]:
    """Candidate centres of a number, the nearest first: right, left, above, below, then diagonal."""
    for distance in (9.5, 15.0, 22.0, 30.0, 40.0, 52.0, 66.0, 82.0):
        for eighth in (0, 4, 6, 2, 7, 1, 5, 3):
            angle = eighth * math.pi / 4
            yield x + distance * math.cos(angle), y + distance * math.sin(angle)


def place_numbers(
    places: Sequence[tuple[float, float]], taken: Sequence[Box], widths: Sequence[float]
) -> list[Box | None]:
    """A box per point that does not overlap a point, another box or an occupied area, and is inside the plot;
    None if there is no room."""
    room = [(x - DOT, y - DOT, x + DOT, y + DOT) for x, y in places] + list(taken)
    boxes: list[Box | None] = []
    for (x, y), width in zip(places, widths, strict=True):
        around = ((at - width / 2, high - 5, at + width / 2, high + 5) for at, high in _around(x, y))
        box = next((b for b in around if _is_inside(b) and not any(_overlap(b, r) for r in room)), None)
        room += [box] if box else []
        boxes.append(box)
    return boxes


def _is_inside(box: Box) -> bool:
    return box[0] > LEFT and box[2] < WIDTH - RIGHT and box[1] > TOP and box[3] < TOP + PLOT


def _circle(x: float, y: float, stroke: str, is_hollow: bool) -> str:
    """A point with a fill or a ring in the page's colour, so that overlapping points can be distinguished."""
    style = f"stroke:{stroke};stroke-width:1.4" if is_hollow else f"fill:{stroke};stroke-width:.8"
    return f'<circle class="w-page" cx="{x:.1f}" cy="{y:.1f}" r="{DOT:g}" style="{style}"/>'


def _points(axes: Axes, entries: Sequence[Entry], taken: list[Box]) -> list[str]:
    """Lines that connect a case's points, above them the peers' points, above these Weft's."""
    places = [(axes.x(e.case.intensity), axes.y(e.case.flops / (e.row.weft or 1.0))) for e in entries]
    lines, behind, parts = [], [], []
    for entry, (x, y) in zip(entries, places, strict=True):
        if entry.row.peer:
            other = axes.y(entry.case.flops / entry.row.peer)
            words = f"{entry.case.name}, peer: {amount(entry.row.peer, 's')}"
            lines.append(svg.path(f"M{x:.1f} {y:.1f}V{other:.1f}", "rule", 1))
            behind.append(svg.titled(words, _circle(x, other, entry.stroke, is_hollow=True)))
            taken = [*taken, (x - DOT, other - DOT, x + DOT, other + DOT)]
    widths = [svg.text_width(str(entry.number), NUMBER_SIZE) + 2 for entry in entries]
    for entry, (x, y), box in zip(entries, places, place_numbers(places, taken, widths), strict=True):
        words = f"{entry.case.name}: {amount(entry.row.weft or 0.0, 's')}"
        parts.append(svg.titled(words, _circle(x, y, entry.stroke, is_hollow=False)))
        if box is None:
            continue
        at, height = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        if math.hypot(at - x, height - y) > 12:
            lines.append(svg.path(f"M{x:.1f} {y:.1f}L{at:.1f} {height:.1f}", "rule", 1))
        parts.append(svg.text(at, height + 3.2, str(entry.number), NUMBER_SIZE))
    return lines + behind + parts


# ---- Text --------------------------------------------------------------------------------------------------


def _heading(device: str, note: str, has_peer: bool) -> list[str]:
    """The heading for all panels."""
    title = svg.cut(f"Roofline: {device}", WIDTH - 110, 14, bold=True)
    parts = [svg.text(16, 26, title, 14, anchor="start", bold=True)]
    parts.append(svg.text(16, 45, note, 11, "soft", "start"))
    if has_peer:
        words = "hollow: the peer"
        parts.append(svg.text(WIDTH - 22, 45, words, 11, anchor="end"))
        parts.append(_circle(WIDTH - 31 - svg.text_width(words, 11), 41, "#64748b", is_hollow=True))
    return parts


def _list_row(entry: Entry, roof: Roof, x: float, y: float, has_peer: bool) -> list[str]:
    """Number, name, rate of the limiting resource, and the shares of the roofline."""
    case, weft, peer = entry.case, entry.row.weft, entry.row.peer
    least = roof.seconds(case)
    is_bound_by_memory = least * roof.bandwidth <= case.bytes * 1.0001
    rate = "-"
    if weft:
        work = case.bytes if is_bound_by_memory else case.flops
        rate = amount(work / weft, "B/s" if is_bound_by_memory else "FLOP/s")
    number = str(entry.number) if entry.is_drawn else "–"
    style = f'font-size="{NAME_SIZE:g}" font-weight="600" text-anchor="end" fill="{entry.stroke}"'
    name = svg.cut(case.name, RATE_AT - NAME_AT - 78, NAME_SIZE)
    parts = [f'<text x="{x + NAME_AT - 8:.1f}" y="{y:.1f}" {style}>{escape(number)}</text>']
    parts.append(svg.text(x + NAME_AT, y, name, NAME_SIZE, anchor="start"))
    parts.append(svg.text(x + RATE_AT, y, rate, NAME_SIZE, "soft", "end"))
    shares = [(weft, SHARE_AT, "text")] + ([(peer, PEER_AT, "soft")] if has_peer else [])
    for seconds, at, tone in shares:
        words = percent(least / seconds) if seconds else "-"
        parts.append(svg.text(x + at, y, words, NAME_SIZE, tone, "end"))
    return parts


def _list(entries: Sequence[Entry], roof: Roof, top: float) -> tuple[list[str], float]:
    """The cases in two columns, and the lower edge."""
    rows, has_peer = math.ceil(len(entries) / 2), any(entry.row.peer for entry in entries)
    heads = [("rate", RATE_AT), ("weft", SHARE_AT)] + ([("peer", PEER_AT)] if has_peer else [])
    parts = []
    for column in range(min(2, len(entries))):
        x = 16 + column * COLUMN
        for words, at in heads:
            parts.append(svg.text(x + at, top, words, NAME_SIZE, "soft", "end"))
        for i, entry in enumerate(entries[column * rows : (column + 1) * rows], 1):
            parts += _list_row(entry, roof, x, top + i * LINE, has_peer)
    return parts, top + (rows + 1) * LINE


def _panel(title: str, rows: Sequence[tuple[Case, Row]], roof: Roof) -> tuple[list[str], float]:
    """A family's cases of one type, and their height: the plot, if it adds information to the list, and the
    list."""
    entries: list[Entry] = []
    for case, row in rows:
        entries.append(Entry(1 + sum(entry.is_drawn for entry in entries), case, row))
    drawn = [entry for entry in entries if entry.is_drawn]
    parts = [svg.text(16, 18, title, 12, anchor="start", bold=True)]
    top = 36.0
    if len(drawn) > FEW:
        axes, top = Axes(drawn, roof), TOP + PLOT + BOTTOM
        lines, taken = _roof(axes, roof)
        parts += [*_grid(axes), *lines, *_points(axes, drawn, taken)]
    words, bottom = _list(entries, roof, top)
    return [*parts, *words], bottom


def _derived(roof: Roof, drawn: Collection[str]) -> list[str]:
    """Notes about types whose ceiling is derived from a measured one."""
    peaks = roof.peaks if roof.is_measured else {}
    twice = [name for name, half in TWICE.items() if half in peaks and peaks.get(name) == 2 * peaks[half]]
    alike = [name for name in IN_FLOAT if name in peaks and peaks[name] == peaks.get("f32")]
    twice, alike = ([name for name in names if name in drawn] for names in (twice, alike))
    results = {"twice bf16": twice, "as f32": alike}
    return [f"{', '.join(names)}: {words}" for words, names in results.items() if names]


def picture(rows: Sequence[Row], cases: Mapping[str, Case], roof: Roof) -> str:
    """Draws the rows whose cases are known."""
    known = [(cases[row.case], row) for row in rows if row.case in cases]
    panels: dict[tuple[str, str], list[tuple[Case, Row]]] = {}
    for case, row in known:
        panels.setdefault((case.group, case.arithmetic), []).append((case, row))
    device = dict.fromkeys(part for _, row in known for part in row.device.split(", ") if part)
    dates = sorted({row.date for _, row in known if row.date})
    source = "ceilings measured" if roof.is_measured else "roof: the highest rates of this table"
    sources = [source, *_derived(roof, {type_ for _, type_ in panels})]
    when = " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]]))
    note = " · ".join([*([when] if when else []), *sources, "percentages: share of the roof"])
    parts, bottom = _heading(", ".join(device), note, any(row.peer for _, row in known)), HEADING
    for (group, type_), inside in sorted(panels.items(), key=lambda item: GROUPS.index(item[0][0])):
        drawn, height = _panel(f"{group}, {type_}", inside, roof)
        parts.append(f'<svg y="{bottom:.0f}" width="{WIDTH:.0f}" height="{height:.0f}">')
        parts += [*drawn, "</svg>"]
        bottom += height + 14
    return svg.page(WIDTH, bottom, parts, "Roofline of the benchmark")
