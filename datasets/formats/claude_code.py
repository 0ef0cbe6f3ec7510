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
from pltz.datasets.turns import Message, at, branch, in_a_row, most_are_typed, spoken, why_apart

MARKS = ("sessionId", "leafUuid", "parent_tool_use_id")  # one of them names the session, or a place in it
TYPES = ("file-history-snapshot", "queue-operation", "attribution-snapshot")  # lines of Claude Code alone


def _is_event(event: dict[str, Any]) -> bool:
    if not isinstance(event.get("type"), str):
        return False
    if any(mark in event for mark in MARKS) or event["type"] in TYPES:
        return True
    return "uuid" in event and "parentUuid" in event


def _are_events(events: Sequence[dict[str, Any]]) -> bool:
    """Return whether the first events are Claude Code's: one is enough, as kinds of events come and go."""
    return any(map(_is_event, events)) and most_are_typed(events)


def conversation(events: list[dict[str, Any]]) -> list[Message]:
    """Return the messages on the way from the root to the last message that is no subagent's.

    Results of tools that were called at once hang beside that way, and so do parts of one answer: they are on it by the
    ids of the call and of the answer.
    """
    own = _own(events)
    if not any("parentUuid" in event for event in own):
        return [message for event in own for message in _messages(event)]
    way = {id(event) for event in branch(events, _leaf(own), "uuid", "parentUuid")}
    answers = {event["message"].get("id") for event in own if id(event) in way and event["type"] == "assistant"}
    way |= {id(e) for e in own if e["type"] == "assistant" and e["message"].get("id") in answers - {None}}
    calls = {part.get("id") for event in own if id(event) in way for part in _parts(event)}
    way |= {id(e) for e in own if calls & {part.get("tool_use_id") for part in _parts(e)} - {None}}
    return [message for event in own if id(event) in way for message in _messages(event)]


def _own(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events with messages, without those of subagents; of a subagent's own file all."""
    types = "user", "assistant"
    talk = [event for event in events if event.get("type") in types and isinstance(event.get("message"), dict)]
    return [event for event in talk if not event.get("isSidechain")] or talk


def _leaf(own: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last of some events that has a place in the tree, or the last."""
    return next((event for event in reversed(own) if "uuid" in event), own[-1])


def _parts(event: dict[str, Any]) -> list[dict[str, Any]]:
    content = event["message"].get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _messages(event: dict[str, Any]) -> list[Message]:
    return at(event, spoken(event["message"].get("role", event["type"]), event["message"].get("content")))


def unfolded(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return the events with all messages on one way, and why the last way may have fewer."""
    own = _own(events)
    keys = "uuid", "parentUuid"
    return in_a_row(events, *keys), why_apart(events, _leaf(own), *keys) if own else ""


FORMAT = InputFormat(
    "claude-code",
    "agent log",
    "session files of Claude Code",
    of_events=_are_events,
    conversation=conversation,
    unfolded=unfolded,
)
