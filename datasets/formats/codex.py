"""Codex CLI: one rollout file per session below ~/.codex/sessions, one event per line.

    {"timestamp": "...", "type": "session_meta", "payload": {"id": "...", "cwd": "..."}}
    {"timestamp": "...", "type": "response_item", "payload": {"type": "message", "role": "user", "content": [...]}}

Older rollouts begin with {"id": ..., "timestamp": ..., "instructions": ...} and go on with bare items, and the
oldest are one JSON document {"session": {...}, "items": [...]}. ``codex exec --json`` prints events of threads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pltz.datasets.formats.openai import is_items
from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, at, called, said

TYPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")


def _is_event(event: dict[str, Any]) -> bool:
    return event.get("type") in TYPES and isinstance(event.get("payload"), dict)


def _are_events(events: Sequence[dict[str, Any]]) -> bool:
    first = events[0]
    if any(map(_is_event, events)) or first.get("type") == "thread.started":
        return True
    return {"id", "timestamp", "instructions"} <= first.keys() and "messages" not in first


def _is_document(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("session"), dict) and is_items(value.get("items"))


def conversation(events: list[dict[str, Any]]) -> list[Message]:
    """Return the messages of a rollout: instructions and items, from the last compaction on."""
    found: list[Message] = []
    start: list[Message] = []
    for event in events:
        payload = event.get("payload")
        if event.get("type") == "session_meta" and isinstance(payload, dict):
            start = at(event, said("system", payload.get("base_instructions") or payload.get("instructions")))
        elif event.get("type") == "compacted" and isinstance(payload, dict):
            history = payload.get("replacement_history")
            found = items(history) if isinstance(history, list) else said("user", payload.get("message"))
        elif event.get("type") == "response_item" and isinstance(payload, dict):
            found += at(event, items([payload]))
        elif isinstance(event.get("item"), dict):  # codex exec --json
            found += at(event, _item_done(event))
        elif "instructions" in event and "id" in event:
            start = said("system", event["instructions"])
        elif not isinstance(payload, dict):
            found += at(event, items([event]))
    return start + found


def unfolded(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return the events with compactions as the messages that are new in them, and compaction as the reason."""
    found, seen = list[dict[str, Any]](), set[str]()
    for event in events:
        payload = event.get("payload")
        if event.get("type") != "compacted" or not isinstance(payload, dict):
            new = [event]
        else:
            history = payload.get("replacement_history")
            history = history if isinstance(history, list) else [{"role": "user", "content": payload.get("message")}]
            spoken = [item for item in history if item.get("type", "message") == "message"]
            new = [{**event, "type": "response_item", "payload": item} for item in spoken if _key(item) not in seen]
        seen |= {_key(one["payload"]) for one in new if isinstance(one.get("payload"), dict)}
        found += new
    return found, "the log was compacted"


def _key(item: dict[str, Any]) -> str:
    return json.dumps([item.get("role"), item.get("content")])


def items(items: list[Any]) -> list[Message]:
    """Return the messages of items of the Responses API."""
    found: list[Message] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            found += said(item.get("role", "user"), item.get("content"))
        elif kind == "agent_message":
            found += said("user", item.get("content"))
        elif kind in ("function_call", "custom_tool_call", "local_shell_call", "tool_search_call"):
            arguments = item.get("arguments", item.get("input", item.get("action")))
            found.append(called(item.get("name", kind.removesuffix("_call")), arguments))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            found.append(answered(item.get("output")))
    return found


def _item_done(event: dict[str, Any]) -> list[Message]:
    item = event["item"]
    kind = item.get("type", item.get("item_type"))
    if event.get("type") != "item.completed":
        return []
    if kind == "command_execution":
        return [called("shell", {"command": item.get("command")}), answered(item.get("aggregated_output"))]
    return said("assistant", item.get("text")) if kind in ("agent_message", "assistant_message") else []


def _conversation_of_document(value: dict[str, Any]) -> list[Message]:
    return said("system", value["session"].get("instructions")) + items(value["items"])


FORMAT = InputFormat(
    "codex",
    "agent log",
    "rollout files of Codex CLI",
    of_events=_are_events,
    conversation=conversation,
    unfolded=unfolded,
)
DOCUMENT = InputFormat(
    "codex-document",
    "agent log",
    "rollout files of early Codex CLI",
    of_value=_is_document,
    conversation=_conversation_of_document,
)
