"""slice against NumPy: bits must move unchanged."""

import checks
import ml_dtypes
import numpy as np
import pytest
import weft


def cut(start, limit, steps=None):
    return lambda g, x: g._strided_slice(x, start, limit, steps, name="s")


@pytest.mark.parametrize(
    ("start", "limit", "steps"),
    [
        ([0, 0, 0], [5, 6, 7], None),
        ([1, 2, 3], [4, 5, 7], None),
        ([0, 1, 0], [5, 6, 7], [2, 3, 4]),
        ([4, 5, 6], [5, 6, 7], [9, 9, 9]),
        ([2, 3, 0], [2, 6, 7], None),
        ([0, 0, 1], [5, 6, 7], [1, 1, 6]),
    ],
)
def test_boxes(start, limit, steps):
    x = checks.random((5, 6, 7), "f32")
    want = x[tuple(slice(*each) for each in zip(start, limit, steps or [1, 1, 1], strict=True))]
    checks.check_bits(cut(start, limit, steps), {"x": x}, want, layouts=checks.LAYOUTS)


@pytest.mark.parametrize(
    "dtype", ["f64", "f16", "bf16", "e4m3", "e5m2", "i64", "i32", "i8", "u8", "u32", "bool8"]
)
def test_types(dtype):
    x = checks.random((9, 11), dtype, 0 if dtype[0] == "u" else -5, 5)
    if dtype == "i64":
        x = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (9, 11))
    checks.check_bits(cut([1, 2], [8, 11], [3, 2]), {"x": x}, x[1:8:3, 2::2])


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.float4_e2m1fn])
def test_types_below_a_byte(dtype):
    x = np.arange(15).reshape(3, 5).astype(dtype)
    checks.check_bits(cut([0, 1], [3, 5], [2, 3]), {"x": x}, x[::2, 1::3])


@pytest.mark.parametrize("dtype", ["i8", "bf16", "f32", "f64"])
@pytest.mark.parametrize("width", [2, 33, 64, 513])
def test_every_second_and_whole_rows(dtype, width):
    """By vectors, and what is left of them; rows shorter and longer than a few cache lines."""
    x = checks.random((7, 6, width), dtype, -100, 100)
    for start in (0, 1):
        second = x[:, :, start::2]
        checks.check_bits(
            cut([0, 0, start], list(x.shape), [1, 1, 2]), {"x": x}, second, layouts=("packed", "padded")
        )
        checks.check_bits(cut([1, 2, start], [6, 5, width]), {"x": x}, x[1:6, 2:5, start:])


def test_memory_order_of_the_input_is_kept():
    g = weft.Graph()
    y = g._strided_slice(g.tensor([2, 3, 4, 5], [60, 1, 15, 3], "f32"), [0, 1, 0, 0], [2, 3, 4, 5])
    g.validate()
    assert (y.get_dim(), y.get_stride()) == ([2, 2, 4, 5], [40, 1, 10, 2])


def test_refusals():
    x = {"x": ([3, 4], "f32")}
    sentence = (
        "slice 's': dimension 1: start is {} and limit {}, x has 4 elements there (dims [3,4]). "
        "Keep 0 <= start <= limit <= extent."
    )
    for start, limit in ((0, 5), (-1, 3), (3, 2)):
        checks.refuses(cut([0, start], [3, limit]), x, sentence.format(start, limit))
    checks.refuses(
        cut([0], [3, 4]),
        x,
        "slice 's': x has 2 dims [3,4]; start is [0], limit [3,4], steps []. Give one of each per dimension "
        "(steps may be unset).",
    )
    checks.refuses(
        cut([0, 0], [3, 4], [1, 0]),
        x,
        "slice 's': attribute steps is 0, expected 1..9223372036854775807. Set a value in that range.",
    )
