"""Neighbours: a segment coded after an earlier one of its tenant is smaller, and reads back as ever.

Crashes: test_crash.py; against the model: test_machine.py; erasure: maintenance/test_erase.py.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from pltz.archive.catalog.chain import LAST
from pltz.archive.format import object_names
from pltz.archive.format.candidate_file import CandidateGroup, pack_candidates, unpack_candidates
from pltz.archive.format.context import RUN
from pltz.archive.format.ids import BASE, TENANT
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.candidates import Place, read_candidates, read_groups
from pltz.archive.writing.neighbours import NeighbourEncoder
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from pltz.coding.codecs.modes import FAST, TURN
from pltz.coding.neighbour_rule import GRANTED, LONGEST, PROOF, SAVED_UP, TRIAL
from pltz.coding.sketch import hashes_of
from pltz.plt_codec.errors import CorruptError, VersionError
from pltz.plt_codec.identity import NONE, digest
from tests.archive.peek import peek, records
from tests.archive.sealed import RAW
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive

Ids = np.ndarray[Any, Any]
TEMPLATE = np.random.default_rng(3).integers(0, 60_000, 300)


def alike(number: int) -> Ids:
    """Return tokens of which nine in ten are those of the template."""
    own = np.random.default_rng(100 + number).integers(0, 60_000, 30)
    return np.concatenate([TEMPLATE[:150], own, TEMPLATE[150:]])


def unlike(number: int) -> Ids:
    return np.random.default_rng(200 + number).integers(0, 60_000, 300)


@pytest.fixture(params=["plain", "sealed", "copies", "sealed copies"])
def archive(
    request: pytest.FixtureRequest, tower_codec: SegmentCodec, copying_codec: SegmentCodec
) -> TowerArchive:
    """Make an empty archive whose puts look for neighbours."""
    key = RAW if "sealed" in request.param else None
    codec = copying_codec if "copies" in request.param else tower_codec
    made = TowerArchive.create(DirectoryStore(SimDisk()), [codec], key=key)
    made.neighbours = True
    return made


def again(archive: TowerArchive) -> TowerArchive:
    """Open the same archive in another process."""
    return TowerArchive.open(archive.store, archive.codecs, key=RAW if archive.settings.sealed else None)


def put(archive: TowerArchive, *names: str, tenant: str = "acme", **more: Any) -> list[int]:
    """Put sessions named by a letter, a for alike or u for unlike, and a number; return their sizes."""
    new = [NewSession(n, [{"a": alike, "u": unlike}[n[0]](int(n[1:]))], tenant, **more) for n in names]
    return [receipt.size for receipt in archive.put(new)]


def neighbour(archive: TowerArchive, name: str, tenant: str = "acme", at: int = 0) -> bytes:
    """Return the neighbour that a segment of a session's tower was coded after."""
    return peek(archive, name, tenant)[at].record.neighbour


def leaf(archive: TowerArchive, name: str, tenant: str = "acme") -> bytes:
    return archive.version(name, tenant).leaf


def want(archive: TowerArchive, *names: str, tenant: str = "acme") -> None:
    """Check that sessions read back here and in another process, and that the archive is sound."""
    for reader in (archive, again(archive)):
        for name in names:
            tokens = {"a": alike, "u": unlike}[name[0]](int(name[1:]))
            assert np.array_equal(reader.get(name, tenant).tokens, tokens)
        report = reader.verify(decode=True)
        assert report.sound and not report.undecoded, report.problems
        assert reader.verify().sound


def test_a_session_is_coded_after_the_nearest_earlier_one(archive: TowerArchive) -> None:
    alone = put(archive, "u0", "a0", "u1")
    assert put(archive, "a1", "u2")[0] < alone[1] / 3
    assert neighbour(archive, "a1") == leaf(archive, "a0")
    assert {neighbour(archive, name) for name in ("u0", "a0", "u1", "u2")} == {NONE}
    want(archive, "a0", "a1", "u0", "u1", "u2")


def test_a_segment_that_only_a_run_has_is_no_neighbour(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader finds a neighbour by its record. A put was acknowledged whose neighbour its writer alone could find."""
    for turns in range(3):
        archive.put([NewSession("a0", [alike(0), *[unlike(n) for n in range(turns)]], "acme")])
    first = archive.get("a0", "acme").segments[0]
    assert archive.merge(cold=0).merged == 1
    for _ in range(3):
        archive.collect()
    assert not archive.places(first[0])
    archive = again(archive)
    archive.neighbours = True
    archive.before(archive.version("a0", "acme"))  # proves all that is in the run

    def remembered(self: NeighbourEncoder, segment: Any, new: Any) -> tuple[float, bytes]:
        self.towers.add([first])
        self._deep[first[0]] = 0
        return 99.0, first[0]

    monkeypatch.setattr(NeighbourEncoder, "_proposed", remembered)
    put(archive, "a1")
    want(archive, "a1")


@pytest.mark.parametrize("key", [None, RAW], ids=["plain", "sealed"])
def test_passages_of_a_neighbour_are_copied(copying_codec: SegmentCodec, key: Any) -> None:
    archive = TowerArchive.create(DirectoryStore(SimDisk()), [copying_codec], key=key)
    archive.neighbours = True
    alone, after = put(archive, "a0"), put(archive, "a1", "a2", "u0")
    assert max(after[:2]) < alone[0] / 4
    names = ["a0", "a1", "a2", "u0"]
    assert [peek(archive, name, "acme")[-1].record.copied for name in names] == [False, True, True, False]
    assert put(archive, "a1") == [0]  # it is stored, and relied on
    want(archive, *names)
    other = TowerArchive.create(DirectoryStore(SimDisk()), [copying_codec], key=key)
    other.neighbours = True
    assert put(other, "a0", "a1", "a2", "u0")[1] == after[0]
    archive.forget([archive.version("a0", "acme")])
    archive.collect(grace=0, small=1 << 30)
    archive.collect(grace=0, small=1 << 30)
    want(archive, *names[1:])


def test_copies_that_claim_too_many_tokens_are_not_written(
    copying_codec: SegmentCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = TowerArchive.create(DirectoryStore(SimDisk()), [copying_codec])
    archive.neighbours = True
    put(archive, "a0", "a1")
    monkeypatch.setattr("pltz.coding.codecs.codec.MAX_TOKENS_PER_BYTE", 1)
    put(archive, "a2")
    found = [peek(archive, name, "acme")[-1].record for name in ("a1", "a2")]
    assert [(record.neighbour != NONE, record.copied) for record in found] == [
        (True, True),
        (True, False),
    ]
    monkeypatch.undo()
    want(archive, "a0", "a1", "a2")


def test_sessions_of_one_put_are_neighbours_too(archive: TowerArchive) -> None:
    put(archive, "a0", "u0", "a1", "a2", "u1")
    assert neighbour(archive, "a1") == neighbour(archive, "a2") == leaf(archive, "a0")
    want(archive, "a0", "a1", "a2", "u0", "u1")


def test_sessions_of_few_tokens_are_put(archive: TowerArchive) -> None:
    for number in range(3):
        archive.put([NewSession(f"s{number}", [np.arange(number)], "acme"), NewSession(f"e{number}", [], "acme")])
    assert [len(again(archive).get(f"s{n}", "acme").tokens) for n in range(3)] == [0, 1, 2]
    assert archive.cluster().medoids == 0


@pytest.mark.usefixtures("trial_budget")
@pytest.mark.parametrize("at_once", [1, 20])
def test_trials_take_a_bounded_share_of_the_work(
    archive: TowerArchive, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    tried, encode_after = list[int](), NeighbourEncoder._encode_after

    def counted(self: NeighbourEncoder, pairs: Any) -> None:
        tried.extend(len(s.tokens) for s, _, _ in pairs)
        encode_after(self, pairs)

    monkeypatch.setattr(NeighbourEncoder, "_encode_after", counted)
    names = [f"a{n}" for n in range(20)]
    for at in range(0, 20, at_once):
        put(archive, *names[at : at + at_once])
    all_tokens = sum(len(alike(n)) for n in range(20))
    most = (SAVED_UP + GRANTED * all_tokens) / (TRIAL + PROOF)
    assert 0.3 * all_tokens < sum(tried) <= most < 0.6 * all_tokens
    assert sum(neighbour(archive, name) != NONE for name in names) == len(tried)
    want(archive, *names)


def nearer(number: int) -> Ids:
    """Return tokens much like those of `alike`, and most like those of the number before."""
    return np.concatenate([TEMPLATE, *(unlike(n)[:40] for n in range(number + 1))])


def row(archive: TowerArchive, name: str) -> int:
    """Return how many neighbours stand in a row behind a session of one segment."""
    at, count = archive.get(name, "acme").segments[-1][0], 0
    while (at := records(archive, at)[0].record.neighbour) != NONE:
        count += 1
    return count


@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize("clustered", [False, True])
def test_at_most_three_neighbours_in_a_row(archive: TowerArchive, at_once: int, clustered: bool) -> None:
    new = [NewSession(f"s{n}", [nearer(n)], "acme") for n in range(8)]
    for begin in range(0, 8, at_once):
        if clustered and begin < 4:  # the file says nothing of the rows behind what it names
            archive.cluster()
            archive = again(archive)
            archive.neighbours = True
        archive.put(new[begin : begin + at_once])
    rows = [row(archive, f"s{n}") for n in range(8)]
    assert max(rows) == LAST and (clustered or rows == [0, 1, 2, 3, 3, 3, 3, 3])  # the last ones serve no other
    for reader in (archive, again(archive)):
        assert all(np.array_equal(reader.get(f"s{n}", "acme").tokens, nearer(n)) for n in range(8))
        assert reader.verify(decode=True).sound and reader.verify().sound


@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize("clustered", [False, True])
def test_one_neighbour_in_a_row_in_the_fast_layout(
    archive: TowerArchive, monkeypatch: pytest.MonkeyPatch, at_once: int, clustered: bool
) -> None:
    codec: Any = archive.codecs[0]
    monkeypatch.setattr(codec, "fast", True)
    monkeypatch.setattr(codec, "mode", codec.mode | FAST | TURN)
    new = [NewSession(f"s{n}", [nearer(n)], "acme") for n in range(8)]
    for begin in range(0, 8, at_once):
        if clustered:
            archive.cluster()
            archive = again(archive)
            archive.neighbours = True
        archive.put(new[begin : begin + at_once])
    assert [row(archive, f"s{n}") for n in range(8)] == [0, *[1] * 7]
    assert archive.verify(decode=True).sound


def test_a_trial_that_gains_nothing_leaves_a_candidate(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.archive.writing.neighbours.NEIGHBOUR_BYTES", 1 << 20)  # no trial gains as much
    put(archive, "a0")
    archive.put([NewSession("s1", [nearer(1)], "acme")])
    assert neighbour(archive, "s1") == NONE
    monkeypatch.undo()
    archive.put([NewSession("s2", [nearer(2)], "acme")])
    assert neighbour(archive, "s2") == leaf(archive, "s1")


@pytest.mark.parametrize(("length", "serves"), [(LONGEST, True), (LONGEST + 1, False)])
def test_a_segment_that_is_slow_to_decode_serves_no_other(archive: TowerArchive, length: int, serves: bool) -> None:
    tokens = np.concatenate([alike(0), np.random.default_rng(7).integers(0, 60_000, LONGEST)])[:length]
    archive.put([NewSession("long", [tokens], "acme")])
    put(archive, "a1")
    assert (neighbour(archive, "a1") == leaf(archive, "long")) is serves
    archive.cluster()
    assert (leaf(archive, "long") in medoids(archive)) is serves
    want(archive, "a1")


def test_no_neighbour_of_another_tenant(archive: TowerArchive) -> None:
    alone = put(archive, "a0", tenant="acme")
    assert put(archive, "a1", tenant="other") == put(again(archive), "a1", tenant="third")
    assert put(archive, "a2", tenant="other")[0] < alone[0] / 3
    assert neighbour(archive, "a1", "other") == NONE


def test_it_is_off_unless_it_is_wanted(archive: TowerArchive) -> None:
    other = again(archive)
    assert not other.neighbours
    put(other, "a0", "a1")
    assert neighbour(other, "a1") == NONE


def test_segments_below_a_shared_base_have_neighbours(archive: TowerArchive) -> None:
    prompt, tenants = alike(9)[:100], ("acme", "acme", "other")
    for number, tenant in enumerate(tenants):
        archive.put([NewSession(f"s{number}", [prompt, alike(number)[100:]], tenant, shared=1)])
    assert neighbour(archive, "s1", at=1) == leaf(archive, "s0")
    assert neighbour(archive, "s2", "other", 1) == neighbour(archive, "s0", at=0) == NONE
    assert archive.record(archive.get("s1", "acme").segments[0][0]).context.domain_kind == BASE
    for reader in (archive, again(archive)):
        assert np.array_equal(reader.get("s1", "acme").tokens, np.concatenate([prompt, alike(1)[100:]]))
        assert reader.verify(decode=True).sound


def test_turns_are_put_below_a_segment_with_a_neighbour(archive: TowerArchive) -> None:
    put(archive, "a0", "a1")
    for handle in (archive, again(archive)):
        turns = [alike(1), *([unlike(1)] if handle is archive else [unlike(1), unlike(2)])]
        receipt = handle.put([NewSession("a1", turns, "acme")])[0]
        assert receipt.new == 1
        assert np.array_equal(again(archive).get("a1", "acme").tokens, np.concatenate(turns))
    assert archive.verify(decode=True).sound


def test_decoding_many_reads_each_neighbour_once(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    put(archive, *(f"a{n}" for n in range(20)))
    reader = again(archive)
    codec, counts = archive.codecs[0], list[int]()
    decode = type(codec).decode

    def counted(self: SegmentCodec, batch: Any) -> Any:
        counts.append(len(batch))
        return decode(self, batch)

    monkeypatch.setattr(type(codec), "decode", counted)
    versions = list(reader.ls("acme"))
    reader.towers(versions)
    assert sum(counts) <= 21
    counts.clear()
    for version in versions:
        reader.tower(version)
    assert sum(counts) == 20  # the neighbour stays in memory


def test_a_lost_neighbour_loses_those_coded_after_it(archive: TowerArchive) -> None:
    put(archive, "a0", "u0")
    kept = set(archive.catalog.listing.packs)
    put(archive, "a1")
    (first,) = kept
    disk = archive.store.disk  # type: ignore[attr-defined]
    disk.seen.names.pop(f"packs/{first.hex()}")
    report = again(archive).verify()
    assert not report.sound and {v.name for v in report.lost} == {"a1"}


def test_collect_keeps_a_neighbour_whose_session_was_forgotten(archive: TowerArchive) -> None:
    put(archive, "a0", "u0")
    put(archive, "a1")
    archive.forget([archive.version("a0", "acme"), archive.version("u0", "acme")])
    blind = TowerArchive.open(archive.store, [])  # without key and codecs it cannot code "a1" anew
    for _ in range(3):
        blind.collect(dead_share=0.01)
    want(archive, "a1")
    assert archive.stat().segments == 2
    assert neighbour(archive, "a1") != NONE


def test_a_collector_that_condemns_the_neighbour_is_noticed(
    archive: TowerArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(archive, "a0")
    put(archive, "u0")
    publisher, collector = archive.parts.writer._publisher, again(archive)
    publish = publisher.put

    def late(rows: Any, new: Any = None) -> None:
        if collector.catalog.listing.epoch == 0:
            collector.forget([collector.version("a0", "acme")])
            collector.collect(dead_share=0.01)
        publish(rows, new)

    monkeypatch.setattr(publisher, "put", late)
    put(archive, "a1")
    for _ in range(3):
        collector.collect(dead_share=0.01)
    want(archive, "a1", "u0")


def test_undelete_keeps_the_neighbour_from_a_collector_that_is_deleting_it(
    archive: TowerArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(archive, "a0", "u0")
    put(archive, "a1")
    archive.forget([archive.version(name, "acme") for name in ("a0", "a1")])
    collector, other = again(archive), again(archive)
    collector.collect(dead_share=0.01)
    deleted = collector.catalog.ledger.put_deleted

    def late(packs: Any) -> None:
        other.undelete([v for v in other.history("a1", "acme")])
        deleted(packs)

    monkeypatch.setattr(collector.catalog.ledger, "put_deleted", late)
    collector.collect(dead_share=0.01)
    want(archive, "a1", "u0")


def test_a_neighbour_that_nobody_has_is_freed_in_the_end(archive: TowerArchive) -> None:
    put(archive, "a0", "u0")
    put(archive, "a1", "a2")
    before = leaf(archive, "a0")
    archive.forget([archive.version("a0", "acme")])
    archive.collect(dead_share=0.01)
    assert neighbour(archive, "a1") == neighbour(archive, "a2") == before  # it can be undeleted
    for _ in range(4):
        archive.collect(dead_share=0.01)
    assert neighbour(archive, "a1") == neighbour(archive, "a2") == NONE
    assert not records(archive, before)
    want(archive, "a1", "a2", "u0")
    assert archive.stat().segments == 3


def test_a_session_with_a_neighbour_is_merged(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.archive.maintenance.merge.TABLES", 0)
    put(archive, "a0", "a1", "a2")
    for name in ("a0", "a1"):
        turns = [alike(int(name[1:]))]
        for number in range(3):
            turns.append(unlike(number)[:40])
            archive.put([NewSession(name, list(turns), "acme")])
    archive.merge(cold=0)
    for _ in range(3):
        archive.collect(dead_share=0.01)
    for reader in (archive, again(archive)):
        for name in ("a0", "a1"):
            assert len(reader.history(name, "acme")) == 4
            tokens = np.concatenate([alike(int(name[1:])), *(unlike(n)[:40] for n in range(3))])
            assert np.array_equal(reader.get(name, "acme").tokens, tokens)
        assert np.array_equal(reader.get("a2", "acme").tokens, alike(2))
        assert reader.verify(decode=True).sound


def test_another_process_codes_after_the_medoids(archive: TowerArchive) -> None:
    put(archive, "a0", "u0", "a1", "a2", "u1")
    done = archive.cluster(medoids=2)
    assert (done.tenants, done.sessions, done.medoids) == (1, 5, 2)
    other = again(archive)
    other.neighbours = True
    put(other, "a3")
    near = neighbour(archive, "a3")
    assert near in {leaf(archive, name) for name in ("a0", "a1", "a2")}
    assert len(object_names.candidates_among(archive.store.list(object_names.INDEXES))) == 1
    want(archive, "a0", "a1", "a2", "a3", "u0", "u1")
    archive.rebuild()
    assert again(archive).cluster(medoids=2, dry_run=True).medoids == 2


def test_a_session_in_a_run_is_chosen(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.archive.maintenance.merge.TABLES", 0)
    monkeypatch.setattr(archive.codecs[0], "reach", len(alike(0)))
    turns = [alike(0), *(unlike(n)[:40] for n in range(3))]
    for count in range(1, 5):
        archive.put([NewSession("a0", turns[:count], "acme")])
    assert archive.merge(cold=0).merged == 1
    assert peek(archive, "a0", "acme")[-1].context.mode & RUN
    assert archive.cluster().medoids == 1
    assert medoids(archive) == {archive.get("a0", "acme").segments[0][0]}


def test_nothing_is_coded_where_all_sessions_are_chosen(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    put(archive, "a0", "a1", "u0", "u1")
    coded = list[int]()
    encode = type(archive.codecs[0]).encode

    def counted(self: SegmentCodec, batch: Any) -> Any:
        coded.append(len(batch))
        return encode(self, batch)

    monkeypatch.setattr(type(archive.codecs[0]), "encode", counted)
    assert archive.cluster(medoids=3, dry_run=True).medoids == 3 and coded
    coded.clear()
    assert archive.cluster(medoids=4).medoids == 4 and not coded
    assert medoids(archive) == {leaf(archive, name) for name in ("a0", "a1", "u0", "u1")}


def medoids(archive: TowerArchive) -> set[bytes]:
    """Return the segments that the candidate files name."""
    groups = read_groups(archive.catalog, archive.settings.archive)
    return {segment for _, boxes in groups for segment, _ in boxes.read()}


def test_medoids_stay_until_the_sessions_change(archive: TowerArchive) -> None:
    put(archive, *(f"a{n}" for n in range(16)), *(f"u{n}" for n in range(16)))
    done = archive.cluster(medoids=4)
    first = medoids(archive)
    assert (done.kept, done.medoids, done.sessions) == (0, 4, 32) and len(first) == 4
    put(archive, *(f"a{n}" for n in range(16, 20)))  # an eighth more
    done = archive.cluster(medoids=4)
    assert (done.kept, done.sessions) == (1, 0) and medoids(archive) == first
    put(archive, "a20")
    done = archive.cluster(medoids=4)
    assert (done.kept, done.sessions) == (0, 37)
    assert medoids(archive) == first  # none is better by enough
    archive.forget([archive.version(f"a{n}", "acme") for n in range(20)])
    for _ in range(4):
        archive.collect(dead_share=0.01)
    assert archive.cluster(medoids=4).kept == 0
    want(archive, "a20", *(f"u{n}" for n in range(16)))


def test_medoids_keep_their_neighbours(archive: TowerArchive) -> None:
    for n in range(6):
        archive.put([NewSession(f"s{n}", [nearer(n)], "acme")])
    packs = set(archive.catalog.listing.packs)
    assert archive.cluster().medoids == 3
    assert medoids(archive) == {leaf(archive, f"s{n}") for n in range(3)}  # others have three in a row already
    assert set(archive.catalog.listing.packs) == packs
    other = again(archive)
    other.neighbours = True
    other.put([NewSession("s6", [nearer(6)], "acme")])
    assert row(archive, "s6") == LAST and archive.verify(decode=True).sound


def test_no_more_of_a_tower_is_decoded_than_can_serve(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive.codecs[0], "reach", len(alike(0)))
    own = np.random.default_rng(7).integers(0, 60_000, LONGEST + 1)
    archive.put([NewSession("long", [own], "acme"), NewSession("turns", [alike(0), own[:-1], own[1:]], "acme")])
    decoded = list[int]()
    decode = type(archive.codecs[0]).decode

    def counted(self: SegmentCodec, batch: Any) -> Any:
        decoded.extend(one.count for one in batch)
        return decode(self, batch)

    monkeypatch.setattr(type(archive.codecs[0]), "decode", counted)
    assert again(archive).cluster().medoids == 1
    assert decoded == [len(alike(0))]
    assert medoids(archive) == {archive.get("turns", "acme").segments[0][0]}


def test_a_new_kind_of_session_gets_a_medoid(archive: TowerArchive) -> None:
    put(archive, *(f"a{n}" for n in range(8)))
    archive.cluster(medoids=1)
    assert medoids(archive) == {leaf(archive, "a0")}
    others = [np.concatenate([unlike(0), [7] * 4, np.arange(n)]) for n in range(40)]
    archive.neighbours = False
    archive.put([NewSession(f"b{n}", [tokens], "acme") for n, tokens in enumerate(others)])
    archive.cluster(medoids=1)
    assert medoids(archive) < {leaf(archive, f"b{n}") for n in range(40)}


def test_medoids_follow_a_tenant_that_drifts(archive: TowerArchive) -> None:
    """Each month brings as many sessions of another template as are forgotten of the last one."""
    archive.neighbours = False

    def of(month: int, number: int) -> Ids:
        return np.concatenate([unlike(month), np.full(30, 60_000 + number)])

    for month in range(4):
        new = [NewSession(f"m{month}-{n}", [of(month, n)], "acme", time=100 * month + n) for n in range(8)]
        archive.put(new)
        if month:
            archive.forget([archive.version(f"m{month - 1}-{n}", "acme") for n in range(8)])
        late = NewSession("late", [of(month, 99)], "acme")
        sizes = []
        for _ in range(2):
            other = again(archive)
            other.neighbours = True
            sizes.append(other.put([late], dry_run=True)[0].size)
            assert archive.cluster(medoids=2).kept == bool(len(sizes) - 1)
        assert sizes[1] < sizes[0] / 3
    assert medoids(archive) & {leaf(archive, f"m3-{n}") for n in range(8)}
    assert archive.verify(decode=True).sound


def test_candidates_of_a_codec_that_is_not_there_are_kept(archive: TowerArchive) -> None:
    put(archive, "a0", "a1", "u0")
    archive.cluster()
    before = medoids(archive)
    archive.put([NewSession(f"n{n}", [np.arange(40) + n], "acme") for n in range(9)])
    blind = TowerArchive.open(archive.store, [], key=RAW if archive.settings.sealed else None)
    assert blind.cluster().kept == 0 and medoids(archive) == before


def test_many_tenants_have_fewer_medoids_each(archive: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.archive.maintenance.cluster.TOTAL", 15)
    for tenant in ("acme", "beta", "gamma"):
        put(archive, *(f"u{n}" for n in range(8)), tenant=tenant)
    assert archive.cluster().medoids == 15


def test_candidates_are_read_where_their_tenant_is_used(archive: TowerArchive) -> None:
    for tenant in ("acme", "beta"):
        put(archive, "a0", "u0", tenant=tenant)
    archive.cluster()
    found = read_candidates(archive.catalog, archive.settings.archive)
    places = [Place(archive.keys.domain(TENANT, t), archive.codecs[0].tokenizer) for t in ("acme", "beta")]
    assert set(found._unread) == set(places) and not found._indexes
    assert found.nearest_to(places[0], hashes_of(alike(5)), 1)
    assert set(found._unread) == {places[1]} and set(found._indexes) == {places[0]}


def test_a_file_of_groups_that_lie_is_refused() -> None:
    owner = bytes(range(16))
    group = CandidateGroup(0, bytes(16), bytes(16), bytes(8), 3, 1 << 40)
    data = pack_candidates(owner, {group: [(b"name", b"box"), (b"other", b"")]})
    [(found, boxes)] = unpack_candidates(data, owner)
    assert found == group and list(boxes.read()) == [(b"name", b"box"), (b"other", b"")]
    with pytest.raises(CorruptError):
        list(unpack_candidates(data, bytes(16)))
    end = len(data) - 16
    for at in range(24, end):
        for value in (0, 1, 255):
            body = data[:at] + bytes([value]) + data[at + 1 : end]
            spoiled = body + digest(b"pltz candidates", body)
            with suppress(CorruptError, VersionError):  # never more than the bytes that are there, and no other error
                for _, some in unpack_candidates(spoiled, owner):
                    assert sum(map(len, (part for pair in some.read() for part in pair))) < len(data)


def test_candidates_of_another_archive_or_damaged_ones_are_left_out(archive: TowerArchive) -> None:
    put(archive, "a0", "u0")
    archive.cluster()
    [digest] = object_names.candidates_among(archive.store.list(object_names.INDEXES))
    name = object_names.candidates(digest)
    data = archive.store.read(name, 0, 1 << 20)
    for spoiled in (data[:-1], data[:40], b"", data[:100] + b"?" + data[101:]):
        archive.store.delete(name)
        archive.store.put(name, spoiled)
        other = again(archive)
        other.neighbours = True
        put(other, "u2")
        assert any(p.kind == "candidates" for p in other.problems)
        assert other.verify().sound


def test_the_sketch_of_an_erased_session_does_not_open(tower_codec: SegmentCodec) -> None:
    archive = TowerArchive.create(DirectoryStore(SimDisk()), [tower_codec], key=RAW)
    put(archive, "a0", "u0")
    archive.cluster()
    archive.erase("acme", "a0")
    found = read_candidates(again(archive).catalog, archive.settings.archive)
    place = Place(archive.keys.domain(TENANT, "acme"), tower_codec.tokenizer)
    assert found.nearest_to(place, hashes_of(unlike(0)), 1)
    assert not found.nearest_to(place, hashes_of(alike(1)), 1)
