"""Antigravity: one JSON document per session.

    {"sessionId": "...", "turns": [{"role": "user", "parts": [{"text": "Hi"}]}]}
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat


def _is_document(value: Any) -> bool:
    return isinstance(value, dict) and "sessionId" in value and is_messages(value.get("turns"))


FORMAT = InputFormat("antigravity", "agent log", "session files of Antigravity", of_value=_is_document)
