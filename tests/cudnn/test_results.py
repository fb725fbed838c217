"""Dims, strides and types of results that a program does not declare are those of cuDNN's frontend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import frontend_results
import numpy as np
import pytest
import weft
import weft.cudnn as cudnn

FRONTEND = os.environ.get("WEFT_CUDNN_PYTHON", sys.executable)
"""A Python that has cuDNN's frontend: WEFT_CUDNN_PYTHON, or this one."""
T = cudnn.data_type
PAGE = (Path(__file__).parents[2] / "docs/cudnn.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("context", frontend_results.CONTEXTS)
def test_results_are_those_of_the_facts(context: str) -> None:
    handle = cudnn.create_handle("cpu")
    wanted = json.loads(frontend_results.FACTS.read_text())
    wanted = {key: value for key, value in wanted.items() if key.endswith(f" | {context}")}
    cases = frontend_results.CASES
    builds = {key: cases[key.split(" | ")[0]] for key in wanted}
    found = {key: frontend_results.results(cudnn, build, context, handle) for key, build in builds.items()}
    assert len(wanted) > 600
    assert {key: value for key, value in found.items() if value != wanted[key]} == {}


def test_facts_are_those_of_the_installed_frontend(tmp_path: Path) -> None:
    """The facts are what the package infers, which needs no GPU."""
    asked = [FRONTEND, "-c", "import cudnn, cuda.bindings; print(cudnn.__version__, cudnn.backend_version())"]
    answer = subprocess.run(asked, capture_output=True, text=True, cwd=tmp_path)
    if answer.returncode:
        pytest.skip("nvidia-cudnn-frontend, nvidia-cudnn-cu12 or cuda-bindings is not installed")
    if not answer.stdout.startswith("1.32"):
        pytest.skip(f"nvidia-cudnn-frontend is {answer.stdout.split()[0]}, and the facts are those of 1.32")
    script, written = Path(frontend_results.__file__), tmp_path / "results.json"
    subprocess.run([FRONTEND, script, written], check=True, cwd=tmp_path)
    assert json.loads(written.read_text()) == json.loads(frontend_results.FACTS.read_text())


RULES: dict[str, tuple[str, str, list[int]]] = {
    "Convolutions and their gradients": ("conv_fprop 2d, row major, row major", "y", [168, 1, 28, 4]),
    "Sums and statistics per channel": ("genstats, row major", "sum", [8, 1, 8, 8]),
    "Reductions": ("reduction 4d, last, row major", "y", [12, 1, 3, 3]),
    "Reshapes": ("reshape 4d to 3d, row major", "y", [60, 1, 12]),
    "Gradients of batch and instance norm": (
        "batchnorm_backward of [2, 8, 4, 6], row major", "dx", [192, 1, 48, 8],
    ),
    "Pointwise": ("add of equal dims, row major padded, transposed", "y", [60, 20, 1, 4]),
    "Pointwise, no operand has the dims": (
        "add of two broadcasts, row major, row major", "y, read", [20, 40, 1, 4],
    ),
    "Slices": ("slice, steps, row major", "y", [288, 48, 16, 3]),
    "Transposes": ("transpose 4d, padded", "y", [96, 8, 32, 1]),
    "Concatenations": ("concatenate channels last padded, row major", "y", [100, 1, 25, 5]),
    "Norms": ("layernorm TRAINING, row major, padded", "y", [120, 40, 10, 1]),
    "Statistics of layer and RMS norm": ("layernorm TRAINING 4d, channels last", "mean", [12, 1, 3, 3]),
    "Gradients of layer and RMS norm": (
        "layernorm_backward row major, padded, dy and scale channels last", "dscale", [160, 1, 40, 5],
    ),
    "Gradients of adaptive layer norm": ("adalayernorm_backward 4d, channels last", "dx", [96, 32, 8, 1]),
    "Attention": ("sdpa, 4 heads of keys, BSHD", "o", [4096, 1024, 64, 1]),
    "Products": ("matmul 3d, transposed, transposed", "c", [15, 5, 1]),
    "Quantizing by blocks": ("block_scale_quantize axis 1, transpose, row major", "y", [128, 1, 256]),
    "Rotary embeddings": ("rope, row major, padded", "y", [2304, 576, 36, 1]),
}  # fmt: skip
"""For each rule of the page: a case, a result and its strides."""


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    name, result, strides = RULES[rule]
    context = "virtual" if result.endswith(", read") else "in memory"
    build, handle = frontend_results.CASES[name], cudnn.create_handle("cpu")
    made = frontend_results.results(cudnn, build, context, handle)
    result = result if result in made else "y"
    assert made[result][1] == strides
    assert f"| {rule} |" in PAGE


def test_every_rule_of_the_page_is_tested() -> None:
    table = PAGE.split("### Strides")[1].split("\n\n")[2]
    rules = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]
    assert sorted(rules) == sorted(RULES)


def test_outputs_never_overlap_themselves() -> None:
    """cuDNN would give the result the stride 0 of the input."""
    g = cudnn.pygraph(io_data_type=T.FLOAT, handle=cudnn.create_handle("cpu"))
    y = g.relu(input=g.tensor(dim=[4, 8], stride=[0, 1])).set_output(True)
    g.validate()
    assert y.get_stride() == [1, 4]


def test_statistics_have_the_io_type() -> None:
    g = cudnn.pygraph(io_data_type=T.BFLOAT16, intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT)
    x, scale = g.tensor(dim=[15, 7], stride=[7, 1]), g.tensor(dim=[1, 7], stride=[7, 1])
    epsilon = g.tensor(dim=[1, 1], stride=[1, 1], is_pass_by_value=True, data_type=T.FLOAT)
    training = cudnn.norm_forward_phase.TRAINING
    y, inverse = g.rmsnorm(norm_forward_phase=training, input=x, scale=scale, epsilon=epsilon)
    y.set_output(True), inverse.set_output(True)
    g.validate()
    assert inverse.get_data_type() is T.BFLOAT16


def test_weft_keeps_its_own_rule() -> None:
    g = weft.Graph(io_data_type="bf16", handle=weft.create_handle("cpu"))
    y = g.relu(g.tensor([4, 8], [16, 1])).set_output(True)
    z = g.conv_fprop(g.tensor([2, 8, 6, 7]), g.tensor([4, 8, 3, 3]), padding=1).set_output(True)
    g.validate()
    assert (y.strides, z.strides) == ((8, 1), (168, 42, 7, 1))


# ---- What is written by address ----


def run_by_address(graph: Any, place: Any, pack: dict[Any, Any]) -> None:
    """Executes with addresses, of which the graph knows nothing else."""
    held = {t: place.put(array) for t, array in pack.items()}
    workspace = place.empty([max(graph.get_workspace_size(), 1)], "u8")
    graph.execute({t: address_of(a) for t, a in held.items()}, workspace, handle=place.handle)
    for t, array in held.items():
        pack[t] = place.get(array)


def address_of(array: Any) -> int:
    return int(
        array.ctypes.data if isinstance(array, np.ndarray) else array.__cuda_array_interface__["data"][0]
    )


def seen(memory: Any, dims: Sequence[int], strides: Sequence[int]) -> Any:
    """Memory as a tensor of these strides."""
    return np.lib.stride_tricks.as_strided(memory, dims, [8 * step for step in strides])


def test_a_convolution_is_written_channels_last(place: Any) -> None:
    g = cudnn.pygraph(io_data_type=T.FLOAT, compute_data_type=T.FLOAT, handle=place.handle)
    x, w = g.tensor(dim=[1, 3, 4, 4], stride=[48, 16, 4, 1]), g.tensor(dim=[2, 3, 3, 3], stride=[27, 9, 3, 1])
    y = g.conv_fprop(image=x, weight=w, padding=[1, 1], stride=[1, 1], dilation=[1, 1]).set_output(True)
    g.build([cudnn.heur_mode.A])
    rng = np.random.default_rng(0)
    image, filters = rng.standard_normal((1, 3, 4, 4)), rng.standard_normal((2, 3, 3, 3))
    pack = {x: np.float32(image), w: np.float32(filters), y: np.full(32, np.nan, "f4")}
    run_by_address(g, place, pack)
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    patches = np.lib.stride_tricks.sliding_window_view(padded[0], (3, 3), axis=(1, 2))
    want = np.einsum("chwij,kcij->khw", patches, filters)
    place.close(seen(pack[y], [2, 4, 4], [1, 8, 2]), want)


def test_a_padded_result_leaves_the_gaps_unchanged(place: Any) -> None:
    g = cudnn.pygraph(io_data_type=T.FLOAT, compute_data_type=T.FLOAT, handle=place.handle)
    x = g.tensor(dim=[4, 8], stride=[16, 1])
    y = g.relu(input=x).set_output(True)
    g.build([cudnn.heur_mode.A])
    values = np.arange(64, dtype="f4").reshape(4, 16) - 30
    pack = {x: values, y: np.full((4, 16), -7, "f4")}
    run_by_address(g, place, pack)
    want = np.full((4, 16), -7.0)
    want[:, :8] = np.maximum(values[:, :8], 0)
    np.testing.assert_array_equal(pack[y], want)


def test_attention_in_bshd_is_written_in_bhsd(place: Any) -> None:
    g = cudnn.pygraph(io_data_type=T.HALF, compute_data_type=T.FLOAT, handle=place.handle)
    dims, strides = [2, 3, 5, 8], [120, 8, 24, 1]
    q, k, v = (g.tensor(dim=dims, stride=strides) for _ in range(3))
    o, _ = g.sdpa(q=q, k=k, v=v, is_inference=True, attn_scale=1.0)
    o.set_output(True)
    g.build([cudnn.heur_mode.A])
    rng = np.random.default_rng(1)
    memory = [np.float16(rng.standard_normal((2, 5, 3, 8))) for _ in range(3)]
    pack = {**dict(zip((q, k, v), memory, strict=True)), o: np.full(240, np.nan, "f2")}
    run_by_address(g, place, pack)
    heads = [np.float64(m).transpose(0, 2, 1, 3) for m in memory]
    weights = np.exp(heads[0] @ heads[1].transpose(0, 1, 3, 2))
    want = weights / weights.sum(-1, keepdims=True) @ heads[2]
    place.close(pack[o].reshape(dims), want, "f16")
