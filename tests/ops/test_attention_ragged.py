"""Attention on sequences that lie behind each other without padding (THD), some of them empty: every operand
with ragged offsets, in elements or in tokens, forward and backward; what is nobody's own is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import checks
import numpy as np
import pytest
import weft
from attention_oracle import BOTTOM_RIGHT, Case, backward_inputs, by_definition, forward
from weft import dtypes

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
QUERIES, KEYS = ("q", "o", "dO", "stats", "dQ", "score_max"), ("k", "v", "dK", "dV")
CANARY = 77.0


def starts(lengths: list[int]) -> np.ndarray:
    """The first token of each sequence, and the end; three tokens before the first are nobody's."""
    return np.cumsum([3, *lengths])


def packed(array: np.ndarray, lengths: list[int]) -> np.ndarray:
    """[B, H, S, D] as [tokens, H, D], with tokens of nobody at both ends."""
    at = starts(lengths)
    found = np.full((at[-1] + 2, array.shape[1], array.shape[3]), CANARY).astype(array.dtype)
    for b, length in enumerate(lengths):
        found[at[b] : at[b + 1]] = array[b, :, :length].swapaxes(0, 1)
    return found


class Tokens:
    """A graph whose operands are packed tokens."""

    def __init__(self, case: Case, in_tokens: bool, ragged_stats: bool) -> None:
        self.case, self.in_tokens, self.ragged_stats = case, in_tokens, ragged_stats
        self.g = weft.Graph(handle=checks.handle())
        self.arrays: dict[Any, np.ndarray] = {}
        self.offsets: dict[Any, Any] = {}

    def lengths(self, name: str) -> list[int]:
        lengths = self.case.seq_len_q if name in QUERIES else self.case.seq_len_kv
        assert lengths is not None
        return lengths

    def is_ragged(self, name: str) -> bool:
        return name in QUERIES + KEYS and (name not in ("stats", "score_max") or self.ragged_stats)

    def shape(self, tensor: Any, name: str, dims: tuple[int, ...], dtype: str) -> Any:
        """Makes a tensor of the graph one of tokens."""
        tensor.set_dim(dims).set_data_type(dtype)
        if not self.is_ragged(name):
            return tensor
        _, heads, rows, depth = dims
        tensor.set_stride((rows * heads * depth, depth, heads * depth, 1))
        multiplier = heads * depth if self.in_tokens else 1
        key = (tuple(self.lengths(name)), 1 if self.in_tokens else heads * depth)
        if key not in self.offsets:
            values = (starts(self.lengths(name)) * key[1]).astype(np.int32).reshape(-1, 1, 1, 1)
            offsets = self.g.tensor(values.shape, data_type="i32")
            self.offsets[key], self.arrays[offsets] = offsets, values
        return tensor.set_ragged_offset(self.offsets[key]).set_ragged_offset_multiplier(multiplier)

    def input(self, name: str, array: np.ndarray) -> Any:
        tensor = self.shape(
            self.g.tensor(name=name), name, array.shape, str(dtypes.of(dtypes.data_type_of(array.dtype)).name)
        )
        self.arrays[tensor] = packed(array, self.lengths(name)) if self.is_ragged(name) else np.array(array)
        return tensor

    def output(self, tensor: Any, name: str, want: np.ndarray, dtype: str) -> np.ndarray:
        """The array that a result goes to, and of what it should become."""
        self.shape(tensor.set_output(True), name, want.shape, dtype)
        wanted = packed(want, self.lengths(name)) if self.is_ragged(name) else want
        self.arrays[tensor] = checks.narrow(np.full(wanted.shape, CANARY), dtype)
        return wanted

    def run(self) -> None:
        self.g.build()
        checks.execute(self.g, self.arrays)


def check(t: Tokens, made: dict[str, tuple[Any, np.ndarray]], dtype: str) -> None:
    t.run()
    for name, (tensor, want) in made.items():
        got = checks.exact(t.arrays[tensor])
        near = 256 * checks.roundoff("f32") if name in ("stats", "score_max") or dtype == "f32" else 0.05
        np.testing.assert_allclose(got, want, rtol=near, atol=near, err_msg=name)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("in_tokens", "ragged_stats"), [(False, True), (True, False)])
@pytest.mark.parametrize("name", CASES)
def test_ragged(name: str, in_tokens: bool, ragged_stats: bool, dtype: str) -> None:
    case = replace(CASES[name], depth=16, value_depth=24)
    inputs = case.inputs(dtype)
    o, stats, top, _ = forward(case, inputs)
    t = Tokens(case, in_tokens, ragged_stats)
    operands = {key: t.input(key, array) for key, array in inputs.items()}
    score_max = t.g.tensor(name="score_max")
    results = t.g._sdpa_fwd(**operands, **case.values(), score_max=score_max)
    made = {"o": (results[0], o), "stats": (results[1], stats), "score_max": (score_max, top)}
    types = {"o": dtype, "stats": "f32", "score_max": "f32"}
    check(t, {key: (x, t.output(x, key, want, types[key])) for key, (x, want) in made.items()}, dtype)

    inputs = backward_inputs(case, inputs, dtype)
    want, _ = by_definition(case, inputs)
    for is_deterministic in {False, checks.DEVICE == "cuda" and dtype != "f32"}:
        t = Tokens(case, in_tokens, ragged_stats)
        operands = {key: t.input(key, array) for key, array in inputs.items()}
        gradients = t.g._sdpa_bwd(**operands, **case.values(), is_deterministic=is_deterministic)
        wanted = zip(gradients, ("dQ", "dK", "dV"), want, strict=False)
        check(t, {key: (x, t.output(x, key, each, dtype)) for x, key, each in wanted}, dtype)


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
