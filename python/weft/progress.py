"""Progress on a terminal: one line that is rewritten. Without a terminal, one line per finished part, or
nothing."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

BAR = 24
INTERVAL = 0.05  # seconds between two updates
PATIENCE = 1.0  # seconds of waiting before a message is shown


def bar(share: float) -> str:
    """A progress bar with a resolution of one eighth of a character.

    >>> bar(0.5).rstrip()
    '████████████'
    """
    eighths = round(min(max(share, 0), 1) * BAR * 8)
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()).ljust(BAR)


class Progress:
    """Counts steps that are grouped into parts, such as batches in epochs."""

    def __init__(self, parts: int, steps: int, label: str = "epoch", stream: TextIO | None = None) -> None:
        self.parts, self.steps, self.label = parts, steps, label
        self.stream = stream or sys.stdout
        self.is_terminal = self.stream.isatty()
        self.start = time.perf_counter()
        self._drawn = 0.0

    def step(self, part: int, step: int, words: str = "") -> None:
        """Reports a finished step; both numbers start at 1. On a terminal, redraws the bar."""
        now = time.perf_counter()
        if self.is_terminal and now - self._drawn > INTERVAL:
            self._drawn = now
            self._draw((part - 1 + step / self.steps) / self.parts, part, words)

    def finish_part(self, part: int, words: str) -> None:
        """Reports that the last step of a part is finished."""
        if self.is_terminal:
            self._draw(part / self.parts, part, words)
        else:
            self.stream.write(f"  {self.label} {part:>{len(str(self.parts))}}/{self.parts}  {words}\n")
        if part == self.parts and self.is_terminal:
            self.stream.write("\n")
        self.stream.flush()

    def _draw(self, share: float, part: int, words: str) -> None:
        spent = time.perf_counter() - self.start
        left = f"{spent / share - spent:3.0f} s left" if 0 < share < 1 else f"{spent:4.1f} s    "
        count = f"{self.label} {part:>{len(str(self.parts))}}/{self.parts}"
        self.stream.write(f"\r  {bar(share)} {count}  {words}  {left}\x1b[K")
        self.stream.flush()


class Line:
    """A temporary line on a terminal; does nothing without a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.is_shown = self._stream is not None and self._stream.isatty()
        self._is_drawn = False

    def show(self, words: str) -> None:
        """Replaces the text of the line."""
        if self.is_shown:
            self._is_drawn = True
            self._stream.write(f"\r  {words}\x1b[K")
            self._stream.flush()

    def clear(self) -> None:
        """Removes the line."""
        if self._is_drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_drawn = False


class Waiting:
    """Shows what the program is waiting for, and for how long, once it takes more than a second."""

    def __init__(self, words: str, stream: TextIO | None = None, patience: float = PATIENCE) -> None:
        self._words, self._line, self._patience = words, Line(stream), patience
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Waiting:
        if self._line.is_shown:
            self._thread = threading.Thread(target=self._tell, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self._line.clear()

    def _tell(self) -> None:
        start, pause = time.perf_counter(), self._patience
        while not self._done.wait(pause):
            self._line.show(f"{self._words}  {time.perf_counter() - start:.0f} s")
            pause = self._patience / 5
