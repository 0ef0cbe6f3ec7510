"""Which session a NAME means: an exact one, a beginning with *, and those of folders that begin with a dash."""

import json
from pathlib import Path

import pytest

from tests.cli.archive.test_put import event
from tests.cli.commands import Run, lines

pytestmark = pytest.mark.usefixtures("bundle_at_hand")

FILES = ["-home-me-shop/0f3a6c1e", "home-me-shop/0f3a6c1e", "-opt-x/1"]
NAMES = ["./-home-me-shop/0f3a6c1e", "home-me-shop/0f3a6c1e", "./-opt-x/1"]
PART = "subagents/a1.jsonl"  # of the first


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    """Return a folder of logs as Claude Code keeps them: the folder of /home/me/shop is -home-me-shop."""
    for name in (*(f"{name}.jsonl" for name in FILES), f"{FILES[0]}/{PART}"):
        path = tmp_path / "projects" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(event(name, 0) + event(name, 1))
    return tmp_path / "projects"


@pytest.fixture
def agents(run: Run, cold: Path, projects: Path) -> Path:
    """Return an archive of these logs."""
    found = lines(run("archive", "put", "-r", cold, projects, "--json"))
    assert sorted(row["name"] for row in found if "part" not in row) == sorted(NAMES)
    assert [(row["name"], row["part"]) for row in found if "part" in row] == [(NAMES[0], PART)]
    return cold


def test_what_was_put_is_found_by_the_name_that_ls_prints(run: Run, agents: Path, projects: Path) -> None:
    for file, name in zip(FILES, NAMES, strict=True):
        assert run("archive", "get", name, "-r", agents).stdout_bytes == (projects / f"{file}.jsonl").read_bytes()
        listed = [row["name"] for row in lines(run("archive", "ls", "-r", agents, name, "--json"))]
        assert name in listed
        alone = lines(run("archive", "put", "-r", agents, projects / f"{file}.jsonl", "--json"))[0]
        assert alone["unchanged"]
    thawed = run("thaw", "-r", agents, NAMES[2], "--json")
    assert thawed.exit_code == 0 and json.loads(thawed.stdout)["tokens"]
    assert run("archive", "forget", "-r", agents, NAMES[0]).exit_code == 0
    assert run("archive", "undelete", "-r", agents, NAMES[0]).exit_code == 0


def test_a_name_is_exact_and_a_beginning_has_a_star(run: Run, agents: Path) -> None:
    for word, count in (("./-home*", 1), ("0f3a*", 2), ("*", 3), ("./-opt*", 1)):
        done = run("archive", "get", "-r", agents, word, "--json", "-o", "-")
        assert done.exit_code == 0 and json.loads(done.stderr)["sessions"] == count, done.output
    for word in ("nobody*", "0f3a", "me-shop*", "sub*"):
        done = run("archive", "get", "-r", agents, word)
        assert done.exit_code == 8 and not done.stdout, done.output
    for word, name in (("./-opt*", NAMES[2]), ("./-home*", NAMES[0])):
        assert run("thaw", "-r", agents, word, "--json").stderr.endswith(f"{word}: {name}\n")
    several = run("thaw", "-r", agents, "0f3a*")
    assert several.exit_code == 8 and "2 sessions are meant" in several.stderr and NAMES[0] in several.stderr
