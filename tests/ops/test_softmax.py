# SPDX-License-Identifier: Apache-2.0
"""Softmax against NumPy in float64: axes, types, layouts, statistics, the sink, and rows without a sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import weft
from checks import LAYOUTS, check, check_bits, exact, random, refuses

INF = np.inf
STATISTICS = ("stats", "max", "sum_exp")


def softmax(*wanted: int, **options: Any) -> Callable[..., Any]:
    """Builds a softmax with some of its outputs; all when none is named."""

    def build(g: Any, **operands: Any) -> Any:
        asked = {key: g.tensor(name=key) for i, key in enumerate(STATISTICS, 1) if i in (wanted or range(4))}
        y = g.softmax(operands["x"], sink=operands.get("sink"), name="p", **asked, **options)
        return [[y, *map(asked.get, STATISTICS)][i] for i in wanted or range(4)]

    return build


def oracle(x: Any, axis: int, sink: Any = -INF) -> list[Any]:
    """y, stats, max, sum_exp of rows with a finite maximum."""
    x, sink = exact(x), exact(sink)
    top = np.maximum(x.max(axis, keepdims=True), sink)
    weights = np.exp(x - top)
    total = weights.sum(axis, keepdims=True) + np.exp(sink - top)
    return [weights / total, top + np.log(total), top, total]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize(
    ("dims", "axis"),
    [((2, 3, 4, 5), -1), ((2, 3, 4, 5), 1), ((7, 33), 0), ((3, 2, 65), -1), ((1,), 0), ((3, 1), 1)],
)
def test_values(dims: tuple[int, ...], axis: int, dtype: str) -> None:
    x = random(dims, dtype, -8, 8)
    types = [dtype] + ["f64" if dtype == "f64" else "f32"] * 3
    graph = {"compute_data_type": "f64"} if dtype == "f64" else {}
    check(softmax(axis=axis), {"x": x}, oracle(x, axis), out=types, layouts=LAYOUTS, graph=graph)


@pytest.mark.parametrize(("dtype", "kept"), [("f16", "float32"), ("f32", "float32"), ("f64", "float64")])
def test_types_are_inferred(dtype: str, kept: str) -> None:
    x = random((2, 3), dtype)
    for y, *statistics in check(softmax(), {"x": x}, oracle(x, 1)).values():
        assert y.dtype == x.dtype
        assert [each.dtype.name for each in statistics] == [kept] * 3


def test_rows_of_one_element_in_memory() -> None:
    """Stride 0: each row shows one element at all of its places."""
    memory = random((4, 1))
    g = weft.Graph()
    x = g.tensor([4, 6], [1, 0], data_type="f32", name="x")
    g.softmax(x, name="y")
    result = g.build().plan(x=np.broadcast_to(memory, (4, 6)))
    np.testing.assert_allclose(result, np.full((4, 6), 1 / 6), rtol=1e-6)


def test_axis_is_the_last_by_default() -> None:
    x = random((3, 5))
    check(softmax(), {"x": x}, oracle(x, 1))


@pytest.mark.parametrize("extents", [(1, 3, 1, 1), (2, 3, 4, 1), (1, 1, 1, 1)])
def test_sink_joins_the_sum(extents: tuple[int, ...]) -> None:
    x, sink = random((2, 3, 4, 5)), random(extents, seed=1)
    check(softmax(), {"x": x, "sink": sink}, oracle(x, -1, sink))


def test_sink_along_another_axis() -> None:
    x, sink = random((4, 6)), random((1, 6), "f16", seed=1)
    check(softmax(axis=0), {"x": x, "sink": sink}, oracle(x, 0, sink))


def test_statistics_to_base_2() -> None:
    x = random((3, 5))
    y, stats, top, total = oracle(x, 1)
    check(softmax(stats_log2=True), {"x": x}, [y, stats / np.log(2), top, total])


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1), (0, 2, 3), (3,)])
def test_outputs_are_optional(wanted: tuple[int, ...]) -> None:
    x = random((3, 5))
    check(softmax(*wanted), {"x": x}, [oracle(x, 1)[i] for i in wanted])


def test_large_scores_do_not_overflow() -> None:
    x = np.float32([[1e30, 1e30, -1e30], [3e38, -3e38, 0], [-3e38, -3e38, -3e38]])
    check(softmax(0), {"x": x}, [np.array([[0.5, 0.5, 0], [1, 0, 0], [1 / 3, 1 / 3, 1 / 3]])])


def test_row_of_minus_infinity_gives_zeros() -> None:
    x = np.float32([[-INF] * 3, [-INF, 0, -INF]])
    minus = np.array([[-INF], [0]])
    check(softmax(), {"x": x}, [np.array([[0, 0, 0], [0, 1, 0]]), minus, minus, np.array([[0], [1]])])


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("columns", [3, 70])
def test_rows_with_an_infinite_maximum_are_nan_if_asked(columns: int, axis: int, dtype: str) -> None:
    x = random((5, columns), dtype)
    x[0], x[1, 1], x[2, 0], x[3, :2] = -INF, INF, -INF, [INF, -INF]
    finite = oracle(x[[2, 4]], 1)[0]
    y = np.full(x.shape, np.nan)
    y[[2, 4]] = finite
    x, y = (each if axis == 1 else np.ascontiguousarray(each.T) for each in (x, y))
    graph = {"compute_data_type": "f64"} if dtype == "f64" else {}
    check(softmax(0, axis=axis, infinite_is_nan=True), {"x": x}, [y], out=[dtype], graph=graph)


def test_row_of_minus_infinity_with_a_sink() -> None:
    x, sink = np.full((1, 2, 2, 3), -INF, np.float32), np.float32([2, -INF]).reshape(1, 2, 1, 1)
    stats, total = (np.array(row).reshape(1, 2, 2, 1) for row in ([2, 2, -INF, -INF], [1, 1, 0, 0]))
    check(softmax(), {"x": x, "sink": sink}, [np.zeros(x.shape), stats, stats, total])


def test_plus_infinity_takes_all_weight() -> None:
    x = np.float32([[INF, 0, INF, -INF], [INF, 1, 2, 3]])
    y, top = np.array([[0.5, 0, 0.5, 0], [1, 0, 0, 0]]), np.array([[INF], [INF]])
    check(softmax(), {"x": x}, [y, top, top, np.array([[2], [1]])])


def test_nan_stays_in_its_row() -> None:
    x = np.float32([[0, np.nan, 1], [np.nan, -INF, 0], [0, 0, 0]])
    y = np.array([[np.nan] * 3, [np.nan] * 3, [1 / 3] * 3])
    check(softmax(0, 1), {"x": x}, [y, np.array([[np.nan], [np.nan], [np.log(3)]])])


@pytest.mark.parametrize(("dims", "rows"), [((3, 0), (3, 1)), ((0, 3), (0, 1))])
def test_empty(dims: tuple[int, ...], rows: tuple[int, ...]) -> None:
    expected = [np.zeros(dims), np.full(rows, -INF), np.full(rows, -INF), np.zeros(rows)]
    check(softmax(), {"x": np.zeros(dims, np.float32)}, expected)


def test_virtual_result_keeps_the_precision_of_the_calculation() -> None:
    x = random((3, 5), "bf16")
    wide = lambda g, x: g.identity(g.softmax(x))  # noqa: E731
    check(wide, {"x": x}, oracle(x, 1)[0], out="f32")


def five_operations(g: Any, x: Any) -> Any:
    """Softmax of the last dim as other frontends write it."""
    above = g.exp(g.sub(x, g.reduction(x, "MAX", dims=[-1])))
    return g.div(above, g.reduction(above, "ADD", dims=[-1]))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("dims", [(2, 3, 4, 5), (3, 2, 65), (5, 4096), (2, 40000)])
def test_five_operations(dims: tuple[int, ...], dtype: str) -> None:
    x = random(dims, dtype, -8, 8)
    check(five_operations, {"x": x}, oracle(x, -1)[0], out=dtype, ulps=16)  # differences are rounded


def test_five_operations_around_an_offset() -> None:
    x = random((4, 600), "f32", 9990, 10000)
    check(five_operations, {"x": x}, oracle(x, -1)[0], out="bf16")


def test_five_operations_have_no_number_for_rows_with_infinity() -> None:
    x = np.float32([[INF, 0, -INF], [-INF] * 3, [np.nan, 0, 1], [-INF, 0, -INF]])
    nothing = [np.nan] * 3
    check(five_operations, {"x": x}, np.array([nothing, nothing, nothing, [0, 1, 0]]))


X = {"x": ((3, 5), "f32")}


@pytest.mark.parametrize("axis", [2, -3])
def test_refuses_an_axis_that_is_not_there(axis: int) -> None:
    refuses(softmax(axis=axis), X, f"softmax 'p': axis is {axis}, x has 2 dims [3,5]. Use a value in -2..1.")


def test_refuses_a_sink_per_column() -> None:
    rule = "sink with dims [1,5] does not broadcast to [3,1]. Make each of its dims 1 or equal, of the same "
    refuses(softmax(), X | {"sink": ((1, 5), "f32")}, f"softmax 'p': {rule}rank.")


@pytest.mark.parametrize(
    ("i", "key", "dims", "expected"),
    [
        (0, "y", "3,1", "3,5"),
        (1, "stats", "3,5", "3,1"),
        (2, "max", "1,1", "3,1"),
        (3, "sum_exp", "5,1", "3,1"),
    ],
)
def test_refuses_outputs_of_other_dims(i: int, key: str, dims: str, expected: str) -> None:
    def build(g: Any, x: Any) -> None:
        softmax()(g, x=x)[i].set_dim([int(n) for n in dims.split(",")])

    rule = f"{key} has dims [{dims}], expected [{expected}]. Give it these dims, or none."
    refuses(build, X, f"softmax 'p': {rule}")


def test_exp_of_scores_below_the_maximum_is_bitwise_equal() -> None:
    """Subnormal results, too, whichever way the largest comes."""
    x = random((40, 500), "f32", -110, 0)
    x[:, 0], x[:, 1] = 0, -INF

    def run(peak_of: Callable[..., Any]) -> Any:
        g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
        a, b = g.tensor([40, 500]), g.tensor([40, 1])
        moved = g.add(a, b)
        y = g.exp(g.sub(moved, peak_of(g, moved, b))).set_output(True)
        g.build()
        found = np.empty_like(x)
        g.execute({a: x, b: np.zeros((40, 1), "f4"), y: found})
        return found.view(np.uint32)

    largest = lambda g, moved, b: g.reduction(moved, "MAX", dims=[-1])  # noqa: E731
    given = lambda g, moved, b: b  # noqa: E731
    np.testing.assert_array_equal(run(largest), run(given))


def test_quotients_by_a_number_of_the_row_are_rounded_once() -> None:
    """To the bits of a division, whose results are no subnormal numbers."""
    x = random((5, 300), "f32", 1, 1000)
    x[1] *= np.float32(2.0**-130)  # subnormal, and so is what divides them
    x[2] *= np.float32(2.0**117)  # near the largest
    expected = x / x.max(1, keepdims=True)
    check_bits(lambda g, x: g.div(x, g.reduction(x, "MAX", dims=[-1])), {"x": x}, expected)


@pytest.mark.parametrize(
    ("build", "times"),  # how often x is added; it is read again once the weights are known
    [
        (lambda g, x: g.softmax(x), 0),
        (five_operations, 0),
        (lambda g, x: g.add(five_operations(g, x), x), 1),
    ],
    ids=["softmax", "five operations", "residual"],
)
def test_the_result_may_lie_where_the_operand_did(build: Callable[..., Any], times: int) -> None:
    for engine in ("cpu.reference", "cpu.fast"):
        g = weft.Graph(handle=weft.create_handle("cpu"))
        x = g.tensor([70, 90], data_type="f32")
        y = build(g, x).set_output(True)
        g.create_execution_plan([answer["engine"] for answer in g.support()].index(engine))
        g.build_plan_at_index(0)
        memory = random((70, 90), "f32")
        weights = np.exp(exact(memory))
        expected = weights / weights.sum(1, keepdims=True) + times * exact(memory)
        g.execute({x: memory, y: memory})
        np.testing.assert_allclose(memory, expected, rtol=1e-5, atol=1e-6)


def test_no_result_is_lost_to_weights_that_are_kept_in_its_memory() -> None:
    """Covers a result that is stored before the weights are known, and weights stored next to results
    computed from them."""
    memory = random((37, 40), "f32")
    weights = np.exp(exact(memory) - exact(memory).max(1, keepdims=True))
    shares = weights / weights.sum(1, keepdims=True)
    for is_early in (True, False):
        g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
        x = g.tensor([37, 40], name="x")
        powers = g.exp(g.sub(x, g.reduction(x, "MAX").set_dim([37, 1])))
        made = g.div(powers, g.reduction(powers, "ADD").set_dim([37, 1]))
        total = g.reduction(g.mul(made, made), "ADD").set_dim([37, 1])
        outputs = [total, g.neg(x)] if is_early else [total, made, powers]
        for output in outputs:
            output.set_output(True)
        plan = g.build().plan
        assert len(plan.report["steps"]) == 1
        found = dict(zip([slot.uid for slot in plan.slots if slot.is_output], plan(x=memory), strict=True))
        expected = [(shares**2).sum(1, keepdims=True), *([-exact(memory)] if is_early else [shares, weights])]
        for output, values in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(found[output.get_uid()], values, rtol=1e-5, atol=1e-6)
