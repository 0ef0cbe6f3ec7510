"""Integers, columns, blocks, fallback bytes and copies, as plt_codec/FORMAT.md describes them."""

import struct
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any
from zlib import crc32

import zstandard

MAX_BODY, MAX_HEAD = (1 << 28) + (1 << 20), 1 << 18  # bytes
PIECE = 4096  # bytes that fill a piece of a body
LEAST_COPY, MANY_COPIES = 32, 8


class Damaged(Exception):
    """Bytes that break a rule of the format."""


class Newer(Exception):
    """Bytes of a version that this reader does not know."""


def refuse(wrong: object, why: str, error: type[Exception] = Damaged) -> None:
    """Raise an error where something is wrong."""
    if wrong:
        raise error(why)


def first(read: Callable[[Any], Any], copies: Iterable[Any]) -> Any:
    """Return what is read of the first of several copies that is not damaged."""
    damage = Damaged("no copy is there")
    for copy in copies:
        try:
            return read(copy)
        except Damaged as error:
            damage = error
    raise damage


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
        refuse(self.at != len(self.data), f"{len(self.data) - self.at} bytes left over")

    def number(self, size: int) -> int:
        """Return an integer of so many bytes."""
        return int.from_bytes(self.take(size), "little")

    def unpack(self, form: str) -> tuple[Any, ...]:
        """Return the next fields, as `struct` names them: B, H, I and Q are integers, 16s is bytes."""
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))

    def varint(self) -> int:
        """Return a LEB128 integer."""
        value = shift = 0
        byte = 128
        while byte > 127:
            byte = self.number(1)
            value |= (byte & 127) << shift
            shift += 7
        refuse(value >> 32 or shift > 35 or (shift > 7 and not byte), "a varint longer than needed, or above 32 bits")
        return value

    def sized(self) -> bytes:
        """Return bytes behind their number."""
        return self.take(self.varint())


class Bits:
    """Bits of bytes, each byte from its lowest bit on."""

    def __init__(self, fields: Fields) -> None:
        self._fields, self._left = fields, ""

    def take(self, count: int) -> int:
        """Return a number of so many bits, in the same order."""
        while len(self._left) < count:
            self._left += f"{self._fields.number(1):08b}"[::-1]
        found, self._left = self._left[:count], self._left[count:]
        return int("0" + found[::-1], 2)


def u32(numbers: Iterable[int]) -> bytes:
    """Return integers as four bytes each."""
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def column(fields: Fields, count: int, most: int = 64) -> list[int]:
    """Return the numbers of a column, each at most so many bits above the least one."""
    least, width = fields.varint(), fields.number(1)
    refuse(width > most, f"a column of {width} bits")
    bits = Bits(fields)
    found = [least + bits.take(width) for _ in range(count)]
    refuse(bits.take(-width * count % 8) > 0, "a column that is not filled up with zeros")
    return found


def signed(number: int) -> int:
    """Return a number of either sign, of one of none: 0, -1, 1, -2 and so on."""
    return -(number + 1) // 2 if number % 2 else number // 2


# A block: a number per record in each column, its parts, each record's bitstring, and where it ends.
Block = namedtuple("Block", "columns parts bitstrings end")


def block(data: bytes, at: int, salt: bytes, known: Collection[int]) -> Block:
    """Return the block at an offset. ``known``: the numbers of columns that its file may have."""
    outer = Fields(data, at)
    refuse(outer.take(2) != salt[:2], "no block begins here")
    head_size, body_size = outer.varint(), outer.varint()
    refuse(head_size > MAX_HEAD or body_size > MAX_BODY, "a block over its limits")
    head = Fields(outer.take(head_size))
    check = crc32(salt + struct.pack("<Q", at) + data[at : outer.at])
    refuse(outer.number(4) != check, "the head of a block differs from its check")
    count, present = head.unpack("BH")
    refuse(not 1 <= count <= 128, f"a block of {count} records")
    numbers = [number for number in range(16) if present >> number & 1]
    refuse(not set(numbers) <= set(known), "a block with a column of a newer version", Newer)
    columns = {number: [0] * count for number in known}
    columns |= {number: column(head, count, 32) if count > 1 else [head.varint()] for number in numbers}
    refuse(sum(columns[5]) != body_size, "bitstrings that do not fill their block")
    bitstrings, pieces = [outer.take(size) for size in columns[5]], [b""]
    for one in bitstrings:
        pieces += [b""] if len(pieces[-1]) >= PIECE else []
        pieces[-1] += one
    parts, checks = head.rest(), u32(map(crc32, filter(None, pieces)))
    refuse(not parts.endswith(checks), "a piece of a body differs from its check")
    return Block(columns, Fields(parts.removesuffix(checks)), bitstrings, outer.at)


def fallback(data: bytes, count: int, dictionary: bytes = b"") -> bytes:
    """Return the content of fallback bytes. The library refuses blocks over the window, and bytes behind the last."""
    if len(data) == count:
        return data
    refuse(len(data) > count, "fallback bytes longer than what they hold")
    window = min(27, max(10, (count - 1).bit_length()))
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([(window - 10) << 3]) + data
    reader = zstandard.ZstdDecompressor(zstandard.ZstdCompressionDict(dictionary) if dictionary else None)
    try:
        found = reader.decompress(frame, count + 1, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Damaged(f"zstd: {error}") from error
    refuse(len(found) != count, f"fallback bytes of {len(found)} bytes and not {count}")
    return found


Copy = tuple[int, int, int]  # literals before it, length, distance


def copies_of(fields: Fields, count: int, past: int) -> list[Copy]:
    """Return the copies at the front of a frame of so many tokens. ``past``: tokens before it."""
    n = fields.varint()
    refuse(not 1 <= n <= count // LEAST_COPY, f"{n} copies in {count} tokens")
    columns = fields
    if n >= MANY_COPIES:
        size, coded = fields.varint(), fields.sized()
        refuse(not 3 * n <= size <= 15 * n, "columns of copies of a wrong size")
        columns = Fields(fallback(coded, size))
    gaps, lengths, distances = ([columns.varint() for _ in range(n)] for _ in range(3))
    refuse(n >= MANY_COPIES and columns.at < len(columns.data), "bytes behind the columns of copies")
    copies, at, distance = list[Copy](), past, 0
    for gap, length, other in zip(gaps, lengths, distances, strict=True):
        at, distance = at + gap, other or distance
        refuse(not 1 <= distance <= at, "a copy without a distance, or from before the beginning")
        copies.append((gap, length + LEAST_COPY, distance))
        at += length + LEAST_COPY
    refuse(at > past + count, "copies beyond the count")
    return copies


def joined(copies: Sequence[Copy], literals: Sequence[int], past: Sequence[int]) -> list[int]:
    """Return a sequence of its literals and copies. ``past``: what stands before it."""
    found, at = list(past), 0
    for gap, length, distance in copies:
        found += literals[at : at + gap]
        at += gap
        for _ in range(length):
            found.append(found[-distance])
    return [*found[len(past) :], *literals[at:]]
