"""Joiner: the bytes of a log from decisions, opaque bits and text, the inverse of `Splitter`. Spec: FORMAT.md.

Nothing that it reads is trusted: what a value costs in the output is taken off the bytes that are left to make
before the value is made, and each reference is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

from pltz.coding.log import codes, opaque, spelling, times
from pltz.coding.log.bit_coder import BitReader
from pltz.coding.log.past import SHAPES, SOURCES, Field, Past, Slot, to_front
from pltz.coding.log.spelling import SPELLINGS, Json
from pltz.plt_codec.errors import CorruptError

MOST_DIGITS: Final = 64  # of an id
SHRINK: Final = 6  # characters of ASCII JSON that can become one byte


def damaged(what: str) -> NoReturn:
    """Raise the error of columns that cannot be.

    Raises:
        CorruptError: always.
    """
    raise CorruptError(f"the columns of a log hold {what}: the file is damaged")


class Joiner:
    """Decodes values with a `BitReader`."""

    def __init__(self, past: Past, coder: BitReader, bits: bytes, pieces: Sequence[str], count: int) -> None:
        self._past, self._coder = past, coder
        self._bits, self._bits_at = bits, 0
        self._pieces, self._pieces_at = pieces, 0
        self._new: list[str] | None = None  # lines of the open piece, the next one last
        self._left = count  # bytes that may still be made

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
            self._left = count - made
        if made > count:
            damaged(f"more than the {count} bytes of the log")
        if self._pieces_at < len(self._pieces) or self._bits_at < len(self._bits):
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
            text = self._lines(past.text.slot)
        elif kind == codes.LINE or kind == codes.DOCUMENT:
            style = past.style = coder.number(past.model, 0, codes.STYLE)
            if style >= len(SPELLINGS):
                damaged(f"spelling {style}")
            text = self._spelled(self._value(past.root, 0, kind == codes.DOCUMENT), style)
        else:
            damaged(f"a unit of kind {kind}")
        self._flush()
        return text.encode("utf-8", "surrogatepass")

    def _spelled(self, value: Json, style: int) -> str:
        try:
            return spelling.spell(value, style)
        except (RecursionError, ValueError) as exc:
            raise CorruptError(
                "the columns of a log hold a value too deep to write: the file is damaged"
            ) from exc

    def _spend(self, size: int) -> None:
        """Take the bytes that a value costs at least off those that are left."""
        self._left -= size
        if self._left < 0:
            damaged("more than the bytes of the log")

    def _take(self, size: int) -> bytes:
        """Return the next opaque bytes."""
        data = self._bits[self._bits_at : self._bits_at + size]
        if len(data) < size:
            damaged("more opaque bits than there are")
        self._bits_at += size
        self._spend(size)
        return data

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
        return lines

    def _flush(self) -> None:
        if self._new:
            damaged("fewer lines of text than there are")
        self._new = None

    # ---- values

    def _op(self, field: Field) -> int:
        ops, model, base = field.ops, field.model, field.op << 5
        bit = self._coder.bit
        op = ops[0]
        if not bit(model, base | op):
            for op in ops[1:]:
                if bit(model, base | op):
                    break
            else:
                damaged("a value of no kind")
            ops.remove(op)
            ops.insert(0, op)
            if field.slot.ops[0] != op:
                field.slot.ops.remove(op)
                field.slot.ops.insert(0, op)
        field.op = op
        return op

    def _value(self, field: Field, depth: int, breaks: bool = False) -> Json:
        self._spend(1)
        op = self._op(field)
        if op == codes.OBJECT or op == codes.LIST:
            if depth >= codes.MAX_DEPTH:
                damaged("values too deep in each other")
            return (
                self._object(field, depth, breaks) if op == codes.OBJECT else self._list(field, depth, breaks)
            )
        slot = field.slot
        value: Json
        if op == codes.SAME:
            value = field.last
            if value is Slot:
                damaged("a value like none before")
            slot.last = value
            if type(value) is str:
                self._spend(len(value))
                self._past.met(value, slot)
            return value
        if op == codes.JSON:
            value = self._json(slot)
            if type(value) in (dict, list):
                return value
        elif op == codes.NULL:
            value = None
        elif op == codes.TRUE or op == codes.FALSE:
            value = op == codes.TRUE
        elif op == codes.INTEGER:
            value = slot.number + self._coder.signed(slot.model, 0, codes.DELTA)
            if not -codes.FIT < value < codes.FIT:
                damaged("a whole number too large")
            slot.number = value
        elif op == codes.EPOCH:
            value = self._moment(slot, 3)
        elif op == codes.DECIMAL:
            value = self._decimal(slot)
        else:
            value = self._string(slot, op)
        field.last = slot.last = value
        return value

    def _object(self, field: Field, depth: int, breaks: bool) -> dict[str, Json]:
        past, slot, coder = self._past, field.slot, self._coder
        shape = field.shape
        if not coder.bit(slot.model, codes.SHAPE):
            choice = coder.number(slot.model, 0, codes.SHAPE)
            if choice == 0:
                shape = past.shape(self._shape())
            elif choice == 1:
                shape = len(past.shapes) - 1 - coder.number(past.model, 0, codes.SHAPE_AGE)
            elif choice - 2 < len(slot.shapes):
                shape = slot.shapes[choice - 2]
            else:
                shape = -1
        if shape < 0:
            damaged("an object of no shape")
        to_front(slot.shapes, shape, SHAPES)
        field.shape = shape
        keys = past.shapes[shape]
        self._spend(sum(map(len, keys)) + 2 * len(keys))
        return {
            key: self._value(child, depth + 1, breaks)
            for key, child in zip(keys, past.fields(slot, shape), strict=True)
        }

    def _shape(self) -> tuple[str, ...]:
        past, coder = self._past, self._coder
        size = coder.number(past.model, 0, codes.KEYS)
        if size > self._left:
            damaged("more keys than bytes of the log")
        keys = []
        for _ in range(size):
            known = coder.number(past.model, 0, codes.KEY_AGE)
            if known == 0:
                key = "\n".join(self._next(coder.number(past.model, 0, codes.LINES_OF_KEY)))
                past.key(key)
            elif known <= len(past.keys):
                key = past.keys[-known]
            else:
                damaged("a key that was never met")
            keys.append(key)
        if len(set(keys)) < size:
            damaged("an object with a key twice")
        return tuple(keys)

    def _list(self, field: Field, depth: int, breaks: bool) -> list[Json]:
        size = self._coder.number(field.slot.model, 0, codes.COUNT)
        if size > self._left:
            damaged("more values than bytes of the log")
        element = self._past.element(field.slot)
        if breaks:
            self._flush()
        values = []
        for _ in range(size):
            values.append(self._value(element, depth + 1))
            if breaks:
                self._flush()
        return values

    def _json(self, slot: Slot) -> Json:
        text = self._lines(slot, SHRINK)
        try:
            return spelling.parse(text)
        except ValueError as exc:
            raise CorruptError(
                "the columns of a log hold codes.JSON that is none: the file is damaged"
            ) from exc

    def _moment(self, slot: Slot, digits: int) -> int:
        past = self._past
        units = self._coder.signed(slot.model, 0, codes.MOMENT) + times.scaled(
            past.time[1], past.time[0], digits
        )
        if not -codes.FIT < units < codes.FIT:
            damaged("a time too large")
        past.time = (digits, units)
        return units

    def _decimal(self, slot: Slot) -> float:
        places = self._coder.number(slot.model, 0, codes.DIGITS)
        digits = self._coder.signed(slot.model, 0, codes.DELTA)
        if not 0 < places <= 18:
            damaged(f"a number with {places} digits behind its point")
        text = str(abs(digits)).rjust(places + 1, "0")
        return float(f"{'-' if digits < 0 else ''}{text[:-places]}.{text[-places:]}")

    # ---- strings

    def _string(self, slot: Slot, op: int) -> str:
        past = self._past
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
        if op in (codes.RECENT, codes.ELSEWHERE, codes.OLD):
            text = past.strings[self._known(slot, op)]
            self._spend(len(text))
        elif op == codes.SHORT:
            text = self._next(1)[0]
            self._spend(len(text))
            past.line(text)
        elif op == codes.LONG:
            text = self._lines(slot)
        else:
            text = self._opaque(slot, op)
        past.met(text, slot)
        return text

    def _known(self, slot: Slot, op: int) -> int:
        past, coder = self._past, self._coder
        if op == codes.OLD:
            number = len(past.strings) - 1 - coder.number(past.model, 0, codes.STRING_AGE)
            if number < 0:
                damaged("a string that was never met")
            return number
        if op == codes.RECENT:
            rank, recent = coder.number(slot.model, 0, codes.RANK), slot.recent
        else:
            place = coder.number(slot.model, 0, codes.SOURCE) - 1
            if place < 0:
                place = coder.number(past.model, 0, codes.SLOT)
                slots = past.slots
            else:
                slots = slot.sources
            if place >= len(slots):
                damaged("a string from nowhere")
            source = slots[place]
            to_front(slot.sources, source, SOURCES)
            rank, recent = coder.number(slot.model, 0, codes.DISTANCE), source.recent
        if rank >= len(recent):
            damaged("a string that was not met there")
        return recent[rank]

    def _opaque(self, slot: Slot, op: int) -> str:
        coder = self._coder
        if op == codes.UUID:
            return opaque.uuid_text(self._take(16))
        if op == codes.ID:
            prefix = self._prefix(slot)
            size = coder.number(slot.model, 0, codes.SIZE)
            if size > MOST_DIGITS:
                damaged(f"an id of {size} digits")
            try:
                return prefix + opaque.id_text(self._take(opaque.id_size(size)), size)
            except ValueError as exc:
                raise CorruptError(
                    "the columns of a log hold an id that is none: the file is damaged"
                ) from exc
        if op == codes.HEX:
            return self._take(coder.number(slot.model, 0, codes.SIZE)).hex()
        if op == codes.BASE64:
            flavour = coder.number(slot.model, 0, codes.FLAVOUR)
            if flavour >= 4:
                damaged(f"base64 of flavour {flavour}")
            return opaque.base64_text(flavour, self._take(coder.number(slot.model, 0, codes.SIZE)))
        damaged(f"a value of kind {op}")

    def _prefix(self, slot: Slot) -> str:
        past = self._past
        known = self._coder.number(slot.model, 0, codes.PREFIX)
        if known == 0:
            prefix = self._next(1)[0]
            self._spend(len(prefix))
            past.key(prefix)
        elif known <= len(past.keys):
            prefix = past.keys[known - 1]
            self._spend(len(prefix))
        else:
            damaged("a prefix that was never met")
        return prefix

    # ---- text

    def _lines(self, slot: Slot, shrink: int = 1) -> str:
        past, coder, model = self._past, self._coder, slot.model
        size = coder.number(model, 0, codes.COUNT) + 1
        if size - 1 > self._left:
            damaged("more lines than bytes of the log")
        lines: list[str] = []
        while len(lines) < size:
            new = coder.number(model, 0, codes.RUN)
            if new > size - len(lines):
                damaged("more new lines than lines")
            fresh = self._next(new)
            self._spend(sum(map(len, fresh)) // shrink)
            lines += fresh
            if len(lines) == size:
                past.expected = -1
                for line in fresh:
                    past.line(line)
                break
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
            for line in fresh:
                past.line(line)
            for line in copied:
                past.line(line)
            lines += copied
            past.expected = source + n
        return "\n".join(lines)
