"""block_scale_quantize and block_scale_dequantize against NumPy: few bits and a scale per block."""

from __future__ import annotations

import itertools
from typing import Any

import checks
import ml_dtypes
import numpy as np
import pytest
import weft
from weft import dtypes

Array = np.ndarray[Any, Any]

TILED = weft.tensor_reordering.F8_128x4
MOST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0, "i8": 127.0, "i4": 7.0}
SCALE_MOST = {"e4m3": 448.0, "f16": 65504.0, "bf16": float(ml_dtypes.finfo("bfloat16").max)}


def blocks(x: Array, size: int, axis: int) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Returns, for each range of blocks along the axis, the indices of its elements and of its scales."""
    found = []
    for k in range(-(-x.shape[axis] // size)):
        place: list[Any] = [slice(None)] * x.ndim
        place[axis] = slice(k * size, (k + 1) * size)
        scale = list(place)
        scale[axis] = slice(k, k + 1)
        found.append((tuple(place), tuple(scale)))
    return found


def scale_of(magnitude: Array, dtype: str, scale_type: str) -> Array:
    """The scale as it is stored, as float64."""
    wide = magnitude / MOST[dtype]
    if scale_type == "e8m0":
        wide = np.exp2(np.ceil(np.log2(np.maximum(wide, 2.0**-127))))
    wide = np.minimum(wide, SCALE_MOST.get(scale_type, np.inf))
    return checks.exact(checks.narrow(wide, scale_type))


def quantized(x: Array, size: int, axis: int, dtype: str, scale_type: str) -> tuple[Array, Array]:
    """y and scale, as float64."""
    x = checks.exact(x)
    dims = list(x.shape)
    dims[axis] = -(-dims[axis] // size)
    y, scale = np.zeros(x.shape), np.zeros(dims)
    for place, of in blocks(x, size, axis):
        finite = np.where(np.isfinite(x[place]), np.abs(x[place]), 0)
        stored = scale_of(finite.max(axis, keepdims=True, initial=0), dtype, scale_type)
        with np.errstate(divide="ignore", invalid="ignore"):
            y[place] = np.where(stored > 0, x[place] / stored, 0)
        scale[of] = stored
    if dtype == "e2m1":  # has no NaN, and makes it its largest number
        y = np.nan_to_num(y, nan=MOST[dtype])
    return checks.exact(checks.narrow(y, dtype)), scale


def check_quantize(
    x: Array, size: int, dtype: str, scale_type: str, axis: int = -1, **how: Any
) -> dict[str, list[Array]]:
    y, scale = quantized(x, size, axis, dtype, scale_type)
    return checks.check(
        lambda g, x: g.block_scale_quantize(x, size, axis=axis),
        {"x": x},
        [y, scale],
        out=[dtype, scale_type],
        **how,
    )


@pytest.mark.parametrize("source", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("dtype", list(MOST))
@pytest.mark.parametrize("scale_type", ["e8m0", "e4m3", "f16", "bf16", "f32"])
def test_quantize(source: str, dtype: str, scale_type: str) -> None:
    check_quantize(checks.random((3, 70), source, -9, 9), 32, dtype, scale_type)


# Rows of as many elements as the CPU takes side by side, 64, one more, and one and a half times as many.
STRIPS = [((35, 64), 0), ((35, 65), 0), ((64, 96), 0)]


@pytest.mark.parametrize(
    ("shape", "axis"), [((5,), 0), ((2, 3, 33), 2), ((37, 6), 0), ((2, 35, 5), -2), ((4, 1), -1), *STRIPS]
)
@pytest.mark.parametrize("size", [1, 16, 32, 128])
def test_quantize_along_any_dimension(shape: tuple[int, ...], axis: int, size: int) -> None:
    for dtype, scale_type in (("e2m1", "e4m3"), ("e4m3", "f32")):
        check_quantize(checks.random(shape, "f32", -3, 3), size, dtype, scale_type, axis)


def test_quantize_channels_last() -> None:
    x = checks.random((2, 33, 3, 5), "bf16", -3, 3)
    check_quantize(x, 16, "e2m1", "e4m3", axis=1, layouts=["channels_last"])


def test_usual_scale_types() -> None:
    for size, dtype, want in (
        (32, "e4m3", "e8m0"),
        (16, "e2m1", "e4m3"),
        (16, "e4m3", "f32"),
        (128, "e4m3", "f32"),
    ):
        g = weft.Graph()
        y, scale = g.block_scale_quantize(g.tensor([4, 256], data_type="f32"), size)
        y.set_output(True).set_data_type(dtype)
        scale.set_output(True)
        g.validate()
        assert scale.dtype is dtypes.data_type_of(want)
        assert scale.dims == (4, 256 // size)


@pytest.mark.parametrize(("dtype", "scale_type"), list(itertools.product(MOST, ["e8m0", "e4m3", "f32"])))
def test_special_values(dtype: str, scale_type: str) -> None:
    """Zeros, infinities, NaN, and magnitudes outside the range of scales do not affect other blocks."""
    x = checks.random((7, 32), "f32", -3, 3)
    x[0] = 0
    x[1, 4], x[1, 7] = np.inf, -np.inf
    x[2, 3] = np.nan
    x[3] *= 1e30
    x[4] *= 1e-30
    x[5] = np.nan
    x[6] = -0.0
    check_quantize(x, 32, dtype, scale_type)


def test_scales_are_rounded_up_to_powers_of_two() -> None:
    """A largest magnitude that is a power of two times 448 keeps its scale; the next float gets twice it."""
    x = np.array([[448, 1], [np.nextafter(np.float32(448), np.float32(500)), 1]], np.float32)
    found = checks.first(check_quantize(x, 2, "e4m3", "e8m0"))
    assert checks.exact(found[1]).tolist() == [[1.0], [2.0]]


def test_zero_size() -> None:
    check_quantize(np.zeros((0, 32), np.float32), 16, "e4m3", "f32")
    check_quantize(np.zeros((3, 0), np.float32), 16, "e2m1", "e4m3")


def test_transposed_memory() -> None:
    g = weft.Graph()
    y, scale = g.block_scale_quantize(g.tensor([2, 64, 96], data_type="f32"), 32, axis=1, transpose=True)
    y.set_output(True).set_data_type("e4m3")
    scale.set_output(True)
    g.validate()
    assert (y.dims, y.strides) == ((2, 64, 96), (6144, 1, 64))
    assert (scale.dims, scale.strides) == ((2, 2, 96), (192, 1, 2))


# ---- Dequantising ------------------------------------------------------------------------------------------


def spread(scale: Array, shape: tuple[int, ...], size: list[int]) -> Array:
    """Each element's scale."""
    wide = checks.exact(scale)
    for axis, extent in zip(range(-len(size), 0), size, strict=True):
        wide = np.take(np.repeat(wide, extent, axis), range(shape[axis]), axis)
    return wide


def check_dequantize(
    x: Array, scale: Array, size: list[int], out: str = "f32", negative: bool = False
) -> None:
    want = checks.exact(x) * spread(scale, x.shape, size) * (-1 if negative else 1)
    checks.check(
        lambda g, x, scale: g.block_scale_dequantize(x, scale, size, is_negative_scale=negative),
        {"x": x, "scale": scale},
        want,
        out=out,
    )


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2", "e2m1", "i8", "u8", "i4", "u4"])
@pytest.mark.parametrize("scale_type", ["e8m0", "e4m3", "f16", "bf16", "f32"])
@pytest.mark.parametrize("out", ["f16", "bf16", "f32", "f64"])
def test_dequantize(dtype: str, scale_type: str, out: str) -> None:
    low = 0 if dtype[0] == "u" else -6
    x, scale = checks.random((3, 70), dtype, low, 6), checks.random((3, 3), scale_type, 0.25, 4, seed=1)
    check_dequantize(x, scale, [1, 32], out)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((130, 260), [128, 128]), ((2, 5, 33), [16]), ((2, 5, 33), [2, 3, 4]), ((7, 3), [32, 1]), ((9,), [4])],
)
def test_dequantize_in_boxes(shape: tuple[int, ...], size: list[int]) -> None:
    whole = [1] * (len(shape) - len(size)) + size
    dims = [-(-extent // block) for extent, block in zip(shape, whole, strict=True)]
    for dtype in ("e4m3", "i4"):
        check_dequantize(checks.random(shape, dtype, -6, 6), checks.random(dims, "f32", -2, 2, seed=1), size)


def test_negative_scales() -> None:
    x, scale = checks.random((4, 64), "e4m3", -6, 6), checks.random((4, 2), "f32", -2, 2, seed=1)
    check_dequantize(x, scale, [32], negative=True)


@pytest.mark.parametrize(
    ("dtype", "size", "scale_type"), [("e4m3", 32, "e8m0"), ("e2m1", 16, "e4m3"), ("i8", 128, "f32")]
)
def test_there_and_back(dtype: str, size: int, scale_type: str) -> None:
    """Through virtual tensors: what comes back is off by half of a unit in the last place at most."""
    x = checks.random((5, 200), "f32", -3, 3)
    y, scale = quantized(x, size, -1, dtype, scale_type)
    want = y * spread(scale, x.shape, [size])

    def both(g: Any, x: Any) -> Any:
        y, scale = g.block_scale_quantize(x, size)
        y.set_data_type(dtype)
        scale.set_data_type(scale_type)
        return g.block_scale_dequantize(y, scale, [1, size])

    checks.check(both, {"x": x}, want, out="f32")
    unit = 0.5 if dtype == "i8" else float(ml_dtypes.finfo(checks.narrow([0], dtype).dtype).eps) / 2
    step = unit * spread(scale, x.shape, [size])
    assert (np.abs(want - x) <= np.maximum(step, unit * np.abs(x)) * MOST[dtype]).all()


def test_weights_of_4_bits_in_a_product() -> None:
    x, w = checks.random((5, 64), "f32"), checks.random((64, 24), "i4", -7, 7, seed=1)
    scale = checks.random((2, 24), "f16", 0.25, 2, seed=2)
    checks.check(
        lambda g, x, w, scale: g.matmul(x, g.block_scale_dequantize(w, scale, [32, 1])),
        {"x": x, "w": w, "scale": scale},
        checks.exact(x) @ (checks.exact(w) * spread(scale, w.shape, [32, 1])),
        magnitude=64 * 2 * 7 * 2,
    )


@pytest.mark.parametrize(
    ("batch", "m", "n", "k", "left", "right"),
    [
        ((), 64, 128, 256, [1, 128], [128, 128]),
        ((), 150, 72, 400, [1, 128], [128, 128]),
        ((), 40, 200, 272, [128, 128], [128, 1]),  # A and B change places
        ((), 33, 40, 528, [1, 256], [528, 64]),
        ((2,), 70, 130, 144, [1, 128], [128, 128]),
        ((), 70, 80, 256, [1, 128], []),
        ((), 16, 48, 128, [1, 32], [32, 1]),  # scaled before the product
    ],
)
@pytest.mark.parametrize("scale_type", ["f32", "e8m0"])
def test_products_of_scaled_blocks(
    batch: tuple[int, ...], m: int, n: int, k: int, left: list[int], right: list[int], scale_type: str
) -> None:
    """Factors are contiguous along the summed dimension, which tensor cores require; scales use either
    order."""
    a, b = checks.random((*batch, m, k), "e4m3"), checks.random((*batch, k, n), "e5m2", seed=1)
    inputs: dict[str, Any] = {"a": a, "b": (b, (*[k * n] * len(batch), 1, k))}
    wide = [checks.exact(a), checks.exact(b)]
    for i, (name, block) in enumerate((("a_scale", left), ("b_scale", right))):
        if not block:
            continue
        dims = (*batch, *(-(-extent // size) for extent, size in zip(wide[i].shape[-2:], block, strict=True)))
        scale = checks.random(dims, scale_type, 0.25, 2, seed=2 + i)
        order = (1, dims[-2]) if i else (dims[-1], 1)
        inputs[name] = (scale, (*[dims[-1] * dims[-2]] * len(batch), *order))
        wide[i] = wide[i] * spread(checks.exact(scale), wide[i].shape, block)

    def build(g: Any, a: Any, b: Any, a_scale: Any = None, b_scale: Any = None) -> Any:
        a = g.block_scale_dequantize(a, a_scale, left) if left else a
        b = g.block_scale_dequantize(b, b_scale, right) if right else b
        return g.swish(g.matmul(a, b))

    c = wide[0] @ wide[1]
    checks.check(
        build,
        inputs,
        c * (1 + np.tanh(c / 2)) / 2,
        out="bf16",
        layouts=["packed"],
        magnitude=float((np.abs(wide[0]) @ np.abs(wide[1])).max()) * 1.1,
        of_fp8=True,
    )


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "through", "weights", "group"),
    [
        (1, 24, "bf16", "bf16", "i4", 32),
        (5, 40, "f16", "f16", "u4", 64),
        (8, 33, "bf16", "f32", "i4", 128),
        (17, 24, "bf16", "bf16", "i8", 16),
        (33, 18, "f16", "f16", "i8", 256),
        (64, 24, "f16", "f32", "u8", 64),
        (65, 24, "bf16", "bf16", "i4", 32),
        (70, 130, "f16", "f16", "u4", 64),
        (96, 17, "f16", "f32", "i8", 128),
        (130, 40, "bf16", "bf16", "u8", 32),
        (257, 72, "bf16", "f32", "u4", 128),
    ],
)
def test_few_rows_times_weights_of_few_bits(rows, columns, dtype, through, weights, group):
    """Weights have the layout of linear layers; they are rounded to `through` before they are multiplied."""
    low, high = {"i4": (-8, 7), "u4": (0, 15), "i8": (-128, 127), "u8": (0, 255)}[weights]
    depth = 288 if group < 64 else 256
    x, w = checks.random((rows, depth), dtype), checks.random((depth, columns), weights, low, high, seed=1)
    scale = checks.random((depth // group, columns), dtype, 0.01, 0.1, seed=2)
    bias = checks.random((1, columns), dtype, seed=3)
    wide = checks.exact(checks.narrow(checks.exact(w) * spread(scale, w.shape, [group, 1]), through))

    def build(g: Any, x: Any, w: Any, scale: Any, bias: Any) -> Any:
        dequantized = g.block_scale_dequantize(w, scale, [group, 1]).set_data_type(through)
        return g.relu(g.add(g.matmul(x, dequantized).set_data_type("f32"), bias).set_data_type("f32"))

    checks.check(
        build,
        {"x": (x, (depth, 1)), "w": (w, (1, depth)), "scale": scale, "bias": bias},
        np.maximum(checks.exact(x) @ wide + checks.exact(bias), 0),
        out=dtype,
        magnitude=float((np.abs(checks.exact(x)) @ np.abs(wide)).max()),
    )


CODES = {"i4": (-8, 7), "u4": (0, 15), "i8": (-128, 127), "u8": (0, 255)}


@pytest.mark.parametrize(
    ("weights", "through", "size", "block", "order", "scale_type"),
    [
        ("i4", "f32", (1, 33, 70), [32, 1], "columns", "f32"),
        ("u4", "f32", (5, 47, 131), [16, 3], "columns", "f16"),
        ("i4", "bf16", (3, 40, 130), [13, 1], "columns", "bf16"),  # blocks begin within bytes
        ("u4", "f16", (4, 30, 65), [65, 1], "rows", "f32"),
        ("e2m1", "f32", (7, 21, 64), [16, 1], "columns", "e4m3"),
        ("e2m1", "f32", (2, 18, 35), [5, 2], "rows", "f32"),
        ("i8", "f32", (13, 70, 300), [128, 1], "columns", "f32"),
        ("u8", "f32", (3, 12, 519), [7, 64], "rows", "e8m0"),
        ("i8", "f16", (2, 5, 530), [1, 128], "columns", "f32"),
        ("i8", "bf16", (70, 33, 66), [64, 1], "columns", "bf16"),
        ("e4m3", "f32", (6, 200, 150), [128, 128], "columns", "f32"),
        ("e5m2", "bf16", (40, 3, 64), [1, 2], "rows", "e8m0"),
        ("i8", "f32", (3, 70, 300), [128, 3], "columns", "bf16"),
        ("e4m3", "f32", (4, 71, 270), [270, 1], "columns", "f32"),
        ("u4", "f32", (2, 9, 140), [35, 1], "columns", "f32"),
        ("i4", "f32", (1, 67, 1280), [32, 1], "columns", "bf16"),  # few rows and whole groups of 32
        ("u4", "f32", (2, 70, 256), [64, 3], "columns", "f16"),
        ("e2m1", "f32", (3, 5, 96), [32, 1], "columns", "e8m0"),
        ("i8", "f32", (4, 66, 384), [128, 1], "columns", "f32"),
        ("u8", "f32", (1, 130, 160), [160, 1], "columns", "bf16"),
    ],
)
@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("batch", [(), (1,), (2,)])
def test_factors_of_few_bits(weights, through, size, block, order, scale_type, is_left, batch):
    """Any type, block size, memory order and side of the product; a batch of two shares the factors, or
    not."""
    m, n, k = size
    x = checks.random((*(2 for _ in batch), m, k), "bf16" if through == "bf16" else "f32")
    shape = (*batch, k, n)
    w = checks.random(shape, weights, *CODES.get(weights, ()), seed=1)
    blocks_of = [-(-extent // of) for extent, of in zip(shape[-2:], block, strict=True)]
    scale = checks.random((*shape[:-2], *blocks_of), scale_type, 0.01, 0.1, seed=2)
    pitch, lines = (k + k % 2 + 2, n) if order == "columns" else (n, k)
    strides = (*[pitch * lines for _ in batch], *((1, pitch) if order == "columns" else (pitch, 1)))
    if is_left:  # the product transposed
        x, w, scale = (np.swapaxes(t, -1, -2) for t in (x, w, scale))
        block, strides = block[::-1], (*strides[:-2], strides[-1], strides[-2])
    wide = checks.exact(checks.narrow(checks.exact(w) * spread(scale, w.shape, block), through))
    a, b = (wide, checks.exact(x)) if is_left else (checks.exact(x), wide)

    def build(g: Any, x: Any, w: Any, scale: Any) -> Any:
        w = g.block_scale_dequantize(w, scale, block, is_negative_scale=True).set_data_type(through)
        return g.abs(g.matmul(w, x) if is_left else g.matmul(x, w))

    inputs = {"x": x, "w": (w, strides), "scale": scale}
    most = float((np.abs(a) @ np.abs(b)).max())
    checks.check(build, inputs, np.abs(a @ b), layouts=["packed"], magnitude=most)


@pytest.mark.parametrize("wanted", [0, 1])
def test_single_result(wanted: int) -> None:
    """The other result is virtual and unread."""
    x = checks.random((3, 70), "bf16", -9, 9)

    def build(g: Any, x: Any) -> Any:
        results = g.block_scale_quantize(x, 16)
        for result, dtype in zip(results, ("e2m1", "e4m3"), strict=True):
            result.set_data_type(dtype)
        return results[wanted]

    checks.check(build, {"x": x}, quantized(x, 16, -1, "e2m1", "e4m3")[wanted])


# ---- Scales in tiles ---------------------------------------------------------------------------------------


def tiled(scale: Array) -> Array:
    """A matrix of whole tiles in the order of F8_128x4."""
    rows, columns = scale.shape
    tiles = scale.reshape(rows // 128, 4, 32, columns // 4, 4)
    return np.ascontiguousarray(tiles.transpose(0, 3, 2, 1, 4)).reshape(rows, columns)


def padded(scale: Array, fill: float) -> Array:
    rows, columns = scale.shape
    whole = np.full((-(-rows // 128) * 128, -(-columns // 4) * 4), fill)
    whole[:rows, :columns] = scale
    return whole


def test_tiles_are_written() -> None:
    x = checks.random((150, 300), "bf16", -3, 3)
    y, scale = quantized(x, 32, -1, "e4m3", "e8m0")

    def build(g: Any, x: Any) -> Any:
        y, scale = g.block_scale_quantize(x, 32)
        scale.set_reordering_type(TILED)
        return y, scale

    found = checks.check(
        build, {"x": x}, [y, tiled(padded(scale, 2.0**-127))], out=["e4m3", "e8m0"], layouts=["packed"]
    )
    assert checks.first(found)[1].shape == (256, 12)


def test_tiles_of_columns_are_written() -> None:
    """Blocks along the columns of a matrix: with transposed memory the tiles hold the transposed matrix."""
    x = checks.random((70, 130), "f32", -3, 3)
    y, scale = quantized(x, 16, 0, "e2m1", "e4m3")

    def build(g: Any, x: Any) -> Any:
        y, scale = g.block_scale_quantize(x, 16, axis=0, transpose=True)
        scale.set_reordering_type(TILED)
        return y, scale

    want = tiled(padded(scale.T, 0.0)).reshape(256, 8).T
    checks.check(build, {"x": x}, [y, want], out=["e2m1", "e4m3"], layouts=["packed"])


def test_tiles_are_read() -> None:
    x, scale = (
        checks.random((2, 150, 300), "e4m3", -3, 3),
        checks.random((2, 256, 12), "e8m0", 0.25, 4, seed=1),
    )
    stored = np.stack([tiled(each) for each in scale])

    def build(g: Any, x: Any, scale: Any) -> Any:
        scale.set_reordering_type(TILED)
        return g.block_scale_dequantize(x, scale, [1, 32])

    want = checks.exact(x) * spread(scale, (2, 256, 384), [1, 32])[:, :150, :300]
    checks.check(build, {"x": x, "scale": stored}, want, out="f32", layouts=["packed"])


# ---- Refusals ----------------------------------------------------------------------------------------------


def quantize(size: int = 32, dtype: str = "e4m3", **how: Any) -> Any:
    def build(g: Any, x: Any) -> None:
        scale_dims, strides = how.pop("scale_dims", None), how.pop("strides", None)
        reordering = how.pop("reordering", weft.tensor_reordering.NONE)
        scale_type, where = how.pop("scale_type", "f32"), how.pop("where", "scale")
        y, scale = g.block_scale_quantize(x, size, name="q", **how)
        y.set_output(True).set_data_type(dtype)
        scale.set_output(True).set_data_type(scale_type)
        (scale if where == "scale" else y).set_reordering_type(reordering)
        if scale_dims:
            scale.set_dim(scale_dims)
        if strides:
            scale.set_stride(strides)

    return build


def dequantize(size: list[int], out: str = "f32") -> Any:
    def build(g: Any, x: Any, s: Any) -> None:
        g.block_scale_dequantize(x, s, size, name="d").set_output(True).set_data_type(out)

    return build


X = {"x": ((4, 64), "f32")}


@pytest.mark.parametrize(
    ("build", "inputs", "message"),
    [
        (
            quantize(axis=2),
            X,
            "block_scale_quantize 'q': axis is 2, x has 2 dims [4,64]. Use a value in -2..1.",
        ),
        (
            quantize(transpose=True),
            {"x": ((64,), "f32")},
            "block_scale_quantize 'q': transpose exchanges the last two dims, but x has dims [64]. "
            "Leave it false.",
        ),
        (
            quantize(dtype="bf16"),
            X,
            "block_scale_quantize 'q': y has data type bf16. Use FP8_E4M3, FP8_E5M2, FP4_E2M1, INT8 or INT4.",
        ),
        (
            quantize(),
            {"x": ((4, 64), "i32")},
            "block_scale_quantize 'q': x has data type i32. Use a float type of 16 bits or more.",
        ),
        (
            quantize(scale_type="e5m2"),
            X,
            "block_scale_quantize 'q': scale has data type e5m2. Use FP8_E8M0, FP8_E4M3 or a float "
            "type of 16 bits "
            "or more.",
        ),
        (
            quantize(scale_dims=[4, 3]),
            X,
            "block_scale_quantize 'q': scale has dims [4,3], expected [4,2]. Give it these dims, or none.",
        ),
        (
            quantize(compute_data_type="f16"),
            X,
            "block_scale_quantize 'q': compute_data_type is f16. Use FLOAT or DOUBLE.",
        ),
        (
            dequantize([1, 1, 32]),
            {"x": ((4, 64), "e4m3"), "s": ((4, 2), "f32")},
            "block_scale_dequantize 'd': block_size has 3 extents, x has dims [4,64]. Give one for "
            "each of its last "
            "dims, at most all.",
        ),
        (
            dequantize([32]),
            {"x": ((4, 64), "f32"), "s": ((4, 2), "f32")},
            "block_scale_dequantize 'd': x has data type f32. Use FP8_E4M3, FP8_E5M2, FP4_E2M1 or "
            "integers of 4 or 8 "
            "bits.",
        ),
        (
            dequantize([32], "e4m3"),
            {"x": ((4, 64), "e4m3"), "s": ((4, 2), "f32")},
            "block_scale_dequantize 'd': y has data type e4m3. Use a float type of 16 bits or more.",
        ),
        (
            dequantize([128, 128]),
            {"x": ((4, 256), "e4m3"), "s": ((4, 2), "f32")},
            "block_scale_dequantize 'd': scale has dims [4,2], expected [1,2]. Give it these dims, or none.",
        ),
    ],
)
def test_refusals(build: Any, inputs: dict[str, Any], message: str) -> None:
    checks.refuses(build, inputs, message)


@pytest.mark.parametrize(
    ("build", "inputs", "message"),
    [
        (
            quantize(reordering=TILED, where="y"),
            X,
            "block_scale_quantize 'q': y has reordering_type F8_128x4, which is for scales. Set NONE (0).",
        ),
        (
            quantize(reordering=TILED),
            {"x": ((64,), "f32")},
            "block_scale_quantize 'q': scale has reordering_type F8_128x4, tiles of a matrix, but x "
            "has dims [64]. Use "
            "two dims or more.",
        ),
        (
            quantize(reordering=TILED, scale_dims=[128, 4], strides=[8, 1]),
            X,
            "block_scale_quantize 'q': scale has reordering_type F8_128x4, dims [128,4] and strides "
            "[8,1]. Tiles need "
            "the last two dims packed: one of stride 1, the other of its extent.",
        ),
        (
            lambda g, x: g.identity(x.set_reordering_type(TILED), name="i").set_output(True),
            X,
            "pointwise 'i': x, tensor 'x' (uid 1), has reordering_type 3, which this operation does not "
            "support. Undo the reordering and set NONE (0).",
        ),
    ],
)
def test_refused_orders(build: Any, inputs: dict[str, Any], message: str) -> None:
    checks.refuses(build, inputs, message, weft.NotSupportedError)
