"""A log of an agent with what lies in the folder of its name: one session, put and given back as a whole."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.archive.test_put import event
from tests.cli.commands import Run, into, lines, ok

pytestmark = pytest.mark.usefixtures("bundle_at_hand")

NAME = "./-home-me-shop/0f3a6c1e"
PARTS = {
    "subagents/agent-a1.jsonl": event("s", 0) + event("s", 1),
    "subagents/agent-a1.meta.json": b'{"agentType": "explore"}', "subagents/agent-a1/tool-results/2.txt": b"two",
    "tool-results/1.bin": bytes(range(256)), "tool-results/chats.jsonl": b'{"messages":[]}\n{"messages":[]}\n',
}
OLD = 1_767_225_600_123_456_789  # ns


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    log = tmp_path / "projects/-home-me-shop/0f3a6c1e.jsonl"
    files = {log: event("m", 0) + event("m", 1)} | {log.with_suffix("") / part: data for part, data in PARTS.items()}
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, ns=(OLD, OLD))
    return tmp_path / "projects"


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def by_night(run: Run, projects: Path, place: Path) -> None:
    config = projects.parent / "nightly.toml"
    source = f'[[source]]\nkind = "agent-logs"\npath = "{projects}"\n'
    config.write_text(f'archive = "{place}"\nstate = "{projects.parent}/state"\n{source}')
    ok(run("nightly", "--config", config, "--json"))


@pytest.mark.parametrize("way", ["put", "nightly"])
def test_a_log_with_its_parts_is_one_session_and_comes_back(run: Run, cold: Path, projects: Path, way: str) -> None:
    if way == "put":
        done = run("archive", "put", "-r", cold, projects, "--exact")
        assert done.exit_code == 0 and "1 session with 5 other parts" in done.stderr, done.output
    else:
        by_night(run, projects, cold)
    [row] = lines(run("archive", "ls", "-r", cold, "--json"))
    assert (row["name"], row["parts"], row["version"]) == (NAME, ["", *PARTS], 1)
    assert row["content_bytes"] == sum(len(data) for data, _ in files(projects).values())
    assert row["mtime"] == OLD / 10**9 and row["turns"]
    # the other way finds nothing new
    by_night(run, projects, cold)
    [row] = lines(run("archive", "ls", "-r", cold, "--json"))
    assert row["version"] == 1
    back = projects.parent / "back"
    assert run("archive", "get", "-r", cold, NAME, "-o", into(back)).exit_code == 0 and files(back) == files(projects)


def test_a_name_is_one_of_the_session_with_its_parts(run: Run, cold: Path, projects: Path) -> None:
    assert run("archive", "put", "-r", cold, projects, "--name", "mine").exit_code == 0
    log = projects / "-home-me-shop/0f3a6c1e.jsonl"
    part = log.with_suffix("") / next(iter(PARTS))
    part.write_bytes(part.read_bytes() + event("s", 2))
    done = run("archive", "put", "-r", cold, part, "--name", "mine")
    assert done.exit_code == 0 and "0 sessions with 1 other part" in done.stderr
    [row] = lines(run("archive", "ls", "-r", cold, "--json"))
    assert (row["name"], row["parts"], row["version"]) == ("mine", ["", *PARTS], 2)
    assert run("archive", "get", "-r", cold, "mine").stdout_bytes == log.read_bytes()
    log.with_name("second.jsonl").write_bytes(event("t", 0))
    done = run("archive", "put", "-r", cold, projects, "--name", "other")
    assert done.exit_code == 2 and "there are more" in done.stderr
    assert len(lines(run("archive", "ls", "-r", cold, "--json"))) == 1


# ---- Which session a NAME means: an exact one, a beginning with *, and those of folders that begin with a dash


FILES = ["-home-me-shop/0f3a6c1e", "home-me-shop/0f3a6c1e", "-opt-x/1"]
NAMES = ["./-home-me-shop/0f3a6c1e", "home-me-shop/0f3a6c1e", "./-opt-x/1"]
PART = "subagents/a1.jsonl"  # of the first


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Return a folder of logs as Claude Code keeps them: the folder of /home/me/shop is -home-me-shop."""
    for name in (*(f"{name}.jsonl" for name in FILES), f"{FILES[0]}/{PART}"):
        path = tmp_path / "projects" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(event(name, 0) + event(name, 1))
    return tmp_path / "projects"


@pytest.fixture
def agents(run: Run, cold: Path, folders: Path) -> Path:
    """Return an archive of these logs."""
    found = lines(run("archive", "put", "-r", cold, folders, "--json"))
    assert sorted(row["name"] for row in found if "part" not in row) == sorted(NAMES)
    assert [(row["name"], row["part"]) for row in found if "part" in row] == [(NAMES[0], PART)]
    return cold


def test_what_was_put_is_found_by_the_name_that_ls_prints(run: Run, agents: Path, folders: Path) -> None:
    for file, name in zip(FILES, NAMES, strict=True):
        assert run("archive", "get", name, "-r", agents).stdout_bytes == (folders / f"{file}.jsonl").read_bytes()
        listed = [row["name"] for row in lines(run("archive", "ls", "-r", agents, name, "--json"))]
        assert name in listed
        assert lines(run("archive", "put", "-r", agents, folders / f"{file}.jsonl", "--json"))[0]["unchanged"]
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
