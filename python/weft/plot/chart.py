"""Line charts as SVG: panels stacked above a shared horizontal axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from weft.plot import svg

WIDTH, PANEL, GAP = 640.0, 150.0, 34.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 132.0, 52.0, 40.0
# Stroke colours of the curves, from the palette of svg.py.
STROKES = ("#3b82f6", "#f59e0b", "#14b8a6", "#f43f5e")


@dataclass
class Panel:
    """Curves that share a vertical axis: by name, one number per step starting at step 1."""

    label: str
    curves: Mapping[str, Sequence[float]]
    is_percent: bool = False


def ticks(least: float, most: float, count: int = 4) -> list[float]:
    """About `count` round numbers that span a range.

    >>> ticks(0.13, 2.31)
    [0.0, 1.0, 2.0, 3.0]
    """
    rough = max((most - least) / count, 1e-12)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return [round(i * step, 12) for i in range(first, max(last, first + 1) + 1)]


def _spread(positions: list[float], room: float) -> list[float]:
    """Vertical positions of labels, spread out so that they do not overlap."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    moved = list(positions)
    for before, i in pairwise(order):
        moved[i] = max(moved[i], moved[before] + room)
    return moved


def _panel(panel: Panel, top: float, steps: int) -> list[str]:
    values = [value for curve in panel.curves.values() for value in curve if math.isfinite(value)]
    marks = ticks(min(values), max(values)) if values else [0.0, 1.0]
    low, high = marks[0], marks[-1]

    def x_of(step: float) -> float:
        return LEFT + (step - 1) / max(steps - 1, 1) * (WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        return top + PANEL * (1 - (value - low) / (high - low))

    parts = [svg.text(LEFT, top - 10, panel.label, 12, anchor="start", bold=True)]
    for mark in marks:
        words = f"{mark * 100:.4g} %" if panel.is_percent else f"{mark:g}"
        parts.append(svg.path(f"M{LEFT:.1f} {y_of(mark):.1f}H{WIDTH - RIGHT:.1f}", "rule", 1))
        parts.append(svg.text(LEFT - 8, y_of(mark) + 4, words, 10, "soft", "end"))
    ends = _spread([y_of(curve[-1]) if curve else top for curve in panel.curves.values()], 14)
    for (name, curve), stroke, end in zip(panel.curves.items(), STROKES, ends, strict=False):
        points = [(x_of(i), y_of(value)) for i, value in enumerate(curve, 1) if math.isfinite(value)]
        data = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        if points:
            parts.append(f'<path d="{data}" fill="none" stroke="{stroke}" stroke-width="2"/>')
            parts.append(f'<circle cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="3" fill="{stroke}"/>')
            last = f"{curve[-1] * 100:.1f} %" if panel.is_percent else f"{curve[-1]:.3g}"
            parts.append(svg.text(WIDTH - RIGHT + 10, end + 4, f"{name} {last}", 11, anchor="start"))
    return parts


def chart(title: str, panels: Sequence[Panel], axis: str = "epoch", path: str | Path | None = None) -> str:
    """Draws panels of curves. Returns the SVG text, and writes it to a file if a path is given."""
    steps = max((len(curve) for panel in panels for curve in panel.curves.values()), default=1)
    bottom = TOP + len(panels) * (PANEL + GAP) - GAP
    parts = [svg.text(16, 26, title, 14, anchor="start", bold=True)]
    for i, panel in enumerate(panels):
        parts += _panel(panel, TOP + 12 + i * (PANEL + GAP), steps)
    for step in sorted({round(1 + k * (steps - 1) / 5) for k in range(6)}):
        x = LEFT + (step - 1) / max(steps - 1, 1) * (WIDTH - LEFT - RIGHT)
        parts.append(svg.text(x, bottom + 28, str(step), 10, "soft"))
    parts.append(svg.text((LEFT + WIDTH - RIGHT) / 2, bottom + 44, axis, 11, "soft"))
    text = svg.page(WIDTH, bottom + BOTTOM + 18, parts, title)
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
