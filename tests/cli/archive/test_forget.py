"""pltz archive forget, undelete and collect: sessions are forgotten, come back, and are gone for good."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import Put, Run, chat, lines

pytestmark = pytest.mark.usefixtures("bundle_at_hand")


def test_forget_and_undelete(run: Run, cold: Path, put: Put) -> None:
    for turns in (1, 2, 3):
        put(chat(turns), "--name", "s", "--time", turns)
    put(chat(4), "--name", "t", "--time", 4)
    dry = lines(run("archive", "forget", "-r", cold, "--keep-last", 1, "--dry-run", "--json"))
    assert [(v["name"], v["version"]) for v in dry] == [("s", 1), ("s", 2)]
    assert len(lines(run("archive", "ls", "-r", cold, "--history", "--json"))) == 4
    gone = lines(run("archive", "forget", "-r", cold, "--keep-last", 1, "--json"))
    assert [v["id"] for v in gone] == [v["id"] for v in dry]
    assert {v["forgotten"] for v in dry} == {False} and {v["forgotten"] for v in gone} == {True}
    assert [v["version"] for v in lines(run("archive", "ls", "-r", cold, "--history", "--json"))] == [3, 1]
    back = lines(run("archive", "undelete", "-r", cold, "s", "--version", 2, "--json"))
    assert [(v["version"], v["forgotten"]) for v in back] == [(2, False)]
    assert run("archive", "forget", "-r", cold, "s").exit_code == 0
    missing = run("archive", "get", "-r", cold, "s")
    assert missing.exit_code == 8 and "forgotten" in missing.stderr
    assert len(lines(run("archive", "undelete", "-r", cold, "s", "--json"))) == 3
    assert json.loads(run("archive", "get", "-r", cold, "s").stdout) == chat(3)


def test_a_policy_keeps_the_last(run: Run, cold: Path, put: Put) -> None:
    for turns in (1, 2):
        put(chat(turns), "--name", "s", "--time", turns, "--tag", "trial=yes")
        put(chat(turns), "--name", "t", "--time", turns)
    words = ("--keep-within", "1d", "--tag", "trial=yes")
    gone = lines(run("archive", "forget", "-r", cold, *words, "--json"))
    assert [(v["name"], v["version"]) for v in gone] == [("s", 1)]


@pytest.mark.parametrize(("words", "code"), [
    ([], 2), (["--keep-within", "soon"], 2), (["s", "--version", 1, "--keep-last", 1], 2), (["nobody"], 8),
    (["s", "--version", 9], 8), (["s", "--tenant", "other"], 8),
])
def test_forget_refuses(run: Run, cold: Path, put: Put, words: list[object], code: int) -> None:
    put(chat(1), "--name", "s")
    done = run("archive", "forget", "-r", cold, *words)
    assert done.exit_code == code, done.output
    assert len(lines(run("archive", "ls", "-r", cold, "--json"))) == 1


def test_collect_waits_for_the_grace_period(run: Run, cold: Path, put: Put) -> None:
    put(chat(8), "--name", "gone")
    put({"messages": [{"role": "user", "content": "stay"}]}, "--name", "stays")
    assert run("archive", "forget", "-r", cold, "gone").exit_code == 0
    dry = lines(run("archive", "collect", "-r", cold, "--grace", "0s", "--dry-run", "--json"))[0]
    assert dry["condemned"] > 0 and lines(run("archive", "stat", "-r", cold, "--json"))[0]["condemned"] == 0
    first = lines(run("archive", "collect", "-r", cold, "--json"))[0]
    assert first["condemned"] > 0 and first["deleted"] == 0
    assert lines(run("archive", "collect", "-r", cold, "--json"))[0]["deleted"] == 0, "condemned a moment ago"
    second = lines(run("archive", "collect", "-r", cold, "--grace", "0s", "--json"))[0]
    assert second["deleted"] == first["condemned"] and second["freed"] > 0
    assert run("archive", "undelete", "-r", cold, "gone").exit_code == 8
    assert json.loads(run("archive", "get", "-r", cold, "stays").stdout)["messages"][0]["content"] == "stay"
    assert run("archive", "verify", "-r", cold, "--decode").exit_code == 0
