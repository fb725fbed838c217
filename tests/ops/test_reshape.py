"""reshape against NumPy: bits must move unchanged."""

import checks
import ml_dtypes
import numpy as np
import pytest

TYPES = ["f64", "f32", "f16", "bf16", "e4m3", "e5m2", "i64", "i32", "i8", "u8", "u32", "bool8"]
SMALL = [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn]


def values(shape, dtype):
    if dtype == "i64":
        return np.random.default_rng(0).integers(-(2**63), 2**63 - 1, shape)
    return checks.random(shape, dtype, 0 if dtype[0] == "u" else -5, 5)


def logical(dims):
    return lambda g, x: g.reshape(x, reshape_mode="LOGICAL", name="r").set_dim(dims)


@pytest.mark.parametrize("dtype", TYPES)
def test_logical_keeps_the_order_of_elements(dtype):
    x = values((3, 4, 5), dtype)
    for dims in ([60], [5, 12], [2, 1, 6, 5], [3, 4, 5]):
        want = x.reshape(dims)
        checks.check_bits(logical(dims), {"x": x}, want, layouts=checks.LAYOUTS)


@pytest.mark.parametrize("dtype", SMALL)
def test_logical_of_types_below_a_byte(dtype):
    x = np.arange(15).reshape(3, 5).astype(dtype)
    checks.check_bits(logical([5, 3]), {"x": x}, x.reshape(5, 3))


def test_logical_of_nothing():
    checks.check(logical([5, 0, 2]), {"x": np.zeros((0, 3), np.float32)}, np.zeros((5, 0, 2)))


def test_a_result_of_another_type_is_converted():
    x = np.array([1.5, 2.5, 300, -300], np.float32)
    checks.check(logical([2, 2]), {"x": x}, x.reshape(2, 2), out="i8")
    checks.check(logical([2, 2]), {"x": x}, x.reshape(2, 2), out="f16")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "e4m3"])
def test_view_keeps_the_storage(dtype):
    x = values((2, 3, 4), dtype)

    def transposed(g, x):
        return g.reshape(x, name="r").set_dim([2, 4, 3]).set_stride([12, 1, 4])

    want = x.transpose(0, 2, 1)
    checks.check_bits(transposed, {"x": x}, want, layouts=["packed"])
    checks.check_bits(
        lambda g, x: g.reshape(x).set_dim([6, 4]), {"x": x}, x.reshape(6, 4), layouts=["packed"]
    )


def test_view_of_storage_with_gaps():
    x = checks.random((2, 3), "f32")  # at strides [8, 2]: elements 0 2 4 8 10 12 of the storage

    def view(g, x):
        return g.reshape(x).set_dim([3, 2]).set_stride([2, 8])

    checks.check(view, {"x": (x, (8, 2))}, x.T, layouts=["packed"])


def test_view_of_a_part():
    x = checks.random((4, 6), "f32")

    def every_other_row(g, x):
        return g.reshape(x).set_dim([2, 6]).set_stride([12, 1])

    checks.check(every_other_row, {"x": x}, x[::2], layouts=["packed"])


def test_refusals():
    x = {"x": ([3, 4], "f32")}
    checks.refuses(
        lambda g, x: g.reshape(x, name="r"),
        x,
        "reshape 'r': y has no dims; x [3,4] can be reshaped in many ways. Set y's dims.",
    )
    checks.refuses(
        logical([5, 2]),
        x,
        "reshape 'r': x [3,4] has 12 elements, y [5,2] has 10. Give y dims with the same product.",
    )
    checks.refuses(
        lambda g, x: g.reshape(x, name="r").set_dim([2, 7]),
        x,
        "reshape 'r': a view of x's storage of 12 elements (dims [3,4], strides [4,1]) cannot reach element "
        "13, as y with dims [2,7] and strides [7,1] does. Give y smaller dims or strides, or "
        "use mode LOGICAL.",
    )
