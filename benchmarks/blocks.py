"""Whole blocks of networks as one graph each, in the form that people write and frameworks generate. Sizes
are those of common models; the data type is bf16. Each builder receives an empty graph and returns the
outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.shapes import NHWC

Build = Callable[[Any], Mapping[str, Any]]

TOKENS, WIDTH, HEADS = (8, 1024), 1024, 16
"""The GPT block: batch entries and tokens of each, features, heads."""


def _packed(dims: Sequence[int], order: Sequence[int] | None = None) -> list[int]:
    """Strides of a contiguous tensor. order: its dimensions from the slowest to the fastest."""
    strides, step = [0] * len(dims), 1
    for dim in reversed(order if order is not None else range(len(dims))):
        strides[dim] = step
        step *= dims[dim]
    return strides


def _image(g: Any, *dims: int, name: str) -> Any:
    """An image with channels last."""
    return g.tensor(dims, _packed(dims, NHWC), name=name)


def _norm(g: Any, x: Any, name: str) -> Any:
    features = [1, 1, WIDTH]
    scale, bias = g.tensor(features, name=f"{name}_scale"), g.tensor(features, name=f"{name}_bias")
    return g.layernorm("INFERENCE", x, scale, bias, 1e-5, name=name)[0]


def _linear(g: Any, x: Any, inner: int, features: int, name: str) -> Any:
    """A linear layer; the weight is stored as [out, in]."""
    w = g.tensor([1, inner, features], [inner * features, 1, inner], name=f"{name}_w")
    return g.bias(g.matmul(x, w, name=name), g.tensor([1, 1, features], name=f"{name}_b"))


def _part(g: Any, x: Any, start: int, limit: int, dims: Sequence[int]) -> Any:
    """A slice of the last dimension."""
    return g.slice(x, [*(slice(0, extent) for extent in dims), slice(start, limit)])


def _heads(g: Any, x: Any) -> Any:
    """[B, S, H D] viewed as [B, H, S, D]."""
    split = g.reshape(x, reshape_mode="LOGICAL").set_dim([*TOKENS, HEADS, WIDTH // HEADS])
    return g.transpose(split, [0, 2, 1, 3])


def gpt(g: Any) -> Mapping[str, Any]:
    """A block of GPT-2: norm, attention, norm, two linear layers, with two residual connections."""
    batch, tokens = TOKENS
    x = g.tensor([batch, tokens, WIDTH], name="x")
    qkv = _linear(g, _norm(g, x, "norm1"), WIDTH, 3 * WIDTH, "qkv")
    q, k, v = (_heads(g, _part(g, qkv, i * WIDTH, (i + 1) * WIDTH, TOKENS)) for i in range(3))
    attended, _ = g.sdpa(
        q=q, k=k, v=v, attn_scale=1 / math.sqrt(WIDTH // HEADS), use_causal_mask=True, generate_stats=False
    )
    joined = g.reshape(g.transpose(attended, [0, 2, 1, 3]), reshape_mode="LOGICAL").set_dim(
        [batch, tokens, WIDTH]
    )
    x = g.add(x, _linear(g, joined, WIDTH, WIDTH, "out"))
    hidden = g.gelu_approx_tanh(_linear(g, _norm(g, x, "norm2"), WIDTH, 4 * WIDTH, "up"))
    return {"y": g.add(x, _linear(g, hidden, 4 * WIDTH, WIDTH, "down"))}


def linear_gelu_backward(g: Any) -> Mapping[str, Any]:
    """Gradients of gelu(x w + b) with respect to x, w and b; the layer's result before gelu is an input."""
    rows, inner, outer = math.prod(TOKENS), WIDTH, 4 * WIDTH
    x, dy = g.tensor([1, rows, inner], name="x"), g.tensor([1, rows, outer], name="dy")
    w = g.tensor([1, inner, outer], [inner * outer, 1, inner], name="w")
    before = g.tensor([1, rows, outer], name="before")
    dh = g.gelu_approx_tanh_backward(dy, before)
    dx = g.matmul(dh, g.transpose(w, [0, 2, 1]), name="dx")
    dw = g.matmul(g.transpose(x, [0, 2, 1]), dh, name="dw")
    db = g.reduction(dh, mode="ADD", name="db").set_dim([1, 1, outer])
    return {"dx": dx, "dw": dw, "db": db}


def rope(g: Any) -> Mapping[str, Any]:
    """Rotary embedding of Q and K, with the two halves of each head."""
    heads, keys, tokens, width = 32, 8, 4096, 128
    half = [1, 1, tokens, width // 2]
    cos, sin = g.tensor(half, name="cos"), g.tensor(half, name="sin")
    results = {}
    for name, count in {"q": heads, "k": keys}.items():
        x = g.tensor([1, count, tokens, width], name=name)
        box = (1, count, tokens)
        a, b = _part(g, x, 0, width // 2, box), _part(g, x, width // 2, width, box)
        turned = (
            g.sub(g.mul(a, cos), g.mul(b, sin)),
            g.add(g.mul(b, cos), g.mul(a, sin)),
        )
        results[f"turned_{name}"] = g.concatenate(turned, 3)
    return results


def attention_pattern(g: Any) -> Mapping[str, Any]:
    """Attention from primitive operations: matmuls, a scale, a causal mask and softmax, with K transposed."""
    batch, heads, tokens, width = 8, 16, 1024, 64
    q, k, v = (g.tensor([batch, heads, tokens, width], name=name) for name in "qkv")
    scores = g.mul(g.matmul(q, g.transpose(k, [0, 1, 3, 2])), 1 / math.sqrt(width))
    seen = g.cmp_ge(g.gen_index(scores, 2), g.gen_index(scores, 3))
    return {"o": g.matmul(g.softmax(g.binary_select(scores, -1e9, seen)), v)}


def _batchnorm(g: Any, x: Any, channels: int, name: str) -> Any:
    each = [1, channels, 1, 1]
    scale, bias = (g.tensor(each, name=f"{name}_{what}", data_type="f32") for what in ("scale", "bias"))
    outputs = g.batchnorm(x, scale, bias, epsilon=1e-5, name=name)
    for statistic in outputs[1:3]:
        statistic.set_output(True).set_data_type("f32")
    return outputs[0]


def _conv(g: Any, x: Any, channels: int, filters: int, size: int, name: str) -> Any:
    w = _image(g, filters, channels, size, size, name=f"{name}_w")
    return g.conv_fprop(x, w, padding=[size // 2] * 2, name=name)


IMAGES, CHANNELS, SQUARE = 32, (256, 64), 56
"""The bottleneck: outer and inner channels."""


def bottleneck(g: Any) -> Mapping[str, Any]:
    """A bottleneck of ResNet-50 in training: three convolutions with batch norm, and a residual connection.
    The tensors that its gradient reads are also outputs."""
    outer, inner = CHANNELS
    x = _image(g, IMAGES, outer, SQUARE, SQUARE, name="x")
    c1 = _conv(g, x, outer, inner, 1, "conv1").set_output(True)
    c2 = _conv(g, g.relu(_batchnorm(g, c1, inner, "bn1")), inner, inner, 3, "conv2").set_output(True)
    c3 = _conv(g, g.relu(_batchnorm(g, c2, inner, "bn2")), inner, outer, 1, "conv3").set_output(True)
    return {"y": g.relu(g.add(_batchnorm(g, c3, outer, "bn3"), x)), "c1": c1, "c2": c2, "c3": c3}


def bottleneck_backward(g: Any) -> Mapping[str, Any]:
    """Its gradient, from the stored results of the forward convolutions and the statistics."""
    outer, inner = CHANNELS
    image = [IMAGES, SQUARE, SQUARE]
    results = {}

    def like(channels: int, name: str) -> Any:
        return _image(g, image[0], channels, *image[1:], name=name)

    def statistics(channels: int, name: str) -> list[Any]:
        of = ("scale", "mean", "inv")
        return [g.tensor([1, channels, 1, 1], name=f"{name}_{what}", data_type="f32") for what in of]

    def norm_backward(dy: Any, c: Any, name: str) -> Any:
        scale, mean, inv = statistics(c.dims[1], name)
        dx, dscale, dbias = g.batchnorm_backward(dy, c, scale, mean, inv, name=name)
        results[f"{name}_dscale"] = dscale.set_data_type("f32")
        results[f"{name}_dbias"] = dbias.set_data_type("f32")
        return dx

    def conv_backward(dc: Any, a: Any, filters: int, size: int, name: str) -> Any:
        w = _image(g, filters, a.dims[1], size, size, name=f"{name}_w")
        padding = [size // 2] * 2
        results[f"{name}_dw"] = (
            g.conv_wgrad(image=a, loss=dc, padding=padding).set_dim(w.dims).set_stride(w.strides)
        )
        return g.conv_dgrad(dc, w, padding=padding).set_dim(a.dims).set_stride(_packed(a.dims, NHWC))

    x, y, dy = like(outer, "x"), like(outer, "y"), like(outer, "dy")
    c1, c2, c3, a1, a2 = (
        like(n, name)
        for n, name in zip((inner, inner, outer, inner, inner), ("c1", "c2", "c3", "a1", "a2"), strict=True)
    )
    d3 = g.relu_backward(dy, y)
    da2 = conv_backward(norm_backward(d3, c3, "bn3"), a2, outer, 1, "conv3")
    da1 = conv_backward(norm_backward(g.relu_backward(da2, a2), c2, "bn2"), a1, inner, 3, "conv2")
    dx = conv_backward(norm_backward(g.relu_backward(da1, a1), c1, "bn1"), x, inner, 1, "conv1")
    return results | {"dx": g.add(dx, d3)}


def unet(g: Any) -> Mapping[str, Any]:
    """A residual block in the decoder of a U-Net (SDXL): the skip connection is concatenated to the input,
    followed by twice norm, swish and convolution, in parallel with a 1x1 convolution."""
    batch, channels, skipped, filters, side, groups = 2, 640, 640, 640, 64, 32
    x = _image(g, batch, channels, side, side, name="x")
    joined = g.concatenate([x, _image(g, batch, skipped, side, side, name="skip")], 1)

    def half(h: Any, inner: int, name: str) -> Any:
        each = [1, inner, 1, 1]
        scale, bias = (g.tensor(each, _packed(each, NHWC), name=f"{name}_{s}") for s in ("scale", "bias"))
        normal = g.groupnorm("INFERENCE", h, scale, bias, 1e-5, groups=groups, name=f"{name}_norm")
        return _conv(g, g.swish(normal[0]), inner, filters, 3, name)

    time = g.tensor([batch, filters, 1, 1], _packed([batch, filters, 1, 1], NHWC), name="time")
    hidden = half(g.add(half(joined, channels + skipped, "first"), time), filters, "second")
    return {"y": g.add(hidden, _conv(g, joined, channels + skipped, filters, 1, "across"))}


BLOCKS: Mapping[str, Build] = {
    "gpt": gpt,
    "linear_gelu_backward": linear_gelu_backward,
    "rope": rope,
    "attention_pattern": attention_pattern,
    "bottleneck": bottleneck,
    "bottleneck_backward": bottleneck_backward,
    "unet": unet,
}
