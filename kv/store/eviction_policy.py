"""The choice of the segment that stays in the store.

It is the most recent one and, of similarly recent ones, the one that has lived longest.

Lifetimes of sessions are heavy-tailed. A segment in use for a week is likelier to be used again soon than one
that came a minute ago (Towers of Segments, 8.3: "promotion priority among similarly-recent sessions"). Idle
times are grouped in bands, each twice as wide as the one before. Within a band, age decides.

    idle     0 .. 1 min | 1 .. 3 min | 3 .. 7 min | 7 .. 15 min | ...
    band        0            1            2             3

Recomputing a segment costs a prefill, which grows with its tokens, as its bytes do. The cost per byte is
therefore equal for all, and size does not enter. A session uses all segments of its tower at once, so a
parent never ranks below its children.
"""

from __future__ import annotations

import math
from typing import NamedTuple

BAND = 60.0  # seconds of the first band


class Priority(NamedTuple):
    """The rank of a segment: the larger one stays.

    ``band``: 0 for just used, else negative. ``age``: seconds between birth and last use. ``used``: time of
    the last use, in seconds since 1970.
    """

    band: int
    age: float
    used: float


def priority(now: float, used: float, born: float) -> Priority:
    """Return the priority of a segment at ``now``. All times are in seconds since 1970.

    >>> old, new = priority(1000, used=990, born=0), priority(1000, used=999, born=999)
    >>> old > new                                       # both just used: the older one stays
    True
    >>> priority(1000, used=700, born=0) < new          # five minutes idle
    True
    """
    idle = max(0.0, now - used)
    return Priority(-int(math.log2(1 + idle / BAND)), max(0.0, used - born), used)
