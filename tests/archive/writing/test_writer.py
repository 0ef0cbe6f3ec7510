"""The writer relies on a stored segment only where it is sound, and says of a failure what became of the put."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz.archive.catalog.listing import ATTEMPTS
from pltz.archive.errors import Fenced
from pltz.archive.storage.disk import OsDisk
from pltz.archive.writing.writer import ArchiveWriter, Publisher
from pltz.plt_codec.errors import CorruptError
from tests.archive.kit import DirectoryStore, NewSession, SimDisk, TowerArchive, ZlibCodec, create, reopen


def test_a_session_whose_bitstring_is_damaged_is_put_again(
    archive: TowerArchive, disk: SimDisk, codec: ZlibCodec
) -> None:
    """Its head is sound, so a put that looked there alone would say that nothing changed."""
    new = NewSession("s", [np.arange(30), np.arange(50) % 7])
    archive.put([new])
    item = archive.catalog.lookup.at(archive.version("s").location)
    [path] = (path for path in disk.seen.files() if path.startswith("packs/"))
    data = disk.seen.data[disk.seen.names[path]]
    at = data.index(item.record.bitstring) + 2
    disk.seen.data[disk.seen.names[path]] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    [receipt] = reopen(disk).put([new])
    assert not receipt.unchanged and receipt.new
    found = reopen(disk)
    assert np.array_equal(found.get("s").tokens, np.concatenate([np.arange(30), np.arange(50) % 7]))


def _remove(path: Path) -> None:
    path.unlink()


def _cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _zero(path: Path) -> None:
    """Damage a file in place, as a shred or a stray write does."""
    path.write_bytes(bytes(path.stat().st_size))


def _replace(path: Path) -> None:
    """Replace a file under its old time, as a copy by a broken backup does."""
    old = path.stat()
    (other := path.with_name("other")).write_bytes(bytes(old.st_size))
    os.utime(other, ns=(old.st_atime_ns, old.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("read", [False, True], ids=["put", "read"])
@pytest.mark.parametrize("damage", [_remove, _cut_off, _zero, _replace])
def test_a_segment_whose_pack_changed_since_it_was_proved_is_put_again(
    tmp_path: Path, codec: ZlibCodec, damage: Callable[[Path], None], read: bool
) -> None:
    """The writer knew its tokens, and acknowledged what stood on them."""
    store = DirectoryStore(OsDisk(tmp_path))
    first, second = np.arange(40), np.arange(60) % 7
    archive = TowerArchive.create(store, [codec])
    archive.put([NewSession("s", [first])])
    if read:
        archive = TowerArchive.open(store, [codec])
        archive.before(archive.version("s"))
    [path] = (tmp_path / "packs").iterdir()
    damage(path)
    [receipt] = archive.put([NewSession("s", [first, second])])
    assert not receipt.unchanged
    found = reopen(OsDisk(tmp_path))
    assert np.array_equal(found.get("s", version=receipt.id).tokens, np.concatenate([first, second]))


def test_a_pack_that_was_touched_is_proved_again_and_relied_on(tmp_path: Path) -> None:
    archive = create(OsDisk(tmp_path))
    archive.put([NewSession("s", [np.arange(40)])])
    [path] = (tmp_path / "packs").iterdir()
    changes: list[Callable[[Path], object]] = [Path.touch, lambda path: os.replace(shutil.copy(path, other), path)]
    other = tmp_path / "other"
    for number, change in enumerate(changes, 1):
        change(path)
        [receipt] = archive.put([NewSession("s", [np.arange(40), *[np.arange(9)] * number])])
        assert receipt.new == 1 and archive.stat().segments == number + 1


def test_two_segments_of_one_id_are_refused(archive: TowerArchive) -> None:
    """An id has a part of the digest; 32 bytes of it tell two segments apart."""
    archive.put([NewSession("s", [np.arange(30)])])
    known = archive.parts.writer.proved._known
    known |= {segment: (at, digest[:16] + bytes(16)) for segment, (at, digest) in known.items()}
    with pytest.raises(CorruptError, match="two different segments"):
        archive.put([NewSession("t", [np.arange(30)])])


def test_what_another_writer_has_not_synced_yet_outlives_a_power_cut_once_a_put_relies_on_it(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that changes nothing writes no pack, whose sync would be that of the others too."""
    new, sync = NewSession("s", [np.arange(30)]), disk.sync_directory
    archive = create(disk)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync_directory", lambda path: None if path == "manifest" else sync(path))
        archive.put([new])
    [receipt] = reopen(disk).put([new])
    assert receipt.unchanged
    for state in disk.crashes("tmp"):
        left = reopen(SimDisk(state))
        assert np.array_equal(left.get("s").tokens, np.arange(30))


@pytest.mark.parametrize(("before", "undelete"), [(0, False), (1, False), (1, True)])
def test_what_a_collector_deletes_during_a_put_that_relies_on_it_is_put_again(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch, before: int, undelete: bool
) -> None:
    """Nothing live needs it when the collector looks. ``before``: runs before the put, of the two that delete."""
    prompt, collector = np.arange(30), create(disk)
    collector.put([NewSession("old", [prompt, np.array([1])])])
    collector.forget(collector.history("old"))
    for _ in range(before):
        collector.collect()
    put = Publisher.put

    def late(publisher: Publisher, *args: Any, **options: Any) -> None:
        monkeypatch.undo()
        for _ in range(2 - before):
            collector.collect()
        put(publisher, *args, **options)

    writer = reopen(disk)
    monkeypatch.setattr(Publisher, "put", late)
    if undelete:
        writer.undelete(writer.history("old"))
    else:
        writer.put([NewSession("new", [prompt, np.array([2])])])
    left = reopen(disk)
    wanted = {"old": 1} if undelete else {"new": 2}
    assert {v.name: left.tower(v).tokens.tolist() for v in left.ls()} == {n: [*range(30), t] for n, t in wanted.items()}
    assert left.verify(decode=True).sound


def test_a_put_looks_again_where_a_pack_was_deleted(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    within, gone = ArchiveWriter._take_out_of_runs, list[str]()

    def beside_a_collector(self: ArchiveWriter, *args: Any) -> Any:
        if gone:
            raise FileNotFoundError(2, "no longer listed", gone.pop())
        return within(self, *args)

    monkeypatch.setattr(ArchiveWriter, "_take_out_of_runs", beside_a_collector)
    new = NewSession("a", [np.arange(9)])
    gone[:] = ["packs/a"]
    assert archive.put([new])[0].version == 1 and len(archive.history("a")) == 1
    gone[:] = ["packs/a"] * (1 + ATTEMPTS)
    with pytest.raises(Fenced):
        archive.put([NewSession("b", [np.arange(7)])])
    assert not archive.history("b")
