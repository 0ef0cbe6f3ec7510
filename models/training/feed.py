"""Batches for a training process, drawn and laid out by worker processes for a GPU, else by the process itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from pltz.models.training.batches import KEYS, Sampler
from pltz.models.training.ranks import Ranks

Batch = dict[str, Tensor]
WORKERS = 12  # at most; they make 1.7 M tokens a second


class _Rows(IterableDataset[Tensor]):
    """An endless stream of batches, (KEYS, rows, row) int32, different in each process and worker."""

    def __init__(self, folder: Path, options: dict[str, Any], rows: int, seed: list[int]) -> None:
        self.folder, self.options, self.rows, self.seed = folder, options, rows, seed

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        sampler = Sampler(self.folder, seed=[*self.seed, worker.id if worker else 0], **self.options)
        while True:
            batch = sampler.rows(self.rows)
            yield torch.from_numpy(np.stack([batch[k] for k in KEYS]))


def feed(folder: Path, options: dict[str, Any], rows: int, seed: int, rank: Ranks) -> Iterator[Batch]:
    """Yield batches of `rows` rows on the rank's device, each by key (rows, row) int32.

    `options`: those of `Sampler`.
    """
    gpu = rank.device.startswith("cuda")
    workers = max(1, min(WORKERS, (os.cpu_count() or 2) // rank.count - 2)) if gpu else 0
    loader = DataLoader(
        _Rows(folder, options, rows, [seed, rank.number]),
        batch_size=None,
        num_workers=workers,
        pin_memory=gpu,
        multiprocessing_context="spawn" if workers else None,
    )
    ahead: list[Tensor] = []
    for made in loader:
        ahead.append(made.to(rank.device, non_blocking=True))
        if len(ahead) > (1 if gpu else 0):
            stacked = ahead.pop(0)
            yield {k: stacked[i] for i, k in enumerate(KEYS)}
