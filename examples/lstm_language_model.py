"""Trains a language model of characters on this file's text: an LSTM with two layers, once with eager PyTorch
and once with Weft's operators, from the same weights.

    python examples/lstm_language_model.py [cuda]

Needs torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import weft.torch
from torch import nn

SEED, BATCH, LENGTH, RATE = 3, 16, 48, 0.01
F = nn.functional


class Model(nn.Module):
    """Scores of the next character after each character."""

    def __init__(self, characters: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, characters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Forward pass."""
        y, _ = self.lstm(self.embedding(tokens))
        scores: torch.Tensor = self.head(y)
        return scores


def train(tokens: torch.Tensor, characters: int, width: int, steps: int) -> tuple[float, float]:
    """Returns the first and the last loss."""
    torch.manual_seed(SEED)
    with torch.device("cpu"):  # so that the initial weights and the samples are the same on every device
        model = Model(characters, width)
        starts = torch.randint(len(tokens) - LENGTH, (steps, BATCH))
    model.to(tokens.device)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    losses = []
    for first in starts.tolist():
        batch = torch.stack([tokens[i : i + LENGTH + 1] for i in first])
        scores = model(batch[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


def main(device: str = "cpu", width: int = 96, steps: int = 60) -> list[tuple[float, float]]:
    """First and last loss with eager torch and with Weft."""
    text = Path(__file__).read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    tokens = torch.tensor([alphabet.index(each) for each in text], device=device)
    eager = train(tokens, len(alphabet), width, steps)
    with weft.torch.enable() as weft_under:
        under = train(tokens, len(alphabet), width, steps)
    for name, (first, last) in (("eager torch", eager), ("with Weft", under)):
        print(f"{name:12} loss {first:.3f} at first, {last:.3f} after {steps} steps")
    print(weft_under.report())
    return [eager, under]


if __name__ == "__main__":
    main(*sys.argv[1:])
