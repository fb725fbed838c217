"""Plans for torch tensors: built once per operator, attributes, and the tensors' types, shapes, strides and
devices; kept in a bounded cache that threads share."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.devices import default_handle
from weft.enums import device_kind, numerical_note, reshape_mode, scalar_type
from weft.errors import NotSupportedError, WeftError
from weft.graphs import Graph
from weft.memory import current_stream
from weft.plan import Plan
from weft.tensor import Tensor

CAPACITY = 4096
"""Plans that are kept; the one that was used longest ago goes first."""

Draw = Callable[..., None]
"""Draws an operator's graph: takes a Drawing and the operator's arguments."""


class Drawing:
    """A graph under construction, beside the torch tensors that its ends stand for."""

    def __init__(self, graph: Graph, inputs: Sequence[torch.Tensor], outputs: Sequence[Any]) -> None:
        self.graph, self.outputs = graph, outputs
        self._inputs = list(inputs)
        self.ends: list[tuple[Tensor, int]] = []
        """Each end's tensor, and which argument it is, or ~i for result i."""

    def read(
        self, value: torch.Tensor, dims: Sequence[int] | None = None, steps: Sequence[int] | None = None
    ) -> Tensor:
        """An argument as a tensor of the graph. dims, steps: of the same elements where they are shown in
        another shape, packed unless strides are given."""
        at = next(i for i, each in enumerate(self._inputs) if each is value)
        steps = _strides(value) if dims is None else steps
        shape = tuple(value.shape) or (1,) if dims is None else dims
        made = self.graph.tensor(shape, stride=steps, data_type=value.dtype)
        self.ends.append((made, at))
        return made

    def read_broadcast(self, value: torch.Tensor, rank: int) -> Tensor:
        """An argument with 1s before its extents, and in place of those whose elements are all one."""
        pairs = zip(value.shape, value.stride(), strict=True)
        shown = [(n, step) if step else (1, 1) for n, step in pairs]
        shown = [(1, 1)] * (rank - len(shown)) + shown
        return self.read(value, [n for n, _ in shown], [max(step, 1) for _, step in shown])

    def write(
        self, i: int, result: Tensor, dims: Sequence[int] | None = None, steps: Sequence[int] | None = None
    ) -> None:
        """Makes a tensor of the graph the operator's result i, of the type and layout that torch expects."""
        value = self.outputs[i]
        result.set_output(True).set_data_type(value.dtype)
        if dims is None:
            result.set_dim(tuple(value.shape) or (1,)).set_stride(_strides(value))
        else:
            result.set_dim(dims)
            if steps is not None:
                result.set_stride(steps)
        self.ends.append((result, ~i))

    def read_as(self, value: torch.Tensor, dims: Sequence[int]) -> Tensor:
        """An argument in another shape of the same order; moves elements only where strides do not do."""
        steps = steps_in(value, dims)
        if steps is not None:
            return self.read(value, dims, steps)
        moved: Tensor = self.graph.reshape(self.read(value), reshape_mode=reshape_mode.LOGICAL)
        return moved.set_dim(dims)

    def write_as(self, i: int, result: Tensor, dims: Sequence[int]) -> None:
        """Makes a tensor of these dims result i, which torch expects in another shape of the same order."""
        steps = steps_in(self.outputs[i], dims)
        if steps is not None:
            self.write(i, result, dims, steps)
        else:
            self.write(i, self.graph.reshape(result.set_dim(dims), reshape_mode=reshape_mode.LOGICAL))

    def number(self, value: float) -> Tensor:
        """A constant of the type that the graph computes in."""
        type_ = torch.float64 if self.is_double else torch.float32
        return self.graph.tensor_scalar(value, scalar_type.COMPILE_TIME_CONST, type_)

    @property
    def is_double(self) -> bool:
        """Whether the operator computes in double precision."""
        return any(each.dtype == torch.float64 for each in self._inputs)


def _strides(value: torch.Tensor) -> tuple[int, ...]:
    """Strides as Weft takes them: an extent of 1 may have any in torch."""
    steps = zip(value.shape, value.stride(), strict=True)
    return tuple(max(step, 1) if n == 1 else step for n, step in steps) or (1,)


def steps_in(value: torch.Tensor, dims: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of a tensor's elements in another shape of the same order; None where it has none."""
    try:
        return _strides(value.view(dims))
    except RuntimeError:
        return None


class Result(NamedTuple):
    """A result's shape, strides and type; None where the operator has none."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def _results_of(outputs: Sequence[Any]) -> list[Result | None]:
    return [
        None if out is None else Result(tuple(out.shape), tuple(out.stride()), out.dtype) for out in outputs
    ]


class Empty:
    """An operator on tensors without elements: launches nothing."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        self._results = _results_of(outputs)

    def __call__(self, tensors: Sequence[torch.Tensor], device: torch.device) -> list[Any]:
        """The results, of zeros where they have elements."""
        return [
            None if r is None else torch.empty_strided(*r[:2], dtype=r.dtype, device=device).zero_()
            for r in self._results
        ]


class Prepared:
    """An operator on tensors of one kind, ready to run on any such tensors."""

    def __init__(self, plan: Plan, ends: Sequence[tuple[Tensor, int]], outputs: Sequence[Any]) -> None:
        self.plan = plan
        uids = ((end.get_uid(), at) for end, at in ends)
        # An input that was drawn and that no result depends on has no slot.
        slots = {plan.index[uid]: at for uid, at in uids if at < 0 or uid in plan.index}
        self._inputs = [(slot, at) for slot, at in slots.items() if at >= 0]
        self._outputs = [(slot, ~at) for slot, at in slots.items() if at < 0]
        self._results = _results_of(outputs)
        self._ordinal = plan.ordinal if plan.device is device_kind.CUDA else None

    def __call__(self, tensors: Sequence[torch.Tensor], device: torch.device) -> list[Any]:
        """Runs on torch's current stream; nothing waits."""
        made: list[Any] = [
            None if r is None else torch.empty_strided(r.shape, r.stride, dtype=r.dtype, device=device)
            for r in self._results
        ]
        frame = self.plan.thread.frame
        pointers = frame.pointers
        for slot, at in self._inputs:
            pointers[slot] = tensors[at].data_ptr()
        for slot, at in self._outputs:
            pointers[slot] = made[at].data_ptr()
        stream = 0 if self._ordinal is None else current_stream(self._ordinal, tensors[0])
        self.plan.launch(frame, None, stream)
        return made


Ready = Prepared | Empty

_lock = threading.Lock()
_plans: OrderedDict[Any, Ready | WeftError] = OrderedDict()
_counts = {"hits": 0, "misses": 0}


def cache_info() -> dict[str, int]:
    """How often a plan was found, how often one was built, and how many are kept."""
    return {**_counts, "size": len(_plans), "capacity": CAPACITY}


def clear_cache() -> None:
    """Forgets all plans."""
    with _lock:
        _plans.clear()


def run(name: str, expected: Callable[..., Any], draw: Draw, arguments: Sequence[Any]) -> list[Any]:
    """The results of an operator on torch tensors. expected: tells results of fake tensors. Raises WeftError
    where Weft refuses the operator on such tensors."""
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    key = (name, _unwanted(tensors[0], name in CONVOLVES, name in MULTIPLIES), *map(_key, arguments))
    found = _plans.get(key)
    if found is None:
        found = _add(key, lambda: _prepare(name, expected, draw, arguments))
    else:
        _touch(key)
    if isinstance(found, WeftError):
        raise found
    return found(tensors, tensors[0].device)


def _key(value: Any) -> Any:
    """What a plan depends on of one argument."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), value.device
    return tuple(value) if isinstance(value, list) else (type(value), value)


def _touch(key: Any) -> None:
    """Notes a use. One of a plan that another thread has just dropped is no harm."""
    _counts["hits"] += 1
    with contextlib.suppress(KeyError):
        _plans.move_to_end(key)


def _add(key: Any, make: Callable[[], Ready]) -> Ready | WeftError:
    """Builds a plan, once where several threads ask, and remembers it or the refusal."""
    with _lock:
        found = _plans.get(key)
        if found is None:
            _counts["misses"] += 1
            try:
                found = make()
            except WeftError as error:
                found = error.with_traceback(None)
            _plans[key] = found
            while len(_plans) > CAPACITY:
                _plans.popitem(last=False)
    return found


_NARROWED, _UNORDERED = numerical_note.DOWN_CONVERT_INPUTS, numerical_note.NONDETERMINISTIC


CONVOLVES = {"conv", "conv_backward"}
"""Operators that narrow floats where torch's convolutions may."""

MULTIPLIES = {"mm", "bmm", "addmm", "linear", "grouped_mm", "quantized_linear", "sdpa"}
MULTIPLIES |= {f"{name}_backward" for name in MULTIPLIES}
"""Operators that narrow floats where torch's matrix products may."""


def _unwanted(value: torch.Tensor, convolves: bool, multiplies: bool) -> tuple[numerical_note, ...]:
    """What torch's flags forbid on a GPU: products of narrowed floats, sums in no certain order."""
    if not value.is_cuda:
        return ()
    flags = torch.backends.cudnn
    is_ordered = flags.deterministic or torch.are_deterministic_algorithms_enabled()
    is_exact = convolves and not flags.allow_tf32
    is_exact |= multiplies and not torch.backends.cuda.matmul.allow_tf32
    return (*((_NARROWED,) if is_exact else ()), *((_UNORDERED,) if is_ordered else ()))


def _prepare(name: str, expected: Callable[..., Any], draw: Draw, arguments: Sequence[Any]) -> Ready:
    # An argument is known by its object: each is one of its own, also where a caller gives one tensor twice.
    arguments = [each.detach() if isinstance(each, torch.Tensor) else each for each in arguments]
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    device = tensors[0].device
    if any(each.device != device for each in tensors):
        raise NotSupportedError(f"{name}: tensors of several devices. Move them to one.")
    outputs = expected_of(expected, arguments)
    if _has_nothing(tensors):
        return _prepare_empty(name, outputs)
    kind = device_kind.CUDA if device.type == "cuda" else device_kind.CPU
    handle = default_handle(kind, device.index or 0)
    is_double = any(each.dtype == torch.float64 for each in tensors)
    graph = Graph(name, handle=handle, compute_data_type=torch.float64 if is_double else torch.float32)
    if unwanted := _unwanted(tensors[0], name in CONVOLVES, name in MULTIPLIES):
        graph.deselect_numeric_notes(unwanted)
    drawing = Drawing(graph, tensors, outputs)
    draw(drawing, *arguments)
    return Prepared(graph.build().plan, drawing.ends, outputs)


def _has_nothing(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether there is nothing to compute. Beside others a vector of no elements stands for one that is not
    there, as the statistics of a batch norm in use."""
    first, *others = (each for each in tensors if each.is_floating_point())
    return not first.numel() or any(each.ndim > 1 and not each.numel() for each in others)


def _prepare_empty(name: str, outputs: Sequence[Any]) -> Empty:
    """What stands for a plan where there is nothing to compute. Gradients are sums: 0 over nothing."""
    is_gradient = name.endswith("_backward")
    if not is_gradient and any(each is not None and each.numel() for each in outputs):
        raise NotSupportedError(f"{name}: a tensor without elements.")
    return Empty(outputs)


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    return mode.from_tensor(value.detach()) if isinstance(value, torch.Tensor) else value


def expected_of(expected: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
    """The results that torch itself would give, as fake tensors without memory."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        results = expected(*(_fake(mode, each) for each in arguments))
    return list(results) if isinstance(results, (tuple, list)) else [results]
