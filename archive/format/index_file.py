"""Indexes: sorted, memory-mapped, disposable files that locate records in packs, and a small index in memory.

Spec: FORMAT.md, "Index".

    key (36 bits of an id) --first bits--> page --next bits--> bucket of 16 to 32 entries --match--> number of a block
    number of a block --> address --> pack, offset

A large index, which is read by ranges, has the address in the entry, so that a look-up needs nothing beside the page
and the head.

There are three sections (segments, sessions, marks) of the same shape. An entry is a hint: the records of the block
decide. So a short key is enough, and an index can be thrown away. All entries of a key are in one page of about 25 KiB,
whose place the beginning of the file tells: one request answers a look-up in a bucket. Pages are checked when first
touched. Opening therefore takes no time per record, and a damaged index raises instead of hiding a session.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pltz.archive.format.byte_source import File, Held, exactly, pieces
from pltz.archive.format.context import Context
from pltz.archive.format.ids import session_key
from pltz.archive.format.pack import MAX_SIZE
from pltz.archive.format.record import Record
from pltz.plt_codec.errors import CorruptError, UsageError, VersionError
from pltz.plt_codec.identity import SIZE, digest, digest_of
from pltz.plt_codec.versions import Readers

MAGIC = b"PLTi"
BY_BLOCK, BY_ADDRESS = 3, 4  # versions: what an entry names
HEADER = struct.Struct("<4sBBH5II")  # magic, version, W, reserved, packs, blocks, entries x 3, crc32
PACK = struct.Struct("<16sI")
BOUNDS = struct.Struct("<2I")
PERSON = b"pltz index"
KEY_BITS = 36
UNIT = 8  # bytes of a session key in a sealed archive
MAX_FAN_BITS = 28  # 2^32 entries, 16 per bucket
MAX_WIDTH = 56  # bits per entry, so that 8 bytes hold one wherever it begins
PAGE_BITS = 8  # of the fan of a page: 256 buckets, about 6000 entries
ADDRESSES = 4096  # in a page of addresses
CHECK = 4  # bytes of the crc32 behind a page
RANGED = 1 << 24  # bytes above which entries name addresses: of such an index a bucket gives ranges
MANY = 64  # entries of a bucket above which they are looked at together: buckets have 16 to 32, but for equal keys
AT_ONCE = 1 << 16  # entries that are packed or unpacked at once, a multiple of 8
MAX_PACKS = 1 << 20
MAX_BYTES = 1 << 40  # bytes of all packs of an index
SEGMENTS, SESSIONS, MARKS = 0, 1, 2
SECTIONS = ("segments", "sessions", "marks")

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]


class Location(NamedTuple):
    """The place of a record: pack id, byte offset of its block, and row in the block."""

    pack: bytes
    offset: int
    row: int = 0

    @property
    def block(self) -> Location:
        """Return the place of its block, as indexes name it."""
        return self._replace(row=0)


class Lookup(Protocol):
    """The interface of both kinds of index."""

    @property
    def packs(self) -> dict[bytes, int]:
        """Return the packs covered: id -> bytes."""

    def find(self, section: int, identity: bytes) -> list[Location]:
        """Return blocks that may hold an identity, in no order.

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
        """Return all entries: keys, numbers of packs, and byte offsets of blocks in them, (N,) each.

        Raises CorruptError.
        """

    def entries(self, section: int) -> Iterator[tuple[int, Location]]:
        """Yield all entries as (key, place). Raises CorruptError."""

    def holds(self, section: int) -> bool:
        """Return whether it has any entry of a section."""


def key_of(identity: bytes) -> int:
    """Return the first 36 bits of an identity, big-endian."""
    return int.from_bytes(identity[:8], "big") >> 64 - KEY_BITS


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
        self.sections: dict[bytes, Mapping[int, Entries]] = {}  # entries of each pack by section
        self._runs: list[list[_SortedEntries]] = [[], [], []]

    @property
    def count(self) -> int:
        """Return the number of entries of all packs."""
        return sum(map(self.entries_of, self.sections))

    def entries_of(self, pack: bytes) -> int:
        """Return the number of entries of a pack, 0 where it is not here."""
        return sum(len(keys) for keys, _ in self.sections.get(pack, {}).values())

    def add_pack(self, pack: bytes, size: int, sections: Mapping[int, Entries]) -> None:
        """Add a pack of ``size`` bytes and its entries by section."""
        self.packs[pack] = size
        self.names.append(pack)
        self.sections[pack] = sections
        for section, (keys, offsets) in sections.items():
            if not len(keys):
                continue
            order = np.argsort(keys, kind="stable")
            runs = self._runs[section]
            runs.append(_SortedEntries(keys[order], np.full(len(keys), len(self.names) - 1, np.uint64), offsets[order]))
            while len(runs) > 1 and len(runs[-2].keys) <= 2 * len(runs[-1].keys):
                runs[-2:] = [_merged(runs[-2], runs[-1])]

    def find(self, section: int, identity: bytes) -> list[Location]:
        """Return blocks that may hold an identity."""
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


def table_of(file: File) -> bytes:
    """Return the beginning of an index, up to its pack table, which is stored a second time. Raises CorruptError."""
    _, _, _, _, packs, *_ = HEADER.unpack(exactly(file.read, 0, HEADER.size))
    return bytes(exactly(file.read, 0, HEADER.size + packs * PACK.size))


def packs_of(table: bytes) -> dict[bytes, int]:
    """Return the packs in what `table_of` returned, with their sizes. Raises CorruptError."""
    if len(table) < HEADER.size or table[: len(MAGIC)] != MAGIC or (len(table) - HEADER.size) % PACK.size:
        raise CorruptError("the copy of a pack table does not begin as an index does, or was cut off")
    *_, check = HEADER.unpack_from(table)
    if check != zlib.crc32(table[HEADER.size :], zlib.crc32(table[: HEADER.size - 4])):
        raise CorruptError("the copy of a pack table does not match its checksum: damaged")
    return dict(PACK.iter_unpack(table[HEADER.size :]))


class _Section(NamedTuple):
    """The shape of a section and the places of its pages.

    Attributes:
        size: entries, N.
        fan_bits: first bits of a key that name its bucket.
        page_bits: the last of these, which name the bucket in its page; the others name the page.
        width: bits per entry.
        low: those of them that name the block.
        first: number of its first page among those of the file.
        begins: byte offset of each page, (G,).
        entries: entries before each page, and all, (G + 1,).
    """

    size: int
    fan_bits: int
    page_bits: int
    width: int
    low: int
    first: int
    begins: I64
    entries: I64

    @property
    def fan_size(self) -> int:
        """Return the bytes of the fan of a page."""
        return 4 << self.page_bits


class FileIndex:
    """An index file, mapped.

    Each page is read and checked before its part of the map is touched. If the disk fails or the file was
    cut off, the read raises an error, whereas the map alone would end the process.

    ``name``: by which its last bytes are checked; empty allows any.

    Raises VersionError for a newer version, CorruptError where header, sizes or name do not fit. The rest is
    checked when touched.
    """

    def __init__(self, file: File, name: str = ""):
        self._file, self._size = file, file.size
        if file.size < HEADER.size + SIZE:
            raise CorruptError(f"an index of {file.size} bytes was cut off")
        if name and (own := bytes(exactly(file.read, file.size - SIZE, SIZE)).hex()) != name:
            raise CorruptError(f"these are the bytes of index {own}, or damaged: pltz archive repair makes it anew")
        head = exactly(file.read, 0, HEADER.size)
        magic, version, self._width, reserved, packs, self._blocks, *counts, check = HEADER.unpack(head)
        if magic != MAGIC:
            raise CorruptError(f"expected an index to start with {MAGIC!r}, found {magic!r}")
        if packs > MAX_PACKS or HEADER.size + packs * PACK.size + SIZE > file.size:
            raise CorruptError(f"a table of {packs} packs does not fit the index: damaged")
        self._base = HEADER.size + packs * PACK.size
        body = exactly(file.read, HEADER.size, packs * PACK.size)
        if check != zlib.crc32(body, zlib.crc32(head[:-4])):
            raise CorruptError("the header of the index does not match its checksum: damaged")
        lay_out = VERSIONS.of(version)
        widths = (0,) if version == BY_ADDRESS else (4, 5)
        if reserved or self._width not in widths or (version == BY_ADDRESS and self._blocks):
            raise VersionError("the index has fields of a newer version: rebuild it or use a newer pltz")
        table = list(PACK.iter_unpack(body))
        if any(size > MAX_SIZE for _, size in table):
            raise CorruptError("a pack of the index is larger than packs are: damaged")
        self.packs: dict[bytes, int] = dict(table)
        self.names = [name for name, _ in table]
        self.starts: Sequence[int] = [0, *accumulate(size for _, size in table)]
        if self.starts[-1] >= MAX_BYTES:
            raise CorruptError("the packs of the index have more bytes than an index covers: damaged")
        self._named: int = self.starts[-1] if version == BY_ADDRESS else self._blocks  # numbers that an entry may name
        self._counts: list[int] = counts
        self._check_start = check  # of the crc of the first page
        self._sections: list[_Section] = []
        lay_out(self)
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

    @property
    def size(self) -> int:
        """Return the bytes of the file."""
        return self._size

    @property
    def head(self) -> bytes:
        """Return the bytes before the first page, which tell where each page is. Raises CorruptError, StoreError."""
        return bytes(exactly(self._file.read, 0, self._base))

    def __len__(self) -> int:
        return sum(self._counts)

    def find(self, section: int, identity: bytes) -> list[Location]:
        """Return blocks that may hold an identity.

        Raises CorruptError where a page of the index is damaged.
        """
        s = self._sections[section]
        if not s.size:
            return []
        key = key_of(identity)
        page, bucket = divmod(key >> KEY_BITS - s.fan_bits, 1 << s.page_bits)
        fan, unit = int(s.begins[page]), s.first + page
        # the ends of the bucket before and of this one
        ends = self._read(fan + 4 * max(0, bucket - 1), 8 if bucket else 4, unit)
        first, last = BOUNDS.unpack(ends) if bucket else (0, int.from_bytes(ends, "little"))
        if not first <= last <= s.entries[page + 1] - s.entries[page]:
            raise CorruptError("the buckets of the index are out of order: damaged")
        wanted, mask = key & (1 << KEY_BITS - s.fan_bits) - 1, (1 << s.width) - 1
        if last - first > MANY:
            return self._find_many(s, page, first, last, wanted)
        begin = first * s.width // 8
        end = -(-last * s.width // 8)
        bits = int.from_bytes(self._read(fan + s.fan_size + begin, end - begin, unit), "little")
        bits >>= first * s.width - 8 * begin
        found = []
        for _ in range(last - first):
            if (entry := bits & mask) >> s.low == wanted:
                found.append(self._location(entry & (1 << s.low) - 1))
            bits >>= s.width
        return found

    def _find_many(self, s: _Section, page: int, first: int, last: int, wanted: int) -> list[Location]:
        """Return the blocks that entries of a large bucket name under a key: a session's many versions, or a craft."""
        entries = self._gathered(int(s.begins[page]) + s.fan_size, s.width, np.arange(first, last, dtype=np.int64))
        named = entries[entries >> np.uint64(s.low) == wanted] & np.uint64((1 << s.low) - 1)
        return [self._location(one) for one in named.tolist()]

    def holds(self, section: int) -> bool:
        """Return whether it has any entry of a section."""
        return self._counts[section] > 0

    def has(self, section: int, keys: U64) -> npt.NDArray[np.bool_]:
        """Return (N,) whether each key may be present, by bisecting all buckets at once.

        A bucket that was crafted to be large costs no more steps than its bits. Raises CorruptError.
        """
        s = self._sections[section]
        if not s.size or not len(keys):
            return np.zeros(len(keys), bool)
        page, bucket = np.divmod((keys >> np.uint64(KEY_BITS - s.fan_bits)).astype(np.int64), 1 << s.page_bits)
        fan = s.begins[page]
        for unit in np.unique(s.first + page).tolist():
            if not self._sound[unit]:
                self._check(unit)
        words: U32 = np.ndarray((len(self._data) - 3,), "<u4", self._data, strides=(1,))
        end = words[fan + 4 * bucket].astype(np.int64)
        low = np.where(bucket > 0, words[fan + 4 * bucket - 4], 0).astype(np.int64)
        if (low > end).any() or (end > np.diff(s.entries)[page]).any():
            raise CorruptError("the buckets of the index are out of order: damaged")
        entries = fan + s.fan_size
        wanted = keys & np.uint64((1 << KEY_BITS - s.fan_bits) - 1)
        high = end.copy()
        while (active := np.flatnonzero(low < high)).size:
            middle = (low[active] + high[active]) >> 1
            found = self._gathered(entries[active], s.width, middle)
            less = found >> np.uint64(s.low) < wanted[active]
            low[active] = np.where(less, middle + 1, low[active])
            high[active] = np.where(less, high[active], middle)
        inside = np.flatnonzero(low < end)
        hit = np.zeros(len(keys), bool)
        found = self._gathered(entries[inside], s.width, low[inside])
        hit[inside] = found >> np.uint64(s.low) == wanted[inside]
        return hit

    def _gathered(self, at: I64 | int, width: int, rows: I64) -> U64:
        """Return an entry of each sound page, (N,). ``at``: where its entries begin; ``rows``: its number in it."""
        byte, bit = at + (rows * width >> 3), (rows * width & 7).astype(np.uint64)
        words: U64 = np.ndarray((len(self._data) - 7,), "<u8", self._data, strides=(1,))  # a digest is behind all
        found: U64 = (words[byte] >> bit) & np.uint64((1 << width) - 1)
        return found

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
        s = self._sections[section]
        if not s.size:
            return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        pages, rest = len(s.begins), KEY_BITS - s.fan_bits
        fans = np.empty((pages, 1 << s.page_bits), np.int64)
        entries = np.empty(s.size, np.uint64)
        bounds = s.entries.tolist()
        for page, (fan, begin, end) in enumerate(zip(s.begins.tolist(), bounds, bounds[1:], strict=False)):
            fans[page] = np.frombuffer(self._read(fan, s.fan_size, s.first + page), "<u4")
            packed = self._read(fan + s.fan_size, -(-(end - begin) * s.width // 8), s.first + page)
            entries[begin:end] = _unpacked(packed, end - begin, s.width)
        sizes = np.diff(fans, prepend=0, axis=1)
        if (sizes < 0).any() or (fans[:, -1] != np.diff(s.entries)).any():
            raise CorruptError("the buckets of the index are out of order: damaged")
        keys = entries >> np.uint64(s.low) & np.uint64((1 << rest) - 1)
        keys |= np.repeat(np.arange(1 << s.fan_bits, dtype=np.uint64) << np.uint64(rest), sizes.reshape(-1))
        places = entries & np.uint64((1 << s.low) - 1)
        if places.max() >= self._named:
            raise CorruptError("the index names a block that it has not: damaged")
        if self._width:
            places = self._addresses()[places]
        if places.max() >= self.starts[-1]:
            raise CorruptError("the index points behind its packs: damaged")
        return keys, places

    def _addresses(self) -> U64:
        """Return the address of each block, (B,)."""
        parts = [
            self._read(self._address_at(block), min(ADDRESSES, self._blocks - block) * self._width, block // ADDRESSES)
            for block in range(0, self._blocks, ADDRESSES)
        ]
        return _widen(b"".join(parts), self._width)

    def entries(self, section: int) -> Iterator[tuple[int, Location]]:
        """Yield all entries of a section as (key, place). Raises CorruptError."""
        return _entries(self, section)

    def verify(self) -> bytes:
        """Check every byte and return the digest, which is the file's name. Raises CorruptError."""
        for unit in range(len(self._sound)):
            self._check(unit)
        return self.sealed(self._file)

    def _lay_out(self) -> None:
        """Set where the pages lie. Raises CorruptError."""
        shapes = [_shape(n, self._named) for n in self._counts]
        pages = [1 << max(0, b - PAGE_BITS) if n else 0 for n, (b, _, _) in zip(self._counts, shapes, strict=True)]
        size = 4 * sum(pages)
        if self._base + size + CHECK + self._blocks * self._width + SIZE > self._size:
            raise CorruptError(f"{sum(pages)} pages and {self._blocks} blocks do not fit the index: damaged")
        table = exactly(self._file.read, self._base, size + CHECK)
        if zlib.crc32(table[:size], self._check_start) != int.from_bytes(table[size:], "little"):
            raise CorruptError("the table of pages does not match its checksum: damaged")
        ends = np.frombuffer(table, "<u4", sum(pages)).astype(np.int64)
        self._base += size + CHECK
        sizes = [self._width * np.minimum(ADDRESSES, self._blocks - np.arange(0, self._blocks, ADDRESSES))]
        at, first = self._base + int((sizes[0] + CHECK).sum()), len(sizes[0])
        for n, many, (b, width, low) in zip(self._counts, pages, shapes, strict=True):
            entries = np.concatenate([np.zeros(1, np.int64), ends[:many]])
            if (np.diff(entries) < 0).any() or entries[-1] != n:
                raise CorruptError("the pages of the index are out of order: damaged")
            page_bits = min(b, PAGE_BITS)
            sizes.append((4 << page_bits) + -(-np.diff(entries) * width // 8))
            begins = at + np.cumsum(sizes[-1] + CHECK) - sizes[-1] - CHECK
            self._sections.append(_Section(n, b, page_bits, width, low, first, begins, entries))
            at, first, ends = at + int((sizes[-1] + CHECK).sum()), first + many, ends[many:]
        self._page_sizes = np.concatenate(sizes)
        self._page_begins = self._base + np.cumsum(self._page_sizes + CHECK) - self._page_sizes - CHECK
        self._sound = bytearray(first)
        if at + SIZE != self._size:
            raise CorruptError(f"expected an index of {at + SIZE} bytes, found {self._size}: damaged")

    def _read(self, at: int, size: int, unit: int) -> memoryview:
        """Return bytes of a page that is sound. ``unit``: its number."""
        if not self._sound[unit]:
            self._check(unit)
        return self._data[at : at + size]

    def _check(self, unit: int) -> None:
        """Read and check a page, not through the map.

        A byte that the disk cannot give is an error then; all others are in memory afterwards.
        """
        begin, size = int(self._page_begins[unit]), int(self._page_sizes[unit])
        data = exactly(self._file.read, begin, size + CHECK)
        start = (self._check_start + 1 + unit) & 0xFFFFFFFF
        if zlib.crc32(data[:size], start) != int.from_bytes(data[size:], "little"):
            raise CorruptError(f"page {unit} of the index does not match its checksum: damaged")
        self._sound[unit] = 1

    def _address_at(self, block: int) -> int:
        at: int = self._base + block * self._width
        return at + block // ADDRESSES * CHECK

    def _location(self, named: int) -> Location:
        """Return the place of the block that an entry names. Raises CorruptError."""
        if named >= self._named:
            raise CorruptError("the index names a block that it has not: damaged")
        address = named
        if self._width:
            address = int.from_bytes(self._read(self._address_at(named), self._width, named // ADDRESSES), "little")
        number = bisect_right(self.starts, address) - 1
        if number >= len(self.names):
            raise CorruptError("the index points behind its packs: damaged")
        return Location(self.names[number], address - self.starts[number])


VERSIONS = Readers(
    "the index",
    {BY_BLOCK: FileIndex._lay_out, BY_ADDRESS: FileIndex._lay_out},
    "rebuild it with pltz archive repair",
)


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
    gathered = [gather(known, section, starts) for section in range(len(SECTIONS))]
    counts = [len(keys) for keys, _ in gathered]
    # what entries name: blocks by their numbers, in a large index by their addresses
    version, blocks = BY_BLOCK, np.unique(np.concatenate([places for _, places in gathered]))
    if _size(counts, len(blocks), width, len(names)) > RANGED:
        version, width, blocks = BY_ADDRESS, 0, blocks[:0]
        sections = [_section(keys, places, total) for keys, places in gathered]
    else:
        sections = [_section(keys, np.searchsorted(blocks, places), len(blocks)) for keys, places in gathered]
    # the head: what it covers, and where each page ends
    table = b"".join(PACK.pack(name, packs[name]) for name in names)
    head = HEADER.pack(MAGIC, version, width, 0, len(names), len(blocks), *counts, 0)[:-4]
    check = zlib.crc32(table, zlib.crc32(head))
    ends = b"".join(ends for ends, _ in sections)
    parts = [head, _crc(check), table, ends, _crc(zlib.crc32(ends, check))]
    # the pages, each with a checksum that tells its number too
    pages = [_narrow(blocks[at : at + ADDRESSES], width) for at in range(0, len(blocks), ADDRESSES)]
    for number, page in enumerate(chain(pages, *(bodies for _, bodies in sections)), 1):
        parts += [page, _crc(zlib.crc32(page, (check + number) & 0xFFFFFFFF))]
    whole = b"".join(parts)
    return whole + digest(PERSON, whole)


def _crc(check: int) -> bytes:
    return check.to_bytes(CHECK, "little")


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


def _section(keys: U64, named: U64 | npt.NDArray[np.intp], count: int) -> tuple[bytes, list[bytes]]:
    """Return the entries up to the end of each page of a section, u32 each, and its pages.

    ``keys``, ``named``: (N,) of each entry, sorted; ``count``: blocks or addresses that there are to name.
    """
    if not len(keys):
        return b"", []
    b, width, low = _shape(len(keys), count)
    ends = np.searchsorted(keys >> np.uint64(KEY_BITS - b), np.arange(1 << b, dtype=np.uint64), side="right")
    fans = ends.reshape(-1, 1 << min(b, PAGE_BITS))
    bounds = [0, *fans[:, -1].tolist()]
    rest = keys & np.uint64((1 << KEY_BITS - b) - 1)
    entries = rest << np.uint64(low) | named.astype(np.uint64)
    pages = [
        (fan - begin).astype("<u4").tobytes() + _packed(entries[begin:end], width)
        for fan, begin, end in zip(fans, bounds, bounds[1:], strict=False)
    ]
    return fans[:, -1].astype("<u4").tobytes(), pages


def _size(counts: Sequence[int], blocks: int, width: int, packs: int) -> int:
    """Return about the bytes of an index whose entries name blocks. ``width``: bytes of an address."""
    shapes = [_shape(count, blocks) for count in counts]
    pages = sum((4 << b) + n * bits // 8 for n, (b, bits, _) in zip(counts, shapes, strict=True))
    return HEADER.size + packs * PACK.size + blocks * width + pages


def _shape(count: int, named: int) -> tuple[int, int, int]:
    """Return fan bits, bits per entry, and those of them that name one of so many blocks or addresses.

    >>> _shape(100, 5), _shape(1_000_000, 8000)
    ((2, 37, 3), (15, 34, 13))
    """
    low = max(0, named - 1).bit_length()
    b = min(MAX_FAN_BITS, max(0, count.bit_length() - 5, KEY_BITS + low - MAX_WIDTH))
    return b, KEY_BITS - b + low, low


def _packed(values: U64, width: int) -> bytes:
    """Return numbers, (N,), in ``width`` bits each, the lowest bit first."""
    parts = []
    for at in range(0, len(values), AT_ONCE):
        part = values[at : at + AT_ONCE].astype("<u8").view(np.uint8).reshape(-1, 8)
        bits = np.unpackbits(part, axis=1, bitorder="little")[:, :width]
        parts.append(np.packbits(bits, bitorder="little").tobytes())
    return b"".join(parts)


def _unpacked(data: memoryview, count: int, width: int) -> U64:
    """Return ``count`` numbers of ``width`` bits each, (N,)."""
    out = np.empty(count, np.uint64)
    for at in range(0, count, AT_ONCE):
        some = min(AT_ONCE, count - at)
        part = np.frombuffer(data, np.uint8, -(-some * width // 8), at * width // 8)
        bits = np.zeros((some, 64), np.uint8)
        bits[:, :width] = np.unpackbits(part, count=some * width, bitorder="little").reshape(some, width)
        out[at : at + some] = np.packbits(bits, axis=1, bitorder="little").view("<u8").reshape(-1)
    return out


def _narrow(values: U64, width: int) -> bytes:
    return values.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def _widen(data: bytes, width: int) -> U64:
    wide = np.zeros((len(data) // width, 8), np.uint8)
    wide[:, :width] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return wide.view("<u8").reshape(-1).astype(np.uint64)
