"""Counts of a hot store: what it holds in each tier, and what became of what was asked of it and given to it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Tier:
    """A place for slabs. ``budget``, ``used``: bytes; ``segments``: how many lie there; ``hits``: found there when asked for."""

    budget: int
    used: int = 0
    segments: int = 0
    hits: int = 0

    @property
    def free(self) -> int:
        """Bytes."""
        return self.budget - self.used

    def enter(self, size: int) -> None:
        """One slab more."""
        self.used += size
        self.segments += 1

    def leave(self, size: int) -> None:
        """One slab less."""
        self.used -= size
        self.segments -= 1


@dataclass
class Stats:
    """``device``, ``host``, ``disk``: the tiers; the rest counts since the store was made.

    ``hit_tokens``: ids whose KV was found; ``misses``: segments that were not; ``inserted``: new slabs that were kept; ``refused``: for
    which there was no room; ``promoted``, ``demoted``: moved up, moved down; ``dropped``: evicted for good; ``damaged``: files
    that were not what they should be.
    """

    device: Tier
    host: Tier
    disk: Tier = field(default_factory=lambda: Tier(0))
    hit_tokens: int = 0
    misses: int = 0
    inserted: int = 0
    refused: int = 0
    promoted: int = 0
    demoted: int = 0
    dropped: int = 0
    damaged: int = 0
