"""Plans for an H200 of attention in primitive operations."""

from __future__ import annotations

import re
from typing import Any

import pytest
import weft
from attention_pattern import MASKS, NEAR_MISSES, NEARLY, Pattern, build

FAMILY = "cuda.attention_pattern"
LARGE: dict[str, Any] = {"batch": 4, "heads": (16, 4), "rows": 1024, "columns": 1024, "depth": 128}
LARGE |= {"value_depth": 128}


def graph(**options: Any) -> weft.Graph:
    return weft.Graph(device="sm_90", io_data_type="bf16", **options)


def planned(g: weft.Graph, outputs: Any) -> list[tuple[str, str]]:
    """Family and detail of each step."""
    for tensor in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
        tensor.set_output(True)
    return [(step["family"], step["detail"]) for step in g.build().plan.report["steps"]]


def inputs_of(s: Pattern, g: weft.Graph) -> dict[str, Any]:
    hq, hk = s.heads
    made = {
        "q": g.tensor(s.dims(s.rows, s.depth, hq)),
        "k": g.tensor(s.dims(s.columns, s.depth, hk)),
        "v": g.tensor(s.dims(s.columns, s.value_depth, hk)),
    }
    if s.mask in ("given", "given and causal", "given number"):
        made["mask"] = g.tensor([1, 1, s.rows, s.columns], data_type="bool")
    if s.bias:
        made["bias"] = g.tensor(s.bias)
    return made


def plan(s: Pattern, **options: Any) -> list[tuple[str, str]]:
    g = graph(**options)
    made = build(s)(g, **inputs_of(s, g))
    for statistic in made[1:] if s.stats else ():
        statistic.set_data_type("f32")
    return planned(g, made)


@pytest.mark.parametrize("intermediate", [None, "f32"])
@pytest.mark.parametrize("softmax", ["operation", "div", "reciprocal"])
def test_one_step_on_hopper(softmax: str, intermediate: str | None) -> None:
    s = Pattern(**LARGE, mask="causal", softmax=softmax, stats=True)
    ((family, detail),) = plan(s, intermediate_data_type=intermediate)
    assert family == FAMILY
    assert re.match(r"sdpa_fwd of \d+ operations, causal, cuda.attention_hopper: wgmma", detail), detail


def test_dropout_by_a_mask_is_one_step_on_hopper() -> None:
    g = graph(intermediate_data_type="f32")
    s = Pattern(**LARGE, mask="causal", drop_mask="bool8")
    mask = g.tensor([1, 1, s.rows, s.columns], data_type="bool8")
    ((family, detail),) = planned(g, build(s)(g, **inputs_of(s, g), drop=mask))
    assert family == FAMILY
    assert re.match(r"sdpa_fwd of \d+ operations, causal, dropout, cuda.attention_hopper:", detail), detail


def test_a_mask_that_turns_weights_over_is_no_dropout() -> None:
    g = graph(intermediate_data_type="f32")
    q, mask = g.tensor([4, 16, 1024, 128]), g.tensor([4, 1, 1024, 1024])
    p = g.mul(g.mul(g.softmax(g.matmul(q, g.transpose(q, [0, 1, 3, 2]))), mask), -2.0)
    g.matmul(p, q).set_output(True)
    steps = g.build().plan.report["steps"]
    assert FAMILY not in [step["family"] for step in steps]
    reasons = " ".join(each["reason"] for step in steps for each in step["declined"])
    assert "scales the weights that dropout keeps by a negative number" in reasons


BOUNDED = {
    **dict.fromkeys([name for name in MASKS if name.startswith("causal")], ", causal,"),
    **dict.fromkeys(["shifted", "window", "outside of a window"], ", bounded,"),
    "causal by a small number": ", score modifier,",  # which a row of nothing else would show
    "added": ", causal,",
    "even": ", score modifier,",
    "given": ", mask,",
    "given number": ", score modifier,",
    "given and causal": ", causal, mask,",
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_become_tile_skips(name: str) -> None:
    ((family, detail),) = plan(Pattern(**LARGE, mask=name))
    assert family == FAMILY
    assert f"operations{BOUNDED[name]} cuda.attention_hopper" in detail


PARTS = {
    "plain": (Pattern(**LARGE), " cuda"),
    "bias": (Pattern(**LARGE, bias=(1, 16, 1024, 1024)), " bias, cuda"),
    "soft cap": (Pattern(**LARGE, cap=True, bias=(1, 1, 1, 1024)), " bias, score modifier, cuda"),
    "dropout": (Pattern(**LARGE, dropout=0.25), " dropout, cuda"),
    "scaled queries": (Pattern(**LARGE, scale="query"), " cuda"),
    "a bias under a number that hides": (
        Pattern(**LARGE, bias=(1, 16, 1024, 1024), mask="causal by a number"),
        " score modifier, cuda",
    ),
    "a product of a type": (Pattern(**LARGE, types={"product": "bf16"}), " score modifier, cuda"),
    "weights of the values' type": (Pattern(**LARGE, types={"weights": "bf16"}), " cuda"),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_scores(name: str) -> None:
    s, described = PARTS[name]
    ((family, detail),) = plan(s)
    assert family == FAMILY
    assert re.match(rf"sdpa_fwd of \d+ operations,{described}.attention_hopper: ", detail), detail


def test_interleaved_heads_are_read_in_place() -> None:
    """Transposes of queries, keys and values become strides of the operands, that of the result strides of
    the output."""
    g = graph()
    s = Pattern(**LARGE, side_by_side=True, joined=True, mask="causal")
    q = g.tensor([4, 1024, 16, 128])
    k, v = g.tensor([4, 1024, 4, 128]), g.tensor([4, 1024, 4, 128])
    ((family, detail),) = planned(g, build(s)(g, q=q, k=k, v=v))
    assert (family, "cuda.attention_hopper" in detail) == (FAMILY, True)


@pytest.mark.parametrize("how", ["batched", "copied"])
def test_views_and_copies_of_heads(how: str) -> None:
    """No step computes them: a three-dimensional product is treated as a four-dimensional one, and copied
    heads as shared."""
    ((family, detail),) = plan(Pattern(**LARGE, **{how: True}, mask="causal"))
    assert (family, ", causal, cuda.attention_hopper" in detail) == (FAMILY, True)


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_of_attention_are_declined(name: str) -> None:
    """Declined, with the reason that the planner reports for the last product."""
    near = NEAR_MISSES[name]
    g = graph()
    q, v = g.tensor(NEARLY), g.tensor(NEARLY)
    k = g.tensor([2, 3, 8, 16])
    assert FAMILY not in [family for family, _ in planned(g, near.build(g, q, k, v))]
    refusals = [reason for step in g.plan.report["steps"] for reason in step.get("declined", [])]
    assert any(re.search(near.reason, str(reason)) for reason in refusals), refusals


def test_one_mask_for_several() -> None:
    """Each attention knows its bounds; the mask itself is computed only for its other readers."""
    g = graph()
    q, k, v = g.tensor([4, 16, 1024, 128]), g.tensor([4, 16, 128, 1024]), g.tensor([4, 16, 1024, 128])
    shape = g.tensor([1, 1, 1024, 1024])
    causal = g.cmp_ge(g.gen_index(shape, axis=2), g.gen_index(shape, axis=3))
    outputs = []
    for _ in range(3):
        q = g.matmul(g.softmax(g.binary_select(g.matmul(q, k), -float("inf"), causal)), v)
        outputs.append(q)
    steps = planned(g, outputs)
    assert [family for family, _ in steps].count(FAMILY) == 3
    assert all("causal" in detail for family, detail in steps if family == FAMILY)


def test_a_saved_plan_has_it() -> None:
    g = graph()
    s = Pattern(**LARGE, mask="causal")
    steps = planned(g, build(s)(g, **inputs_of(s, g)))
    loaded = weft.Graph(device="sm_90").deserialize(g.serialize())
    assert [(step["family"], step["detail"]) for step in loaded.plan.report["steps"]] == steps


def test_kernels_are_those_of_the_operation() -> None:
    """The generated source is the same, so it is compiled once."""
    g = graph()
    s = Pattern(**LARGE, scale="mul", mask="causal")
    planned(g, build(s)(g, **inputs_of(s, g)))
    one = graph()
    q, k, v = (one.tensor(tensor.get_dim()) for tensor in inputs_of(s, one).values())
    result, _ = one.sdpa(q, k, v, attn_scale=0.375, use_causal_mask=True)
    planned(one, result)
    texts = [[kernel.text for kernel in each.plan.kernels()] for each in (g, one)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("rounds", ["twice", "once"])
def test_a_result_that_is_rounded_twice_is_not_rounded_once(rounds: str) -> None:
    g = graph()
    q, k, v = g.tensor([4, 16, 1024, 128]), g.tensor([4, 16, 128, 1024]), g.tensor([4, 16, 1024, 128])
    o = g.matmul(g.softmax(g.matmul(q, k)), v)
    if rounds == "twice":
        o.set_data_type("bf16")
    steps = planned(g, g.transpose(o, [0, 2, 1, 3]).set_data_type("f32"))
    assert steps[0][0] == FAMILY
    assert len(steps) == (2 if rounds == "twice" else 1)


# Sizes, and the fastest option: only attention, one of the products with everything else separate, or several
# steps.
PRICES = {
    "attention": (Pattern(heads=(4, 4), rows=1024, columns=1024, depth=64, value_depth=64), "bf16", None),
    "a deep head": (
        Pattern(batch=1, heads=(1, 1), rows=2048, columns=2048, depth=512, value_depth=512),
        "bf16",
        r".*: predicted time \S+ us, cuda.hopper takes \S+ us$",
    ),
    "floats": (
        Pattern(batch=1, heads=(1, 1), rows=64, columns=64, depth=64, value_depth=64, mask="causal"),
        "f32",
        r"matmul 'values': predicted time \S+ us, \S+ us in separate steps$",
    ),
}


@pytest.mark.parametrize("name", PRICES)
def test_what_is_faster_in_steps_stays_in_steps(name: str) -> None:
    s, dtype, why = PRICES[name]
    g = weft.Graph(device="sm_90", io_data_type=dtype)
    steps = planned(g, build(s)(g, **inputs_of(s, g)))
    assert (FAMILY in [family for family, _ in steps]) == (why is None)
    declined = [reason for step in g.plan.report["steps"] for reason in step["declined"]]
    told = [each["reason"] for each in declined if each["family"] == FAMILY]
    assert why is None or any(re.match(why, reason) for reason in told), told


@pytest.mark.parametrize("math", ["FAST_FLOAT_FOR_FP8", "i32"])
def test_products_that_sum_in_other_types(math: str) -> None:
    """They are examined like others, and run as products."""
    g = weft.Graph(device="sm_90", compute_data_type=math)
    type_ = "i8" if math == "i32" else "e4m3"
    g.matmul(g.tensor([1, 64, 64], data_type=type_), g.tensor([1, 64, 64], [4096, 1, 64], data_type=type_))
    g.build()
    assert [step["family"] for step in g.plan.report["steps"]] == ["cuda.hopper"]
