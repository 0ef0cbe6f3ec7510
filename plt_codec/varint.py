"""Varints: unsigned integers in as few bytes as they need (LEB128). Spec: FORMAT.md, first section.

Each value of at most 32 bits has exactly one encoding. A reader refuses any other, so no two files mean the same.
"""

from __future__ import annotations

from pltz.plt_codec.errors import CorruptError

MAX_VALUE = (1 << 32) - 1
MAX_BYTES = 5


def write_varint(value: int) -> bytes:
    """Return the shortest LEB128 encoding of ``value``, which is at most 2^32 - 1.

    >>> write_varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return the value at ``offset`` and the offset after it.

    Raises:
        CorruptError: the varint is cut off, longer than it must be, or over 2^32 - 1.

    >>> read_varint(bytes.fromhex("ac02"), 0)
    (300, 2)
    """
    field = data[offset : offset + MAX_BYTES]
    if field and field[0] < 0x80:  # most of them
        return field[0], offset + 1
    if len(field) > 1 and 0 < field[1] < 0x80:
        return field[0] & 0x7F | field[1] << 7, offset + 2
    value = 0
    for i, byte in enumerate(field):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if (i and not byte) or value > MAX_VALUE:
                raise CorruptError("a varint is longer than it must be or over 32 bits: the file is damaged")
            return value, offset + i + 1
    raise CorruptError("a varint does not end where it should: the file is damaged")
