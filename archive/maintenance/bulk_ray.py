"""Ray (extra ``ray``): actors that do shards, each opening its task once.

    with cluster("auto") as ray:
        for shard, answer in calls(ray, Freezer, (config, run), "freeze", shards, workers): ...

Ray restarts an actor that dies (out of memory, killed, a lost node), and repeats its shards. Every path that a task
names must mean the same on all nodes: a shared file system, a bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from pltz.archive.errors import ArchiveError
from pltz.archive.maintenance.bulk_journal import Result
from pltz.archive.maintenance.bulk_shards import Shard, ShardTask, ShardWork
from pltz.plt_codec.errors import PltzError, UsageError

AHEAD = 2  # shards under way per actor
TRIES = 2  # retries of a shard whose actor died

S = TypeVar("S")


def load() -> Any:
    """Return the library. Raises UsageError where it is not installed."""
    try:
        import ray
    except ImportError as exc:
        raise UsageError("bulk work on Ray needs Ray: pip install 'pltz[ray]'") from exc
    return ray


@contextmanager
def cluster(address: str | None) -> Iterator[Any]:
    """Connect to a Ray cluster, unless this process is connected, and yield the library.

    ``address``: of the cluster. None uses that of RAY_ADDRESS, else one on this machine. Raises UsageError where Ray is
    missing or no cluster answers.
    """
    ray = load()
    if ray.is_initialized():
        yield ray
        return
    try:
        how = {} if address and address.startswith("ray://") else {"include_dashboard": False}
        ray.init(address=address, log_to_driver=False, **how)
    except (ConnectionError, ValueError) as exc:
        raise UsageError(f"no Ray cluster at {address}: {exc}") from exc
    try:
        yield ray
    finally:
        ray.shutdown()


def calls(
    ray: Any, maker: type, arguments: Sequence[Any], method: str, shards: Iterable[S], workers: int
) -> Iterator[tuple[S, Any]]:
    """Call a method of an actor for each shard and yield shards with answers, in any order.

    ``maker``, ``arguments``: make an actor. A shard with a true ``barrier`` begins after all before it. An answer is
    what the method returned, or the error that it raised, or a RayError.
    """
    actor_of = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=TRIES)(maker)
    actors = [actor_of.remote(*arguments) for _ in range(workers)]
    running: dict[Any, tuple[S, Any]] = {}
    free = [actor for actor in actors for _ in range(AHEAD)]
    rows, held = iter(shards), list[S]()  # a shard that waits for all others
    try:
        while True:
            while free and (shard := held.pop() if held else next(rows, None)) is not None:
                if running and getattr(shard, "barrier", False):
                    held.append(shard)
                    break
                actor = free.pop(0)
                running[getattr(actor, method).remote(shard)] = shard, actor
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1)
            for call in done:
                shard, actor = running.pop(call)
                free.append(actor)
                try:
                    answer = ray.get(call)
                except ray.exceptions.RayTaskError as exc:
                    answer = exc.cause if isinstance(exc.cause, Exception) else exc
                except ray.exceptions.RayError as exc:
                    answer = exc
                yield shard, answer
    finally:
        for actor in actors:
            ray.kill(actor)


class RayWorkers:
    """The processors of a Ray cluster as workers. ``count``: of them; None: all that the cluster has."""

    def __init__(self, ray: Any, count: int | None = None) -> None:
        self._ray = ray
        self.count = count or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def results(self, task: ShardTask, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Result]]:
        """Yield each shard with its result, in any order.

        Raises the errors of the task's function, ArchiveError where a shard ended several workers.
        """
        for shard, answer in calls(self._ray, ShardWorker, (task,), "run", shards, self.count):
            if isinstance(answer, self._ray.exceptions.RayError):
                why = str(answer).strip().splitlines()[-1:] or [type(answer).__name__]
                raise ArchiveError(
                    f"a worker of Ray died on a shard, and each that tried again ({why[0]}): finished shards are kept, "
                    "run the command again"
                )
            if isinstance(answer, Exception):
                raise answer
            yield shard, answer


class ShardWorker:
    """One worker."""

    def __init__(self, task: ShardTask) -> None:
        self._task = task
        self._work: ShardWork | None = None

    def run(self, shard: Shard) -> Result:
        """Return the result of a shard. Raises the errors of the task's function."""
        if self._work is None:
            self._work = self._task.open()  # here, so that its error reaches the coordinator as it is
        try:
            return self._work(shard.content)
        except PltzError:
            self._work = None  # what it read may be why: open the archive again for the next shard
            raise
