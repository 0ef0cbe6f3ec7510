"""pltz archive copy: histories go into another archive."""

import json
from pathlib import Path

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
