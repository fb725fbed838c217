"""Host cost of execute through weft.cudnn, compared with weft's own: relu on four floats.

python -m benchmarks.cudnn_host_cost [cpu|cuda] [rounds]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import weft
import weft.cudnn as cudnn
from weft import backend

CALLS = 500


def cost(call: Callable[[], object], wait: Callable[[], object], rounds: int) -> float:
    """Microseconds per call, the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter_ns() - start) / CALLS / 1e3)
        wait()
    return best


def arrays(device: str) -> tuple[Any, Any]:
    """Memory for the input and the output."""
    if device == "cuda":
        import torch

        return torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
    import numpy as np

    return np.ones(4, np.float32), np.ones(4, np.float32)


def measure(module: Any, device: str, rounds: int) -> dict[str, float]:
    """Microseconds by way of calling."""
    handle = module.create_handle(device)
    g = module.pygraph(io_data_type=module.data_type.FLOAT, handle=handle)
    x = g.tensor([4], [1])
    y = g.relu(x).set_output(True)
    g.build()
    given, made = arrays(device)
    calls = {
        "execute(tensors)": partial(g.execute, {x: given, y: made}),
        "execute(tensors, None, handle=)": partial(g.execute, {x: given, y: made}, None, handle=handle),
        "execute(uids)": partial(g.execute, {x.get_uid(): given, y.get_uid(): made}),
    }
    return {name: cost(call, lambda: backend.synchronize(handle, 0), rounds) for name, call in calls.items()}


def main() -> None:
    """Prints the costs."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    own, face = (measure(module, device, rounds) for module in (weft, cudnn))
    for name, microseconds in own.items():
        more = face[name] - microseconds
        print(f"{name:<34} weft {microseconds:5.2f} µs, weft.cudnn {face[name]:5.2f} µs: {more:+.2f}")


if __name__ == "__main__":
    main()
