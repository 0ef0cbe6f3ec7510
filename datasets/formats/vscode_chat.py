"""VS Code's chats: one JSON document per chat in chatSessions/, or JSON lines that change such a document.

    {"version": 3, "sessionId": ..., "requests": [{"message": {"text": "Hi"}, "response": [{"value": "Hello"}, ...]}]}

    {"kind": 0, "v": {the document}}
    {"kind": 1, "k": ["customTitle"], "v": "Greetings"}      a value is set
    {"kind": 2, "k": ["requests"], "v": [...], "i": 3}       items are added, from position i on
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, called, said


def _is_chat(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("requests"), list):
        return False
    return "responderUsername" in value or ("sessionId" in value and "version" in value)


def _begins(events: Sequence[dict[str, Any]]) -> bool:
    return events[0].get("kind") == 0 and _is_chat(events[0].get("v"))


def _document(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the document that the lines of a chat lead to."""
    found: Any = {}
    for event in events:
        if event.get("kind") == 0:
            found = event["v"]
            continue
        *path, last = event["k"]
        at = found
        for key in path:
            at = at[key]
        if event["kind"] == 1:
            at[last] = event.get("v")
        elif event["kind"] == 2:
            del at[last][event.get("i", len(at[last])) :]
            at[last] += event.get("v") or []
        elif event["kind"] == 3:
            del at[last]
    return dict(found)


def conversation(value: Any) -> list[Message]:
    """Return the messages of a chat. What a tool answered is not in it."""
    found: list[Message] = []
    for request in (_document(value) if isinstance(value, list) else value)["requests"]:
        message = request.get("message")
        found += said("user", message.get("text") if isinstance(message, dict) else message)
        for part in request.get("response") or ():
            if part.get("kind") == "toolInvocationSerialized":
                found.append(called(part.get("toolId"), part.get("toolSpecificData")))
            elif part.get("kind", "markdownContent") == "markdownContent":
                text = part.get("value", part.get("content"))
                found += said("assistant", text.get("value") if isinstance(text, dict) else text)
    return found


FORMAT = InputFormat(
    "vscode-chat",
    "agent log",
    "chats of VS Code (Copilot)",
    of_events=_begins,
    of_value=_is_chat,
    conversation=conversation,
)
