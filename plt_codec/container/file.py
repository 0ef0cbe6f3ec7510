"""The .pltz file: many sessions with an index at the end, each readable alone.

`Writer` puts frames (frame.py) into a file. `Reader` gets single frames out of bytes, an mmap or a seekable
file. Spec: FORMAT.md, "Container". Nothing here decodes a token: a frame is bytes plus its index entry.

The parts are header, frames, index, footer. The index is columnar (index.py), so a session costs 4 bytes
of check and less than 3 of count and length. A file of a million sessions opens without one Python object per
session.

The index comes last because the writer streams. A file that was not finished has no footer and is refused.

    >>> from pltz.plt_codec.container.frame import content_check
    >>> header = Header(contract=1, bundle_id=bytes(16))
    >>> frame = Frame(Kind.TEXT_FALLBACK, 2, content_check(Kind.TEXT_FALLBACK, 2, b"hi"), b"hi")
    >>> data = pack(header, [frame, frame])
    >>> reader = Reader(data)
    >>> len(reader), reader.frame(1) == frame
    (2, True)
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.container import index as columns
from pltz.plt_codec.container.frame import KIND_EXTENDED, MAX_COUNT, MAX_TOKENS_PER_BYTE, Frame, Kind
from pltz.plt_codec.container.header import FINGERPRINT, MAX_HEADER, Header
from pltz.plt_codec.errors import ContentError, CorruptError, LimitError, UsageError, VersionError

END_MARK = b"ZTLP"
FOOTER = struct.Struct("<II16sI4s")
FOOTER_CHECKED = 24  # footer bytes under the footer's crc

KIND_BITS = 3
KIND_RESERVED = 6

MAX_U32 = (1 << 32) - 1
PIECE = 1 << 20  # bytes hashed at a time

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Info:
    """The index entry of one session."""

    kind: Kind
    count: int
    check: int
    offset: int  # bytes from the start of the file
    size: int  # bytes of the whole frame


def pack(header: Header, frames: Iterable[Frame]) -> bytes:
    """Return a whole .pltz file in memory.

    Raises:
        ContentError: a frame is over a limit of the format.
        UsageError: a field does not fit its frame's kind.
    """
    sink = io.BytesIO()
    writer = Writer(sink, header)
    for frame in frames:
        writer.add(frame)
    writer.finish()
    return sink.getvalue()


class Writer:
    """A .pltz file written front to back: header, each `add`, then index and footer by `finish`.

    A crash before `finish` returns leaves a file without a footer, which every reader refuses. The caller
    must fsync the file and rename it into place.
    """

    def __init__(self, sink: BinaryIO, header: Header) -> None:
        self._sink = sink
        self._digest = hashlib.blake2b(digest_size=FINGERPRINT)
        self._finished = False
        self._sizes: list[int] = []  # count << 3 | kind
        self._lengths: list[int] = []
        self._checks: list[int] = []
        self._write(header.encode())

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, frame: Frame) -> int:
        """Append one frame and return its session number.

        Raises:
            ContentError: over a limit of the format; LimitError for the count.
            UsageError: a field does not fit the frame's kind, or the file is finished.
        """
        if self._finished:
            raise UsageError("this .pltz writer has finished its file and takes no more sessions")
        if frame.count > MAX_COUNT:
            raise LimitError(
                f"expected at most {MAX_COUNT} tokens or bytes in a session, found {frame.count}: split it"
            )
        data = frame.encode()
        if not frame.fits or len(data) > MAX_U32:
            raise ContentError(
                f"{frame.count} tokens or bytes in a frame of {len(data)} are over the format's limit"
            )
        if not frame.kind.by_model and len(data) > frame.count:
            raise UsageError(f"expected at most {frame.count} fallback bytes, got {len(data)}")
        self._write(data)
        self._sizes.append(frame.count << KIND_BITS | (KIND_EXTENDED if frame.extended else frame.kind))
        self._lengths.append(len(data))
        self._checks.append(frame.check)
        return len(self._lengths) - 1

    def finish(self) -> None:
        """Write index and footer. The writer takes no frame afterwards.

        Raises:
            ContentError: the index is over the limit of the format.
        """
        self._finished = True
        index = columns.encode(
            np.array(self._sizes, dtype="<u4"),
            np.array(self._lengths, dtype="<u4"),
            np.array(self._checks, dtype="<u4"),
        )
        if len(index) > MAX_U32:
            raise ContentError(f"an index of {len(index)} bytes is over the limit: use more files")
        self._write(index)
        footer = FOOTER.pack(len(self), len(index), self._digest.digest(), 0, END_MARK)[:FOOTER_CHECKED]
        check = zlib.crc32(footer, zlib.crc32(index))
        self._sink.write(footer + check.to_bytes(4, "little") + END_MARK)

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._sink.write(data)


class Reader:
    """A .pltz file opened for reading single frames.

    Args:
        source: the file's bytes, an mmap, or a seekable binary file (left open and owned by the caller).

    Raises:
        FormatError: not a .pltz file; its subclasses CorruptError and VersionError say more.
    """

    def __init__(self, source: bytes | bytearray | memoryview | mmap.mmap | BinaryIO) -> None:
        self._file: BinaryIO | None = None
        self._view: memoryview | None = None
        self._owned: mmap.mmap | None = None
        if isinstance(source, bytes | bytearray | memoryview | mmap.mmap):
            self._view = memoryview(source).cast("B")
            self.size = self._view.nbytes  # bytes
        else:
            self._file = source
            self.size = source.seek(0, os.SEEK_END)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Reader:
        """Map the file at ``path``; a pipe (``<(...)``) is read whole.

        Raises:
            UsageError: there is no such readable file.
            FormatError: see `Reader`; CorruptError where the file is empty.
        """
        try:
            with open(path, "rb") as file:
                if not file.seekable():
                    return cls(file.read())
                if not file.seek(0, os.SEEK_END):
                    raise CorruptError(f"expected a .pltz file, found an empty one: {os.fspath(path)}")
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as exc:
            raise UsageError(f"cannot read {os.fspath(path) or repr('')}: {exc.strerror or exc}") from exc
        try:
            reader = cls(mapped)
        except BaseException:
            mapped.close()
            raise
        reader._owned = mapped
        return reader

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[Frame]:
        return (self.frame(i) for i in range(len(self)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the source. A second call does nothing."""
        if self._view is not None:
            self._view.release()
        if self._owned is not None:
            self._owned.close()
        self._view = self._owned = self._file = None

    @property
    def overhead(self) -> int:
        """Return the bytes of the file beside the frames: header, index, footer."""
        return self.size - int(self._offsets[-1] - self._offsets[0])

    def info(self, index: int) -> Info:
        """Return the index entry of session ``index`` without reading its frame.

        Of an extended frame one byte is read.

        Raises:
            UsageError: there is no such session.
            VersionError: the session is of a kind of a newer format.
        """
        if not 0 <= index < len(self):
            raise UsageError(f"expected a session number from 0 to {len(self) - 1}, got {index}")
        size = int(self._sizes[index])
        offset = int(self._offsets[index])
        length = int(self._offsets[index + 1]) - offset
        kind = size & KIND_EXTENDED
        if kind == KIND_EXTENDED and length:
            kind = self._read(offset, 1)[0] & KIND_EXTENDED
        return Info(_known_kind(kind, index), size >> KIND_BITS, int(self._checks[index]), offset, length)

    def frame(self, index: int) -> Frame:
        """Return session ``index`` as it was given to `Writer.add`.

        Raises:
            UsageError: there is no such session.
            VersionError: the session has a kind or an extension of a newer format.
            CorruptError: the frame breaks a rule of the format.
        """
        info = self.info(index)
        extended = int(self._sizes[index]) & KIND_EXTENDED == KIND_EXTENDED
        make = Frame.decode if extended else Frame
        return make(info.kind, info.count, info.check, self._read(info.offset, info.size))

    def verify(self) -> None:
        """Check every byte of the file against the digest in its footer, without decoding.

        Raises:
            CorruptError: some byte is not as it was written.
        """
        digest = hashlib.blake2b(digest_size=FINGERPRINT)
        end = self.size - FOOTER.size
        for offset in range(0, end, PIECE):
            digest.update(self._read(offset, min(PIECE, end - offset)))
        if digest.digest() != self.digest:
            raise CorruptError(
                f"expected file digest {self.digest.hex()}, found {digest.hexdigest()}: some byte of the "
                "file is damaged"
            )

    def _open(self) -> None:
        """Read header, footer and index, in this order."""
        self.header, header_size = Header.decode(self._read(0, min(MAX_HEADER, self.size)))
        if self.size < header_size + FOOTER.size:
            raise CorruptError(f"a file of {self.size} bytes has no room for a footer: it was cut off")
        footer = self._read(self.size - FOOTER.size, FOOTER.size)
        sessions, index_size, self.digest, check, mark = FOOTER.unpack(footer)
        if mark != END_MARK:
            raise CorruptError("no .pltz footer at the end: the file was cut off, or bytes were added")
        index_at = self.size - FOOTER.size - index_size
        if index_at < header_size:
            raise CorruptError(f"an index of {index_size} bytes does not fit a file of {self.size}: damaged")
        index = self._read(index_at, index_size)
        if check != zlib.crc32(footer[:FOOTER_CHECKED], zlib.crc32(index)):
            raise CorruptError("the index does not match its checksum: the file is damaged")
        self._sizes, lengths, self._checks = columns.decode(index, sessions)
        self._offsets = _offsets(lengths, header_size, index_at)
        _check_columns(self._sizes, lengths)

    def _read(self, offset: int, size: int) -> bytes:
        """Read exactly ``size`` bytes at ``offset``; both were checked against the file size."""
        if self._view is not None:
            return bytes(self._view[offset : offset + size])
        if self._file is None:
            raise UsageError("this .pltz reader is closed")
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise CorruptError(
                f"expected {size} bytes at {offset}, found {len(data)}: the file was cut meanwhile"
            )
        return data


def _known_kind(kind: int, index: int) -> Kind:
    if kind == KIND_RESERVED:
        raise VersionError(f"session {index} is of a kind that this pltz does not know: use a newer pltz")
    if kind == KIND_EXTENDED:
        raise CorruptError(f"session {index} is an extended frame without an inner kind: the file is damaged")
    return Kind(kind)


def _offsets(lengths: columns.U32, first: int, end: int) -> I64:
    """Return the offsets of the frames, (N + 1,). They fill the bytes from ``first`` to ``end`` exactly."""
    offsets = np.empty(len(lengths) + 1, dtype=np.int64)
    offsets[0] = first
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    offsets[1:] += first
    if offsets[-1] != end:
        raise CorruptError(f"expected {end - first} bytes of frames, the index says {offsets[-1] - first}")
    return offsets


def _check_columns(sizes: columns.U32, lengths: columns.U32) -> None:
    """Check counts against frame lengths, for all sessions at once. An extended frame is held to the looser bound."""
    kinds = sizes & KIND_EXTENDED
    counts = (sizes >> KIND_BITS).astype(np.int64)
    if (over := np.flatnonzero(counts > MAX_COUNT)).size:
        raise CorruptError(
            f"session {over[0]} claims {counts[over[0]]} tokens or bytes, at most {MAX_COUNT} are allowed: damaged"
        )
    by_model = kinds < Kind.CHAT_FALLBACK
    fallback = ~by_model & (kinds < KIND_RESERVED)
    room = MAX_TOKENS_PER_BYTE * (lengths.astype(np.int64) + 1)
    crowded = (by_model | (kinds == KIND_EXTENDED)) & (counts > room)
    if (wrong := np.flatnonzero(crowded | (fallback & (lengths > counts)))).size:
        i = int(wrong[0])
        raise CorruptError(f"session {i}: {counts[i]} tokens or bytes cannot be in {lengths[i]}: damaged")
