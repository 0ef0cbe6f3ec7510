"""The progress of a put: bytes read and stored, and what is coded now.

    read  37 %  3.7 MB / 10.1 MB  1.2 MB/s
    store  12 %  1.2 MB / 10.1 MB  24.1 kB/s  6 min left  coding 3 sessions, 512.0 kB
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import counted, size
from pltz.cli.ui.output import printable, say_if_interrupted
from pltz.cli.ui.progress import Progress

if TYPE_CHECKING:
    from pltz.archive.writing.put_request import PutReceipt, PutRequest
    from pltz.plt_codec.errors import PltzError


class PutMeter:
    """Counts what a put reads, stores and refuses. ``total``: bytes of all inputs, None where it is not known.

    ``sessions``: all that were stored, of which ``parts`` are parts beside the main one.
    """

    def __init__(self, bar: Progress, total: int | None) -> None:
        self.sessions = self.parts = self.frozen = self.refused = self.unchanged = 0
        self._bar, self._total = bar, total or None
        self._waiting: deque[tuple[tuple[str, str], int]] = deque()  # (tenant, name), bytes: of sessions not stored
        self._done = 0  # bytes
        self._coding = 0  # bytes of the commit under way, or of the part of a log
        self._stored = True  # whether a receipt of it came
        self._kept = 0  # bytes of parts of large logs that are durable before the log is
        say_if_interrupted(self._how_it_ends)
        bar.begin("read", self._total, "bytes")

    def reading(self, items: "Iterable[tuple[PutRequest, int]]") -> "Iterator[PutRequest]":
        """Yield requests without the bytes that each was read from, and count these."""
        for request, amount in items:
            self._waiting.append(((request.tenant, request.name), amount))
            if self._bar.label == "read":
                self._bar.add(amount)
            yield request

    def coding(self, sessions: int, content: int) -> None:
        """Say that a commit of so many sessions and bytes of content is coded now, or a part of a large log.

        Of a log that is put in parts, each but the last is told before any receipt.
        """
        if not self._stored:
            self._kept += self._coding
            self._bar.add(self._coding)
        self._coding, self._stored = content, False
        if self._bar.label == "read":
            self._bar.begin("store", self._total, "bytes")
            self._bar.add(self._done, skipped=True)
        self._bar.note = f"coding {counted(sessions, 'session')}, {size(content)}" if sessions else ""

    def stored(self, receipt: "PutReceipt") -> None:
        """Count a session that is stored."""
        self._stored = True
        self.sessions += 1
        self.parts += bool(receipt.part)
        self.frozen += receipt.size
        self.unchanged += receipt.unchanged
        self._count((receipt.tenant, receipt.name), skipped=receipt.unchanged)

    def refuse(self, request: "PutRequest", error: "PltzError") -> None:
        """Print why a session was refused."""
        self.refused += 1
        self._count((request.tenant, request.name), skipped=True)
        with self._bar.hidden():
            click.echo(f"refused: {printable(str(error))}", err=True)

    def leave_out(self, request: "PutRequest") -> None:
        """Count the bytes of a session that is left out."""
        self._count((request.tenant, request.name), skipped=True)

    def pass_over(self, size: int) -> None:
        """Count the bytes of a file that is refused before it is coded, which take no time."""
        self._done += size
        self._bar.add(size, skipped=True)

    def _count(self, session: tuple[str, str], *, skipped: bool) -> None:
        """Count the bytes of the first that waits of a session: its tenant and name."""
        found = next(one for one in self._waiting if one[0] == session)
        self._waiting.remove(found)
        _, amount = found
        self._done += amount
        if self._bar.label == "store":
            self._bar.add(max(0, amount - self._kept), skipped=skipped)
        self._kept = max(0, self._kept - amount)

    def _how_it_ends(self) -> str:
        again = "To go on, run the same command again: it skips what is stored"
        stored = counted(self.sessions, "session")
        if self._kept:
            return f"interrupted: {stored} stored, and {size(self._kept)} of the next one. {again}"
        if not self.sessions:
            return "interrupted: nothing is stored yet"
        return f"interrupted: {stored} stored, those printed above, the others are not. {again}"
