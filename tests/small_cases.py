"""A small graph for every kernel of the CUDA engines, for compute-sanitizer (sanitizer.py).

    python tests/small_cases.py              all on the GPU, compared with the CPU: which kernels ran
    python tests/small_cases.py --plan       the same, only compiled for sm_90: no GPU is needed
    python tests/small_cases.py --part 3/8   every 8th case, from the 3rd on

Every tensor has its own allocation of exactly its size; that of results is not initialized. Fails if the
kernels or the family that a case is for do not run it, if the compiler warns, if a kernel comes with a file
that nothing includes, if a result is wrong, and, when all run, if a kernel or a family has no case.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "bindings")]
import poison  # noqa: E402
import weft  # noqa: E402
from weft import buffers, dtypes  # noqa: E402
from weft.kernel import Kernel  # noqa: E402

ONE = np.full((1, 1, 1, 1), 3, "i4")
TRAINING = weft.norm_forward_phase.TRAINING


class Maker:
    """A graph under construction, and the values of its inputs by name."""

    def __init__(self, **where: Any) -> None:
        types = {"io_data_type": "bf16", "intermediate_data_type": "f32", "compute_data_type": "f32"}
        self.g = weft.Graph(**types, **where)
        self.values: dict[str, Any] = {}
        self.values_on_cpu: dict[str, Any] = {}  # where they differ: the CPU refuses indices out of range
        self.tokens: dict[int, int] = {}  # of packed tensors, by the rows that a batch entry may have

    def __call__(
        self,
        *dims: int,
        dtype: str = "bf16",
        last: bool = False,
        strides: Sequence[int] | None = None,
        values: Any = None,
        low: float = -1,
        on_cpu: Any = None,
    ) -> Any:
        """Adds an input of random values. last: channels last. on_cpu: the values for the CPU."""
        name = f"t{len(self.values)}"
        steps = channels_last(dims) if last else list(strides) if strides else None
        tensor = self.g.tensor(list(dims), steps, data_type=dtype, name=name)
        self.values[name] = values if values is not None else low
        if on_cpu is not None:
            self.values_on_cpu[name] = on_cpu
        return tensor

    def out(self, tensor: Any, *dims: int, dtype: str = "bf16", last: bool = False) -> Any:
        """Declares a tensor as a result."""
        if dims:
            tensor.set_dim(list(dims))
        if last:
            tensor.set_stride(channels_last(dims))
        return tensor.set_output(True).set_data_type(dtype)


def channels_last(dims: Sequence[int]) -> list[int]:
    """Strides of a tensor whose dimension 1 is fastest."""
    strides, step = [0] * len(dims), 1
    for i in (1, *reversed(range(2, len(dims))), 0):
        strides[i], step = step, step * dims[i]
    return strides


class Case(NamedTuple):
    """A graph and what must run it: the kernel files, and the family of one of its steps."""

    kernels: str
    family: str
    build: Callable[[Maker], Any]
    engine: str = "cuda"
    # Whether a kernel, or a copy of gaps, reads memory that initcheck considers unwritten.
    is_read_again: bool = False
    knobs: Mapping[str, int] | None = None


# ---- The cases ---------------------------------------------------------------------------------------------


def matmul(m: int, n: int, k: int, dtype: str = "bf16", out: str = "", transposed: bool = False) -> Any:
    def build(t: Maker) -> None:
        b = t(k, n, dtype=dtype, strides=[1, k] if transposed else None)
        t.out(t.g.relu(t.g.matmul(t(m, k, dtype=dtype), b)), dtype=out or dtype)

    return build


def small_matmuls(batch: int, rows: int, columns: int, depth: int, across: bool = False) -> Any:
    """Contiguous along the depth; or along the other dimensions, if across."""

    def build(t: Maker) -> None:
        a = t(batch, rows, depth, strides=[rows * depth, 1, rows] if across else None)
        b = t(batch, depth, columns, strides=None if across else [depth * columns, 1, depth])
        t.out(t.g.relu(t.g.matmul(a, b)))

    return build


def matmul_and_more(batches: Sequence[int], two: bool) -> Any:
    """Epilogues of a product: reading another matrix, or writing a second result."""

    def build(t: Maker) -> None:
        product = t.g.matmul(t(*batches, 250, 136), t(*batches, 136, 200))
        if two:
            t.out(product)
            t.out(t.g.relu(product))
        else:
            t.out(t.g.relu(t.g.add(product, t(*batches, 250, 200))))

    return build


def matmul_in_use(dims: Sequence[int], dtype: str, has_more: bool = False, **overrides: Any) -> Any:
    """Two by three entries with sizes in use, each for all entries or for those of one dimension.

    has_more: the epilogue adds another matrix."""
    rows, columns, depth = dims

    def build(t: Maker) -> None:
        told = {
            f"{name}_override": t(*np.shape(sizes), dtype="i32", values=np.array(sizes, "i4"))
            for name, sizes in overrides.items()
        }
        a, b = t(2, 3, rows, depth, dtype=dtype), t(2, 3, depth, columns, dtype=dtype)
        product = t.g.matmul(a, b, **told)
        if has_more:
            t.out(t.g.add(product, t(2, 3, rows, columns, dtype=dtype)), dtype=dtype)
        else:
            t.out(product, dtype="f32")

    return build


def each(*sizes: int) -> Any:
    """Sizes in use of the three entries of a row, the same for both rows."""
    return np.reshape(sizes, (1, 3, 1, 1))


def rounded_between(t: Maker, x: Any, like: Any = None) -> Any:
    """Rounding to bf16 turns a third of a step into 0 and two thirds into a step. That is all that is left of
    x if an intermediate sum is stored in 16 bits, and clearly different if it is not."""
    dims = like or x.get_dim()
    addend = np.where(np.arange(np.prod(dims)) % 2, 2.0**-7 / 3, 2.0**-7 / 1.5).astype("f4")
    more = t(*dims, dtype="f32", values=addend)
    one = t(*[1] * len(dims), dtype="f32", values=np.ones(1, "f4"))
    return t.g.sub(t.g.add(x, more).set_data_type("bf16"), one)


def conv(
    kind: str,
    image: Sequence[int],
    filters: Sequence[int],
    stride: int = 1,
    pad: int = 1,
    last: bool = True,
    dtype: str = "bf16",
    prepared: bool = False,
    joined: bool = False,
    flipped: bool = False,
) -> Any:
    size = [(n + 2 * pad - f) // stride + 1 for n, f in zip(image[2:], filters[2:], strict=True)]
    y = [image[0], filters[0], *size]

    def build(t: Maker) -> None:
        options = {"padding": [pad] * len(size), "stride": [stride] * len(size)}
        options |= {"convolution_mode": "CONVOLUTION"} if flipped else {}
        if kind == "fprop":
            x, w = t(*image, last=last, dtype=dtype), t(*filters, last=last, dtype=dtype)
            x = t.g.relu(t.g.add(x, t(1, image[1], *[1] * len(size)))).set_data_type(dtype) if prepared else x
            made = t.g.conv_fprop(x, w, **options)
            made = t.g.relu(t.g.add(made, t(*y, last=last, dtype=dtype))) if joined else made
            made = t.out(made, *y, last=last, dtype=dtype)
            if joined:
                t.out(t.g.reduction(made, mode="AMAX"), *[1] * len(y), dtype="f32")
        elif kind == "dgrad":
            dy, w = t(*y, last=last, dtype=dtype), t(*filters, last=last, dtype=dtype)
            dx = t.g.conv_dgrad(dy, w, **options)
            dx = t.g.swish_backward(dx.set_dim(image), t(*image, last=last, dtype=dtype)) if joined else dx
            t.out(dx, *image, last=last, dtype=dtype)
        else:
            x, dy = t(*image, last=last, dtype=dtype), t(*y, last=last, dtype=dtype)
            x = t.g.relu(t.g.add(x, t(1, image[1], *[1] * len(size)))).set_data_type(dtype) if prepared else x
            t.out(t.g.conv_wgrad(x, dy, **options), *filters, last=last, dtype=dtype)

    return build


def steps(
    mode: str,
    size: tuple[int, int, int],
    dtype: str = "f32",
    projected: int = 0,
    backward: bool = False,
    ends_early: bool = False,
    **how: Any,
) -> Any:
    """The steps of a recurrent layer, or their gradients. size: steps, batch, units. ends_early: entries have
    fewer steps, the first one none."""
    length, batch, units = size
    gates, saved = {"LSTM": (4, 5), "GRU": (3, 4)}.get(mode, (1, 0))
    width = projected or units

    def build(t: Maker) -> None:
        weight, hx = t(gates * units, width, dtype=dtype), t(batch, width, dtype=dtype)
        others = {"cx": t(batch, units, dtype=dtype)} if mode == "LSTM" else {}
        if ends_early:
            others["seq_len"] = t(batch, dtype="i32", values=np.arange(batch) % (length + 1))
        if projected:
            others["projection"] = t(projected, units, dtype=dtype)
        if backward:
            read = [t(length, batch, width, dtype=dtype) for _ in range(2)]
            kept = t(length, batch, saved * units, dtype=dtype) if saved else None
            results = t.g.recurrence_backward(*read, weight, kept, hx, mode=mode, **others, **how)
        else:
            x = t(length, batch, gates * units, dtype=dtype)
            results = t.g.recurrence(x, weight, None, hx, mode=mode, **others, **how)
        for result in results:
            if result is not None:
                t.out(result, dtype=dtype)

    return build


def sequences(
    channels: int, steps: int, taps: int, dtype: str = "bf16", last: bool = False, backward: bool = False
) -> Any:
    """A causal convolution with SiLU, or its gradients."""
    strides = [channels * steps, 1, channels] if last else [channels * steps, steps, 1]

    def build(t: Maker) -> None:
        read = [t(2, channels, steps, dtype=dtype, strides=strides) for _ in range(1 + backward)]
        how = {"weight": t(channels, taps, dtype=dtype), "bias": t(channels), "activation": "SWISH_FWD"}
        if not backward:
            t.out(t.g.causal_conv1d(*read, **how), dtype=dtype)
            return
        dx, dweight, dbias = t.g.causal_conv1d_backward(*read, **how)
        t.out(dx, dtype=dtype)
        t.out(dweight, dtype="f32")
        t.out(dbias, dtype="f32")

    return build


def cumulative(dims: Sequence[int], axis: int) -> Any:
    def build(t: Maker) -> None:
        t.out(t.g.cumsum(t(*dims, dtype="f32"), axis=axis), dtype="f32")

    return build


def sampled(
    x: Sequence[int],
    positions: Sequence[int],
    dtype: str = "f32",
    last: bool = False,
    backward: bool = False,
    losses: Sequence[float] = (),
    **how: Any,
) -> Any:
    """A sample of a grid, or its gradients. losses: the first ones, such as infinity."""
    given = np.random.default_rng(5).uniform(-1, 1, (*x[:2], *positions))
    given.flat[: len(losses)] = losses

    def build(t: Maker) -> None:
        image, grid = t(*x, last=last, dtype=dtype), t(x[0], *positions, len(positions))
        if not backward:
            t.out(t.g.grid_sample(image, grid, **how), *x[:2], *positions, last=last, dtype=dtype)
            return
        loss = t(*x[:2], *positions, last=last, dtype=dtype, values=given)
        dx, dgrid = t.g.grid_sample_backward(loss, image, grid, **how)
        t.out(dx, *x, last=last, dtype=dtype)
        t.out(dgrid, dtype="f32")

    return build


def selected(dims: Sequence[int], k: int, distinct: int = 0) -> Any:
    """distinct: of how many numbers the elements are, so that some equal ones are not selected."""
    given = np.arange(np.prod(dims)).reshape(dims) % distinct if distinct else None

    def build(t: Maker) -> None:
        values, indices = t.g.top_k(t(*dims, dtype="f32", values=given), k)
        t.out(values, dtype="f32")
        t.out(indices, dtype="i32")

    return build


def recognized(
    steps: Sequence[int], counts: Sequence[int], classes: int, dtype: str = "bf16", backward: bool = False
) -> Any:
    """A CTC loss with its sums of paths, or its gradient."""
    labels = np.arange(len(counts) * max(counts)).reshape(len(counts), -1) % (classes - 1) + 1

    def integers(t: Maker, values: Any) -> Any:
        array = np.asarray(values, "i4")
        return t(*array.shape, dtype="i32", values=array)

    def build(t: Maker) -> None:
        log_probs = t(max(steps), len(steps), classes, dtype=dtype)
        operands = [integers(t, each) for each in (labels, steps, counts)]
        loss, log_alpha = t.g.ctc_loss(log_probs, *operands)
        t.out(loss, dtype="f32")
        if backward:
            t.out(
                t.g.ctc_loss_backward(t(len(steps), dtype="f32"), log_probs, *operands, log_alpha),
                dtype=dtype,
            )
        else:
            t.out(log_alpha, dtype="f32")

    return build


def affine(size: Sequence[int], backward: bool = False) -> Any:
    """An affine grid, or its gradient."""

    def build(t: Maker) -> None:
        if backward:
            t.out(t.g.affine_grid_backward(t(2, *size, len(size))), dtype="f32")
        else:
            t.out(t.g.affine_grid(t(2, len(size), len(size) + 1), size, True), dtype="f32")

    return build


def indexed(is_elementwise: bool, is_sum: bool, is_sorted: bool = False) -> Any:
    """Selects rows or elements of [70, 40], or adds them."""

    def build(t: Maker) -> None:
        shape = (90, 40) if is_elementwise else (90,)
        on_cpu = np.arange(np.prod(shape)).reshape(shape) // 3 % 70
        index = t(*shape, dtype="i64", values=np.sort(on_cpu) if is_sorted else on_cpu)
        if is_sum:
            t.out(t.g.scatter_add(t(90, 40), index, t(70, 40), is_sorted=is_sorted), dtype="f32")
        else:
            t.out(t.g.gather(t(70, 40), index))

    return build


def rotary(interleaved: bool) -> Any:
    """Rotates half of each head, forward and back."""

    def build(t: Maker) -> None:
        angles = t(20, 1, 1, 16, dtype="f32")
        how = {"rope_dim": 16, "interleaved": interleaved}
        t.out(t.g.rotary_embedding(t(2, 5, 20, 32), angles, **how))
        t.out(t.g.rotary_embedding_backward(t(2, 5, 20, 32), angles, **how))

    return build


def inverted(t: Maker) -> None:
    """A convolution of 1/x, with 57 of 64 channels in memory: 1/0 in the missing ones must not be a factor of
    any sum."""
    strides = [64 * 14 * 13, 1, 64 * 13, 64]
    x, w = t(2, 57, 14, 13, strides=strides, low=1), t(64, 57, 3, 3, strides=[64 * 9, 1, 64 * 3, 64])
    inverse = t.g.reciprocal(x).set_data_type("bf16").set_dim(x.get_dim()).set_stride(strides)
    t.out(t.g.conv_fprop(inverse, w, padding=[1, 1]), 2, 64, 14, 13, last=True)


def statistics_of_few(t: Maker) -> None:
    """So few pixels that they are columns of narrow tiles, and channels are rows."""
    y = t.g.conv_fprop(t(4, 72, 2, 2, last=True), t(200, 72, 1, 1, last=True))
    y = t.out(y, 4, 200, 2, 2, last=True)
    for total in t.g.genstats(y):
        t.out(total, dtype="f32")


def totals(t: Maker) -> None:
    c = t.out(t.g.matmul(t(250, 136), t(136, 200)))
    t.out(t.g.reduction(c, mode="ADD"), 1, 200, dtype="f32")
    t.out(t.g.reduction(c, mode="AMAX"), 1, 1, dtype="f32")


def scaled(t: Maker) -> None:
    x, w = t(128, 512, dtype="e4m3"), t(512, 128, dtype="e4m3", strides=[1, 512])
    a = t.g.block_scale_dequantize(x, t(128, 4, dtype="f32", low=0.5), [1, 128])
    b = t.g.block_scale_dequantize(w, t(4, 1, dtype="f32", low=0.5), [128, 128])
    t.out(t.g.matmul(a, b), dtype="bf16")


def few_tokens(t: Maker) -> None:
    w = t.g.block_scale_dequantize(t(256, 128, dtype="i4", strides=[1, 256]), t(2, 128, low=0.5), [128, 1])
    t.out(t.g.matmul(t(4, 256), w))


def some_tokens(m: int, n: int, k: int) -> Any:
    def build(t: Maker) -> None:
        w = t.g.block_scale_dequantize(t(k, n, dtype="i4", strides=[1, k]), t(k // 128, n, low=0.5), [128, 1])
        t.out(t.g.matmul(t(m, k), w))

    return build


def first_rows(t: Maker, left_out: int) -> Any:
    """The first rows of four experts, or of all except the first."""
    return t(4 - left_out, 1, 1, dtype="i32", values=np.array([0, 20, 20, 61], "i4")[left_out:])


def experts(dtype: str, k: int, gather: bool = False, left_out: int = 0) -> Any:
    def build(t: Maker) -> None:
        first = first_rows(t, left_out)
        weight = t(4, k, 64, dtype=dtype, strides=[k * 64, 1, k])
        if gather:
            rows = np.random.default_rng(3).integers(0, 50, 100).astype("i4")
            index = t(1, 100, 1, dtype="i32", values=rows)
            y = t.g.moe_grouped_matmul(t(1, 50, k, dtype=dtype), weight, first, index, mode="GATHER", top_k=2)
        else:
            y = t.g.moe_grouped_matmul(t(1, 100, k, dtype=dtype), weight, first)
        t.out(y, dtype=dtype)

    return build


def experts_gradient(t: Maker) -> None:
    dweight = t.g.moe_grouped_matmul_bwd(t(1, 100, 64), t(1, 100, 128), first_rows(t, 1))
    t.out(dweight.set_dim([4, 128, 64]))


def with_nan(dims: Sequence[int], rows: Any) -> Any:
    """Random values, and NaN in these rows of the last dimension but one; none if there are no rows."""
    if rows is None:
        return None
    values = np.random.default_rng(dims[2]).uniform(-1, 1, dims)
    values[..., rows, :] = np.nan
    return values


def attention(**options: Any) -> Any:
    """nan_keys, nan_values: rows of NaN."""
    heads, rows, columns, size = options.pop("dims", (2, 70, 96, 64))
    dtype = options.pop("dtype", "bf16")
    shape = (2, heads, columns, size)
    values = [with_nan(shape, options.pop(name, None)) for name in ("nan_keys", "nan_values")]

    def build(t: Maker) -> None:
        q = t(2, heads, rows, size, dtype=dtype)
        k, v = (t(*shape, dtype=dtype, values=each) for each in values)
        extra = {key: make(t) if callable(make) else make for key, make in options.items()}
        o, stats = t.g.sdpa(q, k, v, generate_stats=True, **extra)
        t.out(o, dtype=dtype)
        t.out(stats, dtype="f32")

    return build


def attention_pattern(t: Maker) -> None:
    """Its softmax, mask and dropout, too, whose seed is no tensor of the graph."""
    g = t.g
    x = g.mul(g.matmul(t(2, 2, 70, 68), g.transpose(t(2, 2, 96, 68), [0, 1, 3, 2])), 0.3)
    x = g.binary_select(x, -np.inf, g.cmp_ge(g.gen_index(x, axis=2), g.gen_index(x, axis=3)))
    kept = g.rng(7, bernoulli_probability=0.75).set_dim([2, 2, 70, 96])
    t.out(g.matmul(g.mul(g.mul(g.softmax(g.mul(g.tanh(x), 2.0)), kept), 4 / 3), t(2, 2, 96, 68)))


def gradient_pattern(width: int, has_terms: bool) -> Any:
    """With o in the same graph and a causal mask; and a soft cap, whose gradient is given, and a bias."""

    def build(t: Maker) -> None:
        g = t.g
        q, k, v, d_o = (t(2, 2, rows, width) for rows in (70, 96, 96, 70))
        scores = x = g.mul(g.matmul(q, g.transpose(k, [0, 1, 3, 2])), 0.3)
        if has_terms:
            x = g.tanh(x)
            scores = g.add(x, t(1, 2, 1, 96))
        seen = g.cmp_ge(g.gen_index(x, axis=2), g.gen_index(x, axis=3))
        p = g.softmax(g.binary_select(scores, -np.inf, seen))
        t.out(g.matmul(p, v))
        dp = g.matmul(d_o, g.transpose(v, [0, 1, 3, 2]))
        ds = g.mul(p, g.sub(dp, g.reduction(g.mul(p, dp), "ADD", dims=[3])))
        if has_terms:
            t.out(g.reduction(ds, "ADD", dims=[0, 2]))
            ds = g.mul(ds, g.sub(1.0, g.mul(x, x)))
        dx = g.mul(ds, 0.3)
        t.out(g.matmul(dx, k))
        t.out(g.matmul(g.transpose(dx, [0, 1, 3, 2]), q))
        t.out(g.matmul(g.transpose(p, [0, 1, 3, 2]), d_o))

    return build


def paged_attention(queries: int, pages: tuple[int, int]) -> Any:
    """90 and 3 keys of up to 100. Pages beyond a sequence are in no container. Neither is one that is used: a
    GPU reads the first page instead, and the CPU refuses it."""

    def build(t: Maker) -> None:
        k, v = (t(12 + 200 // size, 2, size, 64) for size in pages)
        tables = {}
        for name, size in zip("kv", pages, strict=True):
            count = -(-100 // size)
            table = np.random.default_rng(size).permutation(2 * count).reshape(2, 1, count, 1).astype("i4")
            table[0, 0, 90 // size + 1 :], table[1, 0, 3 // size + 1 :], table[0, 0, 0] = -(2**31), 2**30, -1
            inside = np.maximum(table, 0)
            tables[f"paged_attention_{name}_table"] = t(
                2, 1, count, 1, dtype="i32", values=table, on_cpu=inside
            )
        lengths = t(2, 1, 1, 1, dtype="i32", values=np.array([90, 3], "i4"))
        o, stats = t.g.sdpa(
            t(2, 4, queries, 64), k, v, seq_len_kv=lengths, generate_stats=True,
            paged_attention_max_seq_len_kv=100, **tables,
        )  # fmt: skip
        t.out(o)
        t.out(stats, dtype="f32")

    return build


def packed_tables(queries: int, size: int) -> Any:
    """Page tables of 90, 0 and 3 keys, one after the other, without an entry for the second."""

    def build(t: Maker) -> None:
        counts = [-(-keys // size) for keys in (90, 0, 3)]
        starts = np.cumsum([0, *counts]).astype("i4").reshape(4, 1, 1, 1)
        most = -(-100 // size)
        entries = np.random.default_rng(size).permutation(3 * most)[: sum(counts)].astype("i4")
        t.tokens = {most: sum(counts)}
        tables = {}
        for name in "kv":
            table = t(3, 1, most, 1, dtype="i32", values=entries.reshape(-1, 1, 1))
            table.set_ragged_offset(t(4, 1, 1, 1, dtype="i32", values=starts))
            tables[f"paged_attention_{name}_table"] = table
        lengths = t(3, 1, 1, 1, dtype="i32", values=np.array([90, 0, 3], "i4"))
        o, stats = t.g.sdpa(
            t(3, 4, queries, 64), t(3 * most, 2, size, 64), t(3 * most, 2, size, 64), seq_len_kv=lengths,
            generate_stats=True, paged_attention_max_seq_len_kv=100, **tables,
        )  # fmt: skip
        t.out(o)
        t.out(stats, dtype="f32")

    return build


def byte_attention(dtype: str, queries: int, keys: int, by_rows: bool, nan_values: Any = None) -> Any:
    """Keys and values of 8 bits, with all scales and largest numbers, which are in columns that a thread has
    first, or second. nan_values: rows of NaN, which are not in use."""
    values = np.random.default_rng(keys).uniform(-1, 1, (2, 2, keys, 64))
    values[..., int(by_rows) :: 2] *= 4
    if nan_values is not None:
        values[..., nan_values, :] = np.nan

    def build(t: Maker) -> None:
        k, v = t(2, 2, keys, 64, dtype=dtype), t(2, 2, keys, 64, dtype=dtype, values=values)
        own = (2, 2, keys, 1) if by_rows else (1, 1, 1, 1)
        descales = [t(1, 1, 1, 1, dtype="f32"), *(t(*own, dtype="f32") for _ in "kv")]
        scales = [t(1, 1, 1, 1, dtype="f32") for _ in range(3)]
        lengths = {}
        if nan_values is not None:
            used = {"seq_len_q": queries, "seq_len_kv": nan_values.start}
            lengths = {
                key: t(2, 1, 1, 1, dtype="i32", values=np.full((2, 1, 1, 1), n)) for key, n in used.items()
            }
        o, _, amax_s, amax_o = t.g.sdpa_fp8(
            t(2, 4, queries, 64), k, v, *descales, *scales,
            use_alibi_mask=True, use_padding_mask=bool(lengths), **lengths,
        )  # fmt: skip
        t.out(o)
        t.out(amax_s, dtype="f32")
        t.out(amax_o, dtype="f32")

    return build


def fp8_attention(
    queries: int,
    keys: int,
    size: int,
    out: str,
    low: float = -1,
    use_causal_mask: bool = True,
    generate_stats: bool = True,
    **options: Any,
) -> Any:
    """Only FP8 operands, of both kinds, with all scales and maxima: that of o is a value, which only the
    first query of a causal pass sees. Without statistics, products sum the weights."""

    def build(t: Maker) -> None:
        q = t(2, 4, queries, size, dtype="e4m3")
        k, v = t(2, 2, keys, size, dtype="e5m2"), t(2, 2, keys, size, dtype="e4m3", low=low)
        scales = [t(1, 1, 1, 1, dtype="f32", low=0.5) for _ in range(6)]
        extra = {key: make(t) if callable(make) else make for key, make in options.items()}
        o, stats, amax_s, amax_o = t.g.sdpa_fp8(
            *(q, k, v, *scales),
            attn_scale=0.1,
            use_causal_mask=use_causal_mask,
            generate_stats=generate_stats,
            **extra,
        )
        t.out(o, dtype=out)
        for each in (*([stats] if generate_stats else []), amax_s, amax_o):
            t.out(each, dtype="f32")

    return build


def attention_gradient(nan_values: Any = None, nan_losses: Any = None) -> Any:
    """Rows of 120 bytes, which Hopper's copy engine does not take. The arguments are rows of NaN."""
    shape = (2, 2, 70, 60)

    def build(t: Maker) -> None:
        q, k, o = (t(*shape) for _ in range(3))
        v, d_o = (t(*shape, values=with_nan(shape, rows)) for rows in (nan_values, nan_losses))
        stats = t(2, 2, 70, 1, dtype="f32", low=3)
        for grad in t.g.sdpa_backward(q, k, v, o, d_o, stats, use_causal_mask=True):
            t.out(grad)

    return build


def byte_attention_gradient(rows: int, width: int, gradient: str = "e5m2") -> Any:
    """All scales and largest numbers of FP8, and heads that share keys."""

    def build(t: Maker) -> None:
        q, o, d_o = (t(2, 4, rows, width, dtype=dtype) for dtype in ("e4m3", "e4m3", gradient))
        k, v = (t(2, 2, rows - 10, width, dtype="e4m3") for _ in "kv")
        factors = {5: 1 / 256, 6: 1 / 64, 7: 256, 11: 64}  # scales of factors, there and back
        known = {i: np.full((1, 1, 1, 1), x, "f4") for i, x in factors.items()}
        scales = [t(1, 1, 1, 1, dtype="f32", low=0.5, values=known.get(i)) for i in range(12)]
        made = t.g.sdpa_fp8_backward(
            q, k, v, o, d_o, t(2, 4, rows, 1, dtype="f32", low=6), *scales, attn_scale=4 / width,
            use_causal_mask=True,
        )  # fmt: skip
        for i, result in enumerate(made):
            t.out(result, dtype="bf16" if i < 3 else "f32")

    return build


def block_scaled(t: Maker, heads: int, rows: int, width: int, axis: int, tiled: bool) -> tuple[Any, Any]:
    """Numbers of FP8 with a scale for each block of 32, and these."""
    x = t(2, heads, rows, width, dtype="e4m3")
    blocks = [rows, -(-width // 32)] if axis == 3 else [-(-rows // 32), width]
    if tiled:
        blocks = [-(-n // m) * m for n, m in zip(blocks, (128, 4) if axis == 3 else (4, 128), strict=True)]
    scales = t(2, heads, *blocks, dtype="e8m0", low=0.5)
    return x, scales.set_reordering_type(weft.tensor_reordering.F8_128x4) if tiled else scales


def block_scaled_attention(queries: int, width: int, tiled: bool) -> Any:
    def build(t: Maker) -> None:
        of = [(4, queries, 3), (2, 150, 3), (2, 150, 2)]
        (q, of_q), (k, of_k), (v, of_v) = (block_scaled(t, h, n, width, axis, tiled) for h, n, axis in of)
        o, _, amax = t.g.sdpa_mxfp8(q, k, v, of_q, of_k, of_v, attn_scale=1 / 8, use_causal_mask=True)
        t.out(o)
        t.out(amax, dtype="f32")

    return build


def block_scaled_gradient(width: int, tiled: bool, rows: int = 70) -> Any:
    def build(t: Maker) -> None:
        def of(heads: int, rows: int, axis: int) -> tuple[Any, Any]:
            return block_scaled(t, heads, rows, width, axis, tiled)

        (q, of_q), (q_t, of_q_t), (k, of_k), (k_t, of_k_t) = (
            of(4, rows, 3),
            of(4, rows, 2),
            of(2, rows + 20, 3),
            of(2, rows + 20, 2),
        )
        (v, of_v), (d_o, of_d_o), (d_o_t, of_d_o_t) = of(2, rows + 20, 3), of(4, rows, 3), of(4, rows, 2)
        o, d_o_f16 = (t(2, 4, rows, width) for _ in range(2))
        made = t.g.sdpa_mxfp8_backward(
            q, q_t, k, k_t, v, o, d_o_f16, d_o, d_o_t, t(2, 4, rows, 1, dtype="f32", low=6),
            of_q, of_q_t, of_k, of_k_t, of_v, of_d_o, of_d_o_t, attn_scale=1 / 32,
        )  # fmt: skip
        for i, result in enumerate(made):
            t.out(result, dtype="bf16" if i < 3 else "f32")

    return build


def attention_gradient_of_boxes(
    size: int, dtype: str, heads: tuple[int, int] = (4, 2), rows: int = 200, **options: Any
) -> Any:
    """Two blocks of keys, more queries than keys, and the last block of both is ragged. Statistics are beyond
    all scores, as they would be."""

    def build(t: Maker) -> None:
        q, o, d_o = (t(2, heads[0], rows, size, dtype=dtype) for _ in range(3))
        k, v = (t(2, heads[1], 150, size, dtype=dtype) for _ in range(2))
        extra = {key: make(t) if callable(make) else make for key, make in options.items()}
        extra |= {"stats": t(2, heads[0], rows, 1, dtype="f32", low=9), "attn_scale": 8 / (4 * size)}
        for grad in t.g.sdpa_backward(q, k, v, o, d_o, **extra):
            t.out(grad, dtype=dtype)

    return build


def gradient_of_unlike_heads(size: int, queries: int, keys: int, values: int) -> Any:
    """K and V have other numbers of heads; keys and queries are longer than the length in use."""

    def build(t: Maker) -> None:
        q, o, d_o = (t(1, queries, 200, size) for _ in range(3))
        k, v, stats = (
            t(1, keys, 150, size),
            t(1, values, 150, size),
            t(1, queries, 200, 1, dtype="f32", low=9),
        )
        used = {
            f"seq_len_{name}": t(1, 1, 1, 1, dtype="i32", values=np.array(n)) for name, n in LENGTHS.items()
        }
        more = {"attn_scale": 2 / size, "use_padding_mask": True}
        for grad in t.g.sdpa_backward(q, k, v, o, d_o, stats, **used, **more):
            t.out(grad)

    return build


LENGTHS = {"q": 190, "kv": 140}


class Packed:
    """Two packed sequences, the second one first: 131 queries and 150 keys end at the end of the memory, 200
    queries and 77 keys begin at its start."""

    def __init__(self, t: Maker) -> None:
        self.t, t.tokens = t, {200: 331, 150: 227}
        self.offsets = {n: self.integers(at) for n, at in ((200, [200, 0, 331]), (150, [77, 0, 227]))}
        self.lengths = {
            "seq_len_q": self.integers([131, 200]),
            "seq_len_kv": self.integers([150, 77]),
            "use_padding_mask": True,
        }

    def integers(self, values: list[int]) -> Any:
        return self.t(len(values), 1, 1, 1, dtype="i32", values=np.array(values))

    def __call__(self, heads: int, rows: int, size: int, dtype: str, low: float = -1) -> Any:
        tensor = self.t(2, heads, rows, size, dtype=dtype, low=low)
        return self.pack(tensor, heads, rows, size)

    def pack(self, tensor: Any, heads: int, rows: int, size: int) -> Any:
        tensor.set_dim([2, heads, rows, size]).set_stride([rows * heads * size, size, heads * size, 1])
        return tensor.set_ragged_offset(self.offsets[rows]).set_ragged_offset_multiplier(heads * size)

    def out(self, tensor: Any, like: Any, dtype: str) -> None:
        _, heads, rows, size = like.get_dim()
        self.t.out(self.pack(tensor, heads, rows, size), dtype=dtype)


def packed_attention(size: int, dtype: str, **options: Any) -> Any:
    def build(t: Maker) -> None:
        p = Packed(t)
        q, k, v = p(4, 200, size, dtype), p(2, 150, size, dtype), p(2, 150, size, dtype)
        o, stats = t.g.sdpa(q, k, v, attn_scale=0.1, generate_stats=True, **p.lengths, **options)
        p.out(o, q, dtype)
        t.out(p.pack(stats, 4, 200, 1), dtype="f32")

    return build


def packed_attention_gradient(size: int, dtype: str, **options: Any) -> Any:
    def build(t: Maker) -> None:
        p = Packed(t)
        q, o, d_o = (p(4, 200, size, dtype) for _ in range(3))
        k, v = (p(2, 150, size, dtype) for _ in range(2))
        more = {"stats": p(4, 200, 1, "f32", low=9), "attn_scale": 8 / (4 * size)}
        made = t.g.sdpa_backward(q, k, v, o, d_o, **more, **p.lengths, **options)
        for gradient, like in zip(made, (q, k, v), strict=True):
            p.out(gradient, like, dtype)

    return build


def attention_gradient_of_sink(t: Maker) -> None:
    q, o, d_o = (t(2, 4, 200, 64) for _ in range(3))
    k, v, stats = t(2, 4, 150, 64), t(2, 4, 150, 64), t(2, 4, 200, 1, dtype="f32", low=9)
    sink, d_sink = t(1, 4, 1, 1, dtype="f32"), t.g.tensor(name="dSink")
    more = {"sink_token": sink, "dSink_token": d_sink, "attn_scale_value": 1 / 32}
    for grad in t.g._sdpa_bwd(q, k, v, o, d_o, stats, **more):
        t.out(grad)
    t.out(d_sink, dtype="f32")


def attention_dropout(t: Maker) -> None:
    one, dump = np.full((1, 1, 1, 1), 3, "i4"), t.g.tensor(name="dump")
    drawn = {f"dropout_{name}": t(1, 1, 1, 1, dtype="i32", values=one) for name in ("seed", "offset")}
    q, k, v = (t(2, 2, 70, 64) for _ in range(3))
    o, stats = t.g._sdpa_fwd(q, k, v, dropout_probability=0.25, rng_dump=dump, **drawn)
    t.out(o)
    t.out(stats, dtype="f32")
    t.out(dump, dtype="f32")


def all_gradients(t: Maker, heads: int = 4, rows: int = 200, width: int = 64) -> None:
    q, k, v, o, d_o = (t(2, heads, rows, width) for _ in range(5))
    bias, sink = t(1, heads, rows, rows), t(1, heads, 1, 1, dtype="f32")
    more = {"dBias": t.g.tensor(name="dBias"), "dSink_token": t.g.tensor(name="dSink")}
    stats = t(2, heads, rows, 1, dtype="f32", low=9)
    scale = {"attn_scale_value": 1 / 32}
    for grad in t.g._sdpa_bwd(q, k, v, o, d_o, stats, bias=bias, sink_token=sink, **scale, **more):
        t.out(grad)
    t.out(more["dBias"])
    t.out(more["dSink_token"], dtype="f32")


BITS = np.array([0, 0, 129, 0, 3, 1, 254, 0], "u1").reshape(2, 1, 2, 2)
TILES = np.array([1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 1], "i1").reshape(1, 2, 2, 3)


def masked_attention_gradient(bits: bool, width: int) -> Any:
    """Tiles that take part, and whole rows of tiles that do not."""
    tiles = np.packbits(TILES, axis=-1, bitorder="little") if bits else TILES

    def build(t: Maker) -> None:
        q, o, d_o, k, v = (
            t(2, heads, n, width) for heads, n in ((2, 200), (2, 200), (2, 200), (1, 300), (1, 300))
        )
        mask = t(*tiles.shape, dtype="u8" if bits else "i8", values=tiles)
        more = {"attn_scale": 1 / 32, "block_mask": mask}
        for grad in t.g.sdpa_backward(q, k, v, o, d_o, t(2, 2, 200, 1, dtype="f32", low=9), **more):
            t.out(grad)

    return build


def wide_gradients(t: Maker) -> None:
    """Rows of 120 bytes, which Hopper's copy engine does not take."""
    all_gradients(t, 2, 70, 60)


def soft_cap(g: Any, s: Any) -> Any:
    return g.mul(g.tanh(g.mul(s, 0.05)), 20.0)


def modified_attention(width: int = 60) -> Any:
    """Indices, operands of several broadcasts, one of a byte and a number: hidden keys, capped scores."""

    def build(t: Maker) -> None:
        q, k, v = t(2, 2, 70, width), t(2, 2, 96, width), t(2, 2, 96, width)
        gate, of_keys, number = t(1, 2, 70, 1, dtype="f32"), t(2, 1, 1, 96), t(1, dtype="f32")
        documents = t(2, 1, 1, 96, dtype="i8")

        def score_mod(g: Any, s: Any) -> Any:
            keep = g.logical_or(g.cmp_le(g.gen_index(s, axis=3), g.gen_index(s, axis=2)), documents)
            return g.binary_select(g.add(g.mul(soft_cap(g, s), gate), g.mul(of_keys, number)), -np.inf, keep)

        o, stats = t.g.sdpa(q, k, v, attn_scale=1 / 8, generate_stats=True, score_mod=score_mod)
        t.out(o)
        t.out(stats, dtype="f32")

    return build


def modified_attention_gradient(width: int, is_given: bool, heads: int = 2, rows: int = 70) -> Any:
    """Derived with gradients of operands, or given explicitly."""

    def build(t: Maker) -> None:
        q, k, v, o, d_o = (t(2, heads, rows, width) for _ in range(5))
        gate, of_keys, number = t(1, heads, rows, 1, dtype="f32"), t(2, 1, 1, rows), t(1, dtype="f32")
        sources = {each: t.g.tensor() for each in (() if is_given else (gate, of_keys, number))}
        more: dict[str, Any] = {"score_mod_gradients": sources or None}
        if is_given:
            more["score_mod_bprop"] = lambda g, slope: g.mul(slope, gate)
        for grad in t.g.sdpa_backward(
            q, k, v, o, d_o, t(2, heads, rows, 1, dtype="f32", low=9), attn_scale=1 / 8,
            score_mod=lambda g, s: g.add(g.mul(soft_cap(g, s), gate), g.mul(of_keys, number)), **more,
        ):  # fmt: skip
            t.out(grad)
        for gradient in sources.values():
            t.out(gradient)

    return build


def rounded_rows(t: Maker) -> None:
    x = t(33, 129, values=np.ones((33, 129)))
    t.out(t.g.reduction(rounded_between(t, x), mode="ADD", dims=[1]), dtype="f32")


def rounded_totals(t: Maker) -> None:
    """257 and 259, which bf16 makes 256 and 260."""
    values = np.ones((33, 257))
    values[::2, 0] = 3
    total = t.g.reduction(t(33, 257, values=values), mode="ADD", dims=[1]).set_data_type("bf16")
    t.out(t.g.sub(total, t(1, 1, dtype="f32", values=np.full(1, 256.0, "f4"))), dtype="f32")


def rounded_map(t: Maker) -> None:
    t.out(rounded_between(t, t(33, 65, values=np.ones((33, 65)))), dtype="f32")


def integers(t: Maker, rows: int, columns: int) -> Any:
    """2^60 and a little more, of which float and double keep nothing of that little."""
    little = np.arange(rows * columns).reshape(rows, columns) % 7
    return t(rows, columns, dtype="i64", values=2**60 + little)


def exact_map(t: Maker) -> None:
    t.out(t.g.sub(integers(t, 33, 65), 2**60, compute_data_type="i64"))


def exact_rows(t: Maker) -> None:
    most = t.g.reduction(integers(t, 33, 65), mode="MAX", dims=[1], compute_data_type="i64")
    t.out(t.g.sub(most.set_data_type("i64"), 2**60, compute_data_type="i64"))


def saturated_totals(t: Maker) -> None:
    """Sums of 8 bits, which end at 127, before 100 is taken off."""
    threes = t(33, 65, dtype="i8", values=np.full((33, 65), 3, "i1"))
    total = t.g.reduction(threes, mode="ADD", dims=[1], compute_data_type="i64")
    t.out(t.g.sub(total.set_data_type("i8"), 100, compute_data_type="i64"), dtype="i32")


def totals_of_double(t: Maker) -> None:
    """2^25 and 1, of which a float keeps 2^25."""
    values = np.zeros((33, 65))
    values[:, 0], values[:, 1] = 2.0**25, 1
    x = t(33, 65, dtype="f64", values=values)
    total = t.g.reduction(x, mode="ADD", dims=[1], compute_data_type="f64")
    most = t(1, 1, dtype="f64", values=np.full(1, 2.0**25))
    t.out(t.g.sub(total.set_data_type("f32"), most, compute_data_type="f64"), dtype="f64")


def indexed_rows(t: Maker) -> None:
    """Each element's own indices, which the maximum of a row distinguishes."""
    x = t(3, 5, 33, dtype="i32")
    for axis, weight in enumerate((10000, 1000, 10)):
        index = t.g.gen_index(x, axis=axis).set_data_type("i32")
        x = t.g.add(x, t.g.mul(index, weight).set_data_type("i32")).set_data_type("i32")
    t.out(t.g.reduction(x, mode="MAX", dims=[2]), dtype="i32")


def exact_product(t: Maker) -> None:
    """Three times 2^31 - 1 times itself, less 3 * 2^62: a number of 34 bits."""
    a, b = (t(*dims, dtype="i32", values=np.full(dims, 2**31 - 1)) for dims in ((33, 3), (3, 65)))
    product = t.g.matmul(a, b, compute_data_type="i64").set_data_type("i64")
    less = t.g.sub(product, 2**62, compute_data_type="i64").set_data_type("i64")
    t.out(t.g.add(less, -(2**63), compute_data_type="i64"))


def rounded_product(m: int, n: int, k: int) -> Any:
    def build(t: Maker) -> None:
        a, b = t(m, k, values=np.full((m, k), 1 / k)), t(k, n, values=np.ones((k, n)))
        t.out(rounded_between(t, t.g.matmul(a, b), [m, n]), dtype="f32")

    return build


def norm(kind: str, rows: int, columns: int, dtype: str = "bf16") -> Any:
    def build(t: Maker) -> None:
        x, scale = t(rows, columns, 1, 1, dtype=dtype), t(1, columns, 1, 1, dtype="f32")
        if kind == "fwd":
            found = t.g.layernorm(TRAINING, x, scale, t(1, columns, 1, 1, dtype="f32"), 1e-5)
            for y, type_ in zip(found, (dtype, "f32", "f32"), strict=True):
                t.out(y, dtype=type_)
            return
        mean, inv = (t(rows, 1, 1, 1, dtype="f32", low=low) for low in (-0.1, 0.5))
        dy = t(rows, columns, 1, 1, dtype=dtype)
        found = t.g.layernorm_backward(dy, x, scale, mean=mean, inv_variance=inv)
        for grad, type_ in zip(found, (dtype, "f32", "f32"), strict=True):
            t.out(grad, dtype=type_)

    return build


def instance_norm(t: Maker) -> None:
    scale, bias = t(1, 256, 1, 1, dtype="f32"), t(1, 256, 1, 1, dtype="f32")
    y, *_ = t.g.instancenorm(TRAINING, t(2, 256, 23, 23, last=True), scale, bias, 1e-5)
    t.out(y, 2, 256, 23, 23, last=True)


def sum_of_columns(t: Maker) -> None:
    t.out(t.g.reduction(t(3001, 67), "ADD", dims=[0]), dtype="f32")


def softmax_of_first_columns(t: Maker) -> None:
    """Elements are masked by their position, in rows that begin between two vectors."""
    x = t(9, 1030)
    at = t.g.gen_index(x, 1, compute_data_type="f32")
    t.out(t.g.softmax(t.g.binary_select(x, float("-inf"), t.g.cmp_le(at, 700.0)), axis=1))


def batch_norm(backward: bool, dims: Sequence[int]) -> Any:
    def build(t: Maker) -> None:
        one = (1, dims[1], 1, 1)
        x, scale = t(*dims, last=True), t(*one, dtype="f32")
        if backward:
            mean, inv = (t(*one, dtype="f32", low=low) for low in (-0.1, 0.5))
            found = t.g.batchnorm_backward(t(*dims, last=True), x, scale, mean=mean, inv_variance=inv)
        else:
            found = t.g.batchnorm(x, scale, t(*one, dtype="f32"), None, None, 1e-5, None)
        for i, y in enumerate(each for each in found if each is not None):
            t.out(y, *(dims if i == 0 else one), last=i == 0, dtype="f32" if i else "bf16")

    return build


def group_norm(backward: bool, channels: int, groups: int, side: int) -> Any:
    """Channels last, where the groups of a pixel are interleaved in memory."""

    def build(t: Maker) -> None:
        dims, one = (2, channels, side, side), (1, channels, 1, 1)
        x, scale = t(*dims, last=True), t(*one)
        if backward:
            mean, inv = (t(2, groups, 1, 1, dtype="f32", low=low) for low in (-0.1, 0.5))
            dy = t(*dims, last=True)
            dx, dscale, _ = t.g.groupnorm_backward(dy, x, scale, mean, inv, groups=groups)
            t.out(dx, *dims, last=True)
            t.out(dscale, *one, dtype="f32")
        else:
            added = t.g.add(x, t(2, channels, 1, 1))
            y, mean, _ = t.g.groupnorm(TRAINING, added, scale, t(*one), 1e-3, groups=groups)
            t.out(t.g.swish(y), *dims, last=True)
            t.out(mean, 2, groups, 1, 1, dtype="f32")

    return build


def pooled(dims: Sequence[int], window: int, stride: int, last: bool = True, index: bool = False) -> Any:
    pad = window // 2 if stride < window else 0

    def build(t: Maker) -> None:
        y, where = t.g.resample(
            t(*dims, last=last),
            window=[window] * 2,
            stride=[stride] * 2,
            padding=[pad] * 2,
            generate_index=index,
        )
        size = [(n + pad * 2 - window) // stride + 1 for n in dims[2:]]
        t.out(y, *dims[:2], *size, last=last)
        if index:
            t.out(where, *dims[:2], *size, last=last, dtype="i32")

    return build


def pooled_without_numbers(rule: str, stride: int = 3, dtype: str = "f32", last: bool = True) -> Any:
    """Windows with no NaN, with one, and with only NaN, which propagate or are ignored. Steps of more than 4
    use the kernel for all windows."""

    def build(t: Maker) -> None:
        size = 3 * stride + 3
        values = np.random.default_rng(5).integers(-9, 9, (2, 8, size, size)).astype("f4")
        values[:, ::2, ::5, ::3] = values[:, 1, :3, :3] = np.nan
        x = t(2, 8, size, size, dtype=dtype, last=last, values=values)
        given = {"mode": "MAXPOOL", "window": [3, 3], "stride": [stride] * 2, "nan_propagation": rule}
        y, where = t.g._operation("resample", "resample", {"x": x, **given}, ("y", "index"))
        t.out(y, 2, 8, 4, 4, last=last, dtype=dtype)
        t.out(where, 2, 8, 4, 4, last=last, dtype="i32")
        dy = t(2, 8, 4, 4, dtype=dtype, last=last)
        (dx,) = t.g._operation("pool", "resample_backward", {"dy": dy, "x": x, **given}, ("dx",))
        t.out(dx, 2, 8, size, size, last=last, dtype=dtype)

    return build


def pooled_gradient(last: bool, channels: int = 16, stride: int = 2) -> Any:
    dims, size = (2, channels, 16, 16), 16 // stride

    def build(t: Maker) -> None:
        dx = t.g.resample_backward(
            t(*dims[:2], size, size, last=last),
            input=t(*dims, last=last),
            output=None,
            window=[3, 3],
            stride=[stride] * 2,
            padding=[1, 1],
        )
        t.out(dx, *dims, last=last)

    return build


def pooled_volume_gradient(mode: str) -> Any:
    """Every second position is in two windows of each dimension, the others in one."""

    def build(t: Maker) -> None:
        dx = t.g.resample_backward(
            t(2, 16, 4, 5, 6, last=True),
            input=t(2, 16, 8, 10, 12, last=True) if mode == "MAXPOOL" else None,
            output=None,
            mode=mode,
            window=[3] * 3,
            stride=[2] * 3,
            padding=[1] * 3,
        )
        t.out(dx, 2, 16, 8, 10, 12, last=True)

    return build


def pooled_with_gaps(mode: str, last: bool) -> Any:
    """A gradient that finds its maxima first, or one of a mean that leaves padding out, and the result."""

    def build(t: Maker) -> None:
        how = {"mode": mode, "window": [3, 2], "stride": [1, 2], "padding": [2, 1], "dilation": [2, 3]}
        x = t(2, 16, 9, 13, last=last)
        t.out(t.g.resample(x, **how)[0], 2, 16, 9, 6, last=last)
        dx = t.g.resample_backward(t(2, 16, 9, 6, last=last), input=x if mode == "MAXPOOL" else None, **how)
        t.out(dx, 2, 16, 9, 13, last=last)

    return build


def matmuls(t: Maker) -> None:
    t.out(t.g.matmul(t(40, 3, 70, dtype="f32"), t(40, 70, 5, dtype="f32")), dtype="f32")


def joined(t: Maker) -> None:
    t.out(t.g.concatenate([t(33, 20, strides=[1, 33]), t(33, 45)], axis=1))


def product_of_parts(t: Maker) -> None:
    parts = [t(1, 70, n) for n in (64, 128, 24)]
    t.out(t.g.matmul(t.g.concatenate(parts, axis=2).set_data_type("bf16"), t(1, 216, 40)))


def softmax_of_parts(width: int) -> Any:
    def build(t: Maker) -> None:
        parts = [t(33, width), t(33, width)]
        t.out(t.g.softmax(t.g.concatenate(parts, axis=1).set_data_type("bf16"), axis=1))

    return build


def joined_of_types(t: Maker) -> None:
    t.out(t.g.concatenate([t(1, dtype="f32"), t(16)], axis=0), dtype="f32")


def depthwise(kind: str, window: int, channels: int, size: tuple[int, int] = (14, 14), **options: Any) -> Any:
    return conv(kind, (2, channels, *size), (channels, 1, window, window), pad=window // 2, **options)


def resized(t: Maker) -> None:
    y, _ = t.g.resample(t(2, 16, 9, 9), window=[2, 2], stride=[(1, 2), (1, 2)], mode="BILINEAR")
    t.out(y)


def resized_gradient(t: Maker) -> None:
    loss = t(2, 16, 18, 18)
    t.out(t.g.resample_backward(loss, window=[2, 2], stride=[(1, 2), (1, 2)], mode="BILINEAR"), 2, 16, 9, 9)


def drawn(t: Maker) -> None:
    t.out(t.g.rng(seed=7, bernoulli_probability=0.5), 33, 65, dtype="f32")


def loaded_pages(t: Maker) -> None:
    """Two sequences of 9 and 20 rows in pages of 8, transposed."""
    table, lengths = np.int32([5, 0, 3, 1, 2, 4]).reshape(2, 1, 3, 1), np.int32([9, 20]).reshape(2, 1, 1, 1)
    given = [t(*each.shape, dtype="i32", values=each) for each in (lengths, table)]
    y = t.g.paged_cache_load(t(6, 3, 8, 24), *given).set_dim([2, 3, 24, 21])
    t.out(y.set_stride([3 * 24 * 21, 24 * 21, 1, 24]), 2, 3, 24, 21)


def sum_of_int4(t: Maker) -> None:
    t.out(t.g.reduction(t(34, 64, dtype="i4"), "ADD", dims=[1]), dtype="i4")


def sliced_int4(t: Maker) -> None:
    """15 elements, which end in half a byte."""
    t.out(t.g.slice(t(4, 8, dtype="i4"), [slice(1, 4), slice(1, 6)]), dtype="i4")


def quantized_in_tiles(t: Maker) -> None:
    """Scales of a matrix of 2 x 2 tiles, each of 128 rows and 4 columns."""
    y, scale = t.g.block_scale_quantize(t(130, 160), 32, axis=1)
    t.out(y, dtype="e4m3")
    t.out(scale, 256, 8, dtype="e8m0").set_reordering_type(weft.tensor_reordering.F8_128x4)


def quantized(t: Maker) -> None:
    y, scale = t.g.block_scale_quantize(t(64, 128), 32, axis=0)
    t.out(y, dtype="e4m3")
    t.out(scale, dtype="e8m0")


CASES = {
    # contractions
    "matmul": Case("product_sm90", "hopper", matmul(250, 200, 520)),
    "matmul f32": Case(
        "product_sm90", "hopper", matmul(250, 200, 520, "f32", "f32", True), engine="cuda.tf32"
    ),
    "matmul fp8": Case("product_promoted_sm90", "hopper", matmul(250, 200, 528, "e4m3", "bf16", True)),
    "matmul of few, f32": Case("portable_mma", "contraction", matmul(33, 65, 129, "f32"), engine="cuda.tf32"),
    "matmul of few": Case("portable_mma", "contraction", matmul(33, 65, 129)),
    "matmul of few, all bits": Case("portable_fma", "contraction", matmul(65, 33, 70, "f32")),
    "matmul int8": Case("portable_mma", "contraction", matmul(64, 64, 64, "i8", "i32")),
    "matmuls of few": Case("portable_direct", "contraction", matmuls),
    "matmul of odd depth": Case("map product_sm90", "packed", matmul(2048, 256, 2047)),
    "matmul of odd depth, f32": Case(
        "transpose product_cluster_split_sm90", "packed", matmul(2048, 256, 2047, "f32"), engine="cuda.tf32"
    ),
    "matmul of few rows": Case(
        "product_cluster_split_sm90", "hopper", matmul(60, 200, 520, transposed=True), knobs={"TILE_SIZE": 28}
    ),
    "matmul of few rows, fp8": Case(
        "product_cluster_split_promoted_sm90",
        "hopper",
        matmul(16, 200, 1040, "e4m3", "bf16", True),
        knobs={"TILE_SIZE": 26},
    ),
    "matmul of few rows, shared": Case(
        "product_sm90", "hopper", matmul(50, 1160, 520, transposed=True), knobs={"TILE_SIZE": 32}
    ),
    "matmul in ping-pong": Case(
        "product_pingpong_sm90", "hopper", matmul(504, 704, 520, transposed=True), knobs={"TILE_SIZE": 30}
    ),
    "matmul int8 on Hopper": Case("product_sm90", "hopper", matmul(250, 256, 528, "i8", "i32", True)),
    "matmul and a matrix": Case("product_sm90", "hopper", matmul_and_more([], two=False)),
    "matmuls and matrices": Case("product_sm90", "hopper", matmul_and_more([3], two=False)),
    "matmul of two results": Case("product_sm90", "hopper", matmul_and_more([], two=True)),
    "matmuls of two results": Case("product_sm90", "hopper", matmul_and_more([3], two=True)),
    "matmul, in use": Case(
        "product_sm90", "hopper", matmul_in_use((72, 136, 104), "bf16", m=each(72, 33, 0), k=[[[[37]]]])
    ),
    "matmul and a matrix, in use": Case(
        "product_sm90", "hopper", matmul_in_use((192, 136, 72), "bf16", has_more=True, m=each(190, 33, 0))
    ),
    "matmul of few, in use": Case(
        "portable_fma",
        "contraction",
        matmul_in_use((9, 7, 11), "f32", n=each(7, 1, 0), k=[[[[5]]], [[[11]]]]),
    ),
    "matmul, rounded between": Case("product_sm90", "hopper", rounded_product(250, 200, 512)),
    "matmul of few, rounded between": Case("portable_mma", "contraction", rounded_product(33, 65, 64)),
    "matmuls of small matrices": Case("batched", "batched", small_matmuls(300, 24, 24, 72)),
    "matmuls of small matrices, lines": Case(
        "batched", "batched", small_matmuls(300, 24, 24, 72, across=True)
    ),
    "matmuls of small matrices, whole": Case("batched", "batched", small_matmuls(40, 13, 11, 70)),
    "matmul of integers": Case("portable_fma", "contraction", exact_product),
    "totals": Case("product_sm90 combine_partials", "hopper", totals),
    "statistics of few pixels": Case("product_sm90 combine_partials", "hopper", statistics_of_few),
    "scales": Case("product_promoted_sm90", "hopper", scaled),
    "few tokens": Case("weight_only", "weight_only", few_tokens),
    "some tokens": Case("repack weight_only_sm90", "weight_only_sm90", some_tokens(70, 200, 512)),
    "some tokens, slots filled again": Case(
        "repack weight_only_sm90", "weight_only_sm90", some_tokens(32, 128, 9216)
    ),
    # convolutions
    "conv": Case("product_sm90", "hopper", conv("fprop", (4, 128, 13, 15), (200, 128, 1, 1), pad=0)),
    "conv dgrad": Case(
        "product_cluster_split_sm90", "hopper", conv("dgrad", (4, 128, 13, 15), (200, 128, 3, 3))
    ),
    "conv dgrad of steps": Case(
        "patch_sm90", "patch_sm90", conv("dgrad", (4, 128, 13, 15), (200, 128, 3, 3), 2)
    ),
    "conv dgrad of steps, flipped": Case(
        "patch_sm90", "patch_sm90", conv("dgrad", (4, 128, 13, 15), (200, 128, 3, 3), 2, flipped=True)
    ),
    "conv dgrad of steps, f32": Case(
        "product_sm90",
        "packed",
        conv("dgrad", (4, 72, 13, 15), (200, 72, 3, 3), 2, dtype="f32", flipped=True),
        engine="cuda.tf32",
    ),
    "conv, flipped": Case(
        "patch_sm90", "patch_sm90", conv("fprop", (2, 64, 40, 41), (72, 64, 3, 3), flipped=True)
    ),
    "conv wgrad": Case("product_sm90", "hopper", conv("wgrad", (4, 128, 13, 15), (200, 128, 3, 3))),
    "conv wgrad, groups between 16 bytes": Case(
        "map product_sm90", "packed", conv("wgrad", (8, 256, 7, 9), (80, 64, 3, 3))
    ),
    "conv of few tiles": Case(
        "product_cluster_split_sm90",
        "hopper",
        conv("fprop", (7, 72, 7, 7), (136, 72, 3, 3)),
        knobs={"TILE_SIZE": 25},
    ),
    "conv, prepared": Case(
        "product_prologue_sm90", "hopper", conv("fprop", (4, 72, 33, 35), (200, 72, 1, 1), 2, prepared=True)
    ),
    "conv, prepared, slots filled again": Case(
        "product_prologue_sm90", "hopper", conv("fprop", (4, 520, 33, 35), (64, 520, 1, 1), 2, prepared=True)
    ),
    "conv wgrad, prepared": Case(
        "product_sm90", "hopper", conv("wgrad", (4, 72, 13, 15), (200, 72, 3, 3), 2, prepared=True)
    ),
    "conv NCHW": Case(
        "transpose product_sm90", "packed", conv("fprop", (32, 128, 14, 14), (256, 128, 3, 3), last=False)
    ),
    "conv NCHW, all turned": Case(
        "transpose",
        "packed",
        conv("fprop", (64, 512, 7, 7), (2048, 512, 1, 1), pad=0, last=False),
        is_read_again=True,
    ),
    "conv NCHW, lines left out": Case(
        "map_tiled product_sm90",
        "packed",
        conv("fprop", (32, 512, 14, 32), (512, 512, 1, 1), 2, 0, last=False),
    ),
    "conv NCHW of one tap": Case(
        "product_sm90", "hopper", conv("fprop", (3, 72, 12, 16), (136, 72, 1, 1), pad=0, last=False)
    ),
    "conv NCHW of one tap, wgrad": Case(
        "product_sm90", "hopper", conv("wgrad", (3, 72, 12, 14), (136, 72, 1, 1), pad=0, last=False)
    ),
    "conv NCHW wgrad": Case(
        "map_tiled product_sm90", "packed", conv("wgrad", (8, 72, 16, 16), (136, 72, 3, 3), last=False)
    ),
    "conv of 64": Case("patch_sm90", "patch_sm90", conv("fprop", (8, 64, 55, 50), (64, 64, 3, 3))),
    "conv of 64 dgrad": Case("patch_sm90", "patch_sm90", conv("dgrad", (8, 64, 55, 50), (64, 64, 3, 3))),
    "conv of 64, joined": Case(
        "patch_sm90 combine_partials",
        "patch_sm90",
        conv("fprop", (8, 64, 55, 50), (64, 64, 3, 3), joined=True),
    ),
    "conv of 64, one tap, joined": Case(
        "patch_sm90 combine_partials",
        "patch_sm90",
        conv("fprop", (8, 64, 55, 50), (136, 64, 1, 1), pad=0, joined=True),
    ),
    "conv of 57, prepared": Case("patch_sm90", "patch_sm90", inverted, is_read_again=True),
    "conv of 64 NCHW": Case(
        "transpose map_tiled patch_sm90",
        "packed",
        conv("fprop", (32, 64, 24, 56), (64, 64, 3, 3), last=False),
    ),
    "conv of volumes": Case(
        "patch_sm90", "patch_sm90", conv("fprop", (2, 24, 7, 12, 35), (32, 24, 3, 3, 3), flipped=True)
    ),
    "conv of volumes dgrad": Case(
        "patch_sm90", "patch_sm90", conv("dgrad", (2, 16, 7, 12, 35), (16, 16, 3, 3, 3))
    ),
    "conv of volumes, all slots in turn": Case(
        "patch_sm90", "patch_sm90", conv("fprop", (2, 64, 16, 32, 32), (32, 64, 3, 3, 3))
    ),
    "conv of volumes wgrad": Case(
        "patch_wgrad_sm90 combine_splits",
        "patch_wgrad_sm90",
        conv("wgrad", (2, 32, 5, 15, 31), (24, 32, 3, 3, 3)),
    ),
    "conv of volumes wgrad, flipped": Case(
        "patch_wgrad_sm90 combine_splits",
        "patch_wgrad_sm90",
        conv("wgrad", (2, 16, 4, 15, 33), (72, 16, 2, 3, 3), flipped=True),
    ),
    "conv of volumes wgrad, of 3": Case(
        "map patch_wgrad_sm90 combine_splits",
        "packed",
        conv("wgrad", (2, 3, 3, 32, 48), (32, 3, 3, 3, 3)),
    ),
    "conv wgrad of few": Case(
        "patch_wgrad_sm90 combine_splits",
        "patch_wgrad_sm90",
        conv("wgrad", (3, 72, 23, 25), (16, 72, 3, 2), pad=0),
    ),
    "conv of volumes, joined": Case(
        "patch_sm90",
        "patch_sm90",
        conv("fprop", (3, 32, 7, 30, 35), (32, 32, 3, 3, 3), joined=True),
        is_read_again=True,
    ),
    "conv of few": Case("portable_mma", "contraction", conv("fprop", (1, 9, 9, 9), (24, 9, 3, 3))),
    "conv of few dgrad of steps": Case(
        "portable_fma",
        "contraction",
        conv("dgrad", (2, 9, 9, 9), (24, 9, 3, 3), 2, dtype="f32", flipped=True),
    ),
    "conv of few wgrad": Case(
        "portable_fma combine_splits",
        "contraction",
        conv("wgrad", (2, 9, 20, 20), (24, 9, 3, 3), dtype="f32"),
    ),
    "stem": Case("stem", "stem", conv("fprop", (2, 3, 61, 50), (64, 3, 7, 7), 2, 3)),
    "stem, flipped": Case("stem", "stem", conv("fprop", (2, 3, 61, 50), (64, 3, 7, 7), 2, 3, flipped=True)),
    "stem dgrad": Case("stem_dgrad", "stem", conv("dgrad", (2, 3, 61, 50), (64, 3, 7, 7), 2, 3)),
    "stem wgrad": Case(
        "stem_wgrad combine_splits", "stem", conv("wgrad", (2, 3, 61, 50), (64, 3, 7, 7), 2, 3)
    ),
    "stem of 8": Case("stem_sm90", "stem_sm90", conv("fprop", (2, 8, 64, 64), (64, 8, 7, 7), 2, 3)),
    "depthwise": Case("depthwise", "depthwise", depthwise("fprop", 3, 64)),
    "depthwise, flipped": Case("depthwise", "depthwise", depthwise("fprop", 3, 64, flipped=True)),
    "depthwise dgrad": Case("depthwise", "depthwise", depthwise("dgrad", 3, 64, joined=True)),
    "depthwise 7x7": Case("depthwise_mma", "depthwise", depthwise("fprop", 7, 64)),
    "depthwise 7x7 dgrad": Case("depthwise_mma", "depthwise", depthwise("dgrad", 7, 64, joined=True)),
    "depthwise, bands": Case("depthwise", "depthwise", depthwise("fprop", 3, 64, (70, 29))),
    "depthwise wgrad, bands": Case("depthwise_wgrad", "depthwise", depthwise("wgrad", 3, 64, (70, 29))),
    "depthwise 7x7, bands": Case("depthwise_mma", "depthwise", depthwise("fprop", 7, 64, (70, 29))),
    "depthwise wgrad": Case("depthwise_wgrad combine_splits", "depthwise", depthwise("wgrad", 3, 64)),
    # sequences without alignment
    "ctc": Case("alpha", "ctc", recognized([12, 9, 0, 0], [4, 2, 1, 0], 6)),
    "ctc of many": Case("alpha", "ctc", recognized([40, 80], [35, 20], 130, dtype="f32")),
    "ctc dgrad": Case("beta gradient", "ctc", recognized([12, 9], [4, 2], 6, backward=True)),
    # grids
    "grid": Case("sample", "grid", sampled((2, 3, 5, 7), (4, 9))),
    "grid of channels": Case("sample", "grid", sampled((2, 24, 5, 7), (4, 9), "bf16", last=True)),
    "grid, cubic": Case(
        "sample", "grid", sampled((1, 3, 5, 7), (4, 9), mode="BICUBIC_EXT", padding_mode="REFLECTION_PAD_EXT")
    ),
    "grid of volumes": Case(
        "sample", "grid", sampled((1, 2, 3, 4, 5), (2, 3, 3), padding_mode="EDGE_VAL_PAD", align_corners=True)
    ),
    "grid dgrad": Case(
        "sample_dgrid clear largest sample_dx finish", "grid", sampled((2, 3, 5, 7), (4, 9), backward=True)
    ),
    "grid dgrad of infinite losses": Case(
        "sample_dgrid clear largest sample_dx finish",
        "grid",
        sampled((2, 3, 5, 7), (4, 9), backward=True, losses=(np.inf, 1, -np.inf, 1, np.nan)),
    ),
    "grid dgrad of channels": Case(
        "sample_dgrid clear largest sample_dx finish",
        "grid",
        sampled((2, 24, 5, 7), (4, 9), "bf16", last=True, backward=True),
    ),
    "grid dgrad of doubles": Case(
        "sample_dgrid clear largest sample_dx finish",
        "grid",
        sampled((1, 3, 5, 7), (4, 9), "f64", backward=True),
    ),
    "affine grid": Case("affine", "affine_grid", affine((5, 7))),
    "affine grid dgrad": Case("affine_bwd affine_combine", "affine_grid", affine((9, 130), backward=True)),
    # recurrent layers
    "recurrent": Case("prepare forward", "recurrent", steps("LSTM", (3, 5, 20), ends_early=True)),
    "recurrent, projected": Case(
        "prepare forward",
        "recurrent",
        steps("LSTM", (2, 3, 20), "bf16", 7, cell_clip_min=-1, cell_clip_max=0.5),
    ),
    "recurrent of gates": Case(
        "prepare forward", "recurrent", steps("GRU", (3, 2, 20), "f16", is_reverse=True)
    ),
    "recurrent of many": Case("prepare forward", "recurrent", steps("TANH", (2, 70, 12))),
    "recurrent dgrad": Case("prepare backward", "recurrent", steps("LSTM", (3, 5, 20), backward=True)),
    "recurrent dgrad, projected": Case(
        "prepare backward", "recurrent", steps("LSTM", (2, 3, 20), "bf16", 7, backward=True)
    ),
    "recurrent dgrad of gates": Case(
        "prepare backward", "recurrent", steps("GRU", (3, 2, 20), "f16", backward=True, is_reverse=True)
    ),
    "recurrent dgrad of many": Case(
        "prepare backward", "recurrent", steps("RELU", (2, 70, 12), backward=True)
    ),
    # causal convolutions
    "causal": Case("forward", "causal", sequences(3, 80, 4)),
    "causal, shifted": Case("forward", "causal", sequences(3, 77, 4)),
    "causal of channels": Case("forward", "causal", sequences(70, 20, 3, last=True)),
    "causal dgrad": Case("backward combine", "causal", sequences(3, 80, 4, backward=True)),
    "causal dgrad, shifted": Case("backward combine", "causal", sequences(3, 77, 4, backward=True)),
    "causal dgrad of channels": Case(
        "backward_channels combine", "causal", sequences(70, 20, 3, "f32", last=True, backward=True)
    ),
    "causal dgrad, long": Case(
        "forward filter combine", "causal", sequences(3, 40, 19, "f16", backward=True)
    ),
    # scans and selections
    "scan": Case("scan_rows", "scan", cumulative((3, 700), 1)),
    "scan, split": Case("scan_rows scan_rows", "scan", cumulative((2, 20000), 1)),
    "scan of columns": Case("scan_columns", "scan", cumulative((40, 35), 0)),
    "scan of columns, split": Case("scan_columns scan_columns", "scan", cumulative((200, 35), 0)),
    "argmax": Case("best", "top_k", selected((5, 700), 1)),
    "argmax, split": Case("best best_join", "top_k", selected((2, 20000), 1)),
    "top k of short lines": Case("few", "top_k", selected((5, 200), 6)),
    "top k": Case("select", "top_k", selected((2, 3000), 50)),
    "top k of equal elements": Case("select", "top_k", selected((2, 3000), 50, distinct=7)),
    "top k of long lists": Case("select", "top_k", selected((2, 3000), 2500)),
    # rotary embeddings
    "rope": Case("rope rope", "rope", rotary(False)),
    "rope, interleaved": Case("rope rope", "rope", rotary(True)),
    # indices
    "gather": Case("gather", "gather", indexed(False, False)),
    "gather of elements": Case("gather", "gather", indexed(True, False)),
    "scatter_add": Case("add_slices", "gather", indexed(False, True)),
    "scatter_add, sorted": Case("add_slices", "gather", indexed(False, True, True)),
    "scatter_add of elements": Case("add_elements", "gather", indexed(True, True)),
    "scatter_add, unordered": Case(
        "add_begin add_any", "gather", indexed(True, True), engine="cuda.unordered"
    ),
    # experts
    "experts": Case("tile_list product_sm90", "grouped_sm90", experts("bf16", 128)),
    "experts, gathered": Case("tile_list product_sm90", "grouped_sm90", experts("bf16", 128, gather=True)),
    "experts fp8": Case("tile_list product_promoted_sm90", "grouped_sm90", experts("e4m3", 128, left_out=1)),
    "experts wgrad": Case("product_sm90", "grouped_sm90", experts_gradient),
    "experts f32": Case("tile_list portable_fma", "grouped", experts("f32", 40, left_out=1)),
    # attention
    "attention": Case("forward", "attention", attention(dims=(2, 70, 96, 68), use_causal_mask=True)),
    "attention, NaN in some values": Case(
        "forward",
        "attention",
        attention(dims=(2, 70, 96, 60), use_causal_mask=True, nan_values=slice(50, 60)),
    ),
    "attention, scale and bias": Case(
        "forward",
        "attention",
        attention(
            dims=(2, 70, 96, 60),
            attn_scale=lambda t: t(1, 1, 1, 1, dtype="f32", low=0.1),
            bias=lambda t: t(1, 2, 70, 96, dtype="bool8", values=np.arange(2 * 70 * 96) % 3 > 0),
        ),
    ),
    "attention, primitive operations": Case("forward", "attention_pattern", attention_pattern),
    "gradients, primitive operations": Case(
        "forward_sm90 backward_rows_sm90 backward_sm90 backward_bias",
        "attention_pattern",
        gradient_pattern(64, has_terms=True),
        is_read_again=True,
    ),
    "gradients, primitive operations, unordered": Case(
        "forward_sm90 backward_rows_sm90 backward_sm90",
        "attention_pattern",
        gradient_pattern(128, has_terms=False),
        engine="cuda.unordered",
        is_read_again=True,
    ),
    "attention of split keys": Case(
        "forward merge_splits", "attention", attention(dims=(2, 1, 600, 64), dtype="f32")
    ),
    "attention decoding": Case("decode", "attention_decode", attention(dims=(16, 1, 512, 64))),
    "attention decoding, no keys": Case(
        "decode",
        "attention_decode",
        attention(
            dims=(16, 1, 512, 64),
            use_padding_mask=True,
            seq_len_q=lambda t: t(2, 1, 1, 1, dtype="i32", values=np.ones((2, 1, 1, 1))),
            seq_len_kv=lambda t: t(2, 1, 1, 1, dtype="i32", values=np.reshape([0, 385], (2, 1, 1, 1))),
        ),
    ),
    "attention decoding, heads that share a CTA": Case(
        "decode", "attention_decode", attention(dims=(4, 1, 500, 64), use_alibi_mask=True)
    ),
    "attention decoding, FP8, largest numbers": Case(
        "amax_clear decode", "attention_decode", byte_attention("e4m3", 2, 300, False)
    ),
    "attention decoding, FP8, NaN in hidden values": Case(
        "amax_clear decode", "attention_decode", byte_attention("e4m3", 2, 300, False, slice(200, 210))
    ),
    "attention, FP8, largest numbers": Case(
        "amax_clear forward", "attention", byte_attention("e4m3", 70, 60, False)
    ),
    "attention decoding, INT8, scales of rows": Case(
        "amax_clear decode", "attention_decode", byte_attention("i8", 2, 300, True)
    ),
    "attention decoding, pages": Case("decode", "attention_decode", paged_attention(2, (16, 32))),
    "attention decoding, odd pages": Case("decode", "attention_decode", paged_attention(2, (1, 7))),
    "attention decoding, packed tables": Case("decode", "attention_decode", packed_tables(2, 16)),
    "attention, packed tables": Case("forward", "attention", packed_tables(70, 5)),
    "attention, pages": Case("forward", "attention", paged_attention(70, (16, 5))),
    "attention of long rows": Case("forward", "attention", attention(dims=(1, 33, 70, 196), dtype="f16")),
    "attention on Hopper": Case(
        "forward_sm90", "attention_hopper", attention(dims=(3, 200, 300, 128), use_causal_mask=True)
    ),
    "attention on Hopper, dynamic": Case(
        "forward_counter_sm90 forward_sm90",
        "attention_hopper",
        attention(dims=(3, 200, 300, 64), use_causal_mask=True),
        knobs={"KERNEL_CFG": 2},
    ),
    "attention on Hopper, three consumers": Case(
        "forward_sm90", "attention_hopper", attention(dims=(34, 130, 258, 128), use_causal_mask=True)
    ),
    "attention on Hopper, padded window": Case(
        "forward_sm90",
        "attention_hopper",
        attention(
            dims=(2, 400, 300, 40),
            dtype="f16",
            diagonal_band_left_bound=70,
            use_causal_mask_bottom_right=True,
            use_padding_mask=True,
            seq_len_q=lambda t: t(2, 1, 1, 1, dtype="i32", values=np.array([[[[131]]], [[[400]]]])),
            seq_len_kv=lambda t: t(2, 1, 1, 1, dtype="i32", values=np.array([[[[300]]], [[[77]]]])),
        ),
    ),
    "attention on Hopper, ragged": Case(
        "forward_sm90", "attention_hopper", packed_attention(128, "f16", use_causal_mask=True)
    ),
    "attention on Hopper, heads of 64, ragged": Case(
        "forward_sm90", "attention_hopper", packed_attention(64, "bf16")
    ),
    "attention on Hopper, heads of 256": Case(
        "forward_sm90", "attention_hopper", attention(dims=(1, 70, 150, 256), use_causal_mask=True)
    ),
    "attention on Hopper, bias": Case(
        "forward_sm90",
        "attention_hopper",
        attention(dims=(2, 70, 150, 64), attn_scale=0.1, bias=lambda t: t(1, 2, 70, 150)),
    ),
    "attention on Hopper, bias that hides NaN": Case(
        "forward_sm90",
        "attention_hopper",
        attention(
            dims=(2, 70, 150, 64),
            nan_keys=slice(100, 110),
            bias=lambda t: t(1, 1, 1, 150, values=np.where(np.arange(150) // 10 == 10, -np.inf, 0.5)),
        ),
    ),
    "attention on Hopper, bias of odd rows": Case(
        "forward_sm90",
        "attention_hopper",
        attention(
            dims=(2, 70, 151, 128),
            attn_scale=0.1,
            bias=lambda t: t(2, 1, 1, 151, dtype="f32"),
            use_alibi_mask=True,
            use_causal_mask=True,
        ),
    ),
    "attention on Hopper, mask": Case(
        "forward_sm90",
        "attention_hopper",
        attention(dims=(2, 70, 150, 128), attn_scale=0.1, bias=lambda t: t(1, 2, 70, 150, dtype="bool8")),
    ),
    "attention on Hopper, modified": Case("forward_sm90", "attention_hopper", modified_attention(64)),
    "attention on Hopper, block mask": Case(
        "forward_sm90",
        "attention_hopper",
        attention(
            dims=(2, 300, 300, 64),
            attn_scale=0.1,
            use_causal_mask=True,
            block_mask=lambda t: t(1, 2, 3, 3, dtype="i8", values=np.resize(TILES, (1, 2, 3, 3))),
        ),
    ),
    "attention on Hopper, bits of a block mask": Case(
        "forward_sm90",
        "attention_hopper",
        attention(
            dims=(1, 200, 1100, 128),
            attn_scale=0.1,
            seq_len_kv=lambda t: t(2, 1, 1, 1, dtype="i32", values=np.array([1000, 70], "i4")),
            block_mask=lambda t: t(2, 1, 2, 2, dtype="u8", values=BITS),
        ),
    ),
    "attention on Hopper, dropout": Case(
        "forward_sm90",
        "attention_hopper",
        attention(
            dims=(4, 200, 280, 64),
            attn_scale=0.1,
            dropout=lambda t: (0.25, *(t(1, 1, 1, 1, dtype="i32", values=ONE) for _ in "so")),
        ),
    ),
    "attention on Hopper, dropout by a mask": Case(
        "forward_sm90",
        "attention_hopper",
        attention(
            dims=(4, 200, 283, 64),
            attn_scale=0.1,
            dropout=lambda t: (t(1, 4, 200, 283, dtype="bool8"), t(1, 1, 1, 1, dtype="f32", low=0.5)),
        ),
    ),
    "attention on Hopper, FP8": Case(
        "amax_clear forward_sm90", "attention_hopper", fp8_attention(200, 300, 128, "e4m3")
    ),
    "attention on Hopper, FP8, dynamic": Case(
        "forward_counter_sm90 amax_clear forward_sm90",
        "attention_hopper",
        fp8_attention(400, 400, 64, "bf16"),
        knobs={"KERNEL_CFG": 2},
    ),
    "attention on Hopper, FP8, padded": Case(
        "amax_clear forward_sm90",
        "attention_hopper",
        fp8_attention(
            150,
            200,
            208,
            "e4m3",
            use_padding_mask=True,
            seq_len_q=lambda t: t(2, 1, 1, 1, dtype="i32", values=np.array([[[[131]]], [[[150]]]])),
            seq_len_kv=lambda t: t(2, 1, 1, 1, dtype="i32", values=np.array([[[[200]]], [[[77]]]])),
        ),
    ),
    "attention on Hopper, FP8, promoted": Case(
        "amax_clear forward_sm90",
        "attention_hopper",
        fp8_attention(200, 1700, 128, "bf16", low=0.5, use_causal_mask=False),
    ),
    "attention on Hopper, FP8, sums by products": Case(
        "amax_clear forward_sm90",
        "attention_hopper",
        fp8_attention(600, 300, 128, "e4m3", generate_stats=False),
    ),
    "attention on Hopper, FP8, sums by products, promoted": Case(
        "amax_clear forward_sm90",
        "attention_hopper",
        fp8_attention(70, 1700, 64, "bf16", low=0.5, use_causal_mask=False, generate_stats=False),
    ),
    "attention on Hopper, FP8 192, sums by products": Case(
        "amax_clear forward_sm90",
        "attention_hopper",
        fp8_attention(
            130,
            200,
            192,
            "f16",
            generate_stats=False,
            sink_token=lambda t: t(1, 4, 1, 1, dtype="f32"),
        ),
    ),
    "attention on Hopper, FP8 256, promoted": Case(
        "amax_clear forward_sm90",
        "attention_hopper",
        fp8_attention(70, 1700, 256, "e4m3", low=0.5, use_causal_mask=False),
    ),
    "attention on Hopper, FP8 widened": Case(
        "widen_sm90 amax_clear forward_sm90",
        "attention_hopper",
        fp8_attention(250, 300, 208, "e4m3", bias=lambda t: t(2, 4, 250, 300)),
    ),
    "attention on Hopper, FP8, ragged": Case(
        "forward_sm90", "attention_hopper", packed_attention(128, "e4m3", use_causal_mask=True)
    ),
    "attention on Hopper, FP8, dropout": Case(
        "forward_sm90",
        "attention_hopper",
        attention(
            dims=(2, 70, 150, 64),
            dtype="e4m3",
            attn_scale=0.1,
            dropout=lambda t: (0.25, *(t(1, 1, 1, 1, dtype="i32", values=ONE) for _ in "so")),
        ),
    ),
    "attention gradient": Case("backward backward_rows", "attention", attention_gradient()),
    "attention gradient, NaN in some rows": Case(
        "backward backward_rows", "attention", attention_gradient(slice(50, 60), slice(40, 42))
    ),
    "attention, MXFP8": Case("amax_clear forward", "attention", block_scaled_attention(70, 96, False)),
    "attention, MXFP8, tiles of scales": Case(
        "amax_clear forward", "attention", block_scaled_attention(5, 40, True)
    ),
    "attention gradient, MXFP8": Case(
        "amax_clear backward backward_rows", "attention", block_scaled_gradient(64, False)
    ),
    "attention gradient, MXFP8, tiles of scales": Case(
        "amax_clear backward backward_rows", "attention", block_scaled_gradient(40, True)
    ),
    "attention gradient, FP8, largest numbers": Case(
        "amax_clear backward backward_rows", "attention", byte_attention_gradient(70, 60)
    ),
    "attention gradient on Hopper, FP8": Case(
        "widen_sm90 amax_clear backward_rows_sm90 backward_sm90",
        "attention_hopper",
        byte_attention_gradient(300, 128),
    ),
    "attention gradient on Hopper, MXFP8": Case(
        "widen_sm90 amax_clear backward_rows_sm90 backward_sm90",
        "attention_hopper",
        block_scaled_gradient(128, True, 240),
    ),
    "attention gradient on Hopper, unordered FP8": Case(
        "widen_sm90 amax_clear backward_rows_sm90 backward_sm90 backward_sums_sm90",
        "attention_hopper",
        byte_attention_gradient(150, 112, "e4m3"),
        engine="cuda.unordered",
    ),
    "attention gradient on Hopper": Case(
        "backward_rows_sm90 backward_sm90",
        "attention_hopper",
        attention_gradient_of_boxes(128, "f16", use_causal_mask=True),
    ),
    "attention gradient on Hopper, sink": Case(
        "backward_rows_sm90 backward_sm90 backward_sink_sm90", "attention_hopper", attention_gradient_of_sink
    ),
    "attention gradient on Hopper, unordered dropout by a mask": Case(
        "backward_rows_sm90 backward_sm90 backward_sums_sm90",
        "attention_hopper",
        attention_gradient_of_boxes(
            64,
            "bf16",
            dropout=lambda t: (t(2, 1, 200, 150, dtype="bool8"), t(1, 1, 1, 1, dtype="f32", low=0.5)),
        ),
        engine="cuda.unordered",
    ),
    "attention gradient on Hopper, padded": Case(
        "backward_rows_sm90 backward_sm90",
        "attention_hopper",
        attention_gradient_of_boxes(
            64,
            "bf16",
            use_padding_mask=True,
            seq_len_q=lambda t: t(2, 1, 1, 1, dtype="i32", values=np.array([[[[131]]], [[[200]]]])),
            seq_len_kv=lambda t: t(2, 1, 1, 1, dtype="i32", values=np.array([[[[150]]], [[[77]]]])),
        ),
    ),
    "attention gradient on Hopper, ragged": Case(
        "backward_rows_sm90 backward_sm90",
        "attention_hopper",
        packed_attention_gradient(128, "bf16", use_causal_mask=True),
    ),
    "attention gradient on Hopper, unordered ragged": Case(
        "backward_rows_sm90 backward_sm90 backward_sums_sm90",
        "attention_hopper",
        packed_attention_gradient(64, "f16"),
        engine="cuda.unordered",
    ),
    "attention gradient on Hopper, unordered": Case(
        "backward_rows_sm90 backward_sm90 backward_sums_sm90",
        "attention_hopper",
        attention_gradient_of_boxes(128, "bf16", use_causal_mask=True),
        engine="cuda.unordered",
    ),
    "attention gradient on Hopper, unordered window": Case(
        "backward_rows_sm90 backward_sm90 backward_sums_sm90",
        "attention_hopper",
        attention_gradient_of_boxes(
            40,
            "f16",
            diagonal_band_left_bound=70,
            use_causal_mask_bottom_right=True,
            use_padding_mask=True,
            seq_len_q=lambda t: t(2, 1, 1, 1, dtype="i32", values=np.array([[[[131]]], [[[200]]]])),
            seq_len_kv=lambda t: t(2, 1, 1, 1, dtype="i32", values=np.array([[[[150]]], [[[77]]]])),
        ),
        engine="cuda.unordered",
    ),
    "attention gradient on Hopper, heads in parts": Case(
        "backward_rows_sm90 backward_sm90 backward_sums_sm90",
        "attention_hopper",
        attention_gradient_of_boxes(128, "f16", (5, 1), 330, use_causal_mask=True),
    ),
    "attention gradient on Hopper, unordered heads in parts": Case(
        "backward_rows_sm90 backward_sm90 backward_sums_sm90",
        "attention_hopper",
        attention_gradient_of_boxes(128, "bf16", (8, 1), 330, use_causal_mask_bottom_right=True),
        engine="cuda.unordered",
    ),
    "attention gradient on Hopper, heads of 192": Case(
        "backward_rows_sm90 backward_sm90",
        "attention_hopper",
        attention_gradient_of_boxes(192, "bf16", use_causal_mask=True),
    ),
    "attention gradient on Hopper, heads of 256, ragged": Case(
        "backward_rows_sm90 backward_sm90", "attention_hopper", packed_attention_gradient(256, "f16")
    ),
    "attention gradient on Hopper, fewer heads of values": Case(
        "backward_rows_sm90 backward_sm90", "attention_hopper", gradient_of_unlike_heads(128, 4, 2, 1)
    ),
    "attention gradient on Hopper, fewer heads of keys": Case(
        "backward_rows_sm90 backward_sm90", "attention_hopper", gradient_of_unlike_heads(128, 6, 2, 3)
    ),
    "attention gradient on Hopper, bias": Case(
        "backward_sm90 backward_bias", "attention_hopper", all_gradients
    ),
    "attention gradient on Hopper, mask": Case(
        "backward_sm90",
        "attention_hopper",
        attention_gradient_of_boxes(
            128,
            "bf16",
            bias=lambda t: t(2, 1, 200, 150, dtype="bool8"),
            use_alibi_mask=True,
            use_causal_mask=True,
        ),
    ),
    "attention gradient on Hopper, modified": Case(
        "backward_sm90 backward_bias", "attention_hopper", modified_attention_gradient(64, False, 4, 200)
    ),
    "attention gradient on Hopper, block mask": Case(
        "backward_sm90", "attention_hopper", masked_attention_gradient(False, 64)
    ),
    "attention gradient on Hopper, unordered bits of a block mask": Case(
        "backward_sm90 backward_sums_sm90",
        "attention_hopper",
        masked_attention_gradient(True, 128),
        "cuda.unordered",
    ),
    "attention gradient on Hopper, unordered mask": Case(
        "backward_sm90 backward_sums_sm90",
        "attention_hopper",
        attention_gradient_of_boxes(64, "f16", bias=lambda t: t(1, 4, 200, 150, dtype="f16")),
        "cuda.unordered",
    ),
    "attention, modified": Case("forward", "attention", modified_attention()),
    "attention gradient, modified": Case(
        "backward backward_bias", "attention", modified_attention_gradient(60, False)
    ),
    "attention gradient, modified as given": Case(
        "backward", "attention", modified_attention_gradient(60, True)
    ),
    "attention, block mask": Case(
        "forward",
        "attention",
        attention(dims=(2, 200, 300, 60), block_mask=lambda t: t(1, 2, 2, 3, dtype="i8", values=TILES)),
    ),
    "attention gradient, block mask": Case("backward", "attention", masked_attention_gradient(False, 60)),
    "attention gradient, bits of a block mask": Case(
        "backward", "attention", masked_attention_gradient(True, 60)
    ),
    "attention, dropout": Case("forward dropout_dump", "attention", attention_dropout),
    "attention, dropout by a mask": Case(
        "forward",
        "attention",
        attention(dims=(2, 70, 96, 60), dropout=lambda t: (t(2, 1, 70, 96, dtype="f16"),)),
    ),
    "attention gradient, all": Case("backward backward_bias backward_sink", "attention", wide_gradients),
    # rows and channels
    "layer norm": Case("registers", "rows", norm("fwd", 70, 96)),
    "layer norm of long rows": Case("pipelined", "rows", norm("fwd", 3, 65536)),
    "layer norm gradient": Case("persistent", "rows", norm("bwd", 70, 96)),
    "layer norm gradient, pairs that share": Case("pipelined columns", "rows", norm("bwd", 12, 16384)),
    "softmax of odd rows": Case("registers", "rows", lambda t: t.out(t.g.softmax(t(9, 2051, 1), axis=1))),
    "softmax of odd rows, masked by position": Case("registers", "rows", softmax_of_first_columns),
    "layer norm of odd rows": Case("registers", "rows", norm("fwd", 9, 517)),
    "layer norm gradient of odd rows": Case("persistent", "rows", norm("bwd", 1100, 257)),
    "layer norm gradient of odd rows, in stages": Case("staged", "rows", norm("bwd", 140, 4097)),
    "softmax of one long row": Case(
        "registers", "rows", lambda t: t.out(t.g.softmax(t(1, 65536, 1), axis=1))
    ),
    "layer norm gradient of one row": Case("persistent", "rows", norm("bwd", 1, 4096)),
    "sum of odd columns": Case("streamed join_splits", "rows", sum_of_columns),
    "rows, rounded between": Case("registers", "rows", rounded_rows),
    "rows, totals rounded": Case("registers", "rows", rounded_totals),
    "rows, integers": Case("registers", "rows", exact_rows),
    "rows, totals saturated": Case("registers", "rows", saturated_totals),
    "rows, totals of double": Case("registers", "rows", totals_of_double),
    "rows, indices": Case("registers", "rows", indexed_rows),
    "softmax over channels": Case("columns", "rows", lambda t: t.out(t.g.softmax(t(4, 24, 40), axis=1))),
    "sums of one row": Case(
        "streamed join_splits",
        "rows",
        lambda t: t.out(t.g.reduction(t(1, 300001), "ADD", dims=[1]), dtype="f32"),
    ),
    "instance norm of channels": Case("columns_shared", "rows", instance_norm),
    "group norm of channels": Case("streamed", "rows", group_norm(False, 120, 8, 51)),
    "group norm gradient of channels": Case("streamed", "rows", group_norm(True, 512, 128, 28)),
    "batch norm": Case("channels", "channels", batch_norm(False, (16, 64, 28, 28))),
    "batch norm gradient": Case("channels", "channels", batch_norm(True, (9, 64, 28, 28))),
    # windows
    "max pool": Case("pool", "window", pooled((2, 16, 16, 16), 3, 2)),
    "max pool of dense windows": Case("pool_tma", "window", pooled((2, 32, 16, 16), 3, 1)),
    "max pool NCHW": Case("pool_nchw", "window", pooled((2, 16, 16, 16), 3, 2, last=False, index=True)),
    "max pool of odd channels": Case("pool_unaligned", "window", pooled((2, 33, 8, 16), 3, 2)),
    "max pool of large windows": Case("pool_team", "window", pooled((2, 64, 7, 7), 7, 7)),
    "max pool where NaN wins": Case("pool pool_bwd", "window", pooled_without_numbers("PROPAGATE_NAN")),
    "max pool of bf16 where NaN wins": Case(
        "pool", "window", pooled_without_numbers("PROPAGATE_NAN", 2, "bf16")
    ),
    "max pool NCHW where NaN wins": Case(
        "pool_nchw", "window", pooled_without_numbers("PROPAGATE_NAN", 2, "bf16", last=False)
    ),
    "max pool where NaN is passed over": Case("pool", "window", pooled_without_numbers("NOT_PROPAGATE_NAN")),
    "max pool of far windows where NaN wins": Case(
        "resample resample_bwd", "window", pooled_without_numbers("PROPAGATE_NAN", 5)
    ),
    "max pool of far windows where NaN is passed over": Case(
        "resample", "window", pooled_without_numbers("NOT_PROPAGATE_NAN", 5)
    ),
    "max pool of whole planes": Case("pool_whole", "window", pooled((2, 64, 7, 7), 7, 7, last=False)),
    "max pool gradient of volumes": Case("pool_bwd", "window", pooled_volume_gradient("MAXPOOL")),
    "mean gradient of volumes": Case("pool_bwd", "window", pooled_volume_gradient("AVGPOOL_INCLUDE_PADDING")),
    "max pool gradient": Case("pool_bwd", "window", pooled_gradient(True)),
    "max pool gradient of dense windows": Case("pool_tma_bwd", "window", pooled_gradient(True, 32, 1)),
    "max pool gradient NCHW": Case("pool_nchw_bwd", "window", pooled_gradient(False)),
    "max pool with gaps": Case("resample resample_bwd", "window", pooled_with_gaps("MAXPOOL", True)),
    "mean with gaps NCHW": Case(
        "resample resample_bwd", "window", pooled_with_gaps("AVGPOOL_EXCLUDE_PADDING", False)
    ),
    "bilinear": Case("resample", "window", resized),
    "bilinear gradient": Case("resample_bwd", "window", resized_gradient),
    # what moves and maps
    "map": Case("map", "map", lambda t: t.out(t.g.relu(t.g.add(t(33, 65), t(1, 65))))),
    "map across": Case("map_tiled", "map", lambda t: t.out(t.g.add(t(64, 64, strides=[1, 64]), t(64, 64)))),
    "transpose": Case("transpose", "map", lambda t: t.out(t.g.transpose(t(70, 130), [1, 0]))),
    "transpose of odd rows": Case(
        "transpose", "map", lambda t: t.out(t.g.transpose(t(67, 131, dtype="f32"), [1, 0]), dtype="f32")
    ),
    "transpose of rows within a chunk": Case(
        "transpose", "map", lambda t: t.out(t.g.transpose(t(3, 5, 67, 3), [0, 1, 3, 2]))
    ),
    "map, rounded between": Case("map", "map", rounded_map),
    "map, integers": Case("map", "map", exact_map),
    "product of parts": Case("product_sm90", "hopper", product_of_parts),
    "softmax of parts": Case("registers", "rows", softmax_of_parts(72)),
    "softmax of parts, less aligned": Case("registers", "rows", softmax_of_parts(36)),
    "concat of other types": Case("copy", "move", joined_of_types),
    "concat across": Case("copy", "move", joined),
    "concat": Case("join", "move", lambda t: t.out(t.g.concatenate([t(33, 20), t(33, 45)], axis=1))),
    "rng": Case("rng", "rng", drawn),
    "pages of a cache": Case("paged_load", "paged_load", loaded_pages),
    "slice of int4": Case("copy", "move", sliced_int4),
    "sum of int4": Case("registers copy", "staged", sum_of_int4),
    "block scales": Case("block_scales block_values", "block_scale", quantized),
    "block scales in tiles": Case("block_scales block_values", "block_scale", quantized_in_tiles),
}


# ---- Running -----------------------------------------------------------------------------------------------


def build(case: Case, index_of: str, **where: Any) -> Maker:
    """The case planned on one engine, and built."""
    made = Maker(**where)
    case.build(made)
    engines = [answer["engine"] for answer in made.g.support()]
    made.g.create_execution_plan(engines.index(index_of), case.knobs if index_of == case.engine else None)
    made.g.build_plan_at_index(0)
    return made


def slots_of(made: Maker) -> list[Any]:
    """Those of the plan; packed ones as tokens."""

    def as_tokens(slot: Any) -> Any:
        if not slot.is_ragged:
            return slot
        _, heads, rows, size = slot.dims
        return slot._replace(dims=(made.tokens[rows], heads, size), strides=(heads * size, size, 1))

    return [as_tokens(slot) for slot in made.g.plan.slots]


def arrays(made: Maker) -> dict[int, Any]:
    """Host arrays by uid: inputs with values, and results that hold nothing yet."""
    found = {}
    for seed, slot in enumerate(slots_of(made)):
        array = buffers.empty(slot.dims, slot.strides, slot.data_type)
        given, bits = made.values.get(slot.name), dtypes.of(slot.data_type).bits
        rng = np.random.default_rng(seed)
        assert slot.is_output or given is not None, f"{slot.name}: give an input as t(...), not as an array"
        if isinstance(given, np.ndarray):
            array[...] = given.reshape(array.shape)
        elif given is not None and bits < 8:
            array[...] = rng.integers(0, 256, array.shape)
        elif given is not None and dtypes.of(slot.data_type).name[0] in "iu":
            array[...] = rng.integers(-4, 5, array.shape)
        elif given is not None:
            array[...] = rng.uniform(given, given + 2, array.shape).astype(array.dtype)
        found[slot.uid] = array
    return found


def leaves_to_copies(steps: list[dict[str, Any]]) -> bool:
    """Whether results go through the copy engine (cp.async.bulk.tensor). initcheck of compute-sanitizer
    2025.3 does not see such stores, and calls what they wrote uninitialised wherever it is read."""
    return any(re.search("staged|wgmma (over patches|of)", step["detail"]) for step in steps)


def on_gpu(slot: Any, shift: int) -> weft.DeviceArray:
    """Allocates GPU memory for a slot, starting this many elements after a 64-byte aligned address."""
    dims, strides, type_ = buffers.stored(slot.dims, slot.strides, slot.data_type)
    if slot.is_by_value or not shift:
        return weft.DeviceArray(slot.dims, slot.data_type, slot.strides)
    whole = weft.DeviceArray([buffers.span(dims, strides) + shift], type_)
    return whole.view(shift, dims, strides)


def run(made: Maker, host: dict[int, Any], reads: bool, again: bool = False, shift: int = 0) -> None:
    """Runs on the GPU, on copies of arrays; copies results back if these are to be read. again: in a
    workspace that keeps nothing of runs before; what those left elsewhere must be as they found it. shift: of
    the arrays, in elements."""
    slots = [slot for slot in slots_of(made) if slot.uid in host]
    copies = {slot.uid: on_gpu(slot, shift) for slot in slots}
    for slot in slots:
        # Bits next to an element of fewer than 8 bits are preserved, and therefore read.
        if not slot.is_output or dtypes.of(slot.data_type).bits < 8:
            copies[slot.uid].copy_from(host[slot.uid])
        elif again:  # not in the first run: initcheck detects reads of unwritten memory
            fill = poison.array(host[slot.uid].nbytes).view(host[slot.uid].dtype)
            copies[slot.uid].copy_from(fill.reshape(host[slot.uid].shape))
    made.g.execute(copies, poison.on_device(made.g.get_workspace_size()) if again else None)
    weft.backend.synchronize(made.g.plan.handle, 0)
    for slot in slots:
        if slot.is_output and reads:
            host[slot.uid][...] = copies[slot.uid].numpy()


def difference(got: Any, want: Any) -> str:
    """Describes a difference that rounding cannot explain; empty if there is none. Integers, and the bytes
    that hold elements of fewer than 8 bits, are exact."""
    allowed = 0.13 if got.dtype.itemsize == 1 else 0.02  # 3 bits of fraction, or 7
    allowed = 0 if got.dtype.kind in "iub" else allowed
    got, want = np.asarray(got).astype("f8"), np.asarray(want).astype("f8")
    is_finite = np.isfinite(want)
    if not np.array_equal(got[~is_finite], want[~is_finite], equal_nan=True):
        return "infinity or no number elsewhere"
    got, want = got[is_finite], want[is_finite]
    most = float(np.abs(want).max(initial=0))
    off = float(np.nan_to_num(np.abs(got - want), nan=np.inf).max(initial=0))
    return f"off by {off:.3g} of {most:.3g}" if off > allowed * most + 1e-6 else ""


def check(made: Maker, case: Case, given: argparse.Namespace) -> list[str]:
    """Runs a built case; returns what is wrong with it."""
    steps = made.g.plan.report["steps"]
    is_there = given.any_kernel or f"cuda.{case.family}" in [step["family"] for step in steps]
    wrong = [] if is_there else [f"not by {case.family}"]
    wrong += complaints(made.g.plan.kernels())
    wrong += [f"{step['family']} has no price" for step in steps if not 0 < step["seconds"] < 1]
    if given.plan:
        return wrong
    host = arrays(made)
    run(made, host, not (given.watched_by == "initcheck" and leaves_to_copies(steps)), shift=given.shift)
    if given.watched_by:
        return wrong
    on_cpu = build(case, "cpu.fast", handle=weft.create_handle("cpu"))
    on_cpu.values |= on_cpu.values_on_cpu
    unlike = {slot.uid for slot in slots_of(on_cpu) if slot.name in on_cpu.values_on_cpu}
    want = arrays(on_cpu)
    on_cpu.g.execute(want)
    for turn in range(given.runs):
        if turn:
            host = arrays(made)
            run(made, host, reads=True, again=True, shift=given.shift)
        found = (difference(host[uid], want[uid]) for uid in want if uid not in unlike)
        wrong += [f"run {turn + 1}: {text}" for text in found if text]
    return wrong


def build_all(cases: list[Case], where: dict[str, Any]) -> list[Maker]:
    """The cases, built."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda case: build(case, case.engine, **where), cases))


def used_by(made: Maker) -> set[str]:
    """The kernels and families that a case uses."""
    files = {Path(kernel.file).name for kernel in made.g.plan.kernels()}
    return files | {step["family"] for step in made.g.plan.report["steps"]}


def complaints(kernels: Sequence[Kernel]) -> list[str]:
    """Lists complaints about kernels: compiler warnings, and files that nothing includes."""
    found = []
    for kernel in kernels:
        texts = (kernel.text, *kernel.headers.values())
        included = {name for text in texts for name in re.findall(r'^ *#include "(.+)"', text, re.MULTILINE)}
        idle = [f"{kernel.entry} comes with {name}, unused" for name in kernel.headers.keys() - included]
        found += [*idle, kernel.log.strip("\0\n")]
    return list(filter(None, dict.fromkeys(found)))


def known() -> set[str]:
    """All kernels and families that the sources have; none where these are not."""
    folder = ROOT / "backend/engines/cuda"
    if not folder.exists():
        return set()
    kernels = {path.name for path in folder.rglob("*.cuh") if "__global__" in path.read_text()}
    names = re.findall(r"&cuda_(\w+)", (folder.parent / "engines.c").read_text())
    return kernels | {"cuda." + name for name in names if "engine" not in name}


def main() -> int:
    """Runs cases; 1 if one is wrong, or something has no case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", default="1/1", help="N/M: every Mth case, from the Nth on")
    parser.add_argument("--only", default="", help="cases whose names match this regular expression")
    parser.add_argument("--plan", action="store_true", help="for sm_90, without running")
    parser.add_argument("--any-kernel", action="store_true", help="on chips that choose others than an H200")
    parser.add_argument("--watched-by", default="", help="a tool, by sanitizer.py: nothing is compared")
    parser.add_argument("--runs", type=int, default=3, help="what one leaves in counters, the next one finds")
    parser.add_argument("--shift", type=int, default=0, help="arrays begin so many elements behind 64 bytes")
    args = parser.parse_args()
    first, step = map(int, args.part.split("/"))
    names = list(CASES)[first - 1 :: step]
    chosen = {name: CASES[name] for name in names if re.search(args.only, name)}
    if args.watched_by == "initcheck":
        chosen = {name: case for name, case in chosen.items() if not case.is_read_again}
    if not chosen:
        parser.error(f"no case matches '{args.only}' in part {args.part}")
    where = {"device": "sm_90"} if args.plan else {"handle": weft.create_handle("cuda")}
    made = build_all(list(chosen.values()), where)
    wrong, used = {}, set[str]()
    for (name, case), each in zip(chosen.items(), made, strict=True):
        found, own = check(each, case, args), used_by(each)
        wrong[name], used = found, used | own
        missing = [kernel for kernel in case.kernels.split() if f"{kernel}.cuh" not in own]
        found += [f"without {kernel}" for kernel in missing if not args.any_kernel]
        steps = [f"{step['family']}: {step['detail']}" for step in each.g.plan.report["steps"]]
        lines = ["; ".join(steps), *(f"    WRONG: {text}" for text in found)]
        print(f"{name:<40}" + "\n".join(lines), flush=True)
    del made, each
    gc.collect()  # graphs and tensors hold each other; the interpreter ends without any
    if len(chosen) == len(CASES) and known() and not args.any_kernel:
        wrong["all"], seen = sorted(known() - used), len(known() & used)
        print(f"no case for: {', '.join(wrong['all']) or 'nothing'}; {seen} kernels and families used")
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
