"""A state machine: several open archives on one disk, with faults and crashes, against a model of dictionaries."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pltz.archive.errors import ArchiveError, NotFound, StoreError, WriterFailed
from pltz.archive.storage.s3 import ObjectStore, RangedObject
from pltz.archive.storage.store import Store
from pltz.archive.writing.new_session import CommitReceipt
from pltz.coding.codecs.codec import BytesCodec
from pltz.plt_codec.container.frame import TOWER
from tests.archive.kit import DirectoryStore, NewSession, SegmentCodec, SimDisk, TowerArchive, ZlibCodec
from tests.examples import examples
from tests.watch import noted

if TYPE_CHECKING:
    from tests.archive.conftest import S3Server

HANDLES = 3
NAMES = st.sampled_from(["a", "b", "c"])
PARTS = st.sampled_from(["", "a", "b/c"])
ALIKE = np.random.default_rng(5).integers(0, 60_000, 80)
TURNS = st.lists(st.lists(st.integers(0, 255), max_size=4), min_size=1, max_size=3)


@pytest.fixture(autouse=True, scope="module")
def any_gain() -> Iterator[None]:
    """Join whatever it costs. Machines may overlap, so none of them can put it back."""
    with mock.patch("pltz.archive.maintenance.join.LEAST", 2):
        yield


class Parts:
    """A model of one session with parts: the tokens of each by its moment, and which of them are forgotten."""

    NAME = "p"

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], tuple[int, ...]] = {}
        self.forgotten: set[tuple[int, str]] = set()

    def state(self, moment: int) -> dict[str, tuple[int, str]]:
        """Return the newest row of each part up to a moment that is not forgotten."""
        return {part: (at, part) for at, part in sorted(self.rows.keys() - self.forgotten) if at <= moment}

    @property
    def staying(self) -> set[int]:
        """Return the moments of the versions of which nothing is forgotten."""
        return {at for at, _ in self.rows} - {at for at, _ in self.forgotten}

    def learn(self, receipt: CommitReceipt, tokens: tuple[int, ...]) -> None:
        last = self.state(receipt.moment).get(receipt.part)
        assert receipt.unchanged == (last is not None and self.rows[last] == tokens and last[0] == receipt.moment)
        self.rows[receipt.moment, receipt.part] = tokens

    def forget(self, moment: int) -> None:
        needed = {row for at in self.staying - {moment} for row in self.state(at).values()}
        gone = self.rows.keys() - self.forgotten - needed
        self.forgotten |= {row for row in gone if row[0] == moment or row[0] not in self.staying}

    def freed(self, archive: TowerArchive) -> None:
        """Drop what a collector may have freed: the rest of its version is a version of its own."""
        there = {(v.moment, v.part) for v in archive.history(self.NAME, "x")}
        assert self.rows.keys() - self.forgotten <= there
        for row in self.forgotten - there:
            del self.rows[row]
        self.forgotten &= there

    def check(self, archive: TowerArchive) -> None:
        """Check that each version of which nothing is forgotten has its parts."""
        if not self.rows:
            return
        whole = {v.moment: v for v in archive.ls("x", history=True) if v.name == self.NAME}
        for moment in self.staying:
            found = {v.part: tuple(archive.tower(v).tokens.tolist()) for v in whole[moment].each}
            assert found == {part: self.rows[row] for part, row in self.state(moment).items()}


class ArchiveMachine(RuleBasedStateMachine):
    """A model (tenant, name) -> tokens of versions by their ids. Forgotten versions may vanish when collected."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.codec: SegmentCodec = BytesCodec()
        self.model: dict[tuple[str, str], dict[bytes, tuple[int, ...]]] = {}
        self.forgotten: set[tuple[str, str, bytes]] = set()
        self.parts = Parts()
        self.handles: list[TowerArchive] = []

    @initialize()
    def start(self) -> None:
        TowerArchive.create(self.store(), [self.codec])
        self.handles = [self.open() for _ in range(HANDLES)]

    def store(self) -> Store:
        return DirectoryStore(self.disk)

    def open(self) -> TowerArchive:
        return TowerArchive.open(self.store(), [self.codec])

    def session(self, tenant: str, name: str, turns: list[list[int]]) -> NewSession:
        return NewSession(name, [np.arange(30), *(np.array(t, np.int64) for t in turns)], tenant, shared=1)

    def learn(self, session: NewSession, identity: bytes) -> None:
        tokens = tuple(np.concatenate(list(session.segments)).astype(int).tolist())
        self.model.setdefault((session.tenant, session.name), {})[identity] = tokens
        self.forgotten.discard((session.tenant, session.name, identity))

    @rule(handle=st.integers(0, HANDLES - 1), tenant=st.sampled_from("xy"), name=NAMES, turns=TURNS)
    def put(self, handle: int, tenant: str, name: str, turns: list[list[int]]) -> None:
        session = self.session(tenant, name, turns)
        receipt = self.handles[handle].put([session])[0]
        known = {n for n in self.model.get((tenant, name), {}) if (tenant, name, n) not in self.forgotten}
        assert receipt.unchanged == (receipt.id in known)
        self.learn(session, receipt.id)

    @rule(handle=st.integers(0, HANDLES - 1), rows=st.lists(st.tuples(NAMES, TURNS), max_size=4))
    def put_many(self, handle: int, rows: list[tuple[str, list[list[int]]]]) -> None:
        sessions = [self.session("x", name, turns) for name, turns in rows]
        for session, receipt in zip(sessions, self.handles[handle].put(sessions), strict=True):
            self.learn(session, receipt.id)

    @rule(handle=st.integers(0, HANDLES - 1), turns=st.dictionaries(PARTS, st.integers(0, 2), min_size=1))
    def put_parts(self, handle: int, turns: dict[str, int]) -> None:
        self.parts.freed(self.handles[handle])
        rows = {part: self.session("x", Parts.NAME, [[7], [turn]]) for part, turn in turns.items()}
        receipts = self.handles[handle].put([replace(row, part=part) for part, row in rows.items()])
        for receipt, row in zip(receipts, rows.values(), strict=True):
            self.parts.learn(receipt, tuple(np.concatenate(list(row.segments)).astype(int).tolist()))

    @rule(handle=st.integers(0, HANDLES - 1), undelete=st.booleans(), data=st.data())
    def forget_parts(self, handle: int, undelete: bool, data: st.DataObject) -> None:
        archive = self.handles[handle]
        self.parts.freed(archive)
        known = [v for v in archive.ls("x", history=True, forgotten=True) if v.name == Parts.NAME]
        if known and not undelete:
            version = data.draw(st.sampled_from(known))
            archive.forget([version])
            self.parts.forget(version.moment)
        elif known:
            version = data.draw(st.sampled_from(known))
            try:
                archive.undelete([version])
            except (ArchiveError, NotFound):
                return  # its segments were collected
            self.parts.forgotten -= {(v.moment, v.part) for v in version.each}

    @rule(handle=st.integers(0, HANDLES - 1), data=st.data())
    def forget(self, handle: int, data: st.DataObject) -> None:
        if known := [v for v in self.handles[handle].ls(history=True) if v.name != Parts.NAME]:
            v = data.draw(st.sampled_from(known))
            assert self.handles[handle].forget([v]) == 1
            self.forgotten.add((v.tenant, v.name, v.id))

    @rule(handle=st.integers(0, HANDLES - 1), data=st.data())
    def restore(self, handle: int, data: st.DataObject) -> None:
        listed = self.handles[handle].ls(history=True, forgotten=True)
        known = [v for v in listed if v.forgotten and v.name != Parts.NAME]
        if known:
            v = data.draw(st.sampled_from(known))
            try:
                self.handles[handle].undelete([v])
            except (ArchiveError, NotFound):
                return  # its segments were collected, so it stays forgotten
            self.forgotten.discard((v.tenant, v.name, v.id))

    @rule(handle=st.integers(0, HANDLES - 1), share=st.sampled_from([0.01, 0.5]))
    def collect(self, handle: int, share: float) -> None:
        self.handles[handle].collect(dead_share=share)

    @rule(handle=st.integers(0, HANDLES - 1))
    def join(self, handle: int) -> None:
        self.handles[handle].join()

    @rule(handle=st.integers(0, HANDLES - 1), everything=st.booleans())
    def index(self, handle: int, everything: bool) -> None:
        self.handles[handle].write_index(everything=everything)

    @rule(handle=st.integers(0, HANDLES - 1))
    def rebuild(self, handle: int) -> None:
        self.handles[handle].rebuild()

    @rule(handle=st.integers(0, HANDLES - 1))
    def reopen(self, handle: int) -> None:
        self.handles[handle] = self.open()

    @rule(
        handle=st.integers(0, HANDLES - 1), call=st.integers(1, 7), code=st.sampled_from([errno.ENOSPC, errno.EIO]),
        kept=st.booleans(),
    )
    def put_with_a_fault(self, handle: int, call: int, code: int, kept: bool) -> None:
        session = self.session("z", "fault", [[call]])
        self.disk.fail_at = {self.disk.calls + call: OSError(code, "no")}
        try:
            self.learn(session, self.handles[handle].put([session])[0].id)
        except WriterFailed:  # unsynced data may or may not last: the machine takes either branch
            if kept:
                self.disk.sync_directory("packs")
            self.power_cut()
            self.maybe(session)
        except ArchiveError:
            self.maybe(session)
        self.disk.fail_at = {}

    def maybe(self, session: NewSession) -> None:
        """Note a version that was not acknowledged: it may still be there, whole."""
        for v in self.open().history(session.name, session.tenant):
            if not v.forgotten:
                tokens = tuple(self.open().tower(v).tokens.tolist())
                assert tokens == self.model.get((v.tenant, v.name), {}).get(v.id, tokens) or (
                    (v.tenant, v.name, v.id) in self.forgotten
                )
                self.model.setdefault((v.tenant, v.name), {})[v.id] = tokens
                self.forgotten.discard((v.tenant, v.name, v.id))

    @precondition(lambda self: self.handles)
    @rule()
    def power_cut(self) -> None:
        clock = self.disk.clock
        self.disk = SimDisk(self.disk.durable, seed=self.disk.drawn)
        self.disk.clock = clock + 1
        self.handles = [self.open() for _ in range(HANDLES)]

    @rule(handle=st.integers(0, HANDLES - 1))
    def verify(self, handle: int) -> None:
        report = self.handles[handle].verify(decode=True)
        assert report.sound, report

    @invariant()
    def everything_is_there(self) -> None:
        if not self.handles:
            return
        expected: dict[Any, Any] = {
            (*key, number): tokens for key, versions in self.model.items() for number, tokens in versions.items()
            if (*key, number) not in self.forgotten
        }
        for archive in (self.open(), self.handles[0]):
            found = {
                (v.tenant, v.name, v.id): tuple(archive.tower(v).tokens.tolist()) for v in archive.ls(history=True)
                if v.name != Parts.NAME
            }
            assert found == expected
            self.parts.check(archive)


TestArchive = ArchiveMachine.TestCase
TestArchive.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)


class AlikeMachine(ArchiveMachine):
    """The same machine with sessions that are alike, some of which share a prompt with the other tenant."""

    def __init__(self) -> None:
        super().__init__()
        self.codec = ZlibCodec(TOWER, b"zlib with tower.")

    def session(self, tenant: str, name: str, turns: list[list[int]]) -> NewSession:
        first, *others = (np.array(t, np.int64) for t in turns)
        own = np.concatenate([ALIKE[:40], first, ALIKE[40:]])
        if name == "a":  # one of several prompts much like it, shared with the other tenant
            return NewSession(name, [np.concatenate([own, [len(others)]]), own[5:], *others], tenant, shared=1)
        return NewSession(name, [own, *others], tenant)


class BucketMachine(ArchiveMachine):
    """The same machine over a bucket of a real server. Requests fail before or after the server has done its work."""

    def __init__(self, server: S3Server, cache: Path) -> None:
        super().__init__()
        server.reset()
        self.server, self.cache, self.place = server, cache, replace(server.place(), retries=0)

    def store(self) -> ObjectStore:
        return ObjectStore(self.place, self.cache, sleep=lambda _: None)

    @rule()
    def power_cut(self) -> None:
        """Cut the power of this machine. The bucket stays."""
        self.handles = [self.open() for _ in range(HANDLES)]

    @rule(handle=st.integers(0, HANDLES - 1), skip=st.integers(0, 9), late=st.booleans())
    def put_with_a_fault(self, handle: int, skip: int, late: bool) -> None:
        session, s = self.session("z", "fault", [[skip]]), self.server
        s.failing, s.failures, s.skip, s.late = "500 Internal Server Error", 1, skip, late
        try:
            self.learn(session, self.handles[handle].put([session])[0].id)
        except ArchiveError:
            s.reset()
            self.maybe(session)
        s.reset()

    @rule(handle=st.integers(0, HANDLES - 1), skip=st.integers(0, 20), late=st.booleans())
    def collect_with_a_fault(self, handle: int, skip: int, late: bool) -> None:
        s = self.server
        s.failing, s.failures, s.skip, s.late = "500 Internal Server Error", 1, skip, late
        try:
            self.handles[handle].collect(dead_share=0.01)
        except ArchiveError:
            pass
        s.reset()


class RangedBucketMachine(BucketMachine):
    """The same, with indexes of which a reader on another machine fetches pieces, while requests fail."""

    @initialize()
    def start(self) -> None:
        super().start()
        for number in range(5):
            self.put(0, "x", "abc"[number % 3], [[number]])
        with TemporaryDirectory() as cache:
            reader = TowerArchive.open(ObjectStore(self.place, Path(cache)), [self.codec])
            assert [reader.get(name, "x").version.version for name in "abc"] == [2, 2, 1]

    @rule(skip=st.integers(0, 12), failures=st.integers(1, 3), late=st.booleans(), data=st.data())
    def get_with_a_fault(self, skip: int, failures: int, late: bool, data: st.DataObject) -> None:
        live = sorted(
            key for key, versions in self.model.items()
            if any((*key, number) not in self.forgotten for number in versions)
        )
        s = self.server
        with TemporaryDirectory() as cache:
            reader = TowerArchive.open(ObjectStore(self.place, Path(cache)), [self.codec])
            s.failing, s.failures, s.skip, s.late = "500 Internal Server Error", failures, skip, late
            for tenant, name in data.draw(st.permutations([*live, ("x", "nobody")])):
                wanted = {
                    tokens for number, tokens in self.model.get((tenant, name), {}).items()
                    if (tenant, name, number) not in self.forgotten
                }
                try:
                    assert tuple(reader.get(name, tenant).tokens.tolist()) in wanted
                except NotFound:
                    assert not wanted
                except StoreError:
                    pass
            s.reset()
            assert not [problem for problem in reader.catalog.damage.problems if problem.kind == "index"]


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    asked = noted(monkeypatch, RangedObject, "read", lambda _, offset: offset)
    monkeypatch.setattr("pltz.archive.catalog.index_keeper.BUCKET_PACKS", 2)
    monkeypatch.setattr("pltz.archive.storage.s3.MOST_KEPT", 0)
    monkeypatch.setattr("pltz.archive.storage.s3.FRONT", 100)
    yield
    assert len(asked) > 4


def test_over_a_bucket_by_ranges_of_indexes(s3: S3Server, tmp_path: Path, ranges: None) -> None:
    few = settings(max_examples=examples(6), stateful_step_count=20, deadline=None)
    run_state_machine_as_test(lambda: RangedBucketMachine(s3, tmp_path), settings=few)  # type: ignore[arg-type]
