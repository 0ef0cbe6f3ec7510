"""From sessions to a bundle folder: the stages of a training run, one after the other.

    split       sessions read, held-out ones set apart          student     the model that ships
    tokenizer   learnt, taken from a bundle or from a target    dictionary  zstd, for the fallback coder
    write       a target writes turns anew (if asked for)       export      floats to the integers of the contract
    streams     token streams                                   calibrate   temperatures, on validation sessions
    order       ids put into classes                            evaluate    test sessions, by real decoding
    teacher     a bundle's net (if asked for)                   card        what was done and measured

The left column is in corpus.py, training is here, and the stages after it are in assembly.py. stages.py
defines a stage, how a killed run goes on, and the context that stages share; settings.py the settings. Reading
files and measuring are handed in, because they belong to packages above this one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pltz.models.bundle.bundle import Bundle
from pltz.models.bundle.folder import publish
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.target.checkpoint import resolve, tokenizer_json_of
from pltz.models.training import checkpoint
from pltz.models.training.assembly import Assembly
from pltz.models.training.corpus import Corpus
from pltz.models.training.origin import Origin
from pltz.models.training.records import TEXT
from pltz.models.training.schedule import Schedule
from pltz.models.training.settings import Data, TrainSettings
from pltz.models.training.shape import NetConfig
from pltz.models.training.stages import RunContext, Say, TrainingRun, WorkFolder, read_json
from pltz.models.training.trainer import CHECKPOINT, REPORT, Machine, TrainingJob, fit
from pltz.models.training.vocabulary import covered
from pltz.plt_codec.errors import UsageError

__all__ = ["TrainingRun", "can_teach", "train"]


def train(settings: TrainSettings, run: TrainingRun) -> dict[str, Any]:
    """Make a bundle, and return its card.

    Raises:
        UsageError: settings or files that cannot be used, or an output that is there.
        ModelError: a target that cannot teach.
    """
    if run.output.exists() and not run.force and not _ours(run.output):
        raise UsageError(f"{run.output} exists and is no bundle: choose another output")
    with WorkFolder(run.work, run.tell) as work:
        return _deliver(_made(RunContext(settings, run, work)), run, work.say)


def _ours(folder: Path) -> bool:
    return (folder / "bundle.json").is_file()


def _made(context: RunContext) -> Path:
    """Run every stage, and return the folder of the finished bundle."""
    learning, assembly = Learning(context), Assembly(context)
    learning.check()
    corpus = Corpus(context, learning.quick)
    split = corpus.split()
    streams = corpus.all(split)
    teacher = learning.teacher(streams)
    student = learning.student(streams, teacher)
    training = {"student": read_json(student / REPORT)}
    bundle = assembly.export(streams, assembly.dictionary(split, learning.start), student)
    if context.s.calibrate.limit_bytes:
        bundle = assembly.calibrate(split, bundle)
        training["calibration"] = read_json(bundle / "calibration.json")
    figures = assembly.evaluate(split, bundle)
    return assembly.card(split, bundle, read_json(figures / "figures.json"), training)


def _deliver(final: Path, run: TrainingRun, say: Say) -> dict[str, Any]:
    """Copy the finished bundle to the output folder, whole or not at all, and return its card."""
    output = run.output
    card: dict[str, Any] = read_json(final / "card.json")
    if _ours(output) and not run.force:
        if (output / "card.json").is_file() and read_json(output / "card.json") == card:
            say(f"{output} is this bundle already")
            return card
        raise UsageError(f"{output} holds another bundle: choose another output, or pass --force to replace it")
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(f".{output.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(final, part)
    old = output.with_name(f".{output.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        os.rename(output, old)
    publish(part, output)
    shutil.rmtree(old, ignore_errors=True)
    Bundle.load(output)  # as every user will load it: files, shape and identity hold
    say(f"{output}: bundle {card['name']} {card['id']}")
    return card


def can_teach(target: str, bundle: str) -> bool:
    """Return whether a target has every piece of a bundle's tokenizer, so that its probabilities can be learnt
    in it."""
    return covered(Bundle.load(bundle).tokenizer, tokenizer_json_of(resolve(target)))


class Learning:
    """The training stages; a method named after a stage returns the stage's folder."""

    def __init__(self, context: RunContext) -> None:
        self.c, self.s, self.work, self.say = context, context.s, context.work, context.say

    def check(self) -> None:
        """Refuse a net that cannot be trained or exported, before anything is made.

        Raises:
            UsageError: the settings do not fit, or the start is of another shape or tokenizer.
        """
        for origin in (self.start, self.taught_by):
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
            self.start.check_shape(NetConfig.of(self.s.student, self.start.net.config.vocab))

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

    def teacher(self, streams: Path) -> Path | None:
        """Return the net of the bundle that teaches; None if a target teaches, or if there is no teacher.

        Raises:
            UsageError: the bundle has another tokenizer.
        """
        if self.taught_by is None:
            return None
        self.taught_by.check_tokenizer(_tokenizer(streams))
        return self.work.stage("teacher", self.taught_by.key, self.taught_by.write)

    def student(self, streams: Path, teacher: Path | None) -> Path:
        """Train the net that ships.

        Raises:
            UsageError: the start does not fit, or the training left the numbers.
        """
        job, t = self._job(streams), self.s.teacher
        if self.start is not None:
            self.start.check_tokenizer(_tokenizer(streams))
            self.start.check_shape(job.config)
            start = self.work.stage("start", self.start.key, self.start.write)
            job = dataclasses.replace(job, start=start)
        key: list[Any] = [streams.name, dataclasses.asdict(self.s.student), job.sampling, self.s.seed]
        key += [job.start.name if job.start else None]
        if t and t.share > 0:
            job = dataclasses.replace(job, teacher=teacher, target=t.target, share=t.share, temperature=t.temperature)
            key += [t.share, t.temperature, teacher.name if teacher else self.c.target.fingerprint.hex()]
        return self.work.stage("student", key, lambda folder: self._fit(job, folder), resumes=True)

    def quick(self, folder: Path, streams: Path) -> np.ndarray:
        """Return embeddings (V, d) of the student's shape after a few steps."""
        job = self._job(streams)
        steps = self.s.tokenizer.order_steps
        schedule = dataclasses.replace(job.schedule, steps=steps, seconds=0.0, decay=0.0)
        folder.mkdir(exist_ok=True)
        self._fit(dataclasses.replace(job, schedule=schedule), folder)
        return checkpoint.read(folder).floats()["embed"]

    def _job(self, streams: Path) -> TrainingJob:
        """Return the job of the student, without start and teacher."""
        s = self.s.student
        return TrainingJob(
            config=NetConfig.of(s, BundleTokenizer(_tokenizer(streams)).size),
            schedule=Schedule(**{f.name: getattr(s, f.name) for f in dataclasses.fields(Schedule)}),
            sampling=sampling(self.s.data, s.block, s.memory, streams),
            seed=self.s.seed,
            streams=streams,
        )

    def _fit(self, job: TrainingJob, folder: Path) -> None:
        fit(job, folder, Machine(self.c.run.device, self.say, self.c.run.processes))
        (folder / CHECKPOINT).unlink(missing_ok=True)


def _tokenizer(streams: Path) -> bytes:
    return (streams / "tokenizer.json").read_bytes()


def sampling(data: Data, block: int, memory: int, streams: Path) -> dict[str, Any]:
    """Return the arguments for drawing rows.

    Texts get all of the tokens if there are no chats, and none if there are no texts.

    Raises:
        UsageError: [data.weights] names an unknown source.
    """
    names = list(json.loads((streams / "sources.json").read_text("utf8")))
    if unknown := sorted(set(data.weights) - set(names)):
        raise UsageError(f"[data.weights] {unknown[0]}: no such source, expected some of {', '.join(names)}")
    texts = sum(name.startswith(TEXT) for name in names)
    share = 0.0 if not texts else 1.0 if texts == len(names) else data.text_share
    return {
        "block": block,
        "memory": memory,
        "power": data.power,
        "most": data.most,
        "text_share": share,
        "augment": data.augment,
        "prefix": data.prefix,
        "layouts": data.layouts,
        "weights": data.weights,
    }
