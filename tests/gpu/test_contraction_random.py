"""Matmuls and convolutions of random shapes, layouts, types and fused operations against torch in double.

Each seed makes a few cases; a failure names its seed and prints its case. WEFT_TEST_SEEDS=N runs N.
Outputs lie in poisoned memory between guard words, and every plan runs twice and must give the same bits.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import checks
import pytest
import weft

torch = checks.need_gpu()
SEEDS = range(int(os.environ.get("WEFT_TEST_SEEDS", "48")))
CASES_PER_SEED = 8
TILES = 24  # rows of the Hopper family's table; a row that does not fit leaves the choice to the library
GUARD, POISON = 64, -77.0
HALVES = [torch.float16, torch.bfloat16]
TYPES = [*HALVES, torch.bfloat16, torch.float32]
TF32_UNIT = 2.0**-10  # what two factors lose together that an engine narrows to 10 bits
SIZES = [
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    24,
    33,
    40,
    63,
    64,
    65,
    72,
    127,
    128,
    130,
    160,
    192,
    256,
    257,
    264,
    384,
    520,
    1000,
    1536,
]

Operands = list[Any]
Build = Callable[..., Any]


def values(draw: random.Random, shape: tuple[int, ...], order: list[int], dtype: Any) -> Any:
    """Random numbers whose dims lie in memory in this order, slowest first."""
    generator = torch.Generator(device="cuda").manual_seed(draw.getrandbits(31))
    inner = torch.randn([shape[i] for i in order], device="cuda", generator=generator).to(dtype)
    return inner.permute([order.index(i) for i in range(len(order))])


def guarded(like: Any, dtype: Any) -> tuple[Any, Any]:
    """Poisoned memory in the strides of a tensor, and all of it with the guards around."""
    count = sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True)) + 1
    memory = torch.full((count + 2 * GUARD,), POISON, dtype=dtype, device="cuda")
    return memory.as_strided(like.shape, like.stride(), GUARD), memory


def guards_hold(memory: Any) -> bool:
    return bool((memory[:GUARD] == POISON).all() and (memory[-GUARD:] == POISON).all())


def bound(want: Any, magnitude: Any, dtype: Any, narrows: bool) -> Any:
    """What a result may be off by: half a unit of its type, and float sums of products of this magnitude."""
    half_unit = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    return 1.01 * half_unit * want.abs() + (TF32_UNIT if narrows else 4e-6) * magnitude + 1e-6


# ---- What follows the product ------------------------------------------------------------------------------


def epilogue(
    draw: random.Random, shape: tuple[int, ...], channel: int, order: list[int], dtype: Any
) -> tuple[str, Operands, Build, Callable[..., Any], float]:
    """A name, more operands, the nodes behind the product, the same in torch, and how errors grow."""
    vector = values(draw, tuple(n if i == channel else 1 for i, n in enumerate(shape)), order, dtype)
    whole = values(draw, shape, order, dtype)
    choices: list[tuple[str, Operands, Build, Callable[..., Any], float]] = [
        ("none", [], lambda g, c: c, lambda c: c, 1),
        ("none", [], lambda g, c: c, lambda c: c, 1),
        ("bias relu", [vector], lambda g, c, b: g.relu(g.add(c, b)), lambda c, b: torch.relu(c + b), 1),
        (
            "bias tanh residual",
            [vector, whole],
            lambda g, c, b, r: g.add(g.tanh(g.add(c, b)), r),
            lambda c, b, r: torch.tanh(c + b) + r,
            1,
        ),
        ("scale", [vector], lambda g, c, b: g.mul(c, b), lambda c, b: c * b, 8),
    ]
    return draw.choice(choices)


# ---- Products ----------------------------------------------------------------------------------------------


def matmul_case(draw: random.Random) -> tuple[str, Operands, Build, Any, Any, list[int], int]:
    m, n, k = (draw.choice(SIZES) for _ in range(3))
    k = draw.choice([k, 8 * k, 1024])
    batches = draw.choice([(1, 1), (1, 1), (3, 3), (4, 1), (1, 3), (6, 2)])
    orders = [draw.choice([[0, 1, 2], [0, 2, 1]]) for _ in range(3)]
    dtype = draw.choice(TYPES)
    a = values(draw, (batches[0], m, k), orders[0], dtype)
    b = values(draw, (batches[1], k, n), orders[1], dtype)
    wide = [x.double().repeat_interleave(max(batches) // x.shape[0], 0) for x in (a, b)]
    name = f"matmul {batches} {m}x{n}x{k} orders {orders} {dtype}"
    want, magnitude = wide[0] @ wide[1], wide[0].abs() @ wide[1].abs()
    return name, [a, b], lambda g, a, b: g.matmul(a, b), want, magnitude, orders[2], 2


def conv_case(draw: random.Random) -> tuple[str, Operands, Build, Any, Any, list[int], int]:
    direction, spatial = draw.choice(["fprop", "dgrad", "wgrad"]), draw.choice([1, 2, 2, 2, 3])
    images, c = draw.choice([1, 2, 5]), draw.choice([8, 16, 24, 64, 72, 128])
    k = draw.choice([8, 40, 64, 96, 192])
    groups = c if draw.random() < 0.25 else 1  # depthwise
    k = c if groups > 1 else k
    filters = [draw.choice([1, 2, 3, 5, 7] if spatial < 3 else [1, 2, 3]) for _ in range(spatial)]
    stride, dilation = [draw.choice([1, 1, 2, 3])] * spatial, [draw.choice([1, 1, 2])] * spatial
    padding = [draw.choice([0, 1, 2]) for _ in range(spatial)]
    reach = [d * (r - 1) + 1 for d, r in zip(dilation, filters, strict=True)]
    most = {1: 200, 2: 20, 3: 8}[spatial]
    least = [max(1, n - 2 * p) for n, p in zip(reach, padding, strict=True)]
    size = [draw.randint(n, n + most) for n in least]
    dtype, order = draw.choice(TYPES), [0, *range(2, 2 + spatial), 1]
    x, w = (
        values(draw, (images, c, *size), order, dtype),
        values(draw, (k, c // groups, *filters), order, dtype),
    )
    options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
    torch_options = (stride, padding, dilation, groups)
    functional = torch.nn.functional
    forward = [functional.conv1d, functional.conv2d, functional.conv3d][spatial - 1]
    y = forward(x.double(), w.double(), None, *torch_options)
    dy = values(draw, tuple(y.shape), order, dtype)
    name = f"{direction} x {tuple(x.shape)} w {tuple(w.shape)} {options} {dtype}"

    def both(run: Callable[..., Any], *tensors: Any) -> tuple[Any, Any]:
        return run(*(t.double() for t in tensors)), run(*(t.double().abs() for t in tensors))

    if direction == "fprop":
        want, magnitude = both(lambda x, w: forward(x, w, None, *torch_options), x, w)
        return name, [x, w], lambda g, x, w: g.conv_fprop(x, w, **options), want, magnitude, order, 1
    grads = torch.ops.aten.convolution_backward
    shared = (None, stride, padding, dilation, False, [0] * spatial, groups)
    if direction == "dgrad":
        outputs = [True, False, False]
        want, magnitude = both(lambda dy, w: grads(dy, x.double(), w, *shared, outputs)[0], dy, w)

        def data(g: weft.Graph, dy: Any, w: Any) -> Any:
            return g.conv_dgrad(dy, w, **options).set_dim(list(x.shape)).set_stride(list(x.stride()))

        return name, [dy, w], data, want, magnitude, order, 1
    want, magnitude = both(lambda dy, x: grads(dy, x, w.double(), *shared, [False, True, False])[1], dy, x)

    def filter_(g: weft.Graph, dy: Any, x: Any) -> Any:
        return g.conv_wgrad(x, dy, **options).set_dim(list(w.shape)).set_stride(list(w.stride()))

    return name, [dy, x], filter_, want, magnitude, order, 1


def check(draw: random.Random, case: Any) -> str:
    """Runs one random case; what is wrong with it, or nothing."""
    name, inputs, product, want, magnitude, order, channel = case
    out_type = draw.choice([inputs[0].dtype, torch.float32])
    what, more, nodes, expected, growth = epilogue(draw, tuple(want.shape), channel, order, inputs[0].dtype)
    want = expected(want, *(t.double() for t in more))
    sized = values(draw, tuple(want.shape), order, out_type)
    tile = draw.choice([0, 0, *range(1, TILES + 1)])

    def build(tile: int) -> tuple[weft.Graph, Operands]:
        g = weft.Graph(intermediate_data_type="f32", compute_data_type="f32")
        given = [g.tensor_like(t) for t in (*inputs, *more)]
        result = nodes(g, product(g, *given[: len(inputs)]), *given[len(inputs) :])
        result.set_output(True).set_data_type(out_type).set_dim(list(sized.shape)).set_stride(
            list(sized.stride())
        )
        if inputs[0].dtype == torch.float32:  # any engine may serve it
            g.build()
            return g, [*given, result]
        g.validate()
        g.build_operation_graph()
        g.create_execution_plan(0, {"TILE_SIZE": tile})
        g.check_support()
        g.build_plans()
        return g, [*given, result]

    try:
        g, tensors = build(tile)
    except weft.NotSupportedError:  # the tile does not fit
        g, tensors = build(tile := 0)
    outs = [guarded(sized, out_type) for _ in range(2)]
    for out, _ in outs:
        g.execute(dict(zip(tensors, (*inputs, *more, out), strict=True)))
    torch.cuda.synchronize()
    got = outs[0][0].double()
    wrong = ~(
        (got - want).abs() <= growth * bound(want, magnitude, out_type, "cuda.tf32" in str(g.plan.report))
    )
    faults = []
    if wrong.any():
        faults.append(f"{int(wrong.sum())} of {wrong.numel()} wrong, first at {wrong.nonzero()[0].tolist()}")
    if not torch.equal(outs[0][1], outs[1][1]):
        faults.append("not repeatable")
    if not all(guards_hold(memory) for _, memory in outs):
        faults.append("wrote outside")
    return f"{name}, {what}, to {out_type}, tile {tile}: {', '.join(faults)}" if faults else ""


@pytest.mark.parametrize("seed", SEEDS)
def test_random_products(seed: int) -> None:
    draw = random.Random(seed)
    faults = [
        fault
        for _ in range(CASES_PER_SEED)
        if (fault := check(draw, draw.choice([matmul_case, conv_case])(draw)))
    ]
    assert not faults, "\n".join(faults)
