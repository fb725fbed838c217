"""Calls of a graph with other shapes than it was built for: a plan for each, cached."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import weft
import weft.cudnn as cudnn


def numbers(*dims: int) -> Any:
    return np.random.default_rng([*dims]).standard_normal(dims).astype("f4")


def layer(**more: Any) -> weft.Graph:
    """relu(conv(x, w) + b), of a batch of 2."""
    g = weft.Graph(io_data_type="f32", handle=weft.create_handle("cpu"), **more)
    shapes = {"x": (2, 3, 5, 5), "w": (4, 3, 3, 3), "b": (1, 4, 1, 1)}
    x, w, b = (g.tensor(dims, name=name) for name, dims in shapes.items())
    g.relu(g.bias(g.conv_fprop(x, w, padding=1), b), name="y")
    return g


def convolved(x: Any, w: Any, b: Any) -> Any:
    padded = np.pad(x.astype("f8"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    height, width = x.shape[2:]
    patches = [padded[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return np.maximum(np.einsum("tnchw,kct->nkhw", patches, w.reshape(4, 3, 9).astype("f8")) + b, 0)


def test_another_batch_just_works() -> None:
    g, w, b = layer(), numbers(4, 3, 3, 3), numbers(1, 4, 1, 1)
    for dims in ((2, 3, 5, 5), (7, 3, 5, 5), (2, 3, 5, 5), (7, 3, 5, 5), (1, 3, 8, 6)):
        x = numbers(*dims)
        np.testing.assert_allclose(g(x, w, b), convolved(x, w, b), rtol=1e-5, atol=1e-5)
    told = g.explain().partition("plans for calls of other shapes\n")[2].split("\n")
    rest = "w [4, 3, 3, 3], b [1, 4, 1, 1], y::y"
    assert [line.partition(": ")[2] for line in told] == [
        f"x [7, 3, 5, 5], {rest} [7, 4, 5, 5]",
        f"x [1, 3, 8, 6], {rest} [1, 4, 8, 6]",
    ]


def test_threads_call_with_more_shapes_than_are_kept() -> None:
    g, w, b = layer().build(), numbers(4, 3, 3, 3), numbers(1, 4, 1, 1)

    def call(n: int) -> None:
        x = numbers(1 + n * 7 % 97, 3, 2, 2)
        np.testing.assert_allclose(g(x, w, b), convolved(x, w, b), rtol=1e-5, atol=1e-5)

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(call, range(291))) == [None] * 291
    told = g.explain().partition("plans for calls of other shapes\n")[2].split("\n")
    assert len(told) == len(set(told)) == 64


def test_shapes_that_the_graph_does_not_allow_are_refused_as_before() -> None:
    g, w, b = layer(), numbers(4, 3, 3, 3), numbers(1, 4, 1, 1)
    g(numbers(2, 3, 5, 5), w, b)
    with pytest.raises(weft.BadParameterError) as refused:
        g(numbers(2, 4, 5, 5), w, b)
    assert str(refused.value) == (
        "plan: input 'x' (uid 1) is f32[2,3,5,5], its buffer f32[2,4,5,5]. Reshape the array, or declare the "
        "tensor with its dims."
    )
    assert "other shapes" not in g.explain()
    with pytest.raises(weft.BadParameterError, match=r"f32\[3,3,5,5\]"):
        g.plan(numbers(3, 3, 5, 5), w, b)  # a plan is of its shapes


def test_layouts_of_other_shapes_are_kept() -> None:
    g, w, b = layer(), numbers(4, 3, 3, 3), numbers(1, 4, 1, 1)
    x = np.moveaxis(numbers(3, 5, 5, 3), -1, 1)
    y = g(x, w, b)
    np.testing.assert_allclose(y, convolved(x, w, b), rtol=1e-5, atol=1e-5)
    assert np.moveaxis(y, 1, -1).flags.c_contiguous


def test_filters_hold_for_other_shapes() -> None:
    g = layer().deselect_engines(["cpu.fast"])
    g(numbers(3, 3, 5, 5), numbers(4, 3, 3, 3), numbers(1, 4, 1, 1))
    assert "\n  cpu.reference: x [3, 3, 5, 5]" in g.explain()


def test_old_plans_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.graphs.executable._OTHER_PLANS", 2)
    g = weft.Graph(io_data_type="f32", handle=weft.create_handle("cpu"))
    g.neg(g.tensor([1], name="x"))
    for n in (2, 3, 4):
        np.testing.assert_array_equal(g(np.ones(n, "f4")), -np.ones(n))
    assert [f"x [{n}]" in g.explain() for n in (2, 3, 4)] == [False, True, True]


def test_graphs_of_cudnn_take_other_shapes() -> None:
    g = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, handle=cudnn.create_handle("cpu"))
    A, B = g.tensor(dim=[1, 4, 8], stride=[32, 8, 1]), g.tensor(dim=[1, 8, 3], stride=[24, 3, 1])
    g.matmul(A=A, B=B, name="mm").set_output(True)
    a, b = numbers(1, 6, 8), numbers(1, 8, 3)
    np.testing.assert_allclose(g({"mm::A": a, "mm::B": b}), a @ b, rtol=1e-5, atol=1e-5)
