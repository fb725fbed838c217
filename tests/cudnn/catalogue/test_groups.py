"""Scripts in the style of cuDNN's samples: groups of rows for mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import weft
import weft.cudnn as cudnn

T, M = cudnn.data_type, cudnn.reduction_mode
BEGIN = (1, 4, 4, 9)  # row 0 is of no group, and the second group has none


def graph(place: Any, io: Any = T.FLOAT) -> cudnn.pygraph:
    types = {"intermediate_data_type": T.FLOAT, "compute_data_type": T.FLOAT}
    return cudnn.pygraph(io_data_type=io, handle=place.handle, **types)


def starts_of(g: cudnn.pygraph) -> Any:
    return g.tensor([len(BEGIN), 1, 1], [1, 1, 1], T.INT32, name="starts")


def starts(place: Any) -> Any:
    return place.put(np.array(BEGIN).reshape(-1, 1, 1), "i32")


def groups(x: Any) -> list[Any]:
    """The rows of each group."""
    return [x[0, first:last] for first, last in zip(BEGIN, [*BEGIN[1:], x.shape[1]], strict=True)]


def product(x: Any, axis: Any) -> Any:
    return np.prod(np.where(x == 0, 1, x), axis)


@pytest.mark.parametrize(
    ("mode", "formula", "empty"),
    [
        (M.ADD, np.sum, 0),
        (M.NORM1, lambda x, axis: np.abs(x).sum(axis), 0),
        (M.NORM2, lambda x, axis: np.sqrt((x * x).sum(axis)), 0),
        (M.AVG, np.mean, np.nan),
        (M.MAX, np.max, -np.inf),
        (M.MIN, np.min, np.inf),
        (M.AMAX, lambda x, axis: np.abs(x).max(axis), 0),
        (M.MUL, np.prod, 1),
        (M.MUL_NO_ZEROS, product, 1),
    ],
)
@pytest.mark.parametrize("columns", [8, 1])
def test_reductions_of_each_group(
    place: Any, mode: Any, formula: Callable[..., Any], empty: float, columns: int
) -> None:
    """A bias gradient and a largest magnitude for each expert."""
    values = place.get(place.random((1, 12, 8)))
    values[0, 5, :3] = 0
    x = place.put(values, "f32")
    g = graph(place)
    X, S = g.tensor_like(x), starts_of(g)
    Y = g.reduction(X, mode=mode, group_offset=S, name="each").set_output(True)
    if columns == 1:
        Y.set_dim([4, 1, 1]).set_stride([1, 1, 1])
    g.build()
    y = place.like(Y)
    place.run(g, {X: x, S: starts(place), Y: y})
    axis = 0 if columns > 1 else (0, 1)
    want = [formula(rows, axis) if len(rows) else np.full(columns, empty) for rows in groups(values)]
    place.close(y, np.stack([np.reshape(each, (1, columns)) for each in want]))
    assert g.find_tensor("each::group_offset") is S


def test_each_experts_bias_gradient_in_bf16(place: Any) -> None:
    x = place.random((1, 12, 16), "bf16")
    g = graph(place, T.BFLOAT16)
    X, S = g.tensor_like(x), starts_of(g)
    Y = g.reduction(X, M.ADD, S)
    Y.set_output(True).set_data_type(T.FLOAT).set_dim([4, 1, 16])
    g.build()
    y = place.like(Y)
    place.run(g, {X: x, S: starts(place), Y: y})
    place.close(y, np.stack([rows.sum(0, keepdims=True) for rows in groups(place.get(x))]))


def test_groups_of_other_shapes_are_refused(place: Any) -> None:
    g = graph(place)
    X, S = g.tensor(dim=[3, 4, 8], stride=[32, 8, 1]), starts_of(g)
    with pytest.raises(weft.BadParameterError) as refused:
        g.reduction(X, M.ADD, S, name="sum")
    assert str(refused.value) == (
        "reduction 'sum': with group_offset, input is [1, M, N] and group_offset [E, 1, 1]; they are "
        "[3, 4, 8] and [4, 1, 1]. Reshape them."
    )


def test_rows_of_groups_are_quantised(place: Any) -> None:
    """Blocks within a row do not depend on the group of the row."""
    x = place.random((1, 12, 64))
    results = []
    for grouped in (True, False):
        g = graph(place)
        X, S = g.tensor_like(x), starts_of(g)
        more = {"group_offset": S} if grouped else {}
        Y, scale = g.block_scale_quantize(X, block_size=32, axis=2, name="mx", **more)
        Y.set_output(True).set_data_type(T.FP8_E4M3)
        scale.set_output(True).set_data_type(T.FP8_E8M0)
        g.build()
        y, s = place.like(Y), place.like(scale)
        place.run(g, {X: x, Y: y, scale: s} | ({S: starts(place)} if grouped else {}))
        results.append((place.get(y), place.get(s)))
        if grouped:
            wide = results[0][0].reshape(1, 12, 2, 32) * results[0][1][..., None]
            place.close(place.put(wide.reshape(1, 12, 64), "f32"), place.get(x), "e4m3")
    for with_groups, without in zip(*results, strict=True):
        np.testing.assert_array_equal(with_groups, without)


def test_blocks_and_tiles_across_groups_are_refused(place: Any) -> None:
    g = graph(place)
    X, S = g.tensor(dim=[1, 128, 64], stride=[8192, 64, 1]), starts_of(g)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError) as refused:
        g.block_scale_quantize(X, block_size=32, axis=1, group_offset=S, name="mx")
    assert str(refused.value).startswith(
        "block_scale_quantize 'mx': group_offset is given, and blocks along dimension 1 would cross groups"
    )
    Y, scale = g.block_scale_quantize(X, block_size=32, group_offset=S)
    Y.set_output(True).set_data_type(T.FP8_E4M3)
    scale.set_output(True).set_data_type(T.FP8_E8M0).set_reordering_type(cudnn.tensor_reordering.F8_128x4)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="its scales are stored in tiles"):
        g.validate()


@pytest.mark.parametrize("scored", [True, False])
def test_results_of_experts_are_combined(place: Any, scored: bool) -> None:
    """Five tokens, three of them for each of two experts."""
    rng = np.random.default_rng(0)
    experts = np.array([[0, 2], [1, 0], [2, 1], [0, 1], [2, 0]])
    flat = experts.reshape(-1)
    order = np.argsort(flat, kind="stable")  # rows sorted by expert, of slots (token, k)
    begin = np.searchsorted(flat[order], np.arange(3))
    rows, weight = place.random((1, 10, 16), "bf16"), place.random((3, 16, 8), "bf16", 1)
    scores = place.put(rng.random((1, 5, 2)), "f32")
    index, ks = (place.put(part.reshape(1, 10, 1), "i32") for part in (order // 2, order % 2))
    g = graph(place, T.BFLOAT16)
    R, W, C, I, K = map(g.tensor_like, (rows, weight, scores, index, ks))
    S = g.tensor([3, 1, 1], [1, 1, 1], T.INT32)
    Y = g.moe_grouped_matmul(
        R, W, S, token_index=I, token_ks=K, mode=cudnn.moe_grouped_matmul_mode.COMBINE, top_k=2,
        top_k_scores=C if scored else None, compute_data_type=T.FLOAT, name="moe",
    )  # fmt: skip
    Y.set_output(True).set_data_type(T.FLOAT)
    g.build()
    y = place.like(Y)
    pack = {R: rows, W: weight, S: place.put(begin.reshape(3, 1, 1), "i32"), I: index, K: ks, Y: y}
    place.run(g, pack | ({C: scores} if scored else {}))
    want = np.zeros((5, 8))
    for row, slot in enumerate(order):
        score = place.get(scores)[0, slot // 2, slot % 2] if scored else 1
        want[slot // 2] += score * (place.get(rows)[0, row] @ place.get(weight)[flat[slot]])
    place.close(y, want[None], "bf16")
    assert Y.get_dim() == [1, 5, 8]
    assert g.find_tensor("moe::OUT_0") is Y


def test_what_combining_needs(place: Any) -> None:
    g, mode = graph(place), cudnn.moe_grouped_matmul_mode
    R, W, C = (
        g.tensor([1, 10, 16], [160, 16, 1]),
        g.tensor([4, 16, 8], [128, 8, 1]),
        g.tensor([1, 5, 2], [10, 2, 1]),
    )
    I = g.tensor([1, 10, 1], [10, 1, 1], T.INT32)
    refusals = [
        (
            lambda: g.moe_grouped_matmul(R, W, starts_of(g), mode=mode.NONE, top_k_scores=C),
            "mode NONE computes no sum",
        ),
        (
            lambda: g.moe_grouped_matmul(R, W, starts_of(g), mode=mode.COMBINE, top_k=2),
            "needs token_index and",
        ),
        (
            lambda: g.moe_grouped_matmul(R, W, starts_of(g), I, I, mode.COMBINE, 3),
            "with top_k 3, and token has 10",
        ),
    ]
    for call, words in refusals:
        with pytest.raises(ValueError, match=words):
            call()
