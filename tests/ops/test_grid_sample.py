"""Samples of images at the positions of a grid, affine grids, and their gradients, against NumPy in double
precision; one test compares the oracle itself with PyTorch, and with differences."""

import itertools

import checks
import numpy as np
import pytest
import weft

MODES = {"NEAREST": "nearest", "BILINEAR": "bilinear", "BICUBIC_EXT": "bicubic"}
PADDINGS = {"ZERO_PAD": "zeros", "EDGE_VAL_PAD": "border", "REFLECTION_PAD_EXT": "reflection"}


# ---- The oracle --------------------------------------------------------------------------------------------


def reflect(at, low, span):
    """Mirrors positions at low and low + span; returns them and the sign of their slope."""
    if span == 0:
        return np.zeros_like(at), np.zeros_like(at)
    period = np.mod(at - low, 2 * span)
    return low + np.where(period > span, 2 * span - period, period), np.where(period > span, -1.0, 1.0)


def pad(at, extent, padding, align):
    """Returns padded positions and their derivatives."""
    if padding == "ZERO_PAD":
        return at, np.ones_like(at)
    slope = np.ones_like(at)
    if padding == "REFLECTION_PAD_EXT":
        at, slope = reflect(at, 0 if align else -0.5, extent - 1 if align else extent)
    return np.clip(at, 0, extent - 1), slope * ((at > 0) & (at < extent - 1))


def cubic(distance):
    """Keys' kernel with a = -0.75, and its derivative."""
    a, d = -0.75, np.abs(distance)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1, 3 * (a + 2) * d**2 - 2 * (a + 3) * d
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a, 3 * a * d**2 - 10 * a * d + 8 * a
    return np.where(d <= 1, near[0], far[0]), np.sign(distance) * np.where(d <= 1, near[1], far[1])


def weights(coordinate, extent, mode, padding, align):
    """[.., extent]: what each element along a dimension weighs at each position, and the derivatives by the
    coordinate."""
    half = (extent - 1 if align else extent) / 2
    at = (coordinate + 1) * half - (0 if align else 0.5)
    if mode != "BICUBIC_EXT":
        at, slope = pad(at, extent, padding, align)
    first = np.floor(at)
    if mode == "NEAREST":
        taps = [(np.rint(at), np.ones_like(at), np.zeros_like(at))]
    elif mode == "BILINEAR":
        taps = [(first, 1 - (at - first), -slope), (first + 1, at - first, slope)]
    else:
        taps = [(pad(first + t, extent, padding, align)[0], *cubic(at - first - t)) for t in range(-1, 3)]
    value, derivative = np.zeros((2, *at.shape, extent))
    for index, weight, slope in taps:
        seen = index[..., None] == np.arange(extent)
        value += seen * weight[..., None]
        derivative += seen * slope[..., None] * half
    return value, derivative


def along(x, grid, mode, padding, align):
    """Per spatial dimension of x: the weights of its elements at each position of the grid."""
    rank = x.ndim - 2
    return [weights(grid[..., rank - 1 - d], x.shape[2 + d], mode, padding, align) for d in range(rank)]


def lines(factor):
    """[N, positions, extent]"""
    return factor.reshape(len(factor), int(np.prod(factor.shape[1:-1])), factor.shape[-1])


def product(x, factors):
    """[N, C, positions]: x weighted along all spatial dimensions."""
    equation = "ncyx,nqy,nqx->ncq" if len(factors) == 2 else "nczyx,nqz,nqy,nqx->ncq"
    flat = [lines(factor) for factor in factors]
    return np.einsum(equation, x, *flat, optimize=True)


def sample(x, grid, mode, padding, align):
    x, grid = checks.exact(x), checks.exact(grid)
    values = [value for value, _ in along(x, grid, mode, padding, align)]
    return product(x, values).reshape(*x.shape[:2], *grid.shape[1:-1])


def gradients(dy, x, grid, mode, padding, align):
    dy, x, grid = map(checks.exact, (dy, x, grid))
    rank, both = x.ndim - 2, along(x, grid, mode, padding, align)
    loss = dy.reshape(*dy.shape[:2], int(np.prod(dy.shape[2:])))
    flat = [lines(value) for value, _ in both]
    dx = np.einsum("ncq,nqy,nqx->ncyx" if rank == 2 else "ncq,nqz,nqy,nqx->nczyx", loss, *flat, optimize=True)
    dgrid = np.zeros(grid.shape)
    for d in range(rank):
        factors = [derivative if e == d else value for e, (value, derivative) in enumerate(both)]
        slopes = (loss * product(x, factors)).sum(1)
        dgrid[..., rank - 1 - d] = slopes.reshape(grid.shape[:-1])
    return dx, dgrid


# ---- Cases -------------------------------------------------------------------------------------------------


def positions(shape, x_shape, seed=3, wide=1.4):
    """Positions in and around the image, in float32, none of them near a change of the nearest element or
    of a slope, where rounding would decide."""
    rng = np.random.default_rng([seed, *shape])
    grid = np.empty(shape)
    for d, extent in enumerate(reversed(x_shape[2:])):
        cells = rng.integers(-int(extent * wide), int(extent * wide) + 1, shape[:-1])
        grid[..., d] = (cells + rng.uniform(0.1, 0.4, shape[:-1]) * rng.choice([-1, 1], shape[:-1])) / extent
    return grid.astype(np.float32)


def options(mode="BILINEAR", padding="ZERO_PAD", align=False):
    return {"mode": mode, "padding_mode": padding, "align_corners": align}


def check(
    x_shape, out, dtype="f32", layout="packed", how=None, wide=1.4, grid_type=None, layouts=("packed",)
):
    """Checks forward and both gradients."""
    how = how or options()
    strides = checks.strides_of(x_shape, layout)
    y_shape = (*x_shape[:2], *out)
    x, dy = checks.random(x_shape, dtype, seed=1), checks.random(y_shape, dtype, seed=2)
    grid = checks.narrow(positions((x_shape[0], *out, len(out)), x_shape, wide=wide), grid_type or dtype)
    given = {"x": (x, strides), "grid": grid}
    rule = (how["mode"], how["padding_mode"], how["align_corners"])
    # A coordinate near 1 has 24 bits, of which the number of elements takes some from the weights.
    largest = 4.0 * max(x_shape[2:])
    want = sample(x, grid, *rule)
    checks.check(
        lambda g, x, grid: g.grid_sample(x, grid, **how), given, want, magnitude=largest, layouts=layouts
    )
    given["dy"] = (dy, checks.strides_of(y_shape, layout))
    both = gradients(dy, x, grid, *rule)
    sums = np.abs(np.concatenate([each.ravel() for each in both])).max(initial=0)
    checks.check(
        lambda g, x, grid, dy: g.grid_sample_backward(dy, x, grid, **how),
        given,
        both,
        magnitude=largest * max(float(sums), 16.0),
        layouts=layouts,
    )


RULES = [
    options(mode, padding, align)
    for mode, padding, align in itertools.product(MODES, PADDINGS, (False, True))
]


@pytest.mark.parametrize("how", RULES, ids=lambda how: "-".join(map(str, how.values())))
def test_rules(how):
    check((2, 3, 5, 7), (4, 6), how=how)


@pytest.mark.parametrize(
    "how", [r for r in RULES if r["mode"] != "BICUBIC_EXT"], ids=lambda r: str([*r.values()])
)
def test_rules_in_three_dimensions(how):
    check((2, 2, 3, 4, 5), (3, 2, 4), how=how)


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
@pytest.mark.parametrize("layout", checks.LAYOUTS)
def test_types_and_layouts(dtype, layout):
    check(
        (2, 16, 6, 5),
        (5, 9),
        dtype,
        layout,
        grid_type="f64" if dtype == "f64" else "f32",
        layouts=("packed", "padded"),
    )


@pytest.mark.parametrize("channels", [1, 2, 8, 24, 33, 300])
def test_numbers_of_adjacent_channels(channels):
    check((1, channels, 4, 3), (3, 5), layout="channels_last", how=options(padding="EDGE_VAL_PAD"))


@pytest.mark.parametrize(
    ("x_shape", "out"),
    [((1, 1, 1, 1), (1, 1)), ((3, 1, 1, 9), (70, 3)), ((1, 2, 9, 1), (1, 130)), ((2, 5, 2, 2), (3, 3))],
    ids=str,
)
@pytest.mark.parametrize("align", [False, True])
def test_sizes(x_shape, out, align):
    check(x_shape, out, how=options("BILINEAR", "REFLECTION_PAD_EXT", align))


def test_positions_that_all_read_one_element():
    """The element of an edge is the sum of contributions from everywhere outside."""
    check((1, 2, 3, 3), (40, 30), how=options(padding="EDGE_VAL_PAD"), wide=20)


@pytest.mark.parametrize("shape", [(0, 2, 3, 3), (2, 0, 3, 3)], ids=str)
def test_nothing_to_sample(shape):
    check(shape, (2, 2))


def test_no_positions():
    """dx is 0."""
    x, grid, dy = np.ones((1, 2, 3, 3), "f4"), np.ones((1, 0, 2, 2), "f4"), np.ones((1, 2, 0, 2), "f4")
    checks.check(
        lambda g, x, grid, dy: g.grid_sample_backward(dy, x, grid),
        {"x": x, "grid": grid, "dy": dy},
        (np.zeros(x.shape), np.zeros(grid.shape)),
    )


@pytest.mark.parametrize("kept", [0, 1])
def test_single_gradients(kept):
    x, grid, dy = (
        checks.random((1, 2, 4, 4)),
        positions((1, 3, 3, 2), (1, 2, 4, 4)),
        checks.random((1, 2, 3, 3)),
    )

    def build(g, x, grid, dy):
        results = g.grid_sample_backward(dy, x, grid)
        results[1 - kept].set_output(False)
        return results[kept]

    want = gradients(dy, x, grid, "BILINEAR", "ZERO_PAD", False)[kept]
    checks.check(build, {"x": x, "grid": grid, "dy": dy}, want, magnitude=64)


def test_values_that_are_not_finite_affect_only_their_readers():
    """Infinities of dy and x, and products with 0 outside of the image."""
    x, dy = np.ones((1, 1, 2, 4), "f4"), np.ones((1, 1, 1, 4), "f4")
    x[0, 0, 0, 0] = np.inf
    dy[0, 0, 0] = [np.inf, 1, -np.inf, np.nan]
    # Elements 1, 3 and 2 of the first row, and 3 of the second one.
    grid = np.float32([[[[-0.25, -0.5], [0.75, -0.5], [0.25, -0.5], [0.9, 0.5]]]])
    want = np.zeros((1, 1, 2, 4))
    want[0, 0, 0] = [0, np.inf, -np.inf, 1]
    want[0, 0, 1, 3] = np.nan
    checks.check(
        lambda g, x, grid, dy: (
            g.grid_sample(x, grid, "NEAREST"),
            g.grid_sample_backward(dy, x, grid, "NEAREST")[0],
        ),
        {"x": x, "grid": np.float32(grid), "dy": dy},
        (np.ones((1, 1, 1, 4)), want),
    )


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_coordinates_that_are_not_finite(mode, padding):
    """NaN is the first element; infinities are the ends, or the first element where they are mirrored; with
    zeros outside, all of them are outside."""
    x = np.float32([[[[1, 2, 3]]]])
    grid = np.float32([[[[np.nan, 0], [np.inf, 0], [-np.inf, 0]]]])
    first_last = {"ZERO_PAD": [0, 0, 0], "EDGE_VAL_PAD": [1, 3, 1], "REFLECTION_PAD_EXT": [1, 1, 1]}[padding]
    how = options(mode, padding)
    checks.check(
        lambda g, x, grid: g.grid_sample(x, grid, **how), {"x": x, "grid": grid}, np.float64([[[first_last]]])
    )


def test_the_oracle_is_torch():
    torch = pytest.importorskip("torch")
    for spatial in (2, 3):
        x_shape, out = (2, 3, 4, 5, 6)[: 2 + spatial], (3, 4, 2)[:spatial]
        x, dy = checks.random(x_shape, "f64"), checks.random((*x_shape[:2], *out), "f64", seed=1)
        grid = checks.exact(positions((2, *out, spatial), x_shape))
        for how in RULES:
            if spatial == 3 and how["mode"] == "BICUBIC_EXT":
                continue
            leaves = [torch.tensor(each, requires_grad=True) for each in (x, grid)]
            y = torch.nn.functional.grid_sample(
                *leaves, MODES[how["mode"]], PADDINGS[how["padding_mode"]], how["align_corners"]
            )
            y.backward(torch.tensor(dy))
            rule = tuple(how.values())
            np.testing.assert_allclose(sample(x, grid, *rule), y.detach().numpy(), atol=1e-12)
            for mine, leaf in zip(gradients(dy, x, grid, *rule), leaves, strict=True):
                np.testing.assert_allclose(mine, leaf.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize(
    "how", [r for r in RULES if r["mode"] != "NEAREST"], ids=lambda r: str([*r.values()])
)
def test_gradients_are_differences(how):
    """Central differences of Weft's own results in double."""
    x, grid = checks.random((1, 2, 4, 3), "f64"), checks.exact(positions((1, 2, 3, 2), (1, 2, 4, 3)))
    dy, step = checks.random((1, 2, 2, 3), "f64", seed=4), 1e-6

    def loss(x, grid):
        g = weft.Graph(handle=checks.handle())
        g.grid_sample(x, grid, **how)
        return float((np.asarray(g()) * dy).sum())

    g = weft.Graph(handle=checks.handle())
    g.grid_sample_backward(dy, x, grid, **how)
    for k, got in enumerate(map(np.asarray, g())):
        for at in np.ndindex(got.shape):
            ends = []
            for sign in (1, -1):
                operands = [x.copy(), grid.copy()]
                operands[k][at] += sign * step
                ends.append(loss(*operands))
            assert got[at] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-6)


# ---- Affine grids ------------------------------------------------------------------------------------------


def coordinates(extent, align):
    if align:
        return np.linspace(-1, 1, extent) if extent > 1 else np.zeros(1)
    return (2 * np.arange(extent) + 1) / extent - 1


def base(size, align):
    """[y.., S + 1]: the position of each element, the last dimension first, and 1."""
    axes = np.meshgrid(*(coordinates(extent, align) for extent in size), indexing="ij")
    return np.stack([*reversed(axes), np.ones(size)], -1)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize("size", [(3, 5), (1, 1), (70, 33), (2, 3, 4)], ids=str)
def test_affine_grid(size, dtype, align):
    rank = len(size)
    theta, points = checks.random((3, rank, rank + 1), dtype), base(size, align)
    want = np.einsum("nij,...j->n...i", checks.exact(theta), points)
    checks.check(lambda g, theta: g.affine_grid(theta, size, align), {"theta": theta}, want, magnitude=8)
    loss = checks.random((3, *size, rank), dtype, seed=1)
    letters = "zyx"[:rank]
    want = np.einsum(f"n{letters}i,{letters}j->nij", checks.exact(loss), points)
    checks.check(
        lambda g, loss: g.affine_grid_backward(loss, align),
        {"loss": loss},
        want,
        magnitude=2.0 * np.prod(size),
    )


def test_an_affine_grid_has_the_dims_of_its_result():
    g = weft.Graph(handle=checks.handle())
    g.affine_grid(np.float32([[[1, 0, 0], [0, 1, 0]]])).set_dim([1, 1, 2, 2])
    np.testing.assert_allclose(np.asarray(g()), [[[[-0.5, 0], [0.5, 0]]]])


def test_affine_grid_is_torch():
    torch = pytest.importorskip("torch")
    for size, align in itertools.product(((3, 4), (2, 3, 4)), (False, True)):
        theta = checks.random((2, len(size), len(size) + 1), "f64")
        want = torch.nn.functional.affine_grid(torch.tensor(theta), [2, 1, *size], align)
        made = np.einsum("nij,...j->n...i", theta, base(size, align))
        np.testing.assert_allclose(made, want.numpy(), atol=1e-12)


# ---- Refusals ----------------------------------------------------------------------------------------------


def message(build):
    g = weft.Graph(io_data_type="f32", handle=checks.handle())

    def attempt():
        build(g, g.tensor)
        g.validate()

    with pytest.raises(weft.WeftError) as refused:
        attempt()
    return str(refused.value)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (
            lambda g, t: g.grid_sample(t([2, 3, 4]), t([2, 5, 2])),
            "x has 3 dims [2,3,4], expected 4..5. Reshape it.",
        ),
        (
            lambda g, t: g.grid_sample(t([2, 3, 4, 4]), t([2, 5, 5, 3])),
            "x is [2,3,4,4], grid is [2,5,5,3]. Give it one grid per image, with 2 coordinates for each "
            "position.",
        ),
        (
            lambda g, t: g.grid_sample(t([2, 3, 0, 4]), t([2, 5, 5, 2])),
            "x is [2,3,0,4], without elements to sample. Give it some.",
        ),
        (
            lambda g, t: g.grid_sample(t([2, 3, 4, 4]), t([2, 5, 5, 2]), "MAXPOOL"),
            "mode 3 pools. Use NEAREST, BILINEAR or BICUBIC_EXT.",
        ),
        (
            lambda g, t: g.grid_sample(t([2, 3, 4, 4, 4]), t([2, 5, 5, 5, 3]), "BICUBIC_EXT"),
            "mode BICUBIC_EXT needs 2 spatial dimensions, x is [2,3,4,4,4]. Use BILINEAR.",
        ),
        (
            lambda g, t: g.grid_sample(t([2, 3, 4, 4]), t([2, 5, 5, 2]), padding_mode="NEG_INF_PAD"),
            "padding_mode 1 is not used here. Use ZERO_PAD, EDGE_VAL_PAD or REFLECTION_PAD_EXT.",
        ),
        (
            lambda g, t: g.grid_sample(t([2, 3, 4, 4]).set_data_type("i32"), t([2, 5, 5, 2])),
            "x has data type i32. Use DOUBLE, FLOAT, HALF or BFLOAT16.",
        ),
        (
            lambda g, t: g.affine_grid(t([2, 2, 4]), [2, 2]),
            "theta is [2,2,4], expected [N, 2, 3] or [N, 3, 4]. Reshape it.",
        ),
        (
            lambda g, t: g.affine_grid(t([2, 2, 3])),
            "theta is [2,2,3], of 2 spatial dimensions, and size is unset. Set as many extents, or the dims "
            "of grid.",
        ),
        (
            lambda g, t: g.affine_grid_backward(t([2, 4, 4, 3])),
            "dgrid is [2,4,4,3], its last dimension must be 2: a coordinate per spatial dimension. "
            "Reshape it.",
        ),
    ],
)
def test_refusals(build, sentence):
    assert sentence in message(build)
