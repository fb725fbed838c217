"""SwiGLU's two products of one input: the second one's epilogue reads the first one's result; and its
gradient, whose pointwise part is one step."""

from __future__ import annotations

from typing import Any

import checks
import numpy as np
import pytest
import weft

Array = np.ndarray[Any, Any]
OPTIONS = {"io_data_type": "bf16", "compute_data_type": "f32"}


def forward(g: Any, x: Any, w1: Any, w3: Any, w2: Any) -> tuple[Any, ...]:
    """down(swish(x w1) * (x w3)), and what its gradient reads."""
    gate, up = g.matmul(x, w1, name="gate"), g.matmul(x, w3, name="up")
    return (g.matmul(g.mul(g.swish(gate), up), w2, name="down"),)


def backward(g: Any, x: Any, w1: Any, w3: Any, w2: Any, gate: Any, up: Any, dy: Any) -> tuple[Any, ...]:
    def turned(t: Any) -> Any:
        return g.transpose(t, [0, 2, 1])

    act = g.swish(gate)
    dh = g.matmul(dy, turned(w2))
    dup, dgate = g.mul(dh, act), g.swish_backward(g.mul(dh, up), gate)
    dx = g.add(g.matmul(dgate, turned(w1)), g.matmul(dup, turned(w3)))
    dw2 = g.matmul(turned(g.mul(act, up)), dy)
    return dx, g.matmul(turned(x), dgate), g.matmul(turned(x), dup), dw2


def shapes(tokens: int, inner: int, hidden: int, is_backward: bool) -> list[list[int]]:
    up, down, more = [1, inner, hidden], [1, hidden, inner], [[1, tokens, hidden]] * 2 + [[1, tokens, inner]]
    return [[1, tokens, inner], up, up, down, *(more if is_backward else [])]


@pytest.mark.parametrize("intermediate", ["bf16", None])
@pytest.mark.parametrize(
    ("is_backward", "families"),
    [(False, ["hopper"] * 3), (True, sorted(["hopper", "map", *["hopper"] * 5]))],
)
def test_steps(is_backward: bool, families: list[str], intermediate: str | None) -> None:
    """A product each, and of the gradient the one sweep that makes h and the gradients of gate and up."""
    g = weft.Graph(device="sm_90", intermediate_data_type=intermediate, **OPTIONS)
    tensors = [g.tensor(shape) for shape in shapes(4096, 4096, 14336, is_backward)]
    for tensor in (backward if is_backward else forward)(g, *tensors):
        tensor.set_output(True)
    g.build_operation_graph()
    planned = [family.removeprefix("cuda.") for family in g.support()[0]["families"]]
    assert sorted(planned) == families


def draw(tokens: int, inner: int, hidden: int, is_backward: bool) -> dict[str, Array]:
    return {
        f"x{i}": checks.random(tuple(shape), "bf16", seed=i, low=-0.5, high=0.5)
        for i, shape in enumerate(shapes(tokens, inner, hidden, is_backward))
    }


def sigmoid(a: Array) -> Array:
    return 1 / (1 + np.exp(-a))


def check(build: Any, arrays: dict[str, Array], expected: list[Array], bounds: list[Array]) -> None:
    """Between steps each engine may round to bf16."""
    found = checks.check(
        lambda g, **tensors: build(g, *tensors.values()),
        arrays,
        [None] * len(expected),
        layouts=["packed"],
        graph=OPTIONS,
    )
    for engine, outputs in found.items():
        for got, want, bound in zip(outputs, expected, bounds, strict=True):
            off = np.abs(checks.exact(got) - want)
            assert (off <= 2.0**-6 * bound + 2.0**-8 * np.abs(want)).all(), engine


def test_values() -> None:
    arrays = draw(33, 64, 96, False)
    x, w1, w3, w2 = (checks.exact(a) for a in arrays.values())
    gate, up = x @ w1, x @ w3
    h = gate * sigmoid(gate) * up
    check(forward, arrays, [h @ w2], [(np.abs(h) + np.abs(gate) + np.abs(up)) @ np.abs(w2)])


def test_values_of_gradients() -> None:
    arrays = draw(33, 64, 96, True)
    x, w1, w3, w2, gate, up, dy = (checks.exact(a) for a in arrays.values())
    share = sigmoid(gate)
    act, dh = gate * share, dy @ w2.swapaxes(1, 2)
    dup, dgate = dh * act, dh * up * (share + act * (1 - share))
    dx = dgate @ w1.swapaxes(1, 2) + dup @ w3.swapaxes(1, 2)
    dw1, dw3 = x.swapaxes(1, 2) @ dgate, x.swapaxes(1, 2) @ dup
    most = np.abs(dh) + np.abs(dup) + np.abs(dgate)
    columns = np.abs(x.swapaxes(1, 2)) @ most
    check(
        backward,
        arrays,
        [dx, dw1, dw3, (act * up).swapaxes(1, 2) @ dy],
        [
            most @ np.abs(w1.swapaxes(1, 2)) + most @ np.abs(w3.swapaxes(1, 2)),
            columns,
            columns,
            np.abs(act * up).swapaxes(1, 2) @ np.abs(dy),
        ],
    )
