"""Evictions that are not taken are counted, named and shown, and a flood of them fills neither the log nor the disk."""

from __future__ import annotations

import errno
import json
import logging
from pathlib import Path

import pytest

from pltz.archive.storage.disk import OsDisk
from pltz.serving.eviction import refusals
from pltz.serving.eviction.eviction import EvictionRequest
from pltz.serving.eviction.refusals import Refusals, read_refusals
from tests.serving.eviction.opened import Opened, entries, eventually


def test_a_name_that_is_too_long_is_counted_and_named(
    open_hook: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook = open_hook()
    with caplog.at_level(logging.WARNING, "pltz.hook"):
        assert hook.on_evict(EvictionRequest("x" * 3000, [1], tenant="acme"))
        assert hook.on_evict(EvictionRequest("good", [1]))
        assert hook.flush(10) and eventually(lambda: caplog.records)
    [record] = caplog.records
    line = record.getMessage()
    assert "name too long" in line and "xxx... of 3000 characters" in line and "acme" in line
    assert "3000" in line and len(line) < 500
    status = hook.status()
    assert status["refused"] == {"name too long": 1} and [e.name for e in entries(hook)] == ["good"]
    [shown] = status["refusals"]
    assert (shown["reason"], shown["count"], shown["tenant"]) == ("name too long", 1, "acme")
    assert json.dumps(status)
    counts, [row] = read_refusals(OsDisk(tmp_path / "journal"))
    assert counts == {"name too long": 1} and row.session.startswith("xxx")


def test_a_salted_tenant_is_refused_by_name(open_hook: Opened) -> None:
    hook = open_hook()
    hook.on_evict(EvictionRequest("chat", [1], tenant="acme#salt=00", salt="s"))
    assert hook.flush(10) and hook.status()["refused"] == {"tenant with a salt": 1}
    assert hook.status()["refusals"][0]["tenant"] == "acme#salt=00"


def test_metrics_count_refusals_by_reason(open_hook: Opened) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    hook = open_hook()
    hook.on_evict(EvictionRequest("x" * 3000, [1]))
    hook.refuse("not valid", {"a": "dictionary"}, None, "what a client wrote")
    assert hook.flush(10)
    registry = CollectorRegistry()
    registry.register(hook.metrics())
    text = generate_latest(registry).decode()
    assert 'pltz_hook_refused_total{reason="name too long"} 1.0' in text
    assert 'pltz_hook_refused_total{reason="not valid"} 1.0' in text


def test_a_flood_is_counted_and_cut(
    open_hook: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook = open_hook()
    with caplog.at_level(logging.WARNING, "pltz.hook"):
        for n in range(1000):
            hook.on_evict(EvictionRequest(f"s{n}", []))
            hook.on_evict(EvictionRequest("again", [1], multimodal=True))
        hook.close()
    lines = [record.getMessage() for record in caplog.records]
    assert refusals.LINES <= len(lines) <= refusals.LINES + 2
    assert sum("more of late" in line for line in lines) == 2
    counts, rows = read_refusals(OsDisk(tmp_path / "journal"))
    assert counts == {"no tokens": 1000, "multimodal": 1000} and len(rows) == len(lines)
    assert len(hook.status()["refusals"]) == refusals.KEPT


def test_a_name_is_told_again_in_the_next_period(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Refusals()
    assert noted.note("too long", 1, "a", "t") and not noted.note("too long", 2, "a", "t")
    assert [row.count for row in noted.rows()] == [1]
    monkeypatch.setattr(refusals, "PERIOD", 0.0)
    assert [(row.session, row.count, row.why) for row in noted.rows()] == [("", 2, "1 more of late")]
    assert noted.note("too long", 3, "a", "t") and [row.session for row in noted.rows()] == ["a"]


def test_the_file_is_begun_anew_and_keeps_its_counts(
    open_hook: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "MAX_FILE", 2000)
    monkeypatch.setattr(refusals, "LINES", 10**6)
    hook = open_hook()
    hook.on_evict(EvictionRequest("first", [1], multimodal=True))
    for n in range(100):
        hook.on_evict(EvictionRequest(f"s{n}", []))
        if n % 10 == 9:
            assert eventually(lambda: not hook._flusher.refusals._rows)
    hook.close()
    counts, _ = read_refusals(OsDisk(tmp_path / "journal"))
    assert counts == {"no tokens": 100, "multimodal": 1}
    [file] = (tmp_path / "journal").glob(f"*{refusals.SUFFIX}")
    assert file.stat().st_size < 4000


def test_a_full_disk_costs_rows_and_no_eviction(open_hook: Opened, tmp_path: Path) -> None:
    hook = open_hook()
    hook.disk.failing = {"append": errno.ENOSPC, "write_new": errno.ENOSPC}  # type: ignore[attr-defined]
    hook.on_evict(EvictionRequest("a", []))
    assert eventually(lambda: hook._flusher._file._torn)
    hook.disk.failing = {}  # type: ignore[attr-defined]
    hook.on_evict(EvictionRequest("b", []))
    ticket = hook.on_evict(EvictionRequest("good", [1]))
    assert hook.flush(10) and hook.durable(ticket) and eventually(lambda: not hook._flusher._file._torn)
    counts, [row] = read_refusals(OsDisk(tmp_path / "journal"))
    assert counts == {"no tokens": 2} and row.session == "b"


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"null", b"[" * 10_000, b'{"time": 1}', b"\xff\xfe"]
    + [
        b'{"time": %s, "reason": %s, "count": %s}' % fields
        for fields in (
            (b"-1", b'"a"', b"1"),
            (b"1", b"5", b"1"),
            (b"1", b'"a"', b'"x"'),
            (b"true", b'"a"', b"1"),
        )
    ],
)
def test_what_is_no_row_is_passed_over(tmp_path: Path, line: bytes) -> None:
    good = b'{"time": 7, "reason": "a", "count": 3, "session": "s", "tenant": "t", "why": ""}'
    (tmp_path / f"{'0' * 32}{refusals.SUFFIX}").write_bytes(line + b"\n" + good + b"\n" + good[:20])
    counts, rows = read_refusals(OsDisk(tmp_path))
    assert counts == {"a": 3} and [row.session for row in rows] == ["s"]
