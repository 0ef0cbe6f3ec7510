"""Continue: one JSON document per session, below ~/.continue/sessions.

    {"sessionId": ..., "title": ..., "workspaceDirectory": ..., "history": [{"message": {"role": ..., "content": ...}}]}
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, called, spoken


def _is_item(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(message := item.get("message"), dict) and "role" in message


def _is_session(value: Any) -> bool:
    return isinstance(value, dict) and "workspaceDirectory" in value and is_messages(value.get("history"), _is_item)


def conversation(value: dict[str, Any]) -> list[Message]:
    """Return the messages of a session."""
    found: list[Message] = []
    for message in (item["message"] for item in value["history"]):
        if message["role"] == "tool":
            found.append(answered(message.get("content")))
        elif message["role"] != "thinking":
            found += spoken(message["role"], message.get("content"))
        calls = (call.get("function") or {} for call in message.get("toolCalls") or ())
        found += [called(function.get("name"), function.get("arguments")) for function in calls]
    return found


FORMAT = InputFormat("continue", "agent log", "sessions of Continue", of_value=_is_session, conversation=conversation)
