"""Splitter: a log's bytes, unit by unit and value by value, as decisions, opaque bits and text. Spec: FORMAT.md."""

from __future__ import annotations

import json
from typing import Final

from pltz.coding.log import codes, opaque, spelling, times
from pltz.coding.log.bit_coder import Numbers
from pltz.coding.log.past import LEAST_LINE, SHAPES, SOURCES, Field, Past, Slot, to_front
from pltz.coding.log.spelling import Json

EPOCH_MS: Final = range(10**12, 4 * 10**12)
OTHER: Final = 5
VOICES: Final = {"user": 0, "human": 0, "assistant": 1, "model": 1, "gemini": 1, "tool": 2, "toolResult": 2}
VOICES.update(system=3, developer=3, function_call=4, custom_tool_call=4, function_call_output=2)
VOICES.update(custom_tool_call_output=2, reasoning=1, agent_message=1, user_message=0)


class Splitter:
    """Codes values through a `Numbers`; what it makes of them is in ``opaque`` and ``pieces``."""

    def __init__(self, past: Past, coder: Numbers) -> None:
        self._past, self._coder = past, coder
        self.opaque = bytearray()
        self.pieces: list[tuple[int, list[str]]] = []  # voice, lines
        self._new: list[str] = []

    # ---- units

    def content(self, data: bytes) -> None:
        """Code all bytes of a log, or of a part of one that starts where a line starts."""
        if not data:
            return
        document = None if data[:2] == b'{"' else _document(data)
        if document is not None:
            value, style, end = document
            self._unit(codes.DOCUMENT)
            self._style(style)
            self._document(value)
            if end == len(data):
                return
            if data[end : end + 1] != b"\n":
                raise AssertionError("a document ends where a line ends")
            data = data[end + 1 :]
            if not data:
                return
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()  # a log that ends in a line end has no unit behind it
        for line in lines:
            self._line(line)

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
        if text[:1] in ("{", "["):
            try:
                value = spelling.parse(text)
            except ValueError:
                pass
            else:
                style = spelling.spelling_of(text, value, spelling.LINES, past.style)
                if style is not None:
                    self._unit(codes.LINE)
                    self._style(style)
                    self._value(past.root, value, 0)
                    self._flush(voice(value))
                    return
        self._unit(codes.TEXT)
        self._lines(past.text.slot, text)
        self._flush(OTHER)

    def _document(self, value: Json) -> None:
        self._value(self._past.root, value, 0, breaks=True)
        self._flush(voice(value))

    def _flush(self, speaker: int) -> None:
        if self._new:
            self.pieces.append((speaker, self._new))
            self._new = []

    # ---- values

    def _op(self, field: Field, op: int) -> None:
        """Code the way of a value: one decision for each way that stands before it in the field's order."""
        ops, model, base = field.ops, field.model, field.op << 5
        bit = self._coder.bit
        if ops[0] == op:
            bit(model, base | op, 1)
        else:
            for other in ops:
                if other == op:
                    break
                bit(model, base | other, 0)
            bit(model, base | op, 1)
            ops.remove(op)
            ops.insert(0, op)
            if field.slot.ops[0] != op:
                field.slot.ops.remove(op)
                field.slot.ops.insert(0, op)
        field.op = op

    def _value(self, field: Field, value: Json, depth: int, breaks: bool = False) -> None:
        kind = type(value)
        if kind is dict or kind is list:
            if depth == codes.MAX_DEPTH:
                self._json(field, value)
            elif kind is dict:
                self._object(field, value, depth, breaks)
            else:
                self._list(field, value, depth, breaks)
            return
        last = field.last
        if value == last and kind is type(last):
            self._op(field, codes.SAME)
            slot = field.slot
            slot.last = value
            if kind is str:
                self._past.met(value, slot)
            return
        if kind is str:
            self._string(field, value)
        elif value is None:
            self._op(field, codes.NULL)
        elif kind is bool:
            self._op(field, codes.TRUE if value else codes.FALSE)
        elif kind is int:
            self._integer(field, value)
        else:
            self._decimal(field, value)
        field.last = field.slot.last = value

    def _object(self, field: Field, value: dict[str, Json], depth: int, breaks: bool) -> None:
        past, slot, coder = self._past, field.slot, self._coder
        self._op(field, codes.OBJECT)
        keys = tuple(value)
        shape = past.shape_of.get(keys, -1)
        same = shape >= 0 and shape == field.shape
        coder.bit(slot.model, codes.SHAPE, same)
        if not same:
            if shape in slot.shapes:
                coder.number(slot.model, slot.shapes.index(shape) + 2, codes.SHAPE)
            elif shape >= 0:
                coder.number(slot.model, 1, codes.SHAPE)
                coder.number(past.model, len(past.shapes) - 1 - shape, codes.SHAPE_AGE)
            else:
                coder.number(slot.model, 0, codes.SHAPE)
                self._shape(keys)
                shape = past.shape(keys)
            field.shape = shape
        to_front(slot.shapes, shape, SHAPES)
        for child, element in zip(past.fields(slot, shape), value.values(), strict=True):
            self._value(child, element, depth + 1, breaks)

    def _shape(self, keys: tuple[str, ...]) -> None:
        past, coder = self._past, self._coder
        coder.number(past.model, len(keys), codes.KEYS)
        for key in keys:
            known = past.key_of.get(key)
            coder.number(past.model, 0 if known is None else len(past.keys) - known, codes.KEY_AGE)
            if known is None:
                lines = key.split("\n")
                coder.number(past.model, len(lines), codes.LINES_OF_KEY)
                self._new += lines
                past.key(key)

    def _list(self, field: Field, value: list[Json], depth: int, breaks: bool) -> None:
        self._op(field, codes.LIST)
        self._coder.number(field.slot.model, len(value), codes.COUNT)
        element = self._past.element(field.slot)
        if breaks:
            self._flush(OTHER)
        for one in value:
            self._value(element, one, depth + 1)
            if breaks:
                self._flush(voice(one))

    def _json(self, field: Field, value: Json) -> None:
        """Code any value as the text of its JSON."""
        self._op(field, codes.JSON)
        self._lines(field.slot, json.dumps(value, ensure_ascii=True, separators=(",", ":")))

    def _integer(self, field: Field, value: int) -> None:
        slot = field.slot
        if value in EPOCH_MS:
            self._op(field, codes.EPOCH)
            self._moment(slot, 3, value)
        elif -codes.FIT < value - slot.number < codes.FIT and -codes.FIT < value < codes.FIT:
            self._op(field, codes.INTEGER)
            self._coder.signed(slot.model, value - slot.number, codes.DELTA)
            slot.number = value
        else:
            self._json(field, value)

    def _moment(self, slot: Slot, digits: int, units: int) -> None:
        past = self._past
        self._coder.signed(slot.model, units - times.scaled(past.time[1], past.time[0], digits), codes.MOMENT)
        past.time = (digits, units)

    def _decimal(self, field: Field, value: float) -> None:
        slot = field.slot
        whole, _, fraction = repr(value).partition(".")
        if (
            not (whole.lstrip("-") + fraction).isdigit()
            or len(fraction) > 18
            or len(whole) > 18
            or value == 0
        ):
            self._json(field, value)
            return
        digits = int(whole + fraction)
        self._op(field, codes.DECIMAL)
        self._coder.number(slot.model, len(fraction), codes.DIGITS)
        self._coder.signed(slot.model, digits, codes.DELTA)

    # ---- strings

    def _string(self, field: Field, text: str) -> None:
        past, slot, coder = self._past, field.slot, self._coder
        number = past.string_of.get(text)
        if number is not None:
            self._known(field, number)
        elif (time := times.read_time(text)) is not None and abs(time[1]) < codes.FIT >> 1:
            self._op(field, codes.TIME)
            coder.number(slot.model, time[0], codes.DIGITS)
            self._moment(slot, time[0] // 3, time[1])
            return
        elif not self._opaque(field, text):
            if len(text) < codes.SHORTEST_LONG and "\n" not in text:
                self._op(field, codes.SHORT)
                self._new.append(text)
                past.line(text)
            else:
                self._op(field, codes.LONG)
                self._lines(slot, text)
        past.met(text, slot)

    def _known(self, field: Field, number: int) -> None:
        past, slot, coder = self._past, field.slot, self._coder
        if number in slot.recent:
            self._op(field, codes.RECENT)
            coder.number(slot.model, slot.recent.index(number), codes.RANK)
            return
        source = past.where[number]
        if number not in source.recent:
            self._op(field, codes.OLD)
            coder.number(past.model, len(past.strings) - 1 - number, codes.STRING_AGE)
            return
        self._op(field, codes.ELSEWHERE)
        known = source in slot.sources
        coder.number(slot.model, slot.sources.index(source) + 1 if known else 0, codes.SOURCE)
        if not known:
            coder.number(past.model, source.number_of, codes.SLOT)
        to_front(slot.sources, source, SOURCES)
        coder.number(slot.model, source.recent.index(number), codes.DISTANCE)

    def _opaque(self, field: Field, text: str) -> bool:
        """Code a string as bits if it is one of the opaque kinds."""
        slot, coder = field.slot, self._coder
        if opaque.UUID.fullmatch(text):
            self._op(field, codes.UUID)
            self.opaque += opaque.uuid_bytes(text)
        elif opaque.HEX.fullmatch(text) and not text.isdigit():
            self._op(field, codes.HEX)
            coder.number(slot.model, len(text) // 2, codes.SIZE)
            self.opaque += bytes.fromhex(text)
        elif match := opaque.ID.fullmatch(text):
            self._op(field, codes.ID)
            self._prefix(slot, match[1])
            coder.number(slot.model, len(match[2]), codes.SIZE)
            self.opaque += opaque.id_bytes(match[2])
        elif opaque.BASE64.fullmatch(text) and (found := opaque.base64_bytes(text)) is not None:
            self._op(field, codes.BASE64)
            coder.number(slot.model, found[0], codes.FLAVOUR)
            coder.number(slot.model, len(found[1]), codes.SIZE)
            self.opaque += found[1]
        else:
            return False
        return True

    def _prefix(self, slot: Slot, prefix: str) -> None:
        past = self._past
        known = past.key_of.get(prefix)
        self._coder.number(slot.model, 0 if known is None else known + 1, codes.PREFIX)
        if known is None:
            self._new.append(prefix)
            past.key(prefix)

    # ---- text

    def _lines(self, slot: Slot, text: str) -> None:
        """Code a text line by line: how many, and in turn how many new ones and which ones to copy."""
        past, coder, model = self._past, self._coder, slot.model
        lines = text.split("\n")
        coder.number(model, len(lines) - 1, codes.COUNT)
        at = 0
        while at < len(lines):
            begin, source = at, -1
            while at < len(lines):
                source = self._source(lines[at], at - begin)
                if source >= 0:
                    break
                at += 1
            coder.number(model, at - begin, codes.RUN)
            fresh = lines[begin:at]
            self._new += fresh
            if at == len(lines):
                past.expected = -1
                for line in fresh:
                    past.line(line)
                break
            expected = past.expected + at - begin if past.expected >= 0 else -1
            end = source + 1
            limit = len(past.lines)
            n = 1
            while at + n < len(lines) and end < limit and past.lines[end] == lines[at + n]:
                n += 1
                end += 1
            hit = source == expected
            coder.bit(model, codes.COPY, hit)
            if not hit:
                coder.number(past.model, limit - 1 - source, codes.LINE_AGE)
            coder.number(model, n - 1, codes.COPIED)
            for line in fresh:
                past.line(line)
            for line in lines[at : at + n]:
                past.line(line)
            past.expected = end
            at += n

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


def _document(data: bytes) -> tuple[Json, int, int] | None:
    """Return the value, spelling and end of a JSON text of many lines that data begins with, or None."""
    if data[:1] not in (b"{", b"["):
        return None
    try:
        text = data.decode()
        end = len(text.rstrip("\n"))
        text = text[:end]
        value = spelling.parse(text)
    except ValueError:
        return None
    style = spelling.spelling_of(text, value, spelling.DOCUMENTS + spelling.LINES, _guess(text))
    return None if style is None else (value, style, len(text.encode()))


def _guess(text: str) -> int:
    """Return the spelling that the first lines of a JSON text look like."""
    second = text.split("\n", 2)[1:2]
    indent = len(second[0]) - len(second[0].lstrip(" ")) if second else 0
    return {2: 7, 4: 9}.get(indent, 11 if second and second[0][:1] == "\t" else 1)
