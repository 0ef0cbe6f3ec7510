"""The columns of a block: one kind of number of up to 128 records each, in the shape that takes the fewest bits.

Spec: FORMAT.md, "Columns of a block". Small columns have a fixed width. Columns with a few large numbers are
exp-Golomb codes, whose order fits most of them. The size of a bitstring is close to its count of tokens times a rate,
so its difference from that is stored. Reading is compiled where there is a C compiler (`block_columns.c`).

    >>> counts, sizes = [800, 900, 1000], [200, 226, 249]
    >>> there, data = write({COUNT: counts, SIZE: sizes}, 3)
    >>> end, columns = read(data, 0, len(data), 3, there)
    >>> [column[-1] for column in columns], end == len(data)
    ([[800, 900, 1000], [200, 226, 249]], True)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import read_varint, write_varint

try:
    from pltz.plt_codec.container import _block_columns
except ImportError:  # there was no C compiler
    _block_columns = None  # type: ignore[assignment]

ROWS = 128  # most records of a block
COLUMNS = 14  # that a block may have; their numbers are in block.py and in the layers above
COUNT, SIZE = 4, 5  # columns of which the second is stored as its difference from what the first predicts
MAX_WIDTH = 33  # bits of a stored number
EXP_GOLOMB = 64  # a shape from here on is an exp-Golomb code, and the rest is its order
RATE_BITS = 12  # of a fraction in a rate, which is in bytes per count
MAX_RATE = (1 << 16) - 1
RATE = 2  # bytes
CANDIDATES = np.arange(1, 16, 2)  # sixteenths of the records at which a writer tries a rate

I64 = npt.NDArray[np.int64]
Found = tuple[int, int, int, int, list[int] | None]  # number of a column, least, largest, sum, values unless all alike

Reader = Callable[[bytes, int, int, int, int], tuple[int, list[Found]]]


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


# ---- columns -> bytes


def write(columns: Mapping[int, Sequence[int]], count: int) -> tuple[int, bytes]:
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


# ---- bytes -> columns


def read_here(data: bytes, begin: int, end: int, count: int, there: int) -> tuple[int, list[Found]]:
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
read = compiled or read_here
