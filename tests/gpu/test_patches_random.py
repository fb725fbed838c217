"""Depthwise convolutions and those of images with few channels, of random shapes, layouts, types and fused
operations, against torch in double.

As test_contraction_random.py, whose ways of checking it uses: each seed makes a few cases, a failure names
its seed and prints its case.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import weft
from gpu import test_contraction_random as products
from gpu.test_contraction_random import SEEDS, torch, values

HALVES = [torch.float16, torch.bfloat16]
CASES_PER_SEED = 6
FUNCTIONS = [torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d]


def geometry(
    draw: random.Random, spatial: int, taps: list[int]
) -> tuple[list[int], list[int], dict[str, Any]]:
    """Filter and image sizes, and what the convolution is told."""
    filters = [draw.choice(taps) for _ in range(spatial)]
    stride = [draw.choice([1, 1, 2, 3]) for _ in range(spatial)]
    dilation = [draw.choice([1, 1, 1, 2]) for _ in range(spatial)]
    padding = [draw.choice([0, 1, 2, r // 2]) for r in filters]
    reach = [d * (r - 1) + 1 for d, r in zip(dilation, filters, strict=True)]
    least = [max(1, n - 2 * p) for n, p in zip(reach, padding, strict=True)]
    size = [draw.randint(n, n + {1: 300, 2: 40, 3: 9}[spatial]) for n in least]
    return filters, size, {"stride": stride, "padding": padding, "dilation": dilation}


def case(draw: random.Random, direction: str, sizes: Any, shape: Any, orders: Any, dtype: Any) -> Any:
    """The operands, the node and the result in double of one convolution, as check() takes them."""
    filters, size, options = sizes
    images, c, k, groups = shape
    order, filter_order = orders
    x = values(draw, (images, c, *size), order, dtype)
    w = values(draw, (k, c // groups, *filters), filter_order, dtype)
    convolve = FUNCTIONS[len(size) - 1]
    given = (options["stride"], options["padding"], options["dilation"])

    def forward(x: Any, w: Any) -> Any:
        return convolve(x.double(), w.double(), None, *given, groups)

    y = forward(x, w)
    dy = values(draw, tuple(y.shape), order, dtype)
    name = f"{direction} x {tuple(x.shape)} w {tuple(w.shape)} {options} order {order} {filter_order} {dtype}"
    if direction == "fprop":
        return (
            name,
            [x, w],
            lambda g, x, w: g.conv_fprop(x, w, **options),
            y,
            forward(x.abs(), w.abs()),
            order,
            1,
        )
    mask = [direction == "dgrad", direction == "wgrad", False]

    def gradient(x: Any, w: Any, dy: Any) -> Any:
        shared = (None, *given, False, [0] * len(size), groups, mask)
        return torch.ops.aten.convolution_backward(dy.double(), x.double(), w.double(), *shared)[
            mask.index(True)
        ]

    want, magnitude = gradient(x, w, dy), gradient(x.abs(), w.abs(), dy.abs())

    def data(g: weft.Graph, dy: Any, w: Any) -> Any:
        return g.conv_dgrad(dy, w, **options).set_dim(list(x.shape)).set_stride(list(x.stride()))

    def filter_(g: weft.Graph, x: Any, dy: Any) -> Any:
        return g.conv_wgrad(x, dy, **options).set_dim(list(w.shape)).set_stride(list(w.stride()))

    if direction == "dgrad":
        return name, [dy, w], data, want, magnitude, order, 1
    return name, [x, dy], filter_, want, magnitude, filter_order, 0


def depthwise(draw: random.Random) -> Any:
    spatial = draw.choice([1, 2, 2, 2, 3])
    sizes = geometry(draw, spatial, [1, 2, 3, 3, 4, 5, 7] if spatial < 3 else [1, 2, 3])
    channels = draw.choice([1, 3, 8, 20, 32, 40, 64, 72, 130])
    last = [0, *range(2, 2 + spatial), 1]
    order = draw.choice([last, last, list(range(2 + spatial))])
    dtype = draw.choice([*HALVES, torch.float32])
    direction = draw.choice(["fprop", "dgrad", "wgrad"])
    shape = (draw.choice([1, 2, 5]), channels, channels, channels)
    return case(draw, direction, sizes, shape, (order, draw.choice([last, list(range(2 + spatial))])), dtype)


def stem(draw: random.Random) -> Any:
    sizes = geometry(draw, 2, [1, 2, 3, 5, 7])
    last, packed = [0, 2, 3, 1], [0, 1, 2, 3]
    shape = (
        draw.choice([1, 2, 5]),
        draw.choice([1, 3, 4, 8, 8]),
        draw.choice([5, 16, 24, 32, 64, 64, 96]),
        1,
    )
    orders = (draw.choice([last, last, packed]), draw.choice([last, packed]))
    return case(draw, draw.choice(["fprop", "dgrad", "wgrad"]), sizes, shape, orders, draw.choice(HALVES))


@pytest.mark.parametrize("seed", SEEDS[: len(SEEDS) // 4])
@pytest.mark.parametrize("make", [depthwise, stem])
def test_random_patches(make: Any, seed: int) -> None:
    draw = random.Random(seed)
    faults = [fault for _ in range(CASES_PER_SEED) if (fault := products.check(draw, make(draw)))]
    assert not faults, "\n".join(faults)
