"""Splitter: a log's bytes, unit by unit and value by value, as decisions, opaque bits and text. Spec: FORMAT.md."""

from __future__ import annotations

import itertools
import re
from typing import Final

from pltz.coding.log import codes, opaque, protobuf, times
from pltz.coding.log.bit_coder import Numbers
from pltz.coding.log.marks import SIGNS, LineMark, Marks
from pltz.coding.log.past import LEAST_LINE, SMALL, Past, Slot
from pltz.coding.log.walk import OTHER, Choice, Lines, Unit, Walk, head_of
from pltz.models.session import spelling
from pltz.models.session.spelling import Json

SHORTEST_OPAQUE: Final = 8  # characters
SHORTEST_PARSED: Final = 8  # characters
TRIES: Final = 8  # times that each byte is looked at as a part of a document, at most on average
LONGEST_INDENT: Final = 200
DEEPEST: Final = 128  # values in each other, of JSON that is taken apart
ASCII: Final = 2  # the spelling of JSON text
BLOCK: Final = re.compile(
    rb'( *|\t*)(?:("(?:[^"\\]|\\.)*"): )?'  # indentation and key
    rb'((?:([{\[])|"(?:[^"\\]|\\.)*",?|[-+.0-9a-zA-Z]+,?|\[\],?|\{\},?))'
)
EPOCH_MS: Final = range(10**12, 4 * 10**12)


class Splitter(Walk):
    """Codes values through a `Numbers`; what it makes of them is in ``opaque`` and ``pieces``."""

    def __init__(self, past: Past, coder: Numbers) -> None:
        super().__init__(past, coder)
        self.opaque = bytearray()
        self.pieces: list[tuple[int, list[str]]] = []  # voice, lines
        self._new: list[str] = []  # lines of the piece that is not ended
        self._starts: list[int] = []  # of lines, in bytes, where the log has parts of documents
        self._tries = 0  # bytes that may still be looked at as parts of documents

    def content(self, data: bytes) -> None:
        """Code all bytes of a log or of a part of one."""
        if not data:
            return
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()  # a log that ends in a line end has no unit behind it
        ends = _block_ends(lines)
        self._starts = [0, *itertools.accumulate(len(line) + 1 for line in lines)] if ends else []
        self._tries = TRIES * len(data)
        at = 0
        while at < len(lines):
            end = ends.get(at, at)
            unit = self._part(lines, at, end)
            self._unit(unit or self._line(lines[at]))
            at = end + 1 if unit else at + 1
        self._end(OTHER)

    # ---- units

    def _line(self, line: bytes) -> Unit:
        """Return the unit of a line."""
        try:
            text = line.decode()
        except UnicodeDecodeError:
            return Unit(codes.BYTES, data=line)
        found = _written(text, spelling.LINES, self._past.style)
        return Unit(codes.TEXT, text) if found is None else Unit(codes.LINE, text, b"", *found[:2])

    def _part(self, lines: list[bytes], begin: int, end: int) -> Unit | None:
        """Return the unit of the lines of a part of a document; None where they are none."""
        match = BLOCK.fullmatch(lines[begin])
        size = len(lines[begin]) if end == begin else self._starts[end + 1] - self._starts[begin]
        if match is None or (end == begin) == bool(match[4]) or _divided(match, size) or size > self._tries:
            return None
        self._tries -= size
        try:
            text = b"\n".join(lines[begin : end + 1])[match.start(3) :].decode()
            comma = text[-1] == ","
            text = text[:-1] if comma else text
            value, key = _parsed(text), None if match[2] is None else spelling.parse(match[2].decode())
            if key is not None:
                key.encode()  # half a surrogate pair is no text
        except ValueError:
            return None
        known, depth = self._past.style, len(match[1])
        tab = match[1][:1] == b"\t"
        if known not in spelling.DOCUMENTS or (depth and (spelling.PADS[known] == "\t") != tab):
            known = _guess(lines, begin, depth)
        style = spelling.spelling_of(text, value, spelling.DOCUMENTS, known, depth)
        if style is None or depth > LONGEST_INDENT:
            return None
        if lines[begin][: match.start(3)] != head_of(style, depth, key).encode():
            return None
        return Unit(codes.BLOCK, text, b"", style, value, depth, key, comma)

    # ---- what is made

    def _text(self, size: int, lines: list[str]) -> list[str]:
        self._new += lines
        self._size += sum(map(len, lines)) + len(lines)
        return lines

    def _raw(self, size: int, data: bytes) -> bytes:
        self.opaque += data
        return data

    def _end(self, speaker: int) -> None:
        if self._new:
            self.pieces.append((speaker, self._new))
            self._new, self._size = [], 0

    def _spelled(self, value: Json, style: int, text: str) -> str:
        return text

    def _read(self, text: str, value: Json) -> Json:
        return value

    def _packed(self, value: Json, flavour: int, text: str) -> str:
        return text

    # ---- ways of values

    def _choice(self, slot: Slot, value: Json, depth: int) -> Choice:
        kind = type(value)
        if kind is dict or kind is list:
            if depth == codes.MAX_DEPTH:
                return _as_json(value)
            return codes.OBJECT if kind is dict else codes.LIST, (value,)
        if value == slot.last and kind is type(slot.last):
            return codes.SAME, ()  # costs one decision
        if kind is str:
            return self._string_choice(slot, value, depth)
        if value is None:
            return codes.NULL, ()
        if kind is bool:
            return codes.TRUE if value else codes.FALSE, ()
        if kind is bytes:
            return codes.BITS, (value,)
        if kind is not int or not -codes.FIT < value < codes.FIT:
            return _as_json(value)
        if value in EPOCH_MS:
            return codes.EPOCH, (value,)
        if value != slot.number and abs(value) >= SMALL and value in self._past.integers:
            return codes.SHARED, (self._past.integers.index(value),)
        return codes.INTEGER, (value,)

    def _string_choice(self, slot: Slot, text: str, depth: int) -> Choice:
        past = self._past
        number = past.string_of.get(text)
        if number is not None:
            near = codes.ELSEWHERE if number in past.recent else codes.OLD
            return codes.RECENT if number in slot.recent else near, (number,)
        signed = bool(text) and text[0] in SIGNS and "\n" not in text
        if signed and (slot.op == codes.SIGNED or self._source(text[1:]) >= 0):
            return codes.SIGNED, (SIGNS.index(text[0]), text[1:])
        if (time := times.read_time(text)) is not None and abs(time[1]) < codes.FIT >> 1:
            return codes.TIME, time
        found = self._opaque_choice(text, depth)
        if found is None and depth < codes.MAX_DEPTH and len(text) >= SHORTEST_PARSED:
            parsed = _written(text, spelling.DOCUMENTS if "\n" in text else spelling.LINES)
            found = None if parsed is None else (codes.PARSED, parsed)
        return (codes.LONG, (text,)) if found is None else found

    def _opaque_choice(self, text: str, depth: int) -> Choice | None:
        """Return the way of a string that is one of the opaque kinds."""
        if len(text) < SHORTEST_OPAQUE:
            return None
        if len(text) == 36 and opaque.UUID.fullmatch(text):
            return codes.UUID, (opaque.uuid_number(text), int(text[14] == "4" and text[19] in "89ab"))
        if (match := opaque.STAMPED.fullmatch(text)) is not None:
            return codes.STAMPED, (match[1], int(match[2], 16), match[3])
        if (head := opaque.split_id(text)) is not None:
            return codes.ID, (text, head)
        if (match := opaque.BASE64.fullmatch(text)) is None:
            return None
        head, text = match[1] or "", match[2]
        found, parts, bare = opaque.base64_bytes(text), [text], text
        if found is None:
            bare = text.rstrip("=")
            parts = bare.split(opaque.GAP)
            found = opaque.loose_bytes("".join(parts))
            if found is None:
                return None
        flavour, data = found
        alone = flavour < opaque.LOOSE and not head and depth < codes.MAX_DEPTH - protobuf.MOST_DEPTH
        if alone and (message := protobuf.read_message(data)) is not None:
            return codes.MESSAGE, (flavour, message, text)
        return codes.BASE64, (flavour, head, data, [*map(len, parts)], len(text) - len(bare))

    # ---- text

    def _bodies(self, text: str) -> tuple[list[str], list[LineMark]]:
        state = Marks()
        rows = [state.read(line) for line in text.split("\n")]
        return [body for body, _ in rows], [mark for _, mark in rows]

    def _run(self, bodies: list[str], begin: int) -> Lines:
        lines, at = self._past.lines, begin
        while (source := self._source(bodies[at])) < 0:
            at += 1
            if at == len(bodies):
                return Lines(at - begin)
        # A copy goes as long as it can, and not into what is copied now.
        n, most = 1, min(len(bodies) - at, len(lines) - source)
        while n < most and lines[source + n] == bodies[at + n]:
            n += 1
        return Lines(at - begin, source, n)

    def _source(self, line: str) -> int:
        """Return the line to copy from, or -1."""
        return self._past.line_of.get(line, -1) if len(line) >= LEAST_LINE else -1


def _as_json(value: Json) -> Choice:
    """Return the way of any value as the text of its JSON."""
    return codes.JSON, (value, spelling.spell(value, ASCII))


def _written(text: str, numbers: tuple[int, ...], first: int | None = None) -> tuple[int, Json, str] | None:
    """Return the spelling, one of these, the value and the text of a text that is JSON of a list or an object."""
    if text[:1] not in ("{", "[") or text[-1] not in "}]":
        return None
    try:
        value = _parsed(text)
    except ValueError:
        return None
    style = spelling.spelling_of(text, value, numbers, numbers[0] if first is None else first)
    return None if style is None else (style, value, text)


def _parsed(text: str) -> Json:
    """Return the value of JSON. Raises ValueError for none, and for one too deep, whatever the stack holds already."""
    value = spelling.parse(text)
    if text.count("[") + text.count("{") > DEEPEST:
        level: list[Json] = [value]
        for _ in range(DEEPEST):
            inner = [one for row in level for one in (row.values() if type(row) is dict else row)]
            level = [one for one in inner if type(one) in (dict, list)]
        if level:
            raise ValueError("nested too deeply")
    return value


def _block_ends(lines: list[bytes]) -> dict[int, int]:
    """Return the last line of each part of a document, by its first: the same indentation, and a closing bracket."""
    ends = {}
    opened: list[tuple[int, int]] = []  # indentation, line
    for number, line in enumerate(lines):
        bare = line.lstrip(b" \t")
        if bare[:1] in (b"}", b"]"):
            depth = len(line) - len(bare)
            while opened and opened[-1][0] > depth:
                opened.pop()
            if opened and opened[-1][0] == depth:
                ends[opened.pop()[1]] = number
        if line[-1:] in (b"{", b"["):
            depth = len(line) - len(bare)
            while opened and opened[-1][0] >= depth:
                opened.pop()
            opened.append((depth, number))
    return ends


def _divided(match: re.Match[bytes], size: int) -> bool:
    """Return whether a part of a document is better coded as the parts in it: it may grow, or is long."""
    if not match[4]:
        return False
    return size > (2000 if not match[1] else 4000 if match[4] == b"[" else 1 << 20)


def _guess(lines: list[bytes], begin: int, depth: int) -> int:
    """Return the spelling that a part of a document looks like."""
    second = lines[begin + 1] if begin + 1 < len(lines) else b""
    indent = len(second) - len(second.lstrip(b" ")) - depth
    return 11 if b"\t" in (second[:1], lines[begin][:1]) else 9 if indent == 4 else 7
