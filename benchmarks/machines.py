"""The devices of the benchmark: memory, clock and ceilings of a CPU through NumPy, and of a GPU through
torch.

Both time in the same way: consecutive executions over several sets of memory, which together exceed the
caches, so that no execution finds its inputs there; the result is the median of some rounds.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

from weft import buffers, dtypes
from weft.backend import describe_machine
from weft.cli import gpu_health
from weft.devices import DeviceProperties
from weft.errors import UnavailableError
from weft.frontend import create_handle

from benchmarks.case import Case
from benchmarks.shapes import Operand
from benchmarks.tables import CPU_CEILINGS, GPU_CEILINGS, Ceiling

SEED = 7
ROUNDS, QUICK_ROUNDS = 7, 3
ROUND_SECONDS = 0.02
MOST_REPEATS = 60


class Machine(Protocol):
    """The operations on a device that measuring needs."""

    kind: str
    """An argument of weft.create_handle."""
    xp: Any
    """NumPy or torch, for the oracle."""
    rotated: int
    """Minimum total size of the sets of memory, in bytes."""
    ceilings: tuple[Ceiling, ...]

    name: str
    """The device's name, and the versions other than Weft's own on which its results depend."""

    def random(self, operand: Operand) -> Any:
        """Memory filled with normal random values, or with bits if elements share bytes; a scalar passed by
        value is in host memory."""

    def poisoned(self, operand: Operand) -> Any:
        """Memory filled with a value that no result has."""

    def copy(self, array: Any) -> Any:
        """A copy with the same layout."""

    def fill(self, array: Any, values: Any) -> None:
        """Stores values, with rounding."""

    def double(self, array: Any) -> Any:
        """The values as float64."""

    def tensor(self, array: Any) -> Any:
        """The same memory as a torch tensor."""

    def scratch(self, size: int) -> Any:
        """Memory for a workspace."""

    def stream(self) -> int:
        """The current stream."""

    def here(self) -> AbstractContextManager[Any]:
        """A context in which the oracle's new arrays are allocated on the device."""

    def wait(self) -> None:
        """Waits for all enqueued work."""

    def timer(self, run: Callable[[int], object], sets: int) -> Timer:
        """A timer for a round of run(i), where i is a set of memory; warmed up and ready to run."""

    def ceiling(self, ceiling: Ceiling, rounds: int) -> float:
        """The time of the operation that measures a ceiling."""


Timer = Callable[[], float]
"""Runs a round and returns the seconds per run."""


def in_turn(timers: Sequence[Timer], rounds: int) -> list[float]:
    """The median of each timer's rounds, which alternate, so that heating of the device affects all of
    them."""
    turns = [[timer() for timer in timers] for _ in range(rounds)]
    return [statistics.median(times) for times in zip(*turns, strict=True)]


def type_of(operand: Operand) -> Any:
    """The data type of an operand."""
    results = dtypes.data_type_of(operand.dtype)
    assert results is not None
    return results


def is_packed(operand: Operand) -> bool:
    """True if several elements share a byte; they are filled with random bits."""
    return dtypes.of(type_of(operand)).bits < 8


def poison(operand: Operand) -> float:
    """The initial value of outputs: NaN, or the smallest integer."""
    return math.nan if dtypes.is_floating(type_of(operand)) else -128


def repeats(once: float, sets: int) -> int:
    """Runs per round: about ROUND_SECONDS in total, each set equally often.

    >>> repeats(0.001, 3), repeats(1.0, 2), repeats(1e-6, 1)
    (18, 2, 60)
    """
    wanted = int(min(MOST_REPEATS, ROUND_SECONDS / max(once, 1e-6)))
    return max(wanted - wanted % sets, sets)


class _Cpu:
    """The CPU, through NumPy."""

    kind = "cpu"
    rotated = 64 << 20
    ceilings = CPU_CEILINGS

    def __init__(self) -> None:
        self.xp = _module("numpy", "memory and the oracle")
        self.name = str(json.loads(DeviceProperties(handle=create_handle("cpu")).serialize())["name"])
        self._generator = self.xp.random.default_rng(SEED)

    def random(self, operand: Operand) -> Any:
        if operand.value is not None:
            return self.xp.full(operand.dims, operand.value, dtypes.numpy_dtype(type_of(operand)))
        array = buffers.empty(operand.dims, operand.strides, type_of(operand))
        if is_packed(operand):
            array[...] = self._generator.integers(0, 256, array.shape)
        else:
            array[...] = self._generator.standard_normal(operand.dims) * operand.scale
        return array

    def poisoned(self, operand: Operand) -> Any:
        array = buffers.empty(operand.dims, operand.strides, type_of(operand))
        array[...] = poison(operand)
        return array

    def copy(self, array: Any) -> Any:
        return array.copy(order="K")

    def fill(self, array: Any, values: Any) -> None:
        array[...] = values

    def double(self, array: Any) -> Any:
        return array.astype("float64")

    def tensor(self, array: Any) -> Any:
        torch = _module("torch", "the program of a peer")
        known = getattr(torch, str(array.dtype))
        if array.dtype.kind == "V" or array.dtype.name.startswith(
            ("bfloat", "float8")
        ):  # a type that NumPy lacks
            return torch.from_numpy(array.view(f"uint{8 * array.itemsize}")).view(known)
        return torch.from_numpy(array)

    def scratch(self, size: int) -> Any:
        return self.xp.empty(size, "uint8")

    def stream(self) -> int:
        return 0

    def here(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def wait(self) -> None:
        return  # nothing is enqueued: calls return when they are done

    def timer(self, run: Callable[[int], object], sets: int) -> Timer:
        for i in range(sets):
            run(i)
        count = repeats(_once(lambda: run(0)), sets)
        return lambda: _once(lambda: [run(i % sets) for i in range(count)]) / count

    def ceiling(self, ceiling: Ceiling, rounds: int) -> float:
        np, n = self.xp, ceiling.size
        if ceiling.arithmetic:
            a, b = self._generator.standard_normal((2, n, n), np.float32)
            return in_turn([self.timer(lambda _: np.matmul(a, b), 1)], rounds)[0]
        source, target = np.ones(n, "uint8"), np.empty(n, "uint8")
        return in_turn([self.timer(lambda _: np.copyto(target, source), 1)], rounds)[0]


class _Gpu:
    """An NVIDIA GPU, through torch."""

    kind = "cuda"
    rotated = 200_000_000  # four times the L2 cache of an H200
    ceilings = GPU_CEILINGS

    def __init__(self) -> None:
        self.xp = self.torch = _module("torch", "memory on a GPU, streams and the oracle")
        if not self.torch.cuda.is_available():
            raise UnavailableError(
                "bench: torch sees no GPU. Install a torch built for CUDA, or use --device cpu."
            )
        self.name = ", ".join([self.torch.cuda.get_device_name(), *_versions()])
        self.torch.manual_seed(SEED)
        self.torch.set_float32_matmul_precision("high")  # TF32, with which matmuls of f32 tensors are timed

    def random(self, operand: Operand) -> Any:
        torch = self.torch
        type_ = dtypes.torch_dtype(type_of(operand))
        if operand.value is not None:
            return torch.full(operand.dims, operand.value, dtype=type_)
        if is_packed(operand):
            return torch.randint(256, (operand.bytes,), dtype=type_, device=self.kind)
        array = torch.empty_strided(operand.dims, operand.strides, dtype=type_, device=self.kind)
        return array.copy_(torch.randn(operand.dims, device=self.kind) * operand.scale)

    def poisoned(self, operand: Operand) -> Any:
        type_ = dtypes.torch_dtype(type_of(operand))
        array = self.torch.empty_strided(operand.dims, operand.strides, dtype=type_, device=self.kind)
        return array.fill_(poison(operand))

    def copy(self, array: Any) -> Any:
        return self.torch.empty_strided(
            tuple(array.shape), array.stride(), dtype=array.dtype, device=array.device
        ).copy_(array)

    def fill(self, array: Any, values: Any) -> None:
        array.copy_(values)

    def double(self, array: Any) -> Any:
        return array.double()

    def tensor(self, array: Any) -> Any:
        return array

    def scratch(self, size: int) -> Any:
        return self.torch.empty(max(size, 1), dtype=self.torch.uint8, device=self.kind)

    def stream(self) -> int:
        return int(self.torch.cuda.current_stream().cuda_stream)

    def here(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self.torch.device(self.kind)
        return context

    def wait(self) -> None:
        self.torch.cuda.synchronize()

    def timer(self, run: Callable[[int], object], sets: int) -> Timer:
        """Replays a captured graph between two events, which excludes work on the host."""
        cuda = self.torch.cuda
        aside = cuda.Stream()
        aside.wait_stream(cuda.current_stream())
        with cuda.stream(aside):
            for i in range(sets):
                run(i)
            aside.synchronize()

            def waited() -> None:
                run(0)
                aside.synchronize()

            count = repeats(_once(waited), sets)
            graph = cuda.CUDAGraph()
            with _uncollected(), cuda.graph(graph, stream=aside):
                for i in range(count):
                    run(i % sets)
            graph.replay()
            aside.synchronize()
        return partial(self._replayed, graph, aside, count, run)

    def _replayed(self, graph: Any, stream: Any, count: int, run: object) -> float:
        """Seconds per run; `run` keeps the graph's memory alive."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.cuda.stream(stream):
            start.record()
            graph.replay()
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / count

    def ceiling(self, ceiling: Ceiling, rounds: int) -> float:
        torch, n = self.torch, ceiling.size
        if ceiling.arithmetic:
            type_ = torch.bfloat16 if ceiling.arithmetic == "bf16" else torch.float32
            a, b = (torch.randn(n, n, device=self.kind, dtype=type_) for _ in range(2))
            array = torch.empty_like(a)
            return in_turn([self.timer(lambda _: torch.matmul(a, b, out=array), 1)], rounds)[0]
        # A kernel that reads and writes every element: copy_ during capture is slower than any kernel.
        source = torch.randn(n // 4, device=self.kind)
        target = torch.empty_like(source)
        return in_turn([self.timer(lambda _: torch.neg(source, out=target), 1)], rounds)[0]


def _versions() -> list[str]:
    """Versions of the driver and of the run-time compiler."""
    driver, compiler = gpu_health.driver_version(), gpu_health.chosen_compiler(describe_machine())
    results = {"driver": driver, "NVRTC": compiler and compiler["version"]}
    return [f"{name} {version}" for name, version in results.items() if version]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disables garbage collection, because freeing an earlier graph would abort a capture."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _once(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _module(name: str, use: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UnavailableError(
            f"bench: {name} is not installed, but provides {use}. Install it: python -m pip install {name}"
        ) from None


def machine(kind: str) -> Machine:
    """The CPU, or the first GPU."""
    return _Gpu() if kind == "cuda" else _Cpu()


def sets_of(case: Case, machine: Machine) -> int:
    """The number of sets of memory over which a case rotates."""
    return max(1, min(12, math.ceil(machine.rotated / max(case.bytes, 1))))
