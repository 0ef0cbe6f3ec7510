"""A vLLM KV connector that archives sessions when their requests finish, by token ids. It copies no KV.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "PltzConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "pltz.archive.engines.vllm_connector",
        "kv_connector_extra_config": {"journal": "/var/lib/pltz/journal"}}'

It acts when a request finishes and not at eviction. vLLM tells a connector nothing of evictions, and its
events name full blocks only, so the tail of a session would be lost. When a request finishes, the scheduler
has every id, and the hook takes them in microseconds. A session returns as a request with these ids as prompt
(`vllm_request.VllmEngine`). vLLM's own prefill and prefix cache do the rest.

Settings (kv_connector_extra_config): `vllm_settings.VllmSettings`. An unknown setting, a wrong type or a bad
value keeps vLLM from starting. A request that cannot be archived is counted by reason, and logged with its
session and tenant (`refusals.Refusals`).

vLLM (tested: 0.32) loads this module, which imports vLLM. Nothing else in pltz does.
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

from pltz.archive.engines.vllm_request import VllmEngine, named
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

logger = init_logger("vllm.pltz")  # below "vllm", which vLLM shows


class Nothing(KVConnectorMetadata):  # type: ignore[misc]  # Any to mypy: vLLM is in an environment of its own
    """The metadata from the scheduler to the workers, which is empty."""


class PltzConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # likewise
    """A connector that gives each finished request to the eviction hook.

    It neither loads nor saves KV. Only its scheduler half does anything.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._hook: EvictionHook | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._settings = VllmSettings.parse(vllm_config.kv_transfer_config.kv_connector_extra_config)
            self._engine = VllmEngine(unnamed=self._settings.unnamed)
            self._hook = open_hook(self._settings, vllm_config.model_config)

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
        """Return no tokens from outside: a session returns as a prompt."""
        return 0, False

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Do nothing."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Return empty metadata."""
        return Nothing()

    def shutdown(self) -> None:
        """Make evictions under way durable and close the hook."""
        if self._hook is not None:
            self._hook.close()
            logger.info("pltz: %s", json.dumps(self._hook.status()))
            self._hook = None

    # ---- the workers' half: no KV moves

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def wait_for_save(self) -> None:
        """Do nothing."""


def open_hook(settings: VllmSettings, model: Any) -> EvictionHook:
    """Open the hook that the settings describe, for vLLM's ``model_config``.

    Raises UsageError, ModelError, KeyMismatch, StoreError and OSError. vLLM does not start then.
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
