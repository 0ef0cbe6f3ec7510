"""Bulk work in shards: what a command does to a shard is done by workers, and the results come back in order.

    task ------------------> worker: task.open() once, then its function for each shard
    shards: Shard(name, content) -> worker -> result -> journal -> the coordinator, in the order of the shards

A command's task is a value that pickles: how to open the archive, and the options. Its function is the one that the
command calls on a single machine, so that both give one report. `OneProcess` runs shards here,
`bulk_ray.RayWorkers` on a cluster. A shard that the journal has is not done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pltz.archive.errors import ArchiveError
from pltz.archive.maintenance.bulk_journal import BulkJournal, Result
from pltz.plt_codec.identity import digest

T = TypeVar("T")
ShardWork = Callable[[Any], Result]


class ShardTask(Protocol):
    """Work on shards. It pickles, and is opened once by each worker."""

    def open(self) -> ShardWork:
        """Return the function that does a shard's content and returns its result. Raises PltzError."""


@dataclass(frozen=True)
class Shard:
    """A part of the work.

    Attributes:
        name: digest, in hex, of the work, the things in it and their state; empty: it is never in a journal.
        content: what the task's function takes; it pickles.
        barrier: whether it begins only after all shards before it are done.
    """

    name: str
    content: Any
    barrier: bool = False


class ShardWorkers(Protocol):
    """Workers that do shards."""

    def results(self, task: ShardTask, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Result]]:
        """Yield each shard with its result, in any order. Raises the errors of the task's function."""


@dataclass(frozen=True)
class Spread:
    """The machines of a bulk work, and how far it came.

    Attributes:
        workers: that do the shards.
        journal: of finished shards; None keeps none.
        want: called before a result is taken; it raises where this coordinator lost its lease.
    """

    workers: ShardWorkers
    journal: BulkJournal | None = None
    want: Callable[[], None] = field(default=lambda: None)

    def results(
        self, task: ShardTask, shards: Iterable[Shard], holds: Callable[[Result], bool] = lambda _: True
    ) -> Iterator[tuple[Shard, Result]]:
        """Yield all shards with their results, in order.

        ``holds``: whether a result of the journal still holds for the archive as it is now.

        Raises the errors of the task's function, StoreError, and ArchiveError where the lease was lost. Finished shards
        stay in the journal.
        """
        numbers: dict[int, int] = {}  # of shards under way, by identity
        done: dict[int, tuple[Shard, Result | None]] = {}  # None: it is in the journal
        last = 0  # number of the shard that is yielded next

        def left() -> Iterator[Shard]:
            for number, shard in enumerate(shards):
                if (found := self._found(shard)) is not None and holds(found):
                    done[number] = shard, None
                    continue
                numbers[id(shard)] = number
                yield shard

        def ready() -> Iterator[tuple[Shard, Result]]:
            nonlocal last
            while last in done:
                shard, result = done.pop(last)
                if result is None and (result := self._found(shard)) is None:
                    raise ArchiveError(
                        "a result is gone from the journal: another run emptied it, or it is a day old: run it again"
                    )
                yield shard, result
                last += 1

        for shard, result in self.workers.results(task, left()):
            self.want()
            if self.journal and shard.name:
                self.journal.keep(shard.name, result)
            done[numbers.pop(id(shard))] = shard, result
            yield from ready()
        yield from ready()

    def _found(self, shard: Shard) -> Result | None:
        return self.journal.find(shard.name) if self.journal and shard.name else None

    def clear(self) -> None:
        """Drop the journal: all is done. Raises StoreError."""
        if self.journal:
            self.journal.clear()


class OneProcess:
    """This process as the only worker."""

    def results(self, task: ShardTask, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Result]]:
        """Yield each shard with its result, in order. Raises the errors of the task's function."""
        work: ShardWork | None = None
        for shard in shards:
            work = work or task.open()
            yield shard, work(shard.content)


def shard_name(*parts: bytes | str) -> str:
    """Return the name of a shard: a digest of the work, the things in it and their state, in hex."""
    rows = [part.encode() if isinstance(part, str) else part for part in parts]
    return digest(b"pltz bulk name", *(len(row).to_bytes(8, "big") + row for row in rows)).hex()


def cut(rows: Sequence[T], key: Callable[[T], bytes], count: int) -> Iterator[Sequence[T]]:
    """Yield runs of about ``count`` rows. ``key``: returns a row's id, uniform random bytes.

    Where a run ends is told by the id at its end, so that a new row changes one run and no other.

    >>> [len(run) for run in cut([bytes([n]) for n in range(8)], lambda row: row, 4)]
    [1, 4, 3]
    """
    mask, begin = (1 << max(0, count - 1).bit_length()) - 1, 0
    for end, row in enumerate(rows, 1):
        if not int.from_bytes(key(row), "big") & mask:
            yield rows[begin:end]
            begin = end
    if begin < len(rows):
        yield rows[begin:]
