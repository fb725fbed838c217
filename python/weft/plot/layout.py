"""Layered graph drawing: every edge points downwards, there are few crossings, and no edge crosses a box.

Works on boxes and edges; independent of tensor graphs and of SVG.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

SWEEPS = 12
# The inner segments of a long edge are straightened with this weight relative to edges between boxes.
LONG_EDGE_WEIGHT = 6.0


class Edge(NamedTuple):
    """A line from the bottom of one box to the top of another."""

    source: int
    target: int
    source_at: float = 0.0
    """The start, relative to the source's middle."""
    target_at: float = 0.0
    """The end, relative to the target's middle."""
    weight: float = 1.0
    """How much its straightness counts."""


@dataclass
class Box:
    """A rectangle to place. A pin of "top" or "bottom" fixes it in the first or last layer."""

    width: float
    height: float
    pin: str = ""
    layer: int = 0
    x: float = 0.0
    """Of the middle."""
    y: float = 0.0
    """Of the top."""


@dataclass
class Placed:
    """A finished drawing: its size, and the points of each edge. Segments of a route are vertical inside a
    layer; between two points of different x, which are in the gap between layers, they may be curved."""

    width: float
    height: float
    routes: list[list[tuple[float, float]]]


@dataclass
class _Links:
    """Connected boxes and the ends of the lines: (box, offset at that box, offset here, weight)."""

    up: list[tuple[int, float, float, float]] = field(default_factory=list)
    down: list[tuple[int, float, float, float]] = field(default_factory=list)


def place(
    boxes: list[Box], edges: Sequence[Edge], gap_x: float, gap_y: float, sorts_arrivals: bool = False
) -> Placed:
    """Places boxes in layers from top to bottom; sets layer, x and y of each.

    sorts_arrivals: the points where lines arrive at a box may be permuted to avoid crossings.
    """
    _assign_layers(boxes, edges)
    placed = _place_layers(boxes, edges, gap_x, gap_y)
    return _place_layers(boxes, _sorted_arrivals(edges, placed), gap_x, gap_y) if sorts_arrivals else placed


def _place_layers(boxes: list[Box], edges: Sequence[Edge], gap_x: float, gap_y: float) -> Placed:
    nodes = [Box(box.width, box.height, box.pin, box.layer) for box in boxes]
    chains = _bend_long_edges(nodes, edges)
    links = _link(nodes, edges, chains)
    layers = _order(nodes, links, gap_x)
    _align(nodes, layers, links, gap_x)
    _straighten(nodes, layers, chains, gap_x)
    tops, bottoms = _stack(nodes, layers, links, gap_y)
    left = min((node.x - node.width / 2 for node in nodes), default=0.0)
    for node in nodes:
        node.x -= left
    for box, node in zip(boxes, nodes, strict=False):
        box.x, box.y = node.x, node.y
    routes = [_route(nodes, edge, chain, tops, bottoms) for edge, chain in zip(edges, chains, strict=True)]
    width = max((node.x + node.width / 2 for node in nodes), default=0.0)
    return Placed(width, bottoms[-1] if bottoms else 0.0, routes)


def _sorted_arrivals(edges: Sequence[Edge], placed: Placed) -> list[Edge]:
    """The edges with the arrival points of each box assigned from left to right in the order of their
    sources."""
    arriving: dict[int, list[int]] = defaultdict(list)
    for i, edge in enumerate(edges):
        arriving[edge.target].append(i)
    result = list(edges)
    for group in arriving.values():
        positions = sorted(edges[i].target_at for i in group)
        comers = sorted(group, key=lambda i: placed.routes[i][-3][0])
        for i, at in zip(comers, positions, strict=True):
            result[i] = edges[i]._replace(target_at=at)
    return result


def _assign_layers(boxes: list[Box], edges: Sequence[Edge]) -> None:
    """Puts each box below all its sources, and boxes without sources directly above their first target."""
    changed = True
    for box in boxes:
        box.layer = 0
    while changed:
        changed = False
        for edge in edges:
            least = boxes[edge.source].layer + 1
            if boxes[edge.target].layer < least:
                boxes[edge.target].layer, changed = least, True
    last = max((box.layer for box in boxes), default=0)
    has_source = {edge.target for edge in edges}
    for i, box in enumerate(boxes):
        targets = [boxes[edge.target].layer for edge in edges if edge.source == i]
        if box.pin == "bottom":
            box.layer = last
        elif i not in has_source and targets and box.pin != "top":
            box.layer = min(targets) - 1


def _bend_long_edges(nodes: list[Box], edges: Sequence[Edge]) -> list[list[int]]:
    """Adds a point in every layer that an edge passes; edges from the same origin share their points."""
    shared: dict[tuple[int, float, int], int] = {}
    chains = []
    for edge in edges:
        chain = []
        for layer in range(nodes[edge.source].layer + 1, nodes[edge.target].layer):
            key = (edge.source, edge.source_at, layer)
            if key not in shared:
                shared[key] = len(nodes)
                nodes.append(Box(6.0, 0.0, "bend", layer))
            chain.append(shared[key])
        chains.append(chain)
    return chains


def _link(nodes: list[Box], edges: Sequence[Edge], chains: list[list[int]]) -> list[_Links]:
    links = [_Links() for _ in nodes]
    known = set()
    for edge, chain in zip(edges, chains, strict=True):
        path = [edge.source, *chain, edge.target]
        for k, (upper, lower) in enumerate(pairwise(path)):
            upper_at = edge.source_at if k == 0 else 0.0
            lower_at = edge.target_at if k == len(path) - 2 else 0.0
            if (upper, lower, upper_at, lower_at) in known:
                continue
            known.add((upper, lower, upper_at, lower_at))
            is_inner = nodes[upper].pin == "bend" and nodes[lower].pin == "bend"
            weight = edge.weight * (LONG_EDGE_WEIGHT if is_inner else 1.0)
            links[upper].down.append((lower, lower_at, upper_at, weight))
            links[lower].up.append((upper, upper_at, lower_at, weight))
    return links


def _pack(nodes: list[Box], layer: Sequence[int], gap_x: float) -> None:
    """Puts the boxes of a layer next to each other, centred at 0."""
    x = 0.0
    for i in layer:
        nodes[i].x = x + nodes[i].width / 2
        x += nodes[i].width + gap_x
    for i in layer:
        nodes[i].x -= (x - gap_x) / 2


def _crossings(nodes: list[Box], layers: list[list[int]], links: list[_Links]) -> int:
    """The number of crossing pairs of lines for the current positions."""
    count = 0
    for layer in layers:
        lines = sorted(
            (nodes[i].x + here, nodes[j].x + there) for i in layer for j, there, here, _ in links[i].down
        )
        count += sum(a[1] > b[1] and a[0] < b[0] for k, a in enumerate(lines) for b in lines[k + 1 :])
    return count


def _order(nodes: list[Box], links: list[_Links], gap_x: float) -> list[list[int]]:
    """The boxes of each layer from left to right, each near the middle of its connected boxes."""
    by_layer: dict[int, list[int]] = defaultdict(list)
    for i, node in enumerate(nodes):
        by_layer[node.layer].append(i)
    layers = [by_layer[key] for key in sorted(by_layer)]
    for layer in layers:
        _pack(nodes, layer, gap_x)
    best, fewest = [list(layer) for layer in layers], _crossings(nodes, layers, links)
    for sweep in range(SWEEPS):
        _exchange(nodes, layers, links, gap_x)
        crossings = _crossings(nodes, layers, links)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
        if not fewest:
            break
        downwards = sweep % 2 == 0
        for layer in layers if downwards else layers[::-1]:
            preferences = {i: _preference(nodes, links[i], i, downwards, not downwards) for i in layer}
            layer.sort(key=lambda i: preferences[i][0])
            _pack(nodes, layer, gap_x)
    return best


def _exchange(nodes: list[Box], layers: list[list[int]], links: list[_Links], gap_x: float) -> None:
    """Swaps adjacent boxes, and moves boxes to the ends of their layers, if that reduces crossings."""
    for k, layer in enumerate(layers):
        near = layers[max(k - 1, 0) : k + 1]
        fewest = _crossings(nodes, near, links)
        for i in list(layer):
            positions = range(len(layer)) if len(layer) <= 8 else [layer.index(i) - 1, layer.index(i) + 1]
            for position in positions:
                if not fewest or not 0 <= position < len(layer):
                    continue
                before = list(layer)
                layer.remove(i)
                layer.insert(position, i)
                _pack(nodes, layer, gap_x)
                crossings = _crossings(nodes, near, links)
                if crossings < fewest:
                    fewest = crossings
                else:
                    layer[:] = before
                    _pack(nodes, layer, gap_x)


def _preference(nodes: list[Box], links: _Links, i: int, above: bool, below: bool) -> tuple[float, float]:
    """The position at which a box's lines would be straight on average, and the weight of that preference."""
    lines = (links.up if above else []) + (links.down if below else [])
    total = sum(weight for *_, weight in lines)
    if not total:
        return nodes[i].x, 0.01
    return sum((nodes[j].x + there - here) * weight for j, there, here, weight in lines) / total, total


def _align(nodes: list[Box], layers: list[list[int]], links: list[_Links], gap_x: float) -> None:
    """Moves boxes so that lines become straight, preserving order and spacing."""
    for layer in layers:
        _pack(nodes, layer, gap_x)
    for sweep in range(SWEEPS * 4):
        is_last = sweep >= SWEEPS
        downwards = sweep % 2 == 0
        for layer in layers if downwards else layers[::-1]:
            above, below = downwards or is_last, not downwards or is_last
            preferences = [_preference(nodes, links[i], i, above, below) for i in layer]
            _spread(nodes, layer, preferences, gap_x)


def _spread(
    nodes: list[Box], layer: Sequence[int], preferences: list[tuple[float, float]], gap_x: float
) -> None:
    """Moves each box as close to its preferred position as the order allows, in the least-squares sense, by
    merging overlapping adjacent boxes into blocks (isotonic regression of the preferred positions minus the
    space on the left)."""
    room, offset = [], 0.0
    for k, i in enumerate(layer):
        if k:
            offset += (nodes[layer[k - 1]].width + nodes[i].width) / 2 + gap_x
        room.append(offset)
    blocks: list[tuple[float, float, int]] = []  # mean, weight, number of boxes
    for (preference, weight), taken in zip(preferences, room, strict=True):
        mean, total, count = preference - taken, weight, 1
        while blocks and blocks[-1][0] > mean:
            before = blocks.pop()
            mean = (mean * total + before[0] * before[1]) / (total + before[1])
            total, count = total + before[1], count + before[2]
        blocks.append((mean, total, count))
    means = [mean for mean, _, count in blocks for _ in range(count)]
    for i, mean, taken in zip(layer, means, room, strict=True):
        nodes[i].x = mean + taken


def _straighten(nodes: list[Box], layers: list[list[int]], chains: list[list[int]], gap_x: float) -> None:
    """Gives the points of a long edge one x coordinate if every layer has room for it."""
    place_of: dict[int, tuple[list[int], int]] = {
        i: (layer, k) for layer in layers for k, i in enumerate(layer)
    }
    for chain in chains:
        least, most = float("-inf"), float("inf")
        for i in chain:
            layer, k = place_of[i]
            if k:
                left = nodes[layer[k - 1]]
                least = max(least, left.x + (left.width + nodes[i].width) / 2 + gap_x)
            if k + 1 < len(layer):
                right = nodes[layer[k + 1]]
                most = min(most, right.x - (right.width + nodes[i].width) / 2 - gap_x)
        if chain and least <= most:
            x = min(max(sum(nodes[i].x for i in chain) / len(chain), least), most)
            for i in chain:
                nodes[i].x = x


def _stack(
    nodes: list[Box], layers: list[list[int]], links: list[_Links], gap_y: float
) -> tuple[list[float], list[float]]:
    """Top and bottom of each layer. Boxes without sources are placed at the bottom, near their targets."""
    tops, bottoms, y = [], [], 0.0
    for layer in layers:
        height = max(nodes[i].height for i in layer)
        for i in layer:
            sinks = links[i].down and not links[i].up
            nodes[i].y = y + (height - nodes[i].height if sinks else 0.0)
        tops.append(y)
        bottoms.append(y + height)
        y += height + gap_y
    return tops, bottoms


def _route(
    nodes: list[Box], edge: Edge, chain: list[int], tops: list[float], bottoms: list[float]
) -> list[tuple[float, float]]:
    source, target = nodes[edge.source], nodes[edge.target]
    x0, x1 = source.x + edge.source_at, target.x + edge.target_at
    points = [(x0, source.y + source.height), (x0, bottoms[source.layer])]
    for i in chain:
        points += [(nodes[i].x, tops[nodes[i].layer]), (nodes[i].x, bottoms[nodes[i].layer])]
    return [*points, (x1, tops[target.layer]), (x1, target.y)]
