"""Orders in which blocks leave a store, for `KVStore(rank=...)`: those of a lower rank leave first.

    store = KVStore.open(target, tokens, rank=lindy(lambda: time.time(), times.__getitem__))

The default, the least recently used, is the best that was measured in a trie (../three_tiers.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable

BAND = 60.0  # seconds of the first band of idle time; each is twice as wide as the one before
FADES = 0.5  # weight of what was seen before, when attention is seen again


def band(idle: float) -> int:
    """Return 0 for what was just used, and less the longer it was idle.

    >>> [band(seconds) for seconds in (10, 100, 300, 800)]
    [0, -1, -2, -3]
    """
    return -int(math.log2(1 + max(0.0, idle) / BAND))


def lindy(clock: Callable[[], float], times: Callable[[bytes], tuple[float, float]]) -> Callable[[bytes], float]:
    """Return the rank of similarly recent blocks by age (Towers of Segments, 8.3).

    ``times``: when a block began, and when it was used last, in seconds since 1970.
    """

    def rank(name: bytes) -> float:
        born, used = times(name)
        return band(clock() - used) + min(max(0.0, used - born) / 1e10, 0.99)

    return rank


def by_attention(clock: Callable[[], float], seen: Callable[[bytes], tuple[float, float]]) -> Callable[[bytes], float]:
    """Return the rank of similarly recent blocks by attention. ``seen``: time of the last use, and mass from 0 to 1."""

    def rank(name: bytes) -> float:
        used, mass = seen(name)
        return band(clock() - used) + min(mass, 0.99)

    return rank
