"""A recognizer trained with the CTC loss: it learns to read strings of digits from signals in which each
digit takes a different number of steps, without being told where they begin.

    python examples/ctc_recognizer.py [cuda]
"""

from __future__ import annotations

import itertools
import sys

import torch
import weft.torch

DIGITS, FEATURES, LONGEST = 10, 16, 6
BLANK = 0  # digits are classes 1 to 10


class Signals:
    """Random strings of digits: each digit is a pattern of features that lasts 2 to 4 steps, with noise."""

    def __init__(self, device: str, seed: int = 1) -> None:
        self.random, self.device = torch.Generator().manual_seed(seed), device
        self.patterns = torch.randn(DIGITS + 1, FEATURES, generator=self.random)
        self.patterns[BLANK] = 0  # the signal between two digits

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor, list[int], list[list[int]]]:
        """Returns signals [N, FEATURES, T], labels [N, LONGEST], lengths of the signals, and the strings."""
        strings, signals = [], []
        for _ in range(count):
            length = int(torch.randint(1, LONGEST + 1, (), generator=self.random))
            string = torch.randint(1, DIGITS + 1, (length,), generator=self.random)
            lasts = torch.randint(2, 5, (length,), generator=self.random)
            steps = [
                torch.tensor([digit] * last + [BLANK])
                for digit, last in zip(string.tolist(), lasts, strict=True)
            ]
            signals.append(self.patterns[torch.cat(steps)])
            strings.append(string.tolist())
        lengths = [len(signal) for signal in signals]
        padded = torch.nn.utils.rnn.pad_sequence(signals, batch_first=True)
        padded = padded + 0.3 * torch.randn(padded.shape, generator=self.random)
        labels = torch.zeros(count, LONGEST, dtype=torch.long)
        for row, string in zip(labels, strings, strict=True):
            row[: len(string)] = torch.tensor(string)
        return padded.transpose(1, 2).to(self.device), labels.to(self.device), lengths, strings


class Recognizer(torch.nn.Module):
    """Two convolutions along the steps, then the scores of each class."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv1d(FEATURES, width, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv1d(width, width, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv1d(width, DIGITS + 1, 1),
        )

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Returns log-probabilities [T, N, classes]."""
        return self.layers(signals).permute(2, 0, 1).log_softmax(-1)


def read(log_probs: torch.Tensor, lengths: list[int]) -> list[list[int]]:
    """The most probable class of each step, without repetitions and blanks."""
    paths = log_probs.argmax(-1).t().tolist()
    shown = [itertools.groupby(path[:length]) for path, length in zip(paths, lengths, strict=True)]
    return [[label for label, _ in each if label != BLANK] for each in shown]


def main(device: str = "cpu", steps: int = 150, batch: int = 32) -> float:
    """Returns the share of new strings that are read without a mistake."""
    torch.manual_seed(3)
    signals, model = Signals(device), Recognizer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    with weft.torch.enable() as enabled:
        for step in range(steps):
            x, labels, lengths, strings = signals.draw(batch)
            counts = [len(string) for string in strings]
            loss = torch.nn.functional.ctc_loss(model(x), labels, lengths, counts, BLANK, zero_infinity=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"step {step}: loss {loss.item():.3f}")
        x, _, lengths, strings = signals.draw(200)
        with torch.no_grad():
            found = read(model(x), lengths)
    right = sum(a == b for a, b in zip(found, strings, strict=True)) / len(strings)
    print(f"{right:.0%} of new strings are read without a mistake")
    print(dict(enabled.report()))
    return right


if __name__ == "__main__":
    main(*sys.argv[1:])
