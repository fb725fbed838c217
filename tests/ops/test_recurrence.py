"""The steps of recurrent layers and their gradients against torch in double precision."""

import checks
import numpy as np
import pytest
import weft

torch = pytest.importorskip("torch")

MODES = ["RELU", "TANH", "LSTM", "GRU"]
GATES = {"LSTM": 4, "GRU": 3}
STATES = ("hx", "cx", "dhy", "dcy")


def step(mode, x, r, h, c, clip):
    """A step of all sequences from the products of the input and of the hidden state."""
    if mode == "LSTM":
        i, f, g, o = (x + r).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        c = c.clamp(*clip) if clip else c
        return torch.sigmoid(o) * torch.tanh(c), c
    if mode == "GRU":
        (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), r.chunk(3, -1)
        z = torch.sigmoid(xz + hz)
        return (1 - z) * torch.tanh(xn + torch.sigmoid(xr + hr) * hn) + z * h, c
    return (torch.relu if mode == "RELU" else torch.tanh)(x + r), c


def layer(mode, t, is_reverse, clip):
    """y, hy, cy and the hidden states before the steps and before projections, [T, B, ..]."""
    steps, batch = t["x"].shape[:2]
    lengths = t.get("seq_len", np.full(batch, steps))
    h, c = t["hx"], t["cx"]
    y, before, whole = ([torch.zeros(())] * steps for _ in range(3))
    for k in reversed(range(steps)) if is_reverse else range(steps):
        runs = torch.from_numpy(k < lengths)[:, None]
        before[k] = h * runs
        r = torch.nn.functional.linear(h, t["weight"], t["bias"])
        m, now = step(mode, t["x"][k], r, h, c, clip)
        after = m @ t["projection"].T if "projection" in t else m
        h, c = torch.where(runs, after, h), torch.where(runs, now, c)
        y[k], whole[k] = after * runs, m * runs
    return torch.stack(y), h, c, torch.stack(before), torch.stack(whole)


def operands(mode, size, dtype="f32", projected=0, lengths=None, wide=None):
    steps, batch, units = size
    gates, p = GATES.get(mode, 1) * units, projected or units
    reach = 1 / max(p, 1) ** 0.5
    given = {
        "x": checks.random((steps, batch, gates), dtype, seed=1),
        "weight": checks.random((gates, p), wide or dtype, -reach, reach, seed=2),
        "bias": checks.random((gates,), wide or dtype, -1, 1, seed=3),
        "hx": checks.random((batch, p), dtype, -1, 1, seed=4),
        "cx": checks.random((batch, units), dtype, seed=5),
        "dy": checks.random((steps, batch, p), dtype, seed=6),
        "dhy": checks.random((batch, p), dtype, seed=7),
        "dcy": checks.random((batch, units), dtype, seed=8),
    }
    if projected:
        given["projection"] = checks.random((p, units), wide or dtype, -1, 1, seed=9)
    if lengths is not None:
        given["seq_len"] = np.int32(lengths)
    return given


def oracle(mode, given, is_reverse=False, clip=None):
    """The results of the layer, then its gradients by name."""
    t = {
        name: value if name == "seq_len" else torch.tensor(checks.exact(value), requires_grad=True)
        for name, value in given.items()
    }
    y, hy, cy, before, whole = layer(mode, t, is_reverse, clip)
    loss = (y * t["dy"]).sum() + (hy * t["dhy"]).sum()
    if mode == "LSTM":
        loss = loss + (cy * t["dcy"]).sum()
    names = [
        "x",
        "hx",
        "weight",
        "bias",
        *(["cx"] if mode == "LSTM" else []),
        *(["projection"] if "projection" in t else []),
    ]
    grads = dict(zip(names, torch.autograd.grad(loss, [t[name] for name in names]), strict=True))
    return [v.detach().numpy() for v in (y, hy, cy, before, whole)], {k: v.numpy() for k, v in grads.items()}


TOLERANCE = {"f64": 1e-13, "f32": 2e-6, "f16": 4e-3, "bf16": 3e-2}
"""Of the largest element of a result: errors of the states and gates accumulate over the steps."""


def compare(build, given, wanted, dtype="f32"):
    """Runs a graph on every engine, and compares results that have an expected value."""
    made = checks.check(build, given, [None] * len(wanted))
    for engine, outputs in made.items():
        for i, (got, want) in enumerate(zip(outputs, wanted, strict=True)):
            error = np.abs(checks.exact(got) - want).max(initial=0)
            bound = TOLERANCE[dtype] * max(np.abs(want).max(initial=0), 0.01)
            assert error <= bound, f"{engine}: output {i} is off by {error}, allowed {bound}"
    return made


def check(mode, size, dtype="f32", is_reverse=False, clip=None, **kinds):
    """Forward and backward in one graph, and the gradients of the weights from their results."""
    given = operands(mode, size, dtype, **kinds)
    is_lstm, is_gru, has_projection = mode == "LSTM", mode == "GRU", "projection" in given
    (y, hy, cy, before, whole), grads = oracle(mode, given, is_reverse, clip)
    if not is_lstm:
        del given["cx"], given["dcy"]
    how = {"mode": mode, "is_reverse": is_reverse}
    if clip:
        how |= {"cell_clip_min": clip[0], "cell_clip_max": clip[1]}

    def build(g, x, weight, bias, hx, dy, dhy, cx=None, dcy=None, **others):
        y, hy, cy, gates = g.recurrence(x, weight, bias, hx, cx, **others, **how)
        results = g.recurrence_backward(dy, y, weight, gates, hx, cx, dhy, dcy, **others, **how)
        return [v for v in (y, hy, cy, *results) if v is not None]

    names = ["y", "hy", *(["cy"] if is_lstm else []), "dx", "dhx", *(["dcx"] if is_lstm else []), "previous"]
    names += ["drecurrent"] if is_gru else ["dprojected", "unprojected"] if has_projection else []
    known = {"y": y, "hy": hy, "cy": cy, "dx": grads["x"], "dhx": grads["hx"], "dcx": grads.get("cx")}
    known |= {"previous": before, "unprojected": whole}
    made = checks.check(build, given, [None] * len(names))
    for engine, outputs in made.items():
        got = {name: checks.exact(v) for name, v in zip(names, outputs, strict=True)}
        recurrent = got.get("drecurrent", got["dx"])
        got |= {"weight": np.einsum("tbg,tbp->gp", recurrent, got["previous"]), "bias": recurrent.sum((0, 1))}
        if has_projection:
            got["projection"] = np.einsum("tbp,tbh->ph", got["dprojected"], got["unprojected"])
        for name, want in (
            known | {name: grads[name] for name in ("weight", "bias", "projection") if name in grads}
        ).items():
            if name not in got:
                continue
            error = np.abs(got[name] - want).max(initial=0)
            bound = TOLERANCE[dtype] * max(np.abs(want).max(initial=0), 0.01)
            assert error <= bound, f"{engine}: {name} is off by {error}, allowed {bound}"


# Steps, batch, units.
SIZES = [(1, 1, 1), (3, 2, 5), (4, 1, 40), (2, 9, 16), (5, 3, 70)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_sizes(mode, size):
    check(mode, size)


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
@pytest.mark.parametrize("mode", MODES)
def test_types(mode, dtype):
    check(mode, (4, 3, 24), dtype)


@pytest.mark.parametrize("mode", MODES)
def test_reverse_with_lengths(mode):
    check(mode, (5, 4, 12), is_reverse=True, lengths=[5, 1, 0, 3])


@pytest.mark.parametrize("mode", MODES)
def test_lengths(mode):
    check(mode, (5, 4, 12), lengths=[2, 5, 0, 4])


@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize("projected", [1, 7, 33])
def test_projection(projected, is_reverse):
    check("LSTM", (4, 3, 20), projected=projected, is_reverse=is_reverse, lengths=[4, 2, 3])


def test_projection_of_16_bits():
    check("LSTM", (4, 3, 20), "bf16", projected=8)


def test_weights_that_exceed_shared_memory():
    check("LSTM", (2, 1, 900), "f64")


def test_cells_are_clipped():
    check("LSTM", (6, 3, 20), clip=(-0.5, 0.75))


def test_wide_weights():
    check("LSTM", (3, 2, 16), "bf16", wide="f32")


@pytest.mark.parametrize("mode", MODES)
def test_without_optional_operands(mode):
    given = operands(mode, (3, 2, 6))
    zeros = {name: np.zeros_like(given[name]) for name in ("bias", *STATES)}
    (y, hy, *_), grads = oracle(mode, given | zeros)

    def build(g, x, weight, dy):
        y, hy, _, gates = g.recurrence(x, weight, mode=mode)
        return y, hy, g.recurrence_backward(dy, y, weight, gates, mode=mode)[0]

    compare(build, {name: given[name] for name in ("x", "weight", "dy")}, (y, hy, grads["x"]))


def test_batch_first():
    """The order of dims is [T, B, ..]; strides may be those of [B, T, ..]."""
    given = operands("LSTM", (4, 3, 6))
    (y, *_), _ = oracle("LSTM", given | {name: np.zeros_like(given[name]) for name in STATES})
    x = given["x"], (24, 96, 1)

    def build(g, x, weight, bias):
        return g.recurrence(x, weight, bias)[0]

    compare(build, {"x": x, "weight": given["weight"], "bias": given["bias"]}, [y])


def test_refusals():
    checks.refuses(
        lambda g, x, weight: g.recurrence(x, weight),
        {"x": ((3, 2, 24), "f32"), "weight": ((24, 5), "f32")},
        "recurrence 'recurrence_0': weight is [24,5], of 6 units and a hidden state of 5. Give it 6 "
        "columns, or set a projection.",
    )
    checks.refuses(
        lambda g, x, weight: g.recurrence(x, weight, mode="GRU"),
        {"x": ((3, 2, 25), "f32"), "weight": ((25, 6), "f32")},
        "recurrence 'recurrence_0': weight is [25,6], but its rows are those of 3 gates. Give it the same "
        "number of rows for each gate.",
    )
    checks.refuses(
        lambda g, x, weight, cx: g.recurrence(x, weight, cx=cx, mode="TANH"),
        {"x": ((3, 2, 6), "f32"), "weight": ((6, 6), "f32"), "cx": ((2, 6), "f32")},
        "recurrence 'recurrence_0': cx is set, but only LSTM has it. Leave it unset.",
    )
    checks.refuses(
        lambda g, x, weight: g.recurrence(x, weight, mode="TANH", cell_clip_max=1),
        {"x": ((3, 2, 6), "f32"), "weight": ((6, 6), "f32")},
        "recurrence 'recurrence_0': cell_clip_min and cell_clip_max are set, but only LSTM has "
        "cells. Leave them unset.",
    )
    checks.refuses(
        lambda g, dy, y, weight: g.recurrence_backward(dy, y, weight),
        {"dy": ((3, 2, 6), "f32"), "y": ((3, 2, 6), "f32"), "weight": ((24, 6), "f32")},
        "recurrence_backward 'recurrence_backward_0': gates is not set. Give it the gates of the "
        "forward operation.",
    )


def test_length_out_of_range():
    g = weft.Graph(handle=checks.handle())
    x, weight = np.zeros((3, 2, 8), np.float32), np.zeros((8, 2), np.float32)
    if checks.DEVICE != "cpu":
        pytest.skip("a GPU clamps lengths")
    g.recurrence(x, weight, seq_len=np.int32([3, 4]))
    with pytest.raises(weft.WeftError, match=r"entry 1 of seq_len.*expected 0\.\.3, got 4"):
        g()
