"""Bulk verification: prove packs and indexes sound at the speed of the hash, many records at a time.

A pack whose digest is its name holds the bytes that its writer laid out and read back. It remains to check
that packs and indexes agree and that towers are whole. Both are checks of columns:

    heads of all blocks --> ids, parents, names
    each block ends where the next begins?  keys as in the index?  every parent some segment's id?

This never reports damage as sound. Packs that it cannot prove are read record by record by `verify`, which
names the problem. One check is sampled: session keys, which are hashes of names, are recomputed for one block in
`SAMPLE`. Of the others the sessions are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.format import object_names
from pltz.archive.format.block import Block
from pltz.archive.format.byte_source import File
from pltz.archive.format.index_file import (
    KEY_BITS,
    MARKS,
    SECTIONS,
    SEGMENTS,
    SESSIONS,
    U64,
    Location,
    Lookup,
    key_of,
    key_of_session,
)
from pltz.archive.format.pack import Pack
from pltz.plt_codec.errors import CorruptError, FormatError
from pltz.plt_codec.identity import SIZE

AHEAD = 3  # packs hashed while another is checked
# limits of a pack held in memory; a larger one is read record by record
MOST_BYTES, MOST_RECORDS = 128 << 20, 1 << 20
ROOM = 4 << 20  # bytes; buffers are multiples of it because packs differ a little in size
SAMPLE = 64  # one block in this many has the keys of its sessions recomputed
_TOP = np.uint64(48)  # shift that leaves the first 16 bits of a number
_NO_KEYS, _NO_PLACES, _NO_IDS = np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros((0, SIZE), np.uint8)

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BulkVerified:
    """The contents of a pack proved sound.

    Attributes:
        pack: id of the pack.
        records: number of records.
        offsets: (B,) bytes; where its blocks begin.
        bounds: (B,) number of segments up to the end of each block.
        ids: (N, 2) halves of the ids of its segments.
        parents: (M, 2) halves of the ids of its records' parents, each once, without those that are earlier records of
            the same block.
    """

    pack: bytes
    records: int
    offsets: Ints
    bounds: Ints
    ids: U64
    parents: U64


class Room:
    """A buffer for one pack, reused for the next.

    Fresh memory must be zeroed for the process, which takes longer than reading the pack.
    """

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def filled(self, file: File) -> memoryview:
        """Return the bytes of a file.

        Raises CorruptError where it was cut off, and the errors of ``file.fill``.
        """
        if len(self._bytes) < file.size:
            self._bytes = np.empty(-(-file.size // ROOM) * ROOM, np.uint8)  # numpy asks for huge pages
        data = self._bytes.data[: file.size]
        if (found := file.fill(data, 0)) != file.size:
            raise CorruptError(
                f"expected {file.size} bytes, found {found}: the file was cut off while it was read"
            )
        return data


class PlacedEntries:
    """Entries of an index in the order of their places."""

    def __init__(self, index: Lookup):
        # for each section: keys, addresses, and where those of each pack begin
        self._sections: list[tuple[U64, U64, list[int]]] = []
        self._starts = index.starts
        starts = np.array(self._starts, np.uint64)
        for section in range(len(SECTIONS)):
            keys, addresses = index.addressed(section)
            order = _order(addresses)
            addresses = addresses[order]
            bounds = np.searchsorted(addresses, starts).tolist()
            self._sections.append((keys[order], addresses, bounds))

    def of(self, number: int, section: int) -> tuple[U64, Ints]:
        """Return keys (N,) and offsets (N,) in bytes of the entries of a pack, by offset."""
        keys, addresses, bounds = self._sections[section]
        part = slice(bounds[number], bounds[number + 1])
        return keys[part], addresses[part].astype(np.int64) - self._starts[number]


class BulkVerifier:
    """Checks packs against all entries of the indexes. Nothing is proved where an index is damaged."""

    def __init__(self, catalog: Catalog):
        self.catalog = catalog
        self._rooms: list[Room] = []

    @cached_property
    def _listings(self) -> dict[bytes, list[tuple[PlacedEntries, int]]] | None:
        """Return the indexes that cover each pack, with the pack's number in each; None where one is damaged.

        Computed while the first packs are hashed.
        """
        indexes: list[Lookup] = [*self.catalog.listing.indexes.values(), self.catalog.listing.tail]
        found: dict[bytes, list[tuple[PlacedEntries, int]]] = {}
        try:
            for index in indexes:
                listing = PlacedEntries(index)
                for number, pack in enumerate(index.names):
                    found.setdefault(pack, []).append((listing, number))
        except (FormatError, FileNotFoundError):  # the latter where it is read by ranges and was replaced meanwhile
            return None
        return found

    def run(self, packs: Sequence[bytes]) -> Iterator[tuple[bytes, BulkVerified | None]]:
        """Yield each pack with its contents, or None where it is not proved sound. Raises StoreError.

        The next packs are hashed meanwhile, without the GIL.
        """
        with ThreadPoolExecutor(AHEAD) as pool:
            waiting: list[tuple[bytes, Room, Future[tuple[memoryview, Pack, int] | None]]] = []
            for pack in packs:
                room = self._rooms.pop() if self._rooms else Room()
                waiting.append((pack, room, pool.submit(self._sealed, pack, room)))
                if len(waiting) > AHEAD:
                    yield self._swept(*waiting.pop(0))
            for item in waiting:
                yield self._swept(*item)

    def _sealed(self, name: bytes, room: Room) -> tuple[memoryview, Pack, int] | None:
        try:
            file = self.catalog.store.open(object_names.pack(name))
            if file.size > MOST_BYTES:
                return None
            data = room.filled(file)
            pack = Pack.of(data, self.catalog.listing.archive)
            digest, count = pack.seal()
        except (FormatError, FileNotFoundError):
            return None
        there = digest == name and len(data) == self.catalog.listing.packs.get(name) and count <= MOST_RECORDS
        return (data, pack, count) if there else None

    def _swept(
        self, name: bytes, room: Room, sealed: Future[tuple[memoryview, Pack, int] | None]
    ) -> tuple[bytes, BulkVerified | None]:
        found = sealed.result()
        try:
            return name, self._columns(name, *found) if found else None
        except FormatError:  # a sampled record is damaged
            return name, None
        finally:
            self._rooms.append(room)

    def _columns(self, name: bytes, data: memoryview, pack: Pack, count: int) -> BulkVerified | None:
        """Return the contents of a pack; None where the index entries differ from its records.

        Raises CorruptError where its bytes are no blocks.
        """
        if self._listings is None:
            return None
        blocks, at = [], pack.begin
        while at < pack.end:
            blocks.append(Block.of(data, at, at, pack.fields))
            at = blocks[-1].end
        if at != pack.end or sum(block.count for block in blocks) != count:
            return None
        ids = [block.segment_ids() for block in blocks]
        marks = [np.frombuffer(b"".join(block.versions()), np.uint8).reshape(-1, SIZE) for block in blocks]
        if not self._match(name, SEGMENTS, blocks, map(_keys, ids)):
            return None
        if not self._match(name, MARKS, blocks, map(_keys, marks)) or not self._sessions_match(name, pack, blocks):
            return None
        elsewhere = np.frombuffer(b"".join(p for block in blocks for p in block.elsewhere()), np.uint8)
        every = np.concatenate([_NO_IDS, *ids])
        offsets, bounds = np.array([b.offset for b in blocks], np.int64), np.cumsum([0, *map(len, ids)])[1:]
        parents = _once(_halves(elsewhere.reshape(-1, SIZE)))
        return BulkVerified(name, count, offsets, bounds, _halves(every), parents)

    def _match(self, name: bytes, section: int, blocks: Sequence[Block], keys: Iterable[U64]) -> bool:
        """Return whether the entries of a section are those of the records. ``keys``: of each block, in any order."""
        found, places = self._of(name, section)
        wanted = [np.unique(k) for k in keys]
        if not np.array_equal(np.concatenate([_NO_KEYS, *wanted]), found):
            return False
        offsets = np.array([block.offset for block in blocks], np.int64)
        return np.array_equal(np.repeat(offsets, [len(k) for k in wanted]), places)

    def _sessions_match(self, name: bytes, pack: Pack, blocks: Sequence[Block]) -> bool:
        """Return whether each block has as many entries as sessions, and whether those of a sample are their keys."""
        keys, places = self._of(name, SESSIONS)
        bounds = np.searchsorted(places, [*(block.offset for block in blocks), pack.end]).tolist()
        domains = [context.domain for context in pack.head.contexts]
        dice = int.from_bytes(self.catalog.store.random(2), "little") % SAMPLE
        for number, (block, (begin, end)) in enumerate(zip(blocks, pairwise(bounds), strict=True)):
            if end - begin != block.sessions(domains):
                return False
            if (number + dice) % SAMPLE == 0:
                records = [r for r in block.heads() if r.name is not None]
                named = {key_of(key_of_session(r, pack.head.contexts[r.context])) for r in records}
                if sorted(named) != keys[begin:end].tolist():
                    return False
        return not len(places) or bounds[0] == 0

    def _of(self, name: bytes, section: int) -> tuple[U64, Ints]:
        """Return keys (N,) and offsets (N,) of a pack's entries, by offset and key, each entry once."""
        found = [listing.of(number, section) for listing, number in (self._listings or {}).get(name, [])]
        keys, places = (np.concatenate(column) for column in zip((_NO_KEYS, _NO_PLACES), *found, strict=True))
        if ((places[1:] > places[:-1]) | ((places[1:] == places[:-1]) & (keys[1:] > keys[:-1]))).all():
            return keys, places
        order = np.lexsort((keys, places))
        keys, places = keys[order], places[order]
        new = np.ones(len(keys), bool)
        new[1:] = (keys[1:] != keys[:-1]) | (places[1:] != places[:-1])
        return keys[new], places[new]


def absent(swept: Sequence[BulkVerified]) -> list[bytes]:
    """Return the parents of records that are not segments of these packs.

    Of two that begin with the same 8 bytes one may be returned although it is there.
    """
    parents, found = _named(swept)
    there = np.zeros(len(parents), bool)
    for _, _, at in found:
        there[at] = True
    return [row.astype("<u8").tobytes() for row in parents[~there]]


def inner_blocks(swept: Sequence[BulkVerified]) -> Iterator[Location]:
    """Yield the blocks that decide how deep towers are: those that others name.

    Every circle of parents, and every way of more than one block, goes through their records.
    """
    for s, rows, _ in _named(swept)[1]:
        named = np.searchsorted(s.bounds, rows, side="right")
        for block in np.unique(named).tolist():
            yield Location(s.pack, int(s.offsets[block]))


def _named(swept: Sequence[BulkVerified]) -> tuple[U64, list[tuple[BulkVerified, Ints, Ints]]]:
    """Return the parents of all packs, (M, 2), and of each pack the rows of its ids that are such, and which."""
    parents = _once(np.concatenate([_halves(_NO_IDS), *(s.parents for s in swept)]))
    begun = np.zeros(1 << 16, bool)  # first 16 bits of parents: with few parents, few ids pass this filter
    begun[parents[:, 0] >> _TOP] = True
    found = []
    for s in swept:
        rows = np.flatnonzero(begun[s.ids[:, 0] >> _TOP])
        ids = s.ids[rows]
        at = np.minimum(np.searchsorted(parents[:, 0], ids[:, 0]), max(len(parents) - 1, 0))
        same = (parents[at] == ids).all(1) if len(parents) else np.zeros(0, bool)
        found.append((s, rows[same], at[same]))
    return parents, found


def _order(numbers: U64 | Ints) -> npt.NDArray[np.intp]:
    """Return the order of (N,) numbers as `np.argsort` does, by counting 16 bits at a time.

    A million numbers take half of the time (44 ms instead of 88), those of a pack a fifth.
    """
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    for shift in range(16, int(numbers.max(initial=0)).bit_length(), 16):
        digits = (numbers >> numbers.dtype.type(shift)).astype(np.uint16)[order]
        order = order[np.argsort(digits, kind="stable")]
    return order


def _halves(ids: Bytes) -> U64:
    """Return (N, 16) bytes as (N, 2) numbers."""
    return np.ascontiguousarray(ids).view("<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def _once(rows: U64) -> U64:
    """Return the distinct rows of (N, 2), sorted, as (M, 2)."""
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:] != rows[:-1]).any(1)
    return rows[new]


def _keys(ids: Bytes) -> U64:
    """Return the (N,) index keys of (N, 16) ids."""
    return np.ascontiguousarray(ids[:, :8]).view(">u8").reshape(-1).astype(np.uint64) >> np.uint64(64 - KEY_BITS)
