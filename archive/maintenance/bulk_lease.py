"""BulkLease: of several coordinators of bulk work on one archive, one works and the others are refused.

    with BulkLease(store, "merge on Ray") as lease:
        ...                   # renewed by a thread meanwhile
        lease.want()          # before anything is changed: ArchiveError where it was lost

It is a register of the store (FORMAT.md, "Bulk work") that says who works until when. A coordinator that died is
waited for until its lease ends. Nothing else asks for it: single puts, gets and collectors go on beside bulk work.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import Self

from pltz.archive.errors import ArchiveError, StoreError, UnreadableError
from pltz.archive.format.object_names import BULK
from pltz.archive.storage.store import Content, Store
from pltz.plt_codec.identity import SIZE

SECONDS = 90  # that a lease lasts
RENEWALS = 3  # in that time


class BulkLease:
    """The lease of one coordinator. ``store``: used by a thread of its own; ``what``: the work, for others to read."""

    def __init__(self, store: Store, what: str, seconds: int = SECONDS) -> None:
        self._store, self._what, self._seconds = store, what, seconds
        self._holder = store.random(SIZE).hex()
        self._content: Content | None = None
        self._end = threading.Event()
        self._lost: str | None = None  # why it is another's now
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> Self:
        """Take the lease. Raises ArchiveError where another has it, StoreError."""
        try:
            self._content = self._store.load(BULK)
        except UnreadableError:
            self._content = None
        _, until, what = _read(self._content)
        left = until - self._store.now()
        if left > 0:
            raise ArchiveError(
                f"another coordinator is at work on this archive ({what}), with a lease of {left} s more: "
                "wait for it; one that died loses its lease then"
            )
        self._swap(self._seconds)
        self._want_mine()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()
        with suppress(ArchiveError):  # it ends by itself
            if not self._lost:
                self._swap(0)

    def want(self) -> None:
        """Raise ArchiveError where the lease was lost: another may be at work."""
        if self._lost:
            raise ArchiveError(f"{self._lost}: run the command again, it goes on where it was")

    def _renew(self) -> None:
        failures = 0
        while not self._end.wait(self._seconds / RENEWALS) and not self._lost:
            try:
                self._swap(self._seconds)
                failures = 0
            except StoreError as exc:
                failures += 1
                if failures >= RENEWALS:
                    self._lost = f"the lease on the archive could not be renewed ({exc})"
            except ArchiveError as exc:
                self._lost = str(exc)

    def _swap(self, seconds: int) -> None:
        """Write that the lease ends in so many seconds. Raises StoreError; ArchiveError where another was first."""
        says = {"holder": self._holder, "until": self._store.now() + seconds, "what": self._what}
        data = json.dumps(says | {"random": self._store.random(SIZE).hex()}).encode()
        self._content = self._store.swap(BULK, data, self._content)
        self._want_mine()

    def _want_mine(self) -> None:
        holder, _, what = _read(self._content)
        if holder != self._holder:
            raise ArchiveError(f"another coordinator took the lease on this archive ({what or 'unknown'})")


def _read(content: Content | None) -> tuple[str, int, str]:
    """Return holder, end in seconds since 1970, and work. What cannot be read is a lease that is over."""
    try:
        found = json.loads(content.data) if content else {}
        return str(found["holder"]), int(found["until"]), str(found["what"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "", 0, ""
