"""Indexes: sorted, memory-mapped, disposable files that locate records in packs, and a small index in memory.

Spec: FORMAT.md, "Index".

    key (48 bits of an id) --first b bits--> fan --> bucket of 8 to 16 keys --match--> location --> pack, offset

There are three sections (segments, sessions, marks) of the same shape. An entry is a hint: the record at the
place decides. So a short key is enough, and an index can be thrown away. Pieces of 16 KiB are checked when
first touched. Opening therefore takes no time per record, and a damaged index raises instead of hiding a
session.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pltz.archive.format.byte_source import File, Held, exactly, pieces
from pltz.archive.format.context import Context
from pltz.archive.format.ids import SIZE, digest, digest_of, session_key
from pltz.archive.format.pack import MAX_SIZE
from pltz.archive.format.record import Record
from pltz.plt_codec.errors import CorruptError, UsageError, VersionError

MAGIC = b"PLTi"
VERSION = 1
HEADER = struct.Struct("<4sBBH4II")  # magic, version, W, reserved, packs, entries x 3, crc32
PACK = struct.Struct("<16sI")
PERSON = b"pltz index"
KEY_BITS = 48
UNIT = 8  # bytes of a session key in a sealed archive
MAX_FAN_BITS = 28  # 2^32 entries, 16 per bucket
PIECE = 16384  # bytes
MAX_PACKS = 65536
MAX_BYTES = 1 << 40  # bytes of all packs of an index
SEGMENTS, SESSIONS, MARKS = 0, 1, 2
SECTIONS = ("segments", "sessions", "marks")

U64 = npt.NDArray[np.uint64]


class Location(NamedTuple):
    """The place of a record: pack id and byte offset."""

    pack: bytes
    offset: int


class Lookup(Protocol):
    """The interface of both kinds of index."""

    @property
    def packs(self) -> dict[bytes, int]:
        """Return the packs covered: id -> bytes."""

    def find(self, section: int, identity: bytes) -> list[Location]:
        """Return places that may hold an identity, in no order.

        Raises CorruptError where the index is damaged.
        """

    @property
    def names(self) -> list[bytes]:
        """Return the ids of the packs, by number."""

    def has(self, section: int, keys: U64) -> npt.NDArray[np.bool_]:
        """Return (N,) whether each of (N,) keys may be present; False is certain.

        Raises CorruptError where the index is damaged.
        """

    @property
    def starts(self) -> Sequence[int]:
        """Return the address at which each pack begins, by number, and the end of the last."""

    def addressed(self, section: int) -> tuple[U64, U64]:
        """Return all entries: keys (N,) and addresses (N,). Raises CorruptError."""

    def columns(self, section: int) -> tuple[U64, U64, U64]:
        """Return all entries: keys, numbers of packs, and byte offsets in them, (N,) each.

        Raises CorruptError.
        """

    def entries(self, section: int) -> Iterator[tuple[int, Location]]:
        """Yield all entries as (key, place). Raises CorruptError."""

    def holds(self, section: int) -> bool:
        """Return whether it has any entry of a section."""


def key_of(identity: bytes) -> int:
    """Return the first 48 bits of an identity, big-endian."""
    return int.from_bytes(identity[:6], "big")


def keys_in(identities: Sequence[bytes]) -> U64:
    """Return the keys of N identities, (N,).

    >>> keys_in([bytes(range(16))]).tolist() == [key_of(bytes(range(16)))]
    True
    """
    halves = np.frombuffer(b"".join(identities), ">u8")[:: SIZE // 8]
    return halves.astype(np.uint64) >> np.uint64(64 - KEY_BITS)


def _entries(index: Lookup, section: int) -> Iterator[tuple[int, Location]]:
    for key, number, offset in zip(*(c.tolist() for c in index.columns(section)), strict=True):
        yield key, Location(index.names[number], offset)


def keys_of(record: Record, context: Context) -> list[tuple[int, bytes]]:
    """Return (section, identity) of everything by which a record is found."""
    if record.mark:
        return [(MARKS, record.mark.version)]
    found = [(SEGMENTS, record.id)] if record.id is not None else []
    if record.name is not None:
        found.append((SESSIONS, key_of_session(record, context)))
    return found


def key_of_session(record: Record, context: Context) -> bytes:
    """Return the session key of a stored record, computed from its name or stored beside its sealed name."""
    if record.veil:
        return record.veil[:UNIT] + bytes(SIZE - UNIT)
    return session_key(context.domain, record.name or "")


def by_section(rows: Sequence[tuple[int, bytes, int]]) -> dict[int, Entries]:
    """Return entries by section, as `MemoryIndex` takes them, from (section, identity, offset) rows."""
    offsets = [at for _, _, at in rows]
    return {
        section: Entries.of([identity if s == section else None for s, identity, _ in rows], offsets)
        for section in range(len(SECTIONS))
    }


class _SortedEntries(NamedTuple):
    """Entries sorted by key: keys, numbers of their packs, and byte offsets there, (N,) each."""

    keys: U64
    numbers: U64
    offsets: U64


class Entries(NamedTuple):
    """Entries of a section of one pack: keys and byte offsets, (N,) each."""

    keys: U64
    offsets: U64

    @classmethod
    def of(cls, identities: Sequence[bytes | None], offsets: Sequence[int]) -> Entries:
        """Return the entries of identities and the offsets of their records. None is left out."""
        there = [i for i in identities if i is not None]
        places = np.array(offsets, np.uint64)
        if len(there) < len(identities):
            places = places[[i is not None for i in identities]]
        return cls(keys_in(there), places)


def joined(parts: Sequence[Mapping[int, Entries]]) -> dict[int, Entries]:
    """Return several entries of one pack, by section, as one. There must be at least one."""
    return {
        section: Entries(
            *(np.concatenate(column) for column in zip(*(p[section] for p in parts), strict=True))
        )
        for section in range(len(SECTIONS))
    }


class MemoryIndex:
    """An index in memory of packs that no file covers yet.

    It holds runs of sorted entries. A run is merged into the one before it if that has at most twice its
    size.
    """

    def __init__(self) -> None:
        self.packs: dict[bytes, int] = {}
        self.names: list[bytes] = []
        self.counts: dict[bytes, int] = {}  # pack -> entries
        self._runs: list[list[_SortedEntries]] = [[], [], []]

    @property
    def count(self) -> int:
        """Return the number of entries of all packs."""
        return sum(self.counts.values())

    def add_pack(self, pack: bytes, size: int, sections: Mapping[int, Entries]) -> None:
        """Add a pack of ``size`` bytes and its entries by section."""
        self.packs[pack] = size
        self.names.append(pack)
        self.counts[pack] = sum(len(keys) for keys, _ in sections.values())
        for section, (keys, offsets) in sections.items():
            if not len(keys):
                continue
            order = np.argsort(keys, kind="stable")
            runs = self._runs[section]
            runs.append(_SortedEntries(keys[order], np.full(len(keys), len(self.names) - 1, np.uint64), offsets[order]))
            while len(runs) > 1 and len(runs[-2].keys) <= 2 * len(runs[-1].keys):
                runs[-2:] = [_merged(runs[-2], runs[-1])]

    def find(self, section: int, identity: bytes) -> list[Location]:
        """Return places that may hold an identity."""
        key, found = np.uint64(key_of(identity)), []
        for run in self._runs[section]:
            first, last = np.searchsorted(run.keys, key), np.searchsorted(run.keys, key, "right")
            for at in range(int(first), int(last)):
                found.append(Location(self.names[int(run.numbers[at])], int(run.offsets[at])))
        return found

    def has(self, section: int, keys: U64) -> npt.NDArray[np.bool_]:
        """Return (N,) whether each of (N,) keys may be present."""
        hit = np.zeros(len(keys), bool)
        for run in self._runs[section]:
            at = np.minimum(np.searchsorted(run.keys, keys), len(run.keys) - 1)
            hit |= run.keys[at] == keys
        return hit

    def holds(self, section: int) -> bool:
        """Return whether it has any entry of a section."""
        return bool(self._runs[section])

    @property
    def starts(self) -> Sequence[int]:
        return range(0, (len(self.names) + 1) * MAX_SIZE, MAX_SIZE)

    def addressed(self, section: int) -> tuple[U64, U64]:
        """Return all entries of a section: keys (N,) and addresses (N,)."""
        keys, numbers, offsets = self.columns(section)
        return keys, numbers * np.uint64(MAX_SIZE) + offsets

    def columns(self, section: int) -> tuple[U64, U64, U64]:
        """Return all entries of a section: keys, numbers of packs, and byte offsets in them, (N,) each."""
        runs = self._runs[section] or [_SortedEntries(*(np.zeros(0, np.uint64) for _ in range(3)))]
        keys, numbers, offsets = (np.concatenate(column) for column in zip(*runs, strict=True))
        return keys, numbers, offsets

    def entries(self, section: int) -> Iterator[tuple[int, Location]]:
        """Yield all entries of a section as (key, place)."""
        return _entries(self, section)


class FileIndex:
    """An index file, mapped.

    Each piece is read and checked before its part of the map is touched. If the disk fails or the file was
    cut off, the read raises an error, whereas the map alone would end the process.

    Raises VersionError for a newer version, CorruptError where header and sizes do not fit. The rest is
    checked when touched.
    """

    def __init__(self, file: File):
        self._file, self._size = file, file.size
        if file.size < HEADER.size + SIZE:
            raise CorruptError(f"an index of {file.size} bytes was cut off")
        head = exactly(file.read, 0, HEADER.size)
        magic, version, self._width, reserved, packs, *counts, check = HEADER.unpack(head)
        if magic != MAGIC:
            raise CorruptError(f"expected an index to start with {MAGIC!r}, found {magic!r}")
        if packs > MAX_PACKS or HEADER.size + packs * PACK.size + SIZE > file.size:
            raise CorruptError(f"a table of {packs} packs does not fit the index: damaged")
        self._base = HEADER.size + packs * PACK.size
        body = exactly(file.read, HEADER.size, packs * PACK.size)
        if check != zlib.crc32(body, zlib.crc32(head[:-4])):
            raise CorruptError("the header of the index does not match its checksum: damaged")
        if version != VERSION or reserved or self._width not in (4, 5):
            raise VersionError(f"the index is of version {version}: rebuild it or use a newer pltz")
        table = list(PACK.iter_unpack(body))
        if any(size > MAX_SIZE for _, size in table):
            raise CorruptError("a pack of the index is larger than packs are: damaged")
        self.packs: dict[bytes, int] = dict(table)
        self.names = [name for name, _ in table]
        self.starts: Sequence[int] = [0, *accumulate(size for _, size in table)]
        self._counts: list[int] = counts
        self._lay_out()
        self._data = file.map()

    @classmethod
    def of(cls, data: bytes) -> FileIndex:
        """Return an index in memory."""
        return cls(Held(data))

    @staticmethod
    def sealed(file: File) -> bytes:
        """Return the digest of an index file, which is its name.

        Raises CorruptError where its end says another.
        """
        end = file.size - SIZE
        if end < 0 or digest_of(PERSON, pieces(file.read, 0, end)) != (said := exactly(file.read, end, SIZE)):
            raise CorruptError("some byte of the index is not what was written")
        return bytes(said)

    def __len__(self) -> int:
        return sum(self._counts)

    def find(self, section: int, identity: bytes) -> list[Location]:
        """Return places that may hold an identity.

        Raises CorruptError where a piece of the index is damaged.
        """
        key = key_of(identity)
        fan, keys, places = self._columns[section]
        if not self._counts[section]:
            return []
        b, width = self._shapes[section]
        bucket = key >> KEY_BITS - b
        first = int.from_bytes(self._read(fan + 4 * bucket - 4, 4), "little") if bucket else 0
        last = int.from_bytes(self._read(fan + 4 * bucket, 4), "little")
        if not first <= last <= self._counts[section]:
            raise CorruptError("the buckets of the index are out of order: damaged")
        column = self._read(keys + first * width, (last - first) * width)
        wanted = (key & (1 << 8 * width) - 1).to_bytes(width, "little")
        found, at = [], column.find(wanted)
        while at >= 0:
            if not at % width:
                where = places + (first + at // width) * self._width
                found.append(self._location(int.from_bytes(self._read(where, self._width), "little")))
                at += width - 1
            at = column.find(wanted, at + 1)
        return found

    def holds(self, section: int) -> bool:
        """Return whether it has any entry of a section."""
        return self._counts[section] > 0

    def has(self, section: int, keys: U64) -> npt.NDArray[np.bool_]:
        """Return (N,) whether each key may be present, by bisecting all buckets at once.

        A bucket that was crafted to be large costs no more steps than its bits. Raises CorruptError.
        """
        n = self._counts[section]
        if not n or not len(keys):
            return np.zeros(len(keys), bool)
        b, width = self._shapes[section]
        bucket = (keys >> np.uint64(KEY_BITS - b)).astype(np.int64)
        fan_at, keys_at, _ = self._columns[section]
        self._check_at(fan_at + 4 * np.concatenate([bucket, np.maximum(bucket - 1, 0)]), 4)
        fan = np.frombuffer(self._data, "<u4", 1 << b, fan_at)
        low, end = np.where(bucket > 0, fan[bucket - 1], 0).astype(np.int64), fan[bucket].astype(np.int64)
        if (low > end).any() or (end > n).any():
            raise CorruptError("the buckets of the index are out of order: damaged")
        column = np.frombuffer(self._data, np.uint8, n * width, keys_at).reshape(n, width)
        wanted = keys & np.uint64((1 << 8 * width) - 1)
        high = end.copy()
        while (active := np.flatnonzero(low < high)).size:
            middle = (low[active] + high[active]) >> 1
            self._check_at(keys_at + width * middle, width)
            less = _gathered(column, middle) < wanted[active]
            low[active] = np.where(less, middle + 1, low[active])
            high[active] = np.where(less, high[active], middle)
        inside = np.flatnonzero(low < end)
        hit = np.zeros(len(keys), bool)
        self._check_at(keys_at + width * low[inside], width)
        hit[inside] = _gathered(column, low[inside]) == wanted[inside]
        return hit

    def columns(self, section: int) -> tuple[U64, U64, U64]:
        """Return all entries of a section: keys, numbers of packs, and byte offsets, (N,) each.

        Raises CorruptError.
        """
        keys, places = self.addressed(section)
        starts = np.array(self.starts, np.uint64)
        numbers = np.searchsorted(starts, places, side="right").astype(np.uint64) - np.uint64(1)
        return keys, numbers, places - starts[numbers]

    def addressed(self, section: int) -> tuple[U64, U64]:
        """Return all entries of a section: keys (N,) and addresses (N,). Raises CorruptError."""
        n = self._counts[section]
        fan_at, keys_at, places_at = self._columns[section]
        b, width = self._shapes[section]
        if not n:
            return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        fan = np.frombuffer(self._read(fan_at, 4 << b), "<u4").astype(np.int64)
        sizes = np.diff(fan, prepend=0)
        if (sizes < 0).any() or fan[-1] != n:
            raise CorruptError("the buckets of the index are out of order: damaged")
        keys = _widen(self._read(keys_at, n * width), width) & np.uint64((1 << KEY_BITS - b) - 1)
        keys |= np.repeat(np.arange(1 << b, dtype=np.uint64) << np.uint64(KEY_BITS - b), sizes)
        places = _widen(self._read(places_at, n * self._width), self._width)
        if places.max() >= self.starts[-1]:
            raise CorruptError("the index points behind its packs: damaged")
        return keys, places

    def entries(self, section: int) -> Iterator[tuple[int, Location]]:
        """Yield all entries of a section as (key, place). Raises CorruptError."""
        return _entries(self, section)

    def verify(self) -> bytes:
        """Check every byte and return the digest, which is the file's name. Raises CorruptError."""
        for piece in range(len(self._sound)):
            self._check(piece)
        return self.sealed(self._file)

    def _lay_out(self) -> None:
        self._columns: list[tuple[int, int, int]] = []  # offsets of fan, keys and locations
        self._shapes = [_shape(n) for n in self._counts]  # fan bits, bytes per key
        at = self._base
        for n, (b, width) in zip(self._counts, self._shapes, strict=True):
            keys = at + ((4 << b) if n else 0)
            self._columns.append((at, keys, keys + n * width))
            at = keys + n * (width + self._width)
        self._checks = at
        count = -(-(at - self._base) // PIECE)
        if at + 4 * count + SIZE != self._size:
            raise CorruptError(f"expected an index of {at + 4 * count + SIZE} bytes, found {self._size}")
        self._sound = bytearray(count)

    def _read(self, offset: int, size: int) -> bytes:
        """Return bytes of the sections after checking their pieces."""
        end = offset + size
        if size:
            for piece in range((offset - self._base) // PIECE, (end - 1 - self._base) // PIECE + 1):
                if not self._sound[piece]:
                    self._check(piece)
        return bytes(self._data[offset:end])

    def _check_at(self, offsets: npt.NDArray[np.int64], size: int) -> None:
        """Check the pieces that contain fields of ``size`` bytes at these offsets, (N,)."""
        first = (offsets - self._base) // PIECE
        for piece in np.unique(
            np.concatenate([first, (offsets + (size - 1) - self._base) // PIECE])
        ).tolist():
            if not self._sound[piece]:
                self._check(piece)

    def _check(self, piece: int) -> None:
        """Read and check a piece, not through the map.

        A byte that the disk cannot give is an error then; all others are in memory afterwards.
        """
        begin = self._base + piece * PIECE
        data = exactly(self._file.read, begin, min(PIECE, self._checks - begin))
        if zlib.crc32(data) != int.from_bytes(
            exactly(self._file.read, self._checks + 4 * piece, 4), "little"
        ):
            raise CorruptError(f"piece {piece} of the index does not match its checksum: damaged")
        self._sound[piece] = 1

    def _location(self, address: int) -> Location:
        number = bisect_right(self.starts, address) - 1
        if number >= len(self.names):
            raise CorruptError("the index points behind its packs: damaged")
        return Location(self.names[number], address - self.starts[number])


def parts(packs: Mapping[bytes, int]) -> Iterator[dict[bytes, int]]:
    """Yield packs (id -> bytes) in parts that one index each can cover; one empty part if there are none."""
    part: dict[bytes, int] = {}
    size = 0
    for name in sorted(packs):
        if len(part) == MAX_PACKS or size + packs[name] >= MAX_BYTES:
            yield part
            part, size = {}, 0
        part[name] = packs[name]
        size += packs[name]
    yield part


def build(indexes: Iterable[Lookup], packs: dict[bytes, int]) -> bytes:
    """Return an index file over ``packs`` (id -> bytes) with the entries that the given indexes have of them.

    Raises UsageError where it exceeds a limit of the format, CorruptError where an index is damaged.
    """
    names = sorted(packs)
    if len(names) > MAX_PACKS:
        raise UsageError(f"an index covers at most {MAX_PACKS} packs, not {len(names)}: collect merges packs")
    starts = dict(zip(names, [0, *accumulate(packs[name] for name in names)], strict=False))
    total = sum(packs.values())
    if total >= MAX_BYTES:
        raise UsageError("an index covers at most 1 TiB of packs")
    width = 4 if total < 1 << 32 else 5
    known = list(indexes)
    sections = [_section(*gather(known, section, starts), width) for section in range(len(SECTIONS))]
    counts = [n for n, _ in sections]
    table = b"".join(PACK.pack(name, packs[name]) for name in names)
    head = HEADER.pack(MAGIC, VERSION, width, 0, len(names), *counts, 0)[:-4]
    head += zlib.crc32(table, zlib.crc32(head)).to_bytes(4, "little") + table
    body = b"".join(data for _, data in sections)
    checks = [zlib.crc32(body[at : at + PIECE]) for at in range(0, len(body), PIECE)]
    whole = head + body + np.array(checks, "<u4").tobytes()
    return whole + digest(PERSON, whole)


def gather(known: Iterable[Lookup], section: int, starts: Mapping[bytes, int]) -> tuple[U64, U64]:
    """Return keys (N,) and addresses (N,) of a section, sorted by both, each entry once.

    Entries of packs without a start are dropped. Raises CorruptError.
    """
    keys, places = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    for index in known:
        k, numbers, offsets = index.columns(section)
        kept = np.array([name in starts for name in index.names], bool)
        base = np.array([starts.get(name, 0) for name in index.names], np.uint64)
        if len(k):
            stays = kept[numbers]
            keys.append(k[stays])
            places.append((base[numbers] + offsets)[stays])
    key, place = np.concatenate(keys), np.concatenate(places)
    order = np.lexsort((place, key))
    key, place = key[order], place[order]
    new = np.ones(len(key), bool)
    new[1:] = (key[1:] != key[:-1]) | (place[1:] != place[:-1])
    return key[new], place[new]


def _merged(first: _SortedEntries, second: _SortedEntries) -> _SortedEntries:
    keys = np.concatenate([first.keys, second.keys])
    order = np.argsort(keys, kind="stable")
    return _SortedEntries(
        keys[order], *(np.concatenate(pair)[order] for pair in zip(first[1:], second[1:], strict=True))
    )


def _gathered(column: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64]) -> U64:
    """Return some rows of a column of little-endian bytes as numbers, (N,)."""
    wide = np.zeros((len(rows), 8), np.uint8)
    wide[:, : column.shape[1]] = column[rows]
    return wide.view("<u8").reshape(-1)


def _section(keys: U64, places: U64, width: int) -> tuple[int, bytes]:
    if not len(keys):
        return 0, b""
    b, key_width = _shape(len(keys))
    fan = np.searchsorted(keys >> np.uint64(KEY_BITS - b), np.arange(1 << b, dtype=np.uint64), side="right")
    return len(keys), fan.astype("<u4").tobytes() + _narrow(keys, key_width) + _narrow(places, width)


def _shape(count: int) -> tuple[int, int]:
    """Return fan bits and bytes per key for this many entries.

    >>> _shape(100), _shape(1_000_000)
    ((3, 6), (16, 4))
    """
    b = min(MAX_FAN_BITS, max(0, count.bit_length() - 4))
    return b, -(-(KEY_BITS - b) // 8)


def _narrow(values: U64, width: int) -> bytes:
    return values.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def _widen(data: bytes, width: int) -> U64:
    wide = np.zeros((len(data) // width, 8), np.uint8)
    wide[:, :width] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return wide.view("<u8").reshape(-1).astype(np.uint64)
