"""Attention planned for a described H200, one step per graph: the chosen family, and why others decline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft
from weft.devices import DeviceProperties

H200 = '{"kind":"cuda","arch":"sm_90"}'
CAUSAL: dict[str, Any] = {"diagonal_band_right_bound": 0}


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


def backward(depth: int, dtype: str, deterministic: bool, **options: Any) -> list[str]:
    """The families of the plan's steps, and the relaxations that they use."""
    g = weft.Graph(io_data_type=dtype, device_property=DeviceProperties(H200))
    q = g.tensor([2, 4, 2000, depth])
    stats = g.tensor([2, 4, 2000, 1], data_type="f32")
    for name, value in options.items():
        if isinstance(value, tuple):
            options[name] = g.tensor(list(value[0]), data_type=value[1])
    options["use_deterministic_algorithm"] = deterministic
    g.sdpa_backward(q, q, q, q, q, stats, attn_scale=0.1, **options)
    g.build()
    return [family_of(step) for step in g.plan.report["steps"]]


def family_of(step: dict[str, Any]) -> str:
    """The family of a step, followed by the relaxations that it uses."""
    return " ".join([step["family"], *step["relaxations"]])


def served(g: Any, made: Any, types: Sequence[str], largest: dict[str, Any]) -> tuple[str, str]:
    """Returns the family that computes gradients of these types with these maxima, the relaxations that it
    uses, and why others declined."""
    for tensor, type_ in zip(made[:3], types, strict=True):
        tensor.set_output(True).set_data_type(type_)
    for tensor in largest.values():
        tensor.set_output(True)
    g.build()
    (step,) = g.plan.report["steps"]
    return family_of(step), " ".join(each["reason"] for each in step["declined"])


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
