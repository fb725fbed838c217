"""torch.compile(model, backend="weft"): covers the ATen graphs of forward and backward with Weft graphs.

AOTAutograd produces the graphs. torch's partitioner groups the operators that Weft supports into regions,
each of which becomes one Weft graph per set of shapes. The remaining operators are compiled by Inductor or
run eagerly.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import (
    make_boxed_func,
    min_cut_rematerialization_partition,
)
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.passes.operator_support import OperatorSupportBase

from weft.errors import WeftError
from weft.torch import inductor
from weft.torch.nodes import BLANK, BUILDERS, OWN
from weft.torch.ops import FLOATS, INDICES
from weft.torch.partition import partition
from weft.torch.regions import GETITEM_OPS, VIEW_OPS, Cover, build_separately, name_of
from weft.torch.rewrites import recompute_widened, rewrite

# ---- Which operators ----


def _tensors_of(value: Any) -> list[torch.Tensor]:
    """Returns the tensors among the results of a node."""
    several = value if isinstance(value, (tuple, list)) else [value]
    return [each for each in several if isinstance(each, torch.Tensor)]


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    """Returns the fake tensors that a node reads and writes; for a getitem, only the element."""
    takes = () if node.target in GETITEM_OPS else node.all_input_nodes
    return [tensor for each in (node, *takes) for tensor in _tensors_of(each.meta["val"])]


def refusal(node: torch.fx.Node) -> str:
    """Returns why torch computes the node, or an empty string if Weft can."""
    if node.target not in BUILDERS:
        return "not supported by Weft"
    if any("val" not in each.meta for each in (node, *node.all_input_nodes)):
        return "a value of unknown type"
    if node.target not in BLANK and not _is_blank(node):
        for each in _tensors(node):
            if each.dtype not in (*FLOATS, torch.bool, *_others(node)):
                return f"type {each.dtype}"
    return _build_refusal(node)


def _others(node: torch.fx.Node) -> Sequence[torch.dtype]:
    """Returns the non-float data types that one of Weft's own operators reads and writes."""
    producer = node.args[0] if node.target in GETITEM_OPS else node
    return INDICES if isinstance(producer, torch.fx.Node) and producer.target in OWN else ()


def _is_blank(node: torch.fx.Node) -> bool:
    """True if the node takes an element of a result that may be blank, or is a gradient that reads none of
    them."""
    source = node.args[0] if node.target in GETITEM_OPS else None
    is_element = isinstance(source, torch.fx.Node) and source.target in BLANK
    return is_element or str(node.target).startswith("aten._scaled_dot_product")


def _build_refusal(node: torch.fx.Node) -> str:
    """Returns why Weft cannot build a graph of only this node; empty if it can, or if sizes are symbolic."""
    inputs = [n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta["val"], torch.Tensor)]
    if node.target in GETITEM_OPS or any(_is_symbolic(value) for value in (*inputs, node.meta["val"])):
        return ""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    try:
        build_separately(node.target, args, kwargs, node.meta["val"])
    except WeftError as error:
        return str(error)
    return ""


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, FakeTensor) and value._has_symbolic_sizes_strides


class _Support(OperatorSupportBase):  # type: ignore[misc]
    def __init__(self, cover: Cover) -> None:
        self._cover, self._known = cover, dict[torch.fx.Node, str]()

    def is_node_supported(self, _: Any, node: torch.fx.Node) -> bool:
        if node.op != "call_function":
            return False
        if node not in self._known:
            self._known[node] = refusal(node)
            if self._known[node]:
                self._cover.left[name_of(node.target), self._known[node]] += 1
        return not self._known[node]


# ---- The backend ----


def _covered(module: torch.fx.GraphModule, cover: Cover) -> tuple[torch.fx.GraphModule, int]:
    """Returns the module with Weft's operators replaced by regions, and the number of operators left to
    torch."""
    covered, regions = partition(module, _Support(cover), cover)
    cover.regions += regions
    return covered, sum(_is_left(node) for node in covered.graph.nodes)


def _is_left(node: torch.fx.Node) -> bool:
    """True if torch computes the node and its results are tensors, not views."""
    is_view = node.target in VIEW_OPS or node.target in GETITEM_OPS
    is_torchs = node.op == "call_function" and not isinstance(node.target, inductor.RegionFunction)
    return is_torchs and not is_view and bool(_tensors_of(node.meta.get("val")))


_WORTH = 2
"""The minimum number of remaining operators for which Inductor is used: a single one has nothing to fuse
with."""


def _compiled(
    module: torch.fx.GraphModule, given: Sequence[Any], cover: Cover, how: Mapping[str, Any]
) -> Any:
    """Covers an ATen graph and returns it as a function of a list of arguments."""
    covered, left = _covered(module, cover)
    if left >= _WORTH and how.get("inductor", True):
        try:
            compiled = inductor.compile(covered, given, how["mode"])
        except Exception as refusal:  # Inductor may raise anything
            words = textwrap.shorten(str(refusal), 300, placeholder=" ...")
            cover.eager_reasons.append(f"{type(refusal).__name__}: {words}")
        else:
            cover.compiled += 1
            return compiled
    return make_boxed_func(covered.forward)


def backend(
    module: torch.fx.GraphModule, examples: Sequence[Any], cover: Cover | None = None,
    options: Mapping[str, Any] | None = None, mode: str | None = None,
) -> Any:  # fmt: skip
    """A backend of torch.compile.

    Args:
        module, examples: the arguments that torch.compile passes.
        cover: records how each graph is covered.
        options: the options of torch.compile. "inductor": whether Inductor compiles the operators that Weft
            does
            not support; default True.
        mode: the mode of torch.compile. It applies to the code that Inductor compiles, without CUDA graphs.
    """
    noted, how = Cover() if cover is None else cover, dict(options or {})
    if unknown := how.keys() - {"inductor"}:
        raise ValueError(
            f'backend "weft": unknown option: expected "inductor", got {min(unknown)!r}. Remove it.'
        )
    if mode not in (None, *inductor.MODES):
        modes = ", ".join(map(repr, inductor.MODES))
        raise ValueError(
            f'backend "weft": unknown mode: expected one of {modes}, got {mode!r}. Use one of them.'
        )
    how["mode"] = mode

    def compile_one(graph: torch.fx.GraphModule, given: Sequence[Any]) -> Any:
        return _compiled(graph, given, noted, how)

    def infer(graph: torch.fx.GraphModule, given: Sequence[Any]) -> Any:
        return compile_one(rewrite(graph), given)

    def split(joint: torch.fx.GraphModule, *given: Any, **named: Any) -> Any:
        # Rematerialization does not save a copy of a tensor that is a view.
        rewritten = rewrite(joint)
        recompute_widened(rewritten.graph)
        return min_cut_rematerialization_partition(rewritten, *given, **named)

    both = {"fw_compiler": compile_one, "bw_compiler": compile_one}
    return aot_autograd(**both, inference_compiler=infer, partition_fn=split)(module, examples)


def explain(
    model: Callable[..., Any], *arguments: Any, backward: bool = True,
    options: Mapping[str, Any] | None = None, mode: str | None = None, **named: Any,
) -> Cover:  # fmt: skip
    """Reports how Weft covers a model: str() of the result is the text, and its `graphs` can be plotted.

    Args:
        model: a module or a function of tensors. Its result may be a tensor, or tuples, mappings and data
            classes of tensors, such as ModelOutput of transformers.
        arguments, named: the arguments of the call.
        backward: whether to run the backward pass, on the sum of the results, and cover it too.
        options, mode: as for backend.
    """
    cover = Cover()
    torch._dynamo.reset()

    def noting(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:
        return backend(module, examples, cover, options, mode)

    compiled = torch.compile(model, backend=noting)
    results = [each for each in _all_tensors(compiled(*arguments, **named)) if each.requires_grad]
    if backward and results:
        torch.autograd.backward([each.sum() for each in results])
    return cover


def _all_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in a model's result."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, Mapping):
        parts: Iterable[Any] = value.values()
    elif dataclasses.is_dataclass(value):
        parts = vars(value).values()
    else:
        parts = value if isinstance(value, (tuple, list)) else ()
    for each in parts:
        yield from _all_tensors(each)
