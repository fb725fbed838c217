"""Scripts in the style of cuDNN's samples: slices, reshapes, transposes, reductions, formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import weft.cudnn as cudnn

T = cudnn.data_type


def graph(place: Any, io: Any = T.FLOAT) -> cudnn.pygraph:
    return cudnn.pygraph(io_data_type=io, compute_data_type=T.FLOAT, handle=place.handle)


def test_slices(place: Any) -> None:
    x = place.random((4, 6, 8))
    g = graph(place)
    X = g.tensor_like(x)
    Y = g.slice(input=X, slices=[slice(1, 3), slice(0, 6, 2), slice(2, 8)], name="cut")
    Z = g.relu(Y).set_output(True)
    g.build()
    z = place.like(Z)
    place.run(g, {X: x, Z: z})
    place.close(z, np.maximum(place.get(x)[1:3, 0:6:2, 2:8], 0))


def test_reshape_transpose_and_product(place: Any) -> None:
    x, w = place.random((2, 6, 8)), place.random((1, 4, 5), seed=1)
    g = graph(place)
    X, W = g.tensor_like(x), g.tensor_like(w)
    heads = g.reshape(input=X, reshape_mode=cudnn.reshape_mode.LOGICAL, name="heads")
    heads.set_dim([2, 6, 2, 4]).set_stride([48, 8, 4, 1])
    turned = g.transpose(input=heads, permutation=[0, 2, 1, 3], name="turned")
    flat = g.reshape(input=turned, out_dims=[4, 6, 4], reshape_mode=cudnn.reshape_mode.LOGICAL)
    Y = g.matmul(flat, W).set_output(True)
    g.build()
    y = place.like(Y)
    place.run(g, {X: x, W: w, Y: y})
    want = place.get(x).reshape(2, 6, 2, 4).transpose(0, 2, 1, 3).reshape(4, 6, 4) @ place.get(w)
    place.close(y, want)


def test_concatenation(place: Any) -> None:
    a, b = place.random((2, 3, 4), "bf16"), place.random((2, 5, 4), "bf16", 1)
    g = graph(place, T.BFLOAT16)
    A, B = g.tensor_like(a), g.tensor_like(b)
    Y = g.concatenate(inputs=[A, B], axis=1, name="cat").set_output(True)
    g.build()
    y = place.like(Y)
    place.run(g, {A: a, B: b, Y: y})
    np.testing.assert_array_equal(place.get(y), np.concatenate([place.get(a), place.get(b)], 1))


def test_reductions(place: Any) -> None:
    x = place.random((4, 6, 8))
    wide = place.get(x)
    R = cudnn.reduction_mode
    wanted = {
        R.ADD: wide.sum(1, keepdims=True),
        R.AVG: wide.mean(1, keepdims=True),
        R.MAX: wide.max(1, keepdims=True),
        R.MIN: wide.min(1, keepdims=True),
        R.AMAX: np.abs(wide).max(1, keepdims=True),
        R.NORM1: np.abs(wide).sum(1, keepdims=True),
        R.NORM2: np.sqrt((wide**2).sum(1, keepdims=True)),
        R.MUL: wide.prod(1, keepdims=True),
    }
    g = graph(place)
    X = g.tensor_like(x)
    results = {mode: g.reduction(X, mode).set_dim([4, 1, 8]).set_stride([8, 8, 1]) for mode in wanted}
    for tensor in results.values():
        tensor.set_output(True).set_data_type(T.FLOAT)
    g.build()
    buffers = {mode: place.like(tensor) for mode, tensor in results.items()}
    place.run(g, {X: x} | {results[mode]: buffers[mode] for mode in wanted})
    for mode, want in wanted.items():
        place.close(buffers[mode], want)


def test_a_causal_mask_out_of_indices(place: Any) -> None:
    x = place.random((1, 2, 6, 6))
    g = graph(place)
    X = g.tensor_like(x)
    row = g.gen_index(X, axis=2, compute_data_type=T.INT32).set_data_type(T.INT32)
    column = g.gen_index(X, axis=3, compute_data_type=T.INT32).set_data_type(T.INT32)
    seen = g.cmp_ge(row, column, compute_data_type=T.BOOLEAN).set_data_type(T.BOOLEAN)
    out = g.tensor_scalar(-1e9, cudnn.scalar_type.COMPILE_TIME_CONST)
    Y = g.binary_select(input0=X, input1=out, mask=seen).set_output(True)
    g.build()
    y = place.like(Y)
    place.run(g, {X: x, Y: y})
    place.close(y, np.where(np.tri(6, dtype=bool), place.get(x), -1e9))


def test_logic_and_comparisons(place: Any) -> None:
    a, b = place.random((3, 8)), place.random((3, 8), seed=1)
    g = cudnn.pygraph(handle=place.handle)
    A, B = g.tensor_like(a), g.tensor_like(b)
    less, large = g.cmp_lt(A, B), g.cmp_ge(A, g.tensor_scalar(0.5, cudnn.scalar_type.COMPILE_TIME_CONST))
    either = g.logical_or(a=less, b=g.logical_not(large), compute_data_type=T.BOOLEAN).set_output(True)
    both = g.logical_and(less, large, compute_data_type=T.BOOLEAN).set_output(True)
    g.build()
    assert either.get_data_type() is T.BOOLEAN
    any_, all_ = place.empty((3, 8), "u8"), place.empty((3, 8), "u8")
    place.run(g, {A: a, B: b, either: any_, both: all_})
    p, q = place.get(a), place.get(b)
    np.testing.assert_array_equal(place.get(any_), (p < q) | ~(p >= 0.5))
    np.testing.assert_array_equal(place.get(all_), (p < q) & (p >= 0.5))


def test_formulas_of_elements(place: Any) -> None:
    x = place.put(np.random.default_rng(0).uniform(0.2, 2, (4, 16)), "f32")
    wide = place.get(x)
    formulas = {
        "abs": np.abs,
        "ceil": np.ceil,
        "cos": np.cos,
        "exp": np.exp,
        "floor": np.floor,
        "log": np.log,
        "neg": np.negative,
        "reciprocal": lambda v: 1 / v,
        "rsqrt": lambda v: 1 / np.sqrt(v),
        "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
        "sin": np.sin,
        "softplus": lambda v: np.log1p(np.exp(v)),
        "sqrt": np.sqrt,
        "tan": np.tan,
        "tanh": np.tanh,
        "elu": lambda v: np.where(v > 0, v, np.expm1(v)),
        "swish": lambda v: v / (1 + np.exp(-v)),
    }
    g = graph(place)
    X = g.tensor_like(x)
    results = {name: getattr(g, name)(input=X, name=name).set_output(True) for name in formulas}
    g.build()
    buffers = {name: place.like(tensor) for name, tensor in results.items()}
    place.run(g, {X: x} | {results[name]: buffers[name] for name in formulas})
    for name, formula in formulas.items():
        place.close(buffers[name], formula(wide))


def test_leaky_relu_with_its_gradient_and_clips(place: Any) -> None:
    x, dy = place.random((4, 16)), place.random((4, 16), seed=1)
    g = graph(place)
    X, DY = g.tensor_like(x), g.tensor_like(dy)
    leaky = g.leaky_relu(X, 0.1).set_output(True)
    slope = g.leaky_relu_backward(loss=DY, input=X, negative_slope=0.1).set_output(True)
    clipped = g.relu(X, None, 0.25, 1.0, "clipped").set_output(True)
    g.build()
    a, b, c = map(place.like, (leaky, slope, clipped))
    place.run(g, {X: x, DY: dy, leaky: a, slope: b, clipped: c})
    wide, loss = place.get(x), place.get(dy)
    place.close(a, np.where(wide > 0, wide, 0.1 * wide))
    place.close(b, np.where(wide > 0, loss, 0.1 * loss))
    place.close(c, np.clip(wide, 0.25, 1.0))


def test_blocks_are_quantised_to_fp8(place: Any) -> None:
    x = place.random((1, 8, 64))
    g = graph(place)
    X = g.tensor_like(x)
    Y, scale = g.block_scale_quantize(X, block_size=32, axis=2, name="quantise")
    Y.set_output(True).set_data_type(T.FP8_E4M3)
    scale.set_output(True).set_data_type(T.FP8_E8M0)
    g.build()
    y, s = place.like(Y), place.like(scale)
    place.run(g, {X: x, Y: y, scale: s})
    factors = place.get(s)
    blocks = np.abs(place.get(x)).reshape(1, 8, 2, 32).max(-1)
    assert np.all(np.log2(factors) % 1 == 0)
    assert np.all(blocks <= 448 * factors)
    np.testing.assert_allclose(place.get(y) * factors.repeat(32, -1), place.get(x), rtol=0.07, atol=0.02)
    assert g.find_tensor("quantise::scale") is scale
