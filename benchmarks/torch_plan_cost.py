"""Host cost of a plan with PyTorch on the CPU: the first call of an operator with a new shape under
weft.torch.enable(), minus the second, in milliseconds of processor time per plan; median of some shapes. The
operators are warmed up with other shapes.

    python -m benchmarks.torch_plan_cost [--only softmax conv]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import weft.torch

F = torch.nn.functional
KNOWN, SHAPES = 2, 25  # number of warm-up shapes, and of all shapes


def calls(n: int) -> dict[str, Callable[[], object]]:
    """Operators on tensors of a size; those with gradients need plans for both passes."""
    x, w, b, g = torch.randn(n, 64), torch.randn(32, 64), torch.randn(32), torch.randn(8)
    image, filters, q = torch.randn(2, 8, n, n), torch.randn(16, 8, 3, 3), torch.randn(1, 2, n, 16)
    labels = torch.zeros(n, dtype=torch.long)
    leaves = {name: t.clone().requires_grad_() for name, t in (("x", x), ("image", image), ("q", q))}
    xg, ig, qg = leaves.values()
    return {
        "softmax": lambda: torch.softmax(x, 1),
        "mm": lambda: x @ w.t(),
        "linear": lambda: F.linear(x, w, b),
        "layer_norm": lambda: F.layer_norm(x, [64]),
        "rms_norm": lambda: F.rms_norm(x, [64]),
        "group_norm": lambda: F.group_norm(image, 2, g, g),
        "batch_norm": lambda: F.batch_norm(image, None, None, g, g, True),
        "conv": lambda: F.conv2d(image, filters),
        "max_pool": lambda: F.max_pool2d(image, 2),
        "avg_pool": lambda: F.avg_pool2d(image, 2),
        "sdpa": lambda: F.scaled_dot_product_attention(q, q, q),
        "cross_entropy": lambda: F.cross_entropy(x, labels),
        "layer_norm, both": lambda: F.layer_norm(xg, [64]).sum().backward(),
        "conv, both": lambda: F.conv2d(ig, filters).sum().backward(),
        "batch_norm, both": lambda: F.batch_norm(ig, None, None, g, g, True).sum().backward(),
        "sdpa, both": lambda: F.scaled_dot_product_attention(qg, qg, qg).sum().backward(),
        "cross_entropy, both": lambda: F.cross_entropy(xg, labels).backward(),
    }


def cost(name: str) -> float:
    """Milliseconds per plan."""
    results = []
    for n in range(9, 9 + SHAPES):
        call, before = calls(n)[name], weft.torch.cache_info()["misses"]
        clocks = [time.process_time()]
        for _ in range(2):
            call()
            clocks.append(time.process_time())
        first, second = clocks[1] - clocks[0], clocks[2] - clocks[1]
        results.append((first - second) * 1e3 / max(weft.torch.cache_info()["misses"] - before, 1))
    return statistics.median(results[KNOWN:])


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="operators of the table")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with weft.torch.enable():
        for name in args.only or calls(9):
            weft.torch.clear_cache()
            print(f"{name:20}{cost(name):8.2f}", flush=True)


if __name__ == "__main__":
    main()
