"""Acknowledged data lasts, even if other processes were killed between a link and its fsync, or an fsync failed."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.catalog import index_keeper as module
from pltz.archive.errors import StoreError, WriterFailed
from pltz.archive.format import index_file as index
from pltz.archive.storage.disk import OsDisk
from tests.archive.kit import DirectoryStore, NewSession, SimDisk, TowerArchive, reopen

PROMPT = np.arange(30)


def after_each_crash(disk: SimDisk, check: Callable[[TowerArchive], bool]) -> int:
    """Check every state that a power cut may leave now, and return their number."""
    states = list(disk.crashes("tmp"))
    for state in states:
        assert check(reopen(SimDisk(state, seed=4)))
    return len(states)


# After a failed sync


def test_who_failed_to_sync_deletes_nothing(disk: SimDisk, archive: TowerArchive) -> None:
    """Fail the fsync of a collector's linked copies: collecting again would find them and delete the originals."""
    archive.put([NewSession("a", [PROMPT, PROMPT])])
    archive.put([NewSession("b", [PROMPT, PROMPT[:9]])])
    archive.collect()
    sync = disk.sync_directory

    def fail(path: str) -> None:
        if path == "packs":
            raise OSError(5, "input/output error")
        sync(path)

    disk.sync_directory = fail  # type: ignore[method-assign]
    with pytest.raises(WriterFailed):
        archive.collect()
    disk.sync_directory = sync  # type: ignore[method-assign]
    before = {path for path in disk.seen.names if path.startswith("packs/")}
    with pytest.raises(WriterFailed):
        archive.collect()
    assert {path for path in disk.seen.names if path.startswith("packs/")} == before
    after_each_crash(disk, lambda a: [len(a.tower(v).tokens) for v in a.ls()] == [60, 39])


def test_a_store_that_failed_to_sync_changes_nothing_more(disk: SimDisk) -> None:
    store = DirectoryStore(disk)
    store.make()
    store.put("packs/a", b"1")
    disk.fail_at = {disk.calls + 2: OSError(5, "input/output error")}
    with pytest.raises(WriterFailed):
        store.put("packs/b", b"2")
    for change in (
        lambda: store.put("packs/c", b"3"), lambda: store.delete("packs/a"), lambda: store.shred("packs/a"),
        lambda: store.settle("packs"),
    ):
        with pytest.raises(WriterFailed):
            change()
    assert store.read("packs/a", 0, 9) == b"1"


def test_the_folder_of_an_archive_lasts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a name in a folder that may be new itself."""
    synced, fsync = set[int](), os.fsync

    def remembered(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", remembered)
    DirectoryStore(OsDisk(tmp_path / "new" / "cold")).make()
    assert {folder.stat().st_ino for folder in [tmp_path, tmp_path / "new", tmp_path / "new" / "cold"]} <= synced


# Indexes never block other work


def test_an_index_is_written_before_opening_takes_long(disk: SimDisk, archive: TowerArchive) -> None:
    """Index a few large packs: an archive of 131,000 sessions in 8 packs was scanned for 3.8 s on every open."""
    archive.put([NewSession(f"s{n}", [PROMPT + n]) for n in range(600)])
    fresh = reopen(disk)
    assert fresh.catalog.listing.tail.count == 0 and len(fresh.catalog.listing.indexes) == 1
    assert fresh.get("s599").tokens.tolist() == (PROMPT + 599).tolist()


def test_a_damaged_pack_does_not_have_the_index_written_again_and_again(
    disk: SimDisk, archive: TowerArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Do not count a pack that never gets an index among those that wait for one."""
    archive.put([NewSession(f"s{n}", [PROMPT + n]) for n in range(50)])
    pack = next(path for path in disk.seen.files() if path.startswith("packs/"))
    data = bytearray(disk.read(pack, 0, 1 << 20))
    data[len(data) // 2] ^= 1
    disk.overwrite(pack, bytes(data))
    monkeypatch.setattr(module, "INDEX_ENTRIES", 60)
    reopen(disk).put([NewSession("a", [PROMPT])])
    assert not disk.names("index")


def test_a_rebuild_that_finds_no_room_leaves_the_indexes(
    disk: SimDisk, archive: TowerArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a run that had deleted indexes and said that the archive is unchanged."""
    archive.put([NewSession("a", [PROMPT])])
    archive.write_index()
    archive.put([NewSession("b", [PROMPT])])
    archive.write_index(everything=False)
    before = dict(disk.names("index"))
    write, room = disk.write_new, False

    def full(path: str, data: bytes) -> None:
        if not room and data[:4] == b"PLTi":
            raise OSError(errno.ENOSPC, "no room")
        write(path, data)

    monkeypatch.setattr(disk, "write_new", full)
    with pytest.raises(StoreError, match="as it was"):
        archive.rebuild()
    assert before and dict(disk.names("index")) == before and archive.get("a").tokens.tolist() == PROMPT.tolist()
    room = True
    archive.rebuild()
    assert len(disk.names("index")) == 1 and not reopen(disk).catalog.listing.tail.packs


def test_a_rebuild_replaces_a_damaged_index_of_the_same_name(disk: SimDisk, archive: TowerArchive) -> None:
    archive.put([NewSession("a", [PROMPT])])
    archive.write_index()
    [(name, size)] = disk.names("index")
    disk.overwrite(f"index/{name}", bytes(size))
    archive.rebuild()
    fresh = reopen(disk)
    assert list(fresh.catalog.listing.indexes) == [name] and fresh.verify().sound


@pytest.mark.parametrize("everything", [True, False])
def test_more_packs_than_an_index_covers(
    disk: SimDisk, archive: TowerArchive, monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    monkeypatch.setattr(index, "MAX_PACKS", 3)
    for n in range(8):
        archive.put([NewSession(f"s{n}", [PROMPT + n])])
        if n == 4:
            archive.write_index()
    archive.write_index(everything=everything)
    assert archive.stat().tail == 0
    fresh = reopen(disk)
    assert fresh.catalog.listing.tail.count == 0 and len(fresh.catalog.listing.indexes) >= 3
    assert [fresh.get(f"s{n}").tokens[0] for n in range(8)] == list(range(8)) and fresh.verify().sound


# Collectors and the packs that others are using
