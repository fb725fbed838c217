"""Autotuning: times the candidates of a graph on the device, knob by knob, and selects the fastest. The
result is stored on disk, so the next process uses it without measuring.

The file is <kernel cache>/autotune/<key>.json; the key is derived from the graph, the device and the version.
WEFT_CACHE_DIR and WEFT_CACHE apply to it as to the kernel cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft import backend, dtypes
from weft.bound_plan import BoundPlan
from weft.devices import DeviceProperties
from weft.enums import knob_type
from weft.errors import WeftError
from weft.memory import DeviceArray
from weft.plan import Plan
from weft.planning import Knob, Planner
from weft.progress import Line, bar

SETTINGS = 32  # a knob with at most this many values is searched exhaustively; beyond it, in growing steps
# Knobs of the planner; no kernel reads them.
PLANNERS_OWN = (knob_type.WORKSPACE, knob_type.WITHOUT_FAMILIES_EXT)
ROUNDS = 3
ROUND_SECONDS = 5e-3  # target duration of one round of runs
clock = time.perf_counter

Knobs = dict[int, int]
"""Knob values by knob type."""


class Trial(NamedTuple):
    """A plan and its measured time."""

    tag: str
    seconds: float
    """Seconds per run; infinite if the plan cannot be built."""


# ---- Timing ------------------------------------------------------------------------------------------------


def bind(plan: Plan, arrays: Mapping[int, Any]) -> BoundPlan:
    """The plan on the memory of tensors by uid; other inputs are generated."""
    arrays = generated_arrays(plan, arrays)
    return plan.bind_slots({plan.index[uid]: array for uid, array in arrays.items() if uid in plan.index})


def repeats(run: BoundPlan) -> int:
    """The number of runs in a round; the plan is warmed up."""
    run()
    return max(1, min(1000, math.ceil(ROUND_SECONDS / max(run.measure(), 1e-9))))


def time_plan(run: BoundPlan) -> float:
    """Seconds per run: the best mean of a few rounds, measured with events on a GPU and with the clock on a
    CPU."""
    count = repeats(run)
    return min(run.measure(count) for _ in range(ROUNDS))


def generated_arrays(plan: Plan, known: Mapping[int, Any]) -> dict[int, Any]:
    """Allocates memory for the inputs of a plan that the caller did not pass. Floating-point inputs hold
    numbers around zero; integer inputs, which may be lengths or indices, are all zero."""
    import numpy as np

    random, arrays = np.random.default_rng(0), dict(known)
    for slot in plan.slots:
        if slot.is_output or slot.uid in arrays or slot.uid in plan.values:
            continue
        if slot.is_by_value:
            arrays[slot.uid] = 1.0 if dtypes.is_floating(slot.data_type) else 1
            continue
        array = DeviceArray(slot.dims, slot.data_type, slot.strides, plan.handle)
        values: Any = np.zeros(array.dims)
        if dtypes.is_floating(slot.data_type) and array.dims == slot.dims:
            values = random.normal(0, 0.5, array.dims)
        arrays[slot.uid] = array.copy_from(values.astype(dtypes.numpy_dtype(array.dtype)))
    return arrays


# ---- Searching ---------------------------------------------------------------------------------------------


class Search:
    """Times candidates until the time budget is spent: first those that the heuristics recommend, then each
    engine's knobs one at a time, always starting from the best setting so far."""

    def __init__(self, planner: Planner, build: Callable[[int], float], seconds: float) -> None:
        self._planner, self._build, self._budget = planner, build, seconds
        self._start, self._line = clock(), Line()
        self._seconds: dict[int, float] = {}

    @property
    def trials(self) -> list[Trial]:
        """The timed plans, fastest first."""
        trials = [Trial(self._planner.candidates[i].tag, each) for i, each in self._seconds.items()]
        return sorted(trials, key=lambda trial: trial.seconds)

    def run(self) -> int:
        """Runs the search and returns the index of the fastest candidate."""
        for i in range(len(self._planner.candidates)):
            self._try(i)
        for i in sorted(self._seconds, key=self._seconds.__getitem__):
            if self._seconds[i] < math.inf:
                self._turn_knobs(i)
        self._line.clear()
        best = min(self._seconds, key=self._seconds.__getitem__)
        if self._seconds[best] == math.inf:
            raise self._planner.not_supported()
        return best

    def _is_over(self) -> bool:
        return clock() - self._start >= self._budget

    def _try(self, index: int) -> float:
        """Times a candidate unless the time budget is spent; the first one is always timed."""
        if index in self._seconds:
            return self._seconds[index]
        if self._seconds and self._is_over():
            return math.inf
        tag = self._planner.candidates[index].tag
        share = (clock() - self._start) / self._budget if self._budget > 0 else 1.0
        self._line.show(f"{bar(share)} autotune: plan {len(self._seconds) + 1}, {tag}")
        try:
            self._seconds[index] = self._build(index)
        except WeftError as error:
            self._planner.failures.append(f"{self._planner.candidates[index].name} ({tag}): {error}")
            self._seconds[index] = math.inf
        return self._seconds[index]

    def _turn_knobs(self, index: int) -> None:
        candidate = self._planner.candidates[index]
        best, chosen = self._seconds[index], dict(candidate.knobs)
        knobs = [k for k in self._planner.knobs(candidate.engine_id) if k.type not in PLANNERS_OWN]
        for knob in knobs:
            for value in _settings(knob):
                if self._is_over():
                    return
                tried = {**chosen, int(knob.type): value}
                seconds = self._try_knobs(candidate.engine_id, tried)
                if seconds < best:
                    best, chosen = seconds, tried

    def _try_knobs(self, engine_id: int, knobs: Knobs) -> float:
        try:
            index = self._planner.choose(engine_id, knobs)
        except WeftError:  # the setting does not exist for this graph
            return math.inf
        return math.inf if self._planner.refusal(self._planner.candidates[index]) else self._try(index)


def _settings(knob: Knob) -> Sequence[int]:
    """The values of a knob to try."""
    values = range(knob.min, knob.max + 1, max(knob.stride, 1))
    if len(values) <= SETTINGS:
        return values
    places = [0, *(2**i for i in range(len(values).bit_length()))]
    return [values[i] for i in places if i < len(values)]


# ---- Stored results ----------------------------------------------------------------------------------------


class Memory:
    """The stored result for one graph on one device with one version of the library."""

    def __init__(self, key: int, planner: Planner, device: DeviceProperties) -> None:
        disk = backend.describe_machine()["cache"]["disk"]
        self._mode = disk["mode"]
        words = f"{key} {device.serialize()} {backend.get_version()} {_offer(planner)}"
        name = hashlib.sha256(words.encode()).hexdigest()
        self._path = Path(disk["folder"]) / "autotune" / f"{name}.json"

    def load(self) -> tuple[str, Knobs] | None:
        """The stored engine and knobs, or None if no matching result is stored."""
        if self._mode == "off":
            return None
        try:
            entry = json.loads(self._path.read_text())
            knobs = {int(knob): _setting(value) for knob, value in entry["knobs"].items()}
            return str(entry["engine"]), knobs
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def store(self, engine: str, knobs: Knobs, seconds: float) -> None:
        """Stores a choice atomically, so that other processes never read a partial file. If the disk cannot
        be written, nothing is stored."""
        if self._mode != "rw":
            return
        entry = {"engine": engine, "knobs": knobs, "seconds": seconds}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file, name = tempfile.mkstemp(dir=self._path.parent)
            with os.fdopen(file, "w") as stream:
                json.dump(entry, stream)
            os.replace(name, self._path)


def _setting(value: Any) -> int:
    """A stored knob value; raises ValueError if the file is damaged."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError(value)
    return value


def _offer(planner: Planner) -> str:
    """A digest of the available engines and knobs. If they change, a stored choice may no longer be the
    best."""
    offered = ((c.name, planner.knobs(c.engine_id)) for c in planner.candidates)
    return repr(sorted((name, [tuple(map(int, knob)) for knob in knobs]) for name, knobs in offered))


# ---- Autotuning --------------------------------------------------------------------------------------------


def tune(
    planner: Planner,
    build: Callable[[int], Plan],
    arrays: Mapping[int, Any],
    seconds: float,
    memory: Memory | None,
) -> tuple[int, list[Trial]]:
    """The index of the fastest candidate, and the timed plans, which are empty if the result was stored on
    disk."""
    known = memory.load() if memory is not None else None
    if known is not None:
        with contextlib.suppress(WeftError):  # if the stored choice cannot be built, measure again
            index = _find(planner, *known)
            if index is not None:
                build(index)
                return index, []

    def build_and_time(index: int) -> float:
        return time_plan(bind(build(index), arrays))

    search = Search(planner, build_and_time, seconds)
    index = search.run()
    if memory is not None:
        best = planner.candidates[index]
        memory.store(best.name, best.knobs, search.trials[0].seconds)
    return index, search.trials


def _find(planner: Planner, engine: str, knobs: Knobs) -> int | None:
    """The index of the candidate that a stored result names; the candidate is added if it is missing."""
    same = next((c for c in planner.candidates if c.name == engine), None)
    return None if same is None else planner.choose(same.engine_id, knobs)
