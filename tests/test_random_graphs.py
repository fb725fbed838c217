# SPDX-License-Identifier: Apache-2.0
"""Random graphs of all operations (tests/random_graphs.py), and those that once failed.

WEFT_TEST_DAY selects other graphs.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import random_graphs
import weft
from definitions import DEFINITIONS
from graph_evaluation import FLOATS
from random_graphs import Graph, Node
from tiers import DAY
from weft import backend, dtypes

COUNT, PARTS = 300, 6
FIRST = 1_000_000  # numbers below it are those of campaigns
FAILED = (Path(__file__).parent / "mended_graphs.txt").read_text().splitlines()


@pytest.mark.parametrize("part", range(PARTS))
def test_new_graphs(part: int) -> None:
    first = FIRST + DAY * COUNT + part * COUNT // PARTS
    wrong = [random_graphs.check(number) for number in range(first, first + COUNT // PARTS)]
    assert not any(wrong), "\n".join([f"WEFT_TEST_DAY={DAY}", *filter(None, wrong)])


@pytest.mark.parametrize(("reason", "line"), list(zip(FAILED[1::2], FAILED[2::2], strict=True)))
def test_graphs_that_once_failed(reason: str, line: str) -> None:
    graph = Graph.from_line(line)
    assert not list(random_graphs.faults(graph, random_graphs.engines())), f"{reason}\n{graph}"
    assert Graph.from_line(graph.to_line()).to_line() == graph.to_line()


def test_every_operation_is_drawn() -> None:
    """A definition needs a method that draws its operation."""
    missing = set(DEFINITIONS)
    assert missing <= set(backend.operations())
    for number in range(300):
        missing -= {node.op for node in random_graphs.make(number).nodes}
        if not missing:
            break
    assert not missing


def test_wrong_numbers_are_found() -> None:
    """Changes one f32 element by a thirtieth; the definitions' own results are never reported as wrong."""
    found = []
    for number in range(40):
        expected = random_graphs.Evaluation(random_graphs.make(number))
        for v in expected.graph.outputs:
            got = expected.base[v].copy()
            assert random_graphs.compare(got, expected, v) == ""
            if expected.graph.values[v].type == "f32" and got.any() and np.isfinite(got).all():
                got.flat[np.abs(got).argmax()] *= 1 + 1 / 30
                found.append(bool(random_graphs.compare(got, expected, v)))
    assert len(found) > 50
    assert np.mean(found) > 0.85


def type_of_results(node: Node, types: dict[int, str], compute: str) -> str:
    """The type that an operation infers for its results; empty where a mix of types decides."""
    given = {types[v] for v in node.reads}
    if node.op in ("reshape", "transpose", "slice", "paged_cache_load"):
        return types[node.reads[0]]
    if node.op in ("pointwise", "concat"):
        return ""
    if given == {"f64"} and compute in ("", "f64"):
        return "f64"
    return "f32" if given <= {*FLOATS} - {"f64"} and compute != "f64" else ""


def test_types_of_results_are_inferred() -> None:
    """Moved elements keep their type. Computed ones are floats, or doubles where all operands are doubles."""
    seen = set()
    for graph in map(random_graphs.make, range(120)):
        g, tensors = random_graphs.draw(graph)
        g.build_operation_graph()
        types = {v: dtypes.of(tensor.dtype).name for v, tensor in tensors.items()}
        for node in graph.nodes:
            want = type_of_results(node, types, graph.compute)
            unset = [key for key, v in node.results.items() if want and not graph.values[v].type]
            seen |= {(node.op, key) for key in unset}
            assert {types[node.results[key]] for key in unset} <= {want}, node
    assert len(seen) >= 25


def test_results_of_other_dims_are_refused() -> None:
    """Two elements more, for each result of which the operation infers the dims: experts may have one offset
    fewer. The message names the dims."""
    seen = set()
    for graph in map(random_graphs.make, range(100)):
        for i, op, key, v in [
            (i, n.op, *each) for i, n in enumerate(graph.nodes) for each in n.results.items()
        ]:
            dims = list(graph.values[v].dims)
            if graph.nodes[i].has_dims or (op, key) in seen or max(dims) == 1:
                continue
            seen.add((op, key))
            dims[at := dims.index(max(dims))] += 2
            g, tensors = random_graphs.draw(graph)
            tensors[v].set_dim(dims).set_stride(np.cumprod([1, *dims[:0:-1]])[::-1].tolist())
            with pytest.raises(weft.BadParameterError) as refusal:
                g.validate()
            shown = re.escape(f"[{','.join(map(str, dims))}]")
            named = rf"{shown}|spatial dimension {at - 2}: {key} has {dims[at]}"
            assert re.match(rf"{op} 'op{i}': .*({named})", str(refusal.value)), refusal.value
    assert len(seen) >= 33
