"""reduction against NumPy in float64."""

import math
import re

import checks
import numpy as np
import pytest
import weft
from weft import backend, enums

ORACLES = {
    "ADD": np.sum,
    "MUL": np.prod,
    "MIN": np.min,
    "MAX": np.max,
    "AMAX": lambda x, **how: np.max(np.abs(x), **how),
    "AVG": np.mean,
    "NORM1": lambda x, **how: np.sum(np.abs(x), **how),
    "NORM2": lambda x, **how: np.sqrt(np.sum(x * x, **how)),
    "MUL_NO_ZEROS": lambda x, **how: np.prod(np.where(x == 0, 1, x), **how),
}
SUMS = {"ADD": 1, "AVG": 1, "NORM1": 1}  # whose terms may cancel


def reduce(mode, y_dims=None, **options):
    """A graph that reduces x into these dims."""

    def build(g, x):
        y = g.reduction(x, mode, name="r", **options)
        return y if y_dims is None else y.set_dim(y_dims)

    return build


def numbers(shape, dtype="f32"):
    """Random values with some zeros."""
    x = checks.exact(checks.random(shape, "f64"))
    return checks.narrow(np.where(np.abs(x) < 0.2, 0, x), dtype)


def oracle(mode, x, dims):
    """x reduced to dims in float64, and the magnitude of what is summed."""
    pairs = [n for extent, kept in zip(x.shape, dims, strict=True) for n in (kept, extent // kept)]
    parts = checks.exact(x).reshape(pairs)  # [d0, g0, d1, g1, ..]: groups of adjacent elements
    axes = tuple(range(1, len(pairs), 2))
    magnitude = float(np.abs(parts).sum(axis=axes).max(initial=0)) if mode in SUMS else None
    return ORACLES[mode](parts, axis=axes), magnitude


@pytest.mark.parametrize("mode", ORACLES)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_modes_types_and_layouts(mode, dtype):
    x = numbers((3, 5, 4, 7), dtype)
    for dims in ([1, 5, 1, 1], [3, 1, 4, 7], [1, 1, 1, 1], [3, 5, 4, 7], [3, 5, 4, 1]):
        want, magnitude = oracle(mode, x, dims)
        layouts = checks.LAYOUTS
        checks.check(reduce(mode, dims), {"x": x}, want, magnitude=magnitude, layouts=layouts)
    checks.check(
        reduce(mode, dims), {"x": x}, want, magnitude=magnitude, out="f32" if dtype == "bf16" else "bf16"
    )


@pytest.mark.parametrize("mode", ORACLES)
def test_groups_of_adjacent_elements(mode):
    x = numbers((2, 6, 3, 8))
    for dims in ([2, 2, 3, 8], [2, 3, 1, 2], [1, 6, 3, 4]):
        want, magnitude = oracle(mode, x, dims)
        checks.check(reduce(mode, dims), {"x": x}, want, magnitude=magnitude, layouts=checks.LAYOUTS)


def test_named_dims():
    x = numbers((3, 5, 7))
    wide = checks.exact(x)
    for named, axes in (([0, -1], (0, 2)), ([-3], 0), ([0, 1, 2], None)):
        want = wide.sum(axis=axes, keepdims=True)
        checks.check(lambda g, x, d=named: g.reduction(x, "ADD", dims=d), {"x": x}, want, magnitude=100)
    g = weft.Graph()
    y = g.reduction(g.tensor([3, 5, 7], [1, 21, 3], "f32"), "ADD", dims=[1])
    g.validate()
    assert (y.get_dim(), y.get_stride()) == ([3, 1, 7], [1, 21, 3])  # the input's order of dimensions


@pytest.mark.parametrize("mode", ORACLES)
def test_nan_propagates(mode):
    x = numbers((4, 9))
    x[0, 0] = x[1, 4] = x[2, 8] = np.nan
    want, magnitude = oracle(mode, x[3:], [1, 1])
    nans = np.full((3, 1), np.nan)
    checks.check(reduce(mode, [4, 1]), {"x": x}, np.concatenate([nans, want]), magnitude=magnitude)


@pytest.mark.parametrize(
    ("mode", "neutral", "integer"),
    [
        *[(mode, 0, 0) for mode in ("ADD", "AMAX", "NORM1", "NORM2")],
        *[
            ("MUL", 1, 1),
            ("MUL_NO_ZEROS", 1, 1),
            ("MIN", np.inf, 127),
            ("MAX", -np.inf, -128),
            ("AVG", np.nan, 0),
        ],
    ],
)
def test_nothing_reduces_to_the_identity(mode, neutral, integer):
    empty = np.zeros((3, 0), np.float32)
    checks.check(reduce(mode, [3, 1]), {"x": empty}, np.full((3, 1), neutral))
    checks.check(reduce(mode, [3, 2]), {"x": empty}, np.full((3, 2), neutral))
    checks.check(reduce(mode, [0, 1]), {"x": np.zeros((0, 3), np.float32)}, np.zeros((0, 1)))
    exactly = reduce(mode, [3, 1], compute_data_type="i32")
    checks.check(exactly, {"x": empty.astype(np.int8)}, np.full((3, 1), integer), out="i8")


def integers(mode, row):
    """The reduction of Python integers, wrapped into 64 bits."""
    n = [int(value) for value in row]
    total = {
        "ADD": sum(n),
        "MUL": math.prod(n),
        "MIN": min(n),
        "MAX": max(n),
        "AMAX": max(map(abs, n)),
        "AVG": abs(sum(n)) // len(n) * (1 if sum(n) > 0 else -1),
        "NORM1": sum(map(abs, n)),
        "NORM2": math.isqrt(sum(value * value for value in n)),
        "MUL_NO_ZEROS": math.prod(value for value in n if value),
    }[mode]
    return (total + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("mode", ORACLES)
def test_integers_are_exact(mode):
    large = 2**31 - 1 if mode in ("MUL", "MUL_NO_ZEROS", "NORM2") else 2**62 - 1
    x = np.array([[large, 3, -(large // 4)], [0, -7, 5]], np.int64)
    found = checks.check(reduce(mode, [2, 1], compute_data_type="i64"), {"x": x}, [None])
    for (got,) in found.values():
        assert got.dtype == np.int64
        assert got.ravel().tolist() == [integers(mode, row) for row in x]


def test_results_of_integers():
    x = np.array([[100, 100], [-100, -100], [60, 60]], np.int8)
    exactly = reduce("ADD", [3, 1], compute_data_type="i32")
    checks.check(exactly, {"x": x}, np.array([[127], [-128], [120]]), out="i8")  # saturated
    found = checks.check(exactly, {"x": x}, np.array([[200], [-200], [120]]))
    assert all(got.dtype == np.int32 for (got,) in found.values())  # the compute type, which holds the sums


def test_booleans():
    x = np.array([[True, False], [True, True], [False, False]])
    checks.check(reduce("ADD", [3, 1], compute_data_type="bool"), {"x": x}, x.any(1, keepdims=True))
    checks.check(reduce("MUL", [3, 1], compute_data_type="bool"), {"x": x}, x.all(1, keepdims=True))


def refuse(sentence, y_dims=None, **options):
    checks.refuses(reduce("ADD", y_dims, **options), {"x": ([3, 4, 5], "f32")}, sentence)


def test_refusals():
    refuse(
        "reduction 'r': it is not specified which dimensions of x [3,4,5] to reduce. Set y's dims, with 1 "
        "where x is reduced, or attribute dims."
    )
    refuse(
        "reduction 'r': dimension 1 is 4 in x [3,4,5] and 3 in y [3,3,1]. In y make it equal, "
        "1 or a divisor.",
        [3, 3, 1],
    )
    refuse("reduction 'r': dimension 0 is 3 in x [3,4,5] and 0 in y [0,4,1].", [0, 4, 1])
    refuse("reduction 'r': y has 2 dims [3,4], expected 3..3.", [3, 4])


def test_refusals_of_named_dims():
    def named(dims, y_dims=None):
        def build(g, x):
            y = g.reduction(x, "ADD", dims=dims, name="r")
            return y if y_dims is None else y.set_dim(y_dims)

        return build

    for dims, y_dims, sentence in [
        (
            [3],
            None,
            "reduction 'r': attribute dims is [3], but x has 3 dims [3,4,5]. Use dimensions in -3..2.",
        ),
        (
            [1, 1],
            None,
            "reduction 'r': attribute dims is [1,1], which names dimension 1 twice. Name each once.",
        ),
        (
            [2, -1],
            [3, 4, 1],
            "reduction 'r': attribute dims is [2,-1], which names dimension 2 twice. Name each once.",
        ),
        (
            [1],
            [3, 1, 1],
            "reduction 'r': attribute dims [1] keeps dimension 2, but y [3,1,1] reduces it (x is [3,4,5]). "
            "Let them agree, or set one only.",
        ),
        (
            [1],
            [3, 4, 5],
            "reduction 'r': attribute dims [1] reduces dimension 1, but y [3,4,5] keeps it (x is [3,4,5]).",
        ),
    ]:
        checks.refuses(named(dims, y_dims), {"x": ([3, 4, 5], "f32")}, sentence)


def test_user_defined_reducers_are_refused():
    names = enums.attribute_name
    op = backend.Descriptor(enums.descriptor_type.OPERATION_REDUCTION_DESCRIPTOR)
    parameters = backend.Descriptor(enums.descriptor_type.REDUCTION_DESCRIPTOR)
    parameters.set(names.REDUCTION_OPERATOR, "REDUCTION_OPERATOR_TYPE", [0])
    parameters.finalize()
    op.set(names.OPERATION_REDUCTION_DESC, "BACKEND_DESCRIPTOR", [parameters])
    for uid, name in ((1, names.OPERATION_REDUCTION_XDESC), (2, names.OPERATION_REDUCTION_YDESC)):
        tensor = backend.Descriptor(enums.descriptor_type.TENSOR_DESCRIPTOR)
        tensor.set(names.TENSOR_UNIQUE_ID, "INT64", [uid])
        tensor.set(names.TENSOR_DIMENSIONS, "INT64", [3 if uid == 1 else 1])
        tensor.set(names.TENSOR_DATA_TYPE, "DATA_TYPE", [0])
        tensor.finalize()
        op.set(name, "BACKEND_DESCRIPTOR", [tensor])
    op.set(names.OPERATION_REDUCTION_SUBGRAPH_OUTPUT_UIDS, "INT64", [7])
    sentence = (
        "reduction: attribute subgraph_output_uids is set, but reductions have the built-in operators and "
        "equal groups only. Leave it unset."
    )
    with pytest.raises(weft.NotSupportedError, match=re.escape(sentence)):
        op.finalize()
