"""The promises of an archive: towers come back exactly, shared segments are stored once, history stays.

The archive relies on no record that it has not checked.
"""

import errno
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from pltz.archive.errors import StoreError, WriterFailed
from pltz.archive.format import ids as identity
from pltz.plt_codec.errors import BundleMismatch, ContentError, CorruptError, UsageError
from tests.archive.kit import DirectoryStore, NewSession, Repairer, SegmentCodec, SimDisk, TowerArchive, create

PROMPT = np.arange(100)


def chat(name: str, *turns: list[int], **more: Any) -> NewSession:
    return NewSession(name, [PROMPT, *(np.array(t) for t in turns)], shared=1, **more)


def reopen(disk: SimDisk, *codecs: SegmentCodec) -> TowerArchive:
    return TowerArchive.open(DirectoryStore(disk), codecs)


def test_other_bundles_are_refused_or_beside(disk: SimDisk, archive: TowerArchive, tower_codec: SegmentCodec) -> None:
    archive.put([chat("a", [1])])
    stranger = reopen(disk, tower_codec)
    with pytest.raises(BundleMismatch, match="frozen with bundle"):
        stranger.get("a")
    assert stranger.verify(decode=True).undecoded == 2
    assert stranger.put([chat("b", [1])])[0].new == 2  # a segment that cannot be decoded is stored again
    assert stranger.get("b").tokens.tolist() == [*range(100), 1]


@pytest.mark.parametrize("session", [
    chat("x" * 1025, [1]), chat("\ud800", [1]), chat("a", [-1]), chat("a", [1 << 31]),
    NewSession("a", [np.zeros((2, 2), np.int64)]), NewSession("a", [np.array([1.5])]),
    NewSession("a", [np.zeros(0, np.int64)] * 4097), chat("a", [1], tags={"k": "v" * 20000}),
    chat("a", [1], tags={"k": 1}), NewSession("a", [], shared=1), chat("a", [1], kind="song"),
    chat("a", [1], target=b"short"), chat("a", [1], time=-5),
], ids=lambda s: str(s)[:40])
def test_what_cannot_be_stored_is_refused_and_nothing_written(archive: TowerArchive, session: NewSession) -> None:
    with pytest.raises((ContentError, UsageError)):
        archive.put([chat("fine", [1]), session])
    assert list(archive.ls()) == [] and archive.stat().packs == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES], ids=errno.errorcode.get)
def test_an_error_at_any_call_leaves_the_archive_as_it_was_or_stops_the_writer(codec: SegmentCodec, code: int) -> None:
    template = SimDisk()
    create(template).put([chat("a", [1])])
    for call in range(1, 8):
        disk = template.clone()
        archive = reopen(disk, codec)
        disk.fail_at = {disk.calls + call: OSError(code, "no")}
        try:
            archive.put([chat("b", [2])])
        except StoreError:
            assert [v.name for v in reopen(disk, codec).ls()] == ["a"]
            assert archive.put([chat("b", [2])])[0].version == 1  # the archive still works
        except WriterFailed:
            with pytest.raises(WriterFailed, match="earlier sync failed"):
                archive.put([chat("c", [3])])
            assert "a" in [v.name for v in reopen(disk, codec).ls()]
        assert reopen(disk, codec).verify(decode=True).sound


def test_what_killed_writers_left_is_collected_late(archive: TowerArchive, disk: SimDisk, codec: SegmentCodec) -> None:
    archive.put([chat("a", [1])])
    [pack] = (path for path in disk.seen.names if path.startswith("packs/"))
    disk.write_new("tmp/half", b"PLTp half of a pack")
    disk.write_new("tmp/keys", b"PLTk of an erased tenant: an erasure overwrites it")
    disk.link(pack, "tmp/linked")  # killed between the link of the pack and its end
    disk.clock += 80_000
    disk.write_new("tmp/young", b"PLTp of a writer at work")
    for old in (False, True):
        archive.collect()
        left = {path for path in disk.seen.names if path.startswith("tmp/")}
        assert left == {"tmp/keys", "tmp/young"} | (set() if old else {"tmp/half", "tmp/linked"})
        disk.clock += 10_000
    assert reopen(disk, codec).get("a").tokens[-1] == 1 and archive.verify(decode=True).sound


def test_a_collector_whose_clock_is_ahead_leaves_the_files_of_writers_at_work(
    archive: TowerArchive, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torture found it (seed 5): a put was refused because its file was gone."""
    disk.write_new("tmp/young", b"PLTp of a writer at work")
    monkeypatch.setattr(disk, "now", lambda: disk.clock + 400 * 86400)
    archive.collect()
    assert {path for path in disk.seen.names if path.startswith("tmp/")} == {"tmp/young"}


@pytest.mark.parametrize(("moment", "ahead"), [*((n, True) for n in range(1, 13)), *((n, False) for n in range(1, 5))])
def test_a_writer_whose_file_is_collected_acknowledges_nothing_or_all(
    archive: TowerArchive, disk: SimDisk, monkeypatch: pytest.MonkeyPatch, moment: int, ahead: bool
) -> None:
    """Stop a writer for more than a day after its file was created, written, synced or linked.

    A file that was written ahead is not linked where a collector took it.
    """
    refused = range(9, 13) if ahead else range(1, 4)
    if not ahead:  # as a large pack is
        monkeypatch.setattr(DirectoryStore, "ahead", lambda self, contents: nullcontext())
    other, moments = reopen(disk, archive.codecs[0]), 0

    def stall() -> None:
        nonlocal moments
        moments += any(path.startswith("tmp/") for path in disk.seen.names)
        if moments == moment:
            disk.watch = lambda: None
            disk.clock += 100_000
            other.collect()

    disk.watch = stall
    try:
        archive.put([chat("a", [1])])
    except StoreError as exc:
        assert "the archive is as it was" in str(exc) and moment in refused and not list(other.ls())
        archive.put([chat("a", [1])])
    else:
        assert ahead or moment == 4
    assert moments == moment and [v.name for v in other.ls()] == ["a"]
    report = other.verify(decode=True)
    assert report.sound and not report.missing_copies


def test_a_crafted_collision_is_refused(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    archive.put([NewSession("a", [np.array([1])])])
    leaf, whole = archive.version("a").leaf, identity.digests
    monkeypatch.setattr(identity, "digests", lambda *of: [leaf + digest[16:] for digest in whole(*of)])
    with pytest.raises(CorruptError, match="crafted"):
        archive.put([NewSession("b", [np.array([2])])])
    archive = TowerArchive.open(archive.store, archive.codecs)  # this object has not seen "a" itself
    with pytest.raises(CorruptError, match="crafted"):
        archive.put([NewSession("b", [np.array([2])])])


def test_parity_put_after_its_pack_was_collected_is_swept(archive: TowerArchive) -> None:
    archive.put([NewSession("gone", [np.arange(9)])])
    [pack] = archive.catalog.listing.packs
    late = archive.store.read(f"parity/{pack.hex()}", 0, 1 << 20)
    archive.forget([archive.version("gone")])
    archive.collect(dead_share=0.01)
    archive.collect(dead_share=0.01)
    assert pack.hex() not in archive.store.list("packs")
    archive.store.put(f"parity/{pack.hex()}", late)  # its writer was stopped between pack and parity
    assert Repairer(archive.store).run().whole and archive.verify().sound
    assert pack.hex() not in archive.store.list("packs")
    archive.collect(dry_run=True)
    assert pack.hex() in archive.store.list("parity")
    archive.collect()
    assert archive.verify().sound and pack.hex() not in archive.store.list("parity")
