"""Prefix sums of crc32: the sum of any range of a buffer in the time of two blocks, however long the range.

A reader that searches for records after damage needs the sum of every range that claims to be one. Claims may
overlap and be as long as the pack. Summing each from its first byte would take quadratic time on hostile
input.

So sums up to the end of each block are kept, computed as far as they are needed. The crc32 is linear: two sums
over the same bytes differ by a linear map of the difference of their start values. That map depends only on the
number of bytes.

    >>> data = bytes(range(256)) * 100
    >>> PrefixCrcs(data).of(5, 20000, 7) == zlib.crc32(data[5:20000], 7)
    True
"""

from __future__ import annotations

import zlib
from array import array
from functools import cache

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.container.block import ByteSource

BLOCK = 4096  # bytes

Ints = npt.NDArray[np.int64]


class PrefixCrcs:
    """The sums of one buffer."""

    def __init__(self, data: ByteSource):
        self._data = data
        self._known = array("L", [0])  # sum up to the end of each block

    def of(self, begin: int, end: int, seed: int = 0) -> int:
        """Return the crc32, begun with ``seed``, of the bytes from ``begin`` to ``end``, which must exist."""
        first, last = -(-begin // BLOCK), end // BLOCK
        if last <= first + 1:
            return zlib.crc32(self._data[begin:end], seed)
        for block in range(len(self._known) - 1, last):
            self._known.append(zlib.crc32(self._data[block * BLOCK : (block + 1) * BLOCK], self._known[-1]))
        head = zlib.crc32(self._data[begin : first * BLOCK], seed)
        whole = self._known[last] ^ _carried(head ^ self._known[first], last - first)
        return zlib.crc32(self._data[last * BLOCK : end], whole)


def _carried(difference: int, blocks: int) -> int:
    """Return the difference of two sums after this many more blocks."""
    for power in range(blocks.bit_length()):
        if blocks >> power & 1:
            difference = _applied(_map(power), difference)
    return difference


@cache
def _map(power: int) -> tuple[int, ...]:
    """Return the images of the 32 bits over 2^power blocks."""
    if power:
        half = _map(power - 1)
        return tuple(_applied(half, image) for image in half)
    block = bytes(BLOCK)
    return tuple(zlib.crc32(block, 1 << bit) ^ zlib.crc32(block) for bit in range(32))


def _applied(images: tuple[int, ...], bits: int) -> int:
    out = 0
    for image in images:
        if bits & 1:
            out ^= image
        bits >>= 1
    return out


def checks(data: bytes | memoryview, begins: Ints, ends: Ints, seed: int, at: int) -> Ints:
    """Return the crc32 of each record, (N,), over salt, place as u64 and its bytes.

    ``begins``, ``ends``: (N,) byte offsets in ``data``, which lies at offset ``at`` of its pack; ``seed``:
    crc32 of the salt.
    """
    seeds = _seeds(seed, begins + at)
    view = memoryview(data)
    spans = zip(begins.tolist(), ends.tolist(), seeds.tolist(), strict=True)
    return np.array([zlib.crc32(view[a:b], seed) for a, b, seed in spans], np.int64)


def _seeds(seed: int, offsets: Ints) -> Ints:
    """Return the crc32, (N,), begun with ``seed``, of each offset, (N,), as u64."""
    state = np.full(len(offsets), seed ^ 0xFFFFFFFF, np.int64)
    for byte in range(8):
        state = _crc_table()[(state ^ offsets >> 8 * byte) & 0xFF] ^ state >> 8
    return state ^ 0xFFFFFFFF


@cache
def _crc_table() -> Ints:
    return np.array([zlib.crc32(bytes([n]), 0xFFFFFFFF) ^ 0xFFFFFFFF for n in range(256)], np.int64)
