"""matmul against NumPy in float64."""

import checks
import numpy as np
import pytest

FP8 = ["e4m3", "e5m2"]
DTYPES = ["f32", "f64", "f16", "bf16", *FP8]


def product(a, b):
    """a @ b in float64 with batch extents that divide each other, and the largest sum of magnitudes."""
    wide = []
    for operand in (a, b):
        x = checks.exact(operand)
        for i in range(x.ndim - 2):
            x = np.repeat(x, max(a.shape[i], b.shape[i]) // max(x.shape[i], 1), axis=i)
        wide.append(x)
    magnitude = float(np.max(np.abs(wide[0]) @ np.abs(wide[1]), initial=0))
    return wide[0] @ wide[1], magnitude


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [(1, 1, 1), (3, 5, 7), (16, 16, 16), (33, 65, 17), (64, 1, 130), (1, 70, 3)])
def test_types_and_sizes(dtype, dims):
    m, n, k = dims
    a, b = checks.random((2, m, k), dtype), checks.random((2, k, n), dtype, seed=1)
    want, magnitude = product(a, b)
    for out in (None, "f32"):
        checks.check(
            lambda g, a, b: g.matmul(a, b),
            {"a": a, "b": b},
            want,
            magnitude=magnitude,
            out=out,
            of_fp8=dtype in FP8,
        )


@pytest.mark.parametrize("order", ["rr", "rc", "cr", "cc"])
def test_row_and_column_major_operands(order):
    m, n, k = 19, 23, 29
    a, b = checks.random((3, m, k), "bf16"), checks.random((3, k, n), "bf16", seed=1)
    a_strides = (m * k, k, 1) if order[0] == "r" else (m * k, 1, m)
    b_strides = (k * n, n, 1) if order[1] == "r" else (k * n, 1, k)
    want, magnitude = product(a, b)
    checks.check(
        lambda g, a, b: g.matmul(a, b),
        {"a": (a, a_strides), "b": (b, b_strides)},
        want,
        magnitude=magnitude,
        layouts=checks.LAYOUTS,
    )


# Batch, rows, k, columns, and the order of A and B: aligned or odd, contiguous along k or not, with a k that
# warps share, and with more matrices than a block has.
SMALL = [
    *[(11, 49, 32, 49, "rr"), (9, 49, 49, 32, "rr"), (9, 49, 49, 32, "cr"), (9, 32, 49, 49, "cr")],
    *[(9, 49, 49, 32, "rc"), (5, 38, 38, 64, "rr"), (5, 38, 38, 64, "rc"), (3, 20, 20, 256, "rc")],
    *[(2, 12, 1024, 12, "rc"), (3, 12, 1000, 13, "rc"), (7, 5, 7, 9, "rr"), (7, 5, 7, 9, "cc")],
    *[(4, 16, 8, 8, "cr"), (3, 2, 3, 2, "cc"), (2, 100, 24, 90, "rc"), (33, 6, 10, 4, "rr")],
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: "-".join(map(str, case)))
def test_batches_of_small_matrices(case):
    count, m, k, n, order = case
    for dtype, bias, out in (("bf16", False, "bf16"), ("f16", True, "f16"), ("bf16", False, "f32")):
        a, b = checks.random((count, m, k), dtype), checks.random((count, k, n), dtype, seed=1)
        c = checks.random((1, 1, n), dtype, seed=2)
        want, magnitude = product(a, b)
        operands = {
            "a": (a, (m * k, k, 1) if order[0] == "r" else (m * k, 1, m)),
            "b": (b, (k * n, n, 1) if order[1] == "r" else (k * n, 1, k)),
        }

        def build(g, a, b, c=None):
            product_ = g.matmul(a, b)
            return product_ if c is None else g.relu(g.add(product_, c))

        if bias:
            operands["c"] = c
            want = np.maximum(want + checks.exact(c), 0)
        checks.check(build, operands, want, magnitude=magnitude, out=out, layouts=checks.LAYOUTS)


@pytest.mark.parametrize(
    "batches", [((4,), (1,)), ((1,), (3,)), ((6,), (2,)), ((2, 6), (2, 3)), ((1, 4), (3, 2)), ((), ())]
)
def test_batches_broadcast_and_share(batches):
    a = checks.random((*batches[0], 5, 8))
    b = checks.random((*batches[1], 8, 6), seed=1)
    want, magnitude = product(a, b)
    checks.check(lambda g, a, b: g.matmul(a, b), {"a": a, "b": b}, want, magnitude=magnitude)


@pytest.mark.parametrize("padding", [0.0, 0.5])
def test_overrides(padding):
    m, n, k = 6, 5, 7
    a, b = checks.random((3, m, k)), checks.random((3, k, n), seed=1)
    sizes = {name: np.array(v, np.int32).reshape(3, 1, 1) for name, v in
             {"m": [6, 2, 0], "n": [5, 1, 3], "k": [7, 0, 4]}.items()}  # fmt: skip
    wide_a, wide_b = checks.exact(a).copy(), checks.exact(b).copy()
    for i in range(3):
        wide_a[i, int(sizes["m"][i, 0, 0]) :] = padding
        wide_a[i, :, int(sizes["k"][i, 0, 0]) :] = padding
        wide_b[i, int(sizes["k"][i, 0, 0]) :] = padding
        wide_b[i, :, int(sizes["n"][i, 0, 0]) :] = padding

    def build(g, a, b, m, n, k):
        return g.matmul(a, b, padding=padding, m_override=m, n_override=n, k_override=k)

    checks.check(build, {"a": a, "b": b, **sizes}, wide_a @ wide_b, magnitude=40)


def in_use(x, *counts):
    """Keeps the rows and columns in use of each entry; the rest is 0."""
    made = checks.exact(x).copy()
    for i, (rows, columns) in enumerate(zip(*counts, strict=True)):
        made[i, max(rows, 0) :] = 0
        made[i, :, max(columns, 0) :] = 0
    return made


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("order", ["mk nk", "mk kn", "km kn"])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "e4m3", "i8", "f32"])
def test_overrides_leave_out_whatever_is_there(dtype, order, is_wide):
    """Tiles within, across and outside the sizes in use; elsewhere is infinity, where the type has it."""
    entries, m, n, k = (3, 40, 136, 2112) if is_wide else (5, 200, 144, 272)
    m, n, k = (m, n, k) if checks.DEVICE != "cpu" else (m // 4, n // 4, k // 8)
    a, b = checks.random((entries, m, k), dtype), checks.random((entries, k, n), dtype, seed=1)
    counts = {"m": [m, 33, 0, 7, 129], "n": [n, 1, 8, 130, 63], "k": [k - 63, k + 5, 64, 0, -3]}
    counts = {name: some[:entries] for name, some in counts.items()}
    used_a, used_b = in_use(a, counts["m"], counts["k"]), in_use(b, counts["k"], counts["n"])
    if dtype in ("bf16", "f16", "f32"):
        a[used_a != checks.exact(a)], b[used_b != checks.exact(b)] = np.inf, np.inf
    lies = {"mk": (m * k, k, 1), "km": (m * k, 1, m), "kn": (k * n, n, 1), "nk": (k * n, 1, k)}
    left, right = order.split()
    sizes = {name: np.array(some, np.int64).reshape(entries, 1, 1) for name, some in counts.items()}

    def build(g, a, b, m, n, k):
        return g.matmul(a, b, m_override=m, n_override=n, k_override=k)

    want, magnitude = used_a @ used_b, np.abs(used_a) @ np.abs(used_b)
    operands = {"a": (a, lies[left]), "b": (b, lies[right]), **sizes}
    checks.check(
        build,
        operands,
        want,
        magnitude=magnitude.max(initial=1),
        out="i32" if dtype == "i8" else "f32",
        of_fp8=dtype == "e4m3",
        graph={"compute_data_type": "i32"} if dtype == "i8" else {},
    )


def test_int8_sums_in_int32():
    a, b = checks.random((2, 9, 300), "i8", -128, 127), checks.random((2, 300, 11), "i8", -128, 127, seed=1)
    want = a.astype(np.int64) @ b.astype(np.int64)
    graph = {"compute_data_type": "i32"}
    checks.check(
        lambda g, a, b: g.matmul(a, b), {"a": a, "b": b}, want.astype(np.int32), graph=graph, out="i32"
    )


def along_depth(b):
    """B with its strides, as tensor cores want factors of 8 bits: contiguous along the summed dimension."""
    k, n = b.shape[-2:]
    return b, (*(k * n * int(np.prod(b.shape[i + 1 : -2])) for i in range(b.ndim - 2)), 1, k)


@pytest.mark.parametrize("right", FP8)
@pytest.mark.parametrize("left", FP8)
@pytest.mark.parametrize("dims", [(1, 64, 64, 64), (2, 33, 130, 144), (1, 70, 40, 528), (1, 1, 24, 272)])
def test_fp8_contiguous_along_the_depth(left, right, dims):
    z, m, n, k = dims
    a, b = checks.random((z, m, k), left), checks.random((z, k, n), right, seed=1)
    want, magnitude = product(a, b)
    for out in ("f32", "bf16"):
        for math in ("f32", "FAST_FLOAT_FOR_FP8"):
            checks.check(
                lambda g, a, b: g.matmul(a, b),
                {"a": a, "b": along_depth(b)},
                want,
                magnitude=magnitude * (1 if math == "f32" else k // 128 + 1),
                out=out,
                of_fp8=True,
                graph={"compute_data_type": math},
            )


def test_fp8_scaled_to_fp8():
    a, b = checks.random((2, 48, 320), "e4m3"), checks.random((1, 320, 72), "e4m3", seed=1)
    scale = np.full((1, 1, 1), 0.25, np.float32)
    want, magnitude = product(a, b)

    def build(g, a, b, scale):
        scaled = g.mul(g.matmul(a, b), scale)
        return g.identity(scaled), g.reduction(scaled, mode="AMAX").set_dim([1, 1, 1])

    checks.check(
        build,
        {"a": a, "b": along_depth(b), "scale": scale},
        [want / 4, np.abs(want / 4).max().reshape(1, 1, 1)],
        magnitude=magnitude,
        out=["e4m3", "f32"],
        of_fp8=True,
        graph={"compute_data_type": "f32", "intermediate_data_type": "f32"},
    )


@pytest.mark.parametrize("out", ["e4m3", "i8"])
@pytest.mark.parametrize("dims", [(1, 200, 256, 64), (2, 130, 144, 72), (1, 64, 160, 128), (1, 72, 48, 96)])
def test_results_of_a_byte(dims, out):
    z, m, n, k = dims
    a, b = checks.random((z, m, k), "i8", -1, 1), checks.random((z, k, n), "i8", -1, 1, seed=1)
    a, b = checks.narrow(a, "bf16"), checks.narrow(b, "bf16")
    want = np.maximum(checks.exact(a) @ checks.exact(b), -3)
    graph = {"compute_data_type": "f32", "intermediate_data_type": "f32"}
    checks.check(lambda g, a, b: g.max(g.matmul(a, b), -3.0), {"a": a, "b": b}, want, out=out, graph=graph)


@pytest.mark.parametrize(("left", "right"), [("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8")])
@pytest.mark.parametrize("dims", [(1, 64, 64, 64), (2, 33, 130, 144), (1, 70, 40, 528), (1, 1, 24, 272)])
def test_bytes_contiguous_along_the_depth(left, right, dims):
    ranges, (z, m, n, k) = {"i8": (-128, 127), "u8": (0, 255)}, dims
    a = checks.random((z, m, k), left, *ranges[left])
    b = checks.random((z, k, n), right, *ranges[right], seed=1)
    want = a.astype(np.int64) @ b.astype(np.int64)
    checks.check(
        lambda g, a, b: g.matmul(a, b),
        {"a": a, "b": along_depth(b)},
        want.astype(np.int32),
        graph={"compute_data_type": "i32"},
        out="i32",
    )


def test_eight_bit_operands_with_scales_after_the_product():
    a, b = checks.random((1, 40, 208), "i8", -128, 127), checks.random((1, 208, 72), "i8", -128, 127, seed=1)
    row, column = checks.random((1, 40, 1), "f32", seed=2), checks.random((1, 1, 72), "f32", seed=3)
    want, magnitude = product(a, b)

    def build(g, a, b, row, column):
        c = g.matmul(a, b, compute_data_type="i32").set_data_type("i32")
        return g.mul(g.mul(c, row), column)

    checks.check(
        build,
        {"a": a, "b": along_depth(b), "row": row, "column": column},
        want * row * column,
        magnitude=magnitude * 4,
        out="bf16",
        graph={"compute_data_type": "f32", "intermediate_data_type": "f32"},
    )


def test_empty_depth_gives_zeros():
    a, b = np.zeros((2, 3, 0), np.float32), np.zeros((2, 0, 4), np.float32)
    checks.check(lambda g, a, b: g.matmul(a, b), {"a": a, "b": b}, np.zeros((2, 3, 4)), layouts=["packed"])


@pytest.mark.parametrize(("left", "right"), [((0, 3, 4), (1, 4, 5)), ((1, 2, 3, 4), (0, 1, 4, 5))])
def test_empty_batches_broadcast(left, right):
    a, b = np.zeros(left, np.float32), np.zeros(right, np.float32)
    checks.check(lambda g, a, b: g.matmul(a, b), {"a": a, "b": b}, a @ b, layouts=["packed"])


def test_fused_bias_activation_residual():
    a, b = checks.random((2, 20, 33), "bf16"), checks.random((2, 33, 18), "bf16", seed=1)
    bias, rest = checks.random((1, 1, 18), "f32", seed=2), checks.random((2, 20, 18), "bf16", seed=3)
    want, magnitude = product(a, b)
    want = np.maximum(want + checks.exact(bias), 0) + checks.exact(rest)

    def build(g, a, b, bias, rest):
        return g.add(g.relu(g.bias(g.matmul(a, b), bias)), rest)

    graph = {"io_data_type": "bf16", "intermediate_data_type": "f32", "compute_data_type": "f32"}
    checks.check(
        build, {"a": a, "b": b, "bias": bias, "rest": rest}, want, magnitude=magnitude, graph=graph
    )  # fmt: skip


@pytest.mark.parametrize("reads", [0, 1, 2])
@pytest.mark.parametrize("dims", [(64, 256, 576), (33, 72, 520), (7, 136, 1600), (200, 256, 200)])
def test_products_after_a_step(dims, reads):
    """Weights are there before the step that makes the other operand has ended; whole numbers, so that the
    intermediate is exact."""
    (m, n, k), random = dims, np.random.default_rng(0)
    whole = {"a": (m, 48), "w": (48, k), "b": (k, n), "r": (m, n)}
    arrays = {name: random.integers(-1, 2, shape).astype(np.float64) for name, shape in whole.items()}
    a, w, b, r = arrays.values()

    def build(g, a, w, b, r):
        y = g.matmul(g.matmul(a, w), b)
        return y if reads == 0 else g.add(y, r) if reads == 1 else g.mul(g.add(y, r), g.relu(r))

    want = a @ w @ b if reads == 0 else a @ w @ b + r if reads == 1 else (a @ w @ b + r) * np.maximum(r, 0)
    inputs = {name: checks.narrow(x, "bf16") for name, x in arrays.items()}
    checks.check(build, inputs, want, out="bf16", layouts=["packed"])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("dims", [(3, 5, 7), (64, 64, 64), (128, 8, 16)])
def test_sums_are_exact_for_epilogues(dtype, dims):
    """1 + 2^-12 is not representable in 16 bits; adding -1 gives 2^-12, unless the sum was rounded before."""
    m, n, k = dims
    row = np.zeros(k)
    row[:2] = 1, 2**-6
    operands = {"a": np.tile(row, (m, 1)), "b": np.tile(row[:, None], (1, n)), "bias": np.full((1, n), -1.0)}
    checks.check_bits(
        lambda g, a, b, bias: g.add(g.matmul(a, b), bias),
        {name: checks.narrow(x, dtype) for name, x in operands.items()},
        checks.narrow(np.full((m, n), 2.0**-12), dtype),
        out=dtype,
    )


def test_refusals():
    checks.refuses(
        lambda g, a, b: g.matmul(a, b, name="qk"),
        {"a": ((8, 128, 64), "f32"), "b": ((8, 32, 128), "f32")},
        "matmul 'qk': inner sizes differ: A is [8,128,64] (K=64), B is [8,32,128] (K=32). Swap B's last "
        "two dims and strides if it is [N,K].",
    )
    checks.refuses(
        lambda g, a, b: g.matmul(a, b, name="m"),
        {"a": ((4, 8, 8), "f32"), "b": ((3, 8, 8), "f32")},
        "matmul 'm': batch dimension 0 is 4 in A [4,8,8] and 3 in B [3,8,8]. Make one divide the other.",
    )
    checks.refuses(
        lambda g, a, b: g.matmul(a, b, name="m"),
        {"a": ((8, 8), "f32"), "b": ((1, 8, 8), "f32")},
        "matmul 'm': A has 2 dims [8,8], B has 3 dims [1,8,8]. Give both the same rank, with extents "
        "of 1 in front.",
    )


@pytest.mark.parametrize("key", ["m_override", "n_override", "k_override"])
def test_overrides_are_integers_of_batch_entries(key):
    def build(g, a, b, size):
        return g.matmul(a, b, name="m", **{key: size})

    operands = {"a": ((2, 3, 4), "f32"), "b": ((2, 4, 5), "f32")}
    message = f"matmul 'm': {key} has data type f32. Use INT32 or INT64."
    checks.refuses(build, {**operands, "size": ((2, 1, 1), "f32")}, message)
    message = f"matmul 'm': {key} with dims [3,1,1] does not broadcast to [2,1,1]."
    checks.refuses(build, {**operands, "size": ((3, 1, 1), "i32")}, message)
