"""Buffered reader: a range of a file that reads like a buffer, with only a part of it in memory.

data = BufferedReader(read, begin, end) data.move(0)        some MiB are in memory from here on data[5:9]
taken from there; other bytes are read separately, and the buffer stays
"""

from __future__ import annotations

from pltz.archive.format.byte_source import Reader, exactly

AT_HAND = 4 << 20  # bytes in memory


class BufferedReader:
    """A range of a file as a buffer. ``data[a:b]`` raises CorruptError where the file was cut off."""

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
        """Return the buffered bytes from ``at`` on, which may be none."""
        return self._data[at - self._at :] if at >= self._at else self._data[:0]

    def move(self, at: int) -> memoryview:
        """Buffer the bytes that follow ``at``, at most `AT_HAND`, and return them.

        Raises CorruptError where the file was cut off.
        """
        self._at, self._data = at, memoryview(b"")
        self._data = self[at : at + AT_HAND]
        return self._data
