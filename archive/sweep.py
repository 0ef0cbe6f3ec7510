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

import numpy as np
import numpy.typing as npt

from pltz.archive.identity import NONE, SIZE
from pltz.archive.index import SECTIONS, SESSIONS, U64, gather, key_of, keys_of
from pltz.archive.pack import Pack
from pltz.archive.record import (
    CHECK,
    MARK,
    PARENT_BACK,
    PARENT_INLINE,
    PARENT_MASK,
    PARENT_SHIFT,
    PARENT_TABLE,
    SEGMENT,
    SESSION,
)
from pltz.archive.view import View
from pltz.plt_codec.errors import FormatError

HEAD = 48  # bytes of a record that hold all up to its segment id
AHEAD = 2  # packs hashed while another is looked at
SAMPLE = 256  # of so many sessions one has its key computed again
PACK_BITS = 30  # of an address: a pack is at most 2^30 bytes

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Swept:
    """A sound pack: how many records, and (N, 2) halves of ids of its segments and of what its records continue."""

    records: int
    ids: U64
    parents: U64


class Sweep:
    """Looks at packs beside all entries of the indexes.

    Raises CorruptError where an index is damaged (then nothing can be said at this speed).
    """

    def __init__(self, view: View):
        self.view = view
        self._number = {pack: n for n, pack in enumerate(sorted(view.packs))}
        starts = {pack: n << PACK_BITS for pack, n in self._number.items()}
        self._entries = []
        for section in range(len(SECTIONS)):
            found = gather([*view.indexes.values(), view.tail], section, starts, by_place=True)
            self._entries.append(found)

    def run(self, packs: Sequence[bytes]) -> Iterator[tuple[bytes, Swept | None]]:
        """Each pack with what is in it; None: not proved sound. The next ones are hashed meanwhile, which needs no Python."""
        with ThreadPoolExecutor(AHEAD) as pool:
            waiting: list[tuple[bytes, Future[tuple[memoryview, Pack, int] | None]]] = []
            for pack in packs:
                waiting.append((pack, pool.submit(self._sealed, pack)))
                if len(waiting) > AHEAD:
                    yield self._swept(*waiting.pop(0))
            for item in waiting:
                yield self._swept(*item)

    def _sealed(self, name: bytes) -> tuple[memoryview, Pack, int] | None:
        try:
            data = self.view.store.view(f"packs/{name.hex()}")
            pack = Pack.of(data)
            digest, count = pack.seal()
        except (FormatError, FileNotFoundError):
            return None
        return (data, pack, count) if digest == name and len(data) == self.view.packs.get(name) else None

    def _swept(
        self, name: bytes, sealed: Future[tuple[memoryview, Pack, int] | None]
    ) -> tuple[bytes, Swept | None]:
        found = sealed.result()
        try:
            return name, self._columns(name, *found) if found else None
        except FormatError:  # of a record that was sampled
            return name, None

    def _columns(self, name: bytes, data: memoryview, pack: Pack, count: int) -> Swept | None:
        """Records at the places that the indexes name; None where they do not fill the pack, or are not what the indexes say."""
        entries = [self._of(name, section) for section in range(len(SECTIONS))]
        offsets = _distinct(np.sort(np.concatenate([places for _, places in entries]), kind="stable"))
        if len(offsets) != count or (count and offsets[-1] + HEAD > len(data)):
            return None
        heads = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), HEAD)[offsets]
        rows = _Rows(heads)
        flags = rows.byte(1)
        rows.at[:] = 2
        size = rows.varint()
        ends = offsets + rows.at + size + CHECK
        begins = np.concatenate([offsets, [pack.end]])
        if (heads[:, 0] != pack.head.salt[0]).any() or begins[0] != pack.begin or (ends != begins[1:]).any():
            return None
        rows.varint()  # context
        mark, segment, session = (
            (flags & MARK) > 0,
            (flags & (MARK | SEGMENT)) == SEGMENT,
            (flags & (MARK | SESSION)) == SESSION,
        )
        how = np.where(mark, 0, (flags & PARENT_MASK) >> PARENT_SHIFT)
        refers = (how == PARENT_TABLE) | (how == PARENT_BACK)
        reference = rows.varint(refers)
        inline = rows.take(SIZE, how == PARENT_INLINE)
        ids = rows.take(SIZE, segment | mark)
        for kind, (keys, places) in zip((segment, session, mark), entries, strict=True):
            if not np.array_equal(_distinct(places), offsets[kind]):
                return None
            if kind is not session and not np.array_equal(_keys(ids[kind]), keys):
                return None
        parents = inline
        table = np.frombuffer(b"".join([*pack.head.parents, NONE]), np.uint8).reshape(-1, SIZE)
        named = np.flatnonzero(how == PARENT_TABLE)
        if (reference[named] >= len(table) - 1).any():
            return None
        parents[named] = table[reference[named]]
        back = np.flatnonzero(how == PARENT_BACK)
        places_back = offsets[back] - reference[back]
        found = np.minimum(np.searchsorted(offsets, places_back), max(0, count - 1))
        if (offsets[found] != places_back).any() or not segment[found].all():
            return None
        parents[back] = ids[found]
        if not self._sampled(pack, entries[SESSIONS]):
            return None
        needed = ~mark & (how > 0)
        return Swept(count, _halves(ids[segment]), _halves(parents[needed]))

    def _of(self, name: bytes, section: int) -> tuple[U64, Ints]:
        """Keys and offsets of a pack's entries, by offset."""
        keys, places = self._entries[section]
        first = self._number[name] << PACK_BITS
        begin, end = np.searchsorted(places, np.array([first, first + (1 << PACK_BITS)], np.uint64))
        return keys[begin:end], places[begin:end].astype(np.int64) - first

    def _sampled(self, pack: Pack, entries: tuple[U64, Ints]) -> bool:
        """Whether keys of some sessions are those of their names."""
        dice = int.from_bytes(self.view.store.random(2), "little") % SAMPLE
        for key, offset in zip(
            entries[0][dice::SAMPLE].tolist(), entries[1][dice::SAMPLE].tolist(), strict=True
        ):
            r = pack.record(offset)
            if key not in [key_of(i) for s, i in keys_of(r, pack.head.contexts[r.context]) if s == SESSIONS]:
                return False
        return True


def whole(swept: Sequence[Swept]) -> bool:
    """Whether everything that a record continues is a segment of some pack."""
    empty = np.zeros((0, 2), np.uint64)
    ids = np.concatenate([empty, *(s.ids for s in swept)])
    parents = np.concatenate([empty, *(s.parents for s in swept)])
    ids = ids[np.argsort(ids[:, 0], kind="stable")]
    if not len(parents) or not len(ids):
        return not len(parents)
    at = np.minimum(np.searchsorted(ids[:, 0], parents[:, 0]), len(ids) - 1)
    return bool((ids[at] == parents).all())


class _Rows:
    """Heads of records, (N, HEAD), read from side by side; ``at``: (N,) how far."""

    def __init__(self, heads: Bytes):
        self.heads = heads
        self.at = np.zeros(len(heads), np.int64)
        self._row = np.arange(len(heads))

    def byte(self, at: int) -> Bytes:
        return self.heads[:, at]

    def varint(self, which: npt.NDArray[np.bool_] | None = None) -> Ints:
        """(N,) numbers; 0, and no step forward, where not ``which``."""
        going = np.ones(len(self.at), bool) if which is None else which.copy()
        value = np.zeros(len(self.at), np.int64)
        for step in range(5):
            if not going.any():
                break
            byte = np.where(going, self.heads[self._row, np.minimum(self.at, HEAD - 1)], 0).astype(np.int64)
            value |= (byte & 0x7F) << 7 * step
            self.at += going
            going &= byte > 0x7F
        return value

    def take(self, size: int, which: npt.NDArray[np.bool_]) -> Bytes:
        """(N, size) bytes; zeros, and no step forward, where not ``which``."""
        out = np.zeros((len(self.at), size), np.uint8)
        chosen = np.flatnonzero(which)
        if not len(chosen):
            return out
        windows = np.lib.stride_tricks.sliding_window_view(self.heads.reshape(-1), size)
        out[chosen] = windows[np.minimum(chosen * HEAD + self.at[chosen], len(windows) - 1)]
        self.at[chosen] += size
        return out


def _distinct(ordered: Ints) -> Ints:
    """Each of some ordered numbers once."""
    new = np.ones(len(ordered), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return ordered[new]


def _halves(ids: Bytes) -> U64:
    """(N, 16) bytes -> (N, 2) numbers."""
    return np.ascontiguousarray(ids).view("<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def _keys(ids: Bytes) -> U64:
    """(N,) index keys of (N, 16) ids."""
    return np.ascontiguousarray(ids[:, :8]).view(">u8").reshape(-1).astype(np.uint64) >> np.uint64(16)
