"""A manifest of a backup comes back: what objects do that were open before, and machines that saw nothing newer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz.archive.archive import Archive
from pltz.archive.errors import NotFound, Outdated, RolledBack
from pltz.archive.format.object_names import MANIFEST
from pltz.archive.maintenance.repair import Repairer
from pltz.archive.retention import Policy
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from tests.archive.catalog.test_register import bring_back, kept_manifest, session, tokens
from tests.archive.sealed import RAW
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive, copy

Open = Callable[..., TowerArchive]


@pytest.fixture(params=["parity", "bare", "sealed"])
def opened(request: pytest.FixtureRequest, disk: SimDisk, codec: SegmentCodec, tmp_path: Path) -> Open:
    """Return what opens an archive with session a: here, or, with ``elsewhere``, on a machine that saw nothing."""
    key = RAW if request.param == "sealed" else None
    parity = {"parity": (0, 0)} if request.param == "bare" else {}

    def another(*, elsewhere: bool = False) -> TowerArchive:
        return TowerArchive.open(DirectoryStore(disk, cache=None if elsewhere else tmp_path), [codec], key=key)

    here = DirectoryStore(disk, cache=tmp_path)
    TowerArchive.create(here, [codec], key=key, manifest=True, **parity).put([session("a", 1)])
    return another


def expire(archive: TowerArchive) -> list[int]:
    return [v.version for v in Archive(archive.parts).expire(Policy(keep_last=1), ["a"])]


def forgotten(archive: TowerArchive) -> int:
    assert Archive(archive.parts).forget("a")
    return sum(v.forgotten for v in archive.history("a"))


def refused(archive: TowerArchive) -> bool:
    """Return whether retention says that the archive went back, and forgets nothing."""
    with pytest.raises(RolledBack):
        expire(archive)
    return not any(v.forgotten for v in archive.history("a"))


def copied(archive: TowerArchive, codec: SegmentCodec) -> list[list[int]]:
    other = TowerArchive.create(DirectoryStore(SimDisk(seed=5)), [codec])
    for _ in copy(archive, archive.ls(history=True), other):
        pass
    return [other.tower(v).tokens.tolist() for v in other.ls(history=True)]


WORK: dict[str, tuple[Callable[[TowerArchive, SegmentCodec], Any], Any]] = {
    "get": (lambda archive, _: archive.get("a").tokens.tolist(), tokens("a", 3)),
    "get another": (lambda archive, _: archive.get("u").tokens.tolist(), tokens("u")),
    "ls": (lambda archive, _: [(v.name, v.version) for v in archive.ls()], [("a", 3), ("u", 1)]),
    "copy": (copied, [tokens("a", 1), tokens("a", 2), tokens("a", 3), tokens("u")]),
    "forget": (lambda archive, _: forgotten(archive), 3),
    "expire": (lambda archive, _: refused(archive), True),
    "put": (lambda archive, _: archive.put([session("a", 4)])[0].id == archive.version("a").id, True),
    "put again": (lambda archive, _: archive.put([session("a", 1)])[0].id == archive.version("a").id, True),
}


def test_what_one_object_loaded_all_of_its_process_know(disk: SimDisk, opened: Open) -> None:
    """The machine does not keep it, since a power cut may undo what was only loaded."""
    early, reader, kept = opened(), opened(), kept_manifest(disk)
    opened(elsewhere=True).put([session("a", 2)])
    assert reader.get("a").tokens.tolist() == tokens("a", 2)
    bring_back(disk, kept)
    assert early.get("a").tokens.tolist() == tokens("a", 2)


@pytest.mark.parametrize("work", WORK)
def test_an_object_that_was_open_since_before_notices(
    disk: SimDisk, codec: SegmentCodec, opened: Open, work: str
) -> None:
    """It holds exactly the manifest that came back. Others of its machine put since."""
    early = opened()
    assert early.get("a").tokens.tolist() == tokens("a", 1)
    kept = kept_manifest(disk)
    other = opened()
    for name, more in ("a", [2]), ("a", [3]), ("u", []):
        other.put([session(name, *more)])
    bring_back(disk, kept)
    do, expected = WORK[work]
    assert do(early, codec) == expected


@pytest.mark.parametrize(
    ("work", "elsewhere"),
    [*((work, False) for work in ("forget", "expire", "put", "put again")), *((w, True) for w in ("forget", "put"))],
)
def test_what_an_older_look_decided_is_decided_anew(
    disk: SimDisk,
    codec: SegmentCodec,
    opened: Open,
    monkeypatch: pytest.MonkeyPatch,
    work: str,
    elsewhere: bool,
) -> None:
    """The manifest of before comes back between its look and its swap.

    On its machine others saw more; elsewhere they say so by the manifest that they put.
    """
    other = opened()
    if work == "expire":
        other.put([session("a", 0)])
    kept, slow = kept_manifest(disk), opened(elsewhere=elsewhere)

    def meanwhile() -> None:
        for number in (2, 3):
            other.put([session("a", number)])
        bring_back(disk, kept)
        if elsewhere:
            other.put([session("w")])

    todo, publish = [meanwhile], slow.catalog.listing.publish

    def delayed(*args: Any, **options: Any) -> bool:
        while todo:
            todo.pop()()
        return publish(*args, **options)

    monkeypatch.setattr(slow.catalog.listing, "publish", delayed)
    do, expected = WORK[work]
    assert do(slow, codec) == expected and not todo
    if work.startswith("put"):
        archive = opened()
        assert archive.get("a").tokens.tolist() == tokens("a", 4 if work == "put" else 1)
        found = [archive.tower(v).tokens.tolist() for v in archive.history("a")]
        others = [tokens("a", n) for n in (1, 2, 3) if tokens("a", n) != found[-1]]
        assert [one for one in found if one != found[-1]] == others


def test_who_always_meets_an_older_manifest_is_told(
    disk: SimDisk, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is acknowledged, and the work is not tried for ever."""
    archive, calls = opened(), list[int]()

    def publish(**_: Any) -> bool:
        calls.append(1)
        raise Outdated("again")

    monkeypatch.setattr(archive.catalog.listing, "publish", publish)
    with pytest.raises(Outdated):
        archive.put([session("a", 2)])
    assert len(calls) < 20


@pytest.mark.parametrize(
    ("by", "puts"),
    [
        *((by, puts) for by in ("repair", "collect") for puts in range(1, 5)),
        *((by, puts) for by in ("put", "reader") for puts in (1, 2)),  # else they pass what its machine saw
    ],
)
def test_what_a_machine_put_that_saw_nothing_newer_stays_the_newest(
    disk: SimDisk, opened: Open, by: str, puts: int
) -> None:
    """Retention took it once: its versions had the numbers of those that the old manifest hid."""
    kept = kept_manifest(disk)
    other = opened()
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
        for archive in (opened(), opened(elsewhere=True)) if by != "reader" else (opened(),):
            assert archive.get("a").tokens.tolist() == tokens("a", 4 + puts)
            assert archive.get("u").tokens.tolist() == tokens("u", 2)

    if by == "repair":
        assert Repairer(DirectoryStore(disk)).run().rolled_back
    elif by == "collect":
        opened(elsewhere=True).collect()
    elif by == "put":
        opened().put([session("b")])
    newest()
    if by != "reader":
        for grace in (0, 0, 0):
            opened(elsewhere=True).collect(dead_share=0.01, grace=grace)
            newest()
    assert len(opened().history("a")) == 4 + puts
    Repairer(DirectoryStore(disk)).run()
    assert expire(opened()) == [*range(1, 4 + puts)]
    for _ in range(2):
        opened().collect(dead_share=0.01)
    Repairer(DirectoryStore(disk)).run()
    newest()
    assert opened().put([session("a", 9)])[0].version == len(opened().history("a"))
    assert opened().verify(decode=True).sound


def test_old_manifests_that_come_back_again_and_again_leave_the_order_as_it_is(disk: SimDisk, opened: Open) -> None:
    """Nobody repairs between. Numbers could not tell the newest of these."""
    put = [tokens("a", 1)]
    for turn in (10, 20, 30):
        kept = kept_manifest(disk)
        for number, elsewhere in ((2, False), (3, False), (4, True)):
            if elsewhere:
                bring_back(disk, kept)
            opened(elsewhere=elsewhere).put([session("a", turn + number)])
            put.append(tokens("a", turn + number))
    Repairer(DirectoryStore(disk)).run()
    for archive in opened(), opened(elsewhere=True):
        assert [archive.tower(v).tokens.tolist() for v in archive.history("a")] == put
        assert [v.version for v in archive.history("a")] == [*range(1, 11)]
    assert expire(opened()) == [*range(1, 10)] and opened().get("a").tokens.tolist() == put[-1]


def test_turns_joined_with_what_an_older_manifest_hid_keep_their_order(
    disk: SimDisk, tower_codec: SegmentCodec
) -> None:
    turns = [np.array([65, *range(number, 40 + number)]) for number in range(8)]

    def at(count: int, fork: int = 0) -> NewSession:
        return NewSession("s", [np.arange(9), *turns[:count], *([turns[0] + fork] if fork else [])], shared=1)

    def opened() -> TowerArchive:
        return TowerArchive.open(DirectoryStore(disk), [tower_codec])

    TowerArchive.create(DirectoryStore(disk), [tower_codec], manifest=True).put([at(1)])
    kept, other = kept_manifest(disk), opened()
    for count in (2, 3, 4):
        other.put([at(count)])
    bring_back(disk, kept)
    opened().put([at(1, fork=7)])
    assert MANIFEST in Repairer(DirectoryStore(disk)).run().remade
    archive = opened()
    for count in range(2, 8):
        archive.put_and_join([at(count)])
    archive.join()
    last = [opened().tower(v).tokens.tolist() for v in opened().history("s")]
    wanted = [at(1), at(2), at(3), at(4), at(1, fork=7), *(at(count) for count in range(2, 8))]
    assert last == [np.concatenate([*s.segments]).tolist() for s in wanted]
