"""Autotuning: what is tried in which order, with a clock that only the test advances; and what is cached."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import weft
from weft import autotune, backend
from weft.autotune import Search, Trial, generated_arrays
from weft.errors import NotSupportedError
from weft.planning import Candidate, Knob
from weft.progress import Line, Waiting, bar

KNOB = weft.knob_type


class Clock:
    """A clock that advances only when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(autotune, "clock", made)
    return made


class Engines:
    """A planner of two engines: a plain one, and one with two knobs."""

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        self.failures: list[str] = []
        self.refused = ""
        for engine_id in (0, 1):
            self.choose(engine_id, {})

    def knobs(self, engine_id: int) -> list[Knob]:
        return [Knob(KNOB.TILE_M, 3, 1, 1), Knob(KNOB.TILE_N, 99, 0, 11)] if engine_id else []

    def choose(self, engine_id: int, knobs: Mapping[int, int]) -> int:
        if knobs.get(KNOB.TILE_M) == 3:
            raise NotSupportedError("no such tile")
        tag = f"eng{engine_id}" + "".join(f"_k{int(k)}={v}" for k, v in knobs.items())
        tags = [candidate.tag for candidate in self.candidates]
        if tag not in tags:
            config: Any = None
            engine: Any = _Named(engine_id)
            self.candidates.append(Candidate(config, engine, tag, engine_id, dict(knobs)))
        return [*tags, tag].index(tag)

    def refusal(self, candidate: Candidate) -> str:
        return self.refused if candidate.knobs else ""

    def not_supported(self) -> NotSupportedError:
        return NotSupportedError(" ".join(self.failures))


class _Named:
    """An engine descriptor that knows only its name."""

    def __init__(self, engine_id: int) -> None:
        self._name = f"engine{engine_id}"

    def get_text(self, name: int) -> str:
        return self._name


def search(planner: Engines, cost: Any, clock: Clock, seconds: float) -> Search:
    """Returns a search whose plans take the time that `cost` returns for engine and knobs, and one second
    each to measure."""

    def build(index: int) -> float:
        clock.now += 1
        candidate = planner.candidates[index]
        found: float = cost(candidate.engine_id, candidate.knobs)
        return found

    return Search(planner, build, seconds)  # type: ignore[arg-type]


M, N = int(KNOB.TILE_M), int(KNOB.TILE_N)


def valley(engine_id: int, knobs: Mapping[int, int]) -> float:
    """The second engine is best at M = 2, N = 42."""
    return 50.0 if engine_id == 0 else 10 + abs(knobs.get(M, 1) - 2) + abs(knobs.get(N, 0) - 42) / 10


def test_knobs_are_turned_one_after_another(clock: Clock) -> None:
    planner = Engines()
    made = search(planner, valley, clock, 100)
    best = planner.candidates[made.run()]
    assert best.knobs == {M: 2, N: 44}  # of 0, 11, 22 .. 99
    assert [trial.tag for trial in made.trials[-1:]] == ["eng0"]
    tried = [trial.tag for trial in made.trials]
    assert len(tried) == len(set(tried)) == 2 + 2 + 10  # engines, M = 1 and 2, ten values of N


def test_amounts_are_tried_in_larger_and_larger_steps() -> None:
    assert list(autotune._settings(Knob(KNOB.SPLIT_K, 100, 1, 1))) == [1, 2, 3, 5, 9, 17, 33, 65]
    assert list(autotune._settings(Knob(KNOB.TILE_SIZE, 24, 0, 1))) == list(range(25))


def test_the_first_candidate_is_always_timed_and_time_is_kept(clock: Clock) -> None:
    planner = Engines()
    assert search(planner, valley, clock, 0).run() == 0
    made = search(planner, valley, clock, 4)
    made.run()
    assert len(made.trials) == 4


def test_plans_that_cannot_be_built_are_passed_over(clock: Clock) -> None:
    planner = Engines()

    def cost(engine_id: int, knobs: Mapping[int, int]) -> float:
        if engine_id == 1:
            raise NotSupportedError("it does not fit")
        return 50.0

    made = search(planner, cost, clock, 100)
    assert made.run() == 0
    assert made.trials == [Trial("eng0", 50.0), Trial("eng1", math.inf)]
    assert planner.failures == ["engine1 (eng1): it does not fit"]


def test_nothing_that_can_be_built_is_an_error(clock: Clock) -> None:
    def cost(engine_id: int, knobs: Mapping[int, int]) -> float:
        raise NotSupportedError("no")

    with pytest.raises(NotSupportedError, match=r"engine0 \(eng0\): no engine1 \(eng1\): no"):
        search(Engines(), cost, clock, 100).run()


def test_filters_hold_for_knobs_too(clock: Clock) -> None:
    planner = Engines()
    planner.refused = "its name"
    made = search(planner, valley, clock, 100)
    assert planner.candidates[made.run()].tag == "eng1"
    assert len(made.trials) == 2


# ---- Graphs ------------------------------------------------------------------------------------------------


def graph(name: str = "g") -> weft.Graph:
    g = weft.Graph(name, io_data_type="f32", handle=weft.create_handle("cpu"))
    g.softmax(g.tensor([8, 16], name="x"), name="y").set_name("y")
    return g


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel cache of the test's own."""
    said = {"folder": str(tmp_path / "cache"), "mode": "rw"}
    monkeypatch.setattr(backend, "describe_machine", lambda: {"cache": {"disk": said}})
    return said


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Returns seconds by engine; records each plan that is timed."""
    seconds = {"cpu.fast": 2.0, "cpu.reference": 1.0}
    timed: list[str] = []

    def time_plan(run: weft.BoundPlan) -> float:
        timed.append(run.plan.engine)
        return seconds[run.plan.engine]

    monkeypatch.setattr(autotune, "time_plan", time_plan)
    seconds["timed"] = timed  # type: ignore[assignment]
    return seconds


def test_the_fastest_plan_is_taken_and_remembered(disk: Any, times: Any) -> None:
    g = graph().autotune()
    assert g.plan.engine == "cpu.reference"
    assert [trial.seconds for trial in g.trials] == [1.0, 2.0]
    (kept,) = Path(disk["folder"]).rglob("*.json")
    assert json.loads(kept.read_text()) == {"engine": "cpu.reference", "knobs": {}, "seconds": 1.0}
    times["timed"].clear()
    again = graph("another name").autotune()
    assert (again.plan.engine, again.trials, times["timed"]) == ("cpu.reference", [], [])
    x = np.random.default_rng(0).normal(size=(8, 16)).astype("f4")
    np.testing.assert_allclose(again.plan(x=x).sum(1), 1, rtol=1e-6)


def test_another_graph_is_measured_again(disk: Any, times: Any) -> None:
    graph().autotune()
    g = weft.Graph(io_data_type="f32", handle=weft.create_handle("cpu"))
    g.softmax(g.tensor([8, 32], name="x"))
    assert len(g.autotune().trials) == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"engine": "gone", "knobs": {}}',
        '{"engine": "cpu.fast", "knobs": 3}',
        '{"engine": "cpu.fast", "knobs": {"1": 1e400}}',
        '{"engine": "cpu.fast", "knobs": {"1": 9223372036854775808}}',
        '{"engine": "cpu.fast", "knobs": {"1": null}}',
        '{"engine": "cpu.fast", "knobs": {"1": ' + "[" * 100_000,
    ],
    ids=lambda text: text[:60],
)
def test_cached_results_are_validated(disk: Any, times: Any, text: str) -> None:
    """The engine is measured again, and damaged entries are replaced."""
    graph().autotune()
    (kept,) = Path(disk["folder"]).rglob("*.json")
    kept.write_text(text)
    assert len(graph().autotune().trials) == 2
    assert json.loads(kept.read_text())["engine"] == "cpu.reference"


@pytest.mark.parametrize("mode", ["ro", "off"])
def test_a_cache_that_is_only_read_stays_as_it_is(disk: Any, times: Any, mode: str) -> None:
    disk["mode"] = mode
    graph().autotune()
    assert not Path(disk["folder"]).exists()


def test_filters_rule_what_is_tuned(disk: Any, times: Any) -> None:
    assert graph().deselect_engines(["cpu.reference"]).autotune().plan.engine == "cpu.fast"


def test_plans_are_timed_where_they_run() -> None:
    g = graph()
    known = [answer["engine"] for answer in g.support()]
    served = {f"eng{known.index(name)}" for name in ("cpu.fast", "cpu.reference")}
    assert {trial.tag for trial in g.autotune(seconds=5, remember=False).trials} == served
    assert all(0 < trial.seconds < 1 for trial in g.trials)


def test_inputs_are_made_up_and_given_ones_kept() -> None:
    g = weft.Graph(io_data_type="f32", handle=weft.create_handle("cpu"))
    x, s = g.tensor([4, 4], name="x"), g.tensor([1], is_pass_by_value=True, name="s")
    index = g.tensor([4, 4], data_type="i32", name="index")
    g.binary_select(g.mul(x, s), x, g.cmp_eq(index, 0))
    given = np.ones((4, 4), "f4")
    made = generated_arrays(g.build().plan, {x.uid: given})
    assert made[x.uid] is given
    assert made[s.uid] == 1.0
    np.testing.assert_array_equal(made[index.uid].numpy(), np.zeros((4, 4), "i4"))


# ---- Progress ----------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_comes_and_goes() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        line = Line(stream)
        line.show("words")
        line.clear()
        line.clear()
    assert terminal.getvalue() == "\r  words\x1b[K\r\x1b[K"
    assert file.getvalue() == ""
    assert bar(2).strip() == "█" * 24


def test_waiting_is_reported_after_a_while() -> None:
    terminal = Terminal()
    with Waiting("compiling", terminal, patience=0.01) as waiting:
        thread = waiting._thread
        assert thread is not None
        while not terminal.getvalue():
            thread.join(0.01)
    assert terminal.getvalue().startswith("\r  compiling  0 s\x1b[K")
    assert terminal.getvalue().endswith("\r\x1b[K")
    quick, file = Terminal(), io.StringIO()
    for stream in (quick, file):
        with Waiting("compiling", stream):
            pass
        assert stream.getvalue() == ""
