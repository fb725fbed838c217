"""Who serves attention on Hopper, and why others decline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import weft
from hopper_attention import CAUSAL, forward, fp8_backward, mxfp8_backward


def test_a_new_length_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE", "off")
    for dims in (1, 1, 70, 70), (2, 6, 2000, 100), (3, 1, 65, 1000), (8, 40, 8192, 8192):
        assert forward(112, 112, dims=dims, **CAUSAL)[0] == "cuda.attention_hopper"  # depths of no other test
    programs = {path.name for path in tmp_path.iterdir() if "counter" not in path.name}
    assert len(programs) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rng_dump": ((2, 4, 2000, 2000), "f32")}, "does not output the dropout mask"),
        ({"dropout_mask": ((2, 1, 2000, 2000), "bf16")}, "supports only boolean dropout masks"),
        ({"q_type": "f16"}, "has data type bf16, q has f16; all must be f16 or all bf16"),
        ({"descale_q": ((1, 1, 1, 1), "f32")}, "supports scales only with FP8"),
        ({"dtype": "e4m3", "descale_k": ((1, 1, 2000, 1), "f32")}, "supports scales per head, not per row"),
        (
            {"dtype": "e4m3", "out": "f32"},
            "o has data type f32; with FP8 operands it must be FP8, f16 or bf16",
        ),
        (
            {"dtype": "e4m3", "depth": 72},
            "must have contiguous rows, and strides and alignment of multiples of 16 bytes",
        ),
        ({"depth": 264}, "head dimensions up to 256"),
    ],
)
def test_what_forward_declines(options: dict[str, Any], sentence: str) -> None:
    family, reasons = forward(options.pop("depth", 64), options.pop("value_depth", 64), **options)
    assert family == "cuda.attention"
    assert sentence in reasons


@pytest.mark.parametrize(
    ("dims", "options", "tile"),
    [
        ((32, 16, 512, 512), {}, "192 queries x 64 keys, dynamic"),
        ((32, 16, 512, 512), CAUSAL, "192 queries x 64 keys, dynamic"),
        ((32, 16, 64, 4096), {}, "128 queries x 128 keys"),  # a third of three would work
        ((32, 16, 256, 256), CAUSAL, "128 queries x 128 keys"),
        ((1, 16, 1024, 1024), CAUSAL, "128 queries x 128 keys"),  # no tile waits for another
        ((4, 16, 4096, 4096), {**CAUSAL, "diagonal_band_left_bound": 1024}, "128 queries x 128 keys"),
        ((4, 16, 4096, 4096), {**CAUSAL, "use_alibi_mask": True}, "128 queries x 128 keys"),
    ],
)
def test_consumers_of_heads_of_128(dims: tuple[int, ...], options: dict[str, Any], tile: str) -> None:
    g = weft.Graph(device="sm_90", io_data_type="bf16", compute_data_type="f32")
    batch, heads, rows, columns = dims
    q, k = g.tensor([batch, heads, rows, 128]), g.tensor([batch, heads, columns, 128])
    g._sdpa_fwd(q, k, k, attn_scale_value=0.1, **options)[0].set_output(True)
    (step,) = g.build().plan.report["steps"]
    assert tile in step["detail"]


def test_few_queries_are_decoding() -> None:
    assert forward(64, 64, dims=(1, 1, 16, 2000))[0] == "cuda.attention_decode"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"depth": 72}, "must have contiguous rows, and strides and alignment of multiples of 16 bytes"),
        ({"types": {"k": "bf16"}}, "supports scales only if q, k, v and dO are FP8"),
        ({"lacks": {"scale_dP"}}, "requires scale_s and scale_dP with FP8"),
        (
            {"descale_v": ((2, 4, 1, 1), "f32")},
            "supports one scale per operand, or block scales of all operands",
        ),
        (
            {"bias": ((1, 4, 2000, 2000), "bf16")},
            "there are too few registers for a bias, a score modifier or dropout",
        ),
    ],
)
def test_what_gradients_of_fp8_decline(options: dict[str, Any], sentence: str) -> None:
    family, reasons = fp8_backward(options.pop("depth", 64), **options)
    assert family == "cuda.attention"
    assert sentence in reasons


def test_what_gradients_of_mxfp8_decline() -> None:
    family, reasons = mxfp8_backward(64, 64, "f32")
    assert family == "cuda.attention"
    assert "supports only results of 16 bits or fewer" in reasons
    assert "head dimensions 256 and 64 are too large for" in mxfp8_backward(256, 64)[1]
