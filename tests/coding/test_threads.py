"""Threads that code and prove beside each other change no byte of a file, and lose no error."""

from __future__ import annotations

import gc
import io
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from pltz.coding.codec import Codec
from pltz.coding.threads import Threads
from pltz.coding.workers import ahead
from pltz.models.session.session import Session
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.errors import ModelError
from pltz.plt_codec.types import Encoded, FrameItem
from tests.coding.fake_coder import PROSE, TALK, FakeBundle, NeighbourCoder, chat


class DeviceCoder(NeighbourCoder):
    """A coder that can have others beside it. ``twins``: those of it."""

    def __init__(self, breaks: Callable[[], object] = lambda: None, where: str = "decode") -> None:
        super().__init__()
        self.twins: list[DeviceCoder] = []
        self.threads: set[int] = set()
        self.rests = 0
        self._breaks, self._where = breaks, where

    def twin(self, *, urgent: bool = False) -> DeviceCoder:
        self.twins.append(DeviceCoder(self._breaks, self._where))
        return self.twins[-1]

    def rest(self) -> None:
        self.rests += 1

    def encode(self, sequences: Sequence[Any], **options: Any) -> list[Encoded]:
        self.threads.add(threading.get_ident())
        if self._where == "encode":
            self._breaks()
        return super().encode(sequences, **options)

    def decode(self, items: Sequence[FrameItem], *, progress: Callable[[int], None] | None = None) -> list[Any]:
        self.threads.add(threading.get_ident())
        if self._where == "decode":
            self._breaks()
        return super().decode(items, progress=progress)


class WrongCoder(DeviceCoder):
    """Decodes the last token of sequence number 5 of each call wrongly in its twins."""

    def twin(self, *, urgent: bool = False) -> DeviceCoder:
        twin = super().twin(urgent=urgent)
        decode = twin.decode

        def wrongly(items: Sequence[FrameItem], **options: Any) -> list[Any]:
            found = decode(items, **options)
            if len(found) > 5:
                found[5][-1] ^= 1
            return found

        twin.decode = wrongly  # type: ignore[method-assign]
        return twin


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.coding.pipeline.TOGETHER", 4000)
    monkeypatch.setattr("pltz.coding.neighbours.RUN", 500)
    sizes = {"START_BYTES": 1, "GROUP": 5, "LEAST_BYTES": 0, "SMALL_BATCH": 2000, "BATCH_BYTES": 2000}
    for name, value in sizes.items():
        monkeypatch.setattr(f"pltz.coding.pipeline.{name}", value)


@pytest.fixture
def sessions() -> list[Session]:
    random = np.random.default_rng(2)
    template = random.integers(0, 900, 60)
    ids = [Session("ids", np.concatenate([template, random.integers(0, 900, n)])) for n in range(12)]
    log = b"".join(b'{"type": "user", "id": "%d", "note": "said once"}\n' % n for n in range(120))
    talks = [chat(f"Where is bicycle {n}?", "It stands behind the house. " * 3) for n in range(10)]
    return [*ids, TALK, Session("text", log), *talks, PROSE, Session("text", b"say it again " * 900), *ids] * 3


def test_files_are_the_same_with_threads(bundle: FakeBundle, sessions: list[Session]) -> None:
    coder = DeviceCoder()
    threaded, plain = Codec(bundle, coder), Codec(bundle, NeighbourCoder())
    expected = plain.compress(sessions)
    assert sum(Reader(expected).info(n).context is not None for n in range(len(sessions))) > 12
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    for _ in range(2):
        assert threaded.compress(iter(sessions)) == expected
    assert threaded.compress(sessions, independent=True, verify=False) == plain.compress(sessions, independent=True)
    assert sys.getswitchinterval() == interval and gc.get_threshold() == thresholds
    # threads have a coder each, and the caller codes nothing itself
    used = [twin.threads for twin in coder.twins]
    assert not coder.threads and len(used) == len(set.union(*used)) in (3, 4) and all(map(len, used))
    assert coder.rests == 0 and [twin.rests for twin in coder.twins[:3]] == [3] * 3  # once per call


def test_long_sessions_are_proved_by_threads_of_their_own(
    bundle: FakeBundle, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pltz.coding.pipeline.LONG", 100)
    lengths: dict[int, list[int]] = {}

    class Watched(DeviceCoder):
        def twin(self, *, urgent: bool = False) -> DeviceCoder:
            self.twins.append(Watched())
            return self.twins[-1]

        def decode(self, items: Sequence[FrameItem], **options: Any) -> list[Any]:
            lengths.setdefault(id(self), []).extend(item.tokens for item in items)
            return super().decode(items, **options)

    coder = Watched()
    ids = [Session("ids", np.random.default_rng(n).integers(0, 900, 40 + 150 * (n % 3 > 1))) for n in range(60)]
    assert Codec(bundle, coder).compress(ids) == Codec(bundle, NeighbourCoder()).compress(ids)
    assert 4 <= len(coder.twins) <= 6 and id(coder) not in lengths
    long = [found for found in lengths.values() if max(found) > 100]
    assert 1 <= len(long) <= 2 and min(map(min, long)) > 100
    assert sum(map(len, long)) == 20 and sum(map(len, lengths.values())) == 60


@pytest.mark.parametrize("where", ["encode", "decode"])
def test_an_error_of_a_thread_is_raised_as_it_was(bundle: FakeBundle, sessions: list[Session], where: str) -> None:
    calls = iter(range(100))

    def breaks() -> None:
        if next(calls) == 3:
            raise ModelError("no memory")

    with pytest.raises(ModelError, match="no memory"):
        Codec(bundle, DeviceCoder(breaks, where)).compress(sessions)


def test_a_thread_without_memory_for_a_coder_is_an_error(bundle: FakeBundle, sessions: list[Session]) -> None:
    class Large(DeviceCoder):
        def twin(self, *, urgent: bool = False) -> DeviceCoder:
            if self.twins:  # there is room for the one that encodes
                raise ModelError("no memory")
            return super().twin()

    found: list[BaseException] = []

    def compress() -> None:
        try:
            Codec(bundle, Large()).compress(sessions)
        except ModelError as exc:
            found.append(exc)

    thread = threading.Thread(target=compress, daemon=True)
    thread.start()
    thread.join(60)
    assert [str(exc) for exc in found] == ["no memory"]


def test_what_a_thread_finds_changed_is_not_acknowledged(bundle: FakeBundle, sessions: list[Session]) -> None:
    with pytest.raises(ModelError, match=r"session \d+ does not come back from its frame \(it does not decode\)"):
        Codec(bundle, WrongCoder()).compress(sessions)


def test_whoever_stops_waits_for_no_proof(bundle: FakeBundle, sessions: list[Session]) -> None:
    class Stopped(io.BytesIO):
        def write(self, data: Any) -> int:
            if self.tell():  # the header is written
                raise KeyboardInterrupt
            return super().write(data)

    coder = DeviceCoder()
    codec = Codec(bundle, coder)
    with pytest.raises(KeyboardInterrupt):
        codec.compress_into(Stopped(), sessions)
    before = sum(len(twin.decoded) for twin in coder.twins)
    assert codec.compress(sessions[:12]) and before < len(sessions) // 5  # the threads serve the next call


class Owned:
    """What a thread owns. ``begun``, ``go``: a call that waits was begun, and may end."""

    def __init__(self) -> None:
        self.begun, self.go, self.calls = threading.Event(), threading.Event(), list[int]()

    def waits(self) -> None:
        self.begun.set()
        self.go.wait(10)

    def call(self, number: int) -> list[int]:
        self.calls.append(number)
        return self.calls


def test_threads_end_with_their_owner_and_drop_what_waits_when_they_settle() -> None:
    before, owned = set(threading.enumerate()), Owned()
    threads = Threads(lambda: owned)
    running, dropped = threads.submit("waits"), threads.submit("call", 1)
    owned.begun.wait(10)
    threading.Timer(0.1, owned.go.set).start()
    threads.settle(lambda one: one.calls.append(2))
    assert running.done() and dropped.cancelled() and owned.calls == [2]
    assert threads.submit("call", 3).result(10) == [2, 3]
    [its_own] = [one for one in set(threading.enumerate()) - before if not isinstance(one, threading.Timer)]
    del threads
    its_own.join(10)
    assert not its_own.is_alive()


def test_an_error_of_a_source_comes_after_the_rows_before_it() -> None:
    def rows() -> Iterator[int]:
        yield from range(3)
        raise ModelError("no more")

    found: list[int] = []
    with pytest.raises(ModelError):
        found.extend(ahead(rows(), 5))
    assert found == [0, 1, 2]
