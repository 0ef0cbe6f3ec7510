"""Joiner: the bytes of a log from decisions, opaque bits and text, the inverse of `Splitter`. Spec: FORMAT.md.

Nothing that it reads is trusted: what a value costs in the output is taken off the bytes that are left to make
before the value is made, and each reference is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pltz.coding.log import opaque, protobuf
from pltz.coding.log.bit_coder import BitReader
from pltz.coding.log.marks import LineMark
from pltz.coding.log.past import Past, Slot
from pltz.coding.log.values import damaged
from pltz.coding.log.walk import Choice, Lines, Unit, Walk
from pltz.models.session import spelling
from pltz.models.session.spelling import Json
from pltz.plt_codec.errors import CorruptError

SLACK: Final = 1  # bytes by which a value may be shorter than what is taken off for it
NOTHING, NO_CHOICE, NO_LINES = Unit(), (0, ()), Lines()


class Joiner(Walk):
    """Decodes values with a `BitReader`."""

    def __init__(self, past: Past, coder: BitReader, bits: bytes, pieces: Sequence[str], count: int) -> None:
        super().__init__(past, coder)
        self._opaque, self._opaque_at = bits, 0
        self._pieces, self._pieces_at = pieces, 0
        self._new: list[str] | None = None  # lines of the open piece, the next one last
        self._left = count + SLACK  # bytes that may still be made

    def content(self, count: int) -> bytes:
        """Return the log of ``count`` bytes."""
        out: list[bytes] = []
        made = 0
        while made < count:
            unit = self._unit(NOTHING)
            made += len(unit)
            out.append(unit)
            if made < count:
                out.append(b"\n")
                made += 1
            self._left = count - made + SLACK
        if made > count:
            damaged(f"more than the {count} bytes of the log")
        if self._pieces_at < len(self._pieces) or self._opaque_at < len(self._opaque):
            damaged("less than there is of text or opaque bits")
        return b"".join(out)

    def _choice(self, slot: Slot, value: Json, depth: int) -> Choice:
        return NO_CHOICE

    def _bodies(self, text: str) -> tuple[list[str], list[LineMark]]:
        return [], []

    def _run(self, bodies: list[str], begin: int) -> Lines:
        return NO_LINES

    def _spelled(self, value: Json, style: int, text: str) -> str:
        try:
            return spelling.spell(value, style)
        except (RecursionError, TypeError, ValueError) as exc:
            raise CorruptError("the columns of a log hold a value too deep to write: the file is damaged") from exc

    def _read(self, text: str, value: Json) -> Json:
        try:
            return spelling.parse(text)
        except ValueError as exc:
            raise CorruptError(f"expected JSON in the columns of a log, found {exc}: the file is damaged") from exc

    def _packed(self, value: Json, flavour: int, text: str) -> str:
        try:
            return opaque.base64_text(flavour, protobuf.write_message(value))
        except ValueError as exc:
            raise CorruptError("the columns of a log hold a message that is none: the file is damaged") from exc

    def _raw(self, size: int, data: bytes) -> bytes:
        """Return the next opaque bytes."""
        data = self._opaque[self._opaque_at : self._opaque_at + size]
        if len(data) < size:
            damaged("more opaque bits than there are")
        self._opaque_at += size
        return data

    def _text(self, size: int, lines: list[str]) -> list[str]:
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

    def _end(self, speaker: int) -> None:
        if self._new:
            damaged("fewer lines of text than there are")
        self._new, self._size = None, 0
