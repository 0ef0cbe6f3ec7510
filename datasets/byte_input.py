"""A byte input: bytes from a path, a stream or memory, read by line, and unpacked if they are zstd or gzip.

Nothing is read before it is requested, and no line or file grows past ``limit`` bytes in memory. So a few
kilobytes of zstd that unpack to terabytes end in an error, not in the out-of-memory killer. A stream that
stops in the middle of a frame is an error too, never a shorter file.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import zstandard

from pltz.models.session.long_text import LongText
from pltz.plt_codec.errors import CorruptError, LimitError, UsageError
from pltz.plt_codec.limits import MAX_BYTES

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE = b"\x2a\x4d\x18"  # bytes 1 to 3 of a frame of zstd that holds no content
GZIP_MAGIC = b"\x1f\x8b"
WINDOW = 1 << 31  # bytes: the largest zstd window (--long=31)
CHUNK = 1 << 18  # bytes of a plain read
LONG = 1 << 24  # bytes of a text from which it is not held in memory
DENSEST = 1 << 12  # bytes that each byte of zstd may unpack to, beyond the largest session
PACKED_CHUNK = 512  # bytes of compressed input per step: each 4 of them may unpack to 128 KiB


class Readable(Protocol):
    """A binary file object, as far as it is needed here."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes, none at the end."""


class TooLong(LimitError, UsageError):
    """A line or file is over the limit. The data after such a line can still be read (`ByteInput.skip`)."""


class ByteInput:
    """Bytes in order, with a look ahead. ``name``: for messages. ``limit``: in bytes.

    ``path``: the file they are read from, None where there is none or it was unpacked on the way. ``mtime``: of that
    file, in nanoseconds since 1970, 0 where it is not known. ``taken``: how many were consumed. ``torn``: why data
    ended early that has whole frames of zstd in front, empty where it did not.
    """

    def __init__(self, stream: Readable, name: str, limit: int, path: Path | None = None) -> None:
        self.name = name
        self.path = path
        self.limit = limit
        self.taken = self.mtime = 0
        self.torn = ""
        self._blocks = _read(stream, name)
        self._ahead = bytearray()
        self._start = 0  # of the unconsumed part of _ahead

    def peek(self, size: int) -> bytes:
        """Return at most ``size`` of the next bytes without consuming them; fewer only at the end."""
        while len(self._ahead) - self._start < size and self._more():
            pass
        return bytes(self._ahead[self._start : self._start + size])

    def unpack(self) -> None:
        """Unpack the bytes from here on as zstd, all frames one after the other."""
        packed, self.path = self._drain(), None
        self._blocks, self.taken = self._unpack(packed), 0

    def _unpack(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the contents of one or more zstd frames; of a cut one behind others, what there is of it.

        An agent that writes a frame for each batch of events may have died within the last. Raises CorruptError,
        TooLong for what would fill a disk.
        """
        unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW)
        frame = unpacker.decompressobj()
        whole, frames = False, 0  # whether the last frame is complete, so the data may end here
        room = MAX_BYTES
        for block in blocks:
            for start in range(0, len(block), PACKED_CHUNK):
                piece = block[start : start + PACKED_CHUNK]
                room += DENSEST * len(piece)
                while piece:
                    if frame.eof:
                        frame = unpacker.decompressobj()
                    try:
                        data = frame.decompress(piece)
                    except zstandard.ZstdError as exc:
                        raise CorruptError(f"{self.name}: expected zstd data: {exc}") from exc
                    if data:
                        yield data
                    if (room := room - len(data)) < 0:
                        raise TooLong(f"{self.name}: a byte unpacks to more than {DENSEST}: unpack the file first")
                    piece = frame.unused_data if frame.eof else b""
                    whole = frame.eof
                    frames += whole
        if whole:
            return
        why = "the zstd data stops in the middle of a frame"
        if not frames:
            raise CorruptError(f"{self.name}: {why}")
        self.torn = f"{why}, what is before that is kept"

    def gunzip(self) -> None:
        """Unpack the bytes from here on as gzip, all members one after the other."""
        packed, self.path = self._drain(), None
        self._blocks, self.taken = _gunzip(packed, self.name), 0

    def skip(self) -> None:
        """Drop the rest of a line that `line` found too long."""
        while (end := self._ahead.find(b"\n", self._start)) < 0:
            self._start = len(self._ahead)
            if not self._more():
                return
        self._start = end + 1

    def line(self) -> bytes | None:
        """Return the next line with its line end, or None at the end. Raises TooLong past the limit."""
        searched = self._start
        while (end := self._ahead.find(b"\n", searched)) < 0:
            searched = len(self._ahead)
            if searched - self._start > self.limit:
                self._too_long("line")
            start = self._start
            if not self._more():
                return self._take(len(self._ahead)) or None
            searched -= start - self._start
        if end - self._start > self.limit:
            self._too_long("line")
        return self._take(end + 1)

    def text(self, *, long: bool) -> bytes | LongText:
        """Return all bytes from here on; with ``long`` those of a large file piece by piece, of any number.

        Raises TooLong past the limit where that is below `MAX_BYTES`, or without ``long``.
        """
        while long and self.limit == MAX_BYTES and len(self._ahead) - self._start <= LONG and self._more():
            pass
        if len(self._ahead) - self._start <= LONG or not long or self.limit < MAX_BYTES:
            return self.rest()
        whole = self.path is not None and not self.taken
        text = LongText.of(self.path) if self.path and whole else LongText.filled(self.name, self._drain())
        self.taken = len(text)
        return text

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; fewer only at the end."""
        self.peek(size)
        return self._take(min(len(self._ahead), self._start + size))

    def rest(self) -> bytes:
        """Return all bytes from here on. Raises TooLong past the limit."""
        while len(self._ahead) - self._start <= self.limit and self._more():
            pass
        if len(self._ahead) - self._start > self.limit:
            self._too_long("file")
        return self._take(len(self._ahead))

    def _take(self, end: int) -> bytes:
        data = bytes(self._ahead[self._start : end])
        self._start = end
        self.taken += len(data)
        return data

    def _more(self) -> bool:
        """Read one more block. Returns False at the end."""
        block = next(self._blocks, b"")
        if self._start:
            del self._ahead[: self._start]
            self._start = 0
        self._ahead += block
        return bool(block)

    def _drain(self) -> Iterator[bytes]:
        """Return the bytes ahead and then the blocks, as an iterator that no longer needs this object."""
        ahead, blocks = self._take(len(self._ahead)), self._blocks

        def chain() -> Iterator[bytes]:
            if ahead:
                yield ahead
            yield from blocks

        return chain()

    def _too_long(self, what: str) -> None:
        way_out = "split it" if self.limit >= MAX_BYTES else "split it, or raise the limit (max_bytes)"
        raise TooLong(f"{self.name}: expected a {what} of at most {self.limit} bytes, found more: {way_out}")


def _read(stream: Readable, name: str) -> Iterator[bytes]:
    while True:
        try:
            block = stream.read(CHUNK)
        except OSError as exc:
            raise UsageError(f"{name}: cannot be read: {exc.strerror or exc}") from exc
        if not isinstance(block, bytes):
            raise UsageError(f"{name}: expected a file opened in binary mode, found {type(block).__name__}")
        if not block:
            return
        yield block


def _gunzip(blocks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Yield the contents of one or more gzip members; zeros may pad the last one. Raises CorruptError."""
    member = zlib.decompressobj(31)
    whole = False  # the last member is complete, so the data may end here
    for block in blocks:
        piece = block.lstrip(b"\0") if whole else block
        more = bool(piece)
        while more:
            if member.eof:
                member = zlib.decompressobj(31)
            try:
                data = member.decompress(piece, CHUNK)
            except zlib.error as exc:
                raise CorruptError(f"{name}: expected gzip data: {exc}") from exc
            if data:
                yield data
            whole = member.eof
            piece = member.unused_data.lstrip(b"\0") if whole else member.unconsumed_tail
            # More output may follow from the input already taken.
            more = bool(piece) or (not whole and len(data) == CHUNK)
    if not whole:
        raise CorruptError(f"{name}: the gzip data stops before its end")
