"""A full disk never blocks progress: forget, erase and collect free room on it, and puts are refused by name."""

import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.errors import ArchiveError, FullError
from pltz.archive.storage.disk import Disk, OsDisk
from tests.archive.kit import RAW, NewSession, Secret, SimDisk, TowerArchive, create, reopen

SIZE = 2000  # tokens per session, which do not compress
KEYS: list[Secret | None] = [None, RAW]
LEAST = 300_000  # bytes that puts leave


@pytest.fixture(autouse=True)
def less_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.archive.storage.store.LEAST_FREE", LEAST)


def session(number: int) -> NewSession:
    return NewSession(f"s{number}", [np.random.default_rng(number).integers(0, 1 << 31, SIZE)])


def fill(archive: TowerArchive, begin: int = 0) -> list[int]:
    """Put sessions until the disk is full, and return the numbers of the acknowledged ones."""
    done: list[int] = []
    for number in range(begin, begin + 1000):
        try:
            archive.put([session(number)])
        except FullError as exc:
            assert "are for forget, erase and collect" in str(exc)
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


def test_packs_without_anything_live_go_first() -> None:
    """Collect pack by pack where the live records of all condemned packs do not fit."""
    disk = SimDisk()
    archive = create(disk)
    disk.capacity = 1_800_000
    done = fill(archive)
    assert len(done[2:]) * 4 * SIZE > 2 * LEAST
    forget(archive, done[:2])
    archive.collect()
    archive.collect()
    check(archive, done[2:])
    assert fill(archive, 1000)


def test_an_error_says_how_much_room_is_needed() -> None:
    """Refuse to collect one half-live pack that fills the disk: there is no room for a copy."""
    disk = SimDisk()
    archive = create(disk)
    archive.put([session(n) for n in range(100)])
    disk.capacity = disk.used + 20_000
    forget(archive, [*range(50)])
    archive.collect()
    with pytest.raises(FullError, match=r"needs about \d{6} bytes"):
        archive.collect()
    check(archive, [*range(50, 100)])
    disk.capacity += 500_000
    assert archive.collect().deleted
    check(archive, [*range(50, 100)])


def test_a_put_leaves_room_and_says_so() -> None:
    disk = SimDisk()
    archive = create(disk)
    archive.put([session(0)])
    disk.capacity = disk.used + LEAST - 1
    before = dict(disk.seen.files())
    with pytest.raises(FullError, match="nothing was put"):
        archive.put([session(1)])
    assert disk.seen.files() == before
    forget(archive, [0])
    disk.capacity += 50_000
    archive.put([session(1)])
    disk.size = 4 * LEAST  # of a small disk an eighth is left
    disk.capacity = disk.used + LEAST // 2 + 20_000
    archive.put([session(2)])
    disk.capacity = disk.used + LEAST // 2 - 1
    with pytest.raises(FullError, match="nothing was put"):
        archive.put([session(3)])


def test_an_index_that_finds_no_room_fails_no_put_and_no_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    archive = create(disk)
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
    assert archive.collect().deleted and any(problem.kind == "index" for problem in archive.problems)
    with pytest.raises(ArchiveError):
        archive.rebuild()
    check(archive, done[20:])


WAYS: dict[str, Callable[[TowerArchive], object]] = {
    "forget": lambda archive: forget(archive, [0, 1]),
    "collect": lambda archive: archive.collect(dead_share=0.01),
    "collect again": lambda archive: archive.collect(dead_share=0.01),
}


@pytest.mark.parametrize("killed", ["erase", *WAYS])
@pytest.mark.parametrize("key", [None, pytest.param(RAW, marks=pytest.mark.slow)], ids=["plain", "sealed"])
def test_every_kill_on_a_full_disk(key: Secret | None, killed: str) -> None:
    """Cut the power while a full disk is emptied: live sessions are whole, and emptying resumes.

    One state in six is opened, and each of them where the environment sets PLTZ_ALL_FAULTS=1.
    """
    disk = SimDisk()
    archive = create(disk, key=key)
    capacity = disk.capacity = 620_000 if key else 520_000  # keys take space, too
    done, ways = fill(archive), dict(WAYS)
    if not key and killed == "erase":
        pytest.skip("only a sealed archive is erased from")
    if key:
        ways = {"erase": lambda archive: archive.erase("default", "s0"), **ways}
        ways["forget"] = lambda archive: forget(archive, [1])
    opened = 0
    for number, (name, way) in enumerate(ways.items()):
        if name != killed:
            way(archive)
            continue
        for state in disk.left_by(partial(way, archive))[:: 1 if os.environ.get("PLTZ_ALL_FAULTS") else 6]:
            opened += 1
            after = SimDisk(state, seed=9 + opened)
            after.capacity = capacity
            after._written = dict.fromkeys(after.seen.data, after.clock)
            again = reopen(after, key=key)
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
def test_a_real_full_disk_is_emptied_and_filled_again(small_disk: Path, key: Secret | None) -> None:
    disk: Disk = OsDisk(small_disk)
    archive = create(disk, key=key)
    done = fill(archive)
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
    check(reopen(disk, key=key), kept)
    more = fill(archive, 1000)
    assert more
    check(reopen(disk, key=key), kept + more)
