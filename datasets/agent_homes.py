"""Agent homes: where each agent looks for its sessions, and how it goes on with one.

    found = home_of(session, "./-home-me-shop/4f35e220", parts=["subagents/agent-a1.jsonl"])
    found.root / found.stem       # ~/.claude/projects/-home-me-shop/4f35e220
    found.command                 # cd /home/me/shop && claude --resume 4f35e220
    found.notes                   # what the agent will miss

    Claude Code   ~/.claude/projects/PROJECT/ID.jsonl, parts in PROJECT/ID      PROJECT: its path, - for other signs
    Codex         ~/.codex/sessions/YYYY/MM/DD/rollout-TIME-ID.jsonl             and a row in state_N.sqlite
    Gemini CLI    ~/.gemini/tmp/PROJECT/chats/session-TIME-ID.jsonl              PROJECT: its name in projects.json
    pi            ~/.pi/agent/sessions/--PROJECT--/TIME_ID.jsonl                 PROJECT: its path, - for slashes
    Copilot CLI   ~/.copilot/session-state/ID/events.jsonl                       and what lies beside it
    OpenCode      a database: a document is written that `opencode import` takes

It is as the sources of Codex, Gemini CLI, pi and OpenCode have it in 2026. Claude Code and Copilot CLI have none to
read: their places are those of the files that they write, and what else they look at is not known.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shlex
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Final

from pltz.datasets.conversation import log_of
from pltz.datasets.file_names import ROLLOUT
from pltz.datasets.formats.opencode import exported
from pltz.datasets.turns import time_of
from pltz.models.session.session import Session
from pltz.plt_codec.errors import UsageError

SCANNED: Final = 1 << 24  # bytes of a long log that are searched at once
OWNER: Final = ".project_root"  # of Gemini CLI: the project that a folder is of


@dataclass(frozen=True)
class AgentHome:
    """The place that a log belongs in, and what goes on with it.

    Attributes:
        agent: name of the format.
        root, stem, suffix: folder that the agent has for all sessions, and the log in it. Its parts are in ``stem``.
        id: by which the agent knows it.
        project: the folder that it is about; empty where it is not known.
        words: what goes on, without the folder to be in.
        beside: names of sessions that belong to it too, or with * their beginning, and their folder below root.
        content: what is written in place of the log.
        claims: files that say whose project a folder is, and what they say.
    """

    agent: str
    root: Path
    stem: PurePath
    suffix: str
    id: str
    project: str
    words: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    beside: Mapping[str, PurePath] = field(default_factory=dict)
    content: bytes | None = None
    claims: Mapping[Path, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """Return the command that goes on, with the folder to be in, where that is another one."""
        there = self.project and os.path.abspath(self.project) != os.getcwd()
        words = [("cd", self.project), *self.words] if there else self.words
        return " && ".join(map(shlex.join, words))


@dataclass(frozen=True)
class _Log:
    """A log as its agent's function sees it. ``moved``: the folder that its project is in now, where it was told."""

    agent: str
    value: Any
    session: Session
    path: tuple[str, ...]
    parts: Collection[str]
    moved: str

    def first(self, *keys: str) -> str:
        """Return the first text that events have under a key, at most two objects deep; empty where none has."""
        for event in self.value if isinstance(self.value, list) else [self.value]:
            inside = [one for one in event.values() if isinstance(one, dict)]
            deeper = [one for outer in inside for one in outer.values() if isinstance(one, dict)]
            for each in (event, *inside, *deeper):
                for key in keys:
                    if isinstance(found := each.get(key), str) and found:
                        return found
        return ""

    def project(self) -> str:
        """Return the folder of the project."""
        return self.moved or self.first("cwd", "directory")

    def mentioned(self, pattern: bytes) -> Iterator[str]:
        """Yield what a pattern finds in the log, each once."""
        text = self.session.value if self.session.kind == "text" else self.session.to_bytes()
        met = set[bytes]()
        for begin in range(0, len(text), SCANNED):
            for found in re.findall(pattern, text[begin : begin + SCANNED + 256]):
                if found not in met:
                    met.add(found)
                    yield found.decode("utf-8", "replace")


def home_of(session: Session, name: str, parts: Collection[str] = (), *, moved: str = "") -> AgentHome:
    """Return where a session belongs.

    Args:
        session: its main part.
        name: its name in the archive.
        parts: paths of its other parts.
        moved: the folder that its project is in now; empty: where it was.

    Raises:
        UsageError: it is no log, or that of an agent of which the place is not known.
    """
    agent, value = log_of(session)
    made = AGENTS.get(agent)
    if made is None:
        what = f"the place of logs of {agent}" if agent else "no agent that goes on with it"
        known = "not known" if agent else "known"
        raise UsageError(f"session {name!r}: {what} is {known}: pltz archive get -o FOLDER/ writes it")
    return made(_Log(agent, value, session, tuple(name.removeprefix("./").split("/")), parts, moved))


def root_of(name: str) -> Path | None:
    """Return the folder below which a log of such a name lies, where the name tells its agent: Claude Code, Codex, pi.

    >>> root_of("./-home-me-shop/4f35e220").parts[-2:], root_of("chats/0")
    (('.claude', 'projects'), None)
    """
    if ROLLOUT.fullmatch(PurePath(name).name):
        return _folder("CODEX_HOME", ".codex") / "sessions"
    if name.startswith("./--"):
        return _folder("PI_CODING_AGENT_DIR", ".pi", "agent") / "sessions"
    return _folder("CLAUDE_CONFIG_DIR", ".claude") / "projects" if name.startswith("./-") else None


def _folder(variable: str, *usual: str) -> Path:
    """Return the folder of an agent: what a variable of the environment says, or one in the home of the user."""
    return Path(os.environ[variable]) if os.environ.get(variable) else Path.home().joinpath(*usual)


def _wanted(what: str, log: _Log) -> str:
    """Return what a log says. Raises UsageError where it does not."""
    if not what:
        why = "its log says no project or id: add --here, or write it by pltz archive get -o FOLDER/"
        raise UsageError(f"session {'/'.join(log.path)!r}: {why}")
    return what


def _stamp(log: _Log) -> str:
    """Return when a session began, as names of files have it."""
    return log.first("timestamp", "startTime")[:19].replace(":", "-")


def _claude_code(log: _Log) -> AgentHome:
    home, project = _folder("CLAUDE_CONFIG_DIR", ".claude"), log.project()
    own = next((part for part in log.path[:-1] if part.startswith("-")), "")
    folder = own if own and not log.moved else re.sub("[^A-Za-z0-9]", "-", _wanted(project, log))
    name = log.path[-1] if len(log.path) > 1 else _wanted(log.first("sessionId"), log)
    missing = [one for one in log.mentioned(rb"tool-results/(\w[\w.-]*)") if f"tool-results/{one}" not in log.parts]
    notes = [f"tool-results/{one}, which the log mentions, is not in the archive" for one in missing]
    has_snapshots = any(log.mentioned(rb'"type": ?"(file-history-snapshot)"'))
    if has_snapshots and not (home / "file-history" / name).exists():
        notes.append("its checkpoints of files are not here: /rewind brings back the talk alone")
    there = {PurePath(part).stem for part in log.parts}
    agents = [f"agent-{one}" for one in log.mentioned(rb'"agentId": ?"([\w-]+)"')]
    beside = {"/".join((*log.path[:-1], one)): PurePath(folder) for one in agents if one not in there}
    prefix = "./" if log.path[0].startswith("-") else ""
    return AgentHome(
        log.agent,
        home / "projects",
        PurePath(folder, name),
        ".jsonl",
        name,
        project,
        (("claude", "--resume", name),),
        tuple(notes),
        {prefix + one: place for one, place in beside.items()},
    )


def _codex(log: _Log) -> AgentHome:
    home = _folder("CODEX_HOME", ".codex")
    name = log.path[-1]
    if not ROLLOUT.fullmatch(name):
        name = f"rollout-{_stamp(log)}-{_wanted(log.first('id'), log)}"
    if (match := ROLLOUT.fullmatch(name)) is None:
        raise UsageError(f"session {'/'.join(log.path)!r}: its log does not say when it began")
    place = PurePath(*match.groups(), name)
    plain, archived = home / "sessions" / place, home / "archived_sessions" / name
    others = (f"{plain}.jsonl.zst", f"{archived}.jsonl", f"{archived}.jsonl.zst")
    notes = [f"Codex has it as {one} too" for one in others if os.path.lexists(one)]
    of = log.first("id") or name[-36:]
    return AgentHome(
        log.agent, home / "sessions", place, ".jsonl", of, log.project(), (("codex", "resume", of),), tuple(notes)
    )


def add_codex_row(log: Path, session: Session, project: str) -> str:
    """Add a session to the index of Codex, as Codex would. Return why that was not done, empty where it was.

    A row that is there stays. Without one Codex looks for the file, and adds it.
    """
    home = next(parent.parent for parent in log.parents if parent.name == "sessions")
    bases = [*Path(os.environ.get("CODEX_SQLITE_HOME") or home).glob("state_*.sqlite")]
    if not bases:
        return ""
    row = codex_row(log, log_of(session)[1], project)
    try:
        with closing(sqlite3.connect(max(bases, key=lambda path: path.stat().st_mtime))) as base, base:
            found = base.execute("PRAGMA table_info(threads)")
            columns = {name: bool(needed and usual is None) for _, name, _, needed, usual, _ in found}
            if unknown := sorted(name for name, needed in columns.items() if needed and name not in row):
                return f"Codex's index has unknown columns ({', '.join(unknown)}): Codex adds the session itself"
            own = {name: value for name, value in row.items() if name in columns}
            places = ", ".join(own), ", ".join("?" * len(own))
            base.execute(f"INSERT OR IGNORE INTO threads ({places[0]}) VALUES ({places[1]})", [*own.values()])
    except sqlite3.Error as exc:
        return f"Codex's index cannot be written ({exc}): Codex adds the session itself"
    return ""


def codex_row(log: Path, events: Sequence[dict[str, Any]], project: str) -> dict[str, Any]:
    """Return the row of a session in the table ``threads`` of Codex, with all columns that are known."""
    payloads = [(event.get("type"), event["payload"]) for event in events if isinstance(event.get("payload"), dict)]
    meta: dict[str, Any] = next((payload for kind, payload in payloads if kind == "session_meta"), {})
    turn: dict[str, Any] = next((payload for kind, payload in reversed(payloads) if kind == "turn_context"), {})
    said = [one.get("message") for kind, one in payloads if kind == "event_msg" and one.get("type") == "user_message"]
    first = next((text for text in said if isinstance(text, str) and text.strip()), "").strip()
    times = sorted(filter(None, map(time_of, events))) or [0]
    git: dict[str, Any] = meta["git"] if isinstance(meta.get("git"), dict) else {}
    row: dict[str, Any] = {
        "id": meta.get("id"),
        "rollout_path": str(log),
        "source": meta.get("source") or "cli",
        "model_provider": meta.get("model_provider") or "openai",
        "cwd": project,
        "title": first,
        "first_user_message": first,
        "preview": first,
        "sandbox_policy": turn.get("sandbox_policy") or "read-only",
        "approval_mode": turn.get("approval_policy") or "on-request",
        "model": turn.get("model"),
        "reasoning_effort": turn.get("effort"),
        "cli_version": meta.get("cli_version") or "",
        "tokens_used": 0,
        "has_user_event": 1,
        "archived": 0,
        "git_sha": git.get("commit_hash"),
        "git_branch": git.get("branch"),
        "git_origin_url": git.get("repository_url"),
    }
    for name, moment in (("created_at", times[0]), ("updated_at", times[-1])):
        row |= {name: moment, f"{name}_ms": 1000 * moment}
    return {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()}


def _gemini_cli(log: _Log) -> AgentHome:
    base = _folder("GEMINI_CLI_HOME") / ".gemini"
    of = _wanted(log.first("sessionId"), log)
    at = log.path.index("chats") if "chats" in log.path[1:] else 0
    own, inside = log.path[at - 1] if at else "", log.path[at + 1 :] if at else ()
    notes, claims, projects, digest = list[str](), dict[Path, str](), _projects(base), log.first("projectHash")
    named = (path for path, name in projects.items() if name == own)
    hashed = (path for path in (*projects, os.getcwd()) if _hash(path) == digest)
    project = log.moved or next(itertools.chain(named, hashed), "")
    if project and (log.moved or not own):
        own = projects.get(project) or _unclaimed(base, project, {*projects.values()})
        claims = {base / folder / own / OWNER: project for folder in ("tmp", "history") if project not in projects}
    if not project:
        notes.append("the log does not say where its project is: go there and add --here")
    own = own or _wanted(digest, log)
    place = PurePath(own, "chats", *(inside or (f"session-{_stamp(log)[:16]}-{of[:8]}",)))
    beside = {f"{'/'.join(log.path[: at + 1])}/{of}/*": PurePath(own, "chats", of)} if at else {}  # of its sub-agents
    suffix = ".json" if isinstance(log.value, dict) else ".jsonl"
    return AgentHome(
        "gemini-cli",
        base / "tmp",
        place,
        suffix,
        of,
        project,
        (("gemini", "--resume", of),),
        tuple(notes),
        beside,
        claims=claims,
    )


def _hash(path: str) -> str:
    """Return the name that Gemini CLI once gave to a project."""
    return hashlib.sha256(path.encode()).hexdigest()


def _projects(base: Path) -> dict[str, str]:
    """Return the names that Gemini CLI has for projects, by their paths."""
    found: dict[str, str] = {}
    for owner in base.glob(f"tmp/*/{OWNER}"):
        with suppress(OSError, ValueError):
            found[owner.read_text().strip()] = owner.parent.name
    with suppress(OSError, ValueError, AttributeError):
        found |= json.loads((base / "projects.json").read_text()).get("projects", {})
    return {path: name for path, name in found.items() if isinstance(name, str)}


def _unclaimed(base: Path, project: str, taken: Collection[str]) -> str:
    """Return a name for a project, made as Gemini CLI makes it, that no other project has."""
    word = re.sub("[^a-z0-9]+", "-", PurePath(project).name.lower()).strip("-") or "project"
    names = (word if not number else f"{word}-{number}" for number in range(len(taken) + 1000))
    return next(name for name in names if name not in taken and not (base / "tmp" / name).exists())


def _pi(log: _Log) -> AgentHome:
    of, project = _wanted(log.first("id"), log), log.first("cwd")
    own = next((part for part in log.path[:-1] if part.startswith("--")), "")
    own = own or "--" + re.sub(r"[/\\:]", "-", re.sub(r"^[/\\]", "", _wanted(project, log))) + "--"
    name = log.path[-1] if len(log.path) > 1 else re.sub("[:.]", "-", log.first("timestamp")) + f"_{of}"
    root = _folder("PI_CODING_AGENT_DIR", ".pi", "agent") / "sessions"
    notes = ("pi asks whether to fork it into this folder",) if log.moved else ()
    words = (("pi", "--session", of),)
    return AgentHome(log.agent, root, PurePath(own, name), ".jsonl", of, log.moved or project, words, notes)


def _copilot_cli(log: _Log) -> AgentHome:
    of = _wanted(log.first("sessionId"), log)
    beside = {f"{'/'.join(log.path[:-1])}/*": PurePath(of)} if log.path[1:] and log.path[-1] == "events" else {}
    root = _folder("COPILOT_HOME", ".copilot") / "session-state"
    words = (("copilot", "--resume", of),)
    return AgentHome(log.agent, root, PurePath(of, "events"), ".jsonl", of, log.project(), words, beside=beside)


def _opencode(log: _Log) -> AgentHome:
    value = log.value if isinstance(log.value, dict) else exported(log.value)
    of, root = re.sub(r"[^\w-]", "_", str(value["info"]["id"])), _folder("XDG_DATA_HOME", ".local", "share")
    root = root / "opencode" / "pltz"
    words = (("opencode", "import", str(root / f"{of}.json")), ("opencode", "--session", of))
    project = log.moved or str(value["info"].get("directory") or "")
    content = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return AgentHome(log.agent, root, PurePath(of), ".json", of, project, words, content=content)


AGENTS: Final[Mapping[str, Callable[[_Log], AgentHome]]] = {
    "claude-code": _claude_code,
    "codex": _codex,
    "gemini-cli": _gemini_cli,
    "gemini-cli-lines": _gemini_cli,
    "pi": _pi,
    "copilot-cli": _copilot_cli,
    "opencode": _opencode,
}
