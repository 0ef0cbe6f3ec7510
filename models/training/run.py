"""The shared context of all stages of a training run.

It holds settings, the work folder, ways to read and measure, and the target, loaded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pltz.models.session.session import Session
from pltz.models.target.checkpoint import resolve, tokenizer_json_of
from pltz.models.target.target import Target
from pltz.models.training.records import LabelledSession
from pltz.models.training.settings import Teacher, TrainSettings
from pltz.models.training.stages import Say, WorkFolder
from pltz.plt_codec.errors import UsageError

Read = Callable[[str], Iterator[Session]]  # a file or folder -> its sessions
Measure = Callable[
    [Path, list[LabelledSession], int], dict[str, Any]
]  # bundle folder, records, content bytes per source -> figures


@dataclass(frozen=True)
class TrainingRun:
    """The inputs of a run beside its settings.

    Args:
        output: bundle folder; appears whole.
        work: folder of the stages.
        read, measure: see `Read` and `Measure`.
        device: of torch.
        processes: number of processes that train together; on GPUs one each.
        force: replace `output`.
        tell: called with every line of the log.
    """

    output: Path
    work: Path
    read: Read
    measure: Measure
    device: str
    processes: int
    force: bool
    tell: Say


class RunContext:
    """Settings, run and work folder, on which the stages (corpus.py, pipeline.py, assembly.py) are built."""

    def __init__(self, settings: TrainSettings, run: TrainingRun, work: WorkFolder) -> None:
        self.s, self.run, self.work, self.say = settings, run, work, work.say

    @property
    def teacher(self) -> Teacher:
        """Return the settings of [teacher].

        Raises:
            UsageError: there are none.
        """
        if self.s.teacher is None:
            raise UsageError("there is no [teacher]")
        return self.s.teacher

    @cached_property
    def target(self) -> Target:
        """Return the target that teaches."""
        self.say(f"  loads the target {self.teacher.target}")
        return Target.load(self.teacher.target, device=self.run.device)

    @cached_property
    def target_json(self) -> bytes:
        """Return the target's tokenizer, without loading its weights."""
        return tokenizer_json_of(resolve(self.teacher.target))
