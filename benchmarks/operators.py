"""Operators that networks call in training and decoding, with the shapes and strides that were recorded from
timm, torchvision, transformers and diffusers: torch's own kernels (cuDNN with benchmark, cuBLAS) next to the
same call under weft.torch.enable().

    python -m benchmarks.operators --csv OUT.csv --seconds 540      (again until no case is left)
    python -m benchmarks.operators --table OUT.csv

Calls are captured as CUDA graphs over rotating inputs, rounds of both sides alternate, and Weft's result is
compared with that of the same operator in float32. Kernels are compiled before that, by a process per core.
Each row is appended as soon as it is measured, and cases that the table has are skipped, so that a call
continues where the last one stopped. `operators.jsonl` has one case per line (kind, network, arguments, named
arguments), in the order in which they are measured: the first minutes cover each kind. A tensor is written as
SHAPE[/STRIDES][:TYPE], where /t is a transposed matrix and /nhwc an image with channels last."""

from __future__ import annotations

import argparse
import csv
import json
import math
import multiprocessing
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COLUMNS = ("kind", "net", "torch_us", "weft_us", "ratio", "relerr", "served", "build_s", "op")
SHAPES = Path(__file__).with_suffix(".jsonl")
ROTATED = 120e6  # bytes of all input sets: twice the L2 cache of an H200
MOST_SETS = 8
ROUNDS, ROUND_MS, MOST_REPEATS = 5, 8.0, 50
BANDWIDTH, PEAK = 4.3e12, 790e12  # what an H200 copies and multiplies in bf16
SHORTEST = 1.5e-6  # seconds of the shortest kernel
LARGEST_ERROR = 2e-2
BUILD_SHARE = 0.45  # of the given seconds, the most that compiling takes
TENSOR = re.compile(r"(\d+(?:x\d+)*)(?:/([\w,]+))?(?::(\w+))?")


@dataclass(frozen=True)
class Shape:
    """A recorded tensor."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Elements in memory: those of broadcast dimensions count once."""
        return math.prod(d for d, s in zip(self.dims, self.strides, strict=True) if s)

    def recorded(self) -> dict[str, Any]:
        """As the column `op` has it."""
        return {"t": [list(self.dims), list(self.strides), self.dtype]}


@dataclass(frozen=True)
class Operator:
    """A recorded call. Arguments are values, Shape, and names of types."""

    kind: str
    net: str
    args: tuple[Any, ...]
    named: Mapping[str, Any] = field(default_factory=dict)

    @property
    def op(self) -> str:
        """The identity of the case: the column `op`."""

        def recorded(value: Any) -> Any:
            if isinstance(value, Shape):
                return value.recorded()
            if isinstance(value, str):
                return {"d": value}
            return [recorded(each) for each in value] if isinstance(value, (list, tuple)) else value

        return json.dumps([self.kind, recorded(self.args), dict(self.named)])

    @property
    def shapes(self) -> list[Shape]:
        """The tensors among the arguments."""
        return [each for each in self.args if isinstance(each, Shape)]


def shape(text: str) -> Shape:
    """Parses a tensor.

    >>> shape("2x3/t"), shape("4:int64").dtype
    (Shape(dims=(2, 3), strides=(1, 2), dtype='bfloat16'), 'int64')
    >>> shape("2x8x5x7/nhwc").strides
    (280, 1, 56, 8)
    """
    match = TENSOR.fullmatch(text)
    if match is None:
        raise ValueError(f"operators: '{text}' is no tensor: expected SHAPE[/STRIDES][:TYPE].")
    sizes, strides, dtype = match.groups()
    dims = tuple(map(int, sizes.split("x")))
    if strides is None:
        order = tuple(math.prod(dims[i + 1 :]) for i in range(len(dims)))
    elif strides == "t":
        order = (1, dims[0])
    elif strides == "nhwc":
        _, c, h, w = dims
        order = (c * h * w, 1, c * w, c)
    else:
        order = tuple(map(int, strides.split(",")))
    return Shape(dims, order, dtype or "bfloat16")


def read(path: Path) -> list[Operator]:
    """The recorded calls of a file."""

    def value(each: Any) -> Any:
        if isinstance(each, str):
            return each[1:] if each.startswith(":") else shape(each)
        return each

    calls = []
    for line in path.read_text(encoding="utf-8").splitlines():
        kind, net, args, *named = json.loads(line)
        calls.append(Operator(kind, net, tuple(map(value, args)), named[0] if named else {}))
    return calls


# ---- The bound ---------------------------------------------------------------------------------------------


def bound(call: Operator) -> float:
    """Seconds that reading each input once and writing each result once take, or the multiplications if they
    take longer."""
    flops, written = _work(call)
    read = sum(s.elements for s in call.shapes)
    if call.kind == "sdpa_bwd":  # o and its gradient
        read += 2 * math.prod(call.shapes[0].dims)
    if call.kind == "avg_pool_bwd":  # of x, only the sizes matter
        read = call.shapes[0].elements
    return max(2 * (read + written) / BANDWIDTH, flops / PEAK, SHORTEST)


def _work(call: Operator) -> tuple[float, float]:
    """Operations, and elements of the results."""
    dims = [s.dims for s in call.shapes]
    if call.kind in ("mm", "addmm", "bmm"):
        left, right = dims[-2:]
        return 2.0 * math.prod(left) * right[-1], math.prod(left[:-1]) * right[-1]
    if call.kind == "conv":
        x, w = dims[:2]
        sizes = zip(x[2:], w[2:], call.args[3], call.args[4], call.args[5], strict=True)
        pixels = [
            (i - 1) * stride - 2 * pad + gap * (k - 1) + 1
            if call.args[6]
            else (i + 2 * pad - gap * (k - 1) - 1) // stride + 1
            for i, k, stride, pad, gap in sizes
        ]
        filters = w[1] * call.args[8] if call.args[6] else w[0]
        written = x[0] * filters * math.prod(pixels)
        return 2.0 * (math.prod(x) if call.args[6] else written) * math.prod(w[1:]), written
    if call.kind == "conv_bwd":
        dy, x, w = dims[:3]
        large = x if call.args[7] else dy
        return 4.0 * math.prod(large) * math.prod(w[1:]), math.prod(x) + math.prod(w)
    if call.kind in ("sdpa", "sdpa_bwd"):
        q, k, v = dims[:3]
        flops = 2.0 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])
        flops /= 2 if call.named.get("is_causal") else 1
        if call.kind == "sdpa":
            return flops, math.prod(q[:-1]) * v[-1]
        return 2.5 * flops, math.prod(q) + math.prod(k) + math.prod(v)
    if call.kind in ("max_pool", "avg_pool"):
        stride = call.args[2]
        return 0.0, math.prod(dims[0]) / math.prod(stride)
    if call.kind in ("max_pool_bwd", "avg_pool_bwd"):
        return 0.0, math.prod(dims[1])
    return 0.0, math.prod(dims[0])


# ---- Calls -------------------------------------------------------------------------------------------------


def tensors_of(call: Operator, torch: Any, device: str) -> tuple[list[Any], dict[str, Any]]:
    """Random arguments. Statistics and indices that a gradient reads are those of its inputs."""

    def value(each: Any) -> Any:
        if isinstance(each, str):
            return getattr(torch, each)
        if not isinstance(each, Shape):
            return each
        dtype = getattr(torch, each.dtype)
        size = 1 + sum((d - 1) * s for d, s in zip(each.dims, each.strides, strict=True))
        if not dtype.is_floating_point:
            return torch.zeros(size, device=device, dtype=dtype).as_strided(each.dims, each.strides)
        base = torch.randn(size, device=device, dtype=torch.float32)
        return base.to(dtype).as_strided(each.dims, each.strides)

    args = [value(each) for each in call.args]
    if call.kind == "layer_norm_bwd":
        x, mean, rstd = args[1], args[3], args[4]
        axes = tuple(range(x.dim() - len(args[2]), x.dim()))
        args[3:5] = _moments(x.float(), axes, mean, rstd)
    if call.kind == "group_norm_bwd":
        x, mean, rstd, n, groups = args[1], args[2], args[3], args[5], args[8]
        args[2:4] = _moments(x.float().reshape(n, groups, -1), (2,), mean, rstd)
    if call.kind == "softmax_bwd":
        args[1] = torch.softmax(args[1].float(), args[2]).to(args[1].dtype)
    if call.kind == "max_pool_bwd":
        args[7] = torch.ops.aten.max_pool2d_with_indices(args[1], *args[2:7])[1]
    return args, {name: value(each) for name, each in call.named.items()}


def _moments(x: Any, axes: tuple[int, ...], mean: Any, rstd: Any) -> tuple[Any, Any]:
    variance = x.var(axes, unbiased=False, keepdim=True)
    means, scales = x.mean(axes, keepdim=True), (variance + 1e-5).rsqrt()
    return means.to(mean.dtype).reshape(mean.shape), scales.to(rstd.dtype).reshape(rstd.shape)


def widened(args: Sequence[Any], named: Mapping[str, Any], torch: Any) -> tuple[list[Any], dict[str, Any]]:
    """The same arguments in float32, which the reference reads; contiguous, because the gradient of average
    pooling of PyTorch 2.11 is wrong on a GPU with channels last."""

    def wide(each: Any) -> Any:
        if isinstance(each, torch.Tensor) and each.is_floating_point():
            return each.float().contiguous()
        return torch.float32 if each is torch.bfloat16 else each

    return [wide(each) for each in args], {name: wide(each) for name, each in named.items()}


Call = Callable[[], Any]


def runner(kind: str, args: Sequence[Any], named: Mapping[str, Any], torch: Any) -> Call:
    """A function that calls the operator."""
    aten = torch.ops.aten
    if kind in ("sdpa", "sdpa_bwd"):
        attention = torch.nn.functional.scaled_dot_product_attention
        q, k, v, mask = args
        if kind == "sdpa":
            return lambda: attention(q, k, v, mask, **named)
        q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
        o = attention(q, k, v, mask, **named)
        torch.manual_seed(3)
        do = torch.randn(o.shape, device=o.device).bfloat16().to(o)  # the same for each type and side
        return lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True)
    function = {
        "conv": aten.convolution,
        "conv_bwd": aten.convolution_backward,
        "layer_norm": aten.native_layer_norm,
        "layer_norm_bwd": aten.native_layer_norm_backward,
        "group_norm": aten.native_group_norm,
        "group_norm_bwd": aten.native_group_norm_backward,
        "softmax": aten._softmax,
        "softmax_bwd": aten._softmax_backward_data,
        "max_pool": aten.max_pool2d_with_indices,
        "max_pool_bwd": aten.max_pool2d_with_indices_backward,
        "avg_pool": aten.avg_pool2d,
        "avg_pool_bwd": aten.avg_pool2d_backward,
    }.get(kind) or getattr(aten, kind)
    return lambda: function(*args, **named)


def results_of(result: Any, torch: Any) -> list[Any]:
    """The floating-point tensors of a result. Statistics, which have the inputs' type or float, are among
    them."""
    several = result if isinstance(result, (tuple, list)) else [result]
    return [t for t in several if isinstance(t, torch.Tensor) and t.is_floating_point()]


def error_of(results: Sequence[Any], exact: Sequence[Any]) -> float:
    """‖result − exact‖ / ‖exact‖ of the worst tensor; infinite for NaN."""
    errors = [0.0]
    for ours, theirs in zip(results, exact, strict=True):
        difference = float((ours.double() - theirs.double()).norm() / (theirs.double().norm() + 1e-30))
        errors.append(difference if difference == difference else math.inf)
    return max(errors)


# ---- Measuring ---------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """A row of the table."""

    call: Operator
    torch: float | None = None
    """In seconds, like Weft's and the build's."""
    weft: float | None = None
    error: float | None = None
    is_served: bool = False
    build: float | None = None
    note: str = ""

    def cells(self) -> list[str]:
        """The row as the CSV has it; empty where a number is missing."""
        times = (self.torch, self.weft)
        ratio = f"{self.torch / self.weft:.3f}" if self.torch and self.weft else ""
        return [
            *(self.call.kind, self.call.net),
            *(f"{seconds * 1e6:.2f}" if seconds else "" for seconds in times),
            *(ratio, "" if self.error is None else f"{self.error:.1e}", str(int(self.is_served))),
            *("" if self.build is None else f"{self.build:.2f}", self.call.op),
        ]


class Clock:
    """Times rounds of calls: CUDA graphs on a GPU, plain calls on the CPU."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._device = torch, device
        self._stream = torch.cuda.Stream() if device == "cuda" else None
        if self._stream:  # autograd calls a gradient on the stream of its forward pass
            torch.cuda.set_stream(self._stream)

    def round(self, calls: Sequence[Call]) -> Callable[[int], float]:
        """Prepares calls; the result runs them some times and returns the seconds of one pass."""
        for call in [*calls, calls[0]]:
            call()
        if self._device == "cpu":

            def run(repeats: int) -> float:
                start = time.perf_counter()
                for _ in range(repeats):
                    for call in calls:
                        call()
                return (time.perf_counter() - start) / repeats

            return run
        self.wait()
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph, stream=self._stream):
            for call in calls:
                call()

        def replay(repeats: int) -> float:
            first, last = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for _ in range(repeats):
                graph.replay()
            last.record()
            last.synchronize()
            return float(first.elapsed_time(last)) / 1e3 / repeats

        return replay

    def wait(self) -> None:
        """Waits for all enqueued work."""
        if self._device == "cuda":
            self._torch.cuda.synchronize()


def in_turn(sides: Sequence[Callable[[int], float]]) -> list[float]:
    """The median of each side's rounds, which alternate."""
    once = max(side(1) for side in sides)
    repeats = max(1, min(MOST_REPEATS, int(ROUND_MS / 1e3 / once)))
    rounds = [[side(repeats) for side in sides] for _ in range(ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def measure(call: Operator, clock: Clock, device: str, build: float | None) -> Measured:
    """Checks a case and times both sides. build: seconds that another process has needed for the plan."""
    import torch
    from weft.torch import enable

    torch.manual_seed(0)
    sets = [tensors_of(call, torch, device)]
    size = sum(t.numel() * t.element_size() for t in sets[0][0] if isinstance(t, torch.Tensor))
    for _ in range(min(MOST_SETS, math.ceil(ROTATED / max(size, 1))) - 1 if device == "cuda" else 0):
        sets.append(tensors_of(call, torch, device))
    with torch.backends.cudnn.flags(benchmark=False, allow_tf32=False):
        exact = results_of(runner(call.kind, *widened(*sets[0], torch), torch)(), torch)
    plain = [runner(call.kind, *each, torch) for each in sets]
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        theirs = clock.round(plain)
    with enable() as under:
        start = time.perf_counter()
        ours = [runner(call.kind, *each, torch) for each in sets[:1]]
        error = error_of(results_of(ours[0](), torch), exact)
        clock.wait()
        build = build or time.perf_counter() - start
        del exact
        ours += [runner(call.kind, *each, torch) for each in sets[1:]]
        outcomes = [set(each) for each in under.report().values()]
        weft = clock.round(ours)
    seconds = [each / len(sets) for each in in_turn([theirs, weft])]
    is_served = bool(outcomes) and all(each == {"served"} for each in outcomes)
    return Measured(call, seconds[0], seconds[1], error, is_served, build)


def build(call: Operator, device: str) -> float:
    """Calls an operator once under Weft; its kernels are then in the disk cache. Returns the seconds."""
    import torch
    from weft.torch import enable

    args, named = tensors_of(call, torch, device)
    with enable():
        start = time.perf_counter()
        runner(call.kind, args, named, torch)()
        seconds = time.perf_counter() - start
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return seconds


def build_all(calls: Sequence[Operator], device: str, seconds: float, jobs: int) -> dict[str, float]:
    """Compiles the kernels of cases, a process per core, for some seconds at most. Measuring builds again
    what has failed here, and reports it."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=spawn)
    futures: dict[Future[float], Operator] = {pool.submit(build, call, device): call for call in calls}
    done, _ = wait(futures, timeout=seconds)
    results = {}
    for future in done:
        with suppress(Exception):
            results[futures[future].op] = future.result()
    workers = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()
    return results


def known(path: Path) -> set[str]:
    """The cases that a table has."""
    return {line["op"] for line in rows(path)} if path.exists() else set()


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run(options: argparse.Namespace) -> int:
    """Measures what the table lacks; the exit status is 1 if a result is wrong or the device fails."""
    import torch

    device, end = options.device, time.monotonic() + options.seconds
    done = known(options.csv)
    calls = [c for c in read(options.shapes) if re.search(options.only, c.kind) and c.op not in done]
    start = time.monotonic()
    builds = build_all(calls, device, BUILD_SHARE * options.seconds, options.jobs) if options.jobs else {}
    print(f"{len(builds)} of {len(calls)} cases built in {time.monotonic() - start:.0f} s", flush=True)
    clock, wrong, results = Clock(torch, device), [], []
    is_new = not options.csv.exists()
    with options.csv.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS] if is_new else [])
        for call in calls:
            if time.monotonic() > end:
                break
            try:
                row = measure(call, clock, device, builds.get(call.op))
            except Exception as failure:
                row = Measured(call, note=f"{type(failure).__name__}: {failure!s:.200}")
            results.append(row)
            writer.writerow(row.cells())
            file.flush()
            if row.note or (row.error or 0.0) > LARGEST_ERROR:
                wrong.append(row)
                print(f"WRONG {row.call.kind} {row.error} {row.note} {row.call.op:.200}", flush=True)
            if row.note and not _works(clock):
                print("the device does not work any more in this process: run the command again")
                return 1
    print("\n".join(table(options.csv)))
    print(f"{len(results)} cases measured, {len(wrong)} wrong, {len(calls) - len(results)} left")
    return int(bool(wrong))


def _works(clock: Clock) -> bool:
    try:
        clock.wait()
    except Exception:
        return False
    return True


# ---- The table ---------------------------------------------------------------------------------------------


def table(path: Path, shown: float = 0.0) -> Iterator[str]:
    """The lines of a Markdown table: per kind the ratios and the distance to the bound; then the cases whose
    ratio is less than shown."""
    bounds = {call.op: bound(call) * 1e6 for call in read(SHAPES)}
    by_kind: dict[str, list[tuple[float, float, dict[str, str]]]] = {}
    for row in rows(path):
        if row["ratio"]:
            above = float(row["weft_us"]) / bounds[row["op"]] if row["op"] in bounds else math.nan
            by_kind.setdefault(row["kind"], []).append((float(row["ratio"]), above, row))
    yield "| kind | cases | geometric mean | worst | below 1.0 | time / bound, median |"
    yield "|---|---|---|---|---|---|"
    for kind, cases in sorted(by_kind.items()):
        ratios = [ratio for ratio, _, _ in cases]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        distance = statistics.median(above for _, above, _ in cases)
        low = sum(ratio < 1 for ratio in ratios)
        yield f"| {kind} | {len(cases)} | {mean:.2f} | {min(ratios):.2f} | {low} | {distance:.1f} |"
    worst = sorted((case for cases in by_kind.values() for case in cases), key=lambda case: case[0])
    for ratio, above, row in worst:
        if ratio < shown:
            name = f"{row['kind']} {row['net']}: {_dims(row['op'])}"
            yield f"{ratio:.2f} {above:5.1f} {row['weft_us']:>9} {name}"


def _dims(op: str) -> str:
    """The shapes of a recorded call."""
    sizes = re.findall(r'"t": \[\[([\d, ]+)\]', op)
    return " ".join("x".join(each.split(", ")) for each in sizes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, default=Path("operators.csv"), help="the table to continue")
    parser.add_argument("--table", type=Path, help="print the table of a CSV")
    parser.add_argument("--below", type=float, default=0.0, help="with --table: cases with a lower ratio")
    parser.add_argument("--shapes", type=Path, default=SHAPES, help="recorded calls")
    parser.add_argument("--only", default="", help="kinds, a regular expression")
    parser.add_argument("--seconds", type=float, default=540.0, help="starts no case after that time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that compile; 0: none")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args(arguments)
    if options.table:
        print("\n".join(table(options.table, options.below)))
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
