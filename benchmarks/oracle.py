"""Expected results of the benchmark's cases, computed by definition in double precision.

Each function receives NumPy or torch as `xp` and uses only what both have in common; `t` contains the inputs
by name as float64. None of them depends on Weft.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.shapes import Attention, Convolution, Pool, Window

Arrays = dict[str, Any]


def relu(v: Any) -> Any:
    """max(v, 0)."""
    return v * (v > 0)


def gelu(xp: Any, v: Any) -> Any:
    """GELU with the tanh approximation."""
    return 0.5 * v * (1 + xp.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v * v * v)))


def matmul(xp: Any, t: Arrays, activation: str) -> Arrays:
    """C = f(A B + bias)."""
    product = t["A"] @ t["B"]
    if not activation:
        return {"C": product}
    product += t["bias"]
    return {"C": relu(product) if activation == "relu" else gelu(xp, product)}


def experts(xp: Any, t: Arrays, firsts: list[int]) -> Arrays:
    """The rows of each expert, which end at the first row of the next, times its weight."""
    token = t["token"][0]
    groups = zip(firsts, [*firsts[1:], len(token)], t["w"], strict=True)
    return {"y": xp.concatenate([token[first:until] @ w for first, until, w in groups])[None]}


def experts_wgrad(xp: Any, t: Arrays, firsts: list[int]) -> Arrays:
    """The gradient of each weight: the tokens of its expert times the gradient of their results."""
    token, dy = t["token"][0], t["dy"][0]
    groups = zip(firsts, [*firsts[1:], len(token)], strict=True)
    return {"dw": xp.stack([token[first:until].T @ dy[first:until] for first, until in groups])}


def scaled_matmul(_: Any, t: Arrays) -> Arrays:
    """C = a b A B for two numbers and two matrices."""
    return {"C": t["A"] @ t["B"] * (t["A_scale"] * t["B_scale"])}


def block_scaled_matmul(xp: Any, t: Arrays, block: int) -> Arrays:
    """C = A B with block scales: of A for blocks of a row, of B for squares."""

    def spread(scale: Any, rows: int, columns: int) -> Any:
        _, i, j = scale.shape
        ones = xp.ones((1, 1, rows, 1, columns), dtype=xp.float64)
        return (scale[:, :, None, :, None] * ones).reshape(1, i * rows, j * columns)

    (_, m, k), (_, _, n) = t["A"].shape, t["B"].shape
    a, b = spread(t["A_scale"], 1, block)[:, :m, :k], spread(t["B_scale"], block, block)[:, :k, :n]
    return {"C": (t["A"] * a) @ (t["B"] * b)}


def weight_only_matmul(xp: Any, t: Arrays, block: int) -> Arrays:
    """C = A W for integers W that share scales along the depth. Two 4-bit integers, consecutive along the
    depth, share a byte."""
    a, w, scale = t["A"], t["W"], t["W_scale"]
    if w.ndim == 1:
        pairs = w.reshape(scale.shape[-1], -1)
        numbers = xp.stack((pairs % 16, pairs // 16), -1).reshape(len(pairs), -1).T[None]
        w = numbers - 16.0 * (numbers > 7)
    _, blocks, n = scale.shape
    spread = scale[:, :, None] * xp.ones((1, 1, block, 1), dtype=xp.float64)
    return {"C": a @ (w * spread.reshape(1, blocks * block, n))}


# ---- Windows: the elements under each position, a tap ------------------------------------------------------


_ALL = slice(None)


def _windows(padded: Any, w: Window) -> Iterator[tuple[tuple[int, ...], Any]]:
    """For each tap, the view [N,P,Q,C] of the padded images [N,H,W,C] that it reads; for volumes likewise."""
    for tap in itertools.product(range(w.window), repeat=len(w.image)):
        first = [place * w.dilation for place in tap]
        ends = [(count - 1) * w.stride + 1 for count in w.result]
        seen = _ALL, *(slice(at, at + end, w.stride) for at, end in zip(first, ends, strict=True))
        yield tap, padded[seen]


def _within_edge(padded: Any, w: Window) -> Any:
    """The images inside the result of _padded."""
    inside = _ALL, *(slice(w.padding, w.padding + extent) for extent in w.image)
    return padded[inside]


def _padded(xp: Any, w: Window, x: Any = None, edge: float = 0.0) -> Any:
    """Images [N,C,H,W] as [N,H,W,C] with padding; only padding if there are no images."""
    sides = [extent + 2 * w.padding for extent in w.image]
    outputs = xp.full((w.n, *sides, w.channels), edge, dtype=xp.float64)
    if x is not None:
        _within_edge(outputs, w)[...] = xp.moveaxis(x, 1, -1)
    return outputs


# ---- Convolution: one matmul per tap -----------------------------------------------------------------------


def _by_group(xp: Any, values: Any, groups: int) -> Any:
    """[N,P,Q,G*c] as [G, N*P*Q, c]."""
    return xp.moveaxis(values.reshape(-1, groups, values.shape[-1] // groups), 1, 0)


def _filters(c: Convolution, w: Any, tap: tuple[int, ...]) -> Any:
    """A tap of the filters [K,C/G,R,S] as [G, K/G, C/G]."""
    at = _ALL, _ALL, *tap
    return w[at].reshape(c.groups, c.filters // c.groups, -1)


def conv_fprop(xp: Any, t: Arrays, c: Convolution) -> Arrays:
    """y = relu(conv(x, w) + bias); bias and relu only if there is a bias."""
    y = xp.zeros((c.groups, c.n * math.prod(c.result), c.filters // c.groups), dtype=xp.float64)
    for tap, window in _windows(_padded(xp, c, t["x"]), c):
        y += _by_group(xp, window, c.groups) @ xp.swapaxes(_filters(c, t["w"], tap), 1, 2)
    y = xp.moveaxis(xp.moveaxis(y, 0, 1).reshape(c.n, *c.result, c.filters), -1, 1)
    return {"y": relu(y + t["bias"]) if "bias" in t else y}


def conv_dgrad(xp: Any, t: Arrays, c: Convolution) -> Arrays:
    """dx: every tap adds dy to the elements that it read."""
    dy = _by_group(xp, xp.moveaxis(t["dy"], 1, -1), c.groups)
    padded = _padded(xp, c)
    for tap, window in _windows(padded, c):
        part = xp.moveaxis(dy @ _filters(c, t["w"], tap), 0, 1)
        window += part.reshape(window.shape)
    return {"dx": xp.moveaxis(_within_edge(padded, c), -1, 1)}


def conv_wgrad(xp: Any, t: Arrays, c: Convolution) -> Arrays:
    """dw: every tap sums the products of dy and the elements that it read."""
    dy = xp.swapaxes(_by_group(xp, xp.moveaxis(t["dy"], 1, -1), c.groups), 1, 2)
    dw = xp.zeros(c.w, dtype=xp.float64)
    for tap, window in _windows(_padded(xp, c, t["x"]), c):
        at = _ALL, _ALL, *tap
        dw[at] = (dy @ _by_group(xp, window, c.groups)).reshape(c.filters, -1)
    return {"dw": dw}


def _causal_windows(xp: Any, x: Any, taps: int) -> list[Any]:
    """The elements of sequences [B,D,L] that each tap of a causal filter reads; the last tap reads x
    itself."""
    batch, channels, steps = x.shape
    padded = xp.zeros((batch, channels, taps - 1 + steps), dtype=xp.float64)
    padded[:, :, taps - 1 :] = x
    return [padded[:, :, k : k + steps] for k in range(taps)]


def _causal_sums(xp: Any, t: Arrays) -> Any:
    """The sums before SiLU."""
    windows = _causal_windows(xp, t["x"], t["w"].shape[1])
    return sum(t["w"][:, k, None] * window for k, window in enumerate(windows)) + t["bias"][:, None]


def causal_conv(xp: Any, t: Arrays) -> Arrays:
    """y = silu(s), where s = bias + a filter per channel over the current step and earlier ones."""
    s = _causal_sums(xp, t)
    return {"y": s / (1 + xp.exp(-s))}


def causal_conv_backward(xp: Any, t: Arrays) -> Arrays:
    """Gradients of x, the filters and the bias. dx is a causal convolution in reverse order."""
    s, taps = _causal_sums(xp, t), t["w"].shape[1]
    logistic = 1 / (1 + xp.exp(-s))
    ds = t["dy"] * (logistic + s * logistic * (1 - logistic))
    later = _causal_windows(xp, xp.flip(ds, (2,)), taps)
    dx = sum(t["w"][:, k, None] * window for k, window in enumerate(later))
    dw = [(ds * window).sum(axis=(0, 2)) for window in _causal_windows(xp, t["x"], taps)]
    return {"dx": xp.flip(dx, (2,)), "dw": xp.stack(dw, 1), "dbias": ds.sum(axis=(0, 2))}


# ---- Normalisation -----------------------------------------------------------------------------------------


def statistics(xp: Any, x: Any, axes: tuple[int, ...], is_centred: bool, epsilon: float) -> Arrays:
    """Mean and 1 / standard deviation, or 1 / root mean square if it is not centred."""
    mean = x.mean(axis=axes, keepdims=True) if is_centred else 0.0
    deviation = x - mean
    variance = (deviation * deviation).mean(axis=axes, keepdims=True)
    return {"mean": mean, "inv": 1 / xp.sqrt(variance + epsilon)}


def norm_forward(xp: Any, t: Arrays, axes: tuple[int, ...], is_centred: bool, epsilon: float) -> Arrays:
    """y = (x - mean) inv scale + bias, and the statistics."""
    results = statistics(xp, t["x"], axes, is_centred, epsilon)
    y = (t["x"] - results["mean"]) * results["inv"] * t["scale"]
    return {"y": y + t["bias"] if "bias" in t else y} | results


def norm_backward(xp: Any, t: Arrays, axes: tuple[int, ...], parameter_axes: tuple[int, ...]) -> Arrays:
    """Gradients of x, scale and bias. axes: those over which one mean is computed; parameter_axes: those over
    which one parameter is shared. It is centred if there is a mean."""
    x_hat = (t["x"] - t["mean"] if "mean" in t else t["x"]) * t["inv"]
    g = t["dy"] * t["scale"]
    projected = g - x_hat * (g * x_hat).mean(axis=axes, keepdims=True)
    if "mean" in t:
        projected = projected - g.mean(axis=axes, keepdims=True)
    results = {"dx": projected * t["inv"]}
    results["dscale"] = (t["dy"] * x_hat).sum(axis=parameter_axes, keepdims=True)
    results["dbias"] = t["dy"].sum(axis=parameter_axes, keepdims=True)
    return results


def running(t: Arrays, found: Arrays, momentum: float, epsilon: float) -> Arrays:
    """The running statistics of batch normalization; variances are sample variances, with n - 1."""
    count = t["x"].shape[0] * t["x"].shape[2] * t["x"].shape[3]
    variance = (1 / found["inv"] ** 2 - epsilon) * count / (count - 1)
    return {
        "new_mean": (1 - momentum) * t["running_mean"] + momentum * found["mean"],
        "new_var": (1 - momentum) * t["running_var"] + momentum * variance,
    }


# ---- Attention: one head at a time -------------------------------------------------------------------------


SOFTCAP = 16.0
# queries whose scores are in memory together: those of 32k queries would need 8 GB in float64
QUERIES_AT_ONCE = 4096


def _parts(a: Attention) -> list[slice]:
    """The queries of a head in slices of QUERIES_AT_ONCE."""
    return [slice(first, first + QUERIES_AT_ONCE) for first in range(0, a.queries, QUERIES_AT_ONCE)]


def modified_scores(xp: Any, kind: str, t: Arrays, a: Attention, scores: Any, head: int, first: int) -> Any:
    """Scores of queries of one head, starting at `first`: with soft cap, bias, block mask, or ALiBi slope,
    for a number of heads that is a power of two."""
    if kind == "softcap":
        return SOFTCAP * xp.tanh(scores / SOFTCAP)
    if kind == "bias":
        return scores + t["bias"][0, 0, first : first + scores.shape[0]]
    if kind == "block_mask":
        tiles = t["block_mask"][0, 0]
        rows, columns = (xp.arange(n) for n in scores.shape)
        return xp.where(tiles[(rows[:, None] + first) // 128, columns // 128] > 0, scores, -math.inf)
    rows, columns = (xp.arange(n, dtype=xp.float64) for n in scores.shape)
    return scores + 2.0 ** (-8 * (head + 1) / a.heads) * (columns - first - rows[:, None])


def _probabilities(
    xp: Any, q: Any, k: Any, a: Attention, first: int, modify: Callable[..., Any] | None = None
) -> tuple[Any, Any]:
    """softmax(q k^T scale) for queries of one head, and the logarithm of its denominators."""
    scores = (q @ xp.swapaxes(k, 0, 1)) * a.scale
    scores = modify(scores=scores) if modify else scores
    if a.is_causal:
        ones = xp.ones(scores.shape, dtype=xp.float64)
        allowed = xp.tril(ones, first)
        if a.window:
            allowed = allowed - xp.tril(ones, first - a.window)
        scores = xp.where(allowed > 0, scores, -math.inf)
    most = xp.amax(scores, axis=-1, keepdims=True)
    weights = xp.exp(scores - most)
    total = weights.sum(axis=-1, keepdims=True)
    return weights / total, most + xp.log(total)


def _kept(t: Arrays, batch: int, part: slice) -> Any:
    """The factor of the queries' weights: a dropout mask shared by all heads, divided by the keep
    probability."""
    return t["mask"][batch, 0, part] * t["growth"][0, 0] if "mask" in t else 1.0


def sdpa_forward(xp: Any, t: Arrays, a: Attention, kind: str = "") -> Arrays:
    """o = dropout(softmax(q k^T scale)) v, and the statistics that the backward pass reads."""
    o = xp.zeros((a.batch, a.heads, a.queries, a.value_width), dtype=xp.float64)
    stats = xp.zeros((a.batch, a.heads, a.queries, 1), dtype=xp.float64)
    for b, h, part in itertools.product(range(a.batch), range(a.heads), _parts(a)):
        shared = h * a.key_heads // a.heads
        where = {"t": t, "a": a, "head": h, "first": part.start}
        modify = partial(modified_scores, xp, kind, **where) if kind else None
        q, k = t["q"][b, h, part], t["k"][b, shared]
        p, stats[b, h, part] = _probabilities(xp, q, k, a, part.start, modify)
        o[b, h, part] = p * _kept(t, b, part) @ t["v"][b, shared]
    return {"o": o, "stats": stats}


def sdpa_fp8(xp: Any, t: Arrays, a: Attention) -> Arrays:
    """sdpa_forward with scales, and the largest result before its own scale."""
    true = {name: t[name] * t[f"descale_{name}"] for name in "qkv"}
    o = sdpa_forward(xp, true, a)["o"] * (t["scale_s"] * t["descale_s"])
    return {"o": o * t["scale_o"], "amax_o": xp.amax(xp.abs(o))}


def sdpa_backward(xp: Any, t: Arrays, a: Attention, kind: str = "") -> Arrays:
    """Gradients of q, k and v; those of key heads are summed over the query heads that share them."""
    results = {f"d{name.upper()}": xp.zeros(tuple(t[name].shape), dtype=xp.float64) for name in "qkv"}
    for b, h, part in itertools.product(range(a.batch), range(a.heads), _parts(a)):
        at = b, h * a.key_heads // a.heads
        q, k, v, d_o = t["q"][b, h, part], t["k"][at], t["v"][at], t["dO"][b, h, part]
        modify = partial(modified_scores, xp, kind, t=t, a=a, head=h, first=part.start) if kind else None
        p, _ = _probabilities(xp, q, k, a, part.start, modify)
        selected = _kept(t, b, part)
        d_p = d_o @ xp.swapaxes(v, 0, 1) * selected
        along = (d_o * t["o"][b, h, part]).sum(axis=-1, keepdims=True)
        d_s = p * (d_p - along) * a.scale
        if kind == "softcap":
            d_s = d_s * (1 - xp.tanh(q @ xp.swapaxes(k, 0, 1) * (a.scale / SOFTCAP)) ** 2)
        results["dQ"][b, h, part] = d_s @ k
        results["dK"][at] += xp.swapaxes(d_s, 0, 1) @ q
        results["dV"][at] += xp.swapaxes(p * selected, 0, 1) @ d_o
    return results


# ---- Memory-bound graphs -----------------------------------------------------------------------------------


def softmax(xp: Any, x: Any) -> Any:
    """exp(x - max) / sum over the last dimension."""
    weights = xp.exp(x - xp.amax(x, axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def pool(xp: Any, x: Any, p: Pool) -> Any:
    """The largest element or the mean of each window; padding is never the largest, and counts as 0 in the
    mean."""
    taps = [window for _, window in _windows(_padded(xp, p, x, -math.inf if p.is_max else 0.0), p)]
    combined = reduce(xp.maximum if p.is_max else operator.add, taps)
    return xp.moveaxis(combined if p.is_max else combined / len(taps), -1, 1)


def indices(xp: Any, x: Any, p: Pool) -> Any:
    """The index of the first of the largest elements of each window, [N,P,Q,C]."""
    most, results = -math.inf, 0.0
    for number, (_, window) in enumerate(_windows(_padded(xp, p, x, -math.inf), p)):
        is_more = window > most
        results = xp.where(is_more, float(number), results)
        most = xp.where(is_more, window, most)
    return results


def some_indices(xp: Any, t: Arrays, p: Pool) -> Arrays:
    """Possible indices of a forward pass."""
    x = xp.sin(xp.arange(math.prod(p.x), dtype=xp.float64) * 12.9898).reshape(p.x)
    return {"index": xp.moveaxis(indices(xp, x, p), -1, 1)}


def pool_backward(xp: Any, t: Arrays, p: Pool) -> Arrays:
    """dx: dy distributed to the elements of its window."""
    dy, padded = xp.moveaxis(t["dy"], 1, -1), _padded(xp, p)
    chosen = xp.moveaxis(t["index"], 1, -1) if "index" in t else indices(xp, t["x"], p) if p.is_max else None
    for number, (_, window) in enumerate(_windows(padded, p)):
        window += dy / p.window**2 if chosen is None else dy * (chosen == number)
    return {"dx": xp.moveaxis(_within_edge(padded, p), -1, 1)}


def _doubling(xp: Any, extent: int, is_linear: bool) -> Any:
    """Weights of the elements of x, [2 extent, extent]: of the nearest, or of the two adjacent ones, clamped
    at the ends."""
    shift = 0.5 if is_linear else 0.0
    places = (xp.arange(2 * extent, dtype=xp.float64) + shift) / 2 - shift
    first = xp.floor(places)
    weights = 0.0
    for at, weight in ((first, 1 - (places - first)), (first + 1, places - first)):
        chosen = xp.clip(at if is_linear else first, 0, extent - 1)[:, None] == xp.arange(extent)
        weights = weights + chosen * (weight if is_linear else xp.full_like(weight, 0.5))[:, None]
    return weights


def resize(xp: Any, t: Arrays, dims: tuple[int, ...], is_linear: bool) -> Arrays:
    """Images upscaled by two, or the gradient."""
    rows, columns = (_doubling(xp, extent, is_linear) for extent in dims[2:])
    if "dy" in t:
        return {"dx": rows.T @ t["dy"] @ columns}
    return {"y": rows @ t["x"] @ columns.T}
