"""EarlierLogs: for each log of a file, an earlier one that it may be coded after.

    passages of a log --sketch--> nearest earlier logs --fast zstd, alone and after each--> context, or none

What several logs say, a prompt or a file that agents read again and again, is then stored once per file. Sketches of
passages (passages.py) tell which earlier logs are nearest, and runs of a fast zstd whether one is worth it. So each log
is coded once. A reader of one log decodes its context too, so this is not much longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from pltz.coding.log.passages import LEAST_SHARED, most_before, sketch_of_passages, worth_most
from pltz.coding.neighbour_rule import NeighbourRule
from pltz.coding.sketch import Hashes, NearestItems

TRIED = 2  # of the nearest logs
KEPT = 1 << 26  # bytes of earlier logs that are kept


@dataclass(frozen=True, eq=False)
class EarlierLog:
    """A log of a file.

    Attributes:
        number: its number in the file.
        content: its bytes.
        depth: number of contexts that stand behind it, one behind the other.
    """

    number: int
    content: bytes
    depth: int


class EarlierLogs:
    """The earlier logs of a file that can be a context, the latest ones within a budget."""

    def __init__(self, rule: NeighbourRule) -> None:
        self._rule = rule
        self._logs = NearestItems[EarlierLog]()
        self._size = 0

    def context(self, number: int, content: bytes, passages: Hashes) -> EarlierLog | None:
        """Return the earlier log that a log is worth coding after, or None; the log is a candidate from now on.

        Args:
            number: of the log in the file.
            content: its bytes.
            passages: all of them, as `passages_of` gives them, (h,).
        """
        found = self._worth(content, passages)
        one = EarlierLog(number, content, 1 + found.depth if found else 0)
        if one.depth <= self._rule.most_behind():
            self._add(one, passages)
        return found

    def _worth(self, content: bytes, passages: Hashes) -> EarlierLog | None:
        near = self._logs.nearest_to(passages, LEAST_SHARED * len(passages), TRIED)
        short = [log for _, log in near if len(log.content) <= most_before(len(content))]
        return worth_most(content, short, lambda log: log.content)

    def _add(self, one: EarlierLog, passages: Hashes) -> None:
        if self._size + len(one.content) > KEPT:  # forget all: the sketches of a few cannot be taken out
            self._logs, self._size = NearestItems(), 0
        self._logs.add(one, sketch_of_passages(passages))
        self._size += len(one.content)
