"""Names that begin with a dash, as those of Claude Code's folders do, are names and no options."""

import json
from pathlib import Path

import click
import pytest

from tests.cli.commands import Run, chat, lines

pytestmark = pytest.mark.usefixtures("bundle_at_hand")

NAMES = ["-home-me-shop/0f3a6c1e", "-opt-x/1", "-var-www/2", "--x/3"]


@pytest.fixture
def agents(run: Run, cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an archive of sessions whose names begin with a dash."""
    monkeypatch.chdir(tmp_path)
    Path("-home.jsonl").write_text("".join(json.dumps(chat(1, id=name)) + "\n" for name in NAMES))
    found = lines(run("archive", "put", cold, "-home.jsonl", "--name-key", "id", "--json"))
    assert [row["name"] for row in found] == NAMES
    return cold


def test_names_with_a_dash_are_taken_as_they_are(run: Run, agents: Path, tmp_path: Path) -> None:
    for name in NAMES:
        done = run("archive", "get", agents, name, "-o", tmp_path / "out.jsonl", "--force")
        assert done.exit_code == 0, done.output
        assert json.loads((tmp_path / "out.jsonl").read_bytes()) == chat(1, id=name)
    assert len(run("archive", "get", agents, *NAMES).stdout.splitlines()) == 4
    assert len(run("archive", "get", agents, "--", *NAMES).stdout.splitlines()) == 4
    thawed = run("thaw", "--archive", agents, NAMES[1], "--json")
    assert thawed.exit_code == 0 and json.loads(thawed.stdout)["tokens"]
    forgotten = run("archive", "forget", agents, NAMES[0])
    assert forgotten.exit_code == 0, forgotten.output
    assert run("archive", "undelete", agents, NAMES[0]).exit_code == 0
    assert run("archive", "export", agents, NAMES[2], "-o", "-").exit_code == 0


def test_options_stay_options(run: Run, cold: Path) -> None:
    from pltz.cli.archive.get import get

    get.get_help(click.Context(get))  # click keeps the help option that it made first
    assert run("archive", "get", cold, "-h").stdout.startswith("Usage:")
    for word, meant in (("--tenent", "--tenant"), ("-x", "-x"), ("-tenant", "--tenant")):
        done = run("archive", "get", cold, "a", word, "acme")
        assert done.exit_code == 2 and meant in done.stderr, done.output


def test_the_beginning_of_a_name_is_enough_where_one_session_has_it(run: Run, agents: Path) -> None:
    for word in ("-home-me*", "0f3a*"):
        done = run("archive", "get", agents, word)
        assert json.loads(done.stdout) == chat(1, id=NAMES[0]) and NAMES[0] in done.stderr
        assert run("thaw", "--archive", agents, word, "--json").exit_code == 0
    several = run("archive", "get", agents, "--", "-*")
    assert several.exit_code == 8 and NAMES[1] in several.stderr and "4 sessions" in several.stderr
    assert run("archive", "get", agents, "nobody*").exit_code == 8 == run("archive", "get", agents, "0f3a").exit_code
    part = run("archive", "get", agents, "a6c1e*")  # of what is behind the last slash
    assert json.loads(part.stdout) == chat(1, id=NAMES[0])
    assert run("archive", "get", agents, "me-shop*").exit_code == 8


def test_a_forgotten_session_is_no_beginning_of_another(run: Run, cold: Path, tmp_path: Path) -> None:
    for name in ("a", "a2"):
        text = tmp_path / f"{name}.txt"
        text.write_bytes(name.encode())
        assert run("archive", "put", cold, text, "--name", name).exit_code == 0
    assert run("archive", "get", cold, "a").stdout == "a"
    assert run("archive", "forget", cold, "a").exit_code == 0
    done = run("archive", "get", cold, "a")
    assert done.exit_code == 8 and not done.stdout
    assert run("archive", "get", cold, "a2").stdout == "a2"
