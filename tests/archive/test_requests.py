"""Requests per get and put do not grow with the number of packs, where an archive has a manifest.

`CountedStore` is a bucket in memory that counts the calls which would be requests. The packs beside those of the test
are names in indexes and in listings: nothing reads them.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pltz.archive.catalog import listing
from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.listing import PackFront
from pltz.archive.errors import NotFound
from pltz.archive.format import index_file
from pltz.archive.format.byte_source import File, Held
from pltz.archive.format.index_file import U64, FileIndex, Lookup
from pltz.archive.format.object_names import folder_of, index, last_part, pack
from pltz.archive.storage.s3 import FRONT, RangedObject
from pltz.archive.storage.store import Content
from pltz.benchmarks.archive.simulate_scale import CountedBucket
from pltz.plt_codec.identity import SIZE
from tests.archive.kit import NewSession, Secret, TowerArchive, ZlibCodec

COUNTS = [10, 1000, 100_000]
PACK_SIZE = 1000  # bytes


class CountedStore(CountedBucket):
    """A bucket in memory that counts each call which would be a request. Indexes are kept once read."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.listed: Counter[str] = Counter()  # by folder
        self.opened = list[str]()  # names of objects that were read whole

    def put(self, name: str, data: bytes) -> bool:
        self.requests["put"] += 1
        return self.objects.setdefault(name, data) == data

    def read(self, name: str, offset: int, size: int) -> bytes:
        self.requests["read"] += 1
        return self._whole(name)[offset : offset + size]

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        self.requests["ranges"] += 1  # side by side
        return [self._whole(name)[offset : offset + size] for offset, size in ranges]

    def view(self, name: str) -> memoryview:
        self.requests["read"] += 1
        return memoryview(self._whole(name))

    def open(self, name: str) -> File:
        self.requests["read"] += name not in self.cached
        self.opened.append(name)
        if folder_of(name) == "index":
            self.cached.add(name)
        return Held(self._whole(name))

    def list(self, folder: str) -> dict[str, int]:
        self.requests["list"] += 1
        self.listed[folder] += 1
        return {last_part(name): len(data) for name, data in self.objects.items() if folder_of(name) == folder}

    def delete(self, name: str, *, lasting: bool = True) -> None:
        self.requests["delete"] += 1
        self.objects.pop(name, None)

    def load(self, register: str, known: Content | None = None) -> Content | None:
        self.requests["load"] += 1
        return self.registers.get(register)

    def swap(
        self, register: str, data: bytes, before: Content | None, wait: float = 0.0, spare: bool = False
    ) -> Content | None:
        self.requests["swap"] += 1
        if self.registers.get(register) == before:
            self.registers[register] = Content(data, os.urandom(8).hex())
        return self.registers.get(register)

    def now(self) -> int:
        return 1_000_000_000

    def _whole(self, name: str) -> bytes:
        if name not in self.objects:
            raise FileNotFoundError(2, "no such object", name)
        return self.objects[name]


class RangedStore(CountedStore):
    """A bucket in memory in which each index is a large one, of which ranges are read, as `ObjectStore` does."""

    def open(self, name: str) -> File:
        if folder_of(name) != "index":
            return super().open(name)
        data = self._whole(name)
        self.requests["index"] += 1

        def get(offset: int, size: int) -> bytes:
            self.requests["index"] += 1
            return data[offset : offset + size]

        return RangedObject(len(data), get, memoryview(data)[:FRONT])


class Names(Lookup):
    """An index over packs that are names alone.

    ``each``: segments and sessions of each pack, a block for every 100.
    """

    def __init__(self, names: Sequence[bytes], each: int = 1) -> None:
        self.names = [*names]
        self.packs = dict.fromkeys(names, PACK_SIZE * each)
        self.each = each

    def columns(self, section: int) -> tuple[U64, U64, U64]:
        count = len(self.names) * self.each if section != index_file.MARKS else 0
        keys = np.random.default_rng(section).integers(0, 1 << index_file.KEY_BITS, count, np.uint64)
        numbers, rows = np.divmod(np.arange(count, dtype=np.uint64), np.uint64(self.each))
        return keys, numbers, rows // np.uint64(100) * np.uint64(100 * PACK_SIZE) + np.uint64(64)


def filled(count: int) -> tuple[CountedStore, int]:
    """Make an archive of ``count`` packs and one session of its own, and return how many indexes cover it."""
    store = CountedStore()
    archive = TowerArchive.create(store, [ZlibCodec()])
    archive.put([NewSession("a", [np.arange(9)])])
    archive.write_index()
    return store, 1 + add_names(store, archive.catalog, count)


def add_names(store: CountedStore, catalog: Catalog, count: int, each: int = 1) -> int:
    """Add packs that are names alone to an archive, and return how many indexes cover them. Counts begin again.

    ``each``: as in `Names`.
    """
    names = [os.urandom(SIZE) for _ in range(count)]
    store.objects |= {pack(name): b"" for name in names}
    made = {}
    for part in index_file.parts(dict.fromkeys(names, PACK_SIZE * each)):
        data = index_file.build([Names([*part], each)], part)
        made[index_file.name_of(data)] = FileIndex.of(data)
        store.put(index(index_file.name_of(data)), data)
    catalog.listing.publish(lambda manifest: replace(manifest, indexes=manifest.indexes | made.keys()))
    store.requests.clear()
    store.cached.clear()
    return len(made)


@pytest.mark.parametrize("count", COUNTS)
def test_no_get_and_no_put_lists(count: int) -> None:
    store, indexes = filled(count)
    archive = TowerArchive.open(store, [ZlibCodec()])
    assert len(archive.catalog.listing.packs) == count + 1
    assert store.requests == {"read": indexes, "load": 1}  # the manifest has the settings; indexes are kept

    def counted() -> dict[str, int]:
        found = {kind: number for kind, number in store.requests.items() if number}
        store.requests.clear()
        return found

    archive.put([NewSession("n", [np.arange(100, 105)])])
    counted()
    assert archive.get("a").tokens.tolist() == [*range(9)]
    assert counted() == {"load": 1, "read": 1}  # of a small pack all
    archive.get("a")
    assert counted() == {"load": 1, "read": 1}
    archive.catalog.max_age = 60.0
    archive.get("a")
    assert counted() == {}  # its bytes are in memory until the next look
    archive.get("n")
    assert counted() == {"read": 1}
    for number in range(10):
        archive.put([NewSession(f"n{number}", [np.arange(number, number + 7)])])
        assert counted() == {"load": 1, "put": 2, "swap": 1}, number  # pack and parity
    archive.catalog.max_age = 0.0
    other = TowerArchive.open(store, [ZlibCodec()])
    counted()
    assert other.get("n7").tokens.tolist() == [*range(7, 14)]
    archive.put([NewSession("late", [np.arange(5)])])
    counted()
    assert other.get("late").tokens.tolist() == [*range(5)]  # another's put is seen by the same number of requests
    assert counted() == {"load": 1, "read": 1}


@pytest.mark.parametrize("count", COUNTS)
def test_a_cold_get_takes_the_manifest_the_index_and_the_record(count: int) -> None:
    """The look of the opening serves a get that is a part of the same call, as that of a command is.

    One index covers all packs, as after a collect.
    """
    store, _ = filled(count)
    TowerArchive.open(store, [ZlibCodec()]).write_index()
    store.cached.clear()
    store.requests.clear()
    archive = TowerArchive.open(store, [ZlibCodec()])
    assert len(archive.catalog.listing.packs) == count + 1
    with archive.catalog.one_look(max_age=60):
        assert archive.get("a").tokens.tolist() == [*range(9)]
    assert store.requests == {"load": 1, "read": 2}


@pytest.mark.parametrize("count", COUNTS)
def test_a_cold_get_with_a_large_index_takes_its_head_and_a_page_per_key(count: int) -> None:
    """A session whose record has its last segment is looked up once."""
    store = RangedStore()
    archive = TowerArchive.create(store, [ZlibCodec()])
    archive.put([NewSession("prompt", [np.arange(3, 12)])])
    archive.put([NewSession("a", [np.arange(3, 12), np.arange(5)])])
    add_names(store, archive.catalog, count, 1_000_000 // count)
    writer = TowerArchive.open(store, [ZlibCodec()])
    writer.write_index()
    for session, packs in (("prompt", 1), ("a", 2), ("prompt", 1), ("a", 2)):
        store.requests.clear()
        archive = TowerArchive.open(store, [ZlibCodec()])
        with archive.catalog.one_look(max_age=60):
            assert len(archive.get(session).tokens) == (9 if packs == 1 else 14)
        head = 3 if count == 100_000 else 1  # a table of 100,000 packs has more than the first MiB
        assert store.requests == {"load": 1, "index": head + packs, "read": packs}
        writer.put([NewSession("later", [np.arange(30, 33)])])
    archive = TowerArchive.open(store, [ZlibCodec()])
    archive.get("a")
    store.requests.clear()
    archive.get("a")
    assert store.requests == {"load": 1, "read": 2}, "pages stay in memory"


def test_a_get_from_a_large_pack_asks_for_its_header_and_a_block_side_by_side() -> None:
    """The block has the record of the session and that of its segment, and is asked for once."""
    store = CountedStore()
    archive = TowerArchive.create(store, [ZlibCodec()])
    noise = np.random.default_rng(0).integers(0, 1 << 16, (400, 1000))
    archive.put([NewSession(f"s{number}", [row]) for number, row in enumerate(noise)])
    ((_, size),) = archive.catalog.listing.packs.items()
    assert size > 10 * 65536
    far = [v for v in archive.ls() if v.location.offset > 65536]
    assert len(far) > 99
    reader = TowerArchive.open(store, [ZlibCodec()])
    for first, version in zip((True, False, False), far, strict=False):
        store.requests.clear()
        assert reader.get(version.name).tokens.tolist() == noise[int(version.name[1:])].tolist()
        body = store.requests.pop("read", 0)
        assert store.requests == ({"load": 1, "ranges": 1} if first else {"load": 1})
        assert body <= (1 if first else 2)  # of the body what did not come with the head of its block


def test_a_small_archive_in_a_bucket_has_one_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a cold get takes three requests however many packs there are: an index takes in those before it."""
    monkeypatch.setattr("pltz.archive.catalog.index_keeper.BUCKET_PACKS", 2)
    store = CountedStore()
    archive = TowerArchive.create(store, [ZlibCodec()])
    for number in range(20):
        archive.put([NewSession(f"n{number}", [np.arange(number, number + 7)])])
    assert len(archive.catalog.listing.present.indexes) == 1
    for number in range(20):
        store.cached.clear()
        store.requests.clear()
        other = TowerArchive.open(store, [ZlibCodec()])
        with other.catalog.one_look(max_age=60):
            assert other.get(f"n{number}").tokens.tolist() == [*range(number, number + 7)]
        assert store.requests == {"load": 1, "read": 2}


def test_a_reader_that_meets_a_replaced_index_does_not_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer replaces the index between the manifest of a reader and its look at the index."""
    monkeypatch.setattr("pltz.archive.catalog.index_keeper.BUCKET_PACKS", 2)
    store = CountedStore()
    archive = TowerArchive.create(store, [ZlibCodec()])
    reader, names = TowerArchive.open(store, [ZlibCodec()]), iter(range(20))
    archive.put([NewSession(f"n{next(names)}", [np.arange(5)]) for _ in range(2)])
    load = store.load

    def late(register: str, known: Content | None = None) -> Content | None:
        store.load = load  # type: ignore[method-assign]
        content = load(register, known)
        for number in [next(names), next(names)]:
            archive.put([NewSession(f"n{number}", [np.arange(number, number + 9)])])
        store.requests.clear()
        return content

    archive.write_index()
    store.load = late  # type: ignore[method-assign]
    assert reader.get("n3").tokens.tolist() == [*range(3, 12)] and not store.requests["list"]


def test_verify_misses_archive_json_where_the_manifest_has_the_settings() -> None:
    store, _ = filled(0)
    del store.objects["archive.json"]
    archive = TowerArchive.open(store, [ZlibCodec()])
    assert archive.get("a").tokens.tolist() == [*range(9)] and "archive.json" in archive.verify().missing_copies


@pytest.mark.parametrize("count", COUNTS)
def test_an_absent_session_or_version_takes_the_manifest(count: int) -> None:
    store, indexes = filled(count)
    archive = TowerArchive.open(store, [ZlibCodec()])
    for name, number, reads in (("nobody", None, 0), ("a", 7, 1)):  # the record of a session has its versions
        store.requests.clear()
        with pytest.raises(NotFound):
            archive.get(name, version=number)
        assert store.requests == {"load": 1} | ({"read": reads} if reads else {})
    archive.catalog.max_age = 60.0
    TowerArchive.open(store, [ZlibCodec()]).put([NewSession("late", [np.arange(5)])])
    store.requests.clear()
    assert archive.get("late").tokens.tolist() == [*range(5)]  # nobody is called absent by an old manifest
    assert store.requests == {"load": 1, "read": 1}
    store.cached.clear()
    store.requests.clear()
    other = TowerArchive.open(store, [ZlibCodec()])
    with other.catalog.one_look(max_age=60), pytest.raises(NotFound):
        other.get("nobody")
    assert store.requests == {"load": 2, "read": indexes}  # nothing was known: one more than of a session that is there


def test_an_erase_asks_for_packs_once_and_not_for_sessions() -> None:
    """Requests do not grow with the sessions of a tenant, and no large pack of another tenant is read whole.

    Those of the tenant are read once: to look, twice, what others share, and to prove that nothing opens.
    """
    requests = list[int]()
    for count in (4, 400):
        store = CountedStore()
        archive = TowerArchive.create(store, [ZlibCodec()], key=Secret(b"key", 0))
        noise = np.random.default_rng(0).integers(0, 1 << 16, 100_000)
        archive.put([NewSession("x", [noise], "other")])
        (other,) = archive.catalog.listing.packs
        sessions = [NewSession(f"s{n}", [np.arange(9), np.array([n])], "acme") for n in range(count)]
        archive.put(sessions[: count // 2])
        archive.put(sessions[count // 2 :])
        archive.write_index()
        eraser = TowerArchive.open(store, [ZlibCodec()], key=Secret(b"key", 0))
        store.requests.clear()
        store.opened.clear()
        done = eraser.erase("acme", "s1")
        assert (done.segments, done.shared, done.unread) == (1, 1, 0)
        read = Counter(name for name in store.opened if folder_of(name) == "packs")
        assert read.keys() >= {pack(name) for name in archive.catalog.listing.packs.keys() - {other}}
        assert set(read.values()) == {1}
        requests.append(sum(store.requests.values()))
        assert eraser.get("s2", "acme").tokens.tolist() == [*range(9), 2]
    assert abs(requests[0] - requests[1]) < 20, requests  # some more where records move under other keys


def sealed(tenants: str) -> CountedStore:
    """Return a sealed archive with a manifest, in which each tenant has five sessions, each in a pack of its own."""
    store = CountedStore()
    archive = TowerArchive.create(store, [ZlibCodec()], key=Secret(b"key", 0))
    for number in range(5):
        for tenant in tenants:
            archive.put([NewSession(f"s{number}", [np.arange(9), np.array([number])], tenant)])
    store.requests.clear()
    store.listed.clear()
    return store


@pytest.mark.parametrize("tenants", ["ab", "abcdefgh"])
def test_an_erase_lists_a_folder_once_per_phase(tenants: str) -> None:
    """List packs before anything, after the keys that doom a session, before other keys go, and for the proof.

    Key files are listed before anything, after each new generation, and for the proof.
    """
    store = sealed(tenants)
    TowerArchive.open(store, [ZlibCodec()], key=Secret(b"key", 0)).erase("a", "s1")
    looks = {"packs": 5, "keys": 5, "hold": 1}
    assert store.listed == looks


def test_an_erase_of_a_tenant_lists_once_and_reads_its_packs_once() -> None:
    store = sealed("ab")
    eraser = TowerArchive.open(store, [ZlibCodec()], key=Secret(b"key", 0))
    others = {v.location.pack for v in eraser.ls("b")}
    store.opened.clear()
    store.listed.clear()
    done = eraser.erase("a")
    assert (done.versions, done.records, done.unread) == (5, 6, 0)  # and the turn that they share
    assert store.listed == {"packs": 2, "keys": 3, "hold": 1}
    read = Counter(name for name in store.opened if folder_of(name) == "packs")
    assert {read[pack(name)] for name in eraser.catalog.listing.packs.keys() - others} == {1}


def test_the_keys_of_an_absent_session_are_listed_once_per_process() -> None:
    store = sealed("ab")
    archive = TowerArchive.open(store, [ZlibCodec()], key=Secret(b"key", 0))
    store.listed.clear()
    for lists in ({"keys": 1}, {}):
        with pytest.raises(NotFound):
            archive.get("nobody", "a")
        assert store.listed == lists
        store.listed.clear()


def test_collect_reads_each_pack_once_and_again_where_a_condemned_one_relies_on_it() -> None:
    store = CountedStore()
    archive = TowerArchive.create(store, [ZlibCodec()])
    noise = np.random.default_rng(0).integers(0, 1 << 16, (2, 50_000))
    archive.put([NewSession("large", [noise[0]])])
    (large,) = archive.catalog.listing.packs
    for number in range(3):
        archive.put([NewSession(f"s{number}", [np.arange(number + 5)])])
    assert archive.collect(small=10_000).condemned == 3
    before = set(archive.catalog.listing.packs)
    archive.put([NewSession("again", [np.arange(5), noise[1]])])  # the segment of a condemned pack, in one that stays
    (again,) = archive.catalog.listing.packs.keys() - before
    store.opened.clear()
    assert TowerArchive.open(store, [ZlibCodec()]).collect(small=10_000).deleted == 3
    read = Counter(name for name in store.opened if folder_of(name) == "packs")
    assert len(read) == 6  # five, and the copy
    assert (read.pop(pack(again)), read.pop(pack(large))) == (3, 2), "what no list has is read once more for one"
    assert set(read.values()) == {1}


def test_two_writers_lose_nothing() -> None:
    """Each put of the other in between makes a swap fail once: the packs of both are named."""
    store, _ = filled(10)
    writers = [TowerArchive.open(store, [ZlibCodec()]) for _ in range(2)]
    swap = store.swap

    def late(*args: Any) -> Content | None:
        store.swap = swap  # type: ignore[method-assign]
        writers[1].put([NewSession("first", [np.arange(3)])])
        return swap(*args)

    store.swap = late  # type: ignore[method-assign, assignment]
    writers[0].put([NewSession("second", [np.arange(4)])])
    fresh = TowerArchive.open(store, [ZlibCodec()])
    assert fresh.get("first").tokens.tolist() == [0, 1, 2] and fresh.get("second").tokens.tolist() == [0, 1, 2, 3]


def test_heads_of_packs_stay_in_memory_for_those_that_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at all packs kept up to 64 KiB of each: 4 GB at 60,000 packs."""
    monkeypatch.setattr(listing, "OPEN_PACKS", 2)
    store = CountedStore()
    archive = TowerArchive.create(store, [ZlibCodec()])
    for n in range(5):
        archive.put([NewSession(f"{n}", [np.arange(n, n + 9)])])
    known, opened = archive.catalog.listing, list[PackFront]()

    class Noted(PackFront):
        def __init__(self, *how: Any) -> None:
            super().__init__(*how)
            opened.append(self)

    monkeypatch.setattr(listing, "PackFront", Noted)
    archive.catalog.refresh()
    for name in known.packs:
        known.opened(name)
    assert len(known.packs) == len(opened) == 5 and sum(bool(front.data) for front in opened) == 2


def test_puts_of_an_append_only_archive_delete_nothing() -> None:
    store = CountedStore()
    archive = TowerArchive.create(store, [ZlibCodec()], key=Secret(b"key", 0), append_only=True)
    for number in range(40):
        archive.put([NewSession(f"s{number}", [np.arange(number, number + 9)])])
    archive.forget([archive.version("s7")])
    archive.undelete([archive.version("s7", version=1)])
    assert not store.requests["delete"] and len(archive.catalog.listing.present.indexes) > 2
    assert not archive.catalog.problems
    other = TowerArchive.open(store, [ZlibCodec()], key=Secret(b"key", 0))
    assert all(other.get(f"s{number}").tokens.tolist() == [*range(number, number + 9)] for number in range(40))
    for _ in range(2):
        other.collect()
    assert store.requests["delete"] > 40 and other.verify(decode=True).sound
