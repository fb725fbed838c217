"""Batch norm in training between convolutions, in one node or in parts: the sums are computed when the
previous convolution stores its result, and the next one normalizes its input, if that costs less. The same
for its gradient, whose sums are computed when the previous data gradient stores its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import checks
import numpy as np
import pytest
import weft

Array = np.ndarray[Any, Any]
EPSILON, MOMENTUM = 1e-3, 0.25


def one_node(g: Any, x: Any, scale: Any, bias: Any, count: float) -> tuple[Any, Any, Any]:
    y, mean, inv, *_ = g.batchnorm(x, scale, bias, epsilon=EPSILON)
    return y, mean, inv


def parts(g: Any, x: Any, scale: Any, bias: Any, count: float) -> tuple[Any, Any, Any]:
    sums = [each.set_data_type("f32") for each in g.genstats(x)]
    s, t, mean, inv, *_ = g.bn_finalize(*sums, scale, bias, EPSILON, count)
    return g.add(g.mul(x, s.set_data_type("f32")), t.set_data_type("f32")), mean, inv


def between(
    norm: Callable[..., Any], g: Any, x: Any, w1: Any, scale: Any, bias: Any, w2: Any
) -> tuple[Any, ...]:
    """Builds convolution, norm, activation, convolution; the values that the gradient reads are outputs."""
    first = g.conv_fprop(x, w1, padding=[w1.dims[-1] // 2] * 2, name="first")
    images, _, *size = x.dims
    y, mean, inv = norm(g, first, scale, bias, float(images * size[0] * size[1]))
    second = g.conv_fprop(g.relu(y), w2, padding=[w2.dims[-1] // 2] * 2, name="second")
    return second, first, mean.set_data_type("f32"), inv.set_data_type("f32")


Kernels = list[tuple[str, list[int]]]


def planned(norm: Callable[..., Any], images: int, channels: int, side: int, **types: Any) -> Kernels:
    """Families and the kinds of their operations, for an H200."""
    options = {"io_data_type": "bf16", "intermediate_data_type": None, "compute_data_type": "f32"} | types
    g = weft.Graph(device="sm_90", **options)

    def image(*dims: int) -> Any:
        return g.tensor(dims, checks.strides_of(dims, "channels_last"))

    scale, bias = (g.tensor([1, channels, 1, 1], data_type="f32") for _ in range(2))
    x, w1 = image(images, 2 * channels, side, side), image(channels, 2 * channels, 1, 1)
    for tensor in between(norm, g, x, w1, scale, bias, image(channels, channels, 3, 3)):
        tensor.set_output(True)
    steps = g.build().plan.report["steps"]
    return [
        (step["family"].removeprefix("cuda."), [operation["kind"] for operation in step["operations"]])
        for step in steps
    ]


@pytest.mark.parametrize("intermediate", [None, "bf16"])
def test_one_node_and_parts_give_the_same_kernels(intermediate: str | None) -> None:
    found = [planned(norm, 32, 64, 56, intermediate_data_type=intermediate) for norm in (one_node, parts)]
    assert found[0] == found[1]
    assert [family for family, _ in found[0]] == ["hopper", "rows", "patch_sm90"]
    assert [len(kinds) for _, kinds in found[0]] == [2, 1, 4]


def behind_convolution(norm: Callable[..., Any], count: float | None = None) -> list[str]:
    """Convolution, norm, residual: channels by themselves are cheaper there."""
    g = weft.Graph(device="sm_90", io_data_type="bf16", compute_data_type="f32")
    images, channels, side = 32, 256, 56

    def image(*dims: int) -> Any:
        return g.tensor(dims, checks.strides_of(dims, "channels_last"))

    scale, bias = (g.tensor([1, channels, 1, 1], data_type="f32") for _ in range(2))
    first = g.conv_fprop(image(images, 64, side, side), image(channels, 64, 1, 1), padding=[0, 0])
    y, *_ = norm(g, first, scale, bias, count or float(images * side * side))
    g.relu(g.add(y, image(images, channels, side, side))).set_output(True)
    first.set_output(True)
    g.build_operation_graph()
    families: list[str] = g.support()[0]["families"]
    return families


def test_parts_are_planned_as_one_where_that_is_cheaper() -> None:
    found = [behind_convolution(norm) for norm in (one_node, parts)]
    assert found[0] == found[1] == ["cuda.hopper", "cuda.channels"]


def test_parts_that_count_other_elements_are_no_norm() -> None:
    """Sums over several devices, for example."""
    assert "cuda.channels" not in behind_convolution(parts, count=7.0)


def test_parts_whose_sums_are_seen_are_no_norm() -> None:
    def seen(g: Any, x: Any, scale: Any, bias: Any, count: float) -> tuple[Any, ...]:
        sums = [each.set_data_type("f32").set_output(True) for each in g.genstats(x)]
        s, t, *_ = g.bn_finalize(*sums, scale, bias, EPSILON, count)
        return (g.add(g.mul(x, s.set_data_type("f32")), t.set_data_type("f32")),)

    assert "cuda.channels" not in behind_convolution(seen)


def test_parts_that_something_needless_reads_are_a_norm_still() -> None:
    def read_in_vain(g: Any, x: Any, scale: Any, bias: Any, count: float) -> tuple[Any, ...]:
        sums = [each.set_data_type("f32") for each in g.genstats(x)]
        s, t, *_ = g.bn_finalize(*sums, scale, bias, EPSILON, count)
        scaled = g.mul(x, s.set_data_type("f32"))
        g.relu(scaled)
        g.exp(sums[0])
        return (g.add(scaled, t.set_data_type("f32")),)

    assert behind_convolution(read_in_vain) == ["cuda.hopper", "cuda.channels"]


def test_floats_stay_whole() -> None:
    """The variance of data with more than 16 bits cannot be computed as a difference of squares in float."""
    families = [family for family, _ in planned(one_node, 32, 64, 56, io_data_type="f32")]
    assert families[1] == "channels"


def test_a_single_norm_is_not_split() -> None:
    g = weft.Graph(device="sm_90", io_data_type="bf16", compute_data_type="f32")
    dims, each = (32, 64, 56, 56), [1, 64, 1, 1]
    x = g.tensor(dims, checks.strides_of(dims, "channels_last"))
    scale, bias = (g.tensor(each, data_type="f32") for _ in range(2))
    g.relu(g.batchnorm(x, scale, bias, epsilon=EPSILON)[0]).set_output(True)
    g.build_operation_graph()
    assert g.support()[0]["families"] == ["cuda.channels"]


# ---- Values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [one_node, parts])
@pytest.mark.parametrize(("images", "channels", "side"), [(2, 32, 8), (3, 64, 7)])
def test_batch_norm_between_convolutions(
    norm: Callable[..., Any], images: int, channels: int, side: int
) -> None:
    shapes = [(images, 2 * channels, side, side), (channels, 2 * channels, 1, 1), (channels, channels, 3, 3)]
    x, w1, w2 = (checks.random(shape, "bf16", seed=i) for i, shape in enumerate(shapes))
    scale, bias = (checks.random((1, channels, 1, 1), seed=i) for i in (3, 4))
    first = checks.exact(checks.narrow(checks.convolved(checks.exact(x), checks.exact(w1)), "bf16"))
    mean = first.mean((0, 2, 3), keepdims=True)
    inv = 1 / np.sqrt(first.var((0, 2, 3), keepdims=True) + EPSILON)
    y = np.maximum((first - mean) * inv * checks.exact(scale) + checks.exact(bias), 0)
    second = checks.convolved(y, checks.exact(w2))
    arrays = {"x": x, "w1": w1, "scale": scale, "bias": bias, "w2": w2}
    # A bit of the first convolution's result moves y by as much as a rounding of it does.
    rounding = 2.0**-7 * checks.convolved(
        y + np.abs(first * inv * checks.exact(scale)), np.abs(checks.exact(w2))
    )
    checks.check(
        lambda g, **tensors: between(norm, g, *tensors.values()),
        {
            name: (a, checks.strides_of(a.shape, "channels_last")) if min(a.shape[:2]) > 1 else a
            for name, a in arrays.items()
        },
        [second, first, mean, inv],
        layouts=["packed"],
        graph={"io_data_type": "bf16", "compute_data_type": "f32"},
        magnitude=float(max(np.abs(first).max(), 2 * channels, inv.max())),
        rounded=[rounding, None, None, None],
    )


def test_running_statistics() -> None:
    """The step that completes the sums updates them."""
    images, channels, side = 2, 32, 8
    dims, each = (images, channels, side, side), (1, channels, 1, 1)
    x, w = checks.random(dims, "bf16"), checks.random((channels, channels, 3, 3), "bf16", seed=1)
    mean, variance = checks.random(each, seed=2), np.abs(checks.random(each, seed=3))
    first = checks.exact(checks.narrow(checks.convolved(checks.exact(x), checks.exact(w)), "bf16"))
    new_mean = (1 - MOMENTUM) * checks.exact(mean) + MOMENTUM * first.mean((0, 2, 3), keepdims=True)
    unbiased = first.var((0, 2, 3), keepdims=True, ddof=1)
    new_variance = (1 - MOMENTUM) * checks.exact(variance) + MOMENTUM * unbiased

    def build(g: Any, x: Any, w: Any, mean: Any, variance: Any) -> tuple[Any, ...]:
        first = g.conv_fprop(x, w, padding=[1, 1])
        made = g.batchnorm(first, None, None, mean, variance, EPSILON, MOMENTUM)
        return first, made[3].set_data_type("f32"), made[4].set_data_type("f32"), g.relu(made[0])

    checks.check(
        build,
        {
            "x": (x, checks.strides_of(dims, "channels_last")),
            "w": (w, checks.strides_of(w.shape, "channels_last")),
            "mean": mean,
            "variance": variance,
        },
        [first, new_mean, new_variance, None],
        layouts=["packed"],
        graph={"io_data_type": "bf16", "compute_data_type": "f32"},
        magnitude=9.0 * channels,
    )


@pytest.mark.parametrize("far", [100, 1000])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_statistics_far_from_zero(dtype: str, far: int) -> None:
    """Means of many deviations: a filter that is the identity says what is normalised. Squares of bf16 are
    exact in float, and so are sums of some; sums of f16's are rounded, and tiles' errors cancel. Results are
    no further off than PyTorch's in the same type."""
    torch = pytest.importorskip("torch")
    images, channels, side = 4, 32, 32
    numbers = np.random.default_rng(far).standard_normal((images, channels, side, side)) + far
    x = checks.narrow(numbers, dtype)
    w = checks.narrow(np.eye(channels).reshape(channels, channels, 1, 1), dtype)
    wide, over = checks.exact(x), {"axis": (0, 2, 3), "keepdims": True}
    inv = 1 / np.sqrt(wide.var(**over) + EPSILON)
    expected = (wide - wide.mean(**over)) * inv

    def build(g: Any, x: Any, w: Any) -> tuple[Any, ...]:
        y, _, inv, *_ = g.batchnorm(g.conv_fprop(x, w, padding=[0, 0]), None, None, epsilon=EPSILON)
        return y.set_data_type("f32"), inv.set_data_type("f32")

    arrays = {name: (a, checks.strides_of(a.shape, "channels_last")) for name, a in {"x": x, "w": w}.items()}
    graph = {"io_data_type": dtype, "compute_data_type": "f32"}
    found = checks.check(build, arrays, [None, None], layouts=["packed"], graph=graph)
    given = torch.tensor(wide, dtype=torch.bfloat16 if dtype == "bf16" else torch.float16)
    theirs = torch.native_batch_norm(given, None, None, None, None, True, 0.1, EPSILON)[0].double().numpy()
    variance = 1e-5 + (far * far * 2.0**-27 if dtype == "f16" else 0)
    for engine, (got, got_inv) in found.items():
        assert np.abs(checks.exact(got_inv) / inv - 1).max() < variance, engine
        off = np.abs(checks.exact(got) - expected).max()
        assert off < 6 * variance + far * 2.0**-22, engine
        assert off <= np.abs(theirs - expected).max(), engine


# ---- Gradients ---------------------------------------------------------------------------------------------


def gradient(g: Any, dy: Any, x: Any, scale: Any, mean: Any, inv: Any) -> tuple[Any, ...]:
    made: tuple[Any, ...] = g.batchnorm_backward(dy, x, scale, mean, inv)
    return made


def gradient_in_parts(g: Any, dy: Any, x: Any, scale: Any, mean: Any, inv: Any) -> tuple[Any, ...]:
    dscale, dbias, *factors = g.dbn_weight(dy, x, mean, inv, scale)
    of_dy, of_x, rest = (each.set_data_type("f32") for each in factors)
    return g.add(g.mul(dy, of_dy), g.add(g.mul(x, of_x), rest)), dscale, dbias


def behind_a_data_gradient(norm: Callable[..., Any], kind: str, g: Any, **t: Any) -> tuple[Any, ...]:
    """relu: by its result, which is in memory; again: by the norm's result, recomputed from x; residual: by
    relu's result, with an addend, and read by other nodes."""
    dims, strides = (list(each) for each in (t["x"].dims, t["x"].strides))
    padding = [t["w"].dims[-1] // 2] * 2
    made = g.conv_dgrad(t["dc"], t["w"], padding=padding).set_dim(dims).set_stride(strides)
    if kind == "residual":
        made = g.add(made, t["skip"])
    if kind == "again":
        made = g.relu_backward(made, g.add(g.mul(t["x"], t["scale"]), t["mean"]))
    elif kind != "plain":
        made = g.relu_backward(made, t["y"])
    found = norm(g, made, *(t[name] for name in ("x", "scale", "mean", "inv")))
    dx, dscale, dbias = found
    results = dx, dscale.set_data_type("f32"), dbias.set_data_type("f32")
    return (*results, made) if kind == "residual" else results


@pytest.mark.parametrize(("channels", "tile"), [(64, 64), (96, 128), (144, 64), (256, 128)])
def test_gradients_beyond_the_cache_read_whole_lines(channels: int, tile: int) -> None:
    g = weft.Graph(device="sm_90", io_data_type="bf16", compute_data_type="f32")
    dims = (128, channels, 56, 56)
    dy, x = (g.tensor(dims, checks.strides_of(dims, "channels_last")) for _ in range(2))
    each = [g.tensor([1, channels, 1, 1], data_type="f32") for _ in range(3)]
    for result in g.batchnorm_backward(dy, x, *each):
        result.set_output(True)
    (step,) = g.build().plan.report["steps"]
    assert step["detail"].startswith(f"tiles of {tile} channels")


def operands_of(images: int, filters: int, channels: int, side: int, size: int) -> dict[str, tuple[int, ...]]:
    image, each = (images, channels, side, side), (1, channels, 1, 1)
    return {
        "dc": (images, filters, side, side),
        "w": (filters, channels, size, size),
        **dict.fromkeys(("x", "y", "skip"), image),
        **dict.fromkeys(("scale", "mean", "inv"), each),
    }


def planned_gradient(norm: Callable[..., Any], kind: str, *sizes: int, **types: Any) -> Kernels:
    g = weft.Graph(device="sm_90", **({"io_data_type": "bf16", "compute_data_type": "f32"} | types))
    tensors = {
        name: g.tensor(
            dims, checks.strides_of(dims, "channels_last"), data_type="f32" if dims[0] == 1 else None
        )
        for name, dims in operands_of(*sizes).items()
    }
    for tensor in behind_a_data_gradient(norm, kind, g, **tensors):
        tensor.set_output(True)
    return [
        (step["family"].removeprefix("cuda."), [operation["kind"] for operation in step["operations"]])
        for step in g.build().plan.report["steps"]
    ]


@pytest.mark.parametrize(
    ("kind", "sizes", "families"),
    [
        ("relu", (4, 64, 64, 56, 1), ["hopper", "map"]),
        ("plain", (32, 64, 128, 28, 3), ["patch_sm90", "map"]),
        ("again", (32, 64, 64, 56, 3), ["patch_sm90", "map"]),
        ("again", (128, 64, 64, 56, 3), ["patch_sm90", "map"]),
        ("residual", (128, 64, 256, 56, 1), ["hopper", "map"]),
    ],
)
def test_gradient_sums_in_the_epilogue(kind: str, sizes: tuple[int, ...], families: list[str]) -> None:
    found = [planned_gradient(norm, kind, *sizes) for norm in (gradient, gradient_in_parts)]
    assert [family for family, _ in found[0]] == families
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("kind", "sizes", "types"),
    [
        ("relu", (32, 64, 64, 56, 3), {}),  # two tensors after an im2col product exceed the limit
        ("residual", (32, 64, 256, 56, 1), {}),  # reads more in addition to the product than the sums alone
        ("relu", (32, 256, 64, 56, 1), {}),  # fits on chip, and a launch is as much as reading it again
        ("relu", (128, 256, 64, 56, 1), {"io_data_type": "f32"}),
    ],
)
def test_a_gradient_stays_whole(kind: str, sizes: tuple[int, ...], types: dict[str, str]) -> None:
    found = [planned_gradient(norm, kind, *sizes, **types) for norm in (gradient, gradient_in_parts)]
    assert found[0] == found[1]
    assert found[0][-1][0] == "channels"


def whole_numbers(dims: tuple[int, ...], seed: int, dtype: str) -> Array:
    """Sums of their products are exact in 16 bits, too, so that what differs is wrong."""
    numbers = np.random.default_rng(seed).integers(-1, 2, dims).astype(np.float64)
    made: Array = checks.narrow(numbers, dtype)
    return made


@pytest.mark.parametrize(
    ("kind", "size", "norm"),
    [
        ("plain", 1, gradient),
        ("relu", 1, gradient),
        ("again", 3, gradient),
        ("again", 1, gradient_in_parts),
        ("residual", 1, gradient),
    ],
)
def test_gradient_of_batch_norm_after_a_data_gradient(norm: Callable[..., Any], kind: str, size: int) -> None:
    dims = operands_of(4, 16, 64, 32, size)
    unread = {"relu": ["skip"], "residual": []}.get(kind, ["y", "skip"])
    arrays = {
        name: whole_numbers(dims[name], i, "f32" if dims[name][0] == 1 else "bf16")
        for i, name in enumerate(dims)
        if name not in unread
    }
    arrays["inv"] = np.full_like(arrays["inv"], 0.5)
    t = {name: checks.exact(a) for name, a in arrays.items()}
    d = checks.convolved(t["dc"], np.flip(t["w"], (2, 3)).swapaxes(0, 1))
    if kind == "residual":
        d = d + t["skip"]
    if kind == "again":
        d = d * (t["x"] * t["scale"] + t["mean"] > 0)
    elif kind != "plain":
        d = d * (t["y"] > 0)
    hat, over = (t["x"] - t["mean"]) * 0.5, {"axis": (0, 2, 3), "keepdims": True}
    means = d.mean(**over) + hat * (d * hat).mean(**over)
    expected = [t["scale"] * 0.5 * (d - means), (d * hat).sum(**over), d.sum(**over)]
    checks.check(
        lambda g, **tensors: behind_a_data_gradient(norm, kind, g, **tensors),
        {name: (a, checks.strides_of(a.shape, "channels_last")) for name, a in arrays.items()},
        [*expected, d] if kind == "residual" else expected,
        layouts=["packed"],
        graph={"io_data_type": "bf16", "compute_data_type": "f32"},
        magnitude=float(np.abs(d).max()),
    )


# ---- In use ------------------------------------------------------------------------------------------------


def in_use(g: Any, x: Any, w: Any, scale: Any, bias: Any, mean: Any, spread: Any, is_running: bool) -> Any:
    """Convolution, norm by given statistics, residual, activation. spread: variance or its inverse root."""
    y = g.conv_fprop(x, w, padding=[1, 1])
    if is_running:
        y = g.batchnorm_inference(
            y, scale=scale, bias=bias, in_running_mean=mean, in_running_var=spread, epsilon=EPSILON
        )
    else:
        y = g.batchnorm_inference(y, mean, spread, scale, bias)
    return g.relu(g.add(y, x))


@pytest.mark.parametrize(("is_running", "others"), [(False, []), (True, ["cuda.map"])])
def test_a_norm_in_use_is_no_step(is_running: bool, others: list[str]) -> None:
    g = weft.Graph(device="sm_90", io_data_type="bf16", compute_data_type="f32")
    x, w = (
        g.tensor(dims, checks.strides_of(dims, "channels_last"))
        for dims in ((32, 64, 56, 56), (64, 64, 3, 3))
    )
    each = [g.tensor([1, 64, 1, 1], data_type="f32") for _ in range(4)]
    in_use(g, x, w, *each, is_running).set_output(True)
    g.build_operation_graph()
    assert g.support()[0]["families"] == [*others, "cuda.patch_sm90"]


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_an_inference_norm_after_a_convolution(dtype: str, is_running: bool) -> None:
    dims, each = (2, 32, 8, 8), (1, 32, 1, 1)
    x, w = checks.random(dims, dtype), checks.random((32, 32, 3, 3), dtype, seed=1)
    scale, bias, mean = (checks.random(each, seed=i) for i in (2, 3, 4))
    spread = checks.random(each, low=0.5, high=2, seed=5)
    by = 1 / np.sqrt(checks.exact(spread) + EPSILON) if is_running else checks.exact(spread)
    y = (checks.convolved(checks.exact(x), checks.exact(w)) - checks.exact(mean)) * by
    wanted = np.maximum(y * checks.exact(scale) + checks.exact(bias) + checks.exact(x), 0)
    named = {"x": x, "w": w, "scale": scale, "bias": bias, "mean": mean, "spread": spread}
    checks.check(
        lambda g, **t: in_use(g, *t.values(), is_running),
        {n: (a, checks.strides_of(a.shape, "channels_last")) if n in "xw" else a for n, a in named.items()},
        wanted,
        layouts=["packed"],
        out="bf16",  # what is rounded before depends on the engine
        graph={"io_data_type": dtype, "compute_data_type": "f32"},
        magnitude=2 * 9.0 * 32,
    )
