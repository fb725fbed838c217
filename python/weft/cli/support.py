"""`python -m weft support`: the kernel family of each engine that supports each operation, determined by
queries.

Every method that the library describes is put into a small graph of its own in float32, and weftQuerySupport
answers for every engine on its device: this CPU, and a described H200, so that no GPU is needed. Which
operations are fused is not shown here; see Graph.explain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import weft
from weft import backend
from weft.devices import DeviceProperties
from weft.explain import table
from weft.ops import WRAPPED

GPU = "sm_90"
TRAINING = weft.norm_forward_phase.TRAINING
FULL, CHANNEL, ROW, LAST = (4, 16, 8, 8), (1, 16, 1, 1), (4, 16, 1, 1), (1, 1, 1, 8)


class _Example:
    """A graph under construction, with tensors by shape: t(2, 3)."""

    def __init__(self) -> None:
        self.g = weft.Graph(io_data_type="f32", handle=weft.create_handle("cpu"))

    def t(self, *dims: int) -> Any:
        return self.g.tensor(dims)

    def integers(self, *dims: int) -> Any:
        return self.g.tensor(dims, data_type="i32")

    def norm_backward(
        self, method: str, reduced: tuple[int, ...], scale: tuple[int, ...], **options: Any
    ) -> None:
        statistics = {"mean": self.t(*reduced)} if method != "rmsnorm_backward" else {}
        make = getattr(self.g, method)
        make(
            self.t(*FULL),
            self.t(*FULL),
            self.t(*scale),
            inv_variance=self.t(*reduced),
            **statistics,
            **options,
        )


# One graph per method whose operands are not all tensors of one shape.
_EXAMPLES: dict[str, Callable[[_Example], Any]] = {
    "gen_index": lambda e: e.g.gen_index(e.t(4, 8), axis=1),
    "leaky_relu": lambda e: e.g.leaky_relu(e.t(4, 8), 0.1),
    "leaky_relu_backward": lambda e: e.g.leaky_relu_backward(e.t(4, 8), e.t(4, 8), 0.1),
    "matmul": lambda e: e.g.matmul(e.t(2, 4, 8), e.t(2, 8, 4)),
    "moe_grouped_matmul": lambda e: e.g.moe_grouped_matmul(
        e.t(1, 16, 8), e.t(2, 8, 4), e.g.tensor((2, 1, 1), data_type="i32")
    ),
    "moe_grouped_matmul_bwd": lambda e: e.g.moe_grouped_matmul_bwd(
        e.t(1, 16, 4), e.t(1, 16, 8), e.g.tensor((2, 1, 1), data_type="i32")
    ),
    "conv_fprop": lambda e: e.g.conv_fprop(e.t(*FULL), e.t(8, 16, 3, 3), padding=[1, 1]),
    "conv_dgrad": lambda e: e.g.conv_dgrad(e.t(*FULL), e.t(16, 8, 3, 3), padding=[1, 1]).set_dim(
        [4, 8, 8, 8]
    ),
    "conv_wgrad": lambda e: e.g.conv_wgrad(e.t(*FULL), e.t(4, 8, 8, 8), padding=[1, 1]).set_dim(
        [8, 16, 3, 3]
    ),
    "causal_conv1d": lambda e: e.g.causal_conv1d(e.t(4, 16, 32), e.t(16, 4), activation="SWISH_FWD"),
    "causal_conv1d_backward": lambda e: e.g.causal_conv1d_backward(
        e.t(4, 16, 32), e.t(4, 16, 32), e.t(16, 4), activation="SWISH_FWD"
    ),
    "recurrence": lambda e: e.g.recurrence(e.t(4, 8, 64), e.t(64, 16)),
    "recurrence_backward": lambda e: e.g.recurrence_backward(
        e.t(4, 8, 16), e.t(4, 8, 16), e.t(64, 16), e.t(4, 8, 80)
    ),
    "resample": lambda e: e.g.resample(e.t(*FULL), window=[2, 2], stride=[2, 2], generate_index=True),
    "resample_backward": lambda e: e.g.resample_backward(
        e.t(4, 16, 4, 4), input=e.t(*FULL), window=[2, 2], stride=[2, 2]
    ).set_dim(FULL),
    "grid_sample": lambda e: e.g.grid_sample(e.t(*FULL), e.t(4, 6, 6, 2)),
    "grid_sample_backward": lambda e: e.g.grid_sample_backward(e.t(4, 16, 6, 6), e.t(*FULL), e.t(4, 6, 6, 2)),
    "affine_grid": lambda e: e.g.affine_grid(e.t(4, 2, 3), [6, 6]),
    "affine_grid_backward": lambda e: e.g.affine_grid_backward(e.t(4, 6, 6, 2)),
    "ctc_loss": lambda e: e.g.ctc_loss(e.t(9, 4, 8), e.integers(4, 3), e.integers(4), e.integers(4)),
    "ctc_loss_backward": lambda e: e.g.ctc_loss_backward(
        e.t(4), e.t(9, 4, 8), e.integers(4, 3), e.integers(4), e.integers(4), e.t(4, 9, 7)
    ),
    "layernorm": lambda e: e.g.layernorm(TRAINING, e.t(*FULL), e.t(*LAST), e.t(*LAST), 1e-5),
    "adalayernorm": lambda e: e.g.adalayernorm(TRAINING, e.t(*FULL), e.t(4, 1, 1, 8), e.t(4, 1, 1, 8), 1e-5),
    "instancenorm": lambda e: e.g.instancenorm(TRAINING, e.t(*FULL), e.t(*CHANNEL), e.t(*CHANNEL), 1e-5),
    "groupnorm": lambda e: e.g.groupnorm(
        TRAINING, e.t(*FULL), e.t(*CHANNEL), e.t(*CHANNEL), epsilon=1e-5, groups=4
    ),
    "rmsnorm": lambda e: e.g.rmsnorm(TRAINING, e.t(*FULL), e.t(*LAST), epsilon=1e-5),
    "batchnorm": lambda e: e.g.batchnorm(
        e.t(*FULL), e.t(*CHANNEL), e.t(*CHANNEL), e.t(*CHANNEL), e.t(*CHANNEL), 1e-5, 0.1
    ),
    "batchnorm_inference": lambda e: e.g.batchnorm_inference(e.t(*FULL), *(e.t(*CHANNEL) for _ in range(4))),
    "layernorm_backward": lambda e: e.norm_backward("layernorm_backward", (4, 16, 8, 1), LAST),
    "adalayernorm_backward": lambda e: e.norm_backward("adalayernorm_backward", (4, 16, 8, 1), (4, 1, 1, 8)),
    "instancenorm_backward": lambda e: e.norm_backward("instancenorm_backward", ROW, CHANNEL),
    "groupnorm_backward": lambda e: e.norm_backward("groupnorm_backward", (4, 4, 1, 1), CHANNEL, groups=4),
    "rmsnorm_backward": lambda e: e.norm_backward("rmsnorm_backward", (4, 16, 8, 1), LAST),
    "batchnorm_backward": lambda e: e.norm_backward("batchnorm_backward", CHANNEL, CHANNEL),
    "genstats": lambda e: e.g.genstats(e.t(*FULL)),
    "bn_finalize": lambda e: e.g.bn_finalize(
        e.t(*CHANNEL), e.t(*CHANNEL), e.t(*CHANNEL), e.t(*CHANNEL), epsilon=1e-5, accum_count=256
    ),
    "dbn_weight": lambda e: e.g.dbn_weight(e.t(*FULL), e.t(*FULL), *(e.t(*CHANNEL) for _ in range(3))),
    "softmax": lambda e: e.g.softmax(e.t(4, 8)),
    "diagonal_band_mask": lambda e: e.g.diagonal_band_mask(e.t(4, 8), 0.0, "CMP_GE"),
    "reduction": lambda e: e.g.reduction(e.t(4, 8), "ADD", dims=[1]),
    "rotary_embedding": lambda e: e.g.rotary_embedding(e.t(2, 4, 8, 16), e.t(8, 1, 1, 16)),
    "rotary_embedding_backward": lambda e: e.g.rotary_embedding_backward(e.t(2, 4, 8, 16), e.t(8, 1, 1, 16)),
    "gather": lambda e: e.g.gather(e.t(4, 8), e.g.tensor((3,), data_type="i32")),
    "scatter_add": lambda e: e.g.scatter_add(e.t(3, 8), e.g.tensor((3,), data_type="i32")).set_dim([4, 8]),
    "top_k": lambda e: e.g.top_k(e.t(4, 8), 2),
    "reshape": lambda e: e.g.reshape(e.t(4, 8)).set_dim([32]),
    "transpose": lambda e: e.g.transpose(e.t(4, 8), [1, 0]),
    "strided_slice": lambda e: e.g.slice(e.t(4, 8), [slice(0, 2), slice(0, 8, 2)]),
    "concatenate": lambda e: e.g.concatenate([e.t(4, 8), e.t(4, 8)], axis=0),
    "paged_cache_load": lambda e: e.g.paged_cache_load(
        e.t(6, 2, 16, 64), e.integers(2, 1, 1, 1), e.integers(2, 1, 3, 1)
    ),
    "rng": lambda e: e.g.rng(seed=1).set_dim([4, 8]),
    "block_scale_quantize": lambda e: e.g.block_scale_quantize(e.t(4, 64), 32)[0].set_data_type("e4m3"),
    "block_scale_dequantize": lambda e: e.g.block_scale_dequantize(
        e.t(4, 64).set_data_type("e4m3"), e.t(4, 2), [32]
    ),
    "sdpa_fwd": lambda e: e.g.sdpa(
        e.t(2, 4, 8, 16), e.t(2, 2, 8, 16), e.t(2, 2, 8, 16), use_causal_mask=True
    ),
    "sdpa_bwd": lambda e: e.g.sdpa_backward(
        e.t(2, 4, 8, 16),
        e.t(2, 2, 8, 16),
        e.t(2, 2, 8, 16),
        e.t(2, 4, 8, 16),
        e.t(2, 4, 8, 16),
        e.t(2, 4, 8, 1),
        use_causal_mask=True,
    ),
}
# Parameters of a method that are not operands; see struct method.
_NO_OPERANDS = ("*", "compute_data_type", "name")


class Row(NamedTuple):
    """The answers for a group of methods of one operation."""

    operation: str
    methods: list[str]
    answers: list[str]
    """By engine: its kernel families, "no", or "error"."""


def _example(method: dict[str, Any]) -> weft.Graph:
    """A graph with only this method; by default every argument without a default value is a tensor [4, 8]."""
    example = _Example()
    if method["name"] in _EXAMPLES:
        _EXAMPLES[method["name"]](example)
    else:
        words = [word for word in method["arguments"].split() if word not in _NO_OPERANDS]
        count = sum("=" not in word for word in words)
        getattr(example.g, method["name"])(*(example.t(4, 8) for _ in range(count)))
    return example.g


def _methods(described: dict[str, Any], operation: dict[str, Any]) -> list[dict[str, Any]]:
    """The methods of an operation; for pointwise also those of its modes."""
    methods = list(operation["methods"] or [])
    if operation["name"] != "pointwise":
        return methods
    modes = described["pointwise_modes"]
    return [{"name": mode["method"], "arguments": mode["arguments"]} for mode in modes] + methods


def _answer(engine: dict[str, Any]) -> str:
    return " + ".join(dict.fromkeys(engine["families"])) if engine["supported"] else "no"


def _ask(graph: weft.Graph, devices: list[DeviceProperties]) -> list[dict[str, Any]]:
    """Every engine's answer for one of the devices that it supports."""
    answers = [graph.support(device) for device in devices]
    return [next((a for a in each if a["supported"]), each[0]) for each in zip(*answers, strict=True)]


def matrix() -> tuple[list[str], list[Row]]:
    """The engines that support all of the examples, and one row for each group of methods with the same
    answers."""
    engines: list[str] = []
    rows: list[Row] = []
    devices = [DeviceProperties(handle=weft.create_handle("cpu")), weft.compile_for(GPU)]
    described = backend.describe()
    for operation in described["operations"]:
        groups: dict[tuple[str, ...], list[str]] = {}
        for method in _methods(described, operation):
            support = _ask(_example(method), devices)
            engines = [engine["engine"] for engine in support]
            answers = tuple(_answer(engine) for engine in support)
            groups.setdefault(answers, []).append(WRAPPED.get(method["name"], method["name"]))
        rows += [Row(operation["name"], methods, list(answers)) for answers, methods in groups.items()]
    serving = [i for i in range(len(engines)) if all(row[2][i] != "no" for row in rows)]
    rows = [Row(name, methods, [answers[i] for i in serving]) for name, methods, answers in rows]
    return [engines[i] for i in serving], rows


def text() -> str:
    """The matrix for a terminal; long lists of methods are replaced by their number."""
    engines, rows = matrix()
    lines = [["operation", "methods", *engines]]
    for row in rows:
        methods = ", ".join(row.methods)
        shown = (
            methods if len(methods) <= 44 else f"{row.methods[0]} … {row.methods[-1]} ({len(row.methods)})"
        )
        lines.append([row.operation, shown, *row.answers])
    return "\n".join(table(lines))


# Facts that a table for float32 does not show; a plan's explain() has the reason for each step.
_REFERENCE = """
Operations that `cpu.fast` runs with `cpu.reference`, and the reasons:

- integers that double does not represent exactly: pointwise operations and reductions in INT64, matmuls of
  32-bit and 64-bit integers;
- MUL, AVG and NORM2 of integers in integer arithmetic, which wrap around or round towards 0;
- conversions of INT64, such as a transpose to FLOAT: double does not represent all of its values;
- matmul with M, N or K overrides, because panels are packed before the overrides are known;
- block scales in tiles (F8_128x4), a layout for GPUs;
- convolutions and grouped matmuls of operands narrower than a byte, and row operations where two rows share
  a byte;
- a concatenation that converts;
- a reshape that converts a non-contiguous tensor, or whose dims have no common factors with the input's;
- pooling and interpolation of types other than FLOAT, HALF and BFLOAT16, or with neither contiguous channels
  nor contiguous rows;
- attention in DOUBLE, with scales (FP8), with its dropout mask as a result, and gradients of the tensors that
  its score modifier reads.
"""


def markdown() -> str:
    """The page docs/support.md."""
    engines, rows = matrix()
    lines = [
        "<!-- Generated by `python -m weft support --markdown`. Do not edit. -->",
        "# Supported operations by engine",
        "",
        "For each single operation in float32, the kernel family with which each engine runs it, as",
        f"reported by `weftQuerySupport` for an H200 ({GPU}, `cuda`) and for a CPU (the others). Every",
        "valid graph runs: if no faster family supports an operation, `cpu.fast` runs it with the",
        "reference family. `Graph.explain()` shows which operations are fused and why families declined.",
        "`cuda.tf32` exists for graphs with float32 matmuls; it rounds their operands to TF32 if that is",
        "faster. `cuda.unordered` exists for gradients of attention and grid samples; it adds some of them",
        "up in an order that varies between runs.",
        "",
        f"| operation | methods | {' | '.join(f'`{engine}`' for engine in engines)} |",
        "|---" * (2 + len(engines)) + "|",
    ]
    for row in rows:
        methods = ", ".join(f"`{method}`" for method in row.methods)
        lines.append(f"| {row.operation} | {methods} | {' | '.join(row.answers)} |")
    return "\n".join(lines) + "\n" + _REFERENCE
