"""Contents of a variant pack: cuDNN identifies buffers by uid and reads memory as the tensor declares it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import weft
import weft.cudnn as cudnn

T = cudnn.data_type


def relu(place: Any, **kwargs: Any) -> Any:
    """y = relu(x) of f32[2, 4], uids 1 and 2."""
    g = cudnn.pygraph(io_data_type=T.FLOAT, compute_data_type=T.FLOAT, handle=place.handle)
    x = g.tensor(name="x", dim=[2, 4], stride=[4, 1], uid=1, **kwargs)
    inner = g.neg(input=x, name="inner")
    y = g.relu(input=inner, name="y").set_output(True).set_uid(2)
    return g, x, inner, y


def test_memory_of_unused_uids_and_virtual_tensors_is_ignored(place: Any) -> None:
    g, _, inner, _ = relu(place)
    unused = g.tensor(dim=[3, 1, 1, 1], stride=[1, 1, 1, 1], data_type=T.INT64)
    numbered = g.tensor(dim=[3], stride=[1], data_type=T.INT64, uid=17)
    g.build([cudnn.heur_mode.A])
    a, spare = place.put(-np.ones((2, 4), "f4")), place.empty([3], "i64")
    for key in (unused, numbered, 17, 99, inner, inner.get_uid(), None):
        for memory in (spare, None):
            b = place.empty([2, 4])
            place.run(g, {1: a, 2: b, key: memory})
            np.testing.assert_array_equal(place.get(b), 1)


def test_names_that_no_tensor_has_are_still_refused(place: Any) -> None:
    g, _, _, _ = relu(place)
    g.build([cudnn.heur_mode.A])
    with pytest.raises(weft.BadParameterError, match="the variant pack names 'z', which is not one of"):
        g.execute({1: place.empty([2, 4]), 2: place.empty([2, 4]), "z": None})


def test_missing_memory_is_still_refused(place: Any) -> None:
    g, _, _, _ = relu(place)
    g.build([cudnn.heur_mode.A])
    with pytest.raises(weft.BadParameterError, match=r"the variant pack has no buffer for output 'y::y'"):
        g.execute({1: place.empty([2, 4]), 3: place.empty([2, 4])})


@pytest.mark.parametrize(
    "make",
    [
        lambda values: np.concatenate([values.ravel(), np.zeros(91, "f4")]),
        lambda values: values.ravel().view("i4"),
        lambda values: values.ravel().view("u1"),
        lambda values: np.concatenate([values.ravel(), np.zeros(8, "f4")]).reshape(8, 2).T,
    ],
    ids=["longer", "another type", "bytes", "transposed"],
)
def test_memory_is_read_as_the_tensor_declares(place: Any, make: Any) -> None:
    g, x, _, y = relu(place)
    g.build([cudnn.heur_mode.A])
    values = np.arange(8, dtype="f4").reshape(2, 4) - 4
    source, result = place.put(make(values)), place.put(make(np.full((2, 4), np.nan, "f4")))
    place.run(g, {x: source, y: result})
    host = result.numpy() if isinstance(result, weft.DeviceArray) else result
    flat = np.frombuffer(host.T.tobytes() if host.ndim == 2 else host.tobytes(), "f4")[:8]
    np.testing.assert_array_equal(flat, np.maximum(-values, 0).ravel())


def test_memory_that_is_too_small_is_refused(place: Any) -> None:
    g, _, _, _ = relu(place)
    g.build([cudnn.heur_mode.A])
    wanted = "execute: input 'x' (uid 1) needs 32 bytes as f32[2,4], its buffer has 16. Give a larger one."
    with pytest.raises(weft.BadParameterError, match=re.escape(wanted)):
        g.execute({1: place.empty([2, 4], "f16"), 2: place.empty([2, 4])})
    if not place.is_gpu:  # the memory after the first element of a reversed array is not its own
        with pytest.raises(weft.BadParameterError, match=r"needs 32 bytes as f32\[2,4\], its buffer has 4"):
            g.execute({1: np.zeros(8, "f4")[::-1], 2: np.zeros((2, 4), "f4")})


@pytest.mark.parametrize("has_uids", [False, True])
def test_tensors_of_the_saved_graph_are_keys_of_the_loaded_one(place: Any, has_uids: bool) -> None:
    g = cudnn.pygraph(io_data_type=T.FLOAT, compute_data_type=T.FLOAT, handle=place.handle)
    x = g.tensor(name="x", dim=[2, 4], stride=[4, 1])
    y = g.relu(input=x).set_output(True)
    if has_uids:
        x.set_uid(5), y.set_uid(6)
    g.build([cudnn.heur_mode.A])
    loaded = cudnn.pygraph(handle=place.handle)
    loaded.deserialize(g.serialize())
    a, b = place.put(-np.ones((2, 4), "f4")), place.empty([2, 4])
    place.run(loaded, {x: a, y: b})
    np.testing.assert_array_equal(place.get(b), 0)
