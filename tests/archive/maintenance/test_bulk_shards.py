"""Shards come back in order, those of a journal are not done again, and two coordinators exclude each other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz.archive.errors import ArchiveError
from pltz.archive.maintenance.bulk_journal import BulkJournal, Result
from pltz.archive.maintenance.bulk_lease import BulkLease
from pltz.archive.maintenance.bulk_shards import (
    OneProcess,
    Shard,
    ShardTask,
    ShardWork,
    Spread,
    cut,
    shard_name,
)
from pltz.archive.storage.store import DirectoryStore, Store
from pltz.plt_codec.identity import digest
from tests.archive.simulated_disk import SimDisk


@dataclass
class Double:
    """A task that doubles numbers and notes which it was given."""

    seen: list[int] = field(default_factory=list)

    def open(self) -> ShardWork:
        def work(number: int) -> Result:
            self.seen.append(number)
            return {"twice": 2 * number, "rows": np.arange(number)}

        return work


class Backwards:
    """Workers that take all shards and give the last result first."""

    def results(self, task: ShardTask, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Result]]:
        yield from reversed(list(OneProcess().results(task, shards)))


SHARDS = [Shard(shard_name("double", bytes([n])), n) for n in range(6)]


def doubled(spread: Spread, task: Double, **how: Any) -> list[int]:
    found = []
    for shard, result in spread.results(task, SHARDS, **how):
        assert len(result["rows"]) == shard.content
        found.append(result["twice"])
    return found


@pytest.mark.parametrize("workers", [OneProcess(), Backwards()])
def test_results_come_in_order_and_are_done_once(tmp_path: Path, workers: Any) -> None:
    task = Double()
    journal = BulkJournal.at(str(tmp_path / "j"))
    for n in (0, 3):
        journal.keep(SHARDS[n].name, {"twice": 2 * n, "rows": np.arange(n)})
    again = BulkJournal.at(str(tmp_path / "j"))
    assert doubled(Spread(workers, again), task) == [0, 2, 4, 6, 8, 10]
    assert task.seen == [1, 2, 4, 5]
    assert doubled(Spread(workers, BulkJournal.at(str(tmp_path / "j"))), task) == [0, 2, 4, 6, 8, 10]
    assert task.seen == [1, 2, 4, 5]
    # a result that no longer holds is made again
    assert doubled(Spread(workers, again), task, holds=lambda r: r["twice"] != 6) == [0, 2, 4, 6, 8, 10]
    assert task.seen == [1, 2, 4, 5, 3]
    again.clear()
    assert not list((tmp_path / "j/shards").iterdir())


def test_a_journal_that_another_run_empties_is_a_named_error(tmp_path: Path) -> None:
    journal = BulkJournal.at(str(tmp_path))
    journal.keep(SHARDS[5].name, {"twice": 10, "rows": np.arange(5)})
    found = Spread(Backwards(), journal).results(Double(), SHARDS)
    next(found)
    BulkJournal.at(str(tmp_path)).clear()
    with pytest.raises(ArchiveError, match="run it again"):
        list(found)


def test_a_result_counts_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check again what was sound a day ago: it may be damaged since."""
    journal = BulkJournal.at(str(tmp_path))
    journal.keep(SHARDS[2].name, {"twice": 4, "rows": np.arange(2)})
    begun = journal.store.now()
    for later, known in ((86_000, True), (87_000, False), (-10, False)):
        monkeypatch.setattr(journal.store, "now", lambda: begun + later)  # noqa: B023
        assert (journal.find(SHARDS[2].name) is not None) == known


def test_a_damaged_result_is_made_again(tmp_path: Path) -> None:
    journal = BulkJournal.at(str(tmp_path))
    journal.keep(SHARDS[2].name, {"twice": 4, "rows": np.arange(2)})
    [file] = (tmp_path / "shards").iterdir()
    whole = file.read_bytes()
    file.chmod(0o644)
    for data in (whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], b"", whole + b"x"):
        file.write_bytes(data)
        assert BulkJournal.at(str(tmp_path)).find(SHARDS[2].name) is None
    # one under the name of another shard is no result either
    file.write_bytes(whole)
    file.rename(file.with_name(SHARDS[3].name))
    assert BulkJournal.at(str(tmp_path)).find(SHARDS[3].name) is None
    task = Double()
    assert doubled(Spread(OneProcess(), BulkJournal.at(str(tmp_path))), task)[3] == 6 and len(task.seen) == 6


def test_a_new_id_changes_one_run() -> None:
    rows = sorted(digest(b"bulk test", bytes([n])) for n in range(200))
    runs = {tuple(run) for run in cut(rows[:50] + rows[51:], lambda row: row, 8)}
    more = {tuple(run) for run in cut(rows, lambda row: row, 8)}
    assert sum(map(len, more)) == 200 and 10 < len(more) < 60
    assert len(more - runs) <= 2


def store_of(disk: SimDisk) -> Store:
    store = DirectoryStore(disk)
    store.make()
    store.put("archive.json", b"{}")
    return store


def test_one_coordinator_at_a_time() -> None:
    store = store_of(SimDisk())
    with BulkLease(store, "copy") as lease:
        lease.want()
        with pytest.raises(ArchiveError, match=r"another coordinator is at work.*copy"), BulkLease(store, "merge"):
            pass
    with BulkLease(store, "merge"):
        pass


def test_the_lease_of_a_dead_coordinator_ends_and_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(SimDisk())
    with BulkLease(store, "copy", seconds=1000) as old:
        begun = store.now()
        monkeypatch.setattr(SimDisk, "now", lambda self: begun + 2000)
        with BulkLease(store, "merge", seconds=1000), pytest.raises(ArchiveError, match="merge"):
            old._swap(1000)


def test_a_lease_is_renewed_and_its_loss_stops_the_work() -> None:
    disk = SimDisk()
    store = store_of(disk)
    task = Double()
    with BulkLease(store, "copy", seconds=1) as lease:
        first = lease._content
        until = time.monotonic() + 10
        while lease._content == first and time.monotonic() < until:
            time.sleep(0.05)
        assert lease._content != first
        stolen = b'{"holder": "another", "until": 9999999999, "what": "merge"}'
        while (found := store.swap("bulk", stolen, store.load("bulk"))) is None or found.data != stolen:
            continue  # it was renewed between the two
        while lease._lost is None and time.monotonic() < until:
            time.sleep(0.05)
        with pytest.raises(ArchiveError, match=r"another coordinator took the lease.*merge"):
            doubled(Spread(OneProcess(), want=lease.want), task)
    content = store.load("bulk", None)
    assert content and content.data == stolen, "the lease of another is left as it is"
