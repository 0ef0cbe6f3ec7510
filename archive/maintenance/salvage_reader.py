"""Salvage reader: reads the remains of a file on demand, with zeros for bytes that the disk cannot give.

    left = SalvageReader.of(store, "packs/...", most)     # None: there is no such file
    left[begin:end]; left.whole()
"""

from __future__ import annotations

from contextlib import suppress

from pltz.archive.errors import UnreadableError
from pltz.archive.format.byte_source import File
from pltz.archive.storage.store import Store

SECTOR = 4096  # smallest unit that a disk loses, in bytes


class SalvageReader:
    """The readable remains of a file, at most ``most`` bytes. Implements `prefix_crc.ByteSource`."""

    def __init__(self, file: File, most: int) -> None:
        self._file, self._size = file, min(file.size, most)

    @classmethod
    def of(cls, store: Store, name: str, most: int) -> SalvageReader | None:
        """Return the remains of a file, None if it does not exist. Raises StoreError."""
        try:
            return cls(store.open(name), most)
        except FileNotFoundError:
            return None

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> bytes | memoryview:
        begin, end, _ = part.indices(self._size)
        return self.read(begin, max(0, end - begin))

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Return at most ``size`` bytes from ``offset``, fewer at the end, as `disk.Reader` does."""
        size = max(0, min(size, self._size - offset))
        try:
            found = self._file.read(offset, size)
        except UnreadableError:
            found = self._by_sector(offset, size)
        return found if len(found) == size else bytes(found).ljust(size, b"\0")  # the file was cut off meanwhile

    def whole(self) -> bytes:
        """Return all bytes, in memory."""
        return bytes(self.read(0, self._size))

    def _by_sector(self, offset: int, size: int) -> bytes:
        data = bytearray(size)
        for at in range(0, size, SECTOR):
            with suppress(UnreadableError):
                found = self._file.read(offset + at, min(SECTOR, size - at))
                data[at : at + len(found)] = found
        return bytes(data)
