"""Integers, columns, blocks, fallback bytes and copies, as plt_codec/FORMAT.md describes them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

import zstandard

MAX_BODY, MAX_HEAD = (1 << 28) + (1 << 20), 1 << 18  # bytes
PIECE = 4096  # bytes that fill a piece of a body
LEAST_COPY, MANY_COPIES = 32, 8
SHORTEST_PREFIX, DICTIONARY_MAGIC = 8, b"\x37\xa4\x30\xec"


class Damaged(Exception):
    """Bytes that break a rule of the format."""


class Newer(Exception):
    """Bytes of a version that this reader does not know."""


class Fields:
    """Bytes that are read from the front: the fields of a header, an index or a frame."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        if not 0 <= count <= len(self.data) - self.at:
            raise Damaged(f"expected {count} bytes at {self.at}, found {len(self.data) - self.at}")
        self.at += count
        return self.data[self.at - count : self.at]

    def rest(self) -> bytes:
        """Return all bytes that are left."""
        return self.take(len(self.data) - self.at)

    def end(self) -> None:
        """Refuse bytes that are left."""
        if self.at != len(self.data):
            raise Damaged(f"{len(self.data) - self.at} bytes left over")

    def number(self, size: int) -> int:
        """Return an integer of so many bytes."""
        return int.from_bytes(self.take(size), "little")

    def numbers(self, size: int, count: int) -> list[int]:
        """Return integers of so many bytes each."""
        return [self.number(size) for _ in range(count)]

    def zeros(self, size: int) -> bytes:
        """Return reserved bytes, which are zero."""
        if any(found := self.take(size)):
            raise Newer("reserved bytes that are not zero")
        return found

    def varint(self) -> int:
        """Return a LEB128 integer."""
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
            if shift == 35:
                raise Damaged("varint of more than 5 bytes")
        if value >= 1 << 32 or (shift > 7 and not byte):
            raise Damaged("varint longer than needed, or above 32 bits")
        return value


class LowBits:
    """Bits of bytes, each byte from its lowest bit on."""

    def __init__(self, fields: Fields) -> None:
        self._fields, self._held, self._count = fields, 0, 0

    def take(self, count: int) -> int:
        """Return a number of so many bits, the lowest first."""
        while self._count < count:
            self._held |= self._fields.number(1) << self._count
            self._count += 8
        value = self._held & ((1 << count) - 1)
        self._held >>= count
        self._count -= count
        return value


def column(fields: Fields, shape: int, count: int) -> list[int]:
    """Return the numbers of a column, less the least one."""
    bits = LowBits(fields)
    if shape <= 33:
        return [bits.take(shape) for _ in range(count)]
    order = shape - 64
    if not 0 <= order <= 33:
        raise Damaged(f"a column of shape {shape}")
    widths = []
    for _ in range(count):
        width = order
        while not bits.take(1):
            width += 1
        if width > 33:
            raise Damaged(f"an exp-Golomb code of {width} bits")
        widths.append(width)
    return [(1 << width) + bits.take(width) - (1 << order) for width in widths]


class Block(NamedTuple):
    """A block: a number per record in each column, its parts, and where each bitstring is."""

    records: int
    columns: dict[int, list[int]]
    parts: Fields
    spans: list[tuple[int, int]]  # of each record's bitstring: begin and end in the file
    body: int  # where the body begins
    end: int


def block(data: bytes, at: int, salt: bytes, known: Iterable[int]) -> Block:
    """Return the block at an offset. ``known``: the numbers of columns that its file may have."""
    outer = Fields(data, at)
    if outer.take(2) != salt[:2]:
        raise Damaged("no block begins here")
    head_size, body_size = outer.varint(), outer.varint()
    if head_size > MAX_HEAD or body_size > MAX_BODY:
        raise Damaged("a block over its limits")
    head = outer.take(head_size)
    if crc32(salt + struct.pack("<Q", at) + data[at : outer.at]) != outer.number(4):
        raise Damaged("the head of a block differs from its check")
    fields = Fields(head)
    count, present = fields.number(1), fields.number(2)
    if not 1 <= count <= 128:
        raise Damaged(f"a block of {count} records")
    numbers = [number for number in range(16) if present >> number & 1]
    if not set(numbers) <= set(known):
        raise Newer("a block with a column of a newer version")
    rate = fields.number(2) if 5 in numbers and count > 1 else 0
    shapes = [(fields.varint(), fields.number(1) if count > 1 else 0) for _ in numbers]
    columns = {number: [0] * count for number in known}
    for number, (least, shape) in zip(numbers, shapes, strict=True):
        columns[number] = [least + more for more in (column(fields, shape, count) if count > 1 else [0])]
    sizes = columns[5]
    if rate:
        away = [value // 2 if value % 2 == 0 else -(value + 1) // 2 for value in sizes]
        sizes = columns[5] = [(n * rate >> 12) + d for n, d in zip(columns[4], away, strict=True)]
    if min(sizes) < 0 or sum(sizes) != body_size:
        raise Damaged("bitstrings that do not fill their block")
    spans, place = [], outer.at
    for size in sizes:
        spans.append((place, place + size))
        place += size
    pieces = _pieces(spans, outer.at)
    parts_end = head_size - 4 * len(pieces)
    if parts_end < fields.at:
        raise Damaged("a head without its checks of pieces")
    checks = struct.unpack(f"<{len(pieces)}I", head[parts_end:])
    outer.take(body_size)
    for (begin, end), check in zip(pieces, checks, strict=True):
        if crc32(data[begin:end]) != check:
            raise Damaged("a piece of a body differs from its check")
    return Block(count, columns, Fields(head[fields.at : parts_end]), spans, outer.at - body_size, outer.at)


def _pieces(spans: list[tuple[int, int]], begin: int) -> list[tuple[int, int]]:
    pieces, end = [], begin
    for _, end in spans:
        if end - begin >= PIECE:
            pieces.append((begin, end))
            begin = end
    return [*pieces, (begin, end)] if end > begin else pieces


def fallback(data: bytes, count: int, dictionary: bytes = b"", prefix: bytes = b"") -> bytes:
    """Return the content of fallback bytes. ``prefix``: content in place of the dictionary."""
    if len(data) == count:
        return data
    if len(data) > count:
        raise Damaged("fallback bytes longer than what they hold")
    window = min(27, max(10, (count - 1).bit_length()))
    _walk_blocks(data, count, min(1 << window, 1 << 17))
    known = None
    if len(prefix) >= SHORTEST_PREFIX and not prefix.startswith(DICTIONARY_MAGIC):
        known = zstandard.ZstdCompressionDict(prefix, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    elif dictionary:
        known = zstandard.ZstdCompressionDict(dictionary)
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([(window - 10) << 3]) + data
    try:
        found = zstandard.ZstdDecompressor(dict_data=known).decompress(frame, max_output_size=count + 1)
    except zstandard.ZstdError as error:
        raise Damaged(f"zstd: {error}") from error
    if len(found) != count:
        raise Damaged(f"fallback bytes of {len(found)} bytes and not {count}")
    return found


def _walk_blocks(data: bytes, count: int, most: int) -> None:
    """Refuse blocks of Zstandard that do not end where the bytes end, or that cannot hold so many bytes."""
    fields, holds, last = Fields(data), 0, 0
    while not last:
        head = fields.number(3)
        last, kind, size = head & 1, head >> 1 & 3, head >> 3
        if kind == 3 or size > most:
            raise Damaged("a block of zstd over its limits")
        holds += most if kind == 2 else size
        fields.take(1 if kind == 1 else size)
    fields.end()
    if holds < count:
        raise Damaged("blocks of zstd that hold less than they claim")


# ---- copies

Copy = tuple[int, int, int]  # literals before it, length, distance


def copies_of(fields: Fields, count: int, past: int) -> list[Copy]:
    """Return the copies at the front of a frame of so many tokens. ``past``: tokens before it, at most."""
    n = fields.varint()
    if not 1 <= n <= count // LEAST_COPY:
        raise Damaged(f"{n} copies in {count} tokens")
    columns = fields
    if n >= MANY_COPIES:
        size, coded = fields.varint(), fields.varint()
        if not 3 * n <= size <= 15 * n:
            raise Damaged("columns of copies of a wrong size")
        columns = Fields(fallback(fields.take(coded), size))
    gaps, lengths, distances = ([columns.varint() for _ in range(n)] for _ in range(3))
    if columns is not fields:
        columns.end()
    lengths = [length + LEAST_COPY for length in lengths]
    for place, distance in enumerate(distances):
        if not distance and not place:
            raise Damaged("a first copy without a distance")
        distances[place] = distance or distances[place - 1]
        if distances[place] > past + sum(gaps[: place + 1]) + sum(lengths[:place]):
            raise Damaged("a copy from before the beginning")
    if sum(gaps) + sum(lengths) > count:
        raise Damaged("copies beyond the count")
    return list(zip(gaps, lengths, distances, strict=True))


def joined(copies: Sequence[Copy], literals: Sequence[int], past: Sequence[int]) -> list[int]:
    """Return a sequence of its literals and copies. ``past``: what stands before it."""
    found, at = list(past), 0
    for gap, length, distance in copies:
        found += literals[at : at + gap]
        at += gap
        if distance > len(found):
            raise Damaged("a copy from before the beginning")
        for _ in range(length):
            found.append(found[-distance])
    return [*found[len(past) :], *literals[at:]]
