"""Regions grow over operations that a family takes only together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import weft


def silu(g: weft.Graph, x: Any) -> Any:
    return g.mul(x, g.sigmoid(x))


def silu_of_bias(g: weft.Graph, x: Any) -> Any:
    return silu(g, g.bias(x, g.tensor((1, 1, 1, 1))))


def hard_swish(g: weft.Graph, x: Any) -> Any:
    return g.mul(g.relu(g.bias(x, g.tensor((1, 1, 1, 1))), upper_clip=6.0), x)


def gelu(g: weft.Graph, x: Any) -> Any:
    one, half, root = (g.tensor((1, 1, 1, 1), data_type="f32") for _ in range(3))
    return g.mul(g.mul(x, half), g.add(g.erf(g.mul(x, root)), one))


def families(g: weft.Graph) -> list[str]:
    g.build_operation_graph()
    return g.support()[0]["families"]


def graph(intermediate: str, device: str) -> weft.Graph:
    return weft.Graph(
        io_data_type="bf16", intermediate_data_type=intermediate, compute_data_type="f32", device=device
    )


def conv(g: weft.Graph, channels: int) -> Any:
    """Channels last."""
    x = g.tensor((8, channels, 28, 28), (channels * 784, 1, channels * 28, channels))
    w = g.tensor((64, channels, 3, 3), (channels * 9, 1, channels * 3, channels))
    return g.conv_fprop(x, w, padding=[1, 1])


@pytest.mark.parametrize("end", [silu, silu_of_bias, hard_swish, gelu])
@pytest.mark.parametrize("intermediate", ["bf16", "f32"])
@pytest.mark.parametrize(
    ("device", "channels", "family"),
    [
        ("sm_90", 64, "patch_sm90"),
        ("sm_90", 8, "stem_sm90"),
        ("sm_90", 512, "hopper"),
        ("sm_80", 64, "contraction"),
    ],
)
def test_activations_written_out_are_fused(
    end: Callable[..., Any], intermediate: str, device: str, channels: int, family: str
) -> None:
    """x sigmoid(x) reads x twice: with one of its operations alone there would be two results to store."""
    g = graph(intermediate, device)
    end(g, conv(g, channels)).set_output(True)
    assert families(g) == [f"cuda.{family}"]


def test_what_the_user_sees_too_is_stored() -> None:
    """Then the convolution has a result of its own, and joining its readers is no way out."""
    g = graph("bf16", "sm_90")
    y = conv(g, 64).set_output(True)
    silu(g, y).set_output(True)
    assert families(g) == ["cuda.patch_sm90", "cuda.map"]
