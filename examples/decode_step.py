"""Decoding as in a language-model server: sequences of different lengths grow token by token, and their keys
and values are stored in pages that any sequence may own.

    python examples/decode_step.py [cuda]
"""

from __future__ import annotations

import sys

import torch
import weft.torch  # noqa: F401  (torch.ops.weft)

PAGE = 16


class PagedCache:
    """Keys and values of all sequences in one pool of pages, [pages, heads, PAGE, elements]."""

    def __init__(self, sequences: int, longest: int, shape: tuple[int, int], like: torch.Tensor) -> None:
        each, (heads, size), device = -(-longest // PAGE), shape, like.device
        self.k, self.v = (like.new_zeros(sequences * each, heads, PAGE, size) for _ in range(2))
        self.lengths = torch.zeros(sequences, dtype=torch.int32, device=device)
        # Pages are assigned in shuffled order, as in a server where sequences have come and gone.
        order = torch.randperm(sequences * each, generator=torch.Generator().manual_seed(1), device="cpu")
        self.table = order.to(device, torch.int32).view(sequences, each)

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Appends one token of each sequence, [sequences, heads, elements]."""
        at = self.lengths.long()
        pages = self.table.long().gather(1, (at // PAGE)[:, None])[:, 0]
        self.k[pages, :, at % PAGE], self.v[pages, :, at % PAGE] = k, v
        self.lengths += 1

    def attend(self, q: torch.Tensor) -> torch.Tensor:
        """Attention of one query of each sequence and head, [sequences, heads, elements]."""
        o, _ = torch.ops.weft.sdpa_paged(q[:, :, None], self.k, self.v, self.table, self.lengths)
        return o[:, :, 0]


def main(device: str = "cpu", tokens: int = 40, heads: int = 8, groups: int = 2, size: int = 64) -> float:
    """Returns the largest difference from attention over contiguous keys."""
    torch.manual_seed(2)
    dtype, sequences = torch.bfloat16 if device == "cuda" else torch.float32, 3
    nothing = torch.zeros(groups, size, device=device, dtype=dtype)
    cache = PagedCache(sequences, tokens + sequences, (groups, size), nothing)
    # sequences start with different lengths
    cache.lengths += torch.arange(sequences, device=device, dtype=torch.int32)
    seen = [[(nothing, nothing)] * n for n in range(sequences)]
    worst = 0.0
    for _ in range(tokens):
        q = torch.randn(sequences, heads, size, device=device, dtype=dtype)
        k, v = torch.randn(2, sequences, groups, size, device=device, dtype=dtype)
        cache.append(k, v)
        results = cache.attend(q)
        for i, history in enumerate(seen):
            history.append((k[i], v[i]))
            keys, values = (torch.stack(each, 1) for each in zip(*history, strict=True))
            full = torch.nn.functional.scaled_dot_product_attention(
                q[i][None, :, None], keys[None], values[None], enable_gqa=True
            )
            worst = max(worst, (results[i] - full[0, :, 0]).abs().max().item())
    print(f"{sequences} sequences, pages of {PAGE}: differs by {worst:.1e} from keys together")
    return worst


if __name__ == "__main__":
    main(*sys.argv[1:])
