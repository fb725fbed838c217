# SPDX-License-Identifier: Apache-2.0
"""Random graphs: each number is the seed of one graph of 1 to 30 operations, of any types, layouts and
alignments."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import checks
import numpy as np
import weft
from definitions import BINARY, DEFINITIONS, MOST, REDUCTIONS, SLOPES, UNARY
from graph_evaluation import BOOLEANS, FLOATS, HALVES, INTEGERS, Dims, Evaluation, Graph, Node, Value, still

Array = np.ndarray[Any, Any]

MOST_OPERATIONS, MOST_ELEMENTS, LARGE_ELEMENTS = 30, 700, 12000
MOST_INPUT = 150_000  # elements of an operand
SAMPLED = ("f64", "f32", *HALVES)  # the types of images that are sampled
MOST_WORK = 3e7  # multiply-adds of an operation at sizes next to thresholds; tensor cores may do more
NEAR = [15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 511, 512, 513]
"""Extents next to those at which kernels change: vectors, tiles, warps, blocks, parts and splits."""


class Unfit(Exception):
    """Raised if an operation does not fit the existing values."""


class Drawing:
    """A graph under construction. Each method below `draw` adds an operation, or several that belong
    together."""

    def __init__(self, number: int) -> None:
        self.r = random.Random(number)
        self.numbers = np.random.default_rng(number)
        r = self.r
        self.main = r.choice(["f32"] * 6 + ["bf16"] * 4 + ["f16"] * 3 + ["f64", "e4m3", "i8", "i32", "u8"])
        compute = "f64" if self.main == "f64" else r.choice(["", "", "f32"])
        self.graph = Graph(compute=compute)
        self.whole = r.random() < 0.3  # numbers whose sums are exact
        self.is_large = r.random() < 0.08  # with tensors of several tiles
        # A separate generator, so that the other graphs of a number do not change.
        more = random.Random(~number)
        self.is_long = more.random() < 0.08  # of rows with more than 1024 elements
        self.shifts = more.choices(range(8), k=8) if more.random() < 0.2 else [0]
        self.is_near = more.random() < 0.1 and not self.is_long  # few operations at sizes next to thresholds
        if self.is_near:
            self.main = more.choice(["f32", "f16", "f16", "bf16", "bf16", "e4m3", "e5m2"])
        self.now = Evaluation(self.graph, seed=number)

    # -- Values --

    def one_in(self, n: float) -> bool:
        return self.r.random() * n < 1

    def extent(self) -> int:
        if self.is_near:
            return self.r.choice([1, 2, 3, 8, *NEAR])
        large = [31, 48, 64, 65, 100, 129] if self.is_large else []
        return self.r.choice([1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 32, *large, *large])

    @property
    def most(self) -> int:
        """Elements of a tensor."""
        return LARGE_ELEMENTS if self.is_large or self.is_long or self.is_near else MOST_ELEMENTS

    def dims(self, rank: int) -> Dims:
        """Extents of a tensor that is not large."""
        if self.is_long:
            first = [self.r.choice([1, 1, 2, 3]) for _ in range(rank - 1)]
            return (*first, self.r.choice([1027, 1030, 1031, 2050, 4099]))
        most = 3000 if self.one_in(40) and not self.is_large else self.most
        dims = [self.extent() for _ in range(rank)]
        if self.one_in(12):
            dims[self.r.randrange(rank)] = self.r.choice([33, 65, 130, 257])
        while math.prod(dims) > most:
            dims[dims.index(max(dims))] = self.r.choice([1, 2, 3])
        return tuple(dims)

    def type(self, *, float_only: bool = False) -> str:
        r = self.r.random()
        if r < 0.62 and (self.main in FLOATS or not float_only):
            return self.main
        some = ["f32", "f32", "f16", "bf16"]
        some += [] if float_only else ["f64", "e4m3", "e5m2", "i8", "u8", "i32", "i64", "u32", "bool8"]
        some += [] if float_only or not self.one_in(4) else ["e2m1", "i4", "u4", "bool1"]
        return self.r.choice(some)

    def layout(self, rank: int) -> dict[str, Any]:
        order = list(range(rank))
        if rank > 2 and self.one_in(3):
            order = [0, *range(2, rank), 1]
        elif self.one_in(5):
            self.r.shuffle(order)
        return {"order": tuple(order), "gap": self.r.choice([0] * 6 + [1, 3, 8])}

    def input(self, dims: Sequence[int], type_: str = "", data: Any = None, scale: float = 2.0) -> int:
        type_, is_given = type_ or self.type(), data is not None
        if math.prod(dims) > MOST_INPUT:  # several long extents met in one operand
            raise Unfit
        if data is None:
            wide = self.numbers.uniform(-scale, scale, tuple(dims))
            is_whole = self.whole or type_ in INTEGERS
            data = np.rint(wide * max(1.0, 2 / scale) * (1 if self.one_in(2) else 2)) if is_whole else wide
        numbers, dim = checks.narrow(data, type_), self.r.randrange(len(dims))
        value = Value(tuple(dims), type_, **self.layout(len(dims)), data=numbers)
        if not is_given and self.one_in(40):
            value.still, value.data = (dim,), still(numbers, (dim,))
        self.graph.values.append(value)
        self.now.take(len(self.graph.values) - 1)
        return len(self.graph.values) - 1

    def of(self, v: int) -> Dims:
        return self.graph.values[v].dims

    def some(self, fits: Callable[[Dims], bool], dims: Callable[[], Dims], type_: str = "") -> int:
        """Returns a value whose dims fit, preferring the latest, or a new input."""
        fitting = [
            v for v in reversed(range(len(self.graph.values))) if fits(self.of(v)) and self.is_plain(v)
        ]
        for v in fitting:
            if self.r.random() < 0.45:
                return v
        return fitting[-1] if fitting and self.one_in(3) else self.input(dims(), type_)

    def is_plain(self, v: int) -> bool:
        """True if all numbers are finite and not large."""
        base = self.now.base[v]
        return bool(np.isfinite(base).all()) and (base.size == 0 or float(np.abs(base).max()) < 512)

    def like(self, dims: Dims, type_: str = "") -> int:
        """A value of just these dims."""
        return self.some(lambda other: other == dims, lambda: dims, type_)

    def broadcast(self, dims: Dims, type_: str = "") -> int:
        """A value that broadcasts to these dims."""
        ones = tuple(n if self.r.random() < 0.5 else 1 for n in dims)
        return self.like(dims if self.one_in(2) else ones, type_)

    def tensor(self, least: int = 1, most: int = 5) -> int:
        return self.some(
            lambda dims: least <= len(dims) <= most and 0 < math.prod(dims) <= 4 * self.most,
            lambda: self.dims(self.r.randint(max(least, 2), min(most, 4))),
        )

    def image(self) -> int:
        return self.some(
            lambda dims: 3 <= len(dims) <= 5 and math.prod(dims) <= 4 * self.most,
            lambda: (
                self.r.choice([1, 2, 3]),
                self.r.choice([1, 2, 3, 4, 6, 8, *([32, 40] if self.is_large else [])]),
                *(
                    self.r.choice([3, 4, 5, 6, 7, *([14, 20] if self.is_large else [])])
                    for _ in range(self.r.choice([1, 2, 2, 2, 3]))
                ),
            ),
        )

    # -- Operations --

    def add(
        self,
        op: str,
        operands: dict[str, Any],
        results: dict[str, Dims],
        options: dict[str, Any] | None = None,
        known: dict[str, Any] | None = None,
        types: dict[str, str] | None = None,
        needs_dims: bool = False,
    ) -> list[int]:
        """Adds an operation whose results have a meaningful error bound; else raises Unfit."""
        if self.is_near:
            self.check_work(op, operands, results)
        count = len(self.graph.values)
        operands = {key: each for key, each in operands.items() if each is not None}
        node = Node(op, operands, {}, options or {}, dict(known or {}), needs_dims or self.one_in(2))
        for key, dims in results.items():
            node.known[key] = dims
            node.results[key] = len(self.graph.values)
            type_ = "" if self.one_in(2) else self.type()
            type_ = (types or {}).get(key, type_)
            self.graph.values.append(Value(dims, type_, tuple(range(len(dims)))))
            if type_ and self.one_in(6):
                self.open(len(self.graph.values) - 1)
            elif self.one_in(12):
                layout = {"order": self.layout(len(dims))["order"], "is_laid": True}
                self.graph.values[-1] = replace(self.graph.values[-1], **layout)
        try:
            self.now.run(node)
            for key, v in node.results.items():
                self.judge(v, results[key], op == "sdpa_fwd" and key in ("stats", "score_max"))
        except (Unfit, FloatingPointError):
            del self.graph.values[count:]
            raise Unfit from None
        self.graph.nodes.append(node)
        return list(node.results.values())

    def check_work(self, op: str, operands: dict[str, Any], results: dict[str, Dims]) -> None:
        """Products of large sizes take the emulated GPU minutes, above all without tensor cores."""
        first = [v for v in list(operands.values())[:2] if isinstance(v, int)]
        is_matrix = all(self.now.stored[v] in (*HALVES, "e4m3", "e5m2") for v in first)
        most = MOST_WORK if is_matrix else MOST_WORK / 8
        if op == "matmul" and math.prod(results["C"]) * self.of(first[0])[-1] > most:
            raise Unfit

    def open(self, v: int) -> None:
        """Declares a result as an output."""
        value = self.graph.values[v]
        self.graph.values[v] = replace(value, **self.layout(len(value.dims)), is_output=True, is_laid=False)

    def judge(self, v: int, dims: Dims, may_be_infinite: bool) -> None:
        base = self.now.base[v]
        assert base.shape == dims, (base.shape, dims)
        if may_be_infinite or not base.size:
            return
        if not np.isfinite(base).all() or float(np.abs(base).max()) > 2**14:
            raise Unfit
        spread, size = self.now.spread(v), float(np.sqrt((base * base).mean()))
        if not np.isfinite(spread).all():
            raise Unfit
        if self.now.stored[v] in FLOATS and float(np.sqrt((spread * spread).mean())) > 0.05 * size:
            raise Unfit

    def pointwise(self) -> None:
        forms = [list(UNARY), list(BINARY), list(SLOPES), ["BINARY_SELECT", "GEN_INDEX"]]
        mode = self.r.choice(self.r.choices(forms, [4, 6, 2, 1])[0])
        x = self.tensor()
        dims, options = self.of(x), {"mode": mode}
        operands = {"x": x}
        if mode in BINARY and self.one_in(6) and self.graph.values[x].type in FLOATS:
            options["b"] = self.r.choice([0.5, 2.0, 3.0, -1.0, 0.25])
        elif mode in BINARY or mode == "BINARY_SELECT":
            operands["b"] = self.broadcast(dims)
        if mode == "BINARY_SELECT":
            operands["t"] = self.broadcast(dims, self.r.choice(["bool8", "i8", "f32", "bool1"]))
        if mode in SLOPES:
            operands["dy"] = self.broadcast(dims)
        if mode == "GEN_INDEX":
            options["axis"] = self.r.randrange(len(dims))
        elif (
            self.one_in(8) and self.graph.compute and mode not in SLOPES and mode not in ("CMP_EQ", "CMP_NEQ")
        ):
            options |= {"alpha1": self.r.choice([0.5, -2.0])} | ({"alpha2": 0.5} if mode in BINARY else {})
        if self.one_in(2):
            options |= self.constants(mode)
        given = [self.now.base[v] for v in operands.values()]
        self.check_domain(mode, [*given, np.array(options["b"])] if "b" in options else given)
        if mode.startswith("LOGICAL") or mode == "BINARY_SELECT":
            self.check_zeros([operands["t"]] if mode == "BINARY_SELECT" else list(operands.values()))
        if mode in ("CMP_EQ", "CMP_NEQ") and any(self.now.is_inexact[v] for v in operands.values()):
            self.check_apart(given[0], options.get("b", given[-1]))
        self.add("pointwise", operands, {"dx" if mode in SLOPES else "y": dims}, options)

    def constants(self, mode: str) -> dict[str, float]:
        """Constants of a mode that differ from the defaults; whole clips, as integers have them."""
        if mode in ("RELU_FWD", "RELU_BWD"):
            lower = self.r.choice([-1.0, 0.0, 1.0])
            some = {"relu_lower_clip": lower, "relu_upper_clip": lower + self.r.choice([1.0, 3.0])}
            some["relu_lower_clip_slope"] = self.r.choice([0.25, -0.5])
            return dict(self.r.sample(list(some.items()), self.r.randint(1, 3)))
        key = {"ELU": "elu_alpha", "SOFTPLUS": "softplus_beta", "SWISH": "swish_beta"}.get(mode[:-4])
        return {key: self.r.choice([0.5, 1.5, 2.0])} if key else {}

    def check_domain(self, mode: str, given: list[Array]) -> None:
        """Restricts operands to a domain where an operation is smooth, and integers and floats agree."""
        x, b = given[0], given[-1]
        whole = all((each == np.rint(each)).all() for each in given)
        if mode in ("LOG", "SQRT", "RSQRT", "POW") and x.min(initial=1) < 0.1:
            raise Unfit
        if mode in ("DIV", "MOD", "FLOOR_MOD", "RECIPROCAL") and np.abs(b).min(initial=1) < 0.1:
            raise Unfit
        if mode in ("DIV", "POW", "MOD", "FLOOR_MOD") and whole:
            raise Unfit  # integers divide by truncation
        if mode == "ATAN2" and ((b < 0.1) & (np.abs(x) < 0.1)).any():
            raise Unfit  # where the angle jumps
        if mode == "POW" and np.abs(b).max(initial=0) > 4:
            raise Unfit
        if mode in ("EXP", "TAN") and np.abs(x).max(initial=0) > (4 if mode == "EXP" else 1.2):
            raise Unfit

    def check_zeros(self, values: list[int]) -> None:
        """Prevents zero tests that depend on rounding."""
        for v in values:
            if self.now.is_inexact[v]:
                self.check_apart(self.now.base[v], np.zeros(1))

    def check_apart(self, x: Array, b: Array) -> None:
        """Prevents equality tests that depend on rounding."""
        off = np.abs(x - b)
        if ((off > 0) & (off < 1e-3)).any():
            raise Unfit

    def matmul(self) -> None:
        a = self.tensor(2, 4)
        *batch, m, k = self.of(a)
        n = self.extent()
        some = tuple(self.r.choice([1, d, d]) for d in batch)
        b = self.some(lambda dims: dims[:-1] == (*some, k), lambda: (*some, k, n), self.matching(a))
        n = self.of(b)[-1]
        options, operands = {}, {"A": a, "B": b}
        if self.one_in(8):
            key, extent = self.r.choice([("m_override", m), ("n_override", n), ("k_override", k)])
            counts = self.numbers.integers(0, extent + 1, (*batch, 1, 1))
            operands[key] = self.input((*batch, 1, 1), self.r.choice(["i32", "i64"]), counts)
            options["padding"] = self.r.choice([0.0, 1.0])
        self.add("matmul", operands, {"C": (*batch, m, n)}, options)

    def matching(self, v: int) -> str:
        """A type for what is multiplied with a value."""
        type_ = self.graph.values[v].type
        if self.is_near and type_ in ("e4m3", "e5m2"):
            return self.r.choice(["e4m3", "e5m2"])
        return type_ if type_ and self.one_in(1.3) else ""

    def geometry(self, spatial: int, taps: Sequence[int]) -> dict[str, Any]:
        return {
            "pre_padding": [self.r.choice([0, 0, 1, n // 2]) for n in taps],
            "post_padding": [self.r.choice([0, 0, 1, n // 2]) for n in taps],
            "stride": [self.r.choice([1, 1, 2, 3]) for _ in range(spatial)],
            "dilation": [self.r.choice([1, 1, 1, 2]) for _ in range(spatial)],
        }

    def convolution(self) -> None:
        x = self.image()
        n, c, *pixels = self.of(x)
        taps = [self.r.choice([1, 1, 2, 3]) for _ in pixels]
        options = self.geometry(len(pixels), taps)
        groups = self.r.choice([g for g in (1, 1, 1, 2, 3, c) if c % g == 0])
        k = groups * self.r.choice([1, 2, 3, 4, 8])
        sizes = zip(
            pixels,
            taps,
            *(options[key] for key in ("pre_padding", "post_padding", "stride", "dilation")),
            strict=True,
        )
        y = tuple((p + pre + post - d * (t - 1) - 1) // s + 1 for p, t, pre, post, s, d in sizes)
        w, y = (k, c // groups, *taps), (n, k, *y)
        if min(y) < 1 or math.prod(y) > 4 * self.most:
            raise Unfit
        if self.one_in(5):
            options["convolution_mode"] = "CONVOLUTION"
        which = self.r.choice(["fprop", "fprop", "dgrad", "wgrad"])
        if which == "fprop":
            filters = self.some(lambda dims: dims == w, lambda: w, self.matching(x))
            self.add("conv_fprop", {"x": x, "w": filters}, {"y": y}, options)
        elif which == "wgrad":
            dy = self.like(y, self.matching(x))
            self.add("conv_wgrad", {"x": x, "dy": dy}, {"dw": w}, options, needs_dims=True)
        else:
            dy = self.like(y)
            filters = self.like(w, self.matching(dy))
            self.add("conv_dgrad", {"dy": dy, "w": filters}, {"dx": self.of(x)}, options, needs_dims=True)

    def resample(self) -> None:
        x = self.image()
        n, c, *pixels = self.of(x)
        mode = self.r.choice(
            ["MAXPOOL", "AVGPOOL_INCLUDE_PADDING", "AVGPOOL_EXCLUDE_PADDING", "NEAREST", "BILINEAR"]
        )
        is_back, options = self.one_in(3), {"mode": mode}
        if mode in ("NEAREST", "BILINEAR"):
            y = (n, c, *(self.r.choice([1, 2, 3, 5, 8]) for _ in pixels))
            options["pre_padding"] = [0] * len(pixels)
        else:
            window = [self.r.randint(1, min(3, p)) for p in pixels]
            more = self.geometry(len(pixels), window)
            options |= {"window": window, "stride": more["stride"]}
            options |= {
                key: [min(p, w - 1) for p, w in zip(more[key], window, strict=True)]
                for key in ("pre_padding", "post_padding")
            }
            # Windows must cover more than padding.
            gaps = zip(pixels, window, more["dilation"], strict=True)
            options["dilation"] = [d if d * (w - 1) < p else 1 for p, w, d in gaps]
            sizes = zip(
                pixels,
                window,
                *(options[key] for key in ("stride", "pre_padding", "post_padding", "dilation")),
                strict=True,
            )
            y = (n, c, *((p + a + b - d * (w - 1) - 1) // s + 1 for p, w, s, a, b, d in sizes))
        if math.prod(y) > 4 * self.most:
            raise Unfit
        if is_back:
            operands = {"dy": self.like(y)} | ({"x": x} if mode == "MAXPOOL" else {})
            self.add("resample_backward", operands, {"dx": self.of(x)}, options, needs_dims=True)
            return
        results, types = {"y": y}, {}
        if mode == "MAXPOOL" and self.one_in(2):
            results["index"], types["index"] = y, self.r.choice(["i8", "i32", "i64"])
        made = self.add(
            "resample", {"x": x}, results, options, types=types, needs_dims=mode in ("NEAREST", "BILINEAR")
        )
        if len(made) == 2 and self.one_in(2):
            operands = {"dy": self.like(y), "index": made[1]}
            self.add("resample_backward", operands, {"dx": self.of(x)}, options, needs_dims=True)

    def grid(self) -> None:
        """Bilinear samples of a grid that is an input, or the gradient of the images."""
        x = self.image()
        n, c, *pixels = self.of(x)
        if not 2 <= len(pixels) <= 3 or self.graph.values[x].type not in SAMPLED:
            raise Unfit
        positions = self.dims(len(pixels))
        y = (n, c, *positions)
        if math.prod(y) > 4 * self.most:
            raise Unfit
        options = {
            "padding_mode": self.r.choice(["ZERO_PAD", "EDGE_VAL_PAD"]),
            "align_corners": self.one_in(2),
        }
        # Multiples of 1/64, so that coordinates are exact in all types.
        dims = (n, *positions, len(pixels))
        grid = self.input(dims, "f32", self.numbers.integers(-80, 81, dims) / 64)
        if self.one_in(3):
            operands = {"dy": self.input(y, self.r.choice(SAMPLED)), "x": x, "grid": grid}
            types = {"dx": self.r.choice(("", *SAMPLED))}
            self.add("grid_sample_backward", operands, {"dx": self.of(x)}, options, types=types)
        else:
            types = {"y": self.r.choice(("", *SAMPLED))}
            self.add("grid_sample", {"x": x, "grid": grid}, {"y": y}, options, types=types)

    def norm(self) -> None:
        mode = self.r.choice(
            ["LAYER_NORM", "RMS_NORM", "ADA_LAYER_NORM", "INSTANCE_NORM", "BATCH_NORM", "GROUP_NORM"]
        )
        is_layer = mode in ("LAYER_NORM", "RMS_NORM", "ADA_LAYER_NORM")
        x = self.some(
            lambda dims: (2 if is_layer else 3) <= len(dims) <= 5 and dims[-1] > 1,
            lambda: (*self.dims(self.r.randint(1, 2)), *self.dims(1), self.r.choice([4, 7, 16, 33])),
        )
        dims = self.of(x)
        if math.prod(dims) > 4 * self.most or (math.prod(dims[2:]) < 2 and not is_layer):
            raise Unfit
        rank, known, options = len(dims), {}, {"mode": mode}
        affine: Dims = (1, dims[1], *[1] * (rank - 2))
        shared = (1, dims[1], *[1] * (rank - 2)) if mode == "BATCH_NORM" else (*dims[:2], *[1] * (rank - 2))
        if is_layer:
            first = self.r.randint(1, rank - 1)
            known["axes"] = [i for i in range(first, rank) if dims[i] > 1]
            affine = (*[1] * first, *dims[first:])
            shared = (*dims[:first], *[1] * (rank - first))
            affine = (dims[0], *affine[1:]) if mode == "ADA_LAYER_NORM" else affine
        if mode == "GROUP_NORM":
            options["groups"] = self.r.choice([g for g in (1, 2, 3, dims[1]) if dims[1] % g == 0])
            shared = (dims[0], options["groups"], *[1] * (rank - 2))
        scale = self.input(affine, self.type(float_only=True), scale=1.5)
        is_back = self.one_in(2.5)
        epsilon = self.r.choice([2.0**-16, 2.0**-10, 0.5])
        if is_back:
            self.norm_backward(x, scale, options, known, epsilon, affine, shared)
            return
        operands = {"x": x, "scale": scale, "bias": self.input(affine, self.type(float_only=True))}
        operands["bias"] = None if self.one_in(3) and not is_layer else operands["bias"]
        options["phase"] = self.r.choice(["INFERENCE", "TRAINING"]) if mode != "BATCH_NORM" else "TRAINING"
        results = {"y": dims}
        if options["phase"] == "TRAINING":
            results |= {} if mode == "RMS_NORM" else {"mean": shared}
            results["inv_variance"] = shared
        if mode == "BATCH_NORM" and self.one_in(2):
            operands["in_running_mean"] = self.input(shared, "f32")
            operands["in_running_var"] = self.input(shared, "f32", self.numbers.uniform(0.5, 2, shared))
            options["momentum"] = 0.25
            results |= {"out_mean": shared, "out_var": shared}
        options["epsilon"] = epsilon
        self.add("norm", operands, results, options, known, {key: "f32" for key in results if key != "y"})

    def norm_backward(
        self,
        x: int,
        scale: int,
        options: dict[str, Any],
        known: dict[str, Any],
        epsilon: float,
        affine: Dims,
        shared: Dims,
    ) -> None:
        operands = {"dy": self.like(self.of(x)), "x": x, "scale": scale}
        if self.one_in(2):
            options["epsilon"] = epsilon
        else:
            made = DEFINITIONS["norm"](options | known | {"epsilon": epsilon}, x=self.now.base[x])
            operands["inv_variance"] = self.input(shared, "f32", made["inv_variance"])
            if options["mode"] != "RMS_NORM":
                operands["mean"] = self.input(shared, "f32", made["mean"])
        results = {"dx": self.of(x), "dscale": affine, "dbias": affine}
        self.add("norm_backward", operands, results, options, known)

    def statistics(self) -> None:
        """Batch norm in parts: sums, what is made of them, and gradients."""
        x = self.image()
        dims = self.of(x)
        shared = (1, dims[1], *[1] * (len(dims) - 2))
        if self.one_in(3):
            mean, inv = (
                self.input(shared, "f32"),
                self.input(shared, "f32", self.numbers.uniform(0.5, 2, shared)),
            )
            operands = {
                "dy": self.like(dims),
                "x": x,
                "mean": mean,
                "inv_variance": inv,
                "scale": self.input(shared),
            }
            names = ("dscale", "dbias", "eq_scale_dy", "eq_scale_x", "eq_bias")
            self.add("dbn_weight", operands, dict.fromkeys(names, shared))
            return
        sums = self.add("genstats", {"x": x}, {"sum": shared, "sq_sum": shared})
        count = math.prod(dims) // dims[1]
        if count < 4 or self.one_in(2):
            return
        operands = dict(zip(("sum", "sq_sum"), sums, strict=True)) | {
            key: self.input(shared, "f32") for key in ("scale", "bias")
        }
        operands["in_running_mean"] = self.input(shared, "f32")
        operands["in_running_var"] = self.input(shared, "f32", self.numbers.uniform(0.5, 2, shared))
        options = {"epsilon": 2.0**-10, "accum_count": count, "momentum": 0.25, "mode": "TRAINING"}
        names = ("eq_scale", "eq_bias", "saved_mean", "saved_inv_variance", "out_mean", "out_var")
        scale, bias, *_ = self.add("bn_finalize", operands, dict.fromkeys(names, shared), options)
        (y,) = self.add("pointwise", {"x": x, "b": scale}, {"y": dims}, {"mode": "MUL"})
        self.add("pointwise", {"x": y, "b": bias}, {"y": dims}, {"mode": "ADD"})

    def softmax(self) -> None:
        x = self.tensor()
        dims = self.of(x)
        axis = self.r.choice([len(dims) - 1, len(dims) - 1, self.r.randrange(len(dims))])
        row = tuple(1 if i == axis else n for i, n in enumerate(dims))
        names = [name for name in ("stats", "max", "sum_exp") if self.one_in(4)]
        sink = self.like(row) if self.one_in(6) else None
        options = {key: True for key in ("stats_log2", "infinite_is_nan") if self.one_in(6)} | {"axis": axis}
        self.add("softmax", {"x": x, "sink": sink}, {"y": dims} | dict.fromkeys(names, row), options)

    def positions(self) -> None:
        """Rows whose elements are scaled, or masked, by their position."""
        x = self.some(lambda dims: 2 <= len(dims) <= 4 and dims[-1] > 1024, lambda: self.dims(2))
        dims = self.of(x)
        last = len(dims) - 1
        ones, row = (1,) * len(dims), (*dims[:-1], 1)
        (at,) = self.add(
            "pointwise", {"x": x}, {"y": dims}, {"mode": "GEN_INDEX", "axis": last}, types={"y": "f32"}
        )
        if self.one_in(2):
            scale = self.input(ones, "f32", np.full(ones, 2.0**-9))
            (at,) = self.add("pointwise", {"x": at, "b": scale}, {"y": dims}, {"mode": "MUL"})
            mode = self.r.choice(["ADD", "MUL"])
            (x,) = self.add("pointwise", {"x": x, "b": at}, {"y": dims}, {"mode": mode})
        else:
            bound = self.input(row, "f32", self.numbers.integers(1, dims[-1] + 1, row))
            mode = self.r.choice(["CMP_LT", "CMP_GE", "CMP_EQ"])
            (is_seen,) = self.add(
                "pointwise", {"x": at, "b": bound}, {"y": dims}, {"mode": mode}, types={"y": "bool8"}
            )
            low = self.input(ones, "f32", np.full(ones, -100.0))
            operands = {"x": x, "b": low, "t": is_seen}
            (x,) = self.add("pointwise", operands, {"y": dims}, {"mode": "BINARY_SELECT"})
        if self.one_in(2):
            self.add("softmax", {"x": x}, {"y": dims}, {"axis": last})
        else:
            mode = self.r.choice(["ADD", "MAX", "MIN"])
            self.add("reduction", {"x": x}, {"y": row}, {"mode": mode}, needs_dims=True)

    def reduction(self) -> None:
        x = self.tensor()
        dims = self.of(x)
        mode = self.r.choice(list(REDUCTIONS))
        y = tuple(self.r.choice([1, n, *([n // 2] if n % 2 == 0 and self.one_in(3) else [])]) for n in dims)
        group = math.prod(dims) // math.prod(y)
        whole = self.graph.values[x].type in INTEGERS + BOOLEANS
        if (mode.startswith("MUL") and group > 8) or (mode in ("AVG", "NORM2", "MUL") and whole):
            raise Unfit
        if mode == "MUL_NO_ZEROS":
            self.check_zeros([x])
        self.add("reduction", {"x": x}, {"y": y}, {"mode": mode}, needs_dims=True)

    def wide(self) -> str:
        """A float type of 16 bits or more, or none."""
        return self.r.choice(["", "f32", "f16", "bf16", "f64"])

    def move(self) -> None:
        x = self.tensor()
        dims = self.of(x)
        kind = self.r.choice(["reshape", "transpose", "transpose", "slice", "concat"])
        if kind == "reshape":
            flat = [f for n in dims for f in ([2, n // 2] if n % 2 == 0 and self.one_in(2) else [n])]
            at = self.r.randrange(len(flat))
            y = (*flat[:at], math.prod(flat[at : at + 2]), *flat[at + 2 :])
            if len(y) > 6:
                raise Unfit
            self.add("reshape", {"x": x}, {"y": y}, {"mode": "LOGICAL"}, needs_dims=True)
        elif kind == "transpose":
            order = list(range(len(dims)))
            self.r.shuffle(order)
            self.add("transpose", {"x": x}, {"y": tuple(dims[i] for i in order)}, {"permutation": order})
        elif kind == "slice":
            start = [self.r.randint(0, n - 1) if self.one_in(2) else 0 for n in dims]
            limit = [
                self.r.randint(s + 1, n) if self.one_in(2) else n for s, n in zip(start, dims, strict=True)
            ]
            steps = [self.r.choice([1, 1, 1, 2]) for _ in dims]
            y = tuple(-(-(e - s) // step) for s, e, step in zip(start, limit, steps, strict=True))
            self.add("slice", {"x": x}, {"y": y}, {"start": start, "limit": limit, "steps": steps})
        else:
            self.concat(x)

    def concat(self, x: int) -> None:
        dims, parts = self.of(x), [x]
        axis = self.r.randrange(len(dims))

        def fits(d: Dims) -> bool:
            return len(d) == len(dims) and d[:axis] + d[axis + 1 :] == dims[:axis] + dims[axis + 1 :]

        for _ in range(self.r.randint(1, 3)):
            other = (*dims[:axis], self.extent(), *dims[axis + 1 :])
            parts.append(self.some(fits, partial(tuple, other)))
        self.r.shuffle(parts)
        y = (*dims[:axis], sum(self.of(p)[axis] for p in parts), *dims[axis + 1 :])
        if math.prod(y) > 4 * self.most:
            raise Unfit
        self.add("concat", {"inputs": parts}, {"y": y}, {"axis": axis})

    def rng(self) -> None:
        options: dict[str, Any] = {
            "seed": self.r.getrandbits(40),
            "distribution": self.r.choice(["BERNOULLI", "UNIFORM", "NORMAL"]),
        }
        options |= {
            "BERNOULLI": {"bernoulli_probability": 0.625},
            "UNIFORM": {"uniform_minimum": -1.0, "uniform_maximum": 3.0},
            "NORMAL": {"normal_mean": 0.5, "normal_standard_deviation": 2.0},
        }[options["distribution"]]
        dims = self.of(self.tensor())
        ones = (1,) * len(dims)
        offset = self.input(ones, self.r.choice(["i32", "i64"]), np.full(ones, 5)) if self.one_in(2) else None
        self.add("rng", {"offset": offset}, {"y": dims}, options, needs_dims=True)

    def band_mask(self) -> None:
        """A mask along the diagonal, by lengths or by their running sums."""
        x = self.tensor(2, 5)
        dims, options = self.of(x), {}
        operands, ones = {"x": x}, (1,) * len(dims)
        options["comparison_mode"] = self.r.choice([mode for mode in BINARY if mode.startswith("CMP_")])
        if self.one_in(2):
            options["b"] = self.r.choice([0.0, -8.0, 3.0])
        else:
            operands["b"] = self.input(ones, self.r.choice(["f32", self.graph.values[x].type or "f32"]))
        key, bound = self.r.choice(["left_bound", "shift_right_bound", ""]), self.r.randint(-2, 4)
        if key and self.one_in(2):
            options[key] = bound
        elif key:
            operands[key] = self.input(ones, self.r.choice(["f32", "i32", "i64"]), np.full(ones, bound))
        for side, extent in (("q", dims[-2]), ("kv", dims[-1])) if len(dims) > 2 else ():
            lengths, type_ = self.numbers.integers(0, extent + 1, dims[0]), self.r.choice(["i32", "i64"])
            if self.one_in(3):
                sums = np.cumsum([0, *lengths]).reshape(-1, *ones[1:])
                operands[f"cu_seq_len_{side}"] = self.input(sums.shape, type_, sums)
            elif self.one_in(2):
                operands[f"seq_len_{side}"] = self.input(
                    (dims[0], *ones[1:]), type_, lengths.reshape(-1, *ones[1:])
                )
        self.add("diagonal_band_mask", operands, {"y": dims}, options)

    def causal(self) -> None:
        """A causal convolution, or its gradients."""
        x = self.some(lambda d: len(d) == 3 and 0 < math.prod(d) <= 4 * self.most, lambda: self.dims(3))
        dims, taps = self.of(x), self.r.choice([1, 2, 3, 4, 4, 7, 17])
        operands: dict[str, Any] = {
            "x": x,
            "weight": self.like((dims[1], taps), self.matching(x) or self.wide()),
        }
        operands["bias"] = self.input((dims[1],), self.wide()) if self.one_in(2) else None
        options = {"activation": self.r.choice(["IDENTITY", "SWISH_FWD"])}
        self.check_wide(operands)
        if not self.one_in(2.5):
            self.add("causal_conv1d", operands, {"y": dims}, options, types={"y": self.wide()})
            return
        operands = {"dy": self.like(dims, self.matching(x) or self.wide())} | operands
        self.check_wide(operands)
        results = {"dx": dims, "dweight": (dims[1], taps)}
        results |= {"dbias": (dims[1],)} if operands["bias"] is not None else {}
        types = {key: self.wide() for key in results}
        self.add("causal_conv1d_backward", operands, results, options, types=types)

    def recurrent(self) -> None:
        """The few steps of a recurrent layer."""

        def fits(d: Sequence[int]) -> bool:
            return len(d) == 3 and 0 < d[0] <= 5 and 0 < d[1] * d[2] <= 500

        x = self.some(fits, lambda: (self.r.randint(1, 5), self.r.randint(1, 6), 12 * self.r.randint(1, 3)))
        steps, batch, rows = self.of(x)
        gates = {"TANH": 1, "RELU": 1} | ({"LSTM": 4} if rows % 4 == 0 else {})
        gates |= {"GRU": 3} if rows % 3 == 0 else {}
        mode = self.r.choice(list(gates))
        units = rows // gates[mode]
        width = self.r.randint(1, 9) if mode == "LSTM" and self.one_in(3) else units
        operands: dict[str, Any] = {
            "x": x,
            "weight": self.like((rows, width), self.matching(x) or self.wide()),
            "bias": self.input((rows,), self.wide()) if self.one_in(2) else None,
            "hx": self.input((batch, width), self.wide()) if self.one_in(2) else None,
            "cx": self.input((batch, units), self.wide()) if mode == "LSTM" and self.one_in(2) else None,
            "projection": self.input((width, units), self.wide()) if width != units else None,
        }
        self.check_wide(operands)
        if self.one_in(3):
            lengths = np.array([self.r.randint(0, steps) for _ in range(batch)])
            operands["seq_len"] = self.input((batch,), "i32", lengths)
        results = {"y": (steps, batch, width)} | ({"hy": (batch, width)} if self.one_in(2) else {})
        results |= {"cy": (batch, units)} if mode == "LSTM" and self.one_in(2) else {}
        options = {"mode": mode, "is_reverse": self.one_in(3)}
        self.add("recurrence", operands, results, options, types={key: self.wide() for key in results})

    def check_wide(self, operands: dict[str, Any]) -> None:
        """Raises Unfit unless all operands are set to floats of 16 bits or more."""
        given = [self.graph.values[v].type for v in operands.values() if v is not None]
        if not {"f64", "f32", *HALVES}.issuperset(given):
            raise Unfit

    def block_scale(self) -> None:
        x = self.tensor()
        dims, type_ = self.of(x), self.graph.values[x].type
        if type_ not in ("f64", "f32", *HALVES):
            raise Unfit
        size, axis = (
            self.r.choice([2, 3, 16, 32]),
            self.r.choice([len(dims) - 1, self.r.randrange(len(dims))]),
        )
        type_, scale_type = self.r.choice(list(MOST)), self.r.choice(["e8m0", "e4m3", "f32", "f16"])
        scale = tuple(-(-n // size) if i == axis else n for i, n in enumerate(dims))
        known = {"y_type": type_, "scale_type": scale_type}
        made = self.add(
            "block_scale_quantize",
            {"x": x},
            {"y": dims, "scale": scale},
            {"block_size": size, "axis": axis},
            known,
            {"y": type_, "scale": scale_type},
        )
        if self.one_in(2):
            block = [size if i == axis else 1 for i in range(len(dims))][axis:]
            operands = dict(zip(("x", "scale"), made, strict=True))
            self.add(
                "block_scale_dequantize",
                operands,
                {"y": dims},
                {"block_size": block},
                types={"y": self.wide()},
            )

    def pages(self) -> None:
        """The sequences of a paged cache, or each transposed."""
        container = self.some(
            lambda d: len(d) == 4 and 0 < math.prod(d) <= self.most,
            lambda: (self.r.randint(1, 6), self.r.choice([1, 3]), self.r.choice([1, 4, 8]), self.extent()),
        )
        count, heads, size, depth = self.of(container)
        batch, entries = self.r.choice([1, 2, 3]), self.r.choice([1, 2, 5])
        rows = self.r.randint((entries - 1) * size + 1, entries * size)
        if batch * heads * rows * depth > 4 * self.most or rows == depth:
            raise Unfit
        type_ = self.r.choice(["i32", "i64"])
        lengths = self.numbers.integers(0, rows + 1, (batch, 1, 1, 1))
        table = self.numbers.integers(0, count, (batch, 1, entries, 1))
        operands = {"container": container, "seq_len": self.input(lengths.shape, type_, lengths)}
        operands["page_table"] = self.input(table.shape, type_, table)
        y = (batch, heads, rows, depth) if self.one_in(2) else (batch, heads, depth, rows)
        self.add("paged_cache_load", operands, {"y": y}, needs_dims=True)

    def dequantize(self) -> None:
        dims = self.dims(self.r.randint(2, 3))
        block = [self.r.choice([1, 2, 4, 16]) for _ in range(self.r.randint(1, 2))]
        blocks = (
            *dims[: -len(block)],
            *(-(-n // b) for n, b in zip(dims[-len(block) :], block, strict=True)),
        )
        scale = self.input(
            blocks, self.r.choice(["e8m0", "e4m3", "f32"]), np.exp2(self.numbers.integers(-3, 3, blocks))
        )
        x = self.input(dims, self.r.choice(list(MOST)))
        self.add(
            "block_scale_dequantize",
            {"x": x, "scale": scale},
            {"y": dims},
            {"block_size": block} | ({"negative_scale": True} if self.one_in(3) else {}),
            types={"y": self.wide()},
        )

    def attention(self) -> None:
        float_type = self.main if self.main in ("f32", "f16", "bf16") else "f32"
        batch, shared, group = self.r.choice([1, 2]), self.r.choice([1, 2]), self.r.choice([1, 1, 2])
        long, deep = ([65, 130], [64]) if self.is_large else ([], [])
        rows, columns = self.r.choice([1, 4, 7, 9, 16, 33, *long]), self.r.choice([1, 5, 8, 17, 33, *long])
        depth, heads = self.r.choice([4, 8, 8, 16, *deep]), shared * group

        def fits(d: Dims) -> bool:
            return (
                len(d) == 4
                and d[1] in (1, 2, 4)
                and 2 <= d[3] <= 64
                and d[2] <= 130
                and math.prod(d) <= 4 * self.most
            )

        q = self.some(fits, lambda: (batch, heads, rows, depth), float_type)
        batch, heads, rows, depth = self.of(q)
        shared = max(heads // group, 1)
        k = self.like((batch, shared, columns, depth), float_type)
        v = self.like((batch, shared, columns, self.r.choice([depth, 8])), float_type)
        if any(self.now.stored[each] not in ("f32", *HALVES) for each in (q, k, v)):
            raise Unfit
        self.attend(q, k, v, float_type)

    def near_attention(self) -> None:
        """Attention at any head size that is a multiple of 8, over grouped heads, and of pages."""
        r = self.r
        float_type = self.main if self.main in ("f32", *HALVES) else r.choice(HALVES)
        batch, shared, group = r.choice([1, 1, 2, 3]), r.choice([1, 1, 2, 3]), r.choice([1, 1, 2, 4, 5, 8])
        depth, columns = 8 * r.randint(1, 32), r.choice([1, 7, *NEAR])
        values = depth if self.one_in(1.3) else 8 * r.randint(1, 32)
        rows = r.choice([1, 2, 4, 7, *NEAR])
        most = MOST_WORK / 4 if float_type == "f32" else 4 * MOST_WORK
        while batch * shared * group * rows * columns * (depth + values) > most:
            batch, rows, columns = 1, min(rows, r.choice([1, *NEAR])), r.choice([1, 7, *NEAR])
        q = self.input((batch, shared * group, rows, depth), float_type)
        if self.one_in(4):
            page = r.choice([1, 4, 8, 16, 32, 64, 128])
            count = -(-columns // page)
            container = batch * count + r.choice([0, 1, 5])
            tables = {}
            for key in ("paged_attention_k_table", "paged_attention_v_table"):
                chosen = self.numbers.permutation(container)[: batch * count].reshape(batch, 1, count, 1)
                tables[key] = self.input(chosen.shape, "i32", chosen)
            k = self.input((container, shared, page, depth), float_type)
            v = self.input((container, shared, page, values), float_type)
            self.attend(q, k, v, float_type, columns, tables)
            return
        k = self.input((batch, shared, columns, depth), float_type)
        v = self.input((batch, shared, columns, values), float_type)
        self.attend(q, k, v, float_type)

    def attend(
        self, q: int, k: int, v: int, float_type: str, columns: int = 0, tables: dict[str, int] | None = None
    ) -> None:
        """Attention with any of its options, and its gradient. tables: of pages that hold `columns` keys."""
        batch, heads, rows, depth = self.of(q)
        columns = columns or self.of(k)[2]
        options: dict[str, Any] = {"attn_scale_value": depth**-0.5}
        operands = {"q": q, "k": k, "v": v} | (tables or {})
        if self.one_in(6):
            ones = (1, 1, 1, 1)
            operands["attn_scale"] = self.input(ones, "f32", np.full(ones, options.pop("attn_scale_value")))
        if tables:
            options["paged_attention_max_seq_len_kv"] = columns
        if self.one_in(3):
            options["diagonal_band_right_bound"] = self.r.choice([0, 0, 2])
        if self.one_in(6):
            options["diagonal_band_left_bound"] = self.r.choice([1, 4])
        if self.one_in(8):
            options["use_alibi_mask"] = True
        if self.one_in(8):
            tiles = (
                self.r.choice([1, batch]),
                self.r.choice([1, heads]),
                -(-rows // 128),
                -(-columns // 128),
            )
            type_, chosen = self.r.choice(["i8", "bool8"]), self.numbers.integers(0, 4, tiles) > 0
            operands["block_mask"] = self.input(tiles, type_, chosen)
        if self.one_in(4):
            options["diagonal_alignment"] = int(weft.diagonal_alignment.BOTTOM_RIGHT)
        if self.one_in(3):
            operands["bias"] = self.broadcast((batch, heads, rows, columns), self.type(float_only=True))
            if self.graph.values[operands["bias"]].type not in FLOATS:
                raise Unfit
        for key, extent in (("seq_len_q", rows), ("seq_len_kv", columns)):
            if (tables and key == "seq_len_kv") or self.one_in(6):
                used = self.numbers.integers(0, extent + 1, (batch, 1, 1, 1))
                operands[key] = self.input((batch, 1, 1, 1), "i32", used)
        if len(operands) + len(options) == 4 and self.one_in(3):
            operands["sink_token"] = self.input((1, heads, 1, 1), "f32")
        if self.one_in(5):
            kind = self.r.choice(["bool8", self.type()])
            operands["dropout_mask"] = self.broadcast((batch, heads, rows, columns), kind)
        o_dims, row = (*self.of(q)[:3], self.of(v)[3]), (batch, heads, rows, 1)
        is_back = self.one_in(2.5) and not tables
        results = {"o": o_dims} | ({"stats": row} if is_back or self.one_in(3) else {})
        results |= {key: row for key in ("score_max", "score_sum_exp") if self.one_in(6)}
        types = dict.fromkeys(results, "f32") | {"o": float_type}
        made = self.add("sdpa_fwd", operands, results, options, types=types)
        if is_back:
            operands |= {"o": made[0], "stats": made[1], "dO": self.like(o_dims, float_type)}
            results = {"dQ": self.of(q), "dK": self.of(k), "dV": self.of(v)}
            for key, gradient in (("bias", "dBias"), ("sink_token", "dSink_token")):
                results |= {gradient: self.of(operands[key])} if key in operands and self.one_in(2) else {}
            self.add("sdpa_bwd", operands, results, options)

    def attention_pattern(self) -> None:
        """Draws products around a softmax, of any rank, with operations in between."""
        q = self.tensor(3, 4)
        *batch, rows, depth = self.of(q)
        k = self.like((*batch, self.r.choice([5, 8, 17]), depth), self.matching(q))
        last = len(batch)
        swapped = [*range(last), last + 1, last]
        columns = self.of(k)[-2]
        (kt,) = self.add("transpose", {"x": k}, {"y": (*batch, depth, columns)}, {"permutation": swapped})
        (s,) = self.add("matmul", {"A": q, "B": kt}, {"C": (*batch, rows, columns)})
        if self.one_in(2):
            (s,) = self.add(
                "pointwise",
                {"x": s, "b": self.input((1,) * (last + 2), "f32")},
                {"y": self.of(s)},
                {"mode": "MUL"},
            )
        if self.one_in(3):
            (s,) = self.add(
                "pointwise", {"x": s, "b": self.broadcast(self.of(s))}, {"y": self.of(s)}, {"mode": "ADD"}
            )
        (p,) = self.add("softmax", {"x": s}, {"y": self.of(s)}, {"axis": last + 1})
        if self.one_in(4):
            mask = self.broadcast(self.of(s))
            (p,) = self.add("pointwise", {"x": p, "b": mask}, {"y": self.of(s)}, {"mode": "MUL"})
        v = self.like((*batch, columns, self.extent()), self.matching(q))
        (o,) = self.add("matmul", {"A": p, "B": v}, {"C": (*batch, rows, self.of(v)[-1])})
        if last == 2 and self.one_in(2):
            moved = (batch[0], rows, batch[1], self.of(v)[-1])
            (t,) = self.add("transpose", {"x": o}, {"y": moved}, {"permutation": [0, 2, 1, 3]})
            self.add(
                "reshape",
                {"x": t},
                {"y": (*moved[:2], moved[2] * moved[3])},
                {"mode": "LOGICAL"},
                needs_dims=True,
            )

    def primitive_norm(self) -> None:
        """A norm in its parts."""
        x = self.tensor(2, 4)
        dims = self.of(x)
        if dims[-1] < 2:
            raise Unfit
        row = (*dims[:-1], 1)
        (square,) = self.add("pointwise", {"x": x, "b": x}, {"y": dims}, {"mode": "MUL"})
        (mean,) = self.add("reduction", {"x": square}, {"y": row}, {"mode": "AVG"}, needs_dims=True)
        ones = (1,) * len(dims)
        (shifted,) = self.add(
            "pointwise",
            {"x": mean, "b": self.input(ones, "f32", np.full(ones, 0.5))},
            {"y": row},
            {"mode": "ADD"},
        )
        (inv,) = self.add("pointwise", {"x": shifted}, {"y": row}, {"mode": "RSQRT"})
        (y,) = self.add("pointwise", {"x": x, "b": inv}, {"y": dims}, {"mode": "MUL"})
        self.add("pointwise", {"x": y, "b": self.broadcast(dims)}, {"y": dims}, {"mode": "MUL"})

    def layer(self) -> None:
        """A product, a bias, an activation, a residual."""
        count = len(self.graph.nodes)
        self.r.choice([self.matmul, self.convolution])()
        if len(self.graph.nodes) == count:
            raise Unfit
        x = next(iter(self.graph.nodes[-1].results.values()))
        dims = self.of(x)
        for mode in self.r.sample(
            ["ADD", "RELU_FWD", "GELU_FWD", "SWISH_FWD", "MUL", "TANH_FWD"], self.r.randint(1, 3)
        ):
            operands = {"x": x} | ({"b": self.broadcast(dims)} if mode in BINARY else {})
            (x,) = self.add("pointwise", operands, {"y": dims}, {"mode": mode})

    def experts(self) -> None:
        tokens, depth, columns, experts = (
            self.r.choice([1, 5, 9, 17]),
            self.extent(),
            self.extent(),
            self.r.choice([1, 2, 5]),
        )
        token = self.some(lambda d: len(d) == 3 and d[0] == 1 and d[1] <= 40, lambda: (1, tokens, depth))
        _, tokens, depth = self.of(token)
        mode, operands, options, rows = (
            self.r.choice(["NONE", "GATHER", "SCATTER"]),
            {"token": token},
            {},
            tokens,
        )
        is_back = self.one_in(3)
        mode = "NONE" if is_back else mode
        whole = self.r.choice(["i32", "i64"])
        out = rows
        if mode == "GATHER":
            out = rows = self.r.choice([3, 8, 20])
            operands["token_index"] = self.input(
                (1, rows, 1), whole, self.numbers.integers(0, tokens, (1, rows, 1))
            )
        if mode == "SCATTER":
            top_k = self.r.choice([1, 2])
            places = self.numbers.permutation(-(-rows // top_k) * top_k)[:rows]
            options["top_k"], out = top_k, -(-rows // top_k) * top_k
            if out != rows:
                raise Unfit
            operands["token_index"] = self.input((1, rows, 1), whole, (places // top_k).reshape(1, -1, 1))
            operands["token_ks"] = self.input((1, rows, 1), whole, (places % top_k).reshape(1, -1, 1))
        firsts = np.sort(self.numbers.integers(0, rows + 1, experts)).reshape(-1, 1, 1)
        operands["first_token_offset"] = self.input((experts, 1, 1), whole, firsts)
        if is_back:
            operands["doutput"] = self.like((1, tokens, columns), self.matching(token))
            columns = self.of(operands["doutput"])[2]
            self.add("moe_grouped_matmul_bwd", operands, {"dweight": (experts, depth, columns)})
            return
        operands["weight"] = self.like((experts, depth, columns), self.matching(token))
        self.add("moe_grouped_matmul", operands, {"output": (1, out, columns)}, options | {"mode": mode})

    def draw(self) -> Graph:
        makers = {
            self.pointwise: 24,
            self.matmul: 7,
            self.convolution: 6,
            self.layer: 6,
            self.resample: 5,
            self.grid: 2,
            self.norm: 7,
            self.statistics: 3,
            self.softmax: 4,
            self.reduction: 6,
            self.move: 12,
            self.rng: 1,
            self.band_mask: 2,
            self.causal: 2,
            self.recurrent: 2,
            self.pages: 1,
            self.block_scale: 2,
            self.dequantize: 1,
            self.attention: 3,
            self.attention_pattern: 3,
            self.primitive_norm: 2,
            self.experts: 2,
        }
        if self.is_long:
            makers = {
                self.positions: 8,
                self.pointwise: 4,
                self.norm: 3,
                self.softmax: 2,
                self.reduction: 2,
                self.primitive_norm: 2,
                self.move: 2,
            }
        if self.is_near:
            makers = {
                self.near_attention: 8,
                self.matmul: 6,
                self.layer: 4,
                self.norm: 4,
                self.softmax: 2,
                self.reduction: 3,
                self.attention_pattern: 2,
                self.primitive_norm: 2,
                self.pointwise: 4,
                self.move: 3,
                self.causal: 2,
                self.band_mask: 1,
            }
        count = self.r.choice(
            [1, 1, 2, 3]
            if self.is_near
            else [1, 1, 2, 3, 4, 5, 6, 8]
            + ([] if self.is_large or self.is_long else [10, 14, 20, MOST_OPERATIONS])
        )
        for _ in range(6 * count):
            if len(self.graph.nodes) >= count:
                break
            try:
                self.r.choices(list(makers), list(makers.values()))[0]()
            except Unfit:
                continue
        if not self.graph.nodes:
            return self.draw()
        return self.close()

    def close(self) -> Graph:
        """Turns unread values into outputs and removes unread inputs."""
        read = {v for node in self.graph.nodes for v in node.reads}
        for v, value in enumerate(self.graph.values):
            value.data = value.data if v in read else None
        for node in self.graph.nodes:
            for v in node.results.values():
                value = self.graph.values[v]
                if v not in read and not value.is_output:
                    value.type = value.type or self.r.choice(
                        ["f32", self.main if self.main in ("f64", *HALVES) else "f32"]
                    )
                    self.open(v)
        for v, value in enumerate(self.graph.values):
            value.shift = self.shifts[v % len(self.shifts)]
        return self.graph


def is_near(number: int) -> bool:
    """Whether the graph of a number has sizes next to thresholds."""
    return Drawing(number).is_near


def make(number: int) -> Graph:
    """The graph of a number."""
    return Drawing(number).draw()
