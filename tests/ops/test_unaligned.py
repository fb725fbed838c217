# SPDX-License-Identifier: Apache-2.0
"""Memory that is aligned only to its elements, such as x[1:], on tensors that were declared without it in
mind: every way of running against NumPy in float64, on the device under test. Also rows of odd lengths, of
which most begin between two multiples of 16 bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import checks
import numpy as np
import pytest
import weft
from weft import buffers

GUARD = 7


def handle() -> weft.Handle:
    return weft.create_handle(os.environ["WEFT_DEVICE"])


class Shifted:
    """An array on the device that starts some elements after a 64-byte aligned address, within a larger
    allocation."""

    def __init__(self, values: Any, shift: int = 1) -> None:
        size, self.shift = shift + values.size + 1, shift
        self.whole = weft.DeviceArray([size], values.dtype, handle=handle())
        kept = np.full(self.whole.dims, GUARD, values.dtype)
        kept[shift:-1] = values.ravel()
        self.whole.copy_from(kept)
        self.array = self.whole.view(shift, values.shape)
        self.address = buffers.describe(self.array).pointer

    def numpy(self) -> Any:
        """Returns the array after checking that the memory around it is unchanged."""
        found = self.whole.numpy()
        assert (found[: self.shift] == GUARD).all()
        assert found[-1] == GUARD
        return self.array.numpy()


class Case(NamedTuple):
    build: Callable[..., Any]
    oracle: Callable[..., Any]
    dims: Sequence[Sequence[int]]
    result: Sequence[int]
    dtype: str = "f2"


def softmax(x: Any) -> Any:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention(q: Any, k: Any, v: Any) -> Any:
    return softmax(q @ np.swapaxes(k, -1, -2) / 8) @ v


def means(x: Any) -> Any:
    return x.reshape(2, 4, 4, 2, 4, 2).mean((3, 5))


def view(g: Any, x: Any) -> Any:
    """A product of what is x's memory under other extents: aligned as x is."""
    seen = g.reshape(x).set_dim([1, 64, 64]).set_stride([4096, 64, 1])
    return g.matmul(seen, seen)


def pool(g: Any, x: Any) -> Any:
    mode = {"window": [2, 2], "stride": [2, 2], "pre_padding": [0, 0], "post_padding": [0, 0]}
    return g.resample(x, mode="AVGPOOL_INCLUDE_PADDING", generate_index=False, **mode)[0]


def product(g: Any, a: Any, b: Any) -> Any:
    return g.matmul(a, b)


CASES = {
    "product": Case(product, np.matmul, [(64, 72), (72, 80)], (64, 80)),
    "product of floats": Case(product, np.matmul, [(20, 24), (24, 36)], (20, 36), "f4"),
    "rows": Case(lambda g, x: g.softmax(x), softmax, [(33, 128)], (33, 128)),
    "map": Case(lambda g, x, b: g.add(g.exp(x), b), lambda x, b: np.exp(x) + b, [(8, 64), (1, 64)], (8, 64)),
    "move": Case(lambda g, x: g.transpose(x, [1, 0]), np.transpose, [(64, 72)], (72, 64)),
    "window": Case(pool, means, [(2, 4, 8, 8)], (2, 4, 4, 4)),
    "attention": Case(
        lambda g, *qkv: g.sdpa(*qkv, attn_scale=1 / 8)[0], attention, [(1, 2, 72, 64)] * 3, (1, 2, 72, 64)
    ),
    "view": Case(view, lambda x: (x @ x)[None], [(64, 64)], (1, 64, 64)),
    "doubles": Case(lambda g, x: g.neg(x), np.negative, [(3, 33)], (3, 33), "f8"),
    "bytes": Case(lambda g, x: g.transpose(x, [1, 0]), np.transpose, [(32, 48)], (48, 32), "i1"),
}


def built(case: Case, **options: Any) -> weft.Graph:
    g = weft.Graph(handle=handle(), io_data_type=np.dtype(case.dtype), compute_data_type="f32", **options)
    if case.dtype == "f8":
        g = weft.Graph(handle=handle(), io_data_type="f64", compute_data_type="f64", **options)
    inputs = [g.tensor(list(dims), name=f"x{i}") for i, dims in enumerate(case.dims)]
    case.build(g, *inputs).set_output(True).set_name("y").set_data_type(np.dtype(case.dtype))
    return g.build()


def inputs(case: Case) -> list[Any]:
    rng = np.random.default_rng(1)
    return [rng.uniform(-2, 2, dims).astype(case.dtype) for dims in case.dims]


def check(case: Case, found: Any, values: Sequence[Any]) -> None:
    want = case.oracle(*(value.astype("f8") for value in values))
    close = 0 if case.dtype[0] == "i" else 2e-2  # tf32 keeps 10 bits of fraction, as f16 does
    np.testing.assert_allclose(found.astype("f8"), want, rtol=close, atol=close * np.abs(want).max())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shifts", [(1, 1), (1, 0), (0, 1), (3, 2)], ids=str)
def test_execute(name: str, shifts: tuple[int, int]) -> None:
    case = CASES[name]
    g, values = built(case), inputs(case)
    given = [Shifted(value, shifts[0]) for value in values]
    y = Shifted(np.zeros(case.result, case.dtype), shifts[1])
    for _ in range(2):  # the first makes the plan
        g.execute({**{f"x{i}": each.array for i, each in enumerate(given)}, "y": y.array})
        check(case, y.numpy(), values)


def run_bound(g: weft.Graph, x: Shifted, b: Shifted, y: Shifted) -> None:
    assert g.plan.bind(x.array, b.array, out={"y": y.array})() is y.array


WAYS = {
    "call": lambda g, x, b, y: g.plan(x.array, b.array, out={"y": y.array}),
    "bind": run_bound,
    "addresses": lambda g, x, b, y: g.execute({"x0": x.address, "x1": b.address, "y": y.address}),
    "pointers": lambda g, x, b, y: g._execute_with_ptrs([x.address, b.address, y.address]),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_run(way: str) -> None:
    case = CASES["product"]
    g, values = built(case), inputs(case)
    y = Shifted(np.zeros(case.result, case.dtype))
    WAYS[way](g, *map(Shifted, values), y)
    check(case, y.numpy(), values)


def test_the_plan_keeps_its_kernels_for_memory_as_declared() -> None:
    case = CASES["product"]
    g, values = built(case), inputs(case)
    on_gpu = g.plan.device is weft.device_kind.CUDA
    for shift in (0, 1, 0):
        y = Shifted(np.zeros(case.result, case.dtype), shift)
        given = [Shifted(value, shift) for value in values]
        run = g.plan.bind(*(each.array for each in given), out={"y": y.array})
        assert (run.plan is g.plan) != (shift > 0 and on_gpu)
        assert {slot.alignment for slot in run.plan.slots} == {16 if on_gpu and not shift else 2}
        run()
        check(case, y.numpy(), values)
    other = [Shifted(value).array for value in values]
    y = Shifted(np.zeros(case.result, case.dtype))
    assert g.plan.bind(*other, out={"y": y.array}).plan is g.plan.bind(*other, out={"y": y.array}).plan


def test_saved_plans() -> None:
    case = CASES["map"]
    values = inputs(case)
    y = Shifted(np.zeros(case.result, case.dtype))
    weft.Graph().deserialize(handle(), built(case).serialize()).execute(
        {**{f"x{i}": Shifted(value).array for i, value in enumerate(values)}, "y": y.array}
    )
    check(case, y.numpy(), values)


def test_workspaces() -> None:
    """A workspace of the size that the graph reports is sufficient, even if another plan runs."""
    g = weft.Graph(handle=handle(), io_data_type="f32")
    x = g.tensor([64, 64], name="x")
    g.matmul(g.softmax(x), x).set_output(True).set_name("y")
    g.build()
    values = inputs(CASES["product"]._replace(dims=[(64, 64)], dtype="f4"))[0]
    x_, y = Shifted(values), Shifted(np.zeros((64, 64), "f4"))
    workspace = weft.DeviceArray([g.get_workspace_size()], "u8", handle=handle())
    for given in (None, workspace, buffers.describe(workspace).pointer):
        y.array.copy_from(np.zeros((64, 64), "f4"))
        g.execute({"x": x_.array, "y": y.array}, given)
        exact = values.astype("f8")
        np.testing.assert_allclose(y.numpy(), softmax(exact) @ exact, atol=2e-3)


@pytest.mark.parametrize("shift", [0, 1])
def test_other_shapes(shift: int) -> None:
    g = weft.Graph(handle=handle(), io_data_type="f16", is_override_shape_enabled=True)
    x = g.tensor([4, 64], name="x")
    y = g.softmax(x).set_output(True).set_name("y")
    g.build()
    values = inputs(CASES["rows"]._replace(dims=[(9, 64)]))[0]
    found = Shifted(np.zeros((9, 64), "f2"), shift)
    shapes: Any = {"override_uids": [x.uid, y.uid], "override_shapes": [[9, 64]] * 2}
    g.execute({"x": Shifted(values, shift).array, "y": found.array}, None, **shapes)
    np.testing.assert_allclose(found.numpy().astype("f8"), softmax(values.astype("f8")), atol=2e-3)


def test_parts_of_elements_are_refused() -> None:
    g, x = built(CASES["rows"]), Shifted(np.zeros((33, 128), "f2"))
    odd = x.address + 1
    words = (
        f"tensor 'x0' (uid 1): pointer 0x{odd:x} is not aligned to an element, 2 bytes. Copy the elements to "
        "an aligned address."
    )
    with pytest.raises(weft.BadParameterError, match=f"^{re.escape(words)}$"):
        g.execute({"x0": odd, "y": x.address})


# ---- Positions in rows of odd lengths ----------------------------------------------------------------------


def position(g: Any, x: Any) -> Any:
    """The column of each element."""
    return g.gen_index(x, 1, compute_data_type="f32")


def masked_softmax(g: Any, x: Any) -> Any:
    """The softmax of the first five columns."""
    return g.softmax(g.binary_select(x, float("-inf"), g.cmp_le(position(g, x), 4.0)), axis=1)


def chosen(g: Any, x: Any, label: Any) -> Any:
    """The logit of each row's label, as cross-entropy reads it."""
    return g.reduction(g.binary_select(x, 0.0, g.cmp_eq(g.gen_index(x, 1), label)), "ADD", dims=[1])


def weighted(g: Any, x: Any, label: Any) -> tuple[Any, ...]:
    """Results that depend on an element's position: per element, per row and per column."""
    weights = g.softmax(x, axis=1)
    moved = g.add(weights, position(g, x))
    marked = g.mul(weights, position(g, x))
    total = g.reduction(g.mul(x, position(g, x)), "ADD", dims=[1])
    return moved, g.reduction(marked, "ADD", dims=[0]), total, chosen(g, x, label)


WIDE = {"intermediate_data_type": "f32", "compute_data_type": "f32"}
# The last two are longer than a cluster's registers hold, so that their kernels stream.
ROWS = [(11, 1027, "f32"), (11, 1030, "bf16"), (40, 1030, "bf16"), (5, 4099, "f16")]
ROWS += [(2, 140003, "f32"), (1, 9999, "f64")]


@pytest.mark.parametrize(("rows", "width", "dtype"), ROWS)
def test_positions_in_rows_of_odd_lengths(rows: int, width: int, dtype: str) -> None:
    x = checks.random((rows, width), dtype)
    labels = np.arange(rows)[:, None] * (width - 1) // max(rows - 1, 1)
    wide, at = checks.exact(x), np.arange(width)[None]
    expected = [
        softmax(wide) + at,
        (softmax(wide) * at).sum(0, keepdims=True),
        (wide * at).sum(1, keepdims=True),
        np.take_along_axis(wide, labels, 1),
    ]
    given = {"x": x, "label": labels.astype(np.int64)}
    out = "f64" if dtype == "f64" else "f32"
    graph = WIDE if dtype != "f64" else {"compute_data_type": "f64"}
    types = [dtype, out, out, out]
    found = checks.check(weighted, given, [None] * 4, out=types, layouts=["packed"], graph=graph)
    for engine, made in found.items():
        for i, (got, want) in enumerate(zip(made, expected, strict=True)):
            close = 2 * checks.roundoff(dtype) if i == 0 else 2e-6
            np.testing.assert_allclose(
                checks.exact(got), want, close, close * np.abs(want).max(), err_msg=f"{engine}, result {i}"
            )


@pytest.mark.parametrize(("rows", "width", "dtype"), ROWS[:4])
def test_masks_of_positions_in_rows_of_odd_lengths(rows: int, width: int, dtype: str) -> None:
    """Most of the first five elements come before the first vector of their row."""
    x = checks.random((rows, width), dtype)
    weights = softmax(np.where(np.arange(width) <= 4, checks.exact(x), -np.inf))
    given: dict[str, Any] = {"x": x}
    checks.check(masked_softmax, given, weights, out=dtype, layouts=["packed"], graph=WIDE, ulps=2)
