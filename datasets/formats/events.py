"""Events: JSON lines of no known agent that belong together, as they tell one session in order.

    {"role": "user", "content": "Hi"}                           a message per line
    {"type": "turn/start", "seq": 0, "time": 1783421410388}     an event per line, each with its kind and its time

Lines that are sessions of their own, such as chats and tasks, have neither. Messages that all have one role are
answers, not a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pltz.datasets.formats import claude_code, codex, copilot_cli
from pltz.datasets.formats.messages import is_message
from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import CALLS, Message, answered, at, called, said, spoken

KINDS = ("type", "event", "kind", "role")
ORDERS = ("timestamp", "time", "ts", "seq", "parentId", "parent_id", "createdAt", "created_at")
BODIES = ("messages", "conversations", "conversation", "prompt")  # of lines that are sessions themselves


def _is_spoken(event: dict[str, Any]) -> bool:
    return is_message(event) and ("content" in event or "message" in event or "value" in event)


def _is_timed(event: dict[str, Any]) -> bool:
    return any(isinstance(event.get(key), str) for key in KINDS) and any(key in event for key in ORDERS)


def _are_events(events: Sequence[dict[str, Any]]) -> bool:
    if len(events) < 2 or any(key in event for event in events for key in BODIES):
        return False
    head = "version" in events[0] and any(isinstance(events[0].get(key), str) for key in KINDS)  # of a log, has no time
    speakers = {str(event.get("role", event.get("from"))) for event in events}
    return all(map(_is_timed, events[head:])) or (len(speakers) > 1 and all(map(_is_spoken, events)))


def conversation(events: list[dict[str, Any]]) -> list[Message]:
    """Return the messages among the events: lines that are one, or hold one, and calls and results beside them."""
    raw = [event["raw"] for event in events if isinstance(event.get("raw"), dict)]
    if raw:  # an event of another agent is kept in each
        marks = {key for event in raw for key in event}
        if "sessionId" in marks:
            return claude_code.conversation(raw)
        return codex.conversation(raw) if "payload" in marks else copilot_cli.conversation(raw)
    told = {part.get("id") for event in events for part in _parts(event) if part.get("type") in CALLS}
    return [message for event in events for message in at(event, _messages(event, told))]


def _parts(event: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of the message that an event holds."""
    content = event.get("data", event)
    for key in ("message", "content"):
        content = content.get(key, content) if isinstance(content, dict) else content
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _messages(event: dict[str, Any], told: set[Any]) -> list[Message]:
    """Return the messages of an event. ``told``: ids of calls that messages of the model hold."""
    kind = str(next((event[key] for key in KINDS if isinstance(event.get(key), str)), ""))
    data = event.get("data") if isinstance(event.get("data"), dict) else event
    assert isinstance(data, dict)
    if isinstance(header := data.get("header"), dict):
        return said("system", header.get("system"))
    inner = data["message"] if isinstance(data.get("message"), dict) else data
    role = inner.get("role", inner.get("from", kind.partition("/")[0]))
    if kind == "tool/result":
        parts = [part for part in inner.get("content") or () if isinstance(part, dict)]
        nested = [part["content"] for part in parts if part.get("type") == "tool-result"]
        return [answered(one) for one in nested or [inner.get("content")]]
    if kind == "tool/call":
        return [] if inner.get("callId") in told else [called(inner.get("name"), inner.get("arguments"))]
    if role in ("tool", "function"):
        return [answered(inner.get("content"))]
    if role in ("system", "developer", "user", "human", "assistant", "gpt", "model", "ai"):
        role = {"human": "user", "gpt": "assistant", "model": "assistant", "ai": "assistant"}.get(role, role)
        found = spoken(role, inner.get("content", inner.get("value", inner.get("message"))))
        calls = [call.get("function", {}) for call in inner.get("tool_calls") or ()]
        return found + [called(call.get("name"), call.get("arguments")) for call in calls]
    return []


FORMAT = InputFormat(
    "events", "agent log", "JSON lines that tell one session", of_events=_are_events, conversation=conversation
)
