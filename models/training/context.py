"""The shared context of all stages of a training run.

It holds settings, the work folder, ways to read and measure, and the target, loaded once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pltz.models.session.session import Session
from pltz.models.target.checkpoint import resolve, tokenizer_json_of
from pltz.models.target.target import Target
from pltz.models.training.records import Record
from pltz.models.training.settings import Settings, Teacher
from pltz.models.training.stages import Say, Work
from pltz.plt_codec.errors import ModelError, UsageError

Read = Callable[[str], Iterator[Session]]  # a file or folder -> its sessions
Measure = Callable[
    [Path, list[Record], int], dict[str, Any]
]  # bundle folder, records, content bytes per source -> figures


@dataclass(frozen=True)
class Run:
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


class Context:
    """Settings, run and work folder, on which the stages (corpus.py, learning.py, assembly.py) are built."""

    def __init__(self, settings: Settings, run: Run, work: Work) -> None:
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


def read_json(path: Path) -> Any:
    """Read a JSON file of a stage.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        return json.loads(path.read_text("utf8"))
    except (OSError, ValueError) as exc:
        raise ModelError(f"{path} cannot be read ({exc}): remove its folder and run again") from exc


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file of a stage, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf8")
    os.replace(part, path)
