"""The cases of the benchmark by name: sizes as rows of data."""

from __future__ import annotations

from functools import cache

from weft.bench import families
from weft.bench.families import Case
from weft.bench.shapes import Attention, Convolution, Pool

# ---- For GPUs: the sizes that networks have ----------------------------------------------------------------

_GPU_MATMULS: list[tuple[str, str, int, int, int, str]] = [
    ("8192", "bf16", 8192, 8192, 8192, ""),
    ("4096", "bf16", 4096, 4096, 4096, ""),
    ("1024", "bf16", 1024, 1024, 1024, ""),
    ("m16_n8192_k8192", "bf16", 16, 8192, 8192, ""),
    ("m128_n8192_k8192", "bf16", 128, 8192, 8192, ""),
    ("m4096_n8192_k28672", "bf16", 4096, 8192, 28672, ""),
    ("4096_bias_gelu", "bf16", 4096, 16384, 4096, "gelu"),
    ("4096_bias_relu", "bf16", 4096, 4096, 4096, "relu"),
    ("4096", "tf32", 4096, 4096, 4096, ""),
]
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
_DEPTHWISE = Convolution(64, 384, (28, 28), 7, padding=3, filters=384, groups=384)
_NORM_ROWS = [(16384, 1024), (16384, 4096), (4096, 16384)]
_NORM_IMAGES = [(128, 64, 112), (128, 256, 56), (128, 2048, 7)]


def _gpu_attention() -> list[Case]:
    made = []
    for is_backward in (False, True):
        way = "bwd" if is_backward else "fwd"
        for width in (64, 128):
            for length in (512, 8192):
                for mask in ("full", "causal"):
                    heads, batch = 2048 // width, 16384 // length
                    a = Attention(batch, heads, heads, length, length, width, width, mask == "causal")
                    made.append(families.sdpa(f"{way}_d{width}_s{length}_{mask}", "bf16", a, is_backward))
        llama = Attention(1, 64, 8, 8192, 8192, 128, 128, True)
        mla = Attention(2, 32, 32, 4096, 4096, 192, 128, True)
        made.append(families.sdpa(f"{way}_gqa_llama70b_s8192_causal", "bf16", llama, is_backward))
        made.append(families.sdpa(f"{way}_mla192_128_s4096_causal", "bf16", mla, is_backward))
    for batch, keys in (64, 4096), (8, 32768):
        decode = Attention(batch, 32, 8, 1, keys, 128, 128)
        made.append(families.sdpa(f"decode_b{batch}_h32_kv8_s{keys}", "bf16", decode))
    return made


@cache
def gpu() -> dict[str, Case]:
    """The cases for GPUs."""
    made = [families.matmul(*row) for row in _GPU_MATMULS]
    for kind in ("fprop", "dgrad", "wgrad"):
        made += [families.conv(kind, tag, "bf16", c) for tag, c in _GPU_CONVOLUTIONS.items()]
    for tag in ("3x3_256_14", "1x1_64_256_56"):
        made.append(families.conv("fprop", tag, "bf16", _GPU_CONVOLUTIONS[tag], has_bias=True))
    made.append(families.conv("fprop", "depthwise_7x7_384", "bf16", _DEPTHWISE))
    for kind in ("layernorm", "rmsnorm"):
        for rows, columns in _NORM_ROWS:
            made += [
                families.row_norm(kind, "bf16", rows, columns, is_backward) for is_backward in (False, True)
            ]
    for is_backward in (False, True):
        made += [families.batch_norm("bf16", *shape, is_backward) for shape in _NORM_IMAGES]
    made += families.memory("bf16", 16384, 4096)
    made += [
        families.pool("bf16", Pool(128, 64, (112, 112), 3, 2, 1, is_max=is_max)) for is_max in (True, False)
    ]
    return {case.name: case for case in made + _gpu_attention()}


# ---- For CPUs: the same graphs, small enough for one core --------------------------------------------------


@cache
def cpu() -> dict[str, Case]:
    """The cases for CPUs."""
    three = Convolution(4, 32, (28, 28), 3, padding=1, filters=32)
    attention = Attention(1, 4, 2, 64, 64, 32, 32, True)
    made = [
        families.matmul("512", "f32", 512, 512, 512),
        families.matmul("m16_n1024_k1024", "f32", 16, 1024, 1024),
        families.matmul("256_bias_gelu", "f32", 256, 256, 256, "gelu"),
        *(families.conv(kind, "3x3_32_28", "f32", three) for kind in ("fprop", "dgrad", "wgrad")),
        families.conv("fprop", "3x3_32_28", "f32", three, has_bias=True),
        families.conv("fprop", "1x1_64_128_28", "f32", Convolution(4, 64, (28, 28), 1, filters=128)),
        families.conv("fprop", "depthwise_7x7_32", "f32", Convolution(4, 32, (14, 14), 7, 1, 3, 1, 32, 32)),
    ]
    for kind in ("layernorm", "rmsnorm"):
        made += [families.row_norm(kind, "f32", 256, 512, is_backward) for is_backward in (False, True)]
    made += [families.batch_norm("f32", 4, 32, 28, is_backward) for is_backward in (False, True)]
    made += families.memory("f32", 256, 512)
    made += [families.pool("f32", Pool(4, 16, (28, 28), 3, 2, 1, is_max=is_max)) for is_max in (True, False)]
    made += [families.sdpa(f"{way}_d32_s64_causal", "f32", attention, way == "bwd") for way in ("fwd", "bwd")]
    return {case.name: case for case in made}
