"""Reports of runs: one JSON and one HTML file each in the state folder, whole or not there. Spec: FORMAT.md, "Report".

They are called after the time and number of their run; the number orders them. The page shows the runs before it, too.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

from pltz.archive.nightly.html_report import page
from pltz.archive.nightly.state import State

FORMAT, VERSION = "pltz nightly report", 1
NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9]{6,15}\.json")
MAX_SIZE = 16 << 20  # bytes of a report that is read
SHOWN = 90  # runs on a page


class Reports:
    """The reports of a state folder. ``keep``: how many stay."""

    def __init__(self, state: State, keep: int) -> None:
        self.state, self.keep = state, keep

    def names(self) -> list[str]:
        """Of the JSON files, oldest first: by run, for a clock may have been set back."""
        return sorted(filter(NAME.fullmatch, self.state.store.list("reports")), key=_run)

    @property
    def run(self) -> int:
        """Number of the last run that left a report; 0 where none did."""
        return max(map(_run, self.names()), default=0)

    def history(self, count: int) -> list[dict[str, Any]]:
        """The last reports, oldest first. What is none, or of another version, is passed over."""
        found = []
        for name in self.names()[-count:]:
            try:
                report = json.loads(self.state.store.read(f"reports/{name}", 0, MAX_SIZE))
            except (ValueError, RecursionError, FileNotFoundError):
                continue
            if isinstance(report, dict) and (report.get("format"), report.get("version")) == (
                FORMAT,
                VERSION,
            ):
                found.append(report)
        return found

    def write(self, report: dict[str, Any]) -> None:
        """Write a run's report and page, and drop old ones. Adds to the report where it is. Raises StoreError."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(report["started"]))
        stem = f"{stamp}-{report['run']:06d}"
        report["report"] = str(self.state.root / "reports" / f"{stem}.json")
        report["page"] = str(self.state.root / "reports" / f"{stem}.html")
        try:
            html = page([*self.history(SHOWN - 1), report])
        except Exception:  # noqa: BLE001  # a report before it may hold anything, and must not cost this one
            html = page([report])
        self.state.store.put(f"reports/{stem}.html", html)
        self.state.store.put(f"reports/{stem}.json", json.dumps(report, indent=1).encode() + b"\n")
        for name in self.names()[: -self.keep]:
            self.state.store.delete(f"reports/{name}")
            self.state.store.delete(f"reports/{name.removesuffix('.json')}.html")


def _run(name: str) -> int:
    """Of a report's name."""
    return int(name.removesuffix(".json").rpartition("-")[2])
