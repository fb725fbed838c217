# SPDX-License-Identifier: Apache-2.0
"""Graphs as data, evaluated in float64: their values, and the errors that rounding may cause.

The allowed error of a result is measured: a graph is evaluated again with noise of the size of rounding
errors on the inputs and outputs of each inexact operation, in its compute type and in the type in which its
result is stored. Results that all engines must compute exactly, such as moved elements and sums of few small
numbers, get no noise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import checks
import numpy as np
from definitions import BINARY, DEFINITIONS
from weft.dtypes import data_type_of

Array = np.ndarray[Any, Any]
Dims = tuple[int, ...]
Arrays = dict[int, Array]

RUNS = 3  # evaluations with noise
FLOATS = ("f64", "f32", "f16", "bf16", "e4m3", "e5m2", "e2m1")
HALVES = ("f16", "bf16")
INTEGERS = ("i8", "u8", "i32", "u32", "i64", "i4", "u4")
BOOLEANS = ("bool8", "bool1")


# ---- Graphs ------------------------------------------------------------------------------------------------


@dataclass
class Value:
    """A tensor; its type is "" where that is left to the library."""

    dims: Dims
    type: str
    order: Dims  # its dims from the slowest to the fastest
    gap: int = 0  # unused elements after each line
    is_output: bool = False
    is_laid: bool = False  # a virtual tensor whose strides are set
    still: Dims = ()  # dims along which an input has one element, at stride 0
    shift: int = 0  # elements between an aligned address and the first element, of inputs and outputs
    data: Array | None = None  # of an input

    @property
    def strides(self) -> Dims:
        steps, step = [0] * len(self.dims), 1
        for i, at in enumerate(reversed(self.order)):
            steps[at] = step
            if at in self.still:
                steps[at] = 0
                continue
            step = step * max(self.dims[at], 1) + (self.gap if i == 0 else 0)
        return tuple(steps)


@dataclass
class Node:
    """An operation: its options as set, and the additional ones that its definition needs."""

    op: str
    operands: dict[str, int | list[int]]
    results: dict[str, int]
    options: dict[str, Any] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)
    has_dims: bool = True  # those of its results are set

    @property
    def reads(self) -> list[int]:
        return [v for each in self.operands.values() for v in (each if isinstance(each, list) else [each])]

    @property
    def what(self) -> str:
        return str(self.options["mode"] if self.op == "pointwise" else self.op)


@dataclass
class Graph:
    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    compute: str = ""  # the type to calculate in, where the graph says so

    def __str__(self) -> str:
        def shown(v: int) -> str:
            value = self.values[v]
            dims = ",".join(map(str, value.dims))
            layout = (
                "" if value.order == tuple(range(len(value.dims))) and not value.gap else f":{value.strides}"
            )
            return f"%{v} {value.type or 'unset'}[{dims}]{layout}{' out' if value.is_output else ''}"

        lines = [f"calculates in {self.compute or 'what the operations do'}"]
        lines += [f"  {shown(v)}" for v in range(len(self.values)) if self.values[v].data is not None]
        for i, node in enumerate(self.nodes):
            operands = ", ".join(f"{key}={each}" for key, each in node.operands.items())
            made = "; ".join(f"{key} {shown(v)}" for key, v in node.results.items())
            lines.append(f"  {i}: {made} = {node.op}({operands}) {node.options or ''}")
        return "\n".join(lines)

    def to_line(self) -> str:
        """Formats the graph as one line, which later versions can parse. The numbers of large inputs
        change."""
        used = sorted({v for node in self.nodes for v in [*node.reads, *node.results.values()]})
        values = {v: _said(self.values[v]) | {"data": self._kept_data(v)} for v in used}
        return json.dumps(
            {"compute": self.compute, "values": values, "nodes": [_said(n) for n in self.nodes]}
        )

    def _kept_data(self, v: int) -> Any:
        data = self.values[v].data
        reads = {key for node in self.nodes for key, each in node.operands.items() if each == v}
        is_kept = data is not None and (data.size <= 4 or reads & set(COUNTS))
        return data is not None and (checks.exact(data).ravel().tolist() if is_kept else True)

    @staticmethod
    def from_line(line: str) -> Graph:
        read = json.loads(line)
        nodes = [Node(**node) for node in read["nodes"]]
        values = [Value((), "", ()) for _ in range(1 + max(map(int, read["values"])))]
        for v, each in read["values"].items():
            draw, dims = np.random.default_rng(int(v)), tuple(each["dims"])
            data = draw.uniform(-2, 2, dims) if each["data"] is True else each["data"]
            numbers = None if data is False else checks.narrow(np.reshape(data, dims), each["type"])
            lists = {"dims": dims, "order": tuple(each.get("order", range(len(dims)))), "data": numbers}
            lists["still"] = tuple(each.get("still", ()))
            if lists["still"]:
                lists["data"] = still(numbers, lists["still"])
            values[int(v)] = Value(**(each | lists))
        for node in nodes:
            node.known = {key: tuple(x) if isinstance(x, list) else x for key, x in node.known.items()}
        return Graph(values, nodes, read["compute"])

    @property
    def outputs(self) -> list[int]:
        return [v for node in self.nodes for v in node.results.values() if self.values[v].is_output]


def still(data: Array, dims: Dims) -> Array:
    """The first elements along some dims, all along these."""
    first = tuple(slice(0, 1) if i in dims else slice(None) for i in range(data.ndim))
    return np.broadcast_to(data[first], data.shape)


def _said(of: Value | Node) -> dict[str, Any]:
    """Lists the settings that differ from the defaults."""
    usual = {
        "gap": 0,
        "is_output": False,
        "is_laid": False,
        "still": (),
        "shift": 0,
        "options": {},
        "known": {},
        "has_dims": True,
    }
    usual |= {"order": tuple(range(len(of.dims)))} if isinstance(of, Value) else {}
    return {key: each for key, each in vars(of).items() if key not in usual or each != usual[key]}


# ---- Evaluating --------------------------------------------------------------------------------------------

MOVES = ("reshape", "transpose", "slice", "concat", "diagonal_band_mask", "paged_cache_load")
EXACT_MODES = (
    "ABS",
    "CEIL",
    "FLOOR",
    "NEG",
    "IDENTITY",
    "RELU_FWD",
    "RELU_BWD",
    "MAX",
    "MIN",
    "BINARY_SELECT",
)
EXACT_MODES += (
    "GEN_INDEX",
    "LOGICAL_NOT",
    "LOGICAL_AND",
    "LOGICAL_OR",
    *(m for m in BINARY if m[:3] == "CMP"),
)
ARE_FLOAT = ("rng", "norm", "norm_backward", "softmax", "sdpa_fwd", "genstats", "bn_finalize", "dbn_weight")
EXACT_REDUCTIONS = ("MIN", "MAX", "AMAX")
COUNTS = ("seq_len_q", "seq_len_kv", "first_token_offset", "token_index", "token_ks", "index", "t")
COUNTS += (
    "cu_seq_len_q",
    "cu_seq_len_kv",
    "left_bound",
    "shift_right_bound",
    "offset",
    "block_mask",
    "seq_len",
    "page_table",
)
COUNTS += ("m_override", "n_override", "k_override", "paged_attention_k_table", "paged_attention_v_table")
SUMS = ("matmul", "conv_fprop", "conv_dgrad", "conv_wgrad", "genstats", "moe_grouped_matmul")
SUMS += ("moe_grouped_matmul_bwd", "ADD", "SUB", "MUL", "ADD_SQUARE", "NORM1")


# Results that are of the kind of their operands; others are sums and statistics. Operations that are not
# named have no others.
RESULTS = dict.fromkeys(("reduction", "genstats", "bn_finalize", "dbn_weight"), ())
RESULTS |= dict.fromkeys(("norm", "softmax"), ("y",)) | {"norm_backward": ("dx",)}
RESULTS |= {"sdpa_fwd": ("o",), "sdpa_bwd": ("dQ", "dK", "dV"), "causal_conv1d_backward": ("dx",)}
HAVE_FACTORS = ("pointwise", "causal_conv1d", "causal_conv1d_backward")
LENDERS = {"norm": ("x",), "norm_backward": ("dy",), "sdpa_fwd": ("q",), "sdpa_bwd": ("q",)}


def types_on_gpu(graph: Graph, inferred: dict[int, str]) -> dict[int, str]:
    """The types in which a GPU stores values, by the rules of docs/gpu.md, "Widths". inferred: the type that
    the library infers for each value that is used."""
    types = {v: graph.values[v].type or type_ for v, type_ in inferred.items()}
    free = {v for v in types if not graph.values[v].type and types[v] == "f32"}
    for node in reversed(graph.nodes):  # inputs of float computations stay f32
        kinds = RESULTS.get(node.op, tuple(node.results))
        made = {v for key, v in node.results.items() if key in kinds}
        if any(types[v] in ("f32", "f64") for v in made - free):
            free -= set(node.reads)
    of_numbers: set[int] = set()  # computed from no tensor of floats
    for node in graph.nodes:
        lenders = LENDERS.get(node.op, tuple(node.operands))
        given = [v for v in picked_values(node, lenders) if types[v] in FLOATS and v not in of_numbers]
        most = max((prod(graph.values[v].dims) for v in [*node.reads, *node.results.values()]), default=0)
        whole = [v for v in given if node.op not in HAVE_FACTORS or not is_factor(graph.values[v].dims, most)]
        lent = {types[v] for v in whole or given}
        halves = lent & set(HALVES)
        is_narrow = len(halves) == 1 and not lent & {"f32", "f64"}
        for key, v in node.results.items():
            if not lent and v in free:
                of_numbers.add(v)
            if is_narrow and v in free and key in RESULTS.get(node.op, (key,)):
                types[v] = min(halves)
    return types


def is_factor(dims: Dims, most: int) -> bool:
    """True if an operand is broadcast and has at most one dimension."""
    return sum(n != 1 for n in dims) < 2 and prod(dims) < most


def picked_values(node: Node, keys: tuple[str, ...]) -> list[int]:
    operands = [each for key, each in node.operands.items() if key in keys]
    return [v for each in operands for v in (each if isinstance(each, list) else [each])]


def define(node: Node, operands: dict[str, Any]) -> dict[str, Array]:
    """All results of an operation by their keys, not rounded, and what was summed."""
    options = {
        key: each.tolist() if isinstance(each, np.ndarray) else each for key, each in node.options.items()
    }
    with np.errstate(all="ignore"):
        made = DEFINITIONS[node.op](options | node.known, **operands)
    return {key: np.asarray(each, np.float64) for key, each in made.items()}


def picked(node: Node, arrays: Arrays) -> dict[str, Any]:
    return {
        key: [arrays[v] for v in each] if isinstance(each, list) else arrays[each]
        for key, each in node.operands.items()
    }


def is_exact(node: Node, arrays: Arrays) -> bool:
    """Whether an operation on exact operands rounds nothing: moves, comparisons, sums of small ones."""
    mode = node.options.get("mode", node.options.get("distribution"))
    if node.op in MOVES or (node.op == "resample" and mode == "MAXPOOL") or mode == "BERNOULLI":
        return True
    if node.op == "reduction" and mode in EXACT_REDUCTIONS:
        return True
    scales = {node.options.get(key, 1) for key in ("alpha1", "alpha2")}
    if node.op == "pointwise" and mode in EXACT_MODES:
        return scales == {1} and "relu_lower_clip_slope" not in node.options
    if node.op not in SUMS and mode not in SUMS:
        return False
    operands = picked(node, arrays)
    if not scales <= {1, -2, 0.5} or any((x * 16 != np.rint(x * 16)).any() for x in operands.values()):
        return False
    sizes = define(replace(node, known=node.known | {"mode": "ADD"} if mode == "SUB" else node.known),
                   {key: np.abs(x) for key, x in operands.items()})  # fmt: skip
    return all(float(np.max(np.abs(sizes[key]), initial=0)) < 2**11 for key in node.results)


class Evaluation:
    """A graph in float64, rounded where a type is set, and several times more with noise.

    types: the type in which each value is stored; None: any type that some device may choose."""

    def __init__(
        self,
        graph: Graph,
        noise: float = 1,
        runs: int = RUNS,
        seed: int = 0,
        types: dict[int, str] | None = None,
    ) -> None:
        self.graph, self.noise, self.runs, self.seed, self.types = graph, noise, runs, seed, types
        self.base: Arrays = {}
        self.noisy: list[Arrays] = [{} for _ in range(runs)]
        self.is_inexact: dict[int, bool] = {}
        self.stored: dict[int, str] = {}  # the type that a value may be stored in
        for v, value in enumerate(graph.values):
            if value.data is not None:
                self.take(v)
        for node in graph.nodes:
            self.run(node)

    def take(self, v: int) -> None:
        value = self.graph.values[v]
        assert value.data is not None
        self.base[v] = checks.exact(value.data)
        for run in self.noisy:
            run[v] = self.base[v]
        self.is_inexact[v], self.stored[v] = False, value.type

    def run(self, node: Node) -> None:
        made = define(node, picked(node, self.base))
        reads_exact = not any(self.is_inexact[v] for v in node.reads)
        exact = reads_exact and is_exact(node, self.base)
        rounds = not is_exact(node, self.base) if not reads_exact else not exact
        kept = {key: self._type(node, v) for key, v in node.results.items()}
        for key, v in node.results.items():
            is_set = bool(self.graph.values[v].type)
            self.stored[v] = kept[key]
            rounded = round_to(made[key], kept[key])
            self.base[v] = rounded if is_set else made[key]
            self.is_inexact[v] = not exact or (not is_set and not same(rounded, made[key]))
        for i, run in enumerate(self.noisy):
            if not any(self.is_inexact[v] for v in node.results.values()):
                run |= {v: self.base[v] for v in node.results.values()}
                continue
            self._run_noisy(node, run, np.random.default_rng([self.seed, i, len(self.base)]), rounds)

    def _run_noisy(self, node: Node, run: Arrays, draw: np.random.Generator, rounds: bool) -> None:
        unit = 2 * self.noise * self._unit(node) if rounds else 0.0
        operands = picked(node, run)
        for key, x in operands.items():
            if key not in COUNTS:
                operands[key] = (
                    [blur(each, unit, draw) for each in x] if isinstance(x, list) else blur(x, unit, draw)
                )
        all_made = define(node, operands)
        for key, v in node.results.items():
            if not self.is_inexact[v]:
                run[v] = self.base[v]
                continue
            made, type_ = blur(all_made[key], unit, draw), self.stored[v]
            # The least normal number of a float is what underflow drops.
            steps = unit * all_made.get(f"summed {key}", 2.0**-102)
            if type_ in BOOLEANS:
                made = np.where((np.abs(made) <= 4 * steps) & (draw.random(made.shape) < 0.5), 0, made)
            else:
                with np.errstate(invalid="ignore"):
                    made = made + steps * draw.uniform(-1, 1, made.shape)
                    made = made + self.noise * ulp(made, type_) * draw.uniform(-0.5, 0.5, made.shape)
            run[v] = round_to(made, type_)

    def _type(self, node: Node, v: int) -> str:
        """Returns the storage type of a result: unset, the compute type, or a 16-bit type of the operands."""
        if self.graph.values[v].type:
            return self.graph.values[v].type
        if self.types:
            return self.types[v]
        lent = {self.stored[r] for r in node.reads} & set(HALVES)
        wide = "f32" if node.op in ARE_FLOAT else self.graph.compute or "f32"
        return "bf16" if "bf16" in lent else "f16" if lent else wide

    def _unit(self, node: Node) -> float:
        """The roundoff of what an operation calculates in."""
        types = {self.stored[v] for v in node.reads}
        if node.op.startswith("sdpa") and types & set(HALVES):
            return 2.0**-9 if "bf16" in types else 2.0**-12
        if checks.DEVICE != "cpu" and types & {"e4m3", "e5m2"} and node.op in SUMS:
            return 2.0**-9
        return 2.0**-53 if self.graph.compute == "f64" else 2.0**-24

    def spread(self, v: int) -> Array:
        """How far noise moves each element of a value."""
        with np.errstate(invalid="ignore"):
            off = [np.where(run[v] == self.base[v], 0, np.abs(run[v] - self.base[v])) for run in self.noisy]
        return np.nan_to_num(np.max(off, 0), nan=np.inf, posinf=np.inf)


def same(a: Array, b: Array) -> bool:
    return bool(np.array_equal(a, b, equal_nan=True))


def blur(x: Array, unit: float, draw: np.random.Generator) -> Array:
    return x * (1 + unit * draw.uniform(-1, 1, x.shape)) if unit else x


def round_to(x: Array, type_: str) -> Array:
    return checks.exact(checks.narrow(x, type_))


def ulp(x: Array, type_: str) -> Array | float:
    found = data_type_of(type_)
    assert found is not None
    return checks.ulp(x, found) if type_ in FLOATS else 0.0 if type_ == "e8m0" else 1.0
