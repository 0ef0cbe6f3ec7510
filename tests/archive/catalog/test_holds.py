"""Holds: nothing of what is held is forgotten, freed or erased, by whomever, and no file alone takes a hold along."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pltz.archive.archive import Archive
from pltz.archive.author import Author
from pltz.archive.catalog.holds import LegalHold
from pltz.archive.copy import copy
from pltz.archive.errors import ManifestLost, NotFound, OnHold, Outdated
from pltz.archive.format.hold import VERSION, Hold
from pltz.archive.format.ids import tenant_of
from pltz.archive.format.record import FORGET
from pltz.archive.retention import Policy
from pltz.plt_codec.errors import ContentError, CorruptError, PltzError, UsageError, VersionError
from pltz.plt_codec.identity import SIZE, digest
from tests.archive.kit import NewSession, SimDisk, TowerArchive, create, repaired
from tests.archive.sealed import RAW, reopen

ALICE = Author("alice", "case seven")
SALTED = tenant_of("acme", "pepper")
HELD: dict[str, dict[str, Any]] = {
    "session": {"tenant": "acme", "name": "a"}, "tag": {"tenant": None, "tag": ("matter", "7")},
    "tag of a tenant": {"tenant": "acme", "tag": ("matter", "7")}, "tenant": {"tenant": "acme"},
}


def session(name: str, first: int, tenant: str = "acme", **tags: str) -> NewSession:
    return NewSession(name, [np.arange(first, first + 30)], tenant, tags=tags)


def made(key: Any = RAW) -> tuple[SimDisk, TowerArchive]:
    """Make an archive with sessions of which one is held by name, tag and tenant, and one of another tenant is not."""
    disk = SimDisk()
    archive = create(disk, key=key)
    archive.put([session("a", 1, matter="7"), session("free", 200, "other")])
    archive.put([session("a", 2, matter="7"), session("free", 201, "other")])
    return disk, archive


def hold(archive: TowerArchive, **what: Any) -> LegalHold:
    return archive.catalog.holds.place(ALICE, **what)


def free(archive: TowerArchive) -> None:
    """Free what is forgotten."""
    for _ in range(3):
        archive.collect(dead_share=0.01)


def names(archive: TowerArchive) -> list[str]:
    return sorted({v.name for v in archive.ls(history=True, forgotten=True)})


def test_a_forget_that_was_decided_before_a_hold_is_decided_again() -> None:
    disk, archive = made()
    beside, marker = reopen(disk), archive.parts.marker
    marking = marker.of([v for v in archive.ls(history=True) if v.name == "a"][:1], FORGET)
    hold(beside, **HELD["session"])
    with pytest.raises(Outdated):
        marker.mark(marking)


def test_a_manifest_that_lacks_a_hold_frees_and_erases_nothing() -> None:
    disk, archive = made()
    placed = hold(archive, **HELD["tenant"])
    archive.catalog.listing.publish(lambda base: replace(base, holds={}))  # by one who may not delete hold/
    works: list[Callable[[], Any]] = [
        archive.collect, lambda: archive.erase("acme", "a"), lambda: archive.erase("acme", "a", dry_run=True),
        lambda: archive.erase("acme"),
    ]
    for work in works:
        with pytest.raises(ManifestLost, match=f"hold/{placed.id.hex()} is there"):
            work()
    repaired(disk)
    with pytest.raises(OnHold, match="alice"):
        reopen(disk).erase("acme", "a")
    archive.catalog.look(0)
    foreign = replace(archive.catalog.holds.rows[placed.id], archive=bytes(16))
    disk.write_new(f"hold/{foreign.id.hex()}", foreign.encode())
    archive.catalog.holds.release(placed.id)
    assert archive.erase("acme", "a").versions == 2


def test_a_hold_that_no_reader_would_take_is_not_placed() -> None:
    disk, archive = made()
    with pytest.raises(UsageError, match="at most 8192 bytes"):
        hold(archive, tenant="acme", tag=("matter", "7" * 9000))
    assert not reopen(disk).catalog.holds.rows
    with pytest.raises(ContentError, match="not valid Unicode"):
        hold(archive, tenant="acme", tag=("matter", "\udcff"))
    assert archive.catalog.holds.place(Author("alice", "\udcff"), tenant="acme").reason == "\udcff"


@pytest.mark.parametrize("note", [b"", b"[" * 7000, b"[]", b'{"tenant": 1}', b"\xff"])
def test_a_note_that_was_made_up_is_damage(note: bytes) -> None:
    archive = create(SimDisk())
    archive.put([session("a", 1)])
    listing = archive.catalog.listing
    row = Hold(2, listing.archive, 5, note)
    listing.publish(lambda manifest: replace(manifest, holds={row.id: row}))
    with pytest.raises(CorruptError, match="the note of hold"):
        archive.forget([*archive.ls(history=True)])


@pytest.mark.parametrize("what", HELD)
def test_nothing_takes_what_is_held(what: str) -> None:
    disk, archive = made()
    beside = reopen(disk)  # was open before
    placed = hold(archive, **HELD[what])
    for cold in archive, beside, reopen(disk):
        library = Archive(cold.parts)
        calls: list[Callable[[], Any]] = [
            lambda cold=cold: cold.forget(cold.history("a", "acme")[:1]),  # type: ignore[misc]
            lambda library=library: library.forget("a", tenant="acme"),  # type: ignore[misc]
            lambda library=library: library.expire(Policy(keep_last=1), "a", tenant="acme"),  # type: ignore[misc]
            *(lambda dry=dry, cold=cold: cold.erase("acme", "a", dry_run=dry) for dry in (True, False)),
            lambda cold=cold: cold.erase("acme"),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(OnHold, match="alice") as told:
                call()
            assert told.value.hold == placed and told.value.exit_code == 7
        assert [v.name for v in library.expire(Policy(keep_last=1))] in (["free"], [])
    assert len(archive.history("a", "acme")) == 2 and archive.verify(decode=True).sound
    assert archive.erase("other", "free").versions == 2
    archive.catalog.holds.release(placed.id)
    assert not archive.catalog.holds.all() and archive.erase("acme", "a").versions == 2


@pytest.mark.parametrize("key", [None, RAW], ids=["open", "sealed"])
@pytest.mark.parametrize("what", HELD)
def test_what_was_forgotten_before_is_not_freed(what: str, key: Any) -> None:
    """By a collector with the key and one without, of a run too: older versions are held with it."""
    for keyless, joined in itertools.product([False, True], repeat=2):
        disk, archive = made(key)
        if joined:
            archive.put([NewSession("a", [np.arange(2, 32), np.arange(9)], "acme", tags={"matter": "7"})])
            archive.load_codecs()
            archive.join()
        kept = len(archive.history("a", "acme"))
        archive.forget([*archive.history("a", "acme"), *archive.history("free", "other")])
        placed = hold(archive, **HELD[what])
        cold = reopen(disk, key=None) if keyless else archive
        free(cold)
        archive = reopen(disk, key=key)
        assert len(archive.history("a", "acme")) == kept
        assert ("free" in names(archive)) is (keyless and key is not None and what != "session")  # who cannot tell
        assert archive.undelete(archive.history("a", "acme")) and archive.verify(decode=True).sound
        archive.catalog.holds.release(placed.id)
        archive.forget(archive.history("a", "acme"))
        free(archive)
        assert names(archive) == []


def test_what_is_put_later_is_held_too() -> None:
    _, archive = made()
    for what in HELD.values():
        hold(archive, **what)
    for one in [session("late", 3, "third", matter="7"), session("salted", 4, SALTED), session("late", 5, "third")]:
        archive.put([one])
    tagged, plain = archive.history("late", "third")
    for call in (lambda: archive.forget([tagged]), lambda: archive.erase("third", "late")):
        with pytest.raises(OnHold, match="matter=7"):
            call()
    with pytest.raises(OnHold):
        archive.erase(SALTED)
    assert archive.forget([plain]) == 1


@pytest.mark.parametrize("key", [None, RAW], ids=["open", "sealed"])
def test_a_hold_survives_the_loss_of_each_file(key: Any) -> None:
    disk, archive = made(key)
    placed = [hold(archive, **what) for what in HELD.values()]
    paths = sorted(disk.seen.files())
    assert sum(path.startswith("hold/") for path in paths) == len(HELD)
    for path in paths:
        for data in (None, b"", disk.seen.files()[path][:-1] + b"?"):
            other = SimDisk(disk.seen)
            other.unlink(path)
            if data is not None:
                other.write_new(path, data)
            if path.startswith("hold/"):
                report = reopen(other, key=key).verify()
                assert report.missing_copies == [path] if data is None else not report.sound
            repaired(other)
            assert set(reopen(other, key=key).catalog.holds.all()) == set(placed), path
            assert {path for path in paths if path.startswith("hold/")} <= other.seen.files().keys()


def test_the_manifest_of_a_backup_does_not_lose_a_hold() -> None:
    disk, archive = made(None)
    before = {path: data for path, data in disk.seen.files().items() if path.startswith("manifest/")}
    placed = hold(archive, tenant="acme")
    for path in [path for path in disk.seen.files() if path.startswith("manifest/")]:
        disk.unlink(path)
    for path, data in before.items():
        disk.write_new(path, data)
    assert [(p.kind, p.name) for p in reopen(disk, key=None).verify().problems] == [("hold", placed.id.hex())]
    repaired(disk)
    archive = reopen(disk, key=None)
    assert archive.catalog.holds.all() == [placed] and archive.verify().sound


def test_names_and_reasons_are_sealed() -> None:
    disk, archive = made()
    hold(archive, **HELD["session"])
    hold(archive, **HELD["tag"])
    data = b"".join(disk.seen.files().values())
    assert not any(word in data for word in (b"acme", b"alice", b"seven", b"matter"))
    with pytest.raises(PltzError, match="sealed"):
        reopen(disk, key=None).catalog.holds.all()


def test_an_erase_of_lost_keys_counts_what_it_cannot_read_as_held() -> None:
    disk, archive = made()
    hold(archive, **HELD["tag"])
    domain = archive.keys.domain(0, "acme").hex()
    for path in [path for path in disk.seen.files() if path.startswith(f"keys/{domain}")]:
        disk.unlink(path)
    with pytest.raises(OnHold):
        reopen(disk).erase("acme")


def test_a_hold_that_comes_meanwhile_stops_an_erase(monkeypatch: pytest.MonkeyPatch) -> None:
    from pltz.archive.maintenance.erase import Eraser

    disk, archive = made()
    without = Eraser._without

    def beside(*of: Any) -> Any:
        hold(reopen(disk), **HELD["session"])
        return without(*of)

    monkeypatch.setattr(Eraser, "_without", beside)
    with pytest.raises(OnHold):
        archive.erase("acme", "a")
    assert reopen(disk).verify(decode=True).sound and len(archive.history("a", "acme")) == 2


@pytest.mark.parametrize("key", [None, RAW], ids=["open", "sealed"])
def test_a_copy_takes_holds_along(key: Any) -> None:
    _, archive = made(key)
    placed = [hold(archive, **what) for what in HELD.values()]
    hold(archive, tenant="third")
    other = create(SimDisk(seed=9), key=RAW)
    for _ in range(2):
        assert len([*copy(archive.parts, archive.ls(history=True), other.parts)]) == 4
        assert {h[1:] for h in other.catalog.holds.all()} == {h[1:] for h in placed}
    with pytest.raises(OnHold):
        other.erase("acme", "a")


def test_what_names_nothing_is_refused() -> None:
    _, archive = made(None)
    cold = Archive(archive.parts)
    wrong: list[dict[str, Any]] = [{}, {"name": "a", "tenant": "acme", "tag": ("a", "b")}]
    for what in wrong:
        with pytest.raises(UsageError):
            cold.hold(**what)
    with pytest.raises(NotFound):
        cold.hold("nobody", tenant="acme")
    one, two = cold.hold("a", tenant="acme"), cold.hold(tenant="acme")
    assert cold.hold(tenant="acme") == two and cold.holds() == tuple(sorted((one, two), key=lambda h: (h.time, h.id)))
    for identity, error in ((b"", UsageError), (b"\0" * 16, NotFound)):
        with pytest.raises(error):
            cold.release(identity)
    assert len(cold.holds()) == 2


def test_each_changed_byte_of_a_hold_is_refused() -> None:
    data = Hold(1, bytes(16), 5, b"note").encode()
    assert Hold.decode(data).encode() == data
    for at in range(len(data)):
        for hurt in (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], data[:at]):
            with pytest.raises(CorruptError):
                Hold.decode(hurt)
    for at, new in ((4, VERSION + 1), (5, 3), (6, 1)):
        body = data[:at] + bytes([new]) + data[at + 1 : -SIZE]
        with pytest.raises(VersionError):
            Hold.decode(body + digest(b"pltz hold", body))
    assert replace(Hold(1, bytes(16), 5, b""), time=6).id != Hold(1, bytes(16), 5, b"").id
