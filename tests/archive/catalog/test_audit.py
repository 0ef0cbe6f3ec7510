"""The audit: each change leaves a record with who and why, none can be changed, and nothing erased is in one."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pltz.archive.archive import Archive
from pltz.archive.author import Author
from pltz.archive.catalog import listing
from pltz.archive.catalog.audit import AuditEntry, entries
from pltz.archive.errors import WrongClock
from pltz.archive.format.audit import VERSION, AuditFile, AuditRecord, AuditTail
from pltz.archive.format.clock import AGAIN, DAY, STEP, ArchiveClock
from pltz.archive.retention import Policy
from pltz.archive.writing.put_request import PutRequest
from pltz.plt_codec.errors import ContentError, CorruptError, PltzError, VersionError
from pltz.plt_codec.identity import SIZE, digest
from tests.archive.kit import DirectoryStore, NewSession, Repairer, SimDisk, TowerArchive, create
from tests.archive.sealed import RAW, reopen

KEYS = pytest.mark.parametrize("key", [None, RAW], ids=["open", "sealed"])


def made(key: Any) -> tuple[SimDisk, TowerArchive]:
    disk = SimDisk()
    archive = create(disk, key=key)
    archive.catalog.author = Author("alice", "case seven")
    return disk, archive


def put(archive: TowerArchive, *names: str, first: int = 0) -> None:
    archive.put([NewSession(name, [np.arange(first, first + 20)], "acme") for name in names])


def told(archive: TowerArchive) -> list[AuditEntry]:
    archive.catalog.look()
    return list(entries(archive.catalog))


def short(archive: TowerArchive) -> list[tuple[str, int]]:
    return [(entry.verb, entry.number) for entry in told(archive)]


@KEYS
def test_each_change_leaves_a_record(key: Any) -> None:
    disk, archive = made(key)
    put(archive, "a", "b")
    put(archive, "a", first=5)
    put(archive, "a", first=5)  # adds nothing
    archive.forget(archive.history("a", "acme")[:1])
    archive.undelete(archive.history("a", "acme")[:1])
    held = archive.catalog.holds.place(archive.catalog.author, tenant="acme")
    archive.catalog.holds.release(held.id)
    changes = [("put", 2), ("put", 1), ("forget", 1), ("undelete", 1), ("hold", 1), ("release", 1)]
    assert short(archive) == changes
    if key:
        archive.erase("acme", "b")
        archive.erase("acme")
        changes += [("erase", 0), ("erased", 1), ("erase", 0), ("erased", 2)]
        assert short(archive) == changes
    for _ in range(2):
        archive.collect(dead_share=0.01)
    assert short(archive)[:-1] == changes and short(archive)[-1][0] == "collect"
    found = told(reopen(disk, key=key))
    assert {(e.actor, e.reason) for e in found} == {("alice", "case seven")}
    assert [e.place for e in found] == list(range(1, len(found) + 1))
    assert [e.before for e in found] == ["0" * 32, *(e.digest for e in found[:-1])]
    first = found[0].sessions
    assert len(first) == 2 and found[1].sessions == first[:1] == found[2].sessions


def test_what_was_erased_is_in_no_record_and_nothing_is_in_the_clear() -> None:
    disk, archive = made(RAW)
    put(archive, "very secret name")
    data = b"".join(disk.seen.files().values())
    assert b"alice" not in data and b"seven" not in data
    archive.erase("acme", "very secret name")
    assert "very secret" not in json.dumps([entry._asdict() for entry in told(archive)])
    locked = told(reopen(disk, key=None))
    assert [(e.verb, e.actor, e.about) for e in locked] == [(v, "", {}) for v in ("put", "erase", "erased")]


def test_whoever_works_without_the_key_is_told_in_the_clear() -> None:
    disk, archive = made(RAW)
    put(archive, "a")
    put(archive, "a", first=3)
    for _ in range(2):
        locked = reopen(disk, key=None)
        locked.catalog.author = Author("cron", "")
        locked.collect(dead_share=0.01)
    found = told(archive)
    assert (found[-1].verb, found[-1].actor) == ("collect", "cron")
    assert [e.unproven for e in found] == [False, False, True]


@KEYS
def test_files_take_over_and_every_change_of_them_is_found(key: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "FULL", 150)
    disk, archive = made(key)
    beside = reopen(disk, key=key)  # has another author
    for number in range(12):
        put((archive, beside)[number % 2], f"n{number}")
    found = told(archive)
    assert [e.number for e in found] == [1] * 12 and len({e.actor for e in found}) == 2
    files = sorted(path for path in disk.seen.files() if path.startswith("audit/"))
    assert 2 <= len(files) < 12 and len(archive.catalog.listing.present.audit.rows) < 150
    assert list(entries(archive.catalog, found[3].digest)) == found
    with pytest.raises(CorruptError, match="no record"):
        list(entries(archive.catalog, "00" * 16))
    for path, beside_it in zip(files, [*files[1:], files[0]], strict=True):
        for data in (None, disk.seen.files()[path][:-1] + b"?", disk.seen.files()[beside_it]):
            other = SimDisk(disk.seen)
            other.unlink(path)
            if data is not None:
                other.write_new(path, data)
            left, catalog = list[AuditEntry](), reopen(other, key=key).catalog
            with pytest.raises(CorruptError, match="of the audit"):
                for entry in entries(catalog):
                    left.append(entry)
            assert left == found[len(found) - len(left) :] and len(left) < 12
    assert archive.verify().sound


@KEYS
def test_a_chain_that_was_written_anew_lacks_the_digest_that_was_kept(key: Any) -> None:
    """By who may write the manifest: it follows, and tells nothing of what was cut off or left out of it."""
    disk, archive = made(key)
    for number in range(4):
        put(archive, f"n{number}")
    found, records = told(archive), [chained.record for chained in archive.catalog.listing.present.audit.records()]
    cut, forged = (functools.reduce(AuditTail.adding, rows, AuditTail()) for rows in (records[:3], records[::3]))
    for tail, last in (cut, 3), (forged, 2):
        archive.catalog.listing.publish(lambda manifest, tail=tail: replace(manifest, audit=tail))  # type: ignore[misc]
        catalog = reopen(disk, key=key).catalog
        assert len(list(entries(catalog))) == last and list(entries(catalog, found[0].digest))
        with pytest.raises(CorruptError, match="written anew, or an older state"):
            list(entries(catalog, found[3].digest))


@KEYS
def test_a_lost_manifest_costs_the_last_records_and_that_is_told(key: Any) -> None:
    disk, archive = made(key)
    for number in range(3):
        put(archive, f"n{number}")
    for path in [path for path in disk.seen.files() if path.startswith("manifest/0")]:
        disk.unlink(path)
    Repairer(DirectoryStore(disk), author=Author("bob", "")).run()
    archive = reopen(disk, key=key)
    put(archive, "more")
    found = told(archive)
    assert [e.verb for e in found] == ["put", "put", "repair", "put"]
    assert [e.broken for e in found] == [False, False, True, False] and found[2].actor == "bob"


def test_reads_are_recorded_where_that_is_on(tmp_path: Any) -> None:
    cold = Archive.open(tmp_path / "cold", create=True, actor="alice", reason="audit")
    cold.put("a", "one")
    cold.put("b", "two")
    assert cold.get("a").value == b"one"
    cold.record_reads(True)
    reader = Archive.open(tmp_path / "cold", actor="bob")
    assert [s.value for s in reader.get_many(["a", "b"])] == [b"one", b"two"] and reader.get("a").value == b"one"
    assert len([*reader.get_parts("b")]) == 1
    cold.put("a", "one and more")
    cold.record_reads(False)
    reader.get("a")
    found = [(e.verb, e.number, e.actor) for e in cold.audit()]
    gets, puts = [("get", 2, "bob"), ("get", 1, "bob"), ("get", 1, "bob")], [("put", 1, "alice")]
    assert found == puts * 2 + [("audit", 1, "alice"), *gets, *puts, ("audit", 0, "alice")]


# ---- bytes


def test_each_changed_byte_of_a_file_is_refused_and_of_a_record_is_found() -> None:
    tail = AuditTail(first=3, before=b"b" * 16, last=b"b" * 16)
    for number in range(3):
        tail = tail.adding(AuditRecord(number, 1, number, b"note" * (number // 2), 0, (b"12345",) * number))
    data = AuditFile(b"a" * 16, tail).encode()
    assert AuditFile.decode(data).tail == tail and [r.place for r in tail.records()] == [4, 5, 6]
    for at in range(len(data)):
        for hurt in (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], data[:at]):
            with pytest.raises(CorruptError):
                AuditFile.decode(hurt)
        body = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 : -SIZE]
        if at < len(data) - SIZE:
            crafted = body + digest(b"pltz audit", body)
            try:
                assert list(AuditFile.decode(crafted).tail.records())
            except (CorruptError, VersionError):
                continue
            # archive, number and file before: who reads the chain compares these
            assert at in range(8, 32) or at in range(68, 84), at
    for at, new in ((4, VERSION + 1), (5, 1)):
        body = data[:at] + bytes([new]) + data[at + 1 : -SIZE]
        with pytest.raises(VersionError):
            AuditFile.decode(body + digest(b"pltz audit", body))


# ---- clocks


def test_a_clock_that_went_ahead_counts_once_a_second_look_agrees() -> None:
    clock, now = ArchiveClock().seeing(1000 * DAY), 1000 * DAY
    for _ in range(9):  # every day, at about the same time
        now += DAY + 600
        assert clock.believed(now) == now
        clock = clock.seeing(now)
    wrong = now + 4000 * DAY
    for late in (0, AGAIN - 1):
        assert clock.believed(wrong + late) == clock.agreed + STEP
        clock = clock.seeing(wrong + late)
    assert clock.seeing(now + DAY) == ArchiveClock(now + DAY)  # it was put right
    assert clock.seeing(wrong + DAY).believed(wrong + DAY) == wrong + DAY
    assert clock.seeing(2 * wrong).believed(2 * wrong) == wrong + STEP  # it agrees with the first, not with itself
    assert clock.is_behind(now - DAY - 1) and not clock.is_behind(now - DAY) and not clock.is_behind(wrong)
    assert clock.seeing(now - 9 * DAY) == clock._replace(ahead=0) and clock.seeing(5, forced=True) == ArchiveClock(5)


def test_retention_by_a_clock_that_went_ahead_takes_nothing_before_a_second_look() -> None:
    disk, archive = made(None)
    cold, policy = Archive(archive.parts), Policy(keep_within=90 * DAY)
    for number in range(3):
        put(archive, "a", first=number)
        disk.clock += DAY
    cold.forget("a", tenant="acme", version=1)
    disk.clock += 4000 * DAY
    assert cold.expire(policy, dry_run=True) == () == cold.expire(policy)
    for _ in range(3):
        cold.collect(grace=7 * DAY)
    assert len(archive.history("a", "acme")) == 3  # the forgotten one too
    disk.clock += DAY
    assert [v.version for v in cold.expire(policy)] == [2]


def test_a_put_by_a_clock_that_jumped_back_or_of_a_time_to_come_is_refused() -> None:
    disk, archive = made(None)
    put(archive, "a")
    now, disk.clock = disk.clock, disk.clock - DAY - 1
    with pytest.raises(WrongClock, match="--force-time"):
        put(archive, "b")
    archive.catalog.force_time = True
    put(archive, "b")
    archive.catalog.force_time = False
    put(archive, "c")
    assert [e.forced for e in told(archive)] == [False, True, False]
    disk.clock = now + 4000 * DAY
    put(archive, "d")  # it may be so long ago
    disk.clock = now
    put(archive, "e")  # it was not


def test_a_time_in_the_future_is_refused_without_a_word(tmp_path: Any) -> None:
    cold = Archive.open(tmp_path / "cold", create=True)
    future = cold.parts.store.now() + 2 * DAY
    with pytest.raises(ContentError, match="in the future"):
        cold.put("a", "one", time=future)
    refused = list[PltzError]()
    requests = [PutRequest("a", "one", time=future), PutRequest("b", "two", time=7)]
    assert len([*cold.put_many(requests, refused=lambda _, error: refused.append(error))]) == 1 == len(refused)
    assert Archive.open(tmp_path / "cold", force_time=True).put("a", "one", time=future).version == 1
