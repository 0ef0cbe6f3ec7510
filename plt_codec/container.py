"""The .pltz file: many sessions, an index at the end, each session readable alone.

What: `Writer` puts frames into a file, `Reader` gets single frames out of bytes, an mmap or a seekable file.
Spec: FORMAT.md, "Container". Nothing here decodes a token: a frame is bytes plus what the index says of it.

How: header, frames, index, footer. The index is columnar (columns.py), so a session costs 4 bytes of check and less
than 3 of count and length, and a file of a million sessions opens without one Python object a session.

Why the index at the end: the writer streams, and a file that was not finished has no footer and is refused.

    >>> import io
    >>> header = Header(contract=1, bundle_id=bytes(16))
    >>> frame = Frame(Kind.TEXT_FALLBACK, 2, content_check(Kind.TEXT_FALLBACK, 2, b"hi"), b"hi")
    >>> data = pack(header, [frame, frame])
    >>> reader = Reader(data)
    >>> len(reader), reader.frame(1) == frame
    (2, True)
"""

from __future__ import annotations

import enum
import hashlib
import io
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

from pltz.plt_codec import columns
from pltz.plt_codec.copies import Copy, unpack
from pltz.plt_codec.errors import ContentError, CorruptError, FormatError, UsageError, VersionError
from pltz.plt_codec.layout import MAX_BLOCK, MAX_LANES
from pltz.plt_codec.varint import read_varint, write_varint

MAGIC = b"PLTZ"
END_MARK = b"ZTLP"
FORMAT_VERSION = 1
FLAG_TOKENIZER = 1
FLAG_TARGET = 2
FINGERPRINT = 16  # bytes of a bundle id, a fingerprint, the file digest

HEADER_FIXED = struct.Struct("<4sBBH16s")
FOOTER = struct.Struct("<II16sI4s")
FOOTER_CHECKED = 24  # footer bytes under the footer's crc
HEADER_MAX = HEADER_FIXED.size + 2 * FINGERPRINT + 4  # bytes

KIND_BITS = 3
KIND_RESERVED = 6
KIND_EXTENDED = 7
EXTENDED_LAYOUT = 1 << 3
EXTENDED_PATCH = 1 << 4
EXTENDED_COPIES = 1 << 6

MAX_COUNT = (1 << 29) - 1  # tokens or bytes of a session
MAX_U32 = (1 << 32) - 1
MAX_TOKENS_PER_BYTE = 256  # of a model frame, plus one byte
PIECE = 1 << 20  # bytes hashed at a time

I64 = npt.NDArray[np.int64]


class Kind(enum.IntEnum):
    """What a frame holds: a chat, a text or token ids, coded by the model or as fallback bytes."""

    CHAT = 0
    TEXT = 1
    IDS = 2
    CHAT_FALLBACK = 3
    TEXT_FALLBACK = 4
    IDS_FALLBACK = 5

    @property
    def by_model(self) -> bool:
        """Whether the count is in tokens (else in bytes)."""
        return self < Kind.CHAT_FALLBACK

    @property
    def session(self) -> str:
        """The session's kind: "chat", "text" or "ids"."""
        return ("chat", "text", "ids")[self % 3]


@dataclass(frozen=True, slots=True)
class Header:
    """What every session of a file shares.

    Args:
        contract: numeric contract version, 0 to 65535.
        bundle_id: 16 bytes.
        tokenizer_fingerprint: 16 bytes; None where ids belong to the bundle's own tokenizer.
        target_fingerprint: 16 bytes; None for any target.
    """

    contract: int
    bundle_id: bytes
    tokenizer_fingerprint: bytes | None = None
    target_fingerprint: bytes | None = None

    def __post_init__(self) -> None:
        for name in ("bundle_id", "tokenizer_fingerprint", "target_fingerprint"):
            value = getattr(self, name)
            if value is not None and len(value) != FINGERPRINT:
                raise UsageError(f"{name}: expected {FINGERPRINT} bytes, got {len(value)}")
        if not 0 <= self.contract < 1 << 16:
            raise UsageError(f"contract: expected 0 to 65535, got {self.contract}")

    def encode(self) -> bytes:
        """Header bytes, 28 to 60."""
        flags = FLAG_TOKENIZER * (self.tokenizer_fingerprint is not None)
        flags |= FLAG_TARGET * (self.target_fingerprint is not None)
        body = HEADER_FIXED.pack(MAGIC, FORMAT_VERSION, flags, self.contract, self.bundle_id)
        body += (self.tokenizer_fingerprint or b"") + (self.target_fingerprint or b"")
        return body + zlib.crc32(body).to_bytes(4, "little")

    @classmethod
    def decode(cls, data: bytes) -> tuple[Header, int]:
        """Header and its size in bytes, from the start of a file.

        Raises:
            FormatError: not a .pltz file.
            VersionError: a newer format version, or a flag this version does not know.
            CorruptError: cut off, or the checksum does not hold.
        """
        if data[:4] != MAGIC:
            raise FormatError(f"expected a .pltz file (first bytes {MAGIC!r}), found {data[:4]!r}")
        if len(data) < HEADER_FIXED.size:
            raise CorruptError(
                f"expected {HEADER_FIXED.size} header bytes or more, found {len(data)}: cut off"
            )
        _, version, flags, contract, bundle_id = HEADER_FIXED.unpack_from(data)
        if version != FORMAT_VERSION:
            raise VersionError(f"expected .pltz format {FORMAT_VERSION}, found {version}: use a newer pltz")
        if flags & ~(FLAG_TOKENIZER | FLAG_TARGET):
            raise VersionError(f"unknown header flags {flags:#04x}: use a newer pltz")
        position = HEADER_FIXED.size
        fingerprints: list[bytes | None] = [None, None]
        for i, flag in enumerate((FLAG_TOKENIZER, FLAG_TARGET)):
            if flags & flag:
                fingerprints[i] = data[position : position + FINGERPRINT]
                position += FINGERPRINT
        check = data[position : position + 4]
        if check != zlib.crc32(data[:position]).to_bytes(4, "little"):
            raise CorruptError("the header does not match its checksum: the file is damaged or cut off")
        return cls(contract, bundle_id, fingerprints[0], fingerprints[1]), position + 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One coded session.

    Args:
        kind: what ``data`` holds.
        count: bundle tokens (model kinds) or bytes before compression (fallback kinds).
        check: `content_check` of the session.
        data: the coded bytes.
        lanes, steps: layout of every block, where it is not the default; model kinds only.
        patch: the bridge's patch; kind IDS only.
        copies: what was taken out of the tokens before they were coded (`copies.pack`); model kinds only.
    """

    kind: Kind
    count: int
    check: int
    data: bytes
    lanes: int | None = None
    steps: int | None = None
    patch: bytes = b""
    copies: bytes = b""

    @property
    def extended(self) -> bool:
        """Whether the file needs more than ``data`` and the index for it."""
        return bool(self.patch or self.copies) or self.lanes is not None or self.steps is not None

    @property
    def coded(self) -> int:
        """Tokens in ``data``: all but those of copies. Raises CorruptError where the copies cannot be."""
        return self.count - sum(copy.length for copy in self.unpacked())

    def unpacked(self) -> list[Copy]:
        """The copies, checked. Raises CorruptError where they cannot be those of this frame."""
        return unpack(self.copies, self.count) if self.copies else []

    @property
    def fits(self) -> bool:
        """Whether ``count`` is within what the format allows for this many bytes."""
        limit = MAX_TOKENS_PER_BYTE * (len(self.encode()) + 1) if self.kind.by_model else MAX_COUNT
        return 0 <= self.count <= min(limit, MAX_COUNT)

    def encode(self) -> bytes:
        """The frame's bytes in the file: ``data`` itself, or the extended form around it.

        Raises:
            UsageError: a field does not fit the kind.
        """
        if not self.extended:
            return self.data
        head = int(self.kind)
        body = b""
        if self.lanes is not None or self.steps is not None:
            if self.lanes is None or self.steps is None or not self.kind.by_model:
                raise UsageError("lanes and steps come together, and only for frames coded by the model")
            if not _layout_fits(self.lanes, self.steps):
                raise UsageError(f"{self.lanes} lanes by {self.steps} steps are over the limit of the format")
            head |= EXTENDED_LAYOUT
            body += write_varint(self.lanes) + write_varint(self.steps)
        if self.patch:
            if self.kind != Kind.IDS:
                raise UsageError(f"only sessions of ids can have a patch, not {self.kind.session}")
            head |= EXTENDED_PATCH
            body += write_varint(len(self.patch)) + self.patch
        if self.copies:
            if not self.kind.by_model:
                raise UsageError("only frames coded by the model can have copies")
            head |= EXTENDED_COPIES
            body += write_varint(len(self.copies)) + self.copies
        return bytes([head]) + body + self.data


@dataclass(frozen=True, slots=True)
class Info:
    """What the index says of one session."""

    kind: Kind
    count: int
    check: int
    offset: int  # bytes from the start of the file
    size: int  # bytes of the whole frame


def content_check(kind: Kind, count: int, content: bytes | npt.NDArray[np.integer]) -> int:
    """crc32 of kind, count and content; ids are taken as little-endian u32.

    >>> hex(content_check(Kind.TEXT_FALLBACK, 2, b"hi"))
    '0xbda16235'
    """
    if not isinstance(content, bytes):
        content = np.ascontiguousarray(content, dtype="<u4").tobytes()
    return zlib.crc32(content, zlib.crc32(struct.pack("<BI", kind, count)))


def pack(header: Header, frames: Iterable[Frame]) -> bytes:
    """A whole .pltz file in memory."""
    sink = io.BytesIO()
    writer = Writer(sink, header)
    for frame in frames:
        writer.add(frame)
    writer.finish()
    return sink.getvalue()


class Writer:
    """Write a .pltz file front to back: header, each `add`, then index and footer by `finish`.

    A crash before `finish` returns leaves a file without a footer, which every reader refuses. Syncing the file and
    renaming it into place is the caller's part.
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
        """Append one frame; returns its session number.

        Raises:
            ContentError: over a limit of the format.
            UsageError: a field does not fit the frame's kind.
        """
        if self._finished:
            raise UsageError("this .pltz writer has finished its file and takes no more sessions")
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
        """Write index and footer. The writer takes no frame afterwards."""
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
    """Read single frames of a .pltz file.

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
        """Map the file at ``path``.

        Raises:
            UsageError: there is no such readable file.
            FormatError: see `Reader`.
        """
        try:
            with Path(path).open("rb") as file:
                if not file.seek(0, os.SEEK_END):
                    raise CorruptError(f"expected a .pltz file, found an empty one: {os.fspath(path)}")
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as exc:
            raise UsageError(f"cannot read {os.fspath(path)}: {exc.strerror or exc}") from exc
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
        """Let go of the source; a second call does nothing."""
        if self._view is not None:
            self._view.release()
        if self._owned is not None:
            self._owned.close()
        self._view = self._owned = self._file = None

    @property
    def overhead(self) -> int:
        """Bytes of the file beside the frames: header, index, footer."""
        return self.size - int(self._offsets[-1] - self._offsets[0])

    def info(self, index: int) -> Info:
        """What the file says of session ``index``, without reading its frame (one byte of an extended frame).

        Raises:
            UsageError: there is no such session.
            VersionError: a session kind of a newer format.
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
        """Session ``index``, as it was given to `Writer.add`.

        Raises:
            UsageError: there is no such session.
            VersionError: a session kind or an extension of a newer format.
            CorruptError: the frame breaks a rule of the format.
        """
        info = self.info(index)
        data = self._read(info.offset, info.size)
        frame = Frame(info.kind, info.count, info.check, data)
        if int(self._sizes[index]) & KIND_EXTENDED == KIND_EXTENDED:
            frame = _decode_extended(frame)
        return frame

    def verify(self) -> None:
        """Check every byte of the file against the digest in its footer; decodes nothing.

        Raises:
            CorruptError: some byte is not what was written.
        """
        digest = hashlib.blake2b(digest_size=FINGERPRINT)
        end = self.size - FOOTER.size
        for offset in range(0, end, PIECE):
            digest.update(self._read(offset, min(PIECE, end - offset)))
        if digest.digest() != self.digest:
            raise CorruptError(
                f"expected file digest {self.digest.hex()}, found {digest.hexdigest()}: some byte of the file is damaged"
            )

    def _open(self) -> None:
        """Header, footer and index, in this order."""
        self.header, header_size = Header.decode(self._read(0, min(HEADER_MAX, self.size)))
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
        """Exactly ``size`` bytes at ``offset``; both were checked against the file size."""
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


def _decode_extended(frame: Frame) -> Frame:
    """Undo `Frame.encode` for a frame whose ``data`` is still the whole extended form."""
    data, kind = frame.data, frame.kind
    flags = data[0] & ~KIND_EXTENDED
    if flags & ~(EXTENDED_LAYOUT | EXTENDED_PATCH | EXTENDED_COPIES):
        raise VersionError(f"unknown extension {data[0]:#04x} of a frame: use a newer pltz")
    patched, layout = bool(flags & EXTENDED_PATCH), bool(flags & EXTENDED_LAYOUT)
    by_model = bool(flags & (EXTENDED_LAYOUT | EXTENDED_COPIES))
    if not flags or (by_model and not kind.by_model) or (patched and kind != Kind.IDS):
        raise CorruptError(f"an extended frame cannot start with {data[0]:#04x}: the file is damaged")
    offset = 1
    lanes = steps = None
    if layout:
        lanes, offset = read_varint(data, offset)
        steps, offset = read_varint(data, offset)
        if not _layout_fits(lanes, steps):
            raise CorruptError(f"{lanes} lanes by {steps} steps are over the limit: the file is damaged")
    patch = taken = b""
    if patched:
        patch, offset = _sized(data, offset, "a patch")
    if flags & EXTENDED_COPIES:
        taken, offset = _sized(data, offset, "copies")
    return Frame(kind, frame.count, frame.check, data[offset:], lanes, steps, patch, taken)


def _sized(data: bytes, offset: int, what: str) -> tuple[bytes, int]:
    """A field of a frame that is not empty and has its length before it; the offset after it."""
    size, offset = read_varint(data, offset)
    end = offset + size
    if not size or end > len(data):
        raise CorruptError(f"{what} of {size} bytes cannot be in its frame: the file is damaged")
    return data[offset:end], end


def _layout_fits(lanes: int, steps: int) -> bool:
    return 1 <= lanes <= MAX_LANES and 1 <= steps and lanes * steps <= MAX_BLOCK


def _offsets(lengths: columns.U32, first: int, end: int) -> I64:
    """(N + 1) offsets of the frames; they fill the bytes from ``first`` to ``end`` exactly."""
    offsets = np.empty(len(lengths) + 1, dtype=np.int64)
    offsets[0] = first
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    offsets[1:] += first
    if offsets[-1] != end:
        raise CorruptError(f"expected {end - first} bytes of frames, the index says {offsets[-1] - first}")
    return offsets


def _check_columns(sizes: columns.U32, lengths: columns.U32) -> None:
    """Counts against frame lengths, for all sessions at once; an extended frame is held to the looser bound."""
    kinds = sizes & KIND_EXTENDED
    counts = (sizes >> KIND_BITS).astype(np.int64)
    by_model = kinds < Kind.CHAT_FALLBACK
    fallback = ~by_model & (kinds < KIND_RESERVED)
    room = MAX_TOKENS_PER_BYTE * (lengths.astype(np.int64) + 1)
    crowded = (by_model | (kinds == KIND_EXTENDED)) & (counts > room)
    if (wrong := np.flatnonzero(crowded | (fallback & (lengths > counts)))).size:
        i = int(wrong[0])
        raise CorruptError(f"session {i}: {counts[i]} tokens or bytes cannot be in {lengths[i]}: damaged")
