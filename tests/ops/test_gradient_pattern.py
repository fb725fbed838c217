"""Attention gradients in primitive operations: values against NumPy in float64 on every engine, with any
plan."""

from __future__ import annotations

import random

import checks
import numpy as np
import pytest
from attention_gradients import KEEPS, Gradients, build, expected
from attention_pattern import DROPOUTS, Pattern

PARTS = {
    "plain": Gradients(Pattern(scale=None)),
    "scaled": Gradients(Pattern()),
    "with o": Gradients(Pattern(mask="causal"), o=True),
    "sums of o": Gradients(Pattern(mask="causal"), sums="o", o=True),
    "sums of an o that nobody wants": Gradients(Pattern(scale="div"), sums="o"),
    "sums apart": Gradients(Pattern(mask="causal"), sums="apart", o=True),
    "transposed": Gradients(Pattern(mask="causal"), transposed=True, zeros=True),
    "direct": Gradients(Pattern(), direct=True, scaled="results"),
    "statistics": Gradients(Pattern(mask="causal"), weights="statistics", sums="o"),
    "statistics of a bias": Gradients(Pattern(bias=(2, 4, 7, 9)), weights="statistics", sums="o"),
    "heads side by side": Gradients(Pattern(side_by_side=True, mask="causal"), o=False, transposed=True),
    "keys by strides": Gradients(Pattern(keys="strides"), o=True),
    "scaled queries": Gradients(Pattern(scale="query"), transposed=True),
    "scaled keys": Gradients(Pattern(scale="key")),
    "scale in memory": Gradients(Pattern(scale="tensor")),
    "scaled twice": Gradients(Pattern(scale="twice", value_depth=5)),
    "soft cap": Gradients(Pattern(cap=True, mask="causal"), zeros=True, o=True),
    "soft cap by its mode": Gradients(Pattern(cap=True, scale="div"), cap="backward"),
    "soft cap, scaled behind": Gradients(Pattern(cap=True, mask="window"), scaled="results"),
    "bias": Gradients(Pattern(bias=(2, 4, 7, 9), mask="causal"), o=True),
    "bias of heads": Gradients(Pattern(bias=(1, 4, 1, 9), cap=True), zeros=False),
    "a mask that is given": Gradients(Pattern(mask="given"), zeros=True, o=True),
    "a mask of two": Gradients(Pattern(mask="given and causal"), zeros=True),
    "even": Gradients(Pattern(mask="even"), zeros=True),
    "even, without zeros": Gradients(Pattern(mask="even"), o=True),
    "hidden by a number": Gradients(Pattern(mask="causal by a number"), zeros=True),
    "hidden by a small number": Gradients(Pattern(mask="causal by a small number"), zeros=True),
    "dropout": Gradients(Pattern(dropout=0.25, mask="causal"), o=True),
    "dropout by a mask": Gradients(Pattern(drop_mask="bool8", mask="causal"), o=True),
    "dropout by numbers and sums of o": Gradients(Pattern(drop_mask="f32"), sums="o"),
    "dropout and sums of o": Gradients(Pattern(dropout=0.5), sums="o"),
    "one matrix": Gradients(Pattern(rank=2, heads=(1, 1), mask="causal")),
    "three dimensions": Gradients(Pattern(rank=3, heads=(3, 3), bias=(1, 3, 7, 9), mask="window"), o=True),
    "five dimensions": Gradients(Pattern(rank=5, heads=(6, 3), mask="causal")),
    "one head of keys": Gradients(Pattern(heads=(4, 1), mask="causal"), sums="o", transposed=True),
    "copied heads": Gradients(Pattern(heads=(6, 2), copied=True), o=True),
    "copied heads, transposed": Gradients(Pattern(heads=(6, 2), copied=True), transposed=True),
    "products of three dimensions": Gradients(Pattern(batched=True, bias=(2, 1, 7, 9)), o=True),
    "products of three, sums of o": Gradients(Pattern(batched=True), sums="o", transposed=True),
    "a sink": Gradients(Pattern(sink=True, mask="causal"), o=True),
    "scaled by nothing": Gradients(Pattern(scale="zero")),
    "softmax by division": Gradients(Pattern(softmax="div", mask="causal"), o=True),
    "softmax by a reciprocal": Gradients(Pattern(softmax="reciprocal"), transposed=True),
    "queries alone": Gradients(Pattern(), wanted=("dq",)),
    "keys alone": Gradients(Pattern(), wanted=("dk",), transposed=True),
    "values not": Gradients(Pattern(), wanted=("dq", "dk"), o=True),
    "weights are wanted": Gradients(Pattern(mask="causal"), stored=True),
    "one query": Gradients(Pattern(rows=1, columns=40)),
}


def check(n: Gradients, dtype: str, layouts: tuple[str, ...] = ("packed", "padded")) -> None:
    inputs = n.inputs(dtype)
    want, most = expected(n, inputs, dtype)
    rounded = [2 * checks.roundoff(dtype) * each for each in most]
    for layout in layouts:
        found = checks.check(build(n), inputs, [None] * len(want), layouts=[layout], out=dtype)
        for engine, results in found.items():
            for i, (got, wide) in enumerate(zip(results, want, strict=True)):
                # Outputs that other operations read are rounded by every engine.
                name = (
                    "cuda" if dtype in ("f16", "bf16") else "cpu.fast" if engine.startswith("cpu") else engine
                )
                wrong = checks.compare(
                    got, wide, checks._type_of(got), engine=name, magnitude=40, rounded=rounded[i]
                )
                assert not wrong, f"{engine}, {layout}, output {i}: {wrong}"


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", PARTS)
def test_parts(name: str, dtype: str) -> None:
    check(PARTS[name], dtype)


@pytest.mark.parametrize("sizes", [{"rows": 0}, {"columns": 0}, {"batch": 0}])
def test_sizes_of_zero(sizes: dict[str, int]) -> None:
    check(Gradients(Pattern(**sizes, mask="causal"), o=True), "bf16", ("packed",))


def test_rows_without_a_key() -> None:
    """They have no weights, and give no gradients."""
    n = Gradients(Pattern(mask="given", rows=9), zeros=True)
    inputs = n.inputs("bf16")
    inputs["mask"][..., 5, :] = False
    want, _ = expected(n, inputs, "bf16")
    for results in checks.check(build(n), inputs, [None] * 3, layouts=["packed"]).values():
        for got, wide in zip(results, want, strict=True):
            np.testing.assert_allclose(checks.exact(got), wide, rtol=0.05, atol=0.05)
        assert (checks.exact(results[0])[:, :, 5] == 0).all()


def _mutant(seed: int) -> Gradients:
    """Draws a random decomposition."""
    draw = random.Random(seed)
    rank = draw.choice([2, 3, 4, 4, 4, 4, 5])
    heads = (1, 1) if rank == 2 else (6, 3) if rank == 5 else draw.choice([(4, 4), (3, 3), (1, 1)])
    copied = rank == 4 and draw.random() < 0.2
    heads = (6, 2) if copied else (4, 1) if rank == 4 and draw.random() < 0.2 else heads
    rows, columns = draw.choice([(7, 9), (16, 16), (9, 5), (1, 17), (33, 40), (70, 130)])
    bias = tuple(draw.choice([1, extent]) for extent in (2, heads[0], rows, columns))
    keys = "strides" if not copied and draw.random() < 0.2 else "operation"
    side_by_side = (
        rank == 4 and not copied and heads[0] == heads[1] and keys == "operation" and draw.random() < 0.3
    )
    s = Pattern(
        rank=rank,
        heads=heads,
        rows=rows,
        columns=columns,
        depth=draw.choice([8, 16, 40]),
        value_depth=draw.choice([8, 16, 24]),
        keys=keys,
        side_by_side=side_by_side,
        copied=copied,
        scale=draw.choice([None, "mul", "div", "query", "key", "tensor", "twice"]),
        cap=draw.random() < 0.3,
        bias=bias if rank in (3, 4) and draw.random() < 0.4 else None,
        mask=draw.choice([None, "causal", *KEEPS]),
        softmax=draw.choice(["operation", "operation", "div", "reciprocal"]),
        **draw.choice(DROPOUTS),
    )
    is_given = draw.random() < 0.25
    sums = "o" if is_given else draw.choice(["weights", "weights", "apart", "o"])
    return Gradients(
        s,
        weights="statistics" if is_given else "softmax",
        sums=sums,
        o=not is_given and draw.random() < 0.5,
        transposed=draw.random() < 0.4,
        direct=draw.random() < 0.4,
        zeros=s.mask is not None and draw.random() < 0.6,
        scaled=draw.choice(["scores", "results"]),
        cap=draw.choice(["operations", "backward"]),
        wanted=draw.choice([("dq", "dk", "dv")] * 5 + [("dq",), ("dk", "dv"), ("dq", "dv")]),
    )


@pytest.mark.parametrize("seed", range(40))
def test_mutants(seed: int) -> None:
    """A failing one can be repeated by its number."""
    check(_mutant(seed), random.Random(seed).choice(["f32", "f16", "bf16", "bf16"]), ("packed",))
