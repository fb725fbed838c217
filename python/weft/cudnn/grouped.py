"""Operations on groups of consecutive rows, expressed as Weft's operations: reductions of each group,
quantization by groups, and expert matmuls whose results are summed for each token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

from weft.arguments import label
from weft.buffers import packed_strides
from weft.cudnn.enums import moe_grouped_matmul_mode
from weft.cudnn.names import Node
from weft.enums import data_type, reduction_mode, tensor_reordering
from weft.enums import moe_grouped_matmul_mode as weft_mode
from weft.errors import BadParameterError, NotSupportedError
from weft.graphs import Graph
from weft.tensor import Tensor

_IDENTITY = {
    reduction_mode.MAX: -inf,
    reduction_mode.MIN: inf,
    reduction_mode.AMAX: 0.0,
    reduction_mode.MUL: 1.0,
    reduction_mode.MUL_NO_ZEROS: 1.0,
}
"""The neutral element that replaces the rows of other groups, because each group reads all rows. Sums use
matmuls instead."""


def known_dims(graph: Graph, tensor: Tensor) -> tuple[int, ...]:
    """The dims of a tensor, inferred if they are not set."""
    if not tensor._dims:
        graph.validate()
    return tensor._dims


def reshaped(graph: Graph, tensor: Tensor, dims: Sequence[int], name: str = "") -> Tensor:
    """A contiguous tensor with other dims. The strides are set, because the default is channels last and the
    default mode reinterprets the storage."""
    return Graph.reshape(graph, tensor, name=name).set_dim(dims).set_stride(packed_strides(list(dims)))


def reduction(
    graph: Graph,
    input: Tensor,
    mode: reduction_mode,
    group_offset: Tensor | None = None,
    compute_data_type: data_type | None = None,
    name: str = "",
) -> Tensor:
    """Reduces over the dimensions in which the result has extent 1. With group_offset, [E, 1, 1], rows of
    input, [1, M, N], form E groups: group e begins at row group_offset[e] and ends where the next one begins,
    the last one at M. The result is [E, 1, N], or [E, 1, 1] if its dims are set so."""
    if group_offset is None:
        return Graph.reduction(graph, input, mode, compute_data_type=compute_data_type, name=name)
    dims, offsets = known_dims(graph, input), known_dims(graph, group_offset)
    if len(dims) != 3 or dims[0] != 1 or len(offsets) != 3 or offsets[1:] != (1, 1):
        raise BadParameterError(
            f"{label('reduction', name)}: with group_offset, input is [1, M, N] and group_offset [E, 1, 1]; "
            f"they are {list(dims)} and {list(offsets)}. Reshape them."
        )
    parts = _sums if mode not in _IDENTITY else _chosen
    groups = parts(graph, input, mode, group_offset)
    result = Graph.reduction(graph, groups, mode, compute_data_type=compute_data_type, name=name)
    result._dims = (offsets[0], 1, dims[2])
    return result


def sliced(
    graph: Graph,
    input: Tensor,
    slices: Sequence[Any] | None = None,
    compute_data_type: data_type | None = None,
    name: str = "",
) -> Tensor:
    """A strided slice of a tensor by Python's rules: a missing start or stop is the end of the range, a
    negative one counts from the end. A dimension without a slice is unchanged."""
    boxes = list(slices or ())
    ends = [end for box in boxes if isinstance(box, slice) for end in (box.start, box.stop)]
    is_complete = boxes and all(end is not None and end >= 0 for end in ends)
    dims = input._dims if is_complete else known_dims(graph, input)
    boxes += [slice(None)] * (len(dims) - len(boxes))
    for i, dim in enumerate(dims):
        if isinstance(boxes[i], slice):
            boxes[i] = slice(*boxes[i].indices(dim))
    return Graph.slice(graph, input, boxes, compute_data_type, name)


def _numbers(graph: Graph, input: Tensor) -> Tensor:
    """The index of each row, [1, M, 1]."""
    dims = input._dims
    column = Graph.slice(graph, input, [slice(0, 1), slice(0, dims[1]), slice(0, 1)])
    return Graph.gen_index(graph, column, 1)


def _members(graph: Graph, input: Tensor, group_offset: Tensor) -> Tensor:
    """Whether a row belongs to a group, [E, M, 1]: the number of groups that have begun identifies its
    group."""
    has_begun = Graph.cmp_ge(graph, _numbers(graph, input), group_offset)
    begun = Graph.reduction(graph, has_begun, reduction_mode.ADD, dims=[0])
    return Graph.cmp_eq(graph, begun, Graph.add(graph, Graph.gen_index(graph, group_offset, 0), 1))


def _chosen(graph: Graph, input: Tensor, mode: reduction_mode, group_offset: Tensor) -> Tensor:
    """All rows for each group, with the rows of other groups replaced by the neutral element, [E, M, N]."""
    return Graph.binary_select(graph, input, _IDENTITY[mode], _members(graph, input, group_offset))


def _sums(graph: Graph, input: Tensor, mode: reduction_mode, group_offset: Tensor) -> Tensor:
    """The input of a further reduction with the same mode: a row for each group, [E, 1, N], with the sums
    over its rows computed as a matmul with a row of ones."""
    ones = Graph.cmp_ge(graph, _numbers(graph, input), 0)
    ones = Graph.binary_select(graph, 1.0, 0.0, ones)
    summed = input
    if mode is reduction_mode.NORM1:
        summed = Graph.abs(graph, input)
    elif mode is reduction_mode.NORM2:
        summed = Graph.mul(graph, input, input)
    total = Graph.moe_grouped_matmul_bwd(graph, summed, ones, group_offset)
    if mode is reduction_mode.NORM2:
        return Graph.sqrt(graph, total)
    if mode is reduction_mode.AVG:
        rows = Graph.moe_grouped_matmul_bwd(graph, ones, ones, group_offset)
        return Graph.div(graph, total, rows)
    return total


def block_scale_quantize(
    graph: Graph,
    input: Tensor,
    block_size: int,
    axis: int | None = None,
    transpose: bool = False,
    group_offset: Tensor | None = None,
    compute_data_type: data_type | None = None,
    name: str = "",
) -> tuple[Tensor, Tensor]:
    """Quantizes blocks of consecutive elements with a scale each. group_offset holds the first row of each
    group along dimension 1. Blocks along the last dimension stay within a row, so that groups do not affect
    them."""
    if group_offset is not None:
        last = len(known_dims(graph, input)) - 1
        if axis not in (None, -1, last):
            raise NotSupportedError(
                f"{label('block_scale_quantize', name)}: group_offset is given, and blocks along dimension "
                f"{axis} would cross groups of rows. Quantize along the last dimension, or each group "
                "separately."
            )
    return Graph.block_scale_quantize(
        graph, input, block_size, axis, transpose, compute_data_type=compute_data_type, name=name
    )


def check_scales(nodes: Iterable[Node]) -> None:
    """Rejects scales of groups in tiles, because their order is undocumented."""
    for node in nodes:
        if node.method != "block_scale_quantize" or "group_offset" not in node.inputs:
            continue
        if node.outputs["scale"]._reordering is not tensor_reordering.NONE:
            raise NotSupportedError(
                f"{label(node.method, node.name)}: group_offset is given, and its scales are stored in tiles "
                "(reordering_type), which Weft does not support for groups. Store the scales in order, or "
                "quantize each group separately."
            )


def moe_grouped_matmul(
    graph: Graph,
    token: Tensor,
    weight: Tensor,
    first_token_offset: Tensor,
    token_index: Tensor | None = None,
    token_ks: Tensor | None = None,
    mode: Any = None,
    top_k: int = 0,
    top_k_scores: Tensor | None = None,
    compute_data_type: data_type | None = None,
    name: str = "",
) -> Tensor:
    """Multiplies each expert's rows by its weight. Mode COMBINE sums the results of each token, multiplied by
    its scores:

        output[t] = sum_k top_k_scores[t, k] (row of token t's k-th expert)

    token_index and token_ks contain t and k of each row, as for SCATTER; top_k_scores has S top_k numbers,
    token by token: [1, S, top_k], [S, top_k, 1] or similar; without it, each score is 1. output: [1, S, N].
    """
    if mode is moe_grouped_matmul_mode.COMBINE:
        operands = token, weight, first_token_offset, token_index, token_ks
        return _combined(graph, operands, top_k, top_k_scores, compute_data_type, name)
    if top_k_scores is not None:
        raise BadParameterError(
            f"{label('moe_grouped_matmul', name)}: top_k_scores is given, and mode "
            f"{(mode or weft_mode.NONE).name} computes no sum. Choose mode COMBINE, or leave it out."
        )
    return Graph.moe_grouped_matmul(
        graph, token, weight, first_token_offset, token_index, token_ks, mode or weft_mode.NONE,
        compute_data_type, top_k, name=name,
    )  # fmt: skip


def _combined(
    graph: Graph, operands: Any, top_k: int, scores: Tensor | None, compute: data_type | None, name: str
) -> Tensor:
    token, weight, begin, token_index, token_ks = operands
    where = label("moe_grouped_matmul", name)
    if token_index is None or token_ks is None:
        raise BadParameterError(f"{where}: mode COMBINE needs token_index and token_ks. Give both.")
    rows, width = known_dims(graph, token)[1], known_dims(graph, weight)[2]
    if top_k < 1 or rows % top_k:
        raise BadParameterError(
            f"{where}: mode COMBINE with top_k {top_k}, and token has {rows} rows. Give the number of "
            "experts of a token, which divides the rows."
        )
    scatter = weft_mode.SCATTER
    placed = Graph.moe_grouped_matmul(
        graph, token, weight, begin, token_index, token_ks, scatter, compute, top_k
    )
    tokens = rows // top_k
    each = reshaped(graph, placed, [tokens, top_k, width])
    if scores is not None:
        column = reshaped(graph, scores, [tokens, top_k, 1])
        column._data_type = scores._data_type
        each = Graph.mul(graph, each, column)
    summed = Graph.reduction(graph, each, reduction_mode.ADD, dims=[1])
    return reshaped(graph, summed, [1, tokens, width], name)


METHODS: dict[str, Callable[..., Any]] = {
    "reduction": reduction,
    "slice": sliced,
    "block_scale_quantize": block_scale_quantize,
    "moe_grouped_matmul": moe_grouped_matmul,
}
"""Methods with an argument that Weft's own methods lack."""
