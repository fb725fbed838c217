"""A linear layer with weights of 8 or 4 bits and a scale for each block of inputs. Weights are read in their
stored form and dequantized on the way into the matmul.

    python examples/quantized_weights.py [cuda]
"""

from __future__ import annotations

import sys

import torch
import weft

BLOCK = 64
TYPES = {8: "i8", 4: "i4"}


def quantize(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes a weight [N, K]: codes, with two 4-bit codes per byte, and scales [N, K / BLOCK]."""
    most = 2 ** (bits - 1) - 1
    blocks = weight.float().unflatten(1, (-1, BLOCK))
    scale = blocks.abs().amax(-1) / most
    codes = (blocks / scale[..., None]).round().clamp(-most, most).to(torch.int8).flatten(1)
    if bits == 4:
        codes = (codes[:, ::2] & 15) | (codes[:, 1::2] << 4)
    return codes.contiguous(), scale.to(weight.dtype)


class QuantizedLinear(torch.nn.Module):
    """y = relu(x weight^T + bias) with an integer weight."""

    def __init__(self, linear: torch.nn.Linear, bits: int) -> None:
        super().__init__()
        self.bits, (self.columns, self.depth) = bits, linear.weight.shape
        self.codes, self.scale = quantize(linear.weight.detach(), bits)
        self.bias = linear.bias.detach()
        self.runs: dict[int, weft.Graph] = {}

    def graph(self, x: torch.Tensor) -> weft.Graph:
        """The layer as one graph, which Weft runs with one kernel."""
        depth, columns, blocks = self.depth, self.columns, self.depth // BLOCK
        type_ = TYPES[self.bits]
        with weft.Graph("quantized linear", device=str(x.device)) as g:
            rows = g.tensor(x.shape, data_type=x.dtype, name="x")
            weight = g.tensor([depth, columns], stride=[1, depth], data_type=type_, name="weight")
            scale = g.tensor([blocks, columns], stride=[1, blocks], data_type=x.dtype, name="scale")
            bias = g.tensor([1, columns], data_type=x.dtype, name="bias")
            wide = g.block_scale_dequantize(weight, scale, [BLOCK, 1])
            y = g.relu(g.add(g.matmul(rows, wide), bias), name="y")
            y.set_output(True).set_data_type(x.dtype)
        self.ends = {"x": rows, "weight": weight, "scale": scale, "bias": bias, "y": y}
        return g

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forward pass; one graph is built for each number of rows."""
        rows = len(x)
        if rows not in self.runs:
            self.runs[rows] = self.graph(x)
        g = self.runs[rows]
        y = x.new_empty(rows, self.columns)
        workspace = x.new_empty(max(g.get_workspace_size(), 1), dtype=torch.uint8)
        held = {"x": x, "weight": self.codes, "scale": self.scale, "bias": self.bias, "y": y}
        addresses = {self.ends[name]: value.data_ptr() for name, value in held.items()}
        g.execute(addresses, workspace.data_ptr())
        return y


def main(
    device: str = "cpu", rows: int = 4, depth: int = 1024, columns: int = 1024
) -> dict[int, tuple[float, float]]:
    """For each number of bits, the error relative to torch with the same weights, and relative to exact
    weights."""
    torch.manual_seed(4)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    linear = torch.nn.Linear(depth, columns).to(device, dtype)
    x, errors = torch.randn(rows, depth, device=device, dtype=dtype), {}
    exact = torch.relu(linear(x)).float()
    for bits in TYPES:
        layer = QuantizedLinear(linear, bits)
        y, codes = layer(x).float(), layer.codes
        if bits == 4:
            codes = torch.stack([codes << 4 >> 4, codes >> 4], -1).flatten(1)
        wide = (codes.unflatten(1, (-1, BLOCK)) * layer.scale.float()[..., None]).flatten(1)
        same = torch.relu(x.float() @ wide.T + linear.bias.float())
        errors[bits] = ((y - same).abs().max().item(), ((y - exact).norm() / exact.norm()).item())
        print(f"{bits} bits: {layer.codes.nbytes} bytes of weights, differs by {errors[bits][0]:.1e} from "
              f"torch on the same weights, by {errors[bits][1]:.1%} from the weights before")  # fmt: skip
    print(layer.runs[rows].explain())
    return errors


if __name__ == "__main__":
    main(*sys.argv[1:])
