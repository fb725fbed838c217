"""Cases whose work is in products: matmul, convolution, attention. A function per family makes a case from
its sizes. Graphs are written in the methods that cuDNN's frontend offers too: another module can stand beside
Weft.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from weft.bench import oracle
from weft.bench.case import Case, Tensors
from weft.bench.shapes import BSHD, NHWC, Attention, Convolution, Operand

# The type of tensors by the arithmetic of the products: tf32 is how GPUs multiply f32.
_TENSORS = {"bf16": "bf16", "tf32": "f32", "f32": "f32"}


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


def experts(kind: str, tag: str, arithmetic: str, experts: int, rows: int, depth: int, columns: int) -> Case:
    """The product of a mixture of experts, each with about as many rows as its neighbours ("fprop"), or its
    gradient by the weights ("wgrad"). Weights lie K-major."""
    dtype = _TENSORS[arithmetic]
    token, made = Operand((1, rows, depth), dtype), Operand((1, rows, columns), dtype)
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
        "fprop": (shared | {"w": weight}, {"y": made}, fprop, oracle.experts),
        "wgrad": (shared | {"dy": made}, {"dw": weight}, wgrad, oracle.experts_wgrad),
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
