"""Trains a small GPT to continue a text, character by character, with Weft's attention, norms and loss.

    python examples/gpt_block.py [cuda]

For torch.compile, use `model = torch.compile(model, backend="weft")` instead of weft.torch.enable().
"""

from __future__ import annotations

import sys

import torch
import weft.torch
from torch import nn

F = nn.functional
TEXT = "Warp and weft: the warp is stretched on the loom, and the weft is drawn through it, over and under. "
ALPHABET, REPEATS = sorted(set(TEXT)), 8


class Block(nn.Module):
    """Causal attention and two layers, each preceded by a norm and with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forward pass."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Maps characters to scores of the next character."""

    def __init__(self, width: int, heads: int, blocks: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(len(ALPHABET), width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)), nn.LayerNorm(width))
        self.scores = nn.Linear(width, len(ALPHABET))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Forward pass."""
        at = torch.arange(text.shape[1], device=text.device)
        return self.scores(self.blocks(self.tokens(text) + self.positions(at)))


def train(device: str, steps: int, width: int, length: int) -> list[float]:
    """Returns the loss of each step."""
    torch.manual_seed(3)
    text = torch.tensor([ALPHABET.index(letter) for letter in TEXT * REPEATS], device=device)
    model = Gpt(width, 4, 2, length).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(text) - length, (8,)).tolist()
        batch = torch.stack([text[i : i + length + 1] for i in starts])
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def main(device: str = "cpu", steps: int = 120, width: int = 64, length: int = 64) -> list[list[float]]:
    """The losses of all steps with eager torch and with Weft."""
    eager = train(device, steps, width, length)
    with weft.torch.enable() as weft_under:
        under = train(device, steps, width, length)
    print(f"loss after {steps} steps: eager torch {eager[-1]:.4f}, with Weft {under[-1]:.4f}")
    print(weft_under.report(), dict(weft_under.report()), sep="\n")
    return [eager, under]


if __name__ == "__main__":
    main(*sys.argv[1:])
