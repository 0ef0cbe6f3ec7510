"""Reports of runs: a JSON file each in the state folder, complete or absent.

Spec: FORMAT.md, "Report".

Their names have the time and number of their run; the number orders them.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from typing import Any

from pltz.serving.nightly.state import StateFolder

FORMAT, VERSION = "pltz nightly report", 1
NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9]{6,15}\.json")


class Reports:
    """The reports of a state folder. ``keep``: how many stay."""

    def __init__(self, state: StateFolder, keep: int) -> None:
        self.state, self.keep = state, keep

    def names(self) -> list[str]:
        """Return the names of the JSON files, oldest first, by run: a clock may have been set back."""
        return sorted(filter(NAME.fullmatch, self.state.store.list("reports")), key=_run)

    @property
    def run(self) -> int:
        """Return the number of the last run that left a report, or 0 for none."""
        return max(map(_run, self.names()), default=0)

    def earlier(self, count: int) -> list[dict[str, Any]]:
        """Return the last reports that can be read, the oldest first. Raises StoreError."""
        found = list[dict[str, Any]]()
        for name in self.names()[-count:]:
            with suppress(ValueError, FileNotFoundError):
                found.append(json.loads(bytes(self.state.store.view(f"reports/{name}"))))
        return found

    def write(self, report: dict[str, Any]) -> None:
        """Write a run's report, to which its path is added, and drop old ones. Raises StoreError."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(report["started"]))
        name = f"{stamp}-{report['run']:06d}.json"
        report["report"] = str(self.state.root / "reports" / name)
        self.state.store.put(f"reports/{name}", json.dumps(report, indent=1).encode() + b"\n")
        for name in self.names()[: -self.keep]:
            self.state.store.delete(f"reports/{name}")


def _run(name: str) -> int:
    """Return the number of the run in a report's name."""
    return int(name.removesuffix(".json").rpartition("-")[2])
