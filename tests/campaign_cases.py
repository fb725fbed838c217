# SPDX-License-Identifier: Apache-2.0
"""The random cases of tests/campaign.py: one function per kernel family, each with its reference in float64.

A family function receives a Sketch, draws sizes and options from its random numbers, adds operations to its
graph, and declares results with the values that they must have. Sizes are near the thresholds of the kernels:
powers of two, multiples of tiles, and one more or less.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
import weft

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where references are computed
TYPES = {
    "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i32": torch.int32, "i8": torch.int8,
    "u8": torch.uint8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
}  # fmt: skip
# Largest error of a result, as a share of the element's magnitude plus that of its row: rounding of 16-bit
# operands and results, or TF32 for f32. A wrong index is off by about 1.
TOLERANCE = {"bf16": 0.03, "f16": 0.008, "f32": 0.008, "e4m3": 0.15, "e5m2": 0.3}
TRAINING, INFERENCE = weft.norm_forward_phase.TRAINING, weft.norm_forward_phase.INFERENCE
SIZES = (
    1, 2, 3, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 56, 63, 64, 65, 72, 77, 80, 96, 100,
    112, 120, 127, 128, 129, 144, 160, 191, 192, 193, 197, 200, 224, 240, 255, 256, 257, 288, 320, 333,
    384, 448, 511, 512, 513, 577, 640, 707, 768, 896, 1000, 1023, 1024, 1025, 1030, 1152, 1280, 1536,
    1999, 2048, 2049, 2051, 2560, 3072, 3333, 4095, 4096,
)  # fmt: skip
WIDE = (4097, 5000, 8191, 8192, 8193, 16384, 16385, 30522, 32000, 50257, 51865, 65537, 131072)
HEADS = tuple(range(8, 257, 8))


@dataclass
class Operand:
    """An input: its tensor of the graph, its layout in memory, and its values, rounded to its type."""

    tensor: Any
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    shift: int
    values: torch.Tensor


@dataclass
class Result:
    """An output: its tensor of the graph, and the float64 values that it must have."""

    tensor: Any
    dims: tuple[int, ...]
    dtype: str
    shift: int
    want: torch.Tensor
    tolerance: float
    floor: float
    name: str


@dataclass
class Case:
    """A graph with its inputs and expected outputs."""

    number: int
    family: str
    graph: weft.Graph
    random: random.Random
    operands: list[Operand] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_default: bool = True  # planned with the default options

    def __str__(self) -> str:
        return " ".join([self.family, *self.notes])

    def build(self) -> weft.Graph:
        """Plans the graph: mostly with default options, otherwise on some engine with a random knob."""
        graph, r = self.graph, self.random
        engines = [each["engine"] for each in graph.support()]
        usable = [i for i, name in enumerate(engines) if name.startswith("cuda")]
        if r.random() < 0.6 or not usable:
            graph.build()
            return graph
        engine = r.choice(usable)
        knobs = graph.get_knobs_for_engine(engine)
        chosen = {}
        if knobs:
            knob = r.choice(knobs)
            chosen = {knob.type: r.randrange(knob.min, knob.max + 1, max(knob.stride, 1))}
        try:
            graph.create_execution_plan(engine, chosen)
            graph.build_plan_at_index(0)
            self.is_default = False
            self.notes.append(f"on {engines[engine]} {chosen or ''}".rstrip())
        except (weft.NotSupportedError, weft.BadParameterError):
            graph.build()
        return graph


class Sketch:
    """A case under construction. `r` draws sizes and options; `limit` bounds the work of the case."""

    def __init__(self, number: int, limit: float, family: str) -> None:
        self.r, self.limit = random.Random(number), limit
        self.elements = min(limit / 10, 2e7)  # of the largest tensor that is not an operand of a product
        self.numbers = torch.Generator(DEVICE).manual_seed(number)
        self.type = self.r.choice(("bf16", "bf16", "f16", "f32"))
        types = {"io_data_type": self.type, "intermediate_data_type": "f32", "compute_data_type": "f32"}
        self.case = Case(number, family, weft.Graph(**types), self.r)
        self.g: Any = self.case.graph
        self.note(self.type)

    # -- Choices --

    def note(self, *words: Any) -> None:
        """Adds to the description of the case."""
        self.case.notes += [str(word).replace(" ", "") for word in words]

    def chance(self, share: float) -> bool:
        return self.r.random() < share

    def one(self, *options: Any) -> Any:
        return self.r.choice(options)

    def size(self, most: float = 4096, least: int = 1) -> int:
        """An extent; small and large ones are equally likely."""
        fitting = [n for n in SIZES if least <= n <= max(most, least)]
        return self.r.choice(fitting) if fitting else least

    def sizes(self, count: int, limit: float, most: float = 4096) -> list[int]:
        """Extents, in random order, whose product is at most the limit."""
        found = []
        for i in range(count):
            left = limit / math.prod(found)
            found.append(self.size(min(most, left if i == count - 1 else max(left / 8, 1))))
        self.r.shuffle(found)
        return found

    # -- Tensors --

    def strides(self, dims: Sequence[int], order: Sequence[int] | None, gap: int) -> tuple[int, ...]:
        """Strides of a memory order (slowest dimension first), with a gap after each row."""
        strides, step = [0] * len(dims), 1
        for i, dim in enumerate(reversed(order or range(len(dims)))):
            strides[dim] = step
            step = step * dims[dim] + (gap if i == 0 else 0)
        return tuple(strides)

    def layout(self, dims: Sequence[int], order: Sequence[int] | None) -> tuple[tuple[int, ...], int]:
        """Strides and an offset in elements: mostly packed and aligned."""
        gap = self.one(0, 0, 0, 0, 0, 1, 8, 24) if len(dims) > 1 else 0
        return self.strides(dims, order, gap), self.one(0, 0, 0, 0, 0, 0, 1, 3, 8)

    def random(self, dims: Sequence[int], dtype: str, scale: float = 1.0) -> torch.Tensor:
        """Normal numbers, rounded to a type, as float64."""
        values = torch.randn(tuple(dims), generator=self.numbers, device=DEVICE) * scale
        return values.to(TYPES[dtype]).double()

    def put(
        self, values: torch.Tensor, dtype: str = "", order: Sequence[int] | None = None, packed: bool = False
    ) -> Any:
        """Adds an input with these values and returns its tensor."""
        dtype, dims = dtype or self.type, tuple(values.shape)
        strides, shift = (self.strides(dims, order, 0), 0) if packed else self.layout(dims, order)
        tensor = self.g.tensor(list(dims), list(strides), data_type=dtype)
        self.case.operands.append(Operand(tensor, dims, strides, dtype, shift, values))
        return tensor

    def input(
        self,
        *dims: int,
        dtype: str = "",
        scale: float = 1.0,
        order: Sequence[int] | None = None,
        add: float = 0,
    ) -> tuple[Any, torch.Tensor]:
        """Adds an input of normal numbers and returns its tensor and its values."""
        dtype = dtype or self.type
        values = (self.random(dims, dtype, scale) + add).to(TYPES[dtype]).double()
        return self.put(values, dtype, order), values

    def integers(self, values: Any, *dims: int) -> Any:
        """Adds an input of int32 numbers."""
        data = torch.as_tensor(values, dtype=torch.int32, device=DEVICE).reshape(dims)
        return self.put(data, "i32", packed=True)

    def result(
        self, tensor: Any, want: torch.Tensor, dtype: str = "", tolerance: float = 0, name: str = "",
        order: Sequence[int] | None = None, floor: float = 0,
    ) -> None:  # fmt: skip
        """Declares an output, its expected values, and the error that is allowed: relative, and absolute."""
        dtype, dims = dtype or self.type, tuple(want.shape)
        strides, shift = self.layout(dims, order)
        tensor.set_output(True).set_data_type(dtype).set_dim(list(dims)).set_stride(list(strides))
        tolerance = tolerance or max(TOLERANCE[dtype], TOLERANCE[self.type])
        name = name or f"result {len(self.case.results)}"
        self.case.results.append(Result(tensor, dims, dtype, shift, want, tolerance, floor, name))


# ---- Matrix products ---------------------------------------------------------------------------------------


def epilogue(s: Sketch, y: Any, want: torch.Tensor, channels: int) -> tuple[Any, torch.Tensor]:
    """Up to three pointwise operations that follow a product or a convolution."""
    for kind in s.r.sample(("scale", "bias", "relu", "gelu", "add", "swish"), s.one(0, 0, 1, 2, 3)):
        s.note(kind)
        dims = [n if i == channels else 1 for i, n in enumerate(want.shape)]
        if kind == "scale":
            operand, values = s.input(*dims)
            y, want = s.g.mul(y, operand), want * values
        elif kind == "bias":
            operand, values = s.input(*dims)
            y, want = s.g.add(y, operand), want + values
        elif kind == "add":
            operand, values = s.input(*want.shape)
            y, want = s.g.add(y, operand), want + values
        elif kind == "relu":
            y, want = s.g.relu(y), F.relu(want)
        elif kind == "gelu":
            y, want = s.g.gelu(y), F.gelu(want)
        else:
            y, want = s.g.swish(y), F.silu(want)
    return y, want


def matmul(s: Sketch) -> None:
    """Products, batched and broadcast, with operands in either order."""
    batches = s.one([], [], [], [s.size(300)], [s.one(1, 2, 3), s.size(40)])
    m, n, k = s.sizes(3, s.limit / max(math.prod(batches), 1))
    if s.chance(0.1):
        m, k = s.size(64), s.one(7168, 8192, 16384)
        n = s.size(max(s.limit / (m * k * max(math.prod(batches), 1)), 1))
    s.note(batches, m, n, k)
    rank = len(batches) + 2
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    orders = [s.one(None, swapped) for _ in "ab"]
    s.note("".join("t" if order else "n" for order in orders))
    shared = s.chance(0.2)
    a, x = s.input(*batches, m, k, order=orders[0])
    b, w = s.input(*[1 if shared else n for n in batches], k, n, scale=k**-0.5, order=orders[1])
    if s.chance(0.15):
        s.note("prologue")
        bias, v = s.input(*[1] * len(batches), 1, k)
        a, x = s.g.relu(s.g.add(a, bias)).set_data_type(s.type), F.relu(x + v)
    y, want = epilogue(s, s.g.matmul(a, b), x @ w, rank - 1)
    s.result(y, want, dtype=s.one(s.type, s.type, "f32"), order=s.one(None, None, swapped))


def experts(s: Sketch) -> None:
    """Products of groups of rows, one group per expert; some groups are empty."""
    count, tokens = s.size(64), s.size(4096)
    k, n = s.sizes(2, s.limit / max(tokens, count), 2048)
    s.note(count, tokens, k, n)
    cuts = sorted(s.r.randint(0, tokens) for _ in range(count - 1))
    first, end = [0, *cuts], [*cuts, tokens]
    offsets = s.integers(first, count, 1, 1)
    if s.chance(0.3):
        s.note("weight gradient")
        x, a = s.input(1, tokens, k)
        dy, d = s.input(1, tokens, n, scale=tokens**-0.5)
        want = torch.stack([a[0, i:j].T @ d[0, i:j] for i, j in zip(first, end, strict=True)])
        # The operation returns [experts, K, N] if its operands' rows are contiguous.
        made = s.g.moe_grouped_matmul_bwd(dy, x, offsets).set_dim([count, k, n])
        s.result(made, want, dtype="f32")
        return
    x, a = s.input(1, tokens, k)
    w, b = s.input(count, k, n, scale=k**-0.5, order=s.one(None, [0, 2, 1]))
    want = torch.cat([a[0, i:j] @ b[e] for e, (i, j) in enumerate(zip(first, end, strict=True))])[None]
    s.result(s.g.moe_grouped_matmul(x, w, offsets), want)


def scaled_product(s: Sketch) -> None:
    """Weights of FP8 or int8 with one scale per block of K."""
    dtype, block = s.one("e4m3", "i8"), s.one(32, 64, 128)
    m, n = s.size(600), s.size(2048)
    k = block * max(1, s.size(min(4096, s.limit / (m * n))) // block)
    s.note(dtype, m, n, k, block)
    a, x = s.input(m, k)
    values = torch.randint(-8, 9, (k, n), generator=s.numbers, device=DEVICE).double()
    w = s.put(values, dtype, order=[1, 0], packed=True)
    scale, v = s.input(k // block, n, scale=0.05 * k**-0.5, add=0.2 * k**-0.5)
    wide = values * v.repeat_interleave(block, 0)
    s.result(s.g.matmul(a, s.g.block_scale_dequantize(w, scale, [block, 1])), x @ wide)


# ---- Convolutions ------------------------------------------------------------------------------------------

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def convolution(s: Sketch) -> None:
    """Forward and both gradients; grouped, depthwise, strided and dilated, of 1 to 3 dimensions."""
    spatial = s.one(1, 2, 2, 2, 2, 3)
    groups = s.one(1, 1, 1, 2, 4, 0)
    if groups == 0:  # depthwise
        groups = s.size(512)
        c, k = groups, groups * s.one(1, 1, 2)
    else:
        c, k = (groups * s.size(512 // groups) for _ in "ck")
    taps = (
        [s.one(1, 1, 2, 3, 3, 5, 7) for _ in range(spatial)]
        if s.chance(0.4)
        else [s.one(1, 3, 3, 5)] * spatial
    )
    stride, dilation = [s.one(1, 1, 1, 2, 3)] * spatial, [s.one(1, 1, 1, 1, 2)] * spatial
    left = max(s.limit / (c * k / groups * math.prod(taps)), 1)
    batch = s.size(min(64, left))
    side = [
        s.size(min(4096 if spatial == 1 else 256, max(left / batch, 1) ** (1 / spatial)), 1) for _ in taps
    ]
    reach = [d * (t - 1) + 1 for d, t in zip(dilation, taps, strict=True)]
    pad = [s.one(0, r // 2, r // 2, r - 1) for r in reach]
    side = [max(n, r - 2 * p, 1) for n, r, p in zip(side, reach, pad, strict=True)]
    out = [(n + 2 * p - r) // t + 1 for n, p, r, t in zip(side, pad, reach, stride, strict=True)]
    last = [0, *range(2, spatial + 2), 1]
    order = last if s.chance(0.7) else None
    kind = s.one("fprop", "dgrad", "wgrad")
    s.note(kind, batch, c, side, k, taps, f"g{groups}s{stride}d{dilation}p{pad}", "nhwc" if order else "nchw")
    how = {"padding": pad, "stride": stride, "dilation": dilation}
    forward = CONVOLUTIONS[spatial]
    image, filters, size = [batch, c, *side], [k, c // groups, *taps], [batch, k, *out]
    depth = c // groups * math.prod(taps)
    x, w = None, None
    if kind != "dgrad":
        x, a = s.input(*image, order=order)
    if kind != "wgrad":
        w, b = s.input(*filters, order=order, scale=depth**-0.5)
    if kind == "fprop":
        want = forward(a, b, None, stride, pad, dilation, groups)
        y, want = epilogue(s, s.g.conv_fprop(x, w, **how), want, 1)
        s.result(y, want, order=order)
        return
    scale = 1.0 if kind == "dgrad" else (batch * math.prod(out)) ** -0.5
    dy, d = s.input(*size, order=order, scale=scale)
    if kind == "dgrad":
        leaf = torch.zeros(image, dtype=torch.float64, device=DEVICE, requires_grad=True)
        made, other = s.g.conv_dgrad(dy, w, **how), b
    else:
        leaf = torch.zeros(filters, dtype=torch.float64, device=DEVICE, requires_grad=True)
        made, other = s.g.conv_wgrad(x, dy, **how), a
    pair = (leaf, other) if kind == "dgrad" else (other, leaf)
    (want,) = torch.autograd.grad(forward(*pair, None, stride, pad, dilation, groups), leaf, d)
    s.result(made, want, dtype=s.one(s.type, "f32"), order=order)


def causal_convolution(s: Sketch) -> None:
    """Depthwise causal convolution over a sequence, with SiLU."""
    batch, channels, steps = s.size(8), *s.sizes(2, s.elements / 8)
    taps = s.one(2, 3, 4)
    s.note(batch, channels, steps, taps)
    x, a = s.input(batch, channels, steps, order=s.one(None, [0, 2, 1]))
    w, b = s.input(channels, taps)
    bias, v = s.input(channels)
    want = F.silu(F.conv1d(F.pad(a, (taps - 1, 0)), b[:, None], v, groups=channels))
    s.result(s.g.causal_conv1d(x, w, bias, activation="SWISH_FWD"), want, order=s.one(None, [0, 2, 1]))


def recurrent_layer(s: Sketch) -> None:
    """The steps of a recurrent layer, whose input weights are those of the identity in torch."""
    mode, gates = s.one(("TANH", 1), ("LSTM", 4), ("GRU", 3))
    steps, units = s.one(1, 2, 5, 17), s.size(512)
    batch = s.size(s.limit / (steps * gates * units * units))
    s.note(mode, steps, batch, units)
    x, a = s.input(steps, batch, gates * units, order=s.one(None, [1, 0, 2]))
    w, b = s.input(gates * units, units, scale=units**-0.5)
    hx, h = s.input(batch, units)
    identity = torch.eye(gates * units, dtype=torch.float64, device=DEVICE)
    run = {"TANH": torch.rnn_tanh, "LSTM": torch.lstm, "GRU": torch.gru}[mode]
    states: Any = [h[None], torch.zeros_like(h[None])] if mode == "LSTM" else h[None]
    want = run(a, states, [identity, b], False, 1, 0.0, False, False, False)[0]
    y, *others = s.g.recurrence(x, w, None, hx, mode=mode)
    for other in others:
        if other is not None:
            other.set_output(False)
    s.result(y, want, order=s.one(None, [1, 0, 2]))


# ---- Attention ---------------------------------------------------------------------------------------------


@dataclass
class Scores:
    """Which attention scores take part, and the values added to them."""

    options: dict[str, Any]
    seen: torch.Tensor
    added: torch.Tensor | None = None
    used_queries: torch.Tensor | None = None
    used_keys: torch.Tensor | None = None


def masks(s: Sketch, batch: int, heads: int, queries: int, keys: int) -> Scores:
    """A causal mask or a window, lengths of sequences, and a bias, each with some chance."""
    i = torch.arange(queries, device=DEVICE).view(1, 1, -1, 1)
    j = torch.arange(keys, device=DEVICE).view(1, 1, 1, -1)
    options: dict[str, Any] = {}
    scores = Scores(options, torch.ones(batch, 1, queries, keys, dtype=torch.bool, device=DEVICE))
    used_q = torch.full((batch, 1, 1, 1), queries, device=DEVICE)
    used_k = torch.full((batch, 1, 1, 1), keys, device=DEVICE)
    if s.chance(0.3):
        lengths = [[s.r.randint(0, n) for _ in range(batch)] for n in (queries, keys)]
        s.note("lengths", lengths)
        tensors = [s.integers(each, batch, 1, 1, 1) for each in lengths]
        options |= {"use_padding_mask": True, "seq_len_q": tensors[0], "seq_len_kv": tensors[1]}
        used_q, used_k = (torch.tensor(each, device=DEVICE).view(batch, 1, 1, 1) for each in lengths)
        scores.used_queries, scores.used_keys = i < used_q, j < used_k
        scores.seen = scores.seen & (i < used_q) & (j < used_k)
    if s.chance(0.5):
        bottom = s.chance(0.5)
        shift = used_k - used_q if bottom else torch.zeros_like(used_k)
        options["diagonal_alignment"] = "BOTTOM_RIGHT" if bottom else "TOP_LEFT"
        options["diagonal_band_right_bound"] = 0
        scores.seen = scores.seen & (j <= i + shift)
        s.note("causal", "br" if bottom else "tl")
        if s.chance(0.4):
            window = s.size(max(keys, 2), 1)
            options["diagonal_band_left_bound"] = window
            scores.seen = scores.seen & (j > i + shift - window)
            s.note("window", window)
    if s.chance(0.2):
        dims = [s.one(1, batch), s.one(1, heads), s.one(queries, queries, 1), keys]
        options["bias"], scores.added = s.input(*dims)
        s.note("bias", dims)
    return scores


def softmax_of(scores: Scores, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights, 0 in rows that see nothing, and the logarithm of the sums, -inf there."""
    if scores.added is not None:
        x = x + scores.added
    x = x.masked_fill(~scores.seen, -math.inf)
    most = x.amax(-1, keepdim=True)
    e = torch.exp(x - most.masked_fill(most.isinf(), 0))
    total = e.sum(-1, keepdim=True)
    return e / total.clamp_min(1e-300), torch.where(total > 0, most + torch.log(total), -math.inf)


def head_sizes(s: Sketch) -> tuple[int, int]:
    size = s.r.choice(HEADS)
    return s.one((size, size), (size, size), (size, s.r.choice(HEADS)), (192, 128), (128, 128), (64, 64))


def attention_sizes(s: Sketch) -> tuple[int, int, int, int, int, int, int]:
    d, dv = head_sizes(s)
    groups, shared = s.one(1, 1, 2, 3), s.one(1, 1, 2, 4, 8)
    batch = s.one(1, 2, 3)
    left = min(s.limit / (d + dv), s.elements) / (batch * groups * shared)
    queries = s.size(min(4096, max(left / 64, 1)))
    keys = s.size(min(4096, max(left / queries, 1)))
    s.note(f"d{d}/{dv}", f"h{groups * shared}/{groups}", f"b{batch}", f"{queries}x{keys}")
    return batch, groups * shared, groups, queries, keys, d, dv


def attention(s: Sketch) -> None:
    """Forward, with or without statistics."""
    if s.type == "f32":
        s.limit /= 8
    batch, heads, groups, queries, keys, d, dv = attention_sizes(s)
    order = s.one(None, [0, 2, 1, 3])
    q, a = s.input(batch, heads, queries, d, order=order)
    k, b = s.input(batch, groups, keys, d, order=order)
    v, c = s.input(batch, groups, keys, dv, order=order)
    scores = masks(s, batch, heads, queries, keys)
    repeat = heads // groups
    x = a @ b.repeat_interleave(repeat, 1).transpose(-1, -2) * d**-0.5
    p, stats = softmax_of(scores, x)
    want = p @ c.repeat_interleave(repeat, 1)
    with_stats = s.chance(0.5)
    o, made = s.g.sdpa(q, k, v, attn_scale=d**-0.5, generate_stats=with_stats, **scores.options)
    s.result(o, want, name="o", order=order)
    if with_stats:
        s.result(made, stats, dtype="f32", tolerance=0.02, name="stats")


def attention_gradient(s: Sketch) -> None:
    """Gradients of q, k and v."""
    s.limit /= 32 if s.type == "f32" else 4
    batch, heads, groups, queries, keys, d, dv = attention_sizes(s)
    order = s.one(None, [0, 2, 1, 3])
    q, a = s.input(batch, heads, queries, d, order=order)
    k, b = s.input(batch, groups, keys, d, order=order)
    v, c = s.input(batch, groups, keys, dv, order=order)
    scores = masks(s, batch, heads, queries, keys)
    for leaf in (a, b, c):
        leaf.requires_grad_()
    repeat = heads // groups
    x = a @ b.repeat_interleave(repeat, 1).transpose(-1, -2) * d**-0.5
    p, stats = softmax_of(scores, x)
    o = p @ c.repeat_interleave(repeat, 1)
    d_o, e = s.input(batch, heads, queries, dv, order=order)
    wants = torch.autograd.grad(o, (a, b, c), e)
    rounded = o.detach().to(TYPES[s.type]).double()
    found = s.g.sdpa_backward(
        q, k, v, s.put(rounded, order=order), d_o, s.put(stats.detach(), "f32"), attn_scale=d**-0.5,
        use_deterministic_algorithm=True, **scores.options,
    )  # fmt: skip
    for leaf in (a, b, c):
        leaf.requires_grad_(False)
    # dS = P (dP - rowsum(O dO)) cancels where the softmax is saturated. Its error is that of dP: sqrt(dv).
    floor = TOLERANCE[s.type] / 4 * max(dv / d, 1) ** 0.5
    for name, tensor, want in zip(("dq", "dk", "dv"), found, wants, strict=True):
        s.result(tensor, want, name=name, order=order, tolerance=2 * TOLERANCE[s.type], floor=floor)


def decode(s: Sketch) -> None:
    """Few queries over long caches, with lengths, in pages or in one piece."""
    s.type = s.type if s.type != "f32" else "bf16"
    s.limit /= 8
    d, dv = head_sizes(s)
    groups, shared, batch, queries = (
        s.one(1, 2, 8),
        s.one(1, 4, 8),
        s.one(1, 1, 2, 7),
        s.one(1, 1, 1, 2, 4, 8),
    )
    heads = groups * shared
    most = max(s.limit / (d + dv) / (batch * heads * queries), 16)
    keys = s.one(*[n for n in (16, 77, 100, 256, 777, 1024, 1025, 4096, 5000, 16384) if n <= most] or [16])
    lengths = [s.r.randint(0, keys) if s.chance(0.5) else keys for _ in range(batch)]
    page = s.one(0, 0, 1, 8, 16, 64, 128)
    s.note(f"d{d}/{dv}", f"h{heads}/{groups}", f"b{batch}", f"{queries}x{keys}", f"page{page}", lengths)
    q, a = s.input(batch, heads, queries, d, dtype=s.type)
    b, c = (s.random((batch, groups, keys, n), s.type) for n in (d, dv))
    options: dict[str, Any] = {"seq_len_kv": s.integers(lengths, batch, 1, 1, 1)}
    if page:
        count = -(-keys // page)
        container = batch * count + 3
        order = s.r.sample(range(container), batch * count)
        table = torch.tensor(order, device=DEVICE).view(batch, count)
        pages = []
        for values in (b, c):
            pool = s.random((container, groups, page, values.shape[-1]), s.type)
            padded = F.pad(values, (0, 0, 0, count * page - keys))
            blocks = padded.view(batch, groups, count, page, -1).transpose(1, 2)
            pool[table.reshape(-1)] = blocks.reshape(batch * count, groups, page, -1)
            pages.append(s.put(pool, s.type, packed=True))
        tables = [s.integers(table.cpu().tolist(), batch, 1, count, 1) for _ in "kv"]
        options |= {"paged_attention_k_table": tables[0], "paged_attention_v_table": tables[1]}
        options["paged_attention_max_seq_len_kv"] = keys
        k, v = pages
    else:
        k, v = s.put(b, s.type), s.put(c, s.type)
    if s.chance(0.3) and queries > 1:
        options |= {"diagonal_alignment": "BOTTOM_RIGHT", "diagonal_band_right_bound": 0}
        s.note("causal")
    used = torch.tensor(lengths, device=DEVICE).view(batch, 1, 1, 1)
    i = torch.arange(queries, device=DEVICE).view(1, 1, -1, 1)
    j = torch.arange(keys, device=DEVICE).view(1, 1, 1, -1)
    seen = (j < used).expand(batch, 1, queries, keys)
    if "diagonal_alignment" in options:
        seen = seen & (j <= i + used - queries)
    x = a @ b.repeat_interleave(shared, 1).transpose(-1, -2) * d**-0.5
    p, _ = softmax_of(Scores({}, seen), x)
    o, _ = s.g.sdpa(q, k, v, attn_scale=d**-0.5, use_padding_mask=False, **options)
    s.result(o, p @ c.repeat_interleave(shared, 1), dtype=s.type, name="o", tolerance=TOLERANCE[s.type])


# ---- Rows --------------------------------------------------------------------------------------------------


def row_sizes(s: Sketch) -> tuple[int, int]:
    """Rows and columns; wide rows are as likely as narrow ones."""
    columns = s.r.choice(WIDE) if s.chance(0.3) else s.size()
    columns = min(columns, int(s.elements))
    return s.size(max(s.elements / columns, 1)), columns


def softmax(s: Sketch) -> None:
    """Softmax, also with a causal mask made of indices, over any axis."""
    rows, columns = row_sizes(s)
    s.note(rows, columns)
    x, a = s.input(rows, columns, scale=3)
    if s.chance(0.3):
        s.note("causal")
        keep = s.g.cmp_ge(s.g.gen_index(x, axis=0), s.g.gen_index(x, axis=1))
        x = s.g.binary_select(x, -1e4, keep)
        a = a.masked_fill(~torch.ones_like(a, dtype=torch.bool).tril(), -1e4)
    axis = s.one(1, 1, 1, 0)
    s.result(s.g.softmax(x, axis=axis), torch.softmax(a, axis))


def cross_entropy(s: Sketch) -> None:
    """The loss of each row for a label, found by comparing indices."""
    rows, columns = row_sizes(s)
    s.note(rows, columns)
    x, a = s.input(rows, columns, scale=3)
    labels = torch.randint(0, columns, (rows, 1), generator=s.numbers, device=DEVICE)
    labels[0], labels[-1] = 0, columns - 1
    label = s.integers(labels.cpu().tolist(), rows, 1)
    top = s.g.reduction(x, "MAX", dims=[1])
    shifted = s.g.sub(x, top)
    total = s.g.log(s.g.reduction(s.g.exp(shifted), "ADD", dims=[1]))
    is_label = s.g.cmp_eq(s.g.gen_index(x, axis=1).set_data_type("i32"), label)
    own = s.g.reduction(s.g.binary_select(shifted, 0.0, is_label), "ADD", dims=[1])
    want = F.cross_entropy(a, labels[:, 0], reduction="none")[:, None]
    s.result(s.g.sub(total, own), want, dtype="f32", tolerance=2e-3)


def norm(s: Sketch) -> None:
    """Layer norm and RMS norm, forward and backward, with statistics."""
    rows, columns = row_sizes(s)
    kind, backward = s.one("layer", "rms"), s.chance(0.5)
    s.note(kind, "backward" if backward else "forward", rows, columns)
    x, a = s.input(rows, columns, add=s.one(0.0, 0.5))
    types = s.one(s.type, "f32")
    scale, v = s.input(1, columns, dtype=types, add=1)
    is_layer = kind == "layer"
    mean = a.mean(1, keepdim=True) if is_layer else torch.zeros(rows, 1, dtype=torch.float64, device=DEVICE)
    inverse = ((a - mean).square().mean(1, keepdim=True) + 1e-5).rsqrt()
    normal = (a - mean) * inverse
    if not backward:
        bias, b = s.input(1, columns, dtype=types)
        has_bias = is_layer or s.chance(0.3)
        if is_layer:
            y, *stats = s.g.layernorm(TRAINING, x, scale, bias, 1e-5)
            s.result(stats[0], mean, dtype="f32", tolerance=0.02, name="mean")
        else:
            y, *stats = s.g.rmsnorm(TRAINING, x, scale, bias if has_bias else None, 1e-5)
            if not has_bias:
                s.case.operands.pop()
        s.result(stats[-1], inverse, dtype="f32", tolerance=2e-3, name="inv_variance")
        s.result(y, normal * v + (b if has_bias else 0), name="y")
        return
    dy, d = s.input(rows, columns)
    saved = s.put(inverse, "f32")
    g = d * v
    dx = inverse * (
        g - (g.mean(1, keepdim=True) if is_layer else 0) - normal * (g * normal).mean(1, keepdim=True)
    )
    if is_layer:
        found = s.g.layernorm_backward(dy, x, scale, s.put(mean, "f32"), saved)
    else:
        found = s.g.rmsnorm_backward(dy, x, scale, saved, has_dbias=s.chance(0.5))
    wants = (dx, (d * normal).sum(0, keepdim=True), d.sum(0, keepdim=True))
    for name, tensor, want in zip(("dx", "dscale", "dbias"), found, wants, strict=True):
        if tensor is not None:
            s.result(tensor, want, dtype="f32" if name != "dx" else "", name=name, floor=1e-3)


REDUCTIONS = {
    "ADD": lambda x, d: x.sum(d, keepdim=True), "AVG": lambda x, d: x.mean(d, keepdim=True),
    "MAX": lambda x, d: x.amax(d, keepdim=True), "MIN": lambda x, d: x.amin(d, keepdim=True),
    "AMAX": lambda x, d: x.abs().amax(d, keepdim=True), "NORM1": lambda x, d: x.abs().sum(d, keepdim=True),
    "NORM2": lambda x, d: x.square().sum(d, keepdim=True).sqrt(),
}  # fmt: skip


def reduction(s: Sketch) -> None:
    """Reductions over any dimensions, of a formula of the input."""
    rank = s.one(1, 2, 2, 3, 4)
    dims = s.sizes(rank, s.elements, 70000)
    over = sorted(s.r.sample(range(rank), s.r.randint(1, rank)))
    mode = s.r.choice(list(REDUCTIONS))
    s.note(mode, dims, over)
    x, a = s.input(*dims, order=s.r.sample(range(rank), rank))
    if s.chance(0.4):
        s.note("squared")
        x, a = s.g.mul(x, x), a * a
    s.result(s.g.reduction(x, mode, dims=over), REDUCTIONS[mode](a, over), dtype="f32", tolerance=4e-3)


# ---- Channels ----------------------------------------------------------------------------------------------


def channel_norm(s: Sketch) -> None:
    """Batch, instance and group norm, forward and backward, over images in either layout."""
    kind, backward = s.one("batch", "instance", "group"), s.chance(0.5)
    groups = s.one(1, 2, 4, 8, 32) if kind == "group" else 1
    c = groups * s.size(1024 // groups)
    batch, h, w = s.sizes(3, max(s.elements / c, 4), 512)
    order = s.one([0, 2, 3, 1], [0, 2, 3, 1], None)
    s.note(
        kind, "backward" if backward else "forward", f"g{groups}", batch, c, h, w, "nhwc" if order else "nchw"
    )
    dims, one = [batch, c, h, w], [1, c, 1, 1]
    x, a = s.input(*dims, order=order, add=s.one(0.0, 0.5))
    scale, v = s.input(*one, dtype="f32", add=1)
    shape = {"batch": [1, c, 1, 1], "instance": [batch, c, 1, 1], "group": [batch, groups, 1, 1]}[kind]
    view = a.view(batch, groups, c // groups, h, w) if kind == "group" else a
    over = {"batch": [0, 2, 3], "instance": [2, 3], "group": [2, 3, 4]}[kind]
    mean = view.mean(over, keepdim=True)
    inverse = ((view - mean).square().mean(over, keepdim=True) + 1e-4).rsqrt()
    normal = ((view - mean) * inverse).view(dims)
    extra = {"groups": groups} if kind == "group" else {}
    if not backward:
        bias, b = s.input(*one, dtype="f32")
        if kind == "batch":
            y, saved_mean, saved_inverse, *_ = s.g.batchnorm(x, scale, bias, None, None, 1e-4, None)
        else:
            forward = s.g.instancenorm if kind == "instance" else s.g.groupnorm
            y, saved_mean, saved_inverse = forward(TRAINING, x, scale, bias, 1e-4, **extra)
        want = normal * v + b
        if s.chance(0.4):
            y, want = s.g.relu(y), F.relu(want)
        s.result(y, want, name="y", order=order)
        s.result(saved_mean, mean.view(shape), dtype="f32", tolerance=0.02, name="mean")
        s.result(saved_inverse, inverse.view(shape), dtype="f32", tolerance=4e-3, name="inv_variance")
        return
    dy, d = s.input(*dims, order=order)
    saved = [s.put(each.view(shape), "f32") for each in (mean, inverse)]
    leaf = view.clone().requires_grad_()
    moving = leaf.mean(over, keepdim=True)
    y = (leaf - moving) * ((leaf - moving).square().mean(over, keepdim=True) + 1e-4).rsqrt()
    (dx,) = torch.autograd.grad(y.view(dims) * v, leaf, d)
    function = getattr(s.g, f"{kind}norm_backward")
    found = function(dy, x, scale, *saved, **extra)
    wants = (dx.reshape(dims), (d * normal).sum([0, 2, 3], keepdim=True), d.sum([0, 2, 3], keepdim=True))
    for name, tensor, want in zip(("dx", "dscale", "dbias"), found, wants, strict=True):
        s.result(tensor, want, dtype="f32" if name != "dx" else "", name=name, order=order, floor=1e-3)


# ---- Pooling and data movement -----------------------------------------------------------------------------


def pooling(s: Sketch) -> None:
    """Maxima and means over windows, and their gradients."""
    c = s.size(512)
    batch, h, w = s.sizes(3, max(s.elements / c, 9), 512)
    window = [min(s.one(1, 2, 3, 3, 5, 7), n) for n in (h, w)]
    stride = [s.one(1, 2, 2, 3)] * 2
    pad = [n // 2 if s.chance(0.5) else 0 for n in window]
    mode, backward = s.one("MAXPOOL", "AVGPOOL_INCLUDE_PADDING", "AVGPOOL_EXCLUDE_PADDING"), s.chance(0.5)
    order = s.one([0, 2, 3, 1], [0, 2, 3, 1], None)
    dims = [batch, c, h, w]
    s.note(
        mode, "backward" if backward else "forward", dims, window, stride, pad, "nhwc" if order else "nchw"
    )
    x, a = s.input(*dims, order=order)
    how = {"window": window, "stride": stride, "padding": pad, "mode": mode}
    leaf = a.clone().requires_grad_()
    if mode == "MAXPOOL":
        y = F.max_pool2d(leaf, window, stride, pad)
    else:
        y = F.avg_pool2d(leaf, window, stride, pad, count_include_pad=mode.endswith("INCLUDE_PADDING"))
    if not backward:
        s.result(s.g.resample(x, **how)[0], y.detach(), order=order)
        return
    dy, d = s.input(*y.shape, order=order)
    (want,) = torch.autograd.grad(y, leaf, d)
    if mode != "MAXPOOL":
        s.case.operands.remove(next(each for each in s.case.operands if each.tensor is x))
    made = s.g.resample_backward(dy, input=x if mode == "MAXPOOL" else None, **how)
    s.result(made, want, order=order)


def movement(s: Sketch) -> None:
    """Pointwise formulas of broadcast operands, transposes, slices and concatenation."""
    rank = s.one(2, 3, 3, 4)
    dims = s.sizes(rank, s.elements / 4)
    s.note(dims)
    x, a = s.input(*dims, order=s.r.sample(range(rank), rank))
    for _ in range(s.r.randint(1, 4)):
        kind = s.one("transpose", "slice", "concatenate", "formula")
        shape = list(a.shape)
        if kind == "transpose":
            permutation = s.r.sample(range(rank), rank)
            s.note(kind, permutation)
            x, a = s.g.transpose(x, permutation), a.permute(permutation)
        elif kind == "slice":
            axis = s.r.randrange(rank)
            start = s.r.randrange(shape[axis])
            step = s.one(1, 1, 2, 3)
            cut = tuple(slice(start, n, step) if i == axis else slice(0, n) for i, n in enumerate(shape))
            s.note(kind, axis, start, step)
            x, a = s.g.slice(x, cut), a[cut]
        elif kind == "concatenate":
            axis = s.r.randrange(rank)
            shape[axis] = s.size(256)
            s.note(kind, axis, shape[axis])
            other, b = s.input(*shape)
            x, a = s.g.concatenate([x, other], axis=axis), torch.cat([a, b], axis)
        else:
            other, b = s.input(*[s.one(n, 1) for n in shape])
            s.note(kind, list(b.shape))
            x, a = s.g.tanh(s.g.add(s.g.mul(x, 0.5), other)), torch.tanh(a * 0.5 + b)
    s.result(s.g.identity(x), a, dtype=s.one(s.type, "f32"), order=s.r.sample(range(rank), rank))


def grid(s: Sketch) -> None:
    """Samples of images at the positions of an affine grid, or their gradients."""
    batch, channels = s.size(4), s.size(48)
    side, out = [s.r.randint(1, 24) for _ in range(2)], [s.r.randint(1, 24) for _ in range(2)]
    mode, padding, align = s.one("BILINEAR", "BICUBIC_EXT"), s.one(*GRID_PADDINGS), s.chance(0.5)
    s.note(batch, channels, side, out, mode, padding, align)
    order = s.one(None, [0, 2, 3, 1])
    x, a = s.input(batch, channels, *side, order=order)
    positions, b = s.input(batch, *out, 2)
    how = {"mode": mode, "padding_mode": padding, "align_corners": align}
    words = ({"BILINEAR": "bilinear", "BICUBIC_EXT": "bicubic"}[mode], GRID_PADDINGS[padding], align)
    if s.chance(0.5):
        s.result(s.g.grid_sample(x, positions, **how), F.grid_sample(a, b, *words), order=order)
        return
    loss, d = s.input(batch, channels, *out, order=order)
    leaf = a.clone().requires_grad_()
    (want,) = torch.autograd.grad(F.grid_sample(leaf, b, *words), leaf, d)
    made, other = s.g.grid_sample_backward(loss, x, positions, **how)
    other.set_output(False)
    s.result(made, want, order=order)


GRID_PADDINGS = {"ZERO_PAD": "zeros", "EDGE_VAL_PAD": "border", "REFLECTION_PAD_EXT": "reflection"}
"""PyTorch's words for Weft's."""


FAMILIES: dict[str, tuple[Callable[[Sketch], None], int]] = {
    "matmul": (matmul, 4),
    "experts": (experts, 1),
    "scaled_product": (scaled_product, 1),
    "convolution": (convolution, 5),
    "causal_convolution": (causal_convolution, 1),
    "recurrent_layer": (recurrent_layer, 1),
    "attention": (attention, 4),
    "attention_gradient": (attention_gradient, 5),
    "decode": (decode, 3),
    "softmax": (softmax, 2),
    "cross_entropy": (cross_entropy, 1),
    "norm": (norm, 3),
    "reduction": (reduction, 2),
    "channel_norm": (channel_norm, 2),
    "pooling": (pooling, 2),
    "grid": (grid, 1),
    "movement": (movement, 2),
}
"""Each family's function, and how often it is drawn."""


def draw(number: int, limit: float, family: str = "") -> Case:
    """The case of a number."""
    names = [family] if family else list(FAMILIES)
    shares = [FAMILIES[name][1] for name in names]
    name = random.Random(f"family {number}").choices(names, shares)[0]
    sketch = Sketch(number, limit, name)
    FAMILIES[name][0](sketch)
    return sketch.case
