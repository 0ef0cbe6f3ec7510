"""Runs of stored sessions: ids, versions, sharing, erasure and later puts stay as they are when turns are joined.

Crashes: test_schedules.py; against the model: test_machine.py.
"""

from typing import Any

import numpy as np
import pytest

from pltz.archive.catalog.chain import Chains
from pltz.archive.catalog.listing import Listing
from pltz.archive.encryption.keys import Secret
from pltz.archive.format import object_names
from pltz.archive.format.ids import Tokens
from pltz.archive.format.record import RUN, segment_only
from pltz.archive.format.run import Run, pack_run, unpack_run
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.archive.writing.writer import Publisher
from pltz.coding.codecs.codec import Coded, Plain, SegmentCodec
from pltz.plt_codec.errors import CorruptError
from tests.archive.conftest import ZlibCodec
from tests.archive.peek import records
from tests.archive.sealed import RAW, reopen
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive, copy

PROMPT = np.arange(20)
TURNS = [np.concatenate([[1000 + n], np.arange(40)]) for n in range(6)]


def grow(archive: TowerArchive, name: str = "a", turns: int = 6) -> None:
    """Put a session turn by turn, each with a version of its own."""
    for n in range(1, turns + 1):
        archive.put([NewSession(name, [PROMPT, *TURNS[:n]] if name == "a" else other(n), "acme", shared=1)])


def other(turns: int) -> list[np.ndarray[Any, Any]]:
    """Return the segments of a session that shares its prompt alone."""
    return [PROMPT, *(turn + 1 for turn in TURNS[:turns])]


def contents(archive: TowerArchive) -> dict[tuple[str, str, int], list[tuple[bytes, list[int]]]]:
    """Return the segments of all versions."""
    return {
        (v.tenant, v.name, v.version): [(name, tokens.tolist()) for name, tokens in archive.tower(v).segments]
        for v in archive.ls(history=True)
    }


def kinds(archive: TowerArchive, name: str = "a") -> list[int]:
    """Return the mode of the preferred record of each version's leaf."""
    found = [archive.places(v.leaf)[0].record.mode for v in archive.history(name, "acme")]
    return [mode & RUN for mode in found]


def size(archive: TowerArchive) -> int:
    return sum(archive.store.list(object_names.PACKS).values()) + sum(archive.store.list(object_names.PARITY).values())


def collected(archive: TowerArchive) -> None:
    archive.collect(dead_share=0.01)
    archive.collect(dead_share=0.01)


@pytest.fixture(params=["plain", "tower", "sealed"])
def empty(request: pytest.FixtureRequest, codec: SegmentCodec, tower_codec: SegmentCodec) -> TowerArchive:
    """Make an empty archive: plain, with segments coded after their tower, and sealed."""
    key = RAW if request.param == "sealed" else None
    return TowerArchive.create(DirectoryStore(SimDisk()), [tower_codec if request.param == "tower" else codec], key=key)


def again(archive: TowerArchive) -> TowerArchive:
    """Open the same archive in another process."""
    return TowerArchive.open(archive.store, archive.codecs, key=RAW if archive.settings.sealed else None)


@pytest.mark.parametrize("key", [None, RAW])
def test_a_collector_that_joins_frees_bytes(
    disk: SimDisk, codec: SegmentCodec, key: Secret | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = TowerArchive.create(DirectoryStore(disk), [codec], key=key)
    grow(empty)
    before = contents(empty)
    twin = reopen(SimDisk(disk.seen), codec, key)
    monkeypatch.setattr(twin, "joiner", lambda: None)
    for archive in twin, empty:
        collected(archive)
    assert size(empty) < size(twin)
    assert contents(again(empty)) == before and empty.verify(decode=True).sound
    found = [i for v in empty.history("a", "acme") for i in empty.places(v.leaf)]
    assert len(found) == 6 and all(i.record.mode & RUN for i in found)  # the old records are gone


def test_what_is_joined_is_not_joined_again(empty: TowerArchive) -> None:
    grow(empty)
    assert empty.join() == 1
    files = empty.store.list(object_names.PACKS)
    assert empty.join() == 0
    collected(empty)
    files = empty.store.list(object_names.PACKS)
    assert again(empty).join() == 0 and empty.store.list(object_names.PACKS) == files


def test_versions_within_a_run_of_other_tags_stay_when_it_is_joined(
    empty: TowerArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them was put a second time, as long as the run."""
    monkeypatch.setattr("pltz.archive.maintenance.join._size", lambda record: 1)  # so that joining pays
    monkeypatch.setattr("pltz.archive.maintenance.join._packed", len)
    for n in range(1, 7):
        empty.put([NewSession("a", [PROMPT, *TURNS[:n]], "acme", shared=1, tags={"n": "1"} if n < 4 else {})])
        if n == 3:
            assert empty.join() == 1
    before, versions = contents(empty), {v.id for v in empty.ls(history=True)}
    assert empty.join() == 1
    for _ in range(2):
        archive = again(empty)
        assert contents(archive) == before and {v.id for v in archive.ls(history=True)} == versions
        assert archive.verify(decode=True).sound
        collected(empty)


def test_versions_of_a_run_are_forgotten_and_undeleted_one_by_one(empty: TowerArchive) -> None:
    grow(empty)
    empty.join()
    collected(empty)
    before, archive = contents(empty), again(empty)
    history = archive.history("a", "acme")
    assert archive.forget([history[1], history[5]]) == 2  # an older one, and that in the fields of the record
    for _ in range(3):
        archive.put([NewSession("b", [PROMPT, TURNS[0]], "acme", shared=1)])
        archive.collect(dead_share=0.01, small=1 << 20)  # copies the run, and the marks with it
    archive = again(archive)
    left = {(v.name, v.version) for v in archive.ls(history=True) if v.name == "a"}
    assert left == {("a", n) for n in (1, 3, 4, 5)} and archive.verify(decode=True).sound
    assert archive.get("a", "acme").tokens.tolist() == np.concatenate([PROMPT, *TURNS[:5]]).tolist()
    assert archive.undelete(history[1:2]) == 1 and archive.undelete(history[5:]) == 1
    collected(archive)
    assert {k: v for k, v in contents(again(archive)).items() if k[1] == "a"} == before


def test_a_copy_of_a_joined_session_has_each_version_once(empty: TowerArchive, codec: SegmentCodec) -> None:
    grow(empty)
    twin = TowerArchive.create(DirectoryStore(SimDisk()), empty.codecs)
    list(copy(empty, list(empty.ls(history=True)), twin))
    empty.join()
    list(copy(empty, list(empty.ls(history=True)), twin))
    assert len(twin.history("a", "acme")) == 6
    texts = [[token for _, tokens in segments for token in tokens] for segments in contents(empty).values()]
    assert [t.tokens.tolist() for t in twin.towers(twin.history("a", "acme"))] == texts


def test_a_sealed_run_with_other_versions_does_not_open(disk: SimDisk, codec: SegmentCodec) -> None:
    archive = TowerArchive.create(DirectoryStore(disk), [codec], key=RAW)
    grow(archive)
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
    grow(empty)
    plain = empty.catalog.lookup.at(empty.version("a", "acme").location)
    empty.join()
    collected(empty)
    [*_, last] = empty.history("a", "acme")
    empty.parts.writer.copy([(plain.context, segment_only(plain.record))])
    empty.forget([last])
    condemned = frozenset([last.location.pack])
    monkeypatch.setattr(Listing, "condemned", property(lambda _: condemned, lambda *_: None), raising=False)
    put, rows = Publisher.put, list[Any]()

    def noted(self: Publisher, given: Any, *args: Any, **options: Any) -> None:
        rows.extend(given)
        put(self, given, *args, **options)

    monkeypatch.setattr(Publisher, "put", noted)
    empty.undelete([last])
    assert RUN in [record.mode & RUN for context, record in rows if not record.mark]


def test_a_damaged_run_falls_back_on_the_records_that_it_replaces(empty: TowerArchive) -> None:
    grow(empty)
    before = contents(empty)
    packs = set(empty.catalog.listing.packs)
    empty.join()
    [joined] = set(empty.catalog.listing.packs) - packs
    empty.store.delete(object_names.pack(joined))
    empty.store.delete(object_names.parity(joined))
    archive = again(empty)
    towers = [Chains(archive.catalog, archive.codecs).tower(v.leaf) for v in archive.history("a", "acme")]
    assert [[name for name, _ in tower] for tower in towers] == [[n for n, _ in row] for row in before.values()]


def test_a_run_larger_than_what_it_replaces_is_left_out(empty: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(empty)

    def large(run: Run, number: int, time: int) -> bytes:
        return pack_run(run, number, time) + bytes(10_000)

    monkeypatch.setattr("pltz.archive.maintenance.join.pack_run", large)
    assert empty.join() == 0 and kinds(empty) == [0] * 6


def test_one_record_of_the_run_is_decoded_for_all_versions(empty: TowerArchive) -> None:
    grow(empty)
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


def test_a_collector_without_the_key_keeps_all_versions_of_a_run(disk: SimDisk, codec: SegmentCodec) -> None:
    archive = TowerArchive.create(DirectoryStore(disk), [codec], key=RAW)
    grow(archive)
    archive.join()
    before, history = contents(archive), archive.history("a", "acme")
    archive.forget([history[2], history[5]])
    locked = TowerArchive.open(DirectoryStore(disk), [codec])
    for _ in range(3):
        locked.collect(dead_share=0.01)
    archive = reopen(disk, codec)
    assert [v.version for v in archive.ls(history=True)] == [1, 2, 4, 5] and archive.verify(decode=True).sound
    archive.undelete([history[2], history[5]])
    assert contents(archive) == before


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


@pytest.mark.parametrize("extra", [0, 40, 70, 80, 84, 90, 100, 110, 120])
def test_packs_are_never_larger_after_a_join(extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Join 12 sessions of 8 turns, at most 20 ids each, whose runs take ever more bytes than their turns."""
    sizes = []
    for joins in (False, True):
        archive = TowerArchive.create(DirectoryStore(SimDisk(seed=1)), [Padded(extra)])
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
    assert joined == (12 if extra < 80 else 0) or extra == 80
