"""pltz hook on a tiny bundle: a journal is reported and archived, with the right exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from pltz.serving.eviction.eviction import EvictionRequest
from pltz.serving.eviction.hook import EvictionHook, HookSettings
from pltz.serving.eviction.journal.lock import FileLocks

Run = Callable[..., Result]


@pytest.fixture
def journal(tiny: Path, tmp_path: Path) -> Path:
    """Write three evictions of a process that ended, one of them with ids that no tokenizer has."""
    folder = tmp_path / "journal"
    with EvictionHook.open(folder, settings=HookSettings(flush_seconds=0.005)) as hook:
        for name, ids in (("a", [1, 2, 3]), ("a", [1, 2, 3, 4]), ("bad", [99999])):
            assert hook.on_evict(EvictionRequest(name, ids, tenant="acme"))
        assert hook.flush(60)
    return folder


def test_status_then_drain_then_nothing(run: Run, journal: Path, tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    assert run("archive", "init", "-r", cold).exit_code == 0
    held = json.loads(run("hook", "status", journal, "--json").output)
    assert held["segments"] == 1 and held["waiting"] > 100 and held["living"] == 0
    done = run("hook", "drain", journal, "--archive", cold, "--json")
    found = json.loads(done.output)
    assert (found["stored"], found["rejected"], found["entries"], done.exit_code) == (2, 1, 3, 5)
    assert found["refused"][0][:2] == ["acme", "bad"]
    text = run("hook", "status", journal).output
    assert "not archived  0 B" in text and ".refused" in text
    got = run("archive", "get", "-r", cold, "a", "--tenant", "acme")
    assert json.loads(got.output) == [1, 2, 3, 4]
    again = run("hook", "drain", journal, "--archive", cold)
    assert again.exit_code == 0 and "0 sessions stored" in again.output
    wrong = run("hook", "drain", journal, "--archive", tmp_path / "clod")
    assert wrong.exit_code == 2 and "no archive" in wrong.output, "nothing waits, and a wrong name is told all the same"


def test_a_file_of_the_journal_that_disappeared(run: Run, journal: Path, tmp_path: Path) -> None:
    assert run("archive", "init", "-r", tmp_path / "cold").exit_code == 0
    [file] = journal.glob("*.journal")
    file.unlink()
    told = run("hook", "status", journal)
    assert told.exit_code == 3 and f"{file.stem}.lost" in told.output
    done = run("hook", "drain", journal, "--archive", tmp_path / "cold")
    assert done.exit_code == 3 and "LOST: 1 file of the journal" in done.output
    assert run("hook", "drain", journal, "--archive", tmp_path / "cold").exit_code == 0
    told = run("hook", "status", journal, "--json")
    assert told.exit_code == 3 and json.loads(told.output)["lost"] == [f"{file.stem}.lost"]


def test_a_busy_journal(run: Run, journal: Path, tmp_path: Path) -> None:
    assert run("archive", "init", "-r", tmp_path / "cold").exit_code == 0
    lock = FileLocks(journal).take("worker.lock")
    assert lock
    done = run("hook", "drain", journal, "--archive", tmp_path / "cold", "--wait", "0")
    lock.free()
    assert done.exit_code == 7 and "another worker" in done.output


@pytest.mark.parametrize("command", ["status", "drain"])
def test_there_must_be_a_journal_and_an_archive(run: Run, tmp_path: Path, journal: Path, command: str) -> None:
    options = ["--archive", tmp_path / "cold"] if command == "drain" else []
    done = run("hook", command, tmp_path / "nothing", *options)
    assert done.exit_code == 2 and "no journal" in done.output
    if options:
        assert run("hook", "drain", journal, *options).exit_code == 2


@pytest.mark.parametrize("command", ["status", "drain"])
def test_a_folder_that_no_hook_opened_is_no_journal(run: Run, tmp_path: Path, command: str) -> None:
    assert run("archive", "init", "-r", tmp_path / "cold").exit_code == 0
    words = ["hook", command, tmp_path / "folder", *(["--archive", tmp_path / "cold"] if command == "drain" else [])]
    for inside in (".", "sub/folder"):
        (tmp_path / "folder" / inside).mkdir(parents=True, exist_ok=True)
        done = run(*words)
        assert done.exit_code == 2 and "no journal" in done.stderr and "no file of an eviction hook" in done.stderr
        assert not list((tmp_path / "folder").glob("worker.lock"))
    (tmp_path / "folder/notes.txt").write_text("mine")
    assert run(*words).exit_code == 2
    (tmp_path / "folder/worker.lock").touch()  # a journal of which everything is archived
    assert run(*words).exit_code == 0
