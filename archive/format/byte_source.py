"""Byte sources: files and other things whose bytes are read by offset. No format reads a disk except through one of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from pltz.plt_codec.errors import CorruptError

PIECE = 1 << 20  # bytes read at once of what is read from end to end

Reader = Callable[[int, int], bytes | memoryview]  # offset, size -> at most so many bytes


class File(Protocol):
    """A file that is open: it stays readable after an unlink, and is closed when nobody holds it any more."""

    @property
    def size(self) -> int:
        """Bytes, when it was opened."""

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """At most ``size`` bytes at ``offset``; fewer at the end of the file. Raises OSError where the disk fails."""

    def fill(self, room: memoryview, offset: int) -> int:
        """Read into ``room``, which is filled unless the file ends before; how many bytes. Raises OSError where the disk fails."""

    def map(self) -> memoryview:
        """All of it, mapped where the system can. Where the disk fails, or somebody cut the file off, touching what was never read
        ends the process by a signal: so who maps reads a range before it touches it (`index_file.FileIndex`)."""


class Held:
    """A file whose bytes are in memory."""

    def __init__(self, data: bytes | memoryview):
        self._data = memoryview(data)
        self.size = len(data)

    def read(self, offset: int, size: int) -> memoryview:
        return self._data[offset : offset + size]

    def fill(self, room: memoryview, offset: int) -> int:
        data = self._data[offset : offset + len(room)]
        room[: len(data)] = data
        return len(data)

    def map(self) -> memoryview:
        return self._data


def pieces(read: Reader, begin: int, end: int, most: int = PIECE) -> Iterator[bytes | memoryview]:
    """The bytes from ``begin`` to ``end``, at most so many at a time. Raises CorruptError where they are not all there, and what ``read`` raises."""
    for at in range(begin, end, most):
        yield exactly(read, at, min(most, end - at))


def exactly(read: Reader, offset: int, size: int) -> bytes | memoryview:
    """So many bytes. Raises CorruptError where the file ends before: somebody cut it off since it was opened."""
    data = read(offset, size)
    if len(data) != size:
        raise CorruptError(
            f"expected {size} bytes at {offset}, found {len(data)}: the file was cut off while it was read"
        )
    return data
