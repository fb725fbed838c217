"""Attention in many decompositions into primitive operations, as graphs and in NumPy float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import checks
import numpy as np
import weft
from random_words import units

INF = np.inf
SEED = 11


@dataclass
class Pattern:
    """Sizes, and the decomposition of each part; None: the part is absent."""

    rank: int = 4  # of all tensors
    batch: int = 2
    heads: tuple[int, int] = (4, 4)  # of queries, and of keys and values
    rows: int = 7
    columns: int = 9
    depth: int = 8
    value_depth: int = 8
    keys: str = "operation"  # or "strides": how they are transposed
    side_by_side: bool = False  # q, k and v are [batch, row, head, column] and are transposed by operations
    joined: bool = False  # the result is [batch, row, head * column]
    batched: bool = False  # products are three-dimensional, scores four-dimensional
    copied: bool = False  # key and value heads are copied for each query head that shares them
    scale: str | None = "mul"  # "div", "query", "key", "tensor", "twice"
    cap: bool = False
    bias: tuple[int, ...] | None = None  # its last four dims
    mask: str | None = None  # see MASKS
    softmax: str = "operation"  # or "div", "reciprocal"
    sink: bool = False
    stats: bool = False  # max, sum and the logarithm of the sum are outputs
    dropout: float = 0
    drop_mask: str | None = None  # the type of a dropout mask that is an operand, for all heads
    types: dict[str, str] = field(default_factory=dict)  # set for "product", "scores" and "weights"

    def dims(self, rows: int, columns: int, heads: int) -> tuple[int, ...]:
        """Returns the dims of a tensor with this number of heads. In rank 5 the key heads precede the query
        heads that share one."""
        shared = min(self.heads)
        lead = {
            2: (),
            3: (heads,),
            4: (self.batch, heads),
            5: (self.batch, shared, heads // shared),
        }[self.rank]
        return (*lead, rows, columns)

    def inputs(self, dtype: str = "f32") -> dict[str, Any]:
        """Returns the operands by the names that build() accepts."""
        hq, hk = self.heads
        made = {
            "q": checks.random(self.dims(self.rows, self.depth, hq), dtype, seed=1),
            "k": checks.random(self.dims(self.columns, self.depth, hk), dtype, seed=2),
            "v": checks.random(self.dims(self.columns, self.value_depth, hk), dtype, seed=3),
        }
        if self.side_by_side:
            made = {name: np.ascontiguousarray(each.swapaxes(1, 2)) for name, each in made.items()}
        elif self.keys == "strides":
            made["k"] = np.ascontiguousarray(made["k"].swapaxes(-1, -2))
        if self.scale == "tensor":
            made["factor"] = np.full((1,) * self.rank, 0.375, np.float32)
        if self.bias:
            made["bias"] = checks.random(self.bias[4 - self.rank :], dtype, seed=4)
        if self.mask in ("given", "given and causal", "given number"):
            mask = checks.random(self.dims(self.rows, self.columns, hq)[-2:], "bool", seed=5)
            # Softmax decompositions differ for rows without any key, so every row sees one.
            mask[:, 0] = True
            made["mask"] = mask.reshape((1,) * (self.rank - 2) + mask.shape)
        if self.drop_mask:
            drop = checks.random(self.dims(self.rows, self.columns, hq)[-2:], self.drop_mask, seed=8)
            made["drop"] = drop.reshape((1,) * (self.rank - 2) + drop.shape)
        if self.sink:
            made["sink"] = checks.random((1, hq, 1, 1), "f32", seed=6)
        return made


DROPOUTS: list[dict[str, Any]] = [{}, {}, {}, {"dropout": 0.25}, {"dropout": 0.5}]
DROPOUTS += [{"drop_mask": "bool8"}, {"drop_mask": "f32"}]

# ---- Masks: as operations on scores, and which scores stay -------------------------------------------------


def _indices(s: Pattern, g: weft.Graph, scores: Any) -> tuple[Any, Any]:
    return g.gen_index(scores, axis=s.rank - 2), g.gen_index(scores, axis=s.rank - 1)


def _selected(compare: Callable[..., Any], hidden: float = -INF) -> Callable[..., Any]:
    def mask(s: Pattern, g: weft.Graph, scores: Any, **_: Any) -> Any:
        return g.binary_select(scores, hidden, compare(g, *_indices(s, g, scores)))

    return mask


def _hidden(compare: Callable[..., Any]) -> Callable[..., Any]:
    def mask(s: Pattern, g: weft.Graph, scores: Any, **_: Any) -> Any:
        return g.binary_select(-INF, scores, compare(g, *_indices(s, g, scores)))

    return mask


def _added(s: Pattern, g: weft.Graph, scores: Any, **_: Any) -> Any:
    row, column = _indices(s, g, scores)
    return g.add(scores, g.binary_select(0.0, -INF, g.cmp_ge(row, column)))


def _window(g: weft.Graph, row: Any, column: Any) -> Any:
    return g.logical_and(g.cmp_le(column, g.add(row, 2)), g.cmp_gt(column, g.sub(row, 6)))


def _given(s: Pattern, g: weft.Graph, scores: Any, *, mask: Any, **_: Any) -> Any:
    return g.binary_select(scores, -INF, mask)


def _given_number(s: Pattern, g: weft.Graph, scores: Any, *, mask: Any, **_: Any) -> Any:
    return g.binary_select(scores, -30000.0, mask)


def _given_and_causal(s: Pattern, g: weft.Graph, scores: Any, *, mask: Any, **_: Any) -> Any:
    row, column = _indices(s, g, scores)
    return g.binary_select(scores, -INF, g.logical_and(mask, g.cmp_ge(row, column)))


# By name: the decomposition of a mask, and the condition that keeps row i and column j.
MASKS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "causal": (_selected(lambda g, i, j: g.cmp_ge(i, j)), lambda i, j: j <= i),
    "causal, turned": (_selected(lambda g, i, j: g.cmp_le(j, i)), lambda i, j: j <= i),
    "causal by a difference": (_selected(lambda g, i, j: g.cmp_gt(g.sub(i, j), -1)), lambda i, j: j <= i),
    "causal, hidden": (_hidden(lambda g, i, j: g.cmp_gt(j, i)), lambda i, j: j <= i),
    "causal by a number": (_selected(lambda g, i, j: g.cmp_ge(i, j), -1e38), lambda i, j: j <= i),
    "causal by a small number": (_selected(lambda g, i, j: g.cmp_ge(i, j), -1e4), lambda i, j: j <= i),
    "causal, not later": (
        _selected(lambda g, i, j: g.logical_not(g.cmp_lt(i, j))),
        lambda i, j: j <= i,
    ),
    "shifted": (_selected(lambda g, i, j: g.cmp_ge(g.add(i, 2), j)), lambda i, j: j <= i + 2),
    "added": (_added, lambda i, j: j <= i),
    "window": (_selected(_window), lambda i, j: (j <= i + 2) & (j > i - 6)),
    "outside of a window": (
        _hidden(lambda g, i, j: g.logical_or(g.cmp_gt(j, g.add(i, 2)), g.cmp_le(j, g.sub(i, 6)))),
        lambda i, j: (j <= i + 2) & (j > i - 6),
    ),
    "even": (
        _selected(lambda g, i, j: g.cmp_eq(g.floor_mod(g.add(i, j), 2), 0)),
        lambda i, j: (i + j) % 2 == 0,
    ),
    "given": (_given, lambda i, j: True),
    "given number": (_given_number, lambda i, j: True),
    "given and causal": (_given_and_causal, lambda i, j: j <= i),
}


# ---- As a graph --------------------------------------------------------------------------------------------


def _typed(s: Pattern, tensor: Any, part: str) -> Any:
    return tensor.set_data_type(s.types[part]) if part in s.types else tensor


def _reshaped(g: weft.Graph, x: Any, *dims: int) -> Any:
    return g.reshape(x, reshape_mode=weft.reshape_mode.LOGICAL).set_dim(dims)


def _copied(s: Pattern, g: weft.Graph, x: Any, rows: int, columns: int) -> Any:
    """[B, Hk, ..] as [B, Hq, ..]."""
    hq, hk = s.heads
    apart = _reshaped(g, x, s.batch, hk, 1, rows, columns)
    copies = g.identity(apart).set_dim([s.batch, hk, hq // hk, rows, columns])
    return _reshaped(g, copies, s.batch, hq, rows, columns)


def _batches(s: Pattern, g: weft.Graph, x: Any, heads: int, rows: int, columns: int) -> Any:
    return _reshaped(g, x, s.batch * heads, rows, columns) if s.batched else x


def _transposed(s: Pattern, g: weft.Graph, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    if s.copied:
        k = _copied(s, g, k, s.columns, s.depth)
        v = _copied(s, g, v, s.columns, s.value_depth)
    if s.batched:
        q = _batches(s, g, q, s.heads[0], s.rows, s.depth)
        k = _batches(s, g, k, s.heads[1], s.columns, s.depth)
        v = _batches(s, g, v, s.heads[1], s.columns, s.value_depth)
        return q, g.transpose(k, [0, 2, 1]), v
    if s.side_by_side:
        return g.transpose(q, [0, 2, 1, 3]), g.transpose(k, [0, 2, 3, 1]), g.transpose(v, [0, 2, 1, 3])
    last = [*range(s.rank - 2), s.rank - 1, s.rank - 2]
    return q, g.transpose(k, last) if s.keys == "operation" else k, v


def _scores(s: Pattern, g: weft.Graph, q: Any, k: Any, given: dict[str, Any]) -> Any:
    if s.scale == "query":
        q = g.mul(q, 0.375)
    if s.scale == "key":
        k = g.div(k, 2.0)
    x = _typed(s, g.matmul(q, k, name="product"), "product")
    if s.batched:
        x = _reshaped(g, x, *s.dims(s.rows, s.columns, s.heads[0]))
    if s.scale == "mul":
        x = g.mul(x, 0.375)
    if s.scale == "div":
        x = g.div(x, 2.5)
    if s.scale == "tensor":
        x = g.mul(given["factor"], x)
    if s.scale == "twice":
        x = g.div(g.mul(0.75, x), 2.0)
    if s.cap:
        x = g.mul(g.tanh(g.div(x, 2.0)), 2.0)
    if s.bias:
        x = g.add(x, given["bias"])
    if s.mask:
        x = MASKS[s.mask][0](s, g, x, mask=given.get("mask"))
    return _typed(s, x, "scores")


def _softmax(s: Pattern, g: weft.Graph, x: Any, given: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Weights, and statistics: the logarithm of the sum, the largest score, the sum."""
    if s.softmax == "operation":
        stats = {name: g.tensor(name=name) for name in ("stats", "max", "sum_exp")} if s.stats else {}
        return g.softmax(x, sink=given.get("sink"), **stats), list(stats.values())
    rows = [*x.get_dim()[:-1], 1] if x.get_dim() else [*s.dims(s.rows, 1, s.heads[0])]
    largest = g.reduction(x, weft.reduction_mode.MAX).set_dim(rows)
    e = g.exp(g.sub(x, largest))
    total = g.reduction(e, weft.reduction_mode.ADD).set_dim(rows)
    p = g.div(e, total) if s.softmax == "div" else g.mul(e, g.reciprocal(total))
    return p, [g.add(largest, g.log(total)), largest, total] if s.stats else []


def kept_by(s: Pattern, g: weft.Graph, given: dict[str, Any]) -> tuple[Any, float]:
    """Returns the factors of the dropout mask and their scale; None without dropout."""
    if s.drop_mask:
        is_truth = s.drop_mask.startswith("bool")
        return g.identity(given["drop"]).set_data_type("f32") if is_truth else given["drop"], 1.25
    if not s.dropout:
        return None, 1
    kept = g.rng(SEED, bernoulli_probability=1 - s.dropout)
    return kept.set_dim(s.dims(s.rows, s.columns, s.heads[0])), 1 / (1 - s.dropout)


def kept_of(s: Pattern, inputs: dict[str, Any], shape: tuple[int, ...]) -> Any:
    """The same as numbers, including the scale."""
    if s.drop_mask:
        return np.broadcast_to(checks.exact(inputs["drop"]), shape) * 1.25
    return (units(shape, seed=SEED) < 1 - s.dropout) / (1 - s.dropout) if s.dropout else np.ones(shape)


def build(s: Pattern) -> Callable[..., Any]:
    """Builds the graph: the result, and the requested statistics."""

    def make(g: weft.Graph, q: Any, k: Any, v: Any, **given: Any) -> Any:
        q, k, v = _transposed(s, g, q, k, v)
        p, stats = _softmax(s, g, _scores(s, g, q, k, given), given)
        kept, growth = kept_by(s, g, given)
        if kept is not None:
            p = g.mul(g.mul(p, kept), growth)
        p = _batches(s, g, _typed(s, p, "weights"), s.heads[0], s.rows, s.columns)
        o = g.matmul(p, v, name="values")
        if s.batched:
            o = _reshaped(g, o, *s.dims(s.rows, s.value_depth, s.heads[0]))
        if s.joined:
            o = _reshaped(g, g.transpose(o, [0, 2, 1, 3]), s.batch, s.rows, s.heads[0] * s.value_depth)
        return (o, *stats) if stats else o

    return make


# ---- In NumPy ----------------------------------------------------------------------------------------------


def _as_read(s: Pattern, inputs: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    q, k, v = (checks.exact(inputs[name]) for name in "qkv")
    if s.side_by_side:
        q, k, v = (each.swapaxes(1, 2) for each in (q, k, v))
    elif s.keys == "strides":
        k = k.swapaxes(-1, -2)
    if s.rank in (3, 4):
        share = s.heads[0] // s.heads[1]
        k, v = (np.repeat(each, share, axis=-3) for each in (k, v))
    return [q, k, v]


def _as_written(s: Pattern, o: Any) -> Any:
    return o.swapaxes(1, 2).reshape(s.batch, s.rows, -1) if s.joined else o


def _rounded(s: Pattern, x: Any, part: str) -> Any:
    return checks.exact(checks.narrow(x, s.types[part])) if part in s.types else x


def _masked(s: Pattern, x: Any, inputs: dict[str, Any]) -> Any:
    i, j = np.arange(s.rows)[:, None], np.arange(s.columns)
    stays = np.broadcast_to(MASKS[s.mask or ""][1](i, j), x.shape)
    if "mask" in inputs:
        stays = stays & inputs["mask"]
    hidden = {"causal by a small number": -1e4, "given number": -30000.0}.get(s.mask or "", -INF)
    return np.where(stays, x, hidden)


def expected(s: Pattern, inputs: dict[str, Any]) -> tuple[list[Any], Any]:
    """The results, and of the first one sum(|p| |v|), of which a rounding of the weights may lose a part."""
    q, k, v = _as_read(s, inputs)
    factor = {"mul": 0.375, "query": 0.375, "tensor": 0.375, "twice": 0.375, "div": 1 / 2.5, "key": 0.5}
    x = _rounded(s, q @ k.swapaxes(-1, -2), "product") * factor.get(s.scale or "", 1)
    x = 2 * np.tanh(x / 2) if s.cap else x
    x = x + checks.exact(inputs["bias"]) if s.bias else x
    x = _rounded(s, _masked(s, x, inputs) if s.mask else x, "scores")
    sink = checks.exact(inputs["sink"]) if s.sink else np.full((1,) * s.rank, -INF)
    largest = np.maximum(x.max(-1, keepdims=True, initial=-INF), sink)
    largest[np.isneginf(largest)] = 0  # of a row without a key, which gives 0
    e = np.exp(x - largest)
    total = e.sum(-1, keepdims=True) + np.exp(sink - largest)
    p = e / np.where(total == 0, 1, total)
    p = p * kept_of(s, inputs, x.shape)
    statistics = [largest + np.log(total), largest, total] if s.stats else []
    result = _as_written(s, _rounded(s, p, "weights") @ v)
    return [result, *statistics], _as_written(s, np.abs(p) @ np.abs(v))


# ---- What is nearly attention ------------------------------------------------------------------------------

NEARLY = (2, 3, 16, 8)  # dims of q, k and v


@dataclass
class NearMiss:
    """A graph that resembles attention, its result, and the reason why it is not attention."""

    build: Callable[..., Any]  # of (graph, q, k transposed, v)
    value: Callable[..., Any]  # the same in NumPy
    reason: str


def _weights(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _primitive_weights(g: weft.Graph, x: Any, axis: int = 3, types: dict[str, str] | None = None) -> Any:
    rows = [16 if i == 5 - axis else n for i, n in enumerate((2, 3, 1, 1))]
    largest = g.reduction(x, weft.reduction_mode.MAX).set_dim(rows)
    e = g.exp(g.sub(x, largest))
    total = g.reduction(e, weft.reduction_mode.ADD).set_dim(rows)
    for name, tensor in {"exponentials": e, "sum": total}.items():
        if name in (types or {}):
            tensor.set_data_type((types or {})[name])
    return g.div(e, total)


def _other_maximum(g: weft.Graph, q: Any, k: Any, v: Any) -> Any:
    x = g.matmul(q, k)
    largest = g.reduction(g.neg(x), weft.reduction_mode.MAX).set_dim([2, 3, 16, 1])
    total = g.reduction(g.exp(x), weft.reduction_mode.ADD).set_dim([2, 3, 16, 1])
    return g.matmul(g.div(g.exp(g.sub(x, largest)), total), v)


def _both(g: weft.Graph, q: Any, k: Any, v: Any) -> Any:
    x = g.matmul(q, k)
    return g.matmul(g.softmax(x), v), x


def _weights_too(g: weft.Graph, q: Any, k: Any, v: Any) -> Any:
    p = g.softmax(g.matmul(q, k))
    return g.matmul(p, v), g.relu(p)


def _dropped(growth: float) -> Callable[..., Any]:
    def make(g: weft.Graph, q: Any, k: Any, v: Any) -> Any:
        kept = g.rng(SEED, bernoulli_probability=0.5).set_dim([2, 3, 16, 16])
        return g.matmul(g.mul(g.mul(g.softmax(g.matmul(q, k)), kept), growth), v)

    return make


def _plain(q: Any, k: Any, v: Any) -> Any:
    return _weights(q @ k) @ v


NEAR_MISSES = {
    "scores are wanted": NearMiss(
        _both, lambda q, k, v: [_plain(q, k, v), q @ k], "is read outside of the attention"
    ),
    "weights are read": NearMiss(
        _weights_too, lambda q, k, v: [_plain(q, k, v), _weights(q @ k)], "is read outside of the attention"
    ),
    "columns": NearMiss(
        lambda g, q, k, v: g.matmul(g.softmax(g.matmul(q, k), axis=2), v),
        lambda q, k, v: _weights(q @ k, 2) @ v,
        "does not sum along the last dimension",
    ),
    "columns, primitive operations": NearMiss(
        lambda g, q, k, v: g.matmul(_primitive_weights(g, g.matmul(q, k), axis=2), v),
        lambda q, k, v: _weights(q @ k, 2) @ v,
        "not the result of a softmax",
    ),
    "another maximum": NearMiss(
        _other_maximum,
        lambda q, k, v: (
            np.exp(q @ k - (-q @ k).max(-1, keepdims=True)) / np.exp(q @ k).sum(-1, keepdims=True) @ v
        ),
        "not the result of a softmax",
    ),
    "binary statistics": NearMiss(
        lambda g, q, k, v: (
            g.matmul(g.softmax(g.matmul(q, k), stats=(s := g.tensor(name="s")), stats_log2=True), v),
            s,
        ),
        lambda q, k, v: [_plain(q, k, v), np.log2(np.exp(q @ k).sum(-1, keepdims=True))],
        "returns statistics to base 2",
    ),
    "weights of another type": NearMiss(
        lambda g, q, k, v: g.matmul(g.softmax(g.matmul(q, k)).set_data_type("f16"), v),
        _plain,
        "does not round weights",
    ),
    "exponentials of a type": NearMiss(
        lambda g, q, k, v: g.matmul(_primitive_weights(g, g.matmul(q, k), types={"exponentials": "bf16"}), v),
        _plain,
        "to which attention does not round",
    ),
    "a sum of a type": NearMiss(
        lambda g, q, k, v: g.matmul(_primitive_weights(g, g.matmul(q, k), types={"sum": "bf16"}), v),
        _plain,
        "to which attention does not round",
    ),
    "scaled weights": NearMiss(
        lambda g, q, k, v: g.matmul(g.mul(g.softmax(g.matmul(q, k)), 0.5), v),
        lambda q, k, v: _plain(q, k, v) / 2,
        "there is no dropout",
    ),
    "dropout without growth": NearMiss(
        _dropped(1.5),
        lambda q, k, v: (_weights(q @ k) * 1.5 * (units((2, 3, 16, 16), seed=SEED) < 0.5)) @ v,
        "factor other than 1 / \\(1 - p\\)",
    ),
    "no product of scores": NearMiss(
        lambda g, q, k, v: g.matmul(g.softmax(g.add(g.mul(q, 2.0), q)), g.transpose(k, [0, 1, 2, 3])),
        lambda q, k, v: _weights(3 * q) @ k,
        "is not computed from a product",
    ),
}
