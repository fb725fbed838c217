"""Rewrites that replace several ATen nodes by one operator before a compiled graph is covered.

Each rewrite examines one node and replaces it or leaves it. Nodes that become unused are removed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy

from weft.torch.nodes import widens
from weft.torch.plans import steps_in

aten = torch.ops.aten

Rewrite = Callable[[Any], None]


def rewrite(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Rewrites a forward graph, a backward graph, or a joint graph of both."""
    graph = module.graph
    _keep_channels_last(graph)
    for node in list(graph.nodes):
        rewriter = _REWRITES.get(node.target) if node.op == "call_function" else None
        if rewriter is not None and (node.target in _OF_ANY_SIZE or not _is_dynamic(node)):
            with graph.inserting_before(node):
                rewriter(node)
    graph.eliminate_dead_code()
    module.recompile()
    return module


def _is_dynamic(node: Any) -> bool:
    """True if a size is symbolic."""
    values = (each.meta.get("val") for each in (node, *node.all_input_nodes))
    return any(isinstance(e, torch.Tensor) and e._has_symbolic_sizes_strides for e in values) or any(
        isinstance(e, torch.SymInt) for e in values
    )


def _call(node: Any, target: Any, *args: Any, **named: Any) -> Any:
    """Inserts a node before another one, with its value on fake tensors."""
    call = node.graph.call_function(target, args, named)
    plain, also = torch.fx.map_arg((args, named), lambda each: each.meta["val"])
    with _mode_of(node.graph):
        call.meta["val"] = target(*plain, **also)
    if "partitioner_tag" in node.meta:  # a joint graph marks nodes as forward or backward
        call.meta["partitioner_tag"] = node.meta["partitioner_tag"]
    return call


def _value(node: Any) -> Any:
    value = node.meta["val"]
    return value[0] if isinstance(value, (tuple, list)) else value


def _given(node: Any) -> list[Any]:
    """Returns all arguments, with the defaults of those that torch omitted."""
    rest = node.target._schema.arguments[len(node.args) :]
    return [*node.args, *(node.kwargs.get(each.name, each.default_value) for each in rest)]


# ---- Sums of gradients of adjacent parts, replaced by a concatenation ----


def _part(node: Any) -> Any:
    """Returns the sizes, dimension, begin and end of a part of which the node is the gradient, or None."""
    if node.target == aten.select_backward.default:
        _, sizes, dim, at = node.args
        dim, at = dim % len(sizes), at % sizes[dim]
        return sizes, dim, at, at + 1
    if node.target == aten.slice_backward.default and node.args[5] == 1:
        _, sizes, dim, begin, end, _ = node.args
        extent = sizes[dim]
        begin, end = (max(each + extent, 0) if each < 0 else min(each, extent) for each in (begin, end))
        return sizes, dim % len(sizes), begin, end
    return None


def _terms(node: Any) -> list[Any]:
    """Returns the terms of a sum, flattening nested sums that have no other consumer."""
    terms: list[Any] = []
    for each in node.args[:2]:
        is_sum = isinstance(each, Node) and each.target == aten.add.Tensor and len(each.users) == 1
        terms += _terms(each) if is_sum else [each]
    return terms if not node.kwargs else [node]


def _are_side_by_side(parts: Sequence[Any]) -> bool:
    """True if the parts, in this order, cover the dimension without gaps or overlaps."""
    sizes, dim = parts[0][:2]
    begins, ends = [part[2] for part in parts], [part[3] for part in parts]
    is_one = all(part[:2] == (sizes, dim) for part in parts)
    return is_one and begins == [0, *ends[:-1]] and ends[-1] == sizes[dim]


def _sum(node: Any) -> None:
    _join_parts(node)
    if node.users:
        _sum_before_permute(node)


def _join_parts(node: Any) -> None:
    terms = _terms(node)
    parts = [_part(each) if isinstance(each, Node) else None for each in terms]
    if len(terms) < 2 or None in parts:
        return
    terms.sort(key=lambda each: _part(each)[2])
    if not _are_side_by_side([_part(each) for each in terms]):
        return
    dim = _part(terms[0])[1]
    pieces = [
        _call(node, aten.unsqueeze.default, each.args[0], dim)
        if each.target == aten.select_backward.default
        else each.args[0]
        for each in terms
    ]
    node.replace_all_uses_with(_call(node, aten.cat.default, pieces, dim))


# ---- Sums with permuted operands ----


def _sum_before_permute(node: Any) -> None:
    """Computes the sum in the original layout of a permuted term and permutes the result, so that it can be
    the epilogue of the product that computes the term."""
    both = [*node.args[:2]]
    are_tensors = all(isinstance(e, Node) and isinstance(_value(e), torch.Tensor) for e in both)
    if node.kwargs or not are_tensors:
        return
    shown = next((each for each in both[::-1] if _is_permuted_once(each)), None)
    if shown is None or _value(both[0]).shape != _value(both[1]).shape:
        return
    order = [i % _value(shown).ndim for i in shown.args[1]]
    terms = [_before_permute(node, each, order) for each in both]
    permuted = _call(node, aten.permute.default, _call(node, aten.add.Tensor, *terms), order)
    if _value(permuted).stride() == _value(node).stride():
        node.replace_all_uses_with(permuted)


def _is_permuted_once(node: Any) -> bool:
    return node.target == aten.permute.default and len(node.users) == 1


def _before_permute(node: Any, value: Any, order: Sequence[int]) -> Any:
    """Returns the value before a permutation by `order`: its source, or an inverse permutation of it."""
    is_permutation = value.target == aten.permute.default
    if is_permutation and [i % len(order) for i in value.args[1]] == [*order]:
        return value.args[0]
    return _call(node, aten.permute.default, value, [order.index(i) for i in range(len(order))])


# ---- Nearest upsampling: repeated elements ----


def _constant(node: Any) -> torch.Tensor | None:
    """Evaluates a node that depends on no graph input; returns None if it does."""
    if not isinstance(node, Node):
        return None
    known: dict[Any, Any] = {}

    def compute(each: Any) -> Any:
        if each not in known:
            if each.op != "call_function" or each.target in (aten.rand.default, aten.randint.default):
                raise LookupError
            args, named = torch.fx.map_arg((each.args, each.kwargs), compute)
            known[each] = each.target(*args, **{**named, **({"device": "cpu"} if "device" in named else {})})
        return known[each]

    try:
        with unset_fake_temporarily():
            return compute(node)
    except LookupError:
        return None


def _repeats(indices: Sequence[Any], extents: Sequence[int]) -> list[int] | None:
    """Returns how many times each element of the last dimensions is repeated consecutively, or None if the
    index does something else."""
    if len(indices) <= 2 or any(each is not None for each in indices[:2]) or len(indices) != len(extents):
        return None
    repeats = []
    for index, extent in zip(indices[2:], extents[2:], strict=True):
        at = _constant(index)
        times = 0 if at is None else at.numel() // extent
        with unset_fake_temporarily():
            again = torch.arange(extent).repeat_interleave(times)
            if at is None or not times or not torch.equal(at.flatten(), again):
                return None
        repeats.append(times)
    return repeats


def _split_dims(shape: Sequence[int], times: Sequence[int]) -> list[int]:
    """Returns a shape with each of the last dimensions split into elements and repetitions."""
    return [*shape[:2], *(n for pair in zip(shape[2:], times, strict=True) for n in pair)]


def _index(node: Any) -> None:
    x, indices = node.args[:2]
    shape = [*_value(x).shape]
    times = _repeats(indices, shape)
    if times is None:
        return
    is_last = _is_channels_last(_value(node))
    for i in range(len(times)):
        x = _call(node, aten.unsqueeze.default, x, 3 + 2 * i)
    wide = _call(node, aten.expand.default, x, _split_dims(shape, times))
    if is_last:
        wide = _call(node, aten.permute.default, wide, [0, *range(2, 2 * len(times) + 2), 1])
    n, c, *extents = _value(node).shape
    dims = [n, *extents, c] if is_last else [n, c, *extents]
    result = _call(node, aten.view.default, _packed(node, wide), dims)
    if is_last:
        result = _call(node, aten.permute.default, result, [0, len(extents) + 1, *range(1, len(extents) + 1)])
    node.replace_all_uses_with(result)


def _index_put(node: Any) -> None:
    zeros, indices, values, adds = _given(node)
    shape = [*_value(node).shape]
    times = _repeats(indices, shape) if adds and zeros.target == aten.new_zeros.default else None
    if times is None or _value(values).numel() != _value(node).numel() * math.prod(times):
        return
    apart = _call(node, aten.view.default, values, _split_dims(shape, times))
    over = [3 + 2 * i for i in range(len(times))]
    node.replace_all_uses_with(_call(node, aten.sum.dim_IntList, apart, over))


# ---- Gradient of silu, which torch decomposes, including a tensor of ones ----


def _product(node: Any) -> None:
    x = _input_of_silu(node.args[1])
    if x is not None:
        node.replace_all_uses_with(_call(node, aten.silu_backward.default, node.args[0], x))


def _input_of_silu(slope: Any) -> Any:
    """Matches sigmoid(x) (1 + x (1 - sigmoid(x))), as torch decomposes it, and returns x, or None."""
    match slope:
        case Node(
            target=aten.mul.Tensor,
            args=(
                Node(target=aten.sigmoid.default, args=(x,)) as gate,
                Node(
                    target=aten.add.Scalar,
                    args=(
                        Node(
                            target=aten.mul.Tensor,
                            args=(
                                also,
                                Node(
                                    target=aten.sub.Tensor,
                                    args=(Node(target=aten.fill.Scalar, args=(_, 1)), same),
                                ),
                            ),
                        ),
                        1,
                    ),
                ),
            ),
        ) if also is x and same is gate:
            return x
    return None


# ---- Group norms: torch converts their input to channels first on a GPU ----

_NORMS = {
    aten.native_group_norm.default: torch.ops.weft.group_norm.default,
    aten.native_group_norm_backward.default: torch.ops.weft.group_norm_backward.default,
}


def _keep_channels_last(graph: torch.fx.Graph) -> None:
    """Lets images stay channels last through group norms and the operators after them, up to a view that
    requires another layout. The results of the graph keep their layout."""
    norms = [each for each in graph.nodes if each.target in _NORMS and not _is_dynamic(each)]
    images = {each: [i for i in (0, 1) if _is_image_channels_last(each.args[i])] for each in norms}
    if not any(images.values()):
        return
    before = {each: each.meta["val"] for each in graph.nodes if "val" in each.meta}
    for each in norms:
        for i in images[each]:
            each.update_arg(i, _before_channels_first(each.args[i]))
        each.target = _NORMS[each.target]
    _propagate(graph)
    _restore_layouts(graph, before)
    graph.eliminate_dead_code()


def _is_channels_last(value: torch.Tensor) -> bool:
    """True if an image is stored channels last and is not contiguous as well."""
    order = [0, *range(2, value.ndim), 1]
    return value.ndim > 3 and not value.is_contiguous() and value.permute(order).is_contiguous()


def _before_channels_first(image: Any) -> Any:
    """Returns an image before torch's conversion to channels first."""
    is_moved = image.target == aten.clone.default and _value(image).is_contiguous()
    return image.args[0] if is_moved and _is_channels_last(_value(image.args[0])) else image


def _is_image_channels_last(image: Any) -> bool:
    is_image = isinstance(image, Node) and _value(image).ndim > 3
    return is_image and _is_channels_last(_value(_before_channels_first(image)))


def _propagate(graph: torch.fx.Graph) -> None:
    """Recomputes the values of all nodes. Inserts a copy before a view that is impossible with the new
    strides."""
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target in _RESHAPES and steps_in(_value(node.args[0]), node.args[1]) is None:
            with graph.inserting_before(node):
                node.update_arg(0, _packed(node, node.args[0]))
        args, named = torch.fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
        with _mode_of(graph):
            node.meta["val"] = node.target(*args, **named)


_RESHAPES = {aten.view.default, aten._unsafe_view.default}


def _packed(node: Any, value: Any) -> Any:
    return _call(node, aten.clone.default, value, memory_format=torch.contiguous_format)


def _mode_of(graph: torch.fx.Graph) -> Any:
    values = (_value(each) for each in graph.nodes if each.op == "placeholder" and "val" in each.meta)
    return next(each.fake_mode for each in values if isinstance(each, torch.Tensor))


def _restore_layouts(graph: torch.fx.Graph, before: dict[Any, Any]) -> None:
    ends = next(each for each in graph.nodes if each.op == "output")

    def restore(end: Any) -> Any:
        old, new = before[end], end.meta["val"]
        if not isinstance(new, torch.Tensor) or new.stride() == old.stride():
            return end
        order = sorted(range(old.ndim), key=old.stride().__getitem__, reverse=True)
        packed = _packed(ends, _call(ends, aten.permute.default, end, order))
        return _call(ends, aten.permute.default, packed, [order.index(i) for i in range(old.ndim)])

    with graph.inserting_before(ends):
        ends.args = torch.fx.map_arg(ends.args, restore)


# ---- Max pooling with unused indices, dropout with a mask that follows from a seed ----


def _results_of(node: Any) -> list[Any]:
    """Returns the getitem nodes of a node's two results, or None for a result without one."""
    results: list[Any] = [None, None]
    for each in node.users:
        results[each.args[1]] = each
    return results


def _pool(rank: int) -> Rewrite:
    ending = "" if rank == 2 else "3d"
    weft = torch.ops.weft
    forward = getattr(weft, f"max_pool_values{ending}").default
    backward = getattr(weft, f"max_pool_values{ending}_backward").default
    gradient = getattr(aten, f"max_pool{rank}d_with_indices_backward").default

    def replace(node: Any) -> None:
        maximum, indices = _results_of(node)
        readers = list(indices.users) if indices is not None else []
        x, *options = _given(node)
        if maximum is None or any(each.target != gradient for each in readers):
            return
        maximum.replace_all_uses_with(_call(node, forward, x, *options))
        for each in readers:
            with node.graph.inserting_before(each):
                each.replace_all_uses_with(_call(each, backward, each.args[0], x, *options))

    return replace


def _dropout(node: Any) -> None:
    x, p, trains = _given(node)
    result, mask = _results_of(node)
    readers = list(mask.users) if mask is not None else []
    if result is None or not trains or any(e.target != aten.native_dropout_backward.default for e in readers):
        return
    keywords = {"dtype": torch.int64, "device": _value(x).device}
    seed = _call(node, aten.randint.default, 2**63 - 1, [], **keywords)
    result.replace_all_uses_with(_call(node, torch.ops.weft.dropout.default, x, p, seed))
    for each in readers:
        with node.graph.inserting_before(each):
            again = _call(each, torch.ops.weft.dropout.default, each.args[0], p, seed)
        each.replace_all_uses_with(again)


# ---- Cross-entropy, which torch computes from stored log-probabilities ----

_LOSSES = {
    aten.nll_loss_forward.default: aten.nll_loss_backward.default,
    aten.nll_loss2d_forward.default: aten.nll_loss2d_backward.default,
}


def _readers(node: Any) -> list[Any]:
    """Returns the nodes that read a value, directly or through detach."""
    readers = []
    for each in node.users:
        readers += _readers(each) if each.target == aten.detach.default else [each]
    return readers


def _cross_entropy(node: Any) -> None:
    """Computes the loss and its gradient from the logits and two numbers per row, without storing the
    log-probabilities."""
    scores, *options = _given(node)
    if scores.target != aten._log_softmax.default:
        return
    logits, dim, _ = _given(scores)
    losses = [each for each in _readers(scores) if each.target == _LOSSES[node.target]]
    gradients = [each for loss in losses for each in loss.users]
    loss, total = _results_of(node)
    are_alone = (
        dim % _value(logits).ndim == min(1, _value(logits).ndim - 1)
        and set(_readers(scores)) == {node, *losses, *gradients}
        and all(each.target == aten._log_softmax_backward_data.default for each in gradients)
        and all(_given(each)[2:6] == options for each in losses)
        and (total is None or set(_readers(total)) <= {*losses})
    )
    if loss is None or not are_alone:
        return
    if _value(logits).dtype != _value(scores).dtype:
        logits = _call(node, aten._to_copy.default, logits, dtype=_value(scores).dtype)
    results = _call(node, torch.ops.weft.cross_entropy.default, logits, *options)
    fused, *sums = (_call(node, operator.getitem, results, i) for i in range(len(results.meta["val"])))
    loss.replace_all_uses_with(fused)
    for each in gradients:
        with node.graph.inserting_before(each):
            arguments = each.args[0].args[0], logits, *options, 0.0, *sums
            gradient = _call(each, torch.ops.weft.cross_entropy_backward.default, *arguments)
            if _value(gradient).dtype != _value(each).dtype:
                gradient = _call(each, aten._to_copy.default, gradient, dtype=_value(each).dtype)
        each.replace_all_uses_with(gradient)


# ---- Copies in a wider type, such as logits in float32 ----


def recompute_widened(graph: torch.fx.Graph) -> None:
    """Makes torch's partitioner save the sources of widened copies for the backward pass instead of the
    copies, because the gradient's kernel converts its input anyway."""
    widened = set()
    for node in graph.nodes:
        is_permutation = node.target in _RESHAPES or node.target == aten.detach.default
        if _widens(node) or (is_permutation and node.args[0] in widened):
            widened.add(node)
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def _widens(node: Any) -> bool:
    if node.target != aten._to_copy.default:
        return False
    return widens(_value(node.args[0]).dtype, _value(node).dtype)


# ---- as_strided that changes no layout, such as from a mean over channels-last images ----


def _has_strides(value: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None) -> bool:
    """True if the elements in their order already have these strides. The stride of an extent of 1 is
    ignored."""
    steps = steps_in(value, size) if value.numel() == math.prod(size) else None
    if steps is None or offset not in (None, value.storage_offset()):
        return False
    return all(n == 1 or a == b for n, a, b in zip(size, stride, steps, strict=True))


def _strided(node: Any) -> None:
    x, size, stride, offset = _given(node)
    if _has_strides(_value(x), size, stride, offset) and all(each.op != "output" for each in node.users):
        is_same = list(_value(x).shape) == list(size)
        node.replace_all_uses_with(x if is_same else _call(node, aten.view.default, x, size))


def _scatter(node: Any) -> None:
    whole, part, size, stride, offset = _given(node)
    shape, is_same_type = [*_value(whole).shape], _value(part).dtype == _value(whole).dtype
    has_strides = is_same_type and _has_strides(_value(whole), size, stride, offset)
    if has_strides and steps_in(_value(part), shape) is not None:
        node.replace_all_uses_with(_call(node, aten.view.default, part, shape))


def _copy(node: Any) -> None:
    result, source = _value(node), _value(node.args[1])
    if (result.dtype, result.shape, result.stride()) == (source.dtype, source.shape, source.stride()):
        node.replace_all_uses_with(node.args[1])


# ---- Norms whose statistics have another type in torch's fake kernels than in its real ones ----


def _norm(name: str) -> Rewrite:
    def rewrite_norm(node: Any) -> None:
        is_narrow = node.meta["val"][1].dtype in (torch.bfloat16, torch.float16)
        if not is_narrow or all(_value(each).dtype != torch.float32 for each in node.all_input_nodes):
            return
        arguments = _given(node)
        if node.target is aten._native_batch_norm_legit.no_stats:
            arguments[3:3] = [None, None]
        call = _call(node, getattr(torch.ops.weft, name).default, *arguments)
        node.replace_all_uses_with(call)
        for each in call.users:
            each.meta["val"] = call.meta["val"][each.args[1]]

    return rewrite_norm


_REWRITES: dict[Any, Rewrite] = {
    aten.native_layer_norm.default: _norm("layer_norm"),
    aten.native_group_norm.default: _norm("group_norm"),
    aten._native_batch_norm_legit_functional.default: _norm("batch_norm"),
    aten._native_batch_norm_legit.no_stats: _norm("batch_norm"),
    aten.add.Tensor: _sum,
    aten.mul.Tensor: _product,
    aten._unsafe_index.Tensor: _index,
    aten._unsafe_index_put.default: _index_put,
    aten.max_pool2d_with_indices.default: _pool(2),
    aten.max_pool3d_with_indices.default: _pool(3),
    aten.native_dropout.default: _dropout,
    aten.as_strided.default: _strided,
    aten.as_strided_scatter.default: _scatter,
    aten.copy.default: _copy,
    **dict.fromkeys(_LOSSES, _cross_entropy),
}

_OF_ANY_SIZE = {*_LOSSES}
"""Operators that are rewritten even if a size is symbolic."""
