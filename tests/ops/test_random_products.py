# SPDX-License-Identifier: Apache-2.0
"""Random products against sums in float64: matmuls, convolutions with their gradients, mixtures of experts;
data types, layouts, batches that broadcast, sizes in use of each, groups, strides, dilation, asymmetric
padding, one to three dimensions, fused operations, tiles and splits by knobs, sizes with every tail.

A structure determines the generated kernels; its cases differ only in sizes, so that they share kernels. On a
GPU all structures run with all their cases; on the CPU a sample of them, with small sizes. A case can be
written as a line of words and parsed again: a failure prints the command that runs only that case.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import checks
import numpy as np
import pytest
import weft
from weft.dtypes import data_type_of

Array = np.ndarray[Any, Any]
Dims = tuple[int, ...]

ON_GPU = checks.DEVICE != "cpu"
IS_SLOW = not ON_GPU or "EMULATOR_NVRTC" in os.environ  # the GPU is one in software
STRUCTURES = range(*map(int, os.environ.get("WEFT_TEST_STRUCTURES", "0:288").split(":")))
CASES = 1 if IS_SLOW else 8
TILES, SPLITS = 31, (2, 3, 5, 8)  # a row of a table that does not fit leaves the choice to the library
MOST_EXTENT, MOST_ELEMENTS, MOST_PRODUCTS = (
    (1100, 4e5, 1e9) if not IS_SLOW else (300, 1e5, 2e7) if ON_GPU else (40, 2e4, 4e5)
)
TAILS = (1, 3, 5, 7, 9, 15, 17, 31, 33, 47, 63, 65, 95, 97, 127, 129, 159, 191, 193, 255, 257, 385, 511, 1001)
EIGHTS = (8, 16, 24, 32, 40, 64, 72, 96, 128, 136, 160, 192, 200, 256, 264, 320, 384, 512, 520, 1000, 1024)


@dataclass(frozen=True)
class Case:
    """A product and its epilogue. Its tensors are A, B, C of a matmul, x, w, y of a convolution, or tokens,
    weights, output of experts, whose rows follow from the seed."""

    op: str = "matmul"
    types: tuple[str, str] = ("f32", "f32")  # of what is multiplied
    out: str = "f32"
    a: Dims = ()  # dims of A or x
    b: Dims = ()  # dims of B or w
    orders: tuple[str, ...] = ()  # of each tensor: its dims from the slowest to the fastest
    gaps: Dims = (0, 0, 0)  # of each tensor: unused elements after each line
    stride: Dims = ()
    dilation: Dims = ()
    pre: Dims = ()
    post: Dims = ()
    flips: int = 0
    uses: str = ""  # of a matmul, sizes in use given by overrides: "m" int32 per entry, "M" one int64 for all
    padding: int = 0
    end: str = "none"
    along: int = 1  # the dimension of a vector in the epilogue
    tile: int = 0
    splits: int = 0
    seed: int = 0

    def __str__(self) -> str:
        words = ((field.name, getattr(self, field.name)) for field in fields(self))
        shown = (f"{name}={value}" for name, value in words if value != getattr(Case, name))
        return " ".join(word.replace(" ", "").replace("'", "") for word in shown)

    @staticmethod
    def parse(line: str) -> Case:
        """Parses a line of words into a case.

        >>> str(Case.parse("op=fprop types=(f16,f16) a=(1,8,9)"))
        'op=fprop types=(f16,f16) a=(1,8,9)'
        """
        words = dict(word.split("=") for word in line.split())
        return Case(**{name: _value(word, name == "orders") for name, word in words.items()})

    @property
    def dims(self) -> tuple[Dims, Dims, Dims]:
        if self.op == "matmul":
            batches = [max(pair) for pair in zip(self.a[:-2], self.b[:-2], strict=True)]
            return self.a, self.b, (*batches, self.a[-2], self.b[-1])
        if self.is_grouped:
            return self.a, self.b, (1, self.a[1], self.b[2])
        y = tuple(
            (size + pre + post - dilation * (taps - 1) - 1) // stride + 1
            for size, taps, stride, dilation, pre, post in self.axes
        )
        return self.a, self.b, (self.a[0], self.b[0], *y)

    @property
    def axes(self) -> list[Dims]:
        parts = (self.a[2:], self.b[2:], self.stride, self.dilation, self.pre, self.post)
        return list(zip(*parts, strict=True))

    @property
    def is_grouped(self) -> bool:
        return self.op.startswith("experts")

    @property
    def first_rows(self) -> list[int]:
        """Returns the first row of each expert; some experts have no rows, and some rows have no expert."""
        draw = random.Random(self.seed)
        return sorted(draw.randint(0, self.a[1]) for _ in range(self.b[0]))

    @property
    def overrides(self) -> dict[str, Array]:
        """Returns how much of M, N, K is in use, by their letters."""
        draw, made = random.Random(self.seed), {}
        extents = {"m": self.a[-2], "n": self.b[-1], "k": self.a[-1]}
        for word in self.uses:
            extent = extents[word.lower()]
            batches = [n if word.islower() else 1 for n in self.dims[2][:-2]]
            counts = [
                draw.choice([draw.randint(0, extent)] * 5 + [0, extent, extent + 3, -1])
                for _ in range(math.prod(batches))
            ]
            type_ = np.int32 if word.islower() else np.int64
            made[word.lower()] = np.array(counts, type_).reshape(*batches, 1, 1)
        return made

    @property
    def groups(self) -> int:
        return self.a[1] // self.b[1]

    @property
    def result(self) -> int:
        """Returns which of the three tensors is computed from the two others."""
        return {"dgrad": 0, "wgrad": 1, "experts_wgrad": 1}.get(self.op, 2)

    @property
    def products(self) -> float:
        a, b, c = self.dims
        if self.is_grouped:
            return math.prod(c) * a[2]
        return math.prod(c) * (a[-1] if self.op == "matmul" else math.prod(b[1:]))

    def strides(self, i: int) -> Dims:
        dims, steps, step = self.dims[i], [0] * len(self.dims[i]), 1
        for k, at in enumerate(reversed([int(digit) for digit in self.orders[i]])):
            steps[at] = step
            step *= max(dims[at], 1)
            step += self.gaps[i] if k == 0 else 0
        return tuple(steps)


def _value(word: str, is_text: bool) -> Any:
    if word.startswith("("):
        return tuple(_value(part, is_text) for part in word[1:-1].split(",") if part)
    return word if is_text or word[0].isalpha() else int(word)


# ---- Drawing -----------------------------------------------------------------------------------------------

PAIRS = [("f16", "f16"), ("bf16", "bf16"), ("f32", "f32"), ("f64", "f64"), ("i8", "i8"), ("e4m3", "e4m3")]
PAIRS += [("e5m2", "e4m3"), ("bf16", "i8"), ("f16", "e5m2"), ("f32", "bf16"), ("u8", "i8")]
WEIGHTS = [8, 9, 5, 1, 2, 2, 2, 1, 1, 1, 1]
BYTES = {"i8": (-128, 127), "u8": (0, 255)}
FP8 = ("e4m3", "e5m2")
USES = ["m", "n", "k", "mn", "mk", "mnk", "M", "K", "Mk", "MNK"]
ENDS = ["none", "none", "bias_relu", "tanh_residual", "scale", "swish", "both"]


def draw_structure(draw: random.Random) -> Callable[[], Case]:
    """Returns a function that draws cases of one structure with different sizes."""
    make = draw.choices([_matmuls, _convolutions, _experts], [9, 9, 2])[0](draw)
    types = draw.choices(PAIRS, WEIGHTS)[0]
    wide = "f64" if types == ("f64", "f64") else "i32" if all(type_ in BYTES for type_ in types) else ""
    narrow = "bf16" if "bf16" in types else "f32" if "f32" in types else "f16"
    shared = {
        "types": types,
        "out": wide or draw.choice([narrow, narrow, "f32"]),
        "end": draw.choice(["none", "bias_relu"] if wide == "f64" else ["none"] if wide else ENDS),
        "tile": draw.choice([0, 0, *range(1, TILES + 1)]),
        "splits": draw.choice([0, 0, 0, 0, *SPLITS]),
    }
    if make().is_grouped:
        shared["end"] = "none"
    return lambda: replace(make(), **shared, seed=draw.getrandbits(31))


def _extents(draw: random.Random, most: int = MOST_EXTENT) -> Callable[[], int]:
    """Extents that are alike to alignment: multiples of 8, or an odd number of times 1, 2 or 4."""
    step = draw.choice([1, 1, 2, 4, 8, 8, 8, 8])
    some = [n for n in EIGHTS if n <= most] if step == 8 else [n * step for n in TAILS if n * step <= most]
    return lambda: draw.choice(some)


def _matmuls(draw: random.Random) -> Callable[[], Case]:
    rank = draw.choice([2, 3, 3, 3, 4])
    shares = [draw.choice(["both", "both", "a", "b"]) for _ in range(rank - 2)]
    rows, columns, depth = (_extents(draw) for _ in range(3))
    last = [draw.choice([[0, 1], [1, 0]]) for _ in range(3)]
    orders = [[*range(rank - 2), *(rank - 2 + i for i in pair)] for pair in last]
    if rank > 2 and draw.random() < 0.2:  # batches inside rows
        orders = [[order[-2], *order[:-2], order[-1]] for order in orders]
    shared = Case(
        orders=tuple("".join(map(str, order)) for order in orders),
        gaps=tuple(draw.choice([0, 0, 0, 8, 3]) for _ in range(3)),
        along=draw.choice([rank - 1, rank - 1, rank - 2]),
    )

    def make() -> Case:
        batches = [draw.choice([2, 3, 5]) for _ in shares]
        a = [1 if share == "b" else n for share, n in zip(shares, batches, strict=True)]
        b = [1 if share == "a" else n for share, n in zip(shares, batches, strict=True)]
        k = depth() * draw.choice([1, 1, 4])
        return replace(shared, a=(*a, rows(), k), b=(*b, k, columns()))

    return make


def _convolutions(draw: random.Random) -> Callable[[], Case]:
    spatial = draw.choice([1, 2, 2, 2, 3])
    taps = tuple(draw.choice([1, 2, 3, 3, 5, 7] if spatial < 3 else [1, 2, 3]) for _ in range(spatial))
    taps = (1,) * spatial if draw.random() < 0.2 else taps
    is_cut = draw.random() < 0.1  # into patches
    last = "0" + "".join(map(str, range(2, spatial + 2))) + "1"
    first = "".join(map(str, range(spatial + 2)))
    layouts = [last, last, last, first]
    layout = draw.choice(layouts)
    kind = draw.choice(["dense", "dense", "dense", "stem", "depthwise", "groups", "narrow groups"])
    inputs, filters = _extents(draw, 200 if ON_GPU else 16), _extents(draw, 200 if ON_GPU else 16)
    is_even = draw.random() < 0.5
    pre = tuple(draw.choice([0, 0, 1, 2, n // 2, -1]) for n in taps)
    pre = (0,) * spatial if is_cut else pre
    shared = Case(
        op=draw.choice(["fprop", "dgrad", "wgrad"]),
        orders=(layout, draw.choice(layouts), layout if draw.random() < 0.8 else draw.choice(layouts)),
        gaps=draw.choice([(0, 0, 0), (0, 0, 0), (0, 0, 0), (8, 0, 8), (3, 3, 0)]),
        stride=taps if is_cut else tuple(draw.choice([1, 1, 1, 2, 3]) for _ in taps),
        dilation=tuple(1 if is_cut else draw.choice([1, 1, 1, 2]) for _ in taps),
        pre=pre,
        post=pre if is_even else tuple(draw.choice([0, 1, 3, -1]) for _ in taps),
        flips=int(draw.random() < 0.1),
    )
    reach = [dilation * (n - 1) + 1 for n, dilation in zip(taps, shared.dilation, strict=True)]
    least = [
        max(1 - min(pre, 0) - min(post, 0), n - pre - post)
        for n, pre, post in zip(reach, shared.pre, shared.post, strict=True)
    ]
    more = {1: 300, 2: 40, 3: 9}[spatial] if ON_GPU else {1: 12, 2: 4, 3: 2}[spatial]

    def make() -> Case:
        c, k, groups = inputs(), filters(), 1
        if kind == "stem":
            c = draw.choice([1, 3, 4, 8])
        elif kind == "depthwise":
            groups, k = c, c * draw.choice([1, 1, 1, 2])
        elif kind == "groups":
            groups = draw.choice([2, 3, 4])
            c, k = c * groups, k * groups
        elif kind == "narrow groups":
            groups = draw.choice([6, 8, 32] if ON_GPU else [4, 6])
            c, k = groups * draw.choice([2, 4, 8]), groups * draw.choice([2, 4, 8])
        image = [draw.randint(n, n + more) for n in least]
        return replace(shared, a=(draw.choice([1, 2, 5]), c, *image), b=(k, c // groups, *taps))

    return make


def _experts(draw: random.Random) -> Callable[[], Case]:
    rows, depth, columns = _extents(draw), _extents(draw), _extents(draw)
    shared = Case(
        op=draw.choice(["experts", "experts_wgrad"]),
        orders=("012", draw.choice(["012", "021"]), "012"),
        gaps=draw.choice([(0, 0, 0), (0, 0, 0), (8, 8, 8), (3, 0, 5)]),
    )

    def make() -> Case:
        k = depth()
        return replace(shared, a=(1, rows(), k), b=(draw.choice([1, 2, 7, 40]), k, columns()))

    return make


def cases_of(number: int) -> Iterator[Case]:
    """Draws the cases of the structure with this number."""
    draw, aside = random.Random(number), random.Random(f"overrides {number}")
    make = draw_structure(draw)
    has_overrides = aside.random() < 0.3
    more = {"uses": aside.choice(USES), "padding": aside.choice([0, 0, 0, 1])} if has_overrides else {}
    for _ in range(CASES):
        case = make()
        while case.products > MOST_PRODUCTS or max(map(math.prod, case.dims)) > MOST_ELEMENTS:
            case = make()
        yield replace(case, **more) if case.op == "matmul" else case


# ---- The oracle: NumPy, or torch where there is a real GPU -------------------------------------------------


def _wide(array: Array) -> Any:
    if IS_SLOW:
        return checks.exact(array)
    import torch

    return torch.from_numpy(checks.exact(array)).to(checks.DEVICE)


def _einsum(formula: str, *factors: Any) -> Any:
    if IS_SLOW:
        return np.einsum(formula, *factors, optimize=True)
    import torch

    return torch.einsum(formula, *factors)


def multiply(case: Case, left: Array, right: Array) -> Array:
    """Computes the third tensor from the two others."""
    wide = [_wide(array) for array in (_used(case, left, right) if case.uses else (left, right))]
    make = _group if case.is_grouped else _convolve
    made = wide[0] @ wide[1] if case.op == "matmul" else make(case, *wide)
    return np.asarray(made if IS_SLOW else made.cpu())


def _used(case: Case, left: Array, right: Array) -> tuple[Array, Array]:
    """A and B of each batch entry, with the padding where they are not in use."""
    batches, some = case.dims[2][:-2], case.overrides
    rows, depth, columns = (np.arange(n) for n in (case.a[-2], case.a[-1], case.b[-1]))
    kept_rows, kept_depth, kept_columns = (
        each < some[letter][..., 0] if letter in some else np.ones((*batches, len(each)), bool)
        for letter, each in (("m", rows), ("k", depth), ("n", columns))
    )
    return (
        np.where(kept_rows[..., :, None] & kept_depth[..., None, :], checks.exact(left), case.padding),
        np.where(kept_depth[..., :, None] & kept_columns[..., None, :], checks.exact(right), case.padding),
    )


def _group(case: Case, left: Any, right: Any) -> Any:
    result = _wide(np.zeros(case.dims[case.result]))
    firsts = [*case.first_rows, case.a[1]]
    for e, (first, until) in enumerate(itertools.pairwise(firsts)):
        if case.result == 1:
            result[e] = left[0, first:until].T @ right[0, first:until]
        else:
            result[0, first:until] = left[0, first:until] @ right[e]
    return result


def _convolve(case: Case, left: Any, right: Any) -> Any:
    """Tap by tap; [n, g, c, pixels], [g, k, c, taps], [n, g, k, positions]."""
    given = dict(zip(sorted({0, 1, 2} - {case.result}), (left, right), strict=True))
    x, w, y = (_grouped(case, i, given.get(i)) for i in range(3))
    padded = [size + pre + post for size, _, _, _, pre, post in case.axes]
    canvas = _wide(np.zeros((*x.shape[:3], *padded)))
    inside = (..., *(slice(max(pre, 0), size + pre + min(post, 0)) for size, _, _, _, pre, post in case.axes))
    kept = (..., *(slice(max(-pre, 0), size + min(post, 0)) for size, _, _, _, pre, post in case.axes))
    canvas[inside] = x[kept]
    for tap in itertools.product(*(range(n) for n in case.b[2:])):
        at = tuple(n - 1 - t for n, t in zip(case.b[2:], tap, strict=True)) if case.flips else tap
        begins = [t * axis[3] for t, axis in zip(tap, case.axes, strict=True)]
        steps = zip(begins, y.shape[3:], case.stride, strict=True)
        seen = (..., *(slice(begin, begin + (count - 1) * step + 1, step) for begin, count, step in steps))
        here = (slice(None),) * 3 + at
        pixels, positions = canvas[seen].reshape(*x.shape[:3], -1), y.reshape(*y.shape[:3], -1)
        if case.op == "fprop":
            y += _einsum("ngcp,gkc->ngkp", pixels, w[here]).reshape(y.shape)
        elif case.op == "dgrad":
            canvas[seen] += _einsum("ngkp,gkc->ngcp", positions, w[here]).reshape(canvas[seen].shape)
        else:
            w[here] += _einsum("ngcp,ngkp->gkc", pixels, positions)
    if case.op == "dgrad":
        x[kept] = canvas[inside]
    return (x, w, y)[case.result].reshape(case.dims[case.result])


def _grouped(case: Case, i: int, tensor: Any) -> Any:
    """A tensor with a dimension of groups; zeros where it is not given."""
    dims, groups = case.dims[i], case.groups
    tensor = _wide(np.zeros(dims)) if tensor is None else tensor
    if i == 1:
        return tensor.reshape(groups, dims[0] // groups, *dims[1:])
    return tensor.reshape(dims[0], groups, dims[1] // groups, *dims[2:])


# ---- Epilogues of products, and their expected results -----------------------------------------------------

VECTORS = ("bias_relu", "both", "scale", "tanh_residual")


def follow(case: Case, g: weft.Graph, c: Any, vector: Any, whole: Any) -> list[Any]:
    """Adds the epilogue; returns the nodes and the outputs."""
    if case.end in ("bias_relu", "both"):
        last = g.relu(g.add(c, vector))
        return [c, last] if case.end == "both" else [last]
    if case.end == "tanh_residual":
        return [g.add(g.tanh(g.add(c, vector)), whole)]
    return [{"none": lambda: c, "scale": lambda: g.mul(c, vector), "swish": lambda: g.swish(c)}[case.end]()]


def expect(case: Case, c: Array, vector: Array, whole: Array) -> tuple[list[Array], Any]:
    """Returns the expected outputs and the factors by which they amplify an error of the product."""
    if case.end in ("bias_relu", "both"):
        last = np.maximum(c + vector, 0)
        return [c, last] if case.end == "both" else [last], 1.0
    if case.end == "tanh_residual":
        return [np.tanh(c + vector) + whole], 1.0
    if case.end == "scale":
        return [c * vector], np.abs(vector)
    return [c if case.end == "none" else c * (1 + np.tanh(c / 2)) / 2], 1.1


def bound(case: Case, want: Array, magnitude: Any, type_: str, engine: str) -> Array:
    """Returns the allowed error of a result: its own rounding, and sums of this magnitude in any order."""
    if type_ == "i32":
        return np.zeros(want.shape)
    unit = 2.0**-53 if case.out == "f64" else 2.0**-24
    narrowed = 2.0**-10 if engine == "cuda.tf32" else 0.0  # what two factors lose together
    if engine.startswith("cuda") and all(each in FP8 for each in case.types):
        narrowed = 2.0**-9  # what Hopper's tensor cores drop of 128 products that they sum
    rounded = 0.51 * checks.ulp(want, data_type_of(type_))
    return rounded + 4 * unit * np.abs(want) + (64 * unit + narrowed) * magnitude


def check(case: Case) -> None:
    """Runs a case on every engine."""
    given = sorted({0, 1, 2} - {case.result})
    arrays = [
        checks.random(case.dims[i], type_, *BYTES.get(type_, (-2, 2)), seed=case.seed + i)
        for i, type_ in zip(given, case.types, strict=True)
    ]
    c = multiply(case, *arrays)
    magnitude = multiply(case, *(np.abs(checks.exact(array)) for array in arrays))
    shape = tuple(n if i == case.along else 1 for i, n in enumerate(c.shape))
    type_ = case.types[0] if case.types[0] in ("f16", "bf16", "f64") else "f32"
    more = [checks.random(dims, type_, seed=case.seed + 7 + i) for i, dims in enumerate((shape, c.shape))]
    wants, growth = expect(case, c, *(checks.exact(array) for array in more))
    inputs: dict[str, Any] = {
        name: (array, case.strides(i))
        for name, array, i in zip(("left", "right"), arrays, given, strict=True)
    }
    if case.end in VECTORS:
        inputs["vector"] = more[0]
    if case.end == "tanh_residual":
        inputs["whole"] = (more[1], case.strides(case.result))
    if case.is_grouped:
        inputs["firsts"] = np.array(case.first_rows, np.int32).reshape(-1, 1, 1)
    inputs |= case.overrides
    wide = case.out if case.out in ("i32", "f64") else "f32"
    types = [*[wide] * (len(wants) - 1), case.out]  # an output that another is made of is not rounded
    found = checks.check(
        lambda g, **tensors: _graph(case, g, c.shape, **tensors),
        inputs,
        [None] * len(wants),
        out=types,
        layouts=["packed"],
        graph={"compute_data_type": wide, "intermediate_data_type": wide},
        knobs={"TILE_SIZE": case.tile, "SPLIT_K": case.splits},
    )
    for engine, outputs in found.items():
        for want, got, type_ in zip(wants, outputs, types, strict=True):
            allowed = bound(case, want, growth * (magnitude + 3), type_, engine)
            wrong = ~(np.abs(checks.exact(got) - want) <= allowed)
            at = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else ()
            assert not wrong.any(), (
                f"{engine}: {wrong.sum()} of {wrong.size} are wrong, first at {at}: got {got[at]}, "
                f"want {want[at]:.9g} within {allowed[at]:.3g}"
            )


def _graph(
    case: Case,
    g: weft.Graph,
    dims: Dims,
    left: Any,
    right: Any,
    vector: Any = None,
    whole: Any = None,
    firsts: Any = None,
    **overrides: Any,
) -> list[Any]:
    options: dict[str, Any] = {"stride": case.stride, "dilation": case.dilation}
    options |= {"pre_padding": case.pre, "post_padding": case.post}
    options |= {"convolution_mode": "CONVOLUTION"} if case.flips else {}
    if case.op == "matmul":
        sizes = {f"{letter}_override": tensor for letter, tensor in overrides.items()}
        c = g.matmul(left, right, padding=float(case.padding), **sizes)
    elif case.op == "experts":
        c = g.moe_grouped_matmul(left, right, firsts)
    elif case.op == "experts_wgrad":
        c = g.moe_grouped_matmul_bwd(right, left, firsts)
    elif case.op == "fprop":
        c = g.conv_fprop(left, right, **options)
    elif case.op == "dgrad":
        c = g.conv_dgrad(right, left, **options)
    else:
        c = g.conv_wgrad(left, right, **options)
    outputs = follow(case, g, c.set_dim(dims), vector, whole)
    return [output.set_dim(dims).set_stride(case.strides(case.result)) for output in outputs]


# ---- Tests -------------------------------------------------------------------------------------------------

FILE = os.path.relpath(__file__)
ALONE = os.environ.get("WEFT_TEST_CASE")


def command(case: Case) -> str:
    """Returns the command that runs only this case."""
    return f"WEFT_TEST_DEVICE={checks.DEVICE} WEFT_TEST_CASE='{case}' python -m pytest {FILE}"


@pytest.mark.parametrize("structure", [] if ALONE else STRUCTURES)
def test_structure(structure: int) -> None:
    faults = []
    for case in cases_of(structure):
        assert Case.parse(str(case)) == case
        try:
            check(case)
        except Exception as fault:
            faults.append(f"{command(case)}\n    {type(fault).__name__}: {fault}".partition("\nrepro:")[0])
    assert not faults, "\n".join([f"{len(faults)} of {CASES} cases fail", *faults])


def test_one() -> None:
    check(Case.parse(ALONE) if ALONE else next(cases_of(0)))
