"""`python -m weft bench`: times a saved plan on generated inputs."""

from __future__ import annotations

from pathlib import Path

import weft
from weft.autotune import bind, repeats, time_plan
from weft.explain import amount, explain_text


def text(file: Path) -> str:
    """The steps of a plan with their measured times, and the rates of the whole plan."""
    plan = weft.Graph().deserialize(file.read_bytes()).plan
    run, report = bind(plan, {}), plan.report
    seconds, steps = time_plan(run), run.measure_steps(repeats(run))
    rates = [amount(report[key] / seconds, unit) for key, unit in (("flops", "FLOP/s"), ("bytes", "B/s"))]
    table = explain_text(report, measured=steps, brief=True)
    return f"{table}\n\n{amount(seconds, 's')} per run, the best of a few rounds: {', '.join(rates)}"
