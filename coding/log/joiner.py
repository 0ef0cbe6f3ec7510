"""Joiner: the bytes of a log from decisions, opaque bits and text, the inverse of `Splitter`. Spec: FORMAT.md.

Nothing that it reads is trusted: what a value costs in the output is taken off the bytes that are left to make
before the value is made, and each reference is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pltz.coding.log import codes, opaque, protobuf, times
from pltz.coding.log.bit_coder import BitReader, Model
from pltz.coding.log.marks import ENDS, FIRST, MOST_WIDTH, POINTERS, SIGNS, Marks, Numbering
from pltz.coding.log.past import Field, Past, Slot
from pltz.coding.log.splitter import STAND_IN
from pltz.coding.log.values import Values, damaged
from pltz.models.session import spelling
from pltz.models.session.spelling import SPELLINGS, Json
from pltz.plt_codec.errors import CorruptError

MOST_NUMBER: Final = 10**9  # of a line
SLACK: Final = 1  # bytes by which a value may be shorter than what is taken off for it
INDENTS: Final = tuple(s.indent if type(s.indent) is int else len(str(s.indent or "")) for s in SPELLINGS)
SHRINK: Final = 6  # characters of ASCII JSON that can become one byte


class Joiner(Values):
    """Decodes values with a `BitReader`."""

    def __init__(self, past: Past, coder: BitReader, bits: bytes, pieces: Sequence[str], count: int) -> None:
        super().__init__(past, coder)
        self._opaque_bytes, self._opaque_at = bits, 0
        self._pieces, self._pieces_at = pieces, 0
        self._new: list[str] | None = None  # lines of the open piece, the next one last
        self._size = 0  # characters taken from it
        self._inside = False  # of a message, whose keys are not written
        self._left = count + SLACK  # bytes that may still be made
        self._indent, self._base = 0, 0  # characters per depth that values are indented by, from a depth on

    # ---- units

    def content(self, count: int) -> bytes:
        """Return the log of ``count`` bytes."""
        out: list[bytes] = []
        made = 0
        while made < count:
            unit = self._unit()
            made += len(unit)
            out.append(unit)
            if made < count:
                out.append(b"\n")
                made += 1
            self._left = count - made + SLACK
        if made > count:
            damaged(f"more than the {count} bytes of the log")
        if self._pieces_at < len(self._pieces) or self._opaque_at < len(self._opaque_bytes):
            damaged("less than there is of text or opaque bits")
        return b"".join(out)

    def _unit(self) -> bytes:
        past, coder = self._past, self._coder
        kind = coder.number(past.model, 0, codes.UNIT)
        if kind == codes.BLANK:
            return b""
        if kind == codes.BYTES:
            return self._take(coder.number(past.model, 0, codes.SIZE_OF_BYTES))
        if kind == codes.TEXT:
            text = self._lines(past.text.slot, 0)
            self._may_flush()
        elif kind == codes.LINE or kind == codes.BLOCK:
            style = past.style = coder.number(past.model, 0, codes.STYLE)
            if style >= len(SPELLINGS):
                damaged(f"spelling {style}")
            self._indent, self._base = INDENTS[style], 0
            if kind == codes.LINE:
                text = self._spelled(self._value(past.root, 0), style)
                self._flush()
            else:
                text = self._block(style)
        else:
            damaged(f"a unit of kind {kind}")
        return text.encode("utf-8", "surrogatepass")

    def _block(self, style: int) -> str:
        past, coder = self._past, self._coder
        depth = coder.number(past.model, 0, codes.DEPTH)
        self._spend(depth)
        known = coder.number(past.model, 0, codes.BLOCK_KEY)
        key = None
        if known == 1:
            key = self._key()
        elif known:
            if known - 2 >= len(past.keys):
                damaged("a key that was never met")
            key = past.keys[known - 2]
        comma = coder.bit(past.model, codes.COMMA)
        value = self._value(past.block(depth, key), 0)
        text = self._spelled(value, style)
        if "\n" in text:
            self._spend(depth * text.count("\n"))
            text = spelling.shifted(text, style, depth)
            self._flush()
        head = "" if key is None else self._spelled(key, style) + ": "
        return f"{spelling.PADS[style] * depth}{head}{text}{',' * comma}"

    def _spelled(self, value: Json, style: int) -> str:
        try:
            return spelling.spell(value, style)
        except (RecursionError, TypeError, ValueError) as exc:
            raise CorruptError(
                "the columns of a log hold a value too deep to write: the file is damaged"
            ) from exc

    def _spend(self, size: int) -> None:
        """Take the bytes that a value costs at least off those that are left."""
        self._left -= size
        if self._left < 0:
            damaged("more than the bytes of the log")

    def _spend_rest(self, text: str, left: int) -> None:
        """Take off what a text costs beyond what was taken for its parts. ``left``: bytes that were left before."""
        self._spend(max(0, len(text) - (left - self._left)))

    def _take(self, size: int) -> bytes:
        """Return the next opaque bytes."""
        data = self._opaque_bytes[self._opaque_at : self._opaque_at + size]
        if len(data) < size:
            damaged("more opaque bits than there are")
        self._opaque_at += size
        return data

    def _raw(self, size: int, data: bytes) -> bytes:
        return self._take(size)

    def _text(self, size: int, lines: list[str]) -> list[str]:
        return self._next(size)

    def _next(self, size: int) -> list[str]:
        """Return the next new lines of text."""
        if not size:
            return []
        if self._new is None:
            if self._pieces_at == len(self._pieces):
                damaged("more pieces of text than there are")
            self._new = self._pieces[self._pieces_at].split("\n")
            self._new.reverse()
            self._pieces_at += 1
        if size > len(self._new):
            damaged("more lines of text than there are")
        lines = self._new[: -size - 1 : -1]
        del self._new[-size:]
        self._size += sum(map(len, lines)) + size
        return lines

    def _may_flush(self) -> None:
        if self._size >= codes.LONGEST_PIECE:
            self._flush()

    def _flush(self) -> None:
        if self._new:
            damaged("fewer lines of text than there are")
        self._new, self._size = None, 0

    # ---- values

    def _value(self, field: Field, depth: int) -> Json:
        self._spend(1)
        op = self._op(field)
        # Objects and lists hold fields of their own; they are no column's last value.
        if op == codes.OBJECT or op == codes.LIST:
            if depth >= codes.MAX_DEPTH:
                damaged("values too deep in each other")
            return self._object(field, depth) if op == codes.OBJECT else self._list(field, depth)
        slot = field.slot
        value: Json
        # The value of the same field in the row before.
        if op == codes.SAME:
            value = field.last
            if value is Slot:
                damaged("a value like none before")
            slot.last = value
            if isinstance(value, (str, bytes)):
                self._spend(len(value) - 2 * (type(value) is spelling.Number))  # its NUL is not written
            elif type(value) is int:
                self._spend(value.bit_length() // 64)  # JSON text may be a number of thousands of digits
            if type(value) is str:
                self._past.met(value, slot)
            return value
        # Every other value ends as the last of its field and of its column.
        if op == codes.JSON:
            value = self._json(slot)
            if type(value) in (dict, list):
                return value
        elif op == codes.NULL:
            value = None
        elif op == codes.TRUE or op == codes.FALSE:
            value = op == codes.TRUE
        elif op == codes.INTEGER:
            value = self._whole(slot)
        elif op == codes.EPOCH:
            value = self._moment(slot, 3)
        elif op == codes.BITS:
            value = self._take(self._coder.number(slot.model, 0, codes.SIZE))
            self._spend(len(value))
        elif op == codes.DECIMAL:
            value = self._decimal(slot)
            self._spend(len(value) - 2)
        else:
            value = self._string(slot, op, depth)
        field.last = slot.last = value
        return value

    def _object(self, field: Field, depth: int) -> dict[str, Json]:
        past, slot, shape = self._past, field.slot, self._shaped(field)
        keys = past.shapes[shape]
        if not self._inside:
            self._spend(sum(map(len, keys)) + (2 + self._indent * (depth - self._base + 1)) * len(keys))
        odd, self._odd = self._odd, 0
        value = {key: self._value(child, depth + 1) for key, child in zip(keys, past.fields(slot, shape), strict=True)}
        self._odd = odd
        return value

    def _list(self, field: Field, depth: int) -> list[Json]:
        size = self._coder.number(field.slot.model, 0, codes.COUNT)
        if size > self._left:
            damaged("more values than bytes of the log")
        self._spend(self._indent * (depth - self._base + 1) * size)
        element = self._past.element(field.slot)
        values = []
        for _ in range(size):
            values.append(self._value(element, depth + 1))
            self._may_flush()
        return values

    def _json(self, slot: Slot) -> Json:
        text = self._lines(slot, codes.MAX_DEPTH, SHRINK)
        try:
            return spelling.parse(text)
        except ValueError as exc:
            raise CorruptError(f"expected JSON in the columns of a log, found {exc}: the file is damaged") from exc

    # ---- strings

    def _string(self, slot: Slot, op: int, depth: int) -> str:
        past = self._past
        # A time is no text that later ones may repeat.
        if op == codes.TIME:
            style = self._coder.number(slot.model, 0, codes.DIGITS)
            if style >= 30:
                damaged("a time of no style")
            units = self._moment(slot, style // 3)
            try:
                return times.write_time(style, units)
            except ValueError as exc:
                raise CorruptError(
                    "the columns of a log hold a time that is none: the file is damaged"
                ) from exc
        # Texts that were met, then new ones, each as its writer saw it.
        if op in (codes.RECENT, codes.ELSEWHERE, codes.OLD):
            text = past.strings[self._met(slot, op)]
            self._spend(len(text))
        elif op == codes.SHORT:
            text = self._next(1)[0]
            self._spend(len(text))
            past.line(text)
        elif op == codes.LONG:
            text = self._lines(slot, depth)
        elif op == codes.PARSED:
            text = self._parsed(slot, depth)
        elif op == codes.MESSAGE:
            text = self._message(slot, depth)
        else:
            text = self._opaque(slot, op)
            self._spend(len(text))
        past.met(text, slot)
        return text

    def _parsed(self, slot: Slot, depth: int) -> str:
        style = self._coder.number(slot.model, 0, codes.SPELLING)
        if style >= len(SPELLINGS):
            damaged(f"spelling {style}")
        if depth >= codes.MAX_DEPTH:
            damaged("values too deep in each other")
        outside, left = (self._indent, self._base), self._left
        self._indent, self._base = INDENTS[style], depth + 1
        text = self._spelled(self._value(self._past.inner(slot), depth + 1), style)
        self._indent, self._base = outside
        self._spend_rest(text, left)  # each JSON in JSON may double what it quotes
        return text

    def _message(self, slot: Slot, depth: int) -> str:
        flavour = self._coder.number(slot.model, 0, codes.FLAVOUR)
        if depth >= codes.MAX_DEPTH or flavour >= opaque.LOOSE:
            damaged(f"a message of flavour {flavour}")
        outside, left = (self._inside, self._indent), self._left
        self._inside, self._indent = True, 0
        value = self._value(self._past.message(slot), depth + 1)
        self._inside, self._indent = outside
        try:
            data = protobuf.write_message(value)
        except ValueError as exc:
            raise CorruptError("the columns of a log hold a message that is none: the file is damaged") from exc
        text = opaque.base64_text(flavour, data)
        self._spend_rest(text, left)  # each message in a message is a third longer
        return text

    def _opaque(self, slot: Slot, op: int) -> str:
        if op == codes.UUID:
            return self._uuid(slot)
        if op == codes.STAMPED:
            return self._stamped(slot)
        return self._id(slot) if op == codes.ID else self._base64(slot)

    # ---- text

    def _lines(self, slot: Slot, depth: int, shrink: int = 1) -> str:
        past, coder, model = self._past, self._coder, slot.model
        size = coder.number(model, 0, codes.COUNT) + 1
        self._spend((size - 1) // shrink)  # what stands between them
        lines: list[str] = []
        state = Marks()
        while len(lines) < size:
            # A run of new lines, which may be empty unless it is the rest.
            rest = coder.bit(model, codes.REST + bool(lines))
            new = size - len(lines) if rest else coder.number(model, 0, codes.RUN)
            if new > size - len(lines) or (new == size - len(lines) and not rest):
                damaged("more new lines than lines")
            fresh = self._fresh(slot, new, depth, shrink)
            self._mark(model, state, fresh, lines)
            if rest:
                past.expected = -1
                for line in fresh:
                    past.line(line)
                break
            # A copy goes on where the last one ended, or says how far back it begins.
            limit = len(past.lines)
            if coder.bit(model, codes.COPY):
                source = past.expected + new if past.expected >= 0 else limit
            else:
                source = limit - 1 - coder.number(past.model, 0, codes.LINE_AGE)
            n = coder.number(model, 0, codes.COPIED) + 1
            if source < 0 or source + n > limit or n > size - len(lines):
                damaged("a copy from beyond the text")
            copied = past.lines[source : source + n]
            self._spend(sum(map(len, copied)) // shrink)
            self._mark(model, state, copied, lines)
            # Only now, as the writer does: no copy of this round reaches into its own new lines.
            for line in fresh:
                past.line(line)
            for line in copied:
                past.line(line)
            past.expected = source + n
        return "\n".join(lines)

    def _fresh(self, slot: Slot, new: int, depth: int, shrink: int) -> list[str]:
        """Return new lines."""
        lines = self._next(new)
        self._spend(sum(map(len, lines)) // shrink)
        if STAND_IN in lines:
            for at, line in enumerate(lines):
                if line == STAND_IN and self._coder.bit(slot.model, codes.STAND):
                    self._left += len(STAND_IN)
                    lines[at] = self._parsed(slot, depth)
        return lines

    def _mark(self, model: Model, state: Marks, bodies: list[str], lines: list[str]) -> None:
        """Append lines with their marks to ``lines``."""
        bit = self._coder.bit
        for body in bodies:
            sign, rest, found = 3, body, None
            hunk = state.old or state.new
            if hunk:
                base = codes.MARK + state.sign * 4
                sign = next((n for n in range(3) if bit(model, base + n)), 3)
            if state.numbering is not None:
                if bit(model, codes.MARK + 16 + state.missed):
                    if state.numbering.signed:
                        state.pointer = self._pointer(model, state.pointer)
                    step = 1 if bit(model, codes.MARK + 24) else self._coder.signed(model, 0, codes.STEP)
                    number = state.numbering.number + step
                    if not 0 <= number < MOST_NUMBER:
                        damaged(f"a line of number {number}")
                    found = state.numbering.at(number)
                    rest = found.mark(state.pointer) + body
            elif not hunk and state.lines < FIRST and bit(model, codes.MARK + 80 + state.lines):
                found = self._start(model)
                rest = found.mark(0) + body
            line = SIGNS[sign] + rest if sign < 3 else rest
            self._spend(len(line) - len(body))
            state.passed(rest, sign, found)
            lines.append(line)

    def _pointer(self, model: Model, last: int) -> int:
        base, most = codes.MARK + 32 + 8 * last, len(POINTERS) - 1
        return next((n for n in range(most) if self._coder.bit(model, base + n)), most)

    def _start(self, model: Model) -> Numbering:
        coder = self._coder
        end = coder.number(model, 0, codes.END)
        width = coder.number(model, 0, codes.WIDTH)
        number = coder.number(model, 0, codes.START)
        if end >= len(ENDS) or width // 2 > MOST_WIDTH or number >= MOST_NUMBER:
            damaged("a numbering of no kind")
        return Numbering("", False, end, width // 2, bool(width & 1), number)
