"""PaperRow: one claim of a paper beside what was measured, live or recorded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

TOWERS, LEARNED, MEMORY, TIERS, JOINT = PAPERS = "towers", "learnable", "agent-memory", "three-tier", "joint-encoding"
HOLDS, PART, FAILS, OPEN = VERDICTS = "holds", "in part", "does not hold", "not measured"


@dataclass(frozen=True)
class Recorded:
    """Say where a figure comes from that is not measured here. ``source``: a file of the repository."""

    date: str
    command: str
    source: str


@dataclass(frozen=True)
class PaperRow:
    """One claim. ``why``: where it does not hold, why. ``recorded``: None where it was measured in this run."""

    paper: str
    place: str
    claim: str
    said: str
    measured: str
    verdict: str
    why: str = ""
    recorded: Recorded | None = None

    def as_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


def verdict(holds: bool, part: bool = False) -> str:
    """Return `HOLDS`, else `PART` where some of it does, else `FAILS`."""
    return HOLDS if holds else PART if part else FAILS
