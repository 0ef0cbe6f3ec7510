"""Refusals: evictions that were not accepted, for the log and for ``pltz hook status``.

Each has its reason, session and tenant.

    refusals.note("multimodal", 1, "chat-7", "acme")       # any thread: microseconds, no I/O
    for row in refusals.rows(): ...                        # the flusher: to be logged and written

A flood fills neither the log nor the disk. The first refusal of each reason, session and tenant is a row at
once, with at most LINES rows per PERIOD. The others are counted, and one row per reason gives their number.
File: FORMAT.md, "Refusals".
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pltz.archive.storage.disk import Disk

LINES, PERIOD = 20, 60.0  # rows of single refusals per that many seconds
KEPT = 100  # refusals remembered for `Refusals.last`
NAME, WHY = 80, 300  # characters shown of a name and of an explanation
SUFFIX = ".refusals"
MAX_FILE = 1 << 18  # bytes before a file is started anew
MAX_READ = 4 * MAX_FILE


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


class RefusalFile:
    """The rows of one process in a journal's directory.

    It is a report, so it is not synced, and a failing disk costs only rows.
    """

    def __init__(self, disk: Disk, owner: bytes) -> None:
        self._disk, self._name = disk, f"{owner.hex()}{SUFFIX}"
        self._size = 0
        self._torn = False  # the last row may be half written
        self._counts: dict[str, Refusal] = {}  # the last row of each reason

    def add(self, rows: Sequence[Refusal]) -> None:
        """Append rows. Raises OSError: the rows are lost, but the next one of a reason includes them in its
        count.
        """
        self._counts |= {row.reason: row for row in rows}
        if self._size >= MAX_FILE:
            self._disk.unlink(self._name)
            self._size, rows = 0, list(self._counts.values())
        data = b"\n" * self._torn + b"".join(json.dumps(asdict(row)).encode() + b"\n" for row in rows)
        self._torn = True
        try:
            self._disk.append(self._name, data)
        except FileNotFoundError:
            self._disk.write_new(self._name, data)
        self._torn = False
        self._size += len(data)


def read_refusals(disk: Disk) -> tuple[dict[str, int], list[Refusal]]:
    """Return the refusals that all processes of a journal reported.

    They are counts by reason, and the last rows, oldest first. Malformed rows are skipped, since a process
    may be writing one. Raises OSError.
    """
    counts: dict[str, int] = {}
    rows: list[Refusal] = []
    for file, _ in disk.names(""):
        if not file.endswith(SUFFIX):
            continue
        most: dict[str, int] = {}
        for line in disk.read(file, 0, MAX_READ).splitlines():
            if row := _parse(line):
                rows.append(row)
                most[row.reason] = max(most.get(row.reason, 0), row.count)
        for reason, count in most.items():
            counts[reason] = counts.get(reason, 0) + count
    return counts, sorted(rows, key=lambda row: row.time)[-KEPT:]


def brief(name: object) -> str:
    """Return a name for display, cut where it is long.

    >>> brief("chat-7"), brief("x" * 3000)[-22:], brief(["chat"])
    ('chat-7', '... of 3000 characters', '(a list)')
    """
    return _cut(name, NAME) if isinstance(name, str) else f"(a {type(name).__name__})"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... of {len(text)} characters"


def _parse(line: bytes) -> Refusal | None:
    """Return the row of a line, or None if it is malformed."""
    try:
        fields = json.loads(line)
        row = Refusal(**fields)
    except (ValueError, TypeError, RecursionError):
        return None
    numbers = all(type(value) is int and value >= 0 for value in (row.time, row.count))
    texts = all(isinstance(value, str) for value in (row.reason, row.session, row.tenant, row.why))
    return row if numbers and texts else None
