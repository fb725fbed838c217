"""A progress bar: one line that is rewritten on a terminal, a line per finished part elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

BAR = 24
INTERVAL = 0.05  # seconds between two drawings


class Progress:
    """Counts steps that are grouped in parts, such as batches in epochs."""

    def __init__(self, parts: int, steps: int, label: str = "epoch", stream: TextIO | None = None) -> None:
        self.parts, self.steps, self.label = parts, steps, label
        self.stream = stream or sys.stdout
        self.is_terminal = self.stream.isatty()
        self.start = time.perf_counter()
        self._drawn = 0.0

    def step(self, part: int, step: int, words: str = "") -> None:
        """After a step, both counted from 1: redraws the bar on a terminal."""
        now = time.perf_counter()
        if self.is_terminal and now - self._drawn > INTERVAL:
            self._drawn = now
            self._draw((part - 1 + step / self.steps) / self.parts, part, words)

    def finish_part(self, part: int, words: str) -> None:
        """After the last step of a part."""
        if self.is_terminal:
            self._draw(part / self.parts, part, words)
        else:
            self.stream.write(f"  {self.label} {part:>{len(str(self.parts))}}/{self.parts}  {words}\n")
        if part == self.parts and self.is_terminal:
            self.stream.write("\n")
        self.stream.flush()

    def _draw(self, share: float, part: int, words: str) -> None:
        eighths = round(share * BAR * 8)
        bar = ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()).ljust(BAR)
        spent = time.perf_counter() - self.start
        left = f"{spent / share - spent:3.0f} s left" if 0 < share < 1 else f"{spent:4.1f} s    "
        count = f"{self.label} {part:>{len(str(self.parts))}}/{self.parts}"
        self.stream.write(f"\r  {bar} {count}  {words}  {left}\x1b[K")
        self.stream.flush()
