"""Attention, forward and backward, in NumPy float64: cases, their results, and the graphs that compute
them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import checks
import numpy as np
import weft

INF = np.inf
TOP_LEFT, BOTTOM_RIGHT = weft.diagonal_alignment.TOP_LEFT, weft.diagonal_alignment.BOTTOM_RIGHT


# ---- The oracle --------------------------------------------------------------------------------------------


@dataclass
class Modifier:
    """A score modifier in three forms: graph operations, NumPy, and derivatives. The NumPy functions accept
    scores, the indices of batch, head, query and key, and operands by name."""

    build: Callable[[Any, Any, dict[str, Any]], Any]
    value: Callable[..., Any]
    slope: Callable[..., Any]  # derivative by the score
    operands: dict[str, tuple[int, ...]] = field(default_factory=dict)  # their dims
    dtypes: dict[str, str] = field(default_factory=dict)  # of operands with their own type
    slopes: dict[str, Callable[..., Any]] = field(default_factory=dict)  # by operands


@dataclass
class Case:
    """Sizes and options of one attention."""

    batch: int = 2
    heads: tuple[int, int, int] = (2, 2, 2)  # of q, k and v
    rows: int = 7
    columns: int = 9
    depth: int = 5
    value_depth: int = 3
    scale: float = 0.5
    bias: tuple[int, int, int, int] | None = None  # its dims
    is_mask: bool = False  # the bias is boolean
    left: int | None = None
    right: int | None = None
    alignment: int = TOP_LEFT
    seq_len_q: list[int] | None = None
    seq_len_kv: list[int] | None = None
    has_sums: bool = False  # lengths are given as cumulative sums
    alibi: bool = False
    sink: bool = False
    dropout: float = 0
    drop_mask: tuple[int, int, int, int] | None = None  # dims of a mask that the caller provides
    drop_type: str = "bool8"  # of the mask: booleans, or numbers, which multiply
    drop_scale: float | None = None  # the scale of the kept weights
    modifier: Modifier | None = None
    block_mask: tuple[int, int] | None = None  # extents of batch and head
    mask_has_bits: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def inputs(self, dtype: str = "f64") -> dict[str, Any]:
        """Returns random operands by their names in the graph."""
        b, (hq, hk, hv) = self.batch, self.heads
        found = {
            "q": checks.random((b, hq, self.rows, self.depth), dtype),
            "k": checks.random((b, hk, self.columns, self.depth), dtype, seed=1),
            "v": checks.random((b, hv, self.columns, self.value_depth), dtype, seed=2),
        }
        if self.bias:
            found["bias"] = checks.random(self.bias, "bool8" if self.is_mask else dtype, seed=3)
        if self.drop_mask:
            found["dropout_mask"] = checks.random(self.drop_mask, self.drop_type, seed=7)
        if self.drop_scale is not None:
            found["dropout_scale"] = np.full((1, 1, 1, 1), self.drop_scale, np.float32)
        for name, lengths, most in (
            ("seq_len_q", self.seq_len_q, self.rows),
            ("seq_len_kv", self.seq_len_kv, self.columns),
        ):
            if lengths is not None and checks.DEVICE == "cpu":  # a GPU limits them, the CPU refuses them
                lengths = np.clip(lengths, 0, most).tolist()
            if lengths is not None and self.has_sums:
                found[f"cu_{name}"] = np.cumsum([3, *lengths], dtype=np.int32).reshape(b + 1, 1, 1, 1)
            elif lengths is not None:
                found[name] = np.array(lengths, np.int32).reshape(b, 1, 1, 1)
        for i, (name, dims) in enumerate(self.modifier.operands.items() if self.modifier else ()):
            kind = self.modifier.dtypes.get(name, dtype) if self.modifier else dtype
            found[name] = checks.random(dims, kind, seed=10 + i)
        if self.block_mask:
            found["block_mask"] = self.tiles(
                checks.random((*self.block_mask, *self.tile_counts()), "bool8", seed=6)
            )
        if self.sink:
            found["sink_token"] = checks.random((1, hq, 1, 1), "f64" if dtype == "f64" else "f32", seed=4)
        return found

    def tile_counts(self) -> tuple[int, int]:
        """Tiles of a block mask along queries and keys."""
        return -(-self.rows // 128), -(-self.columns // 128)

    def tiles(self, kept: np.ndarray) -> np.ndarray:
        """Returns the block mask in the operation's format."""
        return np.packbits(kept, axis=-1, bitorder="little") if self.mask_has_bits else kept.astype(np.int8)

    def kept_tiles(self, inputs: dict[str, Any]) -> np.ndarray:
        """[B or 1, Hq or 1, Sq, Skv]: whether the block mask keeps a score."""
        mask = inputs["block_mask"]
        if self.mask_has_bits:
            mask = np.unpackbits(mask, axis=-1, bitorder="little")[..., : self.tile_counts()[1]]
        return np.repeat(np.repeat(mask != 0, 128, 2), 128, 3)[..., : self.rows, : self.columns]

    def kept(self, inputs: dict[str, Any]) -> Any:
        """Returns the factors of the dropout mask; 1 without dropout."""
        scale = 1.0 if self.drop_scale is None else self.drop_scale
        return checks.exact(inputs["dropout_mask"]) * scale if self.drop_mask else 1.0

    def values(self) -> dict[str, Any]:
        """The options of the graph's method."""
        found: dict[str, Any] = {"attn_scale_value": self.scale, "diagonal_alignment": self.alignment}
        found |= {"diagonal_band_left_bound": self.left, "diagonal_band_right_bound": self.right}
        found |= {"use_alibi_mask": self.alibi or None, "dropout_probability": self.dropout or None}
        return {key: value for key, value in found.items() if value is not None} | self.options

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Queries and keys in use, [B, 1, 1, 1]."""
        used = [self.seq_len_q or [self.rows] * self.batch, self.seq_len_kv or [self.columns] * self.batch]
        rows, columns = (np.array(each).reshape(self.batch, 1, 1, 1) for each in used)
        return np.clip(rows, 0, self.rows), np.clip(columns, 0, self.columns)

    def visible(self, inputs: dict[str, Any]) -> np.ndarray:
        """[B, Hq, Sq, Skv]: whether a query sees a key."""
        row, column = np.arange(self.rows)[:, None], np.arange(self.columns)
        rows_used, columns_used = self.lengths()
        seen = (row < rows_used) & (column < columns_used)
        shift = columns_used - rows_used if self.alignment == BOTTOM_RIGHT else 0
        if self.right is not None:
            seen = seen & (column <= row + shift + self.right)
        if self.left is not None:
            seen = seen & (column > row + shift - self.left)
        if self.is_mask:
            seen = seen & inputs["bias"]
        if self.block_mask:
            seen = seen & self.kept_tiles(inputs)
        return np.broadcast_to(seen, (self.batch, self.heads[0], self.rows, self.columns))

    def scores(self, inputs: dict[str, Any]) -> np.ndarray:
        """[B, Hq, Sq, Skv], -inf where a score is masked."""
        s = self.modified("value", inputs)
        if self.bias and not self.is_mask:
            s = s + checks.exact(inputs["bias"])
        if self.alibi:
            distance = np.arange(self.columns) - np.arange(self.rows)[:, None]
            s = s + slopes(self.heads[0]).reshape(1, -1, 1, 1) * distance
        return np.where(self.visible(inputs), s, -INF)

    def modified(self, what: str, inputs: dict[str, Any], of: str = "") -> np.ndarray:
        """Returns the modifier's value, or its derivative, at the scaled products."""
        q, k = checks.exact(inputs["q"]), repeat(inputs["k"], self.heads[0])
        s = self.scale * (q @ k.mT)
        if not self.modifier:
            return s if what == "value" else np.ones_like(s)
        evaluate = self.modifier.slopes[of] if of else getattr(self.modifier, what)
        operands = {name: checks.exact(inputs[name]) for name in self.modifier.operands}
        index = np.meshgrid(*map(np.arange, s.shape), indexing="ij")
        return np.broadcast_to(evaluate(s, *index, **operands), s.shape)

    def of_operands(self, ds: np.ndarray, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
        """The gradients of the modifier's operands from those of the modified scores."""
        found = {}
        for name in self.modifier.slopes if self.modifier else ():
            assert self.modifier
            axes = tuple(i for i in range(4) if self.modifier.operands[name][i] == 1)
            found[f"d_{name}"] = (ds * self.modified("slope", inputs, name)).sum(axes, keepdims=True)
        return found

    def sinks(self, inputs: dict[str, Any]) -> np.ndarray:
        """[B, Hq, Sq, 1]: the sink of each row, -inf where it has none."""
        sink = checks.exact(inputs["sink_token"]) if self.sink else -INF
        used = np.arange(self.rows)[:, None] < self.lengths()[0]
        return np.broadcast_to(np.where(used, sink, -INF), (self.batch, self.heads[0], self.rows, 1))


def repeat(array: np.ndarray, heads: int) -> np.ndarray:
    """Repeats key or value heads up to the number of query heads."""
    return np.repeat(checks.exact(array), heads // array.shape[1], axis=1)


def gather(gradient: np.ndarray, heads: int) -> np.ndarray:
    """The transpose of repeat: sums over the query heads that share a head."""
    b, h, s, d = gradient.shape
    return gradient.reshape(b, heads, h // heads, s, d).sum(2)


def slopes(heads: int) -> np.ndarray:
    """ALiBi's slopes: the series of the power of two below, then every other one of twice that."""
    power = 2 ** int(np.log2(heads))
    series = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    finer = [2.0 ** (-8 * (i + 1) / (2 * power)) for i in range(2 * power)]
    return np.array(series + finer[::2][: heads - power])


def softmax(s: np.ndarray, sink: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns weights, stats, max and sum of rows; an empty row gives 0, -inf, -inf, 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        top = np.maximum(s.max(-1, keepdims=True, initial=-INF), sink)
        finite = np.where(np.isinf(top), 0, top)
        weights = np.exp(s - finite)
        total = weights.sum(-1, keepdims=True) + np.exp(sink - finite)
        stats = np.where(total > 0, top + np.log(total), -INF)
    return weights / np.where(total > 0, total, 1), stats, top, total


def forward(case: Case, inputs: dict[str, Any], kept: Any = None) -> list[np.ndarray]:
    """Returns o, stats, max, sum_exp. kept: the dropout factors of the weights; None: the case's own mask."""
    kept = case.kept(inputs) if kept is None else kept
    weights, *statistics = softmax(case.scores(inputs), case.sinks(inputs))
    return [(weights * kept) @ repeat(inputs["v"], case.heads[0]), *statistics]


def backward(case: Case, inputs: dict[str, Any], d_o: np.ndarray, kept: Any = None) -> dict[str, np.ndarray]:
    """Returns all gradients, using the Jacobian of the softmax instead of o."""
    kept = case.kept(inputs) if kept is None else kept
    hq, hk, hv = case.heads
    sink = case.sinks(inputs)
    weights, stats, _, _ = softmax(case.scores(inputs), sink)
    d_o = np.where(np.arange(case.rows)[:, None] < case.lengths()[0], checks.exact(d_o), 0)
    d_weights = d_o @ repeat(inputs["v"], hq).mT * kept
    mean = (weights * d_weights).sum(-1, keepdims=True)
    ds_modified = weights * (d_weights - mean)
    ds = ds_modified * case.modified("slope", inputs)
    found = {
        "dQ": case.scale * (ds @ repeat(inputs["k"], hq)),
        "dK": gather(case.scale * (ds.mT @ checks.exact(inputs["q"])), hk),
        "dV": gather((weights * kept).mT @ d_o, hv),
    }
    if case.bias and not case.is_mask:
        axes = tuple(i for i in range(4) if case.bias[i] == 1)
        found["dBias"] = ds_modified.sum(axes, keepdims=True)
    if case.sink:
        with np.errstate(invalid="ignore"):
            share = np.where(np.isinf(stats), 0, np.exp(sink - stats))
        found["dSink_token"] = -(share * mean).sum((0, 2), keepdims=True)
    return found | case.of_operands(ds_modified, inputs)


# ---- Pages -------------------------------------------------------------------------------------------------

WILD = (-1, -(2**31), 2**31 - 1)  # invalid page indices


def paged(case: Case, inputs: dict[str, Any], k_page: int = 0, v_page: int = 0) -> dict[str, Any]:
    """Returns the operands with keys and values in pages of the given sizes (0: not paged). Everything that
    no sequence uses is NaN: the rest of the last pages, and whole pages. Table entries beyond a sequence are
    invalid."""
    found = dict(inputs)
    for name, size in (("k", k_page), ("v", v_page)):
        if size:
            found[name], found[f"paged_attention_{name}_table"] = into_pages(case, inputs[name], size)
    return found


def into_pages(case: Case, rows: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a container and its page table."""
    (batch, heads, keys, depth), used = rows.shape, case.lengths()[1].ravel()
    pages = -(-keys // size)
    order = np.random.default_rng(size).permutation(batch * pages + 3)
    container = np.full((len(order), heads, size, depth), np.nan).astype(rows.dtype)
    table = np.resize(np.array(WILD, np.int32), (batch, 1, pages, 1))
    for b in range(batch):
        for key in range(used[b]):
            table[b, 0, key // size, 0] = page = order[b * pages + key // size]
            container[page, :, key % size] = rows[b, :, key]
    return container, table


# ---- Graphs ------------------------------------------------------------------------------------------------


def modify(case: Case, g: weft.Graph, tensors: dict[str, Any], gradients: Any = None) -> dict[str, Any]:
    """Draws the case's modifier, whose operands are taken from the tensors."""
    if not case.modifier:
        return {}
    modifier, operands = case.modifier, {name: tensors.pop(name) for name in case.modifier.operands}
    sources = {operands[name]: gradient for name, gradient in (gradients or {}).items()}
    rows = g._modified_scores(
        "a", tensors, lambda g, s: modifier.build(g, s, operands), gradients=sources or None
    )
    return {key: value for key, value in rows.items() if value}


def run_forward(case: Case) -> Any:
    """Builds a graph with all four outputs."""

    def build(g: weft.Graph, **tensors: Any) -> Any:
        extra = {key: g.tensor(name=key) for key in ("score_max", "score_sum_exp")}
        tensors |= modify(case, g, tensors)
        o, stats = g._sdpa_fwd(**tensors, **case.values(), **extra, name="a")
        return o, stats, *extra.values()

    return build


def run_backward(case: Case) -> Any:
    """Builds a graph with all gradients of the case."""

    def build(g: weft.Graph, **tensors: Any) -> Any:
        extra = {}
        if case.bias and not case.is_mask:
            extra["dBias"] = g.tensor(name="dBias")
        if case.sink:
            extra["dSink_token"] = g.tensor(name="dSink_token")
        slopes = case.modifier.slopes if case.modifier else ()
        gradients = {name: g.tensor(name=f"d_{name}") for name in slopes}
        tensors |= modify(case, g, tensors, gradients)
        made = g._sdpa_bwd(**tensors, **case.values(), **extra, name="a")
        return *made, *extra.values(), *gradients.values()

    return build


def backward_inputs(
    case: Case, inputs: dict[str, Any], dtype: str = "f64", kept: Any = None
) -> dict[str, Any]:
    """Returns the operands of the backward pass: those of the forward pass and its results."""
    o, stats, _, _ = forward(case, inputs, kept)
    d_o = checks.random(o.shape, dtype, seed=5)
    statistics = stats if dtype == "f64" else stats.astype(np.float32)
    return inputs | {"o": checks.narrow(o, dtype), "dO": d_o, "stats": statistics}


def by_definition(
    case: Case, operands: dict[str, Any], kept: Any = None
) -> tuple[list[np.ndarray], list[Any]]:
    """Gradients, in the order of run_backward, from the rounded result and statistics that the backward pass
    is given; and of each what is summed in magnitude, where its factors may be rounded. If o has 16 bits, a
    weight is nearly 1 and the row has all of its weights, a CPU takes the sum of P dP from these unless it
    contradicts o."""
    kept = case.kept(operands) if kept is None else kept
    hq, hk, hv = case.heads
    s, sink = case.scores(operands), case.sinks(operands)
    stats, d_o = checks.exact(operands["stats"]), checks.exact(operands["dO"])
    q, k, v = checks.exact(operands["q"]), repeat(operands["k"], hq), repeat(operands["v"], hq)
    with np.errstate(invalid="ignore"):
        weights = np.where(np.isinf(stats), 0, np.exp(np.minimum(s - stats, 0)))
        share = np.where(np.isinf(stats), 0, np.exp(np.minimum(sink - stats, 0)))
    mean = (d_o * checks.exact(operands["o"])).sum(-1, keepdims=True)
    if checks.DEVICE == "cpu" and operands["o"].dtype.itemsize == 2:
        total, largest = weights.sum(-1, keepdims=True) + share, weights.max(-1, keepdims=True)
        is_saturated = (largest > 0.5) & (np.abs(1 - total) <= checks.roundoff(operands["o"].dtype))
        by_weights = np.where(weights == 0, 0, weights * (d_o @ v.mT * kept)).sum(-1, keepdims=True)
        by_weights = by_weights / np.where(is_saturated, total, 1)
        most = np.abs(d_o * checks.exact(operands["o"])).sum(-1, keepdims=True)
        most = 2 * checks.roundoff(operands["o"].dtype) * most
        mean = np.where(is_saturated & (np.abs(by_weights - mean) <= most), by_weights, mean)
    ds_modified = weights * (d_o @ v.mT * kept - mean)
    ds = ds_modified * case.modified("slope", operands)

    def products(scale: float, *factors: np.ndarray) -> list[Any]:
        ds, q, k, d_o, p = factors
        return [scale * (ds @ k), gather(scale * (ds.mT @ q), hk), gather(p.mT @ d_o, hv)]

    factors = ds, q, k, d_o, weights * kept
    want, lost = products(case.scale, *factors), products(abs(case.scale), *map(np.abs, factors))
    if case.bias and not case.is_mask:
        want.append(ds_modified.sum(tuple(i for i in range(4) if case.bias[i] == 1), keepdims=True))
    if case.sink:
        want.append(-(share * mean).sum((0, 2), keepdims=True))
    want += case.of_operands(ds_modified, operands).values()
    return want, lost + [None] * (len(want) - len(lost))


def rounded_factors(lost: list[Any], dtype: str) -> list[Any]:
    """Bounds the effect of rounding factors to 16 bits on each result."""
    return [None if each is None else checks.roundoff(dtype) * each for each in lost]


def without_portable_family() -> dict[str, int]:
    """Returns the knob that excludes the portable attention family, so that a chip's own family also serves
    small cases."""
    g = weft.Graph(device="sm_90")
    q = g.tensor([1, 1, 64, 64], data_type="bf16")
    g.sdpa(q, q, q)[0].set_output(True)
    g.build()
    return {"WITHOUT_FAMILIES_EXT": 1 << g.get_families_for_engine(0).index("cuda.attention")}
