"""Histories with a hole: whoever reads the newest version, numbers one or forgets some looks for hidden ones first."""

from pathlib import Path

import numpy as np
import pytest

from pltz.archive.archive import Archive
from pltz.archive.errors import LostError, MissingPack, NotFound
from pltz.archive.format.ids import TENANT
from pltz.archive.format.index_file import key_of
from pltz.archive.retention import Policy
from pltz.archive.storage.seen import PLACES
from tests.archive import kit
from tests.archive.kit import RAW, DirectoryStore, NewSession, SimDisk, TowerArchive, ZlibCodec, create, repaired

BOTH = pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
NAME = "session-" + 80 * "s"  # a run has it once, which makes even four versions worth one
TURNS = [np.arange(40) % (5 + n) for n in range(8)]


def made(sealed: bool) -> tuple[SimDisk, TowerArchive]:
    disk = SimDisk()
    return disk, create(disk, key=RAW if sealed else None)


def reopen(disk: SimDisk, sealed: bool) -> TowerArchive:
    return kit.reopen(disk, key=RAW if sealed else None)


def put(archive: TowerArchive, turns: int, name: str = NAME) -> int:
    [receipt] = archive.put([NewSession(name, TURNS[:turns])])
    return receipt.version


def grown(sealed: bool, *, merged: bool, indexed: bool = True) -> SimDisk:
    """Put a session of four versions and another; with ``merged`` the four are one run, and all is in one pack."""
    disk, archive = made(sealed)
    for turns in range(1, 5):
        put(archive, turns)
    archive.put([NewSession("other", [np.array([7, 7, 7])])])
    if merged:
        assert archive.join() == 1
        for _ in range(3):
            archive.collect()
        assert len(archive.catalog.listing.packs) == 1
    if indexed:
        archive.write_index()
    else:
        for name in archive.store.list("index"):
            archive.store.delete(f"index/{name}")
    return SimDisk(disk.seen, seed=7)


def newest(archive: TowerArchive, name: str = NAME) -> int:
    """Return how many turns the newest version has."""
    return len(archive.get(name).segments)


def lengths(archive: TowerArchive, name: str = NAME) -> list[int]:
    """Return how many turns each version has, the oldest first."""
    return [len(archive.tower(v).segments) for v in archive.history(name)]


def all_away(disk: SimDisk, archive: TowerArchive) -> dict[str, bytes]:
    """Take the packs of all versions of a session away."""
    names = {f"packs/{v.location.pack.hex()}" for v in archive.history(NAME)}
    files = {name: disk.seen.files()[name] for name in names}
    for name in names:
        disk.unlink(name)
    return files


@BOTH
@pytest.mark.parametrize("indexed", [True, False])
def test_a_put_beside_a_pack_that_is_away_is_newer_than_it(sealed: bool, indexed: bool) -> None:
    disk = grown(sealed, merged=False, indexed=indexed)
    files, archive = all_away(disk, reopen(disk, sealed)), reopen(disk, sealed)
    with pytest.raises(MissingPack) as told:
        archive.get(NAME)
    assert told.value.exit_code == 7
    assert put(archive, 5) == 1 and put(reopen(disk, sealed), 6) == 2, "numbers count what is there"
    for name, data in files.items():
        disk.write_new(name, data)
    back = reopen(disk, sealed)
    assert lengths(back) == [1, 2, 3, 4, 5, 6] and back.verify(decode=True).sound


def test_a_clock_that_went_back_makes_no_version_older_than_a_hidden_one(tmp_path: Path) -> None:
    """A machine knows what it put, also where the put is hidden, and in other processes."""
    disk = SimDisk()

    def here() -> TowerArchive:
        return TowerArchive.open(DirectoryStore(disk, cache=tmp_path), [ZlibCodec()])

    first = TowerArchive.create(DirectoryStore(disk, cache=tmp_path), [ZlibCodec()])
    put(first, 1)
    path = f"packs/{first.version(NAME).location.pack.hex()}"
    data = disk.seen.files()[path]
    disk.unlink(path)
    disk.clock -= 60
    PLACES.clear()  # no process is left that put it
    put(here(), 2)
    disk.write_new(path, data)
    assert lengths(here()) == [1, 2]


def test_a_put_whose_clock_is_behind_is_newer_than_what_it_sees() -> None:
    disk = grown(False, merged=False)
    disk.clock -= 1 << 16
    fresh = reopen(disk, False)
    assert put(fresh, 5) == 5 and put(reopen(disk, False), 6) == 6
    assert lengths(reopen(disk, False)) == [1, 2, 3, 4, 5, 6]
    assert fresh.version(NAME).time == disk.clock, "its time is that of its clock"


@pytest.mark.parametrize("acknowledged", [False, True])
@pytest.mark.parametrize("indexed", [True, False])
def test_a_put_after_a_loss_is_newer_than_what_comes_back(indexed: bool, acknowledged: bool) -> None:
    disk = grown(False, merged=False, indexed=indexed)
    archive = reopen(disk, False)
    packs = {v.location.pack.hex() for v in archive.history(NAME)}
    before = {pack: disk.seen.files()[f"packs/{pack}"] for pack in packs}
    for pack in packs:
        disk.unlink(f"parity/{pack}")
        disk.overwrite(f"packs/{pack}", b"rot")
    assert not repaired(disk).whole
    archive = reopen(disk, False)
    if indexed:
        with pytest.raises(LostError):
            archive.get(NAME)
    if acknowledged:
        archive.acknowledge()
    put(archive, 6)
    assert newest(reopen(disk, False)) == 6, "it is known to be newer than the loss"
    for pack, data in before.items():
        disk.write_new(f"packs/{pack}", data)
    assert len(repaired(disk).named) == len(before)
    back = reopen(disk, False)
    assert newest(back) == 6 and len(back.history(NAME)) == 5


@BOTH
@pytest.mark.parametrize(("merged", "step"), [(True, 7), (False, 37)], ids=["run", "records"])
def test_every_flip_is_named_damage_or_the_right_answer(sealed: bool, merged: bool, step: int) -> None:
    """Nothing of a session is absent, no version is given for another, and none is put before another.

    ``step``: bytes between two flips.
    """
    whole = grown(sealed, merged=merged)
    keys = reopen(whole, sealed).keys
    names = {NAME, f"{key_of(keys.session_key(keys.domain(TENANT, 'default'), NAME)):09x}"}
    packs = [(path, data) for path, data in whole.seen.files().items() if path.startswith("packs/")]
    unread = 0
    for path, at in [(path, at) for path, data in packs for at in range(0, len(data), step)]:
        disk = SimDisk(whole.seen, seed=9)
        disk.flip(path, at, 1 << at % 8)
        archive, hidden = reopen(disk, sealed), 0
        for number in (None, 1, 2, 3, 4):
            try:
                assert len(archive.get(NAME, version=number).segments) == (number or 4), (path, at)
            except LostError:
                hidden += 1
        with pytest.raises(NotFound):
            archive.get("nobody")
        report = reopen(disk, sealed).verify()
        assert not report.sound
        named = {v.name for v in report.lost} | {p.name.rpartition(" ")[2] for p in report.problems}
        assert not hidden or names & named, report
        unread += hidden
        put(archive, 5)
        assert repaired(disk).whole
        after = reopen(disk, sealed)
        assert lengths(after) == [1, 2, 3, 4, 5]
    assert unread > 20


@BOTH
def test_without_an_index_damage_to_a_bitstring_hides_no_name(sealed: bool) -> None:
    disk = grown(sealed, merged=True, indexed=False)
    spoil_run(disk, sealed)
    archive = reopen(disk, sealed)
    for number in (None, 2):
        with pytest.raises(LostError):
            archive.get(NAME, version=number)
    with pytest.raises(NotFound):
        archive.get("nobody")
    [version] = archive.history(NAME)
    assert version.hides_older and put(archive, 5) == 2
    assert newest(reopen(disk, sealed)) == 5, "what is damaged is older"


def spoil_run(disk: SimDisk, sealed: bool) -> None:
    """Flip a bit in the bitstring of the run."""
    archive = reopen(disk, sealed)
    item = archive.catalog.lookup.at(archive.version(NAME).location)
    path = f"packs/{item.location.pack.hex()}"
    data = bytearray(disk.seen.files()[path])
    data[data.find(item.record.bitstring) + len(item.record.bitstring) // 2] ^= 1
    disk.overwrite(path, bytes(data))


@pytest.mark.parametrize("key", [True, False])
@BOTH
def test_verify_names_a_run_that_is_damaged(sealed: bool, key: bool) -> None:
    disk = grown(sealed, merged=True)
    keys = reopen(disk, sealed).keys
    session = keys.session_key(keys.domain(TENANT, "default"), NAME)
    [*_, last] = reopen(disk, sealed).history(NAME)
    spoil_run(disk, sealed)
    report = kit.reopen(disk, key=RAW if sealed and key else None).verify()
    name = NAME if key or not sealed else f"sealed {session[:8].hex()}"
    assert name in {v.name for v in report.lost}
    assert any(p.kind == "session" and name in p.name and last.id[:4].hex() in p.what for p in report.problems)


def opened(disk: SimDisk) -> Archive:
    return Archive(reopen(disk, False).parts)


def test_forget_and_history_of_a_session_with_a_hole() -> None:
    disk = grown(False, merged=True)
    spoil_run(disk, False)
    cold = opened(disk)
    for work in (cold.history, cold.forget, cold.undelete):
        with pytest.raises(LostError):
            work(NAME)
    [left] = reopen(disk, False).history(NAME)
    for version in (1, 2, left.version):
        with pytest.raises(LostError, match=left.id[:4].hex()):
            cold.forget(NAME, version=version)
    assert [v.id for v in cold.forget(NAME, version=left.id[:4], dry_run=True)] == [left.id]


@pytest.mark.parametrize("how", ["run", "gone"])
def test_retention_leaves_a_session_with_a_hole_as_it_is(how: str) -> None:
    disk = grown(False, merged=how == "run")
    for name in ("whole", "whole"):
        reopen(disk, False).put([NewSession(name, [np.arange(3 + len(disk.seen.names))])])
    if how == "run":
        spoil_run(disk, False)
        put(reopen(disk, False), 5)
    else:
        archive = reopen(disk, False)
        archive.write_index()
        disk.unlink(f"packs/{archive.version(NAME).location.pack.hex()}")
    cold = opened(disk)
    assert [(v.name, v.version) for v in cold.expire(Policy(keep_last=1), dry_run=True)] == [("whole", 1)]
    with pytest.raises(LostError):
        cold.expire(Policy(keep_last=1), [NAME])


def test_another_tenants_damage_hides_nothing() -> None:
    """A pack whose table names one tenant hides no session of others, without any index."""
    disk, archive = made(False)
    archive.put([NewSession("a", [np.arange(5)], tenant="acme")])
    location = archive.version("a", "acme").location
    path = f"packs/{location.pack.hex()}"
    disk.flip(path, location.offset + 8)
    fresh = reopen(disk, False)
    with pytest.raises(LostError):
        fresh.get("a", "acme")
    with pytest.raises(NotFound):
        fresh.get("a", "beta")
    receipts = fresh.put([NewSession("b", [np.arange(3)], tenant=tenant) for tenant in ("acme", "beta")])
    assert [receipt.version for receipt in receipts] == [1, 1]


@BOTH
def test_a_lost_version_is_the_last_one_where_all_newer_are_forgotten(sealed: bool) -> None:
    """The walks found it: the session was called forgotten, as if nothing of it were lost."""
    disk = grown(sealed, merged=False)
    for name in all_away(disk, reopen(disk, sealed)):
        disk.unlink(name.replace("packs", "parity"))
    assert not repaired(disk).whole
    disk.clock += 60
    archive = reopen(disk, sealed)
    put(archive, 5)
    archive.forget([archive.version(NAME)])
    with pytest.raises(LostError):
        archive.get(NAME)


@BOTH
@pytest.mark.parametrize("gone", [True, False])
def test_a_forgotten_version_whose_mark_is_hidden_is_not_given(sealed: bool, gone: bool) -> None:
    """Put it again, too: it is no unchanged session, since the mark comes back with its pack."""
    disk = grown(sealed, merged=False)
    archive, before = reopen(disk, sealed), disk.seen.files().keys()
    archive.forget(archive.history(NAME)[-1:])
    archive.write_index()
    [path] = {f for f in disk.seen.files() if f.startswith("packs/")} - before
    saved = disk.seen.files()[path]
    if gone:
        disk.unlink(path)
    else:
        disk.overwrite(path, bytes(len(saved)))
    archive = reopen(disk, sealed)
    with pytest.raises(MissingPack if gone else LostError):
        archive.get(NAME)
    assert put(archive, 4) == 5
    disk.unlink(path) if not gone else None
    disk.write_new(path, saved)
    assert newest(reopen(disk, sealed)) == 4


@BOTH
def test_a_version_whose_undeletion_is_hidden_is_not_called_forgotten(sealed: bool) -> None:
    disk = grown(sealed, merged=False)
    archive = reopen(disk, sealed)
    archive.forget(archive.history(NAME))
    before = disk.seen.files().keys()
    archive.undelete(archive.history(NAME)[-1:])
    archive.write_index()
    [path] = {f for f in disk.seen.files() if f.startswith("packs/")} - before
    disk.unlink(path)
    with pytest.raises(MissingPack):
        reopen(disk, sealed).get(NAME)
