"""The eviction hook in a serving loop: it takes or refuses each eviction, and never raises, waits or loses one."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pltz.archive.format.ids import target_of, tenant_of
from pltz.archive.storage.disk import OsDisk
from pltz.coding.codecs.codec import SegmentCodec
from pltz.plt_codec.errors import ModelError, UsageError
from pltz.serving.eviction.eviction import EvictionRequest
from pltz.serving.eviction.hook import EvictionHook, HookSettings
from pltz.serving.eviction.journal.entry import JournalEntry
from pltz.serving.eviction.journal.lock import FileLocks
from pltz.serving.eviction.journal.reader import JournalReader
from tests.serving.eviction.opened import TARGET, Opened, entries, eventually

QUICK = HookSettings(flush_seconds=0.005)


def test_an_eviction_is_durable_soon(open_hook: Opened) -> None:
    hook = open_hook()
    ticket = hook.on_evict(EvictionRequest(
        "chat-7", [1, 2, 3], tenant="acme", tags={"k": "v"}, prefixes=(2,), base="b", parent="p", time=7
    ))
    assert ticket == 1 and eventually(lambda: hook.durable(ticket))
    [found] = entries(hook)
    assert (found.name, found.ids.tolist(), found.tenant, found.tags) == ("chat-7", [1, 2, 3], "acme", {"k": "v"})
    assert (found.prefixes, found.base, found.parent, found.time, found.target) == ((2,), "b", "p", 7, TARGET)
    assert not hook.durable(0) and not hook.durable(2)


KINDS = [
    "list", "numpy items", "tuple", "bytes", "bytearray", "torch", "torch 32", "torch 16", "torch strided",
    "torch part", "strided", "int32", "int64", ">i4", "uint16",
]


@pytest.mark.parametrize("length", [3, 10_000])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_caller_does_afterwards_changes_nothing(open_hook: Opened, kind: str, length: int) -> None:
    hook = open_hook(flush_seconds=0.2)
    wanted = (np.arange(length) * 7 % (999 if kind == "torch 16" else 65_536)).astype(np.int64)
    made: dict[str, Callable[[], Any]] = {
        "list": wanted.tolist, "numpy items": lambda: list(wanted), "tuple": lambda: tuple(wanted.tolist()),
        "bytes": wanted.astype("<u4").tobytes, "bytearray": lambda: bytearray(wanted.astype("<u4").tobytes()),
        "torch": lambda: torch.from_numpy(wanted.copy()), "torch 32": lambda: torch.from_numpy(wanted.astype(np.int32)),
        "torch 16": lambda: torch.from_numpy(wanted.astype(np.int16)),
        "torch part": lambda: torch.from_numpy(np.append(wanted, 5))[:-1],
        "torch strided": lambda: torch.from_numpy(np.repeat(wanted, 2))[::2],
        "strided": lambda: np.repeat(wanted, 2)[::2],
    }
    given = made[kind]() if kind in made else wanted.astype(kind)
    ticket = hook.on_evict(EvictionRequest("a", given))
    if kind not in ("tuple", "bytes"):  # the caller uses its memory again, at once
        given[:] = (bytes(len(given)) if kind == "bytearray" else given[:] * 0 if hasattr(given, "dtype") else [])
    assert hook.flush(60) and hook.durable(ticket) and entries(hook)[0].ids.tolist() == wanted.tolist()


def test_a_tensor_whose_memory_was_taken_away_is_not_read(open_hook: Opened) -> None:
    hook, given = open_hook(), torch.arange(5000)
    given.untyped_storage().resize_(0)
    assert hook.on_evict(EvictionRequest("a", given)) == 0 and hook.status()["refused"] == {"not token ids": 1}
    assert hook.on_evict(EvictionRequest("b", torch.Size([1]))) == 1


REFUSED: list[tuple[str, Any, dict[str, Any]]] = [
    ("multimodal", [1], {"multimodal": True}), ("prompt embeddings", [1], {"has_embeds": True}),
    ("adapter not named", [1], {"adapter": True}), ("adapter not named", [1], {"adapter": ""}), ("no tokens", [], {}),
    ("not token ids", "text", {}), ("not token ids", b"\1\0\0", {}), ("no tokens", b"", {}),
    ("not token ids", torch.zeros(2), {}), ("not token ids", torch.zeros(2, requires_grad=True), {}),
    ("not token ids", torch.zeros((2, 2), dtype=torch.int64), {}),
    ("tokens on a device", torch.zeros(2, dtype=torch.int64, device="meta"), {}), ("not token ids", None, {}),
    ("not token ids", np.zeros((2, 2), np.int64), {}), ("not token ids", np.zeros(2), {}), ("error", [1], {"tags": 5}),
    ("error", [1], {"prefixes": 5}),
]


LATER: list[tuple[Any, dict[str, Any]]] = [
    ([-1], {}),
    ([1 << 40], {}),
    (["x"], {}),
    ([1, None], {}),
    ([1 << 31], {}),
    (b"\0\0\0\x80", {}),
    ([[1], [2, 3]], {}),
    ([1], {"tenant": 5}),
    ([1], {"session": 5}),
    ([1], {"session": ""}),
    ([1], {"tenant": ""}),
    ([1], {"tenant": "", "salt": "s"}),
    ([1], {"session": "x" * 2000}),
    ([1], {"target": b"short"}),
    ([1], {"time": -1}),
    ([1], {"tags": {"a": 1}}),
    ([1], {"salt": 5}),
    ([1], {"adapter": 5}),
    ([1], {"tenant": "acme#salt=00", "salt": "s"}),
]


@pytest.mark.parametrize(("reason", "ids", "options"), REFUSED)
def test_what_tokens_cannot_restore_is_refused_and_counted(
    open_hook: Opened, reason: str, ids: Any, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    hook = open_hook()
    with caplog.at_level(logging.WARNING, "pltz.hook"):
        assert [hook.on_evict(EvictionRequest("a", ids, **options)) for _ in range(3)] == [0, 0, 0]
        assert eventually(lambda: caplog.records)
        hook.flush(60)
    assert hook.status()["refused"] == {reason: 3} and not entries(hook)
    assert len(caplog.records) == 1 and reason in caplog.text  # logged once


@pytest.mark.parametrize(("ids", "options"), LATER)
def test_what_is_found_wrong_later_is_counted_and_stops_nothing(
    open_hook: Opened, ids: Any, options: dict[str, Any]
) -> None:
    hook = open_hook()
    before = hook.on_evict(EvictionRequest("before", [1]))
    bad = hook.on_evict(EvictionRequest(**{"session": "bad", "token_ids": ids, **options}))
    after = hook.on_evict(EvictionRequest("after", [2]))
    assert hook.flush(60) and hook.durable(before) and hook.durable(after) and not hook.durable(bad)
    assert sum(hook.status()["refused"].values()) == 1 and hook.status()["memory_bytes"] == 0
    assert [entry.name for entry in entries(hook)] == ["before", "after"]


def test_salt_and_adapter_are_told_apart(open_hook: Opened) -> None:
    hook = open_hook()
    hook.on_evict(EvictionRequest("a", [1], tenant="acme", salt="s3cret", adapter="lora-1"))
    hook.on_evict(EvictionRequest("a", [1], tenant="acme", salt=b"s3cret", adapter=bytes(16)))
    hook.flush(60)
    one, two = entries(hook)
    assert one.tenant == two.tenant == tenant_of("acme", "s3cret") != "acme" and "s3cret" not in one.tenant
    assert one.target == target_of(TARGET, "lora-1") != two.target == target_of(TARGET, bytes(16)) != TARGET


def test_wrong_prefixes_are_left_out(open_hook: Opened) -> None:
    hook = open_hook()
    hook.on_evict(EvictionRequest("a", [1, 2, 3], prefixes=(0, np.int64(2), 1, 9, "x", 3)))  # type: ignore[arg-type]
    hook.flush(60)
    assert entries(hook)[0].prefixes == (2, 3)


def test_many_threads_evict_at_once(open_hook: Opened) -> None:
    hook = open_hook()
    tickets: list[int] = []

    def evict(number: int) -> None:
        tickets.extend(hook.on_evict(EvictionRequest(f"{number}/{n}", [number, n])) for n in range(200))

    threads = [threading.Thread(target=evict, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hook.flush(60) and sorted(tickets) == list(range(1, 801))
    assert sorted((e.name, *e.ids.tolist()) for e in entries(hook)) == sorted(
        (f"{a}/{b}", a, b) for a in range(4) for b in range(200)
    )
    assert hook.status()["durable"] == 800 == sum(hook.counts.latency)


def test_a_closed_hook_takes_nothing_and_kept_all(open_hook: Opened) -> None:
    hook = open_hook(flush_seconds=60)
    for n in range(100):
        hook.on_evict(EvictionRequest(f"s{n}", [n]))
    assert hook.close() and hook.on_evict(EvictionRequest("late", [1])) == 0
    assert hook.status()["refused"] == {"closed": 1} and len(entries(hook)) == 100 and hook.close()


def test_a_fork_refuses(open_hook: Opened) -> None:
    hook, child = open_hook(), os.fork()
    if not child:
        os._exit(hook.on_evict(EvictionRequest("a", [1])) + 2 * (hook.counts.refused != {"forked": 1}))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert hook.on_evict(EvictionRequest("a", [1])) == 1 and hook.flush(60)


def test_a_process_that_ends_leaves_nothing_behind_in_memory(tmp_path: Path) -> None:
    code = (
        "import sys; from pltz.serving.eviction.hook import EvictionHook, HookSettings;"
        "from pltz.serving.eviction.eviction import EvictionRequest;"
        "hook = EvictionHook.open(sys.argv[1], settings=HookSettings(flush_seconds=60));"
        "[hook.on_evict(EvictionRequest(f's{n}', [n])) for n in range(50)]"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "j")], check=True, timeout=180)
    backlog = JournalReader(OsDisk(tmp_path / "j"), FileLocks(tmp_path / "j"))
    assert [e.name for s in backlog.segments() for _, e in backlog.read(s)] == [f"s{n}" for n in range(50)]


def test_two_processes_share_a_directory(open_hook: Opened, tmp_path: Path) -> None:
    """Open two hooks: each has its own files, and adopts those of the other when its lock is free."""
    one, two = open_hook(), open_hook()
    one.on_evict(EvictionRequest("a", [1]))
    two.on_evict(EvictionRequest("b", [2]))
    assert one.flush(60) and two.flush(60)
    backlog = JournalReader(OsDisk(tmp_path / "journal"), FileLocks(tmp_path / "journal"))
    assert backlog.status().living == 2 and not any(s.closed for s in backlog.segments())
    one.close()
    assert backlog.status().living == 1 and sorted(s.closed for s in backlog.segments()) == [False, True]


def test_metrics(open_hook: Opened) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    hook = open_hook()
    hook.on_evict(EvictionRequest("a", [1, 2]))
    hook.on_evict(EvictionRequest("a", [1], multimodal=True))
    hook.flush(60)
    registry = CollectorRegistry()
    registry.register(hook.metrics())
    text = generate_latest(registry).decode()
    for line in (
        "pltz_hook_accepted_total 1.0", "pltz_hook_durable_total 1.0",
        'pltz_hook_refused_total{reason="multimodal"} 1.0', "pltz_hook_durable_seconds_count 1.0",
        "pltz_hook_queue 0.0", "pltz_hook_failing 0.0",
        f"pltz_hook_journal_waiting_bytes {float(hook.backlog.status().waiting)}",
    ):
        assert line in text.splitlines(), line


def test_on_evict_leaves_the_work_to_the_flusher(open_hook: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The serving loop hands ids over, and another thread makes them an entry and writes it. A benchmark measures."""
    hook, threads = open_hook(), list[int]()
    encode, sync = JournalEntry.encode, hook.disk.sync_file

    def noted(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            threads.append(threading.get_ident())
            return work(*given)

        return call

    monkeypatch.setattr(JournalEntry, "encode", noted(encode))
    monkeypatch.setattr(hook.disk, "sync_file", noted(sync))
    for n, ids in enumerate((list(range(9)), np.arange(9), torch.arange(9), bytes(36))):
        hook.on_evict(EvictionRequest(f"s{n}", ids))
    assert hook.flush(60) and len(threads) >= 5 and threading.get_ident() not in threads


def test_opening_says_what_is_wrong(tmp_path: Path, codec: SegmentCodec) -> None:
    with pytest.raises(UsageError, match="no archive"):
        EvictionHook.open(tmp_path / "j", tmp_path / "cold")
    assert JournalReader(OsDisk(tmp_path / "j"), FileLocks(tmp_path / "j")).status().living == 0
    with pytest.raises(UsageError, match="16 bytes"):
        EvictionHook.open(tmp_path / "j", target=b"x")
    with pytest.raises(ModelError):
        EvictionHook.open(tmp_path / "j", tokenizer=b"{}")
    with pytest.raises(UsageError, match="flush_seconds"):
        HookSettings(flush_seconds=0)
    assert (tmp_path / "j").stat().st_mode & 0o77 == 0
