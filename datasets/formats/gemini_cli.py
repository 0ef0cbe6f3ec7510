"""Gemini CLI: one JSON document per session below ~/.gemini/tmp/PROJECT/chats, or JSON lines in later versions.

    {"sessionId": "...", "projectHash": "...", "startTime": "...", "messages": [{"id": ..., "type": "user", ...}]}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pltz.datasets.input_format import InputFormat

MARKS = {"sessionId", "projectHash"}


def _is_document(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= MARKS and isinstance(value.get("messages"), list)


def _are_events(events: Sequence[dict[str, Any]]) -> bool:
    return events[0].keys() >= MARKS and "messages" not in events[0]


FORMATS = (
    InputFormat("gemini-cli", "agent log", "session files of Gemini CLI", of_value=_is_document),
    InputFormat("gemini-cli-lines", "agent log", "session files of Gemini CLI as JSON lines", of_events=_are_events),
)
