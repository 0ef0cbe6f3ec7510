"""The training stages of a run: teacher and student.

Each is a rounded net (net_files.py) beside the report of its training (trainer.py).
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pltz.models.bundle.bundle import Bundle
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.training import job, net_files
from pltz.models.training.context import Context
from pltz.models.training.job import Job
from pltz.models.training.origin import Origin
from pltz.models.training.shape import NetConfig
from pltz.models.training.trainer import CHECKPOINT, Place, fit
from pltz.plt_codec.errors import UsageError


class Learning:
    """The training stages; a method named after a stage returns the stage's folder."""

    def __init__(self, context: Context) -> None:
        self.c, self.s, self.work, self.say = context, context.s, context.work, context.say

    def check(self) -> None:
        """Refuse a net that cannot be trained or exported, before anything is made.

        Raises:
            UsageError: the settings do not fit, or the start is of another shape or tokenizer.
        """
        if self.s.student.bias or not self.s.student.quant:
            raise UsageError(
                "[student] bias, quant: what ships is integers, which have no biases; only a [teacher] may set them"
            )
        for origin in (self.start, self.taught_by, self.teacher_start):
            if origin is None:
                continue
            kind = self.s.tokenizer.kind
            if kind == "train":
                raise UsageError(
                    f"{origin.place}: a tokenizer that is learnt anew fits no net that is there: "
                    'use [tokenizer] kind = "bundle"'
                )
            if kind == "bundle":
                origin.check_tokenizer(Bundle.load(self.s.tokenizer.bundle).tokenizer.json)
        if self.start is not None:
            self.start.check_shape(self._config(self.start.net.config.vocab))

    @cached_property
    def start(self) -> Origin | None:
        """Return the student's start."""
        name = self.s.student.start
        return Origin(name, "[student] start") if name else None

    @cached_property
    def taught_by(self) -> Origin | None:
        """Return the bundle that teaches."""
        name = self.s.teacher.bundle if self.s.teacher else ""
        return Origin(name, "[teacher] bundle") if name else None

    @cached_property
    def teacher_start(self) -> Origin | None:
        """Return the start of a teacher of our own."""
        name = self.s.teacher.start if self.s.teacher else ""
        return Origin(name, "[teacher] start") if name else None

    def teacher(self, streams: Path) -> Path | None:
        """Return the net that teaches: a bundle's, or a larger one of our own.

        Return None if a target teaches, or if there is no teacher.
        """
        t = self.s.teacher
        if t is None or t.target:
            return None
        if self.taught_by is not None:
            self.taught_by.check_tokenizer(_tokenizer(streams))
            return self._placed("teacher", self.taught_by)
        start = self._started(self.teacher_start, NetConfig.of(t, self.s.student, _vocab(streams)), streams)
        what = job.teacher(self.s, streams, _vocab(streams), start)
        key: list[Any] = [
            streams.name,
            dataclasses.asdict(what.config),
            dataclasses.asdict(what.plan),
            what.sampling,
        ]
        key += [self.s.seed, start.name if start else None]
        return self.work.stage("teacher", key, lambda folder: self._fit(what, folder), resumes=True)

    def student(self, streams: Path, teacher: Path | None) -> Path:
        """Train the net that ships."""
        start = self._started(self.start, self._config(_vocab(streams)), streams)
        what = job.student(self.s, streams, _vocab(streams), start, teacher)
        key: list[Any] = [streams.name, dataclasses.asdict(self.s.student), what.sampling, self.s.seed]
        key += [start.name if start else None]
        if what.share > 0:
            said_by = teacher.name if teacher else self.c.target.fingerprint.hex()
            key += [what.share, what.temperature, said_by]
        return self.work.stage("student", key, lambda folder: self._fit(what, folder), resumes=True)

    def quick(self, folder: Path, streams: Path) -> np.ndarray:
        """Return embeddings (V, d) of the student's shape after a few steps."""
        plan = dataclasses.replace(
            job.plan(self.s), steps=self.s.tokenizer.order_steps, seconds=0.0, decay=0.0
        )
        folder.mkdir(exist_ok=True)
        self._fit(
            Job(self._config(_vocab(streams)), plan, self._sampling(streams), self.s.seed, streams), folder
        )
        return net_files.read(folder).floats()["embed"]

    def _fit(self, what: Job, folder: Path) -> None:
        fit(what, folder, Place(self.c.run.device, self.say, self.c.run.processes))
        (folder / CHECKPOINT).unlink(missing_ok=True)

    def _sampling(self, streams: Path) -> dict[str, Any]:
        return job.sampling(self.s.data, self.s.student.block, self.s.student.memory, streams)

    def _config(self, vocab: int) -> NetConfig:
        """Return the student's configuration."""
        return NetConfig.of(self.s.student, self.s.student, vocab)

    def _started(self, origin: Origin | None, config: NetConfig, streams: Path) -> Path | None:
        """Return the net that training starts from, if any.

        Raises:
            UsageError: it does not fit.
        """
        if origin is None:
            return None
        origin.check_tokenizer(_tokenizer(streams))
        origin.check_shape(config)
        return self._placed("start", origin)

    def _placed(self, stage: str, origin: Origin) -> Path:
        """Write an origin's net into a folder of its own."""
        return self.work.stage(stage, origin.key, origin.write)


def _tokenizer(streams: Path) -> bytes:
    return (streams / "tokenizer.json").read_bytes()


def _vocab(streams: Path) -> int:
    return BundleTokenizer(_tokenizer(streams)).size
