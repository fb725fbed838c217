"""Where the benchmark runs: memory, clock and ceilings of the CPU through NumPy, and of a GPU through torch.

Both time the same way: one execution after another over several sets of memory, together larger than the
caches, so that no execution finds its inputs there; the median of some rounds.
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

from weft import buffers, dtypes, gpu_health
from weft.backend import describe_machine
from weft.bench.case import Case
from weft.bench.results import CPU_CEILINGS, GPU_CEILINGS, Ceiling
from weft.bench.shapes import Operand
from weft.devices import DeviceProperties
from weft.errors import UnavailableError
from weft.frontend import create_handle

SEED = 7
ROUNDS, QUICK_ROUNDS = 7, 3
ROUND_SECONDS = 0.02
MOST_REPEATS = 60


class Machine(Protocol):
    """What measuring needs of a device."""

    kind: str
    """As weft.create_handle takes it."""
    xp: Any
    """NumPy, or torch: the oracle's arithmetic."""
    rotated: int
    """Bytes that the sets of memory take together, at least."""
    ceilings: tuple[Ceiling, ...]

    name: str
    """The device's name, and the versions beside Weft's own that its figures depend on."""

    def random(self, operand: Operand) -> Any:
        """Memory filled with normal random values, or with bits where elements share bytes; a scalar that is
        passed by value is in the host's."""

    def poisoned(self, operand: Operand) -> Any:
        """Memory filled with what no result is."""

    def copy(self, array: Any) -> Any:
        """The same values in the same layout elsewhere."""

    def fill(self, array: Any, values: Any) -> None:
        """Rounds values into memory."""

    def double(self, array: Any) -> Any:
        """The values as float64."""

    def tensor(self, array: Any) -> Any:
        """The same memory as a tensor of torch's."""

    def scratch(self, size: int) -> Any:
        """Bytes for a workspace."""

    def stream(self) -> int:
        """Where to enqueue now."""

    def here(self) -> AbstractContextManager[Any]:
        """Within it the oracle's new arrays are on the device."""

    def wait(self) -> None:
        """Until everything enqueued is done."""

    def timer(self, run: Callable[[int], object], sets: int) -> Timer:
        """A round of run(i), i being a set of memory, warm and ready to go."""

    def ceiling(self, ceiling: Ceiling, rounds: int) -> float:
        """The time of what a ceiling is measured by."""


Timer = Callable[[], float]
"""Runs a round; the seconds of one of its runs."""


def in_turn(timers: Sequence[Timer], rounds: int) -> list[float]:
    """The median of each one's rounds, which alternate: a device that grows hot does so for all."""
    turns = [[timer() for timer in timers] for _ in range(rounds)]
    return [statistics.median(times) for times in zip(*turns, strict=True)]


def type_of(operand: Operand) -> Any:
    """The data type of an operand."""
    found = dtypes.data_type_of(operand.dtype)
    assert found is not None
    return found


def is_packed(operand: Operand) -> bool:
    """Whether several elements share a byte; they are filled with random bits."""
    return dtypes.of(type_of(operand)).bits < 8


def poison(operand: Operand) -> float:
    """What fills outputs before they are written: NaN, or the least of integers."""
    return math.nan if dtypes.is_floating(type_of(operand)) else -128


def repeats(once: float, sets: int) -> int:
    """How often a round runs: about ROUND_SECONDS, every set equally often.

    >>> repeats(0.001, 3), repeats(1.0, 2), repeats(1e-6, 1)
    (18, 2, 60)
    """
    wanted = int(min(MOST_REPEATS, ROUND_SECONDS / max(once, 1e-6)))
    return max(wanted - wanted % sets, sets)


class _Cpu:
    """The processor, through NumPy."""

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
        made = buffers.empty(operand.dims, operand.strides, type_of(operand))
        if is_packed(operand):
            made[...] = self._generator.integers(0, 256, made.shape)
        else:
            made[...] = self._generator.standard_normal(operand.dims) * operand.scale
        return made

    def poisoned(self, operand: Operand) -> Any:
        made = buffers.empty(operand.dims, operand.strides, type_of(operand))
        made[...] = poison(operand)
        return made

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
        ):  # none of NumPy's own
            return torch.from_numpy(array.view(f"uint{8 * array.itemsize}")).view(known)
        return torch.from_numpy(array)

    def scratch(self, size: int) -> Any:
        return self.xp.empty(size, "uint8")

    def stream(self) -> int:
        return 0

    def here(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def wait(self) -> None:
        return  # nothing is enqueued: executions return when they are done

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
    rotated = 200_000_000  # four times the second-level cache of an H200
    ceilings = GPU_CEILINGS

    def __init__(self) -> None:
        self.xp = self.torch = _module("torch", "memory on a GPU, streams and the oracle")
        if not self.torch.cuda.is_available():
            raise UnavailableError(
                "bench: torch sees no GPU. Install a torch built for CUDA, or use --device cpu."
            )
        self.name = ", ".join([self.torch.cuda.get_device_name(), *_versions()])
        self.torch.manual_seed(SEED)
        self.torch.set_float32_matmul_precision("high")  # tf32, as the products of f32 tensors are timed

    def random(self, operand: Operand) -> Any:
        torch = self.torch
        type_ = dtypes.torch_dtype(type_of(operand))
        if operand.value is not None:
            return torch.full(operand.dims, operand.value, dtype=type_)
        if is_packed(operand):
            return torch.randint(256, (operand.bytes,), dtype=type_, device=self.kind)
        made = torch.empty_strided(operand.dims, operand.strides, dtype=type_, device=self.kind)
        return made.copy_(torch.randn(operand.dims, device=self.kind) * operand.scale)

    def poisoned(self, operand: Operand) -> Any:
        type_ = dtypes.torch_dtype(type_of(operand))
        made = self.torch.empty_strided(operand.dims, operand.strides, dtype=type_, device=self.kind)
        return made.fill_(poison(operand))

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
        """Replays of a captured graph, between two events: what the host does is not in it."""
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
        """Seconds of each of its runs; `run` holds what the graph reads and writes."""
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
            made = torch.empty_like(a)
            return in_turn([self.timer(lambda _: torch.matmul(a, b, out=made), 1)], rounds)[0]
        # A kernel that reads and writes every element: copy_, captured, takes a slower way than any kernel.
        source = torch.randn(n // 4, device=self.kind)
        target = torch.empty_like(source)
        return in_turn([self.timer(lambda _: torch.neg(source, out=target), 1)], rounds)[0]


def _versions() -> list[str]:
    """Of the driver and of the run-time compiler."""
    driver, compiler = gpu_health.driver_version(), gpu_health.chosen_compiler(describe_machine())
    found = {"driver": driver, "NVRTC": compiler and compiler["version"]}
    return [f"{name} {version}" for name, version in found.items() if version]


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage is collected inside: a graph of before that were freed during a capture would end it."""
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
            f"bench: {name} is not installed, and gives {use}. Install it: python -m pip install {name}"
        ) from None


def machine(kind: str) -> Machine:
    """The CPU, or the first GPU."""
    return _Gpu() if kind == "cuda" else _Cpu()


def sets_of(case: Case, machine: Machine) -> int:
    """How many sets of memory a case rotates over."""
    return max(1, min(12, math.ceil(machine.rotated / max(case.bytes, 1))))
