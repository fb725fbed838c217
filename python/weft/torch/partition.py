"""Groups operators of a graph into regions, and replaces each group by a call of its region."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from weft.torch.inductor import RegionFunction
from weft.torch.regions import GETITEM_OPS, MOVE_OPS, Cover, Region


def partition(
    module: torch.fx.GraphModule, support: OperatorSupportBase, cover: Cover
) -> tuple[torch.fx.GraphModule, list[Region]]:
    """Groups the supported operators into regions as large as dependencies allow.

    Args:
        module: a graph of ATen operators. It is modified.
        support: decides which nodes may be in a region.
        cover: where the regions record how they are computed.

    Returns:
        The module, which calls the regions, and the regions. No region contains only views.
    """
    partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
    parts = [part for part in partitioner.propose_partitions() if _computes(part.nodes)]
    fused = partitioner.fuse_partitions(parts)
    regions = []
    for node in list(fused.graph.nodes):
        if node.op == "call_module" and node.target.startswith("fused_"):
            region = Region(getattr(fused, node.target), cover)
            regions.append(region)
            _place(node, region)
    fused.graph.eliminate_dead_code()
    fused.delete_all_unused_submodules()
    fused.recompile()
    return fused, regions


def _computes(nodes: Any) -> bool:
    return any(node.target not in MOVE_OPS and node.target not in GETITEM_OPS for node in nodes)


def _place(node: torch.fx.Node, region: Region) -> None:
    """Replaces a call of the fused module by a call of the region, followed by the views of its results."""
    graph = node.graph
    given = [each for each in region.module.graph.nodes if each.op == "placeholder"]
    with graph.inserting_before(node):
        call = graph.call_function(RegionFunction(region), node.args)
        several = len(region.bases) != 1
        parts = [graph.call_function(operator.getitem, (call, i)) for i in range(len(region.bases) * several)]
        shown = dict(zip([*given, *region.bases], [*node.args, *(parts or [call])], strict=True))
        for each in region.views:
            shown[each] = graph.node_copy(each, lambda n: shown[n])
    ends = torch.fx.map_arg(region.ends, shown.get)
    if isinstance(ends, (tuple, list)):
        for user in list(node.users):
            user.replace_all_uses_with(ends[user.args[1]])
            graph.erase_node(user)
    else:
        node.replace_all_uses_with(ends)
    graph.erase_node(node)


class _Others(OperatorSupportBase):  # type: ignore[misc]
    """Supports all operators except the given nodes."""

    def __init__(self, refused: set[torch.fx.Node]) -> None:
        self._refused = refused

    def is_node_supported(self, _: Any, node: torch.fx.Node) -> bool:
        return node.op == "call_function" and node not in self._refused


def cut_around(region: Region, refused: set[torch.fx.Node], cover: Cover) -> torch.fx.GraphModule:
    """Splits a region: returns a module in which torch computes the refused nodes and smaller regions the
    others."""
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    graph.output(graph.graph_copy(region.module.graph, copies))
    copy = torch.fx.GraphModule(region.module, graph)
    return partition(copy, _Others({copies[each] for each in refused}), cover)[0]
