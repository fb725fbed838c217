"""How fast memory-bound graphs run on a GPU: pointwise chains, transposes, concatenation, pooling, and rows
of lengths that other libraries decline. Each case is checked against float64 once, then timed as replays of a
CUDA graph over rotating buffers larger than the second cache; the median counts.

    python tools/bench/memory.py                        all cases on the first GPU
    python tools/bench/memory.py --only 'pool/' --csv FILE

The peer is cuDNN, by its frontend, where the same graph runs there, else torch; TB/s counts each tensor once.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib
import math
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "bindings")]
Tensors = dict[str, Any]
CACHE_BYTES, SETS_MAX, REPLAYS, REPETITIONS = 200e6, 12, 7, 60
BF16, F32, I8 = torch.bfloat16, torch.float32, torch.int8
F = torch.nn.functional


class Case(NamedTuple):
    """One graph: its tensors by name, outputs among them, and what the outputs should hold."""

    inputs: Callable[[], Tensors]
    build: Callable[[Any, Any, Tensors], Tensors]  # (module, graph, tensors): the graph's tensors by name
    outputs: Tensors  # by name: a function of the tensors, in float64
    peer: Callable[[Tensors], Any] | None = None  # a torch program; None: the same graph through cuDNN


CASES: dict[str, Case] = {}


def random(*shape: int, dtype: Any = BF16, last: bool = False) -> Any:
    """Random numbers; last: channels last."""
    if dtype is I8:
        made = torch.randint(-99, 99, shape, device="cuda", dtype=I8)
    else:
        made = torch.randn(*shape, device="cuda", dtype=F32).to(dtype)
    return made.contiguous(memory_format=torch.channels_last) if last else made


def element(module: Any, tensor: Any) -> Any:
    """A module's name of a tensor's data type."""
    names = {BF16: "BFLOAT16", F32: "FLOAT", I8: "INT8", torch.int32: "INT32"}
    return getattr(module.data_type, names[tensor.dtype])


def output(module: Any, made: Any, like: Any) -> Any:
    """An output with the memory of a tensor."""
    made.set_output(True).set_data_type(element(module, like))
    return made.set_dim(list(like.shape)).set_stride(list(like.stride()))


# ---- Pointwise chains --------------------------------------------------------------------------------------


def add_chain(name: str, rows: int, columns: int, dtype: Any = BF16) -> None:
    """gelu(x + bias) + residual."""

    def inputs() -> Tensors:
        whole = {key: random(1, rows, columns, dtype=dtype) for key in "xry"}
        return whole | {"b": random(1, 1, columns, dtype=dtype)}

    def build(module: Any, g: Any, t: Tensors) -> Tensors:
        use = {key: g.tensor_like(t[key]) for key in "xrb"}
        y = g.add(a=g.gelu_approx_tanh(input=g.bias(input=use["x"], bias=use["b"])), b=use["r"])
        return use | {"y": output(module, y, t["y"])}

    def want(t: Tensors) -> Any:
        return F.gelu(t["x"].double() + t["b"].double(), approximate="tanh") + t["r"].double()

    CASES[f"mem/{name}"] = Case(inputs, build, {"y": want})


add_chain("bias_gelu_residual_16384x4096", 16384, 4096)
add_chain("bias_gelu_residual_f32_8192x4096", 8192, 4096, F32)
add_chain("bias_gelu_residual_16384x4097", 16384, 4097)
add_chain("bias_gelu_residual_1024x1024", 1024, 1024)
add_chain("bias_gelu_residual_64x1024", 64, 1024)


def add_relu(name: str, elements: int, dtype: Any) -> None:
    """One read, one write, beside torch: cuDNN takes no bare activation of this length."""

    def build(module: Any, g: Any, t: Tensors) -> Tensors:
        x = g.tensor_like(t["x"])
        return {"x": x, "y": output(module, g.relu(input=x), t["y"])}

    CASES[f"mem/{name}"] = Case(
        lambda: {"x": random(1, 1, elements, dtype=dtype), "y": random(1, 1, elements, dtype=dtype)},
        build,
        {"y": lambda t: t["x"].double().relu()},
        lambda t: torch.relu(t["x"]),
    )


add_relu("relu_64M", 1 << 26, BF16)
add_relu("relu_64M_odd", (1 << 26) - 1, BF16)
add_relu("relu_512K", 1 << 19, BF16)


# ---- Movement ----------------------------------------------------------------------------------------------


def add_transpose(name: str, shape: tuple[int, ...], order: tuple[int, ...], dtype: Any = BF16) -> None:
    """A packed copy of a tensor with its dims in another order."""
    made = [shape[i] for i in order]

    def build(module: Any, g: Any, t: Tensors) -> Tensors:
        x = g.tensor_like(t["x"])
        return {"x": x, "y": output(module, g.transpose(x, list(order)), t["y"])}

    CASES[f"move/{name}"] = Case(
        lambda: {"x": random(*shape, dtype=dtype), "y": random(*made, dtype=dtype)},
        build,
        {"y": lambda t: t["x"].permute(order).double()},
        lambda t: t["y"].copy_(t["x"].permute(order)),
    )


add_transpose("transpose_8192x8192", (8192, 8192), (1, 0))
add_transpose("transpose_8192x8192_f32", (8192, 8192), (1, 0), F32)
add_transpose("transpose_16384x8192_i8", (16384, 8192), (1, 0), I8)
add_transpose("transpose_8191x8193", (8191, 8193), (1, 0))
add_transpose("transpose_64x1024x1024", (64, 1024, 1024), (0, 2, 1))
add_transpose("transpose_bshd_bhsd", (16, 4096, 16, 64), (0, 2, 1, 3))
add_transpose("transpose_3210", (64, 96, 128, 80), (3, 2, 1, 0))
add_transpose("transpose_1024x1024", (1024, 1024), (1, 0))


def add_layout(name: str, shape: tuple[int, ...], to_last: bool, dtype: Any = BF16) -> None:
    """NCHW to NHWC, or back."""

    def build(module: Any, g: Any, t: Tensors) -> Tensors:
        x = g.tensor_like(t["x"])
        return {"x": x, "y": output(module, g.identity(input=x), t["y"])}

    CASES[f"move/{name}"] = Case(
        lambda: {
            "x": random(*shape, dtype=dtype, last=not to_last),
            "y": random(*shape, dtype=dtype, last=to_last),
        },
        build,
        {"y": lambda t: t["x"].double()},
        lambda t: t["y"].copy_(t["x"]),
    )


add_layout("nchw_nhwc_128x64x112x112", (128, 64, 112, 112), True)
add_layout("nhwc_nchw_128x64x112x112", (128, 64, 112, 112), False)
add_layout("nchw_nhwc_128x2048x7x7", (128, 2048, 7, 7), True)
add_layout("nhwc_nchw_128x2048x7x7", (128, 2048, 7, 7), False)
add_layout("nchw_nhwc_256x3x224x224_f32", (256, 3, 224, 224), True, F32)


def add_fused_transpose() -> None:
    """relu(x + r) with r across."""

    def build(module: Any, g: Any, t: Tensors) -> Tensors:
        x, r = g.tensor_like(t["x"]), g.tensor_like(t["r"])
        return {"x": x, "r": r, "y": output(module, g.relu(input=g.add(a=x, b=r)), t["y"])}

    shape = (128, 256, 56, 56)
    CASES["move/add_relu_nhwc_nchw"] = Case(
        lambda: {"x": random(*shape, last=True), "r": random(*shape), "y": random(*shape, last=True)},
        build,
        {"y": lambda t: (t["x"].double() + t["r"].double()).relu()},
        lambda t: torch.relu_(torch.add(t["x"], t["r"], out=t["y"])),
    )


add_fused_transpose()


def add_concat(name: str, shapes: list[tuple[int, ...]], axis: int, last: bool = False) -> None:
    """Tensors side by side."""
    made = list(shapes[0])
    made[axis] = sum(shape[axis] for shape in shapes)
    names = [f"x{i}" for i in range(len(shapes))]

    def inputs() -> Tensors:
        parts = {key: random(*shape, last=last) for key, shape in zip(names, shapes, strict=True)}
        return parts | {"y": random(*made, last=last)}

    def build(module: Any, g: Any, t: Tensors) -> Tensors:
        use = {key: g.tensor_like(t[key]) for key in names}
        return use | {"y": output(module, g.concatenate([use[key] for key in names], axis), t["y"])}

    CASES[f"move/{name}"] = Case(
        inputs,
        build,
        {"y": lambda t: torch.cat([t[key] for key in names], axis).double()},
        lambda t: torch.cat([t[key] for key in names], axis, out=t["y"]),
    )


add_concat("concat_nhwc_64_192_56", [(128, 64, 56, 56), (128, 192, 56, 56)], 1, True)
add_concat("concat_nhwc_12_20_112", [(128, 12, 112, 112), (128, 20, 112, 112)], 1, True)
add_concat("concat_rows", [(8192, 4096), (4096, 4096), (1, 4096)], 0)
add_concat("concat_columns_odd", [(8192, 4095), (8192, 2049)], 1)


# ---- Pooling -----------------------------------------------------------------------------------------------


class Pool(NamedTuple):
    """Square windows."""

    shape: tuple[int, ...]
    window: int
    stride: int
    padding: int

    @property
    def options(self) -> dict[str, Any]:
        """As graphs take them."""
        return {"window": [self.window] * 2, "stride": [self.stride] * 2} | {
            key: [self.padding] * 2 for key in ("pre_padding", "post_padding")
        }

    @property
    def made(self) -> tuple[int, ...]:
        """The result's shape."""
        reach = 2 * self.padding - self.window
        return (*self.shape[:2], *((n + reach) // self.stride + 1 for n in self.shape[2:]))


STEM = Pool((128, 64, 112, 112), 3, 2, 1)
SAME = Pool((128, 256, 28, 28), 3, 1, 1)
HALF = Pool((128, 256, 56, 56), 2, 2, 0)
WHOLE = Pool((128, 2048, 7, 7), 7, 1, 0)


def add_pool(name: str, pool: Pool, maximum: bool, index: bool = False, last: bool = True) -> None:
    """A pooling, forward."""

    def inputs() -> Tensors:
        t = {"x": random(*pool.shape, last=last), "y": random(*pool.made, last=last)}
        return t | ({"index": random(*pool.made, dtype=I8, last=last)} if index else {})

    def build(module: Any, g: Any, t: Tensors) -> Tensors:
        modes, paddings = module.resample_mode, module.padding_mode
        x = g.tensor_like(t["x"])
        y, where = g.resample(
            input=x,
            **pool.options,
            mode=modes.MAXPOOL if maximum else modes.AVGPOOL_INCLUDE_PADDING,
            padding_mode=paddings.NEG_INF_PAD if maximum else paddings.ZERO_PAD,
            generate_index=index,
        )
        use = {"x": x, "y": output(module, y, t["y"])}
        return use | ({"index": output(module, where, t["index"])} if index else {})

    def want(t: Tensors) -> Any:
        run = F.max_pool2d if maximum else F.avg_pool2d
        return run(t["x"].double(), pool.window, pool.stride, pool.padding)

    def peer(t: Tensors) -> Any:
        if maximum:
            return F.max_pool2d(t["x"], pool.window, pool.stride, pool.padding, return_indices=index)
        return F.avg_pool2d(t["x"], pool.window, pool.stride, pool.padding)

    CASES[f"pool/{name}"] = Case(inputs, build, {"y": want}, peer)


add_pool("max3x3s2", STEM, True)
add_pool("max3x3s2_index", STEM, True, True)
add_pool("max3x3s1", SAME, True)
add_pool("max2x2s2", HALF, True)
add_pool("avg3x3s2", STEM, False)
add_pool("avg3x3s1", SAME, False)
add_pool("avg7x7", WHOLE, False)
add_pool("max3x3s2_nchw", STEM, True, last=False)


def places(pool: Pool, x: Any) -> Any:
    """Each maximum's number among its window's elements."""
    size = pool.padding
    padded = F.pad(x.float(), (size,) * 4, value=-math.inf)
    windows = padded.unfold(2, pool.window, pool.stride).unfold(3, pool.window, pool.stride)
    return windows.flatten(4).argmax(4).to(I8).contiguous(memory_format=torch.channels_last)


def add_pool_backward(name: str, pool: Pool, maximum: bool, index: bool = True) -> None:
    """A pooling's gradient: of maxima, by the forward's indices, or found again in x."""

    def inputs() -> Tensors:
        t = {"dy": random(*pool.made, last=True), "dx": random(*pool.shape, last=True)}
        if maximum:
            t["x"] = random(*pool.shape, last=True)
        return t | ({"index": places(pool, t["x"])} if maximum and index else {})

    def build(module: Any, g: Any, t: Tensors) -> Tensors:
        use = {"dy": g.tensor_like(t["dy"])}
        keys = ["index" if index else "x"] if maximum else []
        use |= {key: g.tensor_like(t[key]) for key in keys}
        mode = "MAXPOOL" if maximum else "AVGPOOL_INCLUDE_PADDING"
        dx = g.resample_backward(use["dy"], use.get("index"), use.get("x"), mode=mode, **pool.options)
        return use | {"dx": output(module, dx, t["dx"])}

    def want(t: Tensors) -> Any:
        # Contiguous, because torch's gradient of channels-last means is wrong.
        x = t["x" if maximum else "dx"].double().nan_to_num().contiguous().requires_grad_()
        run = F.max_pool2d if maximum else F.avg_pool2d
        run(x, pool.window, pool.stride, pool.padding).backward(t["dy"].double().contiguous())
        return x.grad

    def peer(t: Tensors) -> Any:
        window, step, edge = pool.window, pool.stride, pool.padding
        if not maximum:
            return torch.ops.aten.avg_pool2d_backward(
                t["dy"], t["dx"], [window] * 2, [step] * 2, [edge] * 2, False, True, None
            )
        if "flat" not in t:
            t["flat"] = F.max_pool2d(t["x"], window, step, edge, return_indices=True)[1]
        return torch.ops.aten.max_pool2d_with_indices_backward(
            t["dy"], t["x"], [window] * 2, [step] * 2, [edge] * 2, [1, 1], False, t["flat"]
        )

    CASES[f"pool/{name}"] = Case(inputs, build, {"dx": want}, peer)


add_pool_backward("max3x3s2_bwd", STEM, True)
add_pool_backward("max3x3s2_bwd_from_x", STEM, True, False)
add_pool_backward("max2x2s2_bwd", HALF, True)
add_pool_backward("avg3x3s2_bwd", STEM, False)
add_pool_backward("avg3x3s1_bwd", SAME, False)


# ---- Rows and columns --------------------------------------------------------------------------------------


def add_softmax(rows: int, columns: int) -> None:
    """Along the last dim."""

    def build(module: Any, g: Any, t: Tensors) -> Tensors:
        x, modes = g.tensor_like(t["x"]), module.reduction_mode
        above = g.exp(input=g.sub(a=x, b=g.reduction(input=x, mode=modes.MAX).set_dim([1, rows, 1])))
        whole = g.reduction(input=above, mode=modes.ADD).set_dim([1, rows, 1])
        return {"x": x, "y": output(module, g.div(a=above, b=whole), t["y"])}

    CASES[f"rows/softmax_{rows}x{columns}"] = Case(
        lambda: {key: random(1, rows, columns) for key in "xy"},
        build,
        {"y": lambda t: t["x"].double().softmax(2)},
        lambda t: torch.softmax(t["x"], 2, out=t["y"]),
    )


def add_sum(rows: int, columns: int, axis: int) -> None:
    """Sums of rows, or of columns."""
    made = (1, 1, columns) if axis == 1 else (1, rows, 1)

    def build(module: Any, g: Any, t: Tensors) -> Tensors:
        x = g.tensor_like(t["x"])
        return {"x": x, "y": output(module, g.reduction(input=x, mode=module.reduction_mode.ADD), t["y"])}

    CASES[f"rows/sum_{'columns' if axis == 1 else 'rows'}_{rows}x{columns}"] = Case(
        lambda: {"x": random(1, rows, columns), "y": random(*made, dtype=F32)},
        build,
        {"y": lambda t: t["x"].double().sum(axis, keepdim=True)},
        lambda t: torch.sum(t["x"], axis, keepdim=True, dtype=F32, out=t["y"]),
    )


for _columns in (4096, 4097):
    add_softmax(16384, _columns)
    add_sum(16384, _columns, 2)
add_sum(256, 262144, 2)
add_sum(16384, 4096, 1)
add_sum(16384, 4097, 1)


def add_channel_norm(name: str, shape: tuple[int, ...], instance: bool) -> None:
    """Batch and instance norm of NCHW tensors, training forward."""
    n, c = shape[:2]
    kept = (n, c, 1, 1) if instance else (1, c, 1, 1)

    def inputs() -> Tensors:
        return {
            **{key: random(*shape) for key in "xy"},
            **{key: random(1, c, 1, 1, dtype=F32) for key in ("scale", "bias")},
            **{key: random(*kept, dtype=F32) for key in ("mean", "inv")},
            "eps": torch.full((1, 1, 1, 1), 1e-5),
        }

    def build(module: Any, g: Any, t: Tensors) -> Tensors:
        use = {key: g.tensor_like(t[key]) for key in ("x", "scale", "bias")}
        one = [1, 1, 1, 1]
        use["eps"] = g.tensor(dim=one, stride=one, is_pass_by_value=True, data_type=module.data_type.FLOAT)
        if instance:
            phase = module.norm_forward_phase.TRAINING
            made = g.instancenorm(
                norm_forward_phase=phase,
                input=use["x"],
                scale=use["scale"],
                bias=use["bias"],
                epsilon=use["eps"],
            )
        else:
            made = g.batchnorm(input=use["x"], scale=use["scale"], bias=use["bias"], epsilon=use["eps"])
        results = zip(("y", "mean", "inv"), made, strict=False)
        return use | {key: output(module, each, t[key]) for key, each in results}

    def want(t: Tensors) -> Any:
        x, axes = t["x"].double(), (2, 3) if instance else (0, 2, 3)
        variance, mean = torch.var_mean(x, axes, unbiased=False, keepdim=True)
        return (x - mean) / (variance + 1e-5).sqrt() * t["scale"].double() + t["bias"].double()

    def peer(t: Tensors) -> Any:
        scale, bias = t["scale"].view(-1), t["bias"].view(-1)
        if instance:
            return F.instance_norm(t["x"], None, None, scale.to(BF16), bias.to(BF16))
        return F.batch_norm(t["x"], None, None, scale, bias, True)

    CASES[f"norm/{name}"] = Case(inputs, build, {"y": want}, peer)


add_channel_norm("batchnorm_fwd_nchw_128x256x56", (128, 256, 56, 56), False)
add_channel_norm("instancenorm_fwd_nchw_128x256x56", (128, 256, 56, 56), True)


# ---- Runs --------------------------------------------------------------------------------------------------


def median_us(run: Callable[[Tensors], Any], sets: list[Tensors], stream: Any) -> float:
    """Microseconds of one run among replays of a captured sequence of them."""
    count = max(len(sets), REPETITIONS - REPETITIONS % len(sets))
    with torch.cuda.stream(stream):
        for each in sets:
            run(each)
        stream.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=stream):
            for i in range(count):
                run(sets[i % len(sets)])
        captured.replay()
        times: list[float] = []
        for _ in range(REPLAYS):
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record(stream)
            captured.replay()
            end.record(stream)
            end.synchronize()
            times.append(start.elapsed_time(end) / count * 1e3)
        del captured
    return sorted(times)[len(times) // 2]


def host_us(run: Callable[[Tensors], Any], tensors: Tensors) -> float:
    """Microseconds of the host per call, the GPU left behind."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(50):
        run(tensors)
    spent = (time.perf_counter() - start) / 50 * 1e6
    torch.cuda.synchronize()
    return spent


def graph_runner(module: Any, case: Case, tensors: Tensors, stream: Any) -> Callable[[Tensors], Any]:
    """Executes the case's graph, built through a module with cuDNN's calls."""
    handle = module.create_handle()
    module.set_stream(handle=handle, stream=stream.cuda_stream)
    types = dict.fromkeys(("intermediate_data_type", "compute_data_type"), module.data_type.FLOAT)
    g = module.pygraph(handle=handle, **types)
    use = case.build(module, g, tensors)
    g.build([module.heur_mode.A, module.heur_mode.FALLBACK])
    space = torch.empty(max(1, g.get_workspace_size()), device="cuda", dtype=torch.uint8)
    return lambda t: g.execute({use[key]: t[key] for key in use}, space, handle=handle)


def error_of(case: Case, run: Callable[[Tensors], Any], tensors: Tensors) -> float:
    """The largest relative error of an output, in norm."""
    worst = 0.0
    for key in case.outputs:
        if tensors[key].is_floating_point():
            tensors[key].fill_(math.nan)
    want = {key: make({**tensors}) for key, make in case.outputs.items()}
    run(tensors)
    torch.cuda.synchronize()
    for key, each in want.items():
        apart = float((tensors[key].double() - each).norm() / each.norm().clamp_min(1e-30))
        worst = max(worst, apart if apart == apart else math.inf)
    return worst


def bytes_of(tensors: Tensors) -> int:
    """Of all tensors on the GPU."""
    return sum(each.numel() * each.element_size() for each in tensors.values() if each.is_cuda)


def measure(name: str, where: str) -> dict[str, Any]:
    """A row of the table."""
    case, stream = CASES[name], torch.cuda.Stream()
    weft = importlib.import_module("weft")
    torch.manual_seed(0)
    tensors = case.inputs()
    count = max(1, min(SETS_MAX, math.ceil(CACHE_BYTES / bytes_of(tensors))))
    sets = [tensors, *(case.inputs() for _ in range(count - 1))]
    torch.cuda.synchronize()
    run = graph_runner(weft, case, tensors, stream)
    with torch.cuda.stream(stream):
        error = error_of(case, run, tensors)
    row: dict[str, Any] = {
        "case": name,
        "weft_us": round(median_us(run, sets, stream), 2),
        "error": f"{error:.1e}",
    }
    row["weft_host_us"] = round(host_us(run, tensors), 1)
    use = case.build(weft, weft.pygraph(), tensors)
    row["tbs"] = round(bytes_of({key: tensors[key] for key in use}) / row["weft_us"] / 1e6, 2)
    try:
        peer = case.peer or graph_runner(importlib.import_module("cudnn"), case, tensors, stream)
        row["peer_us"] = round(median_us(peer, sets, stream), 2)
        row["ratio"] = round(row["peer_us"] / row["weft_us"], 3)
        row["peer_host_us"] = round(host_us(peer, tensors), 1)
    except Exception as refused:  # whatever the peer says of a graph that it does not take
        row["note"] = str(refused).replace("\n", " ")[:100]
    return row | {"device": where, "date": datetime.date.today().isoformat()}


def main() -> int:
    """Measures the cases that were asked for."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--only", default=".", help="regular expression of case names")
    ask.add_argument("--csv", type=Path, help="rows are added to this table")
    ask.add_argument("--seconds", type=float, default=400, help="no case starts later")
    given = ask.parse_args()
    keys = ["case", "weft_us", "peer_us", "ratio", "error", "weft_host_us", "peer_host_us", "device", "date"]
    begin, where, failed = time.time(), f"{torch.cuda.get_device_name()}, torch {torch.__version__}", 0
    rows: list[dict[str, Any]] = []
    for name in CASES:
        if not re.search(given.only, name) or time.time() - begin > given.seconds:
            continue
        try:
            rows.append(measure(name, where))
            said = (
                f"{key}={rows[-1][key]}"
                for key in ("weft_us", "peer_us", "tbs", "error", "note")
                if key in rows[-1]
            )
            print(f"{name:42} {' '.join(said)}", flush=True)
        except Exception as problem:  # one case must not end the table
            failed += 1
            print(f"{name:42} FAILED {str(problem)[:300]}", flush=True)
        torch.cuda.empty_cache()
    if given.csv:
        is_new = not given.csv.exists()
        with given.csv.open("a", newline="") as file:
            writer = csv.DictWriter(file, keys, extrasaction="ignore")
            if is_new:
                writer.writeheader()
            writer.writerows(rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
