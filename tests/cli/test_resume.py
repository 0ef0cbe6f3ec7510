"""``pltz resume``: sessions put back where each agent looks, with what belongs to them and what goes on with them."""

import hashlib
import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Run, lines, ok
from tests.datasets.test_conversation import LOST
from tests.datasets.test_formats import lines as jsonl
from tests.files import files_in

pytestmark = pytest.mark.usefixtures("bundle_at_hand")

UUID = "4f35e220-0000-4000-8000-000000000001"
ROLLOUT = f"rollout-2026-08-01T10-00-00-{UUID}"
WHEN = "2026-08-01T10:00:00.000Z"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the user a home and a project of her own, ~/shop, and be in it."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "CODEX_SQLITE_HOME", "GEMINI_CLI_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "ada"))
    (tmp_path / "ada/shop").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "ada/shop")
    return tmp_path / "ada"


def claude(home: Path, **more: Any) -> list[dict[str, Any]]:
    said = {"type": "user", "sessionId": UUID, "cwd": f"{home}/shop", "timestamp": WHEN, "message": {"role": "user"}}
    rows = [{**said, "uuid": f"u{n}", "message": {"role": "user", "content": f"Turn {n}"}} for n in range(3)]
    return [{**row, **more} for row in rows]


def codex(home: Path) -> list[dict[str, Any]]:
    meta = {"id": UUID, "timestamp": WHEN, "cwd": f"{home}/shop", "cli_version": "1.2", "git": {"branch": "main"}}
    turn = {"sandbox_policy": {"type": "read-only"}, "approval_policy": "never", "model": "m"}
    rows = (
        ("session_meta", meta),
        ("turn_context", turn),
        ("event_msg", {"type": "user_message", "message": " Where is the bug? "}),
    )
    return [{"timestamp": WHEN, "type": kind, "payload": payload} for kind, payload in rows]


def copilot(home: Path) -> list[dict[str, Any]]:
    begun = {"sessionId": UUID, "context": {"cwd": f"{home}/shop"}}
    rows = (("session.start", begun), ("user.message", {"content": "Hi"}))
    return [{"type": kind, "data": data, "id": "x", "timestamp": WHEN, "parentId": None} for kind, data in rows]


def pi(home: Path) -> list[dict[str, Any]]:
    said = {"role": "user", "content": "Hi"}
    head = {"type": "session", "version": 3, "id": UUID, "timestamp": WHEN, "cwd": f"{home}/shop"}
    return [head, {"type": "message", "id": "1", "parentId": None, "message": said}]


def gemini(home: Path) -> dict[str, Any]:
    said = {"id": "1", "type": "user", "content": "Hi"}
    digest = hashlib.sha256(f"{home}/shop".encode()).hexdigest()
    return {"sessionId": UUID, "projectHash": digest, "startTime": WHEN, "lastUpdated": WHEN, "messages": [said]}


def opencode(home: Path) -> dict[str, Any]:
    part = {"id": "prt_1", "sessionID": "ses_1", "messageID": "msg_1", "type": "text", "text": "Hi"}
    said = {"info": {"id": "msg_1", "role": "user", "sessionID": "ses_1"}, "parts": [part]}
    return {"info": {"id": "ses_1", "directory": f"{home}/shop", "title": "bug"}, "messages": [said]}


def dashed(path: Path) -> str:
    return "".join(c if c.isalnum() else "-" for c in str(path))


def stored(run: Run, cold: Path, folder: Path, files: dict[str, bytes]) -> list[str]:
    """Put files, delete them, and return the names of their sessions."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        os.utime(folder / name, (1_700_000_000, 1_700_000_000))
    found = lines(run("archive", "put", "-r", cold, folder, "--exact", "--json"))
    for name in files:
        (folder / name).unlink()
    return [row["name"] for row in found if "part" not in row]


def resumed(run: Run, cold: Path, *words: str) -> dict[str, Any]:
    done = ok(run("resume", "-r", cold, *words, "--json"))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


GEMINI_LOG = "session-2026-08-01T10-00-4f35e220.json"
AGENTS = {  # where its files are in the home, their content, and what goes on
    "claude-code": (".claude/projects/{dashed}", f"{UUID}.jsonl", claude, f"claude --resume {UUID}"),
    "codex": (".codex/sessions", f"2026/08/01/{ROLLOUT}.jsonl", codex, f"codex resume {UUID}"),
    "gemini-cli": (".gemini/tmp", f"{{hash}}/chats/{GEMINI_LOG}", gemini, f"gemini --resume {UUID}"),
    "pi": (".pi/agent/sessions/-{slashed}--", f"2026-08-01T10-00-00-000Z_{UUID}.jsonl", pi, f"pi --session {UUID}"),
    "copilot-cli": (".copilot/session-state", f"{UUID}/events.jsonl", copilot, f"copilot --resume {UUID}"),
}


def of_agent(agent: str, home: Path) -> tuple[str, str, Any, str]:
    root, name, made, command = AGENTS[agent]
    digest = hashlib.sha256(f"{home}/shop".encode()).hexdigest()
    words = {"dashed": dashed(home / "shop"), "slashed": str(home / "shop").replace("/", "-"), "hash": digest}
    return root.format(**words), name.format(**words), made(home), command


@pytest.mark.parametrize("agent", AGENTS)
def test_a_session_comes_back_where_its_agent_looks(run: Run, cold: Path, home: Path, agent: str) -> None:
    root, name, value, command = of_agent(agent, home)
    data = jsonl(value) if isinstance(value, list) else json.dumps(value).encode()
    [session] = stored(run, cold, home / root, {name: data})
    found = resumed(run, cold, session)
    assert (home / root / name).read_bytes() == data and time.time() - (home / root / name).stat().st_mtime < 600
    assert (found["command"], found["agent"], found["files"], found["project"]) == (command, agent, 1, f"{home}/shop")
    assert ["workspace.yaml" in note for note in found["notes"]] == [True] * (agent == "copilot-cli")
    assert resumed(run, cold, session)["there"] == 1


@pytest.mark.parametrize("agent", AGENTS)
def test_a_log_put_alone_finds_the_place_by_what_it_says(run: Run, cold: Path, home: Path, agent: str) -> None:
    root, name, value, command = of_agent(agent, home)
    log = home / "log.jsonl"
    log.write_bytes(jsonl(value) if isinstance(value, list) else json.dumps(value).encode())
    assert run("archive", "put", "-r", cold, log, "--name", "log", "--exact").exit_code == 0
    if agent == "gemini-cli":  # it names a project as it does today, and says whose it is
        (home / ".gemini").mkdir()
        (home / ".gemini/projects.json").write_text(json.dumps({"projects": {f"{home}/shop": "shop-1"}}))
        name = f"shop-1/chats/{GEMINI_LOG}"
    assert resumed(run, cold, "log")["command"] == command and (home / root / name).read_bytes() == log.read_bytes()


def test_claude_code_gets_all_parts_and_what_is_missing_is_told(run: Run, cold: Path, home: Path) -> None:
    project = dashed(home / "shop")
    mentions = {"toolUseResult": {"agentId": "a1"}, "note": "tool-results/1.txt and tool-results/2.txt"}
    others = [row for agent in ("b2", "c3") for row in claude(home, toolUseResult={"agentId": agent})]
    files = {
        f"{project}/{UUID}.jsonl": jsonl([*claude(home, **mentions), *others]),
        f"{project}/{UUID}/subagents/agent-a1.jsonl": jsonl(claude(home, isSidechain=True)),
        f"{project}/{UUID}/subagents/agent-a1.meta.json": b"{}",
        f"{project}/{UUID}/tool-results/1.txt": b"row\n",
        f"{project}/agent-b2.jsonl": jsonl(claude(home, isSidechain=True)),  # as earlier versions had them
        f"{project}/other.jsonl": jsonl(claude(home)),
    }
    root = home / ".claude/projects"
    session = stored(run, cold, root, files)[0]
    found = resumed(run, cold, "4f35*")
    assert found["name"] == session and found["files"] == 5
    assert files_in(root) == {name: data for name, data in files.items() if "other" not in name}
    missing = "which the log mentions, is not in the archive"
    assert found["notes"] == [f"tool-results/2.txt, {missing}", f"./{project}/agent-c3, {missing}"]


def test_what_a_broken_branch_leaves_out_is_told(run: Run, cold: Path, home: Path) -> None:
    rows = [{**row, "sessionId": UUID, "cwd": f"{home}/shop"} for row in LOST]
    [session] = stored(run, cold, home, {f"{dashed(home / 'shop')}/{UUID}.jsonl": jsonl(rows)})
    why = "the parent of one is not in the log"
    assert resumed(run, cold, session)["notes"] == [f"claude-code shows 2 of 4 messages, because {why}"]


def test_a_project_that_moved_is_elsewhere(run: Run, cold: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{dashed(home / 'shop')}/{UUID}.jsonl": jsonl(claude(home))}
    [session] = stored(run, cold, home / ".claude/projects", files)
    (home / "shop").rename(home / "garden")
    monkeypatch.chdir(home)
    found = resumed(run, cold, session)
    assert found["command"] == f"cd {home}/shop && claude --resume {UUID}"
    assert found["notes"] == [f"the project's folder {home}/shop is not here: add --map {home}/shop=NEW or --here"]
    found = resumed(run, cold, session, "--map", f"{home}/shop={home}/garden")
    assert found["command"] == f"cd {home}/garden && claude --resume {UUID}" and not found["notes"]
    assert (home / ".claude/projects" / dashed(home / "garden") / f"{UUID}.jsonl").read_bytes() == jsonl(claude(home))
    (home / "else").mkdir()
    monkeypatch.chdir(home / "else")
    found = resumed(run, cold, session, "--here")
    assert found["command"] == f"claude --resume {UUID}" and len(found["places"]) == 1
    assert dashed(home / "else") in found["places"][0]
    assert run("resume", "-r", cold, session, "--here", "--map", "a=b").exit_code == 2
    assert run("resume", "-r", cold, session, "--map", "a").exit_code == 2


def test_gemini_claims_a_name_for_a_project_that_it_does_not_know(run: Run, cold: Path, home: Path) -> None:
    log = json.dumps(gemini(Path("/x"))).encode()
    [session] = stored(run, cold, home / ".gemini", {"tmp/garden/chats/session-1.json": log})
    told = "the log does not say where its project is: go there and add --here"
    assert resumed(run, cold, session)["notes"] == [told]
    (home / ".gemini/tmp/shop").mkdir()  # of another project
    assert not resumed(run, cold, session, "--here")["notes"]
    assert (home / ".gemini/tmp/shop-1/chats/session-1.json").exists()
    for folder in ("tmp", "history"):
        assert (home / ".gemini" / folder / "shop-1/.project_root").read_text() == f"{home}/shop"
    assert resumed(run, cold, session, "--here")["there"] == 1


def test_copilot_gets_what_lies_beside_its_log(run: Run, cold: Path, home: Path) -> None:
    root, files = home / ".copilot/session-state", {"events.jsonl": jsonl(copilot(home)), "workspace.yaml": b"cwd: x\n"}
    files |= {"checkpoints/index.md": b"# Checkpoints\n"}
    stored(run, cold, root, {f"{UUID}/{name}": data for name, data in files.items()} | {"other/plan.md": b"# no\n"})
    found = resumed(run, cold, f"{UUID}/events")
    assert not found["notes"] and found["files"] == 3
    assert {path.relative_to(root / UUID).as_posix() for path in root.rglob("*") if path.is_file()} == files.keys()


COLUMNS = """id TEXT PRIMARY KEY, rollout_path TEXT NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
    source TEXT NOT NULL, model_provider TEXT NOT NULL, cwd TEXT NOT NULL, title TEXT NOT NULL,
    sandbox_policy TEXT NOT NULL, approval_mode TEXT NOT NULL, tokens_used INTEGER NOT NULL DEFAULT 0,
    archived INTEGER NOT NULL DEFAULT 0, git_branch TEXT, first_user_message TEXT NOT NULL DEFAULT '',
    memory_mode TEXT NOT NULL DEFAULT 'enabled', updated_at_ms INTEGER"""


def test_codex_gets_its_row(run: Run, cold: Path, home: Path) -> None:
    log = f"2026/08/01/{ROLLOUT}.jsonl"
    [session] = stored(run, cold, home / ".codex/sessions", {log: jsonl(codex(home))})
    with closing(sqlite3.connect(home / ".codex/state_5.sqlite")) as base, base:
        base.execute(f"CREATE TABLE threads ({COLUMNS})")
    assert not resumed(run, cold, session)["notes"]
    with closing(sqlite3.connect(home / ".codex/state_5.sqlite")) as base, base:
        base.row_factory = sqlite3.Row
        [row] = map(dict, base.execute("SELECT * FROM threads"))
        assert row == {
            "id": UUID, "rollout_path": str(home / ".codex/sessions" / log), "created_at": 1785578400,
            "updated_at": 1785578400, "updated_at_ms": 1785578400000, "source": "cli", "model_provider": "openai",
            "cwd": f"{home}/shop", "title": "Where is the bug?", "first_user_message": "Where is the bug?",
            "sandbox_policy": '{"type": "read-only"}', "approval_mode": "never", "tokens_used": 0, "archived": 0,
            "git_branch": "main", "memory_mode": "enabled",
        }
        base.execute("UPDATE threads SET title = 'mine'")
    assert not resumed(run, cold, session)["notes"]
    with closing(sqlite3.connect(home / ".codex/state_5.sqlite")) as base, base:
        assert [*base.execute("SELECT title FROM threads")] == [("mine",)]
        base.execute("DROP TABLE threads")
        base.execute(f"CREATE TABLE threads ({COLUMNS}, shape TEXT NOT NULL)")
    assert resumed(run, cold, session)["notes"] == [
        "Codex's index has unknown columns (shape): Codex adds the session itself"
    ]
    (home / ".codex/state_5.sqlite").write_bytes(b"no database" * 99)
    [note] = resumed(run, cold, session)["notes"]
    assert "cannot be written" in note
    (home / ".codex/archived_sessions").mkdir()
    (home / f".codex/archived_sessions/{ROLLOUT}.jsonl").write_bytes(b"")
    assert "archived_sessions" in resumed(run, cold, session)["notes"][0]


@pytest.mark.parametrize("form", ["document", "database"])
def test_opencode_gets_what_its_import_takes(run: Run, cold: Path, home: Path, form: str) -> None:
    if form == "document":
        stored(run, cold, home, {"x/ses_1.json": json.dumps(opencode(home)).encode()})
        name = "x/ses_1"
    else:
        with closing(sqlite3.connect(home / "opencode.db")) as base, base:
            columns = "id, project_id, directory, title, version, time_created, time_updated, share_url, revert"
            base.execute(f"CREATE TABLE session ({columns})")
            base.execute("CREATE TABLE message (id, session_id, time_created, data)")
            base.execute("CREATE TABLE part (id, message_id, session_id, data)")
            row = ("ses_1", "p", f"{home}/shop", "bug", "1.0", 5, 6, None, None)
            base.execute("INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            base.execute("INSERT INTO message VALUES ('msg_1', 'ses_1', 5, '{\"role\":\"user\"}')")
            base.execute("INSERT INTO part VALUES ('prt_1', 'msg_1', 'ses_1', '{\"type\":\"text\",\"text\":\"Hi\"}')")
        assert run("archive", "put", "-r", cold, home / "opencode.db").exit_code == 0
        name = "opencode/ses_1"
    written = home / ".local/share/opencode/pltz/ses_1.json"
    assert resumed(run, cold, name)["command"] == f"opencode import {written} && opencode --session ses_1"
    found, expected = json.loads(written.read_bytes()), opencode(home)
    if form == "database":
        more = {"slug": "ses_1", "projectID": "p", "version": "1.0", "time": {"created": 5, "updated": 6}}
        expected["info"] = {**expected["info"], **more}
    assert found == expected
    written.write_bytes(b"an older export")
    assert resumed(run, cold, name)["files"] == 1 and json.loads(written.read_bytes()) == expected


def test_what_is_there_and_differs_is_never_replaced(run: Run, cold: Path, home: Path) -> None:
    place = f"{dashed(home / 'shop')}/{UUID}.jsonl"
    [session] = stored(run, cold, home / ".claude/projects", {place: jsonl(claude(home))})
    log = home / ".claude/projects" / place
    longer = jsonl(claude(home)) + b"{}\n"
    log.write_bytes(longer)
    os.utime(log, (0, 0))
    done = run("resume", "-r", cold, session)
    assert done.exit_code == 0 and f"left: {log} goes on" in done.stderr and log.read_bytes() == longer
    assert done.stdout == f"claude --resume {UUID}\n" and log.stat().st_mtime > 1_700_000_000
    for other in (b"mine\n", longer[:20]):
        log.write_bytes(other)
        done = run("resume", "-r", cold, session)
        assert done.exit_code == 2 and log.read_bytes() == other and not done.stdout and str(log) in done.stderr


def test_what_no_agent_goes_on_with_is_refused(run: Run, cold: Path, home: Path) -> None:
    (home / "chat.json").write_text('{"messages": [{"role": "user", "content": "Hi"}]}')
    (home / "task.json").write_text(json.dumps([{"ts": 1, "type": "say", "say": "text", "text": "Hi"}]))
    assert run("archive", "put", "-r", cold, home / "chat.json", home / "task.json").exit_code == 0
    for name, what in (("chat/0", "no agent that goes on with it is known"), ("ada/task", "cline is not known")):
        done = run("resume", "-r", cold, name)
        assert done.exit_code == 2 and what in done.stderr, done.output
    assert run("resume", "-r", cold, "nobody").exit_code == 8


def test_no_id_leads_out_of_the_folder_of_its_agent(run: Run, cold: Path, home: Path) -> None:
    rows = copilot(home)
    rows[0]["data"]["sessionId"] = "../../../evil"
    stored(run, cold, home / "in", {"a/b.jsonl": jsonl(rows)})
    found = resumed(run, cold, "a/b")
    assert found["places"] == [str(home / ".copilot/session-state/%2E%2E/%2E%2E/%2E%2E/evil/events.jsonl")]
    assert not [path for path in home.rglob("*evil*") if ".copilot" not in str(path)]


def test_logs_come_back_in_place(run: Run, cold: Path, home: Path) -> None:
    files = dict[str, bytes]()
    for agent in AGENTS:
        root, name, value, _ = of_agent(agent, home)
        files[f"{root}/{name}"] = jsonl(value) if isinstance(value, list) else json.dumps(value).encode()
    files[f".claude/projects/{dashed(home / 'shop')}/{UUID}/tool-results/1.txt"] = b"row\n"
    (home / "chat.json").write_text('{"messages": [{"role": "user", "content": "Hi"}]}')
    stored(run, cold, home, files)
    assert run("archive", "put", "-r", cold, home / "chat.json").exit_code == 0
    done = run("archive", "get", "-r", cold, "--in-place", "--json")
    assert done.exit_code == 2 and "session 'chat/0': no agent that goes on with it is known" in done.stderr
    assert (json.loads(done.stdout)["files"], json.loads(done.stdout)["refused"]) == (6, 1)
    for name, data in files.items():
        assert (home / name).read_bytes() == data and (home / name).stat().st_mtime == 1_700_000_000
    log = home / next(iter(files))
    log.write_bytes(log.read_bytes() + b"{}\n")
    done = run("archive", "get", "-r", cold, "./-*", "--in-place", "--json")
    assert done.exit_code == 0 and f"left: {log} goes on" in done.stderr and json.loads(done.stdout)["there"] == 3
    assert run("archive", "get", "-r", cold, "--in-place", "-o", home).exit_code == 2
