"""The ledger: an absent pack is damage unless an entry says why, and a loss is reported until it is acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pltz.archive.catalog.ledger import EntryKind, LedgerEntry, PackLedger, PackState
from pltz.archive.errors import ArchiveError, LostError, MissingPack, NotFound, StoreError
from pltz.archive.format.object_names import ledger_copies
from pltz.archive.maintenance.repair import Repaired, Repairer
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from pltz.plt_codec.errors import FormatError, PltzError
from tests.archive.simulated_disk import DiskState, SimDisk
from tests.archive.towers import TowerArchive, copy
from tests.examples import examples

NAMES = ("a", "b", "c")


def tokens(name: str) -> list[int]:
    return list(range(ord(name), ord(name) + 40))


def three(codec: SegmentCodec, *, condemned: bool = True, indexed: bool = False) -> SimDisk:
    """Put three sessions in three packs."""
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [codec])
    for name in NAMES:
        archive.put([NewSession(name, [np.array(tokens(name))])])
    if indexed:
        archive.write_index()
    if condemned:
        assert archive.collect().condemned == 3
    return disk


def reopen(disk: SimDisk, codec: SegmentCodec) -> TowerArchive:
    return TowerArchive.open(DirectoryStore(disk), [codec])


def repaired(disk: SimDisk) -> Repaired:
    return Repairer(DirectoryStore(disk)).run()


def pack_of(archive: TowerArchive, name: str) -> str:
    return f"packs/{archive.version(name).location.pack.hex()}"


def parity_files(disk: SimDisk) -> dict[str, bytes]:
    return {path: data for path, data in disk.seen.files().items() if path.startswith("parity/")}


# A pack that vanishes


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("condemned", [False, True])
def test_a_pack_that_disappears_is_damage_and_no_deletion(
    codec: SegmentCodec, condemned: bool, indexed: bool
) -> None:
    disk = three(codec, condemned=condemned, indexed=indexed)
    before, whole = disk.seen.files(), {v.name: v.id for v in reopen(disk, codec).ls()}
    disk.unlink(pack_of(reopen(disk, codec), "b"))
    archive = reopen(disk, codec)
    with pytest.raises(MissingPack if indexed else ArchiveError, match="repair") as raised:
        archive.get("b")
    assert raised.value.exit_code == 7
    assert [archive.get(name, version=whole[name][:4]).tokens.tolist() for name in "ac"] == [tokens("a"), tokens("c")]
    for name in "ac":  # without an index the pack that is gone may have a newer version of any session
        left = f"those left by its id: {whole[name][:4].hex()}"
        with nullcontext() if indexed else pytest.raises(ArchiveError, match=left):
            assert archive.get(name).tokens.tolist() == tokens(name)
    assert [v.name for v in archive.ls()] == ["a", "c"]
    with pytest.raises(ArchiveError, match="1 pack damaged or gone"):
        archive.want_whole("listed")
    assert archive.stat().missing == 1
    parity = parity_files(disk)
    for _ in range(2):
        with pytest.raises(ArchiveError, match=r"gone.*repair"):
            reopen(disk, codec).collect()
    assert parity_files(disk) == parity
    report = reopen(disk, codec).verify()
    assert not report.sound and [p.kind for p in report.problems] == ["pack", *["session"] * indexed]
    assert repaired(disk).whole and disk.seen.files().items() >= before.items()
    assert all(reopen(disk, codec).get(name).tokens.tolist() == tokens(name) for name in NAMES)
    done = reopen(disk, codec)
    done.collect()
    assert reopen(disk, codec).verify(decode=True).sound
    assert [v.name for v in reopen(disk, codec).ls()] == [*NAMES]


@pytest.mark.parametrize("condemned", [False, True])
def test_all_packs_vanish(codec: SegmentCodec, condemned: bool) -> None:
    disk = three(codec, condemned=condemned)
    for path in [p for p in disk.seen.names if p.startswith("packs/")]:
        disk.unlink(path)
    archive = reopen(disk, codec)
    parity = parity_files(disk)
    for name in NAMES:
        with pytest.raises(ArchiveError, match="repair"):
            archive.get(name)
    assert not list(archive.ls())
    with pytest.raises(ArchiveError, match="3 packs"):
        archive.want_whole("listed")
    with pytest.raises(ArchiveError, match="gone"):
        archive.collect()
    assert not archive.verify().sound and parity_files(disk) == parity
    assert repaired(disk).whole
    assert all(reopen(disk, codec).get(name).tokens.tolist() == tokens(name) for name in NAMES)


def test_a_copy_of_an_archive_that_lost_a_pack_does_not_say_that_it_is_all(codec: SegmentCodec) -> None:
    disk = three(codec)
    disk.unlink(pack_of(reopen(disk, codec), "b"))
    source, to = reopen(disk, codec), TowerArchive.create(DirectoryStore(SimDisk(seed=3)), [codec])
    assert len(list(copy(source, source.ls(history=True), to))) == 2
    with pytest.raises(ArchiveError, match="may be missing"):
        source.want_whole("copied")


def test_a_pack_that_vanishes_under_an_open_archive(codec: SegmentCodec) -> None:
    """Name a pack that vanished after the process had listed it."""
    disk = three(codec, condemned=False)
    archive = reopen(disk, codec)
    path = pack_of(archive, "b")
    for name in (path, path.replace("packs", "parity")):
        disk.unlink(name)
    archive.catalog.refresh()
    assert [pack.hex() for pack in archive.catalog.damage.missing()] == [path.removeprefix("packs/")]
    with pytest.raises(ArchiveError, match="gone"):
        archive.collect()


def test_a_pack_that_vanishes_before_its_parity_is_put_keeps_it(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = archive.store.put

    def then_gone(name: str, data: bytes) -> bool:
        done = put(name, data)
        if name.startswith("parity/"):
            disk.unlink(name.replace("parity/", "packs/"))
        return done

    monkeypatch.setattr(archive.store, "put", then_gone)
    archive.put([NewSession("a", [np.array(tokens("a"))])])
    with pytest.raises(ArchiveError):
        reopen(disk, codec).get("a")
    assert repaired(disk).whole and reopen(disk, codec).get("a").tokens.tolist() == tokens("a")


# Lists that are short


class Short(SimDisk):
    """A disk that leaves names out of its lists."""

    leaves_out: Callable[[str, str], bool] = staticmethod(lambda folder, name: False)

    def names(self, path: str) -> list[tuple[str, int]]:
        return [row for row in super().names(path) if not self.leaves_out(path, row[0])]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("condemned", [False, True])
@pytest.mark.parametrize("all_of_it", [False, True])
def test_a_list_of_packs_that_is_short_hides_nothing(
    codec: SegmentCodec, all_of_it: bool, condemned: bool, indexed: bool
) -> None:
    whole = three(codec, condemned=condemned, indexed=indexed)
    hidden = pack_of(reopen(whole, codec), "b").removeprefix("packs/")
    disk = Short(whole.seen)
    disk.leaves_out = lambda folder, name: folder == "packs" and (all_of_it or name == hidden)
    archive = reopen(disk, codec)
    assert [archive.get(name).tokens.tolist() for name in NAMES] == [tokens(name) for name in NAMES]
    assert [v.name for v in archive.ls()] == [*NAMES] and not archive.catalog.damage.missing()
    before = disk.seen.files()
    with pytest.raises(ArchiveError, match="leaves it out"):
        reopen(disk, codec).collect()
    assert disk.seen.files() == before and not reopen(disk, codec).verify().sound
    disk.leaves_out = lambda folder, name: False
    assert reopen(disk, codec).verify(decode=True).sound


@pytest.mark.parametrize("folder", ["collect", "ledger", "parity"])
def test_a_folder_that_lists_empty_hides_nothing_and_frees_nothing_needed(
    codec: SegmentCodec, folder: str
) -> None:
    whole = three(codec)
    reopen(whole, codec).collect()
    reopen(whole, codec).put([NewSession("d", [np.array(tokens("d"))])])
    reopen(whole, codec).collect(dead_share=0.01)
    disk = Short(whole.seen)
    disk.leaves_out = lambda path, name: path == folder
    wanted = [*NAMES, "d"]
    for _ in range(3):
        try:
            reopen(disk, codec).collect(dead_share=0.01)
        except ArchiveError:
            assert folder == "collect"
        archive = reopen(disk, codec)
        assert [archive.get(name).tokens.tolist() for name in wanted] == [tokens(name) for name in wanted]
        assert [v.name for v in archive.ls()] == wanted
    disk.leaves_out = lambda path, name: False
    assert [v.name for v in reopen(disk, codec).ls()] == wanted
    assert reopen(disk, codec).verify(decode=True).sound


@pytest.mark.parametrize("path", ["collect", "parity"])
def test_a_plan_of_which_only_the_copy_is_there_stops_a_collector(codec: SegmentCodec, path: str) -> None:
    disk = three(codec)
    [name] = [p for p in disk.seen.names if p.startswith("collect/")]
    disk.unlink(name if path == "collect" else name.replace("collect", "parity"))
    archive = reopen(disk, codec)
    if path == "parity":
        archive.collect()
        return
    with pytest.raises(ArchiveError, match="its copy is left"):
        archive.collect()
    assert not archive.verify().sound and repaired(disk).whole
    reopen(disk, codec).collect()
    assert reopen(disk, codec).verify(decode=True).sound


# Packs that a collector deletes


def test_a_collector_says_what_it_deletes_before_it_does(codec: SegmentCodec) -> None:
    disk = three(codec)
    archive = reopen(disk, codec)
    condemned = set(archive.catalog.listing.condemned)
    ledger, seen = PackLedger(DirectoryStore(disk)), 0

    def watch() -> None:
        nonlocal seen
        for state in disk.crashes("tmp"):
            seen += 1
            files = state.files()
            gone = {
                p for p in condemned if f"packs/{p.hex()}" not in files or f"parity/{p.hex()}" not in files
            }
            for side in ("ledger/", "parity/ledger-"):
                entries = [LedgerEntry.decode(d) for p, d in files.items() if p.startswith(side)] if gone else []
                assert gone <= set().union(*(e.names for e in entries)), "an entry before each deletion"

    disk.watch = watch
    assert archive.collect().deleted == 3 and seen > 50
    disk.watch = lambda: None
    ledger.refresh()
    assert ledger.deleted == condemned and not ledger.losses()
    fresh = reopen(disk, codec)
    assert {fresh.catalog.damage.state(pack) for pack in condemned} == {PackState.DELETED}
    assert {fresh.catalog.damage.state(pack) for pack in fresh.catalog.listing.packs} == {PackState.PRESENT}
    assert fresh.verify(decode=True).sound


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_an_entry_of_which_one_copy_is_left(codec: SegmentCodec, side: int, how: str) -> None:
    disk = three(codec)
    reopen(disk, codec).collect()
    [name] = {p.rpartition("/")[2] for p in disk.seen.names if p.startswith("ledger/")}
    path = ledger_copies(name)[side]
    before = disk.seen.files()[path]
    disk.unlink(path) if how == "gone" else disk.overwrite(path, before[:-1] + b"?")
    archive = reopen(disk, codec)
    assert not archive.catalog.damage.missing() and [v.name for v in archive.ls()] == [*NAMES]
    archive.want_whole("listed")
    assert [p for p, _ in archive.catalog.ledger.unsound()] == [path]
    assert path in repaired(disk).restored and disk.seen.files()[path] == before
    assert not list(PackLedger(DirectoryStore(disk)).unsound())


def test_an_entry_of_which_no_copy_is_left_makes_its_packs_missing(codec: SegmentCodec) -> None:
    disk = three(codec)
    reopen(disk, codec).collect()
    for path in [p for p in disk.seen.names if "ledger" in p]:
        disk.unlink(path)
    archive = reopen(disk, codec)
    assert len(archive.catalog.damage.missing()) == 3 and not archive.verify().sound
    with pytest.raises(ArchiveError):
        archive.collect()


def test_the_copy_of_an_entry_keeps_an_empty_folder_from_being_made(codec: SegmentCodec) -> None:
    disk = three(codec)
    reopen(disk, codec).collect()
    for path in [p for p in disk.seen.names if p.startswith("ledger/")]:
        disk.unlink(path)
    disk.seen.folders.discard("ledger")
    with pytest.raises(StoreError, match="ledger/ is gone"):
        list(reopen(disk, codec).ls())


# Losses


def lost(codec: SegmentCodec, *, indexed: bool) -> SimDisk:
    disk = three(codec, condemned=False, indexed=indexed)
    path = pack_of(reopen(disk, codec), "b")
    for name in (path, path.replace("packs", "parity")):
        disk.unlink(name)
    if not indexed:  # else nothing would name it
        disk.write_new(path, b"")
    report = repaired(disk)
    assert not report.whole and report.uncounted == 1
    return disk


@pytest.mark.parametrize("indexed", [False, True])
def test_a_loss_is_known_until_it_is_acknowledged(codec: SegmentCodec, indexed: bool) -> None:
    disk = lost(codec, indexed=indexed)
    for _ in range(2):
        archive = reopen(disk, codec)
        with pytest.raises(LostError if indexed else ArchiveError, match="repair"):
            archive.get("b")
        if indexed:
            with pytest.raises(NotFound):
                archive.get("nobody")  # the loss names all that it had
        assert [v.name for v in archive.ls()] == ["a", "c"]
        with pytest.raises(ArchiveError, match="1 pack that repair gave up"):
            archive.want_whole("listed")
        assert archive.stat().losses == 1 and archive.stat().missing == 0
        report = archive.verify()
        assert [p.kind for p in report.problems] == ["loss"] and not report.sound
        archive.rebuild()
        archive.collect()
        again = repaired(disk)
        assert not again.whole and len(again.recorded) == 1 and not again.aside
        disk.clock += 1000
    archive = reopen(disk, codec)
    [loss] = archive.losses()
    assert archive.acknowledge() == [loss] and not archive.losses() and not archive.acknowledge()
    fresh = reopen(disk, codec)
    fresh.want_whole("listed")
    assert fresh.verify(decode=True).sound and repaired(disk).whole and fresh.stat().losses == 0
    with pytest.raises(NotFound, match="was lost.*acknowledged" if indexed else "no session"):
        fresh.get("b")
    fresh.put([NewSession("b", [np.array([1, 2])])])
    assert reopen(disk, codec).get("b").tokens.tolist() == [1, 2]


def test_a_session_that_is_put_again_is_read_though_an_older_version_is_lost(codec: SegmentCodec) -> None:
    disk = lost(codec, indexed=True)
    disk.clock += 1000
    reopen(disk, codec).put([NewSession("b", [np.array([1, 2])])])
    assert reopen(disk, codec).get("b").tokens.tolist() == [1, 2]


def test_a_lost_pack_that_is_back_is_no_loss(codec: SegmentCodec) -> None:
    whole = three(codec, condemned=False, indexed=True)
    path = pack_of(reopen(whole, codec), "b")
    disk = lost(codec, indexed=True)
    disk.write_new(path, whole.seen.files()[path])
    archive = reopen(disk, codec)
    assert archive.get("b").tokens.tolist() == tokens("b") and not archive.losses()
    archive.want_whole("listed")
    for _ in range(2):
        archive.collect(dead_share=0.01)
    fresh = reopen(disk, codec)
    assert fresh.get("b").tokens.tolist() == tokens("b") and not fresh.losses() and fresh.verify().sound


def test_every_crash_of_giving_up_ends_in_a_loss_that_is_known(codec: SegmentCodec) -> None:
    disk = three(codec, condemned=False, indexed=True)
    path = pack_of(reopen(disk, codec), "b")
    disk.unlink(path.replace("packs", "parity"))
    disk.overwrite(path, b"rot")
    disk = SimDisk(disk.seen)
    states: dict[frozenset[tuple[str, bytes]], DiskState] = {}

    def watch() -> None:
        for state in disk.crashes("tmp"):
            states.setdefault(frozenset(f for f in state.files().items() if f[0][:4] != "tmp/"), state)

    disk.watch = watch
    assert not repaired(disk).whole
    for state in states.values():
        left = SimDisk(state, seed=5)
        for _ in range(2):
            archive = reopen(left, codec)
            with pytest.raises(PltzError) as told:
                archive.get("b")
            assert told.value.exit_code in (3, 7) and not archive.verify().sound
            with pytest.raises(ArchiveError):
                archive.want_whole("listed")
            repaired(left)
        assert len(reopen(left, codec).losses()) == 1


# The format


def entries() -> st.SearchStrategy[LedgerEntry]:
    names = st.frozensets(st.binary(min_size=16, max_size=16), max_size=5)
    keys = st.frozensets(st.integers(0, (1 << 36) - 1), max_size=5)
    time = st.integers(0, (1 << 62) - 1)
    ours = st.binary(min_size=16, max_size=16)
    missing = st.none() | st.integers(0, 1 << 22)
    plain = st.builds(LedgerEntry, st.sampled_from([EntryKind.DELETED, EntryKind.ACKNOWLEDGED]), ours, time, names)
    one = names.filter(bool).map(lambda n: frozenset([min(n)]))
    return plain | st.builds(LedgerEntry, st.just(EntryKind.LOST), ours, time, one, missing, st.booleans(), keys, keys)


@given(entries())
def test_entries_come_back(entry: LedgerEntry) -> None:
    assert LedgerEntry.decode(entry.encode()) == entry


@settings(max_examples=examples(30))
@given(entries(), st.data())
def test_anything_else_is_refused(entry: LedgerEntry, data: st.DataObject) -> None:
    whole = entry.encode()
    at = data.draw(st.integers(0, len(whole) - 1))
    for hurt in (
        whole[:at],
        whole + b"\0",
        whole[:at] + bytes([whole[at] ^ 1 << data.draw(st.integers(0, 7))]) + whole[at + 1 :],
    ):
        with pytest.raises(FormatError):
            LedgerEntry.decode(hurt)


def test_an_entry_of_another_archive_counts_for_nothing(codec: SegmentCodec) -> None:
    disk = three(codec)
    store = DirectoryStore(disk)
    [pack, *_] = reopen(disk, codec).catalog.listing.packs
    stranger = LedgerEntry(EntryKind.DELETED, b"?" * 16, 5, frozenset({pack}))
    for path in ledger_copies(stranger.name):
        store.put(path, stranger.encode())
    disk.unlink(f"packs/{pack.hex()}")
    archive = reopen(disk, codec)
    assert archive.catalog.damage.state(pack) is PackState.MISSING and not archive.verify().sound
