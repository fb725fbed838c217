"""Attention on sequences that lie behind each other without padding (THD), some of them empty: every operand
with ragged offsets, in elements or in tokens, forward and backward; what is nobody's own is left alone."""

from __future__ import annotations

from dataclasses import replace

import checks
import numpy as np
import pytest
import weft
from attention_oracle import BOTTOM_RIGHT, Case, backward_inputs, by_definition, forward
from attention_tokens import CANARY, STATISTICS, Tokens

CASES = {
    "plain": Case(
        batch=4, heads=(4, 2, 2), rows=9, columns=11, seq_len_q=[5, 0, 9, 1], seq_len_kv=[11, 3, 0, 2]
    ),
    "causal at the end": Case(
        batch=3, heads=(2, 2, 1), rows=7, columns=7, seq_len_q=[3, 7, 0], seq_len_kv=[5, 7, 4], right=0,
        alignment=BOTTOM_RIGHT, has_sums=True, sink=True,
    ),
    "long": Case(batch=2, heads=(2, 1, 1), rows=150, columns=200, seq_len_q=[130, 20], seq_len_kv=[7, 199]),
    "window": Case(
        batch=4, heads=(2, 2, 2), rows=260, columns=260, seq_len_q=[129, 1, 260, 64],
        seq_len_kv=[128, 65, 260, 0], left=70, right=0, alibi=True, has_sums=True,
    ),
}  # fmt: skip


def check(t: Tokens, dtype: str) -> None:
    for name, got in t.run().items():
        want = t.pack(name, t.wanted[name][1], CANARY)
        near = 256 * checks.roundoff("f32") if name in ("stats", "score_max") or dtype == "f32" else 0.05
        np.testing.assert_allclose(got, want, rtol=near, atol=near, err_msg=name)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("in_tokens", "ragged_stats"), [(False, True), (True, False)])
@pytest.mark.parametrize("name", CASES)
def test_ragged(name: str, in_tokens: bool, ragged_stats: bool, dtype: str) -> None:
    case = replace(CASES[name], depth=16, value_depth=24)
    inputs = case.inputs(dtype)
    o, stats, top, _ = forward(case, inputs)
    padded = () if ragged_stats else STATISTICS
    t = Tokens(case, in_tokens, padded)
    operands = {key: t.input(key, array) for key, array in inputs.items()}
    score_max = t.g.tensor(name="score_max")
    results = t.g._sdpa_fwd(**operands, **case.values(), score_max=score_max)
    for key, tensor, want in (
        ("o", results[0], o),
        ("stats", results[1], stats),
        ("score_max", score_max, top),
    ):
        t.output(key, tensor, want)
    check(t, dtype)

    inputs = backward_inputs(case, inputs, dtype)
    want, _ = by_definition(case, inputs)
    for is_deterministic in {False, checks.DEVICE == "cuda" and dtype != "f32"}:
        t = Tokens(case, in_tokens, padded)
        operands = {key: t.input(key, array) for key, array in inputs.items()}
        gradients = t.g._sdpa_bwd(**operands, **case.values(), is_deterministic=is_deterministic)
        for key, tensor, each in zip(("dQ", "dK", "dV"), gradients, want, strict=False):
            t.output(key, tensor, each)
        check(t, dtype)


def test_refusals() -> None:
    g = weft.Graph(device="cpu", io_data_type="f32")
    offsets, q = g.tensor([3, 1, 1, 1], data_type="i32"), g.tensor([2, 1, 4, 8], name="q")
    q.set_ragged_offset(offsets)
    g.sdpa(q, q, q)
    with pytest.raises(weft.WeftError, match="q has ragged offsets, but there is no seq_len_q"):
        g.build()
    g = weft.Graph(device="cpu", io_data_type="f32")
    q, bias = g.tensor([2, 1, 4, 8]), g.tensor([2, 1, 4, 4], name="bias")
    bias.set_ragged_offset(g.tensor([3, 1, 1, 1], data_type="i32"))
    g.sdpa(q, q, q, bias=bias)
    with pytest.raises(weft.WeftError, match=r"tensor 'bias' .* has ragged offsets\. Give a padded tensor"):
        g.build()
