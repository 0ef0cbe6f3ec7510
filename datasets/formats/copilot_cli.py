"""Copilot CLI: one events.jsonl per session below ~/.copilot/session-state, one event per line.

    {"type": "session.start", "data": {"sessionId": "...", "producer": "copilot-agent"}, "id": "...", "timestamp": ...}
    {"type": "user.message", "data": {"content": "Hi"}, "id": "...", "timestamp": "...", "parentId": "..."}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, at, called, said


def _is_event(event: dict[str, Any]) -> bool:
    kind = event.get("type")
    return isinstance(kind, str) and "." in kind and isinstance(event.get("data"), dict) and "timestamp" in event


def _are_events(events: Sequence[dict[str, Any]]) -> bool:
    return 2 * sum(map(_is_event, events)) > len(events)  # others may write a line between


def conversation(events: list[dict[str, Any]]) -> list[Message]:
    """Return the messages of a session, with what a user said as the model was shown it."""
    found: list[Message] = []
    for event in events:
        kind, data = event.get("type"), event.get("data")
        if not isinstance(data, dict):
            continue
        if kind in ("system.message", "assistant.message", "user.message"):
            role = str(kind).partition(".")[0]
            found += at(event, said(role, data.get("transformedContent") or data.get("content")))
            calls = data.get("toolRequests") or ()
            found += at(event, [called(call.get("name"), call.get("arguments")) for call in calls])
        elif kind == "tool.execution_complete":
            result = data.get("result") or data.get("error") or {}
            found += at(event, [answered(result.get("content", result.get("message", "")))])
    return found


FORMAT = InputFormat(
    "copilot-cli", "agent log", "session files of Copilot CLI", of_events=_are_events, conversation=conversation
)
