"""Measures the choice of kernel families: times the plan that the heuristics recommend, a plan without the
families that it uses, then one without the families that replace them, and so on. Results are not checked
here."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.enums import knob_type
from weft.errors import WeftError

from benchmarks.case import Case
from benchmarks.chosen import Chosen, clock, engine_of, in_turns
from benchmarks.measure import Bench, named

COLUMNS = ("case", "chosen_us", "best_us", "ratio", "chosen", "best", "predicted_us", "device", "date")
OTHERS = 3  # number of alternatives that are timed
TURNS = 3  # number of rounds, of which the median counts
NOISE = 1.03  # two plans whose times differ by less are equally fast


@dataclass(frozen=True)
class Rivalry(Chosen):
    """Plans by their families."""

    predicted: Mapping[str, float]

    @property
    def is_good(self) -> bool:
        """True if no other plan is faster by more than noise."""
        return self.ratio <= NOISE


def measure(bench: Bench, case: Case) -> Rivalry:
    """Times the selected plan and those without its families, in alternation."""
    with named(f"{case.name} failed before running a plan"):
        side, sets = bench.side(case), bench.sets(case, bench.inputs(case))
        plans, predicted = build(side.graph)
    seconds = clock(bench, case, side, sets, plans)
    in_turns(seconds, plans, 1)  # warm-up
    return Rivalry(case.name, in_turns(seconds, plans, TURNS), predicted)


def build(graph: Any) -> tuple[dict[str, int], dict[str, float]]:
    """The indices and predicted times of plans by their families, the selected one first. Each excludes the
    family of the longest step of the previous one."""
    engine = engine_of(graph)
    families = graph.get_families_for_engine(engine)
    plans: dict[str, int] = {}
    predicted: dict[str, float] = {}
    without = 0
    with suppress(WeftError):  # no remaining family supports the case
        while len(plans) <= OTHERS:
            index = _planned(graph, engine, without) if without else 0
            graph.build_plan_at_index(index)
            steps = graph.plan.report["steps"]
            argument = " ".join(step["family"] for step in steps)
            plans.setdefault(argument, index)
            predicted.setdefault(argument, sum(step["seconds"] for step in steps))
            longest = max(steps, key=lambda step: step["seconds"])
            without |= 1 << families.index(longest["family"])
    return plans, predicted


def _planned(graph: Any, engine: int, without: int) -> int:
    start: int = graph.get_execution_plan_count()
    graph.create_execution_plan(engine, {knob_type.WITHOUT_FAMILIES_EXT: without})
    return start


# ---- Output ------------------------------------------------------------------------------------------------


def header() -> str:
    """The header of the table."""
    return f"{'case':38} {'chosen':>11} {'best':>11} {'ratio':>6}  families: the chosen ones, others' times"


def line(found: Rivalry) -> str:
    """A case with all its times; a choice that was not the best is marked."""
    chosen, best = (f"{found.times[what] * 1e6:.1f} µs" for what in (found.chosen, found.best))
    others = [f"{what} {found.times[what] * 1e6:.1f}" for what in list(found.times)[1:]]
    mark = " " if found.is_good else "*"
    words = "; ".join([found.chosen, *others])
    return f"{found.case:38} {chosen:>11} {best:>11} {found.ratio:6.3f}{mark} {words}"


def summary(all_found: Sequence[Rivalry]) -> str:
    """How often the selected plan is the fastest."""
    good = sum(found.is_good for found in all_found)
    rivals = sum(len(found.times) > 1 for found in all_found)
    worst = max(all_found, key=lambda found: found.ratio)
    return (
        f"the chosen families are the fastest in {good} of {len(all_found)} cases "
        f"({good / len(all_found):.1%}), {rivals} of which others serve, too; {worst.ratio:.2f} times the "
        f"best one's time in the worst ({worst.case})"
    )


def write_csv(path: Path, all_found: Iterable[Rivalry], device: str, date: str) -> None:
    """Writes the table: times in µs, with predicted ones for the selected plan and the best one."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for found in all_found:
            pair = (found.chosen, found.best)
            times = [f"{found.times[what] * 1e6:.2f}" for what in pair]
            predicted = " ".join(f"{found.predicted[what] * 1e6:.2f}" for what in pair)
            writer.writerow([found.case, *times, f"{found.ratio:.3f}", *pair, predicted, device, date])
