"""The columns of a container's index: N sizes, N lengths, N checks in less than 8 bytes per session.

`encode` and `decode` handle the index of a .pltz file. Spec: FORMAT.md, "Index".

A column of u32 is cut into byte planes (plane b is byte b of every entry). The low planes are noise and stay
as they are. The high ones repeat themselves and are packed, each by itself, where that is shorter.

4300 sessions take 2.6 bytes each for size and length. Row by row, varints take 3.9; packing all planes at
once takes 3.1. Decoding is a few array operations, without one Python object per session.

    >>> sizes, lengths = np.array([800, 1600], dtype=np.uint32), np.array([20, 300], dtype=np.uint32)
    >>> index = encode(sizes, lengths, checks=sizes)
    >>> len(index), decode(index, 2)[1].tolist()
    (18, [20, 300])
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import read_varint, write_varint
from pltz.plt_codec.zstd import Fallback

MAX_PLANES = 4

U32 = npt.NDArray[np.uint32]


def encode(sizes: U32, lengths: U32, checks: U32) -> bytes:
    """Return the index of N sessions.

    Args:
        sizes, lengths, checks: (N,) each; the container gives them their meaning.
    """
    if not len(sizes):
        return b""
    columns = [_planes(sizes), _planes(lengths)]
    fallback = Fallback()
    mask, body = 0, []
    for bit, plane in enumerate(columns[0] + columns[1]):
        packed = fallback.compress(plane)
        record = write_varint(len(packed)) + packed
        if len(record) < len(plane):
            mask |= 1 << bit
            body.append(record)
        else:
            body.append(plane)
    head = bytes([len(columns[0]) | len(columns[1]) << 4, mask])
    return checks.astype("<u4").tobytes() + head + b"".join(body)


def decode(index: bytes, sessions: int) -> tuple[U32, U32, U32]:
    """Undo `encode`: return sizes, lengths and checks, (N,) each.

    Work and memory are bounded by the index itself, whose checks alone take 4 bytes per session.

    Raises:
        CorruptError: these bytes are not the index of ``sessions`` sessions.
    """
    if not sessions and not index:
        empty = np.zeros(0, dtype=np.uint32)
        return empty, empty, empty
    offset = 4 * sessions
    if not sessions or len(index) < offset + 2:
        raise CorruptError(
            f"an index of {len(index)} bytes is not one of {sessions} sessions: the file is damaged"
        )
    low, high, mask = index[offset] & 15, index[offset] >> 4, index[offset + 1]
    if not (1 <= low <= MAX_PLANES and 1 <= high <= MAX_PLANES) or mask >> low + high:
        raise CorruptError("the index has an impossible number of planes: the file is damaged")
    checks = np.frombuffer(index, dtype="<u4", count=sessions)
    sizes, offset = _decode_column(index, offset + 2, sessions, low, mask)
    lengths, offset = _decode_column(index, offset, sessions, high, mask >> low)
    if offset != len(index):
        raise CorruptError(f"expected an index of {offset} bytes, found {len(index)}: the file is damaged")
    return sizes, lengths, checks


def _decode_column(index: bytes, offset: int, sessions: int, planes: int, mask: int) -> tuple[U32, int]:
    """Return the column (N,) whose ``planes`` planes start at ``offset``, and the offset after it."""
    table = np.zeros((sessions, MAX_PLANES), dtype=np.uint8)
    fallback = Fallback()
    for plane in range(planes):
        size = sessions
        if packed := mask >> plane & 1:
            size, offset = read_varint(index, offset)
        if offset + size > len(index) or (packed and size >= sessions):
            raise CorruptError("a plane of the index does not fit it: the file is damaged")
        data = fallback.decompress(index[offset : offset + size], sessions)
        table[:, plane] = np.frombuffer(data, dtype=np.uint8)
        offset += size
    if planes > 1 and not table[:, planes - 1].any():
        raise CorruptError("the index has a plane that it does not need: the file is damaged")
    return table.view("<u4")[:, 0], offset


def _planes(column: U32) -> list[bytes]:
    """Return the byte planes of a column, low byte first, as many as its largest value needs."""
    needed = max(1, (int(column.max()).bit_length() + 7) // 8)
    table = column.astype("<u4").view(np.uint8).reshape(-1, 4)
    return [table[:, plane].tobytes() for plane in range(needed)]
