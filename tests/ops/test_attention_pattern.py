"""Attention in primitive operations (products, pointwise operations and a softmax): values against NumPy in
float64 on every engine, with any plan."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import checks
import numpy as np
import pytest
from attention_pattern import DROPOUTS, MASKS, NEAR_MISSES, NEARLY, Pattern, build, expected
from random_words import units

PARTS = {
    "plain": Pattern(scale=None),
    "scaled": Pattern(),
    "keys by strides": Pattern(keys="strides", scale="div"),
    "heads side by side": Pattern(side_by_side=True),
    "heads joined": Pattern(side_by_side=True, joined=True, heads=(4, 2)),
    "products of three dimensions": Pattern(batched=True, heads=(4, 2), bias=(2, 1, 7, 9), mask="causal"),
    "copied heads": Pattern(copied=True, heads=(6, 2)),
    "one copied head": Pattern(copied=True, heads=(3, 1), scale="query"),
    "scaled queries": Pattern(scale="query"),
    "scaled keys": Pattern(scale="key", keys="strides"),
    "scale in memory": Pattern(scale="tensor"),
    "scaled twice": Pattern(scale="twice", value_depth=5),
    "soft cap": Pattern(cap=True, mask="causal"),
    "bias": Pattern(bias=(2, 4, 7, 9)),
    "bias of heads": Pattern(bias=(1, 4, 1, 9), cap=True),
    "grouped heads": Pattern(heads=(6, 2), mask="causal"),
    "one matrix": Pattern(rank=2, heads=(1, 1), mask="causal"),
    "three dimensions": Pattern(rank=3, heads=(6, 3), bias=(1, 6, 7, 9), mask="window"),
    "five dimensions": Pattern(rank=5, heads=(6, 3), mask="causal"),
    "sink": Pattern(sink=True, stats=True),
    "statistics": Pattern(stats=True, mask="causal"),
    "softmax by division": Pattern(softmax="div", stats=True),
    "softmax by a reciprocal": Pattern(softmax="reciprocal", cap=True),
    "dropout": Pattern(dropout=0.25, mask="causal"),
    "dropout by a mask": Pattern(drop_mask="bool8", mask="causal"),
    "dropout by numbers": Pattern(drop_mask="f32", heads=(4, 2), rank=5),
    "one query": Pattern(rows=1, columns=40, heads=(4, 2)),
    "no keys hidden": Pattern(rows=9, columns=7, bias=(1, 1, 9, 7)),
}


def compare(s: Pattern, inputs: dict[str, Any], want: list[Any], layout: str, **how: Any) -> None:
    """The reference, too, rounds to FLOAT between operations."""
    limits = {name: how.pop(name) for name in ("rounded", "ulps") if name in how}
    nothing = [None] * len(want)
    found = checks.check(build(s), inputs, nothing if len(want) > 1 else None, layouts=[layout], **how)
    for engine, results in found.items():
        for i, (got, wide) in enumerate(zip(results, want, strict=True)):
            loss = {**limits, "rounded": limits["rounded"] if i == 0 else None}
            name = "cpu.fast" if engine.startswith("cpu") else engine
            dtype = checks._type_of(got)
            wrong = checks.compare(got, wide, dtype, engine=name, magnitude=40, **loss)
            assert not wrong, f"{engine}, {layout}, output {i}: {wrong}"


def check(s: Pattern, dtype: str, layouts: tuple[str, ...] = ("packed", "padded")) -> None:
    inputs = s.inputs(dtype)
    want, behind = expected(s, inputs)
    for layout in layouts:
        compare(s, inputs, want, layout, rounded=checks.roundoff(dtype) * behind)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", PARTS)
def test_parts(name: str, dtype: str) -> None:
    check(PARTS[name], dtype)


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    check(Pattern(mask=name), "f16")
    check(Pattern(mask=name, rows=9, columns=5, bias=(1, 4, 1, 1), heads=(4, 2)), "f32", layouts=("packed",))


@pytest.mark.parametrize("part", ["product", "scores", "weights"])
def test_types_that_were_set(part: str) -> None:
    """Scores are rounded where they were asked to be; numbers with few digits tell, and cross no border."""
    s = Pattern(types={part: "bf16"}, scale=None, depth=3)
    inputs = s.inputs("bf16")
    rng = np.random.default_rng(7)
    for name in "qk":
        inputs[name] = checks.narrow(rng.integers(-9, 10, inputs[name].shape) * 1.125, "bf16")
    want, behind = expected(s, inputs)
    plain, _ = expected(replace(s, types={}), inputs)
    rounded = 2 * checks.roundoff("bf16") * behind
    compare(s, inputs, want, "packed", rounded=rounded, out="bf16", ulps=2)
    assert part == "weights" or np.abs(want[0] - plain[0]).max() > 8 * rounded.max()


def test_rows_without_a_key() -> None:
    """As the softmax has it: they give 0."""
    s = Pattern(mask="shifted", rows=9, columns=4, side_by_side=True)
    inputs = s.inputs("bf16")
    mask = np.ones((1, 1, 9, 4), bool)
    mask[..., 5, :] = False
    for mask_name in "given", "given and causal":
        given = replace(s, mask=mask_name)
        want, behind = expected(given, inputs | {"mask": mask})
        assert (want[0][:, :, 5] == 0).all()
        compare(given, inputs | {"mask": mask}, want, "packed", rounded=checks.roundoff("bf16") * behind)


@pytest.mark.parametrize("output", [True, False])
def test_a_dropout_mask_that_others_read(output: bool) -> None:
    q, k, v = (checks.random(NEARLY, "bf16", seed=seed, low=-1, high=1) for seed in (1, 2, 3))
    keeps = (units((2, 3, 16, 16), seed=5) < 0.5).astype(float)
    scores = checks.exact(q) @ checks.exact(k).swapaxes(2, 3)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)

    def build(g: Any, q: Any, k: Any, v: Any) -> Any:
        kept = g.rng(5, bernoulli_probability=0.5).set_dim([2, 3, 16, 16])
        p = g.mul(g.mul(g.softmax(g.matmul(q, g.transpose(k, [0, 1, 3, 2]))), kept), 2.0)
        return g.matmul(p, v), kept if output else g.add(kept, 1.0)

    want = [(2 * weights * keeps) @ checks.exact(v), keeps if output else keeps + 1]
    found = checks.check(build, {"q": q, "k": k, "v": v}, [None, want[1]], layouts=["packed"])
    for o, _ in found.values():
        np.testing.assert_allclose(checks.exact(o), want[0], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("sizes", [{"rows": 0}, {"columns": 0}, {"batch": 0}, {"depth": 0}])
def test_sizes_of_zero(sizes: dict[str, int]) -> None:
    check(Pattern(**sizes, mask="causal"), "bf16", ("packed",))


def test_one_tensor_in_all_roles() -> None:
    x = checks.random((2, 3, 9, 8), "bf16", seed=1)
    wide = checks.exact(x)
    scores = wide @ wide.swapaxes(2, 3) * 0.3
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ wide

    def build(g: Any, x: Any) -> Any:
        return g.matmul(g.softmax(g.mul(g.matmul(x, g.transpose(x, [0, 1, 3, 2])), 0.3)), x)

    for (got,) in checks.check(build, {"x": x}, None, layouts=["packed"]).values():
        np.testing.assert_allclose(checks.exact(got), want, rtol=0.02, atol=0.02)


def _mutant(seed: int) -> Pattern:
    """Draws a random decomposition."""
    draw = random.Random(seed)
    rank = draw.choice([2, 3, 4, 4, 4, 5])
    heads = (1, 1) if rank == 2 else draw.choice([(4, 4), (4, 2), (6, 1), (3, 3)])
    rows, columns = draw.choice([(7, 9), (16, 16), (9, 5), (1, 17), (33, 40)])
    bias = tuple(draw.choice([1, extent]) for extent in (2, heads[0], rows, columns))
    is_softmax = draw.random() < 0.5
    return Pattern(
        rank=rank,
        heads=heads,
        rows=rows,
        columns=columns,
        depth=draw.choice([3, 8, 16]),
        value_depth=draw.choice([5, 8, 16]),
        keys=draw.choice(["operation", "strides"]),
        side_by_side=rank == 4 and draw.random() < 0.3,
        joined=rank == 4 and draw.random() < 0.3,
        scale=draw.choice([None, "mul", "div", "query", "key", "tensor", "twice"]),
        cap=draw.random() < 0.3,
        bias=bias if rank < 5 and draw.random() < 0.4 else None,
        mask=draw.choice([None, *MASKS]),
        softmax="operation" if is_softmax else draw.choice(["div", "reciprocal"]),
        sink=is_softmax and rank == 4 and draw.random() < 0.2,
        stats=draw.random() < 0.3,
        **draw.choice(DROPOUTS),
    )


@pytest.mark.parametrize("seed", range(60))
def test_mutants(seed: int) -> None:
    """A failing one can be repeated by its number."""
    check(_mutant(seed), random.Random(seed).choice(["f32", "f16", "bf16", "f64"]), layouts=("packed",))


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_of_attention_are_declined(name: str) -> None:
    near = NEAR_MISSES[name]
    q, k, v = (checks.random(NEARLY, "bf16", seed=seed, low=-1, high=1) for seed in (1, 2, 3))
    k = np.ascontiguousarray(k.swapaxes(2, 3))
    want = near.value(*(checks.exact(each) for each in (q, k, v)))
    many = isinstance(want, list)

    def build(g: Any, **tensors: Any) -> Any:
        return near.build(g, *tensors.values())

    nothing = [None] * len(want) if many else None
    found = checks.check(build, {"q": q, "k": k, "v": v}, nothing, layouts=["packed"])
    for results in found.values():
        for got, wide in zip(results, want if many else [want], strict=True):
            np.testing.assert_allclose(checks.exact(got), wide, rtol=0.03, atol=0.03)
