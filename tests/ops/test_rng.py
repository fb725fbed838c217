"""rng against a NumPy Philox-4x32-10, number by number, and against the properties of the distributions."""

import checks
import numpy as np
import pytest
import weft
from random_words import blocks, flat, philox, units


def normals(shape, **which):
    words = blocks(shape, **which).astype(np.float64)
    radius = np.sqrt(-2 * np.log((words[..., ::2] + 1) / 2**32))
    angle = 2 * np.pi * np.floor(words[..., 1::2] / 256) / 2**24
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1)
    return flat(pairs.reshape(words.shape), shape)


def draw(shape, seed=0, offset=None, **options):
    def build(g, **tensors):
        y = g.rng(tensors.get("seed", seed), tensors.get("offset", offset), name="r", **options)
        return y.set_dim(shape)

    return build


def test_the_oracle_matches_published_values():
    zero = philox(np.zeros(4, np.uint64), (0, 0))
    assert [f"{word:08x}" for word in zero] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    pi = np.array([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], np.uint64)
    words = philox(pi, (0xA4093822, 0x299F31D0))
    assert [f"{word:08x}" for word in words] == ["d16cfe09", "94fdcceb", "5001e420", "24126ea1"]


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 4), (5, 9), (2, 3, 5, 6), (3, 0), (65, 130)])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_uniform(shape, dtype):
    uniform = draw(shape, distribution="UNIFORM", uniform_minimum=-1, uniform_maximum=3)
    checks.check(uniform, {}, -1 + 4 * units(shape), out=dtype, layouts=checks.LAYOUTS)


@pytest.mark.parametrize("probability", [0, 0.1, 0.5, 0.75, 1])
def test_bernoulli(probability):
    shape = (13, 37)
    want = units(shape) < probability
    for dtype in ("f32", "bool8", "u8", "i32"):
        bernoulli = draw(shape, bernoulli_probability=probability)
        checks.check(bernoulli, {}, want, out=dtype)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_normal(dtype):
    shape = (9, 14)
    normal = draw(shape, distribution="NORMAL", normal_mean=2, normal_standard_deviation=3)
    checks.check(normal, {}, 2 + 3 * normals(shape), out=dtype, ulps=2, layouts=checks.LAYOUTS)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF])
def test_seeds_and_offsets(seed):
    shape, wrapped = (3, 6), seed % 2**64
    checks.check(draw(shape, seed, distribution="UNIFORM"), {}, units(shape, seed=wrapped))
    tensors = {"seed": np.array([[seed]], np.int64), "offset": np.array([[seed]], np.int64)}
    want = units(shape, seed=wrapped, offset=wrapped)
    checks.check(draw(shape, distribution="UNIFORM"), tensors, want, layouts=["packed"])
    narrow = {"offset": np.array([-5], np.int32)}
    want = units(shape, offset=2**64 - 5)
    checks.check(draw(shape, distribution="UNIFORM"), narrow, want, layouts=["packed"])


@pytest.mark.parametrize("seed", [7, "tensor"])
def test_saved_plans(seed):
    """A seed may be a number or a tensor; a saved plan contains the one that was given."""
    g = weft.Graph(io_data_type="f32")
    given = {"seed": 7} if seed == "tensor" else {}
    s = g.tensor([1], data_type="i64", is_pass_by_value=True, name="seed") if given else seed
    g.rng(s, distribution="UNIFORM", name="r").set_dim([3, 6]).set_output(True)
    loaded = weft.Graph().deserialize(g.build().plan.handle, g.serialize())
    np.testing.assert_allclose(loaded.plan(**given), units((3, 6), seed=7), atol=1e-7)


def test_offset_on_the_host():
    want = units((3, 6), offset=7)
    checks.check(draw((3, 6), distribution="UNIFORM"), {}, want, scalars={"offset": (7, "i64")})


def test_defaults_are_a_fair_coin_in_float():
    found = checks.check(draw((3, 6)), {}, units((3, 6)) < 0.5)
    assert all(y.dtype == np.float32 for (y,) in found.values())


def test_statistics():
    def sample(**options):
        found = checks.check(draw((400, 250), 3, **options), {}, [None], layouts=["packed"])
        return checks.exact(checks.first(found)[0])

    uniform = sample(distribution="UNIFORM")
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.005
    normal = sample(distribution="NORMAL")
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02
    assert abs((np.abs(normal) > 1.96).mean() - 0.05) < 0.005
    assert abs(sample(bernoulli_probability=0.3).mean() - 0.3) < 0.01
    neighbours = np.corrcoef(normal[:, :-1].ravel(), normal[:, 1:].ravel())[0, 1]
    assert abs(neighbours) < 0.02


def test_refusals():
    def refuse(build, sentence, **inputs):
        checks.refuses(build, inputs, sentence)

    refuse(
        lambda g: g.rng(name="r"), "rng 'r': y has no dims, and no input to infer them from. Set y's dims."
    )
    refuse(
        draw([3], bernoulli_probability=1.5),
        "random distribution: bernoulli_probability is 1.5. Give one in 0..1.",
    )
    refuse(
        draw([3], distribution="UNIFORM", uniform_minimum=2),
        "random distribution: uniform_minimum is 2 and uniform_maximum 1. Give finite ends, "
        "the smaller one as minimum.",
    )
    refuse(
        draw([3], distribution="NORMAL", normal_standard_deviation=-1),
        "random distribution: normal_standard_deviation is -1. Give one of 0 or more.",
    )
    refuse(
        draw([3]),
        "rng 'r': seed has data type f32. Use INT32 or INT64.",
        seed=([1], "f32"),
    )
    refuse(draw([3]), "rng 'r': offset is a scalar, its dims are [2]. Use all ones.", offset=([2], "i64"))


def test_a_seed_as_a_number_and_as_a_tensor_agree():
    g = weft.Graph()
    numbers = [g.rng(5, distribution="UNIFORM"), g.rng(np.array([5]), distribution="UNIFORM")]
    for y in numbers:
        y.set_dim([4, 5])
    first, second = g()
    assert (first == second).all()
