"""The table of a log, as coding/log/FORMAT.md describes it: columns, opaque bytes and pieces back to bytes."""

from __future__ import annotations

import base64
import json
import re
import string
from collections import namedtuple
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.second_reader.chat import SPELLINGS, Written, spelled
from tests.second_reader.fields import Damaged, Fields, Newer, refuse

KNOWN = Path(__file__).resolve().parents[2] / "coding/log/known.table"
VERSION, LONGEST_PIECE, WAYS = 1, 2000, 26
# Bases of numbers: those of the past, then those of a slot
UNIT, STYLE, BYTES, SHAPE_AGE, KEYS, KEY_AGE, KEY_LINES, STRING_AGE, SLOT, LINE_AGE, DEPTH, BLOCK_KEY, COMMA = (
    n << 10 for n in range(1, 14)
)
DELTA, MOMENT, SHAPE, SHAPE_RANK, RANK, SOURCE, DISTANCE, COUNT, RUN, COPY, COPIED, SIZE, DIGITS, PREFIX, FLAVOUR = (
    n << 10 for n in range(1, 16)
)
SPELLING, MARK, END, WIDTH, START, ALPHABET, COMMON, COUNTER, ID_VERSION, GAPS, PLAIN, REST, STEP, STAND, PAIR, WAY = (
    n << 10 for n in range(16, 32)
)
ALPHABETS = (
    "0123456789abcdef",
    "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",
    string.digits + string.ascii_uppercase + string.ascii_lowercase,
    string.digits + string.ascii_uppercase + string.ascii_lowercase + "-_",
)
SIGNS, POINTERS = " +-", " +-*>"
HUNK = re.compile(r"@@ -[0-9]{1,9}(?:,([0-9]{1,9}))? \+[0-9]{1,9}(?:,([0-9]{1,9}))? @@")
OPENS = re.compile(r"@@(?: (?!-).*)?$|\*\*\* Add File: ")
ENDS = ("\u2192", "\t", ": ", "| ", ". ", ":", "|", "\u2502")
NUMBERED = re.compile(  # a path or a pointer, what fills, the number, and what stands behind it
    r"(?:(?![0-9])([^\s:]{2,200}:)(?=[0-9]{1,9}:)|([+*>-]))?( *|0*)([1-9][0-9]{0,8}|0)"
    f"({'|'.join(map(re.escape, ENDS))})"
)


class Decisions:
    """The arithmetic code of all decisions of a table."""

    def begin(self, data: bytes) -> None:
        """Begin a table."""
        self._data, self._range = Fields(data + bytes(4)), (1 << 32) - 1
        self._code = int.from_bytes(self._data.take(4), "big")

    def bit(self, p: int) -> int:
        """Return a decision that is 1 with a probability in 65536ths."""
        bound = (self._range >> 16) * p
        found = self._code < bound
        self._code, self._range = (self._code, bound) if found else (self._code - bound, self._range - bound)
        self._shift()
        return found

    def raw(self, count: int) -> int:
        """Return bits without a context."""
        self._range >>= count
        found = min(self._code // self._range, (1 << count) - 1)
        self._code -= found * self._range
        self._shift()
        return found

    def _shift(self) -> None:
        while self._range < 1 << 24:
            self._code, self._range = self._code << 8 | self._data.number(1), self._range << 8


class Contexts:
    """Contexts by number: the probability of a 1, and experience."""

    def __init__(self, code: Decisions) -> None:
        self._code, self._held = code, dict[int, tuple[int, int]]()

    def bit(self, number: int) -> int:
        """Return one decision."""
        p, n = self._held.get(number, (32768, 0))
        found, rate = self._code.bit(p), 655360 // (10 * n + 17)
        p += (65512 - p) * rate >> 16 if found else -((p - 24) * rate >> 16)
        self._held[number] = p, min(n + 1, 12)
        return found

    def _tree(self, base: int, depth: int) -> int:
        node = 1
        for _ in range(depth):
            node = 2 * node + self.bit(base + node)
        return node

    def number(self, base: int) -> int:
        """Return a number from 0 to 2^62 - 1."""
        length = self._tree(base, 3) - 8
        if length == 7:
            length += self._tree(base + 576, 6) - 64
        refuse(length > 62, "a number over 62 bits")
        if length < 2:
            return length
        seen = min(3, length - 1)
        found, left = self._tree(base + 64 + 8 * length, seen), length - 1 - seen
        while left:
            part = min(16, left)
            found, left = found << part | self._code.raw(part), left - part
        return found

    def signed(self, base: int) -> int:
        """Return a number of either sign."""
        size = self.number(base)
        return -size if size and self.bit(base + 640 + size.bit_length()) else size

    def first(self, base: int, most: int) -> int:
        """Return the place of the first 1 of so many bits, or their number."""
        return next((n for n in range(most) if self.bit(base + n)), most)


class Slot(Contexts):
    """A place in a log by the keys on the way to it."""

    def __init__(self, code: Decisions) -> None:
        super().__init__(code)
        self.children, self.rows = dict[str, Slot](), dict[int, list[Field]]()
        self.shapes, self.recent, self.sources = list[int](), list[int](), list[Slot]()
        self.order, self.follows = list(range(WAYS)), dict[int, int]()
        self.bias = self.whole = 0
        self.pair, self.id = list[Slot](), ""
        self.last: Any = Damaged  # none
        self.time, self.reference = (3, 0), list[Slot]()  # digits of the fraction of a second, and units


class Field:
    """A slot within objects of one shape."""

    def __init__(self, slot: Slot) -> None:
        self.slot, self.order, self.way, self.last = slot, [*slot.order], 0, slot.last
        self.shape = slot.shapes[0] if slot.shapes else -1


def to_front(items: list[Any], item: Any, most: int) -> None:
    """Move an item to the front of at most so many."""
    items[:] = [item, *(one for one in items if one is not item and one != item)][:most]


def scaled(slot: Slot, digits: int) -> int:
    """Return the time of a slot in another unit, rounded down."""
    return int(slot.time[1] * 10**digits // 10 ** slot.time[0])


# How lines are numbered, and the number of the last.
Numbering = namedtuple("Numbering", "path signed fill width end number")


def numbering_of(line: str) -> list[Numbering]:
    """Return the numbering that a line is part of, if there is one."""
    if (match := NUMBERED.match(line)) is None:
        return []
    path, pointer, fill, number, end = match.groups()
    width = len(fill + number) if fill else 0
    return [Numbering(path or "", bool(pointer), fill[:1] or " ", width, end, int(number))] if width <= 20 else []


class Marks:
    """The marks of the lines of a text."""

    def __init__(self) -> None:
        self.lines = self.old = self.new = self.sign = self.pointer = self.missed = 0
        self.open, self.numbering = False, list[Numbering]()

    def line(self, slot: Contexts, body: str) -> str:
        """Return a line with its mark, and learn it."""
        sign, found, hunk = 3, list[Numbering](), self.old or self.new
        if hunk:
            sign = slot.first(MARK + 4 * self.sign, 3)
        if self.numbering:
            if slot.bit(MARK + 16 + self.missed):
                [last] = self.numbering
                if last.signed:
                    self.pointer = slot.first(MARK + 32 + 8 * self.pointer, 4)
                step = 1 if slot.bit(MARK + 24) else slot.signed(STEP)
                found = [last._replace(number=last.number + step)]
        elif not hunk and self.lines < 4 and slot.bit(MARK + 80 + self.lines):
            end, width = slot.number(END), slot.number(WIDTH)
            refuse(end >= len(ENDS), "a numbering of no kind")
            found = [Numbering("", False, " 0"[width & 1], width >> 1, ENDS[end], slot.number(START))]
        for path, signed, fill, width, end, number in found:
            body = f"{path}{POINTERS[self.pointer] * signed}{str(number).rjust(width, fill)}{end}{body}"
        self._learn(body, sign, found)
        return SIGNS[sign : sign + 1] + body

    def _learn(self, line: str, sign: int, found: list[Numbering]) -> None:
        self.lines += 1
        hunk = self.old or self.new
        if line[:2] in ("@@", "**") and (not hunk or (self.open and sign == 3)):
            match, ended = HUNK.match(line), self.open
            self.open, self.sign = match is None and OPENS.match(line) is not None, 0
            self.old, self.new = (int(match[1] or 1), int(match[2] or 1)) if match else (int(self.open), 0)
            if match or self.open or ended:
                return
        if hunk:
            self.sign = sign
        if hunk and not self.open:
            self.old -= sign != 1 and self.old > 0
            self.new -= sign != 2 and self.new > 0
        if found:
            self.numbering, self.missed = found, 0
        elif other := numbering_of(line):
            self.numbering, self.missed, self.pointer = other, 0, 0
        else:
            self.missed += 1
            self.numbering = self.numbering if self.missed < 3 else []


class Log:
    """A log that is made from tables, after that of the known lines: what it remembers is the past of the next one."""

    def __init__(self) -> None:
        self._code = Decisions()
        self._past, self._slots = Contexts(self._code), [Slot(self._code), Slot(self._code)]
        self._root, self._text = Field(self._slots[0]), self._slots[1]
        self._blocks = dict[tuple[int, str | None], Field]()
        self._shapes, self._keys, self._strings = list[tuple[str, ...]](), list[str](), dict[str, int]()
        self._names, self._lines, self._expected = list[str](), list[str](), -1
        self._moments, self._style, self._odd = [self._root.slot], 0, 0
        self._met("", self._root.slot)
        known = Fields(KNOWN.read_bytes())
        count, columns, opaque = (known.varint() for _ in range(3))
        self.join(known.take(columns), known.take(opaque), known.rest().split(b"\xff")[:-1], count)

    def join(self, columns: bytes, opaque: bytes, pieces: Sequence[bytes], count: int) -> bytes:
        """Return so many bytes."""
        refuse(columns[:1] != bytes([VERSION]), "a table of another version", Newer)
        self._opaque = Fields(opaque)
        self._code.begin(columns[1:])
        self._pieces, self._piece, self._size = list(pieces[::-1]), list[str](), 0
        self._open, self._odd = False, 0
        out = b""
        while len(out) < count:
            out += self._unit()
            out += b"\n" if len(out) < count else b""
        refuse(len(out) != count or self._pieces or self._piece, "a log of another size, or text left over")
        self._opaque.end()
        return out

    # ---- units

    def _unit(self) -> bytes:
        kind = self._past.number(UNIT)
        refuse(kind > 4, f"a unit of kind {kind}")
        if kind == 4:
            return b""
        if kind == 2:
            return self._opaque.take(self._past.number(BYTES))
        if kind == 1:
            text = self._lines_of(self._text)
            self._end_piece(LONGEST_PIECE)
        else:
            self._style = self._past.number(STYLE)
            text = self._block() if kind else self._spelled(self._root, self._style)
            self._end_piece(0 if not kind or "\n" in text else 1 << 62)
        return text.encode("utf-8", "surrogatepass")

    def _spelled(self, field: Field, style: int) -> str:
        refuse(style >= len(SPELLINGS), f"spelling {style}")
        return spelled(self._value(field), style)

    def _block(self) -> str:
        depth, known = self._past.number(DEPTH), self._past.number(BLOCK_KEY)
        key = None if not known else self._key() if known == 1 else self._at(self._keys, known - 2)
        comma = self._past.bit(COMMA)
        if (depth, key) not in self._blocks:
            self._blocks[depth, key] = Field(self._slot())
        text = self._spelled(self._blocks[depth, key], self._style)
        pad = ("\t" if SPELLINGS[self._style][1] == "\t" else " ") * depth
        head = pad if key is None else f"{pad}{spelled(key, self._style)}: "
        return head + text.replace("\n", "\n" + pad) + "," * comma

    def _end_piece(self, size: int) -> None:
        if self._size >= size:
            refuse(self._piece, "a piece that is not used up")
            self._open, self._size = False, 0

    def _new_lines(self, count: int) -> list[str]:
        if count and not self._open:
            refuse(not self._pieces, "more pieces than there are")
            self._piece, self._open = self._pieces.pop().decode("utf-8", "surrogatepass").split("\n"), True
        refuse(count > len(self._piece), "more lines than a piece has")
        found, self._piece = self._piece[:count], self._piece[count:]
        self._size += sum(map(len, found)) + count
        return found

    # ---- the past

    def _slot(self) -> Slot:
        self._slots.append(Slot(self._code))
        return self._slots[-1]

    def _fields(self, slot: Slot, row: int, keys: Sequence[str]) -> list[Field]:
        """Return the fields of a shape, or of what is no object (rows below 0)."""
        if row not in slot.rows:
            slot.rows[row] = []
            for key in keys:
                if len(key) > 40 or {*key} & {*"/. "} or sum(digit in string.digits for digit in key) > 3:
                    key = "*"
                if key not in slot.children:
                    slot.children[key] = self._slot()
                slot.rows[row].append(Field(slot.children[key]))
        return slot.rows[row]

    def _met(self, text: str, slot: Slot) -> str:
        number = self._strings.setdefault(text, len(self._names))
        if number == len(self._names):
            self._names.append(text)
        to_front(slot.recent, number, 128)
        return text

    def _at(self, items: Sequence[Any], place: int) -> Any:
        refuse(not 0 <= place < len(items), "a place that was never met")
        return items[place]

    def _key(self) -> str:
        self._keys.append("\n".join(self._new_lines(self._past.number(KEY_LINES))))
        return self._keys[-1]

    def _source(self, slot: Slot) -> Slot:
        rank = slot.number(SOURCE)
        found: Slot = self._at(slot.sources, rank - 1) if rank else self._at(self._slots, self._past.number(SLOT))
        to_front(slot.sources, found, 32)
        return found

    def _moment(self, slot: Slot, digits: int) -> int:
        candidates = [(slot.reference or self._moments[-1:])[0], *self._moments[::-1]]
        units = scaled(candidates[0], digits) + slot.signed(MOMENT)
        nearest = min(candidates, key=lambda one: abs(scaled(one, digits) - units))
        slot.reference, slot.time = [nearest], (digits, units)
        self._moments = [*(one for one in self._moments if one is not slot), slot][-8:]
        return units

    # ---- values

    def _value(self, field: Field) -> Any:
        slot, order = field.slot, field.order
        base = WAY + 64 * field.way + 32 * self._odd
        place = next((n for n, way in enumerate(order) if slot.bit(base + way)), -1)
        field.way = way = self._at(order, place)
        if place:
            self._odd = 1
            to_front(order, way, WAYS)
            to_front(slot.order, way, WAYS)
        if way == 8:
            return self._object(field)
        if way == 9:
            count, [element], found = slot.number(COUNT), self._fields(slot, -1, [""]), []
            for _ in range(count):
                found.append(self._value(element))
                self._end_piece(LONGEST_PIECE)
            return found
        value = self._scalar(slot, way) if way else field.last
        refuse(value is Damaged, "a value like none before")
        if type(value) is str and way not in (7, 17, 25):
            self._met(value, slot)
        if not isinstance(value, (dict, list)):
            field.last = slot.last = value
        return value

    def _object(self, field: Field) -> dict[str, Any]:
        slot, last = field.slot, field.shape
        shape = slot.follows.get(last, last)
        if not slot.bit(SHAPE + (last & 1023)):
            choice = slot.number(SHAPE_RANK)
            if choice == 0:
                keys = tuple(self._shape_key() for _ in range(self._past.number(KEYS)))
                if keys not in self._shapes:
                    self._shapes.append(keys)
                shape = self._shapes.index(keys)
            elif choice == 1:
                shape = len(self._shapes) - 1 - self._past.number(SHAPE_AGE)
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
        age = self._past.number(KEY_AGE)
        return str(self._at(self._keys, len(self._keys) - age)) if age else self._key()

    def _scalar(self, slot: Slot, way: int) -> Any:
        if way in (1, 2, 3):
            return (None, True, False)[way - 1]
        if way == 4:
            plain = slot.bias > 0
            value = slot.signed(PLAIN if plain else DELTA) + (0 if plain else slot.whole)
            bias = slot.bias + abs(value - slot.whole).bit_length() + 1 - abs(value).bit_length()
            slot.bias, slot.whole = max(-64, min(64, bias)), value
            return value
        if way == 23:
            slot.whole = self._source(slot).whole
            return slot.whole
        if way == 24:
            if not slot.bit(PAIR):
                slot.pair = [self._source(slot), self._source(slot)]
            slot.whole = self._at(slot.pair, 0).whole + slot.pair[1].whole
            return slot.whole
        if way == 5:
            return self._moment(slot, 3)
        if way == 6:
            places, digits = slot.number(DIGITS), slot.signed(DELTA)
            text = str(abs(digits)).rjust(places + 1, "0")
            return Written(f"{'-' * (digits < 0)}{text[:-places]}.{text[-places:]}")
        if way == 7:
            return json.loads(self._lines_of(slot), parse_float=Written, parse_constant=Written)
        if way == 22:
            return self._opaque.take(slot.number(SIZE))
        return self._string(slot, way)

    def _string(self, slot: Slot, way: int) -> str:
        if way in (10, 11):
            source = slot if way == 10 else self._source(slot)
            return str(self._names[self._at(source.recent, slot.number(RANK if way == 10 else DISTANCE))])
        if way == 12:
            return str(self._at(self._names, len(self._names) - 1 - self._past.number(STRING_AGE)))
        if way == 17:
            digits, suffix = divmod(slot.number(DIGITS), 3)
            seconds, fraction = divmod(self._moment(slot, digits), 10**digits)
            whole = (datetime(1970, 1, 1) + timedelta(seconds=seconds)).isoformat()
            return f"{whole}{f'.{fraction:0{digits}d}' if digits else ''}{('Z', '', '+00:00')[suffix]}"
        if way == 18:
            self._lines += self._new_lines(1)
            return self._lines[-1]
        if way == 19:
            return self._lines_of(slot)
        if way == 20:
            return self._parsed(slot)
        if way == 21:
            flavour = slot.number(FLAVOUR)
            [field] = self._fields(slot, -3, ["()"])
            return base64_text(flavour, message_bytes(self._value(field)))
        if way == 25:
            sign, expected = slot.first(MARK + 90, 2), self._expected
            text = SIGNS[sign] + self._lines_of(slot)
            self._expected = expected if self._expected < 0 else self._expected
            return text
        return self._opaque_string(slot, way)

    def _opaque_string(self, slot: Slot, way: int) -> str:
        if way == 13:
            refuse((version := slot.number(ID_VERSION)) not in (0, 4, 7), f"a UUID of version {version}")
            number = self._moment(slot, 3) << 74 if version == 7 else 0
            number |= self._bits({0: 128, 4: 122, 7: 74}[version])
            if version:
                top, middle, low = number >> 74, number >> 62 & 0xFFF, number & (1 << 62) - 1
                number = top << 80 | version << 76 | middle << 64 | 2 << 62 | low
            return str(UUID(int=number))
        if way == 14:
            common = slot.number(COMMON)
            head = slot.id[: common - 1] if common else self._prefix(slot)
            alphabet, size = slot.number(ALPHABET), slot.number(SIZE)
            slot.id = head + self._digits(alphabet, size)
            return slot.id
        if way == 15:
            prefix, now = self._prefix(slot), self._moment(slot, 3) % (1 << 36)
            return f"{prefix}{now << 12 | slot.number(COUNTER):012x}{self._digits(2, 14)}"
        flavour, headed = divmod(slot.number(FLAVOUR), 2)
        head = self._prefix(slot) if headed else ""
        if flavour < 4:
            return head + base64_text(flavour, self._opaque.take(slot.number(SIZE)))
        count, ends = divmod(slot.number(GAPS), 4)
        sizes = [slot.number(SIZE) for _ in range(count)]
        text = base64_text(flavour & 1, self._opaque.take((sum(sizes) + 3) // 4 * 3))
        places = [sum(sizes[:n]) for n in range(count + 1)]
        return head + "REDACTED".join(text[a:b] for a, b in pairwise(places)) + "=" * ends

    def _parsed(self, slot: Slot) -> str:
        style = slot.number(SPELLING)
        [field] = self._fields(slot, -2, ["{}"])
        return self._spelled(field, style)

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
        if known := slot.number(PREFIX):
            return str(self._at(self._keys, known - 1))
        [prefix] = self._new_lines(1)
        if prefix not in self._keys:
            self._keys.append(prefix)
        return prefix

    def _lines_of(self, slot: Slot) -> str:
        """Return a text that is coded as lines."""
        size, found, marks = slot.number(COUNT) + 1, list[str](), Marks()
        while len(found) < size:
            rest = slot.bit(REST + bool(found))
            lines = self._new_lines(size - len(found) if rest else slot.number(RUN))
            for place, line in enumerate(lines):
                if line == "{}" and slot.bit(STAND):
                    lines[place] = self._parsed(slot)
            found += [marks.line(slot, line) for line in lines]
            copied, expected = list[str](), -1
            if not rest:
                begin = self._expected + len(lines) if self._expected >= 0 else -1
                if not slot.bit(COPY):
                    begin = len(self._lines) - 1 - self._past.number(LINE_AGE)
                expected = begin + slot.number(COPIED) + 1
                refuse(not 0 <= begin < expected <= len(self._lines), "a copy from beyond the text")
                copied = self._lines[begin:expected]
                found += [marks.line(slot, line) for line in copied]
            self._lines += lines + copied
            self._expected = expected
        return "\n".join(found)


def base64_text(flavour: int, data: bytes) -> str:
    """Return base64 in a flavour below 4."""
    text = base64.b64encode(data, altchars=b"-_" if flavour & 1 else b"+/").decode()
    return text.rstrip("=") if flavour & 2 else text


def message_bytes(message: Any) -> bytes:
    """Return the bytes of a message of Protocol Buffers."""
    refuse(not isinstance(message, dict), "a message without fields")
    out = b""
    for key, value in message.items():
        number, _, wire = key.partition("-")[0].partition(":")
        out += _varint(int(number) << 3 | int(wire))
        if wire == "0":
            out += _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            data = data if isinstance(data, bytes) else message_bytes(data)
            out += (_varint(len(data)) if wire == "2" else b"") + data
    return out


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)
