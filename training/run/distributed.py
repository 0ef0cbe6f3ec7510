"""The processes of one training run, one per GPU: their numbers, and the values they agree on.

The first is the process that called; it alone writes lines, saves and has a deadline. The others are started
beside it and end with it. All are on one host.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

PATIENCE = timedelta(
    seconds=300
)  # a process silent for so long is dead; it may be compiling, the first writing a checkpoint

ENDING = 20  # seconds that a process has to end by itself, when all is done


@dataclass(frozen=True)
class Ranks:
    """One process of `count`."""

    number: int
    count: int
    device: str

    @property
    def first(self) -> bool:
        """Return whether this is the process that called."""
        return self.number == 0

    def agree(self, value: float) -> float:
        """Return the first process's value, in all of them. It goes over the CPU, so no GPU is waited for."""
        if self.count == 1:
            return value
        shared = torch.tensor([value if self.first else 0.0], dtype=torch.float64)
        dist.all_reduce(shared)  # not a broadcast: all notice at once if one is gone
        return float(shared)

    def average(self, tensors: list[Tensor]) -> None:
        """Replace tensors (...,) by their mean over all processes, in place.

        They are sent in one piece. Overlapping this with the backward pass would save a hundredth of a step
        here.
        """
        if self.count == 1:
            return
        flat = torch.cat([t.flatten() for t in tensors])
        dist.all_reduce(flat)
        flat /= self.count
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def part(self) -> None:
        """End the joint work; all processes come here."""
        if self.count > 1:
            if self.device.startswith("cuda"):
                torch.cuda.synchronize()
            self.agree(0.0)
            dist.destroy_process_group()


def alone(device: str) -> Ranks:
    """Return the only process."""
    return Ranks(0, 1, device)


@contextmanager
def together(count: int, kind: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> Iterator[Ranks]:
    """Run `work(rank, *arguments)` in `count` - 1 processes beside this one, and yield this one's rank, the first.

    Args:
        kind: "cuda", one GPU each, or "cpu".
    """
    if count == 1:
        yield alone(kind)
        return
    with tempfile.TemporaryDirectory() as meeting:
        others = start_processes(
            _start, (count, kind, meeting, work, arguments), nprocs=count - 1, join=False, start_method="spawn"
        )
        try:
            yield _join(0, count, kind, meeting)
            over = time.monotonic() + ENDING
            while time.monotonic() < over and not others.join(timeout=1):
                pass
        finally:
            for process in others.processes:
                process.terminate()


def _start(index: int, count: int, kind: str, meeting: str, work: Callable[..., None], arguments: Any) -> None:
    """Run a process beside the first.

    It has nothing to keep, and ends at once. Otherwise the process can abort when the interpreter is taken
    down while a thread of gloo releases the last tensor (seen once, under load).
    """
    work(_join(index + 1, count, kind, meeting), *arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _join(number: int, count: int, kind: str, meeting: str) -> Ranks:
    device = kind
    if kind == "cuda":
        device = f"cuda:{number}"
        torch.cuda.set_device(number)
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")  # one host: no network is needed to meet
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo",
        init_method=f"file://{Path(meeting, 'meet')}",
        rank=number,
        world_size=count,
        timeout=PATIENCE,
    )
    return Ranks(number, count, device)
