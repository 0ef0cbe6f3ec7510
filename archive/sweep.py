"""Sweep: prove packs and indexes sound at the speed of the hash, many records at a time. What is not proved is looked at one by one.

A pack whose digest is its name holds the bytes its writer laid out and read back. So what is left to ask is whether packs and
indexes agree, and whether towers are whole, and both are questions about columns:

    places of all entries of a pack, sorted --gather--> heads of records --> sizes, flags, ids, parents
    each record ends where the next begins?  flags and keys as in the index?  every parent some segment's id?

A sweep never says *sound* of what is not; where it says anything else, `verify` reads record by record and names what is wrong.
One thing it samples: keys of sessions, which are hashes of names, are computed again for one in `SAMPLE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pltz.archive import columns
from pltz.archive.columns import Bytes, Columns, Ints
from pltz.archive.identity import NONE, SIZE
from pltz.archive.index import SECTIONS, SESSIONS, U64, Lookup, gather, key_of, key_of_session
from pltz.archive.io import File, pieces
from pltz.archive.pack import Pack
from pltz.archive.record import PARENT_BACK, PARENT_TABLE, Record
from pltz.archive.view import View
from pltz.plt_codec.errors import FormatError

AHEAD = 3  # packs hashed while another is looked at
MOST_BYTES, MOST_RECORDS = (
    128 << 20,
    1 << 20,
)  # of a pack held in memory; a larger one is read record by record
SAMPLE = 256  # of so many sessions one has its key computed again
PACK_BITS = 30  # of an address: a pack is at most 2^30 bytes


@dataclass(frozen=True)
class Swept:
    """A sound pack: how many records, and (N, 2) halves of ids of its segments and, once or more, of what its records continue."""

    records: int
    ids: U64
    parents: U64


class Room:
    """Memory for a pack, used again for the next one: what is new to a process has to be zeroed for it, which takes as long as the reading."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def filled(self, file: File) -> memoryview:
        """The bytes of a file. Raises as its ``read``, CorruptError where it was cut off."""
        if len(self._bytes) < file.size:
            self._bytes = bytearray(file.size)
        at, data = 0, memoryview(self._bytes)[: file.size]
        for piece in pieces(file.read, 0, file.size):
            data[at : at + len(piece)] = piece
            at += len(piece)
        return data


class Sweep:
    """Looks at packs beside all entries of the indexes. Where an index is damaged nothing is proved at this speed."""

    def __init__(self, view: View):
        self.view = view
        self._number = {pack: n for n, pack in enumerate(sorted(view.packs))}
        starts = {pack: n << PACK_BITS for pack, n in self._number.items()}
        self._starts = starts
        self._rooms: list[Room] = []

    @cached_property
    def _entries(self) -> list[tuple[U64, U64]] | None:
        """Keys and addresses of all entries, a section each, by address; None where an index is damaged. Gathered while the first packs are hashed."""
        indexes: list[Lookup] = [*self.view.indexes.values(), self.view.tail]
        try:
            return [gather(indexes, section, self._starts, by_place=True) for section in range(len(SECTIONS))]
        except FormatError:
            return None

    def run(self, packs: Sequence[bytes]) -> Iterator[tuple[bytes, Swept | None]]:
        """Each pack with what is in it; None: not proved sound. The next ones are hashed meanwhile, which needs no Python."""
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
            file = self.view.store.open(f"packs/{name.hex()}")
            if file.size > MOST_BYTES:
                return None
            data = room.filled(file)
            pack = Pack.of(data)
            digest, count = pack.seal()
        except (FormatError, FileNotFoundError):
            return None
        there = digest == name and len(data) == self.view.packs.get(name) and count <= MOST_RECORDS
        return (data, pack, count) if there else None

    def _swept(
        self, name: bytes, room: Room, sealed: Future[tuple[memoryview, Pack, int] | None]
    ) -> tuple[bytes, Swept | None]:
        found = sealed.result()
        try:
            return name, self._columns(name, *found) if found else None
        except FormatError:  # of a record that was sampled
            return name, None
        finally:
            self._rooms.append(room)

    def _columns(self, name: bytes, data: memoryview, pack: Pack, count: int) -> Swept | None:
        """Records at the places that the indexes name; None where they do not fill the pack, or are not what the indexes say.

        Raises CorruptError where they are not records.
        """
        if self._entries is None:
            return None
        entries = [self._of(name, *section) for section in self._entries]
        offsets = _distinct(np.sort(np.concatenate([places for _, places in entries])))
        if len(offsets) != count or (count and offsets[0] != pack.begin) or offsets[-1:] >= pack.end:
            return None
        if not count:
            return Swept(0, *(np.zeros((0, 2), np.uint64) for _ in range(2)))
        place, records = pack.head.place(pack.begin), data[pack.begin : pack.end]
        found = columns.decode(records, offsets - pack.begin, len(records), place)
        kinds = found.segment, found.session, found.mark
        for section, (kind, (keys, places)) in enumerate(zip(kinds, entries, strict=True)):
            if not np.array_equal(_distinct(places), offsets[kind]):
                return None
            if section != SESSIONS and not np.array_equal(_keys(found.id[kind]), keys):
                return None
        parents = found.parent
        table = np.frombuffer(b"".join([*pack.head.parents, NONE]), np.uint8).reshape(-1, SIZE)
        named = found.how == PARENT_TABLE
        parents[named] = table[found.reference[named]]
        back = np.flatnonzero(found.how == PARENT_BACK)
        places_back = offsets[back] - found.reference[back]
        at = np.minimum(np.searchsorted(offsets, places_back), count - 1)
        if (offsets[at] != places_back).any() or not found.segment[at].all():
            return None
        parents[back] = found.id[at]
        if not self._sampled(pack, records, found, entries[SESSIONS][0]):
            return None
        needed = ~found.mark & (found.how > 0)
        return Swept(count, _halves(found.id[found.segment]), _once(_halves(parents[needed])))

    def _of(self, name: bytes, keys: U64, places: U64) -> tuple[U64, Ints]:
        """Keys and offsets of a pack's entries, by offset."""
        first = self._number[name] << PACK_BITS
        begin, end = np.searchsorted(places, np.array([first, first + (1 << PACK_BITS)], np.uint64))
        return keys[begin:end], places[begin:end].astype(np.int64) - first

    def _sampled(self, pack: Pack, records: memoryview, found: Columns, keys: U64) -> bool:
        """Whether keys of some sessions are those of their names."""
        dice = int.from_bytes(self.view.store.random(2), "little") % SAMPLE
        rows = np.flatnonzero(found.session)[dice::SAMPLE]
        for row, key in zip(rows.tolist(), keys[dice::SAMPLE].tolist(), strict=True):
            context, at = pack.head.contexts[int(found.context[row])], int(found.tag[row])
            tag = bytes(records[at : at + int(found.tag_size[row])])
            record = Record(0, name="", veil=tag) if context.cipher else Record(0, name=tag.decode())
            if key_of(key_of_session(record, context)) != key:
                return False
        return True


def whole(swept: Sequence[Swept]) -> bool:
    """Whether everything that a record continues is a segment of some pack."""
    empty = np.zeros((0, 2), np.uint64)
    ids = np.concatenate([empty, *(s.ids for s in swept)])
    parents = np.concatenate([empty, *(s.parents for s in swept)])
    ids = ids[np.argsort(ids[:, 0])]
    if not len(parents) or not len(ids):
        return not len(parents)
    at = np.minimum(np.searchsorted(ids[:, 0], parents[:, 0]), len(ids) - 1)
    return bool((ids[at] == parents).all())


def _distinct(ordered: Ints) -> Ints:
    """Each of some ordered numbers once."""
    new = np.ones(len(ordered), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return ordered[new]


def _halves(ids: Bytes) -> U64:
    """(N, 16) bytes -> (N, 2) numbers."""
    return np.ascontiguousarray(ids).view("<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def _once(rows: U64) -> U64:
    """(N, 2) -> (M, 2), most of those that come again left out: many sessions continue one prompt."""
    rows = rows[np.argsort(rows[:, 0])]
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:] != rows[:-1]).any(1)
    return rows[new]


def _keys(ids: Bytes) -> U64:
    """(N,) index keys of (N, 16) ids."""
    return np.ascontiguousarray(ids[:, :8]).view(">u8").reshape(-1).astype(np.uint64) >> np.uint64(16)
