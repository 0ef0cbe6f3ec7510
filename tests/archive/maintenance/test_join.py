"""The last turns of a session that grows are joined put by put: few records, few tokens coded anew, nothing changed.

Crashes: test_schedules.py; against the model: test_machine.py.
"""

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import pltz
from pltz.archive.catalog.chain import Chains
from pltz.archive.errors import Erased, NotFound
from pltz.archive.format import object_names
from pltz.archive.format.ids import TENANT
from pltz.archive.format.pack import Damage
from pltz.archive.format.record import RUN
from pltz.archive.maintenance import join
from pltz.archive.maintenance.domain_records import DomainRecords
from pltz.archive.maintenance.erase import Eraser
from pltz.archive.maintenance.join import TurnJoiner
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import CommitReceipt, NewSession
from pltz.coding.codecs.codec import Plain, SegmentCodec
from tests.archive.conftest import ZlibCodec
from tests.archive.peek import peek
from tests.archive.sealed import RAW
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive

PROMPT = np.arange(20)
TURNS = [np.concatenate([[1000 + n], np.arange(9)]) for n in range(64)]


@pytest.fixture(params=["plain", "tower", "sealed"])
def empty(request: pytest.FixtureRequest, codec: SegmentCodec, tower_codec: SegmentCodec) -> TowerArchive:
    key = RAW if request.param == "sealed" else None
    codecs = [tower_codec if request.param == "tower" else codec]
    return TowerArchive.create(DirectoryStore(SimDisk()), codecs, key=key)


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
    receipts = grow(empty, "a", TURNS)
    assert [r.version for r in receipts] == [*range(1, 65)] and not empty.problems
    assert len(sizes(empty)) <= 7 and sum(sizes(empty)) == 20 + 640
    for archive in (empty, again(empty)):
        assert contents(archive) == wanted("a", TURNS) and archive.verify(decode=True).sound
        assert {v.id for v in archive.ls(history=True)} == {r.id for r in receipts}
    collected(empty)
    assert contents(again(empty)) == wanted("a", TURNS) and again(empty).verify(decode=True).sound


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
    archive = TowerArchive.create(DirectoryStore(SimDisk()), [ZlibCodec()])
    coded = 0
    encode = ZlibCodec.encode

    def counted(codec: ZlibCodec, batch: Sequence[Plain]) -> list[bytes]:
        nonlocal coded
        coded += sum(len(plain.tokens) for plain in batch)
        return encode(codec, batch)

    monkeypatch.setattr(ZlibCodec, "encode", counted)
    grow(archive, "a", TURNS)
    assert 640 < coded <= 5 * 640


def test_a_record_of_a_block_is_left_as_it_is(empty: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "ENOUGH", 100)
    grow(empty, "a", TURNS)
    assert max(sizes(empty)) < 300 and len(sizes(empty)) <= 12
    assert contents(again(empty)) == wanted("a", TURNS)


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
    for end in range(1, 33):
        grow(empty, "a", TURNS[:end], begin=end)
        if forgotten := empty.history("a", "acme")[:-5]:
            empty.forget(forgotten)
        collected(empty)
    assert len(sizes(empty)) <= 7
    assert empty.get("a", "acme").tokens.tolist() == np.concatenate([PROMPT, *TURNS[:32]]).tolist()


def test_versions_of_other_tags_stay_as_they_were(empty: TowerArchive) -> None:
    grow(empty, "a", TURNS[:5], tags={"n": "1"})
    grow(empty, "a", TURNS[:12], begin=6)
    for _ in range(3):
        collected(empty)
    found = again(empty)
    assert contents(found) == wanted("a", TURNS[:12]) and found.verify(decode=True).sound
    assert [v.tags for v in found.history("a", "acme")] == [{"n": "1"}] * 5 + [{}] * 7
    assert sizes(found) == [20, 40, 10, 70]


def test_an_erased_session_does_not_open(disk: SimDisk, codec: SegmentCodec) -> None:
    archive = TowerArchive.create(DirectoryStore(disk), [codec], key=RAW)
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
    assert erased >= 12
    assert again(archive).get("b", "acme").tokens.tolist() == contents(archive)["b", 6]
    assert again(archive).verify(decode=True).sound


def test_turns_of_a_session_that_is_being_erased_are_not_joined(disk: SimDisk, codec: SegmentCodec) -> None:
    """The run would be under the new keys, which the erase does not destroy."""
    archive = TowerArchive.create(DirectoryStore(disk), [codec], key=RAW)
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
    assert len(peek(cold, "a")) == records
    assert cold.get("a").ids.tolist() == ids.tolist()


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
    archive = TowerArchive.create(DirectoryStore(SimDisk()), [ZlibCodec()])
    prompt = np.arange(1 << 18)
    for end in range(1, 40):
        archive.put([NewSession("a", [prompt, *TURNS[:end]], shared=1)])
    tracemalloc.start()
    archive.put_and_join([NewSession("a", [prompt, *TURNS[:40]], shared=1)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [item.record.tokens for item in peek(archive, "a")] == [1 << 18, 400]
    assert peak < 16 * prompt.nbytes


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
def test_turns_behind_a_fork_within_a_run_are_erased(codec: SegmentCodec, disk: SimDisk, how: str) -> None:
    """The turns that the fork has are written again for it, each in a record of its own."""
    archive = TowerArchive.create(DirectoryStore(disk), [codec], key=RAW)
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
