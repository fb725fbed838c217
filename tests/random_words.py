"""A NumPy Philox-4x32-10, the generator of rng and of attention's dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
STEPS = (0x9E3779B9, 0xBB67AE85)


def philox(counter: np.ndarray[Any, Any], key: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Counter [.., 4] and key [2] of 32-bit words in uint64, as its authors define it."""
    c = [counter[..., i].astype(np.uint64) for i in range(4)]
    k = [int(word) for word in key]
    for _ in range(10):
        left, right = c[0] * np.uint64(MULTIPLIERS[0]), c[2] * np.uint64(MULTIPLIERS[1])
        high, low, keys = np.uint64(32), np.uint64(0xFFFFFFFF), np.array(k, np.uint64)
        c = [(right >> high) ^ c[1] ^ keys[0], right & low, (left >> high) ^ c[3] ^ keys[1], left & low]
        k = [(word + step) % 2**32 for word, step in zip(k, STEPS, strict=True)]
    return np.stack(c, -1)


def halves(number: int) -> tuple[int, int]:
    return number % 2**32, number // 2**32 % 2**32


def blocks(shape: Sequence[int], seed: int = 0, offset: int = 0) -> np.ndarray[Any, Any]:
    """Returns the blocks of four words of each row of the last dimension, [rows, blocks, 4]."""
    rows, per_row = int(np.prod(shape[:-1])), -(-shape[-1] // 4)
    index = np.arange(rows * per_row, dtype=np.uint64).reshape(rows, per_row)
    counter = np.zeros((rows, per_row, 4), np.uint64)
    counter[..., 0], counter[..., 1] = index % 2**32, index // 2**32
    counter[..., 2], counter[..., 3] = halves(offset)
    return philox(counter, halves(seed))


def flat(per_word: np.ndarray[Any, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """[rows, blocks, 4] in the shape of the tensor, without the excess words at the ends of rows."""
    return per_word.reshape(len(per_word), -1)[:, : shape[-1]].reshape(shape)


def units(shape: Sequence[int], **which: int) -> np.ndarray[Any, Any]:
    """Uniform from 0 on, below 1."""
    return flat((blocks(shape, **which) >> np.uint64(8)) / 2.0**24, shape)
