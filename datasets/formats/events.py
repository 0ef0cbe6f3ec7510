"""Events: JSON lines of no known agent that belong together, as they tell one session in order.

    {"role": "user", "content": "Hi"}                           a message per line
    {"type": "turn/start", "seq": 0, "time": 1783421410388}     an event per line, each with its kind and its time

Lines that are sessions of their own, such as chats and tasks, have neither. Messages that all have one role are
answers, not a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pltz.datasets.formats.messages import is_message
from pltz.datasets.input_format import InputFormat

KINDS = ("type", "event", "kind", "role")
ORDERS = ("timestamp", "time", "ts", "seq", "parentId", "parent_id", "createdAt", "created_at")
BODIES = ("messages", "conversations", "conversation", "prompt")  # of lines that are sessions themselves


def _is_spoken(event: dict[str, Any]) -> bool:
    return is_message(event) and ("content" in event or "message" in event or "value" in event)


def _is_timed(event: dict[str, Any]) -> bool:
    return any(isinstance(event.get(key), str) for key in KINDS) and any(key in event for key in ORDERS)


def _are_events(events: Sequence[dict[str, Any]]) -> bool:
    if len(events) < 2 or any(key in event for event in events for key in BODIES):
        return False
    speakers = {str(event.get("role", event.get("from"))) for event in events}
    return all(map(_is_timed, events)) or (len(speakers) > 1 and all(map(_is_spoken, events)))


FORMAT = InputFormat("events", "agent log", "JSON lines that tell one session", of_events=_are_events)
