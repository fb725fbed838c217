"""Scripts in the style of cuDNN's samples: convolutions, their gradients, statistics and epilogues."""

from __future__ import annotations

from typing import Any

import numpy as np
import weft.cudnn as cudnn

T = cudnn.data_type


def graph(place: Any, io: Any = T.FLOAT) -> cudnn.pygraph:
    return cudnn.pygraph(
        "convolution", io, T.FLOAT, compute_data_type=T.FLOAT, handle=place.handle, sm_count=None
    )


def convolved(x: Any, w: Any, padding: int = 0, stride: int = 1, groups: int = 1) -> Any:
    """A convolution of NC.. and KC.. in double precision."""
    axes = tuple(range(2, x.ndim))
    padded = np.pad(x, [(0, 0), (0, 0), *[(padding, padding)] * len(axes)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=axes)
    windows = windows[(slice(None), slice(None), *[slice(None, None, stride)] * len(axes))]
    parts = zip(np.split(windows, groups, 1), np.split(w, groups, 0), strict=True)
    return np.concatenate(
        [
            np.moveaxis(np.tensordot(p, q, ([1, *range(-len(axes), 0)], range(1, w.ndim))), -1, 1)
            for p, q in parts
        ],
        1,
    )


def gradients(x: Any, w: Any, dy: Any, padding: int) -> tuple[Any, Any]:
    """Gradients of x and w by definition, summed over every element of y."""
    dx, dw = np.zeros_like(np.pad(x, [(0, 0), (0, 0), (padding,) * 2, (padding,) * 2])), np.zeros_like(w)
    padded = np.pad(x, [(0, 0), (0, 0), (padding,) * 2, (padding,) * 2])
    for p, q in np.ndindex(dy.shape[2:]):
        part = (slice(None), slice(None), slice(p, p + w.shape[2]), slice(q, q + w.shape[3]))
        dx[part] += np.einsum("nk,kcrs->ncrs", dy[:, :, p, q], w)
        dw += np.einsum("nk,ncrs->kcrs", dy[:, :, p, q], padded[part])
    end = (-padding) or None
    return dx[:, :, padding:end, padding:end], dw


def test_bias_and_relu(place: Any) -> None:
    x, w = place.channels_last((2, 8, 9, 7), "f16"), place.channels_last((16, 8, 3, 3), "f16", 1)
    b = place.random((1, 16, 1, 1), "f16", 2)
    g = graph(place, T.HALF)
    X = g.tensor(name="X", dim=[2, 8, 9, 7], stride=[504, 1, 56, 8], data_type=T.HALF)
    W, B = g.tensor_like(w), g.tensor_like(b)
    conv = g.conv_fprop(image=X, weight=W, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    Y = g.relu(input=g.bias(input=conv, bias=B)).set_output(True)
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    y = place.like(Y)
    assert Y.get_stride() == [1008, 1, 112, 16]
    place.run(g, {X: x, W: w, B: b, Y: y})
    want = convolved(place.get(x), place.get(w), 1) + place.get(b)
    place.close(y, np.maximum(want, 0), "f16")


def test_statistics_of_the_channels(place: Any) -> None:
    x, w = place.channels_last((2, 4, 6, 6)), place.channels_last((8, 4, 3, 3), seed=1)
    g = graph(place)
    X, W = g.tensor_like(x), g.tensor_like(w)
    Y = g.conv_fprop(
        X, W, pre_padding=[1, 1], post_padding=[1, 1], stride=[1, 1], dilation=[1, 1], name="conv"
    )
    Y.set_output(True)
    total, squares = g.genstats(Y, name="stats")
    for statistic in (total, squares):
        statistic.set_output(True).set_data_type(T.FLOAT)
    g.build()
    y, s, q = map(place.like, (Y, total, squares))
    place.run(g, {X: x, W: w, Y: y, total: s, squares: q})
    want = convolved(place.get(x), place.get(w), 1)
    place.close(y, want)
    place.close(s, want.sum((0, 2, 3), keepdims=True))
    place.close(q, (want**2).sum((0, 2, 3), keepdims=True))


def test_data_gradient(place: Any) -> None:
    dy, w = place.channels_last((2, 6, 5, 5)), place.channels_last((6, 3, 3, 3), seed=1)
    g = graph(place)
    DY, W = g.tensor_like(dy), g.tensor_like(w)
    DX = g.conv_dgrad(loss=DY, filter=W, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    DX.set_dim([2, 3, 5, 5]).set_output(True)
    g.build()
    dx = place.like(DX)
    place.run(g, {DY: dy, W: w, DX: dx})
    want, _ = gradients(np.zeros((2, 3, 5, 5)), place.get(w), place.get(dy), 1)
    place.close(dx, want)


def test_filter_gradient(place: Any) -> None:
    x, dy = place.channels_last((2, 3, 5, 5)), place.channels_last((2, 6, 5, 5), seed=1)
    g = graph(place)
    X, DY = g.tensor_like(x), g.tensor_like(dy)
    DW = g.conv_wgrad(image=X, loss=DY, padding=[1, 1], out_dims=[6, 3, 3, 3], name="wgrad").set_output(True)
    g.build()
    dw = place.like(DW)
    place.run(g, {X: x, DY: dy, DW: dw})
    _, want = gradients(place.get(x), np.zeros((6, 3, 3, 3)), place.get(dy), 1)
    place.close(dw, want)
    assert g.find_tensor("wgrad::DW") is DW


def test_data_gradient_after_relu(place: Any) -> None:
    dy, w = place.channels_last((1, 4, 4, 4)), place.channels_last((4, 4, 1, 1), seed=1)
    x = place.channels_last((1, 4, 4, 4), seed=2)
    g = graph(place)
    DY, W, X = map(g.tensor_like, (dy, w, x))
    dx = g.conv_dgrad(DY, W, padding=[0, 0], name="dgrad").set_dim([1, 4, 4, 4])
    D = g.relu_backward(loss=dx, input=X, name="drelu").set_output(True)
    g.build()
    d = place.like(D)
    place.run(g, {DY: dy, W: w, X: x, D: d})
    want = np.einsum("nkhw,kc->nchw", place.get(dy), place.get(w)[:, :, 0, 0])
    place.close(d, np.where(place.get(x) > 0, want, 0))


def test_groups(place: Any) -> None:
    x, w = place.channels_last((1, 8, 6, 6)), place.channels_last((12, 2, 3, 3), seed=1)
    g = graph(place)
    X, W = g.tensor_like(x), g.tensor_like(w)
    Y = g.conv_fprop(X, W, padding=[1, 1], stride=[2, 2]).set_output(True)
    g.build()
    y = place.like(Y)
    place.run(g, {X: x, W: w, Y: y})
    place.close(y, convolved(place.get(x), place.get(w), 1, 2, groups=4))


def test_three_dimensions(place: Any) -> None:
    x, w = place.channels_last((1, 2, 4, 5, 6)), place.channels_last((3, 2, 2, 2, 2), seed=1)
    g = graph(place)
    X, W = g.tensor_like(x), g.tensor_like(w)
    Y = g.conv_fprop(X, W, padding=[0, 0, 0], stride=[1, 1, 1], dilation=[1, 1, 1]).set_output(True)
    g.build()
    y = place.like(Y)
    place.run(g, {X: x, W: w, Y: y})
    place.close(y, convolved(place.get(x), place.get(w)))


def test_scale_bias_relu_prologue_and_statistics_epilogue(place: Any) -> None:
    x, w = place.channels_last((2, 8, 6, 6)), place.channels_last((4, 8, 3, 3), seed=1)
    scale, bias = place.random((1, 8, 1, 1), seed=2), place.random((1, 8, 1, 1), seed=3)
    g = graph(place)
    X, W, S, B = map(g.tensor_like, (x, w, scale, bias))
    shifted = g.bias(name="bias", input=g.scale(name="scale", input=X, scale=S), bias=B)
    Y = g.conv_fprop(image=g.relu(input=shifted), weight=W, padding=[1, 1]).set_output(True)
    total, squares = g.genstats(input=Y)
    total.set_output(True).set_data_type(T.FLOAT)
    squares.set_output(True).set_data_type(T.FLOAT)
    g.build()
    y, s, q = map(place.like, (Y, total, squares))
    place.run(g, {X: x, W: w, S: scale, B: bias, Y: y, total: s, squares: q})
    before = np.maximum(place.get(x) * place.get(scale) + place.get(bias), 0)
    want = convolved(before, place.get(w), 1)
    place.close(y, want)
    place.close(s, want.sum((0, 2, 3), keepdims=True))
    place.close(q, (want**2).sum((0, 2, 3), keepdims=True))


def test_int8_is_requantised(place: Any) -> None:
    rng = np.random.default_rng(0)
    x, w = (
        place.put(np.moveaxis(rng.integers(-9, 10, s), -1, 1), "i8") for s in ((1, 6, 6, 8), (4, 3, 3, 8))
    )
    factor = place.put(np.full((1, 1, 1, 1), 0.0625), "f32")
    g = cudnn.pygraph(io_data_type=T.INT8, compute_data_type=T.INT32, handle=place.handle)
    X, W = g.tensor_like(x), g.tensor_like(w)
    F = g.tensor(dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=T.FLOAT)
    whole = g.conv_fprop(X, W, padding=[1, 1]).set_data_type(T.INT32)
    scaled = g.mul(whole, F, compute_data_type=T.FLOAT).set_data_type(T.FLOAT)
    Y = g.relu(scaled, compute_data_type=T.FLOAT).set_output(True).set_data_type(T.INT8)
    g.build()
    y = place.like(Y)
    place.run(g, {X: x, W: w, F: factor, Y: y})
    want = np.maximum(convolved(place.get(x), place.get(w), 1) * 0.0625, 0)
    np.testing.assert_array_equal(place.get(y), np.clip(np.rint(want), -128, 127))


def test_the_short_way(place: Any) -> None:
    x, w = place.channels_last((2, 4, 6, 6), "bf16"), place.channels_last((8, 4, 3, 3), "bf16", 1)
    with cudnn.Graph(
        io_data_type=T.BFLOAT16,
        intermediate_data_type=T.FLOAT,
        compute_data_type=T.FLOAT,
        inputs=["conv2d::image", "conv2d::weight"],
        outputs=["relu::OUT_0", "conv2d::Y"],
    ) as g:
        conv = g.conv_fprop(x, w, padding=[1, 1], stride=[1, 1], dilation=[1, 1], name="conv2d")
        conv.set_output(True)
        g.relu(conv, name="relu").set_output(True)
    activated, plain = g(x, w, handle=place.handle)
    want = convolved(place.get(x), place.get(w), 1)
    place.close(plain, want, "bf16")
    place.close(activated, np.maximum(want, 0), "bf16")
    assert [node.name for node in g.nodes] == ["conv2d", "relu"]
