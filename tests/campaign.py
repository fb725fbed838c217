# SPDX-License-Identifier: Apache-2.0
"""Random cases of every kernel family at sizes that reach every code path, on a GPU, against float64.

    python tests/campaign.py --first 0 --seconds 500          # cases 0, 1, 2, ... until the time is up
    python tests/campaign.py --first 3 --step 12 --seconds 9  # cases 3, 15, 27, ...: one of 12 processes
    python tests/campaign.py 1234                             # one case, with its plan
    python tests/campaign.py --work 2e6 1234                  # the same family with smaller sizes
    python tests/emulated_gpu.py python tests/campaign.py --work 2e6 --seconds 60    # on the emulated GPU

tests/campaign_cases.py draws the cases: a number and the amount of work determine a case. Outputs, gaps
between strided rows, the bytes around each buffer and the workspace hold 0xFF before each run (NaN in every
float type). A case is wrong if an output differs from the reference, if a second run differs from the first
by a bit, or if memory that belongs to no output changed. Cases that were wrong once are kept in
tests/campaign_seeds.txt.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("WEFT_DEVICE", "cuda")

import numpy as np
import poison
import torch
import weft
from campaign_cases import DEVICE, TYPES, Case, draw

LOST = "the GPU is lost to this process: "
IS_EMULATED = DEVICE == "cpu"
WORK = 2e6 if IS_EMULATED else 5e9  # multiply-adds of the largest cases


class Buffer:
    """Memory of the GPU for one strided tensor, poisoned everywhere but in its elements."""

    def __init__(self, dims: tuple[int, ...], strides: tuple[int, ...], dtype: str, shift: int) -> None:
        self.dims, self.strides, self.type = dims, strides, TYPES[dtype]
        span = 1 + sum((n - 1) * s for n, s in zip(dims, strides, strict=True))
        self.first = poison.FENCE // self.type.itemsize + shift
        self.count = self.first + span + poison.FENCE // self.type.itemsize
        self.host = torch.empty(0)
        self.fill()

    def elements(self, memory: torch.Tensor) -> torch.Tensor:
        """The tensor inside its memory."""
        return memory.view(self.type).as_strided(self.dims, self.strides, self.first)

    def fill(self, values: torch.Tensor | None = None) -> None:
        """Poisons the memory, then writes the tensor's elements if values are given."""
        self.host = poison.in_torch(self.count * self.type.itemsize, DEVICE)
        if values is not None:
            self.elements(self.host).copy_(values)
        if IS_EMULATED:
            self.device = weft.DeviceArray(self.host.shape, "u8").copy_from(self.host.numpy())

    @property
    def address(self) -> int:
        """Where the tensor's first element is on the GPU."""
        start = self.device.__cuda_array_interface__["data"][0] if IS_EMULATED else self.host.data_ptr()
        return int(start) + self.first * self.type.itemsize

    def bytes(self) -> torch.Tensor:
        """Returns the current contents of the memory."""
        return torch.from_numpy(np.array(self.device.numpy())) if IS_EMULATED else self.host.clone()

    def outside(self, memory: torch.Tensor) -> bool:
        """True if all bytes that belong to no element still hold the poison."""
        memory = memory.clone()
        self.elements(memory).view(torch.uint8 if self.type.itemsize == 1 else self.type).fill_(0)
        mask = torch.full_like(memory, poison.BYTE)
        self.elements(mask).fill_(0)
        return bool((memory == mask).all())


def difference(got: torch.Tensor, want: torch.Tensor, tolerance: float, floor: float) -> str:
    """Describes the difference if results are wrong. The error may reach the floor, and the tolerance times
    the size of the element and of its row."""
    got = got.to(torch.float64)
    is_special = ~torch.isfinite(want)
    same = (got == want) | (torch.isnan(got) & torch.isnan(want))
    rows = want.masked_fill(is_special, 0)
    size = rows.square().mean().sqrt() + (rows.square().mean(-1, keepdim=True).sqrt() if want.dim() else 0)
    wrong = torch.where(
        is_special, ~same, ~((got - want).abs() <= tolerance * (rows.abs() + size) + floor + 1e-30)
    )
    count = int(wrong.sum())
    if not count:
        return ""
    at = wrong.nonzero()[0].tolist()
    unwritten = int(torch.isnan(got[wrong]).sum())
    return (
        f"{count} of {want.numel()} elements are wrong ({unwritten} NaN), first at {at}: "
        f"expected {float(want[tuple(at)]):.6g}, got {float(got[tuple(at)]):.6g}"
    )


def run(case: Case) -> tuple[list[str], str]:
    """Runs a case twice. Returns the error, and the steps of its plan."""
    weft_graph = case.build()
    steps = "; ".join(f"{step['family']}: {step['detail']}" for step in weft_graph.plan.report["steps"])
    memory = {}
    for operand in case.operands:
        memory[operand.tensor] = Buffer(operand.dims, operand.strides, operand.dtype, operand.shift)
        memory[operand.tensor].fill(operand.values)
    before = {tensor: buffer.bytes() for tensor, buffer in memory.items()}
    for result in case.results:
        strides = tuple(result.tensor.get_stride())
        memory[result.tensor] = Buffer(result.dims, strides, result.dtype, result.shift)
    size = weft_graph.get_workspace_size()
    found: list[str] = []
    runs = []
    for _ in range(2):
        workspace = Buffer((max(size, 1),), (1,), "u8", 0)
        for result in case.results:
            memory[result.tensor].fill()
        weft_graph.execute({tensor: buffer.address for tensor, buffer in memory.items()}, workspace.address)
        weft.backend.synchronize(weft_graph.plan.handle, 0)
        runs.append({result.tensor: memory[result.tensor].bytes() for result in case.results})
        if not workspace.outside(workspace.bytes()):
            found.append("memory outside the workspace was written")
    for result in case.results:
        buffer, first = memory[result.tensor], runs[0][result.tensor]
        text = difference(buffer.elements(first), result.want, result.tolerance, result.floor)
        if text:
            found.append(f"{result.name}: {text}")
        elif not torch.equal(first, runs[1][result.tensor]):
            found.append(f"{result.name}: a second run gives other bits")
        if not buffer.outside(first):
            found.append(f"{result.name}: memory outside the tensor was written")
    for operand in case.operands:
        if not torch.equal(before[operand.tensor], memory[operand.tensor].bytes()):
            found.append(f"an input of {list(operand.dims)} was changed")
    return found, steps


def check(number: int, work: float, family: str = "") -> tuple[str, str, str]:
    """Draws and runs one case. Returns its error, its description and its plan."""
    case = None
    try:
        case = draw(number, work, family)
        found, steps = run(case)
    except weft.NotSupportedError as error:
        # An engine other than the default may decline when it detects that a pointer is not aligned.
        is_wrong = case is None or case.is_default
        return f"raised {short(error)}" if is_wrong else "", str(case), "declined"
    except weft.WeftError as error:
        return f"{LOST if isinstance(error, weft.ExecutionError) else ''}raised {short(error)}", str(case), ""
    except torch.OutOfMemoryError:
        return "", f"no memory for {case}", ""
    return "; ".join(found), str(case), steps


def short(error: Exception) -> str:
    """Returns the beginning of an error on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def main() -> int:
    """Runs the cases. Returns 1 if one is wrong, 3 if another process must run those that are left."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("numbers", type=int, nargs="*", help="cases to run with their plans printed")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--step", type=int, default=1, help="distance between the numbers of two cases")
    parser.add_argument("--count", type=int, default=1 << 60, help="number of cases")
    parser.add_argument("--seconds", type=float, default=60, help="no case starts later than this")
    parser.add_argument("--work", type=float, default=WORK, help="multiply-adds of the largest cases")
    parser.add_argument("--family", default="", help="only cases of this family")
    args = parser.parse_args()
    faulthandler.enable()
    wrong, families, number, text = 0, Counter[str](), args.first, ""
    start = time.monotonic()
    for number in args.numbers:
        text, case, steps = check(number, args.work, args.family)
        wrong += bool(text)
        print(f"{number} {case}\n    {steps}\n    {text or 'right'}", flush=True)
    if args.numbers:
        return 1 if wrong else 0
    for _ in range(args.count):
        if time.monotonic() - start > args.seconds:
            break
        print(f"case {number}", flush=True)  # if the process is killed, the last printed case caused it
        text, case, steps = check(number, args.work, args.family)
        families[case.split(" ", 1)[0]] += 1
        if text:
            wrong += 1
            print(f"WRONG {number} {case}: {text} [{steps}]", flush=True)
        number += args.step
        if text.startswith(LOST):
            break
        if number % 8 == 0 and not IS_EMULATED:
            torch.cuda.empty_cache()  # other processes use the same GPU
    counts = ", ".join(f"{name} {count}" for name, count in sorted(families.items()))
    print(f"{families.total()} cases, {wrong} wrong, next --first {number}; {counts}", flush=True)
    return 3 if text.startswith(LOST) else 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
