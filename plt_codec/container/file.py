"""The .pltz file: many sessions with an index at the end, each readable without the rest.

`Writer` puts frames (frame.py) into a file. `Reader` gets single frames out of bytes, an mmap or a seekable
file. Spec: FORMAT.md, "Container". Nothing here decodes a token: a frame is bytes plus its index entry.

The parts are header, frames, index, footer. The index (index.py) costs a session less than 4 bytes. A file of
a million sessions opens without one Python object per session. Neighbours share the checks of the stored bytes
(lines.py), so a session is read with at most 15 frames beside it.

The index comes last because the writer streams. A file that was not finished has no footer and is refused.

    >>> from pltz.plt_codec.container.frame import content_check
    >>> header = Header(contract=1, bundle_id=bytes(16))
    >>> frame = Frame(Kind.TEXT_FALLBACK, 2, content_check(Kind.TEXT_FALLBACK, 2, b"hi"), b"hi")
    >>> data = pack(header, [frame, frame])
    >>> reader = Reader(data)
    >>> len(reader), reader.frame(1).data
    (2, b'hi')
"""

from __future__ import annotations

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

from pltz.plt_codec.container import lines
from pltz.plt_codec.container.columns import HAS_TOKENS, KIND_BITS, MOST_CONTEXTS, NO_CONTEXT
from pltz.plt_codec.container.frame import (
    EXTENDED_LOG,
    KIND_EXTENDED,
    MAX_COUNT,
    MAX_TOKENS_PER_BYTE,
    Frame,
    Kind,
)
from pltz.plt_codec.container.header import MAX_HEADER, Header
from pltz.plt_codec.container.index import Index, contents_check
from pltz.plt_codec.errors import ContentError, CorruptError, LimitError, UsageError, VersionError

FOOTER = struct.Struct("<II")
FOOTER_CHECKED = 4  # footer bytes under the footer's crc

KIND_RESERVED = 6
KINDS = tuple(Kind)  # by number, faster than Kind()

MAX_U32 = (1 << 32) - 1
PIECE = 1 << 20  # bytes checked at a time
READ_AHEAD = 256  # frames read at a time by iteration
UNREAD, SOUND, DAMAGED = range(3)  # states of a line
NAMED = 20  # damaged sessions that a message names

NOT_WHOLE = "the file was cut off, bytes were added, or it is damaged"

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

_NONE = np.zeros(0, np.uint32)
NO_SESSIONS = Index(_NONE, _NONE, _NONE.astype(np.int64), _NONE.astype(np.uint8), 0, _NONE)


@dataclass(frozen=True, slots=True)
class Info:
    """The index entry of one session."""

    kind: Kind
    count: int
    check: int  # low byte of the content check
    offset: int  # bytes from the start of the file
    size: int  # bytes of the whole frame
    context: int | None = None  # number of the session that it was coded after
    log: bool = False  # coded as a log


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
        self._header = header.encode()
        self._finished = False
        self._sizes: list[int] = []  # count << 3 | kind
        self._lengths: list[int] = []
        self._contexts: list[int] = []
        self._depths: list[int] = []  # number of contexts behind each session, one behind the other
        self._checks: list[int] = []  # of the contents
        self._crcs: list[int] = []  # of the frames
        self._sink.write(self._header)

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
        if frame.context is not None and not self._may_follow(frame):
            raise UsageError(f"session {len(self)} cannot have session {frame.context} as its context")
        if not frame.has_tokens and len(data) > frame.count:
            raise UsageError(f"expected at most {frame.count} fallback bytes, got {len(data)}")
        self._sink.write(data)
        self._sizes.append(frame.count << KIND_BITS | (KIND_EXTENDED if frame.extended else frame.kind))
        self._lengths.append(len(data))
        self._contexts.append(NO_CONTEXT if frame.context is None else frame.context)
        self._depths.append(0 if frame.context is None else 1 + self._depths[frame.context])
        self._checks.append(frame.check)
        self._crcs.append(zlib.crc32(data))
        return len(self._lengths) - 1

    def _may_follow(self, frame: Frame) -> bool:
        """Return whether a frame's context is an earlier session with tokens, and not too many stand in a row."""
        context = frame.context
        if context is None or not 0 <= context < len(self) or not frame.has_tokens:
            return False
        return bool(HAS_TOKENS[self._sizes[context] & KIND_EXTENDED]) and self._depths[context] < MOST_CONTEXTS

    def finish(self) -> None:
        """Write index and footer. The writer takes no frame afterwards.

        Raises:
            ContentError: the index is over the limit of the format.
        """
        self._finished = True
        index = self._index()
        if len(index) > MAX_U32:
            raise ContentError(f"an index of {len(index)} bytes is over the limit: use more files")
        footer = len(index).to_bytes(FOOTER_CHECKED, "little")
        check = zlib.crc32(footer, zlib.crc32(index, zlib.crc32(self._header)))
        self._sink.write(index + footer + check.to_bytes(4, "little"))

    def _index(self) -> bytes:
        if not self._sizes:
            return b""
        sizes, lengths, checks, crcs = (
            np.array(column, dtype=np.uint32) for column in (self._sizes, self._lengths, self._checks, self._crcs)
        )
        shared = lines.Grid(len(self)).encode(crcs)
        contexts = np.array(self._contexts, dtype=np.int64)
        return Index(sizes, lengths, contexts, checks.astype(np.uint8), contents_check(checks), shared).encode()


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
        self._damaged: list[int] | None = None
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
        for start in range(0, len(self), READ_AHEAD):
            yield from self.frames(range(start, min(len(self), start + READ_AHEAD)))

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
        self._check_number(index)
        size = int(self._sizes[index])
        offset = int(self._offsets[index])
        length = int(self._offsets[index + 1]) - offset
        kind, log = size & KIND_EXTENDED, False
        if kind == KIND_EXTENDED and length:
            head = self._read(offset, 1)[0]
            kind, log = head & KIND_EXTENDED, bool(head & EXTENDED_LOG)
        count, check = size >> KIND_BITS, int(self._checks[index])
        return Info(_known_kind(kind, index), count, check, offset, length, _number(int(self._contexts[index])), log)

    def frame(self, index: int) -> Frame:
        """Return session ``index`` as it was given to `Writer.add`, with the part of its check that the file keeps.

        Raises:
            UsageError: there is no such session.
            VersionError: the session has a kind or an extension of a newer format.
            CorruptError: its bytes are not as they were written, or break a rule of the format.
        """
        return self.frames([index])[0]

    def frames(self, indices: Iterable[int]) -> list[Frame]:
        """Return several sessions as `frame` does, with less work for each."""
        numbers = list(indices)
        for index in numbers:
            self._check_number(index)
        chosen = np.array(numbers, dtype=np.int64)
        columns = self._sizes, self._checks, self._contexts, self._offsets[:-1], self._offsets[1:]
        entries = zip(numbers, *(column[chosen].tolist() for column in columns), strict=True)
        return [self._frame(*entry) for entry in entries]

    def _frame(self, index: int, size: int, check: int, context: int, start: int, end: int) -> Frame:
        if not self._is_sound(index):
            raise CorruptError(
                f"session {index}: its bytes are not those that were written: the file is damaged, and `pltz inspect` "
                "lists its damaged sessions"
            )
        kind, data = size & KIND_EXTENDED, self._read(start, end - start)
        if kind != KIND_EXTENDED:
            known = _known_kind(kind, index)
            return Frame(known, size >> KIND_BITS, check, data, context=_number(context))
        inner = _known_kind(data[0] & KIND_EXTENDED if data else KIND_EXTENDED, index)
        return Frame.decode(inner, size >> KIND_BITS, check, data, _number(context))

    def _check_number(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise UsageError(f"expected a session number from 0 to {len(self) - 1}, got {index}")

    def damaged(self) -> list[int]:
        """Return the sessions whose bytes are not as they were written. All bytes are read, nothing is decoded."""
        if self._damaged is None:
            crcs = np.fromiter(map(self._frame_crc, range(len(self))), np.uint32, len(self))
            self._damaged = self._grid.damaged(crcs, self._lines)
        return self._damaged

    def verify(self) -> None:
        """Check every byte of the file, without decoding.

        Raises:
            CorruptError: some byte is not as it was written; the message names the damaged sessions.
        """
        if damaged := self.damaged():
            more = f" and {len(damaged) - NAMED} more" if len(damaged) > NAMED else ""
            named = ", ".join(map(str, damaged[:NAMED])) + more
            raise CorruptError(
                f"damaged sessions: {named}. The other {len(self) - len(damaged)} of {len(self)} are sound: "
                "read them by number (--session)"
            )

    def check_contents(self, checks: Iterable[int]) -> None:
        """Compare the content checks of all sessions, in order, with the one that the file has of all.

        Raises:
            CorruptError: some session was decoded to other content than was written.
        """
        if len(self) and contents_check(np.fromiter(checks, np.uint32)) != self._contents:
            raise CorruptError(
                "the check of all contents does not hold, although each session passes its own: some session was not "
                "decoded to what was written. Use the engine that wrote the file, and report this"
            )

    def _is_sound(self, index: int) -> bool:
        """Return whether the session's bytes are as they were written.

        Its row is read, once for all its sessions. Its column is read where the row fails, and the whole file where
        both fail.
        """
        grid, row = self._grid, index // self._grid.width
        if self._states[row] == SOUND or self._holds(row, grid.row(index)):
            return True
        if grid.width == 1:
            return False
        return self._holds(grid.lines + index % grid.lines, grid.column(index)) or index not in self.damaged()

    def _holds(self, line: int, sessions: range) -> bool:
        if self._states[line] == UNREAD:
            found = lines.line_check([self._frame_crc(i) for i in sessions])
            self._states[line] = SOUND if found == self._lines[line] else DAMAGED
        return self._states[line] == SOUND

    def _frame_crc(self, index: int) -> int:
        start, end = int(self._offsets[index]), int(self._offsets[index + 1])
        if end - start <= PIECE:
            return zlib.crc32(self._read(start, end - start))
        crc = 0
        for offset in range(start, end, PIECE):
            crc = zlib.crc32(self._read(offset, min(PIECE, end - offset)), crc)
        return crc

    def _open(self) -> None:
        """Read header, footer and index, in this order."""
        start = self._read(0, min(MAX_HEADER, self.size))
        self.header, header_size = Header.decode(start)
        if self.size < header_size + FOOTER.size:
            raise CorruptError(f"a file of {self.size} bytes has no room for a footer: it was cut off")
        footer = self._read(self.size - FOOTER.size, FOOTER.size)
        index_size, check = FOOTER.unpack(footer)
        index_at = self.size - FOOTER.size - index_size
        if index_at < header_size:
            raise CorruptError(f"an index of {index_size} bytes does not fit a file of {self.size}: {NOT_WHOLE}")
        index = self._read(index_at, index_size)
        if check != zlib.crc32(footer[:FOOTER_CHECKED], zlib.crc32(index, zlib.crc32(start[:header_size]))):
            raise CorruptError(f"header, index and footer do not match their checksum: {NOT_WHOLE}")
        self._read_index(index)
        self._offsets = _offsets(self._lengths, header_size, index_at)
        _check_columns(self._sizes, self._lengths)

    def _read_index(self, data: bytes) -> None:
        found = Index.decode(data) if data else NO_SESSIONS
        self._sizes, self._lengths, self._checks = found.sizes, found.lengths, found.checks
        self._contexts, self._contents, self._lines = found.contexts, found.contents, found.lines
        self._grid = lines.Grid(len(found.sizes))
        self._states = bytearray(len(found.lines))

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


def _number(context: int) -> int | None:
    return None if context == NO_CONTEXT else context


def _known_kind(kind: int, index: int) -> Kind:
    if kind == KIND_RESERVED:
        raise VersionError(f"session {index} is of a kind that this pltz does not know: use a newer pltz")
    if kind == KIND_EXTENDED:
        raise CorruptError(f"session {index} is an extended frame without an inner kind: the file is damaged")
    return KINDS[kind]


def _offsets(lengths: U32, first: int, end: int) -> I64:
    """Return the offsets of the frames, (N + 1,). They fill the bytes from ``first`` to ``end`` exactly."""
    offsets = np.empty(len(lengths) + 1, dtype=np.int64)
    offsets[0] = first
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    offsets[1:] += first
    if offsets[-1] != end:
        raise CorruptError(f"expected {end - first} bytes of frames, the index says {offsets[-1] - first}")
    return offsets


def _check_columns(sizes: U32, lengths: U32) -> None:
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
