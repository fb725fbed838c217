# SPDX-License-Identifier: Apache-2.0
"""Random graphs of all operations, which every engine of the device must compute as the definitions do.

    python tests/random_graphs.py 1234                       one graph, on the CPU's engines
    python tests/random_graphs.py 1234 --keep 3,5 --plain    two operations of it, operands packed
    python tests/random_graphs.py --first 0 --count 10000    many; what fails is cut down to a line as above
    python tests/random_graphs.py --first 0 --count 2000 --near            those at sizes next to thresholds
    python tests/emulated_gpu.py python tests/random_graphs.py 1234        on a GPU in software

tests/graph_drawing.py draws them, tests/definitions.py says what operations are, tests/graph_evaluation.py
what a result may be off by. A graph that failed is kept in tests/mended_graphs.txt: what a number makes may
change.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import checks
import foreign_cpu
import numpy as np
import weft
from graph_drawing import is_near, make
from graph_evaluation import Array, Arrays, Evaluation, Graph, Node, Value, types_on_gpu, ulp
from weft import dtypes
from weft.dtypes import data_type_of

# ---- Parts of a graph --------------------------------------------------------------------------------------


def part(graph: Graph, keep: Sequence[int], plain: bool = False) -> Graph:
    """Returns a subset of a graph's operations; results of the others become inputs."""
    values = [replace(value) for value in graph.values]
    nodes = [graph.nodes[i] for i in keep]
    made = {v for node in nodes for v in node.results.values()}
    read = {v for node in nodes for v in node.reads}
    whole = Evaluation(graph, runs=0)
    for v, value in enumerate(values):
        if v in read - made and value.data is None:
            value.type = value.type or whole.stored[v]
            value.data, value.is_output = checks.narrow(whole.base[v], value.type), False
        elif v in made - read:
            value.is_output, value.type = True, value.type or whole.stored[v]
        elif v not in made and v not in read:
            value.data, value.is_output = None, False
        if plain:
            value.order, value.gap, value.shift = tuple(range(len(value.dims))), 0, 0
    return Graph(values, nodes, graph.compute)


# ---- Running -----------------------------------------------------------------------------------------------


def draw(graph: Graph) -> tuple[weft.Graph, dict[int, Any]]:
    """Returns the library's graph, not yet planned, and its tensors by value."""
    options = {"compute_data_type": graph.compute} if graph.compute else {}
    g = weft.Graph(handle=checks.handle(), **options)
    tensors: dict[int, Any] = {}
    for v in sorted({v for node in graph.nodes for v in node.reads if graph.values[v].data is not None}):
        value = graph.values[v]
        tensors[v] = g.tensor(value.dims, value.strides, value.type, name=f"v{v}")
    for i, node in enumerate(graph.nodes):
        operands = {
            key: [tensors[v] for v in each] if isinstance(each, list) else tensors[each]
            for key, each in node.operands.items()
        }
        made = record(g, graph, node, operands | node.options, f"op{i}")
        for v, tensor in zip(node.results.values(), made, strict=True):
            value = graph.values[v]
            tensors[v] = tensor.set_data_type(value.type) if value.type else tensor
            if value.is_output:
                tensor.set_dim(value.dims).set_stride(value.strides)
                if tensor.producer is not None:
                    tensor.set_output(True)
            elif node.has_dims:
                tensor.set_dim(value.dims)
    return g, tensors


def build(graph: Graph, engine: str) -> tuple[weft.Graph, dict[int, Any]]:
    """The graph planned on one engine, and its tensors by value."""
    g, tensors = draw(graph)
    index = [answer["engine"] for answer in g.support()].index(engine)
    g.create_execution_plan(index)
    g.build_plan_at_index(0)
    return g, tensors


def stored_types(graph: Graph) -> dict[int, str]:
    """The type in which the device stores each value: the inferred one, which a GPU may narrow."""
    g, tensors = draw(graph)
    g.build_operation_graph()
    inferred = {v: dtypes.of(tensor.dtype).name for v, tensor in tensors.items()}
    return inferred if checks.DEVICE == "cpu" else types_on_gpu(graph, inferred)


def record(g: weft.Graph, graph: Graph, node: Node, values: dict[str, Any], name: str) -> list[Any]:
    """Adds an operation. Statistics of a softmax are asked for as tensors of their own."""
    if node.op != "softmax":
        return list(checks.record(g, node.op, values, tuple(node.results), name))
    made = {
        key: g.tensor(name=f"{name}_{key}", is_virtual=not graph.values[v].is_output)
        for key, v in node.results.items()
        if key != "y"
    }
    y = checks.record(g, node.op, values | made, ("y",), name)[0]
    return [made.get(key, y) for key in node.results]


def run(graph: Graph, engine: str) -> Arrays:
    """The outputs of a graph on an engine; poison around and beneath them, a workspace of just its size."""
    g, tensors = build(graph, engine)
    memory = {}
    for v, tensor in tensors.items():
        value = graph.values[v]
        type_ = data_type_of(value.type) if value.type else None
        if value.data is not None:
            memory[v] = checks.Memory(value.dims, value.strides, type_, shift_of(value)).write(value.data)
        elif value.is_output:
            memory[v] = checks.Memory(value.dims, value.strides, type_, shift_of(value))
        else:
            assert tensor.dims == value.dims, f"%{v} is inferred to have dims {tensor.dims}, not {value.dims}"
    before = {v: each.snapshot() for v, each in memory.items()}
    checks.run_plan(g, {tensors[v]: each for v, each in memory.items()})
    for v, each in memory.items():
        if graph.values[v].is_output:
            each.check_fences(before[v], f"%{v}")
        else:
            assert (each.snapshot() == before[v]).all(), f"input %{v} was changed"
    return {v: memory[v].read() for v in graph.outputs}


def shift_of(value: Value) -> int:
    """The shift of a value in bytes. The program that runs plans on another processor knows none, and numbers
    of fewer than 8 bits have none."""
    return 0 if foreign_cpu.process() else value.shift * dtypes.of(data_type_of(value.type)).bits // 8


def engines() -> list[str]:
    """Those whose results are compared: all but the ones that narrow products."""
    return [name for name in checks.engine_names() if name != "cuda.tf32"]


def faults(graph: Graph, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Lists engines that disagree with the definitions, and how."""
    types = stored_types(graph)
    expected = Evaluation(graph, types=types)
    for engine in names:
        try:
            found = run(graph, engine)
        except weft.NotSupportedError as error:
            if engine in ("cpu.reference", "cuda"):
                yield engine, f"refused: {error}"
            continue
        except (weft.WeftError, AssertionError) as error:
            yield engine, f"{type(error).__name__}: {error}"
            continue
        for v, got in found.items():
            if compare(got, expected, v) and (wrong := confirm(graph, got, v, types)):
                yield engine, wrong
                break


def confirm(graph: Graph, got: Array, v: int, types: dict[int, str]) -> str:
    """Describes a mismatch with many evaluations: a comparison may flip due to a rounding that few
    evaluations had."""
    wrong = ""
    for noise, runs in ((1, 40), (4, 40)):
        wrong = compare(got, Evaluation(graph, noise, runs, seed=1, types=types), v)
        if not wrong:
            break
    return wrong


def compare(got: Array, expected: Evaluation, v: int) -> str:
    """Describes a result that is off by more than noise explains; empty if none is."""
    want, type_ = expected.base[v], expected.graph.values[v].type
    found, allowed = checks.exact(got), np.zeros(want.shape)
    if expected.is_inexact[v]:
        spread = expected.spread(v)
        finite = spread[np.isfinite(spread)]
        allowed = 12 * spread + 3 * float(np.sqrt((finite * finite).mean())) if finite.size else spread
        allowed = allowed + ulp(want, type_)
    with np.errstate(invalid="ignore"):
        off = np.where((found == want) | (np.isnan(found) & np.isnan(want)), 0, np.abs(found - want))
    wrong = ~(off <= allowed)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"%{v} {type_}: {wrong.sum()} of {wrong.size} are wrong, first at {at}: got {found[at]:.9g}, "
        f"want {want[at]:.9g} within {allowed[at]:.3g}"
    )


# ---- Cutting down ------------------------------------------------------------------------------------------


def shrink(number: int, engine: str) -> tuple[list[int], bool]:
    """The fewest operations on which an engine still fails, and whether it does so on packed operands."""
    whole = make(number)

    def fails(keep: list[int], plain: bool) -> bool:
        try:
            return bool(keep) and any(True for _ in faults(part(whole, keep, plain), [engine]))
        except Exception:
            return False

    keep = list(range(len(whole.nodes)))
    size = max(len(keep) // 2, 1)
    while size:
        for at in range(len(keep) - size, -1, -size):
            fewer = keep[:at] + keep[at + size :]
            keep = fewer if fails(fewer, False) else keep
        size //= 2
    return keep, fails(keep, True)


def check(number: int, names: Sequence[str] = ()) -> str:
    """What is wrong with the graph of a number, with the line that runs the least part of it."""
    for engine, fault in faults(make(number), names or engines()):
        keep, plain = shrink(number, engine)
        least = part(make(number), keep, plain)
        how = next((text for _, text in faults(least, [engine])), fault)
        words = f"{number} --keep {','.join(map(str, keep))}{' --plain' if plain else ''}"
        line = f"WEFT_TEST_DEVICE={checks.DEVICE} python tests/random_graphs.py {words} --engine {engine}"
        return f"{engine}: {how}\n{least}\nrepro: {line}\nto keep as a test: {least.to_line()}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("number", type=int, nargs="?", help="one graph")
    parser.add_argument("--graph", help="one graph that was printed as a line")
    parser.add_argument("--keep", help="which of its operations to keep (all)")
    parser.add_argument("--plain", action="store_true", help="all operands packed")
    parser.add_argument("--engine", help="one engine (all of the device)")
    parser.add_argument("--first", type=int, default=0, help="of many (0)")
    parser.add_argument("--count", type=int, default=300, help="how many (300)")
    parser.add_argument("--near", action="store_true", help="only those at sizes next to thresholds")
    args = parser.parse_args()
    names = [args.engine] if args.engine else engines()
    if args.number is not None or args.graph:
        graph = Graph.from_line(args.graph) if args.graph else make(args.number)
        keep = [int(word) for word in args.keep.split(",")] if args.keep else range(len(graph.nodes))
        graph = part(graph, keep, args.plain) if args.keep or args.plain else graph
        found = list(faults(graph, names))
        print(graph, *(f"{engine}: {text}" for engine, text in found), sep="\n")
        return 1 if found else 0
    counts: Counter[str] = Counter()
    start = time.process_time()
    numbers = range(args.first, args.first + args.count)
    for number in filter(is_near, numbers) if args.near else numbers:
        graph = make(number)
        counts.update(node.what for node in graph.nodes)
        if wrong := check(number, names):
            counts["wrong"] += 1
            print(f"{number}: {wrong}", flush=True)
    failed = counts.pop("wrong", 0)
    print(", ".join(f"{count} {what}" for what, count in counts.most_common()))
    print(
        f"{args.count} graphs, {counts.total()} operations, {failed} wrong, "
        f"{time.process_time() - start:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
