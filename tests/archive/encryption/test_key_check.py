"""Key files that are gone, damaged, older or others than those of the packs: all say so, and nothing is lost."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pltz.archive.encryption.key_files import KeyFile
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.errors import ArchiveError, MissingKeys, NotFound
from pltz.archive.format.ids import BASE, TENANT
from pltz.plt_codec.errors import PltzError
from tests.archive.kit import DirectoryStore, SimDisk, TowerArchive, create, repaired
from tests.archive.sealed import RAW, chat, reopen, tokens

Files = dict[str, bytes]


def keys_of(archive: TowerArchive, disk: SimDisk, name: str = "acme", kind: int = TENANT) -> Files:
    """Return the key files of a domain."""
    begin = f"keys/{archive.keys.domain(kind, name).hex()}"
    return {path: data for path, data in disk.seen.files().items() if path.startswith(begin)}


def remove(disk: SimDisk, files: Files) -> None:
    for path in files:
        disk.unlink(path)


@pytest.fixture
def lost(sealed: TowerArchive, disk: SimDisk) -> Files:
    """Remove the key files of acme, which erased a session before; return them."""
    sealed.put([chat("a", [1]), chat("b", [2]), chat("c", [3], tenant="other")])
    sealed.erase("acme", "b")
    files = keys_of(sealed, disk)
    assert len(files) == 2 and all("-00000002-" in path for path in files)
    remove(disk, files)
    return files


@pytest.mark.usefixtures("lost")
def test_verify_repair_and_collect_see_without_the_key_that_keys_are_gone(disk: SimDisk) -> None:
    token = reopen(disk).token()
    for key in (RAW, None):
        archive = reopen(disk, key=key)
        for report in (archive.verify(), archive.verify(expect=token), archive.verify(decode=True)):
            assert not report.sound and any(p.kind == "keys" for p in report.problems)
        with pytest.raises(ArchiveError, match="collecting stops"):
            archive.collect()
    told = repaired(disk)
    assert not told.whole and len(told.keyless) == 1 and not told.finished


@pytest.mark.usefixtures("lost")
def test_a_session_whose_keys_are_gone_is_neither_absent_nor_put_anew(disk: SimDisk) -> None:
    archive, before = reopen(disk), disk.seen.files()
    for work in (
        lambda: archive.get("a", "acme"), lambda: archive.get("never put", "acme"),
        lambda: archive.put([chat("new", [9])]), lambda: archive.erase("acme", "a"),
    ):
        with pytest.raises(MissingKeys, match="missing"):
            work()
    assert disk.seen.files() == before and [(v.tenant, v.name) for v in archive.ls()] == [("other", "c")]
    for tenant in (None, "acme"):
        with pytest.raises(ArchiveError, match="sessions are missing"):
            archive.want_whole("listed", tenant)
    archive.want_whole("listed", "other")


def test_keys_that_come_back_never_cost_what_was_put_meanwhile(lost: Files, disk: SimDisk) -> None:
    """Bring keys back beside new ones: these were made while the packs were away too, so nothing could tell."""
    packs = {path: data for path, data in disk.seen.files().items() if path.startswith(("packs/", "parity/"))}
    remove(disk, packs)
    for path in [path for path in disk.seen.files() if path.startswith("index/")]:
        disk.unlink(path)
    reopen(disk).put([chat("new", [9])])
    new = keys_of(reopen(disk), disk)
    for path, data in (packs | lost).items():
        disk.write_new(path, data)
    for _ in range(2):
        archive = reopen(disk)
        assert not archive.verify().sound and not reopen(disk, key=None).verify().sound
        with pytest.raises(MissingKeys):
            archive.put([chat("more", [8])])
        with pytest.raises(PltzError):
            archive.erase("acme", "a")
        archive.erase("other", "c")
        archive.put([chat("c", [3], tenant="other")])
        assert not repaired(disk).whole
        assert (new | lost).items() <= disk.seen.files().items(), "no key that a pack needs was shredded"
    remove(disk, lost)
    assert tokens(reopen(disk), "new") == [9]


def test_older_keys_are_told_from_those_of_the_packs(sealed: TowerArchive, disk: SimDisk) -> None:
    """A backup of keys/ from before an erase: what was put since is under a root that they never had."""
    sealed.put([chat("a", [1]), chat("b", [2])])
    old = keys_of(sealed, disk)
    sealed.erase("acme", "b")
    sealed.put([chat("c", [3])])
    newest = keys_of(sealed, disk)
    remove(disk, newest)
    for path, data in old.items():
        disk.write_new(path, data)
    archive = reopen(disk)
    assert not archive.verify().sound and not reopen(disk, key=None).verify().sound and not repaired(disk).whole
    with pytest.raises(MissingKeys):
        archive.put([chat("d", [4])])
    with pytest.raises(MissingKeys):
        archive.get("never put", "acme")
    for path, data in newest.items():
        disk.write_new(path, data)
    again = repaired(disk)
    assert again.whole and set(again.finished) == set(old), "the newest follow them: an erase that goes on"
    assert tokens(reopen(disk), "c") == [3] and reopen(disk).verify(decode=True).sound


@pytest.mark.parametrize("damage", [lambda _: b"", lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:]])
def test_damaged_keys_of_one_tenant_do_not_blind_the_others(
    damage: Callable[[bytes], bytes], sealed: TowerArchive, disk: SimDisk
) -> None:
    sealed.put([chat("a", [1]), chat("c", [3], tenant="other")])
    for path, data in keys_of(sealed, disk).items():
        disk.unlink(path)
        disk.write_new(path, damage(data))
    archive = reopen(disk)
    assert [(v.tenant, v.name) for v in archive.ls()] == [("other", "c")] and tokens(archive, "c", "other") == [3]
    for decode in (False, True):
        assert not archive.verify(decode=decode).sound
    with pytest.raises(MissingKeys):
        archive.get("a", "acme")
    with pytest.raises(MissingKeys):
        archive.put([chat("b", [2])])
    with pytest.raises(ArchiveError, match="sessions are missing"):
        archive.want_whole("listed", "acme")
    archive.want_whole("listed", "other")
    archive.put([chat("d", [4], tenant="other")])
    assert not repaired(disk).whole
    for key in (RAW, None):
        with pytest.raises(ArchiveError, match="collecting stops"):
            reopen(disk, key=key).collect()
    with pytest.raises(ArchiveError, match="nothing was erased"):
        archive.erase_base("base")  # sessions of acme may stand on it


def test_a_base_whose_keys_are_gone_is_told_and_not_begun_again(sealed: TowerArchive, disk: SimDisk) -> None:
    sealed.put([chat("a", [1]), chat("c", [3], tenant="other")])
    files = keys_of(sealed, disk, "base", BASE)
    remove(disk, files)
    archive = reopen(disk)
    assert not archive.verify().sound and not reopen(disk, key=None).verify().sound and not repaired(disk).whole
    for tenant, name in (("acme", "a"), ("other", "c")):
        with pytest.raises(PltzError):
            archive.get(name, tenant)
    with pytest.raises(MissingKeys, match="base 'base'"):
        archive.put([chat("b", [2])])
    with pytest.raises(ArchiveError, match="stand on base"):
        archive.erase_base("base")


@pytest.mark.usefixtures("lost")
def test_a_tenant_whose_keys_are_lost_for_good_is_erased_and_begins_again(disk: SimDisk) -> None:
    archive, before = reopen(disk), disk.seen.files()
    assert archive.erase("acme", dry_run=True).records == 0 and disk.seen.files() == before
    assert archive.erase("acme").records >= 1
    assert archive.verify().sound and reopen(disk, key=None).verify().sound and repaired(disk).whole
    with pytest.raises(NotFound):
        archive.get("a", "acme")
    archive.put([chat("a", [5])])
    archive.collect()
    archive.collect()
    whole = reopen(disk)
    assert tokens(whole, "a") == [5] and tokens(whole, "c", "other") == [3] and whole.verify(decode=True).sound


def test_lost_keys_that_come_back_after_that_are_destroyed_again(lost: Files, disk: SimDisk) -> None:
    reopen(disk).erase("acme")
    reopen(disk).put([chat("a", [5])])
    for path, data in lost.items():
        disk.write_new(path, data)
    report = reopen(disk).verify()
    assert report.sound and len(report.unfinished) == 1 and set(repaired(disk).finished) == set(lost)
    assert tokens(reopen(disk), "a") == [5] and reopen(disk).verify(decode=True).sound


def test_first_keys_that_were_overtaken_are_never_used(
    sealed: TowerArchive, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make a tenant's first keys while another writer makes them, erases, and so frees their name again."""
    other, put = reopen(disk), DirectoryStore.put
    done: list[str] = []

    def slow(store: DirectoryStore, name: str, data: bytes) -> bool:
        if name.startswith("keys/") and not done:
            done.append(name)
            other.put([chat("a", [1]), chat("b", [2])])
            other.erase("acme", "b")
        return put(store, name, data)

    monkeypatch.setattr(DirectoryStore, "put", slow)
    sealed.put([chat("c", [3])])
    monkeypatch.undo()
    assert done
    whole = reopen(disk)
    assert tokens(whole, "a") == [1] and tokens(whole, "c") == [3] and whole.verify(decode=True).sound


def test_a_key_file_names_its_lineages_in_the_clear(sealed: TowerArchive, disk: SimDisk) -> None:
    sealed.put([chat("a", [1])])
    sealed.erase("acme")
    reopen(disk).put([chat("a", [1])])
    assert isinstance(sealed.keys, Keyring)
    roots = sealed.keys.key_check.roots[sealed.keys.domain(TENANT, "acme")]
    [data] = {data for data in keys_of(sealed, disk).values()}
    file = KeyFile.decode(data)
    assert len(file.lineages) == 1 and all(root[:4] == file.lineages[0] and file.governs(root) for root in roots)


def test_the_roots_of_many_packs_are_read_side_by_side(
    sealed: TowerArchive, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        sealed.put([chat("a", [number]), chat("b", [number], tenant=f"t{number}")])
    one = reopen(disk, key=None).catalog.key_check
    monkeypatch.setattr("pltz.archive.encryption.key_check.FEW", 2)
    many = reopen(disk, key=None).catalog.key_check
    assert one and many and one.roots == many.roots and len(many.roots) == 14


@pytest.mark.parametrize("named", [False, True])
def test_the_key_file_of_another_archive_takes_nothing(named: bool, sealed: TowerArchive, disk: SimDisk) -> None:
    """It is copied beside the archive's own, or over one copy of it. Repair has no key, and goes by names."""
    sealed.put([chat("a", [1])])
    other = SimDisk(seed=9)
    create(other, key=RAW)
    for path, data in [*other.seen.files().items()]:
        if path.startswith("keys/"):
            if not named:
                path = f"keys/{sealed.catalog.listing.archive.hex()}-00000000-0"
                disk.unlink(path)
            disk.write_new(path, data)
            if not named:
                break
    assert tokens(reopen(disk), "a") == [1] and repaired(disk).whole
    assert tokens(reopen(disk), "a") == [1] and reopen(disk).verify(decode=True).sound


def test_two_sound_copies_that_differ_stay(sealed: TowerArchive, disk: SimDisk) -> None:
    sealed.put([chat("a", [1])])
    second = max(keys_of(sealed, disk))
    there = KeyFile.decode(disk.seen.files()[second])
    disk.unlink(second)
    disk.write_new(second, replace(there, lineages=(b"else",)).encode())
    before = disk.seen.files()
    assert repaired(disk).broken == [second] and before.items() <= disk.seen.files().items()
    assert tokens(reopen(disk), "a") == [1]
