"""Every variant of Hopper's attention kernels, compiled for a described GPU: no register spills, no
serialized tensor core instructions, and no divergent warps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cubins
import pytest
import tiers
import weft
from hopper_attention import (
    CAUSAL,
    H200,
    backward,
    family_of,
    forward,
    fp8_backward,
    mxfp8_backward,
    soft_cap,
)
from weft.devices import DeviceProperties

BOTTOM_RIGHT = weft.diagonal_alignment.BOTTOM_RIGHT
DEPTHS = [(64, 64), (40, 24), (64, 72), (128, 128), (80, 80), (96, 96), (192, 128), (192, 192)]
DEPTHS += [(256, 256), (136, 256)]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": CAUSAL,
    "window": {**CAUSAL, "diagonal_band_left_bound": 1024},
    "padding": {**CAUSAL, "lengths": True, "stats": True, "diagonal_alignment": BOTTOM_RIGHT},
    "bias": {"bias": ((1, 4, 2000, 2000), "bf16")},
    "bias of odd rows": {**CAUSAL, "bias": ((2, 1, 1, 2000), "f32"), "use_alibi_mask": True},
    "mask": {"bias": ((2, 1, 2000, 2000), "bool8"), "stats": True},
    "alibi": {**CAUSAL, "use_alibi_mask": True},
    "modified": {**CAUSAL, "modified": True},
    "dropout": {**CAUSAL, "dropout_probability": 0.1, "dropout_seed": ((1, 1, 1, 1), "i64")},
    "dropout by a mask": {
        **CAUSAL,
        "dropout_mask": ((2, 4, 2000, 2000), "bool8"),
        "dropout_scale": ((1, 1, 1, 1), "f32"),
    },
    "dropout by a mask of odd rows": {
        "dropout_mask": ((2, 1, 2000, 1), "bool8"),
        "bias": ((1, 4, 2000, 2000), "bf16"),
    },
    "everything": {
        **CAUSAL,
        "diagonal_band_left_bound": 9,
        "lengths": True,
        "stats": True,
        "sink": True,
        "max": True,
    },
}


def packed(g: weft.Graph, tensor: weft.Tensor, dims: tuple[int, ...], offsets: weft.Tensor) -> weft.Tensor:
    """Declares a tensor as packed tokens [T, H, D]."""
    batch, heads, rows, depth = dims
    tensor.set_dim([batch, heads, rows, depth]).set_stride([rows * heads * depth, depth, heads * depth, 1])
    return tensor.set_ragged_offset(offsets).set_ragged_offset_multiplier(heads * depth)


@pytest.mark.parametrize(("depth", "value_depth"), [(64, 64), (128, 128), (192, 128), (256, 256)])
def test_ragged_variants(depth: int, value_depth: int, dump: Path) -> None:
    g = weft.Graph(io_data_type="bf16", device_property=DeviceProperties(H200))
    lengths = {f"seq_len_{name}": g.tensor([3, 1, 1, 1], data_type="i32") for name in ("q", "kv")}
    offsets = g.tensor([4, 1, 1, 1], data_type="i32")
    q, k, v, o, d_o = (
        packed(g, g.tensor(), (3, heads, 2000, size), offsets)
        for heads, size in ((4, depth), (2, depth), (2, value_depth), (4, value_depth), (4, value_depth))
    )
    stats = packed(g, g.tensor(data_type="f32"), (3, 4, 2000, 1), offsets)
    made = g._sdpa_fwd(q, k, v, **lengths, **CAUSAL)
    packed(g, made[0].set_output(True), (3, 4, 2000, value_depth), offsets)
    packed(g, made[1].set_output(True).set_data_type("f32"), (3, 4, 2000, 1), offsets)
    wanted = {"cuda.attention_hopper"} | ({"cuda.attention_hopper unordered"} if depth <= 128 else set())
    for is_deterministic in False, True:
        made = g._sdpa_bwd(q, k, v, o, d_o, stats, is_deterministic=is_deterministic, **lengths, **CAUSAL)
        for gradient, like in zip(made, (q, k, v), strict=False):
            packed(g, gradient.set_output(True), tuple(like.get_dim()), offsets)
    g.build()
    assert {family_of(step) for step in g.plan.report["steps"]} == wanted
    assert cubins.check_dumped(dump) >= 1


TERMS = (
    "alibi",
    "bias",
    "bias of odd rows",
    "mask",
    "modified",
    "dropout",
    "dropout by a mask",
    "dropout by a mask of odd rows",
)  # separate tiles next to the products
VARIANTS = [(*depths, name) for name in OPTIONS if name not in TERMS for depths in DEPTHS]
VARIANTS += [(size, size, name) for name in TERMS for size in (64, 128, 256)]
VARIANTS += [(192, size, "alibi") for size in (128, 192)]


@pytest.mark.parametrize(("depth", "value_depth", "name"), tiers.of_today(VARIANTS, 6))
def test_forward_variants(depth: int, value_depth: int, name: str, dump: Path) -> None:
    dtype = ["bf16", "f16"][(depth + len(name)) % 3 == 0]
    assert forward(depth, value_depth, dtype, **OPTIONS[name])[0] == "cuda.attention_hopper"
    assert cubins.check_dumped(dump) >= 1


@pytest.mark.parametrize("name", ["causal", "everything"])
@pytest.mark.parametrize("length", [128, 250])  # several tiles on a multiprocessor, or one for each head
def test_short_variants(length: int, name: str, dump: Path) -> None:
    dims = (16, 256, length, length)
    assert forward(64, 64, dims=dims, **OPTIONS[name])[0] == "cuda.attention_hopper"
    assert cubins.check_dumped(dump) >= 1


@pytest.mark.parametrize("options", [{}, {"stats": True, "sink": True, "max": True}, OPTIONS["padding"]])
def test_long_variants(options: dict[str, Any], dump: Path) -> None:
    """Three consumers; FP8 without statistics, where products sum the weights, and FP8 with two consumers and
    statistics."""
    kinds = ((128, 128, "bf16"), (120, 24, "bf16"), (128, 128, "e4m3"), (128, 64, "e4m3"))
    for *depths, dtype in kinds:
        made = forward(*depths, dtype, dims=(4, 24, 4100, 4200), out="bf16", **options)
        assert made[0] == "cuda.attention_hopper"
    assert cubins.check_dumped(dump) >= 4


SCALES = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
ALL_SCALES: dict[str, Any] = dict.fromkeys(SCALES, ((1, 1, 1, 1), "f32")) | {"amax": True}
FP8_VARIANTS = [(64, 64, "causal"), (128, 128, "causal"), (80, 128, "padding"), (128, 128, "modified")]
FP8_VARIANTS += [(size, size, "everything") for size in (64, 192, 256)] + [(192, 128, "everything")]
FP8_VARIANTS += [(64, 64, "dropout"), (128, 128, "dropout")]
FP8_VARIANTS += [(192, 192, "mask"), (256, 256, "window"), (256, 256, "alibi")]
FP8_VARIANTS += [(256, 256, "bias of odd rows"), (256, 256, "mask")]  # widened


@pytest.mark.parametrize(("depth", "value_depth", "name"), tiers.of_today(FP8_VARIANTS, 2))
def test_forward_variants_of_fp8(depth: int, value_depth: int, name: str, dump: Path) -> None:
    options = OPTIONS[name] | ({"out": "bf16"} if len(name) % 2 else {}) | ALL_SCALES
    if name == "dropout":
        del options["amax"]
    dtype, q_type = [("e4m3", "e5m2"), ("e5m2", "e4m3")][depth // 64 % 2]
    assert forward(depth, value_depth, dtype, q_type=q_type, **options)[0] == "cuda.attention_hopper"
    assert cubins.check_dumped(dump) >= 1


BIAS = {"bias": ((1, 4, 2000, 2000), "bf16")}


@pytest.mark.parametrize(
    ("depth", "is_deterministic", "options"),
    [
        (64, False, BIAS),
        (128, False, BIAS),
        (128, True, BIAS),
        (64, False, {"score_mod": soft_cap, "use_alibi_mask": True, **BIAS}),
        (128, False, {"score_mod": soft_cap, "use_alibi_mask": True, **BIAS}),
        (64, True, {"score_mod": soft_cap, "use_alibi_mask": True}),
        (128, True, {"score_mod": soft_cap, **BIAS}),
        (64, False, {"use_causal_mask": True, "block_mask": ((1, 4, 16, 2), "u8")}),
        (128, False, {"block_mask": ((2, 1, 16, 16), "i8")}),
        (128, True, {"use_alibi_mask": True, "block_mask": ((2, 4, 16, 16), "i8")}),
        (192, True, {"score_mod": soft_cap, "use_causal_mask": True, **BIAS}),
        (256, True, {"use_alibi_mask": True, "use_causal_mask": True, **BIAS}),
        (256, False, {"block_mask": ((2, 4, 16, 16), "i8")}),
    ],
)
def test_backward_terms(
    depth: int,
    is_deterministic: bool,
    options: dict[str, Any],
    dump: Path,
) -> None:
    suffix = "" if is_deterministic or depth > 128 else " unordered"
    assert backward(depth, "bf16", is_deterministic, **options) == [f"cuda.attention_hopper{suffix}"]
    assert cubins.check_dumped(dump) >= 1


@pytest.mark.parametrize(
    ("depth", "is_deterministic", "options"),
    [
        (64, False, {"lengths": True}),
        (80, False, {}),
        (128, False, {**CAUSAL, "lengths": True}),
        (128, False, {**CAUSAL, "diagonal_band_left_bound": 9, "use_alibi_mask": True}),
        (128, True, CAUSAL),
        (256, True, {"lengths": True}),
        (128, False, {**CAUSAL, "key_heads": 1}),
        (64, True, {**CAUSAL, "key_heads": 1, "lengths": True}),
    ],
)
def test_gradients_of_fp8(
    depth: int,
    is_deterministic: bool,
    options: dict[str, Any],
    dump: Path,
) -> None:
    suffix = "" if is_deterministic or depth == 256 else " unordered"
    assert fp8_backward(depth, is_deterministic, **options)[0] == f"cuda.attention_hopper{suffix}"
    assert cubins.check_dumped(dump) >= 1


@pytest.mark.parametrize(
    ("depth", "value_depth", "options"),
    [
        (64, 64, {"diagonal_band_right_bound": 0}),
        (128, 128, {"lengths": True}),
        (192, 128, {"diagonal_band_left_bound": 100}),
        (192, 192, {"use_alibi_mask": True}),
    ],
)
def test_gradients_of_mxfp8(depth: int, value_depth: int, options: dict[str, Any], dump: Path) -> None:
    assert mxfp8_backward(depth, value_depth, **options)[0] == "cuda.attention_hopper"
    assert cubins.check_dumped(dump) >= 3


def test_parts_of_a_soft_cap(dump: Path) -> None:
    """Many query heads share one key head: dK and dV are sums of parts, and the parts of dV have no scale."""
    g = weft.Graph(io_data_type="bf16", device_property=DeviceProperties(H200))
    q, k = g.tensor([1, 8, 300, 64]), g.tensor([1, 1, 300, 64])
    stats = g.tensor([1, 8, 300, 1], data_type="f32")
    g.sdpa_backward(q, k, k, q, q, stats, score_mod=soft_cap, attn_scale=0.1)
    g.build()
    (step,) = g.plan.report["steps"]
    assert family_of(step) == "cuda.attention_hopper unordered"
    assert any("sums" in path.name for path in dump.iterdir())
    assert cubins.check_dumped(dump) >= 1
