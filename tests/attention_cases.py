"""Generated attention cases, forward and backward, compared with NumPy in float64. Each number is a seed of
one case.

    python tests/attention_cases.py 1234                    one case, on the CPU
    WEFT_TEST_DEVICE=cuda python tests/attention_cases.py --count 3000    all of them, on the GPU
    python tests/attention_cases.py --first 1000000 --count 300    packed sequences (THD)

The cases cover lengths at tile boundaries, shared heads, head sizes, masks, biases, modifiers, block masks,
pages, empty sequences, NaN after the lengths in use, scores up to +-120, and any order of the dims in memory,
with gaps. An error may be twice that of the same formula with operands, weights and gradients of scores
rounded to the type of the operands. Numbers from RAGGED on are packed tokens with ragged offsets, some
sequences empty, NaN between them.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import checks
import numpy as np
import weft
from attention_oracle import (
    BOTTOM_RIGHT,
    TOP_LEFT,
    Case,
    Modifier,
    backward_inputs,
    by_definition,
    forward,
    gather,
    paged,
    repeat,
    run_backward,
    run_forward,
)
from attention_tokens import STATISTICS, Tokens

FORWARD = ("o", *STATISTICS)
BACKWARD = ("dQ", "dK", "dV", *(f"gradient {i}" for i in range(3, 9)))
RAGGED = 1_000_000  # the first number of the packed cases
DEPTHS = [(64, 64), (128, 128), (80, 80), (96, 96), (192, 128), (40, 72), (256, 256), (17, 30)]
ORDERS = [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)]  # BHSD, BSHD, SBHD
MODIFIERS = {
    "soft cap": lambda case: Modifier(
        lambda g, s, _: g.mul(g.tanh(g.mul(s, 1 / 16)), 16.0),
        lambda s, *_: 16 * np.tanh(s / 16),
        lambda s, *_: 1 - np.tanh(s / 16) ** 2,
    ),
    "relative": lambda case: Modifier(
        lambda g, s, t: g.add(g.mul(g.sub(g.gen_index(s, axis=3), g.gen_index(s, axis=2)), t["slopes"]), s),
        lambda s, b, h, i, j, slopes: s + (j - i) * slopes,
        lambda s, *_, slopes: 1,
        {"slopes": (1, case.heads[0], 1, 1)},
        {"slopes": "f32"},
        {"slopes": lambda s, b, h, i, j, slopes: j - i},
    ),
}


@dataclass
class Made:
    """A case, and the memory layout of its operands."""

    case: Case
    dtype: str
    logits: float
    order: tuple[int, ...]
    gap: int
    pages: tuple[int, int]
    layout: str
    is_ragged: bool = False
    in_tokens: bool = False  # ragged offsets count tokens, not elements
    token_gap: int = 0  # unused tokens after each sequence
    padded: tuple[str, ...] = ()  # operands that are not packed

    def __str__(self) -> str:
        usual = vars(Case())
        hidden = ("modifier", "options", "scale")
        options = {key: value for key, value in vars(self.case).items() if value != usual[key]}
        shown = ", ".join(f"{key}={value}" for key, value in options.items() if key not in hidden)
        end = ", modified" if self.case.modifier else ""
        if self.is_ragged:
            unit = "tokens" if self.in_tokens else "elements"
            end += (
                f", ragged in {unit}, gap {self.token_gap} tokens, pages {self.pages}, padded {self.padded}"
            )
        return f"{self.dtype}, logits {self.logits:g}, order {self.order}, gap {self.gap}, {shown}{end}"


def make(number: int) -> Made:
    """Draws the case of a number."""
    return make_ragged(number) if number >= RAGGED else make_padded(number)


def make_ragged(number: int) -> Made:
    """Draws a case of packed tokens: a padded case with its own lengths, and more of them."""
    random = np.random.default_rng(number)

    def one(*options: Any) -> Any:
        return options[random.integers(len(options))]

    def lengths(most: int) -> list[int]:
        return [
            int(one(0, most, random.integers(0, most + 1), random.integers(1, most + 1)))
            for _ in range(batch)
        ]

    made, batch = make_padded(number), int(random.integers(1, 7))
    case = made.case
    heads = one(case.heads, case.heads, (case.heads[0], 1, 1))
    case = replace(case, batch=batch, heads=heads, has_sums=one(True, False))
    case = replace(case, seq_len_q=lengths(case.rows), seq_len_kv=lengths(case.columns))
    if case.bias:
        case = replace(case, bias=(one(1, batch), *case.bias[1:]))
    if case.block_mask:
        case = replace(case, block_mask=(one(1, batch), case.block_mask[1]))
    if case.drop_mask:
        case = replace(case, drop_mask=(1, *case.drop_mask[1:]))
    pages = one((0, 0), (0, 0), (1, 16), (16, 16), (64, 128))
    padded = one((), STATISTICS)
    return replace(
        made,
        case=case,
        pages=pages,
        is_ragged=True,
        in_tokens=one(True, False),
        token_gap=one(0, 0, 1, 9),
        padded=padded,
    )


def make_padded(number: int) -> Made:
    """Draws a case of padded tensors."""
    random = np.random.default_rng(number)

    def one(*options: Any) -> Any:
        return options[random.integers(len(options))]

    tile = one(64, 128)
    lengths = (1, tile - 1, tile, tile + 1, tile * 3 // 2)
    batch, shared = int(one(1, 2, 3)), int(random.integers(1, 8))
    heads = shared * (one(1, 2, 4) if shared < 4 else 1)
    depth, value_depth = one(*DEPTHS)
    case = Case(
        batch=batch,
        heads=(heads, shared, one(shared, shared, shared, 1)),
        rows=one(*lengths),
        columns=one(*lengths),
        depth=depth,
        value_depth=value_depth,
        left=one(None, None, None, 1, 40),
        right=one(None, None, 0, 0, 7),
        alignment=one(TOP_LEFT, TOP_LEFT, BOTTOM_RIGHT),
        alibi=one(False, False, False, True),
        sink=one(False, False, False, True),
    )
    if one(True, False, False):
        some = random.random(batch) < 0.3
        q, kv = (random.integers(0, n + 1, batch) * ~some for n in (case.rows, case.columns))
        case = replace(case, seq_len_q=q.tolist(), seq_len_kv=kv.tolist(), has_sums=one(True, False))
    kind = one("", "", "bias", "mask", "blocks", "modifier")
    if kind in ("bias", "mask"):
        dims = (one(1, batch), one(1, heads), one(1, case.rows), case.columns)
        case = replace(case, bias=dims, is_mask=kind == "mask")
    if kind == "blocks":
        case = replace(case, block_mask=(one(1, batch), one(1, heads)), mask_has_bits=one(True, False))
    if kind == "modifier":
        case = replace(case, modifier=MODIFIERS[one(*MODIFIERS)](case))
    pages = (0, 0) if case.seq_len_kv is None else one((0, 0), (1, 16), (16, 0), (64, 128))
    layout, dtype = one("packed", "padded"), one("bf16", "bf16", "f16", "f32")
    made = Made(case, dtype, one(1.0, 8.0, 30.0, 120.0), one(*ORDERS), one(0, 8, 24), pages, layout)
    if one(True, False, False, False):
        dims = (one(1, batch), one(1, heads), one(1, case.rows), one(1, case.columns, case.columns))
        made.case = replace(case, drop_mask=dims, drop_type=one("bool8", "bool8", "f32"), drop_scale=1.25)
    return made


# ---- Memory ------------------------------------------------------------------------------------------------


def laid_out(made: Made, inputs: dict[str, Any]) -> dict[str, Any]:
    """Returns four-dimensional operands in permuted layouts with gaps after rows; paged operands are
    unchanged."""
    found = dict(inputs)
    for name, array in inputs.items():
        if array.ndim != 4 or name not in ("q", "k", "v", "o", "dO", "stats", "bias"):
            continue
        steps, step = [0] * 4, 1
        for dim in reversed(made.order):
            steps[dim], step = step, step * array.shape[dim]
            step += made.gap if dim == 3 else 0
        found[name] = (array, tuple(steps))
    return found


def spoil(case: Case, inputs: dict[str, Any]) -> dict[str, Any]:
    """Fills the operands with NaN after the lengths in use."""
    found = {name: np.array(array) for name, array in inputs.items()}
    for b, (rows, columns) in enumerate(zip(*(used.ravel() for used in case.lengths()), strict=True)):
        for name in ("q", "o", "dO", "stats"):
            if name in found:
                found[name][b, :, rows:] = np.nan
        for name in "kv":
            found[name][b, :, columns:] = np.nan
    mask = found.get("dropout_mask")
    if mask is not None and mask.dtype != bool and mask.shape[2:] == (case.rows, case.columns):
        mask[:] = np.where(case.visible(inputs).any((0, 1)), mask, np.nan)
    return found


# ---- The same formula in the operands' precision -----------------------------------------------------------


def as_type(array: Any, dtype: str) -> np.ndarray:
    return checks.exact(checks.narrow(np.asarray(array, np.float64), dtype))


def rounded_forward(case: Case, inputs: dict[str, Any], dtype: str) -> np.ndarray:
    """Computes o with weights rounded as between two products."""
    s, sink = case.scores(inputs).astype(np.float32), case.sinks(inputs)
    top = np.maximum(s.max(-1, keepdims=True, initial=-np.inf), sink)
    weights = np.exp(s - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True) + np.exp(sink - np.where(np.isinf(top), 0, top))
    o = as_type(weights, dtype) * case.kept(inputs) @ repeat(inputs["v"], case.heads[0])
    return as_type(o / np.where(total > 0, total, 1), dtype)


def rounded_backward(case: Case, operands: dict[str, Any], dtype: str) -> list[np.ndarray]:
    """Computes dQ, dK and dV with rounded weights and gradients of scores."""
    hq, hk, hv = case.heads
    s, stats = case.scores(operands).astype(np.float32), checks.exact(operands["stats"])
    q, k, v, d_o = (
        checks.exact(operands["q"]),
        repeat(operands["k"], hq),
        repeat(operands["v"], hq),
        operands["dO"],
    )
    with np.errstate(invalid="ignore"):
        weights = as_type(np.where(np.isinf(stats), 0, np.exp(np.minimum(s - stats, 0))), dtype)
    mean = (d_o * checks.exact(operands["o"])).sum(-1, keepdims=True)
    kept = case.kept(operands)
    ds = weights * (d_o @ v.mT * kept - mean)
    ds = as_type(ds * case.modified("slope", operands), dtype)
    return [
        as_type(case.scale * (ds @ k), dtype),
        as_type(gather(case.scale * (ds.mT @ q), hk), dtype),
        as_type(gather((weights * kept).mT @ d_o, hv), dtype),
    ]


def summed(case: Case, operands: dict[str, Any]) -> list[float]:
    """Returns the largest magnitude in the sum of each gradient, in the order of run_backward."""
    hq, hk, hv = case.heads
    s, stats, d_o = case.scores(operands), checks.exact(operands["stats"]), checks.exact(operands["dO"])
    with np.errstate(invalid="ignore"):
        weights = np.where(np.isinf(stats), 0, np.exp(np.minimum(s - stats, 0)))
    q, k, v = np.abs(checks.exact(operands["q"])), repeat(operands["k"], hq), repeat(operands["v"], hq)
    mean = np.abs(d_o * checks.exact(operands["o"])).sum(-1, keepdims=True)
    kept = np.abs(case.kept(operands))
    ds = weights * (np.abs(d_o) @ np.abs(v).mT * kept + mean)
    behind = ds * np.abs(case.modified("slope", operands))
    found = [
        case.scale * (behind @ np.abs(k)),
        gather(case.scale * (behind.mT @ q), hk),
        gather((weights * kept).mT @ np.abs(d_o), hv),
    ]
    if case.bias and not case.is_mask:
        found.append(ds.sum(tuple(i for i in range(4) if case.bias[i] == 1), keepdims=True))
    if case.sink:
        found.append(mean.sum((0, 2), keepdims=True))
    found += [np.abs(each) for each in case.of_operands(ds, operands).values()]
    return [float(np.abs(each).max(initial=0)) for each in found]


def wrong(
    name: str,
    got: np.ndarray,
    want: np.ndarray,
    same: np.ndarray | None,
    dtype: str,
    depth: int,
    most_summed: float = 0,
) -> str:
    """Where a result is farther off than twice the same precision, a rounding of the largest number, as many
    roundings in float of a score of 128 as the root of the products it sums, eight at least (2^-17 each: its
    exponential is off by as much), and some of what is summed."""
    got, want = checks.exact(got), np.asarray(want, np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(np.where(finite, 0, want), np.where(finite & np.isfinite(got), 0, got)):
        return f"{name} has {np.sum(np.isnan(got))} NaN, or an infinity where there should be none"
    most = np.abs(want[finite]).max(initial=0)
    error = np.abs(got - want)[finite].max(initial=0)
    usual = 0.0 if same is None else np.abs(same - want)[finite].max(initial=0)
    of_scores = max(8, depth**0.5) * 2.0**-17
    allowed = 2 * usual + (checks.roundoff(dtype) + of_scores) * most + 2.0**-18 * most_summed + 1e-6
    return "" if error <= allowed else f"{name} is off by {error:.3g} of {most:.3g}, allowed is {allowed:.3g}"


# ---- Running -----------------------------------------------------------------------------------------------


def results(
    build: Any, made: Made, inputs: dict[str, Any], want: Any, names: Any
) -> dict[str, list[np.ndarray]]:
    """Returns the results of each engine for a case. names: the results that may be packed."""
    if not made.is_ragged:
        return checks.check(build, laid_out(made, inputs), [None] * len(want), layouts=[made.layout])
    found = {}
    for engine in checks.engine_names():
        with suppress(weft.NotSupportedError) if engine not in ("cpu.reference", "cuda") else nullcontext():
            found[engine] = in_tokens(build, made, inputs, dict(zip(names, want, strict=False)), engine)
    return found


def in_tokens(
    build: Any, made: Made, inputs: dict[str, Any], want: dict[str, Any], engine: str
) -> list[np.ndarray]:
    """Returns packed results in padded form; paged keys stay in pages."""
    pages = tuple(name for name in "kv" if f"paged_attention_{name}_table" in inputs)
    t = Tokens(made.case, made.in_tokens, made.padded + pages, made.token_gap)
    outputs = build(t.g, **{name: t.input(name, array) for name, array in inputs.items()})
    for (name, each), tensor in zip(want.items(), outputs, strict=True):
        t.output(name, tensor, each)
    return [t.unpacked(name, got) for name, got in t.run(engine).items()]


def run(number: int) -> str:
    """Returns what is wrong with a case; empty if nothing is."""
    made = make(number)
    case, inputs = made.case, made.case.inputs(made.dtype)
    products = checks.exact(inputs["q"]) @ repeat(inputs["k"], case.heads[0]).mT
    case.scale = made.logits / max(float(np.abs(products).max(initial=0)), 1e-3)
    with np.errstate(all="ignore"):
        want, same = forward(case, inputs), rounded_forward(case, inputs, made.dtype)
        operands = paged(case, spoil(case, inputs), *made.pages)
        found = []
        options = {"paged_attention_max_seq_len_kv": case.columns} if any(made.pages) else {}
        build = run_forward(replace(case, options=options))
        for engine, (o, *statistics) in results(build, made, operands, want, FORWARD).items():
            found.append((engine, wrong("o", o, want[0], same, made.dtype, case.depth)))
            for name, got, expected in zip(("stats", "max", "sum_exp"), statistics, want[1:], strict=True):
                found.append((engine, wrong(name, got, expected, None, "f32", case.depth)))
        clean = backward_inputs(case, inputs, made.dtype)
        gradients, _ = by_definition(case, clean)
        near, magnitudes = rounded_backward(case, clean, made.dtype), summed(case, clean)
        spoiled = spoil(case, clean)
        for engine, got in results(run_backward(case), made, spoiled, gradients, BACKWARD).items():
            for i, each in enumerate(got):
                usual = near[i] if i < 3 else None
                name = ("dQ", "dK", "dV")[i] if i < 3 else f"gradient {i}"
                slack = made.dtype if i < 3 else "bf16"
                text = wrong(name, each, gradients[i], usual, slack, case.depth, magnitudes[i])
                found.append((engine, text))
    return "; ".join(f"{engine}: {text}" for engine, text in found if text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("number", type=int, nargs="?", help="one case")
    parser.add_argument("--first", type=int, default=0, help="of many (0)")
    parser.add_argument("--count", type=int, default=3000, help="how many (3000)")
    args = parser.parse_args()
    numbers = range(args.first, args.first + args.count) if args.number is None else [args.number]
    failed, device = 0, os.environ.get("WEFT_TEST_DEVICE", "cpu")
    for number in numbers:
        if found := run(number):
            failed += 1
            print(f"{found}\n    {make(number)}")
            print(
                f"    repro: WEFT_TEST_DEVICE={device} python tests/attention_cases.py {number}", flush=True
            )
    print(f"{len(numbers)} cases, {failed} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
