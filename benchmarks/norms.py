"""Cases of normalization, forward and backward; one function per family creates a case from its sizes."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from benchmarks import oracle
from benchmarks.case import Case, Tensors
from benchmarks.shapes import NHWC, Operand

EPSILON, MOMENTUM = 1e-5, 0.1
# Operations per element: each addition, multiplication and function in the definition counts as one.
_NORM_FLOPS = {("layernorm", False): 7, ("layernorm", True): 13, ("rmsnorm", False): 4, ("rmsnorm", True): 9}


def row_norm(kind: str, dtype: str, rows: int, columns: int, is_backward: bool) -> Case:
    """Layer norm and RMS norm of rows."""
    is_centred = kind == "layernorm"
    whole, parameter = Operand((rows, columns, 1, 1), dtype), Operand((1, columns, 1, 1), dtype)
    statistics = {"mean": Operand((rows, 1, 1, 1), "f32"), "inv": Operand((rows, 1, 1, 1), "f32")}
    if not is_centred:
        del statistics["mean"]
    name = f"norm/{kind}_{'bwd' if is_backward else 'fwd'}_{rows}x{columns}"
    flops = float(_NORM_FLOPS[kind, is_backward] * rows * columns)
    axes = (1, 2, 3)
    program = partial(_row_norm_of_torch, kind, is_backward)
    if not is_backward:
        inputs = {"x": whole, "scale": parameter} | ({"bias": parameter} if is_centred else {})
        inputs["eps"] = Operand((1, 1, 1, 1), "f32", value=EPSILON)
        judge = partial(oracle.norm_forward, axes=axes, is_centred=is_centred, epsilon=EPSILON)
        build = partial(_build_forward, kind)
        return Case(name, dtype, flops, inputs, {"y": whole} | statistics, build, judge, program=program)
    gradients = ("dscale", "dbias") if is_centred else ("dscale",)
    return Case(
        name,
        dtype,
        flops,
        {"x": whole, "dy": whole, "scale": parameter} | statistics,
        {"dx": whole} | dict.fromkeys(gradients, parameter),
        partial(_build_backward, kind),
        partial(oracle.norm_backward, axes=axes, parameter_axes=(0,)),
        partial(_statistics, axes=axes, is_centred=is_centred),
        program,
    )


def _row_norm_of_torch(kind: str, is_backward: bool, torch: Any, m: Tensors) -> object:
    x, columns = m["x"].flatten(1), m["scale"].numel()
    scale, aten, shape = m["scale"].view(-1), torch.ops.aten, (columns,)
    if kind == "layernorm" and not is_backward:
        return torch.native_layer_norm(x, shape, scale, m["bias"].view(-1), EPSILON)
    if not is_backward:
        return torch.nn.functional.rms_norm(x, shape, scale, EPSILON)
    dy = m["dy"].flatten(1)
    if kind == "layernorm":
        wanted = [True, True, True]
        selected = x.dtype if x.device.type == "cpu" else torch.float32  # the type of torch's own statistics
        mean, inv = (m[name].flatten(1).to(selected) for name in ("mean", "inv"))
        return aten.native_layer_norm_backward(dy, x, shape, mean, inv, scale, scale, wanted)
    weighted = dy * scale * m["inv"].flatten(1)  # no torch operation accepts the statistics
    xhat = x * m["inv"].flatten(1)
    return weighted - xhat * (weighted * xhat).mean(1, keepdim=True), (dy * xhat).sum(0)


def _statistics(xp: Any, t: dict[str, Any], axes: tuple[int, ...], is_centred: bool) -> dict[str, Any]:
    return oracle.statistics(xp, t["x"], axes, is_centred, EPSILON)


def _build_forward(kind: str, lib: Any, g: Any, t: Tensors) -> Tensors:
    options = {"bias": t["bias"]} if "bias" in t else {}
    phase = lib.norm_forward_phase.TRAINING
    y, *results = getattr(g, kind)(
        norm_forward_phase=phase, input=t["x"], scale=t["scale"], epsilon=t["eps"], **options
    )
    return dict(zip(("y", "mean", "inv") if options else ("y", "inv"), (y, *results), strict=True))


def _build_backward(kind: str, _: Any, g: Any, t: Tensors) -> Tensors:
    options = {"mean": t["mean"]} if "mean" in t else {"has_dbias": False}
    outputs = getattr(g, f"{kind}_backward")(
        grad=t["dy"], input=t["x"], scale=t["scale"], inv_variance=t["inv"], **options
    )
    return {
        name: tensor
        for name, tensor in zip(("dx", "dscale", "dbias"), outputs, strict=True)
        if tensor is not None
    }


def batch_norm(dtype: str, n: int, channels: int, size: int, is_backward: bool, is_last: bool = True) -> Case:
    """Batch normalization of images in training; is_last: channels last."""
    full = Operand((n, channels, size, size), dtype, NHWC if is_last else ())
    each = Operand((1, channels, 1, 1), "f32")
    layout = "" if is_last else "nchw_"
    name = f"norm/batchnorm_{'bwd' if is_backward else 'fwd'}_{layout}n{n}c{channels}hw{size}"
    flops = float(_NORM_FLOPS["layernorm", is_backward] * math.prod(full.dims))
    axes = (0, 2, 3)
    if is_backward:
        return Case(
            name,
            dtype,
            flops,
            {"x": full, "dy": full, "scale": each, "mean": each, "inv": each},
            {"dx": full, "dscale": each, "dbias": each},
            partial(_build_backward, "batchnorm"),
            partial(oracle.norm_backward, axes=axes, parameter_axes=axes),
            partial(_statistics, axes=axes, is_centred=True),
            partial(_batch_norm_of_torch, is_backward),
        )
    inputs = {"x": full} | dict.fromkeys(("scale", "bias", "running_mean", "running_var"), each)
    for key, number in ("eps", EPSILON), ("momentum", MOMENTUM):
        inputs[key] = Operand((1, 1, 1, 1), "f32", value=number)
    outputs = {"y": full} | dict.fromkeys(("mean", "inv", "new_mean", "new_var"), each)
    program = partial(_batch_norm_of_torch, is_backward)
    return Case(name, dtype, flops, inputs, outputs, _build_batch_norm, _judge_batch_norm, program=program)


def _batch_norm_of_torch(is_backward: bool, torch: Any, m: Tensors) -> object:
    scale = m["scale"].view(-1)
    if not is_backward:
        running = m["running_mean"].view(-1), m["running_var"].view(-1)
        return torch.native_batch_norm(m["x"], scale, m["bias"].view(-1), *running, True, MOMENTUM, EPSILON)
    mean, inv = m["mean"].view(-1), m["inv"].view(-1)
    return torch.ops.aten.native_batch_norm_backward(
        m["dy"], m["x"], scale, None, None, mean, inv, True, EPSILON, [True, True, True]
    )


def _build_batch_norm(_: Any, g: Any, t: Tensors) -> Tensors:
    outputs = g.batchnorm(
        input=t["x"],
        scale=t["scale"],
        bias=t["bias"],
        in_running_mean=t["running_mean"],
        in_running_var=t["running_var"],
        epsilon=t["eps"],
        momentum=t["momentum"],
    )
    return dict(zip(("y", "mean", "inv", "new_mean", "new_var"), outputs, strict=True))


def _judge_batch_norm(xp: Any, t: dict[str, Any]) -> dict[str, Any]:
    results = oracle.norm_forward(xp, t, (0, 2, 3), True, EPSILON)
    return results | oracle.running(t, results, MOMENTUM, EPSILON)


def planar_norm(kind: str, dtype: str, n: int, channels: int, size: int) -> Case:
    """Batch and instance normalization, forward, of images in NCHW."""
    whole, each = Operand((n, channels, size, size), dtype), Operand((1, channels, 1, 1), "f32")
    is_batch = kind == "batchnorm"
    statistic = Operand((1 if is_batch else n, channels, 1, 1), "f32")
    axes = (0, 2, 3) if is_batch else (2, 3)

    def build(lib: Any, g: Any, t: Tensors) -> Tensors:
        phase = {} if is_batch else {"norm_forward_phase": lib.norm_forward_phase.TRAINING}
        outputs = getattr(g, kind)(input=t["x"], scale=t["scale"], bias=t["bias"], epsilon=t["eps"], **phase)
        return dict(zip(("y", "mean", "inv"), outputs, strict=False))

    def program(torch: Any, m: Tensors) -> object:
        scale, bias = m["scale"].view(-1), m["bias"].view(-1)
        if is_batch:
            return torch.nn.functional.batch_norm(m["x"], None, None, scale, bias, True)
        scale, bias = scale.to(m["x"].dtype), bias.to(m["x"].dtype)
        return torch.nn.functional.instance_norm(m["x"], None, None, scale, bias)

    return Case(
        f"norm/{kind}_fwd_nchw_{n}x{channels}x{size}",
        dtype,
        float(_NORM_FLOPS["layernorm", False] * math.prod(whole.dims)),
        {"x": whole, "scale": each, "bias": each, "eps": Operand((1, 1, 1, 1), "f32", value=EPSILON)},
        {"y": whole, "mean": statistic, "inv": statistic},
        build,
        partial(oracle.norm_forward, axes=axes, is_centred=True, epsilon=EPSILON),
        program=program,
    )


def group_norm(
    dtype: str, n: int, channels: int, size: int, groups: int, is_backward: bool, is_last: bool
) -> Case:
    """Group normalization; is_last: channels last."""
    full = Operand((n, channels, size, size), dtype, NHWC if is_last else ())
    each, statistic = Operand((1, channels, 1, 1), "f32"), Operand((n, groups, 1, 1), "f32")
    layout = "nhwc" if is_last else "nchw"
    statistics = {"mean": statistic, "inv": statistic}
    if is_backward:
        inputs = {"x": full, "dy": full, "scale": each} | statistics
        outputs = {"dx": full, "dscale": each, "dbias": each}
    else:
        inputs = {"x": full, "scale": each, "bias": each, "eps": Operand((1, 1, 1, 1), "f32", value=EPSILON)}
        outputs = {"y": full} | statistics
    return Case(
        f"norm/groupnorm_{'bwd' if is_backward else 'fwd'}_{layout}_n{n}c{channels}hw{size}g{groups}",
        dtype,
        float(_NORM_FLOPS["layernorm", is_backward] * math.prod(full.dims)),
        inputs,
        outputs,
        partial(_build_groups, groups, is_backward),
        partial(_judge_groups, groups, is_backward),
        partial(_statistics_of_groups, groups=groups) if is_backward else None,
        partial(_group_norm_of_torch, groups, is_backward),
    )


def _build_groups(groups: int, is_backward: bool, lib: Any, g: Any, t: Tensors) -> Tensors:
    if is_backward:
        outputs = g.groupnorm_backward(t["dy"], t["x"], t["scale"], t["mean"], t["inv"], groups=groups)
        return dict(zip(("dx", "dscale", "dbias"), outputs, strict=True))
    phase = lib.norm_forward_phase.TRAINING
    outputs = g.groupnorm(phase, t["x"], t["scale"], t["bias"], t["eps"], groups=groups)
    return dict(zip(("y", "mean", "inv"), outputs, strict=True))


def _in_groups(t: dict[str, Any], groups: int) -> dict[str, Any]:
    """Splits channels into groups and channels per group."""
    shaped = {}
    for name, each in t.items():
        inner = each.shape[1] // groups
        shaped[name] = each.reshape(each.shape[0], groups, inner, *each.shape[2:])
    return shaped


def _statistics_of_groups(xp: Any, t: dict[str, Any], groups: int) -> dict[str, Any]:
    results = _statistics(xp, _in_groups(t | {"mean": t["x"], "inv": t["x"]}, groups), (2, 3, 4), True)
    return {name: each[:, :, 0] for name, each in results.items()}


def _judge_groups(groups: int, is_backward: bool, xp: Any, t: dict[str, Any]) -> dict[str, Any]:
    shown = _in_groups(t, groups)
    if is_backward:
        results = oracle.norm_backward(xp, shown, (2, 3, 4), (0, 3, 4))
    else:
        results = oracle.norm_forward(xp, shown, (2, 3, 4), True, EPSILON)
    return {name: each.reshape(each.shape[0], -1, *each.shape[3:]) for name, each in results.items()}


def _group_norm_of_torch(groups: int, is_backward: bool, torch: Any, m: Tensors) -> object:
    n, channels, *image = m["x"].shape
    sizes = n, channels, math.prod(image), groups
    scale = m["scale"].view(-1)
    if not is_backward:
        return torch.native_group_norm(m["x"], scale, m["bias"].view(-1), *sizes, EPSILON)
    mean, inv = (m[name].view(n, groups) for name in ("mean", "inv"))
    run = torch.ops.aten.native_group_norm_backward
    return run(m["dy"], m["x"], mean, inv, scale, *sizes, [True, True, True])
