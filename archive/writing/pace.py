"""Pace: how much content a commit should have, so that little is lost with one that is interrupted.

    pace = Pace(4 << 20, 30.0)
    pace.is_full(size, began)     # before a session is added to a commit
    pace.took(size, seconds)      # after a commit: the next ones are as large as can be coded in 30 s

The slowest of the last commits counts: sessions that zstd codes in no time stand between those that the model codes.
"""

from __future__ import annotations

import time
from collections import deque

COMMIT_BYTES = 16 << 20  # of content: what keeps a GPU busy; on a CPU the seconds decide
COMMIT_SECONDS = 30.0
FIRST = 1 << 18  # bytes of content of the first commit: how long coding takes is not known yet
TELLING = 1 << 16  # bytes of content from which a commit tells how long coding takes
REMEMBERED = 4  # commits
SAFETY = 0.7  # share of the time that is aimed at


class Pace:
    """The size of commits: at most ``most_bytes`` of content, or what is coded in ``most_seconds``."""

    def __init__(self, most_bytes: int, most_seconds: float) -> None:
        self._most_bytes, self._most_seconds = most_bytes, most_seconds
        self._rates: deque[float] = deque(maxlen=REMEMBERED)  # bytes per second of commits

    @property
    def limit(self) -> int:
        """Return the bytes of content from which a commit is full."""
        if not self._rates:
            return min(self._most_bytes, FIRST)
        return min(self._most_bytes, int(SAFETY * self._most_seconds * min(self._rates)))

    def is_full(self, size: int, began: float) -> bool:
        """Return whether a commit of ``size`` bytes of content, begun at a time of the monotonic clock, is full."""
        return size >= self.limit or time.monotonic() - began >= self._most_seconds

    def took(self, size: int, seconds: float) -> None:
        """Count a commit of so many new bytes of content that took so long to code."""
        if size >= TELLING or (size and seconds >= self._most_seconds):
            self._rates.append(size / max(seconds, 1e-6))
