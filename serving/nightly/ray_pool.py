"""Shards on a Ray cluster (extra ``ray``): one actor per worker, each with its own writer of the archive.

Sources, archive and state folder must be at the same paths on every node: a shared file system, a bucket, a
database. Ray restarts an actor that dies, and its shard is repeated (`bulk_ray.py`). Sessions it had put are found in
the archive, whether or not their receipts exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pltz.archive.maintenance import bulk_ray
from pltz.serving.nightly.config import Config
from pltz.serving.nightly.freeze import Freezer
from pltz.serving.nightly.run_stats import RunStats
from pltz.serving.nightly.sources.source import SourceShard


def frozen(config: Config, run: int, shards: Iterable[SourceShard], address: str | None) -> Iterator[RunStats]:
    """Yield tallies as they come.

    ``address``: of the cluster. None uses that of RAY_ADDRESS, else one on this machine. Raises UsageError
    where Ray is missing or no cluster answers.
    """
    with bulk_ray.cluster(address) as ray:
        for shard, answer in bulk_ray.calls(ray, Freezer, (config, run), "freeze", shards, config.workers):
            if isinstance(answer, Exception):
                why = str(answer).strip().splitlines()[-1:] or [type(answer).__name__]
                words = f"{shard.place}: Ray says: {why[0]}: it is left for the next run"
                answer = RunStats(shard.source, failures=[words])
            yield answer
