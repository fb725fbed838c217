"""Measures the choice of tiles: times the plan that the heuristics recommend and plans with every other tile
of its kernel family. Results are not checked here."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.enums import knob_type
from weft.errors import WeftError

from benchmarks.case import Case
from benchmarks.chosen import Chosen, clock, engine_of, in_turns
from benchmarks.measure import Bench, named

COLUMNS = ("case", "chosen_us", "best_us", "ratio", "tiles", "chosen", "best", "device", "date")
FINALISTS = 4  # number of the fastest plans that are timed again,
TURNS = 3  # in alternation


@dataclass(frozen=True)
class Choice(Chosen):
    """Tiles by their plans' descriptions; of those that were not selected, the fastest."""

    count: int
    """The number of tiles to choose from."""


def measure(bench: Bench, case: Case) -> Choice:
    """Times the selected plan and every other tile, first once each, then the fastest several times."""
    with named(f"{case.name} failed before running a tile"):
        side, sets = bench.side(case), bench.sets(case, bench.inputs(case))
        plans = build(side.graph)
    seconds = clock(bench, case, side, sets, plans)
    chosen, *others = plans
    first = {what: seconds(what) for what in (chosen, *others, chosen)}  # a device is fast until it is hot
    finalists = [chosen, *sorted(others, key=first.__getitem__)[:FINALISTS]]
    return Choice(case.name, in_turns(seconds, finalists, TURNS), len(plans))


def build(graph: Any) -> dict[str, int]:
    """The indices of the plans to time, by their descriptions; the selected one first."""
    engine = engine_of(graph)
    start = graph.get_execution_plan_count()
    for knob in graph.get_knobs_for_engine(engine):
        if knob.type is knob_type.TILE_SIZE:
            for value in range(max(knob.min, 1), knob.max + 1):
                with suppress(WeftError):  # a tile that does not fit
                    graph.create_execution_plan(engine, {knob.type: value})
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # compilers run in parallel
        built = [0, *pool.map(lambda i: _try(graph, i), range(start, graph.get_execution_plan_count()))]
    plans: dict[str, int] = {}
    for index in built:
        if index is not None:
            graph.build_plan_at_index(index)
            steps = graph.plan.report["steps"]
            plans.setdefault("; ".join(step["detail"] or step["family"] for step in steps), index)
    return plans


def _try(graph: Any, index: int) -> int | None:
    """The index, if that plan can be built."""
    try:
        graph.build_plan_at_index(index)
    except WeftError:
        return None
    return index


# ---- Output ------------------------------------------------------------------------------------------------


def header() -> str:
    """The header of the table."""
    return f"{'case':38} {'chosen':>10} {'best':>10} {'ratio':>6} {'tiles':>5}  the best one"


def line(choice: Choice) -> str:
    """A case, and the tile that would have been better."""
    chosen, best = (f"{choice.times[what] * 1e6:.1f} µs" for what in (choice.chosen, choice.best))
    better = "" if choice.best == choice.chosen else choice.best
    return f"{choice.case:38} {chosen:>10} {best:>10} {choice.ratio:6.3f} {choice.count:5}  {better}".rstrip()


def summary(choices: Sequence[Choice]) -> str:
    """The geometric mean and the worst of the ratios."""
    mean = math.exp(sum(math.log(choice.ratio) for choice in choices) / len(choices))
    worst = max(choices, key=lambda choice: choice.ratio)
    count = f"{len(choices)} case{'' if len(choices) == 1 else 's'}"
    return (
        f"chosen time / best time is {mean:.3f} in the geometric mean of {count}, "
        f"{worst.ratio:.3f} in the worst ({worst.case})"
    )


def write_csv(path: Path, choices: Iterable[Choice], device: str, date: str) -> None:
    """Writes the table: times in µs."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for choice in choices:
            times = [f"{choice.times[what] * 1e6:.2f}" for what in (choice.chosen, choice.best)]
            words = [f"{choice.ratio:.3f}", choice.count, choice.chosen, choice.best, device, date]
            writer.writerow([choice.case, *times, *words])
