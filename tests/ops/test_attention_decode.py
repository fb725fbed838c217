"""Attention of few queries and many keys against NumPy in float64: queries and groups of heads of every tile,
heads of many sizes, segments of the keys, every mask, and what is not seen not read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import checks
import numpy as np
import pytest
from attention_oracle import BOTTOM_RIGHT, INF, Case, forward, repeat, run_forward, softmax


def check_decode(
    case: Case,
    dtype: str = "bf16",
    spoil: bool = False,
    knobs: Any = None,
    layouts: Any = ("packed",),
    out: Any = None,
) -> None:
    """All four results; weights are rounded to 16 bits."""
    inputs = case.inputs(dtype)
    want = forward(case, inputs)
    weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
    lost = weights @ np.abs(repeat(inputs["v"], case.heads[0]))
    if spoil:
        rows, columns = (each.reshape(-1) for each in case.lengths())
        for b in range(case.batch):
            inputs["q"][b, :, rows[b] :] = np.nan
            inputs["k"][b, :, columns[b] :] = np.nan
            inputs["v"][b, :, columns[b] :] = INF
    rounded = None if out else [checks.roundoff(dtype) * lost, None, None, None]
    magnitude = max(20, want[3].max())
    checks.check(
        run_forward(case), inputs, want,
        magnitude=magnitude, rounded=rounded, knobs=knobs, layouts=layouts, out=out,
    )  # fmt: skip


def decoding(queries: int, group: int, keys: int, depth: int = 64, heads: int = 2, **more: Any) -> Case:
    shape = (2, (heads * group, heads, heads), queries, keys, depth, more.pop("value_depth", depth), 0.1)
    return Case(*shape, **more)


# Rows of a tile, 16, 32 and 64, one less and one more; and of several tiles.
ROWS = [(1, 1), (1, 4), (15, 1), (16, 1), (17, 1), (4, 8), (33, 1), (8, 8), (13, 5), (63, 1), (64, 2)]


@pytest.mark.parametrize(("queries", "group"), ROWS)
def test_rows(queries: int, group: int) -> None:
    check_decode(decoding(queries, group, 100, right=0, alignment=BOTTOM_RIGHT), ["bf16", "f16"][queries % 2])


@pytest.mark.parametrize("keys", [1, 15, 16, 17, 63, 64, 65, 191, 500])
def test_keys(keys: int) -> None:
    check_decode(decoding(2, 4, keys), "f16")


DEPTHS = [(8, 8), (40, 24), (72, 80), (128, 128), (192, 128), (64, 200), (256, 256)]


@pytest.mark.parametrize(("depth", "value_depth"), DEPTHS)
def test_depths(depth: int, value_depth: int) -> None:
    check_decode(decoding(3, 2, 70, depth, 1, value_depth=value_depth), layouts=["packed", "channels_last"])


@pytest.mark.parametrize("splits", [1, 2, 3, 8])
@pytest.mark.parametrize("name", ["plain", "window", "lengths"])
def test_splits(name: str, splits: int) -> None:
    """Splits without a key, and some that the lengths leave empty."""
    case = decoding(3, 2, 300)
    case = {
        "plain": case,
        "window": replace(case, left=70, right=0, alignment=BOTTOM_RIGHT),
        "lengths": replace(case, seq_len_kv=[0, 130], seq_len_q=[3, 2]),
    }[name]
    check_decode(case, knobs={"SPLIT_K": splits}, spoil=True)


@pytest.mark.parametrize("loads", [1, 2])
@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("splits", [1, 3, 8, 9])
def test_divisions_of_work(splits: int, heads: int, loads: int) -> None:
    """Heads that share a CTA; splits that a cluster joins, and more; loads by threads and by the copy engine.
    ALiBi keeps it from other families."""
    case = decoding(1, 4, 500, 64, 4, alibi=True, seq_len_kv=[500, 130], right=0, alignment=BOTTOM_RIGHT)
    knobs = {"SLICED": heads, "SPLIT_K": splits, "INPUT_TMA_ENABLE": loads}
    check_decode(case, knobs=knobs, spoil=True)


@pytest.mark.parametrize("tile", range(1, 15))
@pytest.mark.parametrize("splits", [1, 5, 8])
def test_parts_of_every_tile(tile: int, splits: int) -> None:
    """Each group of warps, in each CTA of a cluster, has a part of the sums of a row: up to 8 of 8. There are
    parts without a key, and more of them than a warp has lanes."""
    case = decoding(1, 4, 200, 32, 1, right=0, alignment=BOTTOM_RIGHT, seq_len_kv=[200, 70], alibi=True)
    check_decode(case, knobs={"SLICED": 1, "SPLIT_K": splits, "TILE_SIZE": tile})


WINDOWS = [(10, 3, 2), (10, 3, 3), (10, 3, 4), (28, 0, 4), (1, 1, 1)]


@pytest.mark.parametrize(("left", "right", "queries"), WINDOWS)
@pytest.mark.parametrize("splits", [1, 2])
def test_windows_that_begin_within_a_slice(left: int, right: int, queries: int, splits: int) -> None:
    """As many keys as slices of 16, plus or minus one."""
    for keys in (61, 64):
        case = decoding(queries, 1, keys, 32, left=left, right=right, alignment=BOTTOM_RIGHT, alibi=True)
        check_decode(case, knobs={"SPLIT_K": splits}, spoil=True)


MASKS = {
    "causal": {"right": 0},
    "causal at the end, lengths": {
        "right": 0, "alignment": BOTTOM_RIGHT, "seq_len_q": [5, 3], "seq_len_kv": [100, 37]
    },
    "empty sequences": {"seq_len_q": [0, 5], "seq_len_kv": [9, 0]},
    "window": {"left": 20, "right": 3, "alignment": BOTTOM_RIGHT},
    "before all keys": {"right": -6},
    "bias": {"bias": (1, 4, 5, 100)},
    "mask": {"bias": (2, 1, 1, 100), "is_mask": True, "seq_len_kv": [80, 100]},
    "alibi": {"alibi": True, "right": 0, "alignment": BOTTOM_RIGHT},
    "sink": {"sink": True, "seq_len_kv": [0, 50]},
    "all": {
        "bias": (2, 4, 5, 100), "left": 60, "right": 2, "alignment": BOTTOM_RIGHT, "seq_len_q": [5, 4],
        "seq_len_kv": [90, 3], "alibi": True, "sink": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    case = decoding(5, 2, 100, **MASKS[name])
    check_decode(case, spoil=True, layouts=["packed", "padded"])
    check_decode(case, out=["f32", "f32", "f32", "f32"])


def test_masked_values_may_be_nan() -> None:
    """Keys that no query sees may hold anything; those that one sees show in its row, and no other."""
    case = decoding(2, 2, 60, bias=(1, 1, 2, 60), is_mask=True)
    inputs = case.inputs("bf16")
    inputs["bias"][...] = True
    inputs["bias"][..., 7], inputs["bias"][..., 1, 20] = False, False
    want = forward(case, inputs)
    inputs["v"][:, :, 7] = np.nan
    inputs["k"][:, :, 7] = INF
    inputs["v"][:, :, 20] = INF
    found = checks.check(run_forward(case), inputs, [None] * 4)
    for o, *_ in found.values():
        assert not np.isfinite(checks.exact(o[:, :, 0])).any()
        np.testing.assert_allclose(checks.exact(o[:, :, 1]), want[0][:, :, 1], atol=0.02)


def test_strided_caches() -> None:
    """Caches of more keys than are used, with rows, heads and batches in other orders."""
    case = decoding(1, 4, 90, 64)
    inputs = case.inputs("bf16")
    want = forward(case, inputs)
    weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
    lost = weights @ np.abs(repeat(inputs["v"], 8))
    strided = inputs | {
        "k": (inputs["k"], (128 * 2 * 64, 64, 128, 1)),
        "v": (inputs["v"], (200 * 72, 100 * 72, 72, 1)),
        "q": (inputs["q"], (3, 7, 100, 60)),
    }
    rounded = [checks.roundoff("bf16") * lost, None, None, None]
    checks.check(run_forward(case), strided, want, magnitude=20, rounded=rounded, layouts=["packed"])


@pytest.mark.parametrize("logits", [120.0, 1e4])
def test_extreme_scores(logits: float) -> None:
    case = decoding(2, 2, 100)
    inputs = case.inputs("f16")
    case = replace(case, scale=logits / np.abs(replace(case, scale=1).scores(inputs)).max())
    want = [None, *forward(case, inputs)[1:3], None]
    found = checks.check(run_forward(case), inputs, want, magnitude=4 * logits)
    assert all(np.isfinite(checks.exact(each)).all() for arrays in found.values() for each in arrays)
