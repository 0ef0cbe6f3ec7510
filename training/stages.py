"""Stages of a training run: each leaves a folder named by everything that decides its content.

    work/
        lock                     held by the run at work
        log.txt                  every line the run said, with the time
        NAME-HASH/               a finished stage: appears whole, by a rename
        NAME-HASH.part/          a stage at work, or cut off

HASH covers the stage's settings and its inputs: the hashes of earlier stages, digests of files. So a killed
run goes on where it was. A run after a change repeats only what the change touches, and a stage never reads
another setting's output. A stage that was cut off begins anew, unless it can go on from its folder (training
does, from checkpoints).
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from pltz.models import Session, Target, publish, resolve, tokenizer_json_of
from pltz.plt_codec import ModelError, UsageError
from pltz.training.data.records import LabelledSession
from pltz.training.digests import digest
from pltz.training.settings import Teacher, TrainSettings

VERSION = 1  # of the stages' behaviour: a new version repeats all of them
Say = Callable[[str], None]
Read = Callable[[str], Iterator[Session]]  # a file or folder -> its sessions
# bundle folder, records, content bytes per source -> figures
Measure = Callable[[Path, list[LabelledSession], int], dict[str, Any]]


class WorkFolder:
    """The work folder of a run; a context manager that holds its lock.

    Args:
        root: made if it does not exist.
        tell: called with every line that goes to the log too.

    Raises:
        UsageError: another run holds the folder.
    """

    def __init__(self, root: Path, tell: Say) -> None:
        self.root, self._tell = root, tell
        self._start = time.monotonic()
        root.mkdir(parents=True, exist_ok=True)
        self._lock: IO[bytes] = (root / "lock").open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            self._lock.close()
            raise UsageError(f"another run works in {root}: wait for it, or choose another work folder") from exc
        self._log = (root / "log.txt").open("a", encoding="utf8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.close()
        self._lock.close()

    def say(self, line: str) -> None:
        """Write one line to the log and to the caller's `tell`."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        print(f"{stamp} {line}", file=self._log, flush=True)
        self._tell(f"{time.monotonic() - self._start:7.1f} s  {line}")

    def stage(self, name: str, key: Any, build: Callable[[Path], None], *, resumes: bool = False) -> Path:
        """Return the folder of a stage, built by `build(folder)` unless it is there.

        Args:
            key: JSON of everything that decides the content.
            resumes: `build` can go on from the files that an earlier run left in the folder.
        """
        final = self.root / f"{name}-{digest([VERSION, name, key])}"
        if final.is_dir():
            self.say(f"{name}: done before, in {final.name}")
            return final
        part = final.with_name(final.name + ".part")
        if part.is_dir() and not resumes:
            shutil.rmtree(part)
        self.say(f"{name}: {'goes on' if part.is_dir() else 'begins'}")
        part.mkdir(exist_ok=True)
        began = time.monotonic()
        build(part)
        publish(part, final)
        self.say(f"{name}: done in {time.monotonic() - began:.1f} s")
        return final


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
        deadline: of `time.monotonic`, at which training stops with a snapshot; inf: none.
    """

    output: Path
    work: Path
    read: Read
    measure: Measure
    device: str
    processes: int
    force: bool
    tell: Say
    deadline: float = math.inf


class RunContext:
    """Settings, run and work folder, on which the stages (corpus.py, pipeline.py) are built."""

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
