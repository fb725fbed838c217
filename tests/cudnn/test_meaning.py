"""Every operation of the table computes its definition in double precision: pointwise operations are tested
here, and of the others those without a script in the catalogue."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import erf
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import weft
import weft.cudnn as cudnn
from weft.cudnn.sdpa import ARGUMENTS
from weft.cudnn.table import POINTWISE, STRUCTURED

T = cudnn.data_type


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def normal(x: Any) -> Any:
    """The share of a normal distribution below x."""
    return 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def inner(x: Any) -> Any:
    """The argument of tanh in the approximation of gelu."""
    return np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)


def slope(f: Callable[[Any], Any], x: Any) -> Any:
    """A derivative by central differences, good to 1e-9."""
    h = 1e-4
    return (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h)


def gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(inner(x)))


def elu(x: Any) -> Any:
    return np.where(x > 0, x, np.expm1(x))


def softplus(x: Any) -> Any:
    return np.log1p(np.exp(x))


FORMULAS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "cos": np.cos,
    "elu": elu,
    "erf": np.vectorize(erf),
    "exp": np.exp,
    "floor": np.floor,
    "gelu": lambda x: x * normal(x),
    "gelu_approx_tanh": gelu_tanh,
    "identity": lambda x: x,
    "log": np.log,
    "logical_not": lambda x: x == 0,
    "neg": lambda x: -x,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": sigmoid,
    "sin": np.sin,
    "softplus": softplus,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "elu_backward": lambda dy, x: dy * slope(elu, x),
    "gelu_backward": lambda dy, x: dy * slope(lambda v: v * normal(v), x),
    "gelu_approx_tanh_backward": lambda dy, x: dy * slope(gelu_tanh, x),
    "sigmoid_backward": lambda dy, x: dy * slope(sigmoid, x),
    "softplus_backward": lambda dy, x: dy * slope(softplus, x),
    "tanh_backward": lambda dy, x: dy * slope(np.tanh, x),
    "add": lambda a, b: a + b,
    "add_square": lambda a, b: a + b * b,
    "div": lambda a, b: a / b,
    "logical_and": lambda a, b: (a != 0) & (b != 0),
    "logical_or": lambda a, b: (a != 0) | (b != 0),
    "mul": lambda a, b: a * b,
    "sub": lambda a, b: a - b,
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.fmod,
    "pow": np.power,
    "cmp_eq": lambda a, b: a == b,
    "cmp_ge": lambda a, b: a >= b,
    "cmp_gt": lambda a, b: a > b,
    "cmp_le": lambda a, b: a <= b,
    "cmp_lt": lambda a, b: a < b,
    "cmp_neq": lambda a, b: a != b,
    "bias": lambda a, b: a + b,
    "scale": lambda a, b: a * b,
    "binary_select": lambda a, b, mask: np.where(mask != 0, a, b),
    "relu": lambda x: np.maximum(x, 0),
    "relu_backward": lambda dy, x: np.where(x > 0, dy, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.2 * x),
    "leaky_relu_backward": lambda dy, x: np.where(x > 0, dy, 0.2 * dy),
    "swish": lambda x: x * sigmoid(1.5 * x),
    "swish_backward": lambda dy, x: dy * slope(lambda v: v * sigmoid(1.5 * v), x),
    "gen_index": lambda x: np.broadcast_to(np.arange(8.0), x.shape),
}
ATTRIBUTES = {"leaky_relu": {"negative_slope": 0.2}, "swish": {"swish_beta": 1.5}, "gen_index": {"axis": 1}}
POSITIVE = ("log", "rsqrt", "sqrt", "reciprocal", "pow", "mod", "div", "tan")


def test_every_row_has_its_formula() -> None:
    assert FORMULAS.keys() == POINTWISE.keys()


def test_operations_of_elements(place: Any) -> None:
    """All in one graph, with operands of whole halves so that some are equal."""
    signed = np.random.default_rng(0).integers(-4, 5, (3, 4, 8)) / 2 + np.array([[[0.0]], [[0.25]], [[0.0]]])
    above = np.abs(signed) / 4 + 0.25
    g = cudnn.pygraph(io_data_type=T.FLOAT, compute_data_type=T.FLOAT, handle=place.handle)
    sets = {False: signed, True: above}
    given = {key: [place.put(x, "f32") for x in values] for key, values in sets.items()}
    tensors = {key: list(map(g.tensor_like, arrays)) for key, arrays in given.items()}
    pack = {t: a for key in sets for t, a in zip(tensors[key], given[key], strict=True)}
    wanted = {}
    for name, row in POINTWISE.items():
        is_positive, count = name in POSITIVE, len(row.operands)
        named = dict(zip(row.operands, tensors[is_positive], strict=False))
        attributes = ATTRIBUTES.get(name.removesuffix("_backward"), {})
        result = getattr(g, name)(**named, **attributes, name=name).set_output(True).set_data_type(T.FLOAT)
        wanted[result] = name, FORMULAS[name](*sets[is_positive][:count])
    g.build()
    results = {tensor: place.like(tensor) for tensor in wanted}
    place.run(g, pack | results)
    for tensor, (name, want) in wanted.items():
        try:
            place.close(results[tensor], want.astype(float))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def test_gradients_of_experts(place: Any) -> None:
    tokens, slopes = place.random((1, 12, 8)), place.random((1, 12, 4), seed=1)
    g = cudnn.pygraph(io_data_type=T.FLOAT, compute_data_type=T.FLOAT, handle=place.handle)
    X, D = g.tensor_like(tokens), g.tensor_like(slopes)
    starts = g.tensor(dim=[3, 1, 1], stride=[1, 1, 1], data_type=T.INT32)
    W = g.moe_grouped_matmul_bwd(doutput=D, token=X, first_token_offset=starts, name="back").set_output(True)
    g.build()
    w = place.like(W)
    place.run(g, {X: tokens, D: slopes, starts: place.put(np.array([0, 5, 7]).reshape(3, 1, 1), "i32"), W: w})
    x, d = place.get(tokens)[0], place.get(slopes)[0]
    want = [x[rows].T @ d[rows] for rows in (slice(0, 5), slice(5, 7), slice(7, 12))]
    place.close(w, np.stack(want))
    assert g.find_tensor("back::dweight") is W


@pytest.mark.parametrize(
    ("method", "dims", "of_scale", "axes", "shared"),
    [
        ("instancenorm_backward", (2, 6, 5, 5), (1, 6, 1, 1), (2, 3), (0, 2, 3)),
        ("adalayernorm_backward", (3, 4, 16), (3, 1, 16), (2,), (1,)),
    ],
)
def test_gradients_of_norms(
    place: Any, method: str, dims: Any, of_scale: Any, axes: Any, shared: tuple[int, ...]
) -> None:
    x, dy, scale = place.random(dims), place.random(dims, seed=1), place.random(of_scale, seed=2)
    wide = place.get(x)
    center = wide.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(wide.var(axes, keepdims=True) + 1e-5)
    mean, inv = place.put(center, "f32"), place.put(inverse, "f32")
    g = cudnn.pygraph(io_data_type=T.FLOAT, compute_data_type=T.FLOAT, handle=place.handle)
    operands = [dy, x, scale, mean, inv]
    tensors = list(map(g.tensor_like, operands))
    made = getattr(g, method)(*tensors)
    for tensor in made:
        tensor.set_output(True).set_data_type(T.FLOAT)
    g.build()
    results = list(map(place.like, made))
    place.run(g, dict(zip([*tensors, *made], [*operands, *results], strict=True)))
    xhat, through = (wide - center) * inverse, place.get(dy) * place.get(scale)
    mean_of = through.mean(axes, keepdims=True) + xhat * (through * xhat).mean(axes, keepdims=True)
    place.close(results[0], inverse * (through - mean_of))
    place.close(results[1], (place.get(dy) * xhat).sum(shared, keepdims=True))
    place.close(results[2], place.get(dy).sum(shared, keepdims=True))


def test_gradients_of_mxfp8_are_wefts() -> None:
    """Bitwise equal to weft.Graph, whose own test has the definition."""
    rng = np.random.default_rng(0)
    fp8, of = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
    shape, rows, columns = (1, 1, 32, 32), (1, 1, 32, 1), (1, 1, 1, 32)
    q, k, v, dO = (rng.standard_normal(shape).astype(fp8) for _ in range(4))
    o = rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    stats = rng.uniform(3, 4, (1, 1, 32, 1)).astype("f4")
    factors = [(2.0 ** rng.integers(-2, 1, s)).astype(of) for s in (rows, columns) for _ in range(4)]
    of_q, of_k, of_v, of_dO, of_q_T, of_k_T, of_dO_T, _ = factors
    operands = [q, q, k, k, v, o, dO.astype(o.dtype), dO, dO, stats]
    operands += [of_q, of_q_T, of_k, of_k_T, of_v, of_dO, of_dO_T]
    handle = cudnn.create_handle("cpu")
    own = weft.Graph(handle=handle)
    own.sdpa_mxfp8_backward(*operands, attn_scale=0.2)
    face = cudnn.pygraph(handle=handle)
    made = face.sdpa_mxfp8_backward(*operands, attn_scale=0.2, use_deterministic_algorithm=False, name="back")
    for mine, wefts in zip(face(), own(), strict=True):
        np.testing.assert_array_equal(np.asarray(mine, float), np.asarray(wefts, float))
    assert face.find_tensor("back::Amax_dK") is made[4]


def test_every_operation_is_tested() -> None:
    folder = Path(__file__).parent
    text = "".join(path.read_text() for path in [*folder.glob("catalogue/*.py"), *folder.glob("test_*.py")])
    called = set(re.findall(r"\.(\w+)\(|\"(\w+_backward)\"", text))
    names = {name for pair in called for name in pair}
    assert {*STRUCTURED, *ARGUMENTS, "matmul"} <= names
