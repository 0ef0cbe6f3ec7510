"""The ledger: packs that a collector deleted, packs that repair gave up, and acknowledged losses.

An entry is a write-once file with a second copy under ``parity/``. An absent pack that no entry names is
missing: absence alone proves nothing. A collector writes the entry before it deletes the pack. A reader that
reads the ledger after it saw the absence is therefore certain. Spec: FORMAT.md, "Ledger".

    ledger.refresh(); ledger.state(pack)     PackState.DELETED, PackState.LOST or None

A crash between the two copies leaves one of them. It counts, and repair writes the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence, Set as AbstractSet
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import pairwise

from pltz.archive.errors import StoreError
from pltz.archive.format.object_names import (
    LEDGER,
    PARITY,
    SETTINGS,
    SETTINGS_COPY,
    ledger_copies,
    ledger_copies_among,
    ledger_entries_among,
)
from pltz.archive.format.settings import MAX_SIZE as MAX_SETTINGS, Settings
from pltz.archive.humanize import counted
from pltz.archive.storage.store import Store
from pltz.plt_codec.errors import CorruptError, FormatError, VersionError
from pltz.plt_codec.identity import SIZE, digest
from pltz.plt_codec.versions import Readers

MAGIC = b"PLTl"
VERSION = 2
HEADER = struct.Struct("<4sBBBB16sQIIII")  # magic, version, kind, flags, reserved, archive, time, four counts
PERSON = b"pltz ledger"
KEY_SIZE = 5  # bytes of the key of a session or segment, as indexes have it
UNKNOWN = (1 << 32) - 1  # stands for an unknown number of records that were not read
MAX_FILE = 1 << 26  # bytes
MAX_TIME = 1 << 62
MISSING = "is missing"
MOST_NAMES = 1 << 20  # names per entry; more go into several entries


class PackState(Enum):
    """The state of a pack."""

    PRESENT = "present"
    DAMAGED = "damaged"  # there, with bytes that cannot be read
    DELETED = "deleted"  # by a collector, after it proved that nothing needs the pack
    LOST = "lost"  # repair gave it up
    MISSING = "missing"  # damage: something names it, it is absent, and no entry says why


class EntryKind(IntEnum):
    """The kind of an entry."""

    DELETED = 1
    LOST = 2
    ACKNOWLEDGED = 3


@dataclass(frozen=True)
class LedgerEntry:
    """One entry.

    Attributes:
        archive: id of the archive, 16 bytes.
        time: seconds since 1970.
        names: ids of deleted packs, of the lost pack, or of the loss entries acknowledged; 16 bytes each.
        missing: number of records of a lost pack that were not read; None if unknown.
        complete: whether ``sessions`` and ``segments`` list everything in the lost pack that was not read.
        sessions, segments: first 36 bits of session keys and segment ids.
    """

    kind: EntryKind
    archive: bytes
    time: int
    names: frozenset[bytes]
    missing: int | None = 0
    complete: bool = True
    sessions: frozenset[int] = frozenset()
    segments: frozenset[int] = frozenset()

    def encode(self) -> bytes:
        """Return the bytes of the entry's file."""
        head = HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            int(self.complete),
            0,
            self.archive,
            self.time,
            UNKNOWN if self.missing is None else self.missing,
            len(self.names),
            len(self.sessions),
            len(self.segments),
        )
        keys = [*sorted(self.sessions), *sorted(self.segments)]
        data = head + b"".join([*sorted(self.names), *(key.to_bytes(KEY_SIZE, "big") for key in keys)])
        return data + digest(PERSON, data)

    @classmethod
    def decode(cls, data: bytes) -> LedgerEntry:
        """Return the entry in a file's bytes. Raises CorruptError, VersionError."""
        if len(data) < HEADER.size + SIZE or digest(PERSON, data[:-SIZE]) != data[-SIZE:]:
            raise CorruptError("a ledger entry does not match its checksum: damaged")
        if data[: len(MAGIC)] != MAGIC:
            raise CorruptError("a ledger entry does not begin with its magic: damaged")
        read = VERSIONS.of(data[len(MAGIC)])
        return read(data)

    @property
    def name(self) -> str:
        """Return the name of its file, without the folder."""
        return self.encode()[-SIZE:].hex()


def _read(data: bytes) -> LedgerEntry:
    """Return the entry in a file of version 2, whose digest and magic are right."""
    _, _, kind, flags, zero, archive, time, missing, names, sessions, segments = HEADER.unpack_from(data)
    if kind not in tuple(EntryKind) or flags > 1 or zero:
        raise VersionError(f"a ledger entry of kind {kind}, flags {flags}: use a newer pltz")
    ends = [HEADER.size + SIZE * names, 0, 0]
    ends[1] = ends[0] + KEY_SIZE * sessions
    ends[2] = ends[1] + KEY_SIZE * segments
    if ends[2] + SIZE != len(data) or time >= MAX_TIME or (kind == EntryKind.LOST and names != 1):
        raise CorruptError("a ledger entry does not have the size it claims: damaged")
    ids = list(_split(data[HEADER.size : ends[0]], SIZE))
    keys = [list(_split(data[begin:end], KEY_SIZE)) for begin, end in pairwise(ends)]
    if any(part != sorted(set(part)) for part in (ids, *keys)):
        raise CorruptError("a ledger entry has ids or keys out of order: damaged")
    sessions_of, segments_of = (frozenset(int.from_bytes(key, "big") for key in part) for part in keys)
    found = None if missing == UNKNOWN else missing
    return LedgerEntry(EntryKind(kind), archive, time, frozenset(ids), found, bool(flags), sessions_of, segments_of)


VERSIONS = Readers("the ledger entry", {VERSION: _read})


@dataclass(frozen=True)
class Loss:
    """A pack that repair gave up. ``acknowledged``: time in seconds since 1970, or None."""

    name: str  # of its entry
    entry: LedgerEntry
    acknowledged: int | None = None

    @property
    def pack(self) -> bytes:
        """Return the id of the pack."""
        return next(iter(self.entry.names))


class PackLedger:
    """The entries of an archive's ledger that were read so far. ``settings``: those of the archive, if at hand.

    Attributes:
        deleted: ids of all packs that collectors deleted.
        damaged: names of entries without a sound copy, each with the reason.
    """

    def __init__(self, store: Store, settings: Settings | None = None) -> None:
        self.store = store
        self.deleted: set[bytes] = set()
        self.damaged: dict[str, str] = {}
        self._entries: dict[str, LedgerEntry] = {}
        self._lost: dict[bytes, str] = {}  # pack -> name of its entry
        self.over: frozenset[str] = frozenset()  # entries that a plan drops: they count for nothing
        self._settings = settings

    @property
    def settings(self) -> Settings:
        """Return the settings of the archive.

        Raises CorruptError where neither copy of archive.json is sound, StoreError.
        """
        if self._settings is None:
            self._settings = _settings_of(self.store)
        return self._settings

    @property
    def archive(self) -> bytes:
        """Return the id of the archive. Raises the errors of `settings`."""
        return self.settings.archive

    def refresh(self, parity: Iterable[str] | None = None) -> None:
        """Read the entries that are new since the last call.

        ``parity``: names under parity/, where the caller listed them already. An entry whose copies are all
        damaged is noted in ``damaged`` and otherwise ignored, so its packs are missing. Raises StoreError.
        """
        parity = self.store.list(PARITY) if parity is None else parity
        entries = self.store.list(LEDGER)
        listed = ledger_copies_among(parity) | ledger_entries_among(entries)
        for name in sorted(listed - set(self._entries) - self.over):
            self._read(name)

    def follow(self, names: Iterable[str]) -> bool:
        """Read the entries of these names that are new, and return whether all are known.

        ``names``: those of a manifest, which leaves out the losses of packs that came back and were collected. Where
        one of them is known here, the ledger is listed. Raises StoreError.
        """
        names = set(names)
        for name in sorted(names - self._entries.keys()):
            self._read(name)
        if {name for pack, name in self._lost.items() if pack not in self.deleted} - names:
            self.refresh()
        return self._entries.keys() >= names

    @property
    def lost(self) -> AbstractSet[bytes]:
        """Return the packs that repair gave up."""
        return self._lost.keys()

    @property
    def loss_names(self) -> frozenset[str]:
        """Return the names of the entries of losses that still count, and of acknowledgements, as far as read."""
        over = {self._lost[pack] for pack in self._lost.keys() & self.deleted}
        return frozenset(n for n, entry in self._entries.items() if entry.kind != EntryKind.DELETED) - over

    def state(self, pack: bytes) -> PackState | None:
        """Return the state of an absent pack; None where no entry names it."""
        if pack in self.deleted:
            return PackState.DELETED
        return PackState.LOST if pack in self._lost else None

    def losses(self) -> list[Loss]:
        """Return all recorded losses, acknowledged or not.

        A lost pack that came back and was collected later is no loss any more.
        """
        if not self._lost:
            return []
        when: dict[str, int] = {}
        for entry in self._entries.values():
            if entry.kind == EntryKind.ACKNOWLEDGED:
                for name in entry.names:
                    when[name.hex()] = min(entry.time, when.get(name.hex(), MAX_TIME))
        found = sorted(self._entries.items())
        losses = [Loss(name, entry, when.get(name)) for name, entry in found if entry.kind == EntryKind.LOST]
        return [loss for loss in losses if loss.pack not in self.deleted]

    def drop(self, names: Iterable[str]) -> None:
        """Forget entries of deleted packs that a plan drops: see FORMAT.md, "Plan"."""
        self.over = frozenset(names)
        for name in self.over & self._entries.keys():
            del self._entries[name]
        kept = [entry.names for entry in self._entries.values() if entry.kind == EntryKind.DELETED]
        self.deleted = set[bytes]().union(*kept)

    def outdated(self, before: int, needed: AbstractSet[bytes]) -> dict[str, int]:
        """Return the entries of deleted packs that can be dropped, with the number of packs of each.

        They were put before a time, in seconds since 1970, and name none of the packs that are ``needed`` or were lost.
        """
        return {
            name: len(entry.names)
            for name, entry in self._entries.items()
            if entry.kind == EntryKind.DELETED and entry.time < before
            if entry.names.isdisjoint(needed) and entry.names.isdisjoint(self._lost)
        }

    def put_deleted(self, packs: Iterable[bytes]) -> None:
        """Record packs that are about to be deleted. Both copies are durable on return.

        Raises StoreError, WriterFailed.
        """
        fresh = sorted(set(packs) - self.deleted)
        for begin in range(0, len(fresh), MOST_NAMES):
            part = frozenset(fresh[begin : begin + MOST_NAMES])
            self._put(LedgerEntry(EntryKind.DELETED, self.archive, self.store.now(), part))

    def put_lost(
        self,
        pack: bytes,
        missing: int | None,
        complete: bool,
        sessions: Iterable[int],
        segments: Iterable[int],
    ) -> None:
        """Record a pack that is given up. Both copies are durable on return.

        ``missing``, ``complete``, ``sessions`` and ``segments`` are as in `LedgerEntry`. Raises StoreError,
        WriterFailed.
        """
        if pack not in self._lost:
            keys = frozenset(sessions), frozenset(segments)
            now = self.store.now()
            self._put(LedgerEntry(EntryKind.LOST, self.archive, now, frozenset({pack}), missing, complete, *keys))

    def acknowledge(self, losses: Sequence[Loss]) -> None:
        """Record that a person knows of these losses. Raises StoreError, WriterFailed."""
        names = frozenset(bytes.fromhex(loss.name) for loss in losses if loss.acknowledged is None)
        if names:
            self._put(LedgerEntry(EntryKind.ACKNOWLEDGED, self.archive, self.store.now(), names))

    def unsound(self) -> Iterator[tuple[str, str]]:
        """Yield (path, reason) of each missing or damaged copy whose other copy is sound.

        All copies are read.
        """
        for name in sorted(self._entries):
            for path in ledger_copies(name):
                try:
                    decode_as(name, self.store.read(path, 0, MAX_FILE))
                except FileNotFoundError:
                    yield path, MISSING
                except FormatError as exc:
                    yield path, str(exc)

    def _put(self, entry: LedgerEntry) -> None:
        data = entry.encode()
        name = entry.name
        for path in ledger_copies(name):
            if not self.store.put(path, data):
                raise StoreError(
                    f"{path} holds other bytes than its name says: nothing was deleted; run pltz archive repair"
                )
        self._know(name, entry)

    def _read(self, name: str) -> None:
        """Read an entry from the first of its copies that is sound."""
        why = []
        for path in ledger_copies(name):
            try:
                entry = decode_as(name, self.store.read(path, 0, MAX_FILE))
                if entry.archive != self.archive:
                    raise CorruptError("a ledger entry is of another archive")
            except FileNotFoundError:
                continue
            except FormatError as exc:
                why.append(f"{path}: {exc}")
                continue
            self._know(name, entry)
            return
        if why:
            self.damaged[name] = "; ".join(why)

    def _know(self, name: str, entry: LedgerEntry) -> None:
        self.damaged.pop(name, None)
        self._entries[name] = entry
        if entry.kind == EntryKind.DELETED:
            self.deleted |= entry.names
        elif entry.kind == EntryKind.LOST:
            self._lost[next(iter(entry.names))] = name


def as_text(loss: Loss) -> str:
    """Return a loss as a sentence for the user."""
    missing, sessions = loss.entry.missing, len(loss.entry.sessions)
    what = "an unknown number of records" if missing is None else counted(missing, "record")
    named = (
        f"{counted(sessions, 'session')} among them"
        if loss.entry.complete
        else "of which sessions is not known"
    )
    return f"repair gave it up: {what} lost, {named}; pltz archive repair --acknowledge ends this message"


def decode_as(name: str, data: bytes) -> LedgerEntry:
    """Decode the entry of a given name. Raises CorruptError, VersionError."""
    entry = LedgerEntry.decode(data)
    if data[-SIZE:].hex() != name:
        raise CorruptError("a ledger entry has the name of another: damaged")
    return entry


def _settings_of(store: Store) -> Settings:
    for name in (SETTINGS, SETTINGS_COPY):
        try:
            return Settings.decode(store.read(name, 0, MAX_SETTINGS))
        except (FileNotFoundError, CorruptError):
            continue
    raise CorruptError(f"{SETTINGS} and its copy {SETTINGS_COPY} are damaged: bring one of them from a backup")


def _split(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))
