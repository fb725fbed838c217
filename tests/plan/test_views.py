"""A reshape inside a graph runs nothing: its result is the memory of its input."""

import checks
import numpy as np
import weft


def families(g):
    return [step["family"] for step in g.plan.report["steps"]]


def test_chain_of_views_between_steps():
    x, w = checks.random((4, 6)), checks.random((8, 3), seed=1)

    def build(g, x, w):
        flat = g.reshape(g.reshape(g.neg(x)).set_dim([24])).set_dim([3, 8])
        return g.matmul(flat, w), g.abs(flat)

    wide = -checks.exact(x).reshape(3, 8)
    checks.check(
        build, {"x": x, "w": w}, [wide @ checks.exact(w), np.abs(wide)], layouts=["packed"], magnitude=30
    )
    g = weft.Graph(handle=checks.handle())
    build(g, g.tensor_like(x, name="x"), g.tensor_like(w, name="w"))
    g.build()
    assert len(families(g)) == 3  # neg, matmul, abs


def test_view_of_an_input_with_other_strides():
    x = checks.random((5, 7))
    g = weft.Graph(handle=checks.handle())
    turned = g.reshape(g.tensor_like(x, name="x")).set_dim([7, 5]).set_stride([1, 7])
    g.exp(turned).set_output(True)
    g.build()
    assert len(families(g)) == 1
    if checks.DEVICE == "cpu":
        np.testing.assert_allclose(g.plan(x=x), np.exp(x.T), rtol=1e-6)


def test_an_output_is_copied():
    x = checks.random((4, 6))
    want = checks.exact(x).ravel()
    checks.check(lambda g, x: g.reshape(x).set_dim([24]), {"x": x}, want, layouts=["packed"])


def test_memory_lives_until_the_view_is_read():
    """Between the view's making and its reading other intermediates come and go; none may take its place."""
    x = checks.random((64, 8))

    def build(g, x):
        kept = g.reshape(g.neg(x)).set_dim([8, 64])
        other = x
        for _ in range(4):
            other = g.matmul(other, g.transpose(other, [1, 0]))
            other = g.matmul(other, x)
            other = g.mul(other, g.rsqrt(g.add_square(g.abs(other), other)))
        return g.add(g.matmul(kept, other), g.matmul(kept, x))

    def oracle(x):
        kept, other = -x.reshape(8, 64), x
        for _ in range(4):
            other = other @ other.T @ x
            other = other / np.sqrt(np.abs(other) + other**2)
        return kept @ other + kept @ x

    graph = {"compute_data_type": "f64", "intermediate_data_type": "f64"}
    checks.check(
        build, {"x": x}, oracle(checks.exact(x)), layouts=["packed"], graph=graph, out="f32", magnitude=300
    )
