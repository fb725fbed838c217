"""concat against NumPy: bits must move unchanged."""

import checks
import ml_dtypes
import numpy as np
import pytest
import weft


def join(axis, **options):
    return lambda g, **parts: g.concatenate(list(parts.values()), axis, name="c", **options)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_axes(axis):
    shapes = [[3, 4, 5] for _ in range(3)]
    shapes[1][axis], shapes[2][axis] = 1, 7
    parts = {name: checks.random(shape, "f32") for name, shape in zip("abc", shapes, strict=True)}
    want = np.concatenate(list(parts.values()), axis)
    checks.check_bits(join(axis), parts, want, layouts=checks.LAYOUTS)


@pytest.mark.parametrize(
    "dtype", ["f64", "f16", "bf16", "e4m3", "e5m2", "i64", "i32", "i8", "u8", "u32", "bool8"]
)
def test_types(dtype):
    low = 0 if dtype[0] == "u" else -5
    parts = {"a": checks.random((3, 5), dtype, low, 5), "b": checks.random((3, 2), dtype, low, 5)}
    if dtype == "i64":
        parts["a"] = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (3, 5))
    want = np.concatenate(list(parts.values()), 1)
    checks.check_bits(join(1), parts, want)


@pytest.mark.parametrize("columns", [(4095, 33, 1), (300, 212), (12, 20), (5, 3, 2, 1)])
@pytest.mark.parametrize("dtype", ["i8", "bf16", "f32", "f64"])
def test_rows_of_any_length(columns, dtype):
    """Rows that begin at any offset within one access, some shorter than an access."""
    parts = {f"x{n}": checks.random((2, 37, n), dtype, -100, 100, seed=i) for i, n in enumerate(columns)}
    want = np.concatenate(list(parts.values()), 2)
    checks.check_bits(join(2), parts, want, layouts=("packed", "padded"))
    turned = {name: x.transpose(0, 2, 1).copy() for name, x in parts.items()}
    checks.check_bits(join(1), turned, want.transpose(0, 2, 1), layouts=("packed", "channels_last"))


def test_types_below_a_byte():
    a, b = np.arange(15).reshape(3, 5).astype(ml_dtypes.uint4), np.ones((3, 2), ml_dtypes.uint4)
    want = np.concatenate([a, b], 1)
    checks.check_bits(join(1), {"a": a, "b": b}, want)


def test_one_none_and_empty_parts():
    x, empty = checks.random((3, 5), "f32"), np.zeros((0, 5), np.float32)
    checks.check(join(0), {"x": x}, x)
    checks.check(join(0), {"e": empty, "x": x, "f": empty}, x)
    checks.check(join(0), {"e": empty, "f": empty}, empty)


def test_the_same_tensor_twice():
    x = checks.random((3, 5), "f32")
    checks.check(lambda g, x: g.concatenate([x, x], 0), {"x": x}, np.concatenate([x, x]))


def test_in_place_index_changes_no_value():
    a, b = checks.random((3, 5), "f32"), checks.random((2, 5), "f32", seed=1)
    checks.check(join(0, in_place_index=1), {"a": a, "b": b}, np.concatenate([a, b]))


def aliased(part="f32", result="f32", strides=(8, 1), at=24, index=1):
    """y = [a, b] with b already stored at element `at` of y's memory; returns y."""
    g = weft.Graph(handle=weft.create_handle("cpu"))
    a, b = g.tensor([3, 8], data_type="f32"), g.tensor([2, 8], list(strides), part)
    y = g.concatenate([a, b], 0, in_place_index=index, name="c").set_output(True).set_data_type(result)
    g.build()
    memory = checks.narrow(np.full(64, np.nan), result)
    memory[24:40] = np.arange(16)
    first = np.full((3, 8), 7, "f4")
    start = memory.ctypes.data
    g.execute({a: first.ctypes.data, b: start + at * memory.itemsize, y: start})
    return memory[:40]


def test_a_part_may_be_its_place_in_the_result():
    np.testing.assert_array_equal(aliased(), [7] * 24 + list(range(16)))


@pytest.mark.parametrize(
    "changed",
    [
        {"part": "f16"},
        {"part": "f16", "at": 12},  # at as many bytes as its place would have in f16
        {"part": "f16", "strides": (16, 2)},
        {"result": "f16"},
        {"strides": (9, 1)},
        {"at": 20},
        {"at": 28},
        {"index": None},
        {"index": 0},
        {"index": 0, "at": 0},
    ],
)
def test_a_part_elsewhere_in_the_result_is_refused(changed):
    """Another type, other strides, a different offset, or no index."""
    message = r"^output .* overlap in memory\. Give the output memory"
    with pytest.raises(weft.BadParameterError, match=message):
        aliased(**changed)


def test_a_result_of_another_type_is_converted():
    a, b = checks.random((3, 5), "f16"), checks.random((2, 5), "f32", seed=1)
    checks.check(join(0), {"a": a, "b": b}, np.concatenate([a.astype(np.float32), b]), out="f32")


@pytest.mark.parametrize(
    ("types", "want"),
    [
        (("i8", "f32"), "f32"),
        (("i8", "f16"), "f16"),
        (("i8", "bf16"), "bf16"),
        (("i32", "f16"), "f64"),
        (("i32", "f32"), "f64"),
        (("i64", "f32"), "f64"),
        (("i8", "u8"), "i32"),
        (("u8", "i32"), "i32"),
        (("i32", "u32"), "i64"),
        (("i32", "i64"), "i64"),
        (("bool8", "i8"), "i8"),
        (("bool8", "f16"), "f16"),
        (("f16", "bf16"), "f32"),
        (("f16", "f32"), "f32"),
        (("e4m3", "e5m2"), "f16"),
        (("e4m3", "bf16"), "bf16"),
        (("f32", "f64"), "f64"),
        (("i8", "i64", "f32", "bool8"), "f64"),
    ],
)
def test_mixed_types_keep_their_values(types, want):
    """The result has the narrowest type that holds all of them, in any order: 0.5 is not an integer, 10^8 + 1
    is not representable as a float."""
    most = {"i32": 10**8 + 1, "i64": 10**8 + 1, "u32": 2**32 - 1, "u8": 255, "i8": -128}
    parts = {type_: checks.narrow([most.get(type_, 0.5), 1, 0], type_) for type_ in types}
    for order in (types, types[::-1]):
        turned = {type_: parts[type_] for type_ in order}
        joined = np.concatenate([checks.exact(part) for part in turned.values()])
        found = checks.check(join(0), turned, joined)
        for (got,) in found.values():
            assert got.dtype == checks.random((1,), want).dtype
            np.testing.assert_array_equal(checks.exact(got), joined)


def test_refusals():
    parts = {"a": ([3, 4], "f32"), "b": ([2, 5], "f32")}
    checks.refuses(
        join(0), parts, "concat 'c': input 0 is [3,4], input 1 is [2,5]. Make all dims but dimension 0 equal."
    )
    checks.refuses(join(2), parts, "concat 'c': axis is 2, the inputs have 2 dims. Use a value in -2..1.")
    checks.refuses(
        join(0, in_place_index=2),
        {"a": ([3, 4], "f32"), "b": ([2, 4], "f32")},
        "concat 'c': in_place_index is 2, there are 2 inputs. Use a value in 0..1, or leave it unset.",
    )
