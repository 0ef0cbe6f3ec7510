"""Past: all that a split remembers of a log, the same on both sides. Spec: FORMAT.md, "The past"."""

from __future__ import annotations

from typing import Final

from pltz.coding.log.bit_coder import Model
from pltz.coding.log.times import scaled

RECENT: Final = 128  # strings that a slot keeps, the latest first
SHAPES: Final = 64  # shapes that a slot keeps, the latest first
SOURCES: Final = 32  # slots that a slot keeps as sources, the latest first
SMALL: Final = 32  # whole numbers below are not looked for elsewhere
INTEGERS: Final = 1 << 16  # whole numbers whose slot is kept
TERMS: Final = 6  # slots among whose whole numbers terms of a sum are looked for
MOMENTS: Final = 8  # slots whose last times are looked at
OPS: Final = 26  # ways of values
LEAST_LINE: Final = 12  # characters of a line of text that a copy may start with


class Slot:
    """A place in a log by the keys on the way to it, whatever else the objects around it hold."""

    __slots__ = (
        "bias",
        "children",
        "follows",
        "identity",
        "last",
        "model",
        "number",
        "number_of",
        "ops",
        "pair",
        "recent",
        "reference",
        "rows",
        "shapes",
        "sources",
        "time",
        "ways",
    )

    def __init__(self, number_of: int) -> None:
        self.number_of = number_of  # in order of creation
        self.children: dict[str, Slot] = {}
        self.rows: dict[int, list[Field]] = {}  # fields of an object here, by its shape
        self.shapes: list[int] = []  # shapes of objects here, latest first
        self.recent: list[int] = []  # strings here, latest first
        self.sources: list[int] = []  # slots whose strings came again here, latest first; these and others by number
        self.model: Model = {}  # of numbers
        self.ways: Model = {}  # of the ways of values
        self.ops = bytes(range(OPS))  # latest first
        self.bias = 0  # bits by which differences were longer than values
        self.follows: dict[int, int] = {}  # shape of an object -> shape of the next one, the last time
        self.pair: tuple[int, int] | None = None  # slots whose whole numbers were added here last
        self.identity = ""  # the last id here
        self.time = (3, 0)  # the last time here: digits of a second's fraction, units
        self.reference = -1  # the slot whose last time was nearest to the last one here
        self.number = 0  # the last whole number here
        self.last: object = Slot  # the last value here that is no list or object

    def copy_from(self, old: Slot, slots: list[Slot]) -> None:
        """Take over what another slot holds, with these slots for those of its past."""
        self.children = {key: slots[child.number_of] for key, child in old.children.items()}
        self.rows = {shape: [field.copy(slots) for field in fields] for shape, fields in old.rows.items()}
        self.shapes, self.recent = old.shapes.copy(), old.recent.copy()
        self.sources, self.pair, self.reference = old.sources.copy(), old.pair, old.reference
        self.model, self.ways, self.follows = old.model.copy(), old.ways.copy(), old.follows.copy()
        self.ops, self.bias, self.identity, self.time = old.ops, old.bias, old.identity, old.time
        self.number, self.last = old.number, old.last


class Field:
    """A slot in objects of one shape."""

    __slots__ = ("last", "op", "ops", "shape", "slot")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.ops = slot.ops
        self.op = 0  # of the last value
        self.last = slot.last
        self.shape = slot.shapes[0] if slot.shapes else -1  # of the last object

    def copy(self, slots: list[Slot]) -> Field:
        """Return the same field over these slots."""
        field = Field(slots[self.slot.number_of])
        field.ops, field.op, field.last, field.shape = self.ops, self.op, self.last, self.shape
        return field


class Past:
    """Slots, shapes, strings and lines of text met so far."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.root = Field(self.slot())
        self.text = Field(self.slot())  # lines that are no JSON
        self.integer_of: dict[int, int] = {}  # whole number -> the last slot where it was
        self.integers: list[int] = []  # the last slots of whole numbers
        self.blocks: dict[tuple[int, str | None], Field] = {}  # of parts of documents, by indentation and key
        self.model: Model = {}  # of all that belongs to no slot
        self.shapes: list[tuple[str, ...]] = []
        self.shape_of: dict[tuple[str, ...], int] = {}
        self.keys: list[str] = []
        self.key_of: dict[str, int] = {}
        self.strings: list[str] = []
        self.string_of: dict[str, int] = {}
        self.where: list[int] = []  # the slot where each string was last
        self.lines: list[str] = []  # of text, in order
        self.line_of: dict[str, int] = {}  # the last place of each
        self.expected = -1  # the line after the one copied last
        self.moments = [0]  # the last slots of times, the latest last
        self.style = 0  # spelling of the last line
        self.met("", self.root.slot)

    def copy(self) -> Past:
        """Return the same past apart from this one: what either meets the other does not."""
        past = Past()
        slots = past.slots = [Slot(slot.number_of) for slot in self.slots]
        for slot, old in zip(slots, self.slots, strict=True):
            slot.copy_from(old, slots)
        past.root, past.text = self.root.copy(slots), self.text.copy(slots)
        past.blocks = {place: field.copy(slots) for place, field in self.blocks.items()}
        past.model, past.shapes, past.shape_of = self.model.copy(), self.shapes.copy(), self.shape_of.copy()
        past.keys, past.key_of = self.keys.copy(), self.key_of.copy()
        past.strings, past.string_of = self.strings.copy(), self.string_of.copy()
        past.lines, past.line_of = self.lines.copy(), self.line_of.copy()
        past.integer_of, past.integers = self.integer_of.copy(), self.integers.copy()
        past.where, past.moments = self.where.copy(), self.moments.copy()
        past.expected, past.style = self.expected, self.style
        return past

    def slot(self) -> Slot:
        """Return a new slot."""
        slot = Slot(len(self.slots))
        self.slots.append(slot)
        return slot

    def block(self, depth: int, key: str | None) -> Field:
        """Return the field of a part of a document."""
        found = self.blocks.get((depth, key))
        if found is None:
            found = self.blocks[depth, key] = Field(self.slot())
        return found

    def fields(self, slot: Slot, shape: int) -> list[Field]:
        """Return the fields of an object in a slot."""
        fields = slot.rows.get(shape)
        if fields is None:
            fields = slot.rows[shape] = [Field(self.child(slot, key)) for key in self.shapes[shape]]
        return fields

    def child(self, slot: Slot, key: str) -> Slot:
        """Return the slot under a key of objects in a slot; keys that look like data share one."""
        if len(key) > 40 or "/" in key or "." in key or " " in key or sum(map(key.count, "0123456789")) > 3:
            key = "*"
        found = slot.children.get(key)
        if found is None:
            found = slot.children[key] = self.slot()
        return found

    def inner(self, slot: Slot) -> Field:
        """Return the field of the values whose JSON stands in a slot."""
        fields = slot.rows.get(-2)
        if fields is None:
            fields = slot.rows[-2] = [Field(self.child(slot, "{}"))]
        return fields[0]

    def message(self, slot: Slot) -> Field:
        """Return the field of the messages that strings of a slot are the base64 of."""
        fields = slot.rows.get(-3)
        if fields is None:
            fields = slot.rows[-3] = [Field(self.child(slot, "()"))]
        return fields[0]

    def element(self, slot: Slot) -> Field:
        """Return the field of the elements of lists in a slot."""
        fields = slot.rows.get(-1)
        if fields is None:
            fields = slot.rows[-1] = [Field(self.child(slot, ""))]
        return fields[0]

    def shape(self, keys: tuple[str, ...]) -> int:
        """Return the number of a shape, a new one if need be."""
        number = self.shape_of.setdefault(keys, len(self.shapes))
        if number == len(self.shapes):
            self.shapes.append(keys)
        return number

    def key(self, key: str) -> None:
        """Remember a key."""
        if key not in self.key_of:
            self.key_of[key] = len(self.keys)
            self.keys.append(key)

    def met(self, text: str, slot: Slot) -> None:
        """Remember that a string stands in a slot."""
        number = self.string_of.setdefault(text, len(self.strings))
        if number == len(self.strings):
            self.strings.append(text)
            self.where.append(slot.number_of)
        else:
            self.where[number] = slot.number_of
        to_front(slot.recent, number, RECENT)

    def expected_time(self, slot: Slot, digits: int) -> int:
        """Return the time that a slot's next one is told from, in the unit of ``digits``."""
        source = self.slots[slot.reference if slot.reference >= 0 else self.moments[-1]]
        return scaled(source.time[1], source.time[0], digits)

    def moment(self, slot: Slot, digits: int, units: int) -> None:
        """Remember a time, and which of the last times was the nearest to it."""
        moments, number = self.moments, slot.number_of
        best = slot.reference if slot.reference >= 0 else moments[-1]
        least = -1
        for source in [best, *reversed(moments)]:
            time = self.slots[source].time
            distance = abs(scaled(time[1], time[0], digits) - units)
            if distance < least or least < 0:
                best, least = source, distance
        slot.reference = best
        slot.time = (digits, units)
        if moments[-1] != number:
            if number in moments:
                moments.remove(number)
            elif len(moments) == MOMENTS:
                del moments[0]
            moments.append(number)

    def integer(self, slot: Slot, value: int) -> None:
        """Remember a whole number."""
        slot.number = value
        if abs(value) >= SMALL:
            if len(self.integer_of) == INTEGERS:
                self.integer_of.clear()
            self.integer_of[value] = slot.number_of
        to_front(self.integers, slot.number_of, TERMS)

    def sum_of(self, pair: tuple[int, int]) -> int:
        """Return the sum of the last whole numbers of two slots."""
        return self.slots[pair[0]].number + self.slots[pair[1]].number

    def line(self, line: str) -> None:
        """Remember a line of text."""
        self.line_of[line] = len(self.lines)
        self.lines.append(line)


def to_front(items: list[int], item: int, most: int) -> None:
    """Move an item to the front of a list of at most ``most``, or put it there."""
    if items and items[0] == item:
        return
    if item in items:
        items.remove(item)
    elif len(items) == most:
        items.pop()
    items.insert(0, item)


def led_by(ops: bytes, op: int) -> bytes:
    """Return ways with one of them moved to the front."""
    head = bytes((op,))
    return head + ops.replace(head, b"")
