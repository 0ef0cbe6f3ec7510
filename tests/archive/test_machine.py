"""A state machine over a bucket of a real server: several open archives against a model of dictionaries.

On a disk, with crashes and damage: test_guarantees.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from pltz.archive.errors import ArchiveError, NotFound, StoreError
from pltz.archive.storage.s3 import ObjectStore, RangedObject
from pltz.coding.codecs.codec import BytesCodec
from tests.archive.kit import NewSession, SegmentCodec, TowerArchive
from tests.examples import examples
from tests.watch import noted

if TYPE_CHECKING:
    from tests.archive.conftest import S3Server

HANDLES = 3
NAMES = st.sampled_from(["a", "b", "c"])
TURNS = st.lists(st.lists(st.integers(0, 255), max_size=4), min_size=1, max_size=3)


@pytest.fixture(autouse=True, scope="module")
def any_gain() -> Iterator[None]:
    """Join whatever it costs. Machines may overlap, so none of them can put it back."""
    with mock.patch("pltz.archive.maintenance.join.LEAST", 2):
        yield


class BucketMachine(RuleBasedStateMachine):
    """A model (tenant, name) -> tokens of versions by their ids. Forgotten versions may vanish when collected.

    Requests fail before or after the server has done its work. A reader on another machine fetches pieces of indexes.
    """

    def __init__(self, server: S3Server, cache: Path) -> None:
        super().__init__()
        server.reset()
        self.server, self.cache, self.place = server, cache, replace(server.place(), retries=0)
        self.codec: SegmentCodec = BytesCodec()
        self.model: dict[tuple[str, str], dict[bytes, tuple[int, ...]]] = {}
        self.forgotten: set[tuple[str, str, bytes]] = set()
        self.handles: list[TowerArchive] = []

    @initialize()
    def start(self) -> None:
        TowerArchive.create(self.store(), [self.codec])
        self.handles = [self.open() for _ in range(HANDLES)]
        for number in range(5):
            self.put(0, "x", "abc"[number % 3], [[number]])
        with TemporaryDirectory() as cache:
            assert [self.elsewhere(cache).get(name, "x").version.version for name in "abc"] == [2, 2, 1]

    def store(self) -> ObjectStore:
        return ObjectStore(self.place, self.cache, sleep=lambda _: None)

    def open(self) -> TowerArchive:
        return TowerArchive.open(self.store(), [self.codec])

    def elsewhere(self, cache: str) -> TowerArchive:
        """Open it on another machine."""
        return TowerArchive.open(ObjectStore(self.place, Path(cache)), [self.codec])

    def fail(self, skip: int, late: bool, failures: int = 1) -> None:
        s = self.server
        s.failing, s.failures, s.skip, s.late = "500 Internal Server Error", failures, skip, late

    def session(self, tenant: str, name: str, turns: list[list[int]]) -> NewSession:
        return NewSession(name, [np.arange(30), *(np.array(t, np.int64) for t in turns)], tenant, shared=1)

    def learn(self, session: NewSession, identity: bytes) -> None:
        tokens = tuple(np.concatenate(list(session.segments)).astype(int).tolist())
        self.model.setdefault((session.tenant, session.name), {})[identity] = tokens
        self.forgotten.discard((session.tenant, session.name, identity))

    def live(self, key: tuple[str, str]) -> dict[bytes, tuple[int, ...]]:
        """Return the versions of a session that are not forgotten."""
        return {n: tokens for n, tokens in self.model.get(key, {}).items() if (*key, n) not in self.forgotten}

    @rule(handle=st.integers(0, HANDLES - 1), tenant=st.sampled_from("xy"), name=NAMES, turns=TURNS)
    def put(self, handle: int, tenant: str, name: str, turns: list[list[int]]) -> None:
        session = self.session(tenant, name, turns)
        receipt = self.handles[handle].put([session])[0]
        assert receipt.unchanged == (receipt.id in self.live((tenant, name)))
        self.learn(session, receipt.id)

    @rule(handle=st.integers(0, HANDLES - 1), rows=st.lists(st.tuples(NAMES, TURNS), max_size=4))
    def put_many(self, handle: int, rows: list[tuple[str, list[list[int]]]]) -> None:
        sessions = [self.session("x", name, turns) for name, turns in rows]
        for session, receipt in zip(sessions, self.handles[handle].put(sessions), strict=True):
            self.learn(session, receipt.id)

    @rule(handle=st.integers(0, HANDLES - 1), data=st.data())
    def forget(self, handle: int, data: st.DataObject) -> None:
        if known := list(self.handles[handle].ls(history=True)):
            v = data.draw(st.sampled_from(known))
            assert self.handles[handle].forget([v]) == 1
            self.forgotten.add((v.tenant, v.name, v.id))

    @rule(handle=st.integers(0, HANDLES - 1), data=st.data())
    def restore(self, handle: int, data: st.DataObject) -> None:
        if known := [v for v in self.handles[handle].ls(history=True, forgotten=True) if v.forgotten]:
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

    @rule(handle=st.integers(0, HANDLES - 1))
    def verify(self, handle: int) -> None:
        report = self.handles[handle].verify(decode=True)
        assert report.sound, report

    @rule()
    def power_cut(self) -> None:
        """Cut the power of this machine. The bucket stays."""
        self.handles = [self.open() for _ in range(HANDLES)]

    @rule(handle=st.integers(0, HANDLES - 1), skip=st.integers(0, 9), late=st.booleans())
    def put_with_a_fault(self, handle: int, skip: int, late: bool) -> None:
        session = self.session("z", "fault", [[skip]])
        self.fail(skip, late)
        try:
            self.learn(session, self.handles[handle].put([session])[0].id)
        except ArchiveError:
            self.server.reset()
            self.maybe(session)
        self.server.reset()

    @rule(handle=st.integers(0, HANDLES - 1), skip=st.integers(0, 20), late=st.booleans())
    def collect_with_a_fault(self, handle: int, skip: int, late: bool) -> None:
        self.fail(skip, late)
        with suppress(ArchiveError):
            self.handles[handle].collect(dead_share=0.01)
        self.server.reset()

    @rule(skip=st.integers(0, 12), failures=st.integers(1, 3), late=st.booleans(), data=st.data())
    def get_with_a_fault(self, skip: int, failures: int, late: bool, data: st.DataObject) -> None:
        with TemporaryDirectory() as cache:
            reader = self.elsewhere(cache)
            self.fail(skip, late, failures)
            for key in data.draw(st.permutations([*filter(self.live, sorted(self.model)), ("x", "nobody")])):
                try:
                    assert tuple(reader.get(key[1], key[0]).tokens.tolist()) in self.live(key).values()
                except NotFound:
                    assert not self.live(key)
                except StoreError:
                    pass
            self.server.reset()
            assert not [problem for problem in reader.catalog.problems if problem.kind == "index"]

    @invariant()
    def everything_is_there(self) -> None:
        expected = {(*key, number): tokens for key in self.model for number, tokens in self.live(key).items()}
        for archive in (self.open(), self.handles[0]) if self.handles else ():
            found = {
                (v.tenant, v.name, v.id): tuple(archive.tower(v).tokens.tolist()) for v in archive.ls(history=True)
            }
            assert found == expected


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
    run_state_machine_as_test(lambda: BucketMachine(s3, tmp_path), settings=few)  # type: ignore[arg-type]
