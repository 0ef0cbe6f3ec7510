"""Columns: numbers as the least of them, a width, and what each exceeds the least by. Spec: FORMAT.md, "Columns".

    >>> data = write_column([100, 103, 101])
    >>> data.hex(), read_column(data, 0, 3)
    ('64021c', ([100, 103, 101], 3))
"""

from __future__ import annotations

from collections.abc import Sequence

from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import MAX_VALUE, read_varint, write_varint

MAX_WIDTH = 64  # bits


def write_column(values: Sequence[int]) -> bytes:
    """Return one number or more, 0 to 2^64 - 1, as a column."""
    least = min(*values, MAX_VALUE)
    width = (max(values) - least).bit_length()
    packed = sum(value - least << width * n for n, value in enumerate(values)) if width else 0
    return write_varint(least) + bytes([width]) + packed.to_bytes(-(-width * len(values) // 8), "little")


def read_column(data: bytes, at: int, count: int, most: int = MAX_WIDTH) -> tuple[list[int], int]:
    """Return the numbers of the column at ``data[at]``, one or more, and the offset after it.

    ``most``: bits of a number. Raises CorruptError.
    """
    least, at = read_varint(data, at)
    width = data[at] if at < len(data) else most + 1
    end = at + 1 + -(-width * count // 8)
    if width > most or end > len(data):
        raise CorruptError("a column of numbers is cut off, or too wide: damaged")
    packed, mask = int.from_bytes(data[at + 1 : end], "little"), (1 << width) - 1
    if packed >> width * count:
        raise CorruptError("a column of numbers is not filled up with zeros: damaged")
    return [least + (packed >> width * n & mask) for n in range(count)] if width else [least] * count, end
