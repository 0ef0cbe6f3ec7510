"""The logs of each agent, in the folders that it keeps them in: put, the nightly job and queries take them alike."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pltz.archive.archive import Archive
from pltz.datasets.file_forms import FILE
from tests.cli.commands import Run, into, ok
from tests.datasets.test_conversation import CLAUDE as CLAUDE_CODE, CODEX, COPILOT, PI
from tests.datasets.test_formats import AIDER, DOCUMENTS, GEMINI_LINES, MARKDOWN, OH_MY_PI, lines as jsonl
from tests.files import files_in, write_files

pytestmark = pytest.mark.usefixtures("bundle_at_hand")

TASK = [{"role": "user", "content": [{"type": "text", "text": "<task>\nAdd a test\n</task>"}]}, {"role": "assistant"}]
ROO_TASK = [{"role": "user", "content": [{"type": "text", "text": "Add a test"}], "ts": 1767603600000}]


def document(value: Any, **how: Any) -> bytes:
    return json.dumps(value, **how).encode()


def own(events: list[Any], session: str) -> list[Any]:
    """Return events of Claude Code as of another session."""
    return [{**event, "sessionId": session} for event in events]


FILES = {  # eleven agents, with what else they keep
    ".claude/projects/-home-ada-shop/4f35e220.jsonl": jsonl(CLAUDE_CODE),
    ".claude/projects/-home-ada-shop/4f35e220/subagents/agent-a1.jsonl": jsonl(own(CLAUDE_CODE, "a1")),
    ".claude/projects/-home-ada-garden/4f35e220.jsonl": jsonl(own(CLAUDE_CODE, "garden")),
    ".codex/sessions/2026/01/05/rollout-2026-01-05T09-00-00-a1.jsonl": jsonl(CODEX),
    ".gemini/tmp/7e89/chats/session-1.json": document(DOCUMENTS["gemini-cli"][1], indent=2),
    ".gemini/tmp/7e89/chats/session-2.jsonl": jsonl(GEMINI_LINES),
    ".copilot/session-state/378a/events.jsonl": jsonl(COPILOT),
    ".copilot/session-state/378b/events.jsonl": jsonl([*COPILOT, *COPILOT]),
    ".pi/agent/sessions/--home-ada--/019f.jsonl": jsonl(PI),
    ".omp/sessions/019f.jsonl": jsonl(OH_MY_PI),
    "opencode/ses_1.json": document(DOCUMENTS["opencode"][1]),
    "cline/tasks/1767603600000/ui_messages.json": document(DOCUMENTS["cline"][1]),
    "cline/tasks/1767603600000/api_conversation_history.json": document(TASK),
    "roo/tasks/9b1c/api_conversation_history.json": document(ROO_TASK),
    "openhands/trajectory.json": document(DOCUMENTS["openhands"][1]),
    "openhands/output.jsonl": jsonl([{**DOCUMENTS["openhands output"][1], "instance_id": f"a-{n}"} for n in range(3)]),
    "swe-agent/issue-7.traj": document(DOCUMENTS["swe-agent"][1], indent=2),
    "swe-agent/8.traj": document(DOCUMENTS["swe-agent"][1]),
    "swe-agent/issue-9.traj.json": document(DOCUMENTS["mini-swe-agent"][1]),
    "shop/.aider.chat.history.md": AIDER.encode(),
    "shop/.specstory/history/2026-01-05-fix.md": MARKDOWN["specstory"].encode(),
    "shop/cursor_fix.md": MARKDOWN["cursor"].encode(),
    "tasks/8.jsonl": jsonl(own(CLAUDE_CODE, "8")),  # a log whose name is a number
    "tasks/9.jsonl": jsonl(own(CLAUDE_CODE, "9")),
}
ROWS = "openhands/output"  # the file that has a session per line


class Stored(NamedTuple):
    """A session as an archive lists it."""

    tenant: str
    tags: Mapping[str, str]
    content: bytes


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_files(tmp_path / "home", FILES)
    (tmp_path / "home/shop/README.md").write_bytes(b"# no log\n")
    return tmp_path / "home"


def stored(place: Path) -> dict[str, Stored]:
    with Archive.open(place) as cold:
        found = {(v.name, v.part): (v.tenant, v.tags) for v in cold.list(parts=True)}
        got = {(n, p): cold.get(n, tenant=t, part=p) for (n, p), (t, _) in found.items()}
        return {
            "/".join(filter(None, place)): Stored(*found[place], one.session.to_bytes()) for place, one in got.items()
        }


def names() -> set[str]:
    whole = {name if "subagents" in name else name.rpartition(".")[0] for name in map(kept, FILES)} - {ROWS}
    return {f"./{name}" if name[0] == "-" else name for name in whole} | {
        *(f"{ROWS}/{number}" for number in range(3)), "shop/README/0"
    }


def kept(name: str) -> str:
    """Return the path of a file by its session's name: from a project on, and of a rollout by its date."""
    for store in (".claude/projects/", ".pi/agent/sessions/", ".codex/sessions/"):
        name = name.removeprefix(store)
    return name


def by_night(run: Run, home: Path, place: Path) -> None:
    config = home.parent / "nightly.toml"
    config.write_text(
        f'archive = "{place}"\nstate = "{home.parent}/state"\n[[source]]\nkind = "agent-logs"\npath = "{home}"\n'
        'tenant = "acme"\n'
    )
    ok(run("nightly", "--config", config, "--json"))


def test_put_and_the_nightly_job_take_the_logs_of_each_agent_alike(run: Run, cold: Path, home: Path) -> None:
    ok(run("archive", "put", "-r", cold, home, "--tenant", "acme"))
    other = home.parent / "other"
    assert run("archive", "init", "-r", other).exit_code == 0
    by_night(run, home, other)
    first, second = stored(cold), stored(other)
    assert first == second and first.keys() == names()
    assert {name: s.tags[FILE] for name, s in first.items() if FILE in s.tags} == {
        "shop/README/0": ".md", "swe-agent/8": "8.traj", "tasks/8": "8.jsonl", "tasks/9": "9.jsonl",
    }
    by_night(run, home, cold)  # the same names and content: nothing is stored again
    with Archive.open(cold) as archive:
        assert {v.version for v in archive.list()} == {1}


def test_each_file_comes_back_under_its_name(run: Run, cold: Path, home: Path) -> None:
    assert run("archive", "put", "-r", cold, home, "--exact").exit_code == 0
    back = home.parent / "back"
    assert run("archive", "get", "-r", cold, "-o", into(back)).exit_code == 0
    assert files_in(back) == {**{kept(name): data for name, data in FILES.items()}, "shop/README.md": b"# no log\n"}
    got = run("archive", "get", "-r", cold, "tasks/8", "-o", home.parent / "8.jsonl")
    assert got.exit_code == 0 and (home.parent / "8.jsonl").read_bytes() == FILES["tasks/8.jsonl"]
