"""Integer arithmetic is exact on every device, unless a compute type says otherwise: sums, products,
comparisons, reductions and conversions of numbers that a double cannot represent."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import checks
import ml_dtypes
import numpy as np
import pytest
import weft

# On either side of what a double holds, and of the largest numbers that there are.
LEFT = np.array([2**53 + 1, 2**62 + 1, -(2**53) - 1, 2**62 - 1, -(2**62), 7, 0, -1], np.int64)
RIGHT = np.array([2**53, 2**62, -(2**53), -(2**62), 2**62 - 1, 7, -1, -(2**53) - 1], np.int64)
TYPES = {"i8": np.int8, "u8": np.uint8, "i32": np.int32, "u32": np.uint32, "i64": np.int64, "bool8": np.bool_}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.fmod,
    "floor_mod": np.mod,
    "cmp_eq": operator.eq,
    "cmp_neq": operator.ne,
    "cmp_gt": operator.gt,
    "cmp_ge": operator.ge,
    "cmp_lt": operator.lt,
    "cmp_le": operator.le,
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "identity": operator.pos,
    "neg": operator.neg,
    "abs": abs,
    "ceil": operator.pos,
}


@pytest.mark.parametrize("method", BINARY)
def test_of_two(method: str) -> None:
    b = np.where(RIGHT, RIGHT, 1)
    want = BINARY[method](LEFT, b)
    checks.check(lambda g, a, b: getattr(g, method)(a, b), {"a": LEFT, "b": b}, want)


@pytest.mark.parametrize("method", UNARY)
def test_of_one(method: str) -> None:
    checks.check(lambda g, a: getattr(g, method)(a), {"a": LEFT}, UNARY[method](LEFT))


def test_products_and_choices() -> None:
    a = np.array([2**31 + 1, 3**20, -(2**40) - 1], np.int64)
    b = np.array([2**31 - 1, 3**19, 2**21 + 1], np.int64)
    checks.check(lambda g, a, b: g.mul(a, b), {"a": a, "b": b}, a * b)
    checks.check(lambda g, a, b: g.add_square(a, b), {"a": b, "b": a // 3}, b + (a // 3) ** 2)
    chosen = np.where(LEFT > RIGHT, LEFT, RIGHT)
    select = lambda g, a, b: g.binary_select(a, b, g.cmp_gt(a, b))  # noqa: E731
    checks.check(select, {"a": LEFT, "b": RIGHT}, chosen)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i64", "bool8"])
def test_a_mask_is_set_where_it_is_not_zero(dtype: str) -> None:
    mask = np.array([0, 1, 0.25, -0.25, 0, 2**62, -1, 0])
    mask = mask.astype(TYPES[dtype]) if dtype in TYPES else checks.narrow(mask, dtype)
    want = np.where(mask.astype("f8") != 0, LEFT, RIGHT)
    select = lambda g, a, b, t: g.binary_select(a, b, t)  # noqa: E731
    checks.check(select, {"a": LEFT, "b": RIGHT, "t": mask}, want)


def test_intermediates_keep_64_bits() -> None:
    checks.check(lambda g, a, b: g.sub(g.add(a, b), b), {"a": LEFT[:3], "b": RIGHT[:3]}, LEFT[:3])
    a, b = np.array([[2**31 - 1, -(2**31)]], np.int32), np.array([[2**31 - 1, 2**31 - 1]], np.int32)
    less = lambda g, a, b: g.sub(g.mul(a, b), g.mul(g.sub(a, 1), b))  # noqa: E731
    checks.check(less, {"a": a, "b": b}, b)  # a b - (a - 1) b, of 62 bits


@pytest.mark.parametrize("left", TYPES)
@pytest.mark.parametrize("right", ["i8", "u32", "i64"])
def test_of_two_types(left: str, right: str) -> None:
    """The result has the wider type, and saturates; 64 bits wrap around."""
    kinds = TYPES[left], TYPES[right]
    most = {np.bool_: 1, np.int64: 2**62 - 1}
    a, b = (np.array([0, 1, most[k] if k in most else np.iinfo(k).max - 1], k) for k in kinds)
    exact = [int(x) + int(y) for x, y in zip(a, b, strict=True)]
    found = checks.check(lambda g, a, b: g.add(a, b), {"a": a, "b": b}, [None])
    for (got,) in found.values():
        info = np.iinfo(got.dtype)
        assert got.tolist() == [min(max(each, info.min), info.max) for each in exact], got.dtype


@pytest.mark.parametrize("number", [1, True, np.int64(2**53 + 1), np.int8(-3)])
def test_python_numbers_with_integers(number: Any) -> None:
    checks.check(lambda g, a: g.sub(a, number), {"a": LEFT[:3]}, LEFT[:3] - int(number))


# ---- Conversions -------------------------------------------------------------------------------------------


def rounded(number: int, bits: int) -> float:
    """Rounds to nearest even with this number of bits."""
    drop = max(abs(number).bit_length() - bits, 0)
    whole, rest = divmod(abs(number), 1 << drop)
    up = rest * 2 > 1 << drop or (rest * 2 == 1 << drop and whole % 2)
    return float((whole + up) << drop) * (1 if number >= 0 else -1)


def ties(bits: int) -> list[int]:
    """Midpoints between numbers of this many bits, plus or minus one: double rounding would produce ties."""
    middles = [(2 * n + 1) << 62 - bits - 1 for n in (1 << bits - 1, (1 << bits - 1) + 1)]
    return [sign * (m + d) for m in middles for d in (-1, 0, 1) for sign in (1, -1)]


@pytest.mark.parametrize(("dtype", "bits"), [("f32", 24), ("bf16", 8), ("f64", 53)])
def test_integers_become_floats_in_one_rounding(dtype: str, bits: int) -> None:
    numbers = [*ties(bits), *map(int, LEFT)]
    x = np.array(numbers, np.int64)
    want = [rounded(number, bits) for number in numbers]
    found = checks.check(lambda g, x: g.identity(x), {"x": x}, [None], out=dtype)
    for engine, (got,) in found.items():
        assert got.astype("f8").tolist() == want, engine


@pytest.mark.parametrize("dtype", ["i8", "u8", "i32", "u32"])
def test_integers_become_narrower_ones_by_saturation(dtype: str) -> None:
    info = np.iinfo(TYPES[dtype])
    checks.check(lambda g, x: g.identity(x), {"x": LEFT}, np.clip(LEFT, info.min, info.max), out=dtype)


# ---- Reductions --------------------------------------------------------------------------------------------

REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "ADD": sum,
    "MUL": np.prod,
    "MIN": min,
    "MAX": max,
    "AMAX": lambda row: max(map(abs, row)),
    "NORM1": lambda row: sum(map(abs, row)),
    "MUL_NO_ZEROS": lambda row: np.prod([each for each in row if each]),
}


@pytest.mark.parametrize("mode", REDUCTIONS)
def test_reductions(mode: str) -> None:
    x = np.array([[2**53 + 1, 3, -1, 0], [-(2**58) - 1, 5, 1, -1]], np.int64)
    want = np.array([[int(REDUCTIONS[mode](list(map(int, row))))] for row in x], np.int64)
    checks.check(lambda g, x: g.reduction(x, mode=mode, dims=[1]), {"x": x}, want)


@pytest.mark.parametrize("dtype", ["i8", "i32", "u32", "bool8"])
def test_sums_are_of_64_bits(dtype: str) -> None:
    kind = TYPES[dtype]
    x = np.full((3, 300), 1 if kind is np.bool_ else np.iinfo(kind).max).astype(kind)
    want = x.astype(np.int64).sum(1, keepdims=True)
    checks.check(lambda g, x: g.reduction(x, mode="ADD", dims=[1]), {"x": x}, want)


def test_means_are_floats() -> None:
    x = np.array([[1, 2], [3, 5]], np.int64)
    for mode, want in (("AVG", [[1.5], [4]]), ("NORM2", [[5**0.5], [34**0.5]])):
        found = checks.check(lambda g, x, m=mode: g.reduction(x, mode=m, dims=[1]), {"x": x}, np.array(want))
        assert {got.dtype for (got,) in found.values()} == {np.dtype("f4")}


# ---- Products ----------------------------------------------------------------------------------------------


def wide(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Numbers whose products are of 60 bits, and sums of these too many for a double."""
    return np.random.default_rng(seed).integers(-(2**30), 2**30, shape).astype(np.int32)


def test_matrix_products() -> None:
    a, b = wide((2, 5, 7), 1), wide((2, 7, 4), 2)
    checks.check(lambda g, a, b: g.matmul(a, b), {"a": a, "b": b}, a.astype(np.int64) @ b.astype(np.int64))
    low, high = np.full((1, 3, 2048), -128, np.int8), np.full((1, 2048, 2), -128, np.int8)
    high[0, 0] = 127
    want = low.astype(np.int32) @ high.astype(np.int32)
    checks.check(lambda g, a, b: g.matmul(a, b), {"a": low, "b": high}, want)  # odd, and more than 2^24


WHOLE = ("i8", "u8", "i32", "u32", "i64", "bool8")


@pytest.mark.parametrize(("left", "right"), list(itertools.permutations(WHOLE, 2)))
def test_matrix_products_of_unlike_types(left: str, right: str) -> None:
    """The largest numbers of both types, 300 products of each: beyond 2^31 unless both have 8 bits."""
    a, b = (np.full(shape, most(name)) for shape, name in (((2, 300), left), ((300, 3), right)))
    a[1], b[1::2, 1], b[:, 2] = 1, 0, 1
    want = a.astype(np.int64) @ b.astype(np.int64)
    (found,) = {got.dtype for (got,) in multiplied(a, b, want).values()}
    has_bytes = all(np.dtype(TYPES[name]).itemsize == 1 for name in (left, right))
    assert found == (np.int32 if has_bytes else np.int64)


def most(name: str) -> Any:
    """The largest number of a type; of 64 bits one whose products stay in range."""
    type_ = np.dtype(TYPES[name])
    if type_ == np.bool_:
        return np.True_
    return type_.type(2**20 + 1 if type_.itemsize == 8 else np.iinfo(type_).max)


def multiplied(a: Any, b: Any, want: Any) -> Any:
    return checks.check(lambda g, a, b: g.matmul(a, b), {"a": a, "b": b}, want)


def test_convolutions() -> None:
    x, w = wide((2, 3, 1, 9), 1), wide((4, 3, 1, 1), 2)
    flat = x.astype(np.int64)[:, :, 0]
    y = np.einsum("ncl,kc->nkl", flat, w.astype(np.int64)[:, :, 0, 0])[:, :, None]
    checks.check(lambda g, x, w: g.conv_fprop(x, w), {"x": x, "w": w}, y)
    dy = wide((2, 4, 1, 9), 3)
    back = np.einsum("nkl,kc->ncl", dy.astype(np.int64)[:, :, 0], w.astype(np.int64)[:, :, 0, 0])[:, :, None]
    checks.check(lambda g, dy, w: g.conv_dgrad(dy, w), {"dy": dy, "w": w}, back)
    dw = np.einsum("nkl,ncl->kc", dy.astype(np.int64)[:, :, 0], flat)[:, :, None, None]
    gradient = lambda g, x, dy: g.conv_wgrad(x, dy).set_dim([4, 3, 1, 1])  # noqa: E731
    checks.check(gradient, {"x": x, "dy": dy}, dw)


def test_products_of_experts() -> None:
    token, weight = wide((1, 6, 5), 1), wide((2, 5, 3), 2)
    first = np.array([0, 2], np.int32).reshape(2, 1, 1)
    rows, matrices = token.astype(np.int64)[0], weight.astype(np.int64)
    want = np.concatenate([rows[:2] @ matrices[0], rows[2:] @ matrices[1]])[None]
    build = lambda g, t, w, f: g.moe_grouped_matmul(t, w, f)  # noqa: E731
    checks.check(build, {"t": token, "w": weight, "f": first}, want)


# ---- Other user options ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["graph", "operation"])
def test_a_compute_type_is_obeyed(where: str) -> None:
    x = np.array([2**53 + 1, -(2**53) - 1], np.int64)
    graph = {"compute_data_type": "f32"} if where == "graph" else {}
    own = {} if graph else {"compute_data_type": "f32"}
    checks.check(lambda g, x: g.identity(x, **own), {"x": x}, np.array([2**53, -(2**53)]), graph=graph)
    checks.check(lambda g, x: g.max(x, x, **own), {"x": x}, np.array([2**53, -(2**53)]), graph=graph)
    total = lambda g, x: g.reduction(x, mode="ADD", dims=[0], **own)  # noqa: E731
    found = checks.check(total, {"x": np.array([3, 4], np.int64)}, np.array([7]), graph=graph)
    assert {got.dtype for (got,) in found.values()} == {np.dtype("f4")}
    product, a = lambda g, a: g.matmul(a, a, **own), np.array([[1, 2], [3, 4]], np.int8)
    found = checks.check(product, {"a": a}, np.array([[7, 10], [15, 22]]), graph=graph)
    assert {got.dtype for (got,) in found.values()} == {np.dtype("f4")}


def test_quotients_powers_and_floats_are_floats() -> None:
    x, f = np.array([7, 9], np.int64), np.array([2, 0.5], "f4")
    for build, want in (
        (lambda g, x, f: g.div(x, g.identity(x)), [1, 1]),
        (lambda g, x, f: g.pow(x, g.identity(x)), [7.0**7, 9.0**9]),
        (lambda g, x, f: g.mul(x, f), [14, 4.5]),
    ):
        found = checks.check(build, {"x": x, "f": f}, np.array(want))
        assert {got.dtype for (got,) in found.values()} == {np.dtype("f4")}


def test_a_saved_plan_calculates_as_the_one_that_was_saved() -> None:
    for types in ({}, {"compute_data_type": "f32"}):
        g = weft.Graph(handle=checks.handle(), **types)
        a = g.tensor_like(LEFT, name="a")
        g.reduction(g.sub(a, 1), mode="MAX", dims=[0], name="y").set_output(True).set_data_type("i64")
        want, loaded = g.build().plan(a=LEFT), weft.Graph(handle=checks.handle())
        loaded.deserialize(g.serialize())
        assert types or want.tolist() == [2**62]
        assert loaded.plan(a=LEFT).tolist() == want.tolist()


def test_factors_have_no_meaning_for_integers() -> None:
    def scaled(**types: Any) -> weft.Graph:
        g = weft.Graph(handle=checks.handle(), **types)
        x = g.tensor([2], data_type="i32", name="x")
        y = checks.record(g, "pointwise", {"x": x, "mode": "IDENTITY", "alpha1": 0.5}, ["y"])[0]
        y.set_output(True).set_data_type("i32")
        return g

    assert scaled().build().plan(x=np.array([2**24, 7], np.int32)).tolist() == [2**23, 4]  # in FLOAT
    message = r"alpha1 is 0\.5 and alpha2 1, but factors have no meaning in i32 arithmetic\. Set both to 1"
    with pytest.raises(weft.BadParameterError, match=message):
        scaled(compute_data_type="i32").build()


def test_moved_integers_keep_their_bits() -> None:
    x = LEFT.reshape(2, 4)
    checks.check_bits(lambda g, x: g.transpose(x, [1, 0]), {"x": x}, x.T)
    checks.check_bits(lambda g, x: g.slice(x, [slice(0, 2), slice(1, 3)]), {"x": x}, x[:, 1:3])
    checks.check_bits(lambda g, x: g.concatenate([x, x], 1), {"x": x}, np.concatenate([x, x], 1))
    small = np.array([[1, -2]], np.int8)
    floats = np.array([[0.5, 1.5]], ml_dtypes.bfloat16)
    joined = np.concatenate([small.astype("f8"), floats.astype("f8")], 1)
    checks.check(lambda g, a, b: g.concatenate([a, b], 1), {"a": small, "b": floats}, joined)
