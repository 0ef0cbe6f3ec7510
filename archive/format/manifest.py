"""The manifest: the state of an archive as one small object, which names its packs and indexes. Spec: FORMAT.md.

A pack is named by its own row, with its index entries, or by an index that covers it. Packs stay the truth: a manifest
that is lost or damaged is made again from them.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pltz.archive.format.index_file import KEY_BITS, SECTIONS, U64, Entries
from pltz.archive.format.pack import MAX_SIZE
from pltz.archive.format.plan import MAX_EPOCH
from pltz.archive.format.settings import MAX_SHARE, Settings
from pltz.plt_codec.errors import CorruptError, VersionError
from pltz.plt_codec.identity import SIZE, digest
from pltz.plt_codec.versions import Readers

MAGIC = b"PLTm"
VERSION = 3
# magic, version, flags, reserved, archive, generation, random, epoch, two shares of parity, five counts
HEADER = struct.Struct("<4sBB2s16sQ16sQ2H5I")
GAPS, SEALED, MARKED, ROLLED_BACK, HEADED = 1, 2, 4, 8, 16  # flags
HEAD = struct.Struct("<16sQI")  # digest of an index, its bytes, those of its head
PACK = struct.Struct("<16s4I")  # id, size, entries of each section
PERSON = b"pltz manifest"
MAX_GENERATION = (1 << 62) - 1
MOST_INDEXES, MOST_PACKS, MOST_PLANS, MOST_LOSSES, MOST_LATE = 1 << 16, 4096, 4096, 1 << 16, 1 << 16
MOST_HEADS = 1 << 18  # bytes of the heads of all indexes
MOST_PER_BYTE = 1 << 16  # bytes of an index for each of its head, which has 4 per page: a page is below 2^16 bytes
KEY_SIZE, OFFSET_SIZE = 5, 4  # bytes of an entry


class IndexHead(NamedTuple):
    """The size of an index in bytes, and the bytes before its first page."""

    size: int
    data: bytes


@dataclass(frozen=True)
class NamedPack:
    """A pack that no named index covers: its size in bytes, and its index entries by section."""

    size: int
    sections: Mapping[int, Entries]

    @property
    def count(self) -> int:
        """Return the number of entries."""
        return sum(len(keys) for keys, _ in self.sections.values())


@dataclass(frozen=True)
class Manifest:
    """One state of an archive.

    Attributes:
        settings: those of archive.json.
        generation: number of the state, one above that of the state before.
        random: 16 bytes of its writer.
        epoch: number of the newest plan that writers respect.
        indexes: digests, hex.
        packs: those that no named index covers, by id.
        plans: epochs of the plans that condemn a pack that is still there.
        losses: names of the ledger's entries of losses and acknowledgements.
        late: packs that may be of puts that were cut off: taken up without parity, after a manifest was lost.
        gaps: whether packs were missing or damaged when it was made, so that everybody has to list.
        marked: in an archive without parity, whether each acknowledged pack that it does not name has a marker.
        rolled_back: whether an older manifest was brought back, so that puts may be lost, and no repair ran since.
        heads: of the indexes that are read by ranges, as long as all together have at most `MOST_HEADS` bytes.
    """

    settings: Settings
    generation: int
    random: bytes
    epoch: int
    indexes: frozenset[str]
    packs: Mapping[bytes, NamedPack]
    plans: frozenset[int]
    losses: frozenset[str]
    late: frozenset[bytes] = frozenset()
    gaps: bool = False
    marked: bool = False
    rolled_back: bool = False
    heads: Mapping[str, IndexHead] = field(default_factory=dict)

    @property
    def tells_orphans(self) -> bool:
        """Return whether a pack that it does not name, and that has no file in parity/, was never acknowledged."""
        return self.marked or self.settings.parity[0] > 0

    @property
    def archive(self) -> bytes:
        """Return the id of the archive, 16 bytes."""
        return self.settings.archive

    @property
    def state(self) -> tuple[object, ...]:
        """Return all that it says, to compare two: a pack of an id has one size and one set of entries."""
        names = self.indexes, self.packs.keys(), self.plans, self.losses, self.late, self.heads.keys()
        return self.settings, self.epoch, names, self.gaps, self.marked, self.rolled_back

    def encode(self) -> bytes:
        """Return its bytes."""
        counts = len(self.indexes), len(self.packs), len(self.plans), len(self.losses), len(self.late)
        flags = GAPS * self.gaps | SEALED * self.settings.sealed | MARKED * self.marked
        flags |= ROLLED_BACK * self.rolled_back | HEADED * bool(self.heads)
        head = MAGIC, VERSION, flags, bytes(2), self.archive, self.generation, self.random, self.epoch
        parts = [HEADER.pack(*head, *self.settings.parity, *counts)]
        parts += [bytes.fromhex(name) for name in sorted(self.indexes)]
        for name, pack in sorted(self.packs.items()):
            columns = [pack.sections[section] for section in range(len(SECTIONS))]
            parts.append(PACK.pack(name, pack.size, *(len(keys) for keys, _ in columns)))
            parts += [_packed(entries) for entries in columns]
        parts += [epoch.to_bytes(8, "little") for epoch in sorted(self.plans)]
        parts += [bytes.fromhex(name) for name in sorted(self.losses)]
        parts += sorted(self.late)
        parts += [len(self.heads).to_bytes(4, "little")] if self.heads else []
        for index, (size, first) in sorted(self.heads.items()):
            parts += [HEAD.pack(bytes.fromhex(index), size, len(first)), first]
        data = b"".join(parts)
        return data + digest(PERSON, data)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Return the manifest in these bytes. Raises CorruptError, VersionError."""
        if len(data) < HEADER.size + SIZE or digest(PERSON, data[:-SIZE]) != data[-SIZE:]:
            raise CorruptError("the manifest does not match its checksum: damaged")
        if data[: len(MAGIC)] != MAGIC:
            raise CorruptError("the manifest does not begin with its magic: damaged")
        read = VERSIONS.of(data[len(MAGIC)])
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

    def names(self, count: int) -> list[str]:
        """Return the next digests, which ascend, as hex."""
        return [name.hex() for name in self.rising(count, SIZE)]

    def rising(self, count: int, size: int) -> list[bytes]:
        """Return the next fields of one size, which ascend."""
        data = self.take(count * size)
        fields = [data[at : at + size] for at in range(0, len(data), size)]
        if fields != sorted(set(fields)):
            raise CorruptError("the manifest has names out of order: damaged")
        return fields


def _read(data: bytes) -> Manifest:
    """Return the manifest in bytes of version 3, of which digest and magic are right."""
    _, _, flags, reserved, archive, generation, random, epoch, share, shared, *counts = HEADER.unpack_from(data)
    indexes, packs, plans, losses, late = counts
    if any(reserved) or flags > GAPS | SEALED | MARKED | ROLLED_BACK | HEADED:
        raise VersionError("the manifest has fields of a newer version: use a newer pltz")
    most = MOST_INDEXES, MOST_PACKS, MOST_PLANS, MOST_LOSSES, MOST_LATE
    others, limits = (generation, epoch, share, shared), (MAX_GENERATION, MAX_EPOCH, MAX_SHARE, MAX_SHARE)
    if any(n > limit for n, limit in zip((*counts, *others), (*most, *limits), strict=True)):
        raise CorruptError("the manifest has more than its format allows: damaged")
    if flags & MARKED and share:
        raise CorruptError("the manifest tells of markers, and its packs have parity: damaged")
    cursor = _Cursor(data[:-SIZE], HEADER.size)
    named = cursor.names(indexes)
    rows = dict(_pack(cursor) for _ in range(packs))
    numbers = [int.from_bytes(cursor.take(8), "little") for _ in range(plans)]
    lost = cursor.names(losses)
    doubted = cursor.rising(late, SIZE)
    heads = _heads(cursor, named) if flags & HEADED else {}
    if cursor.at != len(data) - SIZE or numbers != sorted(set(numbers)) or list(rows) != sorted(rows):
        raise CorruptError("the manifest does not have the rows it claims: damaged")
    if len(rows) != packs or any(not 0 < number <= epoch for number in numbers):
        raise CorruptError("the manifest names a pack twice, or a plan that is newer than its epoch: damaged")
    settings = Settings(archive, bool(flags & SEALED), (share, shared), manifest=True)
    sets = frozenset(named), rows, frozenset(numbers), frozenset(lost), frozenset(doubted)
    told = bool(flags & GAPS), bool(flags & MARKED), bool(flags & ROLLED_BACK)
    return Manifest(settings, generation, random, epoch, *sets, *told, heads)


def _heads(cursor: _Cursor, named: Collection[str]) -> dict[str, IndexHead]:
    """Return the heads of some of the indexes that are named. Raises CorruptError."""
    heads, last = dict[str, IndexHead](), ""
    for _ in range(int.from_bytes(cursor.take(4), "little")):
        digest, size, length = HEAD.unpack(cursor.take(HEAD.size))
        name, before, last = digest.hex(), last, digest.hex()
        if name not in named or name <= before or not 0 < length < size <= length * MOST_PER_BYTE:
            raise CorruptError("the manifest has a head of an index that it cannot have: damaged")
        heads[name] = IndexHead(size, cursor.take(length))
    if not 0 < sum(len(head.data) for head in heads.values()) <= MOST_HEADS:
        raise CorruptError("the manifest has more or fewer heads than its format allows: damaged")
    return heads


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


VERSIONS = Readers("the manifest", {VERSION: _read}, "delete the folder manifest/, then run pltz archive repair")
