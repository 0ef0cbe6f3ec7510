"""Metrics of the eviction hook for prometheus_client, collected on request, so the serving loop pays nothing.

    from prometheus_client import REGISTRY, start_http_server
    REGISTRY.register(hook.metrics())
    start_http_server(9095)

An engine with metrics of its own takes `figures` instead, which `FigureWatch` reads in a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

from pltz.plt_codec import UsageError
from pltz.serving.eviction.eviction_queue import LATENCIES, Counts

GAUGES = (
    ("queue", "Evictions in memory, not yet in the journal.", "queued"),
    ("memory_bytes", "Memory that evictions take until they are durable.", "memory_bytes"),
    ("lag_seconds", "Time since the eviction that was archived last, while others wait.", "lag_seconds"),
)
COUNTERS = (
    ("accepted", "Evictions taken.", "accepted"),
    ("durable", "Evictions made durable in the journal.", "durable"),
    ("dropped", "Evictions dropped from memory because it was full.", "dropped"),
    ("write_failures", "Writes of the journal that failed.", "failures"),
)
WORKER = (
    ("archived", "Evictions that became a version in the archive.", "stored"),
    ("unchanged", "Evictions that the archive had already.", "unchanged"),
    ("erased", "Evictions of sessions that were erased, dropped.", "erased"),
    ("rejected", "Evictions that the archive cannot take, laid aside.", "rejected"),
    ("archived_tokens", "Tokens archived.", "tokens"),
    ("archived_raw_bytes", "Bytes of the ids archived, 4 each.", "raw"),
    ("archived_frozen_bytes", "Bytes they take in the archive, new segments alone.", "frozen"),
    ("damaged_bytes", "Bytes of the journal that did not hold, laid aside.", "damaged"),
    ("lost_segments", "Files of the journal that are gone although no worker deleted them.", "lost"),
    ("worker_restarts", "Times the worker process was started again.", "restarts"),
)
JOURNAL = (
    ("journal_bytes", "Bytes of the journal.", "bytes"),
    ("journal_waiting_bytes", "Bytes of the journal that are not archived yet.", "waiting"),
    ("journal_segments", "Files of the journal.", "segments"),
)
STATES = (
    ("ratio", "Bytes of ids archived for each frozen byte."),
    ("worker_up", "Whether the worker runs."),
    ("failing", "Whether the journal cannot be written now."),
    ("worker_failing", "Whether the worker's last pass failed."),
)
GAUGE_TEXTS = {name: text for name, text, _ in (*GAUGES, *JOURNAL)} | dict(STATES)
COUNTER_TEXTS = {name: text for name, text, _ in (*COUNTERS, *WORKER)}
INTERVAL = 1.0  # seconds between two readings of a `FigureWatch`


def figures(status: dict[str, Any]) -> dict[str, float]:
    """Return the gauges and counters in the status of a hook by their names, without pltz_hook_."""
    worker, journal = status["worker"], status["journal"]
    found = {name: status[key] for name, _, key in (*GAUGES, *COUNTERS)}
    found |= {name: worker.get(key, 0) for name, _, key in WORKER}
    found |= {name: journal.get(key, 0) for name, _, key in JOURNAL}
    frozen = worker.get("frozen", 0)
    found["ratio"] = worker.get("raw", 0) / frozen if frozen else 0
    found["worker_up"] = int(worker.get("alive", False))
    found["failing"], found["worker_failing"] = int(bool(status["failure"])), int(bool(worker.get("failure")))
    return found


class Watched(Protocol):
    """The part of an `EvictionHook` that its metrics read."""

    @property
    def counts(self) -> Counts:
        """Return what became of the evictions so far."""

    def status(self) -> dict[str, Any]:
        """Return the counts with those of worker and journal. Raises OSError."""


class FigureWatch:
    """Reads the figures of a hook in a thread, so that the serving loop never waits for the journal's disk."""

    def __init__(self, hook: Watched, interval: float = INTERVAL) -> None:
        self._hook, self._interval = hook, interval
        self._last: dict[str, Any] | None = None
        self._told: dict[str, Any] | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._read, name="pltz figures", daemon=True).start()

    def changed(self) -> dict[str, Any] | None:
        """Return figures and refusals by reason where they are others than at the last call, else None."""
        last = self._last
        if last is None or last == self._told:
            return None
        self._told = last
        return last

    def close(self) -> None:
        """End the thread."""
        self._ended.set()

    def _read(self) -> None:
        while not self._ended.is_set():
            with suppress(OSError):  # the next reading may succeed
                status = self._hook.status()
                self._last = {"figures": figures(status), "refused": status["refused"]}
            self._ended.wait(self._interval)


class HookCollector:
    """A collector for one hook and one registry. Raises UsageError without prometheus_client."""

    def __init__(self, hook: Watched) -> None:
        try:
            from prometheus_client import core
        except ImportError as exc:
            raise UsageError("metrics need prometheus_client: pip install pltz[serve]") from exc
        self._hook, self._core = hook, core

    def collect(self) -> Iterator[Any]:
        """Yield the families of metrics, all named pltz_hook_..."""
        status = self._hook.status()
        found = figures(status)
        for name, text in GAUGE_TEXTS.items():
            yield self._core.GaugeMetricFamily(f"pltz_hook_{name}", text, value=found[name])
        for name, text in COUNTER_TEXTS.items():
            yield self._core.CounterMetricFamily(f"pltz_hook_{name}", text, value=found[name])
        refused = self._core.CounterMetricFamily("pltz_hook_refused", "Evictions not taken.", labels=["reason"])
        for reason, count in status["refused"].items():
            refused.add_metric([reason], count)
        yield refused
        yield self._latency()

    def _latency(self) -> Any:
        counts = self._hook.counts
        total, buckets = 0, []
        for end, count in zip([*map(str, LATENCIES), "+Inf"], counts.latency, strict=True):
            total += count
            buckets.append((end, total))
        return self._core.HistogramMetricFamily(
            "pltz_hook_durable_seconds",
            "Time from an eviction until it is durable.",
            buckets=buckets,
            sum_value=counts.latency_sum,
        )
