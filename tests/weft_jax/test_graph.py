"""weft.jax.graph: Weft graphs as functions of JAX arrays, compared with jax.numpy in double precision."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import weft
import weft.jax as weft_jax
from jax_checks import close, normal


@weft_jax.graph
def scaled(g, x, w, *, factor=2.0):
    return g.relu(g.mul(g.matmul(x, w), factor))


def expected(x, w, factor=2.0):
    return jnp.maximum(x @ w * factor, 0)


def test_jit() -> None:
    x, w = normal(3, 4), normal(4, 5)
    close(scaled(x, w), expected(x, w))
    close(jax.jit(lambda x, w: scaled(x, w, factor=3.0) + 1)(x, w), expected(x, w, 3.0) + 1)


def test_several_results_are_a_tuple() -> None:
    @weft_jax.graph
    def both(g, x):
        return g.exp(x), g.softmax(x)

    x = normal(3, 4)
    made = jax.jit(both)(x)
    assert isinstance(made, tuple)
    close(made, (jnp.exp(x), jax.nn.softmax(x)))


def test_a_graph_that_was_drawn_before() -> None:
    with_memory = weft.Graph("negated")
    with_memory.neg(with_memory.tensor([3, 4], data_type="f64", name="x"))
    run = jax.jit(weft_jax.graph(with_memory))
    close(run(normal(3, 4)), -normal(3, 4))
    with pytest.raises(weft.BadParameterError) as refused:
        run(normal(4, 3))
    assert str(refused.value) == (
        "weft.jax.graph: the arrays for negated do not fit: expected float64[3,4], got float64[4,3]. Pass "
        "such arrays, or wrap the function that builds the graph, which supports all shapes."
    )


def test_consumers_of_a_transpose_are_packed() -> None:
    g = weft.Graph("turned")
    g.neg(g.transpose(g.tensor([3, 4], data_type="f64", name="x"), [1, 0]))
    close(jax.jit(weft_jax.graph(g))(normal(3, 4)), -normal(3, 4).T)


def test_a_graph_of_other_strides_is_refused() -> None:
    g = weft.Graph("turned")
    g.neg(g.tensor([3, 4], stride=[1, 3], data_type="f32", name="x", uid=1))
    with pytest.raises(weft.BadParameterError) as refused:
        weft_jax.graph(g)(jnp.zeros((3, 4), jnp.float32))
    assert "has strides [1, 3], and JAX arrays are packed" in str(refused.value)


def test_a_number_that_is_read_on_the_host() -> None:
    @weft_jax.graph
    def shifted(g, x):
        return g.add(x, g.tensor_scalar(0.25, data_type="f64"))

    close(jax.jit(shifted)(normal(5)), normal(5) + 0.25)


def test_an_array_inside_is_refused() -> None:
    @weft_jax.graph
    def hidden(g, x):
        return g.add(x, np.ones(5))

    with pytest.raises(weft.NotSupportedError, match="is neither an argument nor a number"):
        jax.jit(hidden)(normal(5))


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(weft.BadParameterError, match="returned int among its results"):
        weft_jax.graph(lambda g, x: 3)(normal(5))


def test_vmap_and_scan() -> None:
    x, w = normal(6, 3, 4), normal(4, 4)
    close(jax.vmap(scaled, (0, None))(x, w), jax.vmap(expected, (0, None))(x, w))
    made = jax.lax.scan(lambda c, _: (scaled(c, w, factor=0.5), c.sum()), x[0], None, length=3)
    close(made, jax.lax.scan(lambda c, _: (expected(c, w, 0.5), c.sum()), x[0], None, length=3))


def test_it_has_no_gradient() -> None:
    with pytest.raises(weft.NotSupportedError) as refused:
        jax.grad(lambda x: scaled(x, normal(4, 5)).sum())(normal(3, 4))
    assert str(refused.value).startswith("weft.scaled: a graph has no derivative of its own.")


def test_a_sentence_of_weft() -> None:
    with pytest.raises(weft.BadParameterError, match="matmul 'matmul_0'"):
        jax.jit(scaled)(normal(3, 4), normal(5, 4))


def test_calls_with_arrays_give_arrays() -> None:
    """Without weft.jax: of a graph that is called with JAX's arrays, and with another batch."""
    g = weft.Graph(io_data_type="f32", handle=weft.create_handle("cpu"))
    g.exp(g.tensor([4], name="x"))
    for n in (4, 6):
        x = jax.device_put(jnp.arange(n, dtype=jnp.float32), jax.devices("cpu")[0])
        made = g(x)
        assert isinstance(made, jax.Array)
        close(made, jnp.exp(x))


def test_a_tensor_that_is_returned_twice() -> None:
    @weft_jax.graph
    def repeated(g, x):
        y = g.relu(x)
        return y, y, x, y

    x = normal(3, 4)
    close(jax.jit(repeated)(x), (jnp.maximum(x, 0), jnp.maximum(x, 0), x, jnp.maximum(x, 0)))


def test_arrays_without_dimensions() -> None:
    run = weft_jax.graph(lambda g, x, y: (g.add(x, y), g.mul(x, y)))
    close(run(jnp.float64(2), jnp.float64(3)), (jnp.float64(5), jnp.float64(6)))
    close(run(jnp.float64(2), jnp.ones(1)), (jnp.full(1, 3.0), jnp.full(1, 2.0)))


def test_the_number_of_results_may_depend_on_options() -> None:
    @weft_jax.graph
    def some(g, x, *, is_pair):
        return (g.neg(x), g.abs(x)) if is_pair else g.neg(x)

    x = normal(3)
    for _ in range(2):
        close(some(x, is_pair=True), (-x, jnp.abs(x)))
        close(some(x, is_pair=False), -x)
