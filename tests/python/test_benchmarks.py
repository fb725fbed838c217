"""python -m benchmarks: the arithmetic of its cases, its oracle and tables, its picture and its command line.
No time is judged."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import weft
from commands import run
from weft.plot import svg

from benchmarks import (
    attention,
    cases,
    families,
    fused,
    machines,
    measure,
    networks,
    norms,
    predict,
    products,
    roofline,
    streams,
    tables,
    tiles,
    whole,
)
from benchmarks.__main__ import main
from benchmarks.case import GROUPS, Case
from benchmarks.families import Rivalry
from benchmarks.machines import machine, repeats, sets_of
from benchmarks.predict import Prediction
from benchmarks.shapes import BSHD, NDHWC, NHWC, NWC, Attention, Convolution, Operand, Pool, Window
from benchmarks.tables import Roof, Row, Table
from benchmarks.tiles import Choice

SVG = "{http://www.w3.org/2000/svg}"
MILLION = 1 << 20

# ---- Work of the cases: by formulas of their own -----------------------------------------------------------

R, C, IMAGES = 16384, 4096, 128 * 64 * 112 * 112
WORK = {
    "matmul/bf16_8192": (2 * 8192**3, 2 * 3 * 8192**2),
    "matmul/bf16_m16_n8192_k8192": (2 * 16 * 8192**2, 2 * (16 * 8192 + 8192**2 + 16 * 8192)),
    "matmul/bf16_4096_bias_gelu": (
        2 * 4096 * 16384 * 4096,
        2 * (4096 * 4096 + 4096 * 16384 + 4096 * 16384 + 16384),
    ),
    "matmul/tf32_4096": (2 * 4096**3, 4 * 3 * 4096**2),
    "matmul/moe_fprop_e64_m1024_k2048_n1408": (
        2 * 1024 * 2048 * 1408,
        2 * (1024 * 2048 + 64 * 2048 * 1408 + 1024 * 1408) + 4 * 64,
    ),
    "matmul/moe_wgrad_e64_m24576_k2048_n1408": (
        2 * 24576 * 2048 * 1408,
        2 * (24576 * 2048 + 64 * 2048 * 1408 + 24576 * 1408) + 4 * 64,
    ),
    "conv/fprop_stem7x7s2": (
        2 * 128 * 112 * 112 * 64 * 8 * 49,
        2 * (128 * 8 * 224 * 224 + 64 * 8 * 49 + 128 * 64 * 112 * 112),
    ),
    "conv/dgrad_3x3s2_128_56": (
        2 * 128 * 28 * 28 * 128 * 128 * 9,
        2 * (128 * 128 * 56 * 56 + 128 * 128 * 9 + 128 * 128 * 28 * 28),
    ),
    "conv/wgrad_1x1_64_256_56": (
        2 * 128 * 56 * 56 * 64 * 256,
        2 * (128 * 64 * 56 * 56 + 64 * 256 + 128 * 256 * 56 * 56),
    ),
    "conv/fprop_bias_relu_3x3_256_14": (
        2 * 128 * 14 * 14 * 256 * 256 * 9,
        2 * (2 * 128 * 256 * 14 * 14 + 256 * 256 * 9 + 256),
    ),
    "conv/causal_fwd_b8_d5120_s2048_k4": (
        2 * 8 * 5120 * 2048 * 4,
        2 * (2 * 8 * 5120 * 2048 + 5120 * 5),
    ),
    "conv/causal_bwd_b2_d4096_s8192_k128_nwc": (
        3 * 2 * 2 * 4096 * 8192 * 128,
        2 * (3 * 2 * 4096 * 8192 + 2 * 4096 * 129),
    ),
    "matmul/i4_weights_m16_n8192_k8192": (2 * 16 * 8192**2, 8192**2 // 2 + 2 * (2 * 16 + 64) * 8192),
    "conv/fprop_depthwise_7x7_384": (
        2 * 64 * 28 * 28 * 384 * 49,
        2 * (2 * 64 * 384 * 28 * 28 + 384 * 49),
    ),
    "norm/layernorm_fwd_16384x4096": (7 * R * C, 2 * (2 * R * C + 2 * C) + 4 * 2 * R),
    "norm/layernorm_bwd_16384x4096": (13 * R * C, 2 * (3 * R * C + 3 * C) + 4 * 2 * R),
    "norm/rmsnorm_fwd_16384x4096": (4 * R * C, 2 * (2 * R * C + C) + 4 * R),
    "norm/rmsnorm_bwd_16384x4096": (9 * R * C, 2 * (3 * R * C + 2 * C) + 4 * R),
    "norm/batchnorm_fwd_n128c64hw112": (7 * IMAGES, 2 * 2 * IMAGES + 4 * 8 * 64),
    "norm/batchnorm_bwd_n128c64hw112": (13 * IMAGES, 2 * 3 * IMAGES + 4 * 5 * 64),
    "mem/bias_gelu_residual_16384x4096": (3 * R * C, 2 * (3 * R * C + C)),
    "mem/reduce_rows_16384x4096": (R * C, 2 * R * C + 4 * R),
    "mem/bias_gelu_residual_f32_8192x4096": (3 * 8192 * C, 4 * (3 * 8192 * C + C)),
    "mem/relu_64M_odd": (64 * MILLION - 1, 2 * 2 * (64 * MILLION - 1)),
    "rows/softmax_16384x4097": (5 * R * 4097, 2 * 2 * R * 4097),
    "rows/sum_columns_16384x4096": (R * C, 2 * R * C + 4 * C),
    "move/transpose_16384x8192_i8": (0, 2 * R * 8192),
    "move/transpose_3210": (0, 2 * 2 * 64 * 96 * 128 * 80),
    "move/nchw_nhwc_256x3x224x224_f32": (0, 2 * 4 * 256 * 3 * 224 * 224),
    "move/add_relu_nhwc_nchw": (2 * 128 * 256 * 56 * 56, 2 * 3 * 128 * 256 * 56 * 56),
    "move/concat_rows": (0, 2 * 2 * (8192 + 4096 + 1) * 4096),
    "pool/max3x3s2": (9 * IMAGES // 4, 2 * (IMAGES + IMAGES // 4)),
    "pool/max3x3s2_index": (9 * IMAGES // 4, 2 * (IMAGES + IMAGES // 4) + IMAGES // 4),
    "pool/avg7x7": (49 * 128 * 2048, 2 * 128 * 2048 * 50),
    "pool/max3x3s2_bwd": (IMAGES // 4, 2 * (IMAGES + IMAGES // 4) + IMAGES // 4),
    "pool/max3x3s2_bwd_from_x": (9 * IMAGES // 4, 2 * (2 * IMAGES + IMAGES // 4)),
    "pool/avg3x3s2_bwd": (9 * IMAGES // 4, 2 * (IMAGES + IMAGES // 4)),
    "norm/instancenorm_fwd_nchw_128x256x56": (
        7 * 128 * 256 * 56 * 56,
        2 * 2 * 128 * 256 * 56 * 56 + 4 * (2 * 256 + 2 * 128 * 256),
    ),
    "sdpa/fwd_d64_s512_full": (4 * 32 * 32 * 512**2 * 64, 2 * 4 * 32 * 32 * 512 * 64),
    "sdpa/bwd_d128_s8192_causal": (
        10 * 2 * 16 * 8192**2 * 128 // 2,
        2 * 8 * 2 * 16 * 8192 * 128 + 4 * 2 * 16 * 8192,
    ),
    "sdpa/fwd_gqa_llama70b_s8192_causal": (
        4 * 64 * 8192**2 * 128 // 2,
        2 * (2 * 64 + 2 * 8) * 8192 * 128,
    ),
    "sdpa/bwd_mla192_128_s4096_causal": (
        2 * 2 * 32 * 4096**2 * (3 * 192 + 2 * 128) // 2,
        2 * 2 * 2 * 32 * 4096 * (2 * 192 + 2 * 128) + 4 * 2 * 32 * 4096,
    ),
    "sdpa/fwd_d64_s8192_window1024": (
        4 * 2 * 32 * (8192 * 1024 - 1024**2 // 2) * 64,
        2 * 4 * 2 * 32 * 8192 * 64,
    ),
    "sdpa/decode_b64_h32_kv8_s4096": (
        4 * 64 * 32 * 4096 * 128,
        2 * 64 * (2 * 32 * 128 + 2 * 8 * 4096 * 128),
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_work(name: str) -> None:
    case = cases.gpu()[name]
    assert (case.flops, case.bytes) == WORK[name]
    assert case.intensity == WORK[name][0] / WORK[name][1]


def test_names() -> None:
    gpu, cpu = cases.gpu(), cases.cpu()
    assert not gpu.keys() & cpu.keys()  # a table may be of either
    assert {case.group for case in gpu.values()} == {case.group for case in cpu.values()} == set(GROUPS)
    behind, whole_blocks = 2 * 13 + 4 * 7 + 2 * 3 + 2 * (2 + 2) + 4 * 2, 2 * 7 + 1
    others = behind + 14 + 6 + 8 + 12 + 12 + 3 * (9 + 2 + 2 + 5) + 9 + 12 + 6 + 2 + 9 + 11 + 18 + 23 + 70 + 33
    assert len(gpu) == others + whole_blocks


def named_extents(case: Case) -> Iterator[tuple[str, int, int]]:
    """The sizes that a case's name states, each with that of its operands."""
    operands = {**case.inputs, **case.outputs}
    words = case.name.partition("/")[2]
    where = {"sdpa": {"d": ("q", 3), "s": ("k", 2)}, "matmul": {"m": ("C", 1), "n": ("C", 2), "k": ("A", 2)}}
    for letter, (key, axis) in where.get(case.group, {}).items():
        stated = re.search(rf"(?:^|_){letter}(\d+)", words)
        if stated and key in operands and "page" not in words and "moe" not in words:
            yield key, int(stated[1]), operands[key].dims[axis]


@pytest.mark.parametrize("known", [cases.gpu, cases.cpu])
def test_sizes_are_those_of_the_names(known: Any) -> None:
    checked = 0
    for name, case in known().items():
        for operand in (*case.inputs.values(), *case.outputs.values()):
            assert min(operand.dims) > 0, name
        for key, stated, extent in named_extents(case):
            checked += 1
            assert stated == extent, f"{name}: {key}"
    assert checked > 40


@pytest.mark.parametrize("name", [n for n in cases.cpu() if n.startswith("conv/")] + ["matmul/f32_512"])
def test_the_library_counts_the_same(name: str) -> None:
    case = cases.cpu()[name]
    extra = 2 * 4 * 32 * 28 * 28 if "bias_relu" in name else 0  # the library counts the epilogue, too
    report = measure.Side(
        measure.Library("weft", weft, weft.create_handle("cpu")), case, machine("cpu")
    ).graph.plan.report
    assert report["flops"] == case.flops + extra
    assert report["bytes"] == case.bytes


def test_shapes() -> None:
    assert Operand((2, 3, 4, 5)).strides == (60, 20, 5, 1)
    assert Operand((2, 3, 4, 5), order=NHWC).strides == (60, 1, 15, 3)
    assert Operand((2, 3, 4, 5), order=BSHD).strides == (60, 5, 15, 1)
    assert (Operand((2, 3), "f32").bytes, Operand((2, 3), "bf16").bytes) == (24, 12)
    assert Operand((1, 1), "f32", value=0.5).bytes == 0
    assert Window(1, 1, (9, 12), 3, stride=2, padding=1).result == (5, 6)
    assert Window(1, 1, (9, 12), 3, dilation=3).result == (3, 6)


# ---- Cases run, and are right ------------------------------------------------------------------------------

MAXIMUM, MEAN = (Pool(2, 3, (5, 6), 3, 2, 1, is_max=is_max) for is_max in (True, False))
SMALL = [
    products.matmul("t", "f32", 5, 7, 6, "relu"),
    *(products.experts(kind, "t", "f32", 3, 11, 6, 5) for kind in ("fprop", "wgrad")),
    products.conv("fprop", "t", "f32", Convolution(2, 4, (7, 6), 3, 2, 1, 1, 6, 2), has_bias=True),
    products.conv("dgrad", "t", "f32", Convolution(2, 4, (7, 6), 3, 2, 1, 1, 6, 2)),
    products.conv("wgrad", "t", "f32", Convolution(2, 4, (7, 6), 2, 1, 0, 2, 6, 2)),
    products.conv("wgrad", "volume", "f32", Convolution(2, 4, (3, 7, 6), 2, 1, 1, 1, 6), order=NDHWC),
    products.causal_conv("t", "f32", (2, 3, 5, 4), False),
    *(products.causal_conv("t", "f32", (2, 3, 5, 4), True, order) for order in ((), NWC)),
    *(norms.row_norm(k, "f32", 3, 8, is_bwd) for k in ("layernorm", "rmsnorm") for is_bwd in (False, True)),
    *(norms.batch_norm("f32", 2, 3, 4, is_backward) for is_backward in (False, True)),
    *(norms.planar_norm(kind, "f32", 2, 3, 4) for kind in ("batchnorm", "instancenorm")),
    streams.bias_gelu_residual("t", "f32", 3, 8),
    streams.relu("t", "f32", 7),
    *(streams.sums("rows/sum", "f32", 3, 5, axis) for axis in (1, 2)),
    streams.softmax("f32", 3, 5),
    streams.transpose("t", "f32", (2, 3, 4), (2, 0, 1)),
    streams.transpose("i8", "i8", (3, 5), (1, 0)),
    *(streams.layout("f32", (2, 3, 4, 5), is_to_last) for is_to_last in (False, True)),
    streams.add_relu_across("f32", (2, 3, 4, 5)),
    streams.concat("t", "f32", [(2, 3, 4, 4), (2, 5, 4, 4)], 1, True),
    *(streams.pool("t", "f32", p) for p in (MAXIMUM, MEAN)),
    streams.pool("index", "f32", MAXIMUM, has_index=True, is_last=False),
    *(streams.pool_backward("t_bwd", "f32", p) for p in (MAXIMUM, MEAN)),
    streams.pool_backward("from_x_bwd", "f32", MAXIMUM, has_index=False),
    *(products.sdpa("t", "f32", Attention(1, 4, 2, 6, 6, 4, 3, True), is_bwd) for is_bwd in (False, True)),
    *(products.sdpa("w", "f32", Attention(1, 2, 1, 9, 9, 4, 3, True, 4), is_bwd) for is_bwd in (False, True)),
    *(
        products.sdpa_modified("t", "f32", Attention(1, 4, 2, 6, 6, 4, 3, True), kind, is_bwd)
        for kind in ("bias", "softcap", "alibi")
        for is_bwd in (False, True)
    ),
    products.sdpa("decode", "f32", Attention(2, 4, 2, 1, 9, 4, 4)),
    products.sdpa_fp8("scaled", "f32", Attention(1, 4, 2, 6, 6, 4, 3, True)),
    attention.fp8_backward("scaled", "f32", Attention(1, 4, 2, 6, 6, 4, 3, True)),
    *(
        attention.mxfp8("mx", "f32", Attention(1, 4, 2, 40, 40, 36, 36, True), is_bwd)
        for is_bwd in (False, True)
    ),
    *(attention.ragged("t", "f32", Attention(3, 2, 2, 6, 6, 4, 4, True), is_bwd) for is_bwd in (False, True)),
    *(
        attention.masked_dropout("t", "f32", Attention(2, 4, 2, 6, 6, 4, 4, True), is_bwd)
        for is_bwd in (False, True)
    ),
    *(attention.paged("decode", "f32", Attention(2, 4, 2, 1, 12, 4, 4), page) for page in (1, 4)),
    attention.block_masked("t", "f32", Attention(1, 1, 1, 256, 384, 4, 4)),
    streams.maximum("f32", 3, 5),
    streams.softmax_backward("f32", 3, 5),
    streams.log_softmax("f32", 3, 5),
    streams.cut("t", "f32", (5, 7), (slice(1, 4), slice(0, 7, 2))),
    streams.cast("f32", "f32", (3, 5)),
    *(
        streams.resize(kind, (2, 3, 4, 5), is_bwd, is_last)
        for kind, is_last in (("nearest", True), ("bilinear", False))
        for is_bwd in (False, True)
    ),
    *(
        norms.group_norm("f32", 2, 6, 3, 2, is_bwd, is_last)
        for is_bwd, is_last in ((False, True), (True, False))
    ),
]
PADDED, STRIDED = (Convolution(2, 8, (6, 6), 3, stride, 1, filters=8) for stride in (1, 2))
NARROW = [
    *(fused.matmul("t", 6, 8, 16, kind) for kind in fused.MATMULS),
    *(fused.conv("t", PADDED, kind) for kind in fused.CONVOLUTIONS),
    *(fused.conv_dgrad("t", STRIDED, kind) for kind in fused.DGRADS),
    *(fused.conv_wgrad("t", STRIDED, kind) for kind in fused.PREPARED),
    products.scaled_matmul("t", 6, 8, 16),
    products.block_scaled_matmul("t", 6, 130, 200),
    *(products.weight_only_matmul(dtype, 3, 6, 256) for dtype in ("i4", "i8")),
    *(streams.cast("f32", target, (3, 5)) for target in ("bf16", "e4m3", "i8")),
    *(attention.dropped("t", "f32", Attention(1, 2, 2, 64, 64, 8, 8, True), way) for way in (False, True)),
]
"""Cases whose results are rounded to 16 or fewer bits, or differ because each library draws its dropout."""


def quick(monkeypatch: pytest.MonkeyPatch, **peers: Any) -> measure.Bench:
    """A bench on the CPU that runs each set once, and says 2 ms."""
    cpu = machine("cpu")

    def timer(run: Any, sets: int) -> machines.Timer:
        for i in range(sets):
            run(i)
        return lambda: 0.002

    monkeypatch.setattr(cpu, "timer", timer)
    handle = weft.create_handle("cpu")
    monkeypatch.setattr(measure, "_peer", lambda name, at: measure.Library(name, peers[name], handle))
    return measure.Bench(cpu, list(peers))


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_case_is_right(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    row = quick(monkeypatch).row(case)
    assert row.notes == ()
    assert row.weft == 0.002
    assert row.error is not None
    assert row.error < 1e-6


@pytest.mark.parametrize("case", NARROW, ids=lambda case: case.name)
def test_narrow_case_is_right(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The errors are those of rounding: the bench itself refuses larger ones."""
    row = quick(monkeypatch).row(case)
    assert row.notes == ()
    assert row.error is not None
    assert row.error <= (case.largest_error or measure.LARGEST_ERRORS[case.arithmetic])


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("window", [0, 4])
def test_attention_is_judged_some_queries_at_a_time(
    is_backward: bool, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.oracle.QUERIES_AT_ONCE", 4)
    attention = Attention(1, 2, 1, 9, 9, 4, 3, True, window)
    row = quick(monkeypatch).row(products.sdpa("parts", "f32", attention, is_backward))
    assert row.error is not None
    assert row.error < 1e-6


def test_wrong_result_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = products.matmul("t", "f32", 5, 7, 6)
    doubled = vars(case) | {"oracle": lambda xp, t: {"C": 2 * (t["A"] @ t["B"])}}
    row = quick(monkeypatch).row(Case(**doubled))
    assert row.weft is None
    assert row.error == pytest.approx(0.5)
    assert row.notes == ("weft: the result is wrong: its error is 5.0e-01",)


def test_unwritten_output_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.Side, "run", lambda side, memory: None)
    row = quick(monkeypatch).row(products.matmul("t", "f32", 5, 7, 6))
    assert row.weft is None
    assert row.error == float("inf")


def test_refusal_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    case = products.matmul("t", "f32", 5, 7, 6)
    row = quick(monkeypatch).row(Case(**vars(case) | {"build": lambda lib, g, t: g.dance()}))
    assert row.weft is row.error is None
    assert row.notes == ("weft: 'Graph' object has no attribute 'dance'",)


def test_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weft's own methods, as if another module offered all but one of them; and torch, which has programs."""
    names = ("pygraph", "data_type", "heur_mode", "set_stream", "backend_version_string")
    twin = SimpleNamespace(**{name: getattr(weft, name) for name in names})
    torch = SimpleNamespace(sum=np.sum, float32="f4", __version__="9.9")
    bench = quick(monkeypatch, twin=twin, torch=torch)
    monkeypatch.setattr(bench.machine, "tensor", lambda array: array)
    assert bench.device.endswith(f", twin {weft.backend_version_string()}, torch 9.9")
    row = bench.row(products.matmul("t", "f32", 5, 7, 6))
    assert (row.weft, row.peer, row.ratio, row.notes) == (0.002, 0.002, 1.0, ())
    # The device names the peer that was measured.
    assert row.device == f"{bench.machine.name}, twin {weft.backend_version_string()}"
    lacks = "twin: 'types.SimpleNamespace' object has no attribute 'reduction_mode'"
    row = bench.row(streams.sums("rows/sum", "f32", 3, 5, 2))  # asks for reduction_mode
    assert (row.weft, row.peer, row.device) == (0.002, None, bench.machine.name)
    assert row.notes[0] == lacks
    assert row.notes[1].startswith("torch: sum() got an unexpected keyword argument 'keepdim'")
    torch.sum = lambda x, axis, keepdim, dtype, out: np.sum(x, axis, dtype, out, keepdim)
    row = bench.row(streams.sums("rows/sum", "f32", 3, 5, 2))
    assert (row.weft, row.peer, row.notes) == (0.002, 0.002, (lacks,))
    assert row.device == f"{bench.machine.name}, torch 9.9"
    row = bench.row(
        Case(**vars(products.matmul("t", "f32", 5, 7, 6)) | {"build": lambda lib, g, t: lib.dance})
    )
    assert row.notes[2] == "torch: the case has no program of its own."


def test_memory_of_the_cpu() -> None:
    cpu = machine("cpu")
    made = cpu.random(Operand((400, 500), "f32", order=(1, 0), scale=3.0))
    assert made.strides == (4, 1600)
    assert (made.mean(), made.std()) == (pytest.approx(0, abs=0.05), pytest.approx(3, rel=0.02))
    assert cpu.copy(made).strides == made.strides
    assert np.array_equal(cpu.copy(made), made)
    assert np.isnan(cpu.poisoned(Operand((3, 4), "f32"))).all()
    assert cpu.random(Operand((1, 1), "f32", value=0.5)).tolist() == [[0.5]]


def test_repetition() -> None:
    assert [repeats(0.001, 3), repeats(1.0, 2), repeats(1e-6, 7), repeats(0.0, 1)] == [18, 2, 56, 60]
    cpu = machine("cpu")
    counts = [sets_of(products.matmul("t", "f32", n, n, n), cpu) for n in (32, 2048, 4096)]
    assert counts == [12, 2, 1]  # 12 KB, 48 MB and 192 MB towards 64 MB
    (waited,) = machines.in_turn([cpu.timer(lambda i: None, 3)], 3)
    assert 0 <= waited < 1


def test_rounds_alternate() -> None:
    first, second = iter([3.0, 1.0, 8.0]), iter([20.0, 90.0, 10.0])
    said: list[str] = []

    def timer(name: str, times: Iterator[float]) -> machines.Timer:
        def once() -> float:
            said.append(name)
            return next(times)

        return once

    assert machines.in_turn([timer("a", first), timer("b", second)], 3) == [3.0, 20.0]
    assert said == ["a", "b"] * 3
    assert machines.in_turn([], 3) == []


def test_comparison_with_the_bare_product(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[str] = []

    class Noted(measure.Side):
        def __init__(self, library: measure.Library, case: Case, at: Any) -> None:
            run.append(case.name)
            super().__init__(library, case, at)

    monkeypatch.setattr(measure, "Side", Noted)
    bench = quick(monkeypatch, bare=weft)
    assert bench.device.endswith(", peer: the bare product")
    for case in (fused.matmul("t", 5, 7, 6, "bias"), fused.matmul("t", 5, 7, 6, "bare")):
        row = bench.row(case)
        assert (row.weft, row.peer, row.notes) == (0.002, 0.002, ())
    assert run == ["fused/matmul_t_bias"] + ["fused/matmul_t_bare"] * 3


def test_every_fused_case_has_a_bare_one() -> None:
    for known in (cases.gpu(), cases.cpu()):
        for case in known.values():
            if case.group == "fused" and not case.name.endswith("_bare"):
                assert case.bare is not None
                assert case.bare.name in known
            if case.bare is not None:
                assert case.group in ("fused", "sdpa")
                assert case.bare.flops == case.flops * (2 if "block_mask" in case.name else 1)
                assert case.bare.bare is None


# ---- Whole blocks ------------------------------------------------------------------------------------------


def blocks(peer: str) -> whole.Blocks:
    return whole.Blocks(measure.Bench(machine("cpu"), (), rounds=1), peer)


SMALL = [case.name for case in networks.cases(networks.CPU, networks.CPU_DECODE)]


@pytest.mark.parametrize("name", SMALL)
def test_a_block_and_its_gradient_are_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weft's graph and torch's operators, each compared with torch in double precision."""
    pytest.importorskip("torch")
    monkeypatch.setattr(whole, "CALLS", 1)
    monkeypatch.setattr(whole, "TURNS", 1)
    case = cases.cpu()[name]
    found = blocks("eager").measure(case)
    assert found.notes == []
    assert set(found.times) == set(found.hosts) == set(found.errors) == {"weft", "eager"}
    assert case.largest_error
    assert found.errors["weft"] < case.largest_error
    assert found.errors["eager"] < 0.1  # its forward pass rounds elsewhere
    assert found.predicted == pytest.approx(sum(step["seconds"] for step in found.steps))
    assert len(found.stepwise) == len(found.steps)
    assert min(found.stepwise) > 0


def test_a_wrong_block_has_no_time() -> None:
    pytest.importorskip("torch")
    case = cases.cpu()["blocks/resnet_bottleneck_fwd"]

    def judge(xp: Any, t: dict[str, Any]) -> dict[str, Any]:
        return {name: values + 1.0 for name, values in case.oracle(xp, t).items()}

    found = blocks("").measure(replace(case, oracle=judge))
    assert found.times == {}
    assert found.notes[0].startswith("weft: ExecutionError: the result is wrong: its error is ")


def test_blocks_have_peers_of_their_own() -> None:
    message = r"^bench: --peer cudnn cannot run whole blocks\. Use torch, "
    with pytest.raises(weft.BadParameterError, match=message):
        blocks("cudnn")


STEPS = [{"seconds": 2e-6}, {"seconds": 3e-6}]
WHOLES = [
    whole.Whole(
        "blocks/a_fwd",
        {"weft": 10e-6, "eager": 15e-6, "compiled": 12e-6},
        {"weft": 4e-6, "eager": 90e-6, "compiled": 30e-6},
        {"weft": 2e-3, "eager": 3e-3, "compiled": 3e-3},
        STEPS,
        [4e-6, 6.5e-6],
    ),
    whole.Whole("blocks/a_bwd", {"weft": 10e-6, "eager": 9e-6}, {"weft": 4e-6}, {"weft": 2e-3}, STEPS),
    whole.Whole("blocks/b_fwd", notes=["weft: ExecutionError: no"]),
]


def test_tables_of_blocks(tmp_path: Path) -> None:
    """The better peer is next to Weft."""
    whole.write_csv(tmp_path / "table.csv", WHOLES, "Chip", "2026-11-26")
    assert (tmp_path / "table.csv").read_text().splitlines()[1:] == [
        "blocks/a_fwd,10.00,12.00,1.200,2.0e-03,15.00,12.00,3.0e-03,5.00,2,10.50,4.00,90.00,30.00,"
        "Chip,2026-11-26",
        "blocks/a_bwd,10.00,9.00,0.900,2.0e-03,9.00,,,5.00,2,,4.00,,,Chip,2026-11-26",
        "blocks/b_fwd,,,,,,,,0.00,0,,,,,Chip,2026-11-26",
    ]
    assert [row.peer for row in tables.read_csv(tmp_path / "table.csv")] == [12e-6, 9e-6, None]
    assert whole.line(WHOLES[0], [WHOLES[0].case]).split() == [
        *("blocks/a_fwd", "10.0", "15.0", "12.0", "1.20", "2.0e-03", "5.0", "2", "10.5", "4/90/30"),
    ]
    assert whole.summary(WHOLES) == [
        "blocks: time of the better peer / weft time is 1.039 in the geometric mean of 2, 0.900 in the worst "
        "(a_bwd)"
    ]
    assert whole.summary(WHOLES[2:]) == []


# ---- The roof ----------------------------------------------------------------------------------------------


def test_roof_is_what_was_measured() -> None:
    rows = [
        Row("ceiling/copy_1GiB", peer=0.0005),
        Row("ceiling/bf16_8192", peer=0.001),
        Row("ceiling/bf16_8192", peer=0.002),  # of another table: the better one counts
        Row("matmul/bf16_8192", weft=1e-9),
    ]
    roof = tables.roof_of(rows, cases.gpu())
    peak = 2 * 8192**3 / 0.001
    assert roof == Roof(2 * 2**30 / 0.0005, {"bf16": peak}, True)
    roof = tables.roof_of([*rows, Row("matmul/fp8_8192", weft=1e-9)], cases.gpu())
    assert roof.peaks == {"bf16": peak, "fp8": 2 * peak}


def test_a_cpu_multiplies_narrow_floats_as_floats() -> None:
    names = ("matmul/fp8_192", "matmul/i8_weights_m4_n192_k256", "matmul/int8_192", "matmul/f32_512")
    rows = [Row("ceiling/copy_256MiB", peer=0.01), Row("ceiling/f32_1024", peer=0.01)]
    rows += [Row(name, weft=1e-3) for name in names]
    roof = tables.roof_of(rows, cases.cpu())
    peak = 2 * 1024**3 / 0.01
    assert roof.peaks == {"f32": peak, "fp8": peak, "bf16": peak}
    assert "measured · bf16, fp8: as f32 · percentages" in roofline.picture(rows, cases.cpu(), roof)
    roof = tables.roof_of([*rows, Row("ceiling/bf16_8192", peer=0.001)], cases.cpu())
    assert "measured · fp8, int8: twice bf16 · percentages" in roofline.picture(rows, cases.cpu(), roof)


def test_roof_without_ceilings_is_the_best_row() -> None:
    rows = [
        Row("matmul/bf16_8192", weft=0.002, peer=0.001),
        Row("norm/rmsnorm_fwd_16384x4096", weft=1e-4),
        Row("matmul/unknown", weft=1e-12),
    ]
    roof = tables.roof_of(rows, cases.gpu())
    case = cases.gpu()["norm/rmsnorm_fwd_16384x4096"]
    assert roof == Roof(case.bytes / 1e-4, {"bf16": 2 * 8192**3 / 0.001}, False)
    assert tables.roof_of([], cases.gpu()) == Roof(float("inf"), {}, False)


def test_least_time() -> None:
    roof = Roof(4e12, {"bf16": 8e14}, True)
    norm = "norm/rmsnorm_fwd_16384x4096"
    assert roof.seconds(cases.gpu()["matmul/bf16_8192"]) == 2 * 8192**3 / 8e14
    assert roof.seconds(cases.gpu()[norm]) == WORK[norm][1] / 4e12
    assert roof.seconds(cases.gpu()["matmul/tf32_4096"]) == 3 * 4 * 4096**2 / 4e12  # no peak is known


# ---- Tables ------------------------------------------------------------------------------------------------

ROWS = [
    Row("ceiling/copy_1GiB", peer=0.0005, device="Chip, cudnn 9", date="2026-11-21"),
    Row("ceiling/bf16_8192", peer=0.0015, device="Chip, cudnn 9", date="2026-11-21"),
    Row("matmul/bf16_8192", 0.0016, 0.0015, 0.0017, "Chip, cudnn 9", "2026-11-21"),
    Row("mem/reduce_rows_16384x4096", 3.115e-5, None, 4.8e-8, "Chip, cudnn 9", "2026-11-21"),
    Row("move/transpose_8192x8192", 9e-5, 1.2e-4, 0.0, "Chip, cudnn 9", "2026-11-21"),
    Row("norm/rmsnorm_fwd_16384x4096", None, 7e-5, 0.25, "Chip, cudnn 9", "2026-11-21"),
    Row("norm/rmsnorm_fwd_16384x1024", 2e-5, 1.9e-5, 0.0017, "Chip, cudnn 9", "2026-11-21"),
]
CSV = """\
case,weft_us,peer_us,ratio,error,device,date
ceiling/copy_1GiB,,500.00,,,"Chip, cudnn 9",2026-11-21
ceiling/bf16_8192,,1500.00,,,"Chip, cudnn 9",2026-11-21
matmul/bf16_8192,1600.00,1500.00,0.938,1.7e-03,"Chip, cudnn 9",2026-11-21
mem/reduce_rows_16384x4096,31.15,,,4.8e-08,"Chip, cudnn 9",2026-11-21
move/transpose_8192x8192,90.00,120.00,1.333,0.0e+00,"Chip, cudnn 9",2026-11-21
norm/rmsnorm_fwd_16384x4096,,70.00,,2.5e-01,"Chip, cudnn 9",2026-11-21
norm/rmsnorm_fwd_16384x1024,20.00,19.00,0.950,1.7e-03,"Chip, cudnn 9",2026-11-21
"""
TEXT = """\
roof: memory 4.29 TB/s, bf16 733 TFLOP/s (measured: a large copy, large products)

case                            weft µs      peer µs  ratio   TFLOP/s     TB/s  roofline    error
matmul/bf16_8192                1600.00      1500.00   0.94       687    0.252      94 %  1.7e-03
mem/reduce_rows_16384x4096        31.15            -      -      2.15     4.31     100 %  4.8e-08
move/transpose_8192x8192          90.00       120.00   1.33         -     2.98      69 %  0.0e+00
norm/rmsnorm_fwd_16384x4096           -        70.00      -         -        -         -  2.5e-01
norm/rmsnorm_fwd_16384x1024       20.00        19.00   0.95      3.36     3.36      78 %  1.7e-03

matmul: peer time / weft time is 0.938 in the geometric mean of 1 case, 0.938 in the worst (bf16_8192)
move: peer time / weft time is 1.333 in the geometric mean of 1 case, 1.333 in the worst (transpose_8192x8192)
norm: peer time / weft time is 0.950 in the geometric mean of 1 case, 0.950 in the worst \
(rmsnorm_fwd_16384x1024)
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    tables.write_csv(path, ROWS)
    return path


def test_what_fails_leaves_the_table_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, written = measure.Bench.row, tmp_path / "out.csv"

    def fail(bench: measure.Bench, case: Case) -> Row:
        if "bwd" in case.name:
            raise RuntimeError("the device is gone")
        return row(bench, case)

    monkeypatch.setattr(measure.Bench, "row", fail)
    with pytest.raises(RuntimeError, match="the device is gone"):
        main(["sdpa", "--device", "cpu", "--csv", str(written)])
    assert [found.case for found in tables.read_csv(written)][-1] == "sdpa/fwd_d32_s64_causal"


def test_csv(table: Path) -> None:
    assert table.read_text() == CSV
    back = tables.read_csv(table)
    assert [(row.case, row.device, row.date) for row in back] == [(r.case, r.device, r.date) for r in ROWS]
    for row, wanted in zip(back, ROWS, strict=True):
        for figure in ("weft", "peer", "error", "ratio"):
            assert getattr(row, figure) == pytest.approx(getattr(wanted, figure)), (row.case, figure)


def test_table_without_a_peer() -> None:
    lines = Table(["norm/x"], Roof(4e12, {}, True))
    case = cases.gpu()["rows/softmax_16384x4096"]
    assert lines.header() == "case       weft µs   TFLOP/s     TB/s  roofline    error"
    assert lines.line(Row("norm/x", 1e-3, None, 1e-3), case) == (
        "norm/x     1000.00     0.336    0.268     6.7 %  1.0e-03"
    )


def test_summary() -> None:
    rows = [
        Row("rows/softmax_16384x4096", 1.0, 2.0),
        Row("rows/sum_rows_16384x4096", 1.0, 0.5),
        Row("rows/sum_rows_16384x4097", 1.0, None),
    ]
    assert tables.summary(rows, cases.gpu(), "cudnn") == [
        "rows: cudnn time / weft time is 1.000 in the geometric mean of 2 cases, 0.500 in the worst "
        "(sum_rows_16384x4096)"
    ]


# ---- The picture -------------------------------------------------------------------------------------------


def titles(text: str) -> list[str]:
    return [group[0].text or "" for group in ET.fromstring(text).iter(f"{SVG}g")]


def test_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "FEW", 0)
    text = roofline.picture(ROWS, cases.gpu(), tables.roof_of(ROWS, cases.gpu()))
    points = titles(text)
    # One per case with a time and operations, and a hollow one next to it if a peer has a time.
    assert sorted(points) == [
        "matmul/bf16_8192, peer: 1.5 ms",
        "matmul/bf16_8192: 1.6 ms",
        "mem/reduce_rows_16384x4096: 31.1 µs",
        "norm/rmsnorm_fwd_16384x1024, peer: 19 µs",
        "norm/rmsnorm_fwd_16384x1024: 20 µs",
    ]
    words = [element.text or "" for element in ET.fromstring(text).iter(f"{SVG}text")]
    assert words.count("Roofline: Chip, cudnn 9") == 1
    assert {"memory 4.29 TB/s", "bf16", "733 TFLOP/s", "hollow: the peer"} <= set(words)
    panels = [word for word in words if re.fullmatch(r"[a-z]+, [a-z]+\d+", word)]
    assert panels == ["matmul, bf16", "norm, bf16", "mem, bf16", "move, bf16"]
    for row in ROWS[2:]:
        assert row.case in words  # the list has those without a point, too
    listed = words[words.index("move/transpose_8192x8192") - 1 :][:5]
    assert listed == ["–", "move/transpose_8192x8192", "2.98 TB/s", "69 %", "52 %"]


def test_picture_has_every_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "FEW", 0)
    roof = Roof(4e12, {"bf16": 8e14, "tf32": 4e14}, True)
    rows = [Row(name, roof.seconds(case) * 1.25) for name, case in cases.gpu().items()]
    drawn = [name for name, case in cases.gpu().items() if case.flops]
    text = roofline.picture(rows, cases.gpu(), roof)
    assert sorted(title.partition(":")[0] for title in titles(text)) == sorted(drawn)
    assert "peer" not in text


def text_boxes(text: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right and base of each text of a picture."""
    root = ET.fromstring(text)
    boxes: list[tuple[float, float, float, float]] = []
    for panel in [root, *root.findall(f"{SVG}svg")]:
        top = float(panel.get("y", "0"))
        for element in [e for part in panel if part.tag != f"{SVG}svg" for e in part.iter(f"{SVG}text")]:
            size = float(element.get("font-size", "0"))
            width = svg.text_width(element.text or "", size, bold=element.get("font-weight") is not None)
            anchor = {"start": 0.0, "middle": 0.5, "end": 1.0}[element.get("text-anchor", "start")]
            left, base = float(element.get("x", "0")) - anchor * width, float(element.get("y", "0")) + top
            boxes.append((left, base - 0.75 * size, left + width, base))
    return boxes


def check_apart(text: str) -> int:
    """Checks that each text is within the picture and overlaps no other; returns their number."""
    boxes = sorted(text_boxes(text), key=lambda box: box[1])
    for i, box in enumerate(boxes):
        assert box[0] >= 0
        assert box[2] < roofline.WIDTH
        for other in boxes[i + 1 :]:
            if other[1] >= box[3]:
                break
            assert box[2] <= other[0] or other[2] <= box[0]
    return len(boxes)


def test_committed_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what the command in docs/benchmark.md draws from the committed tables. Its cases crowd, but no
    text overlaps another."""
    root, drawn = Path(__file__).parents[2], tmp_path / "drawn.svg"
    monkeypatch.chdir(root)
    tables = re.search(r"--svg \S+ \\\s+--from ([^`]+)```", (root / "docs/benchmark.md").read_text())
    assert tables
    words = ["--svg", str(drawn), "--from", *run("bash", "-c", f"echo {tables[1]}").split()]
    assert main(words) == 0
    committed = (root / "docs/roofline-h200.svg").read_text()
    assert drawn.read_text() == committed
    assert check_apart(committed) > 1000


@pytest.mark.parametrize("bandwidth", [5e9, 40e9, 200e9])
def test_the_slope_of_the_roof_has_its_name(bandwidth: float) -> None:
    """Where it is long, at the left edge, where it is short, and where none of it is seen."""
    roof, known = Roof(bandwidth, {"f32": 2.2e11}, True), cases.cpu()
    names = ("matmul/f32_512", "matmul/f32_m16_n1024_k1024", "matmul/f32_256_bias_gelu")
    text = roofline.picture([Row(name, roof.seconds(known[name]) * 1.25) for name in names], known, roof)
    assert check_apart(text) > 20
    assert ("memory" in text) == (bandwidth < 1e11)


def test_labels_do_not_overlap() -> None:
    """A cluster of points, more than fit around one."""
    rng = np.random.default_rng(3)
    places = [(300 + 40 * float(x), 250 + 40 * float(y)) for x, y in rng.standard_normal((40, 2))]
    taken = [(250.0, 200.0, 340.0, 215.0)]
    boxes = roofline.place_numbers(places, taken, [13.0] * len(places))
    dots = [(x - roofline.DOT, y - roofline.DOT, x + roofline.DOT, y + roofline.DOT) for x, y in places]
    placed = [box for box in boxes if box]
    assert len(placed) > 30
    for i, box in enumerate(placed):
        for other in placed[:i] + dots + taken:
            is_apart = box[2] <= other[0] or other[2] <= box[0] or box[3] <= other[1] or other[3] <= box[1]
            assert is_apart, i


def test_ticks() -> None:
    assert roofline.ticks(0.3, 12) == [0.5, 1, 2, 5, 10]
    assert roofline.ticks(1, 1e6) == [1, 10, 100, 1e3, 1e4, 1e5, 1e6]


# ---- The command line --------------------------------------------------------------------------------------


LIST = """\
case                                  FLOP   bytes  FLOP/byte
matmul/bf16_8192                     1.1 T   403 M   2.73e+03
matmul/bf16_m16_n8192_k8192         2.15 G   135 M       15.9
matmul/bf16_m128_n8192_k8192        17.2 G   138 M        124
matmul/int8_8192                     1.1 T   403 M   2.73e+03
matmul/fp8_8192                      1.1 T   268 M    4.1e+03
matmul/fp8_blocks_8192               1.1 T   271 M   4.06e+03
matmul/i4_weights_m1_n8192_k8192     134 M  34.6 M       3.88
matmul/i4_weights_m16_n8192_k8192   2.15 G  35.1 M       61.1
matmul/i4_weights_m32_n8192_k8192   4.29 G  35.7 M        120
matmul/i4_weights_m64_n8192_k8192   8.59 G  36.7 M        234
matmul/i4_weights_m128_n8192_k8192  17.2 G  38.8 M        443
matmul/i4_weights_m256_n8192_k8192  34.4 G    43 M        799
matmul/i8_weights_m1_n8192_k8192     134 M  68.2 M       1.97
matmul/i8_weights_m16_n8192_k8192   2.15 G  68.7 M       31.3
matmul/i8_weights_m32_n8192_k8192   4.29 G  69.2 M       62.1
matmul/i8_weights_m64_n8192_k8192   8.59 G  70.3 M        122
matmul/i8_weights_m128_n8192_k8192  17.2 G  72.4 M        237
matmul/i8_weights_m256_n8192_k8192  34.4 G  76.5 M        449
move/transpose_8192x8192                 0   268 M          0
"""


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--device", "cuda", "matmul", "move", "--only", "8192$"]) == 0
    assert capsys.readouterr().out == LIST


def test_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small cases and the ceilings, really measured and written to files."""
    small = (tables.Ceiling("ceiling/copy_256MiB", 1 << 16), tables.Ceiling("ceiling/f32_1024", 64, "f32"))
    monkeypatch.setattr("benchmarks.machines._Cpu.ceilings", small)
    written, drawn = tmp_path / "out.csv", tmp_path / "out.svg"
    only = "f32_m16|softmax_256x512$"
    words = [
        "--device",
        "cpu",
        "--only",
        only,
        "--csv",
        str(written),
        "--svg",
        str(drawn),
        "--quick",
    ]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "\nmatmul/f32_m16_n1024_k1024 " in text
    assert text.endswith(f"\npicture: {drawn}\n")
    with written.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["case", "weft_us", "peer_us", "ratio", "error", "device", "date"]
    names = ["ceiling/copy_256MiB", "ceiling/f32_1024", "matmul/f32_m16_n1024_k1024", "rows/softmax_256x512"]
    assert [row["case"] for row in rows] == names
    for row in rows[2:]:
        assert float(row["weft_us"]) > 0
        assert float(row["error"]) < 1e-6
        assert row["peer_us"] == row["ratio"] == ""
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"])
    words = [element.text for element in ET.parse(drawn).getroot().iter(f"{SVG}text")]
    assert {"matmul, f32", "rows, f32", *names[2:]} <= {*words}  # too few for a plot


def test_a_case_that_fails_shows_in_the_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.machines._Cpu.ceilings", ())
    monkeypatch.setattr(measure, "LARGEST_ERRORS", {"f32": 0.0})
    assert main(["--device", "cpu", "--quick", "move"]) == 0  # copies are exact
    assert main(["--device", "cpu", "--only", "f32_m16"]) == 1
    assert "\n  weft: the result is wrong: its error is " in capsys.readouterr().out


def test_tiles_are_those_of_the_chosen_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of floats are narrowed: the engine that keeps their bits could, too, and comes first."""
    g = weft.Graph(device="sm_90", io_data_type="f32", compute_data_type="f32")
    g.matmul(g.tensor([1, 1024, 1024]), g.tensor([1, 1024, 1024])).set_output(True)
    g.build()
    asked: list[int] = []
    monkeypatch.setattr(g, "get_knobs_for_engine", lambda engine: asked.append(engine) or [])
    tiles.build(g)
    supported = [answer for answer in g.support() if answer["supported"]]
    assert [answer["engine"] for answer in supported] == ["cuda", "cuda.tf32"]
    assert asked == [supported[1]["index"]]


def test_tiles(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written = tmp_path / "tiles.csv"
    words = ["matmul", "--device", "cpu", "--only", "f32_m16", "--tiles", "--quick", "--csv", str(written)]
    assert main([*words]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].split() == ["case", "chosen", "best", "ratio", "tiles", "the", "best", "one"]
    assert said[2].startswith("matmul/f32_m16_n1024_k1024 ")
    assert said[-1].startswith("chosen time / best time is 1.")
    with written.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["case"] == "matmul/f32_m16_n1024_k1024"
    assert float(row["chosen_us"]) >= float(row["best_us"]) > 0


@pytest.mark.parametrize("where", ["timer", "random"])
def test_a_tile_that_fails_is_named(
    where: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a device error nothing more can be measured; earlier results remain."""
    written = tmp_path / "tiles.csv"
    names = "int8_192|fp8_192"
    first, second = (f"matmul/{name}" for name in names.split("|"))
    begun: list[str] = []
    begin, work = tiles.measure, getattr(machines._Cpu, where)

    def measured(bench: measure.Bench, case: Any) -> Choice:
        begun.append(case.name)
        return begin(bench, case)

    def broken(machine: Any, *given: Any) -> Any:
        if begun == [first, second]:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return (lambda: 1e-3) if where == "timer" else work(machine, *given)

    monkeypatch.setattr(tiles, "measure", measured)
    monkeypatch.setattr(machines._Cpu, where, broken)
    assert main(["--device", "cpu", "--only", names, "--tiles", "--csv", str(written)]) == 1
    failure = "with '" if where == "timer" else "before running a tile: "
    said = capsys.readouterr().err
    assert said.startswith(f"bench: {second} failed {failure}")
    assert "CUDA error: an illegal memory access was encountered\n" in said
    with written.open(newline="") as file:
        assert [row["case"] for row in csv.DictReader(file)] == [first]


def test_the_best_tile() -> None:
    near, far = Choice("matmul/a", {"x": 1e-6, "y": 2e-6}, 2), Choice("matmul/b", {"x": 4e-6, "y": 1e-6}, 9)
    assert (near.chosen, near.best, near.ratio, far.chosen, far.best, far.ratio) == ("x", "x", 1, "x", "y", 4)
    assert tiles.line(near).split() == ["matmul/a", "1.0", "µs", "1.0", "µs", "1.000", "2"]
    assert tiles.line(far).split() == ["matmul/b", "4.0", "µs", "1.0", "µs", "4.000", "9", "y"]
    assert tiles.summary([near, far]) == (
        "chosen time / best time is 2.000 in the geometric mean of 2 cases, 4.000 in the worst (matmul/b)"
    )


def test_families(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written = tmp_path / "families.csv"
    words = ["matmul", "--device", "cpu", "--only", "f32_192", "--families", "--quick", "--csv", str(written)]
    assert main([*words]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[2].startswith("matmul/f32_192 ")
    assert " cpu.contraction; cpu.reference " in said[2]
    assert said[-1].startswith("the chosen families are the fastest in 1 of 1 cases (100.0%), 1 of which ")
    with written.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["chosen"], row["best"], row["ratio"]) == ("cpu.contraction", "cpu.contraction", "1.000")


def test_families_of_a_gpu() -> None:
    """Each plan is without the family of the longest step of the one before."""
    g = weft.Graph(device="sm_90", io_data_type="bf16", compute_data_type="f32")
    g.matmul(g.tensor([1, 1024, 1024]), g.tensor([1, 1024, 1024])).set_output(True)
    g.build()
    plans, predicted = families.build(g)
    chosen, *others = plans
    assert chosen == "cuda.hopper"
    assert others == ["cuda.contraction"]
    assert predicted[chosen] == min(predicted.values())


def test_the_best_families() -> None:
    near = Rivalry("matmul/a", {"x": 1.02e-6, "y": 1e-6}, {})
    far = Rivalry("matmul/b", {"x z": 4e-6, "y": 1e-6}, {})
    assert (near.is_good, near.best, far.is_good, far.best) == (True, "y", False, "y")
    assert families.line(near)[63:] == " 1.020  x; y 1.0"
    assert families.line(far)[63:] == " 4.000* x z; y 1.0"
    assert families.summary([near, far]) == (
        "the chosen families are the fastest in 1 of 2 cases (50.0%), 2 of which others serve, too; "
        "4.00 times the best one's time in the worst (matmul/b)"
    )


def test_from(table: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    strange = tmp_path / "strange.csv"
    strange.write_text("case,weft_us,peer_us,ratio,error,device,date\nmatmul/new,1,2,2,,Chip,\n")
    assert main(["--from", str(table), str(strange)]) == 0
    said = capsys.readouterr()
    assert said.out == TEXT
    assert said.err == "omitted, because they are not defined here: matmul/new\n"
    assert main(["norm", "--from", str(table), "--svg", str(tmp_path / "out.svg")]) == 0
    assert ">norm, bf16<" in (tmp_path / "out.svg").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["dance"],
            "bench: there is no group 'dance'. Use some of matmul, conv, fused, norm, mem, rows, move, pool, "
            "sdpa, blocks.",
        ),
        (["--only", "("], "bench: --only '(' is not a valid regular expression: "),
        (["--only", "dance"], "bench: no case matches. --list without other options shows all cases."),
        (
            ["--device", "cpu", "--peer", "cudnn"],
            "bench: --peer cudnn runs on NVIDIA GPUs, this is the CPU. Use torch, or --device cuda.",
        ),
        (
            ["--csv", "x", "--from", "y"],
            "bench: --from shows tables; it excludes --csv, --peer, --list, --tiles and --families. "
            "Leave them or it out.",
        ),
        (
            ["--families", "--device", "cpu", "--svg", "x"],
            "bench: --families times only Weft. Leave --peer and --svg out.",
        ),
        (
            ["--tiles", "--device", "cpu", "--peer", "cudnn"],
            "bench: --tiles times only Weft. Leave --peer and --svg out.",
        ),
    ],
)
def test_refusals(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words]) == 1
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("case,weft_us\n", "bench: {0} has no column peer_us. Give what --csv wrote."),
        (
            "case,weft_us,peer_us\nmatmul/bf16_8192,fast,1\n",
            "bench: {0}: matmul/bf16_8192: weft_us is 'fast', no number. Correct the table.",
        ),
        (
            "case,weft_us,peer_us\nmatmul/new,1,1\n",
            "bench: --from has no case that Weft knows. --list shows them.",
        ),
    ],
)
def test_bad_tables(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert main(["--from", str(path)]) == 1
    assert capsys.readouterr().err.startswith(said.format(path))


def test_missing_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        weft.UnavailableError, match=re.escape("bench: --peer no_such_module cannot be imported")
    ):
        measure._peer("no_such_module", SimpleNamespace(kind="cuda"))  # type: ignore[arg-type]


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    wanted = "bench: torch is not installed, but provides memory on a GPU, streams and the oracle. Install it"
    with pytest.raises(weft.UnavailableError, match=re.escape(wanted)):
        machine("cuda")


# ---- Predicted and measured --------------------------------------------------------------------------------


def test_predictions_of_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compares a table with the predictions of planning for an H200; ceilings and cases without a time are
    left out."""
    path, written = tmp_path / "table.csv", tmp_path / "predicted.csv"
    tables.write_csv(path, ROWS)
    assert main(["--predict", "--csv", str(written), "--from", str(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "DeviceProperties(sm_90: H200 (described), 132 multiprocessors)"
    times = {row.case: row.weft for row in ROWS if row.weft}
    names = [name for name in cases.gpu() if name in times]
    assert [line.split()[0] for line in said[2:-3]] == names
    with written.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["case"] for row in rows] == names
    for row in rows:
        g, _ = measure.graph_of(cases.gpu()[row["case"]], weft, device="sm_90")
        report = g.build().plan.report  # of the plan that runs
        assert float(row["predicted_us"]) == pytest.approx(report["seconds"] * 1e6, abs=0.01)
        assert row["families"] == " ".join(step["family"] for step in report["steps"])
        assert float(row["measured_us"]) * 1e-6 == pytest.approx(times[row["case"]])
        assert float(row["ratio"]) == pytest.approx(report["seconds"] / times[row["case"]], abs=1e-3)


def test_predictions_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.LARGEST_ERRORS, "f32", 1e-9)  # rounds away the product, not the copy
    words = ["--predict", "--device", "cpu", "--quick", "--only"]
    assert main([*words, "matmul/f32_m16|transpose"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[2] == "matmul/f32_m16_n1024_k1024: no time"
    assert said[3].startswith("  weft: the result is wrong")
    assert said[4].split()[0].startswith("move/transpose")
    assert float(said[4].split()[2]) > 0
    assert said[-2].endswith("%)")


def test_how_far_predictions_are() -> None:
    pairs = [(1.3, 1.0), (1.0, 1.3), (1.0, 1.31), (1.31, 1.0), (4.0, 1.0)]
    rows = [Prediction(f"mem/{i}", p * 1e-6, m * 1e-6, ("cuda.map",)) for i, (p, m) in enumerate(pairs)]
    assert [row.is_good for row in rows] == [True, True, False, False, False]
    assert predict.line(rows[3], ["mem/0"]).split() == ["mem/3", "1.31", "1.00", "1.31*", "cuda.map"]
    assert predict.summary(rows) == [
        "2 of 5 within a factor 1.3 (40.0%)",
        "predicted / measured is 1.320 in the geometric mean, 4.00 in the worst (mem/4)",
    ]
    assert predict.summary([]) == []
