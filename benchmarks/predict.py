"""Compares the predicted times of plans with measured ones."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import weft
from weft.devices import DeviceProperties

from benchmarks.case import Case
from benchmarks.measure import graph_of
from benchmarks.tables import Row, read_csv

COLUMNS = ("case", "predicted_us", "measured_us", "ratio", "families", "device", "date")
TABLES_ARCH = "sm_90"  # the architecture of this repository's tables
RESULTS = Path(__file__).with_name("results")
FACTOR = 1.3  # a prediction within this factor is good


@dataclass(frozen=True)
class Prediction:
    """A case's two times, in seconds."""

    case: str
    predicted: float
    measured: float
    families: tuple[str, ...]
    """The families of its steps."""
    device: str = ""
    date: str = ""

    @property
    def ratio(self) -> float:
        """Above 1, the prediction is pessimistic."""
        return self.predicted / self.measured

    @property
    def is_good(self) -> bool:
        """True if the times differ by at most the factor."""
        return 1 / FACTOR <= self.ratio <= FACTOR


def predict(case: Case, row: Row, device: DeviceProperties) -> Prediction:
    """Plans a measured case; compiles nothing."""
    assert row.weft is not None
    graph, _ = graph_of(case, weft, device=device)
    graph.validate()
    graph.build_operation_graph()
    answers = [answer for answer in graph.support(device) if answer["supported"]]
    best = min(answers, key=lambda answer: float(answer["seconds"]))
    return Prediction(case.name, best["seconds"], row.weft, tuple(best["families"]), row.device, row.date)


def committed_tables() -> list[Path]:
    """The tables of this repository with one Weft time per case."""
    return [path for path in sorted(RESULTS.glob("h200-*.csv")) if _has_times(path)]


def _has_times(path: Path) -> bool:
    with path.open(encoding="utf-8") as file:
        return {"case", "weft_us", "peer_us"} <= set(file.readline().strip().split(","))


def rows_of(paths: Iterable[Path]) -> dict[str, Row]:
    """Weft's rows in the tables, by case; later tables take precedence."""
    return {row.case: row for path in paths for row in read_csv(path) if row.weft is not None}


# ---- Output ------------------------------------------------------------------------------------------------


def header(names: Iterable[str]) -> str:
    """The header of the table."""
    width = max(map(len, names))
    return f"{'case':{width}}  {'predicted µs':>12}  {'measured µs':>11}  ratio  families"


def line(prediction: Prediction, names: Iterable[str]) -> str:
    """A case; a prediction outside the factor is marked."""
    width = max(map(len, names))
    times = f"{prediction.predicted * 1e6:12.2f}  {prediction.measured * 1e6:11.2f}"
    ratio = f"{prediction.ratio:5.2f}{' ' if prediction.is_good else '*'}"
    return f"{prediction.case:{width}}  {times}  {ratio} {', '.join(prediction.families)}"


def summary(predictions: Sequence[Prediction]) -> list[str]:
    """The number of predictions within the factor, and the deviation of the others."""
    if not predictions:
        return []
    good = sum(prediction.is_good for prediction in predictions)
    logs = [math.log(prediction.ratio) for prediction in predictions]
    worst = max(predictions, key=lambda prediction: abs(math.log(prediction.ratio)))
    return [
        f"{good} of {len(predictions)} within a factor {FACTOR} ({good / len(predictions):.1%})",
        f"predicted / measured is {math.exp(sum(logs) / len(logs)):.3f} in the geometric mean, "
        f"{worst.ratio:.2f} in the worst ({worst.case})",
    ]


def write_csv(path: Path, predictions: Iterable[Prediction]) -> None:
    """Writes the table: times in µs."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for it in predictions:
            times = [f"{seconds * 1e6:.2f}" for seconds in (it.predicted, it.measured)]
            writer.writerow([it.case, *times, f"{it.ratio:.3f}", " ".join(it.families), it.device, it.date])
