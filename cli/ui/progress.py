"""A progress line on stderr: phase, share done, count, rate and the time left.

    with Progress("read", unit="sessions", shown=True) as progress:
        codec.compress(sessions, progress=progress)      # calls begin("encode", tokens), then adds tokens, and so on
        with progress.hidden():                          # the line is gone while something else is printed
            print("half of it is done")

On a terminal one line is rewritten ten times per second, from the first moment on. In a log a line appears after a
second, and then every five seconds. A thread of its own draws, so that the line moves while an engine works.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from pltz.archive.humanize import duration, size

REDRAW_S = 0.1  # seconds between redraws on a terminal
FIRST_S = 1.0  # seconds before the first line in a log
LOG_S = 5.0  # seconds between lines in a log
SLOW = 0.1  # of a unit per second; of a lower rate the time of each is shown
KNOWN = 0.1  # share of the work after which the rate tells how long the rest takes


def wanted(flag: bool | None) -> bool:
    """Return whether to show progress: as ``--progress/--no-progress`` says, else when stderr is a terminal."""
    return sys.stderr.isatty() if flag is None else flag


class Progress:
    """A counter of one phase after another, shown on stderr.

    Args:
        label: the first phase, a verb.
        unit: what is counted.
        total: how many there will be, if known.
        shown: False counts in silence.
    """

    def __init__(self, label: str, *, unit: str, total: int | None = None, shown: bool) -> None:
        self.shown = shown
        self._terminal = sys.stderr.isatty()
        self._width = 0
        self._lock = threading.Lock()  # the drawing thread reads what the working thread counts
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._set(label, total, unit)

    def _set(self, label: str, total: int | None, unit: str) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.count = 0
        self.note = ""  # what is done at the moment, behind the phase
        self._skipped = 0  # of the count, what took no time
        self._start = self._last = time.monotonic()  # and when something was counted last

    def __enter__(self) -> Self:
        if self.shown:
            self._thread = threading.Thread(target=self._run, name="pltz progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            with self._lock:
                self._end()

    def __call__(self, amount: int) -> None:
        """Count ``amount`` more, as a codec's ``progress``."""
        self.add(amount)

    def reach(self, done: int, total: int) -> None:
        """Count up to ``done`` of a total that is known by now."""
        self.total = total
        self.add(done - self.count)

    def add(self, amount: int, *, skipped: bool = False) -> None:
        """Count ``amount`` more. What was ``skipped`` does not count for the rate."""
        with self._lock:
            self.count += amount
            self._skipped += amount if skipped else 0
            self._last = self._last if skipped else time.monotonic()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the line off the terminal while something else is printed."""
        with self._lock:
            if self.shown and self._terminal and self._width:
                print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
                self._width = 0
            yield

    def begin(self, phase: str, total: int | None = None, unit: str = "tokens") -> None:
        """Begin another phase. The line of the last one stays. The same phase goes on counting."""
        with self._lock:
            if (phase, total) == (self.label, self.total):
                return
            if self.shown:
                self._end()
            self._set(phase, total, unit)

    def line(self) -> str:
        """Return the text of the line: ``encode  41 %  12,288 / 30,000 tokens  5,120 tokens/s  4 s left``."""
        now = time.monotonic()
        seconds = now - self._start
        worked = self.count - self._skipped
        # large pieces are counted when they are done: the time since the last one is of the next
        rate = worked / max(self._last - self._start, 1e-9)
        done = self._amount(self.count)
        if self.total:
            whole = size(self.total) if self.unit == "bytes" else f"{self.total:,} {self.unit}"
            count = size(self.count) if self.unit == "bytes" else f"{self.count:,}"
            done = f"{min(100, 100 * self.count // self.total):3d} %  {count} / {whole}"
        note = f"  {self.note}" if self.note else ""
        if not worked:
            return f"{self.label}  {done}  {duration(seconds)}{note}"
        left = ""
        if self.total and self.count < self.total and worked >= KNOWN * (self.total - self._skipped):
            rest = (self.total - self.count) / rate - (now - self._last)
            left = f"  {duration(rest)} left" if rest > 0 else ""
        slow = self.unit != "bytes" and rate < SLOW
        pace = f"{duration(1 / rate)} each" if slow else f"{self._amount(rate)}/s"
        return f"{self.label}  {done}  {pace}{left}{note}"

    def _amount(self, amount: float) -> str:
        if self.unit == "bytes":
            return size(int(amount))
        return f"{amount:,.{0 if isinstance(amount, int) or amount >= 10 else 1}f} {self.unit}"

    def _run(self) -> None:
        wait = 0.0 if self._terminal else FIRST_S
        while not self._stop.wait(wait):
            with self._lock:
                self._draw(last=False)
            wait = REDRAW_S if self._terminal else LOG_S

    def _end(self) -> None:
        """Print the last line of a phase that counted anything, or clear it."""
        if self.count:
            self._draw(last=True)
        elif self._terminal and self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
        self._width = 0

    def _draw(self, *, last: bool) -> None:
        text = self.line()
        try:
            if self._terminal:
                blank = " " * max(0, self._width - len(text))
                print(f"\r{text}{blank}", end="\n" if last else "", file=sys.stderr, flush=True)
            else:
                print(text, file=sys.stderr, flush=True)
        except (OSError, ValueError):  # stderr is closed: the work goes on
            self.shown = False
        self._width = len(text)
