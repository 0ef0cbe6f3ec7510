"""A block: up to 128 consecutive records of a file or pack, field by field in columns. Spec: FORMAT.md, "Block".

    columns, parts, bitstrings --encode_block--> head: mark, sizes, columns, parts, checks | body: bitstrings
    head --BlockHead.read--> columns, parts; with the bytes of a piece of the body, a bitstring

A record takes few bytes because marks, checks and field widths are shared. The head has one check. The body has one
per piece of some KiB. So a single record is read without the rest of the body, and a damaged bit costs the records of
one piece.

Sessions of a `.pltz` file are `session_block.py`, records of a pack `archive/format/block.py`.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Self

from pltz.plt_codec.container.columns import read_column, write_column
from pltz.plt_codec.errors import CorruptError, VersionError
from pltz.plt_codec.varint import read_varint, write_varint

PIECE = 4096  # bytes of bitstrings from which a piece of the body ends
BODY = 1 << 20  # bytes of bitstrings from which a block ends
MAX_BITSTRING = 1 << 28  # bytes
MARK = 2  # bytes
CHECK = 4  # bytes
RESIDUE = 0x2144DF1C  # crc32 of anything followed by its own crc32, little-endian
MAX_HEAD = 1 << 18  # bytes
MAX_BODY = BODY + MAX_BITSTRING
PREFIX = MARK + 5 + 5  # most bytes of mark and the two sizes
FIXED = 3  # bytes in front of the columns: their number of records, and which are there

# columns of both files and packs, and two of files alone
CONTEXT, COUNT, SIZE = 1, 4, 5
COPIED, STEP = 12, 13

ROWS = 128  # most records of a block
COLUMNS = 14  # that a block may have; numbers that are not here are those of packs
MAX_WIDTH = 32  # bits of a stored number


class BlockPart(NamedTuple):
    """The bitstrings of some records of a block: rows from ``first`` to before ``last``, bytes of the body."""

    number: int
    first: int
    last: int
    begin: int
    end: int


class Column:
    """The values of one field, of all records of a block.

    ``many``: the values, None where all are ``low``. ``low`` and ``high`` bound them, ``total`` is their sum.
    """

    __slots__ = "high", "low", "many", "total"

    def __init__(self, low: int = 0, high: int = 0, total: int = 0, many: list[int] | None = None):
        self.low, self.high, self.total, self.many = low, high, total, many

    @classmethod
    def of(cls, values: list[int]) -> Column:
        """Return the column of some values."""
        low, high = min(values), max(values)
        return cls(low, high, sum(values), values if low < high else None)

    def __getitem__(self, row: int) -> int:
        return self.low if self.many is None else self.many[row]

    def list(self, count: int) -> list[int]:
        """Return the values."""
        return [self.low] * count if self.many is None else self.many

    def times(self, value: int, count: int) -> int:
        """Return how often a value is among those of ``count`` records."""
        return count * (self.low == value) if self.many is None else self.many.count(value)


NOTHING = Column()


# ---- records -> bytes


def encode_block(
    columns: Mapping[int, Sequence[int]], parts: Sequence[bytes], bitstrings: Sequence[bytes], salt: bytes, offset: int
) -> list[bytes]:
    """Return the bytes of a block: head, then its check, then the pieces of the body.

    Args:
        columns: values of all records by column, but for the sizes of the bitstrings.
        parts: what stands in the head behind the columns.
        bitstrings: 1 to `ROWS`.
        salt: bytes that nobody knew when the bitstrings were made, or those of the file's header.
        offset: byte offset of the block in its file.
    """
    count, sizes = len(bitstrings), list(map(len, bitstrings))
    body = [b"".join(bitstrings[p.first : p.last]) for p in pieces_of(sizes)]
    checks = [zlib.crc32(piece).to_bytes(CHECK, "little") for piece in body]
    there, numbers = write_columns({**columns, SIZE: sizes}, count)
    rest = b"".join([bytes([count]), there.to_bytes(2, "little"), numbers, *parts, *checks])
    head = salt[:MARK] + write_varint(len(rest)) + write_varint(sum(sizes)) + rest
    return [head, zlib.crc32(head, seed_of(salt, offset)).to_bytes(CHECK, "little"), *body]


def pieces_of(sizes: Sequence[int]) -> Iterator[BlockPart]:
    """Yield the pieces of a body. ``sizes``: bytes of the bitstring of each record.

    A piece ends with the record that fills it to `PIECE` bytes. A last one without bytes is left out.

    >>> list(pieces_of([10, 5000, 0]))
    [BlockPart(number=0, first=0, last=2, begin=0, end=5010)]
    """
    ends = list(accumulate(sizes))
    number = first = begin = 0
    while begin < ends[-1]:
        last = min(bisect_left(ends, begin + PIECE), len(ends) - 1)
        yield BlockPart(number, first, last + 1, begin, ends[last])
        number, first, begin = number + 1, last + 1, ends[last]


def seed_of(salt: bytes, offset: int) -> int:
    """Return the value with which the check of the block at a byte offset begins."""
    return zlib.crc32(offset.to_bytes(8, "little"), zlib.crc32(salt))


def write_columns(columns: Mapping[int, Sequence[int]], count: int) -> tuple[int, bytes]:
    """Return which columns are there, a bit each, and their bytes.

    ``columns``: values of ``count`` records, by the number of the column. One of zeros alone is left out.
    """
    present = {number: values for number, values in sorted(columns.items()) if any(values)}
    firsts = [values[0] for values in present.values()]
    data = map(write_column, present.values()) if count > 1 else map(write_varint, firsts)
    return sum(1 << number for number in present), b"".join(data)


# ---- bytes -> records


def head_size(data: bytes | memoryview, salt: bytes) -> int:
    """Return the bytes of the head of the block in ``data``, check included.

    Only its mark and its sizes are looked at. Raises CorruptError.
    """
    begin, head, _ = _sizes(bytes(data[:PREFIX]), salt[:MARK])
    return begin + head + CHECK


def _sizes(prefix: bytes, mark: bytes) -> tuple[int, int, int]:
    """Return where the sizes in the first bytes of a block end, and the sizes. Raises CorruptError."""
    if prefix[:MARK] != mark:
        raise CorruptError("no block begins here: damaged")
    head, after = read_varint(prefix, MARK)
    body, after = read_varint(prefix, after)
    if head > MAX_HEAD or body > MAX_BODY:
        raise CorruptError(f"a block claims {head} and {body} bytes, at most {MAX_HEAD} and {MAX_BODY} are allowed")
    return after, head, body


@dataclass(slots=True)
class BlockHead:
    """The head of a block, checked.

    Attributes:
        offset: byte offset of the block in its file.
        count: number of records.
        size, body: bytes of its head, and of its body.
        columns: all columns by number; those that are not there are `NOTHING`.
        data: bytes of the head.
        parts: where in these the columns end.
        checks: where the checks of the pieces begin, as `ends_with` found.
        ahead: the first bytes of its body, as far as they were read with the head.
    """

    offset: int
    count: int
    size: int
    body: int
    columns: list[Column]
    data: bytes
    parts: int
    checks: int = 0
    ahead: bytes | memoryview = b""
    _sizes: Sequence[int] = ()
    _ends: Sequence[int] = ()

    @classmethod
    def read(cls, data: bytes | memoryview, offset: int, salt: bytes, allowed: int) -> Self:
        """Return the block whose head ``data`` begins with, at byte ``offset`` of its file.

        ``allowed``: a bit for each column that such a block may have. The parts are not looked at.

        Raises:
            CorruptError: the head is damaged or breaks a rule.
            VersionError: a newer version wrote it.
        """
        try:
            begin, size, body = _sizes(bytes(data[:PREFIX]), salt[:MARK])
        except CorruptError as exc:
            raise CorruptError(f"no block at byte {offset}: {exc}") from exc
        size += begin + CHECK
        if size > len(data):
            raise CorruptError(f"the block at byte {offset} claims a head of {size} bytes, more than fit: damaged")
        head = bytes(data[:size])
        if zlib.crc32(head, seed_of(salt, offset)) != RESIDUE:
            raise CorruptError(f"the block at byte {offset} does not match its checksum: damaged")
        # the check is right: what is wrong from here on was written that way
        count, there, begin = head[begin], int.from_bytes(head[begin + 1 : begin + FIXED], "little"), begin + FIXED
        if not 0 < count <= ROWS or begin > size - CHECK:
            raise wrong(offset, f"has {count} records")
        if there & ~allowed:
            raise VersionError(
                f"the block at byte {offset} has columns {there:#06x}, of a newer version: use a newer pltz"
            )
        columns, present = [NOTHING] * COLUMNS, [n for n in range(COLUMNS) if there >> n & 1]
        found = list[list[int]]()
        try:
            for _ in present:
                if count > 1:
                    values, begin = read_column(head, begin, count, MAX_WIDTH)
                else:
                    value, begin = read_varint(head, begin)
                    values = [value]
                found.append(values)
        except CorruptError as exc:
            raise CorruptError(f"the block at byte {offset}: {exc}") from exc
        for number, values in zip(present, found, strict=True):
            columns[number] = Column.of(values)
        return cls(offset, count, size, body, columns, head, begin)

    def lists(self) -> list[list[int]]:
        """Return the values of each column, by number."""
        return [column.list(self.count) for column in self.columns]

    def values(self, row: int) -> list[int]:
        """Return what each column has of a record, by number."""
        return [column.low if column.many is None else column.many[row] for column in self.columns]

    @property
    def end(self) -> int:
        """Return the byte offset in its file at which the block ends."""
        return self.offset + self.size + self.body

    @property
    def sizes(self) -> Sequence[int]:
        """Return the bytes of each bitstring."""
        self._sizes = self._sizes or self.columns[SIZE].list(self.count)
        return self._sizes

    @property
    def ends(self) -> Sequence[int]:
        """Return where in the body each bitstring ends."""
        self._ends = self._ends or list(accumulate(self.sizes))
        return self._ends

    def ends_with(self, checks: int) -> None:
        """Note where the checks of the pieces begin. Raises CorruptError where they or the bitstrings do not fit."""
        self.checks = checks
        number, rest = divmod(self.size - CHECK - checks, CHECK)
        if rest or not 0 <= number <= self.count or self.columns[SIZE].total != self.body:
            raise wrong(self.offset, "has parts that do not fill it")

    # ---- the body

    @property
    def pieces(self) -> list[BlockPart]:
        """Return the pieces of the body. Raises CorruptError where their number is not that of the checksums."""
        found = list(pieces_of(self.sizes))
        if CHECK * len(found) != len(self.data) - CHECK - self.checks:
            raise wrong(self.offset, "has parts that do not fill it")
        return found

    def piece(self, row: int) -> BlockPart | None:
        """Return the piece that has a record's bitstring; None where that is empty."""
        if not self.sizes[row]:
            return None
        ends = self.ends
        number = first = begin = 0
        while (last := bisect_left(ends, begin + PIECE)) < row:  # as in `pieces_of`
            number, first, begin = number + 1, last + 1, ends[last]
        last = min(last, len(ends) - 1)
        return BlockPart(number, first, last + 1, begin, ends[last])

    def sound(self, piece: BlockPart, data: bytes | memoryview) -> bool:
        """Return whether the bytes of a piece match its checksum. Raises CorruptError where there is none."""
        at = self.checks + CHECK * piece.number
        if at + CHECK > len(self.data) - CHECK:
            raise wrong(self.offset, "has parts that do not fill it")
        check = int.from_bytes(self.data[at : at + CHECK], "little")
        return len(data) == piece.end - piece.begin and zlib.crc32(data) == check

    def damaged(self, body: bytes | memoryview) -> list[BlockPart]:
        """Return the pieces of a body that do not match their checksums. Raises CorruptError as `pieces`."""
        return [p for p in self.pieces if not self.sound(p, body[p.begin : p.end])]

    def bitstring(self, row: int, piece: BlockPart, data: bytes | memoryview) -> bytes:
        """Return a record's bitstring from the bytes of its piece, sound."""
        end = self.ends[row] - piece.begin
        return bytes(data[end - self.sizes[row] : end])


def wrong(offset: int, what: str) -> CorruptError:
    """Return the error of a block whose check is right and that breaks a rule."""
    return CorruptError(f"the block at byte {offset} {what}: damaged")
