"""Stages of a training run: each leaves a folder named by everything that decides its content.

    work/
        lock                     held by the run at work
        log.txt                  every line the run said, with the time
        NAME-HASH/               a finished stage: appears whole, by a rename
        NAME-HASH.part/          a stage at work, or cut off

HASH is of the stage's settings and of what goes into it: the hashes of earlier stages, digests of files. So a run that was killed goes on
where it was, a run after a change repeats what the change touches and nothing else, and a stage never reads what another setting made.
A stage that was cut off begins anew, unless it says that it can go on from what lies in its folder (training does, from checkpoints).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from pltz.plt_codec.errors import UsageError

VERSION = 1  # of what the stages do: another one repeats all of them
Say = Callable[[str], None]


class Work:
    """The work folder of a run; a context manager that holds its lock.

    Args:
        root: made if it does not exist.
        tell: gets every line that goes to the log too.

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
            raise UsageError(
                f"another run works in {root}: wait for it, or choose another work folder"
            ) from exc
        self._log = (root / "log.txt").open("a", encoding="utf8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.close()
        self._lock.close()

    def say(self, line: str) -> None:
        """One line for the log and for whoever looks on."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        print(f"{stamp} {line}", file=self._log, flush=True)
        self._tell(f"{time.monotonic() - self._start:7.1f} s  {line}")

    def stage(self, name: str, key: Any, build: Callable[[Path], None], *, resumes: bool = False) -> Path:
        """The folder of a stage, built by `build(folder)` unless it is there.

        Args:
            key: JSON of all that decides what is built.
            resumes: `build` can go on from what an earlier run left in the folder.
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


def publish(part: Path, final: Path) -> None:
    """Give a finished folder its name, all of it on disk before."""
    for path in part.rglob("*"):
        if path.is_file():
            sync(path)
    sync(part)
    os.rename(part, final)
    sync(final.parent)


def sync(path: Path) -> None:
    """Bring a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(key: Any) -> str:
    """16 hexadecimal digits of any JSON value."""
    text = json.dumps(key, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def digest_files(paths: list[str]) -> list[list[Any]]:
    """[name, digest] of every file, folders with all that is in them. Raises UsageError where one is missing."""
    found: list[list[Any]] = []
    for name in paths:
        path = Path(name)
        if not path.exists():
            raise UsageError(f"expected a file or a folder, found nothing at {name}")
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            with file.open("rb") as f:
                found.append(
                    [file.name, hashlib.file_digest(f, lambda: hashlib.blake2b(digest_size=16)).hexdigest()]
                )
    return found
