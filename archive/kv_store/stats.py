"""Statistics of a hot store: the contents of each tier, and counts of hits, misses, moves and evictions."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Tier:
    """A place for slabs.

    ``budget``, ``used``: bytes. ``segments``: number of slabs stored here. ``hits``: requests answered from
    here.
    """

    budget: int
    used: int = 0
    segments: int = 0
    hits: int = 0

    @property
    def free(self) -> int:
        """Return the bytes of the budget that are not used."""
        return self.budget - self.used

    def enter(self, size: int) -> None:
        """Count one more slab of ``size`` bytes."""
        self.used += size
        self.segments += 1

    def leave(self, size: int) -> None:
        """Count one slab of ``size`` bytes less."""
        self.used -= size
        self.segments -= 1


@dataclass
class Stats:
    """The tiers of a store (``device``, ``host``, ``disk``) and counts since the store was made.

    ``hit_tokens``: ids whose KV was found. ``misses``: segments that were not found. ``inserted``: new slabs
    that were kept. ``refused``: new slabs for which there was no room. ``promoted``, ``demoted``: slabs moved
    up or down. ``dropped``: slabs evicted for good. ``damaged``: files that failed a check.
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
