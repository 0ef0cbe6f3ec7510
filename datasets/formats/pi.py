"""Logs of pi: one JSONL file per session below ~/.pi/agent/sessions, one entry per line. Oh My Pi writes the same.

    {"type": "session", "version": 3, "id": "...", "timestamp": "...", "cwd": "/home/ada/shop"}
    {"type": "message", "id": "0a826f1c", "parentId": null, "timestamp": "...", "message": {"role": "user", ...}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, at, branch, in_a_row, most_are_typed, said, spoken, why_apart


def _is_head(event: dict[str, Any]) -> bool:
    return event.get("type") == "session" and {"id", "timestamp", "cwd"} <= event.keys()


def _are_events(events: Sequence[dict[str, Any]]) -> bool:
    return any(map(_is_head, events)) and most_are_typed(events)


def conversation(events: list[dict[str, Any]]) -> list[Message]:
    """Return the messages from the root to the last entry, with the summary of a compaction for what it replaced."""
    way = branch(events, _leaf(events))
    start = [message for event in way for message in said("system", event.get("systemPrompt"))]
    entries = [event for event in way if "systemPrompt" not in event]
    last = next((n for n in reversed(range(len(entries))) if entries[n].get("type") == "compaction"), None)
    if last is not None:
        kept = entries[last].get("firstKeptEntryId")
        first = next((n for n, entry in enumerate(entries) if entry.get("id") == kept), last)
        entries = [entries[last], *(entry for n, entry in enumerate(entries) if n >= first and n != last)]
    return start + [message for entry in entries for message in at(entry, _messages(entry))]


def _leaf(events: list[dict[str, Any]]) -> dict[str, Any]:
    return next(event for event in reversed(events) if "id" in event and event.get("type") != "session")


def unfolded(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return the events on one branch and without compactions, and why the last branch may have fewer."""
    return in_a_row([e for e in events if e.get("type") != "compaction"]), why_apart(events, _leaf(events))


def _messages(entry: dict[str, Any]) -> list[Message]:
    if entry.get("type") in ("compaction", "branch_summary"):
        return said("user", entry.get("summary"))
    if entry.get("type") == "custom_message":
        return said("user", entry.get("content"))
    message = entry.get("message")
    if not isinstance(message, dict):
        return []
    if message.get("role") == "toolResult":
        return [answered(message.get("content"))]
    if message.get("role") == "bashExecution":
        return said("user", f"{message.get('command')}\n{message.get('output')}")
    return spoken(message.get("role", "user"), message.get("content"))


FORMAT = InputFormat(
    "pi", "agent log", "session files of pi", of_events=_are_events, conversation=conversation, unfolded=unfolded
)
