"""Host cost of one execution from C and from Python: relu on four floats, so that call overhead dominates.
Builds host_cost.c with this tree's header and library; prints the best of several rounds.

    python -m benchmarks.host_cost                  on the first GPU, otherwise on the CPU
    python -m benchmarks.host_cost --device cpu --csv FILE    on the CPU, also as a table
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ROUNDS, CALLS = 200, 500  # a round is short enough that a GPU's queue never fills


def cost(call: Callable[[], object], wait: Callable[[], object]) -> float:
    """Nanoseconds per call; `wait` runs between two rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter_ns() - start) / CALLS)
        wait()
    return best


def cost_in_c(plan: bytes, folder: Path, library: Path, device: str) -> float:
    """Nanoseconds per call of weftExecute, from a C program."""
    (folder / "plan").write_bytes(plan)
    source, program = ROOT / "benchmarks/host_cost.c", folder / "host_cost"
    compiler = [os.environ.get("CC", "cc"), "-O2", "-std=c99", f"-I{ROOT}/include"]
    subprocess.run([*compiler, source, "-o", program, library, f"-Wl,-rpath,{library.parent}"], check=True)
    environment = os.environ | {"WEFT_DEVICE": device, "LD_LIBRARY_PATH": str(library.parent)}
    line = [program, folder / "plan"]
    return float(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)


def arrays(handle: Any) -> Iterator[tuple[str, Any, Any]]:
    """The kinds of arrays, with memory for input and output: first without torch in the process, then torch's
    if it is installed."""
    import numpy as np
    import weft

    on_gpu = handle.device is weft.device_kind.CUDA
    if on_gpu:
        yield "DeviceArray", weft.DeviceArray([4], handle=handle), weft.DeviceArray([4], handle=handle)
    else:
        yield "NumPy", np.ones(4, np.float32), np.ones(4, np.float32)
    try:
        import torch
    except ImportError:
        return
    location = f"cuda:{handle.ordinal}" if on_gpu else "cpu"
    yield "torch", torch.ones(4, device=location), torch.ones(4, device=location)


def measure(handle: Any) -> dict[str, float]:
    """Nanoseconds by kind of call."""
    import weft
    from weft import backend

    with weft.Graph(io_data_type="f32", handle=handle) as g:
        x = g.tensor([4], name="x")
        y = g.relu(x).set_name("y").set_output(True)
    library = Path(os.environ.get("WEFT_LIBRARY", ROOT / "python/weft/lib/libweft.so.1"))
    with tempfile.TemporaryDirectory() as folder:
        rows = {"C: weftExecute": cost_in_c(g.serialize(), Path(folder), library, handle.device.name.lower())}

    def wait() -> None:
        backend.synchronize(handle, 0)

    for kind, args, made in arrays(handle):
        run = g.plan.bind(x=args, out={"y": made})
        pack: dict[Any, Any] = {x: args, y: made}
        rows[f"Python, {kind}: run = plan.bind(...); run()"] = cost(run, wait)
        rows[f"Python, {kind}: graph.execute({{...}})"] = cost(partial(g.execute, pack), wait)
        rows[f"Python, {kind}: plan(x=..., out=...)"] = cost(partial(g.plan, x=args, out={"y": made}), wait)
        rows[f"Python, {kind}: y = plan(x=...)"] = cost(partial(g.plan, x=args), wait)
    return rows


def main() -> None:
    """Prints the costs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: the first GPU, else the CPU")
    parser.add_argument("--csv", type=Path, help="also write a table")
    args = parser.parse_args()
    import weft

    handle = weft.create_handle(args.device)
    rows = measure(handle)
    for what, nanoseconds in rows.items():
        print(f"{what:<52}{nanoseconds / 1e3:7.2f} µs")
    if args.csv:
        with args.csv.open("w", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["call", "device", "microseconds", "date"])
            device, date = handle.device.name.lower(), datetime.date.today().isoformat()
            table.writerows([what, device, f"{each / 1e3:.2f}", date] for what, each in rows.items())


if __name__ == "__main__":
    main()
