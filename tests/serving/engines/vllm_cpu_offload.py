"""The medium of vLLM's OffloadingConnector for tests on a CPU: host memory that plain copies reach.

vLLM's own medium (CPUOffloadingSpec) runs on GPUs only. The connector, its scheduler's half, its manager and its
budget are vLLM's; only the copies are replaced.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class PlainCopies(OffloadingWorker):  # type: ignore[misc]  # Any to mypy: vLLM is in an environment of its own
    """Copies blocks of the cache to chunks of host memory, and back, at once."""

    def __init__(self, caches: CanonicalKVCaches, chunks: int) -> None:
        self._pairs = [
            (one.tensor, torch.empty((chunks, one.tensor.shape[1]), dtype=one.tensor.dtype)) for one in caches.tensors
        ]
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy blocks to chunks."""
        for cache, chunks in self._pairs:
            chunks[torch.from_numpy(dst_spec.block_ids).long()] = cache[torch.from_numpy(src_spec.block_ids).long()]
        self._done.append(TransferResult(job_id, True))
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy chunks to blocks."""
        for cache, chunks in self._pairs:
            cache[torch.from_numpy(dst_spec.block_ids).long()] = chunks[torch.from_numpy(src_spec.block_ids).long()]
        self._done.append(TransferResult(job_id, True))
        return True

    def get_finished(self) -> list[TransferResult]:
        """Return the jobs that ended since the last call."""
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Do nothing: a job ends as it is submitted."""


class PlainOffloadingSpec(CPUOffloadingSpec):  # type: ignore[misc]  # likewise
    """vLLM's medium with plain copies."""

    _copies: PlainCopies | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> PlainCopies:
        """Return the worker's half."""
        assert self.blocks_per_chunk == 1
        self._copies = self._copies or PlainCopies(kv_caches, self.num_chunks)
        return self._copies
