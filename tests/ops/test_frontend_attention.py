# SPDX-License-Identifier: Apache-2.0
"""Attention as NVIDIA's frontend builds it for cuDNN: keys and values transposed by strides, the scale and
the -inf of masks by value, sums of the gradient stored. Values on every engine, and plans for an H200."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import checks
import numpy as np
import pytest
import weft

INF = float("inf")


@dataclass
class Attention:
    dims: tuple[int, int, int, int] = (2, 3, 24, 16)
    dtype: str = "f16"
    mask: str = ""  # or "causal": indices; or "band": an operation
    keep: float = 1.0
    is_square: bool = True
    stores_sums: bool = True
    fill: float = -INF  # passed at execution, like the factors
    factor: float = 1.0

    @property
    def keys(self) -> int:
        return self.dims[2] if self.is_square else self.dims[2] + 8

    def scalars(self) -> dict[str, tuple[float, str]]:
        found = {"scale": (0.25, "f32")}
        if self.mask:
            found["fill"] = (self.fill, "f32")
        return found

    def gradient_scalars(self) -> dict[str, tuple[float, str]]:
        found = self.scalars() | {"sums_factor": (self.factor * self.keep, "f32")}
        if self.keep != 1:
            found["kept"] = (1 / self.keep, "f32")
        return found

    def transposed(self, array: Any) -> Any:
        """[B, H, D, S] in the memory of [B, H, S, D], with its strides in elements."""
        turned = array.swapaxes(2, 3)
        return turned, [step // array.itemsize for step in turned.strides]

    def inputs(self) -> dict[str, Any]:
        b, h, s, d = self.dims
        arrays = {
            name: checks.random((b, h, self.keys if name in "kv" else s, d), self.dtype, -1, 1, seed=i)
            for i, name in enumerate(["q", "k", "v", "d_o"])
        }
        return arrays | {"k": self.transposed(arrays["k"])}

    def hide(self, g: weft.Graph, scores: Any, fill: Any) -> Any:
        if self.mask == "band":
            return g.diagonal_band_mask(scores, fill, "CMP_GE")
        row, column = (g.gen_index(scores, axis).set_data_type("i32") for axis in (2, 3))
        return g.binary_select(scores, fill, g.cmp_ge(row, column))

    def forward(self, g: weft.Graph, q: Any, k: Any, v: Any, scale: Any, fill: Any = None) -> Any:
        scores = g.mul(floats(g.matmul(q, k)), scale)
        if self.mask:
            scores = floats(self.hide(g, floats(scores), fill))
        stats = g.tensor([*self.dims[:3], 1], data_type="f32")
        weights = g.softmax(floats(scores), axis=3, stats=stats)
        return g.matmul(weights, v), stats

    def weights(self, given: dict[str, Any]) -> tuple[Any, Any]:
        """Weights and statistics in double precision; hidden scores have the fill value."""
        q, k = (checks.exact(x[0] if isinstance(x, tuple) else x) for x in (given["q"], given["k"]))
        scores = q @ k * 0.25
        if self.mask:
            scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, self.fill)
        most = scores.max(-1, keepdims=True)
        sums = np.exp(scores - most).sum(-1, keepdims=True)
        return np.exp(scores - most) / sums, most + np.log(sums)

    def gradient_inputs(self) -> dict[str, Any]:
        given = self.inputs()
        p, stats = self.weights(given)
        o = (p * self.drops()) @ checks.exact(given["v"])
        v, strides = self.transposed(given["v"])
        return given | {"v": (v, strides), "o": checks.narrow(o, self.dtype), "stats": np.float32(stats)}

    def drops(self) -> Any:
        """The factors of dropout."""
        b, h, s, _ = self.dims
        if self.keep == 1:
            return np.ones((b, h, s, self.keys))
        g = weft.Graph()
        g.rng(seed=7, bernoulli_probability=self.keep).set_dim([b, h, s, self.keys]).set_output(True)
        return checks.exact(np.asarray(g())) / self.keep

    def backward(
        self, g: weft.Graph, q: Any, k: Any, v: Any, d_o: Any, o: Any, stats: Any, **scalars: Any
    ) -> tuple[Any, ...]:
        b, h, rows, depth = self.dims
        mask = g.rng(seed=7, bernoulli_probability=self.keep) if self.keep != 1 else None
        if mask is not None:
            mask.set_dim([b, h, rows, self.keys])
        sums = g.reduction(floats(g.mul(d_o, o)), "ADD", dims=[3])
        sums = floats(g.mul(floats(sums), scalars["sums_factor"]))
        scores = floats(g.mul(floats(g.matmul(q, k)), scalars["scale"]))
        shifted = floats(g.sub(scores, stats))
        if self.mask:
            shifted = floats(self.hide(g, shifted, scalars["fill"]))
        p = floats(g.exp(shifted))
        kept = p if mask is None else floats(g.mul(floats(g.mul(p, mask)), scalars["kept"]))
        dv = g.matmul(self.turned(g, kept, self.dtype), d_o)
        dp = floats(g.matmul(d_o, v))
        dp = dp if mask is None else floats(g.mul(dp, mask))
        ds = floats(g.mul(floats(g.sub(dp, sums)), p))
        ds = ds if mask is None else floats(g.mul(ds, scalars["kept"]))
        ds = floats(g.mul(ds, scalars["scale"]))
        dk = g.matmul(self.turned(g, ds, self.dtype), q)
        wide = g.reshape(k).set_dim([b, h, self.keys, depth]).set_data_type("f32")
        dq_sums = g.matmul(ds, wide.set_stride(packed(b, h, self.keys, depth))).set_data_type("f32")
        dq = g.identity(dq_sums)
        outputs = (dq, dk, dv)
        return (*outputs, dq_sums, sums) if self.stores_sums else outputs

    def turned(self, g: weft.Graph, x: Any, dtype: str) -> Any:
        """The transpose by strides."""
        b, h, rows, _ = self.dims
        y = g.reshape(x).set_dim([b, h, self.keys, rows]).set_data_type(dtype)
        step = rows * self.keys
        return y.set_stride([h * step, step, 1, self.keys])

    def gradients(self, given: dict[str, Any]) -> list[Any]:
        p, _ = self.weights(given)
        if self.mask:  # the mask hides differences of scores and statistics
            p = np.where(np.tri(*p.shape[2:], dtype=bool), p, np.exp(self.fill))
        drops, factor = self.drops(), self.factor
        q, d_o, o = (checks.exact(given[name]) for name in ("q", "d_o", "o"))
        k, v = (checks.exact(given[name][0]) for name in "kv")
        sums = (d_o * o).sum(-1, keepdims=True) * factor * self.keep
        ds = p * ((d_o @ v) * drops * self.keep - sums) / self.keep * 0.25
        dq = ds @ k.swapaxes(2, 3)
        outputs = [dq, ds.swapaxes(2, 3) @ q, (p * drops).swapaxes(2, 3) @ d_o]
        return [*outputs, dq, sums] if self.stores_sums else outputs


def floats(tensor: Any) -> Any:
    return tensor.set_data_type("f32")


def packed(*dims: int) -> list[int]:
    return [int(np.prod(dims[i + 1 :])) for i in range(len(dims))]


FORWARD = {
    "plain": Attention(),
    "causal": Attention(mask="causal"),
    "band": Attention(mask="band"),
    "more keys": Attention(mask="band", is_square=False),
    "bf16": Attention(dtype="bf16", mask="causal"),
    "another fill": Attention(mask="causal", fill=-1.0),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward(name: str) -> None:
    case = FORWARD[name]
    given = {key: x for key, x in case.inputs().items() if key != "d_o"}
    weights, stats = case.weights(given)
    want = [weights @ checks.exact(given["v"]), stats]
    found = checks.check(
        case.forward, given, [None, None], layouts=["packed"], scalars=case.scalars(), out=[case.dtype, "f32"]
    )
    close(found, want, case.dtype)


GRADIENTS = {
    "plain": Attention(),
    "causal": Attention(mask="causal"),
    "band": Attention(mask="band"),
    "more keys": Attention(mask="band", is_square=False),
    "bf16": Attention(dtype="bf16", mask="causal"),
    "without sums": Attention(mask="causal", stores_sums=False),
    "dropout": Attention(mask="causal", keep=0.75),
    "another fill": Attention(mask="causal", fill=-1.0),
    "another factor": Attention(mask="causal", factor=0.5),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    case = GRADIENTS[name]
    given = case.gradient_inputs()
    want = case.gradients(given)
    out = [case.dtype] * 3 + ["f32"] * 2
    found = checks.check(
        case.backward,
        given,
        [None] * len(want),
        layouts=["packed"],
        scalars=case.gradient_scalars(),
        out=out[: len(want)],
    )
    close(found, want, case.dtype)


def close(found: dict[str, list[Any]], want: list[Any], dtype: str) -> None:
    """Weights and their gradients are rounded to 16 bits on the way."""
    for engine, results in found.items():
        for i, (got, expected) in enumerate(zip(results, want, strict=True)):
            error = np.abs(checks.exact(got) - expected).max() / np.abs(expected).max()
            assert error < 8 * checks.roundoff(dtype), f"{engine}, output {i}: error {error}"


# ---- Plans -------------------------------------------------------------------------------------------------


def steps_of(case: Attention, name: str) -> list[tuple[str, str]]:
    """The steps of a plan for an H200."""
    b, h, rows, depth = case.dims
    keys, step = case.keys, case.keys * depth
    g = weft.Graph(device="sm_90", io_data_type=case.dtype)
    by_value = {"dim": [1, 1, 1, 1], "data_type": "f32", "is_pass_by_value": True}
    turned = ([b, h, depth, keys], [h * step, step, 1, depth])
    tensors = {"q": g.tensor(case.dims), "k": g.tensor(*turned)}
    if name == "forward":
        tensors |= {"v": g.tensor([b, h, keys, depth])}
        scalars = case.scalars()
    else:
        tensors |= {"v": g.tensor(*turned), "d_o": g.tensor(case.dims), "o": g.tensor(case.dims)}
        tensors |= {"stats": g.tensor([b, h, rows, 1], data_type="f32")}
        scalars = case.gradient_scalars()
    for output in getattr(case, name)(g, **tensors, **{key: g.tensor(**by_value) for key in scalars}):
        output.set_output(True)
    return [(each["family"], each["detail"]) for each in g.build().plan.report["steps"]]


LARGE = (4, 16, 2048, 128)


@pytest.mark.parametrize(("mask", "described"), [("", ""), ("causal", ", causal"), ("band", ", causal")])
def test_plan_of_forward(mask: str, described: str) -> None:
    ((family, detail),) = steps_of(Attention(LARGE, mask=mask), "forward")
    assert family == "cuda.attention_pattern"
    assert re.match(rf"sdpa_fwd of \d+ operations{described}, cuda.attention_hopper: ", detail), detail


@pytest.mark.parametrize(
    ("case", "described"),
    [
        (Attention(LARGE), ""),
        (Attention(LARGE, mask="causal"), ", causal"),
        (Attention(LARGE, mask="band"), ", causal"),
        (Attention(LARGE, dtype="bf16", mask="causal", keep=0.9), ", causal, dropout"),
    ],
)
def test_plan_of_gradients(case: Attention, described: str) -> None:
    """One step for the gradients, after one for the sums that the frontend stores."""
    (sums, _), (family, detail) = steps_of(case, "backward")
    assert (sums, family) == ("cuda.rows", "cuda.attention_pattern")
    kernels = "cuda.attention_hopper: wgmma .*; cuda.map: "
    assert re.match(rf"sdpa_bwd of \d+ operations{described}, {kernels}", detail), detail


# ---- A mask as the sub-graph of one operation --------------------------------------------------------------


def with_sub_graph(case: Attention) -> Any:
    """What version 1.32 of the frontend builds for cuDNN 9.21 and later."""

    def build(g: weft.Graph, q: Any, k: Any, v: Any, fill: Any) -> Any:
        def mask(g: Any, s: Any) -> Any:
            return case.hide(g, s, fill)

        o, stats = g.sdpa(q, k, v, attn_scale=0.25, score_mod=mask, generate_stats=True)
        return o, stats

    return build


@pytest.mark.parametrize("name", ["causal", "band", "more keys", "another fill"])
def test_sub_graph(name: str) -> None:
    case = FORWARD[name]
    given = {key: x for key, x in case.inputs().items() if key != "d_o"}
    weights, stats = case.weights(given)
    given["k"] = np.ascontiguousarray(given["k"][0].swapaxes(2, 3))
    found = checks.check(
        with_sub_graph(case),
        given,
        [None, None],
        layouts=["packed"],
        scalars={"fill": (case.fill, "f32")},
        out=[case.dtype, "f32"],
    )
    close(found, [weights @ checks.exact(given["v"]), stats], case.dtype)


@pytest.mark.parametrize("mask", ["causal", "band"])
@pytest.mark.parametrize("is_constant", [False, True])
def test_plan_of_sub_graph(mask: str, is_constant: bool) -> None:
    """As fast as attention with a bound, because masked tiles are skipped."""
    plans = []
    for case in (Attention(LARGE, mask=mask), None):
        g = weft.Graph(device="sm_90", io_data_type="f16")
        q, k, v = (g.tensor(LARGE) for _ in range(3))
        fill = g.tensor([1, 1, 1, 1], data_type="f32", is_pass_by_value=True)
        if case:
            o, stats = with_sub_graph(case)(g, q, k, v, -INF if is_constant else fill)
        else:
            o, stats = g.sdpa(q, k, v, attn_scale=0.25, diagonal_band_right_bound=0, generate_stats=True)
        o.set_output(True), stats.set_output(True)
        plans.append([(each["family"], each["detail"]) for each in g.build().plan.report["steps"]])
    assert plans[0] == plans[1]
