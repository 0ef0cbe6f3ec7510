"""Parts of a session: put, read, listed, forgotten and erased together, and each version is what it was."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz.archive.archive import Archive
from pltz.archive.catalog.lookup import in_order
from pltz.archive.errors import LostError, NotFound
from pltz.archive.format.record import NOTHING, ContentFacts
from pltz.archive.retention import Policy
from pltz.archive.writing.new_session import CommitReceipt
from pltz.archive.writing.put_request import PutRequest
from pltz.plt_codec.errors import ContentError
from tests.archive.kit import RAW, DirectoryStore, NewSession, Repairer, Secret, SegmentCodec, SimDisk, TowerArchive
from tests.archive.towers import copy

KNOWN = ContentFacts("Where is the bug?", 7, 4711, 1_770_000_000_123_456_789, 1_770_000_000, 1_770_000_500)


@pytest.fixture(params=[None, RAW], ids=["open", "sealed"])
def key(request: pytest.FixtureRequest) -> Secret | None:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def archive(disk: SimDisk, tower_codec: SegmentCodec, key: Secret | None) -> TowerArchive:
    return TowerArchive.create(DirectoryStore(disk), [tower_codec], key=key)


def put(archive: TowerArchive, name: str = "log", **parts: list[int]) -> list[CommitReceipt]:
    """Put parts of a session at once: ``main``, or others by their path."""
    rows = {"" if part == "main" else part: np.array(ids) for part, ids in parts.items()}
    return archive.put([NewSession(name, [row], part=part, tags={"of": part}) for part, row in rows.items()])


def state(archive: TowerArchive, version: int | bytes | None = None, name: str = "log") -> dict[str, list[int]]:
    """Return the parts of a version of a session, as they are read."""
    whole = archive.parts.directory.whole(name, wanted=version)
    return {part.part: archive.tower(part).tokens.tolist() for part in whole.each}


def reopened(archive: TowerArchive, key: Secret | None) -> TowerArchive:
    return TowerArchive.open(archive.store, list(archive.codecs), key=key)


def test_what_one_put_writes_is_one_version_and_a_version_has_the_newest_of_each_part(archive: TowerArchive) -> None:
    first = put(archive, main=[1], a=[2], b=[2])
    assert [r.version for r in first] == [1, 1, 1] and len({r.moment for r in first}) == 1
    assert len({r.id for r in first}) == 3, "parts of the same content have ids of their own"
    [grown] = put(archive, a=[2, 3])
    same, new = put(archive, main=[1], c=[4])
    assert (grown.version, same.unchanged, new.version) == (2, True, 3)
    assert state(archive, 1) == {"": [1], "a": [2], "b": [2]}
    assert state(archive, 2) == {"": [1], "a": [2, 3], "b": [2]} == state(archive, grown.id)
    assert state(archive) == {"": [1], "a": [2, 3], "b": [2], "c": [4]}
    assert [(v.version, v.part, len(v.each)) for v in archive.ls(history=True)] == [(1, "", 3), (2, "", 3), (3, "", 4)]
    assert archive.get("log").tokens.tolist() == [1]
    with pytest.raises(NotFound, match="no part 'd', but '', 'a', 'b', 'c'"):
        archive.parts.directory.version("log", part="d")


def test_a_session_without_a_main_part_is_listed_and_says_so(archive: TowerArchive) -> None:
    put(archive, a=[2])
    assert [v.part for v in archive.ls()] == ["a"]
    with pytest.raises(NotFound, match="no main part, but 'a'"):
        archive.get("log")


def test_forgetting_a_version_keeps_what_later_ones_have_of_it(archive: TowerArchive, key: Secret | None) -> None:
    put(archive, main=[1], a=[2])
    put(archive, main=[1, 5])
    first, second = archive.ls(history=True)
    assert archive.forget([first]) == 1 and archive.forget([first]) == 0
    assert [v.version for v in archive.ls(history=True)] == [2] and state(archive) == {"": [1, 5], "a": [2]}
    # what was kept for the second goes with it, and comes back with it
    assert archive.forget([second]) == 2 and not list(archive.ls()) and archive.undelete([second]) == 2
    assert state(archive) == {"": [1, 5], "a": [2]}
    # what is left of the first is there as long as the second needs it
    for _ in range(2):
        archive.collect(dead_share=0.01)
    assert state(reopened(archive, key)) == {"": [1, 5], "a": [2]}
    assert [(v.version, len(v.each)) for v in archive.ls(history=True)] == [(1, 1), (2, 2)]


def test_parts_are_erased_together(disk: SimDisk, tower_codec: SegmentCodec) -> None:
    archive = TowerArchive.create(DirectoryStore(disk), [tower_codec], key=RAW)
    put(archive, main=[1], a=[2])
    put(archive, name="other", main=[1], b=[9])
    put(archive, main=[1, 4])
    assert sorted(len(v.each) for v in TowerArchive.open(DirectoryStore(disk), []).ls()) == [2, 2]
    archive.erase("default", "log")
    assert [v.name for v in archive.ls()] == ["other"] and state(archive, name="other") == {"": [1], "b": [9]}


def test_a_copy_has_the_same_versions_and_parts(archive: TowerArchive, tower_codec: SegmentCodec) -> None:
    archive.put([NewSession("log", [np.arange(3)], content=KNOWN), NewSession("log", [np.arange(4)], part="a/b")])
    put(archive, a=[2])
    to = TowerArchive.create(DirectoryStore(SimDisk(seed=9)), [tower_codec], key=RAW)
    for _ in range(2):
        done = list(copy(archive, list(archive.ls(history=True)), to))
        assert len(done) == 3
    assert all(one.there for one in done)
    assert [[part.part for part in version.each] for version in to.ls(history=True)] == [["", "a/b"], ["", "a", "a/b"]]
    assert {v.part: v.content for v in to.history("log")} == {v.part: v.content for v in archive.history("log")}
    assert state(to) == state(archive)


def test_what_is_known_of_a_part_comes_back_and_does_not_make_a_version(archive: TowerArchive) -> None:
    row = [np.arange(9)]
    archive.put([NewSession("log", row, content=KNOWN, part="x"), NewSession("log", row)])
    assert [v.content for v in archive.history("log") if v.part] == [KNOWN]
    [again] = archive.put([NewSession("log", row, content=KNOWN._replace(mtime=5), part="x")])
    assert again.unchanged
    [whole] = archive.ls()
    assert whole.content == NOTHING._replace(size=4711), "the bytes of a version are those of its parts"


def test_turns_of_each_part_are_joined_apart(archive: TowerArchive, key: Secret | None) -> None:
    for n in range(1, 9):
        rows = [np.arange(100 * i, 100 * i + 60) for i in range(n)]
        archive.put_and_join([NewSession("log", rows), NewSession("log", [row + 7 for row in rows], part="a")])
    archive.join()
    for _ in range(2):
        archive.collect(dead_share=0.01)
    archive = reopened(archive, key)
    for version in range(1, 9):
        found = {part: len(ids) for part, ids in state(archive, version).items()}
        assert found == {"": 60 * version, "a": 60 * version}
    assert archive.verify(decode=True).sound


def beside(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Do work of another process right before the next pack of this one is put."""
    listing = archive.catalog.listing
    publish = listing.publish

    def late(*args: Any, **options: Any) -> bool:
        monkeypatch.setattr(listing, "publish", publish)
        work()
        return publish(*args, **options)

    monkeypatch.setattr(listing, "publish", late)


def test_a_put_beside_a_forget_keeps_the_part_that_it_left_as_it_is(
    archive: TowerArchive, key: Secret | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(archive, main=[1], a=[2])
    other = reopened(archive, key)
    beside(archive, monkeypatch, lambda: other.forget(list(other.ls())))
    main, same = put(archive, main=[1, 5], a=[2])
    assert not same.unchanged and main.version == same.version
    assert state(reopened(archive, key)) == {"": [1, 5], "a": [2]}


def test_a_forget_beside_a_put_keeps_what_the_new_version_has(
    archive: TowerArchive, key: Secret | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(archive, main=[1], a=[2])
    other, versions = reopened(archive, key), list(archive.ls())
    beside(archive, monkeypatch, lambda: put(other, main=[1, 5]))
    assert archive.forget(versions) == 1 and state(reopened(archive, key)) == {"": [1, 5], "a": [2]}


def test_parts_of_one_key_are_not_put_at_once(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive.keys, "part_key", lambda *_: 7)
    with pytest.raises(ContentError, match="rename"):
        put(archive, a=[1], b=[1])


def test_two_writers_at_one_moment_make_two_versions(archive: TowerArchive) -> None:
    [receipt] = put(archive, main=[1])
    [version] = archive.history("log")
    twin = replace(version, id=bytes(16))
    assert [v.version for v in in_order([version, twin])] == [1, 2] and receipt.version == 1


def test_the_library_puts_lists_and_gives_parts(tmp_path: Path) -> None:
    with Archive.open(tmp_path, create=True) as cold:
        requests = [PutRequest("log", "main", content=KNOWN), PutRequest("log", b"file", part="tool-results/1.txt")]
        assert [(r.part, r.version) for r in cold.put_many(requests)] == [("", 1), ("tool-results/1.txt", 1)]
        assert cold.put("log", "more", part="z", continues=True).version == 2
        [found] = cold.list()
        assert (found.parts, found.content.title, found.version) == (("", "tool-results/1.txt", "z"), KNOWN.title, 2)
        assert [v.part for v in cold.list(parts=True)] == ["", "tool-results/1.txt", "z"]
        assert [p.value for p in cold.get_parts("log")] == [b"main", b"file", b"more"]
        assert [p.part for p in cold.get_parts("log", version=1)] == ["", "tool-results/1.txt"]
        assert cold.get("log", part="z").value == b"more" and cold.get("log").value == b"main"
        with pytest.raises(ContentError, match="relative"):
            cold.put("log", "x", part="../x")
        assert [v.version for v in cold.expire(Policy(keep_last=1))] == []
        assert [v.version for v in cold.forget("log")] == [1, 2] and not list(cold.list())
        assert [v.version for v in cold.undelete("log")] == [1, 2]


# ---- A part that a lost pack may have is called lost, and never absent or as it was before


@pytest.fixture
def cold(tmp_path: Path) -> Archive:
    """An archive of which the pack with two parts of a session is given up, and one part was put since."""
    place = tmp_path / "cold"
    cold = Archive.open(place, create=True, bundle="nano")
    cold.put("p", "the main part", part="")
    cold.put("p", "one", part="a")
    before = set(place.glob("packs/*"))
    list(cold.put_many([PutRequest("p", "two", part="a"), PutRequest("p", "first", part="b/c")]))
    for path in set(place.glob("packs/*")) - before:
        path.unlink()
        (place / "parity" / path.name).unlink()
    cold = Archive.open(place, bundle="nano")
    assert not Repairer(cold.parts.store).run().whole
    cold = Archive.open(place, bundle="nano")
    cold.put("p", "the main part goes on")
    return Archive.open(place, bundle="nano")


def test_what_a_lost_pack_may_have_is_not_called_absent_nor_old(cold: Archive) -> None:
    assert cold.get("p").value == b"the main part goes on"  # it is newer than what was lost
    for part in ("a", "b/c"):
        with pytest.raises(LostError):
            cold.get("p", part=part)
    with pytest.raises(LostError):
        list(cold.get_parts("p"))


def test_a_part_that_is_nowhere_is_absent_where_nothing_is_lost(tmp_path: Path) -> None:
    cold = Archive.open(tmp_path / "sound", create=True, bundle="nano")
    cold.put("p", "one")
    with pytest.raises(NotFound, match="has no part 'a'"):
        cold.get("p", part="a")
