"""Splitter: a log's bytes, unit by unit and value by value, as decisions, opaque bits and text. Spec: FORMAT.md."""

from __future__ import annotations

import itertools
import re
from typing import Final, NamedTuple

from pltz.coding.log import codes, opaque, protobuf, times
from pltz.coding.log.bit_coder import Model, Numbers
from pltz.coding.log.marks import FIRST, POINTERS, SIGNS, Marks, Numbering, numbering_of
from pltz.coding.log.past import LEAST_LINE, Field, Past, Slot
from pltz.coding.log.values import Values
from pltz.models.session import spelling
from pltz.models.session.spelling import Json

JSON_STARTS: Final = ('{"', "[{", '["', "{}")
STAND_IN: Final = "{}"  # stands in a piece for a line that is coded as the values of its JSON
SHORTEST_LINE: Final = 40  # characters of such a line
SHORTEST_OPAQUE: Final = 8  # characters
SHORTEST_PARSED: Final = 8  # characters
TRIES: Final = 8  # times that each byte is looked at as a part of a document, at most on average
LONGEST_INDENT: Final = 200
ASCII: Final = 2  # the spelling of JSON text
BLOCK: Final = re.compile(
    rb'( *|\t*)(?:("(?:[^"\\]|\\.)*"): )?'  # indentation and key
    rb'((?:([{\[])|"(?:[^"\\]|\\.)*",?|[-+.0-9a-zA-Z]+,?|\[\],?|\{\},?))'
)
DECIMAL: Final = re.compile("\0(-?[0-9]{1,30})[.]([0-9]{1,30})")
EPOCH_MS: Final = range(10**12, 4 * 10**12)
OTHER: Final = 5
VOICES: Final = {"user": 0, "human": 0, "assistant": 1, "model": 1, "gemini": 1, "tool": 2, "toolResult": 2}
VOICES.update(system=3, developer=3, function_call=4, custom_tool_call=4, function_call_output=2)
VOICES.update(custom_tool_call_output=2, reasoning=1, agent_message=1, user_message=0)


class Splitter(Values):
    """Codes values through a `Numbers`; what it makes of them is in ``opaque`` and ``pieces``."""

    def __init__(self, past: Past, coder: Numbers) -> None:
        super().__init__(past, coder)
        self.opaque = bytearray()
        self.pieces: list[tuple[int, list[str]]] = []  # voice, lines
        self._new: list[str] = []  # lines of the piece that is not ended
        self._size = 0  # characters of them
        self._speaker = OTHER  # of the unit
        self._starts: list[int] = []  # of lines, in bytes, where the log has parts of documents
        self._tries = 0  # bytes that may still be looked at as parts of documents

    # ---- units

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
            at = self._block(lines, at, ends.get(at, at)) or at + 1
        self._flush(OTHER)

    def _unit(self, kind: int) -> None:
        self._coder.number(self._past.model, kind, codes.UNIT)

    def _style(self, style: int) -> None:
        self._coder.number(self._past.model, style, codes.STYLE)
        self._past.style = style

    def _line(self, line: bytes) -> None:
        past = self._past
        try:
            text = line.decode()
        except UnicodeDecodeError:
            self._unit(codes.BYTES)
            self._coder.number(past.model, len(line), codes.SIZE_OF_BYTES)
            self.opaque += line
            return
        if not text:
            self._unit(codes.BLANK)
            return
        if text[0] in "{[":
            try:
                value = spelling.parse(text)
            except ValueError:
                pass
            else:
                style = spelling.spelling_of(text, value, spelling.LINES, past.style)
                if style is not None:
                    self._unit(codes.LINE)
                    self._style(style)
                    self._speaker = voice(value)
                    self._value(past.root, value, 0)
                    self._flush(self._speaker)
                    return
        self._unit(codes.TEXT)
        self._lines(past.text.slot, text, 0)
        self._may_flush(OTHER)

    def _block(self, lines: list[bytes], begin: int, end: int) -> int | None:
        """Code the lines of a part of a document and return the line after it, or code one line and return None."""
        match = BLOCK.fullmatch(lines[begin])
        size = len(lines[begin]) if end == begin else self._starts[end + 1] - self._starts[begin]
        if match is None or (end == begin) == bool(match[4]) or _divided(match, size) or size > self._tries:
            self._line(lines[begin])
            return None
        self._tries -= size
        try:
            text = b"\n".join(lines[begin : end + 1])[match.start(3) :].decode()
            comma = text[-1] == ","
            text = text[:-1] if comma else text
            value, key = spelling.parse(text), None if match[2] is None else spelling.parse(match[2].decode())
            if key is not None:
                key.encode()  # half a surrogate pair is no text
        except ValueError:
            self._line(lines[begin])
            return None
        past, coder, depth = self._past, self._coder, len(match[1])
        tab = match[1][:1] == b"\t"
        known = past.style in spelling.DOCUMENTS and (not depth or (spelling.PADS[past.style] == "\t") == tab)
        guess = past.style if known else _guess(lines, begin, depth)
        style = spelling.spelling_of(text, value, spelling.DOCUMENTS, guess, depth)
        if style is None or depth > LONGEST_INDENT or lines[begin][: match.start(3)] != _head(style, depth, key):
            self._line(lines[begin])
            return None
        self._unit(codes.BLOCK)
        self._style(style)
        coder.number(past.model, depth, codes.DEPTH)
        number = None if key is None else past.key_of.get(key)
        coder.number(past.model, 0 if key is None else 1 if number is None else number + 2, codes.BLOCK_KEY)
        if key is not None and number is None:
            self._key(key)
        coder.bit(past.model, codes.COMMA, comma)
        self._speaker = voice(value)
        self._value(past.block(depth, key), value, 0)
        if end > begin:
            self._flush(self._speaker)
        return end + 1

    def _flush(self, speaker: int) -> None:
        """End the piece of text."""
        if self._new:
            self.pieces.append((speaker, self._new))
            self._new = []
            self._size = 0

    def _may_flush(self, speaker: int) -> None:
        """End the piece of text if it is long."""
        if self._size >= codes.LONGEST_PIECE:
            self._flush(speaker)

    def _write(self, lines: list[str]) -> None:
        """Add new lines to the piece of text."""
        self._new += lines
        self._size += sum(map(len, lines)) + len(lines)

    def _text(self, size: int, lines: list[str]) -> list[str]:
        self._write(lines)
        return lines

    def _raw(self, size: int, data: bytes) -> bytes:
        self.opaque += data
        return data

    # ---- values

    def _value(self, field: Field, value: Json, depth: int) -> None:
        kind = type(value)
        if kind is dict or kind is list:
            if depth == codes.MAX_DEPTH:
                self._json(field, value)
            elif kind is dict:
                self._object(field, value, depth)
            else:
                self._list(field, value, depth)
            return
        # The value of the same field in the row before costs one decision.
        last = field.last
        if value == last and kind is type(last):
            self._op(field, codes.SAME)
            slot = field.slot
            slot.last = value
            if kind is str:
                self._past.met(value, slot)
            return
        # Every other value ends as the last of its field and of its column.
        if kind is str:
            self._string(field, value, depth)
        elif value is None:
            self._op(field, codes.NULL)
        elif kind is bool:
            self._op(field, codes.TRUE if value else codes.FALSE)
        elif kind is int:
            self._integer(field, value)
        elif kind is bytes:
            self._op(field, codes.BITS)
            self._coder.number(field.slot.model, len(value), codes.SIZE)
            self.opaque += value
        else:
            self._number(field, value)
        field.last = field.slot.last = value

    def _object(self, field: Field, value: dict[str, Json], depth: int) -> None:
        self._op(field, codes.OBJECT)
        shape = self._shaped(field, tuple(value))
        odd, self._odd = self._odd, 0
        for child, element in zip(self._past.fields(field.slot, shape), value.values(), strict=True):
            self._value(child, element, depth + 1)
        self._odd = odd

    def _list(self, field: Field, value: list[Json], depth: int) -> None:
        self._op(field, codes.LIST)
        self._coder.number(field.slot.model, len(value), codes.COUNT)
        element = self._past.element(field.slot)
        for one in value:
            self._value(element, one, depth + 1)
            if self._size >= codes.LONGEST_PIECE:
                speaker = voice(one)
                self._flush(self._speaker if speaker == OTHER else speaker)

    def _json(self, field: Field, value: Json) -> None:
        """Code any value as the text of its JSON."""
        self._op(field, codes.JSON)
        self._lines(field.slot, spelling.spell(value, ASCII), codes.MAX_DEPTH)

    def _integer(self, field: Field, value: int) -> None:
        if value in EPOCH_MS:
            self._op(field, codes.EPOCH)
            self._moment(field.slot, 3, value)
        elif -codes.FIT < value < codes.FIT:
            self._op(field, codes.INTEGER)
            self._whole(field.slot, value)
        else:
            self._json(field, value)

    def _number(self, field: Field, value: Json) -> None:
        match = DECIMAL.fullmatch(value) if type(value) is spelling.Number else None
        digits = int(match[1] + match[2]) if match else 0
        if match is None or not 0 < abs(digits) < codes.FIT:
            self._json(field, value)
            return
        self._op(field, codes.DECIMAL)
        self._decimal(field.slot, len(match[2]), digits)

    # ---- strings

    def _string(self, field: Field, text: str, depth: int) -> None:
        past, slot, coder = self._past, field.slot, self._coder
        number = past.string_of.get(text)
        if number is not None:
            self._known(field, number)
        elif (time := times.read_time(text)) is not None and abs(time[1]) < codes.FIT >> 1:
            self._op(field, codes.TIME)
            coder.number(slot.model, time[0], codes.DIGITS)
            self._moment(slot, time[0] // 3, time[1])
            return
        elif not any(way(field, text, depth) for way in (self._opaque, self._parsed)):
            if len(text) < codes.SHORTEST_LONG and "\n" not in text:
                self._op(field, codes.SHORT)
                self._write([text])
                past.line(text)
            else:
                self._op(field, codes.LONG)
                self._lines(slot, text, depth)
        past.met(text, slot)

    def _known(self, field: Field, number: int) -> None:
        past, slot = self._past, field.slot
        source = past.where[number]
        op = codes.RECENT if number in slot.recent else codes.ELSEWHERE if number in source.recent else codes.OLD
        self._op(field, op)
        self._met(slot, op, number, source)

    def _opaque(self, field: Field, text: str, depth: int) -> bool:
        """Code a string as bits if it is one of the opaque kinds."""
        slot = field.slot
        if len(text) < SHORTEST_OPAQUE:
            return False
        if len(text) == 36 and opaque.UUID.fullmatch(text):
            self._op(field, codes.UUID)
            version = int(text[14]) if text[14] in "47" and text[19] in "89ab" else 0
            self._uuid(slot, opaque.uuid_number(text), version)
        elif (match := opaque.STAMPED.fullmatch(text)) is not None:
            self._op(field, codes.STAMPED)
            self._stamped(slot, match[1], int(match[2], 16), match[3])
        elif (head := opaque.split_id(text)) is not None:
            self._op(field, codes.ID)
            self._id(slot, text, head)
        elif (match := opaque.BASE64.fullmatch(text)) is not None:
            return self._encoded(field, match[1] or "", match[2], depth)
        else:
            return False
        return True

    def _encoded(self, field: Field, head: str, text: str, depth: int) -> bool:
        """Code a string of base64 as what it holds, if it gives that back."""
        found = opaque.base64_bytes(text)
        parts, bare = [text], text
        if found is None:
            bare = text.rstrip("=")
            parts = bare.split(opaque.GAP)
            found = opaque.loose_bytes("".join(parts))
            if found is None:
                return False
        flavour, data = found
        message = protobuf.read_message(data) if flavour < opaque.LOOSE and not head else None
        if message is not None and depth < codes.MAX_DEPTH - protobuf.MOST_DEPTH:
            self._op(field, codes.MESSAGE)
            self._coder.number(field.slot.model, flavour, codes.FLAVOUR)
            self._value(self._past.message(field.slot), message, depth + 1)
            return True
        self._op(field, codes.BASE64)
        self._base64(field.slot, flavour, head, data, [*map(len, parts)], len(text) - len(bare))
        return True

    def _parsed(self, field: Field, text: str, depth: int) -> bool:
        """Code a string as the value that it is the JSON of."""
        if (
            len(text) < SHORTEST_PARSED
            or text[0] not in "{["
            or text[-1] not in "}]"
            or depth == codes.MAX_DEPTH
        ):
            return False
        try:
            value = spelling.parse(text)
        except ValueError:
            return False
        many = "\n" in text
        numbers = spelling.DOCUMENTS if many else spelling.LINES
        style = spelling.spelling_of(text, value, numbers, numbers[0])
        if style is None:
            return False
        self._op(field, codes.PARSED)
        self._coder.number(field.slot.model, style, codes.SPELLING)
        self._value(self._past.inner(field.slot), value, depth + 1)
        return True

    # ---- text

    def _lines(self, slot: Slot, text: str, depth: int) -> None:
        """Code a text line by line: how many, and in turn how many new ones and which ones to copy."""
        past, coder, model = self._past, self._coder, slot.model
        lines = text.split("\n")
        coder.number(model, len(lines) - 1, codes.COUNT)
        marks, bodies = _marked(lines)
        at = 0
        while at < len(bodies):
            # Lines up to the next one that a copy can begin with are new.
            begin, source = at, -1
            while at < len(bodies):
                source = self._source(bodies[at], at - begin)
                if source >= 0:
                    break
                at += 1
            rest = at == len(bodies)
            coder.bit(model, codes.REST + (begin > 0), rest)
            if not rest:
                coder.number(model, at - begin, codes.RUN)
            fresh = bodies[begin:at]
            self._fresh(slot, fresh, depth)
            self._marks(model, marks, begin, at)
            if rest:
                past.expected = -1
                for line in fresh:
                    past.line(line)
                break
            # The copy, as long as it goes.
            expected = past.expected + at - begin if past.expected >= 0 else -1
            end = source + 1
            limit = len(past.lines)
            n = 1
            while at + n < len(bodies) and end < limit and past.lines[end] == bodies[at + n]:
                n += 1
                end += 1
            hit = source == expected
            coder.bit(model, codes.COPY, hit)
            if not hit:
                coder.number(past.model, limit - 1 - source, codes.LINE_AGE)
            coder.number(model, n - 1, codes.COPIED)
            self._marks(model, marks, at, at + n)
            # Only now: no copy of this round reaches into its own new lines.
            for line in fresh:
                past.line(line)
            for line in bodies[at : at + n]:
                past.line(line)
            past.expected = end
            at += n

    def _fresh(self, slot: Slot, lines: list[str], depth: int) -> None:
        """Code new lines; those that are JSON as its values."""
        parsed = {}
        shown = lines
        for at, line in enumerate(lines):
            if line[:2] in JSON_STARTS and (line == STAND_IN or len(line) >= SHORTEST_LINE):
                parsed[at] = self._json_line(line, depth)
        if parsed:
            shown = lines.copy()
            for at, found in parsed.items():
                if found is not None:
                    shown[at] = STAND_IN
        self._write(shown)
        for at, found in parsed.items():
            if shown[at] == STAND_IN:
                self._coder.bit(slot.model, codes.STAND, found is not None)
                if found is not None:
                    self._coder.number(slot.model, found[1], codes.SPELLING)
                    self._value(self._past.inner(slot), found[0], depth + 1)

    def _json_line(self, line: str, depth: int) -> tuple[Json, int] | None:
        """Return the value and the spelling of a line that is JSON."""
        if line == STAND_IN or depth >= codes.MAX_DEPTH or line[-1] not in "}]":
            return None
        try:
            value = spelling.parse(line)
        except ValueError:
            return None
        style = spelling.spelling_of(line, value, spelling.LINES, spelling.LINES[0])
        return None if style is None else (value, style)

    def _marks(self, model: Model, marks: dict[int, LineMark], begin: int, end: int) -> None:
        """Code the marks of some lines."""
        if not marks:
            return
        coder = self._coder
        for at in range(begin, end):
            mark = marks.get(at)
            if mark is not None:
                for context, bit in mark.bits:
                    coder.bit(model, codes.MARK + context, bit)
                if mark.step is not None:
                    coder.signed(model, mark.step, codes.STEP)
                if mark.start is not None:
                    coder.number(model, mark.start.end, codes.END)
                    coder.number(model, 2 * mark.start.width + mark.start.zeros, codes.WIDTH)
                    coder.number(model, mark.start.number, codes.START)

    def _source(self, line: str, new: int) -> int:
        """Return the line to copy from, after ``new`` new lines, or -1."""
        past = self._past
        if past.expected >= 0:
            place = past.expected + new
            if place < len(past.lines) and past.lines[place] == line:
                return place
        if len(line) >= LEAST_LINE:
            return past.line_of.get(line, -1)
        return -1


class LineMark(NamedTuple):
    """The decisions of a line's mark: contexts and bits, then the step to its number or how a numbering starts."""

    bits: list[tuple[int, bool]]
    step: int | None = None
    start: Numbering | None = None


def _marked(lines: list[str]) -> tuple[dict[int, LineMark], list[str]]:
    """Return the marks of the lines that may have one, and all lines without them."""
    marks: dict[int, LineMark] = {}
    bodies = []
    state = Marks()
    for at, line in enumerate(lines):
        sign, body = 3, line
        bits: list[tuple[int, bool]] = []
        # Within a hunk of a patch: the sign before the line.
        if state.old or state.new:
            sign = SIGNS.find(line[0]) if line else 3
            if sign < 0:
                sign = 3
            if sign < 3:
                body = line[1:]
            bits += [(state.sign * 4 + n, n == sign) for n in range(min(sign + 1, 3))]
        rest = body
        found = step = start = None
        # The number of a line, if lines are numbered here, or where a numbering may start.
        if state.numbering is not None:
            result = state.numbering.find(rest)
            bits.append((16 + state.missed, result is not None))
            if result is not None:
                pointer, found = result
                if found.signed:
                    base = 32 + 8 * state.pointer
                    bits += [(base + n, n == pointer) for n in range(min(pointer + 1, len(POINTERS) - 1))]
                    state.pointer = pointer
                step = found.number - state.numbering.number
                bits.append((24, step == 1))
                step = None if step == 1 else step
                body = rest[len(found.mark(pointer)) :]
        elif at < FIRST and not bits:
            start = numbering_of(rest)
            if start is not None and (start.path or start.signed):
                start = None
            bits.append((80 + at, start is not None))
            if start is not None:
                found = start
                body = rest[len(start.mark(0)) :]
        if bits:
            marks[at] = LineMark(bits, step, start)
        state.passed(rest, sign, found)
        bodies.append(body)
    return marks, bodies


def voice(value: Json) -> int:
    """Return whose text a line or a message is, as far as its keys tell."""
    for _ in range(3):
        if type(value) is not dict:
            break
        for key in ("role", "type"):
            name = value.get(key)
            if type(name) is str and name in VOICES:
                content = value.get("content", value.get("message"))
                if type(content) is dict:
                    content = content.get("content")
                if type(content) is list and content and type(content[-1]) is dict:
                    return {"tool_result": 2, "tool_use": 4}.get(str(content[-1].get("type")), VOICES[name])
                return VOICES[name]
        value = value.get("message", value.get("payload", value.get("info", value.get("raw"))))
    return OTHER


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


def _head(style: int, depth: int, key: str | None) -> bytes:
    """Return what stands before a value in a document."""
    head = spelling.PADS[style] * depth
    return (head if key is None else f"{head}{spelling.spell(key, style)}: ").encode()


def _guess(lines: list[bytes], begin: int, depth: int) -> int:
    """Return the spelling that a part of a document looks like."""
    second = lines[begin + 1] if begin + 1 < len(lines) else b""
    indent = len(second) - len(second.lstrip(b" ")) - depth
    return 11 if b"\t" in (second[:1], lines[begin][:1]) else 9 if indent == 4 else 7
