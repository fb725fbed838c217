"""Plans called with JAX arrays on a GPU: results are JAX arrays, ordered with XLA's pending work."""

from __future__ import annotations

from typing import Any

import checks
import numpy as np
import poison
import pytest
import weft

checks.need_gpu()
jax = pytest.importorskip("jax")
import weft.jax  # noqa: E402

if jax.default_backend() != "gpu":
    pytest.skip("JAX sees no GPU", allow_module_level=True)
jnp = jax.numpy


def plus_one(size: int) -> weft.Graph:
    g = weft.Graph(handle=weft.create_handle("cuda"), io_data_type="f32")
    g.add(g.tensor([size, size], name="x"), 1.0, name="y")
    return g.build()


def test_results_are_of_jax_where_the_argument_is() -> None:
    x = jnp.arange(64.0).reshape(8, 8)
    y = plus_one(8)(x)
    assert isinstance(y, jax.Array)
    assert y.devices() == x.devices()
    np.testing.assert_array_equal(y, np.asarray(x) + 1)


def test_a_call_waits_for_what_xla_computes_and_xla_for_the_call() -> None:
    """Each argument is still being computed when it is passed, and its memory is freed right after."""
    size = 1024
    g, x = plus_one(size), jnp.full((size, size), 1 / size)
    made = [g((x @ x) * k) @ x for k in range(20)]  # powers of 2 and small numbers: nothing is rounded
    for k, each in enumerate(made):
        np.testing.assert_array_equal(each, np.full((size, size), 1 + k / size, "f4"))


def test_other_arrays_next_to_jax_arrays() -> None:
    torch: Any = checks.need_gpu()
    g = weft.Graph(handle=weft.create_handle("cuda"), io_data_type="f32")
    g.sub(g.tensor([4], name="a"), g.tensor([4], name="b"))
    a = jnp.arange(4.0)
    assert isinstance(g(a, np.ones(4, "f4")), jax.Array)
    b = torch.ones(4, device="cuda")
    np.testing.assert_array_equal(g(a, jax.dlpack.from_dlpack(b)), [-1, 0, 1, 2])
    assert isinstance(g(b, a), torch.Tensor)
    out = poison.tensor_of([4], [1], torch.float32, "cuda")
    assert g.plan(a, b, out={g.plan.slots[-1].uid: out}) is out
    np.testing.assert_array_equal(out.cpu(), [-1, 0, 1, 2])


def test_a_workspace_is_xlas() -> None:
    g = weft.Graph(handle=weft.create_handle("cuda"), io_data_type="f32")
    x = g.tensor([512, 512], name="x")
    g.softmax(g.matmul(g.softmax(x, axis=1), x), axis=0, name="y")
    x = jnp.linspace(-1, 1, 512 * 512).reshape(512, 512)
    y = jax.nn.softmax(jax.nn.softmax(x, 1) @ x, 0)
    np.testing.assert_allclose(g(x), y, rtol=1e-2)
