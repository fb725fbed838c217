"""torch.nn.LSTM, GRU and RNN on Weft under enable(), which replaces them on the CPU, against torch's own."""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if os.environ.get("WEFT_TEST_DEVICE", "cpu") != "cpu":
    pytest.skip("on a GPU torch computes recurrent networks", allow_module_level=True)
import weft.torch as weft_torch  # noqa: E402

KINDS = {"LSTM": {}, "GRU": {}, "RNN": {}, "RNN relu": {"nonlinearity": "relu"}}
NAMES = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh", "RNN relu": "rnn_relu"}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "without biases, batch first": {"bias": False, "batch_first": True},
    "two ways": {"bidirectional": True},
    "layers": {"num_layers": 3},
    "layers, two ways, batch first": {"num_layers": 2, "bidirectional": True, "batch_first": True},
}


def module(kind: str, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    torch.manual_seed(1)
    return getattr(torch.nn, kind.split()[0])(7, 6, **KINDS[kind], **options, dtype=dtype)


def results(m: Any, x: Any, lengths: Any = None, states: Any = None) -> list[Any]:
    """Outputs, last states, and the gradients of the input and of all parameters."""
    given = x
    if lengths is not None:
        pack = torch.nn.utils.rnn.pack_padded_sequence
        given = pack(x, torch.tensor(lengths, device="cpu"), batch_first=m.batch_first, enforce_sorted=False)
    y, last = m(given, states)
    if lengths is not None:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=m.batch_first)
    lasts = list(last) if isinstance(last, tuple) else [last]
    weights = torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape).sin()
    loss = (y * weights).sum() + sum((each * each).sum() for each in lasts)
    return [y, *lasts, *torch.autograd.grad(loss, [x, *m.parameters()])]


def check(
    kind: str, options: dict[str, Any], dtype: Any = torch.float64, lengths: Any = None, **how: Any
) -> None:
    m = module(kind, dtype, options)
    shape = (4, 5, 7) if m.batch_first else (5, 4, 7)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    expected = results(m, x, lengths, **how)
    with weft_torch.enable() as enabled:
        found = results(m, x, lengths, **how)
    assert enabled.report()[f"aten::{NAMES[kind]}"] == {"served": 1}
    spread = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=spread, atol=spread * (1 + want.abs().max().item()))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_layers(kind: str, shape: str) -> None:
    check(kind, SHAPES[shape])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types(kind: str, dtype: torch.dtype) -> None:
    check(kind, {}, dtype)


@pytest.mark.parametrize("shape", ["plain", "layers, two ways, batch first"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(kind: str, shape: str) -> None:
    check(kind, SHAPES[shape], lengths=[5, 3, 1, 5])


@pytest.mark.parametrize("lengths", [None, [2, 5, 4, 1]])
def test_projections(lengths: Any) -> None:
    check("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 3}, lengths=lengths)


def test_initial_states() -> None:
    states = torch.randn(1, 4, 6, dtype=torch.float64), torch.randn(1, 4, 6, dtype=torch.float64)
    check("LSTM", {}, states=states)
    check("GRU", {}, states=states[0])


def test_dropout_between_layers() -> None:
    """In training, about the given share of what the second layer reads is 0; never in evaluation."""
    m = module("LSTM", torch.float32, {"num_layers": 2, "dropout": 0.5})
    x = torch.randn(5, 4, 7)
    with torch.no_grad(), weft_torch.enable():
        first, second = m(x)[0], m(x)[0]
        m.eval()
        calm = m(x)[0], m(x)[0]
    assert (first != second).any()
    torch.testing.assert_close(*calm)
    torch.testing.assert_close(calm[0], m(x)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_of_gradients(kind: str) -> None:
    m = module(kind, torch.float64, {"bidirectional": True})
    x = torch.randn(3, 2, 7, dtype=torch.float64, requires_grad=True)
    with weft_torch.enable() as enabled:
        assert torch.autograd.gradgradcheck(lambda x: m(x)[0], (x,), fast_mode=True)
    assert any("served" in outcomes for outcomes in enabled.report().values())


def test_steps_without_elements_are_left_to_torch() -> None:
    m = module("GRU", torch.float32, {})
    with weft_torch.enable() as enabled:
        m(torch.zeros(2, 0, 7))
    assert enabled.report()["aten::gru"] == {"GRU: a tensor without elements. Leave it to torch.": 1}
