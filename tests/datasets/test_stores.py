"""Databases and exports that agents keep their sessions in: recorded samples in the schema of each, read as sessions.

The schemas are those of the agents' own sources: OpenCode's session.sql.ts, Zed's crates/agent/src/db.rs, llm's
docs/logging.md. Those of Cursor, VS Code, ChatGPT, claude.ai and DeepSeek Harness are told by public readers of them.
"""

import hashlib
import json
import shutil
import sqlite3
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pltz.archive.writing.content_facts import facts_of
from pltz.datasets.conversation import messages_of
from pltz.datasets.formats import packed, sqlite
from pltz.datasets.input_format import ReadOptions, Recognised
from pltz.datasets.loaders import recognise
from pltz.datasets.named_sessions import named
from pltz.plt_codec.errors import CorruptError, LimitError, UsageError
from tests.datasets.test_conversation import ALL, ASKED, RULES

Made = sqlite3.Connection


def insert(base: Made, table: str, **row: Any) -> None:
    values = [json.dumps(value) if isinstance(value, dict | list) else value for value in row.values()]
    base.execute(f"INSERT INTO {table} ({','.join(row)}) VALUES ({','.join('?' * len(row))})", values)


def opencode(base: Made) -> None:
    base.execute("CREATE TABLE session (id TEXT PRIMARY KEY, project_id TEXT, title TEXT, revert TEXT, cost REAL)")
    base.execute("CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER, data TEXT)")
    base.execute("CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, data TEXT)")
    base.execute("CREATE TABLE event (id INTEGER PRIMARY KEY, aggregate_id TEXT, data TEXT)")
    insert(base, "event", aggregate_id="ses_1", data={"again": "Where is the bug?"})
    for session in ("ses_1", "ses_2"):
        insert(base, "session", id=session, project_id="p", title="A bug", cost=0.5)
    reading = {"input": {"path": "a.py"}, "output": "print(1)"}
    say(base, 1, "user", {"type": "text", "text": "Where is the bug?"})
    look = {"type": "text", "text": "I look."}, {"type": "tool", "tool": "read", "state": reading}
    say(base, 2, "assistant", {"type": "reasoning", "text": "hm"}, *look)
    say(base, 3, "assistant", {"type": "text", "text": "In line 1."})
    insert(base, "message", id="msg_9", session_id="ses_2", time_created=1, data='{"role":"user","n":1.50}')


def say(base: Made, number: int, role: str, *parts: Any) -> None:
    message = f"msg_{number}"
    insert(base, "message", id=message, session_id="ses_1", time_created=number, data={"role": role})
    for n, part in enumerate(parts):
        insert(base, "part", id=f"prt_{number}{n}", message_id=message, session_id="ses_1", data=part)


def cursor(base: Made) -> None:
    base.execute("CREATE TABLE ItemTable (key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB)")
    base.execute("CREATE TABLE cursorDiskKV (key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB)")
    tool = {"name": "read", "params": '{"path":"a.py"}', "result": "print(1)"}
    bubbles = {
        "b9": {"type": 1, "text": "Where is the bug?"},
        "b2": {"type": 2, "text": "I look.", "toolFormerData": tool},
        "b1": {"type": 2, "text": "In line 1."},
    }
    for bubble, value in reversed(bubbles.items()):
        insert(base, "cursorDiskKV", key=f"bubbleId:c1:{bubble}", value=json.dumps(value).encode())
    insert(base, "cursorDiskKV", key="bubbleId:c10:b1", value={"type": 1, "text": "another chat"})
    headers = [{"bubbleId": bubble, "type": value["type"]} for bubble, value in bubbles.items()]
    for chat in ("c1", "c10"):
        composer = {"composerId": chat, "name": "A bug", "fullConversationHeadersOnly": headers if chat == "c1" else []}
        insert(base, "cursorDiskKV", key=f"composerData:{chat}", value=composer)
    tab = {"tabId": "t1", "bubbles": [{"type": "user", "text": "Hi"}, {"type": "ai", "text": "Hello"}]}
    insert(base, "ItemTable", key="workbench.panel.aichat.view.aichat.chatdata", value={"tabs": [tab]})
    insert(base, "ItemTable", key="interactive.sessions", value=[VSCODE])


def zed(base: Made) -> None:
    base.execute("CREATE TABLE threads (id TEXT PRIMARY KEY, summary TEXT, updated_at TEXT, data_type TEXT, data BLOB)")
    use = {"id": "t", "name": "read", "input": {"path": "a.py"}, "raw_input": "", "is_input_complete": True}
    result = {"tool_use_id": "t", "tool_name": "read", "content": [{"Text": "print(1)"}], "output": None}
    look = [{"Thinking": {"text": "hm"}}, {"Text": "I look."}, {"ToolUse": use}]
    messages = [
        {"User": {"id": "u", "content": [{"Text": "Where is the bug?"}]}},
        {"Agent": {"content": look, "tool_results": {"t": result}}},
        "Resume",
        {"Agent": {"content": [{"Text": "In line 1."}], "tool_results": {}}},
    ]
    thread = {"title": "A bug", "messages": messages, "updated_at": "2026-01-05T09:00:00Z", "version": "0.3.0"}
    data = zstandard.ZstdCompressor().compress(json.dumps(thread).encode())
    insert(base, "threads", id="z1", summary="A bug", data_type="zstd", data=data)
    old = [{"role": "user", "segments": [{"type": "text", "text": "Hi"}], "tool_uses": []}]
    insert(base, "threads", id="z2", summary="Old", data_type="json", data=json.dumps({"messages": old}).encode())
    insert(base, "threads", id="z3", summary="Cut", data_type="zstd", data=data[:-9])


def llm(base: Made) -> None:
    base.execute("CREATE TABLE conversations (id TEXT PRIMARY KEY, name TEXT, model TEXT)")
    base.execute(
        "CREATE TABLE responses (id TEXT PRIMARY KEY, model TEXT, prompt TEXT, system TEXT, prompt_json TEXT, "
        "response TEXT, conversation_id TEXT, datetime_utc TEXT)"
    )
    base.execute("CREATE TABLE tool_calls (id INTEGER PRIMARY KEY, response_id TEXT, name TEXT, arguments TEXT)")
    base.execute("CREATE TABLE tool_results (id INTEGER PRIMARY KEY, response_id TEXT, name TEXT, output TEXT)")
    base.execute("CREATE TABLE attachments (id TEXT PRIMARY KEY, type TEXT, content BLOB)")
    base.execute("CREATE TABLE prompt_attachments (response_id TEXT, attachment_id TEXT)")
    insert(base, "conversations", id="l1", name="A bug", model="m")
    asked = {"prompt": "Where is the bug?", "response": "I look.", "system": "Be brief."}
    insert(base, "responses", id="01a", conversation_id="l1", **asked)
    insert(base, "tool_calls", response_id="01a", name="read", arguments={"path": "a.py"})
    told = {"prompt": "", "response": "In line 1.", "system": "Be brief."}
    insert(base, "responses", id="01b", conversation_id="l1", **told)
    insert(base, "tool_results", response_id="01b", name="read", output="print(1)")
    insert(base, "responses", id="01c", prompt="Hi", response="Hello")
    insert(base, "attachments", id="a1", type="image/png", content=b"\x89PNG\xff")
    insert(base, "prompt_attachments", response_id="01c", attachment_id="a1")


VSCODE = {
    "version": 3, "sessionId": "v1", "customTitle": "A bug", "responderUsername": "GitHub Copilot",
    "requests": [
        {
            "message": {"text": "Where is the bug?", "parts": []},
            "response": [
                {"kind": "thinking", "value": "hm"}, {"value": "I look."},
                {"kind": "toolInvocationSerialized", "toolId": "read", "toolSpecificData": {"path": "a.py"}},
                {"kind": "undoStop"}, {"value": "In line 1."},
            ],
        }
    ],
}
SAID_IN_VSCODE = [ASKED, {**ALL[1], "content": "I look.\n\nIn line 1."}]
CONTINUE = {
    "sessionId": "n1", "title": "A bug", "workspaceDirectory": "file:///home/ada/shop",
    "history": [
        {"message": {"role": "user", "content": [{"type": "text", "text": "Where is the bug?"}]}, "contextItems": []},
        {
            "message": {
                "role": "assistant",
                "content": "I look.",
                "toolCalls": [{"id": "t", "function": {"name": "read", "arguments": '{"path":"a.py"}'}}],
            },
            "contextItems": [],
        },
        {"message": {"role": "tool", "content": "print(1)", "toolCallId": "t"}, "contextItems": []},
        {"message": {"role": "assistant", "content": "In line 1."}, "contextItems": []},
    ],
}


def node(name: str, parent: str | None, role: str, *parts: Any, **more: Any) -> dict[str, Any]:
    message = {"author": {"role": role}, "content": {"content_type": "text", "parts": list(parts)}, **more}
    return {"id": name, "parent": parent, "message": message, "children": []}


NODES = [
    {"id": "root", "parent": None, "message": None, "children": []},
    node("n1", "root", "user", "Where is the bug?"),
    node("n2", "n1", "assistant", "Elsewhere."),  # a branch that was left
    node("n3", "n1", "assistant", "I look."),
    node("n4", "n3", "assistant", '{"path":"a.py"}', recipient="read"),
    node("n5", "n4", "tool", "print(1)"),
    node("n6", "n5", "assistant", "In line 1."),
]
CHATGPT = {"title": "A bug", "current_node": "n6", "id": "g1", "mapping": {one["id"]: one for one in NODES}}
PICTURE = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-1"}
NAMES = {"attachments": [{"id": "file-1", "name": "screen.png"}]}
SHOWN = node("n1", None, "user", PICTURE, "What is this?", metadata=NAMES)
CLAUDE_AI = {
    "uuid": "k1",
    "name": "A bug",
    "chat_messages": [
        {"uuid": "m1", "sender": "human", "text": "Where is the bug?", "content": [], "attachments": [], "files": []},
        {
            "uuid": "m2",
            "sender": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "name": "read", "input": {"path": "a.py"}},
                {"type": "tool_result", "content": [{"type": "text", "text": "print(1)"}]},
                {"type": "text", "text": "In line 1."},
            ],
        },
    ],
}
FILES = {"attachments": [{"file_name": "a.txt", "extracted_content": "one"}], "files": [{"file_name": "b.png"}]}
GIVEN = {"uuid": "m1", "sender": "human", "text": "What is this?", "content": [], **FILES}


def made(path: Path, write: Callable[[Made], None]) -> Path:
    with closing(sqlite3.connect(path)) as base:
        write(base)
        base.commit()
    return path


def read(path: Path, **options: Any) -> list[Recognised]:
    return list(recognise(path, ReadOptions(warn=lambda _: None, **options)))


def by_name(path: Path, **options: Any) -> dict[str, Any]:
    return {one.given.name: one.session for one in read(path, **options) if one.given}


@pytest.mark.parametrize(("write", "names", "said"), [
    (opencode, ["opencode/ses_1", "opencode/ses_2"], ALL),
    (cursor, ["cursor/c1", "cursor/c10", "vscode/v1", "cursor/t1"], ALL),
    (zed, ["zed/z1", "zed/z2", "zed/z3"], ALL),
    (llm, ["llm/l1", "llm/01c"], [RULES, *ALL]),
])
def test_a_database_is_a_session_per_talk(write: Any, names: list[str], said: list[Any], tmp_path: Path) -> None:
    path = made(tmp_path / "some.db", write)
    found = read(path)
    assert [one.given.name for one in found if one.given] == names and {one.noun for one in found} == {"agent log"}
    assert messages_of(found[0].session) == said and facts_of(found[0].session, 10_000).title == "Where is the bug?"
    assert all(json.loads(line) for one in found for line in bytes(one.session.value).splitlines())
    assert [one.session for one in read(path)] == [one.session for one in found]
    assert all(found[n].size == len(found[n].session.value) for n in range(len(found)))
    assert [one.session.value for one in read(path, long=True)] == [one.session.value for one in found]


def test_words_of_older_chats_and_threads(tmp_path: Path) -> None:
    hello = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    found = by_name(made(tmp_path / "state.vscdb", cursor))
    assert messages_of(found["cursor/t1"]) == hello and messages_of(found["vscode/v1"]) == SAID_IN_VSCODE
    assert messages_of(found["cursor/c10"]) == [{"role": "user", "content": "another chat"}]
    found = by_name(made(tmp_path / "threads.db", zed))
    assert messages_of(found["zed/z2"]) == hello[:1] and b'"base64"' in found["zed/z3"].value
    found = by_name(made(tmp_path / "logs.db", llm))
    assert messages_of(found["llm/01c"]) == hello and b"iVBOR/8=" not in found["llm/l1"].value
    assert b'"content":{"base64":"iVBOR/8="}' in found["llm/01c"].value


def test_a_session_that_grew_begins_with_its_old_lines(tmp_path: Path) -> None:
    path = made(tmp_path / "opencode.db", opencode)
    before = by_name(path)
    made(path, lambda base: say(base, 4, "user", {"type": "text", "text": "Mend it."}))
    after, old = by_name(path), before["opencode/ses_1"].value.splitlines()
    assert after["opencode/ses_1"].value.splitlines()[: len(old) - 1] == old[:-1]
    assert after["opencode/ses_2"] == before["opencode/ses_2"]
    assert messages_of(after["opencode/ses_1"]) == [*ALL, {"role": "user", "content": "Mend it."}]


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[tuple[Path, Made]]:
    path = tmp_path / "opencode.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        base.execute("PRAGMA journal_mode = wal")
        base.execute("PRAGMA wal_autocheckpoint = 0")
        opencode(base)
        yield path, base


def test_a_database_in_use_is_read_with_its_log_and_left_alone(busy: tuple[Path, Made]) -> None:
    path, base = busy

    def state() -> dict[str, Any]:
        files = path.parent.iterdir()
        return {one.name: (one.stat().st_mtime_ns, hashlib.sha256(one.read_bytes()).digest()) for one in files}

    before = state()
    assert set(before) == {"opencode.db", "opencode.db-wal", "opencode.db-shm"}
    assert messages_of(by_name(path)["opencode/ses_1"]) == ALL and len(read(path, query="SELECT id FROM session")) == 2
    assert state() == before
    base.execute("BEGIN")
    say(base, 4, "user", {"type": "text", "text": "not yet said"})
    assert messages_of(by_name(path)["opencode/ses_1"]) == ALL


def interfere(monkeypatch: pytest.MonkeyPatch, act: Callable[[str], object]) -> None:
    """Let something happen after each file that is copied."""
    copy = shutil.copyfile

    def copied(source: str, to: str) -> None:
        copy(source, to)
        act(source)

    monkeypatch.setattr(shutil, "copyfile", copied)
    monkeypatch.setattr(sqlite, "PAUSE", 0.01)


def test_a_log_may_grow_while_it_is_copied(busy: tuple[Path, Made], monkeypatch: pytest.MonkeyPatch) -> None:
    path, base = busy
    numbers = iter(range(10, 99))
    interfere(monkeypatch, lambda _: say(base, next(numbers), "user", {"type": "text", "text": "and on"}))
    said = messages_of(by_name(path, exact=True)["opencode/ses_1"])
    assert said == [*ALL, {"role": "user", "content": "and on"}]  # that of after the database, before its log


@pytest.mark.parametrize("when", ["", "-wal"])
def test_a_database_that_is_written_all_the_time_is_refused(
    busy: tuple[Path, Made], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Nor is one taken whose log begins anew while it is copied: its old half would undo what the database has."""
    path, base = busy
    numbers = iter(range(10, 99))

    def write(source: str) -> None:
        if source == f"{path}{when}":
            base.execute("PRAGMA wal_checkpoint(RESTART)")
            say(base, next(numbers), "user", {"type": "text", "text": "and on"})

    interfere(monkeypatch, write)
    with pytest.raises(UsageError, match=r"opencode\.db: is written to"):
        read(path)
    assert next(numbers) >= 9 + sqlite.TRIES  # the first try waits for what the fixture wrote


def test_a_log_that_begins_anew_is_copied_again(busy: tuple[Path, Made], monkeypatch: pytest.MonkeyPatch) -> None:
    path, base = busy
    base.execute("PRAGMA wal_checkpoint(FULL)")
    time.sleep(0.01)
    numbers = iter(range(10, 99))

    def write(source: str) -> None:
        if source == str(path) and (number := next(numbers)) == 10:
            say(base, number, "user", {"type": "text", "text": "and on"})  # which begins the log anew

    interfere(monkeypatch, write)
    assert messages_of(by_name(path)["opencode/ses_1"]) == [*ALL, {"role": "user", "content": "and on"}]
    assert next(numbers) == 12


def test_a_damaged_database_is_refused_and_stops_no_other(tmp_path: Path) -> None:
    data = bytearray(made(tmp_path / "b.db", opencode).read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    (tmp_path / "a.db").write_bytes(data)
    with pytest.raises(CorruptError, match=r"a\.db"):
        read(tmp_path / "a.db")
    refused: list[str] = []
    found = read(tmp_path, refused=lambda why, _: refused.append(why))
    assert [one.given.name for one in found if one.given] == ["opencode/ses_1", "opencode/ses_2"] and len(refused) == 1


@pytest.mark.parametrize(("value", "said", "format"), [
    (VSCODE, SAID_IN_VSCODE, "vscode-chat"), (CONTINUE, ALL, "continue"), (CHATGPT, ALL, "chatgpt"),
    (CLAUDE_AI, ALL, "claude-ai"),
])
def test_a_document_is_one_session_byte_for_byte(value: Any, said: list[Any], format: str, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_bytes(json.dumps(value, indent=2).encode())
    [found] = read(path)
    assert found.noun == "agent log" and found.format == format and found.session.value == path.read_bytes()
    assert messages_of(found.session) == said


def test_lines_that_change_a_chat_of_vscode(tmp_path: Path) -> None:
    request = VSCODE["requests"][0]  # type: ignore[index]
    lines = [
        {"kind": 0, "v": {**VSCODE, "requests": []}},
        {"kind": 2, "k": ["requests"], "v": [{"message": {"text": "Where"}}]},
        {"kind": 2, "k": ["requests"], "v": [{**request, "response": []}], "i": 0},
        {"kind": 2, "k": ["requests", 0, "response"], "v": request["response"]},
        {"kind": 1, "k": ["customTitle"], "v": "A bug"},
        {"kind": 3, "k": ["customTitle"]},
    ]
    path = tmp_path / "v1.jsonl"
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    [found] = read(path)
    assert found.format == "vscode-chat" and messages_of(found.session) == SAID_IN_VSCODE


def test_what_was_attached_is_named() -> None:
    chats = {**CHATGPT, "mapping": {"n1": SHOWN}, "current_node": "n1"}, {**CLAUDE_AI, "chat_messages": [GIVEN]}
    wanted = "What is this?\n[screen.png]", "[a.txt]\none\n\n[b.png]\n\nWhat is this?"
    for chat, words in zip(chats, wanted, strict=True):
        [found] = recognise(json.dumps(chat).encode(), ReadOptions())
        assert messages_of(found.session) == [{"role": "user", "content": words}]


def packing(path: Path, **files: Any) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items():
            packed.writestr(name.replace("__", "."), data if isinstance(data, bytes) else json.dumps(data))
    return path


@pytest.mark.parametrize(("chat", "name"), [(CHATGPT, "chatgpt/g1"), (CLAUDE_AI, "claude-ai/k1")])
def test_an_export_is_a_session_per_conversation(chat: dict[str, Any], name: str, tmp_path: Path) -> None:
    other = {**chat, next(key for key in ("uuid", "id") if key in chat): "other"}
    files = {"conversations__json": [other, chat], "chat__html": b"<html>", "file-1-screen__png": b"\x89PNG\xff"}
    path = packing(tmp_path / "export.zip", **files, projects__json=[{"uuid": "p"}])
    found = {one.name if one.found.given is None else one.found.given.name: one for one in named(read(path), str(path))}
    assert sorted(found) == sorted([name, f"{name.split('/')[0]}/other", "chat/0", "file-1-screen/0", "projects/0"])
    session = found[name].found.session
    assert messages_of(session) == ALL and session.value == json.dumps(chat).encode()
    assert found["file-1-screen/0"].found.session.value == b"\x89PNG\xff"
    remarks: list[str] = []
    list(recognise(path, ReadOptions(warn=remarks.append)))
    assert len(remarks) == 2 and all(f"{path}/" in remark for remark in remarks)
    given = {one.name for one in named(read(path), str(path), "export") if one.found.given is None}
    assert given == {"export.zip/chat/0", "export.zip/file-1-screen/0", "export.zip/projects/0"}
    assert given == {one.name for one in named(read(tmp_path), str(tmp_path)) if one.found.given is None}
    assert facts_of(session, found[name].found.size).title == "Where is the bug?"[: len(session.value) // 32].strip()
    assert found[name].found.size == len(session.value)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_of_any_length_is_read_item_by_item(indent: int | None, tmp_path: Path) -> None:
    chats = [{**CHATGPT, "id": f"g{n}", "title": "né" * n * 9000} for n in range(9)]
    path = tmp_path / "conversations.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(chats, indent=indent, ensure_ascii=False).encode() + b"\n")
    found = read(path, max_bytes=300_000)
    assert [one.given.name for one in found if one.given] == [f"chatgpt/g{n}" for n in range(9)]
    assert [json.loads(one.session.value) for one in found] == chats
    assert all(bytes(one.session.value) in path.read_bytes() for one in found)
    path.write_bytes(path.read_bytes()[:-99])
    cut = read(path)
    assert [one.session for one in cut[:8]] == [one.session for one in found[:8]]
    assert cut[8].noun == "text" and path.read_bytes().endswith(cut[8].session.value)


def test_a_member_that_cannot_be_read_stops_no_other(tmp_path: Path) -> None:
    path = packing(tmp_path / "a.zip", a__json=[CHATGPT], b__txt=b"words " * 99, c__txt=b"more")
    data = bytearray(path.read_bytes())
    data[data.index(b"b.txt") + 5] ^= 255
    path.write_bytes(data)
    refused: list[str] = []
    found = read(tmp_path, refused=lambda why, _: refused.append(why))
    assert len(found) == 2 and len(refused) == 1 and "a.zip/b.txt" in refused[0]
    with pytest.raises(CorruptError, match=r"b\.txt"):
        read(path)
    path.write_bytes(data[:-30])
    with pytest.raises(CorruptError, match="expected a zip file"):
        read(path)


def test_bounds_of_a_zip_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packing(tmp_path / "a.zip", a__txt=bytes(1000), b__txt=bytes(1000))
    monkeypatch.setattr(packed, "UNPACKED", 1500)
    with pytest.raises(LimitError, match="at most 1500"):
        read(path)
    monkeypatch.setattr(packed, "MEMBERS", 1)
    with pytest.raises(LimitError, match="at most 1 members"):
        read(path)
