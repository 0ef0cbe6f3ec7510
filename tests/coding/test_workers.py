"""Processes beside the model change no byte of a file, and one that ends loses nothing."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from pltz.coding.codec import Codec
from pltz.coding.workers import Workers, ahead
from pltz.models.session.session import Session
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.errors import OpaqueContentError
from tests.coding.fake_coder import IMAGE, PROSE, TALK, FakeBundle, NeighbourCoder, chat
from tests.failing import raising

SELF = Path("/proc/self")  # its `resolve` tells the process that it runs in
pytestmark = pytest.mark.skipif(not SELF.exists(), reason="no /proc")


@pytest.fixture(params=[0, 2])
def workers(request: pytest.FixtureRequest) -> Workers:
    made = Workers(SELF, request.param)
    made.on = True
    return made


@pytest.fixture
def unhelped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let who waits for a process do nothing else."""
    monkeypatch.setattr(Workers, "help", lambda _: False)


def process_of(workers: Workers) -> int:
    return int(workers.submit("resolve").result().name)


@pytest.mark.usefixtures("unhelped")
def test_what_a_process_does_not_answer_runs_here() -> None:
    workers = Workers(SELF, 1)
    workers.on = True
    other = process_of(workers)
    assert other != os.getpid() and process_of(workers) == other
    os.kill(other, signal.SIGKILL)
    assert process_of(workers) == os.getpid() and workers.unanswered == 1
    assert workers.map("joinpath", [("a",), ("b",)]) == [SELF / "a", SELF / "b"]


@pytest.mark.usefixtures("unhelped")
def test_without_room_for_a_process_calls_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.coding.workers.subprocess.Popen", raising(BlockingIOError("no more processes")))
    workers = Workers(SELF, 1)
    workers.on = True
    assert int(cast("Future[Path]", workers.submit("resolve")).result(60).name) == os.getpid()
    assert workers.unanswered == 1


def test_a_result_comes_though_its_workers_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = threading.Event()

    def late() -> None:
        gone.wait(60)

    monkeypatch.setattr("pltz.coding.workers._process", late)
    workers = Workers(SELF, 2)
    workers.on = True
    later = cast("Future[Path]", workers.submit("joinpath", "a"))
    del workers
    gone.set()
    assert later.result(60) == SELF / "a"


class Recorder:
    """Keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def call(self, name: str) -> None:
        self.calls.append(name)


@pytest.mark.usefixtures("unhelped")
def test_a_call_that_is_waited_for_comes_before_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, recorder = threading.Event(), Recorder()
    monkeypatch.setattr("pltz.coding.workers._process", lambda: ready.wait(60) and None)
    workers = Workers(recorder, 1)
    workers.on = True
    begun = [workers.submit("call", name, now=name.isupper()) for name in ("a", "b", "C", "c", "D")]
    ready.set()
    for one in begun:
        cast("Future[None]", one).result(60)
    assert recorder.calls == ["C", "D", "a", "b", "c"]


def test_who_waits_for_one_process_does_what_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(SELF, 1)
    workers.on = True
    with monkeypatch.context() as patch:
        patch.setattr(Workers, "help", lambda _: False)
        own, other = str(os.getpid()), str(process_of(workers))
    assert set(workers.map("readlink", [()] * 500)) == {Path(own), Path(other)} and workers.unanswered == 0
    for one in [workers.submit("joinpath", 1) for _ in range(20)]:
        with pytest.raises(TypeError):
            one.result()


def test_what_no_pickle_holds_runs_here(workers: Workers) -> None:
    assert workers.submit("glob", "stat").result() is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_copy_runs_its_calls_itself() -> None:
    workers = Workers(SELF, 1)
    workers.on = True
    process_of(workers)
    if (child := os.fork()) == 0:
        os._exit(0 if process_of(workers) == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_end_of_the_parent_ends_a_process_without_a_word() -> None:
    """Its standard error is the user's terminal."""
    start = [sys.executable, "-c", "from pltz.coding.workers import main; main()"]
    for given in (b"", pickle.dumps(SELF)[:-3], pickle.dumps(SELF) + pickle.dumps(("resolve", ()))[:-3]):
        ended = subprocess.run(start, input=given, capture_output=True, timeout=180, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_so_many_rows_are_taken_ahead() -> None:
    taken: list[int] = []

    def rows() -> Iterator[int]:
        for n in range(5):
            taken.append(n)
            yield n

    found = ahead(rows(), 2)
    assert next(found) == 0 and taken == [0, 1] and next(found) == 1 and taken == [0, 1, 2, 3]
    assert list(found) == [2, 3, 4]
    taken.clear()
    assert next(ahead(rows(), 3, first=3)) == 0 and taken == [0, 1, 2, 3]


def log(number: int) -> Session:
    """Return a log much of which is said in others, too."""
    rows = [
        {"type": "user", "id": f"{number}-{n}", "note": f"line {n} of a file that is read again and again"}
        for n in range(80)
    ]
    return Session("text", b"".join(json.dumps(row).encode() + b"\n" for row in rows))


def files(codec: Codec, sessions: Sequence[Session]) -> list[bytes]:
    with pytest.raises(OpaqueContentError, match=f"session {len(sessions)}: "):
        codec.compress([*sessions, IMAGE])
    return [codec.compress(iter(sessions)), codec.compress(sessions, independent=True, layout="fast")]


@pytest.fixture
def sessions() -> list[Session]:
    random = np.random.default_rng(2)
    template = random.integers(0, 900, 60)
    ids = [Session("ids", np.concatenate([template, random.integers(0, 900, n)])) for n in range(12)]
    talks = [chat(f"Where is bicycle {n}?", "It stands behind the house. " * 3) for n in range(10)]
    return [*ids, TALK, log(0), *talks, PROSE, Session("text", b"say it again " * 900), log(1), log(2), *ids]


def test_files_are_the_same_for_any_number_of_processes(
    bundle: FakeBundle, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = files(Codec(bundle, NeighbourCoder()), sessions)
    found = Reader(expected[0])
    contexts = [found.info(n).context is not None for n in range(len(found))]
    assert sum(contexts) > 12 and any(contexts[n] and found.frame(n).log for n in range(len(found)))
    monkeypatch.setattr("pltz.coding.pipeline.START_BYTES", 1)
    monkeypatch.setattr("pltz.coding.pipeline.GROUP", 5)
    for count, size in ((0, 2000), (1, 2000), (3, 9000)):
        for most in ("BATCH_BYTES", "LARGE_BATCH"):
            monkeypatch.setattr(f"pltz.coding.pipeline.{most}", size)
        codec = Codec(bundle, NeighbourCoder(), workers=count)
        assert files(codec, sessions) == expected and codec.workers.on is (count > 0) and not codec.workers.unanswered
