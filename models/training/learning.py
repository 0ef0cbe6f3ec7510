"""The training stages of a run: teacher and student, each a rounded net (rounded.py) beside the report of its training (fit.py)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from pltz.models.bundle import Bundle
from pltz.models.tokenizer import BundleTokenizer
from pltz.models.training import job, rounded
from pltz.models.training.context import Context
from pltz.models.training.export import restore
from pltz.models.training.fit import CHECKPOINT, Place, fit
from pltz.models.training.grow import fits
from pltz.models.training.job import Job
from pltz.models.training.plan import Plan
from pltz.models.training.shape import NetConfig
from pltz.plt_codec.errors import UsageError


class Learning:
    """Each method returns the folder of its stage."""

    def __init__(self, context: Context) -> None:
        self.c, self.s, self.work, self.say = context, context.s, context.work, context.say

    def teacher(self, streams: Path) -> Path | None:
        """The net that teaches: a bundle's, or a larger one of our own; None where a target does, or nobody."""
        t = self.s.teacher
        if t is None or t.target:
            return None
        if t.bundle:
            return self._of_bundle("teacher", t.bundle, streams)
        config = NetConfig.of(t, self.s.student, _vocab(streams))
        plan = dataclasses.replace(self._plan(), steps=t.steps, seconds=t.seconds, decay=1.0)
        what = Job(config, plan, self._sampling(streams), self.s.seed, streams)
        key = [streams.name, dataclasses.asdict(config), dataclasses.asdict(plan), what.sampling, self.s.seed]
        return self.work.stage("teacher", key, lambda folder: self._fit(what, folder), resumes=True)

    def student(self, streams: Path, teacher: Path | None) -> Path:
        """The net that ships."""
        start = self._start(streams) if self.s.student.start else None
        what = job.student(self.s, streams, _vocab(streams), start, teacher)
        key: list[Any] = [streams.name, dataclasses.asdict(self.s.student), what.sampling, self.s.seed]
        key += [start.name if start else None]
        if what.share > 0:
            said_by = teacher.name if teacher else self.c.target.fingerprint.hex()
            key += [what.share, what.temperature, said_by]
        return self.work.stage("student", key, lambda folder: self._fit(what, folder), resumes=True)

    def quick(self, folder: Path, streams: Path) -> np.ndarray:
        """Embeddings (V, d) of the student's shape after a few steps."""
        plan = dataclasses.replace(self._plan(), steps=self.s.tokenizer.order_steps, seconds=0.0, decay=0.0)
        config = NetConfig.of(self.s.student, self.s.student, _vocab(streams))
        folder.mkdir(exist_ok=True)
        self._fit(Job(config, plan, self._sampling(streams), self.s.seed, streams), folder)
        return rounded.read(folder).floats()["embed"]

    def _fit(self, what: Job, folder: Path) -> None:
        fit(what, folder, Place(self.c.run.device, self.say, self.c.run.processes))
        (folder / CHECKPOINT).unlink(missing_ok=True)

    def _plan(self) -> Plan:
        return Plan(**{f.name: getattr(self.s.student, f.name) for f in dataclasses.fields(Plan)})

    def _sampling(self, streams: Path) -> dict[str, Any]:
        return job.sampling(self.s.data, self.s.student.block, self.s.student.memory, streams)

    def _start(self, streams: Path) -> Path:
        """The net of the bundle that the student starts from. Raises UsageError where the student cannot grow from its shape."""
        found = self._of_bundle("start", self.s.student.start, streams)
        try:
            fits(rounded.read(found).config, NetConfig.of(self.s.student, self.s.student, _vocab(streams)))
        except UsageError as exc:
            raise UsageError(f"[student] start: bundle {self.s.student.start}: {exc}") from exc
        return found

    def _of_bundle(self, stage: str, name: str, streams: Path) -> Path:
        """A bundle's integers as a net. Raises UsageError where it has another tokenizer than the streams."""
        bundle = Bundle.load(name)
        if bundle.tokenizer.json != (streams / "tokenizer.json").read_bytes():
            place = "[student] start" if stage == "start" else "[teacher] bundle"
            raise UsageError(
                f'{place}: bundle {name} has another tokenizer: use [tokenizer] kind = "bundle", bundle = "{name}"'
            )
        return self.work.stage(
            stage, bundle.id.hex(), lambda folder: rounded.write(restore(bundle.weights), folder)
        )


def _vocab(streams: Path) -> int:
    return BundleTokenizer((streams / "tokenizer.json").read_bytes()).size
