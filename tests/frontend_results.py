"""Graphs of every operation, and the dims, strides and types that a frontend infers for their results.

The graphs are built with any module that has the interface of cuDNN's Python frontend. `python
tests/frontend_results.py [file]` builds them with the installed `cudnn` and writes
`cudnn/frontend_results.json`, which the tests compare with Weft. It needs the wheels nvidia-cudnn-frontend,
nvidia-cudnn-cu12 and cuda-bindings, and no GPU, because the graphs are only validated."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

FACTS = Path(__file__).parent / "cudnn/frontend_results.json"

Results = dict[str, Any]
"""Tensors by the names of results; None for a result that the operation does not compute."""

ROW_MAJOR, CHANNELS_LAST, TRANSPOSED = "row major", "channels last", "transposed"
FIRST_FASTEST = "first dimension fastest"
LAYOUTS: dict[str, Callable[[int], list[int]]] = {
    ROW_MAJOR: lambda rank: list(range(rank))[::-1],
    CHANNELS_LAST: lambda rank: [1, *range(rank - 1, 1, -1), 0],
    TRANSPOSED: lambda rank: [rank - 2, rank - 1, *range(rank - 3, -1, -1)],
    FIRST_FASTEST: lambda rank: list(range(rank)),
}
"""Dimensions in the order of memory, fastest first."""


def strides_of(dims: Sequence[int], layout: str, padding: int = 0) -> list[int]:
    """Strides of a layout; padding: elements after each run of the fastest dimension."""
    strides, step = [0] * len(dims), 1
    for i, dim in enumerate(LAYOUTS[layout](len(dims))):
        strides[dim] = step
        step = step * dims[dim] + (padding if i == 0 else 0)
    return strides


class Builder:
    """A graph of the module under test, and its inputs."""

    def __init__(self, module: Any, io: str, intermediate: str, handle: Any) -> None:
        self.c, self.types, self.count = module, module.data_type, 0
        self.graph = module.pygraph(
            handle=handle,
            io_data_type=self.types[io],
            intermediate_data_type=self.types[intermediate],
            compute_data_type=self.types.FLOAT,
        )

    def tensor(
        self,
        dims: Sequence[int],
        layout: str = ROW_MAJOR,
        kind: str = "",
        padding: int = 0,
        strides: Sequence[int] = (),
    ) -> Any:
        """An input of dims and a layout, or strides."""
        self.count += 1
        return self.graph.tensor(
            name=f"input{self.count}",
            dim=list(dims),
            stride=list(strides) or strides_of(dims, layout, padding),
            data_type=self.types[kind] if kind else None,
        )

    def scalar(self, rank: int = 4) -> Any:
        """A number by value."""
        self.count += 1
        ones, kind = [1] * rank, self.types.FLOAT
        name = f"scalar{self.count}"
        return self.graph.tensor(name=name, dim=ones, stride=ones, data_type=kind, is_pass_by_value=True)

    def channels(self, rank: int, count: int) -> Any:
        """A vector with an element per channel."""
        return self.tensor([1, count, *[1] * (rank - 2)], CHANNELS_LAST, "FLOAT")


CASES: dict[str, Callable[[Builder], Results]] = {}


def case(name: str, build: Callable[..., Any], *arguments: Any) -> None:
    """Adds a case. build(builder, *arguments) returns a tensor, or tensors by the names of results."""
    assert name not in CASES, name

    def results_of(b: Builder) -> Results:
        made = build(b, *arguments)
        return made if isinstance(made, dict) else {"y": made}

    CASES[name] = results_of


def named(names: str, tensors: Sequence[Any]) -> Results:
    return dict(zip(names.split(), tensors, strict=True))


# ---- Pointwise ----

UNARY = "abs ceil cos elu erf exp floor gelu gelu_approx_tanh identity log logical_not neg reciprocal relu"
UNARY += " rsqrt sigmoid sin softplus sqrt swish tan tanh"
BINARY = "add add_square div logical_and logical_or max min mod mul pow sub bias scale"
BINARY += " cmp_eq cmp_ge cmp_gt cmp_le cmp_lt cmp_neq relu_backward elu_backward gelu_backward"
BINARY += " gelu_approx_tanh_backward sigmoid_backward softplus_backward tanh_backward swish_backward"
FULL, VECTOR, COLUMN, ROW = [2, 3, 4, 5], [1, 3, 1, 1], [2, 1, 4, 1], [1, 3, 1, 5]


def pointwise(b: Builder, mode: str, *operands: tuple[Any, ...]) -> Any:
    """Adds an operation on tensors with these arguments; an operand without arguments is a number."""
    return getattr(b.graph, mode)(*[b.tensor(*each) if each else b.scalar() for each in operands])


def select(b: Builder, broadcast: int) -> Any:
    """A selection among three layouts; one operand is broadcast."""
    dims = [VECTOR if i == broadcast else FULL for i in range(3)]
    x, y = b.tensor(dims[0]), b.tensor(dims[1], CHANNELS_LAST)
    return b.graph.binary_select(x, y, b.tensor(dims[2], TRANSPOSED, "BOOLEAN"))


def leaky(b: Builder) -> Results:
    x = b.tensor([4, 8], padding=8)
    y = b.graph.leaky_relu(x, negative_slope=0.1)
    return {"y": y, "dx": b.graph.leaky_relu_backward(loss=y, input=x, negative_slope=0.1)}


def chain(b: Builder) -> Results:
    x = b.tensor(FULL, CHANNELS_LAST, padding=3)
    y = b.graph.relu(x)
    z = b.graph.add(b.graph.cmp_gt(y, x), y)
    return {"inner": y, "y": b.graph.mul(z, b.tensor(VECTOR))}


def comparison(b: Builder) -> Results:
    x = b.tensor(FULL)
    mask = b.graph.cmp_gt(x, b.tensor(FULL, CHANNELS_LAST))
    return {"mask": mask, "y": b.graph.logical_not(mask), "z": b.graph.binary_select(x, x, mask)}


def index(b: Builder) -> Any:
    return b.graph.gen_index(b.tensor(FULL, CHANNELS_LAST, padding=2), axis=2)


def add_pointwise() -> None:
    one, other = ([2, 3, 4], TRANSPOSED), ([2, 3, 4], ROW_MAJOR)
    for mode in UNARY.split():
        case(f"pointwise {mode}", pointwise, mode, ([4, 8], ROW_MAJOR, "", 8))
    for mode in BINARY.split():
        case(f"pointwise {mode}", pointwise, mode, one, other)
        case(f"pointwise {mode}, reversed", pointwise, mode, other, one)
    for layout, dims in product(LAYOUTS, ([4, 8], [2, 3, 4], FULL, [2, 3, 4, 5, 6], [1, 1, 4, 5])):
        case(f"relu of {dims}, {layout}", pointwise, "relu", (dims, layout))
        case(f"relu of {dims}, {layout}, padded", pointwise, "relu", (dims, layout, "", 3))
    pairs = {
        "equal dims": (FULL, FULL),
        "a broadcast second": (FULL, VECTOR),
        "a broadcast first": (VECTOR, FULL),
        "two broadcasts": (COLUMN, ROW),
        "two broadcasts, reversed": (ROW, COLUMN),
    }
    for (words, (x, y)), a, c in product(
        pairs.items(), (ROW_MAJOR, CHANNELS_LAST), (ROW_MAJOR, CHANNELS_LAST, TRANSPOSED)
    ):
        case(f"add of {words}, {a}, {c}", pointwise, "add", (x, a), (y, c))
        case(f"add of {words}, {a} padded, {c}", pointwise, "add", (x, a, "", 2), (y, c))
    full = (FULL, CHANNELS_LAST)
    case("add of different types", pointwise, "add", (FULL, ROW_MAJOR, "HALF"), (FULL, ROW_MAJOR, "FLOAT"))
    case("mul by a number", pointwise, "mul", full, ())
    case("mul of a number", pointwise, "mul", (), full)
    case("add of ones", pointwise, "add", ([1, 1, 1], CHANNELS_LAST), ([1, 1, 1], ROW_MAJOR))
    for broadcast in range(3):
        case(f"binary_select, operand {broadcast} broadcast", select, broadcast)
    for name, build in (("leaky_relu", leaky), ("chain", chain), ("comparison", comparison)):
        case(f"pointwise {name}", build)
    case("pointwise gen_index", index)


# ---- Products and convolutions ----


def matmul(b: Builder, a: Sequence[int], one: str, c: Sequence[int], other: str) -> Any:
    return b.graph.matmul(A=b.tensor(a, one), B=b.tensor(c, other))


def softmax(b: Builder) -> Results:
    scores = b.graph.matmul(A=b.tensor([2, 4, 8, 16]), B=b.tensor([2, 4, 16, 8], TRANSPOSED))
    most = b.graph.reduction(input=scores, mode=b.c.reduction_mode.MAX).set_dim([2, 4, 8, 1])
    e = b.graph.exp(b.graph.sub(a=scores, b=most))
    total = b.graph.reduction(input=e, mode=b.c.reduction_mode.ADD).set_dim([2, 4, 8, 1])
    return {"scores": scores, "max": most, "sum": total, "p": b.graph.div(a=e, b=total)}


def window(rank: int) -> dict[str, list[int]]:
    return dict.fromkeys(("padding", "stride", "dilation"), [1] * (rank - 2))


def convolution(b: Builder, direction: str, spatial: Sequence[int], one: str, other: str) -> Any:
    rank = 2 + len(spatial)
    x, w, y = [2, 8, *spatial], [4, 8, *[3] * len(spatial)], [2, 4, *spatial]
    if direction == "fprop":
        return b.graph.conv_fprop(image=b.tensor(x, one), weight=b.tensor(w, other), **window(rank))
    if direction == "dgrad":
        dx = b.graph.conv_dgrad(loss=b.tensor(y, one), filter=b.tensor(w, other), **window(rank))
        return dx.set_dim(x)
    dw = b.graph.conv_wgrad(image=b.tensor(x, one), loss=b.tensor(y, other), **window(rank))
    return dw.set_dim(w)


def convolution_block(b: Builder) -> Results:
    y = b.graph.conv_fprop(image=b.tensor([2, 8, 6, 7]), weight=b.tensor([4, 8, 3, 3]), **window(4))
    z = b.graph.bias(y, b.tensor([1, 4, 1, 1]))
    return {"y": y, "z": z, "r": b.graph.add(b.tensor([2, 4, 6, 7]), b.graph.relu(z))}


def grouped_convolution(b: Builder) -> Any:
    return b.graph.conv_fprop(image=b.tensor([2, 8, 6, 7]), weight=b.tensor([4, 2, 3, 3]), **window(4))


def strided_convolution(b: Builder) -> Any:
    steps = {"pre_padding": [0, 1], "post_padding": [2, 1], "stride": [2, 3], "dilation": [1, 2]}
    return b.graph.conv_fprop(image=b.tensor([2, 8, 9, 11]), weight=b.tensor([4, 8, 3, 3]), **steps)


def convolution_with_sums(b: Builder) -> Results:
    y = b.graph.conv_fprop(image=b.tensor([2, 8, 6, 7]), weight=b.tensor([4, 8, 3, 3]), **window(4))
    return {"y": y, **named("sum sq_sum", b.graph.genstats(y))}


def genstats(b: Builder, layout: str) -> Results:
    return named("sum sq_sum", b.graph.genstats(b.tensor([2, 8, 6, 7], layout)))


def add_products() -> None:
    shapes = {
        "2d": ([3, 4], [4, 5]),
        "3d": ([2, 3, 4], [2, 4, 5]),
        "3d, second shared": ([2, 3, 4], [1, 4, 5]),
        "3d, first shared": ([1, 3, 4], [2, 4, 5]),
        "4d": ([2, 3, 4, 5], [2, 3, 5, 6]),
    }
    for (words, (a, c)), one, other in product(shapes.items(), *[(ROW_MAJOR, TRANSPOSED)] * 2):
        case(f"matmul {words}, {one}, {other}", matmul, a, one, c, other)
    case("softmax of a product", softmax)
    for direction, spatial, one, other in product(
        ("fprop", "dgrad", "wgrad"), ([6], [6, 7], [6, 7, 8]), *[(ROW_MAJOR, CHANNELS_LAST)] * 2
    ):
        name = f"conv_{direction} {len(spatial)}d, {one}, {other}"
        case(name, convolution, direction, spatial, one, other)
    case("conv_fprop, bias, relu, add", convolution_block)
    case("conv_fprop, grouped", grouped_convolution)
    case("conv_fprop, strided", strided_convolution)
    case("conv_fprop, genstats", convolution_with_sums)
    for layout in (ROW_MAJOR, CHANNELS_LAST):
        case(f"genstats, {layout}", genstats, layout)


# ---- Reductions and what moves elements ----


def reduction(b: Builder, x: Sequence[int], y: Sequence[int], layout: str, padding: int = 0) -> Any:
    mode = b.c.reduction_mode.ADD
    return b.graph.reduction(input=b.tensor(x, layout, padding=padding), mode=mode).set_dim(y)


def reshape(b: Builder, x: Sequence[int], y: Sequence[int], layout: str, mode: str = "") -> Any:
    more = {"reshape_mode": getattr(b.c.reshape_mode, mode)} if mode else {}
    return b.graph.reshape(input=b.tensor(x, layout), **more).set_dim(y)


def slices(b: Builder, x: Sequence[int], boxes: Sequence[slice], layout: str, padding: int = 0) -> Any:
    return b.graph.slice(input=b.tensor(x, layout, padding=padding), slices=boxes)


def transpose(b: Builder, x: Sequence[int], order: Sequence[int], layout: str, padding: int) -> Any:
    return b.graph.transpose(input=b.tensor(x, layout, padding=padding), permutation=order)


def transpose_and_relu(b: Builder) -> Results:
    turned = transpose(b, FULL, [0, 2, 1, 3], ROW_MAJOR, 0)
    return {"turned": turned, "y": b.graph.relu(turned)}


def concatenate(b: Builder, axis: int, one: str, other: str, padding: int = 0) -> Any:
    dims = [[extent if i == axis else e for i, e in enumerate(FULL)] for extent in (2, 3, 5)]
    parts = [b.tensor(dims[0], one, padding=padding), b.tensor(dims[1], other)]
    return b.graph.concatenate(inputs=parts, axis=axis).set_dim(dims[2])


def add_moves() -> None:
    reductions = {
        "2d": ([4, 8], [4, 1]),
        "3d, last": ([2, 3, 4], [2, 3, 1]),
        "3d, middle": ([2, 3, 4], [2, 1, 4]),
        "4d, last": (FULL, [2, 3, 4, 1]),
        "4d, to channels": (FULL, [1, 3, 1, 1]),
        "4d, spatial": (FULL, [2, 3, 1, 1]),
        "4d, channels": (FULL, [2, 1, 4, 5]),
        "5d": ([2, 3, 4, 5, 6], [2, 3, 4, 1, 6]),
        "all": (FULL, [1, 1, 1, 1]),
    }
    for (words, (x, y)), layout in product(reductions.items(), LAYOUTS):
        case(f"reduction {words}, {layout}", reduction, x, y, layout)
    case("reduction of padded rows", reduction, [2, 3, 4], [2, 3, 1], ROW_MAJOR, 4)
    reshapes = {
        "4d to 2d": (FULL, [6, 20]),
        "4d to 3d": (FULL, [2, 12, 5]),
        "4d to 4d": (FULL, [3, 2, 5, 4]),
        "3d to 5d": ([6, 4, 5], [2, 3, 2, 2, 5]),
    }
    for (words, (x, y)), layout in product(reshapes.items(), (ROW_MAJOR, CHANNELS_LAST)):
        case(f"reshape {words}, {layout}", reshape, x, y, layout)
    for words, x, y in (("2d to 4d", [6, 20], FULL), ("2d to 1d", [4, 5], [20]), ("1d to 2d", [20], [4, 5])):
        case(f"reshape {words}", reshape, x, y, ROW_MAJOR)
    for mode in ("VIEW_ONLY", "LOGICAL"):
        case(f"reshape, {mode}", reshape, FULL, [2, 12, 5], ROW_MAJOR, mode)
    boxes = {
        "": [slice(0, 4), slice(1, 3), slice(2, 5), slice(0, 8)],
        ", steps": [slice(0, 4, 2), slice(0, 3), slice(1, 6, 2), slice(0, 8, 3)],
        ", one row": [slice(0, 4), slice(0, 3), slice(1, 2), slice(0, 8)],
    }
    for (words, box), layout in product(boxes.items(), (ROW_MAJOR, CHANNELS_LAST)):
        case(f"slice{words}, {layout}", slices, [4, 3, 6, 8], box, layout)
    case("slice of padded rows", slices, [4, 3, 6, 8], boxes[", steps"], ROW_MAJOR, 5)
    case("slice 2d, steps", slices, [8, 9], [slice(1, 8, 2), slice(0, 9, 3)], ROW_MAJOR)
    orders = {"2d": ([4, 8], [1, 0]), "3d": ([2, 3, 4], [0, 2, 1]), "4d": (FULL, [0, 2, 1, 3])}
    orders["4d, reversed"] = (FULL, [3, 2, 1, 0])
    for words, (x, order) in orders.items():
        case(f"transpose {words}, row major", transpose, x, order, ROW_MAJOR, 0)
        case(f"transpose {words}, padded", transpose, x, order, ROW_MAJOR, 3)
        case(f"transpose {words}, transposed", transpose, x, order, TRANSPOSED, 0)
    case("transpose, relu", transpose_and_relu)
    for axis, layout in product((0, 1, 3), (ROW_MAJOR, CHANNELS_LAST)):
        case(f"concatenate axis {axis}, {layout}", concatenate, axis, layout, layout)
    for one, other in product((ROW_MAJOR, CHANNELS_LAST), (ROW_MAJOR, TRANSPOSED)):
        case(f"concatenate {one} padded, {other}", concatenate, 1, one, other, 2)


# ---- Norms ----


def batchnorm(b: Builder, dims: Sequence[int], layout: str, padding: int) -> Results:
    rank = len(dims)
    keys = ("scale", "bias", "in_running_mean", "in_running_var")
    more = {key: b.channels(rank, dims[1]) for key in keys}
    more |= {key: b.scalar(rank) for key in ("epsilon", "momentum")}
    made = b.graph.batchnorm(input=b.tensor(dims, layout, padding=padding), **more)
    return named("y mean inv_var next_mean next_var", made)


def batchnorm_backward(b: Builder, dims: Sequence[int], layout: str, padding: int) -> Results:
    x, dy = b.tensor(dims, layout, padding=padding), b.tensor(dims)
    keys = ("scale", "mean", "inv_variance")
    more = {key: b.channels(len(dims), dims[1]) for key in keys}
    return named("dx dscale dbias", b.graph.batchnorm_backward(grad=dy, input=x, **more))


def batchnorm_inference(b: Builder, dims: Sequence[int], layout: str, padding: int) -> Any:
    keys = ("mean", "inv_variance", "scale", "bias")
    more = {key: b.channels(len(dims), dims[1]) for key in keys}
    return b.graph.batchnorm_inference(input=b.tensor(dims, layout, padding=padding), **more)


def instancenorm(b: Builder, dims: Sequence[int], layout: str, padding: int, phase: str) -> Results:
    rank = len(dims)
    made = b.graph.instancenorm(
        norm_forward_phase=getattr(b.c.norm_forward_phase, phase),
        input=b.tensor(dims, layout, padding=padding),
        scale=b.channels(rank, dims[1]),
        bias=b.channels(rank, dims[1]),
        epsilon=b.scalar(rank),
    )
    return named("y mean inv_var", made)


def instancenorm_backward(b: Builder, dims: Sequence[int], layout: str, padding: int) -> Results:
    statistics = [*dims[:2], *[1] * (len(dims) - 2)]
    more = {key: b.tensor(statistics, layout, "FLOAT") for key in ("mean", "inv_variance")}
    x, scale = b.tensor(dims, layout, padding=padding), b.channels(len(dims), dims[1])
    made = b.graph.instancenorm_backward(grad=b.tensor(dims), input=x, scale=scale, **more)
    return named("dx dscale dbias", made)


ROW_NORMS = ("layernorm", "rmsnorm", "adalayernorm")


def row_norm(
    b: Builder, norm: str, phase: str, dims: Sequence[int], scale: Sequence[int], layout: str, padding: int
) -> Results:
    own = [dims[0], *scale[1:]] if norm == "adalayernorm" else scale
    made = getattr(b.graph, norm)(
        norm_forward_phase=getattr(b.c.norm_forward_phase, phase),
        input=b.tensor(dims, layout, padding=padding),
        scale=b.tensor(own),
        bias=b.tensor(own),
        epsilon=b.scalar(len(dims)),
    )
    return named("y inv_var" if norm == "rmsnorm" else "y mean inv_var", made)


def row_norm_backward(
    b: Builder, norm: str, dims: Sequence[int], scale: Sequence[int], layout: str, other: str, padding: int
) -> Results:
    """other: the layout of dy and the scale."""
    own = [dims[0], *scale[1:]] if norm == "adalayernorm" else scale
    statistics = [1 if s > 1 else d for d, s in zip(dims, scale, strict=True)]
    more = {"has_dbias": True} if norm == "rmsnorm" else {"mean": b.tensor(statistics, ROW_MAJOR, "FLOAT")}
    made = getattr(b.graph, f"{norm}_backward")(
        grad=b.tensor(dims, other),
        input=b.tensor(dims, layout, padding=padding),
        scale=b.tensor(own, other, padding=padding),
        inv_variance=b.tensor(statistics, ROW_MAJOR, "FLOAT"),
        **more,
    )
    return named("dx dscale dbias", made)


def add_norms() -> None:
    shapes = ([2, 8, 4], [2, 8, 4, 6], [2, 8, 3, 4, 5])
    for dims, layout, padding in product(shapes, (ROW_MAJOR, CHANNELS_LAST, TRANSPOSED), (0, 3)):
        where = f"of {dims}, {layout}{', padded' if padding else ''}"
        case(f"batchnorm {where}", batchnorm, dims, layout, padding)
        case(f"batchnorm_backward {where}", batchnorm_backward, dims, layout, padding)
        case(f"batchnorm_inference {where}", batchnorm_inference, dims, layout, padding)
        case(f"instancenorm_backward {where}", instancenorm_backward, dims, layout, padding)
        for phase in ("TRAINING", "INFERENCE"):
            case(f"instancenorm {phase} {where}", instancenorm, dims, layout, padding, phase)
    rows = {
        "2d": ([6, 8], [1, 8]),
        "3d": ([2, 6, 8], [1, 1, 8]),
        "4d of channels": ([6, 8, 1, 1], [1, 8, 1, 1]),
        "4d": ([2, 3, 4, 8], [1, 1, 1, 8]),
        "4d over three": ([2, 3, 4, 8], [1, 3, 4, 8]),
    }
    for norm, (words, (dims, scale)), layout in product(ROW_NORMS, rows.items(), LAYOUTS):
        for phase in ("TRAINING", "INFERENCE"):
            case(f"{norm} {phase} {words}, {layout}", row_norm, norm, phase, dims, scale, layout, 0)
        name = f"{norm}_backward {words}, {layout}"
        case(name, row_norm_backward, norm, dims, scale, layout, ROW_MAJOR, 0)
    dims, scale = rows["4d over three"]
    for norm, layout in product(ROW_NORMS, (ROW_MAJOR, CHANNELS_LAST, TRANSPOSED)):
        name = f"{norm} TRAINING, {layout}, padded"
        case(name, row_norm, norm, "TRAINING", dims, scale, layout, 2)
        for other in (ROW_MAJOR, CHANNELS_LAST, TRANSPOSED):
            name = f"{norm}_backward {layout}, padded, dy and scale {other}"
            case(name, row_norm_backward, norm, dims, scale, layout, other, 2)


# ---- Attention, block scales, experts, embeddings ----


def heads(b: Builder, dims: Sequence[int], order: str, kind: str = "HALF") -> Any:
    """A tensor [B, H, S, D]; order: BHSD or BSHD in memory."""
    _, count, length, width = dims
    strides = [length * count * width, width, count * width, 1] if order == "BSHD" else ()
    return b.tensor(dims, ROW_MAJOR, kind, strides=strides)


def sdpa(b: Builder, key_heads: int, order: str, has_stats: bool) -> Results:
    q = heads(b, [2, 4, 16, 32], order)
    k, v = heads(b, [2, key_heads, 24, 32], order), heads(b, [2, key_heads, 24, 64], order)
    made = b.graph.sdpa(q=q, k=k, v=v, generate_stats=has_stats, attn_scale=0.5, name="sdpa")
    return named("o stats", made)


def sdpa_backward(b: Builder, key_heads: int, order: str) -> Results:
    q = heads(b, [2, 4, 16, 32], order)
    k, v = heads(b, [2, key_heads, 24, 32], order), heads(b, [2, key_heads, 24, 64], order)
    o, do = heads(b, [2, 4, 16, 64], order), heads(b, [2, 4, 16, 64], order)
    stats = b.tensor([2, 4, 16, 1], kind="FLOAT")
    made = b.graph.sdpa_backward(q=q, k=k, v=v, o=o, dO=do, stats=stats, attn_scale=0.5, name="backward")
    return named("dq dk dv", made)


def scalars(b: Builder, names: str) -> Results:
    return {name: b.tensor([1, 1, 1, 1], kind="FLOAT") for name in names.split()}


def sdpa_fp8(b: Builder, order: str) -> Results:
    q, k, v = (heads(b, [2, 4, 16, 32], order, "FP8_E4M3") for _ in range(3))
    scales = scalars(b, "descale_q descale_k descale_v descale_s scale_s scale_o")
    made = b.graph.sdpa_fp8(q=q, k=k, v=v, **scales, generate_stats=True, attn_scale=0.5)
    return named("o stats amax_s amax_o", made)


def sdpa_fp8_backward(b: Builder, order: str) -> Results:
    operands = {key: heads(b, [2, 4, 16, 32], order, "FP8_E4M3") for key in ("q", "k", "v", "o", "dO")}
    names = "descale_q descale_k descale_v descale_o descale_dO descale_s descale_dP"
    scales = scalars(b, f"{names} scale_s scale_dQ scale_dK scale_dV scale_dP")
    stats = b.tensor([2, 4, 16, 1], kind="FLOAT")
    made = b.graph.sdpa_fp8_backward(**operands, stats=stats, **scales, attn_scale=0.5)
    return named("dq dk dv amax_dq amax_dk amax_dv amax_dp", made)


def dequantized_product(b: Builder) -> Any:
    x, scale = b.tensor([1, 128, 64], kind="FP8_E4M3"), b.tensor([1, 128, 2], kind="FP8_E8M0")
    w, factor = b.tensor([1, 64, 96], TRANSPOSED, "FP8_E4M3"), b.tensor([1, 2, 96], TRANSPOSED, "FP8_E8M0")
    left = b.graph.block_scale_dequantize(input=x, descale=scale, block_size=[1, 32])
    right = b.graph.block_scale_dequantize(input=w, descale=factor, block_size=[32, 1])
    return b.graph.matmul(A=left, B=right)


def quantize(b: Builder, dims: Sequence[int], axis: int | None, is_transposed: bool, layout: str) -> Results:
    x, more = b.tensor(dims, layout, "BFLOAT16"), {} if axis is None else {"axis": axis}
    y, scale = b.graph.block_scale_quantize(x, block_size=32, transpose=is_transposed, **more)
    return {"y": y.set_data_type(b.types.FP8_E4M3), "scale": scale.set_data_type(b.types.FP8_E8M0)}


def experts(b: Builder) -> Any:
    token, weight = b.tensor([1, 32, 64], kind="BFLOAT16"), b.tensor([4, 64, 16], TRANSPOSED, "BFLOAT16")
    mode = b.c.moe_grouped_matmul_mode.NONE
    return b.graph.moe_grouped_matmul(token, weight, b.tensor([4, 1, 1], kind="INT32"), mode=mode, top_k=1)


def experts_backward(b: Builder) -> Any:
    dy, token = b.tensor([1, 32, 16], kind="BFLOAT16"), b.tensor([1, 32, 64], kind="BFLOAT16")
    return b.graph.moe_grouped_matmul_bwd(dy, token, b.tensor([4, 1, 1], kind="INT32"))


def rope(b: Builder, layout: str, padding: int) -> Results:
    angles = b.tensor([16, 1, 1, 32], kind="FLOAT")
    y = b.graph.rope(b.tensor([2, 4, 16, 32], layout, "BFLOAT16", padding), angles)
    return {"y": y, "dx": b.graph.rope_backward(y, angles)}


def add_others() -> None:
    for key_heads, order in product((4, 2), ("BHSD", "BSHD")):
        case(f"sdpa, {key_heads} heads of keys, {order}", sdpa, key_heads, order, False)
        case(f"sdpa with stats, {key_heads} heads of keys, {order}", sdpa, key_heads, order, True)
        case(f"sdpa_backward, {key_heads} heads of keys, {order}", sdpa_backward, key_heads, order)
    for order in ("BHSD", "BSHD"):
        case(f"sdpa_fp8, {order}", sdpa_fp8, order)
        case(f"sdpa_fp8_backward, {order}", sdpa_fp8_backward, order)
    case("block_scale_dequantize, matmul", dequantized_product)
    for axis, is_transposed, layout in product((None, 1, 2), (False, True), (ROW_MAJOR, TRANSPOSED)):
        name = f"block_scale_quantize axis {axis}{', transpose' if is_transposed else ''}, {layout}"
        case(name, quantize, [2, 128, 160], axis, is_transposed, layout)
    for axis in range(4):
        case(f"block_scale_quantize 4d, {axis}", quantize, [64, 32, 64, 96], axis, True, ROW_MAJOR)
    case("moe_grouped_matmul", experts)
    case("moe_grouped_matmul_bwd", experts_backward)
    for layout, padding in ((ROW_MAJOR, 0), (ROW_MAJOR, 4), (CHANNELS_LAST, 0), (TRANSPOSED, 0)):
        case(f"rope, {layout}{', padded' if padding else ''}", rope, layout, padding)


for add in (add_pointwise, add_products, add_moves, add_norms, add_others):
    add()


# ---- Inferred properties ----

CONTEXTS = {"in memory": ("BFLOAT16", "FLOAT", True), "virtual": ("HALF", "FLOAT", False)}
"""Type of tensors with memory, type of virtual tensors, and whether the results have memory."""


def results(module: Any, build: Callable[[Builder], Results], context: str, handle: Any) -> Any:
    """[dims, strides, data type] of each result, or a text that says why the module refuses the graph.
    Virtual results are read by a pointwise operation, whose results have memory and are listed, too."""
    io, intermediate, has_memory = CONTEXTS[context]
    b = Builder(module, io, intermediate, handle)
    try:
        made = {name: tensor for name, tensor in build(b).items() if tensor is not None}
        if not has_memory:
            made |= {f"{name}, read": b.graph.identity(tensor) for name, tensor in made.items()}
        for name, tensor in made.items():
            if has_memory or name.endswith(", read"):
                tensor.set_output(True)
        b.graph.validate()
    except Exception as error:
        return f"refused: {type(error).__name__}: {error}"
    # The package's Python tensors report row-major strides. Plans use those of its C++ tensors.
    lowered = getattr(b.graph, "_cpp_tensors", {})
    found = {}
    for name, tensor in made.items():
        t = lowered.get(tensor.get_uid(), tensor)
        found[name] = [list(t.get_dim()), list(t.get_stride()), t.get_data_type().name]
    return found


def names() -> Iterator[tuple[str, str]]:
    """Every case in every context."""
    return product(CASES, CONTEXTS)


def facts(module: Any, handle: Any) -> dict[str, Any]:
    """Returns the properties that a module infers, by "case | context"."""
    return {f"{name} | {c}": results(module, CASES[name], c, handle) for name, c in names()}


if __name__ == "__main__":
    import cudnn

    inferred = facts(cudnn, cudnn.Handle(1, 0, 0))  # validation does not use the handle
    inferred = {key: value for key, value in inferred.items() if not isinstance(value, str)}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in inferred.items()]
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FACTS
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")
