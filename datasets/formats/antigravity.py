"""Antigravity: one JSON document per session.

    {"sessionId": "...", "turns": [{"role": "user", "parts": [{"text": "Hi"}]}]}
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, called, said


def _is_document(value: Any) -> bool:
    return isinstance(value, dict) and "sessionId" in value and is_messages(value.get("turns"))


def conversation(value: dict[str, Any]) -> list[Message]:
    """Return the turns of user and model, with calls of functions and their responses."""
    found: list[Message] = []
    for turn in value["turns"]:
        role = "assistant" if turn.get("role") == "model" else turn.get("role", "user")
        for part in turn.get("parts") or ():
            call, response = part.get("functionCall"), part.get("functionResponse")
            if isinstance(call, dict):
                found.append(called(call.get("name"), call.get("args")))
            elif isinstance(response, dict):
                found.append(answered(response.get("response")))
            else:
                found += said(role, [part])
    return found


FORMAT = InputFormat(
    "antigravity", "agent log", "session files of Antigravity", of_value=_is_document, conversation=conversation
)
