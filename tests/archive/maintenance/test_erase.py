"""Erasure: erased data stays erased with concurrent work and at any crash, and the rest stays whole."""

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from pltz.archive.encryption.box import KEY, unit_of, unseal
from pltz.archive.encryption.domain_keys import MAX_ROWS, DomainKeys
from pltz.archive.encryption.key_files import KeyFile, KeyFolder
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.errors import ArchiveError, NotFound, StaysErased, WriterFailed
from pltz.archive.format.ids import BASE, TENANT
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.pack import Damage, Pack
from pltz.archive.maintenance.collect import Collector
from pltz.archive.maintenance.domain_records import DomainRecords
from pltz.archive.maintenance.erase import BaseUse, Eraser
from pltz.plt_codec.errors import PltzError, UsageError
from tests.archive.kit import DirectoryStore, DiskState, NewSession, Repairer, SimDisk, TowerArchive, create
from tests.archive.sealed import PROMPT, RAW, chat, records_of, reopen, tokens
from tests.archive.towers import copy


def raw_records_open(disk: SimDisk, domain: bytes) -> list[bytes]:
    """What a thief with the archive key and every file opens of a domain: bitstrings and names."""
    store, archive = DirectoryStore(disk), reopen(disk)
    every = []
    for path, data in disk.seen.files().items():
        if path.startswith(("keys/", "tmp/")) and data[:4] == b"PLTk":
            every.append(KeyFile.decode(data))
    keys = archive.keys
    assert isinstance(keys, Keyring)
    known = []
    for file in every:
        if file.domain == domain:
            plain = dataclasses.replace(file, box=b"").head
            body = unseal(keys._wraps[file.wrap], file.box, [keys.archive, plain], "")
            known.append(DomainKeys.decode(domain, file.generation, body, file.lineages))
    out = []
    for path in store.list("packs"):
        pack = Pack.of(disk.seen.files()[f"packs/{path}"])
        for item in pack.scan():
            assert not isinstance(item, Damage)
            record, context = item[1], pack.head.contexts[item[1].context]
            if context.domain == domain and not record.mark:
                for identity in (record.id, record.veil[:8] or None):
                    if identity and any(k.key(context.root, unit_of(identity)) for k in known):
                        out.append(identity)
    return out


def test_an_erased_session_does_not_open_and_the_others_do(sealed: TowerArchive, disk: SimDisk) -> None:
    sealed.put([chat("a", [1, 2], [3]), chat("b", [1, 2], [4]), chat("a", [5], tenant="other")])
    sealed.put([chat("a", [1, 2], [3], [6])])
    sealed.forget([sealed.version("a", "acme", version=1)])
    domain = sealed.keys.domain(TENANT, "acme")
    before = raw_records_open(disk, domain)
    assert sealed.erase("acme", "a", dry_run=True).segments == 2 and raw_records_open(disk, domain) == before
    done = sealed.erase("acme", "a")
    assert (done.versions, done.segments, done.shared, done.unread) == (2, 2, 1, 0) and done.records >= 2
    for archive in (sealed, reopen(disk)):
        with pytest.raises(NotFound):
            archive.get("a", "acme")
        assert tokens(archive, "b") == [1, 2, 4] and tokens(archive, "a", "other") == [5]
        assert [(v.tenant, v.name) for v in archive.ls(history=True, forgotten=True)] == [("acme", "b"), ("other", "a")]
    after = raw_records_open(disk, domain)
    assert len(before) - len(after) == 4 and set(after) < set(before)  # two leaves, two names
    assert not [p for p in disk.seen.files() if p.startswith("tmp/")] and reopen(disk).verify(decode=True).sound
    with pytest.raises(NotFound):
        sealed.erase("acme", "a")


def test_an_erase_that_left_a_key_says_so(sealed: TowerArchive, disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof asks the keys for each record: it finds what a faulty erase left."""
    sealed.put([chat("a", [1], [2]), chat("b", [3])])
    with monkeypatch.context() as patch:
        patch.setattr(Eraser, "_without", lambda self, begun, *_: (begun.following(), 0))
        with pytest.raises(ArchiveError, match="still opens: erase again"):
            sealed.erase("acme", "a")
    assert tokens(reopen(disk), "a") == [1, 2]
    assert reopen(disk).erase("acme", "a").records and tokens(reopen(disk), "b") == [3]


def test_an_erase_that_left_older_keys_says_so(sealed: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed.put([chat("a", [1], [2])])
    with monkeypatch.context() as patch:
        patch.setattr(Keyring, "shred", lambda self, keys: 0)
        with pytest.raises(ArchiveError, match="older keys are still there: erase again"):
            sealed.erase("acme", "a")


def test_an_erase_beside_another_of_its_tenant_is_done(
    sealed: TowerArchive, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys that the other one put are newer: none of them opens what is erased."""
    sealed.put([chat("a", [1]), chat("b", [2]), chat("c", [3])])
    shred, calls = Keyring.shred, list[int]()

    def beside(self: Keyring, keys: DomainKeys) -> int:
        calls.append(keys.generation)
        if len(calls) > 1:  # the other one is killed here
            raise KeyboardInterrupt
        found = shred(self, keys)
        with pytest.raises(KeyboardInterrupt):
            reopen(disk).erase("acme", "b")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Keyring, "shred", beside)
        assert sealed.erase("acme", "a").versions == 1
    assert len(calls) == 2 and calls[1] > calls[0]
    after = reopen(disk)
    after.erase("acme", "b")
    assert tokens(after, "c") == [3] and after.verify(decode=True).sound
    assert [v.name for v in reopen(disk).ls()] == ["c"]


def test_an_erased_session_is_put_again_only_where_the_user_says_so(sealed: TowerArchive, disk: SimDisk) -> None:
    sealed.put([chat("a", [1, 2]), chat("b", [1]), chat("c", [1])])
    sealed.erase("acme", "a")
    sealed.erase("acme", "b")
    before, other = disk.seen.files(), reopen(disk)
    for archive in (sealed, other):
        with pytest.raises(StaysErased, match="'a' of tenant 'acme' was erased"):
            archive.parts.writer.put([chat("c", [1, 2]), chat("a", [1, 2], [3])])
    assert disk.seen.files() == before, "nothing is written"
    domain = other.keys.domain(TENANT, "acme")
    other.keys.unbury(domain, "a")
    receipt = other.parts.writer.put([chat("a", [1, 2])])[0]
    assert (receipt.new, receipt.version) == (1, 1) and tokens(reopen(disk), "a") == [1, 2]
    assert sealed.parts.writer.put([chat("a", [1, 2], [3])])[0].version == 2, "its later states are put, too"
    with pytest.raises(StaysErased):
        sealed.parts.writer.put([chat("b", [1])])
    assert reopen(disk).verify().sound
    plain = create(SimDisk())
    plain.put([chat("b", [1]), chat("d", [1])])
    copied = {done.version.name: done.erased for done in copy(plain, plain.ls(), reopen(disk))}
    assert copied == {"b": True, "d": False}, "nor by a copy"
    sealed.erase("acme", "a")
    sealed.erase("acme", "d")
    assert [v.name for v in reopen(disk).ls()] == ["c"]
    sealed.erase("acme")
    assert not reopen(disk).keys.buried(domain, "b"), "nothing is left of an erased tenant"


def test_an_erased_tenant_leaves_nothing_that_opens(sealed: TowerArchive, disk: SimDisk) -> None:
    sealed.put([chat("a", [1, 2], [3]), chat("b", [4]), chat("c", [4], tenant="other")])
    domain = sealed.keys.domain(TENANT, "acme")
    assert len(raw_records_open(disk, domain)) == 5 and sealed.erase("acme").records == 3
    assert raw_records_open(disk, domain) == []
    archive = reopen(disk)
    assert [(v.tenant, v.name) for v in archive.ls()] == [("other", "c")] and tokens(archive, "c", "other") == [4]
    assert archive.verify(decode=True).sound
    for tenant, name in (("acme", None), ("acme", "a"), ("nobody", None)):
        with pytest.raises(NotFound):
            archive.erase(tenant, name)
    archive.put([chat("a", [1, 2])])
    assert tokens(reopen(disk), "a") == [1, 2] and len(raw_records_open(disk, domain)) == 2


def test_a_collector_sees_a_later_erase(sealed: TowerArchive, disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys were older than its list of key files, so erased records counted as live, and it could not delete."""
    sealed.put([chat("a", [1, 2])])
    sealed.put([chat("b", [4])])
    assert sealed.collect().condemned == 2
    collector, other, want = reopen(disk), reopen(disk), Collector._want_evidence
    leaf, calls = sealed.version("a", "acme").leaf, list[None]()

    def erased(self: Collector) -> None:
        want(self)
        calls.append(None)
        if len(calls) == 2:  # in its first census, where it may have read the keys before
            assert self.catalog.lookup.find(SEGMENTS, leaf)
            other.erase("acme", "a")

    monkeypatch.setattr(Collector, "_want_evidence", erased)
    done = collector.collect()
    assert (done.live_versions, done.deleted) == (1, 2)
    assert tokens(reopen(disk), "b") == [4] and reopen(disk).verify(decode=True).sound


def test_an_archive_without_encryption_says_that_it_cannot_erase(archive: TowerArchive) -> None:
    archive.put([chat("a", [1])])
    with pytest.raises(UsageError, match="forget"):
        archive.erase("acme", "a")


def test_a_put_beside_the_erase_of_its_tenant_is_there_afterwards(
    sealed: TowerArchive, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenant goes between the writer's look at its keys and the swap of the manifest."""
    sealed.put([chat("a", [1, 2])])
    writer, check, done = reopen(disk), Keyring.check, list[bool]()

    def late(self: Keyring, domains: Iterable[bytes]) -> None:
        check(self, domains)
        if self is writer.keys and not done:
            done.append(True)
            reopen(disk).erase("acme")

    monkeypatch.setattr(Keyring, "check", late)
    writer.put([chat("x", [1, 2], [3])])
    archive = reopen(disk)
    assert done and catalogue(archive) == {("acme", "x"): [1, 2, 3]} and archive.verify(decode=True).sound


def test_a_put_that_looked_behind_the_last_word_of_an_erase_is_there_afterwards(
    sealed: TowerArchive, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys go between the writer's look at them and its swap, which the swap of the last word does not stop."""
    sealed.put([chat("a", [1, 2])])
    writer, check, publish, done = reopen(disk), Keyring.check, Eraser._publish, list[bool]()

    def beside(self: Eraser, *of: Any) -> None:
        if done:
            return publish(self, *of)

        def late(keys: Keyring, domains: Iterable[bytes]) -> None:
            check(keys, domains)
            if keys is writer.keys and not done:
                done.append(True)
                publish(self, *of)

        monkeypatch.setattr(Keyring, "check", late)
        writer.put([chat("x", [1, 2], [3])])

    monkeypatch.setattr(Eraser, "_publish", beside)
    with suppress(ArchiveError):  # the proof may find the new session
        reopen(disk).erase("acme")
    archive = reopen(disk)
    assert done and catalogue(archive) == {("acme", "x"): [1, 2, 3]} and archive.verify(decode=True).sound


def test_what_is_doomed_is_not_relied_on(sealed: TowerArchive, disk: SimDisk) -> None:
    sealed.put([chat("a", [1, 2])])
    keys = sealed.keys
    assert isinstance(keys, Keyring)
    known = keys.of(keys.domain(TENANT, "acme"))
    assert known
    leaf = sealed.version("a", "acme").leaf
    assert keys.publish(known.begin(lambda size: b"n" * size, [unit_of(leaf)]))
    assert reopen(disk).put([chat("b", [1, 2])])[0].new == 1
    sealed.erase("acme", "a")
    assert tokens(reopen(disk), "b") == [1, 2]


def test_an_eraser_that_stood_still_brings_nothing_back(
    sealed: TowerArchive, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let another erasure come and go after the keys were read: the next number is free again, but long over."""
    sealed.put([chat("a", [1]), chat("b", [2])])
    domain = sealed.keys.domain(TENANT, "acme")
    gone = sealed.version("b", "acme").leaf
    put, looked = KeyFolder.put, Eraser._towers
    for late in (False, True):  # before its keys are written, and just then
        copy = disk.clone()
        stalled, other = reopen(copy), reopen(copy)
        assert isinstance(stalled.keys, Keyring)

        def erase_b(other: TowerArchive = other) -> None:
            monkeypatch.setattr(KeyFolder, "put", put)
            monkeypatch.setattr(Eraser, "_towers", looked)
            other.erase("acme", "b")

        def towers(
            self: Eraser, records: DomainRecords, name: str, run: Callable[[], None] = erase_b
        ) -> list[set[bytes]]:
            found = looked(self, records, name)
            run()
            return found

        def slow_put(self: KeyFolder, file: KeyFile, run: Callable[[], None] = erase_b) -> bool:
            run()
            return put(self, file)

        if late:
            monkeypatch.setattr(KeyFolder, "put", slow_put)
        else:
            monkeypatch.setattr(Eraser, "_towers", towers)
        assert stalled.erase("acme", "a").versions == 1  # begun again
        assert gone not in raw_records_open(copy, domain)
        assert not list(reopen(copy).ls("acme"))


def test_keys_that_a_writer_is_just_putting_are_not_overwritten(sealed: TowerArchive, disk: SimDisk) -> None:
    sealed.put([chat("a", [1])])
    keys, store = sealed.keys, DirectoryStore(disk)
    assert isinstance(keys, Keyring)
    domain = keys.domain(TENANT, "acme")
    known = keys.of(domain)
    assert known
    newer, older, lost, cut = (f"tmp/{n}" for n in "abcd")
    assert keys.publish(known.following()) and keys.publish(known.following().following())
    folder = KeyFolder(store)
    last = folder.read(domain, 2)
    assert last
    data = last.encode()
    for path, generation in ((newer, 3), (older, 1), (lost, 2)):
        disk.write_new(path, dataclasses.replace(last, generation=generation, box=b"x" * 40).encode())
    disk.write_new("tmp/same", data)
    disk.write_new(cut, data[:20])
    folder.shred(last)
    assert {p for p in disk.seen.names if p.startswith("tmp/")} == {newer, "tmp/same", cut}
    assert disk.read("tmp/same", 0, 1 << 20) == data and disk.read(newer, 0, 4) == b"PLTk"


# Crashes


def catalogue(archive: TowerArchive) -> dict[tuple[str, str], list[int]]:
    return {(v.tenant, v.name): archive.tower(v).tokens.tolist()[30:] for v in archive.ls()}


def on_base(name: str, base: str, *turns: list[int], tenant: str = "acme") -> NewSession:
    """A session below the prompt in a base domain of that name."""
    return NewSession(name, [PROMPT, *map(np.array, turns)], tenant, shared=1, base=base)


ERASES: dict[str, tuple[Callable[[TowerArchive], object], list[tuple[int, str]]]] = {  # what is erased; its domains
    "session": (lambda a: a.erase("acme", "b"), []),
    "tenant": (lambda a: a.erase("acme"), [(TENANT, "acme")]),
    "base": (lambda a: a.erase_base("spare"), [(BASE, "spare")]),
}


def before_an_erase() -> SimDisk:
    disk = SimDisk()
    archive = create(disk, key=RAW)
    archive.put([chat("a", [1, 2]), chat("b", [1, 2], [3]), on_base("o", "own", [4])])
    archive.put([chat("c", [7], tenant="other"), on_base("s", "spare", [5], tenant="brief")])
    archive.put([chat("d", [8], tenant="third")])
    archive.erase("brief")
    return disk


def began_alone(archive: TowerArchive, domain: bytes, *, free: bool) -> bool:
    """Return whether an erase began in a domain and left its mark in the keys.

    ``free``: no session uses the bases that are erased.
    """
    keys = archive.keys
    assert isinstance(keys, Keyring)
    known = keys.of(domain)
    return known is not None and bool(known.doomed or (known.kind == BASE and len(known.roots) > 1 and free))


@pytest.mark.parametrize("what", ["session", "tenant", pytest.param("base", marks=pytest.mark.slow)])
def test_every_crash_of_an_erase_is_an_unfinished_erase_and_no_damage(what: str) -> None:
    """Repair, another erase and the same one finish what is certain, and nothing else is unreadable at any time."""
    erase, domains = ERASES[what]
    disk = before_an_erase()
    before, dry = catalogue(reopen(disk)), disk.clone()
    erase(reopen(dry))
    after = catalogue(reopen(dry))
    states: dict[frozenset[tuple[str, bytes]], DiskState] = {}

    def watch() -> None:
        for state in disk.crashes("tmp"):
            states.setdefault(frozenset(state.files().items()), state)

    archive = reopen(disk)
    disk.flush()
    disk.watch = watch
    erase(archive)
    told = 0
    for state in states.values():
        left = SimDisk(state, seed=1)
        folder, archive = KeyFolder(DirectoryStore(left)), reopen(left)
        found = catalogue(archive)
        assert found in (before, after)
        report, free = archive.verify(), what == "base" or found == after
        keyed = folder.generations().keys() - {archive.catalog.listing.archive}
        begun = {d for d in keyed if began_alone(archive, d, free=free)}
        assert report.sound and {p.name for p in report.unfinished} == {d.hex() for d in {*folder.leftovers(), *begun}}
        locked = reopen(left, key=None).verify()
        assert locked.sound and len(locked.unfinished) == len(folder.leftovers())
        if not report.unfinished:
            continue  # nothing is left to finish
        told += 1

        repaired = SimDisk(state, seed=2)
        assert Repairer(DirectoryStore(repaired)).run().whole and catalogue(reopen(repaired)) == found
        report = reopen(repaired).verify()
        assert report.sound and {p.name for p in report.unfinished} == {d.hex() for d in begun}
        assert all(len(g) == 1 for g in KeyFolder(DirectoryStore(repaired)).generations().values())

        other = SimDisk(state, seed=3)
        reopen(other).erase("third")
        archive = reopen(other)
        assert catalogue(archive) == {k: v for k, v in found.items() if k[0] != "third"}
        report = archive.verify()
        assert report.sound and not KeyFolder(DirectoryStore(other)).leftovers()
        doomed = {p.name for p in report.unfinished} - {keys_of_base(archive, n).hex() for n in ("own", "spare")}
        assert len(doomed) <= (what == "session") and (found == before or not report.unfinished)

        with suppress(NotFound):
            erase(reopen(left))
        archive = reopen(left)
        assert catalogue(archive) == after and not archive.verify().unfinished and isinstance(archive.keys, Keyring)
        for kind, name in domains:
            assert raw_records_open(left, archive.keys.domain(kind, name)) == []
    assert told > 10, f"{told} of {len(states)} states were unfinished"


def keys_of_base(archive: TowerArchive, name: str) -> bytes:
    return archive.keys.domain(BASE, name)


def test_a_dry_run_counts_what_an_unfinished_erase_left(sealed: TowerArchive, disk: SimDisk) -> None:
    """The command asks after a dry run: it must not say that there is nothing to erase."""
    sealed.put([chat("a", [1]), chat("b", [2])])
    older = {path: data for path, data in disk.seen.files().items() if path.startswith("keys/")}
    sealed.erase("acme", "a")
    for path, data in older.items():
        if path not in disk.seen.files():
            disk.write_new(path, data)
    archive = reopen(disk)
    assert archive.erase("acme", "a", dry_run=True).files == 2 and archive.erase("acme", "b", dry_run=True).files == 2
    assert archive.erase("acme", "a").files == 2
    with pytest.raises(NotFound):
        archive.erase("acme", "a", dry_run=True)


def test_two_that_shred_one_file_do_no_harm(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(disk)
    store.make()
    store.put("keys/x", b"secret")
    sync = disk.sync_file

    def late(path: str) -> None:
        disk.unlink(path)
        sync(path)

    monkeypatch.setattr(disk, "sync_file", late)
    store.shred("keys/x")
    monkeypatch.setattr(disk, "sync_file", sync)
    assert store.put("keys/y", b"more")  # the store goes on


def test_keys_that_no_reader_would_take_are_not_written() -> None:
    roots = ((0, bytes(KEY)),) * (MAX_ROWS + 1)
    with pytest.raises(ArchiveError, match="at most 1,048,576"):
        DomainKeys(bytes(16), 0, TENANT, "t", bytes(KEY), roots).encode()


# Base domains


def test_erasing_names_the_bases_that_stay(sealed: TowerArchive, disk: SimDisk) -> None:
    sealed.put([chat("a", [1]), chat("b", [2]), chat("c", [3], tenant="other"), on_base("o", "own", [4])])
    sealed.put([NewSession("none", [np.array([5])], "acme")])
    assert sealed.erase("acme", "none").bases == ()
    assert sealed.erase("acme", "a", dry_run=True).bases == sealed.erase("acme", "a").bases == (BaseUse("base"),)
    left = BaseUse("base"), BaseUse("own")
    assert sealed.erase("acme", dry_run=True).bases == left and sealed.erase("acme").bases == left
    assert raw_records_open(disk, sealed.keys.domain(BASE, "own"))


def test_a_base_is_erased_by_name_when_no_session_stands_on_it(sealed: TowerArchive, disk: SimDisk) -> None:
    sealed.put([on_base("o", "own", [4]), on_base("p", "own", [4], tenant="other"), chat("a", [1])])
    base = sealed.keys.domain(BASE, "own")
    with pytest.raises(ArchiveError, match=r"2 sessions of 2 tenants stand on base 'own'.*nothing was erased"):
        sealed.erase_base("own")
    sealed.erase("other")
    sealed.forget([sealed.version("o", "acme")])
    with pytest.raises(ArchiveError, match=r"1 session of 1 tenant.*1 of them forgotten"):
        sealed.erase_base("own")
    sealed.undelete([sealed.version("o", "acme", version=1)])
    assert tokens(sealed, "o") == [4]
    sealed.erase("acme", "o")
    assert len(raw_records_open(disk, base)) == 1 and sealed.erase_base("own", dry_run=True).segments == 1
    done = sealed.erase_base("own")
    assert (done.base, done.segments, done.records, done.files) == ("own", 1, 1, 2)
    assert raw_records_open(disk, base) == [] and tokens(reopen(disk), "a") == [1]
    for name in ("own", "never"):
        with pytest.raises(NotFound, match="base"):
            reopen(disk).erase_base(name)
    for _ in range(2):
        sealed.collect(dead_share=0)
    assert len(records_of(disk)) == 2 and reopen(disk).verify(decode=True).sound


def test_a_writer_on_a_base_that_is_erased_meanwhile_looks_again(disk: SimDisk, sealed: TowerArchive) -> None:
    """It relied on a prompt that nobody else used any more; the eraser looked before its pack was there."""
    sealed.put([on_base("o", "own", [4]), chat("a", [1])])
    sealed.erase("acme", "o")
    writer, done = reopen(disk), False

    def erase() -> None:
        nonlocal done
        unsynced = [disk.seen.data[c.inode][:4] for c in disk.pending if c.what == "bytes"]
        if not done and b"PLTp" in unsynced:  # a pack that has no name yet
            done = True
            reopen(disk).erase_base("own")

    disk.watch = erase
    writer.put([on_base("x", "own", [9], tenant="other")])
    assert done and tokens(reopen(disk), "x", "other") == [9] and reopen(disk).verify(decode=True).sound


@pytest.mark.parametrize("late", ["before the new root", "after it"])
def test_a_session_put_onto_a_base_meanwhile_is_seen(
    late: str, sealed: TowerArchive, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed.put([on_base("o", "own", [4])])
    sealed.erase("acme", "o")
    other, publish = reopen(disk), Eraser._publish

    def slow(self: Eraser, keys: DomainKeys) -> None:
        monkeypatch.setattr(Eraser, "_publish", publish)
        if late == "after it":
            publish(self, keys)
        other.put([on_base("x", "own", [9], tenant="other")])
        if late != "after it":
            publish(self, keys)

    monkeypatch.setattr(Eraser, "_publish", slow)
    with pytest.raises(ArchiveError, match="1 session of 1 tenant stand on base 'own' by now"):
        reopen(disk).erase_base("own")
    fresh = reopen(disk)
    assert tokens(fresh, "x", "other") == [9]
    report = fresh.verify(decode=True)
    assert report.sound and all("older key files" in p.what for p in report.unfinished)
    fresh.erase("other", "x")
    assert reopen(disk).erase_base("own").base == "own" and raw_records_open(disk, fresh.keys.domain(BASE, "own")) == []
    assert not reopen(disk).verify().unfinished


def test_a_loss_that_is_known_is_in_the_way_of_an_erase_until_it_is_acknowledged(disk: SimDisk) -> None:
    archive = create(disk, key=RAW)
    archive.put([chat("a", [1, 2], [3])])
    archive.put([chat("b", [1, 2], [4])])
    archive.write_index()
    for folder in "packs", "parity":
        disk.unlink(f"{folder}/{archive.version('b', 'acme').location.pack.hex()}")
    for _ in range(2):
        with pytest.raises(ArchiveError, match=r"repair first.*--acknowledge"):
            reopen(disk).erase("acme", "a")
        assert not Repairer(DirectoryStore(disk)).run().whole
    assert reopen(disk).acknowledge() and reopen(disk).erase("acme", "a").versions == 1


def test_a_failed_sync_of_a_key_file_stops_everything(disk: SimDisk) -> None:
    archive = create(disk, key=RAW)
    archive.put([chat("a", [1])])
    for call in range(1, 40):
        copy = SimDisk(disk.durable, seed=call)
        copy.fail_at = {call: OSError(5, "no")}
        try:
            reopen(copy).erase("acme", "a")
        except PltzError as exc:
            assert isinstance(exc, PltzError)
            copy.fail_at = {}
            left = reopen(copy)
            assert catalogue(left) in ({("acme", "a"): [1]}, {})
            if catalogue(left):
                left.erase("acme", "a")
            assert not catalogue(reopen(copy))
    assert not isinstance(archive, WriterFailed)


# Erasing at once with others


def test_a_version_that_is_put_before_writers_know_is_erased_too(
    sealed: TowerArchive, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed.put([chat("a", [1]), chat("b", [2])])
    other, publish = reopen(disk), Eraser._publish

    def late(self: Eraser, keys: DomainKeys) -> None:
        monkeypatch.setattr(Eraser, "_publish", publish)
        other.put([chat("a", [1], [7])])
        publish(self, keys)

    monkeypatch.setattr(Eraser, "_publish", late)
    done = sealed.erase("acme", "a")
    assert (done.versions, done.segments) == (2, 2)
    fresh = reopen(disk)
    kept = {fresh.version("b", "acme").leaf, fresh.keys.session_key(fresh.keys.domain(TENANT, "acme"), "b")[:8]}
    assert set(raw_records_open(disk, fresh.keys.domain(TENANT, "acme"))) == kept


def test_a_session_is_not_erased_where_it_is_not_known_who_shares_it(sealed: TowerArchive, disk: SimDisk) -> None:
    """The record of another one is damaged and can be repaired; what both have must be there then."""
    sealed.put([chat("a", [1, 2], [3])])
    sealed.put([chat("b", [1, 2], [4])])
    path = f"packs/{sealed.version('b', 'acme').location.pack.hex()}"
    disk.flip(path, sealed.version("b", "acme").location.offset + 40)
    with pytest.raises(ArchiveError, match="repair first"):
        reopen(disk).erase("acme", "a")
    assert Repairer(DirectoryStore(disk)).run().whole
    reopen(disk).erase("acme", "a")
    assert tokens(reopen(disk), "b") == [1, 2, 4]
