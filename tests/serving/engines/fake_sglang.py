"""The parts of SGLang that the storage backend imports, for machines without SGLang, and a pool of pages in memory.

Where SGLang is installed the tests use its own classes, the pool included.
"""

from __future__ import annotations

import enum
import importlib.util
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

STORAGE = "sglang.srt.mem_cache.hicache_storage"
REAL = importlib.util.find_spec("sglang") is not None
LAYERS, HEADS, DIM, PAGE = 3, 2, 4, 8


class Storage(ABC):
    """SGLang's base class: the same abstract methods, and the same two that register pools."""

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        self.__dict__.setdefault("registered_pools", {})[host_pool_name] = host_pool

    @abstractmethod
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any: ...

    @abstractmethod
    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> Any: ...

    @abstractmethod
    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool: ...

    @abstractmethod
    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool: ...

    @abstractmethod
    def exists(self, key: str) -> bool: ...


class Policy(enum.StrEnum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclass
class Result:
    kv_hit_pages: int
    extra_pool_hit_pages: dict[str, int]
    restorable_prefix_pages: list[int] | None = None


@dataclass
class Transfer:
    name: str
    host_indices: Any = None
    keys: list[str] | None = None
    hit_policy: Policy = Policy.ALL_PAGES


@dataclass
class Config:
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    is_page_first_layout: bool = False
    model_name: str | None = None
    should_split_heads: bool = False
    extra_config: dict[str, Any] | None = None


class Pool:
    """Pages of KV in one tensor, as SGLang's MHATokenToKVPoolHost keeps them in the layout layer_first."""

    layout, page_size, layer_num, head_num, head_dim = "layer_first", PAGE, LAYERS, HEADS, DIM
    size_per_token = 2 * LAYERS * HEADS * DIM * 2

    def __init__(self, pages: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.dtype = dtype
        self.kv_buffer = torch.zeros((2, LAYERS, pages * PAGE, HEADS, DIM), dtype=dtype)

    def get_data_page(self, index: int, flat: bool = True) -> torch.Tensor:
        return self.kv_buffer[:, :, index : index + PAGE].flatten()

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.zeros((2, LAYERS, PAGE, HEADS, DIM), dtype=self.dtype).flatten()

    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None:
        self.kv_buffer[:, :, index : index + PAGE] = data_page.reshape(2, LAYERS, PAGE, HEADS, DIM)


def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the backend's module, loaded with SGLang where it is installed, and with the fakes where it is not."""
    if not REAL:
        names = STORAGE.split(".")
        for name in [".".join(names[: n + 1]) for n in range(len(names))]:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        storage: Any = sys.modules[STORAGE]
        storage.HiCacheStorage, storage.PoolHitPolicy, storage.PoolTransferResult = Storage, Policy, Result
        storage.PoolTransfer, storage.HiCacheStorageConfig = Transfer, Config
        monkeypatch.delitem(sys.modules, "pltz.serving.engines.sglang_storage", raising=False)
    module = importlib.import_module("pltz.serving.engines.sglang_storage")
    if not REAL:
        monkeypatch.delitem(sys.modules, "pltz.serving.engines.sglang_storage")
    return module


def config(extra: dict[str, Any], **changes: Any) -> Any:
    """Return SGLang's configuration of a storage."""
    fields = Config(model_name="model", extra_config=extra).__dict__ | changes
    return sys.modules[STORAGE].HiCacheStorageConfig(**fields)
