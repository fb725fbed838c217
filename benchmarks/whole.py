"""Times whole blocks: Weft's plan of several steps, and torch, which runs the same block operation by
operation, and compiled. All are captured CUDA graphs, so that no side waits for the host; the host cost of a
call has its own columns."""

from __future__ import annotations

import csv
import importlib
import math
import statistics
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import BadParameterError, ExecutionError

from benchmarks.case import Case
from benchmarks.machines import Machine, Timer, in_turn
from benchmarks.measure import Bench, Memory, Side
from benchmarks.networks import Program

# for torch.compile: the benchmark captures each side into a CUDA graph itself
MODE = "max-autotune-no-cudagraphs"
COMPILE_SECONDS = 900.0  # time limit of torch.compile; the remaining cases have no number for it
SIDES = ("weft", "eager", "compiled")
# the first one that is supported
ATTENTION = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
PEERS = {"torch": SIDES[1:], "eager": SIDES[1:2], "compiled": SIDES[2:]}
STEP_RUNS = 10  # runs of a plan whose steps are measured one by one, on each of some sets of memory
CALLS, TURNS = 10, 5  # the host cost is the median of these; few enough that no call waits for a full queue
COLUMNS = (
    *("case", "weft_us", "peer_us", "ratio", "error", "eager_us", "compiled_us", "eager_error"),
    *("predicted_us", "steps", "steps_us", "weft_host_us", "eager_host_us", "compiled_host_us"),
    *("device", "date"),
)


@dataclass
class Whole:
    """The measurements of a block; seconds by side: "weft", "eager", "compiled"."""

    case: str
    times: dict[str, float] = field(default_factory=dict)
    hosts: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    steps: Sequence[Mapping[str, Any]] = ()
    """The steps of Weft's plan, from its report."""
    stepwise: Sequence[float] = ()
    """Seconds of each step."""
    notes: list[str] = field(default_factory=list)

    @property
    def weft(self) -> float | None:
        """Weft's time."""
        return self.times.get("weft")

    @property
    def peer(self) -> float | None:
        """The time of the faster peer."""
        return min((seconds for name, seconds in self.times.items() if name != "weft"), default=None)

    @property
    def ratio(self) -> float | None:
        """The faster peer's time relative to Weft's: above 1, Weft is faster."""
        return self.peer / self.weft if self.peer and self.weft else None

    @property
    def predicted(self) -> float:
        """The sum of the predicted times of the plan's steps."""
        return math.fsum(step["seconds"] for step in self.steps)

    @property
    def sum(self) -> float | None:
        """The sum of the steps, measured one by one; the difference from the whole is the time between
        steps."""
        return math.fsum(self.stepwise) if self.stepwise else None


@dataclass(frozen=True)
class _Side:
    """A side that runs a case: from a set of memory, returns a function that runs on it."""

    name: str
    sets: Sequence[Any]
    ready: Callable[[Any], Callable[[], Any]]


class Blocks:
    """A bench with torch's two sides."""

    def __init__(self, bench: Bench, peer: str) -> None:
        if peer and peer not in PEERS:
            raise BadParameterError(
                f"bench: --peer {peer} cannot run whole blocks. Use torch, which is the better of eager and "
                "compiled, or one of these two, or leave --peer out."
            )
        self.bench, self.peers = bench, PEERS.get(peer, ())
        self._torch = importlib.import_module("torch") if peer else None
        self._compiled = 0.0  # in seconds
        self._weft: Side | None = None  # for the case that is being measured
        beside = [f"torch {self._torch.__version__}"] if self._torch else []
        beside += [f"compiled: {MODE}"] if "compiled" in self.peers else []
        self.device = ", ".join([bench.device, *beside])

    def measure(self, case: Case) -> Whole:
        """Checks a case, then times all sides in alternation."""
        results = Whole(case.name)
        with self._attention():
            sets, wanted = self.bench.memory(case)
            timers: dict[str, Timer] = {}
            for name in ("weft", *self.peers):
                try:
                    timers[name] = self._timer(self._side(name, case, sets, results), case, wanted, results)
                except Exception as refusal:  # each side raises its own exceptions
                    words = textwrap.shorten(str(refusal), 300, placeholder=" …")
                    results.notes.append(f"{name}: {type(refusal).__name__}: {words}")
            times = in_turn(list(timers.values()), self.bench.rounds) if timers else []
            results.times = dict(zip(timers, times, strict=True))
            if "weft" in timers and self._weft:  # while the device is hot
                runs = [self._weft.step_seconds(memory, STEP_RUNS) for memory in sets[:3]]
                results.stepwise = [statistics.mean(each) for each in zip(*runs, strict=True)]
        return results

    def _side(self, name: str, case: Case, sets: list[Memory], found: Whole) -> _Side:
        if name == "weft":
            weft = self.bench.side(case)
            found.steps = weft.graph.plan.report["steps"]
            self._weft = weft
            return _Side(name, sets, lambda memory: lambda: weft.run(memory))
        torch, program, machine = self._torch, case.program, self.bench.machine
        assert torch is not None
        assert isinstance(program, Program)
        same = [{key: machine.tensor(array) for key, array in memory.items()} for memory in sets]
        if name == "eager":
            return _Side(name, same, program.ready(torch))
        if self._compiled > COMPILE_SECONDS:
            raise TimeoutError(f"torch.compile has used its {COMPILE_SECONDS:.0f} s")
        torch._dynamo.reset()  # blocks share code, and torch limits the number of variants that it caches
        torch._functorch.config.donated_buffer = False  # a gradient is computed many times
        return _Side(name, same, program.ready(torch, {"mode": MODE, "dynamic": False}))

    def _timer(self, side: _Side, case: Case, wanted: Memory, found: Whole) -> Timer:
        error = found.errors[side.name] = self._error(side, case, wanted)
        if side.name == "weft" and not error <= (case.largest_error or math.inf):
            raise ExecutionError(f"the result is wrong: its error is {error:.1e}")
        found.hosts[side.name] = host_seconds(self.bench.machine, side.ready(side.sets[0]))
        runs: dict[int, Callable[[], Any]] = {}

        def run(i: int) -> object:
            if i not in runs:  # here, because a gradient runs on the stream of its forward pass
                runs[i] = side.ready(side.sets[i])
            return runs[i]()

        return self.bench.machine.timer(run, len(side.sets))

    def _error(self, side: _Side, case: Case, wanted: Memory) -> float:
        if side.name == "weft":
            return self.bench.error(lambda memory: side.ready(memory)(), case, side.sets[0], wanted)
        assert isinstance(case.program, Program)
        start = time.perf_counter()
        outputs = case.program.named(side.ready(side.sets[0])())
        self.bench.machine.wait()
        self._compiled += time.perf_counter() - start if side.name == "compiled" else 0.0
        return self.bench.worst({key: self._array(x) for key, x in outputs.items()}, wanted)

    def _array(self, x: Any) -> Any:
        """A torch result as an array of the machine."""
        return x.detach() if self.bench.machine.kind == "cuda" else x.detach().double().numpy()

    @contextmanager
    def _attention(self) -> Iterator[None]:
        """Makes torch's attention use cuDNN if it is supported."""
        if self._torch is None or self.bench.machine.kind != "cuda":
            yield
            return
        attention = self._torch.nn.attention
        kinds = [getattr(attention.SDPBackend, name) for name in ATTENTION]
        with attention.sdpa_kernel(kinds, set_priority=True):
            yield


def host_seconds(machine: Machine, run: Callable[[], object]) -> float:
    """The host cost of a call while the device is still busy."""
    run()
    turns = []
    for _ in range(TURNS):
        machine.wait()
        start = time.perf_counter()
        for _ in range(CALLS):
            run()
        turns.append((time.perf_counter() - start) / CALLS)
    machine.wait()
    return statistics.median(turns)


# ---- Output ------------------------------------------------------------------------------------------------


def _micro(seconds: float | None, digits: int = 2) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.{digits}f}"


def header(names: Iterable[str]) -> str:
    """The header of the table."""
    width = max(map(len, names))
    columns = ("weft µs", "eager µs", "compiled µs", "ratio", "error", "predicted µs", "steps", "steps µs")
    return "  ".join([f"{'case':{width}}", *columns, "host µs"])


def line(found: Whole, names: Iterable[str]) -> str:
    """A case. The host costs are those of Weft, eager torch and compiled torch."""
    width, ratio = max(map(len, names)), found.ratio
    times = [_micro(found.times.get(name), 1) or "-" for name in SIDES]
    hosts = "/".join(_micro(found.hosts.get(name), 0) or "-" for name in SIDES)
    error = f"{found.errors['weft']:.1e}" if "weft" in found.errors else "-"
    shown = f"{found.case:{width}}  {times[0]:>7}  {times[1]:>8}  {times[2]:>11}"
    shown += f"  {'-' if ratio is None else format(ratio, '.2f'):>5}  {error:>7}"
    shown += f"  {_micro(found.predicted, 1):>12}  {len(found.steps):>5}  {_micro(found.sum, 1) or '-':>8}"
    return f"{shown}  {hosts}"


def summary(all_found: Sequence[Whole]) -> list[str]:
    """The ratios in one line."""
    ratios = {found.case: found.ratio for found in all_found if found.ratio}
    if not ratios:
        return []
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    worst = min(ratios, key=lambda case: ratios[case])
    return [
        f"blocks: time of the better peer / weft time is {mean:.3f} in the geometric mean of {len(ratios)}, "
        f"{ratios[worst]:.3f} in the worst ({worst.partition('/')[2]})"
    ]


def write_csv(path: Path, all_found: Iterable[Whole], device: str, date: str) -> None:
    """Writes the table: times in µs; missing numbers are empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for it in all_found:
            ratio = "" if it.ratio is None else f"{it.ratio:.3f}"
            errors = ["" if name not in it.errors else f"{it.errors[name]:.1e}" for name in SIDES[:2]]
            times = [_micro(it.weft), _micro(it.peer), ratio, errors[0]]
            times += [_micro(it.times.get(name)) for name in SIDES[1:]]
            times += [errors[1], _micro(it.predicted), str(len(it.steps)), _micro(it.sum)]
            times += [_micro(it.hosts.get(name)) for name in SIDES]
            writer.writerow([it.case, *times, device, date])
