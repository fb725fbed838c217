"""Frozen inputs: packed once, used only for the same address, unfrozen and refused."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import weft

HANDLE = weft.create_handle("cpu")


def draw(*shape: int, dtype: str = "f4") -> Any:
    values = np.random.default_rng(sum(shape)).integers(-3, 4, shape)
    return values.astype(ml_dtypes.bfloat16 if dtype == "bf16" else dtype)


def product(dtype: str, transposed: bool, batch: int = 1) -> tuple[weft.Plan, dict[str, Any], str]:
    """x w, of whole numbers: sums are exact in any order."""
    x, w = draw(batch, 33, 130, dtype=dtype), draw(1, 130, 60, dtype=dtype)
    if transposed:
        w = w.transpose(0, 2, 1).copy().transpose(0, 2, 1)
    g = weft.Graph(handle=HANDLE)
    g.matmul(g.tensor_like(x, name="x"), g.tensor_like(w, name="w"), name="y")
    return g.build().plan, {"x": x, "w": w}, "w"


def convolution(kind: str, channels_last: bool, groups: int = 1, channels: int = 24) -> Any:
    """Forward and by data, whose frozen operand is the filter."""
    x, w = draw(2, channels, 9, 11), draw(40 * groups // groups, channels // groups, 3, 3)
    if kind == "depthwise":
        w = draw(channels, 1, 3, 3)
    if channels_last:
        x, w = (a.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2) for a in (x, w))
    g = weft.Graph(handle=HANDLE)
    if kind == "dgrad":
        dy = draw(2, 40, 5, 6)
        g.conv_dgrad(
            g.tensor_like(dy, name="x"), g.tensor_like(w, name="w"), padding=1, stride=2, name="y"
        ).set_dim(x.shape)
        return g.build().plan, {"x": dy, "w": w}, "w"
    g.conv_fprop(g.tensor_like(x, name="x"), g.tensor_like(w, name="w"), padding=1, name="y")
    return g.build().plan, {"x": x, "w": w}, "w"


CASES = {
    "f32 product": lambda: product("f4", False),
    "f32 product, transposed": lambda: product("f4", True),
    "shared by a batch": lambda: product("f4", False, 3),
    "bf16 product": lambda: product("bf16", False),
    "int8 product": lambda: product("i1", True),
    "f64 product": lambda: product("f8", False),
    "convolution": lambda: convolution("fprop", False),
    "convolution, channels last": lambda: convolution("fprop", True),
    "groups": lambda: convolution("fprop", True, 2),
    "many channels": lambda: convolution("fprop", True, 1, 160),
    "depthwise": lambda: convolution("depthwise", True, 24),
    "data gradient": lambda: convolution("dgrad", False),
    "data gradient, channels last": lambda: convolution("dgrad", True),
}


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_frozen_weights_give_the_same_bits(make: Any) -> None:
    plan, arrays, name = make()
    want = plan(**arrays)
    weights = arrays.pop(name)
    assert plan.freeze(**{name: weights}) is plan
    np.testing.assert_array_equal(plan(**arrays), want)
    np.testing.assert_array_equal(plan(**arrays, **{name: weights}), want)
    # What is kept shows itself where the promise is broken.
    kept = weights.copy(order="K")
    weights[...] = 0
    np.testing.assert_array_equal(plan(**arrays), want)
    np.testing.assert_array_equal(plan(**arrays, **{name: kept}), want)
    np.testing.assert_array_equal(plan(**arrays, **{name: np.zeros_like(kept)}), np.zeros_like(want))
    plan.freeze()
    np.testing.assert_array_equal(plan(**arrays, **{name: weights}), np.zeros_like(want))


def test_few_rows_read_frozen_weights_in_place() -> None:
    """Weights [out, in] are not packed, so frozen and other weights give the same bits."""
    x, w = (np.random.default_rng(i).standard_normal((1, rows, 140), "f4") for i, rows in enumerate((5, 70)))
    g = weft.Graph(handle=HANDLE)
    g.matmul(g.tensor_like(x, name="x"), g.tensor_like(w.transpose(0, 2, 1), name="w"), name="y")
    plan = g.build().plan
    want = plan(x=x, w=w.transpose(0, 2, 1))
    np.testing.assert_allclose(want, x.astype("f8") @ w.astype("f8").transpose(0, 2, 1), rtol=0, atol=1e-4)
    plan.freeze(w=w.transpose(0, 2, 1))
    np.testing.assert_array_equal(plan(x=x), want)
    w[...] = 0
    np.testing.assert_array_equal(plan(x=x), np.zeros_like(want))


def test_weights_of_few_bits_stay_as_they_are() -> None:
    """As floats they would occupy four times the bytes: nothing is cached, and each run reads them."""
    x, w, scale = draw(5, 70), draw(70, 40, dtype="i1"), draw(2, 40)
    g = weft.Graph(handle=HANDLE)
    codes, scales = g.tensor_like(w, name="w"), g.tensor_like(scale, name="scale")
    g.matmul(g.tensor_like(x, name="x"), g.block_scale_dequantize(codes, scales, [64, 1]), name="y")
    plan = g.build().plan.freeze(w=w, scale=scale)
    spread = np.repeat(scale, [64, 6], axis=0)
    np.testing.assert_array_equal(plan(x=x), x @ (w * spread))
    np.testing.assert_array_equal(plan(x=x, scale=-scale), -x @ (w * spread))
    w[...] = 1
    np.testing.assert_array_equal(plan(x=x), x @ spread)


def refusal(message: str) -> Any:
    return pytest.raises(weft.WeftError, match=re.escape(message))


def test_what_cannot_be_frozen_is_refused() -> None:
    plan, arrays, _ = product("f4", False)
    with refusal("plan: no tensor is named 'weights'"):
        plan.freeze(weights=arrays["w"])
    with refusal("it cannot be frozen, because the plan writes it. Pass NULL for it."):
        plan.freeze(y=np.zeros((1, 33, 60), "f4"))
    with refusal("plan: input 'w' (uid 2) is f32[1,130,60], its buffer f32[1,33,130]."):
        plan.freeze(w=arrays["x"])


def test_what_was_frozen_stays_so_where_another_freeze_is_refused() -> None:
    plan, arrays, _ = product("f4", False)
    want, weights = plan(**arrays), arrays.pop("w")
    plan.freeze(w=weights)
    for wrong in ({"w": arrays["x"]}, {"y": want}):
        with pytest.raises(weft.WeftError):
            plan.freeze(**wrong)
        np.testing.assert_array_equal(plan(**arrays), want)


def test_a_scalar_by_value_is_read_at_each_run() -> None:
    g = weft.Graph(handle=HANDLE)
    x = g.tensor([1, 1], data_type="f32", name="x")
    g.matmul(x, g.tensor([1, 1], data_type="f32", is_pass_by_value=True, name="s"), name="y")
    plan, one = g.build().plan.freeze(s=2.0), np.ones((1, 1), "f4")
    assert [plan(x=one).item(), plan(x=one, s=3.0).item()] == [2, 3]
