"""Reports of runs: one JSON and one HTML file each in the state folder, complete or absent.

Spec: FORMAT.md, "Report".

Their names have the time and number of their run; the number orders them. The page shows earlier runs, too.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

from pltz.serving.nightly.html_report import nightly_page
from pltz.serving.nightly.state import StateFolder

FORMAT, VERSION = "pltz nightly report", 1
NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9]{6,15}\.json")
MAX_SIZE = 16 << 20  # bytes of a report that are read
SHOWN = 90  # runs on a page


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

    def history(self, count: int) -> list[dict[str, Any]]:
        """Return the last ``count`` reports, oldest first. Files of another kind or version are skipped."""
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
        """Write a run's report and page, and drop old ones.

        Adds their paths to the report. Raises StoreError.
        """
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(report["started"]))
        stem = f"{stamp}-{report['run']:06d}"
        report["report"] = str(self.state.root / "reports" / f"{stem}.json")
        report["page"] = str(self.state.root / "reports" / f"{stem}.html")
        before = self.history(SHOWN - 1)
        try:
            report["so_far"] = _so_far(before[-1] if before else None, report)
            html = nightly_page([*before, report])
        except Exception:  # noqa: BLE001  # an earlier report may hold anything, and must not cost this one
            report["so_far"] = _so_far(None, report)
            html = nightly_page([report])
        self.state.store.put(f"reports/{stem}.html", html)
        self.state.store.put(f"reports/{stem}.json", json.dumps(report, indent=1).encode() + b"\n")
        for name in self.names()[: -self.keep]:
            self.state.store.delete(f"reports/{name}")
            self.state.store.delete(f"reports/{name.removesuffix('.json')}.html")


def _so_far(before: dict[str, Any] | None, report: dict[str, Any]) -> dict[str, Any]:
    """Return the content and frozen bytes of this run and of all before it, and the time of the first."""
    found = {"since": report["started"]} | {name: report["totals"][name] for name in ("bytes", "frozen_bytes")}
    if before and "so_far" in before:
        past = before["so_far"]
        found["since"] = past["since"]
        for name in ("bytes", "frozen_bytes"):
            found[name] += past[name]
    return found


def _run(name: str) -> int:
    """Return the number of the run in a report's name."""
    return int(name.removesuffix(".json").rpartition("-")[2])
