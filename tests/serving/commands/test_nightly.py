"""``pltz nightly``: the job on the command line, its exit codes and what it prints."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from pltz.serving.nightly.config import EXAMPLE

Run = Callable[..., Result]


@pytest.fixture
def config(tiny: Path, run: Run, chats: Path, tmp_path: Path) -> Path:
    """Configure a job over the four chats, with an archive."""
    assert run("archive", "init", "-r", tmp_path / "cold").exit_code == 0
    path = tmp_path / "nightly.toml"
    text = f'archive = "cold"\nstate = "state"\n[[source]]\nkind = "jsonl"\npath = "{chats}"\n[verify]\n'
    path.write_text(text + "[[retention]]\nkeep_last = 2\n[collect]\n")
    return path


def test_a_night_and_the_next_one(run: Run, config: Path, tmp_path: Path) -> None:
    done = run("nightly", "--config", config, "--progress")
    assert done.exit_code == 0, done.output
    assert "freeze  4 sessions" in done.stderr and "sound" in done.stdout
    lines = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    page = Path(lines["report"].strip())
    assert page.is_file() and page.parent == tmp_path / "state/reports"
    listed = [json.loads(line) for line in run("archive", "ls", "-r", tmp_path / "cold", "--json").stdout.splitlines()]
    assert [found["name"] for found in listed] == ["chats/1", "chats/2", "chats/3", "chats/4"]
    again = json.loads(run("nightly", "--config", config, "--json").stdout)
    assert (again["totals"]["frozen"], again["totals"]["known"], again["exit_code"]) == (0, 4, 0)


def test_a_refused_session_is_printed_and_the_exit_code_says_so(run: Run, config: Path, chats: Path) -> None:
    chats.write_bytes(chats.read_bytes() + b"\x1b[2J no session\n")
    done = run("nightly", "--config", config)
    assert done.exit_code == 5
    assert "refused: chats.jsonl:5 (jsonl-1): expected JSON" in done.stdout and "\x1b" not in done.stdout
    report = json.loads(run("nightly", "--config", config, "--json").stdout)
    assert report["totals"]["known"] == 4 and report["refused"][0]["where"] == "chats.jsonl:5"


def test_a_dry_run_makes_nothing(run: Run, config: Path, tmp_path: Path) -> None:
    done = run("nightly", "--config", config, "--dry-run")
    assert done.exit_code == 0 and "would be frozen" in done.stdout
    assert not (tmp_path / "state").exists() and not list((tmp_path / "cold/packs").iterdir())


def test_the_example_says_itself(run: Run) -> None:
    done = run("nightly", "--example")
    assert done.exit_code == 0 and done.stdout == EXAMPLE


@pytest.mark.parametrize(
    "words, message", [([], "expected --config FILE"), (["--config", "no.toml"], "cannot read the configuration")]
)
def test_calls_that_are_wrong(run: Run, config: Path, words: list[str], message: str) -> None:
    done = run("nightly", *(str(config) if word == "CONFIG" else word for word in words))
    assert done.exit_code == 2 and message in done.stderr


def test_a_second_run_at_the_same_time_ends_with_7(run: Run, config: Path, tmp_path: Path) -> None:
    from pltz.serving.nightly.state import StateFolder

    state = StateFolder(tmp_path / "state")
    state.make()
    with state.lock():
        done = run("nightly", "--config", config)
    assert done.exit_code == 7 and "another run is going on" in done.stderr


def test_importing_the_command_loads_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "matplotlib", "sqlite3", "ray"}
    code = f"import sys, pltz.serving.commands.nightly; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
