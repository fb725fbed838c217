"""Slices, transposes, reshapes and concatenations inside a graph run no kernel if strides can express them:
their results share the memory of inputs, or their inputs are computed where a reader needs them."""

import checks
import numpy as np
import pytest
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


def test_results_of_a_transpose_inherit_its_layout():
    """As images of a norm over their channels do; what leaves the graph is row-major all the same."""
    x = checks.random((2, 5, 7, 3))

    def build(g, x):
        image = g.transpose(g.neg(x), [0, 3, 1, 2])
        return g.reduction(g.relu(image), mode="ADD").set_dim([2, 3, 1, 1]), g.transpose(x, [0, 3, 1, 2])

    shown = checks.exact(x).transpose(0, 3, 1, 2)
    want = [np.maximum(-shown, 0).sum((2, 3), keepdims=True), shown]
    checks.check(build, {"x": x}, want, layouts=["packed"], magnitude=200)
    g = weft.Graph(handle=checks.handle())
    image = g.transpose(g.neg(g.tensor_like(x, name="x")), [0, 3, 1, 2])
    positive, shown = g.relu(image), g.transpose(g.tensor_like(x, name="again"), [0, 3, 1, 2])
    total, end = g.reduction(positive, mode="ADD").set_dim([2, 3, 1, 1]), g.sqrt(positive)
    for each in (total, shown, end):
        each.set_output(True)
    g.validate()
    assert positive.get_stride() == [105, 1, 21, 3]
    assert shown.get_stride() == end.get_stride() == [105, 35, 7, 1]


def test_a_broadcast_has_no_say_in_the_order_of_memory():
    """A broadcast operand accepts any layout: a sum with channels-last images uses theirs."""
    image, few = checks.random((2, 3, 5, 7)), checks.random((2, 3, 1, 1), seed=1)

    def build(g, image, few):
        mean = g.mul(g.identity(few).set_dim([2, 3, 5, 7]), 0.5)
        turned = g.transpose(g.reshape(mean).set_dim([6, 5, 7]), [2, 1, 0])
        return g.add(mean, image), g.sub(turned, g.reshape(g.abs(image)).set_dim([7, 5, 6]))

    exact, wide = checks.exact(image), 0.5 * np.broadcast_to(checks.exact(few), (2, 3, 5, 7))
    want = [wide + exact, wide.reshape(6, 5, 7).transpose(2, 1, 0) - np.abs(exact).reshape(7, 5, 6)]
    checks.check(build, {"image": image, "few": few}, want, magnitude=30)
    g = weft.Graph(handle=checks.handle(), io_data_type="f32")
    x = g.tensor([2, 3, 5, 7], [105, 1, 21, 3], name="image")
    mean = g.mul(g.identity(g.tensor([2, 3, 1, 1], name="few")).set_dim([2, 3, 5, 7]), 0.5)
    first, last = g.add(mean, x), g.add(g.add(x, x), mean)
    turned = g.neg(g.transpose(mean, [0, 2, 3, 1]))
    for each in (g.add(first, last), turned):
        each.set_output(True)
    g.validate()
    assert first.get_stride() == last.get_stride() == [105, 1, 21, 3]
    assert turned.get_stride() == [105, 21, 3, 1]


def test_memory_lives_until_the_view_is_read():
    """Between the view's creation and its use, other intermediates are allocated and freed; none may
    overwrite its memory."""
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


# ---- Every kind of view ------------------------------------------------------------------------------------


def planned(build, *dims, **options):
    """For an H200: families, and the views by their names."""
    g = weft.Graph(device="sm_90", io_data_type="bf16", intermediate_data_type="bf16", **options)
    build(g, *(g.tensor(each, name=f"x{i}") for i, each in enumerate(dims)))
    report = g.build().plan.report
    names = {tensor["uid"]: tensor["name"] for tensor in report["tensors"]}
    views = {
        tensor["name"]: (names[tensor["memory"]], tensor["offset"], tensor["strides"])
        for tensor in report["tensors"]
        if tensor["memory"] != tensor["uid"]
    }
    return [step["family"].removeprefix("cuda.") for step in report["steps"]], views


def test_parts_of_a_product_are_read_in_place():
    def build(g, x, w):
        made = g.matmul(x, w, name="made")
        for i in range(2):
            part = g.slice(made, [slice(0, 1), slice(0, 256), slice(64 * i, 64 * i + 64)], name=f"part{i}")
            g.matmul(x, g.transpose(part, [0, 2, 1], name=f"turned{i}")).set_output(True)

    families, views = planned(build, [1, 256, 64], [1, 64, 128])
    assert families == ["hopper"] * 3
    assert views["part1::y"] == ("made::C", 128, [32768, 128, 1])
    assert views["turned1::y"] == ("made::C", 128, [32768, 1, 128])


def test_a_result_is_stored_in_the_layout_of_its_reader():
    """No strides show [B, H, S, D] as [B, S, H D] unless it is made that way."""

    def build(g, x, w):
        turned = g.transpose(g.matmul(x, w, name="made"), [0, 2, 1, 3], name="turned")
        joined = g.reshape(turned, reshape_mode="LOGICAL", name="joined").set_dim([2, 128, 256])
        g.exp(joined, name="last").set_output(True)

    families, views = planned(build, [2, 4, 128, 64], [2, 4, 64, 64])
    assert families == ["hopper", "map"]
    assert views["made::C"] == ("joined::y", 0, [32768, 64, 256, 1])
    assert views["turned::y"] == ("joined::y", 0, [32768, 256, 64, 1])


def test_parts_of_a_concatenation_are_computed_in_place():
    def build(g, x, w):
        parts = [g.matmul(x, w, name="left"), g.relu(x, name="right")]
        g.concatenate(parts, 2, name="joined").set_output(True)

    families, views = planned(build, [1, 256, 64], [1, 64, 128])
    assert sorted(families) == ["hopper", "map"]
    assert views["left::C"] == ("joined::y", 0, [49152, 192, 1])
    assert views["right::y"] == ("joined::y", 256, [49152, 192, 1])


def test_reshapes_that_are_not_views_are_copied():
    """An input at the position of an output, a reshape across a gap; not a transpose to a wider type."""

    def build(g, x):
        g.transpose(x, [1, 0]).set_output(True)
        wide = g.transpose(x, [1, 0], name="wide").set_data_type("f32")
        g.exp(wide).set_output(True).set_data_type("f32")
        cut = g.slice(x, [slice(0, 64), slice(0, 32)], name="cut")
        g.exp(g.reshape(cut, reshape_mode="LOGICAL").set_dim([32, 64])).set_output(True)

    families, views = planned(build, [64, 64])
    assert len(families) >= 3
    assert "wide::y" in views
    assert not any(name.startswith("transpose") for name in views)


@pytest.mark.parametrize(("start", "copies"), [(8, 0), (3, 1)])
def test_a_copy_is_chosen_when_it_is_cheaper(start, copies):
    """Products need contiguous copies of parts at odd offsets: one shared copy is cheaper. Parts at even
    offsets stay views."""
    g = weft.Graph(device="sm_90", io_data_type="bf16", intermediate_data_type="bf16")
    x = g.tensor([1, 8192, 1024])
    made = g.matmul(x, g.tensor([1, 1024, 3072]))
    part = g.slice(made, [slice(0, 1), slice(0, 8192), slice(start, start + 1024)])
    for _ in range(2):
        g.matmul(part, g.tensor([1, 1024, 1024])).set_output(True)
    even = g.slice(g.exp(x), [slice(0, 1), slice(0, 8192), slice(0, 512)])
    g.matmul(even, g.tensor([1, 512, 64])).set_output(True)
    g.build_operation_graph()
    families = g.support()[0]["families"]
    assert sorted(families) == ["cuda.hopper"] * 4 + ["cuda.map"] + ["cuda.move"] * copies


def test_views_are_explained():
    g = weft.Graph(device="sm_90", io_data_type="bf16", intermediate_data_type="bf16")
    x = g.tensor([64, 128], name="x")
    g.exp(g.slice(x, [slice(0, 64), slice(32, 64)], name="part")).set_output(True)
    assert "  part::y [64,32] is x starting at byte 64, strides [128,1]\n" in g.build().explain()


def _view(g, rng, x, shape):
    """A random view of x, in the graph and of an array."""
    rank = len(shape)
    kind = rng.integers(3)
    if kind == 0:
        order = [int(i) for i in rng.permutation(rank)]
        return g.transpose(x, order), lambda a: a.transpose(order)
    if kind == 1:
        start = [int(rng.integers(0, max(1, n // 3))) for n in shape]
        step = [int(rng.integers(1, 3)) if n > 4 else 1 for n in shape]
        box = tuple(slice(at, n, by) for at, n, by in zip(start, shape, step, strict=True))
        return g.slice(x, list(box)), lambda a: a[box]
    flat = int(np.prod(shape))
    first = next(n for n in (4, 3, 2, 5, 1) if flat % n == 0)
    dims = [first, flat // first] if rng.integers(2) else [flat // first, 1, first]
    return g.reshape(x, reshape_mode="LOGICAL").set_dim(dims), lambda a: a.reshape(dims)


@pytest.mark.parametrize("seed", range(24))
def test_random_views_between_operations(seed):
    """Chains of views, of inputs and of results, whose ends are read, joined and given out."""
    source = checks.random((6, 8, 10), seed=seed)
    other = checks.random((7, 5), seed=seed + 100)

    def run(g, x, y, exact):
        rng = np.random.default_rng(seed)
        tensor, array, outputs, expected = (
            (x, exact, [], []) if rng.integers(2) else (g.neg(x), -exact, [], [])
        )
        for _ in range(int(rng.integers(2, 6))):
            tensor, how = _view(g, rng, tensor, array.shape)
            array = how(array)
            if not rng.integers(3):
                tensor, array = g.abs(tensor), np.abs(array)
            if not rng.integers(4):
                outputs.append(g.mul(tensor, tensor))
                expected.append(array * array)
        flat = g.reshape(tensor, reshape_mode="LOGICAL").set_dim([array.size, 1])
        row = g.slice(g.transpose(y, [1, 0]), [slice(0, 1), slice(1, 7)])
        spread = g.matmul(flat, row)
        wide = array.reshape(-1, 1) @ checks.exact(other).T[:1, 1:7]
        joined = g.concatenate([spread, g.neg(flat), g.slice(spread, [slice(0, array.size), slice(2, 4)])], 1)
        outputs.append(joined)
        expected.append(np.concatenate([wide, -array.reshape(-1, 1), wide[:, 2:4]], 1))
        return outputs, expected

    class Shapes:
        """A graph that only computes the shapes of the arrays."""

        def __getattr__(self, _):
            return lambda *a, **k: self

        def set_dim(self, _):
            return self

    expected = run(Shapes(), None, None, checks.exact(source))[1]
    checks.check(
        lambda g, x, y: tuple(run(g, x, y, checks.exact(source))[0]),
        {"x": source, "y": other},
        expected,
        graph={"intermediate_data_type": "f32"},
        magnitude=16,
    )


@pytest.mark.parametrize("heads", [1, 3])
def test_views_between_softmax_products_and_attention(heads):
    """Parts of one product as heads, and the heads' results side by side again."""
    batch, tokens, width = 2, 6, 24
    x = checks.random((batch, tokens, width))
    w, out = checks.random((1, width, 3 * width), seed=1), checks.random((1, width, width), seed=2)

    def split(g, qkv, i):
        box = [slice(0, batch), slice(0, tokens), slice(i * width, (i + 1) * width)]
        part = g.reshape(g.slice(qkv, box), reshape_mode="LOGICAL")
        return g.transpose(part.set_dim([batch, tokens, heads, width // heads]), [0, 2, 1, 3])

    def build(g, x, w, out):
        qkv = g.matmul(g.softmax(x), w)
        q, k, v = (split(g, qkv, i) for i in range(3))
        o, _ = g.sdpa(q=q, k=k, v=v, attn_scale=0.5, generate_stats=False)
        joined = g.reshape(g.transpose(o, [0, 2, 1, 3]), reshape_mode="LOGICAL").set_dim(
            [batch, tokens, width]
        )
        return g.matmul(joined, out), g.concatenate([joined, x], 2)

    def softmax(a):
        weights = np.exp(a - a.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)

    exact = checks.exact
    qkv = (softmax(exact(x)) @ exact(w)).reshape(batch, tokens, 3, heads, -1)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    joined = (softmax(q @ k.swapaxes(2, 3) * 0.5) @ v).swapaxes(1, 2).reshape(batch, tokens, width)
    checks.check(
        build,
        {"x": x, "w": w, "out": out},
        [joined @ exact(out), np.concatenate([joined, exact(x)], 2)],
        ulps=512,  # of small differences: the reference, too, rounds to FLOAT between operations
    )
