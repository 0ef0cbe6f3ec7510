"""Indexes: sorted, disposable files that locate records in packs, and a small index in memory.

Spec: FORMAT.md, "Index".

    key (36 bits of an id) --first bits--> page of some 1500 entries --search--> address --> pack, offset of a block

There are three sections (segments, sessions, marks) of the same shape. An entry is a hint: the records of the block
decide. So a short key is enough, and an index can be thrown away. All entries of a key are in one page of about 10 KB,
whose place the beginning of the file tells: one request answers a look-up in a bucket. Pages are read, checked and
unpacked when first wanted, and some stay in memory. Opening therefore takes no time per record, and a damaged index
raises instead of hiding a session.
"""

from __future__ import annotations

import struct
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, groupby, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pltz.archive.format.byte_source import File, Held, exactly, pieces
from pltz.archive.format.ids import session_key
from pltz.archive.format.pack import MAX_SIZE
from pltz.archive.format.record import Context, Record
from pltz.plt_codec.errors import CorruptError, UsageError, VersionError
from pltz.plt_codec.identity import SIZE, digest_of
from pltz.plt_codec.versions import Readers

MAGIC = b"PLTi"
VERSION = 1
HEADER = struct.Struct("<4sB3s5I16s")  # magic, version, reserved, packs, entries x 3, crc32, digest
DIGEST_AT = HEADER.size - SIZE  # the digest is of all bytes but itself
PACK = struct.Struct("<16sI")
PERSON = b"pltz index"
KEY_BITS = 36
UNIT = 8  # bytes of a session key in a sealed archive
PAGE_BITS = 11  # a page has 2^10 to 2^11 entries in the mean
CHECK = 4  # bytes of the crc32 behind a page
MOST_PAGES = 2048  # unpacked ones that stay in memory, 32 KB each
WINDOW, FEW = 256, 8  # pages that come in one read where more than a few of them are wanted
AT_ONCE = 1 << 16  # entries that are packed at once, a multiple of 8
MAX_PACKS = 1 << 20
MAX_BYTES = 1 << 40  # bytes of all packs of an index
SEGMENTS, SESSIONS, MARKS = 0, 1, 2
SECTIONS = ("segments", "sessions", "marks")

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


class Location(NamedTuple):
    """The place of a record: pack id, byte offset of its block, and row in the block."""

    pack: bytes
    offset: int
    row: int = 0


class Lookup(ABC):
    """An index of either kind: columns of entries sorted by key.

    Attributes:
        packs: those covered, with their bytes. ``names``: their ids, by number.
        starts: the address at which each of them begins, by number, and the end of the last.
    """

    packs: dict[bytes, int]
    names: list[bytes]
    starts: Sequence[int]

    @abstractmethod
    def columns(self, section: int) -> tuple[U64, U64, U64]:
        """Return all entries: keys, numbers of packs, and byte offsets of blocks in them, (N,) each.

        Raises CorruptError where the index is damaged, as the others do.
        """

    def addressed(self, section: int) -> tuple[U64, U64]:
        """Return all entries: keys (N,) and addresses (N,)."""
        keys, numbers, offsets = self.columns(section)
        return keys, np.array(self.starts, np.uint64)[numbers] + offsets

    def entries(self, section: int) -> Iterator[tuple[int, Location]]:
        """Yield all entries as (key, place)."""
        for key, number, offset in zip(*(c.tolist() for c in self.columns(section)), strict=True):
            yield key, Location(self.names[number], offset)

    def find(self, section: int, identity: bytes) -> list[Location]:
        """Return blocks that may hold an identity, in no order."""
        keys, *places = self.columns(section)
        first, last = (keys.searchsorted(np.uint64(key_of(identity)), side) for side in ("left", "right"))
        rows = zip(*(column[first:last].tolist() for column in places), strict=True)
        return [Location(self.names[number], offset) for number, offset in rows]

    def has(self, section: int, keys: U64) -> npt.NDArray[np.bool_]:
        """Return (N,) whether each of (N,) keys may be present; False is certain."""
        return _among(keys, self.columns(section)[0])

    def holds(self, section: int) -> bool:
        """Return whether it has any entry of a section."""
        return len(self.columns(section)[0]) > 0


def _among(keys: U64, known: U64) -> npt.NDArray[np.bool_]:
    """Return (N,) whether each of (N,) keys is among some that are sorted, (M,)."""
    if not len(known):
        return np.zeros(len(keys), bool)
    found: npt.NDArray[np.bool_] = known[np.minimum(known.searchsorted(keys), len(known) - 1)] == keys
    return found


def key_of(identity: bytes) -> int:
    """Return the first 36 bits of an identity, big-endian."""
    return int.from_bytes(identity[:8], "big") >> 64 - KEY_BITS


def keys_in(identities: Sequence[bytes]) -> U64:
    """Return the keys of N identities, (N,).

    >>> keys_in([bytes(range(16))]).tolist() == [key_of(bytes(range(16)))]
    True
    """
    halves = np.frombuffer(b"".join([identity[:8] for identity in identities]), ">u8")
    return halves.astype(np.uint64) >> np.uint64(64 - KEY_BITS)


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
        section: Entries(*(np.concatenate(column) for column in zip(*(p[section] for p in parts), strict=True)))
        for section in range(len(SECTIONS))
    }


class MemoryIndex(Lookup):
    """An index in memory of packs that no file covers yet, sorted when it is first asked after a pack was added."""

    def __init__(self) -> None:
        self.packs = {}
        self.names = []
        self.starts = range(1)
        self.sections: dict[bytes, Mapping[int, Entries]] = {}  # entries of each pack by section
        self._sorted: dict[int, tuple[U64, U64, U64]] = {}  # columns by section

    @property
    def count(self) -> int:
        """Return the number of entries of all packs."""
        return sum(map(self.entries_of, self.sections))

    def entries_of(self, pack: bytes) -> int:
        """Return the number of entries of a pack, 0 where it is not here."""
        return sum(len(keys) for keys, _ in self.sections.get(pack, {}).values())

    def add_pack(self, pack: bytes, size: int, sections: Mapping[int, Entries]) -> None:
        """Add a pack of ``size`` bytes and its entries by section, in place of those that it had."""
        if pack not in self.packs:
            self.names.append(pack)
        self.packs[pack], self.sections[pack] = size, sections
        self.starts = range(0, (len(self.names) + 1) * MAX_SIZE, MAX_SIZE)
        self._sorted.clear()

    def columns(self, section: int) -> tuple[U64, U64, U64]:
        if section not in self._sorted:
            nothing = Entries(*(np.zeros(0, np.uint64) for _ in range(2)))
            each = [nothing, *(self.sections[name].get(section, nothing) for name in self.names)]
            keys, offsets = map(np.concatenate, zip(*each, strict=True))
            sizes = np.array([len(entries.keys) for entries in each[1:]], np.int64)
            numbers = np.repeat(np.arange(len(self.names), dtype=np.uint64), sizes)
            order = np.argsort(keys, kind="stable")
            self._sorted[section] = keys[order], numbers[order], offsets[order]
        return self._sorted[section]


def table_of(file: File) -> bytes:
    """Return the beginning of an index, up to its pack table, which is stored a second time. Raises CorruptError."""
    _, _, _, packs, *_ = HEADER.unpack(exactly(file.read, 0, HEADER.size))
    return bytes(exactly(file.read, 0, HEADER.size + packs * PACK.size))


def packs_of(table: bytes, name: str) -> dict[bytes, int]:
    """Return the packs in what `table_of` returned of the index of this name, with their sizes. Raises CorruptError."""
    if len(table) < HEADER.size or table[: len(MAGIC)] != MAGIC or (len(table) - HEADER.size) % PACK.size:
        raise CorruptError("the copy of a pack table does not begin as an index does, or was cut off")
    if _check(table) != HEADER.unpack_from(table)[-2] or name_of(table) != name:
        raise CorruptError("the copy of a pack table does not match its checksum or its name: damaged")
    return dict(PACK.iter_unpack(table[HEADER.size :]))


def name_of(data: bytes) -> str:
    """Return the name of an index, which is its digest, from its first bytes.

    >>> name_of(build([], {})) == FileIndex.of(build([], {})).verify().hex()
    True
    """
    return data[DIGEST_AT : HEADER.size].hex()


class _Section(NamedTuple):
    """The shape of a section and the places of its pages.

    Attributes:
        size: entries, N.
        rest: bits of a key behind those that name its page.
        first: number of its first page among those of the file.
        begins: byte offset of each page, and of the end of the last, (G + 1,).
        entries: entries before each page, and all, (G + 1,).
    """

    size: int
    rest: int
    first: int
    begins: I64
    entries: I64


class _Page(NamedTuple):
    """Entries of a page, sorted by key: the bits of their keys that do not name the page, and addresses, (N,) each."""

    keys: U64
    places: U64


class FileIndex(Lookup):
    """An index file. Each page is read and checked when it is first wanted.

    ``name``: which it has to have; empty allows any.

    Raises VersionError for a newer version, CorruptError where header, sizes or name do not fit. The rest is
    checked when it is read.
    """

    def __init__(self, file: File, name: str = ""):
        self._file = file
        if file.size < HEADER.size:
            raise CorruptError(f"an index of {file.size} bytes was cut off")
        head = bytes(exactly(file.read, 0, HEADER.size))
        magic, version, reserved, packs, *counts, check, digest = HEADER.unpack(head)
        if magic != MAGIC:
            raise CorruptError(f"expected an index to start with {MAGIC!r}, found {magic!r}")
        if packs > MAX_PACKS or HEADER.size + packs * PACK.size > file.size:
            raise CorruptError(f"a table of {packs} packs does not fit the index: damaged")
        body = bytes(exactly(file.read, HEADER.size, packs * PACK.size))
        if check != _check(head + body):
            raise CorruptError("the header of the index does not match its checksum: damaged")
        lay_out = VERSIONS[version]
        if any(reserved):
            raise VersionError("the index has fields of a newer version: rebuild it or use a newer pltz")
        if name and digest.hex() != name:
            raise CorruptError(
                f"these are the bytes of index {digest.hex()}, or damaged: pltz archive repair makes it anew"
            )
        table = list(PACK.iter_unpack(body))
        if any(size > MAX_SIZE for _, size in table):
            raise CorruptError("a pack of the index is larger than packs are: damaged")
        self.packs = dict(table)
        self.names = [name for name, _ in table]
        self.starts = [0, *accumulate(size for _, size in table)]
        if self.starts[-1] >= MAX_BYTES:
            raise CorruptError("the packs of the index have more bytes than an index covers: damaged")
        self._counts: list[int] = counts
        self._check_start = check  # of the crc of the first page
        self._sections: list[_Section] = []
        self._pages: OrderedDict[int, _Page] = OrderedDict()
        lay_out(self, HEADER.size + len(body))

    @classmethod
    def of(cls, data: bytes) -> FileIndex:
        """Return an index in memory."""
        return cls(Held(data))

    @staticmethod
    def sealed(file: File) -> bytes:
        """Return the digest of an index file, which is its name. Raises CorruptError where it says another."""
        head = bytes(exactly(file.read, 0, HEADER.size))
        if digest_of(PERSON, chain([head[:DIGEST_AT]], pieces(file.read, HEADER.size, file.size))) != head[DIGEST_AT:]:
            raise CorruptError("some byte of the index is not what was written")
        return head[DIGEST_AT:]

    def __len__(self) -> int:
        return sum(self._counts)

    def find(self, section: int, identity: bytes) -> list[Location]:
        s = self._sections[section]
        if not s.size:
            return []
        number, rest = divmod(key_of(identity), 1 << s.rest)
        page = self._page(s, number)
        first, last = page.keys.searchsorted(np.uint64(rest)), page.keys.searchsorted(np.uint64(rest), "right")
        found = []
        for place in page.places[first:last].tolist():
            pack = bisect_right(self.starts, place) - 1
            found.append(Location(self.names[pack], place - self.starts[pack]))
        return found

    def holds(self, section: int) -> bool:
        return self._counts[section] > 0

    def has(self, section: int, keys: U64) -> npt.NDArray[np.bool_]:
        s = self._sections[section]
        hit = np.zeros(len(keys), bool)
        if not s.size or not len(keys):
            return hit
        order = np.argsort(keys)
        numbers, rest = keys[order] >> np.uint64(s.rest), keys[order] & np.uint64((1 << s.rest) - 1)
        wanted, begins = np.unique(numbers, return_index=True)
        bounds = [*begins.tolist(), len(keys)]
        for (begin, end), (_, page) in zip(pairwise(bounds), self._unpacked(s, wanted.tolist()), strict=True):
            hit[order[begin:end]] = _among(rest[begin:end], page.keys)
        return hit

    def columns(self, section: int) -> tuple[U64, U64, U64]:
        keys, places = self.addressed(section)
        starts = np.array(self.starts, np.uint64)
        numbers = np.searchsorted(starts, places, side="right").astype(np.uint64) - np.uint64(1)
        return keys, numbers, places - starts[numbers]

    def addressed(self, section: int) -> tuple[U64, U64]:
        s = self._sections[section]
        keys, places = np.empty(s.size, np.uint64), np.empty(s.size, np.uint64)
        for number, page in self._unpacked(s, range(len(s.entries) - 1)):
            part = slice(*s.entries[number : number + 2].tolist())
            keys[part], places[part] = page.keys | np.uint64(number << s.rest), page.places
        return keys, places

    def verify(self) -> bytes:
        """Check every byte and return the digest, which is the file's name. Raises CorruptError."""
        return self.sealed(self._file)

    def _lay_out(self, base: int) -> None:
        """Set where the pages lie. ``base``: bytes of header and pack table. Raises CorruptError."""
        pages = [_page_count(n) for n in self._counts]
        size = 4 * sum(pages)
        if base + size + CHECK > self._file.size:
            raise CorruptError(f"{sum(pages)} pages do not fit the index: damaged")
        table = exactly(self._file.read, base, size + CHECK)
        if zlib.crc32(table[:size], self._check_start) != int.from_bytes(table[size:], "little"):
            raise CorruptError("the table of pages does not match its checksum: damaged")
        ends = np.frombuffer(table, "<u4", sum(pages)).astype(np.int64)
        at, first = base + size + CHECK, 0
        for n, many in zip(self._counts, pages, strict=True):
            entries = np.concatenate([np.zeros(1, np.int64), ends[first : first + many]])
            if (np.diff(entries) < 0).any() or entries[-1] != n:
                raise CorruptError("the pages of the index are out of order: damaged")
            rest = KEY_BITS - max(0, many - 1).bit_length()
            parts = [_page_parts(count, rest, self.starts[-1]) for count in np.diff(entries).tolist()]
            begins = at + np.cumsum([0, *(sum(part) + CHECK for part in parts)])
            self._sections.append(_Section(n, rest, first, begins, entries))
            at, first = int(begins[-1]), first + many
        if at != self._file.size:
            raise CorruptError(f"expected an index of {at} bytes, found {self._file.size}: damaged")

    def _page(self, s: _Section, number: int) -> _Page:
        """Return a page of a section. Raises CorruptError."""
        return next(self._unpacked(s, [number]))[1]

    def _unpacked(self, s: _Section, wanted: Sequence[int]) -> Iterator[tuple[int, _Page]]:
        """Yield pages of a section by their ascending numbers. Near ones are read together. Raises CorruptError."""
        for _, group in groupby(wanted, key=lambda number: number // WINDOW):
            numbers, read, shift = [*group], self._file.read, 0
            lacking = [number for number in numbers if s.first + number not in self._pages]
            if len(lacking) > FEW:
                shift, end = int(s.begins[lacking[0]]), int(s.begins[lacking[-1] + 1])
                read = Held(exactly(read, shift, end - shift)).read
            for number in numbers:
                unit = s.first + number
                if (page := self._pages.get(unit)) is None:
                    begin, end = s.begins[number : number + 2].tolist()
                    page = self._pages[unit] = self._checked(s, number, exactly(read, begin - shift, end - begin))
                    if len(self._pages) > MOST_PAGES:
                        self._pages.popitem(last=False)
                yield number, page

    def _checked(self, s: _Section, number: int, data: bytes | memoryview) -> _Page:
        """Return the page that some bytes are, with their checksum. Raises CorruptError."""
        unit, count, total = s.first + number, int(s.entries[number + 1] - s.entries[number]), self.starts[-1]
        start = (self._check_start + 1 + unit) & 0xFFFFFFFF
        if zlib.crc32(data[:-CHECK], start) != int.from_bytes(data[-CHECK:], "little"):
            raise CorruptError(f"page {unit} of the index does not match its checksum: damaged")
        steps, low, _ = _page_parts(count, s.rest, total)
        bits = np.unpackbits(np.frombuffer(data, np.uint8, steps), bitorder="little")
        high = np.flatnonzero(bits.view(bool))
        if len(high) != count:
            raise CorruptError("a page of the index has not the entries it claims: damaged")
        width, high = _low_bits(count, s.rest), high - np.arange(count)
        keys = high.astype(np.uint64) << np.uint64(width) | _unpack(data[steps : steps + low], count, width)
        places = _unpack(data[steps + low : -CHECK], count, _place_bits(total))
        if count and (keys[-1] >> np.uint64(s.rest) or places.max() >= total):
            raise CorruptError("the index points behind its packs: damaged")
        return _Page(keys, places)


VERSIONS = Readers("the index", {VERSION: FileIndex._lay_out})


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
    known = list(indexes)
    gathered = [gather(known, section, starts) for section in range(len(SECTIONS))]
    sections = [_section(keys, places, total) for keys, places in gathered]
    # the head: what it covers, and where each page ends
    table = b"".join(PACK.pack(name, packs[name]) for name in names)
    head = HEADER.pack(MAGIC, VERSION, bytes(3), len(names), *(len(keys) for keys, _ in gathered), 0, bytes(SIZE))
    check = _check(head + table)
    ends = b"".join(ends for ends, _ in sections)
    parts = [table, ends, _crc(zlib.crc32(ends, check))]
    # the pages, each with a checksum that tells its number too
    for number, page in enumerate(chain(*(pages for _, pages in sections)), 1):
        parts += [page, _crc(zlib.crc32(page, (check + number) & 0xFFFFFFFF))]
    head = head[: DIGEST_AT - CHECK] + _crc(check)
    return b"".join([head, digest_of(PERSON, [head, *parts]), *parts])


def _check(table: bytes) -> int:
    """Return the checksum of the beginning of an index, up to its pack table, without checksum and digest."""
    return zlib.crc32(table[HEADER.size :], zlib.crc32(table[: DIGEST_AT - CHECK]))


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


def _section(keys: U64, places: U64, total: int) -> tuple[bytes, list[bytes]]:
    """Return the entries up to the end of each page of a section, u32 each, and its pages.

    ``keys``, ``places``: (N,) of each entry, sorted; ``total``: bytes of all packs.
    """
    many = _page_count(len(keys))
    rest = KEY_BITS - max(0, many - 1).bit_length()
    ends = np.searchsorted(keys >> np.uint64(rest), np.arange(many, dtype=np.uint64), side="right")
    inside, pages = keys & np.uint64((1 << rest) - 1), []
    for begin, end in pairwise([0, *ends.tolist()]):
        count, part = end - begin, inside[begin:end]
        width, (steps, _, _) = _low_bits(count, rest), _page_parts(count, rest, total)
        bits = np.zeros(8 * steps, np.uint8)
        bits[(part >> np.uint64(width)).astype(np.int64) + np.arange(count)] = 1
        low = _packed(part & np.uint64((1 << width) - 1), width)
        pages.append(
            np.packbits(bits, bitorder="little").tobytes() + low + _packed(places[begin:end], _place_bits(total))
        )
    return ends.astype("<u4").tobytes(), pages


def _page_count(count: int) -> int:
    """Return the pages of a section of so many entries.

    >>> [_page_count(n) for n in (0, 1, 2047, 2048, 1_000_000)]
    [0, 1, 1, 2, 512]
    """
    return 1 << max(0, count.bit_length() - PAGE_BITS) if count else 0


def _low_bits(count: int, rest: int) -> int:
    """Return how many of the last bits of a key stand as they are in a page of so many entries."""
    return max(0, rest - count.bit_length())


def _place_bits(total: int) -> int:
    return max(0, total - 1).bit_length()


def _page_parts(count: int, rest: int, total: int) -> tuple[int, int, int]:
    """Return the bytes of the three parts of a page: steps, low bits, addresses."""
    if not count:
        return 0, 0, 0
    low = _low_bits(count, rest)
    return -(-(count + (1 << rest - low)) // 8), -(-count * low // 8), -(-count * _place_bits(total) // 8)


def _packed(values: U64, width: int) -> bytes:
    """Return numbers, (N,), in ``width`` bits each, the lowest bit first."""
    parts = []
    for at in range(0, len(values), AT_ONCE):
        part = values[at : at + AT_ONCE].astype("<u8").view(np.uint8).reshape(-1, 8)
        bits = np.unpackbits(part, axis=1, bitorder="little")[:, :width]
        parts.append(np.packbits(bits, bitorder="little").tobytes())
    return b"".join(parts)


def _unpack(data: bytes | memoryview, count: int, width: int) -> U64:
    """Return ``count`` numbers of ``width`` bits each, at most 57, (N,)."""
    if not width:
        return np.zeros(count, np.uint64)
    rows, held = -(-count // 8), bytes(data) + bytes(width + 8)
    found = np.empty((rows, 8), np.uint64)
    for at in range(8):  # of eight numbers each begins at the same bit of so many bytes
        begin, shift = divmod(at * width, 8)
        found[:, at] = np.ndarray((rows,), "<u8", held, begin, (width,)) >> np.uint64(shift)
    found &= np.uint64((1 << width) - 1)
    return found.reshape(-1)[:count]
