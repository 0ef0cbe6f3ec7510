"""Snapshots: whole caches of targets whose layers keep windows, latents or states, at the ends of turns.

    ids of a session -> a name for each beginning -> memory | folder -> the longest that is there, bit for bit

Such a cache has no blocks: a state is of all ids before it, and a window has lost those before itself. So a session
goes on from where it was thawed before, or from where one was that it begins like, and nothing in between is found. A
snapshot has the logits of its last id too, since it cannot be cut back by one.

Layers are kept as transformers made them, attribute by attribute. So snapshots are of one version of transformers, and
others do not find them. Files are written by the caller's thread. Spec: FORMAT.md.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib.metadata import version
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.kv.errors import MemoryFailed
from pltz.kv.port.bound import Bound
from pltz.kv.store.kv_file import KVFile
from pltz.kv.store.kv_folder import WHOLE, KVFolder
from pltz.kv.store.store import DEVICE, DISK, EXACT, FoundKV, Stats, TierStats
from pltz.kv.store.trie import root_of
from pltz.models import cache_of
from pltz.plt_codec import CorruptError, digest

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import DynamicCache

    from pltz.archive import Archive
    from pltz.kv.store.trie import Ids
    from pltz.models import Target


@dataclass(frozen=True, eq=False)
class _Held:
    """A cache in memory. ``owner``: its tenant's name. ``size``: bytes."""

    owner: bytes
    cache: DynamicCache
    logits: torch.Tensor
    size: int


class Snapshots:
    """The whole caches of one target. Any thread may use it.

    ``memory_bytes``: of caches that stay on the target's device; those used longest ago leave first. ``folder``,
    ``disk_bytes``: of files, as in `KVStore.open`; None for none.
    """

    lossy = False  # as of a `KVStore`

    def __init__(
        self,
        target: Target,
        memory_bytes: int = 0,
        disk_bytes: int = 0,
        *,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.fingerprint, self.memory_bytes, self._target = target.fingerprint, memory_bytes, target
        made = f"{version('transformers')} {target.model.dtype}".encode()
        space = digest(b"pltz kv whole", target.fingerprint, made)
        self.folder = None if folder is None else KVFolder(folder, space, disk_bytes)
        self._held: OrderedDict[bytes, _Held] = OrderedDict()  # the least recently used first
        self._lock = RLock()
        self._stats, self._hits = Stats(), Counter[str]()

    def read(
        self, tenant: str, ids: Ids, device: torch.device, *, apart: str = "", bound: Bound | float = EXACT
    ) -> FoundKV:
        """Return the cache of the longest known beginning of ids, and the logits of its last id. It is the caller's."""
        names, owner = _names(root_of(tenant, apart), ids), self._owner(tenant)
        with self._lock:
            files = set() if self.folder is None else self.folder.paths(WHOLE)
            for tokens in range(len(names), 0, -1):
                name = names[tokens - 1]
                if (found := self._held.get(name)) is not None:
                    self._held.move_to_end(name)
                    return self._found(len(ids), tokens, DEVICE, copy.deepcopy(found.cache), found.logits)
                if files and (one := self._load(name, owner, files, device)) is not None:
                    return self._found(len(ids), tokens, DISK, *one)
            self._stats.miss_tokens += len(ids)
        return FoundKV()

    def keep(self, tenant: str, ids: Ids, cache: DynamicCache, logits: torch.Tensor, *, apart: str = "") -> None:
        """Offer the cache of all of some ids, and the logits of the last."""
        root = root_of(tenant, apart)
        name, said = _names(root, ids)[-1], _written(cache, logits)
        if said is None:
            return
        layout, parts = said
        with self._lock:
            self._stats.inserted += 1
            if parts.nbytes <= self.memory_bytes:
                self._held[name] = _Held(self._owner(tenant), copy.deepcopy(cache), logits.clone(), parts.nbytes)
                while sum(held.size for held in self._held.values()) > self.memory_bytes:
                    self._held.popitem(last=False)
        if self.folder is not None:
            head = {"layers": layout}
            owner = self._owner(tenant)
            file = KVFile(WHOLE, self.folder.space, name, head, {"kv": parts}, owner, start=len(ids))
            self._stats.dropped += not self.folder.write(file)

    def discard(self, tenant: str, ids: Ids, *, apart: str = "") -> None:
        """Forget the caches of all beginnings of ids. Raises WarmFileError where a file cannot be removed."""
        names = set(_names(root_of(tenant, apart), ids))
        with self._lock:
            for name in names & self._held.keys():
                del self._held[name]
        if self.folder is not None:
            self.folder.discard(names)

    def clear(self, tenant: str | None = None) -> None:
        """Forget everything, or all of a tenant, in memory and files. Raises as `discard`."""
        owner = None if tenant is None else self._owner(tenant)
        with self._lock:
            for name in [name for name, held in self._held.items() if owner in (None, held.owner)]:
                del self._held[name]
        if self.folder is not None:
            self.folder.clear(owner)

    def admit(self, archive: Archive, tenants: Iterable[str] = ()) -> None:
        """Keep files by the newest keys of tenants, as `KVStore.admit`."""
        if self.folder is not None:
            self.folder.admit(archive, tenants)

    def expire(self, seconds: float) -> None:
        """Forget files that were not used for so long. Raises as `discard`."""
        if self.folder is not None:
            self.folder.expire(time.time() - seconds)

    def stats(self) -> Stats:
        """Return counts of snapshots, and bytes per tier; those of the folder are of all processes."""
        with self._lock:
            used = sum(held.size for held in self._held.values())
            tiers = {DEVICE: TierStats(self.memory_bytes, used, len(self._held), self._hits[DEVICE])}
            if (folder := self.folder) is not None:
                tiers[DISK] = TierStats(
                    folder.budget, folder.usage()[0], 0, self._hits[DISK], folder.damaged, folder.failed
                )  # fmt: skip
            return replace(self._stats, tiers=tiers)

    def close(self) -> None:
        """Do nothing: all is written."""

    def _owner(self, tenant: str) -> bytes:
        return root_of(tenant) if self.folder is None else self.folder.owner(tenant)

    def _found(self, asked: int, tokens: int, tier: str, cache: DynamicCache, logits: torch.Tensor) -> FoundKV:
        self._hits[tier] += tokens
        self._stats.hit_tokens += tokens
        self._stats.miss_tokens += asked - tokens
        whole = logits if tokens == asked else None
        return FoundKV(tokens, cache=cache, tiers=Counter({tier: tokens}), logits=whole)

    def _load(
        self, name: bytes, owner: bytes, files: set[Path], device: torch.device
    ) -> tuple[DynamicCache, torch.Tensor] | None:
        """Return the cache and the logits of a file, None where it is gone or damaged; it is removed then."""
        assert self.folder is not None
        there = self.folder.path(name, WHOLE, owner) in files
        file = self.folder.read(name, WHOLE, owner) if there else None
        if file is None:
            return None
        try:
            return _restored(self._target, file, device)
        except (CorruptError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError, AttributeError):
            self._stats.failed += 1
            with suppress(MemoryFailed):
                self.folder.remove(name, WHOLE, owner)
            return None


def _names(root: bytes, ids: Ids) -> list[bytes]:
    """Return a name for each beginning of ids."""
    state = blake2b(root, digest_size=32, person=b"pltz whole")
    names = []
    for one in np.ascontiguousarray(ids, "<i8").reshape(-1, 1):
        state.update(one.tobytes())
        names.append(state.copy().digest())
    return names


def _written(cache: DynamicCache, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the layers of a cache as JSON in bytes, and the bytes of all tensors; None for fields of other kinds."""
    import torch

    tensors: list[torch.Tensor] = []

    def said(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8))
            return {"tensor": [str(value.dtype).removeprefix("torch."), *value.shape]}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": 0}
        if isinstance(value, dict):
            return {"dict": [[said(key), said(one)] for key, one in value.items()]}
        if value is None or type(value) in (bool, int, float, str):
            return value
        raise TypeError(f"a layer has a {type(value).__name__}")

    try:
        layers: list[Any] = [[type(layer).__name__, said(dict(vars(layer)))] for layer in cache.layers]
        layout = json.dumps([layers, said(logits)]).encode()
    except TypeError:  # of another kind than any that is known
        return None
    return torch.frombuffer(bytearray(layout), dtype=torch.uint8), torch.cat(tensors)


def _restored(target: Target, file: KVFile, device: torch.device) -> tuple[DynamicCache, torch.Tensor]:
    """Return the cache and the logits of a file. Raises CorruptError, and what a layout that cannot be brings about."""
    import torch

    data, at = file.parts["kv"].to(device), 0

    def told(value: Any) -> Any:
        nonlocal at
        if not isinstance(value, dict):
            return value
        [(kind, one)] = value.items()
        if kind == "tensor":
            dtype: torch.dtype = getattr(torch, one[0])
            shape: Sequence[int] = one[1:]
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            at += size
            return data[at - size : at].clone().view(dtype).reshape(shape)
        if kind == "dict":
            return {told(key): told(part) for key, part in one}
        return getattr(torch, one) if kind == "dtype" else {"device": device}[kind]

    layers, logits = json.loads(file.head["layers"].numpy().tobytes())
    cache = cache_of((), target.model.config)
    if [name for name, _ in layers] != [type(layer).__name__ for layer in cache.layers]:
        raise CorruptError("layers of other kinds than the target's")
    for layer, (_, fields) in zip(cache.layers, layers, strict=True):
        vars(layer).update(told(fields))
    last = told(logits)
    if int(cache.get_seq_length()) != file.start or not isinstance(last, torch.Tensor) or last.dim() != 1:
        raise CorruptError("a cache of another number of tokens, or no logits")
    return cache, last
