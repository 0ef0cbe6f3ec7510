"""RecentTowers: the tokens of towers put or read last, so that a session's next version need not decode them.

A put of a new turn cuts the session where its last version was cut, and codes the turn after the tokens above
it. Both need the last version's tokens. Decoding them took 3.6 s of CPU time for a chat of 4000 tokens in 40
turns. A tower is known by its leaf, whose id is a digest of all its tokens.

A remembered tower is never taken as proof. The writer looks up every stored segment that it relies on
(`VerifiedSegments.place`), and decodes it again where it was not proved by this process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pltz.archive.format.ids import Tokens

BUDGET = 32 << 20  # bytes

Segments = list[tuple[bytes, Tokens]]


class RecentTowers:
    """Towers by their leaf: (id, tokens of shape (t,)) of each segment, from the root.

    ``budget``: most bytes of all their tokens. The least recently used go first. Not for several threads.
    """

    def __init__(self, budget: int = BUDGET) -> None:
        self._free = budget
        self._towers: OrderedDict[bytes, Segments] = OrderedDict()

    def add(self, segments: Sequence[tuple[bytes, Tokens]]) -> None:
        """Remember a tower, (id, tokens of shape (t,)) from its root.

        Towers that it extends are forgotten: the next version builds on this one.
        """
        if not segments:
            return
        for segment, _ in segments:
            self._drop(segment)
        leaf = segments[-1][0]
        self._towers[leaf] = list(segments)
        self._free -= _size(self._towers[leaf])
        while self._free < 0:
            self._drop(next(iter(self._towers)))

    def get(self, leaf: bytes) -> Segments | None:
        """Return the tower of a leaf, or None where it is not remembered."""
        if leaf not in self._towers:
            return None
        self._towers.move_to_end(leaf)
        return list(self._towers[leaf])

    def clear(self) -> None:
        """Forget everything."""
        while self._towers:
            self._drop(next(iter(self._towers)))

    def _drop(self, leaf: bytes) -> None:
        if (tower := self._towers.pop(leaf, None)) is not None:
            self._free += _size(tower)


def _size(segments: Segments) -> int:
    return sum(tokens.nbytes for _, tokens in segments)
