"""The cases of the benchmark by name: sizes as rows of data."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from benchmarks import attention, fused, networks, norms, products, streams
from benchmarks.case import Case
from benchmarks.shapes import NDHWC, NWC, Attention, Convolution, Pool

# ---- For GPUs: sizes of networks ---------------------------------------------------------------------------

_GPU_MATMULS: list[tuple[str, str, int, int, int, str]] = [
    ("8192", "bf16", 8192, 8192, 8192, ""),
    ("4096", "bf16", 4096, 4096, 4096, ""),
    ("1024", "bf16", 1024, 1024, 1024, ""),
    ("m16_n8192_k8192", "bf16", 16, 8192, 8192, ""),
    ("m64_n4096_k4096", "bf16", 64, 4096, 4096, ""),
    ("m64_n6144_k4096", "bf16", 64, 6144, 4096, ""),
    ("m64_n14336_k4096", "bf16", 64, 14336, 4096, ""),
    ("m64_n4096_k14336", "bf16", 64, 4096, 14336, ""),
    ("m128_n8192_k8192", "bf16", 128, 8192, 8192, ""),
    ("m4096_n8192_k28672", "bf16", 4096, 8192, 28672, ""),
    ("4096_bias_gelu", "bf16", 4096, 16384, 4096, "gelu"),
    ("4096_bias_relu", "bf16", 4096, 4096, 4096, "relu"),
    ("4096_k4095", "bf16", 4096, 4096, 4095, ""),
    ("4096", "tf32", 4096, 4096, 4096, ""),
    ("8192", "int8", 8192, 8192, 8192, ""),
]
_GPU_BLOCK_SCALED = {
    "8192": (8192, 8192, 8192),
    "4096": (4096, 4096, 4096),
    "m4096_n7168_k2048": (4096, 7168, 2048),
}
_GPU_EXPERTS = {
    "e8_m16384_k4096_n14336": (8, 16384, 4096, 14336),
    "e64_m24576_k2048_n1408": (64, 24576, 2048, 1408),
    "e64_m1024_k2048_n1408": (64, 1024, 2048, 1408),
}
_GPU_CONVOLUTIONS = {
    "stem7x7s2": Convolution(128, 8, (224, 224), 7, stride=2, padding=3, filters=64),
    "1x1_64_256_56": Convolution(128, 64, (56, 56), 1, filters=256),
    "1x1_256_64_56": Convolution(128, 256, (56, 56), 1, filters=64),
    "3x3_64_56": Convolution(128, 64, (56, 56), 3, padding=1, filters=64),
    "3x3s2_128_56": Convolution(128, 128, (56, 56), 3, stride=2, padding=1, filters=128),
    "3x3_256_14": Convolution(128, 256, (14, 14), 3, padding=1, filters=256),
    "3x3_512_7": Convolution(128, 512, (7, 7), 3, padding=1, filters=512),
    "3x3_320_64_sdxl": Convolution(8, 320, (128, 128), 3, padding=1, filters=320),
    "3x3_1280_32_sdxl": Convolution(8, 1280, (32, 32), 3, padding=1, filters=1280),
}
_PLANAR = ("3x3_64_56", "3x3_256_14", "3x3_512_7", "1x1_64_256_56", "1x1_256_64_56")  # also timed in NCHW
_GPU_GROUPS = {
    "3x3_128_56_groups32": Convolution(128, 128, (56, 56), 3, padding=1, filters=128, groups=32),
    "3x3_256_28_groups32": Convolution(128, 256, (28, 28), 3, padding=1, filters=256, groups=32),
}
_PATCHES = Convolution(128, 3, (224, 224), 16, stride=16, filters=768)
_DEPTHWISE = Convolution(64, 384, (28, 28), 7, padding=3, filters=384, groups=384)
_NORM_ROWS = [(16384, 1024), (16384, 4096), (4096, 16384)]
_NORM_IMAGES = [(128, 64, 112), (128, 256, 56), (128, 2048, 7)]


_GPU_FP8_ATTENTION = [(64, 8192, "causal"), (128, 2048, "full"), (128, 8192, "full"), (128, 8192, "causal")]
_GPU_FP8_ATTENTION += [(128, 16384, "causal"), (256, 8192, "full")]
_GPU_FP8_GRADIENTS = [(64, 8192, "causal"), (128, 2048, "full"), (128, 8192, "causal")]


_GPU_ATTENTION_SHAPES = {
    "d128_s16384_causal": Attention(1, 16, 16, 16384, 16384, 128, 128, True),
    "d128_s32768_causal": Attention(1, 4, 4, 32768, 32768, 128, 128, True),
    "d64_s8192_window1024": Attention(2, 32, 32, 8192, 8192, 64, 64, True, 1024),
    "d80_s4096_full": Attention(4, 16, 16, 4096, 4096, 80, 80),
    "d96_s4096_full": Attention(4, 16, 16, 4096, 4096, 96, 96),
    "d256_s4096_causal": Attention(4, 8, 8, 4096, 4096, 256, 256, True),
    "d64_s64_h1024_full": Attention(16, 1024, 1024, 64, 64, 64, 64),
    "d64_s128_h512_full": Attention(16, 512, 512, 128, 128, 64, 64),
    "d64_s256_h256_full": Attention(16, 256, 256, 256, 256, 64, 64),
    "mqa_d128_s4096_causal": Attention(4, 16, 1, 4096, 4096, 128, 128, True),
}
"""Variants of the plain cases: long and short sequences, a window, other head dims, one key head for all."""


_WAYS = ("fwd", False), ("bwd", True)


def _gpu_attention() -> list[Case]:
    cases = []
    for way, is_backward in _WAYS:
        for width in (64, 128):
            for length in (512, 8192):
                for mask in ("full", "causal"):
                    heads, batch = 2048 // width, 16384 // length
                    a = Attention(batch, heads, heads, length, length, width, width, mask == "causal")
                    cases.append(products.sdpa(f"{way}_d{width}_s{length}_{mask}", "bf16", a, is_backward))
        llama = Attention(1, 64, 8, 8192, 8192, 128, 128, True)
        mla = Attention(2, 32, 32, 4096, 4096, 192, 128, True)
        cases.append(products.sdpa(f"{way}_gqa_llama70b_s8192_causal", "bf16", llama, is_backward))
        cases.append(products.sdpa(f"{way}_mla192_128_s4096_causal", "bf16", mla, is_backward))
        for tag, a in _GPU_ATTENTION_SHAPES.items():
            cases.append(products.sdpa(f"{way}_{tag}", "bf16", a, is_backward))
    modified = Attention(4, 16, 16, 4096, 4096, 128, 128, True)
    deep = _GPU_ATTENTION_SHAPES["d256_s4096_causal"]
    mixed = Attention(16, 16, 16, 2048, 2048, 128, 128, True)
    for way, is_backward in _WAYS:
        tag = f"{way}_d128_s4096_causal"
        for kind in ("bias", "softcap", "alibi"):
            cases.append(products.sdpa_modified(tag, "bf16", modified, kind, is_backward))
        cases.append(products.sdpa_modified(f"{way}_d256_s4096_causal", "bf16", deep, "softcap", is_backward))
        cases.append(attention.dropped(tag, "bf16", modified, is_backward))
        cases.append(attention.masked_dropout(tag, "bf16", modified, is_backward))
        cases.append(attention.ragged(f"{way}_d128_s2048_causal", "bf16", mixed, is_backward))
    for width, length, mask in _GPU_FP8_ATTENTION:
        heads, batch = 2048 // width, 16384 // length
        a = Attention(batch, heads, heads, length, length, width, width, mask == "causal")
        cases.append(products.sdpa_fp8(f"fwd_fp8_d{width}_s{length}_{mask}", "fp8", a))
    for width, length, mask in _GPU_FP8_GRADIENTS:
        heads, batch = 2048 // width, 16384 // length
        a = Attention(batch, heads, heads, length, length, width, width, mask == "causal")
        cases.append(attention.fp8_backward(f"bwd_fp8_d{width}_s{length}_{mask}", "fp8", a))
    a = Attention(2, 16, 16, 8192, 8192, 128, 128, True)
    for way, is_backward in _WAYS:
        cases.append(attention.mxfp8(f"{way}_mxfp8_d128_s8192_causal", "fp8", a, is_backward))
    cases.append(attention.block_masked("fwd_d128_s4096_full", "bf16", replace(modified, is_causal=False)))
    for batch, keys in (64, 4096), (8, 32768):
        decode = Attention(batch, 32, 8, 1, keys, 128, 128)
        cases.append(products.sdpa(f"decode_b{batch}_h32_kv8_s{keys}", "bf16", decode))
    decode = Attention(64, 32, 8, 1, 4096, 128, 128)
    cases += [attention.paged("decode_b64_h32_kv8_s4096", "bf16", decode, page) for page in (1, 16, 64, 128)]
    return cases


_STEM = Pool(128, 64, (112, 112), 3, 2, 1)
_HALF = Pool(128, 256, (56, 56), 2, 2)


def _mean(p: Pool) -> Pool:
    return replace(p, is_max=False)


def _gpu_products() -> list[Case]:
    cases = [products.matmul(*row) for row in _GPU_MATMULS]
    cases += [products.scaled_matmul(str(n), n, n, n) for n in (8192, 4096)]
    cases += [products.block_scaled_matmul(tag, *sizes) for tag, sizes in _GPU_BLOCK_SCALED.items()]
    tokens = (1, 16, 32, 64, 128, 256)
    cases += [products.weight_only_matmul(dtype, m, 8192, 8192) for dtype in ("i4", "i8") for m in tokens]
    for kind in ("fprop", "wgrad"):
        cases += [products.experts(kind, tag, "bf16", *sizes) for tag, sizes in _GPU_EXPERTS.items()]
    image = _GPU_CONVOLUTIONS["3x3_256_14"]
    for kind in ("fprop", "dgrad", "wgrad"):
        cases += [products.conv(kind, tag, "bf16", c) for tag, c in (_GPU_CONVOLUTIONS | _GPU_GROUPS).items()]
        cases.append(products.conv(kind, "tf32_3x3_256_14", "tf32", image))
        for tag in _PLANAR:
            cases.append(products.conv(kind, f"nchw_{tag}", "bf16", _GPU_CONVOLUTIONS[tag], order=()))
        cases.append(products.conv(kind, "tf32_nchw_3x3_256_14", "tf32", image, order=()))
    cases.append(
        products.conv("wgrad", "3x3_96_28", "bf16", replace(image, channels=96, image=(28, 28), filters=96))
    )
    cases.append(products.conv("fprop", "nchw_patches16x16", "bf16", _PATCHES, order=()))
    for tag in ("3x3_256_14", "3x3_320_64_sdxl"):
        cases += [products.conv("fprop", tag, kind, _GPU_CONVOLUTIONS[tag]) for kind in ("fp8", "int8")]
    for tag in ("3x3_256_14", "1x1_64_256_56"):
        cases.append(products.conv("fprop", tag, "bf16", _GPU_CONVOLUTIONS[tag], has_bias=True))
    return [*cases, products.conv("fprop", "depthwise_7x7_384", "bf16", _DEPTHWISE)]


_VOLUMES = {64: ((4, 32), (32, 32), (64, 32)), 128: ((16, 16), (32, 32)), 32: ((32, 64), (64, 64), (128, 64))}


def _gpu_volumes() -> list[Case]:
    """Convolutions with few channels, on volumes and on large images."""
    cases = []
    for kind in ("fprop", "dgrad", "wgrad"):
        for side, pairs in _VOLUMES.items():
            for channels, filters in pairs:
                c = Convolution(2, channels, (side,) * 3, 3, padding=1, filters=filters)
                tag = f"3x3x3_{channels}_{filters}_{side}"
                cases.append(products.conv(kind, tag, "bf16", c, order=NDHWC))
        for channels, filters in ((16, 16), (32, 32), (64, 32)):
            c = Convolution(8, channels, (256, 256), 3, padding=1, filters=filters)
            cases.append(products.conv(kind, f"3x3_{channels}_{filters}_256", "bf16", c))
    return cases


def _causal(arithmetic: str, sizes: dict[str, tuple[int, int, int, int]]) -> list[Case]:
    """Causal convolutions and their gradients, with contiguous steps or channels."""
    return [
        products.causal_conv(f"{tag}{end}", arithmetic, size, is_backward, order)
        for tag, size in sizes.items()
        for end, order in (("", ()), ("_nwc", NWC))
        for is_backward in (False, True)
    ]


_GPU_CAUSAL = {
    "b1_d2048_s1024_k4": (1, 2048, 1024, 4),
    "b8_d5120_s2048_k4": (8, 5120, 2048, 4),
    "b2_d4096_s8192_k128": (2, 4096, 8192, 128),
}
"""By batch, channels, steps and taps: sizes of a small Mamba and one of 2.8 billion parameters, and long
filters such as Hyena's."""


def _gpu_fused() -> list[Case]:
    rows = [fused.matmul("4096", 4096, 4096, 4096, kind) for kind in fused.MATMULS]
    rows += [fused.matmul("m8192_n4096_k1024", 8192, 4096, 1024, kind) for kind in fused.MATMULS]
    for tag in ("3x3_64_56", "3x3_256_14", "1x1_64_256_56", "1x1_256_64_56"):
        rows += [fused.conv(tag, _GPU_CONVOLUTIONS[tag], kind) for kind in fused.CONVOLUTIONS]
    for tag in ("3x3_64_56", "1x1_256_64_56"):
        rows += [fused.conv_dgrad(tag, _GPU_CONVOLUTIONS[tag], kind) for kind in fused.DGRADS]
    shortcut = Convolution(128, 256, (56, 56), 1, stride=2, filters=512)
    strided = {"3x3s2_128_56": _GPU_CONVOLUTIONS["3x3s2_128_56"], "1x1s2_256_56": shortcut}
    rows += [fused.conv(tag, c, kind) for tag, c in strided.items() for kind in fused.PREPARED]
    rows += [fused.conv_dgrad(tag, c, kind) for tag, c in strided.items() for kind in ("bare", "after_scale")]
    weights = {
        "3x3_64_56": _GPU_CONVOLUTIONS["3x3_64_56"],
        "3x3_256_14": _GPU_CONVOLUTIONS["3x3_256_14"],
        **strided,
    }
    return rows + [fused.conv_wgrad(tag, c, kind) for tag, c in weights.items() for kind in fused.PREPARED]


def _gpu_norms() -> list[Case]:
    cases = []
    for kind in ("layernorm", "rmsnorm"):
        for rows, columns in _NORM_ROWS:
            cases += [
                norms.row_norm(kind, "bf16", rows, columns, is_backward) for is_backward in (False, True)
            ]
    for is_backward in (False, True):
        cases += [norms.batch_norm("bf16", *shape, is_backward) for shape in _NORM_IMAGES]
    return cases + [norms.planar_norm(kind, "bf16", 128, 256, 56) for kind in ("batchnorm", "instancenorm")]


def _gpu_streams() -> list[Case]:
    """Large and small, even and odd sizes."""
    images, deep = (128, 64, 112, 112), (128, 2048, 7, 7)
    return [
        streams.bias_gelu_residual("16384x4096", "bf16", 16384, 4096),
        streams.bias_gelu_residual("f32_8192x4096", "f32", 8192, 4096),
        streams.bias_gelu_residual("16384x4097", "bf16", 16384, 4097),
        streams.bias_gelu_residual("1024x1024", "bf16", 1024, 1024),
        streams.bias_gelu_residual("64x1024", "bf16", 64, 1024),
        streams.relu("64M", "bf16", 1 << 26),
        streams.relu("64M_odd", "bf16", (1 << 26) - 1),
        streams.relu("512K", "bf16", 1 << 19),
        streams.sums("mem/reduce_rows", "bf16", 16384, 4096, 2),
        *(streams.softmax("bf16", 16384, columns) for columns in (4096, 4097)),
        *(streams.softmax("bf16", 1 << 26 - bits, 1 << bits) for bits in (14, 16, 18)),
        *(streams.sums("rows/sum_rows", "bf16", 16384, columns, 2) for columns in (4096, 4097)),
        *(streams.sums("rows/sum_rows", "bf16", 1 << 26 - bits, 1 << bits, 2) for bits in (16, 18)),
        *(streams.sums("rows/sum_columns", "bf16", 16384, columns, 1) for columns in (4096, 4097)),
        streams.transpose("8192x8192", "bf16", (8192, 8192), (1, 0)),
        streams.transpose("8192x8192_f32", "f32", (8192, 8192), (1, 0)),
        streams.transpose("16384x8192_i8", "i8", (16384, 8192), (1, 0)),
        streams.transpose("8191x8193", "bf16", (8191, 8193), (1, 0)),
        streams.transpose("64x1024x1024", "bf16", (64, 1024, 1024), (0, 2, 1)),
        streams.transpose("bshd_bhsd", "bf16", (16, 4096, 16, 64), (0, 2, 1, 3)),
        streams.transpose("3210", "bf16", (64, 96, 128, 80), (3, 2, 1, 0)),
        streams.transpose("1024x1024", "bf16", (1024, 1024), (1, 0)),
        *(
            streams.layout("bf16", dims, is_to_last)
            for dims in (images, deep)
            for is_to_last in (True, False)
        ),
        streams.layout("f32", (256, 3, 224, 224), True, "_f32"),
        streams.add_relu_across("bf16", (128, 256, 56, 56)),
        streams.concat("nhwc_64_192_56", "bf16", [(128, 64, 56, 56), (128, 192, 56, 56)], 1, True),
        streams.concat("nhwc_12_20_112", "bf16", [(128, 12, 112, 112), (128, 20, 112, 112)], 1, True),
        streams.concat("rows", "bf16", [(8192, 4096), (4096, 4096), (1, 4096)], 0),
        streams.concat("columns_odd", "bf16", [(8192, 4095), (8192, 2049)], 1),
    ]


def _gpu_pools() -> list[Case]:
    same, full = Pool(128, 256, (28, 28), 3, 1, 1), Pool(128, 2048, (7, 7), 7)
    odd = replace(_STEM, channels=63)
    return [
        streams.pool("max3x3s2", "bf16", _STEM),
        streams.pool("max3x3s2_index", "bf16", _STEM, has_index=True),
        streams.pool("max3x3s1", "bf16", same),
        streams.pool("max2x2s2", "bf16", _HALF),
        streams.pool("avg3x3s2", "bf16", _mean(_STEM)),
        streams.pool("avg3x3s1", "bf16", _mean(same)),
        streams.pool("avg7x7", "bf16", _mean(full)),
        streams.pool("max3x3s2_nchw", "bf16", _STEM, is_last=False),
        streams.pool("avg3x3s2_nchw", "bf16", _mean(_STEM), is_last=False),
        streams.pool("max3x3s1_nchw", "bf16", same, is_last=False),
        streams.pool("avg3x3s1_nchw", "bf16", _mean(same), is_last=False),
        streams.pool("avg7x7_nchw", "bf16", _mean(full), is_last=False),
        streams.pool("max3x3s2_c63", "bf16", odd),
        streams.pool("avg3x3s2_c63", "bf16", _mean(odd)),
        streams.pool_backward("max3x3s2_bwd", "bf16", _STEM),
        streams.pool_backward("max3x3s2_bwd_from_x", "bf16", _STEM, has_index=False),
        streams.pool_backward("max3x3s1_bwd", "bf16", same),
        streams.pool_backward("max2x2s2_bwd", "bf16", _HALF),
        streams.pool_backward("avg3x3s2_bwd", "bf16", _mean(_STEM)),
        streams.pool_backward("avg3x3s1_bwd", "bf16", _mean(same)),
        streams.pool_backward("max3x3s1_bwd_nchw", "bf16", same, is_last=False),
        streams.pool_backward("max3x3s2_bwd_nchw", "bf16", _STEM, is_last=False),
        streams.pool_backward("avg3x3s2_bwd_nchw", "bf16", _mean(_STEM), is_last=False),
    ]


@cache
def gpu() -> dict[str, Case]:
    """The cases for GPUs."""
    cases = [*_gpu_products(), *_gpu_volumes(), *_causal("bf16", _GPU_CAUSAL), *_gpu_fused(), *_gpu_norms()]
    cases += [*_gpu_streams(), *_gpu_pools()]
    cases += [*_gpu_attention(), *networks.cases(networks.GPU, networks.DECODE)]
    return {case.name: case for case in cases}


# ---- For CPUs: the same graphs, small enough for one core --------------------------------------------------


_CPU_ARITHMETIC = ("f32", "bf16", "f16", "int8")


def _cpu_products() -> list[Case]:
    def made(tag: str, arithmetic: str, m: int, n: int, k: int, activation: str = "") -> Case:
        case = products.matmul(tag, arithmetic, m, n, k, activation)
        return replace(case, program=partial(products.matmul_of_torch, activation))

    def frozen(case: Case) -> Case:
        return replace(case, name=f"{case.name}_frozen", frozen=("B",))

    def reduced(kind: str, size: int) -> Case:
        case = fused.matmul(str(size), size, size, size, kind)
        return replace(case, program=partial(fused.matmul_of_torch, kind))

    return [
        *(made(f"m{m}_n1024_k1024", of, m, 1024, 1024) for of in _CPU_ARITHMETIC for m in (1024, 16)),
        *(made(str(size), of, size, size, size) for of in _CPU_ARITHMETIC for size in (512, 192)),
        *(frozen(made("m16_n1024_k1024", of, 16, 1024, 1024)) for of in _CPU_ARITHMETIC),
        *(made("256_bias_gelu", of, 256, 256, 256, "gelu") for of in ("f32", "bf16")),
        *(reduced(kind, 512) for kind in ("bare", "row_max")),
        products.scaled_matmul("192", 192, 192, 192),
        products.block_scaled_matmul("192", 192, 192, 192),
        *(products.weight_only_matmul(dtype, 4, 192, 256) for dtype in ("i4", "i8")),
        *(products.weight_only_matmul(dtype, m, 4096, 4096) for dtype in ("i4", "i8") for m in (1, 16)),
    ]


_CPU_CONVOLUTIONS = {
    "3x3_64_56_n1": Convolution(1, 64, (56, 56), 3, padding=1, filters=64),
    "3x3_128_28_n2": Convolution(2, 128, (28, 28), 3, padding=1, filters=128),
    "3x3_512_7_n2": Convolution(2, 512, (7, 7), 3, padding=1, filters=512),
    "3x3_640_320_8_n2": Convolution(2, 640, (8, 8), 3, padding=1, filters=320),
    "3x3s2_128_28_n2": Convolution(2, 128, (28, 28), 3, stride=2, padding=1, filters=128),
    "1x1_64_256_56_n1": Convolution(1, 64, (56, 56), 1, filters=256),
    "1x1_1024_256_14_n2": Convolution(2, 1024, (14, 14), 1, filters=256),
    "1x1s2_256_512_28_n2": Convolution(2, 256, (28, 28), 1, stride=2, filters=512),
    "stem7x7s2_n1": Convolution(1, 3, (224, 224), 7, stride=2, padding=3, filters=64),
    "depthwise_3x3_96_56_n1": Convolution(1, 96, (56, 56), 3, padding=1, filters=96, groups=96),
    "depthwise_3x3s2_384_14_n2": Convolution(2, 384, (14, 14), 3, 2, 1, filters=384, groups=384),
    "depthwise_7x7_96_16_n1": Convolution(1, 96, (16, 16), 7, padding=3, filters=96, groups=96),
}
"""Sizes of ResNet, EfficientNet, ConvNeXt and a diffusion U-Net."""
_CPU_LAST = {
    "fprop": ("3x3_64_56_n1", "3x3_128_28_n2", "1x1s2_256_512_28_n2", "depthwise_3x3_96_56_n1"),
    "dgrad": ("3x3_64_56_n1", "3x3_512_7_n2"),
    "wgrad": ("3x3_64_56_n1", "3x3_640_320_8_n2", "depthwise_3x3s2_384_14_n2"),
}
_CPU_PLANAR = {
    "fprop": ("3x3_64_56_n1", "3x3_512_7_n2", "1x1_64_256_56_n1", "stem7x7s2_n1", "depthwise_7x7_96_16_n1"),
    "dgrad": ("3x3_640_320_8_n2", "1x1_1024_256_14_n2", "3x3s2_128_28_n2", "depthwise_3x3s2_384_14_n2"),
    "wgrad": (
        *("3x3_64_56_n1", "3x3_512_7_n2", "3x3_640_320_8_n2", "1x1_64_256_56_n1", "stem7x7s2_n1"),
        *("depthwise_3x3_96_56_n1", "depthwise_7x7_96_16_n1"),
    ),
}


def _cpu_convolutions() -> list[Case]:
    three = Convolution(4, 32, (28, 28), 3, padding=1, filters=32)
    one = Convolution(4, 64, (28, 28), 1, filters=128)
    depthwise = Convolution(4, 32, (14, 14), 7, padding=3, filters=32, groups=32)
    return [
        products.conv("fprop", "3x3_32_14", "fp8", replace(three, n=1, image=(14, 14))),
        *(products.conv(kind, "3x3_32_28", "f32", three) for kind in ("fprop", "dgrad", "wgrad")),
        products.conv("fprop", "3x3_32_28", "f32", three, has_bias=True),
        products.conv("fprop", "1x1_64_128_28", "f32", one),
        products.conv("fprop", "depthwise_7x7_32", "f32", depthwise),
        *(
            products.conv(k, tag, "f32", _CPU_CONVOLUTIONS[tag])
            for k, tags in _CPU_LAST.items()
            for tag in tags
        ),
        *(
            products.conv(kind, f"nchw_{tag}", "f32", _CPU_CONVOLUTIONS[tag], order=())
            for kind, tags in _CPU_PLANAR.items()
            for tag in tags
        ),
    ]


_CPU_CAUSAL = {
    "b1_d64_s256_k4": (1, 64, 256, 4),
    "b1_d1536_s512_k4": (1, 1536, 512, 4),
    "b1_d256_s1024_k64": (1, 256, 1024, 64),
}


def _cpu_attention() -> list[Case]:
    """Sequences of a small model, and one token that attends to many keys."""

    def made(tag: str, arithmetic: str, a: Attention, is_backward: bool = False) -> Case:
        case = products.sdpa(tag, arithmetic, a, is_backward)
        return replace(case, program=partial(products.sdpa_of_torch, a, is_backward))

    small = Attention(1, 4, 2, 64, 64, 32, 32, True)
    cases = [products.sdpa(f"{way}_d32_s64_causal", "f32", small, way == "bwd") for way in ("fwd", "bwd")]
    for mask in ("full", "causal"):
        a = Attention(1, 4, 4, 1024, 1024, 64, 64, mask == "causal")
        cases += [made(f"{way}_d64_s1024_{mask}", "f32", a, way == "bwd") for way in ("fwd", "bwd")]
        cases.append(made(f"fwd_d64_s1024_{mask}_bf16", "bf16", a))
    grouped = Attention(1, 8, 2, 1, 8192, 64, 64)
    cases.append(made("decode_h8_kv2_s8192", "f32", grouped))
    return [*cases, made("decode_h8_kv8_s8192", "f32", replace(grouped, key_heads=8))]


def _cpu_fused() -> list[Case]:
    few = Convolution(2, 8, (14, 14), 3, padding=1, filters=16)
    return [
        *(fused.matmul("96", 96, 80, 64, kind) for kind in fused.MATMULS),
        *(fused.conv("3x3_8_14", few, kind) for kind in fused.CONVOLUTIONS),
        *(fused.conv_dgrad("3x3_8_14", few, kind) for kind in fused.DGRADS),
        *(fused.conv_wgrad("3x3_8_14", few, kind) for kind in fused.PREPARED),
    ]


def _of_halves(made: Case) -> Case:
    """A bf16 variant of a float case, with a derived name."""
    return replace(made, name=f"{made.name}_bf16")


def _cpu_norms() -> list[Case]:
    """Small ones, which fit into the L2 cache, and sizes of networks."""
    ways, rows, images = (False, True), ((256, 512), (4096, 768)), ((4, 32, 28), (8, 64, 56))
    cases = [
        norms.row_norm(kind, "f32", *size, way)
        for size in rows
        for kind in ("layernorm", "rmsnorm")
        for way in ways
    ]
    cases += [
        _of_halves(norms.row_norm(kind, "bf16", 4096, 768, way))
        for kind in ("layernorm", "rmsnorm")
        for way in ways
    ]
    for size in images:
        for is_last in (True, False):
            cases += [norms.batch_norm("f32", *size, way, is_last) for way in ways]
            cases += [norms.group_norm("f32", *size, 8, way, is_last) for way in ways]
    cases.append(norms.planar_norm("instancenorm", "f32", 4, 32, 28))
    return cases


def _cpu_rows() -> list[Case]:
    return [
        *(streams.sums("rows/sum_rows", "f32", *size, 2) for size in ((256, 512), (4096, 1024))),
        *(streams.sums("rows/sum_columns", "f32", *size, 1) for size in ((256, 512), (4096, 1024))),
        streams.maximum("f32", 4096, 1024),
        *(streams.softmax("f32", *size) for size in ((256, 512), (2048, 1024))),
        *(_of_halves(streams.softmax("bf16", *size)) for size in ((256, 512), (4096, 768))),
        *(streams.softmax_backward("f32", *size) for size in ((256, 512), (2048, 1024))),
        streams.log_softmax("f32", 2048, 1024),
    ]


_CASTS: list[tuple[str, str]] = [
    ("f32", "bf16"),
    ("bf16", "f32"),
    ("f32", "e4m3"),
    ("e4m3", "f32"),
    ("f32", "f16"),
    ("f16", "f32"),
    ("f32", "i8"),
    ("i8", "f32"),
]


def _cpu_moves() -> list[Case]:
    """Sizes that fit into the caches, and larger ones."""
    small, large, images = (256, 512), (1024, 1024), (16, 64, 32, 32)
    whole, inner, second = slice(None), slice(64, 448), slice(None, None, 2)
    return [
        streams.bias_gelu_residual("256x512", "f32", 256, 512),
        *(streams.cast("f32", "f32", dims) for dims in (small, large)),
        streams.transpose("256x512", "f32", small, (1, 0)),
        streams.transpose("1024x1024_cpu", "f32", large, (1, 0)),
        *(
            case
            for n in (512, 1024)
            for dtype in ("bf16", "i8")
            for case in (
                streams.cast(dtype, dtype, (n, n), f"_{dtype}"),
                streams.transpose(f"{n}x{n}_{dtype}", dtype, (n, n), (1, 0)),
            )
        ),
        streams.transpose("heads_1x128x8x64", "f32", (1, 128, 8, 64), (0, 2, 1, 3)),
        streams.transpose("heads_2x512x16x64", "f32", (2, 512, 16, 64), (0, 2, 1, 3)),
        streams.transpose("keys_1x8x128x64", "f32", (1, 8, 128, 64), (0, 1, 3, 2)),
        *(streams.layout("f32", dims, way) for dims in ((4, 16, 28, 28), images) for way in (True, False)),
        streams.layout("f32", (8, 3, 128, 128), True),
        *(streams.layout("bf16", images, way, "_bf16") for way in (True, False)),
        *(streams.layout("i8", images, way, "_i8") for way in (True, False)),
        streams.cut("inner_256x512", "f32", small, (whole, inner)),
        streams.cut("outer_256x512", "f32", small, (slice(64, 192), whole)),
        streams.cut("second_256x512", "f32", small, (whole, second)),
        streams.cut("inner_1024x2048", "f32", (1024, 2048), (whole, slice(512, 1536))),
        streams.cut("second_1024x1024", "f32", large, (whole, second)),
        streams.concat("128_384", "f32", [(256, 128), (256, 384)], 1),
        streams.concat("rows_128_384", "f32", [(128, 256), (384, 256)], 0),
        streams.concat("512_512", "f32", [(1024, 512), (1024, 512)], 1),
        *(streams.cast(source, target, small) for source, target in _CASTS),
        *(streams.cast(source, target, large) for source, target in _CASTS[:4]),
    ]


def _cpu_pools() -> list[Case]:
    """Images that fit into the caches, and larger ones."""
    cases = []
    small, half, large = (
        Pool(4, 16, (28, 28), 3, 2, 1),
        Pool(4, 16, (28, 28), 2, 2),
        Pool(8, 32, (56, 56), 3, 2, 1),
    )
    for is_last in (True, False):
        end = "" if is_last else "_nchw"
        for size, p in (("3x3s2_n4", small), ("2x2s2_n4", half), ("3x3s2_n8", large)):
            for kind, one in (("max", p), ("avg", _mean(p))):
                cases.append(streams.pool(f"{kind}{size}{end}", "f32", one, is_last=is_last))
                cases.append(streams.pool_backward(f"{kind}{size}_bwd{end}", "f32", one, is_last=is_last))
        for size, p in (("3x3s2_n4", small), ("3x3s2_n8", large)):
            rows = f"max{size}_bwd_from_x{end}"
            cases.append(streams.pool_backward(rows, "f32", p, has_index=False, is_last=is_last))
        full = _mean(Pool(8, 256, (7, 7), 7))
        cases.append(streams.pool(f"avg7x7_n8{end}", "f32", full, is_last=is_last))
        cases.append(streams.pool_backward(f"avg7x7_n8_bwd{end}", "f32", full, is_last=is_last))
        for kind in ("bilinear", "nearest"):
            cases += [
                streams.resize(kind, (4, 16, 28, 28), is_backward, is_last) for is_backward in (False, True)
            ]
        cases.append(streams.resize("bilinear", (8, 32, 56, 56), False, is_last))
    return cases


@cache
def cpu() -> dict[str, Case]:
    """The cases for CPUs."""
    cases = [*_cpu_products(), *_cpu_convolutions(), *_cpu_attention(), *_cpu_fused(), *_cpu_norms()]
    cases += [*_causal("f32", _CPU_CAUSAL), *_cpu_rows(), *_cpu_moves(), *_cpu_pools()]
    cases += networks.cases(networks.CPU | networks.CPU_REAL, networks.CPU_DECODE)
    return {case.name: case for case in cases}
