"""Host cost of operators with PyTorch: eager, under weft.torch.enable(), and as torch.ops.weft; forward only
("fwd"), and with backward ("both"). The tensors are tiny, so that call overhead dominates; nothing waits for
a GPU. With --split also the forward pass that records its gradient ("noted"): the difference between "both"
and it is the backward pass.

    python -m benchmarks.torch_host_cost [--device cpu] [--only softmax sdpa] [--split] [--csv FILE]
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import weft.torch

F = torch.nn.functional
ROUNDS, CALLS = 8, 100  # a round is short enough that a GPU's queue never fills


class Way(NamedTuple):
    """An operator as called by torch, and Weft's own."""

    torchs: Callable[[], Any]
    own: Callable[[], Any]


def rows(grad: bool) -> dict[str, Way]:
    """Operators on rows of a matrix, and matrix products."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape).requires_grad_(grad)

    weft_ops = torch.ops.weft
    x, w, b = normal(2, 8), normal(8, 8), normal(8)
    q, k, v, labels = normal(1, 1, 2, 8), normal(1, 1, 2, 8), normal(1, 1, 2, 8), torch.tensor([0, 1])
    return {
        "softmax": Way(lambda: torch.softmax(x, 1), lambda: weft_ops.softmax(x, 1, False)),
        "cross_entropy": Way(
            lambda: F.cross_entropy(x, labels), lambda: weft_ops.cross_entropy(x, labels)[0]
        ),
        "linear": Way(lambda: F.linear(x, w, b), lambda: weft_ops.linear(x, w, b)),
        "mm": Way(lambda: torch.mm(x, w), lambda: weft_ops.mm(x, w)),
        "layer_norm": Way(
            lambda: F.layer_norm(x, [8], b, b), lambda: weft_ops.layer_norm(x, [8], b, b, 1e-5)[0]
        ),
        "rms_norm": Way(lambda: F.rms_norm(x, [8], b), lambda: weft_ops.rms_norm(x, [8], b, None)[0]),
        "sdpa": Way(lambda: F.scaled_dot_product_attention(q, k, v), lambda: weft_ops.sdpa(q, k, v)[0]),
    }


def images(grad: bool) -> dict[str, Way]:
    """Operators on images."""
    ops, two = torch.ops.weft, [2, 2]
    x, w, s, b = (torch.randn(n).requires_grad_(grad) for n in ((1, 2, 2, 2), (2, 2, 1, 1), (2,), (2,)))
    running = torch.zeros(2), torch.ones(2)
    conv = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    return {
        "group_norm": Way(
            lambda: F.group_norm(x, 1, s, b), lambda: ops.group_norm(x, s, b, 1, 2, 4, 1, 1e-5)[0]
        ),
        "batch_norm": Way(
            lambda: F.batch_norm(x, *running, s, b, True),
            lambda: ops.batch_norm(x, s, b, *running, True, 0.1, 1e-5)[0],
        ),
        "batch_norm in use": Way(
            lambda: F.batch_norm(x, *running, s, b, False),
            lambda: ops.batch_norm(x, s, b, *running, False, 0.1, 1e-5)[0],
        ),
        "conv": Way(lambda: F.conv2d(x, w, s), lambda: ops.conv(x, w, s, *conv)),
        "max_pool": Way(
            lambda: F.max_pool2d(x, 2), lambda: ops.max_pool(x, two, two, [0, 0], [1, 1], False)[0]
        ),
        "avg_pool": Way(
            lambda: F.avg_pool2d(x, 2), lambda: ops.avg_pool(x, two, two, [0, 0], False, True, None)
        ),
    }


def trained(forward: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """The forward pass followed by its gradients."""
    one = torch.ones_like(forward())
    return lambda: forward().backward(one)


def cost(call: Callable[[], Any], device: str) -> float:
    """Microseconds on the host; the best of some rounds. On the CPU, whose kernels run in the calls, only the
    time of this thread counts."""
    clock, best = time.perf_counter if device == "cuda" else time.thread_time, float("inf")
    for _ in range(ROUNDS):
        if device == "cuda":
            torch.cuda.synchronize()
        start = clock()
        for _ in range(CALLS):
            call()
        best = min(best, (clock() - start) / CALLS * 1e6)
    return best


def measure(way: Way, device: str, prepare: Callable[[Any], Any]) -> list[float]:
    """Eager, under enable(), and Weft's own; the forward pass, or the call that `prepare` returns."""
    torchs, own = prepare(way.torchs), prepare(way.own)
    eager = cost(torchs, device)
    with weft.torch.enable() as enabled:
        under = cost(torchs, device)
    for name, outcomes in enabled.report().items():
        for outcome in outcomes.keys() - {"served"}:
            print(f"{name}: {outcome}")
    return [eager, under, cost(own, device)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    has_gpu = torch.cuda.is_available()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if has_gpu else "cpu")
    parser.add_argument("--only", nargs="*", default=[], help="operators of the table")
    parser.add_argument("--split", action="store_true", help="also the forward pass of training by itself")
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with torch.device(args.device):
        both = [rows(grad) | images(grad) for grad in (False, True)]
    kinds = ["fwd", *(["noted"] if args.split else []), "both"]
    table = [["operator", *(f"{kind} {way}" for kind in kinds for way in ("eager", "under", "own"))]]
    line = "{:18}" + "{:>12}" * 3 * len(kinds)
    print(line.format(*table[0]))
    for name in args.only or both[0]:
        figures = measure(both[0][name], args.device, lambda call: call)
        if args.split:
            figures += measure(both[1][name], args.device, lambda call: call)
        figures += measure(both[1][name], args.device, trained)
        table.append([name, *(f"{each:.1f}" for each in figures)])
        print(line.format(*table[-1]), flush=True)
    if args.csv:
        with args.csv.open("w", newline="") as file:
            csv.writer(file).writerows(table)


if __name__ == "__main__":
    main()
