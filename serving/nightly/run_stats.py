"""Tally: counts of the sessions of a shard, a source or a run. Tallies add up."""

from __future__ import annotations

from collections import Counter
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
    a known change time. ``source``: its number. ``left_out``: files that are no sessions, by what leaves them out;
    ``told``: those of them with a reason of their own, and what else is to be known. ``packings``: packed files of
    which only the content is kept.
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
    left_out: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    refusals: list[RefusedSession] = field(default_factory=list)
    quarantine: set[str] = field(default_factory=set)
    packings: set[str] = field(default_factory=set)
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
            elif name in ("quarantine", "packings"):
                getattr(self, name).update(value)
            elif name == "told":
                self.told += value[: LISTED - len(self.told)]
            else:
                setattr(self, name, getattr(self, name) + value)

    def refuse(self, refused: RefusedSession) -> None:
        """Count a session that was refused."""
        self.refused += 1
        self.quarantine.add(refused.id)
        if len(self.refusals) < LISTED:
            self.refusals.append(refused)

    def leave(self, where: str, rule: str, why: str) -> None:
        """Count a file that is left out by a rule; without one it is only told of, as a link that is followed."""
        if rule:
            self.left_out[rule] += 1
        if why and len(self.told) < LISTED:
            self.told.append(f"{where}: {why}" + (", left out" if rule not in ("", "empty") else ""))

    def wait(self, since: float | None, now: float) -> None:
        """Count the lag of a session that was changed at ``since`` and is durable ``now``."""
        if since is not None:
            self.lagged += 1
            self.lag += max(0.0, now - since)
            self.lag_max = max(self.lag_max, now - since)

    def facts(self) -> dict[str, Any]:
        """Return the counts for a report, with the ratio of content to frozen bytes and the mean lag."""
        facts = asdict(self)
        for name in ("source", "refusals", "quarantine", "failures", "lag", "told"):
            del facts[name]
        facts["left_out"], facts["packings"] = dict(sorted(self.left_out.items())), sorted(self.packings)
        facts["seconds"], facts["lag_max"] = round(self.seconds, 3), round(self.lag_max, 3)
        facts["lag_mean"] = round(self.lag / self.lagged, 3) if self.lagged else None
        facts["ratio"] = round(self.bytes / self.frozen_bytes, 3) if self.frozen_bytes else None
        return facts
