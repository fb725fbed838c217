"""Scripts in the style of cuDNN's samples: norms in training, inference and backward, and their fusions."""

from __future__ import annotations

from typing import Any

import numpy as np
import weft.cudnn as cudnn

T = cudnn.data_type
TRAINING, INFERENCE = cudnn.norm_forward_phase.TRAINING, cudnn.norm_forward_phase.INFERENCE


def graph(place: Any, io: Any = T.FLOAT, name: str = "norm") -> cudnn.pygraph:
    return cudnn.pygraph(name, io, T.FLOAT, T.FLOAT, place.handle)


def scalar(g: cudnn.pygraph, name: str) -> Any:
    return g.tensor(
        name=name, dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], is_pass_by_value=True, data_type=T.FLOAT
    )


def standard(x: Any, axes: tuple[int, ...], epsilon: float, center: bool = True) -> tuple[Any, Any, Any]:
    """The normalised input, its mean and 1 / its deviation."""
    mean = x.mean(axes, keepdims=True) if center else np.zeros_like(x.mean(axes, keepdims=True))
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)
    return (x - mean) * inverse, mean, inverse


def gradient(xhat: Any, g: Any, inverse: Any, axes: tuple[int, ...], center: bool = True) -> Any:
    mean = g.mean(axes, keepdims=True) if center else 0
    return inverse * (g - mean - xhat * (g * xhat).mean(axes, keepdims=True))


def test_layer_norm_in_training(place: Any) -> None:
    x = place.random((6, 32, 1, 1), "bf16")
    scale, bias = place.random((1, 32, 1, 1), "bf16", 1), place.random((1, 32, 1, 1), "bf16", 2)
    g = graph(place, T.BFLOAT16)
    X, S, B, E = g.tensor_like(x), g.tensor_like(scale), g.tensor_like(bias), scalar(g, "epsilon")
    Y, mean, inv = g.layernorm(name="ln", norm_forward_phase=TRAINING, input=X, scale=S, bias=B, epsilon=E)
    Y.set_output(True).set_data_type(T.BFLOAT16)
    mean.set_output(True).set_data_type(T.FLOAT)
    inv.set_output(True).set_data_type(T.FLOAT)
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    y, m, i = map(place.like, (Y, mean, inv))
    place.run(g, {X: x, S: scale, B: bias, E: np.full((1, 1, 1, 1), 1e-5, "f4"), Y: y, mean: m, inv: i})
    xhat, center, inverse = standard(place.get(x), (1, 2, 3), 1e-5)
    place.close(y, xhat * place.get(scale) + place.get(bias), "bf16")
    place.close(m, center)
    place.close(i, inverse)
    assert g.find_tensor("ln::INV_VARIANCE") is inv
    assert g.find_tensor("ln::input") is X


def test_layer_norm_in_inference(place: Any) -> None:
    x, scale = place.random((4, 16, 1, 1)), place.random((1, 16, 1, 1), seed=1)
    bias = place.random((1, 16, 1, 1), seed=2)
    g = graph(place)
    X, S, B = map(g.tensor_like, (x, scale, bias))
    E = g.tensor_scalar(1e-3, cudnn.scalar_type.COMPILE_TIME_CONST)
    Y, mean, inv = g.layernorm(INFERENCE, X, S, B, E)
    assert mean is None
    assert inv is None
    Y.set_output(True)
    g.build()
    y = place.like(Y)
    place.run(g, {X: x, S: scale, B: bias, Y: y, mean: None})
    xhat, _, _ = standard(place.get(x), (1, 2, 3), 1e-3)
    place.close(y, xhat * place.get(scale) + place.get(bias))


def test_layer_norm_backward(place: Any) -> None:
    x, dy = place.random((5, 12, 1, 1)), place.random((5, 12, 1, 1), seed=1)
    scale = place.random((1, 12, 1, 1), seed=2)
    xhat, center, inverse = standard(place.get(x), (1, 2, 3), 1e-5)
    mean, inv = place.put(center, "f32"), place.put(inverse, "f32")
    g = graph(place)
    DY, X, S, M, V = map(g.tensor_like, (dy, x, scale, mean, inv))
    DX, DS, DB = g.layernorm_backward(name="dln", grad=DY, input=X, scale=S, mean=M, inv_variance=V)
    for result in (DX, DS, DB):
        result.set_output(True).set_data_type(T.FLOAT)
    g.build()
    dx, ds, db = map(place.like, (DX, DS, DB))
    place.run(g, {DY: dy, X: x, S: scale, M: mean, V: inv, DX: dx, DS: ds, DB: db})
    slope = place.get(dy)
    place.close(dx, gradient(xhat, slope * place.get(scale), inverse, (1, 2, 3)))
    place.close(ds, (slope * xhat).sum(0, keepdims=True))
    place.close(db, slope.sum(0, keepdims=True))
    assert g.find_tensor("dln::DX") is DX


def test_rms_norm_with_gamma_around_zero(place: Any) -> None:
    x, gamma = place.random((6, 24, 1, 1)), place.random((1, 24, 1, 1), seed=1, scale=0.1)
    g = graph(place)
    X, G, E = g.tensor_like(x), g.tensor_like(gamma), scalar(g, "epsilon")
    shifted = g.add(G, g.tensor_scalar(1.0, cudnn.scalar_type.COMPILE_TIME_CONST), name="one_plus_gamma")
    Y, inv = g.rmsnorm(name="rms", norm_forward_phase=TRAINING, input=X, scale=shifted, epsilon=E)
    Y.set_output(True)
    inv.set_output(True).set_data_type(T.FLOAT)
    g.build()
    y, i = place.like(Y), place.like(inv)
    place.run(g, {X: x, G: gamma, E: np.full((1, 1, 1, 1), 1e-6, "f4"), Y: y, inv: i})
    xhat, _, inverse = standard(place.get(x), (1, 2, 3), 1e-6, center=False)
    place.close(y, xhat * (1 + place.get(gamma)))
    place.close(i, inverse)


def test_rms_norm_backward(place: Any) -> None:
    x, dy = place.random((5, 12, 1, 1)), place.random((5, 12, 1, 1), seed=1)
    scale = place.random((1, 12, 1, 1), seed=2)
    xhat, _, inverse = standard(place.get(x), (1, 2, 3), 1e-5, center=False)
    inv = place.put(inverse, "f32")
    g = graph(place)
    DY, X, S, V = map(g.tensor_like, (dy, x, scale, inv))
    DX, DS, DB = g.rmsnorm_backward(DY, X, S, V, has_dbias=False, name="drms")
    assert DB is None
    DX.set_output(True)
    DS.set_output(True).set_data_type(T.FLOAT)
    g.build()
    dx, ds = place.like(DX), place.like(DS)
    place.run(g, {DY: dy, X: x, S: scale, V: inv, DX: dx, DS: ds})
    place.close(dx, gradient(xhat, place.get(dy) * place.get(scale), inverse, (1, 2, 3), center=False))
    place.close(ds, (place.get(dy) * xhat).sum(0, keepdims=True))


def test_rms_norm_and_swish(place: Any) -> None:
    x, scale = place.random((6, 16, 1, 1), "bf16"), place.random((1, 16, 1, 1), "bf16", 1)
    g = graph(place, T.BFLOAT16)
    X, S, E = g.tensor_like(x), g.tensor_like(scale), scalar(g, "epsilon")
    normed, _ = g.rmsnorm(INFERENCE, X, S, None, E)
    Y = g.swish(normed).set_output(True)
    g.build()
    y = place.like(Y)
    place.run(g, {X: x, S: scale, E: 1e-5, Y: y})
    want = standard(place.get(x), (1, 2, 3), 1e-5, center=False)[0] * place.get(scale)
    place.close(y, want / (1 + np.exp(-want)), "bf16")


def test_batch_norm_in_training(place: Any) -> None:
    x = place.channels_last((4, 8, 5, 5))
    scale, bias, running = (place.random((1, 8, 1, 1), seed=s) for s in (1, 2, 3))
    variance = place.put(np.abs(place.get(place.random((1, 8, 1, 1), seed=4))) + 0.5, "f32")
    g = graph(place)
    X, S, B, RM, RV = map(g.tensor_like, (x, scale, bias, running, variance))
    E, M = scalar(g, "epsilon"), scalar(g, "momentum")
    made = g.batchnorm(
        name="bn", input=X, scale=S, bias=B, in_running_mean=RM, in_running_var=RV, epsilon=E, momentum=M
    )
    for tensor in made:
        tensor.set_output(True).set_data_type(T.FLOAT)
    g.build()
    buffers = [place.like(tensor) for tensor in made]
    pack = {X: x, S: scale, B: bias, RM: running, RV: variance, E: 1e-4, M: 0.1}
    place.run(g, pack | dict(zip(made, buffers, strict=True)))
    axes, count = (0, 2, 3), 4 * 5 * 5
    xhat, mean, inverse = standard(place.get(x), axes, 1e-4)
    unbiased = place.get(x).var(axes, keepdims=True) * count / (count - 1)
    place.close(buffers[0], xhat * place.get(scale) + place.get(bias))
    place.close(buffers[1], mean)
    place.close(buffers[2], inverse)
    place.close(buffers[3], 0.9 * place.get(running) + 0.1 * mean)
    place.close(buffers[4], 0.9 * place.get(variance) + 0.1 * unbiased)
    assert g.find_tensor("bn::next_running_var") is made[4]


def test_batch_norm_adds_and_keeps_a_relu_mask(place: Any) -> None:
    x, added = place.channels_last((2, 8, 4, 4), "f16"), place.channels_last((2, 8, 4, 4), "f16", 1)
    scale, bias = place.random((1, 8, 1, 1), seed=2), place.random((1, 8, 1, 1), seed=3)
    g = graph(place, T.HALF)
    X, A, S, B = map(g.tensor_like, (x, added, scale, bias))
    normed, _, _, _, _ = g.batchnorm(X, S, B, epsilon=scalar(g, "e"))
    total = g.add(normed, A, name="add")
    mask = g.cmp_gt(input=total, comparison=g.tensor_scalar(0.0, cudnn.scalar_type.COMPILE_TIME_CONST))
    mask.set_output(True).set_data_type(T.BOOLEAN)
    Y = g.relu(total).set_output(True)
    g.build()
    y, bits = place.like(Y), place.empty((2, 8, 4, 4), "u8", mask.get_stride())
    place.run(g, {X: x, A: added, S: scale, B: bias, g.find_tensor("e"): 1e-5, Y: y, mask: bits})
    want = standard(place.get(x), (0, 2, 3), 1e-5)[0] * place.get(scale) + place.get(bias) + place.get(added)
    place.close(y, np.maximum(want, 0), "f16")
    sure = np.abs(want) > 1e-4  # elsewhere rounding may decide
    np.testing.assert_array_equal(place.get(bits)[sure], (want > 0)[sure])


def test_bits_of_a_relu_mask_before_release_9_25(place: Any) -> None:
    cudnn.set_backend_version(91900)
    x = place.random((4, 32), "f32")
    g = graph(place)
    X = g.tensor_like(x)
    mask = g.cmp_gt(X, g.tensor_scalar(0.0, cudnn.scalar_type.COMPILE_TIME_CONST))
    mask.set_output(True).set_data_type(T.BOOLEAN)
    g.build()
    bits = place.empty((16,), "u8")
    place.run(g, {X: x, mask: bits})
    packed = place.get(bits).astype(np.uint8)
    want = (place.get(x) > 0).reshape(-1)
    np.testing.assert_array_equal(np.unpackbits(packed, bitorder="little"), want)


def test_batch_norm_in_inference(place: Any) -> None:
    x = place.channels_last((2, 8, 4, 4), "bf16")
    mean, inv, scale, bias = (place.random((1, 8, 1, 1), seed=s) for s in range(1, 5))
    g = graph(place, T.BFLOAT16)
    X, M, V, S, B = map(g.tensor_like, (x, mean, inv, scale, bias))
    Y = g.batchnorm_inference(name="bn", input=X, mean=M, inv_variance=V, scale=S, bias=B).set_output(True)
    g.build()
    y = place.like(Y)
    place.run(g, {X: x, M: mean, V: inv, S: scale, B: bias, Y: y})
    want = (place.get(x) - place.get(mean)) * place.get(inv) * place.get(scale) + place.get(bias)
    place.close(y, want, "bf16")


def test_batch_norm_backward_after_a_relu_mask(place: Any) -> None:
    x, dy = place.channels_last((3, 4, 4, 4)), place.channels_last((3, 4, 4, 4), seed=1)
    scale = place.random((1, 4, 1, 1), seed=2)
    kept = np.moveaxis(np.random.default_rng(3).integers(0, 2, (3, 4, 4, 4)), -1, 1)
    xhat, center, inverse = standard(place.get(x), (0, 2, 3), 1e-5)
    mean, inv = place.put(center, "f32"), place.put(inverse, "f32")
    g = graph(place)
    DY, X, S, M, V = map(g.tensor_like, (dy, x, scale, mean, inv))
    mask = g.tensor(name="mask", dim=[3, 4, 4, 4], stride=[64, 1, 16, 4], data_type=T.BOOLEAN)
    slope = g.mul(DY, mask, name="drelu")
    DX, DS, DB = g.batchnorm_backward(grad=slope, input=X, scale=S, mean=M, inv_variance=V)
    for result in (DX, DS, DB):
        result.set_output(True).set_data_type(T.FLOAT)
    g.build()
    dx, ds, db = map(place.like, (DX, DS, DB))
    pack = {DY: dy, X: x, S: scale, M: mean, V: inv, mask: place.put(kept, "u8"), DX: dx, DS: ds, DB: db}
    place.run(g, pack)
    through = place.get(dy) * kept
    place.close(dx, gradient(xhat, through * place.get(scale), inverse, (0, 2, 3)))
    place.close(ds, (through * xhat).sum((0, 2, 3), keepdims=True))
    place.close(db, through.sum((0, 2, 3), keepdims=True))


def test_instance_norm(place: Any) -> None:
    x = place.channels_last((2, 6, 5, 5))
    scale, bias = place.random((1, 6, 1, 1), seed=1), place.random((1, 6, 1, 1), seed=2)
    g = graph(place)
    X, S, B = map(g.tensor_like, (x, scale, bias))
    Y, mean, inv = g.instancenorm(TRAINING, X, S, B, scalar(g, "epsilon"), name="in")
    for tensor in (Y, mean, inv):
        tensor.set_output(True).set_data_type(T.FLOAT)
    g.build()
    y, m, i = map(place.like, (Y, mean, inv))
    pack = {X: x, S: scale, B: bias, g.find_tensor("in::epsilon"): 1e-5, Y: y, mean: m, inv: i}
    place.run(g, pack)
    xhat, center, inverse = standard(place.get(x), (2, 3), 1e-5)
    place.close(y, xhat * place.get(scale) + place.get(bias))
    place.close(m, center)
    place.close(i, inverse)


def test_ada_layer_norm(place: Any) -> None:
    x, scale = place.random((3, 4, 16)), place.random((3, 1, 16), seed=1)
    bias = place.random((3, 1, 16), seed=2)
    g = graph(place)
    X, S, B = map(g.tensor_like, (x, scale, bias))
    E = g.tensor(dim=[1, 1, 1], stride=[1, 1, 1], is_pass_by_value=True, data_type=T.FLOAT)
    Y, mean, inv = g.adalayernorm(TRAINING, X, S, B, E)
    for tensor in (Y, mean, inv):
        tensor.set_output(True).set_data_type(T.FLOAT)
    g.build()
    y, m, i = map(place.like, (Y, mean, inv))
    place.run(g, {X: x, S: scale, B: bias, E: 1e-5, Y: y, mean: m, inv: i})
    xhat, center, inverse = standard(place.get(x), (2,), 1e-5)
    place.close(y, xhat * place.get(scale) + place.get(bias))
    place.close(m, center)
    place.close(i, inverse)
