"""Matmuls and convolutions with operations fused before or after them. Each has an unfused counterpart of the
same size, whose name ends in "_bare". One function per family creates a case from its sizes."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from benchmarks import oracle
from benchmarks.case import Case, Tensors
from benchmarks.shapes import NHWC, Convolution, Operand

MATMULS = (
    "bare",
    "bias",
    "bias_gelu",
    "bias_gelu_both",
    "residual",
    "row_scale",
    "row_max",
    "column_sum",
    "amax",
    "quantise_amax",
    "drelu_dbias",
    "after_scale_bias_relu",
    "after_cast",
)
"""Fusions with a matmul."""
CONVOLUTIONS = (
    "bare",
    "bias_relu",
    "scale_bias_add_relu",
    "amax",
    "genstats",
    "after_scale_bias_relu",
    "after_scale_bias_relu_genstats",
)
"""Fusions with a convolution."""
PREPARED = ("bare", "after_scale_bias_relu")
"""Fusions before a convolution or a gradient with respect to its filters."""
DGRADS = ("bare", "drelu_bn", "after_scale")
"""Fusions with a gradient with respect to a convolution's input."""

# ---- Matmul ------------------------------------------------------------------------------------------------


def matmul(tag: str, m: int, n: int, k: int, fused: str) -> Case:
    """bf16; B is K-major, like the weight of a linear layer."""
    whole, row, column, one = (1, m, n), (1, m, 1), (1, 1, n), (1, 1, 1)
    spread = 1 / math.sqrt(k)
    inputs = {"A": Operand((1, m, k)), "B": Operand((1, k, n), order=(0, 2, 1), scale=spread)}
    inputs |= {
        "bias": {"bias": Operand(column)},
        "bias_gelu": {"bias": Operand(column)},
        "bias_gelu_both": {"bias": Operand(column)},
        "residual": {"residual": Operand(whole)},
        "row_scale": {"scale": Operand(row, "f32")},
        "quantise_amax": {"scale": Operand(one, "f32")},
        "drelu_dbias": {"x": Operand(whole)},
        "after_scale_bias_relu": {"scale": Operand((1, 1, k)), "bias": Operand((1, 1, k))},
        "after_cast": {"A": Operand((1, m, k), "f32")},
    }.get(fused, {})
    outputs = {"C": Operand(whole, "e4m3" if fused == "quantise_amax" else "bf16")}
    outputs |= {
        "bias_gelu_both": {"before": Operand(whole)},
        "row_max": {"total": Operand(row, "f32")},
        "column_sum": {"total": Operand(column, "f32")},
        "amax": {"total": Operand(one, "f32")},
        "quantise_amax": {"total": Operand(one, "f32")},
        "drelu_dbias": {"total": Operand(column, "f32")},
    }.get(fused, {})
    name = f"fused/matmul_{tag}_{fused}"
    build, judge = partial(_build_matmul, fused), partial(_judge_matmul, fused)
    arithmetic = "fp8" if fused == "quantise_amax" else "bf16"
    bare = None if fused == "bare" else matmul(tag, m, n, k, "bare")
    return Case(name, arithmetic, 2.0 * m * n * k, inputs, outputs, build, judge, bare=bare)


def _build_matmul(fused: str, lib: Any, g: Any, t: Tensors) -> Tensors:
    a, modes = t["A"], lib.reduction_mode
    if fused == "after_scale_bias_relu":
        a = g.relu(input=g.add(a=g.mul(a=a, b=t["scale"]), b=t["bias"])).set_data_type(lib.data_type.BFLOAT16)
    if fused == "after_cast":
        a = g.identity(input=a).set_data_type(lib.data_type.BFLOAT16)
    c = outputs = g.matmul(A=a, B=t["B"])
    if fused.startswith("bias"):
        c = outputs = g.bias(input=c, bias=t["bias"])
    if "gelu" in fused:
        c = g.gelu_approx_tanh(input=c)
    if fused == "residual":
        c = g.add(a=c, b=t["residual"])
    if fused == "row_scale":
        c = g.mul(a=c, b=t["scale"])
    if fused == "quantise_amax":
        c = g.mul(a=c, b=t["scale"])
    if fused == "drelu_dbias":
        c = outputs = g.relu_backward(loss=c, input=t["x"])
    mode = {"row_max": modes.MAX, "column_sum": modes.ADD, "drelu_dbias": modes.ADD}.get(fused, modes.AMAX)
    results = {"C": c}
    if fused == "bias_gelu_both":
        results["before"] = outputs
    if fused in ("row_max", "column_sum", "amax", "quantise_amax", "drelu_dbias"):
        results["total"] = g.reduction(input=outputs, mode=mode)
    return results


def _judge_matmul(fused: str, xp: Any, t: dict[str, Any]) -> dict[str, Any]:
    a = t["A"]
    if fused == "after_scale_bias_relu":
        a = oracle.relu(a * t["scale"] + t["bias"])
    c = before = a @ t["B"]
    if fused.startswith("bias"):
        c = before = c + t["bias"]
    if "gelu" in fused:
        c = oracle.gelu(xp, c)
    if fused == "residual":
        c = c + t["residual"]
    if fused in ("row_scale", "quantise_amax"):
        c = c * t["scale"]
    if fused == "drelu_dbias":
        c = before = c * (t["x"] > 0)
    results = {"C": c}
    if fused == "quantise_amax":
        results = {}  # rounding to FP8 is not an error
    if fused == "bias_gelu_both":
        results["before"] = before
    if fused in ("column_sum", "drelu_dbias"):
        results["total"] = before.sum(axis=1, keepdims=True)
    if fused == "row_max":
        results["total"] = xp.amax(before, axis=2, keepdims=True)
    if fused in ("amax", "quantise_amax"):
        results["total"] = xp.amax(abs(before), axis=(0, 1, 2), keepdims=True)
    return results


def matmul_of_torch(fused: str, torch: Any, t: Tensors) -> object:
    """torch's program for a plain matmul, and for one with the maximum of its rows."""
    outputs = t["A"][0] @ t["B"][0]
    return (outputs, torch.amax(outputs, dim=1)) if fused == "row_max" else outputs


# ---- Convolution -------------------------------------------------------------------------------------------


def conv(tag: str, c: Convolution, fused: str) -> Case:
    """Convolution forward, bf16, channels last."""
    each, before = (1, c.filters, 1, 1), (1, c.channels, 1, 1)
    inputs = {
        "x": Operand(c.x, order=NHWC),
        "w": Operand(c.w, order=NHWC, scale=1 / math.sqrt(math.prod(c.w[1:]))),
    }
    if fused == "bias_relu":
        inputs["bias"] = Operand(each)
    if fused == "scale_bias_add_relu":
        inputs |= {"scale": Operand(each), "bias": Operand(each), "residual": Operand(c.y, order=NHWC)}
    if fused.startswith("after_scale_bias_relu"):
        inputs |= {"scale": Operand(before), "bias": Operand(before)}
    outputs = {"y": Operand(c.y, order=NHWC)}
    if fused.endswith("genstats"):
        outputs |= {"sum": Operand(each, "f32"), "sq_sum": Operand(each, "f32")}
    if fused == "amax":
        outputs["amax"] = Operand((1, 1, 1, 1), "f32")
    name = f"fused/conv_{tag}_{fused}"
    build, judge = partial(_build_conv, fused, c), partial(_judge_conv, fused, c)
    bare = None if fused == "bare" else conv(tag, c, "bare")
    return Case(name, "bf16", c.flops, inputs, outputs, build, judge, bare=bare)


def _options(c: Convolution) -> dict[str, list[int]]:
    return {name: [getattr(c, name)] * 2 for name in ("padding", "stride", "dilation")}


def _build_conv(fused: str, c: Convolution, lib: Any, g: Any, t: Tensors) -> Tensors:
    x = t["x"]
    if fused.startswith("after_scale_bias_relu"):
        x = g.relu(input=g.add(a=g.mul(a=x, b=t["scale"]), b=t["bias"])).set_data_type(lib.data_type.BFLOAT16)
    y = g.conv_fprop(image=x, weight=t["w"], **_options(c))
    if fused.startswith("scale"):
        y = g.add(a=g.add(a=g.mul(a=y, b=t["scale"]), b=t["bias"]), b=t["residual"])
    if fused == "bias_relu":
        y = g.add(a=y, b=t["bias"])
    if fused in ("bias_relu", "scale_bias_add_relu"):
        y = g.relu(input=y)
    if fused.endswith("genstats"):
        y.set_data_type(lib.data_type.BFLOAT16)
        return {"y": y} | dict(zip(("sum", "sq_sum"), g.genstats(input=y), strict=True))
    if fused == "amax":
        return {"y": y, "amax": g.reduction(input=y, mode=lib.reduction_mode.AMAX)}
    return {"y": y}


def _judge_conv(fused: str, c: Convolution, xp: Any, t: dict[str, Any]) -> dict[str, Any]:
    x = t["x"]
    if fused.startswith("after_scale_bias_relu"):
        x = oracle.relu(x * t["scale"] + t["bias"])
    y = oracle.conv_fprop(xp, {"x": x, "w": t["w"]}, c)["y"]
    if fused == "bias_relu":
        y = oracle.relu(y + t["bias"])
    if fused == "scale_bias_add_relu":
        y = oracle.relu(y * t["scale"] + t["bias"] + t["residual"])
    results = {"y": y}
    axes = (0, 2, 3)
    if fused.endswith("genstats"):
        results |= {"sum": y.sum(axis=axes, keepdims=True), "sq_sum": (y * y).sum(axis=axes, keepdims=True)}
    if fused == "amax":
        results["amax"] = xp.amax(abs(y), axis=(0, 1, 2, 3), keepdims=True)
    return results


def conv_dgrad(tag: str, c: Convolution, fused: str) -> Case:
    """The gradient with respect to a convolution's input. With "drelu_bn" also the gradient through relu and
    the gradients of the parameters of the preceding batch norm."""
    each = (1, c.channels, 1, 1)
    inputs = {
        "dy": Operand(c.y, order=NHWC),
        "w": Operand(c.w, order=NHWC, scale=1 / math.sqrt(c.filters * c.window * c.window)),
    }
    outputs = {"dx": Operand(c.x, order=NHWC)}
    if fused == "after_scale":
        inputs["scale"] = Operand((1, c.filters, 1, 1))
    if fused == "drelu_bn":
        inputs["x"] = Operand(c.x, order=NHWC)
        inputs |= dict.fromkeys(("mean", "inv", "scale", "bias"), Operand(each, "f32"))
        outputs |= dict.fromkeys(("dscale", "dbias"), Operand(each, "f32"))
    name = f"fused/dgrad_{tag}_{fused}"
    build, judge = partial(_build_dgrad, fused, c), partial(_judge_dgrad, fused, c)
    bare = None if fused == "bare" else conv_dgrad(tag, c, "bare")
    return Case(name, "bf16", c.flops, inputs, outputs, build, judge, bare=bare)


def _build_dgrad(fused: str, c: Convolution, lib: Any, g: Any, t: Tensors) -> Tensors:
    dy = t["dy"]
    if fused == "after_scale":
        dy = g.mul(a=dy, b=t["scale"]).set_data_type(lib.data_type.BFLOAT16)
    dx = g.conv_dgrad(loss=dy, filter=t["w"], **_options(c))
    dx.set_dim(list(c.x))
    if fused != "drelu_bn":
        return {"dx": dx}
    hat = g.mul(a=g.sub(a=t["x"], b=t["mean"]), b=t["inv"])
    normal = g.add(a=g.mul(a=hat, b=t["scale"]), b=t["bias"])
    dx = g.relu_backward(loss=dx, input=normal)
    dscale, dbias, *_ = g.dbn_weight(dy=dx, x=t["x"], mean=t["mean"], inv_variance=t["inv"], scale=t["scale"])
    return {"dx": dx, "dscale": dscale, "dbias": dbias}


def _judge_dgrad(fused: str, c: Convolution, xp: Any, t: dict[str, Any]) -> dict[str, Any]:
    dy = t["dy"] * t["scale"] if fused == "after_scale" else t["dy"]
    dx = oracle.conv_dgrad(xp, {"dy": dy, "w": t["w"]}, c)["dx"]
    if fused != "drelu_bn":
        return {"dx": dx}
    hat = (t["x"] - t["mean"]) * t["inv"]
    dx = dx * (hat * t["scale"] + t["bias"] > 0)
    sums = {"dscale": dx * hat, "dbias": dx}
    return {"dx": dx} | {name: v.sum(axis=(0, 2, 3), keepdims=True) for name, v in sums.items()}


def conv_wgrad(tag: str, c: Convolution, fused: str) -> Case:
    """The gradient with respect to a convolution's filters, whose image is computed as before the
    convolution."""
    inputs = {"x": Operand(c.x, order=NHWC), "dy": Operand(c.y, order=NHWC)}
    if fused != "bare":
        inputs |= dict.fromkeys(("scale", "bias"), Operand((1, c.channels, 1, 1)))
    name, outputs = f"fused/wgrad_{tag}_{fused}", {"dw": Operand(c.w, order=NHWC)}
    build, judge = partial(_build_wgrad, fused, c), partial(_judge_wgrad, fused, c)
    bare = None if fused == "bare" else conv_wgrad(tag, c, "bare")
    return Case(name, "bf16", c.flops, inputs, outputs, build, judge, bare=bare)


def _build_wgrad(fused: str, c: Convolution, lib: Any, g: Any, t: Tensors) -> Tensors:
    x = t["x"]
    if fused != "bare":
        x = g.relu(input=g.add(a=g.mul(a=x, b=t["scale"]), b=t["bias"])).set_data_type(lib.data_type.BFLOAT16)
    return {"dw": g.conv_wgrad(image=x, loss=t["dy"], **_options(c)).set_dim(list(c.w))}


def _judge_wgrad(fused: str, c: Convolution, xp: Any, t: dict[str, Any]) -> dict[str, Any]:
    x = t["x"] if fused == "bare" else oracle.relu(t["x"] * t["scale"] + t["bias"])
    return oracle.conv_wgrad(xp, {"x": x, "dy": t["dy"]}, c)
