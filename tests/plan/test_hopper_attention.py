"""Every variant of Hopper's attention kernels, compiled for a described GPU: no registers go to memory, the
compiler does not serialise the tensor cores, and sees that warps stay together; and who serves what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cubins
import pytest
import weft
from weft.devices import DeviceProperties

H200 = '{"kind":"cuda","arch":"sm_90"}'
BOTTOM_RIGHT = weft.diagonal_alignment.BOTTOM_RIGHT
DEPTHS = [(64, 64), (40, 24), (64, 72), (128, 128), (80, 80), (96, 96), (192, 128), (192, 192)]
DEPTHS += [(256, 256), (136, 256)]
CAUSAL: dict[str, Any] = {"diagonal_band_right_bound": 0}
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
    "everything": {
        **CAUSAL,
        "diagonal_band_left_bound": 9,
        "lengths": True,
        "stats": True,
        "sink": True,
        "max": True,
    },
}


def soft_cap(g: weft.Graph, s: weft.Tensor) -> weft.Tensor:
    return g.mul(g.tanh(g.mul(s, 1 / 50)), 50.0)


def forward(
    depth: int,
    value_depth: int,
    dtype: str = "bf16",
    dims: tuple[int, ...] = (2, 4, 2000, 2000),
    **options: Any,
) -> tuple[str, str]:
    """The family of the plan's step, and why others declined."""
    g = weft.Graph(
        io_data_type=dtype,
        intermediate_data_type="f32",
        compute_data_type="f32",
        device_property=DeviceProperties(H200),
    )
    batch, heads, rows, columns = dims
    q = g.tensor([batch, heads, rows, depth], data_type=options.pop("q_type", dtype))
    k = g.tensor([batch, heads, columns, depth])
    v = g.tensor([batch, heads, columns, value_depth])
    wanted = 2 if options.pop("stats", False) else 1
    if options.pop("lengths", False):
        for name in ("seq_len_q", "seq_len_kv"):
            options[name] = g.tensor([batch, 1, 1, 1], data_type="i32")
    if options.pop("sink", False):
        options["sink_token"] = g.tensor([1, heads, 1, 1], data_type="f32")
    for name, value in options.items():
        if isinstance(value, tuple):
            options[name] = g.tensor(list(value[0]), data_type=value[1])
    if options.pop("modified", False):
        options |= g._modified_scores("a", {"q": q, "k": k}, soft_cap)
        del options["subgraph_gradients"]
    more = {"score_max": g.tensor(name="max")} if options.pop("max", False) else {}
    if options.pop("amax", False):
        more |= {name: g.tensor(name=name, data_type="f32") for name in ("amax_s", "amax_o")}
    out = options.pop("out", dtype)
    made = g._sdpa_fwd(q, k, v, attn_scale_value=0.1, **options, **more)[:wanted]
    for tensor in (*made, *more.values()):
        tensor.set_output(True)
    made[0].set_data_type(out)
    g.build()
    (step,) = g.plan.report["steps"]
    return step["family"], " ".join(each["reason"] for each in step["declined"])


def packed(g: weft.Graph, tensor: weft.Tensor, dims: tuple[int, ...], offsets: weft.Tensor) -> weft.Tensor:
    """Makes a tensor one of tokens [T, H, D] behind each other."""
    batch, heads, rows, depth = dims
    tensor.set_dim([batch, heads, rows, depth]).set_stride([rows * heads * depth, depth, heads * depth, 1])
    return tensor.set_ragged_offset(offsets).set_ragged_offset_multiplier(heads * depth)


@pytest.mark.parametrize(("depth", "value_depth"), [(64, 64), (128, 128), (192, 128), (256, 256)])
def test_ragged_variants(
    depth: int, value_depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE", "off")
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
    wanted = {"cuda.attention_hopper"} | ({"cuda.attention_hopper_unordered"} if depth <= 128 else set())
    for is_deterministic in False, True:
        made = g._sdpa_bwd(q, k, v, o, d_o, stats, is_deterministic=is_deterministic, **lengths, **CAUSAL)
        for gradient, like in zip(made, (q, k, v), strict=False):
            packed(g, gradient.set_output(True), tuple(like.get_dim()), offsets)
    g.build()
    assert {step["family"] for step in g.plan.report["steps"]} == wanted
    assert cubins.check_dumped(tmp_path) >= 1


TERMS = (
    "alibi",
    "bias",
    "bias of odd rows",
    "mask",
    "modified",
    "dropout",
)  # beside products, in tiles of their own
VARIANTS = [(*depths, name) for name in OPTIONS if name not in TERMS for depths in DEPTHS]
VARIANTS += [(size, size, name) for name in TERMS for size in (64, 128, 256)]
VARIANTS += [(192, size, "alibi") for size in (128, 192)]


@pytest.mark.parametrize(("depth", "value_depth", "name"), VARIANTS)
def test_forward_variants(
    depth: int, value_depth: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE", "off")
    dtype = ["bf16", "f16"][(depth + len(name)) % 3 == 0]
    assert forward(depth, value_depth, dtype, **OPTIONS[name])[0] == "cuda.attention_hopper"
    assert cubins.check_dumped(tmp_path) >= 1


@pytest.mark.parametrize("name", ["causal", "everything"])
@pytest.mark.parametrize("length", [128, 250])  # several tiles on a multiprocessor, or one for each head
def test_short_variants(length: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE", "off")
    dims = (16, 256, length, length)
    assert forward(64, 64, dims=dims, **OPTIONS[name])[0] == "cuda.attention_hopper"
    assert cubins.check_dumped(tmp_path) >= 1


@pytest.mark.parametrize("options", [{}, {"stats": True, "sink": True, "max": True}])
def test_long_variants(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE", "off")
    for depths in (128, 128), (120, 24):
        assert forward(*depths, dims=(4, 24, 4100, 4200), **options)[0] == "cuda.attention_hopper"
    assert cubins.check_dumped(tmp_path) >= 2


SCALES = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
ALL_SCALES: dict[str, Any] = dict.fromkeys(SCALES, ((1, 1, 1, 1), "f32")) | {"amax": True}
FP8_VARIANTS = [(64, 64, "causal"), (128, 128, "causal"), (80, 128, "padding"), (128, 128, "modified")]
FP8_VARIANTS += [(size, size, "everything") for size in (64, 192, 256)] + [(192, 128, "everything")]
FP8_VARIANTS += [(64, 64, "dropout"), (128, 128, "dropout")]
FP8_VARIANTS += [(192, 192, "mask"), (256, 256, "window"), (256, 256, "alibi")]
FP8_VARIANTS += [(256, 256, "bias of odd rows"), (256, 256, "mask")]  # widened


@pytest.mark.parametrize(("depth", "value_depth", "name"), FP8_VARIANTS)
def test_forward_variants_of_fp8(
    depth: int, value_depth: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE", "off")
    options = OPTIONS[name] | ({"out": "bf16"} if len(name) % 2 else {}) | ALL_SCALES
    if name == "dropout":
        del options["amax"]
    dtype, q_type = [("e4m3", "e5m2"), ("e5m2", "e4m3")][depth // 64 % 2]
    assert forward(depth, value_depth, dtype, q_type=q_type, **options)[0] == "cuda.attention_hopper"
    assert cubins.check_dumped(tmp_path) >= 1


def test_a_new_length_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE", "off")
    for dims in (1, 1, 70, 70), (2, 6, 2000, 100), (3, 1, 65, 1000), (8, 40, 8192, 8192):
        assert forward(112, 112, dims=dims, **CAUSAL)[0] == "cuda.attention_hopper"  # depths of no other test
    programs = {path.name for path in tmp_path.iterdir() if "counter" not in path.name}
    assert len(programs) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rng_dump": ((2, 4, 2000, 2000), "f32")}, "dumps no dropout mask"),
        ({"q_type": "f16"}, "has data type bf16, q f16; here all are f16 or all bf16"),
        ({"descale_q": ((1, 1, 1, 1), "f32")}, "multiplies FP8 alone by scales"),
        ({"dtype": "e4m3", "descale_k": ((1, 1, 2000, 1), "f32")}, "has a scale of a head, not of a row"),
        ({"dtype": "e4m3", "out": "f32"}, "o has data type f32; of FP8 it is FP8, f16 or bf16 here"),
        ({"dtype": "e4m3", "depth": 72}, "does not have rows side by side in memory of whole 16 bytes"),
        ({"depth": 264}, "heads of up to 256"),
    ],
)
def test_what_forward_declines(options: dict[str, Any], sentence: str) -> None:
    family, reasons = forward(options.pop("depth", 64), options.pop("value_depth", 64), **options)
    assert family == "cuda.attention"
    assert sentence in reasons


def test_few_queries_are_decoding() -> None:
    assert forward(64, 64, dims=(1, 1, 16, 2000))[0] == "cuda.attention_decode"


def backward(depth: int, dtype: str, deterministic: bool, **options: Any) -> list[str]:
    """The families of the plan's steps."""
    g = weft.Graph(io_data_type=dtype, device_property=DeviceProperties(H200))
    q = g.tensor([2, 4, 2000, depth])
    stats = g.tensor([2, 4, 2000, 1], data_type="f32")
    for name, value in options.items():
        if isinstance(value, tuple):
            options[name] = g.tensor(list(value[0]), data_type=value[1])
    options["use_deterministic_algorithm"] = deterministic
    g.sdpa_backward(q, q, q, q, q, stats, attn_scale=0.1, **options)
    g.build()
    return [step["family"] for step in g.plan.report["steps"]]


BIAS = {"bias": ((1, 4, 2000, 2000), "bf16")}


@pytest.mark.parametrize(
    ("depth", "is_deterministic", "options"),
    [
        (64, False, BIAS),
        (128, False, BIAS),
        (128, True, BIAS),
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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE", "off")
    suffix = "" if is_deterministic or depth > 128 else "_unordered"
    assert backward(depth, "bf16", is_deterministic, **options) == [f"cuda.attention_hopper{suffix}"]
    assert cubins.check_dumped(tmp_path) >= 1


def served(g: Any, made: Any, types: Sequence[str], largest: dict[str, Any]) -> tuple[str, str]:
    """The family of gradients of these types beside their largest numbers, and why others declined."""
    for tensor, type_ in zip(made[:3], types, strict=True):
        tensor.set_output(True).set_data_type(type_)
    for tensor in largest.values():
        tensor.set_output(True)
    g.build()
    (step,) = g.plan.report["steps"]
    return step["family"], " ".join(each["reason"] for each in step["declined"])


def fp8_backward(depth: int, deterministic: bool = False, **options: Any) -> tuple[str, str]:
    """The family of the plan's step, and why others declined."""
    g = weft.Graph(device_property=DeviceProperties(H200))
    types = {"q": "e4m3", "k": "e4m3", "v": "e4m3", "o": "e4m3", "dO": "e5m2"} | options.pop("types", {})
    key_heads = options.pop("key_heads", 4)
    tensors = {
        name: g.tensor([2, key_heads if name in "kv" else 4, 2000, depth], data_type=dtype)
        for name, dtype in types.items()
    }
    tensors["stats"] = g.tensor([2, 4, 2000, 1], data_type="f32")
    for name in {"descale_q", "descale_dO", "scale_s", "scale_dP", "scale_dK"} - options.pop("lacks", set()):
        tensors[name] = g.tensor([1, 1, 1, 1], data_type="f32")
    if options.pop("lengths", False):
        tensors |= {f"seq_len_{name}": g.tensor([2, 1, 1, 1], data_type="i32") for name in ("q", "kv")}
    for name, value in options.items():
        if isinstance(value, tuple):
            options[name] = g.tensor(list(value[0]), data_type=value[1])
    largest = {name: g.tensor(name=name, data_type="f32") for name in ("amax_dQ", "amax_dV", "amax_dP")}
    options |= {"attn_scale_value": 0.1, "is_deterministic": deterministic}
    made = g._sdpa_bwd(**tensors, **options, **largest)
    return served(g, made, ("e4m3", "e5m2", "bf16"), largest)


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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE", "off")
    suffix = "" if is_deterministic or depth in (64, 256) else "_unordered"
    assert fp8_backward(depth, is_deterministic, **options)[0] == f"cuda.attention_hopper{suffix}"
    assert cubins.check_dumped(tmp_path) >= 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"depth": 72}, "does not have rows side by side in memory of whole 16 bytes"),
        ({"types": {"k": "bf16"}}, "has scales where q, k, v and dO are FP8"),
        ({"lacks": {"scale_dP"}}, "makes factors of FP8 with scale_s and scale_dP alone"),
        ({"descale_v": ((2, 4, 1, 1), "f32")}, "has one scale of an operand, or those of all blocks"),
        ({"bias": ((1, 4, 2000, 2000), "bf16")}, "a bias, a score modifier and dropout take more registers"),
    ],
)
def test_what_gradients_of_fp8_decline(options: dict[str, Any], sentence: str) -> None:
    family, reasons = fp8_backward(options.pop("depth", 64), **options)
    assert family == "cuda.attention"
    assert sentence in reasons


def mxfp8_backward(depth: int, value_depth: int, out: str = "bf16", **options: Any) -> tuple[str, str]:
    """The family of the plan's step, and why others declined: operands with scales of blocks of 32."""
    g = weft.Graph(device_property=DeviceProperties(H200))
    q, v = [2, 4, 1984, depth], [2, 4, 1984, value_depth]
    tensors = {}
    for name, dims, axis in (
        ("q", q, 3), ("k", q, 3), ("v", v, 3), ("dO", v, 3), ("q_T", q, 2), ("k_T", q, 2), ("dO_T", v, 2)
    ):  # fmt: skip
        blocks = [-(-n // 32) if i == axis else n for i, n in enumerate(dims)]
        tensors[name] = g.tensor(dims, data_type="e4m3")
        tensors[f"descale_{name}"] = g.tensor(blocks, data_type="e8m0")
    tensors |= {name: g.tensor(v, data_type="bf16") for name in ("o", "dO_f16")}
    tensors["stats"] = g.tensor([2, 4, 1984, 1], data_type="f32")
    if options.pop("lengths", False):
        tensors |= {f"seq_len_{name}": g.tensor([2, 1, 1, 1], data_type="i32") for name in ("q", "kv")}
    largest = {name: g.tensor(name=name, data_type="f32") for name in ("amax_dQ", "amax_dK", "amax_dV")}
    made = g._sdpa_bwd(**tensors, **options, **largest, attn_scale_value=0.1)
    return served(g, made, (out, out, out), largest)


@pytest.mark.parametrize(
    ("depth", "value_depth", "options"),
    [
        (64, 64, {"diagonal_band_right_bound": 0}),
        (128, 128, {"lengths": True}),
        (192, 128, {"diagonal_band_left_bound": 100}),
        (192, 192, {"use_alibi_mask": True}),
    ],
)
def test_gradients_of_mxfp8(
    depth: int, value_depth: int, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE", "off")
    assert mxfp8_backward(depth, value_depth, **options)[0] == "cuda.attention_hopper"
    assert cubins.check_dumped(tmp_path) >= 3


def test_what_gradients_of_mxfp8_decline() -> None:
    family, reasons = mxfp8_backward(64, 64, "f32")
    assert family == "cuda.attention"
    assert "of scales of blocks makes results of 16 bits or less" in reasons
    assert "heads of 256 and 64 columns are more than" in mxfp8_backward(256, 64)[1]
