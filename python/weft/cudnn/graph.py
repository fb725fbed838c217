"""graph, jit and graph_cache: shortcuts for creating a pygraph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from weft import frontend
from weft.cudnn.enums import data_type, heur_mode
from weft.cudnn.graphs import pygraph
from weft.tensor import Tensor

_Function = TypeVar("_Function", bound=Callable[..., Any])


@contextmanager
def graph(
    handle: Any = None,
    name: str = "",
    io_data_type: Any = data_type.HALF,
    intermediate_data_type: Any = data_type.FLOAT,
    compute_data_type: Any = data_type.FLOAT,
    **graph_kwargs: Any,
) -> Iterator[tuple[pygraph, list[Any]]]:
    """A graph to be defined in a with block: `with graph(handle) as (g, _)`. It is not built when the block
    ends; see jit. graph_kwargs: further keywords of pygraph."""
    yield (
        pygraph(name, io_data_type, intermediate_data_type, compute_data_type, handle, **graph_kwargs),
        [],
    )


def jit(heur_modes: Sequence[Any] | Any = (heur_mode.A,), **kwargs: Any) -> Any:
    """Decorates a function that returns a graph, or a graph and tensors. The graph is returned built, and
    tensors are replaced by their uids. kwargs have no effect, as in cuDNN.

    >>> import weft.cudnn as cudnn
    >>> @cudnn.jit(heur_modes=[cudnn.heur_mode.A])
    ... def negate():
    ...     with cudnn.graph(io_data_type=cudnn.data_type.FLOAT) as (g, _):
    ...         g.neg(g.tensor([2], [1]))
    ...     return g
    >>> negate()
    pygraph(1 op, 1 input, 1 output, built)
    """
    if callable(heur_modes):
        return jit()(heur_modes)
    modes = heur_modes if isinstance(heur_modes, (list, tuple)) else [heur_modes]

    def decorate(function: _Function) -> _Function:
        @wraps(function)
        def build(*arguments: Any, **named: Any) -> Any:
            returned = function(*arguments, **named)
            first, *rest = returned if isinstance(returned, tuple) else (returned,)
            if not first.is_built:  # a cache may return a built graph
                first.build(modes)
            return (first, *map(_uids, rest)) if isinstance(returned, tuple) else first

        return build  # type: ignore[return-value]

    return decorate


def _uids(returned: Any) -> Any:
    """The uids of a list of tensors; other values are returned unchanged."""
    is_list = isinstance(returned, list) and all(isinstance(each, Tensor) for each in returned)
    return [tensor.get_uid() for tensor in returned] if is_list else returned


graph_cache = frontend.graph_cache
