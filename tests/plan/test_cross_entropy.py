"""Cross-entropy over logits in primitive operations: one pass computes the loss and the gradient, which
overwrites the logits; and results that are stored over operands at their last use."""

from __future__ import annotations

from typing import Any

import checks
import numpy as np
import pytest
import weft

Array = np.ndarray[Any, Any]


def losses(g: Any, logits: Any, target: Any, count: int, wants_gradient: bool) -> tuple[Any, Any]:
    """The mean over rows of log(sum(exp(z))) - z[target], and its gradient by z."""
    rows = [1, count, 1]
    peak = g.reduction(logits, mode="MAX", name="peak").set_dim(rows)
    shifted = g.sub(logits, peak)
    weights = g.exp(shifted)
    total = g.reduction(weights, mode="ADD", name="total").set_dim(rows)
    here = g.cmp_eq(g.gen_index(logits, 2), target)
    picked = g.reduction(g.binary_select(shifted, 0.0, here), mode="ADD", name="picked").set_dim(rows)
    each = g.sub(g.log(total), picked)
    loss = g.reduction(each, mode="AVG", name="loss").set_dim([1, 1, 1]).set_data_type("f32")
    if not wants_gradient:
        return loss, None
    one_hot = g.binary_select(1.0, 0.0, here)
    return loss, g.mul(g.sub(g.div(weights, total), one_hot), 1 / count, name="dlogits")


def layer(g: Any, x: Any, w: Any, target: Any, wants_gradient: bool) -> tuple[Any, ...]:
    """The last layer of a language model with its loss, forwards or forwards and backwards."""
    loss, dz = losses(g, g.matmul(x, w, name="logits"), target, x.dims[1], wants_gradient)
    if dz is None:
        return (loss,)
    return loss, g.matmul(dz, g.transpose(w, [0, 2, 1])), g.matmul(g.transpose(x, [0, 2, 1]), dz)


# ---- Plans -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intermediate", ["bf16", None])
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_logits_are_stored_once(intermediate: str | None, wants_gradient: bool) -> None:
    """No mask of targets goes through memory, and the gradient overwrites the logits."""
    rows, inner, words = 4096, 1024, 32000
    g = weft.Graph(
        device="sm_90", io_data_type="bf16", intermediate_data_type=intermediate, compute_data_type="f32"
    )
    x, w = g.tensor([1, rows, inner]), g.tensor([1, inner, words], [inner * words, 1, inner])
    for tensor in layer(g, x, w, g.tensor([1, rows, 1], data_type="i32"), wants_gradient):
        tensor.set_output(True)
    report = g.build().plan.report
    families = [step["family"].removeprefix("cuda.") for step in report["steps"]]
    assert families == ["hopper", "rows", "rows"] + ["hopper", "hopper"] * wants_gradient
    stored = {t["name"]: t["workspace_offset"] for t in report["tensors"] if t["workspace_offset"] >= 0}
    large = {name: at for name, at in stored.items() if name in ("logits::C", "dlogits::y")}
    assert set(large) == ({"logits::C", "dlogits::y"} if wants_gradient else {"logits::C"})
    assert len(set(large.values())) == 1
    assert report["workspace_bytes"] <= rows * words * 2 + 2**20
    assert report["least_workspace_bytes"] <= report["workspace_bytes"]


def test_loss_and_gradient_of_given_logits_read_them_once() -> None:
    g = weft.Graph(
        device="sm_90", io_data_type="bf16", intermediate_data_type="bf16", compute_data_type="f32"
    )
    for tensor in losses(g, g.tensor([1, 4096, 32000]), g.tensor([1, 4096, 1], data_type="i32"), 4096, True):
        tensor.set_output(True)
    steps = g.build().plan.report["steps"]
    assert [step["family"] for step in steps] == [
        "cuda.rows",
        "cuda.rows",
    ]  # and the mean of the rows' losses
    assert sum(step["bytes"] for step in steps) <= 2 * 4096 * 32000 * 2 + 2**17


# ---- Values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [511, 512])
@pytest.mark.parametrize("intermediate", ["f32", None])
def test_cross_entropy(intermediate: str | None, words: int) -> None:
    """64 rows of 512 words: as large as what takes the place of another tensor."""
    rows, inner = 64, 32
    x, w = checks.random((1, rows, inner), "bf16"), checks.random((1, inner, words), "bf16", seed=1)
    target = np.random.default_rng(2).integers(0, words, (1, rows, 1)).astype(np.int32)

    def build(g: Any, x: Any, w: Any, target: Any) -> tuple[Any, ...]:
        return layer(g, x, w, target, True)

    wide_x, wide_w = checks.exact(x)[0], checks.exact(w)[0]
    z = wide_x @ wide_w
    shifted = z - z.max(-1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(-1, keepdims=True)
    hot = np.arange(words) == target[0]
    dz = (weights / total - hot) / rows
    loss = (np.log(total[:, 0]) - shifted[hot]).mean()
    # What is stored between operations changes a weight by as much as its logit and its peak are large.
    share = (2.0**-20 if intermediate else 2.0**-7) * np.abs(z).max()
    off = share * (weights / total + hot) / rows
    found = checks.check(
        build,
        {"x": x, "w": w, "target": target},
        [None] * 3,
        out=["f32", "f32", "f32"],
        layouts=["packed"],
        graph={"io_data_type": "bf16", "intermediate_data_type": intermediate, "compute_data_type": "f32"},
    )
    expected = [np.full((1, 1, 1), loss), (dz @ wide_w.T)[None], (wide_x.T @ dz)[None]]
    bounds = [share, off @ np.abs(wide_w.T), np.abs(wide_x.T) @ off]
    for engine, outputs in found.items():
        narrowed = 2.0**11 if engine == "cuda.tf32" else 1
        for got, want, bound in zip(outputs, expected, bounds, strict=True):
            assert (np.abs(checks.exact(got) - want) <= bound * narrowed).all(), engine


def test_results_overwrite_dead_operands() -> None:
    """Large results between steps; some operands have their last use there, and some are read once more."""
    x, w = checks.random((1, 128, 128)), checks.random((1, 128, 128), seed=1)

    def build(g: Any, x: Any, w: Any) -> Any:
        first = g.matmul(x, w)
        weights = g.softmax(first)  # in place of nothing: first is read again
        other = g.softmax(g.matmul(g.softmax(g.matmul(weights, w)), w))
        return g.matmul(g.add(first, other), g.softmax(weights))

    def softmax(a: Array) -> Array:
        made = np.exp(a - a.max(-1, keepdims=True))
        return made / made.sum(-1, keepdims=True)

    wide, wide_w = checks.exact(x), checks.exact(w)
    first = wide @ wide_w
    weights = softmax(first)
    other = softmax(softmax(weights @ wide_w) @ wide_w)
    options = {"compute_data_type": "f32", "intermediate_data_type": "f32", "io_data_type": "f32"}
    checks.check(
        build,
        {"x": x, "w": w},
        (first + other) @ softmax(weights),
        out="bf16",  # of which no rounding of an intermediate is a step
        layouts=["packed"],
        graph=options,
        magnitude=128 * float(np.abs(first).max()),
    )
    g = weft.Graph(handle=checks.handle(), **options)
    build(g, g.tensor_like(x), g.tensor_like(w)).set_output(True)
    placed = [t["workspace_offset"] for t in g.build().plan.report["tensors"] if t["workspace_offset"] >= 0]
    assert len(set(placed)) < len(placed)
