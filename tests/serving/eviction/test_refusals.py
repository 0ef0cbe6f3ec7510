"""Evictions that are not taken are counted, named and shown, and a flood of them does not fill the log."""

import json
import logging

import pytest

from pltz.serving.eviction import refusals
from pltz.serving.eviction.eviction import EvictionRequest
from tests.serving.eviction.opened import Opened, entries, eventually


def test_a_name_that_is_too_long_is_counted_and_named(open_hook: Opened, caplog: pytest.LogCaptureFixture) -> None:
    hook = open_hook()
    with caplog.at_level(logging.WARNING, "pltz.hook"):
        assert hook.on_evict(EvictionRequest("x" * 3000, [1], tenant="acme"))
        assert hook.on_evict(EvictionRequest("good", [1])) and hook.flush(60) and eventually(lambda: caplog.records)
    [record] = caplog.records
    line = record.getMessage()
    assert "name too long" in line and "xxx... of 3000 characters" in line and "acme" in line
    assert "3000" in line and len(line) < 500
    status = hook.status()
    assert status["refused"] == {"name too long": 1} and [e.name for e in entries(hook)] == ["good"]
    [shown] = status["refusals"]
    assert (shown["reason"], shown["count"], shown["tenant"]) == ("name too long", 1, "acme") and json.dumps(status)
    assert shown["session"].startswith("xxx")


def test_a_flood_is_counted_and_cut(open_hook: Opened, caplog: pytest.LogCaptureFixture) -> None:
    hook = open_hook()
    with caplog.at_level(logging.WARNING, "pltz.hook"):
        for n in range(1000):
            hook.on_evict(EvictionRequest(f"s{n}", []))
            hook.on_evict(EvictionRequest("again", [1], multimodal=True))
        hook.close()
    lines = [record.getMessage() for record in caplog.records]
    assert refusals.LINES <= len(lines) <= refusals.LINES + 2 and sum("more of late" in line for line in lines) == 2
    assert hook.status()["refused"] == {"no tokens": 1000, "multimodal": 1000}
    assert len(hook.status()["refusals"]) == refusals.KEPT
