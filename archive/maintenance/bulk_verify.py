"""Bulk verification: prove packs and indexes sound at the speed of the hash, many records at a time.

A pack whose digest is its name holds the bytes that its writer laid out and read back. It remains to check
that packs and indexes agree and that towers are whole. Both are checks of columns:

    places of all entries of a pack, in order --gather--> heads of records --> sizes, flags, ids, parents
    each record ends where the next begins?  flags and keys as in the index?  every parent some segment's id?

This never reports damage as sound. Packs that it cannot prove are read record by record by `verify`, which
names the problem. One check is sampled: session keys, which are hashes of names, are recomputed for one
session in `SAMPLE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.format import object_names, record_batch
from pltz.archive.format.byte_source import File
from pltz.archive.format.ids import SIZE
from pltz.archive.format.index_file import SECTIONS, SESSIONS, U64, Lookup, key_of, key_of_session
from pltz.archive.format.pack import Pack
from pltz.archive.format.record import PARENT_BACK, PARENT_INLINE, PARENT_TABLE, Record
from pltz.archive.format.record_batch import Bytes, Ints, RecordColumns
from pltz.plt_codec.errors import CorruptError, FormatError

AHEAD = 3  # packs hashed while another is checked
# limits of a pack held in memory; a larger one is read record by record
MOST_BYTES, MOST_RECORDS = 128 << 20, 1 << 20
ROOM = 4 << 20  # bytes; buffers are multiples of it because packs differ a little in size
SAMPLE = 256  # one session in this many has its key recomputed
_TOP = np.uint64(48)  # shift that leaves the first 16 bits of a number
_NO_KEYS, _NO_PLACES, _NO_IDS = np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros((0, SIZE), np.uint8)


@dataclass(frozen=True)
class BulkVerified:
    """The contents of a pack proved sound.

    Attributes:
        records: number of records.
        ids: (N, 2) halves of the ids of its segments.
        parents: (M, 2) halves of the ids of its records' parents and neighbours, each once, without parents that are
            earlier records of the same pack.
    """

    records: int
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
        except FormatError:
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
            pack = Pack.of(data, self.catalog.ledger.archive)
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
        """Return the records at the places that the indexes name.

        None where they do not fill the pack or differ from the index entries. Raises CorruptError where they
        are not records.
        """
        if self._listings is None:
            return None
        entries = [self._of(name, section) for section in range(len(SECTIONS))]
        offsets = _union([places for _, places in entries])
        if len(offsets) != count or (count and offsets[0] != pack.begin) or offsets[-1:] >= pack.end:
            return None
        if not count:
            return BulkVerified(0, *(np.zeros((0, 2), np.uint64) for _ in range(2)))
        place, records = pack.head.place(pack.begin), data[pack.begin : pack.end]
        found = record_batch.decode(records, offsets - pack.begin, len(records), place)
        kinds = found.segment, found.session, found.mark
        for section, (kind, (keys, places)) in enumerate(zip(kinds, entries, strict=True)):
            if not np.array_equal(places, offsets[kind]):
                return None
            if section != SESSIONS and not np.array_equal(_keys(found.id[kind]), keys):
                return None
        back = np.flatnonzero(found.how == PARENT_BACK)
        places_back = offsets[back] - found.reference[back]
        at = np.minimum(np.searchsorted(offsets, places_back), count - 1)
        if (offsets[at] != places_back).any() or not found.segment[at].all():
            return None
        if not self._sampled(pack, records, found, entries[SESSIONS][0]):
            return None
        named = np.bincount(found.reference[found.how == PARENT_TABLE], minlength=1)
        table = [pack.head.parents[n] for n in np.flatnonzero(named).tolist()]
        elsewhere = np.frombuffer(b"".join(table), np.uint8).reshape(-1, SIZE)
        inline = found.parent[found.how == PARENT_INLINE]
        near = found.neighbour[found.neighbour.any(1)]
        return BulkVerified(
            count, _halves(found.id[found.segment]), _once(_halves(np.concatenate([elsewhere, inline, near])))
        )

    def _of(self, name: bytes, section: int) -> tuple[U64, Ints]:
        """Return keys (N,) and offsets (N,) of a pack's entries, by offset, each entry once."""
        found = [listing.of(number, section) for listing, number in (self._listings or {}).get(name, [])]
        if len(found) == 1:
            return found[0]
        keys, places = (np.concatenate(column) for column in zip((_NO_KEYS, _NO_PLACES), *found, strict=True))
        order = _order(places)
        keys, places = keys[order], places[order]
        new = np.ones(len(keys), bool)
        new[1:] = (keys[1:] != keys[:-1]) | (places[1:] != places[:-1])
        return keys[new], places[new]

    def _sampled(self, pack: Pack, records: memoryview, found: RecordColumns, keys: U64) -> bool:
        """Return whether the keys of a sample of sessions match their names."""
        dice = int.from_bytes(self.catalog.store.random(2), "little") % SAMPLE
        rows = np.flatnonzero(found.session)[dice::SAMPLE]
        for row, key in zip(rows.tolist(), keys[dice::SAMPLE].tolist(), strict=True):
            context, at = pack.head.contexts[int(found.context[row])], int(found.title[row])
            tag = bytes(records[at : at + int(found.title_size[row])])
            record = Record(0, name="", veil=tag) if context.cipher else Record(0, name=tag.decode())
            if key_of(key_of_session(record, context)) != key:
                return False
        return True


def whole(swept: Sequence[BulkVerified]) -> bool:
    """Return whether every parent of a record is a segment of some pack.

    Also False where two parents begin with the same 8 bytes.
    """
    parents = _once(np.concatenate([_halves(_NO_IDS), *(s.parents for s in swept)]))
    if not len(parents):
        return True
    begun = np.zeros(1 << 16, bool)  # first 16 bits of parents: with few parents, few ids pass this filter
    begun[parents[:, 0] >> _TOP] = True
    there = np.zeros(len(parents), bool)
    for s in swept:
        ids = s.ids[begun[s.ids[:, 0] >> _TOP]]
        at = np.minimum(np.searchsorted(parents[:, 0], ids[:, 0]), len(parents) - 1)
        there[at[(parents[at] == ids).all(1)]] = True
    return bool(there.all())


def _order(numbers: U64 | Ints) -> npt.NDArray[np.intp]:
    """Return the order of (N,) numbers as `np.argsort` does, by counting 16 bits at a time.

    A million numbers take half of the time (44 ms instead of 88), those of a pack a fifth.
    """
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    for shift in range(16, int(numbers.max(initial=0)).bit_length(), 16):
        digits = (numbers >> numbers.dtype.type(shift)).astype(np.uint16)[order]
        order = order[np.argsort(digits, kind="stable")]
    return order


def _union(ordered: Sequence[Ints]) -> Ints:
    """Return the numbers in any of these arrays, each once.

    The arrays are sorted, and most are equal.
    """
    first, *others = [o for o in ordered if len(o)] or [_NO_PLACES]
    if all(np.array_equal(first, other) for other in others):
        return first
    both = np.sort(np.concatenate([first, *others]), kind="stable")
    new = np.ones(len(both), bool)
    new[1:] = both[1:] != both[:-1]
    return both[new]


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
    return np.ascontiguousarray(ids[:, :8]).view(">u8").reshape(-1).astype(np.uint64) >> np.uint64(16)
