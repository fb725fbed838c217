# SPDX-License-Identifier: Apache-2.0
"""Definitions of all operations in NumPy and float64: an interpreter that shares no code with the library.

    made = DEFINITIONS["softmax"]({"axis": 1}, x=array)     # {"y": .., "stats": .., "max": .., "sum_exp": ..}

A definition accepts the options and operands by their keys, in float64, and returns all results that it can
compute by their keys, not rounded. The dims of results that do not follow from operands are passed as
options, under the result's key. If a result is small compared with the terms of its sum, their magnitude is
returned under "summed" and its key.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import checks
import numpy as np
from random_words import blocks, flat, units

Array = np.ndarray[Any, Any]
BOTTOM_RIGHT = 1  # weftDiagonalAlignment_t
Results = dict[str, Array]
erf = np.vectorize(math.erf, otypes=[np.float64])


# ---- Pointwise ---------------------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def normal_cdf(x: Array) -> Array:
    return (1 + erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Array) -> tuple[Array, Array]:
    """The approximation of GELU by tanh, and its derivative."""
    inner, factor = x + 0.044715 * x**3, math.sqrt(2 / math.pi)
    t = np.tanh(factor * inner)
    return x * (1 + t) / 2, (1 + t) / 2 + x * (1 - t**2) * factor * (1 + 3 * 0.044715 * x**2) / 2


UNARY: dict[str, Callable[[Array], Array]] = {
    "ABS": np.abs,
    "CEIL": np.ceil,
    "FLOOR": np.floor,
    "COS": np.cos,
    "SIN": np.sin,
    "TAN": np.tan,
    "EXP": np.exp,
    "LOG": np.log,
    "NEG": np.negative,
    "SQRT": np.sqrt,
    "RSQRT": lambda x: 1 / np.sqrt(x),
    "RECIPROCAL": lambda x: 1 / x,
    "ERF": erf,
    "IDENTITY": lambda x: x,
    "RELU_FWD": lambda x: np.maximum(x, 0),
    "TANH_FWD": np.tanh,
    "SIGMOID_FWD": sigmoid,
    "ELU_FWD": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "GELU_FWD": lambda x: x * normal_cdf(x),
    "SOFTPLUS_FWD": lambda x: np.logaddexp(x, 0),
    "SWISH_FWD": lambda x: x * sigmoid(x),
    "GELU_APPROX_TANH_FWD": lambda x: gelu_tanh(x)[0],
    "LOGICAL_NOT": lambda x: x == 0,
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "DIV": np.divide,
    "ADD_SQUARE": lambda x, b: x + b * b,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "MOD": np.fmod,
    "FLOOR_MOD": np.mod,
    "POW": np.power,
    "ATAN2": np.arctan2,
    "CMP_EQ": np.equal,
    "CMP_NEQ": np.not_equal,
    "CMP_GT": np.greater,
    "CMP_GE": np.greater_equal,
    "CMP_LT": np.less,
    "CMP_LE": np.less_equal,
    "LOGICAL_AND": lambda x, b: (x != 0) & (b != 0),
    "LOGICAL_OR": lambda x, b: (x != 0) | (b != 0),
}
SLOPES: dict[str, Callable[[Array], Array]] = {
    "RELU_BWD": lambda x: x > 0,
    "TANH_BWD": lambda x: 1 - np.tanh(x) ** 2,
    "SIGMOID_BWD": lambda x: sigmoid(x) * sigmoid(-x),
    "ELU_BWD": lambda x: np.where(x > 0, 1, np.exp(np.minimum(x, 0))),
    "GELU_BWD": lambda x: normal_cdf(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "SOFTPLUS_BWD": sigmoid,
    "SWISH_BWD": lambda x: sigmoid(x) * (1 + x * sigmoid(-x)),
    "GELU_APPROX_TANH_BWD": lambda x: gelu_tanh(x)[1],
}


def clips(o: dict[str, Any]) -> tuple[float, float, float]:
    """The lower and the upper clip of a rectifier, and its slope below the lower one."""
    return o.get("relu_lower_clip", 0), o.get("relu_upper_clip", np.inf), o.get("relu_lower_clip_slope", 0)


def relu_fwd(o: dict[str, Any], x: Array) -> Array:
    lower, upper, slope = clips(o)
    return np.where(x < lower, lower + slope * (x - lower), np.minimum(x, upper))


def relu_bwd(o: dict[str, Any], x: Array) -> Array:
    lower, upper, slope = clips(o)
    return np.where(x <= lower, slope, x < upper)


def swish_bwd(o: dict[str, Any], x: Array) -> Array:
    s = sigmoid(o["swish_beta"] * x)
    return s + o["swish_beta"] * x * s * (1 - s)


CONSTANTS = {
    "relu_lower_clip",
    "relu_upper_clip",
    "relu_lower_clip_slope",
    "elu_alpha",
    "softplus_beta",
    "swish_beta",
}
WITH_CONSTANTS: dict[str, Callable[[dict[str, Any], Array], Array]] = {
    "RELU_FWD": relu_fwd,
    "RELU_BWD": relu_bwd,
    "ELU_FWD": lambda o, x: np.where(x > 0, x, o["elu_alpha"] * np.expm1(np.minimum(x, 0))),
    "ELU_BWD": lambda o, x: np.where(x > 0, 1, o["elu_alpha"] * np.exp(np.minimum(x, 0))),
    "SOFTPLUS_FWD": lambda o, x: np.logaddexp(o["softplus_beta"] * x, 0) / o["softplus_beta"],
    "SOFTPLUS_BWD": lambda o, x: sigmoid(o["softplus_beta"] * x),
    "SWISH_FWD": lambda o, x: x * sigmoid(o["swish_beta"] * x),
    "SWISH_BWD": swish_bwd,
}
"""Modes whose constants are set; a backward mode gives the factor of dy."""


def pointwise(
    o: dict[str, Any], x: Array, b: Array | None = None, t: Array | None = None, dy: Array | None = None
) -> Results:
    mode, evaluate = o["mode"], WITH_CONSTANTS.get(o["mode"]) if CONSTANTS & o.keys() else None
    x, b = x * o.get("alpha1", 1), np.full((1,) * x.ndim, o["b"]) if "b" in o else b
    b = None if b is None else b * o.get("alpha2", 1)
    if mode == "GEN_INDEX":
        return {"y": np.broadcast_to(np.indices(x.shape)[o["axis"]], x.shape)}
    if mode == "BINARY_SELECT":
        return {"y": np.where(t != 0, x, b)}
    if mode in SLOPES:
        slope = evaluate(o, x) if evaluate else SLOPES[mode](x)
        return {"dx": dy * slope, "summed dx": np.abs(dy) * (1 + np.abs(x))}
    if mode.startswith("GELU"):
        return {"y": UNARY[mode](x), "summed y": 1 + np.abs(x)}
    made = evaluate(o, x) if evaluate else UNARY[mode](x) if b is None else BINARY[mode](x, b)
    return {"y": np.asarray(made, np.float64)}


def diagonal_band_mask(
    o: dict[str, Any],
    x: Array,
    b: Array | None = None,
    left_bound: Array | None = None,
    shift_right_bound: Array | None = None,
    **lengths: Array,
) -> Results:
    """The index that moves is the row, or the column if there is a left bound."""
    row, column = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
    q, kv = (lengths.get(f"seq_len_{side}", 0) for side in ("q", "kv"))
    q, kv = (
        np.diff(lengths[f"cu_seq_len_{side}"], axis=0) if f"cu_seq_len_{side}" in lengths else length
        for side, length in (("q", q), ("kv", kv))
    )
    bound = shift_right_bound if left_bound is None else left_bound
    bound = o.get("left_bound", o.get("shift_right_bound", 0)) if bound is None else bound
    if left_bound is None and "left_bound" not in o:
        keeps = BINARY[o["comparison_mode"]](row + bound + kv - q, column)
    else:
        keeps = BINARY[o["comparison_mode"]](column + bound - kv + q, row)
    return {"y": np.where(keeps, x, o["b"] if b is None else b)}


# ---- Causal convolutions -----------------------------------------------------------------------------------


def steps_of(x: Array, taps: int) -> list[Array]:
    """[B, D, L] for each tap: what it multiplies."""
    padded = np.pad(x, ((0, 0), (0, 0), (taps - 1, 0)))
    return [padded[:, :, k : k + x.shape[2]] for k in range(taps)]


def causal_sums(x: Array, weight: Array, bias: Array | None) -> Array:
    made = sum(weight[:, k, None] * each for k, each in enumerate(steps_of(x, weight.shape[1])))
    return np.asarray(made if bias is None else made + bias[:, None])


def causal_conv1d(o: dict[str, Any], x: Array, weight: Array, bias: Array | None = None) -> Results:
    sums, sizes = (
        causal_sums(f(x), f(weight), None if bias is None else f(bias)) for f in (np.array, np.abs)
    )
    return {"y": sums * sigmoid(sums) if o.get("activation") == "SWISH_FWD" else sums, "summed y": sizes}


def causal_conv1d_backward(
    o: dict[str, Any], dy: Array, x: Array, weight: Array, bias: Array | None = None
) -> Results:
    taps, sums = weight.shape[1], causal_sums(x, weight, bias)
    is_silu = o.get("activation") == "SWISH_FWD"
    ds = dy * SLOPES["SWISH_BWD"](sums) if is_silu else dy
    made: Results = {}
    for before, f in (("", np.array), ("summed ", np.abs)):
        later = steps_of(f(ds)[:, :, ::-1], taps)
        dx = sum(f(weight)[:, k, None] * each[:, :, ::-1] for k, each in enumerate(later))
        made[f"{before}dx"] = np.asarray(dx)
        each_tap = [(f(ds) * each).sum((0, 2)) for each in steps_of(f(x), taps)]
        made[f"{before}dweight"] = np.stack(each_tap, 1)
        made[f"{before}dbias"] = f(ds).sum((0, 2))
    return made


# ---- Recurrent layers --------------------------------------------------------------------------------------


def times_of(o: dict[str, Any], length: int) -> list[int]:
    return list(range(length))[:: -1 if o.get("is_reverse") else 1]


def recurrence(
    o: dict[str, Any], x: Array, weight: Array, bias: Array | None = None, hx: Array | None = None,
    cx: Array | None = None, seq_len: Array | None = None, projection: Array | None = None,
) -> Results:  # fmt: skip
    (steps, batch, rows), mode = x.shape, o.get("mode", "LSTM")
    gates, saved = {"LSTM": (4, 5), "GRU": (3, 4)}.get(mode, (1, 0))
    units, width = rows // gates, weight.shape[1]
    made = {"y": np.zeros((steps, batch, width)), "gates": np.zeros((steps, batch, saved * units))}
    made |= {"hy": np.zeros((batch, width)), "cy": np.zeros((batch, units))}
    for b in range(batch):
        h = np.zeros(width) if hx is None else hx[b]
        c = np.zeros(units) if cx is None else cx[b]
        for t in times_of(o, steps if seq_len is None else int(seq_len[b])):
            r = (weight @ h + (0 if bias is None else bias)).reshape(gates, units)
            a = x[t, b].reshape(gates, units)
            if mode == "LSTM":
                i, f, g, out = (np.tanh(s) if k == 2 else sigmoid(s) for k, s in enumerate(a + r))
                c = f * c + i * g
                if o.get("cell_clip_max", 0) > o.get("cell_clip_min", 0):
                    c = np.clip(c, o.get("cell_clip_min", 0), o["cell_clip_max"])
                h, kept = out * np.tanh(c), [i, f, g, out, c]
                h = h if projection is None else projection @ h
            elif mode == "GRU":
                reset, z = sigmoid(a[0] + r[0]), sigmoid(a[1] + r[1])
                n = np.tanh(a[2] + reset * r[2])
                h, kept = (1 - z) * n + z * h, [reset, z, n, r[2]]
            else:
                h, kept = (np.tanh if mode == "TANH" else lambda s: np.maximum(s, 0))(a[0] + r[0]), [[]]
            made["y"][t, b], made["gates"][t, b] = h, np.concatenate(kept)
        made["hy"][b], made["cy"][b] = h, c
    return made


# ---- Products ----------------------------------------------------------------------------------------------


def matmul(o: dict[str, Any], A: Array, B: Array, **overrides: Array) -> Results:
    batch = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    A, B = np.broadcast_to(A, batch + A.shape[-2:]), np.broadcast_to(B, batch + B.shape[-2:])
    extents = {"m": A.shape[-2], "n": B.shape[-1], "k": A.shape[-1]}
    m, n, k = (
        np.arange(extent) < overrides.get(f"{name}_override", np.full((1, 1), extent))
        for name, extent in extents.items()
    )
    padding = o.get("padding", 0.0)
    A = np.where(np.swapaxes(m, -1, -2) & k, A, padding)
    B = np.where(np.swapaxes(k, -1, -2) & n, B, padding)
    return {"C": A @ B}


def taps(o: dict[str, Any], x: Array, w: Array, y: tuple[int, ...]) -> tuple[Array, list[Any], list[Any]]:
    """Returns an image with padding, the slice that each filter tap sees, and the index of the tap."""
    spatial = w.shape[2:]
    pre, post, stride, dilation = (o[key] for key in ("pre_padding", "post_padding", "stride", "dilation"))
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pre, post, strict=True)])
    seen, at = [], []
    for tap in itertools.product(*map(range, spatial)):
        begins = [t * d for t, d in zip(tap, dilation, strict=True)]
        seen.append(
            (..., *(slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(begins, y, stride, strict=True)))
        )
        flip = o.get("convolution_mode") == "CONVOLUTION"
        at.append((..., *(n - 1 - t if flip else t for t, n in zip(tap, spatial, strict=True))))
    return padded, seen, at


def in_groups(w: Array, y: Array, groups: int) -> tuple[Array, Array]:
    return w.reshape(groups, -1, *w.shape[1:]), y.reshape(y.shape[0], groups, -1, *y.shape[2:])


def pixels(images: Array) -> Array:
    """Images of groups, [n, g, c, ...], as matrices [n, g, c, pixels]."""
    return images.reshape(*images.shape[:3], math.prod(images.shape[3:]))


def convolve(o: dict[str, Any], x: Array, w: Array, y: Array, result: str) -> Array:
    """Computes one of image, filters and result from the two others; the computed one is passed as zeros."""
    groups = x.shape[1] // w.shape[1]
    padded, seen, at = taps(o, x, w, y.shape[2:])
    image = padded.reshape(x.shape[0], groups, -1, *padded.shape[2:])
    filters, made = (each.copy() for each in in_groups(w, y, groups))
    for where, tap in zip(seen, at, strict=True):
        if result == "y":
            made += (filters[tap] @ pixels(image[where])).reshape(made.shape)
        elif result == "x":
            image[where] += (filters[tap].mT @ pixels(made)).reshape(image[where].shape)
        else:
            filters[tap] += (pixels(made) @ pixels(image[where]).mT).sum(0)
    if result == "x":
        inner = (slice(p, p + n) for p, n in zip(o["pre_padding"], x.shape[2:], strict=True))
        return image.reshape(padded.shape)[(..., *inner)]
    return made.reshape(y.shape) if result == "y" else filters.reshape(w.shape)


def conv_fprop(o: dict[str, Any], x: Array, w: Array) -> Results:
    return {"y": convolve(o, x, w, np.zeros(o["y"]), "y")}


def conv_dgrad(o: dict[str, Any], dy: Array, w: Array) -> Results:
    return {"dx": convolve(o, np.zeros(o["dx"]), w, dy, "x")}


def conv_wgrad(o: dict[str, Any], x: Array, dy: Array) -> Results:
    return {"dw": convolve(o, x, np.zeros(o["dw"]), dy, "w")}


def rows_of_experts(first: Array, rows: int) -> list[slice]:
    ends = [*(int(n) for n in first.ravel()), rows]
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def moe_grouped_matmul(
    o: dict[str, Any],
    token: Array,
    weight: Array,
    first_token_offset: Array,
    token_index: Array | None = None,
    token_ks: Array | None = None,
) -> Results:
    index = None if token_index is None else token_index.ravel().astype(int)
    x = token[0][index] if o.get("mode") == "GATHER" else token[0]
    made = np.zeros((len(x), weight.shape[2]))
    for expert, rows in enumerate(rows_of_experts(first_token_offset, len(x))):
        made[rows] = x[rows] @ weight[expert]
    if o.get("mode") == "SCATTER":
        assert index is not None
        assert token_ks is not None
        moved = np.zeros(o["output"][1:])
        moved[index * o["top_k"] + token_ks.ravel().astype(int)] = made
        made = moved
    return {"output": made[None]}


def moe_grouped_matmul_bwd(
    o: dict[str, Any], doutput: Array, token: Array, first_token_offset: Array
) -> Results:
    parts = rows_of_experts(first_token_offset, token.shape[1])
    return {"dweight": np.stack([token[0, rows].T @ doutput[0, rows] for rows in parts])}


# ---- Windows -----------------------------------------------------------------------------------------------


def windows(o: dict[str, Any], x: Array, outside: float) -> Array:
    """[N, C, y.., positions]: what each window sees."""
    axes = tuple(range(2, x.ndim))
    pads = [(0, 0), (0, 0), *zip(o["pre_padding"], o["post_padding"], strict=True)]
    padded = np.pad(x, pads, constant_values=outside)
    gaps = o.get("dilation") or [1] * len(axes)
    spans = [(w - 1) * d + 1 for w, d in zip(o["window"], gaps, strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(padded, spans, axes)
    seen = seen[(..., *(slice(None, None, s) for s in (*o["stride"], *gaps)))]
    return seen.reshape(*seen.shape[: x.ndim], -1)


def weights_along(o: dict[str, Any], i: int, x: int, y: int) -> Array:
    """[y, x]: the interpolation weights of x's elements in y's, along dimension i."""
    made, stride = np.zeros((y, x)), Fraction(x, y)
    pre = Fraction(o["pre_padding"][i])
    for position in range(y):
        at = position * stride - pre
        first, rest = math.floor(at), float(at - math.floor(at))
        for tap, weight in (
            ((first, 1.0),) if o["mode"] == "NEAREST" else ((first, 1 - rest), (first + 1, rest))
        ):
            made[position, min(max(tap, 0), x - 1)] += weight
    return made


def interpolate(o: dict[str, Any], x: Array, back: bool, dims: tuple[int, ...]) -> Array:
    """Computes y from x, or dx from dy."""
    for i in range(2, x.ndim):
        narrow, wide = (x.shape[i], dims[i]) if back else (dims[i], x.shape[i])
        weights = weights_along(o, i - 2, wide, narrow)
        x = np.moveaxis(np.tensordot(weights.T if back else weights, x, (1, i)), 0, i)
    return x


def resample(o: dict[str, Any], x: Array) -> Results:
    if o["mode"] == "MAXPOOL":
        seen = windows(o, x, -np.inf)
        return {"y": seen.max(-1), "index": seen.argmax(-1)}
    return {"y": weighted(o, x), "summed y": weighted(o, np.abs(x))}


def weighted(o: dict[str, Any], x: Array) -> Array:
    if o["mode"] in ("NEAREST", "BILINEAR"):
        return interpolate(o, x, False, o["y"])
    count = windows(o, np.ones(x.shape), o["mode"] == "AVGPOOL_INCLUDE_PADDING").sum(-1)
    return windows(o, x, 0).sum(-1) / np.maximum(count, 1)


def resample_backward(
    o: dict[str, Any], dy: Array, index: Array | None = None, x: Array | None = None
) -> Results:
    return {"dx": returned(o, dy, index, x), "summed dx": returned(o, np.abs(dy), index, x)}


def returned(o: dict[str, Any], dy: Array, index: Array | None, x: Array | None) -> Array:
    """Returns dx: adds every dy at the positions that its window has read, with their weights."""
    dims = o["dx"]
    if o["mode"] in ("NEAREST", "BILINEAR"):
        return interpolate(o, dy, True, dims)
    places = windows(o, np.arange(1.0, math.prod(dims[2:]) + 1).reshape(1, 1, *dims[2:]), 0).astype(int)
    if o["mode"] == "MAXPOOL":
        if index is None:
            assert x is not None
            index = windows(o, x, -np.inf).argmax(-1)
        shares = (np.arange(places.shape[-1]) == index[..., None]) * dy[..., None]
    else:
        inside = places > 0 if o["mode"] == "AVGPOOL_EXCLUDE_PADDING" else np.ones(places.shape)
        shares = dy[..., None] / np.maximum(inside.sum(-1, keepdims=True), 1) * np.ones(places.shape)
    made = np.zeros((math.prod(dims[:2]), math.prod(dims[2:]) + 1))
    for row, share in zip(made, shares.reshape(len(made), -1), strict=True):
        np.add.at(row, places.ravel(), share)
    return made[:, 1:].reshape(dims)


# ---- Norms, softmax, reductions ----------------------------------------------------------------------------


def grid_taps(o: dict[str, Any], extent: int, coordinate: Array) -> Array:
    """[.., extent]: the weights of an image's elements at positions along a dimension."""
    align = o["align_corners"]
    at = (coordinate + 1) * (extent - align) / 2 - (0 if align else 0.5)
    at = np.clip(at, 0, extent - 1) if o["padding_mode"] == "EDGE_VAL_PAD" else at
    return np.maximum(0, 1 - np.abs(at[..., None] - np.arange(extent)))


def grid_weights(o: dict[str, Any], pixels: tuple[int, ...], grid: Array) -> Array:
    """[N, positions, elements]: bilinear weights, products over the dimensions."""
    made = np.ones((len(grid), math.prod(grid.shape[1:-1]), 1))
    for d, extent in enumerate(pixels):
        along = grid_taps(o, extent, grid[..., len(pixels) - 1 - d]).reshape(*made.shape[:2], extent)
        made = (made[..., None] * along[:, :, None]).reshape(*made.shape[:2], -1)
    return made


def grid_sample(o: dict[str, Any], x: Array, grid: Array) -> Results:
    weights = grid_weights(o, x.shape[2:], grid)
    flat = x.reshape(*x.shape[:2], -1)
    dims = (*x.shape[:2], *grid.shape[1:-1])
    return {key: np.einsum("nqi,nci->ncq", weights, each).reshape(dims)
            for key, each in (("y", flat), ("summed y", np.abs(flat)))}  # fmt: skip


def grid_sample_backward(o: dict[str, Any], dy: Array, x: Array, grid: Array) -> Results:
    weights = grid_weights(o, x.shape[2:], grid)
    flat = dy.reshape(*dy.shape[:2], -1)
    return {key: np.einsum("nqi,ncq->nci", weights, each).reshape(x.shape)
            for key, each in (("dx", flat), ("summed dx", np.abs(flat)))}  # fmt: skip


class Rows:
    """Groups the elements that share statistics: by the axes of the norm, with groups as an additional
    dimension."""

    def __init__(self, o: dict[str, Any], x: Array) -> None:
        self.dims, self.groups = x.shape, o.get("groups", 0)
        spatial = tuple(range(2, x.ndim))
        axes = {
            "INSTANCE_NORM": spatial,
            "BATCH_NORM": (0, *spatial),
            "GROUP_NORM": (2, *(i + 1 for i in spatial)),
        }
        self.axes = axes.get(o["mode"]) or tuple(o["axes"])

    def split(self, array: Array) -> Array:
        """With the dimension of groups; operands of a channel follow it."""
        if not self.groups or array.shape[1] != self.dims[1]:
            return array if not self.groups else array[:, :, None]
        return array.reshape(array.shape[0], self.groups, -1, *array.shape[2:])

    def mean(self, array: Array) -> Array:
        return array.mean(self.axes, keepdims=True)

    def join(self, array: Array) -> Array:
        return array.reshape(self.dims)

    def statistic(self, array: Array) -> Array:
        return array.reshape(*array.shape[:2], *array.shape[3:]) if self.groups else array


def norm(
    o: dict[str, Any],
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    mean: Array | None = None,
    inv_variance: Array | None = None,
    in_running_mean: Array | None = None,
    in_running_var: Array | None = None,
) -> Results:
    rows, wide = Rows(o, x), x
    x = rows.split(x)
    if mean is not None and inv_variance is not None:
        m, inv = mean, inv_variance
    else:
        m = 0 * rows.mean(x) if o["mode"] == "RMS_NORM" else rows.mean(x)
        variance = rows.mean((x - m) ** 2)
        inv = 1 / np.sqrt(variance + o["epsilon"])
    y = rows.join((x - m) * inv)
    y = y * (1 if scale is None else scale) + (0 if bias is None else bias)
    made = {"y": y, "mean": rows.statistic(m), "inv_variance": rows.statistic(inv)}
    if in_running_mean is not None and in_running_var is not None:
        f, n = o["momentum"], wide.size // wide.shape[1]
        made["out_mean"] = (1 - f) * in_running_mean + f * m
        made["out_var"] = (1 - f) * in_running_var + f * variance * (n / (n - 1) if n > 1 else 1)
    return made


def norm_backward(
    o: dict[str, Any],
    dy: Array,
    x: Array,
    scale: Array | None = None,
    mean: Array | None = None,
    inv_variance: Array | None = None,
) -> Results:
    rows = Rows(o, x)
    split = rows.split(x)
    if inv_variance is None:
        m = 0 if o["mode"] == "RMS_NORM" else rows.mean(split)
        inv = 1 / np.sqrt(rows.mean((split - m) ** 2) + o["epsilon"])
    else:
        m, inv = (0 if each is None else rows.split(each) for each in (mean, inv_variance))
    xhat = (split - m) * inv
    g = rows.split(dy * (1 if scale is None else scale))
    drop = 0 if o["mode"] == "RMS_NORM" else rows.mean(g)
    dx = inv * (g - drop - xhat * rows.mean(g * xhat))
    summed = np.abs(inv) * (np.abs(g) + np.abs(drop) + np.abs(xhat) * rows.mean(np.abs(g * xhat)))
    affine = tuple(i for i, n in enumerate(o["dscale"]) if n == 1)
    return {
        "dx": rows.join(dx),
        "summed dx": rows.join(summed),
        "dscale": (dy * rows.join(xhat)).sum(affine, keepdims=True),
        "dbias": dy.sum(affine, keepdims=True),
    }


def channels(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def genstats(o: dict[str, Any], x: Array) -> Results:
    return {"sum": x.sum(channels(x), keepdims=True), "sq_sum": (x * x).sum(channels(x), keepdims=True)}


def bn_finalize(
    o: dict[str, Any],
    sum: Array,
    sq_sum: Array,
    scale: Array,
    bias: Array,
    in_running_mean: Array,
    in_running_var: Array,
) -> Results:
    n, f = o["accum_count"], o["momentum"]
    mean = sum / n
    variance = np.maximum(sq_sum / n - mean**2, 0)
    inv = 1 / np.sqrt(variance + o["epsilon"])
    return {
        "eq_scale": scale * inv,
        "eq_bias": bias - mean * scale * inv,
        "saved_mean": mean,
        "saved_inv_variance": inv,
        "out_mean": (1 - f) * in_running_mean + f * mean,
        "out_var": (1 - f) * in_running_var + f * variance * n / (n - 1),
    }


def dbn_weight(
    o: dict[str, Any], dy: Array, x: Array, mean: Array, inv_variance: Array, scale: Array
) -> Results:
    m = x.size / x.shape[1]
    dscale = (dy * (x - mean) * inv_variance).sum(channels(x), keepdims=True)
    dbias = dy.sum(channels(x), keepdims=True)
    eq_dy = scale * inv_variance
    eq_x = -eq_dy * inv_variance * dscale / m
    return {
        "dscale": dscale,
        "dbias": dbias,
        "eq_scale_dy": eq_dy,
        "eq_scale_x": eq_x,
        "eq_bias": -eq_dy * dbias / m - eq_x * mean,
    }


def softmax(o: dict[str, Any], x: Array, sink: Array | None = None) -> Results:
    axis = o["axis"]
    most = x.max(axis, keepdims=True)
    most = most if sink is None else np.maximum(most, sink)
    weights = np.exp(x - most)
    total = weights.sum(axis, keepdims=True) + (0 if sink is None else np.exp(sink - most))
    stats = (most + np.log(total)) * (np.log2(np.e) if o.get("stats_log2") else 1)
    return {"y": weights / total, "stats": stats, "max": most, "sum_exp": total}


REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "ADD": lambda x: x.sum(-1),
    "MUL": lambda x: x.prod(-1),
    "MIN": lambda x: x.min(-1),
    "MAX": lambda x: x.max(-1),
    "AMAX": lambda x: np.abs(x).max(-1),
    "AVG": lambda x: x.mean(-1),
    "NORM1": lambda x: np.abs(x).sum(-1),
    "NORM2": lambda x: np.sqrt((x * x).sum(-1)),
    "MUL_NO_ZEROS": lambda x: np.where(x == 0, 1, x).prod(-1),
}


def reduction(o: dict[str, Any], x: Array) -> Results:
    """Each extent of y divides that of x: adjacent elements form a group."""
    dims, n = o["y"], x.ndim
    split = x.reshape(
        [part for whole, kept in zip(x.shape, dims, strict=True) for part in (kept, whole // kept)]
    )
    groups = split.transpose(*range(0, 2 * n, 2), *range(1, 2 * n, 2)).reshape(*dims, -1)
    return {"y": REDUCTIONS[o["mode"]](groups)}


# ---- Moves, random numbers, block scales -------------------------------------------------------------------


def reshape(o: dict[str, Any], x: Array) -> Results:
    return {"y": x.reshape(o["y"])}


def transpose(o: dict[str, Any], x: Array) -> Results:
    return {"y": x.transpose(o["permutation"])}


def cut(o: dict[str, Any], x: Array) -> Results:
    return {"y": x[tuple(map(slice, o["start"], o["limit"], o["steps"]))]}


def concat(o: dict[str, Any], inputs: list[Array]) -> Results:
    return {"y": np.concatenate(inputs, o["axis"])}


def paged_cache_load(o: dict[str, Any], container: Array, seq_len: Array, page_table: Array) -> Results:
    """y[b, h, s] is row s % page size of the page in entry s / page size; it may be transposed."""
    dims, size, depth = o["y"], container.shape[2], container.shape[3]
    is_transposed = dims[3] != depth
    row = np.arange(dims[3 if is_transposed else 2])
    page = page_table[:, 0, :, 0].astype(int)[:, row // size]
    y = container[page, :, row % size]  # [B, S, H, D]
    y = np.where((row < seq_len[:, 0, 0])[:, :, None, None], y, 0).transpose(0, 2, 1, 3)
    return {"y": y.swapaxes(2, 3) if is_transposed else y}


def rng(o: dict[str, Any], offset: Array | None = None) -> Results:
    dims, which = o["y"], {"seed": o["seed"], "offset": 0 if offset is None else int(offset.item())}
    if o["distribution"] == "BERNOULLI":
        return {"y": (units(dims, **which) < o["bernoulli_probability"]).astype(np.float64)}
    if o["distribution"] == "UNIFORM":
        low, high = o["uniform_minimum"], o["uniform_maximum"]
        return {"y": low + (high - low) * units(dims, **which)}
    words = blocks(dims, **which).astype(np.float64)
    radius = np.sqrt(-2 * np.log((words[..., ::2] + 1) / 2**32))
    angle = 2 * np.pi * np.floor(words[..., 1::2] / 256) / 2**24
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1)
    normal = flat(pairs.reshape(words.shape), dims)
    return {"y": o["normal_mean"] + o["normal_standard_deviation"] * normal}


MOST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0, "i8": 127.0, "i4": 7.0}


def spread(scale: Array, block: list[int], dims: tuple[int, ...]) -> Array:
    """Repeats each block's scale over its elements; the last block may be short."""
    for axis, size in enumerate(block):
        scale = np.repeat(scale, size, axis)
    return scale[tuple(map(slice, dims))]


def block_scale_quantize(o: dict[str, Any], x: Array) -> Results:
    axis, size = o["axis"] % x.ndim, o["block_size"]
    pads = [(0, 0)] * x.ndim
    pads[axis] = (0, -x.shape[axis] % size)
    padded = np.abs(np.pad(x, pads))
    dims = [*padded.shape[:axis], padded.shape[axis] // size, size, *padded.shape[axis + 1 :]]
    wide = padded.reshape(dims).max(axis + 1) / MOST[o["y_type"]]
    if o["scale_type"] == "e8m0":
        wide = np.exp2(np.ceil(np.log2(np.maximum(wide, 2.0**-127))))
    most = {"e4m3": 448.0, "f16": 65504.0}.get(o["scale_type"], np.inf)
    scale = checks.exact(checks.narrow(np.minimum(wide, most), o["scale_type"]))
    block = [1] * x.ndim
    block[axis] = size
    by = spread(scale, block, x.shape)
    return {"y": np.where(by > 0, x / np.where(by > 0, by, 1), 0), "scale": scale}


def block_scale_dequantize(o: dict[str, Any], x: Array, scale: Array) -> Results:
    block = [1] * (x.ndim - len(o["block_size"])) + list(o["block_size"])
    return {"y": x * spread(scale, block, x.shape) * (-1 if o.get("negative_scale") else 1)}


# ---- Attention ---------------------------------------------------------------------------------------------


def unpaged(o: dict[str, Any], pages: Array, table: Array | None) -> Array:
    """The sequences whose pages are in a container [container, heads, page size, depth]."""
    if table is None:
        return pages
    chosen = pages[table[:, 0, :, 0].astype(int)].swapaxes(1, 2)
    batch, heads, _, _, depth = chosen.shape
    return chosen.reshape(batch, heads, -1, depth)[:, :, : o["paged_attention_max_seq_len_kv"]]


def alibi_slopes(heads: int) -> list[float]:
    """The series of the largest power of two, then every other one of twice that."""
    power = 2 ** (heads.bit_length() - 1)
    series = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    return series + [2.0 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]


def factor_of(o: dict[str, Any], others: dict[str, Array]) -> float:
    """The factor of the scores, a value or a tensor."""
    return float(others["attn_scale"].item()) if "attn_scale" in others else o["attn_scale_value"]


def scores_of(o: dict[str, Any], q: Array, k: Array, bias: Array | None, lengths: dict[str, Array]) -> Array:
    """[B, H, Sq, Skv], -inf where a query does not see a key. lengths: also the factor and the block mask."""
    heads, rows, columns = q.shape[1], q.shape[2], k.shape[2]
    s = factor_of(o, lengths) * q @ np.repeat(k, heads // k.shape[1], 1).swapaxes(-1, -2)
    s = s if bias is None else s + bias
    i, j = np.arange(rows)[:, None], np.arange(columns)
    if o.get("use_alibi_mask"):
        s = s + np.array(alibi_slopes(heads)).reshape(1, -1, 1, 1) * (j - i)
    rows_used = lengths.get("seq_len_q", np.full((1, 1, 1, 1), rows))
    columns_used = lengths.get("seq_len_kv", np.full((1, 1, 1, 1), columns))
    shift = columns_used - rows_used if o.get("diagonal_alignment") == BOTTOM_RIGHT else 0
    seen = (i < rows_used) & (j < columns_used)
    if "diagonal_band_right_bound" in o:
        seen = seen & (j <= i + shift + o["diagonal_band_right_bound"])
    if "diagonal_band_left_bound" in o:
        seen = seen & (j > i + shift - o["diagonal_band_left_bound"])
    if "block_mask" in lengths:
        tiles = np.repeat(np.repeat(lengths["block_mask"], 128, -2), 128, -1)
        seen = seen & (tiles[..., :rows, :columns] != 0)
    return np.where(seen, s, -np.inf)


def kept(weights: Array, mask: Array | None) -> Array:
    """Applies a dropout mask to weights; a weight of 0 stays 0."""
    return weights if mask is None else np.where(weights == 0, 0, weights * mask)


def sdpa_fwd(
    o: dict[str, Any],
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None = None,
    sink_token: Array | None = None,
    dropout_mask: Array | None = None,
    paged_attention_k_table: Array | None = None,
    paged_attention_v_table: Array | None = None,
    **lengths: Array,
) -> Results:
    k, v = unpaged(o, k, paged_attention_k_table), unpaged(o, v, paged_attention_v_table)
    s = scores_of(o, q, k, bias, lengths)
    sink = -np.inf if sink_token is None else sink_token
    most = np.maximum(s.max(-1, keepdims=True), sink)
    finite = np.where(np.isinf(most), 0, most)
    weights = np.exp(s - finite)
    total = weights.sum(-1, keepdims=True) + np.exp(sink - finite)
    with np.errstate(divide="ignore"):
        stats = most + np.log(total)
    weights = kept(weights, dropout_mask) / np.where(total > 0, total, 1)
    out = weights @ np.repeat(v, q.shape[1] // v.shape[1], 1)
    return {
        "o": out,
        "stats": np.where(total > 0, stats, -np.inf),
        "score_max": np.broadcast_to(most, stats.shape),
        "score_sum_exp": np.where(np.isinf(most), 0, total),
    }


def gathered(array: Array, heads: int) -> Array:
    """Sums over the query heads that share a head."""
    return array.reshape(array.shape[0], heads, -1, *array.shape[2:]).sum(2)


def sdpa_bwd(
    given: dict[str, Any],
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    dO: Array,
    stats: Array,
    bias: Array | None = None,
    sink_token: Array | None = None,
    dropout_mask: Array | None = None,
    **lengths: Array,
) -> Results:
    s, heads = scores_of(given, q, k, bias, lengths), q.shape[1]
    p = np.where(np.isinf(s), 0, np.exp(s - np.where(np.isinf(stats), 0, stats)))
    dp = dO @ np.repeat(v, heads // v.shape[1], 1).swapaxes(-1, -2)
    dp = dp if dropout_mask is None else np.where(p == 0, 0, dp * dropout_mask)
    delta = (dO * o).sum(-1, keepdims=True)
    ds, scale = p * (dp - delta), factor_of(given, lengths)
    summed = p * (np.abs(dp) + np.abs(dO * o).sum(-1, keepdims=True))
    others: Results = {}
    if bias is not None:
        axes = tuple(i for i, n in enumerate(bias.shape) if n == 1)
        others |= {"dBias": ds.sum(axes, keepdims=True), "summed dBias": summed.sum(axes, keepdims=True)}
    if sink_token is not None:
        share = np.where(np.isinf(stats), 0, np.exp(sink_token - stats)) * delta
        others |= {"dSink_token": -share.sum((0, 2), keepdims=True)}
        others |= {"summed dSink_token": np.abs(share).sum((0, 2), keepdims=True)}
    ds, summed = ds * scale, summed * scale
    keys = np.repeat(k, heads // k.shape[1], 1)
    return {
        "dQ": ds @ keys,
        "summed dQ": summed @ np.abs(keys),
        "dK": gathered(ds.swapaxes(-1, -2) @ q, k.shape[1]),
        "summed dK": gathered(summed.swapaxes(-1, -2) @ np.abs(q), k.shape[1]),
        "dV": gathered(kept(p, dropout_mask).swapaxes(-1, -2) @ dO, v.shape[1]),
    } | others


DEFINITIONS: dict[str, Callable[..., Results]] = {
    "pointwise": pointwise,
    "matmul": matmul,
    "conv_fprop": conv_fprop,
    "conv_dgrad": conv_dgrad,
    "conv_wgrad": conv_wgrad,
    "resample": resample,
    "resample_backward": resample_backward,
    "grid_sample": grid_sample,
    "grid_sample_backward": grid_sample_backward,
    "norm": norm,
    "norm_backward": norm_backward,
    "genstats": genstats,
    "bn_finalize": bn_finalize,
    "dbn_weight": dbn_weight,
    "softmax": softmax,
    "reduction": reduction,
    "reshape": reshape,
    "transpose": transpose,
    "slice": cut,
    "concat": concat,
    "paged_cache_load": paged_cache_load,
    "diagonal_band_mask": diagonal_band_mask,
    "recurrence": recurrence,
    "causal_conv1d": causal_conv1d,
    "causal_conv1d_backward": causal_conv1d_backward,
    "rng": rng,
    "block_scale_quantize": block_scale_quantize,
    "block_scale_dequantize": block_scale_dequantize,
    "sdpa_fwd": sdpa_fwd,
    "sdpa_bwd": sdpa_bwd,
    "moe_grouped_matmul": moe_grouped_matmul,
    "moe_grouped_matmul_bwd": moe_grouped_matmul_bwd,
}
