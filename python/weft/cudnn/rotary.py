"""Rotary embedding, expressed as Weft's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.arguments import counted
from weft.cudnn.grouped import known_dims
from weft.enums import data_type
from weft.errors import BadParameterError
from weft.graphs import Graph
from weft.tensor import Tensor


def rope(
    graph: Graph,
    input: Tensor,
    freqs: Tensor,
    output_scale: float | None = None,
    rope_dim: int | None = None,
    compute_data_type: data_type | None = None,
    name: str = "",
) -> Tensor:
    """Rotates the last rope_dim elements of each head by the angles freqs, the first half with the second,
    and multiplies everything by output_scale:

        y = output_scale (x cos(freqs) + (-x2, x1) sin(freqs)),  x1 and x2 the halves of x

    input: [B, H, S, D], or [S, B, H, D]. freqs: [S, 1, 1, rope_dim], in radians.
    """
    return _rotated(graph, input, freqs, 1.0, output_scale, rope_dim, compute_data_type, name)


def rope_backward(
    graph: Graph,
    dY: Tensor,
    freqs: Tensor,
    output_scale: float | None = None,
    rope_dim: int | None = None,
    compute_data_type: data_type | None = None,
    name: str = "",
) -> Tensor:
    """The gradient of rope: the rotation by the negative angles."""
    return _rotated(graph, dY, freqs, -1.0, output_scale, rope_dim, compute_data_type, name)


def _rotated(
    graph: Graph,
    x: Tensor,
    freqs: Tensor,
    sign: float,
    output_scale: float | None,
    rope_dim: int | None,
    compute: data_type | None,
    name: str,
) -> Tensor:
    dims, angles = known_dims(graph, x), freqs
    strides = x._strides
    if not _is_along_front(dims, known_dims(graph, freqs)):
        angles = Graph.transpose(graph, freqs, [1, 2, 0, 3])
    scale, extent = 1.0 if output_scale is None else float(output_scale), dims[-1]
    first = extent - (extent if rope_dim is None else rope_dim)
    if (extent - first) % 2 or not 0 <= first < extent:
        raise BadParameterError(
            f"rope '{name}': rope_dim is {rope_dim}, heads have {counted(extent, 'element')}. "
            "Give an even number."
        )

    def cut(start: int, stop: int) -> Tensor:
        boxes = [slice(0, each) for each in dims[:-1]]
        return Graph.slice(graph, x, [*boxes, slice(start, stop)])

    middle, last = (first + extent) // 2, len(dims) - 1
    turned = Graph.concatenate(graph, [Graph.neg(graph, cut(middle, extent)), cut(first, middle)], axis=last)
    along = Graph.mul(graph, cut(first, extent), Graph.mul(graph, Graph.cos(graph, angles), scale))
    across = Graph.mul(graph, turned, Graph.mul(graph, Graph.sin(graph, angles), sign * scale))
    result = Graph.add(graph, across, along, compute_data_type=compute, name="" if first else name)
    if first:
        rest = Graph.mul(graph, cut(0, first), scale)
        result = Graph.concatenate(graph, [rest, result], axis=last, name=name)
    if strides and 0 not in strides:  # cuDNN's result has the strides of x
        result._dims, result._strides = dims, strides
    return result


def _is_along_front(dims: tuple[int, ...], angles: tuple[int, ...]) -> bool:
    """True if positions are x's first dimension, like that of the angles, rather than the last but one."""
    if angles[0] not in (dims[0], dims[-2]):
        raise BadParameterError(
            f"rope: freqs has {angles[0]} positions, x is {list(dims)}. Give [B, H, S, D] or [S, B, H, D], "
            "and freqs [S, 1, 1, D]."
        )
    return angles[0] != dims[-2]


COMPOSED: dict[str, Callable[..., Any]] = {"rope": rope, "rope_backward": rope_backward}
"""Methods that Weft's graph lacks, by name."""
