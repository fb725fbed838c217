# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding and its gradient against NumPy: halves, interleaved, partial, and positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import weft
from checks import DEVICE, LAYOUTS, check, exact, random, refuses


def matrix(angles: Any, interleaved: bool) -> Any:
    """The rotation of one head, [R, R]: y = matrix @ x."""
    count = len(angles)
    m = np.diag(np.cos(angles))
    for i in range(count // 2):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + count // 2)
        m[a, b], m[b, a] = -np.sin(angles[a]), np.sin(angles[b])
    return m


def rotated(
    x: Any, freqs: Any, rows: Any, scale: float = 1, interleaved: bool = False, back: bool = False
) -> Any:
    """rows: the row of freqs of each token, [B, S]."""
    y, width = exact(x).copy(), freqs.shape[-1]
    for b, s in np.ndindex(rows.shape):
        m = matrix(exact(freqs)[rows[b, s], 0, 0], interleaved)
        y[b, :, s, -width:] = y[b, :, s, -width:] @ (m if back else m.T)
    return scale * y


def case(shape: tuple[int, ...], rows: int, width: int, dtype: str) -> dict[str, Any]:
    return {"x": random(shape, dtype), "freqs": random((rows, 1, 1, width), "f32", -9, 9, seed=1)}


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(
    ("shape", "width"),
    [((2, 3, 5, 8), 8), ((1, 9, 1, 10), 4), ((2, 1, 7, 66), 64), ((1, 1, 1, 2), 2)],
    ids=str,
)
def test_rotations(shape: tuple[int, ...], width: int, back: bool, interleaved: bool, dtype: str) -> None:
    given = case(shape, shape[2] + 1, width, dtype)
    rows = np.tile(np.arange(shape[2]), (shape[0], 1))
    want = rotated(given["x"], given["freqs"], rows, 0.5, interleaved, back)

    def build(g: Any, x: Any, freqs: Any) -> Any:
        method = g.rotary_embedding_backward if back else g.rotary_embedding
        how = {"output_scale": 0.5, "interleaved": interleaved}
        return method(x, freqs, rope_dim=0 if width == shape[3] else width, **how)

    check(build, given, want, layouts=LAYOUTS, magnitude=4.0)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("has_offsets", [False, True])
def test_positions(has_offsets: bool, back: bool) -> None:
    """A position of each token, or of the first token of each sequence, as after a cached prefix."""
    batch, tokens = 3, 4
    given = case((batch, 2, tokens, 6), 20, 6, "f32")
    if has_offsets:
        given["positions"] = np.int32([5, 0, 16]).reshape(batch, 1, 1, 1)
        rows = given["positions"][:, 0, 0] + np.arange(tokens)
    else:
        given["positions"] = np.random.default_rng(3).integers(0, 20, (batch, 1, tokens, 1))
        rows = given["positions"][:, 0, :, 0]
    want = rotated(given["x"], given["freqs"], rows, back=back)

    def build(g: Any, x: Any, freqs: Any, positions: Any) -> Any:
        return (g.rotary_embedding_backward if back else g.rotary_embedding)(x, freqs, positions)

    check(build, given, want, magnitude=4.0)


def test_the_gradient_is_the_transpose() -> None:
    """By finite differences, which are exact for a linear function, with different angles in a pair."""
    x, freqs = random((1, 1, 2, 4), "f64"), random((2, 1, 1, 4), "f64", seed=1)
    dy = random(x.shape, "f64", seed=2)
    rows = np.array([[0, 1]])
    want = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        unit = np.zeros(x.shape)
        unit[at] = 1
        want[at] = (exact(dy) * rotated(unit, freqs, rows)).sum()
    check(lambda g, dy, freqs: g.rotary_embedding_backward(dy, freqs), {"dy": dy, "freqs": freqs}, want)


def test_many_heads() -> None:
    given = case((2, 37, 40, 64), 40, 64, "bf16")
    rows = np.tile(np.arange(40), (2, 1))
    check(
        lambda g, x, freqs: g.rotary_embedding(x, freqs),
        given,
        rotated(given["x"], given["freqs"], rows),
        layouts=("packed",),
        magnitude=4.0,
    )


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4)], ids=str)
def test_nothing(shape: tuple[int, ...]) -> None:
    given = case(shape, 3, 4, "f32")
    check(lambda g, x, freqs: g.rotary_embedding(x, freqs), given, exact(given["x"]))


def test_refusals() -> None:
    def embed(**options: Any) -> Any:
        return lambda g, x, freqs: g.rotary_embedding(x, freqs, **options)

    refuses(
        embed(rope_dim=3),
        {"x": ((1, 2, 3, 4), "f32"), "freqs": ((3, 1, 1, 3), "f32")},
        "rope_dim is 3, heads have 4 elements. Rotate an even number of at most that many.",
    )
    refuses(
        embed(),
        {"x": ((1, 2, 5, 4), "f32"), "freqs": ((3, 1, 1, 4), "f32")},
        "freqs is [3,1,1,4], with 3 positions, but x is [1,2,5,4], with 5 tokens. Give an angle for each "
        "token, or positions.",
    )


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU they count as the nearest position")
def test_positions_out_of_range() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    x, freqs = np.zeros((1, 1, 2, 4), "f4"), np.zeros((3, 1, 1, 4), "f4")
    g.rotary_embedding(x, freqs, np.int64([[[[2]]]]))
    with pytest.raises(weft.BadParameterError, match=r"token 1 of sequence 0 .* expected 0..2, got 3"):
        g()
