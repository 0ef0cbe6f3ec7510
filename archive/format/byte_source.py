"""Byte sources: files and other objects that are read by offset. Formats read the disk only through these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from pltz.plt_codec.errors import CorruptError

PIECE = 1 << 20  # bytes per read of a file that is read from end to end

Reader = Callable[[int, int], bytes | memoryview]  # offset, size -> at most so many bytes


class ByteSource(Protocol):
    """Bytes that are in memory or are read on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes | bytearray | memoryview: ...


class File(Protocol):
    """An open file: it stays readable after an unlink, and is closed when its last reference goes."""

    @property
    def size(self) -> int:
        """Return the bytes that it had when it was opened."""

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Return at most ``size`` bytes at ``offset``, fewer at the end of the file.

        Raises OSError where the disk fails.
        """


class Held:
    """A file whose bytes are in memory."""

    def __init__(self, data: bytes | memoryview):
        self._data = memoryview(data)
        self.size = len(data)

    def read(self, offset: int, size: int) -> memoryview:
        return self._data[offset : offset + size]


def pieces(read: Reader, begin: int, end: int, most: int = PIECE) -> Iterator[bytes | memoryview]:
    """Yield the bytes from ``begin`` to ``end`` in pieces of at most ``most`` bytes.

    Raises CorruptError where some are missing, and the errors of ``read``.
    """
    for at in range(begin, end, most):
        yield exactly(read, at, min(most, end - at))


def exactly(read: Reader, offset: int, size: int) -> bytes | memoryview:
    """Return ``size`` bytes from ``offset``.

    Raises CorruptError where the file ends before: it was cut off since it was opened.
    """
    data = read(offset, size)
    if len(data) != size:
        raise CorruptError(
            f"expected {size} bytes at {offset}, found {len(data)}: the file was cut off while it was read"
        )
    return data
