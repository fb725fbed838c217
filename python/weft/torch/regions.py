"""A region: torch operators that lie together in a compiled graph, drawn as one graph of Weft's."""

from __future__ import annotations

import operator
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.devices import default_handle
from weft.enums import device_kind, reshape_mode
from weft.errors import NotSupportedError, WeftError
from weft.graphs import Graph
from weft.tensor import Tensor
from weft.torch.nodes import DRAWN, VIEWS
from weft.torch.plans import Drawing, Prepared, _key, _strides, _unwanted

aten = torch.ops.aten

CAPACITY = 64
"""Plans that a region keeps, one for each set of shapes; the oldest goes first."""

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_NARROW = (torch.bfloat16, torch.float16)

GETS = {operator.getitem}
"""What takes one result of several."""

MOVES = {*VIEWS, aten.permute.default, aten.t.default, aten.transpose.int, aten.expand.default}
MOVES |= {aten.slice.Tensor, aten.select.int, aten.clone.default, aten.detach.default, aten.alias.default}
"""What computes nothing."""


def name_of(target: Any) -> str:
    """An operator's name, without its namespace."""
    return str(target).removeprefix("aten.") if hasattr(target, "_schema") else target.__name__


class RegionDrawing(Drawing):
    """One graph for many of torch's operators: what one writes another reads, by the fake tensor that stands
    for it."""

    def __init__(self, graph: Graph, inputs: Sequence[Any]) -> None:
        super().__init__(graph, inputs, ())
        self._made: dict[int, Tensor] = {}
        self._values: list[Any] = []  # whose ids are keys, so they must live
        self._blank: set[int] = set()

    def read(self, value: Any, dims: Any = None, steps: Any = None) -> Tensor:
        """As Drawing's, of an input or of what an operator before has written."""
        made = self._made.get(id(value))
        if made is None and any(each is value for each in self._inputs):
            if dims is not None and steps is None and not value.is_contiguous():
                return self._reshaped(self.read(value), dims)
            made = super().read(value, dims, steps)
            if dims is not None:
                return made
            self._keep(value, made)
        if made is None:
            raise NotSupportedError("a value that no operator of the region has drawn.")
        return made if dims is None or list(dims) == made.get_dim() else self._reshaped(made, dims)

    def read_broadcast(self, value: Any, rank: int) -> Tensor:
        """As Drawing's."""
        if id(value) in self._made:
            return self.read(value, [*[1] * (rank - value.ndim), *value.shape])
        return super().read_broadcast(value, rank)

    def write(self, i: int, result: Tensor, dims: Any = None, steps: Any = None) -> None:
        """Result i of the operator, which others may read; its layout is Weft's to choose."""
        value = self.outputs[i]
        shape = list(value.shape) or [1]
        if value.dtype not in _NARROW:  # narrow ones are free: exact where they stay on the chip
            result.set_data_type(value.dtype)
        result.set_dim(shape if dims is None else dims)
        if dims is not None and list(dims) != shape:
            result = self._reshaped(result, shape)
        self._keep(value, result)

    def finish(self, i: int, value: Any, layout: Any) -> None:
        """Makes a value result i of the region. What its operator left undrawn nobody reads, such as the seed
        of a dropout that is not there. layout: a tensor with the strides that it gets."""
        if id(value) in self._blank:
            return
        result = self._made.get(id(value))
        is_end = result is None or any(result is end for end, _ in self.ends)
        if result is None or is_end:
            result = self.graph.identity(self.read(value))
        result.set_output(True).set_data_type(value.dtype)
        result.set_dim(tuple(value.shape) or (1,)).set_stride(_strides(layout))
        self.ends.append((result, ~i))

    def alias(self, shown: Any, value: Any) -> None:
        """Lets a value be read in another shape of the same order."""
        self._keep(shown, self.read(value, [*shown.shape]))

    def leave_blank(self) -> None:
        """Notes which results of the operator it has not drawn."""
        blank = [each for each in self.outputs if id(each) not in self._made]
        self._values += blank
        self._blank |= set(map(id, blank))

    def _keep(self, value: Any, made: Tensor) -> None:
        self._values.append(value)
        self._made[id(value)] = made

    def _reshaped(self, value: Tensor, dims: Sequence[int]) -> Tensor:
        return self.graph.reshape(value, reshape_mode=reshape_mode.LOGICAL).set_dim(list(dims))


def draw(drawing: RegionDrawing, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Draws one operator; what torch left out has its default value."""
    if hasattr(target, "_schema"):
        rest = target._schema.arguments[len(args) :]
        args = (*args, *(kwargs.get(each.name, each.default_value) for each in rest))
    DRAWN[target](drawing, *args)


class _Drawer(torch.fx.Interpreter):  # type: ignore[misc]
    """Runs a region's operators on fake tensors, and draws each."""

    def __init__(self, module: torch.fx.GraphModule, drawing: RegionDrawing) -> None:
        super().__init__(module)
        self._drawing = drawing

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_function(target, args, kwargs)
        self._drawing.outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        draw(self._drawing, target, args, kwargs)
        if target not in GETS:
            self._drawing.leave_blank()
        return result


@dataclass
class Cover:
    """What became of the graphs that were compiled."""

    regions: list[Region] = field(default_factory=list)
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Nodes that torch computes, by operator and reason."""
    refused: list[tuple[list[str], str]] = field(default_factory=list)
    """Regions that torch computes as Weft builds none, and why."""
    graphs: list[Graph] = field(default_factory=list)
    """Weft's graphs, built."""

    def __str__(self) -> str:
        count = sum(len(each.operators()) for each in self.regions)
        lines = [f"{count} operators in {len(self.regions)} regions, {len(self.graphs)} graphs built"]
        lines += [f"  {i}: {', '.join(each.operators())}" for i, each in enumerate(self.regions)]
        lines += [f"torch computes {n} x {name}: {why}" for (name, why), n in sorted(self.left.items())]
        lines += [f"torch computes {', '.join(names)}: {why}" for names, why in self.refused]
        return "\n".join([*lines, *(graph.explain() for graph in self.graphs)])


class Built(NamedTuple):
    """A region for one set of shapes."""

    prepared: Prepared
    constants: list[Any]
    """Results that are no tensors."""


class Region:
    """A part of a graph that Weft covers; called like the module that it stands for."""

    def __init__(self, module: torch.fx.GraphModule, cover: Cover) -> None:
        self.module, self._cover = module, cover
        self._plans: dict[Any, Built | WeftError] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        """The results; torch's own where Weft builds no graph."""
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        key = (_unwanted(tensors[0]), *map(_key, arguments))
        found = self._plans.get(key)
        if found is None:
            found = self._add(key, arguments)
        if isinstance(found, WeftError):
            return self.module(*arguments)
        made = found.prepared(tensors, tensors[0].device)
        pairs = zip(found.constants, made, strict=True)
        return tuple(own if result is None else result for own, result in pairs)

    def _add(self, key: Any, arguments: Sequence[Any]) -> Built | WeftError:
        with self._lock:
            found = self._plans.get(key)
            if found is None:
                try:
                    found = self._prepare(arguments)
                except WeftError as error:
                    found = error.with_traceback(None)
                    self._cover.refused.append((self.operators(), str(error)))
                self._plans[key] = found
                while len(self._plans) > CAPACITY:
                    self._plans.pop(next(iter(self._plans)))
        return found

    def operators(self) -> list[str]:
        """The names of the operators that compute, in order."""
        nodes = (n for n in self.module.graph.nodes if n.op == "call_function")
        return [name_of(n.target) for n in nodes if n.target not in GETS and n.target not in MOVES]

    def _prepare(self, arguments: Sequence[Any]) -> Built:
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        device = tensors[0].device
        if any(each.numel() == 0 for each in tensors):
            raise NotSupportedError("a tensor without elements.")
        if any(each.device != device for each in tensors):
            raise NotSupportedError("tensors of several devices.")
        kind = device_kind.CUDA if device.type == "cuda" else device_kind.CPU
        is_double = any(each.dtype == torch.float64 for each in tensors)
        narrow = Counter(each.dtype for each in tensors if each.dtype in _NARROW).most_common(1)
        types = {"compute_data_type": torch.float64 if is_double else torch.float32}
        if narrow:
            types["io_data_type"] = narrow[0][0]
        graph = Graph("compiled", handle=default_handle(kind, device.index or 0), **types)
        if _unwanted(tensors[0]):
            graph.deselect_numeric_notes(_unwanted(tensors[0]))
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fakes = [mode.from_tensor(e.detach()) if isinstance(e, torch.Tensor) else e for e in arguments]
            drawing = RegionDrawing(graph, [each for each in fakes if isinstance(each, torch.Tensor)])
            results = _Drawer(self.module, drawing).run(*fakes)
            outputs = list(results) if isinstance(results, (tuple, list)) else [results]
            layouts = [_unshared(each) if isinstance(each, torch.Tensor) else None for each in outputs]
        for i, value in enumerate(outputs):
            if layouts[i] is not None:
                drawing.finish(i, value, layouts[i])
        prepared = Prepared(graph.build().plan, drawing.ends, layouts)
        self._cover.graphs.append(graph)
        return Built(prepared, [None if isinstance(each, torch.Tensor) else each for each in outputs])


def _unshared(value: torch.Tensor) -> torch.Tensor:
    """A tensor as that one, whose elements have a place each."""
    pairs = zip(value.shape, value.stride(), strict=True)
    is_spread = any(n > 1 and step == 0 for n, step in pairs)
    return value.contiguous() if is_spread else value
