"""`python -m benchmarks models`: training steps of whole networks; compares torch with torch plus Weft, and
torch.compile with Inductor and with Weft's backend."""

from __future__ import annotations

import copy
import csv
import importlib
import math
import statistics
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import UnavailableError

SIDES = ("eager", "enabled", "inductor", "weft")
"""torch; torch with weft.torch.enable(); torch.compile; torch.compile(backend="weft")."""
PAIRS = (("enabled", "eager"), ("weft", "inductor"), ("weft", "eager"))  # pairs for ratios: ours, theirs
PEERS = {"": SIDES, "torch": SIDES, "eager": SIDES[:2], "compiled": SIDES[2:]}
COLUMNS = (
    *("case", *(f"{side}_ms" for side in SIDES), *(f"{side}_mb" for side in SIDES)),
    *("enabled_ratio", "weft_ratio", "weft_over_eager", *(f"{side}_loss" for side in SIDES)),
    *("device", "date"),
)
LOSSES, STEPS = 6, 12
"""Steps before timing, the last of which has the reported loss; and the minimum number of timed steps."""
GROUPS, GROUP_SECONDS = 5, 0.1  # groups of steps on a GPU, and the minimum duration of each
RATE = 1e-4  # learning rate: the losses fall, and stay comparable from step to step


@dataclass
class Trained:
    """The measurements of a model, by side."""

    case: str
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds per step: forward, backward, optimizer."""
    bytes: dict[str, int] = field(default_factory=dict)
    """The peak of torch's allocations on a GPU."""
    losses: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def noting(self, side: str) -> Iterator[None]:
        """Records an exception of a side as a note, so that the other sides continue."""
        try:
            yield
        except Exception as refusal:
            words = textwrap.shorten(str(refusal), 300, placeholder=" …")
            self.notes.append(f"{side}: {type(refusal).__name__}: {words}")

    def ratio(self, ours: str, theirs: str) -> float | None:
        """Their time relative to ours."""
        if ours in self.seconds and theirs in self.seconds:
            return self.seconds[theirs] / self.seconds[ours]
        return None


@dataclass(frozen=True)
class _Place:
    """The device on which a model trains."""

    torch: Any
    kind: str

    @property
    def dtype(self) -> Any:
        return self.torch.bfloat16 if self.kind == "cuda" else self.torch.float32

    def wait(self) -> None:
        if self.kind == "cuda":
            self.torch.cuda.synchronize()

    def allocated(self) -> int:
        """Bytes of GPU memory that tensors occupy now."""
        return int(self.torch.cuda.memory_allocated()) if self.kind == "cuda" else 0


def names() -> list[str]:
    """The models."""
    _torch()
    return list(importlib.import_module("benchmarks.models").MODELS)


def version() -> str:
    """The versions of the compared software."""
    return f"torch {_torch().__version__}"


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise UnavailableError("bench: training needs PyTorch. Install torch.") from None


def measure(name: str, kind: str, sides: Sequence[str] = SIDES) -> Trained:
    """Each side trains its copy of one model on the same data, one after another, so that their GPU memory is
    measured separately. Then all are timed in alternation, because processors get hot and have other work to
    do."""
    torch, results = _torch(), Trained(name)
    place, model = _Place(torch, kind), importlib.import_module("benchmarks.models").MODELS[name]
    torch.manual_seed(5)
    network = model.make().to(kind, place.dtype)
    x = torch.randn(*(model.gpu if kind == "cuda" else model.cpu)).to(kind, place.dtype)
    if model.is_last and kind == "cuda":
        form = torch.channels_last_3d if x.ndim == 5 else torch.channels_last
        network, x = network.to(memory_format=form), x.to(memory_format=form)
    labels = torch.arange(x.shape[0], device=kind) % model.classes if model.classes else None
    steps: dict[str, Callable[[], Any]] = {}
    start = place.allocated()
    for side in sides:
        with results.noting(side), _under(side) as run:
            of_others = place.allocated() - start
            steps[side] = _train(place, run(copy.deepcopy(network)), x, labels, side, results)
            if kind == "cuda":
                results.bytes[side] = torch.cuda.max_memory_allocated() - of_others
    if kind == "cuda":
        _time_groups(place, steps, results)
    else:
        results.seconds |= _least_in_turn(steps)
    torch._dynamo.reset()
    return results


@contextmanager
def _under(side: str) -> Iterator[Callable[[Any], Any]]:
    """Applies a side to a model."""
    torch = _torch()
    within: AbstractContextManager[Any] = nullcontext()
    if side == "enabled":
        within = importlib.import_module("weft.torch").enable()
    with within:
        if side == "weft":
            backend = importlib.import_module("weft.torch").backend
            yield lambda model: torch.compile(model, backend=backend)
        else:
            yield torch.compile if side == "inductor" else lambda model: model


def _train(place: _Place, network: Any, x: Any, labels: Any, side: str, found: Trained) -> Callable[[], Any]:
    """Trains up to the reported loss; returns a function that runs one more step."""
    torch = place.torch
    optimiser = torch.optim.SGD(network.parameters(), lr=RATE, momentum=0.9)

    def step() -> Any:
        optimiser.zero_grad(set_to_none=True)
        y = network(x).float()
        loss = y.square().mean() if labels is None else torch.nn.functional.cross_entropy(y, labels)
        loss.backward()
        optimiser.step()
        return loss

    if place.kind == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    for _ in range(LOSSES):
        loss = step()
    found.losses[side] = float(loss.detach())
    return step


def _time_groups(place: _Place, steps: Mapping[str, Callable[[], object]], found: Trained) -> None:
    """The median of each side's groups of steps, which alternate; the host runs ahead of a GPU, as in
    training. A round begins with untimed steps, because operators under enable() look up their plans
    again."""
    groups: dict[str, list[float]] = {side: [] for side in steps}
    counts = dict.fromkeys(steps, STEPS // 3)
    for _ in range(GROUPS + 1):  # the first round determines the number of steps per group
        for side in list(groups):
            with found.noting(side), _under(side):
                times = groups.pop(side)  # a side that fails is omitted from then on
                _seconds(place, steps[side], STEPS // 3)
                once = _seconds(place, steps[side], counts[side])
                while once * counts[side] < GROUP_SECONDS:
                    counts[side] *= 2
                    once = _seconds(place, steps[side], counts[side])
                groups[side] = [*times, once]
    found.seconds |= {side: statistics.median(times[1:]) for side, times in groups.items()}


def _seconds(place: _Place, step: Callable[[], object], count: int) -> float:
    place.wait()
    start = time.perf_counter()
    for _ in range(count):
        step()
    place.wait()
    return (time.perf_counter() - start) / count


def _least_in_turn(steps: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of each side's fastest step, over equally many."""
    least = dict.fromkeys(steps, math.inf)
    for _ in range(STEPS):
        for side, step in steps.items():
            with _under(side):
                start = time.perf_counter()
                step()
                least[side] = min(least[side], time.perf_counter() - start)
    return least


# ---- Output ------------------------------------------------------------------------------------------------


def header() -> str:
    """The header of the table."""
    times = "  ".join(f"{f'{side} ms':>11}" for side in SIDES)
    return f"{'model':16}  {times}  {'enabled':>7}  {'weft':>5}  losses"


def line(found: Trained) -> str:
    """A model: times per step; eager relative to enabled, Inductor relative to Weft; losses."""
    times = "  ".join(f"{_number(found.seconds.get(side), 1e3, 2) or '-':>11}" for side in SIDES)
    ratios = [_number(found.ratio(*pair), 1, 2) or "-" for pair in PAIRS[:2]]
    losses = "/".join(_number(found.losses.get(side), 1, 5) or "-" for side in SIDES)
    return f"{found.case:16}  {times}  {ratios[0]:>7}  {ratios[1]:>5}  {losses}"


def summary(all_found: Sequence[Trained]) -> list[str]:
    """Geometric means and the worst ratios."""
    losses = []
    for ours, theirs in PAIRS:
        ratios = {it.case: ratio for it in all_found if (ratio := it.ratio(ours, theirs))}
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            worst = min(ratios, key=lambda case: ratios[case])
            losses.append(
                f"models: time of {theirs} / {ours} is {mean:.3f} in the geometric mean of {len(ratios)}, "
                f"{ratios[worst]:.3f} in the worst ({worst})"
            )
    return losses


def _number(value: float | None, unit: float, digits: int) -> str:
    return "" if value is None else f"{value * unit:.{digits}f}"


def write_csv(path: Path, all_found: Iterable[Trained], device: str, date: str) -> None:
    """Writes the table; missing numbers are empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for it in all_found:
            writer.writerow(
                [
                    it.case,
                    *(_number(it.seconds.get(side), 1e3, 3) for side in SIDES),
                    *(_number(it.bytes.get(side), 1e-6, 0) for side in SIDES),
                    *(_number(it.ratio(*pair), 1, 3) for pair in PAIRS),
                    *(_number(it.losses.get(side), 1, 5) for side in SIDES),
                    device,
                    date,
                ]
            )
