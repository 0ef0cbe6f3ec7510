"""PackWalk: reads each pack once, the next ones beside, and proves it sound at the speed of the hash.

A pack whose digest is its name holds the bytes that its writer laid out and read back. It remains to check
that packs and indexes agree and that towers are whole. Both are checks of columns:

    heads of all blocks --> ids, parents, names
    each block ends where the next begins?  keys as in the index?  every parent some segment's id?

This never reports damage as sound. What is wrong with a pack that it cannot prove is named by `verify`, record by
record. One check is sampled: session keys, which are hashes of names, are recomputed for one block in
`SAMPLE`. Of the others the sessions are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.format import object_names
from pltz.archive.format.block import Block
from pltz.archive.format.byte_source import File, Held
from pltz.archive.format.ids import SEGMENT_SIZE
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
from pltz.plt_codec.errors import FormatError
from pltz.plt_codec.identity import SIZE

AHEAD = 3  # packs read and hashed while another is checked
# limits of a pack held in memory; a larger one is read as its records are
MOST_BYTES, MOST_RECORDS = 128 << 20, 1 << 20
SAMPLE = 64  # one block in this many has the keys of its sessions recomputed
_NO_KEYS, _NO_PLACES, _NO_IDS = np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros((0, SEGMENT_SIZE), np.uint8)

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PackColumns:
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


class WalkedPack(NamedTuple):
    """A pack that was read.

    Attributes:
        file: its bytes, in memory unless they are many. None: a collector deleted it meanwhile.
        why: what is wrong with it as a whole; empty where digest, headers and footer are right.
        columns: None where it is not proved sound.
    """

    name: bytes
    file: File | None
    why: str
    columns: PackColumns | None


class _Sealed(NamedTuple):
    """A pack that was read and hashed. ``pack``: None where ``why`` says what is wrong."""

    file: File | None = None
    why: str = ""
    pack: Pack | None = None
    records: int = 0


class PlacedEntries:
    """Entries of an index in the order of their places."""

    def __init__(self, index: Lookup):
        # for each section: keys, addresses, and where those of each pack begin
        self._sections: list[tuple[U64, U64, list[int]]] = []
        self._starts = index.starts
        starts = np.array(self._starts, np.uint64)
        for section in range(len(SECTIONS)):
            keys, addresses = index.addressed(section)
            order = np.argsort(addresses, kind="stable")
            addresses = addresses[order]
            bounds = np.searchsorted(addresses, starts).tolist()
            self._sections.append((keys[order], addresses, bounds))

    def of(self, number: int, section: int) -> tuple[U64, Ints]:
        """Return keys (N,) and offsets (N,) in bytes of the entries of a pack, by offset."""
        keys, addresses, bounds = self._sections[section]
        part = slice(bounds[number], bounds[number + 1])
        return keys[part], addresses[part].astype(np.int64) - self._starts[number]


class PackWalk:
    """Checks packs against the entries of all indexes, as they were at the last `look`."""

    def __init__(self, catalog: Catalog):
        self.catalog = catalog
        # the indexes that cover each pack, with the pack's number in each
        self._indexed: dict[bytes, list[tuple[PlacedEntries, int]]] = {}

    def run(self, packs: Iterable[bytes]) -> Iterator[WalkedPack]:
        """Yield packs as they are read. Raises StoreError.

        The next packs are read and hashed meanwhile, without the GIL.
        """
        left = iter(packs)
        with ThreadPoolExecutor(AHEAD) as pool:
            waiting: list[tuple[bytes, Future[_Sealed]]] = []
            while True:
                for name in islice(left, 1 + AHEAD - len(waiting)):
                    waiting.append((name, pool.submit(self._sealed, name)))
                if not waiting:
                    return
                name, sealed = waiting.pop(0)
                yield self._checked(name, sealed.result())

    def entries(self, pack: bytes) -> set[tuple[int, int, int]]:
        """Return section, key and offset of a pack's entries in all indexes and in the manifest."""
        return {
            (section, *row)
            for section in range(len(SECTIONS))
            for row in zip(*(column.tolist() for column in self._of(pack, section)), strict=True)
        }

    def look(self) -> None:
        """Read all indexes of the listing. A damaged one is dropped.

        Raises FileNotFoundError where another replaced one meanwhile, StoreError.
        """
        listing = self.catalog.listing
        found: dict[bytes, list[tuple[PlacedEntries, int]]] = {}
        for index in list(listing.indexes.values()):
            try:
                placed = PlacedEntries(index)
            except FormatError as exc:
                listing.drop_index(index, str(exc))
                continue
            for number, pack in enumerate(index.names):
                found.setdefault(pack, []).append((placed, number))
        placed = PlacedEntries(listing.tail)  # behind the others: it has the packs of those that were dropped
        for number, pack in enumerate(listing.tail.names):
            found.setdefault(pack, []).append((placed, number))
        self._indexed = found

    def _sealed(self, name: bytes) -> _Sealed:
        file: File | None = None
        try:
            file = self.catalog.store.open(object_names.pack(name))
            if file.size <= MOST_BYTES:
                file = Held(file.read(0, file.size))
            pack = Pack(file.read, file.size, archive=self.catalog.listing.archive)
            digest, count = pack.seal()
        except FileNotFoundError:
            return _Sealed()
        except FormatError as exc:
            return _Sealed(file, str(exc))
        if digest != name:
            return _Sealed(file, "its digest is not its name")
        return _Sealed(file, "", pack, count)

    def _checked(self, name: bytes, sealed: _Sealed) -> WalkedPack:
        file, why, pack, count = sealed
        columns: PackColumns | None = None
        if pack and pack.size == self.catalog.listing.packs.get(name) and count <= MOST_RECORDS:
            try:
                columns = self._columns(name, pack, count)
            except FormatError:  # a block is damaged: looking at its records tells what
                columns = None
        return WalkedPack(name, file, why, columns)

    def _columns(self, name: bytes, pack: Pack, count: int) -> PackColumns | None:
        """Return the contents of a pack; None where the index entries differ from its records.

        Raises CorruptError where its bytes are no blocks.
        """
        if pack.size > MOST_BYTES:
            return None
        data, blocks, at = memoryview(pack.read(0, pack.size)), list[Block](), pack.begin
        while at < pack.end:
            blocks.append(Block.of(data[at:], at, pack.fields))
            at = blocks[-1].end
        if at != pack.end or sum(block.count for block in blocks) != count:
            return None
        ids = [block.segment_ids() for block in blocks]
        marks = [np.frombuffer(b"".join(block.versions()), np.uint8).reshape(-1, SIZE) for block in blocks]
        if not (self._match(name, SEGMENTS, blocks, ids) and self._match(name, MARKS, blocks, marks)):
            return None
        if not self._sessions_match(name, pack, blocks):
            return None
        elsewhere = np.frombuffer(b"".join(p for block in blocks for p in block.elsewhere()), np.uint8)
        every = np.concatenate([_NO_IDS, *ids])
        offsets, bounds = np.array([b.offset for b in blocks], np.int64), np.cumsum([0, *map(len, ids)])[1:]
        parents = _once(_halves(elsewhere.reshape(-1, SEGMENT_SIZE)))
        return PackColumns(name, count, offsets, bounds, _halves(every), parents)

    def _match(self, name: bytes, section: int, blocks: Sequence[Block], ids: Sequence[Bytes]) -> bool:
        """Return whether the entries of a section are those of the records. ``ids``: (N, bytes) of each block."""
        found, places = self._of(name, section)
        wanted = [np.unique(_keys(rows)) for rows in ids]
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
        found = [placed.of(number, section) for placed, number in self._indexed.get(name, [])]
        keys, places = (np.concatenate(column) for column in zip((_NO_KEYS, _NO_PLACES), *found, strict=True))
        if len(found) == 1 and ((places[1:] > places[:-1]) | (keys[1:] > keys[:-1])).all():
            return keys, places
        order = np.lexsort((keys, places))
        keys, places = keys[order], places[order]
        new = np.ones(len(keys), bool)
        new[1:] = (keys[1:] != keys[:-1]) | (places[1:] != places[:-1])
        return keys[new], places[new]


def absent(proved: Sequence[PackColumns]) -> list[bytes]:
    """Return the parents of records that are not segments of these packs.

    Of two that begin with the same 8 bytes one may be returned although it is there.
    """
    parents, found = _named(proved)
    there = np.zeros(len(parents), bool)
    for _, _, at in found:
        there[at] = True
    return [row.astype("<u8").tobytes()[:SEGMENT_SIZE] for row in parents[~there]]


def inner_blocks(proved: Sequence[PackColumns]) -> Iterator[Location]:
    """Yield the blocks that decide how deep towers are: those that others name.

    Every circle of parents, and every way of more than one block, goes through their records.
    """
    for s, rows, _ in _named(proved)[1]:
        named = np.searchsorted(s.bounds, rows, side="right")
        for block in np.unique(named).tolist():
            yield Location(s.pack, int(s.offsets[block]))


def _named(proved: Sequence[PackColumns]) -> tuple[U64, list[tuple[PackColumns, Ints, Ints]]]:
    """Return the parents of all packs, (M, 2), and of each pack the rows of its ids that are such, and which."""
    parents = _once(np.concatenate([_halves(_NO_IDS), *(s.parents for s in proved)]))
    found = []
    for s in proved if len(parents) else ():
        at = np.minimum(np.searchsorted(parents[:, 0], s.ids[:, 0]), len(parents) - 1)
        rows = np.flatnonzero((parents[at] == s.ids).all(1))
        found.append((s, rows, at[rows]))
    return parents, found


def _halves(ids: Bytes) -> U64:
    """Return (N, 10) bytes as (N, 2) numbers."""
    return np.pad(ids, ((0, 0), (0, 16 - SEGMENT_SIZE))).view("<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def _once(rows: U64) -> U64:
    """Return the distinct rows of (N, 2), sorted, as (M, 2)."""
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:] != rows[:-1]).any(1)
    return rows[new]


def _keys(ids: Bytes) -> U64:
    """Return the (N,) index keys of N ids."""
    return np.ascontiguousarray(ids[:, :8]).view(">u8").reshape(-1).astype(np.uint64) >> np.uint64(64 - KEY_BITS)
