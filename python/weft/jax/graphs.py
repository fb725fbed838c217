"""Weft graphs as functions of JAX arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial, wraps
from typing import Any

import jax

from weft import buffers, dtypes
from weft.devices import DeviceProperties
from weft.errors import BadParameterError
from weft.graphs import Graph
from weft.jax.calls import call, vary_together
from weft.jax.graph_builder import Call, Form, GraphBuilder, Operator, Place
from weft.tensor import Tensor


def graph(source: Callable[..., Any] | Graph) -> Callable[..., Any]:
    """Turns a graph into a function of JAX arrays that works under jit, vmap and shard_map.

    Args:
        source: a function of a weft.Graph, then a tensor for each array, then options by keyword, which
            returns the results: a tensor, or a tuple or list of them. Or a graph, whose shapes are fixed.
    Returns:
        A function of the arrays, and of options by keyword, which must be hashable. Lowering a program builds
        a plan for each set of types, shapes and options. vmap runs one call after another. The function has
        no gradient: define one with jax.custom_vjp. For a graph, the arrays are in the order of its tensors.

    >>> import jax.numpy as jnp, weft.jax
    >>> @weft.jax.graph
    ... def scaled_relu(g, x, *, factor):
    ...     return g.relu(g.mul(x, factor))
    >>> scaled_relu(jnp.array([-1.0, 2.0]), factor=3.0)
    Array([0., 6.], dtype=float32)
    """
    operator = ExistingGraph(source) if isinstance(source, Graph) else FunctionOperator(source)

    @partial(jax.jit, static_argnums=0, inline=True)
    def traced(options: tuple[tuple[str, Any], ...], *arrays: Any) -> Any:
        results = call(operator, *vary_together(*arrays), attributes=options)
        return results[0] if operator.is_single(options) else tuple(results)

    def run(*arrays: Any, **options: Any) -> Any:
        return traced(tuple(sorted(options.items())), *arrays)

    return run if isinstance(source, Graph) else wraps(source)(run)


class FunctionOperator(Operator):
    """An operator whose graph a user's function builds."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(getattr(function, "__name__", "graph"), self._build)
        self._function, self._singles = function, dict[Any, bool]()

    def is_single(self, options: tuple[tuple[str, Hashable], ...]) -> bool:
        """True if the function returned a single tensor with these options."""
        return self._singles[options]

    def _build(self, gb: GraphBuilder, *options: tuple[str, Hashable]) -> None:
        tensors = [gb.read(i) for i in range(len(gb.arguments))]
        returned = self._function(gb.graph, *tensors, **dict(options))
        self._singles[options] = isinstance(returned, Tensor)
        results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        used = list(tensors)
        for each in results:
            if not isinstance(each, Tensor):
                raise BadParameterError(
                    f"weft.jax.graph: {self.name} returned {type(each).__name__} among its results. Return "
                    "a tensor, or a tuple or list of tensors, that the graph's operations return."
                )
            # An argument, or a tensor that is returned twice, is copied into a result of its own.
            is_used = any(each is tensor for tensor in used)
            used.append(each)
            gb.write_inferred(gb.graph.identity(each) if is_used else each)


class ExistingGraph(Operator):
    """An operator from a graph that already exists."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.name or "graph", self._refuse)
        self._graph = graph
        graph.validate()
        self._inputs = [t for t in graph._tensors if t.producer is None and t.is_read and not t.is_constant]
        self._outputs = [t for t in graph._results() if not t.is_virtual]

    def is_single(self, options: tuple[tuple[str, Hashable], ...]) -> bool:
        """True if the graph has one result."""
        return len(self._outputs) == 1

    def _refuse(self, *_: Any) -> None:
        raise AssertionError("an existing graph is not built again")

    def builder_for(
        self, call: Call, arguments: Sequence[Form], results: Sequence[Form] = (), device: Place | None = None
    ) -> GraphBuilder:
        """Returns the graph itself if it has these shapes."""
        builder = GraphBuilder(self._graph, arguments)
        if call.attributes or list(map(_form, self._inputs)) != list(arguments):
            wanted, got = (", ".join(map(str, each)) for each in (map(_form, self._inputs), arguments))
            raise BadParameterError(
                f"weft.jax.graph: the arrays for {self.name} do not fit: expected {wanted}, got {got}"
                f"{' and options' if call.attributes else ''}. Pass such arrays, or wrap the function "
                "that builds the graph, which supports all shapes."
            )
        if device is not None and device not in (self._graph._handle, self._graph._device_property):
            self._graph = self._placed(device)
        builder.ends = [(t, i) for i, t in enumerate(self._inputs)]
        builder.ends += [(t, ~i) for i, t in enumerate(self._outputs)]
        builder.results = [_form(t) for t in self._outputs]
        return builder

    def _placed(self, device: Place) -> Graph:
        if self._graph._made_planner is not None:
            raise BadParameterError(
                f"weft.jax.graph: {self.name} was planned for another device than {device!r}. Wrap the "
                "function that builds the graph, which supports all devices."
            )
        self._graph._handle = None if isinstance(device, DeviceProperties) else device
        self._graph._device_property = device if isinstance(device, DeviceProperties) else None
        return self._graph


def _form(tensor: Tensor) -> Form:
    assert tensor.dtype is not None
    if tuple(tensor.strides) != tuple(buffers.packed_strides(tensor.dims)):
        raise BadParameterError(
            f"weft.jax.graph: {tensor!r} has strides {list(tensor.strides)}, and JAX arrays are packed, "
            "the last dimension fastest. Declare it without strides."
        )
    return Form(tensor.dims, dtypes.numpy_dtype(tensor.dtype))
