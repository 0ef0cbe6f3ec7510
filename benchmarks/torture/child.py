"""A child of the torture run: a forked process that works on the archive until it ends or is killed.

    child = Child("put", work, Fate(call=7), log)      # killed by SIGKILL before its 7th disk call
    for line in child.lines(): ...                     # its lines: {"ack": ...}
    child.ending                                       # "done", "killed", "refused"; None while it lives

A fork of a warm parent starts in milliseconds, where a fresh interpreter takes a second. The parent can read
a line after the kill if it was written to the pipe before: so a line is an acknowledgement.

There are two ways to die. The parent kills after a time, at any point of the code. Or the child kills itself
with the same signal before a disk call, or in the middle of a write. A crash matters most there, and random
times seldom hit it."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pltz.archive.storage.disk import OsDisk
from pltz.plt_codec.errors import PltzError

CALLS = ("write_new", "append", "overwrite", "sync_file", "link", "unlink", "sync_directory")
WRITES = ("write_new", "append", "overwrite")  # calls whose last argument is data
PIECE = 1 << 16  # bytes read from a pipe at once

Line = dict[str, Any]


@dataclass(frozen=True)
class Fate:
    """The time at which a child is killed, if at all.

    ``delay``: seconds after it began to work. ``call``: number, from 1, of the disk call before which it dies.
    ``torn``: half of a write is made before the kill."""

    delay: float | None = None
    call: int | None = None
    torn: bool = False


class Voice:
    """The child's end of the pipe to its parent, which takes JSON lines. It counts the disk calls once the work
    has begun."""

    def __init__(self, pipe: int, fate: Fate) -> None:
        self._pipe, self._fate = pipe, fate
        self._calls: int | None = None

    def begin(self) -> None:
        """Report that the archive is open and the work begins. Kills count from here."""
        self.tell({"begin": True})
        self._calls = 0

    def ack(self, **facts: Any) -> None:
        """Report an acknowledgement."""
        self.tell({"ack": facts})

    def tell(self, line: Line) -> None:
        """Write a whole line to the pipe."""
        rest = memoryview(json.dumps(line).encode() + b"\n")
        while rest:
            rest = rest[os.write(self._pipe, rest) :]

    def end(self) -> None:
        """Report how many disk calls the work took."""
        self.tell({"calls": self._calls or 0})

    def watch_disk(self) -> None:
        """Count every disk call of this process."""
        for name in CALLS:
            setattr(OsDisk, name, self._counted(name, getattr(OsDisk, name)))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if self._calls is not None:
                self._calls += 1
                if self._calls == self._fate.call:
                    if self._fate.torn and name in WRITES:
                        real(*args[:-1], args[-1][: len(args[-1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)

        return call


def skew_clock(seconds: int) -> None:
    """Set the clock of this process's archives that many seconds forward, or back."""
    setattr(OsDisk, "now", lambda self: int(time.time()) + seconds)  # noqa: B010


class Child:
    """A running child. ``began``: monotonic seconds when its work began, or None. ``seconds``: how long the
    work took."""

    def __init__(self, kind: str, work: Callable[[Voice], None], fate: Fate, log: Path) -> None:
        self.kind, self.fate = kind, fate
        self.ending: str | None = None
        self.error: Line | None = None
        self.calls = 0
        self.started = time.monotonic()
        self.began: float | None = None
        self.seconds = 0.0
        self._rest = b""
        self.pipe, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.pipe)
            _live(work, Voice(write, fate), log)
        os.close(write)
        os.set_blocking(self.pipe, False)

    def kill(self) -> None:
        """Send SIGKILL. The child's earlier lines can still be read."""
        if self.ending is None:
            os.kill(self.pid, signal.SIGKILL)

    def due(self, now: float) -> float | None:
        """Return the seconds until the parent has to kill it, or None where it does not."""
        if self.fate.delay is None or self.began is None:
            return None
        return self.began + self.fate.delay - now

    def lines(self) -> Iterator[Line]:
        """Yield the child's lines since the last call. Set ``ending`` once it is dead and all lines were
        read."""
        while self.ending is None:
            try:
                data = os.read(self.pipe, PIECE)
            except BlockingIOError:
                return
            if not data:
                self._reap()
                return
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                yield from self._heard(json.loads(line))

    def _heard(self, line: Line) -> Iterator[Line]:
        if "begin" in line:
            self.began = time.monotonic()
        elif "calls" in line:
            self.calls = line["calls"]
        elif "error" in line:
            self.error = line
        else:
            yield line

    def _reap(self) -> None:
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        self.seconds = time.monotonic() - (self.began or self.started)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            self.ending = "killed" if number == signal.SIGKILL else f"ended by signal {number}"
        else:
            self.ending = "refused" if self.error else "done"


def _live(work: Callable[[Voice], None], voice: Voice, log: Path) -> None:
    """Run the child: work, report how it went, and exit without running the parent's exit handlers."""
    try:
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        voice.watch_disk()
        work(voice)
        voice.end()
    except BaseException as exc:  # noqa: BLE001  # the parent decides what may be refused
        os.write(2, traceback.format_exc().encode(errors="replace"))
        expected = isinstance(exc, PltzError)
        voice.tell({"error": type(exc).__name__, "text": str(exc), "expected": expected})
    finally:
        os._exit(0)
