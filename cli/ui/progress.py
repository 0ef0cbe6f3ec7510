"""A progress line on stderr: the count, the total and the rate.

    with Progress("encode", unit="tokens", shown=True) as progress:
        codec.compress(sessions, progress=progress.add)

On a terminal one line is rewritten ten times per second. In a log a new line appears every five seconds.
"""

import sys
import time
from types import TracebackType
from typing import Self

REDRAW_S = 0.1  # seconds between redraws on a terminal
SAID_S = 5.0  # seconds; a shorter time is not worth a line
LOG_S = 5.0  # seconds between lines in a log


def wanted(flag: bool | None) -> bool:
    """Return whether to show progress: as ``--progress/--no-progress`` says, else when stderr is a terminal."""
    return sys.stderr.isatty() if flag is None else flag


def say_expected(seconds: float) -> None:
    """Print on stderr how long the next batch of sessions will take, if longer than SAID_S."""
    if seconds > SAID_S:
        print(
            f"coding takes about {duration(seconds)} on this machine; --zstd-above SIZE sends large sessions to zstd",
            file=sys.stderr,
            flush=True,
        )


def duration(seconds: float) -> str:
    """Return a duration in words.

    >>> duration(42.4), duration(250), duration(9000)
    ('42 s', '4 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class Progress:
    """A counter shown on stderr.

    Args:
        label: the verb in front.
        unit: what is counted.
        total: how many there will be, if known.
        shown: False counts in silence.
    """

    def __init__(self, label: str, *, unit: str, total: int | None = None, shown: bool) -> None:
        self.label = label
        self.unit = unit
        self.total = total
        self.shown = shown
        self.count = 0
        self._terminal = sys.stderr.isatty()
        self._start = self._last = time.monotonic()
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown and self.count:
            self._draw(last=True)

    def add(self, amount: int) -> None:
        """Count ``amount`` more."""
        self.count += amount
        now = time.monotonic()
        if self.shown and now - self._last >= (REDRAW_S if self._terminal else LOG_S):
            self._last = now
            self._draw(last=False)

    def line(self) -> str:
        """Return the text of the line: ``encode  41 %  12,288 / 30,000 tokens  5,120 tokens/s``."""
        rate = self.count / max(time.monotonic() - self._start, 1e-9)
        done = f"{self.count:,} {self.unit}"
        if self.total:
            done = f"{100 * self.count // self.total:3d} %  {self.count:,} / {self.total:,} {self.unit}"
        return f"{self.label}  {done}  {rate:,.0f} {self.unit}/s"

    def _draw(self, *, last: bool) -> None:
        text = self.line()
        if not self._terminal:
            print(text, file=sys.stderr, flush=True)
            return
        blank = " " * max(0, self._width - len(text))
        print(f"\r{text}{blank}", end="\n" if last else "", file=sys.stderr, flush=True)
        self._width = len(text)
