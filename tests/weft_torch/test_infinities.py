"""Rows with infinite scores: softmax and the losses give the same as torch, including gradients, so that a
loss that has become infinite or NaN is visible."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402

F, INF = torch.nn.functional, torch.inf
ROWS = {
    "minus_infinity": [-INF] * 4,
    "infinity": [1, INF, 0, 0],
    "two_infinities": [INF, INF, 0, 1],
    "both_signs": [INF, -INF, -INF, -INF],
    "some_minus_infinity": [-INF, 1, 2, -INF],
    "nan": [1, torch.nan, 0, 0],
}
FUNCTIONS = {
    "softmax": lambda x, _: F.softmax(x, -1),
    "softmax_of_columns": lambda x, _: F.softmax(x.t().contiguous(), 0),
    "log_softmax": lambda x, _: F.log_softmax(x, -1),
    "cross_entropy": lambda x, target: F.cross_entropy(x, target, reduction="none"),
}


@pytest.mark.parametrize("face", ["enable", "backend"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_with_infinite_scores_are_those_of_torch(name: str, dtype, face: str) -> None:
    function = FUNCTIONS[name]

    def run(call, row):
        x = torch.tensor([row, [1, 2, 3, 4.0]], dtype=dtype, requires_grad=True)
        y = call(x, torch.tensor([1, 1]))
        return y.detach(), *torch.autograd.grad(y, x, torch.arange(y.numel()).view_as(y).to(y))

    torch._dynamo.reset()
    weft = torch.compile(function, backend=weft_torch.backend) if face == "backend" else function
    tolerance = 0.02 if dtype == torch.bfloat16 else 1e-5
    for row in ROWS.values():
        expected = run(function, row)
        with weft_torch.enable() if face == "enable" else contextlib.nullcontext():
            found = run(weft, row)
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("window", [2, 3])
def test_of_several_nans_in_a_window_the_index_is_that_of_torch(window: int, layout, dtype) -> None:
    x = torch.randn(2, 20, 12, 12, dtype=torch.float64)
    x = x.masked_fill(torch.rand(x.shape) < 0.3, torch.nan).to(dtype).contiguous(memory_format=layout)

    def run():
        leaf = x.clone().requires_grad_()
        y, where = F.max_pool2d(leaf, window, 2, window // 2, return_indices=True)
        (dx,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
        values = F.max_pool2d(leaf, window, 2, window // 2)
        return y.detach(), where, dx, torch.autograd.grad(values, leaf, torch.ones_like(y))[0]

    expected = run()
    with weft_torch.enable() as enabled:
        found = run()
    assert all("served" in outcomes for outcomes in enabled.report().values())
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)
