"""Values: the ways of single values, written once for the splitter and the joiner. Spec: FORMAT.md.

Each method codes what it is given and returns what was coded. A coder that reads ignores what it is given, so the
joiner calls the same methods with nothing: `Splitter` and `Joiner` cannot disagree about them. Nothing that is read is
trusted. A writer passes every check.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NoReturn

from pltz.coding.log import codes, opaque
from pltz.coding.log.bit_coder import Numbers
from pltz.coding.log.past import SHAPES, Past, Slot, led_by, to_front
from pltz.plt_codec.errors import CorruptError

STAMPS: Final = 1 << 36  # milliseconds after which the time in OpenCode's ids starts again
MOST_DIGITS: Final = 128  # of an id


def damaged(what: str) -> NoReturn:
    """Raise the error of columns that cannot be.

    Raises:
        CorruptError: always.
    """
    raise CorruptError(f"the columns of a log hold {what}: the file is damaged")


class Values:
    """Codes values by a `Numbers`, over a past that is the same on both sides."""

    def __init__(self, past: Past, coder: Numbers) -> None:
        self._past, self._coder = past, coder
        self._left = 1 << 62  # bytes that may still be made

    def _raw(self, size: int, data: bytes) -> bytes:
        """Code so many opaque bytes."""
        raise NotImplementedError

    def _text(self, size: int, lines: list[str]) -> list[str]:
        """Code so many new lines of text."""
        raise NotImplementedError

    def _op(self, slot: Slot, op: int = 0) -> int:
        """Code the way of a value: one decision for each way that stands before it in the slot's order."""
        ops, coder, model, base = slot.ops, self._coder, slot.ways, slot.op << 5
        if coder.bit(model, base | ops[0], ops[0] == op):
            op = ops[0]
        else:
            for other in ops[1:]:
                if coder.bit(model, base | other, other == op):
                    op = other
                    break
            else:
                damaged("a value of no kind")
            slot.ops = led_by(ops, op)
        slot.op = op
        return op

    # ---- objects

    def _shape(self, slot: Slot, keys: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Code the shape of an object: its keys in order."""
        shapes = slot.shapes
        place = self._coder.number(slot.model, shapes.index(keys) + 1 if keys in shapes else 0, codes.SHAPE)
        if place > len(shapes):
            damaged("an object of no shape")
        keys = shapes[place - 1] if place else self._new_shape(keys)
        to_front(shapes, keys, SHAPES)
        return keys

    def _new_shape(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        past, coder = self._past, self._coder
        size = coder.number(past.model, len(keys), codes.KEYS)
        if size > self._left:
            damaged("more keys than bytes of the log")
        found = []
        for key in keys or [""] * size:
            number = past.key_of.get(key)
            age = coder.number(past.model, 0 if number is None else len(past.keys) - number, codes.KEY_AGE)
            if age > len(past.keys):
                damaged("a key that was never met")
            found.append(past.keys[-age] if age else self._key(key))
        if len(set(found)) < size:
            damaged("an object with a key twice")
        return tuple(found)

    def _key(self, key: str = "") -> str:
        """Code a new key."""
        lines = key.split("\n")
        size = self._coder.number(self._past.model, len(lines), codes.LINES_OF_KEY)
        key = "\n".join(self._text(size, lines))
        if key in self._past.key_of:
            damaged("a new key that is known")
        self._past.key(key)
        return key

    # ---- numbers and times

    def _whole(self, slot: Slot, value: int = 0) -> int:
        return self._number(slot, slot.number + self._coder.signed(slot.model, value - slot.number, codes.DELTA))

    def _shared(self, slot: Slot, rank: int = 0) -> int:
        """Code one of the last whole numbers."""
        rank = self._coder.number(slot.model, rank, codes.NUMBER)
        if rank >= len(self._past.integers):
            damaged("a whole number that was never met")
        return self._number(slot, self._past.integers[rank])

    def _number(self, slot: Slot, value: int) -> int:
        if not -codes.FIT < value < codes.FIT:
            damaged("a whole number too large")
        self._past.integer(slot, value)
        return value

    def _moment(self, slot: Slot, digits: int, units: int = 0) -> int:
        past = self._past
        expected = past.expected_time(digits)
        units = expected + self._coder.signed(slot.model, units - expected, codes.MOMENT)
        if not -codes.FIT < units < codes.FIT:
            damaged("a time too large")
        past.time = (digits, units)
        return units

    # ---- strings that were met

    def _met(self, slot: Slot, op: int, number: int = 0) -> int:
        """Code the number of a string that was met: by its age, or by its rank among the last ones."""
        past, coder = self._past, self._coder
        if op == codes.OLD:
            latest = len(past.strings) - 1
            number = latest - coder.number(past.model, latest - number, codes.STRING_AGE)
            if number < 0:
                damaged("a string that was never met")
            return number
        recent = slot.recent if op == codes.RECENT else past.recent
        rank = recent.index(number) if number in recent else 0
        rank = coder.number(slot.model, rank, codes.RANK if op == codes.RECENT else codes.DISTANCE)
        if rank >= len(recent):
            damaged("a string that was not met there")
        return recent[rank]

    # ---- opaque strings

    def _bits(self, bits: int, number: int = 0) -> int:
        """Code a number that no coder shrinks: whole bytes as they are, the bits above them as undecided ones."""
        whole, rest = divmod(bits, 8)
        above = self._coder.raw(number >> 8 * whole, rest)
        data = self._raw(whole, (number & (1 << 8 * whole) - 1).to_bytes(whole, "big"))
        return above << 8 * whole | int.from_bytes(data, "big")

    def _digits(self, alphabet: int, size: int, digits: str = "") -> str:
        bits = opaque.bits_of(alphabet, size)
        try:
            return opaque.id_digits(alphabet, self._bits(bits, opaque.id_number(alphabet, digits)), size)
        except ValueError as exc:
            raise CorruptError("the columns of a log hold an id that is none: the file is damaged") from exc

    def _prefix(self, slot: Slot, prefix: str = "") -> str:
        past = self._past
        known = self._coder.number(slot.model, past.key_of.get(prefix, -1) + 1, codes.PREFIX)
        if known > len(past.keys):
            damaged("a prefix that was never met")
        if known:
            return past.keys[known - 1]
        [prefix] = self._text(1, [prefix])
        past.key(prefix)
        return prefix

    def _uuid(self, slot: Slot, number: int = 0, random: int = 0) -> str:
        """Code a UUID. ``random``: 1 for one of version 4, which has 122 bits."""
        if not self._coder.bit(slot.model, codes.VERSION, random):
            return opaque.uuid_text(self._bits(128, number))
        bits = self._bits(122, (number >> 80) << 74 | (number >> 64 & 0xFFF) << 62 | number & (1 << 62) - 1)
        low = bits & (1 << 62) - 1
        return opaque.uuid_text(bits >> 74 << 80 | 4 << 76 | (bits >> 62 & 0xFFF) << 64 | 2 << 62 | low)

    def _stamped(self, slot: Slot, prefix: str = "", stamp: int = 0, digits: str = "") -> str:
        """Code an id of OpenCode. ``stamp``: its milliseconds and its counter."""
        prefix = self._prefix(slot, prefix)
        now = self._past.expected_time(3)
        later = ((stamp >> 12) - now + STAMPS // 2) % STAMPS - STAMPS // 2
        moment = self._moment(slot, 3, now + later) % STAMPS
        counter = self._coder.number(slot.model, stamp & 4095, codes.COUNTER)
        if counter > 4095:
            damaged(f"a counter of {counter}")
        return f"{prefix}{moment << 12 | counter:012x}{self._digits(2, 14, digits)}"

    def _id(self, slot: Slot, text: str = "", head: str = "") -> str:
        coder = self._coder
        same = opaque.common(text, slot.identity)
        same = coder.number(slot.model, 0 if same < len(head) else same + 1, codes.COMMON) - 1
        if same > len(slot.identity):
            damaged("more of an id than there is")
        head = self._prefix(slot, head) if same < 0 else slot.identity[:same]
        digits = text[len(head) :]
        alphabet = coder.number(slot.model, opaque.alphabet_of(digits), codes.ALPHABET)
        size = coder.number(slot.model, len(digits), codes.SIZE)
        if alphabet >= len(opaque.ALPHABETS) or size > MOST_DIGITS:
            damaged(f"an id of {size} digits")
        slot.identity = head + self._digits(alphabet, size, digits)
        return slot.identity

    def _base64(
        self, slot: Slot, flavour: int = 0, head: str = "", data: bytes = b"", sizes: Sequence[int] = (), ends: int = 0
    ) -> str:
        """Code base64. ``sizes``: characters of each part, of a loose flavour. ``ends``: number of "=" behind them."""
        coder = self._coder
        flavour, headed = divmod(coder.number(slot.model, 2 * flavour + bool(head), codes.FLAVOUR), 2)
        head = self._prefix(slot, head) if headed else ""
        if flavour < opaque.LOOSE:
            size = coder.number(slot.model, len(data), codes.SIZE)
            return head + opaque.base64_text(flavour, self._raw(size, data))
        if flavour >= opaque.LOOSE + 2:
            damaged(f"base64 of flavour {flavour}")
        count, ends = divmod(coder.number(slot.model, len(sizes) * 4 + ends, codes.GAPS), 4)
        if count * len(opaque.GAP) > self._left:
            damaged("more gaps than bytes of the log")
        sizes = [coder.number(slot.model, size, codes.SIZE) for size in sizes or [0] * count]
        size = sum(sizes)
        text = opaque.loose_text(flavour, self._raw((size + 3) // 4 * 3, data), size)
        places = itertools.accumulate(sizes, initial=0)
        return head + opaque.GAP.join(text[a:b] for a, b in itertools.pairwise(places)) + "=" * ends
