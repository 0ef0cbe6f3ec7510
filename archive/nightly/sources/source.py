"""Shards, entries and sources: the interface between the job and a place of sessions.

    source --shards--> Shard, Shard, ...      cheap: looks at names and sizes, reads no session
    shard  --entries--> Entry, Entry, Bad     raw bytes and their place; a Bad one does not stop the others
    entry  --item--> Item                     parsed; raises PltzError where it is no session

A shard is work for one process of many. It is made anew for each run and is not remembered. Sessions are
known by their content (`receipt.py`), so files may be split, joined and moved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from pltz.archive.sessions import Item, Stored

SHARD_BYTES = 16 << 20  # approximate
SHARD_SESSIONS = 4096  # files, or rows
PERSON = b"pltz nightly"


@dataclass(frozen=True)
class Shard:
    """A part of a source.

    ``source``: its number in the configuration. ``place``: a description for people. ``parts``: plain values
    for the source.
    """

    source: int
    place: str
    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A session as it is stored in a source.

    ``name``: where the source gives one, else None. ``since``: time of the last change, in seconds since
    1970.
    """

    where: str
    name: str | None
    raw: bytes
    tenant: str | None = None
    time: int | None = None
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A refused entry and the reason. ``size``: bytes, where known."""

    where: str
    reason: str
    name: str | None = None
    size: int | None = None


class Source(Protocol):
    """A place of sessions. Frozen and of plain values, so that it can be sent to other processes."""

    @property
    def name(self) -> str:
        """Return its name in reports."""

    @property
    def kind(self) -> str:
        """Return its kind, as in the configuration."""

    @property
    def repeats(self) -> bool:
        """Return whether a name may come again, each time with more.

        Then every entry not met before is put.
        """

    def settings(self) -> list[Any]:
        """Return the settings that decide, beside an entry, what is stored of it; plain values."""

    def shards(self, number: int) -> Iterator[Shard]:
        """Yield the work. Raises UsageError where the place does not exist."""

    def entries(self, shard: Shard) -> Iterator[Entry | Unreadable]:
        """Yield the entries of a shard as they are now, in order.

        Raises UsageError and OSError where it cannot be read.
        """

    def item(self, entry: Entry) -> Item:
        """Return an entry as a session to put. Raises UsageError, ContentError and FormatError."""


class Sink(Protocol):
    """A destination of sessions, such as `SessionArchive.put`."""

    def put(self, items: Iterable[Item], *, keep_opaque: bool = False) -> Iterator[Stored]:
        """Freeze sessions. Yielded ones are durable."""


class ReceiptKeys:
    """Keys and values of receipts for the entries of a source (FORMAT.md)."""

    def __init__(self, archive: bytes, source: Source) -> None:
        self.repeats = source.repeats
        self._start = hashlib.blake2b(archive, digest_size=16, person=PERSON)
        self._start.update(repr(source.settings()).encode())

    def row(self, entry: Entry) -> tuple[bytes, bytes]:
        """Return key and value, 16 bytes each."""
        state = self._start.copy()
        for part in (entry.tenant, entry.name):
            data = b"" if part is None else part.encode("utf-8", "surrogatepass")
            state.update((0 if part is None else len(data) + 1).to_bytes(8, "little") + data)
        key = state.digest()
        state.update(entry.raw)
        value = state.digest()
        return (value if self.repeats else key), value
