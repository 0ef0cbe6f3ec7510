"""The conversation of each agent's log: what the model was shown, and nothing that its agent counted."""

import json
from typing import Any

import pytest

from pltz.datasets.conversation import conversation_of, conversations_of, is_long, log_of, messages_of, numbered
from pltz.datasets.turns import joined, without_tools
from pltz.models.session.long_text import LongText
from pltz.models.session.session import Session


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


ASKED = {"role": "user", "content": "Where is the bug?"}
CALLED = {"role": "assistant", "content": "I look.", "tool_calls": [call("read", path="a.py")]}
FOUND = {"role": "tool", "content": "print(1)"}
TOLD = {"role": "assistant", "content": "In line 1."}
ALL: list[dict[str, Any]] = [ASKED, CALLED, FOUND, TOLD]
READ = {"path": "a.py"}
RULES = {"role": "system", "content": "Be brief."}


def claude(n: int, role: str, content: Any, parent: int | None, **more: Any) -> dict[str, Any]:
    message = {"id": f"msg_{n}", "role": role, "content": content}
    above = None if parent is None else f"u{parent}"
    return {"type": role, "sessionId": "s", "uuid": f"u{n}", "parentUuid": above, "message": message, **more}


CLAUDE = [
    {"type": "summary", "summary": "a bug", "leafUuid": "u9"},
    claude(0, "user", "Where is the bug?", None),
    claude(1, "assistant", [{"type": "text", "text": "Elsewhere."}], 0),  # a branch that was left
    claude(2, "assistant", [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I look."}], 0),
    claude(3, "assistant", [{"type": "tool_use", "id": "t", "name": "read", "input": {"path": "a.py"}}], 2),
    claude(4, "user", [{"type": "tool_result", "tool_use_id": "t", "content": "print(1)"}], 3),
    {"type": "progress", "sessionId": "s", "uuid": "u5", "parentUuid": "u4", "data": {"count": 7}},
    claude(6, "user", "the task of a subagent", None, isSidechain=True),
    claude(7, "assistant", [{"type": "text", "text": "In line 1."}], 5),
]


def codex(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-05T09:00:00.000Z", "type": kind, "payload": payload}


CODEX = [
    codex("session_meta", id="a", cwd="/", base_instructions={"text": "Be brief."}),
    codex("response_item", type="message", role="user", content=[{"type": "input_text", "text": "What was before"}]),
    codex("compacted", message="", replacement_history=[{"type": "message", **ASKED}]),
    codex("event_msg", type="token_count", info={"total": 7}),
    codex("response_item", type="reasoning", summary=[], encrypted_content="x"),
    codex("response_item", type="message", role="assistant", content=[{"type": "output_text", "text": "I look."}]),
    codex("response_item", type="function_call", name="read", arguments='{"path": "a.py"}', call_id="c"),
    codex("response_item", type="function_call_output", call_id="c", output="print(1)"),
    codex("response_item", type="message", role="assistant", content=[{"type": "output_text", "text": "In line 1."}]),
]


def copilot(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data, "id": "x", "timestamp": "2026-01-05T09:00:00.000Z", "parentId": "y"}


COPILOT = [
    copilot("session.start", sessionId="s"),
    copilot("system.message", role="system", content="Be brief."),
    copilot("user.message", content="bug?", transformedContent="Where is the bug?"),
    copilot(
        "assistant.message",
        content="I look.",
        toolRequests=[{"toolCallId": "c", "name": "read", "arguments": {"path": "a.py"}}],
    ),
    copilot("tool.execution_complete", toolCallId="c", result={"content": "print(1)"}),
    copilot("assistant.message", content="In line 1.", toolRequests=[]),
]


def pi(n: int, parent: int | None, role: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": content, **more}
    return {"type": "message", "id": f"i{n}", "parentId": None if parent is None else f"i{parent}", "message": message}


PI_CALL = {"type": "toolCall", "name": "read", "arguments": READ}
PI = [
    {"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-05T09:00:00.000Z", "cwd": "/"},
    pi(0, None, "user", "What was before"), pi(1, 0, "user", [{"type": "text", "text": "Where is the bug?"}]),
    {"type": "compaction", "id": "i2", "parentId": "i1", "summary": "We began.", "firstKeptEntryId": "i1"},
    pi(3, 2, "assistant", "another branch"), pi(4, 2, "assistant", [{"type": "text", "text": "I look."}, PI_CALL]),
    pi(5, 4, "toolResult", [{"type": "text", "text": "print(1)"}], toolName="read"),
    pi(6, 5, "assistant", [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "In line 1."}]),
]
GEMINI_CALL: dict[str, Any] = {"id": "c", "name": "read", "args": {"path": "a.py"}}
GEMINI_CALL["result"] = [{"functionResponse": {"response": {"output": "print(1)"}}}]
GEMINI: list[dict[str, Any]] = [
    {"id": "1", "type": "user", "content": "Where is the bug?"},
    {"id": "2", "type": "gemini", "content": "I look.", "toolCalls": [GEMINI_CALL], "tokens": {"total": 7}},
    {"id": "3", "type": "info", "content": "an update"},
    {"id": "4", "type": "gemini", "content": [{"text": "In line 1."}]},
]
GEMINI_LOG: dict[str, Any] = {"sessionId": "s", "projectHash": "p", "messages": GEMINI}
OPENCODE: dict[str, Any] = {
    "info": {"id": "ses_1", "revert": {"messageID": "m4"}},
    "messages": [
        {"info": {"id": "m1", "role": "user"}, "parts": [{"type": "text", "text": "Where is the bug?"}]},
        {
            "info": {"id": "m2", "role": "assistant"},
            "parts": [
                {"type": "step-start"}, {"type": "reasoning", "text": "hm"}, {"type": "text", "text": "I look."},
                {"type": "tool", "tool": "read", "state": {"input": {"path": "a.py"}, "output": "print(1)"}},
            ],
        },
        {"info": {"id": "m3", "role": "assistant"}, "parts": [{"type": "text", "text": "In line 1."}]},
        {"info": {"id": "m4", "role": "user"}, "parts": [{"type": "text", "text": "taken back"}]},
    ],
}
OPENHANDS = [
    {"id": 0, "source": "agent", "action": "system", "args": {"content": "Be brief."}},
    {"id": 1, "source": "user", "action": "message", "args": {"content": "Where is the bug?"}},
    {"id": 2, "source": "agent", "action": "read", "args": {"path": "a.py", "thought": "I look.", "start": 0}},
    {"id": 3, "source": "environment", "observation": "read", "content": "print(1)"},
    {"id": 4, "source": "environment", "observation": "agent_state_changed", "content": ""},
    {"id": 5, "source": "agent", "action": "finish", "args": {"final_thought": "In line 1."}},
]
SWE = {
    "trajectory": [],
    "info": {},
    "history": [
        RULES, ASKED, {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "c", **call("read")}]},
        {"role": "tool", "content": [{"type": "text", "text": "print(1)"}], "tool_call_ids": ["c"]}, TOLD,
    ],
}
SWE["history"][2]["tool_calls"][0]["function"] = {"name": "read", "arguments": '{"path": "a.py"}'}  # type: ignore[index]
ANTIGRAVITY = {
    "sessionId": "s",
    "turns": [
        {"role": "user", "parts": [{"text": "Where is the bug?"}]},
        {"role": "model", "parts": [{"text": "I look."}, {"functionCall": {"name": "read", "args": {"path": "a.py"}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "read", "response": {"content": "print(1)"}}}]},
        {"role": "model", "parts": [{"text": "In line 1."}]},
    ],
}
HARNESS = [
    {"type": "session", "version": 0, "id": "s", "createdAt": 0},
    {"type": "request/header", "seq": 1, "time": 0, "data": {"header": {"system": "Be brief.", "config": {}}}},
    {"type": "user/message", "seq": 2, "time": 0, "data": {"content": [{"type": "text", "text": "Where is the bug?"}]}},
    {
        "type": "assistant/message", "seq": 3, "time": 0,
        "data": {
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool-call", "id": "c", "name": "read", "arguments": '{"path": "a.py"}'},
            ]
        },
    },
    {"type": "tool/call", "seq": 4, "time": 0, "data": {"callId": "c", "name": "read", "arguments": "{}"}},
    {"type": "tool/result", "seq": 5, "time": 0, "data": {"content": [{"type": "text", "text": "print(1)"}]}},
    {"type": "assistant/message", "seq": 6, "time": 0, "data": {"content": [{"type": "text", "text": "In line 1."}]}},
]
LINES: list[dict[str, Any]] = [{**message, "timestamp": n} for n, message in enumerate(ALL)]
CLINE = [
    {"ts": 1, "type": "say", "say": "text", "text": "Where is the bug?"},
    {"ts": 2, "type": "say", "say": "text", "text": "I look."},
    {"ts": 3, "type": "ask", "ask": "tool", "text": '{"tool": "readFile"}'},
    {"ts": 4, "type": "say", "say": "completion_result", "text": "In line 1."},
]


@pytest.mark.parametrize(("value", "wanted"), [
    (CLAUDE, ALL), (CODEX, [RULES, *ALL]), (COPILOT, [RULES, *ALL]),
    (PI, [{"role": "user", "content": "We began.\n\nWhere is the bug?"}, *ALL[1:]]), (GEMINI_LOG, ALL),
    ([{"sessionId": "s", "projectHash": "p"}, *GEMINI], ALL), (OPENCODE, ALL), (OPENHANDS, [RULES, *ALL]),
    ({"instance_id": "a", "history": OPENHANDS}, [RULES, *ALL]), (SWE, [RULES, *ALL]), (ANTIGRAVITY, ALL),
    (HARNESS, [RULES, *ALL]), (LINES, ALL),
    ([{"role": str(event["type"]), "content": "", "raw": event} for event in CLAUDE], ALL),
])
def test_what_the_model_was_shown(value: Any, wanted: list[Any]) -> None:
    assert messages_of(Session("chat", value)) == wanted
    text = json.dumps(value, indent=1).encode()
    assert messages_of(Session("text", text)) == wanted
    if isinstance(value, list):
        rows = b"".join(json.dumps(row).encode() + b"\n" for row in value)
        assert messages_of(Session("text", rows)) == wanted


AIDER = b"""# aider chat started at 2026-01-01 10:00:00

#### an older chat

# aider chat started at 2026-01-02 10:00:00

> Added a.py to the chat
#### Where is
#### the bug?

In line 1.

> Applied edit to a.py
#### Thanks
"""
SPECSTORY = b"""<!-- Generated by SpecStory -->
# Bug

_**User**_

Where is the bug?

---

_**Assistant (claude)**_

In line 1.
"""


def test_markdown() -> None:
    assert messages_of(Session("text", AIDER)) == [
        {"role": "user", "content": "Where is\nthe bug?"}, TOLD, {"role": "user", "content": "Thanks"}
    ]
    assert messages_of(Session("text", SPECSTORY)) == [ASKED, TOLD]


@pytest.mark.parametrize("value", [
    {"messages": ALL}, [ASKED, TOLD], {"a": 1}, [{"type": "user", "sessionId": "s", "message": 7}],
    [{"type": "user", "sessionId": "s", "uuid": "a", "parentUuid": "a", "message": {}}],
    {"sessionId": "s", "projectHash": "p", "messages": [7]},
])
def test_what_tells_no_conversation(value: Any) -> None:
    assert messages_of(Session("chat", value)) is None


def test_a_template_without_tools_gets_text() -> None:
    assert without_tools(ALL) == [
        ASKED, {"role": "assistant", "content": 'I look.\nread({"path": "a.py"})'},
        {"role": "user", "content": "print(1)"}, TOLD,
    ]
    later = joined([ASKED, {"role": "developer", "content": "Stop."}, TOLD])
    assert later == [{"role": "user", "content": "Where is the bug?\n\nStop."}, TOLD]


MOMENT = 1767603600  # 2026-01-05T09:00:00Z
STAMPED: dict[str, Any] = {
    "claude-code": [{**event, "timestamp": "2026-01-05T09:00:00.000Z"} for event in CLAUDE],
    "codex": CODEX,
    "copilot-cli": COPILOT,
    "gemini-cli": {
        "sessionId": "s",
        "projectHash": "p",
        "messages": [{**entry, "timestamp": "2026-01-05T09:00:00Z"} for entry in GEMINI],
    },
    "opencode": {
        **OPENCODE,
        "messages": [{**m, "info": {**m["info"], "time": {"created": MOMENT * 1000}}} for m in OPENCODE["messages"]],
    },
    "events": [{**line, "timestamp": MOMENT} for line in LINES],
}


@pytest.mark.parametrize(("agent", "value"), STAMPED.items(), ids=STAMPED)
def test_turns_say_who_and_when(agent: str, value: Any) -> None:
    found = conversation_of(Session("chat", value))
    assert found.agent == agent
    told = [turn for turn in found.turns if turn.role != "system"]
    assert [(turn.role, turn.text, turn.time) for turn in told] == [
        ("user", "Where is the bug?", 0 if agent == "codex" else MOMENT),  # from before a compaction
        ("assistant", "I look.", MOMENT),
        ("tool", "print(1)", MOMENT),
        ("assistant", "In line 1.", MOMENT),
    ]
    assert told[1].calls == (("read", {"path": "a.py"}),)


CHATS: list[Any] = [
    {"messages": ALL},
    ALL,
    {"request": {"messages": ALL[:3]}, "response": {"choices": [{"message": TOLD}]}},
    {"conversations": [
        {"from": "human", "value": "Where is the bug?"}, {**CALLED, "role": "assistant"}, FOUND,
        {"from": "gpt", "value": "In line 1."},
    ]},
    {"messages": [
        ASKED,
        {"role": "assistant", "content": [
            {"type": "text", "text": "I look."}, {"type": "tool_use", "name": "read", "input": READ},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "content": "print(1)"}]},
        TOLD,
    ]},
    {"model": "m", "input": [
        ASKED,
        {"type": "message", "role": "assistant", "content": "I look."},
        {"type": "function_call", "name": "read", "arguments": '{"path": "a.py"}'},
        {"type": "function_call_output", "output": "print(1)"},
    ], "output": [{"type": "message", "role": "assistant", "content": "In line 1."}]},
    [
        {"type": "human", "data": {"content": "Where is the bug?"}},
        {"type": "ai", "data": {"content": "I look.", "tool_calls": [call("read", path="a.py")]}},
        {"type": "tool", "data": {"content": "print(1)"}},
        {"type": "ai", "data": {"content": "In line 1."}},
    ],
]  # fmt: skip


@pytest.mark.parametrize("value", CHATS)
def test_a_chat_of_any_maker_has_turns(value: Any) -> None:
    found = conversation_of(Session("chat", value))
    assert [(turn.role, turn.text) for turn in found.turns] == [(m["role"], m["content"]) for m in ALL]
    assert found.turns[1].calls == (("read", READ),) and (found.agent, found.note) == ("chat", "")


def chain(parents: list[int | None]) -> list[dict[str, Any]]:
    return [claude(n, "assistant" if n % 2 else "user", f"turn {n}", parent) for n, parent in enumerate(parents)]


BESIDE = "others are on branches that were left, or before the log was compacted"
CIRCLE = "the parents of some go in a circle"
LOOP = chain([None, 0, 4, 2, 3, 4])
LOST = chain([None, 0, 9, 2])
LEFT = chain([None, 0, 1, 0])
ODD = chain([None, 0, 1, 2])
del ODD[3]["uuid"], ODD[3]["parentUuid"]
AGAIN = [*chain([None, 0, 1, 2]), {**claude(0, "user", "turn 4", 3)}]


@pytest.mark.parametrize(
    ("events", "note"),
    [
        (LOOP, f"shows 4 of 6 messages, because {CIRCLE}"),
        (LOST, "shows 2 of 4 messages, because the parent of one is not in the log"),
        (AGAIN, f"shows 4 of 5 messages, because 1 event has the uuid of another one, and {CIRCLE}"),
        (ODD, f"shows 3 of 4 messages, because {BESIDE}"),
        (chain([None, 0, 1, 2]), ""),
    ],
)  # fmt: skip
def test_a_broken_branch_says_so(events: list[dict[str, Any]], note: str) -> None:
    assert conversation_of(Session("chat", events)).note == note
    whole = conversation_of(Session("chat", events), every=True)
    assert [turn.text for turn in whole.turns] == [f"turn {n}" for n in range(len(events))] and not whole.note


def test_what_was_left_or_compacted_is_counted() -> None:
    assert conversation_of(Session("chat", LEFT)).note.startswith("shows 2 of 4 messages, because others are on br")
    long = [CODEX[0], *[codex("response_item", type="message", role=r, content="x") for r in ("user", "assistant")] * 3]
    found = conversation_of(Session("chat", long + CODEX[2:]))
    assert found.note == "shows 5 of 11 messages, because the log was compacted"
    assert conversation_of(Session("chat", OPENCODE)).note.startswith("shows 4 of 5 messages, because others were rev")


def test_lines_that_cannot_be_read_are_counted() -> None:
    rows = [json.dumps(row).encode() for row in chain([None, 0, 1])]
    found = conversation_of(Session("text", b"\n".join([*rows[:2], b"\0\0\0", rows[2], b'{"cut'])))
    assert found.note == "shows 3 messages, though 2 lines cannot be read"


def test_of_a_long_log_the_end_is_shown_and_all_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.datasets.conversation.NEAR", 1 << 12)
    monkeypatch.setattr("pltz.datasets.conversation.FAR", 1 << 14)
    data = b"".join(json.dumps(row).encode() + b"\n" for row in chain([None, *range(199)]))
    long = Session("text", LongText.filled("x", [data]))
    found = conversation_of(long)
    assert found.agent == "claude-code" and found.turns[-1].text == "turn 199" and len(found.turns) < 40
    assert f"of its {len(data):,} bytes the last 4,096 are looked at" in found.note
    assert [turn.number for turn in found.turns] == list(range(-len(found.turns), 0))
    most = conversation_of(long, least=len(found.turns))
    assert most.turns[-len(found.turns) :] == found.turns and "16,384 are looked at" in most.note
    assert conversation_of(long, least=1000).turns == most.turns
    every = [turn for part in conversations_of(long) for turn in part.turns]
    assert [(turn.number, turn.text) for turn in every] == [(n + 1, f"turn {n}") for n in range(200)]
    assert numbered(long, slice(7, 9)).turns == tuple(every[7:9]) and not numbered(long, slice(200, None)).turns


@pytest.mark.parametrize("indent", [None, 2])
def test_a_document_is_looked_at_as_a_whole(monkeypatch: pytest.MonkeyPatch, indent: int | None) -> None:
    for name in ("NEAR", "FAR"):
        monkeypatch.setattr(f"pltz.datasets.conversation.{name}", 1 << 8)
    data = json.dumps(GEMINI_LOG, indent=indent).encode() + b"\n"
    for value in (data, LongText.filled("x", [data])):
        session = Session("text", value)
        assert is_long(session) and log_of(session) == ("gemini-cli", GEMINI_LOG)
        [every], wanted = conversations_of(session), conversation_of(Session("chat", GEMINI_LOG)).turns
        assert conversation_of(session).turns == every.turns == wanted != ()


def test_lines_that_are_no_events_are_left_out_and_counted() -> None:
    events: list[Any] = [*chain([None, 0, 1]), "a comment", {**claude(3, "user", "", 2), "message": "error"}]
    rows = b"\n".join(json.dumps(row).encode() for row in events)
    for session in (Session("chat", events), Session("text", rows)):
        found = conversation_of(session)
        assert [turn.text for turn in found.turns] == ["turn 0", "turn 1", "turn 2"]
        assert found.note == "shows 3 messages, though 1 line cannot be read"


def test_exports_of_web_chats_say_when() -> None:
    said = {"author": {"role": "user"}, "content": {"parts": ["Hi"]}, "create_time": MOMENT + 0.5}
    chatgpt = {"mapping": {"a": {"id": "a", "message": said}}, "current_node": "a"}
    row = {"sender": "human", "text": "Hi", "created_at": "2026-01-05T09:00:00Z"}
    claude_ai = {"uuid": "c", "chat_messages": [row]}
    for agent, value in (("chatgpt", chatgpt), ("claude-ai", claude_ai)):
        found = conversation_of(Session("chat", value))
        assert (found.agent, [(turn.text, turn.time) for turn in found.turns]) == (agent, [("Hi", MOMENT)])
