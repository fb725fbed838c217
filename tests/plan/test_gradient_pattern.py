"""Plans for an H200 of attention gradients in primitive operations."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import weft
from attention_gradients import Gradients, build
from attention_pattern import Pattern

FAMILY = "cuda.attention_pattern"
HOPPER = r"cuda.attention_hopper: wgmma [^;]*"
LARGE: dict[str, Any] = {"batch": 1, "heads": (16, 16), "rows": 4096, "columns": 4096, "depth": 128}
LARGE |= {"value_depth": 128}
CAUSAL = Pattern(**LARGE, mask="causal")


def inputs_of(n: Gradients, g: weft.Graph) -> dict[str, Any]:
    s = n.forward
    hq, hk = s.heads
    dims = {
        "q": s.dims(s.rows, s.depth, hq),
        "k": s.dims(s.columns, s.depth, hk),
        "v": s.dims(s.columns, s.value_depth, hk),
        "d_o": s.dims(s.rows, s.value_depth, hq),
    }
    if s.side_by_side:
        dims = {name: (b, rows, h, columns) for name, (b, h, rows, columns) in dims.items()}
    made = {name: g.tensor(each, name=name) for name, each in dims.items()}
    if n.weights == "statistics":
        made["o"] = g.tensor(dims["d_o"], name="o")
        made["lse"] = g.tensor(s.dims(s.rows, 1, hq), name="lse", data_type="f32")
    if s.bias:
        made["bias"] = g.tensor(s.bias, name="bias")
    return made


def planned(n: Gradients) -> weft.Graph:
    g = weft.Graph(device="sm_90", io_data_type="bf16")
    for tensor in build(n)(g, **inputs_of(n, g)):
        tensor.set_output(True)
    return g.build()


def steps_of(g: weft.Graph) -> list[tuple[str, str]]:
    return [(step["family"], step["detail"]) for step in g.plan.report["steps"]]


WHOLE = {
    "with o": (Gradients(CAUSAL, o=True), "sdpa_fwd and sdpa_bwd", ", causal"),
    "without o": (Gradients(CAUSAL, zeros=True), "sdpa_fwd and sdpa_bwd", ", causal"),
    "sums of o": (Gradients(CAUSAL, sums="o", o=True), "sdpa_fwd and sdpa_bwd", ", causal"),
    "sums apart": (Gradients(CAUSAL, sums="apart", o=True), "sdpa_fwd and sdpa_bwd", ", causal"),
    "statistics": (Gradients(CAUSAL, weights="statistics", sums="o"), "sdpa_bwd", ", causal"),
    "transposed": (Gradients(CAUSAL, transposed=True, o=True), "sdpa_fwd and sdpa_bwd", ", causal"),
    "queries alone": (Gradients(CAUSAL, wanted=("dq",)), "sdpa_fwd and sdpa_bwd", ", causal"),
    "scaled queries": (Gradients(replace(CAUSAL, scale="query")), "sdpa_fwd and sdpa_bwd", ", causal"),
    "heads side by side": (
        Gradients(replace(CAUSAL, side_by_side=True), o=False, transposed=True),
        "sdpa_fwd and sdpa_bwd",
        ", causal",
    ),
    "copied heads": (
        Gradients(replace(CAUSAL, heads=(16, 4), copied=True), transposed=True),
        "sdpa_fwd and sdpa_bwd",
        ", causal",
    ),
    "products of three dimensions": (
        Gradients(Pattern(**LARGE, batched=True, mask="causal"), sums="o"),
        "sdpa_fwd and sdpa_bwd",
        ", causal",
    ),
    "soft cap": (
        Gradients(replace(CAUSAL, cap=True), zeros=True, o=True),
        "sdpa_fwd and sdpa_bwd",
        ", causal, score modifier",
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_one_step_on_hopper(name: str) -> None:
    """Nothing as large as the scores is stored: what passes between the two, o and statistics, is linear."""
    n, operations, parts = WHOLE[name]
    g = planned(n)
    ((family, detail),) = steps_of(g)
    assert family.startswith(FAMILY)
    kernels = "; ".join([HOPPER] * (2 if "and" in operations else 1))
    assert re.fullmatch(rf"{operations} of \d+ operations{parts}, {kernels}", detail), detail
    s = n.forward
    scores = s.batch * s.heads[0] * s.rows * s.columns
    assert g.get_workspace_size() < scores  # bytes


def test_the_kernels_are_those_of_the_operation() -> None:
    """The generated source is the same, so it is compiled once."""
    one = weft.Graph(device="sm_90", io_data_type="bf16")
    made = inputs_of(Gradients(CAUSAL, weights="statistics"), one)
    names = ("q", "k", "v", "o", "d_o", "lse")
    results = one.sdpa_backward(*[made[each] for each in names], attn_scale=0.375, use_causal_mask=True)
    for tensor in results:
        tensor.set_output(True)
    one.build()
    by_pattern = planned(Gradients(CAUSAL, weights="statistics", sums="o"))
    texts = [[kernel.text for kernel in g.plan.kernels()] for g in (by_pattern, one)]
    assert texts[0] == texts[1]


def test_a_saved_plan_has_it() -> None:
    g = planned(Gradients(CAUSAL, o=True))
    loaded = weft.Graph(device="sm_90").deserialize(g.serialize())
    assert steps_of(loaded) == steps_of(g)


# ---- What is refused, and runs in steps --------------------------------------------------------------------


def refusals(g: weft.Graph) -> str:
    declined = [each for step in g.plan.report["steps"] for each in step["declined"]]
    return "\n".join(each["reason"] for each in declined if each["family"] == FAMILY)


def _weights_are_wanted(g: weft.Graph, q: Any, k: Any, v: Any, d_o: Any) -> list[Any]:
    *results, p = build(Gradients(Pattern(), stored=True))(g, q, k, v, d_o)
    return [*results, p.set_data_type("f32")]


def _given_weights(g: weft.Graph, q: Any, k: Any, v: Any, d_o: Any) -> list[Any]:
    p = g.tensor([2, 4, 64, 64], name="p", data_type="f32")
    dp = g.matmul(d_o, g.transpose(v, [0, 1, 3, 2]), name="dP")
    ds = g.mul(p, g.sub(dp, g.reduction(g.mul(p, dp), "ADD", dims=[3])))
    return [g.matmul(ds, k), g.matmul(g.transpose(ds, [0, 1, 3, 2]), q)]


def _primitive(
    g: weft.Graph,
    q: Any,
    k: Any,
    v: Any,
    d_o: Any,
    *,
    key_scale: float = 1.0,
    sums: Any = None,
    other: Any = None,
) -> list[Any]:
    p = g.softmax(g.matmul(q, g.transpose(k, [0, 1, 3, 2])), name="weights")
    dp = g.matmul(d_o, g.transpose(v, [0, 1, 3, 2]), name="dP")
    total = g.reduction(g.mul(*(sums(g, p, dp, d_o, q) if sums else (p, dp))), "ADD", dims=[3])
    ds = g.mul(p, g.sub(dp, total))
    dk = g.matmul(g.transpose(ds, [0, 1, 3, 2]), other(g, q) if other else q, name="dK")
    return [g.matmul(ds, k, name="dQ"), g.mul(dk, key_scale) if key_scale else dk]


REFUSED = {
    "weights are wanted": (_weights_are_wanted, "is read outside of the attention"),
    "weights are given": (_given_weights, "is stored in memory: attention recomputes weights"),
    "other sums": (
        lambda g, *x: _primitive(g, *x, sums=lambda g, p, dp, d_o, q: (p, p)),
        "is not the row sums of P dP or of dO o",
    ),
    "another factor": (
        lambda g, *x: _primitive(g, *x, key_scale=0.5),
        "has a different factor than the other gradient",
    ),
    "other queries": (
        lambda g, *x: _primitive(g, *x, other=lambda g, q: g.relu(q)),
        "multiplies the gradient of the scores by a tensor other than the queries",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_gradient_of_attention(name: str) -> None:
    make, reason = REFUSED[name]
    g = weft.Graph(device="sm_90", io_data_type="bf16")
    tensors = [g.tensor([2, 4, 64, 64], name=each) for each in ("q", "k", "v", "d_o")]
    for tensor in make(g, *tensors):
        tensor.set_output(True)
    g.build()
    assert not any(family.startswith(FAMILY) for family, _ in steps_of(g))
    assert re.search(reason, refusals(g)), refusals(g)


def test_steps_that_depend_on_o_follow_it() -> None:
    """dO is computed from o: forward and backward cannot be one step, and the plan accounts for that."""
    g = weft.Graph(device="sm_90", io_data_type="bf16")
    q, k, v = (g.tensor([2, 4, 64, 64], name=each) for each in "qkv")
    p = g.softmax(g.matmul(q, g.transpose(k, [0, 1, 3, 2])))
    o = g.matmul(p, v)
    d_o = g.mul(o, 2.0)
    dp = g.matmul(d_o, g.transpose(v, [0, 1, 3, 2]))
    ds = g.mul(p, g.sub(dp, g.reduction(g.mul(p, dp), "ADD", dims=[3])))
    g.matmul(ds, k).set_output(True)
    o.set_output(True)
    g.build()
    assert not any(family.startswith(FAMILY) for family, _ in steps_of(g))


@pytest.mark.parametrize("which", [0, -1])
def test_deterministic_sums_require_deterministic_attention(which: int) -> None:
    """Also if only one of the sums that attention replaces is required to be deterministic."""
    g, n = weft.Graph(device="sm_90", io_data_type="bf16"), Gradients(CAUSAL, o=True)
    for tensor in build(n)(g, **inputs_of(n, g)):
        tensor.set_output(True)
    sums = [each for each in g._operations if each.kind == "reduction"]
    sums[which].values["is_deterministic"] = True
    for graph, relaxations in ((planned(n), ["unordered"]), (g.build(), [])):
        (step,) = graph.plan.report["steps"]
        assert (step["family"], step["relaxations"]) == (FAMILY, relaxations)
