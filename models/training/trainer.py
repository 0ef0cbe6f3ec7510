"""Train a net: one loop on a CPU, one GPU or several, for a number of steps or seconds.

`fit` takes a job (job.py) and leaves a rounded net (net_files.py) and fit.json in a folder. It uses the
optimisers of optimisers.py, with rates that the plan scales. On GPUs, blocks and head are compiled, and
worker processes make the batches. With several GPUs, each has its own process with its own batches, and
gradients are averaged. On a CPU, attention is the plain product with a dense mask (FlexAttention has no
backward there).

A call may end before the budget does (`Place.until`). Its files are whole all the same, and the next call
goes on. In this folder it goes on from the last checkpoint, with the optimisers' memory, also after a kill.
On another machine it goes on from the rounded net and fit.json alone, warming up anew. A later call may have
another budget. The data order after a checkpoint is drawn anew from (seed, step), so a resumed run sees other
batches than an unbroken one.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask

from pltz.models.bundle.folder import sync
from pltz.models.training import distributed, net_files
from pltz.models.training.dataloader import Batch, load_batches
from pltz.models.training.distil import Teaching, teacher_of
from pltz.models.training.distributed import Ranks
from pltz.models.training.grow import grown
from pltz.models.training.job import Job
from pltz.models.training.net import Net, compile_net, mask_of, rounded_net, state
from pltz.models.training.optimisers import clipped, optimisers
from pltz.models.training.stages import Say
from pltz.plt_codec.errors import ModelError, UsageError

CHECKPOINT = "resume.pt"
REPORT = "fit.json"
NET, CONFIG = net_files.NET, net_files.CONFIG
CHECKPOINT_EVERY = 5.0  # seconds, at least,
CHECKPOINT_SHARE = 50  # and at least so many times the time of the last one
REPORT_EVERY = 5.0  # seconds
UNTIMED = 12  # first steps of a process on a GPU, during which it compiles


@dataclass(frozen=True)
class Place:
    """The machine for a job, and its deadline.

    Args:
        device: "cuda" or "cpu".
        processes: their number; on GPUs one each.
        until: `time.monotonic()` at which this call stops, its state saved.
        say: called with the lines of the log.
    """

    device: str
    say: Say
    processes: int = 1
    until: float = math.inf


def fit(job: Job, folder: Path, place: Place) -> dict[str, Any]:
    """Do a job, or go on with it, in `folder`.

    Returns:
        fit.json: steps, tokens, seconds, bits_per_token of the last steps, and whether the whole budget is
            used.

    Raises:
        UsageError: the loss is no longer a number, or there are fewer GPUs.
        ModelError: a damaged checkpoint, one of another net, or a teacher that cannot teach.
    """
    before = report_of(folder)
    if before and job.plan.done(before["steps"], before["seconds"]) >= 1.0:
        return before
    if place.device == "cuda" and torch.cuda.device_count() < place.processes:
        raise UsageError(f"expected {place.processes} GPUs, found {torch.cuda.device_count()}")
    with distributed.together(place.processes, place.device, _beside, (job, folder)) as first:
        return _fit(job, folder, place, first)


def report_of(folder: Path) -> dict[str, Any] | None:
    """Return the fit.json of a folder, None where there is none.

    Raises:
        ModelError: the file is damaged.
    """
    path = folder / REPORT
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf8"))
        return {"steps": 0, "tokens": 0, "seconds": 0.0, **found}
    except ValueError as exc:
        raise ModelError(f"{path} is damaged ({exc}): remove its folder and run again") from exc


def _beside(rank: Ranks, job: Job, folder: Path) -> None:
    """Run a process beside the first: it does the same, but writes no line and no file."""
    _fit(job, folder, Place(rank.device, lambda line: None), rank)


def _fit(job: Job, folder: Path, place: Place, rank: Ranks) -> dict[str, Any]:
    trainer = _Trainer(job, folder, place, rank)
    batches = load_batches(job.streams, {**job.sampling, "row": job.plan.row}, job.plan.rows, trainer.seed, rank)
    trainer.run(batches)
    if not rank.first:
        rank.part()
        return {}
    place.say(f"  saves after {trainer.elapsed:.0f} s of training")
    trainer.save()
    net_files.write(rounded_net(trainer.net), folder)
    report = {**trainer.report(), "done": trainer.share() >= 1.0}
    part = folder / f"{REPORT}.part"
    part.write_text(json.dumps(report, indent=1) + "\n")
    os.replace(part, folder / REPORT)
    rank.part()  # when all is saved
    return report


class Objective:
    """The loss to minimise: the data's nats, and with a teacher a share of the nats against its probabilities."""

    def __init__(self, net: Net, teacher: Teaching | None, share: float) -> None:
        self.net, self.teacher, self.share = net, teacher, share

    def losses(self, batch: Batch, mask: Any) -> tuple[Tensor, Tensor]:
        """Return the loss, and the mean nats per token of the data; both scalars.

        ``batch``: tensors (rows, row) by key.
        """
        x, table = self.net.body(batch["input"], batch["position"], mask)
        x, target = x.flatten(0, 1), batch["target"].flatten()
        count = (target >= 0).sum()
        if self.teacher is None:
            first, second = self.net.losses(x, table, target)
            nats = first + second
            return nats.sum() / count, nats.detach().sum() / count
        nats, said, known = self.teacher.losses(self.net, x, table, batch, mask)
        share = self.share * known
        return ((1 - share) * nats + share * said).sum() / count, nats.detach().sum() / count


class _Trainer:
    """A net, its optimisers and the clock."""

    def __init__(self, job: Job, folder: Path, place: Place, rank: Ranks) -> None:
        self.job, self.path, self.say, self.until, self.rank = (
            job,
            folder / CHECKPOINT,
            place.say,
            place.until,
            rank,
        )
        self.step, self.elapsed, self.tokens, self.bits, self.first = 0, 0.0, 0, 0.0, 0
        self.gpu = rank.device.startswith("cuda")
        torch.manual_seed(job.seed)
        torch.set_float32_matmul_precision("high" if self.gpu else "highest")
        self.net = Net(job.config)
        self.net.drop(job.plan.dropout)
        saved = self._saved(folder)
        self.net = self.net.to(rank.device)
        self.optimisers = optimisers(self.net, job.plan, fused=self.gpu)
        if saved:
            for optimiser, memory in zip(self.optimisers, saved, strict=True):
                optimiser.load_state_dict(memory)
        self.seed = job.seed * 100_003 + self.step
        torch.manual_seed(self.seed + rank.number)  # other units are dropped in each process
        teacher = teacher_of(job, rank.device)
        self.mask: Any = create_block_mask
        if self.gpu:
            self.mask = torch.compile(create_block_mask, dynamic=False)
            compile_net(self.net)
        self.objective = Objective(self.net, teacher, job.share)
        place.say(
            f"  {sum(p.numel() for p in self.net.parameters()) / 1e6:.2f} M parameters on {rank.count} x {rank.device}"
        )

    def _saved(self, folder: Path) -> list[Any]:
        """Load the state of an earlier call, else the start.

        Return the optimisers' state, where there is one.
        """
        try:
            if self.path.is_file():
                saved = torch.load(self.path, map_location=self.rank.device, weights_only=True)
                self.net.load_state_dict(saved["net"])
                self.step, self.elapsed, self.tokens = saved["step"], saved["elapsed"], saved["tokens"]
                self.first, self.bits = saved["first"], saved["bits"]
                self.say(f"  goes on after step {self.step}, {self.elapsed:.0f} s of training")
                return list(saved["optimisers"])
            before = report_of(folder)
            start = folder if before else self.job.start
            if start:
                found = net_files.read(start)
                state = grown(found.floats(), found.config, self.job.config, self.job.seed)
                self.net.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
            if before:
                self.step = self.first = before["steps"]
                self.elapsed, self.tokens = before["seconds"], before["tokens"]
                self.say(
                    f"  goes on after step {self.step}, {self.elapsed:.0f} s of training, from the rounded net"
                )
        except (RuntimeError, ValueError, KeyError, EOFError, UnpicklingError) as exc:
            raise ModelError(
                f"what is in {folder} is damaged, or of a net of another shape: remove it and run again"
            ) from exc
        return []

    def share(self) -> float:
        """Return the share of the budget used."""
        return self.job.plan.done(self.step, self.elapsed)

    def run(self, batches: Iterator[Batch]) -> None:
        """Run steps until the budget is used or the time of this call is over."""
        first, before = self.step, self.elapsed
        begin = saved = told = time.monotonic()
        told_tokens, cost = self.tokens, 0.0
        sums: list[Tensor] = []
        while self.share() < 1.0 and self._agreed(time.monotonic() < self.until):
            sums.append(self._one(next(batches)))
            if self.gpu and self.step == first + UNTIMED:  # the clock starts when everything is compiled
                torch.cuda.synchronize()
                now = time.monotonic()
                self.say(f"  compiled in {now - begin:.0f} s")
                begin, told, told_tokens = now, now, self.tokens
            now = time.monotonic()
            timed = not self.gpu or self.step >= first + UNTIMED
            self.elapsed = self.rank.agree(before + (now - begin if timed else 0.0))
            if now - told >= REPORT_EVERY or self.share() >= 1.0:
                self._tell(sums, (self.tokens - told_tokens) / max(now - told, 1e-9))
                sums, told, told_tokens = [], time.monotonic(), self.tokens
            if self.rank.first and now - saved >= max(CHECKPOINT_EVERY, cost * CHECKPOINT_SHARE):
                self.save()
                saved = time.monotonic()
                cost = saved - now

    def _agreed(self, goes_on: bool) -> bool:
        """Return the decision of the first process, which alone has a deadline."""
        return self.rank.agree(float(goes_on)) > 0

    def _tell(self, sums: list[Tensor], speed: float) -> None:
        """Write a line of progress.

        Raises:
            UsageError: the loss is no longer a number.
        """
        self.bits = float(torch.stack(sums).mean()) / math.log(2)
        done = self.share()
        left = self.elapsed * (1 - done) / done if done else 0.0
        self.say(
            f"  step {self.step}, {100 * done:.0f} %, {self.bits:.3f} bits a token, {speed:,.0f} tokens/s, "
            f"about {left:.0f} s left"
        )
        if not math.isfinite(self.bits):
            self.path.unlink(missing_ok=True)  # it may be as bad
            raise UsageError(f"training left the numbers after {self.step} steps: lower its rates")

    def _one(self, batch: Batch) -> Tensor:
        """Run one step; return the mean nats per token of the data, on the device."""
        plan = self.job.plan
        factor = plan.factor(self.step, self.elapsed, self.first)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["initial_lr"] * factor
        loss, nats = self.objective.losses(batch, mask_of(batch, self.net.cfg.memory, self.mask))
        loss.backward()
        self.rank.average([p.grad for p in self.net.parameters() if p.grad is not None])
        nn.utils.clip_grad_norm_(clipped(self.net), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += plan.rows * plan.row * self.rank.count
        return nats

    def report(self) -> dict[str, Any]:
        """Return how far training is."""
        return {
            "steps": self.step,
            "tokens": self.tokens,
            "seconds": round(self.elapsed, 3),
            "bits_per_token": round(self.bits, 4),
            "parameters": sum(p.numel() for p in self.net.parameters()),
        }

    def save(self) -> None:
        """Write a checkpoint, whole or not at all."""
        part = self.path.with_suffix(".part")
        saved = {
            "net": state(self.net),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            **{k: getattr(self, k) for k in ("step", "elapsed", "tokens", "bits", "first")},
        }
        torch.save(saved, part)
        sync(part)
        os.replace(part, self.path)
