"""A full disk never blocks progress: forget, erase and collect free room on it, and puts are refused by name."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.encryption.keys import Secret
from pltz.archive.errors import ArchiveError, FullError
from pltz.archive.storage.disk import Disk, OsDisk
from pltz.archive.storage.store import RESERVES, DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from pltz.serving.nightly.state import StateFolder
from tests.archive.sealed import RAW
from tests.archive.simulated_disk import DiskState, SimDisk
from tests.archive.towers import TowerArchive

SIZE = 2000  # tokens per session, which do not compress
KEYS: list[Secret | None] = [None, RAW]


def session(number: int) -> NewSession:
    return NewSession(f"s{number}", [np.random.default_rng(number).integers(0, 1 << 31, SIZE)])


def fill(archive: TowerArchive, begin: int = 0) -> list[int]:
    """Put sessions until the disk is full, and return the numbers of the acknowledged ones."""
    done: list[int] = []
    for number in range(begin, begin + 1000):
        try:
            archive.put([session(number)])
        except FullError as exc:
            assert ("full" in str(exc) or "quota" in str(exc)) and "reserve" in str(exc)
            return done
        done.append(number)
    raise AssertionError("the disk never filled")


def check(archive: TowerArchive, numbers: list[int]) -> None:
    """Check that the archive holds these sessions and no other."""
    assert {v.name for v in archive.ls()} == {f"s{n}" for n in numbers}
    for number in numbers:
        assert np.array_equal(archive.get(f"s{number}").tokens, session(number).segments[0])
    assert archive.verify(decode=True).sound


def forget(archive: TowerArchive, numbers: list[int]) -> None:
    archive.forget([archive.version(f"s{n}") for n in numbers])


def test_the_reserve_is_made_with_the_archive(tmp_path: Path, codec: SegmentCodec) -> None:
    TowerArchive.create(tmp_path / "cold", [codec])
    for name in RESERVES:
        found = (tmp_path / "cold" / name).stat()
        assert found.st_size == RESERVES[name] <= 512 * found.st_blocks  # no hole


def test_a_full_archive_is_emptied_and_filled_again(codec: SegmentCodec) -> None:
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [codec])
    disk.capacity = 900_000
    done = fill(archive)
    assert len(done) > 10 and {*RESERVES} <= disk.seen.names.keys()
    check(archive, done)
    forget(archive, done[::2])
    assert archive.collect().condemned
    assert archive.collect().deleted
    kept = done[1::2]
    check(TowerArchive.open(DirectoryStore(disk), [codec]), kept)
    assert {*RESERVES} <= disk.seen.names.keys()
    more = fill(archive, 1000)
    assert len(more) >= len(done[::2]) // 2
    check(archive, kept + more)


def test_a_full_sealed_archive_is_emptied_by_erasing(codec: SegmentCodec) -> None:
    """Erase tenants of one session each.

    Erasing one of many sessions writes keys, which may take more than it frees.
    """
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [codec], key=RAW)
    disk.capacity = 1_100_000
    done: list[int] = []
    with pytest.raises(FullError):
        for number in range(1000):
            archive.put([replace(session(number), tenant=f"t{number}")])
            done.append(number)
    gone, kept = done[: len(done) // 2], done[len(done) // 2 :]
    for number in gone:
        assert archive.erase(f"t{number}").records
    for _ in range(2):
        archive.collect(dead_share=0.01)
    assert {v.name for v in archive.ls()} == {f"s{n}" for n in kept}
    more = fill(archive, 1000)
    assert more and {*RESERVES} <= disk.seen.names.keys()
    last = TowerArchive.open(DirectoryStore(disk), [codec], key=RAW)
    for number in kept:
        assert np.array_equal(last.get(f"s{number}", f"t{number}").tokens, session(number).segments[0])
    assert last.verify(decode=True).sound and len(list(last.ls())) == len(kept) + len(more)


def test_packs_without_anything_live_go_first(codec: SegmentCodec) -> None:
    """Collect pack by pack where the live records of all condemned packs do not fit, even with the reserve."""
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [codec])
    disk.capacity = 1_500_000
    done = fill(archive)
    assert len(done[2:]) * 4 * SIZE > 2 * RESERVES["reserve"]
    forget(archive, done[:2])
    archive.collect()
    archive.collect()
    check(archive, done[2:])
    assert fill(archive, 1000)


def test_an_error_says_how_much_room_is_needed(codec: SegmentCodec) -> None:
    """Refuse to collect one half-live pack that fills the disk: there is no room for a copy."""
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [codec])
    archive.put([session(n) for n in range(100)])
    disk.capacity = disk.used
    forget(archive, [*range(50)])
    archive.collect()
    with pytest.raises(FullError, match=r"needs about \d{6} bytes"):
        archive.collect()
    check(archive, [*range(50, 100)])
    disk.capacity += 500_000
    assert archive.collect().deleted
    check(archive, [*range(50, 100)])


def test_many_forgets_leave_room_to_collect(codec: SegmentCodec) -> None:
    """Use up the reserve of other operations one by one: the collectors' part is still there."""
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [codec])
    archive.put([session(0)])
    archive.put([session(n) for n in range(1, 60)])
    disk.capacity = disk.used
    gone = [0]
    forget(archive, gone)
    with pytest.raises(FullError):
        for number in range(1, 60):
            forget(archive, [number])
            gone.append(number)
    assert len(gone) > 5 and "reserve-collect" in disk.seen.names
    archive.collect(small=0)
    assert (
        archive.collect(small=0).deleted == 1
    )  # the first pack; a copy of what is left of the second does not fit
    check(archive, [n for n in range(60) if n not in gone])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_quota_is_as_good_as_a_disk(codec: SegmentCodec, code: int) -> None:
    class Quota(SimDisk):
        def _write(self, path: str, inode: int, data: bytes) -> None:
            try:
                super()._write(path, inode, data)
            except OSError as exc:
                raise OSError(code, os.strerror(code), path) from exc

    disk = Quota()
    archive = TowerArchive.create(DirectoryStore(disk), [codec])
    disk.capacity = 600_000
    done = fill(archive)
    forget(archive, done)
    archive.collect()
    archive.collect()
    assert fill(archive, 1000)


def test_a_put_never_uses_the_reserve(codec: SegmentCodec) -> None:
    """Let another process free the reserve: a file that a put wrote in its place is removed again."""
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [codec])
    fill_to = disk.used + 4096
    disk.capacity = fill_to
    disk.unlink("reserve")
    before = dict(disk.seen.files())
    with pytest.raises(FullError):
        archive.put([session(0)])
    assert disk.seen.files() == before
    disk.capacity += 400_000
    archive.put([session(0)])
    assert {*RESERVES} <= disk.seen.names.keys()


def test_an_index_that_finds_no_room_fails_no_put_and_no_collect(
    codec: SegmentCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [codec])
    done = []
    put = archive.store.put

    def full(name: str, data: bytes) -> bool:
        if name.startswith("index/"):
            raise FullError("cannot write index: the disk is full")
        return put(name, data)

    monkeypatch.setattr(archive.store, "put", full)
    for number in range(40):
        archive.put([session(number)])
        done.append(number)
    forget(archive, done[:20])
    archive.collect()
    assert archive.collect().deleted
    assert any(problem.kind == "index" for problem in archive.problems)
    with pytest.raises(ArchiveError):
        archive.rebuild()
    check(archive, done[20:])


def test_a_store_that_is_no_archive_keeps_no_reserve(tmp_path: Path) -> None:
    """Make no reserve in the nightly job's state, where no operation could use it."""
    state = StateFolder(tmp_path / "state")
    state.make()
    state.quarantine(bytes(32).hex(), b"{}")
    assert not [path for path in tmp_path.rglob("reserve*")]


WAYS: dict[str, Callable[[TowerArchive], object]] = {
    "forget": lambda archive: forget(archive, [0, 1]),
    "collect": lambda archive: archive.collect(dead_share=0.01),
    "collect again": lambda archive: archive.collect(dead_share=0.01),
}


@pytest.mark.parametrize("killed", ["erase", *WAYS])
@pytest.mark.parametrize("key", [None, pytest.param(RAW, marks=pytest.mark.slow)], ids=["plain", "sealed"])
def test_every_kill_on_a_full_disk(codec: SegmentCodec, key: Secret | None, killed: str) -> None:
    """Cut the power while a full disk is emptied: live sessions are whole, and emptying resumes.

    One state in six is opened, and each of them where the environment sets PLTZ_ALL_FAULTS=1.
    """
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [codec], key=key)
    capacity = disk.capacity = 520_000 if key else 420_000  # keys take space, too
    done = fill(archive)
    ways = dict(WAYS)
    if not key and killed == "erase":
        pytest.skip("only a sealed archive is erased from")
    if key:
        ways = {"erase": lambda archive: archive.erase("default", "s0"), **ways}
        ways["forget"] = lambda archive: forget(archive, [1])
    opened = 0
    for number, (name, way) in enumerate(ways.items()):
        left: dict[frozenset[tuple[str, bytes]], DiskState] = {}

        def watch(left: dict[frozenset[tuple[str, bytes]], DiskState] = left) -> None:
            for state in disk.crashes("tmp"):
                files = frozenset((p, d) for p, d in state.files().items() if not p.startswith("tmp/"))
                left.setdefault(files, state)

        disk.watch = watch if name == killed else lambda: None
        way(archive)
        disk.watch = lambda: None
        for state in list(left.values())[:: 1 if os.environ.get("PLTZ_ALL_FAULTS") else 6]:
            opened += 1
            after = SimDisk(state, seed=9 + opened)
            after.capacity = capacity
            after._written = dict.fromkeys(after.seen.data, after.clock)
            again = TowerArchive.open(DirectoryStore(after), [codec], key=key)
            for kept in done[2:]:
                assert np.array_equal(again.get(f"s{kept}").tokens, session(kept).segments[0]), name
            for following in list(ways.values())[number:]:
                try:
                    following(again)
                except ArchiveError as exc:  # forgotten or erased before the kill
                    assert not isinstance(exc, FullError), name
                except Exception as exc:  # noqa: BLE001
                    assert type(exc).__name__ in ("NotFound", "Erased"), (name, exc)
            again.collect(dead_share=0.01)
            again.collect(dead_share=0.01)
            check(again, done[2:])
            after.clock += 100_000  # files that the kill left in tmp/ are removed after a day
            forget(again, done[2:])
            again.collect(dead_share=0.01)
            again.collect(dead_share=0.01)
            again.put([session(1000)])
    print(f"{opened} states opened")
    assert opened


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


@pytest.mark.parametrize("key", KEYS, ids=["plain", "sealed"])
def test_a_real_full_disk_is_emptied_and_filled_again(
    small_disk: Path, codec: SegmentCodec, key: Secret | None
) -> None:
    disk: Disk = OsDisk(small_disk)
    archive = TowerArchive.create(DirectoryStore(disk), [codec], key=key)
    done = fill(archive)
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="space"):
        while True:
            filler.write(bytes(4096))
    gone, kept = done[::2], done[1::2]
    if key:
        for number in gone[:3]:
            archive.erase("default", f"s{number}")
            archive.collect(dead_share=0.01)
            archive.collect(dead_share=0.01)
        gone = gone[3:]
    forget(archive, gone)
    for _ in range(2):
        archive.collect(dead_share=0.01)
    check(TowerArchive.open(DirectoryStore(disk), [codec], key=key), kept)
    assert all((small_disk / name).exists() for name in RESERVES)
    more = fill(archive, 1000)
    assert more
    check(TowerArchive.open(DirectoryStore(disk), [codec], key=key), kept + more)
