"""LongText: the bytes of a file that is too large to hold, read piece by piece as they are asked for.

    text = LongText.of(Path("rollout.jsonl"))
    text[0:4096], len(text), text.find(b"\\n", 1 << 20, 1 << 21)

It has the few methods of bytes that who stores a text needs, so that a text in memory and one in a file are cut alike.
Its length is that of the file when it was opened: what is written behind is not read.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from pltz.plt_codec.errors import ContentError, UsageError

STEP, PIECE = 1 << 16, 1 << 20  # bytes that `find` looks at, and that are read at once


class LongText:
    """The first ``size`` bytes of an open file. ``name``: for messages. Several threads may use it."""

    def __init__(self, file: IO[bytes], name: str, size: int) -> None:
        self._file, self.name, self._size = file, name, size

    @classmethod
    def of(cls, path: Path) -> LongText:
        """Return the bytes that a file has now. Raises UsageError where it cannot be read."""
        try:
            file = path.open("rb")
            return cls(file, str(path), os.fstat(file.fileno()).st_size)
        except OSError as exc:
            raise UsageError(f"{path}: cannot be read: {exc.strerror}") from exc

    @classmethod
    def filled(cls, name: str, pieces: Iterable[bytes | memoryview]) -> LongText:
        """Return bytes that are written into a temporary file, which is gone with this object.

        Raises UsageError where its disk is full, and the errors of ``pieces``.
        """
        text = cls(tempfile.TemporaryFile(), name, 0)  # noqa: SIM115  # it is closed with this object
        text._size = text._write(pieces)
        return text

    def _write(self, pieces: Iterable[bytes | memoryview]) -> int:
        """Write bytes into the temporary file, and return where they end."""
        try:
            for piece in pieces:
                self._file.write(piece)
                del piece
            self._file.flush()
        except OSError as exc:
            room = f"no room for {self._file.tell():,} bytes in {tempfile.gettempdir()}"
            raise UsageError(f"{self.name}: {room}: {exc.strerror} (set TMPDIR)") from exc
        return self._file.tell()

    def pieces(self) -> Iterator[bytes]:
        """Yield all bytes, some at a time."""
        yield from (self[at : at + PIECE] for at in range(0, self._size, PIECE))

    def __eq__(self, other: object) -> bool:
        """Return whether the bytes are equal to those of another one, or to bytes."""
        if not isinstance(other, LongText | bytes) or len(self) != len(other):
            return False
        return all(self[at : at + PIECE] == other[at : at + PIECE] for at in range(0, self._size, PIECE))

    __hash__ = object.__hash__

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: slice) -> bytes:
        """Return bytes by a slice of step 1. Raises ContentError where the file has become shorter."""
        begin, end, _ = place.indices(self._size)
        data = b""
        try:
            while len(data) < end - begin:
                piece = os.pread(self._file.fileno(), end - begin - len(data), begin + len(data))
                if not piece:
                    raise ContentError(f"{self.name}: became shorter while it was read: try again")
                data = data + piece if data else piece
        except OSError as exc:
            raise UsageError(f"{self.name}: cannot be read: {exc.strerror}") from exc
        return data

    def find(self, byte: bytes, begin: int, end: int) -> int:
        """Return where a byte stands first from ``begin`` to before ``end``, -1 where it does not.

        Raises as a slice does.
        """
        for at in range(begin, end := min(end, self._size), STEP):
            if (place := self[at : min(at + STEP, end)].find(byte)) >= 0:
                return at + place
        return -1


class PartedText(LongText):
    """A text in parts, which are written into its temporary file when a slice needs them. One thread uses it at a time.

    ``ends``: of the parts, in bytes. ``read``: yields those from one number on and before another.
    """

    def __init__(self, name: str, ends: Sequence[int], read: Callable[[int, int], Iterable[memoryview]]) -> None:
        super().__init__(tempfile.TemporaryFile(), name, ends[-1])  # noqa: SIM115
        self._begins, self._read, self._missing = [0, *ends[:-1]], read, set(range(len(ends)))

    def __getitem__(self, place: slice) -> bytes:
        """Return bytes by a slice of step 1. Raises the errors of ``read``, and as `LongText`."""
        begin, end, _ = place.indices(self._size)
        first, last = bisect_right(self._begins, begin) - 1, bisect_left(self._begins, end)
        if missing := self._missing.intersection(range(first, last)):
            first, last = min(missing), max(missing) + 1
            self._file.seek(self._begins[first])
            self._write(self._read(first, last))
            self._missing.difference_update(range(first, last))
        return super().__getitem__(place)
