"""Lists of sessions: `ls` of a bucket reads them in place of packs, and tells what packs tell."""

from typing import Any

import numpy as np
import pytest

from pltz.archive.catalog import index_keeper
from pltz.archive.catalog.lookup import Version, as_sessions
from pltz.archive.encryption.keys import Secret
from pltz.archive.format import object_names, session_list
from pltz.archive.format.record import ContentFacts
from tests.archive.kit import DirectoryStore, NewSession, Repairer, SimDisk, TowerArchive, ZlibCodec, create, reopen
from tests.archive.test_requests import CountedStore

KEY = Secret(b"key", 0)
KEYS = pytest.mark.parametrize("key", [None, KEY])


def opened(store: CountedStore, key: Secret | None = None) -> TowerArchive:
    return TowerArchive.open(store, [ZlibCodec()], key=key)


def filled(key: Secret | None = None) -> CountedStore:
    """Make an archive of sessions with tags, versions, joined turns, forgotten ones, and packs without an index."""
    store = CountedStore()
    archive = TowerArchive.create(store, [ZlibCodec()], key=key)
    archive.put([NewSession(f"s{n}", [np.arange(9), np.arange(n)], "ab"[n % 2], tags={"n": f"{n}"}) for n in range(30)])
    said = ContentFacts("a title", 3, 99, 1 << 60, 5, 9)
    both = NewSession("both", [np.arange(9)], "a", content=said), NewSession("both", [np.arange(4)], "a", part="sub/b")
    archive.put([*both])
    for turns in range(1, 9):
        archive.put([NewSession("grown", [np.arange(40 + n) for n in range(turns)], "a")])
    assert archive.join()
    archive.forget([archive.version("s2", "a"), archive.version("s4", "a")])
    archive.undelete([archive.version("s4", "a", version=1)])
    archive.write_index()
    archive.put([NewSession("late", [np.arange(5)], "b")])
    archive.forget([archive.version("s3", "b")])
    return store


def facts(versions: list[Version]) -> list[Any]:
    found = [part for v in versions for part in v.each]
    return [(v.id, v.tenant, v.name, v.part, v.content, v.version, v.tags, v.forgotten, v.lacks) for v in found]


def whole(archive: TowerArchive) -> list[Any]:
    """Check that lists and packs tell the same, and return it."""
    listed = list(archive.ls(forgotten=True, history=True))
    assert facts(listed) == facts([*as_sessions(archive.catalog.lookup.all_versions())])
    return facts(listed)


def lists_in(store: CountedStore) -> list[str]:
    return sorted(name for name in store.objects if name.startswith("list/"))


@KEYS
@pytest.mark.parametrize("at_once", [7, 1 << 18])
def test_lists_tell_what_packs_tell(key: Secret | None, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_list, "AT_ONCE", at_once)
    store = filled(key)
    assert (len(lists_in(store)) == 1) == (at_once > 7)
    reader = opened(store, key)
    store.opened.clear()
    found = list(reader.ls(forgotten=True, history=True))
    read = {name for name in store.opened if name.startswith("packs/")}
    assert len(read) == 2 < len(reader.catalog.listing.packs), "the packs of the two last puts"
    assert facts(found) == whole(reader) and len(found) == 40 and {v.name for v in found if v.forgotten} == {"s2", "s3"}
    for v in reader.ls(history=True):
        assert len(reader.tower(v).tokens) == len(reader.get(v.name, v.tenant, version=v.version).tokens)
    assert [v.name for v in reader.ls("b") if v.tags.get("n") == "5"] == ["s5"]


@KEYS
@pytest.mark.parametrize("harm", ["gone", "damaged", "of another"])
def test_without_a_sound_list_packs_are_read(key: Secret | None, harm: str) -> None:
    """Verify names it, and repair makes it again."""
    store = filled(key)
    [other] = [store.objects[name] for name in lists_in(store)]
    opened(store, key).write_index()
    wanted = whole(opened(store, key))
    [name] = lists_in(store)
    data = store.objects.pop(name)
    if harm != "gone":
        at = len(data) // 2
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        store.objects[name] = changed if harm == "damaged" else other
    reader = opened(store, key)
    assert facts(list(reader.ls(forgotten=True, history=True))) == wanted
    report = reader.verify(decode=True)
    assert report.sound == (harm == "gone") and (name in report.missing_copies) == (harm == "gone")
    assert [p.name for p in report.problems if p.kind == "list"] == [object_names.last_part(name)] * (harm != "gone")
    done = Repairer(store).run()
    assert done.whole and name in done.remade and len(lists_in(store)) == 1
    assert opened(store, key).verify(decode=True).sound and whole(opened(store, key)) == wanted
    store.opened.clear()
    opened(store, key).ls()
    store.objects[lists_in(store)[0]] = b"not a list"
    opened(store, key).rebuild()
    assert whole(opened(store, key)) == wanted and opened(store, key).verify().sound and len(lists_in(store)) == 1


@KEYS
@pytest.mark.parametrize("indexed", [True, False])
def test_what_was_collected_is_in_no_list(key: Secret | None, indexed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was killed before it wrote the index: other records of what it moved are read."""
    store = filled(key)
    archive = opened(store, key)
    archive.forget([archive.version("s6", "a"), archive.version("s8", "a")])
    if not indexed:
        monkeypatch.setattr(index_keeper.IndexKeeper, "try_to_write", lambda *_, **__: None)
    for _ in range(2):
        opened(store, key).collect(grace=0, dead_share=0.0, small=1 << 20)
    reader = opened(store, key)
    names = {fact[2] for fact in whole(reader)}
    assert "s6" not in names and "s8" not in names and {"s4", "s10", "grown", "late", "both"} <= names
    monkeypatch.undo()
    opened(store, key).write_index()
    assert {fact[2] for fact in whole(opened(store, key))} == names and len(lists_in(store)) == 1


def test_an_erased_name_is_read_in_no_list() -> None:
    """Its box stands there until the packs of its records are collected, and opens no more."""
    store = filled(KEY)
    before = {name: store.objects[name] for name in lists_in(store)}
    archive = opened(store, KEY)
    key = archive.keys.session_key(archive.keys.domain(0, "a"), "s10")
    archive.erase("a", "s10")
    assert {name: store.objects[name] for name in lists_in(store)} == before
    reader = opened(store, KEY)
    assert "s10" not in {v.name for v in reader.ls("a")} and "s12" in {v.name for v in reader.ls("a")} and whole(reader)
    boxes = 0
    for name, data in before.items():
        digest = bytes.fromhex(object_names.last_part(name))
        for _, record, context in session_list.decoded(data, digest, reader.catalog.listing.archive):
            if record.veil[:8] == key[:8]:
                boxes += 1
                assert reader.keys.gone(context, key)
                with pytest.raises(Exception, match="erased"):
                    reader.keys.session(context, record)
    assert boxes == 1 and not any(b"s10" in data for data in before.values())


def test_a_list_is_written_of_what_was_just_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """Own packs are not read back, and those of others once."""
    monkeypatch.setattr(index_keeper, "BUCKET_PACKS", 4)
    store = CountedStore()
    archive = TowerArchive.create(store, [ZlibCodec()])
    for number in range(4):
        archive.put([NewSession(f"n{number}", [np.arange(number + 3)])])
    assert not [name for name in store.opened if name.startswith("packs/")] and len(lists_in(store)) == 1
    for number in range(4, 8):
        opened(store).put([NewSession(f"n{number}", [np.arange(number + 3)])])
    read = [name for name in store.opened if name.startswith("packs/")]
    assert len(read) == len(set(read)) == 3 and len(lists_in(store)) == 1
    store.opened.clear()
    assert len(whole(opened(store))) == 8


def test_a_folder_has_no_lists_and_reads_those_of_a_bucket() -> None:
    store, disk = filled(), SimDisk()
    there = create(disk)
    there.put([NewSession("a", [np.arange(5)])])
    there.write_index()
    assert not [path for path in disk.seen.files() if path.startswith("list/")]
    copied = SimDisk()
    DirectoryStore(copied).make()
    for name, data in store.objects.items():
        copied.write_new(name, data)
    copied.write_new("manifest/0000000000000001", store.registers["manifest"].data)
    folder = reopen(copied)
    assert whole(folder) == whole(opened(store))
    folder.rebuild()
    assert not [path for path in copied.seen.files() if path.startswith("list/")]
    assert whole(folder) == whole(opened(store)) and folder.verify().sound


def test_ls_of_many_sessions_takes_few_requests() -> None:
    """However many packs they are in: the manifest, indexes, lists, and fewer packs than a writer leaves without."""
    store, sessions = CountedStore(), 2_000
    archive = TowerArchive.create(store, [ZlibCodec()])
    for begin in range(0, sessions, 50):
        archive.put([NewSession(f"chat/{n:06}", [np.array([n])], time=1) for n in range(begin, begin + 50)])
    for number in range(index_keeper.BUCKET_PACKS - 1):
        opened(store).put([NewSession(f"late{number}", [np.array([number])])])
    store.requests.clear()
    store.cached.clear()
    reader = opened(store)
    with reader.catalog.one_look(max_age=60):
        assert len(list(reader.ls())) == sessions + index_keeper.BUCKET_PACKS - 1
    assert sum(store.requests.values()) <= 20, store.requests
