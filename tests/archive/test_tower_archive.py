"""The promises of an archive: towers come back exactly, shared segments are stored once, history stays.

The archive relies on no record that it has not checked.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz.archive.errors import ArchiveError, StoreError, WriterFailed
from pltz.archive.format import ids as identity
from pltz.archive.format.ids import Tokens
from pltz.archive.maintenance.repair import Repairer
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import BytesCodec, Coded, Plain, SegmentCodec
from pltz.plt_codec.errors import BundleMismatch, ContentError, CorruptError, UsageError
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive

PROMPT = np.arange(100)


def chat(name: str, *turns: list[int], **more: Any) -> NewSession:
    return NewSession(name, [PROMPT, *(np.array(t) for t in turns)], shared=1, **more)


def reopen(disk: SimDisk, *codecs: SegmentCodec) -> TowerArchive:
    return TowerArchive.open(DirectoryStore(disk), codecs)


def test_a_tower_comes_back(archive: TowerArchive) -> None:
    (receipt,) = archive.put(
        [chat("a", [1, 2, 3], [4], tenant="acme", kind="chat", target=b"t" * 16, tags={"k": "v"})]
    )
    tower = archive.get("a", "acme")
    assert tower.tokens.tolist() == [*range(100), 1, 2, 3, 4]
    assert [len(t) for _, t in tower.segments] == [100, 3, 1]
    v = tower.version
    assert (v.id, v.leaf, v.kind, v.target, v.tags) == (
        receipt.id,
        receipt.leaf,
        0,
        b"t" * 16,
        {"k": "v"},
    )
    assert (receipt.new, receipt.version, receipt.unchanged) == (3, 1, False)


def test_a_session_without_tokens_and_one_of_empty_segments(archive: TowerArchive) -> None:
    archive.put([NewSession("none", []), NewSession("empty", [np.zeros(0, np.int64)])])
    assert archive.get("none").segments == [] and len(archive.get("empty").segments) == 1


def test_a_shared_prompt_is_stored_once(archive: TowerArchive) -> None:
    first, *others = archive.put([chat(f"s{i}", [i], tenant=f"t{i % 3}") for i in range(30)])
    assert first.new == 2 and {r.new for r in others} == {1}
    assert archive.put([chat("later", [99])])[0].new == 1
    assert archive.stat().segments == 32


def test_tenants_share_nothing_of_their_own(archive: TowerArchive) -> None:
    a, b = archive.put([chat("x", [5], tenant="a"), chat("x", [5], tenant="b")])
    assert a.leaf != b.leaf and b.new == 1
    assert archive.get("x", "a").tokens.tolist() == archive.get("x", "b").tokens.tolist()


def test_history_stays_and_the_same_again_adds_nothing(archive: TowerArchive, disk: SimDisk) -> None:
    archive.put([chat("a", [1])])
    assert archive.put([chat("a", [1], [2])])[0].version == 2
    packs = archive.stat().packs
    again = archive.put([chat("a", [1], [2])])[0]
    assert again.unchanged and again.version == 2 and archive.stat().packs == packs
    assert [v.version for v in archive.history("a")] == [1, 2]
    assert len(archive.get("a", version=1).tokens) == 101 and len(archive.get("a").tokens) == 102
    assert [v.version for v in archive.ls()] == [2] and [v.version for v in archive.ls(history=True)] == [1, 2]


def test_the_same_name_twice_in_a_commit_makes_two_versions(archive: TowerArchive) -> None:
    archive.put([chat("a", [1]), chat("a", [2])])
    assert [v.version for v in archive.history("a")] == [1, 2] and archive.get("a").tokens[-1] == 2


def test_ancestors_are_the_context_of_a_codec_that_wants_them(
    disk: SimDisk, tower_codec: SegmentCodec
) -> None:
    archive = TowerArchive.create(DirectoryStore(disk), [tower_codec])
    turn = list(range(40, 90))  # part of the prompt
    receipt = archive.put([chat("a", turn)])[0]
    alone = len(tower_codec.encode([Plain(np.array(turn), np.zeros(0, np.int64))])[0])
    prompt = len(tower_codec.encode([Plain(PROMPT, np.zeros(0, np.int64))])[0])
    assert receipt.size - prompt < alone / 2
    fresh = reopen(disk, tower_codec)
    assert fresh.get("a").tokens.tolist() == [*range(100), *turn]
    assert fresh.verify(decode=True).sound
    assert fresh.put([chat("b", turn, [7])])[0].new == 1
    assert fresh.get("b").tokens[-1] == 7


def test_other_bundles_are_refused_and_stored_beside(
    disk: SimDisk, archive: TowerArchive, tower_codec: SegmentCodec
) -> None:
    archive.put([chat("a", [1])])
    stranger = reopen(disk, tower_codec)
    with pytest.raises(BundleMismatch, match="frozen with bundle"):
        stranger.get("a")
    assert stranger.verify(decode=True).undecoded == 2
    assert stranger.put([chat("b", [1])])[0].new == 2  # a segment that cannot be decoded is stored again
    assert stranger.get("b").tokens.tolist() == [*range(100), 1]


def test_bytes_are_tokens_too(disk: SimDisk, archive: TowerArchive, codec: SegmentCodec) -> None:
    both = reopen(disk, codec, plain := BytesCodec())
    log = np.frombuffer(b"the same line again\n" * 5000, np.uint8)
    receipt = both.put([NewSession("log", [log], codec=plain, kind="text")])[0]
    assert receipt.size < 100 and bytes(both.get("log").tokens.astype(np.uint8)) == log.tobytes()


@pytest.mark.parametrize(
    "session",
    [
        chat("x" * 1025, [1]),
        chat("\ud800", [1]),
        chat("a", [-1]),
        chat("a", [1 << 31]),
        NewSession("a", [np.zeros((2, 2), np.int64)]),
        NewSession("a", [np.array([1.5])]),
        NewSession("a", [np.zeros(0, np.int64)] * 4097),
        chat("a", [1], tags={"k": "v" * 20000}),
        chat("a", [1], tags={"k": 1}),
        NewSession("a", [], shared=1),
        chat("a", [1], kind="song"),
        chat("a", [1], codec=BytesCodec()),
        chat("a", [1], target=b"short"),
        chat("a", [1], time=-5),
    ],
    ids=lambda s: str(s)[:40],
)
def test_what_cannot_be_stored_is_refused_and_nothing_written(
    archive: TowerArchive, session: NewSession
) -> None:
    with pytest.raises((ContentError, UsageError)):
        archive.put([chat("fine", [1]), session])
    assert list(archive.ls()) == [] and archive.stat().packs == 0


class LyingCodec(SegmentCodec):
    """A codec that decodes to other tokens than it was given."""

    mode, method, fast, reach, bundle_id, tokenizer = 0, 0, False, 0, b"b" * 16, b"t" * 16

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        return [bytes(len(p.tokens)) for p in batch]

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        return [np.zeros(c.count, np.int64) for c in batch]


def test_nothing_is_acknowledged_that_does_not_decode(disk: SimDisk) -> None:
    codec = LyingCodec()
    archive = TowerArchive.create(DirectoryStore(disk), [codec])
    with pytest.raises(ArchiveError, match="does not decode"):
        archive.put([chat("a", [1])])
    assert archive.stat().packs == 0


def test_init_twice_and_open_nothing(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="already"):
        TowerArchive.create(DirectoryStore(disk), [codec])
    with pytest.raises(UsageError, match="no archive at"):
        TowerArchive.open(tmp_path / "nowhere", [codec])


def test_names_stay_out_of_file_names(tmp_path: Path, codec: SegmentCodec) -> None:
    archive = TowerArchive.create(tmp_path / "cold", [codec])
    archive.put([chat("secret-name", [1], tenant="secret-tenant")])
    archive.write_index()
    assert not [p for p in (tmp_path / "cold").rglob("*") if "secret" in p.name]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES], ids=errno.errorcode.get)
def test_an_error_at_any_call_leaves_the_archive_as_it_was_or_stops_the_writer(
    codec: SegmentCodec, code: int
) -> None:
    template = SimDisk()
    TowerArchive.create(DirectoryStore(template), [codec]).put([chat("a", [1])])
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


def test_what_killed_writers_left_is_collected_when_it_is_old(
    archive: TowerArchive, disk: SimDisk, codec: SegmentCodec
) -> None:
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

    A file that was written ahead is written again.
    """
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
        assert "the archive is as it was" in str(exc) and moment < 4 and not list(other.ls())
        assert not ahead
        archive.put([chat("a", [1])])
    else:
        assert ahead or moment == 4
    assert moments == moment and [v.name for v in other.ls()] == ["a"]
    report = other.verify(decode=True)
    assert report.sound and not report.missing_copies


def test_a_clock_that_is_behind_does_not_end_a_grace(archive: TowerArchive, disk: SimDisk) -> None:
    for n in range(2):
        archive.put([chat(f"s{n}", [n])])
    assert archive.collect(grace=86400).condemned == 2
    now, disk.clock = disk.clock, 5
    assert archive.collect(grace=86400).condemned == 0
    disk.clock = now + 80_000
    assert archive.collect(grace=86400).deleted == 0


def test_indexes_are_written_and_merged_as_packs_come(
    archive: TowerArchive, disk: SimDisk, codec: SegmentCodec
) -> None:
    for i in range(70):
        archive.put([chat(f"s{i}", [i])])
    stat = archive.stat()
    assert stat.packs == 70 and stat.indexes >= 1 and stat.tail < 32
    fresh = reopen(disk, codec)
    assert all(fresh.get(f"s{i}").tokens[-1] == i for i in range(70)) and fresh.verify().sound
    archive.write_index()
    assert archive.stat().indexes == 1 and archive.stat().tail == 0


def test_everything_is_rebuilt_from_the_packs_alone(
    archive: TowerArchive, disk: SimDisk, codec: SegmentCodec
) -> None:
    archive.put([chat(f"s{i}", [i], tags={"i": str(i)}) for i in range(20)])
    archive.write_index()
    before = list(archive.ls(history=True))
    for path in [p for p in disk.seen.names if p.startswith("index/")]:
        disk.unlink(path)
    fresh = reopen(disk, codec)
    assert list(fresh.ls(history=True)) == before
    fresh.rebuild()
    assert list(fresh.ls(history=True)) == before and fresh.stat().indexes == 1


def test_a_crafted_collision_is_refused(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    archive.put([NewSession("a", [np.array([1])])])
    leaf = archive.version("a").leaf
    whole = identity.digests
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
