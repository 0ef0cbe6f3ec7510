"""Source: the port of a place of sessions, with its shards and entries.

    source --shards--> SourceShard, ...       cheap: looks at names and sizes, reads no session
    shard  --entries--> SourceEntry, ...      raw bytes and their place; one Unreadable or LeftOut stops no other
    entry  --item--> PutRequest               parsed; raises PltzError where it is no session

A shard is work for one process of many. It is made anew for each run and is not remembered. Sessions are
known by their content (`receipt.py`), so files may be split, joined and moved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pltz.archive import Archive, PutReceipt, PutRequest

if TYPE_CHECKING:
    from pltz.datasets import NamedSession
    from pltz.models import Bundle
    from pltz.serving.nightly.run_stats import RunStats

SHARD_BYTES = 16 << 20  # approximate
SHARD_SESSIONS = 4096  # files, or rows
PERSON = b"pltz nightly"


def path_setting(*words: str) -> Any:
    """Return a field that is a path, made absolute by the configuration, or one of the words."""
    return field(metadata={"path": True, "words": words})


@dataclass(frozen=True)
class SourceShard:
    """A part of a source.

    ``source``: its number in the configuration. ``place``: a description for people. ``parts``: plain values
    for the source.
    """

    source: int
    place: str
    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """A session as it is stored in a source.

    ``name``: where the source gives one, else None. ``since``: time of the last change, in seconds since 1970.
    ``part``: path of the part of the session, empty for the main one. ``named``: the session, where the source has read
    it already: then ``raw`` is empty. ``packing``: the packed file of which only the content is kept.
    """

    where: str
    name: str | None
    raw: bytes
    tenant: str | None = None
    time: int | None = None
    since: float | None = None
    part: str = ""
    named: NamedSession | None = None
    packing: str = ""

    @property
    def size(self) -> int:
        """Return its bytes, about those of a chat that the source has read already."""
        if self.named is None:
            return len(self.raw)
        found = self.named.found
        return len(found.session.value) if found.session.kind == "text" else found.size


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is no session. ``rule``: what leaves it out, empty of one that is only told of, as a followed link.

    ``why``: the reason in words, where it is told by name.
    """

    where: str
    rule: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A refused entry and the reason. ``size``: bytes, where known."""

    where: str
    reason: str
    name: str | None = None
    size: int | None = None


class Source(Protocol):
    """A place of sessions. Frozen and of plain values, so that it can be sent to other processes.

    It is an `EntrySource` or a `DrainedSource`.
    """

    @property
    def name(self) -> str:
        """Return its name in reports."""

    @property
    def kind(self) -> str:
        """Return its kind, as in the configuration."""

    def shards(self, number: int) -> Iterator[SourceShard]:
        """Yield the work. ``number``: its own in the configuration.

        Raises UsageError where the place does not exist.
        """


class EntrySource(Source, Protocol):
    """A source whose sessions are looked at one by one."""

    @property
    def repeats(self) -> bool:
        """Return whether a name may come again, each time with more.

        Then every entry not met before is put.
        """

    def settings(self) -> list[Any]:
        """Return the settings that decide, beside an entry, what is stored of it; plain values."""

    def entries(self, shard: SourceShard) -> Iterator[SourceEntry | Unreadable | LeftOut]:
        """Yield the entries of a shard as they are now, in order.

        Raises UsageError and OSError where it cannot be read.
        """

    def item(self, entry: SourceEntry) -> PutRequest:
        """Return an entry as a session to put. Raises UsageError, ContentError and FormatError."""

    def sink(self, cold: Archive, bundle: Bundle) -> Sink:
        """Return the destination of its items: the archive itself, or a bridge to it.

        Raises UsageError and ModelError.
        """


@runtime_checkable
class DrainedSource(Source, Protocol):
    """A source that moves its sessions into the archive by itself, as a whole."""

    def drain(self, cold: Archive) -> RunStats:
        """Archive what is there now. Errors of single sessions are in the result."""


class Sink(Protocol):
    """A destination of sessions, such as `pltz.Archive`."""

    def put_many(self, items: Iterable[PutRequest], *, keep_opaque: bool = False) -> Iterator[PutReceipt]:
        """Freeze sessions. Yielded ones are durable."""


class ReceiptKeys:
    """Keys and values of receipts for the entries of a source (FORMAT.md)."""

    def __init__(self, archive: bytes, source: EntrySource) -> None:
        self.repeats = source.repeats
        self._start = hashlib.blake2b(archive, digest_size=16, person=PERSON)
        self._start.update(repr(source.settings()).encode())

    def row(self, entry: SourceEntry) -> tuple[bytes, bytes]:
        """Return key and value, 16 bytes each."""
        state = self._start.copy()
        for part in (entry.tenant, entry.name, *([entry.part] if entry.part else [])):
            data = b"" if part is None else part.encode("utf-8", "surrogatepass")
            state.update((0 if part is None else len(data) + 1).to_bytes(8, "little") + data)
        key = state.digest()
        for piece in entry.named.found.session.pieces() if entry.named else [entry.raw]:
            state.update(piece)
        value = state.digest()
        return (value if self.repeats else key), value
