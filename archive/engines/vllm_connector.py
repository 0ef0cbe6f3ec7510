"""A vLLM KV connector that archives sessions when their requests finish: by their token ids, no KV is copied.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "PltzConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "pltz.archive.engines.vllm_connector",
        "kv_connector_extra_config": {"journal": "/var/lib/pltz/journal"}}'

Why at the finish of a request and not at eviction: vLLM tells a connector nothing of evictions, and its events name full blocks only, so the
tail of a session would be lost. At the finish the scheduler has every id of it, and the hook takes them in microseconds. Coming back is a
request with these ids as prompt (`vllm_request.prompt`): vLLM's own prefill and prefix cache do the rest.

Settings (kv_connector_extra_config): `vllm_settings.VllmSettings`. One that is unknown, of another type or without sense keeps vLLM from starting.
A request that cannot be archived is counted by reason and logged with its session and tenant (`refusals.Refusals`).

This module is loaded by vLLM (0.32 was tried) and imports it; nothing else in pltz does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.logger import init_logger

from pltz.archive.engines.vllm_request import evicted, named
from pltz.archive.engines.vllm_settings import VllmSettings
from pltz.models.target.checkpoint import fingerprint_of
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

    from pltz.archive.eviction.hook import EvictionHook

logger = init_logger("vllm.pltz")  # below "vllm", which is what vLLM shows


class Nothing(KVConnectorMetadata):  # type: ignore[misc]  # Any to mypy: vLLM is in an environment of its own
    """The scheduler has nothing to say to the workers."""


class PltzConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # likewise
    """Gives each finished request to the eviction hook. Loads and saves no KV: only its scheduler half does anything."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._hook: EvictionHook | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._settings = VllmSettings.parse(vllm_config.kv_transfer_config.kv_connector_extra_config)
            self._hook = open_hook(self._settings, vllm_config.model_config)

    @property
    def requires_kv_delivery(self) -> bool:
        """No KV is handed on, so nothing is lost by a preemption."""
        return False

    # ---- the scheduler's half

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Archive it. Its blocks are free at once: what is kept are ids."""
        self._archive(request)
        return False, None

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """As `request_finished_all_groups`, where vLLM runs without hybrid memory."""
        self._archive(request)
        return False, None

    def _archive(self, request: Request) -> None:
        """Never raises: the serving loop comes first."""
        if self._hook is None:
            return
        tenant = self._settings.tenant
        try:
            found = evicted(request, tenant=tenant, unnamed=self._settings.unnamed)
        except UsageError as exc:  # what a client wrote
            self._hook.refuse("not valid", *named(request, tenant), str(exc))
        except Exception as exc:  # noqa: BLE001  # a request of a shape this code does not know
            self._hook.refuse("error", *named(request, tenant), f"{type(exc).__name__}: {exc}")
        else:
            if found is not None:
                self._hook.on_evict(**found)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """None from outside: a session comes back as a prompt."""
        return 0, False

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Nothing to do."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Nothing to say."""
        return Nothing()

    def shutdown(self) -> None:
        """Make durable what is under way."""
        if self._hook is not None:
            self._hook.close()
            logger.info("pltz: %s", json.dumps(self._hook.status()))
            self._hook = None

    # ---- the workers' half: no KV moves

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing to do."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to do."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing to do."""

    def wait_for_save(self) -> None:
        """Nothing to do."""


def open_hook(settings: VllmSettings, model: Any) -> EvictionHook:
    """Open the hook that the settings describe, for vLLM's ``model_config``.

    Raises UsageError, ModelError, KeyMismatch, StoreError, OSError: vLLM then does not start.
    """
    from pltz.archive.eviction.hook import EvictionHook

    return EvictionHook.open(
        settings.journal,
        settings.archive,
        tokenizer=_tokenizer(settings.tokenizer, model),
        target=_target(settings.target, model),
        key=settings.secret(),
        worker=settings.worker or ("process" if settings.archive else "none"),
        settings=settings.hook,
    )


def _tokenizer(named: str | None, model: Any) -> Path:
    path = Path(named) if named else Path(model.tokenizer) / "tokenizer.json"
    if not path.is_file():
        raise UsageError(
            f'expected a tokenizer.json at {path}, found none: name it (kv_connector_extra_config "tokenizer")'
        )
    return path


def _target(named: str | None, model: Any) -> bytes | None:
    if named is None:
        return fingerprint_of(model.model) if Path(model.model).is_dir() else None
    return bytes.fromhex(named) or None
