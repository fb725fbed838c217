"""A graph defined by hand: normalization, a gated layer and a residual connection, which Weft runs with few
kernels. samples/c/conv_bias_relu.c shows the same in C, samples/cpp/conv_bias_relu.cpp in C++.

    python examples/graph.py [cpu]

Needs only NumPy. Without an argument the graph runs on the first GPU, if there is one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import weft
from numpy.typing import NDArray

Array = NDArray[Any]


def draw(rows: int, width: int, hidden: int, device: str | None) -> weft.Graph:
    """y = x + (swish(n gate) * (n up)) down, where n is x normalized."""
    with weft.Graph("gated layer", io_data_type="f32", device=device) as g:
        x, scale = g.tensor([rows, width], name="x"), g.tensor([1, width], name="scale")
        gate, up = (g.tensor([width, hidden], name=name) for name in ("gate", "up"))
        down = g.tensor([hidden, width], name="down")
        n, _ = g.rmsnorm(weft.norm_forward_phase.INFERENCE, x, scale, epsilon=1e-6, name="norm")
        wide = g.mul(g.swish(g.matmul(n, gate)), g.matmul(n, up), name="gated")
        g.add(x, g.matmul(wide, down), name="y")
    return g


def expected(arrays: dict[str, Array]) -> Array:
    """The same computation in NumPy, in double precision."""
    x, scale, gate, up, down = (array.astype(np.float64) for array in arrays.values())
    n = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * scale
    a = n @ gate
    return x + (a / (1 + np.exp(-a)) * (n @ up)) @ down


def main(device: str | None = None, rows: int = 64, width: int = 256, hidden: int = 512) -> float:
    """Returns the largest difference from NumPy."""
    g = draw(rows, width, hidden, device)
    random = np.random.default_rng(5)
    shapes = {"x": (rows, width), "scale": (1, width), "gate": (width, hidden), "up": (width, hidden)}
    shapes["down"] = hidden, width
    arrays = {name: random.standard_normal(shape, np.float32) / 8 for name, shape in shapes.items()}
    y = g.plan(**arrays)
    print(g.explain())  # the steps, their cost, and why other families declined
    with tempfile.TemporaryDirectory() as folder:
        picture, saved = Path(folder, "gated.svg"), Path(folder, "gated.weft")
        g.plot(picture)
        saved.write_bytes(g.serialize())  # save the plan, for another run or for C
        print(f"a picture of {picture.stat().st_size} bytes, a plan of {saved.stat().st_size}")
        again = weft.Graph(device=device).deserialize(saved.read_bytes())
    assert np.array_equal(again.plan(**arrays), y)
    return float(np.abs(y - expected(arrays)).max())


if __name__ == "__main__":
    print(f"differs by {main(*sys.argv[1:]):.1e} from NumPy")
