"""``pltz llama import``: slot files go into an archive, a bad one is reported, a missing server is a named error.

With a server: tests/serving/engines/test_llama_server.py.
"""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from pltz.archive.format.ids import target_of
from pltz.models.target.checkpoint import resolve
from pltz.serving.engines.llama_server import fingerprint_gguf
from pltz.serving.engines.slot_archiver import SlotArchiver
from tests.archive.towers import SessionArchive
from tests.serving.engines.test_llama_server import Replay, serving
from tests.serving.engines.test_slot_archiver import FIRST, SECOND, served, use

Run = Callable[..., Result]
SLOT = Path(__file__).parents[1] / "engines" / "recorded" / "slot.bin"


class AnyPrompt(Replay):
    """A server without adapters that prefills any prompt."""

    def _answer(self, body: Any) -> None:
        count = len(body["prompt"]) if body else 0
        replies: dict[str, Any] = {
            "/v1/models": {"data": [{"meta": {"n_vocab": 16384}}]},
            "/lora-adapters": [],
            "/completion": {"id_slot": 0, "tokens_evaluated": count, "timings": {"cache_n": 0, "prompt_ms": 1}},
        }
        self._send(200, json.dumps(replies[self.path]).encode())


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    SessionArchive.open(tmp_path / "cold", create=True)
    tokenizer = resolve("mini-llama") / "tokenizer.json"
    return ["--archive", str(tmp_path / "cold"), "--tokenizer", str(tokenizer)]


def test_slot_files_become_sessions_and_a_bad_one_holds_up_nobody(tmp_path: Path, run: Run, options: list[str]) -> None:
    shutil.copy(SLOT, tmp_path / "chat-7.bin")
    (tmp_path / "bad.bin").write_bytes(SLOT.read_bytes()[:40])
    shutil.copy(SLOT, tmp_path / "chat-8.bin")
    files = [tmp_path / name for name in ("chat-7.bin", "bad.bin", "chat-8.bin")]
    done = run("llama", "import", *files, *options, "--tenant", "acme", "--json")
    assert done.exit_code == 3
    report = json.loads(done.stdout)
    assert [row["name"] for row in report["frozen"]] == ["chat-7", "chat-8"]
    assert report["failed"][0]["file"].endswith("bad.bin") and "cut short" in report["failed"][0]["error"]
    assert len(SessionArchive.open(tmp_path / "cold").get_ids("chat-8", "acme").ids) == 15
    again = run("llama", "import", tmp_path / "chat-7.bin", *options, "--tenant", "acme")
    assert again.exit_code == 0 and "in the archive already" in again.output


def test_slot_files_of_a_model_thaw_into_no_other(tmp_path: Path, run: Run, options: list[str]) -> None:
    """Refuse a thaw of unknown weights: a slot file names none, and any model of the same vocabulary was accepted."""
    made_by, other = tmp_path / "one.gguf", tmp_path / "other.gguf"
    made_by.write_bytes(b"GGUF one")
    other.write_bytes(b"GGUF other")
    for name, more in (("known", ["--model", made_by]), ("unknown", [])):
        shutil.copy(SLOT, tmp_path / f"{name}.bin")
        done = run("llama", "import", tmp_path / f"{name}.bin", *options, *more)
        assert done.exit_code == 0 and ("weights unknown" in done.output) == (not more)
    styled = ["--model", made_by, "--adapter", "style.gguf:0.5", "--json"]
    shutil.copy(SLOT, tmp_path / "styled.bin")
    [row] = json.loads(run("llama", "import", tmp_path / "styled.bin", *options, *styled).stdout)["frozen"]
    weights = fingerprint_gguf(made_by)
    cold = SessionArchive.open(tmp_path / "cold")
    assert cold.get_ids("known").target == weights and cold.get_ids("unknown").target is None
    assert bytes.fromhex(row["target"]) == cold.get_ids("styled").target == target_of(weights, "style.gguf:0.5")
    assert run("llama", "import", SLOT, *options, "--adapter", "style.gguf:0.5").exit_code == 2
    assert run("llama", "import", SLOT, *options, "--model", tmp_path / "none.gguf").exit_code == 2
    with serving(type("Any", (AnyPrompt,), {})) as url:
        wanted = {"known": (made_by, [], 0), "unknown": (made_by, ["--any-target"], 0)}
        for name, (model, extra, code) in wanted.items():
            done = run("llama", "thaw", url, name, "--model", model, *options, *extra)
            assert done.exit_code == code, done.output
        done = run("llama", "thaw", url, "known", "--model", other, *options)
        assert done.exit_code == 4 and weights.hex() in done.output
        done = run("llama", "thaw", url, "unknown", "--model", made_by, *options)
        assert done.exit_code == 2 and "not known" in done.output and "--any-target" in done.output


def test_errors_say_what_is_wrong(tmp_path: Path, run: Run, options: list[str]) -> None:
    server = "http://127.0.0.1:9"
    done = run("llama", "freeze", server, "chat-7", "--slot", 0, "--slots", tmp_path, *options)
    assert done.exit_code == 6 and "no answer from llama-server" in done.output
    done = run("llama", "thaw", server, "chat-7", *options)
    assert done.exit_code == 8 and "no session 'chat-7'" in done.output
    done = run("llama", "import", tmp_path / "none.bin", *options)
    assert done.exit_code == 2 and "cannot read" in done.output
    done = run("llama", "import", SLOT, "--archive", tmp_path / "cold", "--tokenizer", tmp_path / "none.json")
    assert done.exit_code == 2 and "none.json" in done.output


def test_watch_archives_idle_slots_until_it_is_told_to_end(tmp_path: Path, run: Run, options: list[str]) -> None:
    with served(tmp_path) as (handler, server):
        use(handler, 0, FIRST)
        where = [server.url, "--slots", tmp_path / "slots", "--journal", tmp_path / "journal", *options]
        done = run("llama", "watch", *where, "--once", "--keep", "1 MB", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) | {"kept_bytes": 0} == {
            "archived": 1, "refused": 0, "failed": 0, "kept": 1, "kept_bytes": 0, "laid_aside": 0,
        }  # fmt: skip
        use(handler, 1, SECOND)
        more = ["--idle", "1000", "--json"]
        command = [sys.executable, "-m", "pltz", "llama", "watch", *map(str, where), *more]
        watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert watching.stdout is not None and json.loads(watching.stdout.readline()) == {"watching": server.url}
            watching.send_signal(signal.SIGTERM)
            told = json.loads(watching.communicate(timeout=300)[0])
        finally:
            watching.kill()
        assert told["archived"] == 2 and told["kept"] == 1  # a new process does not know what was archived
        cold = SessionArchive.open(tmp_path / "cold")
        names = {version.name: version.version for version in cold.archive.ls()}
        assert len(names) == 2
        [name] = [name for name in names if cold.get_ids(name).ids.tolist() == FIRST]
        handler.held[0] = []
        back = ["llama", "thaw", server.url, name, "--any-target", *options, "--slots", tmp_path / "slots"]
        assert run(*back).exit_code == 2  # names no slot
        done = run(*back, "--slot", 0, "--json")
        assert (done.exit_code, json.loads(done.stdout)["cached"], handler.prefilled) == (0, 30, [0])
        server.url = "http://127.0.0.1:9"
        done = run("llama", "watch", server.url, *where[1:], "--once")
        assert done.exit_code == 6


def test_watch_ends_where_the_archive_does_not_take_its_sessions(
    tmp_path: Path, run: Run, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for ever for an archive that was gone, and said that sessions laid aside were archived."""
    with served(tmp_path) as (handler, server):
        handler.vocab = 100_000
        use(handler, 0, [*FIRST, 99_999])  # the tokenizer has no such id
        where = [server.url, "--slots", tmp_path / "slots", "--journal", tmp_path / "journal", *options, "--once"]
        done = run("llama", "watch", *where)
        assert done.exit_code == 5 and "do not fit the archive" in done.output
        use(handler, 0, SECOND)
        closes = SlotArchiver.close

        def gone(archiver: SlotArchiver) -> None:
            (tmp_path / "cold").rename(tmp_path / "away")
            closes(archiver)

        monkeypatch.setattr(SlotArchiver, "close", gone)
        done = run("llama", "watch", *where)
        assert done.exit_code == 7 and "is missing" in done.output and "pltz hook drain" in done.output
