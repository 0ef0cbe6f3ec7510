"""A manifest that is lost, damaged or old, or that does not name all: what readers, writers and repair make of it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from pltz.archive.encryption.keys import KeySource
from pltz.archive.errors import ArchiveError, ManifestLost, MissingPack, NotFound, RolledBack, StoreError
from pltz.archive.format.ids import BASE
from pltz.archive.format.manifest import Manifest
from pltz.archive.format.object_names import MANIFEST, table_copy
from pltz.archive.format.pack import Damage, Pack
from pltz.archive.maintenance.erase import Eraser
from tests.archive.kit import RAW, DirectoryStore, NewSession, Repairer, SimDisk, TowerArchive, create, reopen, repaired

PROMPT = np.arange(20)


def session(name: str, *more: int) -> NewSession:
    return NewSession(name, [PROMPT, np.array([ord(name[0]), *more])], shared=1)


def tokens(name: str, *more: int) -> list[int]:
    return [*range(20), ord(name[0]), *more]


def named(disk: SimDisk) -> Manifest:
    content = DirectoryStore(disk).load(MANIFEST)
    assert content
    return Manifest.decode(content.data)


@pytest.fixture
def archive(disk: SimDisk) -> TowerArchive:
    made = create(disk)
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
    "gone": vanish, "zeroed": spoil(lambda data: bytes(len(data))), "cut": spoil(lambda data: data[:40]),
    "flipped": spoil(lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:]),
}


def present(disk: SimDisk) -> str:
    """Return the path of the present manifest."""
    return max(path for path in disk.seen.names if path.startswith(f"{MANIFEST}/0"))


def kept_manifest(disk: SimDisk) -> dict[str, bytes]:
    """Return the files of the manifest, as a backup keeps them."""
    return {p: d for p, d in disk.seen.files().items() if p.startswith(f"{MANIFEST}/")}


def bring_back(disk: SimDisk, kept: dict[str, bytes]) -> None:
    """Put the manifest of a backup in place of the present one."""
    for path in kept_manifest(disk):
        disk.vanish(path)
    for path, data in kept.items():
        disk.write_new(path, data)


@pytest.mark.parametrize("key", [None, RAW])
def test_the_manifest_of_an_empty_archive_is_not_kept(disk: SimDisk, key: KeySource | None) -> None:
    """Repair makes the same without it. What is in one stays, if only that reads are recorded."""
    made = create(disk, key=key)
    made.put([session("a")])
    assert f"{MANIFEST}/before" not in disk.seen.names
    disk.vanish(present(disk))
    assert Repairer(DirectoryStore(disk)).run().whole and reopen(disk, key=key).get("a").tokens.tolist() == tokens("a")
    made = reopen(disk, key=key)
    for name in ("b", "c"):
        made.put([session(name)])
        assert Manifest.decode(disk.seen.files()[f"{MANIFEST}/before"]).generation < named(disk).generation


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


WORK: dict[str, Callable[[TowerArchive], object]] = {
    "get": lambda archive: archive.get("a"), "ls": lambda archive: list(archive.ls()),
    "put": lambda archive: archive.put([session("c")]),
    "forget": lambda archive: archive.forget([archive.version("a")]), "collect": lambda archive: archive.collect(),
    "verify": lambda archive: archive.verify(), "write_index": lambda archive: archive.write_index(),
    "rebuild": lambda archive: archive.rebuild(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_where_the_manifest_is_lost_all_but_repair_say_so(disk: SimDisk, archive: TowerArchive, fault: str) -> None:
    before, files = named(disk), disk.seen.files()
    disk.clock += 1
    FAULTS[fault](disk, present(disk))
    with pytest.raises(ManifestLost, match="run pltz archive repair"):
        reopen(disk)
    for work in WORK.values():
        with pytest.raises(ManifestLost, match="run pltz archive repair"):
            work(archive)
    assert {p for p in disk.seen.names if p.startswith("packs/")} == {p for p in files if p.startswith("packs/")}
    assert repaired(disk).remade == [MANIFEST] and named(disk).generation > before.generation
    for reader in (archive, reopen(disk)):
        assert [reader.get(name).tokens.tolist() for name in "ab"] == [tokens("a"), tokens("b")]
        report = reader.verify(decode=True)
        assert report.sound and not report.missing_copies and not report.unnamed


@pytest.mark.parametrize("fault", FAULTS)
def test_the_manifest_before_tells_repair_what_was_condemned_gone_and_lost(
    disk: SimDisk, archive: TowerArchive, fault: str
) -> None:
    """A collector was killed between its swap and its deletion: repair does not name what it took out."""
    archive.collect(dead_share=0.01)
    delete, gone = archive.store.delete, list[str]()
    archive.store.delete = gone.append  # type: ignore[method-assign,assignment]
    archive.collect(dead_share=0.01)
    archive.store.delete = delete  # type: ignore[method-assign]
    taken_out = named(disk).gone.keys()
    assert len(taken_out) == 2 and all(f"packs/{pack.hex()}" in disk.seen.names for pack in taken_out)
    archive.put([session("c")])
    archive.collect(dead_share=0.01)
    archive.put([session("d")])
    FAULTS[fault](disk, present(disk))
    assert repaired(disk).whole
    after = named(disk)
    assert not taken_out & (after.packs.keys() | reopen(disk).catalog.listing.packs.keys())
    fresh = reopen(disk)
    assert [v.name for v in fresh.ls()] == ["a", "b", "c", "d"] and fresh.verify(decode=True).sound
    for _ in range(2):
        fresh.collect(dead_share=0.01)
    assert not named(disk).gone and not any(f"packs/{pack.hex()}" in disk.seen.names for pack in taken_out)
    assert reopen(disk).verify(decode=True).sound


def test_an_old_manifest_is_told(disk: SimDisk, archive: TowerArchive) -> None:
    """Someone brings the manifest of a backup back: the sessions since are not seen until repair."""
    old = kept_manifest(disk)
    archive.put([session("c")])
    archive.put([session("a", 5)])
    bring_back(disk, old)
    for work in WORK.values():  # it knew a newer one
        with pytest.raises(RolledBack, match="was seen"):
            work(archive)
    with pytest.raises(NotFound):  # another machine
        reopen(disk).get("c")
    report = reopen(disk).verify(decode=True)
    assert [(p.kind, "2 packs" in p.what) for p in report.problems] == [("manifest", True)] and not report.lost
    report_of = Repairer(archive.store).run()
    assert report_of.rolled_back and report_of.remade == [MANIFEST] and len(report_of.named) == 2
    for last in (archive, reopen(disk)):
        assert [v.name for v in last.ls()] == ["a", "b", "c"] and last.get("a").tokens.tolist() == tokens("a", 5)
        assert last.verify(decode=True).sound and not last.verify().missing_copies
    assert Repairer(archive.store).run().whole


def test_a_manifest_made_anew_is_newer_where_the_clock_went_back(disk: SimDisk, archive: TowerArchive) -> None:
    for path in kept_manifest(disk):
        disk.unlink(path)
    disk.clock -= 86400
    assert Repairer(archive.store).run().whole and [v.name for v in archive.ls()] == ["a", "b"]


def test_a_put_that_was_cut_off_takes_effect_by_a_repair_alone(disk: SimDisk, archive: TowerArchive) -> None:
    cut_off(archive, session("a", 7), session("z"))
    disk.clock += 50
    reopen(disk).put([session("a", 5)])
    for _ in range(2):
        reopen(disk).collect(dead_share=0.01)
    reopen(disk).write_index()
    for reader in (archive, reopen(disk)):
        assert reader.get("a").tokens.tolist() == tokens("a", 5) and "z" not in [v.name for v in reader.ls()]
    report = reopen(disk).verify(decode=True)
    assert report.sound and report.unnamed == 1 and not report.missing_copies and repaired(disk).whole
    fresh = reopen(disk)
    assert fresh.get("a").tokens.tolist() == tokens("a", 5), "what was acknowledged is the newest"
    assert fresh.verify(decode=True).sound and not repaired(disk).named


def test_what_was_cut_off_and_relies_on_what_is_collected_is_not_named(disk: SimDisk, archive: TowerArchive) -> None:
    """Named, its version would miss a segment, and a sound archive would be called damaged."""
    archive.put([NewSession("c", [np.arange(9)])])
    cut_off(archive, NewSession("c", [np.arange(9), np.arange(5)]))
    archive.forget(archive.history("c"))
    for _ in range(2):
        archive.collect(dead_share=0.01)
    done, report = repaired(disk), reopen(disk).verify(decode=True)
    assert done.whole and not done.named and report.sound and report.unnamed == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_repair_names_may_rely_on_what_was_condemned(disk: SimDisk, archive: TowerArchive, when: str) -> None:
    """Nothing is condemned any more then, and a collector that chose what to delete looks again."""
    archive.put([NewSession("c", [np.arange(9)])])
    cut_off(archive, NewSession("c", [np.arange(9), np.arange(5)]))
    archive.forget(archive.history("c"))
    archive.collect(dead_share=0.01)
    swap, state = archive.store.swap, {"armed": when == "after"}

    def late(*args: object) -> object:
        if state.pop("armed", False):
            assert repaired(disk).named
        return swap(*args)  # type: ignore[arg-type]

    if when == "before":
        assert repaired(disk).named
    archive.store.swap = late  # type: ignore[method-assign,assignment]
    archive.collect(dead_share=0.01)
    fresh = reopen(disk)
    assert fresh.verify(decode=True).sound and fresh.get("c").tokens.tolist() == [*range(9), *range(5)]


def test_a_manifest_of_another_archive_is_not_used(disk: SimDisk, archive: TowerArchive) -> None:
    other = SimDisk(seed=9)
    create(other).put([session("z")])
    disk.seen.data[disk.seen.names[present(disk)]] = other.seen.files()[present(other)]
    for work in (lambda: reopen(disk), lambda: archive.get("a")):
        with pytest.raises(ArchiveError, match="run pltz archive repair"):
            work()
    assert repaired(disk).whole
    assert [v.name for v in reopen(disk).ls()] == ["a", "b"] and named(disk).settings == archive.settings


def test_a_put_that_was_cut_off_is_put_again_whole(disk: SimDisk, archive: TowerArchive) -> None:
    """By the same process: it relies on nothing in the pack that no manifest named."""
    cut_off(archive, session("c"))
    archive.put([session("c")])
    archive.put([session("d")])
    fresh = reopen(disk)
    assert [v.name for v in fresh.ls()] == ["a", "b", "c", "d"] and fresh.get("c").tokens.tolist() == tokens("c")
    report = fresh.verify(decode=True)
    assert report.sound and report.unnamed == 1


def test_a_manifest_written_ahead_gives_way_to_that_of_another(
    disk: SimDisk, archive: TowerArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.put([session("c")])
    before, whole, ahead = named(disk).generation, DirectoryStore.ahead, list[int]()

    @contextmanager
    def beside(self: DirectoryStore, contents: Sequence[bytes]) -> Iterator[None]:
        ahead.append(len(contents))
        with whole(self, contents):
            if len(ahead) == 1:
                reopen(disk).put([session("d")])
            yield

    monkeypatch.setattr(DirectoryStore, "ahead", beside)
    archive.put([session("e")])
    assert ahead == [3, 3] and named(disk).generation == before + 2
    archive.put([session("f")])  # by a manifest written ahead
    assert ahead == [3, 3, 3] and named(disk).generation == before + 3 and not DirectoryStore(disk).list("tmp")
    for reader in (archive, reopen(disk)):
        assert [v.name for v in reader.ls()] == ["a", "b", "c", "d", "e", "f"]
    report = reopen(disk).verify(decode=True)
    assert report.sound and not report.unnamed and not report.missing_copies


def test_a_lost_copy_of_a_pack_table_is_made_again(disk: SimDisk, archive: TowerArchive) -> None:
    archive.write_index()
    [index] = named(disk).indexes
    copy = table_copy(index)
    for fault in ("gone", "flipped"):
        FAULTS[fault](disk, copy)
        report = reopen(disk).verify()
        assert report.missing_copies == [copy] if fault == "gone" else not report.sound
        assert repaired(disk).remade == [copy]
        report = reopen(disk).verify()
        assert report.sound and not report.missing_copies
    archive.put([session("c")])
    archive.write_index()
    assert [p for p in disk.seen.names if p.startswith("parity/index-")] == [table_copy(*named(disk).indexes)]


def test_an_erase_reaches_what_no_put_finished(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content of a put that was cut off is under the keys of its session, which nobody sees.

    All slots keep their keys, as where a pack was given up: else keys without live records go along.
    """
    monkeypatch.setattr(Eraser, "_live", lambda self, records: range(0, 1 << 64, 1 << 52))
    archive = create(disk, key=RAW)
    archive.put([session("a"), session("b")])
    cut_off(archive, session("a", 7, 7, 7))
    fresh = reopen(disk, key=RAW)
    named = fresh.catalog.listing.packs
    [orphan] = [p for p in disk.seen.names if p.startswith("packs/") and bytes.fromhex(p[6:]) not in named]
    fresh.erase("default", "a")
    pack = Pack.of(disk.seen.files()[orphan])
    for item in pack.scan():
        assert not isinstance(item, Damage)
        _, record = item
        context = pack.head.contexts[record.context]
        assert record.id is None or context.domain_kind == BASE or fresh.catalog.keys.gone(context, record.id)
    after = reopen(disk, key=RAW)
    report = after.verify(decode=True)
    assert [v.name for v in after.ls()] == ["b"] and report.sound and report.unnamed == 1


def test_an_erase_keeps_what_readers_see_beside_a_join_that_was_cut_off(disk: SimDisk) -> None:
    """It saw others in the run that no manifest names, and destroyed the keys of the records that one names.

    The torture found it (seed 25, sealed, with a manifest).
    """
    archive = create(disk, key=RAW)
    turns = [np.array([ord(name), *range(40)]) for name in "turns"]
    for number in range(1, 6):
        archive.put([NewSession(name, [PROMPT, PROMPT + ord(name), *turns[:number]], shared=1) for name in "ab"])
    cut_off(archive, work=archive.join)
    fresh = reopen(disk, key=RAW)
    fresh.forget(fresh.history("b")[-1:])  # once it is collected, the run alone has it, and no others
    for _ in range(2):
        fresh.collect(dead_share=0.01)
    before = {v.id: fresh.tower(v).tokens.tolist() for v in fresh.history("b")}
    fresh.catalog.refresh()
    assert len(before) == 4
    fresh.erase("default", "a")
    after = reopen(disk, key=RAW)
    assert {v.id: after.tower(v).tokens.tolist() for v in after.ls(history=True)} == before
    assert after.verify(decode=True).sound


@pytest.mark.parametrize("indexed", [False, True])
def test_a_named_pack_that_is_gone_is_missing_not_absent(disk: SimDisk, archive: TowerArchive, indexed: bool) -> None:
    """With its parity."""
    if indexed:
        archive.write_index()
    gone = archive.version("b").location.pack.hex()
    disk.vanish(f"packs/{gone}")
    disk.vanish(f"parity/{gone}")
    for reader in (archive, reopen(disk)):
        with pytest.raises(MissingPack):
            reader.get("b")
        assert reader.get("a").tokens.tolist() == tokens("a")
    assert ("pack", gone) in {(problem.kind, problem.name) for problem in reopen(disk).verify().problems}
    with pytest.raises(ArchiveError, match="is gone"):
        reopen(disk).collect()
    reopen(disk).put([session("c")])
    with pytest.raises(MissingPack):
        reopen(disk).get("b")


@pytest.mark.parametrize("runs", [1, 2])
def test_a_writer_puts_again_what_was_condemned_before_it(disk: SimDisk, archive: TowerArchive, runs: int) -> None:
    """The fence: a collector condemns what the put relies on, and deletes it in a second run."""
    archive.forget([archive.version("a")])
    archive.catalog.look(0)
    swap, state = archive.store.swap, {"armed": True}

    def late(*args: object) -> object:
        if state.pop("armed", None):
            for _ in range(runs):
                reopen(disk).collect(dead_share=0.01)
        return swap(*args)  # type: ignore[arg-type]

    archive.store.swap = late  # type: ignore[method-assign,assignment]
    archive.put([session("a", 1, 2)])
    for _ in range(2):
        reopen(disk).collect(dead_share=0.01)
    fresh = reopen(disk)
    assert fresh.get("a").tokens.tolist() == tokens("a", 1, 2) and fresh.verify(decode=True).sound
