"""A block: up to 128 consecutive records of a file or pack, field by field in columns. Spec: FORMAT.md, "Block".

    columns, parts, bitstrings --encode_block--> head: mark, sizes, columns, parts, checks | body: bitstrings
    head --BlockHead.read--> columns, parts; with the bytes of a piece of the body, a bitstring

A record takes few bytes because marks, checks and field widths are shared. The head has one check. The body has one
per piece of some KiB. So a single record is read without the rest of the body, and a damaged bit costs the records of
one piece.

Each column is in the shape that takes the fewest bits (FORMAT.md, "Columns of a block"). Small ones have a fixed width.
Those with a few large numbers are exp-Golomb codes, whose order fits most of them. The size of a bitstring is close to
its count of tokens times a rate, so its difference from that is stored. Reading is compiled where there is a C compiler
(`block_columns.c`).

    >>> counts, sizes = [800, 900, 1000], [200, 226, 249]
    >>> there, data = write_columns({COUNT: counts, SIZE: sizes}, 3)
    >>> end, columns = read_columns(data, 0, len(data), 3, there)
    >>> [column[-1] for column in columns], end == len(data)
    ([[800, 900, 1000], [200, 226, 249]], True)

Sessions of a `.pltz` file are `session_block.py`, records of a pack `archive/format/block.py`.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import CorruptError, VersionError
from pltz.plt_codec.varint import read_varint, write_varint

try:
    from pltz.plt_codec.container import _block_columns
except ImportError:  # there was no C compiler
    _block_columns = None  # type: ignore[assignment]

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
CONTEXT, COUNT, SIZE = 1, 4, 5  # the last is stored as its difference from what the one before predicts
COPIED, STEP = 12, 13

ROWS = 128  # most records of a block
COLUMNS = 14  # that a block may have; numbers that are not here are those of packs
MAX_WIDTH = 33  # bits of a stored number
EXP_GOLOMB = 64  # a shape from here on is an exp-Golomb code, and the rest is its order
RATE_BITS = 12  # of a fraction in a rate, which is in bytes per count
MAX_RATE = (1 << 16) - 1
RATE = 2  # bytes
CANDIDATES = np.arange(1, 16, 2)  # sixteenths of the records at which a writer tries a rate

I64 = npt.NDArray[np.int64]
Found = tuple[int, int, int, int, list[int] | None]  # number of a column, least, largest, sum, values unless all alike

Reader = Callable[[bytes, int, int, int, int], tuple[int, list[Found]]]


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
        return cls(min(values), max(values), sum(values), values)

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
    there, shapes, codes = 0, [], []
    rate = 0
    arrays = {number: np.array(values, np.int64) for number, values in sorted(columns.items()) if any(values)}
    if SIZE in arrays and count > 1:
        rate, arrays[SIZE] = _deviations(arrays[SIZE], arrays.get(COUNT))
        shapes.append(rate.to_bytes(RATE, "little"))
    for number, values in arrays.items():
        there |= 1 << number
        low = int(values.min())
        shapes.append(write_varint(low))
        if count > 1:
            shape, code = pack(values - low)
            shapes.append(bytes([shape]))
            codes.append(code)
    return there, b"".join(shapes + codes)


def pack(numbers: I64) -> tuple[int, bytes]:
    """Return the shape of numbers (n,) of at most 33 bits that takes the fewest bits, and the numbers in it."""
    width = int(numbers.max()).bit_length()
    fewest, shape = width * len(numbers), width
    if width > 1:
        middle = int(numbers.sum() // len(numbers)).bit_length()
        orders = np.arange(max(0, middle - 3), min(middle + 1, MAX_WIDTH))[:, None]
        costs = _bits(numbers, orders).sum(axis=1)
        best = int(costs.argmin())
        if costs[best] < fewest:
            shape = EXP_GOLOMB + int(orders[best, 0])
    if shape < EXP_GOLOMB:
        bits = (numbers[:, None] >> np.arange(width)) & 1
        return shape, np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()
    # exp-Golomb: for each number its class in unary, and behind these the low bits of all
    order = shape - EXP_GOLOMB
    raised = numbers + (1 << order)
    widths = _bit_length(raised) - 1
    ends = np.cumsum(widths - order + 1)
    unary = np.zeros(ends[-1], np.int64)
    unary[ends - 1] = 1
    low = np.repeat(raised, widths) >> _places(widths) & 1
    return shape, np.packbits(np.concatenate([unary, low]).astype(np.uint8), bitorder="little").tobytes()


def _deviations(sizes: I64, counts: I64 | None) -> tuple[int, I64]:
    """Return a rate and what is stored of sizes (n,): their differences from counts times rate; 0 and themselves."""
    if counts is None or int(counts.max()) >> 27:  # a mark, whose counter predicts nothing
        return 0, sizes
    rates = np.sort((sizes[counts > 0] << RATE_BITS) // counts[counts > 0])
    tried = np.minimum(rates[CANDIDATES * len(rates) >> 4], MAX_RATE)
    differences = sizes - (counts * tried[:, None] >> RATE_BITS)
    stored = differences << 1 ^ differences >> 63  # 2 n, or -2 n - 1 where it is negative
    costs = _cost(stored)
    best = int(costs.argmin())
    if not tried[best] or costs[best] >= _cost(sizes[None])[0]:
        return 0, sizes
    return int(tried[best]), stored[best]


def _cost(rows: I64) -> I64:
    """Return about how many bits each row of numbers (r, n) takes, (r,)."""
    orders = np.maximum(_bit_length(rows.sum(axis=1, keepdims=True) // rows.shape[1]) - 2, 0)
    cost: I64 = _bits(rows, orders).sum(axis=1)
    return cost


def _bits(numbers: I64, orders: I64) -> I64:
    """Return the bits of each number in an exp-Golomb code of this order."""
    return 2 * _bit_length((numbers >> orders) + 1) - 1 + orders


def _bit_length(numbers: I64) -> I64:
    """Return the bit length of numbers, each below 2^52."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.int64)


def _places(widths: I64) -> I64:
    """Return 0, 1, ... for the bits of each width, one after the other."""
    ends = np.cumsum(widths)
    places: I64 = np.arange(ends[-1]) - np.repeat(ends - widths, widths)
    return places


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
        columns = [NOTHING] * COLUMNS
        try:
            begin, found = read_columns(head, begin, size - CHECK, count, there)
        except ValueError as exc:
            raise wrong(offset, str(exc)) from exc
        for number, low, high, total, values in found:
            columns[number] = Column(low, high, total, values)
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


# ---- bytes -> columns


def read_columns_here(data: bytes, begin: int, end: int, count: int, there: int) -> tuple[int, list[Found]]:
    """Return where the columns from ``data[begin]`` end, and of each number, least, largest, sum and values.

    The values are None where all are the least. Raises ValueError saying which rule is broken.
    """
    # least number and shape of each column stand before all values
    at, shapes, rate = begin, [], 0
    if there >> SIZE & 1 and count > 1:
        if at + RATE > end:
            raise ValueError(ENDS)
        rate, at = int.from_bytes(data[at : at + RATE], "little"), at + RATE
    for number in (n for n in range(COLUMNS) if there >> n & 1):
        try:
            low, at = read_varint(data[:end], at)
        except CorruptError:
            raise ValueError(ENDS) from None
        shape = 0
        if count > 1:
            if at >= end:
                raise ValueError(ENDS)
            shape, at = data[at], at + 1
        if not (shape <= MAX_WIDTH or EXP_GOLOMB <= shape <= EXP_GOLOMB + MAX_WIDTH):
            raise ValueError(WIDE)
        shapes.append((number, low, shape))
    # values: differences from the least
    found: dict[int, I64] = {}
    for number, low, shape in shapes:
        values, at = unpack(data, at, end, count, shape)
        found[number] = values + low
    if rate:
        stored, counts = found[SIZE], found.get(COUNT, np.zeros(count, np.int64))
        found[SIZE] = (counts * rate >> RATE_BITS) + (stored >> 1 ^ -(stored & 1))
        if found[SIZE].min() < 0:
            raise ValueError(LESS)
    return at, [_found(number, values) for number, values in found.items()]


def unpack(data: bytes, at: int, end: int, count: int, shape: int) -> tuple[I64, int]:
    """Undo `pack`: return the numbers (count,), and where their bytes from ``data[at]`` end. Raises ValueError."""
    order = shape - EXP_GOLOMB
    most = count * MAX_WIDTH * 2 + count  # bits
    bits = np.unpackbits(np.frombuffer(data[at : min(end, at + most // 8 + 1)], np.uint8), bitorder="little")
    if order < 0:
        size = count * shape
        if size > len(bits):
            raise ValueError(ENDS)
        return bits[:size].reshape(count, shape).astype(np.int64) @ (1 << np.arange(shape)), at + (size + 7) // 8
    # each class ends with a one; it and the order say how many low bits a number has
    ones = np.flatnonzero(bits)[:count]
    widths = np.diff(ones, prepend=-1) - 1 + order
    if len(ones) and widths.max() > MAX_WIDTH:
        raise ValueError(WIDE)
    size = int(ones[-1] + 1 + widths.sum()) if len(ones) == count else 0
    if not size or size > len(bits):
        raise ValueError(ENDS)
    low = bits[ones[-1] + 1 : size].astype(np.int64) << _places(widths)
    sums, ends = np.concatenate([[0], np.cumsum(low)]), np.cumsum(widths)
    return sums[ends] - sums[ends - widths] + (1 << widths) - (1 << order), at + (size + 7) // 8


def _found(number: int, values: I64) -> Found:
    low, high = int(values.min()), int(values.max())
    return number, low, high, int(values.sum()), values.tolist() if low < high else None


ENDS = "ends before its columns do"
WIDE = f"has numbers of more than {MAX_WIDTH} bits"
LESS = "has a bitstring of less than no bytes"

compiled: Reader | None = getattr(_block_columns, "read", None)
read_columns = compiled or read_columns_here
