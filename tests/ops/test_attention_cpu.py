"""Attention on the CPU by tiles: sizes at tiles' edges, heads that share a panel of queries, keys in parts;
and what it leaves to the reference."""

from __future__ import annotations

from dataclasses import replace

import checks
import numpy as np
import pytest
import weft
from attention_oracle import BOTTOM_RIGHT, INF, Case, forward, paged, repeat, run_forward, softmax

if checks.DEVICE != "cpu":
    pytest.skip("it is about an engine of the CPU", allow_module_level=True)


def family_of(g: weft.Graph) -> tuple[str, str]:
    """Who serves a graph of one operation on cpu.fast, and what the first family said otherwise."""
    names = [answer["engine"] for answer in g.support()]
    g.create_execution_plan(names.index("cpu.fast"))
    g.build_plan_at_index(0)
    step = g.plan.report["steps"][0]
    return step["family"], " ".join(refusal["reason"] for refusal in step["declined"])


# Tiles have 128 keys and 32 queries; kernels 8, or 6, rows.
@pytest.mark.parametrize("columns", [127, 128, 129, 257])
@pytest.mark.parametrize("rows", [31, 32, 33])
def test_sizes_at_the_edges_of_tiles(rows: int, columns: int) -> None:
    case = Case(heads=(4, 2, 2), rows=rows, columns=columns, depth=33, value_depth=31, right=0)
    case = replace(case, alignment=BOTTOM_RIGHT, bias=(1, 4, rows, 1), left=140, sink=True)
    inputs = case.inputs("f32")
    checks.check(run_forward(case), inputs, forward(case, inputs), magnitude=20, layouts=["packed"])


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_a_query_of_each_head_shares_keys(dtype: str) -> None:
    """Several heads in one panel, and keys in parts, of which some see nothing."""
    case = Case(batch=2, heads=(6, 2, 1), rows=3, columns=1500, depth=16, value_depth=24)
    case = replace(case, seq_len_kv=[1500, 17], bias=(2, 6, 1, 1500), alibi=True, sink=True)
    inputs = case.inputs(dtype)
    weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
    lost = np.einsum("bhij,bhjd->bhid", weights, np.abs(repeat(inputs["v"], 6)))
    rounded = [checks.roundoff(dtype) * lost, None, None, None]
    checks.check(
        run_forward(case), inputs, forward(case, inputs), magnitude=400, rounded=rounded, layouts=["packed"]
    )


def test_what_one_query_does_not_see_may_be_nan() -> None:
    """Only who sees a key reads it; the tile's others are as without it."""
    case = Case(rows=40, columns=150, right=0, seq_len_kv=[150, 9], bias=(1, 1, 1, 150))
    inputs = case.inputs("f32")
    inputs["bias"][..., 2] = -INF
    want = forward(case, inputs)
    for key in ("k", "v"):
        inputs[key][:, :, 2] = INF
        inputs[key][0, :, 38] = np.nan
        inputs[key][1, :, 9:] = np.nan
    for each in want:
        each[0, :, 38:] = np.nan
    want[2][0, :, 38:] = forward(case, case.inputs("f32"))[2][0, :, 38:]
    checks.check(run_forward(case), inputs, want, magnitude=20, layouts=["packed"])


PAGES = Case(rows=5, columns=300, depth=16, value_depth=16, heads=(4, 2, 2), seq_len_kv=[300, 131])


def test_pages() -> None:
    inputs = PAGES.inputs("f32")
    pages = paged(PAGES, inputs, 16, 7)
    checks.check(run_forward(PAGES), pages, forward(PAGES, inputs), magnitude=20, layouts=["packed"])
