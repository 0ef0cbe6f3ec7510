"""Beginning: the first segments of a log, which an archive has. What is put goes on below them.

A log of any length is put as a tower of slices, some at a time. Each is named, coded and proved below the one before.
Of the segments above only as many are kept as the next one is coded after (`Above.to_follow`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pltz.archive.writing.pending_segment import PendingSegment
from pltz.coding.log.above import REACH


@dataclass
class Beginning:
    """Segments of a log from its first one on, which are stored and proved.

    Attributes:
        chain: the last of them, as far up as the next one is coded after.
        count, size: how many they are, and the bytes of their content.
        packs: where they are.
    """

    chain: list[PendingSegment] = field(default_factory=list)
    count: int = 0
    size: int = 0
    packs: frozenset[bytes] = frozenset()

    @property
    def last(self) -> PendingSegment | None:
        """Return the last segment, None where there is none."""
        return self.chain[-1] if self.chain else None

    def and_then(self, segments: Sequence[PendingSegment], packs: frozenset[bytes]) -> Beginning:
        """Return this beginning with more segments, in the packs that these are in."""
        chain = list(self.chain)
        for segment in segments:
            if sum(len(s.tokens) for s in chain) > REACH:
                chain = []
            chain.append(segment)
        if chain and chain[0].up:
            chain[0].up = None  # what stands above is not held in memory
        size = sum(len(s.tokens) for s in segments)
        return Beginning(chain, self.count + len(segments), self.size + size, self.packs | packs)
