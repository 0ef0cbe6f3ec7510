"""A vLLM KV connector that archives sessions by their token ids, and keeps blocks of their KV warm if asked to.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "PltzConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "pltz.serving.engines.vllm_connector",
        "kv_connector_extra_config": {"journal": "/var/lib/pltz/journal"}}'

It acts when a request finishes and not at eviction. vLLM tells a connector nothing of evictions. Its events name
full blocks only, so the tail of a session would be lost. When a request finishes, the scheduler
has every id, and the hook takes them in microseconds. A session returns as a request with these ids as prompt
(`vllm_request.VllmEngine`). vLLM's own prefill and prefix cache do the rest.

With a folder for warm KV (``warm``) full blocks are kept on local disk as they are computed, and offered to requests
that begin with the same tokens (`vllm_warm`). So a session that returns is not prefilled again.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.logger import init_logger

from pltz.models.target.checkpoint import fingerprint_of, resolve, tokenizer_json_of
from pltz.plt_codec.errors import ModelError, UsageError
from pltz.serving.engines.cache_rows import CacheRows
from pltz.serving.engines.pages import space_of
from pltz.serving.engines.vllm_request import VllmEngine, named
from pltz.serving.engines.vllm_settings import VllmSettings
from pltz.serving.engines.vllm_warm import (
    COUNTS,
    WarmPlace,
    WarmPlan,
    WarmScheduler,
    WarmWorker,
    arrangement_of,
)
from pltz.serving.eviction.metrics import COUNTER_TEXTS, GAUGE_TEXTS, FigureWatch

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from pltz.serving.eviction.hook import EvictionHook

logger = init_logger("vllm.pltz")  # below "vllm", which vLLM shows
WARM_TEXTS = {
    "warm_offered_tokens": "Tokens of prompts that came from warm KV.",
    "warm_saved_pages": "Blocks of KV that were written.",
    "warm_loaded_pages": "Blocks of KV that were loaded.",
    "warm_failed_pages": "Blocks of KV that could not be loaded, and were computed again.",
    "warm_dropped_pages": "Blocks of KV that were not written: the queue or the folder was full, or the step failed.",
}
NAME = "vllm:pltz_hook_"  # vLLM drops metrics with its name from the registry before it makes new ones


class StepPlan(KVConnectorMetadata):  # type: ignore[misc]  # Any to mypy: vLLM is in an environment of its own
    """The metadata from the scheduler to the workers: the plan of a step; None where no KV is kept warm."""

    def __init__(self, warm: WarmPlan | None = None) -> None:
        self.warm = warm


@dataclass
class StepDone(KVConnectorWorkerMetadata):  # type: ignore[misc]  # likewise
    """The metadata from the workers to the scheduler: the step that they ran."""

    step: int

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Return that of all workers."""
        return self


class PltzStats(KVConnectorStats):  # type: ignore[misc]  # likewise
    """The figures of the hook on their way from the scheduler to the metrics. Counters hold sums since the start."""

    def reset(self) -> None:
        """Drop the figures."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Take later figures over. Those of warm KV stand beside each other, by worker."""
        warm = self.data.get("warm", {}) | other.data.get("warm", {})
        self.data = self.data | other.data | ({"warm": warm} if warm else {})
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return the figures of vLLM's log line."""
        found = self.data.get("figures", {})
        shown = {f"pltz {name}": found.get(name, 0) for name in ("accepted", "archived", "journal_waiting_bytes")}
        shown["pltz refused"] = sum(self.data.get("refused", {}).values())
        for counts in self.data.get("warm", {}).values():
            shown |= {f"pltz {name}": shown.get(f"pltz {name}", 0) + count for name, count in counts.items()}
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
        self._warm = {
            name: self._counter_cls(f"vllm:pltz_{name}", WARM_TEXTS[name], labelnames) for name in COUNTS
        }
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
        for rank, counts in transfer_stats_data.get("warm", {}).items():
            for name, value in counts.items():
                self._count(self._warm[name].labels(*labels), (engine_idx, name, rank), value)

    def _count(self, counter: Any, key: tuple[int, str, str], value: float) -> None:
        """Let a counter reach a sum. A smaller sum than before is that of a hook that was opened anew."""
        before = self._sums.get(key, 0.0)
        counter.inc(value - before if value >= before else value)
        self._sums[key] = value


class PltzConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # likewise
    """A connector that gives each finished request to the eviction hook.

    Without a folder for warm KV it neither loads nor saves any, and only its scheduler half does anything.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._hook: EvictionHook | None = None
        self._watch: FigureWatch | None = None
        self._scheduler: WarmScheduler | None = None
        self._worker: WarmWorker | None = None
        self._told: dict[str, int] = {}
        self._settings = VllmSettings.parse(vllm_config.kv_transfer_config.kv_connector_extra_config)
        if role == KVConnectorRole.SCHEDULER:
            self._engine = VllmEngine(unnamed=self._settings.unnamed)
            if self._settings.warm is not None:
                self._scheduler = open_warm(self._settings, vllm_config, kv_cache_config)
            self._hook = open_hook(self._settings, vllm_config.model_config)
            self._watch = FigureWatch(self._hook)
        else:
            self._config, self._cache = vllm_config, kv_cache_config

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

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return how many tokens of a prompt are warm, and whether steps of others run while they are loaded."""
        tokens = self._scheduler.matched(request, num_computed_tokens) if self._scheduler else 0
        return tokens, tokens > 0

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Plan to load warm tokens into the blocks that they were given."""
        if self._scheduler is not None and num_external_tokens:
            self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Return the plan of a step."""
        if self._scheduler is None:
            return StepPlan()
        for request_id in scheduler_output.finished_req_ids:
            self._scheduler.finished(request_id)
        blocks = scheduler_output.kv_connector_block_state.get_block_ids
        return StepPlan(self._scheduler.plan(scheduler_output.num_scheduled_tokens, blocks))

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Learn which step the workers ran, and whether all it used had been loaded."""
        if self._scheduler is not None:
            done = connector_output.kv_connector_worker_meta
            invalid = set(connector_output.invalid_block_ids or ())
            if getattr(connector_output, "failed_recving", None):  # of another connector, which names no blocks
                invalid.add(-1)
            arrived = connector_output.finished_recving or ()
            self._scheduler.seen(done.step if isinstance(done, StepDone) else None, invalid, arrived)

    def reset_cache(self) -> bool | None:
        """Remove the warm KV. None: none is kept."""
        if self._scheduler is None:
            return None
        self._scheduler.clear()
        return True

    # ---- metrics

    def get_kv_connector_stats(self) -> PltzStats | None:
        """Return the figures of this half where they changed. Never waits."""
        found = dict((self._watch.changed() if self._watch else None) or {})
        counts, who = {}, ""
        if self._worker is not None:
            counts, who = dict(self._worker.counts), str(self._config.parallel_config.rank)
        elif self._scheduler is not None:
            counts, who = {"warm_offered_tokens": self._scheduler.offered}, "scheduler"
        if counts != self._told:
            self._told = counts
            found["warm"] = {who: counts}
        return PltzStats(data=found) if found else None

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
        """Make evictions under way durable, write warm KV that waits, and close both."""
        if self._worker is not None:
            self._worker.close()
            logger.info("pltz: %s", json.dumps(self._worker.counts))
            self._worker = None
        if self._watch is not None:
            self._watch.close()
        if self._hook is not None:
            self._hook.close()
            logger.info("pltz: %s", json.dumps(self._hook.status()))
            self._hook = None

    # ---- the workers' half

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Take the cache whose blocks are kept. Raises UsageError for one that cannot be."""
        if self._settings.warm is None or not hasattr(self, "_cache"):
            return
        names = self._cache.kv_cache_groups[0].layer_names
        if missing := sorted(set(names) - kv_caches.keys()):
            raise UsageError(f"warm KV needs the cache of every layer, and that of {missing[0]} is missing")
        layers = getattr(self._config.compilation_config, "static_forward_context", {})
        kernels = [str(getattr(layers.get(name), "attn_backend", "")) for name in names]
        rows = CacheRows({name: kv_caches[name] for name in names}, self._cache.num_blocks)
        about = json.dumps([kernels, getattr(self._cache, "kv_cache_layout", None)])
        self._worker = WarmWorker(self._config.parallel_config.rank, rows, about)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin to load the blocks of the step's plan."""
        if self._worker is not None and (plan := self._plan()) is not None:
            self._worker.load(plan)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: a request that waits for its blocks is in no step."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: all layers are saved behind the step."""

    def wait_for_save(self) -> None:
        """Copy the blocks of the step's plan to host memory."""
        if self._worker is not None and (plan := self._plan()) is not None:
            self._worker.save(plan)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Return no request that was sent, and those whose blocks were loaded."""
        return None, (self._worker.arrived() if self._worker is not None else set()) or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks that vLLM must compute again."""
        return self._worker.failed() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Tell the scheduler which step this was."""
        plan = self._plan() if self._worker is not None else None
        return None if plan is None else StepDone(plan.step)

    def _plan(self) -> WarmPlan | None:
        found: WarmPlan | None = self._get_connector_metadata().warm if self.has_connector_metadata() else None
        return found


def open_warm(settings: VllmSettings, config: Any, cache: Any) -> WarmScheduler:
    """Return the scheduler's half of warm KV.

    Raises UsageError and ModelError. vLLM does not start then.
    """
    if config.kv_transfer_config.kv_load_failure_policy != "recompute":
        raise UsageError(
            'warm KV that is damaged must be computed again: add "kv_load_failure_policy": "recompute" to '
            "--kv-transfer-config, beside kv_connector, and beside MultiConnector"
        )
    target = _target(settings.target, config.model_config)
    if target is None:
        raise ModelError('warm KV needs the weights to be known: name them (kv_connector_extra_config "target")')
    import vllm

    space = space_of("vllm", target, arrangement_of(config, cache, str(vllm.__version__)))
    assert settings.warm is not None and settings.warm_bytes is not None
    place = WarmPlace(settings.warm, settings.warm_bytes, settings.warm_queue, space)
    return WarmScheduler(place, cache.kv_cache_groups[0].kv_cache_spec.block_size, config.parallel_config.world_size)


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
        worker=settings.worker or ("process" if settings.archive else "none"),
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
