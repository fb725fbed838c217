"""Cases that stream memory: pointwise chains, rows and columns, data movement, pooling. One function per
family creates a case from its sizes; every addition, comparison and function of an element counts as one
operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from benchmarks import oracle
from benchmarks.case import Case, Tensors
from benchmarks.shapes import NHWC, Operand, Pool

# ---- Pointwise chains --------------------------------------------------------------------------------------


def bias_gelu_residual(tag: str, dtype: str, rows: int, columns: int) -> Case:
    """gelu(x + bias) + r."""
    full = Operand((1, rows, columns), dtype)
    return Case(
        f"mem/bias_gelu_residual_{tag}",
        dtype,
        3.0 * rows * columns,
        {"x": full, "bias": Operand((1, 1, columns), dtype), "r": full},
        {"y": full},
        lambda _, g, t: {
            "y": g.add(a=g.gelu_approx_tanh(input=g.bias(input=t["x"], bias=t["bias"])), b=t["r"])
        },
        lambda xp, t: {"y": oracle.gelu(xp, t["x"] + t["bias"]) + t["r"]},
    )


def relu(tag: str, dtype: str, elements: int) -> Case:
    """One read, one write."""
    full = Operand((1, 1, elements), dtype)
    return Case(
        f"mem/relu_{tag}",
        dtype,
        float(elements),
        {"x": full},
        {"y": full},
        lambda _, g, t: {"y": g.relu(input=t["x"])},
        lambda _, t: {"y": oracle.relu(t["x"])},
    )


# ---- Rows and columns --------------------------------------------------------------------------------------


def sums(name: str, dtype: str, rows: int, columns: int, axis: int) -> Case:
    """Sums along axis 1, the columns, or 2, the rows."""
    return Case(
        f"{name}_{rows}x{columns}",
        dtype,
        float(rows * columns),
        {"x": Operand((1, rows, columns), dtype)},
        {"y": Operand((1, 1, columns) if axis == 1 else (1, rows, 1), "f32")},
        lambda lib, g, t: {"y": g.reduction(input=t["x"], mode=lib.reduction_mode.ADD)},
        lambda _, t: {"y": t["x"].sum(axis=axis, keepdims=True)},
        program=lambda torch, m: torch.sum(m["x"], axis, keepdim=True, dtype=torch.float32, out=m["y"]),
    )


def softmax(dtype: str, rows: int, columns: int) -> Case:
    """Softmax of rows, composed of operations that every frontend has."""
    full = Operand((1, rows, columns), dtype)

    def build(lib: Any, g: Any, t: Tensors) -> Tensors:
        most = g.reduction(input=t["x"], mode=lib.reduction_mode.MAX).set_dim([1, rows, 1])
        weights = g.exp(input=g.sub(a=t["x"], b=most))
        total = g.reduction(input=weights, mode=lib.reduction_mode.ADD).set_dim([1, rows, 1])
        return {"y": g.div(a=weights, b=total)}

    return Case(
        f"rows/softmax_{rows}x{columns}",
        dtype,
        5.0 * rows * columns,
        {"x": full},
        {"y": full},
        build,
        lambda xp, t: {"y": oracle.softmax(xp, t["x"])},
        program=lambda torch, m: torch.softmax(m["x"], 2, out=m["y"]),
    )


def maximum(dtype: str, rows: int, columns: int) -> Case:
    """The largest element of each row."""
    return Case(
        f"rows/max_rows_{rows}x{columns}",
        dtype,
        float(rows * columns),
        {"x": Operand((1, rows, columns), dtype)},
        {"y": Operand((1, rows, 1), "f32")},
        lambda lib, g, t: {"y": g.reduction(input=t["x"], mode=lib.reduction_mode.MAX)},
        lambda xp, t: {"y": xp.amax(t["x"], axis=2, keepdims=True)},
        program=lambda torch, m: torch.amax(m["x"], 2, keepdim=True, out=m["y"]),
    )


def softmax_backward(dtype: str, rows: int, columns: int) -> Case:
    """y (dy - sum of y dy over the row)."""
    full = Operand((1, rows, columns), dtype)

    def build(lib: Any, g: Any, t: Tensors) -> Tensors:
        both = g.reduction(input=g.mul(a=t["dy"], b=t["y"]), mode=lib.reduction_mode.ADD)
        return {"dx": g.mul(a=t["y"], b=g.sub(a=t["dy"], b=both.set_dim([1, rows, 1])))}

    return Case(
        f"rows/softmax_bwd_{rows}x{columns}",
        dtype,
        4.0 * rows * columns,
        {"y": full, "dy": full},
        {"dx": full},
        build,
        lambda _, t: {"dx": t["y"] * (t["dy"] - (t["dy"] * t["y"]).sum(axis=2, keepdims=True))},
        program=lambda torch, m: torch._softmax_backward_data(
            m["dy"], m["y"], 2, m["y"].dtype, grad_input=m["dx"]
        ),
    )


def log_softmax(dtype: str, rows: int, columns: int) -> Case:
    """x - max - log of the sum of e^(x - max) over the row."""
    full = Operand((1, rows, columns), dtype)

    def build(lib: Any, g: Any, t: Tensors) -> Tensors:
        most = g.reduction(input=t["x"], mode=lib.reduction_mode.MAX).set_dim([1, rows, 1])
        shifted = g.sub(a=t["x"], b=most)
        total = g.reduction(input=g.exp(input=shifted), mode=lib.reduction_mode.ADD).set_dim([1, rows, 1])
        return {"y": g.sub(a=shifted, b=g.log(input=total))}

    return Case(
        f"rows/log_softmax_{rows}x{columns}",
        dtype,
        5.0 * rows * columns,
        {"x": full},
        {"y": full},
        build,
        lambda xp, t: {"y": xp.log(oracle.softmax(xp, t["x"]))},
        program=lambda torch, m: torch.log_softmax(m["x"], 2, out=m["y"]),
    )


# ---- Data movement: no operations --------------------------------------------------------------------------


def _moved(dtype: str) -> tuple[str, float]:
    """The arithmetic whose bounds apply to copies of a type, and the magnitude of their numbers."""
    return ("bf16", 20.0) if dtype == "i8" else (dtype, 1.0)


def transpose(tag: str, dtype: str, dims: tuple[int, ...], order: tuple[int, ...]) -> Case:
    """A contiguous copy with the dimensions in another order."""
    arithmetic, scale = _moved(dtype)
    places = tuple(range(len(order)))
    return Case(
        f"move/transpose_{tag}",
        arithmetic,
        0.0,
        {"x": Operand(dims, dtype, scale=scale)},
        {"y": Operand(tuple(dims[i] for i in order), dtype)},
        lambda _, g, t: {"y": g.transpose(t["x"], list(order))},
        lambda xp, t: {"y": xp.moveaxis(t["x"], order, places)},
        program=lambda torch, m: m["y"].copy_(m["x"].permute(order)),
    )


def layout(dtype: str, dims: tuple[int, ...], is_to_last: bool, tag: str = "") -> Case:
    """Images from NCHW to channels last, or back."""
    arithmetic, scale = _moved(dtype)
    forms = Operand(dims, dtype, scale=scale), Operand(dims, dtype, NHWC, scale=scale)
    x, y = forms if is_to_last else forms[::-1]
    name = f"move/{'nchw_nhwc' if is_to_last else 'nhwc_nchw'}_{'x'.join(map(str, dims))}{tag}"
    return Case(
        name,
        arithmetic,
        0.0,
        {"x": x},
        {"y": y},
        lambda _, g, t: {"y": g.identity(input=t["x"])},
        lambda _, t: {"y": t["x"]},
        program=lambda _, m: m["y"].copy_(m["x"]),
    )


def add_relu_across(dtype: str, dims: tuple[int, ...]) -> Case:
    """relu(x + r) of images with channels last, with r in NCHW."""
    last = Operand(dims, dtype, NHWC)
    return Case(
        "move/add_relu_nhwc_nchw",
        dtype,
        2.0 * math.prod(dims),
        {"x": last, "r": Operand(dims, dtype)},
        {"y": last},
        lambda _, g, t: {"y": g.relu(input=g.add(a=t["x"], b=t["r"]))},
        lambda _, t: {"y": oracle.relu(t["x"] + t["r"])},
        program=lambda torch, m: torch.relu_(torch.add(m["x"], m["r"], out=m["y"])),
    )


def concat(tag: str, dtype: str, parts: Sequence[tuple[int, ...]], axis: int, is_last: bool = False) -> Case:
    """Concatenation; is_last: images with channels last."""
    order = NHWC if is_last else ()
    outputs = list(parts[0])
    outputs[axis] = sum(dims[axis] for dims in parts)
    names = [f"x{i}" for i in range(len(parts))]
    return Case(
        f"move/concat_{tag}",
        dtype,
        0.0,
        {name: Operand(dims, dtype, order) for name, dims in zip(names, parts, strict=True)},
        {"y": Operand(tuple(outputs), dtype, order)},
        lambda _, g, t: {"y": g.concatenate([t[name] for name in names], axis)},
        lambda xp, t: {"y": xp.concatenate([t[name] for name in names], axis)},
        program=lambda torch, m: torch.cat([m[name] for name in names], axis, out=m["y"]),
    )


def cut(tag: str, dtype: str, dims: tuple[int, ...], slices: Sequence[slice]) -> Case:
    """A strided slice of a tensor."""
    box = tuple(slices)
    sizes = tuple(len(range(*one.indices(extent))) for one, extent in zip(box, dims, strict=True))
    return Case(
        f"move/slice_{tag}",
        dtype,
        0.0,
        {"x": Operand(dims, dtype)},
        {"y": Operand(sizes, dtype)},
        lambda _, g, t: {"y": g.slice(t["x"], list(box))},
        lambda _, t: {"y": t["x"][box]},
        program=lambda _, m: m["y"].copy_(m["x"][box]),
    )


_CAST_ERRORS = {"e4m3": 5e-2, "i8": 5e-2}  # errors of results: 3 mantissa bits, and integers around 20


def cast(source: str, target: str, dims: tuple[int, ...], tag: str = "") -> Case:
    """A conversion to another data type; to the same type it is the ceiling for all data movement."""
    is_whole = "i8" in (source, target)
    name = "copy" if source == target else f"cast_{source}_{target}"
    return Case(
        f"move/{name}_{'x'.join(map(str, dims))}{tag}",
        "f32" if target == "f32" else "bf16",
        0.0,
        {"x": Operand(dims, source, scale=20.0 if is_whole else 1.0)},
        {"y": Operand(dims, target)},
        lambda _, g, t: {"y": g.identity(input=t["x"])},
        lambda _, t: {"y": t["x"]},
        program=lambda _, m: m["y"].copy_(m["x"]),
        largest_error=_CAST_ERRORS.get(target),
    )


# ---- Pooling -----------------------------------------------------------------------------------------------


def _resampling(lib: Any, p: Pool) -> dict[str, Any]:
    mode = lib.resample_mode.MAXPOOL if p.is_max else lib.resample_mode.AVGPOOL_INCLUDE_PADDING
    sizes = {"window": p.window, "stride": p.stride, "pre_padding": p.padding, "post_padding": p.padding}
    return {"mode": mode} | {name: [size] * 2 for name, size in sizes.items()}


def _torch_pool(torch: Any, x: Any, p: Pool) -> Any:
    if not p.is_max and p.image == (p.window, p.window):
        return torch.nn.functional.adaptive_avg_pool2d(x, 1)
    run = torch.nn.functional.max_pool2d if p.is_max else torch.nn.functional.avg_pool2d
    return run(x, p.window, p.stride, p.padding)


def pool(tag: str, dtype: str, p: Pool, has_index: bool = False, is_last: bool = True) -> Case:
    """Pooling forward. Indices are written and not checked: the index of any of several equal elements is
    valid."""
    order = NHWC if is_last else ()
    outputs = {"y": Operand(p.y, dtype, order)}
    if has_index:
        outputs["index"] = Operand(p.y, "i8", order)

    def build(lib: Any, g: Any, t: Tensors) -> Tensors:
        edge = lib.padding_mode.NEG_INF_PAD if p.is_max else lib.padding_mode.ZERO_PAD
        options = _resampling(lib, p)
        results = g.resample(input=t["x"], padding_mode=edge, generate_index=has_index, **options)
        return {name: tensor for name, tensor in zip(("y", "index"), results, strict=True) if name in outputs}

    return Case(
        f"pool/{tag}",
        dtype,
        float(math.prod(p.y) * p.window**2),
        {"x": Operand(p.x, dtype, order)},
        outputs,
        build,
        lambda xp, t: {"y": oracle.pool(xp, t["x"], p)},
        program=None if has_index else lambda torch, m: _torch_pool(torch, m["x"], p),
    )


def _torch_pool_backward(p: Pool, has_index: bool) -> Callable[[Any, Mapping[str, Any]], object]:
    """Maxima with torch's own kind of indices, which replace those of the case and are computed once; without
    indices, with the forward pass, because torch needs them."""
    sizes = p.window, p.stride, p.padding
    found: dict[int, Any] = {}

    def run(torch: Any, m: Mapping[str, Any]) -> object:
        aten, into = torch.ops.aten, {"grad_input": m["dx"]}
        if not p.is_max:
            return aten.avg_pool2d_backward(m["dy"], m["dx"], *sizes, False, True, None, **into)
        key = m["dy"].data_ptr()
        if not has_index or key not in found:
            found[key] = aten.max_pool2d_with_indices(m.get("x", m["dx"]), *sizes)[1]
        return aten.max_pool2d_with_indices_backward(
            m["dy"], m.get("x", m["dx"]), *sizes, 1, False, found[key], **into
        )

    return run


def pool_backward(tag: str, dtype: str, p: Pool, has_index: bool = True, is_last: bool = True) -> Case:
    """The gradient of pooling: of the mean, or of the maximum with the forward pass's indices or located
    again in x."""
    order = NHWC if is_last else ()
    inputs = {"dy": Operand(p.y, dtype, order)}
    if p.is_max:
        inputs |= {"index": Operand(p.y, "i8", order)} if has_index else {"x": Operand(p.x, dtype, order)}

    def build(lib: Any, g: Any, t: Tensors) -> Tensors:
        options = _resampling(lib, p)
        return {"dx": g.resample_backward(t["dy"], t.get("index"), t.get("x"), **options)}

    return Case(
        f"pool/{tag}",
        dtype,
        float(math.prod(p.y) * (1 if "index" in inputs else p.window**2)),
        inputs,
        {"dx": Operand(p.x, dtype, order)},
        build,
        partial(oracle.pool_backward, p=p),
        partial(oracle.some_indices, p=p) if "index" in inputs else None,
        program=_torch_pool_backward(p, has_index),
    )


# ---- Interpolation -----------------------------------------------------------------------------------------


def resize(kind: str, dims: tuple[int, ...], is_backward: bool = False, is_last: bool = True) -> Case:
    """Images upscaled by two, from the nearest pixel or the four adjacent ones; or the gradient."""
    order = NHWC if is_last else ()
    is_linear = kind == "bilinear"
    x = Operand(dims, "f32", order)
    y = Operand((*dims[:2], 2 * dims[2], 2 * dims[3]), "f32", order)
    options = {"stride": [Fraction(1, 2)] * 2, "pre_padding": [Fraction(int(is_linear), 4)] * 2}
    mode = {"scale_factor": 2, "mode": kind} | ({"align_corners": False} if is_linear else {})
    sizes = [*y.dims[2:]], [*x.dims], *((False,) if is_linear else ())
    way, layout_ = "bwd" if is_backward else "fwd", "nhwc" if is_last else "nchw"

    def build(lib: Any, g: Any, t: Tensors) -> Tensors:
        kinds = {"mode": getattr(lib.resample_mode, kind.upper()), **options}
        if is_backward:
            return {"dx": g.resample_backward(t["dy"], **kinds).set_dim(list(dims))}
        outputs = g.resample(input=t["x"], **kinds)
        return {"y": (outputs[0] if isinstance(outputs, (list, tuple)) else outputs).set_dim(list(y.dims))}

    def program(torch: Any, m: Tensors) -> object:
        if not is_backward:
            return torch.nn.functional.interpolate(m["x"], **mode)
        return getattr(torch.ops.aten, f"upsample_{kind}2d_backward")(m["dy"], *sizes, grad_input=m["dx"])

    return Case(
        f"pool/{kind}_{way}_{layout_}_{'x'.join(map(str, dims))}",
        "f32",
        float(math.prod(y.dims) * (4 if is_linear else 1)),
        {"dy": y} if is_backward else {"x": x},
        {"dx": x} if is_backward else {"y": y},
        build,
        partial(oracle.resize, dims=dims, is_linear=is_linear),
        program=program,
    )
