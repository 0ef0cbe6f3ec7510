"""Claude Code: one JSONL file per session below ~/.claude/projects, one event per line.

    {"type": "summary", "summary": "...", "leafUuid": "..."}
    {"parentUuid": null, "sessionId": "...", "type": "user", "message": {"role": "user", "content": "..."}, "uuid": ...}

A subagent's file agent-ID.jsonl has the same events. So has the output of ``claude -p --output-format stream-json``,
with keys spelt session_id and parent_tool_use_id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pltz.datasets.input_format import InputFormat

MARKS = ("sessionId", "leafUuid", "parent_tool_use_id")  # one of them names the session, or a place in it
TYPES = frozenset(("file-history-snapshot", "queue-operation", "attribution-snapshot"))  # lines of Claude Code alone


def _is_event(event: dict[str, Any]) -> bool:
    if not isinstance(event.get("type"), str):
        return False
    if any(mark in event for mark in MARKS) or event["type"] in TYPES:
        return True
    return "uuid" in event and "parentUuid" in event


def _are_events(events: Sequence[dict[str, Any]]) -> bool:
    """Return whether the first events are Claude Code's: one is enough, as kinds of events come and go."""
    return any(map(_is_event, events)) and all(isinstance(event.get("type"), str) for event in events)


FORMAT = InputFormat("claude-code", "agent log", "session files of Claude Code", of_events=_are_events)
