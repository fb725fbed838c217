"""Layers of networks under a common set of names, implemented for a Weft graph and for torch, so that a block
written once with these names runs in both. Tokens are [1, tokens, features], images are channels last.

A layer finds its parameters in memory by its own name: `qkv_w`, `qkv_b`, `norm1_scale`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

EPSILON = 1e-5
NOTHING: Mapping[str, Any] = {}
_POOL = {"mode": "MAXPOOL", "window": [3, 3], "stride": [2, 2], "padding": [1, 1]}

Layers = Any
"""WeftLayers or TorchLayers."""


class WeftLayers:
    """Operations of a graph."""

    def __init__(self, g: Any, t: Mapping[str, Any]) -> None:
        self.g, self.t = g, t
        self.kept: dict[str, Any] = {}

    def keep(self, name: str, x: Any) -> Any:
        """Names a tensor that a gradient reads."""
        self.kept[name] = x
        return x

    def linear(self, x: Any, name: str) -> Any:
        """x w + b."""
        return self._biased(self.g.matmul(A=x, B=self.t[f"{name}_w"], name=name), name)

    def conv(self, x: Any, name: str, stride: int = 1) -> Any:
        """A convolution that preserves the image's size, or divides it by the stride."""
        w = self.t[f"{name}_w"]
        outputs = self.g.conv_fprop(x, w, padding=[w.dims[2] // 2] * 2, stride=[stride] * 2, name=name)
        return self._biased(outputs, name)

    def _biased(self, x: Any, name: str) -> Any:
        return self.g.bias(x, self.t[f"{name}_b"]) if f"{name}_b" in self.t else x

    def layernorm(self, x: Any, name: str) -> Any:
        """Normalizes each token."""
        scale, bias = self.t[f"{name}_scale"], self.t[f"{name}_bias"]
        return self.g.layernorm("INFERENCE", x, scale, bias, EPSILON, name=name)[0]

    def rmsnorm(self, x: Any, name: str) -> Any:
        """Normalizes each token."""
        return self.g.rmsnorm("INFERENCE", x, self.t[f"{name}_scale"], epsilon=EPSILON, name=name)[0]

    def groupnorm(self, x: Any, name: str, groups: int) -> Any:
        """Normalizes each image."""
        scale, bias = self.t[f"{name}_scale"], self.t[f"{name}_bias"]
        return self.g.groupnorm("INFERENCE", x, scale, bias, EPSILON, groups=groups, name=name)[0]

    def batchnorm(self, x: Any, name: str) -> Any:
        """Normalizes over all images, in training."""
        scale, bias = self.t[f"{name}_scale"], self.t[f"{name}_bias"]
        outputs = self.g.batchnorm(x, scale, bias, epsilon=EPSILON, name=name)
        self.kept |= {f"{name}_mean": outputs[1], f"{name}_inv": outputs[2]}
        return outputs[0]

    def gelu(self, x: Any) -> Any:
        """With the error function."""
        return self.g.gelu(x)

    def gelu_tanh(self, x: Any) -> Any:
        """With the tanh approximation."""
        return self.g.gelu_approx_tanh(x)

    def silu(self, x: Any) -> Any:
        """x sigmoid(x)."""
        return self.g.swish(x)

    def relu(self, x: Any) -> Any:
        """max(x, 0)."""
        return self.g.relu(x)

    def max_pool(self, x: Any) -> Any:
        """3 x 3 windows with stride 2."""
        return self.g.resample(input=x, padding_mode="NEG_INF_PAD", **_POOL)[0]

    def pooled(self, x: Any, dims: Sequence[int]) -> Any:
        """The mean over the pixels of each image. dims: [N, C, H, W]; result: [1, N, C]."""
        n, channels, *_ = dims
        mean = self.g.reduction(x, mode="AVG", name="pooled").set_dim([n, channels, 1, 1])
        return self.g.reshape(mean, reshape_mode="LOGICAL").set_dim([1, n, channels])

    def add(self, a: Any, b: Any) -> Any:
        """a + b."""
        return self.g.add(a, b)

    def sub(self, a: Any, b: Any) -> Any:
        """a - b."""
        return self.g.sub(a, b)

    def mul(self, a: Any, b: Any) -> Any:
        """a b."""
        return self.g.mul(a, b)

    def part(self, x: Any, dims: Sequence[int], first: int, until: int) -> Any:
        """A slice of the last dimension; dims: the other dimensions."""
        return self.g.slice(x, [*(slice(0, extent) for extent in dims), slice(first, until)])

    def cat(self, parts: Sequence[Any], axis: int) -> Any:
        """Concatenation."""
        return self.g.concatenate(parts, axis)

    def heads(self, x: Any, dims: Sequence[int]) -> Any:
        """[1, B S, H D] viewed as dims, [B, H, S, D]."""
        batch, heads, tokens, width = dims
        apart = self.g.reshape(x, reshape_mode="LOGICAL").set_dim([batch, tokens, heads, width])
        return self.g.transpose(apart, [0, 2, 1, 3])

    def joined(self, x: Any, dims: Sequence[int]) -> Any:
        """dims, [B, H, S, D], viewed as [1, B S, H D]."""
        batch, heads, tokens, width = dims
        apart = self.g.transpose(x, [0, 2, 1, 3])
        return self.g.reshape(apart, reshape_mode="LOGICAL").set_dim([1, batch * tokens, heads * width])

    def pixels(self, x: Any, dims: Sequence[int]) -> Any:
        """dims, [N, C, H, W], viewed as [1, N H W, C]."""
        n, channels, height, width = dims
        apart = self.g.transpose(x, [0, 2, 3, 1])
        return self.g.reshape(apart, reshape_mode="LOGICAL").set_dim([1, n * height * width, channels])

    def image(self, x: Any, dims: Sequence[int]) -> Any:
        """[1, N H W, C] viewed as dims, [N, C, H, W]."""
        n, channels, height, width = dims
        apart = self.g.reshape(x, reshape_mode="LOGICAL").set_dim([n, height, width, channels])
        return self.g.transpose(apart, [0, 3, 1, 2])

    def attention(self, q: Any, k: Any, v: Any, name: str, width: int, is_causal: bool = False) -> Any:
        """softmax(q k^T / sqrt(width)) v."""
        scale = 1 / math.sqrt(width)
        return self.g.sdpa(
            q=q, k=k, v=v, attn_scale=scale, use_causal_mask=is_causal, generate_stats=False, name=name
        )[0]


class TorchLayers:
    """torch's functions. keeps: also return the tensors that gradients read in addition to results, such as
    statistics; in float64 this is the oracle. rounded: types to which some of these tensors are rounded, as
    they are in memory."""

    def __init__(
        self, torch: Any, t: Mapping[str, Any], keeps: bool = False, rounded: Mapping[str, Any] = NOTHING
    ) -> None:
        self.torch, self.f, self.t, self.keeps, self.rounded = torch, torch.nn.functional, t, keeps, rounded
        self.kept: dict[str, Any] = {}

    def keep(self, name: str, x: Any) -> Any:
        """Names a tensor that a gradient reads. The derivative of rounding is 1."""
        if name in self.rounded:
            x = x + (x.to(self.rounded[name]).to(x.dtype) - x).detach()
        self.kept[name] = x
        return x

    def linear(self, x: Any, name: str) -> Any:
        """x w + b."""
        return self.f.linear(x, self.t[f"{name}_w"][0].T, self._vector(f"{name}_b"))

    def conv(self, x: Any, name: str, stride: int = 1) -> Any:
        """A convolution that preserves the image's size, or divides it by the stride."""
        w = self.t[f"{name}_w"]
        groups = x.shape[1] // w.shape[1]
        return self.f.conv2d(x, w, self._vector(f"{name}_b"), stride, w.shape[2] // 2, groups=groups)

    def _vector(self, name: str) -> Any:
        return self.t[name].reshape(-1) if name in self.t else None

    def _statistics(self, x: Any, name: str, axes: Sequence[int], is_centred: bool = True) -> None:
        if not self.keeps:
            return
        mean = x.mean(axes, keepdim=True) if is_centred else x.new_zeros(())
        inv = ((x - mean) ** 2).mean(axes, keepdim=True).add(EPSILON).rsqrt()
        self.kept |= {f"{name}_mean": mean, f"{name}_inv": inv}

    def layernorm(self, x: Any, name: str) -> Any:
        """Normalizes each token."""
        self._statistics(x, name, (2,))
        scale, bias = self._vector(f"{name}_scale"), self._vector(f"{name}_bias")
        return self.f.layer_norm(x, x.shape[2:], scale, bias, EPSILON)

    def rmsnorm(self, x: Any, name: str) -> Any:
        """Normalizes each token."""
        self._statistics(x, name, (2,), is_centred=False)
        return self.f.rms_norm(x, x.shape[2:], self._vector(f"{name}_scale"), EPSILON)

    def groupnorm(self, x: Any, name: str, groups: int) -> Any:
        """Normalizes each image."""
        n = x.shape[0]
        if self.keeps:
            self._statistics(x.reshape(n, groups, -1, 1), name, (2, 3))
        scale, bias = self._vector(f"{name}_scale"), self._vector(f"{name}_bias")
        return self.f.group_norm(x, groups, scale, bias, EPSILON)

    def batchnorm(self, x: Any, name: str) -> Any:
        """Normalizes over all images, in training."""
        self._statistics(x, name, (0, 2, 3))
        scale, bias = self._vector(f"{name}_scale"), self._vector(f"{name}_bias")
        return self.f.batch_norm(x, None, None, scale, bias, True, eps=EPSILON)

    def gelu(self, x: Any) -> Any:
        """With the error function."""
        return self.f.gelu(x)

    def gelu_tanh(self, x: Any) -> Any:
        """With the tanh approximation."""
        return self.f.gelu(x, approximate="tanh")

    def silu(self, x: Any) -> Any:
        """x sigmoid(x)."""
        return self.f.silu(x)

    def relu(self, x: Any) -> Any:
        """max(x, 0)."""
        return self.f.relu(x)

    def max_pool(self, x: Any) -> Any:
        """3 x 3 windows with stride 2."""
        return self.f.max_pool2d(x, 3, 2, 1)

    def pooled(self, x: Any, _: Sequence[int]) -> Any:
        """The mean over the pixels of each image: [1, N, C]."""
        return x.mean((2, 3))[None]

    def add(self, a: Any, b: Any) -> Any:
        """a + b."""
        return a + b

    def sub(self, a: Any, b: Any) -> Any:
        """a - b."""
        return a - b

    def mul(self, a: Any, b: Any) -> Any:
        """a b."""
        return a * b

    def part(self, x: Any, _: Sequence[int], first: int, until: int) -> Any:
        """A slice of the last dimension."""
        return x[..., first:until]

    def cat(self, parts: Sequence[Any], axis: int) -> Any:
        """Concatenation."""
        return self.torch.cat(parts, axis)

    def heads(self, x: Any, dims: Sequence[int]) -> Any:
        """[1, B S, H D] viewed as dims, [B, H, S, D]."""
        batch, heads, tokens, width = dims
        return x.reshape(batch, tokens, heads, width).transpose(1, 2)

    def joined(self, x: Any, dims: Sequence[int]) -> Any:
        """dims, [B, H, S, D], viewed as [1, B S, H D]."""
        batch, heads, tokens, width = dims
        return x.transpose(1, 2).reshape(1, batch * tokens, heads * width)

    def pixels(self, x: Any, dims: Sequence[int]) -> Any:
        """dims, [N, C, H, W], viewed as [1, N H W, C]."""
        return x.permute(0, 2, 3, 1).reshape(1, -1, dims[1])

    def image(self, x: Any, dims: Sequence[int]) -> Any:
        """[1, N H W, C] viewed as dims, [N, C, H, W]."""
        n, channels, height, width = dims
        return x.reshape(n, height, width, channels).permute(0, 3, 1, 2)

    def attention(self, q: Any, k: Any, v: Any, name: str, width: int, is_causal: bool = False) -> Any:
        """softmax(q k^T / sqrt(width)) v. The oracle processes one batch entry at a time, because it stores
        all scores."""
        grouped = q.shape[1] != k.shape[1]
        if not self.keeps:
            return self.f.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=grouped)
        stats, results = [], []
        for one in zip(q, k, v, strict=True):
            one_q, one_k, one_v = (x[None] for x in one)
            o = self.f.scaled_dot_product_attention(
                one_q, one_k, one_v, is_causal=is_causal, enable_gqa=grouped
            )
            total = self._logsumexp(one_q, one_k, width, is_causal)
            results.append(self._rounded(o, total, name.replace("attention", "o")))
            stats.append(total.detach())
        self.kept[f"{name}_stats"] = self.torch.cat(stats)
        return self.torch.cat(results)

    def _rounded(self, o: Any, total: Any, name: str) -> Any:
        """o rounded as in memory. Gradients of scores are p (dp - sum(do o)) with the o that is read; those
        of the total are p."""
        if name not in self.rounded:
            return o
        error = (o.to(self.rounded[name]).to(o.dtype) - o).detach()
        return o + error * (1 - (total - total.detach()))

    def _logsumexp(self, q: Any, k: Any, width: int, is_causal: bool) -> Any:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        scores = q @ k.transpose(2, 3) / math.sqrt(width)
        if is_causal:
            unseen = self.torch.ones(scores.shape[2:], dtype=self.torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(unseen, -math.inf)
        return scores.logsumexp(3, keepdim=True)


class Gradients:
    """Gradients of these layers as operations of a graph. `found` collects those of parameters, under the
    parameter's name with the prefix "d_"."""

    def __init__(self, g: Any, t: Mapping[str, Any]) -> None:
        self.g, self.t = g, t
        self.found: dict[str, Any] = {}

    def linear(self, dy: Any, x: Any, name: str, has_dx: bool = True) -> Any:
        """Returns the gradient of x; adds those of w and b."""
        g, w = self.g, self.t[f"{name}_w"]
        self.found[f"d_{name}_w"] = g.matmul(A=g.transpose(x, [0, 2, 1]), B=dy, name=f"d_{name}_w")
        self._sum(dy, name)
        return g.matmul(A=dy, B=g.transpose(w, [0, 2, 1]), name=f"d_{name}") if has_dx else None

    def conv(self, dy: Any, x: Any, name: str, stride: int = 1) -> Any:
        """Returns the gradient of x; adds those of w and b."""
        w = self.t[f"{name}_w"]
        window = {"padding": [w.dims[2] // 2] * 2, "stride": [stride] * 2}
        dw = self.g.conv_wgrad(image=x, loss=dy, name=f"d_{name}_w", **window)
        self.found[f"d_{name}_w"] = dw.set_dim(w.dims).set_stride(w.strides)
        self._sum(dy, name)
        dx = self.g.conv_dgrad(dy, w, name=f"d_{name}", **window)
        return dx.set_dim(x.dims).set_stride(x.strides)

    def max_pool(self, dy: Any, x: Any) -> Any:
        """Returns the gradient of x; the maxima are located again."""
        return self.g.resample_backward(dy, input=x, **_POOL).set_dim(x.dims).set_stride(x.strides)

    def pooled(self, dy: Any, dims: Sequence[int]) -> Any:
        """The gradient of the images, equal for all pixels: [N, C, 1, 1]."""
        n, channels, height, width = dims
        each = self.g.reshape(dy, reshape_mode="LOGICAL").set_dim([n, channels, 1, 1])
        return self.g.mul(each, 1 / (height * width))

    def _sum(self, dy: Any, name: str) -> None:
        if f"{name}_b" in self.t:
            dims = self.t[f"{name}_b"].dims
            self.found[f"d_{name}_b"] = self.g.reduction(dy, mode="ADD", name=f"d_{name}_b").set_dim(dims)

    def layernorm(self, dy: Any, x: Any, name: str) -> Any:
        """Returns the gradient of x; adds those of scale and bias."""
        return self._norm("layernorm_backward", dy, x, name)

    def groupnorm(self, dy: Any, x: Any, name: str, groups: int) -> Any:
        """Returns the gradient of x; adds those of scale and bias."""
        return self._norm("groupnorm_backward", dy, x, name, groups=groups)

    def batchnorm(self, dy: Any, x: Any, name: str) -> Any:
        """Returns the gradient of x; adds those of scale and bias."""
        return self._norm("batchnorm_backward", dy, x, name)

    def _norm(self, method: str, dy: Any, x: Any, name: str, **options: Any) -> Any:
        t = self.t
        dx, dscale, dbias = getattr(self.g, method)(
            dy, x, t[f"{name}_scale"], t[f"{name}_mean"], t[f"{name}_inv"], name=f"d_{name}", **options
        )
        self.found |= {f"d_{name}_scale": dscale, f"d_{name}_bias": dbias}
        return dx

    def rmsnorm(self, dy: Any, x: Any, name: str) -> Any:
        """Returns the gradient of x; adds that of scale."""
        t = self.t
        dx, self.found[f"d_{name}_scale"], _ = self.g.rmsnorm_backward(
            dy, x, t[f"{name}_scale"], t[f"{name}_inv"], has_dbias=False, name=f"d_{name}"
        )
        return dx

    def attention(
        self, do: Any, q: Any, k: Any, v: Any, o: Any, name: str, width: int, is_causal: bool = False
    ) -> tuple[Any, Any, Any]:
        """The gradients of q, k and v."""
        made: tuple[Any, Any, Any] = self.g.sdpa_backward(
            q=q,
            k=k,
            v=v,
            o=o,
            dO=do,
            stats=self.t[f"{name}_stats"],
            attn_scale=1 / math.sqrt(width),
            use_causal_mask=is_causal,
            name=f"d_{name}",
        )
        return made
