"""Erases that put records of other sessions again under newer keys: these stay whole, and what is erased is gone."""

import pytest

from pltz.archive.encryption import box
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.format.ids import TENANT
from tests.archive.kit import SimDisk, TowerArchive, create, repaired
from tests.archive.maintenance.test_erase import raw_records_open
from tests.archive.sealed import chat, reopen, tokens
from tests.archive.towers import copy


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move all live records: they have one slot."""
    monkeypatch.setattr(box, "SLOT_BITS", 0)


def key_file(archive: TowerArchive, disk: SimDisk) -> int:
    """Return the bytes of the tenant's key file."""
    begin = f"keys/{archive.keys.domain(TENANT, 'acme').hex()}"
    return max(len(data) for path, data in disk.seen.files().items() if path.startswith(begin))


def test_many_erases_leave_a_small_key_file(sealed: TowerArchive, disk: SimDisk) -> None:
    """Each erase added a root and a hole of its own in all older ones: a file of 2.3 MiB after 15 erases."""
    sealed.put([chat(f"s{n}", [n]) for n in range(40)])
    sizes = []
    for number in range(40):
        sealed.erase("acme", f"s{number}")
        sizes.append(key_file(sealed, disk))
        if number % 10 == 0:
            sealed.put([chat(f"kept {number}", [number, number])])
    assert max(sizes) < 32_000
    whole = reopen(disk)
    assert [v.name for v in whole.ls()] == sorted(f"kept {n}" for n in range(0, 40, 10))
    assert all(tokens(whole, f"kept {n}") == [n, n] for n in range(0, 40, 10)) and whole.verify(decode=True).sound


@pytest.mark.usefixtures("moving")
def test_records_of_a_slot_move_with_each_erase(sealed: TowerArchive, disk: SimDisk) -> None:
    moved = 0
    for number in range(12):
        sealed.put([chat(f"a{number}", [number]), chat(f"b{number}", [number, 1])])
        moved += sealed.erase("acme", f"b{number}").moved
    assert isinstance(sealed.keys, Keyring)
    keys = sealed.keys.of(sealed.keys.domain(TENANT, "acme"))
    assert keys and keys.rows == 2 and moved >= sum(range(1, 13))
    for _ in range(2):
        whole = reopen(disk)
        assert all(tokens(whole, f"a{n}") == [n] for n in range(12)) and whole.verify(decode=True).sound
        whole.collect(dead_share=0)
        whole.collect(dead_share=0)


@pytest.mark.usefixtures("moving")
def test_runs_marks_and_versions_move_whole(sealed: TowerArchive, disk: SimDisk) -> None:
    """Move a joined session, one that grew out of it, forgotten versions and a session that shares its turns."""
    for end in range(1, 5):
        sealed.put([chat("grown", *([n] for n in range(end)))])
    sealed.put([chat("plain", [9], [8]), chat("gone", [9], [7])])
    assert sealed.join()
    sealed.put([chat("fork", [0], [1], [5])])
    sealed.forget([sealed.version("grown", "acme", version=2)])
    history = [(v.version, v.time, v.forgotten) for v in sealed.history("grown", "acme")]
    domain = sealed.keys.domain(TENANT, "acme")
    done = sealed.erase("acme", "gone")
    assert done.moved >= 3 and done.shared >= 1
    for _ in range(2):
        whole = reopen(disk)
        assert [(v.version, v.time, v.forgotten) for v in whole.history("grown", "acme")] == history
        for end in range(1, 5):
            assert whole.get("grown", "acme", end).tokens[30:].tolist() == list(range(end))
        assert tokens(whole, "plain") == [9, 8] and tokens(whole, "fork") == [0, 1, 5]
        assert whole.verify(decode=True).sound and repaired(disk).whole
        whole.collect(dead_share=0, grace=100)
        whole.collect(dead_share=0, grace=100)
    before = raw_records_open(disk, domain)
    reopen(disk).erase("acme", "grown")
    after, whole = raw_records_open(disk, domain), reopen(disk)
    assert tokens(whole, "fork") == [0, 1, 5] and tokens(whole, "plain") == [9, 8] and len(after) < len(before)
    reopen(disk).erase("acme", "plain")  # the run moves once more, without the session that is gone
    whole = reopen(disk)
    assert tokens(whole, "fork") == [0, 1, 5] and whole.verify(decode=True).sound
    assert [v.name for v in whole.ls(history=True, forgotten=True)] == ["fork"]


@pytest.mark.usefixtures("moving")
def test_a_copy_finds_versions_that_were_moved_since_they_were_listed(sealed: TowerArchive, disk: SimDisk) -> None:
    sealed.put([chat("a", [1]), chat("b", [2])])
    listed = list(sealed.ls())
    assert reopen(disk).erase("acme", "b").moved
    to = create(SimDisk())
    found = {done.version.name: done.erased for done in copy(sealed, listed, to)}
    assert found == {"a": False, "b": True} and tokens(to, "a") == [1]


@pytest.mark.usefixtures("moving")
def test_a_writer_that_relied_on_moved_records_puts_them_again(sealed: TowerArchive, disk: SimDisk) -> None:
    sealed.put([chat("a", [1]), chat("b", [2])])
    writer = reopen(disk)
    writer.before(writer.version("a", "acme"))  # remembered, and proved to decode
    assert sealed.erase("acme", "b").moved
    writer.put([chat("a", [1], [3])])
    whole = reopen(disk)
    assert tokens(whole, "a") == [1, 3] and whole.verify(decode=True).sound


def test_a_lost_pack_that_comes_back_still_opens(sealed: TowerArchive, disk: SimDisk) -> None:
    for name in ("a", "b", "c"):
        sealed.put([chat(name, [ord(name)])])
    pack = sealed.version("c", "acme").location.pack.hex()
    lost = {path: disk.seen.files()[path] for path in (f"packs/{pack}", f"parity/{pack}")}
    for path in lost:
        disk.unlink(path)
    sealed.write_index()
    repaired(disk)
    archive = reopen(disk)
    archive.acknowledge()
    archive.erase("acme", "a")
    for path, data in lost.items():
        disk.write_new(path, data)
    assert repaired(disk).named == [pack]
    whole = reopen(disk)
    assert tokens(whole, "b") == [ord("b")] and tokens(whole, "c") == [ord("c")]
