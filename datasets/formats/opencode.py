"""OpenCode: one JSON document per session, as ``opencode export`` writes it.

    {"info": {"id": "ses_...", "directory": "/home/ada/shop"}, "messages": [{"info": {...}, "parts": [...]}]}
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, called, said


def _has_parts(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    return isinstance(message.get("parts"), list) and isinstance(message.get("info"), dict)


def _is_document(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("info"), dict):
        return False
    return is_messages(value.get("messages"), _has_parts) and str(value["info"].get("id", "")).startswith("ses_")


def conversation(value: dict[str, Any]) -> list[Message]:
    """Return the messages of a session up to where it was reverted, from the last compaction on."""
    revert = value["info"].get("revert")
    undone = revert.get("messageID") if isinstance(revert, dict) else None
    found: list[Message] = []
    for message in value["messages"]:
        if undone is not None and message["info"].get("id") == undone:
            break
        if message["info"].get("summary") is True:
            found = []
        found += _messages(message)
    return found


def _messages(message: dict[str, Any]) -> list[Message]:
    role = message["info"].get("role", "user")
    found = said("system", message["info"].get("system"))
    for part in message["parts"]:
        if part.get("type") == "text" and not part.get("ignored"):
            found += said(role, part.get("text"))
        elif part.get("type") == "tool":
            state = part.get("state") or {}
            found.append(called(part.get("tool"), state.get("input")))
            found.append(answered(state.get("output", state.get("error", ""))))
    return found


FORMAT = InputFormat(
    "opencode", "agent log", "sessions that OpenCode exports", of_value=_is_document, conversation=conversation
)
