"""The requirements of an archive on a store, for each: a directory, the simulated disk, a bucket of an S3 server."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from pltz.archive.errors import ArchiveError, FullError, NotFound, RolledBack, StoreError, WriterFailed
from pltz.archive.format import object_names
from pltz.archive.format.index_file import FileIndex
from pltz.archive.storage.disk import OsDisk
from pltz.archive.storage.places import open_store
from pltz.archive.storage.s3 import BucketPlace, ObjectStore
from pltz.archive.storage.store import Store
from pltz.plt_codec.errors import CorruptError, UsageError
from tests.archive.kit import DirectoryStore, NewSession, Repairer, SegmentCodec, SimDisk, TowerArchive
from tests.watch import noted

if TYPE_CHECKING:
    from tests.archive.conftest import S3Server


def test_put_read_view_list_delete(store: Store) -> None:
    assert store.list("packs") == {} and store.put("packs/a", b"0123456789")
    assert store.list("packs") == {"a": 10} and store.list("index") == {}
    assert store.read("packs/a", 0, 100) == b"0123456789" == bytes(store.view("packs/a"))
    assert (store.read("packs/a", 3, 2), store.read("packs/a", 8, 9)) == (b"34", b"89")
    assert store.read_ranges("packs/a", [(0, 2), (7, 2)]) == [b"01", b"78"]
    assert store.read_ranges("packs/a", [(0, 2), (8, 9), (99, 5)]) == [b"01", b"89", b""]
    assert store.read_ranges("packs/a", [(0, 2), (5 << 20, 5)]) == [b"01", b""]  # it is shorter than expected
    assert store.read("packs/a", 10, 1) == store.read("packs/a", 99, 5) == store.read("packs/a", 2, 0) == b""
    store.delete("packs/a")
    store.delete("packs/a")
    assert store.list("packs") == {}


def test_a_name_is_given_once(store: Store) -> None:
    assert store.put("lost/1", b"mine")
    assert store.put("lost/1", b"mine")  # a lost answer, and another try
    assert not store.put("lost/1", b"theirs") and not store.put("lost/1", b"mine, but longer")
    assert not store.put("lost/1", b"min") and store.read("lost/1", 0, 99) == b"mine"


class GoneAtOnce(OsDisk):
    """A disk on which another process has each name first, and deletes it again."""

    def link(self, source: str, target: str) -> None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


def test_a_name_that_another_had_and_deleted_is_not_put(tmp_path: Path) -> None:
    store = DirectoryStore(GoneAtOnce(tmp_path))
    store.make()
    assert not store.put("packs/a", b"mine") and not store.list("packs") and not store.list("tmp")


class NotedSyncs(OsDisk):
    """A disk that notes what is synced. ``failing``: the error of syncs of several files."""

    def __init__(self, root: Path, failing: OSError | None = None) -> None:
        super().__init__(root)
        self.files, self.folders, self.failing = list[str](), list[str](), failing

    def sync_file(self, path: str) -> None:
        self.files.append(path)
        super().sync_file(path)

    def sync_files(self, paths: Sequence[str]) -> None:
        if self.failing:
            raise self.failing
        super().sync_files(paths)

    def sync_directory(self, path: str) -> None:
        self.folders.append(path)
        super().sync_directory(path)


def test_files_are_synced_where_no_thread_can_be_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*about: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    disk = NotedSyncs(tmp_path)
    for path in (paths := ["a", "b"]):
        disk.write_new(path, b"x")
    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    disk.sync_files(paths)
    assert disk.files == paths


def test_a_name_that_another_put_and_has_not_synced_yet_outlives_a_power_cut() -> None:
    disk = SimDisk()
    store = DirectoryStore(disk)
    store.make()
    disk.write_new("tmp/theirs", b"a")
    disk.sync_file("tmp/theirs")
    disk.link("tmp/theirs", "packs/a")
    assert store.put("packs/a", b"a") and all(state.files()["packs/a"] == b"a" for state in disk.crashes())


def test_what_was_deleted_stays_deleted() -> None:
    disk = SimDisk()
    store = DirectoryStore(disk)
    store.make()
    store.put("packs/a", b"data")
    store.delete("packs/a")
    assert all("packs/a" not in state.files() for state in disk.crashes())


def test_what_is_shredded_is_zeros_on_the_disk_before_its_name_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its blocks are free, and have the key."""
    disk = SimDisk()
    store = DirectoryStore(disk)
    store.make()
    store.put("keys/a", b"secret")
    states = noted(
        monkeypatch, disk, "unlink", lambda: [state.files()["keys/a"] for state in disk.crashes()], flat=True
    )
    store.shred("keys/a")
    assert set(states) == {bytes(6)} and not store.list("keys")


def test_the_file_of_a_writer_that_is_alive_is_not_left() -> None:
    disk = SimDisk()
    store = DirectoryStore(disk)
    store.make()
    name = object_names.temporary(disk.random(16))
    disk.write_new(name, b"a")
    disk.clock += 60
    assert store.left(60) == []
    disk.clock += 1
    assert store.left(60) == [name]


CONTENTS = b"pack", b"manifest", b"parity", b"unused"


def test_contents_written_ahead_take_a_link_each(tmp_path: Path) -> None:
    disk = NotedSyncs(tmp_path)
    store = DirectoryStore(disk)
    store.make()
    with store.ahead(CONTENTS):
        assert len(disk.files) == len(store.list("tmp")) == 4 and not store.list("packs")
        disk.folders.clear()
        assert store.put("packs/a", CONTENTS[0])
        content = store.swap("manifest", CONTENTS[1], None)
        assert content and content.data == CONTENTS[1] and store.put("parity/a", CONTENTS[2])
        assert len(disk.files) == 4 and [name for name in disk.folders if name] == ["packs", "manifest", "parity"]
        assert store.put("packs/b", bytes(bytearray(CONTENTS[3]))) and len(disk.files) == 5  # other bytes, if equal
    assert not store.list("tmp") and store.read("packs/a", 0, 9) == CONTENTS[0]
    assert store.put("packs/c", CONTENTS[3]) and len(disk.files) == 6


def test_a_content_written_ahead_whose_name_is_taken_goes(tmp_path: Path) -> None:
    store = DirectoryStore(OsDisk(tmp_path))
    store.make()
    other = store.swap("manifest", b"theirs", None)
    with store.ahead(CONTENTS):
        assert store.swap("manifest", CONTENTS[1], None) == other
        store.put("packs/a", b"theirs")
        assert not store.put("packs/a", CONTENTS[0])
    assert not store.list("tmp")


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EIO])
def test_a_failed_sync_ahead_is_fatal_and_a_lost_file_is_not(tmp_path: Path, error: int) -> None:
    store = DirectoryStore(NotedSyncs(tmp_path, OSError(error, os.strerror(error))))
    store.make()
    if error == errno.EIO:
        with pytest.raises(WriterFailed), store.ahead(CONTENTS):
            pass
        with pytest.raises(WriterFailed):
            store.put("packs/a", b"a")
    else:
        with store.ahead(CONTENTS):
            assert not store.list("tmp") and store.put("packs/a", CONTENTS[0])


def test_a_full_disk_writes_nothing_ahead() -> None:
    disk = SimDisk()
    store = DirectoryStore(disk)
    store.make()
    disk.capacity = 3 * 4096
    with store.ahead(CONTENTS):
        assert not store.list("tmp")
        for number, content in enumerate(CONTENTS[:3]):
            assert store.put(f"packs/{number}", content)
        with pytest.raises(FullError):
            store.put("packs/3", CONTENTS[3])


@pytest.mark.parametrize("winner", [b"mine", b"theirs", None])
def test_a_file_shredded_before_its_link_lost_to_another(tmp_path: Path, winner: bytes | None) -> None:
    """An erase shreds key files in tmp/ that lost their name to another writer."""

    class Shredded(OsDisk):
        def link(self, source: str, target: str) -> None:
            self.unlink(source)
            if winner is not None:
                self.write_new(target, winner)
            super().link(source, target)

    store = DirectoryStore(Shredded(tmp_path))
    store.make()
    if winner is None:
        with pytest.raises(StoreError, match="cannot link"):
            store.put("keys/a", b"mine")
    else:
        assert store.put("keys/a", b"mine") == (winner == b"mine")


def test_what_is_not_there_is_said(store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        store.read("packs/none", 0, 1)
    with pytest.raises(FileNotFoundError):
        store.read_ranges("packs/none", [(0, 1), (5, 2)])
    with pytest.raises(FileNotFoundError):
        store.view("packs/none")


def test_a_listing_is_whole(store: Store) -> None:
    for n in range(30):
        store.put(f"packs/{n:032x}", bytes(n))
    assert store.list("packs") == {f"{n:032x}": n for n in range(30)}
    store.settle("packs")


def test_one_of_many_wins_a_name(store: Store) -> None:
    for turn in range(5):
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda n, turn=turn: store.put(f"lost/{turn}", b"%d" % n), range(8)))
        assert won.count(True) == 1 and store.read(f"lost/{turn}", 0, 9) == b"%d" % won.index(True)


def test_a_register_is_replaced_by_who_knows_its_content(store: Store) -> None:
    assert store.load("manifest") is None
    first = store.swap("manifest", b"first", None)
    assert first and first.data == b"first" and store.load("manifest") == first
    assert store.load("manifest", first) is first
    second = store.swap("manifest", b"second", first)
    assert second and second.data == b"second" and store.load("manifest", first) == second != first
    for known in (None, first):
        assert store.swap("manifest", b"late", known) == second
    third = store.swap("manifest", b"third", second)
    assert third and third.data == b"third" and store.load("manifest") == third
    assert store.swap("manifest", b"late", second) == third
    names = {"current"} if store.remote else {third.tag, "before"}
    assert set(store.list("manifest")) == names and not store.list("packs")


def test_who_is_refused_waits_before_it_reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the newest content after the wait, not before: what was read before is often replaced by then."""
    first = store.swap("manifest", b"first", None)
    second, waited = store.swap("manifest", b"second", first), list[float]()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        assert store.swap("manifest", b"third", second)

    seam, name = (store.disk, "sleep") if isinstance(store, DirectoryStore) else (store, "_sleep")
    monkeypatch.setattr(seam, name, sleep)
    late = store.swap("manifest", b"late", first, 0.25)
    assert waited == [0.25] and late and late.data == b"third"


def test_a_listing_beside_a_swap_loses_no_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be too late for the old name, and too early for the new one."""
    disk = SimDisk()
    store = DirectoryStore(disk)
    store.make()
    content = store.swap("manifest", b"0", None)
    listed, short = disk.names, [True, True]
    monkeypatch.setattr(disk, "names", lambda path: [] if path and short and short.pop() else listed(path))
    assert content and DirectoryStore(disk).load("manifest") == content


def test_a_register_of_which_the_content_is_lost_begins_again(store: Store) -> None:
    store.put("archive.json", b"{}")
    old = store.swap("manifest", b"old", None)
    assert old
    for name in store.list("manifest"):
        store.delete(f"manifest/{name}")
    assert store.load("manifest", old) is None and store.swap("manifest", b"late", old) is None
    new = store.swap("manifest", b"new", None)
    assert new and new.data == b"new" and store.load("manifest", old) == new


def test_no_swap_is_lost_among_many(store: Store) -> None:
    """Each of 4 writers adds its numbers one by one: all are in the end, however often they are refused."""

    def add(number: int) -> None:
        for n in range(number, 20, 4):
            while True:
                before = store.load("manifest")
                data = (before.data if before else b"") + bytes([n])
                if (after := store.swap("manifest", data, before)) and n in after.data:
                    break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    content = store.load("manifest")
    assert content and sorted(content.data) == list(range(20))


@pytest.mark.parametrize("before", [False, True])
def test_a_crash_leaves_a_register_as_it_was_or_replaced(before: bool) -> None:
    """Or without a content, which the archive's packs make again. What was acknowledged stays."""
    disk = SimDisk()
    store = DirectoryStore(disk)
    store.make()
    old = store.swap("manifest", b"old", None) if before else None
    left: list[bytes | None] = []

    def watch() -> None:
        for state in disk.crashes("tmp"):
            found = DirectoryStore(SimDisk(state)).load("manifest")
            left.append(found.data if found else None)

    disk.watch = watch
    assert store.swap("manifest", b"new", old)
    assert set(left) <= {b"old" if before else None, b"new", None} and b"new" in left
    assert {DirectoryStore(SimDisk(state)).load("manifest") for state in disk.crashes()} == {store.load("manifest")}


def test_a_writer_that_stalled_does_not_take_a_number_again() -> None:
    """Others went past the number and freed it."""
    disk = SimDisk()
    store, slow = DirectoryStore(disk), DirectoryStore(disk)
    store.make()
    before = store.swap("manifest", b"0", None)
    content = before
    for turn in range(1, 4):
        content = store.swap("manifest", b"%d" % turn, content)
    assert slow.swap("manifest", b"late", before) == content == store.load("manifest")
    assert content and set(store.list("manifest")) == {content.tag, "before"}


def test_what_a_killed_writer_left_is_taken_away(tmp_path: Path) -> None:
    store = DirectoryStore(OsDisk(tmp_path))
    store.make()
    first = store.swap("manifest", b"first", None)
    assert first
    second = store.swap("manifest", b"second", first)
    store.put(f"manifest/{first.tag}", b"first")  # the second writer was killed before it took it away
    assert store.load("manifest", first) == second
    third = store.swap("manifest", b"third", second)
    assert third and third == store.load("manifest") and set(store.list("manifest")) == {third.tag, "before"}
    assert store.earlier("manifest") == [b"second"]


class OneUnlink(OsDisk):
    """A disk on which one content of a register can be unlinked or renamed, as before a kill."""

    left = 1

    def unlink(self, path: str) -> None:
        self.take(path)
        super().unlink(path)

    def rename(self, path: str, other: str) -> None:
        self.take(path)
        super().rename(path, other)

    def take(self, path: str) -> None:
        if path.startswith("manifest/"):
            if not self.left:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.left -= 1


def test_the_lowest_content_goes_first(tmp_path: Path) -> None:
    """A number is free only after all before it are gone, else a slow writer would take it and be acknowledged."""
    store = DirectoryStore(OsDisk(tmp_path))
    store.make()
    first = store.swap("manifest", b"first", None)
    second = store.swap("manifest", b"second", first)
    assert first and store.put(f"manifest/{first.tag}", b"first")  # its writer was killed before it took it away
    third = DirectoryStore(OneUnlink(tmp_path)).swap("manifest", b"third", second)
    assert third and third.data == b"third"
    assert store.swap("manifest", b"late", first) == third == store.load("manifest")


def session(name: str, *turns: int) -> NewSession:
    return NewSession(name, [np.arange(40), *(np.full(5, t) for t in turns)], shared=1)


def test_an_archive_lives_there(store: Store, codec: SegmentCodec) -> None:
    archive = TowerArchive.create(store, [codec])
    with pytest.raises(UsageError, match="already"):
        TowerArchive.create(store, [codec])
    archive.put([session("a", 1), session("b", 2)])
    archive.put([session("a", 1, 3)])
    other = TowerArchive.open(store, [codec])
    assert [v.name for v in other.ls()] == ["a", "b"]
    assert other.get("a").tokens.tolist() == [*range(40), *[1] * 5, *[3] * 5]
    other.write_index()
    other.forget([other.version("b")])
    assert TowerArchive.open(store, [codec]).verify(decode=True).sound
    for _ in range(2):
        archive.collect(dead_share=0.01)
    last = TowerArchive.open(store, [codec])
    assert [v.name for v in last.ls(forgotten=True)] == ["a"] and last.verify(decode=True).sound
    last.rebuild()
    assert last.get("a").tokens.tolist() == archive.get("a").tokens.tolist()


# What only a bucket has.


def test_indexes_are_kept_on_this_machine(s3: S3Server, codec: SegmentCodec, tmp_path: Path) -> None:
    place, cache = s3.place(), tmp_path / "cache"
    archive = TowerArchive.create(ObjectStore(place, cache), [codec])
    archive.put([session(f"s{n}", n) for n in range(50)])
    archive.write_index()
    copies = [p for p in cache.rglob("*") if p.is_file() and p.name != "generation"]
    assert len(copies) == 1 and FileIndex.of(copies[0].read_bytes()).verify().hex() == copies[0].name
    requests = s3.count("GET /" + place.bucket + "/" + place.prefix + "/index/")
    assert TowerArchive.open(ObjectStore(place, cache), [codec]).get("s7").tokens[-1] == 7
    assert s3.count("GET /" + place.bucket + "/" + place.prefix + "/index/") == requests
    whole = copies[0].read_bytes()
    for damaged in (whole[:-1], whole[:100] + b"\xff" + whole[101:], b""):
        copies[0].unlink()  # the first process goes on to read the copy that it opened
        copies[0].write_bytes(damaged)
        again = TowerArchive.open(ObjectStore(place, cache), [codec])
        assert again.get("s9").tokens[-1] == 9 and not again.problems and copies[0].read_bytes() == whole
    archive.put([session("more", 1)])
    archive.write_index()
    assert copies[0] not in list(cache.rglob("*"))  # replaced, so its copy is dropped


def test_an_older_manifest_is_noticed_by_another_process(s3: S3Server, codec: SegmentCodec, tmp_path: Path) -> None:
    """The bucket, or its manifest, was brought back: the cache of this machine knows more, without a request."""
    place, cache = s3.place(), tmp_path / "cache"
    archive = TowerArchive.create(ObjectStore(place, cache), [codec])
    archive.put([session("a", 1)])
    register = "manifest/current"
    kept = archive.store.read(register, 0, 1 << 20)
    before = archive.store.list("packs").keys()
    archive.put([session("b", 2)])
    archive.store.delete(register)
    archive.store.put(register, kept)
    requests = s3.count("GET")
    for _ in range(2):
        with pytest.raises(RolledBack, match="backup"):
            TowerArchive.open(ObjectStore(place, cache), [codec])
    assert s3.count("GET") == requests + 4  # the manifest, and whether others replaced it meanwhile
    with pytest.raises(NotFound):  # a machine that knows nothing
        TowerArchive.open(ObjectStore(place, tmp_path / "other"), [codec]).get("b")
    assert Repairer(ObjectStore(place, cache)).run().rolled_back
    for known in ("cache", "other"):
        assert TowerArchive.open(ObjectStore(place, tmp_path / known), [codec]).get("b").tokens[-1] == 2
    kept = archive.store.read(register, 0, 1 << 20)
    [pack] = archive.store.list("packs").keys() - before
    TowerArchive.open(ObjectStore(place, cache), [codec]).put([session("c", 3)])
    archive.store.delete(register)  # all of it is brought back
    archive.store.put(register, kept)
    Repairer(ObjectStore(place, cache)).run()
    assert pack and TowerArchive.open(ObjectStore(place, cache), [codec]).get("c").tokens[-1] == 3
    for bytes_ in (b"", b"x y", b"\xff\xfe", f"{archive.settings.archive.hex()} {1 << 63}".encode()):
        (tmp_path / "cache" / next(cache.iterdir()).name / "generation").write_bytes(bytes_)


def test_what_goes_wrong_is_named_without_secrets(s3: S3Server) -> None:
    def message(place: BucketPlace) -> str:
        with pytest.raises(StoreError) as caught:
            ObjectStore(place).put("packs/a", b"1")
        assert "hunter2" not in str(caught.value) + repr(place)
        return str(caught.value)

    options = {**s3.options, "secret_access_key": "hunter2"}
    assert "no such bucket" in message(BucketPlace("nowhere", "", options))
    for wrong in "junk", "s3.example.com", "http://", "http://a b", "http://u:hunter2@host", "ftp://host":
        with pytest.raises(UsageError, match="expected the endpoint as https://host:port, with"):
            ObjectStore(BucketPlace("cold", "", {**options, "endpoint": wrong}))
    nobody = {**options, "endpoint": "http://127.0.0.1:1"}
    assert "cannot be reached" in message(BucketPlace("cold", "", nobody, retries=0))
    s3.failing = "503 Slow Down"
    assert "503" in message(BucketPlace(s3.bucket, "", options, retries=0))
    s3.failing = "403 Forbidden"
    assert "no permission" in message(BucketPlace(s3.bucket, "", options, retries=0))
    with pytest.raises(StoreError, match="no permission"):
        ObjectStore(BucketPlace(s3.bucket, "", options)).list("packs")


def test_a_busy_store_is_asked_again(s3: S3Server) -> None:
    store = ObjectStore(s3.place())
    s3.failing, s3.failures = "503 Slow Down", 2
    assert store.put("packs/a", b"1")
    s3.failing, s3.failures, s3.only = "409 ConditionalRequestConflict", 2, "PUT"
    assert store.put("packs/b", b"2") and store.list("packs") == {"a": 1, "b": 1}


def test_a_listing_that_is_cut_is_asked_again(s3: S3Server) -> None:
    store = ObjectStore(s3.place())
    store.put("packs/a", b"1")
    s3.failing, s3.failures, s3.only, s3.cut = "cut", 2, "GET", True
    assert store.list("packs") == {"a": 1}
    s3.failures = 1 << 30
    with pytest.raises(StoreError, match="cannot list packs"):
        store.list("packs")


def test_an_answer_that_is_lost_is_no_failure(s3: S3Server) -> None:
    """The server writes and answers 500: the next try finds the name taken, by our own bytes."""
    store = ObjectStore(s3.place())
    s3.failing, s3.failures, s3.late = "500 Internal Server Error", 1, True
    assert store.put("packs/a", b"1") and not store.put("packs/a", b"2")


def test_a_swap_whose_answer_is_lost_is_no_failure(s3: S3Server) -> None:
    store = ObjectStore(s3.place())
    first = store.swap("manifest", b"1", None)
    s3.failing, s3.failures, s3.late, s3.only = "500 Internal Server Error", 1, True, "PUT"
    second = store.swap("manifest", b"2", first)
    assert second and second.data == b"2" and store.load("manifest") == second


def test_a_register_is_one_request(s3: S3Server) -> None:
    store = ObjectStore(s3.place())
    first = store.swap("manifest", b"1", None)
    s3.requests.clear()
    assert store.load("manifest", first) is first
    assert store.swap("manifest", b"2", first) and [r.partition(" ")[0] for r in s3.requests] == ["GET", "PUT"]


@pytest.mark.parametrize("condition", ["If-None-Match", "If-Match"])
def test_a_store_that_overwrites_is_refused(s3: S3Server, codec: SegmentCodec, condition: str) -> None:
    s3.ignoring = condition.lower()
    with pytest.raises(StoreError, match=f"honour {condition} "):
        TowerArchive.create(ObjectStore(s3.place()), [codec])


def test_a_fault_leaves_the_archive_as_it_was(s3: S3Server, codec: SegmentCodec) -> None:
    """Fail every request of a put once, before or after the server has done its work: no object is ever partial."""
    place = BucketPlace(s3.bucket, "faults", s3.options, retries=0)
    TowerArchive.create(ObjectStore(place), [codec]).put([session("a", 1)])
    for late in (False, True):
        for turn in range(8):
            archive = TowerArchive.open(ObjectStore(place), [codec])
            archive.parts.writer.catalog.refresh()
            s3.failing, s3.failures, s3.skip, s3.late = "500 Internal Server Error", 1, turn, late
            try:
                archive.put([session("b", turn, int(late))])
                kept = True
            except ArchiveError:
                kept = False
            s3.failures = 0
            found = TowerArchive.open(ObjectStore(place), [codec])
            assert found.verify(decode=True).sound
            ends = [found.tower(v).tokens[-6::5].tolist() for v in found.history("b")]
            assert not kept or [turn, int(late)] in ends


class StaleListings:
    """A store whose listings leave out what was put since they were frozen, and still have what was deleted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        folders = "packs", "index", "lists", "parity", "manifest", "keys", "hold", "audit"
        self._frozen = {of: store.list(of) for of in folders}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list(self, folder: str) -> dict[str, int]:
        return dict(self._frozen[folder])


def test_puts_and_gets_do_not_need_listings(s3: S3Server, codec: SegmentCodec, tmp_path: Path) -> None:
    """With a manifest. A collector with such listings may refuse to work, and takes nothing that is needed."""
    store = ObjectStore(s3.place(), tmp_path)
    TowerArchive.create(store, [codec])
    stale = cast(Store, StaleListings(store))
    for turn in range(40):  # one of them puts an index
        TowerArchive.open(stale, [codec]).put([session(f"s{turn}", turn)])
    reader = TowerArchive.open(stale, [codec])
    assert all(reader.get(f"s{turn}").tokens[-1] == turn for turn in range(40))
    for _ in range(2):
        with suppress(ArchiveError):
            TowerArchive.open(stale, [codec]).collect()
    TowerArchive.open(store, [codec]).collect()
    last = TowerArchive.open(store, [codec])
    assert len(list(last.ls())) == 40 and last.verify(decode=True).sound


@pytest.mark.parametrize("place", ["", "http://cold/x", "file:///tmp/cold"])
def test_what_is_no_place(place: str) -> None:
    with pytest.raises(UsageError, match="expected a directory or s3://bucket/prefix"):
        open_store(place)


def test_a_file_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(UsageError, match="found a file"):
        open_store(tmp_path / "a")


def test_places() -> None:
    assert BucketPlace.of("s3://cold/a/b/") == BucketPlace("cold", "a/b")
    assert BucketPlace.of("s3://cold").url == "s3://cold"
    for wrong in ("s3://", "s3:///x", "http://cold", "s3://key:secret@cold", "s3://cold?x=1"):
        with pytest.raises(UsageError) as caught:
            BucketPlace.of(wrong)
        assert "secret" not in str(caught.value)
    assert isinstance(open_store("s3://cold/x"), ObjectStore)


def test_an_object_larger_than_ours_is_left(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.archive.storage.s3.MOST_WHOLE", 1000, raising=False)
    store = ObjectStore(s3.place(), tmp_path)
    store.put("packs/" + "0" * 32, bytes(1001))
    with pytest.raises(CorruptError, match="more than any of ours"):
        store.view("packs/" + "0" * 32)


def test_a_hole_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of keys that somebody made as large as a disk."""
    monkeypatch.setattr("pltz.archive.storage.store.MOST_SECRET", 1 << 20, raising=False)
    store = DirectoryStore(OsDisk(tmp_path))
    store.make()
    path = tmp_path / "keys" / "hole"
    with path.open("wb") as file:
        file.write(b"secret")
        file.truncate(1 << 40)
    left = path.open("rb")
    store.shred("keys/hole")
    assert not path.exists() and left.read(6) == bytes(6) and os.fstat(left.fileno()).st_blocks * 512 < 2 << 20
    left.close()
