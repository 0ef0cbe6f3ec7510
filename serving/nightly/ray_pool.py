"""Shards on a Ray cluster (extra ``ray``): one actor per worker, each with its own writer of the archive.

Sources, archive and state folder must be at the same paths on every node: a shared file system, a bucket, a
database. Ray restarts an actor that dies, and its shard is repeated. Sessions it had put are found in the
archive, whether or not their receipts exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pltz.plt_codec.errors import UsageError
from pltz.serving.nightly.config import Config
from pltz.serving.nightly.freeze import Freezer
from pltz.serving.nightly.run_stats import RunStats
from pltz.serving.nightly.sources.source import Shard

AHEAD = 2  # shards under way per actor
TRIES = 2  # retries of a shard whose actor died


def load() -> Any:
    """Return the library. Raises UsageError where it is not installed."""
    try:
        import ray
    except ImportError as exc:
        raise UsageError("--engine ray needs Ray: pip install 'pltz[ray]'") from exc
    return ray


def frozen(config: Config, run: int, shards: Iterable[Shard], address: str | None) -> Iterator[RunStats]:
    """Yield tallies as they come.

    ``address``: of the cluster. None uses that of RAY_ADDRESS, else one on this machine. Raises UsageError
    where Ray is missing or no cluster answers.
    """
    ray = load()
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False)
        except (ConnectionError, ValueError) as exc:
            raise UsageError(f"no Ray cluster at {address}: {exc}") from exc
    try:
        yield from _run(ray, config, run, iter(shards))
    finally:
        if started:
            ray.shutdown()


def _run(ray: Any, config: Config, run: int, shards: Iterator[Shard]) -> Iterator[RunStats]:
    maker = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=TRIES)(Freezer)
    actors = [maker.remote(config, run) for _ in range(config.workers)]
    running: dict[Any, tuple[Shard, Any]] = {}
    free = [actor for actor in actors for _ in range(AHEAD)]
    while True:
        while free and (shard := next(shards, None)):
            actor = free.pop(0)
            running[actor.freeze.remote(shard)] = shard, actor
        if not running:
            return
        done, _ = ray.wait(list(running), num_returns=1)
        for task in done:
            shard, actor = running.pop(task)
            free.append(actor)
            yield _result(ray, task, shard)


def _result(ray: Any, task: Any, shard: Shard) -> RunStats:
    try:
        tally: RunStats = ray.get(task)
        return tally
    except ray.exceptions.RayError as exc:
        why = str(exc).strip().splitlines()[-1:] or [type(exc).__name__]
        return RunStats(
            shard.source, failures=[f"{shard.place}: Ray says: {why[0]}: it is left for the next run"]
        )
