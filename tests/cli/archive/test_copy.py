"""pltz archive copy: histories go into another archive."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Put, Run, chat, lines

pytestmark = pytest.mark.usefixtures("bundle_at_hand")


def test_copy(run: Run, cold: Path, put: Put, tmp_path: Path) -> None:
    put(chat(2), "--name", "s", "--tag", "a=1", "--time", 10)
    put(chat(4), "--name", "s", "--tag", "a=2", "--time", 20)
    put(chat(2), "--name", "u", "--tenant", "b", "--share-base", "shop", "--time", 5)
    put({"messages": []}, "--name", "empty")
    other = tmp_path / "other"
    run("archive", "init", "-r", other)
    assert len(lines(run("archive", "copy", "-r", cold, other, "--dry-run", "--json"))) == 4
    assert lines(run("archive", "ls", "-r", other, "--json")) == []
    assert len(lines(run("archive", "copy", "-r", cold, other, "--json"))) == 4
    listing = ("--history", "--json")
    assert lines(run("archive", "ls", "-r", other, *listing)) == lines(run("archive", "ls", "-r", cold, *listing))
    again = lines(run("archive", "copy", "-r", cold, other, "--json"))
    assert all(row["there"] for row in again)
    assert json.loads(run("archive", "get", "-r", other, "s", "--version", 1).stdout) == chat(2)
    assert put(chat(1), "--name", "new")
    assert [r["name"] for r in lines(run("archive", "copy", "-r", cold, other, "new", "--json"))] == ["new"]
    assert run("archive", "copy", "-r", cold, cold).exit_code == 2
    assert run("archive", "verify", "-r", other, "--decode").exit_code == 0


def test_a_copy_that_was_stopped_goes_on(
    run: Run, cold: Path, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pltz.archive import copy as transfer

    for n in range(1, 5):
        put(chat(n), "--name", f"s{n}")
    other = tmp_path / "other"
    run("archive", "init", "-r", other)
    monkeypatch.setattr(transfer, "COMMIT_SESSIONS", 1)
    whole, calls = transfer._commit, 0

    def stop(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return whole(*args)

    monkeypatch.setattr(transfer, "_commit", stop)
    assert run("archive", "copy", "-r", cold, other).exit_code == 1
    assert len(lines(run("archive", "ls", "-r", other, "--json"))) == 2
    monkeypatch.setattr(transfer, "_commit", whole)
    rows = lines(run("archive", "copy", "-r", cold, other, "--json"))
    assert [row["there"] for row in rows].count(True) == 2
    assert len(lines(run("archive", "ls", "-r", other, "--history", "--json"))) == 4
