"""A training job: everything a net is trained from, as plain values and folders, so that any process can be
handed it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pltz.models.training.plan import Plan
from pltz.models.training.records import TEXT
from pltz.models.training.settings import Data, Settings
from pltz.models.training.shape import NetConfig
from pltz.plt_codec.errors import UsageError


@dataclass(frozen=True)
class Job:
    """A net to train, its data and its plan.

    Args:
        sampling: arguments of `dataloader.Sampler` beside row and seed.
        streams: folder of token streams (prepare.py, records.py).
        start, teacher: folders of rounded nets (net_files.py); `teacher` and `target` exclude each other.
        target: a Hugging Face causal LM that teaches (its folder or name), or "".
        share: of the teacher in the loss.
    """

    config: NetConfig
    plan: Plan
    sampling: dict[str, Any]
    seed: int
    streams: Path
    start: Path | None = None
    teacher: Path | None = None
    target: str = ""
    share: float = 0.0
    temperature: float = 1.0


def student(s: Settings, streams: Path, vocab: int, start: Path | None, teacher: Path | None) -> Job:
    """Return the job of a configuration's student."""
    t = s.teacher
    return Job(
        config=NetConfig.of(s.student, s.student, vocab),
        plan=s.student,
        sampling=sampling(s.data, s.student.block, s.student.memory, streams),
        seed=s.seed,
        streams=streams,
        start=start,
        teacher=teacher,
        target=t.target if t else "",
        share=t.share if t else 0.0,
        temperature=t.temperature if t else 1.0,
    )


def plan(s: Settings) -> Plan:
    """Return the student's plan, without its shape."""
    return Plan(**{f.name: getattr(s.student, f.name) for f in dataclasses.fields(Plan)})


def teacher(s: Settings, streams: Path, vocab: int, start: Path | None) -> Job:
    """Return the job of a configuration's own teacher, whose rate falls all the time."""
    t = s.teacher
    assert t is not None
    its = plan(s)
    its = dataclasses.replace(
        its,
        steps=t.steps,
        seconds=t.seconds,
        decay=1.0,
        rows=t.rows or its.rows,
        relative_rate=t.relative_rate or its.relative_rate,
    )
    return Job(
        config=NetConfig.of(t, s.student, vocab),
        plan=its,
        sampling=sampling(s.data, s.student.block, s.student.memory, streams),
        seed=s.seed,
        streams=streams,
        start=start,
    )


def sampling(d: Data, block: int, memory: int, streams: Path) -> dict[str, Any]:
    """Return the arguments for drawing rows.

    Texts get all of the tokens if there are no chats, and none if there are no texts.

    Raises:
        UsageError: [data.weights] names an unknown source.
    """
    names = list(json.loads((streams / "sources.json").read_text("utf8")))
    if unknown := sorted(set(d.weights) - set(names)):
        raise UsageError(f"[data.weights] {unknown[0]}: no such source, expected some of {', '.join(names)}")
    texts = sum(name.startswith(TEXT) for name in names)
    share = 0.0 if not texts else 1.0 if texts == len(names) else d.text_share
    return {
        "block": block,
        "memory": memory,
        "power": d.power,
        "most": d.most,
        "text_share": share,
        "augment": d.augment,
        "prefix": d.prefix,
        "layouts": d.layouts,
        "weights": d.weights,
    }
