"""The table of a log, as coding/log/FORMAT.md describes it: columns, opaque bytes and pieces back to bytes."""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests.second_reader.chat import SPELLINGS, Written, spelled
from tests.second_reader.fields import Damaged, Fields, Newer

KNOWN = Path(__file__).resolve().parents[2] / "coding/log/known.table"
VERSION, LONGEST_PIECE, WAYS = 7, 2000, 26
# Bases of numbers: those of the past, then those of a slot
UNIT, STYLE, BYTES, SHAPE_AGE, KEYS, KEY_AGE, KEY_LINES, STRING_AGE, SLOT, LINE_AGE, DEPTH, BLOCK_KEY, COMMA = (
    n << 10 for n in range(1, 14)
)
DELTA, MOMENT, SHAPE, SHAPE_RANK, RANK, SOURCE, DISTANCE, COUNT, RUN, COPY, COPIED, SIZE, DIGITS, PREFIX, FLAVOUR = (
    n << 10 for n in range(1, 16)
)
SPELLING, MARK, END, WIDTH, START, ALPHABET, COMMON, COUNTER, ID_VERSION, GAPS, PLAIN, REST, STEP, STAND, PAIR = (
    n << 10 for n in range(16, 31)
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ALPHABETS = (
    "0123456789abcdef",
    "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",
    "0123456789" + LETTERS.upper() + LETTERS,
    "0123456789" + LETTERS.upper() + LETTERS + "-_",
)
ENDS = ("\u2192", "\t", ": ", "| ", ". ", ":", "|", "\u2502")
SIGNS, POINTERS = " +-", " +-*>"
HUNK = re.compile(r"@@ -[0-9]{1,9}(?:,([0-9]{1,9}))? \+[0-9]{1,9}(?:,([0-9]{1,9}))? @@")
OPENS = re.compile(r"@@(?: (?!-).*)?$|\*\*\* Add File: ")
NUMBERED = re.compile(r"( *|0*)([1-9][0-9]{0,8}|0)(\u2192|\t|: |\| |\. |:|\||\u2502)")
PATH = re.compile(r"[^\s:]{2,200}:(?=[0-9]{1,9}:)")


Contexts = defaultdict[int, tuple[int, int]]  # by number: probability of a 1 in 65536ths, and experience


def fresh() -> Contexts:
    """Return contexts in which nothing was decided."""
    return Contexts(lambda: (32768, 0))


class Decisions:
    """The arithmetic code of all decisions."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._range = data + bytes(4), 4, (1 << 32) - 1
        self._code = int.from_bytes(self._data[:4], "big")

    def _shift(self) -> None:
        while self._range < 1 << 24:
            if self._at == len(self._data):
                raise Damaged("columns that end too early")
            self._code = self._code << 8 | self._data[self._at]
            self._at, self._range = self._at + 1, self._range << 8

    def bit(self, contexts: Contexts, number: int) -> int:
        """Return one decision."""
        p, n = contexts[number]
        bound, rate = (self._range >> 16) * p, 655360 // (10 * n + 17)
        if self._code < bound:
            self._range, p, found = bound, p + ((65512 - p) * rate >> 16), 1
        else:
            self._code, self._range = self._code - bound, self._range - bound
            p, found = p - ((p - 24) * rate >> 16), 0
        contexts[number] = p, min(n + 1, 12)
        self._shift()
        return found

    def raw(self, count: int) -> int:
        """Return bits without a context."""
        self._range >>= count
        found = min(self._code // self._range, (1 << count) - 1)
        self._code -= found * self._range
        self._shift()
        return found

    def _tree(self, contexts: Contexts, base: int, depth: int) -> int:
        node = 1
        for _ in range(depth):
            node = 2 * node + self.bit(contexts, base + node)
        return node

    def number(self, contexts: Contexts, base: int) -> int:
        """Return a number from 0 to 2^62 - 1."""
        length = self._tree(contexts, base, 3) - 8
        if length == 7:
            length += self._tree(contexts, base + 576, 6) - 64
        if length > 62:
            raise Damaged("a number over 62 bits")
        if length < 2:
            return length
        seen = min(3, length - 1)
        found, left = self._tree(contexts, base + 64 + 8 * length, seen), length - 1 - seen
        while left:
            part = min(16, left)
            found, left = found << part | self.raw(part), left - part
        return found

    def signed(self, contexts: Contexts, base: int) -> int:
        """Return a number of either sign."""
        size = self.number(contexts, base)
        return -size if size and self.bit(contexts, base + 640 + size.bit_length()) else size

    def first(self, contexts: Contexts, base: int, most: int) -> int:
        """Return the place of the first 1 of so many bits, or their number."""
        return next((n for n in range(most) if self.bit(contexts, base + n)), most)


class Slot:
    """A place in a log by the keys on the way to it."""

    def __init__(self, number: int) -> None:
        self.number_of, self.children, self.rows = number, dict[str, Slot](), dict[int, list[Field]]()
        self.shapes, self.recent, self.sources = list[int](), list[int](), list[Slot]()
        self.contexts, self.ways, self.order = fresh(), fresh(), list(range(WAYS))
        self.bias = self.whole = 0
        self.follows, self.pair, self.id = dict[int, int](), list[Slot](), ""
        self.last: Any = Damaged  # none
        self.time, self.reference = (3, 0), list[Slot]()


class Field:
    """A slot within objects of one shape."""

    def __init__(self, slot: Slot) -> None:
        self.slot, self.order, self.way, self.last = slot, [*slot.order], 0, slot.last
        self.shape = slot.shapes[0] if slot.shapes else -1


def to_front(items: list[Any], item: Any, most: int) -> None:
    """Move an item to the front of at most so many."""
    items[:] = [item, *(one for one in items if one is not item and one != item)][:most]


def scaled(units: int, digits: int, to: int) -> int:
    """Return a time in another unit, rounded down."""
    power: int = 10 ** abs(to - digits)
    return units * power if to >= digits else units // power


class Numbering(NamedTuple):
    """Tell how lines are numbered, and the number of the last."""

    path: str
    signed: bool
    end: int
    width: int
    zeros: bool
    number: int

    def mark(self, pointer: int) -> str:
        """Return what stands before the line."""
        number = str(self.number).rjust(self.width, "0" if self.zeros else " ")
        return f"{self.path}{POINTERS[pointer] if self.signed else ''}{number}{ENDS[self.end]}"


def numbering_of(line: str) -> Numbering | None:
    """Return the numbering that a line is part of."""
    path, signed = "", False
    if line and line[0] not in " 0123456789":
        if (start := PATH.match(line)) is not None:
            path = start[0]
        elif line[0] in POINTERS:
            signed = True
        else:
            return None
    if (match := NUMBERED.match(line, len(path) + signed)) is None:
        return None
    width = len(match[1] + match[2]) if match[1] else 0
    found = Numbering(path, signed, ENDS.index(match[3]), width, match[1][:1] == "0", int(match[2]))
    pointer = POINTERS.index(line[0]) if signed else 0
    return found if width <= 20 and line.startswith(found.mark(pointer)) else None


class Marks:
    """The marks of the lines of a text."""

    def __init__(self) -> None:
        self.lines = self.old = self.new = self.sign = self.pointer = self.missed = 0
        self.open, self.numbering = False, list[Numbering]()

    def line(self, code: Decisions, contexts: Contexts, body: str) -> str:
        """Return a line with its mark, and learn it."""
        sign, found, hunk = 3, list[Numbering](), self.old or self.new
        if hunk:
            sign = code.first(contexts, MARK + 4 * self.sign, 3)
        if self.numbering:
            if code.bit(contexts, MARK + 16 + self.missed):
                [last] = self.numbering
                if last.signed:
                    self.pointer = code.first(contexts, MARK + 32 + 8 * self.pointer, 4)
                step = 1 if code.bit(contexts, MARK + 24) else code.signed(contexts, STEP)
                found = [last._replace(number=last.number + step)]
        elif not hunk and self.lines < 4 and code.bit(contexts, MARK + 80 + self.lines):
            end, width = code.number(contexts, END), code.number(contexts, WIDTH)
            if end >= len(ENDS):
                raise Damaged("a numbering of no kind")
            found = [Numbering("", False, end, width // 2, bool(width & 1), code.number(contexts, START))]
        rest = found[0].mark(self.pointer if found[0].signed else 0) + body if found else body
        self._learn(rest, sign, found)
        return SIGNS[sign] + rest if sign < 3 else rest

    def _learn(self, line: str, sign: int, found: list[Numbering]) -> None:
        self.lines += 1
        hunk = self.old or self.new
        if line[:2] in ("@@", "**") and (not hunk or (self.open and sign == 3)):
            match, ended = HUNK.match(line), self.open
            self.open, self.sign = match is None and OPENS.match(line) is not None, 0
            self.old, self.new = (int(match[1] or 1), int(match[2] or 1)) if match else (int(self.open), 0)
            if match or self.open or ended:
                return
            hunk = self.old or self.new
        if hunk:
            self.sign = sign
            if not self.open:
                self.old -= sign != 1 and self.old > 0
                self.new -= sign != 2 and self.new > 0
        if found:
            self.numbering, self.missed = found, 0
        elif (other := numbering_of(line)) is not None:
            self.numbering, self.missed, self.pointer = [other], 0, 0
        elif self.numbering:
            self.missed += 1
            if self.missed > 2:
                self.numbering = []


class Log:
    """A log that is made from tables: what it remembers is the past of the next one."""

    def __init__(self) -> None:
        self._slots = list[Slot]()
        self._root, self._text = Field(self._slot()), self._slot()
        self._blocks, self._contexts = dict[tuple[int, str | None], Field](), fresh()
        self._shapes, self._keys, self._strings = list[tuple[str, ...]](), list[str](), dict[str, int]()
        self._names, self._where, self._lines = list[str](), list[Slot](), list[str]()
        self._expected, self._moments, self._style, self._odd = -1, [self._root.slot], 0, 0
        self._met("", self._root.slot)

    @classmethod
    def after_known_lines(cls) -> Log:
        """Return a log with the past that every table starts from."""
        log, fields = cls(), Fields(KNOWN.read_bytes())
        count, columns, opaque = (fields.varint() for _ in range(3))
        log.join(fields.take(columns), fields.take(opaque), fields.rest().split(b"\xff")[:-1], count)
        return log

    def join(self, columns: bytes, opaque: bytes, pieces: Sequence[bytes], count: int) -> bytes:
        """Return so many bytes."""
        if columns[:1] != bytes([VERSION]):
            raise Newer("a table of another version")
        self._code, self._opaque = Decisions(columns[1:]), Fields(opaque)
        self._pieces, self._piece, self._size = list(pieces[::-1]), list[str](), 0
        self._open, self._odd = False, 0
        out = b""
        while len(out) < count:
            out += self._unit()
            out += b"\n" if len(out) < count else b""
        if len(out) != count or self._pieces or self._piece:
            raise Damaged("a log of another size, or text left over")
        self._opaque.end()
        return out

    # ---- units

    def _number(self, base: int) -> int:
        return self._code.number(self._contexts, base)

    def _unit(self) -> bytes:
        kind = self._number(UNIT)
        if kind == 4:
            return b""
        if kind == 2:
            return self._opaque.take(self._number(BYTES))
        if kind == 1:
            text = self._lines_of(self._text)
            self._end_piece(LONGEST_PIECE)
        elif kind in (0, 3):
            self._style = self._number(STYLE)
            text = self._block() if kind else spelled(self._value(self._root), self._spelling(self._style))
            self._end_piece(0 if not kind or "\n" in text else 1 << 62)
        else:
            raise Damaged(f"a unit of kind {kind}")
        return text.encode("utf-8", "surrogatepass")

    def _spelling(self, number: int) -> int:
        if number >= len(SPELLINGS):
            raise Damaged(f"spelling {number}")
        return number

    def _block(self) -> str:
        depth, known = self._number(DEPTH), self._number(BLOCK_KEY)
        key = None if not known else self._key() if known == 1 else self._at(self._keys, known - 2)
        comma = self._code.bit(self._contexts, COMMA)
        if (depth, key) not in self._blocks:
            self._blocks[depth, key] = Field(self._slot())
        text = spelled(self._value(self._blocks[depth, key]), self._spelling(self._style))
        pad = ("\t" if SPELLINGS[self._style][1] == "\t" else " ") * depth
        head = pad if key is None else f"{pad}{spelled(key, self._style)}: "
        return head + text.replace("\n", "\n" + pad) + "," * comma

    def _end_piece(self, size: int) -> None:
        if self._size >= size:
            if self._piece:
                raise Damaged("a piece that is not used up")
            self._open, self._size = False, 0

    def _new_lines(self, count: int) -> list[str]:
        if count and not self._open:
            if not self._pieces:
                raise Damaged("more pieces than there are")
            self._piece, self._open = self._pieces.pop().decode("utf-8", "surrogatepass").split("\n"), True
        if count > len(self._piece):
            raise Damaged("more lines than a piece has")
        found, self._piece = self._piece[:count], self._piece[count:]
        self._size += sum(map(len, found)) + count
        return found

    # ---- the past

    def _slot(self) -> Slot:
        self._slots.append(Slot(len(self._slots)))
        return self._slots[-1]

    def _fields(self, slot: Slot, row: int, keys: Sequence[str]) -> list[Field]:
        """Return the fields of a shape, or of what is no object (rows below 0)."""
        if row not in slot.rows:
            slots = []
            for key in keys:
                if len(key) > 40 or set(key) & set("/. ") or sum(digit in "0123456789" for digit in key) > 3:
                    key = "*"
                if key not in slot.children:
                    slot.children[key] = self._slot()
                slots.append(Field(slot.children[key]))
            slot.rows[row] = slots
        return slot.rows[row]

    def _met(self, text: str, slot: Slot) -> str:
        number = self._strings.setdefault(text, len(self._names))
        if number == len(self._names):
            self._names.append(text)
            self._where.append(slot)
        self._where[number] = slot
        to_front(slot.recent, number, 128)
        return text

    def _at(self, items: Sequence[Any], place: int) -> Any:
        if not 0 <= place < len(items):
            raise Damaged("a place that was never met")
        return items[place]

    def _key(self) -> str:
        key = "\n".join(self._new_lines(self._number(KEY_LINES)))
        self._keys.append(key)
        return key

    def _source(self, slot: Slot) -> Slot:
        rank = self._code.number(slot.contexts, SOURCE)
        found: Slot = self._at(slot.sources, rank - 1) if rank else self._at(self._slots, self._number(SLOT))
        to_front(slot.sources, found, 32)
        return found

    def _expected_time(self, slot: Slot, digits: int) -> int:
        time = (slot.reference or self._moments[-1:])[0].time
        return scaled(time[1], time[0], digits)

    def _moment(self, slot: Slot, digits: int) -> int:
        units = self._expected_time(slot, digits) + self._code.signed(slot.contexts, MOMENT)
        candidates = [(slot.reference or self._moments[-1:])[0], *self._moments[::-1]]
        away = [abs(scaled(one.time[1], one.time[0], digits) - units) for one in candidates]
        slot.reference, slot.time = [candidates[away.index(min(away))]], (digits, units)
        self._moments = [*(one for one in self._moments if one is not slot), slot][-8:]
        return units

    # ---- values

    def _value(self, field: Field) -> Any:
        slot, code = field.slot, self._code
        base, order = 64 * field.way + 32 * self._odd, field.order
        place = next((n for n, way in enumerate(order) if code.bit(slot.ways, base + way)), -1)
        way = self._at(order, place)
        if place:
            self._odd = 1
            to_front(order, way, WAYS)
            to_front(slot.order, way, WAYS)
        field.way = way
        if way == 8:
            return self._object(field)
        if way == 9:
            count, [element], found = code.number(slot.contexts, COUNT), self._fields(slot, -1, [""]), []
            for _ in range(count):
                found.append(self._value(element))
                self._end_piece(LONGEST_PIECE)
            return found
        if way == 0:
            if field.last is Damaged:
                raise Damaged("a value like none before")
            slot.last = field.last
            return self._met(field.last, slot) if type(field.last) is str else field.last
        value = self._scalar(slot, way)
        if not isinstance(value, (dict, list)):
            field.last = slot.last = value
        return value

    def _object(self, field: Field) -> dict[str, Any]:
        slot, code, last = field.slot, self._code, field.shape
        shape = slot.follows.get(last, last)
        if not code.bit(slot.contexts, SHAPE + (last & 1023)):
            choice = code.number(slot.contexts, SHAPE_RANK)
            if choice == 0:
                keys = tuple(self._shape_key() for _ in range(self._number(KEYS)))
                if keys not in self._shapes:
                    self._shapes.append(keys)
                shape = self._shapes.index(keys)
            elif choice == 1:
                shape = len(self._shapes) - 1 - self._number(SHAPE_AGE)
            else:
                shape = self._at(slot.shapes, choice - 2)
        keys = self._at(self._shapes, shape)
        to_front(slot.shapes, shape, 64)
        field.shape = slot.follows[last] = shape
        odd, self._odd = self._odd, 0
        found = {key: self._value(child) for key, child in zip(keys, self._fields(slot, shape, keys), strict=True)}
        self._odd = odd
        return found

    def _shape_key(self) -> str:
        age = self._number(KEY_AGE)
        return str(self._at(self._keys, len(self._keys) - age)) if age else self._key()

    def _scalar(self, slot: Slot, way: int) -> Any:
        code, contexts = self._code, slot.contexts
        if way in (1, 2, 3):
            return (None, True, False)[way - 1]
        if way == 4:
            plain = slot.bias > 0
            value = code.signed(contexts, PLAIN if plain else DELTA) + (0 if plain else slot.whole)
            bias = slot.bias + abs(value - slot.whole).bit_length() + 1 - abs(value).bit_length()
            slot.bias, slot.whole = max(-64, min(64, bias)), value
            return value
        if way == 23:
            slot.whole = self._source(slot).whole
            return slot.whole
        if way == 24:
            if not code.bit(contexts, PAIR):
                slot.pair = [self._source(slot), self._source(slot)]
            slot.whole = self._at(slot.pair, 0).whole + slot.pair[1].whole
            return slot.whole
        if way == 5:
            return self._moment(slot, 3)
        if way == 6:
            places, digits = code.number(contexts, DIGITS), code.signed(contexts, DELTA)
            text = str(abs(digits)).rjust(places + 1, "0")
            return Written(f"{'-' * (digits < 0)}{text[:-places]}.{text[-places:]}")
        if way == 7:
            return json.loads(self._lines_of(slot), parse_float=Written, parse_constant=Written)
        if way == 22:
            return self._opaque.take(code.number(contexts, SIZE))
        if way == 17:
            style = code.number(contexts, DIGITS)
            digits, suffix = divmod(style, 3)
            seconds, fraction = divmod(self._moment(slot, digits), 10**digits)
            whole = (datetime(1970, 1, 1) + timedelta(seconds=seconds)).isoformat()
            return f"{whole}{f'.{fraction:0{digits}d}' if digits else ''}{('Z', '', '+00:00')[suffix]}"
        if way == 25:
            sign, expected = code.first(contexts, MARK + 90, 2), self._expected
            text = SIGNS[sign] + self._lines_of(slot)
            self._expected = expected if self._expected < 0 else self._expected
            return text
        return self._met(self._string(slot, way), slot)

    def _string(self, slot: Slot, way: int) -> str:
        code, contexts = self._code, slot.contexts
        if way == 10:
            return str(self._names[self._at(slot.recent, code.number(contexts, RANK))])
        if way == 11:
            source = self._source(slot)
            return str(self._names[self._at(source.recent, code.number(contexts, DISTANCE))])
        if way == 12:
            return str(self._at(self._names, len(self._names) - 1 - self._number(STRING_AGE)))
        if way == 18:
            [text] = self._new_lines(1)
            self._lines.append(text)
            return text
        if way == 19:
            return self._lines_of(slot)
        if way == 20:
            return self._parsed(slot)
        if way == 21:
            flavour = code.number(contexts, FLAVOUR)
            [field] = self._fields(slot, -3, ["()"])
            return base64_text(flavour, message_bytes(self._value(field)))
        if way == 13:
            return self._uuid(slot, code.number(contexts, ID_VERSION))
        if way == 14:
            common = code.number(contexts, COMMON)
            head = slot.id[: common - 1] if common else self._prefix(slot)
            alphabet, size = code.number(contexts, ALPHABET), code.number(contexts, SIZE)
            slot.id = head + self._digits(alphabet, size)
            return slot.id
        if way == 15:
            prefix, now = self._prefix(slot), self._moment(slot, 3) % (1 << 36)
            return f"{prefix}{now << 12 | code.number(contexts, COUNTER):012x}{self._digits(2, 14)}"
        flavour, headed = divmod(code.number(contexts, FLAVOUR), 2)
        head = self._prefix(slot) if headed else ""
        if flavour < 4:
            return head + base64_text(flavour, self._opaque.take(code.number(contexts, SIZE)))
        count, ends = divmod(code.number(contexts, GAPS), 4)
        sizes = [code.number(contexts, SIZE) for _ in range(count)]
        text = base64_text(flavour & 1, self._opaque.take((sum(sizes) + 3) // 4 * 3))
        places = [sum(sizes[:n]) for n in range(count + 1)]
        return head + "REDACTED".join(text[a:b] for a, b in pairwise(places)) + "=" * ends

    def _parsed(self, slot: Slot) -> str:
        style = self._spelling(self._code.number(slot.contexts, SPELLING))
        [field] = self._fields(slot, -2, ["{}"])
        return spelled(self._value(field), style)

    def _bits(self, bits: int) -> int:
        above = self._code.raw(bits % 8)
        return above << bits // 8 * 8 | int.from_bytes(self._opaque.take(bits // 8), "big")

    def _digits(self, alphabet: int, size: int) -> str:
        letters = self._at(ALPHABETS, alphabet)
        number, found = self._bits((len(letters) ** size - 1).bit_length()), ""
        for _ in range(size):
            number, digit = divmod(number, len(letters))
            found = letters[digit] + found
        return found

    def _prefix(self, slot: Slot) -> str:
        known = self._code.number(slot.contexts, PREFIX)
        if known:
            return str(self._at(self._keys, known - 1))
        [prefix] = self._new_lines(1)
        if prefix not in self._keys:
            self._keys.append(prefix)
        return prefix

    def _uuid(self, slot: Slot, version: int) -> str:
        if version == 0:
            number = self._bits(128)
        else:
            above = self._moment(slot, 3) if version == 7 else 0
            bits = self._bits(74 if version == 7 else 122)
            above = above if version == 7 else bits >> 74
            low = bits & (1 << 62) - 1
            number = above << 80 | version << 76 | (bits >> 62 & 0xFFF) << 64 | 2 << 62 | low
        return re.sub("(.{8})(.{4})(.{4})(.{4})(.{12})", r"\1-\2-\3-\4-\5", f"{number:032x}")

    def _lines_of(self, slot: Slot) -> str:
        """Return a text that is coded as lines."""
        code, contexts, marks = self._code, slot.contexts, Marks()
        size, found = code.number(contexts, COUNT) + 1, list[str]()
        while len(found) < size:
            rest = code.bit(contexts, REST + bool(found))
            fresh = self._new_lines(size - len(found) if rest else code.number(contexts, RUN))
            for place, line in enumerate(fresh):
                if line == "{}" and code.bit(contexts, STAND):
                    fresh[place] = self._parsed(slot)
            found += [marks.line(code, contexts, line) for line in fresh]
            copied, expected = list[str](), -1
            if not rest:
                begin = self._expected + len(fresh) if self._expected >= 0 else -1
                if not code.bit(contexts, COPY):
                    begin = len(self._lines) - 1 - self._number(LINE_AGE)
                expected = begin + code.number(contexts, COPIED) + 1
                if not 0 <= begin < expected <= len(self._lines):
                    raise Damaged("a copy from beyond the text")
                copied = self._lines[begin:expected]
                found += [marks.line(code, contexts, line) for line in copied]
            self._lines += fresh + copied
            self._expected = expected
        return "\n".join(found)


def base64_text(flavour: int, data: bytes) -> str:
    """Return base64 in a flavour below 4."""
    text = base64.b64encode(data, altchars=b"-_" if flavour & 1 else b"+/").decode()
    return text.rstrip("=") if flavour & 2 else text


def message_bytes(message: Any) -> bytes:
    """Return the bytes of a message of Protocol Buffers."""
    if not isinstance(message, dict):
        raise Damaged("a message without fields")
    out = b""
    for key, value in message.items():
        number, _, wire = key.partition("-")[0].partition(":")
        out += _varint(int(number) << 3 | int(wire))
        if wire == "0":
            out += _varint(value)
            continue
        data = value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else message_bytes(value)
        out += (_varint(len(data)) if wire == "2" else b"") + data
    return out


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)
