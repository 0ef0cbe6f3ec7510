"""Train a net from token streams for so many steps or seconds, on a GPU or a CPU, from checkpoint to checkpoint.

What: `fit` takes a net, a source of batches and a budget, and leaves net.pt in a folder. How: Muon on the matrices, AdamW on the rest, both
from a rate that the schedule scales; a checkpoint every so often, written beside the old one and renamed, so a run killed at any instant
goes on from the last. On a GPU the blocks are compiled and worker processes make the batches; on a CPU attention is the plain product
with a dense mask (FlexAttention has no backward there) and batches are made in this process.

The data order after a checkpoint is drawn anew from (seed, step), so a resumed run sees other batches than an unbroken one would have.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol, cast

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from pltz.models.training.batches import KEYS, Sampler
from pltz.models.training.net import Net, block_mask, visible
from pltz.models.training.stages import Say, sync
from pltz.plt_codec.errors import ModelError, UsageError

Batch = dict[str, Tensor]
CHECKPOINT = "resume.pt"
CHECKPOINT_EVERY = 5.0  # seconds, at least,
CHECKPOINT_SHARE = 50  # and at least so many times what the last one took
WARMUP = 40  # steps, or a tenth of them
UNTIMED = 12  # first steps of a process on a GPU, in which it compiles


class Teaching(Protocol):
    """What a teacher says of a batch (distil.py)."""

    def loss(self, net: Net, x: Tensor, table: Tensor, batch: Batch, mask: Any) -> tuple[Tensor, Tensor]:
        """Nats (T,) to learn by, and which rows have them (T,) bool; `mask`: what each position of the batch sees."""


@dataclass(frozen=True)
class Plan:
    """How to train."""

    steps: int
    seconds: float
    rows: int
    row: int
    muon_rate: float
    adam_rate: float
    weight_decay: float
    falls: bool  # the rate falls to zero over the budget, else it stays
    seed: int
    share: float = 0.0  # of the teacher's loss
    report_every: float = 5.0  # seconds

    def done(self, step: int, elapsed: float) -> float:
        """Share of the budget used."""
        return min(1.0, step / self.steps if self.steps else elapsed / self.seconds)

    def factor(self, step: int, elapsed: float) -> float:
        """What the rates are scaled by."""
        warm = min(WARMUP, self.steps // 10) if self.steps else WARMUP
        return min(1.0, (step + 1) / max(warm, 1)) * (1.0 - self.done(step, elapsed) if self.falls else 1.0)


def fit(
    net: Net,
    folder: Path,
    plan: Plan,
    sampling: dict[str, Any],
    data: Path,
    device: str,
    say: Say,
    teacher: Teaching | None = None,
) -> dict[str, Any]:
    """Train `net`, going on from a checkpoint in `folder` if there is one; writes net.pt there, beside the last checkpoint.

    Args:
        sampling: arguments of `batches.Sampler` beside row and seed.
        data: folder of the streams.

    Returns:
        steps, tokens, seconds and the mean bits a token of the last steps.

    Raises:
        UsageError: the loss is no number any more.
        ModelError: a damaged checkpoint.
    """
    torch.manual_seed(plan.seed)
    net = net.to(device)
    trainer = _Trainer(net, plan, device, teacher)
    path = folder / CHECKPOINT
    trainer.resume(path, say)
    options = {**sampling, "row": plan.row}
    with _feed(data, options, plan, trainer.step, device) as batches:
        trainer.run(batches, path, say)
    trainer.save(path)
    torch.save(trainer.state(), folder / "net.pt")
    return {
        "steps": trainer.step,
        "tokens": trainer.step * plan.rows * plan.row,
        "seconds": round(trainer.elapsed, 1),
        "bits_per_token": round(trainer.bits, 4),
    }


class _Trainer:
    """A net, its optimisers and the clock."""

    def __init__(self, net: Net, plan: Plan, device: str, teacher: Teaching | None) -> None:
        self.net, self.plan, self.device, self.teacher = net, plan, device, teacher
        self.gpu = device.startswith("cuda")
        self.step, self.elapsed, self.bits = 0, 0.0, 0.0
        matrices = [p for n, p in net.named_parameters() if n.startswith("blocks") and p.ndim == 2]
        self.rest = [p for n, p in net.named_parameters() if not (n.startswith("blocks") and p.ndim == 2)]
        muon = torch.optim.Muon(
            matrices, lr=plan.muon_rate, weight_decay=plan.weight_decay, momentum=0.95, nesterov=True
        )
        adam = torch.optim.AdamW(
            self.rest, lr=plan.adam_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=self.gpu
        )
        self.optimisers: tuple[Any, Any] = (muon, adam)
        self.rates = (plan.muon_rate, plan.adam_rate)
        self.mask: Any = create_block_mask

    def state(self) -> dict[str, Tensor]:
        """The net's tensors on the CPU, under their names before compiling."""
        return {k.replace("_orig_mod.", ""): v.detach().cpu() for k, v in self.net.state_dict().items()}

    def resume(self, path: Path, say: Say) -> None:
        """Go on from a checkpoint, if there is one."""
        if path.is_file():
            try:
                saved = torch.load(path, map_location=self.device, weights_only=True)
                self.net.load_state_dict(saved["net"])
                for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
                    optimiser.load_state_dict(state)
                self.step, self.elapsed, self.bits = saved["step"], saved["elapsed"], saved["bits"]
            except (RuntimeError, ValueError, KeyError, EOFError, UnpicklingError) as exc:
                raise ModelError(
                    f"the checkpoint {path} is damaged: remove its folder and run again"
                ) from exc
            say(f"  goes on after step {self.step}, {self.elapsed:.0f} s of training")
        if self.gpu:
            torch.set_float32_matmul_precision("high")
            self.mask = torch.compile(create_block_mask, dynamic=False)
            compile_net(self.net)

    def run(self, batches: Iterator[Batch], path: Path, say: Say) -> None:
        """Steps until the budget is used."""
        first, before = self.step, self.elapsed
        begin = saved = told = time.monotonic()
        told_step, cost = first, 0.0
        sums: list[Tensor] = []
        while self.plan.done(self.step, self.elapsed) < 1.0:
            sums.append(self._one(next(batches)))
            self.step += 1
            if self.gpu and self.step == first + UNTIMED:
                torch.cuda.synchronize()
                begin = told = time.monotonic()
                told_step = self.step
            now = time.monotonic()
            timed = not self.gpu or self.step >= first + UNTIMED
            self.elapsed = before + (now - begin if timed else 0.0)
            if now - told >= self.plan.report_every or self.plan.done(self.step, self.elapsed) >= 1.0:
                self.bits = float(torch.stack(sums).mean()) / math.log(2)
                rate = (self.step - told_step) * self.plan.rows * self.plan.row / max(now - told, 1e-9)
                say(self._line(rate))
                if not math.isfinite(self.bits):
                    path.unlink(missing_ok=True)  # it may be as bad
                    raise UsageError(f"training left the numbers after {self.step} steps: lower its rates")
                sums, told, told_step = [], now, self.step
            if now - saved >= max(CHECKPOINT_EVERY, cost * CHECKPOINT_SHARE):
                self.save(path)
                saved = time.monotonic()
                cost = saved - now

    def _line(self, rate: float) -> str:
        done = self.plan.done(self.step, self.elapsed)
        left = self.elapsed * (1 - done) / done if done else 0.0
        return f"  step {self.step}, {100 * done:.0f} %, {self.bits:.3f} bits a token, {rate:,.0f} tokens/s, about {left:.0f} s left"

    def _one(self, batch: Batch) -> Tensor:
        """One step; mean nats a token of the data, on the device."""
        factor = self.plan.factor(self.step, self.elapsed)
        for optimiser, rate in zip(self.optimisers, self.rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
        mask = mask_of(batch, self.net.cfg.memory, self.mask)
        x, table = self.net.body(batch["input"], batch["position"], mask)
        target = batch["target"].flatten()
        first, second = self.net.losses(x.flatten(0, 1), table, target)
        nats = first + second
        count = (target >= 0).sum()
        loss = nats.sum() / count
        if self.teacher is not None:
            said, known = self.teacher.loss(self.net, x.flatten(0, 1), table, batch, mask)
            share = self.plan.share * known
            loss = ((1 - share) * nats + share * said).sum() / count
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return nats.detach().sum() / count

    def save(self, path: Path) -> None:
        """A checkpoint, whole or not at all."""
        part = path.with_suffix(".part")
        torch.save(
            {
                "net": self.state(),
                "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
                "step": self.step,
                "elapsed": self.elapsed,
                "bits": self.bits,
            },
            part,
        )
        sync(part)
        os.replace(part, path)


def compile_net(net: Net) -> None:
    """Compile what takes the time, in place; FlexAttention would hold all scores at once without."""
    torch._dynamo.config.cache_size_limit = 64
    for i, block in enumerate(net.blocks):
        net.blocks[i] = cast(torch.nn.Module, torch.compile(block, dynamic=False))
    for name in ("table", "first_level", "member_hidden", "second_level"):
        setattr(net, name, torch.compile(getattr(net, name), dynamic=False))


def mask_of(batch: Batch, memory: int, compiled: Any = create_block_mask) -> Any:
    """What each position sees: FlexAttention's mask on a GPU, (rows, 1, n, n) bool on a CPU."""
    if batch["doc"].device.type == "cuda":
        return block_mask(batch, memory, compiled)
    rows, n = batch["doc"].shape
    return create_mask(visible(batch, memory), rows, None, n, n, device="cpu")


class _feed:
    """Batches for a trainer: by worker processes for a GPU, here for a CPU. A context manager that ends its workers."""

    def __init__(self, data: Path, options: dict[str, Any], plan: Plan, step: int, device: str) -> None:
        self.arguments = (str(data), options, plan.rows, plan.seed * 100_003 + step)
        self.device, self.processes = device, list[Any]()

    def __enter__(self) -> Iterator[Batch]:
        if not self.device.startswith("cuda"):
            return self._here()
        context = mp.get_context("spawn")
        workers = max(1, min(12, (os.cpu_count() or 2) - 2))
        self.queue: Any = context.Queue(maxsize=2 * workers)
        for i in range(workers):
            process = context.Process(target=_work, args=(*self.arguments, i, self.queue), daemon=True)
            process.start()
            self.processes.append(process)
        return self._from_workers()

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()

    def _here(self) -> Iterator[Batch]:
        folder, options, rows, seed = self.arguments
        sampler = Sampler(Path(folder), seed=seed, **options)
        while True:
            batch = sampler.rows(rows)
            yield {k: torch.from_numpy(batch[k]) for k in KEYS}

    def _from_workers(self) -> Iterator[Batch]:
        ahead: list[Tensor] = []
        while True:
            while len(ahead) < 2:
                ahead.append(self.queue.get().pin_memory().to(self.device, non_blocking=True))
            stacked = ahead.pop(0)
            yield {k: stacked[i] for i, k in enumerate(KEYS)}


def _work(folder: str, options: dict[str, Any], rows: int, seed: int, number: int, queue: Any) -> None:
    torch.set_num_threads(1)
    sampler = Sampler(Path(folder), seed=seed * 1000 + number, **options)
    while True:
        batch = sampler.rows(rows)
        queue.put(torch.from_numpy(np.stack([batch[k] for k in KEYS])))
