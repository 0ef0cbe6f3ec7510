"""Gemini CLI: one JSON document per session below ~/.gemini/tmp/PROJECT/chats, or JSON lines in later versions.

    {"sessionId": "...", "projectHash": "...", "startTime": "...", "messages": [{"id": ..., "type": "user", ...}]}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, at, called, said

MARKS = {"sessionId", "projectHash"}


def _is_document(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= MARKS and isinstance(value.get("messages"), list)


def _are_events(events: Sequence[dict[str, Any]]) -> bool:
    return events[0].keys() >= MARKS and "messages" not in events[0]


def conversation(value: dict[str, Any]) -> list[Message]:
    """Return the messages of a document: of the user and of the model, each with its calls and their results."""
    return [message for entry in value["messages"] for message in _messages(entry)]


def _conversation_of_lines(events: list[dict[str, Any]]) -> list[Message]:
    """Return the messages of lines. A message that was written again replaces the first one of its id."""
    entries: dict[Any, dict[str, Any]] = {}
    for number, event in enumerate(events):
        if "$rewindTo" in event:
            names = list(entries)
            at = names.index(event["$rewindTo"]) if event["$rewindTo"] in names else len(names)
            entries = {name: entries[name] for name in names[:at]}
        elif event.get("type") in ("user", "gemini"):
            entries[event.get("id", number)] = event
    return [message for entry in entries.values() for message in _messages(entry)]


def unfolded(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return the lines without those that take others back, and that as the reason."""
    return [event for event in events if "$rewindTo" not in event], "others were taken back"


def _messages(entry: dict[str, Any]) -> list[Message]:
    if entry.get("type") not in ("user", "gemini"):
        return []
    found = said("user" if entry["type"] == "user" else "assistant", entry.get("content"))
    calls = entry.get("toolCalls") or ()
    found += [called(call.get("name"), call.get("args")) for call in calls]
    return at(entry, found + [answered(_result(call)) for call in calls])


def _result(call: dict[str, Any]) -> Any:
    """Return the output of a call: that of its response, else what was shown."""
    for part in call.get("result") or ():
        response = part.get("functionResponse", {}).get("response") if isinstance(part, dict) else None
        if isinstance(response, dict):
            return response.get("output", response.get("error", response))
    return call.get("resultDisplay", "")


FORMATS = (
    InputFormat(
        "gemini-cli", "agent log", "session files of Gemini CLI", of_value=_is_document, conversation=conversation
    ),
    InputFormat(
        "gemini-cli-lines",
        "agent log",
        "session files of Gemini CLI as JSON lines",
        of_events=_are_events,
        conversation=_conversation_of_lines,
        unfolded=unfolded,
    ),
)
