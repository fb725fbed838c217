"""Scripts in the style of cuDNN's samples: matrix products with prologues and epilogues."""

from __future__ import annotations

from math import erf
from typing import Any

import ml_dtypes
import numpy as np
import weft.cudnn as cudnn

T = cudnn.data_type


def graph(place: Any, io: Any = T.FLOAT, **more: Any) -> cudnn.pygraph:
    types = {"intermediate_data_type": T.FLOAT, "compute_data_type": T.FLOAT}
    return cudnn.pygraph(io_data_type=io, handle=place.handle, **types, **more)


def test_bias_and_relu(place: Any) -> None:
    a, b = place.random((2, 16, 24), "bf16"), place.random((2, 24, 32), "bf16", 1)
    bias = place.random((1, 1, 32), "bf16", 2)
    g = graph(place, T.BFLOAT16)
    A, B, bias_t = g.tensor_like(a), g.tensor_like(b), g.tensor_like(bias)
    product = g.matmul(name="matmul", A=A, B=B)
    shifted = g.bias(name="bias", input=product, bias=bias_t)
    C = g.relu(name="relu", input=shifted)
    C.set_output(True).set_data_type(T.BFLOAT16)
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    g.check_support()
    g.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
    c = place.like(C)
    place.run(g, {A: a, B: b, bias_t: bias, C: c})
    place.close(c, np.maximum(place.get(a) @ place.get(b) + place.get(bias), 0), "bf16")


def test_int8_weights_are_dequantised(place: Any) -> None:
    rng = np.random.default_rng(0)
    a, scale = place.random((1, 8, 64), "f16"), place.random((1, 1, 16), "f16", 1)
    weight = place.put(rng.integers(-7, 8, (1, 64, 16)), "i8")
    g = graph(place, T.HALF)
    A, W, S = g.tensor_like(a), g.tensor_like(weight), g.tensor_like(scale)
    wide = g.identity(input=W, compute_data_type=T.FLOAT, name="wide")
    wide.set_data_type(T.HALF)
    dequantised = g.mul(a=wide, b=S, name="dequantise")
    dequantised.set_data_type(T.HALF)
    C = g.matmul(A, dequantised, name="matmul").set_output(True).set_data_type(T.FLOAT)
    g.build([cudnn.heur_mode.A])
    c = place.like(C)
    place.run(g, {A: a, W: weight, S: scale, C: c})
    place.close(c, place.get(a) @ (place.get(weight) * place.get(scale)), "f16")


def test_blocks_of_fp8_with_scales(place: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = place.random((1, 16, 64), "e4m3"), place.put(rng.standard_normal((1, 32, 64)), "e4m3")
    of_a, of_b = (place.put(2.0 ** rng.integers(-2, 3, (1, rows, 2)), "e8m0") for rows in (16, 32))
    g = graph(place, T.FLOAT)
    A, DA = g.tensor_like(a), g.tensor_like(of_a)
    B = g.tensor(dim=[1, 64, 32], stride=[2048, 1, 64], data_type=T.FP8_E4M3)
    DB = g.tensor(dim=[1, 2, 32], stride=[64, 1, 2], data_type=T.FP8_E8M0)
    wide_a = g.block_scale_dequantize(A, DA, block_size=[1, 32], name="a")
    wide_b = g.block_scale_dequantize(B, DB, block_size=[32, 1], name="b")
    C = g.matmul(wide_a, wide_b).set_output(True).set_data_type(T.FLOAT)
    g.build()
    c = place.like(C)
    place.run(g, {A: a, DA: of_a, B: b, DB: of_b, C: c})
    wide = [place.get(x) * place.get(s).repeat(32, -1) for x, s in ((a, of_a), (b, of_b))]
    place.close(c, wide[0] @ wide[1].transpose(0, 2, 1), "f32")


def test_gelu_and_the_largest_magnitude(place: Any) -> None:
    a, b = place.random((1, 12, 20)), place.random((1, 20, 28), seed=1)
    g = graph(place)
    A, B = g.tensor_like(a), g.tensor_like(b)
    Y = g.gelu(g.matmul(A, B, name="mm"), name="gelu").set_output(True)
    amax = g.reduction(Y, mode=cudnn.reduction_mode.AMAX, name="amax", out_dims=[1, 1, 1])
    amax.set_output(True).set_data_type(T.FLOAT)
    g.build()
    y, largest = place.like(Y), place.like(amax)
    place.run(g, {A: a, B: b, Y: y, amax: largest})
    product = place.get(a) @ place.get(b)
    want = product * 0.5 * (1 + np.vectorize(erf)(product / np.sqrt(2)))
    place.close(y, want)
    place.close(largest, np.abs(want).max().reshape(1, 1, 1))


def test_one_matrix_for_a_batch(place: Any) -> None:
    a, b = place.random((6, 5, 7)), place.random((1, 7, 9), seed=1)
    g = graph(place)
    A, B = g.tensor_like(a), g.tensor_like(b)
    C = g.matmul(A, B).set_output(True)
    g.build()
    c = place.like(C)
    place.run(g, {A: a, B: b, C: c})
    place.close(c, place.get(a) @ place.get(b))


def test_fp8_with_scalar_factors(place: Any) -> None:
    a, b = place.random((1, 16, 32), "e4m3"), place.random((1, 32, 16), "e4m3", 1)
    factors = [place.put(np.full((1, 1, 1), x), "f32") for x in (0.5, 0.25, 2.0)]
    g = graph(place, T.FP8_E4M3)
    A, B = g.tensor_like(a), g.tensor_like(b)
    of_a, of_b, of_c = (g.tensor(dim=[1, 1, 1], stride=[1, 1, 1], data_type=T.FLOAT) for _ in range(3))
    wide = g.mul(g.mul(g.matmul(A, B), of_a), of_b)
    C = g.mul(wide, of_c, name="quantise").set_output(True).set_data_type(T.FP8_E4M3)
    amax = g.reduction(wide, cudnn.reduction_mode.AMAX).set_dim([1, 1, 1]).set_stride([1, 1, 1])
    amax.set_output(True).set_data_type(T.FLOAT)
    g.build()
    c, largest = place.like(C), place.like(amax)
    place.run(g, {A: a, B: b, of_a: factors[0], of_b: factors[1], of_c: factors[2], C: c, amax: largest})
    want = place.get(a) @ place.get(b) * 0.125
    place.close(c, want * 2, "e4m3")
    place.close(largest, np.abs(want).max().reshape(1, 1, 1))


def test_residual_and_two_outputs(place: Any) -> None:
    a, b, c = place.random((2, 8, 8)), place.random((2, 8, 8), seed=1), place.random((2, 8, 8), seed=2)
    g = graph(place)
    A, B, C = map(g.tensor_like, (a, b, c))
    total = g.add(g.matmul(A, B), C, name="residual").set_output(True)
    Y = g.swish(total, swish_beta=1.5, name="swish").set_output(True)
    g.build()
    sums, y = place.like(total), place.like(Y)
    place.run(g, {A: a, B: b, C: c, total: sums, Y: y})
    want = place.get(a) @ place.get(b) + place.get(c)
    place.close(sums, want)
    place.close(y, want / (1 + np.exp(-1.5 * want)))


def test_mask_of_a_comparison_has_a_byte_per_element(place: Any) -> None:
    a, b = place.random((1, 6, 10)), place.random((1, 10, 14), seed=1)
    g = graph(place, None)
    A, B = g.tensor_like(a), g.tensor_like(b)
    product = g.matmul(A, B)
    mask = g.cmp_gt(product, g.tensor_scalar(0.0, cudnn.scalar_type.COMPILE_TIME_CONST)).set_output(True)
    mask.set_data_type(T.BOOLEAN)
    Y = g.binary_select(product, g.neg(product), mask).set_output(True).set_data_type(T.FLOAT)
    g.build()
    bits, y = place.empty((1, 6, 14), "u8"), place.like(Y)
    place.run(g, {A: a, B: b, mask: bits, Y: y})
    want = place.get(a) @ place.get(b)
    np.testing.assert_array_equal(place.get(bits), want > 0)
    place.close(y, np.abs(want))


def test_experts(place: Any) -> None:
    tokens, weight = place.random((1, 12, 8)), place.random((3, 8, 4), seed=1)
    first = np.array([0, 5, 7]).reshape(3, 1, 1)
    g = graph(place)
    X, W = g.tensor_like(tokens), g.tensor_like(weight)
    starts = g.tensor(dim=[3, 1, 1], stride=[1, 1, 1], data_type=T.INT32, name="first")
    mode = cudnn.moe_grouped_matmul_mode.NONE
    Y = g.moe_grouped_matmul(X, W, starts, mode=mode, name="experts").set_output(True)
    g.build()
    y = place.like(Y)
    place.run(g, {X: tokens, W: weight, starts: place.put(first, "i32"), Y: y})
    of_token = np.repeat([0, 1, 2], [5, 2, 5])
    place.close(y, np.einsum("btk,tkn->btn", place.get(tokens), place.get(weight)[of_token]))


def test_the_short_way_finds_operands_by_name(place: Any) -> None:
    a, b, bias = place.random((1, 4, 6)), place.random((1, 6, 8), seed=1), place.random((1, 1, 8), seed=2)
    with cudnn.Graph(
        io_data_type=T.FLOAT,
        compute_data_type=T.FLOAT,
        inputs=["mm::A", "mm::B", "bias::bias"],
        outputs=["relu::OUT_0"],
    ) as g:
        product = g.matmul(a, b, name="mm")
        y = g.relu(g.bias(product, bias, name="bias"), name="relu")
        y.set_output(True).set_data_type(T.FLOAT)
    want = np.maximum(place.get(a) @ place.get(b) + place.get(bias), 0)
    place.close(g(a, b, bias, handle=place.handle), want)
    place.close(g({"mm::B": b, "bias::bias": bias, "mm::A": a})["relu::OUT_0"], want)


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def in_tiles(scales: Any) -> Any:
    """Scales in tiles of 128 x 4, row r and column c of each at byte 16 (r % 32) + 4 (r / 32) + c."""
    rows, columns = scales.shape
    tiles = scales.reshape(rows // 128, 4, 32, columns // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles).reshape(1, rows, columns)


def test_fp4_with_tiles_of_scales_and_a_factor_of_all(place: Any) -> None:
    rng = np.random.default_rng(0)
    codes = [rng.integers(0, 16, (128, 64), np.uint8) for _ in "ab"]
    scales = [(2.0 ** rng.integers(-3, 3, (128, 4))).astype(ml_dtypes.float8_e4m3fn) for _ in "ab"]
    a, b = (place.put((x[:, 1::2] << 4 | x[:, ::2]).reshape(1, 128, 32)) for x in codes)
    of_a, of_b = (place.put(in_tiles(x)) for x in scales)
    g = graph(place, T.BFLOAT16)
    tiles = {"data_type": T.FP8_E4M3, "reordering_type": cudnn.tensor_reordering.F8_128x4}
    A = g.tensor(name="a", dim=(1, 128, 64), stride=(8192, 64, 1), data_type=T.FP4_E2M1)
    B = g.tensor(name="b", dim=(1, 64, 128), stride=(8192, 1, 64), data_type=T.FP4_E2M1)
    SA = g.tensor(name="of_a", dim=(1, 128, 4), stride=(512, 4, 1), **tiles)
    SB = g.tensor(name="of_b", dim=(1, 4, 128), stride=(512, 1, 4), **tiles)
    F = g.tensor(name="factor", dim=(1, 1, 1), stride=(1, 1, 1), data_type=T.FLOAT)
    wide_a = g.block_scale_dequantize(A, SA, block_size=[1, 16], name="wide_a").set_data_type(T.FLOAT)
    wide_b = g.block_scale_dequantize(B, SB, block_size=[16, 1], name="wide_b").set_data_type(T.FLOAT)
    total = g.matmul(wide_a, wide_b, compute_data_type=T.FLOAT, name="gemm").set_data_type(T.FLOAT)
    C = g.mul(name="scale", a=total, b=F, compute_data_type=T.FLOAT)
    C.set_name("c").set_output(True).set_data_type(T.BFLOAT16)
    for i, tensor in enumerate((A, B, SA, SB, F, C)):
        tensor.set_uid(10 + i)
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.B])
    g.check_support()
    g.build_plans()
    c = place.empty((1, 128, 128), "bf16")
    place.run(g, {10: a, 11: b, 12: of_a, 13: of_b, 14: place.put(np.full((1, 1, 1), 0.125), "f32"), 15: c})
    wide = [FP4[x] * s.astype(float).repeat(16, 1) for x, s in zip(codes, scales, strict=True)]
    place.close(c, 0.125 * wide[0] @ wide[1].T[None], "bf16")
