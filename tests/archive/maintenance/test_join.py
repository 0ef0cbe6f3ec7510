"""The last turns of a session that grows are joined put by put: few records, few tokens coded anew, nothing changed.

Crashes: test_schedules.py; against the model: test_guarantees.py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pltz
from pltz.archive.catalog.chain import Chains
from pltz.archive.catalog.listing import Listing
from pltz.archive.errors import Erased, NotFound
from pltz.archive.format import object_names
from pltz.archive.format.ids import TENANT, Tokens
from pltz.archive.format.pack import Damage
from pltz.archive.format.record import RUN, segment_only
from pltz.archive.format.run import Run, pack_run, unpack_run
from pltz.archive.maintenance import join
from pltz.archive.maintenance.domain_records import DomainRecords
from pltz.archive.maintenance.erase import Eraser
from pltz.archive.maintenance.join import TurnJoiner
from pltz.archive.writing.new_session import CommitReceipt
from pltz.archive.writing.writer import Publisher
from pltz.coding.codecs.codec import Coded, Plain
from pltz.plt_codec.errors import CorruptError
from tests.archive.kit import RAW, NewSession, Secret, SegmentCodec, SimDisk, TowerArchive, ZlibCodec, create
from tests.archive.peek import peek, records
from tests.archive.sealed import reopen
from tests.watch import memory_below, noted

PROMPT = np.arange(20)
TURNS = [np.concatenate([[1000 + n], np.arange(9)]) for n in range(64)]


@pytest.fixture(params=["plain", "tower", "sealed"])
def empty(request: pytest.FixtureRequest, codec: SegmentCodec, tower_codec: SegmentCodec) -> TowerArchive:
    key = RAW if request.param == "sealed" else None
    return create(SimDisk(), tower_codec if request.param == "tower" else codec, key)


def again(archive: TowerArchive) -> TowerArchive:
    """Open the same archive in another process."""
    return TowerArchive.open(archive.store, archive.codecs, key=RAW if archive.settings.sealed else None)


def grow(
    archive: TowerArchive, name: str, turns: Sequence[np.ndarray], begin: int = 1, tags: dict[str, str] | None = None
) -> list[CommitReceipt]:
    """Put a session turn by turn from its turn ``begin`` on, and return the receipts."""
    found = list[CommitReceipt]()
    for end in range(begin, len(turns) + 1):
        session = NewSession(name, [PROMPT, *turns[:end]], "acme", shared=1, tags=tags or {})
        found += archive.put_and_join([session])
    return found


def sizes(archive: TowerArchive, name: str = "a") -> list[int]:
    """Return the tokens of the records that a session is read from."""
    return [item.record.tokens for item in peek(archive, name, "acme")]


def contents(archive: TowerArchive) -> dict[tuple[str, int], list[int]]:
    return {(v.name, v.version): archive.tower(v).tokens.tolist() for v in archive.ls(history=True)}


def wanted(name: str, turns: Sequence[np.ndarray]) -> dict[tuple[str, int], list[int]]:
    return {(name, n): np.concatenate([PROMPT, *turns[:n]]).tolist() for n in range(1, len(turns) + 1)}


def collected(archive: TowerArchive) -> None:
    archive.collect(dead_share=0.01)
    archive.collect(dead_share=0.01)


def test_a_session_of_many_turns_has_few_records(empty: TowerArchive) -> None:
    turns = TURNS[:32]
    receipts = grow(empty, "a", turns)
    assert [r.version for r in receipts] == [*range(1, 33)] and not empty.problems
    assert len(sizes(empty)) <= 6 and sum(sizes(empty)) == 20 + 320
    for archive in (empty, again(empty)):
        assert contents(archive) == wanted("a", turns) and archive.verify(decode=True).sound
        assert {v.id for v in archive.ls(history=True)} == {r.id for r in receipts}
    collected(empty)
    assert contents(again(empty)) == wanted("a", turns) and again(empty).verify(decode=True).sound


def test_a_version_is_read_by_its_own_record_that_stands_above_a_run_with_both(empty: TowerArchive) -> None:
    """A collector that was killed leaves both records, and either may be taken for the version's."""
    puts = [empty.put([NewSession("a", [PROMPT, *TURNS[:n]], "acme", shared=1)]) for n in range(1, 5)]
    *older, alone = empty.history("a", "acme")
    parts = empty.parts
    assert TurnJoiner(parts.catalog, parts.writer, parts.codecs, parts.indexes, few=0).after(puts[-1]) == 1
    for version in older[1:]:  # the first pack has the prompt
        empty.store.delete(object_names.pack(version.location.pack))
    assert again(empty).tower(alone).tokens.tolist() == wanted("a", TURNS)["a", 4]


def test_a_token_is_coded_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    archive, coded = create(SimDisk()), 0
    encode = ZlibCodec.encode

    def counted(codec: ZlibCodec, batch: Sequence[Plain]) -> list[bytes]:
        nonlocal coded
        coded += sum(len(plain.tokens) for plain in batch)
        return encode(codec, batch)

    monkeypatch.setattr(ZlibCodec, "encode", counted)
    grow(archive, "a", TURNS)
    assert 640 < coded <= 5 * 640


def test_a_record_of_a_block_is_left_as_it_is(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "ENOUGH", 100)
    grow(archive := create(disk), "a", TURNS)
    assert max(sizes(archive)) < 300 and len(sizes(archive)) <= 12 and contents(again(archive)) == wanted("a", TURNS)


def test_segments_of_another_session_are_not_joined(empty: TowerArchive) -> None:
    grow(empty, "a", TURNS[:3])
    forked = [*TURNS[:3], *(turn + 1 for turn in TURNS[:9])]
    grow(empty, "b", forked, begin=4)
    joined = {item.record.id for item in peek(empty, "b", "acme") if item.record.mode & RUN}
    assert joined and sizes(empty, "b")[:4] == [20, 10, 10, 10]  # those of a stand as they were
    assert empty.get("b", "acme").tokens.tolist() == np.concatenate([PROMPT, *forked]).tolist()


def test_a_fork_from_within_a_run_is_read_whatever_is_joined_later(empty: TowerArchive) -> None:
    grow(empty, "a", TURNS[:6])
    collected(empty)
    archive = again(empty)
    archive.before(archive.version("a", "acme"))
    fork = [*TURNS[:3], TURNS[9] + 1]
    archive.put_and_join([NewSession("b", [PROMPT, *fork], "acme", shared=1)])
    grow(archive, "a", TURNS[:20], begin=7)
    collected(archive)
    last = again(archive)
    assert contents(last) == wanted("a", TURNS[:20]) | {("b", 1): np.concatenate([PROMPT, *fork]).tolist()}
    last.forget(last.history("a", "acme"))
    last.store.disk.clock += 1 << 20  # type: ignore[attr-defined]
    collected(last)
    assert again(last).get("b", "acme").tokens.tolist() == np.concatenate([PROMPT, *fork]).tolist()


def test_turns_are_joined_where_old_versions_are_forgotten(empty: TowerArchive) -> None:
    for end in range(1, 17):
        grow(empty, "a", TURNS[:end], begin=end)
        if forgotten := empty.history("a", "acme")[:-5]:
            empty.forget(forgotten)
        collected(empty)
    assert len(sizes(empty)) <= 6
    assert empty.get("a", "acme").tokens.tolist() == np.concatenate([PROMPT, *TURNS[:16]]).tolist()


def test_versions_of_other_tags_stay_as_they_were(empty: TowerArchive) -> None:
    grow(empty, "a", TURNS[:5], tags={"n": "1"})
    grow(empty, "a", TURNS[:12], begin=6)
    for _ in range(3):
        collected(empty)
    found = again(empty)
    assert contents(found) == wanted("a", TURNS[:12]) and found.verify(decode=True).sound
    assert [v.tags for v in found.history("a", "acme")] == [{"n": "1"}] * 5 + [{}] * 7
    assert sizes(found) == [20, 40, 10, 70]


def test_an_erased_session_does_not_open(disk: SimDisk) -> None:
    archive = create(disk, key=RAW)
    grow(archive, "a", TURNS[:12])
    grow(archive, "b", [turn + 1 for turn in TURNS[:6]])
    archive.erase("acme", "a")
    with pytest.raises(NotFound):
        again(archive).get("a", "acme")
    live = {name for v in archive.ls(history=True) for name, _ in archive.tower(v).segments}
    erased = 0
    for pack in archive.catalog.listing.packs:
        for item in archive.catalog.listing.scan(pack):
            assert not isinstance(item, Damage)
            context, name = item.context, item.record.id
            if name and context.domain_kind == TENANT and name not in live:
                erased += 1
                with pytest.raises(Erased):
                    archive.keys.bits(context, item.record)
    assert erased >= 12 and again(archive).get("b", "acme").tokens.tolist() == contents(archive)["b", 6]
    assert again(archive).verify(decode=True).sound


def test_turns_of_a_session_that_is_being_erased_are_not_joined(disk: SimDisk) -> None:
    """The run would be under the new keys, which the erase does not destroy."""
    archive = create(disk, key=RAW)
    for end in range(1, 6):
        receipts = archive.put([NewSession("a", [PROMPT, *TURNS[:end]], "acme", shared=1)])
    parts = archive.parts
    eraser = Eraser(parts.catalog)
    with parts.catalog.listing.showing_unnamed():
        known = eraser._known(TENANT, "acme")
        records = DomainRecords(parts.catalog, known.domain)
        towers = eraser._towers(records, "a")
        eraser._doom(known, records, "a", set[bytes]().union(*towers))
    parts.catalog.refresh()
    joiner = TurnJoiner(parts.catalog, parts.writer, parts.codecs, parts.indexes, few=0)
    assert joiner._due(receipts[0]) and joiner.after(receipts) == 0 and not archive.problems


@pytest.mark.parametrize(("few", "merge_turns", "records"), [(16, True, 2), (16, False, 5), (None, True, 5)])
def test_an_archive_joins_turns_where_it_may_and_there_are_enough_tokens(
    tmp_path: Path, few: int | None, merge_turns: bool, records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if few is not None:
        monkeypatch.setattr(join, "FEW", few)
    ids = np.arange(20)
    cold = pltz.Archive.open(tmp_path, create=True, merge_turns=merge_turns, model_ids=True)
    for end in range(4, 21, 4):
        cold.put("a", ids[:end])
    assert len(peek(cold, "a")) == records and cold.get("a").ids.tolist() == ids.tolist()


@pytest.mark.parametrize("error", [RuntimeError("no room on the device"), MemoryError(), OSError("no")])
def test_a_put_is_acknowledged_whatever_joining_raises(
    empty: TowerArchive, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    grow(empty, "a", TURNS[:3])
    with monkeypatch.context() as patch:
        patch.setattr(join, "encoded", fail)
        [receipt] = grow(empty, "a", TURNS[:4], begin=4)
    assert receipt.version == 4 and [p.kind for p in empty.problems] == ["join"]
    grow(empty, "a", TURNS[:5], begin=5)
    assert sizes(empty) == [20, 50] and contents(again(empty)) == wanted("a", TURNS[:5])


def test_a_put_joins_so_many_tokens_at_most(empty: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    """All turns that were put without joining were joined by the next put, which took as long as all of them."""
    monkeypatch.setattr(join, "MOST", 100)
    for end in range(1, 41):
        empty.put([NewSession("a", [PROMPT, *TURNS[:end]], "acme", shared=1)])
    grow(empty, "a", TURNS[:41], begin=41)
    assert sizes(empty) == [20] + [10] * 31 + [100] and contents(again(empty)) == wanted("a", TURNS[:41])


def test_memory_of_a_join_does_not_grow_with_the_versions() -> None:
    """Each version of a run took the tokens of its whole session."""
    archive, prompt = create(SimDisk()), np.arange(1 << 18)
    for end in range(1, 40):
        archive.put([NewSession("a", [prompt, *TURNS[:end]], shared=1)])
    with memory_below(16 * prompt.nbytes):
        archive.put_and_join([NewSession("a", [prompt, *TURNS[:40]], shared=1)])
    assert [item.record.tokens for item in peek(archive, "a")] == [1 << 18, 400]


def readable(archive: TowerArchive) -> set[int]:
    """Return all tokens that any record of the tenant tells whoever has the keys of now."""
    found, chains = set[int](), Chains(archive.catalog, archive.parts.codecs)
    for pack in archive.catalog.listing.packs:
        for item in archive.catalog.listing.scan(pack):
            assert not isinstance(item, Damage)
            context, name = item.context, item.record.id
            if name and not archive.keys.gone(context, name):
                archive.keys.bits(context, item.record)
                found.update(*(tokens.tolist() for _, tokens in chains.tower(name)))
    return found


@pytest.mark.parametrize("how", ["joined", "joined with tags", "joined late"])
def test_turns_behind_a_fork_within_a_run_are_erased(disk: SimDisk, how: str) -> None:
    """The turns that the fork has are written again for it, each in a record of its own."""
    archive = create(disk, key=RAW)
    fork = [NewSession("b", [PROMPT, *TURNS[:5], TURNS[30]], "acme", shared=1)]
    if how == "joined late":
        for end in range(1, 13):
            archive.put([NewSession("a", [PROMPT, *TURNS[:end]], "acme", shared=1)])
        assert archive.join() == 1
    elif how == "joined":
        grow(archive, "a", TURNS[:12])
    else:
        grow(archive, "a", TURNS[:3])
        grow(archive, "a", TURNS[:5], begin=4, tags={"n": "1"})
        archive.put(fork)
        grow(archive, "a", TURNS[:12], begin=6)
    collected(archive)
    if how != "joined with tags":  # by a process that has read the session
        heard = archive.parts.writer.proved.heard
        Chains(archive.catalog, archive.parts.codecs, heard=heard).tower(archive.version("a", "acme").leaf)
        [receipt] = archive.put(fork)
        assert receipt.new == 6
    assert not any(item.record.mode & RUN for item in peek(archive, "b", "acme")) or how == "joined with tags"
    secret = {int(turn[0]) for turn in TURNS[5:12]}
    assert secret <= readable(archive)
    wanted_of_b = np.concatenate([PROMPT, *TURNS[:5], TURNS[30]]).tolist()
    archive.erase("acme", "a")
    for _ in range(3):
        last = again(archive)
        assert contents(last) == {("b", 1): wanted_of_b} and last.verify(decode=True).sound
        assert not secret & readable(last)
        last.collect(dead_share=0.01)


# ---- Runs of stored sessions: ids, versions, sharing, erasure and later puts stay as they are when turns are joined


LONG_TURNS = [np.concatenate([[1000 + n], np.arange(40)]) for n in range(6)]


def grow_by_versions(archive: TowerArchive, name: str = "a", turns: int = 6) -> None:
    """Put a session turn by turn, each with a version of its own."""
    for n in range(1, turns + 1):
        archive.put([NewSession(name, [PROMPT, *LONG_TURNS[:n]] if name == "a" else other(n), "acme", shared=1)])


def other(turns: int) -> list[np.ndarray[Any, Any]]:
    """Return the segments of a session that shares its prompt alone."""
    return [PROMPT, *(turn + 1 for turn in LONG_TURNS[:turns])]


def segments_of(archive: TowerArchive) -> dict[tuple[str, str, int], list[tuple[bytes, list[int]]]]:
    """Return the segments of all versions."""
    return {
        (v.tenant, v.name, v.version): [(name, tokens.tolist()) for name, tokens in archive.tower(v).segments]
        for v in archive.ls(history=True)
    }


def kinds(archive: TowerArchive, name: str = "a") -> list[int]:
    """Return the mode of the preferred record of each version's leaf."""
    return [mode & RUN for mode in [archive.places(v.leaf)[0].record.mode for v in archive.history(name, "acme")]]


def size(archive: TowerArchive) -> int:
    return sum(archive.store.list(object_names.PACKS).values()) + sum(archive.store.list(object_names.PARITY).values())


@pytest.mark.parametrize("key", [None, RAW])
def test_a_collector_that_joins_frees_bytes(disk: SimDisk, key: Secret | None, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = create(disk, key=key)
    grow_by_versions(empty)
    before, twin = segments_of(empty), reopen(SimDisk(disk.seen), key=key)
    monkeypatch.setattr(twin, "joiner", lambda: None)
    for archive in twin, empty:
        collected(archive)
    assert size(empty) < size(twin) and segments_of(again(empty)) == before and empty.verify(decode=True).sound
    found = [i for v in empty.history("a", "acme") for i in empty.places(v.leaf)]
    assert len(found) == 6 and all(i.record.mode & RUN for i in found)  # the old records are gone


def test_what_is_joined_is_not_joined_again(empty: TowerArchive) -> None:
    grow_by_versions(empty)
    assert empty.join() == 1
    files = empty.store.list(object_names.PACKS)
    assert empty.join() == 0
    collected(empty)
    files = empty.store.list(object_names.PACKS)
    assert again(empty).join() == 0 and empty.store.list(object_names.PACKS) == files


def test_versions_of_a_run_are_forgotten_and_undeleted_one_by_one(empty: TowerArchive) -> None:
    grow_by_versions(empty)
    empty.join()
    collected(empty)
    before, archive = segments_of(empty), again(empty)
    history = archive.history("a", "acme")
    assert archive.forget([history[1], history[5]]) == 2  # an older one, and that in the fields of the record
    for _ in range(3):
        archive.put([NewSession("b", [PROMPT, LONG_TURNS[0]], "acme", shared=1)])
        archive.collect(dead_share=0.01, small=1 << 20)  # copies the run, and the marks with it
    archive = again(archive)
    left = {(v.name, v.version) for v in archive.ls(history=True) if v.name == "a"}
    assert left == {("a", n) for n in (1, 3, 4, 5)} and archive.verify(decode=True).sound
    assert archive.get("a", "acme").tokens.tolist() == np.concatenate([PROMPT, *LONG_TURNS[:5]]).tolist()
    assert archive.undelete(history[1:2]) == 1 and archive.undelete(history[5:]) == 1
    collected(archive)
    assert {k: v for k, v in segments_of(again(archive)).items() if k[1] == "a"} == before


def test_a_sealed_run_with_other_versions_does_not_open(disk: SimDisk) -> None:
    archive = create(disk, key=RAW)
    grow_by_versions(archive)
    archive.join()
    item = archive.catalog.lookup.at(archive.version("a", "acme").location)
    run = unpack_run(item.record)
    first = run.versions[0]._replace(time=run.versions[0].time + 1)
    crafted = pack_run(run._replace(versions=[first, *run.versions[1:]]), item.record.moment, item.record.time)
    assert archive.keys.bits(item.context, item.record)
    with pytest.raises(CorruptError):
        archive.keys.bits(item.context, item.record._replace(bitstring=crafted))


def test_an_undelete_copies_the_run_of_a_version_whose_last_segment_has_another_record(
    empty: TowerArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walks found it: the run was condemned, and the segment's own record was not, which has no version."""
    grow_by_versions(empty)
    plain = empty.catalog.lookup.at(empty.version("a", "acme").location)
    empty.join()
    collected(empty)
    [*_, last] = empty.history("a", "acme")
    empty.parts.writer.publisher.put([(plain.context, segment_only(plain.record))])
    empty.forget([last])
    condemned = frozenset([last.location.pack])
    monkeypatch.setattr(Listing, "condemned", property(lambda _: condemned, lambda *_: None), raising=False)
    rows = noted(monkeypatch, Publisher, "put", lambda _, given: given, flat=True)
    empty.undelete([last])
    assert RUN in [record.mode & RUN for context, record in rows if not record.mark]


def test_a_damaged_run_falls_back_on_the_records_that_it_replaces(empty: TowerArchive) -> None:
    grow_by_versions(empty)
    before, packs = segments_of(empty), set(empty.catalog.listing.packs)
    empty.join()
    [joined] = set(empty.catalog.listing.packs) - packs
    empty.store.delete(object_names.pack(joined))
    empty.store.delete(object_names.parity(joined))
    archive = again(empty)
    towers = [Chains(archive.catalog, archive.codecs).tower(v.leaf) for v in archive.history("a", "acme")]
    assert [[name for name, _ in tower] for tower in towers] == [[n for n, _ in row] for row in before.values()]


def test_a_run_larger_than_what_it_replaces_is_left_out(empty: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    grow_by_versions(empty)

    def large(run: Run, number: int, time: int) -> bytes:
        return pack_run(run, number, time) + bytes(10_000)

    monkeypatch.setattr("pltz.archive.maintenance.join.pack_run", large)
    assert empty.join() == 0 and kinds(empty) == [0] * 6


def test_one_record_of_the_run_is_decoded_for_all_versions(empty: TowerArchive) -> None:
    grow_by_versions(empty)
    empty.join()
    asked: list[int] = []
    codec = empty.codecs[0]

    class Counting(type(codec)):  # type: ignore[misc]
        def decode(self, batch):  # type: ignore[no-untyped-def]
            asked.append(len(batch))
            return super().decode(batch)

    codec.__class__ = Counting
    leaves = [v.leaf for v in empty.history("a", "acme")]
    Chains(empty.catalog, empty.codecs).load(leaves)
    assert sum(asked) == 2  # the prompt and the run
    assert records(empty, leaves[0])


def test_a_collector_without_the_key_keeps_all_versions_of_a_run(disk: SimDisk) -> None:
    archive = create(disk, key=RAW)
    grow_by_versions(archive)
    archive.join()
    before, history = segments_of(archive), archive.history("a", "acme")
    archive.forget([history[2], history[5]])
    locked = reopen(disk, key=None)
    for _ in range(3):
        locked.collect(dead_share=0.01)
    archive = reopen(disk)
    assert [v.version for v in archive.ls(history=True)] == [1, 2, 4, 5] and archive.verify(decode=True).sound
    archive.undelete([history[2], history[5]])
    assert segments_of(archive) == before


class Padded(ZlibCodec):
    """A codec that adds bytes to what is longer than a turn, as the lanes of a longer frame do."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def _encode(self, plain: Plain) -> bytes:
        count = len(plain.tokens)
        return np.asarray(plain.tokens, "u1").tobytes() + bytes(self.extra * (count > 20))

    def _decode(self, coded: Coded) -> Tokens:
        return np.frombuffer(coded.data[: coded.count], "u1").astype(np.int64)


@pytest.mark.parametrize("extra", [0, 40, 70, 110, 120])
def test_packs_are_never_larger_after_a_join(extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Join 12 sessions of 8 turns, at most 20 ids each, whose runs take ever more bytes than their turns."""
    sizes = []
    for joins in (False, True):
        archive = create(SimDisk(seed=1), Padded(extra))
        dice = np.random.default_rng(1)
        rows = [[dice.integers(0, 256, 20) for _ in range(8)] for _ in range(12)]
        for turns in range(1, 9):
            archive.put([NewSession(f"chat-{n}", row[:turns], "acme") for n, row in enumerate(rows)])
        joined = archive.join() if joins else 0
        monkeypatch.setattr(archive, "joiner", lambda: None)
        collected(archive)
        sizes.append((sum(archive.store.list(object_names.PACKS).values()), joined))
    (before, _), (after, joined) = sizes
    assert after < before if joined else after == before
    assert joined == (12 if extra < 80 else 0)
