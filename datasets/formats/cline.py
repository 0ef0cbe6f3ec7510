"""Cline and Roo Code: two JSON files per task, below tasks/ID in the extension's storage.

    ui_messages.json                 [{"ts": 1767603600000, "type": "say", "say": "text", "text": "..."}, ...]
    api_conversation_history.json    a list of messages, which is recognised as such
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("ts"), int):
        return False
    return value.get("type") in ("say", "ask") and value["type"] in value


FORMAT = InputFormat(
    "cline",
    "agent log",
    "tasks of Cline and Roo Code",
    of_value=lambda value: bool(value) and is_messages(value, _is_message),
)
