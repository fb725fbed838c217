"""What a case of the benchmark is, and a function per family that makes one from its sizes: a graph, the
memory it takes, the work it does, and its oracle.

Graphs are written in the methods that cuDNN's frontend offers too: another module can stand beside Weft.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from weft.bench import oracle
from weft.bench.shapes import BSHD, NHWC, Attention, Convolution, Operand, Pool

GROUPS = ("matmul", "conv", "norm", "mem", "sdpa")
EPSILON, MOMENTUM = 1e-5, 0.1
# The type of tensors by the arithmetic of the products: tf32 is how GPUs multiply f32.
_TENSORS = {"bf16": "bf16", "tf32": "f32", "f32": "f32"}

Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A graph to time."""

    name: str
    """Group, slash, what tells it from the others."""
    arithmetic: str
    """Whose peak rate it can reach: "bf16", "tf32" or "f32"."""
    flops: float
    inputs: Mapping[str, Operand]
    outputs: Mapping[str, Operand]
    build: Callable[[Any, Any, Tensors], Tensors]
    """Given a module, its empty graph and the input tensors: the outputs by name."""
    oracle: Callable[[Any, dict[str, Any]], dict[str, Any]]
    """Given NumPy or torch and the inputs as float64: the outputs by name."""
    derive: Callable[[Any, dict[str, Any]], dict[str, Any]] | None = field(default=None)
    """The inputs that follow from others, such as the statistics that a backward pass reads."""

    @property
    def group(self) -> str:
        """The part before the slash."""
        return self.name.partition("/")[0]

    @property
    def bytes(self) -> int:
        """What must move: every input is read once, every output written once."""
        return sum(operand.bytes for operand in (*self.inputs.values(), *self.outputs.values()))

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes


# ---- Matmul ------------------------------------------------------------------------------------------------


def matmul(tag: str, arithmetic: str, m: int, n: int, k: int, activation: str = "") -> Case:
    """B lies K-major, as the weight of a linear layer does."""
    dtype = _TENSORS[arithmetic]
    inputs = {
        "A": Operand((1, m, k), dtype),
        "B": Operand((1, k, n), dtype, order=(0, 2, 1), scale=1 / math.sqrt(k)),
    }
    if activation:
        inputs["bias"] = Operand((1, 1, n), dtype)

    def build(_: Any, g: Any, t: Tensors) -> Tensors:
        product = g.matmul(A=t["A"], B=t["B"])
        if activation:
            product = g.bias(input=product, bias=t["bias"])
            product = (g.relu if activation == "relu" else g.gelu_approx_tanh)(input=product)
        return {"C": product}

    outputs = {"C": Operand((1, m, n), dtype)}
    judge = partial(oracle.matmul, activation=activation)
    return Case(f"matmul/{arithmetic}_{tag}", arithmetic, 2.0 * m * n * k, inputs, outputs, build, judge)


# ---- Convolution -------------------------------------------------------------------------------------------


def conv(kind: str, tag: str, arithmetic: str, c: Convolution, has_bias: bool = False) -> Case:
    """Convolution ("fprop"), alone or with bias and relu; its gradients by x ("dgrad") and w ("wgrad")."""
    dtype = _TENSORS[arithmetic]
    x, y = Operand(c.x, dtype, NHWC), Operand(c.y, dtype, NHWC)
    w = Operand(c.w, dtype, NHWC, scale=1 / math.sqrt(math.prod(c.w[1:])))
    options = {name: [getattr(c, name)] * 2 for name in ("padding", "stride", "dilation")}

    def fprop(_: Any, g: Any, t: Tensors) -> Tensors:
        made = g.conv_fprop(image=t["x"], weight=t["w"], **options)
        return {"y": g.relu(input=g.add(a=made, b=t["bias"])) if has_bias else made}

    def dgrad(_: Any, g: Any, t: Tensors) -> Tensors:
        return {"dx": g.conv_dgrad(loss=t["dy"], filter=t["w"], **options)}

    def wgrad(_: Any, g: Any, t: Tensors) -> Tensors:
        return {"dw": g.conv_wgrad(image=t["x"], loss=t["dy"], **options)}

    bias = {"bias": Operand((1, c.filters, 1, 1), dtype)} if has_bias else {}
    inputs, outputs, build, judge = {
        "fprop": ({"x": x, "w": w} | bias, {"y": y}, fprop, oracle.conv_fprop),
        "dgrad": ({"w": w, "dy": y}, {"dx": x}, dgrad, oracle.conv_dgrad),
        "wgrad": ({"x": x, "dy": y}, {"dw": w}, wgrad, oracle.conv_wgrad),
    }[kind]
    name = f"conv/{kind}_bias_relu_{tag}" if has_bias else f"conv/{kind}_{tag}"
    return Case(name, arithmetic, c.flops, inputs, outputs, build, partial(judge, c=c))


# ---- Normalisation -----------------------------------------------------------------------------------------

# Operations per element: each addition, multiplication and function of the definition counts one.
_NORM_FLOPS = {("layernorm", False): 7, ("layernorm", True): 13, ("rmsnorm", False): 4, ("rmsnorm", True): 9}


def row_norm(kind: str, arithmetic: str, rows: int, columns: int, is_backward: bool) -> Case:
    """Layer and RMS normalisation of rows."""
    dtype, is_centred = _TENSORS[arithmetic], kind == "layernorm"
    whole, parameter = Operand((rows, columns, 1, 1), dtype), Operand((1, columns, 1, 1), dtype)
    statistics = {"mean": Operand((rows, 1, 1, 1), "f32"), "inv": Operand((rows, 1, 1, 1), "f32")}
    if not is_centred:
        del statistics["mean"]
    name = f"norm/{kind}_{'bwd' if is_backward else 'fwd'}_{rows}x{columns}"
    flops = float(_NORM_FLOPS[kind, is_backward] * rows * columns)
    axes = (1, 2, 3)
    if not is_backward:
        inputs = {"x": whole, "scale": parameter} | ({"bias": parameter} if is_centred else {})
        inputs["eps"] = Operand((1, 1, 1, 1), "f32", value=EPSILON)
        judge = partial(oracle.norm_forward, axes=axes, is_centred=is_centred, epsilon=EPSILON)
        build = partial(_build_row_norm, kind)
        return Case(name, arithmetic, flops, inputs, {"y": whole} | statistics, build, judge)
    gradients = ("dscale", "dbias") if is_centred else ("dscale",)
    return Case(
        name,
        arithmetic,
        flops,
        {"x": whole, "dy": whole, "scale": parameter} | statistics,
        {"dx": whole} | dict.fromkeys(gradients, parameter),
        partial(_build_row_norm_backward, kind),
        partial(oracle.norm_backward, axes=axes, parameter_axes=(0,)),
        partial(_statistics, axes=axes, is_centred=is_centred),
    )


def _statistics(xp: Any, t: dict[str, Any], axes: tuple[int, ...], is_centred: bool) -> dict[str, Any]:
    return oracle.statistics(xp, t["x"], axes, is_centred, EPSILON)


def _build_row_norm(kind: str, lib: Any, g: Any, t: Tensors) -> Tensors:
    options = {"bias": t["bias"]} if "bias" in t else {}
    phase = lib.norm_forward_phase.TRAINING
    y, *found = getattr(g, kind)(
        norm_forward_phase=phase, input=t["x"], scale=t["scale"], epsilon=t["eps"], **options
    )
    return dict(zip(("y", "mean", "inv") if options else ("y", "inv"), (y, *found), strict=True))


def _build_row_norm_backward(kind: str, _: Any, g: Any, t: Tensors) -> Tensors:
    options = {"mean": t["mean"]} if "mean" in t else {"has_dbias": False}
    made = getattr(g, f"{kind}_backward")(
        grad=t["dy"], input=t["x"], scale=t["scale"], inv_variance=t["inv"], **options
    )
    return {
        name: tensor
        for name, tensor in zip(("dx", "dscale", "dbias"), made, strict=True)
        if tensor is not None
    }


def batch_norm(arithmetic: str, n: int, channels: int, size: int, is_backward: bool) -> Case:
    """Batch normalisation of images that lie channels-last, in training."""
    whole = Operand((n, channels, size, size), _TENSORS[arithmetic], NHWC)
    each = Operand((1, channels, 1, 1), "f32")
    name = f"norm/batchnorm_{'bwd' if is_backward else 'fwd'}_n{n}c{channels}hw{size}"
    flops = float(_NORM_FLOPS["layernorm", is_backward] * math.prod(whole.dims))
    axes = (0, 2, 3)
    if is_backward:
        return Case(
            name,
            arithmetic,
            flops,
            {"x": whole, "dy": whole, "scale": each, "mean": each, "inv": each},
            {"dx": whole, "dscale": each, "dbias": each},
            partial(_build_row_norm_backward, "batchnorm"),
            partial(oracle.norm_backward, axes=axes, parameter_axes=axes),
            partial(_statistics, axes=axes, is_centred=True),
        )
    inputs = {"x": whole} | dict.fromkeys(("scale", "bias", "running_mean", "running_var"), each)
    for key, number in ("eps", EPSILON), ("momentum", MOMENTUM):
        inputs[key] = Operand((1, 1, 1, 1), "f32", value=number)
    outputs = {"y": whole} | dict.fromkeys(("mean", "inv", "new_mean", "new_var"), each)
    return Case(name, arithmetic, flops, inputs, outputs, _build_batch_norm, _judge_batch_norm)


def _build_batch_norm(_: Any, g: Any, t: Tensors) -> Tensors:
    made = g.batchnorm(
        input=t["x"],
        scale=t["scale"],
        bias=t["bias"],
        in_running_mean=t["running_mean"],
        in_running_var=t["running_var"],
        epsilon=t["eps"],
        momentum=t["momentum"],
    )
    return dict(zip(("y", "mean", "inv", "new_mean", "new_var"), made, strict=True))


def _judge_batch_norm(xp: Any, t: dict[str, Any]) -> dict[str, Any]:
    found = oracle.norm_forward(xp, t, (0, 2, 3), True, EPSILON)
    return found | oracle.running(t, found, MOMENTUM, EPSILON)


# ---- Memory-bound graphs -----------------------------------------------------------------------------------


def _rows(
    tag: str,
    arithmetic: str,
    rows: int,
    columns: int,
    flops: float,
    build: Callable[[Any, Any, Tensors], Any],
    judge: Callable[[Any, dict[str, Any]], Any],
    result: Operand | None = None,
) -> Case:
    """x [rows, columns], beside r of the same shape and a bias per column in bias_gelu_residual; flops count
    per element."""
    whole = Operand((1, rows, columns), _TENSORS[arithmetic])
    inputs = {"x": whole}
    if tag == "bias_gelu_residual":
        inputs |= {"bias": Operand((1, 1, columns), whole.dtype), "r": whole}
    return Case(
        f"mem/{tag}_{rows}x{columns}",
        arithmetic,
        flops * rows * columns,
        inputs,
        {"y": result or whole},
        lambda lib, g, t: {"y": build(lib, g, t)},
        lambda xp, t: {"y": judge(xp, t)},
    )


def memory(arithmetic: str, rows: int, columns: int) -> list[Case]:
    """What graphs over rows do: a chain of pointwise operations, a reduction, softmax, a transpose."""
    sums = Operand((1, rows, 1), "f32")
    turned = Operand((1, columns, rows), _TENSORS[arithmetic])
    shape = arithmetic, rows, columns
    return [
        _rows(
            "bias_gelu_residual",
            *shape,
            3,
            lambda _, g, t: g.add(a=g.gelu_approx_tanh(input=g.bias(input=t["x"], bias=t["bias"])), b=t["r"]),
            lambda xp, t: oracle.gelu(xp, t["x"] + t["bias"]) + t["r"],
        ),
        _rows(
            "reduce_rows",
            *shape,
            1,
            lambda lib, g, t: g.reduction(input=t["x"], mode=lib.reduction_mode.ADD),
            lambda _, t: t["x"].sum(axis=2, keepdims=True),
            sums,
        ),
        _rows(
            "softmax",
            *shape,
            5,
            lambda _, g, t: g.softmax(input=t["x"], axis=2),
            lambda xp, t: oracle.softmax(xp, t["x"]),
        ),
        _rows(
            "transpose",
            *shape,
            0,
            lambda _, g, t: g.transpose(input=t["x"], permutation=[0, 2, 1]),
            lambda xp, t: xp.swapaxes(t["x"], 1, 2),
            turned,
        ),
    ]


def pool(arithmetic: str, p: Pool) -> Case:
    """Pooling of images that lie channels-last."""
    dtype = _TENSORS[arithmetic]
    x = Operand((p.n, p.channels, *p.image), dtype, NHWC)
    y = Operand((p.n, p.channels, *p.result), dtype, NHWC)

    def build(lib: Any, g: Any, t: Tensors) -> Tensors:
        mode = lib.resample_mode.MAXPOOL if p.is_max else lib.resample_mode.AVGPOOL_INCLUDE_PADDING
        edge = lib.padding_mode.NEG_INF_PAD if p.is_max else lib.padding_mode.ZERO_PAD
        sizes = {"window": [p.window] * 2, "stride": [p.stride] * 2}
        sizes |= {"pre_padding": [p.padding] * 2, "post_padding": [p.padding] * 2}
        return {"y": g.resample(input=t["x"], mode=mode, padding_mode=edge, **sizes)[0]}

    kind = f"{'max' if p.is_max else 'avg'}pool_{p.window}x{p.window}s{p.stride}"
    name = f"mem/{kind}_n{p.n}c{p.channels}hw{p.image[0]}"
    flops = float(math.prod(y.dims) * p.window**2)
    return Case(
        name, arithmetic, flops, {"x": x}, {"y": y}, build, lambda xp, t: {"y": oracle.pool(xp, t["x"], p)}
    )


# ---- Attention ---------------------------------------------------------------------------------------------


def sdpa(tag: str, arithmetic: str, a: Attention, is_backward: bool = False) -> Case:
    """Attention, forward without statistics, or backward."""
    dtype = _TENSORS[arithmetic]
    options: dict[str, Any] = {"attn_scale": a.scale} | ({"use_causal_mask": True} if a.is_causal else {})

    def operands(*names: str) -> dict[str, Operand]:
        return {name: Operand(a.dims(name), dtype, BSHD) for name in names}

    def forward(_: Any, g: Any, t: Tensors) -> Tensors:
        o, _ = g.sdpa(q=t["q"], k=t["k"], v=t["v"], generate_stats=False, **options)
        return {"o": o}

    def backward(_: Any, g: Any, t: Tensors) -> Tensors:
        made = g.sdpa_backward(
            q=t["q"], k=t["k"], v=t["v"], o=t["o"], dO=t["dO"], stats=t["stats"], **options
        )
        return dict(zip(("dQ", "dK", "dV"), made, strict=True))

    name, flops = f"sdpa/{tag}", a.flops(is_backward)
    if not is_backward:
        judge = partial(oracle.sdpa_forward, a=a)
        return Case(name, arithmetic, flops, operands("q", "k", "v"), operands("o"), forward, judge)
    inputs = operands("q", "k", "v", "o", "dO") | {"stats": Operand(a.dims("stats"), "f32")}
    outputs, judge = operands("dQ", "dK", "dV"), partial(oracle.sdpa_backward, a=a)
    follows = partial(oracle.sdpa_forward, a=a)
    return Case(name, arithmetic, flops, inputs, outputs, backward, judge, follows)
