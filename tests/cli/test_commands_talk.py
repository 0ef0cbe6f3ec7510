"""Commands that talk: misspelt words, errors as JSON, help topics, ranges of sessions, hints, the doctor."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from pltz.archive import opener
from pltz.archive.catalog.listing import Listing
from pltz.cli.root import cli
from pltz.cli.ui.groups import EXIT_CODES
from tests.cli.commands import Put, Run, chat


@pytest.mark.parametrize(("words", "meant"), [
    (["compres"], "pltz compress"), (["archive", "lss"], "pltz archive ls"), (["undelete"], "pltz archive undelete"),
    (["help", "inspct"], "pltz inspect"), (["archive", "delete"], "pltz archive forget"),
    (["archive", "export"], "pltz archive get"), (["archive", "list"], "pltz archive ls"),
    (["fsck"], "pltz archive verify"), (["dir"], "pltz archive ls"),
])
def test_a_misspelt_command_is_suggested(run: Run, words: list[str], meant: str) -> None:
    done = run(*words)
    assert done.exit_code == 2 and f"did you mean {meant}" in done.stderr
    assert done.stderr.startswith("error: no command") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("words", "kind", "code"), [
    (["inspect", "nothing.pltz", "--json"], "UsageError", 2),
    (["inspect", "--json"], "UsageError", 2),
    (["inspect", "a", "--no-such-option", "--json"], "UsageError", 2),
    (["archive", "ls", "-r", "nowhere", "--json"], "UsageError", 2),
])
def test_errors_are_json_where_json_is_asked_for(run: Run, words: list[str], kind: str, code: int) -> None:
    done = run(*words)
    found = json.loads(done.stderr)
    assert done.exit_code == code == found["exit_code"] and found["kind"] == kind and found["error"]
    assert run(*words[:-1]).stderr == f"error: {found['error']}\n"


def test_help_topics(run: Run) -> None:
    assert all(f"{code} {meaning}" in " ".join(run("help").stdout.split()) for code, meaning in EXIT_CODES)
    assert run("help", "archive", "put").stdout == run("archive", "put", "--help").stdout
    assert run("help").stdout == run("--help").stdout and "Exit codes" not in run("archive", "put", "--help").stdout
    assert run("help", "inspct").exit_code == 2


def test_sessions_by_ranges(run: Run, frozen: Path) -> None:
    every = run("decompress", frozen).stdout.splitlines()
    done = run("decompress", frozen, "--session", "3,0-1", "--session", 2)
    assert done.stdout.splitlines() == [every[3], every[0], every[1], every[2]]
    for wrong in ("", "1-", "3-1", "one", "0-9999999"):
        assert run("decompress", frozen, "--session", wrong).exit_code == 2
    assert run("decompress", frozen, "--session", "0-9").exit_code == 2


def test_a_name_that_is_not_there_reads_no_pack(
    run: Run, cold: Path, put: Put, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a terminal too: another tenant that has it was looked for in all packs."""
    put(chat(1), "--name", "s", "--tenant", "acme")
    opener.open_at(cold).indexes.write(everything=True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(Listing, "scan", lambda *_, **__: pytest.fail("a pack is read"))
    monkeypatch.setattr(Listing, "opened", lambda *_, **__: pytest.fail("a pack is opened"))
    for words in (["get"], ["forget"], ["undelete"]):
        done = run("archive", *words, "-r", cold, "s")
        assert done.exit_code == 8 and "acme" not in done.stderr


@pytest.fixture
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the doctor measure for as long as a busy machine takes."""
    monkeypatch.setattr(importlib.import_module("pltz.cli.doctor"), "BUDGET", 1e9)


def test_the_doctor_finds_this_machine_exact(run: Run, tiny: Path, no_hurry: None) -> None:
    done = run("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["cores"] >= 1
    assert {"torch"} <= {test["engine"] for test in found["self_test"]} and all(t["exact"] for t in found["self_test"])
    assert [bundle["name"] for bundle in found["bundles"]] == ["mini"]
    text = run("doctor").stdout
    assert "self-test" in text and "tokens/s on the CPU" in text


def test_the_doctor_tells_an_engine_that_is_not_exact(run: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pltz.coding.codec import Codec

    monkeypatch.setattr(Codec, "decompress", lambda *given, **options: [])
    done = run("doctor")
    assert done.exit_code == 6 and "NOT EXACT" in done.stdout


def test_the_doctor_measures_each_sound_bundle(run: Run, tiny: Path, tmp_path: Path, no_hurry: None) -> None:
    shutil.copytree(tiny / "bundles/mini", tmp_path / "user-bundles/broken")
    next((tmp_path / "user-bundles/broken").glob("weights*")).write_bytes(b"no weights")
    found = {bundle["name"]: bundle for bundle in json.loads(run("doctor", "--json").stdout)["bundles"]}
    assert found["mini"]["tokens_per_second"] > 0
    assert found["broken"]["tokens_per_second"] is None and found["broken"]["problem"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_a_shell(shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_PLTZ_COMPLETE", f"{shell}_source")
    with pytest.raises(SystemExit, match="0"):
        cli(prog_name="pltz")
    script = capsys.readouterr().out
    assert "_PLTZ_COMPLETE" in script and "pltz" in script
