"""Engines: who freezes the shards. Each gives the tallies as they come, with at most a few shards on their way at a time.

    (none)     this process: `freeze.Freezer` is all there is to it
    processes  ``workers`` processes of this machine, each its own writer of the archive
    ray        tasks of a Ray cluster (`ray_engine.py`)

A process that dies (out of memory, killed) costs its shard one more try, in a new process; a shard that ends a process twice is given up and
named. Each process has a pipe of its own: nothing is shared that one that was killed could hold on to.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator
from multiprocessing import connection

from pltz.archive.child_python import leave_safe_path, safe_path
from pltz.archive.nightly.config import Config
from pltz.archive.nightly.freeze import Freezer
from pltz.archive.nightly.run_stats import Tally
from pltz.archive.nightly.sources.source import Shard

TRIES = 2  # processes that a shard may end


def processes(config: Config, run: int, shards: Iterable[Shard]) -> Iterator[Tally]:
    """In ``config.workers`` processes. Raises what freezing a shard raised."""
    rows = ((shard, 0) for shard in shards)
    again: list[tuple[Shard, int]] = []
    busy: dict[int, tuple[_Process, Shard, int]] = {}  # by sentinel
    idle: list[_Process] = []
    try:
        while True:
            while len(busy) < config.workers and (work := again.pop() if again else next(rows, None)):
                process = idle.pop() if idle else _Process(config, run)
                process.give(work[0])
                busy[process.sentinel] = process, *work
            if not busy:
                return
            for sentinel in _ready(busy):
                process, shard, deaths = busy.pop(sentinel)
                tally = process.take()
                if tally is not None:
                    idle.append(process)
                    yield tally
                elif deaths + 1 < TRIES:
                    again.append((shard, deaths + 1))
                else:
                    words = (
                        f"{shard.place}: the process that froze it died, twice: it is left for the next run"
                    )
                    yield Tally(shard.source, failures=[words])
    finally:
        for process in [*idle, *(one for one, _, _ in busy.values())]:
            process.stop()


class _Process:
    """A process that freezes one shard after the other."""

    def __init__(self, config: Config, run: int):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(config, run, theirs), daemon=True)
        with safe_path():
            self._process.start()
        theirs.close()  # the child's copy alone is left, so its death ends the pipe
        self.sentinel = self._process.sentinel

    def give(self, shard: Shard) -> None:
        """Have it freeze a shard. A dead process is found out by `take`."""
        try:
            self.pipe.send(shard)
        except OSError:
            pass

    def take(self) -> Tally | None:
        """The tally of the shard; None where the process died. Raises what freezing raised."""
        try:
            found = self.pipe.recv()
        except (EOFError, OSError):
            self.stop()
            return None
        if isinstance(found, BaseException):
            raise found
        assert isinstance(found, Tally)
        return found

    def stop(self) -> None:
        """End it, whatever it does; a shard half done is done again by the next run."""
        self.pipe.close()
        self._process.kill()
        self._process.join()


def _ready(busy: dict[int, tuple[_Process, Shard, int]]) -> list[int]:
    """Sentinels of the processes that have answered or died."""
    pipes = [process.pipe for process, _, _ in busy.values()]
    found = set(connection.wait([*pipes, *busy]))
    return [
        sentinel
        for sentinel, (process, _, _) in busy.items()
        if not found.isdisjoint((sentinel, process.pipe))
    ]


def _work(config: Config, run: int, pipe: connection.Connection) -> None:
    """What a process does: shards from the pipe, tallies back, until the pipe ends."""
    leave_safe_path()
    threading.Thread(target=_follow, daemon=True).start()
    freezer = Freezer(config, run)
    while True:
        try:
            shard = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(freezer.freeze(shard))
        except Exception as exc:  # noqa: BLE001  # whatever it is: the parent raises it
            pipe.send(exc)


def _follow() -> None:
    """Die with the parent, even where that one was killed: the next run may already be at work."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
