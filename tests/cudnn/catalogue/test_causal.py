"""Scripts in the style of cuDNN's samples: causal convolutions on torch tensors and on addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import weft.cudnn as cudnn
from weft.enums import data_type

IDENTITY, SILU = 0, 1


def logistic(s: Any) -> Any:
    return 1 / (1 + np.exp(-s))


def sums(x: Any, weight: Any, bias: Any) -> Any:
    """Computes the convolution of x [B, D, L] and weight [D, K] in double precision."""
    taps = weight.shape[1]
    padded = np.pad(x, ((0, 0), (0, 0), (taps - 1, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=2)
    return np.einsum("bdlk,dk->bdl", windows, weight) + bias[None, :, None]


def gradients(dy: Any, x: Any, weight: Any, bias: Any) -> Any:
    """With SiLU: dx by the transposed convolution, dweight, dbias."""
    s, taps = sums(x, weight, bias), weight.shape[1]
    ds = dy * logistic(s) * (1 + s * logistic(-s))
    dx = sums(ds[..., ::-1], weight, 0 * bias)[..., ::-1]
    padded = np.pad(x, ((0, 0), (0, 0), (taps - 1, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=2)
    return dx, np.einsum("bdl,bdlk->dk", ds, windows), ds.sum((0, 2))


def address(array: Any) -> int:
    if isinstance(array, np.ndarray):
        return int(array.ctypes.data)
    return int(array.__cuda_array_interface__["data"][0])


@pytest.fixture(autouse=True)
def on_place(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions on addresses work on the default device."""
    if not place.is_gpu:
        monkeypatch.setenv("WEFT_DEVICE", "cpu")


@pytest.mark.parametrize("last", [False, True], ids=["nhw", "nwh"])
def test_on_addresses(place: Any, last: bool) -> None:
    batch, channels, steps, taps = 2, 5, 9, 3
    turn = (lambda a: np.swapaxes(a, -1, -2)) if last else (lambda a: a)
    shape, filters = (
        ((batch, steps, channels), (taps, channels)) if last else ((batch, channels, steps), (channels, taps))
    )
    x, dy, w, b = (place.random(s, seed=i) for i, s in enumerate((shape, shape, filters, (channels,))))
    y, dx, dw, db = (place.random(s, seed=9) for s in (shape, shape, filters, (channels,)))
    sizes = (batch, channels, steps, taps, int(data_type.FLOAT))
    forward = cudnn.causal_conv1d_nwh_forward if last else cudnn.causal_conv1d_forward
    backward = cudnn.causal_conv1d_nwh_backward if last else cudnn.causal_conv1d_backward
    forward(0, address(x), address(w), address(b), address(y), *sizes, SILU)
    read, written = (address(each) for each in (x, w, b, dy)), (address(each) for each in (dx, dw, db))
    backward(0, *read, *written, *sizes, int(data_type.FLOAT), SILU)
    given = [turn(place.get(each)) for each in (x, w)] + [place.get(b)]
    s = sums(*given)
    place.close(y, turn(s * logistic(s)))
    for got, want in zip((dx, dw), gradients(turn(place.get(dy)), *given)[:2], strict=True):
        place.close(got, turn(want))
    place.close(db, gradients(turn(place.get(dy)), *given)[2])


def test_without_bias_and_activation(place: Any) -> None:
    x, w, y = place.random((1, 4, 6)), place.random((4, 2), seed=1), place.random((1, 4, 6), seed=2)
    cudnn.causal_conv1d_forward(0, address(x), address(w), 0, address(y), 1, 4, 6, 2, 0, IDENTITY)
    place.close(y, sums(place.get(x), place.get(w), np.zeros(4)))


def test_filters_that_cudnn_refuses() -> None:
    with pytest.raises(ValueError, match=r"causal_conv1d_nwh: kernel_size is 129, expected 2 to 128\."):
        cudnn.causal_conv1d_nwh_forward(0, 0, 0, 0, 0, 1, 1, 1, 129, 0, 0)


@pytest.mark.parametrize("activation", ["identity", "silu"])
def test_on_torch_tensors(place: Any, activation: str) -> None:
    torch = pytest.importorskip("torch")
    device = "cuda" if place.is_gpu and torch.cuda.is_available() else "cpu"
    torch.manual_seed(3)
    x, w, b = (torch.randn(s, device=device, requires_grad=True) for s in ((2, 4, 10), (4, 3), (4,)))
    y = cudnn.ops.causal_conv1d(x, w, b, activation=activation)
    s = torch.nn.functional.conv1d(torch.nn.functional.pad(x, (2, 0)), w[:, None], b, groups=4)
    wanted = torch.nn.functional.silu(s) if activation == "silu" else s
    torch.testing.assert_close(y, wanted)
    loss = torch.randn_like(y)
    expected = torch.autograd.grad(wanted, (x, w, b), loss)
    torch.testing.assert_close(torch.autograd.grad(y, (x, w, b), loss), expected)
    turned = cudnn.ops.causal_conv1d_nwh(x.transpose(1, 2).contiguous(), w.t().contiguous(), b, activation)
    assert turned.is_contiguous()
    torch.testing.assert_close(turned, wanted.transpose(1, 2))


def test_two_convolutions_with_gates(place: Any) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    given = [rng.standard_normal(s) for s in ((2, 6, 9), (6, 3), (2, 4), (2,))]
    x, first, second, skip = given
    three = sums(x, first, np.zeros(6))
    gated = three[:, 1::3] * three[:, 2::3]
    wanted = (sums(gated, second, np.zeros(2)) + skip[:, None] * gated) * three[:, 0::3]
    tensors = [torch.tensor(each, requires_grad=True) for each in given]
    y = cudnn.ops.b2b_causal_conv1d(*tensors)
    np.testing.assert_allclose(y.detach(), wanted, rtol=1e-10, atol=1e-10)
    assert torch.autograd.gradcheck(cudnn.ops.b2b_causal_conv1d, tensors)


@pytest.mark.parametrize(
    ("shapes", "activation", "kind", "sentence"),
    [
        (((1, 2, 3), (2, 2)), "gelu", ValueError, "activation is 'gelu'. Use 'identity' or 'silu'."),
        (
            ((1, 2, 3), (2, 1)),
            "silu",
            ValueError,
            "the filter has 1 tap, expected 2 to 256. torch.ops.weft.causal_conv1d takes others.",
        ),
        (
            ((2, 3), (2, 2)),
            "silu",
            ValueError,
            "x, weight and bias have 2, 2 and 1 dimensions, expected 3, 2 and 1.",
        ),
    ],
)
def test_what_cudnn_refuses(shapes: Any, activation: str, kind: Any, sentence: str) -> None:
    torch = pytest.importorskip("torch")
    x, w = (torch.ones(s) for s in shapes)
    with pytest.raises(kind) as refused:
        cudnn.ops.causal_conv1d(x, w, None, activation)
    assert str(refused.value) == f"cudnn.ops.causal_conv1d: {sentence}"
