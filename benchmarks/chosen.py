"""Times several plans of one case: the one that the heuristics recommend, and others."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from benchmarks.case import Case
from benchmarks.machines import in_turn
from benchmarks.measure import Bench, Memory, Side, named

Clock: TypeAlias = Callable[[str], float]


@dataclass(frozen=True)
class Chosen:
    """The times of a case, in seconds."""

    case: str
    times: Mapping[str, float]
    """By the plans' descriptions of themselves; the selected plan is first."""

    @property
    def chosen(self) -> str:
        """The plan that the heuristics recommend."""
        return next(iter(self.times))

    @property
    def best(self) -> str:
        """The fastest plan."""
        return min(self.times, key=self.times.__getitem__)

    @property
    def ratio(self) -> float:
        """The time of the selected plan relative to the best one."""
        return self.times[self.chosen] / self.times[self.best]


def engine_of(graph: Any) -> int:
    """The index of the engine of the graph's plan."""
    name = graph.plan.report["engine"]
    index: int = next(answer["index"] for answer in graph.support() if answer["engine"] == name)
    return index


def clock(bench: Bench, case: Case, side: Side, sets: list[Memory], plans: Mapping[str, int]) -> Clock:
    """Runs the plan with a name and returns its seconds."""

    def seconds(what: str) -> float:
        with named(f"{case.name} failed with '{what}'"):
            side.use(plans[what])
            return in_turn([bench.machine.timer(lambda i: side.run(sets[i]), len(sets))], 1)[0]

    return seconds


def in_turns(seconds: Clock, plans: Iterable[str], turns: int) -> dict[str, float]:
    """Each plan's median over a number of rounds."""
    rounds = [{what: seconds(what) for what in plans} for _ in range(turns)]
    return {what: statistics.median(each[what] for each in rounds) for what in plans}
