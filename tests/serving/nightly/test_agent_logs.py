"""Logs of coding agents in the nightly job: a session per file, and no two files in one session."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pltz.archive.archive import Archive
from pltz.datasets import registry
from pltz.serving.nightly.sources.jsonl import JsonlSource
from tests.serving.nightly.conftest import Nightly, chat, lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


OPENCODE = json.dumps(
    {"info": {"id": "ses_1"}, "messages": [{"info": {"role": "user"}, "parts": [{"type": "text", "text": "Hi"}]}]},
    indent=2,
).encode()


def log(session: str, events: int) -> bytes:
    """Return the log of a session of Claude Code."""
    rows = [
        {"type": role, "sessionId": session, "message": {"role": role, "content": f"turn {n} of {session}"}}
        for n, role in zip(range(events), itertools.cycle(("user", "assistant")), strict=False)
    ]
    return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)


def test_agent_logs_are_a_session_per_file(nightly: Nightly) -> None:
    nightly.sources = '[[source]]\nkind = "agent-logs"\npath = "logs"\ntenant = "acme"\n'
    nightly.write("logs/shop/events.jsonl", log("shop", 2))
    nightly.write("logs/garden/events.jsonl.gz", gzip.compress(log("garden", 2)))
    nightly.write("logs/garden/ses_1.json", OPENCODE)
    nightly.write("logs/garden/chats.jsonl", b'{"messages":[{"role":"user","content":"no log"}]}\n')
    nightly.write("logs/garden/notes.md", b"# no log\n")
    nightly.write("logs/top.jsonl", log("top", 1))
    assert nightly.counts() == (6, 0, 0, 0) and nightly.counts() == (0, 6, 0, 0)
    logs = "shop/events", "garden/events", "garden/ses_1", "logs/top"
    assert nightly.content().keys() == {("acme", name) for name in (*logs, "garden/chats/0", "garden/notes/0")}
    nightly.write("logs/shop/events.jsonl", log("shop", 4))
    report = nightly.run()
    assert (report["totals"]["frozen"], report["totals"]["known"]) == (1, 5)
    assert report["totals"]["packings"] == ["garden/events.jsonl.gz"]  # as `put` names it
    assert nightly.content()["acme", "shop/events"] == [log("shop", n).decode() for n in (2, 4)]


def test_a_log_that_was_rewritten_is_a_new_version_and_a_replaced_chat_needs_a_word(nightly: Nightly) -> None:
    nightly.sources = '[[source]]\nkind = "agent-logs"\npath = "logs"\n'
    path = nightly.write("logs/shop/events.jsonl", log("shop", 2))
    notes = nightly.write("logs/shop/MEMORY.md", b"- the shop sells tea\n")
    nightly.write("logs/shop/chats.jsonl", lines([chat(1)]))
    assert nightly.counts() == (3, 0, 0, 0)
    path.write_bytes(log("other", 3))
    notes.write_bytes(b"- the shop sells coffee\n")
    nightly.write("logs/shop/chats.jsonl", lines([chat(2)]))
    report = nightly.run()
    assert report["exit_code"] == 5 and report["totals"]["frozen"] == 2
    [refused] = report["refused"]
    assert refused["where"] == "shop/chats.jsonl: line 1" and "new_version = true" in refused["reason"]
    nightly.sources += "new_version = true\n"
    assert nightly.counts() == (1, 2, 0, 0) and {len(versions) for versions in nightly.content().values()} == {2}


def test_each_file_is_stored_or_counted_with_what_leaves_it_out(nightly: Nightly) -> None:
    nightly.sources = '[[source]]\nkind = "agent-logs"\npath = "logs"\n'
    nightly.write("elsewhere/-home-me-lib/s1.jsonl", log("s1", 2))
    nightly.write("logs/-home-me-shop/s2.jsonl", b"\n" + log("s2", 2))
    nightly.write("logs/-home-me-shop/s2/tool-results/out.txt", b"row\n")
    nightly.write("logs/-home-me-shop/s2/subagents/agent-a.meta.json", b'{"agentType":"explore"}')
    nightly.write("logs/app.db-wal", b"wal")
    nightly.write("logs/mine.tmp", b"kept unless left out")
    nightly.write("logs/empty.jsonl", b"")
    (nightly.root / "logs/-home-me-lib").symlink_to("../elsewhere/-home-me-lib")
    (nightly.root / "logs/-home-me-shop/up").symlink_to("..")
    os.mkfifo(nightly.root / "logs/-home-me-shop/pipe.jsonl")
    report = nightly.run()
    assert report["exit_code"] == 0 and report["totals"]["seen"] == report["totals"]["frozen"] == 5
    assert report["totals"]["left_out"] == {"*-wal": 1, "empty": 1, "link": 1, "no file": 1}
    real = nightly.root.resolve()
    assert report["told"] == [
        f"-home-me-lib: a link to {real}/elsewhere/-home-me-lib, followed",
        "-home-me-shop/pipe.jsonl: a pipe, left out",
        f"-home-me-shop/up: a link to {real}/logs, which holds this folder, left out",
        "empty.jsonl: is empty",
    ]
    whole = {(v.name, v.part) for v in Archive.open(nightly.root / "cold", bundle=nightly.bundles).list(parts=True)}
    shop = "./-home-me-shop/s2"
    parts = {(shop, part) for part in ("", "tool-results/out.txt", "subagents/agent-a.meta.json")}
    assert whole == {*parts, ("./-home-me-lib/s1", ""), ("mine/0", "")}
    nightly.sources += 'exclude = ["*.tmp"]\n'
    report = nightly.run()
    assert report["totals"]["left_out"] == {"*.tmp": 1, "empty": 1, "link": 1, "no file": 1}
    assert report["totals"]["frozen"] == 1  # the write-ahead log, which no rule leaves out now


@pytest.mark.parametrize("kind", ["agent-logs", "jsonl"])
def test_a_file_over_which_a_format_fails_stops_no_other(
    nightly: Nightly, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def fails(events: Sequence[dict[str, Any]]) -> bool:
        if events[0].get("sessionId") == "m":
            raise TypeError("unhashable")
        return False

    broken = replace(registry.FORMATS[-1], of_value=None, of_events=fails)
    monkeypatch.setattr(registry, "FORMATS", (broken, *registry.FORMATS))
    nightly.sources = f'[[source]]\nkind = "{kind}"\npath = "logs"\n'
    for name in "amz":
        nightly.write(f"logs/shop/{name}.jsonl", log(name, 2))
    report = nightly.run()
    if kind == "agent-logs":
        [refused] = report["refused"]
        assert refused["where"] == "shop/m.jsonl" and "TypeError: unhashable" in refused["reason"]
        assert report["exit_code"] == 5 and sorted(nightly.content()) == [("default", "shop/a"), ("default", "shop/z")]
    else:  # the lines themselves are values like any other
        assert [one["where"] for one in report["refused"]] == ["shop/a.jsonl", "shop/z.jsonl"]
        assert sorted(nightly.content()) == [("default", "shop/m/1"), ("default", "shop/m/2")]


def test_a_source_that_fails_stops_no_other(nightly: Nightly, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object, shard: object) -> Iterator[Any]:
        raise TypeError("unhashable")
        yield

    monkeypatch.setattr(JsonlSource, "entries", fails)
    nightly.sources = '[[source]]\nkind = "jsonl"\npath = "logs"\n[[source]]\nkind = "agent-logs"\npath = "logs"\n'
    nightly.write("logs/shop/a.jsonl", log("a", 2))
    report = nightly.run()
    [why] = report["failures"]
    assert report["exit_code"] == 7 and "TypeError: unhashable" in why
    assert list(nightly.content()) == [("default", "shop/a")]


def test_lines_that_are_one_session_of_an_agent_are_not_taken_one_by_one(nightly: Nightly) -> None:
    nightly.sources = '[[source]]\nkind = "jsonl"\npath = "chats"\n'
    nightly.write("chats/log.jsonl", log("shop", 9))
    nightly.write("chats/a.jsonl", lines([chat(1)]))
    [refused] = nightly.run()["refused"]
    assert refused["where"] == "log.jsonl" and "agent-logs" in refused["reason"]
    assert list(nightly.content()) == [("default", "a/1")]


def test_a_file_of_chats_that_another_replaced_needs_a_word(nightly: Nightly) -> None:
    nightly.sources = '[[source]]\nkind = "jsonl"\npath = "chats"\n'
    nightly.write("chats/a.jsonl", lines([chat(1), chat(2)]))
    assert nightly.counts() == (2, 0, 0, 0)
    nightly.write("chats/a.jsonl", lines([chat(3), chat(2, 2)]))
    assert nightly.counts() == (1, 0, 1, 5)
    nightly.sources += "new_version = true\n"
    assert nightly.counts()[2:] == (0, 0) and [len(versions) for versions in nightly.content().values()] == [2, 2]
