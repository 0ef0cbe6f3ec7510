"""Metrics of a store of KV for prometheus_client, collected on request: ``REGISTRY.register(store.metrics())``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pltz.plt_codec import UsageError

COUNTERS = {  # of `Stats`
    "hit_tokens": "Ids whose KV was there.",
    "miss_tokens": "Ids asked for whose KV was not.",
    "inserted": "New blocks in memory.",
    "spilled": "Blocks moved to host memory.",
    "warmed": "Blocks moved back to the device.",
    "dropped": "Blocks that left memory, and that no file has.",
    "failed": "Blocks not written for an error that nobody expected.",
}
TIER_COUNTERS = {  # of `TierStats`
    "hit_tokens": "Ids whose KV was in a tier.",
    "damaged": "Files that failed a check.",
    "failed": "Reads and writes that the machine refused.",
}
TIER_GAUGES = {"used": "Bytes in a tier.", "budget": "Bytes that a tier may take.", "blocks": "Blocks in a tier."}


class StoreCollector:
    """A collector of the `Stats` that ``stats`` returns. Raises UsageError without prometheus_client."""

    def __init__(self, stats: Callable[[], Any]) -> None:
        try:
            from prometheus_client import core
        except ImportError as exc:
            raise UsageError("metrics need prometheus_client: pip install pltz[serve]") from exc
        self._stats, self._core = stats, core

    def collect(self) -> Iterator[Any]:
        """Yield the families of metrics, all named pltz_kv_..."""
        stats = self._stats()
        for name, text in COUNTERS.items():
            yield self._core.CounterMetricFamily(f"pltz_kv_{name}", text, value=getattr(stats, name))
        counters = ((name, text, self._core.CounterMetricFamily) for name, text in TIER_COUNTERS.items())
        gauges = ((name, text, self._core.GaugeMetricFamily) for name, text in TIER_GAUGES.items())
        for name, text, family in (*counters, *gauges):
            found = family(f"pltz_kv_tier_{name}", text, labels=["tier"])
            for tier, figures in stats.tiers.items():
                found.add_metric([tier], getattr(figures, name))
            yield found
