"""Marks: what tools put before each line of a text, its number or the sign of a diff. Spec: FORMAT.md, "Marks".

A file that is read with line numbers, then found by grep and shown as a diff has the same lines under other marks.
Without its mark a line is found again.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

HUNK: Final = re.compile(r"@@ -[0-9]{1,9}(?:,([0-9]{1,9}))? \+[0-9]{1,9}(?:,([0-9]{1,9}))? @@")
OPENS: Final = re.compile(r"@@(?: (?!-).*)?$|\*\*\* Add File: ")  # an open hunk, of apply_patch
HEADS: Final = ("@@", "**")  # of lines before a hunk, and of lines after one that is open
NUMBERED: Final = re.compile(r"( *|0*)([1-9][0-9]{0,8}|0)(→|\t|: |\| |\. |:|\||│)")
PATH: Final = re.compile(r"[^\s:]{2,200}:(?=[0-9]{1,9}:)")
ENDS: Final = ("→", "\t", ": ", "| ", ". ", ":", "|", "│")
SIGNS: Final = " +-"  # of the lines of a hunk
POINTERS: Final = " +-*>"  # of numbered lines, before the number
FIRST: Final = 4  # lines of a text among which a numbering may start with a mark
MOST_WIDTH: Final = 20
PATIENCE: Final = 2  # lines without a mark after which a numbering is over


class Numbering(NamedTuple):
    """The way in which lines are numbered, and the number of the last one."""

    path: str = ""  # that each line starts with, with the colon behind it
    signed: bool = False  # one of POINTERS stands before the number
    end: int = 0  # what is behind the number, in ENDS
    width: int = 0  # of the number with what fills it up; 0: not filled
    zeros: bool = False  # filled with zeros, not with blanks
    number: int = 0

    def mark(self, pointer: int) -> str:
        """Return the mark of the line of this number.

        >>> Numbering("", False, 0, 4, False, 7).mark(0)
        '   7→'
        """
        number = str(self.number)
        if self.width:
            number = number.rjust(self.width, "0" if self.zeros else " ")
        return f"{self.path}{POINTERS[pointer] if self.signed else ''}{number}{ENDS[self.end]}"

    def at(self, number: int) -> Numbering:
        """Return the numbering at another line."""
        return self._replace(number=number)

    def find(self, line: str) -> tuple[int, Numbering] | None:
        """Return the pointer and the numbering of a line that has a mark of this kind."""
        path = self.path
        if path and not line.startswith(path):
            return None
        begin = len(path)
        pointer = 0
        if self.signed:
            pointer = POINTERS.find(line[begin]) if begin < len(line) else -1
            if pointer < 0:
                return None
            begin += 1
        match = NUMBERED.match(line, begin)
        if match is None:
            return None
        found = self.at(int(match[2]))
        return (pointer, found) if line.startswith(found.mark(pointer)) else None


def numbering_of(line: str) -> Numbering | None:
    """Return the numbering that a line is part of, if it has a mark.

    >>> numbering_of("   7→def f():")
    Numbering(path='', signed=False, end=0, width=4, zeros=False, number=7)
    >>> numbering_of("src/a.py:12:import os").path
    'src/a.py:'
    """
    if not line:
        return None
    path, signed = "", False
    if line[0] not in " 0123456789":
        found = PATH.match(line)
        if found is not None:
            path = found[0]
        elif line[0] in POINTERS:
            signed = True
        else:
            return None
    match = NUMBERED.match(line, len(path) + signed)
    if match is None:
        return None
    fill, number, end = match.groups()
    width = len(fill) + len(number) if fill else 0
    numbering = Numbering(path, signed, ENDS.index(end), width, fill[:1] == "0", int(number))
    pointer = POINTERS.index(line[0]) if signed else 0
    return numbering if width <= MOST_WIDTH and line.startswith(numbering.mark(pointer)) else None


class LineMark(NamedTuple):
    """The mark of a line: its sign in a hunk (3: none), its pointer, and its numbering."""

    sign: int = 3
    pointer: int = 0
    found: Numbering | None = None


NO_MARK: Final = LineMark()


class Marks:
    """The lines of a text met so far, which foretell the mark of the next one."""

    __slots__ = ("lines", "missed", "new", "numbering", "old", "open", "pointer", "sign")

    def __init__(self) -> None:
        self.lines = 0
        self.old = self.new = 0  # lines that are left of a hunk of a diff, before and after it
        self.open = False  # whether the hunk ends at a line of its own kind, not by counting
        self.sign = 0  # of the last line of the hunk: its place in SIGNS, 3: none
        self.numbering: Numbering | None = None
        self.pointer = 0  # of the last numbered line
        self.missed = 0  # lines since then

    def read(self, line: str) -> tuple[str, LineMark]:
        """Return the next line without its mark, and this, and learn the line."""
        sign, pointer, found, rest = 3, 0, None, line
        hunk = self.old or self.new
        if hunk and line and (sign := SIGNS.find(line[0])) >= 0:
            rest = line[1:]
        sign = 3 if sign < 0 else sign
        body = rest
        if self.numbering is not None:
            if (result := self.numbering.find(rest)) is not None:
                pointer, found = result
                self.pointer = pointer if found.signed else self.pointer
                body = rest[len(found.mark(pointer)) :]
        elif not hunk and self.lines < FIRST:
            found = numbering_of(rest)
            if found is not None and (found.path or found.signed):
                found = None
            body = rest[len(found.mark(0)) :] if found else rest
        self.passed(rest, sign, found)
        return body, LineMark(sign, pointer, found) if hunk or found else NO_MARK

    def passed(self, line: str, sign: int, found: Numbering | None) -> None:
        """Learn the next line as it is without the sign of a hunk, that sign, and its numbering if it has a mark."""
        self.lines += 1
        head = line[:2] in HEADS and (not (self.old or self.new) or (self.open and sign == 3))
        if head and self._hunk(line):
            return
        if self.old or self.new:
            self.sign = sign
            if not self.open:
                self.old -= sign != 1 and self.old > 0
                self.new -= sign != 2 and self.new > 0
        if found is not None:
            self.numbering, self.missed = found, 0
            return
        other = numbering_of(line)
        if other is not None:
            self.numbering, self.missed, self.pointer = other, 0, 0
        elif self.numbering is not None:
            self.missed += 1
            if self.missed > PATIENCE:
                self.numbering = None

    def _hunk(self, line: str) -> bool:
        """Learn the head of a hunk, and return whether the line was one, or ended one that was open."""
        match, ended = HUNK.match(line), self.open
        self.open = match is None and OPENS.match(line) is not None
        self.old, self.new = (int(match[1] or 1), int(match[2] or 1)) if match else (int(self.open), 0)
        self.sign = 0
        return match is not None or self.open or ended
