"""``pltz llama import``: slot files into an archive, a bad one reported; a server that is not there is a named error.

With a server: tests/archive/hooks/test_llama_server.py.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from pltz.archive.token_archive import TokenArchive
from pltz.models.checkpoint import resolve

Run = Callable[..., Result]
SLOT = Path(__file__).parents[1] / "archive" / "hooks" / "recorded" / "slot.bin"


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    TokenArchive.open(tmp_path / "cold", create=True)
    tokenizer = resolve("mini-llama") / "tokenizer.json"
    return ["--archive", str(tmp_path / "cold"), "--tokenizer", str(tokenizer)]


def test_slot_files_become_sessions_and_a_bad_one_holds_up_nobody(
    tmp_path: Path, run: Run, options: list[str]
) -> None:
    shutil.copy(SLOT, tmp_path / "chat-7.bin")
    (tmp_path / "bad.bin").write_bytes(SLOT.read_bytes()[:40])
    shutil.copy(SLOT, tmp_path / "chat-8.bin")
    files = [tmp_path / name for name in ("chat-7.bin", "bad.bin", "chat-8.bin")]
    done = run("llama", "import", *files, *options, "--tenant", "acme", "--json")
    assert done.exit_code == 3
    report = json.loads(done.stdout)
    assert [row["name"] for row in report["frozen"]] == ["chat-7", "chat-8"]
    assert report["failed"][0]["file"].endswith("bad.bin") and "cut short" in report["failed"][0]["error"]
    cold = TokenArchive.open(tmp_path / "cold")
    assert len(cold.get("chat-8", "acme").ids) == 15
    again = run("llama", "import", tmp_path / "chat-7.bin", *options, "--tenant", "acme")
    assert again.exit_code == 0 and "in the archive already" in again.output


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
