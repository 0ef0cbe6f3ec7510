"""Signs of life: whether a night was what it should be, though nothing failed, and pings for whoever waits for them.

    ping("https://hc-ping.com/UUID", "start")           a run begins; "" it is over, "fail" it is not done
    watched(opened, reports, NightWatch("3d", "14d"))   how old the newest session is, how long there is space

A job that does not run at all cannot tell that: who waits for the pings, or looks at the file of metrics, can.
"""

from __future__ import annotations

import http.client
import os
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pltz.archive import TICK_BITS, OpenArchive, disk_bytes, duration, seconds
from pltz.plt_codec import UsageError
from pltz.serving.eviction.checked import check

SECONDS = 10  # that a ping may take
DAY = 86_400  # seconds
OVER = 14  # reports over which the archive's growth is taken
METRICS = {
    "pltz_nightly_started_seconds": ("started",),
    "pltz_nightly_exit_code": ("exit_code",),
    "pltz_nightly_sessions_frozen": ("totals", "frozen"),
    "pltz_nightly_sessions_refused": ("totals", "refused"),
    "pltz_archive_disk_bytes": ("archive", "disk_bytes"),
    "pltz_archive_newest_session_age_seconds": ("watch", "newest_age"),
    "pltz_archive_space_days": ("watch", "space_days"),
}


@dataclass(frozen=True)
class NightWatch:
    """Durations of alarms. ``new_session``: without a new version; ``space``: for which the disk has to last."""

    new_session: str | None = None
    space: str | None = None

    def __post_init__(self) -> None:
        check(self)
        for given in (self.new_session, self.space):
            if given is not None and not seconds(given):
                raise UsageError(f"expected a duration such as 3d, found {given!r}")


def ping(url: str, state: str = "") -> str:
    """Tell a watcher of a run's state: "start", "" or "fail". Return what went wrong; nothing is raised."""
    try:
        target = f"{url.rstrip('/')}/{state}" if state else url
        if not target.startswith(("http://", "https://")):
            raise ValueError("expected a URL of http or https")
        urllib.request.urlopen(target, timeout=SECONDS).close()
    except (OSError, ValueError, http.client.HTTPException) as exc:
        return f"the ping to {url} failed: {exc}"
    return ""


def watched(opened: OpenArchive, reports: Sequence[dict[str, Any]], watch: NightWatch) -> dict[str, Any]:
    """Return how old the newest version is and how long space lasts, and what is to be told of them.

    ``reports``: earlier ones, the oldest first. Raises ArchiveError, StoreError.
    """
    now = opened.store.now()
    newest = max((v.moment for v in opened.catalog.lookup.all_versions(listed=True)), default=None)
    age = None if newest is None else max(0, now - (newest >> TICK_BITS))
    days = None if opened.store.remote else _space_days(opened, reports)
    alarms = list[str]()
    if watch.new_session and (age is None or age > seconds(watch.new_session)):
        since = "at all" if age is None else f"for {duration(age)}"
        alarms.append(f"no new session {since} (new_session = {watch.new_session})")
    if watch.space and days is not None and days * DAY < seconds(watch.space):
        alarms.append(f"at the growth of the last runs the disk is full in {days:.1f} days (space = {watch.space})")
    return {"newest_age": age, "space_days": None if days is None else round(days, 1), "alarms": alarms}


def _space_days(opened: OpenArchive, reports: Sequence[dict[str, Any]]) -> float | None:
    """Return for how many days the disk lasts at the growth since an earlier report; None where it does not grow."""
    place: Path | None = getattr(getattr(opened.store, "disk", None), "root", None)
    known = [r for r in reports[-OVER:] if "disk_bytes" in r.get("archive", {}) and "started" in r]
    if place is None or not known:
        return None
    since: float = time.time() - known[0]["started"]
    grown: int = disk_bytes(opened.store) - known[0]["archive"]["disk_bytes"]
    if since < DAY / 2 or grown <= 0:
        return None
    room = os.statvfs(place)
    return room.f_bavail * room.f_frsize / (grown / since) / DAY


def write_metrics(folder: Path, report: dict[str, Any]) -> None:
    """Write the numbers of a report as Prometheus's node exporter reads them from a file. Raises OSError."""
    lines = list[str]()
    for name, path in METRICS.items():
        value: Any = report
        for key in path:
            value = (value or {}).get(key)
        if value is not None:
            lines.append(f"# TYPE {name} gauge\n{name} {value}\n")
    temporary = folder / "metrics.new"
    temporary.write_text("".join(lines))
    os.replace(temporary, folder / "metrics.prom")
