"""Codex CLI: one rollout file per session below ~/.codex/sessions, one event per line.

    {"timestamp": "...", "type": "session_meta", "payload": {"id": "...", "cwd": "..."}}
    {"timestamp": "...", "type": "response_item", "payload": {"type": "message", "role": "user", "content": [...]}}

Older rollouts begin with {"id": ..., "timestamp": ..., "instructions": ...} and go on with bare items, and the
oldest are one JSON document {"session": {...}, "items": [...]}. ``codex exec --json`` prints events of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pltz.datasets.formats.openai import is_items
from pltz.datasets.input_format import InputFormat

TYPES = frozenset(("session_meta", "response_item", "event_msg", "turn_context", "compacted"))


def _is_event(event: dict[str, Any]) -> bool:
    return event.get("type") in TYPES and isinstance(event.get("payload"), dict)


def _are_events(events: Sequence[dict[str, Any]]) -> bool:
    first = events[0]
    if any(map(_is_event, events)) or first.get("type") == "thread.started":
        return True
    return {"id", "timestamp", "instructions"} <= first.keys() and "messages" not in first


def _is_document(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("session"), dict) and is_items(value.get("items"))


FORMAT = InputFormat("codex", "agent log", "rollout files of Codex CLI", of_events=_are_events)
DOCUMENT = InputFormat("codex-document", "agent log", "rollout files of early Codex CLI", of_value=_is_document)
