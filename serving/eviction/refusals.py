"""Refusals: evictions that were not accepted, for the log and the status of a hook.

Each has its reason, session and tenant.

    refusals.note("multimodal", 1, "chat-7", "acme")       # any thread: microseconds, no I/O
    for row in refusals.rows(): ...                        # the flusher: to be logged

A flood does not fill the log. The first refusal of each reason, session and tenant is a row at once, with at most LINES
rows per PERIOD. The others are counted, and one row per reason gives their number.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

LINES, PERIOD = 20, 60.0  # rows of single refusals per that many seconds
KEPT = 100  # refusals remembered for `Refusals.last`
NAME, WHY = 80, 300  # characters shown of a name and of an explanation


@dataclass(frozen=True)
class Refusal:
    """An eviction that was not accepted.

    ``time``: seconds since 1970. ``count``: refusals for this reason so far. ``session``, ``tenant``: cut to
    NAME characters, "" in a row that stands for several. ``why``: a longer explanation.
    """

    time: int
    reason: str
    count: int
    session: str = ""
    tenant: str = ""
    why: str = ""

    def __str__(self) -> str:
        whose = f": session {self.session!r} of tenant {self.tenant!r}" if self.session or self.tenant else ""
        return f"evictions are refused: {self.reason}{whose}{f' ({self.why})' if self.why else ''}"


class Refusals:
    """The refusals of one hook (see the top of this file)."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant, since an eviction may come from a finalizer
        self._shown: set[tuple[str, str, str]] = set()  # in this period
        # Refusals of this period without a row, by reason: their number, and the count so far.
        self._silent: dict[str, list[int]] = {}
        self._began = time.monotonic()
        self._rows: list[Refusal] = []
        self._last: deque[Refusal] = deque(maxlen=KEPT)

    @property
    def last(self) -> list[Refusal]:
        """Return the most recent refusals, oldest first."""
        with self._lock:
            return list(self._last)

    def note(self, reason: str, count: int, session: Any, tenant: Any, why: str = "") -> bool:
        """Record the ``count``-th refusal for a reason. Returns whether it will be logged."""
        name, whose = brief(session), brief(tenant)
        with self._lock:
            refusal = Refusal(int(time.time()), reason, count, name, whose, _cut(why, WHY))
            self._last.append(refusal)
            key = reason, name, whose
            if key in self._shown or len(self._shown) >= LINES:
                self._silent[reason] = [self._silent.get(reason, [0])[0] + 1, count]
                return False
            self._shown.add(key)
            self._rows.append(refusal)
        return True

    def rows(self, *, ended: bool = False) -> list[Refusal]:
        """Return the rows to log now.

        ``ended``: nothing follows, so refusals that were only counted are included.
        """
        now = time.monotonic()
        with self._lock:
            rows, self._rows = self._rows, []
            if ended or now - self._began >= PERIOD:
                rows += [
                    Refusal(int(time.time()), reason, count, why=f"{more} more of late")
                    for reason, (more, count) in self._silent.items()
                ]
                self._shown.clear()
                self._silent.clear()
                self._began = now
        return rows


def brief(name: object) -> str:
    """Return a name for display, cut where it is long.

    >>> brief("chat-7"), brief("x" * 3000)[-22:], brief(["chat"])
    ('chat-7', '... of 3000 characters', '(a list)')
    """
    return _cut(name, NAME) if isinstance(name, str) else f"(a {type(name).__name__})"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... of {len(text)} characters"
