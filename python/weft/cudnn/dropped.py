"""Dropout of attention by a floating-point mask, expressed as two attentions without dropout: Hopper's
kernels support a bias at little cost, but only boolean dropout masks. Multiplying a weight by a mask is the
same as adding the logarithm of the mask to the score; only the denominator differs, and is corrected for each
row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from weft.arguments import counted
from weft.errors import BadParameterError
from weft.graphs import Graph
from weft.tensor import Tensor

Attend = Callable[[dict[str, Any]], Any]
"""Adds an attention, or its gradient, with arguments by name; returns its results."""

_RECEIVED = ("score_max", "score_sum_exp")
"""Outputs that the first of the two attentions writes."""


def forward(graph: Graph, attend: Attend, where: str, values: Mapping[str, Any], name: str) -> Any:
    """o = (scale mask p) v: the second attention has the weights mask p / c, where c is their sum in each
    row, e^(stats of the second - stats of the first)."""
    _check(where, values["dropout"], 2)
    always = {key: value for key, value in values.items() if key not in ("dropout", "is_inference")}
    always["generate_stats"] = True
    o, stats = attend(always)
    again = {key: value for key, value in always.items() if key not in _RECEIVED}
    of_kept, sums = attend({**again, "bias": _biased(graph, values)})
    _drop(o)
    share = Graph.exp(graph, Graph.sub(graph, sums, stats))
    is_some = Graph.cmp_gt(graph, sums, -inf)  # rows without any kept weight are 0
    share = Graph.mul(graph, Graph.binary_select(graph, share, 0.0, is_some), values["dropout"][1])
    return Graph.mul(graph, of_kept, share, name=name), stats


def backward(graph: Graph, attend: Attend, where: str, values: Mapping[str, Any]) -> Any:
    """The gradient of the scores, p (mask scale dp - d) with d = sum(o dO), as the gradients of two
    attentions. Scores with the mask's bias and the statistics of those without it give the weights mask p,
    and with scale dO and o = 0 the first term; -p d is the gradient of attention without dropout for v =
    0."""
    _check(where, values["dropout"], 3)
    _, scale, inverse = values["dropout"]
    rest = {key: value for key, value in values.items() if key != "dropout"}
    of_kept = {key: value for key, value in rest.items() if key != "dSink_token"}
    of_kept |= {"dO": Graph.mul(graph, values["dO"], scale), "o": Graph.mul(graph, values["o"], 0.0)}
    first = attend({**of_kept, "bias": _biased(graph, values)})
    product = Graph.mul(graph, Graph.mul(graph, values["o"], inverse), scale)
    second = attend({**rest, "o": product, "v": Graph.mul(graph, values["v"], 0.0)})
    _drop(second[2])
    return Graph.add(graph, first[0], second[0]), Graph.add(graph, first[1], second[1]), first[2]


def _drop(result: Tensor) -> None:
    """Marks a result as unused."""
    result._is_virtual, result._output, result.is_read = True, False, True


def _biased(graph: Graph, values: Mapping[str, Any]) -> Tensor:
    """The bias plus the logarithm of the mask."""
    logarithm = Graph.log(graph, values["dropout"][0])
    return Graph.add(graph, values["bias"], logarithm) if "bias" in values else logarithm


def _check(where: str, dropout: tuple[Any, ...], count: int) -> None:
    words = ("mask", "scale", "1 / scale")[:count]
    if len(dropout) != count or not all(isinstance(each, Tensor) for each in dropout):
        raise BadParameterError(
            f"{where}: dropout is {counted(len(dropout), 'value')} starting with a mask. Give tensors: "
            f"{', '.join(words)}."
        )
