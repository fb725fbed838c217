"""Attention gradients in primitive operations, as a framework's autograd emits them: as graphs and in NumPy
float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import attention_pattern as pattern
import checks
import numpy as np
import weft
from attention_pattern import INF, MASKS, Pattern


@dataclass
class Gradients:
    """The operations of the forward pass, and the decomposition of the backward pass."""

    forward: Pattern
    weights: str = "softmax"  # or "statistics", which are given, as o is
    sums: str = "weights"  # of P dP; or "apart": P dP - P sums; or "o": of dO o
    o: bool = False  # whether o is wanted, too
    transposed: bool = False  # dK and dV are computed as their transposes
    direct: bool = False  # keys and values are read directly, not as a transpose of their transposes
    zeros: bool = False  # a separate operation zeroes the gradient of masked scores
    scaled: str = "scores"  # or "results": where the backward pass applies the scale
    cap: str = "operations"  # or "backward": the gradient operation of the mode
    stored: bool = False  # whether weights are wanted, too
    wanted: tuple[str, ...] = ("dq", "dk", "dv")

    def inputs(self, dtype: str = "f32") -> dict[str, Any]:
        s = self.forward
        made = s.inputs(dtype)
        d_o = checks.random(s.dims(s.rows, s.value_depth, s.heads[0]), dtype, seed=7, low=-1, high=1)
        made["d_o"] = np.ascontiguousarray(d_o.swapaxes(1, 2)) if s.side_by_side else d_o
        if self.weights == "statistics":
            whole = {"stats": True, "dropout": 0, "drop_mask": None}
            (o, lse, *_), _ = pattern.expected(Pattern(**{**vars(s), **whole}), made)
            if s.dropout or s.drop_mask:
                (o, *_), _ = pattern.expected(s, made)
            made["o"] = checks.narrow(o, dtype)
            made["lse"] = np.float32(lse) if dtype != "f64" else lse
        return made


# ---- As a graph --------------------------------------------------------------------------------------------

KEEPS: dict[str, Callable[..., Any]] = {
    "causal": lambda g, i, j, _: g.cmp_ge(i, j),
    "causal by a number": lambda g, i, j, _: g.cmp_ge(i, j),
    "causal by a small number": lambda g, i, j, _: g.cmp_ge(i, j),
    "window": lambda g, i, j, _: pattern._window(g, i, j),
    "even": lambda g, i, j, _: g.cmp_eq(g.floor_mod(g.add(i, j), 2), 0),
    "given": lambda g, i, j, mask: mask,
    "given and causal": lambda g, i, j, mask: g.logical_and(mask, g.cmp_ge(i, j)),
}
HIDDEN = {"causal by a number": -1e38, "causal by a small number": -1e4}


def _swapped(n: Gradients, g: weft.Graph, x: Any) -> Any:
    rank = 3 if n.forward.batched else n.forward.rank
    return g.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def _product(n: Gradients, g: weft.Graph, name: str, a: Any, b: Any) -> Any:
    """a^T b, or the transpose of b^T a."""
    if n.transposed:
        return _swapped(n, g, g.matmul(_swapped(n, g, b), a, name=name))
    return g.matmul(_swapped(n, g, a), b, name=name)


def _shared(n: Gradients, g: weft.Graph, x: Any, name: str) -> Any:
    """Sums a gradient over the heads that share an operand."""
    s = n.forward
    hq, hk = s.heads
    if s.rank == 5 or (s.rank == 4 and hk == 1 < hq and not s.copied):
        return g.reduction(x, weft.reduction_mode.ADD, dims=[2 if s.rank == 5 else 1])
    if not s.copied:
        return x
    rows, columns = s.columns, s.depth if name == "dk" else s.value_depth
    apart = pattern._reshaped(g, x, s.batch, hk, hq // hk, rows, columns)
    sums = g.reduction(apart, weft.reduction_mode.ADD, dims=[2])
    return pattern._reshaped(g, sums, s.batch, hk, rows, columns)


def _as_given(n: Gradients, g: weft.Graph, x: Any, rows: int, columns: int) -> Any:
    if n.forward.batched:
        return pattern._reshaped(g, x, *n.forward.dims(rows, columns, n.forward.heads[0]))
    return g.transpose(x, [0, 2, 1, 3]) if n.forward.side_by_side else x


def _whole(n: Gradients, g: weft.Graph, x: Any) -> Any:
    """Reshapes scores to the extents of a three-dimensional product, and back."""
    s = n.forward
    return pattern._reshaped(g, x, *s.dims(s.rows, s.columns, s.heads[0])) if s.batched else x


def _flat(n: Gradients, g: weft.Graph, x: Any, columns: int) -> Any:
    return pattern._batches(n.forward, g, x, n.forward.heads[0], n.forward.rows, columns)


def _scaled_back(n: Gradients, g: weft.Graph, x: Any, where: str, given: dict[str, Any]) -> Any:
    s = n.forward
    if s.scale in ("query", "key"):
        return x
    if n.scaled != where and s.scale != "tensor":
        return x
    if s.scale == "tensor":
        return g.mul(x, given["factor"]) if where == "scores" else x
    if s.scale == "twice":
        return g.mul(0.75, g.div(x, 2.0))
    numbers = {"mul": 0.375, "div": 1 / 2.5, "zero": 0.0}
    return g.mul(x, numbers[s.scale]) if s.scale in numbers else x


def _capped_back(n: Gradients, g: weft.Graph, dx: Any, cap: tuple[Any, Any]) -> Any:
    inner, t = cap
    dx = g.mul(dx, 2.0)
    dx = g.tanh_backward(dx, inner) if n.cap == "backward" else g.mul(dx, g.sub(1.0, g.mul(t, t)))
    return g.div(dx, 2.0)


def _softmax_back(n: Gradients, g: weft.Graph, p: Any, dp: Any, d_o: Any, o: Any) -> Any:
    last = [n.forward.rank - 1]
    if n.sums == "o":
        return g.mul(p, g.sub(dp, g.reduction(g.mul(d_o, o), "ADD", dims=last)))
    products = g.mul(p, dp)
    sums = g.reduction(products, "ADD", dims=last)
    return g.sub(products, g.mul(p, sums)) if n.sums == "apart" else g.mul(p, g.sub(dp, sums))


def _forward(n: Gradients, g: weft.Graph, q: Any, k: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Computes the scores and the values that the backward pass reads."""
    s, made = n.forward, {}
    made["q"] = g.mul(q, 0.375) if s.scale == "query" else q
    made["k"] = g.div(k, 2.0) if s.scale == "key" else k
    x = _whole(n, g, g.matmul(made["q"], made["k"], name="product"))
    x = {
        "mul": lambda: g.mul(x, 0.375),
        "div": lambda: g.div(x, 2.5),
        "zero": lambda: g.mul(x, 0.0),
        "tensor": lambda: g.mul(given["factor"], x),
        "twice": lambda: g.div(g.mul(0.75, x), 2.0),
    }.get(s.scale or "", lambda: x)()
    if s.cap:
        inner = g.div(x, 2.0)
        t = g.tanh(inner)
        made["cap"], x = (inner, t), g.mul(t, 2.0)
    if s.bias:
        x = g.add(x, given["bias"])
    if s.mask:
        made["keep"] = KEEPS[s.mask](g, *pattern._indices(s, g, x), given.get("mask"))
        x = g.binary_select(x, HIDDEN.get(s.mask, -INF), made["keep"])
    if n.weights == "statistics":
        made["p"] = g.exp(g.sub(x, given["lse"]))
    else:
        made["p"], _ = pattern._softmax(s, g, x, given)
    return made


def build(n: Gradients) -> Callable[..., Any]:
    """Builds the graph: returns the wanted gradients in order, then dBias, o and the weights."""
    s = n.forward

    def make(g: weft.Graph, q: Any, k: Any, v: Any, d_o: Any, **given: Any) -> Any:
        keys, d_o4 = k, d_o
        q, k, v = pattern._transposed(s, g, q, k, v)
        if s.side_by_side:
            d_o = d_o4 = g.transpose(d_o, [0, 2, 1, 3])
        d_o = _flat(n, g, d_o, s.value_depth)
        made = _forward(n, g, q, k, given)
        p, (kept, growth) = made["p"], pattern.kept_by(s, g, given)
        dropped, o = p, given.get("o")
        if kept is not None:
            dropped = g.mul(g.mul(p, kept), growth)
        if n.weights == "softmax" and (n.o or n.sums == "o"):
            o = g.matmul(_flat(n, g, dropped, s.columns), v, name="values")
            o = pattern._reshaped(g, o, *s.dims(s.rows, s.value_depth, s.heads[0])) if s.batched else o
        dp = _whole(n, g, g.matmul(d_o, _swapped(n, g, v), name="dP"))
        if kept is not None:
            dp = g.mul(g.mul(dp, growth), kept)
        ds = _softmax_back(n, g, p, dp, d_o4, o)
        if n.zeros:
            ds = g.binary_select(ds, 0.0, made["keep"])
        dbias = None
        if s.bias:
            is_whole = list(s.bias[4 - s.rank :]) == [*s.dims(s.rows, s.columns, s.heads[0])]
            dbias = ds if is_whole else g.reduction(ds, weft.reduction_mode.ADD).set_dim(s.bias[4 - s.rank :])
        dx = _capped_back(n, g, ds, made["cap"]) if s.cap else ds
        dx = _flat(n, g, _scaled_back(n, g, dx, "scores", given), s.columns)
        results = {}
        if "dq" in n.wanted:
            direct = n.direct and s.scale != "key" and s.keys == "operation" and not s.side_by_side
            dq = g.matmul(dx, keys if direct else _swapped(n, g, made["k"]), name="dQ")
            dq = g.mul(dq, 0.375) if s.scale == "query" else _scaled_back(n, g, dq, "results", given)
            results["dq"] = _as_given(n, g, dq, s.rows, s.depth)
        if "dk" in n.wanted:
            dk = _product(n, g, "dK", dx, made["q"])
            dk = g.div(dk, 2.0) if s.scale == "key" else _scaled_back(n, g, dk, "results", given)
            dk = _shared(n, g, dk, "dk")
            dk = _swapped(n, g, dk) if s.keys == "strides" else dk
            results["dk"] = _as_given(n, g, dk, s.columns, s.depth)
        if "dv" in n.wanted:
            dv = _shared(n, g, _product(n, g, "dV", _flat(n, g, dropped, s.columns), d_o), "dv")
            results["dv"] = _as_given(n, g, dv, s.columns, s.value_depth)
        outputs = [results[name] for name in n.wanted]
        outputs += [dbias] * (dbias is not None) + [o] * n.o + [p] * n.stored
        return tuple(outputs)

    return make


# ---- In NumPy ----------------------------------------------------------------------------------------------


def _fold(x: Any, dims: Any) -> Any:
    """Sums over the extents that the target lacks."""
    axes = tuple(i for i, (one, many) in enumerate(zip(dims, x.shape, strict=True)) if one != many)
    return x.sum(axes, keepdims=True)


def expected(n: Gradients, inputs: dict[str, Any], dtype: str) -> tuple[list[Any], list[Any]]:
    """The results, and of each the sum of magnitudes of which roundings may lose a part: of P and dS, and,
    where they are stored between kernels, of the scores, which P grows by."""
    s = n.forward
    q, k, v = pattern._as_read(s, inputs)
    d_o = checks.exact(inputs["d_o"])
    d_o = d_o.swapaxes(1, 2) if s.side_by_side else d_o
    factor = {
        "mul": 0.375,
        "query": 0.375,
        "tensor": 0.375,
        "twice": 0.375,
        "div": 1 / 2.5,
        "key": 0.5,
        "zero": 0,
    }
    scale = factor.get(s.scale or "", 1)
    x = q @ k.swapaxes(-1, -2) * scale
    slope = 1 - np.tanh(x / 2) ** 2 if s.cap else 1.0
    x = 2 * np.tanh(x / 2) if s.cap else x
    x = x + checks.exact(inputs["bias"]) if s.bias else x
    if s.mask:
        i, j = np.arange(s.rows)[:, None], np.arange(s.columns)
        keeps = np.broadcast_to(MASKS[s.mask][1](i, j), x.shape)
        keeps = keeps & inputs["mask"] if "mask" in inputs else keeps
        x = np.where(keeps, x, HIDDEN.get(s.mask, -INF))
    sink = checks.exact(inputs["sink"]) if s.sink else np.full((1,) * s.rank, -INF)
    largest = np.maximum(x.max(-1, keepdims=True, initial=-INF), sink)
    largest[np.isneginf(largest)] = 0
    e = np.exp(x - largest)
    total = e.sum(-1, keepdims=True) + np.exp(sink - largest)
    p = e / np.where(total == 0, 1, total)
    if n.weights == "statistics":
        p = np.exp(x - checks.exact(inputs["lse"]))
    kept = pattern.kept_of(s, inputs, x.shape)
    dp = (d_o @ v.swapaxes(-1, -2)) * kept
    size = np.where(np.isfinite(x) & (p > 0), np.abs(x), 0)
    p_most = p * (1 + size + (p * size).sum(-1, keepdims=True))
    dp_most = (np.abs(d_o) @ np.abs(v).swapaxes(-1, -2)) * np.abs(kept)
    sums = (p * dp).sum(-1, keepdims=True)
    if "o" in inputs or (n.sums == "o" and n.o):  # as it is stored
        o = inputs["o"] if "o" in inputs else checks.narrow((p * kept) @ v, dtype)
        sums = (d_o * checks.exact(o)).sum(-1, keepdims=True)
    ds = p * (dp - sums)
    ds_most = p_most * (dp_most + (p_most * dp_most).sum(-1, keepdims=True))
    if n.zeros:
        ds = np.where(keeps, ds, 0)
    dx, dx_most = ds * slope * scale, ds_most * np.abs(slope) * scale
    t = lambda a: a.swapaxes(-1, -2)  # noqa: E731
    results = {
        "dq": (dx @ k, dx_most @ np.abs(k)),
        "dk": (t(dx) @ q, t(dx_most) @ np.abs(q)),
        "dv": (t(p * kept) @ d_o, t(p_most * np.abs(kept)) @ np.abs(d_o)),
    }
    found = [results[name] for name in n.wanted]
    shapes = {name: inputs[name[1]].shape for name in n.wanted}
    for i, name in enumerate(n.wanted):
        found[i] = tuple(each.swapaxes(1, 2) if s.side_by_side else each for each in found[i])
        if name == "dk" and s.keys == "strides" and not s.side_by_side:
            found[i] = tuple(t(each) for each in found[i])
        shape = shapes[name]
        if s.copied and name != "dq":
            split = (*shape[:2], s.heads[0] // s.heads[1], *shape[2:])
            found[i] = tuple(each.reshape(split).sum(2) for each in found[i])
        elif s.heads[1] == 1 or s.rank == 5:
            found[i] = tuple(_fold(each, shape) for each in found[i])
    if s.bias:
        found.append((_fold(ds, s.bias[4 - s.rank :]), _fold(ds_most, s.bias[4 - s.rank :])))
    if n.o:
        found.append(((p * kept) @ v, (p_most * np.abs(kept)) @ np.abs(v)))
    if n.stored:
        found.append((p, p_most))
    return [value for value, _ in found], [most for _, most in found]
