"""Compares operators of weft.jax with XLA's code for plain JAX, forward and gradients, at five sizes, in
bf16.

    python -m benchmarks.jax_beside_xla [--csv benchmarks/results/h200-jax.csv]

A program has several independent calls, so that its launch overhead hardly counts; times are per call. The
forward passes of norms are so short that the buffers of many calls would cost the host more than the calls;
there, each call reads the previous result. Gradients include the forward pass.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import weft.jax


class Case(NamedTuple):
    """An operator on one set of shapes."""

    name: str
    calls: int
    """Calls in one program."""
    shapes: list[tuple[int, ...]]
    weft: Callable[..., Any]
    plain: Callable[..., Any]
    in_turn: bool = False
    """In the forward pass, each call reads the previous result."""


# ---- Plain JAX ---------------------------------------------------------------------------------------------


def conv(x: Any, w: Any, b: Any) -> Any:
    """Equivalent of weft.jax.conv with relu."""
    layouts = ("NHWC", "HWIO", "NHWC")
    return jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layouts) + b)


def linear(x: Any, w: Any, b: Any) -> Any:
    """Equivalent of weft.jax.linear with gelu_tanh."""
    return jax.nn.gelu(x @ w + b)


def layer_norm(x: Any, scale: Any, b: Any) -> Any:
    """flax's computation, in float."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    deviation = jax.lax.rsqrt(((wide - mean) ** 2).mean(-1, keepdims=True) + 1e-6)
    return ((wide - mean) * deviation * scale + b).astype(x.dtype)


def attention(q: Any, k: Any, v: Any) -> Any:
    """Causal attention, from XLA's own operations."""
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla")


# ---- Cases -------------------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    """All cases."""
    n = 32
    images = [(56, 64, 64, 3), (28, 128, 128, 3), (14, 256, 256, 3), (7, 512, 512, 3), (56, 64, 256, 1)]
    for hw, c, k, r in images:
        shapes = [(n, hw, hw, c), (r, r, c, k), (k,)]
        own = partial(weft.jax.conv, activation="relu")
        yield Case(f"conv/{n}x{hw}x{hw}x{c}_to_{k}_{r}x{r}", 16, shapes, own, conv)
    products = [(4096, 1024, 4096), (4096, 4096, 4096), (8192, 1024, 1024), (2048, 768, 3072)]
    for m, k, n in [*products, (16384, 512, 2048)]:
        own = partial(weft.jax.linear, activation="gelu_tanh")
        yield Case(f"linear/{m}x{k}x{n}", 12, [(m, k), (k, n), (n,)], own, linear)
    for m, n in ((4096, 1024), (8192, 4096), (16384, 768), (65536, 512), (2048, 8192)):
        shapes = [(m, n), (n,), (n,)]
        yield Case(f"layer_norm/{m}x{n}", 16, shapes, weft.jax.layer_norm, layer_norm, in_turn=True)
    sequences = [(8, 1024, 16, 64), (4, 2048, 16, 128), (2, 4096, 16, 128), (16, 512, 12, 64)]
    for b, t, h, d in [*sequences, (32, 256, 16, 64)]:
        own = partial(weft.jax.attention, is_causal=True)
        yield Case(f"attention/b{b}_s{t}_h{h}_d{d}", 3, [(b, t, h, d)] * 3, own, attention)


def given(case: Case) -> tuple[list[Any], list[Any], Any]:
    """First arguments of all calls, the other arguments, and the gradient of the result."""
    random = np.random.default_rng(0)

    def normal(shape: tuple[int, ...]) -> Any:
        return jnp.asarray(random.standard_normal(shape, dtype=np.float32), jnp.bfloat16)

    # different arguments, otherwise XLA would merge the calls
    firsts = [normal(case.shapes[0]) for _ in range(case.calls)]
    rest = [normal(shape) for shape in case.shapes[1:]]
    return firsts, rest, normal(jax.eval_shape(case.weft, firsts[0], *rest).shape)


def forward(function: Callable[..., Any], firsts: Any, rest: Any, dy: Any) -> Any:
    """The results of all calls."""
    return [function(x, *rest) for x in firsts]


def in_turn(function: Callable[..., Any], firsts: Any, rest: Any, dy: Any) -> Any:
    """The result of a chain of calls, which XLA must not fuse with each other."""
    x = firsts[0]
    for _ in firsts:
        x = jax.lax.optimization_barrier(function(x, *rest))
    return [x]


def gradient(function: Callable[..., Any], firsts: Any, rest: Any, dy: Any) -> Any:
    """The results and the gradients of all calls, both of which training reads."""
    outputs = [jax.vjp(function, x, *rest) for x in firsts]
    return [(y, backward(dy)) for y, backward in outputs]


# ---- Measuring ---------------------------------------------------------------------------------------------


def compiled(case: Case) -> dict[tuple[str, str], Any]:
    """The programs, by computation and by implementation of the operator."""
    arguments, outputs = given(case), {}
    for name, what in {"forward": in_turn if case.in_turn else forward, "gradient": gradient}.items():
        for whose in ("weft", "plain"):
            program = jax.jit(what, static_argnums=0).lower(getattr(case, whose), *arguments)
            outputs[name, whose] = program.compile()
    return outputs


def microseconds(programs: list[Any], arguments: Any, calls: int) -> list[float]:
    """Microseconds per call of each program: the best of 25 rounds of three runs, interleaved."""
    times: list[list[float]] = [[] for _ in programs]
    jax.block_until_ready([program(*arguments) for program in programs])
    for _ in range(25):
        for program, found in zip(programs, times, strict=True):
            begin = time.perf_counter()
            jax.block_until_ready([program(*arguments) for _ in range(3)])
            found.append((time.perf_counter() - begin) / 3 / calls)
    return [min(found) * 1e6 for found in times]


def difference(mine: Any, theirs: Any) -> float:
    """The largest relative difference of the first results, in the norm of each."""
    pairs = zip(jax.tree.leaves(mine[0]), jax.tree.leaves(theirs[0]), strict=True)
    wide = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs]
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in wide)


def rows(all_cases: list[Case]) -> Iterator[list[str]]:
    """The table, line by line; all programs are compiled before the first measurement."""
    device = f"{jax.devices()[0].device_kind}, jax {jax.__version__}, peer: plain XLA"
    with ThreadPoolExecutor(8) as pool:
        programs = list(pool.map(compiled, all_cases))
    for case, made in zip(all_cases, programs, strict=True):
        arguments = given(case)
        for what in ("forward", "gradient"):
            both = [made[what, whose] for whose in ("weft", "plain")]
            mine, theirs = microseconds(both, arguments, case.calls)
            error = difference(made[what, "weft"](*arguments), made[what, "plain"](*arguments))
            figures = [f"{mine:.2f}", f"{theirs:.2f}", f"{theirs / mine:.3f}", f"{error:.1e}"]
            yield [case.name, *figures, what, device, str(datetime.date.today())]


def main() -> None:
    """Prints the table, and writes it to the file given by --csv."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--csv", help="file to write")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose names match; default all")
    options = parser.parse_args()
    chosen = [each for each in cases() if re.search(options.only, each.name)]
    table = [["case", "weft_us", "peer_us", "ratio", "error", "what", "device", "date"]]
    print(",".join(table[0]), flush=True)
    for row in rows(chosen):
        table.append(row)
        print(",".join(row[:6]), flush=True)
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)


if __name__ == "__main__":
    main()
