"""OpenCode: one JSON document per session, as ``opencode export`` writes it.

    {"info": {"id": "ses_...", "directory": "/home/ada/shop"}, "messages": [{"info": {...}, "parts": [...]}]}
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat


def _has_parts(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    return isinstance(message.get("parts"), list) and isinstance(message.get("info"), dict)


def _is_document(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("info"), dict):
        return False
    return is_messages(value.get("messages"), _has_parts) and str(value["info"].get("id", "")).startswith("ses_")


FORMAT = InputFormat("opencode", "agent log", "sessions that OpenCode exports", of_value=_is_document)
