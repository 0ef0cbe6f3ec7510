"""Recode and erase: a session that goes takes none of those with it that were coded after it, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pltz.archive.encryption.key_files import KeyFolder
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.errors import ArchiveError, Fenced, NotFound
from pltz.archive.format.pack import Damage
from pltz.archive.maintenance.domain_records import DomainRecords
from pltz.archive.maintenance.erase import Eraser, Erasure
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.candidates import RULE
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from pltz.plt_codec.identity import NONE
from tests.archive.peek import peek, records
from tests.archive.sealed import RAW, reopen
from tests.archive.simulated_disk import DiskState, SimDisk
from tests.archive.towers import TowerArchive

Ids = np.ndarray[Any, Any]
TEMPLATE = np.random.default_rng(3).integers(0, 60_000, 60)


def alike(number: int) -> Ids:
    """Return tokens most of which are those of the template."""
    return np.concatenate([TEMPLATE[:30], [70_000 + number] * 5, TEMPLATE[30:]])


def put(archive: TowerArchive, *numbers: int, tenant: str = "acme") -> None:
    archive.put([NewSession(f"s{n}", [alike(n)], tenant) for n in numbers])


def catalogue(archive: TowerArchive) -> dict[tuple[str, str], list[int]]:
    return {(v.tenant, v.name): archive.tower(v).tokens.tolist() for v in archive.ls()}


def neighbours(archive: TowerArchive) -> list[bytes]:
    """Return the neighbours of all records in the packs that open."""
    found = []
    for pack in sorted(archive.catalog.listing.packs):
        for item in archive.catalog.listing.scan(pack):
            assert not isinstance(item, Damage)
            if item.record.neighbour != NONE and not archive.keys.gone(item.context, item.record.id or NONE):
                found.append(item.record.neighbour)
    return found


def crashes_during(disk: SimDisk, work: Callable[[], object]) -> list[DiskState]:
    """Do some work and return the states in which a crash may leave the disk meanwhile, each once."""
    states: dict[frozenset[tuple[str, bytes]], DiskState] = {}

    def watch() -> None:
        for state in disk.crashes("tmp"):
            states.setdefault(frozenset(f for f in state.files().items() if f[0][:4] != "tmp/"), state)

    disk.watch = watch
    work()
    disk.watch = lambda: None
    return list(states.values())


@pytest.fixture
def one_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no session be coded after one that has a neighbour."""
    monkeypatch.setattr("pltz.archive.writing.neighbours.RULE", replace(RULE, in_a_row=1))


@pytest.fixture
def near(copying_codec: SegmentCodec, one_in_a_row: None) -> tuple[SimDisk, TowerArchive]:
    """Make a sealed archive in which "s1" and "s2" are coded after "s0"."""
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [copying_codec], key=RAW)
    archive.neighbours = True
    put(archive, 0, 1)
    put(archive, 2)
    put(archive, 3, tenant="other")
    assert neighbours(archive) == [archive.version("s0", "acme").leaf] * 2
    return disk, archive


def test_those_coded_after_an_erased_session_stay(
    near: tuple[SimDisk, TowerArchive], copying_codec: SegmentCodec
) -> None:
    disk, archive = near
    leaf = archive.version("s0", "acme").leaf
    assert archive.erase("acme", "s0", dry_run=True).recoded == 2
    assert len(neighbours(archive)) == 2
    done = archive.erase("acme", "s0")
    assert (done.segments, done.recoded) == (1, 2)
    for reader in (archive, reopen(disk, copying_codec)):
        assert {name for _, name in catalogue(reader)} == {"s1", "s2", "s3"}
        assert catalogue(reader)["acme", "s1"] == alike(1).tolist()
        assert not records(reader, leaf)
        assert reader.verify(decode=True).sound
        assert not neighbours(reader)  # what was coded after it cannot confirm a guess at it
    for _ in range(2):
        archive.collect(dead_share=0.01)
    assert catalogue(reopen(disk, copying_codec)) == catalogue(archive)
    put(archive, 4)
    assert catalogue(reopen(disk, copying_codec))["acme", "s4"] == alike(4).tolist()


def test_every_crash_of_such_an_erase(near: tuple[SimDisk, TowerArchive], copying_codec: SegmentCodec) -> None:
    disk, _ = near
    before, dry = catalogue(reopen(disk, copying_codec)), disk.clone()
    reopen(dry, copying_codec).erase("acme", "s0")
    after = catalogue(reopen(dry, copying_codec))
    assert len(after) == len(before) - 1
    eraser, halfway = reopen(disk, copying_codec), 0
    for number, state in enumerate(crashes_during(disk, lambda: eraser.erase("acme", "s0"))):
        left = SimDisk(state, seed=number)
        archive = reopen(left, copying_codec)
        assert catalogue(archive) in (before, after)
        assert archive.verify(decode=True).sound
        halfway += catalogue(archive) == before and bool(neighbours(archive))
        with suppress(NotFound):
            archive.erase("acme", "s0")
        again = reopen(left, copying_codec)
        assert catalogue(again) == after and not neighbours(again)
        assert again.verify(decode=True).sound
        assert all(len(g) == 1 for g in KeyFolder(DirectoryStore(left)).generations().values())
    assert halfway >= 3
    assert catalogue(reopen(SimDisk(disk.durable), copying_codec)) == after


@pytest.mark.parametrize("gone", range(4))
def test_every_crash_of_an_erase_in_a_row(gone: int, copying_codec: SegmentCodec) -> None:
    """Erase one of four sessions, each coded after the one before; only the next one is coded anew."""
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [copying_codec], key=RAW)
    archive.neighbours = True
    for n in range(4):
        archive.put([NewSession(f"s{n}", [np.concatenate([TEMPLATE, np.arange(9 * n) + 9 * n])], "acme")])
    leaves = [archive.version(f"s{n}", "acme").leaf for n in range(4)]
    assert set(neighbours(archive)) == set(leaves[:3])
    before = catalogue(archive)
    after = {name: tokens for name, tokens in before.items() if name[1] != f"s{gone}"}
    eraser, done = reopen(disk, copying_codec), list[Erasure]()
    states = crashes_during(disk, lambda: done.append(eraser.erase("acme", f"s{gone}")))
    assert [one.recoded for one in done] == [gone < 3]
    for number, state in enumerate(states):
        left = SimDisk(state, seed=number)
        archive = reopen(left, copying_codec)
        assert catalogue(archive) in (before, after) and archive.verify(decode=True).sound
        with suppress(NotFound):
            archive.erase("acme", f"s{gone}")
        for _ in range(2):
            archive.collect(dead_share=0.01)
        again = reopen(left, copying_codec)
        assert catalogue(again) == after and again.verify(decode=True).sound
        assert leaves[gone] not in neighbours(again) and len(neighbours(again)) == 3 - (gone > 0) - (gone < 3)


def test_a_writer_that_codes_after_what_is_erased_meanwhile_is_not_acknowledged(
    near: tuple[SimDisk, TowerArchive], copying_codec: SegmentCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, writer = near
    publisher, eraser = writer.parts.writer._publisher, reopen(disk, copying_codec)
    publish = publisher.put

    def late(rows: Any, new: Any = None) -> None:
        assert any(record.neighbour != NONE for _, record in rows)
        eraser.erase("acme", "s0")
        publish(rows, new)

    monkeypatch.setattr(publisher, "put", late)
    with pytest.raises(Fenced):
        put(writer, 5)
    monkeypatch.setattr(publisher, "put", publish)
    put(writer, 5)
    put(writer, 6)
    for number in (5, 6):
        assert catalogue(reopen(disk, copying_codec))["acme", f"s{number}"] == alike(number).tolist()
    assert reopen(disk, copying_codec).verify(decode=True).sound


def test_a_session_put_while_another_is_erased_is_coded_anew_too(
    near: tuple[SimDisk, TowerArchive], copying_codec: SegmentCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, writer = near
    eraser = reopen(disk, copying_codec)
    dead = Eraser._dead
    did: list[int] = []

    def late(self: Eraser, *what: Any) -> Any:
        found = dead(self, *what)
        if not did:
            did.append(1)
            put(writer, 7)
        return found

    monkeypatch.setattr(Eraser, "_dead", late)
    assert eraser.erase("acme", "s0").recoded == 3
    assert catalogue(reopen(disk, copying_codec))["acme", "s7"] == alike(7).tolist()
    assert reopen(disk, copying_codec).verify(decode=True).sound


@pytest.mark.usefixtures("one_in_a_row")
def test_an_erase_reads_each_pack_once_and_a_shared_tower_once(
    disk: SimDisk, copying_codec: SegmentCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = TowerArchive.create(DirectoryStore(disk), [copying_codec], key=RAW)
    archive.neighbours = True
    prompt, tails = np.arange(500), [np.concatenate([alike(n)[:30], [n] * 4, alike(n)[30:]]) for n in range(9)]
    for number, tail in enumerate(tails):
        archive.put([NewSession(f"s{number}", [prompt, tail], "acme")])
    gone = archive.version("s0", "acme").leaf
    assert neighbours(archive) == [gone] * 8
    eraser = reopen(disk, copying_codec)
    scanned, decoded = list[bytes](), list[int]()
    scan, decode = DomainRecords._read, type(copying_codec).decode

    def scanning(self: DomainRecords, pack: bytes) -> Any:
        scanned.append(pack)
        return scan(self, pack)

    def decoding(self: SegmentCodec, batch: Any) -> Any:
        decoded.extend(len(one.data) for one in batch if one.count == len(prompt))
        return decode(self, batch)

    monkeypatch.setattr(DomainRecords, "_read", scanning)
    monkeypatch.setattr(type(copying_codec), "decode", decoding)
    assert eraser.erase("acme", "s0").recoded == 8
    assert len(scanned) == len(set(scanned)) == 10  # nine, and that of the segments put again
    assert len(decoded) <= 3  # to code anew, to read that back; not once per segment
    monkeypatch.undo()
    assert all(np.array_equal(archive.get(f"s{n}", "acme").tokens[500:], tails[n]) for n in range(1, 9))
    assert not neighbours(archive) and reopen(disk, copying_codec).verify(decode=True).sound


def test_two_segments_of_a_tower_are_coded_anew_one_after_the_other(
    disk: SimDisk, copying_codec: SegmentCodec
) -> None:
    archive = TowerArchive.create(DirectoryStore(disk), [copying_codec], key=RAW)
    archive.neighbours = True
    other = np.random.default_rng(9).integers(0, 60_000, 60)
    archive.put([NewSession("s0", [alike(0)], "acme"), NewSession("o", [other], "acme")])
    below = np.concatenate([other, alike(1)[:40], [5] * 4])  # shorter after the segment above it
    archive.put([NewSession("s1", [alike(1), below], "acme")])
    assert neighbours(archive) == [archive.version(name, "acme").leaf for name in ("s0", "o")]
    for name in ("o", "s0"):  # the segment below first: that above it still has its neighbour
        assert archive.erase("acme", name).recoded == 1
    assert catalogue(reopen(disk, copying_codec)) == {("acme", "s1"): [*alike(1).tolist(), *below.tolist()]}
    assert not neighbours(archive) and reopen(disk, copying_codec).verify(decode=True).sound


def test_an_erase_stops_where_a_pack_may_hide_who_was_coded_after(
    near: tuple[SimDisk, TowerArchive], copying_codec: SegmentCodec
) -> None:
    disk, archive = near
    pack = peek(archive, "s2", "acme")[-1].location
    name = f"packs/{pack.pack.hex()}"
    data = bytearray(disk.durable.files()[name])
    data[pack.offset + 4] ^= 1
    broken = SimDisk(disk.durable)
    broken.seen.names.pop(name)
    DirectoryStore(broken).put(name, bytes(data))
    with pytest.raises(ArchiveError, match="repair"):
        reopen(broken, copying_codec).erase("acme", "s0")


def test_an_erase_that_cannot_code_the_others_changes_nothing(near: tuple[SimDisk, TowerArchive]) -> None:
    disk, archive = near
    blind = TowerArchive.open(DirectoryStore(disk), [], key=RAW)
    with pytest.raises(ArchiveError, match="--bundle"):
        blind.erase("acme", "s0")
    assert isinstance(archive.keys, Keyring)
    assert not reopen(disk, archive.codecs[0]).verify().unfinished
    assert catalogue(archive)["acme", "s0"] == alike(0).tolist()


def test_a_tenant_goes_with_all_its_neighbours(near: tuple[SimDisk, TowerArchive], copying_codec: SegmentCodec) -> None:
    disk, archive = near
    archive.erase("acme")
    assert set(catalogue(reopen(disk, copying_codec))) == {("other", "s3")}
    assert not neighbours(archive) and archive.verify(decode=True).sound


def test_a_base_below_a_neighbour_is_stood_on(disk: SimDisk, copying_codec: SegmentCodec) -> None:
    archive = TowerArchive.create(DirectoryStore(disk), [copying_codec], key=RAW)
    archive.neighbours = True
    archive.put([NewSession("b", [np.arange(20), alike(0)], "acme", shared=1, base="prompts")])
    archive.put([NewSession("s1", [alike(1)], "acme")])
    assert neighbours(archive)
    archive.forget([archive.version("b", "acme")])
    blind = TowerArchive.open(DirectoryStore(disk), [], key=None)
    for _ in range(3):
        blind.collect(dead_share=0.01)
    with pytest.raises(ArchiveError, match="1 session"):
        reopen(disk, copying_codec).erase_base("prompts")
    archive = reopen(disk, copying_codec)
    for _ in range(4):
        archive.collect(dead_share=0.01)
    assert catalogue(archive) == {("acme", "s1"): alike(1).tolist()} and not neighbours(archive)
