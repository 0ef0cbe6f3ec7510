"""Copilot CLI: one events.jsonl per session below ~/.copilot/session-state, one event per line.

    {"type": "session.start", "data": {"sessionId": "...", "producer": "copilot-agent"}, "id": "...", "timestamp": ...}
    {"type": "user.message", "data": {"content": "Hi"}, "id": "...", "timestamp": "...", "parentId": "..."}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pltz.datasets.input_format import InputFormat


def _is_event(event: dict[str, Any]) -> bool:
    kind = event.get("type")
    return isinstance(kind, str) and "." in kind and isinstance(event.get("data"), dict) and "timestamp" in event


def _are_events(events: Sequence[dict[str, Any]]) -> bool:
    return all(map(_is_event, events))


FORMAT = InputFormat("copilot-cli", "agent log", "session files of Copilot CLI", of_events=_are_events)
