"""A journal that fills its disk still drains, and no kill in between loses or duplicates an entry."""

import errno
import os
import random
import subprocess
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from pltz.archive.errors import StoreError
from pltz.archive.storage.disk import OsDisk
from pltz.archive.storage.store import DirectoryStore
from pltz.coding.codecs.codec import SegmentCodec
from pltz.serving.eviction.journal.entry import JournalEntry
from pltz.serving.eviction.journal.lock import FileLocks
from pltz.serving.eviction.journal.reader import JournalReader
from pltz.serving.eviction.journal.writer import Journal
from pltz.serving.eviction.tokenizers import Tokenizers
from pltz.serving.eviction.worker import Worker
from tests.archive.simulated_disk import BLOCK, DiskState, SimDisk
from tests.archive.towers import TowerArchive
from tests.serving.eviction.conftest import Bench, MemoryLocks, entry

Facts = tuple[str, tuple[int, ...]]


class Two:
    """A journal on a small disk of its own, and an archive on another that has room."""

    def __init__(self, codec: SegmentCodec, disk: SimDisk, cold: SimDisk) -> None:
        self.codec, self.disk, self.bench = codec, disk, Bench(cold, codec)
        self.locks = MemoryLocks(disk)
        self.backlog = JournalReader(disk, self.locks)

    def worker(self) -> Worker:
        return Worker(self.backlog, Tokenizers(self.disk), lambda: self.bench.archive().cold, batch_tokens=200)

    def facts(self) -> list[Facts]:
        return [(name, tuple(ids)) for name, ids in self.bench.versions()]


@pytest.fixture
def two(codec: SegmentCodec) -> Two:
    cold = SimDisk(seed=1)
    TowerArchive.create(DirectoryStore(cold), [codec])
    return Two(codec, SimDisk(), cold)


def fact(one: JournalEntry) -> Facts:
    return one.name, tuple(one.ids.tolist())


def fill(journal: Journal, begin: int = 0) -> list[JournalEntry]:
    """Evict until the disk is full, and return the entries that were reported durable."""
    durable: list[JournalEntry] = []
    for number in range(begin, begin + 10_000):
        one = entry(f"s{number}", 60, number)
        try:
            journal.append([one.encode()])
        except StoreError as exc:
            assert "No space left" in str(exc) and "hook drain" in str(exc)
            return durable
        durable.append(one)
    raise AssertionError("the disk never filled")


@pytest.mark.parametrize("segment", [1 << 20, 3000], ids=["one segment", "rotated"])
def test_a_journal_that_fills_its_disk_drains(two: Two, segment: int) -> None:
    two.disk.capacity = 10 * BLOCK
    journal = Journal(two.disk, two.locks, segment=segment)
    durable = fill(journal)
    assert two.worker().once().stored == len(durable) > 10
    assert two.disk.used == 0  # the segments are gone, though their process lives
    more = fill(journal, 10_000)
    two.worker().once()
    assert sorted(two.facts()) == sorted(map(fact, [*durable, *more]))


class CopyOnWrite(SimDisk):
    """A disk on which overwriting takes new space, as on btrfs and ZFS."""

    def overwrite(self, path: str, data: bytes) -> None:
        if self.capacity is not None and self.used + BLOCK > self.capacity:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().overwrite(path, data)


def test_a_journal_drains_where_no_mark_can_be_written(codec: SegmentCodec) -> None:
    cold = SimDisk(seed=1)
    TowerArchive.create(DirectoryStore(cold), [codec])
    two = Two(codec, CopyOnWrite(), cold)
    two.disk.capacity = 10 * BLOCK
    journal = Journal(two.disk, two.locks)
    durable, worker = fill(journal), two.worker()
    assert worker.once().stored == len(durable)
    assert worker.once().entries == len(durable)  # not again
    assert two.disk.used == 0 and sorted(two.facts()) == sorted(map(fact, durable))


def test_every_kill_while_a_full_journal_drains(two: Two, codec: SegmentCodec) -> None:
    """Kill at any change of either disk: the next worker archives all entries, none twice.

    Of what each moment may leave, one state is drawn: all of them are thousands.
    """
    two.disk.capacity = 6 * BLOCK
    durable = {fact(one) for one in fill(Journal(two.disk, two.locks, segment=9000))}
    two.locks.held.clear()
    left: list[tuple[DiskState, DiskState]] = []
    dice = random.Random(7)

    def crash() -> None:
        pairs = list(product(two.disk.crashes(), two.bench.disk.crashes("tmp", "parity")))
        left.append(dice.choice(pairs))

    two.disk.watch = two.bench.disk.watch = crash
    two.worker().once()
    assert len(left) > 100
    known = set()
    for mine, theirs in left:
        files = frozenset({**mine.files(), **theirs.files()}.items())
        if files in known:
            continue
        known.add(files)
        disk = SimDisk(mine)
        disk.capacity = 6 * BLOCK
        after = Two(codec, disk, SimDisk(theirs, seed=9 + len(known)))
        after.worker().once()
        found = after.facts()
        assert set(found) == durable and len(found) == len(durable) and disk.used == 0


def test_what_finds_no_room_to_be_laid_aside_holds_up_nothing_else(two: Two) -> None:
    """Keep the segment of a refused entry where there is no room for its file. All others are archived and deleted."""
    strange = entry("strange", 60, tokenizer=b"unknown tokenize")
    Journal(two.disk, two.locks).append([strange.encode(), entry("behind", 60, 1).encode()])
    two.disk.capacity = two.disk.used
    worker = two.worker()
    with pytest.raises(StoreError, match=r"\d+ bytes that have to be laid aside.*Free"):
        worker.once()
    assert worker.done.rejected == 0 and not worker.done.refused  # it is still in the journal
    assert [name for name, _ in two.facts()] == ["behind"]
    assert not [name for name in two.disk.seen.names if name.endswith(".refused")]
    two.disk.capacity += BLOCK
    done = two.worker().once()
    assert (done.rejected, done.unchanged) == (1, 1)
    [aside] = [d for name, d in two.disk.seen.files().items() if name.endswith(".refused")]
    assert strange.encode() in aside


def test_errors_of_the_journal_have_a_name(two: Two) -> None:
    journal = Journal(two.disk, two.locks)
    journal.append([entry("a", 30).encode()])
    journal.close()
    for call in range(1, 12):
        two.disk.fail_at = {two.disk.calls + call: OSError(errno.EIO, "Input/output error")}
        two.disk.seen.names.setdefault(f"{bytes(16).hex()}-00000000.done", 10_000)
        try:
            two.worker().once()
        except StoreError as exc:
            assert "Input/output error" in str(exc) and "drain it again" in str(exc)
    assert [name for name, _ in two.facts()] == ["a"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 1 MB."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_journal_drains_on_a_real_full_disk(small_disk: Path, tmp_path: Path, codec: SegmentCodec) -> None:
    cold = SimDisk(seed=1)
    TowerArchive.create(DirectoryStore(cold), [codec])
    bench = Bench(cold, codec)
    disk, locks = OsDisk(small_disk), FileLocks(small_disk)
    journal = Journal(disk, locks)
    worker = Worker(JournalReader(disk, locks), Tokenizers(disk), lambda: bench.archive().cold)
    bodies, durable = [entry(f"s{n}", 64, n).encode() for n in range(400)], 0
    for _ in range(2):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                journal.append(bodies)
                durable += len(bodies)
            except StoreError as exc:
                assert "No space left" in str(exc)
                break
        before = worker.done.entries
        worker.once()
        assert worker.done.entries > before
        assert [file for file, _ in disk.names("") if file.endswith((".journal", ".done"))] == []
    assert worker.done.damaged == 0 and durable > 0 and len(bench.versions()) == len(bodies)
