"""Engines: who freezes the shards. Each gives the tallies as they come, with at most a few shards on their way at a time.

    (none)     this process: `freeze.Freezer` is all there is to it
    processes  ``workers`` processes of this machine, each its own writer of the archive
    ray        tasks of a Ray cluster (`ray_engine.py`)

A process that dies (out of memory, killed) takes its pool with it: what it had not finished is done again by a new pool, shard by
shard, and a shard that ends a process twice is given up and named.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection

from pltz.archive.nightly.config import Config
from pltz.archive.nightly.freeze import Freezer
from pltz.archive.nightly.shard import Shard
from pltz.archive.nightly.tally import Tally

AHEAD = 2  # shards on their way for each process

_freezer: Freezer | None = None  # of this process, where it is one of a pool


def processes(config: Config, run: int, shards: Iterable[Shard]) -> Iterator[Tally]:
    """In ``config.workers`` processes."""
    lost: list[Shard] = []
    rows = iter(shards)
    while True:
        broken = yield from _pool(config, run, rows, config.workers, lost)
        if not broken:
            break
    for shard in lost:  # one at a time, so that it is known which one it was
        again: list[Shard] = []
        yield from _pool(config, run, iter([shard]), 1, again)
        if again:
            words = f"{shard.place}: the process that froze it died, twice: it is left for the next run"
            yield Tally(shard.source, failures=[words])


def _pool(
    config: Config, run: int, shards: Iterator[Shard], workers: int, lost: list[Shard]
) -> Generator[Tally, None, bool]:
    """Work until there are no more shards; True where the pool broke: then ``lost`` has what was on its way."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start, (config, run)) as pool:
        running: dict[Future[Tally], Shard] = {}
        try:
            while True:
                while len(running) < AHEAD * workers and (shard := next(shards, None)):
                    lost.append(shard)  # until the pool has it
                    running[pool.submit(_freeze, shard)] = lost.pop()
                if not running:
                    return False
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    tally = future.result()
                    del running[future]
                    yield tally
        except BrokenProcessPool:
            lost += running.values()
            return True
        finally:
            pool.shutdown(cancel_futures=True)


def _start(config: Config, run: int) -> None:
    global _freezer
    threading.Thread(target=_follow, daemon=True).start()
    _freezer = Freezer(config, run)


def _follow() -> None:
    """Die with the parent, even where that one was killed: the next run may already be at work."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _freeze(shard: Shard) -> Tally:
    assert _freezer is not None
    return _freezer.freeze(shard)
