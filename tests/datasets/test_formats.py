"""Files that people have are recognised for what they are, and their values come back.

The samples are written by hand after the public descriptions of each format.
"""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz.datasets import registry
from pltz.datasets.formats import packed
from pltz.datasets.input_format import NOUNS, ReadOptions, Recognised
from pltz.datasets.loaders import InputWarning, load, recognise
from pltz.models.session.session import Session
from pltz.models.session.spelling import spell, writing_of
from pltz.plt_codec.errors import CorruptError, LimitError, PltzError, UsageError

CLAUDE_CODE = [
    {"type": "summary", "summary": "Fix the date parser", "leafUuid": "9a"},
    {
        "parentUuid": None,
        "isSidechain": False,
        "cwd": "/home/ada/shop",
        "sessionId": "4f35e220",
        "version": "2.1.12",
        "type": "user",
        "message": {"role": "user", "content": "Why does the\nparser fail?"},
        "uuid": "u1",
        "timestamp": "2026-01-05T09:00:00.000Z",
    },
    {
        "parentUuid": "u1",
        "sessionId": "4f35e220",
        "type": "assistant",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me look at it."},
                {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": 'grep -n "parse" dates.py'}},
            ],
            "usage": {"input_tokens": 12, "output_tokens": 40},
        },
        "uuid": "u2",
    },
    {
        "parentUuid": "u2",
        "sessionId": "4f35e220",
        "type": "user",
        "message": {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "12:def parse(text):\n13:    pass"}],
        },
        "toolUseResult": {"stdout": "12:def parse(text):\n13:    pass", "stderr": ""},
        "uuid": "u3",
    },
]
CODEX = [
    {"timestamp": "2026-01-05T09:00:00Z", "type": "session_meta", "payload": {"id": "a1", "cwd": "/home/ada"}},
    {
        "timestamp": "2026-01-05T09:00:01Z",
        "type": "response_item",
        "payload": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is 2+2?"}]},
    },
    {
        "timestamp": "2026-01-05T09:00:02Z",
        "type": "response_item",
        "payload": {"type": "function_call", "name": "shell", "arguments": '{"command":["bc"]}', "call_id": "c1"},
    },
]
OLD_CODEX = [
    {"id": "a1", "timestamp": "2025-06-01T09:00:00Z", "instructions": None},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
]
AIDER = "# aider chat started at 2026-01-05 09:00:00\n\n> Added app.py to the chat\n\n#### add a test\n\nSure.\n"
USER = {"role": "user", "content": "Hi"}
NOON = "2026-01-05T12:00:00.000Z"
STREAM = [
    {"type": "system", "subtype": "init", "session_id": "4f35"},
    {"type": "user", "message": USER, "parent_tool_use_id": None, "session_id": "4f35"},
]
SNAPSHOTS = [{"type": "file-history-snapshot", "messageId": "m1", "snapshot": {}, "isSnapshotUpdate": False}] * 9
COPILOT = [
    {"type": "session.start", "data": {"sessionId": "378a"}, "id": "e1", "timestamp": NOON, "parentId": None},
    {"type": "user.message", "data": {"content": "Hi"}, "id": "e2", "timestamp": NOON, "parentId": "e1"},
]
PI = [
    {"type": "session", "version": 3, "id": "019f", "timestamp": NOON, "cwd": "/home/ada"},
    {"type": "message", "id": "0a82", "parentId": None, "timestamp": NOON, "message": USER},
]
OH_MY_PI = [{"type": "title", "v": 1, "title": "", "pad": "   "}, *PI]
GEMINI_LINES = [{"sessionId": "f763", "projectHash": "7e89"}, {"id": "1", "type": "user", "content": "Hi"}]
HARNESS = [
    {"type": "session", "version": 0, "id": "ed16", "createdAt": 1783421406247, "cwd": "/home/ada"},
    {"type": "turn/start", "seq": 0, "time": 1783421410388, "data": {"turn": 1}},
]
SPOKEN = [USER, {"role": "assistant", "content": "Hello"}]
WRAPPED = [{"role": "", "content": "", "timestamp": NOON, "raw": event} for event in COPILOT]
DOCUMENTS: dict[str, tuple[str, Any]] = {
    "gemini-cli": ("gemini-cli", {"sessionId": "f", "projectHash": "7", "messages": [{"id": "1", "type": "user"}]}),
    "opencode": (
        "opencode",
        {"info": {"id": "ses_1"}, "messages": [{"info": {"role": "user"}, "parts": [{"type": "text", "text": "Hi"}]}]},
    ),
    "cline": ("cline", [{"ts": 1767603600000, "type": "say", "say": "text", "text": "Hi"}]),
    "openhands": ("openhands", [{"id": 0, "timestamp": NOON, "source": "user", "action": "message", "args": {}}]),
    "openhands output": (
        "openhands",
        {"instance_id": "a-1", "history": [{"source": "agent", "observation": "run", "content": "ok"}]},
    ),
    "swe-agent": ("swe-agent", {"trajectory": [{"action": "ls", "observation": "a"}], "history": [], "info": {}}),
    "mini-swe-agent": (
        "swe-agent",
        {"info": {"model_stats": {}}, "messages": [USER], "trajectory_format": "mini-swe-agent-1"},
    ),
    "antigravity": ("antigravity", {"sessionId": "1c06", "turns": [{"role": "user", "parts": [{"text": "Hi"}]}]}),
}
MARKDOWN = {
    "specstory": "<!-- Generated by SpecStory, Markdown v2.1.0 -->\n\n_**User**_\n\nHi\n",
    "cursor": "# Fix the parser\n_Exported on 5/1/2026 at 09:00:00 GMT+1 from Cursor (2.3.1)_\n\n**User**\n\nHi\n",
}
CHATS: dict[str, tuple[str, Any]] = {
    "openai": ("openai", {"messages": [USER], "model": "gpt-5"}),
    "messages": ("messages", [USER, {"role": "assistant", "content": "Hello"}]),
    "completion": ("openai-completion", {"object": "chat.completion", "choices": [{"index": 0, "message": USER}]}),
    "log": ("openai-log", {"request": {"messages": [USER]}, "response": {"choices": []}, "ms": 12}),
    "batch request": (
        "openai-batch",
        {"custom_id": "7", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [USER]}},
    ),
    "batch result": (
        "openai-batch",
        {"id": "r", "custom_id": "7", "response": {"status_code": 200, "body": {"choices": []}}, "error": None},
    ),
    "anthropic batch": ("openai-batch", {"custom_id": "7", "params": {"messages": [USER]}}),
    "responses request": ("openai-responses", {"model": "gpt-5", "input": [USER]}),
    "responses result": (
        "openai-responses",
        {
            "object": "response",
            "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}],
        },
    ),
    "anthropic": ("anthropic", {"system": "Be brief.", "messages": [USER]}),
    "anthropic blocks": (
        "anthropic",
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "4"}]}]},
    ),
    "anthropic reply": (
        "anthropic-reply",
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hi"}], "stop_reason": None},
    ),
    "sharegpt": ("sharegpt", {"conversations": [{"from": "human", "value": "Hi"}]}),
    "wildchat": ("wildchat", {"conversation_hash": "9a", "conversation": [USER], "language": "English"}),
    "lmsys": ("lmsys", {"conversation_id": "9a", "conversation": [USER], "turn": 1}),
    "arena": ("lmsys-arena", {"conversation_a": [USER], "conversation_b": [USER], "winner": "model_a"}),
    "langchain dicts": ("langchain", [{"type": "human", "data": {"content": "Hi"}}]),
    "langchain dump": ("langchain", {"messages": [{"type": "ai", "content": "Hi", "id": "1", "tool_calls": []}]}),
    "langgraph state": ("langchain", {"values": {"messages": [{"type": "human", "content": "Hi"}]}, "next": []}),
    "langchain objects": (
        "langchain",
        {"lc": 1, "type": "constructor", "id": ["langchain", "HumanMessage"], "kwargs": {"content": "Hi"}},
    ),
}
NO_CHATS: list[tuple[Any, str]] = [
    ({"messages": "oops"}, '"messages" is a string'),
    ({"messages": [1]}, "no messages with a role"),
    ({"prompt": "1 + 1", "answer": 2}, "no key of a known chat format"),
    ({"type": "human"}, "no key of a known chat format"),
]


def lines(values: list[Any]) -> bytes:
    return b"".join(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for value in values)


def read(source: Any, **options: Any) -> tuple[list[Recognised], list[str]]:
    remarks: list[str] = []
    return list(recognise(source, ReadOptions(**options, warn=remarks.append))), remarks


@pytest.mark.parametrize(("format", "value"), CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("whole", [True, False], ids=["document", "lines"])
def test_chats_are_recognised(format: str, value: Any, whole: bool, tmp_path: Path) -> None:
    path = tmp_path / ("a.json" if whole else "a.jsonl")
    path.write_bytes(json.dumps(value, indent=1).encode() if whole else lines([value, value]))
    found, remarks = read(path)
    assert [(one.noun, one.format) for one in found] == [("chat", format)] * (1 if whole else 2)
    assert all(one.session.value == value for one in found) and not remarks


@pytest.mark.parametrize("value", [value for _, value in (*CHATS.values(), *DOCUMENTS.values())])
def test_bytes_are_recognised_as_their_values_are(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(json.dumps(value, indent=1).encode())
    [by_value], _ = read(path)
    [exact], remarks = read(path, exact=True)
    assert exact.session == Session("text", path.read_bytes()) and not remarks
    assert (exact.noun, exact.is_log) == (by_value.noun, by_value.is_log)


@pytest.mark.parametrize(("value", "why"), NO_CHATS)
def test_other_json_is_never_silently_a_chat(value: Any, why: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines([value, value]))
    [found], [remark] = read(path)
    assert (found.noun, found.session) == ("json", Session("text", path.read_bytes()))
    assert why in remark and "1 session is kept as JSON" in remark and "line 1" in remark
    with pytest.warns(InputWarning, match="kept as JSON"):
        assert len(list(load(path))) == 1
    assert read(path, format="jsonl")[1] == []
    path.write_bytes(json.dumps(value).encode() + b"\n")  # with spaces, so exact keeps a writing
    [kept], [remark] = read(path, exact=True)
    assert kept.session.to_input_bytes() == path.read_bytes() and why in remark and "byte for byte" in remark


@pytest.mark.parametrize(
    ("format", "events"),
    [
        ("claude-code", CLAUDE_CODE), ("claude-code", STREAM), ("claude-code", SNAPSHOTS), ("codex", CODEX),
        ("codex", OLD_CODEX), ("copilot-cli", COPILOT), ("pi", PI), ("pi", OH_MY_PI),
        ("gemini-cli-lines", GEMINI_LINES), ("events", HARNESS), ("events", SPOKEN), ("events", WRAPPED),
    ],
)
def test_an_agent_log_is_one_session(format: str, events: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(lines(events))
    for source in (path, lines(events)):
        [found], remarks = read(source)
        assert (found.noun, found.format, found.session.value) == ("agent log", format, events) and not remarks
    [exact], _ = read(path, exact=True)
    assert exact.session.kind == "chat"
    path.write_bytes(lines(events).replace(b'":', b'": '))
    [exact], _ = read(path, exact=True)
    assert exact.session.value == path.read_bytes() and exact.noun == "agent log"


def test_an_agent_log_with_json_that_would_change_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(lines(CODEX) + b'{"type":"event_msg","payload":{"x":1,"x":2}}\n')
    [found], _ = read(path)
    assert (found.noun, found.session.value) == ("agent log", path.read_bytes())


def test_a_log_cut_in_a_line_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(lines(CODEX)[:-9])
    with pytest.raises(UsageError, match=r"line 3.*still being written"):
        next(recognise(path))  # its lines are no sessions


def test_any_lines_are_one_session_where_asked() -> None:
    [found], _ = read(lines([{"a": 1}, {"b": 2}]), format="agent-log")
    assert found.session.value == [{"a": 1}, {"b": 2}]


def test_aider_is_one_text(tmp_path: Path) -> None:
    path = tmp_path / ".aider.chat.history.md"
    path.write_text(AIDER)
    [found], remarks = read(path)
    assert (found.noun, found.session.value) == ("agent log", AIDER.encode()) and not remarks


@pytest.mark.parametrize(("format", "value"), DOCUMENTS.values(), ids=DOCUMENTS)
@pytest.mark.parametrize("name", ["a.json", "a.traj", "a"])
def test_a_document_of_an_agent_is_one_session(format: str, value: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(json.dumps(value, indent=2).encode())
    [found], remarks = read(path)
    assert (found.noun, found.format, found.session.value) == ("agent log", format, value) and not remarks


@pytest.mark.parametrize("format", MARKDOWN)
def test_a_log_in_markdown_is_one_text(format: str, tmp_path: Path) -> None:
    path = tmp_path / "log.md"
    path.write_text(MARKDOWN[format])
    [found], remarks = read(path)
    assert (found.noun, found.format, found.session.value) == ("agent log", format, MARKDOWN[format].encode())
    assert not remarks


def test_lines_that_are_sessions_stay_sessions() -> None:
    for value in ({"type": "qa", "timestamp": NOON, "messages": [USER]}, CLAUDE_CODE):  # a log is a line of an export
        assert [one.session.value for one in read(lines([value, value]))[0]] == [value, value]


@pytest.mark.parametrize(("data", "noun"), [(b"caf\xc3\xa9", "text"), (b"\xff\xfe\x00", "binary"), (b"a\0b", "binary")])
def test_text_and_binary(data: bytes, noun: str) -> None:
    [found], remarks = read(data)
    assert (found.noun, found.session.value) == (noun, data)
    assert [("binary" in remark) for remark in remarks] == [True] * (noun == "binary")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt", "a"])
def test_an_empty_file_is_told(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.touch()
    try:
        _, remarks = read(path)
    except UsageError:
        return
    assert [remark.endswith("is empty") for remark in remarks] == [True]


def test_a_document_under_the_name_of_lines_is_refused_with_a_way_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(CHATS["openai"][1], indent=2))
    with pytest.raises(UsageError, match=r"line 1: .* under a name that ends in \.json"):
        read(path)


def test_a_file_that_grows_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines([CHATS["openai"][1]]))
    remarks: list[str] = []
    rows = recognise(path, ReadOptions(warn=remarks.append))
    next(rows)
    with path.open("ab") as file:
        file.write(b"\n\n")
    assert list(rows) == [] and "changed while it was read" in remarks[0]


@pytest.mark.parametrize(
    "data", [b'{"messages":  []}', b'[{"messages":[]},{"messages":[]}]', b'{"messages":[],"a":1.50}\n']
)
def test_exact_keeps_bytes_that_a_value_does_not(data: bytes) -> None:
    [found], _ = read(data, exact=True)
    assert (found.session.kind, found.session.value, found.noun) == ("text", data, "chat")
    assert all(one.session.kind == "chat" for one in read(data)[0])


def test_exact_leaves_bytes_that_come_back_alone() -> None:
    [one, two, three], _ = read(lines([CHATS["openai"][1]]) + b'{"messages": []}\n{"messages" : []}\n', exact=True)
    assert one.session == Session("chat", one.session.value)
    assert two.session == Session("chat", {"messages": []}, 10)
    assert three.session == Session("text", b'{"messages" : []}\n')


ASKED = {"role": "user", "content": "Où? <b> a/b & 漢 😀"}
CHAT = {"messages": [ASKED, {"role": "assistant", "content": "", "n": [1.5, {}]}]}
WRITERS: list[Callable[[Any], str]] = [
    json.dumps,
    lambda value: json.dumps(value, ensure_ascii=False),
    lambda value: json.dumps(value, separators=(",", ":")),
    lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("/", "\\/"),
    lambda value: json.dumps(value, indent=2),
    lambda value: json.dumps(value, indent="\t", ensure_ascii=False),
    lambda value: spell(value, 4),  # Go
]


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
@pytest.mark.parametrize("number", range(len(WRITERS)))
def test_exact_keeps_a_chat_a_chat_whoever_wrote_its_json(number: int, end: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes((WRITERS[number](CHAT) + end).encode())
    [found], _ = read(path, exact=True)
    assert found.session.kind == "chat" and found.session.value == CHAT and found.session.writing
    assert found.session.to_input_bytes() == path.read_bytes()
    assert found.session != Session("chat", CHAT)


def test_few_bytes_that_are_nested_deeply_never_become_many() -> None:
    deep: Any = [0] * 3000
    for _ in range(150):
        deep = [deep]
    value = {"messages": [{"role": "user", "content": "Hi", "deep": deep}]}
    data = json.dumps(value, indent=4).encode()
    [found], _ = read(data, exact=True)
    assert found.session == Session("text", data)  # no writing, and exact all the same
    number = writing_of(json.dumps(CHAT, indent=4).encode(), CHAT, 0)
    with pytest.raises(CorruptError, match="swell"):
        Session("chat", value, number).to_input_bytes()


def test_lines_of_one_program_have_one_writing() -> None:
    """Give lines without escapes the writing of those beside them, so that a file says it once."""
    rows = [{"messages": [{"role": "user", "content": text}]} for text in ("ascii", "é", "ascii", "日本")]
    for ascii in (True, False):
        data = b"".join(json.dumps(row, ensure_ascii=ascii).encode() + b"\n" for row in rows[1:])
        assert len({found.session.writing for found in read(data, exact=True)[0]}) == 1
    found, _ = read(b"".join(json.dumps(row).encode() + b"\n" for row in rows), exact=True)
    assert {one.session.writing for one in found} == {10}


LINE = b'{"messages":[{"role":"user","content":"Hi"}]}'
PIECES = [
    LINE + b"\n",
    LINE,
    b'{"a":1}\n { "a":1}\n{"a":1.50}\n' + LINE + b"\n",
    b'{"a":1}\r\n\r\n5\n\n' + LINE + b"\n[1]\n\n",
    b"\xef\xbb\xbf" + LINE + b"\r\n\r\n" + LINE + b"\n\n \n" + LINE,
    b"\n\n" + LINE + b"\n",
    b"\n \n",
    b'{"a":NaN}\n{"a":1,"a":2}\n' + LINE,
    b'[{"role":"user","content":"Hi"}]\n' + LINE + b"\n",
    b'[]\n[1]\n"text"\n5\nnull\n',
    b'{"b":"\\ud800"}\n{"b":"\xc3\xa9"}\n',
]


@pytest.mark.parametrize("data", PIECES)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a", "a.txt"])
def test_exact_sessions_in_a_row_are_the_bytes_of_their_file(name: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    found, _ = read(path, exact=True) if data.strip() or name != "a.json" else ([], [])
    assert b"".join(one.session.to_input_bytes() for one in found) == (data if found else b"")
    assert found or (name == "a.json" and not data.strip())


def test_exact_refuses_ids_and_tables_whose_bytes_it_cannot_give_back(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave --exact out"):
        read(b"[1, 2]\n", exact=True)
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(UsageError, match="leave it out"):
        read(tmp_path / "a.npy", exact=True)


# ---- tables


def table(path: Path, columns: dict[str, Any]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    made = pyarrow.table(columns)
    if path.suffix == ".parquet":
        parquet.write_table(made, path)
    else:
        feather.write_feather(made, path, compression="uncompressed")
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_tables(name: str, tmp_path: Path) -> None:
    import datetime

    rows = [[USER], [USER, {"role": "assistant", "content": "Hello"}]]
    when = [datetime.datetime(2026, 1, 5), datetime.datetime(2026, 1, 6)]
    path = table(tmp_path / name, {"conversation": rows, "conversation_hash": ["a", "b"], "timestamp": when})
    for source in (path, path.read_bytes()):
        found, [remark] = read(source)
        assert [(one.noun, one.format) for one in found] == [("chat", "wildchat")] * 2
        assert found[1].session.value == {"conversation": rows[1], "conversation_hash": "b"}
        assert "left out" in remark and "timestamp" in remark
    found, remarks = read(path, columns=("conversation_hash",))
    assert [(one.noun, one.session.value) for one in found] == [("text", b"a"), ("text", b"b")] and not remarks
    for column in ("timestamp", "other"):
        with pytest.raises(UsageError, match=column):
            read(path, columns=(column,))


def test_tables_of_ids_and_of_other_values(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", {"input_ids": [[1, 2], [3]], "n": [1, 2]})
    found, _ = read(path)
    assert [(one.noun, one.session.value.tolist()) for one in found] == [("ids", [1, 2]), ("ids", [3])]
    found, [remark] = read(table(tmp_path / "b.parquet", {"q": ["1 + 1"], "a": [2.5]}))
    assert (found[0].noun, found[0].session.value) == ("json", {"q": "1 + 1", "a": 2.5}) and "kept as JSON" in remark


@pytest.mark.parametrize("data", [b"PAR1" + bytes(40) + b"PAR1", b"ARROW1\0\0" + bytes(50)])
def test_a_damaged_table_is_refused(data: bytes) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(CorruptError):
        read(data)


# ---- databases


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "chats.db"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE chats (id INTEGER, body TEXT, raw BLOB)")
        made.execute("INSERT INTO chats VALUES (7, ?, ?)", (json.dumps({"messages": [USER]}), b"\xff"))
        made.execute("INSERT INTO chats VALUES (8, 'plain words', NULL)")
    made.close()
    return path


def test_a_database_is_read_by_a_query(base: Path) -> None:
    for source in (base, base.read_bytes()):
        found, _ = read(source, query="SELECT body FROM chats ORDER BY id")
        assert [one.noun for one in found] == ["chat", "text"] and found[1].session.value == b"plain words"
    found, _ = read(base, query="SELECT id, body FROM chats WHERE id = 8")
    assert found[0].session.value == {"id": 8, "body": "plain words"}
    assert read(base, query="SELECT raw FROM chats WHERE id = 7")[0][0].noun == "binary"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (None, "tables: chats"),
        ("DELETE FROM chats", "fails"),
        ("ATTACH 'other.db' AS other", "fails"),
        ("SELECT nothing FROM chats", "fails"),
        ("SELECT id, id FROM chats", "one name"),
        ("SELECT id, raw FROM chats", "holds bytes"),
    ],
)
def test_a_query_only_reads(base: Path, query: str | None, words: str) -> None:
    before = base.read_bytes()
    with pytest.raises(PltzError, match=words):
        read(base, query=query)
    assert base.read_bytes() == before


# ---- archives


def zipped(members: dict[str, bytes], *, tar: str = "") -> bytes:
    sink = io.BytesIO()
    if tar:
        with tarfile.open(fileobj=sink, mode="w:gz" if tar == "gz" else "w:") as packed_file:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                packed_file.addfile(info, io.BytesIO(data))
    else:
        with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as file:
            for name, data in members.items():
                file.writestr(name, data)
    return sink.getvalue()


MEMBERS = {"b/log.jsonl": lines(CLAUDE_CODE), "a/chats.jsonl": lines([CHATS["openai"][1]] * 2), "c.txt": b"words"}


@pytest.mark.parametrize("tar", ["", "-", "gz"], ids=["zip", "tar", "tar.gz"])
def test_members_of_archives(tar: str, tmp_path: Path) -> None:
    suffix = {"": ".zip", "-": ".tar", "gz": ".tgz"}[tar]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(zipped(MEMBERS, tar=tar))
    for source in (path, path.read_bytes()):
        found, remarks = read(source)
        assert sorted(one.noun for one in found) == ["agent log", "chat", "chat", "text"] and not remarks
        assert {Path(one.file).name for one in found} == {"log.jsonl", "chats.jsonl", "c.txt"}


@pytest.mark.parametrize("tar", ["", "-"], ids=["zip", "tar"])
@pytest.mark.parametrize("name", ["../a.txt", "/etc/a.txt", "a/../../b.txt", "..\\a.txt", "C:\\a.txt"])
def test_a_member_outside_of_the_archive_is_refused(tar: str, name: str) -> None:
    with pytest.raises(UsageError, match="outside of the archive"):
        read(zipped({name: b"x"}, tar=tar))


@pytest.mark.parametrize("tar", ["", "-"], ids=["zip", "tar"])
def test_archives_are_bounded(tar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zipped({f"{n}.txt": bytes(100_000) for n in range(5)}, tar=tar)
    monkeypatch.setattr(packed, "UNPACKED", 300_000)
    with pytest.raises(LimitError, match="unpacked bytes"):
        read(bomb)
    monkeypatch.setattr(packed, "UNPACKED", 1_000_000)
    monkeypatch.setattr(packed, "MEMBERS", 4)
    with pytest.raises(LimitError, match="4 members"):
        read(bomb)
    with pytest.raises(LimitError):
        read(zipped({"a.txt": bytes(1000)}, tar=tar), max_bytes=999)


def test_an_archive_inside_an_archive_is_refused() -> None:
    with pytest.raises(UsageError, match="archive inside an archive"):
        read(zipped({"a.zip": zipped({"b.txt": b"x"})}))


def test_a_link_in_a_tar_file_is_left_out() -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as file:
        link = tarfile.TarInfo("passwd")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
    found, remarks = read(sink.getvalue())
    assert found == [] and "left out" in remarks[0]


@pytest.mark.parametrize("cut", [30, 60, -30])
def test_a_damaged_zip_is_refused(cut: int) -> None:
    with pytest.raises(PltzError):
        read(zipped({"a.txt": bytes(range(256)) * 40})[:cut])


def test_every_format_is_recognised_by_something() -> None:
    names = [known.name for known in registry.FORMATS]
    assert len(set(names)) == len(names)
    for known in registry.FORMATS:
        assert known.noun in NOUNS and known.about and (known.of_head or known.of_events or known.of_value)
        assert (known.read is not None) == (known.of_head is not None)


def test_a_tar_of_a_whole_folder_is_read(tmp_path: Path) -> None:
    """`tar cf x.tar .` begins with a member ``.``, which has no path parts."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.USTAR_FORMAT) as file:
        file.add(tmp_path / "in", arcname=".")
    assert len(list(load(tmp_path / "x.tar"))) == 1


def test_the_log_of_an_agent_in_a_row_is_one(tmp_path: Path) -> None:
    base = tmp_path / "a.db"
    with closing(sqlite3.connect(base)) as db:
        db.execute("CREATE TABLE logs (name, session)")
        db.executemany("INSERT INTO logs VALUES (?, ?)", [("a", json.dumps(CLAUDE_CODE)), ("b", json.dumps([[1], 2]))])
        db.commit()
    found, [remark] = read(base, query="SELECT name, session FROM logs ORDER BY name")
    assert [(one.noun, one.format) for one in found] == [("agent log", "claude-code"), ("json", "sqlite")]
    assert found[0].session.value == CLAUDE_CODE and "row 2: a list is no chat; 1 session is" in remark
