"""The frame of one session in the container: content, method, count, check and bytes. Spec: FORMAT.md, "Frames".

What many frames share is said once per file, by their *coding*: content, method, layout, patch and writing. The rest of
a frame is its bitstring: a bridge's patch, and the bitstring of a segment codec.

    >>> frame = Frame(Kind.IDS, Method.MODEL, 3, 0, b"coded", fast=True)
    >>> frame.coding.encode().hex()
    '0112'
    >>> Frame.of(frame.coding, 3, 0, frame.encode()) == frame
    True
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import CorruptError, UsageError
from pltz.plt_codec.identity import SIZE
from pltz.plt_codec.lanes import LANE_MARK, Layout, Tokens, layout_of
from pltz.plt_codec.limits import MAX_TOKENS
from pltz.plt_codec.repeats import Copy, end_of, split
from pltz.plt_codec.varint import read_varint, write_varint

FAST_BIT, PATCHED, WRITTEN = 1 << 4, 1 << 5, 1 << 7  # bits of the first byte of a coding, beside content and method
KNOWN = 0xBF  # bits of that byte that this version knows

# modes, bits that say how the tokens of a segment were coded (archive/format/FORMAT.md, "Block")
ALONE, TOWER, FAST = 0, 1, 2
CODING = TOWER | FAST  # those that the mode of a record has
COPIES = 32  # the bitstring begins with copies; of files, and of no record

CHECK_KEPT = 0xFF  # the part of a content check that a file keeps per session

CONTEXT_TOKENS = 1 << 10  # of a context: those of other sessions, and `LANE_MARK`
MOST_CONTEXTS = 3  # sessions that stand behind one, each the context of the one before

MAX_COUNT = MAX_TOKENS  # tokens or bytes per session
MAX_TOKENS_PER_BYTE = 256  # of a model frame, plus one byte


class Kind(enum.IntEnum):
    """The content of a session: a chat, a text or token ids. Archives have the same numbers."""

    CHAT = 0
    TEXT = 1
    IDS = 2

    @property
    def kind(self) -> str:
        """Return the session's kind: "chat", "text" or "ids"."""
        return self.name.lower()


class Method(enum.IntEnum):
    """The way in which a content is coded: its tokens by the model, its bytes by a table of logs, or by zstd."""

    MODEL = 0
    LOG = 1
    BYTES = 2


PPMD = 3  # method of archives, beside these: tokens of the bundle by PPMd


def tokenizer_of_bytes(method: int, splitter: int = 0) -> bytes:
    """Return what stands in the place of a tokenizer's fingerprint, 16 bytes, where tokens are bytes.

    ``splitter``: of a log, the number of the splitter that cut it into a table.

    >>> tokenizer_of_bytes(Method.LOG, 1).hex()
    '01010000000000000000000000000000'
    """
    return bytes([method, splitter]).ljust(SIZE, b"\0")


@lru_cache(256)
def is_bytewise(tokenizer: bytes) -> bool:
    """Return whether the tokens of a tokenizer are bytes.

    >>> is_bytewise(tokenizer_of_bytes(Method.LOG, 1)), is_bytewise(bytes(range(16)))
    (True, False)
    """
    return tokenizer[0] in (Method.LOG, Method.BYTES) and not any(tokenizer[2:])


@dataclass(frozen=True, slots=True)
class FrameCoding:
    """The way in which some frames of a file are coded, said once for all of them. Attributes as those of `Frame`."""

    content: Kind
    method: Method = Method.MODEL
    fast: bool = False
    patched: bool = False
    writing: int = 0

    @property
    def has_tokens(self) -> bool:
        """Return whether such frames are coded by the model or as a log, so that they may have a context."""
        return self.method is not Method.BYTES

    def fits(self, count: int, size: int) -> bool:
        """Return whether a frame of ``size`` bytes may have this count."""
        most = MAX_TOKENS_PER_BYTE * (size + 1) if self.has_tokens else MAX_COUNT
        return 0 <= count <= min(most, MAX_COUNT)

    def encode(self) -> bytes:
        """Return the coding's bytes, with their number in front. Raises UsageError where fields do not go together."""
        if wrong := self._wrong():
            raise UsageError(wrong)
        head = self.content | self.method << 2 | self.fast * FAST_BIT | self.patched * PATCHED
        head |= WRITTEN if self.writing else 0
        body = bytes([head]) + (write_varint(self.writing) if self.writing else b"")
        return bytes([len(body)]) + body

    @classmethod
    def decode(cls, data: bytes) -> FrameCoding | None:
        """Undo `encode`, without the number in front; None where a newer version wrote it.

        Raises:
            CorruptError: the bytes break a rule of the format.
        """
        if not data:
            raise CorruptError("a coding of no bytes: the file is damaged")
        head, offset, writing = data[0], 1, 0
        if head & ~KNOWN or head & 3 >= len(Kind) or head >> 2 & 3 >= len(Method):
            return None
        if head & WRITTEN:
            writing, offset = read_varint(data, offset)
        content, method = Kind(head & 3), Method(head >> 2 & 3)
        found = cls(content, method, bool(head & FAST_BIT), bool(head & PATCHED), writing)
        if (wrong := found._wrong()) or bool(head & WRITTEN) is not bool(writing):
            raise CorruptError(f"{wrong or 'a writing of no number'}: the file is damaged")
        if offset != len(data):
            raise CorruptError(f"a coding of {len(data)} bytes, of which {offset} have a meaning: the file is damaged")
        return found

    def _wrong(self) -> str:
        """Return how fields do not go together; "" where they do."""
        if self.fast and self.method is not Method.MODEL:
            return "only frames coded by the model have a layout"
        if self.patched and (self.content, self.method) != (Kind.IDS, Method.MODEL):
            return "only ids that the model codes can have a patch"
        if self.content is Kind.IDS and self.method is Method.LOG:
            return "a log is a chat or a text"
        if self.writing and self.content is not Kind.CHAT:
            return "only a chat has a writing"
        return ""


@dataclass(frozen=True, slots=True)
class Frame:
    """One coded session.

    Args:
        content: that of ``data``,
        method: and how it is coded there.
        count: bundle tokens (method MODEL) or bytes before compression.
        check: `content_check` of the session, its low byte (`CHECK_KEPT`) where a file gave the frame.
        data: the coded bytes, the bitstring of a segment codec (coding/codecs).
        fast: the layout is the fast one; method MODEL only.
        patch: the bridge's patch; ids of method MODEL only.
        copied: `data` begins with copies that were taken out of the tokens (`repeats.pack`); method MODEL only.
        context: number of the session of the file after whose tokens (`context_of`) `data` was coded, and into which
            copies may reach; not of method BYTES. Of a log it is a log, whose content counts.
        writing: number of the writing of the input's bytes (models/session/spelling.py); chats only.
    """

    content: Kind
    method: Method
    count: int
    check: int
    data: bytes
    fast: bool = False
    patch: bytes = b""
    copied: bool = False
    context: int | None = None
    writing: int = 0

    @property
    def coding(self) -> FrameCoding:
        """Return what the file says once for all frames that are coded like this one."""
        return FrameCoding(self.content, self.method, self.fast, bool(self.patch), self.writing)

    @property
    def has_tokens(self) -> bool:
        """Return whether the frame is coded by the model or as a log, so that it may have a context."""
        return self.method is not Method.BYTES

    @property
    def by_model(self) -> bool:
        """Return whether the count is in tokens (else in bytes)."""
        return self.method is Method.MODEL

    @property
    def log(self) -> bool:
        """Return whether the data is a log frame (coding/FORMAT.md)."""
        return self.method is Method.LOG

    @property
    def layout(self) -> Layout:
        """Return the layout of the blocks. Raises CorruptError as `coded`."""
        return layout_of(self.coded, fast=self.fast)

    @property
    def coded(self) -> int:
        """Return the number of tokens that are coded: all but those of copies.

        Raises:
            CorruptError: the copies cannot be those of this frame.
        """
        return self.count - sum(copy.length for copy in self.unpacked())

    def unpacked(self) -> list[Copy]:
        """Return the copies, checked. Raises CorruptError where they cannot be those of this frame."""
        return split(self.data, self.count, 0 if self.context is None else CONTEXT_TOKENS)[0] if self.copied else []

    @property
    def fits(self) -> bool:
        """Return whether ``count`` is within the format's limit for this many bytes."""
        return self.coding.fits(self.count, len(self.encode()))

    def encode(self) -> bytes:
        """Return the frame's bytes in the file, its bitstring: patch, then data.

        Raises:
            UsageError: copies go with method MODEL alone.
        """
        if self.copied and not self.by_model:
            raise UsageError("only frames coded by the model can have copies")
        patch = write_varint(len(self.patch)) + self.patch if self.patch else b""
        return patch + self.data

    @classmethod
    def of(
        cls, coding: FrameCoding, count: int, check: int, data: bytes, copied: bool = False, context: int | None = None
    ) -> Frame:
        """Undo `encode`. ``copied``: whether the coded data begins with copies.

        Raises:
            CorruptError: the bytes break a rule of the format.
        """
        offset, patch = 0, b""
        if coding.patched:
            size, offset = read_varint(data, offset)
            end = offset + size
            if not size or end > len(data):
                raise CorruptError(f"a patch of {size} bytes cannot be in its frame: the file is damaged")
            patch, offset = data[offset:end], end
        if copied:
            end_of(data, offset)  # raises where none begin there
        rest = data[offset:]
        fields = coding.content, coding.method, count, check, rest, coding.fast, patch, copied, context, coding.writing
        return cls(*fields)


def context_of(nearest: Tokens, *behind: Tokens) -> Tokens:
    """Return the context, (m,), of a session that is coded after one of these tokens, (T,).

    ``behind``: tokens of that one's context, of the context of this, and so on.

    >>> context_of(np.array([7, 8]), np.array([5])).tolist(), len(context_of(np.arange(5000), np.array([5])))
    ([5, 7, 8, 0], 1024)
    """
    parts = [nearest[: CONTEXT_TOKENS - 1]]
    left = CONTEXT_TOKENS - 1 - len(parts[0])
    for tokens in behind:
        if len(tokens) > left:
            break
        parts.append(tokens)
        left -= len(tokens)
    return np.concatenate([*parts[::-1], [LANE_MARK]])


def content_check(content: Kind, method: Method, count: int, data: bytes | npt.NDArray[np.integer]) -> int:
    """Return the crc32 of content, method, count and data, which is bytes or ids (T,). Ids count as little-endian u32.

    >>> hex(content_check(Kind.TEXT, Method.BYTES, 2, b"hi"))
    '0xdc7603f5'
    """
    if not isinstance(data, bytes):
        data = np.ascontiguousarray(data, dtype="<u4").tobytes()
    return zlib.crc32(data, zlib.crc32(struct.pack("<BI", content | method << 2, count)))
