"""Marks: what tools put before each line of a text, its number or the sign of a diff. Spec: FORMAT.md, "Marks".

A file that is read with line numbers, then found by grep and shown as a diff has the same lines under other marks.
Without its mark a line is found again.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

HUNK: Final = re.compile(r"@@ -[0-9]{1,9}(?:,([0-9]{1,9}))? \+[0-9]{1,9}(?:,([0-9]{1,9}))? @@")
NUMBERED: Final = re.compile(r"( {0,20})([1-9][0-9]{0,8}|0)(→|\t|: |\| |\. |:|\||│)")
SIGNS: Final = " +-"  # of the lines of a hunk


class Numbering(NamedTuple):
    """The way in which lines are numbered, and the number of the last one."""

    end: str = ""  # what is behind the number
    width: int = 0  # of the number with the blanks before it; 0: there are none
    number: int = 0

    def mark(self) -> str:
        """Return the mark of the line of this number.

        >>> Numbering("→", 4, 7).mark()
        '   7→'
        """
        return f"{str(self.number).rjust(self.width)}{self.end}"

    def at(self, number: int) -> Numbering:
        """Return the numbering at another line."""
        return self._replace(number=number)

    def find(self, line: str) -> Numbering | None:
        """Return the numbering of a line that has a mark of this kind."""
        match = NUMBERED.match(line)
        found = self.at(int(match[2])) if match else None
        return found if found and line.startswith(found.mark()) else None


def numbering_of(line: str) -> Numbering | None:
    """Return the numbering that a line is part of, if it has a mark.

    >>> numbering_of("   7→def f():")
    Numbering(end='→', width=4, number=7)
    """
    match = NUMBERED.match(line)
    if match is None:
        return None
    fill, number, end = match.groups()
    return Numbering(end, len(fill) + len(number) if fill else 0, int(number))


class LineMark(NamedTuple):
    """The mark of a line: its sign in a hunk (3: none), and its numbering."""

    sign: int = 3
    found: Numbering | None = None


NO_MARK: Final = LineMark()


class Marks:
    """The lines of a text met so far, which foretell the mark of the next one."""

    __slots__ = ("new", "numbering", "old", "sign")

    def __init__(self) -> None:
        self.old = self.new = 0  # lines that are left of a hunk of a diff, before and after it
        self.sign = 0  # of the last line of the hunk: its place in SIGNS, 3: none
        self.numbering: Numbering | None = None  # of the last line

    def read(self, line: str) -> tuple[str, LineMark]:
        """Return the next line without its mark, and this, and learn the line."""
        sign, rest = 3, line
        if (self.old or self.new) and line and (sign := SIGNS.find(line[0])) >= 0:
            rest = line[1:]
        sign = 3 if sign < 0 else sign
        found = self.numbering.find(rest) if self.numbering is not None else None
        self.passed(rest, sign, found)
        return rest[len(found.mark()) :] if found else rest, LineMark(sign, found)

    def passed(self, line: str, sign: int, found: Numbering | None) -> None:
        """Learn the next line as it is without the sign of a hunk, that sign, and its numbering if it has a mark."""
        if self.old or self.new:
            self.sign = sign
            self.old -= sign != 1 and self.old > 0
            self.new -= sign != 2 and self.new > 0
        elif (match := HUNK.match(line)) is not None:
            self.old, self.new, self.sign = int(match[1] or 1), int(match[2] or 1), 0
        self.numbering = found or numbering_of(line)
