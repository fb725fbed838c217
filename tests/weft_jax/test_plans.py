"""Plans called with JAX arrays, run by XLA: on a GPU a call does this by default, here the tests request it
on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import weft
from weft.jax import planned

X = np.linspace(-2, 2, 12).reshape(3, 4)
W = np.linspace(-1, 1, 20).reshape(4, 5)


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    """Allocates arrays on the device of the plans, even if the machine has a GPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def net() -> weft.Plan:
    """scale * x w, and where it is positive."""
    g = weft.Graph("net", handle=weft.create_handle("cpu"), io_data_type="f64", compute_data_type="f64")
    x, w = g.tensor([3, 4], name="x"), g.tensor([4, 5], name="w")
    scale = g.tensor([1, 1], is_pass_by_value=True, name="scale")
    y = g.mul(g.matmul(x, w), scale).set_output(True).set_name("y")
    g.cmp_gt(y, 0.0).set_output(True).set_name("mask").set_data_type("bool8")
    return g.build().plan


def run(plan: weft.Plan, **given: Any) -> list[Any]:
    return planned.run(plan, {plan.index[name]: value for name, value in given.items()})


@pytest.mark.parametrize("scale", [0.5, -3.0, np.float64(0.1), np.full((1, 1), 7.0)])
def test_results_are_of_jax(scale: Any) -> None:
    """An array of NumPy's goes where JAX's are; each number is one more program of XLA's."""
    plan = net()
    y, mask = run(plan, x=jnp.asarray(X), w=W, scale=scale)
    assert isinstance(y, jax.Array)
    assert (mask.dtype, mask.shape) == (np.bool_, (3, 5))
    want = float(np.asarray(scale).item()) * (X @ W)
    np.testing.assert_allclose(y, want, rtol=1e-14)
    np.testing.assert_array_equal(mask, want > 0)
    again, _ = run(plan, x=jnp.asarray(X) + 1, w=jnp.asarray(W), scale=2.0)
    np.testing.assert_allclose(again, 2 * ((X + 1) @ W), rtol=1e-14)


def test_types_that_jax_has_not_by_itself() -> None:
    """64-bit types while JAX has them disabled, and 8-bit floats."""
    jax.config.update("jax_enable_x64", False)
    g = weft.Graph(handle=weft.create_handle("cpu"))
    x = g.tensor([2, 4], data_type="f32", name="x")
    g.gen_index(x, axis=1).set_data_type("i64").set_output(True)
    g.identity(x).set_data_type("fp8_e4m3").set_output(True)
    index, narrow = run(g.build().plan, x=jnp.full((2, 4), 1.5))
    np.testing.assert_array_equal(np.asarray(index), [[0, 1, 2, 3]] * 2)
    assert (index.dtype, narrow.dtype) == (np.int64, jnp.float8_e4m3fn)
    np.testing.assert_array_equal(np.asarray(narrow, float), np.full((2, 4), 1.5))


def both() -> Any:
    """An array on two devices."""
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices("cpu")[:2])
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.device_put(jnp.asarray(W), where)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"w": None}, "plan: input 'w' (uid 2) has no buffer. Give it: w=<array of f64[4,5]>."),
    "no number": (
        {"scale": None},
        "plan: input 'scale' (uid 3) has no buffer. Give it: scale=<array of f64[1,1]>.",
    ),
    "shape": (
        {"w": np.ones((5, 4))},
        "plan: input 'w' (uid 2) is f64[4,5], its buffer f64[5,4]. Reshape the array, or declare the tensor "
        "with its dims.",
    ),
    "type": (
        {"w": np.ones((4, 5), "f4")},
        "plan: input 'w' (uid 2) is f64, its buffer is f32. Convert the array, or declare the tensor with "
        "its type.",
    ),
    "other library": (
        {"w": weft.DeviceArray([4, 5], "f64", handle=weft.create_handle("cpu"))},
        "plan: input 'w' (uid 2) is a DeviceArray but other buffers are JAX arrays. Pass "
        "jax.dlpack.from_dlpack(array), or the memory of all outputs as out={name: buffer}.",
    ),
    "several devices": (
        {"w": both},
        "plan: input 'w' (uid 2) is on 2 devices, but a plan runs on one. Pass one shard, or call "
        "weft.jax.graph inside jax.shard_map.",
    ),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_refusals(case: str) -> None:
    changed, sentence = REFUSED[case]
    given = {"x": jnp.asarray(X), "w": W, "scale": 1.0} | changed
    made = {name: value() if callable(value) else value for name, value in given.items() if value is not None}
    with pytest.raises(weft.BadParameterError) as refused:
        run(net(), **made)
    assert str(refused.value) == sentence
