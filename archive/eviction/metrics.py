"""Metrics of the eviction hook for prometheus_client, collected on request, so the serving loop pays nothing.

from prometheus_client import REGISTRY, start_http_server
REGISTRY.register(hook.metrics())
start_http_server(9095)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.eviction.hook import EvictionHook

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
    ("rejected", "Evictions that the archive cannot take, laid aside.", "rejected"),
    ("archived_tokens", "Tokens archived.", "tokens"),
    ("archived_raw_bytes", "Bytes of the ids archived, 4 each.", "raw"),
    ("archived_frozen_bytes", "Bytes they take in the archive, new segments alone.", "frozen"),
    ("damaged_bytes", "Bytes of the journal that did not hold, laid aside.", "damaged"),
    ("worker_restarts", "Times the worker process was started again.", "restarts"),
)
JOURNAL = (
    ("journal_bytes", "Bytes of the journal.", "bytes"),
    ("journal_waiting_bytes", "Bytes of the journal that are not archived yet.", "waiting"),
    ("journal_segments", "Files of the journal.", "segments"),
)


class HookCollector:
    """A collector for one hook and one registry. Raises UsageError without prometheus_client."""

    def __init__(self, hook: EvictionHook) -> None:
        try:
            from prometheus_client import core
        except ImportError as exc:
            raise UsageError("metrics need prometheus_client: pip install pltz[serve]") from exc
        self._hook, self._core = hook, core

    def collect(self) -> Iterator[Any]:
        """Yield the families of metrics, all named pltz_hook_..."""
        status = self._hook.status()
        worker, journal = status["worker"], status["journal"]
        for name, text, key in GAUGES:
            yield self._gauge(name, text, status[key])
        for name, text, key in COUNTERS:
            yield self._counter(name, text, status[key])
        for name, text, key in WORKER:
            yield self._counter(name, text, worker.get(key, 0))
        for name, text, key in JOURNAL:
            yield self._gauge(name, text, journal.get(key, 0))
        frozen = worker.get("frozen", 0)
        yield self._gauge(
            "ratio",
            "Bytes of ids archived for each frozen byte.",
            worker.get("raw", 0) / frozen if frozen else 0,
        )
        yield self._gauge("worker_up", "Whether the worker runs.", int(worker.get("alive", False)))
        yield self._gauge(
            "failing", "Whether the journal cannot be written now.", int(bool(status["failure"]))
        )
        yield self._gauge(
            "worker_failing", "Whether the worker's last pass failed.", int(bool(worker.get("failure")))
        )
        refused = self._core.CounterMetricFamily(
            "pltz_hook_refused", "Evictions not taken.", labels=["reason"]
        )
        for reason, count in status["refused"].items():
            refused.add_metric([reason], count)
        yield refused
        yield self._latency()

    def _gauge(self, name: str, text: str, value: float) -> Any:
        return self._core.GaugeMetricFamily(f"pltz_hook_{name}", text, value=value)

    def _counter(self, name: str, text: str, value: float) -> Any:
        return self._core.CounterMetricFamily(f"pltz_hook_{name}", text, value=value)

    def _latency(self) -> Any:
        from pltz.archive.eviction.eviction_queue import LATENCIES

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
