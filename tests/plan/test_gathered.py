"""Concatenations that are not stored: consumers read the parts in place, because graph inputs cannot be
written into the result; and concatenations of which only some parts can be written in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import checks
import numpy as np
import pytest
import weft

Array = np.ndarray[Any, Any]


def planned(build: Callable[..., Any], *inputs: Any) -> tuple[list[str], dict[str, list[str]]]:
    """For an H200: families of the steps, and what is read in the place of values, by name. Inputs: dims, or
    dims and strides."""
    g = weft.Graph(
        device="sm_90", io_data_type="bf16", intermediate_data_type="bf16", compute_data_type="f32"
    )
    both = [each if isinstance(each, tuple) else (each, None) for each in inputs]
    tensors = [g.tensor(dims, strides, name=f"x{i}") for i, (dims, strides) in enumerate(both)]
    made = build(g, *tensors)
    for tensor in made if isinstance(made, tuple) else (made,):
        tensor.set_output(True)
    report = g.build().plan.report
    names = {tensor["uid"]: tensor["name"] for tensor in report["tensors"]}
    parts = {t["name"]: [names[uid] for uid in t["parts"]] for t in report["tensors"] if t["parts"]}
    return [step["family"].removeprefix("cuda.") for step in report["steps"]], parts


def image(*dims: int) -> tuple[list[int], Sequence[int]]:
    """Channels last."""
    return list(dims), checks.strides_of(dims, "channels_last")


def product(g: Any, *operands: Any) -> Any:
    return g.matmul(g.concatenate(list(operands[:-1]), 2, name="joined"), operands[-1])


def norm(g: Any, *operands: Any) -> Any:
    return g.relu(g.softmax(g.concatenate(list(operands), 2, name="joined")))


def block(groups: int) -> Callable[..., Any]:
    """Norm and activation, and a convolution, of joined channels."""

    def build(g: Any, a: Any, b: Any, scale: Any, bias: Any, w: Any) -> Any:
        joined = g.concatenate([a, b], 1, name="joined")
        normal = g.groupnorm("INFERENCE", joined, scale, bias, 1e-3, groups=groups)[0]
        return g.relu(normal), g.conv_fprop(joined, w, padding=[w.dims[-1] // 2] * 2)

    return build


# ---- Plans -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("others", [128, 64, 320])
def test_parts_of_channels(others: int, size: int) -> None:
    """As many in each, as at the top of a U-Net, and others."""
    a, b = image(2, 128, 16, 16), image(2, others, 16, 16)
    each, w = image(1, 128 + others, 1, 1), image(64, 128 + others, size, size)
    families, parts = planned(block(32), a, b, each, each, w)
    assert sorted(families) == ["hopper", "rows"]
    assert parts == {"joined::y": ["x0", "x1"]}


def test_three_parts_of_features() -> None:
    each = [1, 512, 128]
    families, parts = planned(product, each, each, each, [1, 384, 256])
    assert (families, parts) == (["hopper"], {"joined::y": ["x0", "x1", "x2"]})
    families, parts = planned(norm, each, each, each)
    assert (families, parts) == (["rows"], {"joined::y": ["x0", "x1", "x2"]})


def test_a_computed_part_is_gathered() -> None:
    """The producer chooses its location; the other part is an input."""

    def build(g: Any, x: Any, w: Any, last: Any) -> Any:
        return product(g, g.matmul(x, w, name="made"), x, last)

    families, parts = planned(build, [1, 512, 128], [1, 128, 128], [1, 256, 64])
    assert (families, parts) == (["hopper"] * 2, {"joined::y": ["made::C", "x0"]})


@pytest.mark.parametrize(
    ("inputs", "families"),
    [
        # gaps between entries, but not between rows
        (
            [[2, 512, 128], ([2, 512, 64], [64 * 1024, 64, 1]), [2, 192, 64]],
            ["move", "hopper"],
        ),
        ([([1, 512, 96], [512 * 96, 96, 1])] * 2 + [[1, 192, 64]], ["move", "hopper"]),  # no whole steps of k
    ],
)
def test_parts_that_are_joined_after_all(inputs: list[Any], families: list[str]) -> None:
    assert planned(product, *inputs) == (families, {})


def test_readers_that_read_no_parts() -> None:
    def build(g: Any, a: Any, b: Any, w: Any) -> Any:
        joined = g.concatenate([a, b], 2)
        return g.matmul(joined, w), g.transpose(joined, [0, 2, 1])

    families, parts = planned(build, [1, 512, 128], [1, 512, 128], [1, 256, 64])
    assert "move" in families
    assert not parts


def test_a_joined_tensor_that_is_asked_for_is_written() -> None:
    def build(g: Any, a: Any, b: Any, w: Any) -> Any:
        joined = g.concatenate([a, b], 2)
        return g.matmul(joined, w), joined

    assert planned(build, [1, 512, 128], [1, 512, 128], [1, 256, 64]) == (["move", "hopper"], {})


def test_only_the_remaining_parts_are_copied() -> None:
    """If the concatenation itself is an output, one part is computed in place."""

    def build(g: Any, x: Any, w: Any) -> Any:
        return g.concatenate([g.matmul(x, w), x], 2)

    g = weft.Graph(device="sm_90", io_data_type="bf16", intermediate_data_type="bf16")
    build(g, g.tensor([1, 512, 128]), g.tensor([1, 128, 64])).set_output(True)
    steps = g.build().plan.report["steps"]
    assert [step["family"] for step in steps] == ["cuda.hopper", "cuda.move"]
    assert steps[1]["detail"].startswith("1 copy")


def test_parts_are_explained() -> None:
    g = weft.Graph(device="sm_90", io_data_type="bf16", intermediate_data_type="bf16")
    a, b = (g.tensor([1, 512, 128], name=name) for name in "ab")
    product(g, a, b, g.tensor([1, 256, 64])).set_output(True)
    assert "  joined::y is read in place from its parts: a, b\n" in g.build().explain()


# ---- Values ------------------------------------------------------------------------------------------------


def check(build: Callable[..., Any], arrays: dict[str, Array], expected: Any, **how: Any) -> None:
    """Images are stored channels last."""
    inputs = {
        name: (a, checks.strides_of(a.shape, "channels_last")) if a.ndim == 4 else a
        for name, a in arrays.items()
    }
    options = {"io_data_type": "bf16", "intermediate_data_type": "bf16", "compute_data_type": "f32"}

    def named(g: Any, **tensors: Any) -> Any:
        return build(g, *tensors.values())

    checks.check(named, inputs, expected, layouts=["packed"], graph=options, **how)


def draw(*shapes: Sequence[int]) -> dict[str, Array]:
    return {f"x{i}": checks.random(tuple(shape), "bf16", seed=i) for i, shape in enumerate(shapes)}


@pytest.mark.parametrize(
    ("groups", "channels", "others", "size"),
    [
        *[(8, 64, 64, 1), (3, 96, 96, 1), (2, 128, 128, 3), (1, 64, 64, 3), (128, 64, 64, 1)],
        *[(8, 128, 64, 3), (6, 64, 128, 1), (5, 64, 96, 3), (192, 128, 64, 1), (1, 64, 24, 1)],
    ],
)
def test_norm_and_convolution_of_joined_channels(groups: int, channels: int, others: int, size: int) -> None:
    """Groups within one part each, groups that span both parts, and single channels."""
    whole = channels + others
    arrays = draw(
        (2, channels, 5, 7), (2, others, 5, 7), (1, whole, 1, 1), (1, whole, 1, 1), (32, whole, size, size)
    )
    a, b, scale, bias, w = (checks.exact(array) for array in arrays.values())
    joined = np.concatenate([a, b], 1)
    grouped = joined.reshape(2, groups, -1)
    mean, variance = grouped.mean(-1, keepdims=True), grouped.var(-1, keepdims=True)
    normal = ((grouped - mean) / np.sqrt(variance + 1e-3)).reshape(joined.shape) * scale + bias
    magnitude = float(whole * size * size)
    expected = [np.maximum(normal, 0), checks.convolved(joined, w)]
    check(
        block(groups),
        arrays,
        expected,
        ulps=2,
        magnitude=magnitude,
        rounded=[2.0**-7 * np.abs(normal) + 2.0**-7, None],
    )


@pytest.mark.parametrize("parts", [[128, 128], [64, 64, 64], [40, 40], [128, 64, 24], [64, 200]])
def test_product_of_joined_features(parts: list[int]) -> None:
    arrays = draw(*([2, 33, part] for part in parts), [2, sum(parts), 48])
    wide = [checks.exact(array) for array in arrays.values()]
    check(product, arrays, np.concatenate(wide[:-1], 2) @ wide[-1], magnitude=float(sum(parts)))


@pytest.mark.parametrize(
    "parts", [[8, 8, 8], [12, 12], [7, 7, 7], [2048, 2048, 2048], [16, 40, 8], [7, 9], [1, 8], [4096, 8]]
)
def test_softmax_of_joined_features(parts: list[int]) -> None:
    arrays = draw(*([2, 9, part] for part in parts))
    wide = np.exp(np.concatenate([checks.exact(array) for array in arrays.values()], 2))
    check(norm, arrays, wide / wide.sum(-1, keepdims=True), ulps=2)


def test_a_factor_with_concatenated_rows_is_gathered() -> None:
    """B [K, N] is contiguous along N, so its parts are separate TMA boxes; A is contiguous along K."""
    arrays = draw([1, 40, 128], [1, 64, 24], [1, 64, 24])
    a, *wide = (checks.exact(array) for array in arrays.values())

    def build(g: Any, a: Any, *parts: Any) -> Any:
        return g.matmul(a, g.concatenate(list(parts), 1))

    check(build, arrays, a @ np.concatenate(wide, 1), magnitude=128)


def test_a_part_lives_as_long_as_it_is_read() -> None:
    """Between its computation and its use, other intermediates are allocated and freed."""
    arrays = draw([1, 40, 64], [1, 64, 64])

    def build(g: Any, x: Any, w: Any) -> Any:
        made = g.matmul(x, w)
        other = g.matmul(g.softmax(g.matmul(g.softmax(g.neg(made)), w)), w)
        return g.softmax(g.concatenate([made, other], 2))

    def rounded(a: Array) -> Array:
        stored: Array = checks.exact(checks.narrow(a, "bf16"))
        return stored

    def softmax(a: Array) -> Array:
        weights = np.exp(a - a.max(-1, keepdims=True))
        return rounded(weights / weights.sum(-1, keepdims=True))

    x, w = (checks.exact(array) for array in arrays.values())
    made = rounded(x @ w)
    other = rounded(softmax(rounded(softmax(-made) @ w)) @ w)
    weights = softmax(np.concatenate([made, other], 2))
    # A step of the scores' last bit changes a weight by as much as they are large.
    check(
        build,
        arrays,
        weights,
        ulps=2.0**-8 * float(np.abs(made).max()) * 2**9,
        magnitude=float(np.abs(made).max()),
    )


@pytest.mark.parametrize("seed", range(16))
def test_random_parts_between_operations(seed: int) -> None:
    """Parts of any length, inputs and results, joined at once or one by one, read by one or several."""
    rng = np.random.default_rng(seed)
    lengths = [int(n) for n in rng.choice([8, 24, 64, 128, 7], int(rng.integers(2, 5)))]
    if rng.integers(2):
        lengths = [lengths[0]] * len(lengths)
    arrays = draw(*([2, 12, n] for n in lengths), [1, sum(lengths), 40])
    made = [bool(rng.integers(3) == 0) for _ in lengths]
    nested, wants = bool(rng.integers(3) == 0), [bool(rng.integers(2)) for _ in range(3)]

    def build(g: Any, *tensors: Any) -> Any:
        *parts, w = tensors
        parts = [g.abs(part) if is_made else part for part, is_made in zip(parts, made, strict=True)]
        joined = g.concatenate(parts[1:], 2) if nested else g.concatenate(parts, 2)
        joined = g.concatenate([parts[0], joined], 2) if nested else joined
        found = [g.softmax(joined), g.matmul(joined, w), g.relu(joined)]
        return tuple(each for each, is_wanted in zip(found, wants, strict=True) if is_wanted) or found[1]

    *parts, w = (checks.exact(array) for array in arrays.values())
    parts = [np.abs(part) if is_made else part for part, is_made in zip(parts, made, strict=True)]
    joined = np.concatenate(parts, 2)
    weights = np.exp(joined) / np.exp(joined).sum(-1, keepdims=True)
    found = [weights, joined @ w, np.maximum(joined, 0)]
    expected = [each for each, is_wanted in zip(found, wants, strict=True) if is_wanted] or [found[1]]
    check(build, arrays, expected, ulps=2, magnitude=float(sum(lengths)))
