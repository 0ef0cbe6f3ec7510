"""The hooks, units and property list of docs/recipes.md, as they stand there, before those who would read them."""

import json
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pltz.archive.archive import Archive
from tests.documents import ROOT, Block, Sandbox, blocks
from tests.warm_pltz import warm_pltz

DOC = ROOT / "docs/recipes.md"
BLOCKS: dict[str, Block] = {block.language: block for block in reversed(list(blocks(DOC)))}
SECONDS = 120
ENDED = re.compile(r"^\d+ sessions?\b.*\n", re.MULTILINE)  # the last line of a put but for its token
UUID = "0f3a6c1e-7f1f-4a52-9d5e-2f1b3c4d5e6f"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a warm `pltz`, and the script beside it, as a user has them."""
    with warm_pltz(tmp_path_factory.mktemp("warm")) as found:
        yield found


class User(Sandbox):
    """A user who did what the page says first, and whose agents call hooks."""

    def __init__(self, folder: Path, path: str) -> None:
        super().__init__(folder, path)
        self.home = folder / "home"
        self._done = 0
        self.bash(BLOCKS["sh"].code)

    def hook(self, command: str, event: Mapping[str, object] | None = None) -> str:
        """Run a command as an agent does, with an event on stdin, and return what pltz said once it has ended."""
        self.bash(f"printf %s {shlex.quote(json.dumps(event))} | {command}")
        self._done += 1
        log = self.home / ".local/state/pltz/hook.log"
        end = time.monotonic() + SECONDS
        while not (log.exists() and len(ENDED.findall(log.read_text())) == self._done):
            assert time.monotonic() < end, log.read_text() if log.exists() else "no log of the hook"
            time.sleep(0.05)
        return log.read_text()

    def stored(self, name: str, part: str = "") -> bytes:
        """Return a session of the archive."""
        return bytes(Archive.open(self.home / "cold").get(name, part=part).value)


def test_hooks_of_claude_code_keep_a_session_its_parts_and_its_growth(path: str, tmp_path: Path) -> None:
    """The events are those of Claude Code 2: SessionEnd has a reason, PreCompact a trigger."""
    user, hooks = User(tmp_path, path), json.loads(BLOCKS["json"].code)["hooks"]
    command = {name: hooks[name][0]["hooks"][0]["command"] for name in ("SessionEnd", "PreCompact")}
    log = user.home / f".claude/projects/-home-me-shop/{UUID}.jsonl"
    event = {"session_id": UUID, "transcript_path": str(log), "cwd": "/home/me/shop", "permission_mode": "default"}
    name = f"./-home-me-shop/{UUID}"

    before = log.read_bytes()
    compacts = {"hook_event_name": "PreCompact", "trigger": "auto", "custom_instructions": ""}
    user.hook(command["PreCompact"], event | compacts)
    assert user.stored(name) == before

    part = log.with_suffix("") / "subagents/agent-a1.jsonl"
    part.parent.mkdir(parents=True)
    part.write_bytes(before.replace(b'"user"', b'"user" '))
    with log.open("ab") as file:
        file.write(before.splitlines(keepends=True)[-1])
    user.hook(command["SessionEnd"], event | {"hook_event_name": "SessionEnd", "reason": "prompt_input_exit"})
    assert user.stored(name) == log.read_bytes() != before
    assert user.stored(name, "subagents/agent-a1.jsonl") == part.read_bytes()

    said = user.hook(command["SessionEnd"], event | {"hook_event_name": "SessionEnd", "reason": "other"})
    assert said.splitlines()[-1] == "1 session with 1 other part, 2 unchanged"
    assert "5b7d9e20" not in said  # a session of the same project that no hook named


def test_notify_of_codex_keeps_the_rollout_of_its_thread(path: str, tmp_path: Path) -> None:
    user = User(tmp_path, path)
    notify = tomllib.loads(BLOCKS["toml"].code.replace("/home/me", str(user.home)))["notify"]
    folder = user.home / ".codex/sessions/2026/08/01"
    folder.mkdir(parents=True)
    rollout = folder / f"rollout-2026-08-01T10-00-00-{UUID}.jsonl"
    meta = {"timestamp": "2026-08-01T10:00:00.000Z", "type": "session_meta", "payload": {"id": UUID, "cwd": "/home/me"}}
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Why does the bell cost 0?"}]}
    line = json.dumps({"timestamp": meta["timestamp"], "type": "response_item", "payload": said}) + "\n"
    rollout.write_text(json.dumps(meta) + "\n" + line)
    event: dict[str, object] = {
        "type": "agent-turn-complete", "thread-id": UUID, "turn-id": "1", "cwd": "/home/me", "client": "codex-tui",
    }
    event |= {"input-messages": ["Why does the bell cost 0?"], "last-assistant-message": "It's // 10."}
    command = shlex.join([*notify, json.dumps(event)])
    for _ in range(2):
        user.hook(command)
        assert user.stored(f"2026/08/01/{rollout.stem}") == rollout.read_bytes()
        with rollout.open("a") as file:
            file.write(line)


def test_a_hook_without_a_log_says_so_and_blocks_nothing(path: str, tmp_path: Path) -> None:
    """Exit code 2 of a PreCompact hook would stop the compaction."""
    user = User(tmp_path, path)
    command = ["python3", str(user.home / ".local/bin/keep_session.py"), "~/cold"]
    event = json.dumps({"session_id": "x", "transcript_path": str(tmp_path / "gone.jsonl")})
    done = subprocess.run(command, input=event, text=True, capture_output=True, check=False)
    assert (done.returncode, "no log for" in done.stderr) == (1, True)


def units() -> dict[str, str]:
    """The unit files that the page shows, by name."""
    found = re.findall(r"`~/\.config/systemd/user/([^`]+)`:\n\n((?:    .*\n|\n)+)", DOC.read_text(), re.MULTILINE)
    return {name: re.sub(r"^    ", "", body, flags=re.MULTILINE) for name, body in found}


@pytest.mark.systemd
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_has_nothing_to_say_of_the_units(tmp_path: Path) -> None:
    assert sorted(units()) == ["pltz.service", "pltz.timer"]
    for name, text in units().items():
        (tmp_path / name).write_text(text.replace("%h/.local/bin/pltz", sys.executable))  # one that is here
    files = [str(tmp_path / name) for name in units()]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", *files], check=False, capture_output=True, text=True,
        timeout=180, env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_units_and_the_property_list_run_the_configuration_of_the_page() -> None:
    [start] = re.findall(r"^ExecStart=(.*)$", units()["pltz.service"], re.MULTILINE)
    plist = plistlib.loads(BLOCKS["xml"].code.encode())
    job = [word.replace("/Users/me", "%h") for word in plist["ProgramArguments"]]
    assert job == start.split() == ["%h/.local/bin/pltz", "nightly", "--config", job[3], "--no-progress"]
    assert job[3].replace("%h", "~") in DOC.read_text() and plist["StartCalendarInterval"] == {"Minute": 30}
