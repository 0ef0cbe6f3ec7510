"""Rekey: the old key opens all or the new one does, whatever a crash leaves, and nothing is coded again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

import pltz
from pltz.archive.encryption.key_files import KeyFile, KeyFolder
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.encryption.keys import RAW as NO_KDF, KeySource
from pltz.archive.encryption.rekey import Rekeyed, rekey
from pltz.archive.encryption.root_keys import MOST_WRAPS, SealedSecret
from pltz.archive.errors import ArchiveError, Fenced, KeyMismatch, MissingKeys, NotFound
from pltz.archive.format.ids import TENANT
from pltz.archive.format.pack import Damage, Pack
from pltz.archive.format.record import Record
from pltz.archive.maintenance.erase import Eraser
from pltz.plt_codec.errors import CorruptError, UsageError
from tests.archive.kit import DirectoryStore, Secret, SimDisk, TowerArchive, create
from tests.archive.sealed import RAW, chat, reopen, tokens

NEW, NEXT = Secret(b"the new key of 16 bytes", 0), Secret(b"the one after the new key", 0)
ESCROW = Secret(b"a passphrase in a safe", 1)


@pytest.fixture
def kept(sealed: TowerArchive) -> TowerArchive:
    """Put sessions of two tenants, one of them erased, in two packs, with versions and a forgotten one."""
    sealed.put([chat("a", [1, 2]), chat("b", [3]), chat("a", [9], tenant="blue")])
    sealed.put([chat("a", [1, 2], [4]), chat("gone", [5]), chat("c", [6])])
    sealed.erase("acme", "gone")
    sealed.forget([sealed.version("c", "acme")])
    return sealed


def whole(archive: TowerArchive) -> None:
    """Check all that was kept."""
    assert [v.name for v in archive.ls("acme")] == ["a", "b"]
    assert tokens(archive, "a") == [1, 2, 4] and tokens(archive, "b") == [3] and tokens(archive, "a", "blue") == [9]
    assert len(archive.history("a", "acme")) == 2 and archive.verify(decode=True).sound
    with pytest.raises(NotFound):
        archive.get("gone", "acme")


def changed(archive: TowerArchive, secret: KeySource, **how: bool) -> Rekeyed:
    assert isinstance(archive.keys, Keyring)
    return rekey(archive.keys, secret, **how)


def opens(disk: SimDisk, secret: Any) -> TowerArchive | None:
    try:
        return reopen(disk, key=secret)
    except KeyMismatch:
        return None


@pytest.mark.parametrize("add", [False, True])
def test_after_each_crash_old_key_opens_all_or_the_new_one_does(kept: TowerArchive, disk: SimDisk, add: bool) -> None:
    before = {path: data for path, data in disk.seen.files().items() if path.startswith("packs/")}
    states, seen = disk.left_by(lambda: changed(kept, NEW, add=add)), set[tuple[bool, bool]]()
    for state in states[:: max(1, len(states) // 16)] + states[-1:]:
        left = SimDisk(state)
        found = [opens(left, secret) for secret in (RAW, NEW)]
        seen.add((found[0] is not None, found[1] is not None))
        archive = next(filter(None, found))
        whole(archive)
        assert changed(archive, NEXT, drop=True).secrets == 1  # whatever it was that was cut off
        assert opens(left, RAW) is opens(left, NEW) is None
        last = reopen(left, key=NEXT)
        whole(last)
        assert not KeyFolder(last.store).leftovers()
    assert seen == {(True, False), (True, True) if add else (False, True)}
    after = disk.seen.files()
    assert before.items() <= after.items()  # nothing was coded again


def test_the_old_archive_key_opens_no_key_file_that_is_left(kept: TowerArchive, disk: SimDisk) -> None:
    assert isinstance(kept.keys, Keyring)
    older = kept.keys.root
    assert changed(kept, NEW).files == 3  # two tenants and a base
    files = [KeyFile.decode(data) for path, data in disk.seen.files().items() if path.startswith("keys/")]
    keys = reopen(disk, key=NEW).keys
    assert isinstance(keys, Keyring)
    assert {file.wrap for file in files if file.domain != keys.archive} == {next(iter(keys._wraps))}
    assert keys.root.wraps[0] not in older.wraps and keys.root.key != older.key and keys.root.names == older.names


def test_several_keys_open_it_until_they_are_dropped(kept: TowerArchive, disk: SimDisk) -> None:
    assert changed(kept, ESCROW, add=True).secrets == 2
    for secret in (RAW, ESCROW):
        whole(reopen(disk, key=secret))
    with pytest.raises(UsageError, match=r"2 keys open this archive.*--drop"):
        changed(reopen(disk), NEW)
    with pytest.raises(UsageError, match="both"):
        changed(reopen(disk), NEW, add=True, drop=True)
    assert changed(reopen(disk, key=ESCROW), ESCROW, drop=True).secrets == 1
    whole(reopen(disk, key=ESCROW))
    with pytest.raises(KeyMismatch, match="opens with a passphrase"):
        reopen(disk)
    with pytest.raises(KeyMismatch, match=r"which was changed .key file of generation 2"):
        reopen(disk, key=Secret(b"another", 1))
    archive = reopen(disk, key=ESCROW)
    for number in range(15):
        changed(archive, Secret(b"%016d" % number, 0), add=True)
    with pytest.raises(UsageError, match="16 keys"):
        changed(archive, NEW, add=True)


def test_who_goes_on_by_the_old_key_is_told_and_makes_no_keys(kept: TowerArchive, disk: SimDisk) -> None:
    other = reopen(disk)
    changed(kept, NEW)
    told = "key of the archive was changed since it was opened"
    with pytest.raises(KeyMismatch, match=told):
        other.put([chat("first", [1], tenant="late")])
    for work in (lambda: [*other.ls()], lambda: other.get("a", "acme"), lambda: other.put([chat("d", [1])])):
        with pytest.raises(KeyMismatch, match=told):
            work()
    with pytest.raises(Fenced, match="somebody else changed the key"):
        changed(other, ESCROW)
    reopen(disk, key=NEW).put([chat("first", [1], tenant="late")])
    assert tokens(reopen(disk, key=NEW), "first", "late") == [1]


def test_who_missed_two_changes_makes_no_keys_and_changes_none(kept: TowerArchive, disk: SimDisk) -> None:
    other, escrow = reopen(disk), reopen(disk)
    for secret in NEW, NEXT:  # nothing is left of what came between
        changed(kept, secret)
    before = disk.seen.files()
    with pytest.raises(KeyMismatch, match="key of the archive was changed since it was opened"):
        other.put([chat("first", [1], tenant="late")])
    with pytest.raises(Fenced, match="somebody else changed the key"):
        changed(escrow, ESCROW, add=True)
    assert disk.seen.files() == before and opens(disk, ESCROW) is None
    whole(reopen(disk, key=NEXT))


def test_a_key_that_keys_of_a_tenant_may_need_is_not_dropped(kept: TowerArchive, disk: SimDisk) -> None:
    assert isinstance(kept.keys, Keyring)
    domain = kept.keys.domain(TENANT, "blue").hex()
    away = {path: data for path, data in disk.seen.files().items() if path.startswith(f"keys/{domain}")}
    for path in away:
        disk.unlink(path)
    for number in range(MOST_WRAPS - 1):
        changed(kept, secret := Secret(b"%016d" % number, 0))
    with pytest.raises(ArchiveError, match=f"{domain}.*would drop the key"):
        changed(reopen(disk, key=secret), NEW)
    for path, data in away.items():
        disk.write_new(path, data)
    archive = reopen(disk, key=secret)
    whole(archive)
    changed(archive, NEW)
    whole(reopen(disk, key=NEW))


def test_an_older_or_a_swapped_key_file_is_told_by_name(kept: TowerArchive, disk: SimDisk) -> None:
    before = {path: data for path, data in disk.seen.files().items() if path.startswith("keys/")}
    changed(kept, NEW)
    own = kept.catalog.listing.archive.hex()
    back = SimDisk(disk.seen)
    for path in [path for path in disk.seen.files() if path.startswith(f"keys/{own}")]:
        back.unlink(path)
    for path, data in before.items():
        if path.startswith(f"keys/{own}"):
            back.write_new(path, data)
    with pytest.raises(MissingKeys, match=f"sealed by another key than .* .keys/{own}-.*, generation 0.: an older one"):
        tokens(reopen(back), "a")
    domains = sorted({path[:-2] for path in disk.seen.files() if path.startswith("keys/") and own not in path})
    swapped = SimDisk(disk.seen)
    for copy in "01":
        swapped.unlink(f"{domains[0]}-{copy}")
        swapped.write_new(f"{domains[0]}-{copy}", disk.seen.files()[f"{domains[1]}-{copy}"])
    with pytest.raises(CorruptError, match=f"{domains[0]}-[01] says that it is {domains[1]}"):
        KeyFolder(DirectoryStore(swapped)).newest(bytes.fromhex(domains[0][5:37]))


def test_a_key_that_does_not_come_back_is_not_taken(kept: TowerArchive, disk: SimDisk) -> None:
    class Odd(Secret):
        def key(self, cost: tuple[int, int, int], salt: bytes) -> bytes:
            return disk.random(32)

    with pytest.raises(KeyMismatch):
        changed(kept, Odd(b"another every time", 0))
    whole(reopen(disk))


def test_a_key_service_is_plugged_in(disk: SimDisk) -> None:
    class Service:
        kdf = NO_KDF

        def key(self, cost: tuple[int, int, int], salt: bytes) -> bytes:
            return HKDF(SHA256(), 32, salt, b"pltz").derive(b"what a service never gives away")

    create(disk, key=Service()).put([chat("a", [1])])
    assert tokens(reopen(disk, key=Service()), "a") == [1]
    changed(reopen(disk, key=Service()), NEW)
    assert tokens(reopen(disk, key=NEW), "a") == [1]


def renew(archive: TowerArchive) -> Callable[[], object]:
    return lambda: Eraser(archive.catalog, archive.parts.writer).renew("acme")


def test_the_keys_of_a_tenant_change_and_its_records_open_by_no_older_one(kept: TowerArchive, disk: SimDisk) -> None:
    assert isinstance(kept.keys, Keyring)
    domain = kept.keys.domain(TENANT, "acme")
    older = kept.keys.of(domain)
    assert older
    states = disk.left_by(renew(kept))
    for state in states[:: max(1, len(states) // 12)]:
        left = SimDisk(state)
        whole(reopen(left))
        renew(reopen(left))()
        whole(reopen(left))
    archive = reopen(disk)
    assert isinstance(archive.keys, Keyring)
    newest = archive.keys.of(domain)
    assert newest and newest.rows == 1 and newest.buried == older.buried and newest.id_key == older.id_key
    whole(archive)
    for _ in range(2):
        archive.collect(dead_share=0.01)
    whole(reopen(disk))
    contexts = [pack.head.contexts[record.context] for pack, record in sealed_records(disk)]
    roots = {context.root for context in contexts if context.domain == domain}
    assert roots == {newest.newest} and not any(older.governs(root) for root in roots)


@pytest.mark.parametrize("seed", range(6))
def test_collectors_before_older_keys_go_keep_what_was_put_under_newer(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They merge packs with both, and would keep the record that comes first, whose keys are destroyed next."""
    disk, destroy = SimDisk(seed=seed), Eraser._destroy
    archive = create(disk, key=RAW)
    archive.put([chat("a", [seed])])

    def late(eraser: Eraser, *args: Any) -> Any:
        for _ in range(3):
            reopen(disk).collect(dead_share=0.01)
        return destroy(eraser, *args)

    monkeypatch.setattr(Eraser, "_destroy", late)
    renew(archive)()
    assert tokens(reopen(disk), "a") == [seed] and reopen(disk).verify(decode=True).sound


def sealed_records(disk: SimDisk) -> list[tuple[Pack, Record]]:
    """Return the records that have a box, with their packs."""
    found = list[tuple[Pack, Record]]()
    for path, data in disk.seen.files().items():
        if path.startswith("packs/"):
            pack = Pack.of(data)
            found += [(pack, item[1]) for item in pack.scan() if not isinstance(item, Damage)]
    return [(pack, record) for pack, record in found if record.id is not None or record.veil]


def test_a_secret_that_asks_for_a_hostile_scrypt_is_refused() -> None:
    with pytest.raises(CorruptError, match="refused"):
        SealedSecret.decode(SealedSecret(1, (30, 32, 16), bytes(16)).place + bytes(48))


def test_a_change_is_asked_of_a_sealed_archive_and_recorded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not sealed"):
        pltz.Archive.open(tmp_path / "open", create=True).rekey(passphrase="battery staple")
    cold = pltz.Archive.open(tmp_path / "cold", create=True, passphrase="correct horse", actor="ann")
    cold.put("greeting", "hello")
    for wrong in ({}, {"passphrase": "battery staple", "tenant": "default"}, {"tenant": "default", "add": True}):
        with pytest.raises(UsageError, match="expected a new key"):
            cold.rekey(**wrong)
    cold.put("greeting", "hello", tenant="under", salt="pepper")
    cold.put("greeting", "hello", salt="pepper")
    assert cold.rekey(tenant="default").moved == 2 and cold.rekey(tenant="under").moved == 1
    with pytest.raises(NotFound):
        cold.rekey(tenant="pepper")
    assert cold.rekey(passphrase="battery staple") == Rekeyed(1, 3)
    again = pltz.Archive.open(tmp_path / "cold", passphrase="battery staple")
    assert again.get("greeting").value == again.get("greeting", salt="pepper").value == b"hello"
    assert [entry.actor for entry in again.audit() if entry.verb == "key"] == ["ann"] * 4
