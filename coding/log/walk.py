"""Walk: the units, values and texts of a log, written once for the splitter and the joiner. Spec: FORMAT.md.

    Splitter: choice(value) -> way, parts --|              |--> opaque bits, pieces of text
                                            |  Walk, Past  |
    Joiner:             nothing, nothing ---|              |--> bytes of the log

Each method codes what it is given and returns what was coded. A writer chooses beforehand and gives the parts of each
way. A reader gives nothing. So both cannot disagree about an order, a context or what is remembered.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pltz.coding.log import codes, opaque, times
from pltz.coding.log.bit_coder import Model
from pltz.coding.log.compiled import breathe
from pltz.coding.log.marks import NO_MARK, SIGNS, LineMark, Marks
from pltz.coding.log.past import Slot
from pltz.coding.log.values import Values, damaged
from pltz.models.session import spelling
from pltz.models.session.spelling import SPELLINGS, Json
from pltz.plt_codec.errors import CorruptError

MOST_NUMBER: Final = 10**9  # of a line
INDENTS: Final = tuple(s.indent if type(s.indent) is int else len(str(s.indent or "")) for s in SPELLINGS)
SHRINK: Final = 6  # characters of ASCII JSON that can become one byte
OTHER: Final = 5
VOICES: Final = {"user": 0, "human": 0, "assistant": 1, "model": 1, "gemini": 1, "tool": 2, "toolResult": 2}
VOICES.update(system=3, developer=3, function_call=4, custom_tool_call=4, function_call_output=2)
VOICES.update(custom_tool_call_output=2, reasoning=1, agent_message=1, user_message=0)


class Unit(NamedTuple):
    """A unit of a log.

    Attributes:
        kind: as `codes` lists them.
        text: of a line of text, or of JSON.
        data: a line that is no text.
        style: spelling of the JSON, whose ``value`` this is.
        depth, key, comma: indentation of a part of a document, its key, and whether a comma stands behind it.
    """

    kind: int = 0
    text: str = ""
    data: bytes = b""
    style: int = 0
    value: Json = None
    depth: int = 0
    key: str | None = None
    comma: bool = False


class Lines(NamedTuple):
    """So many new lines of a text, then a copy of ``copied`` lines from the one of number ``source``; -1: no copy."""

    new: int = 0
    source: int = -1
    copied: int = 0


Choice = tuple[int, tuple[Any, ...]]
"""The way of a value, and what its method takes; of a reader nothing."""


class Walk(Values):
    """Codes the units of a log."""

    _size = 0  # characters of the open piece of text
    _speaker = OTHER  # of the unit
    _inside = False  # of a message, whose keys are not written
    _indent = 0  # characters per depth that values are indented by,
    _base = 0  # from a depth on

    def _choice(self, slot: Slot, value: Json, depth: int) -> Choice:
        """Choose the way of a value."""
        raise NotImplementedError

    def _bodies(self, text: str) -> tuple[list[str], list[LineMark]]:
        """Return the lines of a text without their marks, and these."""
        raise NotImplementedError

    def _run(self, bodies: list[str], begin: int) -> Lines:
        """Return the new lines from a line on, and the copy behind them."""
        raise NotImplementedError

    def _spelled(self, value: Json, style: int, text: str) -> str:
        """Return the text of a value in a spelling."""
        raise NotImplementedError

    def _read(self, text: str, value: Json) -> Json:
        """Return the value of JSON text."""
        raise NotImplementedError

    def _packed(self, value: Json, flavour: int, text: str) -> str:
        """Return the base64 of a message."""
        raise NotImplementedError

    def _end(self, speaker: int) -> None:
        """End the piece of text."""
        raise NotImplementedError

    def _spend(self, size: int) -> None:
        """Take the bytes that a value costs at least off those that may still be made."""
        self._left -= size
        if self._left < 0:
            damaged("more than the bytes of the log")

    def _spend_more(self, text: str, left: int) -> str:
        """Take off what a text costs beyond what was taken for its parts. ``left``: bytes that were left before."""
        self._spend(max(0, len(text) - (left - self._left)))
        return text

    def _first(self, model: Model, context: int, most: int, chosen: int) -> int:
        """Code a choice by one decision for each that stands before it, at most so many."""
        for n in range(most):
            if self._coder.bit(model, context + n, n == chosen):
                return n
        return most

    # ---- units

    def _unit(self, unit: Unit) -> bytes:
        past, coder = self._past, self._coder
        breathe()
        kind = coder.number(past.model, unit.kind, codes.UNIT)
        if kind == codes.BYTES:
            return self._raw(coder.number(past.model, len(unit.data), codes.SIZE_OF_BYTES), unit.data)
        if kind == codes.TEXT:
            text = self._lines(past.text, unit.text)
            if self._size >= codes.LONGEST_PIECE:
                self._end(OTHER)
        elif kind in (codes.LINE, codes.BLOCK):
            style = past.style = coder.number(past.model, unit.style, codes.STYLE)
            if style >= len(SPELLINGS):
                damaged(f"spelling {style}")
            self._indent, self._base, self._speaker = INDENTS[style], 0, voice(unit.value)
            if kind == codes.BLOCK:
                text = self._block(unit, style)
            else:
                text = self._spelled(self._value(past.root, unit.value, 0), style, unit.text)
                self._end(self._speaker)
        else:
            damaged(f"a unit of kind {kind}")
        return text.encode("utf-8", "surrogatepass")

    def _block(self, unit: Unit, style: int) -> str:
        past, coder = self._past, self._coder
        depth = coder.number(past.model, unit.depth, codes.DEPTH)
        self._spend(depth)
        key = unit.key
        known = coder.number(past.model, 0 if key is None else past.key_of.get(key, -1) + 2, codes.BLOCK_KEY)
        if known > len(past.keys) + 1:
            damaged("a key that was never met")
        if known:
            key = self._key(key or "") if known == 1 else past.keys[known - 2]
        comma = coder.bit(past.model, codes.COMMA, unit.comma)
        text = self._spelled(self._value(past.block(depth, key), unit.value, 0), style, unit.text)
        if "\n" in text:
            self._spend(depth * text.count("\n"))
            text = spelling.shifted(text, style, depth)
            self._end(self._speaker)
        return f"{head_of(style, depth, key)}{text}{',' * comma}"

    # ---- values

    def _value(self, slot: Slot, value: Json, depth: int) -> Json:
        self._spend(1)
        op, parts = self._choice(slot, value, depth)
        op = self._op(slot, op)
        # Objects and lists hold slots of their own; they are no column's last value.
        if op == codes.OBJECT or op == codes.LIST:
            if depth >= codes.MAX_DEPTH:
                damaged("values too deep in each other")
            if op == codes.OBJECT:
                return self._object(slot, depth, parts[0] if parts else {})
            return self._list(slot, depth, parts[0] if parts else [])
        # The last value here.
        if op == codes.SAME:
            value = slot.last
            if value is Slot:
                damaged("a value like none before")
            if isinstance(value, (str, bytes)):
                self._spend(len(value) - 2 * (type(value) is spelling.Number))  # its NUL is not written
            elif type(value) is int:
                self._spend(value.bit_length() // 64)  # JSON text may be a number of thousands of digits
            if type(value) is str:
                self._past.met(value, slot)
            return value
        # Every other value ends as the last of its slot.
        if op == codes.INTEGER:
            value = self._whole(slot, parts[0] if parts else 0)
        elif op == codes.NULL:
            value = None
        elif op == codes.TRUE or op == codes.FALSE:
            value = op == codes.TRUE
        elif op == codes.SHARED:
            value = self._shared(slot, *parts)
        elif op == codes.EPOCH:
            value = self._moment(slot, 3, *parts)
        elif op == codes.BITS:
            value = self._bytes(slot, *parts)
        elif op == codes.JSON:
            value = self._json(slot, *parts)
            if type(value) in (dict, list):
                return value
        else:
            value = self._string(slot, op, depth, parts)
        slot.last = value
        return value

    def _object(self, slot: Slot, depth: int, value: dict[str, Json]) -> dict[str, Json]:
        keys, found = self._shape(slot, tuple(value)), dict[str, Json]()
        if not self._inside:
            self._spend(len("".join(keys)) + (2 + self._indent * (depth - self._base + 1)) * len(keys))
        for key in keys:
            found[key] = self._value(slot.child(key), value.get(key), depth + 1)
        return found

    def _list(self, slot: Slot, depth: int, value: list[Json]) -> list[Json]:
        size = self._coder.number(slot.model, len(value), codes.COUNT)
        if size > self._left:
            damaged("more values than bytes of the log")
        self._spend(self._indent * (depth - self._base + 1) * size)
        element, found = slot.child(""), list[Json]()
        for at in range(size):
            one = value[at] if value else None
            found.append(self._value(element, one, depth + 1))
            if self._size >= codes.LONGEST_PIECE:
                speaker = voice(one)
                self._end(self._speaker if speaker == OTHER else speaker)
        return found

    def _json(self, slot: Slot, value: Json = None, text: str = "") -> Json:
        """Code any value as the text of its JSON."""
        return self._read(self._lines(slot, text, SHRINK), value)

    def _bytes(self, slot: Slot, data: bytes = b"") -> bytes:
        data = self._raw(self._coder.number(slot.model, len(data), codes.SIZE), data)
        self._spend(len(data))
        return data

    # ---- strings

    def _string(self, slot: Slot, op: int, depth: int, parts: tuple[Any, ...]) -> str:
        # Times and lines of diffs are no texts that later ones may repeat.
        if op == codes.TIME:
            return self._time(slot, *parts)
        if op == codes.SIGNED:
            return self._signed(slot, *parts)
        past, taken = self._past, True
        if op in (codes.RECENT, codes.ELSEWHERE, codes.OLD):
            text = past.strings[self._met(slot, op, *parts)]
        elif op == codes.UUID:
            text = self._uuid(slot, *parts)
        elif op == codes.ID:
            text = self._id(slot, *parts)
        elif op == codes.STAMPED:
            text = self._stamped(slot, *parts)
        elif op == codes.BASE64:
            text = self._base64(slot, *parts)
        else:
            taken = False
            if op == codes.LONG:
                text = self._lines(slot, *parts)
            elif op == codes.PARSED:
                text = self._parsed(slot, depth, *parts)
            else:
                text = self._message(slot, depth, *parts)
        if taken:
            self._spend(len(text))
        past.met(text, slot)
        return text

    def _time(self, slot: Slot, style: int = 0, units: int = 0) -> str:
        style = self._coder.number(slot.model, style, codes.DIGITS)
        if style >= 30:
            damaged("a time of no style")
        try:
            return times.write_time(style, self._moment(slot, style // 3, units))
        except ValueError as exc:
            raise CorruptError("the columns of a log hold a time that is none: the file is damaged") from exc

    def _signed(self, slot: Slot, sign: int = 0, body: str = "") -> str:
        """Code a line of a diff."""
        self._spend(1)
        return SIGNS[self._first(slot.model, codes.MARK + 24, 2, sign)] + self._lines(slot, body)

    def _parsed(self, slot: Slot, depth: int, style: int = 0, value: Json = None, text: str = "") -> str:
        """Code a string as the value that it is the JSON of."""
        style = self._coder.number(slot.model, style, codes.SPELLING)
        if style >= len(SPELLINGS):
            damaged(f"spelling {style}")
        if depth >= codes.MAX_DEPTH:
            damaged("values too deep in each other")
        outside, left = (self._indent, self._base), self._left
        self._indent, self._base = INDENTS[style], depth + 1
        text = self._spelled(self._value(slot.child("{}"), value, depth + 1), style, text)
        self._indent, self._base = outside
        return self._spend_more(text, left)  # each JSON in JSON may double what it quotes

    def _message(self, slot: Slot, depth: int, flavour: int = 0, value: Json = None, text: str = "") -> str:
        """Code a string of base64 as the message that it holds."""
        flavour = self._coder.number(slot.model, flavour, codes.FLAVOUR)
        if depth >= codes.MAX_DEPTH or flavour >= opaque.LOOSE:
            damaged(f"a message of flavour {flavour}")
        outside, left = (self._inside, self._indent), self._left
        self._inside, self._indent = True, 0
        value = self._value(slot.child("()"), value, depth + 1)
        self._inside, self._indent = outside
        return self._spend_more(self._packed(value, flavour, text), left)  # each message in one is a third longer

    # ---- text

    def _lines(self, slot: Slot, text: str = "", shrink: int = 1) -> str:
        """Code a text line by line: how many, and in turn how many new ones and which ones to copy."""
        past, coder, model = self._past, self._coder, slot.model
        bodies, marks = self._bodies(text)
        size = coder.number(model, len(bodies) - 1, codes.COUNT) + 1
        self._spend((size - 1) // shrink)  # what stands between them
        lines: list[str] = []
        state = Marks()

        def marked(some: list[str]) -> None:
            for body in some:
                lines.append(self._marked(model, state, body, marks[len(lines)] if marks else NO_MARK))

        while (begin := len(lines)) < size:
            # New lines: all that are missing, or so many, perhaps none, before a copy.
            run = self._run(bodies, begin)
            new = coder.number(model, run.new + 1 if run.source >= 0 else 0, codes.RUN) - 1
            rest = new < 0
            new = size - begin if rest else new
            if new > size - begin or (new == size - begin and not rest):
                damaged("more new lines than lines")
            fresh, copied = self._text(new, bodies[begin : begin + new]), list[str]()
            self._spend(sum(map(len, fresh)) // shrink)
            marked(fresh)
            if not rest:
                limit = len(past.lines)
                source = limit - 1 - coder.number(past.model, limit - 1 - run.source, codes.LINE_AGE)
                end = source + coder.number(model, run.copied - 1, codes.COPIED) + 1
                if source < 0 or end > limit or end - source > size - len(lines):
                    damaged("a copy from beyond the text")
                copied = past.lines[source:end]
                self._spend(sum(map(len, copied)) // shrink)
                marked(copied)
            # Only now: no copy of this round reaches into its own new lines.
            for line in fresh:
                past.line(line)
            for line in copied:
                past.line(line)
        return "\n".join(lines)

    def _marked(self, model: Model, state: Marks, body: str, mark: LineMark) -> str:
        """Code the mark of a line, and return the line."""
        coder, rest = self._coder, body
        sign, found = mark
        if state.old or state.new:
            sign = self._first(model, codes.MARK + 4 * state.sign, 3, sign)
        last = state.numbering
        if last is not None and coder.bit(model, codes.MARK + 16, found is not None):
            step = coder.signed(model, found.number - last.number - 1 if found else 0, codes.STEP)
            number = last.number + 1 + step
            if not 0 <= number < MOST_NUMBER:
                damaged(f"a line of number {number}")
            found = last.at(number)
            rest = found.mark() + body
        line = SIGNS[sign] + rest if sign < 3 else rest
        self._spend(len(line) - len(body))
        state.passed(rest, sign, found)
        return line


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


def head_of(style: int, depth: int, key: str | None) -> str:
    """Return what stands before a part of a document."""
    head = spelling.PADS[style] * depth
    return head if key is None else f"{head}{spelling.spell(key, style)}: "
