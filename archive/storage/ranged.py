"""Ranged files: a large object of a bucket, read by ranges, and whole once so many were wanted that this is faster.

    file = RangedFile(size, get, front)         # get(offset, size) asks for those bytes
    file.read(offset, 16384)                    # asks for the pieces around that were not asked for before
    file.map()                                  # what was read is there, and nothing else: read before you touch it

An index of a hundred million sessions has 0.9 GB, and a look-up takes a page of it. What is there lies in a
temporary file without a name, so memory is that of the page cache.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from pltz.archive.errors import StoreError, reason
from pltz.plt_codec.errors import CorruptError

PIECE = 1 << 16  # bytes asked for at least
MOST_ASKED = 64  # requests after which the rest comes at once,
WORTH = 1 << 21  # or one for so many bytes of the object, where these are more: as many come in the time of a request
MOST_AHEAD = 1 << 26  # bytes of one request


class RangedFile:
    """An object of ``size`` bytes. Implements `byte_source.File`, for one thread.

    Args:
        get: returns exactly ``size`` bytes at ``offset``, or fewer where the object was cut off.
        front: its first bytes.
        folder: for the temporary file; None is the system's. Where there is no room, memory is used.
        whole: called once with the mapped bytes when all are there.

    Raises StoreError without room for it, and so do `read` and `fill`, which also raise the errors of ``get``, and
    CorruptError where bytes are lacking.
    """

    def __init__(
        self,
        size: int,
        get: Callable[[int, int], bytes],
        front: bytes | memoryview = b"",
        folder: Path | None = None,
        whole: Callable[[memoryview], object] = lambda data: None,
    ) -> None:
        self.size, self._get, self._whole = size, get, whole
        self._file = _temporary(folder, size)
        try:
            if self._file:
                self._room = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ)
            else:
                self._room = mmap.mmap(-1, size)
        except OSError as exc:
            raise _no_room(size, exc) from exc
        self._lacking = bytearray(b"\1" * -(-size // PIECE))
        self._most = max(MOST_ASKED, size // WORTH)
        self._asked, self._next = 0, -1  # requests so far; piece behind the last one
        self._ahead = 1  # pieces that a row of requests takes next
        self._there = 0  # bytes at the beginning that are there, though the last piece of them may not be whole
        self._put(0, front[:size])
        self._there = min(len(front), size)

    def read(self, offset: int, size: int) -> memoryview:
        """Return at most ``size`` bytes at ``offset``."""
        end = min(offset + size, self.size)
        self._want(offset, end)
        return memoryview(self._room)[offset:end]

    def fill(self, room: memoryview, offset: int) -> int:
        """Read into ``room`` and return the bytes read."""
        data = self.read(offset, len(room))
        room[: len(data)] = data
        return len(data)

    def map(self) -> memoryview:
        """Return all bytes. Those that were not read are zeros as yet."""
        return memoryview(self._room)

    def _want(self, begin: int, end: int) -> None:
        """Ask for the pieces of a range that are not there."""
        if end <= self._there:
            return
        last = -(-end // PIECE)
        while (first := self._lacking.find(1, begin // PIECE, last)) >= 0:
            if self._asked >= self._most:  # many places were wanted: the rest in few requests
                first = self._lacking.find(1)
                self._ask(first, first + MOST_AHEAD // PIECE)
                continue
            # bytes in a row are asked for twice as many at a time
            self._ahead = min(2 * self._ahead, MOST_AHEAD // PIECE) if first == self._next else 1
            stop = first + max(self._ahead, min(last - first, MOST_AHEAD // PIECE))
            there = self._lacking.find(0, first, stop)
            self._ask(first, stop if there < 0 else there)

    def _ask(self, first: int, last: int) -> None:
        """Ask for some pieces in one request."""
        last = min(last, len(self._lacking))
        begin, size = first * PIECE, min(last * PIECE, self.size) - first * PIECE
        self._take(begin, size, self._get(begin, size))
        self._asked, self._next = self._asked + 1, last

    def _take(self, begin: int, size: int, data: bytes) -> None:
        """Keep the bytes of a request. Raises CorruptError where it returned fewer."""
        if len(data) != size:
            raise CorruptError(f"expected {size} bytes at {begin} of an index, found {len(data)}: it was cut off")
        self._put(begin, data)

    def _put(self, begin: int, data: bytes | memoryview) -> None:
        if not data:
            return
        if self._file:
            try:  # a write to the map would end the process where the disk is full
                done = 0
                while done < len(data):
                    done += os.pwrite(self._file.fileno(), memoryview(data)[done:], begin + done)
            except OSError as exc:
                raise _no_room(len(data), exc) from exc
        else:
            self._room[begin : begin + len(data)] = data
        end = begin + len(data)
        first, last = begin // PIECE, -(-end // PIECE) if end == self.size else end // PIECE
        self._lacking[first:last] = bytes(last - first)
        if 1 not in self._lacking:
            self._whole(memoryview(self._room))


def _no_room(size: int, exc: OSError) -> StoreError:
    return StoreError(
        f"no room for {size} bytes of an index ({reason(exc)}): free space on this machine, or name another folder for "
        "such copies in XDG_CACHE_HOME"
    )


def _temporary(folder: Path | None, size: int) -> IO[bytes] | None:
    """Return a sparse file without a name, None where there is none to be had."""
    with suppress(OSError):
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115, it lives as long as the object
        with suppress(OSError):
            file.truncate(size)
            return file
        file.close()
    return None
