"""Causal convolutions of sequences and their gradients against NumPy in double precision."""

import checks
import numpy as np
import pytest
import weft


def sums(x, weight, bias):
    """bias + sum over k of weight[:, k] * x[.., l - K + 1 + k]."""
    steps, taps = x.shape[2], weight.shape[1]
    padded = np.pad(x, ((0, 0), (0, 0), (taps - 1, 0)))
    made = sum(weight[None, :, k, None] * padded[:, :, k : k + steps] for k in range(taps))
    return made + bias[None, :, None]


def logistic(s):
    return 1 / (1 + np.exp(-s))


def forward(x, weight, bias, silu):
    s = sums(*map(checks.exact, (x, weight, bias)))
    return s * logistic(s) if silu else s


def gradients(dy, x, weight, bias, silu):
    dy, x, weight, bias = map(checks.exact, (dy, x, weight, bias))
    s = sums(x, weight, bias)
    ds = dy * (logistic(s) + s * logistic(s) * logistic(-s)) if silu else dy
    steps, taps = x.shape[2], weight.shape[1]
    later = np.pad(ds, ((0, 0), (0, 0), (0, taps - 1)))
    padded = np.pad(x, ((0, 0), (0, 0), (taps - 1, 0)))
    dx = sum(weight[None, :, k, None] * later[:, :, taps - 1 - k :][:, :, :steps] for k in range(taps))
    dweight = np.stack([(ds * padded[:, :, k : k + steps]).sum((0, 2)) for k in range(taps)], axis=1)
    return dx, dweight.reshape(weight.shape), ds.sum((0, 2))


def operands(batch, channels, steps, taps, dtype="f32", layout="packed", wide=None):
    """dy, x, weight and bias."""
    shape = (batch, channels, steps)
    strides = checks.strides_of(shape, layout)
    x, dy = checks.random(shape, dtype, seed=1), checks.random(shape, dtype, seed=2)
    weight = checks.random((channels, taps), wide or dtype, -1, 1, seed=3)
    bias = checks.random((channels,), wide or dtype, seed=4)
    return {"dy": (dy, strides), "x": (x, strides), "w": weight, "b": bias}


def arrays(given):
    return [value[0] if isinstance(value, tuple) else value for value in given.values()]


def check_forward(given, silu=True, **options):
    given = {name: value for name, value in given.items() if name != "dy"}
    taps = given["w"].shape[1]
    activation = "SWISH_FWD" if silu else "IDENTITY"
    checks.check(
        lambda g, x, w, b: g.causal_conv1d(x, w, b, activation=activation),
        given,
        forward(*arrays(given), silu),
        magnitude=2.0 * taps + 2,
        **options,
    )


def check_backward(given, silu=True, **options):
    taps = given["w"].shape[1]
    activation = "SWISH_FWD" if silu else "IDENTITY"
    checks.check(
        lambda g, dy, x, w, b: g.causal_conv1d_backward(dy, x, w, b, activation=activation),
        given,
        gradients(*arrays(given), silu),
        magnitude=2.2 * taps + 16,
        **options,
    )


# Batch, channels, steps, taps: sequences shorter than filters, odd ones, those that fill no strip, and
# filters of more taps than registers hold.
SIZES = [(1, 1, 1, 1), (2, 3, 5, 4), (2, 5, 2, 4), (1, 70, 33, 2), (2, 40, 64, 3), (1, 8, 40, 16)]
SIZES += [(1, 3, 50, 19)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("layout", ["packed", "channels_last"])
def test_sizes_and_layouts(size, layout):
    given = operands(*size, layout=layout)
    check_forward(given)
    check_backward(given)


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
@pytest.mark.parametrize("layout", checks.LAYOUTS)
def test_types(dtype, layout):
    given = operands(2, 24, 40, 4, dtype, layout)
    check_forward(given)
    check_backward(given)


@pytest.mark.parametrize("layout", ["packed", "channels_last"])
def test_without_activation_and_wide_filters(layout):
    given = operands(2, 16, 48, 4, "bf16", layout, wide="f32")
    check_forward(given, silu=False)
    check_backward(given, silu=False)


@pytest.mark.parametrize(
    ("size", "layout"),
    [((5, 2, 900, 4), "packed"), ((1, 2, 8500, 3), "packed"), ((2, 70, 300, 4), "channels_last")],
    ids=str,
)
def test_more_than_one_tile(size, layout):
    """More strips than a block has threads, and than a buffer of the CPU holds."""
    given = operands(*size, "bf16", layout)
    check_forward(given)
    check_backward(given)


@pytest.mark.parametrize("layout", ["packed", "channels_last"])
def test_non_finite_values_affect_only_their_readers(layout):
    """Non-finite values affect one sequence: adjacent sequences in memory, and earlier steps, do not see
    them. Filters of 19 taps are processed in chunks, whose first taps are padding."""
    for taps in (4, 19):
        x, dy, weight, bias = (
            checks.random(s, seed=i) for i, s in enumerate([(2, 3, 45)] * 2 + [(3, taps), (3,)])
        )
        x[0, 1, 20], x[1, 2, 44], dy[1, 0, 5] = np.nan, np.inf, -np.inf
        strides = checks.strides_of(x.shape, layout)
        given = {"dy": (dy, strides), "x": (x, strides), "w": weight, "b": bias}
        with np.errstate(invalid="ignore"):
            check_forward(given, silu=False)
            check_backward(given, silu=False)


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 3, 0), (2, 0, 5)], ids=str)
def test_nothing(shape):
    given = operands(*shape, 4)
    check_forward(given)
    check_backward(given)


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_one_gradient(wanted):
    given = operands(2, 3, 20, 4)
    everything = gradients(*arrays(given), True)
    checks.check(
        lambda g, dy, x, w, b: g.causal_conv1d_backward(dy, x, w, b, activation="SWISH_FWD")[wanted],
        given,
        everything[wanted],
        magnitude=30.0,
    )


def test_without_bias_and_in_another_layout():
    """y of [B, L, D] from x of [B, D, L]; filters [K, D]."""
    x, weight = checks.random((2, 6, 20), "bf16"), checks.random((6, 3), "bf16", seed=1)
    found = checks.check(
        lambda g, x, w: g.causal_conv1d(x, w).set_dim([2, 6, 20]).set_stride([120, 1, 6]),
        {"x": x, "w": (weight, (1, 6))},
        forward(x, weight, np.zeros(6), False),
        magnitude=12.0,
        layouts=["packed"],
    )
    assert found


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda g: g.causal_conv1d(g.tensor([2, 3, 8]), g.tensor([4, 4]), name="mix"),
            "causal_conv1d 'mix': x is [2,3,8], of 3 channels, weight is [4,4]. Give it one filter [D, K] "
            "per channel; [K, D] in memory is [D, K] with strides [1, D].",
        ),
        (
            lambda g: g.causal_conv1d(
                g.tensor([2, 3, 8]), g.tensor([3, 4]), activation="RELU_FWD", name="mix"
            ),
            "causal_conv1d 'mix': activation is relu. Use IDENTITY or SWISH_FWD (SiLU).",
        ),
        (
            lambda g: g.causal_conv1d(g.tensor([2, 3, 8], data_type="i8"), g.tensor([3, 4]), name="mix"),
            "causal_conv1d 'mix': x has data type i8. Use DOUBLE, FLOAT, HALF or BFLOAT16.",
        ),
        (
            lambda g: g.causal_conv1d(g.tensor([2, 3, 8]), g.tensor([3, 0]), name="mix"),
            "causal_conv1d 'mix': weight is [3,0], without taps. Give filters at least one tap.",
        ),
    ],
)
def test_refusals(make, sentence):
    g = weft.Graph(io_data_type="f32")
    make(g)
    with pytest.raises(weft.WeftError) as refused:
        g.validate()
    assert str(refused.value) == sentence


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_silu_of_infinite_sums(dtype):
    """SiLU and its derivative have limits: 0 at -inf; inf and 1 at inf."""
    x = checks.narrow(np.array([[[np.inf, -np.inf, np.nan, 0, 3, -1e30]]]), dtype)
    dy, weight = np.full_like(x, 2), np.ones((1, 1), x.dtype)
    given = {"x": x, "w": weight}
    s = 3 * logistic(3.0)
    want = np.array([[[np.inf, 0, np.nan, 0, s, 0]]])
    checks.check(lambda g, x, w: g.causal_conv1d(x, w, activation="SWISH_FWD"), given, want)
    slope = np.array([[[2, 0, np.nan, 1, 2 * (logistic(3.0) + s * logistic(-3.0)), 0]]])
    checks.check(
        lambda g, dy, x, w: g.causal_conv1d_backward(dy, x, w, activation="SWISH_FWD")[0],
        {"dy": dy} | given,
        slope,
    )
