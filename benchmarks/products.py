"""Cases dominated by matrix products: matmul, convolution, attention. One function per family creates a case
from its sizes. Graphs use only methods that cuDNN's frontend also has, so that another module can be compared
with Weft."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks import oracle
from benchmarks.case import Case, Tensors
from benchmarks.shapes import BSHD, NHWC, Attention, Convolution, Operand

# The tensors' type by the arithmetic; with tf32, GPUs multiply f32 tensors.
TENSORS = {"bf16": "bf16", "f16": "f16", "tf32": "f32", "f32": "f32", "fp8": "e4m3", "int8": "i8"}
RESULTS = TENSORS | {"fp8": "bf16", "int8": "i32"}
_BLOCK = 128  # elements per scale: of a weight in both directions, of a token along its features


# ---- Matmul ------------------------------------------------------------------------------------------------


def _spread(arithmetic: str, depth: int) -> float:
    """The standard deviation of a weight's values: it keeps sums near 1, or uses the whole range of narrow
    types."""
    return {"fp8": 1.0, "int8": 30.0}.get(arithmetic, 1 / math.sqrt(depth))


def _options(module: Any, arithmetic: str) -> dict[str, Any]:
    return {"compute_data_type": module.data_type.INT32} if arithmetic == "int8" else {}


def matmul(tag: str, arithmetic: str, m: int, n: int, k: int, activation: str = "") -> Case:
    """B is K-major, like the weight of a linear layer."""
    dtype = TENSORS[arithmetic]
    inputs = {
        "A": Operand((1, m, k), dtype, scale=30.0 if arithmetic == "int8" else 1.0),
        "B": Operand((1, k, n), dtype, order=(0, 2, 1), scale=_spread(arithmetic, k)),
    }
    if activation:
        inputs["bias"] = Operand((1, 1, n), dtype)

    def build(module: Any, g: Any, t: Tensors) -> Tensors:
        product = g.matmul(A=t["A"], B=t["B"], **_options(module, arithmetic))
        if activation:
            product = g.bias(input=product, bias=t["bias"])
            product = (g.relu if activation == "relu" else g.gelu_approx_tanh)(input=product)
        return {"C": product}

    outputs = {"C": Operand((1, m, n), RESULTS[arithmetic])}
    judge = partial(oracle.matmul, activation=activation)
    name = f"matmul/{arithmetic}_{tag}"
    program = partial(matmul_of_torch, activation) if arithmetic == "int8" else None
    return Case(name, arithmetic, 2.0 * m * n * k, inputs, outputs, build, judge, program=program)


def matmul_of_torch(activation: str, torch: Any, t: Tensors) -> object:
    """torch's program for the same."""
    a, b = t["A"][0], t["B"][0]
    if a.dtype == torch.int8:
        return torch._int_mm(a, b)
    outputs = torch.nn.functional.linear(a, b.mT, t["bias"][0, 0] if activation else None)
    if activation == "gelu":
        return torch.nn.functional.gelu(outputs, approximate="tanh")
    return outputs.relu() if activation else outputs


def scaled_matmul(tag: str, m: int, n: int, k: int) -> Case:
    """FP8 with a scale for each operand, which multiplies the result."""
    inputs = {
        "A": Operand((1, m, k), "e4m3"),
        "B": Operand((1, k, n), "e4m3", order=(0, 2, 1)),
        "A_scale": Operand((1, 1, 1), "f32"),
        "B_scale": Operand((1, 1, 1), "f32"),
    }

    def build(_: Any, g: Any, t: Tensors) -> Tensors:
        return {"C": g.mul(a=g.mul(a=g.matmul(A=t["A"], B=t["B"]), b=t["A_scale"]), b=t["B_scale"])}

    def program(torch: Any, t: Tensors) -> Any:
        scales = t["A_scale"].view(()), t["B_scale"].view(())
        return torch._scaled_mm(t["A"][0], t["B"][0], *scales, out_dtype=torch.bfloat16)

    outputs = {"C": Operand((1, m, n), "bf16")}
    judge = oracle.scaled_matmul
    return Case(f"matmul/fp8_{tag}", "fp8", 2.0 * m * n * k, inputs, outputs, build, judge, program=program)


def block_scaled_matmul(tag: str, m: int, n: int, k: int) -> Case:
    """FP8 with a scale for every 128 features of a token, and one for every 128 x 128 block of a weight."""
    depth, columns = -(-k // _BLOCK), -(-n // _BLOCK)
    inputs = {
        "A": Operand((1, m, k), "e4m3"),
        "B": Operand((1, k, n), "e4m3", order=(0, 2, 1)),
        "A_scale": Operand((1, m, depth), "f32", order=(0, 2, 1)),
        "B_scale": Operand((1, depth, columns), "f32", order=(0, 2, 1)),
    }

    def build(_: Any, g: Any, t: Tensors) -> Tensors:
        a = g.block_scale_dequantize(input=t["A"], descale=t["A_scale"], block_size=[1, _BLOCK])
        b = g.block_scale_dequantize(input=t["B"], descale=t["B_scale"], block_size=[_BLOCK, _BLOCK])
        return {"C": g.matmul(A=a, B=b)}

    def program(torch: Any, t: Tensors) -> Any:
        factors = (t[name][0] for name in ("A", "B", "A_scale", "B_scale"))
        return torch._scaled_mm(*factors, out_dtype=torch.bfloat16)

    outputs = {"C": Operand((1, m, n), "bf16")}
    judge = partial(oracle.block_scaled_matmul, block=_BLOCK)
    name = f"matmul/fp8_blocks_{tag}"
    return Case(name, "fp8", 2.0 * m * n * k, inputs, outputs, build, judge, program=program)


def weight_only_matmul(dtype: str, m: int, n: int, k: int) -> Case:
    """Tokens times low-bit weights, which share a scale for every 128 features of one output."""
    inputs = {
        "A": Operand((1, m, k)),
        "W": Operand((1, k, n), dtype, order=(0, 2, 1), scale=30.0),
        "W_scale": Operand((1, k // _BLOCK, n)),
    }

    def build(_: Any, g: Any, t: Tensors) -> Tensors:
        w = g.block_scale_dequantize(input=t["W"], descale=t["W_scale"], block_size=[_BLOCK, 1])
        return {"C": g.matmul(A=t["A"], B=w)}

    judge = partial(oracle.weight_only_matmul, block=_BLOCK)
    name = f"matmul/{dtype}_weights_m{m}_n{n}_k{k}"
    return Case(name, "bf16", 2.0 * m * n * k, inputs, {"C": Operand((1, m, n))}, build, judge)


def experts(kind: str, tag: str, arithmetic: str, experts: int, rows: int, depth: int, columns: int) -> Case:
    """The grouped matmul of a mixture of experts with similar numbers of rows ("fprop"), or its gradient with
    respect to the weights ("wgrad"). Weights are K-major."""
    dtype = TENSORS[arithmetic]
    token, results = Operand((1, rows, depth), dtype), Operand((1, rows, columns), dtype)
    weight = Operand((experts, depth, columns), dtype, order=(0, 2, 1), scale=1 / math.sqrt(depth))
    firsts = [int(rows * (e / experts) ** 1.25) for e in range(experts)]
    shared = {"token": token, "first": Operand((experts, 1, 1), "i32")}

    def fprop(_: Any, g: Any, t: Tensors) -> Tensors:
        return {"y": g.moe_grouped_matmul(token=t["token"], weight=t["w"], first_token_offset=t["first"])}

    def wgrad(_: Any, g: Any, t: Tensors) -> Tensors:
        return {
            "dw": g.moe_grouped_matmul_bwd(doutput=t["dy"], token=t["token"], first_token_offset=t["first"])
        }

    def program(torch: Any, m: Tensors) -> object:
        ends = torch.cat((m["first"][1:, 0, 0], m["first"].new_full((1,), rows)))
        if kind == "fprop":
            return torch._grouped_mm(m["token"][0], m["w"], offs=ends)
        return torch._grouped_mm(m["dy"][0].T, m["token"][0], offs=ends)

    inputs, outputs, build, judge = {
        "fprop": (shared | {"w": weight}, {"y": results}, fprop, oracle.experts),
        "wgrad": (shared | {"dy": results}, {"dw": weight}, wgrad, oracle.experts_wgrad),
    }[kind]
    return Case(
        f"matmul/moe_{kind}_{tag}",
        arithmetic,
        2.0 * rows * depth * columns,
        inputs,
        outputs,
        build,
        partial(judge, firsts=firsts),
        lambda xp, t: {"first": xp.asarray(firsts).reshape(experts, 1, 1)},
        program,
    )


# ---- Convolution -------------------------------------------------------------------------------------------


def conv(
    kind: str,
    tag: str,
    arithmetic: str,
    c: Convolution,
    has_bias: bool = False,
    order: tuple[int, ...] = NHWC,
) -> Case:
    """Convolution ("fprop"), plain or with bias and relu; its gradients of x ("dgrad") and w ("wgrad")."""
    dtype = TENSORS[arithmetic]
    x = Operand(c.x, dtype, order, scale=30.0 if arithmetic == "int8" else 1.0)
    y = Operand(c.y, RESULTS[arithmetic], order)
    w = Operand(c.w, dtype, order, scale=_spread(arithmetic, math.prod(c.w[1:])))
    options = {name: [getattr(c, name)] * len(c.image) for name in ("padding", "stride", "dilation")}

    def fprop(module: Any, g: Any, t: Tensors) -> Tensors:
        outputs = g.conv_fprop(image=t["x"], weight=t["w"], **options, **_options(module, arithmetic))
        return {"y": g.relu(input=g.add(a=outputs, b=t["bias"])) if has_bias else outputs}

    def dgrad(_: Any, g: Any, t: Tensors) -> Tensors:
        return {"dx": g.conv_dgrad(loss=t["dy"], filter=t["w"], **options)}

    def wgrad(_: Any, g: Any, t: Tensors) -> Tensors:
        return {"dw": g.conv_wgrad(image=t["x"], loss=t["dy"], **options)}

    bias = {"bias": Operand((1, c.filters, *[1] * len(c.image)), dtype)} if has_bias else {}
    inputs, outputs, build, judge = {
        "fprop": ({"x": x, "w": w} | bias, {"y": y}, fprop, oracle.conv_fprop),
        "dgrad": ({"w": w, "dy": y}, {"dx": x}, dgrad, oracle.conv_dgrad),
        "wgrad": ({"x": x, "dy": y}, {"dw": w}, wgrad, oracle.conv_wgrad),
    }[kind]
    program = None if has_bias or dtype != y.dtype else partial(conv_of_torch, kind, c)
    kind += "_bias_relu" if has_bias else f"_{arithmetic}" if dtype != y.dtype else ""
    name = f"conv/{kind}_{tag}"
    return Case(name, arithmetic, c.flops, inputs, outputs, build, partial(judge, c=c), program=program)


def conv_of_torch(kind: str, c: Convolution, torch: Any, m: Tensors) -> object:
    """torch's program for the same. For the operand of a gradient it uses only the dims and the layout."""
    steps = ([c.stride] * 2, [c.padding] * 2, [c.dilation] * 2, False, [0, 0], c.groups)
    if kind == "fprop":
        return torch.ops.aten.convolution(m["x"], m["w"], None, *steps)
    x, w = m["dx" if kind == "dgrad" else "x"], m["dw" if kind == "wgrad" else "w"]
    wanted = [kind == "dgrad", kind == "wgrad", False]
    return torch.ops.aten.convolution_backward(m["dy"], x, w, None, *steps, wanted)


def causal_conv(
    tag: str,
    arithmetic: str,
    sizes: tuple[int, int, int, int],
    is_backward: bool,
    order: tuple[int, ...] = (),
) -> Case:
    """A causal convolution of sequences with bias and SiLU, or all its gradients. sizes: batch, channels,
    steps and taps."""
    batch, channels, steps, taps = sizes
    dtype = TENSORS[arithmetic]
    x = Operand((batch, channels, steps), dtype, order)
    inputs = {"x": x, "w": Operand((channels, taps), dtype, scale=_spread(arithmetic, taps))}
    inputs["bias"] = Operand((channels,), dtype)

    def forward(module: Any, g: Any, t: Tensors) -> Tensors:
        silu = module.pointwise_mode.SWISH_FWD
        return {"y": g.causal_conv1d(input=t["x"], weight=t["w"], bias=t["bias"], activation=silu)}

    def backward(module: Any, g: Any, t: Tensors) -> Tensors:
        operands = {"loss": t["dy"], "input": t["x"], "weight": t["w"], "bias": t["bias"]}
        outputs = g.causal_conv1d_backward(**operands, activation=module.pointwise_mode.SWISH_FWD)
        return dict(zip(("dx", "dw", "dbias"), outputs, strict=True))

    flops, program = 2.0 * batch * channels * steps * taps, partial(causal_conv_of_torch, is_backward)
    if not is_backward:
        judge, name = oracle.causal_conv, f"conv/causal_fwd_{tag}"
        return Case(name, arithmetic, flops, inputs, {"y": x}, forward, judge, program=program)
    judge, name = oracle.causal_conv_backward, f"conv/causal_bwd_{tag}"
    outputs = {f"d{of}": operand for of, operand in inputs.items()}
    return Case(name, arithmetic, 3 * flops, inputs | {"dy": x}, outputs, backward, judge, program=program)


def causal_conv_of_torch(is_backward: bool, torch: Any, m: Tensors) -> object:
    """torch's program for the same."""
    x, w, bias = m["x"], m["w"][:, None], m["bias"]
    steps, edge, channels = x.shape[2], w.shape[2] - 1, x.shape[1]
    s = torch.nn.functional.conv1d(x, w, bias, padding=edge, groups=channels)[..., :steps]
    if not is_backward:
        return torch.nn.functional.silu(s)
    ds = torch.nn.functional.pad(torch.ops.aten.silu_backward(m["dy"], s), (0, edge))
    options = [channels], [1], [edge], [1], False, [0], channels, [True] * 3
    return torch.ops.aten.convolution_backward(ds, x, w, *options)


# ---- Attention ---------------------------------------------------------------------------------------------


def sdpa(tag: str, arithmetic: str, a: Attention, is_backward: bool = False) -> Case:
    """Attention, forward without statistics, or backward."""
    dtype = TENSORS[arithmetic]
    options: dict[str, Any] = {"attn_scale": a.scale} | ({"use_causal_mask": True} if a.is_causal else {})
    if a.window:
        options["diagonal_band_left_bound"] = a.window

    def operands(*names: str) -> dict[str, Operand]:
        return {name: Operand(a.dims(name), dtype, BSHD) for name in names}

    def forward(_: Any, g: Any, t: Tensors) -> Tensors:
        o, _ = g.sdpa(q=t["q"], k=t["k"], v=t["v"], generate_stats=False, **options)
        return {"o": o}

    def backward(_: Any, g: Any, t: Tensors) -> Tensors:
        outputs = g.sdpa_backward(
            q=t["q"], k=t["k"], v=t["v"], o=t["o"], dO=t["dO"], stats=t["stats"], **options
        )
        return dict(zip(("dQ", "dK", "dV"), outputs, strict=True))

    name, flops = f"sdpa/{tag}", a.flops(is_backward)
    if not is_backward:
        judge = partial(oracle.sdpa_forward, a=a)
        return Case(name, arithmetic, flops, operands("q", "k", "v"), operands("o"), forward, judge)
    inputs = operands("q", "k", "v", "o", "dO") | {"stats": Operand(a.dims("stats"), "f32")}
    outputs, judge = operands("dQ", "dK", "dV"), partial(oracle.sdpa_backward, a=a)
    follows = partial(oracle.sdpa_forward, a=a)
    return Case(name, arithmetic, flops, inputs, outputs, backward, judge, follows)


def sdpa_of_torch(a: Attention, is_backward: bool, torch: Any, m: Tensors) -> object:
    """torch's program for the same on a CPU."""
    if not is_backward:
        grouped = a.heads != a.key_heads
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(m["q"], m["k"], m["v"], is_causal=a.is_causal, scale=a.scale, enable_gqa=grouped)
    # torch stores the statistics with the heads of a position adjacent.
    stats = m["stats"][..., 0].transpose(1, 2).contiguous().transpose(1, 2)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        m["dO"], m["q"], m["k"], m["v"], m["o"], stats, 0.0, a.is_causal, scale=a.scale
    )


def sdpa_modified(tag: str, arithmetic: str, a: Attention, kind: str, is_backward: bool = False) -> Case:
    """Attention with a "bias", a "softcap" or "alibi" on its scores. Bare: without."""
    plain = sdpa(tag, arithmetic, a, is_backward)
    inputs = dict(plain.inputs)
    options: dict[str, Any] = {"attn_scale": a.scale} | ({"use_causal_mask": True} if a.is_causal else {})
    if kind == "bias":
        inputs["bias"] = Operand((1, 1, a.queries, a.keys), TENSORS[arithmetic])
    if kind == "alibi":
        options["use_alibi_mask"] = True
    if kind == "softcap":
        cap = oracle.SOFTCAP
        options["score_mod"] = lambda g, s: g.mul(a=g.tanh(input=g.mul(a=s, b=1 / cap)), b=cap)

    def build(_: Any, g: Any, t: Tensors) -> Tensors:
        known = {name: t[name] for name in inputs} | options
        outputs = g.sdpa_backward(**known) if is_backward else g.sdpa(generate_stats=False, **known)
        return dict(zip(plain.outputs, outputs, strict=False))

    judge = partial(oracle.sdpa_backward if is_backward else oracle.sdpa_forward, a=a, kind=kind)
    follows = partial(oracle.sdpa_forward, a=a, kind=kind) if is_backward else None
    return replace(
        plain,
        name=f"{plain.name}_{kind}",
        inputs=inputs,
        build=build,
        oracle=judge,
        derive=follows,
        bare=plain,
    )


_SCALES = {"descale_q": 1.0, "descale_k": 1.0, "descale_v": 1.0, "descale_s": 2.0**-8, "scale_s": 2.0**8}
_SCALES["scale_o"] = 2.0**6
_SCALAR = (1, 1, 1, 1)


def sdpa_fp8(tag: str, arithmetic: str, a: Attention) -> Case:
    """Attention with scales that use the whole FP8 range of weights and results, and the largest magnitudes;
    forward without statistics. Each rounding to 3 fraction bits has an error of 2 or 3 %."""
    dtype = TENSORS[arithmetic]
    inputs = {name: Operand(a.dims(name), dtype, BSHD) for name in "qkv"}
    inputs |= {name: Operand(_SCALAR, "f32") for name in _SCALES}
    outputs = {"o": Operand(a.dims("o"), dtype, BSHD)}
    outputs |= {name: Operand(_SCALAR, "f32") for name in ("amax_s", "amax_o")}

    def build(_: Any, g: Any, t: Tensors) -> Tensors:
        options: dict[str, Any] = {"use_causal_mask": True} if a.is_causal else {}
        options |= {name: t[name] for name in inputs} | {"is_inference": True, "attn_scale": a.scale}
        outputs = g.sdpa_fp8(**options)
        return {"o": outputs[0], "amax_s": outputs[-2], "amax_o": outputs[-1]}

    def scales(xp: Any, _: dict[str, Any]) -> dict[str, Any]:
        return {name: xp.full(_SCALAR, value, dtype=xp.float64) for name, value in _SCALES.items()}

    judge, flops = partial(oracle.sdpa_fp8, a=a), a.flops(False)
    case = Case(f"sdpa/{tag}", arithmetic, flops, inputs, outputs, build, judge, scales)
    return replace(case, largest_error=6e-2) if arithmetic == "fp8" else case
