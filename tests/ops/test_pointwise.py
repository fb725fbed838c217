"""pointwise, every mode, against NumPy in float64."""

import math

import checks
import numpy as np
import pytest
from weft import backend, enums

erf = np.vectorize(math.erf, otypes=[np.float64])
sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
normal_cdf = lambda x: 0.5 * (1 + erf(x / math.sqrt(2)))  # noqa: E731
ROOT = math.sqrt(2 / math.pi)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(ROOT * (x + 0.044715 * x**3)))


# method: (oracle, lowest and highest input)
UNARY = {
    "abs": (np.abs, -2, 2),
    "ceil": (np.ceil, -3, 3),
    "floor": (np.floor, -3, 3),
    "cos": (np.cos, -4, 4),
    "sin": (np.sin, -4, 4),
    "tan": (np.tan, -1.2, 1.2),
    "exp": (np.exp, -5, 5),
    "log": (np.log, 0.1, 9),
    "neg": (np.negative, -2, 2),
    "sqrt": (np.sqrt, 0, 9),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.1, 9),
    "reciprocal": (lambda x: 1 / x, 0.3, 3),
    "erf": (erf, -3, 3),
    "identity": (lambda x: x, -2, 2),
    "relu": (lambda x: np.maximum(x, 0), -2, 2),
    "tanh": (np.tanh, -4, 4),
    "sigmoid": (sigmoid, -6, 6),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(x)), -3, 3),
    "gelu": (lambda x: x * normal_cdf(x), -4, 4),
    "gelu_approx_tanh": (gelu_tanh, -4, 4),
    "softplus": (lambda x: np.logaddexp(0, x), -6, 6),
    "swish": (lambda x: x * sigmoid(x), -6, 6),
}
BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "add_square": lambda a, b: a + b * b,
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.fmod,
    "floor_mod": lambda a, b: a - np.floor(a / b) * b,
    "pow": lambda a, b: np.abs(a) ** b,
    "atan2": np.arctan2,
    "bias": np.add,
    "scale": np.multiply,
}
COMPARE = {
    "cmp_eq": np.equal,
    "cmp_neq": np.not_equal,
    "cmp_gt": np.greater,
    "cmp_ge": np.greater_equal,
    "cmp_lt": np.less,
    "cmp_le": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
}
# forward method of each backward one, with options
BACKWARD = {
    "relu": {},
    "leaky_relu": {"negative_slope": 0.25},
    "tanh": {},
    "sigmoid": {},
    "elu": {"elu_alpha": 0.75},
    "gelu": {},
    "gelu_approx_tanh": {},
    "softplus": {"softplus_beta": 1.5},
    "swish": {"swish_beta": 0.75},
}
FLOATS = ["f32", "f64", "f16", "bf16", "e4m3", "e5m2"]


def away_from(x, points, gap=1e-2):
    """Moves values off the points where a function has a jump or a bend."""
    for point in points:
        x = np.where(np.abs(x - point) < gap, point + gap * 2, x)
    return x


def test_every_mode_is_tested():
    names = {mode["method"] for mode in backend.describe()["pointwise_modes"]}
    tested = {*UNARY, *BINARY, *COMPARE, *(f"{name}_backward" for name in BACKWARD)}
    assert names <= tested | {"logical_not", "binary_select", "gen_index"}


@pytest.mark.parametrize("method", UNARY)
@pytest.mark.parametrize("dtype", FLOATS)
def test_unary(method, dtype):
    oracle, low, high = UNARY[method]
    x = checks.random((3, 5, 7), dtype, low, high)
    x = np.where(checks.exact(x) < low, x.dtype.type(low), x).astype(x.dtype)  # fp8 rounds below
    wide = checks.exact(x)
    want = oracle(wide)
    checks.check(lambda g, x: getattr(g, method)(x), {"x": x}, want, layouts=checks.LAYOUTS)
    checks.check(lambda g, x: getattr(g, method)(x), {"x": x}, want, out="f32")


@pytest.mark.parametrize("method", BINARY)
@pytest.mark.parametrize("dtype", FLOATS)
def test_binary_with_broadcasting(method, dtype):
    low = 0.5 if method in ("pow", "mod", "floor_mod", "div") else -2
    a = checks.random((4, 3, 5), dtype, low, 2)
    for dims in ((4, 3, 5), (1, 3, 1), (4, 1, 5), (1, 1, 1)):
        b = checks.random(dims, dtype, low, 2, seed=1)
        want = BINARY[method](checks.exact(a), checks.exact(b))
        if method in ("mod", "floor_mod"):  # jumps: keep to quotients away from whole numbers
            quotient = checks.exact(a) / checks.exact(b)
            want = np.where(np.abs(quotient - np.rint(quotient)) < 1e-6, 0, want)
            b = np.where((want == 0).any(), b * b.dtype.type(1), b)
        checks.check(lambda g, a, b: getattr(g, method)(a, b), {"a": a, "b": b}, want, out="f32")


@pytest.mark.parametrize("method", COMPARE)
@pytest.mark.parametrize("dtype", [*FLOATS, "i8", "u8", "i32", "i64", "bool8", "bool1"])
def test_comparisons(method, dtype):
    a = checks.random((3, 4, 9), dtype, 0, 3)
    b = checks.random((3, 1, 9), dtype, 0, 3, seed=1)
    want = COMPARE[method](checks.exact(a), checks.exact(b))
    for out in (None, "bool1", "bool8", "f32", "i32"):
        checks.check(
            lambda g, a, b: getattr(g, method)(a, b), {"a": a, "b": b}, want.astype(np.float64), out=out
        )


def test_logical_not_and_boolean_math():
    a, b = (checks.random((5, 7), "bool8", seed=i) for i in range(2))
    graph = {"compute_data_type": "bool8"}
    checks.check(lambda g, a: g.logical_not(a), {"a": a}, (~a).astype(float), graph=graph)
    checks.check(lambda g, a, b: g.logical_and(a, b), {"a": a, "b": b}, (a & b).astype(float), graph=graph)


@pytest.mark.parametrize("mask", ["bool8", "bool1", "f32", "i32"])
def test_select_broadcasts_all_three(mask):
    a, b = checks.random((3, 4, 5), "f16"), checks.random((1, 1, 1), "f32", seed=1)
    t = checks.random((3, 1, 5), mask, 0, 1, seed=2)
    want = np.where(checks.exact(t) != 0, checks.exact(a), checks.exact(b))
    checks.check(lambda g, a, b, t: g.binary_select(a, b, t), {"a": a, "b": b, "t": t}, want, out="f32")


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_index(axis):
    x = checks.random((3, 4, 5))
    want = np.broadcast_to(
        np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(3)]), x.shape
    )
    checks.check(lambda g, x: g.gen_index(x, axis), {"x": x}, want.astype(float), layouts=checks.LAYOUTS)
    checks.check(lambda g, x: g.gen_index(x, axis), {"x": x}, want.astype(float), out="f32")


@pytest.mark.parametrize("method", BACKWARD)
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
def test_backward_is_the_gradient_of_forward(method, dtype):
    options = BACKWARD[method]
    x = checks.narrow(away_from(checks.exact(checks.random((4, 6, 5), "f64", -3, 3)), [0]), dtype)
    dy = checks.random((4, 6, 5), dtype, seed=1)

    def forward(x):
        found = checks.check(
            lambda g, x: getattr(g, method)(x, **options),
            {"x": x},
            [None],
            layouts=["packed"],
            graph={"compute_data_type": "f64"},
        )
        return checks.first(found)[0]

    h, wide = 1e-4, checks.exact(x)
    near, far = (forward(wide + k * h) - forward(wide - k * h) for k in (1, 2))
    slope = (8 * near - far) / (12 * h)
    want = checks.exact(dy) * slope
    backward = f"{method}_backward"
    checks.check(
        lambda g, dy, x: getattr(g, backward)(dy, x, **options),
        {"dy": dy, "x": x},
        want,
        out="f32" if dtype == "f64" else None,
        ulps=2,
        magnitude=10,
    )


def test_relu_clips_and_slopes():
    x = checks.random((4, 50), "f32", -3, 9)
    wide = checks.exact(x)
    want = np.where(wide < 1, 1 + 0.5 * (wide - 1), np.minimum(wide, 6))
    how = {"negative_slope": 0.5, "lower_clip": 1.0, "upper_clip": 6.0}
    checks.check(lambda g, x: g.relu(x, **how), {"x": x}, want)
    dy = checks.random((4, 50), "f32", seed=1)
    slope = np.where(wide <= 1, 0.5, np.where(wide >= 6, 0, 1))
    checks.check(lambda g, dy, x: g.relu_backward(dy, x, **how), {"dy": dy, "x": x}, checks.exact(dy) * slope)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_relu_at_infinity(dtype):
    """A slope of 0 turns -inf into the lower clip, and an infinite gradient into 0. NaN stays NaN. An
    infinite bound clips nothing, so that the gradient passes at an infinite input."""
    ends = np.array([-np.inf, np.inf, np.nan, -1.0, 0.0, 2.0, 9.0])
    x, dy = (checks.narrow(values, dtype) for values in np.meshgrid(ends, ends))
    wide, loss = checks.exact(x), checks.exact(dy)
    for slope, lower, upper in ((0, 0, np.inf), (0, 1, 6), (0.25, 0, np.inf), (0.5, 1, 6), (0, -np.inf, 6)):
        how = {"negative_slope": slope, "lower_clip": lower, "upper_clip": upper}
        low = lower + slope * (wide - lower) if slope else lower
        want = np.where(wide < lower, low, np.where(wide > upper, upper, wide))
        checks.check(lambda g, x, how=how: g.relu(x, **how), {"x": x}, want)
        low = slope * loss if slope else 0
        is_below = (wide <= lower) & np.isfinite(lower)
        is_above = (wide >= upper) & np.isfinite(upper)
        want = np.where(is_below, low, np.where(is_above, 0, loss))
        checks.check(lambda g, dy, x, how=how: g.relu_backward(dy, x, **how), {"dy": dy, "x": x}, want)


# ---- Limits ------------------------------------------------------------------------------------------------

POINTS = [0.0, np.inf, np.nan, 1e-45, 1e-38, 1e-8, 1e-3, 0.5, 1, 3, 5.5, 10, 14, 20, 37, 80, 88, 90, 104]
POINTS += [700, 1e4, 1e10, 1e19, 3e38]
erfc = np.vectorize(math.erfc, otypes=[np.float64])


def finite(x):
    return np.clip(x, -1e300, 1e300)


def bell(x):
    """The standard normal density."""
    return np.exp(-0.5 * np.minimum(np.abs(x), 100) ** 2) / math.sqrt(2 * math.pi)


def gelu_tanh_inner(x):
    return 2 * ROOT * (x + 0.044715 * x**3)


def gelu_tanh_slope(x):
    x = np.clip(x, -1e3, 1e3)
    s, rest = sigmoid(gelu_tanh_inner(x)), sigmoid(-gelu_tanh_inner(x))
    return s + s * rest * 2 * ROOT * x * (1 + 3 * 0.044715 * x**2)


# method: the function, with its limits at infinity, and its derivative
LIMITS = {
    "abs": (np.abs, None),
    "ceil": (np.ceil, None),
    "floor": (np.floor, None),
    "exp": (np.exp, None),
    "log": (np.log, None),
    "neg": (np.negative, None),
    "sqrt": (np.sqrt, None),
    "rsqrt": (lambda x: 1 / np.sqrt(x), None),
    "reciprocal": (lambda x: 1 / x, None),
    "erf": (erf, None),
    "identity": (lambda x: x, None),
    "cos": (np.cos, None),
    "sin": (np.sin, None),
    "tan": (np.tan, None),
    "relu": (lambda x: np.where(x <= 0, 0, x), lambda x: np.where(x <= 0, 0, 1)),
    "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2),
    "sigmoid": (sigmoid, lambda x: sigmoid(x) * sigmoid(-x)),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(x)), lambda x: np.where(x > 0, 1, np.exp(x))),
    "gelu": (
        lambda x: np.maximum(x, -1e300) * 0.5 * erfc(-x / math.sqrt(2)),
        lambda x: 0.5 * erfc(-x / math.sqrt(2)) + finite(x) * bell(x),
    ),
    "gelu_approx_tanh": (lambda x: np.maximum(x, -1e3) * sigmoid(gelu_tanh_inner(x)), gelu_tanh_slope),
    "softplus": (lambda x: np.logaddexp(0, x), sigmoid),
    "swish": (
        lambda x: np.maximum(x, -1e300) * sigmoid(x),
        lambda x: sigmoid(x) + finite(x) * sigmoid(x) * sigmoid(-x),
    ),
}


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize("method", LIMITS)
def test_limits(method, dtype):
    """Infinities, NaN, zeros, subnormal, tiny and huge numbers, forward and backward."""
    function, slope = LIMITS[method]
    with np.errstate(all="ignore"):
        x = checks.narrow(np.array([[*POINTS, *(-np.array(POINTS))]]), dtype)
        wide = checks.exact(x)
        if method in ("cos", "sin", "tan"):  # beyond, the reduction of the argument takes over
            x, wide = x[np.abs(wide) < 1e4][None], wide[np.abs(wide) < 1e4][None]
        want = function(wide)
        check_limits(lambda g, x: getattr(g, method)(x), {"x": x}, want, dtype)
        if slope is None:
            return
        for loss in (-3.0, np.nan):
            dy, want = np.full_like(x, loss), slope(wide) * loss
            if method == "relu":  # no gradient passes below 0, not even NaN
                want = np.where(wide <= 0, 0, want)
            build = lambda g, dy, x: getattr(g, method + "_backward")(dy, x)  # noqa: E731
            check_limits(build, {"dy": dy, "x": x}, want, dtype)


def check_limits(build, given, want, dtype):
    """Infinities and NaN must be where they are expected."""
    found = checks.check(build, given, [None], out=dtype, layouts=["packed"])
    # GPUs approximate activations to a few units in the last place of 1 and flush subnormal results.
    close = {"f32": 2e-6, "f64": 1e-13}.get(dtype, 1.5 * checks.roundoff(dtype))
    for engine, (got,) in found.items():
        got, stored = checks.exact(got), checks.exact(checks.narrow(want, dtype))
        is_same = (got == stored) | (np.isnan(stored) & np.isnan(got))
        size = 1 if "dy" in given else np.minimum(np.abs(checks.exact(given["x"])), 1)
        is_near = np.abs(got - want) <= close * np.maximum(np.abs(want), size) + 2.0**-149
        wrong = ~np.where(np.isfinite(stored) & np.isfinite(got), is_near, is_same)
        assert not wrong.any(), (engine, *(each[wrong] for each in (given["x"], got, want)))


INTEGERS = {"i8": np.int8, "u8": np.uint8, "i32": np.int32, "i64": np.int64}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("method", ["add", "sub", "mul", "max", "min", "add_square"])
def test_integers_are_exact(dtype, method):
    """In INT64 arithmetic nothing is rounded; storing saturates."""
    info = np.iinfo(INTEGERS[dtype])
    rng = np.random.default_rng(3)
    small = 2**20 if dtype == "i64" and method != "add_square" else 11
    a, b = (rng.integers(-small * (info.min < 0), small, (5, 9)).astype(INTEGERS[dtype]) for _ in range(2))
    if dtype == "i64" and method in ("add", "sub", "max", "min"):
        a, b = a + 2**60, b + 2**60 + 1
    want = (
        BINARY[method](a.astype(object), b.astype(object))
        if method not in ("max", "min")
        else (np.maximum(a, b) if method == "max" else np.minimum(a, b)).astype(object)
    )
    want = np.clip(want, int(info.min), int(info.max)).astype(INTEGERS[dtype])
    checks.check(
        lambda g, a, b: getattr(g, method)(a, b), {"a": a, "b": b}, want, out=dtype,
        graph={"compute_data_type": "i64"},
    )  # fmt: skip


def test_integer_division():
    a = np.array([7, -7, 7, -7, 5, -(2**62)], np.int64)
    b = np.array([2, 2, -2, -2, 0, -1], np.int64)
    graph = {"compute_data_type": "i64"}
    quotient = np.array([3, -3, -3, 3, 0, 2**62])
    remainder = np.array([1, -1, 1, -1, 0, 0])
    floored = np.array([1, 1, -1, -1, 0, 0])
    for method, want in (("div", quotient), ("mod", remainder), ("floor_mod", floored)):
        checks.check(lambda g, a, b, m=method: getattr(g, m)(a, b), {"a": a, "b": b}, want, graph=graph)


def test_conversion_rounds_to_even_and_saturates():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 300, -300, 1e30, np.nan, np.inf, -np.inf], np.float32)
    checks.check(
        lambda g, x: g.identity(x),
        {"x": x},
        np.array([0, 2, 2, 0, -2, 127, -128, 127, 0, 127, -128]),
        out="i8",
    )
    want = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 288, -288, 448, np.nan, 448, -448])
    checks.check(lambda g, x: g.identity(x), {"x": x}, want, out="e4m3")


def test_special_values_pass():
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e38], np.float32)
    with np.errstate(all="ignore"):
        for method in ("abs", "neg", "exp", "sqrt", "reciprocal", "tanh", "floor", "erf", "rsqrt", "sigmoid"):
            want = UNARY[method][0](x.astype(np.float64))
            checks.check(lambda g, x, m=method: getattr(g, m)(x), {"x": x}, want)
    a, b = np.meshgrid(x[:4], x[:4])
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    for method in ("max", "min"):
        checks.check(lambda g, a, b, m=method: getattr(g, m)(a, b), {"a": a, "b": b}, BINARY[method](a, b))


# method: what makes its result of -0.0, 0.4 and -0.4, with the sign of a zero
SIGNED = {
    **{name: UNARY[name][0] for name in ("sin", "tan", "erf", "sqrt", "tanh", "neg", "abs")},
    **{name: UNARY[name][0] for name in ("identity", "ceil", "floor", "gelu", "swish", "elu", "reciprocal")},
    "gelu_approx_tanh": UNARY["gelu_approx_tanh"][0],
}


@pytest.mark.parametrize("method", SIGNED)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_zeros_have_their_sign(method, dtype):
    """tanh(-0.0) is -0.0, as IEEE 754 has it, ceil(-0.4), too, and what is too small for its type."""
    negative = [] if method == "sqrt" else [-0.4, -1e-30]
    x = checks.narrow([-0.0, 0.0, 0.4, *negative] * 9, dtype)
    with np.errstate(divide="ignore"):
        want = np.array(SIGNED[method](checks.exact(x)))
    found = checks.check(lambda g, x: getattr(g, method)(x), {"x": x}, want)
    for engine, (got,) in found.items():
        wrong = np.signbit(checks.exact(got)) != np.signbit(want)
        assert not wrong.any(), f"{engine}: {method}({x[wrong][0]}) is {got[wrong][0]}"


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize(("slope", "is_negative"), [(0, False), (0.5, True)])
def test_rectified_zeros(slope, is_negative, dtype):
    """relu(-0.0) is the clip, +0.0; with a slope it is -0.0, because slope * x is."""
    x = checks.narrow([-0.0] * 35, dtype)
    found = checks.check(lambda g, x: g.relu(x, negative_slope=slope), {"x": x}, 0 * x)
    for engine, (got,) in found.items():
        assert (np.signbit(checks.exact(got)) == is_negative).all(), engine


def test_alpha_scales_operands():
    x, b = checks.random((3, 4)), checks.random((3, 4), seed=1)

    def build(g, x, b):
        values = {"x": x, "b": b, "mode": "ADD", "alpha1": 0.5, "alpha2": -2.0}
        return checks.record(g, "pointwise", values, ["y"])[0]

    checks.check(build, {"x": x, "b": b}, 0.5 * checks.exact(x) - 2 * checks.exact(b))


@pytest.mark.parametrize(
    ("mode", "alpha1", "alpha2"),
    [("ADD", 1.0, 0.0), ("ADD", 0.5, 0.0), ("ADD", 0.0, 0.5), ("SUB", 2.0, 0.0), ("SUB", 0.0, 2.0)],
)
def test_operand_of_a_sum_with_factor_0_is_not_read(mode, alpha1, alpha2):
    """Programs bind it to memory that was never written, where 0 * NaN would be NaN."""
    x, unread = checks.random((3, 4)), np.full((3, 4), np.nan, "f4")

    def build(g, x, b):
        values = {"x": x, "b": b, "mode": mode, "alpha1": alpha1, "alpha2": alpha2}
        return checks.record(g, "pointwise", values, ["y"])[0]

    inputs = {"x": unread, "b": x} if alpha1 == 0 else {"x": x, "b": unread}
    sign = -1 if mode == "SUB" and alpha1 == 0 else 1
    checks.check(build, inputs, sign * (alpha1 + alpha2) * checks.exact(x))


def test_a_copy_to_another_layout_scales():
    x = checks.random((2, 40, 7, 7), "f32", -9, 9)

    def copied(alpha):
        def build(g, x):
            y = checks.record(g, "pointwise", {"x": x, "mode": "IDENTITY", "alpha1": alpha}, ["y"])[0]
            return y.set_dim(x.dims).set_stride(checks.strides_of(x.dims, "channels_last"))

        return build

    for alpha in (1.0, -0.5):
        checks.check(copied(alpha), {"x": x}, alpha * checks.exact(x))


def test_virtual_tensors_round_to_their_type():
    x = checks.random((64,), "f32")

    def build(g, x):
        middle = g.identity(x).set_data_type("bf16")
        return g.identity(middle).set_data_type("f32")

    want = checks.exact(checks.narrow(checks.exact(x), "bf16"))
    checks.check(build, {"x": x}, want)


def test_zero_size():
    x = np.zeros((3, 0, 4), np.float32)
    checks.check(lambda g, x: g.relu(x), {"x": x}, x.astype(float), layouts=["packed"])


def test_far_out_values():
    x = np.array([1e30, -1e30, 1e18, -1e18, 300, -300], np.float32)
    dy = np.array([1, 1, 0, 0, 2, 2], np.float32)
    want = np.where(x > 0, dy, 0).astype(np.float64)
    for method in ("gelu_approx_tanh", "gelu", "swish", "softplus", "sigmoid", "tanh", "elu", "relu"):
        expected = want if method not in ("sigmoid", "tanh") else 0 * want
        backward = f"{method}_backward"
        checks.check(
            lambda g, dy, x, m=backward: getattr(g, m)(dy, x), {"dy": dy, "x": x}, expected, magnitude=1
        )
    a, b = np.array([1.0, -1.0], np.float32), np.array([1e-40, 3e38], np.float32)
    want = np.mod(a.astype(np.float64), b.astype(np.float64))
    found = checks.check(lambda g, a, b: g.floor_mod(a, b), {"a": a, "b": b}, [None])
    for (got,) in found.values():
        assert np.isfinite(got).all()
        assert got.min() >= 0
        assert got[1] == np.float32(want[1])


@pytest.mark.parametrize(
    ("types", "want"),
    [
        (("f16", "f32"), "f32"),
        (("f16", "bf16"), "f32"),
        (("i32", "f16"), "f16"),
        (("bool8", "f32"), "f32"),
        (("f32", "f64"), "f64"),
        (("i8", "i32"), "i32"),
        (("u8", "i8"), "i32"),
        (("e4m3", "e5m2"), "f16"),
    ],
)
def test_inferred_type_promotes_all_operands(types, want):
    for first, second in (types, types[::-1]):
        a, b = checks.random((3, 4), first, 0, 2), checks.random((3, 4), second, 0, 2, seed=1)
        found = checks.check(lambda g, a, b: g.mul(a, b), {"a": a, "b": b}, checks.exact(a) * checks.exact(b))
        for (got,) in found.values():
            assert got.dtype == checks.random((1,), want).dtype


def test_scalars_lend_only_their_sort():
    x, s = checks.random((3, 4), "bf16"), checks.random((1, 1), "f32")
    found = checks.check(lambda g, x, s: g.mul(s, x), {"x": x, "s": s}, checks.exact(x) * checks.exact(s))
    for (got,) in found.values():
        assert got.dtype == x.dtype


def test_refusals():
    checks.refuses(
        lambda g, a, b: g.add(a, b, name="s"),
        {"a": ((3, 4), "f32"), "b": ((3, 5), "f32")},
        "pointwise 's': operands do not broadcast: [3,4] with [3,5]. Make ranks equal and each extent "
        "equal or 1.",
    )
    checks.refuses(
        lambda g, a: g.gen_index(a, axis=2, name="i"),
        {"a": ((3, 4), "f32")},
        "pointwise 'i': axis is 2, y has 2 dims. Use a value in 0..1.",
    )
    checks.refuses(
        lambda g, a: g.exp(a, compute_data_type=enums.data_type.INT32, name="e"),
        {"a": ((3, 4), "i32")},
        "pointwise 'e': mode EXP has no meaning in i32 arithmetic. Set compute_data_type to FLOAT.",
    )


INTERLEAVED = [((3, 2), (2, 3)), ((3, 2, 4), (2, 3, 8)), ((2, 3, 2), (3, 2, 10))]


@pytest.mark.parametrize(("dims", "strides"), INTERLEAVED)
def test_outputs_with_interleaved_strides(dims, strides):
    """All elements are distinct, though no stride exceeds the span of the faster ones."""
    x = np.random.default_rng(3).normal(size=dims).astype("f4")

    def build(g, x):
        return g.neg(x).set_dim(dims).set_stride(strides)

    checks.check(build, {"x": x}, -x)
