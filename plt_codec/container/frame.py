"""The frame of one session in the container: kind, count, check and bytes. Spec: FORMAT.md, "Frames".

What many frames share is said once per file, by their *coding*: kind, layout, writing, whether it is a log or has a
patch.
The rest of a frame is its bitstring: a bridge's patch, and the bitstring of a segment codec.

    >>> frame = Frame(Kind.IDS, 3, 0, b"coded", lanes=2, steps=4)
    >>> frame.coding
    FrameCoding(kind=<Kind.IDS: 2>, lanes=2, steps=4, patched=False, log=False, writing=0)
    >>> Frame.of(frame.coding, 3, 0, frame.encode()) == frame
    True
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import CorruptError, UsageError
from pltz.plt_codec.lanes import LANE_MARK, MAX_BLOCK, MAX_LANES, Layout
from pltz.plt_codec.limits import MAX_TOKENS
from pltz.plt_codec.repeats import Copy, end_of, split
from pltz.plt_codec.types import Tokens
from pltz.plt_codec.varint import read_varint, write_varint

KIND_MASK = 7  # of the first byte of a coding; the bits above name its other fields
HAS_LAYOUT = 1 << 3
HAS_PATCH = 1 << 4
IS_LOG = 1 << 5
HAS_WRITING = 1 << 7
KNOWN = 0xBF  # bits of that byte that this version knows

CHECK_KEPT = 0xFF  # the part of a content check that a file keeps per session

CONTEXT_TOKENS = 1 << 10  # of a context: those of other sessions, and `LANE_MARK`
LONG_STEPS = 1 << 11  # of a block that the layout of a file has, in one lane, or two where there are more tokens
FEW_LANES_MOST = 1 << 16  # tokens coded so; a longer frame would take too many steps alone
ONE, TWO, MANY = Layout(1, LONG_STEPS), Layout(2, LONG_STEPS), Layout(16, 256)

MOST_CONTEXTS = 3  # sessions that stand behind one, each the context of the one before

MAX_COUNT = MAX_TOKENS  # tokens or bytes per session
MAX_TOKENS_PER_BYTE = 256  # of a model frame, plus one byte


class Kind(enum.IntEnum):
    """The content of a frame: a chat, a text or token ids, coded by the model or as fallback bytes."""

    CHAT = 0
    TEXT = 1
    IDS = 2
    CHAT_FALLBACK = 3
    TEXT_FALLBACK = 4
    IDS_FALLBACK = 5

    @property
    def by_model(self) -> bool:
        """Return whether the count is in tokens (else in bytes)."""
        return self < Kind.CHAT_FALLBACK

    @property
    def session(self) -> str:
        """Return the session's kind: "chat", "text" or "ids"."""
        return ("chat", "text", "ids")[self % 3]


KINDS = tuple(Kind)  # by number, faster than Kind()
CHATS = Kind.CHAT, Kind.CHAT_FALLBACK  # kinds that a writing may have
LOGS = Kind.CHAT_FALLBACK, Kind.TEXT_FALLBACK  # kinds that a log may have


@dataclass(frozen=True, slots=True)
class FrameCoding:
    """The way in which some frames of a file are coded, said once for all of them. Attributes as those of `Frame`."""

    kind: Kind
    lanes: int | None = None
    steps: int | None = None
    patched: bool = False
    log: bool = False
    writing: int = 0

    @property
    def has_tokens(self) -> bool:
        """Return whether such frames are coded by the model or as a log, so that they may have a context."""
        return self.log or self.kind.by_model

    def fits(self, count: int, size: int) -> bool:
        """Return whether a frame of ``size`` bytes may have this count."""
        most = MAX_TOKENS_PER_BYTE * (size + 1) if self.has_tokens else MAX_COUNT
        return 0 <= count <= min(most, MAX_COUNT)

    def encode(self) -> bytes:
        """Return the coding's bytes, with their number in front.

        Raises:
            UsageError: a field does not fit the kind.
        """
        head, body = int(self.kind), b""
        if self.lanes is not None or self.steps is not None:
            if self.lanes is None or self.steps is None or not self.kind.by_model:
                raise UsageError("lanes and steps come together, and only for frames coded by the model")
            if not _layout_fits(self.lanes, self.steps):
                raise UsageError(f"{self.lanes} lanes by {self.steps} steps are over the limit of the format")
            head |= HAS_LAYOUT
            body += write_varint(self.lanes) + write_varint(self.steps)
        if self.patched:
            if self.kind != Kind.IDS:
                raise UsageError(f"only sessions of ids can have a patch, not {self.kind.session}")
            head |= HAS_PATCH
        if self.log:
            if self.kind not in LOGS:
                raise UsageError("a log is a chat or a text in bytes")
            head |= IS_LOG
        if self.writing:
            if self.kind not in CHATS:
                raise UsageError("only a chat has a writing")
            head |= HAS_WRITING
            body += write_varint(self.writing)
        return bytes([1 + len(body), head]) + body

    @classmethod
    def decode(cls, data: bytes) -> FrameCoding | None:
        """Undo `encode`, without the number in front; None where a newer version wrote it.

        Raises:
            CorruptError: the bytes break a rule of the format.
        """
        if not data:
            raise CorruptError("a coding of no bytes: the file is damaged")
        head, offset, lanes, steps = data[0], 1, None, None
        if head & ~KNOWN or head & KIND_MASK >= len(Kind):
            return None
        kind, log = KINDS[head & KIND_MASK], bool(head & IS_LOG)
        if head & HAS_LAYOUT:
            lanes, offset = read_varint(data, offset)
            steps, offset = read_varint(data, offset)
            if not _layout_fits(lanes, steps):
                raise CorruptError(f"{lanes} lanes by {steps} steps are over the limit: the file is damaged")
        writing = 0
        if head & HAS_WRITING:
            writing, offset = read_varint(data, offset)
            if not writing or kind not in CHATS:
                raise CorruptError(f"no frame has writing {writing}: the file is damaged")
        patched = bool(head & HAS_PATCH)
        if (lanes and not kind.by_model) or (patched and kind != Kind.IDS) or (log and kind not in LOGS):
            raise CorruptError(f"no frame is coded as {head:#04x}: the file is damaged")
        if offset != len(data):
            raise CorruptError(f"a coding of {len(data)} bytes, of which {offset} have a meaning: the file is damaged")
        return cls(kind, lanes, steps, patched, log, writing)


@dataclass(frozen=True, slots=True)
class Frame:
    """One coded session.

    Args:
        kind: the content of ``data``.
        count: bundle tokens (model kinds) or bytes before compression (fallback kinds).
        check: `content_check` of the session, its low byte (`CHECK_KEPT`) where a file gave the frame.
        data: the coded bytes, the bitstring of a segment codec (coding/codecs).
        lanes, steps: layout of every block, where it is not `file_layout`; model kinds only.
        patch: the bridge's patch; kind IDS only.
        copied: `data` begins with copies that were taken out of the tokens (`repeats.pack`); model kinds only.
        context: number of the session of the file after whose tokens (`context_of`) `data` was coded, and into which
            copies may reach; model kinds and logs only. Of a log it is a log, whose content counts.
        log: `data` is a log frame (coding/FORMAT.md) of the content; fallback kinds but ids only.
        writing: number of the writing of the input's bytes (models/session/spelling.py); chats only.
    """

    kind: Kind
    count: int
    check: int
    data: bytes
    lanes: int | None = None
    steps: int | None = None
    patch: bytes = b""
    copied: bool = False
    context: int | None = None
    log: bool = False
    writing: int = 0

    @property
    def coding(self) -> FrameCoding:
        """Return what the file says once for all frames that are coded like this one."""
        return FrameCoding(self.kind, self.lanes, self.steps, bool(self.patch), self.log, self.writing)

    @property
    def has_tokens(self) -> bool:
        """Return whether the frame is coded by the model or as a log, so that it may have a context."""
        return self.log or self.kind.by_model

    @property
    def layout(self) -> Layout:
        """Return the layout of the blocks.

        Raises:
            CorruptError: as `coded`.
        """
        return Layout(self.lanes, self.steps) if self.lanes else file_layout(self.coded)

    @property
    def coded(self) -> int:
        """Return the number of tokens that are coded: all but those of copies.

        Raises:
            CorruptError: the copies cannot be those of this frame.
        """
        return self.count - sum(copy.length for copy in self.unpacked())

    def unpacked(self, past: int = CONTEXT_TOKENS) -> list[Copy]:
        """Return the copies, checked.

        Args:
            past: tokens of the context; without one there are none.

        Raises:
            CorruptError: they cannot be those of this frame.
        """
        if not self.copied:
            return []
        return split(self.data, self.count, 0 if self.context is None else past)[0]

    @property
    def fits(self) -> bool:
        """Return whether ``count`` is within the format's limit for this many bytes."""
        return self.coding.fits(self.count, len(self.encode()))

    def encode(self) -> bytes:
        """Return the frame's bytes in the file, its bitstring: patch, then data.

        Raises:
            UsageError: the kind has no copies.
        """
        if self.copied and not self.kind.by_model:
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
        return cls(
            coding.kind, count, check, data[offset:], coding.lanes, coding.steps, patch, copied, context, coding.log,
            coding.writing,
        )  # fmt: skip


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


def file_layout(tokens: int) -> Layout:
    """Return the layout of a frame of a file that names none: few lanes, since each costs bytes.

    >>> file_layout(2048), file_layout(2049)
    (Layout(lanes=1, steps=2048), Layout(lanes=2, steps=2048))
    >>> file_layout(65537)
    Layout(lanes=16, steps=256)
    """
    return ONE if tokens <= LONG_STEPS else TWO if tokens <= FEW_LANES_MOST else MANY


def content_check(kind: Kind, count: int, content: bytes | npt.NDArray[np.integer]) -> int:
    """Return the crc32 of kind, count and content, which is bytes or ids (T,). Ids count as little-endian u32.

    >>> hex(content_check(Kind.TEXT_FALLBACK, 2, b"hi"))
    '0xbda16235'
    """
    if not isinstance(content, bytes):
        content = np.ascontiguousarray(content, dtype="<u4").tobytes()
    return zlib.crc32(content, zlib.crc32(struct.pack("<BI", kind, count)))


def _layout_fits(lanes: int, steps: int) -> bool:
    return 1 <= lanes <= MAX_LANES and 1 <= steps and lanes * steps <= MAX_BLOCK
