"""The .pltz file: many sessions in blocks with an index at the end, each readable without the rest.

`Writer` puts frames (frame.py) into a file. `Reader` gets single frames out of bytes or an mmap. Spec: FORMAT.md,
"Container". Nothing here decodes a token: a frame is bytes plus what its block says of it.

The parts are header, blocks, index, footer. A block holds the frames of up to 128 sessions (session_block.py), as packs
of an archive do. The index says where the blocks are. Blocks are read when a session of theirs is, and a
session is read with one piece of its block, of some KiB.

The index comes last because the writer streams. A file that was not finished has no footer and is refused.

    >>> from pltz.plt_codec.container.frame import content_check
    >>> header = Header(bundle_id=bytes(16))
    >>> frame = Frame(Kind.TEXT, Method.BYTES, 2, content_check(Kind.TEXT, Method.BYTES, 2, b"hi"), b"hi")
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
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.container import session_block
from pltz.plt_codec.container.block import (
    BODY,
    CHECK,
    CONTEXT,
    COPIED,
    COUNT,
    MAX_BITSTRING,
    MAX_BODY,
    MAX_HEAD,
    PREFIX,
    ROWS,
    STEP,
)
from pltz.plt_codec.container.frame import CHECK_KEPT, MAX_COUNT, MOST_CONTEXTS, Frame, FrameCoding, Kind, Method
from pltz.plt_codec.container.header import MAX_HEADER, Header
from pltz.plt_codec.container.session_block import LEAST_HEAD, SessionBlock, StoredFrame
from pltz.plt_codec.errors import ContentError, CorruptError, LimitError, UsageError, VersionError
from pltz.plt_codec.varint import read_varint, write_varint

FOOTER = struct.Struct("<II")
FOOTER_CHECKED = 4  # footer bytes under the footer's crc

MAX_U32 = (1 << 32) - 1
READ_AHEAD = 256  # frames read at a time by iteration
HEADS = 256  # heads of blocks kept in memory
NAMED = 20  # damaged sessions that a message names

NOT_WHOLE = "the file was cut off, bytes were added, or it is damaged"
CONTENTS = 4  # bytes of the check of all contents
MAX_CODINGS = 4096
U32 = npt.NDArray[np.uint32]


class BlockPlace(NamedTuple):
    """A block in the index: its sessions, and the bytes of its head and of its body."""

    sessions: int
    head: int
    body: int


@dataclass(frozen=True, slots=True)
class Index:
    """The index of a file with sessions.

    Args:
        codings: those of its frames, None for one of a newer version.
        blocks: all blocks, in order.
        contents: `contents_check` of all content checks.
    """

    codings: Sequence[FrameCoding | None]
    blocks: Sequence[BlockPlace]
    contents: int

    def encode(self) -> bytes:
        """Return the bytes of the index. Raises UsageError where a coding has fields that do not go together."""
        codings = [coding.encode() for coding in self.codings if coding]
        out = [self.contents.to_bytes(CONTENTS, "little"), write_varint(len(self.codings)), *codings]
        for sessions, head, body in self.blocks:
            out += [bytes([sessions]), write_varint(head), write_varint(body)]
        return b"".join(out)

    @classmethod
    def decode(cls, data: bytes) -> Index:
        """Undo `encode`. A block of n sessions has a head of more than n bytes, so memory is bounded by the file.

        Raises:
            CorruptError: these bytes are no index.
        """
        if len(data) <= CONTENTS:
            raise CorruptError(f"an index of {len(data)} bytes is too short: the file is damaged")
        number, at = read_varint(data, CONTENTS)
        if not 0 < number <= MAX_CODINGS:
            raise CorruptError(f"an index of {number} codings, expected 1 to {MAX_CODINGS}: the file is damaged")
        codings = []
        for _ in range(number):
            end = at + 1 + data[at] if at < len(data) else at + 1
            if end > len(data):
                raise CorruptError("the index ends in its codings: the file is damaged")
            codings.append(FrameCoding.decode(data[at + 1 : end]))
            at = end
        blocks = []
        while at < len(data):
            sessions = data[at]
            head, at = read_varint(data, at + 1)
            body, at = read_varint(data, at)
            least, most = sessions + LEAST_HEAD, PREFIX + MAX_HEAD + CHECK
            if not (0 < sessions <= ROWS and least <= head <= most and body <= MAX_BODY):
                raise CorruptError(
                    f"the index has a block of {sessions} sessions with a head of {head} bytes and a body of {body}: "
                    "the file is damaged"
                )
            blocks.append(BlockPlace(sessions, head, body))
        if not blocks:
            raise CorruptError("an index without blocks must be empty: the file is damaged")
        return cls(codings, blocks, int.from_bytes(data[:CONTENTS], "little"))


def contents_check(checks: U32) -> int:
    """Return the one check of all content checks (N,)."""
    return zlib.crc32(checks.astype("<u4").tobytes())


NO_SESSIONS = Index([], [], contents_check(np.zeros(0, np.uint32)))


@dataclass(frozen=True, slots=True)
class Info:
    """The facts that a file has of one session beside its frame."""

    content: Kind
    method: Method
    count: int
    check: int  # low byte of the content check
    offset: int  # bytes from the start of the file
    size: int  # bytes of the frame
    context: int | None = None  # number of the session that it was coded after

    @property
    def by_model(self) -> bool:
        """Return whether the count is in tokens (else in bytes)."""
        return self.method is Method.MODEL

    @property
    def log(self) -> bool:
        """Return whether the session is coded as a log."""
        return self.method is Method.LOG


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
    """A .pltz file written front to back: header, blocks of what `add` gets, then index and footer by `finish`.

    A crash before `finish` returns leaves a file without a footer, which every reader refuses. The caller
    must fsync the file and rename it into place.
    """

    def __init__(self, sink: BinaryIO, header: Header) -> None:
        self._sink = sink
        self._header = header.encode()
        self._finished = False
        self._offset = len(self._header)
        self._codings: dict[FrameCoding, int] = {}
        self._coding_of: list[FrameCoding] = []  # of each session
        self._depths: list[int] = []  # number of contexts behind each session, one behind the other
        self._checks: list[int] = []  # of the contents
        self._frames: list[StoredFrame] = []  # of the block that is being filled
        self._size = 0  # bytes of these
        self._blocks: list[BlockPlace] = []
        self._sink.write(self._header)

    def __len__(self) -> int:
        return len(self._checks)

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
        data, coding = frame.encode(), frame.coding
        coding.encode()  # raises where its fields do not go together
        if not coding.fits(frame.count, len(data)) or len(data) > MAX_BITSTRING:
            raise ContentError(f"{frame.count} tokens or bytes in a frame of {len(data)} are over the format's limit")
        if frame.context is not None and not self._may_follow(frame):
            raise UsageError(f"session {len(self)} cannot have session {frame.context} as its context")
        if not coding.has_tokens and len(data) > frame.count:
            raise UsageError(f"expected at most {frame.count} fallback bytes, got {len(data)}")
        number = self._codings.setdefault(coding, len(self._codings))
        if number == MAX_CODINGS:
            raise ContentError(f"more than {MAX_CODINGS} layouts in a file: use more files")
        step = 0 if frame.context is None else len(self) - frame.context
        self._frames.append(StoredFrame(number, frame.count, frame.check & CHECK_KEPT, data, frame.copied, step))
        self._size += len(data)
        self._coding_of.append(coding)
        self._depths.append(0 if frame.context is None else 1 + self._depths[frame.context])
        self._checks.append(frame.check)
        if len(self._frames) == ROWS or self._size >= BODY:
            self._write_block()
        return len(self) - 1

    def _may_follow(self, frame: Frame) -> bool:
        """Return whether a frame's context is an earlier session with tokens, and not too many stand in a row."""
        context = frame.context
        if context is None or not 0 <= context < len(self) or not frame.has_tokens:
            return False
        return self._coding_of[context].has_tokens and self._depths[context] < MOST_CONTEXTS

    def _write_block(self) -> None:
        head, *body = session_block.encode(self._frames, self._header, self._offset)
        self._sink.write(head)
        for part in body:
            self._sink.write(part)
        self._blocks.append(BlockPlace(len(self._frames), len(head), self._size))
        self._offset += len(head) + self._size
        self._frames, self._size = [], 0

    def finish(self) -> int:
        """Write the last block, index and footer, and return the number of frames. The writer takes no more of them.

        Raises:
            ContentError: the index is over the limit of the format.
        """
        self._finished = True
        if self._frames:
            self._write_block()
        index = b""
        if self._blocks:
            contents = contents_check(np.array(self._checks, np.uint32))
            index = Index(list(self._codings), self._blocks, contents).encode()
        if len(index) > MAX_U32:
            raise ContentError(f"an index of {len(index)} bytes is over the limit: use more files")
        footer = len(index).to_bytes(FOOTER_CHECKED, "little")
        check = zlib.crc32(footer, zlib.crc32(index, zlib.crc32(self._header)))
        self._sink.write(index + footer + check.to_bytes(4, "little"))
        return len(self)


class Reader:
    """A .pltz file opened for reading single frames.

    Args:
        source: the file's bytes, or an mmap.

    Raises:
        FormatError: not a .pltz file; its subclasses CorruptError and VersionError say more.
    """

    def __init__(self, source: bytes | bytearray | memoryview | mmap.mmap) -> None:
        self._view: memoryview | None = memoryview(source).cast("B")
        self.size = self._view.nbytes  # bytes
        self._owned: mmap.mmap | None = None
        self._damaged: list[int] | None = None
        self._heads: dict[int, SessionBlock] = {}  # of blocks, by number
        self._piece: tuple[tuple[int, int], bytes] | None = None  # the last one read: block and number in it, bytes
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
        return self._firsts[-1]

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
        self._view = self._owned = None

    @property
    def overhead(self) -> int:
        """Return the bytes of the file beside the frames: header, heads of blocks, index, footer."""
        return self.size - sum(place.body for place in self._index.blocks)

    def info(self, index: int) -> Info:
        """Return what the file says of session ``index`` without reading its frame.

        Raises:
            UsageError: there is no such session.
            VersionError: the session is coded as a newer format does.
            CorruptError: the head of its block is damaged.
        """
        block, row = self._place(index)
        coding = self._coding(block, row)
        offset = block.offset + block.size + block.ends[row] - block.sizes[row]
        count, step = block.columns[COUNT][row], block.columns[STEP][row]
        context = index - step if step else None
        size = block.sizes[row]
        return Info(coding.content, coding.method, count, block.check_of(row), offset, size, context)

    def frame(self, index: int) -> Frame:
        """Return session ``index`` as it was given to `Writer.add`, with the part of its check that the file keeps.

        Raises:
            UsageError: there is no such session.
            VersionError: the session is coded as a newer format does.
            CorruptError: its bytes are not as they were written, or break a rule of the format.
        """
        block, row = self._place(index)
        coding = self._coding(block, row)
        data = self._bitstring(index, block, row)
        copied, step = bool(block.columns[COPIED][row]), block.columns[STEP][row]
        if step:
            self._check_contexts(index, step)
        context = index - step if step else None
        return Frame.of(coding, block.columns[COUNT][row], block.check_of(row), data, copied, context)

    def frames(self, indices: Iterable[int]) -> list[Frame]:
        """Return several sessions as `frame` does."""
        return [self.frame(index) for index in indices]

    def _place(self, index: int) -> tuple[SessionBlock, int]:
        """Return the block of a session, and its row there."""
        self._check_number(index)
        number = bisect_right(self._firsts, index) - 1
        try:
            block = self._block(number)
        except CorruptError as exc:
            raise CorruptError(f"session {index}: {exc}") from exc
        return block, index - block.first

    def _block(self, number: int) -> SessionBlock:
        """Return a block. Raises CorruptError where its head is damaged, VersionError where it is newer."""
        found = self._heads.get(number)
        if found is None:
            place, offset = self._index.blocks[number], self._offsets[number]
            data, first = self._read(offset, place.head), self._firsts[number]
            found = SessionBlock.of(data, offset, self._salt, first, self._index.codings)
            if (found.count, found.size, found.body) != place:
                raise CorruptError(f"the block at byte {offset} is not as the index says: the file is damaged")
            if len(self._heads) == HEADS:
                del self._heads[next(iter(self._heads))]
            self._heads[number] = found
        return found

    def _coding(self, block: SessionBlock, row: int) -> FrameCoding:
        coding = self._index.codings[block.columns[CONTEXT][row]]
        if coding is None:
            raise VersionError(f"session {block.first + row} is coded as this pltz does not know: use a newer pltz")
        return coding

    def _bitstring(self, index: int, block: SessionBlock, row: int) -> bytes:
        """Return the bytes of a frame, after the check of its piece."""
        piece = block.piece(row)
        if piece is None:
            return b""
        key = block.offset, piece.number
        if self._piece is None or self._piece[0] != key:
            data = self._read(block.offset + block.size + piece.begin, piece.end - piece.begin)
            if not block.sound(piece, data):
                first, last = block.first + piece.first, block.first + piece.last - 1
                raise CorruptError(
                    f"session {index}: some byte of sessions {first} to {last} is not what was written: the file is "
                    "damaged, and `pltz inspect` lists its damaged sessions"
                )
            self._piece = key, data
        return block.bitstring(row, piece, self._piece[1])

    def _check_contexts(self, index: int, step: int) -> None:
        """Check that the sessions behind a session have tokens and are not too many. Raises CorruptError."""
        behind, number = 0, index
        while step:
            number, behind = number - step, behind + 1
            block, row = self._place(number)
            coding, step = self._index.codings[block.columns[CONTEXT][row]], block.columns[STEP][row]
            if behind > MOST_CONTEXTS or (coding and not coding.has_tokens):
                raise CorruptError(
                    f"session {index} has a context without tokens, or more than {MOST_CONTEXTS} in a row: the file is "
                    "damaged"
                )

    def _check_number(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise UsageError(f"expected a session number from 0 to {len(self) - 1}, got {index}")

    def damaged(self) -> list[int]:
        """Return the sessions whose bytes are not as they were written. All bytes are read, nothing is decoded."""
        if self._damaged is None:
            hurt: list[int] = []
            for number, place in enumerate(self._index.blocks):
                first = self._firsts[number]
                try:
                    block = self._block(number)
                    body = self._read(block.offset + block.size, block.body)
                    bad = {row for piece in block.damaged(body) for row in range(piece.first, piece.last)}
                except VersionError:
                    continue
                except CorruptError:
                    hurt.extend(range(first, first + place.sessions))
                    continue
                hurt.extend(first + row for row in sorted(bad) if block.sizes[row])
            self._damaged = hurt
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
        if len(self) and contents_check(np.fromiter(checks, np.uint32)) != self._index.contents:
            raise CorruptError(
                "the check of all contents does not hold, although each session passes its own: some session was not "
                "decoded to what was written. Use the engine that wrote the file, and report this"
            )

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
        self._salt = start[:header_size]
        self._index = Index.decode(index) if index else NO_SESSIONS
        blocks = self._index.blocks
        # of each block and behind the last: number of the first session, byte offset
        self._firsts = list(accumulate((place.sessions for place in blocks), initial=0))
        self._offsets = list(accumulate((place.head + place.body for place in blocks), initial=header_size))
        if self._offsets[-1] != index_at:
            raise CorruptError(
                f"expected {index_at - header_size} bytes of blocks, the index says "
                f"{self._offsets[-1] - header_size}: {NOT_WHOLE}"
            )

    def _read(self, offset: int, size: int) -> bytes:
        """Read exactly ``size`` bytes at ``offset``; both were checked against the file size."""
        if self._view is None:
            raise UsageError("this .pltz reader is closed")
        return bytes(self._view[offset : offset + size])
