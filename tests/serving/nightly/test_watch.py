"""Signs of life: pings, alarms of what does not come and of a disk that fills, and what retention spares."""

import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from pltz.archive.archive import Archive
from pltz.serving.nightly import job
from pltz.serving.nightly.watch import ping
from tests.cli.commands import Run
from tests.serving.nightly.conftest import Nightly, chat, lines

DAY = 86_400


@pytest.fixture
def watcher() -> Iterator[tuple[str, list[str]]]:
    """Serve pings: the URL, and the paths that were asked for."""
    asked = list[str]()

    class Watcher(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(500 if "refused" in self.path else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Watcher)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/check", asked
    server.shutdown()
    server.server_close()


def test_begin_end_and_failure_are_told_and_no_ping_fails_the_job(
    run: Run, nightly: Nightly, watcher: tuple[str, list[str]]
) -> None:
    url, asked = watcher
    nightly.write("chats/a.jsonl", lines([chat(1)]))
    config = nightly.write("job.toml", (nightly.head + nightly.sources).encode())
    assert run("nightly", "--config", config, "--ping", url, "--no-progress").exit_code == 0
    assert asked == ["/check/start", "/check"]
    nightly.write("chats/a.jsonl", lines([chat(1)]) + b"no\n")
    assert run("nightly", "--config", config, "--ping", url, "--no-progress").exit_code == 5
    assert asked[2:] == ["/check/start", "/check"]  # the others are in
    (nightly.root / "cold/archive.json").rename(nightly.root / "away")
    (nightly.root / "cold/manifest").rename(nightly.root / "manifest")
    assert run("nightly", "--config", config, "--ping", url, "--no-progress").exit_code != 0
    assert asked[4:] == ["/check/start", "/check/fail"]
    (nightly.root / "manifest").rename(nightly.root / "cold/manifest")
    (nightly.root / "away").rename(nightly.root / "cold/archive.json")
    for wrong in (f"{url}/refused", "http://127.0.0.1:1/none", "nonsense", "file:///etc/passwd"):
        done = run("nightly", "--config", config, "--ping", wrong, "--no-progress")
        assert done.exit_code == 5 and done.stderr.count("the ping to") == 2
    assert ping(f"{url}/refused").startswith("the ping to") and not ping(url)


def test_alarms_have_an_exit_code_of_their_own_and_metrics(nightly: Nightly, monkeypatch: pytest.MonkeyPatch) -> None:
    nightly.write("chats/a.jsonl", lines([chat(1)]))
    nightly.rest = '[watch]\nnew_session = "3d"\nspace = "14d"\n'
    report = nightly.run()
    assert report["exit_code"] == 0 and report["watch"]["alarms"] == [] and report["before"] is None
    first = Path(report["report"])
    told = json.loads(first.read_text()) | {"started": time.time() - 5 * DAY}
    told["archive"]["disk_bytes"] = 1
    first.write_text(json.dumps(told))
    report = nightly.run()
    assert report["exit_code"] == 0 and report["before"]["run"] == 1 and report["watch"]["space_days"] > 14

    class Full:
        f_bavail, f_frsize = 0, 4096

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    report = nightly.run()
    assert report["exit_code"] == job.ALARM and "the disk is full in" in report["watch"]["alarms"][0]
    monkeypatch.undo()
    nightly.rest = '[watch]\nnew_session = "1s"\n'
    time.sleep(2.1)
    report = nightly.run()
    assert report["exit_code"] == job.ALARM and "no new session for" in report["watch"]["alarms"][0]
    metrics = (nightly.root / "state/metrics.prom").read_text()
    assert "pltz_nightly_exit_code 11\n" in metrics and "pltz_archive_newest_session_age_seconds" in metrics


def test_floors_and_holds_spare_what_other_rules_let_expire(nightly: Nightly, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLTZ_ACTOR", "night")
    for turns in (1, 2, 3):
        nightly.write("chats/a.jsonl", lines(chat(n, turns) for n in range(3)))
        nightly.run()
    with Archive.open(nightly.root / "cold", actor="alice", reason="case 7") as cold:
        cold.hold("chat-1")
    last = "[[retention]]\nkeep_last = 1\n"
    young = '[[retention]]\ntenant = "default"\nkeep_at_least = "1d"\n'
    for floor, spared in ((young, {"held": 2, "floor": 4}), ("", {"held": 2})):
        nightly.rest = last + floor
        found: dict[str, Any] = nightly.run(dry_run=True)["retention"]
        assert {why: found[why] for why in spared} == spared
        assert found["rules"][0] == {"rule": "keep_last 1"} | ({} if floor else {"versions": 4, "sessions": 2})
        assert nightly.run()["retention"]["forgotten"] == (0 if floor else 4)
    nightly.rest = '[[retention]]\nkeep_at_most = "1s"\n'
    time.sleep(2.1)
    assert nightly.run()["retention"]["forgotten"] == 2  # the last versions too
    with Archive.open(nightly.root / "cold") as cold:
        assert [v.name for v in cold.list()] == ["chat-1"] and {e.actor for e in cold.audit()} == {"night", "alice"}
