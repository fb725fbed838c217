"""Attention graphs on packed sequences (THD), with ragged offsets in elements or in tokens. Tokens between
sequences are unused: NaN in operands, and unchanged in results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import checks
import numpy as np
import weft
from attention_oracle import Case
from weft import dtypes

STATISTICS = ("stats", "score_max", "score_sum_exp")
QUERIES, KEYS = ("q", "o", "dO", "dQ", *STATISTICS), ("k", "v", "dK", "dV")
CANARY = 77.0


def starts(lengths: Sequence[int], gap: int = 0) -> np.ndarray:
    """Returns the first token of each sequence, and the end. Three tokens before the first sequence and `gap`
    tokens after each are unused."""
    return np.cumsum([3, *(length + gap for length in lengths)])


def packed(array: np.ndarray, lengths: Sequence[int], gap: int, between: float) -> np.ndarray:
    """Packs [B, H, S, D] to [tokens, H, D], with unused tokens between sequences and at both ends."""
    at = starts(lengths, gap)
    found = np.full((at[-1] + 2, array.shape[1], array.shape[3]), between).astype(array.dtype)
    for b, length in enumerate(lengths):
        found[at[b] : at[b] + length] = array[b, :, :length].swapaxes(0, 1)
    return found


class Tokens:
    """A graph whose operands are packed tokens, except those named as padded."""

    def __init__(
        self,
        case: Case,
        in_tokens: bool,
        padded: Sequence[str] = (),
        gap: int = 0,
        batch_is_token: bool = False,  # the batch stride is one token
    ) -> None:
        self.case, self.in_tokens, self.padded, self.gap = case, in_tokens, padded, gap
        self.batch_is_token = batch_is_token
        self.g = weft.Graph(handle=checks.handle())
        self.arrays: dict[Any, np.ndarray] = {}
        self.offsets: dict[Any, Any] = {}
        self.wanted: dict[str, tuple[Any, np.ndarray]] = {}

    def lengths(self, name: str) -> list[int]:
        """Returns the tokens in use of each sequence of an operand."""
        lengths = self.case.seq_len_q if name in QUERIES else self.case.seq_len_kv
        assert lengths is not None
        return lengths

    def is_ragged(self, name: str) -> bool:
        """True if an operand or a result is packed."""
        return name in QUERIES + KEYS and name not in self.padded

    def shape(self, tensor: Any, name: str, dims: tuple[int, ...]) -> Any:
        """Declares a graph tensor as packed tokens."""
        if not self.is_ragged(name):
            return tensor
        _, heads, rows, depth = dims
        # The batch stride spans tokens that belong to no sequence, too.
        tokens = 1 if self.batch_is_token else rows + self.gap + starts([])[0]
        tensor.set_dim(dims).set_stride((tokens * heads * depth, depth, heads * depth, 1))
        key = (tuple(self.lengths(name)), 1 if self.in_tokens else heads * depth)
        if key not in self.offsets:
            values = (starts(key[0], self.gap) * key[1]).astype(np.int32).reshape(-1, 1, 1, 1)
            offsets = self.g.tensor(values.shape, data_type="i32")
            self.offsets[key], self.arrays[offsets] = offsets, values
        multiplier = heads * depth if self.in_tokens else 1
        return tensor.set_ragged_offset(self.offsets[key]).set_ragged_offset_multiplier(multiplier)

    def pack(self, name: str, array: np.ndarray, between: float) -> np.ndarray:
        """Returns an array in its memory layout."""
        if not self.is_ragged(name):
            return np.array(array)
        return packed(array, self.lengths(name), self.gap, between)

    def input(self, name: str, array: np.ndarray) -> Any:
        """Returns the tensor of an operand."""
        dtype = str(dtypes.of(dtypes.data_type_of(array.dtype)).name)
        tensor = self.shape(self.g.tensor(array.shape, data_type=dtype, name=name), name, array.shape)
        self.arrays[tensor] = self.pack(name, array, np.nan)
        return tensor

    def output(self, name: str, tensor: Any, want: np.ndarray) -> None:
        """Declares a tensor as a result."""
        self.shape(tensor.set_output(True), name, want.shape)
        self.wanted[name] = tensor, want

    def run(self, engine: str | None = None) -> dict[str, np.ndarray]:
        """Returns the results in their memory layout, by name, from the given engine or the recommended
        one."""
        if engine is None:
            self.g.build()
        else:
            index = [answer["engine"] for answer in self.g.support()].index(engine)
            self.g.create_execution_plan(index, {})
            self.g.build_plan_at_index(0)
        for name, (tensor, want) in self.wanted.items():
            shape = self.pack(name, want, CANARY).shape
            self.arrays[tensor] = checks.narrow(np.full(shape, CANARY), tensor.dtype)
        checks.execute(self.g, self.arrays)
        return {name: checks.exact(self.arrays[tensor]) for name, (tensor, _) in self.wanted.items()}

    def unpacked(self, name: str, got: np.ndarray) -> np.ndarray:
        """Unpacks a result to [B, H, S, D], with the expected values outside of sequences; memory between
        sequences must be unchanged."""
        found = np.array(self.wanted[name][1], np.float64)
        if not self.is_ragged(name):
            return got
        between, at = np.ones(len(got), bool), starts(self.lengths(name), self.gap)
        for b, length in enumerate(self.lengths(name)):
            found[b, :, :length] = got[at[b] : at[b] + length].swapaxes(0, 1)
            between[at[b] : at[b] + length] = False
        assert (got[between] == CANARY).all(), f"{name} is written between sequences"
        return found
