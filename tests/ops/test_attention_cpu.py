"""Tiled attention on the CPU: sizes at tile boundaries, heads that share a panel of queries, split keys,
values that only some queries see, sums of a bias's gradient; and the reasons for leaving cases to the
reference."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import checks
import numpy as np
import pytest
import weft
from attention_oracle import (
    BOTTOM_RIGHT,
    INF,
    Case,
    Modifier,
    backward,
    backward_inputs,
    by_definition,
    forward,
    paged,
    repeat,
    rounded_factors,
    run_backward,
    run_forward,
    softmax,
)

if checks.DEVICE != "cpu":
    pytest.skip("it is about an engine of the CPU", allow_module_level=True)


def served(build: Any, inputs: dict[str, Any], dtype: str = "f32") -> tuple[str, str]:
    """Returns the family that serves an operation on cpu.fast, and the reasons of the others."""
    g = weft.Graph(handle=checks.handle(), intermediate_data_type="f32")
    tensors = {}
    for name, array in inputs.items():
        type_ = {"int32": "i32", "bool": "bool8"}.get(str(array.dtype), dtype)
        tensors[name] = g.tensor(list(array.shape), data_type=type_, name=name)
    for each in build(g, **tensors):
        each.set_output(True)
    names = [answer["engine"] for answer in g.support()]
    g.create_execution_plan(names.index("cpu.fast"))
    g.build_plan_at_index(0)
    step = g.plan.report["steps"][0]
    return step["family"], " ".join(refusal["reason"] for refusal in step["declined"])


def rounded_weights(case: Case, inputs: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Returns the expected result if products are of 16 bits, with rounded weights."""
    weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
    lost = weights * np.abs(case.kept(inputs)) @ np.abs(repeat(inputs["v"], case.heads[0]))
    return {"rounded": [checks.roundoff(dtype) * lost, None, None, None], "layouts": ["packed"]}


def check_forward(case: Case, dtype: str = "f32", magnitude: float = 20) -> None:
    inputs = case.inputs(dtype)
    how = rounded_weights(case, inputs, dtype)
    checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=magnitude, **how)
    assert served(run_forward(case), inputs, dtype)[0] == "cpu.attention"


def check_backward(case: Case, dtype: str = "f32") -> dict[str, Any]:
    operands = backward_inputs(case, case.inputs(dtype), dtype)
    want, lost = by_definition(case, operands)
    how: dict[str, Any] = {"rounded": rounded_factors(lost, dtype), "layouts": ["packed"]}
    assert served(run_backward(case), operands, dtype)[0] == "cpu.attention"
    return checks.check(run_backward(case), operands, want, magnitude=400, **how)


# ---- Sizes: tiles have 128 keys and 32 queries, kernels 6 or 8 rows ----------------------------------------

EDGES = [(31, 127), (32, 128), (33, 129), (31, 257), (257, 33)]


def edge(rows: int, columns: int) -> Case:
    case = Case(heads=(4, 2, 2), rows=rows, columns=columns, depth=33, value_depth=31, right=0)
    return replace(case, alignment=BOTTOM_RIGHT, bias=(1, 4, rows, 1), left=140, sink=True)


@pytest.mark.parametrize(("rows", "columns"), EDGES)
def test_edges_of_tiles(rows: int, columns: int) -> None:
    check_forward(edge(rows, columns))
    check_forward(edge(rows, columns), "bf16")
    check_backward(edge(rows, columns))


@pytest.mark.parametrize("heads", [(6, 2, 1), (8, 1, 1), (20, 20, 20)])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_queries_of_several_heads_share_keys(heads: tuple[int, int, int], dtype: str) -> None:
    """As many of them as are read in place, more, and one, of more heads than a task has; keys in parts, of
    which some see nothing."""
    case = Case(batch=2, heads=heads, rows=2, columns=1500, depth=19, value_depth=70)
    case = replace(case, seq_len_kv=[1500, 17], bias=(2, heads[0], 1, 1500), sink=True)
    check_forward(case, dtype, magnitude=400)


@pytest.mark.parametrize("mask", ["bool8", "f32"])
@pytest.mark.parametrize(("rows", "dtype"), [(1, "f32"), (2, "bf16"), (40, "f32"), (40, "bf16")])
def test_dropout_by_a_mask(rows: int, dtype: str, mask: str) -> None:
    """Includes few queries, whose weights are rows."""
    case = Case(2, (4, 2, 2), rows, 300, 16, 64, drop_mask=(2, 1, rows, 300), drop_type=mask, drop_scale=2.0)
    check_forward(case, dtype, magnitude=100)
    if rows == 40:
        check_backward(case, dtype)


@pytest.mark.parametrize(("rows", "dtype"), [(1, "f32"), (40, "f32"), (40, "bf16")])
def test_queries_with_alibi_and_pages(rows: int, dtype: str) -> None:
    case = Case(rows=rows, columns=300, depth=16, value_depth=64, heads=(4, 2, 2), seq_len_kv=[300, 131])
    case = replace(case, alibi=True)
    inputs = case.inputs(dtype)
    how = rounded_weights(case, inputs, dtype)
    for pages in (16, 7), (64, 0):
        operands = paged(case, inputs, *pages)
        checks.check(run_forward(case), operands, forward(case, inputs), magnitude=100, **how)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_large_scores(dtype: str) -> None:
    """Scores of some thousands: one weight of a row is 1, and all others are 0 or nearly so."""
    case = Case(rows=40, columns=200, depth=40, value_depth=24, heads=(2, 2, 2))
    inputs = case.inputs(dtype)
    inputs["q"] = (32 * inputs["q"].astype(np.float64)).astype(inputs["q"].dtype)
    inputs["k"] = (32 * inputs["k"].astype(np.float64)).astype(inputs["k"].dtype)
    how = rounded_weights(case, inputs, dtype)
    checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=4000, **how)


# ---- What is not seen --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "dtype"), [(5, "f32"), (40, "f32"), (40, "bf16")])
def test_keys_hidden_from_a_query_may_be_nan(rows: int, dtype: str) -> None:
    """Only queries that see a key read it; the other rows of the tile have the same results as without it."""
    case = Case(heads=(2, 2, 2), rows=rows, columns=150, right=0, seq_len_kv=[150, 9], bias=(1, 1, 1, 150))
    inputs = case.inputs(dtype)
    inputs["bias"][..., 1] = -INF
    last = rows - 2
    want, top, how = forward(case, inputs), forward(case, inputs)[2], rounded_weights(case, inputs, dtype)
    for key in ("k", "v"):
        inputs[key][:, :, 1] = INF
        inputs[key][0, :, last] = np.nan
        inputs[key][1, :, 9:] = np.nan
    for each in want:
        each[0, :, last:] = np.nan
    want[2] = np.where(np.isnan(want[2]), top, want[2])
    found = checks.check(run_forward(case), inputs, [*want[:2], None, want[3]], magnitude=20, **how)
    assert all(np.isfinite(each[0][1]).all() for each in found.values())


def test_gradients_of_keys_hidden_from_a_query() -> None:
    case = Case(batch=1, heads=(2, 2, 2), rows=40, columns=40, right=0)
    operands = backward_inputs(case, case.inputs("f32"), "f32")
    want, _ = by_definition(case, operands)
    for key in ("k", "v"):
        operands[key][0, :, 38] = np.nan
    dq, *_ = want
    dq[0, :, 38:] = np.nan
    checks.check(run_backward(case), operands, [dq, None, None], magnitude=200, layouts=["packed"])


# ---- Gradients ---------------------------------------------------------------------------------------------

BIASES = [(2, 4, 40, 140), (1, 4, 1, 140), (2, 1, 40, 1), (1, 1, 1, 1), (2, 4, 1, 1)]


@pytest.mark.parametrize("bias", BIASES)
def test_gradient_of_a_bias(bias: tuple[int, int, int, int]) -> None:
    check_backward(Case(heads=(4, 2, 2), rows=40, columns=140, bias=bias, right=3, alignment=BOTTOM_RIGHT))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_keys_in_parts_give_the_same_gradients(dtype: str) -> None:
    case = Case(batch=1, heads=(3, 1, 1), rows=9, columns=1100, depth=24, value_depth=16, seq_len_kv=[1050])
    check_backward(replace(case, bias=(1, 3, 1, 1)), dtype)


SATURATED = {
    "plain": Case(heads=(2, 2, 2), rows=24, columns=32),
    "grouped, causal": Case(heads=(4, 2, 1), rows=33, columns=40, right=0, alignment=BOTTOM_RIGHT),
    "padding": Case(rows=20, columns=40, seq_len_q=[3, 20], seq_len_kv=[40, 17]),
    "sink": Case(heads=(2, 1, 1), rows=20, columns=40, sink=True),
    "keys in parts": Case(batch=1, heads=(1, 1, 1), rows=5, columns=1100),
}


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", SATURATED)
def test_gradients_of_a_saturated_softmax(name: str, dtype: str) -> None:
    """Weights of nearly 1 and nearly 0: what is left of P (dP - sum of P dP) is less than o is rounded by."""
    case = replace(SATURATED[name], depth=8, value_depth=8, scale=8**-0.5)
    inputs = case.inputs("f32")
    inputs |= {key: checks.narrow(checks.exact(inputs[key]) * 4, dtype) for key in "qk"}
    inputs["v"] = checks.narrow(checks.exact(inputs["v"]), dtype)
    operands = backward_inputs(case, inputs, dtype)
    want = list(backward(case, inputs, operands["dO"]).values())
    found = checks.check(run_backward(case), operands, [None] * len(want), out=dtype, layouts=["packed"])
    for engine, gradients in found.items():
        for got, expected in zip(gradients[:3], want[:3], strict=True):
            error = np.linalg.norm(checks.exact(got) - expected) / np.linalg.norm(expected)
            assert error < checks.roundoff(dtype), f"{engine}: {error}"


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_gradient_of_the_statistics_in_a_column_of_o(dtype: str) -> None:
    """dO of 1, values of 0 and an o of -g add P g to the gradients of scores, also in saturated rows."""
    case = replace(SATURATED["plain"], depth=8, value_depth=9, scale=8**-0.5)
    inputs = {key: checks.narrow(checks.exact(x), dtype) for key, x in case.inputs("f32").items()}
    inputs |= {key: checks.narrow(checks.exact(inputs[key]) * 4, dtype) for key in "qk"}
    inputs["v"][..., 8] = 0
    operands = backward_inputs(case, inputs, dtype)
    operands["dO"][..., 8] = 1
    g = checks.random(operands["o"].shape[:3], dtype, seed=9)
    operands["o"][..., 8] = -g
    weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
    added = case.scale * (weights * checks.exact(g)[..., None]) @ checks.exact(inputs["k"])
    want = backward(case, inputs, operands["dO"])["dQ"] + added
    found = checks.check(run_backward(case), operands, [None] * 3, out="f32", layouts=["packed"])
    for engine, (got, *_) in found.items():
        error = np.linalg.norm(checks.exact(got) - want) / np.linalg.norm(want)
        assert error < 4 * checks.roundoff(dtype), f"{engine}: {error}"


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_parts_of_keys_with_the_statistics_of_all(dtype: str) -> None:
    """Rows without all of their weights go by o: gradients of parts add up to those of the whole."""
    whole = Case(heads=(2, 1, 1), rows=24, columns=40, depth=8, value_depth=8)
    inputs = whole.inputs("f32")
    inputs = {key: checks.narrow(checks.exact(each), dtype) for key, each in inputs.items()}
    operands = backward_inputs(whole, inputs, dtype)
    exact, parts = backward(whole, inputs, operands["dO"])["dQ"], []
    for part in slice(0, 20), slice(20, 40):
        some = operands | {key: np.ascontiguousarray(operands[key][:, :, part]) for key in "kv"}
        build = run_backward(replace(whole, columns=20))
        parts.append(checks.check(build, some, [None] * 3, out="f32", layouts=["packed"]))
    for engine in parts[0]:
        error = parts[0][engine][0] + parts[1][engine][0] - exact
        assert np.abs(error).max() < 4 * checks.roundoff(dtype) * np.abs(exact).max(), engine


@pytest.mark.parametrize("heads", [(12, 4, 6), (6, 1, 3), (4, 4, 1), (6, 3, 2)])
def test_heads_of_keys_and_values_that_differ(heads: tuple[int, int, int]) -> None:
    case = Case(heads=heads, rows=40, columns=140, depth=9, value_depth=12, right=0, alignment=BOTTOM_RIGHT)
    check_forward(case)
    check_backward(case)


SOFT_CAP = Modifier(
    lambda g, s, _: g.mul(g.tanh(g.mul(s, 0.5)), 2.0),
    lambda s, *_: 2 * np.tanh(s / 2),
    lambda s, *_: 1 - np.tanh(s / 2) ** 2,
)
OF_INDICES = Modifier(
    lambda g, s, t: g.add(
        g.sub(g.mul(s, t["gate"]), g.mul(g.gen_index(s, axis=1), 0.25)),
        g.mul(g.sub(g.gen_index(s, axis=2), g.gen_index(s, axis=3)), 0.015625),
    ),
    lambda s, b, h, i, j, gate: s * gate - h / 4 + (i - j) * 0.015625,
    lambda s, b, h, i, j, gate: gate + 0 * s,
    {"gate": (2, 4, 1, 130)},
)


@pytest.mark.parametrize("modifier", [SOFT_CAP, OF_INDICES], ids=["soft cap", "of indices"])
@pytest.mark.parametrize("rows", [1, 33])
def test_score_modifiers(modifier: Modifier, rows: int) -> None:
    case = Case(heads=(4, 2, 2), rows=rows, columns=130, modifier=modifier, right=100)
    check_forward(case)
    check_backward(case)


PROGRAM = """
import sys
sys.path[:0] = {paths!r}
import numpy as np
from test_attention_cpu import check_backward, Case
case = Case(batch=3, heads=(2, 1, 1), rows=70, columns=300, bias=(1, 1, 1, 300))
made = check_backward(case)["cpu.fast"]
again = check_backward(case)["cpu.fast"]
assert all((a == b).all() for a, b in zip(made, again)), "two runs differ"
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_threads(threads: int) -> None:
    """The numbers are right on any number of threads, and two runs agree to the bit."""
    paths = [os.path.dirname(os.path.abspath(__file__)), *sys.path]
    subprocess.run(
        [sys.executable, "-c", PROGRAM.format(paths=paths)],
        env=os.environ | {"WEFT_THREADS": str(threads)},
        check=True,
    )


# ---- What is left to the reference -------------------------------------------------------------------------


def test_refusals() -> None:
    case = Case(heads=(4, 2, 1))
    assert served(run_forward(case), case.inputs("f32"))[0] == "cpu.attention"
    family, said = served(run_forward(case), case.inputs(), "f64")
    assert family == "cpu.reference"
    assert "q is f64, which only the reference computes, in double. Use FLOAT, HALF" in said
    scaled = replace(case, options={"scale_o": np.ones((1, 1, 1, 1), np.float32)})
    family, said = served(run_forward(scaled), case.inputs("f32"))
    assert family == "cpu.reference"
    assert "only the reference supports scales, amax and the dropout mask as a result" in said
