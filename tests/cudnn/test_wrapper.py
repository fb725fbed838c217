"""Graph, cuDNN's short interface: what calls accept and return, and how operands are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import weft
import weft.cudnn as cudnn

T = cudnn.data_type


def convolution(place: Any, positional: int, name: str = "conv2d") -> Any:
    """A graph with a convolution that has this many positional arguments, its operands and its result."""
    x, w = place.channels_last((2, 3, 8, 8)), place.channels_last((4, 3, 3, 3), seed=1)
    window = {"padding": [1, 1], "stride": [1, 1], "dilation": [1, 1], **({"name": name} if name else {})}
    given = (x, w)[:positional]
    named = dict(zip(("image", "weight")[positional:], (x, w)[positional:], strict=True))
    with cudnn.Graph(io_data_type=T.FLOAT, compute_data_type=T.FLOAT, handle=place.handle) as g:
        y = g.conv_fprop(*given, **named, **window).set_output(True)
    image = np.pad(place.get(x), ((0, 0), (0, 0), (1, 1), (1, 1)))
    patches = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(2, 3))
    return g, x, w, y, np.einsum("nchwij,kcij->nkhw", patches, place.get(w))


@pytest.mark.parametrize(
    ("positional", "name", "inputs"),
    [
        (0, "conv2d", ["conv2d::image", "conv2d::weight"]),
        (1, "conv2d", ["conv2d::0", "conv2d::weight"]),
        (2, "conv2d", ["conv2d::0", "conv2d::1"]),
        (1, "", ["conv_fprop.0::0", "conv_fprop.0::weight"]),
        (0, "", ["conv_fprop.0::image", "conv_fprop.0::weight"]),
    ],
)
def test_operands_have_names_by_argument_and_by_position(
    place: Any, positional: int, name: str, inputs: Any
) -> None:
    g, x, w, y, want = convolution(place, positional, name)
    g.set_io_tuples(inputs, [y])
    place.close(g(x, w), want)


def test_io_tuples_take_arrays(place: Any) -> None:
    g, x, w, y, want = convolution(place, 2)
    g.set_io_tuples([w, x], [y])
    place.close(g(w, x), want)
    with pytest.raises(weft.BadParameterError, match="the array is not an operand of an operation"):
        g.set_io_tuples([place.random((2,))], [y])


def test_a_call_with_a_dict_returns_it_with_the_outputs(place: Any) -> None:
    g, x, w, _, want = convolution(place, 0)
    given = {"conv2d::image": x, "conv2d::weight": w}
    assert g(given) is given
    assert list(given) == ["conv2d::image", "conv2d::weight", "conv2d::Y"]
    place.close(given["conv2d::Y"], want)


@pytest.mark.parametrize("kind", ["f32", "bf16", "f16", "e4m3"])
def test_calls_return_torch_tensors(place: Any, kind: str) -> None:
    torch = pytest.importorskip("torch")
    if place.is_gpu and not torch.cuda.is_available():
        pytest.skip("this build of torch has no CUDA")
    x = place.random((4, 8), kind)
    with cudnn.Graph(compute_data_type=T.FLOAT, handle=place.handle) as g:
        g.neg(x).set_output(True)
    result = g()
    assert isinstance(result, torch.Tensor)
    np.testing.assert_array_equal(result.double().cpu().numpy(), -place.get(x))


# ---- Truth values have a byte or a bit each, as their memory does ----


@pytest.mark.parametrize("version", [92400, 92800])
@pytest.mark.parametrize("is_bits", [False, True])
def test_memory_decides_between_bits_and_bytes(place: Any, version: int, is_bits: bool) -> None:
    cudnn.set_backend_version(version)
    g = cudnn.pygraph(io_data_type=T.FLOAT, compute_data_type=T.FLOAT, handle=place.handle)
    x = g.tensor(dim=[4, 16], stride=[16, 1])
    mask = g.tensor(dim=[4, 16], stride=[16, 1], data_type=T.BOOLEAN)
    y = g.mul(a=x, b=mask).set_output(True)
    above = g.cmp_gt(x, g.tensor_scalar(0.0, cudnn.scalar_type.COMPILE_TIME_CONST)).set_output(True)
    above.set_data_type(T.BOOLEAN)
    g.build([cudnn.heur_mode.A])
    rng = np.random.default_rng(0)
    values, keep = np.float32(rng.standard_normal((4, 16))), rng.random((4, 16)) < 0.5

    def stored(truth: Any) -> Any:
        return np.packbits(truth.ravel(), bitorder="little") if is_bits else truth.astype("u1")

    for _ in range(2):
        a, m = place.put(values), place.put(stored(keep))
        b, c = place.empty([4, 16]), place.put(stored(~(values > 0)))
        place.run(g, {x: a, mask: m, y: b, above: c})
        np.testing.assert_array_equal(place.get(b), values * keep)
        np.testing.assert_array_equal(place.get(c), np.float64(stored(values > 0)))


@pytest.mark.parametrize("version", [92400, 92800])
@pytest.mark.parametrize("elements", [1, 7, 8, 9, 15, 16, 17])
def test_bits_of_masks_of_any_size(place: Any, version: int, elements: int) -> None:
    """Sizes on either side of whole bytes, in the kind of memory that the version does not assume."""
    cudnn.set_backend_version(version)
    g = cudnn.pygraph(io_data_type=T.FLOAT, compute_data_type=T.FLOAT, handle=place.handle)
    x, mask = (g.tensor(dim=[1, elements], stride=[elements, 1], data_type=t) for t in (T.FLOAT, T.BOOLEAN))
    y = g.mul(a=x, b=mask).set_output(True)
    g.build([cudnn.heur_mode.A])
    rng = np.random.default_rng(elements)
    values, keep = np.float32(rng.standard_normal((1, elements))), rng.random((1, elements)) < 0.5
    keep[0, -1] = True
    bits = np.packbits(keep.ravel(), bitorder="little")
    for stored in [keep.astype("u1"), bits] if elements > 1 else [keep.astype("u1")]:
        result = place.empty([1, elements])
        place.run(g, {x: place.put(values), mask: place.put(stored), y: result})
        np.testing.assert_array_equal(place.get(result), values * keep)


def test_calls_decide_between_bits_and_bytes(place: Any) -> None:
    cudnn.set_backend_version(92400)
    x, mask = place.random((4, 16)), place.put(np.random.default_rng(1).random((4, 16)) < 0.5)
    with cudnn.Graph(io_data_type=T.FLOAT, compute_data_type=T.FLOAT, handle=place.handle) as g:
        g.mul(a=x, b=mask, name="m").set_output(True)
    g.set_io_tuples(["m::a", "m::b"], ["m::OUT_0"])
    truth = place.get(mask) != 0
    bits = place.put(np.packbits(truth.ravel(), bitorder="little").reshape(4, 2))
    for each in (mask, bits):
        place.close(g(x, each), place.get(x) * truth)
