"""A manifest of a backup comes back: what objects do that were open before, and machines that saw nothing newer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz.archive.archive import Archive
from pltz.archive.errors import NotFound, RolledBack
from pltz.archive.format.object_names import MANIFEST
from pltz.archive.retention import Policy
from tests.archive.catalog.test_register import bring_back, kept_manifest, session, tokens
from tests.archive.kit import RAW, DirectoryStore, NewSession, SegmentCodec, SimDisk, TowerArchive, create, repaired
from tests.archive.towers import copy

Open = Callable[..., TowerArchive]


@pytest.fixture(params=["open", "sealed"])
def opened(request: pytest.FixtureRequest, disk: SimDisk, codec: SegmentCodec, tmp_path: Path) -> Open:
    """Return what opens an archive with session a: here, or, with ``elsewhere``, on a machine that saw nothing."""
    key = RAW if request.param == "sealed" else None

    def another(*, elsewhere: bool = False) -> TowerArchive:
        return TowerArchive.open(DirectoryStore(disk, cache=None if elsewhere else tmp_path), [codec], key=key)

    here = DirectoryStore(disk, cache=tmp_path)
    TowerArchive.create(here, [codec], key=key).put([session("a", 1)])
    return another


def expire(archive: TowerArchive) -> list[int]:
    return [v.version for v in Archive(archive.parts).expire(Policy(keep_last=1), ["a"])]


def copied(archive: TowerArchive, codec: SegmentCodec) -> None:
    other = create(SimDisk(seed=5))
    for _ in copy(archive, archive.ls(history=True), other):
        pass


WORK: dict[str, Callable[[TowerArchive, SegmentCodec], object]] = {
    "get": lambda archive, _: archive.get("a"), "get another": lambda archive, _: archive.get("u"),
    "ls": lambda archive, _: list(archive.ls()), "copy": copied,
    "forget": lambda archive, _: Archive(archive.parts).forget("a"), "expire": lambda archive, _: expire(archive),
    "put": lambda archive, _: archive.put([session("a", 4)]),
    "put again": lambda archive, _: archive.put([session("a", 1)]), "collect": lambda archive, _: archive.collect(),
    "verify": lambda archive, _: archive.verify(),
}


def test_what_one_object_loaded_all_of_its_process_know(disk: SimDisk, opened: Open) -> None:
    """The machine does not keep it, since a power cut may undo what was only loaded."""
    early, reader, kept = opened(), opened(), kept_manifest(disk)
    opened(elsewhere=True).put([session("a", 2)])
    assert reader.get("a").tokens.tolist() == tokens("a", 2)
    bring_back(disk, kept)
    with pytest.raises(RolledBack):
        early.get("a")


@pytest.mark.parametrize("work", WORK)
def test_an_object_open_since_before_says_so(disk: SimDisk, codec: SegmentCodec, opened: Open, work: str) -> None:
    """It holds exactly the manifest that came back. Others of its machine put since."""
    early = opened()
    assert early.get("a").tokens.tolist() == tokens("a", 1)
    kept, other = kept_manifest(disk), opened()
    for name, more in ("a", [2]), ("a", [3]), ("u", []):
        other.put([session(name, *more)])
    bring_back(disk, kept)
    before = disk.seen.files()
    with pytest.raises(RolledBack):
        WORK[work](early, codec)
    assert disk.seen.files() == before and len(repaired(disk).named) == 3
    assert opened().get("a").tokens.tolist() == tokens("a", 3) and opened().get("u").tokens.tolist() == tokens("u")


@pytest.mark.parametrize("work", ["forget", "expire", "put", "put again"])
def test_what_an_older_look_decided_is_not_acknowledged(
    disk: SimDisk, codec: SegmentCodec, opened: Open, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """The manifest of before comes back between its look and its swap, and others of its machine saw more."""
    other = opened()
    if work == "expire":
        other.put([session("a", 0)])
    kept, slow = kept_manifest(disk), opened()

    def meanwhile() -> None:
        for number in (2, 3):
            other.put([session("a", number)])
        bring_back(disk, kept)

    todo, publish = [meanwhile], slow.catalog.listing.publish

    def delayed(*args: Any, **options: Any) -> bool:
        while todo:
            todo.pop()()
        return publish(*args, **options)

    monkeypatch.setattr(slow.catalog.listing, "publish", delayed)
    with pytest.raises(RolledBack):
        WORK[work](slow, codec)
    assert not todo
    repaired(disk)
    assert opened().get("a").tokens.tolist() == tokens("a", 3)


@pytest.mark.parametrize("puts", range(1, 5))
def test_what_a_machine_put_that_saw_nothing_newer_stays_the_newest(disk: SimDisk, opened: Open, puts: int) -> None:
    """Retention took it once: its versions had the numbers of those that the old manifest hid."""
    kept, other = kept_manifest(disk), opened()
    for number in (2, 3, 4):
        other.put([session("a", number)])
    other.put([session("u", 1)])
    bring_back(disk, kept)
    unknowing = opened(elsewhere=True)
    with pytest.raises(NotFound):
        unknowing.get("u")
    for number in range(puts):
        unknowing.put([session("a", 5 + number)])
    unknowing.put([session("u", 2)])

    def newest() -> None:
        for archive in opened(), opened(elsewhere=True):
            assert archive.get("a").tokens.tolist() == tokens("a", 4 + puts)
            assert archive.get("u").tokens.tolist() == tokens("u", 2)

    assert len(repaired(disk).named) == 4
    newest()
    assert len(opened().history("a")) == 4 + puts and expire(opened()) == [*range(1, 4 + puts)]
    for _ in range(3):
        opened().collect(dead_share=0.01)
        newest()
    assert opened().put([session("a", 9)])[0].version == len(opened().history("a"))
    assert opened().verify(decode=True).sound


def test_turns_joined_with_what_an_older_manifest_hid_keep_order(disk: SimDisk, tower_codec: SegmentCodec) -> None:
    turns = [np.array([65, *range(number, 40 + number)]) for number in range(8)]

    def at(count: int, fork: int = 0) -> NewSession:
        return NewSession("s", [np.arange(9), *turns[:count], *([turns[0] + fork] if fork else [])], shared=1)

    def opened() -> TowerArchive:
        return TowerArchive.open(DirectoryStore(disk), [tower_codec])

    TowerArchive.create(DirectoryStore(disk), [tower_codec]).put([at(1)])
    kept, other = kept_manifest(disk), opened()
    for count in (2, 3, 4):
        other.put([at(count)])
    bring_back(disk, kept)
    opened().put([at(1, fork=7)])
    assert MANIFEST in repaired(disk).remade
    archive = opened()
    for count in range(2, 8):
        archive.put_and_join([at(count)])
    archive.join()
    last = [opened().tower(v).tokens.tolist() for v in opened().history("s")]
    wanted = [at(1), at(2), at(3), at(4), at(1, fork=7), *(at(count) for count in range(2, 8))]
    assert last == [np.concatenate([*s.segments]).tolist() for s in wanted]
