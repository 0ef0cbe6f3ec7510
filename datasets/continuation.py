"""Continuation: whether a session goes on where an earlier one ended, or is another one under the same name.

    log of an agent, text    the earlier bytes or events come first, unchanged
    chat                     the earlier messages come first, unchanged, and no id of the chat is another one
    JSON document            so do the items of its list of messages, turns, ...
    line of JSON             it is the first of several lines

The last item of a document may have grown where it says by an id or a time that it is the same one: agents write
messages that are not complete yet.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from pltz.datasets.log_lines import narrow, values
from pltz.models.session.session import Session

LISTS = ("messages", "conversations", "conversation", "turns", "history", "trajectory", "items")
IDS = ("id", "uuid", "ts", "timestamp")
NAMES = ("id", "uuid", "sessionId", "session_id", "conversation_id", "conversation_hash", "chat_id", "instance_id")


def continues(earlier: Session, later: Session) -> bool:
    """Return whether a session continues an earlier one, or is equal to it.

    >>> old = Session("chat", {"messages": [{"role": "user", "content": "Hi"}]})
    >>> new = Session("chat", {"messages": [*old.value["messages"], {"role": "assistant", "content": "Hello"}]})
    >>> continues(old, new), continues(new, old)
    (True, False)
    """
    if earlier.kind == "ids" or later.kind == "ids":
        same = earlier.kind == later.kind and len(earlier.value) <= len(later.value)
        return same and np.array_equal(earlier.value, later.value[: len(earlier.value)])
    if earlier == later or (earlier.kind == later.kind == "text" and later.value.startswith(earlier.value)):
        return True
    first, second = _value(earlier), _value(later)
    if earlier.kind == "chat" and later.kind == "text" and isinstance(second, list) and second[:1] == [first]:
        return True
    before, after = _turns(first), _turns(second)
    if before is None or after is None or _are_two(first, second):
        return False
    pairs = enumerate(zip(before, after, strict=False))
    count = next((number for number, (a, b) in pairs if a != b), min(len(before), len(after)))
    if count == len(before):
        return bool(before) or earlier.kind == later.kind
    return count == len(before) - 1 < len(after) and _is_same_turn(before[count], after[count])


def _value(session: Session) -> Any:
    return _parsed(session.value) if session.kind == "text" else session.value


def _are_two(first: Any, second: Any) -> bool:
    """Return whether two documents say by an id of theirs that they are two sessions."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return False
    return any(key in first and key in second and first[key] != second[key] for key in NAMES)


def _turns(value: Any) -> list[Any] | None:
    """Return the items of a session in their order: messages, events or turns; None where it has no list of them."""
    if isinstance(value, dict):
        value = next((value[key] for key in LISTS if isinstance(value.get(key), list)), None)
    return value if isinstance(value, list) else None


def _parsed(text: bytes) -> Any:
    """Return the value of a text that is a JSON document or JSON lines, None of another."""
    try:
        return json.loads(narrow(text))
    except (ValueError, RecursionError):
        return list(values(text)) or None


def _is_same_turn(first: Any, second: Any) -> bool:
    """Return whether two items are one by their id or time."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return False
    if isinstance(first.get("info"), dict) and isinstance(second.get("info"), dict):
        first, second = first["info"], second["info"]
    known = [key for key in IDS if key in first and key in second]
    return bool(known) and all(first[key] == second[key] for key in known)
