"""Shards, entries and sources: what the job asks of a place where sessions are.

    source --shards--> Shard, Shard, ...      cheap: names and sizes are looked at, no session is read
    shard  --entries--> Entry, Entry, Bad     raw bytes and where they stand; a Bad one does not stop the others
    entry  --item--> Item                     parsed; raises PltzError where it is no session

A shard is work for one process of many. It is made anew each run and nothing remembers it: what is known of a session is
kept by what it is (`receipt.py`), so files may be split, joined and moved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from pltz.archive.sessions import Item, Stored

SHARD_BYTES = 16 << 20  # about
SHARD_SESSIONS = 4096  # files, or rows
PERSON = b"pltz nightly"


@dataclass(frozen=True)
class Shard:
    """``source``: its number in the configuration; ``place``: for people; ``parts``: what the source makes of it, plain values."""

    source: int
    place: str
    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A session as it lies there. ``name``: where the place gives it, else None; ``since``: seconds since 1970 when it was last changed."""

    where: str
    name: str | None
    raw: bytes
    tenant: str | None = None
    time: int | None = None
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Bad:
    """What is not taken, and why. ``size``: bytes, where known."""

    where: str
    reason: str
    name: str | None = None
    size: int | None = None


class Source(Protocol):
    """A place of sessions. Frozen and of plain values, so that it can be sent to other processes."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def kind(self) -> str:
        """As in the configuration."""

    @property
    def repeats(self) -> bool:
        """Whether a name may come again, each time with more: then every entry that was not met before is put."""

    def settings(self) -> list[Any]:
        """What decides, beside an entry, what is stored of it; plain values."""

    def shards(self, number: int) -> Iterator[Shard]:
        """The work. Raises UsageError where the place is not there."""

    def entries(self, shard: Shard) -> Iterator[Entry | Bad]:
        """What is in a shard now, in order. Raises UsageError, OSError where it can no longer be read."""

    def item(self, entry: Entry) -> Item:
        """An entry as a session to put. Raises UsageError, ContentError, FormatError."""


class Putter(Protocol):
    """Where sessions go: what `SessionArchive.put` does."""

    def put(self, items: Iterable[Item], *, keep_opaque: bool = False) -> Iterator[Stored]:
        """Freeze sessions; what is yielded is durable."""


class Namer:
    """Keys and values of receipts for the entries of a source (FORMAT.md)."""

    def __init__(self, archive: bytes, source: Source) -> None:
        self.repeats = source.repeats
        self._start = hashlib.blake2b(archive, digest_size=16, person=PERSON)
        self._start.update(repr(source.settings()).encode())

    def row(self, entry: Entry) -> tuple[bytes, bytes]:
        """(key, value), 16 bytes each."""
        state = self._start.copy()
        for part in (entry.tenant, entry.name):
            data = b"" if part is None else part.encode("utf-8", "surrogatepass")
            state.update((0 if part is None else len(data) + 1).to_bytes(8, "little") + data)
        key = state.digest()
        state.update(entry.raw)
        value = state.digest()
        return (value if self.repeats else key), value
