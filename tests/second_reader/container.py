"""A .pltz file, as plt_codec/FORMAT.md describes it: index, contexts, copies, contents."""

import struct
from collections import namedtuple
from collections.abc import Callable
from typing import Any
from zlib import crc32

from tests.second_reader import chat, log
from tests.second_reader.fields import Fields, Newer, block, copies_of, fallback, refuse, u32
from tests.second_reader.model import Bundle, sequence_of

MAGIC, VERSION, EXACT, KNOWN_FLAGS = b"PLTZ", 1, 128, 0b11000011
COLUMNS = 1, 4, 5, 12, 13  # coding, count, size, copied, step
CHAT, TEXT, IDS = range(3)  # contents
MODEL, LOG, BYTES = range(3)  # methods
MAX_COUNT, MOST_CONTEXTS, CONTEXT_TOKENS = (1 << 26) + (1 << 12), 3, 1024
Ids = Callable[[list[int], bytes], list[int]]  # the bridge: bundle tokens and a patch to the session's own ids

# What many frames share. The content is -1 where a newer version wrote it; the layout is a number.
Coding = namedtuple("Coding", "content method layout patch writing", defaults=(MODEL, 0, 0, 0))

# A session as it is stored: tokens or bytes, whether it has copies, how far back its context is, part of a check.
Frame = namedtuple("Frame", "coding units data copied step check")


class File:
    """A .pltz file. ``sessions``: its frames; ``content(i)`` and ``value(i)`` decode one."""

    def __init__(self, data: bytes, bundle: Bundle | None = None, ids: Ids | None = None) -> None:
        self._bundle, self._ids = bundle, ids
        self._tokens: dict[int, list[int]] = {}
        self._logs: dict[int, tuple[bytes, list[log.Table]]] = {}
        fields, self.sessions = Fields(data), list[Frame]()
        refuse(fields.take(4) != MAGIC, "no .pltz file")
        version, flags, self.bundle_id = fields.unpack("BB16s")
        refuse(version != VERSION or flags & ~KNOWN_FLAGS, f"format version {version}, flags {flags}", Newer)
        self.tokenizer, self.target = (fields.take(16) if flags & bit else b"" for bit in (1, 2))
        self.exact, self._salt = bool(flags & EXACT), data[: fields.at]
        size, check = struct.unpack("<II", data[-8:])
        index_at = len(data) - 8 - size
        refuse(index_at < fields.at, "an index that begins before the sessions")
        refuse(crc32(self._salt + data[index_at:-4]) != check, "header and index differ from their check")
        at = self._read_index(data, fields.at, index_at) if size else fields.at
        refuse(at != index_at, "bytes between blocks and index")

    def _read_index(self, data: bytes, at: int, end: int) -> int:
        """Read the sessions of all blocks, and return where the last one ends."""
        index = Fields(data[end:-8])
        self.contents_check, count = index.number(4), index.varint()
        refuse(not 1 <= count <= 4096, f"{count} codings")
        codings = [_coding(index.take(index.number(1))) for _ in range(count)]
        refuse(index.at == len(index.data), "an index without blocks")
        while index.at < len(index.data):
            count, head, body = index.number(1), index.varint(), index.varint()
            found = block(data[:end], at, self._salt, COLUMNS)
            sizes = len(found.bitstrings), sum(found.columns[5]), found.end - at
            refuse(sizes != (count, body, head + body), "a block that is not as the index says")
            for row, frame in enumerate(found.bitstrings):
                number, units, _, copied, step = (found.columns[column][row] for column in COLUMNS)
                refuse(number >= len(codings), "a coding that is not there")
                self._add(Frame(codings[number], units, frame, copied, step, found.parts.number(1)))
            found.parts.end()
            at = found.end
        return at

    def _add(self, frame: Frame) -> None:
        method = frame.coding.method
        refuse(frame.copied > (method == MODEL), "copies of a newer version, or in a frame of bytes", Newer)
        most = MAX_COUNT if method == BYTES else min(MAX_COUNT, 256 * (len(frame.data) + 1))
        refuse(frame.units > most, "a count over its limit")
        self.sessions.append(frame)
        behind = self._behind(len(self.sessions) - 1)
        refuse(len(behind) > MOST_CONTEXTS or (behind and method == BYTES), "four contexts in a row, or one of bytes")
        refuse(any(self.sessions[number].coding.method != method for number in behind), "a context of another kind")

    def _behind(self, number: int) -> list[int]:
        """Return the sessions whose content stands before that of a session, the nearest first."""
        found = [number]
        while step := self.sessions[found[-1]].step:
            refuse(step > found[-1], "a context before the first session")
            found.append(found[-1] - step)
        return found[1:]

    def content(self, number: int) -> tuple[int, Any]:
        """Return the content of a session, 0 to 2, and its tokens, its own ids or its bytes."""
        coding, units, data, *_, check = self.sessions[number]
        refuse(coding.content < 0, "a session of a newer version", Newer)
        if coding.method == LOG:
            found: Any = self._log(number)[0]
        elif coding.method == BYTES:
            found = fallback(data, units, self._bundle.dictionary if self._bundle else b"")
        else:
            found, patch = self._model_tokens(number)
            found = self._ids(found, patch) if coding.content == IDS and self._ids else found
        refuse(self.content_check(number, found) & 255 != check, f"session {number} differs from its content check")
        return coding.content, found

    def content_check(self, number: int, found: Any) -> int:
        """Return the content check of a session's tokens, ids or bytes."""
        coding, units, *_ = self.sessions[number]
        raw = found if isinstance(found, bytes) else u32(found)
        return crc32(struct.pack("<BI", coding.content | coding.method << 2, units) + raw)

    def _log(self, number: int) -> tuple[bytes, list[log.Table]]:
        """Return the content of a log, and the tables above those that it is the context of."""
        if number not in self._logs:
            frame = self.sessions[number]
            above = self._log(number - frame.step)[1] if frame.step else []
            self._logs[number] = log.decoded(frame.data, frame.units, above, self._bundle)
        return self._logs[number]

    def _model_tokens(self, number: int) -> tuple[list[int], bytes]:
        coding, units, data, copied, *_ = self.sessions[number]
        fields = Fields(data)
        patch = fields.sized() if coding.patch else b""
        refuse(coding.patch and not patch, "a patch that is empty")
        if number not in self._tokens:
            context = self._context(number)
            copies = copies_of(fields, units, len(context)) if copied else []
            if self._bundle is None:
                raise LookupError("a frame of a model without its bundle")
            self._tokens[number] = sequence_of(self._bundle.model, fields.rest(), units, coding.layout, context, copies)
        return self._tokens[number], patch

    def _context(self, number: int) -> list[int]:
        """Return the tokens that stand before a session of tokens: those of up to three others, then a mark."""
        found = [0] if self.sessions[number].step else []
        if self._bundle is None:
            return found * CONTEXT_TOKENS  # as many as there may be
        for place, behind in enumerate(self._behind(number)):
            tokens = self._model_tokens(behind)[0]
            if place and len(tokens) + len(found) > CONTEXT_TOKENS:
                break
            found = tokens[: CONTEXT_TOKENS - 1] + found
        return found

    def value(self, number: int) -> Any:
        """Return a session: the value of a chat, the bytes of a text, or a list of ids."""
        return chat.session(*self.content(number), self._bundle)

    def input_bytes(self, number: int) -> bytes:
        """Return a session as an exact file has it."""
        return chat.input_bytes(self.value(number), self.sessions[number].coding.writing)


def _coding(data: bytes) -> Coding:
    fields = Fields(data)
    head = fields.number(1)
    content, method, layout, patch = head & 3, head >> 2 & 3, head >> 4 & 1, head >> 5 & 1
    newer = head & 64 or content > IDS or method > BYTES
    writing = fields.varint() if head & 128 and not newer else 0
    if newer or writing > chat.WRITINGS:
        return Coding(-1)
    fields.end()
    wrong = [layout and method != MODEL, patch and (content, method) != (IDS, MODEL), method == LOG and content == IDS]
    refuse(any(wrong) or (head & 128 and (not writing or content != CHAT)), f"a coding that cannot be: {data.hex()}")
    return Coding(content, method, layout, patch, writing)
