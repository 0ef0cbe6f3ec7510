"""The archive's clock: the time that its changes agree on, whatever one clock says. Spec: AUDIT.md, "Clock".

    clock = clock.seeing(now)       at each recorded change
    clock.believed(now)             what an age may count by: a step more than what was agreed, at most

A time that is further ahead counts once a second change, most of a day after the first that said so, agrees.
"""

from __future__ import annotations

from typing import NamedTuple

DAY = 86_400  # seconds
STEP, AGAIN = DAY * 3 // 2, DAY * 5 // 6  # seconds; a nightly job does not begin on the second


class ArchiveClock(NamedTuple):
    """The time that was agreed on last, and one far ahead that was seen since, in seconds since 1970; 0: none."""

    agreed: int = 0
    ahead: int = 0

    def seeing(self, now: int, *, forced: bool = False) -> ArchiveClock:
        """Return it after a change at a time. ``forced``: a person says that it is right.

        >>> clock = ArchiveClock(100 * DAY).seeing(900 * DAY)
        >>> clock.believed(900 * DAY) / DAY, clock.seeing(901 * DAY).believed(901 * DAY) / DAY
        (101.5, 901.0)
        """
        if forced or not self.agreed:
            return ArchiveClock(now)
        agrees = self.ahead and now >= self.ahead + AGAIN  # with that time, if not with a later one
        agreed, ahead = (self.ahead, 0) if agrees else self
        if now <= agreed + STEP:
            return ArchiveClock(max(agreed, now))
        return ArchiveClock(agreed, min(ahead or now, now))

    def believed(self, now: int) -> int:
        """Return the time by which ages count."""
        return min(now, self.seeing(now).agreed + STEP)

    def is_behind(self, now: int) -> bool:
        """Return whether a clock is more than a day behind what was agreed."""
        return now + DAY < self.agreed
