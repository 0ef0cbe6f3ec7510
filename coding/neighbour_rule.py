"""NeighbourRule: which earlier sequence of a file a new one is tried after.

    new sequence --4-grams--> the nearest that may serve --trial (choose.py)--> its neighbour, if that is shorter

The rule says who may serve, what of it is read, and how much it has to share. Passed in
are who keeps the candidates, how they are named, and whose they are: chats (neighbours.py) or logs
(log/earlier_logs.py). The bytes of a trial then decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pltz.coding.sketch import SIZE, Hashes, Sketch, least_shared

if TYPE_CHECKING:
    from pltz.plt_codec.types import Tokens

LONGEST = 4096  # tokens of a neighbour; it helps the first block only, and a long one is slow to decode
NAME_BYTES = 2  # that naming a neighbour takes where both are in one block

Item = TypeVar("Item")
Source = Callable[[Hashes, float], Sequence[tuple[float, Item]]]
"""Returns candidates and how many of the hashes, (h,), each shares, of those that share so many or more; best first."""


@dataclass(frozen=True)
class NeighbourRule:
    """The rule of who may be a neighbour.

    Attributes:
        in_a_row: most neighbours one behind the other that a sequence is read with, by the format.
        hashes: of a sketch.
    """

    in_a_row: int
    hashes: int = SIZE

    def most_behind(self) -> int:
        """Return the most neighbours in a row that a neighbour is read with."""
        return self.in_a_row - 1

    def sketch(self, grams: Hashes) -> Sketch:
        """Return the sketch of a candidate. ``grams``: of what is read of it, (h,)."""
        return Sketch.of(grams, self.hashes)

    def nearest(
        self,
        tokens: Tokens,
        grams: Hashes,
        sources: Iterable[Source[Item]],
        without: AbstractSet[Item] = frozenset(),
    ) -> tuple[float, Item] | None:
        """Return the candidate that shares most 4-grams with a sequence, and how many; None where none is worth it.

        Of equal ones the first counts.

        Args:
            tokens: of the sequence, (T,).
            grams: all its 4-grams, as `sketch.hashes_of` gives them, (h,).
            sources: ways to the candidates.
            without: candidates that may not serve it.
        """
        least = least_shared(tokens)
        found = [one for source in sources for one in source(grams, least) if one[1] not in without]
        return max(found, key=lambda one: one[0], default=None)
