"""A .pltz file, as plt_codec/FORMAT.md describes it: index, contexts, copies, contents."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from tests.second_reader import chat, log
from tests.second_reader.fields import Damaged, Fields, Newer, block, copies_of, fallback, joined
from tests.second_reader.model import Bundle, layout_of, tokens_of, u32

MAGIC, VERSION, EXACT, KNOWN_FLAGS = b"PLTZ", 9, 128, 0b11000011
COLUMNS = CODING, COUNT, SIZE, COPIED, STEP = 1, 4, 5, 12, 13
CHAT, TEXT, IDS = range(3)  # contents
MODEL, LOG, BYTES = range(3)  # methods
MAX_COUNT, MOST_CONTEXTS, CONTEXT_TOKENS = (1 << 26) + (1 << 12), 3, 1024
Ids = Callable[[list[int], bytes], list[int]]  # the bridge: bundle tokens and a patch to the session's own ids


class Coding(NamedTuple):
    """Hold what many frames share. ``content``: -1 where a newer version wrote it. ``layout``: its number."""

    content: int
    method: int = MODEL
    layout: int = 0
    patch: bool = False
    writing: int = 0


class Frame(NamedTuple):
    """A session as it is stored."""

    coding: Coding
    units: int  # tokens or bytes
    data: bytes
    copied: bool
    step: int
    check: int  # low byte of the content check


class File:
    """A .pltz file. ``sessions``: its frames; ``content(i)`` and ``value(i)`` decode one."""

    def __init__(self, data: bytes, bundle: Bundle | None = None, ids: Ids | None = None) -> None:
        self._bundle, self._ids = bundle, ids
        self._tokens: dict[int, list[int]] = {}
        self._logs: dict[int, tuple[bytes, list[log.Table]]] = {}
        if data[:4] != MAGIC:
            raise Damaged("no .pltz file")
        fields = Fields(data, 4)
        version, flags = fields.number(1), fields.number(1)
        if version != VERSION or flags & ~KNOWN_FLAGS:
            raise Newer(f"format version {version}, flags {flags}")
        self.contract, self.bundle_id = fields.number(2), fields.take(16)
        self.tokenizer = fields.take(16) if flags & 1 else b""
        self.target = fields.take(16) if flags & 2 else b""
        self.exact, self.sessions = bool(flags & EXACT), list[Frame]()
        self._salt = data[: fields.at]
        size, check = struct.unpack("<II", data[-8:])
        index_at = len(data) - 8 - size
        if index_at < fields.at or len(data) < 8 + fields.at:
            raise Damaged("an index that begins before the sessions")
        if crc32(self._salt + data[index_at:-4]) != check:
            raise Damaged("header and index differ from their check")
        if size:
            self._read_index(data, fields.at, index_at)
        elif index_at != fields.at:
            raise Damaged("bytes between header and footer of an empty file")

    def _read_index(self, data: bytes, at: int, end: int) -> None:
        index = Fields(data[end:-8])
        self.contents_check, count = index.number(4), index.varint()
        if not 1 <= count <= 4096:
            raise Damaged(f"{count} codings")
        codings = [_coding(index.take(index.number(1))) for _ in range(count)]
        if index.at == len(index.data):
            raise Damaged("an index without blocks")
        while index.at < len(index.data):
            count, head, body = index.number(1), index.varint(), index.varint()
            if at + head + body > end:
                raise Damaged("a block beyond the index")
            found = block(data[:end], at, self._salt, COLUMNS)
            if (found.records, found.body, found.end) != (count, at + head, at + head + body):
                raise Damaged("a block that is not as the index says")
            for row, check in enumerate(found.parts.take(count)):
                number, units, _, copied, step = (found.columns[column][row] for column in COLUMNS)
                if number >= len(codings):
                    raise Damaged("a coding that is not there")
                if copied > 1:
                    raise Newer("copies of a newer version")
                begin, stop = found.spans[row]
                frame = Frame(codings[number], units, data[begin:stop], bool(copied), step, check)
                self._check_frame(frame)
                self.sessions.append(frame)
            found.parts.end()
            at = found.end
        if at != end:
            raise Damaged("bytes between blocks and index")

    def _check_frame(self, frame: Frame) -> None:
        coding = frame.coding
        least = 0 if coding.method == BYTES else frame.units
        if frame.units > MAX_COUNT or least > 256 * (len(frame.data) + 1):
            raise Damaged("a count over its limit")
        if frame.copied and coding.method != MODEL:
            raise Newer("copies in a frame of bytes")
        behind, number = frame, len(self.sessions)
        for depth in range(MOST_CONTEXTS + 1):
            if not behind.step:
                return
            number -= behind.step
            if number < 0 or depth == MOST_CONTEXTS:
                raise Damaged("a context before the first session, or four in a row")
            behind = self.sessions[number]
            if BYTES in (coding.method, behind.coding.method) or behind.coding.method != coding.method:
                raise Damaged("a context of another kind")

    def content(self, number: int) -> tuple[int, Any]:
        """Return the content of a session, 0 to 2, and its tokens, its own ids or its bytes."""
        frame = self.sessions[number]
        if frame.coding.content < 0:
            raise Newer("a session of a newer version")
        found = self._decoded(number)
        if self.content_check(number, found) & 255 != frame.check:
            raise Damaged(f"session {number} differs from its content check")
        return frame.coding.content, found

    def content_check(self, number: int, found: Any) -> int:
        """Return the content check of a session's tokens, ids or bytes."""
        frame = self.sessions[number]
        raw = found if isinstance(found, bytes) else u32(found)
        return crc32(struct.pack("<BI", frame.coding.content | frame.coding.method << 2, frame.units) + raw)

    def contents_hold(self, checks: Sequence[int]) -> bool:
        """Return whether the content checks of all sessions are those of the file."""
        return crc32(u32(checks)) == self.contents_check

    def _decoded(self, number: int) -> Any:
        frame = self.sessions[number]
        if frame.coding.method == LOG:
            return self._log(number)[0]
        if frame.coding.method == BYTES:
            return fallback(frame.data, frame.units, self._bundle.dictionary if self._bundle else b"")
        tokens, patch = self._model_tokens(number)
        return self._ids(tokens, patch) if frame.coding.content == IDS and self._ids else tokens

    def _log(self, number: int) -> tuple[bytes, list[log.Table]]:
        """Return the content of a log, and the tables above those that it is the context of."""
        frame = self.sessions[number]
        if number not in self._logs:
            above = self._log(number - frame.step)[1] if frame.step else []
            self._logs[number] = log.decoded(frame.data, frame.units, above, self._bundle)
        return self._logs[number]

    def _model_tokens(self, number: int) -> tuple[list[int], bytes]:
        frame = self.sessions[number]
        fields = Fields(frame.data)
        patch = fields.take(fields.varint()) if frame.coding.patch else b""
        if frame.coding.patch and not patch:
            raise Damaged("a patch that is empty")
        if number not in self._tokens:
            copies = copies_of(fields, frame.units, CONTEXT_TOKENS if frame.step else 0) if frame.copied else []
            literals = frame.units - sum(length for _, length, _ in copies)
            if self._bundle is None:
                raise LookupError("a frame of a model without its bundle")
            context = self._context(number)
            layout = layout_of(frame.coding.layout, literals)
            tokens = tokens_of(self._bundle.model, fields.rest(), literals, layout, context)
            self._tokens[number] = joined(copies, tokens, context)
        return self._tokens[number], patch

    def _context(self, number: int) -> list[int]:
        """Return the tokens that stand before a session of tokens: those of up to three others, then a mark."""
        step, found, room, nearest = self.sessions[number].step, list[int](), CONTEXT_TOKENS - 1, True
        if not step:
            return []
        while step:
            number -= step
            tokens, step = self._model_tokens(number)[0], self.sessions[number].step
            if not nearest and len(tokens) > room:
                break
            found, nearest = tokens[:room] + found, False
            room = CONTEXT_TOKENS - 1 - len(found)
        return [*found, 0]

    def value(self, number: int) -> Any:
        """Return a session: the value of a chat, the bytes of a text, or a list of ids."""
        kind, found = self.content(number)
        if kind == IDS:
            return list(struct.unpack(f"<{len(found) // 4}I", found)) if isinstance(found, bytes) else found
        if isinstance(found, bytes):
            return chat.value_of_bytes(found) if kind == CHAT else found
        assert self._bundle
        return self._bundle.spell(found) if kind == TEXT else chat.value_of_tokens(found, self._bundle)

    def input_bytes(self, number: int) -> bytes:
        """Return a session as an exact file has it."""
        writing = self.sessions[number].coding.writing
        return chat.input_bytes(self.value(number), writing)


def _coding(data: bytes) -> Coding:
    fields = Fields(data)
    head = fields.number(1)
    content, method, layout, patch = head & 3, head >> 2 & 3, head >> 4 & 1, head >> 5 & 1
    if head & 64 or content > IDS or method > BYTES:
        return Coding(-1)
    writing = fields.varint() if head & 128 else 0
    if writing > chat.WRITINGS:
        return Coding(-1)
    fields.end()
    wrong = [layout and method != MODEL, patch and (content, method) != (IDS, MODEL), method == LOG and content == IDS]
    wrong += [head & 128 and (not writing or content != CHAT)]
    if any(wrong):
        raise Damaged(f"a coding that cannot be: {data.hex()}")
    return Coding(content, method, layout, bool(patch), writing)
