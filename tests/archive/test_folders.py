"""Empty folders dropped by a tool (git, rsync -m, object sync): the archive opens, and writers remake them durably."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.encryption.keys import Secret
from pltz.archive.errors import ArchiveError, StoreError
from pltz.archive.storage.disk import OsDisk
from pltz.coding.codecs.codec import BytesCodec
from tests.archive.kit import DirectoryStore, NewSession, Repairer, SimDisk, TowerArchive, create, reopen, repaired

PROMPT = np.arange(30)
KEY = Secret(b"sixteen bytes, or more", 0)


def dropped(disk: SimDisk) -> SimDisk:
    """Return a copy as such a tool makes it: files, and only the folders that hold files."""
    state = disk.seen.copy()
    state.folders = {"", *(path.rpartition("/")[0] for path in state.names)}
    return SimDisk(state, seed=7)


@pytest.mark.parametrize("key", [None, KEY], ids=["open", "sealed"])
@pytest.mark.parametrize("puts", [0, 1])
def test_what_is_left_is_read_and_written(key: Secret | None, puts: int) -> None:
    disk = SimDisk()
    archive = create(disk, key=key)
    for n in range(puts):
        archive.put([NewSession(f"s{n}", [PROMPT, PROMPT[:n]])])
    copy = dropped(disk)
    assert not {"tmp", "index", "damaged", "lost"} & copy.seen.folders
    before, fresh = set(copy.seen.folders), reopen(copy, key=key)
    assert [v.name for v in fresh.ls()] == [f"s{n}" for n in range(puts)]
    assert fresh.verify(decode=True).sound and fresh.stat().packs == puts
    assert Repairer(DirectoryStore(copy), dry_run=True).run().whole
    assert copy.seen.folders == before  # reading makes nothing
    fresh.put([NewSession("new", [PROMPT, PROMPT])])
    fresh.write_index()
    for _ in range(2):
        fresh.collect(dead_share=0.01)
    last = reopen(copy, key=key)
    assert len(last.get("new").tokens) == 60 and last.verify(decode=True).sound


@pytest.mark.parametrize("left", ["parity", "index"])
def test_a_folder_that_was_not_empty_is_lost_and_not_dropped(left: str) -> None:
    """Report that packs/ is missing where parity or an index names packs."""
    disk = SimDisk()
    archive = create(disk)
    for n in range(2):
        archive.put([NewSession(f"s{n}", [PROMPT + n])])
    archive.write_index()
    state, gone = disk.seen.copy(), {"packs", "index" if left == "parity" else "parity"}
    state.names = {path: i for path, i in state.names.items() if path.partition("/")[0] not in gone}
    copy = dropped(SimDisk(state))
    for _ in range(2):
        with pytest.raises(StoreError, match="packs"):
            reopen(copy).verify()
        with pytest.raises(StoreError):
            DirectoryStore(copy).put(f"packs/{'0' * 32}", b"x")
    assert "packs" not in copy.seen.folders


def test_a_place_that_is_gone_is_not_taken_for_empty(tmp_path: Path) -> None:
    """Unmount the disk of an open archive: the empty mount point is not listed as an archive, nor written to."""
    place = tmp_path / "cold"
    archive = TowerArchive.create(place, [BytesCodec()])
    shutil.rmtree(place)
    for _ in range(2):
        with pytest.raises(StoreError):
            list(archive.ls())
        with pytest.raises(ArchiveError):
            archive.put([NewSession("a", [PROMPT])])
        assert not place.exists() or not list(place.iterdir())
        place.mkdir(exist_ok=True)


def test_what_is_said_of_a_folder_that_is_lost_helps(tmp_path: Path) -> None:
    place = tmp_path / "cold"
    archive = TowerArchive.create(place, [BytesCodec()])
    for n in range(2):
        archive.put([NewSession(f"s{n}", [PROMPT + n])])
    archive.collect()
    shutil.rmtree(place / "packs")
    with pytest.raises(StoreError, match=r"packs/ is gone.*make an empty one and run pltz archive repair"):
        TowerArchive.open(place, [BytesCodec()]).verify()
    (place / "packs").mkdir()
    assert repaired(OsDisk(place)).whole and TowerArchive.open(place, [BytesCodec()]).verify(decode=True).sound
