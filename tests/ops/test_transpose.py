"""transpose against NumPy: bits must move unchanged."""

import itertools

import checks
import ml_dtypes
import numpy as np
import pytest
import weft


def transpose(permutation):
    return lambda g, x: g.transpose(x, permutation, name="t")


@pytest.mark.parametrize("permutation", list(itertools.permutations(range(3))))
def test_permutations(permutation):
    x = checks.random((3, 5, 7), "f32")
    want = x.transpose(permutation)
    checks.check_bits(transpose(permutation), {"x": x}, want, layouts=checks.LAYOUTS)


@pytest.mark.parametrize(
    "dtype", ["f64", "f16", "bf16", "e4m3", "e5m2", "i64", "i32", "i8", "u8", "u32", "bool8"]
)
def test_types(dtype):
    x = checks.random((3, 65), dtype, 0 if dtype[0] == "u" else -5, 5)
    if dtype == "i64":
        x = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (3, 65))
    checks.check_bits(transpose([1, 0]), {"x": x}, x.T)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn])
def test_types_below_a_byte(dtype):
    x = np.arange(15).reshape(3, 5).astype(dtype)
    checks.check_bits(transpose([1, 0]), {"x": x}, x.T)


@pytest.mark.parametrize(
    "shape",
    [
        *((517, 1031), (3, 300, 517), (2, 49, 600), (3, 600, 49), (2, 700, 3), (640, 1000)),
        *((2, 196, 256), (2, 256, 100), (3, 196, 72), (3, 72, 196), (2, 1, 999, 33)),
        *((2, 16, 784), (2, 784, 16), (2, 31, 65), (257, 129), (511, 1023)),
        *((63, 65), (64, 127), (127, 128), (128, 192), (193, 191)),
    ],
)
@pytest.mark.parametrize("dtype", ["i8", "bf16", "f32", "f64"])
def test_rows_of_any_length(shape, dtype):
    """Longer than tiles, and short ones that follow one another."""
    x = checks.random(shape, dtype, -100, 100)
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    checks.check_bits(transpose(order), {"x": x}, x.transpose(order), layouts=("packed", "padded"))


@pytest.mark.parametrize("width", [3, 40, 64, 100, 300])
@pytest.mark.parametrize("dtype", ["i8", "bf16", "f32", "f64"])
def test_runs(width, dtype):
    """Transposes heads: rows stay contiguous."""
    x = checks.random((2, 9, 5, width), dtype, -100, 100)
    checks.check_bits(
        transpose([0, 2, 1, 3]), {"x": x}, x.transpose(0, 2, 1, 3), layouts=("packed", "padded")
    )


@pytest.mark.parametrize("shape", [(1030, 1029), (1029, 1030), (348161, 3), (4, 262145)])
def test_larger_than_caches(shape):
    x = checks.random(shape, "f64")
    checks.check_bits(transpose([1, 0]), {"x": x}, x.T)


@pytest.mark.skipif(checks.DEVICE != "cpu", reason="it is about cache lines of the CPU")
@pytest.mark.parametrize(
    "shape", [(208, 320), (9600, 5), (7, 10240), (1024, 448), (1024, 1088), (2176, 1024)]
)
@pytest.mark.parametrize("dtype", ["i1", "f2", "f4", "f8"])
def test_rows_whose_lines_begin_anywhere(dtype, shape):
    """Tasks and blocks begin where lines do, whichever element of one the memory begins at."""
    g = weft.Graph(io_data_type=np.dtype(dtype), handle=checks.handle())
    x = g.tensor(list(shape))
    y = g.transpose(x, [1, 0]).set_output(True)
    g.build()
    values = np.random.default_rng(0).integers(-128, 128, shape).astype(dtype)
    line = 64 // values.itemsize
    for shifts in ((0, 0), (1, 0), (0, line - 1), (line // 2, 3)):
        memory = []
        for shift in shifts:
            whole = np.full(values.size + 3 * line, 7, dtype)
            first = -whole.ctypes.data % 64 // values.itemsize + line + shift
            memory.append((whole, slice(first, first + values.size)))
        (source, read), (target, written) = memory
        source[read] = values.ravel()
        g.execute({x: source[read].reshape(shape), y: target[written].reshape(shape[::-1])})
        np.testing.assert_array_equal(target[written].reshape(shape[::-1]), values.T)
        assert (np.delete(target, np.r_[written]) == 7).all(), shifts


def test_ranks_and_extents():
    for shape in ((7,), (1, 1, 1), (2, 0, 3), (2, 3, 1, 2, 1, 3, 2, 2)):
        x = checks.random(shape, "f32")
        permutation = list(range(len(shape)))[::-1]
        checks.check(transpose(permutation), {"x": x}, x.transpose(permutation))


def test_a_result_of_another_type_is_converted():
    x = checks.random((3, 5), "f32")
    checks.check(transpose([1, 0]), {"x": x}, x.T, out="bf16")


def test_refusals():
    for permutation, given in (([0, 0, 1], "[0,0,1]"), ([0, 1], "[0,1]"), ([0, 1, 3], "[0,1,3]")):
        checks.refuses(
            transpose(permutation),
            {"x": ([3, 4, 5], "f32")},
            f"transpose 't': permutation is {given}, x has 3 dims [3,4,5]. List each of 0..2 once.",
        )
    checks.refuses(
        lambda g, x: g.transpose(x, [1, 0], name="t").set_dim([3, 4]),
        {"x": ([3, 4], "f32")},
        "transpose 't': y has dims [3,4], expected [4,3]. Give it these dims, or none.",
    )
