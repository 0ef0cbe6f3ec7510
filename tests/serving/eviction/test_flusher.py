"""The flusher, through the hook: journal files that fill and turn over, disks that are full, fail or die."""

import errno
import logging
from typing import Any

import numpy as np
import pytest

from pltz.serving.eviction.eviction import EvictionRequest
from tests.serving.eviction.opened import Opened, entries, eventually


@pytest.mark.parametrize("call", ["append", "write_new"])
def test_a_full_disk_fills_memory_then_refuses_and_loses_nothing(open_hook: Opened, call: str) -> None:
    hook = open_hook(memory_bytes=100_000)
    disk: Any = hook.disk
    if call == "append":
        hook.on_evict(EvictionRequest("first", [1]))
        hook.flush(60)
    disk.failing = {"append": errno.ENOSPC, "write_new": errno.ENOSPC}
    tickets = [hook.on_evict(EvictionRequest(f"s{n}", np.arange(500))) for n in range(60)]
    taken = [ticket for ticket in tickets if ticket]
    assert 0 < len(taken) < 60 and not any(tickets[len(taken) :]) and eventually(lambda: hook.status()["failure"])
    status = hook.status()
    assert status["refused"] == {"memory full": 60 - len(taken)} and "No space" in status["failure"]
    assert status["memory_bytes"] <= 100_000 and not any(map(hook.durable, taken)) and not hook.flush(0.05)
    disk.failing = {}
    assert hook.flush(60) and all(map(hook.durable, taken)) and hook.status()["failure"] == ""
    assert [e.name for e in entries(hook) if e.name != "first"] == [f"s{n}" for n in range(len(taken))]
    assert hook.status()["memory_bytes"] == 0 and hook.status()["dropped"] == 0


def test_a_full_journal_is_a_full_disk(open_hook: Opened) -> None:
    hook = open_hook(journal_bytes=5000)
    tickets = [hook.on_evict(EvictionRequest(f"s{n}", np.arange(500))) for n in range(1)]
    assert hook.flush(60)
    tickets.append(hook.on_evict(EvictionRequest("more", np.arange(900))))
    assert eventually(lambda: "quota" in hook.status()["failure"])
    assert hook.durable(tickets[0]) and not hook.durable(tickets[1])


def test_the_oldest_are_dropped_where_that_is_asked_for(open_hook: Opened) -> None:
    hook = open_hook(memory_bytes=20_000, when_full="drop-oldest")
    disk: Any = hook.disk
    disk.failing = {"write_new": errno.ENOSPC}
    first = hook.on_evict(EvictionRequest("writing", [1]))
    assert eventually(lambda: hook.status()["failures"])  # the flusher holds it
    tickets = [hook.on_evict(EvictionRequest(f"s{n}", np.arange(500))) for n in range(20)]
    assert all(tickets) and hook.status()["dropped"] > 10 and hook.status()["refused"] == {}
    disk.failing = {}
    assert hook.flush(60)
    kept = [ticket for ticket in tickets if hook.durable(ticket)]
    assert kept == tickets[-len(kept) :] and len(kept) == 20 - hook.status()["dropped"] and hook.durable(first)
    assert [e.name for e in entries(hook)] == ["writing", *(f"s{n}" for n in range(20 - len(kept), 20))]


def test_a_failed_sync_ends_the_file_and_is_not_tried_again(open_hook: Opened) -> None:
    hook = open_hook()
    disk: Any = hook.disk
    hook.on_evict(EvictionRequest("a", [1]))
    hook.flush(60)
    [before] = [s.name for s in hook.backlog.segments()]
    disk.failing = {"sync_file": errno.EIO}
    ticket = hook.on_evict(EvictionRequest("b", [2]))
    assert eventually(lambda: hook.status()["failures"] >= 1) and not hook.durable(ticket)
    size = dict(hook.disk.names(""))[before.journal]
    disk.failing = {}
    assert hook.flush(60) and hook.durable(ticket)
    last = hook.on_evict(EvictionRequest("c", [3]))
    assert hook.flush(60) and hook.durable(last)
    assert dict(hook.disk.names(""))[before.journal] == size  # left as it was
    names = [e.name for s in hook.backlog.segments() if s.name != before for _, e in hook.backlog.read(s)]
    assert names[-2:] == ["b", "c"]


def test_segments_are_rotated(open_hook: Opened) -> None:
    hook = open_hook(segment_bytes=900)
    for n in range(10):
        hook.on_evict(EvictionRequest(f"s{n}", np.arange(200)))
        hook.flush(60)
    assert len(hook.backlog.segments()) == 10 and [s.closed for s in hook.backlog.segments()] == [True] * 9 + [False]
    assert [e.name for e in entries(hook)] == [f"s{n}" for n in range(10)]


def test_closing_over_a_dead_disk_says_so(open_hook: Opened, caplog: pytest.LogCaptureFixture) -> None:
    hook = open_hook()
    disk: Any = hook.disk
    disk.failing = {"write_new": errno.EIO}
    hook.on_evict(EvictionRequest("a", [1]))
    with caplog.at_level(logging.ERROR, "pltz.hook"):
        assert not hook.close(0.2)
    assert "tickets 1 to 1 are not durable" in caplog.text
