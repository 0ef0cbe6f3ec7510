"""A vLLM KV connector that archives sessions by their token ids.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "PltzConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "pltz.serving.engines.vllm_connector",
        "kv_connector_extra_config": {"journal": "/var/lib/pltz/journal"}}'

It acts when a request finishes and not at eviction. vLLM tells a connector nothing of evictions. Its events name
full blocks only, so the tail of a session would be lost. When a request finishes, the scheduler
has every id, and the hook takes them in microseconds. A session returns as a request with these ids as prompt
(`vllm_request.VllmEngine`). vLLM's own prefill and prefix cache do the rest.

It moves no KV. LMCache or vLLM's OffloadingConnector beside it keep KV warm (docs/vllm.md).

Settings (kv_connector_extra_config): `vllm_settings.VllmSettings`. An unknown setting, a wrong type or a bad
value keeps vLLM from starting. A request that cannot be archived is counted by reason, and logged with its
session and tenant (`refusals.Refusals`).

The hook's metrics stand in vLLM's own /metrics as vllm:pltz_hook_... (`PltzPromMetrics`). They are read in a thread
and travel with the scheduler's statistics, so they are as new as its last step.

vLLM (tested: 0.32) loads this module, which imports vLLM. Nothing else in pltz does.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.logger import init_logger

from pltz.models import fingerprint_of, resolve, tokenizer_json_of
from pltz.plt_codec import ModelError, UsageError
from pltz.serving.engines.vllm_request import VllmEngine, named
from pltz.serving.engines.vllm_settings import VllmSettings
from pltz.serving.eviction.metrics import COUNTER_TEXTS, GAUGE_TEXTS, FigureWatch

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

    from pltz.serving.eviction.hook import EvictionHook

logger = init_logger("vllm.pltz")  # below "vllm", which vLLM shows
NAME = "vllm:pltz_hook_"  # vLLM drops metrics with its name from the registry before it makes new ones


class PltzStats(KVConnectorStats):  # type: ignore[misc]  # Any to mypy: vLLM is in an environment of its own
    """The figures of the hook on their way from the scheduler to the metrics. Counters hold sums since the start."""

    def reset(self) -> None:
        """Drop the figures."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Take later figures over."""
        self.data = self.data | other.data
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return the figures of vLLM's log line."""
        found = self.data.get("figures", {})
        shown = {f"pltz {name}": found.get(name, 0) for name in ("accepted", "archived", "journal_waiting_bytes")}
        shown["pltz refused"] = sum(self.data.get("refused", {}).values())
        return shown

    def is_empty(self) -> bool:
        """Return whether there is no figure."""
        return not self.data


class PltzPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]  # likewise
    """The hook's metrics beside vLLM's, with its labels. Made in the process of the API server."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._labels = per_engine_labelvalues
        self._gauges = {name: self._gauge_cls(NAME + name, text, labelnames) for name, text in GAUGE_TEXTS.items()}
        counters = COUNTER_TEXTS.items()
        self._counters = {name: self._counter_cls(NAME + name, text, labelnames) for name, text in counters}
        self._refused = self._counter_cls(f"{NAME}refused", "Evictions not taken.", [*labelnames, "reason"])
        self._sums: dict[tuple[int, str, str], float] = {}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Show the figures of an engine."""
        labels = self._labels[engine_idx]
        for name, value in transfer_stats_data.get("figures", {}).items():
            if name in self._gauges:
                self._gauges[name].labels(*labels).set(value)
            elif name in self._counters:
                self._count(self._counters[name].labels(*labels), (engine_idx, name, ""), value)
        for reason, value in transfer_stats_data.get("refused", {}).items():
            self._count(self._refused.labels(*labels, reason), (engine_idx, "refused", reason), value)

    def _count(self, counter: Any, key: tuple[int, str, str], value: float) -> None:
        """Let a counter reach a sum. A smaller sum than before is that of a hook that was opened anew."""
        before = self._sums.get(key, 0.0)
        counter.inc(value - before if value >= before else value)
        self._sums[key] = value


class PltzConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # likewise
    """A connector that gives each finished request to the eviction hook. Only its scheduler half does anything."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._hook: EvictionHook | None = None
        self._watch: FigureWatch | None = None
        self._settings = VllmSettings.parse(vllm_config.kv_transfer_config.kv_connector_extra_config)
        if role == KVConnectorRole.SCHEDULER:
            self._engine = VllmEngine(unnamed=self._settings.unnamed)
            self._hook = open_hook(self._settings, vllm_config.model_config)
            self._watch = FigureWatch(self._hook)

    @property
    def requires_kv_delivery(self) -> bool:
        """Return False: no KV is handed on, so a preemption loses nothing."""
        return False

    # ---- the scheduler's half

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Archive a request. Its blocks are free at once, since only ids are kept."""
        self._archive(request)
        return False, None

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Archive a request as `request_finished_all_groups` does, where vLLM runs without hybrid memory."""
        self._archive(request)
        return False, None

    def _archive(self, request: Request) -> None:
        """Hand a request to the hook. Never raises: the serving loop comes first."""
        if self._hook is None:
            return
        tenant = self._settings.tenant
        try:
            found = self._engine.evicted(request, tenant=tenant)
        except UsageError as exc:  # from values that a client wrote
            self._hook.refuse("not valid", *named(request, tenant), str(exc))
        except Exception as exc:  # noqa: BLE001  # a request of a shape this code does not know
            self._hook.refuse("error", *named(request, tenant), f"{type(exc).__name__}: {exc}")
        else:
            if found is not None:
                self._hook.on_evict(found)

    # ---- what moves KV: nothing here

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        """Return that no token of a prompt comes from here."""
        return 0, False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Do nothing."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Return no plan."""
        return KVConnectorMetadata()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def wait_for_save(self) -> None:
        """Do nothing."""

    # ---- metrics

    def get_kv_connector_stats(self) -> PltzStats | None:
        """Return the figures of this half where they changed. Never waits."""
        found = self._watch.changed() if self._watch else None
        return PltzStats(data=dict(found)) if found else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> PltzStats:
        """Return figures that came from the scheduler."""
        return PltzStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> PltzPromMetrics:
        """Return the metrics that the API server shows."""
        return PltzPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Make evictions under way durable, and end the hook."""
        if self._watch is not None:
            self._watch.close()
        if self._hook is not None:
            self._hook.close()
            logger.info("pltz: %s", json.dumps(self._hook.status()))
            self._hook = None


def open_hook(settings: VllmSettings, model: Any) -> EvictionHook:
    """Open the hook that the settings describe, for vLLM's ``model_config``.

    Raises UsageError, ModelError, KeyMismatch, StoreError and OSError. vLLM does not start then.
    """
    from pltz.serving.eviction.hook import EvictionHook

    return EvictionHook.open(
        settings.journal,
        settings.archive,
        tokenizer=_tokenizer(settings.tokenizer, model),
        target=_target(settings.target, model),
        key=settings.secret(),
        settings=settings.hook,
    )


def _tokenizer(named: str | None, model: Any) -> Path | bytes:
    """Return the tokenizer that is named, or that of the model's tokenizer: a folder or a hub name."""
    if named is None:
        try:
            return tokenizer_json_of(resolve(model.tokenizer, revision=getattr(model, "tokenizer_revision", None)))
        except ModelError as exc:
            raise UsageError(f'{exc}; name a tokenizer.json (kv_connector_extra_config "tokenizer")') from exc
    if not Path(named).is_file():
        raise UsageError(f'expected a tokenizer.json at {named}, found none (kv_connector_extra_config "tokenizer")')
    return Path(named)


def _target(named: str | None, model: Any) -> bytes | None:
    """Return the fingerprint that is named, or that of the model: a folder or a hub name. None: not known."""
    if named is not None:
        return bytes.fromhex(named) or None
    try:
        return fingerprint_of(model.model, revision=getattr(model, "revision", None))
    except ModelError as exc:
        logger.warning("pltz: the weights are not known, so a thaw needs any_target: %s", exc)
        return None


# MultiConnector looks the class of each connector's figures up by its name, and knows registered ones only.
with suppress(ValueError):  # registered by another import
    KVConnectorFactory.register_connector("PltzConnector", __name__, "PltzConnector")
