"""The real worker takes the journal to the archive: in this process, a thread or a process, also after kills."""

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz.archive.archive import Archive
from pltz.archive.errors import ArchiveError
from pltz.archive.storage.disk import OsDisk
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.errors import UsageError
from pltz.serving.eviction.eviction import EvictionRequest
from pltz.serving.eviction.hook import EvictionHook, HookSettings
from pltz.serving.eviction.journal.entry import JournalEntry
from pltz.serving.eviction.journal.lock import FileLocks
from pltz.serving.eviction.journal.reader import JournalReader
from pltz.serving.eviction.journal.segment import Name
from pltz.serving.eviction.worker import WORKER_LOCK, drain
from tests.archive.towers import SessionArchive
from tests.models.target_tokenizers import PAGE, target
from tests.serving.eviction.conftest import Bench, entry
from tests.serving.eviction.opened import eventually

QUICK = HookSettings(flush_seconds=0.005)


@pytest.fixture
def cold(tmp_path: Path, bundle: Bundle) -> Path:
    SessionArchive.open(tmp_path / "cold", [bundle], create=True)
    return tmp_path / "cold"


def ids(seed: int, count: int = 40) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 1000, count)


def test_evictions_reach_the_archive(tmp_path: Path, cold: Path, bundle: Bundle) -> None:
    with EvictionHook.open(tmp_path / "j", cold, bundle=bundle, settings=QUICK) as hook:
        for n in range(5):
            hook.on_evict(EvictionRequest(f"s{n}", ids(n), tags={"n": str(n)}))
            hook.on_evict(EvictionRequest(f"s{n}", np.append(ids(n), ids(9))))
        assert hook.settle(60)
        found = SessionArchive.open(cold, [bundle])
        for n in range(5):
            assert np.array_equal(found.get_ids(f"s{n}", version=1).ids, ids(n))
            assert np.array_equal(found.get_ids(f"s{n}").ids, np.append(ids(n), ids(9)))
        assert hook.status()["journal"]["waiting"] == 0 and eventually(lambda: hook.status()["worker"]["stored"] == 10)
        worker = hook.status()["worker"]
        assert (worker["stored"], worker["tokens"], worker["raw"]) == (10, 600, 2400) and worker["frozen"] > 0
    drain(tmp_path / "j", cold, bundle=bundle)
    assert [p.name for p in (tmp_path / "j").iterdir()] == [WORKER_LOCK]


def test_a_worker_process_that_dies_is_started_again(
    tmp_path: Path, cold: Path, bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "pltz.hook"),
        EvictionHook.open(tmp_path / "j", cold, bundle=bundle, settings=QUICK) as hook,
    ):
        background: Any = hook.background
        os.kill(background.pid, signal.SIGKILL)
        hook.on_evict(EvictionRequest("a", ids(1)))
        assert hook.settle(60)
        worker = hook.status()["worker"]
        assert worker["restarts"] == 1 and worker["pid"] == background.pid
        if Path("/proc/self/comm").exists():
            assert Path(f"/proc/{worker['pid']}/comm").read_text() == "pltz-hook\n"
        assert eventually(lambda: "exit code -9" in caplog.text)
    assert np.array_equal(SessionArchive.open(cold, [bundle]).get_ids("a").ids, ids(1))


@pytest.mark.usefixtures("in_thread")
def test_closing_ends_who_waits_for_the_archive(tmp_path: Path, cold: Path, bundle: Bundle) -> None:
    """A server that closed waited for a minute: nobody archived any more, and its thread went on looking."""
    hook = EvictionHook.open(tmp_path / "j", cold, bundle=bundle, settings=QUICK)
    cold.rename(tmp_path / "away")
    hook.on_evict(EvictionRequest("a", ids(1)))
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(hook.settle()), daemon=True)
    waiting.start()
    assert eventually(lambda: "is missing" in hook.status()["worker"]["failure"]) and hook.close()
    waiting.join(300)
    assert found == [False]


@pytest.mark.usefixtures("in_thread")
def test_what_the_worker_archived_while_it_was_closed_is_settled(
    tmp_path: Path, cold: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last sessions are archived between a look at the journal and its end."""
    hook = EvictionHook.open(tmp_path / "j", cold, bundle=bundle, settings=QUICK)
    hook.on_evict(EvictionRequest("a", ids(1)))
    looks: list[bool] = []

    def archived(name: object, at: int) -> bool:
        if not looks:
            assert hook.close()
        looks.append(len(looks) > 0)
        return looks[-1]

    monkeypatch.setattr(hook, "_archived", archived)
    assert hook.settle() and looks == [False, True]


def test_a_journal_is_settled_when_all_of_it_is_archived(tmp_path: Path) -> None:
    """Two evictions are in one segment, and a worker has marked the first."""
    hook = EvictionHook.open(tmp_path / "j", settings=QUICK)
    for number in (1, 2):
        hook.on_evict(EvictionRequest("a", ids(number)))
        assert hook.flush(60)
    [segment] = hook.backlog.segments()
    first, second = [frame.end for frame, _ in hook.backlog.read(segment)]
    assert not hook.settle(0)
    hook.backlog.mark(segment, first)
    assert not hook.settle(0.05)
    hook.backlog.mark(segment, second)
    assert hook.settle(60)
    hook.close()


@pytest.mark.usefixtures("in_thread")
def test_an_archive_in_place_of_another_gets_nothing(
    tmp_path: Path, cold: Path, bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that runs put its sessions among those of the other, and said nothing."""
    with (
        caplog.at_level(logging.WARNING, "pltz.hook"),
        EvictionHook.open(tmp_path / "j", cold, bundle=bundle, settings=QUICK) as hook,
    ):
        hook.on_evict(EvictionRequest("a", ids(1)))
        assert hook.settle(60)
        cold.rename(tmp_path / "own")
        other = SessionArchive.open(cold, [bundle], create=True)
        hook.on_evict(EvictionRequest("b", ids(2)))
        assert eventually(lambda: "found another in its place" in hook.status()["worker"]["failure"])
        assert eventually(lambda: "found another in its place" in caplog.text) and not list(other.archive.ls())
        cold.rename(tmp_path / "other")
        assert eventually(lambda: "is missing" in hook.status()["worker"]["failure"])
        (tmp_path / "own").rename(cold)
        assert hook.settle(60) and eventually(lambda: "evictions are archived again" in caplog.text)
        assert not hook.status()["worker"]["failure"]
    assert np.array_equal(SessionArchive.open(cold, [bundle]).get_ids("b").ids, ids(2))


def test_ids_of_a_served_model_with_another_tokenizer(tmp_path: Path, cold: Path, bundle: Bundle) -> None:
    """Keep the tokenizer in the journal, so that any worker finds it."""
    spec = target("byte-level").to_str().encode()
    tokens = target("byte-level").encode(PAGE, add_special_tokens=False).ids
    with EvictionHook.open(tmp_path / "j", tokenizer=spec, settings=QUICK) as hook:
        hook.on_evict(EvictionRequest("a", tokens, target=bytes(range(16))))
        hook.on_evict(EvictionRequest("bad", [10**6]))
        assert hook.flush(60)
    done = drain(tmp_path / "j", cold, bundle=bundle)
    assert (done.stored, done.rejected) == (1, 1) and done.refused[0][1] == "bad" and "10" in done.refused[0][2]
    found = SessionArchive.open(cold, [bundle], tokenizers=[spec]).get_ids("a")
    assert found.ids.tolist() == tokens and found.target == bytes(range(16))
    again = drain(tmp_path / "j", cold, bundle=bundle)
    assert again.entries == 0 and JournalReader(OsDisk(tmp_path / "j"), FileLocks(tmp_path / "j")).status().refused


def test_drain_waits_for_the_worker_then_says_it_is_busy(tmp_path: Path, cold: Path, bundle: Bundle) -> None:
    with EvictionHook.open(tmp_path / "j", settings=QUICK) as hook:
        hook.on_evict(EvictionRequest("a", ids(1)))
        hook.flush(60)
    lock = FileLocks(tmp_path / "j").take(WORKER_LOCK)
    assert lock and drain(tmp_path / "j", cold, bundle=bundle, wait=0.1).busy
    lock.free()
    assert drain(tmp_path / "j", cold, bundle=bundle, wait=0).stored == 1


def test_drain_takes_what_a_living_process_has_written_and_leaves_its_file(
    tmp_path: Path, cold: Path, bundle: Bundle
) -> None:
    with EvictionHook.open(tmp_path / "j", settings=QUICK) as hook:
        for n in range(3):
            hook.on_evict(EvictionRequest(f"s{n}", ids(n)))
            hook.flush(60)
            assert drain(tmp_path / "j", cold, bundle=bundle).stored == 1
        assert len(hook.backlog.segments()) == 1 and hook.status()["journal"]["waiting"] == 0
    assert drain(tmp_path / "j", cold, bundle=bundle).entries == 0
    assert not JournalReader(OsDisk(tmp_path / "j"), FileLocks(tmp_path / "j")).segments()


@pytest.mark.parametrize("living", [False, True])
def test_damage_in_the_journal_is_laid_aside_and_told(tmp_path: Path, cold: Path, bundle: Bundle, living: bool) -> None:
    hook = EvictionHook.open(tmp_path / "j", settings=QUICK)
    for n in range(3):
        hook.on_evict(EvictionRequest(f"s{n}", ids(n)))
    hook.flush(60)
    if not living:
        hook.close()
    [file] = (tmp_path / "j").glob("*.journal")
    data = bytearray(file.read_bytes())
    data[300] ^= 255
    file.write_bytes(data)
    done = drain(tmp_path / "j", cold, bundle=bundle)
    if living:
        hook.close()
        assert drain(tmp_path / "j", cold, bundle=bundle).damaged == 0
    assert done.stored == 2 and 0 < done.damaged < 300
    [aside] = (tmp_path / "j").glob("*.damaged")
    assert aside.read_bytes() in bytes(data) and len(aside.read_bytes()) == done.damaged
    assert not list((tmp_path / "j").glob("*.journal"))


def test_a_newer_journal_is_left_alone(tmp_path: Path, cold: Path, bundle: Bundle) -> None:
    from pltz.serving.eviction.journal.segment import HEAD, _hash

    name = Name(bytes(16), 0)
    head = HEAD.pack(b"pltzjrnl", 2, 0, 0, name.owner)
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / name.journal).write_bytes(head + _hash(head) + b"what is to come")
    done = drain(tmp_path / "j", cold, bundle=bundle)
    assert done.left == 55 and "newer" in done.failure and (tmp_path / "j" / name.journal).exists()


def test_one_bad_entry_does_not_hold_up_a_batch(bench: Bench) -> None:
    from pltz.serving.eviction.journal.writer import Journal

    journal = Journal(bench.disk, bench.locks)
    good = [entry(f"s{n}", 10, n) for n in range(4)]
    journal.append([e.encode() for e in (*good[:2], entry("bad", 5, tokenizer=b"unknown tokenize"), *good[2:])])
    done = bench.worker().once()
    assert (done.stored, done.rejected) == (4, 1) and len(bench.versions()) == 4


def test_an_erased_session_is_dropped_and_counted(tmp_path: Path, bundle: Bundle) -> None:
    cold = Archive.open(tmp_path / "cold", create=True, bundle=bundle, passphrase="owl")
    cold.put("gone", ids(1))
    cold.erase("gone", tenant="default")
    with EvictionHook.open(tmp_path / "j") as hook:
        for name in ("s0", "gone", "s1"):
            hook.on_evict(EvictionRequest(name, ids(1)))
    done = drain(tmp_path / "j", cold)
    assert (done.stored, done.erased, done.rejected, done.entries) == (2, 1, 0, 3)
    assert [path.name for path in (tmp_path / "j").iterdir()] == [WORKER_LOCK], "nothing of it stays in clear"


ODD = [
    entry("none", 0),
    entry("", 5),
    entry("a\0b", 5),
    entry("a", 5, tenant=""),
    entry("a", 5, tenant="x#salt=00"),
    entry("a", 5, base="x"),
    entry("a", 9, base="x", prefixes=(3,), tenant="x#salt=00"),
    entry("a", 9, prefixes=tuple(range(1, 10))),
    entry("a", 9, parent="nobody"),
    entry("a", 9, parent="a"),
    entry("late", 5, time=(1 << 40) - 1),
    entry("a", 5, time=0),
    entry("a", 9, tags={str(n): "b" for n in range(1000)}),
    entry("x" * 1024, 3, tenant="y" * 1024),
    JournalEntry("ids", np.array([(1 << 31) - 1, 0]), 7),
]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: f"{odd.name[:9]!r}")
def test_no_entry_that_holds_stops_those_behind_it(bench: Bench, odd: JournalEntry) -> None:
    """Store or quarantine every entry, from any writer of the journal."""
    from pltz.serving.eviction.journal.writer import Journal

    Journal(bench.disk, bench.locks).append([one.encode() for one in (entry("s0", 10, 0), odd, entry("s1", 10, 1))])
    done = bench.worker().once()
    assert done.stored + done.rejected == 3 and {"s0", "s1"} <= {name for name, _ in bench.versions()}


def test_an_archive_that_is_not_there_refuses_nothing(tmp_path: Path, cold: Path, bundle: Bundle) -> None:
    """Leave all entries while the archive fails, and archive them when it works again."""
    with EvictionHook.open(tmp_path / "j", settings=QUICK) as hook:
        hook.on_evict(EvictionRequest("a", ids(1)))
        hook.flush(60)
    with pytest.raises(UsageError, match="no archive"):
        drain(tmp_path / "j", tmp_path / "nowhere", bundle=bundle)
    cold.joinpath("packs").rename(cold / "elsewhere")
    cold.joinpath("packs").touch()
    with pytest.raises(ArchiveError):
        drain(tmp_path / "j", cold, bundle=bundle)
    cold.joinpath("packs").unlink()
    cold.joinpath("elsewhere").rename(cold / "packs")
    assert drain(tmp_path / "j", cold, bundle=bundle).stored == 1


def test_there_must_be_a_journal(tmp_path: Path, cold: Path) -> None:
    with pytest.raises(UsageError, match="no journal"):
        drain(tmp_path / "nothing", cold)


SERVER = """
import sys, time
from pltz.serving.eviction.hook import EvictionHook, HookSettings
from pltz.serving.eviction.eviction import EvictionRequest
from tests.serving.eviction.test_worker import evicted
journal, cold, bundle, start = *sys.argv[1:4], int(sys.argv[4])
settings = HookSettings(flush_seconds=0.002, segment_bytes=2000, batch_tokens=1000)
hook = EvictionHook.open(journal, cold, bundle=bundle, settings=settings)
waiting = []
for n in range(start, start + 1000):
    waiting.append((hook.on_evict(EvictionRequest(*evicted(n))), n))
    time.sleep(0.01)
    while waiting and hook.durable(waiting[0][0]):
        print(waiting.pop(0)[1], flush=True)
"""


def evicted(n: int) -> tuple[str, list[int]]:
    """Return the n-th eviction. Each session comes three times, longer each time."""
    return f"s{n // 3}", ids(n // 3)[: 20 + n % 3 * 10].tolist()


@pytest.mark.slow
def test_kill_9_loses_nothing_that_was_reported_durable(tmp_path: Path, cold: Path, bundle: Bundle) -> None:
    """Kill a serving process and its worker at random moments, again and again: the next one resumes their work."""
    dice = random.Random(1)
    durable: list[int] = []
    root = str(Path(__file__).parents[3])
    for run in range(2):
        command = [sys.executable, "-c", SERVER, str(tmp_path / "j"), str(cold), str(bundle.path), str(999 * run)]
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, start_new_session=True, text=True, env={**os.environ, "PYTHONPATH": root}
        )
        assert server.stdout is not None
        durable.append(int(server.stdout.readline()))
        time.sleep(dice.uniform(0.5, 2.5))
        os.killpg(server.pid, signal.SIGKILL)  # the worker, too
        durable += [int(line) for line in server.stdout.read().split("\n")[:-1]]
        server.wait()
    left = drain(tmp_path / "j", cold, bundle=bundle)
    assert not left.busy and not left.rejected
    found = SessionArchive.open(cold, [bundle])
    for name in {evicted(n)[0] for n in durable}:
        stored = [tuple(found.archive.tower(v).tokens.tolist()) for v in found.archive.history(name)]
        wanted = {tuple(evicted(n)[1]) for n in durable if evicted(n)[0] == name}
        assert wanted <= set(stored) and len(stored) == len(set(stored))
    print(f"{len(durable)} durable, {left.entries} of them left to the last drain")
    assert len(durable) > 100 and not JournalReader(OsDisk(tmp_path / "j"), FileLocks(tmp_path / "j")).segments()
