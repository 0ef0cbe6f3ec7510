"""Tally: counts of the sessions of a shard, a source or a run. Tallies add up."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

LISTED = 1000  # most errors in a report; the quarantine has all of them


@dataclass(frozen=True)
class RefusedSession:
    """A session that was refused. ``id``: of its file in the quarantine."""

    id: str
    source: str
    where: str
    name: str | None
    tenant: str | None
    error: str
    reason: str
    bytes: int | None


@dataclass
class RunStats:
    """Counts of sessions, bytes and tokens. Times are in seconds.

    seen = known + frozen + refused. ``unchanged`` sessions count as frozen, but the archive had them already.
    ``bytes``: of frozen sessions as they were in the source. ``frozen_bytes``: of the new bitstrings.
    ``lag``: time from a session's last change until it was durable, summed over the ``lagged`` sessions with
    a known change time. ``source``: its number.
    """

    source: int = 0
    seen: int = 0
    known: int = 0
    frozen: int = 0
    unchanged: int = 0
    refused: int = 0
    by_model: int = 0
    bytes_seen: int = 0
    bytes: int = 0
    tokens: int = 0
    frozen_bytes: int = 0
    seconds: float = 0.0
    lagged: int = 0
    lag: float = 0.0
    lag_max: float = 0.0
    refusals: list[RefusedSession] = field(default_factory=list)
    quarantine: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)

    def add(self, other: RunStats) -> None:
        """Add another tally's counts."""
        for name, value in vars(other).items():
            if name == "source":
                continue
            if name == "lag_max":
                self.lag_max = max(self.lag_max, value)
            elif name == "refusals":
                self.refusals += value[: LISTED - len(self.refusals)]
            elif name == "quarantine":
                self.quarantine |= value
            else:
                setattr(self, name, getattr(self, name) + value)

    def refuse(self, refused: RefusedSession) -> None:
        """Count a session that was refused."""
        self.refused += 1
        self.quarantine.add(refused.id)
        if len(self.refusals) < LISTED:
            self.refusals.append(refused)

    def wait(self, since: float | None, now: float) -> None:
        """Count the lag of a session that was changed at ``since`` and is durable ``now``."""
        if since is not None:
            self.lagged += 1
            self.lag += max(0.0, now - since)
            self.lag_max = max(self.lag_max, now - since)

    def facts(self) -> dict[str, Any]:
        """Return the counts for a report, with the ratio of content to frozen bytes and the mean lag."""
        facts = asdict(self)
        for name in ("source", "refusals", "quarantine", "failures", "lag"):
            del facts[name]
        facts["seconds"], facts["lag_max"] = round(self.seconds, 3), round(self.lag_max, 3)
        facts["lag_mean"] = round(self.lag / self.lagged, 3) if self.lagged else None
        facts["ratio"] = round(self.bytes / self.frozen_bytes, 3) if self.frozen_bytes else None
        return facts
