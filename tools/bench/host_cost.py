"""What one execution costs on the host, from C and from Python: relu on four floats, so that the call is what
counts. Builds host_cost.c against this tree's header and library; the best of several rounds is printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "bindings")]
ROUNDS, CALLS = 20, 5000


def cost(call: Callable[[], object]) -> float:
    """Nanoseconds per call."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter_ns() - start) / CALLS)
    return best


def cost_in_c(plan: bytes, folder: Path, library: Path) -> float:
    """Nanoseconds per call of weftExecute, from a C program."""
    (folder / "plan").write_bytes(plan)
    source, program = ROOT / "tools/bench/host_cost.c", folder / "host_cost"
    compiler = [os.environ.get("CC", "cc"), "-O2", "-std=c99", f"-I{ROOT}/include"]
    subprocess.run([*compiler, source, "-o", program, library, f"-Wl,-rpath,{library.parent}"], check=True)
    done = subprocess.run([program, folder / "plan"], check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    """Prints the costs."""
    import numpy as np
    import weft

    with weft.Graph(io_data_type="f32", handle=weft.create_handle("cpu")) as g:
        x = g.tensor([4], name="x")
        y = g.relu(x).set_name("y").set_output(True)
    given, made = np.ones(4, np.float32), np.ones(4, np.float32)
    pack = {x: given, y: made}
    library = Path(os.environ.get("WEFT_LIBRARY", ROOT / "python/weft/lib/libweft.so.1"))
    with tempfile.TemporaryDirectory() as folder:
        in_c = cost_in_c(g.serialize(), Path(folder), library)
    rows = {
        "C       weftExecute(plan, ...)": in_c,
        "Python  graph.execute({x: ..., y: ...})": cost(lambda: g.execute(pack)),
        "Python  plan(x=..., out={'y': ...})": cost(lambda: g.plan(x=given, out={"y": made})),
    }
    for what, nanoseconds in rows.items():
        print(f"{what:<42}{nanoseconds / 1e3:7.2f} µs")


if __name__ == "__main__":
    main()
