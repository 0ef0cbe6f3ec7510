"""Past: all that a split remembers of a log, the same on both sides. Spec: FORMAT.md, "The past"."""

from __future__ import annotations

import itertools
from typing import Final, TypeVar

from pltz.coding.log.bit_coder import Model
from pltz.coding.log.times import scaled

T = TypeVar("T")

RECENT: Final = 128  # strings that a slot keeps, and the past, the latest first
SHAPES: Final = 64  # shapes that a slot keeps, the latest first
SMALL: Final = 32  # whole numbers below are not looked for elsewhere
INTEGERS: Final = 32  # whole numbers that are kept, the latest first
OPS: Final = 23  # ways of values
LEAST_LINE: Final = 12  # characters of a line of text that a copy may start with
OWNERS: Final = itertools.count()


class Slot:
    """A place in a log by the keys on the way to it. ``owner``: number of the past that may change it."""

    __slots__ = ("children", "identity", "last", "model", "number", "op", "ops", "owner", "recent", "shapes", "ways")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.children: dict[str, Slot] = {}
        self.shapes: list[tuple[str, ...]] = []  # keys of objects here, latest first
        self.recent: list[int] = []  # strings here, latest first
        self.model: Model = {}  # of numbers
        self.ways: Model = {}  # of the ways of values
        self.ops = bytes(range(OPS))  # latest first
        self.op = 0  # of the last value
        self.identity = ""  # the last id here
        self.number = 0  # the last whole number here
        self.last: object = Slot  # the last value here that is no list or object

    def of(self, owner: int) -> Slot:
        """Return this slot of a past: itself, or a copy, whose children are copied when they are asked for."""
        if self.owner == owner:
            return self
        slot = Slot(owner)
        slot.children = self.children.copy()
        slot.shapes, slot.recent = self.shapes.copy(), self.recent.copy()
        slot.model, slot.ways, slot.ops, slot.op = self.model.copy(), self.ways.copy(), self.ops, self.op
        slot.identity, slot.number, slot.last = self.identity, self.number, self.last
        return slot

    def child(self, key: str) -> Slot:
        """Return the slot under a key of objects here; lists have "", JSON in strings "{}", messages "()"."""
        found = self.children.get(key)
        if found is None or found.owner != self.owner:
            found = self.children[key] = found.of(self.owner) if found else Slot(self.owner)
        return found


class Past:
    """Slots, keys, strings, numbers, the time and lines of text met so far."""

    def __init__(self) -> None:
        self.owner: int = next(OWNERS)
        self.root, self.text = Slot(self.owner), Slot(self.owner)  # of lines of JSON, and of others
        self.blocks: dict[tuple[int, str | None], Slot] = {}  # of parts of documents, by indentation and key
        self.model: Model = {}  # of all that belongs to no slot
        self.keys: list[str] = []
        self.key_of: dict[str, int] = {}
        self.strings: list[str] = []
        self.string_of: dict[str, int] = {}
        self.recent: list[int] = []  # strings, latest first
        self.integers: list[int] = []  # whole numbers, latest first
        self.time = (3, 0)  # the last one: digits of a second's fraction, units
        self.lines: list[str] = []  # of text, in order
        self.line_of: dict[str, int] = {}  # the last place of each
        self.style = 0  # spelling of the last line
        self.met("", self.root)

    def copy(self) -> Past:
        """Return the same past, which may meet more. This one may not from now on: they have slots in common."""
        past = Past()
        past.root, past.text, past.blocks = self.root.of(past.owner), self.text.of(past.owner), self.blocks.copy()
        past.model, past.recent, past.integers = self.model.copy(), self.recent.copy(), self.integers.copy()
        past.keys, past.key_of = self.keys.copy(), self.key_of.copy()
        past.strings, past.string_of = self.strings.copy(), self.string_of.copy()
        past.lines, past.line_of = self.lines.copy(), self.line_of.copy()
        past.time, past.style = self.time, self.style
        return past

    def block(self, depth: int, key: str | None) -> Slot:
        """Return the slot of a part of a document."""
        found = self.blocks.get((depth, key))
        if found is None or found.owner != self.owner:
            found = self.blocks[depth, key] = found.of(self.owner) if found else Slot(self.owner)
        return found

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
        to_front(slot.recent, number, RECENT)
        to_front(self.recent, number, RECENT)

    def expected_time(self, digits: int) -> int:
        """Return the last time in the unit of ``digits``."""
        return scaled(self.time[1], self.time[0], digits)

    def integer(self, slot: Slot, value: int) -> None:
        """Remember a whole number."""
        slot.number = value
        if abs(value) >= SMALL:
            to_front(self.integers, value, INTEGERS)

    def line(self, line: str) -> None:
        """Remember a line of text."""
        self.line_of[line] = len(self.lines)
        self.lines.append(line)


def to_front(items: list[T], item: T, most: int) -> None:
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
