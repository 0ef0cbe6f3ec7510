"""pltz hold: what it holds, who holds it and why is told, and stays until it is released."""

from pathlib import Path

import pytest

from tests.cli.commands import Put, Run, chat, lines

pytestmark = pytest.mark.usefixtures("bundle_at_hand")


def test_a_hold_is_placed_listed_and_released(run: Run, cold: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    for turns in (1, 2):
        put(chat(turns), "--name", "s", "--tag", "matter=7")
    monkeypatch.setenv("PLTZ_ACTOR", "bob")
    placed = lines(run("hold", "add", "-r", cold, "s", "--reason", "case seven", "--actor", "alice", "--json"))
    placed += lines(run("hold", "add", "-r", cold, "--tag", "matter=7", "--json"))
    placed += lines(run("hold", "add", "-r", cold, "--tenant", "default", "--json"))
    assert [(h["name"], h["tag"], h["actor"], h["reason"]) for h in placed] == [
        ("s", None, "alice", "case seven"), (None, {"matter": "7"}, "bob", ""), (None, None, "bob", "")
    ]
    assert sorted(h["id"] for h in lines(run("hold", "ls", "-r", cold, "--json"))) == sorted(h["id"] for h in placed)
    refused = run("archive", "forget", "-r", cold, "s")
    assert refused.exit_code == 7 and "pltz hold release" in refused.stderr
    assert lines(run("archive", "forget", "-r", cold, "--keep-last", 1, "--json")) == []
    assert "case seven" in run("hold", "ls", "-r", cold).stdout
    for hold in placed:
        assert run("hold", "release", "-r", cold, hold["id"][:9]).exit_code == 0
    assert run("hold", "ls", "-r", cold).stdout == ""
    assert len(lines(run("archive", "forget", "-r", cold, "s", "--json"))) == 2


@pytest.mark.parametrize(("words", "code"), [
    (["add"], 2), (["add", "nobody"], 8), (["add", "s", "--tag", "a=b"], 2), (["add", "--tag", "ab"], 2),
    (["add", "s", "--reason", "x" * 1025], 2), (["release", "1234567"], 2), (["release", "12345678"], 8),
    (["release", "not a hex number"], 2),
])
def test_what_names_no_hold_is_refused(run: Run, cold: Path, put: Put, words: list[str], code: int) -> None:
    put(chat(1), "--name", "s")
    assert run("hold", words[0], "-r", cold, *words[1:]).exit_code == code
