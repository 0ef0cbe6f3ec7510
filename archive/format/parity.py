"""Parity: Reed-Solomon over the blocks of one pack, in a separate file. Spec: FORMAT.md, "Parity".

    group = a list of byte ranges of the pack, laid out as k rows of equal length, m parity rows below
    column = the block at the same place of every row: any m lost blocks of a column come back

Rows are contiguous, so a burst of damage touches a column once per row length; interleaving costs nothing.
Group 0 is the whole pack. Segments that many sessions depend on are in a second group with more parity. A
crc32 shows that a block is lost. Only the digest shows that a pack is restored, so parity can fail to help
but never do harm.

The arithmetic is an exclusive or and one table look-up per byte, which gives the products for eight parity rows at
once. It reaches 750 MB/s with 5 parity rows (and with 8) on one core. Its alternatives are zfec with 390, whose licence
does not suit ours, and liberasurecode with 720 and a header of its own in every block. A look-up per byte and row
reached 460.
"""

from __future__ import annotations

import functools
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.container.block import ByteSource
from pltz.plt_codec.errors import CorruptError, VersionError
from pltz.plt_codec.identity import SIZE, digest
from pltz.plt_codec.versions import Readers

MAGIC, END = b"PLTr", b"rTLP"
VERSION = 1
HEAD = struct.Struct("<4sB3sI16sQI")  # magic, version, reserved, bytes of the head, pack, its bytes, groups
GROUP = struct.Struct("<IIHHI")  # ranges, block bytes, k, m, columns
RANGE = struct.Struct("<QQ")  # offset, bytes
TAIL = struct.Struct("<I4s")  # bytes of the head, end mark
PERSON = b"pltz parity"
FLOOR = 2048  # least bytes of parity, or the pack's size if smaller: they cost a file system nothing
MAX_PACK = 1 << 30  # bytes
MAX_ROWS = 256  # k + m
MAX_BLOCK = 65536  # bytes
SHARE, SHARED = 50, 1000  # thousandths of parity: for a pack, for segments that many sessions depend on
POLYNOMIAL = 0x11D
ABREAST = 8  # parity rows computed at once: a table look-up gives a byte for each
AT_ONCE = 32768  # bytes of a data row handled at once
PIECE = 1 << 20  # bytes of a source copied at once

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]  # little-endian


class Range(NamedTuple):
    """Bytes of a pack."""

    offset: int
    size: int


@dataclass(frozen=True)
class GroupLayout:
    """The layout of a group: k data rows and m parity rows of ``columns`` blocks of ``block`` bytes."""

    block: int
    k: int
    m: int
    columns: int

    @property
    def row(self) -> int:
        """Return the bytes of a row."""
        return self.block * self.columns

    @classmethod
    def of(cls, size: int, share: int) -> GroupLayout:
        """Return the shape for ``size`` bytes and ``share`` thousandths of parity.

        >>> GroupLayout.of(64 << 20, 50)
        GroupLayout(block=4096, k=100, m=5, columns=164)
        >>> GroupLayout.of(300, 50)
        GroupLayout(block=64, k=5, m=5, columns=1)
        """
        block = 64 if size <= 4096 else 512 if size <= 1 << 20 else 4096
        blocks = max(1, -(-size // block))
        most = min(100, max(16, 5000 // share))
        columns = -(-blocks // most)
        k = -(-blocks // columns)
        floor = -(-min(size, FLOOR) // (block * columns))
        m = min(max(-(-k * share // 1000), floor, 1), MAX_ROWS - k)
        return cls(block, k, m, columns)


@dataclass(frozen=True)
class Group:
    """A group of ranges with its parity rows.

    ``checks``: crc32 of every block, row by row, data rows first.
    """

    ranges: Sequence[Range]
    shape: GroupLayout
    checks: Sequence[int]
    rows: Sequence[memoryview | bytes]  # m parity rows

    @property
    def size(self) -> int:
        """Return the bytes of the pack that it covers."""
        return sum(r.size for r in self.ranges)


@dataclass(frozen=True)
class Parity:
    """The content of a parity file. ``damaged_copies``: damaged copies of its head, which is stored twice."""

    pack: bytes
    size: int
    groups: Sequence[Group]
    damaged_copies: int = 0

    @classmethod
    def of(
        cls,
        name: bytes,
        data: ByteSource,
        shared: Iterable[Range] = (),
        shares: tuple[int, int] = (SHARE, SHARED),
    ) -> Parity:
        """Return the parity of a pack called ``name`` with the bytes ``data``.

        ``shared``: ranges that get the second share as well; ``shares``: thousandths of parity for the pack
        and for these.
        """
        groups = [_group(data, [Range(0, len(data))], shares[0])]
        if (ranges := _joined(shared)) and shares[1]:
            groups.append(_group(data, ranges, shares[1]))
        return cls(name, len(data), groups)

    def encode(self) -> bytes:
        """Return the file: head, parity rows, the head again."""
        body = [
            GROUP.pack(len(g.ranges), g.shape.block, g.shape.k, g.shape.m, g.shape.columns)
            + b"".join(RANGE.pack(*r) for r in g.ranges)
            + np.array(g.checks, "<u4").tobytes()
            for g in self.groups
        ]
        size = HEAD.size + sum(map(len, body)) + SIZE
        head = HEAD.pack(MAGIC, VERSION, bytes(3), size, self.pack, self.size, len(self.groups))
        head += b"".join(body)
        head += digest(PERSON, head)
        rows = [bytes(row) for g in self.groups for row in g.rows]
        return b"".join([head, *rows, head, TAIL.pack(size, END)])

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Parity:
        """Return the parity in a file.

        Raises CorruptError where both heads are damaged, VersionError for a newer file.
        """
        data = memoryview(data)
        back = _back(data)
        heads, failures = [], []
        for at in (0, back):
            try:
                heads.append(_read(data, at))
            except (CorruptError, VersionError) as exc:
                failures.append(exc)
        if not heads:
            raise failures[0]
        head, size = heads[0]
        if head.file_size(size) != len(data):
            failures.append(CorruptError("a parity file was cut off or grew"))
        return cls(head.pack, head.size, _with_rows(head.groups, data, size), len(failures))

    def file_size(self, head: int) -> int:
        """Return the bytes of the whole file, given those of a head."""
        return 2 * head + TAIL.size + sum(g.shape.m * g.shape.row for g in self.groups)

    def verify(self) -> None:
        """Check every parity block. Raises CorruptError."""
        if self.damaged_copies:
            raise CorruptError("a head of the parity file is damaged, or the file was cut off")
        for g in self.groups:
            data_blocks = g.shape.k * g.shape.columns
            if [c for row in g.rows for c in _crcs(row, g.shape.block)] != list(g.checks[data_blocks:]):
                raise CorruptError("some block of the parity file is not what was written")

    def covers(self, data: ByteSource) -> bool:
        """Return whether it is the parity of these bytes. One row is in memory at a time."""
        if len(data) != self.size:
            return False
        for g in self.groups:
            for number, row in enumerate(_rows(data, g.ranges, g.shape)):
                first = number * g.shape.columns
                if _crcs(row, g.shape.block) != list(g.checks[first : first + g.shape.columns]):
                    return False
        return True

    def restore(self, sources: Sequence[ByteSource]) -> tuple[bytes, int]:
        """Return the pack as far as it can be restored, and the number of blocks still lost.

        ``sources``: remains of the pack, best first; empty for a pack that is gone. Zero lost blocks prove
        nothing: the caller compares the digest. Memory: the pack, twice at the end, plus the bytes of the
        second group.
        """
        there = sum(map(len, sources)) + sum(len(row) for g in self.groups for row in g.rows)
        if there * MAX_ROWS < self.size:  # less than one row: nothing can come back, so allocate nothing
            shape = self.groups[0].shape
            return bytes(sources[0][:]) if sources else b"", shape.k * shape.columns
        shape = self.groups[0].shape
        pack = bytearray(shape.k * shape.row)  # group 0 as laid out: the pack, then zeros
        for at in range(0, min(self.size, len(sources[0])) if sources else 0, PIECE):
            found = sources[0][at : min(at + PIECE, self.size)]
            pack[at : at + len(found)] = found
        lost = before = -1
        while lost:
            lost = sum(_restore(g, pack, sources[1:]) for g in self.groups)
            if lost == before:
                break
            before = lost
        left = _restore(self.groups[0], pack, ())
        del pack[self.size :]
        return bytes(pack), left


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """Return the ranges sorted, with adjacent ones joined."""
    out: list[Range] = []
    for r in sorted(ranges):
        if out and out[-1].offset + out[-1].size == r.offset:
            out[-1] = Range(out[-1].offset, out[-1].size + r.size)
        elif r.size:
            out.append(r)
    return out


def _group(data: ByteSource, ranges: Sequence[Range], share: int) -> Group:
    """Return the group over some ranges.

    Parity row p is the sum over j of 1 / ((255 - p) xor j) times data row j, in GF(256).
    """
    shape = GroupLayout.of(sum(r.size for r in ranges), share)
    totals = [np.zeros(shape.row, "<u8") for _ in range(0, shape.m, ABREAST)]
    checks: list[int] = []
    for j, row in enumerate(_rows(data, ranges, shape)):
        checks += _crcs(row, shape.block)
        for n, total in enumerate(totals):
            _add(total, _products(j, ABREAST * n), np.frombuffer(row, np.uint8))
    rows = [totals[p // ABREAST].view(np.uint8)[p % ABREAST :: ABREAST].tobytes() for p in range(shape.m)]
    return Group(ranges, shape, checks + [c for row in rows for c in _crcs(row, shape.block)], rows)


def _add(total: Words, products: Words, row: Bytes) -> None:
    """Add a data row, (n,), to the parity rows interleaved in ``total``, in parts that fit a cache."""
    found = np.empty(min(len(row), AT_ONCE), "<u8")
    for at in range(0, len(row), AT_ONCE):
        part = row[at : at + AT_ONCE]
        total[at : at + AT_ONCE] ^= np.take(products, part, out=found[: len(part)], mode="clip")


@functools.lru_cache(1024)
def _products(j: int, first: int) -> Words:
    """Return the products, (256,), of each byte of data row j for 8 parity rows from ``first`` on.

    Each number holds one product per byte.
    """
    tables = [np.frombuffer(_table(_coefficient(p, j)), np.uint8) for p in range(first, first + ABREAST)]
    return np.stack(tables, 1).copy().view("<u8").reshape(256)


def _rows(data: ByteSource, ranges: Sequence[Range], shape: GroupLayout) -> Iterator[bytes]:
    """Yield data rows padded with zeros, one at a time, so that none is copied before it is needed."""
    laid = _Laid(data, ranges)
    for at in range(0, shape.k * shape.row, shape.row):
        yield laid.read(at, shape.row)


class _Laid:
    """Ranges of a pack one after the other, with zeros after them and for missing bytes."""

    def __init__(self, data: ByteSource, ranges: Sequence[Range]):
        self._data, self._ranges = data, ranges
        self._starts = list(accumulate((r.size for r in ranges), initial=0))

    def read(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes from ``at`` on."""
        parts: list[bytes] = []
        number = bisect_right(self._starts, at, hi=len(self._ranges)) - 1
        while size and number < len(self._ranges) and at < self._starts[-1]:
            r, skip = self._ranges[number], at - self._starts[number]
            take = min(size, r.size - skip)
            begin = r.offset + skip
            parts.append(bytes(self._data[begin : begin + take]).ljust(take, b"\0"))
            at, size, number = at + take, size - take, number + 1
        return parts[0] if len(parts) == 1 and not size else b"".join([*parts, bytes(size)])


def _crcs(row: bytes | memoryview, block: int) -> list[int]:
    return [zlib.crc32(row[at : at + block]) for at in range(0, len(row), block)]


def _restore(group: Group, pack: bytearray, more: Sequence[ByteSource]) -> int:
    """Restore the blocks that a group can, in place, and return the number that stay lost.

    ``pack``: padded with zeros to whole rows of group 0.
    """
    shape = group.shape
    whole = pack  # right for group 0, whose one range is the pack
    if len(group.ranges) != 1 or group.ranges[0].offset or shape.k * shape.row != len(pack):
        whole = bytearray().join(_rows(pack, group.ranges, shape))
    bad = _bad(whole, group)
    for source in more:
        laid = _Laid(source, group.ranges)
        for n in sorted(bad):
            found = laid.read(n * shape.block, shape.block)
            if zlib.crc32(found) == group.checks[n]:
                whole[n * shape.block : (n + 1) * shape.block] = found
                bad.remove(n)
    if not bad:
        _scatter(whole, group.ranges, pack)
        return 0
    good = _sound_rows(group)
    by_lost: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for column in range(shape.columns):
        lost = tuple(row for row in range(shape.k) if row * shape.columns + column in bad)
        if lost and len(lost) <= len(good[column]):
            by_lost.setdefault((lost, tuple(sorted(good[column])[: len(lost)])), []).append(column)
    for (lost, rows), columns in by_lost.items():
        _solve(whole, group, lost, rows, columns)
    _scatter(whole, group.ranges, pack)
    return len(_bad(whole, group))


def _sound_rows(group: Group) -> list[set[int]]:
    """Return for each column the parity rows whose block there is sound.

    A file that was cut off lacks some rows.
    """
    shape, good = group.shape, [set[int]() for _ in range(group.shape.columns)]
    for number, row in enumerate(group.rows):
        wanted = group.checks[(shape.k + number) * shape.columns :]
        for column, (found, check) in enumerate(zip(_crcs(row, shape.block), wanted, strict=False)):
            if column < shape.columns and found == check:
                good[column].add(number)
    return good


def _bad(whole: bytes | bytearray, group: Group) -> set[int]:
    """Return the numbers of the damaged data blocks."""
    return {
        n
        for n, (found, wanted) in enumerate(
            zip(_crcs(memoryview(whole), group.shape.block), group.checks, strict=False)
        )
        if found != wanted
    }


def _scatter(whole: bytearray, ranges: Sequence[Range], pack: bytearray) -> None:
    if whole is pack:
        return
    at = 0
    for r in ranges:
        pack[r.offset : r.offset + r.size] = whole[at : at + r.size]
        at += r.size


def _solve(
    whole: bytearray, group: Group, lost: Sequence[int], rows: Sequence[int], columns: Sequence[int]
) -> None:
    """Restore lost data rows of some columns from as many parity rows.

    The sound rows are subtracted, then the equations solved.
    """
    shape = group.shape
    data = np.frombuffer(whole, np.uint8).reshape(shape.k, shape.columns, shape.block)
    rest = [_blocks(group.rows[p], shape, columns) for p in rows]
    for j in set(range(shape.k)) - set(lost):
        block = data[j, columns].tobytes()
        for p, out in zip(rows, rest, strict=True):
            out ^= _times(_coefficient(p, j), block)
    inverse = _inverse([[_coefficient(p, j) for j in lost] for p in rows])
    plain = [out.tobytes() for out in rest]
    for j, weights in zip(lost, inverse, strict=True):
        found = np.zeros(len(columns) * shape.block, np.uint8)
        for weight, one in zip(weights, plain, strict=True):
            found ^= _times(weight, one)
        data[j, columns] = found.reshape(len(columns), shape.block)


def _blocks(row: memoryview | bytes, shape: GroupLayout, columns: Sequence[int]) -> Bytes:
    """Return some blocks of a parity row, one after the other."""
    blocks = (row[c * shape.block : (c + 1) * shape.block] for c in columns)
    return np.frombuffer(bytearray(b"".join(blocks)), np.uint8)


def _coefficient(p: int, j: int) -> int:
    """Return the coefficient of parity row p and data row j.

    The coefficients form a Cauchy matrix, of which every square part can be inverted.
    """
    return _reciprocal((255 - p) ^ j)


def _times(factor: int, data: bytes) -> Bytes:
    return np.frombuffer(data.translate(_table(factor)), np.uint8)


def product(a: int, b: int) -> int:
    """Return the product in GF(256) modulo x^8 + x^4 + x^3 + x^2 + 1.

    >>> product(2, 0x80)
    29
    """
    out = 0
    while b:
        out ^= a if b & 1 else 0
        a = a << 1 ^ (POLYNOMIAL if a & 0x80 else 0)
        b >>= 1
    return out


@functools.cache
def _powers() -> tuple[list[int], list[int]]:
    """Return the powers of 2, twice around, and the exponent of each value."""
    powers = [1]
    while len(powers) < 510:
        powers.append(product(powers[-1], 2))
    return powers, [0, *(powers.index(v) for v in range(1, 256))]


@functools.cache
def _table(factor: int) -> bytes:
    """Return the 256 products of a factor other than zero."""
    powers, logs = _powers()
    return bytes([0, *(powers[logs[factor] + logs[b]] for b in range(1, 256))])


@functools.cache
def _reciprocal(a: int) -> int:
    powers, logs = _powers()
    return powers[255 - logs[a]]


def _inverse(matrix: list[list[int]]) -> list[list[int]]:
    """Return the inverse of a square part of the Cauchy matrix, by Gauss and Jordan."""
    n = len(matrix)
    rows = [[*row, *(int(i == j) for j in range(n))] for i, row in enumerate(matrix)]
    for i in range(n):
        pivot = next(r for r in range(i, n) if rows[r][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        scale = _reciprocal(rows[i][i])
        rows[i] = [product(scale, v) for v in rows[i]]
        for r in range(n):
            if r != i and (factor := rows[r][i]):
                rows[r] = [a ^ product(factor, b) for a, b in zip(rows[r], rows[i], strict=True)]
    return [row[n:] for row in rows]


def _back(data: memoryview) -> int:
    """Return the offset of the second head; -1 where the tail does not say."""
    if len(data) < TAIL.size:
        return -1
    size, end = TAIL.unpack(data[-TAIL.size :])
    return len(data) - TAIL.size - size if end == END else -1


def _read(data: memoryview, at: int) -> tuple[Parity, int]:
    """Return the content of a head and its bytes.

    Counts are checked against the bytes present before they are used. Raises CorruptError, VersionError.
    """
    if at < 0 or at + HEAD.size + SIZE > len(data):
        raise CorruptError(f"a parity file of {len(data)} bytes was cut off")
    magic, version, reserved, size, pack, pack_size, count = HEAD.unpack(data[at : at + HEAD.size])
    if magic != MAGIC:
        raise CorruptError(f"expected a parity file to start with {MAGIC!r}, found {bytes(magic)!r}")
    if not HEAD.size + SIZE <= size <= len(data) - at:
        raise CorruptError(f"a head of {size} bytes does not fit the parity file: damaged")
    body = data[at : at + size - SIZE]
    if digest(PERSON, body) != data[at + size - SIZE : at + size]:
        raise CorruptError("the head of the parity file does not match its checksum: damaged")
    read_groups = VERSIONS.of(version)
    if any(reserved):
        raise VersionError("the parity file has fields of a newer version: use a newer pltz")
    return Parity(pack, pack_size, read_groups(body, count, pack_size)), size


def _read_groups(body: memoryview, count: int, pack_size: int) -> list[Group]:
    """Return the groups of a head of version 1, whose digest is right."""
    if pack_size > MAX_PACK or not count or count * GROUP.size > len(body):
        raise CorruptError(f"{count} groups over {pack_size} bytes: not a parity file of ours")
    groups, offset = [], HEAD.size
    for _ in range(count):
        group, offset = _read_group(body, offset, pack_size)
        groups.append(group)
    if offset != len(body) or groups[0].ranges != [Range(0, pack_size)]:
        raise CorruptError("the groups of the parity file do not fill its head: damaged")
    return groups


VERSIONS = Readers("the parity file", {VERSION: _read_groups})


def _read_group(body: memoryview, at: int, pack_size: int) -> tuple[Group, int]:
    if at + GROUP.size > len(body):
        raise CorruptError("the head of the parity file ends in a group: damaged")
    ranges, block, k, m, columns = GROUP.unpack(body[at : at + GROUP.size])
    at += GROUP.size
    checks = at + ranges * RANGE.size
    end = checks + 4 * (k + m) * columns
    if not (k and m and 0 < block <= MAX_BLOCK and columns) or k + m > MAX_ROWS or end > len(body):
        raise CorruptError(f"a group of {k} and {m} rows of {columns} blocks does not fit: damaged")
    found = [Range(*r) for r in RANGE.iter_unpack(body[at:checks])]
    total = 0
    for r in found:
        total += r.size
        if r.offset + r.size > pack_size or total > pack_size:
            raise CorruptError("a group of the parity file reaches behind its pack: damaged")
    shape = GroupLayout(block, k, m, columns)
    filled = (k - 1) * shape.row < total and (
        columns - 1
    ) * block < total  # no row, no column is padding alone
    if not (filled and total <= k * shape.row):
        raise CorruptError(f"{k} rows of {shape.row} bytes do not hold {total} bytes: damaged")
    return Group(found, shape, np.frombuffer(body[checks:end], "<u4").tolist(), []), end


def _with_rows(groups: Sequence[Group], data: memoryview, at: int) -> list[Group]:
    """Return the groups with their parity rows.

    Rows that the file no longer has are short, and their checks show it.
    """
    out = []
    for g in groups:
        rows = []
        for _ in range(g.shape.m):
            rows.append(data[at : at + g.shape.row])
            at += g.shape.row
        out.append(Group(g.ranges, g.shape, g.checks, rows))
    return out
