"""Train a net: one loop on a CPU, one GPU or several, for a number of steps or seconds.

`fit` takes a job and leaves a rounded net (checkpoint.py) and fit.json in a folder. On GPUs, blocks and head
are compiled, and worker processes make the batches. With several GPUs, each has its own process with its own
batches, and gradients are averaged. On a CPU, attention is the plain product with a dense mask (FlexAttention
has no backward there).

A run that was killed or stopped goes on from its last snapshot (snapshot.py), with the optimisers' memory. Batches are
drawn by (seed, step). So for a number of steps, on a CPU with as many threads, it ends with the weights of an unbroken
run. A run that learns what its teacher says several times begins a new group of batches instead.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask

from pltz.models import BundleTokenizer, Target
from pltz.plt_codec import ModelError, UsageError
from pltz.training.data.dataloader import Batch, load_batches
from pltz.training.nets import checkpoint
from pltz.training.nets.checkpoint import NetConfig
from pltz.training.nets.net import Net, built, compile_net, mask_of, rounded_net, state
from pltz.training.nets.origin import grown
from pltz.training.run import distributed, snapshot
from pltz.training.run.distil import Lesson, NetTeacher, Said, TargetTeacher, Teaching, drawn, lessons
from pltz.training.run.distributed import Ranks
from pltz.training.run.schedule import Schedule, clipped, optimisers
from pltz.training.stages import Say

REPORT = "fit.json"
CHECKPOINT_EVERY = 5.0  # seconds, at least,
CHECKPOINT_SHARE = 50  # and at least so many times the time of the last one
REPORT_EVERY = 5.0  # seconds
UNTIMED = 12  # first steps of a process on a GPU, during which it compiles


@dataclass(frozen=True)
class TrainingJob:
    """A net to train, its data and its schedule, as plain values and folders that any process can be handed.

    Args:
        sampling: arguments of `dataloader.Sampler` beside row and seed.
        streams: folder of token streams (records.py).
        start, teacher: folders of rounded nets (checkpoint.py); `teacher` and `target` exclude each other.
        target: a Hugging Face causal LM that teaches (its folder or name), or "".
        share: of the teacher in the loss.
        repeat: times that what the teacher says on a batch is learnt.
    """

    config: NetConfig
    schedule: Schedule
    sampling: dict[str, Any]
    seed: int
    streams: Path
    start: Path | None = None
    teacher: Path | None = None
    target: str = ""
    share: float = 0.0
    temperature: float = 1.0
    repeat: int = 1

    def load_teacher(self, device: str) -> Teaching | None:
        """Return the teacher on a device, or None.

        Raises:
            ModelError: it cannot teach.
        """
        if self.share <= 0:
            return None
        if self.target:
            tokenizer = BundleTokenizer((self.streams / "tokenizer.json").read_bytes())
            return TargetTeacher(Target.load(self.target, device=device), tokenizer, self.temperature)
        return NetTeacher(built(checkpoint.read(self.teacher)), device) if self.teacher else None


@dataclass(frozen=True)
class Machine:
    """The machine for a job.

    Args:
        device: "cuda" or "cpu".
        say: called with the lines of the log.
        processes: their number; on GPUs one each.
        deadline: of `time.monotonic`, at which a run stops with a snapshot; inf: none.
    """

    device: str
    say: Say
    processes: int = 1
    deadline: float = math.inf


class Stopped(Exception):
    """A run has met its deadline, and can go on from its snapshot."""


def fit(job: TrainingJob, folder: Path, machine: Machine) -> dict[str, Any]:
    """Do a job, or go on with it, in `folder`.

    Returns:
        fit.json: steps, tokens, seconds, parameters, and bits_per_token of the last steps.

    Raises:
        UsageError: the loss is no longer a number, or there are fewer GPUs.
        ModelError: a damaged snapshot, one of another net, or a teacher that cannot teach.
        Stopped: the deadline is over.
    """
    if (folder / REPORT).is_file():
        report: dict[str, Any] = json.loads((folder / REPORT).read_text("utf8"))
        return report
    if machine.device == "cuda" and torch.cuda.device_count() < machine.processes:
        raise UsageError(f"expected {machine.processes} GPUs, found {torch.cuda.device_count()}")
    with distributed.together(machine.processes, machine.device, _beside, (job, folder, machine.deadline)) as first:
        return _fit(job, folder, machine.say, first, machine.deadline)


def _beside(rank: Ranks, job: TrainingJob, folder: Path, deadline: float) -> None:
    """Run a process beside the first: it does the same, but writes no line and no file."""
    _fit(job, folder, lambda line: None, rank, deadline)


def _fit(job: TrainingJob, folder: Path, say: Say, rank: Ranks, deadline: float) -> dict[str, Any]:
    trainer = Trainer(job, folder, say, rank, deadline)
    options = {**job.sampling, "row": job.schedule.row}
    first = drawn(trainer.step, job.repeat)
    done = trainer.run(load_batches(job.streams, options, job.schedule.rows, job.seed, rank, first))
    if not rank.first:
        rank.part()
        return {}
    if not done:
        trainer.save()
        rank.part()
        raise Stopped(f"stopped after step {trainer.step}, {trainer.elapsed:.0f} s of training")
    say(f"  saves after {trainer.elapsed:.0f} s of training")
    trainer.save()
    checkpoint.write(rounded_net(trainer.net), folder)
    report = trainer.report()
    part = folder / f"{REPORT}.part"
    part.write_text(json.dumps(report, indent=1) + "\n")
    os.replace(part, folder / REPORT)
    rank.part()  # when all is saved
    return report


class Objective:
    """The loss to minimise: the data's nats, and with a teacher a share of the nats against its probabilities."""

    def __init__(self, net: Net, teacher: Teaching | None, share: float) -> None:
        self.net, self.teacher, self.share = net, teacher, share

    def lesson(self, batch: Batch, mask: Any) -> Lesson:
        """Return a batch, tensors (rows, row) by key, and its mask with what the teacher says."""
        return Lesson(batch, mask, self.teacher.says(batch, mask) if self.teacher else ())

    def losses(self, batch: Batch, mask: Any, said: Said) -> tuple[Tensor, Tensor]:
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
        nats, against, known = self.teacher.losses(self.net, x, table, batch, said)
        share = self.share * known
        return ((1 - share) * nats + share * against).sum() / count, nats.detach().sum() / count


class Trainer:
    """A net, its optimisers and the clock.

    Args:
        folder: of the job; a snapshot there is where it goes on.
        deadline: see `Machine`.

    Raises:
        ModelError: a damaged snapshot or start, or one of another net.
    """

    def __init__(self, job: TrainingJob, folder: Path, say: Say, rank: Ranks, deadline: float = math.inf) -> None:
        self.job, self.folder, self.say, self.rank, self.deadline = job, folder, say, rank, deadline
        self.step, self.elapsed, self.tokens, self.bits = 0, 0.0, 0, 0.0
        self.gpu = rank.device.startswith("cuda")
        torch.manual_seed(job.seed)
        torch.set_float32_matmul_precision("high" if self.gpu else "highest")
        self.net = Net(job.config)
        saved = self._load()
        self.net = self.net.to(rank.device)
        self.optimisers = optimisers(self.net, job.schedule, fused=self.gpu)
        for optimiser, memory in zip(self.optimisers, saved or [], strict=bool(saved)):
            optimiser.load_state_dict(memory)
        teacher = job.load_teacher(rank.device)
        self.mask: Any = create_block_mask
        if self.gpu:
            self.mask = torch.compile(create_block_mask, dynamic=False)
            compile_net(self.net)
        self.objective = Objective(self.net, teacher, job.share)
        parameters = sum(p.numel() for p in self.net.parameters())
        say(f"  {parameters / 1e6:.2f} M parameters on {rank.count} x {rank.device}")

    def _load(self) -> list[Any]:
        """Load the snapshot, else the start, and return the optimisers' state where there is one."""
        start, saved = self.job.start, snapshot.load(self.folder, self.rank.device)
        try:
            if saved is not None:
                self.net.load_state_dict(saved["net"])
                self.step, self.elapsed = saved["step"], saved["elapsed"]
                self.tokens, self.bits = saved["tokens"], saved["bits"]
                self.say(f"  goes on after step {self.step}, {self.elapsed:.0f} s of training")
                return list(saved["optimisers"])
            if start:
                origin = checkpoint.read(start)
                tensors = grown(origin.floats(), origin.config, self.job.config, self.job.seed)
                self.net.load_state_dict({k: torch.from_numpy(v) for k, v in tensors.items()})
        except (RuntimeError, ValueError, KeyError) as exc:
            folder = start if saved is None else self.folder
            raise ModelError(
                f"what is in {folder} is damaged, or of a net of another shape: remove it and run again"
            ) from exc
        return []

    def share(self) -> float:
        """Return the share of the budget used."""
        return self.job.schedule.done(self.step, self.elapsed)

    def run(self, batches: Iterator[Batch]) -> bool:
        """Run steps until the budget is used, or until the deadline. Return whether the budget is used."""
        first, before = self.step, self.elapsed
        begin = saved = told = time.monotonic()
        told_tokens, cost = self.tokens, 0.0
        sums: list[Tensor] = []
        order = random.Random(f"{self.job.seed} {self.step} {self.rank.number}")
        taught = lessons(batches, self._lesson, self.job.repeat, order)
        while self.share() < 1.0:
            if self.deadline < math.inf and self.rank.agree(time.monotonic()) >= self.deadline:
                return False
            torch.manual_seed((self.job.seed * 100_003 + self.step) * self.rank.count + self.rank.number)
            sums.append(self._one(next(taught)))
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
        return True

    def _tell(self, sums: list[Tensor], speed: float) -> None:
        """Write a line of progress.

        Raises:
            UsageError: the loss is no longer a number.
        """
        self.bits = float(torch.stack(sums).mean()) / math.log(2)
        share = self.share()
        left = self.elapsed * (1 - share) / share if share else 0.0
        self.say(
            f"  step {self.step}, {100 * share:.0f} %, {self.bits:.3f} bits per token, {speed:,.0f} tokens/s, "
            f"about {left:.0f} s left"
        )
        if not math.isfinite(self.bits):
            snapshot.remove(self.folder)  # it may be as bad
            raise UsageError(f"training left the numbers after {self.step} steps: lower its rates")

    def _lesson(self, batch: Batch) -> Lesson:
        return self.objective.lesson(batch, mask_of(batch, self.net.cfg.memory, self.mask))

    def _one(self, lesson: Lesson) -> Tensor:
        """Run one step; return the mean nats per token of the data, on the device."""
        factor = self.job.schedule.factor(self.step, self.elapsed)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["initial_lr"] * factor
        loss, nats = self.objective.losses(*lesson)
        loss.backward()
        self.rank.average([p.grad for p in self.net.parameters() if p.grad is not None])
        nn.utils.clip_grad_norm_(clipped(self.net), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += self.job.schedule.rows * self.job.schedule.row * self.rank.count
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
        """Write a snapshot, whole or not at all."""
        saved = {
            "net": state(self.net),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            **{k: getattr(self, k) for k in ("step", "elapsed", "tokens", "bits")},
        }
        snapshot.save(self.folder, self.step, saved)
