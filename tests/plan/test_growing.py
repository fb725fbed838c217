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
    """x sigmoid(x) reads x twice: fusing only one of its operations would leave two results to store."""
    g = graph(intermediate, device)
    end(g, conv(g, channels)).set_output(True)
    assert families(g) == [f"cuda.{family}"]


def test_graph_outputs_with_other_readers_are_stored() -> None:
    """Then the convolution must store its own result, and fusing its readers does not help im2col products. A
    family that stores two results is more expensive than these, but cheaper than these and another pass over
    memory."""
    g = graph("bf16", "sm_90")
    y = conv(g, 64).set_output(True)
    assert families(g) == ["cuda.patch_sm90"]
    g = graph("bf16", "sm_90")
    y = conv(g, 64).set_output(True)
    silu(g, y).set_output(True)
    assert families(g) == ["cuda.hopper"]


@pytest.mark.parametrize("intermediate", ["bf16", "f32"])
def test_epilogue_operand_producers_are_fused(intermediate: str) -> None:
    """The gradient through relu reads a tensor computed from x. If its producers are fused, the im2col
    product reads only one tensor, which has the layout of the result."""
    g = graph(intermediate, "sm_90")
    of_channels = g.tensor((1, 64, 1, 1), (64, 1, 64, 64))
    x = g.tensor((8, 64, 28, 28), (64 * 784, 1, 64 * 28, 64))
    dy, w = g.tensor(x.dims, x.strides), g.tensor((64, 64, 3, 3), (576, 1, 192, 64))
    dx = g.conv_dgrad(dy, w, padding=[1, 1]).set_dim(list(x.dims)).set_stride(list(x.strides))
    normal = g.add(g.mul(g.sub(x, of_channels), of_channels), of_channels)
    g.relu_backward(dx, normal).set_output(True).set_data_type("bf16")
    assert families(g) == ["cuda.patch_sm90"]


@pytest.mark.parametrize("intermediate", ["bf16", "f32"])
def test_prologues_and_epilogues_of_a_product_are_fused(intermediate: str) -> None:
    g = graph(intermediate, "sm_90")
    of_channels = g.tensor((1, 64, 1, 1), (64, 1, 64, 64))
    x, w = g.tensor((8, 64, 28, 28), (64 * 784, 1, 64 * 28, 64)), g.tensor((64, 64, 3, 3), (576, 1, 192, 64))
    before = g.relu(g.add(g.mul(x, of_channels), of_channels)).set_data_type("bf16")
    g.relu(g.add(g.conv_fprop(before, w, padding=[1, 1]), of_channels)).set_output(True).set_data_type("bf16")
    assert families(g) == ["cuda.patch_sm90"]


@pytest.mark.parametrize("device", ["sm_75", "sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_a_norms_gradient_takes_in_a_long_sum(dtype: str, device: str) -> None:
    for count in range(2, 13):
        wide = "f64" if dtype == "f64" else "f32"
        g = weft.Graph(io_data_type=dtype, intermediate_data_type=wide, device=device)
        total, *others = [g.tensor((4096, 1024)) for _ in range(count)]
        for each in others:
            total = g.add(total, each)
        mean, inverse = (g.tensor((4096, 1)) for _ in range(2))
        for each in g.layernorm_backward(total, g.tensor((4096, 1024)), g.tensor((1, 1024)), mean, inverse):
            each.set_output(True)
        assert families(g)[-1] == "cuda.rows"
