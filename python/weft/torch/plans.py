"""Plans for torch tensors. A plan is built once per operator, attributes, and types, shapes, strides and
devices of the tensors, and stored in a bounded cache that all threads share."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from weft_cffi._weft import ffi

from weft.devices import default_handle
from weft.enums import device_kind, numerical_note, reshape_mode, scalar_type
from weft.errors import NotSupportedError, WeftError
from weft.graphs import Graph
from weft.plan import Plan
from weft.tensor import Tensor
from weft.torch import calls
from weft.torch.result_rules import Rule

BuildFunction = Callable[..., None]
"""Builds an operator's graph, given a GraphBuilder and the operator's arguments."""


class GraphBuilder:
    """A graph under construction, with the torch tensors that its inputs and outputs represent."""

    def __init__(self, graph: Graph, inputs: Sequence[torch.Tensor], outputs: Sequence[Any]) -> None:
        self.graph, self.outputs = graph, outputs
        self._inputs = list(inputs)
        self.ends: list[tuple[Tensor, int]] = []
        """Each graph input or output, with the index i of its argument, or ~i for result i."""

    def read(
        self, value: torch.Tensor, dims: Sequence[int] | None = None, steps: Sequence[int] | None = None
    ) -> Tensor:
        """Adds an argument as a graph tensor. dims, steps: another shape of the same elements, packed unless
        strides are given."""
        at = next(i for i, each in enumerate(self._inputs) if each is value)
        if steps is None and (dims is None or not value.is_contiguous()):
            steps = _strides(value) if dims is None else _steps_in(value, dims)
        shape = tuple(value.shape) or (1,) if dims is None else dims
        tensor = self.graph.tensor(shape, stride=steps, data_type=value.dtype)
        self.ends.append((tensor, at))
        return tensor

    def read_broadcast(self, value: torch.Tensor, rank: int) -> Tensor:
        """Adds an argument for broadcasting: extents are padded with 1 in front, and expanded dimensions
        become 1."""
        pairs = zip(value.shape, value.stride(), strict=True)
        shown = [(n, step) if step else (1, 1) for n, step in pairs]
        shown = [(1, 1)] * (rank - len(shown)) + shown
        return self.read(value, [n for n, _ in shown], [max(step, 1) for _, step in shown])

    def read_permuted(self, value: Any, order: Sequence[int], rank: int = 0) -> Tensor:
        """Adds a value with permuted dimensions, padded with 1 in front up to the given rank."""
        steps = _strides(value)
        dims, steps = zip(*((value.shape[i], steps[i]) for i in order), strict=True)
        before = rank - len(order)
        return self.read(value, [*[1] * before, *dims], [*[value.numel()] * before, *steps])

    def is_expanded(self, value: Any, dim: int) -> bool:
        """True if a dimension has stride 0: all its elements share one address."""
        return not value.stride(dim)

    def exact(self, value: Any) -> Any:
        """Returns an equal value in the narrowest type, for operators that compute in float anyway."""
        return value

    def write(
        self, i: int, result: Tensor, dims: Sequence[int] | None = None, steps: Sequence[int] | None = None
    ) -> None:
        """Declares a graph tensor as result i of the operator, with the type and layout that torch
        expects."""
        value = self.outputs[i]
        result.set_output(True).set_data_type(value.dtype)
        if dims is None:
            result.set_dim(tuple(value.shape) or (1,)).set_stride(_strides(value))
        else:
            result.set_dim(dims)
            if steps is not None:
                result.set_stride(steps)
        self.ends.append((result, ~i))

    def overwrite(self, value: torch.Tensor, result: Tensor, dims: Sequence[int]) -> None:
        """Declares a graph tensor as the new contents of an argument's memory, which was read with these
        dims."""
        at = next(i for i, each in enumerate(self._inputs) if each is value)
        result.set_output(True).set_data_type(value.dtype).set_dim(dims).set_stride(_steps_in(value, dims))
        self.ends.append((result, at))

    def read_as(self, value: torch.Tensor, dims: Sequence[int]) -> Tensor:
        """Reads an argument with another shape in the same order. Copies elements only if no strides describe
        it."""
        steps = steps_in(value, dims)
        if steps is not None:
            return self.read(value, dims, steps)
        moved: Tensor = self.graph.reshape(self.read(value), reshape_mode=reshape_mode.LOGICAL)
        return moved.set_dim(dims)

    def write_as(self, i: int, result: Tensor, dims: Sequence[int]) -> None:
        """Writes a tensor with these dims as result i, whose shape in torch differs but has the same
        order."""
        steps = steps_in(self.outputs[i], dims)
        if steps is not None:
            self.write(i, result, dims, steps)
        else:
            self.write(i, self.graph.reshape(result.set_dim(dims), reshape_mode=reshape_mode.LOGICAL))

    def number(self, value: float) -> Tensor:
        """Adds a constant of the graph's compute type."""
        type_ = torch.float64 if self.is_double else torch.float32
        return self.graph.tensor_scalar(value, scalar_type.COMPILE_TIME_CONST, type_)

    @property
    def is_double(self) -> bool:
        """True if the operator computes in double precision."""
        return any(each.dtype == torch.float64 for each in self._inputs)


def _strides(value: torch.Tensor) -> tuple[int, ...]:
    """Returns strides in Weft's convention. torch allows any stride for an extent of 1; Weft needs at least
    1."""
    steps = zip(value.shape, value.stride(), strict=True)
    return tuple(max(step, 1) if n == 1 else step for n, step in steps) or (1,)


def steps_in(value: torch.Tensor, dims: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the strides that show a tensor's elements in another shape of the same order, or None."""
    try:
        return _strides(value.view(dims))
    except (RuntimeError, ValueError):  # fake tensors raise ValueError
        return None


def _steps_in(value: torch.Tensor, dims: Sequence[int]) -> tuple[int, ...]:
    """Like steps_in, but raises NotSupportedError instead of returning None."""
    steps = steps_in(value, dims)
    if steps is None:
        raise NotSupportedError(f"a tensor with strides {list(value.stride())}. Make it contiguous.")
    return steps


class Result(NamedTuple):
    """A result's shape, strides and data type."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def _results_of(outputs: Sequence[Any]) -> list[Result | None]:
    return [
        None if out is None else Result(tuple(out.shape), tuple(out.stride()), out.dtype) for out in outputs
    ]


class Empty:
    """An operator on tensors without elements: launches nothing."""

    def __init__(self, outputs: Sequence[Any], device: torch.device) -> None:
        self._results, self._device = _results_of(outputs), device

    def __call__(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the results, filled with zeros."""
        return tuple(
            None if r is None else torch.empty_strided(*r[:2], dtype=r.dtype, device=self._device).zero_()
            for r in self._results
        )


class Prepared:
    """An operator prepared for tensors of one kind: it runs on any tensors of that kind."""

    def __init__(
        self, plan: Plan, ends: Sequence[tuple[Tensor, int]], outputs: Sequence[Any], arguments: Sequence[Any]
    ) -> None:
        """arguments: example arguments of the call; the indices in `ends` count only the tensors among
        them."""
        self.plan = plan
        tensors = [i for i, each in enumerate(arguments) if isinstance(each, torch.Tensor)]
        uids = ((end.get_uid(), at) for end, at in ends)
        # An input on which no result depends has no slot.
        slots = {plan.index[uid]: at for uid, at in uids if at < 0 or uid in plan.index}
        self._inputs = [(slot, tensors[at]) for slot, at in slots.items() if at >= 0]
        self._outputs = [(slot, ~at) for slot, at in slots.items() if at < 0]
        self._results = _results_of(outputs)
        self._ordinal = plan.ordinal if plan.device is device_kind.CUDA else None
        kind = "cpu" if self._ordinal is None else "cuda"
        self._elsewhere = functools.partial(_empty_on, torch.device(kind, self._ordinal))
        self._here = _QUICK[kind] or self._elsewhere
        self._workspace = plan.workspace_size if self._ordinal is not None else 0
        self.in_c: Any = self._in_c() if calls.FUNCTIONS else None
        """The plan prepared for libweft_torch; None if it runs in Python."""

    def __call__(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Launches the plan on torch's current stream, without waiting."""
        ordinal = self._ordinal
        allocate = self._here if ordinal is None or calls.current_gpu() == ordinal else self._elsewhere
        results: list[Any] = [None if r is None else allocate(*r) for r in self._results]
        state = self.plan.thread.state
        pointers = state.pointers
        for slot, at in self._inputs:
            pointers[slot] = arguments[at].data_ptr()
        for slot, at in self._outputs:
            pointers[slot] = results[at].data_ptr()
        # The workspace returns to torch's caching allocator after the call; later work on the stream may
        # reuse it.
        held = allocate((self._workspace,), (1,), torch.uint8) if self._workspace else None
        stream = 0 if ordinal is None else calls.stream_of(ordinal)
        self.plan.launch(state, None if held is None else held.data_ptr(), stream)
        return tuple(results)

    def _in_c(self) -> Any:
        plan, positions = self.plan, dict([*self._inputs, *((slot, ~at) for slot, at in self._outputs)])
        if calls.FUNCTIONS is None or len(positions) < len(plan.slots):
            return None
        workspace: Any = ((self._workspace,), (1,), torch.uint8) if self._workspace else None
        if self._ordinal is None and plan.workspace_size:
            workspace = plan.workspace_size
        results = tuple(None if r is None else tuple(r) for r in self._results)
        return calls.FUNCTIONS.prepare(
            int(ffi.cast("uintptr_t", plan.descriptor.pointer)),
            tuple(positions[slot] for slot in range(len(positions))),
            results, self._here, workspace, None if self._ordinal is None else (self._ordinal,), plan,
        )  # fmt: skip


_QUICK = {kind: getattr(torch._C._dynamo.guards, f"_empty_strided_{kind}", None) for kind in ("cpu", "cuda")}
"""Fast allocation functions (shape, strides, data type) for the CPU and the current GPU."""


def _empty_on(device: torch.device, shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


Ready = Callable[[Sequence[Any]], tuple[Any, ...]]
"""Runs on arguments of one kind and returns the results, such as Prepared and Empty."""


# ---- Which plan ----


class Cache:
    """Plans, or the errors that building them raised, by key. Threads share the cache, and a hit costs one
    lookup, because no use is recorded. When the newer half is full it becomes the older half; entries that
    are used again move back, and the rest of the older half is dropped."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.hits, self.misses = capacity, 0, 0
        self._younger: dict[Any, Ready | WeftError] = {}
        self._older: dict[Any, Ready | WeftError] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._younger) + len(self._older)

    def clear(self) -> None:
        """Drops all plans."""
        with self._lock:
            self._younger, self._older = {}, {}

    def find(self, key: Any, make: Callable[[], Ready]) -> Ready:
        """Returns the entry of a key and creates it if necessary; raises a cached error."""
        entry = self._younger.get(key)
        if entry is None:
            entry = self._recall(key, make)
        else:
            self.hits += 1
        if isinstance(entry, WeftError):
            raise entry.with_traceback(None)  # a traceback would keep the arguments of each call alive
        return entry

    def _recall(self, key: Any, make: Callable[[], Ready]) -> Ready | WeftError:
        with self._lock:  # only one of several threads builds
            entry = self._younger.get(key) or self._older.pop(key, None)
            if entry is None:
                self.misses += 1
                entry = _made(make)
            if len(self._younger) >= max(self.capacity // 2, 1):
                self._younger, self._older = {}, self._younger
            self._younger[key] = entry
        return entry


def _made(make: Callable[[], Ready]) -> Ready | WeftError:
    try:
        return make()
    except WeftError as error:
        return error.with_traceback(None)


PLANS = Cache(4096)
"""The plans of all operators."""


def cache_info() -> dict[str, int]:
    """Returns the numbers of cache hits, of plans built, and of plans in the cache."""
    hits = PLANS.hits + (calls.FUNCTIONS.found() if calls.FUNCTIONS else 0)
    return {"hits": hits, "misses": PLANS.misses, "size": len(PLANS), "capacity": PLANS.capacity}


def clear_cache() -> None:
    """Drops all plans."""
    PLANS.clear()
    if calls.FUNCTIONS:
        calls.FUNCTIONS.forget()


_TENSOR, _PARAMETER = torch.Tensor, torch.nn.Parameter  # read eight times per call


def key_of(name: str, leading: torch.Tensor, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the cache key of a call: the operator, numbers, the kinds of the tensors and, if the leading
    one is on a GPU, torch's flags. A tensor's part of the key begins with its type, so it cannot be confused
    with a number."""
    key: list[Any] = [name, flags() if leading.is_cuda else None]
    for each in arguments:
        kind = type(each)
        if kind is _TENSOR or kind is _PARAMETER:
            key += (each.dtype, each.shape, each.stride(), each.device)
        elif kind is list:
            key.append(tuple(each))
        elif isinstance(each, _TENSOR):
            key += (kind, each.dtype, each.shape, each.stride(), each.device)
        else:
            key.append(each)
    return tuple(key)


# ---- Restrictions from torch's flags ----


def flags() -> tuple[bool, ...]:
    """Returns the current values of torch's flags."""
    return tuple(flag() for flag in calls.FLAGS)


_NARROWED, _UNORDERED = numerical_note.DOWN_CONVERT_INPUTS, numerical_note.NONDETERMINISTIC


CONVOLVES = {"conv", "conv_backward"}
"""Operators that may use TF32 if torch's flag for convolutions allows it."""

MULTIPLIES = {"mm", "bmm", "addmm", "linear", "grouped_mm", "quantized_linear", "sdpa"}
MULTIPLIES |= {f"{name}_backward" for name in MULTIPLIES}
"""Operators that may use TF32 if torch's flag for matrix products allows it."""

REDUCES_NOTHING = {"sdpa_varlen"}
"""Operators whose graph also supports empty reductions: attention without keys is 0."""


def unwanted(flags: Sequence[bool], convolves: bool, multiplies: bool) -> tuple[numerical_note, ...]:
    """Returns what the flags forbid on a GPU: TF32 products, and sums in nondeterministic order."""
    *is_ordered, may_convolve, may_multiply = flags
    is_exact = (convolves and not may_convolve) or (multiplies and not may_multiply)
    return (*((_NARROWED,) if is_exact else ()), *((_UNORDERED,) if any(is_ordered) else ()))


# ---- Building ----


def prepare(
    name: str, expected: Callable[..., Any], rule: Rule | None, build: BuildFunction, arguments: Sequence[Any]
) -> Ready:
    """Builds an operator's plan. expected: computes the results on tensors without memory; rule: does so
    faster for common tensors. Raises WeftError if Weft refuses the operator on such tensors."""
    # Arguments are identified by object: detach gives each its own, even if a caller passes one tensor twice.
    arguments = [each.detach() if isinstance(each, torch.Tensor) else each for each in arguments]
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    device = tensors[0].device
    if any(each.device != device for each in tensors):
        raise NotSupportedError(f"{name}: tensors on different devices. Move them to one.")
    outputs = rule(*arguments) if rule and device.type == "cpu" else None
    if outputs is None:
        outputs = expected_of(expected, arguments, device if _depends_on_device(name, tensors) else _META)
    has_results = any(each is not None and each.numel() for each in outputs)
    if _has_nothing(tensors) and not (has_results and name in REDUCES_NOTHING):
        return _prepare_empty(name, outputs, device)
    kind = device_kind.CUDA if device.type == "cuda" else device_kind.CPU
    handle = default_handle(kind, device.index or 0)
    is_double = any(each.dtype == torch.float64 for each in tensors)
    graph = Graph(name, handle=handle, compute_data_type=torch.float64 if is_double else torch.float32)
    if device.type == "cuda":
        graph.deselect_numeric_notes(unwanted(flags(), name in CONVOLVES, name in MULTIPLIES))
    builder = GraphBuilder(graph, tensors, outputs)
    build(builder, *arguments)
    return Prepared(graph.build().plan, builder.ends, outputs, arguments)


def _has_nothing(tensors: Sequence[torch.Tensor]) -> bool:
    """True if there is nothing to compute. An empty vector next to other tensors represents an absent
    operand, such as the statistics of a batch norm in inference."""
    first, *others = (each for each in tensors if each.is_floating_point())
    return not first.numel() or any(each.ndim > 1 and not each.numel() for each in others)


def _prepare_empty(name: str, outputs: Sequence[Any], device: torch.device) -> Empty:
    """Returns the entry for a call with nothing to compute. Gradients are sums: 0 over no elements."""
    is_gradient = name.endswith("_backward")
    if not is_gradient and any(each is not None and each.numel() for each in outputs):
        raise NotSupportedError(f"{name}: a tensor without elements.")
    return Empty(outputs, device)


_META = torch.device("meta")


def _depends_on_device(name: str, tensors: Sequence[torch.Tensor]) -> bool:
    """True if torch gives the results other layouts or types on the device than on the meta device, which
    represents the CPU in fake kernels: layouts of convolutions, types of the statistics of 16-bit inputs, and
    on a GPU also the results that torch's CUDA kernels lay out differently from the CPU kernels."""
    if tensors[0].is_cuda and any(part in name for part in ("sdpa", "batch_norm", "rms_norm", "softmax")):
        return True
    has_statistics = name == "layer_norm" or "batch_norm" in name
    return name in ("conv", "conv_backward") or (has_statistics and tensors[0].dtype in _HALVES)


_HALVES = (torch.float16, torch.bfloat16)


@contextmanager
def untraced() -> Iterator[None]:
    """Hides plan lookup and building from torch.jit.trace: they are not part of the call, and a tracer turns
    sizes into tensors."""
    state = torch._C._get_tracing_state()
    if state is None:
        yield
        return
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


@contextmanager
def _unlogged() -> Iterator[None]:
    """Suppresses torch's logging of exceptions in fake kernels in this thread: the caller gets them as
    errors."""
    logger, thread = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


def expected_of(
    expected: Callable[..., Any], arguments: Sequence[Any], device: torch.device
) -> list[torch.Tensor | None]:
    """Returns the results that torch itself would give, as tensors without memory.

    Args:
        expected: the operator, which torch can run on such tensors.
        arguments: the operator's arguments; only shapes, strides and types of the tensors matter.
        device: where torch assumes that the tensors are. The meta device costs a twentieth of the others,
            which need fake tensors.

    Raises:
        NotSupportedError: torch refuses the arguments.
    """

    def run() -> Any:
        return expected(*(_without_memory(each, device) for each in arguments))

    words = ""
    try:
        if device == _META:
            results = run()
        else:
            with _unlogged(), FakeTensorMode():
                results = run()
    except WeftError:
        raise
    except Exception as refusal:  # torch raises many types
        words = str(refusal) or type(refusal).__name__
    if words:  # raised outside the handler, so that the cached error does not hold torch's frames
        raise NotSupportedError(f"torch refuses the arguments: {words.splitlines()[0]}")
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _without_memory(value: Any, device: torch.device) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
