"""graph, jit and graph_cache: short ways to make a pygraph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from weft import frontend
from weft.cudnn.enums import data_type, heur_mode
from weft.cudnn.graphs import pygraph

_Function = TypeVar("_Function", bound=Callable[..., Any])


@contextmanager
def graph(
    handle: Any = None,
    name: str = "",
    io_data_type: Any = data_type.HALF,
    intermediate_data_type: Any = data_type.FLOAT,
    compute_data_type: Any = data_type.FLOAT,
) -> Iterator[tuple[pygraph, list[Any]]]:
    """A graph to be filled in a with block: `with graph(handle) as (g, _)`. It is not built on leaving; see
    jit."""
    yield pygraph(name, io_data_type, intermediate_data_type, compute_data_type, handle), []


def jit(heur_modes: Sequence[Any] | Callable[..., Any] = (heur_mode.A,)) -> Any:
    """Decorates a function that returns a graph, alone or first in a tuple: the graph comes back built.

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

    def decorate(function: _Function) -> _Function:
        @wraps(function)
        def build(*arguments: Any, **named: Any) -> Any:
            returned = function(*arguments, **named)
            made = returned[0] if isinstance(returned, tuple) else returned
            if not made.is_built:  # else a cache below has it from before
                made.build(heur_modes)
            return returned

        return build  # type: ignore[return-value]

    return decorate


graph_cache = frontend.graph_cache
