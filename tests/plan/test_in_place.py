"""Results in the memory of operands: a plan refuses this, or gives the same result as in separate memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import checks
import numpy as np
import pytest
import weft

N = 6
OVERLAP = r"overlap in memory\. Give the output memory of its own"


def turned(g: Any, x: Any) -> Any:
    return g.transpose(x, [1, 0])


def part(g: Any, x: Any, rows: slice, columns: slice) -> Any:
    return g.slice(x, [rows, columns])


def flat(g: Any, x: Any) -> Any:
    lines = g.reshape(x, reshape_mode="LOGICAL").set_dim([1, N * N])
    return g.reshape(g.relu(lines), reshape_mode="LOGICAL").set_dim([N, N])


ROW, COLUMN, ALL = slice(0, 1), slice(N - 1, N), slice(0, N)

GRAPHS: dict[str, Callable[..., Any]] = {
    "sum": lambda g, x, y: g.add(x, y),
    "its transpose": lambda g, x, y: g.add(x, turned(g, x)),
    "its transpose first": lambda g, x, y: g.add(turned(g, x), x),
    "a transpose": lambda g, x, y: g.mul(turned(g, x), y),
    "a transpose behind a step": lambda g, x, y: g.add(x, turned(g, g.softmax(x))),
    "a softmax of its transpose": lambda g, x, y: g.add(x, g.softmax(turned(g, x))),
    "its row": lambda g, x, y: g.add(x, part(g, x, ROW, ALL)),
    "its column": lambda g, x, y: g.sub(x, part(g, x, ALL, COLUMN)),
    "its number": lambda g, x, y: g.sub(x, part(g, x, COLUMN, COLUMN)),
    "lines": lambda g, x, y: g.mul(flat(g, x), y),
    "lines and itself": lambda g, x, y: g.mul(flat(g, x), x),
    "product": lambda g, x, y: g.matmul(x, y),
    "product and itself": lambda g, x, y: g.add(g.matmul(x, y), x),
    "product of its transpose": lambda g, x, y: g.matmul(turned(g, x), x),
    "softmax": lambda g, x, y: g.softmax(x),
    "softmax and itself": lambda g, x, y: g.add(g.softmax(x), x),
    "softmax along columns": lambda g, x, y: g.softmax(x, axis=0),
    "a total": lambda g, x, y: g.sub(x, g.reduction(x, mode="MAX", dims=[0, 1])),
    "a total of rows": lambda g, x, y: g.mul(x, g.reduction(x, mode="ADD", dims=[1])),
    "two steps": lambda g, x, y: g.add(g.matmul(g.softmax(x), y), x),
    "two steps, read in the first": lambda g, x, y: g.matmul(g.softmax(g.add(x, y)), y),
    "halves that change places": lambda g, x, y: g.concatenate(
        [part(g, x, slice(3, N), ALL), part(g, x, slice(0, 3), ALL)], 0
    ),
    "halves in place": lambda g, x, y: g.concatenate(
        [part(g, x, slice(0, 3), ALL), part(g, y, slice(3, N), ALL)], 0
    ),
}
"""y = f(x, y) of two square matrices."""

IS_REFUSED = ("its transpose", "its transpose first", "a transpose", "its row", "its column", "its number")
"""Those that read elements of x at places other than their own, in a step that may write over x otherwise."""


def engines() -> list[str]:
    g = weft.Graph(handle=checks.handle(), io_data_type="f32")
    g.exp(g.tensor([2], name="x")).set_output(True)
    return [answer["engine"] for answer in g.support() if answer["supported"]]


def run(name: str, engine: str, under: str | None) -> Any:
    """Returns the result in the memory of an operand, or in its own; None if the engine refuses the graph."""
    g = weft.Graph(handle=checks.handle(), io_data_type="f32")
    arrays = {each: checks.random((N, N), seed=i) for i, each in enumerate("xy")}
    tensors = {each: g.tensor([N, N], name=each) for each in "xy"}
    GRAPHS[name](g, *tensors.values()).set_name("out").set_output(True).set_dim([N, N]).set_stride([N, 1])
    index = next(i for i, answer in enumerate(g.support()) if answer["engine"] == engine)
    try:
        g.create_execution_plan(index)
        g.build_plan_at_index(0)
    except weft.NotSupportedError:
        return None
    memory = {
        each: weft.DeviceArray([N, N], "f32", handle=checks.handle()).copy_from(array)
        for each, array in arrays.items()
    }
    own = weft.DeviceArray([N, N], "f32", handle=checks.handle()).copy_from(np.full((N, N), np.nan, "f4"))
    result = memory.get(under or "", own)
    slots = {slot.name for slot in g.plan.slots}
    g.plan(**{each: memory[each] for each in "xy" if each in slots}, out={"out": result})
    return np.array(result.numpy())


@pytest.mark.parametrize("engine", engines())
@pytest.mark.parametrize("under", ["x", "y"])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_result_under_an_operand_is_refused_or_right(name: str, under: str, engine: str) -> None:
    want = run(name, engine, None)
    if want is None:
        return
    assert np.isfinite(want).all()
    if under == "x" and name in IS_REFUSED:
        with pytest.raises(weft.BadParameterError, match=OVERLAP):
            run(name, engine, under)
        return
    try:
        got = run(name, engine, under)
    except weft.BadParameterError as refusal:
        if not re.search(OVERLAP, str(refusal)):
            raise
        return
    np.testing.assert_array_equal(got, want)
