"""Cline and Roo Code: two JSON files per task, below tasks/ID in the extension's storage.

    ui_messages.json                 [{"ts": 1767603600000, "type": "say", "say": "text", "text": "..."}, ...]
    api_conversation_history.json    [{"role": "user", "content": [{"type": "text", "text": "<task>\\n..."}, ...]}, ...]

The second is what the model was sent: messages like those of any chat, but for the words that the extension puts in.
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, at, called, said, spoken, text_of


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("ts"), int):
        return False
    return value.get("type") in ("say", "ask") and value["type"] in value


def conversation(events: list[dict[str, Any]]) -> list[Message]:
    """Return the messages of a task as it was shown. What the model was sent is in api_conversation_history.json."""
    found: list[Message] = []
    for event in events:
        kind, text = event.get(event["type"]), event.get("text")
        if event.get("partial"):
            continue
        before = len(found)
        if kind in ("task", "user_feedback", "user_feedback_diff") or not found:
            found += said("user", text)
        elif kind == "tool":
            found.append(called("tool", text))
        elif kind in ("command", "browser_action", "use_mcp_server"):
            found.append(called(kind, {"input": text}))
        elif kind in ("command_output", "browser_action_result", "mcp_server_response"):
            found.append(answered(text))
        elif kind in ("text", "completion_result", "followup", "plan_mode_respond"):
            found += said("assistant", text)
        at(event, found[before:])
    return found


MARKS = ("<task>", "<user_message>", "<environment_details>")  # around words of the user, and behind them


def _is_history(value: Any) -> bool:
    if not isinstance(value, list) or not value or not is_messages(value):
        return False
    first = value[0]
    if first.get("role") != "user" or not isinstance(first.get("content"), list):
        return False
    if isinstance(first.get("ts"), int):  # Roo Code's, which Anthropic's messages do not have
        return True
    return text_of(first["content"]).lstrip().startswith(MARKS)


def history(messages: list[dict[str, Any]]) -> list[Message]:
    """Return the messages that the model was sent."""
    said_by = [(message, spoken(message.get("role", "user"), message.get("content"))) for message in messages]
    return [one for message, found in said_by for one in at(message, found)]


FORMAT = InputFormat(
    "cline",
    "agent log",
    "tasks of Cline and Roo Code",
    of_value=lambda value: bool(value) and is_messages(value, _is_message),
    conversation=conversation,
)
HISTORY = InputFormat(
    "cline-history",
    "agent log",
    "what Cline and Roo Code sent to the model",
    of_value=_is_history,
    conversation=history,
)
