"""A pool of processes of this machine that freezes the shards, and the pools that there are.

Each yields the tallies as they come, with a few shards under way at a time.

    (none)     this process: `freeze.Freezer` does it all
    processes  ``workers`` processes of this machine, each with its own writer of the archive
    ray        tasks of a Ray cluster (`ray_pool.py`)

If a process dies (out of memory, killed), its shard is tried once more in a new process. A shard that ends
two processes is given up and named. Each process has a pipe of its own, so a killed one cannot hold a shared
lock.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator
from multiprocessing import connection

from pltz.coding.child_python import leave_safe_path, safe_path
from pltz.serving.nightly.config import Config
from pltz.serving.nightly.freeze import Freezer
from pltz.serving.nightly.run_stats import RunStats
from pltz.serving.nightly.sources.source import SourceShard

TRIES = 2  # processes that a shard may end


def processes(config: Config, run: int, shards: Iterable[SourceShard]) -> Iterator[RunStats]:
    """Freeze shards in ``config.workers`` processes. Raises the errors of freezing a shard."""
    rows = ((shard, 0) for shard in shards)
    again: list[tuple[SourceShard, int]] = []
    busy: dict[int, tuple[_Process, SourceShard, int]] = {}  # by sentinel
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
                    yield RunStats(shard.source, failures=[words])
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
        theirs.close()  # only the child's copy is left, so its death ends the pipe
        self.sentinel = self._process.sentinel

    def give(self, shard: SourceShard) -> None:
        """Send it a shard to freeze. `take` detects a dead process."""
        try:
            self.pipe.send(shard)
        except OSError:
            pass

    def take(self) -> RunStats | None:
        """Return the tally of the shard, or None where the process died. Raises the errors of freezing."""
        try:
            found = self.pipe.recv()
        except (EOFError, OSError):
            self.stop()
            return None
        if isinstance(found, BaseException):
            raise found
        assert isinstance(found, RunStats)
        return found

    def stop(self) -> None:
        """Kill it, whatever it does. The next run repeats a half-done shard."""
        self.pipe.close()
        self._process.kill()
        self._process.join()


def _ready(busy: dict[int, tuple[_Process, SourceShard, int]]) -> list[int]:
    """Return the sentinels of the processes that have answered or died."""
    pipes = [process.pipe for process, _, _ in busy.values()]
    found = set(connection.wait([*pipes, *busy]))
    return [
        sentinel
        for sentinel, (process, _, _) in busy.items()
        if not found.isdisjoint((sentinel, process.pipe))
    ]


def _work(config: Config, run: int, pipe: connection.Connection) -> None:
    """Run a process: read shards from the pipe and write tallies back, until the pipe ends."""
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
        except Exception as exc:  # noqa: BLE001  # the parent raises any error
            pipe.send(exc)


def _follow() -> None:
    """Exit with the parent, even if it was killed, as the next run may already be at work."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
