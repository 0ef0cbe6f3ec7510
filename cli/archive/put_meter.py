"""The progress of a put: bytes read and stored, what is coded now, and the time that all of it takes.

    read  37 %  3.7 MB / 10.1 MB  1.2 MB/s
    store  12 %  1.2 MB / 10.1 MB  24.1 kB/s  6 min left  coding 3 sessions, 512.0 kB
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import counted, size
from pltz.cli.ui.output import printable, say_if_interrupted
from pltz.cli.ui.progress import ExpectedTime, Progress

if TYPE_CHECKING:
    from pltz.archive.writing.put_request import PutReceipt, PutRequest
    from pltz.plt_codec.errors import PltzError

TOLD_COMMITS = 3  # commits of new sessions after which the time of the rest is said
UNKNOWN = 0.2  # share of the rest that may be of a sort of which nothing was coded yet
TOLD_SHARE = 0.2  # of the bytes, after which it is said in any case
ADVICE = "Ctrl-C keeps what is stored, and --zstd-above SIZE sends large sessions to zstd"
TOLD_S = 5.0  # seconds of storing before which it is not


@dataclass
class _Pace:
    """Sessions of one sort: bytes that are read and not stored, and bytes that were coded in so many seconds.

    The first commit of a sort is not counted: what it needs is loaded in it.
    """

    left: int = 0
    coded: int = 0
    seconds: float = 0.0
    begun: bool = False

    def took(self, amount: int, seconds: float) -> None:
        """Count a commit of so many bytes."""
        if self.begun:
            self.coded += amount
            self.seconds += seconds
        self.begun = self.begun or amount > 0

    def rest(self) -> float:
        """Return the seconds that what is left takes."""
        return self.left * self.seconds / self.coded if self.coded else 0.0


class PutMeter:
    """Counts what a put reads, stores and refuses. ``total``: bytes of all inputs, None where it is not known."""

    def __init__(self, bar: Progress, total: int | None, *, dry_run: bool) -> None:
        self.sessions = self.frozen = self.refused = self.unchanged = 0
        self._bar, self._total, self._dry_run = bar, total or None, dry_run
        # (tenant, name), bytes, is a log: of sessions read, not stored
        self._waiting: deque[tuple[tuple[str, str], int, bool]] = deque()
        self._paces = {True: _Pace(), False: _Pace()}  # of logs, and of others, which take longer per byte
        self._commit = {True: 0, False: 0}  # bytes of the commit under way, of logs and of others
        self._took: float | None = None  # seconds of it, once it is done
        self._read = self._done = self._worked = 0  # bytes
        self._commits = 0
        self._coding = (0, 0)  # sessions and bytes of the commit under way
        self._kept = 0  # bytes of parts of large logs that are durable before the log is
        self._began: float | None = None  # when the first commit was begun
        self._since = 0.0  # when the commit under way was
        self._expected = ExpectedTime(bar, ADVICE, work="coding the rest", silent=dry_run)
        self._say_how_it_ends()
        bar.begin("read", self._total, "bytes")

    def reading(self, items: "Iterable[tuple[PutRequest, int, bool]]") -> "Iterator[PutRequest]":
        """Yield requests without the bytes that each was read from and whether it is a log, and count these."""
        for request, amount, log in items:
            self._waiting.append(((request.tenant, request.name), amount, log))
            self._paces[log].left += amount
            self._read += amount
            if self._bar.label == "read":
                self._bar.add(amount)
            yield request

    def coding(self, sessions: int, content: int) -> None:
        """Say that a commit of so many sessions and bytes of content is coded now, or a part of a large log.

        Of a log that is put in parts, each but the last is told before any receipt.
        """
        if self._began is not None and self._took is None:
            self._kept += self._coding[1]
            self._bar.add(self._coding[1])
            self._say_how_it_ends()
        else:
            self._since = time.monotonic()
        self._settle()
        self._coding = sessions, content
        self._commits += bool(content)
        if self._began is None:
            self._began = time.monotonic()
            self._bar.begin("store", self._total, "bytes")
            self._bar.add(self._done, skipped=True)
        self._bar.note = f"coding {counted(sessions, 'session')}, {size(content)}" if sessions else ""

    def expect(self, seconds: float) -> None:
        """Say how long the rest takes, where a commit that comes early takes long by itself."""
        content, left = self._coding[1], (self._total or 0) - self._done
        if content and self._worked <= TOLD_SHARE * (self._total or 0):
            self._expected(seconds * max(1.0, left / content))

    def stored(self, receipt: "PutReceipt") -> None:
        """Count a session that is stored."""
        if self._took is None:  # the first receipt of a commit
            self._took = time.monotonic() - self._since
        self.sessions += 1
        self.frozen += receipt.size
        self.unchanged += receipt.unchanged
        self._count((receipt.tenant, receipt.name), skipped=receipt.unchanged)
        self._say_how_it_ends()

    def _settle(self) -> None:
        """Count the time of the commit that is done, and say how long the rest takes, once unless that was wrong."""
        total, took = sum(self._commit.values()), self._took
        for log, amount in self._commit.items():
            if total and took is not None:
                self._paces[log].took(amount, took * amount / total)
        self._commit, self._took = {True: 0, False: 0}, None
        if self._total is None or self._began is None or not self._worked:
            return
        early = self._commits < TOLD_COMMITS and self._done < TOLD_SHARE * self._total
        rest = sum(pace.left for pace in self._paces.values())
        unknown = any(not pace.coded and pace.left > UNKNOWN * rest for pace in self._paces.values())
        if not (early or unknown or time.monotonic() - self._began < TOLD_S):
            seconds = sum(pace.rest() for pace in self._paces.values())
            unread, coded = max(0, self._total - self._read), sum(pace.coded for pace in self._paces.values())
            spent = sum(pace.seconds for pace in self._paces.values())
            self._expected.measured(seconds + unread * spent / max(1, coded))

    def refuse(self, request: "PutRequest", error: "PltzError") -> None:
        """Print why a session was refused."""
        self.refused += 1
        self._count((request.tenant, request.name), skipped=True)
        with self._bar.hidden():
            click.echo(f"refused: {printable(str(error))}", err=True)

    def _count(self, session: tuple[str, str], *, skipped: bool) -> None:
        """Count the bytes of the first that waits of a session: its tenant and name."""
        found = next(one for one in self._waiting if one[0] == session)
        self._waiting.remove(found)
        _, amount, log = found
        self._done += amount
        self._paces[log].left -= amount
        self._worked += 0 if skipped else amount
        self._commit[log] += 0 if skipped else amount
        if self._bar.label == "store":
            self._bar.add(max(0, amount - self._kept), skipped=skipped)
        self._kept = max(0, self._kept - amount)

    def _say_how_it_ends(self) -> None:
        if self._dry_run:
            say_if_interrupted("interrupted, nothing was written")
        elif self._kept:
            say_if_interrupted(
                f"interrupted: {counted(self.sessions, 'session')} stored, and {size(self._kept)} of the next one. "
                "To go on, run the same command again: it skips what is stored"
            )
        elif not self.sessions:
            say_if_interrupted("interrupted: nothing is stored yet")
        else:
            say_if_interrupted(
                f"interrupted: {counted(self.sessions, 'session')} stored, those printed above, the others are not. "
                "To go on, run the same command again: it skips what is stored"
            )
