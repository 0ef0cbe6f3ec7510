"""Slices: the segments of a log, read from its content one by one, so that its length costs no memory.

    Slices(content, 0, [1048600, 2097300])[1]          # bytes 1,048,600 to 2,097,300, (T,) uint8
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol, overload

import numpy as np

from pltz.archive.format.ids import Tokens
from pltz.coding.log.recall import Passages


class Sliced(Protocol):
    """Bytes, in memory or in a file (`LongText`)."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: slice, /) -> bytes: ...

    def find(self, byte: bytes, begin: int, end: int, /) -> int:
        """Return where a byte stands first from ``begin`` to before ``end``, -1 where it does not."""


class Slices(Sequence[Tokens]):
    """The segments of a text from ``begin`` to each of ``ends``, (T,) uint8 each, read when they are asked for.

    ``seen``: the passages of the text up to ``begin``; None: nothing is recalled.
    """

    def __init__(self, content: Sliced, begin: int, ends: Sequence[int], seen: Passages | None = None) -> None:
        self._content, self._ends, self.seen = content, [begin, *ends], seen

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, number: int) -> Tokens: ...

    @overload
    def __getitem__(self, number: slice) -> Slices: ...

    def __getitem__(self, number: int | slice) -> Tokens | Slices:
        if isinstance(number, slice):
            begin, end, _ = number.indices(len(self))
            return Slices(self._content, self._ends[begin], self._ends[begin + 1 : end + 1], self.seen)
        if not 0 <= number < len(self):
            raise IndexError(number)
        return np.frombuffer(self._content[self._ends[number] : self._ends[number + 1]], np.uint8)

    @property
    def begin(self) -> int:
        """Return where the first one begins in the text."""
        return self._ends[0]

    @property
    def sizes(self) -> list[int]:
        """Return the bytes of each."""
        return [end - begin for begin, end in itertools.pairwise(self._ends)]
