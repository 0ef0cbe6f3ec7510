"""A manifest that is lost, damaged or old, or that does not name all: what readers, writers and repair make of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from pltz.archive.encryption.holes import punctured
from pltz.archive.errors import ArchiveError, LostError, MissingPack, NotFound, RolledBack, StoreError
from pltz.archive.format.ids import BASE
from pltz.archive.format.manifest import Manifest
from pltz.archive.format.object_names import MANIFEST, parity, table_copy
from pltz.archive.format.pack import Damage, Pack
from pltz.archive.format.plan import CollectionPlan
from pltz.archive.maintenance.erase import Eraser
from pltz.archive.maintenance.repair import Repairer
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from tests.archive.sealed import RAW
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive

PROMPT = np.arange(20)


def session(name: str, *more: int) -> NewSession:
    return NewSession(name, [PROMPT, np.array([ord(name[0]), *more])], shared=1)


def tokens(name: str, *more: int) -> list[int]:
    return [*range(20), ord(name[0]), *more]


def reopen(disk: SimDisk, codec: SegmentCodec) -> TowerArchive:
    return TowerArchive.open(DirectoryStore(disk), [codec])


def named(disk: SimDisk) -> Manifest:
    content = DirectoryStore(disk).load(MANIFEST)
    assert content
    return Manifest.decode(content.data)


@pytest.fixture
def archive(disk: SimDisk, codec: SegmentCodec) -> TowerArchive:
    made = TowerArchive.create(DirectoryStore(disk), [codec], manifest=True)
    made.put([session("a")])
    made.put([session("b")])
    return made


def vanish(disk: SimDisk, path: str) -> None:
    disk.vanish(path)


def spoil(change: Callable[[bytes], bytes]) -> Callable[[SimDisk, str], None]:
    def do(disk: SimDisk, path: str) -> None:
        disk.seen.data[disk.seen.names[path]] = change(disk.seen.files()[path])

    return do


FAULTS = {
    "gone": vanish,
    "zeroed": spoil(lambda data: bytes(len(data))),
    "cut": spoil(lambda data: data[:40]),
    "flipped": spoil(lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:]),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mend", ["put", "collect", "repair", "write_index", "rebuild"])
def test_a_manifest_that_cannot_be_used_is_made_again(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec, fault: str, mend: str
) -> None:
    before = named(disk)
    disk.clock += 1
    [path] = [p for p in disk.seen.names if p.startswith(f"{MANIFEST}/")]
    FAULTS[fault](disk, path)
    fresh = reopen(disk, codec)
    for reader in (archive, fresh):
        assert [reader.get(name).tokens.tolist() for name in "ab"] == [tokens("a"), tokens("b")]
        assert [v.name for v in reader.ls()] == ["a", "b"] and not reader.catalog.listing.following
    report = fresh.verify(decode=True)
    assert report.sound and report.missing_copies == [MANIFEST]
    if mend == "repair":
        assert Repairer(DirectoryStore(disk)).run().remade == [MANIFEST]
    else:
        mends: dict[str, Callable[[], object]] = {
            "put": lambda: fresh.put([session("c")]),
            "collect": fresh.collect,
            "write_index": fresh.write_index,
            "rebuild": fresh.rebuild,
        }
        mends[mend]()
    after = reopen(disk, codec)
    assert after.catalog.listing.following and named(disk).generation > before.generation
    assert after.get("a").tokens.tolist() == tokens("a")
    assert not after.verify(decode=True).missing_copies


@pytest.mark.parametrize("mend", ["collect", "repair"])
def test_an_old_copy_deletes_nothing_and_verify_tells(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec, mend: str
) -> None:
    """Someone brings the manifest of a backup back: the sessions since are not seen until collect or repair."""
    old = {p: d for p, d in disk.seen.files().items() if p.startswith(f"{MANIFEST}/")}
    archive.put([session("c")])
    archive.put([session("a", 5)])
    for path in [p for p in disk.seen.names if p.startswith(f"{MANIFEST}/")]:
        disk.vanish(path)
    for path, data in old.items():
        disk.write_new(path, data)
    assert archive.get("c").tokens.tolist() == tokens("c")
    assert not archive.catalog.listing.following  # it knew a newer one
    fresh = reopen(disk, codec)
    assert fresh.catalog.listing.following
    with pytest.raises(NotFound):
        fresh.get("c")
    report = reopen(disk, codec).verify(decode=True)
    assert [(p.kind, "2 packs" in p.what) for p in report.problems] == [("manifest", True)] and not report.lost
    if mend == "repair":
        assert Repairer(DirectoryStore(disk)).run().remade == [MANIFEST]
    for _ in range(2 if mend == "collect" else 0):
        reopen(disk, codec).collect()
    last = reopen(disk, codec)
    assert not last.verify().missing_copies
    assert last.catalog.listing.following and [v.name for v in last.ls()] == ["a", "b", "c"]
    assert last.get("a").tokens.tolist() == tokens("a", 5)
    assert last.verify(decode=True).sound is (mend == "repair")  # until a repair, that there was a backup is told


def cut_off(archive: TowerArchive, *sessions: NewSession, work: Callable[[], object] | None = None) -> None:
    """Put sessions, or do other ``work``, and fail at the swap: the pack stays, and nothing is acknowledged."""
    swap, failed = archive.store.swap, list[int]()

    def fail(*args: object) -> None:
        failed.append(1)
        raise StoreError("cut off")

    archive.store.swap = fail  # type: ignore[method-assign,assignment]
    with suppress(StoreError) if work else pytest.raises(StoreError, match="cut off"):
        work() if work else archive.put(sessions)
    assert failed
    archive.store.swap = swap  # type: ignore[method-assign]


LATER: dict[str, Callable[[TowerArchive], object]] = {
    "collect": TowerArchive.collect,
    "rebuild": TowerArchive.rebuild,
    "write_index": TowerArchive.write_index,
    "repair": lambda archive: Repairer(archive.store).run(),
    "join": TowerArchive.join,
    "ls": lambda archive: list(archive.whole_histories()),
    "put": lambda archive: archive.put([session("d")]),
}


def test_a_writer_names_no_index_that_was_replaced_since_its_listing(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec
) -> None:
    """Named again, an index that is gone hides which packs are named: orphans became versions."""
    cut_off(archive, session("z"))
    archive.write_index()
    stale = reopen(disk, codec)
    stale.catalog.refresh()
    assert not stale.catalog.listing.following
    other = reopen(disk, codec)
    other.put([session("d")])
    other.write_index()
    stale.catalog.listing.publish()
    assert named(disk).indexes == other.catalog.listing.indexes.keys()
    last = reopen(disk, codec)
    last.catalog.refresh()
    assert [v.name for v in last.ls()] == ["a", "b", "d"]
    assert last.catalog.listing.orphans and not last.catalog.listing.late


def test_a_swap_is_decided_anew_where_the_change_looked_again(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec
) -> None:
    """Another manifest was put while the change was made: what it says from the one before would undo that."""
    register = archive.catalog.listing.register
    assert register
    register.load()
    bases: list[Manifest | None] = []

    def change(base: Manifest | None) -> Manifest:
        bases.append(base)
        if len(bases) == 1:
            reopen(disk, codec).put([session("e")])
            register.load()
        assert base
        return base

    register.swap(change, always=True)
    assert len(bases) == 2 and bases[0] is not bases[1] and bases[1] is not None


def test_parity_that_a_put_wrote_beside_a_collector_is_counted(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec
) -> None:
    """It was called damage. Nothing is lost with it, and the next collect deletes it."""
    kept = {p: d for p, d in disk.seen.files().items() if p.startswith("parity/")}
    archive.forget(list(archive.history("b")))
    for _ in range(2):
        reopen(disk, codec).collect()
    gone = sorted(kept.keys() - disk.seen.files().keys())
    assert gone
    for path in gone:
        disk.write_new(path, kept[path])
    report = reopen(disk, codec).verify(decode=True)
    assert report.sound and report.leftovers == len(gone)
    reopen(disk, codec).collect()
    assert reopen(disk, codec).verify().leftovers == 0


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("same", [False, True])
def test_a_put_that_was_cut_off_before_its_swap_never_takes_effect(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec, later: str, same: bool
) -> None:
    cut_off(archive, session("a", 7), session("z"))
    assert len(disk.seen.names) > 0 and archive.get("a").tokens.tolist() == tokens("a")
    disk.clock += 50
    reopen(disk, codec).put([session("a", 5)])
    LATER[later](archive if same else reopen(disk, codec))
    for reader in (archive, reopen(disk, codec)):
        assert reader.get("a").tokens.tolist() == tokens("a", 5)
        assert [v.version for v in reader.history("a")] == [1, 2]
        assert "z" not in [v.name for v in reader.ls()]
        with pytest.raises(NotFound):
            reader.get("z")
    report = reopen(disk, codec).verify(decode=True)
    assert report.sound and report.orphans == 1 and not report.missing_copies


def test_a_put_that_was_cut_off_is_put_again_whole(disk: SimDisk, archive: TowerArchive, codec: SegmentCodec) -> None:
    """By the same process: it relies on nothing in the pack that no manifest named."""
    cut_off(archive, session("c"))
    archive.put([session("c")])
    archive.put([session("d")])
    fresh = reopen(disk, codec)
    assert [v.name for v in fresh.ls()] == ["a", "b", "c", "d"] and fresh.get("c").tokens.tolist() == tokens("c")
    report = fresh.verify(decode=True)
    assert report.sound and report.orphans == 1


def test_a_manifest_written_ahead_gives_way_to_that_of_another(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.put([session("c")])
    before, whole, ahead = named(disk).generation, DirectoryStore.ahead, list[int]()

    @contextmanager
    def beside(self: DirectoryStore, contents: Sequence[bytes]) -> Iterator[None]:
        ahead.append(len(contents))
        with whole(self, contents):
            if len(ahead) == 1:
                reopen(disk, codec).put([session("d")])
            yield

    monkeypatch.setattr(DirectoryStore, "ahead", beside)
    archive.put([session("e")])
    assert ahead == [3, 3] and named(disk).generation == before + 2
    archive.put([session("f")])  # by a manifest written ahead
    assert ahead == [3, 3, 3] and named(disk).generation == before + 3
    assert not DirectoryStore(disk).list("tmp")
    for reader in (archive, reopen(disk, codec)):
        assert [v.name for v in reader.ls()] == ["a", "b", "c", "d", "e", "f"]
    report = reopen(disk, codec).verify(decode=True)
    assert report.sound and not report.orphans and not report.missing_copies


def test_a_pack_with_parity_was_named_once(disk: SimDisk, archive: TowerArchive, codec: SegmentCodec) -> None:
    """An older manifest comes back from a backup: the put that was acknowledged is named again, that cut off is not."""
    old = {p: d for p, d in disk.seen.files().items() if p.startswith(f"{MANIFEST}/")}
    cut_off(archive, session("z"))
    reopen(disk, codec).put([session("c")])
    for path in [p for p in disk.seen.names if p.startswith(f"{MANIFEST}/")]:
        disk.vanish(path)
    for path, data in old.items():
        disk.write_new(path, data)
    reopen(disk, codec).collect()
    assert [v.name for v in reopen(disk, codec).ls()] == ["a", "b", "c"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_pack_that_is_lost_brings_no_orphan_back(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec, fault: str
) -> None:
    """The manifest that is put meanwhile says that packs are missing, so that everybody lists."""
    cut_off(archive, session("a", 7), session("z"))
    FAULTS[fault](disk, f"packs/{archive.version('b').location.pack.hex()}")
    for name in ("c", "d"):
        writer = reopen(disk, codec)
        writer.catalog.refresh()
        writer.put([session(name)])
    assert named(disk).gaps == (fault == "gone")
    for _ in range(2):
        Repairer(DirectoryStore(disk)).run()
    after = reopen(disk, codec)
    assert after.catalog.listing.following and not named(disk).late
    assert [v.name for v in after.ls(history=True)] == ["a", "b", "c", "d"]
    report = after.verify(decode=True)
    assert report.sound and report.orphans == 1


@pytest.mark.parametrize("mend", ["put", "collect", "repair", "rebuild", "write_index"])
def test_a_lost_manifest_puts_no_orphan_before_what_was_acknowledged(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec, mend: str
) -> None:
    """All packs are taken up then, and the one without parity is the older one, by its moment, also later on."""
    cut_off(archive, session("a", 7), session("z"))
    disk.clock += 50
    reopen(disk, codec).put([session("a", 5)])
    for path in [p for p in disk.seen.names if p.startswith(f"{MANIFEST}/")]:
        disk.vanish(path)
    assert reopen(disk, codec).get("a").tokens.tolist() == tokens("a", 5)
    LATER[mend](reopen(disk, codec))
    assert len(named(disk).late) == 1
    for _ in range(3):
        after = reopen(disk, codec)
        assert after.catalog.listing.following and after.get("a").tokens.tolist() == tokens("a", 5)
        assert {v.name for v in after.ls()} >= {"a", "b", "z"} and after.verify(decode=True).sound
        after.collect(dead_share=0.01)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mend", ["put", "collect", "repair", "rebuild"])
def test_an_index_that_is_lost_brings_no_orphan_back(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec, fault: str, mend: str
) -> None:
    """The copy of its pack table tells which packs the manifest names."""
    cut_off(archive, session("a", 7), session("z"))
    disk.clock += 50
    archive = reopen(disk, codec)
    archive.put([session("a", 5)])
    archive.write_index()
    [index] = named(disk).indexes
    FAULTS[fault](disk, f"index/{index}")
    fresh = reopen(disk, codec)
    assert fresh.get("a").tokens.tolist() == tokens("a", 5) and fresh.verify(decode=True).orphans == 1
    LATER[mend](reopen(disk, codec))
    after = reopen(disk, codec)
    assert after.get("a").tokens.tolist() == tokens("a", 5) and "z" not in [v.name for v in after.ls()]
    report = after.verify(decode=True)
    assert report.orphans == 1 and (report.sound or mend in ("put", "collect")) and not report.missing_copies
    assert after.catalog.listing.following or not report.sound


def test_a_lost_copy_of_a_pack_table_is_made_again(disk: SimDisk, archive: TowerArchive, codec: SegmentCodec) -> None:
    archive.write_index()
    [index] = named(disk).indexes
    copy = table_copy(index)
    for fault in ("gone", "flipped"):
        FAULTS[fault](disk, copy)
        report = reopen(disk, codec).verify()
        assert report.missing_copies == [copy] if fault == "gone" else not report.sound
        assert Repairer(DirectoryStore(disk)).run().remade == [copy]
        report = reopen(disk, codec).verify()
        assert report.sound and not report.missing_copies
    archive.put([session("c")])
    archive.write_index()
    assert [p for p in disk.seen.names if p.startswith("parity/index-")] == [table_copy(*named(disk).indexes)]


def test_an_erase_reaches_what_no_put_finished(
    disk: SimDisk, codec: SegmentCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content of a put that was cut off is under the keys of its session, which nobody sees.

    With holes of 16 levels, as on a full disk: larger ones take the keys of an orphan along.
    """
    monkeypatch.setattr(Eraser, "_without", lambda self, begun, records, units: (punctured(begun, units), 0))
    archive = TowerArchive.create(DirectoryStore(disk), [codec], key=RAW, manifest=True)
    archive.put([session("a"), session("b")])
    cut_off(archive, session("a", 7, 7, 7))
    fresh = TowerArchive.open(DirectoryStore(disk), [codec], key=RAW)
    named = fresh.catalog.listing.packs
    [orphan] = [p for p in disk.seen.names if p.startswith("packs/") and bytes.fromhex(p[6:]) not in named]
    fresh.erase("default", "a")
    pack = Pack.of(disk.seen.files()[orphan])
    for item in pack.scan():
        assert not isinstance(item, Damage)
        _, record = item
        context = pack.head.contexts[record.context]
        assert record.id is None or context.domain_kind == BASE or fresh.catalog.keys.gone(context, record.id)
    after = TowerArchive.open(DirectoryStore(disk), [codec], key=RAW)
    report = after.verify(decode=True)
    assert [v.name for v in after.ls()] == ["b"] and report.sound and report.orphans == 1


def test_an_erase_keeps_what_readers_see_beside_a_join_that_was_cut_off(disk: SimDisk, codec: SegmentCodec) -> None:
    """It saw others in the run that no manifest names, and destroyed the keys of the records that one names.

    The torture found it (seed 25, sealed, with a manifest).
    """
    archive = TowerArchive.create(DirectoryStore(disk), [codec], key=RAW, manifest=True)
    turns = [np.array([ord(name), *range(40)]) for name in "turns"]
    for number in range(1, 6):
        archive.put([NewSession(name, [PROMPT, PROMPT + ord(name), *turns[:number]], shared=1) for name in "ab"])
    cut_off(archive, work=archive.join)
    fresh = TowerArchive.open(DirectoryStore(disk), [codec], key=RAW)
    fresh.forget(fresh.history("b")[-1:])  # once it is collected, the run alone has it, and no others
    for _ in range(2):
        fresh.collect(dead_share=0.01)
    before = {v.id: fresh.tower(v).tokens.tolist() for v in fresh.history("b")}
    fresh.catalog.refresh()
    assert fresh.catalog.listing.orphans and len(before) == 4
    fresh.erase("default", "a")
    after = TowerArchive.open(DirectoryStore(disk), [codec], key=RAW)
    assert {v.id: after.tower(v).tokens.tolist() for v in after.ls(history=True)} == before
    assert after.verify(decode=True).sound


def test_a_session_of_a_damaged_pack_that_no_manifest_can_name_is_not_called_absent(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec
) -> None:
    """Its records are not read when a lost manifest is made again, which says that it has gaps."""
    path = f"packs/{archive.version('b').location.pack.hex()}"
    for name in [name for name in disk.seen.files() if name.startswith(MANIFEST)]:
        disk.vanish(name)
    spoil(lambda data: data[:200] + bytes(len(data) - 200))(disk, path)
    [put] = reopen(disk, codec).put([session("c")])
    assert named(disk).gaps
    reader = reopen(disk, codec)
    assert reader.get("c", version=put.id).tokens.tolist() == tokens("c")
    for name in ("b", "c"):  # a newer version may have been there
        with pytest.raises((ArchiveError, LostError), match="see pltz archive repair"):
            reader.get(name)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_named_pack_that_is_gone_is_missing_and_not_absent(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec, indexed: bool
) -> None:
    """With its parity: without a manifest nothing would tell of a pack that no index names."""
    if indexed:
        archive.write_index()
    gone = archive.version("b").location.pack.hex()
    disk.vanish(f"packs/{gone}")
    disk.vanish(f"parity/{gone}")
    for reader in (archive, reopen(disk, codec)):
        with pytest.raises(MissingPack):
            reader.get("b")
        assert reader.get("a").tokens.tolist() == tokens("a")
    assert not reopen(disk, codec).verify().sound
    with pytest.raises(ArchiveError, match="gone"):
        reopen(disk, codec).collect()
    writer = reopen(disk, codec)
    writer.put([session("c")])
    assert named(disk).gaps is False or not reopen(disk, codec).catalog.listing.following
    with pytest.raises(MissingPack):
        reopen(disk, codec).get("b")


def test_an_index_that_is_gone_is_made_up_for_by_the_packs(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec
) -> None:
    archive.write_index()
    [index] = named(disk).indexes
    disk.vanish(f"index/{index}")
    fresh = reopen(disk, codec)
    assert not fresh.catalog.listing.following and fresh.get("a").tokens.tolist() == tokens("a")
    fresh.put([session("c")])
    assert {v.name for v in reopen(disk, codec).ls()} == {"a", "b", "c"}


@pytest.mark.parametrize("runs", [1, 2])
def test_a_writer_puts_again_what_a_plan_condemned_before_its_swap(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec, runs: int
) -> None:
    """The fence: a collector condemns what the put relies on, and deletes it in a second run."""
    archive.forget([archive.version("a")])
    archive.catalog.look(0)
    swap, state = archive.store.swap, {"armed": True}

    def late(*args: object) -> object:
        if state.pop("armed", None):
            for _ in range(runs):
                reopen(disk, codec).collect(dead_share=0.01)
        return swap(*args)  # type: ignore[arg-type]

    archive.store.swap = late  # type: ignore[method-assign,assignment]
    archive.put([session("a", 1, 2)])
    for _ in range(2):
        reopen(disk, codec).collect(dead_share=0.01)
    fresh = reopen(disk, codec)
    assert fresh.get("a").tokens.tolist() == tokens("a", 1, 2) and fresh.verify(decode=True).sound


def test_a_plan_is_told_to_writers_before_packs_are_listed(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec
) -> None:
    """A collector was killed between its plan and its swap: until the next one swaps, the plan condemns nothing."""
    packs = frozenset(archive.catalog.listing.packs)
    plan = CollectionPlan(1, bytes(16), packs, disk.clock)
    DirectoryStore(disk).put(plan.name, plan.encode())
    archive.put([session("c")])
    assert named(disk).epoch == 0 and not archive.catalog.listing.condemned
    other = reopen(disk, codec)
    listing, listed = other.store.list, list[int]()

    def listed_late(folder: str) -> dict[str, int]:
        listed.append(named(disk).epoch if folder == "packs" else -1)
        return listing(folder)

    other.store.list = listed_late  # type: ignore[method-assign]
    assert other.collect(dead_share=0.01).deleted == 2
    assert 1 in listed and 0 not in listed[listed.index(1) :]
    fresh = reopen(disk, codec)
    assert [fresh.get(name).tokens.tolist() for name in "abc"] == [tokens(name) for name in "abc"]
    assert fresh.verify(decode=True).sound


def test_a_manifest_of_another_archive_is_not_used(disk: SimDisk, archive: TowerArchive, codec: SegmentCodec) -> None:
    other = SimDisk(seed=9)
    TowerArchive.create(DirectoryStore(other), [codec], manifest=True).put([session("z")])
    [path] = [p for p in disk.seen.names if p.startswith(f"{MANIFEST}/")]
    [foreign] = [d for p, d in other.seen.files().items() if p.startswith(f"{MANIFEST}/")]
    disk.seen.data[disk.seen.names[path]] = foreign
    fresh = reopen(disk, codec)
    assert [v.name for v in fresh.ls()] == ["a", "b"] and not fresh.catalog.listing.following
    fresh.put([session("c")])
    assert [v.name for v in reopen(disk, codec).ls()] == ["a", "b", "c"]
    assert named(disk).archive == fresh.settings.archive


def kept_manifest(disk: SimDisk) -> dict[str, bytes]:
    """Return the files of the manifest, as a backup keeps them."""
    return {p: d for p, d in disk.seen.files().items() if p.startswith(f"{MANIFEST}/")}


def bring_back(disk: SimDisk, kept: dict[str, bytes]) -> None:
    """Put the manifest of a backup in place of the present one."""
    for path in kept_manifest(disk):
        disk.vanish(path)
    for path, data in kept.items():
        disk.write_new(path, data)


@pytest.fixture
def bare(disk: SimDisk, codec: SegmentCodec) -> TowerArchive:
    """An archive with a manifest and without parity, which has sessions a and b."""
    made = TowerArchive.create(DirectoryStore(disk), [codec], parity=(0, 0), manifest=True)
    made.put([session("a")])
    made.put([session("b")])
    return made


@pytest.mark.parametrize("mend", ["collect", "repair"])
def test_without_parity_an_old_manifest_is_told_and_hides_nothing_for_good(
    disk: SimDisk, bare: TowerArchive, codec: SegmentCodec, mend: str
) -> None:
    """Verify took the packs put since for those of puts that were cut off, and called the archive sound."""
    kept = kept_manifest(disk)
    cut_off(reopen(disk, codec), session("z"))
    bare.put([session("c")])
    bare.put([session("a", 5)])
    bring_back(disk, kept)
    with pytest.raises(NotFound):  # another process, which knows no newer one
        reopen(disk, codec).get("c")
    report = reopen(disk, codec).verify(decode=True)
    assert [(p.kind, "2 packs" in p.what) for p in report.problems] == [("manifest", True)] and report.orphans == 1
    if mend == "repair":
        assert Repairer(DirectoryStore(disk)).run().remade == [MANIFEST]
    for _ in range(2 if mend == "collect" else 0):
        reopen(disk, codec).collect()
    last = reopen(disk, codec)
    assert last.catalog.listing.following and [v.name for v in last.ls()] == ["a", "b", "c"]
    assert last.get("a").tokens.tolist() == tokens("a", 5)
    report = last.verify(decode=True)
    assert report.sound is (mend == "repair") and report.orphans == 1 and not report.missing_copies


def test_without_parity_a_lost_manifest_tells_late_packs(
    disk: SimDisk, bare: TowerArchive, codec: SegmentCodec
) -> None:
    """They are in the order of their puts."""
    cut_off(bare, session("a", 7))
    disk.clock += 50
    reopen(disk, codec).put([session("a", 5)])
    bring_back(disk, {})
    for _ in range(2):
        assert reopen(disk, codec).get("a").tokens.tolist() == tokens("a", 5)
        Repairer(DirectoryStore(disk)).run()
    assert len(named(disk).late) == 1


def test_a_marker_names_its_pack(disk: SimDisk, bare: TowerArchive, codec: SegmentCodec) -> None:
    """It is missed where it is gone, and it tells that its pack is."""
    pack = bare.version("b").location.pack
    disk.vanish(parity(pack))
    report = reopen(disk, codec).verify()
    assert report.sound and report.missing_copies == [parity(pack)]
    assert Repairer(DirectoryStore(disk), dry_run=True).run().remade == [parity(pack)]
    assert Repairer(DirectoryStore(disk)).run().remade == [parity(pack)]
    report = reopen(disk, codec).verify()
    assert report.sound and not report.missing_copies
    disk.vanish(f"packs/{pack.hex()}")
    bring_back(disk, {})
    assert not reopen(disk, codec).verify().sound
    with pytest.raises(ArchiveError):
        reopen(disk, codec).get("b")


def unmark(disk: SimDisk) -> None:
    """Make an archive without parity as an older pltz left it: no markers, and a manifest that tells of none."""
    found = named(disk)
    for path in [p for p in disk.seen.names if p.startswith("parity/") and not disk.seen.files()[p]]:
        disk.vanish(path)
    [path] = kept_manifest(disk)
    disk.seen.data[disk.seen.names[path]] = dataclasses.replace(found, marked=False).encode()


@pytest.mark.parametrize("mend", ["collect", "repair"])
def test_an_archive_of_before_markers_says_what_is_unknown(
    disk: SimDisk, bare: TowerArchive, codec: SegmentCodec, mend: str
) -> None:
    """Nothing tells a pack that an old manifest hides from one of a put that was cut off: both are taken up."""
    unmark(disk)
    report = reopen(disk, codec).verify()
    assert report.sound and len(report.missing_copies) == 2  # nothing is hidden, and nothing would tell if it were
    kept = kept_manifest(disk)
    writer = reopen(disk, codec)
    cut_off(writer, session("a", 7), session("z"))
    disk.clock += 50
    writer.put([session("a", 5)])
    unmark(disk)
    bring_back(disk, kept)
    fresh = reopen(disk, codec)
    report = fresh.verify()
    assert [(p.kind, "2 packs" in p.what) for p in report.problems] == [("manifest", True)] and not report.orphans
    if mend == "repair":
        Repairer(DirectoryStore(disk)).run()
    for _ in range(2 if mend == "collect" else 0):
        reopen(disk, codec).collect()
    last = reopen(disk, codec)
    assert named(disk).marked and last.catalog.listing.following
    assert [v.version for v in last.history("a")] == [1, 2, 3] and [v.name for v in last.ls()] == ["a", "b", "z"]
    report = last.verify(decode=True)
    assert report.sound and not report.orphans and not report.missing_copies


def bring_back_all(disk: SimDisk, backup: dict[str, bytes]) -> None:
    """Put all files of a backup in place of what is there."""
    for path in disk.seen.files().keys() - backup.keys():
        disk.vanish(path)
    for path in backup.keys() - disk.seen.files().keys():
        disk.write_new(path, backup[path])


@pytest.mark.parametrize("by", ["put", "repair"])
def test_absent_is_not_said_by_a_manifest_older_than_one_that_was_seen(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec, by: str
) -> None:
    """The archive as a whole was brought back: the store has seen more. After a put all machines tell, until repair."""
    backup = disk.seen.files()
    archive.put([session("c")])
    archive.put([session("a", 5)])
    bring_back_all(disk, backup)
    with pytest.raises(MissingPack):  # it had the pack itself
        archive.get("c")
    fresh = TowerArchive.open(archive.store, [codec])
    with pytest.raises(RolledBack, match="was seen"):
        fresh.get("c")
    with pytest.raises(RolledBack):
        fresh.get("a", version=2)
    assert fresh.get("a").tokens.tolist() == tokens("a") and [v.name for v in fresh.ls()] == ["a", "b"]
    with pytest.raises(RolledBack):
        fresh.parts.directory.want_whole("listed")
    report = TowerArchive.open(archive.store, [codec]).verify()
    assert [p.kind for p in report.problems] == ["manifest"] and report.missing_copies == [MANIFEST]
    with pytest.raises(NotFound):  # nothing else tells
        reopen(disk, codec).get("c")
    disk.clock += 1
    elsewhere = reopen(disk, codec)  # a machine that has seen nothing
    if by == "put":
        fresh.put([session("d")])
    elif by == "repair":  # on another machine
        Repairer(DirectoryStore(disk)).run()
    for other in (TowerArchive.open(archive.store, [codec]), elsewhere, reopen(disk, codec)):
        told = by != "repair"
        other.catalog.look(0)
        assert other.catalog.listing.following and other.verify().sound is not told
        for _ in range(2):
            with pytest.raises(RolledBack if told else NotFound):
                other.get("c")
            other.put([session(f"e{by}")])
            if other is elsewhere:
                other.collect()
    assert Repairer(DirectoryStore(disk)).run().rolled_back is told
    for other in (fresh, elsewhere, reopen(disk, codec)):
        with pytest.raises(NotFound):
            other.get("c")
        assert other.verify().sound
    assert Repairer(DirectoryStore(disk)).run().whole


def test_work_of_a_machine_that_knows_nothing_hides_no_roll_back(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec
) -> None:
    """Collectors, a rebuild and a put go on from a backup by fewer swaps than were lost. Their clock hides nothing."""
    backup = disk.seen.files()
    for number in range(10):
        archive.put([session("c", number)])
    bring_back_all(disk, backup)
    unknowing = reopen(disk, codec)
    disk.clock += 10
    for _ in range(2):
        unknowing.collect()
    unknowing.rebuild()
    unknowing.put([session("d")])
    with pytest.raises(RolledBack, match="was seen"):
        TowerArchive.open(archive.store, [codec]).get("c")


def test_packs_that_a_manifest_of_a_backup_hid_are_told_of_by_who_names_them(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec
) -> None:
    """A collector names them again. Others may be gone, so it tells so until a repair."""
    kept = kept_manifest(disk)
    archive.put([session("c")])
    bring_back(disk, kept)
    reopen(disk, codec).collect()
    last = reopen(disk, codec)
    assert last.catalog.listing.following and last.get("c").tokens.tolist() == tokens("c")
    with pytest.raises(RolledBack):
        last.get("d")
    assert not last.verify().sound
    assert Repairer(DirectoryStore(disk), dry_run=True).run().rolled_back
    done = Repairer(DirectoryStore(disk)).run()
    assert done.rolled_back and not done.whole
    assert last.verify(decode=True).sound and not named(disk).rolled_back


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("ahead", [0, 3600])
def test_a_manifest_made_again_is_above_that_which_was_seen(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec, fault: str, ahead: int
) -> None:
    """It was made by a clock that is ahead, and at once: others took it for one of a backup."""
    [path] = kept_manifest(disk)
    FAULTS[fault](disk, path)
    disk.clock += ahead
    writer = reopen(disk, codec)
    writer.put([session("c")])
    disk.clock -= ahead
    before = named(disk).generation
    [path] = kept_manifest(disk)
    FAULTS[fault](disk, path)
    same = fault != "flipped" and ahead  # nothing is left that tells of it, so who saw it alone can be above it
    (TowerArchive.open(writer.store, [codec]) if same else reopen(disk, codec)).put([session("d")])
    assert named(disk).generation > before
    with pytest.raises(NotFound):
        TowerArchive.open(writer.store, [codec]).get("e")


def test_a_pack_that_repair_gave_up_is_named_again_where_it_comes_back(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec
) -> None:
    """From a file copy, and without its parity, which repair deleted. The walks found it taken for an orphan."""
    pack = archive.version("b").location.pack
    path = f"packs/{pack.hex()}"
    data = disk.seen.files()[path]
    FAULTS["cut"](disk, path)
    disk.vanish(parity(pack))
    assert not Repairer(DirectoryStore(disk)).run().whole
    disk.write_new(path, data)
    assert not reopen(disk, codec).verify().sound
    Repairer(DirectoryStore(disk)).run()
    last = reopen(disk, codec)
    assert last.get("b").tokens.tolist() == tokens("b") and last.verify(decode=True).sound
    assert not last.catalog.damage.losses()


def test_a_loss_that_is_over_is_over_for_whoever_knew_it(
    disk: SimDisk, archive: TowerArchive, codec: SegmentCodec
) -> None:
    """The pack came back and was collected. A reader that follows manifests went on to tell of the loss."""
    pack = archive.version("b").location.pack
    path = f"packs/{pack.hex()}"
    data = disk.seen.files()[path]
    FAULTS["cut"](disk, path)
    disk.vanish(parity(pack))
    assert not Repairer(DirectoryStore(disk)).run().whole
    reader = reopen(disk, codec)
    assert reader.catalog.listing.following and reader.catalog.damage.losses()
    disk.write_new(path, data)
    for _ in range(2):
        reopen(disk, codec).collect(dead_share=0.01)
    assert not named(disk).losses and [v.name for v in reader.ls()] == ["a", "b"]
    assert not reader.catalog.damage.losses()
