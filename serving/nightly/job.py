"""The nightly job: sources, freeze, retention, shrink, collect, verify, report. One call is one run.

    config = config.load("nightly.toml")
    report = run(config)            # {"exit_code": 0, "totals": {"frozen": 12, ...}, ...}

A run may be killed anywhere; the next one continues. Sessions it put are known by their receipts, and those
without a receipt are found in the archive again (`freeze.py`). The later steps (forget, shrink,
collect, verify) may each be interrupted anywhere.

Exit codes, of which the last one that applies is returned:

    0    success
    5    sessions were refused, all others are in
    11   an alarm: nothing new came, or the disk does not last
    3    what was verified is damaged
    7    something could not be done now: run it again
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pltz.archive import (
    Catalog,
    Policy,
    StoreError,
    Version,
    WorkPart,
    as_sessions,
    counted,
    disk_bytes,
    expired,
    opener,
    seconds,
    stat_of,
)
from pltz.plt_codec import PltzError
from pltz.serving.nightly.config import CollectSettings, Config
from pltz.serving.nightly.freeze import Freezer
from pltz.serving.nightly.receipt import ReceiptLedger
from pltz.serving.nightly.report import FORMAT, VERSION, Reports
from pltz.serving.nightly.run_stats import LISTED, RunStats
from pltz.serving.nightly.sources.source import DrainedSource, SourceShard
from pltz.serving.nightly.watch import OVER, watched, write_metrics

REFUSED, ALARM, DAMAGED, FAILED = 5, 11, 3, 7  # exit codes
LEAST_PACKS = 8  # packs in a part, about, at least
FORGET = 4096  # versions per commit

Seen = Callable[[RunStats], None]


def run(
    config: Config, *, dry_run: bool = False, seen: Seen | None = None, begin: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Do one run and return its report, which is also in the state folder.

    Args:
        dry_run: report the work, and change nothing.
        seen: called with each tally as it comes.
        begin: called with the name of each step before it begins.

    Raises:
        UsageError, FormatError, KeyMismatch, StoreError: the archive or the state folder cannot be opened.
            Nothing was done.
        Busy: another run has the state folder.
    """
    job = _NightlyRun(config, dry_run, seen, begin)
    if dry_run:
        return job.run(0)
    job.state.make()
    with job.state.lock():
        job.state.tidy()
        reports = Reports(job.state, config.report.keep)
        number = 1 + max(job.state.refresh(ReceiptLedger()).run, reports.run)
        report = job.run(number, reports.earlier(OVER))
        try:
            reports.write(report)
            write_metrics(Path(job.state.root), report)
        except (StoreError, OSError) as exc:  # what was done is told all the same
            report.pop("report", None)
            report["failures"].append(f"report: {exc}")
            report["exit_code"] = FAILED
    return report


class _NightlyRun:
    """A run, step by step. ``failures``: the parts that could not be done now."""

    def __init__(self, config: Config, dry_run: bool, seen: Seen | None, begin: Callable[[str], None] | None) -> None:
        self.config, self.dry_run, self.seen, self.begin = config, dry_run, seen, begin
        self.failures: list[str] = []
        self.steps: dict[str, dict[str, float]] = {}
        self.freezer = Freezer(config, dry_run=dry_run)
        self.state = self.freezer.state
        self._open()  # an archive that cannot be opened is reported before anything is done

    def run(self, number: int, earlier: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """Do all steps and return the report. A step that fails is named in it, and the others are done.

        ``earlier``: reports of the last runs, the oldest first.
        """
        start, clock = time.time(), time.monotonic()
        self.freezer.run = number
        tallies = self._timed("freeze", self._freeze)
        total = RunStats()
        for tally in tallies:
            total.add(tally)
        # Receipts follow the sessions that they stand for: a run that was killed sees those again.
        if not self.dry_run:
            self._timed("receipts", lambda: self._settle(total))
        # Upkeep, in an order in which each step finds what the last one left.
        forgotten = self._timed("retention", self._retention)
        shrunk = self._timed("shrink", self._shrink)  # before its packs are condemned, which no record is shrunk in
        collected = self._timed("collect", lambda: self._collect(shrunk))
        verified = self._timed("verify", self._verify)
        words = self._timed("words", self._words)
        watch = self._timed("watch", lambda: self._step("watch", lambda: self._watch(earlier)))
        self.failures = total.failures + self.failures
        stat = self._step("stat", self._stat) or {}
        sources = self.config.source
        return {
            "format": FORMAT,
            "version": VERSION,
            "run": number,
            "dry_run": self.dry_run,
            "started": round(start, 3),
            "seconds": round(time.monotonic() - clock, 3),
            "archive": {"place": self.config.archive, **stat},
            "totals": total.facts(),
            "sources": [{"name": s.name, "kind": s.kind, **t.facts()} for s, t in zip(sources, tallies, strict=True)],
            "retention": forgotten,
            "shrink": shrunk,
            "collect": collected,
            "verify": verified,
            "words": words,
            "watch": watch,
            "before": {key: earlier[-1][key] for key in ("run", "started", "exit_code")} if earlier else None,
            "steps": self.steps,
            "refused": [vars(refused) for refused in total.refusals],
            "told": total.told,
            "failures": self.failures[:LISTED],
            "damaged_receipts": sorted(self.state.damaged),
            "peak_memory_mb": peak_memory(),
            "exit_code": self._exit_code(total, verified, bool(watch and watch["alarms"])),
        }

    def _exit_code(self, total: RunStats, verified: dict[str, Any] | None, alarmed: bool) -> int:
        if self.failures:
            return FAILED
        if verified and not verified["sound"]:
            return DAMAGED
        if alarmed:
            return ALARM
        return REFUSED if total.refused else 0

    def _freeze(self) -> list[RunStats]:
        """Return a tally for each source."""
        tallies = [RunStats(number) for number in range(len(self.config.source))]
        for part in map(self.freezer.freeze, self._shards(tallies)):
            tallies[part.source].add(part)
            if self.seen:
                self.seen(part)
        for source, tally in zip(self.config.source, tallies, strict=True):
            if not (tally.seen or tally.failures or isinstance(source, DrainedSource)):
                tally.told.append(f"source {source.name!r}: no session was found")
        return tallies

    def _shards(self, tallies: list[RunStats]) -> Iterator[SourceShard]:
        """Yield the shards of all sources. One that cannot be read does not stop the others."""
        for number, source in enumerate(self.config.source):
            try:
                yield from source.shards(number)
            except MemoryError:
                raise
            except Exception as exc:  # noqa: BLE001  # of a database, or of what its rows hold
                tallies[number].failures.append(f"source {source.name!r}: {exc}")

    def _settle(self, total: RunStats) -> None:
        """Merge the receipts. After a complete run, drop what is pending and refresh the quarantine."""
        self._step("receipts", self.state.merge)
        if not total.failures:
            self._step("receipts", self.state.settle)
            self._step("quarantine", lambda: self.state.release(total.quarantine))

    def _retention(self) -> Any:
        return self._step("retention", self._forget) if self.config.retention else None

    def _forget(self) -> dict[str, Any]:
        opened, forgotten = self._open(), 0
        catalog, rules = opened.catalog, [(rule, rule.policy) for rule in self.config.retention]
        now, clock = catalog.believed_time(note=not self.dry_run), opened.store.now()
        spared = Counter[str]()
        by_rule = [Counter[str]() for _ in rules]

        def going(history: list[Version]) -> Iterator[Version]:
            """Yield the versions of a session that a rule lets expire, and no floor and no hold keeps."""
            of, known, met = history[0].tenant, list(as_sessions(history)), set[bytes]()
            mine = [(n, policy) for n, (rule, policy) in enumerate(rules) if rule.covers(of)]
            for number, policy in mine:
                some = [v for v in expired(known, policy, now, catalog.lookup.chain) if v.id not in met]
                met |= {v.id for v in some}
                why = [self._spared(catalog, v, [policy for _, policy in mine], now) for v in some]
                spared.update(filter(None, why))
                taken = [v for v, kept in zip(some, why, strict=True) if not kept]
                if taken:
                    by_rule[number].update(versions=len(taken), sessions=1)
                yield from taken

        def work() -> tuple[int, int]:
            """Forget what rules let expire. Return the versions looked at, and the sessions left as they are."""
            nonlocal forgotten
            looked, left, batch = 0, 0, list[Version]()
            for counts in (spared, *by_rule):
                counts.clear()
            for history in catalog.lookup.histories():
                if not any(rule.covers(history[0].tenant) for rule, _ in rules):
                    continue
                looked += len(history)
                if not opened.directory.is_whole(history):
                    left += 1
                    continue
                batch += going(history)
                if len(batch) >= FORGET:
                    forgotten += self._forgotten(opened, batch)
                    batch = []
            forgotten += self._forgotten(opened, batch)
            return looked, left

        looked, left = catalog.decide(work)
        if left:
            self.failures.append(
                f"retention: left {counted(left, 'session')} as they are, of which damage may hide versions: "
                "see pltz archive repair"
            )
        each = [{"rule": str(rule), **counts} for (rule, _), counts in zip(rules, by_rule, strict=True)]
        return {"versions": looked, "forgotten": forgotten, "rules": each, **spared, "behind": clock - now}

    def _spared(self, catalog: Catalog, version: Version, policies: list[Policy], now: int) -> str:
        """Return what keeps a version that a rule lets expire: a hold, or the floor of another rule; else nothing."""
        if catalog.holds.on_version(version):
            return "held"
        return "floor" if any(policy.is_floor_of(version, now) for policy in policies) else ""

    def _forgotten(self, opened: opener.OpenArchive, batch: list[Version]) -> int:
        return len(batch) if self.dry_run or not batch else opened.marker.forget(batch)

    def _shrink(self) -> Any:
        if not (budget := seconds(self.config.shrink.budget)):
            return None
        return self._step("shrink", lambda: vars(self.freezer.open().shrink(budget=budget, dry_run=self.dry_run)))

    def _words(self) -> Any:
        if not self.config.words or self.dry_run:
            return None
        index = self.freezer.open().word_index()
        return self._step("words", lambda: {"left_out": index.catch_up(), "bytes": index.size})

    def _collect(self, shrunk: dict[str, Any] | None) -> Any:
        """Free what was forgotten, where the configuration says so; else only what a shorter form took the place of."""
        wanted = self.config.collect
        if wanted is None and not (shrunk and (shrunk["shrunk"] or shrunk["condemned"])):
            return None
        how: dict[str, Any] = {"forgotten": wanted is not None, "dry_run": self.dry_run}
        grace = seconds((wanted or CollectSettings()).grace)
        return self._step("collect", lambda: vars(self.freezer.open().collect(grace=grace, **how)))

    def _verify(self) -> Any:
        return self._step("verify", self._verified) if self.config.verify and not self.dry_run else None

    def _verified(self) -> dict[str, Any]:
        wanted = self.config.verify
        assert wanted is not None
        cold = self.freezer.open()
        parts = max(1, min(wanted.runs, len(cold.parts.catalog.listing.packs) // LEAST_PACKS))
        found = cold.verify(decode=True, part=WorkPart(1 + self.freezer.run % parts, parts))
        return {
            "sound": found.sound,
            "packs": found.packs,
            "records": found.records,
            "decoded": found.decoded,
            "missing_copies": len(found.missing_copies),
            "problems": [vars(problem) for problem in found.problems[:LISTED]],
            "lost": [f"{v.tenant} {v.name} version {v.version}" for v in found.lost[:LISTED]],
        }

    def _watch(self, earlier: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return watched(self._open(), earlier, self.config.watch)

    def _stat(self) -> dict[str, Any]:
        opened = self._open()
        stat = stat_of(opened.catalog, opened.settings.archive)
        names = ("packs", "pack_bytes", "index_bytes", "segments", "sessions", "problems")
        named = {name: getattr(stat, name) for name in names}
        return {"id": stat.archive.hex(), "disk_bytes": disk_bytes(opened.store), **named}

    def _open(self) -> opener.OpenArchive:
        """Open the archive without a bundle."""
        return opener.open_at(self.config.archive, key=self.freezer.secret)

    def _timed(self, name: str, work: Callable[[], Any]) -> Any:
        if self.begin:
            self.begin(name)
        start, spent = time.monotonic(), _cpu_seconds()
        result = work()
        self.steps[name] = {
            "seconds": round(time.monotonic() - start, 3),
            "cpu_seconds": round(_cpu_seconds() - spent, 3),
            "peak_memory_mb": peak_memory(),  # so far
        }
        return result

    def _step(self, name: str, work: Callable[[], Any]) -> Any:
        """Return the result of a step, or None if it failed, which is reported and stops no other step."""
        try:
            return work()
        except (PltzError, OSError) as exc:
            self.failures.append(f"{name}: {exc}")
            return None


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its finished children."""
    return sum(os.times()[:4])


def peak_memory() -> float:
    """Return the peak memory of this process or of its largest child, in MB."""
    most = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(most * (1 if sys.platform == "darwin" else 1024) / 1e6, 1)
