"""pltz serve as a process: 64 clients with random aborts, and kills of the server, lose no acknowledged turn."""

import http.client
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from pltz.archive.archive import Archive
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError
from pltz.serving.eviction.worker import drain
from pltz.serving.server.sessions import digest
from tests.serving.server.opened import Client

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = "from pltz.cli.main import main; main()"
PROMPTS = ("Once upon a time", " and then", " She said", " Where is my order?", " The end of it was")


class ServerProcess:
    """A running `pltz serve` on a folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        words = ["serve", "mini-llama", "--archive", str(folder / "cold"), "--port", "0", "--json", *options]
        words += ["--dtype", "float32", "--bundle", "nano"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.client = Client(int(json.loads(line)["url"].rpartition(":")[2]))

    def end(self, how: signal.Signals) -> int:
        """End it by a signal, and return its exit code."""
        self.process.send_signal(how)
        errors = self.process.communicate(timeout=300)[1]
        assert "Traceback" not in errors, errors
        return self.process.returncode


@contextmanager
def made(folder: Path) -> Any:
    """Make an archive, and end what is left of servers."""
    Archive.open(folder / "cold", create=True, bundle="nano").close()
    servers: list[ServerProcess] = []
    try:
        yield servers
    finally:
        for server in servers:
            if server.process.poll() is None:
                server.end(signal.SIGKILL)


class Talker(threading.Thread):
    """A client with a session of its own. ``acknowledged``: (tokens, digest) of each turn that ended."""

    def __init__(self, number: int, port: Any, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.session, self._port, self._stop_ = f"client/{number}", port, stop
        self.random = random.Random(number)
        self.acknowledged: list[tuple[int, str]] = []
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self) -> None:
        """Take turns until told to stop."""
        while not self._stop_.is_set():
            try:
                self._turn(Client(self._port()))
            except (OSError, http.client.HTTPException):
                self.seen["cut off"] += 1
                time.sleep(0.1)
            except AssertionError as exc:
                self.seen["refused"] += 1
                if not any(why in str(exc) for why in ("a turn under way", "took another turn", "cancelled")):
                    self.wrong.append(str(exc))
                time.sleep(0.05)

    def _turn(self, client: Client) -> None:
        cut = self.random.randrange(8) if self.random.random() < 0.3 else None
        prompt, limit = self.random.choice(PROMPTS), self.random.randrange(1, 8)
        events = client.stream("/v1/completions", prompt=prompt, max_tokens=limit, temperature=0, session=self.session)
        found = None
        for number, event in enumerate(events):
            if number == cut:
                self.seen["aborted"] += 1
                events.close()  # type: ignore[attr-defined]  # of a generator
                return
            if event == "[DONE]":
                assert found is not None
                self.acknowledged.append((found["tokens"], found["digest"]))
                self.seen["acknowledged"] += 1
                return
            if "error" in event:
                raise AssertionError(event["error"]["message"])
            found = event.get("session", found)
        raise OSError("the stream ended early")


@pytest.mark.slow
def test_64_clients_with_aborts_and_kills_lose_no_acknowledged_turn(tmp_path: Path) -> None:
    options = "--tokens", "4096", "--host-tokens", "2048", "--idle", "1"
    with made(tmp_path) as servers:
        stop = threading.Event()
        servers.append(ServerProcess(tmp_path, *options))
        talkers = [Talker(number, lambda: servers[-1].client.port, stop) for number in range(64)]
        for talker in talkers:
            talker.start()
        for kill in range(2):
            begun, before = time.monotonic(), sum(one.seen["acknowledged"] for one in talkers)
            while sum(one.seen["acknowledged"] for one in talkers) < before + 25:
                assert time.monotonic() - begun < 300, (kill, [one.wrong for one in talkers if one.wrong][:3])
                time.sleep(0.05)
            servers[-1].end(signal.SIGKILL)
            servers.append(ServerProcess(tmp_path, *options))
        time.sleep(1)
        stop.set()
        for talker in talkers:
            talker.join(300)
            assert not talker.is_alive() and not talker.wrong
        status, metrics = servers[-1].client.ask("GET", "/metrics")
        assert status == 200 and servers[-1].end(signal.SIGTERM) == 0
    assert not (done := drain(tmp_path / "cold.journal", tmp_path / "cold", bundle="nano")).rejected
    assert not done.busy and not done.lost
    spec = Target.load("mini-llama").tokenizer_json
    cold = Archive.open(tmp_path / "cold", bundle="nano", tokenizers=[spec])
    seen: Counter[str] = Counter()
    for talker in talkers:
        seen += talker.seen
        if talker.acknowledged:
            ids = cold.get(talker.session).ids
            for tokens, name in talker.acknowledged:
                assert digest(ids[:tokens]) == name, (talker.session, tokens, len(ids))
    print(json.dumps({**seen, "sessions": sum(bool(one.acknowledged) for one in talkers)}), metrics)
    assert seen["acknowledged"] >= 50 and seen["aborted"] > 8 and seen["cut off"] > 0


@pytest.mark.slow
def test_a_second_server_is_refused_and_the_example_runs(tmp_path: Path) -> None:
    with made(tmp_path) as servers:
        servers.append(ServerProcess(tmp_path))
        with pytest.raises(AssertionError, match="another server uses the journal"):
            ServerProcess(tmp_path)
        url = f"http://127.0.0.1:{servers[0].client.port}"
        found = subprocess.run(
            [sys.executable, ROOT / "examples/serve_client.py", "--url", url], check=False, capture_output=True,
            text=True,
        )
        assert found.returncode == 0, found.stderr
        said = json.loads(found.stdout)
        assert all(said["said"]) and said["tier"] == "cold" and said["tokens"][1] > said["tokens"][0]


@pytest.mark.slow
def test_a_signal_ends_streams_by_an_error(tmp_path: Path) -> None:
    with made(tmp_path) as servers:
        servers.append(ServerProcess(tmp_path))
        greedy = {"temperature": 0, "session": "long"}  # a text that never ends
        before = servers[0].client.post("/v1/completions", prompt="Once", max_tokens=2, **greedy)["session"]
        stream = servers[0].client.stream("/v1/completions", prompt=" upon a time", max_tokens=8000, **greedy)
        next(stream)
        servers[0].process.send_signal(signal.SIGTERM)
        assert "this server ends" in list(stream)[-1]["error"]["message"] and servers[0].end(signal.SIGTERM) == 0
    drain(tmp_path / "cold.journal", tmp_path / "cold", bundle="nano")
    cold = Archive.open(tmp_path / "cold", bundle="nano", tokenizers=[Target.load("mini-llama").tokenizer_json])
    assert digest(cold.get("long").ids) == before["digest"]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from pltz.serving.commands.serve import serve

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    with pytest.raises(UsageError, match=r"needs uvicorn, not installed here: pip install 'pltz\[serve\]'"):
        serve.main(["mini-llama", "--archive", str(tmp_path / "cold")], standalone_mode=False)
    assert not os.listdir(tmp_path)
