"""Window: a stretch of a file as if it were in memory, of which only some is.

data = Window(read, begin, end)
data.move(0)        some MiB are at hand
data[5:9]           from there; what is not at hand is read for itself, and what is stays
"""

from __future__ import annotations

from pltz.archive.format.byte_source import Reader, exactly

AT_HAND = 4 << 20  # bytes


class Window:
    """See the head of this file. ``data[a:b]`` raises CorruptError where the file was cut off."""

    def __init__(self, read: Reader, begin: int, end: int):
        self._read, self._begin, self._size = read, begin, end - begin
        self._at, self._data = 0, memoryview(b"")

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> memoryview:
        begin, end, _ = part.indices(self._size)
        if self._at <= begin and end <= self._at + len(self._data):
            return self._data[begin - self._at : max(begin, end) - self._at]
        return memoryview(exactly(self._read, self._begin + begin, max(0, end - begin)))

    def at_hand(self, at: int) -> memoryview:
        """What is at hand from ``at`` on, which may be nothing."""
        return self._data[at - self._at :] if at >= self._at else self._data[:0]

    def move(self, at: int) -> memoryview:
        """Have at hand what follows ``at``, `AT_HAND` or less. Raises CorruptError where the file was cut off."""
        self._at, self._data = at, memoryview(b"")
        self._data = self[at : at + AT_HAND]
        return self._data
