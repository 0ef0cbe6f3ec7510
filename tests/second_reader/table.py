"""The table of a log, as coding/log/FORMAT.md describes it: columns, opaque bytes and pieces back to bytes."""

from __future__ import annotations

import base64
import json
import re
import string
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.second_reader.chat import SPELLINGS, Written, spelled
from tests.second_reader.fields import Damaged, Fields, Newer, refuse

KNOWN = Path(__file__).resolve().parents[2] / "coding/log/known.table"
VERSION, LONGEST_PIECE, WAYS = 1, 2000, 23
# Bases of numbers: those of the past, then those of a slot
UNIT, STYLE, BYTES, KEYS, KEY_AGE, KEY_LINES, STRING_AGE, LINE_AGE, DEPTH, BLOCK_KEY, COMMA = range(1024, 12288, 1024)
DELTA, MOMENT, SHAPE, RANK, DISTANCE, NUMBER, COUNT, RUN, COPIED, SIZE = (n << 10 for n in range(1, 11))
DIGITS, PREFIX, FLAVOUR, ALPHABET, COMMON, COUNTER, GAPS, ID_VERSION, MARK, STEP, SPELLING, WAY = (
    n << 10 for n in range(11, 23)
)
ALPHABETS = (
    "0123456789abcdef",
    "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",
    string.digits + string.ascii_uppercase + string.ascii_lowercase,
    string.digits + string.ascii_uppercase + string.ascii_lowercase + "-_",
)
SIGNS = " +-"
HUNK = re.compile(r"@@ -[0-9]{1,9}(?:,([0-9]{1,9}))? \+[0-9]{1,9}(?:,([0-9]{1,9}))? @@")
NUMBERED = re.compile(r"( {0,20})([1-9][0-9]{0,8}|0)(\u2192|\t|: |\| |\. |:|\||\u2502)")


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
        self.children, self.shapes, self.recent = dict[str, Slot](), list[tuple[str, ...]](), list[str]()
        self.order, self.way, self.whole, self.id = list(range(WAYS)), 0, 0, ""
        self.last: Any = Damaged  # none

    def child(self, key: str) -> Slot:
        """Return the slot of a key."""
        return self.children.setdefault(key, Slot(self._code))


def to_front(items: list[Any], item: Any, most: int) -> None:
    """Move an item to the front of at most so many."""
    items[:] = [item, *(one for one in items if one != item)][:most]


class Marks:
    """The marks of the lines of a text."""

    def __init__(self) -> None:
        self.old = self.new = self.sign = 0
        self.numbering: tuple[int, int, str] | None = None  # of the last line: width, number, and what stands behind

    def line(self, slot: Contexts, body: str) -> str:
        """Return a line with its mark, and learn it."""
        sign, hunk, marked = 3, self.old or self.new, 0
        if hunk:
            self.sign = sign = slot.first(MARK + 4 * self.sign, 3)
        if self.numbering and (marked := slot.bit(MARK + 16)):
            width, number, end = self.numbering
            number += 1 + slot.signed(STEP)
            self.numbering, body = (width, number, end), f"{number:{width}}{end}{body}"
        if hunk:
            self.old -= sign != 1 and self.old > 0
            self.new -= sign != 2 and self.new > 0
        elif match := HUNK.match(body):
            self.old, self.new, self.sign = int(match[1] or 1), int(match[2] or 1), 0
        if not marked:
            match = NUMBERED.match(body)
            self.numbering = (len(match[1] + match[2]) if match[1] else 0, int(match[2]), match[3]) if match else None
        return SIGNS[sign : sign + 1] + body


class Log:
    """A log that is made from tables, after that of the known lines: what it remembers is the past of the next one."""

    def __init__(self) -> None:
        self._code = Decisions()
        self._past, self._root, self._text = Contexts(self._code), Slot(self._code), Slot(self._code)
        self._blocks, self._strings, self._names = dict[tuple[int, str | None], Slot](), set[str](), list[str]()
        self._keys, self._lines, self._whole, self._recent = list[str](), list[str](), list[int](), list[str]()
        self._time, self._style = (3, 0), 0  # digits of the fraction of a second, and units
        self._met("", self._root)
        known = Fields(KNOWN.read_bytes())
        count, columns, opaque = (known.varint() for _ in range(3))
        self.join(known.take(columns), known.take(opaque), known.rest().split(b"\xff")[:-1], count)

    def join(self, columns: bytes, opaque: bytes, pieces: Sequence[bytes], count: int) -> bytes:
        """Return so many bytes."""
        refuse(columns[:1] != bytes([VERSION]), "a table of another version", Newer)
        self._opaque, self._count = Fields(opaque), count
        self._code.begin(columns[1:])
        self._pieces, self._piece, self._size, self._open = list(pieces[::-1]), list[str](), 0, False
        out = b""
        while len(out) < count:
            out += self._unit()
            out += b"\n" if len(out) < count else b""
        refuse(len(out) != count or self._pieces or self._piece, "a log of another size, or text left over")
        self._opaque.end()
        return out

    def _unit(self) -> bytes:
        kind = self._past.number(UNIT)
        refuse(kind > 3, f"a unit of kind {kind}")
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

    def _spelled(self, slot: Slot, style: int) -> str:
        refuse(style >= len(SPELLINGS), f"spelling {style}")
        return spelled(self._value(slot), style)

    def _block(self) -> str:
        depth, known = self._past.number(DEPTH), self._past.number(BLOCK_KEY)
        key = None if not known else self._key() if known == 1 else self._at(self._keys, known - 2)
        comma = self._past.bit(COMMA)
        text = self._spelled(self._blocks.setdefault((depth, key), Slot(self._code)), self._style)
        refuse(depth * (text.count("\n") + 1) > self._count, "an indentation beyond the log")
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

    def _met(self, text: str, slot: Slot) -> None:
        if text not in self._strings:
            self._strings.add(text)
            self._names.append(text)
        to_front(slot.recent, text, 128)
        to_front(self._recent, text, 128)

    def _at(self, items: Sequence[Any], place: int) -> Any:
        refuse(not 0 <= place < len(items), "a place that was never met")
        return items[place]

    def _key(self) -> str:
        self._keys.append("\n".join(self._new_lines(self._past.number(KEY_LINES))))
        return self._keys[-1]

    def _moment(self, slot: Slot, digits: int) -> int:
        last, before = self._time
        self._time = digits, int(before * 10**digits // 10**last) + slot.signed(MOMENT)
        return self._time[1]

    # ---- values

    def _value(self, slot: Slot) -> Any:
        slot.way = way = next((way for way in slot.order if slot.bit(WAY + 32 * slot.way + way)), WAYS)
        refuse(way == WAYS, "a value in no way")
        to_front(slot.order, way, WAYS)
        value = slot.last if not way else self._in_way(slot, way)
        refuse(value is Damaged, "a value like none before")
        if type(value) is str and way not in (11, 16, 22):
            self._met(value, slot)
        if not isinstance(value, (dict, list)):
            slot.last = value
        return value

    def _in_way(self, slot: Slot, way: int) -> Any:
        match way:
            case 1:
                return self._lines_of(slot)
            case 2 | 20:
                slot.whole = slot.whole + slot.signed(DELTA) if way == 2 else self._at(self._whole, slot.number(NUMBER))
                if abs(slot.whole) >= 32:
                    to_front(self._whole, slot.whole, 32)
                return slot.whole
            case 3:
                return self._at(slot.recent, slot.number(RANK))
            case 4:
                return self._at(self._recent, slot.number(DISTANCE))
            case 5:
                return {key: self._value(slot.child(key)) for key in self._shape(slot)}
            case 6 | 7 | 10:
                return {6: True, 7: False, 10: None}[way]
            case 8:
                return self._at(self._names, len(self._names) - 1 - self._past.number(STRING_AGE))
            case 9:
                return [self._item(slot.child("")) for _ in range(slot.number(COUNT))]
            case 11:
                digits, suffix = divmod(slot.number(DIGITS), 3)
                seconds, fraction = divmod(self._moment(slot, digits), 10**digits)
                whole = (datetime(1970, 1, 1) + timedelta(seconds=seconds)).isoformat()
                return f"{whole}{f'.{fraction:0{digits}d}' if digits else ''}{('Z', '', '+00:00')[suffix]}"
            case 12:
                common = slot.number(COMMON)
                head = slot.id[: common - 1] if common else self._prefix(slot)
                slot.id = head + self._digits(slot.number(ALPHABET), slot.number(SIZE))
                return slot.id
            case 13:
                return self._moment(slot, 3)
            case 14:
                number = self._bits(122 if (version := slot.bit(ID_VERSION)) else 128)
                if version:
                    number = (number >> 74) << 80 | (number >> 62 & 0xFFF) << 64 | number & (1 << 62) - 1
                return str(UUID(int=number, version=4 if version else None))
            case 16:
                return json.loads(self._lines_of(slot), parse_float=Written, parse_constant=Written)
            case 17:
                return self._spelled(slot.child("{}"), slot.number(SPELLING))
            case 18:
                return base64_text(slot.number(FLAVOUR), message_bytes(self._value(slot.child("()"))))
            case 19:
                return self._opaque.take(slot.number(SIZE))
            case 21:
                prefix, now = self._prefix(slot), self._moment(slot, 3) % (1 << 36)
                return f"{prefix}{now << 12 | slot.number(COUNTER):012x}{self._digits(2, 14)}"
            case 22:
                return SIGNS[slot.first(MARK + 24, 2)] + self._lines_of(slot)
        flavour, headed = divmod(slot.number(FLAVOUR), 2)  # 15
        head = self._prefix(slot) if headed else ""
        if flavour < 4:
            return head + base64_text(flavour, self._opaque.take(slot.number(SIZE)))
        count, ends = divmod(slot.number(GAPS), 4)
        sizes = [slot.number(SIZE) for _ in range(count)]
        text = iter(base64_text(flavour & 1, self._opaque.take((sum(sizes) + 3) // 4 * 3)))
        return head + "REDACTED".join("".join(islice(text, size)) for size in sizes) + "=" * ends

    def _shape(self, slot: Slot) -> tuple[str, ...]:
        if rank := slot.number(SHAPE):
            keys = self._at(slot.shapes, rank - 1)
        else:
            ages = (self._past.number(KEY_AGE) for _ in range(self._past.number(KEYS)))
            keys = tuple(self._at(self._keys, len(self._keys) - age) if age else self._key() for age in ages)
        to_front(slot.shapes, keys, 64)
        return slot.shapes[0]

    def _item(self, slot: Slot) -> Any:
        value = self._value(slot)
        self._end_piece(LONGEST_PIECE)
        return value

    def _bits(self, bits: int) -> int:
        above = self._code.raw(bits % 8)
        return above << bits // 8 * 8 | int.from_bytes(self._opaque.take(bits // 8), "big")

    def _digits(self, alphabet: int, size: int) -> str:
        letters = self._at(ALPHABETS, alphabet)
        number = self._bits((len(letters) ** size - 1).bit_length())
        return "".join(letters[number // len(letters) ** n % len(letters)] for n in range(size)[::-1])

    def _prefix(self, slot: Slot) -> str:
        if known := slot.number(PREFIX):
            return str(self._at(self._keys, known - 1))
        [prefix] = self._new_lines(1)
        self._keys += [prefix] if prefix not in self._keys else []
        return prefix

    def _lines_of(self, slot: Slot) -> str:
        """Return a text that is coded as lines."""
        size, found, marks = slot.number(COUNT) + 1, list[str](), Marks()
        while len(found) < size:
            run = slot.number(RUN)
            lines = self._new_lines(run - 1 if run else size - len(found))
            found += [marks.line(slot, line) for line in lines]
            if run:
                begin = len(self._lines) - 1 - self._past.number(LINE_AGE)
                copied = self._lines[max(0, begin) :][: slot.number(COPIED) + 1]
                refuse(begin < 0, "a copy from before the text")
                found += [marks.line(slot, line) for line in copied]
                lines += copied
            self._lines += lines
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
