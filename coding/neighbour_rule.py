"""NeighbourRule: which earlier sequence a new one is tried after, by one rule for files and for archives.

    new sequence --4-grams--> the nearest that may serve --TrialCredit--> trial (choose.py) --shorter--> its neighbour

The rule says who may serve, what of it is read, how much it has to share, and how much time trials may take. Passed in
are who keeps the candidates, how they are named, and whose they are: the sessions of a file (neighbours.py), or the
segments of each tenant (archive/writing/neighbours.py). The bytes of a trial then decide.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from pltz.coding.sketch import SIZE, Hashes, Sketch, least_shared

if TYPE_CHECKING:
    from pltz.plt_codec.types import Tokens

LONGEST = 4096  # tokens of a neighbour; it helps the first block only, and a long one is slow to decode
NAME_BYTES = 2  # that naming a neighbour takes where both are in one block
GRANTED = 0.45  # of the work of coding sequences alone and proving them: trials after neighbours may add it
SAVED_UP = 256  # tokens' worth of that work which a place has at first, and the most that it keeps
TRIAL, PROOF = 0.42, 0.54  # work per token of a trial, and of proving a sequence that is kept, of the same

Item = TypeVar("Item")
Place = TypeVar("Place", bound=Hashable)
Source = Callable[[Hashes, float], Sequence[tuple[float, Item]]]
"""Returns candidates and how many of the hashes, (h,), each shares, of those that share so many or more; best first."""


@dataclass(frozen=True)
class NeighbourRule:
    """The rule of who may be a neighbour.

    Attributes:
        in_a_row: most neighbours one behind the other that a sequence is read with, by the format.
        hashes: of a sketch.
        least_grams: distinct 4-grams that a candidate has at least.
        granted: share of the work of coding alone that trials may take; infinite: any.
    """

    in_a_row: int
    hashes: int = SIZE
    least_grams: int = 0
    granted: float = GRANTED

    def most_behind(self, *, fast: bool = False, shared: bool = False) -> int:
        """Return the most neighbours in a row that a neighbour is read with.

        Args:
            fast: in the fast layout a neighbour takes about as long to decode as the sequence: none.
            shared: it is one of several tenants. What one of these puts below has a row of its own: none.
        """
        return 0 if fast or shared else self.in_a_row - 1

    def read_of(self, parts: Sequence[Tokens], reach: int) -> tuple[int, Tokens]:
        """Return how many parts of a candidate are read, and what of them is a context, (m,): ``reach`` tokens at most.

        No tokens where more than `LONGEST` would be decoded for it.

        Args:
            parts: (T,) each, one behind the other.
            reach: most tokens that a codec uses.
        """
        read, taken = 0, list["Tokens"]([np.zeros(0, np.int64)])
        for part in parts:
            taken.append(part[:reach])
            read += len(part)
            reach -= len(taken[-1])
            if reach <= 0:
                break
        return len(taken) - 1, np.concatenate(taken) if read <= LONGEST else taken[0]

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


class TrialCredit(Generic[Place]):
    """The work that trials may still take at each place, in tokens. So no place changes a size of another.

    ``rule``: its `NeighbourRule.granted` is the share.
    """

    def __init__(self, rule: NeighbourRule) -> None:
        self._granted = rule.granted
        self._left: dict[Place, float] = {}

    def grant(self, tokens: Mapping[Place, int]) -> None:
        """Grant a share of the work of so many new tokens at each place. What a place saves up is bounded."""
        for place, count in tokens.items():
            self._left[place] = min(self._left.get(place, SAVED_UP), SAVED_UP) + self._granted * count

    def affordable(self, proposed: Iterable[tuple[Item, Place, int, float]]) -> list[Item]:
        """Return the proposed trials that are made: those that share most of their 4-grams, as far as credit goes.

        Each comes with its place, its tokens and the 4-grams shared.
        """
        ordered = sorted(proposed, key=lambda one: -one[3] / one[2])
        return [item for item, place, tokens, _ in ordered if self.take(place, tokens)]

    def take(self, place: Place, tokens: int) -> bool:
        """Take the work of a trial of so many tokens, and return whether it was there."""
        work = (TRIAL + PROOF) * tokens
        if self._left[place] < work:
            return False
        self._left[place] -= work
        return True

    def give_back(self, place: Place, tokens: int) -> None:
        """Give back the proof of a trial that gained nothing: proving it costs no more than alone."""
        self._left[place] += PROOF * tokens
