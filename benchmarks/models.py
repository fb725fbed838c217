"""Widely used networks as torch modules with random weights. Importing this module imports torch."""

# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Model:
    """A network, and the input of a training step at two sizes."""

    make: Callable[[], nn.Module]
    gpu: Sequence[int]
    """Shape of the input on a GPU, and on a CPU."""
    cpu: Sequence[int]
    classes: int = 0
    """Number of classes for cross-entropy; 0: the loss is the mean square of the output."""
    is_last: bool = False
    """Channels last on a GPU; on a CPU, torch 2.13 crashes with a segmentation fault in the U-Net."""


# ---- Convolutions ------------------------------------------------------------------------------------------


def _conv(inner: int, outer: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inner, outer, size, stride, size // 2, groups=groups, bias=False)


class _Bottleneck(nn.Module):
    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        outer = 4 * width
        self.way = nn.Sequential(
            *(_conv(inner, width, 1), nn.BatchNorm2d(width), nn.ReLU()),
            *(_conv(width, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU()),
            *(_conv(width, outer, 1), nn.BatchNorm2d(outer)),
        )
        is_same = stride == 1 and inner == outer
        self.short = (
            nn.Identity() if is_same else nn.Sequential(_conv(inner, outer, 1, stride), nn.BatchNorm2d(outer))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.way(x) + self.short(x))


def resnet50() -> nn.Module:
    """He et al., 2015, with the stride at the 3x3 convolution."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks: list[nn.Module] = []
    inner = 64
    for depth, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for i in range(depth):
            blocks.append(_Bottleneck(inner, width, stride if i == 0 else 1))
            inner = 4 * width
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000))


class _ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _ConvNeXt(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.across = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.across(x).permute(0, 2, 3, 1))
        return x + (self.down(F.gelu(self.up(y))) * self.scale).permute(0, 3, 1, 2)


def convnext_t() -> nn.Module:
    """Liu et al., 2022."""
    widths, depths = (96, 192, 384, 768), (3, 3, 9, 3)
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), _ChannelNorm(widths[0])]
    for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        if i:
            layers += [_ChannelNorm(widths[i - 1]), nn.Conv2d(widths[i - 1], width, 2, 2)]
        layers += [_ConvNeXt(width) for _ in range(depth)]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], 1000)
    )


class _Inverted(nn.Module):
    """The block of EfficientNet: expansion, depthwise convolution, squeeze-and-excitation, projection."""

    def __init__(self, inner: int, outer: int, grow: int, size: int, stride: int) -> None:
        super().__init__()
        width, few = inner * grow, max(1, inner // 4)
        wider = [_conv(inner, width, 1), nn.BatchNorm2d(width), nn.SiLU()] if grow > 1 else []
        self.across = nn.Sequential(
            *wider, _conv(width, width, size, stride, width), nn.BatchNorm2d(width), nn.SiLU()
        )
        self.weigh = nn.Sequential(
            *(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, few, 1), nn.SiLU()),
            *(nn.Conv2d(few, width, 1), nn.Sigmoid()),
        )
        self.narrower = nn.Sequential(_conv(width, outer, 1), nn.BatchNorm2d(outer))
        self.is_same = stride == 1 and inner == outer

    def forward(self, x: Tensor) -> Tensor:
        y = self.across(x)
        y = self.narrower(y * self.weigh(y))
        return x + y if self.is_same else y


def efficientnet_b0() -> nn.Module:
    """Tan and Le, 2019, without stochastic depth."""
    stages = [(1, 16, 1, 3, 1), (6, 24, 2, 3, 2), (6, 40, 2, 5, 2), (6, 80, 3, 3, 2)]
    stages += [(6, 112, 3, 5, 1), (6, 192, 4, 5, 2), (6, 320, 1, 3, 1)]
    layers: list[nn.Module] = [_conv(3, 32, 3, 2), nn.BatchNorm2d(32), nn.SiLU()]
    inner = 32
    for grow, outer, depth, size, stride in stages:
        for i in range(depth):
            layers.append(_Inverted(inner, outer, grow, size, stride if i == 0 else 1))
            inner = outer
    layers += [_conv(inner, 1280, 1), nn.BatchNorm2d(1280), nn.SiLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class _Residual(nn.Module):
    """The convolutions of a level of Stable Diffusion's U-Net."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            *(nn.GroupNorm(32, inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, padding=1)),
            *(nn.GroupNorm(32, outer), nn.SiLU(), nn.Conv2d(outer, outer, 3, padding=1)),
        )
        self.short = nn.Identity() if inner == outer else nn.Conv2d(inner, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.short(x) + self.way(x)


class _Pixels(nn.Module):
    """Attention between the pixels of an image."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(32, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        tokens = self.norm(x).permute(0, 2, 3, 1).reshape(n, h * w, c)
        q, k, v = self.qkv(tokens).view(n, h * w, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c)
        return x + self.out(y).view(n, h, w, c).permute(0, 3, 1, 2)


class _DiffusionUNet(nn.Module):
    """Two levels of Stable Diffusion's U-Net, down and up, with concatenated skip connections."""

    def __init__(self, width: int = 320) -> None:
        super().__init__()
        wide = 2 * width
        self.first = nn.Sequential(_Residual(width, width), _Pixels(width, width // 64))
        self.halve = nn.Conv2d(width, width, 3, 2, 1)
        self.second = nn.Sequential(_Residual(width, wide), _Pixels(wide, wide // 64), _Residual(wide, wide))
        self.after = nn.Conv2d(wide, wide, 3, padding=1)
        self.last = nn.Sequential(_Residual(wide + width, width), _Pixels(width, width // 64))

    def forward(self, x: Tensor) -> Tensor:
        skip = self.first(x)
        deep = self.after(F.interpolate(self.second(self.halve(skip)), scale_factor=2.0, mode="nearest"))
        return self.last(torch.cat([deep, skip], 1))


class _VolumeUNet(nn.Module):
    """A 3-D U-Net (Çiçek et al., 2016) of three levels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()

        def twice(inner: int, outer: int) -> nn.Module:
            once = (nn.Conv3d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm3d(outer), nn.ReLU())
            again = (nn.Conv3d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm3d(outer), nn.ReLU())
            return nn.Sequential(*once, *again)

        self.down = nn.ModuleList([twice(4, width), twice(width, 2 * width), twice(2 * width, 4 * width)])
        self.wider = nn.ModuleList(nn.ConvTranspose3d(2 * n, n, 2, 2) for n in (2 * width, width))
        self.up = nn.ModuleList(twice(2 * n, n) for n in (2 * width, width))
        self.out = nn.Conv3d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for i, level in enumerate(self.down):
            x = level(F.max_pool3d(x, 2) if i else x)
            skips.append(x)
        for wider, level, skip in zip(self.wider, self.up, reversed(skips[:-1]), strict=True):
            x = level(torch.cat([wider(x), skip], 1))
        return self.out(x)


# ---- Transformers ------------------------------------------------------------------------------------------


class _Transformer(nn.Module):
    """A pre-norm transformer block, as in GPT-2 and ViT."""

    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh" if self.is_causal else "none"))


class _ViT(nn.Module):
    """ViT-B/16 (Dosovitskiy et al., 2020)."""

    def __init__(self, width: int = 768, depth: int = 12, side: int = 224) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (side // 16) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(_Transformer(width, width // 64, False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), tokens], 1)
        return self.head(self.norm(self.blocks(x + self.places[:, : x.shape[1]]))[:, 0])


def gpt2(width: int = 1024, depth: int = 6) -> nn.Module:
    """Blocks of GPT-2 medium."""
    return nn.Sequential(*(_Transformer(width, width // 64, True) for _ in range(depth)))


class _Experts(nn.Module):
    """A mixture-of-experts layer that routes each token to two experts (Mixtral)."""

    def __init__(self, width: int = 1024, inner: int = 3584, count: int = 8) -> None:
        super().__init__()
        self.route = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, width, inner) * width**-0.5)
        self.down = nn.Parameter(torch.randn(count, inner, width) * inner**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.route(tokens).softmax(-1).topk(2)
        order = chosen.flatten().argsort(stable=True)
        ends = F.one_hot(chosen.flatten(), self.route.out_features).sum(0).cumsum(0).int()
        hidden = F.silu(F.grouped_mm(tokens[order // 2], self.up, offs=ends))
        given = F.grouped_mm(hidden, self.down, offs=ends) * weights.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // 2, given).view_as(x)


MODELS: dict[str, Model] = {
    "resnet50": Model(resnet50, (256, 3, 224, 224), (2, 3, 64, 64), 1000, True),
    "convnext_t": Model(convnext_t, (128, 3, 224, 224), (1, 3, 64, 64), 1000, True),
    "efficientnet_b0": Model(efficientnet_b0, (128, 3, 224, 224), (2, 3, 64, 64), 1000, True),
    "diffusion_unet": Model(_DiffusionUNet, (8, 320, 64, 64), (1, 320, 8, 8), 0, True),
    "vit_b16": Model(_ViT, (64, 3, 224, 224), (1, 3, 64, 64), 1000),
    "gpt2_medium": Model(gpt2, (4, 2048, 1024), (1, 64, 1024)),
    "unet_3d": Model(_VolumeUNet, (2, 4, 64, 64, 64), (1, 4, 16, 16, 16), 0, True),
    "experts": Model(_Experts, (4, 2048, 1024), (1, 32, 1024)),
}
