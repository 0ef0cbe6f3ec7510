"""Power cuts at every change of the disk, from eviction to archive: exactly the durable entries are stored, once."""

import itertools
from collections.abc import Callable

import pytest

from pltz.archive.errors import StoreError
from pltz.archive.storage.store import DirectoryStore
from pltz.coding.codecs.codec import SegmentCodec
from pltz.plt_codec.errors import PltzError
from pltz.serving.eviction.journal.entry import JournalEntry
from pltz.serving.eviction.journal.writer import Journal
from tests.archive.simulated_disk import DiskState, SimDisk
from tests.archive.towers import TowerArchive
from tests.serving.eviction.conftest import Bench, entry

Facts = tuple[str, tuple[int, ...]]


class Life:
    """A process that evicts and archives, with its possible crashes. The next process checks each of them."""

    def __init__(self, bench: Bench, segment: int = 1 << 20) -> None:
        self.bench, self.disk = bench, bench.disk
        self.journal = Journal(bench.disk, bench.locks, segment=segment)
        self.durable: list[Facts] = []  # reported so
        self.offered: set[Facts] = set()
        self.cases = self.opened = 0
        self._known: set[tuple[frozenset[tuple[str, bytes]], int]] = set()
        self.disk.watch = self.crash

    def evict(self, *entries: JournalEntry) -> None:
        facts = [(e.name, tuple(e.ids.tolist())) for e in entries]
        self.offered |= set(facts)
        self.journal.append([e.encode() for e in entries])
        self.durable += facts

    def work(self) -> None:
        self.bench.worker(batch_tokens=40).once()

    def restart(self) -> None:
        """Die and start again. The old segments have no owner."""
        self.bench.locks.held.clear()  # the files stay
        self.journal = Journal(self.disk, self.bench.locks, segment=self.journal.segment)

    def crash(self) -> None:
        for state in self.disk.crashes("tmp", "parity"):
            self.cases += 1
            files = frozenset((p, d) for p, d in state.files().items() if not p.startswith("tmp/"))
            if (files, len(self.durable)) not in self._known:
                self._known.add((files, len(self.durable)))
                self.opened += 1
                self.check(state)

    def check(self, state: DiskState) -> None:
        """Start after a crash, let the worker run, and compare."""
        disk = SimDisk(state, seed=self.opened)
        after = Bench(disk, self.bench.codec)
        after.worker().once()
        found = [(name, tuple(ids)) for name, ids in after.versions()]
        assert set(found) >= set(self.durable), (sorted(state.files()), found)
        assert set(found) <= self.offered and len(found) == len(set(found)), found
        of_archive = {"archive.json"}  # the archive is on the same disk
        left = [name for name in disk.seen.files() if "/" not in name and name not in of_archive]
        assert all(name.endswith((".damaged", "worker.lock")) for name in left), left


STEPS: dict[str, Callable[[Life, int], None]] = {
    "grow": lambda life, n: life.evict(entry("a", 10 + 5 * n)),
    "evict two": lambda life, n: life.evict(entry("b", 10 + n, 1), entry("a", 12 + 5 * n)),
    "work": lambda life, n: life.work(),
    "restart": lambda life, n: life.restart(),
}


@pytest.mark.parametrize("segment", [1 << 20, 100], ids=["appended", "rotated"])
def test_every_crash_from_eviction_to_archive(codec: SegmentCodec, segment: int) -> None:
    """Run all workloads of three steps after the first on growing sessions.

    The steps begin a session, continue it, archive, mark, adopt and delete.
    """
    cases = opened = 0
    crashed: set[tuple[str, ...]] = set()  # workloads that were crashed at each point, and are the beginning of others
    for steps in itertools.product(STEPS, repeat=3):
        disk = SimDisk()
        TowerArchive.create(DirectoryStore(disk), [codec])
        life = Life(Bench(disk, codec), segment)
        for number, step in enumerate(("grow", *steps)):
            life.disk.watch = (lambda: None) if steps[:number] in crashed else life.crash
            crashed.add(steps[:number])
            STEPS[step](life, number)
        disk.watch = lambda: None
        life.check(disk.durable)
        cases, opened = cases + life.cases, opened + life.opened
    print(f"{cases} crash cases, {opened} opened")
    assert cases > 700


def test_every_crash_after_a_start_that_adopts(bench: Bench) -> None:
    life = Life(bench)
    life.evict(entry("a", 10), entry("b", 10, 1))
    dead = SimDisk(life.disk.durable, seed=99)
    again = Life(Bench(dead, bench.codec))
    again.durable, again.offered = life.durable, set(life.offered)
    again.evict(entry("a", 30))
    again.work()
    again.journal.close()
    again.work()
    dead.watch = lambda: None
    again.check(dead.durable)
    assert not [name for name in dead.seen.names if name.endswith((".journal", ".done"))]


def test_every_crash_with_an_entry_that_is_refused(bench: Bench) -> None:
    """Quarantine entries that the archive cannot take, durably and without blocking the rest."""
    life = Life(bench)
    life.disk.watch = lambda: None
    strange = entry("x", 5, tokenizer=b"unknown tokenize")
    life.journal.append([entry("a", 10).encode(), strange.encode(), entry("b", 10, 1).encode()])
    states: list[DiskState] = []
    life.disk.watch = lambda: states.extend(life.disk.crashes("tmp", "parity"))
    done = bench.worker().once()
    life.journal.close()
    bench.worker().once()
    assert (done.stored, done.rejected, done.refused[0][1]) == (2, 1, "x")
    for number, state in enumerate([*states, life.disk.durable]):
        disk = SimDisk(state, seed=number)
        after = Bench(disk, bench.codec)
        after.worker().once()
        assert [name for name, _ in after.versions()] == ["a", "b"]
        [aside] = [d for p, d in disk.seen.files().items() if p.endswith(".refused")]
        assert strange.encode() in aside
    assert len(states) > 30


@pytest.mark.parametrize("call", range(1, 10))
def test_a_failing_disk_loses_nothing_that_was_durable(bench: Bench, call: int) -> None:
    """Let each call fail while evicting: the segment ends, and the next group goes into a new one."""
    life = Life(bench, segment=200)
    life.disk.watch = lambda: None
    life.disk.fail_at = {life.disk.calls + call: OSError(5, "Input/output error")}
    failed = 0
    for count in (10, 20, 30, 40):
        one = entry("a", count)
        try:
            life.evict(one)
        except StoreError:
            failed += 1
            before = dict(life.disk.seen.data)
            life.evict(one)  # again, as the hook does
            ended = {i for i, data in before.items() if life.disk.seen.data.get(i) != data}
            assert not ended  # nothing was appended to the old segment
    assert failed == 1
    life.check(life.disk.durable)


class NoSync(SimDisk):
    def sync_file(self, path: str) -> None:
        self.watch()


class NoDirectorySync(SimDisk):
    def sync_directory(self, path: str) -> None:
        self.watch()


@pytest.mark.parametrize("broken", [NoSync, NoDirectorySync])
def test_a_missing_sync_is_found(codec: SegmentCodec, broken: type[SimDisk], bench: Bench) -> None:
    life = Life(Bench(broken(bench.disk.seen), codec))
    with pytest.raises((AssertionError, PltzError)):
        life.evict(entry("a", 10))
        life.evict(entry("b", 10))
