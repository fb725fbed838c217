"""Grouped matrix products of a mixture of experts against NumPy in double precision."""

import re
from itertools import pairwise

import checks
import numpy as np
import pytest
import weft


def firsts(*offsets):
    return np.array(offsets, np.int32).reshape(-1, 1, 1)


def indices(rows, dtype=np.int32):
    return np.array(rows, dtype).reshape(1, -1, 1)


def groups(offsets, rows):
    """First and last row of each expert, by the definition."""
    ends = [*offsets.ravel().tolist(), rows]
    return [(min(max(a, 0), rows), min(max(b, 0), rows)) for a, b in pairwise(ends)]


def product(token, weight, offsets):
    """The result of each row; rows without an expert give 0."""
    token, weight = checks.exact(token)[0], checks.exact(weight)
    made = np.zeros((len(token), weight.shape[2]))
    for expert, (first, last) in enumerate(groups(offsets, len(token))):
        made[first:last] = token[first:last] @ weight[expert]
    return made


def gradient(doutput, token, offsets):
    token, doutput = checks.exact(token)[0], checks.exact(doutput)[0]
    return np.stack([token[a:b].T @ doutput[a:b] for a, b in groups(offsets, len(token))])


def magnitude(depth, low=2.0):
    """The largest sum of magnitudes, which float sums are as exact as."""
    return max(depth, 1) * low * low


def column_major(array):
    """The array with strides of matrices whose columns are whole."""
    _, k, n = array.shape
    return array, (k * n, 1, k)


OFFSETS = {
    "even": (0, 11, 22, 33),
    "uneven": (0, 1, 30, 31),
    "empty groups": (0, 0, 17, 17),
    "one expert has all": (0, 0, 0, 44),
    "late experts have none": (0, 44, 44, 44),
    "rows of no expert": (5, 9, 20, 40),
}


# ---- Forward -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offsets", OFFSETS.values(), ids=OFFSETS)
def test_rows_in_order(offsets):
    token, weight = checks.random((1, 44, 19)), checks.random((4, 19, 21), seed=1)
    starts = firsts(*offsets)
    checks.check(
        lambda g, t, w, f: g.moe_grouped_matmul(t, w, f),
        {"t": token, "w": weight, "f": starts},
        product(token, weight, starts)[None],
        magnitude=magnitude(19),
    )


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16", "e4m3", "e5m2", "i8", "u8"])
def test_types(dtype):
    low = 0 if dtype == "u8" else -2
    token, weight = checks.random((1, 70, 64), dtype, low), checks.random((3, 64, 48), dtype, low, seed=1)
    starts = firsts(0, 25, 26)
    checks.check(
        lambda g, t, w, f: g.moe_grouped_matmul(
            t, w, f, compute_data_type="f64" if dtype == "f64" else "f32"
        ),
        {"t": token, "w": weight, "f": starts},
        product(token, weight, starts)[None],
        out="f32" if dtype[0] in "eiu" else None,
        magnitude=magnitude(64),
    )


@pytest.mark.parametrize("out", ["f32", "bf16", "f16", "i32"])
def test_result_types(out):
    token, weight = checks.random((1, 9, 8), "i8"), checks.random((2, 8, 24), "i8", seed=1)
    starts = firsts(0, 4)
    checks.check(
        lambda g, t, w, f: g.moe_grouped_matmul(t, w, f, compute_data_type="i32" if out == "i32" else "f32"),
        {"t": token, "w": weight, "f": starts},
        product(token, weight, starts)[None],
        out=out,
    )


@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(1, 1, 1), (300, 72, 200), (129, 33, 7), (257, 16, 136)]
)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_sizes_and_column_major_weights(rows, depth, columns, dtype):
    token = checks.random((1, rows, depth), dtype)
    weight = checks.random((3, depth, columns), dtype, seed=1)
    starts = firsts(0, rows // 3, rows // 3)
    checks.check(
        lambda g, t, w, f: g.moe_grouped_matmul(t, w, f),
        {"t": token, "w": column_major(weight), "f": starts},
        product(token, weight, starts)[None],
        magnitude=magnitude(depth),
    )


def test_many_experts():
    counts = np.random.default_rng(0).integers(0, 3, 600)
    starts = firsts(*(np.cumsum(counts) - counts))
    token, weight = checks.random((1, int(counts.sum()), 5)), checks.random((600, 5, 3), seed=1)
    checks.check(
        lambda g, t, w, f: g.moe_grouped_matmul(t, w, f),
        {"t": token, "w": weight, "f": starts},
        product(token, weight, starts)[None],
        magnitude=magnitude(5),
    )


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gather(index, dtype):
    token, weight = checks.random((1, 13, 24), dtype), checks.random((3, 24, 16), dtype, seed=1)
    rows = np.random.default_rng(2).integers(0, 13, 29)
    starts = firsts(0, 10, 10)
    checks.check(
        lambda g, t, w, f, i: g.moe_grouped_matmul(t, w, f, i, mode="GATHER"),
        {"t": token, "w": weight, "f": starts, "i": indices(rows, index)},
        product(token[:, rows], weight, starts)[None],
        magnitude=magnitude(24),
    )


def test_gather_of_tokens_that_are_not_there():
    token, weight = checks.random((1, 4, 3)), checks.random((1, 3, 5), seed=1)
    outside = [4, 2147483647] if checks.DEVICE == "cuda" else [-1, -1]  # the CPU refuses others
    rows = np.array([3, -1, outside[0], 0, outside[1]])
    want = product(token[:, [3, 0, 0, 0, 0]], weight, firsts(0))
    want[[1, 2, 4]] = 0
    checks.check(
        lambda g, t, w, f, i: g.moe_grouped_matmul(t, w, f, i, mode="GATHER"),
        {"t": token, "w": weight, "f": firsts(0), "i": indices(rows)},
        want[None],
        magnitude=magnitude(3),
    )


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gather_next_to_rows_of_another_expert(dtype):
    """Missing rows are 0 even if a previous product has left data there."""
    token, weight = checks.random((1, 24, 7), dtype), checks.random((2, 7, 5), dtype, seed=1)
    rows = np.concatenate([np.arange(24), np.where(np.arange(24) % 5 == 2, -1, np.arange(24))])
    want = product(token[:, np.maximum(rows, 0)], weight, firsts(0, 24))
    want[rows < 0] = 0
    checks.check(
        lambda g, t, w, f, i: g.moe_grouped_matmul(t, w, f, i, mode="GATHER"),
        {"t": token, "w": weight, "f": firsts(0, 24), "i": indices(rows)},
        want[None],
        magnitude=magnitude(7),
    )


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_scatter(dtype, top_k):
    """Moves rows from the order of experts back to that of tokens and slots."""
    order = np.random.default_rng(top_k).permutation(36)
    token, weight = checks.random((1, 36, 24), dtype), checks.random((3, 24, 40), dtype, seed=1)
    starts = firsts(0, 20, 20)
    want = np.empty((36, 40))
    want[order] = product(token, weight, starts)
    checks.check(
        lambda g, t, w, f, i, k: g.moe_grouped_matmul(t, w, f, i, k, mode="SCATTER", top_k=top_k),
        {"t": token, "w": weight, "f": starts, "i": indices(order // top_k), "k": indices(order % top_k)},
        want[None],
        magnitude=magnitude(24),
    )


def test_scatter_of_places_that_are_not_there():
    """Nothing is written outside, and positions without a row are 0."""
    token, weight = checks.random((1, 6, 4)), checks.random((2, 4, 3), seed=1)
    starts = firsts(1, 3)
    made = product(token, weight, starts)
    want = np.zeros((6, 3))
    want[5], want[0] = made[1], made[5]
    outside = [3, 2] if checks.DEVICE == "cuda" else [-1, -1]  # the CPU refuses others
    checks.check(
        lambda g, t, w, f, i, k: g.moe_grouped_matmul(t, w, f, i, k, mode="SCATTER", top_k=2),
        {
            "t": token,
            "w": weight,
            "f": starts,
            "i": indices([1, 2, outside[0], -1, 0, 0]),
            "k": indices([0, 1, 0, 0, outside[1], 0]),
        },
        want[None],
        magnitude=magnitude(4),
    )


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "experts"), [(0, 3, 4, 2), (5, 0, 4, 2), (5, 3, 0, 2), (5, 3, 4, 0)]
)
def test_sizes_of_zero(rows, depth, columns, experts):
    checks.check(
        lambda g, t, w, f: g.moe_grouped_matmul(t, w, f),
        {
            "t": np.ones((1, rows, depth), np.float32),
            "w": np.ones((experts, depth, columns), np.float32),
            "f": np.zeros((experts, 1, 1), np.int32),
        },
        np.full((1, rows, columns), float(depth if experts else 0)),
        layouts=["packed"],
    )


@pytest.mark.skipif(checks.DEVICE == "cpu", reason="the CPU refuses them")
def test_offsets_beyond_the_rows_end_with_them():
    token, weight = checks.random((1, 7, 3)), checks.random((3, 3, 2), seed=1)
    starts = firsts(-4, 5, 90)
    checks.check(
        lambda g, t, w, f: g.moe_grouped_matmul(t, w, f),
        {"t": token, "w": weight, "f": starts},
        product(token, weight, starts)[None],
        magnitude=magnitude(3),
    )


@pytest.mark.skipif(checks.DEVICE == "cuda", reason="a GPU limits them")
@pytest.mark.parametrize(
    ("mode", "changed", "message"),
    [
        ("NONE", {"f": firsts(0, 8)}, "entry 1 of first_token_offset, tensor 'f' (uid 3), is out of range: "
         "expected 0..6, got 8. Make the offsets ascend, up to the number of rows."),
        ("NONE", {"f": firsts(4, 3)}, "entry 1 of first_token_offset, tensor 'f' (uid 3), is out of range: "
         "expected 4..6, got 3."),
        ("GATHER", {"i": indices([0, 1, 2, 6, -1, 0])}, "entry 3 of token_index, tensor 'i' (uid 4), is "
         "out of range: expected -1..5, got 6. Correct the contents of the tensor; -1 skips a row."),
        ("SCATTER", {"k": indices([0, 1, 2, 0, 0, 0])}, "entry 2 of token_ks, tensor 'k' (uid 5), is out of "
         "range: expected -1..1, got 2."),
        ("SCATTER", {"i": indices([0, 0, 1, 1, 2, 3])}, "entry 5 of token_index, tensor 'i' (uid 4), is "
         "out of range: expected -1..2, got 3."),
    ],
)  # fmt: skip
def test_indices_out_of_range_are_refused(mode, changed, message):
    token, weight = checks.random((1, 6, 4)), checks.random((2, 4, 3), seed=1)
    arrays = {"t": token, "w": weight, "f": firsts(0, 3)}
    arrays |= {"i": indices([0, 0, 1, 1, 2, 2]), "k": indices([0, 1] * 3)}
    names = {"NONE": "twf", "GATHER": "twfi", "SCATTER": "twfik"}[mode]
    arrays = {name: (arrays | changed)[name] for name in names}
    for engine in checks.engine_names():
        g = weft.Graph(handle=checks.handle())
        tensors = {
            name: g.tensor_like(a, name=name).set_uid(i) for i, (name, a) in enumerate(arrays.items(), 1)
        }
        top_k = {"top_k": 2} if mode == "SCATTER" else {}
        y = g.moe_grouped_matmul(*tensors.values(), mode=mode, **top_k).set_output(True)
        g.create_execution_plan([answer["engine"] for answer in g.support()].index(engine), {})
        g.build_plan_at_index(0)
        result = np.full(y.dims, 77, np.float32)
        with pytest.raises(weft.BadParameterError, match=re.escape(message)):
            g.execute({tensors[name]: a for name, a in arrays.items()} | {y: result})
        assert (result == 77).all()


def test_results_feed_pointwise_operations():
    token, weight = checks.random((1, 20, 8)), checks.random((2, 8, 12), seed=1)
    starts = firsts(0, 13)
    checks.check(
        lambda g, t, w, f: g.relu(g.moe_grouped_matmul(t, w, f)),
        {"t": token, "w": weight, "f": starts},
        np.maximum(product(token, weight, starts), 0)[None],
        magnitude=magnitude(8),
    )


# ---- Gradient of the weights -------------------------------------------------------------------------------


@pytest.mark.parametrize("offsets", OFFSETS.values(), ids=OFFSETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "e4m3"])
def test_weight_gradient(offsets, dtype):
    token, doutput = checks.random((1, 44, 24), dtype), checks.random((1, 44, 40), dtype, seed=1)
    starts = firsts(*offsets)
    checks.check(
        lambda g, d, t, f: g.moe_grouped_matmul_bwd(d, t, f),
        {"d": doutput, "t": token, "f": starts},
        gradient(doutput, token, starts),
        out="f32" if dtype == "e4m3" else None,
        magnitude=magnitude(44),
    )


@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 1, 1), (300, 136, 130), (77, 7, 65)])
def test_weight_gradient_of_all_sizes(rows, depth, columns):
    token, doutput = (
        checks.random((1, rows, depth), "bf16"),
        checks.random((1, rows, columns), "bf16", seed=1),
    )
    starts = firsts(0, rows // 2, rows)
    checks.check(
        lambda g, d, t, f: g.moe_grouped_matmul_bwd(d, t, f),
        {"d": doutput, "t": token, "f": starts},
        gradient(doutput, token, starts),
        magnitude=magnitude(rows),
    )


def test_weight_gradient_is_the_derivative_of_the_forward_product():
    """Central differences are exact up to rounding: the product is linear in the weights."""
    token, weight = checks.random((1, 9, 3), "f64"), checks.random((3, 3, 2), "f64", seed=1)
    doutput, starts = checks.random((1, 9, 2), "f64", seed=2), firsts(0, 4, 4)
    slopes = np.zeros(weight.shape)
    for at in np.ndindex(weight.shape):
        ends = []
        for step in (0.5, -0.5):
            moved = weight.copy()
            moved[at] += step
            found = checks.check(
                lambda g, t, w, f: g.moe_grouped_matmul(t, w, f, compute_data_type="f64"),
                {"t": token, "w": moved, "f": starts},
                product(token, moved, starts)[None],
                layouts=["packed"],
                magnitude=magnitude(3),
            )
            ends.append((checks.first(found)[0] * doutput).sum())
        slopes[at] = ends[0] - ends[1]
    checks.check(
        lambda g, d, t, f: g.moe_grouped_matmul_bwd(d, t, f, compute_data_type="f64"),
        {"d": doutput, "t": token, "f": starts},
        slopes,
        magnitude=magnitude(99),
    )


def test_weight_gradient_without_rows_is_0():
    checks.check(
        lambda g, d, t, f: g.moe_grouped_matmul_bwd(d, t, f),
        {"d": np.zeros((1, 0, 4), np.float32), "t": np.zeros((1, 0, 3), np.float32), "f": firsts(0, 0)},
        np.zeros((2, 3, 4)),
        layouts=["packed"],
    )


def test_weight_gradient_has_the_strides_of_column_major_weights():
    g = weft.Graph()
    dweight = g.moe_grouped_matmul_bwd(
        g.tensor([1, 8, 5], data_type="bf16"),
        g.tensor([1, 8, 3], data_type="bf16"),
        g.tensor([2, 1, 1], data_type="i32"),
    )
    dweight.set_output(True)
    g.validate()
    assert (dweight.get_dim(), dweight.get_stride()) == ([2, 3, 5], [15, 1, 3])


# ---- Offsets of all experts but the first ------------------------------------------------------------------


@pytest.mark.parametrize("offsets", [(0, 11, 11, 33), (0, 44), (0,)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_first_offset_may_be_left_out(offsets, dtype):
    count, starts = len(offsets), firsts(*offsets)
    token, doutput = checks.random((1, 44, 24), dtype), checks.random((1, 44, 40), dtype, seed=1)
    weight = checks.random((count, 24, 40), dtype, seed=2)
    checks.check(
        lambda g, t, w, f: g.moe_grouped_matmul(t, w, f),
        {"t": token, "w": weight, "f": starts[1:]},
        product(token, weight, starts)[None],
        magnitude=magnitude(24),
    )
    checks.check(
        lambda g, d, t, f: g.moe_grouped_matmul_bwd(d, t, f).set_dim([count, 24, 40]),
        {"d": doutput, "t": token, "f": starts[1:]},
        gradient(doutput, token, starts),
        magnitude=magnitude(44),
    )


# ---- Refusals ----------------------------------------------------------------------------------------------


SHAPES = {"t": ([1, 8, 5], "f32"), "w": ([2, 5, 3], "f32"), "f": ([2, 1, 1], "i32")}
INDEX = {"i": ([1, 8, 1], "i32"), "k": ([1, 8, 1], "i32")}


def forward(g, t, w, f, **rest):
    names = {"i": "token_index", "k": "token_ks"}
    return lambda **how: g.moe_grouped_matmul(
        t, w, f, name="m", **{names[key]: value for key, value in rest.items()}, **how
    )


@pytest.mark.parametrize(
    ("changed", "how", "sentence"),
    [
        (
            {"t": ([2, 8, 5], "f32")},
            {},
            "token has dims [2,8,5], its first must be 1. Merge batch and sequence into one dimension of "
            "rows.",
        ),
        (
            {"w": ([2, 3, 5], "f32")},
            {},
            "inner sizes differ: token is [1,8,5] (K=5), weight is [2,3,5] (K=3). Swap weight's last two "
            "dims and strides if it is [E,N,K].",
        ),
        (
            {"f": ([3, 1, 1], "i32")},
            {},
            "weight is [2,5,3], of 2 experts, first_token_offset is [3,1,1]. Give it one offset per expert, "
            "or leave out the first.",
        ),
        (
            {"f": ([2, 2, 1], "i32")},
            {},
            "first_token_offset has dims [2,2,1], expected [2,1,1]. Give it these dims, or none.",
        ),
        ({"f": ([2, 1, 1], "f32")}, {}, "first_token_offset has data type f32. Use INT32 or INT64."),
        ({}, {"mode": "GATHER"}, "mode GATHER needs token_index, which is unset. Set it."),
        (
            {"i": INDEX["i"]},
            {"mode": "SCATTER", "top_k": 1},
            "mode SCATTER needs token_ks, which is unset. Set it.",
        ),
        (
            {"i": INDEX["i"]},
            {},
            "mode NONE does not use token_index. Omit it or choose mode GATHER or SCATTER.",
        ),
        (
            INDEX,
            {"mode": "GATHER"},
            "mode GATHER does not use token_ks. Omit it or choose mode SCATTER.",
        ),
        (
            INDEX,
            {"mode": "SCATTER"},
            "mode SCATTER with top_k 0. Give the number of experts per token, 1 or more.",
        ),
        (
            {**INDEX, "k": ([1, 7, 1], "i32")},
            {"mode": "SCATTER", "top_k": 1},
            "token_ks has dims [1,7,1], expected [1,8,1]. Give it these dims, or none.",
        ),
        (
            {"i": ([1, 8, 1], "f16")},
            {"mode": "GATHER"},
            "token_index has data type f16. Use INT32 or INT64.",
        ),
    ],
)
def test_refusals(changed, how, sentence):
    checks.refuses(
        lambda g, **tensors: forward(g, **tensors)(**how),
        {**SHAPES, **changed},
        f"moe_grouped_matmul 'm': {sentence}",
    )


def test_refusals_of_the_gradient():
    checks.refuses(
        lambda g, d, t, f: g.moe_grouped_matmul_bwd(d, t, f, name="m"),
        {"d": ([1, 7, 3], "f32"), "t": ([1, 8, 5], "f32"), "f": ([2, 1, 1], "i32")},
        "moe_grouped_matmul_bwd 'm': token is [1,8,5] (M=8), doutput is [1,7,3] (M=7). Give both the same "
        "number of rows; gather them first if necessary.",
    )
