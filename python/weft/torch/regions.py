"""A region: connected torch operators of a compiled graph, built as one Weft graph."""

from __future__ import annotations

import functools
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from weft.arguments import counted
from weft.buffers import packed_strides
from weft.devices import default_handle
from weft.enums import device_kind, reshape_mode
from weft.errors import NotSupportedError, WeftError
from weft.graphs import Graph
from weft.tensor import Tensor
from weft.torch import calls, plans
from weft.torch.nodes import BLANK, BUILDERS, OWN, VIEWS
from weft.torch.plans import CONVOLVES, MULTIPLIES, Cache, GraphBuilder, Prepared, Ready, _strides

aten = torch.ops.aten

CAPACITY = 64
"""The number of plans that a region caches, one per set of shapes."""

_NARROW = (torch.bfloat16, torch.float16)

GETITEM_OPS = {operator.getitem}
"""Operators that take one result out of a tuple."""

VIEW_OPS = {*VIEWS, aten.permute.default, aten.t.default, aten.transpose.int, aten.expand.default}
VIEW_OPS |= {aten.slice.Tensor, aten.select.int, aten.unbind.int, aten.split.Tensor}
VIEW_OPS |= {aten.split_with_sizes.default, aten.detach.default, aten.alias.default}
"""Operators whose result is a view of their input."""

MOVE_OPS = {*VIEW_OPS, aten.clone.default}
"""Operators that compute nothing: views and copies."""


def name_of(target: Any) -> str:
    """Returns an operator's name without its namespace."""
    return str(target).removeprefix("aten.") if hasattr(target, "_schema") else target.__name__


class RegionBuilder(GraphBuilder):
    """One graph for many torch operators. The fake tensors connect them: an operator reads the graph tensor
    that an earlier operator wrote for the same fake tensor."""

    def __init__(self, graph: Graph, inputs: Sequence[Any]) -> None:
        super().__init__(graph, inputs, ())
        self._tensors: dict[int, Tensor] = {}
        """The graph tensor of each value. It has the value's elements in the same order, but may have other
        dims."""
        self._reshapes: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        """Reshaped graph tensors, by tensor and dims."""
        self._permuted: dict[int, tuple[Any, Sequence[int]]] = {}
        """Values that are permutations of other values: the source and the order."""
        self._narrow: dict[int, Any] = {}
        """The narrower source of each value that is a copy in a wider type."""
        self._values: list[Any] = []  # kept alive because their ids are keys
        self._blank: set[int] = set()

    def read(self, value: Any, dims: Any = None, steps: Any = None) -> Tensor:
        """Reads an input, or a value that an earlier operator has written."""
        shape = list(dims) if dims is not None else list(value.shape) or [1]
        tensor = self._tensors[id(value)] if self._has_tensor(value) else None
        if tensor is None:
            if not any(each is value for each in self._inputs):
                raise NotSupportedError("a value that no operator of the region computes.")
            if value.device != _leading(self._inputs).device:
                raise NotSupportedError("tensors on different devices.")
            _check_elements(value)
            if dims is not None and (steps is not None or value.is_contiguous()):
                return super().read(value, dims, steps)
            tensor = super().read(value)
            self._record(value, tensor)
        return tensor if tensor.get_dim() == shape else self._reshaped(tensor, shape)

    def read_broadcast(self, value: Any, rank: int) -> Tensor:
        """Like GraphBuilder.read_broadcast, also for tensors that the region computes."""
        if self._has_tensor(value):
            return self.read(value, [*[1] * (rank - value.ndim), *value.shape])
        return super().read_broadcast(value, rank)

    def read_permuted(self, value: Any, order: Sequence[int], rank: int = 0) -> Tensor:
        """Like GraphBuilder.read_permuted, but a value that the region permutes is read from its source with
        the composed order."""
        source, before = self._permuted.get(id(value), (value, range(value.ndim)))
        composed = [before[i] for i in order]
        if not self._has_tensor(source):
            return super().read_permuted(source, composed, rank)
        tensor = self.read(source)
        if composed != list(range(source.ndim)):
            tensor = self.graph.transpose(tensor, composed).set_dim([source.shape[i] for i in composed])
        return self._reshaped(tensor, [1] * (rank - len(order)) + tensor.get_dim()) if rank else tensor

    def permute(self, value: Any, source: Any, order: Sequence[int]) -> None:
        """Defines a value as another one with its dimensions permuted."""
        self._record(value, self.graph.transpose(self.read(source), order).set_dim([*value.shape]))
        self._permuted[id(value)] = source, list(order)

    def write(self, i: int, result: Tensor, dims: Any = None, steps: Any = None) -> None:
        """Defines result i of the operator for later operators to read; Weft chooses its layout."""
        value = self.outputs[i]
        _check_elements(value)
        shape = list(dims) if dims is not None else list(value.shape) or [1]
        self._record(value, result.set_data_type(value.dtype).set_dim(shape))

    def define_reshaped(self, value: Any, source: Any) -> None:
        """Defines a value as a reshaped view of another one, with its elements in the same order."""
        if id(source) in self._narrow and id(source) not in self._tensors:
            narrow = self._narrow[id(source)]
            shown = narrow.new_empty(value.shape)
            self.define_reshaped(shown, narrow)
            self.widen(value, shown)
        elif id(source) in self._tensors or not source.is_contiguous():
            self.read(source)
            self._record(value, self._tensors[id(source)])
        else:
            self._record(value, self.read(source, list(value.shape) or [1]))

    def define_part(self, value: Any, source: Any) -> None:
        """Defines a value as the part of another one that starts at its first element. A part of an input is
        read in place with the value's strides; a part of a computed tensor is copied."""
        shape = list(value.shape)
        if not self._has_tensor(source):
            self._record(value, self.read(source, shape, value.stride()))
        else:
            parts = [slice(0, n) for n in shape]
            self._record(value, self.graph.slice(self.read(source), parts).set_dim(shape))

    def space(self, values: Sequence[Any]) -> list[int]:
        """Returns the dims in which to compute the operator's result from these values: those of a computed
        operand if all operands can be read with them, which avoids a reshape that prevents fusion; else the
        result's own."""
        shape = list(self.outputs[0].shape) or [1]
        values = [self.exact(each) for each in values]
        for each in values:
            tensor = self._tensors.get(id(each))
            if tensor is None or list(each.shape) != shape or tensor.get_dim() == shape:
                continue
            dims: list[int] = tensor.get_dim()
            if all(_shape_in(dims, shape, other) for other in values):
                return dims
        return shape

    def operand(self, value: Any, dims: Sequence[int]) -> Tensor:
        """Reads a tensor or a number as an operand of an operation over the dims that space() returned."""
        if not isinstance(value, torch.Tensor):
            return self.number(float(value))
        value, shape = self.exact(value), list(self.outputs[0].shape) or [1]
        return self.read(value, _shape_in(dims, shape, value))

    def finish(self, i: int, value: Any, layout: Any) -> None:
        """Declares a value as result i of the region. Results that the operator left blank are unused, such
        as the seed of a dropout that is not applied. layout: a tensor with the strides that the result
        gets."""
        if id(value) in self._blank:
            return
        is_packed = layout.is_contiguous() and self._has_tensor(value)
        result = self._tensors[id(value)] if is_packed else self.read(value)
        if any(result is end for end, _ in self.ends):
            result = self.graph.identity(result).set_dim(result.get_dim())
        result.set_output(True).set_data_type(value.dtype)
        # Set explicitly: by default a result would inherit the layout of its source.
        result.set_stride(packed_strides(result.get_dim()) if layout.is_contiguous() else _strides(layout))
        self.ends.append((result, ~i))

    def leave_blank(self, may_lack: bool) -> None:
        """Records which results of the operator have no graph tensor. may_lack: whether such a result may
        have elements, because it is unused."""
        blank = [e for e in self.outputs if id(e) not in self._tensors and id(e) not in self._narrow]
        lacking = [each for each in blank if isinstance(each, torch.Tensor) and each.numel()]
        if lacking and not may_lack:
            raise NotSupportedError(f"no result of shape {list(lacking[0].shape)}: Weft does not compute it.")
        self._values += blank
        self._blank |= set(map(id, blank))

    def is_expanded(self, value: Any, dim: int) -> bool:
        """Like GraphBuilder.is_expanded, but False for computed tensors, whose strides Weft chooses."""
        return not self._has_tensor(value) and super().is_expanded(value, dim)

    def exact(self, value: Any) -> Any:
        """Like GraphBuilder.exact: returns the original if this value is a copy of it in a wider type."""
        return self._narrow.get(id(value), value)

    def widen(self, value: Any, source: Any) -> None:
        """Defines a value as a copy of another one in a wider type. It is stored only if an operator requires
        the wider type, or if it is a result of the region."""
        self._narrow[id(value)] = self.exact(source)
        self._values += [value, source]

    def _has_tensor(self, value: Any) -> bool:
        """True if the graph has a tensor for the value. Creates the tensor of a widened copy."""
        if id(value) not in self._tensors and id(value) in self._narrow:
            copy = self.graph.identity(self.read(self._narrow[id(value)]))
            self._record(value, copy.set_data_type(value.dtype).set_dim(list(value.shape) or [1]))
        return id(value) in self._tensors

    def _record(self, value: Any, tensor: Tensor) -> None:
        self._values.append(value)
        self._tensors[id(value)] = tensor

    def _reshaped(self, value: Tensor, dims: Sequence[int]) -> Tensor:
        key = id(value), tuple(dims)
        if key not in self._reshapes:
            shown = self.graph.reshape(value, reshape_mode=reshape_mode.LOGICAL)
            self._reshapes[key] = shown.set_dim(list(dims))
        return self._reshapes[key]


def _check_elements(value: torch.Tensor) -> None:
    if not value.numel():
        raise NotSupportedError("a tensor without elements.")


def _shape_in(dims: Sequence[int], shape: Sequence[int], value: Any) -> list[int] | None:
    """Returns the dims with which to read an operand if the result has `dims` instead of `shape`, or None if
    none fit."""
    if not isinstance(value, torch.Tensor):
        return []
    extents = list(value.shape) or [1]
    if extents == list(shape):
        return list(dims)
    if list(dims) == list(shape):
        return [1] * (len(dims) - len(extents)) + extents
    while extents and extents[0] == 1:
        extents = extents[1:]
    tail = len(extents)
    fits = extents == list(shape[len(shape) - tail :]) == list(dims[len(dims) - tail :])
    return [1] * (len(dims) - tail) + extents if fits else None


def build(builder: RegionBuilder, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Adds one operator to the graph, with the defaults of arguments that torch omitted."""
    if hasattr(target, "_schema"):
        rest = target._schema.arguments[len(args) :]
        args = (*args, *(kwargs.get(each.name, each.default_value) for each in rest))
    BUILDERS[target](builder, *args)


class _Refusal(NotSupportedError):
    """Names the node of a region that Weft refuses, and the reason."""

    def __init__(self, node: torch.fx.Node, why: str) -> None:
        super().__init__(why)
        self.node = node


class _RegionInterpreter(torch.fx.Interpreter):  # type: ignore[misc]
    """Runs a region's operators on fake tensors and adds each to the graph. Raises _Refusal."""

    def __init__(self, module: torch.fx.GraphModule, builder: RegionBuilder) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._builder = builder
        self.extra_traceback = False  # torch would append its own text to a refusal

    def run_node(self, node: torch.fx.Node) -> Any:
        try:
            return super().run_node(node)
        except WeftError as error:
            raise _Refusal(node, str(error)) from error

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_function(target, args, kwargs)
        self._builder.outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        build(self._builder, target, args, kwargs)
        if target not in GETITEM_OPS:
            self._builder.leave_blank(target in BLANK)
        return result


@dataclass
class Cover:
    """Reports how the compiled graphs are covered."""

    regions: list[Region] = field(default_factory=list)
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The numbers of nodes that torch computes, by operator and reason."""
    refused: list[tuple[list[str], str]] = field(default_factory=list)
    """Operators of regions that torch computes because Weft refuses their arguments, with the reasons."""
    graphs: list[Graph] = field(default_factory=list)
    """The Weft graphs that were built."""
    compiled: int = 0
    """The number of graphs of which Inductor compiles the remaining operators."""
    eager_reasons: list[str] = field(default_factory=list)
    """Why the remaining operators of the other graphs run one by one."""

    def __str__(self) -> str:
        count = sum(len(each.operators()) for each in self.regions)
        regions, graphs = counted(len(self.regions), "region"), counted(len(self.graphs), "graph")
        lines = [f"{counted(count, 'operator')} in {regions}, {graphs} built"]
        lines += [f"  {i}: {', '.join(each.operators())}" for i, each in enumerate(self.regions)]
        lines += [f"torch computes {n} x {name}: {why}" for (name, why), n in sorted(self.left.items())]
        lines += [f"torch computes {', '.join(names)}: {why}" for names, why in self.refused]
        lines += [f"Inductor compiles the other operators of {counted(self.compiled, 'graph')}"] * bool(
            self.compiled
        )
        lines += [f"torch runs the operators of a graph one by one: {why}" for why in self.eager_reasons]
        return "\n".join([*lines, *(graph.explain() for graph in self.graphs)])


class _SameKind:
    """Checks in one call to torch whether arguments are of the same kind as a region's first ones; usually
    they are."""

    def __init__(self, arguments: Sequence[torch.Tensor], prepared: Ready) -> None:
        self.prepared, self._flags = prepared, _flags_of(arguments)
        extents = [[*each.shape] for each in arguments]
        strides = [[*each.stride()] for each in arguments]
        guards = torch._C._dynamo.guards.TensorGuards(
            *arguments, dynamic_dims_sizes=extents, dynamic_dims_strides=strides
        )
        self._check: Callable[..., bool] = guards.check

    def fits(self, arguments: Sequence[Any]) -> bool:
        """True if the arguments have the same cache key as the first ones."""
        return self._check(*arguments) and (self._flags is None or self._flags == plans.flags())


def _flags_of(tensors: Sequence[torch.Tensor]) -> tuple[bool, ...] | None:
    return plans.flags() if _leading(tensors).is_cuda else None


class Region:
    """A part of a graph that Weft covers. It does not contain the views of its results: torch creates these
    at no cost."""

    def __init__(self, module: torch.fx.GraphModule, cover: Cover) -> None:
        self.module, self._cover = module, cover
        """The operators of the region, reduced to the results that Weft has to compute."""
        self.bases, self.views, self.ends = _separate_views(module)
        """The computed results, the views of these and of the arguments, and the structure of what the graph
        reads."""
        given = [each for each in module.graph.nodes if each.op == "placeholder"]
        self.numbers = [not isinstance(each.meta.get("val", _TENSOR), torch.Tensor) for each in given]
        """For each argument, whether it is a number (a symbolic size) instead of a tensor."""
        names = {_weft_name(each.target) for each in module.graph.nodes if each.op == "call_function"}
        self._products = bool(names & CONVOLVES), bool(names & MULTIPLIES)
        self._plans = Cache(CAPACITY)
        self._first: _SameKind | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Returns the results, one tensor or a tuple. If Weft builds no graph, torch computes them."""
        first = self._first
        if first is not None and first.fits(arguments):
            return self._alone(first.prepared(arguments))
        prepared = self._ready(arguments)
        if self._first is None and not any(self.numbers):
            self._first = _SameKind(arguments, prepared)
        return self._alone(prepared(arguments))

    def _alone(self, results: tuple[Any, ...]) -> Any:
        return results[0] if len(self.bases) == 1 else results

    def quick(self) -> Callable[..., Any]:
        """Returns the region as a function that runs in libweft_torch if possible."""
        return calls.FUNCTIONS.operator(self._find, self) if calls.FUNCTIONS else self

    def _find(self, *arguments: Any) -> Any:
        """Returns the prepared plan for such arguments for libweft_torch; None if it runs in Python."""
        ready = self._ready(arguments)
        return ready.in_c if isinstance(ready, Prepared) else None

    def _ready(self, arguments: Sequence[Any]) -> Ready:
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        key = plans.key_of("", _leading(tensors), arguments)
        return self._plans.find(key, lambda: self._make(arguments))

    def _make(self, arguments: Sequence[Any]) -> Ready:
        try:
            return self._prepare(arguments)
        except WeftError as error:
            refused = self._refused(error, arguments)
            for why, nodes in refused.items():
                if names := [name_of(node.target) for node in nodes if _computes(node)]:
                    self._cover.refused.append((names, why))
                    _warn(", ".join(dict.fromkeys(names)), why)
            return _SplitRegion(self, set().union(*refused.values()), self._cover, arguments)

    def _refused(self, error: WeftError, arguments: Sequence[Any]) -> dict[str, list[torch.fx.Node]]:
        """Returns the nodes that Weft refuses, by reason: those that it refuses when tried separately, else
        the one that it refuses in the region, else all of them."""
        is_complete = not isinstance(error, _Refusal)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            alone = _SeparateInterpreter(self.module, self._products, is_complete)
            alone.run(*_fakes(mode, arguments))
        refused = [error.node] if isinstance(error, _Refusal) else self._computing()
        return alone.refused or {str(error): refused}

    def operators(self) -> list[str]:
        """Returns the names of the operators that compute, in order."""
        return [name_of(each.target) for each in self._computing()]

    def _computing(self) -> list[torch.fx.Node]:
        return [each for each in self.module.graph.nodes if _computes(each)]

    def expected(self, *arguments: Any) -> list[Any]:
        """Computes the results on fake tensors; None for results that are not tensors, such as sizes."""
        return _layouts(self.module(*arguments))

    def _prepare(self, arguments: Sequence[Any]) -> Prepared:
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        graph = _graph_of(tensors, self._products)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fakes = _fakes(mode, arguments)
            builder = RegionBuilder(graph, [each for each in fakes if isinstance(each, torch.Tensor)])
            values = _RegionInterpreter(self.module, builder).run(*fakes)
            layouts = _layouts(values)
        for i, (value, layout) in enumerate(zip(values, layouts, strict=True)):
            if layout is not None:
                builder.finish(i, value, layout)
        prepared = Prepared(graph.build().plan, builder.ends, layouts, arguments)
        self._cover.graphs.append(graph)
        return prepared


@functools.cache
def _warn(name: str, why: str) -> None:
    """Warns once about an operator that Weft supports, but not with these arguments."""
    warnings.warn(
        f'torch.compile(backend="weft"): torch computes {name}: {why} weft.torch.explain() lists all '
        "operators that it computes.",
        stacklevel=2,
    )


class _SeparateInterpreter(torch.fx.Interpreter):  # type: ignore[misc]
    """Runs a region's operators on fake tensors and builds a separate graph for each. builds: whether to also
    build the graphs of the operators that compute."""

    def __init__(self, module: torch.fx.GraphModule, products: tuple[bool, bool], builds: bool) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._products, self._builds = products, builds
        self.refused: dict[str, list[torch.fx.Node]] = {}
        """The nodes whose graphs Weft does not build, by reason."""

    def run_node(self, node: torch.fx.Node) -> Any:
        result = super().run_node(node)
        if node.op == "call_function" and node.target not in GETITEM_OPS:
            args, kwargs = self.fetch_args_kwargs_from_env(node)
            try:
                builder = build_separately(node.target, args, kwargs, result, self._products)
                if self._builds and _computes(node):
                    for i, each in enumerate(builder.outputs):
                        if isinstance(each, torch.Tensor):
                            builder.finish(i, each, _without_expanded(each))
                    builder.graph.build()
            except WeftError as error:
                self.refused.setdefault(str(error), []).append(node)
        return result


def _computes(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and node.target not in GETITEM_OPS and node.target not in MOVE_OPS


def build_separately(
    target: Any, args: Any, kwargs: Any, results: Any, products: tuple[bool, bool] = (False, False)
) -> RegionBuilder:
    """Builds a graph of one operator on fake tensors. Raises WeftError if Weft refuses it.

    Args:
        target, args, kwargs: the operator and its arguments.
        results: what it returns.
        products: whether the region has convolutions, and whether it has matrix products.
    """
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    builder = RegionBuilder(_graph_of(tensors, products), tensors)
    builder.outputs = list(results) if isinstance(results, (tuple, list)) else [results]
    build(builder, target, args, kwargs)
    builder.leave_blank(target in BLANK)
    return builder


class _SplitRegion:
    """A region of which Weft refuses some operators. torch computes these; smaller regions compute the
    others. The results get the strides that the whole region would give them."""

    def __init__(
        self, region: Region, refused: set[torch.fx.Node], cover: Cover, arguments: Sequence[Any]
    ) -> None:
        from weft.torch.partition import cut_around  # not at the top: partition imports this module

        self._module = cut_around(region, refused, cover)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            self._layouts = region.expected(*_fakes(mode, arguments))

    def __call__(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The results."""
        return tuple(map(_with_layout, self._module(*arguments), self._layouts))


def _with_layout(value: Any, layout: Any) -> Any:
    if layout is None or value.stride() == layout.stride():
        return value
    options = {"dtype": value.dtype, "device": value.device}
    return torch.empty_strided(value.shape, layout.stride(), **options).copy_(value)


def _layouts(values: Sequence[Any]) -> list[Any]:
    return [_without_expanded(each) if isinstance(each, torch.Tensor) else None for each in values]


def _fakes(mode: FakeTensorMode, arguments: Sequence[Any]) -> list[Any]:
    return [mode.from_tensor(e.detach()) if isinstance(e, torch.Tensor) else e for e in arguments]


def _weft_name(target: Any) -> str:
    """Returns the name of Weft's operator for a torch operator, or an empty string."""
    if "scaled_dot_product" in str(target):
        return "sdpa"
    return OWN[target].name if target in OWN else ""


def _leading(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the tensor that determines the device: dropout seeds may be on the CPU next to tensors on a
    GPU."""
    return next((each for each in tensors if each.is_cuda), tensors[0])


def _graph_of(tensors: Sequence[torch.Tensor], products: tuple[bool, bool]) -> Graph:
    """Returns an empty graph for tensors of these types, on their device."""
    device = _leading(tensors).device
    kind = device_kind.CUDA if device.type == "cuda" else device_kind.CPU
    is_double = any(each.dtype == torch.float64 for each in tensors)
    narrow = Counter(each.dtype for each in tensors if each.dtype in _NARROW).most_common(1)
    types = {"compute_data_type": torch.float64 if is_double else torch.float32}
    if narrow:
        types["io_data_type"] = narrow[0][0]
    graph = Graph("compiled", handle=default_handle(kind, device.index or 0), **types)
    if device.type == "cuda":
        graph.deselect_numeric_notes(plans.unwanted(plans.flags(), *products))
    return graph


def _separate_views(module: torch.fx.GraphModule) -> tuple[list[Any], list[Any], Any]:
    """Changes the output of a region's module to the tensors that Weft has to compute. Returns these tensors,
    the views of them and of arguments in graph order, and the previous output."""
    bases: dict[Any, None] = {}
    views: dict[Any, None] = {}
    output = next(each for each in module.graph.nodes if each.op == "output")
    ends = output.args[0]

    def note(node: Any) -> None:
        if _is_view(node):
            for each in node.all_input_nodes:
                note(each)
            views[node] = None
        elif node.op != "placeholder":
            bases[node] = None

    torch.fx.map_arg(ends, note)
    output.args = (tuple(bases),)
    module.recompile()
    return [*bases], [*views], ends


_TENSOR = torch.empty(0)
"""The default for a node without a recorded value."""


def _is_view(node: torch.fx.Node) -> bool:
    source = node.args[0] if node.target in GETITEM_OPS else None
    is_part = isinstance(source, torch.fx.Node) and source.target in VIEW_OPS
    return node.op == "call_function" and (node.target in VIEW_OPS or is_part)


def _without_expanded(value: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous copy if the tensor has expanded dimensions, so that no elements share memory; else
    the tensor."""
    pairs = zip(value.shape, value.stride(), strict=True)
    is_expanded = any(n > 1 and step == 0 for n, step in pairs)
    return value.contiguous() if is_expanded else value
