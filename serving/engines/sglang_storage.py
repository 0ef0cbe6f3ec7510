"""A storage backend of SGLang's HiCache: pages of KV on local disk, exact or a miss, never those of other weights.

    sglang serve --model-path MODEL --enable-hierarchical-cache --hicache-storage-backend dynamic
        --hicache-storage-backend-extra-config '{"backend_name": "pltz",
            "module_path": "pltz.serving.engines.sglang_storage", "class_name": "PltzHiCache",
            "folder": "/nvme/pages", "bytes": 1099511627776}'

HiCache keeps KV on the device (L1), in host memory (L2), and in a storage (L3), which this is. It names a page by a
hash of its tokens and of all before it. The space of the pages covers weights, type, layout, rank and sizes
(`pages.space_of`). A page is compared with its checksum before SGLang sees it (`page_folder.PageFolder`).

Settings: `sglang_settings.SglangSettings`. SGLang (tested: 0.5.23) loads this module, which imports SGLang. Nothing
else in pltz does. What cannot be read or written is a miss, and no error.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolTransferResult

from pltz.kv.store.page_folder import PageFolder
from pltz.models.target.checkpoint import fingerprint_of
from pltz.plt_codec.errors import ModelError, UsageError
from pltz.serving.engines.pages import space_of
from pltz.serving.engines.sglang_settings import WHERE, SglangSettings

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import (
        HiCacheStorageConfig,
        HiCacheStorageExtraInfo,
        PoolTransfer,
    )
    from sglang.srt.mem_cache.pool_host import HostKVCache

logger = logging.getLogger("sglang.pltz")
FACTS = ("layout", "page_size", "layer_num", "head_num", "head_dim", "v_head_dim", "kv_cache_dim", "size_per_token")
STATES = ("dtype", "conv_dtype", "temporal_dtype", "num_mamba_layers", "conv_state_shapes", "temporal_state_shape")
UNTOLD = ("torch.uint8", "torch.int8")  # a pool of these keeps numbers of a type that it does not name


class PltzHiCache(HiCacheStorage):  # type: ignore[misc]  # Any to mypy: SGLang is in an environment of its own
    """Pages of KV in a folder, for one rank of a server.

    Raises UsageError for settings that cannot be, and ModelError where the weights are not known. SGLang does not start
    then.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Any = None) -> None:
        self._config = storage_config
        self._settings = SglangSettings.parse(storage_config.extra_config)
        if getattr(storage_config, "should_split_heads", False):
            raise UsageError(f"pages of split heads are not kept: leave tp_lcm_size out of {WHERE}")
        self._target = self._fingerprint()
        self._pages: PageFolder | None = None
        self._forms: dict[str, str] = {}  # of the pools beside the KV
        self._missed: set[str] = set()  # policies that the log has told

    def _fingerprint(self) -> bytes:
        if self._settings.target is not None:
            return bytes.fromhex(self._settings.target)
        try:
            return fingerprint_of(self._config.model_name or "")
        except ModelError as exc:
            raise ModelError(f"{exc}; name the weights by their fingerprint ({WHERE}: target)") from exc

    def register_mem_pool_host(self, mem_pool_host: HostKVCache) -> None:
        """Open the folder for the pages of a pool.

        Raises UsageError where the folder cannot be made, or the type of the KV is not known.
        """
        super().register_mem_pool_host(mem_pool_host)
        dtype = str(mem_pool_host.dtype)
        if dtype in UNTOLD and not self._settings.kv_dtype:
            raise UsageError(f'the pool keeps {dtype}: name the type of its KV ({WHERE}: "kv_dtype": "fp8_e4m3")')
        config, ranks = self._config, ["pp", "attn_cp", "dcp"]
        if not config.is_mla_model:  # else all ranks have the same pages, and the first one writes them
            ranks.append("tp")
        arrangement = {
            "model": config.model_name,
            "mla": config.is_mla_model,
            "dtype": [dtype, self._settings.kv_dtype],
            "variant": self._settings.variant,
            "ranks": {f"{r}_{w}": getattr(config, f"{r}_{w}", 0) for r in ranks for w in ("rank", "size")},
            "pool": _form(mem_pool_host, FACTS),
        }
        space = space_of("sglang", self._target, arrangement)
        self._pages = PageFolder(self._settings.folder, space, self._settings.bytes)

    def register_mem_host_pool_v2(self, host_pool: HostKVCache, host_pool_name: Any) -> None:
        """Take a pool beside the KV."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._forms[host_pool_name] = str(_form(host_pool, (*FACTS, *STATES)))

    # ---- single pages, and lists of them

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        """Return ``target_location``, filled with a page, or None."""
        if target_location is None:
            return None
        return target_location if self._read(key, target_location) else None

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        """Return for each page what `get` does."""
        places = target_locations if target_locations is not None else [None] * len(keys)
        return [self.get(key, place) for key, place in zip(keys, places, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Keep a page. Returns whether it is kept now."""
        return value is not None and self._write(key, value)

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Keep pages, the first ones first. Returns whether all are kept now."""
        return values is not None and all(self._write(key, value) for key, value in zip(keys, values, strict=True))

    def exists(self, key: str) -> bool:
        """Return whether a page is there. Its bytes are checked when it is read."""
        return self._pages is not None and self._pages.has(_name(key))

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """Return how many pages are there, up to the first one that is missing."""
        return next((n for n, key in enumerate(keys) if not self.exists(key)), len(keys))

    # ---- pages of the registered pool, by their place

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Read pages into the pool. Returns for each whether it is there now."""
        return self._move(self.mem_pool_host, keys, host_indices, "", self._load)

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Keep pages of the pool. Returns for each whether it is kept now."""
        return self._move(self.mem_pool_host, keys, host_indices, "", self._store)

    # ---- pages of several pools: SWA, Mamba and others beside the KV

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """Return which beginnings of the sequence are there in all pools.

        Pages of a pool by a policy that this backend does not know are a miss, which the log tells once.
        """
        kv = self.batch_exists(keys)
        hits: dict[str, int] = {"kv": kv} if kv else {}
        restorable = list(range(1, kv + 1))
        for transfer in pool_transfers or []:
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                window = kv or 1
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                window = max(1, len(transfer.keys or ()))
            else:
                self._miss_policy(transfer.hit_policy)
                restorable = []
                continue
            there = [self.exists(self._of_pool(key, transfer.name)) for key in keys[:kv]]
            ends = {end for end in range(1, kv + 1) if all(there[max(0, end - window) : end])}
            if ends:
                hits[transfer.name] = max(ends)
            restorable = [end for end in restorable if end in ends]
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Read pages into their pools. Returns for each whether it is there now."""
        return {one.name: self._move_v2(one, self._load) for one in transfers}

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Keep pages of their pools. Returns for each whether it is kept now."""
        return {one.name: self._move_v2(one, self._store) for one in transfers}

    def clear(self) -> None:
        """Remove the pages of this rank."""
        if self._pages is not None:
            self._pages.clear()

    def close(self) -> None:
        """Say in the log how many pages were written and refused."""
        if (pages := self._pages) is not None:
            counts = ("written", "evicted", "damaged", "failed")
            logger.info("pltz: %s", {name: getattr(pages, name) for name in counts})
            self._pages = None

    # ---- the steps

    def _move_v2(self, transfer: PoolTransfer, step: Callable[[Any, str, int], bool]) -> list[bool]:
        pool = getattr(self, "registered_pools", {}).get(transfer.name)
        keys = transfer.keys or []
        if pool is None or transfer.host_indices is None:
            return [False] * len(keys)
        return self._move(pool, keys, transfer.host_indices, transfer.name, step)

    def _move(
        self, pool: Any, keys: Sequence[str], indices: torch.Tensor, name: str, step: Callable[[Any, str, int], bool]
    ) -> list[bool]:
        """Run a step for each page, up to the first one that fails: SGLang uses none behind it."""
        page = getattr(pool, "page_size", 1) or 1
        if indices.numel() != page * len(keys):
            logger.error("pltz: %d places for %d pages of %d tokens", indices.numel(), len(keys), page)
            return [False] * len(keys)
        done: list[bool] = []
        for key, place in zip(keys, indices[::page].tolist(), strict=True):
            if done and not done[-1]:
                return done + [False] * (len(keys) - len(done))
            done.append(step(pool, self._of_pool(key, name), place))
        return done

    def _miss_policy(self, policy: object) -> None:
        if str(policy) not in self._missed:
            self._missed.add(str(policy))
            logger.warning(
                "pltz: this model asks for pages by %s, which are not kept, so nothing of it is found again: choose "
                "another storage backend for it", policy,
            )  # fmt: skip

    def _of_pool(self, key: str, pool: str) -> str:
        """Return the key of a page beside the KV, which covers the form of its pool, as the space does that of the KV.

        Mamba's state belongs to one rank, also where the KV does not.
        """
        if pool in ("", "kv"):
            return key
        rank = f".{self._config.tp_rank}.{self._config.tp_size}" if pool == "mamba" else ""
        return f"{key}.{getattr(pool, 'value', pool)}{rank}.{self._forms.get(pool)}"

    def _load(self, pool: Any, key: str, place: int) -> bool:
        page = pool.get_dummy_flat_data_page()
        if not self._read(key, page):
            return False
        pool.set_from_flat_data_page(place, page)
        return True

    def _store(self, pool: Any, key: str, place: int) -> bool:
        return self._write(key, pool.get_data_page(place, flat=True))

    def _read(self, key: str, into: torch.Tensor) -> bool:
        if self._pages is None:
            return False
        if into.device.type == "cpu" and into.is_contiguous():
            return self._pages.read(_name(key), [_bytes(into)])
        page = torch.empty(into.shape, dtype=into.dtype)
        found = self._pages.read(_name(key), [_bytes(page)])
        if found:
            into.copy_(page)
        return found

    def _write(self, key: str, value: torch.Tensor) -> bool:
        return self._pages is not None and self._pages.write(_name(key), [_bytes(value.detach().cpu().contiguous())])


def _name(key: str) -> bytes:
    """Return the name of a page: SGLang's key in 32 bytes, whatever it looks like."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _bytes(tensor: torch.Tensor) -> memoryview:
    found: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
    return found


def _form(pool: Any, facts: Sequence[str]) -> list[Any]:
    return [type(pool).__name__, *(_plain(getattr(pool, fact, None)) for fact in facts)]


def _plain(fact: Any) -> Any:
    return fact if isinstance(fact, int | str | None) else str(fact)
