"""Cases that are whole blocks of networks. A block is written once with the names of `layers`, so that Weft,
torch and, in float64, the oracle compute the same. Its gradient is a graph of its own, which reads the
tensors that a framework's forward pass stores. Types of intermediates are left unset."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from weft import dtypes

from benchmarks.case import Case, Tensors
from benchmarks.layers import Gradients, Layers, TorchLayers, WeftLayers
from benchmarks.machines import type_of
from benchmarks.shapes import BSHD, NHWC, Attention, Operand

Operands = dict[str, Operand]
Made = dict[str, Any]


class Block(Protocol):
    """A block of a network with its sizes."""

    def inputs(self) -> Operands:
        """Inputs with a gradient: the input first, then the parameters."""

    def constants(self) -> Operands:
        """Inputs without a gradient."""

    def results(self) -> Operands:
        """Outputs of forward; the first is y."""

    def kept(self) -> Operands:
        """Tensors that backward reads in addition to the inputs: results of forward, then statistics."""

    def flops(self) -> tuple[float, float]:
        """Operations of matmuls and convolutions, forward and backward."""

    def forward(self, l: Layers) -> Made:
        """The results."""

    def backward(self, d: Gradients) -> Made:
        """Gradients of the inputs that are not parameters, each under the input's name with the prefix
        "d_"."""


def _tokens(rows: int, width: int, dtype: str = "bf16") -> Operand:
    return Operand((1, rows, width), dtype)


def _linear(name: str, inner: int, outer: int, has_bias: bool = True) -> Operands:
    """The weight is stored as in a linear layer: [out, in]."""
    w = Operand((1, inner, outer), order=(0, 2, 1), scale=1 / math.sqrt(inner))
    return {f"{name}_w": w} | ({f"{name}_b": _tokens(1, outer)} if has_bias else {})


def _conv(name: str, channels: int, filters: int, size: int, has_bias: bool = True) -> Operands:
    """channels: the number that each filter reads."""
    w = Operand((filters, channels, size, size), order=NHWC, scale=1 / math.sqrt(channels * size * size))
    return {f"{name}_w": w} | ({f"{name}_b": Operand((1, filters, 1, 1), order=NHWC)} if has_bias else {})


def _norm(name: str, width: int) -> Operands:
    return {f"{name}_scale": _tokens(1, width), f"{name}_bias": _tokens(1, width)}


def _image_norm(name: str, channels: int, dtype: str = "bf16") -> Operands:
    each = Operand((1, channels, 1, 1), dtype, NHWC)
    return {f"{name}_scale": each, f"{name}_bias": each}


def _statistics(name: str, *dims: int) -> Operands:
    return {f"{name}_{what}": Operand(dims, "f32") for what in ("mean", "inv")}


def _image(n: int, channels: int, side: int) -> Operand:
    return Operand((n, channels, side, side), order=NHWC)


def _products(of: Mapping[str, Operand], positions: int) -> float:
    """Operations of linear layers and convolutions, each of whose weights is applied at a number of
    positions."""
    weights = (w for name, w in of.items() if name.endswith("_w"))
    return 2.0 * positions * sum(math.prod(w.dims) for w in weights)


# ---- Transformers ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Transformer:
    """Norm, attention, norm, two linear layers, with two residual connections: GPT-2, ViT."""

    batch: int
    tokens: int
    width: int
    heads: int
    is_causal: bool = False
    is_tanh: bool = False
    """Whether GELU is the tanh approximation."""

    @property
    def rows(self) -> int:
        """Tokens of all batch entries."""
        return self.batch * self.tokens

    @property
    def by_heads(self) -> tuple[int, ...]:
        """The shape of queries."""
        return self.batch, self.heads, self.tokens, self.width // self.heads

    def inputs(self) -> Operands:
        w = self.width
        return {
            "x": _tokens(self.rows, w),
            **_norm("norm1", w),
            **_linear("qkv", w, 3 * w),
            **_linear("out", w, w),
            **_norm("norm2", w),
            **_linear("up", w, 4 * w),
            **_linear("down", 4 * w, w),
        }

    def constants(self) -> Operands:
        return {}

    def results(self) -> Operands:
        return {"y": _tokens(self.rows, self.width)}

    def kept(self) -> Operands:
        rows, w = self.rows, self.width
        widths = {"n1": w, "qkv": 3 * w, "o": w, "x1": w, "n2": w, "u": 4 * w, "hidden": 4 * w}
        results = {name: _tokens(rows, width) for name, width in widths.items()}
        results |= _statistics("norm1", 1, rows, 1) | _statistics("norm2", 1, rows, 1)
        return results | {"attention_stats": Operand((self.batch, self.heads, self.tokens, 1), "f32")}

    def flops(self) -> tuple[float, float]:
        d = self.width // self.heads
        a = Attention(self.batch, self.heads, self.heads, self.tokens, self.tokens, d, d, self.is_causal)
        products = _products(self.inputs(), self.rows)
        return products + a.flops(False), 2 * products + a.flops(True)

    def _qkv(self, l: Layers, qkv: Any) -> list[Any]:
        w, dims = self.width, (1, self.rows)
        return [l.heads(l.part(qkv, dims, i * w, (i + 1) * w), self.by_heads) for i in range(3)]

    def forward(self, l: Layers) -> Made:
        x = l.t["x"]
        n1 = l.keep("n1", l.layernorm(x, "norm1"))
        q, k, v = self._qkv(l, l.keep("qkv", l.linear(n1, "qkv")))
        attended = l.attention(q, k, v, "attention", self.by_heads[3], self.is_causal)
        o = l.keep("o", l.joined(attended, self.by_heads))
        x1 = l.keep("x1", l.add(x, l.linear(o, "out")))
        n2 = l.keep("n2", l.layernorm(x1, "norm2"))
        u = l.keep("u", l.linear(n2, "up"))
        hidden = l.keep("hidden", l.gelu_tanh(u) if self.is_tanh else l.gelu(u))
        return {"y": l.add(x1, l.linear(hidden, "down"))}

    def backward(self, d: Gradients) -> Made:
        g, t, l = d.g, d.t, WeftLayers(d.g, d.t)
        by_gelu = g.gelu_approx_tanh_backward if self.is_tanh else g.gelu_backward
        du = by_gelu(d.linear(t["d_y"], t["hidden"], "down"), t["u"])
        dx1 = g.add(t["d_y"], d.layernorm(d.linear(du, t["n2"], "up"), t["x1"], "norm2"))
        do, o = (l.heads(x, self.by_heads) for x in (d.linear(dx1, t["o"], "out"), t["o"]))
        q, k, v = self._qkv(l, t["qkv"])
        results = d.attention(do, q, k, v, o, "attention", self.by_heads[3], self.is_causal)
        dqkv = l.cat([l.joined(part, self.by_heads) for part in results], 2)
        return {"d_x": g.add(dx1, d.layernorm(d.linear(dqkv, t["n1"], "qkv"), t["x"], "norm1"))}


def _turned(l: Layers, x: Any, dims: Sequence[int], is_back: bool = False) -> Any:
    """Rotary embedding of the heads of queries or keys, or its gradient."""
    *others, width = dims
    a, b = l.part(x, others, 0, width // 2), l.part(x, others, width // 2, width)
    cos, sin = l.t["cos"], l.t["sin"]
    first, second = (l.add, l.sub) if is_back else (l.sub, l.add)
    return l.cat([first(l.mul(a, cos), l.mul(b, sin)), second(l.mul(b, cos), l.mul(a, sin))], 3)


@dataclass(frozen=True)
class _Llama:
    """RMS norm, grouped-query attention with rotary embedding, RMS norm and SwiGLU. cached: number of earlier
    keys and values of each batch entry; the new ones are results."""

    batch: int
    tokens: int
    width: int
    heads: int
    key_heads: int
    inner: int
    cached: int = 0

    @property
    def rows(self) -> int:
        """Tokens of all batch entries."""
        return self.batch * self.tokens

    @property
    def head(self) -> int:
        """Features of a head."""
        return self.width // self.heads

    def by_heads(self, name: str) -> tuple[int, ...]:
        """The shape of q, k or v."""
        return self.batch, self.heads if name == "q" else self.key_heads, self.tokens, self.head

    def inputs(self) -> Operands:
        w, inner = self.width, self.inner
        return {
            "x": _tokens(self.rows, w),
            "norm1_scale": _tokens(1, w),
            **_linear("qkv", w, (self.heads + 2 * self.key_heads) * self.head, has_bias=False),
            **_linear("out", w, w, has_bias=False),
            "norm2_scale": _tokens(1, w),
            **_linear("gate", w, inner, has_bias=False),
            **_linear("up", w, inner, has_bias=False),
            **_linear("down", inner, w, has_bias=False),
        }

    def _keys(self, count: int) -> Operand:
        return Operand((self.batch, self.key_heads, count, self.head), order=() if self.cached else BSHD)

    def constants(self) -> Operands:
        half = Operand((1, 1, self.tokens, self.head // 2))
        past = {"past_k": self._keys(self.cached), "past_v": self._keys(self.cached)} if self.cached else {}
        return {"cos": half, "sin": half} | past

    def results(self) -> Operands:
        new = {"k": self._keys(self.tokens), "v": self._keys(self.tokens)} if self.cached else {}
        return {"y": _tokens(self.rows, self.width)} | new

    def kept(self) -> Operands:
        rows, w, dims = self.rows, self.width, (self.batch, self.heads, self.tokens)
        widths = {"n1": w, "o": w, "x1": w, "n2": w, "g": self.inner, "u": self.inner, "hidden": self.inner}
        results = {name: _tokens(rows, width) for name, width in widths.items()}
        results |= {"q": Operand((*dims, self.head), order=BSHD)}
        results |= {name: self._keys(self.tokens) for name in "kv"}
        results |= {f"norm{i}_inv": _tokens(rows, 1, "f32") for i in (1, 2)}
        return results | {"attention_stats": Operand((*dims, 1), "f32")}

    def flops(self) -> tuple[float, float]:
        keys = self.cached or self.tokens
        d = self.head
        a = Attention(self.batch, self.heads, self.key_heads, self.tokens, keys, d, d, not self.cached)
        products = _products(self.inputs(), self.rows)
        return products + a.flops(False), 2 * products + a.flops(True)

    def forward(self, l: Layers) -> Made:
        x = l.t["x"]
        n1 = l.keep("n1", l.rmsnorm(x, "norm1"))
        q, k, v = self._qkv(l, l.linear(n1, "qkv"))
        seen = (l.t["past_k"], l.t["past_v"]) if self.cached else (k, v)
        attended = l.attention(q, *seen, "attention", self.head, not self.cached)
        o = l.keep("o", l.joined(attended, self.by_heads("q")))
        x1 = l.keep("x1", l.add(x, l.linear(o, "out")))
        n2 = l.keep("n2", l.rmsnorm(x1, "norm2"))
        gate, up = l.keep("g", l.linear(n2, "gate")), l.keep("u", l.linear(n2, "up"))
        hidden = l.keep("hidden", l.mul(l.silu(gate), up))
        return {"y": l.add(x1, l.linear(hidden, "down"))} | ({"k": k, "v": v} if self.cached else {})

    def _qkv(self, l: Layers, qkv: Any) -> list[Any]:
        """Queries and keys after rotary embedding, and values."""
        found, first = [], 0
        for name in "qkv":
            dims = self.by_heads(name)
            part = l.heads(l.part(qkv, (1, self.rows), first, first + dims[1] * dims[3]), dims)
            found.append(l.keep(name, part if name == "v" else _turned(l, part, dims)))
            first += dims[1] * dims[3]
        return found

    def backward(self, d: Gradients) -> Made:
        g, t, l = d.g, d.t, WeftLayers(d.g, d.t)
        dh = d.linear(t["d_y"], t["hidden"], "down")
        by_gate = d.linear(g.swish_backward(g.mul(dh, t["u"]), t["g"]), t["n2"], "gate")
        dn2 = g.add(by_gate, d.linear(g.mul(dh, g.swish(t["g"])), t["n2"], "up"))
        dx1 = g.add(t["d_y"], d.rmsnorm(dn2, t["x1"], "norm2"))
        do, o = (l.heads(x, self.by_heads("q")) for x in (d.linear(dx1, t["o"], "out"), t["o"]))
        results = d.attention(do, t["q"], t["k"], t["v"], o, "attention", self.head, is_causal=True)
        parts = []
        for name, part in zip("qkv", results, strict=True):
            dims = self.by_heads(name)
            parts.append(l.joined(part if name == "v" else _turned(l, part, dims, is_back=True), dims))
        dqkv = l.cat(parts, 2)
        return {"d_x": g.add(dx1, d.rmsnorm(d.linear(dqkv, t["n1"], "qkv"), t["x"], "norm1"))}


@dataclass(frozen=True)
class _CrossTransformer:
    """SDXL: attention between the pixels, cross-attention to the text, GEGLU."""

    batch: int
    tokens: int
    width: int
    heads: int
    words: int
    word_width: int

    @property
    def rows(self) -> int:
        """Tokens of all batch entries."""
        return self.batch * self.tokens

    def by_heads(self, name: str) -> tuple[int, ...]:
        """The shape of an attention's q or o, k or v."""
        tokens = self.words if name in ("k2", "v2") else self.tokens
        return self.batch, self.heads, tokens, self.width // self.heads

    def inputs(self) -> Operands:
        w = self.width
        results = {"x": _tokens(self.rows, w)} | _norm("norm1", w) | _norm("norm2", w) | _norm("norm3", w)
        for name in ("q1", "k1", "v1", "q2"):
            results |= _linear(name, w, w, has_bias=False)
        for name in ("k2", "v2"):
            results |= _linear(name, self.word_width, w, has_bias=False)
        results |= _linear("out1", w, w) | _linear("out2", w, w)
        return results | _linear("up", w, 8 * w) | _linear("down", 4 * w, w)

    def constants(self) -> Operands:
        return {"text": _tokens(self.batch * self.words, self.word_width)}

    def results(self) -> Operands:
        return {"y": _tokens(self.rows, self.width)}

    def kept(self) -> Operands:
        rows, w = self.rows, self.width
        names = ("n1", "n2", "n3", "q1", "k1", "v1", "q2", "o1", "o2", "x1", "x2")
        results = {name: _tokens(rows, w) for name in names}
        results |= {name: _tokens(self.batch * self.words, w) for name in ("k2", "v2")}
        results |= {"u": _tokens(rows, 8 * w), "hidden": _tokens(rows, 4 * w)}
        stats = Operand((self.batch, self.heads, self.tokens, 1), "f32")
        for i in (1, 2, 3):
            results |= _statistics(f"norm{i}", 1, rows, 1)
        return results | {"attention1_stats": stats, "attention2_stats": stats}

    def flops(self) -> tuple[float, float]:
        inputs, d = self.inputs(), self.width // self.heads
        of_words = {name: inputs.pop(name) for name in ("k2_w", "v2_w")}
        all_keys = (self.tokens, self.words)
        attended = [Attention(self.batch, self.heads, self.heads, self.tokens, n, d, d) for n in all_keys]
        products, words = _products(inputs, self.rows), _products(of_words, self.batch * self.words)
        forward, backward = (sum(a.flops(is_backward) for a in attended) for is_backward in (False, True))
        return products + words + forward, 2 * products + words + backward  # the text needs no gradient

    def _attended(self, l: Layers, x: Any, others: Any, i: int) -> Any:
        q, k, v = (
            l.heads(l.keep(name, l.linear(of, name)), self.by_heads(name))
            for name, of in ((f"q{i}", x), (f"k{i}", others), (f"v{i}", others))
        )
        dims = self.by_heads("q")
        o = l.keep(f"o{i}", l.joined(l.attention(q, k, v, f"attention{i}", dims[3]), dims))
        return l.linear(o, f"out{i}")

    def _gates(self, l: Layers, u: Any) -> list[Any]:
        half = 4 * self.width
        return [l.part(u, (1, self.rows), i * half, (i + 1) * half) for i in range(2)]

    def forward(self, l: Layers) -> Made:
        n1 = l.keep("n1", l.layernorm(l.t["x"], "norm1"))
        x1 = l.keep("x1", l.add(l.t["x"], self._attended(l, n1, n1, 1)))
        n2 = l.keep("n2", l.layernorm(x1, "norm2"))
        x2 = l.keep("x2", l.add(x1, self._attended(l, n2, l.t["text"], 2)))
        a, b = self._gates(l, l.keep("u", l.linear(l.keep("n3", l.layernorm(x2, "norm3")), "up")))
        hidden = l.keep("hidden", l.mul(a, l.gelu(b)))
        return {"y": l.add(x2, l.linear(hidden, "down"))}

    def _by_attention(self, d: Gradients, dx: Any, i: int) -> list[Any]:
        """Gradients of the results of an attention's three projections."""
        t, l = d.t, WeftLayers(d.g, d.t)
        q, k, v, o = (l.heads(t[f"{name}{i}"], self.by_heads(f"{name}{i}")) for name in "qkvo")
        do = l.heads(d.linear(dx, t[f"o{i}"], f"out{i}"), self.by_heads("o"))
        results = zip(d.attention(do, q, k, v, o, f"attention{i}", self.by_heads("q")[3]), "qkv", strict=True)
        return [l.joined(part, self.by_heads(f"{name}{i}")) for part, name in results]

    def backward(self, d: Gradients) -> Made:
        g, t, l = d.g, d.t, WeftLayers(d.g, d.t)
        dh = d.linear(t["d_y"], t["hidden"], "down")
        a, b = self._gates(l, t["u"])
        du = l.cat([g.mul(dh, g.gelu(b)), g.gelu_backward(g.mul(dh, a), b)], 2)
        dx2 = g.add(t["d_y"], d.layernorm(d.linear(du, t["n3"], "up"), t["x2"], "norm3"))
        dq, dk, dv = self._by_attention(d, dx2, 2)
        d.linear(dk, t["text"], "k2", has_dx=False)
        d.linear(dv, t["text"], "v2", has_dx=False)
        dx1 = g.add(dx2, d.layernorm(d.linear(dq, t["n2"], "q2"), t["x1"], "norm2"))
        by_each = zip(self._by_attention(d, dx1, 1), "qkv", strict=True)
        dq, dk, dv = (d.linear(part, t["n1"], f"{name}1") for part, name in by_each)
        return {"d_x": g.add(dx1, d.layernorm(g.add(g.add(dq, dk), dv), t["x"], "norm1"))}


# ---- Convolutional networks --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bottleneck:
    """ResNet-50 in training: three convolutions with batch norm, and a residual connection. The tensors that
    its gradient reads are also results."""

    n: int
    outer: int
    inner: int
    side: int

    def inputs(self) -> Operands:
        outer, inner = self.outer, self.inner
        results = {"x": _image(self.n, outer, self.side)}
        for i, channels, filters, size in ((1, outer, inner, 1), (2, inner, inner, 3), (3, inner, outer, 1)):
            results |= _conv(f"conv{i}", channels, filters, size, has_bias=False)
            results |= _image_norm(f"bn{i}", filters, "f32")
        return results

    def constants(self) -> Operands:
        return {}

    def results(self) -> Operands:
        return {"y": _image(self.n, self.outer, self.side)} | self._between()

    def _between(self) -> Operands:
        small, large = (_image(self.n, channels, self.side) for channels in (self.inner, self.outer))
        results = {"c1": small, "a1": small, "c2": small, "a2": small, "c3": large}
        for i, channels in ((1, self.inner), (2, self.inner), (3, self.outer)):
            results |= _statistics(f"bn{i}", 1, channels, 1, 1)
        return results

    def kept(self) -> Operands:
        return {"y": _image(self.n, self.outer, self.side)} | self._between()

    def flops(self) -> tuple[float, float]:
        products = _products(self.inputs(), self.n * self.side**2)
        return products, 2 * products

    def forward(self, l: Layers) -> Made:
        c1 = l.keep("c1", l.conv(l.t["x"], "conv1"))
        a1 = l.keep("a1", l.relu(l.batchnorm(c1, "bn1")))
        c2 = l.keep("c2", l.conv(a1, "conv2"))
        a2 = l.keep("a2", l.relu(l.batchnorm(c2, "bn2")))
        c3 = l.keep("c3", l.conv(a2, "conv3"))
        return {"y": l.keep("y", l.relu(l.add(l.batchnorm(c3, "bn3"), l.t["x"])))}

    def backward(self, d: Gradients) -> Made:
        g, t = d.g, d.t
        d3 = g.relu_backward(t["d_y"], t["y"])
        da2 = d.conv(d.batchnorm(d3, t["c3"], "bn3"), t["a2"], "conv3")
        da1 = d.conv(d.batchnorm(g.relu_backward(da2, t["a2"]), t["c2"], "bn2"), t["a1"], "conv2")
        dx = d.conv(d.batchnorm(g.relu_backward(da1, t["a1"]), t["c1"], "bn1"), t["x"], "conv1")
        return {"d_x": g.add(dx, d3)}


@dataclass(frozen=True)
class _ConvNeXt:
    """A depthwise convolution, layer norm, two linear layers with GELU, a scale per channel, and a residual
    connection."""

    n: int
    channels: int
    side: int

    @property
    def rows(self) -> int:
        """Pixels of all images."""
        return self.n * self.side**2

    def inputs(self) -> Operands:
        c = self.channels
        return {
            "x": _image(self.n, c, self.side),
            **_conv("depth", 1, c, 7),
            **_norm("norm", c),
            **_linear("up", c, 4 * c),
            **_linear("down", 4 * c, c),
            "gamma": _tokens(1, c),
        }

    def constants(self) -> Operands:
        return {}

    def results(self) -> Operands:
        return {"y": _image(self.n, self.channels, self.side)}

    def kept(self) -> Operands:
        c = self.channels
        widths = {"pixels": c, "n": c, "u": 4 * c, "hidden": 4 * c, "made": c}
        results = {name: _tokens(self.rows, width) for name, width in widths.items()}
        return results | _statistics("norm", 1, self.rows, 1)

    def flops(self) -> tuple[float, float]:
        products = _products(self.inputs(), self.rows)
        return products, 2 * products

    def forward(self, l: Layers) -> Made:
        dims = self.n, self.channels, self.side, self.side
        pixels = l.keep("pixels", l.pixels(l.conv(l.t["x"], "depth"), dims))
        u = l.keep("u", l.linear(l.keep("n", l.layernorm(pixels, "norm")), "up"))
        results = l.keep("made", l.linear(l.keep("hidden", l.gelu(u)), "down"))
        return {"y": l.add(l.t["x"], l.image(l.mul(results, l.t["gamma"]), dims))}

    def backward(self, d: Gradients) -> Made:
        g, t, l = d.g, d.t, WeftLayers(d.g, d.t)
        dp = l.pixels(t["d_y"], t["x"].dims)
        by_gamma = g.reduction(g.mul(dp, t["made"]), mode="ADD", name="d_gamma").set_dim(t["gamma"].dims)
        du = g.gelu_backward(d.linear(g.mul(dp, t["gamma"]), t["hidden"], "down"), t["u"])
        dpixels = d.layernorm(d.linear(du, t["n"], "up"), t["pixels"], "norm")
        dx = d.conv(l.image(dpixels, t["x"].dims), t["x"], "depth")
        return {"d_x": g.add(t["d_y"], dx), "d_gamma": by_gamma}


@dataclass(frozen=True)
class _Residual:
    """A residual block in the decoder of a U-Net (SDXL): the skip connection is concatenated to the input,
    followed by twice norm, SiLU and convolution, in parallel with a 1x1 convolution."""

    n: int
    channels: int
    skipped: int
    filters: int
    side: int
    groups: int

    def inputs(self) -> Operands:
        joined, filters = self.channels + self.skipped, self.filters
        return {
            "x": _image(self.n, self.channels, self.side),
            "skip": _image(self.n, self.skipped, self.side),
            "time": Operand((self.n, filters, 1, 1), order=NHWC),
            **_image_norm("norm1", joined),
            **_conv("conv1", joined, filters, 3),
            **_image_norm("norm2", filters),
            **_conv("conv2", filters, filters, 3),
            **_conv("across", joined, filters, 1),
        }

    def constants(self) -> Operands:
        return {}

    def results(self) -> Operands:
        return {"y": _image(self.n, self.filters, self.side)}

    def kept(self) -> Operands:
        wide = _image(self.n, self.channels + self.skipped, self.side)
        narrow = _image(self.n, self.filters, self.side)
        results = {"joined": wide, "n1": wide, "h1": wide, "c1": narrow, "n2": narrow, "h2": narrow}
        for name in ("norm1", "norm2"):
            results |= _statistics(name, self.n, self.groups, 1, 1)
        return results

    def flops(self) -> tuple[float, float]:
        products = _products(self.inputs(), self.n * self.side**2)
        return products, 2 * products

    def forward(self, l: Layers) -> Made:
        joined = l.keep("joined", l.cat([l.t["x"], l.t["skip"]], 1))
        n1 = l.keep("n1", l.groupnorm(joined, "norm1", self.groups))
        c1 = l.keep("c1", l.add(l.conv(l.keep("h1", l.silu(n1)), "conv1"), l.t["time"]))
        n2 = l.keep("n2", l.groupnorm(c1, "norm2", self.groups))
        results = l.conv(l.keep("h2", l.silu(n2)), "conv2")
        return {"y": l.add(results, l.conv(joined, "across"))}

    def backward(self, d: Gradients) -> Made:
        g, t = d.g, d.t
        dn2 = g.swish_backward(d.conv(t["d_y"], t["h2"], "conv2"), t["n2"])
        dc1 = d.groupnorm(dn2, t["c1"], "norm2", self.groups)
        by_time = g.reduction(dc1, mode="ADD", name="d_time").set_dim(t["time"].dims)
        dn1 = g.swish_backward(d.conv(dc1, t["h1"], "conv1"), t["n1"])
        by_norm = d.groupnorm(dn1, t["joined"], "norm1", self.groups)
        dj = g.add(by_norm, d.conv(t["d_y"], t["joined"], "across"))
        box, ends = [slice(0, self.n), slice(0, self.side), slice(0, self.side)], (0, self.channels)
        total = self.channels + self.skipped
        dx, dskip = (g.slice(dj, [box[0], slice(*of), *box[1:]]) for of in (ends, (self.channels, total)))
        return {"d_x": dx, "d_skip": dskip, "d_time": by_time}


@dataclass(frozen=True)
class _ResNet:
    """ResNet with two convolutions per block (He et al., 2015), in training; the tensors that its gradient
    reads are also results."""

    n: int
    side: int
    widths: tuple[int, ...]
    """Channels of the blocks; where they grow, the image height is halved."""
    classes: int

    def _blocks(self) -> Iterator[tuple[int, int, int, int]]:
        """Each block's number, its channels before and after, and its image height."""
        inner, side = self.widths[0], self.side // 4
        for i, width in enumerate(self.widths):
            side //= 2 if width > inner else 1
            yield i, inner, width, side
            inner = width

    def inputs(self) -> Operands:
        width = self.widths[0]
        results = {"x": _image(self.n, 3, self.side), **_conv("stem", 3, width, 7, False)}
        results |= _image_norm("stem_bn", width)
        for i, inner, width, _ in self._blocks():
            results |= _conv(f"conv{i}a", inner, width, 3, False) | _image_norm(f"bn{i}a", width)
            results |= _conv(f"conv{i}b", width, width, 3, False) | _image_norm(f"bn{i}b", width)
            if width > inner:
                results |= _conv(f"conv{i}c", inner, width, 1, False) | _image_norm(f"bn{i}c", width)
        return results | _linear("fc", width, self.classes)

    def constants(self) -> Operands:
        return {}

    def results(self) -> Operands:
        return {"y": _tokens(self.n, self.classes)} | self.kept()

    def kept(self) -> Operands:
        width, half = self.widths[0], _image(self.n, self.widths[0], self.side // 2)
        results = {"stem": half, "stem_a": half, "a": _image(self.n, width, self.side // 4)}
        statistics = _statistics("stem_bn", 1, width, 1, 1)
        for i, inner, width, side in self._blocks():
            names = [f"c{i}a", f"a{i}", f"c{i}b", f"y{i}", *([f"c{i}c"] if width > inner else [])]
            results |= dict.fromkeys(names, _image(self.n, width, side))
            for part in "abc" if width > inner else "ab":
                statistics |= _statistics(f"bn{i}{part}", 1, width, 1, 1)
        return results | {"pooled": _tokens(self.n, width)} | statistics

    def flops(self) -> tuple[float, float]:
        inputs = self.inputs()
        results = _products({"stem_w": inputs["stem_w"]}, self.n * (self.side // 2) ** 2)
        for i, _, _, side in self._blocks():
            results += _products({k: w for k, w in inputs.items() if k[:5] == f"conv{i}"}, self.n * side**2)
        results += _products({"fc_w": inputs["fc_w"]}, self.n)
        return results, 2 * results

    def forward(self, l: Layers) -> Made:
        stem = l.keep("stem", l.conv(l.t["x"], "stem", 2))
        x = l.keep("a", l.max_pool(l.keep("stem_a", l.relu(l.batchnorm(stem, "stem_bn")))))
        for i, inner, width, _ in self._blocks():
            stride = width // inner
            c = l.keep(f"c{i}a", l.conv(x, f"conv{i}a", stride))
            c = l.keep(f"c{i}b", l.conv(l.keep(f"a{i}", l.relu(l.batchnorm(c, f"bn{i}a"))), f"conv{i}b"))
            if stride > 1:
                x = l.batchnorm(l.keep(f"c{i}c", l.conv(x, f"conv{i}c", stride)), f"bn{i}c")
            x = l.keep(f"y{i}", l.relu(l.add(l.batchnorm(c, f"bn{i}b"), x)))
        pooled = l.keep("pooled", l.pooled(x, self.kept()[f"y{i}"].dims))
        return {"y": l.linear(pooled, "fc")}

    def backward(self, d: Gradients) -> Made:
        g, t, blocks = d.g, d.t, list(self._blocks())
        dy = d.pooled(d.linear(t["d_y"], t["pooled"], "fc"), t[f"y{len(blocks) - 1}"].dims)
        for i, inner, width, _ in reversed(blocks):
            x, stride = t[f"y{i - 1}" if i else "a"], width // inner
            dy = g.relu_backward(dy, t[f"y{i}"])
            da = d.conv(d.batchnorm(dy, t[f"c{i}b"], f"bn{i}b"), t[f"a{i}"], f"conv{i}b")
            dc = d.batchnorm(g.relu_backward(da, t[f"a{i}"]), t[f"c{i}a"], f"bn{i}a")
            if stride > 1:
                dy = d.conv(d.batchnorm(dy, t[f"c{i}c"], f"bn{i}c"), x, f"conv{i}c", stride)
            dy = g.add(d.conv(dc, x, f"conv{i}a", stride), dy)
        dy = g.relu_backward(d.max_pool(dy, t["stem_a"]), t["stem_a"])
        return {"d_x": d.conv(d.batchnorm(dy, t["stem"], "stem_bn"), t["x"], "stem", 2)}


@dataclass(frozen=True)
class _InFloats:
    """A block whose tensors are all float32."""

    block: Block

    def inputs(self) -> Operands:
        return _floats(self.block.inputs())

    def constants(self) -> Operands:
        return _floats(self.block.constants())

    def results(self) -> Operands:
        return _floats(self.block.results())

    def kept(self) -> Operands:
        return _floats(self.block.kept())

    def flops(self) -> tuple[float, float]:
        return self.block.flops()

    def forward(self, l: Layers) -> Made:
        return self.block.forward(l)

    def backward(self, d: Gradients) -> Made:
        return self.block.backward(d)


def _floats(of: Operands) -> Operands:
    return {name: replace(operand, dtype="f32") for name, operand in of.items()}


# ---- Cases -------------------------------------------------------------------------------------------------


LARGEST_ERRORS = {"bf16": (2e-2, 1e-2), "f32": (1e-4, 1e-4)}
"""Error limits, forward and backward, by the type of the block's tensors. In the forward pass each stored
tensor adds to the error; a gradient is checked for the stored numbers."""

LARGEST_ERROR_OF_SUMS = 5e-2
"""Error limit for bf16 gradients after several batch norms. Each of them subtracts a mean, about 1e-3 of the
gradient's magnitude, from a gradient in bf16. If it is multiplied by a power of two or nearly so, rounding
restores most of the mean, which accumulates in sums over all positions. torch's errors are as large."""

Prepare = Callable[[Tensors], Callable[[], Any]]
"""From memory, returns a function that runs on it and returns the results."""


class Program:
    """A block in torch: forward, or the gradient of an earlier forward pass."""

    def __init__(self, block: Block, is_backward: bool) -> None:
        self.block, self.is_backward = block, is_backward
        self.results = list(block.results())[: 1 if is_backward else None]
        """Results of forward."""
        self._ready: dict[int, Callable[[], Any]] = {}

    def __call__(self, torch: Any, memory: Tensors) -> Any:
        """Runs on a memory, which must stay alive; the first call also runs forward."""
        if id(memory) not in self._ready:
            self._ready[id(memory)] = self.ready(torch)(memory)
        return self._ready[id(memory)]()

    def named(self, made: Sequence[Any]) -> Made:
        """The results of a run by name. torch's own statistics are not included."""
        names = self.block.inputs() if self.is_backward else self.results
        return {f"d_{name}" if self.is_backward else name: x for name, x in zip(names, made, strict=False)}

    def ready(self, torch: Any, options: Mapping[str, Any] | None = None) -> Prepare:
        """options: for torch.compile; None means eager."""
        names = [*self.block.inputs(), *self.block.constants()]
        leaves = len(self.block.inputs())

        def forward(*tensors: Any) -> tuple[Any, ...]:
            l = TorchLayers(torch, dict(zip(names, tensors, strict=True)))
            results = self.block.forward(l)
            values = l.kept | results
            return tuple(values[name] for name in self.results if name in values)

        run = forward if options is None else torch.compile(forward, **options)

        def prepare(memory: Tensors) -> Callable[[], Any]:
            given = [memory[name] for name in names]
            if not self.is_backward:
                return torch.no_grad()(lambda: run(*given))  # type: ignore[no-any-return]
            asking = [x.detach().requires_grad_() for x in given[:leaves]]
            results = run(*asking, *given[leaves:])
            dy = memory[f"d_{self.results[0]}"]
            return lambda: torch.autograd.grad(results, asking, (dy,), retain_graph=True)

        return prepare


def _in_doubles(
    block: Block, t: Tensors, is_gradient: bool, has_gradients: bool
) -> tuple[Any, dict[str, Any], list[Any]]:
    """y, all intermediate tensors, and the leaves. A gradient is evaluated at the numbers that it reads,
    which are rounded as in memory, because that rounding is not its own error."""
    torch = importlib.import_module("torch")
    given = {
        name: torch.as_tensor(t[name]).detach().requires_grad_(has_gradients and name in block.inputs())
        for name in (*block.inputs(), *block.constants())
    }
    selected = block.kept() if is_gradient else {}
    rounded = {name: dtypes.torch_dtype(type_of(operand)) for name, operand in selected.items()}
    l = TorchLayers(torch, given, keeps=True, rounded=rounded)
    with torch.set_grad_enabled(has_gradients):
        results = l.kept | block.forward(l)
    return results[next(iter(block.results()))], results, [given[name] for name in block.inputs()]


def _like(values: Any, t: Tensors) -> Any:
    """The values as an array of the oracle's library."""
    is_torch = hasattr(next(iter(t.values())), "detach")
    return values.detach() if is_torch else values.detach().numpy()


def forward(tag: str, block: Block) -> Case:
    """The forward pass of a block."""
    inputs, outputs = block.inputs() | block.constants(), block.results()
    dtype = outputs["y"].dtype

    def build(_: Any, g: Any, t: Tensors) -> Made:
        l = WeftLayers(g, t)
        results = l.kept | block.forward(l)
        return {name: results[name] for name in outputs}

    def judge(_: Any, t: dict[str, Any]) -> dict[str, Any]:
        _, made, _ = _in_doubles(block, t, is_gradient=False, has_gradients=False)
        return {name: _like(made[name], t) for name in outputs}

    name, program = f"blocks/{tag}_fwd", Program(block, is_backward=False)
    flops = block.flops()[0]
    error = LARGEST_ERRORS[dtype][0]
    return Case(
        name, dtype, flops, inputs, outputs, build, judge, program=program, largest_error=error, is_free=True
    )


def backward(tag: str, block: Block) -> Case:
    """Its gradient with respect to all inputs that have one."""
    known = block.inputs() | block.constants()
    (result, y), *_ = block.results().items()
    outputs = {f"d_{name}": operand for name, operand in block.inputs().items()}
    selected = block.kept()

    def build(_: Any, g: Any, t: Tensors) -> Made:
        d = Gradients(g, t)
        return block.backward(d) | d.found

    def follow(_: Any, t: dict[str, Any]) -> dict[str, Any]:
        _, made, _ = _in_doubles(block, t, is_gradient=True, has_gradients=False)
        return {name: _like(made[name], t) for name in selected}

    def judge(_: Any, t: dict[str, Any]) -> dict[str, Any]:
        torch = importlib.import_module("torch")
        made, _, leaves = _in_doubles(block, t, is_gradient=True, has_gradients=True)
        results = torch.autograd.grad(made, leaves, torch.as_tensor(t[f"d_{result}"]))
        return {name: _like(values, t) for name, values in zip(outputs, results, strict=True)}

    name, program = f"blocks/{tag}_bwd", Program(block, is_backward=True)
    inputs = known | selected | {f"d_{result}": y}
    flops = block.flops()[1]
    error = LARGEST_ERRORS[y.dtype][1]
    if isinstance(block, _Bottleneck):
        error = LARGEST_ERROR_OF_SUMS
    return Case(
        name,
        y.dtype,
        flops,
        inputs,
        outputs,
        build,
        judge,
        follow,
        program=program,
        largest_error=error,
        is_free=True,
    )


GPU: dict[str, Block] = {
    "gpt2_medium_s2048": _Transformer(8, 2048, 1024, 16, is_causal=True, is_tanh=True),
    "llama8b_s4096": _Llama(1, 4096, 4096, 32, 8, 14336),
    "vit_b_s197": _Transformer(64, 197, 768, 12),
    "resnet_bottleneck_56": _Bottleneck(64, 256, 64, 56),
    "convnext_14": _ConvNeXt(128, 384, 14),
    "sdxl_residual_64": _Residual(2, 640, 640, 640, 64, 32),
    "sdxl_attention_32": _CrossTransformer(4, 1024, 1280, 20, 77, 2048),
}
DECODE: dict[str, Block] = {"llama8b_decode_b64_s8192": _Llama(64, 1, 4096, 32, 8, 14336, 8192)}

CPU: dict[str, Block] = {
    "gpt2": _Transformer(2, 16, 32, 2, is_causal=True, is_tanh=True),
    "llama": _Llama(1, 16, 64, 4, 2, 96),
    "vit": _Transformer(2, 9, 32, 2),
    "resnet_bottleneck": _Bottleneck(2, 32, 16, 6),
    "convnext": _ConvNeXt(2, 16, 8),
    "sdxl_residual": _Residual(2, 16, 16, 32, 6, 4),
    "sdxl_attention": _CrossTransformer(2, 16, 32, 2, 5, 24),
    "resnet_f32": _InFloats(_ResNet(2, 16, (8, 8, 16), 10)),
}
CPU_REAL: dict[str, Block] = {
    "resnet18_f32": _InFloats(_ResNet(2, 64, (64, 64, 128, 128, 256, 256, 512, 512), 1000)),
    "gpt2_small_f32": _InFloats(_Transformer(1, 256, 768, 12, is_causal=True, is_tanh=True)),
}
"""With sizes that are in use."""
CPU_DECODE: dict[str, Block] = {"llama_decode": _Llama(3, 1, 64, 4, 2, 96, 20)}


def cases(blocks: dict[str, Block], decode: dict[str, Block]) -> Sequence[Case]:
    """All forward passes, then the gradients of the blocks that have one."""
    results = [forward(tag, block) for tag, block in (blocks | decode).items()]
    return [*results, *(backward(tag, block) for tag, block in blocks.items())]
