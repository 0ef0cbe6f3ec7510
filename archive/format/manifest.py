"""The manifest: the state of an archive as one small object. Spec: FORMAT.md, "Manifest".

    named        packs by their own rows, with index entries, or by an index that covers them
    condemned    named packs that nothing new may rely on, since when
    gone         packs that a collector took out, and whose files may be there still
    lost         packs that repair gave up
    holds        what may not go (`hold.py`)
    audit        the last records of what was changed (`audit.py`), and the time that they agree on (`clock.py`)

A method that changes it returns another one. Packs stay the truth: a manifest that is lost is made again from them.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from pltz.archive.format.audit import FORCED, AuditRecord, AuditTail, decode_tail
from pltz.archive.format.clock import ArchiveClock
from pltz.archive.format.hold import Hold
from pltz.archive.format.index_file import KEY_BITS, SECTIONS, U64, Entries
from pltz.archive.format.pack import MAX_SIZE
from pltz.archive.format.settings import Settings
from pltz.plt_codec.errors import CorruptError, VersionError
from pltz.plt_codec.identity import NONE, SIZE, digest
from pltz.plt_codec.versions import Readers

MAGIC = b"PLTm"
VERSION = 1
HEADER = struct.Struct("<4sBB2s16sQ16s7I")  # magic, version, flags, reserved, archive, generation, random, seven counts
SEALED, APPEND_ONLY, READS = 1, 2, 4  # flags
LIST = struct.Struct("<16s16s")  # digest of a list, that of the index whose packs it is of
PACK = struct.Struct("<16s4I")  # id, size, entries of each section
SINCE = struct.Struct("<16sQ")  # id, seconds since 1970
LOST = struct.Struct("<16sQIQ16s")  # id, time, records, time of the acknowledgement, digest of the keys
HOLD = struct.Struct("<I")  # bytes of a hold
CLOCK = struct.Struct("<QQ")  # the time that was agreed on, and one ahead of it
PERSON = b"pltz manifest"
MAX_GENERATION = (1 << 62) - 1
MAX_TIME = 1 << 62
UNKNOWN = (1 << 32) - 1  # stands for an unknown number of records that were not read
MOST_INDEXES, MOST_PACKS, MOST_OVER, MOST_LOST, MOST_HOLDS = 1 << 16, 4096, 1 << 17, 1 << 16, 4096
KEY_SIZE, OFFSET_SIZE = 5, 4  # bytes of an entry
EMPTY, UNKNOWN_TIME = AuditTail(), ArchiveClock()


@dataclass(frozen=True)
class NamedPack:
    """A pack that no named index covers: its size in bytes, and its index entries by section."""

    size: int
    sections: Mapping[int, Entries]

    @property
    def count(self) -> int:
        """Return the number of entries."""
        return sum(len(keys) for keys, _ in self.sections.values())


class LostPack(NamedTuple):
    """A pack that repair gave up.

    Attributes:
        time: when, in seconds since 1970.
        missing: number of records that were not read; None if unknown.
        acknowledged: when a person acknowledged it, in seconds since 1970; 0: nobody did.
        keys: digest of the object that lists them, which `lost_keys` has; zeros: it is not known what was in the pack.
    """

    time: int
    missing: int | None
    acknowledged: int = 0
    keys: bytes = NONE


@dataclass(frozen=True)
class Manifest:
    """One state of an archive.

    Attributes:
        settings: those of archive.json.
        generation: number of the state, above that of the state before.
        random: 16 bytes of its writer.
        indexes: digests, hex.
        packs: those that no named index covers, by id.
        condemned: named packs that nothing new relies on, and since when, in seconds since 1970.
        gone: packs that a collector took out, and when, in seconds since 1970. An index may have them still.
        lost: packs that repair gave up. An index may have them still.
        lists: digest of each list of sessions, hex, and that of the index whose packs it is of.
        holds: those in force, by id.
        audit: the last records of changes. ``clock``: the time that changes agree on.
        reads: whether reads are recorded too.
    """

    settings: Settings
    generation: int = 0
    random: bytes = NONE
    indexes: frozenset[str] = frozenset()
    packs: Mapping[bytes, NamedPack] = field(default_factory=dict)
    condemned: Mapping[bytes, int] = field(default_factory=dict)
    gone: Mapping[bytes, int] = field(default_factory=dict)
    lost: Mapping[bytes, LostPack] = field(default_factory=dict)
    lists: Mapping[str, str] = field(default_factory=dict)
    holds: Mapping[bytes, Hold] = field(default_factory=dict)
    audit: AuditTail = EMPTY
    clock: ArchiveClock = UNKNOWN_TIME
    reads: bool = False

    @property
    def state(self) -> tuple[object, ...]:
        """Return all that it says, to compare two: a pack of an id has one size and one set of entries."""
        packs, over = self.packs.keys(), (self.condemned, self.gone, self.lost)
        audit = self.audit.end, self.audit.last, self.audit.file, self.clock, self.reads
        return self.settings, self.indexes, packs, *over, self.lists, self.holds.keys(), audit

    def recording(self, record: AuditRecord) -> Manifest:
        """Return it with a record of the change that it makes."""
        clock = self.clock.seeing(record.time, forced=bool(record.flags & FORCED))
        return replace(self, audit=self.audit.adding(record), clock=clock)

    def condemning(self, packs: Iterable[bytes], time: int) -> Manifest:
        """Return it with packs condemned since ``time``, seconds since 1970. Those condemned since earlier stay so."""
        return replace(self, condemned=dict.fromkeys(packs, time) | dict(self.condemned))

    def taking_out(self, packs: Collection[bytes], time: int) -> Manifest:
        """Return it without packs, which are gone since ``time``, seconds since 1970."""
        return replace(self._without(packs), gone=dict(self.gone) | dict.fromkeys(packs, time))

    def giving_up(self, packs: Mapping[bytes, LostPack]) -> Manifest:
        """Return it without packs, which are lost."""
        return replace(self._without(packs), lost=dict(self.lost) | dict(packs))

    def naming(self, packs: Mapping[bytes, NamedPack]) -> Manifest:
        """Return it with packs named, lost ones too."""
        lost = {pack: row for pack, row in self.lost.items() if pack not in packs}
        return replace(self, packs=dict(self.packs) | dict(packs), lost=lost)

    def _without(self, packs: Collection[bytes]) -> Manifest:
        rows = {pack: row for pack, row in self.packs.items() if pack not in packs}
        condemned = {pack: since for pack, since in self.condemned.items() if pack not in packs}
        return replace(self, packs=rows, condemned=condemned)

    def indexed(self, indexes: frozenset[str]) -> Manifest:
        """Return it with these indexes in place of others, and their lists alone."""
        return replace(self, indexes=indexes, lists={name: i for name, i in self.lists.items() if i in indexes})

    def lists_of(self, index: str) -> list[str]:
        """Return the lists of the packs of an index."""
        return sorted(name for name, of in self.lists.items() if of == index)

    def encode(self) -> bytes:
        """Return its bytes."""
        tables = self.indexes, self.packs, self.condemned, self.gone, self.lost, self.lists, self.holds
        settings = self.settings
        flags = SEALED * settings.sealed + APPEND_ONLY * settings.append_only + READS * self.reads
        head = MAGIC, VERSION, flags, bytes(2), settings.archive, self.generation, self.random
        parts = [HEADER.pack(*head, *map(len, tables))]
        parts += [bytes.fromhex(name) for name in sorted(self.indexes)]
        for name, pack in sorted(self.packs.items()):
            columns = [pack.sections[section] for section in range(len(SECTIONS))]
            parts.append(PACK.pack(name, pack.size, *(len(keys) for keys, _ in columns)))
            parts += [_packed(entries) for entries in columns]
        parts += [SINCE.pack(*row) for table in (self.condemned, self.gone) for row in sorted(table.items())]
        for name, lost in sorted(self.lost.items()):
            missing = UNKNOWN if lost.missing is None else lost.missing
            parts.append(LOST.pack(name, lost.time, missing, lost.acknowledged, lost.keys))
        parts += [bytes.fromhex(name) + bytes.fromhex(index) for name, index in sorted(self.lists.items())]
        for _, hold in sorted(self.holds.items()):
            parts += [HOLD.pack(len(data := hold.encode())), data]
        parts += [CLOCK.pack(*self.clock), self.audit.encode()]
        data = b"".join(parts)
        return data + digest(PERSON, data)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Return the manifest in these bytes. Raises CorruptError, VersionError."""
        if len(data) < HEADER.size + SIZE or digest(PERSON, data[:-SIZE]) != data[-SIZE:]:
            raise CorruptError("the manifest does not match its checksum: damaged")
        if data[: len(MAGIC)] != MAGIC:
            raise CorruptError("the manifest does not begin with its magic: damaged")
        read = VERSIONS[data[len(MAGIC)]]
        return read(data)


def claimed_generation(data: bytes) -> int:
    """Return the generation that a damaged manifest says it has; 0 where its first bytes are no manifest's."""
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        return 0
    return int(HEADER.unpack_from(data)[5])


class _Cursor:
    """Takes fields from bytes, one after the other. Raises CorruptError behind the end."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        begin, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise CorruptError("the manifest does not have the size it claims: damaged")
        return self.data[begin : self.at]


def _read(data: bytes) -> Manifest:
    """Return the manifest in bytes of which digest and magic are right."""
    _, _, flags, reserved, archive, generation, random, *counts = HEADER.unpack_from(data)
    if any(reserved) or flags > SEALED + APPEND_ONLY + READS:
        raise VersionError("the manifest has fields of a newer version: use a newer pltz")
    most = MOST_INDEXES, MOST_PACKS, MOST_OVER, MOST_OVER, MOST_LOST, MOST_INDEXES, MOST_HOLDS
    if generation > MAX_GENERATION or any(n > limit for n, limit in zip(counts, most, strict=True)):
        raise CorruptError("the manifest has more than its format allows: damaged")
    cursor = _Cursor(data[:-SIZE], HEADER.size)
    indexes = [cursor.take(SIZE).hex() for _ in range(counts[0])]
    rows = [_pack(cursor) for _ in range(counts[1])]
    condemned, gone = ([SINCE.unpack(cursor.take(SINCE.size)) for _ in range(count)] for count in counts[2:4])
    lost = [_lost(cursor.take(LOST.size)) for _ in range(counts[4])]
    lists = [LIST.unpack(cursor.take(LIST.size)) for _ in range(counts[5])]
    holds = [Hold.decode(cursor.take(*HOLD.unpack(cursor.take(HOLD.size)))) for _ in range(counts[6])]
    clock = ArchiveClock(*CLOCK.unpack(cursor.take(CLOCK.size)))
    audit, cursor.at = decode_tail(cursor.data, cursor.at)
    names = [indexes, *([row[0] for row in table] for table in (rows, condemned, gone, lost, lists))]
    names.append([hold.id for hold in holds])
    if cursor.at != len(data) - SIZE or any(found != sorted(set(found)) for found in names):
        raise CorruptError("the manifest does not have the rows it claims, or names out of order: damaged")
    if any(hold.archive != archive for hold in holds):
        raise CorruptError("the manifest has a hold of another archive: damaged")
    if not {index.hex() for _, index in lists} <= set(indexes):
        raise CorruptError("the manifest has a list of an index that it does not name: damaged")
    named, over = {name for name, _ in rows}, {name for name, _ in (*gone, *lost)}
    times = [since for _, since in (*condemned, *gone)] + [t for _, row in lost for t in (row.time, row.acknowledged)]
    if not over.isdisjoint(named.union(name for name, _ in condemned)) or max(*times, *clock) >= MAX_TIME:
        raise CorruptError("the manifest names a pack that is gone or lost, or has a time that cannot be: damaged")
    settings = Settings(archive, bool(flags & SEALED), bool(flags & APPEND_ONLY))
    tables = dict(rows), dict(condemned), dict(gone), dict(lost)
    of_indexes = {name.hex(): index.hex() for name, index in lists}
    held = {hold.id: hold for hold in holds}
    known = frozenset(indexes), *tables, of_indexes, held, audit, clock, bool(flags & READS)
    return Manifest(settings, generation, random, *known)


def _lost(data: bytes) -> tuple[bytes, LostPack]:
    name, time, missing, acknowledged, keys = LOST.unpack(data)
    return name, LostPack(time, None if missing == UNKNOWN else missing, acknowledged, keys)


def _pack(cursor: _Cursor) -> tuple[bytes, NamedPack]:
    """Return the next pack and its entries."""
    name, size, *counts = PACK.unpack(cursor.take(PACK.size))
    if size > MAX_SIZE:
        raise CorruptError("a pack of the manifest is larger than packs are: damaged")
    sections = {
        section: _unpacked(cursor.take(count * (KEY_SIZE + OFFSET_SIZE)), count, size)
        for section, count in enumerate(counts)
    }
    return name, NamedPack(size, sections)


def _packed(entries: Entries) -> bytes:
    """Return the entries of a section: all keys, then all offsets."""
    keys = entries.keys.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - KEY_SIZE :]
    return keys.tobytes() + entries.offsets.astype("<u4").tobytes()


def _unpacked(data: bytes, count: int, size: int) -> Entries:
    """Return entries whose offsets are in a pack of ``size`` bytes. Raises CorruptError."""
    wide = np.zeros((count, 8), np.uint8)
    wide[:, 8 - KEY_SIZE :] = np.frombuffer(data, np.uint8, count * KEY_SIZE).reshape(-1, KEY_SIZE)
    keys: U64 = wide.view(">u8").reshape(-1).astype(np.uint64)
    offsets: U64 = np.frombuffer(data, "<u4", count, count * KEY_SIZE).astype(np.uint64)
    if count and (int(keys.max()) >> KEY_BITS or int(offsets.max()) >= size):
        raise CorruptError("an entry of the manifest is outside its pack: damaged")
    return Entries(keys, offsets)


VERSIONS = Readers("the manifest", {VERSION: _read})
